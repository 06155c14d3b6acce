//! Rules as comparisons over match keys.
//!
//! Every condition becomes one of three: a masked comparison, a range of the two 16-bit fields, or a test of the key's
//! [`KeyBits`]. IPv4 and IPv6 differ only in the width of addresses, so classifiers are written once over [`MatchKey`].

use std::fmt;
use std::hash::Hash;

use packetloom_packet::key::halves;
use packetloom_packet::{Key, KeyBits, MatchKey4, MatchKey6};

use crate::NO_RULE;
use crate::rule::{Addresses, Fragments, PortRange, Prefix4, Prefix6, Rule, RuleSet};

/// A match key of one family, which classifiers are generic over.
pub trait MatchKey: Copy + Default + Eq + Hash + fmt::Debug + Send + Sync + 'static {
    /// Something for each 32-bit word of the two addresses.
    type Words<T: Copy + Send + Sync>: Copy + Send + Sync + AsRef<[T]> + AsMut<[T]>;

    /// What `each` makes of the words of source and destination, in this order, the highest of each first.
    fn words<T: Copy + Send + Sync>(&self, each: impl FnMut(u32) -> T) -> Self::Words<T>;

    /// Source and destination prefix of a rule of this family, as keys (the addresses) and masks; `None` for a rule of the other one.
    fn prefixes(addresses: Addresses) -> Option<Prefixes<Self>>;

    /// Both keys' fields combined by AND; of `bits`, nothing is kept.
    fn masked(&self, mask: &Self) -> Self;

    /// The key with its two addresses, ports and protocol set, and nothing else.
    fn with_ports(self, source: u16, destination: u16, protocol: u8) -> Self;

    /// A mask for prefixes of these lengths, and nothing of the other fields.
    fn prefix_mask(source_len: u8, destination_len: u8) -> Self;

    /// The parts of the key that are the same for both families.
    fn fields(&self) -> Fields;

    /// A hash of addresses, ports and protocol.
    fn bucket_hash(&self) -> u64;
}

/// What [`MatchKey::prefixes`] yields.
#[derive(Clone, Copy, Debug)]
pub struct Prefixes<K> {
    /// Addresses of both prefixes.
    pub value: K,
    /// The bits of them that are fixed.
    pub mask: K,
    /// Length of the source prefix.
    pub source_len: u8,
    /// Length of the destination prefix.
    pub destination_len: u8,
}

/// The parts of a key that are the same for both families.
#[derive(Clone, Copy, Debug)]
pub struct Fields {
    /// Source port or ICMP type.
    pub source_port: u16,
    /// Destination port or ICMP code.
    pub destination_port: u16,
    /// IP protocol.
    pub protocol: u8,
    /// TCP flags.
    pub tcp_flags: u8,
    /// What is known of the packet.
    pub bits: KeyBits,
}

macro_rules! match_key {
    ($key:ident, $variant:ident, $prefix:ident, $address:expr, $words:literal, $split:expr, $and:expr, $hash:expr) => {
        impl MatchKey for $key {
            type Words<T: Copy + Send + Sync> = [T; $words];

            #[inline(always)]
            fn words<T: Copy + Send + Sync>(&self, each: impl FnMut(u32) -> T) -> [T; $words] {
                $split(self.source, self.destination).map(each)
            }

            fn prefixes(addresses: Addresses) -> Option<Prefixes<Self>> {
                let (source, destination) = match addresses {
                    Addresses::Any => ($prefix::new(0, 0), $prefix::new(0, 0)),
                    Addresses::$variant(source, destination) => (source, destination),
                    _ => return None,
                };
                let value = Self {
                    source: $address(source.address()),
                    destination: $address(destination.address()),
                    ..Self::default()
                };
                let (source_len, destination_len) = (source.len(), destination.len());
                let mask = Self::prefix_mask(source_len, destination_len);
                Some(Prefixes { value, mask, source_len, destination_len })
            }

            fn prefix_mask(source_len: u8, destination_len: u8) -> Self {
                Self {
                    source: $address($prefix::new(0, source_len).mask()),
                    destination: $address($prefix::new(0, destination_len).mask()),
                    ..Self::default()
                }
            }

            #[inline]
            fn masked(&self, mask: &Self) -> Self {
                Self {
                    source: $and(self.source, mask.source),
                    destination: $and(self.destination, mask.destination),
                    source_port: self.source_port & mask.source_port,
                    destination_port: self.destination_port & mask.destination_port,
                    protocol: self.protocol & mask.protocol,
                    tcp_flags: 0,
                    bits: KeyBits(0),
                    reserved: 0,
                }
            }

            fn with_ports(self, source: u16, destination: u16, protocol: u8) -> Self {
                Self { source_port: source, destination_port: destination, protocol, ..self }
            }

            #[inline]
            fn fields(&self) -> Fields {
                Fields {
                    source_port: self.source_port,
                    destination_port: self.destination_port,
                    protocol: self.protocol,
                    tcp_flags: self.tcp_flags,
                    bits: self.bits,
                }
            }

            #[inline]
            fn bucket_hash(&self) -> u64 {
                let tail = u64::from(self.source_port)
                    | u64::from(self.destination_port) << 16
                    | u64::from(self.protocol) << 32;
                mix($hash(self.source, self.destination), tail)
            }
        }
    };
}

const fn high(word: u64) -> u32 {
    (word >> 32) as u32
}

const fn low(word: u64) -> u32 {
    word as u32
}

/// One round of multiply-and-fold: the two halves of the 128-bit product, combined.
#[inline]
fn mix(x: u64, y: u64) -> u64 {
    let product = u128::from(x ^ 0x9e37_79b9_7f4a_7c15) * u128::from(y ^ 0xd6e8_feb8_6659_fd93);
    (product as u64) ^ (product >> 64) as u64
}

match_key!(
    MatchKey4,
    V4,
    Prefix4,
    std::convert::identity,
    2,
    |source: u32, destination: u32| [source, destination],
    |a: u32, b: u32| a & b,
    |source: u32, destination: u32| u64::from(source) << 32 | u64::from(destination)
);
match_key!(
    MatchKey6,
    V6,
    Prefix6,
    halves,
    8,
    |source: [u64; 2], destination: [u64; 2]| {
        let [[a, b], [c, d]] = [source, destination];
        [high(a), low(a), high(b), low(b), high(c), low(c), high(d), low(d)]
    },
    |a: [u64; 2], b: [u64; 2]| [a[0] & b[0], a[1] & b[1]],
    |source: [u64; 2], destination: [u64; 2]| mix(
        mix(source[0], source[1]),
        mix(destination[0], destination[1])
    )
);

/// A rule as comparisons over keys of one family.
#[derive(Clone, Copy, Debug)]
pub struct CompiledRule<K> {
    /// Addresses and protocol.
    pub value: K,
    /// The bits of `value` that are compared.
    pub mask: K,
    /// Source ports, or the ICMP type.
    pub source_ports: PortRange,
    /// Destination ports, or the ICMP code.
    pub destination_ports: PortRange,
    /// TCP flags that must be set.
    pub flags: u8,
    /// TCP flags that are compared.
    pub flags_mask: u8,
    /// Bits of the key that must all be set.
    pub all_of: KeyBits,
    /// Bits of the key of which one must be set.
    pub one_of: KeyBits,
    /// Length of the source prefix.
    pub source_len: u8,
    /// Length of the destination prefix.
    pub destination_len: u8,
    /// Position in the rule set.
    pub position: u32,
}

impl<K: MatchKey> CompiledRule<K> {
    /// The rule at `position`, or `None` where it is for the other family, or where no packet can match it. Keys do not say by which
    /// interfaces a packet comes and leaves, nor its connection's state: see [`RuleSet::seen_in`].
    pub fn new(rule: &Rule, position: u32) -> Option<Self> {
        debug_assert!(!rule.is_contextual(), "rules as packets of one context see them");
        let prefixes = K::prefixes(rule.addresses)?;
        let asks_ports = !rule.source_ports.is_any() || !rule.destination_ports.is_any();
        let asks_icmp = rule.icmp_type.is_some() || rule.icmp_code.is_some();
        if asks_ports && asks_icmp {
            return None;
        }
        let single =
            |value: Option<u8>| value.map_or(PortRange::ANY, |v| PortRange { low: v.into(), high: v.into() });
        let (source_ports, destination_ports) = if asks_icmp {
            (single(rule.icmp_type), single(rule.icmp_code))
        } else {
            (rule.source_ports, rule.destination_ports)
        };
        let mut all_of = KeyBits(0);
        if asks_ports {
            all_of = all_of.with(KeyBits::PORTS);
        }
        if asks_icmp {
            all_of = all_of.with(KeyBits::ICMP);
        }
        if rule.tcp_flags.is_some() {
            all_of = all_of.with(KeyBits::TCP_FLAGS);
        }
        let any_fragment = KeyBits::FIRST_FRAGMENT.with(KeyBits::LATER_FRAGMENT);
        let one_of = match rule.fragments {
            Fragments::All => any_fragment.with(KeyBits::WHOLE),
            Fragments::Any => any_fragment,
            Fragments::None => KeyBits::WHOLE,
            Fragments::First => KeyBits::FIRST_FRAGMENT,
            Fragments::Later => KeyBits::LATER_FRAGMENT,
            Fragments::NotLater => KeyBits::WHOLE.with(KeyBits::FIRST_FRAGMENT),
        };
        let flags = rule.tcp_flags.map_or((0, 0), |flags| (flags.set & flags.mask, flags.mask));
        let protocol_mask = if rule.protocol.is_some() { u8::MAX } else { 0 };
        Some(Self {
            value: prefixes.value.with_ports(0, 0, rule.protocol.unwrap_or(0)),
            mask: prefixes.mask.with_ports(0, 0, protocol_mask),
            source_ports,
            destination_ports,
            flags: flags.0,
            flags_mask: flags.1,
            all_of,
            one_of,
            source_len: prefixes.source_len,
            destination_len: prefixes.destination_len,
            position,
        })
    }

    /// All rules of a set that packets of this family can match, in order.
    pub fn all(rules: &RuleSet) -> Vec<Self> {
        let each = rules.rules.iter().zip(0..);
        each.filter_map(|(rule, position)| Self::new(rule, position)).collect()
    }

    /// Whether a packet with this key meets every condition.
    #[inline]
    pub fn matches(&self, key: &K) -> bool {
        let fields = key.fields();
        key.masked(&self.mask) == self.value
            && self.source_ports.contains(fields.source_port)
            && self.destination_ports.contains(fields.destination_port)
            && fields.tcp_flags & self.flags_mask == self.flags
            && fields.bits.contains(self.all_of)
            && fields.bits.intersects(self.one_of)
    }
}

/// The position of the first rule that matches: one rule after the other, the oracle that classifiers are compared with.
pub fn first_match<K: MatchKey>(rules: &[CompiledRule<K>], key: &K) -> u32 {
    rules.iter().find(|rule| rule.matches(key)).map_or(NO_RULE, |rule| rule.position)
}

/// The positions of all rules that match a packet, in order; they are found as they are asked for.
pub fn matching(rules: &RuleSet, key: &Key) -> impl Iterator<Item = u32> {
    let matches = |rule: &Rule, position| match key {
        Key::V4(key) => CompiledRule::new(rule, position).is_some_and(|rule| rule.matches(key)),
        Key::V6(key) => CompiledRule::new(rule, position).is_some_and(|rule| rule.matches(key)),
    };
    let each = rules.rules.iter().zip(0..);
    each.filter_map(move |(rule, position)| matches(rule, position).then_some(position))
}
