//! The batch form for packets by themselves.

use std::sync::Arc;

use packetloom_names::FieldWatch;
use packetloom_packet::{Batch, DropReason};
use packetloom_pattern::{Match, Scratch};

use super::judge::Judge;
use super::learning::Current;
use super::{List, LookIn, Within, is_cut_off};
use crate::watches::payload_in;
use crate::{Function, Logged, Report};

pub(super) struct StringsCpu {
    judge: Judge,
    set: Current,
    /// What follows is kept for the next batch: the frames that are searched, one for each text, the room for texts and for fields, what is
    /// found in them, and what a packet has.
    frames: Vec<u32>,
    values: Vec<Box<[u8]>>,
    texts: Vec<&'static [u8]>,
    matches: Vec<Match>,
    scratch: Scratch,
    patterns: Vec<u32>,
}

impl StringsCpu {
    pub(super) fn new(list: Arc<List>) -> Self {
        Self {
            set: list.current(),
            judge: Judge::new(list),
            frames: Vec::new(),
            values: Vec::new(),
            texts: Vec::new(),
            matches: Vec::new(),
            scratch: Scratch::default(),
            patterns: Vec::new(),
        }
    }

    /// Finds the matches of all packets that still pass, in order of packets.
    fn search(&mut self, batch: &Batch) {
        let Judge { list, report, .. } = &mut self.judge;
        self.frames.clear();
        self.values.clear();
        self.matches.clear();
        let mut texts = emptied(std::mem::take(&mut self.texts));
        for (index, verdict) in batch.verdicts().iter().enumerate() {
            if !verdict.is_pass() {
                continue;
            }
            match list.settings.look_in {
                LookIn::Payload => {
                    let text = text_of(batch, index, list.settings.within);
                    report.searches(text.map(<[u8]>::len), is_cut_off(batch, index));
                    if let Some(text) = text {
                        self.frames.push(index as u32);
                        texts.push(text);
                    }
                }
                LookIn::Field(field) => {
                    let values =
                        payload_in(batch, index).and_then(|payload| payload.alone::<FieldWatch>(field));
                    let Some(values) = values else { continue };
                    report.searches(Some(bytes_of(&values)), is_cut_off(batch, index));
                    self.frames.extend(values.iter().map(|_| index as u32));
                    self.values.extend(values);
                }
            }
        }
        texts.extend(self.values.iter().map(|value| &**value));
        let matcher = self.set.for_texts(list, &texts);
        matcher.find(&texts, list.wanted(), &mut self.scratch, &mut self.matches);
        self.texts = emptied(texts);
    }
}

/// Bytes of all values of a field.
pub(super) fn bytes_of(values: &[Box<[u8]>]) -> usize {
    values.iter().map(|value| value.len()).sum()
}

/// What is searched of a packet by itself.
pub(super) fn text_of(batch: &Batch, index: usize, within: Within) -> Option<&[u8]> {
    match within {
        Within::Payload | Within::Stream => batch.payload(index),
        Within::Packet => Some(batch.bytes(index)),
    }
}

/// The same room for texts that live longer or shorter: what is collected takes the place of what it is made of.
pub(super) fn emptied<'a>(mut texts: Vec<&[u8]>) -> Vec<&'a [u8]> {
    texts.clear();
    texts.into_iter().map(|_| -> &[u8] { &[] }).collect()
}

impl Function for StringsCpu {
    fn process(&mut self, batch: &mut Batch) {
        self.judge.logged.clear();
        self.search(batch);
        let Self { judge, frames, matches, patterns, .. } = self;
        let frame_of = |found: &Match| frames[found.text as usize];
        for of_frame in matches.chunk_by(|a, b| frame_of(a) == frame_of(b)) {
            let frame = frame_of(&of_frame[0]);
            if !judge.matches_in_texts(frame, of_frame, patterns) {
                continue;
            }
            let settings = &judge.list.settings;
            if let Some(mark) = settings.mark {
                batch.set_mark(frame as usize, mark);
            }
            batch.judge().0[frame as usize] = settings.action.verdict(DropReason::Strings);
        }
    }

    fn logged(&mut self, into: &mut Vec<Logged>) {
        into.append(&mut self.judge.logged);
    }

    fn report(&self) -> Box<dyn Report> {
        Box::new(self.judge.report.clone())
    }
}
