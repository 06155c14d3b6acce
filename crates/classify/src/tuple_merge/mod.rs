#![doc = include_str!("README.md")]

use std::collections::HashMap;

use packetloom_packet::{MatchKey4, MatchKey6};

use crate::compiled::{CompiledRule, MatchKey};
use crate::rule::PortRange;
use crate::{Classifier, Kind, NO_RULE, RuleSet};

/// Rules that a bucket takes before a more specific table is tried.
const BUCKET_LIMIT: usize = 8;

/// Hash tables of rules with similar masks.
#[derive(Debug)]
pub struct TupleMerge {
    v4: Tables<MatchKey4>,
    v6: Tables<MatchKey6>,
}

impl TupleMerge {
    /// Builds the tables.
    pub fn build(rules: &RuleSet) -> Self {
        Self { v4: Tables::build(CompiledRule::all(rules)), v6: Tables::build(CompiledRule::all(rules)) }
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
        for (key, first) in keys.iter().zip(first) {
            *first = self.v4.classify(key);
        }
    }

    fn classify_v6(&self, keys: &[MatchKey6], first: &mut [u32]) {
        for (key, first) in keys.iter().zip(first) {
            *first = self.v6.classify(key);
        }
    }
}

/// All tables of one family, in the order of their first rules.
#[derive(Debug)]
struct Tables<K> {
    tables: Vec<Table<K>>,
}

/// The rules under one tuple. Buckets are runs of `rules`; `slots` finds them by open addressing.
#[derive(Debug)]
struct Table<K> {
    tuple: K,
    /// Position of the first rule in the table.
    first: u32,
    /// A power of two, at most half of them used.
    slots: Vec<Slot>,
    rules: Vec<CompiledRule<K>>,
}

/// A bucket: `len` rules from `start` on; unused where `len` is 0.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    /// The upper half of the masked key's hash; the lower half chose the slot.
    tag: u32,
    start: u32,
    len: u32,
}

impl<K: MatchKey> Tables<K> {
    fn build(rules: Vec<CompiledRule<K>>) -> Self {
        let mut tables: Vec<Growing<K>> = Vec::new();
        let mut by_tuple: HashMap<K, usize> = HashMap::new();
        for rule in &rules {
            let exact = exact_tuple(rule);
            let key = bucket_key(rule);
            let roomy = tables.iter_mut().find(|table| {
                table.tuple.masked(&exact) == table.tuple
                    && table.buckets.get(&key.masked(&table.tuple)).is_none_or(|b| b.len() < BUCKET_LIMIT)
            });
            if let Some(table) = roomy {
                table.insert(&key, *rule);
                continue;
            }
            let relaxed = K::prefix_mask(rule.source_len & !3, rule.destination_len & !3);
            let tuple = if by_tuple.contains_key(&relaxed) { exact } else { relaxed };
            let index = *by_tuple.entry(tuple).or_insert_with(|| {
                tables.push(Growing { tuple, buckets: HashMap::new() });
                tables.len() - 1
            });
            tables[index].insert(&key, *rule);
        }
        let mut tables: Vec<_> = tables.into_iter().map(Growing::finish).collect();
        tables.sort_unstable_by_key(|table| table.first);
        Self { tables }
    }

    fn memory(&self) -> usize {
        let tables = self.tables.iter().map(|table| size_of_val(&*table.slots) + size_of_val(&*table.rules));
        size_of_val(&*self.tables) + tables.sum::<usize>()
    }

    #[inline]
    fn classify(&self, key: &K) -> u32 {
        let mut best = NO_RULE;
        for table in &self.tables {
            if table.first >= best {
                break;
            }
            if let Some(position) = table.classify(key) {
                best = best.min(position);
            }
        }
        best
    }
}

impl<K: MatchKey> Table<K> {
    #[inline]
    fn classify(&self, key: &K) -> Option<u32> {
        let hash = key.masked(&self.tuple).bucket_hash();
        let mask = self.slots.len() - 1;
        let mut at = hash as usize & mask;
        loop {
            let slot = self.slots[at];
            if slot.len == 0 {
                return None;
            }
            if slot.tag == (hash >> 32) as u32 {
                // Another bucket may have the same tag; its rules do not match this key, so the search goes on.
                let rules = &self.rules[slot.start as usize..][..slot.len as usize];
                if let Some(rule) = rules.iter().find(|rule| rule.matches(key)) {
                    return Some(rule.position);
                }
            }
            at = (at + 1) & mask;
        }
    }
}

/// A table while rules are being added.
struct Growing<K> {
    tuple: K,
    buckets: HashMap<K, Vec<CompiledRule<K>>>,
}

impl<K: MatchKey> Growing<K> {
    fn insert(&mut self, key: &K, rule: CompiledRule<K>) {
        self.buckets.entry(key.masked(&self.tuple)).or_default().push(rule);
    }

    fn finish(self) -> Table<K> {
        let mut slots = vec![Slot::default(); (self.buckets.len() * 2).next_power_of_two()];
        let mask = slots.len() - 1;
        let mut rules = Vec::with_capacity(self.buckets.values().map(Vec::len).sum());
        let mut buckets: Vec<_> = self.buckets.into_iter().collect();
        // In the order of their first rules, so that the same rules always make the same table.
        buckets.sort_unstable_by_key(|(_, bucket)| bucket[0].position);
        for (key, bucket) in buckets {
            let hash = key.bucket_hash();
            let mut at = hash as usize & mask;
            while slots[at].len > 0 {
                at = (at + 1) & mask;
            }
            slots[at] =
                Slot { tag: (hash >> 32) as u32, start: rules.len() as u32, len: bucket.len() as u32 };
            rules.extend(bucket);
        }
        let first = rules.iter().map(|rule| rule.position).min().unwrap_or(NO_RULE);
        Table { tuple: self.tuple, first, slots, rules }
    }
}

/// The bits of a range's ports that are the same for all of them: all, where it is one port, or none.
fn range_mask(range: PortRange) -> u16 {
    if range.low == range.high { u16::MAX } else { 0 }
}

/// The most specific tuple that a rule fits.
fn exact_tuple<K: MatchKey>(rule: &CompiledRule<K>) -> K {
    rule.mask.with_ports(
        range_mask(rule.source_ports),
        range_mask(rule.destination_ports),
        rule.mask.fields().protocol,
    )
}

/// What a key that matches the rule looks like under any tuple that the rule fits.
fn bucket_key<K: MatchKey>(rule: &CompiledRule<K>) -> K {
    rule.value.with_ports(rule.source_ports.low, rule.destination_ports.low, rule.value.fields().protocol)
}
