//! Every classifier against a naive model, on rule sets that overlap heavily and headers at their edges.

mod keys;
mod model;

use packetloom_classify::rule::{Addresses, Fragments, PortRange, Prefix4, Prefix6, TcpFlagMatch};
use packetloom_classify::{Action, Kind, NO_RULE, Rule, RuleSet};
use packetloom_packet::{Key, KeyBits, MatchKey4, MatchKey6};
use proptest::prelude::*;

use crate::keys::{Random, at_the_edges};
use crate::model::first_match;

/// What the classifier says of each header.
fn classify(kind: Kind, rules: &RuleSet, keys: &[Key]) -> Vec<u32> {
    let classifier = kind.build(rules);
    assert_eq!(classifier.kind(), kind);
    let v4: Vec<MatchKey4> =
        keys.iter().filter_map(|key| if let Key::V4(key) = key { Some(*key) } else { None }).collect();
    let v6: Vec<MatchKey6> =
        keys.iter().filter_map(|key| if let Key::V6(key) = key { Some(*key) } else { None }).collect();
    // What stands there before does not matter.
    let (mut first4, mut first6) = (vec![7; v4.len()], vec![7; v6.len()]);
    classifier.classify_v4(&v4, &mut first4);
    classifier.classify_v6(&v6, &mut first6);
    let (mut first4, mut first6) = (first4.into_iter(), first6.into_iter());
    keys.iter()
        .map(|key| if matches!(key, Key::V4(_)) { first4.next() } else { first6.next() }.unwrap())
        .collect()
}

/// Where each classifier first differs from the model, with the rule that it should have found.
fn difference(rules: &RuleSet, keys: &[Key]) -> Option<String> {
    let expected: Vec<_> = keys.iter().map(|key| first_match(rules, key)).collect();
    for kind in Kind::ALL {
        let found = classify(kind, rules, keys);
        if let Some(at) = (0..keys.len()).find(|&at| found[at] != expected[at]) {
            return Some(format!("{kind}: {} instead of {} for {:x?}", found[at], expected[at], keys[at]));
        }
    }
    None
}

fn agree(rules: &RuleSet, keys: &[Key]) {
    assert_eq!(difference(rules, keys), None);
}

/// A rule before its prefixes are known: each is one of a few addresses, cut at a length.
#[derive(Clone, Debug)]
struct Sketch {
    /// Addresses by their place in a list, and prefix lengths; `None` for any of either family.
    prefixes: Option<[(usize, u8); 2]>,
    v6: bool,
    /// The rule as far as it is known. Its conditions need not make sense together.
    rest: Rule,
    /// The same as the rule before.
    again: bool,
}

/// Ranges around the numbers that matter, so that they overlap, touch and just miss each other.
fn range() -> impl Strategy<Value = PortRange> {
    let ports = || prop::sample::select(vec![0, 1, 7, 8, 79, 80, 81, 255, 256, 1023, 1024, 65534, 65535]);
    let some = (ports(), ports()).prop_map(|(a, b)| PortRange { low: a.min(b), high: a.max(b) });
    prop_oneof![3 => Just(PortRange::ANY), 1 => some, 1 => ports().prop_map(|port| PortRange { low: port, high: port })]
}

fn sketch(families: &'static [bool]) -> impl Strategy<Value = Sketch> {
    const LENGTHS: &[u8] = &[0, 0, 1, 8, 15, 16, 17, 24, 28, 31, 32];
    const PROTOCOLS: &[Option<u8>] =
        &[None, None, None, Some(1), Some(6), Some(6), Some(17), Some(58), Some(132)];
    const FRAGMENTS: &[Fragments] = &[
        Fragments::All,
        Fragments::All,
        Fragments::All,
        Fragments::Any,
        Fragments::None,
        Fragments::First,
        Fragments::Later,
        Fragments::NotLater,
    ];
    let side = || (0..3usize, prop::sample::select(LENGTHS));
    let prefixes = prop_oneof![1 => Just(None), 7 => (side(), side()).prop_map(|(a, b)| Some([a, b]))];
    // Types and codes are rare, so that most rules can be met by a packet with ports; some ask for both.
    let number =
        || prop_oneof![7 => Just(None), 1 => prop::sample::select(vec![0u8, 1, 8, 255]).prop_map(Some)];
    let flags = prop_oneof![7 => Just(None), 1 => (any::<u8>(), 1..=u8::MAX).prop_map(Some)];
    (
        (prefixes, prop::sample::select(families), prop::bool::weighted(0.1)),
        prop::sample::select(PROTOCOLS),
        (range(), range()),
        (number(), number()),
        flags,
        prop::sample::select(FRAGMENTS),
    )
        .prop_map(|((prefixes, v6, again), protocol, ports, icmp, flags, fragments)| {
            let rest = Rule {
                protocol,
                source_ports: ports.0,
                destination_ports: ports.1,
                icmp_type: icmp.0,
                icmp_code: icmp.1,
                tcp_flags: flags.map(|(set, mask)| TcpFlagMatch { set: set & mask, mask }),
                fragments,
                ..Rule::any(Some(Action::Permit))
            };
            Sketch { prefixes, v6, rest, again }
        })
}

/// Up to 40 rules over three addresses, of which two differ only in the lowest bit of the first 16 (IPv6: 64).
fn rule_set(families: &'static [bool]) -> impl Strategy<Value = RuleSet> {
    let sketches = prop::collection::vec(sketch(families), 1..=40);
    (any::<[u128; 2]>(), sketches).prop_map(|([one, other], sketches)| {
        let addresses6 = [one, one ^ 1 << 64, other];
        let addresses4 = [one as u32, one as u32 ^ 1 << 16, other as u32];
        let mut rules: Vec<Rule> = Vec::new();
        for Sketch { prefixes, v6, rest, again } in sketches {
            let addresses = match (prefixes, v6) {
                (None, _) => Addresses::Any,
                (Some(sides), false) => {
                    let [source, destination] = sides.map(|(at, len)| Prefix4::new(addresses4[at], len));
                    Addresses::V4(source, destination)
                }
                (Some(sides), true) => {
                    let [source, destination] = sides.map(|(at, len)| Prefix6::new(addresses6[at], len * 4));
                    Addresses::V6(source, destination)
                }
            };
            rules.push(match rules.last() {
                Some(last) if again => last.clone(),
                _ => Rule { addresses, ..rest },
            });
        }
        RuleSet { rules }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn all_agree_with_the_model_on_ipv4(rules in rule_set(&[false]), seed: u64) {
        let difference = difference(&rules, &at_the_edges(&rules, 50, &mut Random(seed)));
        prop_assert!(difference.is_none(), "{}", difference.unwrap());
    }

    #[test]
    fn all_agree_with_the_model_on_ipv6(rules in rule_set(&[true]), seed: u64) {
        let difference = difference(&rules, &at_the_edges(&rules, 50, &mut Random(seed)));
        prop_assert!(difference.is_none(), "{}", difference.unwrap());
    }

    #[test]
    fn all_agree_with_the_model_on_both_families(rules in rule_set(&[false, true]), seed: u64) {
        let difference = difference(&rules, &at_the_edges(&rules, 50, &mut Random(seed)));
        prop_assert!(difference.is_none(), "{}", difference.unwrap());
    }
}

fn v4(source: u32, source_len: u8, destination: u32, destination_len: u8) -> Rule {
    let addresses =
        Addresses::V4(Prefix4::new(source, source_len), Prefix4::new(destination, destination_len));
    Rule { addresses, ..Rule::any(Some(Action::Permit)) }
}

fn v6(source: u128, source_len: u8, destination: u128, destination_len: u8) -> Rule {
    let addresses =
        Addresses::V6(Prefix6::new(source, source_len), Prefix6::new(destination, destination_len));
    Rule { addresses, ..Rule::any(Some(Action::Permit)) }
}

#[test]
fn no_rules_match_nothing() {
    let rules = RuleSet::default();
    let keys = at_the_edges(&rules, 10, &mut Random(1));
    for kind in Kind::ALL {
        assert_eq!(classify(kind, &rules, &keys), vec![NO_RULE; keys.len()]);
        assert!(classify(kind, &rules, &[]).is_empty());
        // Nor do rules of one family match packets of the other.
        let only4 = classify(kind, &RuleSet { rules: vec![v4(0, 0, 0, 0)] }, &keys);
        let only6 = classify(kind, &RuleSet { rules: vec![v6(0, 0, 0, 0)] }, &keys);
        for (at, key) in keys.iter().enumerate() {
            let expected = if matches!(key, Key::V4(_)) { (0, NO_RULE) } else { (NO_RULE, 0) };
            assert_eq!((only4[at], only6[at]), expected);
        }
    }
}

#[test]
fn the_first_of_equal_rules_decides() {
    let mut rules = RuleSet { rules: vec![v4(1, 32, 2, 32); 50] };
    rules.rules.insert(0, v6(1, 128, 2, 128));
    let key = Key::V4(MatchKey4 { source: 1, destination: 2, bits: KeyBits::WHOLE, ..MatchKey4::default() });
    for kind in Kind::ALL {
        assert_eq!(classify(kind, &rules, &[key]), [1], "{kind}");
    }
}

#[test]
fn rules_that_nothing_can_match_keep_their_positions() {
    let ports = PortRange { low: 8, high: 8 };
    let never = Rule { source_ports: ports, icmp_type: Some(8), ..Rule::any(None) };
    let never_code = Rule { destination_ports: ports, icmp_code: Some(8), ..Rule::any(None) };
    let alone = RuleSet { rules: vec![never.clone(), never_code.clone()] };
    let keys = at_the_edges(&alone, 200, &mut Random(2));
    for kind in Kind::ALL {
        assert_eq!(classify(kind, &alone, &keys), vec![NO_RULE; keys.len()], "{kind}");
        let followed = RuleSet { rules: vec![never.clone(), never_code.clone(), Rule::any(None)] };
        assert_eq!(classify(kind, &followed, &keys), vec![2; keys.len()], "{kind}");
    }
}

#[test]
fn a_catch_all_decides_everything_after_it() {
    let mut random = Random(3);
    let some: Vec<Rule> = (0..100)
        .map(|_| {
            v4(random.next() as u32, random.below(33) as u8, random.next() as u32, random.below(9) as u8)
        })
        .collect();
    let keys = at_the_edges(&RuleSet { rules: some.clone() }, 100, &mut random);
    let first = RuleSet { rules: [vec![Rule::any(None)], some.clone()].concat() };
    let last = RuleSet { rules: [some.clone(), vec![Rule::any(None)]].concat() };
    for kind in Kind::ALL {
        assert_eq!(classify(kind, &first, &keys), vec![0; keys.len()], "{kind}");
        assert!(classify(kind, &last, &keys).iter().all(|&position| position <= 100), "{kind}");
    }
    agree(&last, &keys);
}

/// 2,000 rules with four masks and eight prefixes each, so that they differ in little but their ranges.
#[test]
fn full_buckets_keep_their_order() {
    for seed in 0..3 {
        let mut random = Random(seed);
        let mut rules = Vec::new();
        for _ in 0..2_000 {
            let lens = random.pick(&[(32, 32), (24, 24), (24, 0), (30, 22)]);
            let [source, destination] = [(); 2].map(|()| 0x0a00_0000 | random.below(8) as u32);
            let low = random.below(60_000) as u16;
            let high = low + random.below(3) as u16 * 1_000;
            let ports = PortRange { low, high };
            let rule = v4(source, lens.0, destination, lens.1);
            let protocol = random.pick(&[None, Some(6), Some(17)]);
            rules.push(match random.below(3) {
                0 => Rule { source_ports: ports, protocol, ..rule },
                1 => Rule { destination_ports: ports, protocol, ..rule },
                _ => Rule { destination_ports: PortRange { high: low, low }, protocol, ..rule },
            });
        }
        rules.push(v4(0x0a00_0000, 8, 0, 0));
        let rules = RuleSet { rules };
        agree(&rules, &at_the_edges(&rules, 100, &mut random));
    }
}

/// Every pair of prefix lengths around two addresses, in a random order: more tuples than any real set has.
#[test]
fn hundreds_of_tuples_agree() {
    let mut random = Random(4);
    let mut rules = Vec::new();
    for source_len in 0..=32 {
        for destination_len in 0..=32 {
            rules.push(v4(0xa55a_c33c, source_len, 0x5aa5_3cc3, destination_len));
            if source_len % 4 == 0 && destination_len % 4 == 0 {
                rules.push(v6(u128::MAX / 3, source_len * 4, u128::MAX / 5, destination_len * 4));
            }
        }
    }
    for at in (1..rules.len()).rev() {
        rules.swap(at, random.below(at as u64 + 1) as usize);
    }
    // The most specific come first, or all but the first few rules would never decide.
    rules.sort_by_key(|rule| match rule.addresses {
        Addresses::V4(source, destination) => 8 - (source.len() + destination.len()) / 8,
        Addresses::V6(source, destination) => 8 - (source.len() / 8 + destination.len() / 8) / 4,
        Addresses::Any => 9,
    });
    let rules = RuleSet { rules };
    agree(&rules, &at_the_edges(&rules, 100, &mut random));
}

#[test]
fn classifiers_have_names() {
    for kind in Kind::ALL {
        assert_eq!(kind.to_string().parse(), Ok(kind));
    }
    assert_eq!(Kind::default(), Kind::TupleMerge);
    assert_eq!(
        "tuple_merge".parse::<Kind>(),
        Err("no classifier \"tuple_merge\"; expected one of linear, tuple-merge".to_owned())
    );
}
