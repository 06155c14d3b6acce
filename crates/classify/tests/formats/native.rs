//! Packetloom's own rules.

use packetloom_classify::formats::Format;
use packetloom_classify::rule::{Addresses, Fragments, PortRange, TcpFlagMatch};
use packetloom_classify::{Action, Rule};

use super::verdicts::{read, shown};
use super::{p4, p6, rule, rules};

/// A rule of line 1 that asks for nothing.
fn any(action: Action) -> Rule {
    Rule { line: 1, ..Rule::any(Some(action)) }
}

fn permit() -> Rule {
    any(Action::Permit)
}

const fn ports(low: u16, high: u16) -> PortRange {
    PortRange { low, high }
}

#[test]
fn good_lines_give_exactly_these_rules() {
    let v4 = |source, destination| Addresses::V4(p4(source), p4(destination));
    let v6 = |source, destination| Addresses::V6(p6(source), p6(destination));
    let every4 = "0.0.0.0/0";
    let every6 = "::/0";
    let flags = |set, mask| Some(TcpFlagMatch { set, mask });
    for (text, expected) in [
        ("permit any from any to any", permit()),
        ("deny any from any to any", any(Action::Deny)),
        ("reflect any from any to any", any(Action::Reflect)),
        // Protocols by name and number.
        ("permit tcp from any to any", Rule { protocol: Some(6), ..permit() }),
        ("permit 6 from any to any", Rule { protocol: Some(6), ..permit() }),
        ("permit icmpv6 from any to any", Rule { protocol: Some(58), ..permit() }),
        ("permit gre from any to any", Rule { protocol: Some(47), ..permit() }),
        ("permit 0 from any to any", Rule { protocol: Some(0), ..permit() }),
        ("permit 255 from any to any", Rule { protocol: Some(255), ..permit() }),
        // Addresses: hosts, prefixes, and `any` in the family of the other side.
        (
            "permit any from 10.1.2.3 to 10.0.0.0/8",
            Rule { addresses: v4("10.1.2.3/32", "10.0.0.0/8"), ..permit() },
        ),
        ("permit any from 10.1.2.3/32 to any", Rule { addresses: v4("10.1.2.3/32", every4), ..permit() }),
        ("permit any from any to 128.0.0.0/1", Rule { addresses: v4(every4, "128.0.0.0/1"), ..permit() }),
        ("permit any from 0.0.0.0/0 to any", Rule { addresses: v4(every4, every4), ..permit() }),
        (
            "permit any from any to 255.255.255.255",
            Rule { addresses: v4(every4, "255.255.255.255/32"), ..permit() },
        ),
        (
            "permit any from 2001:db8::1 to fe80::/10",
            Rule { addresses: v6("2001:db8::1/128", "fe80::/10"), ..permit() },
        ),
        ("permit any from any to 2001:DB8::/32", Rule { addresses: v6(every6, "2001:db8::/32"), ..permit() }),
        ("permit any from ::/0 to any", Rule { addresses: v6(every6, every6), ..permit() }),
        ("permit any from ::ffff:0:0/96 to any", Rule { addresses: v6("::ffff:0:0/96", every6), ..permit() }),
        // Ports, of protocols that have them and of any.
        (
            "permit tcp from any port 1024-65535 to any port 443",
            Rule {
                protocol: Some(6),
                source_ports: ports(1024, 65535),
                destination_ports: ports(443, 443),
                ..permit()
            },
        ),
        (
            "permit udp from any port 0 to any",
            Rule { protocol: Some(17), source_ports: ports(0, 0), ..permit() },
        ),
        (
            "permit sctp from any to any port 65535",
            Rule { protocol: Some(132), destination_ports: ports(65535, 65535), ..permit() },
        ),
        ("permit any from any to any port 53", Rule { destination_ports: ports(53, 53), ..permit() }),
        ("permit any from any port 7-7 to any", Rule { source_ports: ports(7, 7), ..permit() }),
        ("permit tcp from any to any port 0-65535", Rule { protocol: Some(6), ..permit() }),
        // ICMP, TCP flags, fragments, names.
        ("permit icmp from any to any type 8", Rule { protocol: Some(1), icmp_type: Some(8), ..permit() }),
        (
            "permit icmp from any to any type 3 code 0",
            Rule { protocol: Some(1), icmp_type: Some(3), icmp_code: Some(0), ..permit() },
        ),
        (
            "permit icmpv6 from any to any type 255 code 255",
            Rule { protocol: Some(58), icmp_type: Some(255), icmp_code: Some(255), ..permit() },
        ),
        ("permit 58 from any to any type 135", Rule { protocol: Some(58), icmp_type: Some(135), ..permit() }),
        (
            "permit tcp from any to any flags S/SA",
            Rule { protocol: Some(6), tcp_flags: flags(0x02, 0x12), ..permit() },
        ),
        (
            "permit tcp from any to any flags /R",
            Rule { protocol: Some(6), tcp_flags: flags(0, 0x04), ..permit() },
        ),
        (
            "permit 6 from any to any flags CEUAPRSF/FSRPAUEC",
            Rule { protocol: Some(6), tcp_flags: flags(0xff, 0xff), ..permit() },
        ),
        ("permit any from any to any fragment any", Rule { fragments: Fragments::Any, ..permit() }),
        ("permit any from any to any fragment none", Rule { fragments: Fragments::None, ..permit() }),
        ("permit any from any to any fragment first", Rule { fragments: Fragments::First, ..permit() }),
        ("permit any from any to any fragment later", Rule { fragments: Fragments::Later, ..permit() }),
        (
            "permit any from any to any fragment not-later",
            Rule { fragments: Fragments::NotLater, ..permit() },
        ),
        ("permit any from any to any log", Rule { log: true, ..permit() }),
        ("permit any from any to any mark 7", Rule { mark: 7, ..permit() }),
        ("permit any from any to any mark 0xFFffFFff", Rule { mark: u32::MAX, ..permit() }),
        ("permit any from any to any id fragment", Rule { id: Some("fragment".into()), ..permit() }),
        // Everything at once; what follows the destination may come in any order.
        (
            "deny tcp from 10.0.0.0/8 port 1-2 to 192.0.2.1 port 80 id web-1 fragment none flags SA/SA",
            Rule {
                addresses: v4("10.0.0.0/8", "192.0.2.1/32"),
                protocol: Some(6),
                source_ports: ports(1, 2),
                destination_ports: ports(80, 80),
                tcp_flags: flags(0x12, 0x12),
                fragments: Fragments::None,
                id: Some("web-1".into()),
                ..any(Action::Deny)
            },
        ),
    ] {
        assert_eq!(rule(text), expected, "{text}");
    }
}

#[test]
fn bad_lines_are_refused_with_what_was_expected() {
    for (text, message) in [
        ("allow any from any to any", "\"allow\"; expected permit, deny or reflect"),
        ("Permit any from any to any", "\"Permit\"; expected permit, deny or reflect"),
        ("permit", "the line ends; expected a protocol"),
        (
            "permit tpc from any to any",
            "protocol \"tpc\"; expected any, a name such as tcp, or a number from 0 to 255",
        ),
        (
            "permit TCP from any to any",
            "protocol \"TCP\"; expected any, a name such as tcp, or a number from 0 to 255",
        ),
        (
            "permit -1 from any to any",
            "protocol \"-1\"; expected any, a name such as tcp, or a number from 0 to 255",
        ),
        ("permit 256 from any to any", "protocol \"256\"; expected a number from 0 to 255"),
        ("permit tcp", "the line ends; expected \"from\""),
        ("permit tcp any to any", "\"any\"; expected \"from\""),
        ("permit tcp from", "the line ends; expected a source address"),
        ("permit tcp from any", "the line ends; expected \"to\""),
        ("permit tcp from any any", "\"any\"; expected \"to\""),
        ("permit tcp from any to", "the line ends; expected a destination address"),
        // Addresses.
        ("permit any from ten to any", "address \"ten\"; expected any, an IPv4 or IPv6 address, or a prefix"),
        (
            "permit any from 10.0.0 to any",
            "address \"10.0.0\"; expected any, an IPv4 or IPv6 address, or a prefix",
        ),
        (
            "permit any from 10.0.0.256 to any",
            "address \"10.0.0.256\"; expected any, an IPv4 or IPv6 address, or a prefix",
        ),
        (
            "permit any from 010.0.0.1 to any",
            "address \"010.0.0.1\"; expected any, an IPv4 or IPv6 address, or a prefix",
        ),
        (
            "permit any from any/0 to any",
            "address \"any/0\"; expected any, an IPv4 or IPv6 address, or a prefix",
        ),
        (
            "permit any from [::1] to any",
            "address \"[::1]\"; expected any, an IPv4 or IPv6 address, or a prefix",
        ),
        (
            "permit any from 1::2::3 to any",
            "address \"1::2::3\"; expected any, an IPv4 or IPv6 address, or a prefix",
        ),
        ("permit any from 10.0.0.0/33 to any", "prefix length \"33\"; expected a number from 0 to 32"),
        ("permit any from 10.0.0.0/ to any", "prefix length \"\"; expected a number from 0 to 32"),
        ("permit any from 10.0.0.0/+8 to any", "prefix length \"+8\"; expected a number from 0 to 32"),
        (
            "permit any from 10.0.0.0/255.0.0.0 to any",
            "prefix length \"255.0.0.0\"; expected a number from 0 to 32",
        ),
        ("permit any from any to ::/129", "prefix length \"129\"; expected a number from 0 to 128"),
        (
            "permit any from 10.0.0.1/8 to any",
            "\"10.0.0.1/8\" has bits set past its length; expected 10.0.0.0/8",
        ),
        (
            "permit any from any to fe80::1/10",
            "\"fe80::1/10\" has bits set past its length; expected fe80::/10",
        ),
        (
            "permit any from 1.0.0.0/0 to any",
            "\"1.0.0.0/0\" has bits set past its length; expected 0.0.0.0/0",
        ),
        (
            "permit any from 10.0.0.0/8 to ::/0",
            "one address is IPv4 and the other IPv6; expected both of one family",
        ),
        (
            "permit any from fe80::1 to 10.0.0.1",
            "one address is IPv4 and the other IPv6; expected both of one family",
        ),
        // Ports.
        (
            "permit icmp from any port 8 to any",
            "\"port\" with a protocol that has none; expected tcp, udp, sctp or any",
        ),
        (
            "permit gre from any to any port 8",
            "\"port\" with a protocol that has none; expected tcp, udp, sctp or any",
        ),
        ("permit tcp from any port to any", "port \"to\"; expected a number from 0 to 65535"),
        ("permit tcp from any to any port", "the line ends; expected a port or a range of ports"),
        ("permit tcp from any to any port http", "port \"http\"; expected a number from 0 to 65535"),
        ("permit tcp from any to any port 65536", "port \"65536\"; expected a number from 0 to 65535"),
        (
            "permit tcp from any to any port 99999999999999999999",
            "port \"99999999999999999999\"; expected a number from 0 to 65535",
        ),
        ("permit tcp from any to any port 80-", "port \"\"; expected a number from 0 to 65535"),
        ("permit tcp from any to any port -80", "port \"\"; expected a number from 0 to 65535"),
        ("permit tcp from any to any port 1-2-3", "port \"2-3\"; expected a number from 0 to 65535"),
        ("permit tcp from any to any port 9-8", "ports \"9-8\" run downwards; expected 8-9"),
        // ICMP.
        (
            "permit tcp from any to any type 8",
            "\"type\" with a protocol that has none; expected icmp or icmpv6",
        ),
        (
            "permit any from any to any code 0",
            "\"code\" with a protocol that has none; expected icmp or icmpv6",
        ),
        ("permit icmp from any to any type", "the line ends; expected an ICMP type"),
        ("permit icmp from any to any type echo", "ICMP type \"echo\"; expected a number from 0 to 255"),
        ("permit icmp from any to any type 256", "ICMP type \"256\"; expected a number from 0 to 255"),
        ("permit icmp from any to any type 3 code", "the line ends; expected an ICMP code"),
        ("permit icmp from any to any type 3 code 256", "ICMP code \"256\"; expected a number from 0 to 255"),
        ("permit icmp from any to any code 3", "\"code\" without a type; expected \"type N code N\""),
        ("permit icmp from any to any type 3 type 4", "\"type\" stands twice"),
        // TCP flags.
        ("permit udp from any to any flags S/S", "\"flags\" with a protocol that has none; expected tcp"),
        ("permit any from any to any flags S/S", "\"flags\" with a protocol that has none; expected tcp"),
        ("permit tcp from any to any flags", "the line ends; expected flags such as S/SA"),
        ("permit tcp from any to any flags S", "flags \"S\"; expected SET/MASK such as S/SA"),
        ("permit tcp from any to any flags s/s", "flags \"s\"; expected letters of FSRPAUEC"),
        ("permit tcp from any to any flags S/SX", "flags \"SX\"; expected letters of FSRPAUEC"),
        (
            "permit tcp from any to any flags S/A",
            "flags \"S/A\"; expected a mask that holds every flag of the set",
        ),
        (
            "permit tcp from any to any flags /",
            "flags \"/\"; expected a mask that holds every flag of the set",
        ),
        // The rest.
        (
            "permit any from any to any fragment",
            "the line ends; expected any, none, first, later or not-later",
        ),
        (
            "permit any from any to any fragment last",
            "fragment \"last\"; expected any, none, first, later or not-later",
        ),
        ("permit any from any to any log log", "\"log\" stands twice"),
        ("permit any from any to any mark", "the line ends; expected a mark"),
        (
            "permit any from any to any mark 0",
            "mark \"0\"; expected a number from 1 to 4294967295 or 0x1 to 0xffffffff",
        ),
        (
            "permit any from any to any mark 4294967296",
            "mark \"4294967296\"; expected a number from 1 to 4294967295 or 0x1 to 0xffffffff",
        ),
        (
            "permit any from any to any mark 0x+1",
            "mark \"0x+1\"; expected a number from 1 to 4294967295 or 0x1 to 0xffffffff",
        ),
        (
            "permit any from any to any mark 0x",
            "mark \"0x\"; expected a number from 1 to 4294967295 or 0x1 to 0xffffffff",
        ),
        ("permit any from any to any fragment any fragment any", "\"fragment\" stands twice"),
        ("permit any from any to any id", "the line ends; expected a name"),
        (
            "permit any from any to any id a b",
            "\"b\"; expected type, code, flags, fragment, in, out, state, mark, log, id, or the end of the line",
        ),
        (
            "permit tcp from any to any established",
            "\"established\"; expected type, code, flags, fragment, in, out, state, mark, log, id, or the end of the line",
        ),
        // Blanks are those of ASCII: others are part of a word, and shown as what they are.
        ("permit\u{a0}any from any to any", "\"permit\\u{a0}any\"; expected permit, deny or reflect"),
    ] {
        // The second good line shows that the number is that of the bad one.
        let text = format!("permit any from any to any\n# good so far\n{text}\ndeny any from any to any\n");
        assert_eq!(rules(&text).unwrap_err(), format!("f:3: {}", crate::told(message)), "{text}");
    }
}

#[test]
fn lists_and_sets_become_several_rules() {
    let shown = |text: &str| shown(Format::Native, text);
    assert_eq!(
        shown(
            "permit tcp from 10.0.0.1,10.0.0.0/31,192.0.2.0/24 port 1,3 to any port 80,81,443 log # both\n"
        ),
        [
            "permit tcp from 10.0.0.0/31 port 1 to 0.0.0.0/0 port 80-81 log # both",
            "permit tcp from 10.0.0.0/31 port 1 to 0.0.0.0/0 port 443 log # both",
            "permit tcp from 10.0.0.0/31 port 3 to 0.0.0.0/0 port 80-81 log # both",
            "permit tcp from 10.0.0.0/31 port 3 to 0.0.0.0/0 port 443 log # both",
            "permit tcp from 192.0.2.0/24 port 1 to 0.0.0.0/0 port 80-81 log # both",
            "permit tcp from 192.0.2.0/24 port 1 to 0.0.0.0/0 port 443 log # both",
            "permit tcp from 192.0.2.0/24 port 3 to 0.0.0.0/0 port 80-81 log # both",
            "permit tcp from 192.0.2.0/24 port 3 to 0.0.0.0/0 port 443 log # both",
        ]
    );
    let sets =
        "set web = 80, 443\nset more = @web,8080-8081\nset inside=10.0.0.0/8 , 2001:db8::/32\t# here\n";
    for (line, expected) in [
        (
            "permit tcp from any to any port @web",
            vec!["permit tcp from any to any port 80", "permit tcp from any to any port 443"],
        ),
        (
            "permit tcp from any to any port @more,1",
            vec![
                "permit tcp from any to any port 1",
                "permit tcp from any to any port 80",
                "permit tcp from any to any port 443",
                "permit tcp from any to any port 8080-8081",
            ],
        ),
        // Both families, or the one of the other end.
        (
            "deny any from @inside to any",
            vec!["deny any from 10.0.0.0/8 to 0.0.0.0/0", "deny any from 2001:db8::/32 to ::/0"],
        ),
        (
            "deny any from @inside to @inside",
            vec!["deny any from 10.0.0.0/8 to 10.0.0.0/8", "deny any from 2001:db8::/32 to 2001:db8::/32"],
        ),
        ("deny any from @inside to 192.0.2.1", vec!["deny any from 10.0.0.0/8 to 192.0.2.1/32"]),
        ("deny any from fe80::1 to @inside", vec!["deny any from fe80::1/128 to 2001:db8::/32"]),
        // Halves that make a whole.
        ("deny any from 0.0.0.0/1,128.0.0.0/1 to any", vec!["deny any from 0.0.0.0/0 to 0.0.0.0/0"]),
        ("deny udp from any port 0-99,100-65535 to any", vec!["deny udp from any to any"]),
    ] {
        assert_eq!(shown(&format!("{sets}{line}\n")), expected, "{line}");
    }
    // All rules of a line say where they come from.
    let rules = rules(format!("{sets}permit tcp from @inside to any port @web id a\n")).unwrap().rules;
    assert_eq!(rules.len(), 4);
    assert!(rules.iter().all(|rule| rule.line == 4 && rule.id.as_deref() == Some("a")));
}

#[test]
fn bad_sets_and_lists_are_refused_with_what_was_expected() {
    for (text, message) in [
        ("set web 80", "a set without \"=\"; expected set NAME = ADDRESSES or PORTS"),
        ("set = 80", "set name \"\"; expected a word without '@' and ','"),
        ("set a b = 80", "set name \"a b\"; expected a word without '@' and ','"),
        ("set @a = 80", "set name \"@a\"; expected a word without '@' and ','"),
        ("set a =", "address \"\"; expected any, an IPv4 or IPv6 address, or a prefix"),
        ("set a = 80,", "port \"\"; expected a number from 0 to 65535"),
        ("set a = 80, 10.0.0.1", "port \"10.0.0.1\"; expected a number from 0 to 65535"),
        ("set a = 10.0.0.1, 80", "address \"80\"; expected any, an IPv4 or IPv6 address, or a prefix"),
        ("set a = any", "address \"any\"; expected any, an IPv4 or IPv6 address, or a prefix"),
        ("set a = @none", "set \"none\"; expected the name of a set before this line"),
        ("set ports = 7", "set \"ports\" stands twice"),
        ("permit tcp from @ports to any", "\"@ports\" holds ports; expected addresses"),
        ("permit tcp from any port @net to any", "\"@net\" holds addresses; expected ports"),
        ("permit tcp from any to @none", "set \"none\"; expected the name of a set before this line"),
        (
            "permit tcp from 10.0.0.1,any to any",
            "address \"any\"; expected any, an IPv4 or IPv6 address, or a prefix",
        ),
        ("permit tcp from any to any port 1,2-1", "ports \"2-1\" run downwards; expected 1-2"),
        (
            "permit tcp from @net to ::1",
            "one address is IPv4 and the other IPv6; expected both of one family",
        ),
        (
            "permit icmp from any port @ports to any",
            "\"port\" with a protocol that has none; expected tcp, udp, sctp or any",
        ),
    ] {
        let text = format!("set ports = 1,2,5\nset net = 10.0.0.0/8\n{text}\n");
        assert_eq!(rules(&text).unwrap_err(), format!("f:3: {}", crate::told(message)), "{text}");
    }
    // A line that many rules would come from, and sets that grow out of each other.
    let many = |count: u32, to: u32| {
        (0..count).map(|n| format!("{to}.{}.{}.1", n >> 8, n & 0xff)).collect::<Vec<_>>().join(",")
    };
    let text = format!("permit any from {} to {}\n", many(1_100, 10), many(1_000, 20));
    assert_eq!(
        rules(&text).unwrap_err(),
        "f:1: lists, negations and jumps that make more than 1048576 rules"
    );
    let mut text = format!("set s0 = {}\n", many(4_000, 10));
    (1..20).for_each(|n| text += &format!("set s{n} = {}\n", vec![format!("@s{}", n - 1); 8_000].join(",")));
    assert_eq!(rules(&text).unwrap_err(), "f:2: more than 1048576 addresses or ports in a list");
    // Sets count wherever they are used.
    let mut text = format!("set s = {}\n", many(4_000, 10));
    (0..300).for_each(|_| text += "permit any from @s,::1 to ::2\n");
    assert_eq!(
        rules(&text).unwrap_err(),
        "f:262: lists, negations and jumps that make more than 1048576 rules"
    );
}

#[test]
fn what_no_rule_matches_has_a_default() {
    let default =
        |text: &str| read(Format::Native, text).map(|reading| (reading.default, reading.rules.rules.len()));
    assert_eq!(default("permit any from any to any\n"), Ok((None, 1)));
    assert_eq!(default("permit any from any to any\ndefault deny # the rest\n"), Ok((Some(Action::Deny), 1)));
    assert_eq!(default("default permit\ndeny any from any to any\n"), Ok((Some(Action::Permit), 1)));
    for (text, message) in [
        ("default", "f:1: the line ends; expected permit or deny"),
        ("default reflect", "f:1: \"reflect\"; expected permit or deny"),
        ("default drop", "f:1: \"drop\"; expected permit or deny"),
        ("default deny all", "f:1: \"all\"; expected the end of the line"),
        ("default deny\ndefault deny", "f:2: \"default\" stands twice"),
    ] {
        assert_eq!(default(text), Err(message.into()));
    }
}

#[test]
fn comments_stay_with_their_rules() {
    let comment = |text: &str| rule(text).comment.map(String::from);
    assert_eq!(comment("permit any from any to any"), None);
    assert_eq!(comment("permit any from any to any #"), None);
    assert_eq!(comment("permit any from any to any# why # not "), Some("why # not".into()));
    assert_eq!(comment("permit any from any to any # a\tb\u{7}c"), Some("a b c".into()));
    let long = format!("permit any from any to any # {}", "ü".repeat(200));
    assert_eq!(comment(&long), Some("ü".repeat(128)));
}
