//! Rules that come and go and that no hash table takes: blocks of 256, a bit each.
//!
//! For each byte of a key that some rule of a block looks at, the block has a table: for each value of the byte, the bits of
//! the rules that allow it. The bits that are set in all of a packet's rows are candidates; those of rules that are no product of
//! what they allow of each byte (many ranges of ports are not) are compared as [`CompiledRule`]s.
//!
//! Blocks, and bits within them, are in the order of the rules. So the first candidate that matches decides, and a packet for which
//! something better than a block's first rule is known passes the block by: rules that are wide are mostly late ones. Between bits
//! there are gaps; a rule goes into one, or those between its place and the next gap move by a bit. A block that is full is divided,
//! and neighbours with few rules become one.

use std::ops::{ControlFlow, Range};
use std::{array, iter};

use bytemuck::{bytes_of, bytes_of_mut};

use super::block::{Block, LOAD};
use super::entry::StateMatch;
use super::family::Family;
use crate::compiled::CompiledRule;
use crate::rule::PortRange;

/// Rules of a block.
const RULES: usize = 256;
/// Bytes of the longest key.
const MAX_BYTES: usize = 40;

/// A rule as a block takes it: its position is its slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate<K> {
    pub(super) rule: CompiledRule<K>,
    /// Where its conditions have bits in the state word.
    pub(super) state: Option<StateMatch>,
}

/// Which values of one byte of a key a rule allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Allowed {
    Masked { value: u8, mask: u8 },
    Range { low: u8, high: u8 },
}

impl Allowed {
    fn is_any(self) -> bool {
        matches!(self, Self::Masked { mask: 0, .. } | Self::Range { low: 0, high: u8::MAX })
    }

    fn contains(self, byte: u8) -> bool {
        match self {
            Self::Masked { value, mask } => byte & mask == value,
            Self::Range { low, high } => (low..=high).contains(&byte),
        }
    }
}

/// A key's bytes as blocks look at them: where protocol, flags and bits stand, first the two bytes of the state word.
#[inline(always)]
fn bytes_with_state<K: Family>(key: &K, state: u16) -> [u8; MAX_BYTES] {
    let mut bytes = [0; MAX_BYTES];
    let len = size_of::<K>();
    bytes[..len].copy_from_slice(bytes_of(key));
    bytes[len - 4..len - 2].copy_from_slice(&state.to_le_bytes());
    bytes
}

impl<K: Family> Candidate<K> {
    /// What it allows of each byte.
    fn allowed(&self) -> [Allowed; MAX_BYTES] {
        let state = self.state.unwrap_or_default();
        let values = bytes_with_state(&self.rule.value, state.value);
        let masks = bytes_with_state(&self.rule.mask, state.mask);
        let len = size_of::<K>();
        let mut allowed = [Allowed::Masked { value: 0, mask: 0 }; MAX_BYTES];
        for at in (0..len - 8).chain(len - 4..len - 2) {
            allowed[at] = Allowed::Masked { value: values[at], mask: masks[at] };
        }
        for (at, ports) in [(len - 8, self.rule.source_ports), (len - 6, self.rule.destination_ports)] {
            let PortRange { low, high } = ports;
            let [low, high] = [low.to_le_bytes(), high.to_le_bytes()];
            if low[1] == high[1] {
                allowed[at] = Allowed::Range { low: low[0], high: high[0] };
            }
            allowed[at + 1] = Allowed::Range { low: low[1], high: high[1] };
        }
        allowed
    }

    /// Whether what it allows of each byte is all that it asks for.
    fn is_product(&self) -> bool {
        let product = |PortRange { low, high }: PortRange| {
            low >> 8 == high >> 8 || (low as u8, high as u8) == (0, u8::MAX)
        };
        self.state.is_some() && product(self.rule.source_ports) && product(self.rule.destination_ports)
    }

    /// The bytes that it looks at.
    fn bytes(&self) -> impl Iterator<Item = (usize, Allowed)> {
        self.allowed().into_iter().enumerate().filter(|(_, allowed)| !allowed.is_any())
    }
}

/// A bit for each rule of a block.
#[derive(Clone, Copy, Debug)]
#[repr(align(32))]
struct Row([u64; RULES / 64]);

impl Row {
    const ALL: Self = Self([u64::MAX; RULES / 64]);
    const NONE: Self = Self([0; RULES / 64]);

    /// The bits from one to another, that one too.
    fn between(first: usize, last: usize) -> Self {
        let mut row = Self::NONE;
        (first..=last).for_each(|bit| row.set(bit, true));
        row
    }

    fn set(&mut self, bit: usize, to: bool) {
        let word = &mut self.0[bit / 64];
        *word = *word & !(1 << (bit % 64)) | u64::from(to) << (bit % 64);
    }

    fn is_none(&self) -> bool {
        self.0.iter().fold(0, |all, word| all | word) == 0
    }

    /// The bits that both have.
    #[inline(always)]
    fn and(&self, other: &Self) -> Self {
        let (a, b) = (&self.0, &other.0);
        Self([a[0] & b[0], a[1] & b[1], a[2] & b[2], a[3] & b[3]])
    }

    /// Shows the bits that are set, in order, as long as `visit` wants more.
    #[inline(always)]
    fn each(&self, mut visit: impl FnMut(usize) -> ControlFlow<()>) {
        for (at, mut word) in self.0.into_iter().enumerate() {
            while word != 0 {
                if visit(at * 64 + word.trailing_zeros() as usize).is_break() {
                    return;
                }
                word &= word - 1;
            }
        }
    }

    /// The first bit that is set.
    fn first(&self) -> Option<usize> {
        let at = self.0.iter().position(|&word| word != 0)?;
        Some(at * 64 + self.0[at].trailing_zeros() as usize)
    }

    /// Moves the bits of a step by one place.
    fn shift(&mut self, step: &Step) {
        let old = self.0;
        self.0 = array::from_fn(|word| {
            let moved = if step.up {
                old[word] << 1 | word.checked_sub(1).map_or(0, |below| old[below] >> 63)
            } else {
                old[word] >> 1 | old.get(word + 1).map_or(0, |above| above << 63)
            };
            old[word] & !step.to.0[word] | moved & step.to.0[word]
        });
    }
}

/// Bits that move by one place.
struct Step {
    up: bool,
    /// Where they arrive.
    to: Row,
}

/// The rows of one byte of the keys.
#[derive(Debug)]
struct Rows {
    byte: usize,
    /// Rules that look at it.
    users: usize,
    by_value: Box<[Row; 256]>,
}

#[derive(Debug)]
struct RuleBlock<K> {
    present: Row,
    /// Rules that need no comparison: where their bits are left, they match.
    products: Row,
    rows: Vec<Rows>,
    slots: Box<[u32; RULES]>,
    rules: Vec<Option<Candidate<K>>>,
}

impl<K: Family> RuleBlock<K> {
    /// Of these rules, in order, with gaps between them.
    fn new(rules: &[Candidate<K>]) -> Self {
        let mut block = Self {
            present: Row::NONE,
            products: Row::NONE,
            rows: Vec::new(),
            slots: Box::new([0; RULES]),
            rules: vec![None; RULES],
        };
        for (rule, bit) in rules.iter().zip(spread(rules.len())) {
            block.put(*rule, bit, bit);
        }
        block
    }

    /// Puts a rule to a bit, and moves those from there to a free bit by one place.
    fn put(&mut self, rule: Candidate<K>, bit: usize, free: usize) {
        if free != bit {
            let step = if bit < free {
                self.slots[bit..=free].rotate_right(1);
                self.rules[bit..=free].rotate_right(1);
                Step { up: true, to: Row::between(bit + 1, free) }
            } else {
                self.slots[free..=bit].rotate_left(1);
                self.rules[free..=bit].rotate_left(1);
                Step { up: false, to: Row::between(free, bit - 1) }
            };
            self.present.shift(&step);
            self.products.shift(&step);
            for rows in &mut self.rows {
                rows.by_value.iter_mut().for_each(|row| row.shift(&step));
            }
        }
        for (byte, _) in rule.bytes() {
            let at = self.rows.partition_point(|rows| rows.byte < byte);
            if self.rows.get(at).is_none_or(|rows| rows.byte != byte) {
                self.rows.insert(at, Rows { byte, users: 0, by_value: Box::new([Row::ALL; 256]) });
            }
            self.rows[at].users += 1;
        }
        let allowed = rule.allowed();
        for rows in &mut self.rows {
            for (value, row) in (0..=u8::MAX).zip(rows.by_value.iter_mut()) {
                row.set(bit, allowed[rows.byte].contains(value));
            }
        }
        self.present.set(bit, true);
        self.products.set(bit, rule.is_product());
        self.slots[bit] = rule.rule.position;
        self.rules[bit] = Some(rule);
    }

    fn clear(&mut self, bit: usize) {
        self.present.set(bit, false);
        let Some(old) = self.rules[bit].take() else { return };
        for (byte, _) in old.bytes() {
            self.rows.iter_mut().filter(|rows| rows.byte == byte).for_each(|rows| rows.users -= 1);
        }
        self.rows.retain(|rows| rows.users > 0);
    }

    /// The first of its rules that matches and is better than what is known.
    #[inline(always)]
    fn improve(&self, key: &K, state: u32, ranks: &[u32], best: &mut u64) {
        // What a rule asks of the last word is in the state.
        let mut bytes = *key;
        let (len, bytes) = (size_of::<K>(), bytes_of_mut(&mut bytes));
        bytes[len - 4..].copy_from_slice(&state.to_le_bytes());
        let mut matches = self.present;
        for rows in &self.rows {
            matches = matches.and(&rows.by_value[usize::from(bytes[rows.byte])]);
        }
        if matches.is_none() {
            return;
        }
        matches.each(|bit| {
            let ranked = ranked(self.slots[bit], ranks);
            if ranked > *best {
                return ControlFlow::Break(());
            }
            let product = self.products.0[bit / 64] >> (bit % 64) & 1 != 0;
            if product || self.rules[bit].as_ref().is_some_and(|known| known.rule.matches(key)) {
                *best = ranked;
                return ControlFlow::Break(());
            }
            ControlFlow::Continue(())
        });
    }
}

/// A rule by its rank, with its slot below.
#[inline(always)]
fn ranked(slot: u32, ranks: &[u32]) -> u64 {
    u64::from(ranks[slot as usize]) << 32 | u64::from(slot)
}

/// Something to write to the blocks.
#[derive(Clone, Debug)]
pub(super) enum Write<K> {
    /// A rule to a bit of a block; those from there to a bit that is free move.
    Put { block: usize, bit: usize, free: usize, rule: Box<Candidate<K>> },
    /// A bit is free.
    Clear { block: usize, bit: usize },
    /// These blocks instead of some others.
    Blocks { old: Range<usize>, new: Vec<Vec<Candidate<K>>> },
}

/// The blocks of one copy of an index.
#[derive(Debug)]
pub(super) struct Bitmaps<K> {
    blocks: Vec<RuleBlock<K>>,
}

impl<K: Family> Bitmaps<K> {
    /// Without rules.
    pub(super) fn new() -> Self {
        Self { blocks: Vec::new() }
    }

    pub(super) fn write(&mut self, write: &Write<K>) {
        match write {
            Write::Put { block, bit, free, rule } => self.blocks[*block].put(**rule, *bit, *free),
            Write::Clear { block, bit } => self.blocks[*block].clear(*bit),
            Write::Blocks { old, new } => {
                self.blocks.splice(old.clone(), new.iter().map(|rules| RuleBlock::new(rules)));
            }
        }
    }

    /// Bytes held.
    pub(super) fn memory(&self) -> usize {
        let block = |block: &RuleBlock<K>| {
            let rows = block.rows.len() * size_of::<[Row; 256]>();
            size_of::<RuleBlock<K>>() + size_of_val(&*block.slots) + size_of_val(&block.rules[..]) + rows
        };
        self.blocks.iter().map(block).sum()
    }

    /// Takes the rules of the blocks into account; see [`super::masked_hash::Table::compare_ranked`].
    #[inline(always)]
    pub(super) fn classify(&self, block: &Block, keys: &[K], ranks: &[u32], best: &mut [u64; LOAD]) {
        let keys = &keys[..keys.len().min(LOAD)];
        for rules in &self.blocks {
            let Some(first) = rules.present.first() else { continue };
            let least = ranked(rules.slots[first], ranks);
            // Where most packets are done, a branch for each would be foreseen; where half of them are, it would not.
            let mut open = [0; LOAD];
            let mut len = 0;
            for (packet, best) in best[..keys.len()].iter().enumerate() {
                open[len] = packet;
                len += usize::from(*best > least);
            }
            for &packet in &open[..len] {
                rules.improve(&keys[packet], block.state[packet], ranks, &mut best[packet]);
            }
        }
    }
}

/// Evenly spread bits for so many rules.
fn spread(rules: usize) -> impl Iterator<Item = usize> {
    (0..rules).map(move |rule| rule * RULES / rules)
}

/// Where rules have their bits, and where others go.
#[derive(Debug, Default)]
pub(super) struct BitmapKeeper {
    blocks: Vec<Slots>,
    /// Rules in all of them.
    pub(super) rules: usize,
}

/// The slots of a block's rules by their bits.
type Slots = [Option<u32>; RULES];

/// Rules of a block when it is made, at most: there is room for others between them.
const FILLED: usize = RULES * 3 / 4;
/// Neighbours with so many rules together, or fewer, become one block.
const FEW: usize = RULES / 3;

fn slots(block: &Slots) -> impl Iterator<Item = u32> {
    block.iter().copied().flatten()
}

impl BitmapKeeper {
    /// Of these rules, in order. `rule` gives the rule of a slot.
    pub(super) fn new<K: Family>(
        rules: &[u32],
        rule: impl Fn(u32) -> Option<Candidate<K>>,
        write: impl FnMut(Write<K>),
    ) -> Self {
        let mut keeper = Self { blocks: Vec::new(), rules: rules.len() };
        keeper.make(0..0, rules, rule, write);
        keeper
    }

    /// Takes up a rule.
    pub(super) fn insert<K: Family>(
        &mut self,
        slot: u32,
        ranks: &[u32],
        rule: impl Fn(u32) -> Option<Candidate<K>>,
        mut write: impl FnMut(Write<K>),
    ) {
        let before = |other: u32| ranks[other as usize] < ranks[slot as usize];
        self.rules += 1;
        let mut block = self.blocks.partition_point(|block| slots(block).next().is_none_or(before));
        block = block.saturating_sub(1);
        let full = self.blocks.get(block).is_none_or(|block| block.iter().all(Option::is_some));
        if full {
            let old = block..self.blocks.len().min(block + 1);
            let mut all: Vec<u32> = self.blocks[old.clone()].iter().flat_map(slots).collect();
            all.insert(all.partition_point(|&other| before(other)), slot);
            self.make(old, &all, rule, write);
            return;
        }
        let bits = &mut self.blocks[block];
        // The rules around its place.
        let next = (0..RULES).find(|&bit| bits[bit].is_some_and(|other| !before(other))).unwrap_or(RULES);
        let previous = (0..next).rev().find(|&bit| bits[bit].is_some());
        let gap = previous.map_or(0, |previous| previous + 1)..next;
        let (bit, free) = if gap.is_empty() {
            let below = (0..next).rev().find(|&bit| bits[bit].is_none());
            let above = (next..RULES).find(|&bit| bits[bit].is_none());
            match (below, above) {
                (Some(below), above) if above.is_none_or(|above| above - next > next - below) => {
                    (next - 1, below)
                }
                (below, above) => (next, above.or(below).unwrap_or(next)),
            }
        } else {
            let middle = gap.start + gap.len() / 2;
            (middle, middle)
        };
        if bit < free {
            bits[bit..=free].rotate_right(1);
        } else {
            bits[free..=bit].rotate_left(1);
        }
        bits[bit] = Some(slot);
        if let Some(rule) = rule(slot) {
            write(Write::Put { block, bit, free, rule: Box::new(rule) });
        }
    }

    /// Makes blocks of these rules, in order, instead of some that there are.
    fn make<K: Family>(
        &mut self,
        old: Range<usize>,
        rules: &[u32],
        rule: impl Fn(u32) -> Option<Candidate<K>>,
        mut write: impl FnMut(Write<K>),
    ) {
        let count = rules.len().div_ceil(FILLED);
        let parts = || rules.chunks(rules.len().div_ceil(count.max(1)).max(1));
        let block = |part: &[u32]| {
            let mut bits = [None; RULES];
            part.iter().zip(spread(part.len())).for_each(|(&slot, bit)| bits[bit] = Some(slot));
            bits
        };
        self.blocks.splice(old.clone(), parts().map(block));
        let new = parts().map(|part| part.iter().filter_map(|&slot| rule(slot)).collect()).collect();
        write(Write::Blocks { old, new });
    }

    /// Lets go of a rule.
    pub(super) fn remove<K: Family>(
        &mut self,
        slot: u32,
        rule: impl Fn(u32) -> Option<Candidate<K>>,
        mut write: impl FnMut(Write<K>),
    ) {
        let mut places = self.blocks.iter().enumerate();
        let find =
            |(block, bits): (usize, &Slots)| Some((block, bits.iter().position(|&at| at == Some(slot))?));
        let Some((block, bit)) = places.find_map(find) else { return };
        self.rules -= 1;
        self.blocks[block][bit] = None;
        write(Write::Clear { block, bit });
        // Every block has rules: they say where others go.
        if slots(&self.blocks[block]).next().is_none() {
            return self.make(block..block + 1, &[], rule, write);
        }
        let few = |pair: &Range<usize>| {
            let pair = self.blocks.get(pair.clone());
            pair.is_some_and(|pair| pair.iter().flat_map(slots).count() <= FEW)
        };
        let before = block.checked_sub(1).map(|before| before..block + 1);
        let mut neighbours = before.into_iter().chain(iter::once(block..block + 2));
        if let Some(pair) = neighbours.find(few) {
            let all: Vec<u32> = self.blocks[pair.clone()].iter().flat_map(slots).collect();
            self.make(pair, &all, rule, write);
        }
    }
}
