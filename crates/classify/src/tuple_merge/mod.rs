#![doc = include_str!("README.md")]

use std::collections::HashSet;

use packetloom_packet::{MatchKey4, MatchKey6};

use crate::compiled::{CompiledRule, MatchKey};
use crate::tuples::{Growing, Tables, exact_tuple};
use crate::{Classifier, Kind, RuleSet};
use packetloom_simd::Isa;

/// Rules that a bucket takes before a more specific table is tried.
const BUCKET_LIMIT: usize = 16;

/// Rules that a table must hold to be worth a probe: about as many are compared one by one in the same time.
const TABLE_MINIMUM: usize = 64;

/// Tables that are tried for a rule, which bounds the time to build them.
const TABLE_LIMIT: usize = 256;

/// Hash tables of rules with similar masks.
#[derive(Debug)]
pub struct TupleMerge {
    isa: Isa,
    v4: Tables<MatchKey4>,
    v6: Tables<MatchKey6>,
}

impl TupleMerge {
    /// Builds the tables.
    pub fn build(rules: &RuleSet) -> Self {
        Self {
            isa: Isa::detect(),
            v4: tables(&CompiledRule::all(rules)),
            v6: tables(&CompiledRule::all(rules)),
        }
    }
}

impl Classifier for TupleMerge {
    fn kind(&self) -> Kind {
        Kind::TupleMerge
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
    let (tables, rest) = grow(rules);
    Tables::new(tables, &rest)
}

/// The tables, and the rules in order that are in none.
pub(crate) fn grow<K: MatchKey>(rules: &[CompiledRule<K>]) -> (Vec<Growing<K>>, Vec<CompiledRule<K>>) {
    let mut tables: Vec<Growing<K>> = Vec::new();
    let mut taken = HashSet::new();
    let mut rest = Vec::new();
    for &rule in rules {
        let has_room =
            |table: &&mut Growing<K>| table.bucket_len(&rule).is_some_and(|len| len < BUCKET_LIMIT);
        if let Some(table) = tables.iter_mut().find(has_room) {
            table.insert(rule);
            continue;
        }
        let relaxed = K::prefix_mask(rule.source_len & !3, rule.destination_len & !3);
        let free = [relaxed, exact_tuple(&rule)].into_iter().find(|tuple| !taken.contains(tuple));
        match free {
            Some(tuple) if tables.len() < TABLE_LIMIT => {
                taken.insert(tuple);
                let mut table = Growing::new(tuple);
                table.insert(rule);
                tables.push(table);
            }
            _ => rest.push(rule),
        }
    }
    let (tables, small): (Vec<_>, Vec<_>) =
        tables.into_iter().partition(|table| table.len() >= TABLE_MINIMUM);
    rest.extend(small.into_iter().flat_map(Growing::into_rules));
    rest.sort_unstable_by_key(|rule| rule.position);
    (tables, rest)
}
