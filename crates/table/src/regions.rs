//! State by flow in the memory of a device: the entries of [`states`] with other tags, in regions that groups of a
//! kernel's items have to themselves.

use std::cmp::Reverse;

use crate::states::{self, Entry, FUNCTIONS, HEAD, KEY, LIVE, TOUCHED, hash, header_words};

/// Functions that find entries and make them, in the kernels' dialect.
pub const KERNEL: &str = include_str!("states.kernel.c");

/// Entries of a group.
const WAYS: usize = 8;
/// What all tags of entries have; beside it they have bits of the hash.
const TAG: u8 = 0x80;
/// Flows for which a region is made, at least: enough that regions differ little.
const FLOWS: usize = 512;
/// Places for three entries for each two that there may be, so that groups seldom overflow.
const PLACES: (usize, usize) = (3, 2);
/// By how many standard deviations a region may have more flows than others before it counts as full.
const SLACK: f64 = 4.5;

/// What kernels have to know of entries.
pub fn defines() -> Vec<(String, String)> {
    [("STATES_KEY", KEY), ("STATES_LIVE", LIVE), ("STATES_TOUCHED", TOUCHED)]
        .map(|(name, bits)| (name.into(), format!("0x{bits:x}")))
        .into_iter()
        .chain([("STATES_FUNCTIONS".into(), FUNCTIONS.to_string())])
        .collect()
}

/// How a table is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Regions {
    /// How many there are: a power of two.
    pub regions: u32,
    /// Groups of eight entries in each.
    pub groups: u32,
    /// Entries that there may be in each: somewhat more than its share, since no hash spreads flows evenly.
    pub capacity: u32,
}

impl Regions {
    /// Those of a table for so many flows.
    pub fn new(flows: usize) -> Self {
        let flows = flows.clamp(1, 1 << 31);
        let regions = (flows / FLOWS).max(1);
        // The power of two below.
        let regions = 1usize << regions.ilog2();
        let share = flows.div_ceil(regions);
        let slack = if regions == 1 { 0.0 } else { SLACK * (share as f64).sqrt() };
        let capacity = share + slack as usize;
        let groups = (capacity * PLACES.0 / PLACES.1).div_ceil(WAYS);
        Self { regions: regions as u32, groups: groups as u32, capacity: capacity as u32 }
    }

    /// Entries that there is room for.
    pub fn places(&self) -> usize {
        self.regions as usize * self.groups as usize * WAYS
    }

    /// Bytes of all tags, zeros where there are no entries.
    pub fn tag_bytes(&self) -> usize {
        self.places()
    }
}

/// Places in the memory of a device that have an entry, with keys of `key_words` words; `words` each.
pub fn live(memory: &[u64], key_words: usize, words: usize) -> impl Iterator<Item = &[u64]> {
    memory.chunks_exact(words).filter(move |entry| entry[key_words - 1] & LIVE != 0)
}

/// The entries in the memory of a device with keys of `W` words, as they lie there; `words` each.
pub fn entries<const W: usize>(memory: &[u64], words: usize) -> impl Iterator<Item = Entry<'_, W>> {
    live(memory, W, words).map(states::Entry::new)
}

/// The same apart from that memory, as [`States::save`](states::States::save) has them: of each the header and `state_words` words.
pub fn save<const W: usize>(memory: &[u64], words: usize, state_words: usize) -> Vec<u64> {
    let mut saved = Vec::new();
    for entry in live(memory, W, words) {
        let at = saved.len();
        saved.extend(&entry[..header_words(W) + state_words]);
        saved[at + W - 1] &= HEAD;
    }
    saved
}

/// A table as it lies in the memory of a device.
#[derive(Clone, Debug)]
pub struct Image {
    /// A byte for each place.
    pub tags: Vec<u8>,
    /// Some words for each place.
    pub entries: Vec<u64>,
    /// For each region how many it has.
    pub held: Vec<u32>,
}

impl Image {
    /// A table for `flows` flows with entries that were saved, each of `words` words there, whose hashes are keyed by `seeds`; and those that
    /// had to go: where there are more than room, those stay whose last packets were the latest.
    pub fn new<const W: usize>(
        saved: &[u64],
        state_words: usize,
        words: usize,
        flows: usize,
        seeds: [u64; 2],
    ) -> (Self, Vec<u64>) {
        let regions = Regions::new(flows);
        let mut image = Self {
            tags: vec![0; regions.tag_bytes()],
            entries: vec![0; regions.places() * words],
            held: vec![0; regions.regions as usize],
        };
        let mut entries: Vec<_> = saved.chunks_exact(header_words(W) + state_words).collect();
        entries.sort_by_key(|words| {
            let entry = Entry::<W>::new(words);
            (Reverse(entry.last()), entry.key())
        });
        let mut gone = Vec::new();
        for (number, entry) in entries.into_iter().enumerate() {
            let hash = hash(&Entry::<W>::new(entry).key(), seeds);
            let place = if number < flows { image.take_place(&regions, hash) } else { None };
            let Some(place) = place else {
                gone.extend(entry);
                continue;
            };
            let own = &mut image.entries[place * words..][..entry.len()];
            own.copy_from_slice(entry);
            own[W - 1] = own[W - 1] & HEAD | LIVE;
        }
        (image, gone)
    }

    /// Takes the place that a search for this hash comes to, if its region has room: see `states.kernel.c`.
    fn take_place(&mut self, regions: &Regions, hash: u64) -> Option<usize> {
        let share = |bits: u32, of: u32| ((u64::from(bits) * u64::from(of)) >> 32) as usize;
        let region = share((hash >> 32) as u32, regions.regions);
        if self.held[region] >= regions.capacity {
            return None;
        }
        let groups = regions.groups as usize;
        let home = share((hash >> 8) as u32, regions.groups);
        let mut places = (0..groups).flat_map(|next| {
            let group = region * groups + (home + next) % groups;
            group * WAYS..(group + 1) * WAYS
        });
        let place = places.find(|&place| self.tags[place] == 0)?;
        self.held[region] += 1;
        self.tags[place] = hash as u8 | TAG;
        Some(place)
    }
}
