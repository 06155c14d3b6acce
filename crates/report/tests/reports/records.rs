//! Records for tests.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use packetloom_packet::{Details, EndReason, FlowRecord, HalfFlow, More, NameKind, Timestamp};
use proptest::prelude::*;

/// Seconds since 1970 at which records begin.
pub(crate) const START: u64 = 1_790_000_000;

pub(crate) fn millis(millis: u64) -> Timestamp {
    Timestamp::from_nanos(millis * 1_000_000)
}

/// Times in milliseconds since [`START`].
pub(crate) fn half(first: u64, last: u64, packets: u64, bytes: u64) -> HalfFlow {
    let [first, last] = [first, last].map(|at| millis(START * 1_000 + at));
    HalfFlow { first, last, packets, bytes, tcp_flags: 0 }
}

/// A flow of TCP without packets the other way.
pub(crate) fn record(source: &str, destination: &str, ports: [u16; 2], forward: HalfFlow) -> FlowRecord {
    FlowRecord {
        source: source.parse().unwrap(),
        destination: destination.parse().unwrap(),
        source_port: ports[0],
        destination_port: ports[1],
        protocol: 6,
        forward,
        reverse: HalfFlow::default(),
        end_reason: EndReason::IdleTimeout,
        more: None,
    }
}

/// The same with a name in its payload.
pub(crate) fn named(record: FlowRecord, kind: NameKind, name: &str) -> FlowRecord {
    let more = More { details: [Details::default(); 2], names: vec![(kind, name.into())] };
    FlowRecord { more: Some(Arc::new(more)), ..record }
}

fn address(number: u8, is_v4: bool) -> IpAddr {
    if is_v4 {
        Ipv4Addr::new(192, 0, 2, number).into()
    } else {
        Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, number.into()).into()
    }
}

fn halves() -> impl Strategy<Value = HalfFlow> {
    (0..100_000_u64, 0..100_000_u64, 1..50_u64, 0..100_000_u64)
        .prop_map(|(first, span, packets, bytes)| half(first, first + span, packets, bytes))
}

fn more() -> impl Strategy<Value = Option<Arc<More>>> {
    let vlan = prop::option::of(1..4_u16);
    let names = prop::collection::vec((0..3_usize, "[ab]\\PC{0,2}"), 0..3);
    prop::option::of((vlan.clone(), vlan, names).prop_map(|(forward, reverse, names)| {
        let kinds = [NameKind::DnsQuery, NameKind::TlsServer, NameKind::HttpHost];
        let details = [forward, reverse].map(|vlan| Details { vlan, ..Details::default() });
        let names = names.into_iter().map(|(kind, name)| (kinds[kind], name.into())).collect();
        Arc::new(More { details, names })
    }))
}

/// Any records of few addresses and ports, of both families, some of them from an address to itself.
pub(crate) fn any_records(most: usize) -> impl Strategy<Value = Vec<FlowRecord>> {
    let ends = (any::<bool>(), 0..20_u8, 0..20_u8, 0..6_u16, 0..6_u16, 0..3_usize);
    let one = (ends, halves(), prop::option::of(halves()), more());
    let one = one.prop_map(
        |((is_v4, source, destination, source_port, destination_port, protocol), forward, reverse, more)| {
            FlowRecord {
                source: address(source, is_v4),
                destination: address(destination, is_v4),
                source_port,
                destination_port,
                protocol: [1, 6, 17][protocol],
                forward,
                reverse: reverse.unwrap_or_default(),
                end_reason: EndReason::ActiveTimeout,
                more,
            }
        },
    );
    prop::collection::vec(one, 0..most)
}

/// Numbers that look as if by chance (splitmix64).
pub(crate) struct Numbers(pub(crate) u64);

impl Numbers {
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) % end
    }

    /// Small ones more often than others.
    pub(crate) fn skewed(&mut self, end: u64) -> u64 {
        let bound = self.below(end) + 1;
        let bound = self.below(bound) + 1;
        self.below(bound)
    }
}
