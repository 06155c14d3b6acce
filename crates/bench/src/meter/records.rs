//! Flow records of what a device found out, and of the packets that it handed back.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;

use packetloom_io::input::Stop;
use packetloom_packet::dissect::is_basic;
use packetloom_packet::key::{halves, join};
use packetloom_packet::{
    EndReason, FlowKey, FlowRecord, FrameRef, HalfFlow, Key, Timestamp, dissect, protocol,
};

use super::kernels::{Flow, Found};
use crate::Error;
use crate::captures::each_batch;

/// Reads captures, frame by frame.
pub(super) fn read(
    captures: &[PathBuf],
    stop: &Stop,
    mut take: impl FnMut(&FrameRef, &[u8]) -> Result<(), Error>,
) -> Result<(), Error> {
    each_batch(captures, stop, |batch| {
        batch.frames().iter().zip(batch.each_bytes()).try_for_each(|(frame, bytes)| take(frame, bytes))
    })
}

/// Packets of one direction of a flow.
#[derive(Clone, Copy, Debug, Default)]
struct Side {
    /// The lowest number, where there is a packet.
    number: Option<u32>,
    half: HalfFlow,
}

impl Side {
    /// Both together.
    fn plus(self, other: Self) -> Self {
        let (first, later) = match (self.number, other.number) {
            (_, None) => return self,
            (None, _) => return other,
            (Some(a), Some(b)) if a < b => (self, other),
            _ => (other, self),
        };
        Self {
            number: first.number,
            half: HalfFlow {
                first: first.half.first,
                last: first.half.last.max(later.half.last),
                packets: first.half.packets + later.half.packets,
                bytes: first.half.bytes + later.half.bytes,
                tcp_flags: first.half.tcp_flags | later.half.tcp_flags,
            },
        }
    }
}

/// A flow's packets from endpoint a and from b.
type Sides = [Side; 2];

/// What the host makes of packets that were handed back, by their numbers in order: flows, and packets that are in them.
fn meter_on_host(
    captures: &[PathBuf],
    numbers: &[u32],
    stop: &Stop,
) -> Result<(HashMap<FlowKey, Sides>, u64), Error> {
    let mut flows: HashMap<FlowKey, Sides> = HashMap::new();
    let mut counted = 0;
    if numbers.is_empty() {
        return Ok((flows, counted));
    }
    let (mut number, mut wanted) = (0u32, numbers.iter().copied().peekable());
    read(captures, stop, |frame, bytes| {
        let this = number;
        number += 1;
        if wanted.next_if_eq(&this).is_none() || !is_basic(frame.link, bytes) {
            return Ok(());
        }
        let Ok(headers) = dissect(frame.link, bytes, frame.wire_len) else { return Ok(()) };
        let ((flow, from_a), flags) = match &headers.key {
            Key::V4(key) => (FlowKey::from_v4(key), key.tcp_flags),
            Key::V6(key) => (FlowKey::from_v6(key), key.tcp_flags),
        };
        if !protocol::is_metered(flow.protocol) {
            return Ok(());
        }
        let half = HalfFlow {
            first: frame.time,
            last: frame.time,
            packets: 1,
            bytes: headers.ip_bytes.into(),
            tcp_flags: flags,
        };
        let side = &mut flows.entry(flow).or_default()[usize::from(!from_a)];
        *side = side.plus(Side { number: Some(this), half });
        counted += 1;
        Ok(())
    })?;
    Ok((flows, counted))
}

/// The key of a flow that left a device.
fn key_of(flow: &Flow) -> FlowKey {
    FlowKey {
        a: halves(flow.addresses[0]),
        b: halves(flow.addresses[1]),
        a_port: flow.ports[0],
        b_port: flow.ports[1],
        protocol: flow.protocol,
        version: flow.version,
        vlan: None,
    }
}

/// The packets of a flow that left a device; `clock` has the packets' times by their numbers.
fn sides_of(flow: &Flow, clock: &[u64]) -> Sides {
    [0, 1].map(|way| {
        let totals = &flow.totals;
        if totals.packets[way] == 0 {
            return Side::default();
        }
        let number = u32::MAX - totals.first[way];
        let half = HalfFlow {
            first: Timestamp::from_nanos(clock.get(number as usize).copied().unwrap_or(0)),
            last: Timestamp::from_nanos(totals.last[way]),
            packets: totals.packets[way].into(),
            bytes: totals.bytes[way],
            tcp_flags: flow.flags[way],
        };
        Side { number: Some(number), half }
    })
}

/// The record of a flow, and the number of its first packet.
fn record(key: &FlowKey, sides: &Sides) -> (u32, FlowRecord) {
    let numbers = sides.map(|side| side.number.unwrap_or(u32::MAX));
    let from_a = numbers[0] < numbers[1];
    let address = |halves: [u64; 2]| match key.version {
        4 => IpAddr::V4(Ipv4Addr::from(halves[1] as u32)),
        _ => IpAddr::V6(Ipv6Addr::from(join(halves))),
    };
    let (a, b) = ((address(key.a), key.a_port), (address(key.b), key.b_port));
    let (source, destination) = if from_a { (a, b) } else { (b, a) };
    let [forward, reverse] = if from_a { [sides[0], sides[1]] } else { [sides[1], sides[0]] };
    let record = FlowRecord {
        source: source.0,
        destination: destination.0,
        source_port: source.1,
        destination_port: destination.1,
        protocol: key.protocol,
        forward: forward.half,
        reverse: reverse.half,
        end_reason: EndReason::ForcedEnd,
        more: None,
    };
    (numbers[0].min(numbers[1]), record)
}

/// Records of what a device found out and the host beside it, in order of flows' first packets; and how many packets are in them.
pub(super) fn records(
    found: &Found,
    clock: &[u64],
    captures: &[PathBuf],
    stop: &Stop,
) -> Result<(Vec<FlowRecord>, u64), Error> {
    let (mut on_host, counted) = meter_on_host(captures, &found.handed, stop)?;
    let mut all = Vec::with_capacity(found.flows.len() + on_host.len());
    for flow in &found.flows {
        let key = key_of(flow);
        let mut sides = sides_of(flow, clock);
        if let Some(others) = on_host.remove(&key) {
            sides = [0, 1].map(|way| sides[way].plus(others[way]));
        }
        all.push(record(&key, &sides));
    }
    all.extend(on_host.iter().map(|(key, sides)| record(key, sides)));
    all.sort_unstable_by_key(|&(number, _)| number);
    Ok((all.into_iter().map(|(_, record)| record).collect(), found.counted + counted))
}
