//! Two copies of the tables, and what is written to them.

use std::fmt;
use std::sync::{Arc, RwLockReadGuard};

use packetloom_packet::{MatchKey4, MatchKey6};

use super::order::NO_RANK;
use super::pair::Pair;
use crate::Action;
use crate::hybrid::mutable::{Edit, Index};

/// What is known of a rule by its slot.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Known {
    pub(super) serial: u64,
    pub(super) action: Option<Action>,
}

/// One copy.
#[derive(Debug)]
pub(super) struct Tables {
    pub(super) version: u64,
    pub(super) v4: Index<MatchKey4>,
    pub(super) v6: Index<MatchKey6>,
    /// By slot.
    pub(super) ranks: Vec<u32>,
    pub(super) known: Vec<Known>,
}

/// What is to be written to each copy.
#[derive(Debug, Default)]
pub(super) struct Edits {
    pub(super) v4: Vec<Edit<MatchKey4>>,
    pub(super) v6: Vec<Edit<MatchKey6>>,
    pub(super) ranks: Vec<(u32, u32)>,
    pub(super) known: Vec<(u32, Known)>,
    pub(super) version: u64,
}

/// More room than this for edits is given back after use.
const KEPT: usize = 1 << 12;

impl Edits {
    fn clear(&mut self) {
        fn clear<T>(items: &mut Vec<T>) {
            items.clear();
            items.shrink_to(KEPT);
        }
        clear(&mut self.v4);
        clear(&mut self.v6);
        clear(&mut self.ranks);
        clear(&mut self.known);
    }
}

impl Tables {
    /// With room for so many slots.
    fn grow(&mut self, slots: usize) {
        if self.known.len() < slots {
            self.known.resize(slots, Known::default());
            self.ranks.resize(slots, NO_RANK);
        }
    }

    fn memory(&self) -> usize {
        let by_slot = size_of_val(&self.ranks[..]) + size_of_val(&self.known[..]);
        self.v4.memory() + self.v6.memory() + by_slot
    }

    fn apply(&mut self, edits: &mut Edits) {
        edits.v4.iter_mut().for_each(|edit| self.v4.apply(edit));
        edits.v6.iter_mut().for_each(|edit| self.v6.apply(edit));
        let slots =
            edits.known.iter().map(|&(slot, _)| slot).chain(edits.ranks.iter().map(|&(slot, _)| slot));
        if let Some(most) = slots.max() {
            self.grow(most as usize + 1);
        }
        for &(slot, rank) in &edits.ranks {
            self.ranks[slot as usize] = rank;
        }
        for &(slot, known) in &edits.known {
            self.known[slot as usize] = known;
        }
        self.version = edits.version;
    }
}

/// Both copies.
#[derive(Debug)]
pub(super) struct Copies(Pair<Tables>);

impl Copies {
    pub(super) fn new(copies: [Tables; 2]) -> Self {
        Self(Pair::new(copies))
    }

    /// Writes to the copy that is not active what it lacks, `late`, and what is new, and makes it the active one. Waits for
    /// readers that still have it. What is new is late for the other copy then.
    pub(super) fn publish(&self, late: &mut Edits, new: &mut Edits) {
        self.0.write(|tables| {
            tables.apply(late);
            tables.apply(new);
        });
        late.clear();
        std::mem::swap(late, new);
    }

    /// Bytes held by both.
    pub(super) fn memory(&self) -> usize {
        self.0.each(Tables::memory).into_iter().sum()
    }
}

/// What packets are classified through; any number of them, in any threads.
#[derive(Clone, Debug)]
pub struct Reader {
    copies: Arc<Copies>,
}

impl Reader {
    pub(super) fn new(copies: Arc<Copies>) -> Self {
        Self { copies }
    }

    /// The rules as they are now, for a batch: as long as the view is held it stays the same. The writer can go on for one
    /// [publication](super::Writer::publish) meanwhile, and then waits for it to be dropped.
    pub fn view(&self) -> View<'_> {
        View { tables: self.copies.0.read() }
    }
}

/// One version of the rules.
pub struct View<'a> {
    tables: RwLockReadGuard<'a, Tables>,
}

impl View<'_> {
    /// How many transactions have been made when the rules were as they are here.
    pub fn version(&self) -> u64 {
        self.tables.version
    }

    /// Writes to `first` the slot of the first rule that matches each key, or [`NO_RULE`](crate::NO_RULE). A slot is a rule's
    /// number while it is in the list, and another rule's afterwards: it means something to this view alone. Both slices have
    /// the same length.
    pub fn classify_v4(&self, keys: &[MatchKey4], first: &mut [u32]) {
        self.tables.v4.classify(keys, &self.tables.ranks, first);
    }

    /// As [`View::classify_v4`], for IPv6.
    pub fn classify_v6(&self, keys: &[MatchKey6], first: &mut [u32]) {
        self.tables.v6.classify(keys, &self.tables.ranks, first);
    }

    /// The rule in a slot by its serial number: how many were loaded or added before it. No other rule ever has it.
    pub fn serial(&self, slot: u32) -> Option<u64> {
        self.tables.known.get(slot as usize).map(|known| known.serial)
    }

    /// The action of the rule in a slot, where the rule has one.
    pub fn action(&self, slot: u32) -> Option<Action> {
        self.tables.known.get(slot as usize)?.action
    }
}

impl fmt::Debug for View<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("View").field("version", &self.version()).finish_non_exhaustive()
    }
}
