//! Random filters of the subset, as text. Those without VLAN tests mean something in libpcap, too.

use std::net::Ipv6Addr;

use proptest::prelude::*;
use proptest::sample::select;

use crate::frames::{MACS, PORTS, V4, V6};

fn text(choices: &'static [&'static str]) -> BoxedStrategy<String> {
    select(choices).prop_map(String::from).boxed()
}

/// Texts one after the other, with blanks between them where both are there.
fn joined(parts: Vec<BoxedStrategy<String>>) -> BoxedStrategy<String> {
    parts
        .prop_map(|parts| parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" "))
        .boxed()
}

fn side() -> BoxedStrategy<String> {
    text(&["", "", "src", "dst", "src or dst", "src and dst", "dst and src", "dst or src"])
}

fn v4() -> BoxedStrategy<String> {
    select(&V4[..]).prop_map(|[a, b, c, d]| format!("{a}.{b}.{c}.{d}")).boxed()
}

fn v6() -> BoxedStrategy<String> {
    select(&V6[..]).prop_map(|address| Ipv6Addr::from_bits(address).to_string()).boxed()
}

fn mac() -> BoxedStrategy<String> {
    (select(&MACS[..]), select(&[":", "-"][..]))
        .prop_map(|(mac, separator)| mac.map(|byte| format!("{byte:02x}")).join(separator))
        .boxed()
}

fn port() -> BoxedStrategy<String> {
    prop_oneof![select(&PORTS[..]).prop_map(|port| port.to_string()), text(&["0x50", "010"])].boxed()
}

fn number() -> BoxedStrategy<String> {
    prop_oneof![
        2 => (0_u32..256).prop_map(|number| number.to_string()),
        1 => select(&[0x40_u32, 0x45, 0x600, 0x1f90, 0xffff, 0x0a01_0203, u32::MAX][..]).prop_map(|n| format!("{n:#x}")),
        1 => text(&["tcp-syn", "tcp-ack", "icmp-echo", "icmp6-echo", "icmp-unreach"]),
    ]
    .boxed()
}

fn index() -> BoxedStrategy<String> {
    let fixed = (
        select(
            &["ether", "ip", "ip6", "tcp", "udp", "icmp", "icmp6", "arp", "igmp", "pim", "sctp", "link"][..],
        ),
        prop_oneof![4 => 0_u32..16, 1 => 0_u32..70],
        select(&["", "", ":1", ":2", ":4"][..]),
    )
        .prop_map(|(base, at, size)| format!("{base}[{at}{size}]"));
    let named = text(&[
        "tcp[tcpflags]",
        "tcp[13]",
        "icmp[icmptype]",
        "icmp[icmpcode]",
        "icmp6[icmp6type]",
        "icmp6[icmp6code]",
        "tcp[tcp[12] >> 4]",
        "tcp[(tcp[12] & 0xf0) >> 2 : 2]",
        "ip[ip[0] & 0xf]",
        "ip[(ip[0] & 0xf) * 4 : 2]",
        "udp[-1]",
        "ether[len - 20]",
    ]);
    prop_oneof![fixed, named].boxed()
}

fn value() -> BoxedStrategy<String> {
    let leaf = prop_oneof![2 => number(), 1 => Just("len".to_string()), 4 => index()];
    leaf.prop_recursive(3, 8, 2, |inner| {
        let operator = select(&["+", "-", "*", "&", "|"][..]);
        // libpcap refuses a shift by a larger number, a division by 0, and one by the first byte of a header.
        let small = (select(&["/", "<<", ">>"][..]), 1_u32..32);
        prop_oneof![
            3 => (inner.clone(), operator, inner.clone()).prop_map(|(a, operator, b)| format!("{a} {operator} {b}")),
            1 => (inner.clone(), small).prop_map(|(a, (operator, b))| format!("(({a}) {operator} {b})")),
            1 => (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("(({a}) ^ ({b}))")),
            1 => (inner.clone(), 1_u32..9).prop_map(|(a, b)| format!("(({a}) % {b})")),
            1 => inner.clone().prop_map(|a| format!("-({a})")),
            1 => inner.prop_map(|a| format!("({a})")),
        ]
    })
    .boxed()
}

fn comparison() -> BoxedStrategy<String> {
    let relation = || select(&["=", "==", "!=", "<", "<=", ">", ">="][..]);
    let any = (value(), relation(), value()).prop_map(|(a, relation, b)| format!("{a} {relation} {b}"));
    let flags = (0_u32..256, select(&["=", "!="][..]), 0_u32..256)
        .prop_map(|(mask, relation, flags)| format!("tcp[tcpflags] & {mask} {relation} {}", flags & mask));
    let usual = text(&[
        "tcp[tcpflags] & (tcp-syn|tcp-ack) == tcp-syn",
        "tcp[tcpflags] & tcp-syn != 0",
        "icmp[icmptype] = icmp-echo",
        "icmp6[icmp6type] = icmp6-echo",
        "ip[6:2] & 0x1fff != 0",
        "ip[0] & 0xf > 5",
        "ip6[6] = 6",
        "ether[0] & 1 = 0",
        "arp[6:2] = 1",
        "0x0800 = ether[12:2]",
        "len > 60",
    ]);
    prop_oneof![any, flags, usual].boxed()
}

/// A condition that libpcap understands as we do.
fn shared() -> BoxedStrategy<String> {
    let proto4 = || text(&["", "", "ip", "arp", "rarp"]);
    let transport = || text(&["", "tcp", "udp", "sctp"]);
    let nets = || {
        text(&[
            "10.0.0.0/8",
            "10.1.2.0/24",
            "10.1.2.3",
            "10.1",
            "10",
            "192.168.0.0 mask 255.255.0.0",
            "10.0.0.3 mask 255.0.0.255",
            "0.0.0.0/0",
            "224.0.0.0/3",
            "10.1.2.64/26",
        ])
    };
    let nets6 = || text(&["2001:db8::/32", "2001:db8:1::/48", "::/0", "::1", "fe80::/10", "2001:db8::2/127"]);
    let ranges = || text(&["1-1024", "53-80", "443", "80-22", "0-65535", "8080-65535"]);
    let fixed = text(&[
        "ip",
        "ip6",
        "arp",
        "rarp",
        "tcp",
        "udp",
        "sctp",
        "icmp",
        "icmp6",
        "igmp",
        "igrp",
        "pim",
        "vrrp",
        "carp",
        "ah",
        "esp",
        "broadcast",
        "ether broadcast",
        "multicast",
        "ether multicast",
        "ip multicast",
        "ip6 multicast",
        r"ether proto \ip",
        r"ether proto \arp",
        "ether proto 0x86dd",
        "ether proto 0x88cc",
        r"ip proto \tcp or \udp",
        r"proto \udp",
        "proto (6 or 17)",
    ]);
    prop_oneof![
        3 => fixed,
        2 => joined(vec![proto4(), side(), text(&["host"]), v4()]),
        1 => joined(vec![text(&["", "ip6"]), side(), text(&["host"]), v6()]),
        1 => joined(vec![text(&["src", "dst"]), prop_oneof![v4(), v6()].boxed()]),
        1 => joined(vec![text(&["host"]), v4(), text(&["or", "and", "or not"]), prop_oneof![v4(), v6()].boxed()]),
        1 => joined(vec![text(&["host"]), v4(), text(&["or not ("]), v4(), text(&["or"]), v4(), text(&[")"])]),
        2 => joined(vec![proto4(), side(), text(&["net"]), nets()]),
        1 => joined(vec![text(&["", "ip6"]), side(), text(&["net"]), nets6()]),
        3 => joined(vec![transport(), side(), text(&["port"]), port()]),
        1 => joined(vec![transport(), side(), text(&["port"]), port(), text(&["or", "and", "and not"]), port()]),
        1 => joined(vec![transport(), side(), text(&["port ("]), port(), text(&["or"]), port(), text(&[")"])]),
        1 => joined(vec![transport(), side(), text(&["portrange"]), ranges()]),
        1 => joined(vec![text(&["", "ip", "ip6"]), text(&["proto"]), (0_u32..140).prop_map(|n| n.to_string()).boxed()]),
        1 => joined(vec![text(&["ether"]), side(), text(&["host"]), mac()]),
        1 => joined(vec![text(&["less", "greater"]), (0_u32..130).prop_map(|n| n.to_string()).boxed()]),
        4 => comparison(),
    ]
    .boxed()
}

fn combined(leaf: BoxedStrategy<String>) -> BoxedStrategy<String> {
    leaf.prop_recursive(4, 12, 2, |inner| {
        prop_oneof![
            2 => (inner.clone(), select(&["and", "or", "&&", "||"][..]), inner.clone())
                .prop_map(|(a, join, b)| format!("{a} {join} {b}")),
            1 => (select(&["not ", "!", "not not "][..]), inner.clone()).prop_map(|(not, a)| format!("{not}{a}")),
            1 => inner.prop_map(|a| format!("({a})")),
        ]
    })
    .boxed()
}

/// Filters that libpcap understands as we do on untagged frames.
pub(crate) fn shared_filters() -> BoxedStrategy<String> {
    combined(shared())
}

/// Filters of the whole subset.
pub(crate) fn filters() -> BoxedStrategy<String> {
    let own = text(&[
        "vlan",
        "vlan 5",
        "len / (ip[1] & 3) > 20",
        "60 % tcp[0] = 0",
        "vlan 6",
        "ether proto 0x8100",
        "icmpv6",
        "proto tcp",
        "port http or https",
        "portrange ssh-https",
    ]);
    combined(prop_oneof![8 => shared(), 1 => own].boxed())
}
