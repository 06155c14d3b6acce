//! Rule sets that are large, or made to be hard.

use packetloom_classify::analysis::{Analysis, Causes, Options, Report, Side, Verdict};
use packetloom_classify::rule::{Addresses, Fragments, PortRange, Prefix4, Prefix6, TcpFlagMatch};
use packetloom_classify::{Action, Rule, RuleSet};

use Action::{Deny, Permit};

/// Brings rules into an order in which neighbours have nothing to do with each other.
fn mix(mut rules: Vec<Rule>) -> Vec<Rule> {
    let mut state = 1u64;
    for at in (1..rules.len()).rev() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        rules.swap(at, (state >> 33) as usize % (at + 1));
    }
    rules
}

fn check(rules: Vec<Rule>, work: u64, position: usize) -> Report {
    Analysis::new(&RuleSet { rules }, Options { work, ..Options::default() }).check(position as u32)
}

fn repeated(rules: u32) -> Verdict {
    let causes = Causes { rules: (0..rules).collect(), minimal: true };
    Verdict::Redundant { causes, side: Side::Earlier }
}

/// A rule for each protocol is as good as one for all of them, and each is needed: more classes than one mask holds.
#[test]
fn all_protocols_cover_any() {
    let every: Vec<Rule> =
        (0..=u8::MAX).map(|protocol| Rule { protocol: Some(protocol), ..Rule::any(Some(Permit)) }).collect();
    let fragments = [Fragments::First, Fragments::None, Fragments::Later];
    let each: Vec<Rule> =
        every.iter().flat_map(|rule| fragments.map(|fragments| Rule { fragments, ..rule.clone() })).collect();
    for (mut rules, work) in [(every, 1_000_000), (each, 100_000_000)] {
        let len = rules.len();
        rules.push(Rule::any(Some(Permit)));
        assert_eq!(check(rules.clone(), work, len).verdict, repeated(len as u32));
        for missing in [0, 47, len / 2, len - 1] {
            let mut rules = rules.clone();
            rules.remove(missing);
            assert_eq!(check(rules, work, len - 1).verdict, Verdict::Effective, "without {missing}");
        }
    }
}

/// All 256 values of the flags cover what one flag leaves open, in both families.
#[test]
fn all_flags_cover_any_that_were_captured() {
    let flags = |set, mask| Rule {
        protocol: Some(6),
        tcp_flags: Some(TcpFlagMatch { set, mask }),
        ..Rule::any(Some(Permit))
    };
    let mut rules: Vec<Rule> = (0..=u8::MAX).map(|set| flags(set, u8::MAX)).collect();
    rules.extend([flags(0, 1), flags(0, 0), Rule { protocol: Some(6), ..Rule::any(Some(Permit)) }]);
    let analysis = Analysis::new(&RuleSet { rules }, Options::default());
    let Verdict::Redundant { causes, side: Side::Earlier } = analysis.check(256).verdict else { panic!() };
    assert_eq!(causes, Causes { rules: (0..256).step_by(2).collect(), minimal: true });
    let Verdict::Redundant { causes, side: Side::Earlier } = analysis.check(257).verdict else { panic!() };
    assert!(causes.minimal && causes.rules.len() > 128, "{causes:?}");
    // Flags that were not captured, and later fragments, are left to the last.
    assert_eq!(analysis.check(258).verdict, Verdict::Effective);
}

/// A rule that holds the half of another's flags, which is all of them on one mask of classes, does not hold the rest.
#[test]
fn half_of_the_flags_are_not_all() {
    let flags = |source_len, set, mask| Rule {
        addresses: Addresses::V4(Prefix4::new(0xc000_0201, source_len), Prefix4::new(0, 0)),
        protocol: Some(6),
        tcp_flags: Some(TcpFlagMatch { set, mask }),
        ..Rule::any(Some(Permit))
    };
    let mut rules: Vec<Rule> = (0..=u8::MAX).map(|set| flags(32, set, u8::MAX)).collect();
    rules.extend([flags(0, 0, 0x80), flags(0, 0, 0x01), flags(0, 0, 0x81)]);
    assert_eq!(check(rules.clone(), 1_000_000, 257).verdict, Verdict::Effective);
    let causes = Causes { rules: vec![256], minimal: true };
    assert_eq!(check(rules, 1_000_000, 258).verdict, Verdict::Redundant { causes, side: Side::Earlier });
}

/// All ICMP types from 0 to 255 are all that there are.
#[test]
fn all_types_cover_any_code() {
    let rule =
        |icmp_type, icmp_code| Rule { protocol: Some(1), icmp_type, icmp_code, ..Rule::any(Some(Deny)) };
    let mut rules: Vec<Rule> = (0..=u8::MAX).map(|number| rule(Some(number), None)).collect();
    rules.push(rule(None, Some(3)));
    assert_eq!(check(rules.clone(), 1_000_000, 256).verdict, repeated(256));
    rules.remove(255);
    assert_eq!(
        check(rules, 1_000_000, 255).verdict,
        Verdict::Redundant {
            causes: Causes { rules: vec![], minimal: true },
            side: Side::Later { default: true },
        }
    );
}

/// A rule of either family is covered only where both are.
#[test]
fn families_are_covered_apart() {
    let half4 = |at: u32| Addresses::V4(Prefix4::new(at << 31, 1), Prefix4::new(0, 0));
    let half6 = |at: u128| Addresses::V6(Prefix6::new(0, 0), Prefix6::new(at << 127, 1));
    let halves = [half4(0), half6(0), half4(1), half6(1), Addresses::Any];
    let rules: Vec<Rule> = halves.map(|addresses| Rule { addresses, ..Rule::any(Some(Permit)) }).into();
    assert_eq!(check(rules.clone(), 1_000, 4).verdict, repeated(4));
    for missing in 0..4 {
        let mut rules = rules.clone();
        rules.remove(missing);
        assert_eq!(check(rules, 1_000, 3).verdict, Verdict::Effective);
    }
}

/// 64 * 64 squares of ports, in no order, that leave nothing open, or one square.
fn squares() -> Vec<Rule> {
    let side = |at: u16| PortRange { low: at << 10, high: (at << 10) + 1_023 };
    let square = |source, destination| Rule {
        protocol: Some(17),
        source_ports: side(source),
        destination_ports: side(destination),
        ..Rule::any(Some(Permit))
    };
    mix((0..64).flat_map(|source| (0..64).map(move |destination| square(source, destination))).collect())
}

#[test]
fn thousands_of_squares_cover_their_union() {
    let all = Rule {
        protocol: Some(17),
        source_ports: PortRange { low: 0, high: 65_534 },
        ..Rule::any(Some(Permit))
    };
    let rules = [squares(), vec![all]].concat();
    assert_eq!(check(rules.clone(), 100_000_000, 4_096).verdict, repeated(4_096));
    // That needs more than a million comparisons, mostly to see that each square is needed.
    let Verdict::Redundant { causes, .. } = check(rules.clone(), 1_000_000, 4_096).verdict else { panic!() };
    assert_eq!((causes.rules.len(), causes.minimal), (4_096, false));
    let undecided = Verdict::Undecided { never_hit: false };
    let report = check(rules.clone(), 10_000, 4_096);
    assert!(report.verdict == undecided && report.correlated.is_some());
    // Not even the rules that overlap it can be found.
    assert_eq!(check(rules.clone(), 4_096, 4_096), Report { verdict: undecided, correlated: None });
    for missing in [0, 1_000, 4_095] {
        let mut rules = rules.clone();
        rules.remove(missing);
        assert_eq!(check(rules, 1_000_000, 4_095).verdict, Verdict::Effective);
    }
}

/// 2,048 rules for sources across 2,048 for destinations: every one of the former overlaps every one of the latter.
fn crossing() -> Vec<Rule> {
    let every = Prefix4::new(0, 0);
    let rule = |addresses, action| Rule { addresses, ..Rule::any(Some(action)) };
    let prefix = |at: u32| Prefix4::new(at << 21, 11);
    let sources = (0..2_048).map(|at| rule(Addresses::V4(prefix(at), every), Permit)).collect();
    let destinations = (0..2_048).map(|at| rule(Addresses::V4(every, prefix(at)), Deny)).collect();
    [mix(sources), mix(destinations)].concat()
}

#[test]
fn rules_across_all_others_cost_no_more_than_they_may() {
    let rules = crossing();
    let analysis = Analysis::new(&RuleSet { rules: rules.clone() }, Options::default());
    for position in [0, 1_000, 2_047] {
        let report = analysis.check(position);
        assert_eq!(report.verdict, Verdict::Effective);
        assert_eq!(report.correlated.expect("work enough").count, 0);
    }
    for position in [2_048, 3_000, 4_095] {
        let report = analysis.check(position);
        let Verdict::Shadowed(causes) = report.verdict else { panic!() };
        assert_eq!(causes.rules, (0..2_048).collect::<Vec<_>>());
        let correlated = report.correlated.expect("work enough");
        assert_eq!((correlated.count, correlated.first), (2_048, (0..10).collect()));
    }
    let little =
        Analysis::new(&RuleSet { rules: rules.clone() }, Options { work: 25_000, ..Options::default() });
    let undecided =
        (0..4_096).filter(|&at| matches!(little.check(at).verdict, Verdict::Undecided { .. })).count();
    assert_eq!(undecided, 2_048);
    // Without the last source nobody is shadowed any more: the default decides what the destinations do.
    let mut fewer = rules;
    fewer.remove(2_047);
    let analysis = Analysis::new(&RuleSet { rules: fewer }, Options::default());
    let verdict = analysis.check(4_094).verdict;
    let expected = Causes { rules: vec![], minimal: true };
    assert_eq!(verdict, Verdict::Redundant { causes: expected, side: Side::Later { default: true } });
}

#[test]
fn no_rules_and_the_same_rule_over_and_over() {
    let _ = Analysis::new(&RuleSet::default(), Options::default());
    let analysis = Analysis::new(&RuleSet { rules: vec![Rule::any(Some(Deny)); 300] }, Options::default());
    assert_eq!(
        analysis.check(0).verdict,
        Verdict::Redundant {
            causes: Causes { rules: vec![], minimal: true },
            side: Side::Later { default: true },
        }
    );
    for position in 1..300 {
        assert_eq!(analysis.check(position).verdict, repeated(1));
    }
}
