//! Names, numbers and operators, as words.

use std::net::IpAddr;

use super::super::super::text::number;
use super::super::nlri::{
    DESTINATION_PORT, FRAGMENT, Family, ICMP_CODE, ICMP_TYPE, PORT, PROTOCOL, Pattern, SOURCE_PORT, TCP_FLAGS,
};
use super::super::operators::{AND, EQUAL, GREATER, LOWER, MATCH, NOT};

/// The names of what is compared with a number or with bits, the components they become, and the greatest values.
pub(super) const CONDITIONS: &[(&str, u8, u16)] = &[
    ("protocol", PROTOCOL, 255),
    ("next-header", PROTOCOL, 255),
    ("port", PORT, u16::MAX),
    ("destination-port", DESTINATION_PORT, u16::MAX),
    ("source-port", SOURCE_PORT, u16::MAX),
    ("icmp-type", ICMP_TYPE, 255),
    ("icmp-code", ICMP_CODE, 255),
    ("tcp-flags", TCP_FLAGS, u16::MAX),
    ("fragment", FRAGMENT, 255),
];

const PROTOCOLS: &[(&str, u16)] = &[
    ("icmp", 1),
    ("igmp", 2),
    ("tcp", 6),
    ("egp", 8),
    ("udp", 17),
    ("rsvp", 46),
    ("gre", 47),
    ("esp", 50),
    ("ah", 51),
    ("ospf", 89),
    ("ipip", 94),
    ("pim", 103),
    ("sctp", 132),
];
const ICMP_TYPES: &[(&str, u16)] = &[
    ("echo-reply", 0),
    ("unreachable", 3),
    ("redirect", 5),
    ("echo-request", 8),
    ("router-advertisement", 9),
    ("router-solicit", 10),
    ("time-exceeded", 11),
    ("parameter-problem", 12),
    ("timestamp", 13),
    ("timestamp-reply", 14),
];
const FLAGS: &[(&str, u16)] = &[
    ("fin", 0x01),
    ("syn", 0x02),
    ("rst", 0x04),
    ("push", 0x08),
    ("ack", 0x10),
    ("urg", 0x20),
    ("urgent", 0x20),
    ("ece", 0x40),
    ("cwr", 0x80),
    ("ns", 0x100),
];
const FRAGMENTS: &[(&str, u16)] =
    &[("dont-fragment", 1), ("is-fragment", 2), ("first-fragment", 4), ("last-fragment", 8)];

/// An address with a length, and with IPv6 perhaps an offset.
pub(super) fn pattern(word: &str) -> Result<(Family, Pattern), String> {
    let expected = || format!("{word:?}; expected an IPv4 or IPv6 prefix such as 192.0.2.0/24");
    let mut parts = word.split('/');
    let address = parts.next().ok_or_else(expected)?;
    let (family, address, bits) = match address.parse().map_err(|_| expected())? {
        IpAddr::V4(address) => (Family::V4, u128::from(address.to_bits()) << 96, 32),
        IpAddr::V6(address) => (Family::V6, address.to_bits(), 128),
    };
    let length = number(parts.next().ok_or_else(expected)?, "prefix length", bits)?;
    let offset = parts.next().map_or(Ok(0), |offset| number(offset, "offset", bits))?;
    if parts.next().is_some() || offset > length || (family == Family::V4 && offset > 0) {
        return Err(expected());
    }
    Ok((family, Pattern::of(address, offset, length)))
}

/// Operators and values that `&` joins.
pub(super) fn expression(kind: u8, text: &str, max: u16) -> Result<Vec<(u8, u16)>, String> {
    let parts = text.split('&').enumerate();
    parts
        .map(|(index, part)| {
            // The last sign is none.
            let signs =
                signs(kind).iter().find_map(|(sign, operator)| Some((*operator, part.strip_prefix(sign)?)));
            let (operator, value) = signs.unwrap_or((0, part));
            let and = if index == 0 { 0 } else { AND };
            Ok((operator | and, self::value(kind, value, max)?))
        })
        .collect()
}

/// The signs before a value of this kind, and the operators that they are.
pub(super) fn signs(kind: u8) -> &'static [(&'static str, u8)] {
    match kind {
        TCP_FLAGS | FRAGMENT => &[("!=", NOT | MATCH), ("!", NOT), ("=", MATCH), ("", 0)],
        _ => &[
            ("!=", LOWER | GREATER),
            (">=", GREATER | EQUAL),
            ("<=", LOWER | EQUAL),
            (">", GREATER),
            ("<", LOWER),
            ("=", EQUAL),
            ("", EQUAL),
        ],
    }
}

/// The names of values of this kind.
pub(super) fn names(kind: u8) -> &'static [(&'static str, u16)] {
    match kind {
        PROTOCOL => PROTOCOLS,
        ICMP_TYPE => ICMP_TYPES,
        TCP_FLAGS => FLAGS,
        FRAGMENT => FRAGMENTS,
        _ => &[],
    }
}

/// A number, in decimal or hexadecimal, or a name; of bits, several that `+` joins.
fn value(kind: u8, text: &str, max: u16) -> Result<u16, String> {
    let names = names(kind);
    let one = |text: &str| {
        let lower = text.to_ascii_lowercase().replace('_', "-");
        if let Some((_, value)) = names.iter().find(|(name, _)| *name == lower) {
            return Ok(*value);
        }
        let hex =
            lower.strip_prefix("0x").filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
        let value = match hex {
            Some(digits) => u16::from_str_radix(digits, 16).ok().filter(|value| *value <= max),
            None => number(text, "", max.into()).ok(),
        };
        let what = if names.is_empty() { "a number" } else { "a name or a number" };
        value.ok_or_else(|| format!("{text:?}; expected {what} from 0 to {max}"))
    };
    match kind {
        TCP_FLAGS | FRAGMENT => text.split('+').try_fold(0, |bits, text| Ok(bits | one(text)?)),
        _ => one(text),
    }
}
