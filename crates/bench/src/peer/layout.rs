//! Rules and keys in the form that rte_acl takes.
//!
//! A key is the protocol in a word of its own, the words of both addresses, both ports, and then, where rules ask for more,
//! a word with the TCP flags and the key's bits. All is in network order. A rule has a field for each.
//!
//! What all headers have in common is not asked: over a ClassBench trace, where every header has ports, that leaves rte_acl
//! the plain 5-tuple, which is its fastest form.

use packetloom_classify::compiled::{CompiledRule, MatchKey};
use packetloom_classify::{Rule, RuleSet};
use packetloom_packet::{KeyBits, MatchKey4, MatchKey6};

use crate::Error;

/// A key whose addresses can be taken word by word.
pub(super) trait Words: MatchKey {
    /// Words of an address.
    const ADDRESS_WORDS: u32;

    /// Both addresses, source first, each from its high end.
    fn addresses(&self) -> impl Iterator<Item = u32>;
}

impl Words for MatchKey4 {
    const ADDRESS_WORDS: u32 = 1;

    fn addresses(&self) -> impl Iterator<Item = u32> {
        [self.source, self.destination].into_iter()
    }
}

impl Words for MatchKey6 {
    const ADDRESS_WORDS: u32 = 4;

    fn addresses(&self) -> impl Iterator<Item = u32> {
        let halves = [self.source, self.destination].into_iter().flatten();
        halves.flat_map(|half| [(half >> 32) as u32, half as u32])
    }
}

/// What keys hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    /// Words of an address.
    pub(super) address_words: u32,
    /// Whether there is a word of TCP flags and bits at the end.
    pub(super) extra: bool,
}

impl Layout {
    /// 32-bit words of a key.
    pub(super) fn key_words(self) -> usize {
        2 + 2 * self.address_words as usize + usize::from(self.extra)
    }

    /// Fields of a rule: the ports are two in one word.
    pub(super) fn fields(self) -> usize {
        self.key_words() + 1
    }

    /// Keys one after the other, in memory as rte_acl reads them.
    pub(super) fn keys<K: Words>(self, keys: &[K]) -> Vec<u32> {
        let mut words = Vec::with_capacity(keys.len() * self.key_words());
        for key in keys {
            let fields = key.fields();
            words.push(u32::from_be_bytes([fields.protocol, 0, 0, 0]));
            words.extend(key.addresses());
            words.push(u32::from(fields.source_port) << 16 | u32::from(fields.destination_port));
            if self.extra {
                words.push(extra(fields.tcp_flags, fields.bits.0));
            }
        }
        words.iter_mut().for_each(|word| *word = word.to_be());
        words
    }
}

/// The last word of a key.
fn extra(flags: u8, bits: u8) -> u32 {
    u32::from_be_bytes([flags, bits, 0, 0])
}

/// One condition of a rule: a value, and a mask, a prefix length or the high end of a range, whichever the field has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub(super) struct Field {
    value: u32,
    limit: u32,
}

/// Rules of one family.
#[derive(Debug)]
pub(super) struct Rules {
    /// What they look at.
    pub(super) layout: Layout,
    /// The fields of each rule, one after the other.
    pub(super) fields: Vec<Field>,
    /// The position of each rule.
    pub(super) positions: Vec<u32>,
}

impl Rules {
    /// The rules that the headers `keys` can meet.
    ///
    /// # Errors
    ///
    /// [`Error::Peer`] for a rule that no fields of rte_acl say.
    pub(super) fn new<K: Words>(set: &RuleSet, keys: &[K]) -> Result<Self, Error> {
        let seen = Seen::new(keys);
        let mut rules = Vec::new();
        for rule in CompiledRule::<K>::all(set) {
            match seen.condition(&rule) {
                Some(Condition::Never) => {}
                Some(Condition::Bits { value, mask }) => {
                    let limit = extra(rule.flags_mask, mask);
                    rules.push((rule, Field { value: extra(rule.flags, value), limit }));
                }
                None => {
                    let Rule { line, .. } = set.rules[rule.position as usize];
                    return Err(Error::Peer(format!(
                        "rte_acl has no field for what the rule at line {line} asks of fragments"
                    )));
                }
            }
        }
        let layout =
            Layout { address_words: K::ADDRESS_WORDS, extra: rules.iter().any(|(_, last)| last.limit != 0) };
        let mut fields = Vec::with_capacity(rules.len() * layout.fields());
        for (rule, last) in &rules {
            let (value, mask) = (rule.value.fields(), rule.mask.fields());
            fields.push(Field { value: value.protocol.into(), limit: mask.protocol.into() });
            let words = rule.value.addresses().zip(rule.mask.addresses());
            fields.extend(words.map(|(value, mask)| Field { value, limit: mask.leading_ones() }));
            for ports in [rule.source_ports, rule.destination_ports] {
                fields.push(Field { value: ports.low.into(), limit: ports.high.into() });
            }
            fields.extend(layout.extra.then_some(*last));
        }
        Ok(Self { layout, fields, positions: rules.iter().map(|(rule, _)| rule.position).collect() })
    }
}

/// The values that the bits of some headers have.
struct Seen {
    values: Vec<KeyBits>,
    /// The bits in which they differ.
    differ: u8,
}

/// What a rule asks of the bits of headers.
enum Condition {
    /// Something that none of them has.
    Never,
    /// Those of `mask` must be as in `value`.
    Bits { value: u8, mask: u8 },
}

/// The bits in which the values are not all the same.
fn differences(values: impl Iterator<Item = KeyBits>) -> u8 {
    let (and, or) = values.fold((u8::MAX, 0), |(and, or), KeyBits(bits)| (and & bits, or | bits));
    and ^ or
}

impl Seen {
    fn new<K: MatchKey>(keys: &[K]) -> Self {
        let mut values: Vec<_> = keys.iter().map(|key| key.fields().bits).collect();
        values.sort_unstable();
        values.dedup();
        Self { differ: differences(values.iter().copied()), values }
    }

    /// What `rule` asks of the bits, given that there are no others; `None` where it is more than a mask can say.
    fn condition<K>(&self, rule: &CompiledRule<K>) -> Option<Condition> {
        let accepted = |bits: &KeyBits| bits.contains(rule.all_of) && bits.intersects(rule.one_of);
        let accepted = || self.values.iter().copied().filter(accepted);
        let Some(KeyBits(one)) = accepted().next() else { return Some(Condition::Never) };
        // The smallest set of values with a mask that holds all that are accepted: it must not hold others.
        let mask = self.differ & !differences(accepted());
        let held = self.values.iter().filter(|bits| bits.0 & mask == one & mask).count();
        (held == accepted().count()).then_some(Condition::Bits { value: one & mask, mask })
    }
}
