//! The batch form: keys and hashes of a group of packets first, their cache misses started together, then the
//! packets one by one.

use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use packetloom_packet::batch::{Keys, Parsed};
use packetloom_packet::key::join;
use packetloom_packet::{
    Batch, EndReason, FlowKey, FlowRecord, HalfFlow, MatchKey4, MatchKey6, Reject, Timestamp, protocol,
};
use packetloom_table::{EntryId, FlowTable};

use super::{Framings, MeterReport};
use crate::units::Span;
use crate::{Function, Records, Report};

/// Packets whose table lines are fetched together: enough to keep the memory busy, few enough to stay in L1.
const GROUP: usize = 32;

/// Entries looked at by a sweep for each packet of a batch, and at least.
const SWEEP_PER_PACKET: usize = 4;
const SWEEP_MIN: usize = 16_384;

pub(super) struct MeterCpu {
    idle: Option<u64>,
    active: Option<u64>,
    framings: Framings,
    table: FlowTable<Flow>,
    report: MeterReport,
    group: Vec<Packet>,
    sweep_at: usize,
    swept_until: Timestamp,
}

/// A flow's counters, [forward, reverse]: 72 bytes, so that an entry with its key fills two cache lines.
#[derive(Clone, Debug)]
struct Flow {
    first: [Timestamp; 2],
    last: [Timestamp; 2],
    packets: [u64; 2],
    bytes: [u64; 2],
    tcp_flags: [u8; 2],
    /// Whether endpoint `a` of the key sent the first packet.
    from_a: bool,
}

const _: () = assert!(size_of::<Option<Flow>>() == 72);

/// A packet between its two passes.
struct Packet {
    key: FlowKey,
    hash: u64,
    time: Timestamp,
    bytes: u32,
    tcp_flags: u8,
    from_a: bool,
}

impl Flow {
    fn new(from_a: bool) -> Self {
        Self {
            first: Default::default(),
            last: Default::default(),
            packets: [0; 2],
            bytes: [0; 2],
            tcp_flags: [0; 2],
            from_a,
        }
    }

    #[inline]
    fn add(&mut self, packet: &Packet) {
        let way = usize::from(packet.from_a != self.from_a);
        if self.packets[way] == 0 {
            self.first[way] = packet.time;
        }
        self.last[way] = self.last[way].max(packet.time);
        self.packets[way] += 1;
        self.bytes[way] += u64::from(packet.bytes);
        self.tcp_flags[way] |= packet.tcp_flags;
    }

    /// Latest time of any packet; a direction without packets has time 0.
    #[inline]
    fn latest(&self) -> Timestamp {
        self.last[0].max(self.last[1])
    }

    fn record(&self, key: &FlowKey, end_reason: EndReason) -> FlowRecord {
        let address = |halves: [u64; 2]| match key.version {
            4 => IpAddr::V4(Ipv4Addr::from(halves[1] as u32)),
            _ => IpAddr::V6(Ipv6Addr::from(join(halves))),
        };
        let half = |way: usize| HalfFlow {
            first: self.first[way],
            last: self.last[way],
            packets: self.packets[way],
            bytes: self.bytes[way],
            tcp_flags: self.tcp_flags[way],
        };
        let (a, b) = ((address(key.a), key.a_port), (address(key.b), key.b_port));
        let (source, destination) = if self.from_a { (a, b) } else { (b, a) };
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

/// What the meter needs of either family's keys.
trait MeterKey {
    fn flow(&self) -> (FlowKey, bool);
    fn protocol_and_flags(&self) -> (u8, u8);
}

impl MeterKey for MatchKey4 {
    fn flow(&self) -> (FlowKey, bool) {
        FlowKey::from_v4(self)
    }

    fn protocol_and_flags(&self) -> (u8, u8) {
        (self.protocol, self.tcp_flags)
    }
}

impl MeterKey for MatchKey6 {
    fn flow(&self) -> (FlowKey, bool) {
        FlowKey::from_v6(self)
    }

    fn protocol_and_flags(&self) -> (u8, u8) {
        (self.protocol, self.tcp_flags)
    }
}

impl MeterCpu {
    pub(super) fn new(idle: Span, active: Span, max_flows: usize, framings: Framings) -> Self {
        // A seed that senders cannot know; no result depends on it.
        let seed = RandomState::new().hash_one(0u64);
        Self {
            idle: idle.limit(),
            active: active.limit(),
            framings,
            table: FlowTable::new(max_flows, seed),
            report: MeterReport::default(),
            group: Vec::with_capacity(GROUP),
            sweep_at: 0,
            swept_until: Timestamp::default(),
        }
    }

    /// `ALL` where no packet is left out for its framing, as in most batches.
    fn process_keys<const ALL: bool, K: MeterKey>(
        &mut self,
        batch: &Batch,
        keys: &Keys<K>,
        records: &mut Records<'_>,
    ) {
        let mut packets = keys.keys.iter().zip(&keys.frames).zip(&keys.bytes);
        loop {
            self.group.clear();
            for ((key, &frame), &bytes) in packets.by_ref() {
                if !batch.verdicts()[frame as usize].is_pass() {
                    continue;
                }
                self.report.frames += 1;
                if !ALL && batch.is_other_framing(frame as usize) {
                    self.report.not_counted.add(Reject::OtherFraming);
                    continue;
                }
                let (protocol, tcp_flags) = key.protocol_and_flags();
                if !protocol::is_metered(protocol) {
                    self.report.not_counted.add(Reject::Protocol);
                    continue;
                }
                self.report.counted_packets += 1;
                self.report.counted_ip_bytes += u64::from(bytes);
                let (key, from_a) = key.flow();
                let hash = self.table.hash(&key);
                self.table.prefetch_bucket(hash);
                let time = batch.frames()[frame as usize].time;
                self.group.push(Packet { key, hash, time, bytes, tcp_flags, from_a });
                if self.group.len() == GROUP {
                    break;
                }
            }
            if self.group.is_empty() {
                return;
            }
            let group = std::mem::take(&mut self.group);
            for packet in &group {
                self.table.prefetch_entry(packet.hash);
            }
            for packet in &group {
                self.meter(packet, records);
            }
            self.group = group;
        }
    }

    #[inline]
    fn meter(&mut self, packet: &Packet, records: &mut Records<'_>) {
        if let Some(id) = self.table.find(&packet.key, packet.hash)
            && let Some((_, flow)) = self.table.get_mut(id)
        {
            let reached = |limit: Option<u64>, since| {
                limit.is_some_and(|limit| packet.time.nanos_since(since) >= limit)
            };
            let end_reason = if reached(self.idle, flow.latest()) {
                EndReason::IdleTimeout
            } else if reached(self.active, flow.first[0]) {
                EndReason::ActiveTimeout
            } else {
                flow.add(packet);
                return;
            };
            self.export(id, end_reason, records);
        }
        if self.table.is_full()
            && let Some(id) = self.table.oldest()
        {
            self.export(id, EndReason::LackOfResources, records);
        }
        let mut flow = Flow::new(packet.from_a);
        flow.add(packet);
        self.table.insert(packet.key, packet.hash, flow);
    }

    fn export(&mut self, id: EntryId, end_reason: EndReason, records: &mut Records<'_>) {
        if let Some((key, flow)) = self.table.remove(id) {
            let record = flow.record(&key, end_reason);
            self.report.count_record(&record);
            records(&record);
        }
    }
}

impl Function for MeterCpu {
    fn process(&mut self, batch: &mut Batch, records: &mut Records<'_>) {
        let batch = &*batch;
        for (parsed, verdict) in batch.parsed().iter().zip(batch.verdicts()) {
            if let Parsed::Rejected(reject) = parsed
                && verdict.is_pass()
            {
                self.report.frames += 1;
                self.report.not_counted.add(*reject);
            }
        }
        if self.framings == Framings::All || batch.other_framings().is_empty() {
            self.process_keys::<true, _>(batch, batch.v4(), records);
            self.process_keys::<true, _>(batch, batch.v6(), records);
        } else {
            self.process_keys::<false, _>(batch, batch.v4(), records);
            self.process_keys::<false, _>(batch, batch.v6(), records);
        }
    }

    fn expire(&mut self, now: Timestamp, packets: usize, records: &mut Records<'_>) {
        let Some(idle) = self.idle else { return };
        // Time that jumped ahead and came back must not keep the sweeps waiting until it is there again.
        self.swept_until = self.swept_until.min(now);
        // As much of the table as the second since its last sweep has passed, so that one round takes a second.
        let elapsed = now.nanos_since(self.swept_until).min(1_000_000_000);
        let slots = self.table.slots();
        let share = (slots as u128 * u128::from(elapsed) / 1_000_000_000) as usize;
        if share == 0 && slots > 0 && elapsed < 1_000_000_000 {
            return;
        }
        self.swept_until = now;
        for _ in 0..share.min(SWEEP_MIN.max(SWEEP_PER_PACKET * packets)) {
            if self.sweep_at >= slots {
                self.sweep_at = 0;
            }
            if let Some((id, flow)) = self.table.at(self.sweep_at)
                && now.nanos_since(flow.latest()) >= idle
            {
                self.export(id, EndReason::IdleTimeout, records);
            }
            self.sweep_at += 1;
        }
    }

    fn drain(&mut self, most: usize, records: &mut Records<'_>) -> bool {
        for _ in 0..most {
            let Some(id) = self.table.oldest() else { break };
            self.export(id, EndReason::ForcedEnd, records);
        }
        !self.table.is_empty()
    }

    fn report(&self) -> Box<dyn Report> {
        Box::new(self.report.clone())
    }
}
