//! Headers: Packetloom's own and ClassBench traces.

use packetloom_packet::key::halves;
use packetloom_packet::{Key, KeyBits, MatchKey4, MatchKey6};

use super::headers;

const WHOLE: KeyBits = KeyBits::WHOLE;
const PORTS: KeyBits = KeyBits::PORTS.with(WHOLE);
const ICMP: KeyBits = KeyBits::ICMP.with(WHOLE);

/// From 10.0.0.1 to 10.0.0.2.
fn v4(protocol: u8, bits: KeyBits) -> MatchKey4 {
    MatchKey4 { source: 0x0a00_0001, destination: 0x0a00_0002, protocol, bits, ..MatchKey4::default() }
}

/// From 2001:db8::1 to 2001:db8::2.
fn v6(protocol: u8, bits: KeyBits) -> MatchKey6 {
    let address = |last: u128| halves(0x2001_0db8 << 96 | last);
    MatchKey6 { source: address(1), destination: address(2), protocol, bits, ..MatchKey6::default() }
}

#[test]
fn good_lines_give_exactly_these_keys() {
    let ports = |key| MatchKey4 { source_port: 1234, destination_port: 443, ..key };
    let icmp = |key, source_port, destination_port| MatchKey4 { source_port, destination_port, ..key };
    let flags = |key, tcp_flags| MatchKey4 { tcp_flags, ..key };
    let first = |bits: KeyBits| KeyBits(bits.0 & !WHOLE.0).with(KeyBits::FIRST_FRAGMENT);
    let seen = PORTS.with(KeyBits::TCP_FLAGS);
    for (text, expected) in [
        ("tcp 10.0.0.1:1234 > 10.0.0.2:443", Key::V4(ports(v4(6, PORTS)))),
        ("6 10.0.0.1:1234 > 10.0.0.2:443", Key::V4(ports(v4(6, PORTS)))),
        ("udp 10.0.0.1:1234 > 10.0.0.2:443", Key::V4(ports(v4(17, PORTS)))),
        ("sctp 10.0.0.1:0 > 10.0.0.2:65535", Key::V4(icmp(v4(132, PORTS), 0, 65535))),
        // A header that does not say its flags has none that are known.
        ("tcp 10.0.0.1:1234 > 10.0.0.2:443 flags SA", Key::V4(flags(ports(v4(6, seen)), 0x12))),
        ("tcp 10.0.0.1:1234 > 10.0.0.2:443 flags FSRPAUEC", Key::V4(flags(ports(v4(6, seen)), 0xff))),
        ("icmp 10.0.0.1 > 10.0.0.2 type 8 code 1", Key::V4(icmp(v4(1, ICMP), 8, 1))),
        ("icmp 10.0.0.1 > 10.0.0.2 type 255", Key::V4(icmp(v4(1, ICMP), 255, 0))),
        ("icmp 10.0.0.1 > 10.0.0.2", Key::V4(v4(1, WHOLE))),
        ("gre 10.0.0.1 > 10.0.0.2", Key::V4(v4(47, WHOLE))),
        ("255 10.0.0.1 > 10.0.0.2", Key::V4(v4(255, WHOLE))),
        // Rule sets may ask for ports of protocols that have none, and headers for them are made.
        ("gre 10.0.0.1:1234 > 10.0.0.2:443", Key::V4(ports(v4(47, PORTS)))),
        ("udp 10.0.0.1:1234 > 10.0.0.2:443 fragment first", Key::V4(ports(v4(17, first(PORTS))))),
        ("udp 10.0.0.1 > 10.0.0.2 fragment later", Key::V4(v4(17, KeyBits::LATER_FRAGMENT))),
        ("icmp 10.0.0.1 > 10.0.0.2 fragment later", Key::V4(v4(1, KeyBits::LATER_FRAGMENT))),
        (
            "tcp 10.0.0.1:1234 > 10.0.0.2:443 fragment first flags S",
            Key::V4(flags(ports(v4(6, first(seen))), 0x02)),
        ),
        (
            "udp [2001:db8::1]:1234 > [2001:DB8:0::2]:443",
            Key::V6(MatchKey6 { source_port: 1234, destination_port: 443, ..v6(17, PORTS) }),
        ),
        (
            "icmpv6 2001:db8::1 > 2001:db8::2 type 128 code 0",
            Key::V6(MatchKey6 { source_port: 128, ..v6(58, ICMP) }),
        ),
        ("esp 2001:db8::1 > 2001:db8::2", Key::V6(v6(50, WHOLE))),
        ("tcp 2001:db8::1 > 2001:db8::2 fragment later", Key::V6(v6(6, KeyBits::LATER_FRAGMENT))),
    ] {
        let read = headers(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(read.len(), 1);
        let key = if read.is_v6[0] { Key::V6(read.v6[0]) } else { Key::V4(read.v4[0]) };
        assert_eq!(key, expected, "{text}");
    }
}

#[test]
fn families_are_kept_apart_and_their_order_is_known() {
    let text = "gre 10.0.0.1 > 10.0.0.2\ngre ::1 > ::2\ngre ::3 > ::4\ngre 10.0.0.3 > 10.0.0.4\n";
    let read = headers(text).unwrap();
    assert_eq!(read.is_v6, [false, true, true, false]);
    assert_eq!(read.v4.iter().map(|key| key.source).collect::<Vec<_>>(), [0x0a00_0001, 0x0a00_0003]);
    assert_eq!(read.v6.iter().map(|key| key.source).collect::<Vec<_>>(), [[0, 1], [0, 3]]);
    assert_eq!((read.len(), read.is_empty()), (4, false));
}

#[test]
fn bad_lines_are_refused_with_what_was_expected() {
    const ENDPOINT: &str = "expected an address, 192.0.2.1:443, or [2001:db8::1]:443";
    const BOTH: &str = "expected a port on both sides, as in 192.0.2.1:443";
    for (text, message) in [
        (
            "any 10.0.0.1 > 10.0.0.2",
            "protocol \"any\"; expected a name such as tcp, or a number from 0 to 255".to_owned(),
        ),
        ("256 10.0.0.1 > 10.0.0.2", "protocol \"256\"; expected a number from 0 to 255".into()),
        ("tcp", "the line ends; expected a source".into()),
        ("tcp 10.0.0.1:1", "the line ends; expected \">\"".into()),
        ("tcp 10.0.0.1:1 10.0.0.2:2", "\"10.0.0.2:2\"; expected \">\"".into()),
        ("tcp 10.0.0.1:1 >", "the line ends; expected a destination".into()),
        ("tcp 10.0.0.1:1>10.0.0.2:2", format!("\"10.0.0.1:1>10.0.0.2:2\"; {ENDPOINT}")),
        ("tcp host:1 > 10.0.0.2:2", format!("\"host:1\"; {ENDPOINT}")),
        ("tcp 10.0.0.0/8 > 10.0.0.2:2", format!("\"10.0.0.0/8\"; {ENDPOINT}")),
        ("tcp [10.0.0.1]:1 > 10.0.0.2:2", format!("\"[10.0.0.1]:1\"; {ENDPOINT}")),
        ("tcp [::1] > [::2]", format!("\"[::1]\"; {ENDPOINT}")),
        ("tcp 10.0.0.1: > 10.0.0.2:2", "port \"\"; expected a number from 0 to 65535".into()),
        ("tcp 10.0.0.1:65536 > 10.0.0.2:2", "port \"65536\"; expected a number from 0 to 65535".into()),
        (
            "tcp 10.0.0.1:1 > [::1]:1",
            "one address is IPv4 and the other IPv6; expected both of one family".into(),
        ),
        ("gre ::1 > 10.0.0.2", "one address is IPv4 and the other IPv6; expected both of one family".into()),
        ("tcp 10.0.0.1 > 10.0.0.2", BOTH.into()),
        // Without brackets these are addresses, whatever was meant by their last part.
        ("udp 2001:db8::1:53 > 2001:db8::2:53", BOTH.into()),
        ("tcp 10.0.0.1 > 10.0.0.2 fragment first", BOTH.into()),
        ("tcp 10.0.0.1:1 > 10.0.0.2", "a port on one side only; expected both or none".into()),
        ("gre 10.0.0.1 > 10.0.0.2:2", "a port on one side only; expected both or none".into()),
        ("icmp 10.0.0.1:1 > 10.0.0.2:2 type 8", "ports and an ICMP type; expected one of them".into()),
        (
            "tcp 10.0.0.1:1 > 10.0.0.2:2 type 8",
            "\"type\" with a protocol that has none; expected icmp or icmpv6".into(),
        ),
        (
            "gre 10.0.0.1 > 10.0.0.2 code 8",
            "\"code\" with a protocol that has none; expected icmp or icmpv6".into(),
        ),
        ("icmp 10.0.0.1 > 10.0.0.2 type", "the line ends; expected an ICMP type".into()),
        ("icmp 10.0.0.1 > 10.0.0.2 type 256", "ICMP type \"256\"; expected a number from 0 to 255".into()),
        (
            "icmp 10.0.0.1 > 10.0.0.2 type 3 code -1",
            "ICMP code \"-1\"; expected a number from 0 to 255".into(),
        ),
        // As in rules: a code is nothing without its type, and nothing may be said twice.
        ("icmp 10.0.0.1 > 10.0.0.2 code 3", "\"code\" without a type; expected \"type N code N\"".into()),
        ("icmp 10.0.0.1 > 10.0.0.2 type 3 type 4", "\"type\" stands twice".into()),
        ("tcp 10.0.0.1:1 > 10.0.0.2:2 flags S flags A", "\"flags\" stands twice".into()),
        ("udp 10.0.0.1:1 > 10.0.0.2:2 fragment first fragment later", "\"fragment\" stands twice".into()),
        (
            "udp 10.0.0.1:1 > 10.0.0.2:2 flags S",
            "\"flags\"; expected type, code, flags (tcp), fragment, or the end".into(),
        ),
        ("tcp 10.0.0.1:1 > 10.0.0.2:2 flags", "the line ends; expected flags such as SA".into()),
        ("tcp 10.0.0.1:1 > 10.0.0.2:2 flags SX", "flags \"SX\"; expected letters of FSRPAUEC".into()),
        ("tcp 10.0.0.1:1 > 10.0.0.2:2 fragment any", "fragment \"any\"; expected first or later".into()),
        (
            "tcp 10.0.0.1:1 > 10.0.0.2:2 id x",
            "\"id\"; expected type, code, flags (tcp), fragment, or the end".into(),
        ),
        // A later fragment has none of what the transport header says.
        (
            "udp 10.0.0.1:1 > 10.0.0.2:2 fragment later",
            "ports, a type or flags of a later fragment; expected none of them".into(),
        ),
        (
            "icmp 10.0.0.1 > 10.0.0.2 fragment later type 8",
            "ports, a type or flags of a later fragment; expected none of them".into(),
        ),
        (
            "tcp 10.0.0.1 > 10.0.0.2 flags S fragment later",
            "ports, a type or flags of a later fragment; expected none of them".into(),
        ),
    ] {
        let text = format!("# headers\ngre 10.0.0.1 > 10.0.0.2\n\n{text}\n");
        assert_eq!(headers(&text).unwrap_err(), format!("f:4: {message}"), "{text}");
    }
}

#[test]
fn traces_give_keys_with_ports_whatever_the_protocol() {
    let key = |source, destination, source_port, destination_port, protocol| MatchKey4 {
        source,
        destination,
        source_port,
        destination_port,
        protocol,
        bits: PORTS,
        ..MatchKey4::default()
    };
    for (text, expected) in [
        ("167772161\t167772162\t1234\t443\t6", key(0x0a00_0001, 0x0a00_0002, 1234, 443, 6)),
        ("0 0 0 0 0", key(0, 0, 0, 0, 0)),
        (
            "4294967295 4294967295 65535 65535 255 4294967295 4294967295",
            key(u32::MAX, u32::MAX, 65535, 65535, 255),
        ),
        ("1 2 3 4 1\t0\t17", key(1, 2, 3, 4, 1)),
        ("1 2 3 4 17 512", key(1, 2, 3, 4, 17)),
    ] {
        let read = headers(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!((read.v4, read.v6, read.is_v6), (vec![expected], vec![], vec![false]), "{text}");
    }
}

#[test]
fn bad_trace_lines_are_refused_with_what_was_expected() {
    const MISSING: &str = "is missing; expected source destination source-port destination-port protocol [flags [filter]], or \
         \"tcp 192.0.2.1:1 > 192.0.2.2:2\"";
    for (text, message) in [
        ("1", format!("the destination {MISSING}")),
        ("1 2", format!("the source port {MISSING}")),
        ("1 2 3", format!("the destination port {MISSING}")),
        ("1 2 3 4", format!("the protocol {MISSING}")),
        ("10.0.0.1 2 3 4 5", "source address \"10.0.0.1\"; expected a number from 0 to 4294967295".into()),
        (
            "4294967296 2 3 4 5",
            "source address \"4294967296\"; expected a number from 0 to 4294967295".into(),
        ),
        ("1 -2 3 4 5", "destination address \"-2\"; expected a number from 0 to 4294967295".into()),
        ("1 2 65536 4 5", "port \"65536\"; expected a number from 0 to 65535".into()),
        ("1 2 3 0x4 5", "port \"0x4\"; expected a number from 0 to 65535".into()),
        ("1 2 3 4 256", "protocol \"256\"; expected a number from 0 to 255".into()),
        ("1 2 3 4 5 x", "number \"x\"; expected a number from 0 to 4294967295".into()),
        ("1 2 3 4 5 6 -1", "number \"-1\"; expected a number from 0 to 4294967295".into()),
        ("1 2 3 4 5 6 7 8", "\"8\" after the filter; expected at most seven columns".into()),
    ] {
        let text = format!("1 2 3 4 5\n{text}\n");
        assert_eq!(headers(&text).unwrap_err(), format!("f:2: {message}"), "{text}");
    }
}
