//! One entry of an access list, as the packets it matches.

use std::net::{Ipv4Addr, Ipv6Addr};

use packetloom_packet::protocol::{ICMP, ICMPV6, TCP, UDP, has_ports, has_type_and_code};

use super::super::builder::Fault;
use super::super::region::{self, Ends, Kinds, Region};
use super::super::set::Set;
use super::super::text::{Words, number};
use super::config::Kind;
use super::groups::Groups;
use super::names;
use crate::rule::{Action, flags_from_letters};

/// Options that no rule of ours says.
const OTHER_OPTIONS: &[&str] = &[
    "auth",
    "dest-option",
    "dest-option-type",
    "dscp",
    "flow-label",
    "hbh",
    "mobility",
    "mobility-type",
    "option",
    "precedence",
    "reflect",
    "routing",
    "routing-type",
    "time-range",
    "tos",
    "ttl",
    "undetermined-transport",
];

/// The flags by name, and their letters in our own rules.
const FLAGS: &[(&str, &str)] =
    &[("ack", "A"), ("fin", "F"), ("psh", "P"), ("rst", "R"), ("syn", "S"), ("urg", "U")];

/// What an entry says.
pub(super) struct Meaning {
    pub(super) action: Action,
    pub(super) log: bool,
    /// The packets, in parts.
    pub(super) regions: Vec<Region>,
}

/// Protocols and what stands in their headers.
#[derive(Clone)]
pub(super) struct Service {
    protocols: Set<u8>,
    source_ports: Option<Set<u16>>,
    destination_ports: Option<Set<u16>>,
    icmp: Option<Set<u16>>,
    flags: Option<Set<u8>>,
}

impl Service {
    const fn of(protocols: Set<u8>) -> Self {
        Self { protocols, source_ports: None, destination_ports: None, icmp: None, flags: None }
    }

    /// Whether it asks for what later fragments do not have.
    const fn asks_transport(&self) -> bool {
        self.source_ports.is_some()
            || self.destination_ports.is_some()
            || self.icmp.is_some()
            || self.flags.is_some()
    }

    /// The packets between these ends.
    fn region(&self, ends: &Ends) -> Region {
        let mut region = Region::of(ends.clone()).protocols(&self.protocols);
        if let Some(ports) = &self.source_ports {
            region = region.source_ports(ports);
        }
        if let Some(ports) = &self.destination_ports {
            region = region.destination_ports(ports);
        }
        if let Some(icmp) = &self.icmp {
            region = region.icmp(icmp);
        }
        if let Some(flags) = &self.flags {
            region = region.flags(flags);
        }
        region
    }
}

/// Reads an entry.
pub(super) fn parse(kind: Kind, text: &str, groups: &mut Groups<'_>) -> Result<Meaning, Fault> {
    let mut words = Words::new(text);
    let action = match words.next("permit or deny")? {
        "permit" => Action::Permit,
        "deny" => Action::Deny,
        other @ ("dynamic" | "evaluate") => return Err(Fault::no_equal(other)),
        found => return Err(Fault::Syntax(format!("{found:?}; expected permit, deny or remark"))),
    };
    match kind {
        Kind::Standard => standard(action, &mut words),
        Kind::Extended | Kind::V6 => extended(action, kind == Kind::V6, &mut words, groups),
    }
}

/// The rest of an entry that has a source only.
fn standard(action: Action, words: &mut Words<'_>) -> Result<Meaning, Fault> {
    let source = match words.peek() {
        "any" | "host" => address4(words, None)?,
        _ => {
            let address = words.next("a source")?;
            let address = ipv4(address.trim_end_matches(','))?;
            if words.take("wildcard") {
                words.expect("bits")?;
            }
            match words.peek() {
                // A source without a wildcard is one host.
                "" | "log" => Set::one(address),
                _ => wildcard(address, ipv4(words.next("a wildcard")?)?)?,
            }
        }
    };
    let log = words.take("log");
    if let Some(word) = words.0.next() {
        return Err(Fault::Syntax(format!("{word:?}; expected log or the end of the entry")));
    }
    Ok(Meaning { action, log, regions: vec![Region::of(Ends::V4(source, Set::ALL))] })
}

/// The rest of an entry with a protocol, both addresses, and options.
fn extended(
    action: Action,
    v6: bool,
    words: &mut Words<'_>,
    groups: &mut Groups<'_>,
) -> Result<Meaning, Fault> {
    let icmp = if v6 { ICMPV6 } else { ICMP };
    // A group of services brings its own ports; an entry has them, a message or flags as its protocol has.
    let (group, mut service) = match words.next("a protocol")? {
        "object-group" => (Some(words.next("the name of a group")?), Service::of(Set::ALL)),
        word => (None, Service::of(protocols(word, icmp)?)),
    };
    let protocol = single(&service.protocols);
    let (ends, source_ports) = if v6 {
        let source = address6(words, groups)?;
        let ports = ports(words, protocol)?;
        (Ends::V6(source, address6(words, groups)?), ports)
    } else {
        let source = address4(words, Some(groups))?;
        let ports = ports(words, protocol)?;
        (Ends::V4(source, address4(words, Some(groups))?), ports)
    };
    service.source_ports = source_ports;
    service.destination_ports = ports(words, protocol)?;
    if protocol.is_some_and(has_type_and_code) {
        service.icmp = message(words, icmp)?;
    }
    let (mut log, mut fragments) = (false, false);
    while let Some(word) = words.0.next() {
        match word {
            "log" | "log-input" => log = true,
            "fragments" => fragments = true,
            _ if OTHER_OPTIONS.contains(&word) => return Err(Fault::no_equal(word)),
            _ if protocol == Some(TCP) => {
                let flags = flags(word, words)?;
                service.flags = Some(service.flags.map_or(flags.clone(), |before| before.union(&flags)));
            }
            _ if protocol == names::protocol("igmp", icmp) => {
                return Err(Fault::no_equal(word));
            }
            _ => return Err(Fault::Syntax(format!("{word:?}; expected an option such as log or fragments"))),
        }
    }
    let services = match group {
        Some(name) => groups.services(name)?,
        None => &[service],
    };
    let mut regions = Vec::new();
    for service in services {
        let asks_transport = service.asks_transport();
        if fragments && asks_transport {
            let message = "fragments with ports, a message or flags, which later fragments do not have";
            return Err(Fault::Syntax(message.into()));
        }
        let region = service.region(&ends);
        regions.push(if fragments { region.kinds(Kinds::LATER) } else { region });
        // Later fragments are permitted by all that they have: addresses and protocol.
        if asks_transport && action == Action::Permit {
            regions.push(Region::of(ends.clone()).protocols(&service.protocols).kinds(Kinds::LATER));
        }
    }
    Ok(Meaning { action, log, regions })
}

/// A member of a group of services.
pub(super) fn service(words: &mut Words<'_>, icmp: u8) -> Result<Service, Fault> {
    let word = words.next("a protocol")?;
    if word == "tcp-udp" {
        let mut service = Service::of(Set::of([(TCP, TCP), (UDP, UDP)]));
        group_ports(words, None, &mut service)?;
        return Ok(service);
    }
    let mut service = Service::of(protocols(word, icmp)?);
    match single(&service.protocols) {
        Some(protocol) if has_ports(protocol) => group_ports(words, Some(protocol), &mut service)?,
        Some(protocol) if has_type_and_code(protocol) => service.icmp = message(words, icmp)?,
        _ => {}
    }
    Ok(service)
}

/// Ports of a member: those of the source behind their word, and those of the destination, where "eq" may be left out.
fn group_ports(words: &mut Words<'_>, protocol: Option<u8>, service: &mut Service) -> Result<(), Fault> {
    let one = |words: &mut Words<'_>| match words.peek() {
        "eq" | "gt" | "lt" | "neq" | "range" => condition(words, protocol),
        "" | "source" => Ok(None),
        word => {
            let port = port(word, protocol)?;
            words.0.next();
            Ok(Some(Set::one(port)))
        }
    };
    if words.take("source") {
        service.source_ports = one(words)?;
        if service.source_ports.is_none() {
            return Err(Fault::Syntax("the line ends; expected source ports".into()));
        }
    }
    service.destination_ports = one(words)?;
    Ok(())
}

/// The only protocol of a set.
fn single(protocols: &Set<u8>) -> Option<u8> {
    let mut members = protocols.members();
    members.next().filter(|_| members.next().is_none())
}

fn protocols(word: &str, icmp: u8) -> Result<Set<u8>, Fault> {
    if matches!((word, icmp), ("ip", ICMP) | ("ipv6", ICMPV6)) {
        return Ok(Set::ALL);
    }
    if let Some(protocol) = names::protocol(word, icmp) {
        return Ok(Set::one(protocol));
    }
    match number(word, "protocol", 255) {
        // IOS takes it for every protocol in some lists.
        Ok(0) => Err(Fault::Unsupported("protocol 0, which may stand for every protocol".into())),
        Ok(protocol) => Ok(Set::one(protocol)),
        Err(_) => {
            let message =
                format!("protocol {word:?}; expected a name such as tcp, or a number from 0 to 255");
            Err(Fault::Syntax(message))
        }
    }
}

fn port(word: &str, protocol: Option<u8>) -> Result<u16, String> {
    names::port(word, protocol).map_or_else(
        || {
            number(word, "", 65_535).map_err(|_| {
                format!("port {word:?}; expected a name such as www, or a number from 0 to 65535")
            })
        },
        Ok,
    )
}

/// A condition on ports, if one stands here and the protocol has ports.
fn ports(words: &mut Words<'_>, protocol: Option<u8>) -> Result<Option<Set<u16>>, Fault> {
    match words.peek() {
        word @ ("eq" | "gt" | "lt" | "neq" | "range") => match protocol {
            Some(protocol) if has_ports(protocol) => condition(words, Some(protocol)),
            _ => Err(Fault::Syntax(format!(
                "{word:?} with a protocol that has no ports; expected tcp, udp or sctp"
            ))),
        },
        _ => Ok(None),
    }
}

/// An operator and its ports.
fn condition(words: &mut Words<'_>, protocol: Option<u8>) -> Result<Option<Set<u16>>, Fault> {
    /// Ports after "eq" at most.
    const MAX_PORTS: usize = 10;
    let operator = words.next("eq, neq, gt, lt or range")?;
    let first = port(words.next("a port")?, protocol)?;
    let mut more = Vec::new();
    if operator != "range" {
        while let Ok(next) = port(words.peek(), protocol) {
            more.push(next);
            words.0.next();
        }
    }
    let nothing = |range| Fault::Syntax(format!("{range}, which no port is"));
    if !more.is_empty() && operator != "eq" {
        return match operator {
            "neq" => Err(Fault::Unsupported("neq with several ports".into())),
            _ => Err(Fault::Syntax(format!("{operator} with several ports; expected one"))),
        };
    }
    let set = match operator {
        "eq" if more.len() >= MAX_PORTS => {
            return Err(Fault::Syntax(format!("{} ports; expected up to {MAX_PORTS}", more.len() + 1)));
        }
        "eq" => Set::of(more.into_iter().chain([first]).map(|port| (port, port))),
        "neq" => Set::one(first).complement(),
        "gt" => Set::range(first.checked_add(1).ok_or_else(|| nothing("gt 65535"))?, u16::MAX),
        "lt" => Set::range(0, first.checked_sub(1).ok_or_else(|| nothing("lt 0"))?),
        _ => {
            let last = port(words.next("the last port of the range")?, protocol)?;
            if last < first {
                return Err(Fault::Syntax(format!(
                    "range {first} {last} runs downwards; expected {last} {first}"
                )));
            }
            Set::range(first, last)
        }
    };
    Ok(Some(set))
}

/// An ICMP message, if one stands here: a name, or a type and perhaps a code.
fn message(words: &mut Words<'_>, protocol: u8) -> Result<Option<Set<u16>>, Fault> {
    let word = words.peek();
    if let Some((icmp_type, code)) = names::message(word, protocol) {
        words.0.next();
        return Ok(Some(region::icmp(icmp_type, code)));
    }
    if !word.starts_with(|first: char| first.is_ascii_digit()) {
        return Ok(None);
    }
    let icmp_type = number(words.next("an ICMP type")?, "ICMP type", 255)?;
    let code = match words.peek() {
        code if code.starts_with(|first: char| first.is_ascii_digit()) => {
            words.0.next();
            Some(number(code, "ICMP code", 255)?)
        }
        _ => None,
    };
    Ok(Some(region::icmp(icmp_type, code)))
}

/// The flags of a TCP option, which one word or several are.
fn flags(word: &str, words: &mut Words<'_>) -> Result<Set<u8>, Fault> {
    let bit = |name: &str| {
        let letters = FLAGS.iter().find(|(known, _)| *known == name).map(|(_, letter)| *letter);
        letters.and_then(flags_from_letters)
    };
    let set = |bit| region::flags_where(bit, bit);
    if word == "established" {
        // ACK or RST.
        return Ok(["ack", "rst"]
            .into_iter()
            .filter_map(bit)
            .fold(Set::EMPTY, |flags, bit| flags.union(&set(bit))));
    }
    if let Some(bit) = bit(word) {
        // Of several flags one is enough.
        return Ok(set(bit));
    }
    let all = match word {
        "match-all" => true,
        "match-any" => false,
        _ => {
            return Err(Fault::Syntax(format!(
                "{word:?}; expected an option such as established, log or fragments"
            )));
        }
    };
    let mut flags = if all { Set::ALL } else { Set::EMPTY };
    let mut count = 0;
    while let Some((sign, name)) =
        words.peek().split_at_checked(1).filter(|(sign, _)| matches!(*sign, "+" | "-"))
    {
        let Some(bit) = bit(name) else {
            return Err(Fault::Syntax(format!("flag {name:?}; expected ack, fin, psh, rst, syn or urg")));
        };
        let values = if sign == "+" { set(bit) } else { region::flags_where(0, bit) };
        flags = if all { flags.intersection(&values) } else { flags.union(&values) };
        count += 1;
        words.0.next();
    }
    if count == 0 {
        return Err(Fault::Syntax(format!("{word} without flags; expected flags such as +syn -ack")));
    }
    Ok(flags)
}

fn ipv4(word: &str) -> Result<u32, String> {
    let address: Result<Ipv4Addr, _> = word.parse();
    address
        .map(Into::into)
        .map_err(|_| format!("address {word:?}; expected an IPv4 address such as 192.0.2.1"))
}

fn ipv6(word: &str) -> Result<u128, String> {
    let address: Result<Ipv6Addr, _> = word.parse();
    address
        .map(Into::into)
        .map_err(|_| format!("address {word:?}; expected an IPv6 address such as 2001:db8::1"))
}

/// Addresses that are like `address` where the bits of `wildcard` are 0.
fn wildcard(address: u32, wildcard: u32) -> Result<Set<u32>, Fault> {
    /// Bits above the lowest that may be anything: each doubles the ranges.
    const MAX_LOOSE: u32 = 16;
    let run = wildcard.trailing_ones();
    let low = u32::MAX.checked_shr(u32::BITS - run).unwrap_or(0);
    let loose = wildcard & !low;
    if loose.count_ones() > MAX_LOOSE {
        let message =
            format!("the wildcard {}, of 2^{} ranges", Ipv4Addr::from(wildcard), loose.count_ones());
        return Err(Fault::Unsupported(message));
    }
    let base = address & !wildcard;
    // Every subset of the loose bits, upwards.
    let subsets = std::iter::successors(Some(0u32), |subset| {
        let next = subset.wrapping_sub(loose) & loose;
        (next != 0).then_some(next)
    });
    Ok(Set::of(subsets.map(|subset| (base | subset, base | subset | low))))
}

/// An IPv4 address of an entry, or several.
fn address4(words: &mut Words<'_>, groups: Option<&mut Groups<'_>>) -> Result<Set<u32>, Fault> {
    match (words.next("any, host, or an address and a wildcard")?, groups) {
        ("any", _) => Ok(Set::ALL),
        ("host", _) => Ok(Set::one(ipv4(words.next("an address")?)?)),
        ("object-group", Some(groups)) => groups.v4(words.next("the name of a group")?),
        (word, _) => wildcard(ipv4(word)?, ipv4(words.next("a wildcard")?)?),
    }
}

/// An IPv6 address of an entry, or several.
fn address6(words: &mut Words<'_>, groups: &mut Groups<'_>) -> Result<Set<u128>, Fault> {
    if words.take("object-group") {
        return groups.v6(words.next("the name of a group")?);
    }
    let (low, high) = prefix6(words)?;
    Ok(Set::range(low, high))
}

/// A prefix, a host or any address.
pub(super) fn prefix6(words: &mut Words<'_>) -> Result<(u128, u128), Fault> {
    let (address, len) = match words.next("any, host or a prefix")? {
        "any" => (0, 0),
        "host" => (ipv6(words.next("an address")?)?, 128),
        word => {
            let (address, len) = word.split_once('/').ok_or_else(|| {
                format!("address {word:?}; expected any, host, or a prefix such as 2001:db8::/32")
            })?;
            (ipv6(address)?, number(len, "prefix length", 128)?)
        }
    };
    let rest = u128::MAX.checked_shr(len).unwrap_or(0);
    Ok((address & !rest, address | rest))
}

/// A member of a group of networks: a host, any, or an address and a mask.
pub(super) fn subnet4(words: &mut Words<'_>) -> Result<(u32, u32), Fault> {
    let (address, mask) = match words.next("any, host, range, or an address and a mask")? {
        "any" => (0, 0),
        "host" => (ipv4(words.next("an address")?)?, u32::MAX),
        word => {
            let address = ipv4(word)?;
            let mask = words.next("a mask")?;
            let mask = match mask.strip_prefix('/') {
                Some(len) => u32::MAX.checked_shl(32 - number::<u32>(len, "prefix length", 32)?).unwrap_or(0),
                None => ipv4(mask)?,
            };
            if mask.leading_ones() + mask.trailing_zeros() != u32::BITS {
                return Err(Fault::Syntax(format!(
                    "mask {}; expected one such as 255.255.255.0",
                    Ipv4Addr::from(mask)
                )));
            }
            (address, mask)
        }
    };
    Ok((address & mask, address | !mask))
}

/// A range of IPv4 addresses.
pub(super) fn range4(words: &mut Words<'_>) -> Result<(u32, u32), Fault> {
    words.expect("range")?;
    upwards(ipv4(words.next("an address")?)?, ipv4(words.next("an address")?)?)
}

/// A range of IPv6 addresses.
pub(super) fn range6(words: &mut Words<'_>) -> Result<(u128, u128), Fault> {
    words.expect("range")?;
    upwards(ipv6(words.next("an address")?)?, ipv6(words.next("an address")?)?)
}

fn upwards<T: Ord>(low: T, high: T) -> Result<(T, T), Fault> {
    if low > high {
        return Err(Fault::Syntax("a range that runs downwards; expected the lower address first".into()));
    }
    Ok((low, high))
}
