//! Rule sets from which something was left out, against everything that this may do.

use std::collections::BTreeMap;

use packetloom_classify::analysis::{Analysis, Options, Side, Verdict};
use packetloom_classify::{Action, Gap, Gaps, Rule, RuleSet};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use crate::rule;
use crate::universe::matches;

/// What is left out may do one of these to a packet that it matches.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Does {
    Nothing,
    Decide(Action),
    /// Passes over rules.
    Resume,
}

/// A list of rules with gaps.
#[derive(Clone, Debug)]
struct World {
    rules: RuleSet,
    gaps: Gaps,
    default: Action,
}

fn world() -> impl Strategy<Value = World> {
    let some = |weights: [u32; 4]| {
        let gap = (rule(weights), 0..=99u32, 0..=99u32, 0..4u8);
        (prop::collection::vec(rule(weights), 1..=12), prop::collection::vec(gap, 1..=3), any::<bool>())
    };
    prop_oneof![
        some([0, 200, 200, 200]),
        some([5, 5, 60, 100]),
        some([30, 200, 5, 10]),
        some([200, 200, 200, 2]),
        some([20, 20, 20, 20]),
    ]
    .prop_map(|(rules, gaps, permit)| {
        let count = rules.len() as u32;
        let gap = |(index, (rule, place, extent, kind)): (u32, (Rule, u32, u32, u8))| {
            let position = place % (count + 1);
            let end = position + extent % (count + 1 - position);
            let gap = Gap::at(position, index, Rule { action: None, ..rule });
            match kind {
                0 => Gap { latest: u32::MAX, ..gap },
                1 | 2 => Gap { resumes: end, ..gap },
                _ => gap,
            }
        };
        let mut list: Vec<Gap> = (0..).zip(gaps).map(gap).collect();
        list.sort_by_key(|gap| gap.position);
        World {
            rules: RuleSet { rules },
            gaps: Gaps { list, doubtful: Vec::new() },
            default: if permit { Action::Permit } else { Action::Deny },
        }
    })
}

impl World {
    fn count(&self) -> u32 {
        self.rules.rules.len() as u32
    }

    /// For each packet, the rules that match it and then the gaps that do, as bits.
    fn matches(&self) -> Vec<u32> {
        let gaps = self.gaps.list.iter().map(|gap| gap.at_most.clone());
        matches(&RuleSet { rules: self.rules.rules.iter().cloned().chain(gaps).collect() })
    }

    /// The rule that decides a packet and the action it gets: rules of `matches` decide, and gaps do what is said, at the places
    /// that are said.
    fn decide(&self, matches: u32, does: &[(Does, u32)]) -> (Option<u32>, Action) {
        let mut at = 0;
        'position: while at <= self.count() {
            for (gap, (does, place)) in does.iter().enumerate() {
                if *place != at || matches >> (self.count() + gap as u32) & 1 == 0 {
                    continue;
                }
                match does {
                    Does::Nothing => {}
                    Does::Decide(action) => return (None, *action),
                    Does::Resume if self.gaps.list[gap].resumes > at => {
                        at = self.gaps.list[gap].resumes;
                        continue 'position;
                    }
                    Does::Resume => {}
                }
            }
            if at < self.count() && matches >> at & 1 == 1 {
                return (Some(at), self.rules.rules[at as usize].action.expect("an action"));
            }
            at += 1;
        }
        (None, self.default)
    }

    /// Everything that the gaps may do with a packet.
    fn behaviours(&self, matches: u32) -> Vec<Vec<(Does, u32)>> {
        let mut all = vec![Vec::new()];
        for (index, gap) in self.gaps.list.iter().enumerate() {
            let mut each = vec![(Does::Nothing, gap.position)];
            if matches >> (self.count() + index as u32) & 1 == 1 {
                for place in gap.position..=gap.latest.min(self.count()) {
                    each.extend([Action::Permit, Action::Deny].map(|action| (Does::Decide(action), place)));
                }
                each.push((Does::Resume, gap.position));
            }
            all = all
                .into_iter()
                .flat_map(|before: Vec<(Does, u32)>| {
                    each.iter().map(move |does| [before.clone(), vec![*does]].concat())
                })
                .collect();
        }
        all
    }

    /// What is wrong with the verdict over a rule, in any of the ways in which the gaps may behave.
    fn mistake(&self, position: u32, verdict: &Verdict, packets: &[u32]) -> Option<String> {
        let bit = 1 << position;
        let is_never_hit = match verdict {
            Verdict::Shadowed(_) | Verdict::Covered(_) | Verdict::Unmatchable => true,
            Verdict::Redundant { side, .. } => *side == Side::Earlier,
            _ => false,
        };
        let causes =
            verdict.causes().map_or(0, |causes| causes.rules.iter().fold(0, |all, rule| all | 1 << rule));
        let gaps = !0 << self.count();
        for &packet in packets.iter().filter(|packet| *packet & bit != 0) {
            for does in self.behaviours(packet) {
                let (by, action) = self.decide(packet, &does);
                if is_never_hit && by == Some(position) {
                    return Some(format!("rule {position} is hit by {packet:b} where {does:?}: {verdict:?}"));
                }
                // Its causes alone keep packets away from it.
                if is_never_hit && self.decide(packet & (causes | bit | gaps), &does).0 == Some(position) {
                    return Some(format!("causes of {position} miss {packet:b} where {does:?}: {verdict:?}"));
                }
                let is_redundant = matches!(verdict, Verdict::Redundant { .. });
                if is_redundant && self.decide(packet & !bit, &does).1 != action {
                    return Some(format!(
                        "rule {position} matters to {packet:b} where {does:?}: {verdict:?}"
                    ));
                }
            }
        }
        None
    }
}

fn name(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::Redundant { side: Side::Earlier, .. } => "repeats",
        Verdict::Redundant { side: Side::Later { default: true }, .. } => "left to the default",
        Verdict::Redundant { side: Side::Later { default: false }, .. } => "left to later rules",
        verdict => verdict.name(),
    }
}

/// Looks at every rule of a world; how often each verdict came up in spite of gaps that match the rule's packets, and how often
/// there was none because of them.
fn check(world: &World, counts: &mut BTreeMap<&'static str, u32>) -> Option<String> {
    let options = Options { default: world.default, ..Options::default() };
    let analysis = Analysis::with_gaps(&world.rules, &world.gaps, options);
    let without = Analysis::new(&world.rules, options);
    let packets = world.matches();
    let gaps = !0u32 << world.count();
    (0..world.count()).find_map(|position| {
        let report = analysis.check(position);
        let known = without.check(position);
        let is_concerned = packets.iter().any(|packet| packet >> position & 1 == 1 && packet & gaps != 0);
        if !is_concerned && name(&report.verdict) != name(&known.verdict) {
            return Some(format!("rule {position}: {:?} instead of {:?}", report.verdict, known.verdict));
        }
        if report.correlated != known.correlated {
            return Some(format!("rule {position}: {:?}, {:?}", report.correlated, known.correlated));
        }
        if is_concerned {
            *counts.entry(name(&report.verdict)).or_default() += 1;
            if report.verdict == Verdict::Effective && known.verdict != Verdict::Effective {
                *counts.entry("given up").or_default() += 1;
            }
        }
        world.mistake(position, &report.verdict, &packets)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn findings_hold_whatever_was_left_out(world in world()) {
        let mistake = check(&world, &mut BTreeMap::new());
        prop_assert!(mistake.is_none(), "{}", mistake.unwrap());
    }
}

/// The worlds above would agree with anything if nothing ever came up in them.
#[test]
fn everything_comes_up_in_worlds_with_gaps() {
    let mut runner = TestRunner::deterministic();
    let mut counts = BTreeMap::new();
    for _ in 0..1_000 {
        let world = world().new_tree(&mut runner).expect("a world").current();
        assert_eq!(check(&world, &mut counts), None);
    }
    let expected =
        ["effective", "given up", "left to later rules", "left to the default", "repeats", "shadowed"];
    assert_eq!(counts.keys().copied().collect::<Vec<_>>(), expected);
    assert!(counts.values().all(|&count| count > 20), "{counts:?}");
}

fn permit_and_permit() -> RuleSet {
    RuleSet { rules: vec![Rule::any(Some(Action::Permit)), Rule::any(Some(Action::Permit))] }
}

fn verdicts(gaps: &Gaps) -> Vec<&'static str> {
    let options = Options { default: Action::Permit, ..Options::default() };
    let analysis = Analysis::with_gaps(&permit_and_permit(), gaps, options);
    (0..2).map(|position| name(&analysis.check(position).verdict)).collect()
}

#[test]
fn the_place_of_a_gap_matters() {
    let at = |position| Gaps { list: vec![Gap::at(position, 0, Rule::any(None))], ..Gaps::default() };
    assert_eq!(verdicts(&Gaps::default()), ["left to the default", "repeats"]);
    assert_eq!(verdicts(&at(0)), ["left to the default", "repeats"]);
    assert_eq!(verdicts(&at(1)), ["effective", "repeats"]);
    assert_eq!(verdicts(&at(2)), ["left to later rules", "repeats"]);
    let anywhere = Gap { latest: u32::MAX, ..Gap::at(0, 0, Rule::any(None)) };
    assert_eq!(verdicts(&Gaps { list: vec![anywhere], ..Gaps::default() }), ["effective", "repeats"]);
    let returns = Gap { resumes: 1, ..Gap::at(0, 0, Rule::any(None)) };
    assert_eq!(
        verdicts(&Gaps { list: vec![returns], ..Gaps::default() }),
        ["left to the default", "left to the default"]
    );
}

#[test]
fn nothing_is_said_about_doubtful_rules() {
    for (range, expected) in [
        (0..u32::MAX, ["effective", "effective"]),
        (1..2, ["left to the default", "effective"]),
        (7..9, ["left to the default", "repeats"]),
    ] {
        let gaps = Gaps { doubtful: vec![range], ..Gaps::default() };
        assert_eq!(verdicts(&gaps), expected);
    }
}
