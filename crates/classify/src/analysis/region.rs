//! Sets of packets with four ranges and a set of kinds: what a rule matches, and what is left of it.

use super::span::{AXES, Span};

/// Every packet in the ranges whose class is one of `kinds`, on one sheet; never empty.
#[derive(Clone, Copy, Debug)]
pub(super) struct Region {
    pub(super) span: Span,
    pub(super) kinds: u128,
}

impl Region {
    #[inline]
    pub(super) fn overlaps(&self, other: &Self) -> bool {
        self.span.overlaps(&other.span) & (self.kinds & other.kinds != 0)
    }

    #[inline]
    pub(super) fn contains(&self, inner: &Self) -> bool {
        self.span.contains(&inner.span) & (inner.kinds & !self.kinds == 0)
    }

    /// What both have; they must overlap.
    #[inline]
    pub(super) fn intersection(&self, other: &Self) -> Self {
        Self { span: self.span.intersection(&other.span), kinds: self.kinds & other.kinds }
    }

    /// Its size in steps and classes, nearly.
    #[inline]
    pub(super) fn volume(&self) -> f64 {
        let width = |axis| f64::from(self.span.high[axis] - self.span.low[axis]) + 1.0;
        (0..AXES).map(width).product::<f64>() * f64::from(self.kinds.count_ones())
    }

    /// Cuts `hole`, which overlaps the region, out of it: what is left, in at most nine pieces that do not overlap.
    pub(super) fn without(&self, hole: &Self, mut piece: impl FnMut(Self)) {
        let mut rest = *self;
        if rest.kinds & !hole.kinds != 0 {
            piece(Self { kinds: rest.kinds & !hole.kinds, ..rest });
            rest.kinds &= hole.kinds;
        }
        for axis in 0..AXES {
            let (low, high) = (hole.span.low[axis], hole.span.high[axis]);
            if rest.span.low[axis] < low {
                let mut below = rest;
                below.span.high[axis] = low - 1;
                piece(below);
                rest.span.low[axis] = low;
            }
            if rest.span.high[axis] > high {
                let mut above = rest;
                above.span.low[axis] = high + 1;
                piece(above);
                rest.span.high[axis] = high;
            }
        }
    }
}
