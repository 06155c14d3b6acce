//! Sixteen bytes of text at once.
#![allow(unsafe_code)]

/// What is known of two words, the first of which comes first in the text.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Pair {
    /// The words with ASCII letters in lower case.
    pub(crate) lower: [u64; 2],
    /// A bit for each byte that is a dot, the first one's lowest.
    pub(crate) dots: u16,
    /// Whether there is a backslash.
    pub(crate) has_backslash: bool,
}

impl Pair {
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub(crate) fn of(words: [u64; 2]) -> Self {
        // SAFETY: all processors of the architecture have SSE2.
        unsafe { Self::of_sse2(words) }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[target_feature(enable = "sse2")]
    fn of_sse2(words: [u64; 2]) -> Self {
        use std::arch::x86_64::{
            _mm_add_epi8, _mm_and_si128, _mm_cmpeq_epi8, _mm_cmplt_epi8, _mm_cvtsi128_si64,
            _mm_movemask_epi8, _mm_or_si128, _mm_set_epi64x, _mm_set1_epi8, _mm_unpackhi_epi64,
        };
        let text = _mm_set_epi64x(words[1] as i64, words[0] as i64);
        let dots = _mm_movemask_epi8(_mm_cmpeq_epi8(text, _mm_set1_epi8(b'.' as i8)));
        let backslashes = _mm_movemask_epi8(_mm_cmpeq_epi8(text, _mm_set1_epi8(b'\\' as i8)));
        // Letters in upper case are moved to the lowest of all signed bytes.
        let moved = _mm_add_epi8(text, _mm_set1_epi8((0x80 - b'A') as i8));
        let is_upper = _mm_cmplt_epi8(moved, _mm_set1_epi8(-128 + 26));
        let lower = _mm_or_si128(text, _mm_and_si128(is_upper, _mm_set1_epi8(0x20)));
        Self {
            lower: [
                _mm_cvtsi128_si64(lower) as u64,
                _mm_cvtsi128_si64(_mm_unpackhi_epi64(lower, lower)) as u64,
            ],
            dots: dots as u16,
            has_backslash: backslashes != 0,
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    #[inline(always)]
    pub(crate) fn of(words: [u64; 2]) -> Self {
        Self::of_portable(words)
    }

    #[cfg(any(test, not(target_arch = "x86_64")))]
    fn of_portable(words: [u64; 2]) -> Self {
        let bytes = words.map(u64::to_le_bytes);
        let all = || bytes.iter().flatten();
        Self {
            lower: bytes.map(|bytes| u64::from_le_bytes(bytes.map(|byte| byte.to_ascii_lowercase()))),
            dots: all().rev().fold(0, |dots, &byte| dots << 1 | u16::from(byte == b'.')),
            has_backslash: all().any(|&byte| byte == b'\\'),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::Pair;

    #[test]
    fn each_byte_is_taken_for_what_it_is() {
        for byte in 0..=255u8 {
            for at in 0..16 {
                let mut bytes = [b'-'; 16];
                bytes[at] = byte;
                let words =
                    [0, 8].map(|at| bytes[at..].first_chunk().map_or(0, |word| u64::from_le_bytes(*word)));
                assert_eq!(Pair::of(words), Pair::of_portable(words), "{bytes:?}");
            }
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_taken_for_what_they_are(words: [u64; 2]) {
            prop_assert_eq!(Pair::of(words), Pair::of_portable(words));
        }
    }
}
