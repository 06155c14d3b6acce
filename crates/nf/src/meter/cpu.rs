//! The batch form: the record of a flow is its state.
//!
//! A packet whose flow's record has reached a timeout cuts it there and then, and begins the next one in the same entry.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use bytemuck::{Pod, Zeroable};
use packetloom_packet::batch::Parsed;
use packetloom_packet::key::join;
use packetloom_packet::{
    Batch, EndReason, FlowKey, FlowRecord, HalfFlow, Reject, Timestamp, Verdict, protocol,
};

use super::{Framings, MeterReport, end_reason};
use crate::flows::{Cursor, End, FlowFunction, Flows, Seen, StateAt, Visit, state_words};
use crate::units::Span;
use crate::{Records, Report};

/// Where the meter has its state: no other function is in its entries.
const AT: StateAt = StateAt { function: 0, word: 0 };

pub(super) struct MeterCpu {
    limits: Limits,
    framings: Framings,
    report: MeterReport,
    /// The number of the batch's first frame, and of the next batch's.
    before: u64,
    frames: u64,
}

/// The longest times since its latest and its first packet that a record survives, in nanoseconds.
#[derive(Clone, Copy)]
struct Limits {
    idle: u64,
    active: u64,
}

impl Limits {
    fn new(idle: Span, active: Span) -> Self {
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

/// A record on its way, [forward, reverse]: 72 bytes, so that an entry takes two cache lines.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
struct Flow {
    first: [u64; 2],
    last: [u64; 2],
    packets: [u64; 2],
    bytes: [u64; 2],
    /// TCP flags forward and reverse, a byte each; [`FROM_A`]; from [`NUMBER`] on the number of the first packet, by which records are in
    /// order at the end: 0 in those that come out of a file, which are the first ones there, by their time.
    rest: u64,
}

pub(super) const WORDS: usize = state_words::<Flow>();
const _: () = assert!(WORDS == 9);

/// Whether endpoint `a` of the key sent the first packet.
const FROM_A: u64 = 1 << 16;
const NUMBER: u32 = 17;
/// Numbers are those of a worker in a run.
pub(super) const PASSING: &[(usize, u64)] = &[(WORDS - 1, !0 << NUMBER)];

impl Flow {
    /// One that begins with a packet, which is to be added.
    #[inline]
    fn new(packet: &Seen<'_, '_>, number: u64) -> Self {
        let now = packet.now.as_nanos();
        let from_a = if packet.from_a { FROM_A } else { 0 };
        Self { first: [now, 0], last: [now, 0], rest: number << NUMBER | from_a, ..Self::zeroed() }
    }

    #[inline]
    fn add(&mut self, packet: &Seen<'_, '_>) {
        let now = packet.now.as_nanos();
        let way = usize::from(packet.from_a != self.is_from_a());
        if self.packets[way] == 0 {
            self.first[way] = now;
        }
        self.last[way] = self.last[way].max(now);
        self.packets[way] += 1;
        self.bytes[way] += u64::from(packet.bytes);
        self.rest |= u64::from(packet.transport().tcp_flags) << (8 * way);
    }

    #[inline]
    fn is_from_a(&self) -> bool {
        self.rest & FROM_A != 0
    }

    fn number(&self) -> u64 {
        self.rest >> NUMBER
    }

    fn record(&self, key: &FlowKey, end_reason: EndReason) -> FlowRecord {
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
        }
    }
}

/// Makes the words of a record its own that another meter kept, whatever they are; the number of its first packet. None where they are none.
pub(super) fn adopt(words: &mut [u64]) -> Option<u64> {
    let [flow] = bytemuck::try_cast_slice_mut::<_, Flow>(words).ok()? else { return None };
    // So that counting on never overflows, nor the sum of both.
    let most = u64::MAX / 4;
    let Flow { first, last, packets, bytes, .. } = flow;
    packets.iter_mut().chain(bytes.iter_mut()).for_each(|count| *count = (*count).min(most));
    if packets[1] == 0 {
        (first[1], last[1], bytes[1]) = (0, 0, 0);
        flow.rest &= !0xff00;
    }
    (packets[0] > 0).then(|| flow.number())
}

impl MeterCpu {
    pub(super) fn new(idle: Span, active: Span, framings: Framings, first: u64, at: StateAt) -> Self {
        debug_assert_eq!(at, AT);
        Self {
            limits: Limits::new(idle, active),
            framings,
            report: MeterReport::default(),
            before: first,
            frames: first,
        }
    }
}

impl MeterReport {
    fn export(&mut self, record: &FlowRecord, records: &mut Records<'_>) {
        self.count_record(record);
        records(record);
    }
}

impl FlowFunction for MeterCpu {
    fn move_to(&mut self, at: StateAt) {
        debug_assert_eq!(at, AT);
    }

    /// Leaves out the packets that are not metered, and counts them.
    fn select(&mut self, batch: &Batch, packets: &mut Cursor) {
        self.before = self.frames;
        self.frames += batch.len() as u64;
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
        let Self { limits, report, before, .. } = self;
        let (limits, before) = (*limits, *before);
        let (mut packets, mut bytes) = (0, 0);
        let number = |packet: &Seen<'_, '_>| before + u64::from(packet.frame);
        let begin = |packet: Seen<'_, '_>, flow: &mut Flow| *flow = Flow::new(&packet, number(&packet));
        flows.for_each_initialized(AT, batch, begin, |packet, flow| {
            if let Some(end_reason) = limits.end(flow, packet.now.as_nanos()) {
                report.export(&flow.record(&packet.flow(), end_reason), records);
                *flow = Flow::new(&packet, number(&packet));
            }
            flow.add(&packet);
            packets += 1;
            bytes += u64::from(packet.bytes);
            Verdict::Pass
        });
        // A table that evicts has room for each: were there none, the packet would be a record by itself.
        flows.each_without(batch, |packet| {
            let mut flow = Flow::new(&packet, number(&packet));
            flow.add(&packet);
            report.export(&flow.record(&packet.flow(), EndReason::LackOfResources), records);
            packets += 1;
            bytes += u64::from(packet.bytes);
            Verdict::Pass
        });
        report.frames += packets;
        report.counted_packets += packets;
        report.counted_ip_bytes += bytes;
    }

    fn on_end(&mut self, key: &FlowKey, state: &[u64], end: End, records: &mut Records<'_>) {
        let flow: &Flow = &bytemuck::cast_slice(state)[0];
        self.report.export(&flow.record(key, end_reason(end)), records);
    }

    fn rank(&self, state: &[u64]) -> u128 {
        let flow: &Flow = &bytemuck::cast_slice(state)[0];
        u128::from(flow.number()) << 64 | u128::from(flow.first[0])
    }

    fn report(&self, _flows: &Flows) -> Box<dyn Report> {
        Box::new(self.report.clone())
    }
}
