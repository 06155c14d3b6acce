#![doc = include_str!("README.md")]

mod address;
mod build;
mod lists;
mod long_address;
mod shape;

use super::block::{Best, Block, Column, EMPTY, lesser};
use super::entry::FIELDS;
use super::family::Family;
use super::state::States;
use crate::huge::{Place, Slab, Tables};
use address::AddressMap;
pub(super) use build::Budget;
use long_address::LongAddressMap;
use packetloom_simd::Simd;

/// Maps from fields to classes, and tables from two classes to one.
#[derive(Debug)]
pub(super) struct ClassTables {
    maps: Vec<Map>,
    crosses: Vec<Cross>,
    /// The rule of each class of the last cross or map; nothing where the class is the position and one, 0 being no rule.
    positions: Slab<u32>,
}

/// Maps and crosses at most: all fields, and one less to combine them.
const MAX_CLASSES: usize = 2 * FIELDS - 1;

/// Classes of one field.
#[derive(Debug)]
enum Map {
    /// Of the source (0) or the destination (1) address: of IPv4, and of IPv6 where all prefixes are short.
    Address { side: usize, map: AddressMap },
    /// Likewise of IPv6, where they are not.
    LongAddress { side: usize, map: LongAddressMap },
    /// Of a half word: the source port, the destination port or the state word. One class for each value.
    Word { field: Word, classes: Numbers },
    /// Of the state word, where it is the number of the class itself.
    State,
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
    table: Numbers,
}

/// Class numbers: bytes where that suffices.
#[derive(Debug)]
enum Numbers {
    Bytes(Slab<u8>),
    Halves(Slab<u16>),
}

impl Numbers {
    /// Of these classes, the highest of which is known.
    fn new(mut classes: Vec<u16>, highest: usize) -> Self {
        // What a vector instruction reads beyond the last.
        classes.resize(classes.len() + 3, 0);
        if highest <= usize::from(u8::MAX) {
            Self::Bytes(classes.into_iter().map(|class| class as u8).collect::<Vec<_>>().into())
        } else {
            Self::Halves(classes.into())
        }
    }

    fn get(&self, index: u16) -> u16 {
        match self {
            Self::Bytes(table) => table[usize::from(index)].into(),
            Self::Halves(table) => table[usize::from(index)],
        }
    }

    /// Other numbers for these.
    fn map(&self, number: impl Fn(u16) -> u16) -> Self {
        let numbers: Vec<u16> = match self {
            Self::Bytes(table) => table.iter().map(|&class| number(class.into())).collect(),
            Self::Halves(table) => table.iter().map(|&class| number(class)).collect(),
        };
        let highest = numbers.iter().copied().max().unwrap_or(0);
        Self::new(numbers, highest.into())
    }

    /// Puts the number at each index in its place, for the first `len` of them.
    #[inline(always)]
    fn look_up<S: Simd>(&self, simd: S, indices: &mut Column, len: usize) {
        match self {
            Self::Bytes(table) => {
                let table = &table[..];
                for at in (0..len).step_by(S::LANES) {
                    simd.store(simd.gather8(table, simd.load(&indices[at..])), &mut indices[at..]);
                }
            }
            Self::Halves(table) => {
                let table = &table[..];
                for at in (0..len).step_by(S::LANES) {
                    simd.store(simd.gather16(table, simd.load(&indices[at..])), &mut indices[at..]);
                }
            }
        }
    }

    fn memory(&self) -> usize {
        match self {
            Self::Bytes(table) => table.len(),
            Self::Halves(table) => 2 * table.len(),
        }
    }

    fn place(&mut self) -> &mut dyn Place {
        match self {
            Self::Bytes(table) => table,
            Self::Halves(table) => table,
        }
    }
}

impl Tables for ClassTables {
    fn each(&mut self, visit: &mut dyn FnMut(&mut dyn Place)) {
        for map in &mut self.maps {
            match map {
                Map::Address { map, .. } => map.each(visit),
                Map::LongAddress { map, .. } => map.each(visit),
                Map::Word { classes, .. } => visit(classes.place()),
                Map::State => {}
            }
        }
        for cross in &mut self.crosses {
            visit(cross.table.place());
        }
        visit(&mut self.positions);
    }
}

impl ClassTables {
    /// Makes the class of the state word the state word itself, where these tables are the only ones: one access less.
    pub(super) fn number_states(&mut self, states: &mut States) {
        for map in &mut self.maps {
            if let Map::Word { field: Word::State, classes } = map
                && states.renumber(|state| classes.get(state))
            {
                *map = Map::State;
            }
        }
    }

    /// Improves, for each packet of the block, whose keys these are, the position of the first rule that matches.
    #[inline(always)]
    pub(super) fn classify<K: Family, S: Simd>(
        &self,
        simd: S,
        block: &Block,
        keys: &[K],
        classes: &mut Classes,
        best: &mut Best,
    ) {
        for (map, classes) in self.maps.iter().zip(classes.iter_mut()) {
            match map {
                Map::Address { side, map } => map.classify::<K, S>(simd, block, *side, classes),
                Map::LongAddress { side, map } => map.classify(simd, block, keys, *side, classes),
                Map::Word { field, classes: numbers } => {
                    for at in (0..block.len).step_by(S::LANES) {
                        let word = match field {
                            Word::SourcePort => simd.and(simd.load(&block.ports[at..]), simd.splat(0xffff)),
                            Word::DestinationPort => simd.shr(simd.load(&block.ports[at..]), 16),
                            Word::State => simd.load(&block.state[at..]),
                        };
                        simd.store(word, &mut classes[at..]);
                    }
                    numbers.look_up(simd, classes, block.len);
                }
                Map::State => {
                    for at in (0..block.len).step_by(S::LANES) {
                        simd.store(simd.load(&block.state[at..]), &mut classes[at..]);
                    }
                }
            }
        }
        for (index, cross) in self.crosses.iter().enumerate() {
            let (before, after) = classes.split_at_mut(self.maps.len() + index);
            let (a, b) = (&before[cross.a], &before[cross.b]);
            for at in (0..block.len).step_by(S::LANES) {
                let row = simd.mul(simd.load(&a[at..]), simd.splat(cross.stride));
                simd.store(simd.add(row, simd.load(&b[at..])), &mut after[0][at..]);
            }
            cross.table.look_up(simd, &mut after[0], block.len);
        }
        let found = &mut classes[self.maps.len() + self.crosses.len() - 1];
        let positions = &self.positions[..];
        for at in (0..block.len).step_by(S::LANES) {
            let class = simd.load(&found[at..]);
            let position = if positions.is_empty() {
                simd.sub(class, simd.splat(1))
            } else {
                simd.gather(positions, class)
            };
            if block.in_order {
                let best = &mut best[block.packets[0] as usize + at..];
                simd.store(simd.min(position, simd.load(best)), best);
            } else {
                simd.store(position, &mut found[at..]);
            }
        }
        if !block.in_order {
            for (&packet, &position) in block.packets[..block.len].iter().zip(found.iter()) {
                let best = &mut best[packet as usize];
                *best = lesser(*best, position);
            }
        }
    }

    /// Bytes held.
    pub(super) fn memory(&self) -> usize {
        let maps: usize = self
            .maps
            .iter()
            .map(|map| match map {
                Map::Address { map, .. } => map.memory(),
                Map::LongAddress { map, .. } => map.memory(),
                Map::Word { classes, .. } => classes.memory(),
                Map::State => 0,
            })
            .sum();
        let crosses: usize = self.crosses.iter().map(|cross| cross.table.memory()).sum();
        maps + crosses + size_of_val(&self.positions[..])
    }
}

/// The classes of a block's packets, a column for each map and cross.
pub(super) type Classes = [Column; MAX_CLASSES];

/// Of no packets.
pub(super) const NO_CLASSES: Classes = [EMPTY; MAX_CLASSES];
