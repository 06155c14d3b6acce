//! The slow forms: every pattern at every byte.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use packetloom_names::{Field, FieldWatch, Values};
use packetloom_packet::{DropReason, Role, Verdict};
use packetloom_pattern::oracle::matches;

use super::fields::drops_flow;
use super::streams::MAX_RUNS;
use super::{List, LookIn, Named, StringsReport, Within, per_flow};
use crate::flows::{End, FlowName, FlowOracle, OracleFlow, OracleFlows};
use crate::oracle::OraclePacket;
use crate::watches::{OracleWatches, payload_of_oracle};
use crate::{Oracle, Records, Report};

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

    /// Judges a packet by what is in it; of a stream, with what was found in it before.
    fn judge(&mut self, packet: &mut OraclePacket, new: &HashSet<u32>, before: &HashSet<u32>) -> Verdict {
        let has = |pattern: &u32| new.contains(pattern) || before.contains(pattern);
        let brings = |pattern: &u32| new.contains(pattern);
        let signatures = self.list.signatures.signatures.iter();
        let matched = signatures.map(|signature| {
            let needs = &signature.needs;
            needs.iter().all(has) && needs.iter().any(brings) && !signature.excludes.iter().any(has)
        });
        let matched: BTreeSet<_> =
            (0..).zip(matched).filter(|&(_, is_matched)| is_matched).map(|(at, _)| at).collect();
        self.tell(packet, &matched)
    }

    /// Judges a packet by the values of a field in it.
    fn judge_values(&mut self, packet: &mut OraclePacket, values: &Values) -> Verdict {
        self.report.searches(Some(values.iter().map(|value| value.len()).sum()), is_cut_off(packet));
        let mut matched = BTreeSet::new();
        for value in values {
            let found = matches(&self.list.signatures.patterns, value, 0);
            let has = |pattern: &u32| found.iter().any(|found| found.pattern == *pattern);
            for (number, signature) in (0..).zip(&self.list.signatures.signatures) {
                if signature.needs.iter().all(has) && !signature.excludes.iter().any(has) {
                    matched.insert(number);
                }
            }
        }
        self.tell(packet, &matched)
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
        if let LookIn::Field(field) = self.list.settings.look_in {
            let payload = payload_of_oracle(packet);
            let values = payload.and_then(|payload| payload.alone::<FieldWatch>(field));
            return values.map_or(Verdict::Pass, |values| self.judge_values(packet, &values));
        }
        let text = match self.list.settings.within {
            Within::Payload | Within::Stream => packet.payload(),
            Within::Packet => Some(&*packet.frame),
        };
        self.report.searches(text.map(<[u8]>::len), is_cut_off(packet));
        let found = matches(&self.list.signatures.patterns, text.unwrap_or_default(), 0);
        let found = found.into_iter().map(|found| found.pattern).collect();
        self.judge(packet, &found, &HashSet::new())
    }

    fn logged(&self) -> &[u32] {
        &self.logged
    }

    fn report(&self) -> Box<dyn Report> {
        Box::new(self.report.clone())
    }
}

/// Packets by their flows.
pub(super) struct StreamsOracle {
    alone: StringsOracle,
    /// Lives of flows, and whether they matched and are dropped.
    flows: HashMap<u64, bool>,
    streams: HashMap<(u64, bool), Stream>,
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

impl StreamsOracle {
    pub(super) fn new(list: Arc<List>) -> Self {
        Self { alone: StringsOracle::new(list), flows: HashMap::new(), streams: HashMap::new(), gaps: 0 }
    }

    /// Judges a segment by its stream.
    fn segment(
        &mut self,
        packet: &mut OraclePacket,
        way: (u64, bool),
        sequence: u32,
        is_first: bool,
    ) -> Verdict {
        let payload = packet.payload().unwrap_or_default().to_vec();
        let stream = self.streams.entry(way).or_default();
        if is_first && stream.origin != Some((sequence, true)) {
            *stream = Stream { gaps: stream.gaps(), origin: Some((sequence, true)), ..Stream::default() };
        }
        let (mut new, mut found) = (0, HashSet::new());
        if !payload.is_empty() {
            (new, found) = stream.take(&self.alone.list, sequence, &payload);
            if new == 0 {
                self.alone.report.flows.get_or_insert_default().repeated += 1;
                return Verdict::Pass;
            }
        }
        self.alone.report.searches(Some(new), is_cut_off(packet));
        let before = stream.found.clone();
        let is_of_several = |pattern: &u32| self.alone.list.is_of_several[*pattern as usize];
        stream.found.extend(found.iter().copied().filter(is_of_several));
        self.alone.judge(packet, &found, &before)
    }

    fn forget_streams(&mut self, life: u64) -> u64 {
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

impl FlowOracle for StreamsOracle {
    fn save(&self, life: u64) -> Option<Vec<u64>> {
        self.flows.get(&life).map(|&is_matched| vec![u64::from(is_matched)])
    }

    fn forget(&mut self, life: u64) {
        self.flows.remove(&life);
        self.gaps += self.forget_streams(life);
    }

    fn load(&mut self, life: u64, words: &[u64]) {
        self.flows.insert(life, words[0] & per_flow::MATCHED != 0);
    }

    fn step(&mut self, packet: &mut OraclePacket, flow: &OracleFlow, _records: &mut Records<'_>) -> Verdict {
        self.alone.logged.clear();
        if *self.flows.entry(flow.life).or_default() {
            self.alone.report.flows.get_or_insert_default().dropped += 1;
            return Verdict::Drop(DropReason::Strings);
        }
        let within = self.alone.list.settings.within;
        let verdict = match sequence_of(packet).filter(|_| within == Within::Stream) {
            Some((sequence, is_first)) => self.segment(packet, (flow.life, flow.from_a), sequence, is_first),
            None => self.alone.step(packet),
        };
        let settings = self.alone.list.settings.flows.as_ref();
        if !verdict.is_pass() && settings.is_some_and(|settings| settings.drops) {
            self.flows.insert(flow.life, true);
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
        report.flows.get_or_insert_default().gaps = self.gaps + of_streams;
        Box::new(report)
    }
}

/// Header fields of packets with those of their flows before.
pub(super) struct FieldsOracle {
    field: Field,
    alone: StringsOracle,
    watches: OracleWatches<FieldWatch>,
}

impl FieldsOracle {
    pub(super) fn new(list: Arc<List>, field: Field) -> Self {
        let watches = OracleWatches::new(field);
        Self { field, alone: StringsOracle::new(list), watches }
    }
}

impl FlowOracle for FieldsOracle {
    fn save(&self, life: u64) -> Option<Vec<u64>> {
        self.watches.save(life)
    }

    fn forget(&mut self, life: u64) {
        self.watches.end(life);
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
        let verdict = match self.alone.list.settings.within {
            Within::Stream => {
                let values = self.watches.follow(packet, flow);
                values.map_or(Verdict::Pass, |values| self.alone.judge_values(packet, &values))
            }
            _ => self.alone.step(packet),
        };
        let protocol = packet.ip.as_ref().map_or(0, |ip| ip.protocol);
        if !verdict.is_pass() && drops_flow(&self.alone.list, self.field, protocol) {
            self.watches.drop_flow(flow.life);
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
        let counts = report.flows.get_or_insert_default();
        (counts.gave_up, counts.no_room) = self.watches.counts();
        Box::new(report)
    }
}
