#![doc = include_str!("README.md")]

mod ask;
mod index;
mod kinds;
mod packet;
mod question;
mod region;
mod report;
mod search;
mod span;

use std::collections::HashMap;

use self::ask::ask;
use self::index::{Entry, Index, overlapping};
use self::kinds::{Classes, Demand};
use self::packet::Packet;
use self::question::{Grounds, Question};
use self::search::{Exhausted, Random, Search, Work};
use crate::rule::{Action, RuleSet};

pub use self::report::{Causes, Correlated, Report, Side, Verdict};

/// Packets tried before a question is decided in full.
const TRIES: usize = 16;

/// What is asked of a rule set.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// What happens to packets that no rule matches.
    pub default: Action,
    /// Comparisons of regions that may be made for one rule.
    pub work: u64,
    /// How many of the rules that are correlated with a rule are named.
    pub named: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { default: Action::Deny, work: 1_000_000, named: 10 }
    }
}

/// A rule set, prepared to be asked about each of its rules.
#[derive(Debug)]
pub struct Analysis {
    options: Options,
    /// By position; `None` where some rule has no action: then nothing is said that depends on actions.
    actions: Option<Vec<Action>>,
    /// By position, where the rule's entry is.
    entry_of: Vec<Option<u32>>,
    entries: Vec<Entry>,
    index: Index,
    classes: Classes,
    search: Search,
}

/// The rules that overlap one, cut down to its ranges.
#[derive(Debug, Default)]
struct Neighbours {
    earlier: Vec<Entry>,
    later: Vec<Entry>,
    /// The first earlier rule of the same action that holds all of it.
    same_cover: Option<u32>,
    /// The first earlier rule of another action that holds all of it.
    other_cover: Option<u32>,
    correlated: Correlated,
}

impl Analysis {
    /// Prepares a rule set: O(n log n).
    pub fn new(rules: &RuleSet, options: Options) -> Self {
        let mut demands: Vec<Demand> = Vec::new();
        let mut numbers: HashMap<Demand, u32> = HashMap::new();
        let mut values = Vec::new();
        let mut entries = Vec::new();
        for (rule, position) in rules.rules.iter().zip(0..) {
            let Some((ranges, demand)) = ask(rule) else { continue };
            let demand = *numbers.entry(demand).or_insert_with(|| {
                demands.push(demand);
                demands.len() as u32 - 1
            });
            values.push(ranges);
            entries.push((demand, position));
        }
        let classes = Classes::new(&demands);
        let mut entries: Vec<_> = entries
            .into_iter()
            .zip(span::steps(&values))
            .map(|((demand, position), span)| Entry {
                span,
                digest: classes.digest(demand),
                demand,
                position,
            })
            .collect();
        entries.retain(|entry| classes.overlap(entry.demand, entry.demand));
        let mut entry_of = vec![None; rules.rules.len()];
        for (entry, at) in entries.iter().zip(0..) {
            entry_of[entry.position as usize] = Some(at);
        }
        Self {
            options,
            actions: rules.rules.iter().map(|rule| rule.action).collect(),
            entry_of,
            index: Index::new(&entries),
            entries,
            classes,
            search: Search::default(),
        }
    }

    /// Says what is known of the rule at `position`.
    ///
    /// # Panics
    ///
    /// Where the rule set has no such position.
    pub fn check(&mut self, position: u32) -> Report {
        let Some(at) = self.entry_of[position as usize] else {
            return Report { verdict: Verdict::Unmatchable, correlated: Some(Correlated::default()) };
        };
        let rule = self.entries[at as usize];
        let mut work = Work::new(self.options.work);
        // The report of a rule does not hang on which others were asked about before.
        self.search.random = Random::new(position);
        let Ok(mut near) = self.neighbours(at as usize, &mut work) else {
            return Report { verdict: Verdict::Undecided { never_hit: false }, correlated: None };
        };
        let correlated = Some(std::mem::take(&mut near.correlated));
        let mut never_hit = near.other_cover.is_some();
        let verdict = self.verdict(&rule, near, &mut work, &mut never_hit);
        Report { verdict: verdict.unwrap_or(Verdict::Undecided { never_hit }), correlated }
    }

    fn same_action(&self, a: &Entry, b: &Entry) -> bool {
        let action = |actions: &[Action], entry: &Entry| actions[entry.position as usize];
        self.actions.as_ref().is_none_or(|actions| action(actions, a) == action(actions, b))
    }

    /// Finds the rules that overlap the one at entry `at`. Where rules have no actions, later ones do not matter.
    fn neighbours(&self, at: usize, work: &mut Work) -> Result<Neighbours, Exhausted> {
        let rule = &self.entries[at];
        let holds = |outer: &Entry, inner: &Entry| {
            outer.span.contains(&inner.span) && self.classes.contains(outer.demand, inner.demand)
        };
        let mut near = Neighbours::default();
        let mut add = |entry: &Entry| {
            let is_later = entry.position > rule.position;
            if entry.position == rule.position
                || is_later && self.actions.is_none()
                || !self.classes.overlap(entry.demand, rule.demand)
            {
                return;
            }
            let part = Entry { span: entry.span.intersection(&rule.span), ..*entry };
            if is_later {
                near.later.push(part);
                return;
            }
            near.earlier.push(part);
            let same = self.same_action(entry, rule);
            if holds(entry, rule) {
                let cover = if same { &mut near.same_cover } else { &mut near.other_cover };
                *cover = Some(cover.map_or(entry.position, |first| first.min(entry.position)));
            } else if !same && !holds(rule, entry) {
                near.correlated.add(entry.position, self.options.named);
            }
        };
        let (count, runs) = self.index.near(at);
        work.spend(count)?;
        runs.for_each(|run| overlapping(run, rule, &mut add));
        Ok(near)
    }

    /// The verdict over a rule; `never_hit` is set as soon as that is known.
    fn verdict(
        &mut self,
        rule: &Entry,
        near: Neighbours,
        work: &mut Work,
        never_hit: &mut bool,
    ) -> Result<Verdict, Exhausted> {
        let covered = match self.actions {
            None => Verdict::Covered,
            Some(_) => |causes| Verdict::Redundant { causes, side: Side::Earlier },
        };
        if let Some(cause) = near.same_cover {
            return Ok(covered(Causes::one(cause)));
        }
        let cover = match near.other_cover {
            Some(cause) => Some(Cover::One(cause)),
            None => self.cover(rule, &near.earlier, work)?,
        };
        let Some(cover) = cover else { return self.without(rule, near, work) };
        *never_hit = true;
        if self.actions.is_none() {
            return Ok(covered(cover.causes(&mut self.search, work)));
        }
        let own: Vec<Entry> =
            near.earlier.into_iter().filter(|entry| self.same_action(entry, rule)).collect();
        Ok(match self.cover(rule, &own, work)? {
            Some(cover) => covered(cover.causes(&mut self.search, work)),
            None => Verdict::Shadowed(cover.causes(&mut self.search, work)),
        })
    }

    /// Whether every packet of a rule is matched by one of `entries`, none of which holds all of it.
    fn cover(
        &mut self,
        rule: &Entry,
        entries: &[Entry],
        work: &mut Work,
    ) -> Result<Option<Cover>, Exhausted> {
        for _ in 0..TRIES {
            let packet = Packet::random(rule, rule.demand, &self.classes, &mut self.search.random);
            if let Some(packet) = packet
                && !packet.meets_any(entries, work)?
            {
                return Ok(None);
            }
        }
        let question = Question::new(&self.classes, rule, all_good(entries), false);
        Ok(question.ask(&mut self.search, work)?.map(|used| Cover::Several(question, used)))
    }

    /// The verdict over a rule that decides packets: whether they would be decided in the same way without it.
    fn without(&mut self, rule: &Entry, mut near: Neighbours, work: &mut Work) -> Result<Verdict, Exhausted> {
        let Some(actions) = &self.actions else { return Ok(Verdict::Effective) };
        let action = actions[rule.position as usize];
        let is_good = |entry: &Entry| actions[entry.position as usize] == action;
        let default = self.options.default == action;
        let others: Vec<&Entry> = near.later.iter().filter(|entry| !is_good(entry)).collect();
        for count in 0..TRIES {
            // Packets that the default decides otherwise, or that some later rule may.
            let part = match others.len() as u32 {
                0 if default => break,
                len if len > 0 && (default || count % 2 == 0) => {
                    others[self.search.random.below(len) as usize]
                }
                _ => rule,
            };
            let packet = Packet::random(part, rule.demand, &self.classes, &mut self.search.random);
            let Some(packet) = packet else { continue };
            if !packet.meets_any(&near.earlier, work)? {
                work.spend(near.later.len() as u64)?;
                let next =
                    near.later.iter().filter(|entry| packet.meets(entry)).min_by_key(|entry| entry.position);
                // Where the default is good, the part is of a later rule, and there is a next one.
                if !next.is_some_and(is_good) {
                    return Ok(Verdict::Effective);
                }
            }
        }
        near.later.sort_unstable_by_key(|entry| entry.position);
        let candidates =
            all_good(&near.earlier).chain(near.later.iter().map(|entry| (entry, is_good(entry))));
        let question = Question::new(&self.classes, rule, candidates, default);
        let Some(used) = question.ask(&mut self.search, work)? else { return Ok(Verdict::Effective) };
        let grounds = question.grounds(used, |position| position < rule.position, &mut self.search, work);
        let side = Side::Later { default: grounds.default };
        Ok(Verdict::Redundant { causes: grounds.into(), side })
    }
}

fn all_good(entries: &[Entry]) -> impl Iterator<Item = (&Entry, bool)> + Clone {
    entries.iter().map(|entry| (entry, true))
}

/// Earlier rules that hold all of a rule.
enum Cover {
    One(u32),
    /// The question that was answered with "yes", and what this rests on.
    Several(Question, Vec<u32>),
}

impl Cover {
    fn causes(self, search: &mut Search, work: &mut Work) -> Causes {
        match self {
            Self::One(cause) => Causes::one(cause),
            Self::Several(question, used) => question.grounds(used, |_| false, search, work).into(),
        }
    }
}

impl From<Grounds> for Causes {
    fn from(Grounds { rules, minimal, .. }: Grounds) -> Self {
        Self { rules, minimal }
    }
}
