//! The oracle: a map from sorted endpoint pairs to records, and a list of the flows in order of creation.

use std::collections::BTreeMap;
use std::net::IpAddr;

use packetloom_packet::{EndReason, FlowRecord, HalfFlow, Reject, Timestamp, Verdict};

use super::{Framings, MeterReport};
use crate::oracle::OraclePacket;
use crate::units::Span;
use crate::{Oracle, Records, Report};

type Endpoint = (IpAddr, u16);

pub(super) struct MeterOracle {
    idle: Option<u64>,
    active: Option<u64>,
    max_flows: usize,
    framings: Framings,
    /// By protocol and endpoints, the lower one first; with the number of the flow's creation.
    flows: BTreeMap<(u8, Endpoint, Endpoint), (u64, FlowRecord)>,
    created: u64,
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
            created: 0,
            report: MeterReport::default(),
        }
    }

    fn export(&mut self, mut record: FlowRecord, end_reason: EndReason, records: &mut Records<'_>) {
        record.end_reason = end_reason;
        self.report.count_record(&record);
        records(&record);
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
        if let Some((_, record)) = self.flows.get(&key) {
            let since_last = packet.nanos.saturating_sub(record.end().as_nanos());
            let since_start = packet.nanos.saturating_sub(record.start().as_nanos());
            let end_reason = if self.idle.is_some_and(|idle| since_last >= idle) {
                Some(EndReason::IdleTimeout)
            } else if self.active.is_some_and(|active| since_start >= active) {
                Some(EndReason::ActiveTimeout)
            } else {
                None
            };
            if let Some(end_reason) = end_reason
                && let Some((_, record)) = self.flows.remove(&key)
            {
                self.export(record, end_reason, records);
            }
        }
        if !self.flows.contains_key(&key) {
            if self.flows.len() == self.max_flows {
                let oldest = self.flows.iter().min_by_key(|(_, (created, _))| *created).map(|(key, _)| *key);
                if let Some((_, record)) = oldest.and_then(|key| self.flows.remove(&key)) {
                    self.export(record, EndReason::LackOfResources, records);
                }
            }
            self.created += 1;
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
            self.flows.insert(key, (self.created, record));
        }
        if let Some((_, record)) = self.flows.get_mut(&key) {
            let forward = (record.source, record.source_port) == source
                && (record.destination, record.destination_port) == destination;
            let half = if forward { &mut record.forward } else { &mut record.reverse };
            add(half, packet.nanos, ip.bytes, ip.tcp_flags.unwrap_or(0));
        }
        Verdict::Pass
    }

    fn finish(&mut self, records: &mut Records<'_>) {
        let mut left: Vec<_> = std::mem::take(&mut self.flows).into_values().collect();
        left.sort_unstable_by_key(|(created, _)| *created);
        for (_, record) in left {
            self.export(record, EndReason::ForcedEnd, records);
        }
    }

    fn report(&self) -> Box<dyn Report> {
        Box::new(self.report.clone())
    }
}
