//! Keyed hashes of the names that a name ends with.
//!
//! Names are in the form of [`crate::name`], and their eight bytes are counted from the right: so the names that a name ends with have all
//! words in common but their first ones, and each costs one multiplication more. The secret of a first word is that of the name's length,
//! so names of different lengths have nothing in common where one is the other with zeros in front.

use std::hash::{BuildHasher, RandomState};

use packetloom_simd::fold;

use crate::name::MAX_NAME;

/// Words of a name.
const WORDS: usize = MAX_NAME.div_ceil(8);

/// Secrets of a set's hash function.
#[derive(Clone)]
pub(crate) struct Key {
    /// What is mixed into each word but the first, counted from the right.
    words: [u64; WORDS],
    /// What is mixed into the first word of a name of so many bytes.
    firsts: [u64; MAX_NAME + 1],
    multiplier: u64,
    /// What another key follows from.
    next: u64,
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
        Self::from_secrets(mix(self.multiplier), mix(self.next))
    }

    fn from_secrets(a: u64, b: u64) -> Self {
        let secret = |at: usize| mix(a.wrapping_add(mix(at as u64)));
        Self {
            words: std::array::from_fn(secret),
            firsts: std::array::from_fn(|len| secret(WORDS + len)),
            multiplier: mix(b) | 1,
            next: mix(a ^ b.rotate_left(32)) | 1,
        }
    }

    /// What the word at `at` from the right, which is not the first, adds to a hash. The halves of a product with a secret number are put
    /// together, as wyhash does.
    #[inline(always)]
    pub(crate) fn of_word(&self, at: usize, word: u64) -> u64 {
        fold(word ^ self.words[at % WORDS], self.multiplier)
    }

    /// What the first word of a name of `len` bytes adds to its hash, with zeros for bytes that are before the name.
    #[inline(always)]
    pub(crate) fn of_first(&self, len: usize, word: u64) -> u64 {
        fold(word ^ self.firsts[len.min(MAX_NAME)], self.multiplier)
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
        let words = words_before(len);
        while self.words < words {
            self.sum = self.sum.wrapping_add(self.key.of_word(self.words, self.word(self.words)));
            self.words += 1;
        }
        let first = self.word(words) & of_first(len);
        self.sum.wrapping_add(self.key.of_first(len, first))
    }

    fn word(&self, at: usize) -> u64 {
        let end = self.name.len().saturating_sub(8 * at);
        let begin = end.saturating_sub(8);
        let mut word = [0; 8];
        word[8 - (end - begin)..].copy_from_slice(&self.name[begin..end]);
        u64::from_le_bytes(word)
    }
}

/// Words of a name of `len` bytes behind its first one.
#[inline(always)]
pub(crate) const fn words_before(len: usize) -> usize {
    len.saturating_sub(1) / 8
}

/// A mask of the bytes that a name of `len` bytes, one at least, has in its first word.
#[inline(always)]
pub(crate) const fn of_first(len: usize) -> u64 {
    // By whole words less than nothing: the bits that are not in the mask are those of the bytes that are missing.
    u64::MAX.wrapping_shl((len as u32).wrapping_mul(8).wrapping_neg())
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
