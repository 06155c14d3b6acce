//! The batch form for packets by themselves.

use std::sync::Arc;

use packetloom_packet::{Batch, DropReason};
use packetloom_pattern::{Match, Scratch};

use super::judge::Judge;
use super::learning::Current;
use super::{List, Within, is_cut_off};
use crate::{Function, Logged, Report};

pub(super) struct StringsCpu {
    judge: Judge,
    set: Current,
    /// What follows is kept for the next batch: the frames that are searched, the room for their texts, what is found in them, and what
    /// a packet has.
    frames: Vec<u32>,
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
        self.matches.clear();
        let mut texts = emptied(std::mem::take(&mut self.texts));
        for (index, verdict) in batch.verdicts().iter().enumerate() {
            if !verdict.is_pass() {
                continue;
            }
            let text = text_of(batch, index, list.settings.within);
            report.searches(text.map(<[u8]>::len), is_cut_off(batch, index));
            if let Some(text) = text {
                self.frames.push(index as u32);
                texts.push(text);
            }
        }
        let matcher = self.set.for_texts(list, &texts);
        matcher.find(&texts, list.wanted(), &mut self.scratch, &mut self.matches);
        self.texts = emptied(texts);
    }
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
        for of_text in matches.chunk_by(|a, b| a.text == b.text) {
            let frame = frames[of_text[0].text as usize];
            patterns.clear();
            patterns.extend(of_text.iter().map(|found| found.pattern));
            if !judge.matches(frame, patterns, None) {
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
