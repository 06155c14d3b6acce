//! The batch form for packets by their flows: of streams, of messages over segments, and with what becomes of the rest of a flow.
//!
//! The payloads of all packets of a batch are searched before one is judged. Of a flow that is dropped from one packet on, those behind it in the
//! same batch were searched in vain. Fields of messages, which few packets have, are found and searched when a packet is judged.

use std::ops::Range;
use std::sync::Arc;

use packetloom_packet::{Batch, DropReason, FlowKey, Verdict, protocol};
use packetloom_pattern::files::Places;
use packetloom_pattern::{Match, Part, Scratch};

use super::cpu::{emptied, text_of};
use super::fields::{FlowFields, drops_flow};
use super::judge::{InPayload, Judge, Message, bytes_of};
use super::learning::Current;
use super::locate::{Locator, Text};
use super::streams::{DirectionKey, Fresh, Segment, StreamId, Streams};
use super::{FlowCounts, List, Within, is_cut_off};
use crate::flows::{End, FlowFunction, Flows, Seen, StateAt, Visit};
use crate::watches::{Followed, sequence_of};
use crate::{Logged, Records, Report};

pub(super) struct StringsPerFlow {
    at: StateAt,
    judge: Judge,
    set: Current,
    looks_in_payload: bool,
    streams: Option<Streams>,
    fields: Option<FlowFields>,
    /// What is searched of the payload of each packet of a batch, and where that is in `matches`.
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
    locator: Locator,
}

/// What is searched of the payload of a packet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Plan {
    /// All of it, and it has no flow.
    #[default]
    NoFlow,
    /// All of it.
    Alone,
    /// New bytes of a stream, by their places among those of the batch: none of a segment without a payload.
    Fresh(StreamId, Range<usize>),
    /// Nothing: its bytes came before in this stream.
    Repeated(StreamId),
    /// Nothing: the flow is dropped.
    Over,
}

impl StringsPerFlow {
    pub(super) fn new(list: Arc<List>, at: StateAt) -> Self {
        let looks_in_payload = list.places.has(Places::PAYLOAD);
        let follows = looks_in_payload && list.settings.within == Within::Stream;
        let longest = list.signatures.patterns.iter().map(|pattern| pattern.bytes.len()).max();
        Self {
            at,
            looks_in_payload,
            streams: follows.then(|| Streams::new(longest.unwrap_or(0))),
            fields: FlowFields::new(&list),
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
            locator: Locator::default(),
        }
    }

    /// Says what is to be searched of each packet.
    fn plan(&mut self, batch: &mut Batch, flows: &mut Visit<'_>) {
        let Self { at, streams, plans, room, fresh, .. } = self;
        plans.clear();
        plans.resize(batch.len(), Plan::NoFlow);
        room.clear();
        fresh.clear();
        flows.each(*at, batch, |packet, followed: &mut Followed| {
            plans[packet.frame as usize] = if followed.is_dropped() {
                Plan::Over
            } else if let Some((streams, segment)) = streams.as_mut().zip(segment(&packet)) {
                let direction = (followed.number(), packet.from_a);
                let first = fresh.len();
                match streams.take(direction, segment, room, fresh) {
                    None => Plan::Alone,
                    Some(stream) if fresh.len() == first && !segment.payload.is_empty() => {
                        Plan::Repeated(stream)
                    }
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
        let Self {
            judge,
            set,
            looks_in_payload,
            plans,
            found,
            room,
            fresh,
            parts,
            frames,
            matches,
            scratch,
            ..
        } = self;
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
                Plan::Over | Plan::Repeated(_) => {}
                Plan::NoFlow | Plan::Alone => {
                    let text = text_of(batch, index, list.settings.within);
                    if let Some(text) = text.filter(|_| *looks_in_payload) {
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

/// What is known of a packet that is judged.
struct Packet<'a> {
    frame: u32,
    /// Its payload, where there is one.
    payload: Option<&'a [u8]>,
    is_cut_off: bool,
    /// Its direction, of which messages are remembered.
    direction: Option<DirectionKey>,
}

/// Judges packets by what was found in them.
struct Judging<'a> {
    list: &'a Arc<List>,
    judge: &'a mut Judge,
    set: &'a Current,
    locator: &'a mut Locator,
    plans: &'a [Plan],
    found: &'a [Range<u32>],
    matches: &'a [Match],
    fresh: &'a [Fresh],
    /// In which texts of streams lie.
    room: &'a [u8],
    looks_in_payload: bool,
    streams: Option<&'a mut Streams>,
    fields: Option<&'a mut FlowFields>,
    /// Frames that match.
    matched: &'a mut Vec<u32>,
    /// What a packet has, with what its stream had before.
    now: Vec<u32>,
    before: Vec<u32>,
}

impl Judging<'_> {
    /// Whether a packet with these messages matches, which is counted as searched.
    fn packet(&mut self, packet: &Packet<'_>, messages: &[Message]) -> bool {
        let Self {
            list,
            judge,
            set,
            locator,
            plans,
            found,
            matches,
            fresh,
            room,
            looks_in_payload,
            streams,
            fields,
            matched,
            now,
            before,
        } = self;
        let Packet { frame, payload, is_cut_off, direction } = *packet;
        let plan = &plans[frame as usize];
        let found = found[frame as usize].start as usize..found[frame as usize].end as usize;
        now.clear();
        let new = matches[found].iter().map(|found| found.pattern);
        now.extend(new.filter(|&pattern| list.is_looked_for(pattern, Places::PAYLOAD)));
        now.sort_unstable();
        before.clear();
        let searched = match plan {
            Plan::Repeated(_) => {
                judge.report.flows.get_or_insert_default().repeated += 1;
                None
            }
            Plan::NoFlow | Plan::Alone | Plan::Over => payload.map(<[u8]>::len),
            Plan::Fresh(_, of_packet) => {
                let new = |fresh: &Fresh| (fresh.part.new.1 - fresh.part.new.0) as usize;
                Some(fresh[of_packet.clone()].iter().map(new).sum())
            }
        };
        let searched = searched.filter(|_| *looks_in_payload);
        let has_values = messages.iter().any(|message| !message.values.is_empty());
        if searched.is_some() || has_values {
            judge.report.searches(Some(searched.unwrap_or(0) + bytes_of(messages)), is_cut_off);
        } else if *looks_in_payload && !matches!(plan, Plan::Repeated(_)) {
            judge.report.searches(None, is_cut_off);
        }
        if now.is_empty() && messages.is_empty() {
            return false;
        }
        if let (Plan::Fresh(stream, _) | Plan::Repeated(stream), Some(streams)) = (plan, streams)
            && !list.is_single
        {
            let of_several = now.iter().copied().filter(|&pattern| list.is_of_several[pattern as usize]);
            streams.remember(*stream, of_several, before);
        }
        let first = judge.logged.len();
        let in_payload = InPayload { is_there: *looks_in_payload && payload.is_some(), new: now, before };
        let is_matched = match fields {
            None => judge.matches(frame, in_payload, &[], None),
            Some(fields) => {
                let in_fields = fields.search(list, messages);
                match (&mut fields.messages, direction) {
                    (Some(all), Some(direction)) => {
                        all.with(direction, |known| judge.matches(frame, in_payload, &in_fields, Some(known)))
                    }
                    _ => judge.matches(frame, in_payload, &in_fields, None),
                }
            }
        };
        let logged = &mut judge.logged[first..];
        if list.settings.offsets && !logged.is_empty() {
            let within = list.settings.within;
            let mut texts: Vec<_> = match plan {
                Plan::Over | Plan::Repeated(_) => Vec::new(),
                Plan::NoFlow | Plan::Alone => {
                    let payload = payload.filter(|_| *looks_in_payload);
                    payload.map(|bytes| Text::payload(bytes, within)).into_iter().collect()
                }
                Plan::Fresh(_, of_packet) => {
                    let fresh = fresh[of_packet.clone()].iter();
                    fresh.map(|fresh| Text::stream(&room[fresh.text.clone()], fresh.part)).collect()
                }
            };
            texts.extend(Text::values(messages));
            locator.locate(list, set.matcher(), &texts, logged);
        }
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
        let Self {
            at,
            judge,
            set,
            locator,
            looks_in_payload,
            streams,
            fields,
            plans,
            found,
            fresh,
            room,
            matches,
            matched,
            ..
        } = self;
        judge.logged.clear();
        matched.clear();
        let list = Arc::clone(&judge.list);
        let settings = &list.settings;
        let verdict = settings.action.verdict(DropReason::Strings);
        let payload_alone = settings.within != Within::Packet;
        let mut judging = Judging {
            list: &list,
            judge,
            set,
            locator,
            plans,
            found,
            matches,
            fresh,
            room,
            looks_in_payload: *looks_in_payload,
            streams: streams.as_mut(),
            fields: fields.as_mut(),
            matched,
            now: Vec::new(),
            before: Vec::new(),
        };
        flows.each(*at, batch, |seen, followed: &mut Followed| {
            if followed.is_dropped() {
                judging.judge.report.flows.get_or_insert_default().dropped += 1;
                return Verdict::Drop(DropReason::Strings);
            }
            let of_packet = |fields: &mut &mut FlowFields| fields.of_packet(&seen, followed);
            let messages = judging.fields.as_mut().map(of_packet).unwrap_or_default();
            let text = if payload_alone { seen.payload() } else { Some(seen.frame().1) };
            let packet = Packet {
                frame: seen.frame,
                payload: text,
                is_cut_off: seen.is_cut_off(),
                direction: segment(&seen).map(|_| (followed.number(), seen.from_a)),
            };
            if !judging.packet(&packet, &messages) {
                return Verdict::Pass;
            }
            if drops_flow(&list, seen.transport().protocol, &messages) {
                let number = followed.number();
                if let Some(streams) = &mut judging.streams {
                    streams.forget(number);
                }
                match &mut judging.fields {
                    Some(fields) => fields.drop_flow(followed),
                    None => followed.drop_flow(),
                }
            }
            verdict
        });
        for (index, plan) in plans.iter().enumerate() {
            if batch.verdicts()[index].is_pass() && *plan == Plan::NoFlow {
                let text = text_of(batch, index, settings.within);
                let packet = Packet {
                    frame: index as u32,
                    payload: text,
                    is_cut_off: is_cut_off(batch, index),
                    direction: None,
                };
                let messages = judging.fields.as_ref().map(|fields| fields.of_other(batch, index));
                if judging.packet(&packet, &messages.unwrap_or_default()) {
                    batch.judge().0[index] = verdict;
                }
            }
        }
        if let Some(mark) = settings.mark {
            self.matched.iter().for_each(|&frame| batch.set_mark(frame as usize, mark));
        }
        // Those of IPv4 came first.
        self.judge.logged.sort_by_key(|logged| logged.frame);
    }

    fn on_end(&mut self, _flow: &FlowKey, state: &[u64], _end: End, _records: &mut Records<'_>) {
        let number = Followed::number_in(state);
        if let Some(streams) = &mut self.streams {
            streams.end(number);
        }
        if let Some(fields) = &mut self.fields {
            fields.forget(number);
        }
    }

    fn logged(&mut self, into: &mut Vec<Logged>) {
        into.append(&mut self.judge.logged);
    }

    fn report(&self, _flows: &Flows) -> Box<dyn Report> {
        let mut report = self.judge.report.clone();
        let counts = self.streams.as_ref().map(Streams::counts).unwrap_or_default();
        let mut flows = report.flows.unwrap_or_default();
        flows.add(FlowCounts {
            gaps: counts.gaps,
            no_room: counts.no_room,
            not_remembered: counts.not_remembered,
            ..FlowCounts::default()
        });
        flows.add(self.fields.as_ref().map(FlowFields::counts).unwrap_or_default());
        report.flows = Some(flows);
        Box::new(report)
    }
}
