//! The batch form: the record of a flow is its state, with details behind it where they are asked for.
//!
//! A packet whose flow's record has reached a timeout cuts it there and then, and begins the next one in the same entry.

use std::marker::PhantomData;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use bytemuck::{Pod, Zeroable};
use packetloom_packet::batch::Parsed;
use packetloom_packet::key::join;
use packetloom_packet::{
    Batch, EndReason, FlowKey, FlowRecord, HalfFlow, More, Reject, Timestamp, Verdict, protocol,
};

use super::details::{self, Kept};
use super::names::Names;
use super::{Framings, MeterMore, MeterReport, OTHERS, Settings, end_reason, is_last};
use crate::flows::{
    self, Cursor, End, Exported, FlowFacts, FlowFunction, Flows, Seen, StateAt, Tally, Visit, state_words,
};
use crate::units::Span;
use crate::{Records, Report};

/// Where the meter has its state: no other function is in its entries.
const AT: StateAt = StateAt { function: 0, word: 0 };

/// A meter that keeps for each flow what `S` says.
pub(super) struct MeterCpu<S> {
    limits: Limits,
    end_of_flow: bool,
    framings: Framings,
    report: MeterReport,
    /// The number of the run's first frame, of the batch's first one, and of the next batch's at least.
    first: u64,
    before: u64,
    next: u64,
    /// Where names are looked for.
    names: Option<Names>,
    keeps: PhantomData<fn() -> S>,
}

/// What is kept of a flow.
pub(super) trait FlowState: Pod {
    /// Of one that begins with a packet, which is to be added.
    fn new(packet: &Seen<'_, '_>, number: u64) -> Self;

    fn add(&mut self, packet: &Seen<'_, '_>);

    /// Its counters.
    fn flow(&self) -> &Flow;

    /// Looks for names in a packet that was added.
    fn look(&mut self, packet: &Seen<'_, '_>, names: &mut Names);

    /// What is known beside them, at its end.
    fn more(&self, names: Option<&mut Names>) -> Option<Arc<More>>;
}

/// The longest times since its latest and its first packet that a record survives, in nanoseconds.
#[derive(Clone, Copy)]
pub(super) struct Limits {
    pub(super) idle: u64,
    pub(super) active: u64,
}

impl Limits {
    pub(super) fn new(idle: Span, active: Span) -> Self {
        let longest = |span: Span| span.limit().map_or(u64::MAX, |limit| limit - 1);
        Self { idle: longest(idle), active: longest(active) }
    }

    /// Why a record ends before a packet of its flow, if it does.
    #[inline]
    fn end(self, flow: &Flow, now: u64) -> Option<EndReason> {
        // Time that runs backwards counts as 0; a direction without packets has time 0.
        if now.saturating_sub(flow.last[0].max(flow.last[1])) > self.idle {
            Some(EndReason::IdleTimeout)
        } else if now.saturating_sub(flow.first[0]) > self.active {
            Some(EndReason::ActiveTimeout)
        } else {
            None
        }
    }
}

packetloom_memory::layout! {
    /// A record on its way, [forward, reverse]: 72 bytes, so that an entry takes two cache lines.
    #[derive(Clone, Copy, Debug, Pod, Zeroable)]
    pub(super) struct Flow {
        first: [u64; 2],
        last: [u64; 2],
        packets: [u64; 2],
        bytes: [u64; 2],
        /// TCP flags forward and reverse, a byte each; [`FROM_A`]; from [`NUMBER`] on the number of the first packet, by which records are in
        /// order at the end, or [another one](OTHERS).
        rest: u64,
    }
}

pub(super) const WORDS: usize = state_words::<Flow>();
const _: () = assert!(WORDS == 9);

/// Whether endpoint `a` of the key sent the first packet.
const FROM_A: u64 = 1 << FROM_A_BIT;
pub(super) const FROM_A_BIT: u32 = 16;
pub(super) const NUMBER: u32 = 17;
/// Numbers are those of a worker in a run.
pub(super) const PASSING: &[(usize, u64)] = &[(WORDS - 1, !0 << NUMBER)];

packetloom_memory::layout! {
    /// The same with details, of each direction: an entry takes four cache lines.
    #[derive(Clone, Copy, Debug, Pod, Zeroable)]
    pub(super) struct Detailed {
        flow: Flow,
        kept: [Kept; 2],
    }
}

pub(super) const DETAILED_WORDS: usize = state_words::<Detailed>();
const _: () = assert!(DETAILED_WORDS == 21);

/// What is on its way of a name stands behind the rest of each direction's words.
pub(super) const DETAILED_PASSING: &[(usize, u64)] =
    &[PASSING[0], (WORDS + 4, details::PASSING), (WORDS + 10, details::PASSING)];

impl FlowState for Detailed {
    #[inline]
    fn new(packet: &Seen<'_, '_>, number: u64) -> Self {
        Self { flow: Flow::new(packet, number), kept: [Kept::zeroed(); 2] }
    }

    #[inline]
    fn add(&mut self, packet: &Seen<'_, '_>) {
        let way = self.flow.way(packet);
        self.kept[way].add(packet, self.flow.packets[way] == 0);
        self.flow.add(packet);
    }

    fn flow(&self) -> &Flow {
        &self.flow
    }

    #[inline]
    fn look(&mut self, packet: &Seen<'_, '_>, names: &mut Names) {
        let (way, flow) = (self.flow.way(packet), self.flow.number());
        if self.kept[way].look(flow, way, packet, names) {
            self.kept.iter_mut().for_each(Kept::stop_looking);
        }
    }

    fn more(&self, names: Option<&mut Names>) -> Option<Arc<More>> {
        let may_have = self.kept.iter().any(Kept::has_looked);
        let names = names.filter(|_| may_have).map(|names| names.end(self.flow.number()));
        let names = names.unwrap_or_default();
        Some(Arc::new(More { details: self.kept.map(|kept| kept.details()), names }))
    }
}

impl FlowState for Flow {
    #[inline]
    fn new(packet: &Seen<'_, '_>, number: u64) -> Self {
        let now = packet.now.as_nanos();
        let from_a = if packet.from_a { FROM_A } else { 0 };
        Self { first: [now, 0], last: [now, 0], rest: number << NUMBER | from_a, ..Self::zeroed() }
    }

    #[inline]
    fn add(&mut self, packet: &Seen<'_, '_>) {
        let now = packet.now.as_nanos();
        let way = self.way(packet);
        if self.packets[way] == 0 {
            self.first[way] = now;
        }
        self.last[way] = self.last[way].max(now);
        self.packets[way] += 1;
        self.bytes[way] += u64::from(packet.bytes);
        self.rest |= u64::from(packet.transport().tcp_flags) << (8 * way);
    }

    #[inline]
    fn flow(&self) -> &Flow {
        self
    }

    #[inline]
    fn look(&mut self, _packet: &Seen<'_, '_>, _names: &mut Names) {}

    fn more(&self, _names: Option<&mut Names>) -> Option<Arc<More>> {
        None
    }
}

impl Flow {
    /// The direction of a packet: 0 is forward.
    #[inline]
    fn way(&self, packet: &Seen<'_, '_>) -> usize {
        usize::from(packet.from_a != self.is_from_a())
    }

    #[inline]
    fn is_from_a(&self) -> bool {
        self.rest & FROM_A != 0
    }

    fn number(&self) -> u64 {
        self.rest >> NUMBER
    }

    /// Whether its connection has ended, and with it its record.
    fn is_over(&self) -> bool {
        self.packets[0] == 0
    }

    /// Whether its connection ends with a packet that was added.
    fn ends_with(&self, packet: &Seen<'_, '_>) -> bool {
        let transport = packet.transport();
        let of_both = [self.rest as u8, (self.rest >> 8) as u8];
        transport.protocol == protocol::TCP && is_last(transport.tcp_flags, of_both)
    }

    fn record(&self, key: &FlowKey, end_reason: EndReason, more: Option<Arc<More>>) -> FlowRecord {
        let address = |halves: [u64; 2]| match key.version {
            4 => IpAddr::V4(Ipv4Addr::from(halves[1] as u32)),
            _ => IpAddr::V6(Ipv6Addr::from(join(halves))),
        };
        let half = |way: usize| HalfFlow {
            first: Timestamp::from_nanos(self.first[way]),
            last: Timestamp::from_nanos(self.last[way]),
            packets: self.packets[way],
            bytes: self.bytes[way],
            tcp_flags: (self.rest >> (8 * way)) as u8,
        };
        let (a, b) = ((address(key.a), key.a_port), (address(key.b), key.b_port));
        let (source, destination) = if self.is_from_a() { (a, b) } else { (b, a) };
        FlowRecord {
            source: source.0,
            destination: destination.0,
            source_port: source.1,
            destination_port: destination.1,
            protocol: key.protocol,
            forward: half(0),
            reverse: half(1),
            end_reason,
            more,
        }
    }
}

/// Makes the words of a record its own that another meter kept, whatever they are; the number of its first packet. None where they are none.
pub(super) fn adopt(words: &mut [u64]) -> Option<u64> {
    if words.len() == DETAILED_WORDS {
        let [Detailed { flow, kept }] = bytemuck::try_cast_slice_mut(words).ok()? else { return None };
        if flow.packets[1] == 0 {
            kept[1] = Kept::zeroed();
        }
        kept.iter_mut().for_each(|kept| kept.adopt(MOST));
        return adopt_flow(flow);
    }
    let [flow] = bytemuck::try_cast_slice_mut(words).ok()? else { return None };
    adopt_flow(flow)
}

/// Gives a record another number.
pub(super) fn set_number(words: &mut [u64], number: u64) {
    if let Some(rest) = words.get_mut(WORDS - 1) {
        *rest = *rest & !(!0 << NUMBER) | number << NUMBER;
    }
}

/// Where a record is at the end, by its number and the time of its first packet.
pub(super) fn rank(number: u64, first: u64) -> u128 {
    let number = if number & OTHERS == 0 { number } else { 0 };
    u128::from(number) << 64 | u128::from(first)
}

/// The most of what another meter counted: so that counting on never overflows, nor the sum of both.
const MOST: u64 = u64::MAX / 4;

fn adopt_flow(flow: &mut Flow) -> Option<u64> {
    let Flow { first, last, packets, bytes, .. } = flow;
    packets.iter_mut().chain(bytes.iter_mut()).for_each(|count| *count = (*count).min(MOST));
    if packets[1] == 0 {
        (first[1], last[1], bytes[1]) = (0, 0, 0);
        flow.rest &= !0xff00;
    }
    (packets[0] > 0).then(|| flow.number())
}

/// What a record on its way says, by its words, with details or without; none where it ended with its connection.
pub(super) fn facts(words: &[u64]) -> Option<FlowFacts> {
    let flow: &Flow = bytemuck::try_from_bytes(bytemuck::cast_slice(words.get(..WORDS)?)).ok()?;
    let both = |[forward, reverse]: [u64; 2]| forward.saturating_add(reverse);
    (!flow.is_over()).then(|| FlowFacts {
        counts: Some([both(flow.packets), both(flow.bytes)]),
        first: Some(flow.first[0]),
        last: Some(flow.last[0].max(flow.last[1])),
        from_a: Some(flow.is_from_a()),
        ..FlowFacts::default()
    })
}

impl<S: FlowState> MeterCpu<S> {
    pub(super) fn new(settings: &Settings, names: Option<Names>, first: u64, at: StateAt) -> Self {
        debug_assert_eq!(at, AT);
        Self {
            limits: Limits::new(settings.idle, settings.active),
            end_of_flow: settings.end_of_flow,
            framings: settings.framings,
            report: MeterReport::default(),
            first,
            before: first,
            next: first,
            names,
            keeps: PhantomData,
        }
    }
}

impl MeterReport {
    fn export<S: FlowState>(
        &mut self,
        state: &S,
        key: &FlowKey,
        end_reason: EndReason,
        names: Option<&mut Names>,
        records: &mut Records<'_>,
    ) {
        let record = &state.flow().record(key, end_reason, state.more(names));
        self.count_record(record);
        records(record);
    }
}

impl<S> MeterCpu<S> {
    /// Takes note of the numbers of a batch's frames: those that they have in the run, where batches say so.
    fn begin_batch(&mut self, batch: &Batch) {
        self.before = self.next.max(self.first + batch.number(0));
        self.next = self.before + batch.len() as u64;
    }
}

impl<S: FlowState> FlowFunction for MeterCpu<S> {
    fn move_to(&mut self, at: StateAt) {
        debug_assert_eq!(at, AT);
    }

    /// Leaves out the packets that are not metered, and counts them.
    fn select(&mut self, batch: &Batch, packets: &mut Cursor) {
        self.begin_batch(batch);
        let has_all_framings = self.framings == Framings::All || batch.other_framings().is_empty();
        if batch.is_common() && has_all_framings {
            return;
        }
        let why = |frame: usize| {
            let protocol = match batch.parsed()[frame] {
                Parsed::V4(at) => batch.v4().keys[at as usize].protocol,
                Parsed::V6(at) => batch.v6().keys[at as usize].protocol,
                Parsed::Rejected(reject) => return Some(reject),
            };
            if !has_all_framings && batch.is_other_framing(frame) {
                Some(Reject::OtherFraming)
            } else {
                (!protocol::is_metered(protocol)).then_some(Reject::Protocol)
            }
        };
        let mut has_key = false;
        for (frame, verdict) in batch.verdicts().iter().enumerate() {
            if verdict.is_pass()
                && let Some(reject) = why(frame)
            {
                self.report.frames += 1;
                self.report.not_counted.add(reject);
                has_key |= matches!(reject, Reject::OtherFraming | Reject::Protocol);
            }
        }
        if has_key {
            packets.retain(|frame| why(frame as usize).is_none());
        }
    }

    fn process(&mut self, batch: &mut Batch, flows: &mut Visit<'_>, records: &mut Records<'_>) {
        let Self { limits, end_of_flow, report, before, names, .. } = self;
        let (limits, end_of_flow, before) = (*limits, *end_of_flow, *before);
        let (mut packets, mut bytes) = (0, 0);
        let number = |packet: &Seen<'_, '_>| before + u64::from(packet.frame);
        let begin = |packet: Seen<'_, '_>, state: &mut S| *state = S::new(&packet, number(&packet));
        flows.for_each_initialized(AT, batch, begin, |packet, state| {
            if end_of_flow && state.flow().is_over() {
                *state = S::new(&packet, number(&packet));
            } else if let Some(end_reason) = limits.end(state.flow(), packet.now.as_nanos()) {
                report.export(state, &packet.flow(), end_reason, names.as_mut(), records);
                *state = S::new(&packet, number(&packet));
            }
            state.add(&packet);
            if let Some(names) = names {
                state.look(&packet, names);
            }
            if end_of_flow && state.flow().ends_with(&packet) {
                report.export(state, &packet.flow(), EndReason::EndOfFlow, names.as_mut(), records);
                *state = S::zeroed();
            }
            packets += 1;
            bytes += u64::from(packet.bytes);
            Verdict::Pass
        });
        // A table that evicts has room for each: were there none, the packet would be a record by itself.
        flows.each_without(batch, |packet| {
            let mut state = S::new(&packet, number(&packet));
            state.add(&packet);
            if let Some(names) = names {
                state.look(&packet, names);
            }
            report.export(&state, &packet.flow(), EndReason::LackOfResources, names.as_mut(), records);
            packets += 1;
            bytes += u64::from(packet.bytes);
            Verdict::Pass
        });
        report.frames += packets;
        report.counted_packets += packets;
        report.counted_ip_bytes += bytes;
    }

    fn on_end(&mut self, key: &FlowKey, state: &[u64], end: End, records: &mut Records<'_>) {
        let state: &S = &bytemuck::cast_slice(state)[0];
        if state.flow().is_over() {
            return;
        }
        self.report.export(state, key, end_reason(end), self.names.as_mut(), records);
    }

    /// Counts the packets that have no key, which a device does not see.
    fn judged(&mut self, batch: &Batch) {
        self.begin_batch(batch);
        if batch.is_common() {
            return;
        }
        for (parsed, verdict) in batch.parsed().iter().zip(batch.verdicts()) {
            if let &Parsed::Rejected(reject) = parsed
                && verdict.is_pass()
            {
                self.report.frames += 1;
                self.report.not_counted.add(reject);
            }
        }
    }

    fn exported(&mut self, flow: &FlowKey, state: &[u64], why: Exported, records: &mut Records<'_>) {
        let end_reason = match why {
            Exported::State(end) => return self.on_end(flow, state, end, records),
            Exported::Record(end_reason) => end_reason,
        };
        let state: &S = &bytemuck::cast_slice(state)[0];
        self.report.export(state, flow, end_reason, self.names.as_mut(), records);
    }

    fn add(&mut self, counted: &[u64]) {
        let (Tally { packets, bytes }, counted) = flows::counted(counted);
        let MeterMore { others: [protocol, framing], without } = flows::counted(counted).0;
        let Self { report, .. } = self;
        let packets = packets + without.packets;
        report.frames += packets + protocol + framing;
        report.counted_packets += packets;
        report.counted_ip_bytes += bytes + without.bytes;
        report.not_counted.add_many(Reject::Protocol, protocol);
        report.not_counted.add_many(Reject::OtherFraming, framing);
    }

    fn rank(&self, state: &[u64]) -> u128 {
        let flow = bytemuck::cast_slice::<_, S>(state)[0].flow();
        rank(flow.number(), flow.first[0])
    }

    fn text(&self, state: &[u64]) -> Option<Box<str>> {
        let flow = bytemuck::cast_slice::<_, S>(state)[0].flow();
        self.names.as_ref()?.text(flow.number())
    }

    fn report(&self, _flows: &Flows) -> Box<dyn Report> {
        let names = self.names.as_ref().map(Names::counts);
        Box::new(MeterReport { names, ..self.report.clone() })
    }
}
