//! Headers of Packetloom's own format.

use std::net::IpAddr;

use packetloom_packet::key::halves;
use packetloom_packet::{Key, KeyBits, MatchKey4, MatchKey6, protocol};

use super::{flags, protocol_number};
use crate::formats::text::{Words, number};

/// Reads one header.
pub(in crate::formats) fn parse_header(text: &str) -> Result<Key, String> {
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
