//! Which rule covers which, in some of the fields: asked a million times while class tables are built.

use super::build::Group;
use crate::hybrid::entry::{Entry, FIELDS, Prefix, StateMatch};

/// Lower and upper ends of ranges of four fields.
const ENDS: usize = 2 * (FIELDS - 1);

/// What a rule covers in each field, to be compared with what others do. Prefixes are ranges too: of their places in the order in
/// which each comes before those that it holds.
pub(super) struct Shape {
    /// Lower ends, and the upper ones inverted: those of a wider range are less.
    ends: [u16; ENDS],
    state: StateMatch,
}

/// All fields but some.
pub(super) struct Beside {
    /// All ones where the field counts.
    ends: [u16; ENDS],
    state: u16,
}

impl Beside {
    /// All but these.
    pub(super) fn new(fields: Group) -> Self {
        let keep = |field: usize| if fields >> field & 1 == 1 { 0 } else { u16::MAX };
        Self { ends: std::array::from_fn(|end| keep(end % (FIELDS - 1))), state: keep(FIELDS - 1) }
    }
}

impl Shape {
    /// Those of rules.
    pub(super) fn all(rules: &[&Entry]) -> Vec<Self> {
        let places = |prefix: fn(&Entry) -> Prefix| {
            let mut all: Vec<Prefix> = rules.iter().map(|rule| prefix(rule)).collect();
            all.sort_unstable();
            all.dedup();
            let mut last: Vec<u16> = (0..all.len() as u16).collect();
            // A prefix before those in it: from the back, the last one in each is known.
            for at in (0..all.len()).rev() {
                let mut next = at + 1;
                while next < all.len() && all[at].covers(all[next]) {
                    last[at] = last[next];
                    next = usize::from(last[next]) + 1;
                }
            }
            move |rule: &Entry| {
                let place = all.partition_point(|other| *other < prefix(rule));
                (place as u16, last[place])
            }
        };
        let (source, destination) = (places(|rule| rule.source), places(|rule| rule.destination));
        let shape = |rule: &&Entry| {
            let [(a, b), (c, d)] = [source(rule), destination(rule)];
            let (e, f) = (rule.source_ports, rule.destination_ports);
            Self { ends: [a, c, e.low, f.low, !b, !d, !e.high, !f.high], state: rule.state }
        };
        rules.iter().map(shape).collect()
    }

    /// Whether everything that meets `other` meets this one, in the fields that count.
    #[inline]
    pub(super) fn covers(&self, other: &Self, beside: &Beside) -> bool {
        let mut beyond =
            beside.state & self.state.mask & (!other.state.mask | (self.state.value ^ other.state.value));
        for end in 0..ENDS {
            let keep = beside.ends[end];
            beyond |= (self.ends[end] & keep).saturating_sub(other.ends[end] & keep);
        }
        beyond == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rule::PortRange;

    #[test]
    fn shapes_cover_each_other_as_rules_do() {
        let mut state = 1u32;
        let mut below = |end: u32| {
            state = state.wrapping_mul(0x9e37_79b1).rotate_left(13) ^ 0x85eb_ca6b;
            state % end
        };
        let mut entry = || {
            // Few values, so that many rules cover others: also the longest and the shortest prefixes, the first and the last port.
            let mut prefix = || {
                let len = [0, 1, 2, 3, 126, 127, 128][below(7) as usize];
                let address = u128::from(below(8)) << 125 | u128::from(below(4));
                Prefix { address: address & Prefix::mask(len), len }
            };
            let (source, destination) = (prefix(), prefix());
            let mut ports = || {
                let ends = [0u16, 1, 2, 0xffff];
                let (a, b) = (ends[below(4) as usize], ends[below(4) as usize]);
                PortRange { low: a.min(b), high: a.max(b) }
            };
            let (source_ports, destination_ports) = (ports(), ports());
            let mask = below(4) as u16 | (below(2) as u16) << 15;
            let value = below(1 << 16) as u16 & mask;
            let state = StateMatch { value, mask };
            Entry { source, destination, source_ports, destination_ports, state, position: 0 }
        };
        let entries: Vec<Entry> = (0..300).map(|_| entry()).collect();
        let entries: Vec<&Entry> = entries.iter().collect();
        let shapes = Shape::all(&entries);
        for fields in 0..1 << FIELDS {
            let beside = Beside::new(fields);
            let mut covered = 0;
            for (a, x) in entries.iter().zip(&shapes) {
                for (b, y) in entries.iter().zip(&shapes) {
                    let covers = (0..FIELDS).all(|field| fields >> field & 1 == 1 || a.covers_in(field, b));
                    assert_eq!(x.covers(y, &beside), covers, "{fields:05b}: {a:?} and {b:?}");
                    covered += usize::from(covers);
                }
            }
            // Every rule covers itself; of the 90,000 pairs there are some of either kind, unless no field counts.
            let some = if fields + 1 == 1 << FIELDS { 90_000..90_001 } else { 310..89_000 };
            assert!(some.contains(&covered), "{fields:05b}: {covered}");
        }
    }
}
