#![doc = include_str!("README.md")]

mod bitmaps;
mod block;
mod class_tables;
mod entry;
mod family;
mod masked_hash;
pub(crate) mod mutable;
mod state;

use std::cell::{Cell, RefCell};

use packetloom_packet::{MatchKey4, MatchKey6};

use block::{BLOCK, Block, Column};
use class_tables::{Budget, ClassTables, Classes};
use entry::Entry;
use family::{Family, entries};
use masked_hash::List;
use state::States;

use crate::compiled::CompiledRule;
use crate::huge::{self, Place, Tables};
use crate::linear;
use crate::simd::{Isa, Kernel, Simd};
use crate::{Classifier, Kind, NO_RULE, RuleSet};

/// Hash tables at most.
const MAX_TABLES: usize = 8;
/// A hash table must take one rule in this many, or it is not worth a look at each packet.
const LEAST_SHARE: usize = 16;
/// Class tables at most, where one cannot hold all rules that are not hashed, and how many rules are worth one.
const MAX_CLASS_TABLES: usize = 8;
const LEAST_PART: usize = 512;
/// The share of the memory for one that each of them may take.
const PART_SHARE: usize = 4;
/// Class tables are tried for no more rules than this.
const MAX_CLASS_RULES: usize = 1 << 14;
/// What class tables may take: 20 MB, and maps of 4 MB for each side.
const MAX_ENTRIES: usize = 10 << 20;
const MAX_CELLS: usize = 2 << 20;
/// Steps of all tries, half a second to a second; each may take half of those that are left.
const WORK: usize = 128_000_000;

/// Class tables for the rules that are wide in some way, hash tables for the others.
#[derive(Debug)]
pub struct Hybrid {
    v4: Index<MatchKey4>,
    v6: Index<MatchKey6>,
}

/// The tables of one family.
#[derive(Debug)]
struct Index<K: Family> {
    isa: Isa,
    states: States,
    hashes: Vec<masked_hash::Table<K>>,
    classes: Vec<ClassTables>,
    /// The rules that none of them can hold.
    others: linear::List<K>,
}

impl Hybrid {
    /// Builds the tables with the best instructions that the processor has.
    pub fn build(rules: &RuleSet) -> Self {
        Self::with_isa(rules, Isa::detect())
    }

    /// Builds the tables for one instruction set.
    pub fn with_isa(rules: &RuleSet, isa: Isa) -> Self {
        Self { v4: Index::build(rules, isa), v6: Index::build(rules, isa) }
    }
}

impl Classifier for Hybrid {
    fn kind(&self) -> Kind {
        Kind::Hybrid
    }

    fn memory(&self) -> usize {
        self.v4.memory() + self.v6.memory()
    }

    fn classify_v4(&self, keys: &[MatchKey4], first: &mut [u32]) {
        self.v4.classify(keys, first);
    }

    fn classify_v6(&self, keys: &[MatchKey6], first: &mut [u32]) {
        self.v6.classify(keys, first);
    }
}

impl<K: Family> Index<K> {
    fn build(rules: &RuleSet, isa: Isa) -> Self {
        let compiled = CompiledRule::<K>::all(rules);
        let states = States::new(&compiled);
        let (mut left, mut others) = entries(&compiled, &states);
        let (mut hashes, mut classes) = (Vec::new(), Vec::new());
        let work = Cell::new(WORK);
        // The fastest are class tables alone. What they cannot hold is hashed, table after table, until they can.
        while !left.is_empty() {
            if let Some(tables) = class_tables::<K>(&left, &states, &work, 1) {
                classes.push(tables);
                break;
            }
            let room = hashes.len() < MAX_TABLES;
            match room.then(|| masked_hash::build(&left, &states, LEAST_SHARE)).flatten() {
                Some((table, rest)) => {
                    hashes.push(table);
                    left = rest;
                }
                None => {
                    let left = divide::<K>(left, &states, &work, &mut classes);
                    others.extend(left.iter().map(|rule| rule.position));
                    break;
                }
            }
        }
        // Tables of few rules do not make up for what they cost beside nearly all of the list.
        if others.len() * 4 > compiled.len() * 3 {
            (hashes, classes) = (Vec::new(), Vec::new());
            others = compiled.iter().map(|rule| rule.position).collect();
        }
        others.sort_unstable();
        let others: Vec<_> =
            compiled.into_iter().filter(|rule| others.binary_search(&rule.position).is_ok()).collect();
        let mut index = Self { isa, states, hashes, classes, others: linear::List::new(&others) };
        huge::place(&mut index);
        index
    }

    fn memory(&self) -> usize {
        let hashes: usize = self.hashes.iter().map(masked_hash::Table::memory).sum();
        let classes: usize = self.classes.iter().map(ClassTables::memory).sum();
        hashes + classes + self.others.memory()
    }

    fn classify(&self, keys: &[K], first: &mut [u32]) {
        if self.hashes.is_empty() && self.classes.is_empty() {
            first.fill(NO_RULE);
        } else {
            SCRATCH.with_borrow_mut(|scratch| {
                self.isa.run(Classify { index: self, scratch, keys, first: &mut *first });
            });
        }
        self.others.improve(self.isa, keys, first);
    }
}

/// Class tables of rules in order, if they are few enough, need no more than a share of the memory, and half of the work that is left
/// suffices.
fn class_tables<K: Family>(
    rules: &[Entry],
    states: &States,
    work: &Cell<usize>,
    share: usize,
) -> Option<ClassTables> {
    if rules.len() > MAX_CLASS_RULES {
        return None;
    }
    let budget = Cell::new(work.get() / 2);
    work.set(work.get() - budget.get());
    let tables = ClassTables::build::<K>(
        rules,
        states,
        Budget { entries: MAX_ENTRIES / share, cells: MAX_CELLS / share, work: &budget },
    );
    work.set(work.get() + budget.get());
    tables
}

/// Several class tables of rules that are too many for one; those that are in none of them are left.
fn divide<K: Family>(
    rules: Vec<Entry>,
    states: &States,
    work: &Cell<usize>,
    tables: &mut Vec<ClassTables>,
) -> Vec<Entry> {
    let mut parts = halves(rules);
    let mut left = Vec::new();
    while let Some(part) = parts.pop() {
        if tables.len() == MAX_CLASS_TABLES || part.len() < LEAST_PART {
            left.extend(part);
        } else if let Some(made) = class_tables::<K>(&part, states, work, PART_SHARE) {
            tables.push(made);
        } else {
            parts.extend(halves(part));
        }
    }
    left
}

/// Rules that are narrow on the same side: they have few classes on the other one.
fn halves(mut rules: Vec<Entry>) -> Vec<Vec<Entry>> {
    rules.sort_by_key(|rule| i16::from(rule.source.len) - i16::from(rule.destination.len));
    let second = rules.split_off(rules.len() / 2);
    let mut halves = vec![rules, second];
    for half in &mut halves {
        half.sort_unstable_by_key(|rule| rule.position);
    }
    halves
}

impl<K: Family> Tables for Index<K> {
    fn each(&mut self, visit: &mut dyn FnMut(&mut dyn Place)) {
        for table in &mut self.hashes {
            table.each(visit);
        }
        for tables in &mut self.classes {
            tables.each(visit);
        }
    }
}

/// What classifying a block needs beside the keys.
struct Scratch {
    block: Block,
    classes: Classes,
    hashes: [Column; MAX_TABLES],
    lists: [List; MAX_TABLES],
    first: Column,
}

thread_local! {
    // Kept, as clearing it would take longer than classifying a small batch.
    static SCRATCH: RefCell<Scratch> = const {
        RefCell::new(Scratch {
            block: Block::new(),
            classes: class_tables::NO_CLASSES,
            hashes: [[0; BLOCK]; MAX_TABLES],
            lists: [masked_hash::EMPTY_LIST; MAX_TABLES],
            first: [NO_RULE; BLOCK],
        })
    };
}

/// Classifying some keys.
struct Classify<'a, K: Family> {
    index: &'a Index<K>,
    scratch: &'a mut Scratch,
    keys: &'a [K],
    first: &'a mut [u32],
}

impl<K: Family> Kernel for Classify<'_, K> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { index, scratch, .. } = self;
        let Scratch { block, classes, hashes, lists, first: best } = scratch;
        for (keys, first) in self.keys.chunks(BLOCK).zip(self.first.chunks_mut(BLOCK)) {
            // Whatever is far away in memory is fetched a step before it is needed.
            block.load(simd, keys, &index.states);
            for (table, hashes) in index.hashes.iter().zip(hashes.iter_mut()) {
                table.hash(simd, block, hashes);
            }
            best.fill(NO_RULE);
            for tables in &index.classes {
                tables.classify(simd, block, &keys[..block.len], classes, best);
            }
            let mut lens = [0; MAX_TABLES];
            for (at, table) in index.hashes.iter().enumerate() {
                lens[at] = table.find(simd, &hashes[at], block.len, &mut lists[at]);
            }
            for (at, table) in index.hashes.iter().enumerate() {
                table.compare(simd, &lists[at][..lens[at]], block, keys, best);
            }
            first.copy_from_slice(&best[..first.len()]);
        }
    }
}
