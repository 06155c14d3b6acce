//! AVX2 and AVX-512.

use std::arch::x86_64::*;
use std::mem::transmute;

use super::vector::{LANES, Vector};

/// Two vectors of 256 bits.
#[derive(Clone, Copy)]
pub(super) struct Avx2([__m256i; 2]);

/// One vector of 512 bits.
#[derive(Clone, Copy)]
pub(super) struct Avx512(__m512i);

macro_rules! avx2 {
    ($($operation:ident = $instruction:ident;)*) => {
        $(
            #[inline(always)]
            fn $operation(self, other: Self) -> Self {
                // SAFETY: kernels alone meet this type, in the copy for AVX2, which runs where there is AVX2.
                Self(unsafe { [$instruction(self.0[0], other.0[0]), $instruction(self.0[1], other.0[1])] })
            }
        )*
    };
}

impl Vector for Avx2 {
    #[inline(always)]
    fn load(lanes: &[u32; LANES]) -> Self {
        // SAFETY: the sizes are equal, and either type may hold any bits.
        Self(unsafe { transmute::<[u32; LANES], [__m256i; 2]>(*lanes) })
    }

    #[inline(always)]
    fn splat(lane: u32) -> Self {
        // SAFETY: as in `avx2!`.
        Self([unsafe { _mm256_set1_epi32(lane.cast_signed()) }; 2])
    }

    avx2! {
        and = _mm256_and_si256;
        or = _mm256_or_si256;
        xor = _mm256_xor_si256;
        wrapping_sub16 = _mm256_sub_epi16;
        saturating_sub16 = _mm256_subs_epu16;
    }

    #[inline(always)]
    fn zeros(self) -> u32 {
        let half = |lanes| {
            // SAFETY: as in `avx2!`.
            let signs = unsafe {
                let zero = _mm256_cmpeq_epi32(lanes, _mm256_setzero_si256());
                _mm256_movemask_ps(_mm256_castsi256_ps(zero))
            };
            signs.cast_unsigned()
        };
        half(self.0[0]) | half(self.0[1]) << 8
    }
}

macro_rules! avx512 {
    ($($operation:ident = $instruction:ident;)*) => {
        $(
            #[inline(always)]
            fn $operation(self, other: Self) -> Self {
                // SAFETY: kernels alone meet this type, in the copy for AVX-512, which runs where there is AVX-512.
                Self(unsafe { $instruction(self.0, other.0) })
            }
        )*
    };
}

impl Vector for Avx512 {
    #[inline(always)]
    fn load(lanes: &[u32; LANES]) -> Self {
        // SAFETY: the sizes are equal, and either type may hold any bits.
        Self(unsafe { transmute::<[u32; LANES], __m512i>(*lanes) })
    }

    #[inline(always)]
    fn splat(lane: u32) -> Self {
        // SAFETY: as in `avx512!`.
        Self(unsafe { _mm512_set1_epi32(lane.cast_signed()) })
    }

    avx512! {
        and = _mm512_and_si512;
        or = _mm512_or_si512;
        xor = _mm512_xor_si512;
        wrapping_sub16 = _mm512_sub_epi16;
        saturating_sub16 = _mm512_subs_epu16;
    }

    #[inline(always)]
    fn zeros(self) -> u32 {
        // SAFETY: as in `avx512!`.
        u32::from(unsafe { _mm512_testn_epi32_mask(self.0, self.0) })
    }
}
