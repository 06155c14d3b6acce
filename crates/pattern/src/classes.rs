//! Where short patterns may begin, or windows at any byte: each is in one of eight buckets, or of several times eight, and a bucket has a
//! class of bytes for each of the first four places, or five where classes are exact.
//! Where the processor can look them up, classes are exact sets of bytes, but for the highest bit. Elsewhere a class is the product of a
//! set of low five bits and a set of high three bits: of one alphabet, such as small letters, it is any set.

use packetloom_simd::{ByteClasses, Simd};

use crate::filter::{BLOCK, Block};

const PLACES: usize = 5;
/// Places of a window, and of classes that are not exact, each of which takes longer to look up.
const FEW_PLACES: usize = 4;
/// Buckets of a group.
const BUCKETS: usize = 8;

/// Beyond so many patterns buckets are not weighed against each other, which would take long and gain nothing.
const MAX_WEIGHED: usize = 2048;

/// Of eight buckets.
pub(crate) type Group = [ByteClasses; PLACES];

/// The group of a set that has no such patterns, which is not asked.
pub(crate) const NO_GROUP: &Group =
    &[const { ByteClasses { exact: [0; 128], low: [0; 32], high: [0; 8] } }; PLACES];

#[derive(Clone, Debug)]
pub(crate) struct Classes {
    /// A bit for each bucket of a group, for each place.
    groups: Vec<Group>,
}

/// A bit for each hash of three bytes, set where a pattern begins with such.
#[derive(Clone, Debug)]
pub(crate) struct Begins(Vec<u64>);

/// Bits of a hash of three bytes.
const BEGIN_BITS: u32 = 16;

#[inline(always)]
fn hash(begin: u32) -> u32 {
    (begin << 8).wrapping_mul(0x9e37_79b1) >> (32 - BEGIN_BITS)
}

impl Begins {
    /// Of these patterns, as the text is folded.
    pub(crate) fn new(patterns: &[Vec<u8>]) -> Self {
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
        Self(begins)
    }

    /// Whether a pattern may begin with the lowest three bytes of `text`.
    #[inline(always)]
    pub(crate) fn has(&self, text: u64) -> bool {
        let bit = hash(text as u32);
        self.0[(bit >> 6) as usize] >> (bit & 63) & 1 == 1
    }
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

    /// The share of all bytes that are taken for one of the set as a product.
    fn share(&self, frequency: &[f64; 256]) -> f64 {
        let bytes = (0..=u8::MAX).zip(frequency);
        bytes.filter(|&(byte, _)| self.has(byte, false)).map(|(_, frequency)| frequency).sum()
    }

    /// Whether a byte is taken for one of the set.
    fn has(&self, byte: u8, is_exact: bool) -> bool {
        match is_exact {
            true => self.exact >> (byte & 127) & 1 == 1,
            false => self.low >> (byte & 31) & 1 == 1 && self.high >> (byte >> 5) & 1 == 1,
        }
    }
}

/// The bytes of a bucket at each place, and the share of all bytes of a text that are taken for such.
#[derive(Clone, Copy, Default)]
struct Bucket([(Set, f64); PLACES]);

impl Bucket {
    fn with(mut self, pattern: &[u8], frequency: &[f64; 256], is_exact: bool) -> Self {
        for (place, (set, share)) in self.0.iter_mut().enumerate() {
            let byte = pattern.get(place).filter(|_| is_exact || place < FEW_PLACES);
            match byte {
                Some(&byte) if set.has(byte, is_exact) => {}
                Some(&byte) => {
                    set.add(byte);
                    *share = match is_exact {
                        true => {
                            *share + frequency[usize::from(byte & 127)] + frequency[usize::from(byte | 128)]
                        }
                        false => set.share(frequency),
                    };
                }
                None => (*set, *share) = (Set::ALL, 1.0),
            }
        }
        self
    }

    /// The share of all places of a text at which it has a candidate.
    fn share(&self) -> f64 {
        self.0.iter().map(|(_, share)| share).product()
    }
}

impl Classes {
    /// For these patterns, as the text is folded, in so many groups; for instruction sets that have exact classes, or for others.
    pub(crate) fn new(patterns: &[Vec<u8>], groups: usize, is_exact: bool) -> Self {
        // Half of a text is like the patterns, half of it is anything.
        let mut frequency = [0.5 / 256.0; 256];
        let total: usize = patterns.iter().map(Vec::len).sum();
        for &byte in patterns.iter().flatten() {
            frequency[usize::from(byte)] += 0.5 / total as f64;
        }
        let mut buckets = vec![Bucket::default(); BUCKETS * groups];
        // The shortest first: they spoil a bucket for others.
        let mut order: Vec<_> = patterns.iter().collect();
        order.sort_unstable_by_key(|pattern| (pattern.len().min(PLACES), *pattern));
        for (number, pattern) in order.iter().enumerate() {
            let bucket = if patterns.len() > MAX_WEIGHED {
                number * buckets.len() / patterns.len()
            } else {
                let grown =
                    |bucket: &Bucket| bucket.with(pattern, &frequency, is_exact).share() - bucket.share();
                let all = buckets.iter().map(grown).enumerate();
                all.min_by(|a, b| a.1.total_cmp(&b.1)).expect("a bucket").0
            };
            buckets[bucket] = buckets[bucket].with(pattern, &frequency, is_exact);
        }
        let group = |group: &[Bucket]| {
            let bits = |has: &dyn Fn(&Bucket) -> bool| {
                group.iter().enumerate().fold(0, |bits, (at, bucket)| bits | u8::from(has(bucket)) << at)
            };
            std::array::from_fn(|place| ByteClasses {
                exact: std::array::from_fn(|value| bits(&|bucket| bucket.0[place].0.exact >> value & 1 == 1)),
                low: std::array::from_fn(|value| bits(&|bucket| bucket.0[place].0.low >> value & 1 == 1)),
                high: std::array::from_fn(|value| bits(&|bucket| bucket.0[place].0.high >> value & 1 == 1)),
            })
        };
        Self { groups: buckets.chunks(BUCKETS).map(group).collect() }
    }

    /// The groups.
    pub(crate) fn groups(&self) -> &[Group] {
        &self.groups
    }
}

/// The classes of a group as blocks are looked at: by value, so that they stay in registers.
#[derive(Clone, Copy)]
pub(crate) struct ClassesView<'a, S: Simd>([S::Classes<'a>; FEW_PLACES], S::Classes<'a>);

impl<'a, S: Simd> ClassesView<'a, S> {
    #[inline(always)]
    pub(crate) fn new(simd: S, [a, b, c, d, e]: &'a Group) -> Self {
        let few = [simd.load_classes(a), simd.load_classes(b), simd.load_classes(c), simd.load_classes(d)];
        Self(few, simd.load_classes(e))
    }

    /// The bytes of a block at which a pattern may begin, a bit each.
    #[inline(always)]
    pub(crate) fn pass<B: Block<S>>(self, simd: S, block: B) -> u64 {
        let mut mask = 0;
        for first in (0..BLOCK).step_by(S::LANES * 4) {
            let mut buckets = self.of_few_places(simd, block, first);
            if S::CLASSES_ARE_EXACT {
                buckets = simd.and(buckets, simd.classes(self.1, block.load(simd, first + FEW_PLACES)));
            }
            mask |= simd.nonzero_bytes(buckets) << first;
        }
        mask
    }

    /// The buckets of a vector's bytes by the first four places.
    #[inline(always)]
    fn of_few_places<B: Block<S>>(self, simd: S, block: B, first: usize) -> S::V {
        let [a, b, c, d] = self.0;
        let front =
            simd.and(simd.classes(a, block.load(simd, first)), simd.classes(b, block.load(simd, first + 1)));
        let back = simd
            .and(simd.classes(c, block.load(simd, first + 2)), simd.classes(d, block.load(simd, first + 3)));
        simd.and(front, back)
    }
}

/// The bytes of a block at which a window of these groups may begin, a bit each.
#[inline(always)]
pub(crate) fn pass_all<S: Simd, B: Block<S>>(groups: &[Group], simd: S, block: B) -> u64 {
    let mut mask = 0;
    for first in (0..BLOCK).step_by(S::LANES * 4) {
        let mut any = simd.splat(0);
        for group in groups {
            any = simd.or(any, ClassesView::new(simd, group).of_few_places(simd, block, first));
        }
        mask |= simd.nonzero_bytes(any) << first;
    }
    mask
}
