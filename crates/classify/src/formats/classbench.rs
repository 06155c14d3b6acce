//! ClassBench filter sets and traces (Taylor and Turner, IEEE/ACM Transactions on Networking 15(3), 2007).
//!
//! A filter is a line of six columns:
//! `@source/len  destination/len  low : high  low : high  protocol/mask  flags/mask`, numbers of the last two in
//! hexadecimal. The flags column is 16 bits wide. Its high byte is the TCP flags of a TCP filter and the type of an ICMP
//! filter, whose low byte is the code. ClassBench-ng (Matoušek et al., ANCS 2017) writes IPv6 prefixes in the same columns.
//!
//! A trace line is `source destination source-port destination-port protocol [flags [filter]]` in decimal, for IPv4.

use std::net::IpAddr;

use packetloom_packet::protocol::{ICMP, TCP};
use packetloom_packet::{KeyBits, MatchKey4};

use super::builder::Builder;
use super::text::{self, Input, number};
use super::{Error, Format, Options, Reading, WriteError, Writing};
use crate::rule::{Action, Addresses, Fragments, PortRange, Prefix4, Prefix6, Rule, TcpFlagMatch};

/// Filters begin with '@', which no rule of another format does.
pub(super) fn recognises(head: &str) -> bool {
    text::first_line(head).starts_with('@')
}

/// Reads filters, one a line; `#` begins a comment.
pub(super) fn read(input: &mut Input<'_>, options: &Options) -> Result<Reading, Error> {
    let mut builder = Builder::new(input.file, options);
    text::lines(input.file, &mut input.reader, |line, text| match text::split_comment(text).0 {
        "" => Ok(()),
        text => builder.line(line, parse_rule(text, options.ignore_flags).map_err(Into::into)),
    })?;
    let reading = builder.finish(Format::ClassBench, None);
    if reading.rules.rules.is_empty() {
        let message =
            "no filter; expected lines such as \"@192.0.2.0/24 0.0.0.0/0 0 : 65535 80 : 80 0x06/0xFF\"";
        return Err(Error::List { file: input.file.into(), message: message.into() });
    }
    Ok(reading)
}

/// Writes filters. There is no place for names and comments, nor for actions and a default: a list that has them is refused
/// unless its conditions alone are asked for ([`WriteOptions::conditions_only`](super::WriteOptions::conditions_only)).
pub(super) fn write(rules: &[Rule], writing: &mut Writing<'_>) -> Result<(), WriteError> {
    let conditions_only = writing.options.conditions_only;
    if !conditions_only && writing.options.closing() == Action::Permit {
        let reason = "which holds conditions only (--conditions-only leaves actions and the default out)";
        return Err(WriteError::Default { action: Action::Permit, reason });
    }
    let mut is_empty = true;
    for (index, rule) in rules.iter().enumerate() {
        if rule.action.is_some() && !conditions_only {
            let reason = "which holds no actions (--conditions-only leaves actions and the default out)";
            writing.inexpressible(index, rule, reason)?;
            continue;
        }
        match filter(rule) {
            Some(line) => {
                writeln!(writing.writer, "{line}")?;
                is_empty = false;
            }
            None => writing.inexpressible(
                index,
                rule,
                "which holds no \"any\" of both families and no fragments",
            )?,
        }
    }
    if is_empty && !conditions_only {
        // A file without filters is refused where it is read.
        let reason = "which holds one filter or more";
        return Err(WriteError::Default { action: writing.options.closing(), reason });
    }
    Ok(())
}

/// Reads one filter; it has no action.
fn parse_rule(text: &str, ignore_flags: bool) -> Result<Rule, String> {
    const EXPECTED: &str =
        "expected @source/len destination/len low : high low : high protocol/mask [flags/mask]";
    let mut words = text.split_ascii_whitespace();
    let mut next = |what: &str| words.next().ok_or_else(|| format!("{what} is missing; {EXPECTED}"));
    let source = next("the source")?;
    let source =
        source.strip_prefix('@').ok_or_else(|| format!("{source:?} begins without '@'; {EXPECTED}"))?;
    let source = prefix(source)?;
    let addresses = match (source, prefix(next("the destination")?)?) {
        (Prefix::V4(source), Prefix::V4(destination)) => Addresses::V4(source, destination),
        (Prefix::V6(source), Prefix::V6(destination)) => Addresses::V6(source, destination),
        _ => return Err("source and destination of two families; expected prefixes of one".into()),
    };
    let mut ports = |what: &str| {
        let low = number(next(what)?, "port", 65_535)?;
        match next(what)? {
            ":" => {}
            other => return Err(format!("{other:?} between two ports; expected \":\"")),
        }
        let high = number(next(what)?, "port", 65_535)?;
        if low > high {
            return Err(format!("{what} runs from {low} down to {high}; expected low : high"));
        }
        Ok(PortRange { low, high })
    };
    let source_ports = ports("the source port range")?;
    let destination_ports = ports("the destination port range")?;
    let (number, mask) = hex_pair(next("the protocol")?, u8::MAX.into())?;
    let protocol = match mask {
        0 => None,
        0xff => Some(number as u8),
        _ => return Err(format!("protocol mask {mask:#04x}; expected 0x00 or 0xff")),
    };
    let mut rule = Rule { addresses, protocol, source_ports, destination_ports, ..Rule::any(None) };
    if let Some(flags) = words.next() {
        let (value, mask) = hex_pair(flags, u16::MAX)?;
        if !ignore_flags && mask != 0 {
            set_flags(&mut rule, value, mask)?;
        }
    }
    match words.next() {
        Some(word) => Err(format!("{word:?} after the flags; {EXPECTED}")),
        None => Ok(rule),
    }
}

/// Gives the flags column its meaning, which depends on the protocol.
fn set_flags(rule: &mut Rule, value: u16, mask: u16) -> Result<(), String> {
    let (high, high_mask) = ((value >> 8) as u8, (mask >> 8) as u8);
    let (low, low_mask) = (value as u8, mask as u8);
    match (rule.protocol, high_mask, low_mask) {
        (Some(TCP), _, 0) => rule.tcp_flags = Some(TcpFlagMatch { set: high & high_mask, mask: high_mask }),
        (Some(ICMP), 0xff, 0 | 0xff) => {
            rule.icmp_type = Some(high);
            rule.icmp_code = (low_mask == 0xff).then_some(low);
        }
        _ => {
            return Err(format!(
                "flags {value:#06x}/{mask:#06x}; expected TCP flags in the high byte of a TCP filter, an ICMP type in \
                 that of an ICMP filter, or a mask of 0 (--ignore-flags leaves the column out)"
            ));
        }
    }
    Ok(())
}

/// A prefix of either family.
enum Prefix {
    V4(Prefix4),
    V6(Prefix6),
}

fn prefix(word: &str) -> Result<Prefix, String> {
    let parse = || {
        let (address, len) = word.split_once('/')?;
        Some(match address.parse().ok()? {
            IpAddr::V4(address) => Prefix::V4(Prefix4::new(address.into(), number(len, "", 32).ok()?)),
            IpAddr::V6(address) => Prefix::V6(Prefix6::new(address.into(), number(len, "", 128).ok()?)),
        })
    };
    parse().ok_or_else(|| format!("{word:?}; expected a prefix such as 192.0.2.0/24 or 2001:db8::/32"))
}

fn hex_pair(word: &str, max: u16) -> Result<(u16, u16), String> {
    let hex = |word: &str| {
        let digits = word.strip_prefix("0x").or_else(|| word.strip_prefix("0X"))?;
        let plain = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        u16::from_str_radix(digits, 16).ok().filter(|&value| plain && value <= max)
    };
    let parse = || {
        let (value, mask) = word.split_once('/')?;
        Some((hex(value)?, hex(mask)?))
    };
    parse().ok_or_else(|| format!("{word:?}; expected value/mask, each from 0x0 to {max:#x}"))
}

/// The rule as a filter, without its action and its id; `None` where the format has no words for it: fragments, an
/// ICMPv6 type, or "any" address of either family.
fn filter(rule: &Rule) -> Option<String> {
    let (source, destination) = match rule.addresses {
        Addresses::Any => return None,
        Addresses::V4(source, destination) => (source.to_string(), destination.to_string()),
        Addresses::V6(source, destination) => (source.to_string(), destination.to_string()),
    };
    if rule.fragments != Fragments::All {
        return None;
    }
    let (flags, mask) = match (rule.protocol, rule.tcp_flags, rule.icmp_type, rule.icmp_code) {
        (_, None, None, None) => (0, 0),
        (Some(TCP), Some(flags), None, None) => (u16::from(flags.set) << 8, u16::from(flags.mask) << 8),
        (Some(ICMP), None, Some(icmp_type), None) => (u16::from(icmp_type) << 8, 0xff00),
        (Some(ICMP), None, Some(icmp_type), Some(code)) => (u16::from_be_bytes([icmp_type, code]), 0xffff),
        _ => return None,
    };
    let (protocol, protocol_mask) = rule.protocol.map_or((0, "0x00"), |protocol| (protocol, "0xFF"));
    let ports = |range: PortRange| format!("{} : {}", range.low, range.high);
    Some(format!(
        "@{source}\t{destination}\t{}\t{}\t{protocol:#04x}/{protocol_mask}\t{flags:#06x}/{mask:#06x}\t",
        ports(rule.source_ports),
        ports(rule.destination_ports)
    ))
}

/// Reads one header of a trace. Its ports count as ports whatever the protocol.
pub(super) fn parse_header(text: &str) -> Result<MatchKey4, String> {
    let mut words = text.split_ascii_whitespace();
    let mut next = |what: &str| {
        words.next().ok_or_else(|| {
            format!("the {what} is missing; expected source destination source-port destination-port protocol [flags [filter]], or \"tcp 192.0.2.1:1 > 192.0.2.2:2\"")
        })
    };
    let key = MatchKey4 {
        source: number(next("source")?, "source address", u32::MAX.into())?,
        destination: number(next("destination")?, "destination address", u32::MAX.into())?,
        source_port: number(next("source port")?, "port", 65_535)?,
        destination_port: number(next("destination port")?, "port", 65_535)?,
        protocol: number(next("protocol")?, "protocol", 255)?,
        bits: KeyBits::PORTS.with(KeyBits::WHOLE),
        ..MatchKey4::default()
    };
    // Flags and the filter that made the header: not used, but they must be numbers.
    for word in words.by_ref().take(2) {
        number::<u64>(word, "number", u64::from(u32::MAX))?;
    }
    match words.next() {
        Some(word) => Err(format!("{word:?} after the filter; expected at most seven columns")),
        None => Ok(key),
    }
}
