//! Transactions of rules: a list becomes another one between two batches, and goes on with all that the one before counted and keeps.
//!
//! A rule is the same in both if it has the same number ([`Name::Number`](packetloom_classify::live::Name)) and says the same: then it goes on with
//! its counters. What others counted that are gone is summed up.

use std::any::Any;
use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Arc, OnceLock, Weak};

use packetloom_classify::live::{Change, RuleList};
use packetloom_classify::{Action, NO_RULE, Rule, RuleSet};

use super::{Acl, AclReport, Counter, List};
use crate::{RefusedChange, Report};

/// Where a list goes on from another one.
#[derive(Debug)]
pub(super) struct Before {
    list: Weak<List>,
    /// Where each rule was in that, or [`NO_RULE`].
    positions: Vec<u32>,
}

impl List {
    /// The number of the rule at `position`; none where a file changes the rules, which has names of its own.
    pub(super) fn number(&self, position: usize) -> Option<u64> {
        match &self.numbers {
            Some(numbers) => numbers.get(position).copied(),
            None => (!self.is_of_changes).then_some(position as u64),
        }
    }

    /// Where each rule was in an older list, or [`NO_RULE`]. All workers go on from the same list: the first one that asks finds it out.
    pub(super) fn positions_in<'a>(self: &'a Arc<Self>, old: &Arc<Self>) -> Cow<'a, [u32]> {
        let find = || {
            let numbered = (0..self.rules.rules.len()).map(|position| self.number(position));
            positions(old, numbered.zip(&self.rules.rules))
        };
        let before = self.before.get_or_init(|| Before { list: Arc::downgrade(old), positions: find() });
        match Weak::ptr_eq(&before.list, &Arc::downgrade(old)) {
            true => Cow::Borrowed(&before.positions),
            false => Cow::Owned(find()),
        }
    }
}

/// Where rules with their numbers are in an older list, or [`NO_RULE`].
fn positions<'a>(old: &List, rules: impl Iterator<Item = (Option<u64>, &'a Rule)>) -> Vec<u32> {
    let by_number = (0..old.rules.rules.len()).map(|position| (old.number(position), position));
    let by_number: HashMap<_, _> = by_number.collect();
    let position = |(number, rule): (Option<u64>, &Rule)| {
        let position = number.and_then(|_| by_number.get(&number).copied());
        let position = position.filter(|&position| old.rules.rules[position] == *rule);
        position.map_or(NO_RULE, |position| position as u32)
    };
    rules.map(position).collect()
}

impl Acl {
    /// Whether another one is the same but for its rules, and neither changes them by a file.
    pub(super) fn is_same_beside_rules(&self, other: &Self) -> bool {
        self.changes.is_none()
            && other.changes.is_none()
            && (self.kind, &self.name) == (other.kind, &other.name)
            && self.list.settings == other.list.settings
    }

    /// The rules as they were loaded.
    pub(super) fn loaded(&self) -> &RuleSet {
        match &self.edited {
            Some((loaded, _)) => &loaded.rules,
            None => &self.list.rules,
        }
    }

    /// The same with other rules. What it keeps for connections means what it meant, so a list goes on to keep that.
    pub(super) fn changed(&self, changes: &[Change]) -> Result<Self, RefusedChange> {
        if let Some(by_file) = &self.changes {
            let why =
                format!("its rules change as {} says; expected an acl without --rules-changes", by_file.name);
            return Err(RefusedChange { change: None, why });
        }
        let (loaded, mut rules) = match &self.edited {
            Some((loaded, rules)) => (loaded.clone(), rules.clone()),
            None => (self.list.clone(), RuleList::new(self.list.rules.clone())),
        };
        rules
            .apply(changes)
            .map_err(|error| RefusedChange { change: Some(error.change), why: error.to_string() })?;
        let positions = positions(&self.list, rules.rules().map(|(number, rule)| (Some(number), rule)));
        let (numbers, of_rules) = rules.rules().map(|(number, rule)| (number, rule.clone())).unzip();
        let mut list = List::new(RuleSet { rules: of_rules }, self.list.settings.clone());
        list.tracks |= self.list.tracks;
        list.reflects |= self.list.reflects;
        list.is_contextual |= list.tracks;
        if list.tracks && list.reflects {
            return Err(self.clash(changes));
        }
        list.numbers = Some(numbers);
        list.before = OnceLock::from(Before { list: Arc::downgrade(&self.list), positions });
        Ok(Self {
            list: Arc::new(list),
            kind: self.kind,
            classifier: OnceLock::new(),
            classes: OnceLock::new(),
            name: self.name.clone(),
            path: self.path.clone(),
            format: self.format,
            skipped: self.skipped.clone(),
            elsewhere: self.elsewhere.clone(),
            changes: None,
            edited: Some((loaded, rules)),
        })
    }

    /// Where some rules would have `reflect` and others `state`.
    fn clash(&self, changes: &[Change]) -> RefusedChange {
        let added = changes.iter().map(|change| match change {
            Change::Add(_, rule) | Change::Replace(_, rule) => Some(rule),
            Change::Delete(_) => None,
        });
        let reflects = |rule: &Rule| rule.action == Some(Action::Reflect);
        let asks = |rule: &Rule| !rule.states.is_all();
        let is_at_odds = |rule: &Rule| match (self.list.tracks, self.list.reflects) {
            (true, _) => reflects(rule),
            (_, true) => asks(rule),
            _ => reflects(rule) || asks(rule),
        };
        RefusedChange {
            change: added.map(|rule| rule.is_some_and(is_at_odds)).position(|is_it| is_it),
            why: "the list would have both \"reflect\" and \"state\", or had the other one since it was loaded; expected one of both".into(),
        }
    }
}

impl AclReport {
    /// Goes on with what an older list counted.
    pub(super) fn go_on_with(&mut self, old: &dyn Report) {
        let Some(old) = (old as &dyn Any).downcast_ref::<Self>() else { return };
        let Some((default, of_rules)) = old.counters.split_last() else { return };
        let positions = self.list.positions_in(&old.list);
        let mut deleted = old.deleted;
        of_rules.iter().for_each(|&counter| deleted.merge(counter));
        let mut stayed = 0;
        let mut counters = vec![Counter::default(); self.counters.len()];
        for (number, &position) in positions.iter().enumerate().filter(|&(_, &position)| position != NO_RULE)
        {
            stayed += 1;
            // There are none where rules are not counted.
            if let (Some(&before), Some(counter)) =
                (of_rules.get(position as usize), counters.get_mut(number))
            {
                *counter = before;
                deleted.packets -= before.packets;
                deleted.bytes -= before.bytes;
            }
        }
        if let Some(last) = counters.last_mut() {
            *last = *default;
        }
        let deleted_rules = old.deleted_rules + (old.list.rules.rules.len() - stayed) as u64;
        *self = Self { list: self.list.clone(), counters, deleted, deleted_rules, ..old.clone() };
    }
}
