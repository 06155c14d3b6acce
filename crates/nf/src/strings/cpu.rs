//! The batch form for packets by themselves.

use std::ops::Range;
use std::sync::Arc;

use packetloom_packet::{Batch, DropReason};
use packetloom_pattern::files::Places;
use packetloom_pattern::{Match, Matcher, Scratch};

use super::fields::alone;
use super::judge::{InPayload, Judge, Message, bytes_of, in_fields};
use super::learning::Current;
use super::locate::{Locator, Text};
use super::{List, Within, is_cut_off};
use crate::watches::payload_in;
use crate::{Function, Logged, Report};

pub(super) struct StringsCpu {
    judge: Judge,
    set: Current,
    /// What follows is kept for the next batch: the packets that are searched, the number of each text's packet, the room for texts, and what is
    /// found in them.
    packets: Vec<Searched>,
    packet_of: Vec<u32>,
    texts: Vec<&'static [u8]>,
    matches: Vec<Match>,
    scratch: Scratch,
    room: Room,
}

/// Room for what a packet has, and where that lies.
#[derive(Default)]
struct Room {
    patterns: Vec<u32>,
    locator: Locator,
}

/// A packet that is searched.
struct Searched {
    frame: u32,
    /// Whether its first text is the payload. All others are values of the messages that it has.
    has_payload: bool,
    first_text: u32,
    messages: Vec<Message>,
}

impl StringsCpu {
    pub(super) fn new(list: Arc<List>) -> Self {
        Self {
            set: list.current(),
            judge: Judge::new(list),
            packets: Vec::new(),
            packet_of: Vec::new(),
            texts: Vec::new(),
            matches: Vec::new(),
            scratch: Scratch::default(),
            room: Room::default(),
        }
    }

    /// Finds the matches of packets that still pass, from one on, in order of packets.
    fn search(&mut self, first: usize, batch: &Batch) {
        let Judge { list, report, .. } = &mut self.judge;
        let looks_in_payload = list.places.has(Places::PAYLOAD);
        let Self { packets, packet_of, matches, .. } = self;
        packets.clear();
        packet_of.clear();
        matches.clear();
        let mut count = 0;
        for (index, verdict) in batch.verdicts().iter().enumerate().skip(first) {
            if !verdict.is_pass() {
                continue;
            }
            let text = looks_in_payload.then(|| text_of(batch, index, list.settings.within)).flatten();
            let messages = match list.fields.is_empty() {
                true => Vec::new(),
                false => alone(payload_in(batch, index), list.fields),
            };
            if looks_in_payload || !messages.is_empty() {
                let is_searched = text.is_some() || !messages.is_empty();
                let bytes = text.map_or(0, <[u8]>::len) + bytes_of(&messages);
                report.searches(is_searched.then_some(bytes), is_cut_off(batch, index));
            }
            let values: usize = messages.iter().map(|message| message.values.len()).sum();
            let texts = usize::from(text.is_some()) + values;
            if texts > 0 {
                packet_of.extend(std::iter::repeat_n(packets.len() as u32, texts));
                packets.push(Searched {
                    frame: index as u32,
                    has_payload: text.is_some(),
                    first_text: count,
                    messages,
                });
                count += texts as u32;
            }
        }
        let mut texts = emptied(std::mem::take(&mut self.texts));
        for Searched { frame, has_payload, messages, .. } in packets.iter() {
            let payload =
                has_payload.then(|| text_of(batch, *frame as usize, list.settings.within)).flatten();
            texts.extend(payload);
            texts.extend(messages.iter().flat_map(|message| &message.values).map(|value| &*value.bytes));
        }
        let matcher = self.set.for_texts(list, &texts);
        matcher.find(&texts, list.wanted(), &mut self.scratch, matches);
        self.texts = emptied(texts);
    }

    /// Judges a packet by the matches in its texts.
    fn judge(
        list: &List,
        matcher: &Matcher,
        judge: &mut Judge,
        packet: &Searched,
        matches: &[Match],
        Room { patterns, locator }: &mut Room,
        batch: &mut Batch,
    ) {
        let first = judge.logged.len();
        let Searched { frame, has_payload, first_text, messages } = packet;
        let in_payload: Range<usize> = match has_payload {
            true => 0..matches.partition_point(|found| found.text == *first_text),
            false => 0..0,
        };
        let fields =
            in_fields(list, messages, first_text + u32::from(*has_payload), &matches[in_payload.end..]);
        patterns.clear();
        let found = matches[in_payload].iter().map(|found| found.pattern);
        patterns.extend(found.filter(|&pattern| list.is_looked_for(pattern, Places::PAYLOAD)));
        patterns.sort_unstable();
        let payload = InPayload { is_there: *has_payload, new: patterns, before: &[] };
        if !judge.matches(*frame, payload, &fields, None) {
            return;
        }
        let (settings, frame) = (&list.settings, *frame as usize);
        let logged = &mut judge.logged[first..];
        if settings.offsets && !logged.is_empty() {
            let payload = has_payload.then(|| text_of(batch, frame, settings.within)).flatten();
            let payload = payload.map(|bytes| Text::payload(bytes, settings.within));
            let texts: Vec<_> = payload.into_iter().chain(Text::values(messages)).collect();
            locator.locate(list, matcher, &texts, logged);
        }
        if let Some(mark) = settings.mark {
            batch.set_mark(frame, mark);
        }
        batch.judge().0[frame] = settings.action.verdict(DropReason::Strings);
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
        self.take_matches(0, &[], batch);
    }

    fn take_matches(&mut self, searched: usize, matches: &[Match], batch: &mut Batch) {
        let list = Arc::clone(&self.judge.list);
        self.judge.logged.clear();
        for (index, verdict) in batch.verdicts().iter().enumerate().take(searched) {
            if verdict.is_pass() {
                let text = text_of(batch, index, list.settings.within);
                self.judge.report.searches(text.map(<[u8]>::len), is_cut_off(batch, index));
            }
        }
        for of_packet in matches.chunk_by(|a, b| a.text == b.text) {
            let frame = of_packet[0].text;
            if batch.verdicts()[frame as usize].is_pass() {
                let packet = Searched { frame, has_payload: true, first_text: frame, messages: Vec::new() };
                let matcher = self.set.matcher();
                Self::judge(&list, matcher, &mut self.judge, &packet, of_packet, &mut self.room, batch);
            }
        }
        self.search(searched, batch);
        let Self { judge, set, packets, packet_of, matches, room, .. } = self;
        let packet_of = |found: &Match| packet_of[found.text as usize];
        for of_packet in matches.chunk_by(|a, b| packet_of(a) == packet_of(b)) {
            let packet = &packets[packet_of(&of_packet[0]) as usize];
            Self::judge(&list, set.matcher(), judge, packet, of_packet, room, batch);
        }
    }

    fn logged(&mut self, into: &mut Vec<Logged>) {
        into.append(&mut self.judge.logged);
    }

    fn report(&self) -> Box<dyn Report> {
        Box::new(self.judge.report.clone())
    }
}
