//! The analysis of rule sets, against every packet of a small world, and where there are many rules.

mod gaps;
mod many;
mod packets;
mod universe;

use std::collections::BTreeMap;

use packetloom_classify::analysis::{Analysis, Options, Side, Verdict};
use packetloom_classify::rule::{Addresses, Fragments, PortRange, Prefix4, Prefix6, TcpFlagMatch};
use packetloom_classify::{Action, Rule, RuleSet};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use crate::universe::{FLAGS, LENGTHS, PORTS, PROTOCOLS, TYPES, Universe, matches};

/// The usual, as often as its weight to 10, or one of the others.
fn mostly<T: Clone + std::fmt::Debug + 'static>(
    usual: T,
    weight: u32,
    others: impl Strategy<Value = T>,
) -> impl Strategy<Value = T> {
    prop_oneof![weight => Just(usual), 10 => others]
}

fn prefixes() -> impl Strategy<Value = Addresses> {
    let side = || (prop::sample::select(&LENGTHS[..]), 0..4u8);
    (side(), side(), prop::bool::weighted(0.3)).prop_map(|(source, destination, v6)| {
        let prefix4 = |(len, cell): (u8, u8)| Prefix4::new(u32::from(cell) << 30, len);
        let prefix6 = |(len, cell): (u8, u8)| Prefix6::new(u128::from(cell) << 126, len);
        if v6 {
            Addresses::V6(prefix6(source), prefix6(destination))
        } else {
            Addresses::V4(prefix4(source), prefix4(destination))
        }
    })
}

fn ports() -> impl Strategy<Value = PortRange> {
    let port = || prop::sample::select(&PORTS[..]);
    (port(), port()).prop_map(|(a, b)| PortRange { low: a.min(b), high: a.max(b) })
}

/// Rules of the small world. The higher one of the four weights, the rarer a rule asks for addresses, ports, protocols, or
/// anything else. Where rules differ in few things they cover each other more often.
fn rule(weights: [u32; 4]) -> impl Strategy<Value = Rule> {
    let [addresses, numbers, protocol, others] = weights;
    let icmp = || prop::sample::select(&TYPES[..]).prop_map(Some);
    let flags = (prop::sample::select(&FLAGS[..]), prop::sample::select(&FLAGS[..]))
        .prop_map(|(set, mask)| Some(TcpFlagMatch { set: set & mask, mask }));
    let fragments =
        prop::sample::select(vec![Fragments::Any, Fragments::None, Fragments::First, Fragments::Later]);
    (
        mostly(Addresses::Any, addresses, prefixes()),
        mostly(None, protocol, prop::sample::select(&PROTOCOLS[..]).prop_map(Some)),
        (mostly(PortRange::ANY, numbers, ports()), mostly(PortRange::ANY, numbers, ports())),
        (mostly(None, 9 * others, icmp()), mostly(None, 9 * others, icmp())),
        mostly(None, others, flags),
        mostly(Fragments::All, others, fragments),
        (any::<bool>(), mostly(0, 90, Just(1))),
    )
        .prop_map(|(addresses, protocol, ports, icmp, tcp_flags, fragments, (permit, mark))| Rule {
            addresses,
            protocol,
            source_ports: ports.0,
            destination_ports: ports.1,
            icmp_type: icmp.0,
            icmp_code: icmp.1,
            tcp_flags,
            fragments,
            mark,
            ..Rule::any(Some(if permit { Action::Permit } else { Action::Deny }))
        })
}

fn rule_set() -> impl Strategy<Value = RuleSet> {
    let some = |weights| prop::collection::vec(rule(weights), 1..=24);
    prop_oneof![
        some([0, 200, 200, 200]),
        some([200, 0, 200, 200]),
        some([5, 5, 60, 100]),
        some([30, 200, 5, 10]),
        some([200, 200, 200, 2]),
        some([20, 20, 20, 20]),
    ]
    .prop_map(|rules| RuleSet { rules })
}

/// What is wrong with the analysis of a rule set.
fn mistake(rules: &RuleSet, default: Action) -> Option<String> {
    let analysis = Analysis::new(rules, Options { default, ..Options::default() });
    let universe = Universe { rules, default, matches: matches(rules) };
    (0..rules.rules.len() as u32)
        .find_map(|position| universe.mistake(position, &analysis.check(position)))
        .map(|mistake| format!("{mistake}, default {default:?}"))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_small_world_agrees(rules in rule_set(), permit: bool) {
        let default = if permit { Action::Permit } else { Action::Deny };
        let mistake = mistake(&rules, default);
        prop_assert!(mistake.is_none(), "{}", mistake.unwrap());
    }

    #[test]
    fn a_small_world_without_actions_agrees(mut rules in rule_set()) {
        rules.rules.iter_mut().for_each(|rule| rule.action = None);
        let mistake = mistake(&rules, Action::Deny);
        prop_assert!(mistake.is_none(), "{}", mistake.unwrap());
    }
}

/// The worlds above would agree with anything if nothing ever came up in them.
#[test]
fn everything_comes_up_in_small_worlds() {
    let mut runner = TestRunner::deterministic();
    let mut counts: BTreeMap<&str, u32> = BTreeMap::new();
    for case in 0..3_000 {
        let mut rules = rule_set().new_tree(&mut runner).expect("a rule set").current();
        if case % 4 == 0 {
            rules.rules.iter_mut().for_each(|rule| rule.action = None);
        }
        let analysis = Analysis::new(&rules, Options::default());
        for position in 0..rules.rules.len() as u32 {
            let report = analysis.check(position);
            let several = report.verdict.causes().is_some_and(|causes| causes.rules.len() > 1);
            let name = match (&report.verdict, several) {
                (Verdict::Covered(_), true) => "covered by several",
                (Verdict::Shadowed(_), true) => "shadowed by several",
                (Verdict::Redundant { side: Side::Earlier, .. }, true) => "repeats several",
                (Verdict::Redundant { side: Side::Earlier, .. }, false) => "repeats one",
                (Verdict::Redundant { side: Side::Later { default: true }, causes }, _)
                    if !causes.rules.is_empty() =>
                {
                    "left to later rules and the default"
                }
                (Verdict::Redundant { side: Side::Later { default: true }, .. }, _) => "left to the default",
                (Verdict::Redundant { side: Side::Later { default: false }, .. }, true) => "left to several",
                (Verdict::Redundant { side: Side::Later { default: false }, .. }, false) => "left to one",
                (verdict, _) => verdict.name(),
            };
            *counts.entry(name).or_default() += 1;
            *counts.entry("correlated").or_default() += report.correlated.map_or(0, |c| c.count as u32);
        }
    }
    let expected = [
        "correlated",
        "covered",
        "covered by several",
        "effective",
        "left to later rules and the default",
        "left to one",
        "left to several",
        "left to the default",
        "repeats one",
        "repeats several",
        "shadowed",
        "shadowed by several",
        "unmatchable",
    ];
    assert_eq!(counts.keys().copied().collect::<Vec<_>>(), expected);
    assert!(counts.values().all(|&count| count > 20), "{counts:?}");
}
