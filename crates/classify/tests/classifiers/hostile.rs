//! Sets that are meant to be hard: for hash tables, for trees, and for bit vectors.

use packetloom_classify::rule::{Addresses, PortRange, TcpFlagMatch};
use packetloom_classify::tuple_space::TupleSpace;
use packetloom_classify::{Classifier, Kind, NO_RULE, Rule, RuleSet};
use packetloom_packet::{KeyBits, MatchKey4};

use crate::check::{BATCHES, agree, agree_with_oracle};
use crate::devices;
use crate::keys::{Random, at_the_edges, near_rules};
use crate::rules::{v4, v6};

/// Rules of a hostile set.
const COUNT: u32 = 1_000;

/// Headers that devices get of those that classifiers get.
const FEW: usize = 400;

/// Bytes that an index may hold for one of these rules.
const BYTES_A_RULE: usize = 8_192;

/// One set of [`COUNT`] rules, in the order given and in the opposite one.
fn check(rule: impl Fn(u32) -> Rule) {
    let mut rules = RuleSet { rules: (0..COUNT).map(rule).collect() };
    for seed in 0..2 {
        rules.rules.reverse();
        let random = &mut Random(seed);
        let mut keys = [at_the_edges(&rules, 10, random), near_rules(&rules, 1_500, random)].concat();
        random.shuffle(&mut keys);
        agree_with_oracle(&rules, &keys, &BATCHES);
        devices::agree_on_accelerators(&rules, &keys[..FEW]);
    }
    for kind in Kind::ALL {
        let memory = kind.build(&rules).memory();
        assert!(memory <= COUNT as usize * BYTES_A_RULE, "{kind} holds {memory} bytes");
    }
}

/// The same conditions on addresses of either family.
fn check_both(rest: impl Fn(u32) -> Rule) {
    check(|n| Rule { addresses: v4(0, 0, 0, 0).addresses, ..rest(n) });
    check(|n| Rule { addresses: v6(0, 0, 0, 0).addresses, ..rest(n) });
    check(rest);
}

#[test]
fn every_rule_has_a_tuple_of_its_own() {
    check(|n| v4(0xa55a_c33c, (n % 32) as u8, 0x5aa5_3cc3, (n / 32) as u8));
    check(|n| v6(u128::MAX / 3, (n % 127) as u8, u128::MAX / 5, (n / 8) as u8));
}

#[test]
fn all_rules_are_the_same() {
    check(|_| v4(0xc000_0201, 32, 0xc633_6400, 24));
    check(|_| v6(1 << 127, 128, 1 << 126, 64));
    check(|_| Rule { destination_ports: PortRange { low: 1, high: 65_534 }, ..Rule::any(None) });
}

#[test]
fn only_a_port_differs() {
    check_both(|n| Rule { source_ports: PortRange::exactly(n as u16 * 7), ..Rule::any(None) });
    check_both(|n| Rule {
        destination_ports: PortRange::exactly(n as u16),
        protocol: Some(6),
        ..Rule::any(None)
    });
    check_both(|n| {
        let range = PortRange { low: n as u16 * 64, high: n as u16 * 64 + 63 };
        Rule { source_ports: range, destination_ports: range, ..Rule::any(None) }
    });
}

#[test]
fn only_a_byte_differs() {
    check_both(|n| Rule { protocol: Some(n as u8), ..Rule::any(None) });
    check_both(|n| Rule { icmp_type: Some(n as u8), icmp_code: Some((n >> 8) as u8), ..Rule::any(None) });
    check_both(|n| {
        let mask = (n >> 2) as u8;
        Rule { tcp_flags: Some(TcpFlagMatch { set: n as u8 & mask, mask }), ..Rule::any(None) }
    });
}

#[test]
fn only_one_address_differs() {
    check(|n| v4(n, 32, 0, 0));
    check(|n| v4(0, 0, n << 22, 10));
    check(|n| v6(n.into(), 128, 0, 0));
    check(|n| v6(0, 0, u128::from(n) << 64, 64));
}

#[test]
fn addresses_share_most_bits() {
    check(|n| v4(0x0a00_0000 | n, 32, 0x0a00_0000 | n >> 3, 31));
    check(|n| v4(0x0a00_0000 | n >> 5, 32 - (n % 10) as u8, 0x0a00_0000, (n % 3) as u8 + 30));
    check(|n| v6(u128::MAX << 10 | u128::from(n), 128, u128::MAX << 4, 124 + (n % 5) as u8));
}

#[test]
fn ranges_lie_in_each_other() {
    let nested = |n: u32| PortRange { low: n as u16 * 32, high: u16::MAX - n as u16 * 32 };
    check_both(|n| Rule { source_ports: nested(n), ..Rule::any(None) });
    check_both(|n| Rule {
        source_ports: nested(n),
        destination_ports: nested(COUNT - 1 - n),
        ..Rule::any(None)
    });
    check(|n| Rule { destination_ports: nested(n), ..v4(0xc000_0200, 24, 0, 0) });
}

#[test]
fn ranges_overlap_in_a_row() {
    check_both(|n| {
        let range = PortRange { low: n as u16 * 50, high: n as u16 * 50 + 15_000 };
        Rule { destination_ports: range, protocol: Some(17), ..Rule::any(None) }
    });
}

/// 70,000 rules in one bucket of tuple space search, each for ports that no earlier one has.
#[test]
fn a_bucket_holds_more_rules_than_a_slot_counts() {
    let rule = |n: u16, m: u16| Rule {
        source_ports: PortRange { low: n, high: n + 1 },
        destination_ports: PortRange { low: m, high: m + 1 },
        ..v4(1, 32, 2, 32)
    };
    let rules: Vec<_> = (0..35_000).flat_map(|n| [rule(n, 0), rule(n, 2)]).collect();
    let rules = RuleSet { rules };
    let classifier = TupleSpace::build(&rules);
    for port in [0, 1, 2, 100, 32_766, 32_767, 32_768, 34_999, 35_000, 35_001] {
        for (other, second) in [(1, 0), (3, 1)] {
            let bits = KeyBits::WHOLE.with(KeyBits::PORTS);
            let (source_port, destination_port) = (port, other);
            let key = MatchKey4 {
                source: 1,
                destination: 2,
                source_port,
                destination_port,
                bits,
                ..MatchKey4::default()
            };
            let expected =
                if port > 35_000 { NO_RULE } else { u32::from(port).saturating_sub(1) * 2 + second };
            let mut first = [7];
            classifier.classify_v4(&[key], &mut first);
            assert_eq!(first, [expected], "ports {port} and {other}");
        }
    }
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
        agree(&rules, &at_the_edges(&rules, 40, &mut random));
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
    random.shuffle(&mut rules);
    // The most specific come first, or all but the first few rules would never decide.
    rules.sort_by_key(|rule| match rule.addresses {
        Addresses::V4(source, destination) => 8 - (source.len() + destination.len()) / 8,
        Addresses::V6(source, destination) => 8 - (source.len() / 8 + destination.len() / 8) / 4,
        Addresses::Any => 9,
    });
    let rules = RuleSet { rules };
    agree(&rules, &at_the_edges(&rules, 40, &mut random));
}

/// More hosts than class tables are tried for, and one rule that fixes no bit of what is hashed for them.
#[test]
fn a_catch_all_among_hosts_agrees() {
    let mut random = Random(5);
    let mut host = || u128::from(random.next()) << 64 | u128::from(random.next());
    let mut rules: Vec<Rule> = (0..20_000).map(|_| v6(host(), 128, host(), 128)).collect();
    rules.insert(10_000, v6(0, 0, 0, 0));
    let rules = RuleSet { rules };
    let keys = near_rules(&rules, 2_000, &mut random);
    agree(&rules, &keys);
}
