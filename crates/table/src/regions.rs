//! State by flow in the memory of a device: the entries of [`states`] with other tags, in regions that groups of a
//! kernel's items have to themselves.

use crate::states::{self, Entry, FUNCTIONS, KEY, LIVE, TOUCHED};

/// Functions that find entries and make them, in the kernels' dialect.
pub const KERNEL: &str = include_str!("states.kernel.c");

/// Entries of a group.
const WAYS: usize = 8;
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

/// The entries in the memory of a device with keys of `W` words, as they lie there; `words` each.
pub fn entries<const W: usize>(memory: &[u64], words: usize) -> impl Iterator<Item = Entry<'_, W>> {
    let live = |entry: &&[u64]| entry[W - 1] & LIVE != 0;
    memory.chunks_exact(words).filter(live).map(states::Entry::new)
}
