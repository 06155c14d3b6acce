//! What differs between IPv4 and IPv6: how many words an address has, and how rules lie in a cache line.

use std::fmt;

use bytemuck::{Pod, Zeroable};
use packetloom_packet::{MatchKey4, MatchKey6};

use super::block::Block;
use super::entry::{Entry, Prefix};
use super::state::States;
use crate::NO_RULE;
use crate::compiled::{CompiledRule, MatchKey};
use crate::simd::{Line, MAX_LANES, Simd};

// The columns of a key are its words in memory.
const _: () = assert!(cfg!(target_endian = "little"), "big-endian processors are not supported");

/// Match keys that the tables can look up.
pub(super) trait Family: MatchKey + Pod {
    /// 32-bit words of an address.
    const WORDS: usize;

    /// Rules in a cache line, in order.
    type Line: RuleLine<Self>;

    /// Source and destination address, their bits at the top.
    fn addresses(&self) -> [u128; 2];

    /// Writes the columns of [`Simd::LANES`] keys to a block, from packet `at` on.
    fn columns<S: Simd>(simd: S, keys: &[Self], block: &mut Block, at: usize, states: &States);
}

/// A cache line with rules.
pub(super) trait RuleLine<K>: Pod + Send + Sync + fmt::Debug + 'static {
    /// Rules that it holds.
    const RULES: usize;

    /// A line of these rules, in order and at most [`RuleLine::RULES`].
    fn new(rules: &[Entry]) -> Self;

    /// Position of the first of them that matches a packet, or [`NO_RULE`].
    fn first_match<S: Simd>(&self, simd: S, key: &K, state: u16) -> u32;
}

impl Family for MatchKey4 {
    const WORDS: usize = 1;
    type Line = Line;

    fn addresses(&self) -> [u128; 2] {
        [self.source, self.destination].map(|address| u128::from(address) << 96)
    }

    #[inline(always)]
    fn columns<S: Simd>(simd: S, keys: &[Self], block: &mut Block, at: usize, states: &States) {
        let [source, destination, ports, last] = simd.columns(bytemuck::cast_slice(keys));
        simd.store(source, &mut block.addresses[0][at..]);
        simd.store(destination, &mut block.addresses[1][at..]);
        block.set(simd, at, ports, last, states);
    }
}

/// Half words of a key in the order in which they lie in memory.
fn halves(source: u32, destination: u32, source_port: u16, destination_port: u16, state: u16) -> [u16; 8] {
    let [s0, s1] = [source as u16, (source >> 16) as u16];
    let [d0, d1] = [destination as u16, (destination >> 16) as u16];
    [s0, s1, d0, d1, source_port, destination_port, state, 0]
}

impl RuleLine<MatchKey4> for Line {
    const RULES: usize = 2;

    fn new(rules: &[Entry]) -> Self {
        // A lower bound above the upper one: no key matches.
        let mut line = Self { low: [[u16::MAX; 8]; 2], high: [[0; 8]; 2] };
        for (index, rule) in rules.iter().enumerate() {
            let ends = |prefix: Prefix| {
                let low = (prefix.address >> 96) as u32;
                (low, low | !((Prefix::mask(prefix.len) >> 96) as u32))
            };
            let (source, destination) = (ends(rule.source), ends(rule.destination));
            let (sport, dport) = (rule.source_ports, rule.destination_ports);
            line.low[index] = halves(source.0, destination.0, sport.low, dport.low, rule.state.value);
            line.high[index] = halves(source.1, destination.1, sport.high, dport.high, rule.state.mask);
            line.low[index][7] = rule.position as u16;
            line.high[index][7] = (rule.position >> 16) as u16;
        }
        line
    }

    #[inline(always)]
    fn first_match<S: Simd>(&self, simd: S, key: &MatchKey4, state: u16) -> u32 {
        let matches = simd.match_line(self, bytemuck::cast_ref(key), state);
        let first = (matches & 1 ^ 1) as usize;
        let position = u32::from(self.low[first][7]) | u32::from(self.high[first][7]) << 16;
        // All ones where nothing matches: no branch, as nobody could predict it.
        position | u32::from(matches != 0).wrapping_sub(1)
    }
}

/// Numbers of the lanes.
static LANES: [u32; MAX_LANES] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];

impl Family for MatchKey6 {
    const WORDS: usize = 4;
    type Line = Line6;

    fn addresses(&self) -> [u128; 2] {
        [self.source, self.destination].map(packetloom_packet::key::join)
    }

    #[inline(always)]
    fn columns<S: Simd>(simd: S, keys: &[Self], block: &mut Block, at: usize, states: &States) {
        const WORDS_OF_KEY: usize = size_of::<MatchKey6>() / 4;
        // Of a half of an address, the lower word comes first.
        const ADDRESSES: [usize; 8] = [1, 0, 3, 2, 5, 4, 7, 6];
        let words: &[u32] = bytemuck::cast_slice(keys);
        let first = simd.mul(simd.load(&LANES), simd.splat(WORDS_OF_KEY as u32));
        let column = |word: usize| simd.gather(words, simd.add(first, simd.splat(word as u32)));
        for (to, from) in block.addresses.iter_mut().zip(ADDRESSES) {
            simd.store(column(from), &mut to[at..]);
        }
        block.set(simd, at, column(8), column(9), states);
    }
}

/// The masks of the prefixes of all lengths, as an address lies in a key.
static MASKS: [[u64; 2]; 129] = {
    let mut masks = [[0; 2]; 129];
    let mut len = 1;
    while len <= 128 {
        masks[len] = packetloom_packet::key::halves(u128::MAX << (128 - len));
        len += 1;
    }
    masks
};

/// One IPv6 rule: its address words are compared under masks that the lengths stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C, align(64))]
pub(super) struct Line6 {
    source: [u64; 2],
    destination: [u64; 2],
    source_ports: [u16; 2],
    destination_ports: [u16; 2],
    state: u16,
    state_mask: u16,
    position: u32,
    source_len: u8,
    destination_len: u8,
    /// Fills the line.
    reserved: [u8; 14],
}

impl RuleLine<MatchKey6> for Line6 {
    const RULES: usize = 1;

    fn new(rules: &[Entry]) -> Self {
        let Some(rule) = rules.first() else {
            // No port is above all others and below none.
            return Self {
                source: [0; 2],
                destination: [0; 2],
                source_ports: [u16::MAX, 0],
                destination_ports: [u16::MAX, 0],
                state: 0,
                state_mask: 0,
                position: NO_RULE,
                source_len: 0,
                destination_len: 0,
                reserved: [0; 14],
            };
        };
        Self {
            source: packetloom_packet::key::halves(rule.source.address),
            destination: packetloom_packet::key::halves(rule.destination.address),
            source_ports: [rule.source_ports.low, rule.source_ports.high],
            destination_ports: [rule.destination_ports.low, rule.destination_ports.high],
            state: rule.state.value,
            state_mask: rule.state.mask,
            position: rule.position,
            source_len: rule.source.len,
            destination_len: rule.destination.len,
            reserved: [0; 14],
        }
    }

    #[inline(always)]
    fn first_match<S: Simd>(&self, _simd: S, key: &MatchKey6, state: u16) -> u32 {
        let differs = |key: [u64; 2], value: [u64; 2], len: u8| {
            let mask = MASKS[usize::from(len).min(128)];
            (key[0] ^ value[0]) & mask[0] | (key[1] ^ value[1]) & mask[1]
        };
        let addresses = differs(key.source, self.source, self.source_len)
            | differs(key.destination, self.destination, self.destination_len);
        let within = |port: u16, ports: [u16; 2]| (ports[0] <= port) & (port <= ports[1]);
        let matches = (addresses == 0)
            & within(key.source_port, self.source_ports)
            & within(key.destination_port, self.destination_ports)
            & (state & self.state_mask == self.state);
        // As for IPv4.
        self.position | u32::from(matches).wrapping_sub(1)
    }
}

/// A rule as an entry; `None` where its conditions have no bits in the state word.
pub(super) fn entry<K: Family>(rule: &CompiledRule<K>, states: &States) -> Option<Entry> {
    let state = states.of_rule(rule)?;
    let [source, destination] = rule.value.addresses();
    Some(Entry {
        source: Prefix { address: source, len: rule.source_len },
        destination: Prefix { address: destination, len: rule.destination_len },
        source_ports: rule.source_ports,
        destination_ports: rule.destination_ports,
        state,
        position: rule.position,
    })
}

/// All rules of a list as entries, and the positions of those that have none: their conditions have no bits in the state word.
pub(super) fn entries<K: Family>(rules: &[CompiledRule<K>], states: &States) -> (Vec<Entry>, Vec<u32>) {
    let mut entries = Vec::with_capacity(rules.len());
    let mut others = Vec::new();
    for rule in rules {
        match entry(rule, states) {
            Some(entry) => entries.push(entry),
            None => others.push(rule.position),
        }
    }
    (entries, others)
}
