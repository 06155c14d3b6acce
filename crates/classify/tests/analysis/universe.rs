//! Every packet of a small world, and what rules do to it: the answers that the analysis must give.

use packetloom_classify::analysis::{Causes, Report, Side, Verdict};
use packetloom_classify::compiled::{CompiledRule, MatchKey};
use packetloom_classify::{Action, Rule, RuleSet};
use packetloom_packet::key::halves;
use packetloom_packet::{KeyBits, MatchKey4, MatchKey6};

/// Ends of port ranges in the small world; packets have these and one between.
pub(crate) const PORTS: [u16; 5] = [0, 1, 2, 3, 65_535];
/// ICMP types and codes, likewise.
pub(crate) const TYPES: [u8; 3] = [0, 1, 255];
/// Protocols; packets have these and one more. The last two are IPv6 headers that are walked.
pub(crate) const PROTOCOLS: [u8; 8] = [1, 6, 17, 132, 47, 58, 44, 51];
/// TCP flags that rules look at: SYN and ACK.
pub(crate) const FLAGS: [u8; 4] = [0, 0x02, 0x10, 0x12];
/// Lengths of prefixes: two bits of an address matter.
pub(crate) const LENGTHS: [u8; 3] = [0, 1, 2];

/// Everything but addresses: ports, protocol, flags, bits.
type Rest = (u16, u16, u8, u8, KeyBits);

/// All packets of the small world, as far as they are there.
fn rest(v6: bool) -> Vec<Rest> {
    let ports = || PORTS.into_iter().chain([4]);
    let numbers = || TYPES.into_iter().chain([2]).map(u16::from);
    let mut rest = Vec::new();
    for protocol in PROTOCOLS.into_iter().chain([99]) {
        rest.push((0, 0, protocol, 0, KeyBits::LATER_FRAGMENT));
        if v6 && [44, 51].contains(&protocol) {
            continue;
        }
        for fragment in [KeyBits::WHOLE, KeyBits::FIRST_FRAGMENT] {
            if [6, 17, 132].contains(&protocol) {
                for (source, destination) in ports().flat_map(|a| ports().map(move |b| (a, b))) {
                    let bits = fragment.with(KeyBits::PORTS);
                    rest.push((source, destination, protocol, 0, bits));
                    if protocol == 6 {
                        let bits = bits.with(KeyBits::TCP_FLAGS);
                        rest.extend(FLAGS.map(|flags| (source, destination, protocol, flags, bits)));
                    }
                }
            } else {
                rest.push((0, 0, protocol, 0, fragment));
            }
            if [1, 58].contains(&protocol) {
                let bits = fragment.with(KeyBits::ICMP);
                rest.extend(numbers().flat_map(|a| numbers().map(move |b| (a, b, protocol, 0, bits))));
            }
        }
    }
    rest
}

/// For each packet, the rules that match it, as bits; every set once.
pub(crate) fn matches(rules: &RuleSet) -> Vec<u32> {
    assert!(rules.rules.len() <= 32);
    let mut matches = Vec::new();
    let pairs = || (0..4u8).flat_map(|a| (0..4u8).map(move |b| (a, b)));
    let all: Vec<CompiledRule<MatchKey4>> = CompiledRule::all(rules);
    for (source, destination) in pairs() {
        let [source, destination] = [source, destination].map(|cell| u32::from(cell) << 30);
        matches.extend(rest(false).into_iter().map(
            |(source_port, destination_port, protocol, tcp_flags, bits)| {
                let key = MatchKey4 {
                    source,
                    destination,
                    source_port,
                    destination_port,
                    protocol,
                    tcp_flags,
                    bits,
                    reserved: 0,
                };
                mask(&all, &key)
            },
        ));
    }
    let all: Vec<CompiledRule<MatchKey6>> = CompiledRule::all(rules);
    for (source, destination) in pairs() {
        let [source, destination] = [source, destination].map(|cell| halves(u128::from(cell) << 126));
        matches.extend(rest(true).into_iter().map(
            |(source_port, destination_port, protocol, tcp_flags, bits)| {
                let key = MatchKey6 {
                    source,
                    destination,
                    source_port,
                    destination_port,
                    protocol,
                    tcp_flags,
                    bits,
                    reserved: 0,
                };
                mask(&all, &key)
            },
        ));
    }
    matches.sort_unstable();
    matches.dedup();
    matches
}

fn mask<K: MatchKey>(rules: &[CompiledRule<K>], key: &K) -> u32 {
    rules.iter().filter(|rule| rule.matches(key)).fold(0, |mask, rule| mask | 1 << rule.position)
}

/// The small world under a rule set.
pub(crate) struct Universe<'a> {
    pub(crate) rules: &'a RuleSet,
    pub(crate) default: Action,
    pub(crate) matches: Vec<u32>,
}

impl Universe<'_> {
    /// The action of a rule, and the mark that it sets.
    fn action(&self, position: u32) -> Option<(Action, u32)> {
        let Rule { action, mark, .. } = self.rules.rules[position as usize];
        Some((action?, mark))
    }

    /// Rules of a mask that have the action of this one.
    fn own(&self, position: u32) -> u32 {
        (0..self.rules.rules.len() as u32)
            .filter(|&other| self.action(other) == self.action(position))
            .fold(0, |mask, other| mask | 1 << other)
    }

    /// What happens to a packet with these matches.
    fn decision(&self, matches: u32) -> Option<(Action, u32)> {
        if matches == 0 { Some((self.default, 0)) } else { self.action(matches.trailing_zeros()) }
    }

    /// What is wrong with a report, which must be as exact as these few rules allow.
    pub(crate) fn mistake(&self, position: u32, report: &Report) -> Option<String> {
        let bit = 1u32 << position;
        let before = bit - 1;
        let own = self.own(position);
        let packets: Vec<u32> = self.matches.iter().copied().filter(|matches| matches & bit != 0).collect();
        let hit: Vec<u32> = packets.iter().copied().filter(|matches| matches & before == 0).collect();
        let has_actions = self.rules.rules.iter().all(|rule| rule.action.is_some());
        let covered_by = |rules: u32| packets.iter().all(|matches| matches & rules != 0);
        // With the rules of `others` and of the mask alone behind it: is each packet decided as with the rule?
        let followed_by = |rules: u32, default: bool| {
            hit.iter().all(|matches| {
                let next = matches & !bit & (rules | !own);
                if next == 0 { default } else { next & next.wrapping_neg() & own != 0 }
            })
        };
        let default = Some((self.default, 0)) == self.action(position);
        // Straight from the definition: taken out, it leaves every decision as it was.
        let is_redundant =
            self.matches.iter().all(|matches| self.decision(*matches) == self.decision(matches & !bit));
        let bits = |causes: &Causes| causes.rules.iter().fold(0u32, |mask, rule| mask | 1 << rule);
        let needed = |causes: &Causes, holds: &dyn Fn(u32) -> bool| {
            let all = bits(causes);
            causes.minimal
                && causes.rules.is_sorted()
                && holds(all)
                && causes.rules.iter().all(|rule| !holds(all & !(1 << rule)))
        };
        let right = match &report.verdict {
            Verdict::Unmatchable => packets.is_empty(),
            Verdict::Covered(causes) => {
                !has_actions
                    && !packets.is_empty()
                    && bits(causes) & !before == 0
                    && needed(causes, &covered_by)
            }
            Verdict::Shadowed(causes) => {
                has_actions
                    && !covered_by(before & own)
                    && bits(causes) & !before == 0
                    && needed(causes, &covered_by)
            }
            Verdict::Redundant { causes, side: Side::Earlier } => {
                has_actions
                    && !packets.is_empty()
                    && is_redundant
                    && bits(causes) & !(before & own) == 0
                    && needed(causes, &covered_by)
            }
            Verdict::Redundant { causes, side: Side::Later { default: used } } => {
                has_actions
                    && !hit.is_empty()
                    && is_redundant
                    && (default || !used)
                    && bits(causes) & (before | bit | !own) == 0
                    && needed(causes, &|rules| followed_by(rules, *used))
                    && (!used || !followed_by(bits(causes), false))
            }
            Verdict::Effective => !(hit.is_empty() || has_actions && is_redundant),
            Verdict::Undecided { .. } => false,
        };
        let overlaps =
            |other: u32| self.matches.iter().any(|matches| matches & bit != 0 && matches >> other & 1 == 1);
        let holds = |outer: u32, inner: u32| {
            self.matches.iter().all(|matches| matches >> inner & 1 == 0 || matches >> outer & 1 == 1)
        };
        let correlated: Vec<u32> = (0..position)
            .filter(|&other| {
                own >> other & 1 == 0 && overlaps(other) && !holds(other, position) && !holds(position, other)
            })
            .collect();
        let found = report.correlated.as_ref();
        if !right {
            Some(format!("rule {position}: {:?}", report.verdict))
        } else if !found.is_some_and(|found| {
            found.count == correlated.len() as u64 && correlated.starts_with(&found.first)
        }) {
            Some(format!("rule {position}: {found:?} instead of {correlated:?}"))
        } else {
            None
        }
    }
}
