#![doc = include_str!("README.md")]

mod build;
mod mask;
mod mutable;

use super::block::{BLOCK, Best, Block, Column, lanes_below};
use super::family::{Family, RuleLine};
use super::state::States;
use crate::huge::{Place, Slab, Tables};
use packetloom_memory::prefetch;
use packetloom_simd::{MAX_LANES, Simd};

pub(super) use build::build;
use mask::Mask;
pub(super) use mutable::{Keeper, Slots, Write};

/// Lines of a cell at most.
const MAX_LINES: usize = 4;
/// Bits of a line's index; above them, while a list is being made, stands the packet's index in its block.
const LINE_BITS: u32 = 24;
const LINE: u32 = (1 << LINE_BITS) - 1;
const _: () = assert!(BLOCK <= 1 << (32 - LINE_BITS));

/// Matches any tag.
const ANY_TAG: u32 = 1 << 31;
/// Lines after the first, two bits.
const MORE_SHIFT: u32 = 29;

/// A table of more cells than this is not in the L2 cache: its cells are fetched ahead.
const FAR_CELLS: usize = 1 << 13;
/// Likewise for lines.
const FAR_LINES: usize = 1 << 9;

/// Odd constants with bits spread evenly, one for each word of a masked key: addresses, ports, state.
const MULTIPLIERS: [u32; 10] = [
    0x9e37_79b1,
    0x85eb_ca77,
    0xc2b2_ae3d,
    0x27d4_eb2f,
    0x1656_67b1,
    0xd3a2_646d,
    0xfd70_46c5,
    0xb55a_4f09,
    0xa24b_aed5,
    0x94d0_49bb,
];
const FINAL_MULTIPLIER: u32 = 0x9fb2_1c65;

/// The last steps of the hash: all bits of the sum become bits of the index (the top) and of the tag (the bottom).
fn finish(sum: u32) -> u32 {
    let hash = (sum ^ sum >> 16).wrapping_mul(FINAL_MULTIPLIER);
    hash ^ hash >> 13
}

/// The bits of a cell's tag.
fn tag_mask(line_bits: u32) -> u32 {
    (1 << (MORE_SHIFT - line_bits)) - 1
}

/// The word of a cell with one key, whose hash this is, or several, and `lines` lines from `first` on.
fn cell_word(hash: u32, one_key: bool, first: u32, lines: u32, line_bits: u32) -> u32 {
    let any_tag = if one_key { 0 } else { ANY_TAG };
    any_tag | (lines - 1) << MORE_SHIFT | (hash & tag_mask(line_bits)) << line_bits | first
}

/// Rules hashed by those bits of a key that all of them fix.
#[derive(Debug)]
pub(super) struct Table<K: Family> {
    /// Masks of the words of a key: addresses, then ports, then state.
    masks: [u32; 10],
    /// From a hash to its cell.
    shift: u32,
    /// Bits of a line's index in the cells of this table; the tag stands above.
    line_bits: u32,
    /// The most lines of a cell after the first.
    more: u32,
    cells: Slab<u32>,
    lines: Slab<K::Line>,
}

impl<K: Family> Table<K> {
    /// Hashes of a block's packets; their cells are fetched.
    #[inline(always)]
    pub(super) fn hash<S: Simd>(&self, simd: S, block: &Block, hashes: &mut Column) {
        let addresses = 2 * K::WORDS;
        for at in (0..block.len).step_by(S::LANES) {
            let mut sum = simd.splat(0);
            let mut take = |column: &Column, word: usize| {
                let mask = self.masks[word];
                if mask != 0 {
                    let masked = simd.and(simd.load(&column[at..]), simd.splat(mask));
                    sum = simd.add(sum, simd.mul(masked, simd.splat(MULTIPLIERS[word])));
                }
            };
            for word in 0..addresses {
                take(&block.addresses[word], word);
            }
            take(&block.ports, 8);
            take(&block.state, 9);
            let hash = simd.mul(simd.xor(sum, simd.shr(sum, 16)), simd.splat(FINAL_MULTIPLIER));
            simd.store(simd.xor(hash, simd.shr(hash, 13)), &mut hashes[at..]);
        }
        let cells = &self.cells[..];
        if cells.len() > FAR_CELLS {
            for &hash in &hashes[..block.len] {
                prefetch(cells.get((hash >> self.shift) as usize));
            }
        }
    }

    /// Which lines may have rules for which packets: appended to `list` by their indices and the packets'; the lines are
    /// fetched. How many.
    #[inline(always)]
    pub(super) fn find<S: Simd>(&self, simd: S, hashes: &Column, block: &Block, list: &mut List) -> usize {
        let (cells, lines) = (&self.cells[..], &self.lines[..]);
        let line_mask = simd.splat((1 << self.line_bits) - 1);
        let tag_mask = simd.splat(tag_mask(self.line_bits));
        let mut len = 0;
        for at in (0..block.len).step_by(S::LANES) {
            let hash = simd.load(&hashes[at..]);
            let cell = simd.gather(cells, simd.shr(hash, self.shift));
            let tag = simd.and(simd.shr(cell, self.line_bits), tag_mask);
            let mut mask = simd.eq(tag, simd.and(hash, tag_mask)) | simd.high_bits(cell);
            mask &= lanes_below(block.len - at);
            let packet = simd.load(&PACKETS[at..]);
            let mut entry = simd.or(simd.and(cell, line_mask), packet);
            len += simd.compress(entry, mask, &mut list[len..]);
            let more = simd.and(simd.shr(cell, MORE_SHIFT), simd.splat(3));
            for line in 1..=self.more {
                // Lanes that have this line: more >= line.
                let has = simd.eq(simd.min(more, simd.splat(line)), simd.splat(line));
                entry = simd.add(entry, simd.splat(1));
                len += simd.compress(entry, mask & has, &mut list[len..]);
            }
        }
        if lines.len() > FAR_LINES {
            for &entry in &list[..len] {
                prefetch(lines.get((entry & LINE) as usize));
            }
        }
        len
    }

    /// Compares the packets of a list with the rules of their lines.
    #[inline(always)]
    pub(super) fn compare<S: Simd>(&self, simd: S, list: &[u32], block: &Block, keys: &[K], best: &mut Best) {
        let lines = &self.lines[..];
        for &entry in list {
            let at = (entry >> LINE_BITS) as usize;
            let packet = block.packets[at] as usize;
            let line = &lines[(entry & LINE) as usize];
            let state = block.state[at] as u16;
            best[packet] = line.improve(simd, &keys[packet], state, best[packet]);
        }
    }

    /// Bytes held.
    pub(super) fn memory(&self) -> usize {
        size_of_val(&self.cells[..]) + size_of_val(&self.lines[..])
    }
}

impl<K: Family> Tables for Table<K> {
    fn each(&mut self, visit: &mut dyn FnMut(&mut dyn Place)) {
        visit(&mut self.cells);
        visit(&mut self.lines);
    }
}

/// Room for every line of every packet of a block, and for a vector past them.
pub(super) type List = [u32; BLOCK * MAX_LINES + MAX_LANES];

/// Of nothing.
pub(super) const EMPTY_LIST: List = [0; BLOCK * MAX_LINES + MAX_LANES];

/// Indices of a block's packets, where they stand in a list's words.
static PACKETS: Column = {
    let mut packets = [0; BLOCK + MAX_LANES];
    let mut index = 0;
    while index < BLOCK {
        packets[index] = (index as u32) << LINE_BITS;
        index += 1;
    }
    packets
};
