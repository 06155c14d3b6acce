//! From addresses to the classes of their longest prefixes: 16 bits at once, then a byte a step.

use std::collections::HashMap;

use super::Column;
use crate::hybrid::block::Block;
use crate::hybrid::entry::Prefix;
use crate::hybrid::family::Family;
use crate::simd::Simd;

/// A trie of cells.
///
/// A cell leads to `cells[offset + (byte & mask)]`, the offset in its low 24 bits, the mask in its high 8: 255 for a node of 256
/// cells, 0 for a class, whose offset is its own number: the first cells lead to themselves. So every address takes the
/// same steps, whether its class is known early or late.
#[derive(Debug)]
pub(super) struct AddressMap {
    /// By the first 16 bits.
    top: Vec<u32>,
    /// First one for each class, then the nodes.
    cells: Vec<u32>,
    /// Steps after the first.
    steps: usize,
}

const OFFSET_BITS: u32 = 24;
const OFFSET: u32 = (1 << OFFSET_BITS) - 1;
const TOP_BITS: u8 = 16;

impl AddressMap {
    /// The map of a trie of prefixes: each with the class of what is in it and in no longer one, sorted by address and then
    /// by length, the first of them the one of length 0. `None` where it would take more than `room` cells.
    pub(super) fn new(prefixes: &[(Prefix, u16)], classes: usize, room: usize) -> Option<Self> {
        let mut builder = Builder {
            cells: (0..classes as u32).collect(),
            nodes: HashMap::new(),
            room: room.min(OFFSET as usize - 255),
            steps: 0,
        };
        let top = builder.node(prefixes, 0, TOP_BITS, 0)?;
        Some(Self { top, cells: builder.cells, steps: builder.steps })
    }

    #[inline(always)]
    pub(super) fn classify<K: Family, S: Simd>(
        &self,
        simd: S,
        block: &Block,
        side: usize,
        classes: &mut Column,
    ) {
        let columns = &block.addresses[side * K::WORDS..];
        for at in (0..block.len).step_by(S::LANES) {
            let high = simd.shr(simd.load(&columns[0][at..]), 16);
            simd.store(simd.gather(&self.top, high), &mut classes[at..]);
        }
        // The steps count bytes from the third on.
        for byte in 2..2 + self.steps.min(4 * K::WORDS - 2) {
            let (column, shift) = (&columns[byte / 4], 24 - 8 * (byte as u32 % 4));
            for at in (0..block.len).step_by(S::LANES) {
                let cell = simd.load(&classes[at..]);
                let byte = simd.shr(simd.load(&column[at..]), shift);
                let index = simd.and(simd.and(byte, simd.splat(0xff)), simd.shr(cell, OFFSET_BITS));
                let index = simd.add(simd.and(cell, simd.splat(OFFSET)), index);
                simd.store(simd.gather(&self.cells, index), &mut classes[at..]);
            }
        }
    }

    /// Bytes held.
    pub(super) fn memory(&self) -> usize {
        size_of_val(&self.top[..]) + size_of_val(&self.cells[..])
    }
}

struct Builder {
    cells: Vec<u32>,
    /// Where nodes with the same cells stand.
    nodes: HashMap<Vec<u32>, u32>,
    room: usize,
    steps: usize,
}

impl Builder {
    /// The cells of a node: of the addresses that share `depth` bits, by the next `bits`. The first prefix holds all of them.
    fn node(&mut self, prefixes: &[(Prefix, u16)], depth: u8, bits: u8, level: usize) -> Option<Vec<u32>> {
        self.steps = self.steps.max(level);
        let end = depth + bits;
        let slot = |prefix: Prefix| (prefix.address << depth >> (128 - u32::from(bits))) as usize;
        let mut cells = vec![u32::from(prefixes[0].1); 1 << bits];
        let mut rest = &prefixes[1..];
        // A prefix comes before those in it, so what is painted later is the longer one.
        while let Some(&(prefix, class)) = rest.first() {
            let at = slot(prefix);
            if prefix.len <= end {
                cells[at..][..1 << (end - prefix.len)].fill(class.into());
                rest = &rest[1..];
                continue;
            }
            // All longer ones of this cell, and before them what holds in the rest of it.
            let count = rest.iter().take_while(|(p, _)| p.len > end && slot(*p) == at).count();
            let mut below = Vec::with_capacity(count + 1);
            let whole = Prefix { address: prefix.address & Prefix::mask(end), len: end };
            below.push((whole, cells[at] as u16));
            below.extend_from_slice(&rest[..count]);
            rest = &rest[count..];
            let node = self.node(&below, end, 8, level + 1)?;
            cells[at] = 0xff << OFFSET_BITS | self.place(node)?;
        }
        Some(cells)
    }

    fn place(&mut self, node: Vec<u32>) -> Option<u32> {
        if let Some(&offset) = self.nodes.get(&node) {
            return Some(offset);
        }
        if self.cells.len() + node.len() > self.room {
            return None;
        }
        let offset = self.cells.len() as u32;
        self.cells.extend_from_slice(&node);
        self.nodes.insert(node, offset);
        Some(offset)
    }
}
