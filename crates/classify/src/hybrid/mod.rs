#![doc = include_str!("README.md")]

mod block;
mod class_tables;
mod entry;
mod family;
mod masked_hash;
mod state;

use std::cell::RefCell;

use packetloom_packet::{MatchKey4, MatchKey6};

use block::{BLOCK, Block, Column};
use class_tables::{Budget, ClassTables, Classes};
use family::{Family, entries};
use masked_hash::{List, Table};
use state::States;

use crate::compiled::CompiledRule;
use crate::simd::{Isa, Kernel, Simd};
use crate::linear::Linear;
use crate::{Classifier, Kind, NO_RULE, RuleSet};

/// Tables of masked keys at most.
const MAX_TABLES: usize = 8;

/// Class tables for the few rules that are wide in some way, hash tables for the many that are not.
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
    hashes: Vec<Table<K>>,
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
        let others = (!others.is_empty()).then(|| Linear::of(rules, &others));
        Self { v4, v6, others }
    }
}

impl<K: Family> Index<K> {
    /// The tables, and the positions of the rules that they do not hold.
    fn build(rules: &RuleSet, isa: Isa) -> (Self, Vec<u32>) {
        let compiled = CompiledRule::<K>::all(rules);
        let states = States::new(&compiled);
        let (mut left, others) = entries(&compiled, &states);
        let mut others: Vec<u32> = others.iter().map(|rule| rule.position).collect();
        let mut hashes = Vec::new();
        let mut classes = None;
        while !left.is_empty() {
            classes = ClassTables::build(&left, &states, BUDGET);
            if classes.is_some() {
                break;
            }
            if hashes.len() == MAX_TABLES {
                others.extend(left.iter().map(|rule| rule.position));
                break;
            }
            let (table, rest) = masked_hash::build(&left, &states);
            if std::env::var("PL_DEBUG").is_ok() {
                eprintln!("table of {} leaves {} lines {} KB {}", left.len(), rest.len(), 0, table.memory() / 1024);
            }
            hashes.push(table);
            left = rest;
        }
        if std::env::var("PL_DEBUG").is_ok() {
            eprintln!("class tables of {} rules: {:?} KB", left.len(), classes.as_ref().map(|c| c.memory() / 1024));
        }
        (Self { isa, states, hashes, classes }, others)
    }
}

const BUDGET: Budget = Budget { rules: 2500, entries: 4 << 20, work: 400_000_000 };

/// What classifying a block needs beside the keys.
struct Scratch {
    block: Block,
    best: Column,
    classes: Classes,
    hashes: [Column; MAX_TABLES],
    lists: [List; MAX_TABLES],
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = const {
        RefCell::new(Scratch {
            block: Block::new(),
            best: [NO_RULE; BLOCK],
            classes: [[0; BLOCK]; 9],
            hashes: [[0; BLOCK]; MAX_TABLES],
            lists: [[0; BLOCK * 4 + 16]; MAX_TABLES],
        })
    };
}

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
        let Scratch { block, best, classes, hashes, lists } = scratch;
        for (keys, first) in self.keys.chunks(BLOCK).zip(self.first.chunks_mut(BLOCK)) {
            block.load(keys, &index.states);
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

impl<K: Family> Index<K> {
    fn classify(&self, keys: &[K], first: &mut [u32]) {
        SCRATCH.with_borrow_mut(|scratch| {
            self.isa.run(Classify { index: self, scratch, keys, first });
        });
    }
}

impl Hybrid {
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

    fn classify_v4(&self, keys: &[MatchKey4], first: &mut [u32]) {
        self.v4.classify(keys, first);
        self.consult_others(first, |others, first| others.classify_v4(keys, first));
    }

    fn classify_v6(&self, keys: &[MatchKey6], first: &mut [u32]) {
        self.v6.classify(keys, first);
        self.consult_others(first, |others, first| others.classify_v6(keys, first));
    }
}
