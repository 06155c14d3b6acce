//! What differs between IPv4 and IPv6: how many words an address has, and how rules lie in a cache line.

use std::fmt;
use std::hint::select_unpredictable;

use bytemuck::Pod;
use packetloom_packet::{MatchKey4, MatchKey6};

use super::block::{Block, lesser};
use super::entry::{Entry, Prefix};
use super::state::States;
use crate::NO_RULE;
use crate::compiled::{CompiledRule, MatchKey};
use packetloom_simd::{Line, LongLine, Simd};

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

    /// The upper (0) or the lower (1) half of an address, source (0) or destination (1), its bits at the top.
    fn half(&self, side: usize, half: usize) -> u64;

    /// Writes the columns of [`Simd::LANES`] keys to a block, from packet `at` on.
    fn columns<S: Simd>(simd: S, keys: &[Self], block: &mut Block, at: usize, states: &States);
}

/// A cache line with rules.
pub(super) trait RuleLine<K>: Pod + Send + Sync + fmt::Debug + 'static {
    /// Rules that it holds.
    const RULES: usize;

    /// A line of these rules, in order and at most [`RuleLine::RULES`].
    fn new(rules: &[Entry]) -> Self;

    /// Whether one of them matches a packet, and then the position of the first.
    fn first_match<S: Simd>(&self, simd: S, key: &K, state: u16) -> (bool, u32);

    /// The position of the first of them that matches a packet if it is before `best`, or else `best`. Without a branch, which would
    /// be wrong half of the time; what the compiler makes none of differs from line to line.
    fn improve<S: Simd>(&self, simd: S, key: &K, state: u16, best: u32) -> u32;
}

impl Family for MatchKey4 {
    const WORDS: usize = 1;
    type Line = Line;

    fn addresses(&self) -> [u128; 2] {
        [self.source, self.destination].map(|address| u128::from(address) << 96)
    }

    #[inline(always)]
    fn half(&self, side: usize, half: usize) -> u64 {
        let address = if side == 0 { self.source } else { self.destination };
        if half == 0 { u64::from(address) << 32 } else { 0 }
    }

    #[inline(always)]
    fn columns<S: Simd>(simd: S, keys: &[Self], block: &mut Block, at: usize, states: &States) {
        let [source, destination, ports, last] = simd.columns(bytemuck::cast_slice(keys), 4);
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
    fn first_match<S: Simd>(&self, simd: S, key: &MatchKey4, state: u16) -> (bool, u32) {
        let matches = simd.match_line(self, bytemuck::cast_ref(key), state);
        let first = (matches & 1 ^ 1) as usize;
        let position = u32::from(self.low[first][7]) | u32::from(self.high[first][7]) << 16;
        (matches != 0, position)
    }

    #[inline(always)]
    fn improve<S: Simd>(&self, simd: S, key: &MatchKey4, state: u16, best: u32) -> u32 {
        let (matches, position) = self.first_match(simd, key, state);
        lesser(best, select_unpredictable(matches, position, NO_RULE))
    }
}

impl Family for MatchKey6 {
    const WORDS: usize = 4;
    type Line = LongLine;

    fn addresses(&self) -> [u128; 2] {
        [self.source, self.destination].map(packetloom_packet::key::join)
    }

    #[inline(always)]
    fn half(&self, side: usize, half: usize) -> u64 {
        let address = if side == 0 { &self.source } else { &self.destination };
        address[half & 1]
    }

    #[inline(always)]
    fn columns<S: Simd>(simd: S, keys: &[Self], block: &mut Block, at: usize, states: &States) {
        const STRIDE: usize = size_of::<MatchKey6>() / 4;
        let words: &[u32] = bytemuck::cast_slice(keys);
        for (side, columns) in block.addresses.chunks_exact_mut(4).enumerate() {
            // Of a half of an address, the lower word comes first.
            let [b, a, d, c] = simd.columns(&words[4 * side..], STRIDE);
            for (word, column) in [a, b, c, d].into_iter().zip(columns) {
                simd.store(word, &mut column[at..]);
            }
        }
        // The words before these two are in the columns already.
        let [.., ports, last] = simd.columns(&words[STRIDE - 4..], STRIDE);
        block.set(simd, at, ports, last, states);
    }
}

impl RuleLine<MatchKey6> for LongLine {
    const RULES: usize = 1;

    fn new(rules: &[Entry]) -> Self {
        // A lower bound above the upper one: no key matches.
        let (low, high) = ([u16::MAX; 4], [0; 4]);
        let nothing =
            Self { addresses: [0; 4], low, high, shifts: [0; 4], number: NO_RULE, reserved: [0; 8] };
        rules.first().map_or(nothing, |rule| {
            let [source, destination] =
                [rule.source, rule.destination].map(|prefix| packetloom_packet::key::halves(prefix.address));
            let (sport, dport, state) = (rule.source_ports, rule.destination_ports, rule.state);
            // Bits of a half that are not the prefix's.
            let rest = |prefix: Prefix, half: u8| 64 - prefix.len.saturating_sub(64 * half).min(64);
            Self {
                addresses: [source[0], source[1], destination[0], destination[1]],
                low: [sport.low, dport.low, state.value, 0],
                high: [sport.high, dport.high, state.mask, 0],
                shifts: [
                    rest(rule.source, 0),
                    rest(rule.source, 1),
                    rest(rule.destination, 0),
                    rest(rule.destination, 1),
                ],
                number: rule.position,
                ..nothing
            }
        })
    }

    #[inline(always)]
    fn first_match<S: Simd>(&self, simd: S, key: &MatchKey6, state: u16) -> (bool, u32) {
        let ([addresses @ .., _], [.., rest]): (&[u64; 5], &[u64; 5]) =
            (bytemuck::cast_ref(key), bytemuck::cast_ref(key));
        let matches = simd.match_long_line(self, addresses, bytemuck::cast(*rest), state);
        (matches != 0, self.number)
    }

    #[inline(always)]
    fn improve<S: Simd>(&self, simd: S, key: &MatchKey6, state: u16, best: u32) -> u32 {
        let (matches, position) = self.first_match(simd, key, state);
        select_unpredictable(matches & (position < best), position, best)
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
