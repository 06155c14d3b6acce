//! ClassBench filter sets.

use packetloom_classify::Rule;
use packetloom_classify::rule::{Addresses, PortRange, TcpFlagMatch};

use super::{p4, p6, rule, rules, rules_with};

const BASE: &str = "@10.0.0.0/8\t0.0.0.0/0\t0 : 65535\t0 : 65535\t";

fn base() -> Rule {
    Rule { line: 1, addresses: Addresses::V4(p4("10.0.0.0/8"), p4("0.0.0.0/0")), ..Rule::any(None) }
}

#[test]
fn good_lines_give_exactly_these_rules() {
    let range = |low, high| PortRange { low, high };
    for (text, expected) in [
        (
            "@198.51.100.7/32\t192.0.2.0/24\t0 : 65535\t1521 : 1521\t0x06/0xFF\t0x0000/0x0000\t",
            Rule {
                addresses: Addresses::V4(p4("198.51.100.7/32"), p4("192.0.2.0/24")),
                protocol: Some(6),
                destination_ports: range(1521, 1521),
                ..base()
            },
        ),
        // Blanks instead of tabs, no flags column, numbers in hexadecimal of any case and length.
        ("@10.0.0.0/8 0.0.0.0/0 0 : 65535 0 : 65535 0X11/0xfF", Rule { protocol: Some(17), ..base() }),
        ("@10.0.0.0/8 0.0.0.0/0 0 : 65535 0 : 65535 0x0001/0x00fF", Rule { protocol: Some(1), ..base() }),
        // A mask of 0 leaves the protocol open, whatever stands before it.
        ("@10.0.0.0/8 0.0.0.0/0 0 : 65535 0 : 65535 0x06/0x00", base()),
        // Bits past a prefix's length do not matter.
        ("@10.9.8.7/8 1.2.3.4/0 0 : 65535 0 : 65535 0x00/0x00 0x0000/0x0000", base()),
        // Ports of any protocol: a filter may ask for what no packet has.
        (
            "@10.0.0.0/8 0.0.0.0/0 0 : 0 65535 : 65535 0x01/0xff",
            Rule {
                protocol: Some(1),
                source_ports: range(0, 0),
                destination_ports: range(65535, 65535),
                ..base()
            },
        ),
        (
            "@10.0.0.0/8 0.0.0.0/0 1024 : 65535 20 : 21 0x00/0x00",
            Rule { source_ports: range(1024, 65535), destination_ports: range(20, 21), ..base() },
        ),
    ] {
        assert_eq!(rule(text), expected, "{text}");
    }
}

#[test]
fn a_file_without_filters_is_refused() {
    let error = super::verdicts::read(packetloom_classify::formats::Format::ClassBench, "# nothing\n");
    assert_eq!(
        error.expect_err("no filter"),
        "f: no filter; expected lines such as \"@192.0.2.0/24 0.0.0.0/0 0 : 65535 80 : 80 0x06/0xFF\""
    );
}

#[test]
fn prefixes_are_of_either_family() {
    let expected = Rule {
        addresses: Addresses::V6(p6("2001:db8:8000::/33"), p6("::/0")),
        protocol: Some(17),
        destination_ports: PortRange { low: 53, high: 53 },
        ..base()
    };
    let text = "@2001:db8:8000::/33\t::/0\t0 : 65535\t53 : 53\t0x11/0xFF\t0x0000/0x0000\t";
    assert_eq!(rule(text), expected);
}

#[test]
fn the_flags_column_means_what_the_protocol_makes_of_it() {
    let tcp = |set, mask| Rule { protocol: Some(6), tcp_flags: Some(TcpFlagMatch { set, mask }), ..base() };
    let icmp = |icmp_type, icmp_code| Rule { protocol: Some(1), icmp_type, icmp_code, ..base() };
    for (columns, expected) in [
        ("0x06/0xff 0x0200/0x1200", tcp(0x02, 0x12)),
        ("0x06/0xff 0x0000/0x0400", tcp(0, 0x04)),
        ("0x06/0xff 0xff00/0xff00", tcp(0xff, 0xff)),
        // What the mask leaves out is not asked for.
        ("0x06/0xff 0xffff/0x0200", tcp(0x02, 0x02)),
        ("0x06/0xff 0xffff/0x0000", Rule { protocol: Some(6), ..base() }),
        ("0x01/0xff 0x0800/0xff00", icmp(Some(8), None)),
        ("0x01/0xff 0x0304/0xffff", icmp(Some(3), Some(4))),
        ("0x01/0xff 0x0000/0xffff", icmp(Some(0), Some(0))),
        ("0x01/0xff 0x0304/0x0000", icmp(None, None)),
        ("0x11/0xff 0x1234/0x0000", Rule { protocol: Some(17), ..base() }),
        ("0x00/0x00 0x0000/0x0000", base()),
    ] {
        assert_eq!(rule(&format!("{BASE}{columns}")), expected, "{columns}");
    }
}

#[test]
fn a_flags_column_without_a_meaning_is_refused() {
    for (columns, flags) in [
        // A low byte with TCP, a part of a type or of a code, a code without a type.
        ("0x06/0xff 0x0000/0x0001", "0x0000/0x0001"),
        ("0x06/0xff 0x0200/0xffff", "0x0200/0xffff"),
        ("0x01/0xff 0x0800/0xf000", "0x0800/0xf000"),
        ("0x01/0xff 0x0804/0xff0f", "0x0804/0xff0f"),
        ("0x01/0xff 0x0004/0x00ff", "0x0004/0x00ff"),
        // Other protocols, or none.
        ("0x11/0xff 0x0200/0x0200", "0x0200/0x0200"),
        ("0x3a/0xff 0x8000/0xff00", "0x8000/0xff00"),
        ("0x06/0x00 0x0200/0x0200", "0x0200/0x0200"),
    ] {
        let message = format!(
            "f:1: flags {flags}; expected TCP flags in the high byte of a TCP filter, an ICMP type in that of an ICMP \
             filter, or a mask of 0 (--ignore-flags leaves the column out)"
        );
        let text = format!("{BASE}{columns}");
        assert_eq!(rules(&text).unwrap_err(), message, "{columns}");
        // Left out, it may say anything, if only it is a pair of numbers.
        let rule = &rules_with(&text, true).unwrap().rules[0];
        assert_eq!((rule.tcp_flags, rule.icmp_type, rule.icmp_code), (None, None, None), "{columns}");
    }
    let tcp = format!("{BASE}0x06/0xff 0x0200/0x1200");
    assert_eq!(rules_with(tcp, true).unwrap().rules, [Rule { protocol: Some(6), ..base() }]);
    assert_eq!(
        rules_with(format!("{BASE}0x06/0xff 2/2"), true).unwrap_err(),
        "f:1: \"2/2\"; expected value/mask, each from 0x0 to 0xffff"
    );
}

#[test]
fn bad_lines_are_refused_with_what_was_expected() {
    const EXPECTED: &str =
        "expected @source/len destination/len low : high low : high protocol/mask [flags/mask]";
    let prefix = |word| format!("{word:?}; expected a prefix such as 192.0.2.0/24 or 2001:db8::/32");
    let protocol = |word| format!("{word:?}; expected value/mask, each from 0x0 to 0xff");
    let flags = |word| format!("{word:?}; expected value/mask, each from 0x0 to 0xffff");
    for (text, message) in [
        (
            "10.0.0.0/8 0.0.0.0/0 0 : 1 0 : 1 0x06/0xff",
            format!("\"10.0.0.0/8\" begins without '@'; {EXPECTED}"),
        ),
        ("@ 10.0.0.0/8 0.0.0.0/0 0 : 1 0 : 1 0x06/0xff", prefix("")),
        ("@10.0.0.0", prefix("10.0.0.0")),
        ("@10.0.0.0/33", prefix("10.0.0.0/33")),
        ("@10.0.0.0/8 0.0.0.0/-1", prefix("0.0.0.0/-1")),
        ("@10.0.0.0/8 10.0.0/8", prefix("10.0.0/8")),
        ("@2001:db8::/129", prefix("2001:db8::/129")),
        ("@10.0.0.0/8 ::/0", "source and destination of two families; expected prefixes of one".into()),
        ("@10.0.0.0/8", format!("the destination is missing; {EXPECTED}")),
        ("@10.0.0.0/8 0.0.0.0/0", format!("the source port range is missing; {EXPECTED}")),
        ("@10.0.0.0/8 0.0.0.0/0 0 : 1 2 :", format!("the destination port range is missing; {EXPECTED}")),
        ("@10.0.0.0/8 0.0.0.0/0 0 : 1 2 : 3", format!("the protocol is missing; {EXPECTED}")),
        ("@10.0.0.0/8 0.0.0.0/0 http : 1", "port \"http\"; expected a number from 0 to 65535".into()),
        ("@10.0.0.0/8 0.0.0.0/0 0 : 65536", "port \"65536\"; expected a number from 0 to 65535".into()),
        ("@10.0.0.0/8 0.0.0.0/0 0:1 2:3", "port \"0:1\"; expected a number from 0 to 65535".into()),
        ("@10.0.0.0/8 0.0.0.0/0 0 - 1", "\"-\" between two ports; expected \":\"".into()),
        (
            "@10.0.0.0/8 0.0.0.0/0 2 : 1 0 : 1 0x06/0xff",
            "the source port range runs from 2 down to 1; expected low : high".into(),
        ),
        (
            "@10.0.0.0/8 0.0.0.0/0 0 : 1 65535 : 0 0x06/0xff",
            "the destination port range runs from 65535 down to 0; expected low : high".into(),
        ),
        ("@10.0.0.0/8 0.0.0.0/0 0 : 1 0 : 1 tcp", protocol("tcp")),
        ("@10.0.0.0/8 0.0.0.0/0 0 : 1 0 : 1 6/255", protocol("6/255")),
        ("@10.0.0.0/8 0.0.0.0/0 0 : 1 0 : 1 0x06", protocol("0x06")),
        ("@10.0.0.0/8 0.0.0.0/0 0 : 1 0 : 1 0x/0xff", protocol("0x/0xff")),
        ("@10.0.0.0/8 0.0.0.0/0 0 : 1 0 : 1 0x+6/0xff", protocol("0x+6/0xff")),
        ("@10.0.0.0/8 0.0.0.0/0 0 : 1 0 : 1 0x106/0xff", protocol("0x106/0xff")),
        ("@10.0.0.0/8 0.0.0.0/0 0 : 1 0 : 1 0x06/0x1ff", protocol("0x06/0x1ff")),
        ("@10.0.0.0/8 0.0.0.0/0 0 : 1 0 : 1 0x06/0x0f", "protocol mask 0x0f; expected 0x00 or 0xff".into()),
        ("@10.0.0.0/8 0.0.0.0/0 0 : 1 0 : 1 0x06/0xff 0x10000/0x0", flags("0x10000/0x0")),
        ("@10.0.0.0/8 0.0.0.0/0 0 : 1 0 : 1 0x06/0xff 0x0000", flags("0x0000")),
        (
            "@10.0.0.0/8 0.0.0.0/0 0 : 1 0 : 1 0x06/0xff 0x0000/0x0000 7",
            format!("\"7\" after the flags; {EXPECTED}"),
        ),
    ] {
        // The line before makes it a ClassBench file.
        let text = format!("@10.0.0.0/8 0.0.0.0/0 0 : 1 0 : 1 0x06/0xff\n{text}\n");
        assert_eq!(rules(&text).unwrap_err(), format!("f:2: {message}"), "{text}");
    }
}
