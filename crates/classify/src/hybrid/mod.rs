#![doc = include_str!("README.md")]

mod bitmaps;
mod block;
mod class_tables;
mod entry;
mod family;
mod masked_hash;
pub(crate) mod mutable;
mod state;

use std::cell::RefCell;

use packetloom_packet::{MatchKey4, MatchKey6};

use block::{BLOCK, Block, Column};
use class_tables::{Budget, ClassTables, Classes};
use family::{Family, entries};
use masked_hash::List;
use state::States;

use crate::compiled::CompiledRule;
use crate::huge::{self, Place, Tables};
use crate::linear::Linear;
use crate::simd::{Isa, Kernel, Simd};
use crate::{Classifier, Kind, NO_RULE, RuleSet};

/// Hash tables at most.
const MAX_TABLES: usize = 8;
/// A hash table must take one rule in this many, or it is not worth a look at each packet.
const LEAST_SHARE: usize = 16;
/// Class tables are tried for no more rules than this.
const MAX_CLASS_RULES: usize = 1 << 14;
/// What one try may cost: tables of 20 MB and maps of 4 MB for each side, half a second or so. With IPv6, where an address takes
/// more steps, hash tables are the faster ones sooner.
const fn budget<K: Family>() -> Budget {
    Budget { entries: 10 << 20, cells: if K::WORDS == 1 { 2 << 20 } else { 1 << 20 }, work: 150_000_000 }
}

/// Class tables for the rules that are wide in some way, hash tables for the others.
#[derive(Debug)]
pub struct Hybrid {
    v4: Index<MatchKey4>,
    v6: Index<MatchKey6>,
    /// The rules that none of them can hold.
    others: Option<Linear>,
}

/// The tables of one family.
#[derive(Debug)]
struct Index<K: Family> {
    isa: Isa,
    states: States,
    hashes: Vec<masked_hash::Table<K>>,
    classes: Option<ClassTables>,
}

impl Hybrid {
    /// Builds the tables with the best instructions that the processor has.
    pub fn build(rules: &RuleSet) -> Self {
        Self::with_isa(rules, Isa::detect())
    }

    /// Builds the tables for one instruction set.
    pub fn with_isa(rules: &RuleSet, isa: Isa) -> Self {
        let (v4, mut others) = Index::build(rules, isa);
        let (v6, others6) = Index::build(rules, isa);
        others.extend(others6);
        others.sort_unstable();
        others.dedup();
        let others = (!others.is_empty()).then(|| Linear::of(rules, &others, isa));
        Self { v4, v6, others }
    }

    /// Takes the rules into account that are in none of the tables.
    fn consult_others(&self, first: &mut [u32], classify: impl FnOnce(&Linear, &mut [u32])) {
        if let Some(others) = &self.others {
            let mut of_others = vec![NO_RULE; first.len()];
            classify(others, &mut of_others);
            for (first, other) in first.iter_mut().zip(of_others) {
                *first = (*first).min(other);
            }
        }
    }
}

impl Classifier for Hybrid {
    fn kind(&self) -> Kind {
        Kind::Hybrid
    }

    fn memory(&self) -> usize {
        self.v4.memory() + self.v6.memory() + self.others.as_ref().map_or(0, Linear::memory)
    }

    fn classify_v4(&self, keys: &[MatchKey4], first: &mut [u32]) {
        self.v4.classify(keys, first);
        self.consult_others(first, |others, first| others.classify_v4(keys, first));
    }

    fn classify_v6(&self, keys: &[MatchKey6], first: &mut [u32]) {
        self.v6.classify(keys, first);
        self.consult_others(first, |others, first| others.classify_v6(keys, first));
    }
}

impl<K: Family> Index<K> {
    /// The tables, and the positions of the rules that they do not hold.
    fn build(rules: &RuleSet, isa: Isa) -> (Self, Vec<u32>) {
        let compiled = CompiledRule::<K>::all(rules);
        let states = States::new(&compiled);
        let (mut left, mut others) = entries(&compiled, &states);
        let mut index = Self { isa, states, hashes: Vec::new(), classes: None };
        // The fastest are class tables alone. What they cannot hold is hashed, table after table, until they can.
        while !left.is_empty() {
            if left.len() <= MAX_CLASS_RULES {
                index.classes = ClassTables::build(&left, &index.states, budget::<K>());
                if index.classes.is_some() {
                    break;
                }
            }
            let (table, rest) = masked_hash::build(&left, &index.states);
            if index.hashes.len() == MAX_TABLES || left.len() - rest.len() < left.len() / LEAST_SHARE {
                others.extend(left.iter().map(|rule| rule.position));
                break;
            }
            index.hashes.push(table);
            left = rest;
        }
        huge::place(&mut index);
        (index, others)
    }

    fn memory(&self) -> usize {
        let hashes: usize = self.hashes.iter().map(masked_hash::Table::memory).sum();
        hashes + self.classes.as_ref().map_or(0, ClassTables::memory)
    }

    fn classify(&self, keys: &[K], first: &mut [u32]) {
        SCRATCH.with_borrow_mut(|scratch| self.isa.run(Classify { index: self, scratch, keys, first }));
    }
}

impl<K: Family> Tables for Index<K> {
    fn each(&mut self, visit: &mut dyn FnMut(&mut dyn Place)) {
        for table in &mut self.hashes {
            table.each(visit);
        }
        if let Some(tables) = &mut self.classes {
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
            match &index.classes {
                Some(tables) => tables.classify::<K, S>(simd, block, classes, best),
                None => best.fill(NO_RULE),
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
