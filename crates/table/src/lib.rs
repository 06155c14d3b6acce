//! A hash table of flows: bounded, in order of creation, with lookups that can be prepared ahead.
//!
//! Two arrays: *buckets* of one cache line each (8 tags and 8 entry numbers) and *entries*. A lookup reads one
//! bucket and, if a tag fits, one entry. Both reads can be started long before their result is used
//! ([`FlowTable::prefetch_bucket`], [`FlowTable::prefetch_entry`]), so that the misses of a batch overlap. What
//! those find is only a hint: the lookup proper comes after, when earlier packets of the batch have made their
//! changes.
//!
//! A full bucket overflows into the next one and counts how many entries it sent on, so that a search knows where to
//! stop and a removal leaves no tombstone (as in F14: Bronson and Shi, "Open-sourcing F14", 2019).
//!
//! The hash is keyed by a seed that senders do not know. Entries stand in a list in order of their creation,
//! which is how the oldest is found when the table is full.

mod pages;
pub mod regions;
pub mod states;

use packetloom_packet::{FlowKey, prefetch};

const NONE: u32 = u32::MAX;
const WAYS: usize = 8;
/// Entries a bucket holds on average when the array of buckets is doubled.
const LOAD: usize = 6;
/// Entries are kept in chunks of this many, so that a table that grows moves none of them.
const CHUNK: usize = 1 << 13;

/// The number of an entry, valid until that entry is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryId(u32);

/// One cache line: tags are the top bits of hashes, never 0; a tag of 0 marks a free way.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(64))]
struct Bucket {
    tags: [u16; WAYS],
    entries: [u32; WAYS],
    /// Entries that belong here or before and stand further on.
    overflow: u32,
}

/// Entries by number.
#[derive(Debug)]
struct Entries<V>(Vec<Vec<Entry<V>>>);

impl<V> Entries<V> {
    #[inline]
    fn get(&self, id: u32) -> Option<&Entry<V>> {
        self.0.get(id as usize / CHUNK)?.get(id as usize % CHUNK)
    }

    #[inline]
    fn get_mut(&mut self, id: u32) -> Option<&mut Entry<V>> {
        self.0.get_mut(id as usize / CHUNK)?.get_mut(id as usize % CHUNK)
    }

    fn len(&self) -> usize {
        self.0.last().map_or(0, |last| (self.0.len() - 1) * CHUNK + last.len())
    }

    fn push(&mut self, entry: Entry<V>) {
        match self.0.last_mut().filter(|last| last.len() < CHUNK) {
            Some(last) => last.push(entry),
            None => {
                let mut chunk = Vec::with_capacity(CHUNK);
                chunk.push(entry);
                self.0.push(chunk);
            }
        }
    }
}

impl<V> std::ops::Index<u32> for Entries<V> {
    type Output = Entry<V>;

    #[inline]
    fn index(&self, id: u32) -> &Entry<V> {
        &self.0[id as usize / CHUNK][id as usize % CHUNK]
    }
}

impl<V> std::ops::IndexMut<u32> for Entries<V> {
    #[inline]
    fn index_mut(&mut self, id: u32) -> &mut Entry<V> {
        &mut self.0[id as usize / CHUNK][id as usize % CHUNK]
    }
}

#[derive(Clone, Debug)]
#[repr(C, align(64))]
struct Entry<V> {
    key: FlowKey,
    /// The entry created before this one, or the next free entry.
    previous: u32,
    /// The entry created after this one.
    next: u32,
    value: Option<V>,
}

/// Flows with a value each, at most a given number.
#[derive(Debug)]
pub struct FlowTable<V> {
    seed: u64,
    buckets: Vec<Bucket>,
    entries: Entries<V>,
    free: u32,
    oldest: u32,
    newest: u32,
    len: usize,
    capacity: usize,
}

impl<V> FlowTable<V> {
    /// An empty table for up to `capacity` flows (at least 1, at most 2^31); memory grows with the flows it holds.
    /// Hashes are keyed by `seed`.
    pub fn new(capacity: usize, seed: u64) -> Self {
        Self {
            seed,
            buckets: vec![Bucket::default(); 16],
            entries: Entries(Vec::new()),
            free: NONE,
            oldest: NONE,
            newest: NONE,
            len: 0,
            capacity: capacity.clamp(1, 1 << 31),
        }
    }

    /// The hash by which `key` is found here.
    #[inline]
    pub fn hash(&self, key: &FlowKey) -> u64 {
        key.hash(self.seed)
    }

    /// Flows it holds.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether it holds as many flows as it may.
    pub fn is_full(&self) -> bool {
        self.len >= self.capacity
    }

    /// Numbers given out so far: entries stand at 0 up to this, with gaps where they were removed.
    pub fn slots(&self) -> usize {
        self.entries.len()
    }

    #[inline]
    fn home(&self, hash: u64) -> usize {
        hash as usize & (self.buckets.len() - 1)
    }

    #[inline]
    fn tag(hash: u64) -> u16 {
        (hash >> 48) as u16 | 1
    }

    /// Starts to bring in the bucket of a hash.
    #[inline]
    pub fn prefetch_bucket(&self, hash: u64) {
        prefetch(self.buckets.get(self.home(hash)));
    }

    /// Starts to bring in the entry that a hash probably leads to.
    #[inline]
    pub fn prefetch_entry(&self, hash: u64) {
        let bucket = &self.buckets[self.home(hash)];
        if let Some(way) = (0..WAYS).find(|&way| bucket.tags[way] == Self::tag(hash)) {
            prefetch(self.entries.get(bucket.entries[way]));
        }
    }

    /// The entry of `key`, whose hash is `hash`.
    #[inline]
    pub fn find(&self, key: &FlowKey, hash: u64) -> Option<EntryId> {
        let tag = Self::tag(hash);
        let mut at = self.home(hash);
        // Overflow counters of a full circle of buckets would otherwise never end the search.
        for _ in 0..self.buckets.len() {
            let bucket = &self.buckets[at];
            for way in 0..WAYS {
                if bucket.tags[way] == tag {
                    let id = bucket.entries[way];
                    if self.entries[id].key == *key {
                        return Some(EntryId(id));
                    }
                }
            }
            if bucket.overflow == 0 {
                return None;
            }
            at = (at + 1) & (self.buckets.len() - 1);
        }
        None
    }

    /// Adds a flow that is not in the table yet and for which there is room; see [`FlowTable::is_full`].
    pub fn insert(&mut self, key: FlowKey, hash: u64, value: V) -> EntryId {
        debug_assert!(!self.is_full() && self.find(&key, hash).is_none());
        if self.len >= self.buckets.len() * LOAD {
            self.grow();
        }
        let entry = Entry { key, previous: self.newest, next: NONE, value: Some(value) };
        let id = if self.free == NONE {
            self.entries.push(entry);
            (self.entries.len() - 1) as u32
        } else {
            let id = self.free;
            self.free = self.entries[id].previous;
            self.entries[id] = entry;
            id
        };
        match self.newest {
            NONE => self.oldest = id,
            newest => self.entries[newest].next = id,
        }
        self.newest = id;
        self.len += 1;
        self.place(id, hash);
        EntryId(id)
    }

    /// Writes an entry's number into the first free way from its home bucket on.
    fn place(&mut self, id: u32, hash: u64) {
        let mut at = self.home(hash);
        loop {
            let bucket = &mut self.buckets[at];
            if let Some(way) = bucket.tags.iter().position(|&tag| tag == 0) {
                bucket.tags[way] = Self::tag(hash);
                bucket.entries[way] = id;
                return;
            }
            bucket.overflow += 1;
            at = (at + 1) & (self.buckets.len() - 1);
        }
    }

    fn grow(&mut self) {
        let doubled = self.buckets.len() * 2;
        self.buckets.clear();
        self.buckets.resize(doubled, Bucket::default());
        for id in 0..self.entries.len() as u32 {
            if self.entries[id].value.is_some() {
                let hash = self.hash(&self.entries[id].key);
                self.place(id, hash);
            }
        }
    }

    /// Takes an entry out.
    pub fn remove(&mut self, id: EntryId) -> Option<(FlowKey, V)> {
        let EntryId(id) = id;
        let entry = self.entries.get_mut(id)?;
        let value = entry.value.take()?;
        let (key, previous, next) = (entry.key, entry.previous, entry.next);
        entry.previous = self.free;
        self.free = id;
        match previous {
            NONE => self.oldest = next,
            previous => self.entries[previous].next = next,
        }
        match next {
            NONE => self.newest = previous,
            next => self.entries[next].previous = previous,
        }
        self.len -= 1;
        let mut at = self.home(self.hash(&key));
        loop {
            let bucket = &mut self.buckets[at];
            if let Some(way) = (0..WAYS).find(|&way| bucket.tags[way] != 0 && bucket.entries[way] == id) {
                bucket.tags[way] = 0;
                return Some((key, value));
            }
            bucket.overflow -= 1;
            at = (at + 1) & (self.buckets.len() - 1);
        }
    }

    /// The flow that was created first of those in the table.
    pub fn oldest(&self) -> Option<EntryId> {
        (self.oldest != NONE).then_some(EntryId(self.oldest))
    }

    /// The entry at a place of the array, for sweeps; `None` for a gap.
    pub fn at(&self, slot: usize) -> Option<(EntryId, &V)> {
        let id = u32::try_from(slot).ok()?;
        let value = self.entries.get(id)?.value.as_ref()?;
        Some((EntryId(id), value))
    }

    /// Key and value of an entry.
    #[inline]
    pub fn get_mut(&mut self, id: EntryId) -> Option<(&FlowKey, &mut V)> {
        let entry = self.entries.get_mut(id.0)?;
        entry.value.as_mut().map(|value| (&entry.key, value))
    }
}
