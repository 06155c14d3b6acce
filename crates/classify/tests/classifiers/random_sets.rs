//! Small random rule sets that overlap heavily.

use packetloom_classify::rule::{Addresses, Fragments, PortRange, Prefix4, Prefix6, TcpFlagMatch};
use packetloom_classify::{Action, Rule, RuleSet};
use packetloom_packet::Key;
use proptest::prelude::*;
use proptest::sample::select;

use crate::check::{BATCHES, difference};
use crate::keys::{Random, at_the_edges, near_rules};

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
    let ports = || select(vec![0, 1, 7, 8, 79, 80, 81, 255, 256, 1023, 1024, 65534, 65535]);
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
    let side = || (0..3usize, select(LENGTHS));
    let prefixes = prop_oneof![1 => Just(None), 7 => (side(), side()).prop_map(|(a, b)| Some([a, b]))];
    // Types and codes are rare, so that most rules can be met by a packet with ports; some ask for both.
    let number = || prop_oneof![7 => Just(None), 1 => select(vec![0u8, 1, 8, 255]).prop_map(Some)];
    let flags = prop_oneof![7 => Just(None), 1 => (any::<u8>(), 1..=u8::MAX).prop_map(Some)];
    (
        (prefixes, select(families), prop::bool::weighted(0.1)),
        select(PROTOCOLS),
        (range(), range()),
        (number(), number()),
        flags,
        select(FRAGMENTS),
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
pub(crate) fn rule_set(families: &'static [bool]) -> impl Strategy<Value = RuleSet> {
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

/// Sets for each of the three tests below: 10,200 together.
const CASES: u32 = 3_400;

/// Some headers at the edges of the rules, and some near them, in no order.
pub(crate) fn headers(rules: &RuleSet, seed: u64) -> Vec<Key> {
    let random = &mut Random(seed);
    let mut keys = [at_the_edges(rules, 16, random), near_rules(rules, 300, random)].concat();
    random.shuffle(&mut keys);
    keys
}

proptest! {
    #![proptest_config(ProptestConfig { cases: CASES, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn all_agree_with_the_model_on_ipv4(rules in rule_set(&[false]), seed: u64, batch in select(&BATCHES[..])) {
        let difference = difference(&rules, &headers(&rules, seed), batch);
        prop_assert!(difference.is_none(), "{}", difference.unwrap());
    }

    #[test]
    fn all_agree_with_the_model_on_ipv6(rules in rule_set(&[true]), seed: u64, batch in select(&BATCHES[..])) {
        let difference = difference(&rules, &headers(&rules, seed), batch);
        prop_assert!(difference.is_none(), "{}", difference.unwrap());
    }

    #[test]
    fn all_agree_with_the_model_on_both_families(
        rules in rule_set(&[false, true]), seed: u64, batch in select(&BATCHES[..]),
    ) {
        let difference = difference(&rules, &headers(&rules, seed), batch);
        prop_assert!(difference.is_none(), "{}", difference.unwrap());
    }
}
