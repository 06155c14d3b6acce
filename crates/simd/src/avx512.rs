//! AVX-512: vectors of sixteen words.

use std::arch::x86_64::*;

use super::avx2::Avx2;
use super::{ByteClasses, HashTable, Kernel, Line, LongLine, Simd};

/// Proof that the processor has AVX-512 F, BW, CD, DQ and VL, and what [`Avx2`] proves; and VBMI and VBMI2, if it says so.
#[derive(Clone, Copy)]
pub(super) struct Avx512<const HAS_VBMI: bool>(());

/// Runs a kernel with it.
#[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx2,bmi1,bmi2,lzcnt,popcnt")]
pub(super) fn run<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Avx512::<false>(()))
}

/// Runs a kernel with it, and with what moves bytes.
#[target_feature(
    enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx512vbmi,avx512vbmi2,avx2,bmi1,bmi2,lzcnt,popcnt"
)]
pub(super) fn run_on_bytes<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Avx512::<true>(()))
}

const LANES: usize = 16;

/// A table of classes; where the processor has VBMI, the exact one in two vectors.
#[derive(Clone, Copy)]
pub(super) struct ClassTable<'a> {
    table: &'a ByteClasses,
    exact: (__m512i, __m512i),
}

/// What is behind so many bytes. Where that is nothing it is still a place of `from`: a load of nothing is slow where there is no memory.
#[inline(always)]
fn behind(from: &[u8], count: usize) -> &[u8] {
    &from[count.min(from.len())..]
}

impl<const HAS_VBMI: bool> Avx512<HAS_VBMI> {
    /// `words`, and its bytes from the second, the third, the fourth and the fifth on; `behind` begins with those that follow.
    ///
    /// # Safety
    ///
    /// The processor has VBMI2.
    #[inline(always)]
    unsafe fn shifted(self, words: __m512i, behind: __m512i) -> [__m512i; 5] {
        // SAFETY: the caller's.
        unsafe {
            let next = _mm512_alignr_epi32::<1>(behind, words);
            [
                words,
                _mm512_shrdi_epi32::<8>(words, next),
                _mm512_shrdi_epi32::<16>(words, next),
                _mm512_shrdi_epi32::<24>(words, next),
                next,
            ]
        }
    }
}

// SAFETY of every block below: the token proves that the processor has AVX-512; pointers are of slices whose length was
// checked by indexing.
impl<const HAS_VBMI: bool> Simd for Avx512<HAS_VBMI> {
    const LANES: usize = LANES;
    type V = __m512i;

    #[inline(always)]
    fn splat(self, word: u32) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_set1_epi32(word as i32) }
    }

    #[inline(always)]
    fn load(self, from: &[u32]) -> __m512i {
        let from = &from[..LANES];
        // SAFETY: see above; sixteen words are read.
        unsafe { _mm512_loadu_si512(from.as_ptr().cast()) }
    }

    #[inline(always)]
    fn store(self, vector: __m512i, to: &mut [u32]) {
        let to = &mut to[..LANES];
        // SAFETY: see above; sixteen words are written.
        unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), vector) }
    }

    #[inline(always)]
    fn load_bytes(self, from: &[u8]) -> __m512i {
        let from = &from[..LANES * 4];
        // SAFETY: see above; 64 bytes are read.
        unsafe { _mm512_loadu_si512(from.as_ptr().cast()) }
    }

    const LOADS_RESTS: bool = true;

    #[inline(always)]
    fn load_rest(self, from: &[u8]) -> __m512i {
        // SAFETY: see above; bytes behind the slice are masked out, and those are not read.
        unsafe {
            _mm512_maskz_loadu_epi8(_bzhi_u64(u64::MAX, from.len().min(64) as u32), from.as_ptr().cast())
        }
    }

    const SHIFTS_BYTES: bool = HAS_VBMI;

    #[inline(always)]
    fn load_shifted(self, from: &[u8]) -> [__m512i; 5] {
        let from = &from[..LANES * 4 + 4];
        let words = self.load_bytes(from);
        if HAS_VBMI {
            let behind = from.last_chunk().map_or(0, |behind| u32::from_le_bytes(*behind));
            // SAFETY: the token proves that the processor has VBMI2.
            return unsafe { self.shifted(words, self.splat(behind)) };
        }
        [
            words,
            self.load_bytes(&from[1..]),
            self.load_bytes(&from[2..]),
            self.load_bytes(&from[3..]),
            self.load_bytes(&from[4..]),
        ]
    }

    #[inline(always)]
    fn load_shifted_rest(self, from: &[u8]) -> [__m512i; 5] {
        let words = self.load_rest(from);
        if HAS_VBMI {
            let behind =
                if from.len() > LANES * 4 { self.load_rest(&from[LANES * 4..]) } else { self.splat(0) };
            // SAFETY: the token proves that the processor has VBMI2.
            return unsafe { self.shifted(words, behind) };
        }
        [
            words,
            self.load_rest(behind(from, 1)),
            self.load_rest(behind(from, 2)),
            self.load_rest(behind(from, 3)),
            self.load_rest(behind(from, 4)),
        ]
    }

    #[inline(always)]
    fn and(self, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_and_si512(a, b) }
    }

    #[inline(always)]
    fn or(self, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_or_si512(a, b) }
    }

    #[inline(always)]
    fn xor(self, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_xor_si512(a, b) }
    }

    #[inline(always)]
    fn add(self, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_add_epi32(a, b) }
    }

    #[inline(always)]
    fn sub(self, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_sub_epi32(a, b) }
    }

    #[inline(always)]
    fn sub16(self, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_sub_epi16(a, b) }
    }

    #[inline(always)]
    fn saturating_sub16(self, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_subs_epu16(a, b) }
    }

    #[inline(always)]
    fn mul(self, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_mullo_epi32(a, b) }
    }

    #[inline(always)]
    fn min(self, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_min_epu32(a, b) }
    }

    #[inline(always)]
    fn max(self, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_max_epu32(a, b) }
    }

    #[inline(always)]
    fn shl(self, a: __m512i, count: u32) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_sll_epi32(a, _mm_cvtsi32_si128(count as i32)) }
    }

    #[inline(always)]
    fn shr(self, a: __m512i, count: u32) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_srl_epi32(a, _mm_cvtsi32_si128(count as i32)) }
    }

    #[inline(always)]
    fn leading_zeros(self, a: __m512i) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_lzcnt_epi32(a) }
    }

    #[inline(always)]
    fn eq(self, a: __m512i, b: __m512i) -> u32 {
        // SAFETY: see above.
        unsafe { _mm512_cmpeq_epi32_mask(a, b).into() }
    }

    #[inline(always)]
    fn high_bits(self, a: __m512i) -> u32 {
        // SAFETY: see above.
        unsafe { _mm512_movepi32_mask(a).into() }
    }

    #[inline(always)]
    fn gather(self, table: &[u32], index: __m512i) -> __m512i {
        assert!(!table.is_empty());
        let last = self.splat((table.len() - 1).min(i32::MAX as usize) as u32);
        let index = self.min(index, last);
        // SAFETY: see above; every index is that of a word of the table, and not negative.
        unsafe { _mm512_i32gather_epi32::<4>(index, table.as_ptr().cast()) }
    }

    #[inline(always)]
    fn gather_top(self, HashTable { words, shift }: HashTable<'_>, hash: __m512i) -> __m512i {
        // Two gathers of AVX2: that of AVX-512 has its mask in a register which the compiler fills with ones by an instruction that waits, on
        // Zen 4, for what the register of another mask is: often for the gather before.
        // SAFETY: see above; every index has so many bits that it is that of a word of the table, and not negative.
        unsafe {
            let index = _mm512_srlv_epi32(hash, _mm512_set1_epi32(shift as i32));
            let table = words.as_ptr().cast();
            let low = _mm256_i32gather_epi32::<4>(table, _mm512_castsi512_si256(index));
            let high = _mm256_i32gather_epi32::<4>(table, _mm512_extracti64x4_epi64::<1>(index));
            _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high)
        }
    }

    #[inline(always)]
    fn nibbles_clear(self, words: __m512i, low: __m512i, high: __m512i) -> u32 {
        // SAFETY: see above.
        unsafe {
            // The low half of the one, the high half of the other: bits of `low` where the mask has ones.
            let both = _mm512_ternarylogic_epi32::<0xca>(_mm512_set1_epi32(0xffff), low, high);
            let numbers = _mm512_and_si512(both, _mm512_set1_epi32(0x000f_000f));
            let tested = _mm512_srlv_epi16(words, numbers);
            _mm512_testn_epi32_mask(tested, _mm512_set1_epi32(0x0001_0001)).into()
        }
    }

    type Classes<'a> = ClassTable<'a>;

    const CLASSES_ARE_EXACT: bool = HAS_VBMI;

    #[inline(always)]
    fn load_classes(self, table: &ByteClasses) -> ClassTable<'_> {
        let (first, second) = table.exact.split_at(64);
        ClassTable { table, exact: (self.load_bytes(first), self.load_bytes(second)) }
    }

    #[inline(always)]
    fn classes(
        self,
        ClassTable { table: ByteClasses { low, high, .. }, exact }: ClassTable<'_>,
        bytes: __m512i,
    ) -> __m512i {
        if HAS_VBMI {
            // SAFETY: the token proves that the processor has VBMI.
            return unsafe { _mm512_permutex2var_epi8(exact.0, bytes, exact.1) };
        }
        // SAFETY: see above; the tables are 32 and 8 bytes.
        unsafe {
            let rows = _mm512_broadcast_i32x4(_mm_loadl_epi64(high.as_ptr().cast()));
            let first = _mm512_broadcast_i32x4(_mm_loadu_si128(low.as_ptr().cast()));
            let second = _mm512_broadcast_i32x4(_mm_loadu_si128(low.as_ptr().add(16).cast()));
            let nibbles = _mm512_and_si512(bytes, _mm512_set1_epi8(15));
            let half = _mm512_test_epi8_mask(bytes, _mm512_set1_epi8(16));
            let in_first = _mm512_shuffle_epi8(first, nibbles);
            let of_low = _mm512_mask_shuffle_epi8(in_first, half, second, nibbles);
            let row = _mm512_and_si512(_mm512_srli_epi16::<5>(bytes), _mm512_set1_epi8(7));
            _mm512_and_si512(of_low, _mm512_shuffle_epi8(rows, row))
        }
    }

    #[inline(always)]
    fn nonzero_bytes(self, a: __m512i) -> u64 {
        // SAFETY: see above.
        unsafe { _mm512_test_epi8_mask(a, a) }
    }

    #[inline(always)]
    fn gather16(self, table: &[u16], index: __m512i) -> __m512i {
        assert!(table.len() >= 2);
        let last = self.splat((table.len() - 2).min(i32::MAX as usize) as u32);
        let index = self.min(index, last);
        // SAFETY: see above; every index is that of a half word of the table with another behind it, and not negative.
        let words = unsafe { _mm512_i32gather_epi32::<2>(index, table.as_ptr().cast()) };
        self.and(words, self.splat(0xffff))
    }

    #[inline(always)]
    fn gather8(self, table: &[u8], index: __m512i) -> __m512i {
        assert!(table.len() >= 4);
        let last = self.splat((table.len() - 4).min(i32::MAX as usize) as u32);
        let index = self.min(index, last);
        // SAFETY: see above; every index is that of a byte of the table with three others behind it, and not negative.
        let words = unsafe { _mm512_i32gather_epi32::<1>(index, table.as_ptr().cast()) };
        self.and(words, self.splat(0xff))
    }

    #[inline(always)]
    fn columns(self, words: &[u32], stride: usize) -> [__m512i; 4] {
        let words = &words[..(LANES - 1) * stride + 4];
        // SAFETY: see above; the last row that is read ends where the slice does.
        unsafe {
            // Rows 4i to 4i + 3 in one vector: transposed by quarters, the lanes stand in the order 0, 4, 8, 12, 1, 5, …. Macros,
            // as closures would not be inlined into what has the instructions.
            macro_rules! pair {
                ($row:expr) => {
                    _mm256_inserti128_si256::<1>(
                        _mm256_castsi128_si256(_mm_loadu_si128(words.as_ptr().add($row * stride).cast())),
                        _mm_loadu_si128(words.as_ptr().add(($row + 1) * stride).cast()),
                    )
                };
            }
            macro_rules! four {
                ($row:expr) => {
                    if stride == 4 {
                        _mm512_loadu_si512(words.as_ptr().add(4 * $row).cast())
                    } else {
                        _mm512_inserti64x4::<1>(_mm512_castsi256_si512(pair!($row)), pair!($row + 2))
                    }
                };
            }
            let (a, b, c, d) = (four!(0), four!(4), four!(8), four!(12));
            let (ab, cd) = (_mm512_unpacklo_epi32(a, b), _mm512_unpacklo_epi32(c, d));
            let (ab_high, cd_high) = (_mm512_unpackhi_epi32(a, b), _mm512_unpackhi_epi32(c, d));
            let order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
            [
                _mm512_unpacklo_epi64(ab, cd),
                _mm512_unpackhi_epi64(ab, cd),
                _mm512_unpacklo_epi64(ab_high, cd_high),
                _mm512_unpackhi_epi64(ab_high, cd_high),
            ]
            .map(|column| _mm512_permutexvar_epi32(order, column))
        }
    }

    #[inline(always)]
    fn compress(self, vector: __m512i, mask: u32, to: &mut [u32]) -> usize {
        // In a register and then stored whole: a compressing store is microcode on some processors (Zen 4).
        // SAFETY: see above.
        self.store(unsafe { _mm512_maskz_compress_epi32(mask as __mmask16, vector) }, to);
        mask.count_ones() as usize
    }

    #[inline(always)]
    fn fold(self, a: u64, b: u64) -> u64 {
        super::fold_by_halves(a, b)
    }

    #[inline(always)]
    fn match_line(self, line: &Line, key: &[u16; 8], state: u16) -> u32 {
        // SAFETY: a processor with AVX-512 has AVX2.
        unsafe { Avx2::new() }.match_line(line, key, state)
    }

    #[inline(always)]
    fn match_long_line(self, line: &LongLine, addresses: &[u64; 4], rest: [u16; 4], state: u16) -> u32 {
        // SAFETY: a processor with AVX-512 has AVX2.
        unsafe { Avx2::new() }.match_long_line(line, addresses, rest, state)
    }

    #[inline(always)]
    fn lower_case(self, text: &[u8], to: &mut [u8; 64], bytes: [u8; 2]) -> [u64; 2] {
        // SAFETY: see above; 64 bytes are written.
        unsafe {
            let text = load_last(text);
            // In upper case are those that lie less than 26 behind the first letter.
            let behind = _mm512_sub_epi8(text, _mm512_set1_epi8(b'A' as i8));
            let is_upper = _mm512_cmplt_epu8_mask(behind, _mm512_set1_epi8(26));
            let lower = _mm512_mask_add_epi8(text, is_upper, text, _mm512_set1_epi8(0x20));
            _mm512_storeu_si512(to.as_mut_ptr().cast(), lower);
            bytes.map(|byte| _mm512_cmpeq_epi8_mask(text, _mm512_set1_epi8(byte as i8)))
        }
    }

    #[inline(always)]
    fn ends_with(self, line: &[u8; 64], text: &[u8]) -> bool {
        let end = &line[64 - text.len()..];
        // What is behind a text may be in a cache line that is far, so no more is loaded than is needed for most.
        // SAFETY: see above; nothing is read but the bytes in the mask, which both have.
        unsafe {
            if text.len() <= 32 {
                let mask = (first(text.len())) as u32;
                let end = _mm256_maskz_loadu_epi8(mask, end.as_ptr().cast());
                _mm256_cmpneq_epi8_mask(end, _mm256_maskz_loadu_epi8(mask, text.as_ptr().cast())) == 0
            } else {
                let mask = first(text.len());
                let end = _mm512_maskz_loadu_epi8(mask, end.as_ptr().cast());
                _mm512_cmpneq_epi8_mask(end, _mm512_maskz_loadu_epi8(mask, text.as_ptr().cast())) == 0
            }
        }
    }

    #[inline(always)]
    fn have_bits(self, line: &[u64; 8], numbers: &[u64; 8]) -> u32 {
        // SAFETY: see above; eight words are read, twice.
        unsafe {
            let numbers = _mm512_loadu_si512(numbers.as_ptr().cast());
            let chosen =
                |bits| _mm512_sllv_epi64(_mm512_set1_epi64(1), _mm512_and_si512(bits, _mm512_set1_epi64(63)));
            let bits = _mm512_or_si512(chosen(numbers), chosen(_mm512_srli_epi64::<6>(numbers)));
            // Higher bits of a place are not looked at.
            let words = _mm512_permutexvar_epi64(
                _mm512_srli_epi64::<12>(numbers),
                _mm512_loadu_si512(line.as_ptr().cast()),
            );
            _mm512_cmpeq_epi64_mask(_mm512_and_si512(words, bits), bits).into()
        }
    }
}

/// The first bytes of a line, a bit each.
#[inline(always)]
fn first(bytes: usize) -> u64 {
    u64::MAX.checked_shr(64 - bytes as u32).unwrap_or(0)
}

/// The last bytes of a line, a bit each.
#[inline(always)]
fn last(bytes: usize) -> u64 {
    assert!(bytes <= 64, "a text of more than 64 bytes");
    u64::MAX.checked_shl(64 - bytes as u32).unwrap_or(0)
}

/// A line that ends with a text; what is before it is 0.
///
/// # Safety
///
/// The processor has AVX-512.
#[inline(always)]
unsafe fn load_last(text: &[u8]) -> __m512i {
    let begin = text.as_ptr().wrapping_add(text.len()).wrapping_sub(64);
    // SAFETY: see above; nothing is read but the bytes in the mask, which are those of the text.
    unsafe { _mm512_maskz_loadu_epi8(last(text.len()), begin.cast()) }
}
