//! Where short patterns may begin: each is in one of eight buckets, and a bucket has a class of bytes for each of the first four places.
//! Where the processor can look them up, classes are exact sets of bytes, but for the highest bit. Elsewhere a class is the product of a
//! set of low five bits and a set of high three bits: of one alphabet, such as small letters, it is any set.

use packetloom_simd::{ByteClasses, Simd};

use crate::filter::{BLOCK, Block};

const PLACES: usize = 4;
const BUCKETS: usize = 8;

/// Beyond so many patterns buckets are not weighed against each other, which would take long and gain nothing.
const MAX_WEIGHED: usize = 2048;

#[derive(Clone, Debug)]
pub(crate) struct Classes {
    /// A bit for each bucket.
    places: [ByteClasses; PLACES],
    /// A bit for each hash of three bytes, set where a pattern begins with such.
    begins: Vec<u64>,
}

/// Bits of a hash of three bytes.
const BEGIN_BITS: u32 = 16;

#[inline(always)]
fn hash(begin: u32) -> u32 {
    (begin << 8).wrapping_mul(0x9e37_79b1) >> (32 - BEGIN_BITS)
}

/// The bytes of a bucket at one place.
#[derive(Clone, Copy, Default)]
struct Set {
    /// The low seven bits of each.
    exact: u128,
    /// The low five bits and the high three ones of each.
    low: u32,
    high: u8,
}

impl Set {
    const ALL: Self = Self { exact: u128::MAX, low: u32::MAX, high: u8::MAX };

    fn add(&mut self, byte: u8) {
        self.exact |= 1 << (byte & 127);
        self.low |= 1 << (byte & 31);
        self.high |= 1 << (byte >> 5);
    }

    /// Whether a byte is taken for one of the set.
    fn has(&self, byte: u8, is_exact: bool) -> bool {
        match is_exact {
            true => self.exact >> (byte & 127) & 1 == 1,
            false => self.low >> (byte & 31) & 1 == 1 && self.high >> (byte >> 5) & 1 == 1,
        }
    }
}

/// The bytes of a bucket at each place.
#[derive(Clone, Copy, Default)]
struct Bucket([Set; PLACES]);

impl Bucket {
    fn with(mut self, pattern: &[u8]) -> Self {
        for (place, set) in self.0.iter_mut().enumerate() {
            match pattern.get(place) {
                Some(&byte) => set.add(byte),
                None => *set = Set::ALL,
            }
        }
        self
    }

    /// The share of all places of a text at which it has a candidate.
    fn share(&self, frequency: &[f64; 256], is_exact: bool) -> f64 {
        let share = |set: &Set| -> f64 {
            let bytes = (0..=u8::MAX).zip(frequency);
            bytes.filter(|&(byte, _)| set.has(byte, is_exact)).map(|(_, frequency)| frequency).sum()
        };
        self.0.iter().map(share).product()
    }
}

impl Classes {
    /// For these patterns, as the text is folded; for instruction sets that have exact classes, or for others.
    pub(crate) fn new(patterns: &[Vec<u8>], is_exact: bool) -> Self {
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
                let grown: [f64; BUCKETS] = std::array::from_fn(|at| with[at].share(&frequency, is_exact) - shares[at]);
                let least = (0..BUCKETS).min_by(|&a, &b| grown[a].total_cmp(&grown[b]));
                least.expect("eight buckets")
            };
            buckets[bucket] = with[bucket];
            shares[bucket] = with[bucket].share(&frequency, is_exact);
        }
        let bits = |has: &dyn Fn(&Bucket) -> bool| {
            buckets.iter().enumerate().fold(0, |bits, (at, bucket)| bits | u8::from(has(bucket)) << at)
        };
        let place = |place: usize| ByteClasses {
            exact: std::array::from_fn(|value| bits(&|bucket| bucket.0[place].exact >> value & 1 == 1)),
            low: std::array::from_fn(|value| bits(&|bucket| bucket.0[place].low >> value & 1 == 1)),
            high: std::array::from_fn(|value| bits(&|bucket| bucket.0[place].high >> value & 1 == 1)),
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

    /// What is needed to look at blocks.
    #[inline(always)]
    pub(crate) fn view<S: Simd>(&self, simd: S) -> ClassesView<'_, S> {
        let [a, b, c, d] = &self.places;
        ClassesView([simd.load_classes(a), simd.load_classes(b), simd.load_classes(c), simd.load_classes(d)])
    }
}

/// Classes as blocks are looked at: by value, so that they stay in registers.
#[derive(Clone, Copy)]
pub(crate) struct ClassesView<'a, S: Simd>([S::Classes<'a>; PLACES]);

impl<S: Simd> ClassesView<'_, S> {
    /// The bytes of a block at which a pattern may begin, a bit each.
    #[inline(always)]
    pub(crate) fn pass<B: Block<S>>(self, simd: S, block: B) -> u64 {
        let mut mask = 0;
        for first in (0..BLOCK).step_by(S::LANES * 4) {
            let [a, b, c, d] = self.0;
            let front =
                simd.and(simd.classes(a, block.load(simd, first)), simd.classes(b, block.load(simd, first + 1)));
            let back =
                simd.and(simd.classes(c, block.load(simd, first + 2)), simd.classes(d, block.load(simd, first + 3)));
            mask |= simd.nonzero_bytes(simd.and(front, back)) << first;
        }
        mask
    }
}
