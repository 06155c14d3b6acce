//! A few packets side by side, field by field, as vector instructions want them.

use super::family::Family;
use super::state::States;
use crate::NO_RULE;
use packetloom_simd::{MAX_LANES, MIN_LANES, Simd};

/// Packets that are loaded at once: enough that the memory accesses of one step overlap, few enough that all columns stay in the L1
/// cache.
pub(super) const LOAD: usize = 128;
/// Packets of a block at most: what is left over from several loads can be collected.
pub(super) const BLOCK: usize = 256;
const _: () = assert!(LOAD.is_multiple_of(MAX_LANES) && LOAD < BLOCK && BLOCK.is_multiple_of(MAX_LANES));

/// One word of each packet, and room for a vector past them.
pub(super) type Column = [u32; BLOCK + MAX_LANES];

/// Of no packets.
pub(super) const EMPTY: Column = [0; BLOCK + MAX_LANES];

/// Keys that are classified together, over several blocks, at most.
pub(super) const ROUND: usize = 1024;

/// The best position yet of each of them; and room for a vector past them.
pub(super) type Best = [u32; ROUND + MAX_LANES];

/// Of no packets.
pub(super) const NO_BEST: Best = [NO_RULE; ROUND + MAX_LANES];

/// A bit for each packet of a block, a word for each vector of them.
pub(super) type Masks = [u32; BLOCK / MIN_LANES];

/// Of no packets.
pub(super) const NO_MASKS: Masks = [0; BLOCK / MIN_LANES];

/// Keys, by column. What stands beyond `len` is left over from earlier ones.
pub(super) struct Block {
    pub(super) len: usize,
    /// Whether they are in the order of the keys, without gaps.
    pub(super) in_order: bool,
    /// Which of the keys they are.
    pub(super) packets: Column,
    /// The words of the source address, then those of the destination, the highest first.
    pub(super) addresses: [Column; 8],
    /// The source port in the low half, the destination port in the high one.
    pub(super) ports: Column,
    /// The state word.
    pub(super) state: Column,
}

/// A mask of `count` lanes, or of all.
#[inline(always)]
pub(super) fn lanes_below(count: usize) -> u32 {
    if count >= 32 { u32::MAX } else { (1 << count) - 1 }
}

/// The lesser of two, without a branch, which would be wrong half of the time: the compiler makes one of `min`, and of
/// `select_unpredictable` too where it finds that it is a `min`.
#[inline(always)]
pub(super) fn lesser(a: u32, b: u32) -> u32 {
    let difference = i64::from(b) - i64::from(a);
    (i64::from(a) + (difference & difference >> 63)) as u32
}

impl Block {
    /// Of no packets.
    pub(super) const fn new() -> Self {
        Self { len: 0, in_order: false, packets: EMPTY, addresses: [EMPTY; 8], ports: EMPTY, state: EMPTY }
    }

    /// Takes at most [`LOAD`] keys, the first of which has this number.
    #[inline(always)]
    pub(super) fn load<K: Family, S: Simd>(&mut self, simd: S, first: usize, keys: &[K], states: &States) {
        self.len = keys.len().min(LOAD);
        self.in_order = true;
        for (number, packet) in self.packets[..LOAD].iter_mut().enumerate() {
            *packet = (first + number) as u32;
        }
        let mut groups = keys[..self.len].chunks_exact(S::LANES);
        let mut at = 0;
        for group in &mut groups {
            K::columns(simd, group, self, at, states);
            at += S::LANES;
        }
        let rest = groups.remainder();
        if !rest.is_empty() {
            let mut padded = [K::zeroed(); MAX_LANES];
            padded[..rest.len()].copy_from_slice(rest);
            K::columns(simd, &padded[..S::LANES], self, at, states);
        }
    }

    /// Takes the packets of these masks from another block; there is room for all of them.
    #[inline(always)]
    pub(super) fn append<K: Family, S: Simd>(&mut self, simd: S, other: &Self, masks: &Masks) {
        self.in_order = false;
        let mut len = self.len;
        for (at, &mask) in (0..other.len).step_by(S::LANES).zip(masks) {
            for (from, to) in other.addresses[..2 * K::WORDS].iter().zip(&mut self.addresses) {
                simd.compress(simd.load(&from[at..]), mask, &mut to[len..]);
            }
            simd.compress(simd.load(&other.packets[at..]), mask, &mut self.packets[len..]);
            simd.compress(simd.load(&other.ports[at..]), mask, &mut self.ports[len..]);
            len += simd.compress(simd.load(&other.state[at..]), mask, &mut self.state[len..]);
        }
        self.len = len;
    }

    /// The best positions of a vector of packets.
    #[inline(always)]
    pub(super) fn best<S: Simd>(&self, simd: S, at: usize, best: &Best) -> S::V {
        if self.in_order {
            simd.load(&best[self.packets[0] as usize + at..])
        } else {
            simd.gather(best, simd.load(&self.packets[at..]))
        }
    }

    /// Writes one vector of the columns that both families have.
    #[inline(always)]
    pub(super) fn set<S: Simd>(&mut self, simd: S, at: usize, ports: S::V, last: S::V, states: &States) {
        simd.store(ports, &mut self.ports[at..]);
        simd.store(states.of(simd, last), &mut self.state[at..]);
    }
}
