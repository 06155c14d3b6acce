#![doc = include_str!("README.md")]

use std::collections::HashMap;

use packetloom_packet::{MatchKey4, MatchKey6};

use crate::compiled::{CompiledRule, MatchKey};
use crate::tuples::{Growing, Tables, exact_tuple};
use crate::{Classifier, Kind, RuleSet};
use packetloom_simd::Isa;

/// A hash table for each tuple.
#[derive(Debug)]
pub struct TupleSpace {
    isa: Isa,
    v4: Tables<MatchKey4>,
    v6: Tables<MatchKey6>,
}

impl TupleSpace {
    /// Builds the tables.
    pub fn build(rules: &RuleSet) -> Self {
        Self {
            isa: Isa::detect(),
            v4: tables(&CompiledRule::all(rules)),
            v6: tables(&CompiledRule::all(rules)),
        }
    }
}

impl Classifier for TupleSpace {
    fn kind(&self) -> Kind {
        Kind::TupleSpace
    }

    fn memory(&self) -> usize {
        self.v4.memory() + self.v6.memory()
    }

    fn classify_v4(&self, keys: &[MatchKey4], first: &mut [u32]) {
        self.v4.classify(self.isa, keys, first);
    }

    fn classify_v6(&self, keys: &[MatchKey6], first: &mut [u32]) {
        self.v6.classify(self.isa, keys, first);
    }
}

fn tables<K: MatchKey>(rules: &[CompiledRule<K>]) -> Tables<K> {
    Tables::new(grow(rules), &[])
}

/// The tables, in the order of their first rules.
pub(crate) fn grow<K: MatchKey>(rules: &[CompiledRule<K>]) -> Vec<Growing<K>> {
    let mut numbers = HashMap::new();
    let mut tables = Vec::new();
    for &rule in rules {
        let tuple = exact_tuple(&rule);
        let number = *numbers.entry(tuple).or_insert_with(|| {
            tables.push(Growing::new(tuple));
            tables.len() - 1
        });
        tables[number].insert(rule);
    }
    tables
}
