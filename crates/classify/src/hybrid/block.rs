//! A few packets side by side, field by field, as vector instructions want them.

use super::family::Family;
use super::state::States;
use crate::simd::{MAX_LANES, Simd};

/// Packets of a block: enough that the memory accesses of one step overlap, few enough that all columns stay in the L1 cache.
pub(super) const BLOCK: usize = 128;
const _: () = assert!(BLOCK.is_multiple_of(MAX_LANES));

/// One word of each packet.
pub(super) type Column = [u32; BLOCK];

/// Keys, by column. What stands beyond `len` is left over from earlier blocks.
pub(super) struct Block {
    pub(super) len: usize,
    /// The words of the source address, then those of the destination, the highest first.
    pub(super) addresses: [Column; 8],
    /// The source port in the low half, the destination port in the high one.
    pub(super) ports: Column,
    /// The state word.
    pub(super) state: Column,
}

impl Block {
    /// Of no packets.
    pub(super) const fn new() -> Self {
        Self { len: 0, addresses: [[0; BLOCK]; 8], ports: [0; BLOCK], state: [0; BLOCK] }
    }

    /// Takes at most [`BLOCK`] keys.
    #[inline(always)]
    pub(super) fn load<K: Family, S: Simd>(&mut self, simd: S, keys: &[K], states: &States) {
        self.len = keys.len().min(BLOCK);
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

    /// Writes one vector of the columns that both families have.
    #[inline(always)]
    pub(super) fn set<S: Simd>(&mut self, simd: S, at: usize, ports: S::V, last: S::V, states: &States) {
        simd.store(ports, &mut self.ports[at..]);
        simd.store(states.of(simd, last), &mut self.state[at..]);
    }
}
