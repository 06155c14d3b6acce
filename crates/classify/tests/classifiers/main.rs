//! Every classifier against a naive model and the oracle.

mod check;
mod devices;
mod generated;
mod hostile;
mod keys;
mod model;
mod random_sets;
mod rules;

use packetloom_classify::rule::PortRange;
use packetloom_classify::{Kind, NO_RULE, Rule, RuleSet};
use packetloom_packet::{Key, KeyBits, MatchKey4, MatchKey6};
use packetloom_simd::Isa;

use crate::check::{BATCHES, agree, agree_with_oracle, classifiers, classify};
use crate::keys::{Random, at_the_edges, near_rules};
use crate::rules::{mixed, v4, v6};

#[test]
fn no_rules_match_nothing() {
    let rules = RuleSet::default();
    let keys = at_the_edges(&rules, 10, &mut Random(1));
    for (name, classifier) in classifiers(&rules) {
        for batch in BATCHES {
            assert_eq!(classify(&*classifier, &keys, batch), vec![NO_RULE; keys.len()], "{name}");
        }
    }
    // Nor do rules of one family match packets of the other.
    agree(&RuleSet { rules: vec![v4(0, 0, 0, 0)] }, &keys);
    agree(&RuleSet { rules: vec![v6(0, 0, 0, 0)] }, &keys);
}

#[test]
fn the_first_of_equal_rules_decides() {
    let mut rules = RuleSet { rules: vec![v4(1, 32, 2, 32); 50] };
    rules.rules.insert(0, v6(1, 128, 2, 128));
    let key = Key::V4(MatchKey4 { source: 1, destination: 2, bits: KeyBits::WHOLE, ..MatchKey4::default() });
    for (name, classifier) in classifiers(&rules) {
        assert_eq!(classify(&*classifier, &[key], 1), [1], "{name}");
    }
}

#[test]
fn rules_that_nothing_can_match_keep_their_positions() {
    let ports = PortRange { low: 8, high: 8 };
    let never = Rule { source_ports: ports, icmp_type: Some(8), ..Rule::any(None) };
    let never_code = Rule { destination_ports: ports, icmp_code: Some(8), ..Rule::any(None) };
    let alone = RuleSet { rules: vec![never.clone(), never_code.clone()] };
    let keys = at_the_edges(&alone, 50, &mut Random(2));
    for (name, classifier) in classifiers(&alone) {
        assert_eq!(classify(&*classifier, &keys, 0), vec![NO_RULE; keys.len()], "{name}");
    }
    let followed = RuleSet { rules: vec![never, never_code, Rule::any(None)] };
    for (name, classifier) in classifiers(&followed) {
        assert_eq!(classify(&*classifier, &keys, 0), vec![2; keys.len()], "{name}");
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
    let keys = at_the_edges(&RuleSet { rules: some.clone() }, 40, &mut random);
    let first = RuleSet { rules: [vec![Rule::any(None)], some.clone()].concat() };
    for (name, classifier) in classifiers(&first) {
        assert_eq!(classify(&*classifier, &keys, 0), vec![0; keys.len()], "{name}");
    }
    let last = RuleSet { rules: [some, vec![Rule::any(None)]].concat() };
    agree(&last, &keys);
}

/// Sets that are large enough for tables, in which rules of tables and others are next to each other.
#[test]
fn larger_sets_agree() {
    for seed in 0..60 {
        let mut random = Random(seed);
        let rules = mixed(300 + 40 * seed as usize, &mut random);
        let mut keys =
            [at_the_edges(&rules, 10, &mut random), near_rules(&rules, 4_000, &mut random)].concat();
        random.shuffle(&mut keys);
        agree_with_oracle(&rules, &keys, &[random.pick(&BATCHES)]);
    }
}

/// Keys that no parser makes have an answer too: that of the oracle.
#[test]
fn any_key_bits_agree_with_the_oracle() {
    for seed in 0..20 {
        let mut random = Random(seed);
        let rules = mixed(200, &mut random);
        let mut keys = near_rules(&rules, 100, &mut random);
        keys = keys
            .into_iter()
            .flat_map(|key| {
                (0..64).map(KeyBits).map(move |bits| match key {
                    Key::V4(key) => Key::V4(MatchKey4 { bits, ..key }),
                    Key::V6(key) => Key::V6(MatchKey6 { bits, ..key }),
                })
            })
            .collect();
        agree_with_oracle(&rules, &keys, &[256]);
    }
}

#[test]
fn the_best_instruction_set_comes_first() {
    let all = Isa::all_available();
    assert_eq!(Isa::detect(), all[0]);
    assert_eq!(all.last().map(|isa| isa.name()), Some("portable"));
}

/// An index of many rules holds more than one of few, but not without bound.
#[test]
fn memory_is_counted() {
    for kind in Kind::ALL {
        let memory = |count| kind.build(&mixed(count, &mut Random(5))).memory();
        let (none, few, many) = (memory(0), memory(100), memory(10_000));
        assert!(
            none < few && few + 9_900 * 20 < many && many < 10_000 * 4_096,
            "{kind}: {none}, {few}, {many}"
        );
    }
}

#[test]
fn classifiers_have_names() {
    for kind in Kind::ALL {
        assert_eq!(kind.to_string().parse(), Ok(kind));
    }
    assert_eq!(Kind::default(), Kind::Hybrid);
    assert_eq!(
        "tuple_merge".parse::<Kind>(),
        Err("no classifier \"tuple_merge\"; expected one of linear, tuple-space, tuple-merge, hybrid"
            .to_owned())
    );
}
