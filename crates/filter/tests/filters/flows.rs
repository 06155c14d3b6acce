//! Filters of flows find what filters of packets find in a packet of one of the directions.

use packetloom_filter::{Filter, FlowFilter};
use packetloom_packet::{FlowKey, Key, LinkType, VlanId, dissect};
use packetloom_testing::amount;
use proptest::prelude::*;

use crate::texts::filters;

/// A raw IP packet of a protocol with ports, or of another one.
fn packet(is_v4: bool, protocol: u8, ends: [(u8, u16); 2]) -> Vec<u8> {
    let mut payload = vec![0; 20];
    if [6, 17, 132].contains(&protocol) {
        payload[..2].copy_from_slice(&ends[0].1.to_be_bytes());
        payload[2..4].copy_from_slice(&ends[1].1.to_be_bytes());
    }
    if protocol == 6 {
        payload[12] = 0x50;
    }
    let mut bytes = if is_v4 {
        let mut header = vec![0x45, 0, 0, 40, 0, 0, 0, 0, 64, protocol, 0, 0];
        ends.iter().for_each(|(host, _)| header.extend([10, 0, 0, *host]));
        header
    } else {
        let mut header = vec![0x60, 0, 0, 0, 0, 20, protocol, 64];
        for (host, _) in ends {
            header.extend([0x20, 1, 0x0d, 0xb8]);
            header.extend([0; 11]);
            header.push(host);
        }
        header
    };
    bytes.extend(payload);
    bytes
}

fn flow(bytes: &[u8]) -> FlowKey {
    match dissect(LinkType::RAW, bytes, bytes.len() as u32).expect("a packet").key {
        Key::V4(key) => FlowKey::from_v4(&key).0,
        Key::V6(key) => FlowKey::from_v6(&key).0,
    }
}

/// An Ethernet frame with a packet, in a VLAN if that is not 0.
fn frame(packet: &[u8], vlan: u16) -> Vec<u8> {
    let mut bytes = [2; 12].to_vec();
    if vlan > 0 {
        bytes.extend([0x81, 0]);
        bytes.extend(vlan.to_be_bytes());
    }
    bytes.extend(if packet[0] >> 4 == 4 { [8, 0] } else { [0x86, 0xdd] });
    bytes.extend(packet);
    bytes
}

/// Whether the filter takes flows; compares it with the packets of both directions, if so.
fn agrees(text: &str, is_v4: bool, protocol: u8, ends: [(u8, u16); 2], vlan: u16) -> Option<bool> {
    let of_flows = FlowFilter::parse(text).ok()?;
    let of_packets = Filter::parse(text).expect("a filter");
    let [there, back] = [ends, [ends[1], ends[0]]].map(|ends| packet(is_v4, protocol, ends));
    assert_eq!(flow(&there), flow(&back));
    let matches = |bytes: &[u8]| {
        let bytes = frame(bytes, vlan);
        of_packets.matches(LinkType::ETHERNET, &bytes, bytes.len() as u32)
    };
    let expected = matches(&there) || matches(&back);
    let flow = FlowKey { vlan: VlanId::new(vlan), ..flow(&there) };
    assert_eq!(of_flows.matches(&flow), expected, "{text}: {protocol} {ends:?} {vlan}");
    Some(expected)
}

#[test]
fn expressions_of_hosts_and_ports_are_those_of_packets() {
    let texts = [
        "",
        "ip",
        "ip6",
        "tcp",
        "not udp",
        "host 10.0.0.1",
        "src host 10.0.0.2",
        "dst 10.0.0.3",
        "net 10.0.0.0/30",
        "port 80",
        "tcp src port 443",
        "udp portrange 1-99",
        "src host 10.0.0.1 and dst port 80",
        "host 2001:db8::2",
        "icmp or icmp6",
        "ip proto 47",
        "ip multicast",
        "not src host 10.0.0.1",
        "sctp and not port 80",
        "vlan",
        "vlan 12",
        "not vlan",
        "vlan 12 or vlan 13 and tcp",
        "vlan 0",
    ];
    let (mut found, mut not) = (0, 0);
    for text in texts {
        for is_v4 in [true, false] {
            for protocol in [6, 17, 132, 47, if is_v4 { 1 } else { 58 }] {
                for (a, b) in [(1, 2), (2, 1), (3, 3), (4, 9)] {
                    for ports in [(80, 1000), (443, 80), (7, 7)] {
                        let ends = [(a, ports.0), (b, ports.1)];
                        for vlan in [0, 12, 13] {
                            match agrees(text, is_v4, protocol, ends, vlan).expect("a filter of flows") {
                                true => found += 1,
                                false => not += 1,
                            }
                        }
                    }
                }
            }
        }
    }
    assert!(found > 500 && not > 500, "{found}, {not}");
}

#[test]
fn tests_of_single_packets_are_refused() {
    for text in [
        "less 100",
        "greater 5",
        "tcp[13] & 2 != 0",
        "tcp[tcpflags] & tcp-syn != 0",
        "ether host 02:00:00:00:00:01",
        "arp",
        "ip[8] < 5",
        "host 10.0.0.1 and less 100",
        "not len = 60",
        "ether multicast",
        "icmp[icmptype] = 8",
    ] {
        let error = FlowFilter::parse(text).expect_err(text);
        assert!(error.message().contains("only single packets have"), "{text}: {error}");
    }
    assert!(FlowFilter::parse("tcp or not vlan 3").expect("of flows").tests_vlans());
    assert!(!FlowFilter::parse("tcp or port 3").expect("of flows").tests_vlans());
    assert!(FlowFilter::parse("tpc port 80").expect_err("no word").message().contains("tcp"));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: amount(2_000, 50_000) as u32, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_filters_agree(
        text in filters(),
        is_v4: bool,
        protocol in prop_oneof![Just(6u8), Just(17), Just(132), Just(47), Just(1), Just(58)],
        ends in proptest::array::uniform2((0u8..4, prop_oneof![Just(80u16), Just(443), 1u16..2000])),
        vlan in prop_oneof![Just(0u16), 1u16..8],
    ) {
        agrees(&text, is_v4, protocol, ends, vlan);
    }
}
