//! Addresses and ports of a rule: one, a list, or a set that was given a name.

use std::collections::HashMap;
use std::net::IpAddr;

use crate::formats::builder::MAX_EXPANSION;
use crate::formats::region::{prefixes4, prefixes6};
use crate::formats::set::{Integer, Set};
use crate::formats::text::number;
use crate::rule::{Addresses, Prefix4, Prefix6};

/// The addresses of one end of a rule.
#[derive(Clone, Debug)]
pub(super) enum Side {
    /// Every address of the other end's family, or of both.
    Any,
    /// Addresses of either family.
    Of(Set<u32>, Set<u128>),
}

impl Side {
    /// How many ranges there are.
    pub(super) fn size(&self) -> usize {
        match self {
            Self::Any => 0,
            Self::Of(v4, v6) => v4.ranges().count() + v6.ranges().count(),
        }
    }
}

/// What a list of `size` ranges is refused with, if they are too many.
fn limit(size: usize) -> Result<(), String> {
    if size > MAX_EXPANSION {
        Err(format!("more than {MAX_EXPANSION} addresses or ports in a list"))
    } else {
        Ok(())
    }
}

/// The source and destination prefixes of a rule's packets, in pairs of one family; none where no family has both.
pub(super) struct Pairs {
    any: bool,
    v4: (Vec<Prefix4>, Vec<Prefix4>),
    v6: (Vec<Prefix6>, Vec<Prefix6>),
}

pub(super) fn pairs(source: &Side, destination: &Side) -> Pairs {
    /// What each end leaves: all of the family where the end says nothing and the other end is of the family.
    fn ends<T: Integer, P>(
        source: Option<&Set<T>>,
        destination: Option<&Set<T>>,
        prefixes: impl Fn(&Set<T>) -> Vec<P>,
    ) -> (Vec<P>, Vec<P>) {
        match (source, destination) {
            (None, None) => (Vec::new(), Vec::new()),
            (source, destination) => {
                (prefixes(source.unwrap_or(&Set::ALL)), prefixes(destination.unwrap_or(&Set::ALL)))
            }
        }
    }
    let v4 = |side| match side {
        &Side::Any => None,
        Side::Of(v4, _) => Some(v4),
    };
    let v6 = |side| match side {
        &Side::Any => None,
        Side::Of(_, v6) => Some(v6),
    };
    Pairs {
        any: matches!((source, destination), (Side::Any, Side::Any)),
        v4: ends(v4(source), v4(destination), |set| prefixes4(set).collect()),
        v6: ends(v6(source), v6(destination), |set| prefixes6(set).collect()),
    }
}

impl Pairs {
    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn len(&self) -> usize {
        usize::from(self.any) + self.v4.0.len() * self.v4.1.len() + self.v6.0.len() * self.v6.1.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = Addresses> {
        let v4 =
            self.v4.0.iter().flat_map(|&source| {
                self.v4.1.iter().map(move |&destination| Addresses::V4(source, destination))
            });
        let v6 =
            self.v6.0.iter().flat_map(|&source| {
                self.v6.1.iter().map(move |&destination| Addresses::V6(source, destination))
            });
        self.any.then_some(Addresses::Any).into_iter().chain(v4).chain(v6)
    }
}

/// A set with a name.
#[derive(Debug)]
enum Named {
    Addresses(Set<u32>, Set<u128>),
    Ports(Set<u16>),
}

/// The sets of a file.
#[derive(Debug, Default)]
pub(super) struct Sets(HashMap<Box<str>, Named>);

/// The name and the list of a line `set NAME = LIST`; `None` for any other line.
pub(super) fn definition(text: &str) -> Option<Result<(&str, &str), String>> {
    let rest = text.strip_prefix("set").filter(|rest| rest.starts_with(|c: char| c.is_ascii_whitespace()))?;
    Some(match rest.split_once('=') {
        Some((name, list)) => Ok((name.trim_ascii(), list.trim_ascii())),
        None => Err("a set without \"=\"; expected set NAME = ADDRESSES or PORTS".into()),
    })
}

impl Sets {
    /// Keeps a set; how many ranges its list held.
    pub(super) fn define(&mut self, name: &str, list: &str) -> Result<usize, String> {
        let is_name = |byte: u8| !byte.is_ascii_whitespace() && !matches!(byte, b'@' | b',' | b'=');
        if name.is_empty() || !name.bytes().all(is_name) {
            return Err(format!("set name {name:?}; expected a word without '@' and ','"));
        }
        let words: Vec<_> = list.split(',').map(str::trim_ascii).collect();
        let is_ports = match words[0].strip_prefix('@') {
            Some(of) => matches!(self.named(of)?, Named::Ports(_)),
            None => words[0].starts_with(|c: char| c.is_ascii_digit()) && !words[0].contains(['.', ':', '/']),
        };
        let (set, size) = if is_ports {
            let (ports, size) = self.ports_of(&words)?;
            (Named::Ports(ports), size)
        } else {
            let (v4, v6, size) = self.addresses_of(&words)?;
            (Named::Addresses(v4, v6), size)
        };
        match self.0.insert(name.into(), set) {
            Some(_) => Err(format!("set {name:?} stands twice")),
            None => Ok(size),
        }
    }

    fn named(&self, name: &str) -> Result<&Named, String> {
        self.0.get(name).ok_or_else(|| format!("set {name:?}; expected the name of a set before this line"))
    }

    /// The addresses that a word of a rule means.
    pub(super) fn side(&self, word: &str) -> Result<Side, String> {
        if word == "any" {
            return Ok(Side::Any);
        }
        let (v4, v6, _) = self.addresses_of(&word.split(',').collect::<Vec<_>>())?;
        Ok(Side::Of(v4, v6))
    }

    /// The ports that a word of a rule means.
    pub(super) fn ports(&self, word: &str) -> Result<Set<u16>, String> {
        Ok(self.ports_of(&word.split(',').collect::<Vec<_>>())?.0)
    }

    /// The addresses of a list, and how many ranges it held.
    fn addresses_of(&self, words: &[&str]) -> Result<(Set<u32>, Set<u128>, usize), String> {
        let (mut v4, mut v6) = (Vec::new(), Vec::new());
        for word in words {
            match word.strip_prefix('@').map(|name| (name, self.named(name))) {
                None => match prefix(word)? {
                    Prefix::V4(prefix) => v4.push((prefix.address(), prefix.address() | !prefix.mask())),
                    Prefix::V6(prefix) => v6.push((prefix.address(), prefix.address() | !prefix.mask())),
                },
                Some((_, named)) => match named? {
                    Named::Addresses(more4, more6) => {
                        v4.extend(more4.ranges());
                        v6.extend(more6.ranges());
                    }
                    Named::Ports(_) => return Err(format!("{word:?} holds ports; expected addresses")),
                },
            }
            limit(v4.len() + v6.len())?;
        }
        let size = v4.len() + v6.len();
        Ok((Set::of(v4), Set::of(v6), size))
    }

    /// The ports of a list, and how many ranges it held.
    fn ports_of(&self, words: &[&str]) -> Result<(Set<u16>, usize), String> {
        let mut ranges = Vec::new();
        for word in words {
            match word.strip_prefix('@') {
                None => ranges.push(port_range(word)?),
                Some(name) => match self.named(name)? {
                    Named::Ports(more) => ranges.extend(more.ranges()),
                    Named::Addresses(..) => return Err(format!("{word:?} holds addresses; expected ports")),
                },
            }
            limit(ranges.len())?;
        }
        let size = ranges.len();
        Ok((Set::of(ranges), size))
    }
}

/// One address or prefix.
enum Prefix {
    V4(Prefix4),
    V6(Prefix6),
}

fn prefix(word: &str) -> Result<Prefix, String> {
    let (address, len) = match word.split_once('/') {
        Some((address, len)) => (address, Some(len)),
        None => (word, None),
    };
    let expected = || format!("address {word:?}; expected any, an IPv4 or IPv6 address, or a prefix");
    let address: IpAddr = address.parse().map_err(|_| expected())?;
    let prefix = match address {
        IpAddr::V4(address) => {
            let len = len.map_or(Ok(32), |len| number(len, "prefix length", 32))?;
            let prefix = Prefix4::new(address.into(), len);
            (prefix.address() == u32::from(address)).then_some(Prefix::V4(prefix)).ok_or(prefix.to_string())
        }
        IpAddr::V6(address) => {
            let len = len.map_or(Ok(128), |len| number(len, "prefix length", 128))?;
            let prefix = Prefix6::new(address.into(), len);
            (prefix.address() == u128::from(address)).then_some(Prefix::V6(prefix)).ok_or(prefix.to_string())
        }
    };
    prefix.map_err(|prefix| format!("{word:?} has bits set past its length; expected {prefix}"))
}

fn port_range(word: &str) -> Result<(u16, u16), String> {
    let (low, high) = word.split_once('-').unwrap_or((word, word));
    let (low, high) = (number(low, "port", 65_535)?, number(high, "port", 65_535)?);
    if low > high {
        return Err(format!("ports {word:?} run downwards; expected {high}-{low}"));
    }
    Ok((low, high))
}
