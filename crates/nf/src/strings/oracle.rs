//! The slow forms: every pattern at every byte.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use packetloom_names::{Field, FieldWatch, Values};
use packetloom_packet::{DropReason, Role, Verdict};
use packetloom_pattern::files::Places;
use packetloom_pattern::oracle::matches;

use super::streams::MAX_RUNS;
use super::{List, Named, StringsReport, Within, place_of};
use crate::flows::{End, FlowName, FlowOracle, OracleFlow, OracleFlows};
use crate::oracle::OraclePacket;
use crate::watches::{OracleWatches, Progress, payload_of_oracle};
use crate::{Oracle, Records, Report};

/// What is in the payload of a packet.
struct InPayload {
    /// Whether there is one, in which patterns are looked for.
    is_there: bool,
    /// How many of its bytes are searched.
    searched: Option<usize>,
    /// Whether all of them came before.
    is_repeated: bool,
    new: HashSet<u32>,
    /// What was in its stream before.
    before: HashSet<u32>,
}

/// What is known of the message that a direction is in.
#[derive(Default)]
struct Known {
    fields: HashSet<Field>,
    found: HashSet<u32>,
}

/// Each packet by itself.
pub(super) struct StringsOracle {
    list: Arc<List>,
    report: StringsReport,
    /// What the last packet is logged for.
    logged: Vec<u32>,
}

impl StringsOracle {
    pub(super) fn new(list: Arc<List>) -> Self {
        Self { report: StringsReport::new(Arc::clone(&list)), list, logged: Vec::new() }
    }

    /// What a packet has by itself: the message that it begins with, or requests behind that.
    fn messages_alone(&self, packet: &OraclePacket, are_behind: bool) -> Vec<Progress<Values>> {
        let mut all = Vec::new();
        let mut payload = payload_of_oracle(packet).filter(|_| !self.list.fields.is_empty());
        while let Some(bytes) = payload {
            all.push(Progress::alone(bytes.alone::<FieldWatch>(self.list.fields)));
            payload = bytes.behind_request();
        }
        all.split_off(usize::from(are_behind).min(all.len()))
    }

    /// What is searched of a packet by itself.
    fn payload_alone(&self, packet: &OraclePacket) -> InPayload {
        let text = match self.list.settings.within {
            Within::Payload | Within::Stream => packet.payload(),
            Within::Packet => Some(&*packet.frame),
        };
        let text = text.filter(|_| self.list.places.has(Places::PAYLOAD));
        InPayload {
            is_there: text.is_some(),
            searched: text.map(<[u8]>::len),
            is_repeated: false,
            new: text.map_or(HashSet::new(), |text| self.patterns_in(text)),
            before: HashSet::new(),
        }
    }

    fn patterns_in(&self, text: &[u8]) -> HashSet<u32> {
        matches(&self.list.signatures.patterns, text, 0).into_iter().map(|found| found.pattern).collect()
    }

    /// Judges a packet by its payload, by its messages, and by what is known of the message that its direction is in.
    fn judge(
        &mut self,
        packet: &mut OraclePacket,
        payload: &InPayload,
        messages: &[Progress<Values>],
        known: &mut Known,
    ) -> Verdict {
        let all_values = || messages.iter().filter_map(|message| message.found.as_ref()).flatten();
        if payload.is_repeated {
            self.report.flows.get_or_insert_default().repeated += 1;
        }
        let bytes: usize = all_values().map(|value| value.bytes.len()).sum();
        if payload.searched.is_some() || all_values().count() > 0 {
            self.report.searches(Some(payload.searched.unwrap_or(0) + bytes), is_cut_off(packet));
        } else if self.list.places.has(Places::PAYLOAD) && !payload.is_repeated {
            self.report.searches(None, is_cut_off(packet));
        }
        let mut matched = BTreeSet::new();
        let nothing = [Progress::alone(None)];
        for message in if messages.is_empty() { &nothing } else { messages } {
            matched.extend(self.signatures_of(payload, message, known));
        }
        self.tell(packet, &matched)
    }

    /// The signatures of a payload with a message, which is known from then on.
    fn signatures_of(
        &self,
        payload: &InPayload,
        message: &Progress<Values>,
        known: &mut Known,
    ) -> BTreeSet<u32> {
        let values = message.found.as_deref().unwrap_or_default();
        if message.begins {
            *known = Known::default();
        }
        let mut matched = BTreeSet::new();
        let questions: BTreeSet<_> = values.iter().map(|value| value.question).chain([0]).collect();
        for question in questions {
            let of_question = values.iter().filter(|value| value.question == question);
            let now: Vec<_> =
                of_question.map(|value| (value.field, self.patterns_in(&value.bytes))).collect();
            // A question is by itself.
            let nothing = Known::default();
            let is_question = now.iter().any(|(field, _)| *field == Field::DnsQuery);
            let before = if is_question { &nothing } else { &*known };
            for (number, signature) in (0..).zip(&self.list.signatures.signatures) {
                let places = |pattern: u32| self.list.signatures.places_of(pattern);
                let brings = |&pattern: &u32| {
                    places(pattern).meets(Places::PAYLOAD) && payload.new.contains(&pattern)
                        || now.iter().any(|(field, found)| {
                            places(pattern).meets(place_of(*field)) && found.contains(&pattern)
                        })
                };
                let had = |pattern: &u32| payload.before.contains(pattern) || before.found.contains(pattern);
                let has = |pattern: &u32| brings(pattern) || had(pattern);
                let comes = |field: &Field| now.iter().any(|(other, _)| other == field);
                let mut fields =
                    Field::ALL.into_iter().filter(|&field| signature.places.has(place_of(field)));
                let is_there = fields.clone().all(|field| comes(&field) || before.fields.contains(&field))
                    && (payload.is_there || !signature.places.has(Places::PAYLOAD));
                let brings_any = signature.needs.iter().any(brings) || fields.any(|field| comes(&field));
                if is_there
                    && brings_any
                    && signature.needs.iter().all(has)
                    && !signature.excludes.iter().any(has)
                {
                    matched.insert(number);
                }
            }
            if !is_question {
                for (field, found) in now {
                    known.fields.insert(field);
                    let is_there =
                        |pattern: &u32| self.list.signatures.places_of(*pattern).meets(place_of(field));
                    known.found.extend(found.into_iter().filter(is_there));
                }
            }
        }
        matched
    }

    /// Judges a packet by the signatures that it has.
    fn tell(&mut self, packet: &mut OraclePacket, matched: &BTreeSet<u32>) -> Verdict {
        let settings = &self.list.settings;
        if matched.is_empty() {
            return Verdict::Pass;
        }
        self.report.counts.matched += 1;
        let named = match settings.named {
            Named::All => matched.len(),
            Named::First => 1,
            Named::Any => 0,
        };
        for &signature in matched.iter().take(named) {
            self.report.by_signature[signature as usize] += 1;
            if self.list.is_handed_out[signature as usize] {
                self.logged.push(signature);
            }
        }
        if let Some(mark) = settings.mark {
            packet.mark = mark;
        }
        settings.action.verdict(DropReason::Strings)
    }
}

fn is_cut_off(packet: &OraclePacket) -> bool {
    packet.frame.len() < packet.wire_len as usize
}

impl Oracle for StringsOracle {
    fn step(&mut self, packet: &mut OraclePacket) -> Verdict {
        self.logged.clear();
        let payload = self.payload_alone(packet);
        let messages = self.messages_alone(packet, false);
        self.judge(packet, &payload, &messages, &mut Known::default())
    }

    fn logged(&self) -> &[u32] {
        &self.logged
    }

    fn report(&self) -> Box<dyn Report> {
        Box::new(self.report.clone())
    }
}

/// Packets by their flows.
pub(super) struct FlowsOracle {
    alone: StringsOracle,
    watches: OracleWatches<FieldWatch>,
    streams: HashMap<(u64, bool), Stream>,
    messages: HashMap<(u64, bool), Known>,
    gaps: u64,
}

/// All bytes of a direction that were seen.
#[derive(Default)]
struct Stream {
    /// The sequence number at place 0, and whether that is the beginning.
    origin: Option<(u32, bool)>,
    /// The place behind the last segment.
    near: i64,
    /// Bytes without a gap, and the place of the first one.
    runs: Vec<(i64, Vec<u8>)>,
    found: HashSet<u32>,
    gaps: u64,
}

impl Stream {
    fn gaps(&self) -> u64 {
        self.gaps + self.runs.len().saturating_sub(1) as u64
    }

    fn has(&self, place: i64) -> bool {
        self.runs.iter().any(|(begin, bytes)| (*begin..*begin + bytes.len() as i64).contains(&place))
    }

    /// The place of a segment: of all those that its sequence number may stand for, one at which it is beside a run, or the nearest to
    /// the last segment.
    fn place(&self, sequence: u32, len: i64, origin: u32) -> i64 {
        const ROUND: i64 = 1 << 32;
        let least = (i64::from(sequence) - i64::from(origin)).rem_euclid(ROUND);
        // Places that sequence numbers come to again and again, around the runs and the last segment.
        let around = |place: i64| (-2..3).map(move |round| least + (place.div_euclid(ROUND) + round) * ROUND);
        for (begin, bytes) in self.runs.iter().rev() {
            let end = begin + bytes.len() as i64;
            let half = ROUND / 2;
            if let Some(place) =
                around(end).find(|&place| place >= (begin - len).max(end - half) && place <= end)
            {
                return place;
            }
        }
        let near = self.near;
        around(near).min_by_key(|&place| ((place - near).abs(), place)).unwrap_or(near)
    }

    /// Takes a segment: how many of its bytes are new, and the patterns that have one of those.
    fn take(&mut self, list: &List, sequence: u32, payload: &[u8]) -> (usize, HashSet<u32>) {
        let (origin, _) = *self.origin.get_or_insert((sequence, false));
        let first = self.place(sequence, payload.len() as i64, origin);
        self.near = first + payload.len() as i64;
        let is_new: Vec<bool> = (first..).zip(payload).map(|(place, _)| !self.has(place)).collect();
        let mut found = HashSet::new();
        let mut at = 0;
        for same in is_new.chunk_by(|a, b| a == b) {
            if same[0] {
                self.add(first + at as i64, &payload[at..at + same.len()], list, &mut found);
            }
            at += same.len();
        }
        while self.runs.len() > MAX_RUNS {
            self.runs.remove(0);
            self.gaps += 1;
        }
        (is_new.iter().filter(|is_new| **is_new).count(), found)
    }

    fn add(&mut self, place: i64, bytes: &[u8], list: &List, found: &mut HashSet<u32>) {
        let end = place + bytes.len() as i64;
        let mut run = (place, bytes.to_vec());
        if let Some(left) = self.runs.iter().position(|(begin, bytes)| begin + bytes.len() as i64 == place) {
            let (begin, bytes) = self.runs.remove(left);
            run = (begin, [bytes, run.1].concat());
        }
        if let Some(right) = self.runs.iter().position(|(begin, _)| *begin == end) {
            run.1.extend(self.runs.remove(right).1);
        }
        for (number, pattern) in (0..).zip(list.signatures.patterns.iter()) {
            if !list.signatures.places_of(number).meets(Places::PAYLOAD) {
                continue;
            }
            let len = pattern.bytes.len() as i64;
            for from in (place - len + 1).max(run.0)..end {
                let text = run.1.get((from - run.0) as usize..(from + len - run.0) as usize);
                let is_equal = text.is_some_and(|text| match pattern.ignore_case {
                    true => text.eq_ignore_ascii_case(pattern.bytes),
                    false => text == pattern.bytes,
                });
                let from = from.max(0) as u64;
                if is_equal && pattern.bounds.hold(from, from + len as u64) {
                    found.insert(number);
                }
            }
        }
        self.runs.push(run);
    }
}

impl FlowsOracle {
    pub(super) fn new(list: Arc<List>) -> Self {
        Self {
            watches: OracleWatches::new(list.fields),
            alone: StringsOracle::new(list),
            streams: HashMap::new(),
            messages: HashMap::new(),
            gaps: 0,
        }
    }

    /// What is in a segment of a stream.
    fn segment(
        &mut self,
        packet: &OraclePacket,
        way: (u64, bool),
        sequence: u32,
        is_first: bool,
    ) -> InPayload {
        let payload = packet.payload().unwrap_or_default();
        let stream = self.streams.entry(way).or_default();
        if is_first && stream.origin != Some((sequence, true)) {
            *stream = Stream { gaps: stream.gaps(), origin: Some((sequence, true)), ..Stream::default() };
        }
        let (mut searched, mut new) = (0, HashSet::new());
        if !payload.is_empty() {
            (searched, new) = stream.take(&self.alone.list, sequence, payload);
        }
        let is_repeated = searched == 0 && !payload.is_empty();
        let before = stream.found.clone();
        let is_of_several = |pattern: &u32| self.alone.list.is_of_several[*pattern as usize];
        stream.found.extend(new.iter().copied().filter(is_of_several));
        InPayload { is_there: true, searched: (!is_repeated).then_some(searched), is_repeated, new, before }
    }

    /// Forgets what was seen of a flow; how many gaps its streams have.
    fn forget_streams(&mut self, life: u64) -> u64 {
        for from_a in [false, true] {
            self.messages.remove(&(life, from_a));
        }
        let streams = [false, true].map(|from_a| self.streams.remove(&(life, from_a)));
        streams.into_iter().flatten().map(|stream| stream.gaps()).sum()
    }
}

/// The sequence number of a whole segment's first byte, and whether it is the first of its stream.
fn sequence_of(packet: &OraclePacket) -> Option<(u32, bool)> {
    let ip = packet.ip.as_ref().ok()?;
    if ip.protocol != 6 || ip.first_fragment || ip.later_fragment {
        return None;
    }
    let sequence = packet.frame.get(packet.network + ip.header + 4..)?.first_chunk()?;
    let is_first = ip.tcp_flags? / 2 % 2 == 1;
    packet.payload()?;
    Some((u32::from_be_bytes(*sequence).wrapping_add(u32::from(is_first)), is_first))
}

impl FlowOracle for FlowsOracle {
    fn save(&self, life: u64) -> Option<Vec<u64>> {
        self.watches.save(life)
    }

    fn forget(&mut self, life: u64) {
        self.watches.end(life);
        self.gaps += self.forget_streams(life);
    }

    fn load(&mut self, life: u64, words: &[u64]) {
        self.watches.load(life, words);
    }

    fn step(&mut self, packet: &mut OraclePacket, flow: &OracleFlow, _records: &mut Records<'_>) -> Verdict {
        self.alone.logged.clear();
        if self.watches.is_dropped(flow.life) {
            self.alone.report.flows.get_or_insert_default().dropped += 1;
            return Verdict::Drop(DropReason::Strings);
        }
        let list = Arc::clone(&self.alone.list);
        let way = (flow.life, flow.from_a);
        let segment = sequence_of(packet).filter(|_| list.settings.within == Within::Stream);
        let payload = match segment.filter(|_| list.places.has(Places::PAYLOAD)) {
            Some((sequence, is_first)) => self.segment(packet, way, sequence, is_first),
            None => self.alone.payload_alone(packet),
        };
        let messages = match list.settings.within {
            Within::Stream if !list.fields.is_empty() => {
                let first = self.watches.follow(packet, flow);
                [vec![first], self.alone.messages_alone(packet, true)].concat()
            }
            _ => self.alone.messages_alone(packet, false),
        };
        let mut by_itself = Known::default();
        let known = match segment {
            Some(_) => self.messages.entry(way).or_default(),
            None => &mut by_itself,
        };
        let verdict = self.alone.judge(packet, &payload, &messages, known);
        let protocol = packet.ip.as_ref().map_or(0, |ip| ip.protocol);
        let mut values = messages.iter().filter_map(|message| message.found.as_ref()).flatten();
        // Each question of DNS over UDP is by itself.
        let is_alone = protocol == 17 && values.any(|value| value.field == Field::DnsQuery);
        let drops = list.settings.flows.as_ref().is_some_and(|flows| flows.drops);
        if !verdict.is_pass() && drops && !is_alone {
            self.watches.drop_flow(flow.life);
            self.forget_streams(flow.life);
        }
        verdict
    }

    fn step_without(&mut self, packet: &mut OraclePacket, _role: Role) -> Verdict {
        self.alone.step(packet)
    }

    fn on_end(&mut self, life: u64, _flow: &FlowName, _end: End, _records: &mut Records<'_>) {
        self.forget(life);
    }

    fn logged(&self) -> &[u32] {
        &self.alone.logged
    }

    fn report(&self, _flows: &OracleFlows) -> Box<dyn Report> {
        let mut report = self.alone.report.clone();
        let of_streams: u64 = self.streams.values().map(Stream::gaps).sum();
        let counts = report.flows.get_or_insert_default();
        (counts.gave_up, counts.no_room) = self.watches.counts();
        counts.gaps = self.gaps + of_streams;
        Box::new(report)
    }
}
