//! Packetloom's own rules and headers: one a line, `#` begins a comment.
//!
//! A rule:
//!
//! ```text
//! ACTION PROTOCOL from ADDRESS [port PORTS] to ADDRESS [port PORTS] [type N [code N]] [flags SET/MASK]
//!     [fragment any|none|first|later] [id NAME]
//! ```
//!
//! - `ACTION`: `permit` or `deny`.
//! - `PROTOCOL`: `any`, a name such as `tcp`, or a number.
//! - `ADDRESS`: `any`, an address, or a prefix with no bit set past its length. `any` takes the family of the other side, and
//!   on both sides means either family; `0.0.0.0/0` is every IPv4 address, `::/0` every IPv6 one.
//! - `PORTS`: `N` or `N-N`, with TCP, UDP, SCTP or any protocol.
//! - `type`, `code`: with `icmp` or `icmpv6`.
//! - `flags`: with `tcp`; of the flags in MASK those in SET must be set and the others not. Letters F S R P A U E C.
//! - `fragment`: fragments only, whole packets only, first or later fragments only.
//!
//! A header:
//!
//! ```text
//! PROTOCOL ADDRESS[:PORT] > ADDRESS[:PORT] [type N [code N]] [flags LETTERS] [fragment first|later]
//! ```
//!
//! An IPv6 address before a port stands in brackets.

use std::net::IpAddr;

use packetloom_packet::key::halves;
use packetloom_packet::protocol;
use packetloom_packet::{Key, KeyBits, MatchKey4, MatchKey6};

use super::number;
use crate::rule::{
    Action, Addresses, Fragments, PortRange, Prefix4, Prefix6, Rule, TcpFlagMatch, flags_from_letters,
};

/// The words of a line, taken one by one.
pub(super) struct Words<'a>(std::iter::Peekable<std::str::SplitAsciiWhitespace<'a>>);

impl<'a> Words<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self(text.split_ascii_whitespace().peekable())
    }

    pub(super) fn next(&mut self, expected: &str) -> Result<&'a str, String> {
        self.0.next().ok_or_else(|| format!("the line ends; expected {expected}"))
    }

    fn expect(&mut self, word: &str) -> Result<(), String> {
        match self.next(&format!("{word:?}"))? {
            found if found == word => Ok(()),
            found => Err(format!("{found:?}; expected {word:?}")),
        }
    }

    /// Takes the next word if it is this one.
    pub(super) fn take(&mut self, word: &str) -> bool {
        self.0.next_if_eq(&word).is_some()
    }

    /// The words that are left.
    pub(super) fn rest(self) -> String {
        self.0.collect::<Vec<_>>().join(" ")
    }

    /// Makes sure that none is left.
    pub(super) fn end(&mut self) -> Result<(), String> {
        self.0.next().map_or(Ok(()), |word| Err(format!("{word:?}; expected the end of the line")))
    }
}

/// Reads one rule.
pub(super) fn parse_rule(text: &str) -> Result<Rule, String> {
    let mut words = Words::new(text);
    let action = match words.next("permit or deny")? {
        "permit" => Action::Permit,
        "deny" => Action::Deny,
        found => return Err(format!("{found:?}; expected permit or deny")),
    };
    let protocol = match words.next("a protocol")? {
        "any" => None,
        word => Some(protocol_number(word, "any, ")?),
    };
    words.expect("from")?;
    let source = address(words.next("a source address")?)?;
    let source_ports = ports(&mut words, protocol)?;
    words.expect("to")?;
    let destination = address(words.next("a destination address")?)?;
    let destination_ports = ports(&mut words, protocol)?;
    let mut rule = Rule {
        addresses: both(source, destination)?,
        protocol,
        source_ports,
        destination_ports,
        ..Rule::any(Some(action))
    };
    let mut seen: Vec<&str> = Vec::new();
    while let Some(word) = words.0.next() {
        if seen.contains(&word) {
            return Err(format!("{word:?} stands twice"));
        }
        seen.push(word);
        match word {
            "type" | "code" if !protocol.is_some_and(protocol::has_type_and_code) => {
                return Err(format!("{word:?} with a protocol that has none; expected icmp or icmpv6"));
            }
            "type" => rule.icmp_type = Some(number(words.next("an ICMP type")?, "ICMP type", 255)?),
            "code" if rule.icmp_type.is_none() => {
                return Err("\"code\" without a type; expected \"type N code N\"".into());
            }
            "code" => rule.icmp_code = Some(number(words.next("an ICMP code")?, "ICMP code", 255)?),
            "flags" if protocol != Some(protocol::TCP) => {
                return Err("\"flags\" with a protocol that has none; expected tcp".into());
            }
            "flags" => rule.tcp_flags = Some(flag_match(words.next("flags such as S/SA")?)?),
            "fragment" => rule.fragments = fragments(words.next("any, none, first or later")?)?,
            "id" => rule.id = Some(words.next("a name")?.into()),
            _ => {
                return Err(format!(
                    "{word:?}; expected type, code, flags, fragment, id, or the end of the line"
                ));
            }
        }
    }
    Ok(rule)
}

/// `or` is what a line takes beside a name or a number.
fn protocol_number(word: &str, or: &str) -> Result<u8, String> {
    if word.bytes().all(|byte| byte.is_ascii_digit()) {
        return number(word, "protocol", 255);
    }
    protocol::by_name(word).ok_or_else(|| {
        format!("protocol {word:?}; expected {or}a name such as tcp, or a number from 0 to 255")
    })
}

/// One side of a rule.
#[derive(Clone, Copy)]
enum Side {
    Any,
    V4(Prefix4),
    V6(Prefix6),
}

fn address(word: &str) -> Result<Side, String> {
    if word == "any" {
        return Ok(Side::Any);
    }
    let (address, len) = match word.split_once('/') {
        Some((address, len)) => (address, Some(len)),
        None => (word, None),
    };
    let expected = || format!("address {word:?}; expected any, an IPv4 or IPv6 address, or a prefix");
    let address: IpAddr = address.parse().map_err(|_| expected())?;
    let side = match address {
        IpAddr::V4(address) => {
            let len = len.map_or(Ok(32), |len| number(len, "prefix length", 32))?;
            let prefix = Prefix4::new(address.into(), len);
            (prefix.address() == u32::from(address)).then_some(Side::V4(prefix)).ok_or(prefix.to_string())
        }
        IpAddr::V6(address) => {
            let len = len.map_or(Ok(128), |len| number(len, "prefix length", 128))?;
            let prefix = Prefix6::new(address.into(), len);
            (prefix.address() == u128::from(address)).then_some(Side::V6(prefix)).ok_or(prefix.to_string())
        }
    };
    side.map_err(|prefix| format!("{word:?} has bits set past its length; expected {prefix}"))
}

fn both(source: Side, destination: Side) -> Result<Addresses, String> {
    let every4 = Prefix4::new(0, 0);
    let every6 = Prefix6::new(0, 0);
    Ok(match (source, destination) {
        (Side::Any, Side::Any) => Addresses::Any,
        (Side::V4(source), Side::V4(destination)) => Addresses::V4(source, destination),
        (Side::V4(source), Side::Any) => Addresses::V4(source, every4),
        (Side::Any, Side::V4(destination)) => Addresses::V4(every4, destination),
        (Side::V6(source), Side::V6(destination)) => Addresses::V6(source, destination),
        (Side::V6(source), Side::Any) => Addresses::V6(source, every6),
        (Side::Any, Side::V6(destination)) => Addresses::V6(every6, destination),
        _ => return Err("one address is IPv4 and the other IPv6; expected both of one family".into()),
    })
}

fn ports(words: &mut Words<'_>, protocol: Option<u8>) -> Result<PortRange, String> {
    if !words.take("port") {
        return Ok(PortRange::ANY);
    }
    if !protocol.is_none_or(protocol::has_ports) {
        return Err("\"port\" with a protocol that has none; expected tcp, udp, sctp or any".into());
    }
    let word = words.next("a port or a range of ports")?;
    let (low, high) = word.split_once('-').unwrap_or((word, word));
    let range = PortRange { low: number(low, "port", 65_535)?, high: number(high, "port", 65_535)? };
    if range.low > range.high {
        return Err(format!("ports {word:?} run downwards; expected {}-{}", range.high, range.low));
    }
    Ok(range)
}

fn flags(letters: &str) -> Result<u8, String> {
    flags_from_letters(letters).ok_or_else(|| format!("flags {letters:?}; expected letters of FSRPAUEC"))
}

fn flag_match(word: &str) -> Result<TcpFlagMatch, String> {
    let (set, mask) =
        word.split_once('/').ok_or_else(|| format!("flags {word:?}; expected SET/MASK such as S/SA"))?;
    let flag_match = TcpFlagMatch { set: flags(set)?, mask: flags(mask)? };
    if flag_match.mask == 0 || flag_match.set & !flag_match.mask != 0 {
        return Err(format!("flags {word:?}; expected a mask that holds every flag of the set"));
    }
    Ok(flag_match)
}

fn fragments(word: &str) -> Result<Fragments, String> {
    [Fragments::Any, Fragments::None, Fragments::First, Fragments::Later]
        .into_iter()
        .find(|fragments| fragments.name() == Some(word))
        .ok_or_else(|| format!("fragment {word:?}; expected any, none, first or later"))
}

/// Reads one header.
pub(super) fn parse_header(text: &str) -> Result<Key, String> {
    let mut words = Words::new(text);
    let protocol = protocol_number(words.next("a protocol")?, "")?;
    let (source, source_port) = endpoint(words.next("a source")?)?;
    words.expect(">")?;
    let (destination, destination_port) = endpoint(words.next("a destination")?)?;
    let mut bits = KeyBits(0);
    let mut fragment = KeyBits::WHOLE;
    let (mut icmp_type, mut code, mut tcp_flags) = (None, None, 0);
    let mut seen: Vec<&str> = Vec::new();
    while let Some(word) = words.0.next() {
        if seen.contains(&word) {
            return Err(format!("{word:?} stands twice"));
        }
        seen.push(word);
        match word {
            "type" | "code" if !protocol::has_type_and_code(protocol) => {
                return Err(format!("{word:?} with a protocol that has none; expected icmp or icmpv6"));
            }
            "type" => icmp_type = Some(number(words.next("an ICMP type")?, "ICMP type", 255)?),
            "code" if icmp_type.is_none() => {
                return Err("\"code\" without a type; expected \"type N code N\"".into());
            }
            "code" => code = Some(number(words.next("an ICMP code")?, "ICMP code", 255)?),
            "flags" if protocol == protocol::TCP => {
                tcp_flags = flags(words.next("flags such as SA")?)?;
                bits = bits.with(KeyBits::TCP_FLAGS);
            }
            "fragment" => {
                fragment = match words.next("first or later")? {
                    "first" => KeyBits::FIRST_FRAGMENT,
                    "later" => KeyBits::LATER_FRAGMENT,
                    found => return Err(format!("fragment {found:?}; expected first or later")),
                }
            }
            _ => return Err(format!("{word:?}; expected type, code, flags (tcp), fragment, or the end")),
        }
    }
    let has_transport = source_port.or(destination_port).or(icmp_type).is_some() || bits != KeyBits(0);
    if fragment == KeyBits::LATER_FRAGMENT && has_transport {
        return Err("ports, a type or flags of a later fragment; expected none of them".into());
    }
    let (source_port, destination_port) = match (source_port, destination_port, icmp_type) {
        (Some(source), Some(destination), None) => {
            bits = bits.with(KeyBits::PORTS);
            (source, destination)
        }
        (None, None, Some(icmp_type)) => {
            bits = bits.with(KeyBits::ICMP);
            (icmp_type, code.unwrap_or(0))
        }
        (None, None, None) if !protocol::has_ports(protocol) || fragment == KeyBits::LATER_FRAGMENT => (0, 0),
        (None, None, _) => return Err("expected a port on both sides, as in 192.0.2.1:443".into()),
        (_, _, Some(_)) => return Err("ports and an ICMP type; expected one of them".into()),
        _ => return Err("a port on one side only; expected both or none".into()),
    };
    bits = bits.with(fragment);
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => Ok(Key::V4(MatchKey4 {
            source: source.into(),
            destination: destination.into(),
            source_port,
            destination_port,
            protocol,
            tcp_flags,
            bits,
            reserved: 0,
        })),
        (IpAddr::V6(source), IpAddr::V6(destination)) => Ok(Key::V6(MatchKey6 {
            source: halves(source.into()),
            destination: halves(destination.into()),
            source_port,
            destination_port,
            protocol,
            tcp_flags,
            bits,
            reserved: 0,
        })),
        _ => Err("one address is IPv4 and the other IPv6; expected both of one family".into()),
    }
}

/// An address with or without a port.
fn endpoint(word: &str) -> Result<(IpAddr, Option<u16>), String> {
    let expected = || format!("{word:?}; expected an address, 192.0.2.1:443, or [2001:db8::1]:443");
    if let Ok(address) = word.parse::<IpAddr>() {
        return Ok((address, None));
    }
    let (address, port) = word.rsplit_once(':').ok_or_else(expected)?;
    let address = match address.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        Some(inner) => IpAddr::V6(inner.parse().map_err(|_| expected())?),
        None => IpAddr::V4(address.parse().map_err(|_| expected())?),
    };
    Ok((address, Some(number(port, "port", 65_535)?)))
}
