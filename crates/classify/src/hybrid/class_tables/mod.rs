#![doc = include_str!("README.md")]

mod address;
mod bits;
mod build;

use super::block::{Block, Column};
use super::family::Family;
use crate::simd::Simd;
use address::AddressMap;
pub(super) use build::Budget;

/// Maps from fields to classes, and tables from two classes to one.
#[derive(Debug)]
pub(super) struct ClassTables {
    maps: Vec<Map>,
    crosses: Vec<Cross>,
    /// The rule of each class of the last cross, or map.
    positions: Vec<u32>,
}

/// Most maps and crosses that there can be.
const MAX_CLASSES: usize = 9;

/// Classes of one field.
#[derive(Debug)]
enum Map {
    /// Of the source (0) or the destination (1) address.
    Address { side: usize, map: AddressMap },
    /// Of a half word: the source port, the destination port or the state word. One class for each value, and padding.
    Word { field: Word, classes: Vec<u16> },
}

/// A field of 16 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Word {
    SourcePort,
    DestinationPort,
    State,
}

/// `table[a * stride + b]` is the class of a packet with classes `a` and `b`.
#[derive(Debug)]
struct Cross {
    /// Which of the earlier maps and crosses.
    a: usize,
    b: usize,
    stride: u32,
    /// And padding.
    table: Vec<u16>,
}

impl ClassTables {
    /// Writes the position of the first rule that matches, or [`crate::NO_RULE`], for each packet of the block.
    #[inline(always)]
    pub(super) fn classify<K: Family, S: Simd>(
        &self,
        simd: S,
        block: &Block,
        classes: &mut Classes,
        best: &mut Column,
    ) {
        for (map, classes) in self.maps.iter().zip(classes.iter_mut()) {
            match map {
                Map::Address { side, map } => map.classify::<K, S>(simd, block, *side, classes),
                Map::Word { field, classes: table } => {
                    for at in (0..block.len).step_by(S::LANES) {
                        let word = match field {
                            Word::SourcePort => simd.and(simd.load(&block.ports[at..]), simd.splat(0xffff)),
                            Word::DestinationPort => simd.shr(simd.load(&block.ports[at..]), 16),
                            Word::State => simd.load(&block.state[at..]),
                        };
                        simd.store(simd.gather16(table, word), &mut classes[at..]);
                    }
                }
            }
        }
        for (index, cross) in self.crosses.iter().enumerate() {
            let (before, after) = classes.split_at_mut(self.maps.len() + index);
            let (a, b, to) = (&before[cross.a], &before[cross.b], &mut after[0]);
            for at in (0..block.len).step_by(S::LANES) {
                let row = simd.mul(simd.load(&a[at..]), simd.splat(cross.stride));
                let index = simd.add(row, simd.load(&b[at..]));
                simd.store(simd.gather16(&cross.table, index), &mut to[at..]);
            }
        }
        let last = &classes[self.maps.len() + self.crosses.len() - 1];
        for at in (0..block.len).step_by(S::LANES) {
            simd.store(simd.gather(&self.positions, simd.load(&last[at..])), &mut best[at..]);
        }
    }

    /// Bytes held.
    pub(super) fn memory(&self) -> usize {
        let maps: usize = self
            .maps
            .iter()
            .map(|map| match map {
                Map::Address { map, .. } => map.memory(),
                Map::Word { classes, .. } => size_of_val(&classes[..]),
            })
            .sum();
        let crosses: usize = self.crosses.iter().map(|cross| size_of_val(&cross.table[..])).sum();
        maps + crosses + size_of_val(&self.positions[..])
    }
}

/// The classes of a block's packets, a column for each map and cross.
pub(super) type Classes = [Column; MAX_CLASSES];
