//! Access lists of Cisco IOS.

use packetloom_classify::formats::{Format, Options};
use packetloom_classify::rule::{Addresses, Fragments, TcpFlagMatch};
use packetloom_classify::{Action, Rule};
use proptest::prelude::*;

use super::verdicts::{in_words, read, read_with, round_trip, shown, written};
use crate::strategies::{action, addresses, ports, protocol};

/// The rules of one entry of an extended list, in our own words.
fn extended(entry: &str) -> Vec<String> {
    shown(Format::CiscoIos, &format!("access-list 101 {entry}\n"))
}

/// What is said about one entry of an extended list.
fn refused(entry: &str) -> String {
    read(Format::CiscoIos, format!("access-list 101 {entry}\n")).expect_err(entry)
}

#[test]
fn entries_of_extended_lists() {
    for (entry, expected) in [
        ("permit ip any any", &["permit any from 0.0.0.0/0 to 0.0.0.0/0"][..]),
        ("deny ip any any log", &["deny any from 0.0.0.0/0 to 0.0.0.0/0 log"]),
        ("deny ip any any log-input (1 match)", &["deny any from 0.0.0.0/0 to 0.0.0.0/0 log"]),
        // Protocols.
        ("permit ospf any any", &["permit ospf from 0.0.0.0/0 to 0.0.0.0/0"]),
        ("permit ahp any any", &["permit ah from 0.0.0.0/0 to 0.0.0.0/0"]),
        ("permit ipinip any any", &["permit ipip from 0.0.0.0/0 to 0.0.0.0/0"]),
        ("permit 41 any any", &["permit ipv6 from 0.0.0.0/0 to 0.0.0.0/0"]),
        ("permit icmp any any", &["permit icmp from 0.0.0.0/0 to 0.0.0.0/0"]),
        // Addresses: the wildcard's bits are not compared, wherever they are.
        (
            "permit ip host 192.0.2.1 198.51.100.0 0.0.0.255",
            &["permit any from 192.0.2.1/32 to 198.51.100.0/24"],
        ),
        ("permit ip 10.1.2.3 0.0.0.255 any", &["permit any from 10.1.2.0/24 to 0.0.0.0/0"]),
        ("permit ip 10.1.2.3 0.0.0.0 any", &["permit any from 10.1.2.3/32 to 0.0.0.0/0"]),
        ("permit ip 1.2.3.4 255.255.255.255 any", &["permit any from 0.0.0.0/0 to 0.0.0.0/0"]),
        (
            "deny ip 10.0.1.0 0.0.2.255 any",
            &["deny any from 10.0.1.0/24 to 0.0.0.0/0", "deny any from 10.0.3.0/24 to 0.0.0.0/0"],
        ),
        // Neighbours become one prefix.
        ("deny ip 10.0.0.0 0.0.1.255 any", &["deny any from 10.0.0.0/23 to 0.0.0.0/0"]),
        // Ports. An entry that permits takes later fragments by addresses and protocol.
        (
            "permit tcp any any eq www",
            &[
                "permit tcp from 0.0.0.0/0 to 0.0.0.0/0 port 80",
                "permit tcp from 0.0.0.0/0 to 0.0.0.0/0 fragment later",
            ],
        ),
        ("deny tcp any any eq www", &["deny tcp from 0.0.0.0/0 to 0.0.0.0/0 port 80"]),
        (
            "deny udp any eq domain ntp any gt 1023",
            &[
                "deny udp from 0.0.0.0/0 port 53 to 0.0.0.0/0 port 1024-65535",
                "deny udp from 0.0.0.0/0 port 123 to 0.0.0.0/0 port 1024-65535",
            ],
        ),
        ("deny tcp any lt 1024 any", &["deny tcp from 0.0.0.0/0 port 0-1023 to 0.0.0.0/0"]),
        (
            "deny tcp any any neq 80",
            &[
                "deny tcp from 0.0.0.0/0 to 0.0.0.0/0 port 0-79",
                "deny tcp from 0.0.0.0/0 to 0.0.0.0/0 port 81-65535",
            ],
        ),
        ("deny tcp any any neq 0", &["deny tcp from 0.0.0.0/0 to 0.0.0.0/0 port 1-65535"]),
        ("deny sctp any range 7 9 any", &["deny sctp from 0.0.0.0/0 port 7-9 to 0.0.0.0/0"]),
        ("deny tcp any any range 0 65535", &["deny tcp from 0.0.0.0/0 to 0.0.0.0/0 fragment not-later"]),
        ("deny tcp any any eq ftp-data ftp", &["deny tcp from 0.0.0.0/0 to 0.0.0.0/0 port 20-21"]),
        (
            "deny tcp any any eq 1 3 5 7 9 11 13 15 17 19",
            &[
                "deny tcp from 0.0.0.0/0 to 0.0.0.0/0 port 1",
                "deny tcp from 0.0.0.0/0 to 0.0.0.0/0 port 3",
                "deny tcp from 0.0.0.0/0 to 0.0.0.0/0 port 5",
                "deny tcp from 0.0.0.0/0 to 0.0.0.0/0 port 7",
                "deny tcp from 0.0.0.0/0 to 0.0.0.0/0 port 9",
                "deny tcp from 0.0.0.0/0 to 0.0.0.0/0 port 11",
                "deny tcp from 0.0.0.0/0 to 0.0.0.0/0 port 13",
                "deny tcp from 0.0.0.0/0 to 0.0.0.0/0 port 15",
                "deny tcp from 0.0.0.0/0 to 0.0.0.0/0 port 17",
                "deny tcp from 0.0.0.0/0 to 0.0.0.0/0 port 19",
            ],
        ),
        // A name means what it means with the protocol.
        ("deny tcp any any eq syslog", &["deny tcp from 0.0.0.0/0 to 0.0.0.0/0 port 514"]),
        ("deny udp any any eq biff", &["deny udp from 0.0.0.0/0 to 0.0.0.0/0 port 512"]),
        // Messages.
        ("deny icmp any any echo", &["deny icmp from 0.0.0.0/0 to 0.0.0.0/0 type 8"]),
        ("deny icmp any any ttl-exceeded", &["deny icmp from 0.0.0.0/0 to 0.0.0.0/0 type 11 code 0"]),
        ("deny icmp any any 3 4 log", &["deny icmp from 0.0.0.0/0 to 0.0.0.0/0 type 3 code 4 log"]),
        ("deny icmp any any 3", &["deny icmp from 0.0.0.0/0 to 0.0.0.0/0 type 3"]),
        (
            "permit icmp any any unreachable",
            &[
                "permit icmp from 0.0.0.0/0 to 0.0.0.0/0 type 3",
                "permit icmp from 0.0.0.0/0 to 0.0.0.0/0 fragment later",
            ],
        ),
        // Flags: one of those named is enough, of match-all every one is needed.
        (
            "deny tcp any any established",
            &[
                "deny tcp from 0.0.0.0/0 to 0.0.0.0/0 flags R/RA",
                "deny tcp from 0.0.0.0/0 to 0.0.0.0/0 flags A/A",
            ],
        ),
        ("deny tcp any any syn", &["deny tcp from 0.0.0.0/0 to 0.0.0.0/0 flags S/S"]),
        (
            "deny tcp any any fin syn",
            &[
                "deny tcp from 0.0.0.0/0 to 0.0.0.0/0 flags F/FS",
                "deny tcp from 0.0.0.0/0 to 0.0.0.0/0 flags S/S",
            ],
        ),
        ("deny tcp any any match-all +syn -ack", &["deny tcp from 0.0.0.0/0 to 0.0.0.0/0 flags S/SA"]),
        (
            "deny tcp any any match-any +syn -ack log",
            &[
                "deny tcp from 0.0.0.0/0 to 0.0.0.0/0 flags /A log",
                "deny tcp from 0.0.0.0/0 to 0.0.0.0/0 flags SA/SA log",
            ],
        ),
        // No packet is like this.
        ("deny tcp any any match-all +syn -syn", &[]),
        (
            "permit tcp host 10.0.0.1 any eq 22 established",
            &[
                "permit tcp from 10.0.0.1/32 to 0.0.0.0/0 port 22 flags R/RA",
                "permit tcp from 10.0.0.1/32 to 0.0.0.0/0 port 22 flags A/A",
                "permit tcp from 10.0.0.1/32 to 0.0.0.0/0 fragment later",
            ],
        ),
        // Later fragments only.
        ("deny ip any any fragments", &["deny any from 0.0.0.0/0 to 0.0.0.0/0 fragment later"]),
        (
            "permit udp any host 192.0.2.1 fragments log",
            &["permit udp from 0.0.0.0/0 to 192.0.2.1/32 fragment later log"],
        ),
    ] {
        assert_eq!(extended(entry), expected, "{entry}");
    }
}

#[test]
fn entries_that_are_no_entries() {
    for (entry, message) in [
        ("premit ip any any", "\"premit\"; expected permit, deny or remark"),
        ("permit", "the line ends; expected a protocol"),
        ("permit tpc any any", "protocol \"tpc\"; expected a name such as tcp, or a number from 0 to 255"),
        ("permit 256 any any", "protocol \"256\"; expected a name such as tcp, or a number from 0 to 255"),
        ("permit ipv6 any any", "protocol \"ipv6\"; expected a name such as tcp, or a number from 0 to 255"),
        ("permit ip any", "the line ends; expected any, host, or an address and a wildcard"),
        ("permit ip host any", "address \"any\"; expected an IPv4 address such as 192.0.2.1"),
        ("permit ip 10.0.0.0/8 any", "address \"10.0.0.0/8\"; expected an IPv4 address such as 192.0.2.1"),
        ("permit ip 10.0.0.0", "the line ends; expected a wildcard"),
        ("permit ip 10.0.0.0 any", "address \"any\"; expected an IPv4 address such as 192.0.2.1"),
        ("permit ip any any eq 80", "\"eq\" with a protocol that has no ports; expected tcp, udp or sctp"),
        ("permit tcp any any eq", "the line ends; expected a port"),
        (
            "permit tcp any any eq htpp",
            "port \"htpp\"; expected a name such as www, or a number from 0 to 65535",
        ),
        // The name of a UDP port.
        (
            "permit tcp any any eq ntp",
            "port \"ntp\"; expected a name such as www, or a number from 0 to 65535",
        ),
        ("permit tcp any any eq 1 2 3 4 5 6 7 8 9 10 11", "11 ports; expected up to 10"),
        ("permit tcp any any gt 1 2", "gt with several ports; expected one"),
        ("permit tcp any any gt 65535", "gt 65535, which no port is"),
        ("permit tcp any any lt 0", "lt 0, which no port is"),
        ("permit tcp any any range 9 8", "range 9 8 runs downwards; expected 8 9"),
        ("permit tcp any any range 9", "the line ends; expected the last port of the range"),
        ("permit icmp any any pong", "\"pong\"; expected an option such as log or fragments"),
        ("permit icmp any any 256", "ICMP type \"256\"; expected a number from 0 to 255"),
        ("permit icmp any any 3 256", "ICMP code \"256\"; expected a number from 0 to 255"),
        ("permit udp any any established", "\"established\"; expected an option such as log or fragments"),
        ("permit tcp any any foo", "\"foo\"; expected an option such as established, log or fragments"),
        ("permit tcp any any match-all", "match-all without flags; expected flags such as +syn -ack"),
        ("permit tcp any any syn match-all +ack", "\"match-all\" beside match-any or match-all"),
        ("permit tcp any any match-any +ack syn", "\"syn\" beside match-any or match-all"),
        ("permit tcp any any match-all +xyz", "flag \"xyz\"; expected ack, fin, psh, rst, syn or urg"),
        (
            "permit tcp any any eq 80 fragments",
            "fragments with ports, a message or flags, which later fragments do not have",
        ),
        ("permit ip any any log cookie", "\"cookie\"; expected an option such as log or fragments"),
        ("permit ip object-group A any", "object-group A is not there, or of another kind"),
    ] {
        assert_eq!(refused(entry), format!("f:1: {}", crate::told(message)), "{entry}");
    }
}

#[test]
fn entries_that_no_rule_equals() {
    for (entry, construct) in [
        ("permit ip any any dscp ef", "\"dscp\" has no equal among our rules"),
        ("permit tcp any any eq 80 time-range work", "\"time-range\" has no equal among our rules"),
        ("permit ip any any precedence critical", "\"precedence\" has no equal among our rules"),
        ("permit ip any any tos 4", "\"tos\" has no equal among our rules"),
        ("permit ip any any ttl lt 5", "\"ttl\" has no equal among our rules"),
        ("permit ip any any option any-options", "\"option\" has no equal among our rules"),
        ("permit tcp any any reflect OUT", "\"reflect\" has no equal among our rules"),
        ("permit igmp any any host-report", "\"host-report\" has no equal among our rules"),
        ("evaluate IN", "\"evaluate\" has no equal among our rules"),
        ("dynamic x permit ip any any", "\"dynamic\" has no equal among our rules"),
        ("permit 0 any any", "protocol 0, which may stand for every protocol"),
        ("permit tcp any any neq 80 443", "neq with several ports"),
        ("permit ip 10.0.0.0 170.170.170.170 any", "the wildcard 170.170.170.170, of 2^16 ranges"),
    ] {
        let text = format!("access-list 101 {entry}\naccess-list 101 deny ip any any\n");
        if construct.ends_with("2^16 ranges") {
            // As many as may be: see the next test.
            continue;
        }
        let error = read(Format::CiscoIos, &text).expect_err(entry);
        assert_eq!(error, format!("f:1: {construct} (--skip-unsupported leaves it out)"), "{entry}");
        let options =
            Options { format: Some(Format::CiscoIos), skip_unsupported: true, ..Options::default() };
        let reading = read_with(&text, options).expect(entry);
        assert_eq!(in_words(&reading.rules.rules), ["deny any from 0.0.0.0/0 to 0.0.0.0/0"], "{entry}");
        let skipped: Vec<_> = reading.skipped.iter().map(ToString::to_string).collect();
        assert_eq!(skipped, [format!("line 1: {construct}")], "{entry}");
    }
}

#[test]
fn wildcards_become_prefixes_as_far_as_they_are_few() {
    // Every other bit of the upper half.
    let rules = extended("permit ip 0.0.0.0 170.170.255.255 any");
    assert_eq!(rules.len(), 256);
    assert_eq!(rules[255], "permit any from 170.170.0.0/16 to 0.0.0.0/0");
    assert_eq!(extended("permit ip 0.0.0.0 170.170.170.170 any").len(), 1 << 16);
    assert_eq!(
        refused("permit ip 0.0.0.0 250.170.170.170 any"),
        "f:1: the wildcard 250.170.170.170, of 2^18 ranges (--skip-unsupported leaves it out)"
    );
}

#[test]
fn standard_lists_have_sources_only() {
    for (entry, expected) in [
        ("permit any", "permit any from 0.0.0.0/0 to 0.0.0.0/0"),
        ("deny host 10.0.0.1 log", "deny any from 10.0.0.1/32 to 0.0.0.0/0 log"),
        ("permit 10.0.0.1", "permit any from 10.0.0.1/32 to 0.0.0.0/0"),
        ("permit 10.0.0.1 log", "permit any from 10.0.0.1/32 to 0.0.0.0/0 log"),
        ("permit 10.0.0.0 0.255.255.255", "permit any from 10.0.0.0/8 to 0.0.0.0/0"),
        (
            "permit 10.0.0.0, wildcard bits 0.255.255.255 (3 matches)",
            "permit any from 10.0.0.0/8 to 0.0.0.0/0",
        ),
    ] {
        for list in ["access-list 1 ", "access-list 1300 ", "ip access-list standard X\n 10 "] {
            assert_eq!(shown(Format::CiscoIos, &format!("{list}{entry}")), [expected], "{entry}");
        }
    }
    for (entry, message) in [
        ("permit tcp any any", "address \"tcp\"; expected an IPv4 address such as 192.0.2.1"),
        ("permit any any", "\"any\"; expected log or the end of the entry"),
        ("permit", "the line ends; expected a source"),
    ] {
        let error = read(Format::CiscoIos, format!("access-list 99 {entry}")).expect_err(entry);
        assert_eq!(error, format!("f:1: {message}"));
    }
}

#[test]
fn ipv6_lists_permit_neighbour_discovery_before_they_end() {
    let text = "ipv6 access-list EDGE6\n permit tcp 2001:db8::/32 any eq 443 sequence 20\n \
                sequence 10 deny icmp any host 2001:db8::1 nd-na\n deny ipv6 any any log\n";
    let reading = read(Format::CiscoIos, text).expect("a list");
    assert_eq!(
        in_words(&reading.rules.rules),
        [
            "deny icmpv6 from ::/0 to 2001:db8::1/128 type 136",
            "permit tcp from 2001:db8::/32 to ::/0 port 443",
            "permit tcp from 2001:db8::/32 to ::/0 fragment later",
            "deny any from ::/0 to ::/0 log",
            "permit icmpv6 from ::/0 to ::/0 type 135 # implicit",
            "permit icmpv6 from ::/0 to ::/0 type 136 # implicit",
            "permit icmpv6 from ::/0 to ::/0 fragment later # implicit",
        ]
    );
    assert_eq!(reading.default, Some(Action::Deny));
    let ids: Vec<_> = reading.rules.rules.iter().map(|rule| rule.id.as_deref()).collect();
    assert_eq!(ids, [Some("10"), Some("20"), Some("20"), Some("30"), None, None, None]);
    for (entry, message) in [
        ("permit ip any any", "protocol \"ip\"; expected a name such as tcp, or a number from 0 to 255"),
        (
            "permit ipv6 10.0.0.0 0.0.0.255 any",
            "address \"10.0.0.0\"; expected any, host, or a prefix such as 2001:db8::/32",
        ),
        ("permit ipv6 ::/129 any", "prefix length \"129\"; expected a number from 0 to 128"),
        (
            "permit ipv6 any any flow-label 5",
            "\"flow-label\" has no equal among our rules (--skip-unsupported leaves it out)",
        ),
        ("permit 1 any any 8", "\"8\"; expected an option such as log or fragments"),
        (
            "permit ipv6 any any routing",
            "\"routing\" has no equal among our rules (--skip-unsupported leaves it out)",
        ),
    ] {
        let error = read(Format::CiscoIos, format!("ipv6 access-list X\n {entry}")).expect_err(entry);
        assert_eq!(error, format!("f:2: {message}"));
    }
}

/// A configuration of a router at the edge of a small network, made for this test.
const CONFIGURATION: &str = "\
Building configuration...

version 15.7
service timestamps log datetime msec
hostname edge-1
!
banner motd ^C
permit only what is allowed
access-list 7 permit any
^C
!
object-group network SERVERS
 description what the world may reach
 host 192.0.2.10
 192.0.2.32 255.255.255.240
!
object-group network OUR-NETWORKS
 group-object SERVERS
 range 198.51.100.0 198.51.100.2
 203.0.113.0 /24
!
object-group service WEB
 tcp eq www
 tcp 443
 udp eq 443
 icmp echo
!
class-map match-any VOICE
 match access-group name VOICE
interface GigabitEthernet0/0
 ip address 192.0.2.1 255.255.255.0
 ip access-group EDGE-IN in
!
ip access-list extended EDGE-IN
 remark Nobody outside has our addresses
 deny   ip object-group OUR-NETWORKS any log
 remark The servers
 remark and what they serve
 permit object-group WEB any object-group SERVERS
 permit tcp any any established
 5 permit esp any host 192.0.2.1
 40 deny   ip any any
!
no cdp run
access-list 10 remark management
access-list 10 permit 192.0.2.128 0.0.0.127
access-list 700 permit 0000.0000.0000 ffff.ffff.ffff
route-map OUT permit 10
 match ip address 10
line vty 0 4
 access-class 10 in
end
";

#[test]
fn a_running_configuration() {
    let options = |list: Option<&str>| Options { list: list.map(Into::into), ..Options::default() };
    // It is recognised.
    let error = read_with(CONFIGURATION, options(None)).expect_err("two lists");
    assert_eq!(error, "f: several lists; expected the name of one (--list): EDGE-IN, 10");
    let error = read_with(CONFIGURATION, options(Some("7"))).expect_err("a banner");
    assert_eq!(error, "f: no list \"7\"; expected one of EDGE-IN, 10");
    let reading = read_with(CONFIGURATION, options(Some("EDGE-IN"))).expect("a list");
    assert_eq!(reading.format, Format::CiscoIos);
    let expected = [
        (41, "5", "permit esp from 0.0.0.0/0 to 192.0.2.1/32"),
        (36, "10", "deny any from 192.0.2.10/32 to 0.0.0.0/0 log # Nobody outside has our addresses"),
        (36, "10", "deny any from 192.0.2.32/28 to 0.0.0.0/0 log # Nobody outside has our addresses"),
        (36, "10", "deny any from 198.51.100.0/31 to 0.0.0.0/0 log # Nobody outside has our addresses"),
        (36, "10", "deny any from 198.51.100.2/32 to 0.0.0.0/0 log # Nobody outside has our addresses"),
        (36, "10", "deny any from 203.0.113.0/24 to 0.0.0.0/0 log # Nobody outside has our addresses"),
        (39, "20", "permit tcp from 0.0.0.0/0 to 192.0.2.10/32 port 80 # The servers; and what they serve"),
        (39, "20", "permit tcp from 0.0.0.0/0 to 192.0.2.32/28 port 80 # The servers; and what they serve"),
    ];
    let rules = &reading.rules.rules;
    let words = in_words(rules);
    for (at, (line, id, text)) in expected.into_iter().enumerate() {
        assert_eq!((rules[at].line, rules[at].id.as_deref(), words[at].as_str()), (line, Some(id), text));
    }
    let last = rules.last().expect("rules");
    assert_eq!((last.line, last.id.as_deref(), last.action), (42, Some("40"), Some(Action::Deny)));
    let reading = read_with(CONFIGURATION, options(Some("10"))).expect("a list");
    assert_eq!(in_words(&reading.rules.rules), ["permit any from 192.0.2.128/25 to 0.0.0.0/0 # management"]);
}

#[test]
fn what_show_access_lists_prints() {
    let text = "Extended IP access list 101\n    10 permit tcp any any eq www (123 matches)\n    \
                20 deny ip any any log (5 estimate matches)\nIPv6 access list SIX\n    \
                permit udp any any eq domain (2 matches) sequence 10\n";
    let rules = shown(Format::CiscoIos, text);
    // One list of each family.
    assert_eq!(rules.len(), 3 + 2 + 3);
    assert_eq!(rules[3], "permit udp from ::/0 to ::/0 port 53");
}

/// What is said of a file without lists.
const NO_LIST: &str =
    "f: no access list; expected one such as \"ip access-list extended NAME\" or \"access-list 101 …\"";

#[test]
fn what_begins_like_a_list_is_understood_or_refused() {
    let like = "looks like the beginning of a list or a group; expected it as IOS writes it, such as \"ip access-list extended NAME\"";
    let asa = "is the syntax of Cisco ASA, which is not read; expected that of IOS, such as \"access-list 101 permit …\" or \
               \"ip access-list extended NAME\"";
    let v4 = "after \"ip access-list\"; expected standard or extended, and a name";
    let v6 = "after \"ipv6 access-list\"; expected a name and nothing else";
    let group = "after \"object-group\"; expected network, v6-network, service or v6-service, and a name";
    let list = "access-list 150 permit tcp any any eq 80\n";
    for (line, message) in [
        // Typing errors, words too many and too few.
        ("ip access-list extened B", format!("\"extened B\" {v4}")),
        ("ip access-list extended", format!("\"extended\" {v4}")),
        ("ip access-list extended A B", format!("\"extended A B\" {v4}")),
        ("ip access-list resequence A 10 10", format!("\"resequence A 10 10\" {v4}")),
        ("ip access-lsit extended B", format!("\"ip access-lsit extended B\" {like}")),
        ("ip acces-list standard B", format!("\"ip acces-list standard B\" {like}")),
        ("ip accesslist standard B", format!("\"ip accesslist standard B\" {like}")),
        ("pi access-list extended B", format!("\"pi access-list extended B\" {like}")),
        ("acess-list 101 deny ip any any", format!("\"acess-list 101 deny ip any any\" {like}")),
        ("access_list 101 deny ip any any", format!("\"access_list 101 deny ip any any\" {like}")),
        ("ipv6 access-list extended AL6", format!("\"extended AL6\" {v6}")),
        ("ipv6 access-list", format!("\"\" {v6}")),
        ("ipv6 acces-list A", format!("\"ipv6 acces-list A\" {like}")),
        ("object-group netwrok A", format!("\"netwrok A\" {group}")),
        ("object-group service A tcp", format!("\"service A tcp\" {group}")),
        ("object-gruop network A", format!("\"object-gruop network A\" {like}")),
        ("access-list 101", "access-list 101 without an entry; expected permit, deny or remark".into()),
        (
            "access-list 3000 deny ip any any",
            "access-list 3000; expected a number of 1-199, 1300-1999 or 2000-2699".into(),
        ),
        // Case and abbreviations.
        ("IP ACCESS-LIST EXTENDED B", format!("\"IP ACCESS-LIST EXTENDED B\" {like}")),
        ("Access-List 101 deny ip any any", format!("\"Access-List 101 deny ip any any\" {like}")),
        ("ip access-l ext A", format!("\"ip access-l ext A\" {like}")),
        ("ip acce e A", format!("\"ip acce e A\" {like}")),
        ("acc 101 deny ip any any", format!("\"acc 101 deny ip any any\" {like}")),
        ("ipv6 acce A", format!("\"ipv6 acce A\" {like}")),
        // Other commands, other systems.
        ("default ip access-list extended A", format!("\"default ip access-list extended A\" {like}")),
        ("no ip access-list extened A", format!("\"extened A\" {v4}")),
        ("no acces-list 101", format!("\"acces-list 101\" {like}")),
        ("ipv4 access-list A", format!("\"ipv4 access-list A\" {like}")),
        ("access-list WEB extended deny tcp any any eq 22", format!("\"access-list WEB extended\" {asa}")),
        ("access-list WEB deny tcp any any eq 22", format!("\"access-list WEB deny\" {asa}")),
        ("access-list 101 extended deny tcp any any eq 22", format!("\"access-list 101 extended\" {asa}")),
        ("access-list WEB line 1 extended deny ip any any", format!("\"access-list WEB line\" {asa}")),
        ("access-list 10 standard permit any", format!("\"access-list 10 standard\" {asa}")),
        // What "show access-lists" prints.
        (
            "Extended IP access list A of this",
            "\"of this\" after the name of access list A; expected nothing, or a note in ()".into(),
        ),
        ("extended ip access list A", format!("\"extended ip access list A\" {like}")),
        ("IP access list A", format!("\"IP access list A\" {like}")),
        ("Extnded IP access list A", format!("\"Extnded IP access list A\" {like}")),
        // Behind the prompt of a session.
        ("R1(config)#ip access-list extended A", format!("\"R1(config)#ip access-list extended A\" {like}")),
        ("R1(config-ext-nacl)# deny ip any any", format!("\"R1(config-ext-nacl)# deny ip any any\" {like}")),
        // Entries.
        ("dney ip any any", "\"dney ip any any\" outside of an access list".into()),
        ("10 premit ip any any", "\"10 premit ip any any\" outside of an access list".into()),
    ] {
        let text = format!("{list}{line}\n deny ip any any\n");
        assert_eq!(
            read(Format::CiscoIos, &text).expect_err(line),
            format!("f:2: {}", crate::told(&message)),
            "{line}"
        );
        // It is refused wherever it stands, and recognised.
        if !line.contains("any any") {
            let inside = format!("interface Vlan1\n {line}\n{list}");
            let expected = format!("f:2: {}", crate::told(&message));
            assert_eq!(read(Format::CiscoIos, &inside).expect_err(line), expected, "{line}");
            assert!(read_with(&inside, Options::default()).expect_err(line).starts_with("f:2: "), "{line}");
        }
    }
    // These begin like a list, and decide over no packet of the lists that are read.
    for line in [
        "ip access-list log-update threshold 5",
        "ip access-list logging interval 100",
        "ip access-list persistent",
        "access-list compiled",
        "access-list 700 permit 0000.0000.0000 ffff.ffff.ffff",
        "mac access-list extended M\n permit any any",
        "arp access-list M\n permit ip any mac any",
        "object-group security S\n security-group tag 4",
        "Extended MAC access list M\n    permit any any",
        "interface Vlan1\n description IP access list for servers\n ip access-group A in",
        "ip access-group A in",
        "ip accounting-threshold 5",
        "ip as-path access-list 1 permit ^$",
        "ip prefix-list P permit 10.0.0.0/8",
        "ipv6 access-class A in",
        "access-class 10 in",
        "access-session mac-move deny",
        "line vty 0 4\n access-class 10 in",
        "R1#show access-lists",
        "show access-lists",
        "no cdp run",
    ] {
        let text = format!("{line}\n{list}");
        assert_eq!(read(Format::CiscoIos, &text).expect(line).rules.rules.len(), 2, "{line}");
    }
}

#[test]
fn lists_that_are_nearly_right_are_not_passed_over() {
    for (text, message) in [
        (
            include_str!("faults/05-typo.cfg"),
            "f:3: \"extened B\" after \"ip access-list\"; expected standard or extended, and a name",
        ),
        (
            include_str!("faults/05-asa-line.cfg"),
            "f:2: \"access-list WEB extended\" is the syntax of Cisco ASA, which is not read; expected that of IOS, such as \
             \"access-list 101 permit …\" or \"ip access-list extended NAME\"",
        ),
        (
            include_str!("faults/05-v6-extra-word.cfg"),
            "f:2: \"extended AL6\" after \"ipv6 access-list\"; expected a name and nothing else",
        ),
        (include_str!("faults/05-peruser.cfg"), "f: several lists; expected the name of one (--list): A, B"),
    ] {
        assert_eq!(read_with(text, Options::default()).expect_err(message), crate::told(message));
    }
    let text = include_str!("faults/05-peruser.cfg");
    let options = Options { list: Some("A".into()), ..Options::default() };
    let reading = read_with(text, options).expect("a list");
    assert_eq!(in_words(&reading.rules.rules), ["permit any from 0.0.0.0/0 to 0.0.0.0/0"]);
    // Notes behind a name say nothing about packets.
    for note in ["", " (Compiled)", " (per-user)", " (12 matches)", " (per-user) (Compiled)", " in"] {
        let text = format!("Extended IP access list A{note}\n    10 deny gre any any (12 matches)\n");
        assert_eq!(shown(Format::CiscoIos, &text), ["deny gre from 0.0.0.0/0 to 0.0.0.0/0"], "{note}");
    }
    // Lists of other kinds are lists among others, and are not read.
    for line in [
        "ip access-list role-based R",
        "Reflexive IP access list R",
        "IPv6 access list R (reflexive) (per-user)",
    ] {
        let text = format!("{line}\n permit tcp any any\nip access-list extended A\n permit gre any any\n");
        let with = |list: Option<&str>| {
            read_with(&text, Options { list: list.map(Into::into), ..Options::default() })
        };
        assert_eq!(with(None).expect_err(line), "f: several lists; expected the name of one (--list): R, A");
        assert_eq!(in_words(&with(Some("A")).expect("a list").rules.rules).len(), 1);
        assert_eq!(
            with(Some("R")).expect_err(line),
            "f:1: access list R is role-based or reflexive; expected one of another kind"
        );
    }
    // Entries without blanks before them, one with a typing error, and one that is taken away by its words.
    let list = "ip access-list extended A\npermit gre any any\n";
    assert_eq!(
        read(Format::CiscoIos, format!("{list}dney udp any any\n")).expect_err("a typing error"),
        "f:3: \"dney udp any any\"; expected permit, deny or remark; did you mean \"deny\"?"
    );
    assert_eq!(
        read(Format::CiscoIos, format!("{list}no permit gre any any\n")).expect_err("no"),
        "f:3: \"no\"; expected permit, deny or remark"
    );
    // A group that is taken away is not there; "ip" goes on with other commands.
    let groups = "object-group network G\n host 10.0.0.1\nip route 0.0.0.0 0.0.0.0 10.0.0.2\n";
    let list = "access-list 101 permit ip object-group G any\n";
    assert_eq!(shown(Format::CiscoIos, &format!("{groups}{list}")).len(), 1);
    let error =
        read(Format::CiscoIos, format!("{groups}no object-group network G\n{list}")).expect_err("no group");
    assert_eq!(error, "f:5: object-group G is not there, or of another kind");
    // Two lists of one name, of two families.
    let text = "ip access-list extended A\n permit gre any any\nipv6 access-list A\n deny ipv6 any any\n";
    let options = Options { list: Some("A".into()), ..Options::default() };
    assert_eq!(
        read_with(text, options).expect_err("two lists"),
        "f: several lists \"A\"; expected one of this name"
    );
}

#[test]
fn blocks() {
    for (text, message) in [
        // Inside a list everything is understood.
        (
            "ip access-list extended X\n permit ip any any\n frobnicate\n",
            "f:3: \"frobnicate\"; expected permit, deny or remark",
        ),
        ("hostname x\npermit ip any any\n", "f:2: \"permit ip any any\" outside of an access list"),
        ("10 deny ip any any\n", "f:1: \"10 deny ip any any\" outside of an access list"),
        (
            "ip access-list X\n permit ip any any\n",
            "f:1: \"X\" after \"ip access-list\"; expected standard or extended, and a name",
        ),
        ("ip access-list extended X\n", "f:1: access list X has no entries"),
        ("hostname x\n", NO_LIST),
        (
            "banner motd #\naccess-list 101 permit ip any any\n",
            "f:1: the banner does not end before the file does; expected \"#\" behind its text",
        ),
        ("no access-list 101\naccess-list 101 permit ip any any\nno access-list 101\n", NO_LIST),
        (
            "ip access-list extended X\n 10 permit ip any any\n 10 deny ip any any\n",
            "f:3: sequence number 10 is that of line 2 already",
        ),
        ("ip access-list extended X\n no 10\n", "f:2: no entry 10 to remove"),
        (
            "ip access-list extended X\n 4294967295 permit ip any any\n deny ip any any\n",
            "f:3: no sequence number is left after the last entry",
        ),
        (
            "ip access-list extended X\n permit ip any any\nip access-list standard X\n permit any\n",
            "f:3: access list X is there already, as one of another kind",
        ),
        (
            "object-group network G\n host 10.0.0.1\nobject-group service G\n tcp\n",
            "f:3: object-group G is there already, as one of another kind",
        ),
    ] {
        assert_eq!(read(Format::CiscoIos, text).expect_err(text), message, "{text}");
    }
    for (text, expected) in [
        // A lower number goes first; entries can be taken out again.
        (
            "ip access-list extended X\n20 permit tcp any any\n10 deny udp any any\n15 permit ip any any\nno 15\n",
            &["deny udp from 0.0.0.0/0 to 0.0.0.0/0", "permit tcp from 0.0.0.0/0 to 0.0.0.0/0"][..],
        ),
        // A list may go on later, and by another command.
        (
            "access-list 101 permit tcp any any\nhostname x\nip access-list extended 101\n permit udp any any\n",
            &["permit tcp from 0.0.0.0/0 to 0.0.0.0/0", "permit udp from 0.0.0.0/0 to 0.0.0.0/0"],
        ),
        // The second beginning is the one that counts.
        (
            "access-list 101 deny ip any any\nno access-list 101\naccess-list 101 permit gre any any\n",
            &["permit gre from 0.0.0.0/0 to 0.0.0.0/0"],
        ),
        // Other lists, and what stands in other blocks, are passed over.
        (
            "mac access-list extended M\n permit any any\naccess-list 101 permit gre any any\n",
            &["permit gre from 0.0.0.0/0 to 0.0.0.0/0"],
        ),
    ] {
        assert_eq!(shown(Format::CiscoIos, text), expected, "{text}");
    }
}

#[test]
fn object_groups() {
    let with = |groups: &str| {
        read(Format::CiscoIos, format!("{groups}access-list 101 deny ip object-group A any\n"))
    };
    let rules = |groups: &str| with(groups).map(|reading| in_words(&reading.rules.rules));
    assert_eq!(
        rules("object-group network A\n any\n"),
        Ok(vec!["deny any from 0.0.0.0/0 to 0.0.0.0/0".into()])
    );
    // A range of addresses is as few prefixes as can be.
    assert_eq!(
        rules("object-group network A\n range 10.0.0.1 10.0.0.4\n"),
        Ok(["10.0.0.1/32", "10.0.0.2/31", "10.0.0.4/32"]
            .map(|prefix| format!("deny any from {prefix} to 0.0.0.0/0"))
            .into())
    );
    for (groups, message) in [
        (
            "object-group network A\n group-object B\nobject-group network B\n group-object A\n",
            "f:5: object-group A holds itself",
        ),
        ("object-group network A\n", "f:2: object-group A has no members"),
        ("object-group network A\n group-object B\n", "f:3: object-group B is not there, or of another kind"),
        ("object-group service A\n tcp\n", "f:3: object-group A is not there, or of another kind"),
        (
            "object-group network A\n 10.0.0.0 255.0.255.0\n",
            "f:3: object-group A, line 2: mask 255.0.255.0; expected one such as 255.255.255.0",
        ),
        (
            "object-group network A\n range 10.0.0.2 10.0.0.1\n",
            "f:3: object-group A, line 2: a range that runs downwards; expected the lower address first",
        ),
        (
            "object-group network A\n host 10.0.0.1 x\n",
            "f:3: object-group A, line 2: \"x\"; expected the end of the line",
        ),
    ] {
        assert_eq!(with(groups).map(|_| ()).expect_err(groups), message, "{groups}");
    }
    let deep: String =
        (0..50).map(|n| format!("object-group network G{n}\n group-object G{}\n", n + 1)).collect();
    let error = with(&format!("object-group network A\n group-object G0\n{deep}")).map(|_| ());
    assert!(error.expect_err("deep").ends_with("lies in more than 32 others"));
    // Services, with the ports of the source behind their word.
    let text = "object-group service S\n tcp source range 1 2 eq 80\n tcp-udp lt 5\n udp source gt 5\n 47\n\
                access-list 101 deny object-group S any any\n";
    assert_eq!(
        shown(Format::CiscoIos, text),
        [
            "deny tcp from 0.0.0.0/0 port 1-2 to 0.0.0.0/0 port 80",
            "deny tcp from 0.0.0.0/0 to 0.0.0.0/0 port 0-4",
            "deny udp from 0.0.0.0/0 to 0.0.0.0/0 port 0-4",
            "deny udp from 0.0.0.0/0 port 6-65535 to 0.0.0.0/0",
            "deny gre from 0.0.0.0/0 to 0.0.0.0/0",
        ]
    );
    let text = "object-group v6-network N\n host 2001:db8::1\n 2001:db8:1::/48\n range 2001:db8:2:: 2001:db8:2::1\n\
                ipv6 access-list X\n deny ipv6 object-group N any\n";
    assert_eq!(
        shown(Format::CiscoIos, text)[..3],
        [
            "deny any from 2001:db8::1/128 to ::/0",
            "deny any from 2001:db8:1::/48 to ::/0",
            "deny any from 2001:db8:2::/127 to ::/0",
        ]
    );
}

#[test]
fn rules_are_written_as_lists() {
    let rules = super::rules(
        "permit tcp from 10.0.0.0/8 to 192.0.2.1 port 443 # the web\n\
         permit tcp from 10.0.0.0/8 to 192.0.2.1 fragment later # the web\n\
         deny udp from any port 1024-65535 to 192.0.2.0/24 port 0-1023 log\n\
         permit tcp from any to 192.0.2.2 flags S/SA\n\
         deny gre from 0.0.0.0/0 to any fragment later\n\
         permit icmp from 0.0.0.0/0 to any type 3 code 4\n\
         permit gre from 2001:db8::/32 to any\n",
    )
    .expect("rules");
    let text = written(&rules.rules, Format::CiscoIos, Some(Action::Deny)).expect("a list");
    let expected = "\
ip access-list extended PACKETLOOM
 remark the web
 permit tcp 10.0.0.0 0.255.255.255 host 192.0.2.1 eq 443
 permit tcp 10.0.0.0 0.255.255.255 host 192.0.2.1 fragments
 deny udp any gt 1023 192.0.2.0 0.0.0.255 lt 1024 log
 deny gre any any fragments
 deny ip any any fragments
 permit tcp any host 192.0.2.2 match-all +syn -ack
 permit icmp any any 3 4
 deny ip any any
ipv6 access-list PACKETLOOM-V6
 permit gre 2001:db8::/32 any
 deny ipv6 any any
";
    assert_eq!(text, expected);
    // Without a default, too: a router forwards the packets of a family without a list.
    assert_eq!(
        written(
            &super::rules("deny any from 10.0.0.0/8 to any").expect("a rule").rules,
            Format::CiscoIos,
            None
        )
        .expect("a list"),
        "ip access-list extended PACKETLOOM\n deny ip 10.0.0.0 0.255.255.255 any\n deny ip any any\n\
         ipv6 access-list PACKETLOOM-V6\n deny ipv6 any any\n"
    );
}

#[test]
fn rules_without_an_entry() {
    for (rule, reason) in [
        (
            "permit icmp from any to any type 8",
            "where types and codes belong to icmp with IPv4 and icmpv6 with IPv6",
        ),
        ("permit tcp from any to any flags E/E", "where flags are those from FIN to URG"),
        ("permit tcp from ::/0 to any flags S/SA", "where an IPv6 entry asks for one flag that is set"),
        ("permit any from any to any fragment first", "where whole packets and first fragments are alike"),
        ("permit any from any to any fragment none", "where whole packets and first fragments are alike"),
        ("permit 0 from any to any", "where protocol 0 is every protocol"),
        ("reflect tcp from any to any", "where no rule admits connections"),
        (
            "permit tcp from any to any port 1 fragment later",
            "where later fragments have no ports, types or flags",
        ),
    ] {
        let rules = super::rules(rule).expect(rule).rules;
        let error = written(&rules, Format::CiscoIos, None).expect_err(rule).to_string();
        assert_eq!(error, format!("rule 0 has no line in this format, {reason}: {}", rules[0]));
    }
}

/// Rules that IOS has entries for.
fn rule() -> impl Strategy<Value = Rule> {
    let ports = || ports(2, 1);
    let icmp = prop::option::of((0..9u8, prop::option::of(0..3u8)));
    let flags = prop::option::of((0..0x40u8, 1..0x40u8));
    let fragments =
        prop::sample::select(vec![Fragments::All, Fragments::All, Fragments::Later, Fragments::NotLater]);
    (action(), addresses(), protocol(), ports(), ports(), icmp, flags, fragments, any::<bool>()).prop_map(
        |(action, addresses, protocol, source_ports, destination_ports, icmp, flags, fragments, log)| {
            let mut rule = Rule { addresses, protocol, fragments, log, ..Rule::any(Some(action)) };
            if fragments == Fragments::Later {
                return rule;
            }
            if matches!(protocol, None | Some(6 | 17 | 132)) {
                (rule.source_ports, rule.destination_ports) = (source_ports, destination_ports);
            }
            if let (Some((icmp_type, code)), Addresses::V4(..), Some(1))
            | (Some((icmp_type, code)), Addresses::V6(..), Some(58)) = (icmp, addresses, protocol)
            {
                (rule.icmp_type, rule.icmp_code) = (Some(icmp_type), code);
            }
            match (flags, addresses, protocol) {
                (Some((set, mask)), Addresses::V4(..), Some(6)) => {
                    rule.tcp_flags = Some(TcpFlagMatch { set: set & mask, mask });
                }
                (Some(_), Addresses::V6(..), Some(6)) => rule.tcp_flags = Some(TcpFlagMatch::ACK),
                _ => {}
            }
            rule
        },
    )
}

/// Text of the words of the format, in lines.
fn text() -> impl Strategy<Value = String> {
    let words: Vec<&str> = "ip ipv6 access-list extended standard X 101 1 permit deny remark tcp udp icmp any host 10.0.0.1 0.0.0.255 \
        255.255.0.255 2001:db8::/32 :: eq neq gt lt range 80 www 65535 0 established match-any +syn -ack fragments log object-group \
        network service group-object G sequence no 10 echo ( (1 matches) ! banner ^C exit , / + - é Extended IP access list tcp-udp source"
        .split_whitespace()
        .collect();
    let line = (prop::bool::ANY, prop::collection::vec(prop::sample::select(words), 0..12))
        .prop_map(|(indented, words)| format!("{}{}\n", if indented { " " } else { "" }, words.join(" ")));
    prop::collection::vec(line, 0..12).prop_map(|lines| lines.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn lists_do_what_their_rules_do(rules in prop::collection::vec(rule(), 0..12), permit in any::<bool>(), seed in any::<u64>()) {
        let default = if permit { Action::Permit } else { Action::Deny };
        prop_assert_eq!(round_trip(&rules, Format::CiscoIos, default, seed), Ok(true));
    }

    #[test]
    fn any_text_is_read_or_refused(text in text(), skip_unsupported in any::<bool>()) {
        let options = Options { format: Some(Format::CiscoIos), skip_unsupported, ..Options::default() };
        let _ = read_with(&text, options);
    }

    #[test]
    fn a_changed_configuration_is_read_or_refused(at in 0..CONFIGURATION.len(), with in "\\PC{0,4}|[ \n0-9a-z.]{0,8}", cut in 0..40usize) {
        let mut text = CONFIGURATION.as_bytes().to_vec();
        text.splice(at..(at + cut).min(text.len()), with.bytes());
        let options = Options { format: Some(Format::CiscoIos), list: Some("EDGE-IN".into()), ..Options::default() };
        let _ = read_with(&text, options);
    }
}
