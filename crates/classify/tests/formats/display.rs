//! Rules shown as text read back as the same rules.

use std::sync::Arc;

use packetloom_classify::rule::{
    Addresses, Fragments, PortRange, Prefix4, Prefix6, TcpFlagMatch, flags_from_letters, flags_to_letters,
};
use packetloom_classify::{Action, ConnectionState, ConnectionStates, Interfaces, Rule};
use packetloom_packet::protocol;
use proptest::prelude::*;

use super::{rule, rules};

#[test]
fn rules_are_shown_in_one_form() {
    for (text, shown) in [
        ("permit any from any to any", "permit any from any to any"),
        ("deny 6 from any to any port 0-65535", "deny tcp from any to any"),
        ("deny 200 from any to any", "deny 200 from any to any"),
        ("permit tcp from any to any port 80-80", "permit tcp from any to any port 80"),
        ("permit any from 10.0.0.1 to any", "permit any from 10.0.0.1/32 to 0.0.0.0/0"),
        ("permit any from any to 2001:DB8:0::1", "permit any from ::/0 to 2001:db8::1/128"),
        (
            "permit tcp from any to any id x fragment none flags AS/FSA",
            "permit tcp from any to any flags SA/FSA fragment none id x",
        ),
        ("permit icmp from any to any type 3 code 4", "permit icmp from any to any type 3 code 4"),
        // ClassBench's rules have no action.
        ("@10.0.0.0/8 0.0.0.0/0 0 : 65535 53 : 54 0x11/0xff", "udp from 10.0.0.0/8 to 0.0.0.0/0 port 53-54"),
        (
            "@0.0.0.0/0 0.0.0.0/0 0 : 65535 0 : 65535 0x06/0xff 0x0200/0x1200",
            "tcp from 0.0.0.0/0 to 0.0.0.0/0 flags S/SA",
        ),
    ] {
        assert_eq!(rule(text).to_string(), shown, "{text}");
    }
}

#[test]
fn flags_have_letters() {
    for flags in 0..=u8::MAX {
        let letters = flags_to_letters(flags);
        assert_eq!(flags_from_letters(&letters), Some(flags), "{letters}");
        assert_eq!(flags_from_letters(&letters.chars().rev().collect::<String>()), Some(flags));
    }
    assert_eq!(flags_from_letters("SX"), None);
}

fn ports() -> impl Strategy<Value = PortRange> {
    let some = (any::<u16>(), any::<u16>()).prop_map(|(a, b)| PortRange { low: a.min(b), high: a.max(b) });
    prop_oneof![Just(PortRange::ANY), some, any::<u16>().prop_map(|port| PortRange { low: port, high: port })]
}

fn addresses() -> impl Strategy<Value = Addresses> {
    let v4 = || (any::<u32>(), 0..=32u8).prop_map(|(address, len)| Prefix4::new(address, len));
    let v6 = || (any::<u128>(), 0..=128u8).prop_map(|(address, len)| Prefix6::new(address, len));
    // Addresses with few bits set are those that are shown in another way than the rest.
    let sparse = (any::<[bool; 16]>(), any::<u128>(), 0..=128u8).prop_map(|(bytes, address, len)| {
        let kept = bytes.into_iter().fold(0, |mask, keep| mask << 8 | if keep { 0xff } else { 0 });
        Prefix6::new(address & kept, len)
    });
    prop_oneof![
        Just(Addresses::Any),
        (v4(), v4()).prop_map(|(source, destination)| Addresses::V4(source, destination)),
        (v6(), v6()).prop_map(|(source, destination)| Addresses::V6(source, destination)),
        (sparse, v6()).prop_map(|(source, destination)| Addresses::V6(source, destination)),
    ]
}

fn fragments() -> impl Strategy<Value = Fragments> {
    prop::sample::select(vec![
        Fragments::All,
        Fragments::Any,
        Fragments::None,
        Fragments::First,
        Fragments::Later,
        Fragments::NotLater,
    ])
}

/// Any rule that our own format can say; its conditions fit its protocol.
pub(crate) fn any_rule() -> impl Strategy<Value = Rule> {
    let protocol = prop_oneof![
        Just(None),
        any::<u8>().prop_map(Some),
        prop::sample::select(vec![1, 6, 17, 58, 132]).prop_map(Some)
    ];
    let icmp = prop::option::of((any::<u8>(), prop::option::of(any::<u8>())));
    let flags = prop::option::of(
        (any::<u8>(), 1..=u8::MAX).prop_map(|(set, mask)| TcpFlagMatch { set: set & mask, mask }),
    );
    // A name is a word: anything but ASCII blanks and '#', other blanks included.
    let id = prop::option::of("[a-zA-Z0-9_./@>:\u{b}\u{a0}\u{2003}ü]{1,8}");
    // A comment is whatever is left of the line.
    let comment = prop::option::of("[a-zA-Z0-9#@\"\\\\ü]([ -~\u{2003}]{0,12}[a-z#'])?");
    let action = prop::sample::select(vec![Action::Permit, Action::Deny]);
    let said = (id, comment, prop::bool::weighted(0.2));
    (action, protocol, addresses(), ports(), ports(), icmp, flags, fragments(), said).prop_map(
        |(action, protocol, addresses, source_ports, destination_ports, icmp, tcp_flags, fragments, said)| {
            let (id, comment, log) = said;
            let (id, comment) = (id.map(Into::into), comment.map(Into::into));
            let mut rule =
                Rule { addresses, protocol, fragments, id, comment, log, ..Rule::any(Some(action)) };
            if protocol.is_none_or(protocol::has_ports) {
                (rule.source_ports, rule.destination_ports) = (source_ports, destination_ports);
            }
            if let (true, Some((icmp_type, icmp_code))) =
                (protocol.is_some_and(protocol::has_type_and_code), icmp)
            {
                (rule.icmp_type, rule.icmp_code) = (Some(icmp_type), icmp_code);
            }
            if protocol == Some(protocol::TCP) {
                rule.tcp_flags = tcp_flags;
            }
            rule
        },
    )
}

/// What rules of the tests ask for beside headers: the interfaces by which packets come and leave, and states of connections.
fn context() -> impl Strategy<Value = (Option<Arc<Interfaces>>, Option<Arc<Interfaces>>, ConnectionStates)> {
    let interfaces = || {
        let list = prop::sample::select(vec!["eth0", "!eth0", "wg+", "eth0,eth1", "any,!wg+"]);
        prop::option::weighted(0.4, list.prop_map(|list| Arc::new(Interfaces::parse(list).expect("a list"))))
    };
    let states = prop::sample::subsequence(ConnectionState::ALL.to_vec(), 1..=5).prop_map(|states| {
        states.into_iter().fold(ConnectionStates::NONE, |all, state| all.union(ConnectionStates::one(state)))
    });
    (interfaces(), interfaces(), prop_oneof![Just(ConnectionStates::ALL), states])
}

/// [`any_rule`], which may be for packets of some interfaces and states only.
pub(crate) fn any_rule_of_a_context() -> impl Strategy<Value = Rule> {
    (any_rule(), context()).prop_map(|(rule, (interfaces, out, states))| Rule {
        interfaces,
        out,
        states,
        ..rule
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4_096, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn shown_rules_read_back_as_the_same(expected in any_rule_of_a_context(), mark in prop_oneof![Just(0), any::<u32>()]) {
        let expected = Rule { mark, ..expected };
        let text = expected.to_string();
        prop_assert_eq!(rule(&text), Rule { line: 1, ..expected }, "{}", text);
    }

    #[test]
    fn any_line_is_read_or_refused_at_its_place(line in "(permit|deny|@|tcp|) ?[a-z0-9:./ >#-]{0,40}") {
        for error in [rules(&line).err(), super::headers(&line).err()].into_iter().flatten() {
            prop_assert!(error.starts_with("f:1: "), "{}", error);
        }
    }
}
