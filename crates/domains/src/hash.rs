//! Keyed hashes of the names that a name ends with.
//!
//! Names are in the form of [`crate::name`], and their eight bytes are counted from the right: so the names that a name ends with have all
//! words in common but their first ones, and each costs two multiplications more.

use std::hash::{BuildHasher, RandomState};

use packetloom_simd::fold;

use crate::name::MAX_NAME;

/// Words of a name.
const WORDS: usize = MAX_NAME.div_ceil(8);

/// Secrets of a set's hash function.
#[derive(Clone)]
pub(crate) struct Key {
    /// What is mixed into each word.
    words: [u64; WORDS],
    multiplier: u64,
    last: u64,
}

impl Key {
    /// One that nobody else knows.
    pub(crate) fn random() -> Self {
        Self::from_secrets(RandomState::new().hash_one(0), RandomState::new().hash_one(1))
    }

    /// The one of a seed, always the same.
    pub(crate) fn from_seed(seed: u64) -> Self {
        Self::from_secrets(mix(seed), mix(!seed))
    }

    /// Another one that follows from this one.
    pub(crate) fn next(&self) -> Self {
        Self::from_secrets(mix(self.multiplier), mix(self.last))
    }

    fn from_secrets(a: u64, b: u64) -> Self {
        let words = std::array::from_fn(|at| mix(a.wrapping_add(mix(at as u64))));
        Self { words, multiplier: mix(b) | 1, last: mix(a ^ b.rotate_left(32)) | 1 }
    }

    /// What the word at `at` from the right adds to a hash. The halves of a product with a secret number are put together, as wyhash does.
    #[inline(always)]
    pub(crate) fn of_word(&self, at: usize, word: u64) -> u64 {
        fold(word ^ self.words[at % WORDS], self.multiplier)
    }

    /// The hash of a name of `len` bytes, from the sum of its words.
    #[inline(always)]
    pub(crate) fn finish(&self, sum: u64, len: usize) -> u64 {
        fold(sum ^ (len as u64) << 56, self.last)
    }

    /// The hashes of names that a name ends with, one longer than the other.
    pub(crate) fn suffixes<'a>(&'a self, name: &'a [u8]) -> Suffixes<'a> {
        Suffixes { key: self, name, words: 0, sum: 0 }
    }
}

/// See [`Key::suffixes`].
pub(crate) struct Suffixes<'a> {
    key: &'a Key,
    name: &'a [u8],
    /// Words that are in the sum.
    words: usize,
    sum: u64,
}

impl Suffixes<'_> {
    /// The hash of the last `len` bytes, which are no fewer than those of the last call.
    pub(crate) fn next(&mut self, len: usize) -> u64 {
        let (words, rest) = split(len);
        while self.words < words {
            self.sum = self.sum.wrapping_add(self.key.of_word(self.words, self.word(self.words)));
            self.words += 1;
        }
        let first = self.word(words) & last_bytes(rest);
        self.key.finish(self.sum.wrapping_add(self.key.of_word(words, first)), len)
    }

    fn word(&self, at: usize) -> u64 {
        let end = self.name.len().saturating_sub(8 * at);
        let begin = end.saturating_sub(8);
        let mut word = [0; 8];
        word[8 - (end - begin)..].copy_from_slice(&self.name[begin..end]);
        u64::from_le_bytes(word)
    }
}

/// Whole words of a name of `len` bytes but for its first one, and bytes of that.
#[inline(always)]
pub(crate) const fn split(len: usize) -> (usize, usize) {
    let words = len.saturating_sub(1) / 8;
    (words, len - 8 * words)
}

/// A mask of the last bytes of a word, up to eight.
#[inline(always)]
pub(crate) const fn last_bytes(bytes: usize) -> u64 {
    const MASKS: [u64; 9] = {
        let mut masks = [0; 9];
        let mut bytes = 1;
        while bytes <= 8 {
            masks[bytes] = !0 << (64 - 8 * bytes);
            bytes += 1;
        }
        masks
    };
    MASKS[if bytes < 8 { bytes } else { 8 }]
}

/// Spreads a number over 64 bits (the finalizer of SplitMix64).
const fn mix(number: u64) -> u64 {
    let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

/// A number below `count` for a number of 32 bits: the larger that is, the larger it is.
#[inline(always)]
pub(crate) fn scale(number: u32, count: usize) -> usize {
    ((u64::from(number) * count as u64) >> 32) as usize
}
