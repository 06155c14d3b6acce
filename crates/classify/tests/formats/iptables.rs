//! `iptables-save` and `ip6tables-save`.

use packetloom_classify::formats::{Format, Options, Reading, Skipped, WriteError};
use packetloom_classify::{Action, Rule};
use proptest::prelude::*;

use super::netfilter::{self, Conditions, Does, Model, ModelRule, Not, Packet, PortsOf};
use super::verdicts::{self, Random, read_with, round_trip, shown, written};

const fn format(v6: bool) -> Format {
    if v6 { Format::Ip6tables } else { Format::Iptables }
}

fn read(text: &str, v6: bool) -> Result<Reading, String> {
    verdicts::read(format(v6), text)
}

/// A filter table with these lines.
fn table(lines: &str) -> String {
    format!(
        "*filter\n:INPUT ACCEPT [0:0]\n:FORWARD DROP [7:99]\n:OUTPUT ACCEPT [0:0]\n:one - [0:0]\n:two - [0:0]\n{lines}\nCOMMIT\n"
    )
}

/// What a model that is read as iptables prints decides is what the model decides.
fn check(model: &Model, packets: &[Packet]) -> Result<(), TestCaseError> {
    let text = model.iptables();
    let reading = read(&text, model.v6);
    // Two negated IPv6 prefixes and a negated protocol in one rule can be two million rules.
    prop_assume!(!reading.as_ref().is_err_and(|error| error.contains(" that make more than 1048576 rules")));
    let reading = reading.map_err(|error| TestCaseError::fail(format!("{error}\n{text}")))?;
    prop_assert_eq!(reading.default, Some(model.policy));
    model.compare(&reading, packets).map_err(|error| TestCaseError::fail(format!("{error}\n{text}")))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn chains_decide_as_the_kernel_does(
        (model, packets) in any::<bool>().prop_flat_map(|v6| {
            (netfilter::model(v6), prop::collection::vec(netfilter::packet(v6), 200))
        })
    ) {
        check(&model, &packets)?;
    }

    #[test]
    fn any_line_is_read_or_refused_at_its_place(
        line in "(-A INPUT|:[a-z]{1,3} [-A]|-P|\\*|) ?(! )?(-[sdpmjgf] |--[sd]?port(s)? |--icmp-type |--tcp-flags |)\
                 [a-zA-Z0-9:./,\" !\\\\-]{0,40}",
        v6 in any::<bool>(),
    ) {
        let text = table(&line);
        if let Err(error) = read(&text, v6) {
            prop_assert!(error.starts_with("f:7: ") || error.starts_with("f: several lists; "), "{}", error);
        }
    }
}

#[test]
fn matches_become_these_rules() {
    let from = "from 0.0.0.0/0 to 0.0.0.0/0";
    for (line, expected) in [
        ("-j ACCEPT", vec![format!("permit any {from}")]),
        ("-j DROP", vec![format!("deny any {from}")]),
        ("-j REJECT --reject-with icmp-port-unreachable", vec![format!("deny any {from}")]),
        ("-s 10.0.0.0/8 -d 192.0.2.1/32 -j DROP", vec!["deny any from 10.0.0.0/8 to 192.0.2.1/32".into()]),
        ("-s 10.1.2.3/255.255.0.0 -j DROP", vec!["deny any from 10.1.0.0/16 to 0.0.0.0/0".into()]),
        (
            "-s 10.0.0.1,10.0.0.9 -j DROP",
            vec![
                "deny any from 10.0.0.1/32 to 0.0.0.0/0".into(),
                "deny any from 10.0.0.9/32 to 0.0.0.0/0".into(),
            ],
        ),
        (
            "! -s 128.0.0.0/2 -j DROP",
            vec![
                "deny any from 0.0.0.0/1 to 0.0.0.0/0".into(),
                "deny any from 192.0.0.0/2 to 0.0.0.0/0".into(),
            ],
        ),
        (
            "-m iprange --src-range 10.0.0.1-10.0.0.4 -j DROP",
            vec![
                "deny any from 10.0.0.1/32 to 0.0.0.0/0".into(),
                "deny any from 10.0.0.2/31 to 0.0.0.0/0".into(),
                "deny any from 10.0.0.4/32 to 0.0.0.0/0".into(),
            ],
        ),
        ("-p all -j DROP", vec![format!("deny any {from}")]),
        ("-p 0 -j DROP", vec![format!("deny any {from}")]),
        ("-p gre -j DROP", vec![format!("deny gre {from}")]),
        // Not the number that the name has in our own format.
        ("-p ipip -j DROP", vec![format!("deny 94 {from}")]),
        ("-p ipencap -j DROP", vec![format!("deny ipip {from}")]),
        ("-p tcp -m tcp --dport 22 -j ACCEPT", vec![format!("permit tcp {from} port 22")]),
        (
            "-p tcp --sport 1024:65535 --dport 22:23 -j ACCEPT",
            vec!["permit tcp from 0.0.0.0/0 port 1024-65535 to 0.0.0.0/0 port 22-23".into()],
        ),
        (
            "-p udp -m udp ! --dport 53 -j DROP",
            vec![format!("deny udp {from} port 0-52"), format!("deny udp {from} port 54-65535")],
        ),
        ("-p udp -m udp --dport :53 -j DROP", vec![format!("deny udp {from} port 0-53")]),
        // The match alone looks at a header, which later fragments do not have.
        ("-p tcp -m tcp -j DROP", vec![format!("deny tcp {from} fragment not-later")]),
        ("-p tcp -m tcp --dport 0:65535 -j DROP", vec![format!("deny tcp {from} fragment not-later")]),
        ("-p tcp -m tcp ! --dport 0:65535 -j DROP", vec![]),
        (
            "-p tcp -m multiport --dports 80,443,8000:8080,81 -j ACCEPT",
            vec![
                format!("permit tcp {from} port 80-81"),
                format!("permit tcp {from} port 443"),
                format!("permit tcp {from} port 8000-8080"),
            ],
        ),
        (
            "-p udp -m multiport --ports 53 -j ACCEPT",
            vec![
                "permit udp from 0.0.0.0/0 port 53 to 0.0.0.0/0".into(),
                format!("permit udp {from} port 53"),
            ],
        ),
        ("-p tcp -m tcp --syn -j DROP", vec![format!("deny tcp {from} flags S/FSRA")]),
        ("-p tcp -m tcp --tcp-flags ALL NONE -j DROP", vec![format!("deny tcp {from} flags /FSRPAU")]),
        ("-p tcp -m tcp --tcp-flags SYN ACK -j DROP", vec![]),
        (
            "-p tcp -m tcp ! --tcp-flags SYN,ACK SYN -j DROP",
            vec![format!("deny tcp {from} flags /SA"), format!("deny tcp {from} flags A/A")],
        ),
        ("-p icmp -m icmp --icmp-type 8 -j ACCEPT", vec![format!("permit icmp {from} type 8")]),
        ("-p icmp -m icmp --icmp-type 3/4 -j ACCEPT", vec![format!("permit icmp {from} type 3 code 4")]),
        ("-p icmp --icmp-type echo-reply -j ACCEPT", vec![format!("permit icmp {from} type 0")]),
        ("-p icmp --icmp-type port-unreachable -j ACCEPT", vec![format!("permit icmp {from} type 3 code 3")]),
        ("-p icmp -m icmp --icmp-type any -j ACCEPT", vec![format!("permit icmp {from} fragment not-later")]),
        ("-p icmp -m icmp --icmp-type 255 -j ACCEPT", vec![format!("permit icmp {from} fragment not-later")]),
        ("-f -j DROP", vec![format!("deny any {from} fragment later")]),
        ("! -f -j DROP", vec![format!("deny any {from} fragment not-later")]),
        (
            "-m comment --comment \"a \\\"b\\\" \\\\ c # d\" -j DROP",
            vec![format!("deny any {from} # a \"b\" \\ c # d")],
        ),
        ("-m comment --comment bare -j DROP", vec![format!("deny any {from} # bare")]),
        ("-c 12 3456 -j DROP", vec![format!("deny any {from}")]),
        // No target: nothing happens.
        ("-s 10.0.0.0/8", vec![]),
        ("-p tcp -m tcp --dport 1 --dport 2 -j DROP", vec![]),
    ] {
        // The last rule makes the chain the only one that has rules, whatever becomes of the first.
        let mut found = shown(Format::Iptables, &table(&format!("-A INPUT {line}\n-A INPUT -p 199 -j DROP")));
        assert_eq!(found.pop().as_deref(), Some("deny 199 from 0.0.0.0/0 to 0.0.0.0/0"));
        assert_eq!(found, expected, "{line}");
    }
    let from = "from ::/0 to ::/0";
    for (line, expected) in [
        ("-s 2001:db8::/32 -j DROP", vec!["deny any from 2001:db8::/32 to ::/0".to_owned()]),
        ("-s 2001:db8::/ffff:ffff:: -j DROP", vec!["deny any from 2001:db8::/32 to ::/0".into()]),
        ("-p ipv6-icmp -m icmp6 --icmpv6-type 135 -j ACCEPT", vec![format!("permit icmpv6 {from} type 135")]),
        (
            "-p ipv6-icmp -m icmp6 --icmpv6-type neighbour-advertisement -j ACCEPT",
            vec![format!("permit icmpv6 {from} type 136")],
        ),
        ("-p ipv6-icmp -m icmp6 --icmpv6-type 255 -j DROP", vec![format!("deny icmpv6 {from} type 255")]),
    ] {
        assert_eq!(shown(Format::Ip6tables, &table(&format!("-A INPUT {line}"))), expected, "{line}");
    }
    let not_tcp = shown(Format::Iptables, &table("-A INPUT ! -p tcp -j DROP"));
    assert_eq!(not_tcp.len(), 255);
    assert!(!not_tcp.iter().any(|rule| rule.starts_with("deny tcp")));
}

#[test]
fn chains_become_one_list() {
    let shown = |lines: &str| shown(Format::Iptables, &table(lines));
    let from = "from 0.0.0.0/0 to 0.0.0.0/0";
    // A jump's match and each rule's; what does not overlap is gone.
    assert_eq!(
        shown(
            "-A INPUT -s 10.0.0.0/8 -p tcp -j one\n-A INPUT -j DROP\n-A one -p tcp -m tcp --dport 22 -j ACCEPT\n\
             -A one -p udp -j ACCEPT\n-A one -s 10.1.0.0/16 -j two\n-A two -s 10.2.0.0/16 -j DROP\n-A two -j ACCEPT"
        ),
        [
            "permit tcp from 10.0.0.0/8 to 0.0.0.0/0 port 22",
            "permit tcp from 10.1.0.0/16 to 0.0.0.0/0",
            &format!("deny any {from}"),
        ]
    );
    // What returns from a chain does not meet the rest of it, but what comes after the jump.
    assert_eq!(
        shown("-A INPUT -j one\n-A INPUT -j ACCEPT\n-A one -s 0.0.0.0/1 -j RETURN\n-A one -j DROP"),
        ["deny any from 128.0.0.0/1 to 0.0.0.0/0", &format!("permit any {from}")]
    );
    // In a built-in chain, what returns is what the policy decides.
    assert_eq!(
        shown("-A FORWARD -s 10.0.0.0/8 -j RETURN\n-A FORWARD -j ACCEPT"),
        ["deny any from 10.0.0.0/8 to 0.0.0.0/0", &format!("permit any {from}")]
    );
    // What comes back from where it was sent for good is past this chain, too.
    assert_eq!(
        shown("-A FORWARD -s 10.0.0.0/8 -g one\n-A FORWARD -j ACCEPT\n-A one -p tcp -j ACCEPT"),
        [
            "permit tcp from 10.0.0.0/8 to 0.0.0.0/0",
            "deny any from 10.0.0.0/8 to 0.0.0.0/0",
            &format!("permit any {from}")
        ]
    );
    // Chains that nothing leads to say nothing, whatever they say.
    assert_eq!(shown("-A INPUT -j DROP\n-A one -i lo -j ACCEPT"), [format!("deny any {from}")]);
    // Rules of one line share it, with their comment.
    let text = table(
        "-A INPUT -p tcp -m multiport --dports 1,3 -m comment --comment x -j one\n-A one -m comment --comment y -j DROP",
    );
    let rules = read(&text, false).unwrap().rules.rules;
    let said: Vec<_> = rules.iter().map(|rule| (rule.line, rule.comment.as_deref())).collect();
    assert_eq!(said, [(8, Some("y")), (8, Some("y"))]);
}

#[test]
fn logging_becomes_part_of_the_next_rule() {
    let from = "from 0.0.0.0/0 to 0.0.0.0/0";
    let text = table(
        "-A INPUT -p tcp -m tcp --dport 22 -j LOG --log-prefix \"in: \" --log-level 4 --log-uid\n\
         -A INPUT -p tcp -m tcp --dport 22 -j NFLOG --nflog-group 3\n-A INPUT -p tcp -m tcp --dport 22 -j DROP\n-A INPUT -j ACCEPT",
    );
    assert_eq!(
        shown(Format::Iptables, &text),
        [format!("deny tcp {from} port 22 log"), format!("permit any {from}")]
    );
    let message =
        "logging without a rule right after it that accepts or drops the same packets has no equal here";
    for lines in [
        "-A INPUT -p tcp -j LOG\n-A INPUT -p udp -j DROP",
        "-A INPUT -p tcp -j LOG\n-A INPUT -p tcp -j one\n-A INPUT -p tcp -j DROP",
        "-A INPUT -p tcp -j LOG\n-A INPUT -i lo -j DROP\n-A INPUT -p tcp -j DROP",
        "-A INPUT -j LOG",
    ] {
        let error = read(&table(lines), false).unwrap_err();
        assert_eq!(error, format!("f:7: {message} (--skip-unsupported leaves it out)"), "{lines}");
    }
}

/// Rules without an equal, and what is said about them.
const UNSUPPORTED: &[(&str, &str)] = &[
    ("-o lo -j ACCEPT", "`-o lo` has no equal here"),
    ("! -o eth0 -j ACCEPT", "`! -o eth0` has no equal here"),
    ("-m conntrack --ctstate NEW,DNAT -j ACCEPT", "`--ctstate DNAT` has no equal here"),
    ("-m conntrack ! --ctstate SNAT -j ACCEPT", "`--ctstate SNAT` has no equal here"),
    ("-m conntrack --ctstate NEW --ctorigsrc 10.0.0.0/8 -j ACCEPT", "`--ctorigsrc` has no equal here"),
    ("-m limit --limit 5/min -j ACCEPT", "`-m limit` has no equal here"),
    ("-m recent --update --seconds 60 --name a --rsource -j DROP", "`-m recent` has no equal here"),
    ("-p tcp -m tcp --tcp-option 3 -j DROP", "`--tcp-option` has no equal here"),
    (
        "-p tcp -m tcp --dport 22 -m mac --mac-source 00:11:22:33:44:55 -j ACCEPT",
        "`-m mac` has no equal here",
    ),
    ("-m mark --mark 0x1 -j ACCEPT", "`-m mark` has no equal here"),
    ("-m set --match-set x src -j DROP", "`-m set` has no equal here"),
    ("-m addrtype --dst-type LOCAL -j ACCEPT", "`-m addrtype` has no equal here"),
    ("-m ttl --ttl-lt 5 -j DROP", "`-m ttl` has no equal here"),
    ("-m length --length 0:20 -j DROP", "`-m length` has no equal here"),
    ("-p dccp -m dccp --dport 80 -j DROP", "`-m dccp` has no equal here"),
    ("-p udplite -m multiport --dports 80 -j DROP", "`--dports` of dccp or udplite has no equal here"),
    ("-j MARK --set-xmark 0x1/0xffffffff", "`-j MARK` has no equal here"),
    ("-j NFQUEUE --queue-num 1", "`-j NFQUEUE` has no equal here"),
    ("-j nowhere", "`-j nowhere` has no equal here"),
    ("-g nowhere", "`-g nowhere` has no equal here"),
    (
        "-m state --state NEW -m mac --mac-source 1 -m limit --limit 1/s -j TARPIT",
        "`-m mac`, `-m limit`, `-j TARPIT` have no equal here",
    ),
];

#[test]
fn what_has_no_equal_is_refused_or_listed() {
    let skip = Options { format: Some(Format::Iptables), skip_unsupported: true, ..Options::default() };
    for (line, message) in UNSUPPORTED {
        let text = table(&format!("-A INPUT -p udp -j DROP\n-A INPUT {line}\n-A INPUT -p tcp -j DROP"));
        let error = read(&text, false).unwrap_err();
        assert_eq!(error, format!("f:8: {message} (--skip-unsupported leaves it out)"), "{line}");
        let reading = read_with(&text, skip.clone()).unwrap();
        assert_eq!(reading.skipped, [Skipped { line: 8, message: (*message).into() }], "{line}");
        assert_eq!(reading.rules.rules.len(), 2, "{line}");
    }
    for (line, message) in [
        ("-f -j DROP", "`-f` has no equal here"),
        ("-p ah -j DROP", "`-p ah` has no equal here"),
        ("! -p ipv6-frag -j DROP", "`-p ipv6-frag` has no equal here"),
        ("-p icmp -m icmp --icmp-type 8 -j DROP", "`-m icmp` has no equal here"),
    ] {
        let error = read(&table(&format!("-A INPUT {line}")), true).unwrap_err();
        assert_eq!(error, format!("f:7: {message} (--skip-unsupported leaves it out)"), "{line}");
    }
    // Other tables are no losses; those are named that do something.
    let text = "*raw\n:PREROUTING ACCEPT [0:0]\nCOMMIT\n*nat\n:PREROUTING ACCEPT [0:0]\n-A PREROUTING -p tcp -j REDIRECT\nCOMMIT\n\
                *mangle\n:INPUT DROP [0:0]\nCOMMIT\n*filter\n:INPUT ACCEPT [0:0]\n-A INPUT -j DROP\nCOMMIT\n";
    let reading = read_with(text, Options { skip_unsupported: false, ..skip }).unwrap();
    let elsewhere: Vec<_> = reading.elsewhere.iter().map(ToString::to_string).collect();
    assert_eq!(elsewhere, ["table nat with 1 rule", "table mangle with 0 rules and a policy DROP"]);
    assert_eq!((reading.skipped.len(), reading.rules.rules.len()), (0, 1));
}

/// The table that is asked for is read, by the tools' names of its chains; and no other.
#[test]
fn another_table_is_read_if_it_is_asked_for() {
    let text = "*mangle\n:PREROUTING ACCEPT [0:0]\n:FORWARD ACCEPT [0:0]\n:bad - [0:0]\n\
                -A PREROUTING -i eth0 -s 10.0.0.0/8 -j DROP\n-A PREROUTING -p tcp -j bad\n\
                -A bad -m conntrack --ctstate INVALID -j DROP\n-A FORWARD -j MARK --set-mark 1\nCOMMIT\n\
                *filter\n:INPUT DROP [0:0]\n-A INPUT -p udp -j ACCEPT\nCOMMIT\n";
    let read = |list: Option<&str>| {
        let list = list.map(Into::into);
        read_with(text, Options { format: Some(Format::Iptables), list, ..Options::default() })
    };
    let rules = |list| {
        let reading = read(list).unwrap();
        reading.rules.rules.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let any = "from 0.0.0.0/0 to 0.0.0.0/0";
    assert_eq!(rules(None), [format!("permit udp {any}")]);
    assert_eq!(
        rules(Some("mangle PREROUTING")),
        ["deny any from 10.0.0.0/8 to 0.0.0.0/0 in eth0".to_owned(), format!("deny tcp {any} state invalid")]
    );
    assert_eq!(rules(Some("mangle bad")), [format!("deny any {any} state invalid")]);
    let reading = read(Some("mangle PREROUTING")).unwrap();
    assert_eq!(
        reading.elsewhere.iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["table filter with 1 rule and a policy DROP"]
    );
    assert_eq!(reading.default, Some(Action::Permit));
    for (list, message) in [
        ("mangle FORWARD", "f:8: `-j MARK` has no equal here (--skip-unsupported leaves it out)"),
        (
            "mangle x",
            "f: no list \"mangle x\"; expected one of mangle PREROUTING, mangle FORWARD, mangle bad",
        ),
        ("nat PREROUTING", "f:1: no list of rules: the tables are mangle, filter; expected a table \"*nat\""),
        ("PREROUTING", "f: no list \"PREROUTING\"; expected one of INPUT"),
    ] {
        let error = read(Some(list)).unwrap_err();
        assert!(error.starts_with(message), "{list}: {error}");
    }
    // Interfaces that packets of its chains do not have, as in the table filter.
    let text = "*mangle\n:PREROUTING ACCEPT [0:0]\n:INPUT ACCEPT [0:0]\n:OUTPUT ACCEPT [0:0]\n:POSTROUTING ACCEPT [0:0]\n:own - [0:0]\n\
                -A INPUT -o eth1 -j DROP\n-A PREROUTING -o eth1 -j DROP\n-A OUTPUT -j own\n-A POSTROUTING -j own\n\
                -A own -i eth0 -j DROP\nCOMMIT\n";
    for (list, message) in [
        ("mangle INPUT", "f:7: `-o eth1` has no equal here"),
        ("mangle PREROUTING", "f:8: `-o eth1` has no equal here"),
        ("mangle OUTPUT", "f:11: `-i` for packets of OUTPUT"),
        ("mangle own", "f:11: `-i` for packets of OUTPUT"),
    ] {
        let options =
            Options { format: Some(Format::Iptables), list: Some(list.into()), ..Options::default() };
        let error = read_with(text, options).unwrap_err();
        assert!(error.starts_with(message), "{list}: {error}");
    }
}

/// A chain that stands twice is one mistake, whatever comes after.
#[test]
fn rules_of_a_chain_that_stands_twice_are_read() {
    let text = "*filter\n:INPUT ACCEPT\n:INPUT DROP\n-A INPUT -j DROP\n-A INPUT -j nowhere\nCOMMIT\n";
    let error = read(text, false).unwrap_err();
    assert!(error.contains("f:3: chain \"INPUT\" stands twice"), "{error}");
}

/// What state and interfaces are in our words.
#[test]
fn states_and_interfaces_are_kept() {
    let any = "any from 0.0.0.0/0 to 0.0.0.0/0";
    for (line, expected) in [
        ("-m state --state RELATED,ESTABLISHED -j ACCEPT", "state established,related"),
        ("-m conntrack --ctstate NEW -j ACCEPT", "state new"),
        ("-m conntrack ! --ctstate INVALID -j ACCEPT", "state new,established,related,untracked"),
        ("-m state ! --state NEW,ESTABLISHED -j ACCEPT", "state related,invalid,untracked"),
        ("-o eth0 -j ACCEPT", "out eth0"),
        ("! -o wg+ -m conntrack --ctstate UNTRACKED -j ACCEPT", "out !wg+ state untracked"),
        ("-i lan+ -o wan -m state --state NEW -j ACCEPT", "in lan+ out wan state new"),
    ] {
        let text = format!("*filter\n:FORWARD DROP [0:0]\n-A FORWARD {line}\nCOMMIT\n");
        assert_eq!(shown(Format::Iptables, &text), [format!("permit {any} {expected}")], "{line}");
    }
    // Both together are no packets, and all of them every one.
    let text = "*filter\n:FORWARD DROP [0:0]\n-A FORWARD -m state --state NEW -m conntrack --ctstate INVALID -j ACCEPT\n\
                -A FORWARD -m state --state NEW,ESTABLISHED,RELATED,INVALID,UNTRACKED -j DROP\nCOMMIT\n";
    assert_eq!(shown(Format::Iptables, text), [format!("deny {any}")]);
    let error = read(&table("-A INPUT -m state --state NEU -j DROP"), false).unwrap_err();
    assert!(
        error.contains("state \"NEU\"; expected NEW, ESTABLISHED, RELATED, INVALID or UNTRACKED"),
        "{error}"
    );
}

#[test]
fn bad_lines_are_refused_with_what_was_expected() {
    for (line, message) in [
        ("-I INPUT -j DROP", "\"-I INPUT -j DROP\"; expected *TABLE, :CHAIN POLICY, -A CHAIN RULE or COMMIT"),
        ("-A", "\"-A\"; expected *TABLE, :CHAIN POLICY, -A CHAIN RULE or COMMIT"),
        ("-A none -j DROP", "no chain \"none\" before this line; expected :none POLICY, -P or -N"),
        (":x", "\":x\"; expected :CHAIN POLICY [PACKETS:BYTES]"),
        (":INPUT ACCEPT [0:0]", "chain \"INPUT\" stands twice"),
        (":x QUEUE [0:0]", "policy \"QUEUE\"; expected ACCEPT, DROP or -"),
        (":x ACCEPT [0:0]", "chain \"x\"; expected a policy for INPUT, FORWARD and OUTPUT and for no other"),
        ("*filter", "*filter stands twice; expected the tables of one family"),
        ("-A INPUT -s", "the line ends; expected a value of -s"),
        ("-A INPUT -s 10.0.0 -j DROP", "address \"10.0.0\"; expected an IPv4 address, or --format ip6tables"),
        ("-A INPUT -s ::1 -j DROP", "address \"::1\"; expected an IPv4 address, or --format ip6tables"),
        ("-A INPUT -s 10.0.0.0/33 -j DROP", "prefix length \"33\"; expected a number from 0 to 32"),
        (
            "-A INPUT -s 10.0.0.0/255.0.255.0 -j DROP",
            "mask of \"10.0.0.0/255.0.255.0\"; expected the set bits before the others",
        ),
        ("-A INPUT ! -s 10.0.0.1,10.0.0.2 -j DROP", "! before \"10.0.0.1,10.0.0.2\"; expected one address"),
        ("-A INPUT -s 10.0.0.1 -s 10.0.0.2 -j DROP", "-s stands twice"),
        ("-A INPUT -j DROP -j ACCEPT", "a target stands twice"),
        ("-A INPUT -p tpc -j DROP", "protocol \"tpc\"; expected all, a name such as tcp, or a number"),
        ("-A INPUT -p 256 -j DROP", "protocol \"256\"; expected a number from 0 to 255"),
        ("-A INPUT ! -p all -j DROP", "! -p all; expected a protocol"),
        (
            "-A INPUT --dport 80 -j DROP",
            "--dport with a protocol that has none; expected -p with the protocol before it",
        ),
        (
            "-A INPUT ! -p tcp --dport 80 -j DROP",
            "--dport with a protocol that has none; expected -p with the protocol before it",
        ),
        (
            "-A INPUT -p udp -m tcp -j DROP",
            "-m tcp with a protocol that has none; expected -p with the protocol before it",
        ),
        (
            "-A INPUT -p udp --syn -j DROP",
            "--syn with a protocol that has none; expected -p with the protocol before it",
        ),
        ("-A INPUT -p tcp --dport http -j DROP", "port \"http\"; expected a number from 0 to 65535"),
        ("-A INPUT -p tcp --dport 80,81 -j DROP", "port \"80,81\"; expected a number from 0 to 65535"),
        ("-A INPUT -p tcp --dport 81:80 -j DROP", "ports \"81:80\"; expected LOW:HIGH"),
        (
            "-A INPUT -p tcp --tcp-flags SYN,ECE SYN -j DROP",
            "flag \"ECE\"; expected ALL, NONE, FIN, SYN, RST, PSH, ACK or URG",
        ),
        ("-A INPUT -p icmp --icmp-type 256 -j DROP", "ICMP type \"256\"; expected a number from 0 to 255"),
        (
            "-A INPUT -p icmp --icmp-type ping6 -j DROP",
            "ICMP type \"ping6\"; expected a number from 0 to 255",
        ),
        (
            "-A INPUT -m iprange --src-range 10.0.0.2-10.0.0.1 -j DROP",
            "\"10.0.0.2-10.0.0.1\"; expected LOW-HIGH",
        ),
        ("-A INPUT -m comment --comment \"x -j DROP", "a quote without its end"),
        ("-A INPUT ! ! -s 10.0.0.1 -j DROP", "\"!\" stands twice in a row"),
        (":x - [0:0] x", "\":x - [0:0] x\"; expected :CHAIN POLICY [PACKETS:BYTES]"),
        ("-N x y", "\"-N x y\"; expected *TABLE, :CHAIN POLICY, -A CHAIN RULE or COMMIT"),
        ("-P x ACCEPT y", "\"-P x ACCEPT y\"; expected -P CHAIN POLICY"),
        ("COMMIT\n-A INPUT -j DROP", "\"-A INPUT -j DROP\" behind COMMIT; expected *TABLE"),
        ("-A INPUT ! -j DROP", "! before \"-j\"; expected a match such as -s"),
        ("-A INPUT -p tcp ! -m tcp -j DROP", "! before \"-m\"; expected a match such as -s"),
        ("-A INPUT -j DROP !", "the line ends; expected a match after \"!\""),
        ("-A INPUT drop", "\"drop\"; expected a match or a target"),
        (
            "-A INPUT -j one\n-A one -j two\n-A two -j one",
            "chain \"one\" leads back to itself; expected chains without a loop",
        ),
    ] {
        let at = 6 + line.lines().count();
        assert_eq!(
            read(&table(line), false).unwrap_err(),
            format!("f:{at}: {}", crate::told(message)),
            "{line}"
        );
    }
    // Chains inside each other.
    let mut text = "*filter\n:INPUT ACCEPT\n".to_owned();
    (0..40).for_each(|number| text += &format!(":c{number} -\n"));
    text += "-A INPUT -j c0\n";
    (0..39).for_each(|number| text += &format!("-A c{number} -j c{}\n", number + 1));
    let error = read(&text, false).unwrap_err();
    assert!(error.ends_with(": chains inside each other; expected at most 32"), "{error}");
    // Chains that call each other so often that nobody could wait for it.
    let mut text = "*filter\n:INPUT ACCEPT\n".to_owned();
    (0..20).for_each(|number| text += &format!(":c{number} -\n"));
    text += "-A INPUT -j c0\n";
    (0..19).for_each(|number| text += &format!("-A c{number} -j c{}\n", number + 1).repeat(10));
    let error = read(&text, false).unwrap_err();
    assert!(error.ends_with(": chains that call each other too often to be made into one list"), "{error}");
}

/// What the machine itself sends comes by no interface; iptables takes `-i` in chains that are called from OUTPUT all the same.
#[test]
fn interfaces_of_what_the_machine_sends_have_no_equal() {
    let message = "`-i` for packets of OUTPUT, which come by no interface, has no equal here";
    let skip = Options { format: Some(Format::Iptables), skip_unsupported: true, ..Options::default() };
    for lines in [
        "-A OUTPUT -j one\n-A one -i eth0 -j DROP\n-A one -p tcp -j DROP",
        "-A OUTPUT -p udp -g one\n-A one ! -i eth0 -j two\n-A one -p tcp -j DROP",
        "-A OUTPUT -p tcp -j DROP\n-A OUTPUT -i eth+ -j ACCEPT",
    ] {
        let error = read(&table(lines), false).unwrap_err();
        assert_eq!(error, format!("f:8: {message} (--skip-unsupported leaves it out)"), "{lines}");
        let reading = read_with(table(lines), skip.clone()).unwrap();
        assert_eq!(reading.skipped, [Skipped { line: 8, message: message.into() }], "{lines}");
    }
    // By any interface is by none, too.
    read(&table("-A OUTPUT -j one\n-A one -i + -p tcp -j DROP"), false).unwrap();
    // A chain for other packets as well, as which one it is read here.
    let lines = "-A OUTPUT -j one\n-A FORWARD -j one\n-A one -i eth0 -j DROP";
    for (list, is_read) in [("FORWARD", true), ("one", true), ("OUTPUT", false)] {
        let options =
            Options { format: Some(Format::Iptables), list: Some(list.into()), ..Options::default() };
        assert_eq!(read_with(table(lines), options).is_ok(), is_read, "{list}");
    }
}

#[test]
fn a_file_of_several_lists_needs_a_name() {
    let with = |list: Option<&str>, text: &str| {
        let list = list.map(str::to_owned);
        read_with(text, Options { format: Some(Format::Iptables), list, ..Options::default() })
    };
    let both = table("-A INPUT -j DROP\n-A FORWARD -j ACCEPT\n-A one -j RETURN\n-A one -p tcp -j DROP");
    assert_eq!(
        with(None, &both).unwrap_err(),
        "f: several lists; expected the name of one (--list): INPUT, FORWARD"
    );
    assert_eq!(
        with(Some("input"), &both).unwrap_err(),
        "f: no list \"input\"; expected one of INPUT, FORWARD, OUTPUT, one, two"
    );
    let forward = with(Some("FORWARD"), &both).unwrap();
    assert_eq!((forward.default, forward.rules.rules[0].action), (Some(Action::Deny), Some(Action::Permit)));
    let output = with(Some("OUTPUT"), &both).unwrap();
    assert_eq!((output.default, output.rules.rules.len()), (Some(Action::Permit), 0));
    // Of a chain that is called, nothing says what becomes of what returns from it.
    let one = with(Some("one"), &both).unwrap();
    assert_eq!((one.default, one.rules.rules.len()), (None, 0));
    assert_eq!(
        with(None, &table("")).unwrap_err(),
        "f: several lists; expected the name of one (--list): INPUT, FORWARD, OUTPUT"
    );
    // Without a list, what there is instead.
    let expected = "expected a table \"*filter\" with a chain such as INPUT";
    for (text, message) in [
        ("# nat\n*nat\nCOMMIT\n", format!("f:2: no list of rules: the tables are nat; {expected}")),
        ("*raw\nCOMMIT\n*nat\nCOMMIT\n", format!("f:1: no list of rules: the tables are raw, nat; {expected}")),
        (
            include_str!("faults/09-mangle-only.v4"),
            format!("f:1: no list of rules: the tables are mangle; {expected}"),
        ),
        (
            "*raw\nCOMMIT\n*filter\nCOMMIT\n",
            "f:3: the table filter has no chain; expected one such as \":INPUT ACCEPT [0:0]\"".into(),
        ),
        (
            "# nothing\n",
            "f: no list of rules; expected what iptables-save prints, with a table \"*filter\" and a chain such as INPUT"
                .into(),
        ),
    ] {
        assert_eq!(with(None, text).unwrap_err(), message, "{text}");
        assert_eq!(with(Some("INPUT"), text).unwrap_err(), message, "{text}");
    }
    // An empty chain with its policy is a list.
    let empty = with(None, "*filter\n:INPUT ACCEPT [0:0]\nCOMMIT\n").unwrap();
    assert_eq!((empty.default, empty.rules.rules.len()), (Some(Action::Permit), 0));
}

#[test]
fn the_tool_is_recognised() {
    let recognised = |text: &str| read_with(text, Options::default()).map(|reading| reading.format);
    let v4 = "# Generated by iptables-save v1.8.9 on Sat Nov 21 19:05:05 2026\n*filter\n:INPUT ACCEPT [0:0]\n-A INPUT -j DROP\nCOMMIT\n";
    assert_eq!(recognised(v4), Ok(Format::Iptables));
    assert_eq!(recognised(&v4.replace("iptables", "ip6tables")), Ok(Format::Ip6tables));
    // Without its name, addresses and ICMPv6 tell; the default is the tool without a number.
    assert_eq!(
        recognised("*filter\n:INPUT ACCEPT [0:0]\n-A INPUT -s fe80::/10 -j DROP\n"),
        Ok(Format::Ip6tables)
    );
    assert_eq!(
        recognised("*filter\n:INPUT ACCEPT [0:0]\n-A INPUT -p ipv6-icmp -j DROP\n"),
        Ok(Format::Ip6tables)
    );
    assert_eq!(recognised("*filter\n:INPUT ACCEPT [0:0]\n-A INPUT -j DROP\n"), Ok(Format::Iptables));
    // `iptables -S`, and rules with their counters.
    assert_eq!(recognised("-P INPUT DROP\n-N x\n-A INPUT -j x\n-A x -j ACCEPT\n"), Ok(Format::Iptables));
    assert_eq!(
        recognised("*filter\n:INPUT ACCEPT [5:6]\n[7:8] -A INPUT -j DROP\nCOMMIT\n"),
        Ok(Format::Iptables)
    );
}

/// A file as large installations have it: user chains with whitelists that return, port lists, and rules without an equal. The
/// text, what becomes of it, and where the rules without an equal stand.
fn large(random: &mut Random) -> (String, Model, Vec<Skipped>) {
    const CHAINS: usize = 60;
    let address = |random: &mut Random, len: u8| {
        let address = 0x0a00_0000 | random.below(1 << 24) as u32;
        (u128::from(address >> (32 - len) << (32 - len)), len)
    };
    let no_condition = || Conditions {
        source: None,
        destination: None,
        protocol: None,
        header: false,
        ports: Vec::new(),
        flags: None,
        icmp: None,
        fragment: None,
    };
    let mut chains = vec![Vec::new(); CHAINS];
    for (number, chain) in chains.iter_mut().enumerate() {
        for _ in 0..60 + random.below(40) {
            let mut conditions = no_condition();
            let len = random.pick(&[16, 24, 28, 32]);
            conditions.source =
                (random.below(3) > 0).then(|| Not(random.below(20) == 0, address(random, len)));
            conditions.destination = (random.below(3) > 0).then(|| Not(false, address(random, len)));
            if random.below(4) > 0 {
                let protocol = random.pick(&[6, 6, 17]);
                conditions.protocol = Some(Not(false, protocol));
                let port = |random: &mut Random| random.pick(&netfilter::PORTS);
                let ranges = (0..1 + random.below(5)).map(|_| {
                    let (a, b) = (port(random), port(random));
                    if random.below(2) == 0 { (a, a) } else { (a.min(b), a.max(b)) }
                });
                let ranges = ranges.collect();
                let of = random.pick(&[
                    PortsOf::Source,
                    PortsOf::Destination,
                    PortsOf::Destination,
                    PortsOf::Either,
                ]);
                conditions.ports.push((of, Not(random.below(15) == 0, ranges)));
                if protocol == 6 && random.below(6) == 0 {
                    conditions.flags = Some(Not(random.below(3) == 0, (0x02, 0x17)));
                }
            }
            let does = match random.below(20) {
                // Two levels below the first chain, each met by a part of the packets.
                0 | 1 if number < 8 => {
                    conditions = no_condition();
                    conditions.source = Some(Not(false, address(random, 12)));
                    let below = if number == 0 { 1..8 } else { 8..CHAINS };
                    Does::Jump(below.start + random.below((below.end - below.start) as u64) as usize)
                }
                2 if number > 0 => {
                    conditions.ports.clear();
                    conditions.flags = None;
                    conditions.protocol = None;
                    conditions.destination = None;
                    conditions.source = Some(Not(false, address(random, 24)));
                    Does::Return
                }
                3..=11 => Does::Decide(Action::Permit),
                12 => Does::Nothing,
                _ => Does::Decide(Action::Deny),
            };
            let log = matches!(does, Does::Decide(_)) && random.below(8) == 0;
            chain.push(ModelRule { conditions, does, log });
        }
    }
    let model = Model { v6: false, policy: Action::Deny, chains };
    // What has no equal goes between the lines, but not between a log and the rule that it is for.
    let (mut text, mut skipped, mut line) = (String::new(), Vec::new(), 0);
    let mut say = |rule: &str, text: &mut String| {
        *text += rule;
        text.push('\n');
        line += 1;
        line
    };
    let mut last_logs = false;
    for rule in model.iptables().lines() {
        if rule.starts_with("-A") && !last_logs && random.below(12) == 0 {
            let chain = rule.split(' ').nth(1).expect("a chain");
            let (unsupported, message) = random.pick(UNSUPPORTED);
            let line = say(&format!("-A {chain} {unsupported}"), &mut text);
            // The last chains may be those that nothing jumps to.
            skipped.push((chain.to_owned(), Skipped { line, message: message.into() }));
        }
        last_logs = rule.contains("-j LOG");
        say(rule, &mut text);
    }
    let reached: std::collections::HashSet<String> = reached(&model);
    let skipped =
        skipped.into_iter().filter(|(chain, _)| reached.contains(chain)).map(|(_, skipped)| skipped);
    (text, model, skipped.collect())
}

/// The names of the chains that packets can come to.
fn reached(model: &Model) -> std::collections::HashSet<String> {
    let mut reached = std::collections::HashSet::from(["INPUT".to_owned()]);
    let mut next = vec![0];
    while let Some(chain) = next.pop() {
        for rule in &model.chains[chain] {
            if let Does::Jump(target) | Does::Goto(target) = rule.does
                && reached.insert(format!("chain{target}"))
            {
                next.push(target);
            }
        }
    }
    reached
}

#[test]
fn a_large_file_is_read_as_a_whole() {
    let mut random = Random(7);
    let (text, model, skipped) = large(&mut random);
    assert!(text.lines().count() > 4_000, "{} lines", text.lines().count());
    assert!(skipped.len() > 100, "{} without an equal", skipped.len());
    let first = &skipped[0];
    let error = read(&text, false).unwrap_err();
    let expected = format!(
        "f: {} mistakes\n    f:{}: {} (--skip-unsupported leaves it out)\n",
        skipped.len(),
        first.line,
        first.message
    );
    assert!(error.starts_with(&expected), "{error}");
    let reading = read_with(&text, Options { skip_unsupported: true, ..Options::default() }).unwrap();
    assert_eq!(reading.skipped, skipped);
    // Addresses that rules are about, and their neighbours.
    let conditions = model.chains.iter().flatten().map(|rule| &rule.conditions);
    let edges: Vec<u128> = conditions
        .flat_map(|conditions| [&conditions.source, &conditions.destination])
        .flatten()
        .flat_map(|Not(_, (base, len))| {
            let past = (1u128 << (32 - len)) - 1;
            [*base, base | past, base.wrapping_sub(1) & 0xffff_ffff, base + past + 1]
        })
        .collect();
    let packets: Vec<_> = (0..20_000)
        .map(|_| Packet {
            source: random.pick(&edges),
            destination: random.pick(&edges),
            protocol: random.pick(&[6, 6, 17, 1]),
            fragment: random.pick(&netfilter::FRAGMENTS),
            ports: (random.pick(&netfilter::PORTS), random.pick(&netfilter::PORTS)),
            icmp: (8, 0),
            flags: random.pick(&[0x02, 0x10, 0x12, 0x04]),
        })
        .collect();
    model.compare(&reading, &packets).unwrap();
    let deny = packets.iter().filter(|packet| model.verdict(packet).0 == Action::Deny).count();
    assert!((2_000..18_000).contains(&deny), "{deny} of 20000 are denied");
}

#[test]
fn rules_are_written_in_these_words() {
    let rule = |text: &str| super::rule(text);
    let write = |text: &str, format| written(&[rule(text)], format, None);
    let table = |lines: &str| format!("*filter\n:FORWARD DROP [0:0]\n{lines}COMMIT\n");
    for (text, lines) in [
        ("permit any from 0.0.0.0/0 to any", "-A FORWARD -j ACCEPT\n"),
        ("deny tcp from 10.0.0.0/8 to 192.0.2.1", "-A FORWARD -s 10.0.0.0/8 -d 192.0.2.1/32 -p 6 -j DROP\n"),
        (
            "permit tcp from 0.0.0.0/0 port 1-2 to any port 80 flags S/SA",
            "-A FORWARD -p 6 -m tcp --sport 1:2 --dport 80 --tcp-flags SYN,ACK SYN -j ACCEPT\n",
        ),
        (
            "deny tcp from 0.0.0.0/0 to any flags /FSRPAU",
            "-A FORWARD -p 6 -m tcp --tcp-flags FIN,SYN,RST,PSH,ACK,URG NONE -j DROP\n",
        ),
        // Ports of no protocol are those of each that has them.
        (
            "permit any from 0.0.0.0/0 to any port 53",
            "-A FORWARD -p 6 -m tcp --dport 53 -j ACCEPT\n-A FORWARD -p 17 -m udp --dport 53 -j ACCEPT\n-A FORWARD -p 132 -m sctp --dport 53 -j ACCEPT\n",
        ),
        (
            "permit icmp from 0.0.0.0/0 to any type 3 code 4",
            "-A FORWARD -p 1 -m icmp --icmp-type 3/4 -j ACCEPT\n",
        ),
        ("deny any from 0.0.0.0/0 to any fragment later", "-A FORWARD -f -j DROP\n"),
        ("deny tcp from 0.0.0.0/0 to any fragment not-later", "-A FORWARD -p 6 ! -f -j DROP\n"),
        (
            "deny gre from 0.0.0.0/0 to any log id x # say \"no\" \\ 'more'",
            "-A FORWARD -p 47 -j LOG\n-A FORWARD -p 47 -m comment --comment \"say \\\"no\\\" \\\\ 'more'\" -j DROP\n",
        ),
        ("deny gre from 0.0.0.0/0 to any id x", "-A FORWARD -p 47 -m comment --comment \"x\" -j DROP\n"),
    ] {
        assert_eq!(write(text, Format::Iptables).unwrap(), table(lines), "{text}");
    }
    for (text, lines) in [
        (
            "permit icmpv6 from ::/0 to any type 128",
            "-A FORWARD -p 58 -m icmp6 --icmpv6-type 128 -j ACCEPT\n",
        ),
        ("deny tcp from ::/0 to any fragment not-later", "-A FORWARD -p 6 -m tcp -j DROP\n"),
    ] {
        assert_eq!(write(text, Format::Ip6tables).unwrap(), table(lines), "{text}");
    }
    for (text, format, reason) in [
        ("deny any from ::/0 to any", Format::Iptables, "which holds IPv4 only"),
        ("deny any from 0.0.0.0/0 to any", Format::Ip6tables, "which holds IPv6 only"),
        ("deny any from any to any", Format::Iptables, "which says nothing about IPv6 packets"),
        ("deny any from any to any", Format::Ip6tables, "which says nothing about IPv4 packets"),
        ("deny 0 from 0.0.0.0/0 to any", Format::Iptables, "where protocol 0 is every protocol"),
        ("deny 51 from ::/0 to any", Format::Ip6tables, "where this protocol's header is walked over"),
        (
            "deny tcp from 0.0.0.0/0 to any flags E/E",
            Format::Iptables,
            "which has no words for the flags ECE and CWR",
        ),
        ("deny icmp from 0.0.0.0/0 to any type 255", Format::Iptables, "where ICMP type 255 is every type"),
        (
            "deny icmpv6 from 0.0.0.0/0 to any type 1",
            Format::Iptables,
            "which has no words for this type of the other family's ICMP, or for a code alone",
        ),
        (
            "deny any from 0.0.0.0/0 to any fragment first",
            Format::Iptables,
            "which has no words for these fragments",
        ),
        (
            "deny tcp from 0.0.0.0/0 to any port 1 fragment none",
            Format::Iptables,
            "which has no words for these fragments",
        ),
        (
            "deny any from ::/0 to any fragment later",
            Format::Ip6tables,
            "which has no words for these fragments",
        ),
        (
            "@0.0.0.0/0 0.0.0.0/0 0 : 65535 0 : 65535 0x06/0xff",
            Format::Iptables,
            "where every rule has an action",
        ),
        ("reflect tcp from any to any", Format::Iptables, "where no rule admits connections"),
    ] {
        match write(text, format) {
            Err(WriteError::Inexpressible { index: 0, reason: found, .. }) => {
                assert_eq!(found, reason, "{text}")
            }
            other => panic!("{text}: {other:?}"),
        }
    }
    // The policy is the default, and to drop where nothing is said.
    let permitting = written(&[], Format::Iptables, Some(Action::Permit)).unwrap();
    assert_eq!(permitting, "*filter\n:FORWARD ACCEPT [0:0]\nCOMMIT\n");
}

#[test]
fn what_is_left_out_of_a_written_file_is_listed() {
    use packetloom_classify::formats::{WriteOptions, write_rules};
    let rules = super::rules("deny any from any to any\npermit any from ::/0 to any\n").unwrap().rules;
    let options = WriteOptions { skip_unsupported: true, ..WriteOptions::default() };
    let mut text = Vec::new();
    let skipped = write_rules(&rules, Format::Iptables, &options, &mut text).unwrap().unwritten;
    assert_eq!(
        String::from_utf8(text).unwrap(),
        "*filter\n:FORWARD DROP [0:0]\n-A FORWARD -j DROP\nCOMMIT\n"
    );
    let skipped: Vec<_> = skipped.iter().map(ToString::to_string).collect();
    assert_eq!(
        skipped,
        [
            "line 1: which says nothing about IPv6 packets: deny any from any to any",
            "line 2: which holds IPv4 only: permit any from ::/0 to ::/0"
        ]
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_written_does_the_same(
        rules in prop::collection::vec(super::display::any_rule_of_a_context(), 1..12),
        permits in any::<bool>(),
        v6 in any::<bool>(),
        seed in any::<u64>(),
    ) {
        let default = if permits { Action::Permit } else { Action::Deny };
        let can_say = |rule: &Rule| written(std::slice::from_ref(rule), format(v6), None).is_ok();
        let rules: Vec<_> = rules.into_iter().filter(can_say).collect();
        prop_assert_eq!(round_trip(&rules, format(v6), default, seed), Ok(true));
    }
}
