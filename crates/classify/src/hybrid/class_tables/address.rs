//! From addresses to the classes of their longest prefixes: 16 bits at once, then a byte a step. For IPv4, and for prefixes of
//! IPv6 that are short.

use std::collections::HashMap;

use super::Column;
use crate::huge::{Place, Slab, Tables};
use crate::hybrid::block::Block;
use crate::hybrid::entry::Prefix;
use crate::hybrid::family::Family;
use packetloom_simd::Simd;

/// A trie of cells, a half word each: the number of a class, or the number of classes and that of a node.
///
/// The first cells lead to themselves, one for each class; behind them stand the nodes, 256 cells each. So every address takes
/// the same steps, whether its class is known early or late.
#[derive(Debug)]
pub(super) struct AddressMap {
    /// By the first 16 bits.
    top: Slab<u16>,
    /// First one for each class, then the nodes.
    cells: Slab<u16>,
    classes: u32,
    /// Steps after the first.
    steps: usize,
}

const TOP_BITS: u8 = 16;
/// Cells of a node.
const NODE: usize = 256;

impl AddressMap {
    /// The map of a trie of prefixes: each with the class of what is in it and in no longer one, sorted by address and then
    /// by length, the first of them the one of length 0. `None` where it would take more than `room` cells.
    pub(super) fn new(prefixes: &[(Prefix, u16)], classes: usize, room: usize) -> Option<Self> {
        let mut builder = Builder {
            classes: u16::try_from(classes).ok()?,
            cells: (0..=u16::MAX).take(classes).collect(),
            nodes: HashMap::new(),
            room,
            steps: 0,
        };
        let mut top = builder.node(prefixes, 0, TOP_BITS, 0)?;
        // What a vector instruction reads beyond the last.
        top.push(0);
        let Builder { mut cells, steps, .. } = builder;
        cells.push(0);
        Some(Self { top: top.into(), cells: cells.into(), classes: classes as u32, steps })
    }

    #[inline(always)]
    pub(super) fn classify<K: Family, S: Simd>(
        &self,
        simd: S,
        block: &Block,
        side: usize,
        classes: &mut Column,
    ) {
        let columns = &block.addresses[side * K::WORDS..][..K::WORDS];
        let (top, cells) = (&self.top[..], &self.cells[..]);
        for at in (0..block.len).step_by(S::LANES) {
            let high = simd.shr(simd.load(&columns[0][at..]), 16);
            simd.store(simd.gather16(top, high), &mut classes[at..]);
        }
        // The steps go on with the third byte.
        for byte in (2..4 * K::WORDS).take(self.steps) {
            let (column, shift) = (&columns[byte / 4], 24 - 8 * (byte % 4) as u32);
            for at in (0..block.len).step_by(S::LANES) {
                let cell = simd.load(&classes[at..]);
                let byte = simd.and(simd.shr(simd.load(&column[at..]), shift), simd.splat(0xff));
                // The number of the node and one, or 0: `cell - (classes - 1)`, but not below 0.
                let below = simd.splat(self.classes - 1);
                let node = simd.sub(simd.max(cell, below), below);
                // The first cell of node n is `classes + 256 n`; its own number is `classes + n`.
                let inside =
                    simd.add(simd.mul(simd.sub(node, simd.splat(1)), simd.splat(NODE as u32 - 1)), byte);
                let is_node = simd.sub(simd.splat(0), simd.min(node, simd.splat(1)));
                let index = simd.add(cell, simd.and(inside, is_node));
                simd.store(simd.gather16(cells, index), &mut classes[at..]);
            }
        }
    }

    /// Bytes held.
    pub(super) fn memory(&self) -> usize {
        size_of_val(&self.top[..]) + size_of_val(&self.cells[..])
    }
}

impl Tables for AddressMap {
    fn each(&mut self, visit: &mut dyn FnMut(&mut dyn Place)) {
        visit(&mut self.top);
        visit(&mut self.cells);
    }
}

struct Builder {
    classes: u16,
    cells: Vec<u16>,
    /// The numbers of nodes by their cells.
    nodes: HashMap<Vec<u16>, u16>,
    room: usize,
    steps: usize,
}

impl Builder {
    /// The cells of a node: of the addresses that share `depth` bits, by the next `bits`. The first prefix holds all of them.
    fn node(&mut self, prefixes: &[(Prefix, u16)], depth: u8, bits: u8, level: usize) -> Option<Vec<u16>> {
        self.steps = self.steps.max(level);
        let end = depth + bits;
        let slot = |prefix: Prefix| (prefix.address << depth >> (128 - u32::from(bits))) as usize;
        let mut cells = vec![prefixes[0].1; 1 << bits];
        let mut rest = &prefixes[1..];
        // A prefix comes before those in it, so what is painted later is the longer one.
        while let Some(&(prefix, class)) = rest.first() {
            let at = slot(prefix);
            if prefix.len <= end {
                cells[at..][..1 << (end - prefix.len)].fill(class);
                rest = &rest[1..];
                continue;
            }
            // All longer ones of this cell, and before them what holds in the rest of it.
            let count = rest.iter().take_while(|(p, _)| p.len > end && slot(*p) == at).count();
            let mut below = Vec::with_capacity(count + 1);
            let whole = Prefix { address: prefix.address & Prefix::mask(end), len: end };
            below.push((whole, cells[at]));
            below.extend_from_slice(&rest[..count]);
            rest = &rest[count..];
            let node = self.node(&below, end, 8, level + 1)?;
            cells[at] = self.place(node)?;
        }
        Some(cells)
    }

    /// What leads to a node.
    fn place(&mut self, node: Vec<u16>) -> Option<u16> {
        if let Some(&number) = self.nodes.get(&node) {
            return Some(number);
        }
        if self.cells.len() + NODE > self.room {
            return None;
        }
        let number = self.classes.checked_add(u16::try_from(self.nodes.len()).ok()?)?;
        self.cells.extend_from_slice(&node);
        self.nodes.insert(node, number);
        Some(number)
    }
}
