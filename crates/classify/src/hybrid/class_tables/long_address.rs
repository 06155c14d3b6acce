//! From IPv6 addresses to the classes of their longest prefixes: a few tables by some bits, and one comparison at the end.
//!
//! A level looks at the bits that tell most prefixes apart, wherever they are, and its nodes hold those that it does not tell
//! apart for the next one. What is left is one prefix and those that hold it. The address may differ from it in bits that nobody
//! looked at (PATRICIA, Morrison 1968); but no other prefix can hold it, and how many leading bits it has in common with the longest
//! one says which of them do.

use std::collections::{BTreeMap, HashMap};
use std::iter;

use bytemuck::{Pod, Zeroable};
use foldhash::fast::RandomState;
use packetloom_packet::key::halves;

use super::Column;
use crate::huge::{Place, Slab, Tables};
use crate::hybrid::block::{Block, EMPTY};
use crate::hybrid::entry::Prefix;
use crate::hybrid::family::Family;
use packetloom_simd::{MAX_LANES, Simd};

/// The tables.
#[derive(Debug)]
pub(super) struct LongAddressMap {
    levels: Vec<Level>,
    /// The last is padding.
    leaves: Slab<Leaf>,
    /// For each leaf that has not all prefixes, the leaf of the next one.
    beyond: Slab<u32>,
    /// Words of an address that prefixes reach into.
    words: usize,
}

/// Nodes of as many cells each as the bits that the level looks at have values.
#[derive(Debug)]
struct Level {
    bits: Bits,
    /// The number of a leaf, or that of a node of the next level and the number of leaves.
    cells: Slab<u16>,
}

/// Levels at most.
const MAX_LEVELS: usize = 8;
/// Bits of a level at most.
const MAX_BITS: u32 = 16;
/// Prefixes that are looked at to choose bits.
const SAMPLE: usize = 4096;
/// Another bit must leave no more of the pairs of prefixes together than this, or it is not worth twice the cells.
const WORTH: f64 = 0.9;
/// But so many cells of a level are too few to care.
const FREE_CELLS: usize = 1 << 13;
/// Cells that may be written for a level, once for each prefix that they may hold.
const MAX_WORK: usize = 1 << 24;

/// Some bits of an address, brought together.
#[derive(Clone, Debug)]
struct Bits {
    runs: Vec<Run>,
    count: u32,
}

/// Bits side by side.
#[derive(Clone, Copy, Debug)]
struct Run {
    /// The word of the address.
    word: usize,
    right: u32,
    mask: u32,
    left: u32,
}

impl Bits {
    /// The bits with these numbers, 0 being the highest.
    fn new(mut numbers: Vec<u8>) -> Self {
        numbers.sort_unstable();
        let count = numbers.len() as u32;
        let mut runs: Vec<Run> = Vec::new();
        let mut left = count;
        for run in numbers.chunk_by(|a, b| a + 1 == *b && a / 32 == b / 32) {
            left -= run.len() as u32;
            let last = run[run.len() - 1];
            runs.push(Run {
                word: usize::from(last / 32),
                right: 31 - u32::from(last % 32),
                mask: u32::MAX >> (32 - run.len()),
                left,
            });
        }
        Self { runs, count }
    }

    /// Those of an address.
    fn of(&self, address: u128) -> usize {
        let run = |run: &Run| ((address >> (96 - 32 * run.word)) as u32 >> run.right & run.mask) << run.left;
        self.runs.iter().map(run).sum::<u32>() as usize
    }

    /// Those of all addresses of a prefix.
    fn values(&self, prefix: Prefix) -> impl Iterator<Item = usize> {
        let (fixed, wild) = (self.of(prefix.address), self.of(!Prefix::mask(prefix.len)));
        // The next subset of the wild bits, until it is the empty one again.
        let next = move |&subset: &usize| Some(subset.wrapping_sub(wild) & wild).filter(|&next| next != 0);
        iter::successors(Some(0), next).map(move |subset| fixed | subset)
    }
}

/// Prefixes of a leaf, less the one of length 0.
const CHAIN: usize = 4;

/// Vectors of fewer lanes than this are not worth their gathers.
const WIDE: usize = 16;

/// A leaf's place in words, and in it those of the lengths and, in half words, of the classes.
const LEAF_WORDS: usize = size_of::<Leaf>() / 4;
const LENS_WORD: u32 = (std::mem::offset_of!(Leaf, lens) / 4) as u32;
const CLASSES_HALF: u32 = (std::mem::offset_of!(Leaf, classes) / 2) as u32;
const _: () = assert!(LEAF_WORDS.is_power_of_two());

/// The same byte four times.
const EACH: u32 = 0x0101_0101;

/// A prefix and the next longer ones that hold it.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C, align(32))]
struct Leaf {
    /// Of the longest.
    address: [u64; 2],
    /// Their lengths less one, the longest first; where there are less, zeros.
    lens: [u8; CHAIN],
    /// 1 where there are others between them and the prefix of length 0.
    more: u16,
    /// Their classes, and after them that of the prefix of length 0.
    classes: [u16; CHAIN + 1],
}

impl LongAddressMap {
    /// The map of prefixes, each with the class of what is in it and in no longer one, sorted by address and then by length, the
    /// first of them the one of length 0. `None` where it would take more than `room` cells or too many levels.
    pub(super) fn new(prefixes: &[(Prefix, u16)], room: usize) -> Option<Self> {
        let mut leaves = Vec::with_capacity(prefixes.len());
        let mut beyond = Vec::with_capacity(prefixes.len());
        // The prefixes that hold the one at hand, the longest last.
        let mut holding: Vec<usize> = Vec::new();
        for (number, &(prefix, _)) in prefixes.iter().enumerate() {
            while holding.last().is_some_and(|&other| !prefixes[other].0.covers(prefix)) {
                holding.pop();
            }
            holding.push(number);
            // The first of them is that of length 0.
            let mut chain = holding[1..].iter().rev();
            let mut leaf = Leaf {
                address: halves(prefix.address),
                lens: [0; CHAIN],
                more: 0,
                classes: [prefixes[0].1; CHAIN + 1],
            };
            for (at, &number) in chain.by_ref().take(CHAIN).enumerate() {
                leaf.lens[at] = prefixes[number].0.len - 1;
                leaf.classes[at] = prefixes[number].1;
            }
            let next = chain.next();
            leaf.more = next.is_some().into();
            leaves.push(leaf);
            beyond.push(next.map_or(0, |&next| next as u32));
        }
        leaves.push(Leaf::zeroed());
        let prefixes: Vec<Prefix> = prefixes.iter().map(|&(prefix, _)| prefix).collect();
        let longest = prefixes.iter().map(|prefix| prefix.len).max().unwrap_or(0);
        Some(Self {
            levels: levels(&prefixes, room)?,
            leaves: leaves.into(),
            beyond: beyond.into(),
            words: usize::from(longest).div_ceil(32),
        })
    }

    #[inline(always)]
    pub(super) fn classify<K: Family, S: Simd>(
        &self,
        simd: S,
        block: &Block,
        keys: &[K],
        side: usize,
        classes: &mut Column,
    ) {
        let columns = &block.addresses[side * K::WORDS..];
        let (leaves, beyond) = (&self.leaves[..], &self.beyond[..]);
        // The one node of the first level; its number is that of the padding.
        let root = leaves.len() as u32 - 1;
        classes[..block.len].fill(root);
        let below = simd.splat(root - 1);
        let mut bits = EMPTY;
        for level in &self.levels {
            bits[..block.len].fill(0);
            for run in &level.bits.runs {
                let (column, mask) = (&columns[run.word], simd.splat(run.mask));
                for at in (0..block.len).step_by(S::LANES) {
                    let run =
                        simd.shl(simd.and(simd.shr(simd.load(&column[at..]), run.right), mask), run.left);
                    simd.store(simd.or(simd.load(&bits[at..]), run), &mut bits[at..]);
                }
            }
            let cells = &level.cells[..];
            let mut nodes = 0;
            for at in (0..block.len).step_by(S::LANES) {
                let before = simd.load(&classes[at..]);
                // The number of the node and one, or 0 for a leaf, which stays.
                let node = simd.sub(simd.max(before, below), below);
                let is_node = simd.sub(simd.splat(0), simd.min(node, simd.splat(1)));
                let first = simd.shl(simd.sub(node, simd.splat(1)), level.bits.count);
                let index = simd.and(simd.add(first, simd.load(&bits[at..])), is_node);
                let after = simd.gather16(cells, index);
                let changes = simd.and(simd.xor(before, after), is_node);
                let after = simd.xor(before, changes);
                simd.store(after, &mut classes[at..]);
                nodes |= simd.high_bits(simd.sub(below, after));
            }
            if nodes == 0 {
                // What is left to tell apart is rare.
                break;
            }
        }
        if S::LANES < WIDE {
            // So few at a time are no faster than one.
            for (&packet, number) in block.packets[..block.len].iter().zip(classes.iter_mut()) {
                let key = &keys[packet as usize];
                *number = class(leaves, beyond, [key.half(side, 0), key.half(side, 1)], *number as usize);
            }
        } else {
            self.classes_of_leaves(simd, block, keys, side, classes);
        }
    }

    /// From leaves to classes, a vector at a time.
    #[inline(always)]
    fn classes_of_leaves<K: Family, S: Simd>(
        &self,
        simd: S,
        block: &Block,
        keys: &[K],
        side: usize,
        classes: &mut Column,
    ) {
        let columns = &block.addresses[side * K::WORDS..];
        let leaves = &self.leaves[..];
        let (words, halves): (&[u32], &[u16]) = (bytemuck::cast_slice(leaves), bytemuck::cast_slice(leaves));
        for at in (0..block.len).step_by(S::LANES) {
            let leaf = simd.load(&classes[at..]);
            // Leading bits that an address and that of its leaf have in common.
            let mut common = simd.splat(0);
            let mut equal = simd.splat(u32::MAX);
            for (word, column) in columns[..self.words].iter().enumerate() {
                // Of a half, the lower word comes first.
                let index = simd.add(simd.shl(leaf, LEAF_WORDS.ilog2()), simd.splat(word as u32 ^ 1));
                let differs = simd.xor(simd.load(&column[at..]), simd.gather(words, index));
                let zeros = simd.and(simd.leading_zeros(differs), equal);
                common = simd.add(common, zeros);
                equal = simd.sub(simd.splat(0), simd.shr(zeros, 5));
            }
            let lens =
                simd.gather(words, simd.add(simd.shl(leaf, LEAF_WORDS.ilog2()), simd.splat(LENS_WORD)));
            let rest = simd.mul(simd.sub(simd.splat(128), common), simd.splat(EACH));
            // The top bit of each byte whose prefix is longer than that: as many classes are passed by.
            let longer = simd.and(simd.shr(simd.add(lens, rest), 7), simd.splat(EACH));
            let passed = simd.shr(simd.mul(longer, simd.splat(EACH)), 24);
            let first = simd.add(simd.shl(leaf, LEAF_WORDS.ilog2() + 1), simd.splat(CLASSES_HALF));
            simd.store(simd.gather16(halves, simd.add(first, passed)), &mut classes[at..]);
            let mut all = simd.eq(passed, simd.splat(CHAIN as u32));
            if all != 0 {
                let mut numbers = [0; MAX_LANES];
                simd.store(leaf, &mut numbers);
                while all != 0 {
                    let lane = all.trailing_zeros() as usize;
                    all &= all - 1;
                    // Past the last packet, there is something that nobody asks for.
                    if let Some(key) = keys.get(block.packets[at + lane] as usize) {
                        let address = [key.half(side, 0), key.half(side, 1)];
                        classes[at + lane] = class(leaves, &self.beyond, address, numbers[lane] as usize);
                    }
                }
            }
        }
    }

    /// Bytes held.
    pub(super) fn memory(&self) -> usize {
        let cells: usize = self.levels.iter().map(|level| size_of_val(&level.cells[..])).sum();
        cells + size_of_val(&self.leaves[..]) + size_of_val(&self.beyond[..])
    }
}

/// The class of an address, from its leaf and those beyond.
#[inline(always)]
fn class(leaves: &[Leaf], beyond: &[u32], address: [u64; 2], mut at: usize) -> u32 {
    loop {
        let leaf = &leaves[at];
        let (high, low) = (address[0] ^ leaf.address[0], address[1] ^ leaf.address[1]);
        let below = 64 + low.leading_zeros();
        let common = if high == 0 { below } else { high.leading_zeros() };
        // The top bit of each byte whose prefix is longer than that.
        let longer = (u32::from_le_bytes(leaf.lens) + EACH * (128 - common)) & (EACH << 7);
        let passed = longer.count_ones() as usize;
        if passed < CHAIN || leaf.more == 0 {
            return leaf.classes[passed].into();
        }
        // Seldom: so many prefixes hold each other, and the address is in none of the longer ones.
        at = beyond[at] as usize;
    }
}

impl Tables for LongAddressMap {
    fn each(&mut self, visit: &mut dyn FnMut(&mut dyn Place)) {
        for level in &mut self.levels {
            visit(&mut level.cells);
        }
        visit(&mut self.leaves);
        visit(&mut self.beyond);
    }
}

/// Numbers of prefixes, in order.
type Group = Vec<u16>;

/// Makes one level after another, until no two prefixes that go separate ways are left together.
fn levels(prefixes: &[Prefix], mut room: usize) -> Option<Vec<Level>> {
    let mut groups: Vec<Group> = vec![(0..prefixes.len() as u16).collect()];
    let mut levels = Vec::new();
    while !groups.is_empty() {
        if levels.len() == MAX_LEVELS {
            return None;
        }
        let bits = choose(prefixes, &groups, room);
        let size = 1usize << bits.count;
        // What a vector instruction reads beyond the last.
        let mut cells = vec![0; groups.len() * size + 1];
        room = room.checked_sub(cells.len())?;
        let mut below: HashMap<Group, u16, RandomState> = HashMap::default();
        let mut next: Vec<Group> = Vec::new();
        let mut work = MAX_WORK;
        for (group, cells) in groups.iter().zip(cells.chunks_exact_mut(size)) {
            work = work.checked_sub(group.iter().map(|&number| values(&bits, prefixes, number)).sum())?;
            let mut mixed = vec![false; size];
            for &number in group {
                let prefix = prefixes[usize::from(number)];
                for value in bits.values(prefix) {
                    // At first every cell has the prefix of length 0.
                    mixed[value] |= !prefixes[usize::from(cells[value])].covers(prefix);
                    cells[value] = number;
                }
            }
            // Those that are together still, in order, so that equal rules make equal tables.
            let mut together: BTreeMap<usize, Group> = BTreeMap::new();
            for &number in group {
                for value in bits.values(prefixes[usize::from(number)]).filter(|&value| mixed[value]) {
                    together.entry(value).or_default().push(number);
                }
            }
            for (value, group) in together {
                let node = match below.get(&group) {
                    Some(&node) => node,
                    None => {
                        let node = u16::try_from(prefixes.len() + next.len()).ok()?;
                        next.push(group.clone());
                        below.insert(group, node);
                        node
                    }
                };
                cells[value] = node;
            }
        }
        levels.push(Level { bits, cells: cells.into() });
        groups = next;
    }
    Some(levels)
}

/// Values that the bits have in a prefix.
fn values(bits: &Bits, prefixes: &[Prefix], number: u16) -> usize {
    1 << bits.of(!Prefix::mask(prefixes[usize::from(number)].len)).count_ones()
}

/// The bits by which most of the prefixes are told apart from others of their group: one after another, the best first.
fn choose(prefixes: &[Prefix], groups: &[Group], room: usize) -> Bits {
    // Prefixes that hold no other one of their group, which need not be told apart from those, and the numbers of the groups. Some
    // drawn evenly: groups, or of a single one its prefixes.
    let total: usize = groups.iter().map(Vec::len).sum();
    let share = total.div_ceil(SAMPLE).max(1);
    let (of_groups, of_prefixes) = if groups.len() > 1 { (share, 1) } else { (1, share) };
    let mut items: Vec<(Prefix, u32)> = Vec::new();
    for (group, number) in groups.iter().step_by(of_groups).zip(0..) {
        let prefix = |number: u16| prefixes[usize::from(number)];
        let alone =
            |at: &usize| group.get(at + 1).is_none_or(|&next| !prefix(group[*at]).covers(prefix(next)));
        let alone = (0..group.len()).filter(alone).step_by(of_prefixes);
        items.extend(alone.map(|at| (prefix(group[at]), number)));
    }
    // Cells that are empty cost memory; those of the first level are shared by all.
    let spare = if groups.len() > 1 { 3 } else { 5 };
    let free = (FREE_CELLS / groups.len()).max(1).ilog2();
    let most = ((total / groups.len()).max(1).ilog2() + spare).max(free).min(MAX_BITS);
    let most = most.min((room / groups.len()).max(2).ilog2());
    let mut parts = groups.len();
    let mut bits: Vec<u8> = Vec::new();
    let mut together = f64::MAX;
    let mut sizes: Vec<[u32; 2]> = Vec::new();
    while (bits.len() as u32) < most.max(1) {
        // Pairs that are in one part still.
        let mut best = (f64::MAX, 0);
        for bit in (0..128).filter(|bit| !bits.contains(bit)) {
            sizes.clear();
            sizes.resize(parts, [0; 2]);
            for &(prefix, part) in &items {
                let size = &mut sizes[part as usize];
                if bit < prefix.len {
                    size[(prefix.address >> (127 - bit) & 1) as usize] += 1;
                } else {
                    size[0] += 1;
                    size[1] += 1;
                }
            }
            let pairs = |&size: &u32| f64::from(size) * f64::from(size.saturating_sub(1));
            let pairs: f64 = sizes.as_flattened().iter().map(pairs).sum();
            best = if pairs < best.0 { (pairs, bit) } else { best };
        }
        if bits.len() as u32 >= free.max(1) && best.0 > WORTH * together {
            break;
        }
        (together, _) = best;
        let bit = best.1;
        bits.push(bit);
        // Parts with one prefix are done with.
        let mut numbers: HashMap<u32, u32, RandomState> = HashMap::default();
        let mut split: Vec<(Prefix, u32)> = Vec::with_capacity(items.len());
        for &(prefix, part) in &items {
            let value = (prefix.address >> (127 - bit) & 1) as u32;
            split.push((prefix, 2 * part + value));
            if bit >= prefix.len {
                split.push((prefix, 2 * part + 1));
            }
        }
        let mut count: HashMap<u32, u32, RandomState> = HashMap::default();
        split.iter().for_each(|(_, part)| *count.entry(*part).or_default() += 1);
        split.retain(|(_, part)| count[part] > 1);
        for (_, part) in &mut split {
            let next = numbers.len() as u32;
            *part = *numbers.entry(*part).or_insert(next);
        }
        parts = numbers.len();
        items = split;
        if items.is_empty() {
            break;
        }
    }
    Bits::new(bits)
}
