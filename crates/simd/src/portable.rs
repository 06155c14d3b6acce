//! Arrays, as the compiler makes of them what the target has.

use super::{ByteClasses, HashTable, Line, LongLine, Simd};

/// Eight words: two 128-bit vectors where there are such.
#[derive(Clone, Copy)]
pub(super) struct Portable;

const LANES: usize = 8;
type Words = [u32; LANES];

#[inline(always)]
fn each(a: Words, b: Words, f: impl Fn(u32, u32) -> u32) -> Words {
    std::array::from_fn(|lane| f(a[lane], b[lane]))
}

#[inline(always)]
fn halves(a: Words, b: Words, f: impl Fn(u16, u16) -> u16) -> Words {
    each(a, b, |a, b| {
        let (low, high) = (f(a as u16, b as u16), f((a >> 16) as u16, (b >> 16) as u16));
        u32::from(low) | u32::from(high) << 16
    })
}

#[inline(always)]
fn mask_of(lanes: [bool; LANES]) -> u32 {
    lanes.iter().rev().fold(0, |mask, &lane| mask << 1 | u32::from(lane))
}

impl Simd for Portable {
    const LANES: usize = LANES;
    type V = Words;

    #[inline(always)]
    fn splat(self, word: u32) -> Words {
        [word; LANES]
    }

    #[inline(always)]
    fn load(self, from: &[u32]) -> Words {
        let mut words = [0; LANES];
        words.copy_from_slice(&from[..LANES]);
        words
    }

    #[inline(always)]
    fn store(self, vector: Words, to: &mut [u32]) {
        to[..LANES].copy_from_slice(&vector);
    }

    #[inline(always)]
    fn load_bytes(self, from: &[u8]) -> Words {
        let (words, _) = from[..LANES * 4].as_chunks();
        std::array::from_fn(|lane| u32::from_le_bytes(words[lane]))
    }

    const LOADS_RESTS: bool = false;

    #[inline(always)]
    fn load_rest(self, from: &[u8]) -> Words {
        let mut bytes = [0; LANES * 4];
        let len = from.len().min(bytes.len());
        bytes[..len].copy_from_slice(&from[..len]);
        self.load_bytes(&bytes)
    }

    const SHIFTS_BYTES: bool = false;

    #[inline(always)]
    fn load_shifted(self, from: &[u8]) -> [Words; 5] {
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
    fn load_shifted_rest(self, from: &[u8]) -> [Words; 5] {
        let mut bytes = [0; LANES * 4 + 4];
        let len = from.len().min(bytes.len());
        bytes[..len].copy_from_slice(&from[..len]);
        self.load_shifted(&bytes)
    }

    #[inline(always)]
    fn and(self, a: Words, b: Words) -> Words {
        each(a, b, |a, b| a & b)
    }

    #[inline(always)]
    fn or(self, a: Words, b: Words) -> Words {
        each(a, b, |a, b| a | b)
    }

    #[inline(always)]
    fn xor(self, a: Words, b: Words) -> Words {
        each(a, b, |a, b| a ^ b)
    }

    #[inline(always)]
    fn add(self, a: Words, b: Words) -> Words {
        each(a, b, u32::wrapping_add)
    }

    #[inline(always)]
    fn sub(self, a: Words, b: Words) -> Words {
        each(a, b, u32::wrapping_sub)
    }

    #[inline(always)]
    fn sub16(self, a: Words, b: Words) -> Words {
        halves(a, b, u16::wrapping_sub)
    }

    #[inline(always)]
    fn saturating_sub16(self, a: Words, b: Words) -> Words {
        halves(a, b, u16::saturating_sub)
    }

    #[inline(always)]
    fn mul(self, a: Words, b: Words) -> Words {
        each(a, b, u32::wrapping_mul)
    }

    #[inline(always)]
    fn min(self, a: Words, b: Words) -> Words {
        each(a, b, u32::min)
    }

    #[inline(always)]
    fn max(self, a: Words, b: Words) -> Words {
        each(a, b, u32::max)
    }

    #[inline(always)]
    fn shl(self, a: Words, count: u32) -> Words {
        a.map(|word| word.checked_shl(count).unwrap_or(0))
    }

    #[inline(always)]
    fn shr(self, a: Words, count: u32) -> Words {
        a.map(|word| word.checked_shr(count).unwrap_or(0))
    }

    #[inline(always)]
    fn leading_zeros(self, a: Words) -> Words {
        a.map(u32::leading_zeros)
    }

    #[inline(always)]
    fn eq(self, a: Words, b: Words) -> u32 {
        mask_of(std::array::from_fn(|lane| a[lane] == b[lane]))
    }

    #[inline(always)]
    fn high_bits(self, a: Words) -> u32 {
        mask_of(a.map(|word| word >> 31 == 1))
    }

    #[inline(always)]
    fn gather(self, table: &[u32], index: Words) -> Words {
        let last = table.len() - 1;
        index.map(|index| table[(index as usize).min(last)])
    }

    #[inline(always)]
    fn gather_top(self, table: HashTable<'_>, hash: Words) -> Words {
        hash.map(|hash| table.word(hash))
    }

    #[inline(always)]
    fn nibbles_clear(self, words: Words, low: Words, high: Words) -> u32 {
        let low = each(words, low, |word, number| word >> (number & 15));
        let high = each(words, high, |word, number| word >> (16 + (number >> 16 & 15)));
        mask_of(each(low, high, |low, high| (low | high) & 1).map(|set| set == 0))
    }

    type Classes<'a> = &'a ByteClasses;

    const CLASSES_ARE_EXACT: bool = false;

    #[inline(always)]
    fn load_classes(self, table: &ByteClasses) -> &ByteClasses {
        table
    }

    #[inline(always)]
    fn classes(self, ByteClasses { low, high, .. }: &ByteClasses, bytes: Words) -> Words {
        let class = |byte: u8| low[usize::from(byte & 31)] & high[usize::from(byte >> 5)];
        bytes.map(|word| u32::from_le_bytes(word.to_le_bytes().map(class)))
    }

    #[inline(always)]
    fn nonzero_bytes(self, a: Words) -> u64 {
        a.iter().rev().fold(0, |mask, word| {
            let bytes = word.to_le_bytes();
            bytes.iter().rev().fold(mask, |mask, &byte| mask << 1 | u64::from(byte != 0))
        })
    }

    #[inline(always)]
    fn gather16(self, table: &[u16], index: Words) -> Words {
        let last = table.len() - 2;
        index.map(|index| table[(index as usize).min(last)].into())
    }

    #[inline(always)]
    fn gather8(self, table: &[u8], index: Words) -> Words {
        let last = table.len() - 4;
        index.map(|index| table[(index as usize).min(last)].into())
    }

    #[inline(always)]
    fn columns(self, words: &[u32], stride: usize) -> [Words; 4] {
        std::array::from_fn(|column| std::array::from_fn(|lane| words[lane * stride + column]))
    }

    #[inline(always)]
    fn compress(self, vector: Words, mask: u32, to: &mut [u32]) -> usize {
        let to = &mut to[..LANES];
        let mut len = 0;
        for (lane, word) in vector.into_iter().enumerate() {
            // No branch: the word is overwritten by the next one if its lane is not wanted.
            to[len & (LANES - 1)] = word;
            len += (mask >> lane & 1) as usize;
        }
        len
    }

    #[inline(always)]
    fn fold(self, a: u64, b: u64) -> u64 {
        super::fold(a, b)
    }

    #[inline(always)]
    fn match_line(self, line: &Line, key: &[u16; 8], state: u16) -> u32 {
        let rule = |rule: usize| {
            let (low, high) = (&line.low[rule], &line.high[rule]);
            let mut differs = (state ^ low[6]) & high[6] != 0;
            for word in 0..6 {
                differs |= (key[word] < low[word]) | (key[word] > high[word]);
            }
            u32::from(!differs)
        };
        rule(0) | rule(1) << 1
    }

    #[inline(always)]
    fn match_long_line(self, line: &LongLine, addresses: &[u64; 4], rest: [u16; 4], state: u16) -> u32 {
        let mut differs = u64::from((state ^ line.low[2]) & line.high[2]);
        for ((address, value), shift) in addresses.iter().zip(line.addresses).zip(line.shifts) {
            differs |= (address ^ value).checked_shr(shift.into()).unwrap_or(0);
        }
        let within = |port: usize| (line.low[port] <= rest[port]) & (rest[port] <= line.high[port]);
        u32::from((differs == 0) & within(0) & within(1))
    }

    #[inline(always)]
    fn lower_case(self, text: &[u8], to: &mut [u8; 64], bytes: [u8; 2]) -> [u64; 2] {
        let (before, end) = to.split_at_mut(64 - text.len());
        before.fill(0);
        for (to, byte) in end.iter_mut().zip(text) {
            *to = byte.to_ascii_lowercase();
        }
        bytes.map(|one| to.iter().rev().fold(0, |mask, &byte| mask << 1 | u64::from(byte == one)))
    }

    #[inline(always)]
    fn ends_with(self, line: &[u8; 64], text: &[u8]) -> bool {
        line[64 - text.len()..] == *text
    }

    #[inline(always)]
    fn have_bits(self, line: &[u64; 8], numbers: &[u64; 8]) -> u32 {
        numbers.iter().rev().fold(0, |mask, number| {
            let bits = 1 << (number & 63) | 1 << (number >> 6 & 63);
            mask << 1 | u32::from(line[(number >> 12) as usize % 8] & bits == bits)
        })
    }
}
