//! Single packets: one that comes to a rule settles much that regions would take long to.

use super::index::Entry;
use super::kinds::Classes;
use super::search::{Exhausted, Random, Work};
use super::span::{AXES, Span};

/// A packet: a step of each axis and a class.
#[derive(Debug)]
pub(super) struct Packet<'a> {
    classes: &'a Classes,
    steps: Span,
    sheet: usize,
    kind: u128,
}

impl<'a> Packet<'a> {
    /// One that `entry`, whole or in part, and `demand` match, as good as any other; `None` where there is none.
    pub(super) fn random(
        entry: &Entry,
        demand: u32,
        classes: &'a Classes,
        random: &mut Random,
    ) -> Option<Self> {
        let mut steps = entry.span;
        for axis in 0..AXES {
            steps.low[axis] += random.below(steps.high[axis] - steps.low[axis] + 1);
            steps.high[axis] = steps.low[axis];
        }
        let kinds = || classes.masks(entry.demand).iter().zip(classes.masks(demand)).map(|(a, b)| a & b);
        let count: u32 = kinds().map(u128::count_ones).sum();
        let mut skip = random.below(count.max(1));
        for (sheet, mut kinds) in kinds().enumerate() {
            if skip >= kinds.count_ones() {
                skip -= kinds.count_ones();
                continue;
            }
            (0..skip).for_each(|_| kinds &= kinds - 1);
            return Some(Self { classes, steps, sheet, kind: kinds & kinds.wrapping_neg() });
        }
        None
    }

    /// Whether the rule of an entry matches it.
    #[inline]
    pub(super) fn meets(&self, entry: &Entry) -> bool {
        entry.span.contains(&self.steps) && self.classes.masks(entry.demand)[self.sheet] & self.kind != 0
    }

    /// Whether some rule of these matches it.
    pub(super) fn meets_any<'b>(
        &self,
        mut entries: impl Iterator<Item = &'b Entry>,
        work: &mut Work,
    ) -> Result<bool, Exhausted> {
        let mut count = 0;
        let found = entries.any(|entry| {
            count += 1;
            self.meets(entry)
        });
        work.spend(count)?;
        Ok(found)
    }
}
