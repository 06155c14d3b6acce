//! The list itself: rules in order, by their names, and changes that hold as a whole or not at all.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use super::order::Order;
use crate::formats::MAX_RULES;
use crate::{Rule, RuleSet};

/// How a change names a rule.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Name {
    /// By its `id`, which no other rule of the list has.
    Id(Box<str>),
    /// By its number: its place in the list as it was loaded, from 0; those of rules that are added follow, in the order in which they are
    /// added. A rule that replaces another has the number of that.
    Number(u64),
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Id(id) => f.write_str(id),
            Self::Number(number) => write!(f, "@{number}"),
        }
    }
}

/// Where a rule is put.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Place {
    /// Before all others.
    First,
    /// After all others.
    #[default]
    Last,
    /// Just before a rule.
    Before(Name),
    /// Just after a rule.
    After(Name),
    /// So that so many rules come before it.
    At(usize),
}

/// One change of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A rule more.
    Add(Place, Rule),
    /// A rule less.
    Delete(Name),
    /// Another rule in the place of one; without an `id` of its own it keeps that one's.
    Replace(Name, Rule),
}

/// Why a transaction was refused. Nothing is changed then.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{problem}")]
pub struct ChangeError {
    /// Which of its changes, from 0.
    pub change: usize,
    /// What is wrong with it.
    pub problem: Problem,
}

/// What is wrong with a change.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// No rule has this name.
    #[error("no rule {0}; expected the id of a rule of the list, or @N for the one with number N")]
    Unknown(Name),
    /// Several rules have this id.
    #[error("{1} rules have the id {0}; expected one that is unique, or @N for the rule with number N")]
    Ambiguous(Name, usize),
    /// A new rule has the id of another one.
    #[error("a rule has the id {0} already; expected one that is new")]
    Taken(Box<str>),
    /// A place behind the end.
    #[error("place {place}; expected one from 0 to {rules}, the number of rules")]
    Range {
        /// The place asked for.
        place: usize,
        /// Rules in the list.
        rules: usize,
    },
    /// The list is full.
    #[error("more than {MAX_RULES} rules")]
    Full,
}

/// A rule of the list.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) rule: Arc<Rule>,
    /// Rules that were loaded or added before it.
    pub(super) serial: u64,
    /// See [`Name::Number`].
    pub(super) number: u64,
}

/// What a transaction did to the list.
#[derive(Debug, Default)]
pub(super) struct Staged {
    /// Slots whose rules have gone: they are free once [`List::finish`] was called.
    pub(super) removed: Vec<u32>,
    /// Slots of new rules, that are still there.
    pub(super) added: Vec<u32>,
}

/// A step of a transaction.
enum Step {
    Added(u32),
    Removed { slot: u32, before: Option<u32> },
}

/// Rules in order, which transactions change.
#[derive(Clone, Debug)]
pub struct RuleList {
    pub(super) order: Order,
    /// By slot. What a transaction removed stands here until it is done.
    held: Vec<Option<Held>>,
    free: Vec<u32>,
    ids: HashMap<Box<str>, Vec<u32>>,
    /// The slots of rules by their numbers.
    numbers: HashMap<u64, u32>,
    next_number: u64,
    next_serial: u64,
}

impl RuleList {
    /// The list as it is loaded.
    pub fn new(rules: RuleSet) -> Self {
        let len = rules.rules.len();
        let mut ids: HashMap<Box<str>, Vec<u32>> = HashMap::new();
        for (rule, slot) in rules.rules.iter().zip(0..) {
            if let Some(id) = &rule.id {
                ids.entry(id.clone()).or_default().push(slot);
            }
        }
        let held = rules.rules.into_iter().zip(0u32..);
        Self {
            order: Order::new(len),
            held: held
                .map(|(rule, slot)| {
                    Some(Held { rule: Arc::new(rule), serial: slot.into(), number: slot.into() })
                })
                .collect(),
            free: Vec::new(),
            ids,
            numbers: (0..len as u32).map(|slot| (slot.into(), slot)).collect(),
            next_number: len as u64,
            next_serial: len as u64,
        }
    }

    /// Makes the changes in turn.
    ///
    /// # Errors
    ///
    /// The first that cannot be made, and why. Nothing is changed then.
    pub fn apply(&mut self, changes: &[Change]) -> Result<(), ChangeError> {
        let staged = self.change(changes);
        // Nobody here looks at ranks, of which the list would remember all that ever changed.
        drop(self.order.take_touched());
        self.finish(&staged?);
        Ok(())
    }

    /// The rules in order, with their numbers.
    pub fn rules(&self) -> impl Iterator<Item = (u64, &Rule)> {
        self.order.iter().filter_map(|slot| self.held(slot)).map(|held| (held.number, &*held.rule))
    }

    pub(super) fn held(&self, slot: u32) -> Option<&Held> {
        self.held.get(slot as usize)?.as_ref()
    }

    /// Slots that there are, used or not.
    pub(super) fn slots(&self) -> usize {
        self.held.len()
    }

    /// Makes the changes in turn. After one that is wrong, those before it are undone.
    pub(super) fn change(&mut self, changes: &[Change]) -> Result<Staged, ChangeError> {
        let mut steps = Vec::with_capacity(changes.len() + 1);
        let (free, number, serial) = (self.free.len(), self.next_number, self.next_serial);
        for (change, what) in changes.iter().enumerate() {
            if let Err(problem) = self.change_one(what, &mut steps) {
                for step in steps.into_iter().rev() {
                    self.undo(step);
                }
                (self.next_number, self.next_serial) = (number, serial);
                return Err(ChangeError { change, problem });
            }
        }
        debug_assert!(self.free.len() <= free, "slots are freed at the end");
        let mut staged = Staged::default();
        for step in steps {
            match step {
                Step::Added(slot) => staged.added.push(slot),
                Step::Removed { slot, .. } => staged.removed.push(slot),
            }
        }
        // What came and went within the transaction was never there.
        if !staged.removed.is_empty() {
            let gone: std::collections::HashSet<u32> = staged.removed.iter().copied().collect();
            staged.added.retain(|slot| !gone.contains(slot));
        }
        Ok(staged)
    }

    /// Forgets the rules that a transaction removed.
    pub(super) fn finish(&mut self, staged: &Staged) {
        for &slot in &staged.removed {
            self.held[slot as usize] = None;
            self.free.push(slot);
        }
    }

    fn change_one(&mut self, change: &Change, steps: &mut Vec<Step>) -> Result<(), Problem> {
        match change {
            Change::Add(place, rule) => {
                let before = self.place(place)?;
                self.add(before, rule.clone(), None, steps)
            }
            Change::Delete(name) => {
                let slot = self.find(name)?;
                self.remove(slot, steps);
                Ok(())
            }
            Change::Replace(name, rule) => {
                let slot = self.find(name)?;
                let before = self.remove(slot, steps);
                let old = self.held[slot as usize].clone();
                let mut rule = rule.clone();
                rule.id = rule.id.or_else(|| old.as_ref()?.rule.id.clone());
                self.add(before, rule, old.map(|old| old.number), steps)
            }
        }
    }

    /// The slot of the rule with this name.
    fn find(&self, name: &Name) -> Result<u32, Problem> {
        let unknown = || Problem::Unknown(name.clone());
        match name {
            Name::Id(id) => match self.ids.get(id).map(Vec::as_slice) {
                None | Some([]) => Err(unknown()),
                Some([slot]) => Ok(*slot),
                Some(several) => Err(Problem::Ambiguous(name.clone(), several.len())),
            },
            Name::Number(number) => self.numbers.get(number).copied().ok_or_else(unknown),
        }
    }

    /// The slot after which a rule is put.
    fn place(&self, place: &Place) -> Result<Option<u32>, Problem> {
        let rules = self.order.len();
        Ok(match place {
            Place::First => None,
            Place::Last => self.order.last(),
            Place::Before(name) => self.order.before(self.find(name)?),
            Place::After(name) => Some(self.find(name)?),
            Place::At(place) if *place > rules => return Err(Problem::Range { place: *place, rules }),
            Place::At(place) => place.checked_sub(1).and_then(|before| self.order.at(before)),
        })
    }

    fn add(
        &mut self,
        before: Option<u32>,
        rule: Rule,
        number: Option<u64>,
        steps: &mut Vec<Step>,
    ) -> Result<(), Problem> {
        if self.order.len() >= MAX_RULES {
            return Err(Problem::Full);
        }
        if let Some(id) = rule.id.as_ref().filter(|&id| self.ids.contains_key(id)) {
            return Err(Problem::Taken(id.clone()));
        }
        let slot = self.free.pop().unwrap_or(self.held.len() as u32);
        if slot as usize == self.held.len() {
            self.held.push(None);
        }
        let number = number.unwrap_or(self.next_number);
        self.next_number = self.next_number.max(number + 1);
        self.held[slot as usize] = Some(Held { rule: Arc::new(rule), serial: self.next_serial, number });
        self.next_serial += 1;
        self.enter(before, slot);
        steps.push(Step::Added(slot));
        Ok(())
    }

    /// Takes a rule out; returns the slot before it.
    fn remove(&mut self, slot: u32, steps: &mut Vec<Step>) -> Option<u32> {
        let before = self.leave(slot);
        steps.push(Step::Removed { slot, before });
        before
    }

    fn undo(&mut self, step: Step) {
        match step {
            Step::Added(slot) => {
                self.leave(slot);
                self.held[slot as usize] = None;
                self.free.push(slot);
            }
            Step::Removed { slot, before } => self.enter(before, slot),
        }
    }

    /// Puts a held rule into the order, under its names.
    fn enter(&mut self, before: Option<u32>, slot: u32) {
        self.order.insert_after(before, slot);
        let Some(Held { rule, number, .. }) = &self.held[slot as usize] else { return };
        if let Some(id) = &rule.id {
            self.ids.entry(id.clone()).or_default().push(slot);
        }
        self.numbers.insert(*number, slot);
    }

    /// Takes a held rule out of the order, with its names; returns the slot before it.
    fn leave(&mut self, slot: u32) -> Option<u32> {
        let before = self.order.remove(slot);
        let Some(Held { rule, number, .. }) = &self.held[slot as usize] else { return before };
        if let Some(id) = &rule.id
            && let Some(slots) = self.ids.get_mut(id)
        {
            slots.retain(|&other| other != slot);
            if slots.is_empty() {
                self.ids.remove(id);
            }
        }
        self.numbers.remove(number);
        before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A list that is changed for months is as large as its rules.
    #[test]
    fn a_list_does_not_remember_changes() {
        let rule = |text: &str| -> Rule {
            let read = crate::formats::read_rules("test", &mut text.as_bytes(), &Default::default());
            read.expect("a rule").rules.rules.remove(0)
        };
        let kept = rule("permit tcp from any to any id kept");
        let mut list = RuleList::new(RuleSet { rules: vec![kept] });
        let place = Place::After(Name::Id("kept".into()));
        let come: Vec<_> =
            (0..50).map(|_| Change::Add(place.clone(), rule("deny udp from any to any"))).collect();
        for round in 0..200u64 {
            list.apply(&come).expect("added");
            let go: Vec<_> =
                (0..50).map(|number| Change::Delete(Name::Number(1 + round * 50 + number))).collect();
            list.apply(&go).expect("deleted");
            list.apply(&[Change::Delete(Name::Id("none".into()))]).expect_err("it is not there");
            assert_eq!(list.order.take_touched().count(), 0);
        }
        assert_eq!(list.rules().count(), 1);
        assert!(list.slots() <= 51, "{}", list.slots());
    }
}
