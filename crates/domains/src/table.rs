//! The names of a set, in buckets by their hashes.
//!
//! All names are in one list of bytes, those of a bucket side by side, and of a bucket no more is kept than where it begins: a name that is
//! there costs two cache misses, one of them in a small array.

use packetloom_memory::{prefetch_address, prefetch_at};

use crate::builder::{Action, Priority};
use crate::hash::scale;

/// What an entry says.
#[derive(Clone, Copy)]
pub(crate) struct Verdict {
    pub(crate) number: u32,
    pub(crate) action: Action,
    pub(crate) priority: Priority,
}

/// What entries of one name say: of itself, and of the names below.
#[derive(Clone, Copy, Default)]
pub(crate) struct Node {
    pub(crate) exact: Option<Verdict>,
    pub(crate) below: Option<Verdict>,
}

/// Bytes of the second number that a name may have. In front of it are a byte of its hash, its length, its kind, and a number.
const SECOND: usize = 4;

/// Which verdicts a node has, in the low bits of its kind; [`of_verdict`] of both follow, in three bits each.
const EXACT: u8 = 0;
const BELOW: u8 = 1;
/// Both, and they are one.
const SAME: u8 = 2;
const BOTH: u8 = 3;

fn of_verdict(verdict: Verdict) -> u8 {
    verdict.action as u8 | (verdict.priority as u8) << 1
}

#[inline(always)]
fn verdict(bits: u8, number: u32) -> Verdict {
    let action = if bits & 1 == 0 { Action::Block } else { Action::Allow };
    Verdict { number, action, priority: Priority::ALL[usize::from(bits >> 1 & 3)] }
}

/// What names are sorted by to come in the order of their buckets.
pub(crate) const fn bucket_order(hash: u64) -> u64 {
    hash.rotate_left(32)
}

/// The byte of a hash that is kept with its name: one that chooses no bucket.
#[inline(always)]
const fn tag(hash: u64) -> u8 {
    (hash >> 56) as u8
}

/// Names and what is said of them.
#[derive(Clone, Copy)]
pub(crate) struct Table<'a> {
    /// Where each bucket begins, and where the last one ends: as many buckets as names.
    pub(crate) buckets: &'a [u32],
    pub(crate) nodes: &'a [u8],
}

impl Table<'_> {
    #[inline(always)]
    fn bucket(self, hash: u64) -> usize {
        scale(hash as u32, self.buckets.len() - 1)
    }

    /// Asks for where the bucket of a hash is.
    #[inline(always)]
    pub(crate) fn prefetch_bucket(self, hash: u64) {
        prefetch_at(self.buckets, self.bucket(hash));
    }

    /// Asks for the bucket of a hash.
    #[inline(always)]
    pub(crate) fn prefetch_nodes(self, hash: u64) {
        let begin = self.nodes.as_ptr().wrapping_add(self.buckets[self.bucket(hash)] as usize);
        prefetch_address(begin);
        prefetch_address(begin.wrapping_add(64));
    }

    /// What is said of a name itself, or of those below. `is_name` is asked of names with as many bytes.
    #[inline(always)]
    pub(crate) fn find(
        self,
        hash: u64,
        bytes: usize,
        exact: bool,
        is_name: impl Fn(&[u8]) -> bool,
    ) -> Option<Verdict> {
        let bucket = self.bucket(hash);
        let end = self.buckets[bucket + 1] as usize;
        let mut nodes = &self.nodes[self.buckets[bucket] as usize..end];
        while let [tag_of, len, kind, a, b, c, d, rest @ ..] = nodes {
            let has_second = kind & 3 == BOTH;
            let second = if has_second { SECOND } else { 0 };
            let (own, others) = rest.split_at_checked(second + usize::from(*len))?;
            if *tag_of == tag(hash) && usize::from(*len) == bytes && is_name(&own[second..]) {
                // A bit for each kind that has a verdict. There are few branches: which names are asked for is not to be foreseen.
                let (kinds, bits): (u8, _) = if exact {
                    (1 << EXACT | 1 << SAME | 1 << BOTH, kind >> 2)
                } else {
                    (1 << BELOW | 1 << SAME | 1 << BOTH, kind >> 5)
                };
                let first = u32::from_le_bytes([*a, *b, *c, *d]);
                let number = match own.first_chunk() {
                    Some(second) if has_second && !exact => u32::from_le_bytes(*second),
                    _ => first,
                };
                return (kinds >> (kind & 3) & 1 == 1).then(|| verdict(bits, number));
            }
            nodes = others;
        }
        None
    }
}

/// What a set has beside its arrays.
#[derive(Clone, Copy, Default)]
pub(crate) struct Totals {
    /// What is said of the root, which is in no bucket.
    pub(crate) root: Node,
    /// For each priority, a bit for each number of labels for which there is an entry of this priority or a higher one.
    depths: [[u64; 2]; 4],
    /// Names with entries.
    pub(crate) names: usize,
    /// Names of the bucket with the most of them.
    pub(crate) max_bucket: usize,
}

impl Totals {
    /// Whether an entry of this priority or a higher one has a name of so many labels, up to 127.
    #[inline(always)]
    pub(crate) const fn has(&self, priority: Priority, labels: usize) -> bool {
        self.depths[priority as usize][labels / 64 % 2] >> (labels % 64) & 1 == 1
    }

    /// Whether there is an entry of this priority or a higher one.
    #[inline(always)]
    pub(crate) fn has_any(&self, priority: Priority) -> bool {
        self.depths[priority as usize] != [0; 2]
    }

    /// The most labels that an entry has, up to `labels` of them, 31 at most.
    #[inline(always)]
    pub(crate) const fn deepest(&self, labels: usize) -> Option<usize> {
        let depths = self.depths[0][0] as u32 & !(!0 << 1 << labels);
        if depths == 0 { None } else { Some(31 - depths.leading_zeros() as usize) }
    }
}

/// A table that names are put into.
pub(crate) struct Making {
    /// How many buckets there will be.
    count: usize,
    pub(crate) buckets: Vec<u32>,
    pub(crate) nodes: Vec<u8>,
    pub(crate) totals: Totals,
    in_bucket: usize,
}

impl Making {
    /// For so many names of so many bytes, with what is in front of each.
    pub(crate) fn new(names: usize, bytes: usize) -> Self {
        // The end of the last bucket is not its own.
        let mut buckets = Vec::with_capacity(names.max(1) + 1);
        buckets.push(0);
        let nodes = Vec::with_capacity(bytes);
        Self { count: names.max(1), buckets, nodes, totals: Totals::default(), in_bucket: 0 }
    }

    /// Takes a name of so many labels, in the order of [`bucket_order`].
    pub(crate) fn push(&mut self, hash: u64, name: &[u8], labels: usize, node: Node) {
        for verdict in node.exact.iter().chain(&node.below) {
            for depths in &mut self.totals.depths[..=verdict.priority as usize] {
                depths[labels / 64 % 2] |= 1 << (labels % 64);
            }
        }
        let (kind, number, second) = match (node.exact, node.below) {
            (None, None) => return,
            (Some(exact), None) => (EXACT | of_verdict(exact) << 2, exact.number, None),
            (None, Some(below)) => (BELOW | of_verdict(below) << 5, below.number, None),
            (Some(exact), Some(below)) => {
                let is_same = exact.number == below.number;
                let kind = if is_same { SAME } else { BOTH };
                let kind = kind | of_verdict(exact) << 2 | of_verdict(below) << 5;
                (kind, exact.number, (!is_same).then_some(below.number))
            }
        };
        self.totals.names += 1;
        if labels == 0 {
            self.totals.root = node;
            return;
        }
        self.begin_buckets(scale(hash as u32, self.count) + 1);
        self.in_bucket += 1;
        self.totals.max_bucket = self.totals.max_bucket.max(self.in_bucket);
        self.nodes.extend([tag(hash), name.len() as u8, kind]);
        self.nodes.extend(number.to_le_bytes());
        if let Some(second) = second {
            self.nodes.extend(second.to_le_bytes());
        }
        self.nodes.extend(name);
    }

    /// Begins buckets until there are so many beginnings.
    fn begin_buckets(&mut self, beginnings: usize) {
        while self.buckets.len() < beginnings {
            // Names of entries are limited to what 32 bits count.
            self.buckets.push(self.nodes.len() as u32);
            self.in_bucket = 0;
        }
    }

    /// The end.
    pub(crate) fn finish(&mut self) {
        self.begin_buckets(self.count + 1);
    }
}
