//! AVX2: vectors of eight words.

use std::arch::x86_64::*;

use super::{ByteClasses, HashTable, Kernel, Line, LongLine, Simd};

/// Proof that the processor has AVX2, BMI1, BMI2, LZCNT and POPCNT.
#[derive(Clone, Copy)]
pub(super) struct Avx2(());

/// Runs a kernel with it.
#[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,popcnt")]
pub(super) fn run<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Avx2(()))
}

impl Avx2 {
    /// # Safety
    ///
    /// The processor has AVX2.
    #[inline(always)]
    pub(super) const unsafe fn new() -> Self {
        Self(())
    }
}

const LANES: usize = 8;

/// For each mask, the lanes that it has, side by side.
static COMPRESS: [[u32; LANES]; 1 << LANES] = {
    let mut table = [[0; LANES]; 1 << LANES];
    let mut mask = 0;
    while mask < 1 << LANES {
        let (mut lane, mut len) = (0, 0);
        while lane < LANES {
            if mask >> lane & 1 == 1 {
                table[mask][len] = lane as u32;
                len += 1;
            }
            lane += 1;
        }
        mask += 1;
    }
    table
};

/// The masked word of both rules, by byte.
const MASKED: i32 = 0b0100_0000;
/// What `match_line` compares of a rule, a bit for each byte.
const COMPARED: u32 = 0x3fff;
/// The masked word of `match_long_line`, and the words that it compares.
const MASKED_LONG: i32 = 0b0000_0100;
const COMPARED_LONG: i32 = 0b0000_0111;

// SAFETY of every block below: the token proves that the processor has AVX2; pointers are of slices whose length was
// checked by indexing.
impl Simd for Avx2 {
    const LANES: usize = LANES;
    type V = __m256i;

    #[inline(always)]
    fn splat(self, word: u32) -> __m256i {
        // SAFETY: see above.
        unsafe { _mm256_set1_epi32(word as i32) }
    }

    #[inline(always)]
    fn load(self, from: &[u32]) -> __m256i {
        let from = &from[..LANES];
        // SAFETY: see above; eight words are read.
        unsafe { _mm256_loadu_si256(from.as_ptr().cast()) }
    }

    #[inline(always)]
    fn store(self, vector: __m256i, to: &mut [u32]) {
        let to = &mut to[..LANES];
        // SAFETY: see above; eight words are written.
        unsafe { _mm256_storeu_si256(to.as_mut_ptr().cast(), vector) }
    }

    #[inline(always)]
    fn load_bytes(self, from: &[u8]) -> __m256i {
        let from = &from[..LANES * 4];
        // SAFETY: see above; 32 bytes are read.
        unsafe { _mm256_loadu_si256(from.as_ptr().cast()) }
    }

    const LOADS_RESTS: bool = false;

    #[inline(always)]
    fn load_rest(self, from: &[u8]) -> __m256i {
        let mut bytes = [0; LANES * 4];
        let len = from.len().min(bytes.len());
        bytes[..len].copy_from_slice(&from[..len]);
        self.load_bytes(&bytes)
    }

    const SHIFTS_BYTES: bool = false;

    #[inline(always)]
    fn load_shifted(self, from: &[u8]) -> [__m256i; 5] {
        let from = &from[..LANES * 4 + 4];
        [
            self.load_bytes(from),
            self.load_bytes(&from[1..]),
            self.load_bytes(&from[2..]),
            self.load_bytes(&from[3..]),
            self.load_bytes(&from[4..]),
        ]
    }

    #[inline(always)]
    fn load_shifted_rest(self, from: &[u8]) -> [__m256i; 5] {
        let mut bytes = [0; LANES * 4 + 4];
        let len = from.len().min(bytes.len());
        bytes[..len].copy_from_slice(&from[..len]);
        self.load_shifted(&bytes)
    }

    #[inline(always)]
    fn and(self, a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: see above.
        unsafe { _mm256_and_si256(a, b) }
    }

    #[inline(always)]
    fn or(self, a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: see above.
        unsafe { _mm256_or_si256(a, b) }
    }

    #[inline(always)]
    fn xor(self, a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: see above.
        unsafe { _mm256_xor_si256(a, b) }
    }

    #[inline(always)]
    fn add(self, a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: see above.
        unsafe { _mm256_add_epi32(a, b) }
    }

    #[inline(always)]
    fn sub(self, a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: see above.
        unsafe { _mm256_sub_epi32(a, b) }
    }

    #[inline(always)]
    fn sub16(self, a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: see above.
        unsafe { _mm256_sub_epi16(a, b) }
    }

    #[inline(always)]
    fn saturating_sub16(self, a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: see above.
        unsafe { _mm256_subs_epu16(a, b) }
    }

    #[inline(always)]
    fn mul(self, a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: see above.
        unsafe { _mm256_mullo_epi32(a, b) }
    }

    #[inline(always)]
    fn min(self, a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: see above.
        unsafe { _mm256_min_epu32(a, b) }
    }

    #[inline(always)]
    fn max(self, a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: see above.
        unsafe { _mm256_max_epu32(a, b) }
    }

    #[inline(always)]
    fn shl(self, a: __m256i, count: u32) -> __m256i {
        // SAFETY: see above.
        unsafe { _mm256_sll_epi32(a, _mm_cvtsi32_si128(count as i32)) }
    }

    #[inline(always)]
    fn shr(self, a: __m256i, count: u32) -> __m256i {
        // SAFETY: see above.
        unsafe { _mm256_srl_epi32(a, _mm_cvtsi32_si128(count as i32)) }
    }

    #[inline(always)]
    fn leading_zeros(self, a: __m256i) -> __m256i {
        // The exponent of the word as a number of 32 bits, with what is far below the highest bit taken out, or rounding might make it
        // the next power of two. 127 + 31 less that; from a word that looks negative, whose sign stands above the exponent, 0 is left.
        // SAFETY: see above.
        unsafe {
            let rounded = _mm256_andnot_si256(_mm256_srli_epi32::<8>(a), a);
            let number = _mm256_castps_si256(_mm256_cvtepi32_ps(rounded));
            let zeros = _mm256_subs_epu16(_mm256_set1_epi32(158), _mm256_srli_epi32::<23>(number));
            _mm256_min_epu32(zeros, _mm256_set1_epi32(32))
        }
    }

    #[inline(always)]
    fn eq(self, a: __m256i, b: __m256i) -> u32 {
        // SAFETY: see above.
        unsafe { _mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpeq_epi32(a, b))) as u32 }
    }

    #[inline(always)]
    fn high_bits(self, a: __m256i) -> u32 {
        // SAFETY: see above.
        unsafe { _mm256_movemask_ps(_mm256_castsi256_ps(a)) as u32 }
    }

    #[inline(always)]
    fn gather(self, table: &[u32], index: __m256i) -> __m256i {
        assert!(!table.is_empty());
        let last = self.splat((table.len() - 1).min(i32::MAX as usize) as u32);
        let index = self.min(index, last);
        // SAFETY: see above; every index is that of a word of the table, and not negative.
        unsafe { _mm256_i32gather_epi32::<4>(table.as_ptr().cast(), index) }
    }

    #[inline(always)]
    fn gather_top(self, HashTable { words, shift }: HashTable<'_>, hash: __m256i) -> __m256i {
        // SAFETY: see above; every index has so many bits that it is that of a word of the table, and not negative.
        unsafe {
            let index = _mm256_srlv_epi32(hash, _mm256_set1_epi32(shift as i32));
            _mm256_i32gather_epi32::<4>(words.as_ptr().cast(), index)
        }
    }

    #[inline(always)]
    fn nibbles_clear(self, words: __m256i, low: __m256i, high: __m256i) -> u32 {
        // SAFETY: see above.
        unsafe {
            let nibble = _mm256_set1_epi32(15);
            let low = _mm256_srlv_epi32(words, _mm256_and_si256(low, nibble));
            let high = _mm256_and_si256(_mm256_srli_epi32::<16>(high), nibble);
            let high = _mm256_srlv_epi32(_mm256_srli_epi32::<16>(words), high);
            let set = _mm256_slli_epi32::<31>(_mm256_or_si256(low, high));
            !_mm256_movemask_ps(_mm256_castsi256_ps(set)) as u32 & 0xff
        }
    }

    type Classes<'a> = &'a ByteClasses;

    const CLASSES_ARE_EXACT: bool = false;

    #[inline(always)]
    fn load_classes(self, table: &ByteClasses) -> &ByteClasses {
        table
    }

    #[inline(always)]
    fn classes(self, ByteClasses { low, high, .. }: &ByteClasses, bytes: __m256i) -> __m256i {
        // SAFETY: see above; the tables are 32 and 8 bytes.
        unsafe {
            let rows = _mm256_broadcastsi128_si256(_mm_loadl_epi64(high.as_ptr().cast()));
            let first = _mm256_broadcastsi128_si256(_mm_loadu_si128(low.as_ptr().cast()));
            let second = _mm256_broadcastsi128_si256(_mm_loadu_si128(low.as_ptr().add(16).cast()));
            let nibbles = _mm256_and_si256(bytes, _mm256_set1_epi8(15));
            // Bit 4 says which half of the first table; as the highest bit of the byte it chooses.
            let half = _mm256_slli_epi16::<3>(bytes);
            let in_first = _mm256_shuffle_epi8(first, nibbles);
            let of_low = _mm256_blendv_epi8(in_first, _mm256_shuffle_epi8(second, nibbles), half);
            let row = _mm256_and_si256(_mm256_srli_epi16::<5>(bytes), _mm256_set1_epi8(7));
            _mm256_and_si256(of_low, _mm256_shuffle_epi8(rows, row))
        }
    }

    #[inline(always)]
    fn nonzero_bytes(self, a: __m256i) -> u64 {
        // SAFETY: see above.
        unsafe { !_mm256_movemask_epi8(_mm256_cmpeq_epi8(a, _mm256_setzero_si256())) as u32 }.into()
    }

    #[inline(always)]
    fn gather16(self, table: &[u16], index: __m256i) -> __m256i {
        assert!(table.len() >= 2);
        let last = self.splat((table.len() - 2).min(i32::MAX as usize) as u32);
        let index = self.min(index, last);
        // SAFETY: see above; every index is that of a half word of the table with another behind it, and not negative.
        let words = unsafe { _mm256_i32gather_epi32::<2>(table.as_ptr().cast(), index) };
        self.and(words, self.splat(0xffff))
    }

    #[inline(always)]
    fn gather8(self, table: &[u8], index: __m256i) -> __m256i {
        assert!(table.len() >= 4);
        let last = self.splat((table.len() - 4).min(i32::MAX as usize) as u32);
        let index = self.min(index, last);
        // SAFETY: see above; every index is that of a byte of the table with three others behind it, and not negative.
        let words = unsafe { _mm256_i32gather_epi32::<1>(table.as_ptr().cast(), index) };
        self.and(words, self.splat(0xff))
    }

    #[inline(always)]
    fn columns(self, words: &[u32], stride: usize) -> [__m256i; 4] {
        let words = &words[..(LANES - 1) * stride + 4];
        // SAFETY: see above; the last row that is read ends where the slice does.
        unsafe {
            // The rows i and i + 4 in the halves of one vector: then each half is a transposition of four by four.
            let pair = |row: usize| {
                let low = _mm_loadu_si128(words.as_ptr().add(row * stride).cast());
                let high = _mm_loadu_si128(words.as_ptr().add((row + 4) * stride).cast());
                _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(low), high)
            };
            let (a, b, c, d) = (pair(0), pair(1), pair(2), pair(3));
            let (ab, cd) = (_mm256_unpacklo_epi32(a, b), _mm256_unpacklo_epi32(c, d));
            let (ab_high, cd_high) = (_mm256_unpackhi_epi32(a, b), _mm256_unpackhi_epi32(c, d));
            [
                _mm256_unpacklo_epi64(ab, cd),
                _mm256_unpackhi_epi64(ab, cd),
                _mm256_unpacklo_epi64(ab_high, cd_high),
                _mm256_unpackhi_epi64(ab_high, cd_high),
            ]
        }
    }

    #[inline(always)]
    fn compress(self, vector: __m256i, mask: u32, to: &mut [u32]) -> usize {
        let order = self.load(&COMPRESS[(mask & 0xff) as usize]);
        // SAFETY: see above.
        self.store(unsafe { _mm256_permutevar8x32_epi32(vector, order) }, to);
        mask.count_ones() as usize
    }

    #[inline(always)]
    fn fold(self, a: u64, b: u64) -> u64 {
        super::fold_by_halves(a, b)
    }

    #[inline(always)]
    fn match_line(self, line: &Line, key: &[u16; 8], state: u16) -> u32 {
        // SAFETY: see above; a line is two vectors of 32 bytes, a key one of 16.
        let equal = unsafe {
            let key = _mm_insert_epi16::<6>(_mm_loadu_si128(key.as_ptr().cast()), state.into());
            let key = _mm256_broadcastsi128_si256(key);
            let low = _mm256_load_si256(line.low.as_ptr().cast());
            let high = _mm256_load_si256(line.high.as_ptr().cast());
            let outside = _mm256_or_si256(_mm256_subs_epu16(low, key), _mm256_subs_epu16(key, high));
            let differs = _mm256_and_si256(_mm256_xor_si256(low, key), high);
            let wrong = _mm256_blend_epi16::<MASKED>(outside, differs);
            _mm256_movemask_epi8(_mm256_cmpeq_epi16(wrong, _mm256_setzero_si256())) as u32
        };
        u32::from(equal & COMPARED == COMPARED) | u32::from(equal >> 16 & COMPARED == COMPARED) << 1
    }

    #[inline(always)]
    fn match_long_line(self, line: &LongLine, addresses: &[u64; 4], rest: [u16; 4], state: u16) -> u32 {
        // SAFETY: see above; both are a vector of 32 bytes.
        let differs = unsafe {
            let shifts = _mm256_cvtepu8_epi64(_mm_cvtsi32_si128(i32::from_ne_bytes(line.shifts)));
            let value = _mm256_load_si256(line.addresses.as_ptr().cast());
            let differs = _mm256_xor_si256(_mm256_loadu_si256(addresses.as_ptr().cast()), value);
            _mm256_srlv_epi64(differs, shifts)
        };
        // SAFETY: see above.
        let wrong = unsafe {
            let key = _mm_insert_epi16::<2>(_mm_cvtsi64_si128(bytemuck::cast(rest)), state.into());
            let low = _mm_cvtsi64_si128(bytemuck::cast(line.low));
            let high = _mm_cvtsi64_si128(bytemuck::cast(line.high));
            let outside = _mm_or_si128(_mm_subs_epu16(low, key), _mm_subs_epu16(key, high));
            let differs = _mm_and_si128(_mm_xor_si128(low, key), high);
            let wrong = _mm_blend_epi16::<MASKED_LONG>(outside, differs);
            _mm_blend_epi16::<COMPARED_LONG>(_mm_setzero_si128(), wrong)
        };
        // One question instead of two: of two, the compiler makes a branch that nobody can predict.
        // SAFETY: see above.
        unsafe {
            let wrong = _mm256_or_si256(differs, _mm256_zextsi128_si256(wrong));
            _mm256_testz_si256(wrong, wrong) as u32
        }
    }

    #[inline(always)]
    fn lower_case(self, text: &[u8], to: &mut [u8; 64], bytes: [u8; 2]) -> [u64; 2] {
        assert!(text.len() <= to.len(), "a text of more than 64 bytes");
        // Vectors of the line, the last one first.
        let all: [[u64; 4]; 2] = bytemuck::cast(last_words(text));
        let mut masks = [0; 2];
        for (at, words) in all.iter().enumerate() {
            // SAFETY: see above; 32 bytes of the line are written.
            let own = unsafe {
                let text =
                    _mm256_set_epi64x(words[0] as i64, words[1] as i64, words[2] as i64, words[3] as i64);
                // Letters in upper case are moved to the lowest of all signed bytes.
                let moved = _mm256_add_epi8(text, _mm256_set1_epi8((0x80 - b'A') as i8));
                let is_upper = _mm256_cmpgt_epi8(_mm256_set1_epi8(-128 + 26), moved);
                let lower = _mm256_or_si256(text, _mm256_and_si256(is_upper, _mm256_set1_epi8(0x20)));
                _mm256_storeu_si256(to[32 - 32 * at..][..32].as_mut_ptr().cast(), lower);
                bytes.map(|byte| {
                    _mm256_movemask_epi8(_mm256_cmpeq_epi8(text, _mm256_set1_epi8(byte as i8))) as u32
                })
            };
            masks[0] |= u64::from(own[0]) << (32 - 32 * at);
            masks[1] |= u64::from(own[1]) << (32 - 32 * at);
        }
        masks
    }

    #[inline(always)]
    fn ends_with(self, line: &[u8; 64], text: &[u8]) -> bool {
        line[64 - text.len()..] == *text
    }

    #[inline(always)]
    fn have_bits(self, line: &[u64; 8], numbers: &[u64; 8]) -> u32 {
        let of_half = |half: usize| {
            // SAFETY: see above; four numbers are read, and words of the line, of which there are eight.
            unsafe {
                let numbers = _mm256_loadu_si256(numbers[4 * half..][..4].as_ptr().cast());
                let chosen = |bits| {
                    let bits = _mm256_and_si256(bits, _mm256_set1_epi64x(63));
                    _mm256_sllv_epi64(_mm256_set1_epi64x(1), bits)
                };
                let bits = _mm256_or_si256(chosen(numbers), chosen(_mm256_srli_epi64::<6>(numbers)));
                let at = _mm256_and_si256(_mm256_srli_epi64::<12>(numbers), _mm256_set1_epi64x(7));
                let words = _mm256_i64gather_epi64::<8>(line.as_ptr().cast(), at);
                let equal = _mm256_cmpeq_epi64(_mm256_and_si256(words, bits), bits);
                _mm256_movemask_pd(_mm256_castsi256_pd(equal)) as u32
            }
        };
        of_half(0) | of_half(1) << 4
    }
}

/// The last words of a text, from the right; what is before the text is 0.
#[inline(always)]
fn last_words(text: &[u8]) -> [u64; 8] {
    let len = text.len();
    if len < 8 {
        let word = text.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte));
        let mut words = [0; 8];
        words[0] = word.checked_shl(64 - 8 * len as u32).unwrap_or(0);
        return words;
    }
    std::array::from_fn(|at| {
        let end = len.saturating_sub(8 * at);
        let begin = end.saturating_sub(8);
        // SAFETY: eight bytes from there on are in the text: it has eight at least, and `begin` is 0 or eight before `end`.
        let word = unsafe { text.as_ptr().add(begin).cast::<u64>().read_unaligned() };
        // The bytes of the word before are pushed out, in two halves: all eight are more than can be shifted by at once.
        let half = 32u32.wrapping_sub(4 * end.wrapping_sub(begin) as u32);
        word.wrapping_shl(half).wrapping_shl(half)
    })
}
