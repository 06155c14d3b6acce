//! Rules as ranges on four axes.
//!
//! The axes are source, destination, source port or ICMP type, destination port or ICMP code. Each is cut into *steps* where
//! the range of some rule begins or ends; a range is then a first and a last step, a number of 32 bits whatever the axis.

/// The number of axes.
pub(super) const AXES: usize = 4;

/// A range on each axis, both ends included, in values.
pub(super) type Values = [(u128, u128); AXES];

/// A range on each axis, both ends included, in steps.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub(super) low: [u32; AXES],
    pub(super) high: [u32; AXES],
}

impl Span {
    #[inline]
    pub(super) fn overlaps(&self, other: &Self) -> bool {
        // No short cuts: which axis tells two rules apart cannot be foretold, and a wrong guess costs more than comparing all.
        (0..AXES).fold(true, |all, axis| {
            all & (self.low[axis] <= other.high[axis]) & (other.low[axis] <= self.high[axis])
        })
    }

    #[inline]
    pub(super) fn contains(&self, inner: &Self) -> bool {
        (0..AXES).fold(true, |all, axis| {
            all & (self.low[axis] <= inner.low[axis]) & (inner.high[axis] <= self.high[axis])
        })
    }

    /// What both have; they must overlap.
    #[inline]
    pub(super) fn intersection(&self, other: &Self) -> Self {
        let mut both = *self;
        for axis in 0..AXES {
            both.low[axis] = both.low[axis].max(other.low[axis]);
            both.high[axis] = both.high[axis].min(other.high[axis]);
        }
        both
    }
}

/// Puts the values of all rules into steps, axis by axis: O(n log n).
pub(super) fn steps(values: &[Values]) -> Vec<Span> {
    let mut spans = vec![Span { low: [0; AXES], high: [0; AXES] }; values.len()];
    for axis in 0..AXES {
        // Where steps begin. The value after the last of an axis begins none: nothing is looked up behind it.
        let mut starts: Vec<u128> = Vec::with_capacity(2 * values.len());
        for range in values.iter().map(|values| values[axis]) {
            starts.push(range.0);
            starts.extend(range.1.checked_add(1));
        }
        starts.sort_unstable();
        starts.dedup();
        let step = |value| starts.partition_point(|&start| start <= value) as u32 - 1;
        for (span, values) in spans.iter_mut().zip(values) {
            (span.low[axis], span.high[axis]) = (step(values[axis].0), step(values[axis].1));
        }
    }
    spans
}
