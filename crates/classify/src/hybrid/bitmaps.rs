//! Rules that come and go and that no hash table takes: blocks of 256, a bit each.
//!
//! For each byte of a key that some rule of a block looks at, the block has a table: for each value of the byte, the bits of
//! the rules that allow it. The bits that are set in all of a packet's rows are candidates, and compared as [`CompiledRule`]s:
//! a range of ports is no product of two bytes' values, and some conditions have no bits in the state word. Changing a rule
//! writes one bit in each row, and nothing depends on what rules there are or in which order.

use bytemuck::bytes_of;

use super::block::{BLOCK, Block};
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

    fn set(&mut self, bit: usize, to: bool) {
        let word = &mut self.0[bit / 64];
        *word = *word & !(1 << (bit % 64)) | u64::from(to) << (bit % 64);
    }

    fn is_none(&self) -> bool {
        self.0 == Self::NONE.0
    }
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
    rows: Vec<Rows>,
    rules: Vec<Option<Candidate<K>>>,
}

impl<K: Family> RuleBlock<K> {
    fn new() -> Self {
        Self { present: Row::NONE, rows: Vec::new(), rules: vec![None; RULES] }
    }

    fn set(&mut self, bit: usize, rule: Option<Candidate<K>>) {
        if let Some(old) = self.rules[bit].take() {
            self.present.set(bit, false);
            for (byte, _) in old.bytes() {
                self.rows.iter_mut().filter(|rows| rows.byte == byte).for_each(|rows| rows.users -= 1);
            }
            self.rows.retain(|rows| rows.users > 0);
        }
        let Some(rule) = rule else { return };
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
        self.rules[bit] = Some(rule);
    }
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

    /// Writes one bit of a block, or of the one to come.
    pub(super) fn set(&mut self, block: usize, bit: usize, rule: Option<Candidate<K>>) {
        if self.blocks.len() <= block {
            self.blocks.resize_with(block + 1, RuleBlock::new);
        }
        self.blocks[block].set(bit, rule);
    }

    /// Takes the rules of the blocks into account; see [`super::masked_hash::Table::compare_ranked`].
    #[inline(always)]
    pub(super) fn classify(&self, block: &Block, keys: &[K], ranks: &[u32], best: &mut [u64; BLOCK]) {
        let mut bytes = [[0; MAX_BYTES]; BLOCK];
        for ((bytes, key), state) in bytes.iter_mut().zip(keys).zip(block.state) {
            *bytes = bytes_with_state(key, state as u16);
        }
        for rules in self.blocks.iter().filter(|rules| !rules.present.is_none()) {
            for (packet, (key, bytes)) in keys.iter().zip(&bytes).enumerate() {
                let mut matches = rules.present;
                for rows in &rules.rows {
                    let row = &rows.by_value[usize::from(bytes[rows.byte])];
                    for (word, row) in matches.0.iter_mut().zip(row.0) {
                        *word &= row;
                    }
                }
                if matches.is_none() {
                    continue;
                }
                for (at, mut word) in matches.0.into_iter().enumerate() {
                    while word != 0 {
                        let bit = at * 64 + word.trailing_zeros() as usize;
                        word &= word - 1;
                        if let Some(Candidate { rule, .. }) = &rules.rules[bit] {
                            let slot = rule.position;
                            let ranked = u64::from(ranks[slot as usize]) << 32 | u64::from(slot);
                            if ranked < best[packet] && rule.matches(key) {
                                best[packet] = ranked;
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Which bits of the blocks are free, and where a rule goes best.
#[derive(Debug, Default)]
pub(super) struct BitmapKeeper {
    blocks: Vec<Free>,
    /// Rules in all of them.
    pub(super) rules: usize,
}

#[derive(Debug)]
struct Free {
    bits: Vec<u8>,
    /// Rules that look at each byte.
    users: [u16; MAX_BYTES],
}

/// A block is begun rather than one more byte than this is looked at in another.
const MORE_BYTES: usize = 2;

impl BitmapKeeper {
    /// Block and bit for a rule.
    pub(super) fn insert<K: Family>(&mut self, rule: &Candidate<K>) -> (usize, usize) {
        let bytes: Vec<usize> = rule.bytes().map(|(byte, _)| byte).collect();
        let more = |free: &Free| bytes.iter().filter(|&&byte| free.users[byte] == 0).count();
        let roomy = self.blocks.iter().enumerate().filter(|(_, free)| !free.bits.is_empty());
        let best = roomy.map(|(at, free)| (more(free), free.bits.len(), at)).min();
        // Half of the bits may be left free for the sake of blocks that look at few bytes.
        let may_begin = self.blocks.len() * RULES <= 2 * self.rules;
        let block = match best {
            Some((more, _, at)) if more <= MORE_BYTES || !may_begin => at,
            _ => {
                self.blocks.push(Free { bits: (0..=u8::MAX).rev().collect(), users: [0; MAX_BYTES] });
                self.blocks.len() - 1
            }
        };
        let free = &mut self.blocks[block];
        bytes.iter().for_each(|&byte| free.users[byte] += 1);
        self.rules += 1;
        (block, usize::from(free.bits.pop().unwrap_or_default()))
    }

    /// Frees the bit of a rule.
    pub(super) fn remove<K: Family>(&mut self, rule: &Candidate<K>, block: usize, bit: usize) {
        let free = &mut self.blocks[block];
        rule.bytes().for_each(|(byte, _)| free.users[byte] -= 1);
        free.bits.push(bit as u8);
        self.rules -= 1;
    }
}
