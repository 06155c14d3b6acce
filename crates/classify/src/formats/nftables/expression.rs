//! Fields of a packet, the values that a rule compares them with, and the packets that come out.

use std::net::{Ipv4Addr, Ipv6Addr};

use packetloom_packet::protocol;
use serde_json::Value;

use super::{Name, Ruleset};
use crate::formats::builder::Fault;
use crate::formats::names;
use crate::formats::region::{Ends, Kinds, Region};
use crate::formats::set::{Integer, Set};
use crate::{ConnectionState, ConnectionStates, Interfaces};

/// Elements and ranges of all conditions of a ruleset, each counted wherever it is used.
const MAX_SIZE: usize = 1 << 23;

/// Which end of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Source,
    Destination,
}

/// A field, and what must hold for a packet to have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Field {
    /// An IPv4 address.
    V4(End),
    /// An IPv6 address.
    V6(End),
    /// The protocol after all extension headers.
    Protocol,
    /// The protocol of IPv4 packets.
    Protocol4,
    /// The version of IP: 4 or 6.
    Version,
    /// A port of one protocol.
    Port(u8, End),
    /// A port of whatever protocol the rule asks for.
    AnyPort(End),
    /// The type of ICMP or ICMPv6.
    Type(u8),
    /// Their code.
    Code(u8),
    /// TCP flags, those of a mask.
    Flags(u8),
    /// Flags and offset of a fragment in IPv4, those bits of a mask.
    FragmentBits(u16),
    /// The offset of a fragment in IPv6, of packets that have a fragment header.
    FragmentOffset,
    /// The name of the interface by which the packet came.
    Interface,
    /// The name of the interface by which the packet leaves.
    Exit,
    /// The state of its connection.
    State,
}

/// The fields of the left side of a match: several where their values go together.
pub(super) fn fields(left: &Value) -> Result<Vec<Field>, Fault> {
    match left.get("concat").and_then(Value::as_array) {
        Some(parts) => parts.iter().map(field).collect(),
        None => Ok(vec![field(left)?]),
    }
}

fn field(left: &Value) -> Result<Field, Fault> {
    if left.as_object().is_none_or(|object| object.len() != 1) {
        // A constant, for instance.
        return Err(unsupported(&brief(left)));
    }
    if let Some(payload) = left.get("payload") {
        return payload_field(payload);
    }
    if let Some(key) = left.get("meta").map(|meta| meta.get("key").unwrap_or(meta)).and_then(Value::as_str) {
        return match key {
            "l4proto" => Ok(Field::Protocol),
            "nfproto" | "protocol" => Ok(Field::Version),
            // A rule by number is listed with the name.
            "iifname" | "iif" => Ok(Field::Interface),
            "oifname" | "oif" => Ok(Field::Exit),
            key => Err(unsupported(&format!("meta {key}"))),
        };
    }
    if let Some(header) = left.get("exthdr") {
        let part = |key| header.get(key).and_then(Value::as_str).unwrap_or_default();
        return match (part("name"), part("field")) {
            ("frag", "frag-off") => Ok(Field::FragmentOffset),
            (name, field) => Err(unsupported(format!("{name} {field}").trim_ascii())),
        };
    }
    if let Some([of, mask]) = left.get("&").and_then(Value::as_array).map(Vec::as_slice) {
        return match (field(of)?, flags(mask)) {
            (Field::Flags(_), Some(mask)) => Ok(Field::Flags(mask)),
            (Field::FragmentBits(_), None) if matches!(mask.as_u64(), Some(0x1fff | 0x3fff)) => {
                Ok(Field::FragmentBits(mask.as_u64().unwrap_or_default() as u16))
            }
            (Field::FragmentBits(_), _) => Err(unsupported(&format!("ip frag-off & {mask}"))),
            _ => Err(unsupported("&")),
        };
    }
    // Whatever else is said of it, such as a direction, asks for more.
    let is_state = |ct: &Value| ct.as_object().is_some_and(|of| of.len() == 1) && ct["key"] == "state";
    if left.get("ct").is_some_and(is_state) {
        return Ok(Field::State);
    }
    // The name of another expression, such as "ct" with its key.
    let (name, of) =
        left.as_object().and_then(|object| object.iter().next()).ok_or_else(|| unsupported(&brief(left)))?;
    let key = of.get("key").and_then(Value::as_str).unwrap_or_default();
    Err(unsupported(format!("{name} {key}").trim_ascii()))
}

fn payload_field(payload: &Value) -> Result<Field, Fault> {
    use End::{Destination, Source};
    let part = |key| payload.get(key).and_then(Value::as_str).unwrap_or_default();
    if let Some(base) = payload.get("base").and_then(Value::as_str) {
        return Err(unsupported(&format!("@{base}")));
    }
    // Something more is said, such as that the header is one inside a tunnel.
    let is_known = |key: &String| matches!(key.as_str(), "protocol" | "field");
    if let Some(more) = payload.as_object().and_then(|object| object.keys().find(|key| !is_known(key))) {
        return Err(unsupported(&format!("{} {} of {more}", part("protocol"), part("field"))));
    }
    Ok(match (part("protocol"), part("field")) {
        ("ip", "saddr") => Field::V4(Source),
        ("ip", "daddr") => Field::V4(Destination),
        ("ip6", "saddr") => Field::V6(Source),
        ("ip6", "daddr") => Field::V6(Destination),
        ("ip", "protocol") => Field::Protocol4,
        ("ip", "frag-off") => Field::FragmentBits(0xffff),
        ("tcp", "flags") => Field::Flags(0xff),
        ("icmp", "type") => Field::Type(protocol::ICMP),
        ("icmp", "code") => Field::Code(protocol::ICMP),
        ("icmpv6", "type") => Field::Type(protocol::ICMPV6),
        ("icmpv6", "code") => Field::Code(protocol::ICMPV6),
        ("th", "sport") => Field::AnyPort(Source),
        ("th", "dport") => Field::AnyPort(Destination),
        (name @ ("tcp" | "udp" | "sctp"), field @ ("sport" | "dport")) => {
            let end = if field == "sport" { Source } else { Destination };
            Field::Port(names::protocol_number(name).unwrap_or_default(), end)
        }
        (name, field) => return Err(unsupported(&format!("{name} {field}"))),
    })
}

/// The fault of a construct, by nft's word for it.
pub(super) fn unsupported(construct: &str) -> Fault {
    Fault::Unsupported(format!("`{construct}`"))
}

/// A value as text that is not too long for a message.
pub(super) fn brief(value: &Value) -> String {
    let text = value.to_string();
    text[..text.floor_char_boundary(60)].to_owned()
}

/// TCP flags: a name, a number, or several of them.
fn flags(value: &Value) -> Option<u8> {
    let all = |values: &[Value]| values.iter().try_fold(0, |all, value| Some(all | flags(value)?));
    match value {
        Value::Number(number) => number.as_u64().and_then(|number| u8::try_from(number).ok()),
        Value::String(name) => {
            let names = ["fin", "syn", "rst", "psh", "ack", "urg", "ecn", "cwr"];
            names.iter().position(|known| known == name).map(|bit| 1 << bit)
        }
        Value::Array(values) => all(values),
        Value::Object(object) => all(object.get("|")?.as_array()?),
        _ => None,
    }
}

impl Field {
    /// The highest value.
    fn max(self) -> u128 {
        match self {
            Self::V4(_) => u32::MAX.into(),
            Self::V6(_) => u128::MAX,
            Self::Port(..) | Self::AnyPort(_) | Self::FragmentBits(_) | Self::FragmentOffset => {
                u16::MAX.into()
            }
            _ => u8::MAX.into(),
        }
    }

    /// One value, as it stands in JSON.
    fn value(self, value: &Value) -> Option<u128> {
        let named = |name: &str| -> Option<u128> {
            match self {
                Self::V4(_) => name.parse::<Ipv4Addr>().ok().map(|address| u32::from(address).into()),
                Self::V6(_) => name.parse::<Ipv6Addr>().ok().map(u128::from),
                Self::Protocol | Self::Protocol4 => names::protocol_number(name).map(u128::from),
                Self::Version => match name {
                    "ipv4" | "ip" => Some(4),
                    "ipv6" | "ip6" => Some(6),
                    _ => None,
                },
                Self::Type(icmp) => match names::icmp(icmp, name)? {
                    (icmp_type, None) => Some(icmp_type.into()),
                    _ => None,
                },
                Self::Code(icmp) => names::icmp_code(icmp, name).map(u128::from),
                _ => None,
            }
        };
        let number = |number: u128| (self != Self::Version && number <= self.max()).then_some(number);
        match (self, value) {
            (Self::Flags(_), value) => flags(value).map(u128::from),
            (_, Value::Number(value)) => value.as_u64().and_then(|value| number(value.into())),
            (_, Value::String(name)) => named(name).or_else(|| name.parse().ok().and_then(number)),
            _ => None,
        }
    }

    /// The values that an element stands for: one, a prefix or a range.
    fn range(self, element: &Value) -> Result<(u128, u128), Fault> {
        let expected = || unsupported(&brief(element));
        if let Some(inner) = element.get("elem") {
            only_counts(inner)?;
            return self.range(inner.get("val").ok_or_else(expected)?);
        }
        if let Some([low, high]) = element.get("range").and_then(Value::as_array).map(Vec::as_slice) {
            let (low, high) = self.value(low).zip(self.value(high)).ok_or_else(expected)?;
            return if low <= high { Ok((low, high)) } else { Err(expected()) };
        }
        if let Some(prefix) = element.get("prefix") {
            let bits = match self {
                Self::V4(_) => 32,
                Self::V6(_) => 128,
                _ => return Err(expected()),
            };
            let address = prefix.get("addr").and_then(|address| self.value(address)).ok_or_else(expected)?;
            let len = prefix.get("len").and_then(Value::as_u64).and_then(|len| u32::try_from(len).ok());
            let len = len.filter(|&len| len <= bits).ok_or_else(expected)?;
            let past = u128::MAX.checked_shr(128 - bits + len).unwrap_or(0);
            return Ok((address & !past, address | past));
        }
        if element.as_str() == Some("*") {
            return Err(unsupported("*"));
        }
        let value = self.value(element).ok_or_else(expected)?;
        Ok((value, value))
    }

    /// The values that a comparison with these ranges, of a list or alone, holds for.
    fn compare(self, operator: &str, ranges: Vec<(u128, u128)>, is_list: bool) -> Result<Set<u128>, Fault> {
        let max = self.max();
        let values = Set::of(ranges);
        let is_any_of_flags = matches!(self, Self::Flags(_)) && operator == "in" && !is_list;
        if operator == "==" || (operator == "in" && !is_any_of_flags) {
            return Ok(values);
        }
        if operator == "!=" {
            return Ok(values.complement().intersection(&Set::range(0, max)));
        }
        let Some((low, high)) = values.ranges().next().filter(|_| !is_list) else {
            return Err(unsupported(operator));
        };
        Ok(match (operator, self) {
            // Of flags, one that is set is enough, or is too many.
            ("in" | "!", Self::Flags(mask)) => {
                let those =
                    (0..=u8::MAX).filter(|flags| (flags & mask & low as u8 != 0) == (operator == "in"));
                Set::of(those.map(|flags| ((flags & mask).into(), (flags & mask).into())))
            }
            ("<", _) => low.checked_sub(1).map_or(Set::EMPTY, |below| Set::range(0, below)),
            ("<=", _) => Set::range(0, high),
            (">", _) => high.checked_add(1).map_or(Set::EMPTY, |above| Set::range(above, max)),
            (">=", _) => Set::range(low, max),
            _ => return Err(unsupported(operator)),
        })
    }

    /// Whether it looks at a header without asking for a protocol that has it.
    pub(super) fn is_bare(self) -> bool {
        matches!(self, Self::AnyPort(_))
    }

    /// The family that it asks for unless something else does.
    pub(super) fn implied(self) -> Option<Ends> {
        match self {
            Self::Type(protocol::ICMP) | Self::Code(protocol::ICMP) => Some(Ends::ALL_V4),
            Self::Type(_) | Self::Code(_) => Some(Ends::ALL_V6),
            _ => None,
        }
    }

    /// The packets that an element stands for.
    fn element(self, element: &Value) -> Result<Region, Fault> {
        match self {
            Self::Interface => Ok(Region::of(Ends::Any).interfaces(&interfaces(element)?)),
            Self::Exit => Ok(Region::of(Ends::Any).out(&interfaces(element)?)),
            Self::State => Ok(Region::of(Ends::Any).states(only_state(states(element)?))),
            field => field.region(&Set::of([field.range(element)?])),
        }
    }

    /// The packets whose field has one of these values.
    fn region(self, values: &Set<u128>) -> Result<Region, Fault> {
        let any = Region::of(Ends::Any);
        let word = |icmp_type, code| u16::from_be_bytes([icmp_type, code]);
        Ok(match self {
            Self::V4(End::Source) => Region::of(Ends::V4(cast(values), Set::ALL)),
            Self::V4(End::Destination) => Region::of(Ends::V4(Set::ALL, cast(values))),
            Self::V6(End::Source) => Region::of(Ends::V6(values.clone(), Set::ALL)),
            Self::V6(End::Destination) => Region::of(Ends::V6(Set::ALL, values.clone())),
            Self::Protocol => any.protocols(&cast(values)),
            Self::Protocol4 => Region::of(Ends::ALL_V4).protocols(&cast(values)),
            Self::Version => match (values.contains(4), values.contains(6)) {
                (true, true) => any,
                (true, false) => Region::of(Ends::ALL_V4),
                (false, true) => Region::of(Ends::ALL_V6),
                (false, false) => any.protocols(&Set::EMPTY),
            },
            Self::Port(number, end) => Self::AnyPort(end).region(values)?.protocols(&Set::one(number)),
            Self::AnyPort(End::Source) => any.source_ports(&cast(values)),
            Self::AnyPort(End::Destination) => any.destination_ports(&cast(values)),
            Self::Type(number) => {
                let types: Set<u8> = cast(values);
                let ranges = types.ranges().map(|(low, high)| (word(low, 0), word(high, u8::MAX)));
                any.icmp(&Set::of(ranges)).protocols(&Set::one(number))
            }
            Self::Code(number) => {
                let codes: Set<u8> = cast(values);
                let of = |icmp_type| {
                    codes.ranges().map(move |(low, high)| (word(icmp_type, low), word(icmp_type, high)))
                };
                any.icmp(&Set::of((0..=u8::MAX).flat_map(of))).protocols(&Set::one(number))
            }
            Self::Flags(mask) => {
                let those = (0..=u8::MAX).filter(|flags| values.contains((flags & mask).into()));
                any.flags(&Set::of(those.map(|flags| (flags, flags))))
            }
            // Without a mask, other bits decide as well.
            Self::FragmentBits(u16::MAX) => return Err(unsupported("ip frag-off")),
            Self::FragmentBits(mask) => {
                let kinds = [
                    (Kinds::WHOLE, Set::one(0)),
                    (Kinds::FIRST, Set::one(u128::from(MORE_FRAGMENTS & mask))),
                    (Kinds::LATER, later(mask)),
                ];
                Region::of(Ends::ALL_V4).kinds(kinds_of(&kinds, values)?)
            }
            Self::Interface | Self::Exit | Self::State => unreachable!("names are no numbers"),
            // An offset of 0 has the first fragment, and a whole packet with a fragment header.
            Self::FragmentOffset if values.contains(0) => return Err(unsupported("frag frag-off 0")),
            Self::FragmentOffset => {
                let kinds = [(Kinds::LATER, Set::range(1, OFFSET.into()))];
                Region::of(Ends::ALL_V6).kinds(kinds_of(&kinds, values)?)
            }
        })
    }
}

/// The bit of an IPv4 header that says that more fragments follow.
const MORE_FRAGMENTS: u16 = 0x2000;
/// The bits of an IPv4 header that are a fragment's offset; as many are in IPv6's.
const OFFSET: u16 = 0x1fff;

/// What of flags and offset of later fragments can be under a mask.
fn later(mask: u16) -> Set<u128> {
    let offset = u128::from(OFFSET);
    let more = u128::from(MORE_FRAGMENTS);
    let with_more = (mask & MORE_FRAGMENTS != 0).then_some((more + 1, more + offset));
    Set::of([(1, offset)].into_iter().chain(with_more))
}

/// The kinds of packets of which every value is in a set; those of which some are have no equal.
fn kinds_of(kinds: &[(Kinds, Set<u128>)], values: &Set<u128>) -> Result<Kinds, Fault> {
    let mut found = Kinds::NONE;
    for (kind, those) in kinds {
        match those.intersection(values) {
            inside if inside == *those => found = found.union(*kind),
            inside if inside.is_empty() => {}
            _ => return Err(unsupported("frag-off")),
        }
    }
    Ok(found)
}

/// A set of values that all fit a narrower word.
fn cast<T: Integer + TryFrom<u128>>(values: &Set<u128>) -> Set<T> {
    let narrow = |(low, high)| T::try_from(low).ok().zip(T::try_from(high).ok());
    Set::of(values.ranges().filter_map(narrow))
}

/// States in one value: nft has them as bits of which a packet has one.
fn states(value: &Value) -> Result<ConnectionStates, Fault> {
    let all = |values: &[Value]| {
        values.iter().try_fold(ConnectionStates::NONE, |all, value| Ok(all.union(states(value)?)))
    };
    let expected = || unsupported(&format!("ct state {}", brief(value)));
    match value {
        Value::String(name) => ConnectionState::by_name(name).map(ConnectionStates::one).ok_or_else(expected),
        Value::Number(number) => {
            let bits = [8, 2, 4, 1, 64];
            let number = number.as_u64().filter(|number| number & !79 == 0).ok_or_else(expected)?;
            let set = bits.iter().zip(ConnectionState::ALL).filter(|(bit, _)| number & **bit != 0);
            Ok(set.fold(ConnectionStates::NONE, |all, (_, state)| all.union(ConnectionStates::one(state))))
        }
        Value::Array(values) => all(values),
        Value::Object(object) => match (object.get("|").and_then(Value::as_array), object.get("elem")) {
            (Some(values), _) => all(values),
            (None, Some(inner)) => {
                only_counts(inner)?;
                states(inner.get("val").ok_or_else(expected)?)
            }
            (None, None) => Err(expected()),
        },
        _ => Err(expected()),
    }
}

/// The states that are all of these: one, or none.
fn only_state(states: ConnectionStates) -> ConnectionStates {
    if states.iter().count() == 1 { states } else { ConnectionStates::NONE }
}

/// The states for which a comparison holds.
fn states_where(operator: &str, right: &Value, list: &[Value]) -> Result<ConnectionStates, Fault> {
    let each = list.iter().map(states).collect::<Result<Vec<_>, _>>()?;
    let any = each.iter().fold(ConnectionStates::NONE, |all, states| all.union(*states));
    let equal = each.iter().fold(ConnectionStates::NONE, |all, states| all.union(only_state(*states)));
    match operator {
        "in" if !is_list(right) => Ok(any),
        "in" | "==" => Ok(equal),
        "!=" => Ok(equal.complement()),
        "!" if !is_list(right) => Ok(any.complement()),
        _ => Err(unsupported(operator)),
    }
}

/// The interfaces of an element: a name, or its beginning before a `*`.
fn interfaces(element: &Value) -> Result<Interfaces, Fault> {
    if let Some(inner) = element.get("elem") {
        only_counts(inner)?;
        return interfaces(inner.get("val").ok_or_else(|| unsupported(&brief(element)))?);
    }
    let name = element.as_str().ok_or_else(|| unsupported(&brief(element)))?;
    // A catch-all is for what no other element fits; a plus is a letter here.
    if name == "*" || name.contains('+') {
        return Err(unsupported(&brief(element)));
    }
    let name = name.strip_suffix('*').map_or_else(|| name.to_owned(), |start| format!("{start}+"));
    Interfaces::named(&name).map_err(|_| unsupported(&brief(element)))
}

/// The packets that a match on these fields lets through, as regions of which one holds; `name` is the rule's chain.
pub(super) fn condition(
    object: &Value,
    fields: &[Field],
    name: &Name,
    ruleset: &mut Ruleset,
) -> Result<Vec<Region>, Fault> {
    let missing = |key: &str| unsupported(&format!("match without {key}"));
    let right = object.get("right").ok_or_else(|| missing("right"))?;
    let operator = object.get("op").and_then(Value::as_str).ok_or_else(|| missing("op"))?;
    let list = elements(right, name, ruleset)?;
    let size = list.len();
    let regions = match (fields, operator) {
        ([field @ (Field::Interface | Field::Exit)], "==" | "!=" | "in") => {
            let names = list.iter().map(interfaces).collect::<Result<_, _>>()?;
            let names = Interfaces::any_of(names);
            let names = if operator == "!=" { names.complement() } else { names };
            let any = Region::of(Ends::Any);
            vec![if *field == Field::Exit { any.out(&names) } else { any.interfaces(&names) }]
        }
        ([Field::State], _) => {
            vec![Region::of(Ends::Any).states(states_where(operator, right, list)?)]
        }
        ([Field::Interface | Field::Exit], _) => return Err(unsupported(operator)),
        ([field], _) => {
            let ranges = list.iter().map(|element| field.range(element)).collect::<Result<Vec<_>, _>>()?;
            vec![field.region(&field.compare(operator, ranges, is_list(right))?)?]
        }
        (fields, "==" | "in") => {
            list.iter().map(|element| together(fields, element)).collect::<Result<_, _>>()?
        }
        _ => return Err(unsupported(&format!("{operator} of several fields"))),
    };
    ruleset.count(size + regions.iter().map(Region::size).sum::<usize>())?;
    Ok(regions)
}

/// The packets that one element of a set or a map stands for.
pub(super) fn together(fields: &[Field], element: &Value) -> Result<Region, Fault> {
    if let [field] = fields {
        return field.element(element);
    }
    let element = match element.get("elem") {
        Some(inner) => {
            only_counts(inner)?;
            inner.get("val").unwrap_or(element)
        }
        None => element,
    };
    let parts = element.get("concat").and_then(Value::as_array).filter(|parts| parts.len() == fields.len());
    let parts = parts.ok_or_else(|| unsupported(&brief(element)))?;
    let mut region = Region::of(Ends::Any);
    for (field, part) in fields.iter().zip(parts) {
        match region.intersection(&field.element(part)?) {
            Some(both) => region = both,
            None => return Ok(region.protocols(&Set::EMPTY)),
        }
    }
    Ok(region)
}

/// Refuses an element that does something when it is found, or that goes by itself: all but counting.
fn only_counts(element: &Value) -> Result<(), Fault> {
    let does = |key: &String| !matches!(key.as_str(), "val" | "comment" | "counter" | "last");
    match element.as_object().and_then(|object| object.keys().find(|key| does(key))) {
        Some(key) => Err(unsupported(if key == "expires" { "timeout" } else { key })),
        None => Ok(()),
    }
}

/// Whether a value is a set, in place or by name.
fn is_list(value: &Value) -> bool {
    value.get("set").is_some() || value.as_str().is_some_and(|text| text.starts_with('@'))
}

/// The elements of a set or a map, in place or by name; of another value, the value.
pub(super) fn elements<'v>(
    value: &'v Value,
    name: &Name,
    ruleset: &'v Ruleset,
) -> Result<&'v [Value], Fault> {
    match (value.get("set"), value.as_str().and_then(|text| text.strip_prefix('@'))) {
        (Some(Value::Array(elements)), _) => Ok(elements),
        (Some(one), _) => Ok(std::slice::from_ref(one)),
        (None, Some(set)) => ruleset.elements(set, name),
        (None, None) => Ok(std::slice::from_ref(value)),
    }
}

impl Ruleset {
    /// The elements of a named set or map of the chain's table.
    fn elements(&self, set: &str, [family, table, _]: &Name) -> Result<&[Value], Fault> {
        match self.sets.get(&[family.clone(), table.clone(), set.to_owned()]) {
            Some(elements) if elements.expire => {
                Err(unsupported(&format!("@{set}, whose elements come and go")))
            }
            Some(elements) => Ok(&elements.list),
            // It is there, but not in a listing of one chain.
            None => Err(unsupported(&format!("@{set}, which is not listed"))),
        }
    }

    /// Counts what conditions hold and look at, which sets that are used often multiply.
    pub(super) fn count(&mut self, size: usize) -> Result<(), Fault> {
        self.size = self.size.saturating_add(size);
        if self.size > MAX_SIZE {
            return Err(Fault::Syntax(format!(
                "sets with more than {MAX_SIZE} elements in all the rules that use them"
            )));
        }
        Ok(())
    }
}
