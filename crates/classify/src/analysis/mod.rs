#![doc = include_str!("README.md")]

mod ask;
mod case;
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
use self::case::Case;
use self::index::{Entry, Index, overlapping};
use self::kinds::{Classes, Demand};
use self::search::{Exhausted, Random, Search, Work};
use crate::rule::{Action, RuleSet};

pub use self::report::{Causes, Correlated, Report, Side, Verdict};

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
        Self { default: Action::Deny, work: 4_000_000, named: 10 }
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
        }
    }

    /// Says what is known of the rule at `position`.
    ///
    /// # Panics
    ///
    /// Where the rule set has no such position.
    pub fn check(&self, position: u32) -> Report {
        let Some(at) = self.entry_of[position as usize] else {
            return Report { verdict: Verdict::Unmatchable, correlated: Some(Correlated::default()) };
        };
        let rule = &self.entries[at as usize];
        let mut work = Work::new(self.options.work);
        let Ok(mut near) = self.neighbours(at as usize, &mut work) else {
            return Report { verdict: Verdict::Undecided { never_hit: false }, correlated: None };
        };
        let correlated = Some(std::mem::take(&mut near.correlated));
        let mut never_hit = near.other_cover.is_some();
        let mut case = Case { analysis: self, rule, search: Search::new(Random::new(position)), work };
        let verdict = case.verdict(near, &mut never_hit);
        Report { verdict: verdict.unwrap_or(Verdict::Undecided { never_hit }), correlated }
    }

    fn is_default(&self, entry: &Entry) -> bool {
        let actions = self.actions.as_ref();
        actions.is_some_and(|actions| actions[entry.position as usize] == self.options.default)
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
}
