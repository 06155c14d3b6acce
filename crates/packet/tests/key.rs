//! Match keys, flow keys and their hash.

use packetloom_packet::key::{halves, join};
use packetloom_packet::{FlowKey, KeyBits, MatchKey4, MatchKey6, VlanId};
use proptest::prelude::*;

const PORTS: KeyBits = KeyBits::PORTS.with(KeyBits::WHOLE);

fn key4(source: (u32, u16), destination: (u32, u16), protocol: u8, bits: KeyBits) -> MatchKey4 {
    MatchKey4 {
        source: source.0,
        destination: destination.0,
        source_port: source.1,
        destination_port: destination.1,
        protocol,
        tcp_flags: 0x12,
        bits,
        reserved: 0,
    }
}

fn key6(source: ([u64; 2], u16), destination: ([u64; 2], u16), protocol: u8, bits: KeyBits) -> MatchKey6 {
    MatchKey6 {
        source: source.0,
        destination: destination.0,
        source_port: source.1,
        destination_port: destination.1,
        protocol,
        tcp_flags: 0x12,
        bits,
        reserved: 0,
    }
}

#[test]
fn key_bits_are_sets() {
    let all = [
        KeyBits::PORTS,
        KeyBits::ICMP,
        KeyBits::TCP_FLAGS,
        KeyBits::FIRST_FRAGMENT,
        KeyBits::LATER_FRAGMENT,
        KeyBits::WHOLE,
    ];
    for (i, one) in all.into_iter().enumerate() {
        for (j, other) in all.into_iter().enumerate() {
            assert_eq!(one.contains(other), i == j, "{one:?} {other:?}");
            assert_eq!(one.intersects(other), i == j, "{one:?} {other:?}");
            assert!(one.with(other).contains(one) && one.with(other).contains(other));
            assert_eq!(one.contains(one.with(other)), i == j);
        }
        assert!(one.contains(KeyBits::default()) && !one.intersects(KeyBits::default()));
    }
}

#[test]
fn addresses_split_and_join() {
    let address = 0x2001_0db8_0000_0001_0000_0000_0000_00ff_u128;
    assert_eq!(halves(address), [0x2001_0db8_0000_0001, 0xff]);
    assert_eq!(join(halves(address)), address);
}

#[test]
fn endpoint_a_is_the_lower_one() {
    let (low, high) = ((0x0a00_0001, 9_000), (0x0a00_0002, 80));
    let (flow, from_a) = FlowKey::from_v4(&key4(high, low, 6, PORTS));
    let expected = FlowKey {
        a: [0, 0x0a00_0001],
        b: [0, 0x0a00_0002],
        a_port: 9_000,
        b_port: 80,
        protocol: 6,
        version: 4,
        vlan: None,
    };
    assert_eq!((flow, from_a), (expected, false));
    assert_eq!(FlowKey::from_v4(&key4(low, high, 6, PORTS)), (expected, true));

    // The high half of an IPv6 address counts before the low one.
    let (low, high) = (([1, u64::MAX], 9_000), ([2, 0], 80));
    let (flow, from_a) = FlowKey::from_v6(&key6(high, low, 17, PORTS));
    let expected = FlowKey {
        a: [1, u64::MAX],
        b: [2, 0],
        a_port: 9_000,
        b_port: 80,
        protocol: 17,
        version: 6,
        vlan: None,
    };
    assert_eq!((flow, from_a), (expected, false));
}

#[test]
fn ports_decide_between_equal_addresses() {
    let (flow, from_a) = FlowKey::from_v4(&key4((7, 5_000), (7, 53), 17, PORTS));
    assert_eq!((flow.a_port, flow.b_port, from_a), (53, 5_000, false));
    let (flow, from_a) = FlowKey::from_v6(&key6(([7, 7], 5_000), ([7, 7], 53), 17, PORTS));
    assert_eq!((flow.a_port, flow.b_port, from_a), (53, 5_000, false));
}

#[test]
fn a_packet_to_its_own_sender_is_sent_by_a() {
    let (flow, from_a) = FlowKey::from_v4(&key4((7, 53), (7, 53), 17, PORTS));
    assert!(from_a);
    assert_eq!((flow.a, flow.a_port), (flow.b, flow.b_port));
    assert!(FlowKey::from_v6(&key6(([7, 8], 53), ([7, 8], 53), 17, PORTS)).1);
    // The same without ports.
    assert!(FlowKey::from_v4(&key4((7, 8), (7, 0), 1, KeyBits::ICMP.with(KeyBits::WHOLE))).1);
}

#[test]
fn only_ports_go_into_a_flow_key() {
    // Type and code of ICMP, or whatever stands in the fields of a later fragment, do not.
    let without =
        [KeyBits::ICMP.with(KeyBits::WHOLE), KeyBits::LATER_FRAGMENT, KeyBits::WHOLE, KeyBits::default()];
    for bits in without {
        let (flow, from_a) = FlowKey::from_v4(&key4((1, 8), (2, 0), 1, bits));
        assert_eq!((flow.a_port, flow.b_port, from_a), (0, 0, true), "{bits:?}");
        let (flow, from_a) = FlowKey::from_v6(&key6(([2, 0], 128), ([1, 0], 0), 58, bits));
        assert_eq!((flow.a_port, flow.b_port, from_a), (0, 0, false), "{bits:?}");
    }
    // Request and reply are one flow.
    let icmp = KeyBits::ICMP.with(KeyBits::WHOLE);
    let request = FlowKey::from_v4(&key4((1, 8), (2, 0), 1, icmp)).0;
    let reply = FlowKey::from_v4(&key4((2, 0), (1, 0), 1, icmp)).0;
    assert_eq!(request, reply);
}

#[test]
fn flags_and_fragment_bits_are_not_in_a_flow_key() {
    let plain = FlowKey::from_v4(&key4((1, 2), (3, 4), 6, KeyBits::PORTS));
    for bits in [KeyBits::WHOLE, KeyBits::FIRST_FRAGMENT, KeyBits::TCP_FLAGS] {
        assert_eq!(FlowKey::from_v4(&key4((1, 2), (3, 4), 6, KeyBits::PORTS.with(bits))), plain);
    }
}

proptest! {
    #[test]
    fn both_directions_are_one_flow_v4(
        a in (0u32..4, 0u16..4), b in (0u32..4, 0u16..4), protocol: u8, bits in (0u8..64).prop_map(KeyBits), seed: u64,
    ) {
        let (there, there_from_a) = FlowKey::from_v4(&key4(a, b, protocol, bits));
        let (back, back_from_a) = FlowKey::from_v4(&key4(b, a, protocol, bits));
        prop_assert_eq!(there, back);
        prop_assert_eq!(there.hash(seed), back.hash(seed));
        let same = (there.a, there.a_port) == (there.b, there.b_port);
        prop_assert_eq!(there_from_a == back_from_a, same);
        prop_assert!((there.a, there.a_port) <= (there.b, there.b_port));
    }

    #[test]
    fn both_directions_are_one_flow_v6(
        a in ([0u64..2, 0u64..2], 0u16..4), b in ([0u64..2, 0u64..2], 0u16..4), protocol: u8,
        bits in (0u8..64).prop_map(KeyBits), seed: u64,
    ) {
        let (there, there_from_a) = FlowKey::from_v6(&key6(a, b, protocol, bits));
        let (back, back_from_a) = FlowKey::from_v6(&key6(b, a, protocol, bits));
        prop_assert_eq!(there, back);
        prop_assert_eq!(there.hash(seed), back.hash(seed));
        let same = (there.a, there.a_port) == (there.b, there.b_port);
        prop_assert_eq!(there_from_a == back_from_a, same);
        prop_assert!((there.a, there.a_port) <= (there.b, there.b_port));
    }
}

/// Seeds without a pattern (splitmix64), as the random ones of a flow table.
fn seeds() -> impl Iterator<Item = u64> {
    (1..=24u64).map(|i| {
        let mut seed = i.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        seed = (seed ^ seed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        seed = (seed ^ seed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        seed ^ seed >> 31
    })
}

/// Flows of one family, and buckets they are spread over.
const FLOWS: u64 = 1 << 16;
const BUCKETS: u64 = 1 << 10;

/// Families of flows that differ in little, as real ones do.
fn families() -> Vec<(&'static str, Vec<FlowKey>)> {
    let v4 = |source, destination, protocol| FlowKey::from_v4(&key4(source, destination, protocol, PORTS)).0;
    let v6 = |source, destination| FlowKey::from_v6(&key6(source, destination, 6, PORTS)).0;
    let server = (0xc0a8_0001, 443);
    let server6 = ([0x2001_0db8_0000_0000, 1], 443);
    let family = |make: &dyn Fn(u64) -> FlowKey| (0..FLOWS).map(make).collect::<Vec<_>>();
    vec![
        ("source ports", family(&|i| v4((0xc0a8_0002, i as u16), server, 6))),
        ("destination ports", family(&|i| v4((0x0102_0304, 40_000), (0xc0a8_0001, i as u16), 6))),
        ("addresses one after another", family(&|i| v4((0xc0a9_0000 + i as u32, 40_000), server, 6))),
        ("addresses in steps of 256", family(&|i| v4(((i as u32) << 8, 40_000), (0xffff_ffff, 443), 6))),
        (
            "pairs of 256 hosts",
            family(&|i| v4((0x0a00_0000 | (i as u32 >> 8), 1), (0x0b00_0000 | (i as u32 & 255), 1), 17)),
        ),
        ("high bits of IPv6 prefixes", family(&|i| v6(([i << 48, 1], 40_000), server6))),
        ("low bits of IPv6 prefixes", family(&|i| v6(([0x2001_0db8_1000_0000 | i, 1], 40_000), server6))),
        ("IPv6 interfaces", family(&|i| v6(([0x2001_0db8_1000_0000, i], 40_000), server6))),
        (
            "high bits of IPv6 interfaces",
            family(&|i| v6(([0x2001_0db8_1000_0000, i << 48], 40_000), server6)),
        ),
        ("IPv6 source ports", family(&|i| v6(([0x2001_0db8_1000_0000, 9], i as u16), server6))),
    ]
}

/// How uneven buckets are filled: about `BUCKETS` for a good hash, with a standard deviation of about 45.
fn chi_square(buckets: impl Iterator<Item = u64>) -> f64 {
    let mut counts = vec![0u32; BUCKETS as usize];
    for bucket in buckets {
        counts[bucket as usize] += 1;
    }
    let expected = (FLOWS / BUCKETS) as f64;
    counts.into_iter().map(|count| (f64::from(count) - expected).powi(2) / expected).sum()
}

#[test]
fn hashes_of_different_flows_differ_and_spread() {
    // Eight standard deviations: none of the 480 values may be beyond by chance.
    let limit = BUCKETS as f64 + 8.0 * 45.0;
    for (name, flows) in families() {
        for seed in seeds() {
            let mut hashes: Vec<_> = flows.iter().map(|flow| flow.hash(seed)).collect();
            let low = chi_square(hashes.iter().map(|hash| hash % BUCKETS));
            let high = chi_square(hashes.iter().map(|hash| hash >> (64 - BUCKETS.ilog2())));
            assert!(
                low < limit && high < limit,
                "{name}, seed {seed:#x}: {low:.0} low bits, {high:.0} high bits"
            );
            hashes.sort_unstable();
            hashes.dedup();
            assert_eq!(hashes.len() as u64, FLOWS, "{name}, seed {seed:#x}");
        }
    }
}

#[test]
fn another_seed_spreads_flows_otherwise() {
    let seeds: Vec<_> = seeds().collect();
    for (name, flows) in families() {
        for pair in seeds.windows(2) {
            let stays = |flow: &&FlowKey| flow.hash(pair[0]) % BUCKETS == flow.hash(pair[1]) % BUCKETS;
            // 64 of them by chance, with a standard deviation of 8.
            let stay = flows.iter().filter(stays).count();
            assert!((10..=130).contains(&stay), "{name}: {stay} of {FLOWS} flows stay in their bucket");
        }
    }
}

#[test]
fn every_bit_of_a_flow_counts() {
    let v6 = FlowKey::from_v6(&key6(([3, 5], 7), ([11, 13], 17), 6, PORTS)).0;
    let v4 = FlowKey::from_v4(&key4((5, 7), (13, 17), 6, PORTS)).0;
    let mut changed = Vec::new();
    for bit in 0..64 {
        let mask = 1 << bit;
        for half in 0..2 {
            changed.push(FlowKey { a: flip(v6.a, half, mask), ..v6 });
            changed.push(FlowKey { b: flip(v6.b, half, mask), ..v6 });
        }
    }
    for bit in 0..32 {
        changed.push(FlowKey { a: flip(v4.a, 1, 1 << bit), ..v4 });
        changed.push(FlowKey { b: flip(v4.b, 1, 1 << bit), ..v4 });
    }
    for flow in [v4, v6] {
        for bit in 0..16 {
            changed.push(FlowKey { a_port: flow.a_port ^ 1 << bit, ..flow });
            changed.push(FlowKey { b_port: flow.b_port ^ 1 << bit, ..flow });
        }
        for bit in 0..8 {
            changed.push(FlowKey { protocol: flow.protocol ^ 1 << bit, ..flow });
        }
        changed.push(FlowKey { a_port: flow.b_port, b_port: flow.a_port, ..flow });
        changed.push(flow);
    }
    for seed in seeds() {
        let mut hashes: Vec<_> = changed.iter().map(|flow| flow.hash(seed)).collect();
        hashes.sort_unstable();
        hashes.dedup();
        assert_eq!(hashes.len(), changed.len(), "seed {seed:#x}");
    }
}

fn flip(mut address: [u64; 2], half: usize, mask: u64) -> [u64; 2] {
    address[half] ^= mask;
    address
}

#[test]
fn vlans_are_numbers_beside_none() {
    for number in [0, 1, 4095] {
        assert_eq!(VlanId::new(number).map_or(0, VlanId::number), number);
        assert_eq!(VlanId::new(0xf000 | number), VlanId::new(number));
    }
    assert_eq!(VlanId::new(0), None);
    // A VLAN does not change the hash: flows that it tells apart go to one worker.
    let (flow, _) = FlowKey::from_v4(&key4((1, 2), (3, 4), 6, KeyBits::PORTS));
    let tagged = FlowKey { vlan: VlanId::new(1), ..flow };
    assert!(flow < tagged && tagged < FlowKey { vlan: VlanId::new(2), ..flow });
    assert_eq!(tagged.hash(7), flow.hash(7));
}
