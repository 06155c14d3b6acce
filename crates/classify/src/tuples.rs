//! Hash tables of rules under masks: what [`tuple_space`](crate::tuple_space) and [`tuple_merge`](crate::tuple_merge) share.
//! They differ in the table that a rule goes to.
//!
//! A *tuple* is a mask over addresses, ports and protocol. A rule *fits* a tuple that asks for no bit which the rule leaves
//! open. A table holds rules that fit its tuple in buckets by their bits under it; a lookup masks the packet's key, finds
//! one bucket and compares its rules in order.

use std::array;
use std::collections::HashMap;

use packetloom_memory::prefetch;

use crate::NO_RULE;
use crate::compiled::{CompiledRule, MatchKey};
use crate::linear::List;
use crate::rule::PortRange;
use packetloom_simd::Isa;

/// Packets that are looked up together, so that their cache misses overlap.
const GROUP: usize = 64;

/// All tables of one family, in the order of their first rules, and rules that are in none.
#[derive(Debug)]
pub(crate) struct Tables<K: MatchKey> {
    tables: Vec<Table<K>>,
    rest: List<K>,
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

/// `len` rules from `start` on; unused where `len` is 0.
#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    /// The highest bits of the masked key's hash; the lowest chose the slot.
    tag: u16,
    len: u16,
    start: u32,
}

impl<K: MatchKey> Tables<K> {
    /// The tables as they have grown, and rules in order that are compared one by one.
    pub(crate) fn new(tables: Vec<Growing<K>>, rest: &[CompiledRule<K>]) -> Self {
        let mut tables: Vec<_> = tables.into_iter().map(Growing::finish).collect();
        tables.sort_unstable_by_key(|table| table.first);
        Self { tables, rest: List::new(rest) }
    }

    /// Bytes held.
    pub(crate) fn memory(&self) -> usize {
        let tables = self.tables.iter().map(|table| size_of_val(&*table.slots) + size_of_val(&*table.rules));
        size_of_val(&*self.tables) + tables.sum::<usize>() + self.rest.memory()
    }

    /// Writes to `first` the position of the first rule that matches each key.
    pub(crate) fn classify(&self, isa: Isa, keys: &[K], first: &mut [u32]) {
        first.fill(NO_RULE);
        for (keys, first) in keys.chunks(GROUP).zip(first.chunks_mut(GROUP)) {
            self.classify_group(keys, first);
        }
        self.rest.improve(isa, keys, first);
    }

    fn classify_group(&self, keys: &[K], first: &mut [u32]) {
        // The packets that may still meet an earlier rule: the first `left` of `open`.
        let mut open: [u8; GROUP] = array::from_fn(|packet| packet as u8);
        let mut left = keys.len();
        let mut hashes = [0; GROUP];
        // Those of them that found a bucket, and its slot.
        let mut found = [(0, 0); GROUP];
        for table in &self.tables {
            let mut kept = 0;
            for at in 0..left {
                let packet = open[at];
                if first[usize::from(packet)] > table.first {
                    let hash = keys[usize::from(packet)].masked(&table.tuple).bucket_hash();
                    prefetch(table.slots.get(table.home(hash)));
                    (open[kept], hashes[kept]) = (packet, hash);
                    kept += 1;
                }
            }
            left = kept;
            if left == 0 {
                break;
            }
            let mut hits = 0;
            for (&packet, &hash) in open[..left].iter().zip(&hashes) {
                if let Some(slot) = table.find(Slot::tag(hash), table.home(hash)) {
                    prefetch(table.rules.get(table.slots[slot].start as usize));
                    found[hits] = (packet, slot);
                    hits += 1;
                }
            }
            for &(packet, slot) in &found[..hits] {
                let packet = usize::from(packet);
                first[packet] = first[packet].min(table.first_match(&keys[packet], slot));
            }
        }
    }
}

impl Slot {
    const fn tag(hash: u64) -> u16 {
        (hash >> 48) as u16
    }
}

impl<K: MatchKey> Table<K> {
    /// Where the search for a hash begins.
    #[inline]
    fn home(&self, hash: u64) -> usize {
        hash as usize & (self.slots.len() - 1)
    }

    /// The first slot with the tag, from `at` on.
    #[inline]
    fn find(&self, tag: u16, mut at: usize) -> Option<usize> {
        loop {
            at &= self.slots.len() - 1;
            let slot = self.slots[at];
            if slot.len == 0 {
                return None;
            }
            if slot.tag == tag {
                return Some(at);
            }
            at += 1;
        }
    }

    /// Position of the first rule that matches, in the bucket at `slot` or a later one with its tag. Another key's bucket may
    /// have the same tag, but none of its rules matches; and a bucket that is too long for one slot has the next ones.
    #[inline]
    fn first_match(&self, key: &K, slot: usize) -> u32 {
        let mut next = Some(slot);
        while let Some(at) = next {
            let slot = self.slots[at];
            let rules = &self.rules[slot.start as usize..][..slot.len.into()];
            if let Some(rule) = rules.iter().find(|rule| rule.matches(key)) {
                return rule.position;
            }
            next = self.find(slot.tag, at + 1);
        }
        NO_RULE
    }
}

/// A table while rules are being added.
pub(crate) struct Growing<K> {
    tuple: K,
    buckets: HashMap<K, Vec<CompiledRule<K>>>,
}

impl<K: MatchKey> Growing<K> {
    pub(crate) fn new(tuple: K) -> Self {
        Self { tuple, buckets: HashMap::new() }
    }

    /// Adds a rule that fits and comes after those that were added before.
    pub(crate) fn insert(&mut self, rule: CompiledRule<K>) {
        self.buckets.entry(bucket_key(&rule, &self.tuple)).or_default().push(rule);
    }

    /// The rules in the bucket to which this one would be added, if it fits.
    pub(crate) fn bucket_len(&self, rule: &CompiledRule<K>) -> Option<usize> {
        let fits = self.tuple.masked(&exact_tuple(rule)) == self.tuple;
        fits.then(|| self.buckets.get(&bucket_key(rule, &self.tuple)).map_or(0, Vec::len))
    }

    /// The mask that all its rules fit.
    pub(crate) fn tuple(&self) -> &K {
        &self.tuple
    }

    /// The number of rules.
    pub(crate) fn len(&self) -> usize {
        self.buckets.values().map(Vec::len).sum()
    }

    /// All rules, in no order.
    pub(crate) fn into_rules(self) -> impl Iterator<Item = CompiledRule<K>> {
        self.buckets.into_values().flatten()
    }

    fn finish(self) -> Table<K> {
        let mut buckets: Vec<_> = self.buckets.into_iter().collect();
        // In the order of their first rules, so that the same rules always make the same table.
        buckets.sort_unstable_by_key(|(_, bucket)| bucket[0].position);
        let first = buckets.first().map_or(NO_RULE, |(_, bucket)| bucket[0].position);
        let parts = || {
            buckets.iter().flat_map(|(key, bucket)| {
                let hash = key.bucket_hash();
                bucket.chunks(u16::MAX.into()).map(move |part| (hash, part))
            })
        };
        let slots = vec![Slot::default(); (parts().count() * 2).next_power_of_two()];
        let mut table = Table { tuple: self.tuple, first, slots, rules: Vec::new() };
        for (hash, part) in parts() {
            let mut at = table.home(hash);
            while table.slots[at].len > 0 {
                at = table.home(at as u64 + 1);
            }
            let (start, len) = (table.rules.len() as u32, part.len() as u16);
            table.slots[at] = Slot { tag: Slot::tag(hash), len, start };
            table.rules.extend(part);
        }
        table
    }
}

/// The most specific tuple that a rule fits: ports are part of it where there is one port.
pub(crate) fn exact_tuple<K: MatchKey>(rule: &CompiledRule<K>) -> K {
    let ports = |range: PortRange| if range.low == range.high { u16::MAX } else { 0 };
    let protocol = rule.mask.fields().protocol;
    rule.mask.with_ports(ports(rule.source_ports), ports(rule.destination_ports), protocol)
}

/// What a key that matches the rule looks like under a tuple that the rule fits.
pub(crate) fn bucket_key<K: MatchKey>(rule: &CompiledRule<K>, tuple: &K) -> K {
    let protocol = rule.value.fields().protocol;
    rule.value.with_ports(rule.source_ports.low, rule.destination_ports.low, protocol).masked(tuple)
}
