//! A few packets side by side, field by field, as vector instructions want them.

use super::family::{Family, ports};
use super::state::States;
use crate::simd::MAX_LANES;

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
    /// The half words that a [`crate::simd::Line`] is compared with. For IPv6, of the state word alone.
    pub(super) packed: [[u16; 8]; BLOCK],
}

impl Block {
    /// Of no packets.
    pub(super) const fn new() -> Self {
        Self {
            len: 0,
            addresses: [[0; BLOCK]; 8],
            ports: [0; BLOCK],
            state: [0; BLOCK],
            packed: [[0; 8]; BLOCK],
        }
    }

    /// Takes at most [`BLOCK`] keys.
    #[inline(always)]
    pub(super) fn load<K: Family>(&mut self, keys: &[K], states: &States) {
        let keys = &keys[..keys.len().min(BLOCK)];
        self.len = keys.len();
        for (index, key) in keys.iter().enumerate() {
            let fields = key.fields();
            for side in 0..2 {
                for word in 0..K::WORDS {
                    self.addresses[side * K::WORDS + word][index] = key.word(side, word);
                }
            }
            self.ports[index] = ports(fields);
            let state = states.of(fields);
            self.state[index] = state.into();
            let packed = &mut self.packed[index];
            if K::WORDS == 1 {
                let (source, destination) = (key.word(0, 0), key.word(1, 0));
                packed[0] = source as u16;
                packed[1] = (source >> 16) as u16;
                packed[2] = destination as u16;
                packed[3] = (destination >> 16) as u16;
                packed[4] = fields.source_port;
                packed[5] = fields.destination_port;
            }
            packed[6] = state;
        }
    }
}
