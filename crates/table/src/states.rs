//! State by flow: a bounded hash table whose entries lie where they were put, with lookups of whole batches.
//!
//! Two arrays. *Groups* of 8 bytes: a tag for each of 7 entries and a counter. *Entries* of whole cache lines: key, time of
//! the last packet, and what functions keep for the flow, side by side. Entry `7 g + w` belongs to tag `w` of group `g`, so a
//! lookup reads the tags, which are few enough to stay in a cache, and one entry. An entry whose home group is full stands in one of the
//! next groups; each group on the way counts those that went past it, so a search knows where to stop, and a removal leaves
//! nothing behind (as in F14: Bronson and Shi, "Open-sourcing F14", 2019).
//!
//! An entry is dead when the time since its last packet has reached the timeout, judged when it is touched. Nothing
//! sweeps: a dead entry's place is taken when it is needed. At capacity a hand goes round the entries (second chance, as
//! in CLOCK: Corbató, "A paging experiment with the Multics system", 1968) and takes the place of one that is dead or, if
//! the policy is to evict, was not touched since it last came by; so a flood of new flows takes its own places, not those
//! of flows that go on. The hand comes by one entry of each group, then by another one of each: were all of a group's taken at a
//! time, groups that it will come by soon would be overfull, and new flows would have to be put far from home.
//!
//! Functions work through packets one after the other, by the entries that these were given, while others of the batch are still to be
//! looked up. So the place of an entry
//! that was removed is not given away before the end of the batch ([`States::end_batch`]), and a packet that came before the
//! removal still finds the flow as it was. Whoever wants to know what an entry held when it ended asks before then
//! ([`States::ended`]).
//!
//! A table has its memory from the beginning ([`States::new`]), or grows with the flows it holds ([`States::growing`]). Homes are in the
//! order of hashes, so a table that grows is read and written from the first group to the last one.

use std::mem;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytemuck::Pod;
use packetloom_memory::{prefetch_at, prefetch_l2, prefetch_l2_at};
use packetloom_simd::{Simd, fold};

use crate::pages::{Line, Lines, Words};

/// Entries of a group.
const WAYS: usize = 7;
/// Tags of places that are free, and of those whose entry was removed in this batch.
const FREE: u64 = 0;
const REMOVED: u64 = 1;
/// The first of those of entries.
const TAG: u64 = 2;
/// Bits of a hash that tags take.
const TAG_BITS: u32 = 8;
const EACH_BYTE: u64 = 0x0101_0101_0101_0101;
const EACH_TOP_BIT: u64 = EACH_BYTE << 7;
/// The counter of a group: its last byte. What has reached the most is not counted down any more.
const PASSED: u32 = 56;
const MOST_PASSED: u64 = 0xff;
/// In the last word of an entry's key, whether it was touched since the hand came by, and whether it is one.
pub(crate) const TOUCHED: u64 = 1 << 63;
pub(crate) const LIVE: u64 = 1 << 62;
/// There, that it does not stand in its home group: only then its hash is needed when it goes.
const AWAY: u64 = 1 << 61;
/// There, of an entry that was removed, that it was not dead.
const EVICTED: u64 = 1 << 60;
/// The first of its bits that say which functions have state there.
pub const FUNCTIONS: u32 = 40;
pub(crate) const KEY: u64 = (1 << FUNCTIONS) - 1;
const SEEN: u64 = ((1 << MAX_FUNCTIONS) - 1) << FUNCTIONS;
/// Functions that can have state in an entry, unless keys are [extended](KeyForm::Extended).
const MAX_FUNCTIONS: usize = 16;
/// There, in place of the last functions: the first bit of the number that is part of an extended key, and what says that it is.
const EXTRA: u32 = FUNCTIONS + MAX_FUNCTIONS_EXTENDED as u32;
const IS_EXTENDED: u64 = 1 << (EXTRA + EXTRA_BITS);
const MAX_FUNCTIONS_EXTENDED: usize = 7;
/// Bits of the number that is part of an [extended](KeyForm::Extended) key.
pub const EXTRA_BITS: u32 = 12;
/// What the last word of an extended key has beside other keys.
const EXTENSION: u64 = ((1 << EXTRA_BITS) - 1) << EXTRA | IS_EXTENDED;
/// What means something there wherever the entry is.
pub(crate) const HEAD: u64 = EVICTED - 1;
const _: () = assert!(IS_EXTENDED << 1 == EVICTED && (KEY | SEEN | EXTENSION) & !HEAD == 0);
/// Entries that the hand looks at to find room for one: the last of them goes, where one may be evicted.
const LOOKS: usize = 16;
/// Groups that the hand looks at together: a line of them. Tables have a whole number of these.
const BLOCK: usize = 8;
/// Packets whose entries are asked for at a time, where those of a batch are looked up in one call: enough to keep the memory busy.
const TOGETHER: usize = 32;
/// Flows, and packets of a batch, for which a table has room at first that grows.
const FIRST_CAPACITY: usize = 1 << 10;
const FIRST_BATCH: usize = 1 << 8;
/// Lines of all entries but for the spare places, so that each has a number.
const MAX_LINES: usize = 1 << 31;
/// Places for seven entries for each four that there may be: so one group in twenty overflows when a table is full, and one in six says that
/// some went past. With places for six it would be nearly one in two, behind which each new flow is looked for in vain.
const PLACES: (usize, usize) = (7, 4);

/// The same of a table that will grow before it is full: from then on it is half as full.
const GROWING_PLACES: (usize, usize) = (5, 4);
/// A table that grows has addresses for so many times its flows, or for so many bytes of entries: some programs may have few.
const AHEAD: usize = 64;
const RESERVED: usize = 128 << 20;
/// Entries ahead of which one is brought in where all are read: most places are free, so they are not one behind the other.
const SCANNED_AHEAD: usize = 32;
/// Groups whose entries are taken to other places at a time.
const MOVED: usize = 64;

/// A flow's key: `W` words, of which the last one has 24 bits to spare, which are 0 unless it is [extended].
pub type Key<const W: usize> = [u64; W];

/// The last word of a key with a number of [`EXTRA_BITS`] beside it: that of an [extended](KeyForm::Extended) key.
#[inline]
pub const fn extended(last: u64, number: u64) -> u64 {
    last | number << EXTRA & EXTENSION | IS_EXTENDED
}

/// The number beside the last word of a key, if it is [extended].
#[inline]
pub const fn extra(last: u64) -> Option<u64> {
    if last & IS_EXTENDED == 0 { None } else { Some((last & EXTENSION & !IS_EXTENDED) >> EXTRA) }
}

/// Of the last word of a saved entry's key what is key, and a bit for each function that has state, from the lowest one on.
#[inline]
pub const fn key_and_functions(last: u64) -> (u64, u64) {
    let key = last & key_bits(last);
    (key, (last ^ key) >> FUNCTIONS)
}

/// What is key in the last word of one.
#[inline]
const fn key_bits(last: u64) -> u64 {
    if last & IS_EXTENDED == 0 { KEY } else { KEY | EXTENSION }
}

/// What the keys of a table may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyForm {
    /// Anything.
    Whole,
    /// One address of those that `W` words have room for: what is behind it is 0, and entries do without.
    Address,
    /// Anything with a number beside it ([`extended`]), in the place of bits for functions.
    Extended,
}

/// [`KeyForm`]s as numbers.
const WHOLE: u8 = KeyForm::Whole as u8;
const ADDRESS: u8 = KeyForm::Address as u8;
const EXTENDED: u8 = KeyForm::Extended as u8;

impl KeyForm {
    /// Words of a key in an entry, the last of which has bits to spare.
    pub const fn words(self, whole: usize) -> usize {
        match self {
            Self::Whole | Self::Extended => whole,
            Self::Address => whole.div_ceil(2),
        }
    }

    /// Functions that can have state in an entry.
    pub const fn max_functions(self) -> usize {
        match self {
            Self::Whole | Self::Address => MAX_FUNCTIONS,
            Self::Extended => MAX_FUNCTIONS_EXTENDED,
        }
    }

    /// What keys of this form are, in words.
    pub const fn describe(self) -> &'static str {
        match self {
            Self::Whole => "ports, protocols and addresses",
            Self::Address => "addresses alone",
            Self::Extended => "ports, protocols and addresses with a VLAN",
        }
    }

    /// Whether a whole key has this form.
    pub fn is_of(self, key: &[u64]) -> bool {
        let (kept, rest) = key.split_at(self.words(key.len()));
        let is_extended = self == Self::Extended;
        let is_last = |&last: &u64| last & !key_bits(last) == 0 && extra(last).is_some() == is_extended;
        rest.iter().all(|&word| word == 0) && kept.last().is_none_or(is_last)
    }
}

/// A key and its hash.
#[derive(Clone, Copy, Debug)]
pub struct Hashed<const W: usize> {
    /// The key.
    pub key: Key<W>,
    /// What [`States::hash`] says of it.
    pub hash: u64,
}

/// Where an entry is: its first line. Not its place, which says where its tag is.
pub type Slot = u32;
/// Of none.
pub const NO_SLOT: Slot = Slot::MAX;

/// Where a function keeps its state in each entry: from a word behind the header on; the function's number there, below
/// [`KeyForm::max_functions`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StateAt {
    /// The function's number.
    pub function: u32,
    /// Words before it.
    pub word: usize,
}

/// The functions that have initialized their state in every one of some entries, as bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Initialized(u64);

impl Initialized {
    /// All functions: the value for no entries.
    pub const ALL: Self = Self(u64::MAX);

    /// Whether the function at `at` has.
    #[inline]
    pub fn contains(self, at: StateAt) -> bool {
        self.0 >> (FUNCTIONS + at.function) & 1 == 1
    }
}

impl std::ops::BitAnd for Initialized {
    type Output = Self;

    fn bitand(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

/// A packet that is looked up.
pub trait Packet {
    /// Its time, in nanoseconds.
    fn now(&self) -> u64;

    /// Its flow's place, or [`NO_SLOT`] where there was no room; on the way there, where it may be.
    fn slot(&mut self) -> &mut Slot;
}

/// Where the place of an entry that is put in probably is.
#[derive(Clone, Copy)]
struct Coming(Slot);

impl Packet for Coming {
    fn now(&self) -> u64 {
        0
    }

    fn slot(&mut self) -> &mut Slot {
        &mut self.0
    }
}

/// Words of a line.
const LINE_WORDS: usize = size_of::<Line>() / 8;

/// Words that a state takes.
pub const fn state_words<S>() -> usize {
    size_of::<S>().div_ceil(8)
}

/// What there is for a packet of a flow that has no entry, at capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenFull {
    /// The place of another one.
    Evict,
    /// Nothing, until an entry is dead.
    Refuse,
}

/// Why the table removed an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The time since its last packet reached the timeout.
    Expired,
    /// The table was full, and another flow needed its place.
    Evicted,
}

/// What a table counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Entries that were made.
    pub created: u64,
    /// Entries that were dead when they were touched, or when their place was needed.
    pub expired: u64,
    /// Entries that had to go for others.
    pub evicted: u64,
    /// Packets whose flow found no room.
    pub refused: u64,
}

impl std::ops::Add for Counts {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            created: self.created + other.created,
            expired: self.expired + other.expired,
            evicted: self.evicted + other.evicted,
            refused: self.refused + other.refused,
        }
    }
}

/// Entries with keys of `W` words.
#[derive(Debug)]
pub struct States<const W: usize> {
    seeds: [u64; 2],
    groups: Arc<Words>,
    entries: Lines,
    form: KeyForm,
    /// Lines of an entry.
    stride: usize,
    /// The longest time without a packet that an entry survives, in nanoseconds.
    longest: u64,
    when_full: WhenFull,
    /// Flows that there are places for, and flows for which it may grow.
    room: usize,
    capacity: usize,
    /// Packets of a batch: places beyond the capacity, for entries that are removed.
    batch: usize,
    len: usize,
    hand: Hand,
    /// Places of entries that were removed in this batch.
    removed: Vec<Place>,
    counts: Counts,
}

/// Words of an entry before what functions keep: its key and the time of its last packet.
pub const fn header_words(key_words: usize) -> usize {
    key_words + 1
}

/// Bytes of an entry whose functions keep so many words: whole cache lines.
pub const fn entry_bytes(key_words: usize, state_words: usize) -> usize {
    (header_words(key_words) + state_words).div_ceil(8) * 64
}

/// Does something with the [`Table`] of [`States`], compiled for each form of keys.
macro_rules! with_table {
    ($states:expr, |$table:ident| $work:expr) => {
        match $states.form {
            KeyForm::Whole => {
                let mut $table = $states.table::<WHOLE>();
                $work
            }
            KeyForm::Address => {
                let mut $table = $states.table::<ADDRESS>();
                $work
            }
            KeyForm::Extended => {
                let mut $table = $states.table::<EXTENDED>();
                $work
            }
        }
    };
}

impl<const W: usize> States<W> {
    /// An empty table for up to `capacity` flows with keys of a form, whose functions keep `state_words` words for each; batches have up to
    /// `batch` packets. Entries are dead after `timeout` nanoseconds, at least 1, or with [`u64::MAX`] never. Hashes are keyed by `seeds`.
    pub fn new(
        form: KeyForm,
        capacity: usize,
        batch: usize,
        state_words: usize,
        timeout: u64,
        when_full: WhenFull,
        seeds: [u64; 2],
    ) -> Self {
        let stride = entry_bytes(form.words(W), state_words) / 64;
        let capacity = capacity.clamp(1, MAX_LINES / stride);
        let groups = groups_for(capacity, batch, capacity);
        Self {
            seeds,
            groups: Arc::new(Words::zeroed(groups)),
            entries: Lines::zeroed(groups * WAYS * stride),
            form,
            stride,
            longest: if timeout == u64::MAX { timeout } else { timeout.saturating_sub(1) },
            when_full,
            room: capacity,
            capacity,
            batch,
            len: 0,
            hand: Hand::default(),
            removed: Vec::with_capacity(batch),
            counts: Counts::default(),
        }
    }

    /// A table that begins small and [grows](States::reserve) with its flows, up to `capacity` of them. Otherwise as [`States::new`].
    pub fn growing(
        form: KeyForm,
        capacity: usize,
        state_words: usize,
        timeout: u64,
        when_full: WhenFull,
        seeds: [u64; 2],
    ) -> Self {
        let stride = entry_bytes(form.words(W), state_words) / 64;
        let most = capacity.clamp(1, MAX_LINES / stride);
        let first = most.min(FIRST_CAPACITY);
        let mut states = Self::new(form, first, FIRST_BATCH, state_words, timeout, when_full, seeds);
        states.capacity = most;
        states.renew();
        states
    }

    /// New arrays, without entries, for its capacity; with addresses for some more entries than there are places for.
    fn renew(&mut self) -> (Arc<Words>, Lines) {
        let lines = |capacity| groups_for(capacity, self.batch, self.capacity) * WAYS * self.stride;
        let reserved = RESERVED / (self.stride * size_of::<Line>());
        let ahead = self.capacity.min((self.room * AHEAD).max(reserved));
        let entries = Lines::reserved(lines(self.room), lines(ahead));
        let groups = Arc::new(Words::zeroed(groups_for(self.room, self.batch, self.capacity)));
        (mem::replace(&mut self.groups, groups), mem::replace(&mut self.entries, entries))
    }

    /// Makes room for the flows of a batch of so many packets, as far as the table may grow. To be called between batches: entries move.
    /// A [`PrefetchHint`] that was made before is out of date from then on.
    pub fn reserve(&mut self, packets: usize) {
        debug_assert!(self.removed.is_empty(), "the batch before has ended");
        let needed = (self.len + packets).min(self.capacity);
        if needed > self.room || packets > self.batch {
            self.grow(needed, packets);
        }
    }

    #[cold]
    fn grow(&mut self, needed: usize, packets: usize) {
        if packets > self.batch {
            self.batch = packets.next_power_of_two();
        }
        if needed > self.room {
            self.room = (self.room * 2).max(needed).min(self.capacity);
        }
        (self.hand, self.len) = (Hand::default(), 0);
        let groups = groups_for(self.room, self.batch, self.capacity);
        let (before, entries) =
            if groups >= self.groups.len() && self.entries.extend(groups * WAYS * self.stride) {
                (mem::replace(&mut self.groups, Arc::new(Words::zeroed(groups))), None)
            } else {
                let (groups, entries) = self.renew();
                (groups, Some(entries))
            };
        with_table!(self, |table| table.take_all(&before, entries.as_deref()))
    }

    /// Flows it holds, dead ones included.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Flows there may be.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Whether it holds none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// What it counted.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Adds what another table counted.
    pub fn add(&mut self, counts: Counts) {
        self.counts = self.counts + counts;
    }

    /// The hash by which a key is found here: two rounds of a keyed multiplication of 64 by 64 bits whose halves are folded
    /// together, as in the wyhash family. Senders who do not know the seeds cannot aim flows at one group.
    #[inline]
    pub fn hash(&self, key: &Key<W>) -> u64 {
        hash(key, self.seeds)
    }

    /// What says the same of many keys.
    pub fn hasher(&self) -> Hasher {
        Hasher(self.seeds)
    }

    /// Prefetches the tags of flows that will be looked up.
    #[inline]
    pub fn prefetch(&self, flows: &[Hashed<W>]) {
        prefetch_tags(&self.groups, flows);
    }

    /// Looks up the flows of packets, each beside its packet, in order, each at its time, and makes entries for those that have none. To
    /// `inserted` it adds the numbers of packets whose entries may be new. Returns which functions have state in all other entries.
    ///
    /// The packets of one call are of one batch: see [`States::end_batch`].
    pub fn find_or_insert_all<P: Packet>(
        &mut self,
        flows: &[Hashed<W>],
        packets: &mut [P],
        inserted: &mut Vec<u32>,
    ) -> Initialized {
        with_table!(self, |table| table.find_or_insert_all(flows, packets, inserted))
    }

    /// Writes where the entry of each packet's flow probably is, and prefetches it.
    pub fn prefetch_entries<P: Packet>(&self, flows: &[Hashed<W>], packets: &mut [P]) {
        Places { groups: &self.groups, entries: self.entries.as_ptr(), stride: self.stride }
            .prefetch_entries(flows, packets);
    }

    /// As [`States::find_or_insert_all`], for packets whose slots [`States::prefetch_entries`] or [`PrefetchHint::prefetch_entries`] has written.
    pub fn find_or_insert_prefetched<P: Packet>(
        &mut self,
        flows: &[Hashed<W>],
        packets: &mut [P],
        inserted: &mut Vec<u32>,
    ) -> Initialized {
        with_table!(self, |table| table.find_or_insert_group(flows, packets, 0, inserted))
    }

    /// A hint where entries are, for a worker that does not hold the lock of the table yet.
    pub fn prefetch_hint(&self) -> PrefetchHint {
        PrefetchHint {
            groups: Arc::clone(&self.groups),
            entries: self.entries.as_ptr().addr(),
            stride: self.stride,
        }
    }

    /// The place of a flow at a time, if it has an entry that is not dead; changes nothing.
    pub fn find(&mut self, flow: &Hashed<W>, now: u64) -> Option<Slot> {
        with_table!(self, |table| table.find_live(flow, now))
    }

    /// The same for packets as in [`States::find_or_insert_prefetched`].
    pub fn find_prefetched<P: Packet>(&mut self, flows: &[Hashed<W>], packets: &mut [P]) {
        with_table!(self, |table| table.find_prefetched(flows, packets))
    }

    /// The table with its entries as a slice, which is asked for once, not for each packet.
    fn table<const FORM: u8>(&mut self) -> Table<'_, W, FORM> {
        Table {
            seeds: self.seeds,
            places: Places { groups: &self.groups, entries: self.entries.as_ptr(), stride: self.stride },
            entries: &mut self.entries,
            longest: self.longest,
            when_full: self.when_full,
            capacity: self.room,
            len: &mut self.len,
            hand: &mut self.hand,
            removed: &mut self.removed,
            counts: &mut self.counts,
        }
    }

    /// Words of a key in an entry.
    #[inline]
    fn key_words(&self) -> usize {
        self.form.words(W)
    }

    /// The entry that begins with a line.
    fn entry(&self, line: usize) -> Entry<'_, W> {
        Entry { words: self.entries[line..][..self.stride].as_flattened(), key_words: self.key_words() }
    }

    /// What is kept at places.
    #[inline]
    pub fn entries(&mut self) -> EntriesMut<'_> {
        EntriesMut { head: self.key_words() - 1, lines: &mut self.entries }
    }

    /// All that is held, dead or not.
    pub fn iter(&self) -> impl Iterator<Item = Entry<'_, W>> {
        let mut ahead = self.slots();
        ahead.by_ref().take(SCANNED_AHEAD).for_each(|slot| self.prefetch_entry(slot));
        self.slots().map(move |slot| {
            if let Some(slot) = ahead.next() {
                self.prefetch_entry(slot);
            }
            self.at(slot)
        })
    }

    /// Where all that is held is.
    pub fn slots(&self) -> impl Iterator<Item = Slot> {
        let used = self.groups.iter().map(load).enumerate().filter(|&(_, tags)| tags != 0);
        let tags = used.flat_map(|(group, tags)| {
            (0..WAYS).filter(move |&way| tag_at(tags, way) >= TAG).map(move |way| Place { group, way })
        });
        tags.map(|place| (place.number() * self.stride) as Slot)
    }

    /// The entry at a slot.
    ///
    /// # Panics
    ///
    /// Where there is no such slot.
    pub fn at(&self, slot: Slot) -> Entry<'_, W> {
        self.entry(slot as usize)
    }

    /// Brings in the entry at a slot.
    pub fn prefetch_entry(&self, slot: Slot) {
        (0..self.stride).for_each(|line| prefetch_at(&self.entries, slot as usize + line));
    }

    /// Entries that were removed in this batch, in the order in which that came about, as they are now: functions may still have
    /// taken packets to them that came before. To be asked before [`States::end_batch`].
    pub fn ended(&self) -> impl Iterator<Item = (Entry<'_, W>, Ended)> {
        self.removed.iter().map(|place| {
            let entry = self.entry(place.number() * self.stride);
            (entry, if entry.head() & EVICTED == 0 { Ended::Expired } else { Ended::Evicted })
        })
    }

    /// Removes entries that are dead at a time, from a group on, in the groups after it until there were so many groups or so many entries;
    /// the group to go on with. Between batches.
    pub fn sweep(&mut self, from: usize, groups: usize, entries: usize, now: u64) -> usize {
        with_table!(self, |table| table.sweep(from, groups, entries, now))
    }

    /// How many groups of places there are to [sweep](States::sweep).
    pub fn groups(&self) -> usize {
        self.groups.len()
    }

    /// Puts in entries of another table with the same functions, in order, each in the place of the one of its flow if there is one. `on_gone` is
    /// shown those whose key does not have the form of these, and those for which there was no room, which there is for a fourth more than
    /// else: tables in regions may hold somewhat more. One that grows does so where it has to. Counted are entries that have to go for others.
    pub fn put_all<'a>(
        &mut self,
        entries: impl IntoIterator<Item = Entry<'a, W>>,
        mut on_gone: impl FnMut(Entry<'a, W>),
    ) {
        let mut entries = entries.into_iter();
        let (mut coming, mut flows) = (Vec::with_capacity(TOGETHER), Vec::with_capacity(TOGETHER));
        let mut places = [Coming(NO_SLOT); TOGETHER];
        loop {
            coming.clear();
            flows.clear();
            coming.extend(entries.by_ref().take(TOGETHER));
            if coming.is_empty() {
                return;
            }
            flows.extend(coming.iter().map(|entry| {
                let key = entry.key();
                Hashed { key, hash: self.hash(&key) }
            }));
            self.prefetch(&flows);
            self.prefetch_entries(&flows, &mut places);
            for (&entry, flow) in coming.iter().zip(&flows) {
                if !self.put(entry, flow) {
                    on_gone(entry);
                }
            }
        }
    }

    fn put(&mut self, entry: Entry<'_, W>, flow: &Hashed<W>) -> bool {
        if !self.form.is_of(&flow.key) {
            return false;
        }
        // As far as it may grow; one that does not has all its room.
        let needed = (self.len + 1).min(self.capacity);
        if needed > self.room {
            self.grow(needed, 0);
        }
        let counts = self.counts;
        let slot = with_table!(self, |table| table.make(flow, entry.last()));
        let Counts { expired, evicted, .. } = self.counts;
        self.counts = Counts { expired, evicted, ..counts };
        let Some(slot) = slot else { return false };
        let head = self.key_words() - 1;
        let own = self.entries[slot as usize..][..self.stride].as_flattened_mut();
        own[head] = own[head] & !(SEEN & !key_bits(own[head])) | entry.seen();
        own[head + 1] = entry.last();
        let (own, state) = (&mut own[header_words(head + 1)..], entry.functions());
        let words = state.len().min(own.len());
        own[..words].copy_from_slice(&state[..words]);
        // There may be more entries to come than there are places that wait for the end of a batch.
        self.end_batch();
        true
    }

    /// Appends all that is held, dead or not, apart from this table: of each entry the header and `state_words` words, as
    /// [`Entry::new`] takes them, with nothing that means something here only.
    pub fn save(&self, state_words: usize, into: &mut Vec<u64>) {
        for entry in self.iter() {
            let mut key = entry.key();
            key[W - 1] |= entry.seen();
            into.extend(key);
            into.push(entry.last());
            into.extend(&entry.functions()[..state_words]);
        }
    }

    /// Forgets what a function keeps at a place of the entries that `is_over` says, of those it is in; entries that no function is in any more
    /// are removed. From a group on, in the groups after it until it has looked at `most` entries; the group to go on with, which is
    /// [`States::groups`] at the end. Between batches.
    pub fn forget_if(
        &mut self,
        from: usize,
        most: usize,
        at: StateAt,
        mut is_over: impl FnMut(Entry<'_, W>) -> bool,
    ) -> usize {
        let (mut group, mut seen) = (from, 0);
        while group < self.groups.len() && seen < most {
            let tags = load(&self.groups[group]);
            for way in (0..WAYS).filter(|&way| tag_at(tags, way) >= TAG) {
                seen += 1;
                let place = Place { group, way };
                let line = place.number() * self.stride;
                let entry = self.entry(line);
                if !entry.has(at) || !is_over(entry) {
                    continue;
                }
                self.entries().forget(line as Slot, at);
                if self.entry(line).seen() == 0 {
                    with_table!(self, |table| table.remove(place, EVICTED))
                }
            }
            // Nobody asks about these.
            self.end_batch();
            group += 1;
        }
        group
    }

    /// Gives the places of entries that were removed away again.
    pub fn end_batch(&mut self) {
        for Place { group, way } in self.removed.drain(..) {
            set_tag(&self.groups[group], way, FREE);
        }
    }
}

/// Hashes many keys as a table does, apart from it.
#[derive(Clone, Copy, Debug)]
pub struct Hasher([u64; 2]);

impl Hasher {
    /// A key with its hash; in a loop over many, in vectors.
    #[inline(always)]
    pub fn hashed<S: Simd, const W: usize>(self, simd: S, key: Key<W>) -> Hashed<W> {
        Hashed { key, hash: hash_by(&key, self.0, |a, b| simd.fold(a, b)) }
    }
}

/// Prefetches the tags of flows, which are read first of them.
#[inline]
fn prefetch_tags<const W: usize>(groups: &[AtomicU64], flows: &[Hashed<W>]) {
    flows.iter().for_each(|flow| prefetch_l2_at(groups, home(groups.len(), flow.hash)));
}

/// Where entries of a table probably are. Another worker may change the table meanwhile, so the key is compared before an entry is used.
#[derive(Clone, Debug)]
pub struct PrefetchHint {
    groups: Arc<Words>,
    /// The address of the first entry: nothing is read there.
    entries: usize,
    stride: usize,
}

impl PrefetchHint {
    /// Prefetches the tags of flows.
    pub fn prefetch<const W: usize>(&self, flows: &[Hashed<W>]) {
        prefetch_tags(&self.groups, flows);
    }

    /// Writes where the entry of each packet's flow probably is, and prefetches it.
    pub fn prefetch_entries<const W: usize, P: Packet>(&self, flows: &[Hashed<W>], packets: &mut [P]) {
        let entries = ptr::without_provenance(self.entries);
        Places { groups: &self.groups, entries, stride: self.stride }.prefetch_entries(flows, packets);
    }
}

/// An entry to be read.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a, const W: usize> {
    words: &'a [u64],
    /// Of its key.
    key_words: usize,
}

impl<'a, const W: usize> Entry<'a, W> {
    /// One of these words: its whole key, with a bit for each function that has state in the last word ([`key_and_functions`]); the time of its
    /// last packet; the functions' words.
    pub fn new(words: &'a [u64]) -> Self {
        Self { words, key_words: W }
    }

    /// Its key.
    pub fn key(&self) -> Key<W> {
        key_of(self.words, self.key_words, key_bits(self.head()))
    }

    /// The last word of its key, with all that stands there beside.
    fn head(&self) -> u64 {
        self.words[self.key_words - 1]
    }

    /// Bits that say which functions have seen a packet of the flow.
    fn seen(&self) -> u64 {
        self.head() & SEEN & !key_bits(self.head())
    }

    /// The functions' words.
    fn functions(&self) -> &'a [u64] {
        &self.words[header_words(self.key_words)..]
    }

    /// The time of its last packet.
    pub fn last(&self) -> u64 {
        self.words[self.key_words]
    }

    /// What a function keeps there, if it has seen a packet of the flow.
    pub fn state<S: Pod>(&self, at: StateAt) -> Option<&'a S> {
        Some(state(self.state_words(at, state_words::<S>())?))
    }

    /// The same, in so many words.
    pub fn state_words(&self, at: StateAt, words: usize) -> Option<&'a [u64]> {
        self.has(at).then(|| &self.functions()[at.word..][..words])
    }

    /// Whether a function has seen a packet of the flow.
    fn has(&self, at: StateAt) -> bool {
        self.seen() >> (FUNCTIONS + at.function) & 1 == 1
    }
}

/// The key of an entry that has so many words of it, with these bits of the last one.
#[inline]
fn key_of<const W: usize>(words: &[u64], key_words: usize, bits: u64) -> Key<W> {
    let mut key = [0; W];
    key[..key_words].copy_from_slice(&words[..key_words]);
    key[key_words - 1] &= bits;
    key
}

/// Entries to be written.
#[derive(Debug)]
pub struct EntriesMut<'a> {
    lines: &'a mut [Line],
    /// The number of the last word of an entry's key.
    head: usize,
}

impl EntriesMut<'_> {
    /// Begins what a function keeps at a place, all 0, if it has seen no packet of the flow yet.
    #[inline]
    pub fn begin<S: Pod>(&mut self, slot: Slot, at: StateAt) -> Option<&mut S> {
        let line = slot as usize;
        let (head, seen) = (self.head(line), 1 << (FUNCTIONS + at.function));
        if *head & seen != 0 {
            return None;
        }
        *head |= seen;
        let words = self.words(line, at);
        *words = S::zeroed();
        Some(words)
    }

    /// Forgets what a function keeps at a place.
    pub fn forget(&mut self, slot: Slot, at: StateAt) {
        *self.head(slot as usize) &= !(1 << (FUNCTIONS + at.function));
    }

    /// What a function keeps at a place, where it has [begun](Self::begin).
    #[inline]
    pub fn state<S: Pod>(&mut self, slot: Slot, at: StateAt) -> &mut S {
        self.words(slot as usize, at)
    }

    /// The last word of an entry's key.
    #[inline]
    fn head(&mut self, line: usize) -> &mut u64 {
        // Within the line, as the compiler is to know.
        &mut self.lines[line][self.head % LINE_WORDS]
    }

    /// A function's part of an entry.
    #[inline]
    fn words<S: Pod>(&mut self, line: usize, at: StateAt) -> &mut S {
        // In few bits, so that nothing overflows that would have to be looked at.
        let from = (header_words(self.head + 1) + at.word) as u32 as usize;
        let place = from..from + state_words::<S>();
        // Mostly all is in the first line.
        let words = if place.end <= LINE_WORDS {
            &mut self.lines[line][place]
        } else {
            &mut self.lines[line..].as_flattened_mut()[place]
        };
        state_mut(words)
    }
}

/// The state that these words are; one of no words is in none.
#[inline]
fn state<S: Pod>(words: &[u64]) -> &S {
    if size_of::<S>() == 0 { bytemuck::from_bytes(&[]) } else { &bytemuck::cast_slice(words)[0] }
}

/// As [`state`], to be written.
#[inline]
fn state_mut<S: Pod>(words: &mut [u64]) -> &mut S {
    if size_of::<S>() == 0 {
        bytemuck::from_bytes_mut(&mut [])
    } else {
        &mut bytemuck::cast_slice_mut(words)[0]
    }
}

#[inline]
pub(crate) fn hash<const W: usize>(key: &Key<W>, seeds: [u64; 2]) -> u64 {
    hash_by(key, seeds, fold)
}

/// The same with another way to fold.
#[inline(always)]
fn hash_by<const W: usize>(key: &Key<W>, [first, second]: [u64; 2], fold: impl Fn(u64, u64) -> u64) -> u64 {
    let mut hash = second;
    for pair in key.chunks(2) {
        let right = pair.get(1).copied().unwrap_or_default();
        hash = fold(pair[0] ^ first, right ^ hash);
    }
    fold(hash ^ first, second.rotate_left(32) ^ 0x9e37_79b9_7f4a_7c15)
}

/// Which of so many tables a flow is in, a power of two up to 2^24: by bits of its hash that say nothing about its place there.
#[inline]
pub fn part_of<const W: usize>(flow: &Hashed<W>, parts: usize) -> usize {
    (flow.hash as u32 >> TAG_BITS) as usize & (parts - 1)
}

/// Entries that were saved, with the table that each is in of so many, whose seeds are the same.
pub fn by_part<const W: usize>(
    saved: &[u64],
    state_words: usize,
    parts: usize,
    seeds: [u64; 2],
) -> impl Iterator<Item = (usize, &[u64])> {
    saved.chunks_exact(header_words(W) + state_words).map(move |words| {
        let key = Entry::<W>::new(words).key();
        (part_of(&Hashed { key, hash: hash(&key, seeds) }, parts), words)
    })
}

/// Groups of a table for so many flows, and batches of so many packets: there is always a free place, as those of a batch's removals are not.
/// One that grows, up to `most` flows, is seldom as full as it may be.
fn groups_for(capacity: usize, batch: usize, most: usize) -> usize {
    let places = if capacity < most { GROWING_PLACES } else { PLACES };
    (capacity * places.0 / places.1 + batch + 1).div_ceil(WAYS).next_multiple_of(BLOCK)
}

/// The upper half of a hash times the number of groups: no division.
#[inline]
fn home(groups: usize, hash: u64) -> usize {
    (((hash >> 32) * groups as u64) >> 32) as usize
}

/// Where an entry's tag is: a way of a group. Both beside each other: out of one number they would have to be divided again.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    group: usize,
    way: usize,
}

impl Place {
    /// The number of its entry among all.
    #[inline]
    fn number(self) -> usize {
        self.group * WAYS + self.way
    }
}

/// Where the hand is: among places of [`BLOCK`] groups, one of each.
///
/// From a group to the next it also goes to the next way: the first ways of all groups belong to the flows that were there first, and if it came
/// by all of these in a row, some would have to go.
#[derive(Clone, Copy, Debug, Default)]
struct Hand {
    /// The places, and a bit for each that it still has to come by: those with an entry when it was asked for.
    at: Block,
    left: u32,
    /// The next ones, whose entries were asked for.
    next: Block,
    next_left: u32,
}

/// Places of as many groups, from one on; of that the one with this way, of each other one the next way.
#[derive(Clone, Copy, Debug, Default)]
struct Block {
    group: usize,
    way: usize,
    /// The way with which the hand came to the first group of all.
    first_way: usize,
}

impl Block {
    /// The one that follows, in a table of so many groups. Once around the hand was at one way of each group.
    #[inline]
    fn after(self, groups: usize) -> Self {
        let Self { group, way, first_way } = self;
        if group + BLOCK < groups {
            return Self { group: group + BLOCK, way: wrapped(way + BLOCK % WAYS), first_way };
        }
        let first_way = wrapped(first_way + 1);
        Self { group: 0, way: first_way, first_way }
    }

    /// One of its places.
    #[inline]
    fn place(self, at: usize) -> Place {
        Place { group: self.group + at, way: wrapped(self.way + at) }
    }
}

/// A way that may have been counted on beyond the last one, by up to as many as there are.
#[inline]
fn wrapped(way: usize) -> usize {
    if way < WAYS { way } else { way - WAYS }
}

/// The last bits of the lower half.
#[inline]
fn tag(hash: u64) -> u64 {
    (hash & ((1 << TAG_BITS) - 1)).max(TAG)
}

#[inline]
fn tag_at(tags: u64, way: usize) -> u64 {
    tags >> (way * 8) & 0xff
}

#[inline]
fn set_tag(tags: &AtomicU64, way: usize, tag: u64) {
    store(tags, (load(tags) & !(0xff << (way * 8))) | (tag << (way * 8)));
}

/// The tags of a group. Whoever has the table reads what was written to it; a [`PrefetchHint`] perhaps something older.
#[inline]
fn load(tags: &AtomicU64) -> u64 {
    tags.load(Ordering::Relaxed)
}

/// By whoever has the table.
#[inline]
fn store(tags: &AtomicU64, new: u64) {
    tags.store(new, Ordering::Relaxed);
}

/// A bit, the top one of its byte, for each way that has a tag; and perhaps for some above the first of them.
#[inline]
fn ways_with(tags: u64, tag: u64) -> u64 {
    let differ = tags ^ (tag * EACH_BYTE);
    differ.wrapping_sub(EACH_BYTE) & !differ & EACH_TOP_BIT & ((1 << PASSED) - 1)
}

/// Where the entries of a table are, by their tags.
struct Places<'a> {
    groups: &'a [AtomicU64],
    /// The first, of which nothing is read here.
    entries: *const Line,
    stride: usize,
}

impl Places<'_> {
    /// Asks for the places that the hashes of flows probably lead to, or [`NO_SLOT`]; they are brought in, or where new entries will
    /// probably stand.
    // By itself, so that it has all registers. Fields are taken out first: compilers read them again after each read of an atomic.
    #[inline(never)]
    fn prefetch_entries<const W: usize, P: Packet>(&self, flows: &[Hashed<W>], packets: &mut [P]) {
        let Self { groups, entries, stride } = *self;
        for (flow, packet) in flows.iter().zip(packets) {
            let (home, tag) = (home(groups.len(), flow.hash), tag(flow.hash));
            let ways = ways_with(load(&groups[home]), tag);
            *packet.slot() = if ways == 0 {
                self.prefetch_elsewhere(home, tag)
            } else {
                prefetch_ways(entries, stride, home, ways)
            };
        }
    }

    /// The same where no tag of the home group is that of the hash.
    #[cold]
    fn prefetch_elsewhere(&self, home: usize, tag: u64) -> Slot {
        let Self { entries, stride, .. } = *self;
        let (tags, next) = (self.tags(home), self.after(home));
        // Who went past a group mostly stands in the next one.
        let ways = if tags >> PASSED == 0 { 0 } else { ways_with(self.tags(next), tag) };
        if ways != 0 {
            return prefetch_ways(entries, stride, next, ways);
        }
        match ways_with(tags, FREE) {
            0 => prefetch_ways(entries, stride, next, ways_with(self.tags(next), FREE)),
            free => prefetch_ways(entries, stride, home, free),
        };
        NO_SLOT
    }

    /// Whether any entry has a tag that one of this home may have.
    #[inline]
    fn may_be(&self, home: usize, tag: u64) -> bool {
        let mut group = home;
        loop {
            let tags = self.tags(group);
            if ways_with(tags, tag) != 0 {
                return true;
            }
            if tags >> PASSED == 0 {
                return false;
            }
            group = self.after(group);
            // Counters that stay at their most would otherwise never end this.
            if group == home {
                return true;
            }
        }
    }

    /// The tags of a group.
    #[inline]
    fn tags(&self, group: usize) -> u64 {
        load(&self.groups[group])
    }

    /// The group after another one.
    #[inline]
    fn after(&self, group: usize) -> usize {
        if group + 1 == self.groups.len() { 0 } else { group + 1 }
    }

    /// Where the entry at the first of some ways of a group is.
    #[inline]
    fn slot(&self, group: usize, ways: u64) -> usize {
        slot(self.stride, group, ways)
    }
}

/// Where the entry at the first of some ways of a group is.
#[inline]
fn slot(stride: usize, group: usize, ways: u64) -> usize {
    Place { group, way: first_of(ways) }.number() * stride
}

/// The first of some ways.
#[inline]
fn first_of(ways: u64) -> usize {
    ways.trailing_zeros() as usize / 8
}

/// Prefetches the entry of the first of some ways of a group, and returns its slot.
#[inline]
fn prefetch_ways(entries: *const Line, stride: usize, group: usize, ways: u64) -> Slot {
    let slot = slot(stride, group, ways);
    let prefetch_line = |line| prefetch_l2(entries.wrapping_add(slot + line));
    prefetch_line(0);
    // Most have one or two: no loop for those.
    if stride > 1 {
        prefetch_line(1);
        (2..stride).for_each(prefetch_line);
    }
    slot as Slot
}

/// The parts of a table, with its entries at hand; its [`KeyForm`] as a number.
struct Table<'a, const W: usize, const FORM: u8> {
    seeds: [u64; 2],
    places: Places<'a>,
    entries: &'a mut [Line],
    longest: u64,
    when_full: WhenFull,
    capacity: usize,
    len: &'a mut usize,
    hand: &'a mut Hand,
    removed: &'a mut Vec<Place>,
    counts: &'a mut Counts,
}

impl<const W: usize, const FORM: u8> Table<'_, W, FORM> {
    /// Words of a key in an entry.
    const KEY_WORDS: usize = if FORM == ADDRESS { KeyForm::Address.words(W) } else { W };
    /// What is key in the last of them.
    const KEY_BITS: u64 = if FORM == EXTENDED { KEY | EXTENSION } else { KEY };
    /// The last of them, and the time of the last packet.
    const HEAD: usize = Self::KEY_WORDS - 1;
    const LAST: usize = Self::KEY_WORDS;

    fn find_or_insert_all<P: Packet>(
        &mut self,
        flows: &[Hashed<W>],
        packets: &mut [P],
        inserted: &mut Vec<u32>,
    ) -> Initialized {
        // The entries of one group of packets are on their way while those of the group before are looked at.
        let mut before: (&[_], &mut [P]) = (&[], &mut []);
        let (mut initialized, mut from) = (Initialized::ALL, 0);
        for (flows, packets) in flows.chunks(TOGETHER).zip(packets.chunks_mut(TOGETHER)) {
            self.places.prefetch_entries(flows, packets);
            let (flows, packets) = mem::replace(&mut before, (flows, packets));
            initialized = initialized & self.find_or_insert_group(flows, packets, from, inserted);
            from += flows.len() as u32;
        }
        initialized & self.find_or_insert_group(before.0, before.1, from, inserted)
    }

    fn find_live(&mut self, flow: &Hashed<W>, now: u64) -> Option<Slot> {
        let slot = self.find(flow)?;
        self.lives(slot, now).then_some(slot as Slot)
    }

    fn find_prefetched<P: Packet>(&mut self, flows: &[Hashed<W>], packets: &mut [P]) {
        for (flow, packet) in flows.iter().zip(packets) {
            let (now, hint) = (packet.now(), *packet.slot() as usize);
            let line = self.entries.get(hint);
            let is_there = line.is_some_and(|line| Self::is(line, &flow.key));
            let slot = if is_there { Some(hint) } else { self.find(flow) };
            let slot = slot.filter(|&slot| self.lives(slot, now));
            *packet.slot() = slot.map_or(NO_SLOT, |slot| slot as Slot);
        }
    }

    /// The place of a flow, with a fourth more room than there is.
    fn make(&mut self, flow: &Hashed<W>, now: u64) -> Option<Slot> {
        self.capacity += self.capacity / 4;
        self.touch_elsewhere(flow, now)
    }

    /// Whether a line is that of a flow's entry.
    #[inline]
    fn is(line: &Line, key: &Key<W>) -> bool {
        let differ = line[Self::HEAD] ^ key[Self::HEAD];
        let mut differ = if FORM == EXTENDED { differ & Self::KEY_BITS } else { differ << (64 - FUNCTIONS) };
        for word in 0..Self::HEAD {
            differ |= line[word] ^ key[word];
        }
        differ == 0 && line[Self::HEAD] & LIVE != 0
    }

    /// Whether the entry at a place is not dead at a time.
    #[inline]
    fn lives(&mut self, slot: usize, now: u64) -> bool {
        now.saturating_sub(self.entries[slot][Self::LAST]) <= self.longest
    }

    #[inline]
    fn find(&mut self, flow: &Hashed<W>) -> Option<usize> {
        let (home, tag) = (home(self.places.groups.len(), flow.hash), tag(flow.hash));
        // Of a flow that is not there, the tags mostly say so.
        if self.places.may_be(home, tag) { self.search(home, tag, &flow.key) } else { None }
    }

    /// Looks for a flow with a tag in one group after the other.
    #[inline(never)]
    fn search(&mut self, home: usize, tag: u64, key: &Key<W>) -> Option<usize> {
        let mut group = home;
        // Counters that stay at their most would otherwise never end the search.
        for _ in 0..self.places.groups.len() {
            let tags = self.places.tags(group);
            let mut ways = ways_with(tags, tag);
            while ways != 0 {
                let slot = self.places.slot(group, ways);
                if Self::is(&self.entries[slot], key) {
                    return Some(slot);
                }
                ways &= ways - 1;
            }
            if tags >> PASSED == 0 {
                return None;
            }
            group = self.places.after(group);
        }
        None
    }

    /// Touches the flows of packets whose places were asked for, and whose numbers begin `from` one.
    // By itself, so that it has all registers.
    #[inline(never)]
    fn find_or_insert_group<P: Packet>(
        &mut self,
        flows: &[Hashed<W>],
        packets: &mut [P],
        from: u32,
        inserted: &mut Vec<u32>,
    ) -> Initialized {
        let mut initialized = Initialized::ALL;
        for ((flow, packet), number) in flows.iter().zip(packets).zip(from..) {
            let (now, slot) = (packet.now(), *packet.slot());
            let head = self.find_or_insert(&flow.key, slot as usize, now);
            if head == 0 {
                *packet.slot() = self.touch_elsewhere(flow, now).unwrap_or(NO_SLOT);
                inserted.push(number);
            } else {
                initialized = initialized & Initialized(head);
            }
        }
        initialized
    }

    /// Touches the entry at a place if it is that of a flow, and not dead: the last word of its key, or 0.
    #[inline]
    fn find_or_insert(&mut self, key: &Key<W>, slot: usize, now: u64) -> u64 {
        let longest = self.longest;
        // There is no line for no place.
        let Some(line) = self.entries.get_mut(slot) else { return 0 };
        // Time that runs backwards counts as 0.
        let elapsed = now.saturating_sub(line[Self::LAST]);
        if !Self::is(line, key) || elapsed > longest {
            return 0;
        }
        line[Self::HEAD] |= TOUCHED;
        line[Self::LAST] += elapsed;
        line[Self::HEAD]
    }

    /// The place of a flow, which is now touched.
    #[cold]
    fn touch_elsewhere(&mut self, flow: &Hashed<W>, now: u64) -> Option<Slot> {
        if let Some(slot) = self.find(flow) {
            if self.find_or_insert(&flow.key, slot, now) != 0 {
                return Some(slot as Slot);
            }
            let number = slot / self.places.stride;
            self.remove(Place { group: number / WAYS, way: number % WAYS }, 0);
            self.counts.expired += 1;
        }
        self.create(flow, now)
    }

    fn create(&mut self, flow: &Hashed<W>, now: u64) -> Option<Slot> {
        if *self.len >= self.capacity && !self.make_room(now) {
            self.counts.refused += 1;
            return None;
        }
        let (place, state) = self.take_place(flow.hash);
        let slot = place.number() * self.places.stride;
        let line = &mut self.entries[slot];
        // Nothing of the line is read, which may still be on its way.
        line[..Self::HEAD].copy_from_slice(&flow.key[..Self::HEAD]);
        line[Self::HEAD] = flow.key[Self::HEAD] | state;
        line[Self::LAST] = now;
        *self.len += 1;
        self.counts.created += 1;
        Some(slot as Slot)
    }

    /// Takes the first free place for a flow with a hash: where it is, and what the head of its entry says of that.
    #[inline]
    fn take_place(&mut self, hash: u64) -> (Place, u64) {
        let (mut group, mut state) = (home(self.places.groups.len(), hash), LIVE);
        let way = loop {
            let free = ways_with(self.places.tags(group), FREE);
            if free != 0 {
                break first_of(free);
            }
            let tags = self.places.tags(group);
            if tags >> PASSED < MOST_PASSED {
                store(&self.places.groups[group], tags + (1 << PASSED));
            }
            group = self.places.after(group);
            state |= AWAY;
        };
        set_tag(&self.places.groups[group], way, tag(hash));
        (Place { group, way }, state)
    }

    /// The group in which a flow with a hash would have its place.
    fn free_group(&self, hash: u64) -> usize {
        let mut group = home(self.places.groups.len(), hash);
        while ways_with(self.places.tags(group), FREE) == 0 {
            group = self.places.after(group);
        }
        group
    }

    /// Takes over all entries of a table that had these groups, and these entries; or those that still stand here as they did there, where it
    /// had fewer groups.
    fn take_all(&mut self, groups: &[AtomicU64], entries: Option<&[Line]>) {
        let stride = self.places.stride;
        let mut taken: Vec<Line> = Vec::new();
        let mut later: Vec<Line> = Vec::new();
        // From the last ones on, as homes mostly are further on than they were; some at a time, which are out of the way then.
        for (number, groups) in groups.chunks(MOVED).enumerate().rev() {
            let first = number * MOVED;
            taken.clear();
            for (tags, group) in groups.iter().map(load).zip(first..) {
                for way in (0..WAYS).filter(|&way| tag_at(tags, way) >= TAG) {
                    let from = Place { group, way }.number() * stride;
                    taken.extend_from_slice(&entries.unwrap_or(&*self.entries)[from..][..stride]);
                }
            }
            let is_in_the_way = |group: usize| entries.is_none() && group < first;
            for entry in taken.chunks_exact(stride) {
                let hash = self.hash_of(entry);
                if is_in_the_way(self.free_group(hash)) {
                    later.extend_from_slice(entry);
                } else {
                    self.take_entry(entry, hash);
                }
            }
        }
        for entry in later.chunks_exact(stride) {
            self.take_entry(entry, self.hash_of(entry));
        }
    }

    fn hash_of(&self, entry: &[Line]) -> u64 {
        let key: Key<W> = key_of(&entry[0], Self::KEY_WORDS, Self::KEY_BITS);
        hash(&key, self.seeds)
    }

    fn take_entry(&mut self, entry: &[Line], hash: u64) {
        let (place, state) = self.take_place(hash);
        let own = &mut self.entries[place.number() * self.places.stride..][..entry.len()];
        own.copy_from_slice(entry);
        own[0][Self::HEAD] = own[0][Self::HEAD] & !AWAY | state;
        *self.len += 1;
    }

    /// See [`States::sweep`].
    fn sweep(&mut self, from: usize, groups: usize, entries: usize, now: u64) -> usize {
        let (mut group, mut seen) = (from, 0);
        // Groups may be others since the last time.
        if group >= self.places.groups.len() {
            group = 0;
        }
        for _ in 0..groups.min(self.places.groups.len()) {
            let tags = self.places.tags(group);
            for way in (0..WAYS).filter(|&way| tag_at(tags, way) >= TAG) {
                if seen == entries {
                    return group;
                }
                seen += 1;
                let place = Place { group, way };
                if !self.lives(place.number() * self.places.stride, now) {
                    self.remove(place, 0);
                    self.counts.expired += 1;
                }
            }
            group = self.places.after(group);
        }
        group
    }

    /// Has the hand come to the next places, and asks for the entries of those after them.
    // By itself, so that it has all registers.
    #[inline(never)]
    fn move_hand(&mut self) {
        let Hand { next, next_left, .. } = *self.hand;
        let ahead = next.after(self.places.groups.len());
        let mut left = 0;
        for at in 0..BLOCK {
            let place = ahead.place(at);
            let is_there = tag_at(self.places.tags(place.group), place.way) >= TAG;
            left |= u32::from(is_there) << at;
            // Without a branch that nobody could foresee: of no entry, another one is asked for.
            prefetch_at(self.entries, usize::from(is_there) * place.number() * self.places.stride);
        }
        *self.hand = Hand { at: next, left: next_left, next: ahead, next_left: left };
    }

    /// The next place of the hand that has an entry, if there is one before it has to [move](Self::move_hand).
    #[inline]
    fn next_of_hand(&mut self) -> Option<Place> {
        let Hand { at, left, .. } = self.hand;
        while *left != 0 {
            let place = at.place(left.trailing_zeros() as usize);
            *left &= *left - 1;
            if tag_at(self.places.tags(place.group), place.way) >= TAG {
                return Some(place);
            }
        }
        None
    }

    /// Has the hand look for an entry whose place may be taken.
    fn make_room(&mut self, now: u64) -> bool {
        let mut looks = 0;
        let mut moves = 0;
        loop {
            let Some(place) = self.next_of_hand() else {
                // Where there are few entries, most places are free. Three times round: the first time those may be missed that came when the
                // hand had looked there already, the second time all may have been touched.
                if moves > 3 * self.places.groups.len() * WAYS / BLOCK {
                    break;
                }
                moves += 1;
                self.move_hand();
                continue;
            };
            looks += 1;
            let longest = self.longest;
            let evicts = self.when_full == WhenFull::Evict;
            let line = &mut self.entries[place.number() * self.places.stride];
            let is_dead = now.saturating_sub(line[Self::LAST]) > longest;
            let is_untouched = line[Self::HEAD] & TOUCHED == 0;
            let may_go = evicts && (is_untouched || looks == LOOKS);
            if is_dead || may_go {
                self.remove(place, if is_dead { 0 } else { EVICTED });
                let count = if is_dead { &mut self.counts.expired } else { &mut self.counts.evicted };
                *count += 1;
                return true;
            }
            if looks == LOOKS {
                break;
            }
            if evicts {
                line[Self::HEAD] &= !TOUCHED;
            }
        }
        false
    }

    /// Removes an entry; `why` is [`EVICTED`] or 0.
    #[inline]
    fn remove(&mut self, place: Place, why: u64) {
        set_tag(&self.places.groups[place.group], place.way, REMOVED);
        let line = &mut self.entries[place.number() * self.places.stride];
        line[Self::HEAD] = line[Self::HEAD] & !LIVE | why;
        if line[Self::HEAD] & AWAY != 0 {
            let key = key_of(line, Self::KEY_WORDS, Self::KEY_BITS);
            self.pass_no_more(&key, place.group);
        }
        *self.len -= 1;
        self.removed.push(place);
    }

    /// Takes a flow out of the counters of the groups from its home to the one where it stood.
    #[cold]
    fn pass_no_more(&mut self, key: &Key<W>, until: usize) {
        let mut group = home(self.places.groups.len(), hash(key, self.seeds));
        while group != until {
            let tags = self.places.tags(group);
            if tags >> PASSED < MOST_PASSED {
                store(&self.places.groups[group], tags - (1 << PASSED));
            }
            group = self.places.after(group);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A packet's place.
    struct Touch(Slot);

    impl Packet for Touch {
        fn now(&self) -> u64 {
            0
        }

        fn slot(&mut self) -> &mut Slot {
            &mut self.0
        }
    }

    fn hashed<const W: usize>(states: &States<W>, key: Key<W>) -> Hashed<W> {
        Hashed { key, hash: states.hash(&key) }
    }

    #[test]
    fn a_flood_puts_no_flow_far_from_home() {
        const CAPACITY: usize = 20_000;
        const BATCH: usize = 250;
        // With small ones, keys that are numbers would be spread too evenly.
        const SEEDS: [u64; 2] = [0x243f_6a88_85a3_08d3, 0x1319_8a2e_0370_7344];
        let mut states =
            States::<2>::new(KeyForm::Whole, CAPACITY, BATCH, 3, u64::MAX, WhenFull::Evict, SEEDS);
        for batch in 0..10 * CAPACITY / BATCH {
            let key = |packet: usize| [(batch * BATCH + packet) as u64, 0];
            let flows: Vec<_> = (0..BATCH).map(|packet| hashed(&states, key(packet))).collect();
            let mut packets: Vec<_> = (0..BATCH).map(|_| Touch(NO_SLOT)).collect();
            states.find_or_insert_all(&flows, &mut packets, &mut Vec::new());
            states.end_batch();
        }
        assert_eq!((states.len(), states.counts().evicted), (CAPACITY, 9 * CAPACITY as u64));
        // Where all are as full as on average, one in twenty groups overflows, and few by more than some flows.
        let counters: Vec<_> = states.groups.iter().map(|tags| load(tags) >> PASSED).collect();
        let most = counters.iter().max();
        assert!(most < Some(&32), "{most:?} flows went past a group");
        // And what the counters say is true.
        let mut passed = vec![0; counters.len()];
        for (group, tags) in states.groups.iter().map(load).enumerate() {
            for way in (0..WAYS).filter(|&way| tag_at(tags, way) >= TAG) {
                let entry = states.entry(Place { group, way }.number() * states.stride);
                let home = home(counters.len(), states.hash(&entry.key()));
                (home..)
                    .map(|at| at % counters.len())
                    .take_while(|&at| at != group)
                    .for_each(|at| passed[at] += 1);
            }
        }
        assert_eq!(passed, counters);
        assert!(most > Some(&0), "no flow went past a group");
    }

    /// Those that were there first have the first ways of all groups.
    #[test]
    fn a_flood_takes_no_place_of_flows_that_go_on() {
        const CAPACITY: usize = 20_000;
        const LIVE: usize = CAPACITY / 2;
        const BATCH: usize = 200;
        let mut states =
            States::<2>::new(KeyForm::Whole, CAPACITY, BATCH, 3, u64::MAX, WhenFull::Evict, [1, 2]);
        let mut touch = |keys: &mut dyn Iterator<Item = usize>| {
            let flows: Vec<_> = keys.map(|key| hashed(&states, [key as u64, 0])).collect();
            let mut packets: Vec<_> = flows.iter().map(|_| Touch(NO_SLOT)).collect();
            states.find_or_insert_all(&flows, &mut packets, &mut Vec::new());
            states.end_batch();
            states.counts().created
        };
        for batch in 0..LIVE / BATCH {
            touch(&mut (batch * BATCH..(batch + 1) * BATCH));
        }
        let mut flood = 0;
        for batch in 0..20 * CAPACITY / BATCH {
            // A packet of each of some, and a tenth as many new flows.
            let live = (0..BATCH - BATCH / 10).map(|packet| (batch * (BATCH - BATCH / 10) + packet) % LIVE);
            let new = (0..BATCH / 10).map(|packet| LIVE + flood + packet);
            let created = touch(&mut live.chain(new));
            flood += BATCH / 10;
            assert_eq!(created, (LIVE + flood) as u64);
        }
        assert!(flood > CAPACITY, "{flood} flows must go round the table");
    }

    #[test]
    fn a_hand_comes_by_all_places() {
        let mut states = States::<2>::new(KeyForm::Whole, 100, 0, 3, u64::MAX, WhenFull::Evict, [1, 2]);
        states.groups.iter().for_each(|tags| store(tags, EACH_TOP_BIT));
        let mut table = states.table::<WHOLE>();
        let places = table.places.groups.len() * WAYS;
        // What it asked for before anything was there.
        table.move_hand();
        table.move_hand();
        for _ in 0..2 {
            let mut seen = Vec::new();
            while seen.len() < places {
                match table.next_of_hand() {
                    Some(place) => seen.push(place.number()),
                    None => table.move_hand(),
                }
            }
            seen.sort_unstable();
            assert!(seen.into_iter().eq(0..places));
        }
    }
}
