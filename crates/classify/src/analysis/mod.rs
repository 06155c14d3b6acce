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
use crate::gaps::Gaps;
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
    /// What becomes of packets, by position: the action, and the mark. `None` where some rule has no action: then nothing is said that
    /// depends on actions.
    actions: Option<Vec<(Action, u32)>>,
    /// By position, where the rule's entry is.
    entry_of: Vec<Option<u32>>,
    entries: Vec<Entry>,
    index: Index,
    classes: Classes,
    gaps: Vec<Gap>,
    /// By position, whether packets come to a rule in ways that the set does not show; empty where that is so for none.
    is_doubtful: Vec<bool>,
}

/// A place where something was left out that may decide packets.
#[derive(Debug)]
struct Gap {
    /// What it matches at most; its position is that of the first rule that may stand behind it.
    entry: Entry,
    /// The position of the first rule that stands behind it for certain.
    latest: u32,
    /// Earlier rules from its position to before this one may be passed over.
    resumes: u32,
}

impl Gap {
    /// Whether packets that it matches may pass over the rule at `passed` on their way to the one at `to`.
    fn passes(&self, passed: u32, to: u32) -> bool {
        (self.entry.position..self.resumes).contains(&passed) && self.resumes <= to
    }
}

/// The rules that overlap one, cut down to its ranges.
#[derive(Debug, Default)]
struct Neighbours {
    /// Those that packets cannot have passed over.
    earlier: Vec<Entry>,
    later: Vec<Later>,
    /// The first earlier rule of the same action that holds all of it.
    same_cover: Option<u32>,
    /// The first earlier rule of another action that holds all of it.
    other_cover: Option<u32>,
    correlated: Correlated,
}

/// What may decide packets that come past a rule: a later one, or something that was left out.
#[derive(Clone, Copy, Debug)]
struct Later {
    entry: Entry,
    /// Whether it decides as the rule does.
    good: bool,
    /// What is left out goes before the rule at its position.
    order: (u32, bool),
}

impl Analysis {
    /// Prepares a rule set: O(n log n).
    pub fn new(rules: &RuleSet, options: Options) -> Self {
        Self::with_gaps(rules, &Gaps::default(), options)
    }

    /// Prepares a rule set from which something was left out. What is then said about a rule holds whatever was left out does.
    pub fn with_gaps(rules: &RuleSet, gaps: &Gaps, options: Options) -> Self {
        let mut demands: Vec<Demand> = Vec::new();
        let mut numbers: HashMap<Demand, u32> = HashMap::new();
        let mut values = Vec::new();
        let mut asked = Vec::new();
        let count = rules.rules.len();
        let left_out = gaps.list.iter().map(|gap| &gap.at_most);
        for (rule, number) in rules.rules.iter().chain(left_out).zip(0usize..) {
            let Some((ranges, demand)) = ask(rule) else { continue };
            let demand = *numbers.entry(demand).or_insert_with(|| {
                demands.push(demand);
                demands.len() as u32 - 1
            });
            values.push(ranges);
            asked.push((demand, number));
        }
        let classes = Classes::new(&demands);
        let mut entries = Vec::with_capacity(asked.len());
        let mut entry_of = vec![None; count];
        let mut gap_entries = Vec::new();
        for ((demand, number), span) in asked.into_iter().zip(span::steps(&values)) {
            // What no packet can match does nothing, be it known or not.
            if !classes.overlap(demand, demand) {
                continue;
            }
            let entry = |position| Entry { span, digest: classes.digest(demand), demand, position };
            if number < count {
                entry_of[number] = Some(entries.len() as u32);
                entries.push(entry(number as u32));
            } else {
                let crate::Gap { position, latest, resumes, .. } = gaps.list[number - count];
                gap_entries.push(Gap { entry: entry(position), latest, resumes });
            }
        }
        let mut is_doubtful = vec![false; if gaps.doubtful.is_empty() { 0 } else { count }];
        for range in &gaps.doubtful {
            let [start, end] = [range.start, range.end].map(|position| (position as usize).min(count));
            is_doubtful[start..end.max(start)].fill(true);
        }
        Self {
            options,
            actions: rules.rules.iter().map(|rule| Some((rule.action?, rule.mark))).collect(),
            entry_of,
            index: Index::new(&entries),
            entries,
            classes,
            gaps: gap_entries,
            is_doubtful,
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
        if self.is_doubtful.get(position as usize) == Some(&true) {
            return Report { verdict: Verdict::Effective, correlated };
        }
        let mut never_hit = near.other_cover.is_some();
        let mut case = Case { analysis: self, rule, search: Search::new(Random::new(position)), work };
        let verdict = case.verdict(near, &mut never_hit);
        Report { verdict: verdict.unwrap_or(Verdict::Undecided { never_hit }), correlated }
    }

    fn is_default(&self, entry: &Entry) -> bool {
        let actions = self.actions.as_ref();
        actions.is_some_and(|actions| actions[entry.position as usize] == (self.options.default, 0))
    }

    fn same_action(&self, a: &Entry, b: &Entry) -> bool {
        let action = |actions: &[(Action, u32)], entry: &Entry| actions[entry.position as usize];
        self.actions.as_ref().is_none_or(|actions| action(actions, a) == action(actions, b))
    }

    /// Finds the rules that overlap the one at entry `at`. Where rules have no actions, later ones do not matter.
    fn neighbours(&self, at: usize, work: &mut Work) -> Result<Neighbours, Exhausted> {
        let rule = &self.entries[at];
        let holds = |outer: &Entry, inner: &Entry| {
            outer.span.contains(&inner.span) && self.classes.contains(outer.demand, inner.demand)
        };
        let overlap =
            |a: &Entry, b: &Entry| a.span.overlaps(&b.span) && self.classes.overlap(a.demand, b.demand);
        let mut near = Neighbours::default();
        // Gaps by which packets of the rule may come to it past earlier rules.
        let mut passages: Vec<&Gap> = Vec::new();
        work.spend(self.gaps.len() as u64)?;
        for gap in self.gaps.iter().filter(|gap| overlap(&gap.entry, rule)) {
            if gap.entry.position < gap.resumes && gap.resumes <= rule.position {
                passages.push(gap);
            }
            if gap.latest > rule.position && self.actions.is_some() {
                let position = gap.entry.position.max(rule.position + 1);
                let span = gap.entry.span.intersection(&rule.span);
                let entry = Entry { span, position, ..gap.entry };
                near.later.push(Later { entry, good: false, order: (position, false) });
            }
        }
        let (mut compared, limit) = (0, work.left());
        let mut add = |entry: &Entry| {
            let is_later = entry.position > rule.position;
            if entry.position == rule.position
                || is_later && self.actions.is_none()
                || !self.classes.overlap(entry.demand, rule.demand)
            {
                return;
            }
            let same = self.same_action(entry, rule);
            let part = Entry { span: entry.span.intersection(&rule.span), ..*entry };
            if is_later {
                near.later.push(Later { entry: part, good: same, order: (part.position, true) });
                return;
            }
            let holds_rule = holds(entry, rule);
            if !same && !holds_rule && !holds(rule, entry) {
                near.correlated.add(entry.position, self.options.named);
            }
            let mut is_passed = false;
            if compared <= limit {
                compared += passages.len() as u64;
                is_passed = passages
                    .iter()
                    .any(|gap| gap.passes(entry.position, rule.position) && overlap(&gap.entry, &part));
            }
            if is_passed {
                return;
            }
            near.earlier.push(part);
            if holds_rule {
                let cover = if same { &mut near.same_cover } else { &mut near.other_cover };
                *cover = Some(cover.map_or(entry.position, |first| first.min(entry.position)));
            }
        };
        let (count, runs) = self.index.near(at);
        work.spend(count)?;
        runs.for_each(|run| overlapping(run, rule, &mut add));
        work.spend(compared)?;
        Ok(near)
    }
}
