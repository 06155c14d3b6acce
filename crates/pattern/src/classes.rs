//! Where short patterns may begin: each is in one of eight buckets, and a bucket has a class of bytes for each of the first four places.
//! A class is the product of a set of low five bits and a set of high three bits: of one alphabet, such as small letters, it is any set.

use packetloom_simd::Simd;

use crate::filter::{BLOCK, READ, load};

const PLACES: usize = 4;
const BUCKETS: usize = 8;

/// Beyond so many patterns buckets are not weighed against each other, which would take long and gain nothing.
const MAX_WEIGHED: usize = 2048;

#[derive(Clone, Debug)]
pub(crate) struct Classes {
    /// A bit for each bucket, by the low and by the high bits of a byte.
    places: [([u8; 32], [u8; 8]); PLACES],
    /// A bit for each hash of three bytes, set where a pattern begins with such.
    begins: Vec<u64>,
}

/// Bits of a hash of three bytes.
const BEGIN_BITS: u32 = 16;

#[inline(always)]
fn hash(begin: u32) -> u32 {
    (begin << 8).wrapping_mul(0x9e37_79b1) >> (32 - BEGIN_BITS)
}

/// The bytes of a bucket at each place: sets of low and of high bits.
#[derive(Clone, Copy, Default)]
struct Bucket([(u32, u8); PLACES]);

impl Bucket {
    fn with(mut self, pattern: &[u8]) -> Self {
        for (place, sets) in self.0.iter_mut().enumerate() {
            match pattern.get(place) {
                Some(byte) => {
                    sets.0 |= 1 << (byte & 31);
                    sets.1 |= 1 << (byte >> 5);
                }
                None => *sets = (u32::MAX, u8::MAX),
            }
        }
        self
    }

    /// The share of all places of a text at which it has a candidate.
    fn share(&self, frequency: &[f64; 256]) -> f64 {
        let share = |(low, high): (u32, u8)| -> f64 {
            let has = |byte: usize| low >> (byte & 31) & 1 == 1 && high >> (byte >> 5) & 1 == 1;
            (0..256).filter(|&byte| has(byte)).map(|byte| frequency[byte]).sum()
        };
        self.0.iter().map(|&sets| share(sets)).product()
    }
}

impl Classes {
    /// For these patterns, as the text is folded.
    pub(crate) fn new(patterns: &[Vec<u8>]) -> Self {
        // Half of a text is like the patterns, half of it is anything.
        let mut frequency = [0.5 / 256.0; 256];
        let total: usize = patterns.iter().map(Vec::len).sum();
        for &byte in patterns.iter().flatten() {
            frequency[usize::from(byte)] += 0.5 / total as f64;
        }
        let mut buckets = [Bucket::default(); BUCKETS];
        let mut shares = [0.0; BUCKETS];
        // The shortest first: they spoil a bucket for others.
        let mut order: Vec<_> = patterns.iter().collect();
        order.sort_unstable_by_key(|pattern| (pattern.len().min(PLACES), *pattern));
        for (number, pattern) in order.iter().enumerate() {
            let with = buckets.map(|bucket| bucket.with(pattern));
            let bucket = if patterns.len() > MAX_WEIGHED {
                number * BUCKETS / patterns.len()
            } else {
                let grown: [f64; BUCKETS] = std::array::from_fn(|at| with[at].share(&frequency) - shares[at]);
                let least = (0..BUCKETS).min_by(|&a, &b| grown[a].total_cmp(&grown[b]));
                least.expect("eight buckets")
            };
            buckets[bucket] = with[bucket];
            shares[bucket] = with[bucket].share(&frequency);
        }
        let bits = |has: &dyn Fn(&Bucket) -> bool| {
            buckets.iter().enumerate().fold(0, |bits, (at, bucket)| bits | u8::from(has(bucket)) << at)
        };
        let place = |place: usize| {
            let low = |value| bits(&|bucket| bucket.0[place].0 >> value & 1 == 1);
            let high = |value| bits(&|bucket| bucket.0[place].1 >> value & 1 == 1);
            (std::array::from_fn(low), std::array::from_fn(high))
        };
        let mut begins = vec![0u64; 1 << (BEGIN_BITS - 6)];
        for pattern in patterns {
            match pattern.first_chunk::<3>() {
                Some(&[a, b, c]) => {
                    let bit = hash(u32::from_le_bytes([a, b, c, 0]));
                    begins[(bit >> 6) as usize] |= 1 << (bit & 63);
                }
                // Anything may follow.
                None => begins.fill(u64::MAX),
            }
        }
        Self { places: std::array::from_fn(place), begins }
    }

    /// Whether a pattern may begin with the lowest three bytes of `text`.
    #[inline(always)]
    pub(crate) fn may_begin(&self, text: u64) -> bool {
        let bit = hash(text as u32);
        self.begins[(bit >> 6) as usize] >> (bit & 63) & 1 == 1
    }

    /// The bytes of a block at which a pattern may begin, a bit each. `from` begins with the block; `fold` is set in every word, where
    /// there is such.
    #[inline(always)]
    pub(crate) fn pass<S: Simd>(&self, simd: S, from: &[u8; READ], fold: Option<S::V>) -> u64 {
        let mut mask = 0;
        for first in (0..BLOCK).step_by(S::LANES * 4) {
            let from = &from[first..];
            let front = simd.and(self.buckets(simd, 0, from, fold), self.buckets(simd, 1, from, fold));
            let back = simd.and(self.buckets(simd, 2, from, fold), self.buckets(simd, 3, from, fold));
            let buckets = simd.and(front, back);
            mask |= simd.nonzero_bytes(buckets) << first;
        }
        mask
    }

    /// The buckets whose class at a place has a byte, of each byte so many places behind.
    #[inline(always)]
    fn buckets<S: Simd>(&self, simd: S, place: usize, from: &[u8], fold: Option<S::V>) -> S::V {
        let (low, high) = &self.places[place];
        simd.classes(low, high, load(simd, &from[place..], fold))
    }
}
