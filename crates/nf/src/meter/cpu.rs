//! The batch form: the record of a flow stands in the flow's entry, in the tables that all functions with state for flows use.
//!
//! A packet whose flow's record has reached a timeout cuts it there and then, and begins the next one in the same entry. Entries that the
//! table ends are asked for when all packets of the batch have come to theirs.

use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use bytemuck::{Pod, Zeroable};
use packetloom_packet::batch::Parsed;
use packetloom_packet::key::join;
use packetloom_packet::{
    Batch, EndReason, FlowKey, FlowRecord, HalfFlow, Reject, Timestamp, Verdict, protocol,
};

use super::{Framings, MeterReport};
use crate::flows::{By, Definition, Ended, Flows, HeldAt, Seen, StateAt, Sweep, WhenFull, state_words};
use crate::units::Span;
use crate::{Function, Records, Report};

/// Entries looked at by a sweep for each packet of a batch, and at least.
const SWEEP_PER_PACKET: usize = 4;
const SWEEP_MIN: usize = 16_384;
const SECOND: u64 = 1_000_000_000;

/// Records handed out at the end ahead of which an entry is brought in.
const AHEAD: usize = 16;

/// Where the meter has its state: no other function is in its entries.
const AT: StateAt = StateAt { function: 0, word: 0 };

pub(super) struct MeterCpu {
    limits: Limits,
    framings: Framings,
    flows: Flows,
    report: MeterReport,
    /// Frames of the batches before.
    frames: u64,
    sweep: Sweep,
    swept_until: Timestamp,
    /// While records are handed out at the end: what is left, the first one last, with the numbers of their first packets.
    left: Option<Vec<(u64, HeldAt)>>,
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
    /// order at the end.
    rest: u64,
}

const WORDS: usize = state_words::<Flow>();
const _: () = assert!(WORDS == 9);

/// Whether endpoint `a` of the key sent the first packet.
const FROM_A: u64 = 1 << 16;
const NUMBER: u32 = 17;

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

impl MeterCpu {
    pub(super) fn new(
        idle: Span,
        active: Span,
        max_flows: usize,
        framings: Framings,
        workers: usize,
    ) -> Self {
        // Seeds that senders cannot know; no result depends on them.
        let seeds = [0, 1].map(|number: u64| RandomState::new().hash_one(number));
        let definition =
            Definition { by: By::FiveTuple, timeout: idle, max_flows, when_full: WhenFull::EvictOldest };
        Self {
            limits: Limits::new(idle, active),
            framings,
            flows: Flows::growing(&definition, workers, WORDS, seeds),
            report: MeterReport::default(),
            frames: 0,
            sweep: Sweep::default(),
            swept_until: Timestamp::default(),
            left: None,
        }
    }

    /// Leaves out the packets that are not metered.
    fn leave_out(&mut self, batch: &Batch) {
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
            self.flows.retain(|frame| why(frame as usize).is_none());
        }
    }

    /// Hands out the records of the entries that ended.
    fn export_ended(&mut self, records: &mut Records<'_>) {
        let Self { flows, report, .. } = self;
        flows.each_ended(AT, |key, flow: &Flow, ended| {
            let end_reason = match ended {
                Ended::Expired => EndReason::IdleTimeout,
                Ended::Evicted => EndReason::LackOfResources,
            };
            report.export(&flow.record(key, end_reason), records);
        });
        flows.leave();
    }
}

impl MeterReport {
    fn export(&mut self, record: &FlowRecord, records: &mut Records<'_>) {
        self.count_record(record);
        records(record);
    }
}

impl Function for MeterCpu {
    fn process(&mut self, batch: &mut Batch, records: &mut Records<'_>) {
        self.flows.reserve(batch);
        self.flows.arrive(batch);
        self.leave_out(batch);
        let Self { limits, flows, report, frames, .. } = self;
        let (limits, before) = (*limits, *frames);
        let (mut packets, mut bytes) = (0, 0);
        let number = |packet: &Seen<'_, '_>| before + u64::from(packet.frame);
        flows.visit(true, false, batch, |batch, flows| {
            let begin = |packet: Seen<'_, '_>, flow: &mut Flow| *flow = Flow::new(&packet, number(&packet));
            flows.each_begun(AT, batch, begin, |packet, flow| {
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
        });
        report.frames += packets;
        report.counted_packets += packets;
        report.counted_ip_bytes += bytes;
        *frames += batch.len() as u64;
        self.export_ended(records);
    }

    fn expire(&mut self, now: Timestamp, packets: usize, records: &mut Records<'_>) {
        if self.limits.idle == u64::MAX {
            return;
        }
        // Time that jumped ahead and came back must not keep the sweeps waiting until it is there again.
        self.swept_until = self.swept_until.min(now);
        // As much of the table as the second since its last sweep has passed, so that one round takes a second.
        let elapsed = now.nanos_since(self.swept_until).min(SECOND);
        self.swept_until = now;
        let share = |places: usize| (places as u128 * u128::from(elapsed)).div_ceil(SECOND.into()) as usize;
        let most = SWEEP_MIN.max(SWEEP_PER_PACKET * packets);
        self.flows.sweep(&mut self.sweep, share, most, now);
        self.export_ended(records);
    }

    fn drain(&mut self, most: usize, records: &mut Records<'_>) -> bool {
        let Self { flows, report, left, .. } = self;
        let left = left.get_or_insert_with(|| {
            let held = flows.held(AT).map(|(at, flow): (_, &Flow)| (flow.number(), at));
            let mut held: Vec<_> = held.collect();
            held.sort_unstable_by(|one, other| other.cmp(one));
            held
        });
        for _ in 0..most {
            let Some((_, at)) = left.pop() else { break };
            if let Some((_, ahead)) = left.len().checked_sub(AHEAD).and_then(|ahead| left.get(ahead)) {
                flows.bring(*ahead);
            }
            if let Some((key, flow)) = flows.at::<Flow>(at, AT) {
                report.export(&flow.record(&key, EndReason::ForcedEnd), records);
            }
        }
        let more = !left.is_empty();
        if !more {
            self.left = None;
            flows.clear();
        }
        more
    }

    fn report(&self) -> Box<dyn Report> {
        Box::new(self.report.clone())
    }
}
