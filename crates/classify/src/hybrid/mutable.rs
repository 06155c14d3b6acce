//! An index whose rules change: hash tables that can be written, and [bitmaps](super::bitmaps) for what they do not take.
//!
//! [`Index`] is what packets are looked up in, [`Keeper`] what must be known to change it. The keeper turns a change into
//! [`Edit`]s, plain writes, so that several copies of an index can be changed alike without thinking twice. Rules are named by
//! slots; which of two comes first, their ranks say, so that a rule can come between two others without these being touched.
// What a family is, is known within this folder alone; others name their keys.
#![allow(private_bounds, private_interfaces)]

use super::bitmaps::{self, BitmapKeeper, Bitmaps, Candidate};
use super::block::LOAD;
use super::entry::Entry;
use super::family::{self, Family};
use super::masked_hash::{self, Slots, Write};
use super::state::States;
use super::{LEAST_SHARE, MAX_TABLES, SCRATCH, Scratch};
use crate::compiled::CompiledRule;
use packetloom_simd::{Isa, Kernel, Simd};

/// So many rules or fewer stay in bitmaps, rather than have one more hash table made for them.
const FEW: usize = 64;
/// The bitmaps may take so many rules, or twice as many as when the tables were made, before they are made anew.
const MANY: usize = 512;

/// The tables of one family, in one copy.
#[derive(Debug)]
pub(crate) struct Index<K: Family> {
    isa: Isa,
    states: States,
    hashes: Vec<masked_hash::Table<K>>,
    bitmaps: Bitmaps<K>,
}

/// Something to write to an index.
#[derive(Debug)]
pub(crate) enum Edit<K: Family> {
    /// To a hash table.
    Hash(usize, Write<K>),
    /// To the bitmaps.
    Bits(bitmaps::Write<K>),
    /// All of it: an index for each copy.
    Whole(Vec<Index<K>>),
}

/// What must be known to change the tables of one family.
#[derive(Debug)]
pub(crate) struct Keeper<K: Family> {
    states: States,
    hashes: Vec<masked_hash::Keeper>,
    bitmaps: BitmapKeeper,
    /// By slot.
    homes: Vec<Home>,
    /// By slot, of the rules that can be in a hash table.
    entries: Vec<Option<Entry>>,
    /// By slot, of the rules in bitmaps.
    candidates: Vec<Option<Box<Candidate<K>>>>,
    /// Rules in bitmaps when the tables were made.
    first_rules: usize,
}

/// How full the tables of one family are; see [`crate::live::Figures`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Figures {
    pub(crate) tables: usize,
    pub(crate) lines: usize,
    pub(crate) copies: usize,
    pub(crate) in_bitmaps: usize,
}

/// Where a rule is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Home {
    /// Not here: it is free, or a rule of the other family.
    #[default]
    Nowhere,
    /// In a hash table.
    Hash(u8),
    /// In a bit of a block.
    Bits,
}

/// Indices of the same content.
const COPIES: usize = 2;

/// Sets an item of a table that grows as it must.
fn set<T: Default>(items: &mut Vec<T>, at: u32, item: T) {
    if items.len() <= at as usize {
        items.resize_with(at as usize + 1, T::default);
    }
    items[at as usize] = item;
}

fn candidate<K: Family>(candidates: &[Option<Box<Candidate<K>>>], slot: u32) -> Option<Candidate<K>> {
    candidates.get(slot as usize)?.as_deref().copied()
}

impl<K: Family> Keeper<K> {
    /// The tables of these rules, whose positions are their slots and which are in order; and an index for each copy.
    pub(crate) fn new(rules: &[CompiledRule<K>], ranks: &[u32], isa: Isa) -> (Self, Vec<Index<K>>) {
        let states = States::new(rules);
        let (mut left, _) = family::entries(rules, &states);
        let mut keeper = Self {
            states,
            hashes: Vec::new(),
            bitmaps: BitmapKeeper::default(),
            homes: Vec::new(),
            entries: Vec::new(),
            candidates: Vec::new(),
            first_rules: 0,
        };
        for &rule in &left {
            set(&mut keeper.entries, rule.position, Some(rule));
        }
        let mut edits = Vec::new();
        let mut indices: Vec<Index<K>> = Vec::new();
        indices.resize_with(COPIES, || Index {
            isa,
            states: keeper.states.clone(),
            hashes: Vec::new(),
            bitmaps: Bitmaps::new(),
        });
        while left.len() > FEW && keeper.hashes.len() < MAX_TABLES {
            let table = keeper.hashes.len();
            let Some(mut hash) = masked_hash::Keeper::new::<K>(&left, &keeper.states, LEAST_SHARE) else {
                break;
            };
            let before = left.len();
            let slots = Slots { entries: &keeper.entries, ranks };
            let mut writes = Vec::new();
            left.retain(|rule| {
                let taken = hash.insert(rule.position, slots, &keeper.states, |write| writes.push(write));
                if taken {
                    set(&mut keeper.homes, rule.position, Home::Hash(table as u8));
                }
                !taken
            });
            if before - left.len() < before / LEAST_SHARE {
                // Those that it did take go the way of the others.
                let taken = |home: &&mut Home| **home == Home::Hash(table as u8);
                keeper.homes.iter_mut().filter(taken).for_each(|home| *home = Home::Nowhere);
                break;
            }
            for index in &mut indices {
                let mut table = hash.empty_table();
                writes.iter().for_each(|write| table.write(write));
                index.hashes.push(table);
            }
            keeper.hashes.push(hash);
        }
        let mut others = Vec::new();
        for rule in rules {
            if keeper.home(rule.position) == Home::Nowhere {
                keeper.settle_in_bitmaps(*rule);
                others.push(rule.position);
            }
        }
        keeper.bitmaps = BitmapKeeper::new(
            &others,
            |slot| candidate(&keeper.candidates, slot),
            |write| {
                edits.push(Edit::Bits(write));
            },
        );
        keeper.first_rules = keeper.bitmaps.rules;
        for index in &mut indices {
            edits.iter_mut().for_each(|edit| index.apply(edit));
        }
        (keeper, indices)
    }

    fn home(&self, slot: u32) -> Home {
        self.homes.get(slot as usize).copied().unwrap_or_default()
    }

    /// Takes up a rule; its position is its slot, which no other rule has.
    pub(crate) fn insert(&mut self, rule: CompiledRule<K>, ranks: &[u32], edits: &mut Vec<Edit<K>>) {
        set(&mut self.entries, rule.position, family::entry(&rule, &self.states));
        self.place(rule, 0, ranks, edits);
    }

    /// Puts a rule into the first hash table that takes it, from this one on, or into a bitmap.
    fn place(&mut self, rule: CompiledRule<K>, from: usize, ranks: &[u32], edits: &mut Vec<Edit<K>>) {
        let slot = rule.position;
        let slots = Slots { entries: &self.entries, ranks };
        for (table, hash) in self.hashes.iter_mut().enumerate().skip(from) {
            if hash.insert(slot, slots, &self.states, |write| edits.push(Edit::Hash(table, write))) {
                set(&mut self.homes, slot, Home::Hash(table as u8));
                return;
            }
        }
        self.settle_in_bitmaps(rule);
        let candidates = &self.candidates;
        self.bitmaps.insert(
            slot,
            ranks,
            |slot| candidate(candidates, slot),
            |write| edits.push(Edit::Bits(write)),
        );
    }

    fn settle_in_bitmaps(&mut self, rule: CompiledRule<K>) {
        set(&mut self.homes, rule.position, Home::Bits);
        let candidate = Candidate { state: self.states.of_rule(&rule), rule };
        set(&mut self.candidates, rule.position, Some(Box::new(candidate)));
    }

    /// Lets go of rules. `rule` gives the rule of a slot: some that stay may have to move.
    pub(crate) fn remove(
        &mut self,
        slots: &[u32],
        rule: impl Fn(u32) -> Option<CompiledRule<K>>,
        ranks: &[u32],
        edits: &mut Vec<Edit<K>>,
    ) {
        let mut evicted = Vec::new();
        for &slot in slots {
            self.take_out(slot, &mut evicted, edits);
            if let Some(entry) = self.entries.get_mut(slot as usize) {
                *entry = None;
            }
        }
        // All of them are out before any moves: the ranks of what is not in the list mean nothing.
        let mut moving = Vec::new();
        while let Some(slot) = evicted.pop() {
            // One that was to go anyhow has no home any more, and one that is named twice neither.
            if let Home::Hash(table) = self.home(slot) {
                self.take_out(slot, &mut evicted, edits);
                moving.push((slot, usize::from(table) + 1));
            }
        }
        for (slot, from) in moving {
            if let Some(rule) = rule(slot) {
                self.place(rule, from, ranks, edits);
            }
        }
    }

    /// Takes a rule out of where it is.
    fn take_out(&mut self, slot: u32, evicted: &mut Vec<u32>, edits: &mut Vec<Edit<K>>) {
        match self.home(slot) {
            Home::Nowhere => return,
            Home::Hash(table) => {
                let table = usize::from(table);
                self.hashes[table].remove(slot, &self.entries, &self.states, evicted, |write| {
                    edits.push(Edit::Hash(table, write));
                });
            }
            Home::Bits => {
                let candidates = &self.candidates;
                self.bitmaps.remove(
                    slot,
                    |slot| candidate(candidates, slot),
                    |write| edits.push(Edit::Bits(write)),
                );
                self.candidates[slot as usize] = None;
            }
        }
        self.homes[slot as usize] = Home::Nowhere;
    }

    /// Makes the tables anew where so many rules are in bitmaps that it is worth it, and says whether it did. What was to be written
    /// to the old ones is void then.
    pub(crate) fn renew_if_worn(
        &mut self,
        rules: impl FnOnce() -> Vec<CompiledRule<K>>,
        ranks: &[u32],
        isa: Isa,
        edits: &mut Vec<Edit<K>>,
    ) -> bool {
        let worn = self.bitmaps.rules > MANY.max(2 * self.first_rules);
        if worn {
            let (made, indices) = Self::new(&rules(), ranks, isa);
            *self = made;
            edits.clear();
            edits.push(Edit::Whole(indices));
        }
        worn
    }

    /// How full the tables are.
    pub(crate) fn figures(&self) -> Figures {
        Figures {
            tables: self.hashes.len(),
            lines: self.hashes.iter().map(masked_hash::Keeper::lines_used).sum(),
            copies: self.hashes.iter().map(masked_hash::Keeper::copies).sum(),
            in_bitmaps: self.bitmaps.rules,
        }
    }

    /// Bytes held.
    pub(crate) fn memory(&self) -> usize {
        let by_slot =
            size_of_val(&self.homes[..]) + size_of_val(&self.entries[..]) + size_of_val(&self.candidates[..]);
        let hashes: usize = self.hashes.iter().map(masked_hash::Keeper::memory).sum();
        by_slot + hashes + self.bitmaps.rules * size_of::<Candidate<K>>()
    }
}

impl<K: Family> Index<K> {
    /// Makes one write. An edit is applied once to each copy.
    pub(crate) fn apply(&mut self, edit: &mut Edit<K>) {
        match edit {
            Edit::Hash(table, write) => self.hashes[*table].write(write),
            Edit::Bits(write) => self.bitmaps.write(write),
            Edit::Whole(indices) => {
                if let Some(index) = indices.pop() {
                    *self = index;
                }
            }
        }
    }

    /// Bytes held.
    pub(crate) fn memory(&self) -> usize {
        self.hashes.iter().map(masked_hash::Table::memory).sum::<usize>() + self.bitmaps.memory()
    }

    /// Writes to `first` the slot of the first rule that matches each key, or [`crate::NO_RULE`].
    pub(crate) fn classify(&self, keys: &[K], ranks: &[u32], first: &mut [u32]) {
        SCRATCH
            .with_borrow_mut(|scratch| self.isa.run(Classify { index: self, scratch, keys, ranks, first }));
    }
}

/// Classifying some keys.
struct Classify<'a, K: Family> {
    index: &'a Index<K>,
    scratch: &'a mut Scratch,
    keys: &'a [K],
    ranks: &'a [u32],
    first: &'a mut [u32],
}

impl<K: Family> Kernel for Classify<'_, K> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { index, scratch, ranks, .. } = self;
        let Scratch { blocks: [block, ..], hashes, lists, .. } = scratch;
        for (keys, first) in self.keys.chunks(LOAD).zip(self.first.chunks_mut(LOAD)) {
            block.load(simd, 0, keys, &index.states);
            for (table, hashes) in index.hashes.iter().zip(hashes.iter_mut()) {
                table.hash(simd, block, hashes);
            }
            let mut lens = [0; MAX_TABLES];
            for (at, table) in index.hashes.iter().enumerate() {
                lens[at] = table.find(simd, &hashes[at], block, &mut lists[at]);
            }
            let mut best = [u64::MAX; LOAD];
            for (at, table) in index.hashes.iter().enumerate() {
                table.compare_ranked(simd, &lists[at][..lens[at]], block, keys, ranks, &mut best);
            }
            index.bitmaps.classify(block, keys, ranks, &mut best);
            for (first, best) in first.iter_mut().zip(best) {
                // No rule has all bits set, in the slot too.
                *first = best as u32;
            }
        }
    }
}
