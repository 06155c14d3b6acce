//! The oracle: a map from sorted endpoint pairs to records.
//!
//! At capacity it ends the record that is idle, or else the one that had no packet for the longest time. The batch form only comes near
//! that: they are the same below capacity, and at a capacity of 1.

use std::collections::BTreeMap;
use std::net::IpAddr;

use packetloom_packet::{EndReason, FlowRecord, HalfFlow, Reject, Timestamp, Verdict};

use super::{Framings, MeterReport};
use crate::oracle::OraclePacket;
use crate::units::Span;
use crate::{Oracle, Records, Report};

type Endpoint = (IpAddr, u16);

/// A record on its way, with the numbers of its first and its last packet, and the latest time of the flow's packets since it is held.
struct Held {
    created: u64,
    used: u64,
    latest: u64,
    record: FlowRecord,
}

pub(super) struct MeterOracle {
    idle: Option<u64>,
    active: Option<u64>,
    max_flows: usize,
    framings: Framings,
    /// By protocol and endpoints, the lower one first.
    flows: BTreeMap<(u8, Endpoint, Endpoint), Held>,
    packets: u64,
    report: MeterReport,
}

impl MeterOracle {
    pub(super) fn new(idle: Span, active: Span, max_flows: usize, framings: Framings) -> Self {
        Self {
            idle: idle.limit(),
            active: active.limit(),
            max_flows,
            framings,
            flows: BTreeMap::new(),
            packets: 0,
            report: MeterReport::default(),
        }
    }

    fn export(&mut self, mut record: FlowRecord, end_reason: EndReason, records: &mut Records<'_>) {
        record.end_reason = end_reason;
        self.report.count_record(&record);
        records(&record);
    }
}

impl MeterOracle {
    fn is_idle(&self, since_last: u64) -> bool {
        self.idle.is_some_and(|idle| since_last >= idle)
    }

    /// Ends a record of an IP version where there are as many as there may be.
    fn make_room(&mut self, is_v4: bool, now: u64, records: &mut Records<'_>) {
        let of_version = self.flows.iter().filter(|((_, (address, _), _), _)| address.is_ipv4() == is_v4);
        if of_version.clone().count() < self.max_flows {
            return;
        }
        let is_idle = |held: &Held| self.is_idle(now.saturating_sub(held.latest));
        let last_used = of_version.min_by_key(|(_, held)| (!is_idle(held), held.used));
        let goes = last_used.map(|(key, held)| (*key, is_idle(held)));
        if let Some((key, is_idle)) = goes
            && let Some(Held { record, .. }) = self.flows.remove(&key)
        {
            let end_reason = if is_idle { EndReason::IdleTimeout } else { EndReason::LackOfResources };
            self.export(record, end_reason, records);
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

impl Oracle for MeterOracle {
    fn step(&mut self, packet: &OraclePacket, records: &mut Records<'_>) -> Verdict {
        self.report.frames += 1;
        let ip = match &packet.ip {
            Ok(_) if packet.other_framing && self.framings == Framings::Basic => {
                self.report.not_counted.add(Reject::OtherFraming);
                return Verdict::Pass;
            }
            Ok(ip) if [1, 6, 17, 58, 132].contains(&ip.protocol) => ip,
            Ok(_) => {
                self.report.not_counted.add(Reject::Protocol);
                return Verdict::Pass;
            }
            Err(reject) => {
                self.report.not_counted.add(*reject);
                return Verdict::Pass;
            }
        };
        self.report.counted_packets += 1;
        self.report.counted_ip_bytes += u64::from(ip.bytes);
        let (source_port, destination_port) = ip.ports.unwrap_or((0, 0));
        let (source, destination) = ((ip.source, source_port), (ip.destination, destination_port));
        let mut ends = [source, destination];
        ends.sort_unstable();
        let key = (ip.protocol, ends[0], ends[1]);
        let mut latest = packet.nanos;
        if let Some(Held { record, latest: before, .. }) = self.flows.get(&key) {
            let since_last = packet.nanos.saturating_sub(record.end().as_nanos());
            let since_start = packet.nanos.saturating_sub(record.start().as_nanos());
            let end_reason = if self.is_idle(since_last) {
                Some(EndReason::IdleTimeout)
            } else if self.active.is_some_and(|active| since_start >= active) {
                Some(EndReason::ActiveTimeout)
            } else {
                None
            };
            // A record that goes on in the next one leaves the flow where it is.
            if !self.is_idle(packet.nanos.saturating_sub(*before)) {
                latest = latest.max(*before);
            }
            if let Some(end_reason) = end_reason
                && let Some(Held { record, .. }) = self.flows.remove(&key)
            {
                self.export(record, end_reason, records);
            }
        }
        self.packets += 1;
        if !self.flows.contains_key(&key) {
            self.make_room(source.0.is_ipv4(), packet.nanos, records);
            let record = FlowRecord {
                source: source.0,
                destination: destination.0,
                source_port: source.1,
                destination_port: destination.1,
                protocol: ip.protocol,
                forward: HalfFlow::default(),
                reverse: HalfFlow::default(),
                end_reason: EndReason::ForcedEnd,
            };
            self.flows.insert(key, Held { created: self.packets, used: 0, latest, record });
        }
        if let Some(held) = self.flows.get_mut(&key) {
            (held.used, held.latest) = (self.packets, held.latest.max(packet.nanos));
            let record = &mut held.record;
            let forward = (record.source, record.source_port) == source
                && (record.destination, record.destination_port) == destination;
            let half = if forward { &mut record.forward } else { &mut record.reverse };
            add(half, packet.nanos, ip.bytes, ip.tcp_flags.unwrap_or(0));
        }
        Verdict::Pass
    }

    fn finish(&mut self, records: &mut Records<'_>) {
        let mut left: Vec<_> = std::mem::take(&mut self.flows).into_values().collect();
        left.sort_unstable_by_key(|held| held.created);
        for Held { record, .. } in left {
            self.export(record, EndReason::ForcedEnd, records);
        }
    }

    fn report(&self) -> Box<dyn Report> {
        Box::new(self.report.clone())
    }
}
