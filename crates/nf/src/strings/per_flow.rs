//! The batch form for packets by their flows: of streams, and with what becomes of the rest of a flow.
//!
//! All packets of a batch are searched before one is judged. Of a flow that is dropped from one packet on, those behind it in the same batch were
//! searched in vain.

use std::ops::Range;
use std::sync::Arc;

use packetloom_packet::{Batch, DropReason, FlowKey, Verdict, protocol};
use packetloom_pattern::{Match, Part, Scratch};

use super::cpu::{emptied, text_of};
use super::judge::Judge;
use super::learning::Current;
use super::streams::{Fresh, Segment, StreamId, Streams};
use super::{FlowCounts, List, Within, is_cut_off};
use crate::flows::{End, FlowFunction, Flows, Seen, StateAt, Visit, number_of_new};
use crate::watches::sequence_of;
use crate::{Logged, Records, Report};

/// Bit of a flow's word: it matched, and its rest is dropped. Those above are its number, 0 before it has one.
pub(super) const MATCHED: u64 = 1;

pub(super) struct StringsPerFlow {
    at: StateAt,
    judge: Judge,
    set: Current,
    drops: bool,
    streams: Option<Streams>,
    /// What is searched of each packet of a batch, and where that is in `matches`.
    plans: Vec<Plan>,
    found: Vec<Range<u32>>,
    /// The rest is kept for the next batch.
    room: Vec<u8>,
    fresh: Vec<Fresh>,
    texts: Vec<&'static [u8]>,
    parts: Vec<Part>,
    frames: Vec<u32>,
    matches: Vec<Match>,
    scratch: Scratch,
    matched: Vec<u32>,
}

/// What is searched of a packet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Plan {
    /// All of it, and it has no flow.
    #[default]
    NoFlow,
    /// All of it.
    Alone,
    /// New bytes of a stream, by their places among those of the batch: none of a segment without a payload.
    Fresh(StreamId, Range<usize>),
    /// Nothing: its bytes came before.
    Repeated,
    /// Nothing: the flow is dropped.
    Over,
}

impl StringsPerFlow {
    pub(super) fn new(list: Arc<List>, at: StateAt) -> Self {
        let settings = &list.settings;
        let longest = list.signatures.patterns.iter().map(|pattern| pattern.bytes.len()).max();
        Self {
            at,
            drops: settings.flows.as_ref().is_some_and(|flows| flows.drops),
            streams: (settings.within == Within::Stream).then(|| Streams::new(longest.unwrap_or(0))),
            set: list.current(),
            judge: Judge::new(list),
            plans: Vec::new(),
            found: Vec::new(),
            room: Vec::new(),
            fresh: Vec::new(),
            texts: Vec::new(),
            parts: Vec::new(),
            frames: Vec::new(),
            matches: Vec::new(),
            scratch: Scratch::default(),
            matched: Vec::new(),
        }
    }

    /// Says what is to be searched of each packet.
    fn plan(&mut self, batch: &mut Batch, flows: &mut Visit<'_>) {
        let Self { at, streams, plans, room, fresh, .. } = self;
        plans.clear();
        plans.resize(batch.len(), Plan::NoFlow);
        room.clear();
        fresh.clear();
        flows.each(*at, batch, |packet, word: &mut u64| {
            plans[packet.frame as usize] = if *word & MATCHED != 0 {
                Plan::Over
            } else if let Some((streams, segment)) = streams.as_mut().zip(segment(&packet)) {
                if *word == 0 {
                    *word = number_of_new() << 1;
                }
                let direction = (*word >> 1, packet.from_a);
                let first = fresh.len();
                match streams.take(direction, segment, room, fresh) {
                    None => Plan::Alone,
                    Some(_) if fresh.len() == first && !segment.payload.is_empty() => Plan::Repeated,
                    Some(stream) => Plan::Fresh(stream, first..fresh.len()),
                }
            } else {
                Plan::Alone
            };
            Verdict::Pass
        });
    }

    /// Finds the matches of each packet.
    fn search(&mut self, batch: &Batch) {
        let Self { judge, set, plans, found, room, fresh, parts, frames, matches, scratch, .. } = self;
        let list = &judge.list;
        let mut texts = emptied(std::mem::take(&mut self.texts));
        parts.clear();
        frames.clear();
        matches.clear();
        for (index, verdict) in batch.verdicts().iter().enumerate() {
            if !verdict.is_pass() {
                continue;
            }
            match &plans[index] {
                Plan::Over | Plan::Repeated => {}
                Plan::NoFlow | Plan::Alone => {
                    if let Some(text) = text_of(batch, index, list.settings.within) {
                        frames.push(index as u32);
                        parts.push(Part { begin: 0, new: (0, text.len() as u32) });
                        texts.push(text);
                    }
                }
                Plan::Fresh(_, of_packet) => {
                    for Fresh { text, part } in &fresh[of_packet.clone()] {
                        frames.push(index as u32);
                        parts.push(*part);
                        texts.push(&room[text.clone()]);
                    }
                }
            }
        }
        set.for_texts(list, &texts).find_in_parts(&texts, parts, list.wanted(), scratch, matches);
        self.texts = emptied(texts);
        found.clear();
        found.resize(plans.len(), 0..0);
        let mut first = 0;
        for of_frame in matches.chunk_by(|a, b| frames[a.text as usize] == frames[b.text as usize]) {
            let end = first + of_frame.len() as u32;
            found[frames[of_frame[0].text as usize] as usize] = first..end;
            first = end;
        }
    }
}

/// A segment of TCP whose sequence number was captured, and which is not in fragments.
fn segment<'a>(packet: &'a Seen<'_, '_>) -> Option<Segment<'a>> {
    if packet.transport().protocol != protocol::TCP {
        return None;
    }
    let (sequence, is_first) = sequence_of(packet)?;
    Some(Segment { sequence, is_first, payload: packet.payload()? })
}

/// Judges packets by what was found in them.
struct Judging<'a> {
    judge: &'a mut Judge,
    plans: &'a [Plan],
    found: &'a [Range<u32>],
    matches: &'a [Match],
    fresh: &'a [Fresh],
    streams: Option<&'a mut Streams>,
    /// Frames that match.
    matched: &'a mut Vec<u32>,
    /// What a packet has, with what its stream had before.
    now: Vec<u32>,
    all: Vec<u32>,
}

impl Judging<'_> {
    /// Whether a packet matches, which is counted as searched.
    fn packet(&mut self, frame: u32, all_bytes: Option<usize>, is_cut_off: bool) -> bool {
        let Self { judge, plans, found, matches, fresh, streams, matched, now, all } = self;
        let plan = &plans[frame as usize];
        let found = found[frame as usize].start as usize..found[frame as usize].end as usize;
        now.clear();
        now.extend(matches[found].iter().map(|found| found.pattern));
        let is_matched = match plan {
            // Not even searched: the caller drops it.
            Plan::Over => return false,
            Plan::Repeated => {
                let counts = judge.report.flows.get_or_insert_default();
                counts.repeated += 1;
                return false;
            }
            Plan::NoFlow | Plan::Alone => {
                judge.report.searches(all_bytes, is_cut_off);
                judge.matches(frame, now, None)
            }
            Plan::Fresh(stream, of_packet) => {
                let new = |fresh: &Fresh| (fresh.part.new.1 - fresh.part.new.0) as usize;
                judge.report.searches(Some(fresh[of_packet.clone()].iter().map(new).sum()), is_cut_off);
                all.clear();
                if let Some(streams) = streams.as_mut().filter(|_| !now.is_empty() && !judge.list.is_single) {
                    let is_of_several = &judge.list.is_of_several;
                    let of_several = now.iter().copied().filter(|&pattern| is_of_several[pattern as usize]);
                    streams.remember(*stream, of_several, all);
                }
                if all.is_empty() {
                    judge.matches(frame, now, None)
                } else {
                    all.extend_from_slice(now);
                    now.sort_unstable();
                    judge.matches(frame, all, Some(now))
                }
            }
        };
        if is_matched {
            matched.push(frame);
        }
        is_matched
    }
}

impl FlowFunction for StringsPerFlow {
    fn move_to(&mut self, at: StateAt) {
        self.at = at;
    }

    fn wants_whole(&self) -> bool {
        true
    }

    fn process(&mut self, batch: &mut Batch, flows: &mut Visit<'_>, _records: &mut Records<'_>) {
        self.plan(batch, flows);
        self.search(batch);
        let Self { at, judge, drops, streams, plans, found, fresh, matches, matched, .. } = self;
        judge.logged.clear();
        matched.clear();
        let list = Arc::clone(&judge.list);
        let verdict = list.settings.action.verdict(DropReason::Strings);
        let payload_alone = list.settings.within != Within::Packet;
        let streams = streams.as_mut();
        let (now, all) = Default::default();
        let mut judging = Judging { judge, plans, found, matches, fresh, streams, matched, now, all };
        flows.each(*at, batch, |packet, word: &mut u64| {
            if *word & MATCHED != 0 {
                judging.judge.report.flows.get_or_insert_default().dropped += 1;
                return Verdict::Drop(DropReason::Strings);
            }
            let text = if payload_alone { packet.payload() } else { Some(packet.frame().1) };
            if !judging.packet(packet.frame, text.map(<[u8]>::len), packet.is_cut_off()) {
                return Verdict::Pass;
            }
            if *drops {
                if let Some(streams) = &mut judging.streams {
                    streams.forget(*word >> 1);
                }
                *word = MATCHED;
            }
            verdict
        });
        for (index, plan) in plans.iter().enumerate() {
            if batch.verdicts()[index].is_pass() && *plan == Plan::NoFlow {
                let text = text_of(batch, index, list.settings.within).map(<[u8]>::len);
                if judging.packet(index as u32, text, is_cut_off(batch, index)) {
                    batch.judge().0[index] = verdict;
                }
            }
        }
        if let Some(mark) = list.settings.mark {
            self.matched.iter().for_each(|&frame| batch.set_mark(frame as usize, mark));
        }
        // Those of IPv4 came first.
        self.judge.logged.sort_by_key(|logged| logged.frame);
    }

    fn on_end(&mut self, _flow: &FlowKey, state: &[u64], _end: End, _records: &mut Records<'_>) {
        if let Some(streams) = &mut self.streams {
            streams.end(state[0] >> 1);
        }
    }

    fn logged(&mut self, into: &mut Vec<Logged>) {
        into.append(&mut self.judge.logged);
    }

    fn report(&self, _flows: &Flows) -> Box<dyn Report> {
        let mut report = self.judge.report.clone();
        let counts = self.streams.as_ref().map(Streams::counts).unwrap_or_default();
        let flows = report.flows.unwrap_or_default();
        report.flows = Some(FlowCounts {
            gaps: counts.gaps,
            no_room: counts.no_room,
            not_remembered: counts.not_remembered,
            ..flows
        });
        Box::new(report)
    }
}
