//! The state word: what rules of one list ask of protocol, TCP flags and [`KeyBits`], in 16 bits.
//!
//! The low bits number the protocols that the rules name, 0 being all others. Above them stands a bit for each condition that
//! some rule makes (has ports, is a later fragment, has SYN but not ACK, …), and one that is set in every key that a rule can
//! match at all. A rule then asks for some bits to be as it says, in one masked comparison.

use std::collections::HashMap;

use packetloom_packet::KeyBits;

use super::entry::StateMatch;
use crate::compiled::{CompiledRule, MatchKey};
use packetloom_simd::Simd;

/// A condition with a bit of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Condition {
    /// All of these bits are set.
    AllOf(KeyBits),
    /// One of these bits is set.
    OneOf(KeyBits),
    /// The flags were captured, and those of `mask` are as in `value`.
    Flags { value: u8, mask: u8 },
}

/// Bits of which every key that means something has one.
const FRAGMENTATION: KeyBits = KeyBits::FIRST_FRAGMENT.with(KeyBits::LATER_FRAGMENT).with(KeyBits::WHOLE);

/// How keys and rules of one list become state words.
#[derive(Clone, Debug)]
pub(super) struct States {
    protocol_mask: u16,
    /// The protocols that have a number of their own.
    named: [bool; 256],
    conditions: HashMap<Condition, u16>,
    protocols: [u16; 256],
    /// State words by protocol and bits as they stand in a key, `bits << 8 | protocol`, and padding.
    by_bits: Vec<u16>,
    /// What the flags leave of them, by flags, and padding; nothing where all leave all.
    by_flags: Vec<u16>,
}

/// The bits of [`KeyBits`] that mean something.
const BITS: u8 = 0x3f;

/// The conditions of one rule other than on the protocol.
fn conditions<K: MatchKey>(rule: &CompiledRule<K>) -> impl Iterator<Item = Condition> {
    let flags =
        (rule.flags_mask != 0).then_some(Condition::Flags { value: rule.flags, mask: rule.flags_mask });
    let single = [KeyBits::PORTS, KeyBits::ICMP, KeyBits::TCP_FLAGS]
        .into_iter()
        // A condition on flags says already that there are some.
        .filter(move |&bit| rule.all_of.contains(bit) && (flags.is_none() || bit != KeyBits::TCP_FLAGS))
        .map(Condition::AllOf);
    let fragments = (rule.one_of != FRAGMENTATION).then_some(Condition::OneOf(rule.one_of));
    single.chain(flags).chain(fragments)
}

impl States {
    /// For these rules: as many conditions as there is room for, the most frequent first.
    pub(super) fn new<K: MatchKey>(rules: &[CompiledRule<K>]) -> Self {
        let mut named = [false; 256];
        let mut frequency: HashMap<Condition, usize> = HashMap::new();
        for rule in rules {
            if rule.mask.fields().protocol != 0 {
                named[usize::from(rule.value.fields().protocol)] = true;
            }
            for condition in conditions(rule) {
                *frequency.entry(condition).or_default() += 1;
            }
        }
        let mut protocols = [0; 256];
        let mut count = 0;
        for (protocol, _) in named.iter().enumerate().filter(|(_, named)| **named) {
            count += 1;
            protocols[protocol] = count;
        }
        // With all 256 named, "all others" is empty, and the count is one too many for eight bits.
        if count == 256 {
            protocols = std::array::from_fn(|protocol| protocol as u16);
            count = 255;
        }
        let protocol_bits = 16 - count.leading_zeros();
        let mut ranked: Vec<_> = frequency.into_iter().collect();
        ranked
            .sort_unstable_by_key(|&(condition, rules)| (std::cmp::Reverse(rules), format!("{condition:?}")));
        ranked.truncate((15 - protocol_bits) as usize);
        let conditions: HashMap<Condition, u16> =
            ranked.iter().zip(protocol_bits..).map(|(&(condition, _), bit)| (condition, 1 << bit)).collect();
        let mut by_bits = Vec::with_capacity((usize::from(BITS) + 1) * 256 + 1);
        for bits in 0..=BITS {
            let bits = KeyBits(bits);
            let mut state = if bits.intersects(FRAGMENTATION) { Self::MEANT } else { 0 };
            for (&condition, &bit) in &conditions {
                let may_hold = match condition {
                    Condition::AllOf(all) => bits.contains(all),
                    Condition::OneOf(one) => bits.intersects(one),
                    Condition::Flags { .. } => bits.contains(KeyBits::TCP_FLAGS),
                };
                state |= if may_hold { bit } else { 0 };
            }
            by_bits.extend(protocols.iter().map(|protocol| protocol | state));
        }
        by_bits.push(0);
        let mut by_flags = vec![u16::MAX; 257];
        for (&condition, &bit) in &conditions {
            if let Condition::Flags { value, mask } = condition {
                for flags in (0..=255u8).filter(|flags| flags & mask != value) {
                    by_flags[usize::from(flags)] &= !bit;
                }
            }
        }
        if by_flags.iter().all(|&left| left == u16::MAX) {
            by_flags.clear();
        }
        Self { protocol_mask: (1 << protocol_bits) - 1, named, conditions, protocols, by_bits, by_flags }
    }

    /// The bit of every key that a rule can match at all.
    const MEANT: u16 = 1 << 15;

    /// Gives the state words of keys other numbers; not where flags change them.
    pub(super) fn renumber(&mut self, number: impl Fn(u16) -> u16) -> bool {
        let may = self.by_flags.is_empty();
        if may {
            self.by_bits.iter_mut().for_each(|state| *state = number(*state));
        }
        may
    }

    /// The state words of keys whose last words these are: protocol, flags, bits and a byte of nothing, the lowest first.
    #[inline(always)]
    pub(super) fn of<S: Simd>(&self, simd: S, last: S::V) -> S::V {
        let bits = simd.and(simd.shr(last, 8), simd.splat(u32::from(BITS) << 8));
        let index = simd.or(bits, simd.and(last, simd.splat(0xff)));
        let state = simd.gather16(&self.by_bits, index);
        if self.by_flags.is_empty() {
            return state;
        }
        let flags = simd.and(simd.shr(last, 8), simd.splat(0xff));
        simd.and(state, simd.gather16(&self.by_flags, flags))
    }

    /// What a rule asks of the state word; `None` where one of its conditions has no bit.
    pub(super) fn of_rule<K: MatchKey>(&self, rule: &CompiledRule<K>) -> Option<StateMatch> {
        let mut state = StateMatch { value: Self::MEANT, mask: Self::MEANT };
        for condition in conditions(rule) {
            state.value |= *self.conditions.get(&condition)?;
        }
        state.mask |= state.value;
        if rule.mask.fields().protocol != 0 {
            let protocol = usize::from(rule.value.fields().protocol);
            // One that no rule named when the words were made is one of "all others".
            if !self.named[protocol] {
                return None;
            }
            state.mask |= self.protocol_mask;
            state.value |= self.protocols[protocol];
        }
        Some(state)
    }

    /// The bits that number the protocol.
    pub(super) fn protocol_mask(&self) -> u16 {
        self.protocol_mask
    }

    /// The numbers that the protocols have.
    pub(super) fn protocol_numbers(&self) -> impl Iterator<Item = u16> {
        let mut numbers = self.protocols.to_vec();
        numbers.sort_unstable();
        numbers.dedup();
        numbers.into_iter()
    }

    /// Every state word that a key can have, and perhaps a few more.
    pub(super) fn all(&self) -> Vec<u16> {
        let distinct = |words: &[u16]| {
            let mut words = words.to_vec();
            words.sort_unstable();
            words.dedup();
            words
        };
        let (bits, mut flags) = (distinct(&self.by_bits), distinct(&self.by_flags));
        flags.push(u16::MAX);
        distinct(
            &bits.iter().flat_map(|bits| flags.iter().map(move |flags| bits & flags)).collect::<Vec<_>>(),
        )
    }
}
