//! What a rule of any format matches, as a product of sets; and our rules from it.
//!
//! A [`Region`] can say what one of our rules cannot (negations, lists, several protocols), and it is closed under
//! intersection. [`Region::rules`] yields the rules that together match the same packets.
//!
//! Conditions on ports, ICMP and TCP flags hold only for packets that have them: setting one leaves only the protocols that
//! have such a header, and takes fragments other than the first away. Of a packet whose header was cut short by the capture,
//! neither such a condition nor its negation holds.

use std::sync::Arc;

use packetloom_packet::protocol;

use super::set::{Integer, Set};
use crate::rule::{Addresses, Fragments, PortRange, Prefix4, Prefix6, Rule, TcpFlagMatch};
use crate::{ConnectionStates, Interfaces};

/// Source and destination addresses: of one family, or every one of both.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ends {
    /// Every address of either family.
    Any,
    /// IPv4.
    V4(Set<u32>, Set<u32>),
    /// IPv6.
    V6(Set<u128>, Set<u128>),
}

impl Ends {
    /// Every IPv4 address.
    pub(crate) const ALL_V4: Self = Self::V4(Set::ALL, Set::ALL);
    /// Every IPv6 address.
    pub(crate) const ALL_V6: Self = Self::V6(Set::ALL, Set::ALL);

    fn is_empty(&self) -> bool {
        match self {
            Self::Any => false,
            Self::V4(source, destination) => source.is_empty() || destination.is_empty(),
            Self::V6(source, destination) => source.is_empty() || destination.is_empty(),
        }
    }

    fn intersection(&self, other: &Self) -> Option<Self> {
        Some(match (self, other) {
            (Self::Any, ends) | (ends, Self::Any) => ends.clone(),
            (Self::V4(a, b), Self::V4(c, d)) => Self::V4(a.intersection(c), b.intersection(d)),
            (Self::V6(a, b), Self::V6(c, d)) => Self::V6(a.intersection(c), b.intersection(d)),
            _ => return None,
        })
    }

    fn intersects(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Any, ends) | (ends, Self::Any) => !ends.is_empty(),
            (Self::V4(a, b), Self::V4(c, d)) => a.intersects(c) && b.intersects(d),
            (Self::V6(a, b), Self::V6(c, d)) => a.intersects(c) && b.intersects(d),
            _ => false,
        }
    }

    /// What is in here and not in `other`, in parts that do not overlap.
    fn without(&self, other: &Self) -> Vec<Self> {
        fn parts<T: Integer>(
            (source, destination): (&Set<T>, &Set<T>),
            (other_source, other_destination): (&Set<T>, &Set<T>),
            of: fn(Set<T>, Set<T>) -> Ends,
        ) -> Vec<Ends> {
            vec![
                of(source.intersection(&other_source.complement()), destination.clone()),
                of(
                    source.intersection(other_source),
                    destination.intersection(&other_destination.complement()),
                ),
            ]
        }
        let mut left = match (self, other) {
            (_, Self::Any) => Vec::new(),
            (Self::Any, Self::V4(..)) => {
                let mut left = Self::ALL_V4.without(other);
                left.push(Self::ALL_V6);
                left
            }
            (Self::Any, Self::V6(..)) => {
                let mut left = Self::ALL_V6.without(other);
                left.push(Self::ALL_V4);
                left
            }
            (Self::V4(a, b), Self::V4(c, d)) => parts((a, b), (c, d), Self::V4),
            (Self::V6(a, b), Self::V6(c, d)) => parts((a, b), (c, d), Self::V6),
            _ => vec![self.clone()],
        };
        left.retain(|ends| !ends.is_empty());
        left
    }
}

/// Kinds of packets by fragmentation, as a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kinds(u8);

impl Kinds {
    /// Whole packets.
    pub(crate) const WHOLE: Self = Self(1);
    /// First fragments.
    pub(crate) const FIRST: Self = Self(2);
    /// Later fragments.
    pub(crate) const LATER: Self = Self(4);
    /// Packets that begin with their transport header.
    pub(crate) const WITH_HEADER: Self = Self(3);
    /// Fragments.
    pub(crate) const FRAGMENTS: Self = Self(6);
    /// All packets.
    pub(crate) const ALL: Self = Self(7);

    /// No packets.
    pub(crate) const NONE: Self = Self(0);

    /// The kinds of one of both.
    pub(crate) const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The kinds of both.
    pub(crate) const fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// The kinds that are not in it.
    pub(crate) const fn complement(self) -> Self {
        Self(Self::ALL.0 & !self.0)
    }

    /// Conditions that together hold for these kinds; `with_header` where another condition leaves later fragments out.
    fn conditions(self, with_header: bool) -> &'static [Fragments] {
        match self {
            Self::ALL => &[Fragments::All],
            Self::WITH_HEADER if with_header => &[Fragments::All],
            Self::WITH_HEADER => &[Fragments::NotLater],
            Self::FRAGMENTS => &[Fragments::Any],
            Self::WHOLE => &[Fragments::None],
            Self::FIRST => &[Fragments::First],
            Self::LATER => &[Fragments::Later],
            Self::NONE => &[],
            _ => &[Fragments::None, Fragments::Later],
        }
    }
}

/// A set of packets: those with every field in the field's set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Region {
    ends: Ends,
    protocols: Set<u8>,
    kinds: Kinds,
    source_ports: Set<u16>,
    destination_ports: Set<u16>,
    /// Type (high byte) and code (low byte).
    icmp: Set<u16>,
    /// The byte of TCP flags.
    flags: Set<u8>,
    /// By which they come.
    interfaces: Interfaces,
    /// By which they leave.
    out: Interfaces,
    /// Of their connections.
    states: ConnectionStates,
}

impl Region {
    /// Every packet between these ends.
    pub(crate) const fn of(ends: Ends) -> Self {
        Self {
            ends,
            protocols: Set::ALL,
            kinds: Kinds::ALL,
            source_ports: Set::ALL,
            destination_ports: Set::ALL,
            icmp: Set::ALL,
            flags: Set::ALL,
            interfaces: Interfaces::ALL,
            out: Interfaces::ALL,
            states: ConnectionStates::ALL,
        }
    }

    /// Leaves what is between these ends.
    #[must_use]
    pub(crate) fn ends(mut self, ends: &Ends) -> Self {
        match self.ends.intersection(ends) {
            Some(ends) => self.ends = ends,
            None => self.kinds = Kinds::NONE,
        }
        self
    }

    /// Whether it is the same whatever interface packets come by.
    pub(crate) fn is_of_all_entries(&self) -> bool {
        self.interfaces.is_all()
    }

    /// Whether it is the same whatever interface packets leave by.
    pub(crate) fn is_of_all_exits(&self) -> bool {
        self.out.is_all()
    }

    /// The interfaces by which its packets leave.
    pub(crate) fn exits(&self) -> &Interfaces {
        &self.out
    }

    /// The same whatever interface packets come by.
    #[must_use]
    pub(crate) fn of_all_entries(self) -> Self {
        Self { interfaces: Interfaces::ALL, ..self }
    }

    /// The same whatever interface packets leave by.
    #[must_use]
    pub(crate) fn of_all_exits(self) -> Self {
        Self { out: Interfaces::ALL, ..self }
    }

    /// Leaves what comes by these interfaces.
    #[must_use]
    pub(crate) fn interfaces(mut self, interfaces: &Interfaces) -> Self {
        self.interfaces = self.interfaces.intersection(interfaces);
        self
    }

    /// Leaves what goes out by these interfaces.
    #[must_use]
    pub(crate) fn out(mut self, interfaces: &Interfaces) -> Self {
        self.out = self.out.intersection(interfaces);
        self
    }

    /// Leaves packets of connections in these states.
    #[must_use]
    pub(crate) fn states(mut self, states: ConnectionStates) -> Self {
        self.states = self.states.intersection(states);
        self
    }

    /// Leaves these protocols.
    #[must_use]
    pub(crate) fn protocols(mut self, protocols: &Set<u8>) -> Self {
        self.protocols = self.protocols.intersection(protocols);
        self
    }

    /// Leaves these kinds of packets.
    #[must_use]
    pub(crate) fn kinds(mut self, kinds: Kinds) -> Self {
        self.kinds = self.kinds.intersection(kinds);
        self
    }

    /// Leaves packets with these source ports.
    #[must_use]
    pub(crate) fn source_ports(mut self, ports: &Set<u16>) -> Self {
        self.source_ports = self.source_ports.intersection(ports);
        self.with_header(protocol::has_ports)
    }

    /// Leaves packets with these destination ports.
    #[must_use]
    pub(crate) fn destination_ports(mut self, ports: &Set<u16>) -> Self {
        self.destination_ports = self.destination_ports.intersection(ports);
        self.with_header(protocol::has_ports)
    }

    /// Leaves ICMP and ICMPv6 packets with these types (high byte) and codes (low byte).
    #[must_use]
    pub(crate) fn icmp(mut self, types_and_codes: &Set<u16>) -> Self {
        self.icmp = self.icmp.intersection(types_and_codes);
        self.with_header(protocol::has_type_and_code)
    }

    /// Leaves TCP packets whose byte of flags is one of these.
    #[must_use]
    pub(crate) fn flags(mut self, flags: &Set<u8>) -> Self {
        self.flags = self.flags.intersection(flags);
        self.with_header(|number| number == protocol::TCP)
    }

    fn with_header(self, has: fn(u8) -> bool) -> Self {
        let those = Set::of((0..=u8::MAX).filter(|&number| has(number)).map(|number| (number, number)));
        self.protocols(&those).kinds(Kinds::WITH_HEADER)
    }

    /// Whether no packet is in it.
    pub(crate) fn is_empty(&self) -> bool {
        self.kinds == Kinds::NONE
            || self.ends.is_empty()
            || self.protocols.is_empty()
            || self.source_ports.is_empty()
            || self.destination_ports.is_empty()
            || self.icmp.is_empty()
            || self.flags.is_empty()
            || self.interfaces.is_empty()
            || self.out.is_empty()
            || self.states.is_empty()
    }

    /// Whether all of its protocols are of some kind.
    pub(crate) fn has_only(&self, kind: impl Fn(u8) -> bool) -> bool {
        self.protocols.members().all(kind)
    }

    /// Whether it holds packets of both families.
    pub(crate) fn is_of_both_families(&self) -> bool {
        self.ends == Ends::Any
    }

    /// How much there is to compare: the ranges of all fields.
    pub(crate) fn size(&self) -> usize {
        let ends = match &self.ends {
            Ends::Any => 0,
            Ends::V4(source, destination) => source.size() + destination.size(),
            Ends::V6(source, destination) => source.size() + destination.size(),
        };
        let ports = self.source_ports.size() + self.destination_ports.size();
        1 + ends
            + self.protocols.size()
            + ports
            + self.icmp.size()
            + self.flags.size()
            + self.interfaces.size()
            + self.out.size()
    }

    /// The packets of both; `None` where there are none.
    pub(crate) fn intersection(&self, other: &Self) -> Option<Self> {
        if !self.intersects(other) {
            return None;
        }
        Some(Self {
            ends: self.ends.intersection(&other.ends)?,
            protocols: self.protocols.intersection(&other.protocols),
            kinds: self.kinds.intersection(other.kinds),
            source_ports: self.source_ports.intersection(&other.source_ports),
            destination_ports: self.destination_ports.intersection(&other.destination_ports),
            icmp: self.icmp.intersection(&other.icmp),
            flags: self.flags.intersection(&other.flags),
            interfaces: self.interfaces.intersection(&other.interfaces),
            out: self.out.intersection(&other.out),
            states: self.states.intersection(other.states),
        })
    }

    fn intersects(&self, other: &Self) -> bool {
        self.kinds.intersection(other.kinds) != Kinds::NONE
            && self.protocols.intersects(&other.protocols)
            && self.ends.intersects(&other.ends)
            && self.source_ports.intersects(&other.source_ports)
            && self.destination_ports.intersects(&other.destination_ports)
            && self.icmp.intersects(&other.icmp)
            && self.flags.intersects(&other.flags)
            && !self.states.intersection(other.states).is_empty()
            && !self.interfaces.intersection(&other.interfaces).is_empty()
            && !self.out.intersection(&other.out).is_empty()
    }

    /// What is in here and not in `other`, in parts that do not overlap.
    pub(crate) fn without(self, other: &Self) -> Vec<Self> {
        if !self.intersects(other) {
            return vec![self];
        }
        let mut left: Vec<Self> =
            self.ends.without(&other.ends).into_iter().map(|ends| Self { ends, ..self.clone() }).collect();
        // What is still to be taken apart lies inside `other` in every field before this one.
        let mut inside = self.ends(&other.ends);
        macro_rules! field {
            ($field:ident, $intersection:expr) => {
                let outside = $intersection(&inside.$field, &other.$field.complement());
                left.push(Self { $field: outside, ..inside.clone() });
                inside.$field = $intersection(&inside.$field, &other.$field);
            };
        }
        field!(protocols, Set::intersection);
        field!(kinds, |a: &Kinds, b: &Kinds| a.intersection(*b));
        field!(source_ports, Set::intersection);
        field!(destination_ports, Set::intersection);
        field!(icmp, Set::intersection);
        field!(flags, Set::intersection);
        field!(interfaces, Interfaces::intersection);
        field!(out, Interfaces::intersection);
        field!(states, |a: &ConnectionStates, b: &ConnectionStates| a.intersection(*b));
        left.retain(|region| !region.is_empty());
        left
    }

    /// Rules that together match these packets, one after the other, all else as in `template`; `None` where they are more than
    /// `limit`.
    pub(crate) fn rules(&self, template: &Rule, limit: usize) -> Option<Vec<Rule>> {
        if self.is_empty() {
            return Some(Vec::new());
        }
        let (sources, destinations) = self.addresses(limit);
        let protocols = optional(&self.protocols);
        let ports =
            |set: &Set<u16>| set.ranges().map(|(low, high)| PortRange { low, high }).collect::<Vec<_>>();
        let (source_ports, destination_ports) = (ports(&self.source_ports), ports(&self.destination_ports));
        let (icmp, flags) = (types_and_codes(&self.icmp), flag_matches(&self.flags));
        let with_header = !(self.source_ports.is_all()
            && self.destination_ports.is_all()
            && self.icmp.is_all()
            && self.flags.is_all());
        let kinds = self.kinds.conditions(with_header);
        let lengths = [
            sources.len(),
            destinations.len(),
            protocols.len(),
            kinds.len(),
            source_ports.len(),
            destination_ports.len(),
            icmp.len(),
            flags.len(),
        ];
        let count = lengths.into_iter().fold(1, usize::saturating_mul);
        let (interfaces, out) = (some(&self.interfaces), some(&self.out));
        let rule = |number| {
            let mut rest = number;
            // The last field changes fastest.
            let mut at = lengths;
            for (index, length) in at.iter_mut().zip(lengths).rev() {
                *index = rest % length;
                rest /= length;
            }
            Rule {
                addresses: both(sources[at[0]], destinations[at[1]]),
                protocol: protocols[at[2]],
                fragments: kinds[at[3]],
                source_ports: source_ports[at[4]],
                destination_ports: destination_ports[at[5]],
                icmp_type: icmp[at[6]].0,
                icmp_code: icmp[at[6]].1,
                tcp_flags: flags[at[7]],
                interfaces: interfaces.clone(),
                out: out.clone(),
                states: self.states,
                ..template.clone()
            }
        };
        (count <= limit).then(|| (0..count).map(rule).collect())
    }

    /// One rule without an action that matches all of these packets, and others where no rule says it better.
    pub(crate) fn hull(&self) -> Rule {
        fn bounds<T: Integer>(set: &Set<T>) -> (T, T) {
            let mut ranges = set.ranges();
            let (low, high) = ranges.next().unwrap_or((T::MIN, T::MAX));
            (low, ranges.last().map_or(high, |(_, high)| high))
        }
        // All addresses between two begin with what these two have in common.
        let v4 = |set: &Set<u32>| {
            let (low, high) = bounds(set);
            Prefix4::new(low, (low ^ high).leading_zeros() as u8)
        };
        let v6 = |set: &Set<u128>| {
            let (low, high) = bounds(set);
            Prefix6::new(low, (low ^ high).leading_zeros() as u8)
        };
        let ports = |set: &Set<u16>| {
            let (low, high) = bounds(set);
            PortRange { low, high }
        };
        let protocol = {
            let (low, high) = bounds(&self.protocols);
            (low == high).then_some(low)
        };
        let (source_ports, destination_ports) = (ports(&self.source_ports), ports(&self.destination_ports));
        let (icmp_type, icmp_code) = match types_and_codes(&self.icmp)[..] {
            [one] if protocol.is_some_and(protocol::has_type_and_code) => one,
            _ => (None, None),
        };
        let tcp_flags = match flag_matches(&self.flags)[..] {
            [one] if protocol == Some(protocol::TCP) => one,
            _ => None,
        };
        let with_header = !(source_ports.is_any() && destination_ports.is_any())
            || icmp_type.is_some()
            || tcp_flags.is_some();
        let fragments = match self.kinds.conditions(with_header) {
            [one] => *one,
            _ => Fragments::All,
        };
        Rule {
            addresses: match &self.ends {
                Ends::Any => Addresses::Any,
                Ends::V4(source, destination) => Addresses::V4(v4(source), v4(destination)),
                Ends::V6(source, destination) => Addresses::V6(v6(source), v6(destination)),
            },
            protocol,
            source_ports,
            destination_ports,
            icmp_type,
            icmp_code,
            tcp_flags,
            fragments,
            interfaces: some(&self.interfaces),
            out: some(&self.out),
            states: self.states,
            ..Rule::any(None)
        }
    }

    /// Source and destination prefixes; of each no more than tell that they are more than `limit`.
    fn addresses(&self, limit: usize) -> (Vec<End>, Vec<End>) {
        let limit = limit.saturating_add(1);
        let v4 = |set: &Set<u32>| prefixes4(set).map(End::V4).take(limit).collect();
        let v6 = |set: &Set<u128>| prefixes6(set).map(End::V6).take(limit).collect();
        match &self.ends {
            Ends::Any => (vec![End::Any], vec![End::Any]),
            Ends::V4(source, destination) => (v4(source), v4(destination)),
            Ends::V6(source, destination) => (v6(source), v6(destination)),
        }
    }
}

/// One end of a rule.
#[derive(Clone, Copy)]
enum End {
    Any,
    V4(Prefix4),
    V6(Prefix6),
}

fn both(source: End, destination: End) -> Addresses {
    match (source, destination) {
        (End::V4(source), End::V4(destination)) => Addresses::V4(source, destination),
        (End::V6(source), End::V6(destination)) => Addresses::V6(source, destination),
        _ => Addresses::Any,
    }
}

/// Nothing for all protocols, else each.
fn optional(protocols: &Set<u8>) -> Vec<Option<u8>> {
    if protocols.is_all() { vec![None] } else { protocols.members().map(Some).collect() }
}

macro_rules! prefixes {
    ($name:ident, $word:ty, $prefix:ident) => {
        /// The fewest prefixes that together hold these addresses.
        pub(crate) fn $name(set: &Set<$word>) -> impl Iterator<Item = $prefix> + '_ {
            set.ranges().flat_map(|(low, high)| {
                let mut from = Some(low);
                std::iter::from_fn(move || {
                    let low = from.filter(|&low| low <= high)?;
                    // The largest block that begins here and does not reach past the end.
                    let fits = |bits: &u32| {
                        let rest = <$word>::MAX.checked_shr(<$word>::BITS - bits).unwrap_or(0);
                        low & rest == 0 && low | rest <= high
                    };
                    let bits = (0..=<$word>::BITS).rev().find(fits).unwrap_or(0);
                    let rest = <$word>::MAX.checked_shr(<$word>::BITS - bits).unwrap_or(0);
                    from = (low | rest).checked_add(1);
                    Some($prefix::new(low, (<$word>::BITS - bits) as u8))
                })
            })
        }
    };
}

prefixes!(prefixes4, u32, Prefix4);
prefixes!(prefixes6, u128, Prefix6);

/// Types, and codes where not all of a type's are meant.
fn types_and_codes(set: &Set<u16>) -> Vec<(Option<u8>, Option<u8>)> {
    if set.is_all() {
        return vec![(None, None)];
    }
    let codes = |icmp_type: u8| {
        let [low, high] = [0, u8::MAX].map(|code| u16::from_be_bytes([icmp_type, code]));
        let all = Set::range(low, high);
        let those = set.intersection(&all);
        let whole = those == all;
        let each = those.members().filter(move |_| !whole).map(|value| Some(value.to_be_bytes()[1]));
        let each: Vec<_> = whole.then_some(None).into_iter().chain(each).collect();
        each.into_iter().map(move |code| (Some(icmp_type), code))
    };
    (0..=u8::MAX).flat_map(codes).collect()
}

/// Matches of which exactly one holds for each of these values of the flags.
fn flag_matches(set: &Set<u8>) -> Vec<Option<TcpFlagMatch>> {
    /// Whether each value is in the set, and the flags that decided so far.
    fn split(inside: &[bool], decided: TcpFlagMatch, matches: &mut Vec<Option<TcpFlagMatch>>) {
        if inside.iter().all(|&inside| !inside) {
            return;
        }
        if inside.iter().all(|&inside| inside) {
            matches.push(Some(decided));
            return;
        }
        let half = inside.len() / 2;
        let (clear, set) = inside.split_at(half);
        if clear == set {
            return split(clear, decided, matches);
        }
        let mask = decided.mask | half as u8;
        split(clear, TcpFlagMatch { mask, ..decided }, matches);
        split(set, TcpFlagMatch { set: decided.set | half as u8, mask }, matches);
    }
    if set.is_all() {
        return vec![None];
    }
    let mut inside = [false; 256];
    for value in set.members() {
        inside[usize::from(value)] = true;
    }
    let mut matches = Vec::new();
    split(&inside, TcpFlagMatch { set: 0, mask: 0 }, &mut matches);
    matches
}

/// Values of the byte of flags in which those of `mask` are as in `set`; none where `set` holds others.
pub(crate) fn flags_where(set: u8, mask: u8) -> Set<u8> {
    Set::of((0..=u8::MAX).filter(|value| value & mask == set).map(|value| (value, value)))
}

/// Types and codes: one type, and all of its codes or one.
pub(crate) fn icmp(icmp_type: u8, code: Option<u8>) -> Set<u16> {
    let [low, high] = [code.unwrap_or(0), code.unwrap_or(u8::MAX)];
    Set::range(u16::from_be_bytes([icmp_type, low]), u16::from_be_bytes([icmp_type, high]))
}

/// What a rule says of interfaces: nothing where it is for all.
fn some(interfaces: &Interfaces) -> Option<Arc<Interfaces>> {
    (!interfaces.is_all()).then(|| Arc::new(interfaces.clone()))
}
