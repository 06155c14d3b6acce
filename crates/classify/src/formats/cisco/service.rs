//! Protocols and what stands in their headers: ports, messages, flags.

use packetloom_packet::protocol::{ICMP, ICMPV6, TCP, UDP, has_ports};

use super::super::builder::Fault;
use super::super::region::{self, Ends, Region};
use super::super::set::Set;
use super::super::text::{Words, number};
use super::names;
use crate::rule::flags_from_letters;

/// The flags by name, and their letters in our own rules.
const FLAGS: &[(&str, &str)] =
    &[("ack", "A"), ("fin", "F"), ("psh", "P"), ("rst", "R"), ("syn", "S"), ("urg", "U")];

/// Protocols and what stands in their headers.
#[derive(Clone)]
pub(super) struct Service {
    pub(super) protocols: Set<u8>,
    pub(super) source_ports: Option<Set<u16>>,
    pub(super) destination_ports: Option<Set<u16>>,
    pub(super) icmp: Option<Set<u16>>,
    pub(super) flags: Option<Set<u8>>,
}

impl Service {
    pub(super) const fn of(protocols: Set<u8>) -> Self {
        Self { protocols, source_ports: None, destination_ports: None, icmp: None, flags: None }
    }

    /// Whether it asks for what later fragments do not have.
    pub(super) const fn asks_transport(&self) -> bool {
        self.source_ports.is_some()
            || self.destination_ports.is_some()
            || self.icmp.is_some()
            || self.flags.is_some()
    }

    /// The packets between these ends.
    pub(super) fn region(&self, ends: &Ends) -> Region {
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
        Some(protocol) if protocol == icmp => service.icmp = message(words, icmp)?,
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
pub(super) fn single(protocols: &Set<u8>) -> Option<u8> {
    let mut members = protocols.members();
    members.next().filter(|_| members.next().is_none())
}

pub(super) fn protocols(word: &str, icmp: u8) -> Result<Set<u8>, Fault> {
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
pub(super) fn ports(words: &mut Words<'_>, protocol: Option<u8>) -> Result<Option<Set<u16>>, Fault> {
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
pub(super) fn message(words: &mut Words<'_>, protocol: u8) -> Result<Option<Set<u16>>, Fault> {
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
pub(super) fn flags(word: &str, words: &mut Words<'_>) -> Result<Set<u8>, Fault> {
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
