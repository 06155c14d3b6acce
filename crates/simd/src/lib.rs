//! Vector instructions: which the processor has is asked once, when an index or a table is built. All of the crate may have unsafe
//! code, so that those who use it need none.
//!
//! An algorithm is written once, as a [`Kernel`] over the operations of [`Simd`] or as plain loops over slices; [`Isa::run`] calls a
//! copy of it that the compiler made for the instruction set.
#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;

use std::fmt;

use bytemuck::{Pod, Zeroable};

/// An instruction set that this processor has. There is no way to name one that it lacks.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Isa(Level);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    /// 512-bit vectors: F, BW, CD, DQ and VL, and what moves bytes: VBMI and VBMI2.
    #[cfg(target_arch = "x86_64")]
    Avx512Vbmi,
    /// 512-bit vectors: F, BW, CD, DQ and VL.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// 256-bit vectors.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// What every processor of the target has.
    Portable,
}

/// Something to compute, compiled for each instruction set.
pub trait Kernel {
    /// What comes of it.
    type Output;

    /// Computes it. This method, and what it calls where the time goes, must be `#[inline(always)]`: code becomes part of
    /// the copy for an instruction set only by being inlined into it.
    fn run<S: Simd>(self, simd: S) -> Self::Output;
}

/// Vectors of 32-bit words and what can be done with them. A value of an implementing type proves that the processor has
/// the instructions. Masks have one bit a lane, the first lane's the lowest.
pub trait Simd: Copy {
    /// Words in a vector: a power of two, at most [`MAX_LANES`].
    const LANES: usize;
    /// A vector.
    type V: Copy;

    /// The same word in every lane.
    fn splat(self, word: u32) -> Self::V;
    /// The first words of `from`, which holds [`Simd::LANES`] at least.
    fn load(self, from: &[u32]) -> Self::V;
    /// Writes to the first words of `to`.
    fn store(self, vector: Self::V, to: &mut [u32]);
    /// The first bytes of `from`, four a word, the first of them the lowest; it holds four times [`Simd::LANES`] at least.
    fn load_bytes(self, from: &[u8]) -> Self::V;
    /// Whether [`Simd::load_rest`] is one instruction, rather than a copy.
    const LOADS_RESTS: bool;
    /// As [`Simd::load_bytes`], of however few bytes, with zeros behind them.
    fn load_rest(self, from: &[u8]) -> Self::V;
    /// Whether [`Simd::load_shifted`] shifts in registers, rather than loading four times.
    const SHIFTS_BYTES: bool;
    /// [`Simd::load_bytes`] from each of the first five bytes on; `from` holds four bytes more than a vector.
    fn load_shifted(self, from: &[u8]) -> [Self::V; 5];
    /// As [`Simd::load_shifted`], of however few bytes, with zeros behind them.
    fn load_shifted_rest(self, from: &[u8]) -> [Self::V; 5];
    /// Bitwise AND.
    fn and(self, a: Self::V, b: Self::V) -> Self::V;
    /// Bitwise OR.
    fn or(self, a: Self::V, b: Self::V) -> Self::V;
    /// Bitwise exclusive OR.
    fn xor(self, a: Self::V, b: Self::V) -> Self::V;
    /// Sum, wrapping.
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    /// Difference, wrapping.
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    /// Difference of each half word, wrapping.
    fn sub16(self, a: Self::V, b: Self::V) -> Self::V;
    /// Difference of each half word, 0 where it would be negative.
    fn saturating_sub16(self, a: Self::V, b: Self::V) -> Self::V;
    /// The low half of the product.
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    /// The lesser, unsigned.
    fn min(self, a: Self::V, b: Self::V) -> Self::V;
    /// The greater, unsigned.
    fn max(self, a: Self::V, b: Self::V) -> Self::V;
    /// To the left by `count` bits; 0 from 32 on.
    fn shl(self, a: Self::V, count: u32) -> Self::V;
    /// To the right by `count` bits, zeros coming in; 0 from 32 on.
    fn shr(self, a: Self::V, count: u32) -> Self::V;
    /// Zeros above the highest bit that is set; 32 for 0.
    fn leading_zeros(self, a: Self::V) -> Self::V;
    /// Lanes that are equal.
    fn eq(self, a: Self::V, b: Self::V) -> u32;
    /// Lanes whose highest bit is set.
    fn high_bits(self, a: Self::V) -> u32;
    /// `table[index]` for each lane; an index past the end reads the last word.
    ///
    /// # Panics
    ///
    /// Where the table is empty.
    fn gather(self, table: &[u32], index: Self::V) -> Self::V;
    /// The word of a table for each lane, which is a hash.
    fn gather_top(self, table: HashTable<'_>, hash: Self::V) -> Self::V;
    /// Lanes of `words` in which two bits are 0: that of the low half whose number are the lowest four bits of the lane of `low`, and
    /// that of the high half whose number are bits 16 to 19 of the lane of `high`.
    fn nibbles_clear(self, words: Self::V, low: Self::V, high: Self::V) -> u32;
    /// A table of what bytes are, where [`Simd::classes`] looks it up.
    type Classes<'a>: Copy;
    /// Whether [`Simd::classes`] are those of [`ByteClasses::exact`], rather than products.
    const CLASSES_ARE_EXACT: bool;
    /// Makes a table ready to be looked up.
    fn load_classes(self, table: &ByteClasses) -> Self::Classes<'_>;
    /// The class of each byte.
    fn classes(self, table: Self::Classes<'_>, bytes: Self::V) -> Self::V;
    /// Bytes that are not 0, a bit each.
    fn nonzero_bytes(self, a: Self::V) -> u64;
    /// As [`Simd::gather`] from half words, the last of which is padding: an index past the end reads the one before it.
    ///
    /// # Panics
    ///
    /// Where the table has fewer than two.
    fn gather16(self, table: &[u16], index: Self::V) -> Self::V;
    /// As [`Simd::gather16`] from bytes, of which the last three are padding.
    ///
    /// # Panics
    ///
    /// Where the table has fewer than four.
    fn gather8(self, table: &[u8], index: Self::V) -> Self::V;
    /// The first four words of each of [`Simd::LANES`] rows of `stride` words, column by column. `words` begins with the first row,
    /// and of the last one it has four words at least.
    fn columns(self, words: &[u32], stride: usize) -> [Self::V; 4];
    /// Writes the lanes of `mask`, side by side, to the start of `to`, which holds [`Simd::LANES`] words at least; what comes
    /// after them there is overwritten with something. How many lanes they were.
    fn compress(self, vector: Self::V, mask: u32, to: &mut [u32]) -> usize;
    /// As [`fold()`]: of long words that are not in vectors, but so that a loop over many is compiled to vectors where the processor has
    /// what they need.
    fn fold(self, a: u64, b: u64) -> u64;
    /// Compares a key, but for its last word, and the state word of its packet with the two rules of a line; see [`Line`]. Bit
    /// 0 is the first rule, bit 1 the second.
    fn match_line(self, line: &Line, key: &[u16; 8], state: u16) -> u32;
    /// Compares a key, whose last four half words are `rest`, and the state word of its packet with the rule of a line; see
    /// [`LongLine`]. 1 if they match, or 0.
    fn match_long_line(self, line: &LongLine, addresses: &[u64; 4], rest: [u16; 4], state: u16) -> u32;
    /// Writes a text to the end of `to`, behind zeros and with ASCII letters in lower case; the bytes there that are `bytes[0]` and those that are
    /// `bytes[1]`, a bit each, the last byte's highest. Neither is 0 or a letter.
    ///
    /// # Panics
    ///
    /// Where the text has more than 64 bytes.
    fn lower_case(self, text: &[u8], to: &mut [u8; 64], bytes: [u8; 2]) -> [u64; 2];
    /// Whether the last bytes of `line` are `text`.
    ///
    /// # Panics
    ///
    /// Where the text has more than 64 bytes.
    fn ends_with(self, line: &[u8; 64], text: &[u8]) -> bool;
    /// For each number a bit: whether the word of `line` that its bits 12 to 14 choose has the two bits that its bits 0 to 5, and 6 to 11, choose.
    fn have_bits(self, line: &[u64; 8], numbers: &[u64; 8]) -> u32;
}

/// A table whose words are found by the highest bits of hashes.
#[derive(Clone, Copy, Debug)]
pub struct HashTable<'a> {
    words: &'a [u32],
    /// By how much a hash is shifted to be the number of a word: every hash has one.
    shift: u32,
}

impl<'a> HashTable<'a> {
    /// Of these words; of their number's highest power of two, where it is none itself.
    ///
    /// # Panics
    ///
    /// Where there are fewer than two words, or 4 GiB.
    pub fn new(words: &'a [u32]) -> Self {
        let bits = words.len().checked_ilog2().unwrap_or(0);
        assert!((1..=29).contains(&bits), "a table of {} words", words.len());
        Self { words, shift: 32 - bits }
    }

    /// The word of a hash.
    #[inline(always)]
    pub fn word(self, hash: u32) -> u32 {
        self.words[(hash >> self.shift) as usize]
    }
}

/// What each byte is, a bit for each class, in two forms.
#[derive(Clone, Debug)]
pub struct ByteClasses {
    /// By the low seven bits of a byte.
    pub exact: [u8; 128],
    /// By the low five bits of a byte: of the classes of both that [`high`](Self::high) has, too, it is one.
    pub low: [u8; 32],
    /// By the high three bits of a byte.
    pub high: [u8; 8],
}

/// The fewest and the most lanes that a vector has.
pub const MIN_LANES: usize = 8;
/// See [`MIN_LANES`].
pub const MAX_LANES: usize = 16;

/// Two rules in a cache line. Of the half words of a key the first six must lie between `low` and `high`; of the state word,
/// the bits in `high[6]` must be as in `low[6]`; the eighth half words are not compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C, align(64))]
pub struct Line {
    /// Lower bounds, and the value of the state word.
    pub low: [[u16; 8]; 2],
    /// Upper bounds, and the mask of the state word.
    pub high: [[u16; 8]; 2],
}

/// One rule with long addresses in a cache line. Of each half of the addresses of a key, the bits that are left when it is shifted to the
/// right must be as in the line; of the half words that follow, the first two must lie between `low` and `high`, and of the state
/// word the bits in `high[2]` must be as in `low[2]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
#[repr(C, align(64))]
pub struct LongLine {
    /// The halves of source and destination.
    pub addresses: [u64; 4],
    /// Lower bounds, and the value of the state word.
    pub low: [u16; 4],
    /// Upper bounds, and the mask of the state word.
    pub high: [u16; 4],
    /// How far each half is shifted; by 64 so that nothing is left of it.
    pub shifts: [u8; 4],
    /// Something of the user's.
    pub number: u32,
    /// Fills the line.
    pub reserved: [u8; 8],
}

impl Isa {
    /// The instruction sets that this processor has, best first; the last is always there.
    pub fn all_available() -> Vec<Self> {
        let mut all = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            macro_rules! has {
                ($($feature:tt)*) => { $(is_x86_feature_detected!($feature))&&* };
            }
            let avx2 = has!("avx2" "bmi1" "bmi2" "lzcnt" "popcnt");
            if avx2 && has!("avx512f" "avx512bw" "avx512cd" "avx512dq" "avx512vl") {
                all.push(Self(if has!("avx512vbmi" "avx512vbmi2") {
                    Level::Avx512Vbmi
                } else {
                    Level::Avx512
                }));
            }
            if avx2 {
                all.push(Self(Level::Avx2));
            }
        }
        all.push(Self(Level::Portable));
        all
    }

    /// As [`all_available`](Self::all_available), with those between which [`run_on_bytes`](Self::run_on_bytes) alone makes a difference.
    pub fn all_for_bytes() -> Vec<Self> {
        let mut all = Self::all_available();
        #[cfg(target_arch = "x86_64")]
        if all[0].0 == Level::Avx512Vbmi {
            all.insert(1, Self(Level::Avx512));
        }
        all
    }

    /// The best there is.
    pub fn detect() -> Self {
        Self::all_available()[0]
    }

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Level::Avx512Vbmi | Level::Avx512 => "avx512",
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => "avx2",
            Level::Portable => "portable",
        }
    }

    /// Runs the copy of the kernel that was made for this instruction set.
    #[inline]
    pub fn run<K: Kernel>(self, kernel: K) -> K::Output {
        match self.0 {
            // SAFETY: an `Isa` of this level is made in `all_available` and `all_for_bytes` alone, where the processor has the features.
            #[cfg(target_arch = "x86_64")]
            Level::Avx512Vbmi | Level::Avx512 => unsafe { avx512::run(kernel) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => unsafe { avx2::run(kernel) },
            Level::Portable => kernel.run(portable::Portable),
        }
    }

    /// As [`run`](Self::run), for kernels that look up bytes: with what moves bytes, where the processor has it. One more copy of
    /// the kernel is made for that.
    #[inline]
    pub fn run_on_bytes<K: Kernel>(self, kernel: K) -> K::Output {
        match self.0 {
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Level::Avx512Vbmi => unsafe { avx512::run_on_bytes(kernel) },
            _ => self.run(kernel),
        }
    }

    /// Whether classes of bytes are exact for kernels that are run by [`run_on_bytes`](Self::run_on_bytes).
    pub fn has_exact_classes(self) -> bool {
        struct IsExact;
        impl Kernel for IsExact {
            type Output = bool;

            #[inline(always)]
            fn run<S: Simd>(self, _: S) -> bool {
                S::CLASSES_ARE_EXACT
            }
        }
        self.run_on_bytes(IsExact)
    }
}

impl fmt::Debug for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The halves of the product of two long words, one exclusive or the other; of many in a loop, [`Simd::fold`].
#[inline(always)]
pub fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

/// [`Simd::fold`] in products of half words, for which there are vector instructions.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn fold_by_halves(a: u64, b: u64) -> u64 {
    let halves = |word: u64| [word >> 32, word & 0xffff_ffff];
    let ([a_high, a_low], [b_high, b_low]) = (halves(a), halves(b));
    let [carried, low] = halves(a_low * b_low);
    let [first_high, first] = halves(a_high * b_low + carried);
    let [second_high, second] = halves(a_low * b_high + first);
    let high = a_high * b_high + first_high + second_high;
    high ^ (second << 32 | low)
}

#[cfg(test)]
mod tests;
