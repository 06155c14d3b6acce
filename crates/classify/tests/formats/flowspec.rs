//! BGP flow specifications: NLRIs, their order, and the text of ExaBGP.

use packetloom_classify::formats::{Format, Options};
use packetloom_classify::rule::{Addresses, Fragments, TcpFlagMatch};
use packetloom_classify::{Action, Rule};
use packetloom_packet::{Key, KeyBits};
use proptest::prelude::*;

use super::verdicts::{headers, in_words, read, read_with, round_trip, shown, verdicts, written};
use crate::strategies::{action, addresses, ports, protocol};

/// The rules of a line of NLRIs, in our own words.
fn nlri(line: &str) -> Vec<String> {
    shown(Format::FlowSpec, line)
}

#[test]
fn examples_of_rfc_8955() {
    // All packets to 192.0.2.0/24 and TCP port 25.
    assert_eq!(
        nlri("0b 01 18 c0 00 02 03 81 06 04 81 19"),
        ["tcp from 0.0.0.0/0 to 192.0.2.0/24 port 25", "tcp from 0.0.0.0/0 port 25 to 192.0.2.0/24"]
    );
    // All packets to 192.0.2.0/24 from 203.0.113.0/24 and port {range [137, 139] or 8080}.
    let line = "0x12 0118c00002 0218cb0071 04 03 89 45 8b 91 1f90 discard # NetBIOS and a proxy";
    let [from, to] = ["203.0.113.0/24", "192.0.2.0/24"];
    let expected: Vec<String> = ["tcp", "udp"]
        .into_iter()
        .flat_map(|p| {
            ["137-139", "8080"]
                .map(|ports| format!("deny {p} from {from} to {to} port {ports} # NetBIOS and a proxy"))
        })
        .chain(["tcp", "udp"].into_iter().flat_map(|p| {
            ["137-139", "8080"]
                .map(|ports| format!("deny {p} from {from} port {ports} to {to} # NetBIOS and a proxy"))
        }))
        .collect();
    assert_eq!(nlri(line), expected);
    // All packets to 192.0.2.1/32 and fragment { DF or FF }.
    assert_eq!(
        read(Format::FlowSpec, "09 01 20 c0 00 02 01 0c 80 05").expect_err("DF"),
        "f:1: fragment with a condition on the last fragment or on the bit against fragmentation \
         (--skip-unsupported leaves it out)"
    );
}

#[test]
fn examples_of_rfc_8956() {
    // To 2001:db8::/32 from ::1234:5678:9a00:0/64-104 and upper-layer protocol TCP.
    assert_eq!(
        read(Format::FlowSpec, "ipv6 12 01200020010db8 02684012 3456789a 038106").expect_err("an offset"),
        "f:1: an address pattern that begins at an offset (--skip-unsupported leaves it out)"
    );
    // The same without the source.
    assert_eq!(nlri("ipv6 0a 01200020010db8 038106"), ["tcp from ::/0 to 2001:db8::/32"]);
}

/// An NLRI in hexadecimal of components without the length.
fn with_length(components: &str) -> String {
    let digits: String = components.split_ascii_whitespace().collect();
    match digits.len() / 2 {
        length @ 0..240 => format!("{length:02x}{digits}"),
        length => format!("f{length:03x}{digits}"),
    }
}

#[test]
fn components() {
    for (components, expected) in [
        ("01 00", &["any from 0.0.0.0/0 to 0.0.0.0/0"][..]),
        ("02 08 0a", &["any from 10.0.0.0/8 to 0.0.0.0/0"]),
        // Bits behind the length mean nothing.
        ("02 09 0a ff", &["any from 10.128.0.0/9 to 0.0.0.0/0"]),
        ("03 81 2f", &["gre from 0.0.0.0/0 to 0.0.0.0/0"]),
        // Protocol 6 or 17; below 2; not below 255; 6 and 17.
        ("03 01 06 81 11", &["tcp from 0.0.0.0/0 to 0.0.0.0/0", "udp from 0.0.0.0/0 to 0.0.0.0/0"]),
        ("03 84 02", &["0 from 0.0.0.0/0 to 0.0.0.0/0", "icmp from 0.0.0.0/0 to 0.0.0.0/0"]),
        ("03 83 ff", &["255 from 0.0.0.0/0 to 0.0.0.0/0"]),
        ("03 01 06 c1 11", &[]),
        // Every value and none; a value beyond every protocol.
        ("03 87 00", &["any from 0.0.0.0/0 to 0.0.0.0/0"]),
        ("03 80 06", &[]),
        ("03 94 01 00", &["any from 0.0.0.0/0 to 0.0.0.0/0"]),
        ("03 91 01 06", &[]),
        // The first operator's AND means nothing.
        ("03 c1 06", &["tcp from 0.0.0.0/0 to 0.0.0.0/0"]),
        // Ports: of TCP and UDP. AND binds more than OR.
        ("03 81 06 05 13 1f90 d5 1f98", &["tcp from 0.0.0.0/0 to 0.0.0.0/0 port 8080-8088"]),
        (
            "03 81 11 06 01 35 03 64 c5 c8",
            &["udp from 0.0.0.0/0 port 53 to 0.0.0.0/0", "udp from 0.0.0.0/0 port 100-200 to 0.0.0.0/0"],
        ),
        (
            "03 81 06 05 86 50",
            &["tcp from 0.0.0.0/0 to 0.0.0.0/0 port 0-79", "tcp from 0.0.0.0/0 to 0.0.0.0/0 port 81-65535"],
        ),
        ("05 81 07", &["tcp from 0.0.0.0/0 to 0.0.0.0/0 port 7", "udp from 0.0.0.0/0 to 0.0.0.0/0 port 7"]),
        // Every port is still a port.
        (
            "05 83 00",
            &[
                "tcp from 0.0.0.0/0 to 0.0.0.0/0 fragment not-later",
                "udp from 0.0.0.0/0 to 0.0.0.0/0 fragment not-later",
            ],
        ),
        // Ports of what has none.
        ("03 81 84 05 81 07", &[]),
        ("03 81 01 04 81 07", &[]),
        // Types and codes.
        ("07 81 08", &["icmp from 0.0.0.0/0 to 0.0.0.0/0 type 8"]),
        (
            "07 81 03 08 03 01 c5 02",
            &[
                "icmp from 0.0.0.0/0 to 0.0.0.0/0 type 3 code 1",
                "icmp from 0.0.0.0/0 to 0.0.0.0/0 type 3 code 2",
            ],
        ),
        ("03 81 06 07 81 08", &[]),
        // Flags: all of them, one of them, none of them; in one byte or two.
        ("09 81 12", &["tcp from 0.0.0.0/0 to 0.0.0.0/0 flags SA/SA"]),
        (
            "09 80 06",
            &["tcp from 0.0.0.0/0 to 0.0.0.0/0 flags S/SR", "tcp from 0.0.0.0/0 to 0.0.0.0/0 flags R/R"],
        ),
        ("09 82 06", &["tcp from 0.0.0.0/0 to 0.0.0.0/0 flags /SR"]),
        ("09 01 02 c2 10", &["tcp from 0.0.0.0/0 to 0.0.0.0/0 flags S/SA"]),
        ("09 91 0002", &["tcp from 0.0.0.0/0 to 0.0.0.0/0 flags S/S"]),
        // The bits of the data offset count as 0.
        ("09 91 1002", &[]),
        ("09 90 1002", &["tcp from 0.0.0.0/0 to 0.0.0.0/0 flags S/S"]),
        // Fragments.
        ("0c 80 02", &["any from 0.0.0.0/0 to 0.0.0.0/0 fragment later"]),
        ("0c 80 04", &["any from 0.0.0.0/0 to 0.0.0.0/0 fragment first"]),
        ("0c 80 06", &["any from 0.0.0.0/0 to 0.0.0.0/0 fragment any"]),
        ("0c 82 06", &["any from 0.0.0.0/0 to 0.0.0.0/0 fragment none"]),
        ("0c 82 02", &["any from 0.0.0.0/0 to 0.0.0.0/0 fragment not-later"]),
        // No fragment is the first and a later one.
        ("0c 81 06", &[]),
        // The last fragment is a later one too.
        ("0c 00 02 80 08", &["any from 0.0.0.0/0 to 0.0.0.0/0 fragment later"]),
        ("0c 80 f2", &["any from 0.0.0.0/0 to 0.0.0.0/0 fragment later"]),
        (
            "05 81 07 0c 80 06",
            &[
                "tcp from 0.0.0.0/0 to 0.0.0.0/0 port 7 fragment first",
                "udp from 0.0.0.0/0 to 0.0.0.0/0 port 7 fragment first",
            ],
        ),
    ] {
        assert_eq!(nlri(&with_length(components)), expected, "{components}");
    }
    for (components, expected) in [
        ("01 20 00 20010db8", &["any from ::/0 to 2001:db8::/32"][..]),
        ("01 00 00 02 80 00 20010db8000000000000000000000001", &["any from 2001:db8::1/128 to ::/0"]),
        ("07 81 80", &["icmpv6 from ::/0 to ::/0 type 128"]),
        // The bit against fragmentation does not exist.
        ("0c 80 03", &["any from ::/0 to ::/0 fragment later"]),
    ] {
        assert_eq!(nlri(&format!("ipv6 {}", with_length(components))), expected, "{components}");
    }
}

#[test]
fn what_is_no_nlri() {
    for (line, message) in [
        ("discard", "no NLRI; expected an NLRI in hexadecimal, such as 0b0118c00002038106048119"),
        ("ipv5 0100", "no NLRI; expected an NLRI in hexadecimal, such as 0b0118c00002038106048119"),
        ("030", "3 digits; expected an NLRI in hexadecimal, such as 0b0118c00002038106048119"),
        ("00", "a flow without conditions; expected one or more"),
        ("05 0100", "an NLRI of 5 bytes, of which 2 are there"),
        ("f0", "an NLRI whose length is cut off; expected one or two bytes"),
        ("02 0100 03", "an NLRI of 3 bytes, of which 0 are there"),
        ("02 0121", "component 1 is malformed or cut off; expected what RFC 8955 says"),
        ("02 0108", "component 1 is malformed or cut off; expected what RFC 8955 says"),
        ("03 030106", "component 3 is malformed or cut off; expected what RFC 8955 says"),
        ("03 039106", "component 3 is malformed or cut off; expected what RFC 8955 says"),
        ("06 09a100000002", "component 9 is malformed or cut off; expected what RFC 8955 says"),
        ("04 0c900002", "component 12 is malformed or cut off; expected what RFC 8955 says"),
        ("ipv6 03 012020", "component 1 is malformed or cut off; expected what RFC 8955 says"),
        ("ipv6 03 018100", "component 1 is malformed or cut off; expected what RFC 8955 says"),
        ("04 0200 0100", "component 1 after component 2; expected each once, in ascending order"),
        ("04 0100 0100", "component 1 after component 1; expected each once, in ascending order"),
        ("02 0100 drop", "\"drop\"; expected discard, accept, rate N, community COMMUNITY, or the end"),
        ("02 0100 rate fast", "rate \"fast\"; expected a number from 0 to 18446744073709551615"),
        ("02 0100 community 8006", "community \"8006\"; expected 16 hexadecimal digits"),
    ] {
        assert_eq!(read(Format::FlowSpec, line).expect_err(line), format!("f:1: {message}"), "{line}");
    }
    for (line, construct) in [
        ("03 0a8140", "\"packet-length\" has no equal among our rules"),
        ("03 0b812e", "\"dscp\" has no equal among our rules"),
        ("ipv6 03 0d8101", "\"flow-label\" has no equal among our rules"),
        ("03 0d8101", "a component of type 13 in an ipv4 flow"),
        ("03 0e8101", "a component of type 14 in an ipv4 flow"),
        ("04 09900100", "tcp-flags beyond the eight from CWR to FIN"),
        ("03 0c8008", "fragment with a condition on the last fragment or on the bit against fragmentation"),
        ("02 0100 rate 9600", "\"rate 9600\" has no equal among our rules"),
        ("02 0100 community 80060000461c4000", "\"community 80060000461c4000\" has no equal among our rules"),
        ("02 0100 community 8008fde800003039", "\"community 8008fde800003039\" has no equal among our rules"),
    ] {
        let error = read(Format::FlowSpec, line).expect_err(line);
        assert_eq!(error, format!("f:1: {construct} (--skip-unsupported leaves it out)"), "{line}");
        let options =
            Options { format: Some(Format::FlowSpec), skip_unsupported: true, ..Options::default() };
        let reading = read_with(format!("{line}\n03 03812f discard\n"), options).expect(line);
        assert_eq!(in_words(&reading.rules.rules), ["deny gre from 0.0.0.0/0 to 0.0.0.0/0"], "{line}");
        assert_eq!(reading.skipped[0].to_string(), format!("line 1: {construct}"));
    }
}

#[test]
fn actions() {
    for (action, expected) in [
        ("", None),
        ("discard", Some(Action::Deny)),
        ("accept", Some(Action::Permit)),
        ("rate 0", Some(Action::Deny)),
        // 0, below 0, and packets a second.
        ("community 8006000000000000", Some(Action::Deny)),
        ("community 0x8006fde880000000", Some(Action::Deny)),
        ("community 80060000c61c4000", Some(Action::Deny)),
        ("community 800c000000000000", Some(Action::Deny)),
    ] {
        // Two flows of a line have the same one.
        let reading = read(
            Format::FlowSpec,
            format!("0203812f 038132 {action}").replace("0203812f 038132", "03 03812f 03 038132"),
        );
        let reading = reading.expect(action);
        let found: Vec<_> = reading.rules.rules.iter().map(|rule| rule.action).collect();
        assert_eq!(found, [expected, expected], "{action}");
        assert_eq!((reading.default, reading.rules.rules[1].line), (Some(Action::Permit), 1));
    }
}

#[test]
fn flows_come_in_the_order_of_rfc_8955() {
    for [first, second] in [
        // The lower type goes first, and more components before fewer.
        ["03 81 06 05 81 07", "03 81 06"],
        ["03 81 06", "05 81 07 06 81 07"],
        ["01 00", "02 20 0a000001"],
        ["01 00 02 00", "01 00 03 81 06"],
        // The more specific prefix, or else the lower address.
        ["01 10 0a01", "01 08 0a"],
        ["02 10 0a01", "02 08 0a"],
        ["01 08 02", "01 10 0301"],
        ["02 08 02", "02 10 0301"],
        ["01 20 0a000001", "01 00"],
        // After equal prefixes, what comes next decides.
        ["01 08 0a 02 08 0a", "01 08 0a 02 00"],
        ["01 08 0a 03 81 06", "01 08 0a 03 81 11"],
        // Other components as strings: the lower one, or the longer one.
        ["03 81 06", "03 81 07"],
        ["03 01 06 81 11", "03 81 06"],
        ["03 81 06", "03 91 0006"],
        ["05 01 07 81 08", "05 01 07 91 0009"],
        ["03 81 06 06 01 07 81 09", "03 81 06 06 81 07"],
    ] {
        let lines =
            |order: [&str; 2]| order.map(|components| with_length(components) + " discard\n").concat();
        let forwards = nlri(&lines([first, second]));
        assert_eq!(forwards, nlri(&lines([second, first])));
        let begin = nlri(&lines([first, first]));
        assert_eq!(forwards[..begin.len()], begin, "{first} before {second}");
        assert!(!begin.is_empty() && forwards.len() > begin.len(), "{first} before {second}");
    }
    // Families do not meet.
    let both = nlri("ipv6 03 038106\n03 038111\n");
    assert_eq!(both, ["udp from 0.0.0.0/0 to 0.0.0.0/0", "tcp from ::/0 to ::/0"]);
}

#[test]
fn the_same_flow_twice() {
    assert_eq!(nlri("03 038106 discard\n03 038106 discard\n").len(), 1);
    assert_eq!(
        read(Format::FlowSpec, "03 038106 discard\n\n03 038106 accept\n").expect_err("two actions"),
        "f:3: the flow of line 1 again, with another action"
    );
}

/// A configuration of ExaBGP, made for this test.
const CONFIGURATION: &str = "\
process announce {
	run ./announce;
}
neighbor 192.0.2.1 {
	router-id 192.0.2.2; local-as 64500; peer-as 64501;
	family { ipv4 flow; ipv6 flow; }
	static { route 10.0.0.0/8 next-hop self; }
	flow {
		route netbios { # of one network
			match {
				source 203.0.113.0/24;
				destination 192.0.2.0/24;
				port [ >=137&<=139 =8080 ];
				protocol tcp;
			}
			then { discard; community [ 64500:1 64500:2 ]; }
		}
		route 'six' {
			next-hop self;
			match { destination 2001:db8::/32; next-header [udp 47]; fragment is-fragment; }
			then { accept; }
		}
		route flags { match { tcp-flags [ syn+ack =rst&!fin ]; protocol =6; } then { rate-limit 0; } }
		route destination 192.0.2.9/32 icmp-type [ echo-request 13 ] discard;
	}
}
";

#[test]
fn a_configuration_of_exabgp() {
    // It is recognised.
    let reading = read_with(CONFIGURATION, Options::default()).expect("flows");
    assert_eq!((reading.format, reading.default), (Format::ExaBgp, Some(Action::Permit)));
    let rules = &reading.rules.rules;
    assert_eq!(
        in_words(rules),
        [
            "deny icmp from 0.0.0.0/0 to 192.0.2.9/32 type 8",
            "deny icmp from 0.0.0.0/0 to 192.0.2.9/32 type 13",
            "deny tcp from 203.0.113.0/24 to 192.0.2.0/24 port 137-139",
            "deny tcp from 203.0.113.0/24 to 192.0.2.0/24 port 8080",
            "deny tcp from 203.0.113.0/24 port 137-139 to 192.0.2.0/24",
            "deny tcp from 203.0.113.0/24 port 8080 to 192.0.2.0/24",
            "deny tcp from 0.0.0.0/0 to 0.0.0.0/0 flags S/SRA",
            "deny tcp from 0.0.0.0/0 to 0.0.0.0/0 flags R/FSRA",
            "deny tcp from 0.0.0.0/0 to 0.0.0.0/0 flags SR/SRA",
            "deny tcp from 0.0.0.0/0 to 0.0.0.0/0 flags A/A",
            "permit udp from ::/0 to 2001:db8::/32 fragment later",
            "permit gre from ::/0 to 2001:db8::/32 fragment later",
        ]
    );
    let names: Vec<_> = rules.iter().map(|rule| (rule.id.as_deref(), rule.line)).collect();
    assert_eq!(names[0], (None, 24));
    assert_eq!(names[2], (Some("netbios"), 9));
    assert_eq!(names[6], (Some("flags"), 23));
    assert_eq!(names[10], (Some("six"), 18));
}

/// The rules of one flow in ExaBGP's text.
fn exabgp(conditions: &str) -> Vec<String> {
    shown(Format::ExaBgp, &format!("flow {{ route {{ match {{ {conditions} }} then {{ discard; }} }} }}"))
}

#[test]
fn conditions_of_exabgp() {
    for (conditions, expected) in [
        ("source 10.0.0.0/8;", &["deny any from 10.0.0.0/8 to 0.0.0.0/0"][..]),
        ("source-ipv4 10.0.0.1/8;", &["deny any from 10.0.0.0/8 to 0.0.0.0/0"]),
        ("destination 2001:db8::1/32/0;", &["deny any from ::/0 to 2001:db8::/32"]),
        ("protocol 47;", &["deny gre from 0.0.0.0/0 to 0.0.0.0/0"]),
        ("protocol ipip;", &["deny 94 from 0.0.0.0/0 to 0.0.0.0/0"]),
        (
            "protocol [ =TCP =0x11 ];",
            &["deny tcp from 0.0.0.0/0 to 0.0.0.0/0", "deny udp from 0.0.0.0/0 to 0.0.0.0/0"],
        ),
        (
            "protocol tcp; protocol udp;",
            &["deny tcp from 0.0.0.0/0 to 0.0.0.0/0", "deny udp from 0.0.0.0/0 to 0.0.0.0/0"],
        ),
        ("protocol tcp; source-port >1024;", &["deny tcp from 0.0.0.0/0 port 1025-65535 to 0.0.0.0/0"]),
        (
            "protocol tcp; destination-port [ !=80&!=8080 ];",
            &[
                "deny tcp from 0.0.0.0/0 to 0.0.0.0/0 port 0-79",
                "deny tcp from 0.0.0.0/0 to 0.0.0.0/0 port 81-8079",
                "deny tcp from 0.0.0.0/0 to 0.0.0.0/0 port 8081-65535",
            ],
        ),
        // One of two that differ is always met; what is left is a port.
        (
            "protocol tcp; destination-port [ !=80 !=81 ];",
            &["deny tcp from 0.0.0.0/0 to 0.0.0.0/0 fragment not-later"],
        ),
        (
            "protocol icmp; icmp-type 3; icmp-code [ 1 2 ];",
            &[
                "deny icmp from 0.0.0.0/0 to 0.0.0.0/0 type 3 code 1",
                "deny icmp from 0.0.0.0/0 to 0.0.0.0/0 type 3 code 2",
            ],
        ),
        ("tcp-flags =syn;", &["deny tcp from 0.0.0.0/0 to 0.0.0.0/0 flags S/S"]),
        ("tcp-flags [ !=0x02 ];", &["deny tcp from 0.0.0.0/0 to 0.0.0.0/0 flags /S"]),
        ("fragment [ first-fragment ];", &["deny any from 0.0.0.0/0 to 0.0.0.0/0 fragment first"]),
        ("fragment !is-fragment+first-fragment;", &["deny any from 0.0.0.0/0 to 0.0.0.0/0 fragment none"]),
    ] {
        assert_eq!(exabgp(conditions), expected, "{conditions}");
    }
}

#[test]
fn commands_of_exabgp() {
    let expected = ["deny tcp from 10.0.0.0/8 to 192.0.2.1/32 port 80"];
    for text in [
        "announce flow route { match { source 10.0.0.0/8; destination 192.0.2.1/32; protocol tcp; destination-port =80; } then { discard; } }\n",
        "announce flow route {\\n match {\\n source 10.0.0.0/8;\\n destination 192.0.2.1/32;\\n protocol tcp; destination-port =80;\\n }\\n then { discard; } }\\n",
        "announce route 10.0.0.0/8 next-hop self\nannounce flow route source 10.0.0.0/8 destination 192.0.2.1/32 protocol [ tcp ] destination-port =80 discard\n",
        "neighbor 127.0.0.1 announce flow route destination 192.0.2.1/32 destination-port 80 protocol tcp source 10.0.0.0/8 rate-limit 0 bytes\n",
        "flow route source 10.0.0.0/8 destination 192.0.2.1/32 protocol tcp destination-port 80 discard community [ 1:2 ]\n",
        "announce flow route\n{\nmatch\n{ source 10.0.0.0/8; destination 192.0.2.1/32; protocol tcp; destination-port =80; } then { discard; } }\n",
    ] {
        let reading = read(Format::ExaBgp, text);
        if text.contains("route\n{") {
            // A command is one line, as far as its first brace.
            assert_eq!(reading.expect_err(text), "f:1: a flow without conditions; expected one or more");
        } else {
            assert_eq!(in_words(&reading.expect(text).rules.rules), expected, "{text}");
        }
    }
}

#[test]
fn flows_are_read_wherever_a_configuration_announces_them() {
    let text = include_str!("faults/02-announce-flow.conf");
    let reading = read_with(text, Options::default()).expect("a flow");
    assert_eq!((reading.format, reading.default), (Format::ExaBgp, Some(Action::Permit)));
    assert_eq!(in_words(&reading.rules.rules), ["deny udp from 0.0.0.0/0 to 198.51.100.7/32 port 53"]);
    let v4 = "deny gre from 0.0.0.0/0 to 10.0.0.0/8";
    for (text, expected) in [
        ("neighbor 1.2.3.4 { announce { ipv4 { flow destination 10.0.0.0/8 protocol gre discard; } } }", v4),
        (
            "neighbor 1.2.3.4 { announce { ipv4 { flow route destination 10.0.0.0/8 protocol gre discard; } } }",
            v4,
        ),
        (
            "neighbor 1.2.3.4\n{\nannounce\n{\nipv4\n{\nflow destination 10.0.0.0/8\n protocol [ gre ]\n discard;\n}\n}\n}",
            v4,
        ),
        (
            "neighbor 1.2.3.4 { announce { ipv4 { flow { route x { match { destination 10.0.0.0/8; protocol gre; } \
             then { discard; } } } } } }",
            v4,
        ),
        (
            "template { neighbor t { announce { ipv4 { flow destination 10.0.0.0/8 protocol gre discard; } } } }",
            v4,
        ),
        (
            "group g { neighbor 1.2.3.4 { family { ipv4 flow; } } flow { route destination 10.0.0.0/8 protocol gre discard; } }",
            v4,
        ),
        ("neighbor 1.2.3.4 { announce ipv4 { flow destination 10.0.0.0/8 protocol gre discard; } }", v4),
        ("announce ipv4 flow destination 10.0.0.0/8 protocol gre discard\n", v4),
        ("neighbor 1.2.3.4 announce ipv4 flow destination 10.0.0.0/8 protocol gre discard\n", v4),
        // Without addresses a flow is of the family that it is announced for.
        (
            "neighbor 1.2.3.4 { announce { ipv6 { flow next-header gre discard; } } }",
            "deny gre from ::/0 to ::/0",
        ),
        ("announce ipv6 flow next-header gre discard\n", "deny gre from ::/0 to ::/0"),
        (
            "neighbor 1.2.3.4 { announce { ipv6 { unicast 2001:db8::/32 next-hop self; flow { route { match { protocol gre; } then { discard; } } } } } }",
            "deny gre from ::/0 to ::/0",
        ),
        // Where the word says something else.
        (
            "process flow { run ./flow --flow; }\ntemplate { neighbor flow { capability { add-path; } add-path { ipv4 flow; } } }\n\
             neighbor 1.2.3.4 { inherit flow; description flow; family { ipv4 flow; ipv6 flow-vpn; } api { processes [ flow ]; } \
             flow { route { match { destination 10.0.0.0/8; protocol gre; } then { discard; } } } }",
            v4,
        ),
    ] {
        let reading = read_with(text, Options::default()).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(in_words(&reading.rules.rules), [expected], "{text}");
    }
    const EXPECTED: &str = "expected flow { route … }, or flow and conditions";
    for (text, message) in [
        (
            "neighbor 1.2.3.4 { announce { ipv4 { flow-vpn rd 1:1 discard; } } }",
            format!("\"flow-vpn rd 1:1 discard\"; {EXPECTED}"),
        ),
        (
            "neighbor 1.2.3.4 { announce { ipv4 { flows destination 10.0.0.0/8; } } }",
            format!("\"flows destination 10.0.0.0/8\"; {EXPECTED}"),
        ),
        (
            "neighbor 1.2.3.4 { static { add flow destination 10.0.0.0/8; } }",
            format!("\"add flow destination 10.0.0.0/8\"; {EXPECTED}"),
        ),
        ("neighbor 1.2.3.4 { announce { ipv4 { flow; } } }", format!("\"flow\"; {EXPECTED}")),
        ("neighbor 1.2.3.4 { flow x { } }", format!("\"flow x\"; {EXPECTED}")),
        (
            "neighbor 1.2.3.4 { announce { ipv4 { flow destination 10.0.0.0/8 discard } } }",
            "\"flow destination 10.0.0.0/8 discard\" without an end; expected ';'".into(),
        ),
        (
            "neighbor 1.2.3.4 { announce { ipv4 { flow destination 2001:db8::/32 discard; } } }",
            "ipv6 addresses in a flow that is announced for ipv4; expected those of one family".into(),
        ),
        (
            "neighbor 1.2.3.4 { flwo { route x { match { protocol gre; } then { discard; } } } }",
            "a section \"match\" outside of flow".into(),
        ),
    ] {
        assert_eq!(
            read_with(text, Options::default()).expect_err(text),
            format!("f:1: {}", crate::told(&message)),
            "{text}"
        );
    }
    let none = "f: no flow; expected a section \"flow { route … }\", \"announce { ipv4 { flow … } }\" or commands \"announce flow route …\"";
    for text in [
        "neighbor 1.2.3.4 { local-as 1; family { ipv4 flow; } }",
        "neighbor 1.2.3.4 { static { route 10.0.0.0/8 next-hop self; } }",
        "neighbor 1.2.3.4 { flow { } }",
    ] {
        assert_eq!(read_with(text, Options::default()).expect_err(text), none, "{text}");
    }
    assert_eq!(read(Format::ExaBgp, "announce route 10.0.0.0/8 next-hop self\n").expect_err("no flow"), none);
    assert_eq!(
        read(Format::FlowSpec, "# nothing\n").expect_err("no flow"),
        "f: no flow; expected lines such as \"ipv4 0b0118c00002038106048119 discard\""
    );
}

#[test]
fn what_exabgp_says_and_rules_do_not() {
    for (route, construct) in [
        ("match { source 10.0.0.0/8; } then { rate-limit 9600; }", "rate-limit 9600"),
        ("match { source 10.0.0.0/8; } then { redirect 65500:12345; }", "redirect"),
        ("match { source 10.0.0.0/8; } then { mark 10; discard; }", "mark"),
        ("match { source 10.0.0.0/8; } then { action sample-terminal; }", "action"),
        ("match { source 10.0.0.0/8; } then { extended-community [ 0x8006 ]; }", "extended-community"),
        ("rd 65535:65536; match { source 10.0.0.0/8; } then { discard; }", "rd"),
        (
            "match { source 10.0.0.0/8; } scope { interface-set transitive:input:1:1; } then { discard; }",
            "interface-set",
        ),
        ("match { packet-length [ >200&<300 ]; } then { discard; }", "packet-length"),
        ("match { dscp 10; } then { discard; }", "dscp"),
        ("match { fragment not-a-fragment; } then { discard; }", "not-a-fragment"),
    ] {
        let text = format!("flow {{\nroute x {{\n{route}\n}}\nroute y {{ match {{ protocol gre; }} }}\n}}\n");
        let error = read(Format::ExaBgp, &text).expect_err(route);
        let construct = format!("{construct:?} has no equal among our rules");
        assert_eq!(error, format!("f:3: {construct} (--skip-unsupported leaves it out)"), "{route}");
        let options = Options { skip_unsupported: true, ..Options::default() };
        let reading = read_with(&text, options).expect(route);
        // What says nothing else is accepted.
        assert_eq!(in_words(&reading.rules.rules), ["permit gre from 0.0.0.0/0 to 0.0.0.0/0"]);
        assert_eq!(reading.skipped[0].to_string(), format!("line 3: {construct}"));
    }
    assert_eq!(
        read(Format::ExaBgp, "withdraw flow route { match { source 10.0.0.0/8; } }").expect_err("withdraw"),
        "f:1: \"withdraw\" has no equal among our rules (--skip-unsupported leaves it out)"
    );
}

#[test]
fn what_is_not_exabgp() {
    for (text, message) in [
        (
            "flow { route x { match { sauce 10.0.0.0/8; } } }",
            "\"sauce\"; expected a condition such as source or destination-port",
        ),
        (
            "flow { route x { match { source 10.0.0.0; } } }",
            "\"10.0.0.0\"; expected an IPv4 or IPv6 prefix such as 192.0.2.0/24",
        ),
        (
            "flow { route x { match { source 10.0.0.0/33; } } }",
            "prefix length \"33\"; expected a number from 0 to 32",
        ),
        (
            "flow { route x { match { source 10.0.0.0/8 10.0.0.0/9; } } }",
            "source with 2 values; expected one",
        ),
        (
            "flow { route x { match { source 10.0.0.0/8; source 10.0.0.0/9; } } }",
            "a second source; expected one",
        ),
        (
            "flow { route x { match { source 10.0.0.0/8; destination ::/0; } } }",
            "one address is IPv4 and the other IPv6; expected both of one family",
        ),
        ("flow { route x { match { port; } } }", "port without a value; expected one or more"),
        ("flow { route x { match { port =http; } } }", "port: \"http\"; expected a number from 0 to 65535"),
        ("flow { route x { match { port =80&; } } }", "port: \"\"; expected a number from 0 to 65535"),
        (
            "flow { route x { match { protocol =300; } } }",
            "protocol: \"300\"; expected a name or a number from 0 to 255",
        ),
        (
            "flow { route x { match { tcp-flags syn+xyz; } } }",
            "tcp-flags: \"xyz\"; expected a name or a number from 0 to 65535",
        ),
        ("flow { route x { match { port [ 1; } } }", "a bracket that has no other; expected [ VALUE … ]"),
        ("flow { route x { match { } } }", "a flow without conditions; expected one or more"),
        (
            "flow { route x { match { source 10.0.0.0/8 } } }",
            "\"source 10.0.0.0/8\" without an end; expected ';'",
        ),
        (
            "flow { route x { then { drop; } } }",
            "\"drop\"; expected an action such as discard, accept or rate-limit",
        ),
        (
            "flow { route x { else { discard; } } }",
            "a section \"else\"; expected match, then or scope in a route",
        ),
        (
            "flow { route x { match { source 10.0.0.0/8; } discard; } }",
            "\"discard\"; expected match, then, rd or next-hop",
        ),
        ("flow { rout x { } }", "\"rout x\"; expected route"),
        ("flow { route x y { } }", "\"x y\" before '{'; expected a name or nothing"),
        ("flow { ", "the file ends within a section; expected '}'"),
        ("flow { } }", "'}' without its '{'"),
        ("flow route source", "source without a value; expected one"),
        ("flow route source [ 10.0.0.0/8", "source: a bracket without its end; expected ]"),
    ] {
        assert_eq!(
            read(Format::ExaBgp, text).expect_err(text),
            format!("f:1: {}", crate::told(message)),
            "{text}"
        );
    }
}

#[test]
fn rules_are_written_as_flows() {
    let rules = super::rules(
        "deny tcp from 10.0.0.0/8 to 192.0.2.0/24 port 80-443 flags S/SA id web\n\
         deny icmpv6 from ::/0 to 2001:db8::/32 type 128\n\
         permit udp from any port 53 to any fragment first\n",
    )
    .expect("rules")
    .rules;
    assert_eq!(
        written(&rules, Format::FlowSpec, Some(Action::Permit)).expect("flows"),
        "ipv4 160118c0000202080a038106050350d501bb090102c210 discard\n\
         ipv6 1001200020010db802000003813a078180 discard\n\
         ipv4 0d010002000381110681350c8004 accept\n\
         ipv6 0f0100000200000381110681350c8004 accept\n"
    );
    assert_eq!(
        written(&rules[..1], Format::ExaBgp, Some(Action::Deny)).expect("flows"),
        "\
flow {
	route web {
		match {
			destination 192.0.2.0/24;
			source 10.0.0.0/8;
			protocol =6;
			destination-port >=80&<=443;
			tcp-flags =syn&!ack;
		}
		then {
			discard;
		}
	}
	route flow-1 {
		match {
			destination 0.0.0.0/0;
			source 0.0.0.0/0;
		}
		then {
			discard;
		}
	}
	route flow-2 {
		match {
			destination ::/0;
			source ::/0;
		}
		then {
			discard;
		}
	}
}
"
    );
}

#[test]
fn rules_without_a_flow() {
    const ORDER: &str = "which puts flows in an order of its own, here before a rule with another action";
    for (rules, index, reason) in [
        ("deny any from any to any port 53", 0, "where ports belong to tcp or udp"),
        ("reflect tcp from any to any", 0, "where no rule admits connections"),
        ("deny sctp from any to any port 53", 0, "where ports belong to tcp or udp"),
        (
            "deny icmp from any to any type 8",
            0,
            "where types and codes belong to icmp with IPv4 and icmpv6 with IPv6",
        ),
        // The more specific one would go first.
        ("permit any from any to 10.0.0.0/8\ndeny any from any to 10.1.0.0/16", 1, ORDER),
        ("permit udp from any to any\ndeny tcp from any to any\npermit any from any to 10.0.0.0/8", 2, ORDER),
    ] {
        let rules = super::rules(rules).expect(rules).rules;
        for format in [Format::FlowSpec, Format::ExaBgp] {
            let error = written(&rules, format, None).expect_err(reason).to_string();
            assert_eq!(error, format!("rule {index} has no line in this format, {reason}: {}", rules[index]));
        }
    }
    // An NLRI does not say an action, but ExaBGP does.
    let rules = [Rule::any(None)];
    assert_eq!(
        written(&rules, Format::FlowSpec, None).expect("flows"),
        "ipv4 0401000200\nipv6 06010000020000\n"
    );
    assert_eq!(
        written(&rules, Format::ExaBgp, None).expect_err("no action").to_string(),
        format!(
            "rule 0 has no line in this format, where a flow without an action is accepted: {}",
            rules[0]
        )
    );
    // Where no packet meets both, or both do the same, the order does not matter.
    for rules in [
        "permit any from any to 10.0.0.0/8\npermit any from any to 10.1.0.0/16",
        "permit udp from any to 10.0.0.0/8\ndeny tcp from any to 10.1.0.0/16",
        "permit any from any to 10.1.0.0/16\ndeny any from any to 10.0.0.0/8",
    ] {
        let rules = super::rules(rules).expect(rules).rules;
        assert!(written(&rules, Format::FlowSpec, None).is_ok());
    }
}

/// Rules that flows can say.
fn rule() -> impl Strategy<Value = Rule> {
    let ports = || ports(1, 2);
    let icmp = prop::option::of((prop::option::of(0..9u8), prop::option::of(0..3u8)));
    let flags = prop::option::of((any::<u8>(), 1..=u8::MAX));
    let fragments = prop::sample::select(vec![
        Fragments::All,
        Fragments::All,
        Fragments::Any,
        Fragments::None,
        Fragments::First,
        Fragments::Later,
        Fragments::NotLater,
    ]);
    (action(), addresses(), protocol(), ports(), ports(), icmp, flags, fragments).prop_map(
        |(action, addresses, protocol, source_ports, destination_ports, icmp, flags, fragments)| {
            let mut rule = Rule { addresses, protocol, fragments, ..Rule::any(Some(action)) };
            if matches!(protocol, Some(6 | 17)) {
                (rule.source_ports, rule.destination_ports) = (source_ports, destination_ports);
            }
            if let (Some(icmp), Addresses::V4(..), Some(1)) | (Some(icmp), Addresses::V6(..), Some(58)) =
                (icmp, addresses, protocol)
            {
                (rule.icmp_type, rule.icmp_code) = icmp;
            }
            if let (Some((set, mask)), Some(6)) = (flags, protocol) {
                rule.tcp_flags = Some(TcpFlagMatch { set: set & mask, mask });
            }
            rule
        },
    )
}

/// A list of operators and values, as bytes; the lists are of numbers or of bits.
fn terms(values: Vec<u16>) -> impl Strategy<Value = Vec<(u8, u16)>> {
    prop::collection::vec((0..8u8, any::<bool>(), prop::sample::select(values)), 1..5).prop_map(|terms| {
        let one = |(operator, and, value)| (if and { operator | 0x40 } else { operator }, value);
        terms.into_iter().map(one).collect()
    })
}

/// A component's bytes.
fn bytes(kind: u8, terms: &[(u8, u16)]) -> Vec<u8> {
    let mut bytes = vec![kind];
    for (index, &(operator, value)) in terms.iter().enumerate() {
        let end = if index + 1 == terms.len() { 0x80 } else { 0 };
        if value < 256 {
            bytes.extend([operator | end, value as u8]);
        } else {
            bytes.push(operator | end | 0x10);
            bytes.extend(value.to_be_bytes());
        }
    }
    bytes
}

/// Whether a list holds, straight from the RFC: the first AND is not looked at, AND goes before OR.
fn holds(terms: &[(u8, u16)], one: impl Fn(u8, u16) -> bool) -> bool {
    let mut groups: Vec<Vec<bool>> = Vec::new();
    for (index, &(operator, value)) in terms.iter().enumerate() {
        if index == 0 || operator & 0x40 == 0 {
            groups.push(Vec::new());
        }
        groups.last_mut().expect("a group").push(one(operator, value));
    }
    groups.iter().any(|group| group.iter().all(|holds| *holds))
}

fn number_holds(terms: &[(u8, u16)], number: u16) -> bool {
    holds(terms, |operator, value| {
        operator & 4 != 0 && number < value
            || operator & 2 != 0 && number > value
            || operator & 1 != 0 && number == value
    })
}

fn bits_hold(terms: &[(u8, u16)], bits: u16) -> bool {
    holds(terms, |operator, value| {
        let holds = if operator & 1 != 0 { bits & value == value } else { bits & value != 0 };
        holds ^ (operator & 2 != 0)
    })
}

/// Lists of the components that compare numbers or bits.
type Lists = [(u8, Option<Vec<(u8, u16)>>); 8];

fn lists() -> impl Strategy<Value = Lists> {
    let ports = || vec![0, 1, 79, 80, 81, 255, 256, 1024, 65534, 65535];
    let list = |chance: f64, values: Vec<u16>| prop::option::weighted(chance, terms(values));
    (
        list(0.5, vec![0, 1, 5, 6, 7, 17, 58, 255]),
        list(0.2, ports()),
        list(0.3, ports()),
        list(0.3, ports()),
        list(0.2, vec![0, 1, 3, 8, 128, 255]),
        list(0.2, vec![0, 1, 2, 255]),
        list(0.3, vec![0, 1, 2, 0x12, 0x10, 0x3f, 0xff]),
        list(0.3, vec![0, 2, 4, 6]),
    )
        .prop_map(|(a, b, c, d, e, f, g, h)| {
            [(3, a), (4, b), (5, c), (6, d), (7, e), (8, f), (9, g), (12, h)]
        })
}

/// Whether a packet with this header is one of the flow.
fn flow_holds(lists: &Lists, key: &Key) -> bool {
    let (source_port, destination_port, protocol, flags, bits, icmp_protocol) = match key {
        Key::V4(key) => (key.source_port, key.destination_port, key.protocol, key.tcp_flags, key.bits, 1),
        Key::V6(key) => (key.source_port, key.destination_port, key.protocol, key.tcp_flags, key.bits, 58),
    };
    let has_ports = bits.contains(KeyBits::PORTS) && matches!(protocol, 6 | 17);
    let has_icmp = bits.contains(KeyBits::ICMP) && protocol == icmp_protocol;
    let fragment = match () {
        () if bits.contains(KeyBits::FIRST_FRAGMENT) => 4,
        () if bits.contains(KeyBits::LATER_FRAGMENT) => 2,
        () => 0,
    };
    lists.iter().filter_map(|(kind, terms)| Some((kind, terms.as_ref()?))).all(|(kind, terms)| match kind {
        3 => number_holds(terms, protocol.into()),
        4 => has_ports && (number_holds(terms, source_port) || number_holds(terms, destination_port)),
        5 => has_ports && number_holds(terms, destination_port),
        6 => has_ports && number_holds(terms, source_port),
        7 => has_icmp && number_holds(terms, source_port),
        8 => has_icmp && number_holds(terms, destination_port),
        9 => bits.contains(KeyBits::TCP_FLAGS) && bits_hold(terms, flags.into()),
        _ => bits_hold(terms, fragment),
    })
}

/// Flows of two or three components between a few prefixes.
fn some_flows() -> impl Strategy<Value = Vec<String>> {
    let prefix =
        || prop::option::of(prop::sample::select(vec!["00", "08 0a", "10 0a01", "20 0a010203", "08 c0"]));
    let flow = (prefix(), prefix(), lists()).prop_map(|(destination, source, lists)| {
        let ends = [("01", destination), ("02", source)];
        let mut text: String =
            ends.iter().filter_map(|(kind, prefix)| Some(format!("{kind} {} ", (*prefix)?))).collect();
        for (kind, terms) in lists.iter().take(3) {
            for byte in terms.iter().flat_map(|terms| bytes(*kind, terms)) {
                text += &format!("{byte:02x}");
            }
        }
        if text.is_empty() { "03 81 06".into() } else { text }
    });
    prop::collection::vec(flow, 1..8)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn flows_match_what_the_rfc_says(lists in lists(), v6 in any::<bool>(), seed in any::<u64>()) {
        let components: Vec<u8> =
            lists.iter().filter_map(|(kind, terms)| Some(bytes(*kind, terms.as_ref()?))).flatten().collect();
        prop_assume!(!components.is_empty());
        let digits: String = components.iter().map(|byte| format!("{byte:02x}")).collect();
        let line = format!("{} {} discard", if v6 { "ipv6" } else { "ipv4" }, with_length(&digits));
        let reading = read(Format::FlowSpec, &line).expect("a flow");
        let rules = &reading.rules;
        // Headers at the edges of the rules, and at the edges of what the flow says.
        let edges: String = [0u16, 1, 3, 7, 8, 79, 80, 81, 128, 255, 256, 1024, 65534]
            .map(|port| format!("deny tcp from any port {port} to any port {port} flags S/SA\ndeny 0 from any to any\n"))
            .concat();
        let edges = super::rules(edges).expect("rules");
        let keys = headers(&[rules, &edges], 100, seed);
        for (key, verdict) in keys.iter().zip(verdicts(rules, reading.default, &keys)) {
            let same_family = matches!(key, Key::V6(_)) == v6;
            let expected = if same_family && flow_holds(&lists, key) { Action::Deny } else { Action::Permit };
            prop_assert_eq!(verdict, Some(expected), "{} {:x?}", line, key);
        }
    }

    #[test]
    fn the_order_of_lines_does_not_matter(flows in some_flows(), turn in any::<prop::sample::Index>()) {
        let text = |flows: &[String]| -> String { flows.iter().map(|flow| with_length(flow) + "\n").collect() };
        let mut turned = flows.clone();
        turned.rotate_left(turn.index(flows.len()));
        turned.reverse();
        prop_assert_eq!(nlri(&text(&flows)), nlri(&text(&turned)));
    }

    #[test]
    fn flows_do_what_their_rules_do(
        rules in prop::collection::vec(rule(), 0..10),
        exabgp in any::<bool>(),
        permit in any::<bool>(),
        seed in any::<u64>(),
    ) {
        let format = if exabgp { Format::ExaBgp } else { Format::FlowSpec };
        let default = if permit { Action::Permit } else { Action::Deny };
        // For some orders there are no flows.
        let result = round_trip(&rules, format, default, seed);
        prop_assert!(result.is_ok(), "{:?}", result);
        // Rules that all do the same need no order.
        let other = if permit { Action::Deny } else { Action::Permit };
        let alike: Vec<Rule> = rules.into_iter().map(|rule| Rule { action: Some(other), ..rule }).collect();
        prop_assert_eq!(round_trip(&alike, format, default, seed), Ok(true));
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..60), v6 in any::<bool>(), skip_unsupported in any::<bool>()) {
        let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let text = format!("{} {digits}\n{}{digits}", if v6 { "ipv6" } else { "" }, with_length(""));
        let options = Options { format: Some(Format::FlowSpec), skip_unsupported, ..Options::default() };
        let _ = read_with(&text, options.clone());
        let _ = read_with(with_length(&digits), options);
    }

    #[test]
    fn a_changed_configuration_is_read_or_refused(at in 0..CONFIGURATION.len(), with in "\\PC{0,4}|[{};\\[\\]&=!<>0-9a-z/ \n]{0,8}", cut in 0..40usize) {
        let mut text = CONFIGURATION.as_bytes().to_vec();
        text.splice(at..(at + cut).min(text.len()), with.bytes());
        let _ = read(Format::ExaBgp, text);
    }
}
