//! The oracle: a record for each life of a flow.
//!
//! At capacity the flow ends that is idle, or else the one that had no packet for the longest time. The batch form only comes near
//! that: they are the same below capacity, and at a capacity of 1.

use std::collections::HashMap;

use packetloom_packet::{EndReason, FlowRecord, HalfFlow, Reject, Timestamp, Verdict};

use super::{Framings, MeterReport, end_reason};
use crate::flows::{By, End, FlowName, FlowOracle, OracleFlow, OracleFlows};
use crate::oracle::OraclePacket;
use crate::units::Span;
use crate::{Records, Report};

/// A record on its way.
#[derive(Clone, Copy)]
struct Held {
    /// The number of its first packet.
    created: u64,
    /// Whether the lower endpoint sent that.
    from_a: bool,
    forward: HalfFlow,
    reverse: HalfFlow,
}

pub(super) struct MeterOracle {
    idle: Option<u64>,
    active: Option<u64>,
    framings: Framings,
    held: HashMap<u64, Held>,
    packets: u64,
    report: MeterReport,
}

impl MeterOracle {
    pub(super) fn new(idle: Span, active: Span, framings: Framings, first: u64) -> Self {
        Self {
            idle: idle.limit(),
            active: active.limit(),
            framings,
            held: HashMap::new(),
            packets: first,
            report: MeterReport::default(),
        }
    }

    fn export(&mut self, held: Held, flow: &FlowName, end_reason: EndReason, records: &mut Records<'_>) {
        let (source, destination) = if held.from_a { (flow.a, flow.b) } else { (flow.b, flow.a) };
        let record = FlowRecord {
            source: source.0,
            destination: destination.0,
            source_port: source.1,
            destination_port: destination.1,
            protocol: flow.protocol,
            forward: held.forward,
            reverse: held.reverse,
            end_reason,
        };
        self.report.count_record(&record);
        records(&record);
    }

    /// Why a record ends before a packet of its flow at this time.
    fn end(&self, held: &Held, now: u64) -> Option<EndReason> {
        let last = held.forward.last.max(held.reverse.last);
        let has_passed = |limit: Option<u64>, since: Timestamp| {
            limit.is_some_and(|limit| now.saturating_sub(since.as_nanos()) >= limit)
        };
        if has_passed(self.idle, last) {
            Some(EndReason::IdleTimeout)
        } else if has_passed(self.active, held.forward.first) {
            Some(EndReason::ActiveTimeout)
        } else {
            None
        }
    }
}

fn add(half: &mut HalfFlow, nanos: u64, bytes: u32, flags: u8) {
    let time = Timestamp::from_nanos(nanos);
    if half.packets == 0 || time > half.last {
        half.last = time;
    }
    if half.packets == 0 {
        half.first = time;
    }
    half.packets += 1;
    half.bytes += u64::from(bytes);
    half.tcp_flags |= flags;
}

impl FlowOracle for MeterOracle {
    fn save(&self, life: u64) -> Option<Vec<u64>> {
        let Held { created, from_a, forward, reverse } = self.held.get(&life)?;
        let pairs = [
            [forward.first.as_nanos(), reverse.first.as_nanos()],
            [forward.last.as_nanos(), reverse.last.as_nanos()],
            [forward.packets, reverse.packets],
            [forward.bytes, reverse.bytes],
        ];
        let flags = u64::from(forward.tcp_flags) + (u64::from(reverse.tcp_flags) << 8);
        Some([&pairs.concat()[..], &[flags + (u64::from(*from_a) << 16) + (created << 17)]].concat())
    }

    fn load(&mut self, life: u64, words: &[u64]) {
        let half = |way: usize| HalfFlow {
            first: Timestamp::from_nanos(words[way]),
            last: Timestamp::from_nanos(words[2 + way]),
            packets: words[4 + way],
            bytes: words[6 + way],
            tcp_flags: (words[8] >> (8 * way)) as u8,
        };
        let held = Held {
            created: words[8] >> 17,
            from_a: words[8] >> 16 & 1 == 1,
            forward: half(0),
            reverse: half(1),
        };
        self.held.insert(life, held);
    }

    fn select(&mut self, packet: &OraclePacket) -> bool {
        self.report.frames += 1;
        let reject = match &packet.ip {
            Ok(_) if packet.other_framing && self.framings == Framings::Basic => Reject::OtherFraming,
            Ok(ip) if [1, 6, 17, 58, 132].contains(&ip.protocol) => return true,
            Ok(_) => Reject::Protocol,
            Err(reject) => *reject,
        };
        self.report.not_counted.add(reject);
        false
    }

    fn step(&mut self, packet: &mut OraclePacket, flow: &OracleFlow, records: &mut Records<'_>) -> Verdict {
        let Ok(ip) = &packet.ip else { return Verdict::Pass };
        self.report.counted_packets += 1;
        self.report.counted_ip_bytes += u64::from(ip.bytes);
        if let Some(held) = self.held.get(&flow.life).copied()
            && let Some(end_reason) = self.end(&held, packet.nanos)
        {
            self.held.remove(&flow.life);
            let (source_port, destination_port) = ip.ports.unwrap_or((0, 0));
            let mut ends = [(ip.source, source_port), (ip.destination, destination_port)];
            ends.sort_unstable();
            let name = FlowName { by: By::FiveTuple, protocol: ip.protocol, a: ends[0], b: ends[1] };
            self.export(held, &name, end_reason, records);
        }
        self.packets += 1;
        let held = self.held.entry(flow.life).or_insert(Held {
            created: self.packets,
            from_a: flow.from_a,
            forward: HalfFlow::default(),
            reverse: HalfFlow::default(),
        });
        let half = if flow.from_a == held.from_a { &mut held.forward } else { &mut held.reverse };
        add(half, packet.nanos, ip.bytes, ip.tcp_flags.unwrap_or(0));
        Verdict::Pass
    }

    fn on_end(&mut self, life: u64, flow: &FlowName, end: End, records: &mut Records<'_>) {
        if let Some(held) = self.held.remove(&life) {
            self.export(held, flow, end_reason(end), records);
        }
    }

    fn rank(&self, life: u64) -> u128 {
        self.held
            .get(&life)
            .map_or(0, |held| (u128::from(held.created) << 64) + u128::from(held.forward.first.as_nanos()))
    }

    fn report(&self, _flows: &OracleFlows) -> Box<dyn Report> {
        Box::new(self.report.clone())
    }
}
