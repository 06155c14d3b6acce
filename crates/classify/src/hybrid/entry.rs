//! Rules as the tables compare them: two prefixes, two port ranges, and a word for the rest.

use crate::rule::PortRange;

/// An address prefix of either family: its bits stand at the top.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Prefix {
    /// Bits past the length are 0.
    pub(super) address: u128,
    pub(super) len: u8,
}

impl Prefix {
    /// The bits that a prefix of `len` bits fixes.
    pub(super) fn mask(len: u8) -> u128 {
        u128::MAX.checked_shl(128 - u32::from(len)).unwrap_or(0)
    }

    /// Whether every address of `other` is in this one.
    pub(super) fn covers(self, other: Self) -> bool {
        self.len <= other.len && other.address & Self::mask(self.len) == self.address
    }
}

/// What a rule asks of the state word (see [`super::state`]): the bits of `mask` must be as in `value`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct StateMatch {
    pub(super) value: u16,
    pub(super) mask: u16,
}

impl StateMatch {
    /// Whether every state that meets `other` meets this one.
    fn covers(self, other: Self) -> bool {
        self.mask & !other.mask == 0 && other.value & self.mask == self.value
    }

    /// Whether a state meets it.
    pub(super) fn matches(self, state: u16) -> bool {
        state & self.mask == self.value
    }
}

/// One rule of one family.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) source: Prefix,
    pub(super) destination: Prefix,
    pub(super) source_ports: PortRange,
    pub(super) destination_ports: PortRange,
    pub(super) state: StateMatch,
    /// Position in the rule set.
    pub(super) position: u32,
}

/// The fields of an entry.
pub(super) const FIELDS: usize = 5;

impl Entry {
    /// Asks nothing of any field.
    pub(super) const ANY: Self = Self {
        source: Prefix { address: 0, len: 0 },
        destination: Prefix { address: 0, len: 0 },
        source_ports: PortRange::ANY,
        destination_ports: PortRange::ANY,
        state: StateMatch { value: 0, mask: 0 },
        position: 0,
    };

    /// Whether, in field number `field`, everything that meets `other` meets this one.
    pub(super) fn covers_in(&self, field: usize, other: &Self) -> bool {
        let range = |mine: PortRange, other: PortRange| mine.low <= other.low && other.high <= mine.high;
        match field {
            0 => self.source.covers(other.source),
            1 => self.destination.covers(other.destination),
            2 => range(self.source_ports, other.source_ports),
            3 => range(self.destination_ports, other.destination_ports),
            _ => self.state.covers(other.state),
        }
    }

    /// Whether every packet that meets `other` meets this one.
    pub(super) fn covers(&self, other: &Self) -> bool {
        (0..FIELDS).all(|field| self.covers_in(field, other))
    }
}
