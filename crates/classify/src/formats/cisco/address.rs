//! Addresses of entries and groups.

use std::net::{Ipv4Addr, Ipv6Addr};

use super::super::builder::Fault;
use super::super::set::Set;
use super::super::text::{Words, number};
use super::groups::Groups;

pub(super) fn ipv4(word: &str) -> Result<u32, String> {
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
pub(super) fn wildcard(address: u32, wildcard: u32) -> Result<Set<u32>, Fault> {
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
pub(super) fn address4(words: &mut Words<'_>, groups: Option<&mut Groups<'_>>) -> Result<Set<u32>, Fault> {
    match (words.next("any, host, or an address and a wildcard")?, groups) {
        ("any", _) => Ok(Set::ALL),
        ("host", _) => Ok(Set::one(ipv4(words.next("an address")?)?)),
        ("object-group", Some(groups)) => groups.v4(words.next("the name of a group")?),
        (word, _) => wildcard(ipv4(word)?, ipv4(words.next("a wildcard")?)?),
    }
}

/// An IPv6 address of an entry, or several.
pub(super) fn address6(words: &mut Words<'_>, groups: &mut Groups<'_>) -> Result<Set<u128>, Fault> {
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
