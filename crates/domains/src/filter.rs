//! A Bloom filter in cache lines, the bits of one hash in one word (Putze, Sanders, Singler 2007, section 3).
//!
//! All names with the same last two labels have their bits in one cache line: that is where the names that a name ends with are looked
//! for, but for its last label alone, which has no bits.

use packetloom_memory::prefetch_at;
use packetloom_simd::Simd;

use crate::hash::scale;

/// Bits of memory for each hash: of others, about one in 40 is taken for one of them.
const BITS: usize = 12;
/// Words of a cache line.
const LINE: usize = 8;

/// Hashes of all names of a set and of their ancestors, of two labels or more: what is not in it has no entry, nor has anything below.
#[derive(Clone, Copy)]
pub(crate) struct Filter<'a>(pub(crate) &'a [u64]);

impl Filter<'_> {
    /// Whether a hash may be one of the set; `of` is that of the last two labels.
    #[inline(always)]
    pub(crate) fn has(self, of: u64, hash: u64) -> bool {
        let bits = bits(hash);
        self.0[place(self.0, of, hash)] & bits == bits
    }

    /// The same for eight hashes, a bit each.
    #[inline(always)]
    pub(crate) fn has_each<S: Simd>(self, simd: S, of: u64, hashes: &[u64; 8]) -> u32 {
        let line = self.0[line(self.0, of)..].first_chunk().expect("whole lines");
        simd.have_bits(line, hashes)
    }

    /// Asks for the memory that [`Self::has`] reads.
    #[inline(always)]
    pub(crate) fn prefetch(self, of: u64) {
        prefetch_at(self.0, line(self.0, of));
    }
}

/// Words of a filter for so many hashes.
pub(crate) fn empty(hashes: usize) -> Vec<u64> {
    vec![0; LINE * (hashes * BITS).div_ceil(64 * LINE).max(1)]
}

/// Adds a hash.
pub(crate) fn add(words: &mut [u64], of: u64, hash: u64) {
    let place = place(words, of, hash);
    words[place] |= bits(hash);
}

/// Where a cache line begins.
#[inline(always)]
fn line(words: &[u64], of: u64) -> usize {
    LINE * scale((of >> 32) as u32, words.len() / LINE)
}

#[inline(always)]
fn place(words: &[u64], of: u64, hash: u64) -> usize {
    line(words, of) + (hash >> 12) as usize % LINE
}

/// Two bits, by bits of a hash that choose neither the cache line nor the word; as [`Simd::have_bits`] has it.
#[inline(always)]
const fn bits(hash: u64) -> u64 {
    1 << (hash & 63) | 1 << (hash >> 6 & 63)
}
