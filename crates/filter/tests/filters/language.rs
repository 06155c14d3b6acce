//! What the language means, what it refuses, and in which words.

use packetloom_filter::tree::{Node, Test};
use packetloom_filter::{Filter, MAX_TEXT};
use proptest::prelude::*;

#[track_caller]
fn filter(text: &str) -> Filter {
    Filter::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

#[track_caller]
fn refuses(text: &str, message: &str) {
    match Filter::parse(text) {
        Ok(_) => panic!("{text}: taken"),
        Err(error) => {
            assert_eq!(error.to_string(), message, "{text}");
            let at = text.char_indices().nth(error.column() - 1).map_or(text.len(), |(at, _)| at);
            assert!(text[at..].starts_with(error.word()), "{text}: {error:?}");
        }
    }
}

/// Texts that mean the same.
#[track_caller]
fn same(a: &str, b: &str) {
    assert_eq!(filter(a).tree(), filter(b).tree(), "{a} | {b}");
}

#[test]
fn and_and_or_have_one_precedence() {
    same("tcp or udp and ip", "(tcp or udp) and ip");
    same("tcp and udp or ip", "(tcp and udp) or ip");
    same("tcp || udp && ip", "tcp or udp and ip");
    same("not tcp or udp", "(not tcp) or udp");
    same("! tcp", "not tcp");
    same("!!tcp", "tcp");
    same("not not not tcp", "not tcp");
    assert_ne!(filter("tcp or udp and ip").tree(), filter("tcp or (udp and ip)").tree());
}

#[test]
fn qualifiers_are_inherited() {
    same("tcp port 80 or 443", "tcp port 80 or tcp port 443");
    same("tcp dst port 80 or 443 and not 22", "tcp dst port 80 or tcp dst port 443 and not tcp dst port 22");
    same("not port 80 or 443", "(not port 80) or port 443");
    same("port (80 or 443)", "port 80 or port 443");
    same("port not 80", "not port 80");
    same("port 80 or (443 and 22)", "port 80 or (port 443 and port 22)");
    same("src host 10.0.0.1 or 10.0.0.2", "src 10.0.0.1 or src 10.0.0.2");
    same("host 10.0.0.1 or ::1", "host 10.0.0.1 or host ::1");
    same("ip proto 6 or 17", r"ip proto \tcp or \udp");
    same("net 10/8 or 172.16/12", "net 10.0.0.0/8 or net 172.16.0.0/12");
    same("net 10/8 and len / 2 = 30", "net 10.0.0.0/8 and (len / 2) = 30");
    same("portrange 1-5 or 7-9", "portrange 1-5 or portrange 7-9");
    same("port http or https", "port 80 or 443");
    refuses(
        "tcp port 80 and udp or 443",
        "column 24: \"443\" has no qualifier; expected `host`, `net`, `port` or another qualifier before it",
    );
    refuses(
        "(port 80) or 443",
        "column 14: \"443\" has no qualifier; expected `host`, `net`, `port` or another qualifier before it",
    );
}

#[test]
fn values_have_several_forms() {
    same("net 10", "net 10.0.0.0/8");
    same("net 10.1", "net 10.1.0.0 mask 255.255.0.0");
    same("net 10.1.2.3", "net 10.1.2.3/32");
    same("src and dst net 10/8", "dst and src net 10.0.0.0/8");
    same("src or dst port 80", "port 80");
    same("port 0x50", "port 0120");
    same("ether host 00:11:22:aa:bb:cc", "ether host 0011.22aa.bbcc");
    same("ether host 0:11:22:AA:bb:cc", "ether host 00-11-22-aa-bb-cc");
    same("link host 001122aabbcc", "ether host 00:11:22:aa:bb:cc");
    same("portrange 80-22", "portrange 22-80");
    same("portrange netbios-ns-netbios-ssn", "portrange 137-139");
    same("portrange 80", "port 80");
    same("icmpv6", "icmp6");
    same("tcp[13] & 2 != 0", "0 != tcp[tcpflags] & tcp-syn");
    same("tcp[13] & 2 != 0", "tcp[tcpflags] & 0x1 << 1 != 3 - 3");
    same("tcp[tcpflags]&(tcp-syn|tcp-ack)=tcp-syn", "tcp[13:1] & 18 == 2");
    same("len - 2 * 3 + 1 = 5", "(len - (2 * 3)) + 1 = 5");
    same("len & 1 << 2 | 3 = 5", "((len & (1 << 2)) | 3) = 5");
    same("60 <= len", "greater 60");
    same("len <= 60", "less 60");
    same("len > 59", "len >= 60");
    same("len < 61", "len <= 60");
    assert_eq!(filter(" \t\n").tree(), []);
    let flags = Test::TcpFlags { mask: 0x12, value: 2, equal: true };
    assert_eq!(filter("tcp[tcpflags] & (tcp-syn|tcp-ack) == tcp-syn").tree(), [Node::Test(flags)]);
}

#[test]
fn mistakes_are_told_with_their_place() {
    refuses("tpc port 80", "column 1: \"tpc\" is not a word of the filter language; did you mean \"tcp\"?");
    refuses(
        "tcp prot 80",
        "column 5: \"prot\" stands here; expected `and`, `or` or the end of the filter; did you mean \"port\"?",
    );
    refuses(
        "tcp 80",
        "column 5: \"80\" stands here; expected `and`, `or` or the end of the filter (a port is written `port` and its number)",
    );
    refuses("port 80-90", "column 6: \"80-90\" is a range; write `portrange` before it");
    refuses("port htttps", "column 6: \"htttps\" is no service; did you mean \"https\"?");
    refuses("port gopher", "column 6: \"gopher\" is not in the list of services; write the port number");
    refuses("port 65536", "column 6: 65536 is no port; expected 0 to 65535");
    refuses("port 99999999999", "column 6: \"99999999999\" is too large; expected at most 4294967295");
    refuses("port 09", "column 6: \"09\" begins with 0, which makes it octal, but has a digit above 7");
    refuses("port 80, 443", "column 8: \",\" stands here; lists are written with `or`");
    refuses(
        "host www.example.com",
        "column 6: \"www.example.com\" is no address; names of hosts are not supported: write the address",
    );
    refuses(
        "host 10.0.0",
        "column 6: \"10.0.0\" is no IPv4 address; expected four numbers from 0 to 255 such as 192.0.2.1, or `net` for a network",
    );
    refuses("host 10.0.0.0/8", "column 14: a host has no prefix length; write `net` for a network");
    refuses(
        "host 00:11:22:33:44:55",
        "column 6: \"00:11:22:33:44:55\" is an Ethernet address; write `ether host` before it",
    );
    refuses(
        "ether host 10.0.0.1",
        "column 12: \"10.0.0.1\" is no Ethernet address; expected six numbers such as 00:11:22:aa:bb:cc",
    );
    refuses(
        "net 10.1.2.3/8",
        "column 5: \"10.1.2.3\" has bits set outside of its mask; did you mean 10.0.0.0?",
    );
    refuses(
        "net 2001:db8::1/32",
        "column 5: \"2001:db8::1\" has bits set behind /32; did you mean 2001:db8::/32?",
    );
    refuses("net 10/33", "column 8: /33 is too long; expected at most /32");
    refuses(
        "net 10.0.0.0/255.0.0.0",
        "column 14: \"255.0.0.0\" is no prefix length; write `mask` in place of \"/\"",
    );
    refuses(
        "net 010/8",
        "column 5: \"010\" is no network; expected one such as 10.0.0.0/8, 10.1 or 2001:db8::/32",
    );
    refuses("net 0", "column 5: `net 0` has two readings; write 0.0.0.0/8, 0.0.0.0/0 or 0.0.0.0/32");
    refuses("ip6 host 10.0.0.1", "column 10: \"10.0.0.1\" is an IPv4 address, which does not go with `ip6`");
    refuses("arp host ::1", "column 10: \"::1\" is an IPv6 address, which does not go with `arp`");
    refuses("tcp host 10.0.0.1", "column 1: `tcp` does not go with `host`; join two conditions with `and`");
    refuses("icmp port 5", "column 1: `icmp` does not go with `port`; join two conditions with `and`");
    refuses(
        "ether",
        "column 1: `ether` does not stand alone; expected `host`, `proto`, `broadcast` or `multicast` after it",
    );
    refuses("tcp and", "column 8: the filter ends here; expected a condition such as `tcp port 443`");
    refuses("(tcp", "column 5: the filter ends here; expected \")\" for the \"(\" in column 1");
    refuses("tcp)", "column 4: \")\" closes no parenthesis");
    refuses(
        "10.0.0.1",
        "column 1: \"10.0.0.1\" has no qualifier; expected `host`, `net`, `port` or another qualifier before it",
    );
    refuses("len", "column 4: the filter ends here; expected a comparison such as `= 1` after a number");
    refuses("len = tcp", "column 7: \"tcp\" begins a condition; expected a number");
    refuses("len / 0 = 1", "column 7: this divides by 0");
    refuses("len << 32 = 1", "column 8: this shifts by more than 31 bits");
    refuses("tcp[0:3] = 1", "column 7: \"3\" is no size of a field; expected 1, 2 or 4");
    refuses(
        "len ^ 1 + 2 = 3",
        "column 5: \"^\" has no precedence beside other operators; put parentheses around its operands or its result",
    );
    refuses(
        "1 < len < 5",
        "column 9: \"<\" stands here; expected `and`, `or` or the end: a comparison has two sides",
    );
    refuses(
        "tcp-syn",
        "column 1: \"tcp-syn\" is a number; expected it in a comparison such as `tcp[tcpflags] & tcp-syn != 0`",
    );
    refuses("vlan 4096", "column 6: 4096 is no VLAN id; expected 0 to 4095");
    refuses("ip proto 256", "column 10: 256 is no IP protocol; expected 0 to 255");
    refuses(
        "ip proto nothing",
        "column 10: \"nothing\" is no known IP protocol; expected its number or a name such as `\\tcp`",
    );
    refuses("ether proto 0x42", "column 13: 66 is no EtherType; LLC service access points are not supported");
    refuses("tcp é", "column 5: \"é\" is not part of the filter language");
    refuses("é", "column 1: \"é\" is not part of the filter language");
    refuses("host é", "column 6: \"é\" is not part of the filter language");
}

#[test]
fn what_is_not_supported_is_named() {
    refuses(
        "ip6 protochain 6",
        "column 5: `protochain` is not supported; `proto` looks behind IPv6 extension headers by itself",
    );
    refuses("gateway snup", "column 1: `gateway` is not supported");
    refuses(
        "mpls 5 and ip",
        "column 1: `mpls` is not supported; tests look behind MPLS labels by themselves",
    );
    refuses("tcp and inbound", "column 9: `inbound` is not supported");
    refuses("port 80 or geneve", "column 12: `geneve` is not supported");
    refuses(
        "ip broadcast",
        "column 4: `ip broadcast` is not supported: it needs the network's mask; write `dst host` with the broadcast address",
    );
    refuses("ah[0] = 1", "column 1: `ah[…]` is not supported");
    refuses("wlan addr1 00:11:22:33:44:55", "column 1: `wlan` is not supported");
}

#[test]
fn length_and_nesting_are_bounded() {
    let long = "ip or ".repeat(MAX_TEXT / 6 - 1) + "ip";
    assert_eq!(filter(&long).tree().len(), 2 * (MAX_TEXT / 6) - 1);
    let too_long = long + &" ".repeat(100);
    refuses(
        &too_long[..],
        "column 1: a filter of 65538 bytes is too long; expected at most 65536"
            .replace("65538", &too_long.len().to_string())
            .as_str(),
    );
    for (open, inner, close) in
        [("(", "ip", ")"), ("port (", "80", ")"), ("(not ", "ip", ")"), ("tcp[", "0", "]"), ("-", "len", "")]
    {
        let nested = |depth: usize| {
            let compared = if matches!(open, "tcp[" | "-") { " = 1" } else { "" };
            let text = open.repeat(depth) + inner + &close.repeat(depth) + compared;
            // Within `port (`, only values and conditions follow.
            if open == "port (" {
                text.replace("port (port (", "port ((").replace("(port (", "((")
            } else {
                text
            }
        };
        Filter::parse(&nested(60)).unwrap_or_else(|error| panic!("{}: {error}", nested(60)));
        let error = Filter::parse(&nested(65)).expect_err("too deep");
        assert_eq!(error.message(), "more than 64 brackets or signs within each other", "{}", nested(65));
        assert!(Filter::parse(&nested(5_000)).is_err());
        // Never closed.
        assert!(Filter::parse(&open.repeat(8_000)).is_err());
    }
    let nots = "not ".repeat(10_001) + "ip";
    same(&nots, "not ip");
    let sums = "len + ".repeat(5_000) + "1 = 2";
    assert!(!filter(&sums).matches(packetloom_packet::LinkType::ETHERNET, &[0; 60], 60));
}

#[test]
fn the_page_shows_filters() {
    let page = include_str!("../../../../docs/filters.md");
    let (_, block) = page.split_once("```filter\n").expect("a block of filters");
    let (block, rest) = block.split_once("\n```").expect("its end");
    let lines = block.lines().map(|line| line.split_once(" #").map_or(line, |(filter, _)| filter));
    assert_eq!(lines.map(filter).count(), 10);
    // Words that it says are not supported.
    let (_, unsupported) = rest.split_once("## Not supported").expect("a section");
    let mut words = 0;
    for word in unsupported
        .split('`')
        .skip(1)
        .step_by(2)
        .filter(|word| word.bytes().all(|c| c.is_ascii_alphanumeric()))
    {
        match word {
            "ah" | "esp" => {}
            _ => {
                let error = Filter::parse(word).expect_err(word);
                assert!(error.message().starts_with(&format!("`{word}` is not supported")), "{error}");
                words += 1;
            }
        }
    }
    assert!(words > 20, "{words}");
}

/// Pieces of the language in any order.
fn soup() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(
        &[
            "tcp",
            "ip",
            "ip6",
            "host",
            "net",
            "port",
            "portrange",
            "proto",
            "src",
            "dst",
            "and",
            "or",
            "not",
            "!",
            "(",
            ")",
            "[",
            "]",
            ":",
            "/",
            "&",
            "|",
            "<<",
            "=",
            "!=",
            "<",
            "-",
            "+",
            "%",
            "^",
            "*",
            "10",
            "10.1",
            "10.1.2.3",
            "::1",
            "80",
            "0x",
            "1-2",
            "\\tcp",
            "\\",
            "len",
            "vlan",
            "less",
            "ether",
            "arp",
            "mask",
            "255.0.0.0",
            "aa:bb:cc:dd:ee:ff",
            "multicast",
            "tcp-syn",
            "tcpflags",
            "4294967295",
            "http",
            "&&",
            "||",
            "é",
            "mpls",
            "0",
            "ah",
            "icmp6",
        ][..],
    );
    prop::collection::vec(piece, 0..14).prop_map(|pieces| pieces.join(" "))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn no_text_panics(text in prop_oneof![soup(), any::<String>()]) {
        match Filter::parse(&text) {
            Ok(filter) => {
                filter.matches(packetloom_packet::LinkType::ETHERNET, &[0x45; 90], 90);
            }
            Err(error) => {
                prop_assert!(error.column() <= text.chars().count() + 1);
                let begin = text.char_indices().nth(error.column() - 1).map_or(text.len(), |(at, _)| at);
                prop_assert!(text[begin..].starts_with(error.word()), "{:?} {:?}", text, error);
            }
        }
    }
}
