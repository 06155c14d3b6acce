//! Packetloom's own rules and headers: one a line, `#` begins a comment.
//!
//! A rule:
//!
//! ```text
//! ACTION PROTOCOL from ADDRESS [port PORTS] to ADDRESS [port PORTS] [type N [code N]] [flags SET/MASK]
//!     [fragment any|none|first|later|not-later] [log] [id NAME]
//! ```
//!
//! - `ACTION`: `permit` or `deny`.
//! - `PROTOCOL`: `any`, a name such as `tcp`, or a number.
//! - `ADDRESS`: `any`, an address, or a prefix with no bit set past its length. `any` takes the family of the other side, and
//!   on both sides means either family; `0.0.0.0/0` is every IPv4 address, `::/0` every IPv6 one.
//! - `PORTS`: `N` or `N-N`, with TCP, UDP, SCTP or any protocol.
//! - `type`, `code`: with `icmp` or `icmpv6`.
//! - `flags`: with `tcp`; of the flags in MASK those in SET must be set and the others not. Letters F S R P A U E C.
//! - `fragment`: fragments only, whole packets only, first or later fragments only, all but later
//!   fragments.
//! - `log`: kept, not acted on.
//!
//! A comment behind a rule is kept with it. A line `default permit` or `default deny` says what happens to packets that no rule
//! matches.
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

use super::builder::Builder;
use super::text::{self, Input, Words, number};
use super::{Error, Format, Options, Reading, WriteError, Writing};
use crate::rule::{
    Action, Addresses, Fragments, PortRange, Prefix4, Prefix6, Rule, TcpFlagMatch, flags_from_letters,
};

/// Reads rules, one a line.
pub(super) fn read(input: &mut Input<'_>, options: &Options) -> Result<Reading, Error> {
    let mut builder = Builder::new(input.file, options);
    let mut default = None;
    text::lines(input.file, &mut input.reader, |line, text| {
        let (text, comment) = text::split_comment(text);
        if text.is_empty() {
            return Ok(());
        }
        if let Some(action) = default_action(text) {
            let action = action.map_err(|message| builder.syntax(line, message))?;
            return match default.replace(action) {
                None => Ok(()),
                Some(_) => Err(builder.syntax(line, "\"default\" stands twice")),
            };
        }
        let rule = parse_rule(text).map(|rule| Rule { comment: comment.and_then(text::comment), ..rule });
        builder.line(line, rule.map_err(Into::into))
    })?;
    Ok(builder.finish(Format::Native, default))
}

/// Writes rules, one a line, and the default.
pub(super) fn write(rules: &[Rule], writing: &mut Writing<'_>) -> Result<(), WriteError> {
    for (index, rule) in rules.iter().enumerate() {
        let has_ports = rule.protocol.is_none_or(protocol::has_ports);
        let asks_ports = !(rule.source_ports.is_any() && rule.destination_ports.is_any());
        if rule.action.is_none() {
            writing.inexpressible(index, rule, "where every rule has an action")?;
        } else if asks_ports && !has_ports {
            // ClassBench's filters may ask for what no packet has.
            writing.inexpressible(index, rule, "where ports belong to tcp, udp or sctp")?;
        } else {
            writeln!(writing.writer, "{rule}")?;
        }
    }
    if let Some(default) = writing.options.default {
        writeln!(writing.writer, "default {}", default.name())?;
    }
    Ok(())
}

/// The action of a line `default ACTION`; `None` for any other line.
fn default_action(text: &str) -> Option<Result<Action, String>> {
    let mut words = Words::new(text);
    words.take("default").then(|| {
        let action = action(words.next("permit or deny")?)?;
        match words.0.next() {
            Some(word) => Err(format!("{word:?}; expected the end of the line")),
            None => Ok(action),
        }
    })
}

fn action(word: &str) -> Result<Action, String> {
    [Action::Permit, Action::Deny]
        .into_iter()
        .find(|action| action.name() == word)
        .ok_or_else(|| format!("{word:?}; expected permit or deny"))
}

/// Reads one rule.
fn parse_rule(text: &str) -> Result<Rule, String> {
    let mut words = Words::new(text);
    let action = action(words.next("permit or deny")?)?;
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
            "fragment" => rule.fragments = fragments(words.next("any, none, first, later or not-later")?)?,
            "log" => rule.log = true,
            "id" => rule.id = Some(words.next("a name")?.into()),
            _ => {
                return Err(format!(
                    "{word:?}; expected type, code, flags, fragment, log, id, or the end of the line"
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
    [Fragments::Any, Fragments::None, Fragments::First, Fragments::Later, Fragments::NotLater]
        .into_iter()
        .find(|fragments| fragments.name() == Some(word))
        .ok_or_else(|| format!("fragment {word:?}; expected any, none, first, later or not-later"))
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
