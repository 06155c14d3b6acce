//! Which bits of a key a table hashes.

use super::build::MAX_COPIES;
use super::{Family, MULTIPLIERS, States, finish};
use crate::hybrid::entry::{Entry, Prefix};
use crate::rule::PortRange;

/// The bits of a key that are hashed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(in crate::hybrid) struct Mask {
    pub(super) source_len: u8,
    pub(super) destination_len: u8,
    /// The top bits of the ports.
    pub(super) source_port_bits: u8,
    pub(super) destination_port_bits: u8,
    pub(super) protocol: bool,
}

/// The values that the top bits of a range's ports have.
fn port_values(range: PortRange, bits: u8) -> std::ops::RangeInclusive<u32> {
    let shift = 16 - u32::from(bits);
    u32::from(range.low) >> shift..=u32::from(range.high) >> shift
}

/// Prefixes of length `len` that make up `prefix`, or the one that holds it.
fn prefixes(prefix: Prefix, len: u8) -> impl Iterator<Item = u128> + Clone {
    let first = prefix.address & Prefix::mask(len);
    let wild = u32::from(len.saturating_sub(prefix.len));
    (0..1u128 << wild.min(127)).map(move |copy| {
        // No shift by 128: where len is 0, nothing is wild.
        if copy == 0 { first } else { first | copy << (128 - u32::from(len)) }
    })
}

impl Mask {
    /// Bits that are hashed.
    fn port_bits(bits: u8) -> u32 {
        (0xffff << (16 - u32::from(bits))) & 0xffff
    }

    /// The mask of each word of a key.
    pub(super) fn words<K: Family>(&self, states: &States) -> [u32; 10] {
        let mut words = [0; 10];
        for (side, len) in [self.source_len, self.destination_len].into_iter().enumerate() {
            for word in 0..K::WORDS {
                words[side * K::WORDS + word] = (Prefix::mask(len) >> (96 - 32 * word)) as u32;
            }
        }
        words[8] = Self::port_bits(self.source_port_bits) | Self::port_bits(self.destination_port_bits) << 16;
        words[9] = if self.protocol { states.protocol_mask().into() } else { 0 };
        words
    }

    /// Distinct masked keys that match a rule.
    pub(super) fn copies(&self, rule: &Entry, protocols: &[u16], states: &States) -> u64 {
        let wild = |len: u8, prefix: Prefix| u32::from(len.saturating_sub(prefix.len));
        let wild = wild(self.source_len, rule.source) + wild(self.destination_len, rule.destination);
        if wild > 16 {
            return u64::MAX;
        }
        let range = |ports: PortRange, bits: u8| {
            let values = port_values(ports, bits);
            u64::from(values.end() - values.start()) + 1
        };
        let any_protocol = self.protocol && rule.state.mask & states.protocol_mask() == 0;
        (1 << wild)
            * range(rule.source_ports, self.source_port_bits)
            * range(rule.destination_ports, self.destination_port_bits)
            * if any_protocol { protocols.len() as u64 } else { 1 }
    }

    /// The hashes of all keys that match a rule, of which there are [`MAX_COPIES`] at most; some perhaps more than once.
    pub(super) fn hashes<K: Family>(
        &self,
        rule: &Entry,
        protocols: &[u16],
        states: &States,
        mut visit: impl FnMut(u32),
    ) {
        let side = |address: u128, first: usize| {
            (0..K::WORDS).fold(0u32, |sum, word| {
                let word_value = (address >> (96 - 32 * word)) as u32;
                sum.wrapping_add(word_value.wrapping_mul(MULTIPLIERS[first + word]))
            })
        };
        let own = [rule.state.value & states.protocol_mask()];
        let protocols = if !self.protocol {
            &[0][..]
        } else if rule.state.mask & states.protocol_mask() == 0 {
            protocols
        } else {
            &own[..]
        };
        let (sport_shift, dport_shift) =
            (16 - u32::from(self.source_port_bits), 32 - u32::from(self.destination_port_bits));
        let mut sums = Sums { all: [0; MAX_COPIES as usize], len: 1 };
        sums.add(prefixes(rule.source, self.source_len).map(|source| side(source, 0)));
        sums.add(prefixes(rule.destination, self.destination_len).map(|address| side(address, K::WORDS)));
        // With no bits of a port hashed, its value is 0 and stays so.
        let port = |value: u32, shift| value.checked_shl(shift).unwrap_or(0).wrapping_mul(MULTIPLIERS[8]);
        sums.add(port_values(rule.source_ports, self.source_port_bits).map(|value| port(value, sport_shift)));
        let destination_ports = port_values(rule.destination_ports, self.destination_port_bits);
        sums.add(destination_ports.map(|value| port(value, dport_shift)));
        sums.add(protocols.iter().map(|&protocol| u32::from(protocol).wrapping_mul(MULTIPLIERS[9])));
        sums.all[..sums.len].iter().for_each(|&sum| visit(finish(sum)));
    }
}

/// Sums of one value of each of several fields.
struct Sums {
    all: [u32; MAX_COPIES as usize],
    len: usize,
}

impl Sums {
    /// Adds each value of one more field to each sum.
    fn add(&mut self, values: impl Iterator<Item = u32>) {
        let before = self.all;
        let before = &before[..self.len];
        let mut to = self.all.chunks_exact_mut(self.len);
        let mut len = 0;
        for (value, to) in values.zip(&mut to) {
            to.iter_mut().zip(before).for_each(|(to, sum)| *to = sum.wrapping_add(value));
            len += to.len();
        }
        self.len = len;
    }
}

/// The keys that match a rule, by their words: what is the same in all, and bits that are not.
pub(super) struct RuleWords {
    value: [u32; 10],
    wild: [u32; 10],
}

impl RuleWords {
    pub(super) fn new<K: Family>(rule: &Entry) -> Self {
        let (mut value, mut wild) = ([0; 10], [0; 10]);
        for (side, prefix) in [rule.source, rule.destination].into_iter().enumerate() {
            for word in 0..K::WORDS {
                let at = side * K::WORDS + word;
                value[at] = (prefix.address >> (96 - 32 * word)) as u32;
                wild[at] = !((Prefix::mask(prefix.len) >> (96 - 32 * word)) as u32);
            }
        }
        // From the first bit in which the ends of a range differ, everything may be.
        let wild_port = |range: PortRange| {
            u32::from(u16::MAX.checked_shr((range.low ^ range.high).leading_zeros()).unwrap_or(0))
        };
        let (source, destination) = (rule.source_ports, rule.destination_ports);
        value[8] = u32::from(source.low) | u32::from(destination.low) << 16;
        wild[8] = wild_port(source) | wild_port(destination) << 16;
        value[9] = rule.state.value.into();
        wild[9] = !u32::from(rule.state.mask);
        Self { value, wild }
    }

    /// The hash of all of these keys, where they have one: `masks` are those of the words that a mask has bits of.
    pub(super) fn hash(&self, masks: &[(usize, u32)]) -> Option<u32> {
        let mut sum = 0u32;
        for &(word, mask) in masks {
            if mask & self.wild[word] != 0 {
                return None;
            }
            sum = sum.wrapping_add((self.value[word] & mask).wrapping_mul(MULTIPLIERS[word]));
        }
        Some(finish(sum))
    }
}
