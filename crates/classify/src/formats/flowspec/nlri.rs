//! A flow specification as it stands in an NLRI (RFC 8955 section 4, RFC 8956 section 3), and the order that follows from it
//! (RFC 8955 section 5.1).

use std::cmp::Ordering;

use super::super::builder::Fault;
use super::operators::Terms;

/// Types of components.
pub(super) const DESTINATION: u8 = 1;
pub(super) const SOURCE: u8 = 2;
pub(super) const PROTOCOL: u8 = 3;
pub(super) const PORT: u8 = 4;
pub(super) const DESTINATION_PORT: u8 = 5;
pub(super) const SOURCE_PORT: u8 = 6;
pub(super) const ICMP_TYPE: u8 = 7;
pub(super) const ICMP_CODE: u8 = 8;
pub(super) const TCP_FLAGS: u8 = 9;
pub(super) const PACKET_LENGTH: u8 = 10;
pub(super) const DSCP: u8 = 11;
pub(super) const FRAGMENT: u8 = 12;
pub(super) const FLOW_LABEL: u8 = 13;

/// The greatest length.
const MAX_LENGTH: usize = 0x0fff;

/// What a flow's addresses are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Family {
    V4,
    V6,
}

impl Family {
    /// Both of them.
    pub(super) const ALL: [Self; 2] = [Self::V4, Self::V6];

    /// The word before a flow.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::V4 => "ipv4",
            Self::V6 => "ipv6",
        }
    }

    const fn bits(self) -> u8 {
        match self {
            Self::V4 => 32,
            Self::V6 => 128,
        }
    }
}

/// Bits of an address, from the highest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pattern {
    /// The address, from the highest bit of the word; 0 outside the bits that are compared.
    pub(super) address: u128,
    /// Bits that are skipped; 0 with IPv4.
    pub(super) offset: u8,
    /// Where the bits that are compared end.
    pub(super) length: u8,
}

impl Pattern {
    /// The bits of `address` from `offset` to `length`, which is not the lower one.
    pub(super) fn of(address: u128, offset: u8, length: u8) -> Self {
        Self { address: address & mask(length) & !mask(offset), offset, length }
    }

    /// The one that begins `bytes`, and what follows it; `None` where there is none.
    fn split(family: Family, bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (&length, rest) = bytes.split_first()?;
        let (offset, rest) = match family {
            Family::V4 => (0, rest),
            Family::V6 => rest.split_first().map(|(&offset, rest)| (offset, rest))?,
        };
        let everything = length == 0 && offset == 0;
        if length > family.bits() || (offset >= length && !everything) {
            return None;
        }
        let (pattern, rest) = rest.split_at_checked(usize::from(length - offset).div_ceil(8))?;
        let mut address = [0; 16];
        address[..pattern.len()].copy_from_slice(pattern);
        let mask = mask(length - offset);
        Some((Self { address: (u128::from_be_bytes(address) & mask) >> offset, offset, length }, rest))
    }

    /// Appends it.
    pub(super) fn write(self, family: Family, bytes: &mut Vec<u8>) {
        bytes.push(self.length);
        if family == Family::V6 {
            bytes.push(self.offset);
        }
        let pattern = (self.address << self.offset).to_be_bytes();
        bytes.extend(&pattern[..usize::from(self.length - self.offset).div_ceil(8)]);
    }

    /// Less is what goes first: the more specific pattern, or the lower address. Flows with offsets are not put in order: no
    /// rule of ours says them.
    fn order(self, other: Self) -> Ordering {
        let common = mask(self.length.min(other.length));
        if (self.address ^ other.address) & common == 0 {
            other.length.cmp(&self.length)
        } else {
            self.address.cmp(&other.address)
        }
    }
}

/// A word with the highest bits set.
fn mask(bits: u8) -> u128 {
    u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0)
}

/// What a component says.
#[derive(Clone, Copy)]
pub(super) enum Component<'a> {
    /// Of an address.
    Pattern(Pattern),
    /// Of another field.
    Terms(Terms<'a>),
}

/// A flow specification.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Flow {
    pub(super) family: Family,
    /// The NLRI without its length; it was checked.
    components: Box<[u8]>,
}

/// The NLRI that begins `bytes`, without its length, and what follows it.
pub(super) fn split(bytes: &[u8]) -> Result<(&[u8], &[u8]), String> {
    let (length, rest) = match *bytes {
        [high, low, ref rest @ ..] if high >= 0xf0 => {
            (usize::from(high & 0x0f) << 8 | usize::from(low), rest)
        }
        [length, ref rest @ ..] if length < 0xf0 => (length.into(), rest),
        _ => return Err("an NLRI whose length is cut off; expected one or two bytes".into()),
    };
    rest.split_at_checked(length)
        .ok_or_else(|| format!("an NLRI of {length} bytes, of which {} are there", rest.len()))
}

impl Flow {
    /// The flow of an NLRI without its length.
    pub(super) fn decode(family: Family, nlri: &[u8]) -> Result<Self, Fault> {
        if nlri.is_empty() {
            return Err(Fault::Syntax("a flow without conditions; expected one or more".into()));
        }
        if nlri.len() > MAX_LENGTH {
            return Err(Fault::Syntax(format!(
                "a flow of {} bytes; expected up to {MAX_LENGTH}",
                nlri.len()
            )));
        }
        let (mut rest, mut before) = (nlri, 0);
        while let Some((&kind, after)) = rest.split_first() {
            if kind <= before {
                let message = format!(
                    "component {kind} after component {before}; expected each once, in ascending order"
                );
                return Err(Fault::Syntax(message));
            }
            if kind > FLOW_LABEL || (kind == FLOW_LABEL && family == Family::V4) {
                return Err(Fault::Unsupported(format!(
                    "a component of type {kind} in an {} flow",
                    family.name()
                )));
            }
            let (_, after) = component(family, kind, after).ok_or_else(|| {
                Fault::Syntax(format!(
                    "component {kind} is malformed or cut off; expected what RFC 8955 says"
                ))
            })?;
            (rest, before) = (after, kind);
        }
        Ok(Self { family, components: nlri.into() })
    }

    /// The NLRI, with its length.
    pub(super) fn encode(&self) -> Vec<u8> {
        // No flow is longer than MAX_LENGTH.
        let length = self.components.len() as u16;
        let mut nlri =
            if length < 240 { vec![length as u8] } else { (0xf000 | length).to_be_bytes().to_vec() };
        nlri.extend(&self.components);
        nlri
    }

    /// Its components and their types, in order.
    pub(super) fn components(&self) -> impl Iterator<Item = (u8, Component<'_>)> {
        let mut rest = &*self.components;
        std::iter::from_fn(move || {
            let (&kind, after) = rest.split_first()?;
            let (found, after) = component(self.family, kind, after)?;
            rest = after;
            Some((kind, found))
        })
    }

    /// Whether [`Flow::order`] says where it stands among others: patterns of addresses that begin at an offset are not put
    /// in order.
    pub(super) fn has_order(&self) -> bool {
        self.components().all(|(_, component)| match component {
            Component::Pattern(pattern) => pattern.offset == 0,
            Component::Terms(_) => true,
        })
    }

    /// Less is the flow that is looked at first. Flows of two families do not meet; IPv4 goes first.
    pub(super) fn order(&self, other: &Self) -> Ordering {
        let (mut mine, mut theirs) = (self.components(), other.components());
        let by_components = || loop {
            let order = match (mine.next(), theirs.next()) {
                (None, None) => return Ordering::Equal,
                // More components go first.
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some((mine, _)), Some((theirs, _))) if mine != theirs => mine.cmp(&theirs),
                (Some((_, Component::Pattern(mine))), Some((_, Component::Pattern(theirs)))) => {
                    mine.order(theirs)
                }
                // Where one string began another the longer would go first, but only the last operator is marked as such.
                (Some((_, Component::Terms(mine))), Some((_, Component::Terms(theirs)))) => {
                    mine.0.cmp(theirs.0)
                }
                // The same type is of the same form.
                _ => Ordering::Equal,
            };
            if order.is_ne() {
                return order;
            }
        };
        self.family.cmp(&other.family).then_with(by_components)
    }
}

/// The component of this type that begins `bytes`, and what follows it; `None` where there is none.
fn component(family: Family, kind: u8, bytes: &[u8]) -> Option<(Component<'_>, &[u8])> {
    match kind {
        DESTINATION | SOURCE => {
            let (pattern, rest) = Pattern::split(family, bytes)?;
            Some((Component::Pattern(pattern), rest))
        }
        _ => {
            let (terms, rest) = Terms::split(bytes)?;
            let width = match kind {
                TCP_FLAGS => 2,
                DSCP | FRAGMENT => 1,
                _ => 8,
            };
            let fits = terms.iter().all(|term| term.length <= width);
            fits.then_some((Component::Terms(terms), rest))
        }
    }
}
