//! What the instruction sets have in common, and the form of it that every processor can run.

use std::array;

/// 32-bit lanes of a [`Vector`].
pub const LANES: usize = 16;

/// Sixteen 32-bit numbers that are computed with at a time.
pub trait Vector: Copy {
    /// The numbers in memory.
    fn load(lanes: &[u32; LANES]) -> Self;

    /// The same number in every lane.
    fn splat(lane: u32) -> Self;

    /// Bits that are set in both.
    fn and(self, other: Self) -> Self;

    /// Bits that are set in either.
    fn or(self, other: Self) -> Self;

    /// Bits that differ.
    fn xor(self, other: Self) -> Self;

    /// The difference of each 16-bit half of each lane, modulo 2¹⁶.
    fn wrapping_sub16(self, other: Self) -> Self;

    /// The difference of each 16-bit half of each lane, 0 where it is negative.
    fn saturating_sub16(self, other: Self) -> Self;

    /// A bit for each lane that is 0, the lowest for the first.
    fn zeros(self) -> u32;
}

/// Plain loops, which the compiler makes what it can of.
#[derive(Clone, Copy)]
pub(super) struct Portable([u32; LANES]);

impl Portable {
    #[inline(always)]
    fn each(self, other: Self, f: impl Fn(u32, u32) -> u32) -> Self {
        Self(array::from_fn(|lane| f(self.0[lane], other.0[lane])))
    }

    #[inline(always)]
    fn each16(self, other: Self, f: impl Fn(u16, u16) -> u16) -> Self {
        self.each(other, |a, b| {
            let (low, high) = (f(a as u16, b as u16), f((a >> 16) as u16, (b >> 16) as u16));
            u32::from(low) | u32::from(high) << 16
        })
    }
}

impl Vector for Portable {
    #[inline(always)]
    fn load(lanes: &[u32; LANES]) -> Self {
        Self(*lanes)
    }

    #[inline(always)]
    fn splat(lane: u32) -> Self {
        Self([lane; LANES])
    }

    #[inline(always)]
    fn and(self, other: Self) -> Self {
        self.each(other, |a, b| a & b)
    }

    #[inline(always)]
    fn or(self, other: Self) -> Self {
        self.each(other, |a, b| a | b)
    }

    #[inline(always)]
    fn xor(self, other: Self) -> Self {
        self.each(other, |a, b| a ^ b)
    }

    #[inline(always)]
    fn wrapping_sub16(self, other: Self) -> Self {
        self.each16(other, u16::wrapping_sub)
    }

    #[inline(always)]
    fn saturating_sub16(self, other: Self) -> Self {
        self.each16(other, u16::saturating_sub)
    }

    #[inline(always)]
    fn zeros(self) -> u32 {
        (0..LANES).fold(0, |zeros, lane| zeros | u32::from(self.0[lane] == 0) << lane)
    }
}
