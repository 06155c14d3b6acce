//! Lists of operators and values (RFC 8955 section 4.2.1): what they say of a number, and of a set of bits.

use super::super::set::{Integer, Set};

/// The last of a list.
pub(super) const END: u8 = 0x80;
/// Holds only together with the operator before it.
pub(super) const AND: u8 = 0x40;
/// The value is lower, greater, equal; several may be said together.
pub(super) const LOWER: u8 = 0x04;
pub(super) const GREATER: u8 = 0x02;
pub(super) const EQUAL: u8 = 0x01;
/// The opposite of what a bitmask says.
pub(super) const NOT: u8 = 0x02;
/// All bits of the bitmask are set; without it, one of them is.
pub(super) const MATCH: u8 = 0x01;

/// An operator and its value.
#[derive(Clone, Copy, Debug)]
pub(super) struct Term {
    /// The operator's byte.
    pub(super) operator: u8,
    /// The value.
    pub(super) value: u64,
    /// The value's length in bytes: 1, 2, 4 or 8.
    pub(super) length: usize,
}

impl Term {
    /// The first of `bytes`, and what follows it; `None` where they end too early.
    pub(super) fn split(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (&operator, rest) = bytes.split_first()?;
        let length = 1 << (operator >> 4 & 3);
        let (value, rest) = rest.split_at_checked(length)?;
        let value = value.iter().fold(0, |value, &byte| value << 8 | u64::from(byte));
        Some((Self { operator, value, length }, rest))
    }

    /// Appends it, its value in one byte or two.
    pub(super) fn write(operator: u8, value: u16, bytes: &mut Vec<u8>) {
        match u8::try_from(value) {
            Ok(value) => bytes.extend([operator, value]),
            Err(_) => {
                bytes.push(operator | 0x10);
                bytes.extend(value.to_be_bytes());
            }
        }
    }

    fn is_last(self) -> bool {
        self.operator & END != 0
    }

    /// The numbers that it holds for.
    fn numbers<T: Integer + TryFrom<u64>>(self) -> Set<T> {
        let says = |bit| self.operator & bit != 0;
        let Ok(value) = T::try_from(self.value) else {
            // Beyond every number.
            return if says(LOWER) { Set::ALL } else { Set::EMPTY };
        };
        let lower = value.previous().filter(|_| says(LOWER)).map(|high| (T::MIN, high));
        let equal = says(EQUAL).then_some((value, value));
        let greater = value.next().filter(|_| says(GREATER)).map(|low| (low, T::MAX));
        Set::of([lower, equal, greater].into_iter().flatten())
    }

    /// Whether it holds for these bits; of its value only those of `mask` are looked at.
    fn holds(self, bits: u64, mask: u64) -> bool {
        let value = self.value & mask;
        let common = bits & value;
        let holds = if self.operator & MATCH != 0 { common == value } else { common != 0 };
        holds != (self.operator & NOT != 0)
    }
}

/// A list of terms, of which those with [`AND`] belong to the one before them.
#[derive(Clone, Copy)]
pub(super) struct Terms<'a>(pub(super) &'a [u8]);

impl<'a> Terms<'a> {
    /// The list that begins `bytes`, and what follows it; `None` where they end too early.
    pub(super) fn split(bytes: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let mut rest = bytes;
        loop {
            let (term, after) = Term::split(rest)?;
            rest = after;
            if term.is_last() {
                return Some((Self(&bytes[..bytes.len() - rest.len()]), rest));
            }
        }
    }

    /// The terms.
    pub(super) fn iter(self) -> impl Iterator<Item = Term> + 'a {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            let (term, after) = Term::split(rest)?;
            rest = after;
            Some(term)
        })
    }

    /// The numbers that the list holds for.
    pub(super) fn numbers<T: Integer + TryFrom<u64>>(self) -> Set<T> {
        let mut ranges = Vec::new();
        let mut group: Option<Set<T>> = None;
        for term in self.iter() {
            let numbers = term.numbers();
            group = Some(match group {
                Some(group) if term.operator & AND != 0 => group.intersection(&numbers),
                // What stands before is complete. The first operator's AND means nothing.
                other => {
                    ranges.extend(other.iter().flat_map(Set::ranges));
                    numbers
                }
            });
        }
        ranges.extend(group.iter().flat_map(Set::ranges));
        Set::of(ranges)
    }

    /// Whether the list holds for these bits; of its values only the bits of `mask` are looked at.
    pub(super) fn holds(self, bits: u64, mask: u64) -> bool {
        let (mut any, mut group) = (false, false);
        for (index, term) in self.iter().enumerate() {
            if index == 0 || term.operator & AND == 0 {
                any |= group;
                group = term.holds(bits, mask);
            } else {
                group &= term.holds(bits, mask);
            }
        }
        any | group
    }
}
