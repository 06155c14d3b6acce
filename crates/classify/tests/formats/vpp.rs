//! Access lists of VPP's ACL plugin.

use packetloom_classify::formats::{Format, Options};
use packetloom_classify::rule::{Addresses, Fragments, TcpFlagMatch};
use packetloom_classify::{Action, Rule};
use proptest::prelude::*;

use super::verdicts::{in_words, read, read_with, round_trip, shown, written};
use crate::strategies::{action, addresses, ports, protocol};

#[test]
fn it_is_recognised_behind_a_prompt() {
    let recognised = |text: &str| read_with(text, Options::default()).map(|reading| reading.format);
    for before in ["", "vpp# ", "DBGvpp# ", "# lists\n\nvpp# ", "vpp#\nvpp# "] {
        let text = format!("{before}set acl-plugin acl permit proto 6\n");
        assert_eq!(recognised(&text), Ok(Format::Vpp), "{text}");
    }
    let shown = "vpp# show acl-plugin acl\nacl-index 0 count 1 tag {}\n          0: ipv4 deny src 0.0.0.0/0 dst 0.0.0.0/0 proto 6 sport 0-65535 dport 23\n";
    assert_eq!(recognised(shown), Ok(Format::Vpp));
    assert!(recognised("vpp# show version\n").is_err());
}

#[test]
fn rules() {
    for (rule, expected) in [
        ("permit", &["permit any from 0.0.0.0/0 to 0.0.0.0/0"][..]),
        ("deny src 10.0.0.0/8", &["deny any from 10.0.0.0/8 to 0.0.0.0/0"]),
        ("deny dst 10.0.0.1/32", &["deny any from 0.0.0.0/0 to 10.0.0.1/32"]),
        ("permit src 2001:db8::/32", &["permit any from 2001:db8::/32 to ::/0"]),
        ("permit src any dst 2001:db8::/32", &["permit any from ::/0 to 2001:db8::/32"]),
        ("permit src any dst any", &["permit any from 0.0.0.0/0 to 0.0.0.0/0"]),
        // Words come in any order, and no action permits.
        ("proto 47 src 10.0.0.0/8", &["permit gre from 10.0.0.0/8 to 0.0.0.0/0"]),
        ("action 0 proto 6", &["deny tcp from 0.0.0.0/0 to 0.0.0.0/0"]),
        ("permit+reflect src 10.0.0.0/8", &["reflect any from 10.0.0.0/8 to 0.0.0.0/0"]),
        ("action 2 proto 6", &["reflect tcp from 0.0.0.0/0 to 0.0.0.0/0"]),
        ("deny proto 0 sport 0-65535 dport 0", &["deny any from 0.0.0.0/0 to 0.0.0.0/0"]),
        // Later fragments are matched by addresses and protocol, whatever the action.
        (
            "permit src 10.0.0.0/8 proto 6 sport 1000-2000 dport 80",
            &[
                "permit tcp from 10.0.0.0/8 port 1000-2000 to 0.0.0.0/0 port 80",
                "permit tcp from 10.0.0.0/8 to 0.0.0.0/0 fragment later",
            ],
        ),
        (
            "deny proto 17 dport 53",
            &[
                "deny udp from 0.0.0.0/0 to 0.0.0.0/0 port 53",
                "deny udp from 0.0.0.0/0 to 0.0.0.0/0 fragment later",
            ],
        ),
        (
            "deny proto 6 tcpflags 2 mask 18",
            &[
                "deny tcp from 0.0.0.0/0 to 0.0.0.0/0 flags S/SA",
                "deny tcp from 0.0.0.0/0 to 0.0.0.0/0 fragment later",
            ],
        ),
        (
            "deny proto 6 tcpflags 2 18",
            &[
                "deny tcp from 0.0.0.0/0 to 0.0.0.0/0 flags S/SA",
                "deny tcp from 0.0.0.0/0 to 0.0.0.0/0 fragment later",
            ],
        ),
        // A value outside of the mask: no whole packet is like this.
        ("deny proto 6 tcpflags 1 mask 18", &["deny tcp from 0.0.0.0/0 to 0.0.0.0/0 fragment later"]),
        // Types and codes.
        (
            "permit proto 1 sport 8 dport 0-65535",
            &[
                "permit icmp from 0.0.0.0/0 to 0.0.0.0/0 type 8",
                "permit icmp from 0.0.0.0/0 to 0.0.0.0/0 fragment later",
            ],
        ),
        (
            "permit proto 1 sport 3-4 dport 0-1",
            &[
                "permit icmp from 0.0.0.0/0 to 0.0.0.0/0 type 3 code 0",
                "permit icmp from 0.0.0.0/0 to 0.0.0.0/0 type 3 code 1",
                "permit icmp from 0.0.0.0/0 to 0.0.0.0/0 type 4 code 0",
                "permit icmp from 0.0.0.0/0 to 0.0.0.0/0 type 4 code 1",
                "permit icmp from 0.0.0.0/0 to 0.0.0.0/0 fragment later",
            ],
        ),
        (
            "permit src ::/0 proto 58 sport 255 dport 255-300",
            &[
                "permit icmpv6 from ::/0 to ::/0 type 255 code 255",
                "permit icmpv6 from ::/0 to ::/0 fragment later",
            ],
        ),
        ("permit proto 1 sport 256-300", &["permit icmp from 0.0.0.0/0 to 0.0.0.0/0 fragment later"]),
    ] {
        assert_eq!(shown(Format::Vpp, &format!("set acl-plugin acl {rule}\n")), expected, "{rule}");
    }
}

#[test]
fn what_is_refused() {
    for (rule, message) in [
        (
            "allow",
            "\"allow\"; expected permit, permit+reflect, deny, src, dst, proto, sport, dport or tcpflags",
        ),
        ("permit src 10.0.0.1", "\"10.0.0.1\"; expected an IPv4 or IPv6 prefix such as 192.0.2.0/24"),
        ("permit src 10.0.0.1/8", "\"10.0.0.1/8\" has bits set past its length, which VPP refuses"),
        ("permit src 10.0.0.0/33", "prefix length \"33\"; expected a number from 0 to 32"),
        ("permit src", "the line ends; expected a prefix"),
        (
            "permit dst 2001:db8::/32",
            "src and dst of two families (without src a rule is IPv4); expected both of one",
        ),
        (
            "permit src 10.0.0.0/8 dst ::/0",
            "src and dst of two families (without src a rule is IPv4); expected both of one",
        ),
        ("permit proto tcp", "protocol \"tcp\"; expected a number from 0 to 255"),
        ("permit proto 6 dport 9-8", "\"9-8\" runs downwards; expected 8-9"),
        ("permit proto 6 dport 65536", "port \"65536\"; expected a number from 0 to 65535"),
        ("permit proto 6 tcpflags 256 mask 1", "flags \"256\"; expected a number from 0 to 255"),
        ("permit proto 6 tcpflags 2", "the line ends; expected a mask"),
        ("action 3", "action \"3\"; expected 0, 1 or 2"),
        ("permit,", "a rule without words; expected permit or deny"),
        ("", "a rule without words; expected permit or deny"),
        ("permit tag", "the line ends; expected a tag"),
    ] {
        let error = read(Format::Vpp, format!("set acl-plugin acl {rule}\n")).expect_err(rule);
        assert_eq!(error, format!("f:1: {message}"), "{rule}");
    }
    for (rule, construct) in [
        ("permit dport 80", "sport or dport with proto 0, which VPP does not look at"),
        ("permit proto 132 dport 80", "sport or dport with proto 132, which VPP does not look at"),
        // Types of ICMPv6 in IPv4.
        ("permit proto 58 sport 128", "sport or dport with proto 58, which VPP does not look at"),
        ("permit proto 17 tcpflags 2 mask 2", "tcpflags without proto 6, which VPP does not look at"),
    ] {
        let text = format!("set acl-plugin acl {rule}, deny proto 47\n");
        let error = read(Format::Vpp, &text).expect_err(rule);
        assert_eq!(error, format!("f:1: {construct} (--skip-unsupported leaves it out)"), "{rule}");
        let options = Options { skip_unsupported: true, ..Options::default() };
        let reading = read_with(&text, options).expect(rule);
        assert_eq!(in_words(&reading.rules.rules), ["deny gre from 0.0.0.0/0 to 0.0.0.0/0"]);
        assert_eq!(reading.skipped[0].to_string(), format!("line 1: {construct}"));
    }
    let text = "set acl-plugin l4-match-nonfirst-fragment 0\nset acl-plugin acl permit\n";
    assert_eq!(
        read(Format::Vpp, text).expect_err("a setting"),
        "f:1: \"l4-match-nonfirst-fragment 0\" has no equal among our rules (--skip-unsupported leaves it out)"
    );
}

#[test]
fn what_show_acl_plugin_acl_prints() {
    let text = "\
acl-index 0 count 3 tag {cli}
          0: ipv4 permit src 10.0.0.0/8 dst 0.0.0.0/0 proto 6 sport 0-65535 dport 443
          1: ipv6 deny src ::/0 dst 2001:db8::1/128 proto 0 sport 0-65535 dport 0-65535
          2: ipv4 deny src 0.0.0.0/0 dst 0.0.0.0/0 proto 6 sport 0-65535 dport 0-65535 tcpflags 2 mask 2
  applied inbound on sw_if_index: 1
  used in lookup context index: 0
acl-index 7 count 1 tag {inside}
          0: ipv4 permit src 0.0.0.0/0 dst 0.0.0.0/0 proto 0 sport 0 dport 0
";
    let options = |list: Option<&str>| Options { list: list.map(Into::into), ..Options::default() };
    assert_eq!(
        read_with(text, options(None)).expect_err("two lists"),
        "f: several lists; expected the name of one (--list): 0, inside"
    );
    let reading = read_with(text, options(Some("0"))).expect("a list");
    assert_eq!((reading.format, reading.default), (Format::Vpp, Some(Action::Deny)));
    assert_eq!(
        in_words(&reading.rules.rules),
        [
            "permit tcp from 10.0.0.0/8 to 0.0.0.0/0 port 443",
            "permit tcp from 10.0.0.0/8 to 0.0.0.0/0 fragment later",
            "deny any from ::/0 to 2001:db8::1/128",
            "deny tcp from 0.0.0.0/0 to 0.0.0.0/0 flags S/S",
            "deny tcp from 0.0.0.0/0 to 0.0.0.0/0 fragment later",
        ]
    );
    assert_eq!(reading.rules.rules[2].line, 3);
    let reading = read_with(text, options(Some("inside"))).expect("a list");
    assert_eq!(in_words(&reading.rules.rules), ["permit any from 0.0.0.0/0 to 0.0.0.0/0"]);
    let wrong = "acl-index 0 count 1 tag {}\n 0: ipv6 permit src 10.0.0.0/8 dst 0.0.0.0/0 proto 0\n";
    assert_eq!(
        read(Format::Vpp, wrong).expect_err("families"),
        "f:2: addresses of the other family; expected those of the first word"
    );
}

#[test]
fn commands_of_a_configuration() {
    let text = "create host-interface name eth0\nset acl-plugin acl permit proto 6, deny tag web\n\
                set acl-plugin interface host-eth0 input acl 0\nset acl-plugin acl deny\nshow acl-plugin acl\n";
    let options =
        |list: &str| Options { list: Some(list.into()), format: Some(Format::Vpp), ..Options::default() };
    assert_eq!(
        in_words(&read_with(text, options("web")).expect("a list").rules.rules),
        ["permit tcp from 0.0.0.0/0 to 0.0.0.0/0", "deny any from 0.0.0.0/0 to 0.0.0.0/0"]
    );
    assert_eq!(
        in_words(&read_with(text, options("1")).expect("a list").rules.rules),
        ["deny any from 0.0.0.0/0 to 0.0.0.0/0"]
    );
}

#[test]
fn lists_are_replaced_and_deleted_by_their_index() {
    let rules = |text: &str, list: Option<&str>| {
        let list = list.map(Into::into);
        let options = Options { list, format: Some(Format::Vpp), ..Options::default() };
        read_with(text, options).map(|reading| in_words(&reading.rules.rules))
    };
    let none =
        "f: no list of rules; expected \"set acl-plugin acl …\", or what \"show acl-plugin acl\" prints";
    assert_eq!(rules(include_str!("faults/10-vpp-delete.vpp"), None), Err(none.into()));
    assert_eq!(rules("show version\n", None), Err(none.into()));
    let set = "set acl-plugin acl permit src 10.0.0.0/8\nset acl-plugin acl permit proto 6 tag web\n";
    assert_eq!(
        rules(&format!("{set}set acl-plugin acl index 0 deny src 10.0.0.0/8\n"), Some("0")),
        Ok(vec!["deny any from 10.0.0.0/8 to 0.0.0.0/0".into()])
    );
    // What is deleted is gone, and its index is the next one's.
    let deleted = format!("{set}delete acl-plugin acl index 1\n");
    assert_eq!(rules(&deleted, None), Ok(vec!["permit any from 10.0.0.0/8 to 0.0.0.0/0".into()]));
    let again = format!("{deleted}set acl-plugin acl deny proto 17\nset acl-plugin acl deny proto 47\n");
    assert_eq!(rules(&again, Some("1")), Ok(vec!["deny udp from 0.0.0.0/0 to 0.0.0.0/0".into()]));
    assert_eq!(rules(&again, Some("2")), Ok(vec!["deny gre from 0.0.0.0/0 to 0.0.0.0/0".into()]));
    // Tags that are the same name no list.
    let twice = "set acl-plugin acl permit proto 6 tag a\nset acl-plugin acl deny proto 6 tag a\n";
    assert_eq!(rules(twice, Some("a")), Err("f: no list \"a\"; expected one of 0, 1".into()));
    // Behind the prompt, with comments, and with what decides over nothing in a list.
    let session = "# lists\nvpp# set acl-plugin acl permit proto 6\nset acl-plugin interface eth0 input acl 0\n\
                   set acl-plugin interface eth0 input acl 0 del\nset acl-plugin session timeout udp idle 30\n\
                   set acl-plugin l4-match-nonfirst-fragment 1\nset acl-plugin macip acl permit ip 10.0.0.0/8 mac 0:0:0:0:0:0 mask 0\n\
                   delete acl-plugin macip acl index 0\nclear acl-plugin sessions\nvpp# show acl-plugin acl\nset int state eth0 up\n";
    assert_eq!(rules(session, None), Ok(vec!["permit tcp from 0.0.0.0/0 to 0.0.0.0/0".into()]));
    let expected = "expected a command of the ACL plugin, such as \"set acl-plugin acl permit …\" or \"delete acl-plugin acl index N\"";
    for (line, message) in [
        (
            "delete acl-plugin acl index 7",
            "no list of index 7 before this line; expected the index of one".to_owned(),
        ),
        (
            "set acl-plugin acl index 7 deny",
            "no list of index 7 before this line; expected the index of one, or none for a new list".into(),
        ),
        (
            "set acl-plugin acl count 1 deny proto 6, permit",
            "count 1 with 2 rules; expected as many rules, or no count".into(),
        ),
        ("delete acl-plugin acl 0", format!("\"delete acl-plugin acl 0\"; {expected}")),
        ("delete acl-plugin acl index 0 1", format!("\"delete acl-plugin acl index 0 1\"; {expected}")),
        ("set acl-plugin acls permit", format!("\"set acl-plugin acls permit\"; {expected}")),
        ("set acl-plug acl permit", format!("\"set acl-plug acl permit\"; {expected}")),
        ("set acl_plugin acl permit", format!("\"set acl_plugin acl permit\"; {expected}")),
        (
            "ste acl-plugin acl permit",
            format!("\"ste acl-plugin acl permit\"; {expected}; did you mean \"set\"?"),
        ),
        ("vppctl set acl-plugin acl permit", format!("\"vppctl set acl-plugin acl permit\"; {expected}")),
        ("acl_add_replace -1 permit", format!("\"acl_add_replace -1 permit\"; {expected}")),
        ("acl-index 3", format!("\"acl-index 3\"; {expected}")),
        (
            "set acl-plugin interface eth0 acl 0",
            "\"eth0 acl 0\"; expected set acl-plugin interface INTERFACE input|output acl N [del]".into(),
        ),
        (
            "set acl-plugin l4-match-nonfirst-fragment x",
            "l4-match-nonfirst-fragment \"x\"; expected a number from 0 to 4294967295".into(),
        ),
        (
            "set acl-plugin skip-ipv6-extension-header 60 1",
            "\"skip-ipv6-extension-header\" has no equal among our rules (--skip-unsupported leaves it out)"
                .into(),
        ),
        (
            "acl-index 3 count 2 tag {x}\n 0: ipv4 permit src 0.0.0.0/0 dst 0.0.0.0/0 proto 0",
            "count 2, but 1 rules follow; expected all that VPP prints".into(),
        ),
        ("acl-index 0 count 0 tag {x}", "list 0 stands twice; expected each list once".into()),
    ] {
        assert_eq!(
            rules(&format!("set acl-plugin acl permit\n{line}\n"), Some("0")),
            Err(format!("f:2: {message}")),
            "{line}"
        );
    }
    let used = "set acl-plugin acl permit\nset acl-plugin interface eth0 output acl 0\ndelete acl-plugin acl index 0\n";
    assert_eq!(
        rules(used, None),
        Err("f:3: list 0 is in use by interface \"eth0\", so VPP does not delete it".into())
    );
}

#[test]
fn many_rules_are_one_line() {
    let rules = vec!["permit src 192.0.2.0/24 dst 198.51.100.0/24 proto 6"; 10_000].join(", ");
    let reading = read(Format::Vpp, format!("set acl-plugin acl {rules}\n")).expect("a list");
    assert_eq!(reading.rules.rules.len(), 10_000);
}

#[test]
fn rules_are_written_as_a_command() {
    let rules = super::rules(
        "permit tcp from 10.0.0.0/8 to 192.0.2.1 port 443\n\
         permit tcp from 10.0.0.0/8 to 192.0.2.1 fragment later\n\
         deny udp from 2001:db8::/32 port 1024-65535 to any\n\
         deny icmp from 192.0.2.0/24 to any type 8 code 0\n\
         deny tcp from 192.0.2.0/24 to any flags S/SA\n\
         reflect gre from any to any\n",
    )
    .expect("rules");
    assert_eq!(
        written(&rules.rules, Format::Vpp, Some(Action::Deny)).expect("a list"),
        "set acl-plugin acl permit src 10.0.0.0/8 dst 192.0.2.1/32 proto 6 dport 443, \
         deny src 2001:db8::/32 dst ::/0 proto 17 sport 1024-65535, \
         deny src 192.0.2.0/24 dst 0.0.0.0/0 proto 1 sport 8 dport 0, \
         deny src 192.0.2.0/24 dst 0.0.0.0/0 proto 6 tcpflags 2 mask 18, \
         permit+reflect src 0.0.0.0/0 dst 0.0.0.0/0 proto 47, permit+reflect src ::/0 dst ::/0 proto 47 tag packetloom\n"
    );
    assert_eq!(
        written(&[], Format::Vpp, Some(Action::Permit)).expect("a list"),
        "set acl-plugin acl permit src 0.0.0.0/0 dst 0.0.0.0/0, permit src ::/0 dst ::/0 tag packetloom\n"
    );
}

#[test]
fn rules_without_words() {
    for (rule, reason) in [
        ("permit tcp from any to any port 80", "where later fragments are matched by addresses and protocol"),
        (
            "permit any from any to any fragment not-later",
            "where later fragments are matched by addresses and protocol",
        ),
        ("deny any from any to any port 80", "where ports belong to tcp or udp"),
        ("deny sctp from any to any port 80", "where ports belong to tcp or udp"),
        (
            "deny icmp from any to any type 8",
            "where types and codes belong to icmp with IPv4 and icmpv6 with IPv6",
        ),
        ("deny 0 from any to any", "where protocol 0 is every protocol"),
        ("deny any from any to any fragment later", "where fragments are not asked for"),
        ("deny any from any to any fragment none", "where fragments are not asked for"),
    ] {
        let rules = super::rules(rule).expect(rule).rules;
        let error = written(&rules, Format::Vpp, None).expect_err(rule).to_string();
        assert_eq!(error, format!("rule 0 has no line in this format, {reason}: {}", rules[0]));
    }
}

/// Rules that VPP has words for, but for what it does with later fragments.
fn rule() -> impl Strategy<Value = Rule> {
    let ports = || ports(1, 2);
    let icmp = prop::option::of((prop::option::of(0..9u8), prop::option::of(0..3u8)));
    let flags = prop::option::of((any::<u8>(), 1..=u8::MAX));
    (action(), addresses(), protocol(), ports(), ports(), icmp, flags).prop_map(
        |(action, addresses, protocol, source_ports, destination_ports, icmp, flags)| {
            let mut rule = Rule { addresses, protocol, ..Rule::any(Some(action)) };
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

/// The same rule for later fragments.
fn later(rule: &Rule) -> Rule {
    let (addresses, protocol) = (rule.addresses, rule.protocol);
    Rule { addresses, protocol, fragments: Fragments::Later, ..Rule::any(rule.action) }
}

/// Rules together with those for the later fragments that VPP matches with them.
fn rules_with_fragments() -> impl Strategy<Value = Vec<Rule>> {
    let both = |rule: Rule| {
        let later = later(&rule);
        let asks = rule != Rule { fragments: Fragments::All, ..later.clone() };
        if asks { vec![rule, later] } else { vec![rule] }
    };
    prop::collection::vec(rule().prop_map(both), 0..10).prop_map(|rules| rules.concat())
}

/// Rules of few addresses with those for later fragments anywhere, or with another protocol or action.
fn shuffled_rules() -> impl Strategy<Value = Vec<Rule>> {
    let pick = (any::<prop::sample::Index>(), 0..4u8);
    (prop::collection::vec(rule(), 1..4), prop::collection::vec(pick, 1..10)).prop_map(|(rules, picks)| {
        let one = |(index, how): (prop::sample::Index, u8)| {
            let rule = index.get(&rules);
            match how {
                0 => later(rule),
                1 => Rule { protocol: Some(6), ..later(rule) },
                2 => Rule { action: Some(Action::Deny), fragments: Fragments::NotLater, ..rule.clone() },
                _ => rule.clone(),
            }
        };
        picks.into_iter().map(one).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn lists_do_what_their_rules_do(rules in rules_with_fragments(), permit in any::<bool>(), seed in any::<u64>()) {
        let default = if permit { Action::Permit } else { Action::Deny };
        prop_assert_eq!(round_trip(&rules, Format::Vpp, default, seed), Ok(true));
    }

    #[test]
    fn what_is_written_does_what_its_rules_do(rules in shuffled_rules(), permit in any::<bool>(), seed in any::<u64>()) {
        let default = if permit { Action::Permit } else { Action::Deny };
        // For some there are no words.
        let result = round_trip(&rules, Format::Vpp, default, seed);
        prop_assert!(result.is_ok(), "{:?}", result);
    }

    #[test]
    fn any_text_is_read_or_refused(
        words in prop::collection::vec(prop::sample::select(vec![
            "set", "acl-plugin", "acl", "permit", "deny", ",", "src", "dst", "10.0.0.0/8", "::/0", "any", "proto", "6", "1", "58",
            "sport", "dport", "0-65535", "5-", "tcpflags", "mask", "255", "tag", "x", "\nset acl-plugin acl ",
            "\nacl-index 0 count 1 tag {a}\n 0: ipv4 ", "\n 1: ipv6 permit", "é",
        ]), 0..40),
        skip_unsupported in any::<bool>(),
    ) {
        let options = Options { format: Some(Format::Vpp), skip_unsupported, ..Options::default() };
        let _ = read_with(words.join(" "), options);
    }
}
