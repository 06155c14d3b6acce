#![doc = include_str!("README.md")]

mod bitmaps;
mod block;
mod class_tables;
mod entry;
mod family;
mod masked_hash;
pub(crate) mod mutable;
mod passes;
mod state;

use std::cell::{Cell, RefCell};

use packetloom_packet::{MatchKey4, MatchKey6};

use block::{BLOCK, Best, Block, Column, LOAD, ROUND};
use class_tables::{Budget, ClassTables, Classes};
use entry::Entry;
use family::{Family, entries};
use masked_hash::List;
use passes::{MAX_PASSES, Pass};
use state::States;

use crate::compiled::CompiledRule;
use crate::huge::{self, Place, Tables};
use crate::linear;
use crate::{Classifier, Kind, NO_RULE, RuleSet};
use packetloom_simd::{Isa, Kernel, Simd};

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
/// Where a list is left beside tables, it must be so many rules shorter for each of them, or looking there is not worth it.
const LEAST_TAKEN: usize = 150;
/// In place of a table's number, for rules that are in none.
const NO_TABLE: u8 = u8::MAX;
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
    passes: Vec<Pass<K>>,
    /// The rules that none of them can hold.
    others: linear::List<K>,
}

/// A table of either kind.
#[derive(Debug)]
enum Table<K: Family> {
    Hash(masked_hash::Table<K>),
    Classes(ClassTables),
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
        let mut states = States::new(&compiled);
        let (mut left, mut others) = entries(&compiled, &states);
        let mut tables = Vec::new();
        let mut homes = vec![NO_TABLE; compiled.last().map_or(0, |rule| rule.position as usize + 1)];
        let mut put = |table, held: &[Entry]| {
            held.iter().for_each(|rule| homes[rule.position as usize] = tables.len() as u8);
            tables.push(table);
            tables.len()
        };
        let mut hashes = 0;
        let work = Cell::new(WORK);
        // The fastest are class tables alone. What they cannot hold is hashed, table after table, until they can.
        while !left.is_empty() {
            if let Some(classes) = class_tables::<K>(&left, &states, &work, 1) {
                put(Table::Classes(classes), &left);
                break;
            }
            let room = hashes < MAX_TABLES;
            match room.then(|| masked_hash::build(&left, &states, LEAST_SHARE)).flatten() {
                Some((table, rest)) => {
                    // The rest goes on to others.
                    hashes = put(Table::Hash(table), &left);
                    left = rest;
                }
                None => {
                    let (parts, left) = divide::<K>(left, &states, &work);
                    for (classes, part) in parts {
                        put(Table::Classes(classes), &part);
                    }
                    others.extend(left.iter().map(|rule| rule.position));
                    break;
                }
            }
        }
        let taken = compiled.len() - others.len();
        if !others.is_empty() && taken < tables.len() * LEAST_TAKEN {
            tables = Vec::new();
            others = compiled.iter().map(|rule| rule.position).collect();
        }
        for &other in &others {
            homes[other as usize] = NO_TABLE;
        }
        let mut passes = passes::plan(tables, &compiled, &homes);
        if let [pass] = &mut passes[..] {
            pass.number_states(&mut states);
        }
        others.sort_unstable();
        let others: Vec<_> =
            compiled.into_iter().filter(|rule| others.binary_search(&rule.position).is_ok()).collect();
        let mut index = Self { isa, states, passes, others: linear::List::new(&others) };
        huge::place(&mut index);
        index
    }

    fn memory(&self) -> usize {
        let passes: usize = self.passes.iter().map(Pass::memory).sum();
        passes + self.others.memory()
    }

    fn classify(&self, keys: &[K], first: &mut [u32]) {
        if self.passes.is_empty() {
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

/// Several class tables of rules that are too many for one, and the rules that are in none of them.
fn divide<K: Family>(
    rules: Vec<Entry>,
    states: &States,
    work: &Cell<usize>,
) -> (Vec<(ClassTables, Vec<Entry>)>, Vec<Entry>) {
    let mut parts = halves(rules);
    let (mut tables, mut left) = (Vec::new(), Vec::new());
    while let Some(part) = parts.pop() {
        if tables.len() == MAX_CLASS_TABLES || part.len() < LEAST_PART {
            left.extend(part);
        } else if let Some(classes) = class_tables::<K>(&part, states, work, PART_SHARE) {
            tables.push((classes, part));
        } else {
            parts.extend(halves(part));
        }
    }
    (tables, left)
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
        for pass in &mut self.passes {
            pass.each(visit);
        }
    }
}

/// What classifying needs beside the keys.
struct Scratch {
    /// Packets for each pass.
    blocks: [Block; MAX_PASSES],
    classes: Classes,
    hashes: [Column; MAX_TABLES],
    lists: [List; MAX_TABLES],
    best: Best,
}

thread_local! {
    // Kept, as clearing it would take longer than classifying a small batch.
    static SCRATCH: RefCell<Scratch> = const {
        RefCell::new(Scratch {
            blocks: [const { Block::new() }; MAX_PASSES],
            classes: class_tables::NO_CLASSES,
            hashes: [block::EMPTY; MAX_TABLES],
            lists: [masked_hash::EMPTY_LIST; MAX_TABLES],
            best: block::NO_BEST,
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
        let Self { index: Index { states, passes, .. }, scratch, .. } = self;
        let Scratch { blocks, classes, hashes, lists, best } = scratch;
        blocks.iter_mut().for_each(|block| block.len = 0);
        for (keys, first) in self.keys.chunks(ROUND).zip(self.first.chunks_mut(ROUND)) {
            best[..keys.len()].fill(NO_RULE);
            let mut loads = keys.chunks(LOAD).enumerate();
            // Passes before this one have no packets any more, nor will they get any.
            let mut front = 0;
            while front < passes.len() {
                if blocks[front].len == 0 {
                    match if front == 0 { loads.next() } else { None } {
                        Some((number, keys)) => blocks[0].load(simd, number * LOAD, keys, states),
                        None => front += 1,
                    }
                    continue;
                }
                // Where the next pass may not have room for all packets of one, the next has to go first.
                let mut at = front;
                while at + 1 < passes.len() && blocks[at].len + blocks[at + 1].len > BLOCK {
                    at += 1;
                }
                let (pass, (block, later)) = (&passes[at], blocks[at..].split_at_mut(1));
                let block = &mut block[0];
                // Whatever is far away in memory is fetched a step before it is needed.
                for (table, hashes) in pass.hashes.iter().zip(hashes.iter_mut()) {
                    table.hash(simd, block, hashes);
                }
                for tables in &pass.classes {
                    tables.classify(simd, block, keys, classes, best);
                }
                let mut lens = [0; MAX_TABLES];
                for (at, table) in pass.hashes.iter().enumerate() {
                    lens[at] = table.find(simd, &hashes[at], block, &mut lists[at]);
                }
                for (at, table) in pass.hashes.iter().enumerate() {
                    table.compare(simd, &lists[at][..lens[at]], block, keys, best);
                }
                if let Some(bound) = passes.get(at + 1).and_then(|pass| pass.bound.as_ref()) {
                    let undecided = bound.undecided::<K, S>(simd, block, best);
                    later[0].append::<K, S>(simd, block, &undecided);
                }
                block.len = 0;
            }
            first.copy_from_slice(&best[..first.len()]);
        }
    }
}
