//! Names as most are: up to 63 bytes of text without escapes, up to eight labels.

use crate::bytes::Pair;
use crate::hash::{Key, last_bytes, split};
use crate::set::Passing;

/// Bytes of text.
pub(crate) const MAX_TEXT: usize = 63;
const MAX_LABELS: usize = 8;
/// Labels that are always looked for: where there are fewer, the whole name stands for the others.
const USUAL: usize = 4;
const WORDS: usize = 8;

/// A name in lower case, and the names that it ends with, from the right.
#[derive(Clone, Copy)]
pub(crate) struct Short {
    /// Ends with the text.
    bytes: [u8; 8 * WORDS],
    /// Bytes of the names.
    lens: [u8; MAX_LABELS],
    /// Their hashes, but for that of the last label alone, which is rarely needed.
    hashes: [u64; MAX_LABELS],
    labels: u8,
    /// Whether the text is of another kind; there are no names then.
    is_long: bool,
    /// For its user.
    pub(crate) depth: u8,
}

/// The last words of a text, from the right; what is before the text is 0.
#[inline(always)]
fn last_words<const N: usize>(text: &[u8]) -> [u64; N] {
    let load =
        |at: usize| text.get(at..).and_then(<[u8]>::first_chunk).map(|chunk| u64::from_le_bytes(*chunk));
    if text.len() < 8 {
        let word = text.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte));
        let mut words = [0; N];
        words[0] = word.checked_shl(64 - 8 * text.len() as u32).unwrap_or(0);
        return words;
    }
    std::array::from_fn(|at| {
        let end = text.len().saturating_sub(8 * at);
        let missing = 8 - end.min(8) as u32;
        load(end.saturating_sub(8)).unwrap_or(0).checked_shl(8 * missing).unwrap_or(0)
    })
}

impl Short {
    pub(crate) const EMPTY: Self = Self {
        bytes: [0; 8 * WORDS],
        lens: [0; MAX_LABELS],
        hashes: [0; MAX_LABELS],
        labels: 0,
        is_long: false,
        depth: 0,
    };

    /// Takes another text, in presentation form or, if `has_escapes` is not set, with backslashes that stand for themselves.
    #[inline(always)]
    pub(crate) fn set(&mut self, key: &Key, text: &[u8], has_escapes: bool) {
        let dot = usize::from(text.last() == Some(&b'.'));
        let text = &text[..text.len() - dot];
        match text.len() {
            0 => (self.labels, self.is_long) = (0, false),
            1..=32 => self.take::<4>(key, text, has_escapes),
            33..=MAX_TEXT => self.take::<8>(key, text, has_escapes),
            _ => (self.labels, self.is_long) = (0, true),
        }
    }

    #[inline(always)]
    fn take<const N: usize>(&mut self, key: &Key, text: &[u8], has_escapes: bool) {
        let len = text.len();
        let mut words = last_words::<N>(text);
        let mut has_backslash = false;
        // A bit for each byte, the last one's highest.
        let mut dots = 0u64;
        for (at, pair) in words.chunks_exact_mut(2).enumerate() {
            let Pair { lower, dots: own, has_backslash: has } = Pair::of([pair[1], pair[0]]);
            pair.copy_from_slice(&[lower[1], lower[0]]);
            dots |= u64::from(own) << (48 - 16 * at);
            has_backslash |= has;
        }
        // Of words from the right.
        let mut sums = [0u64; N];
        let mut sum = 0u64;
        for (at, &word) in words.iter().enumerate() {
            let end = 8 * (WORDS - at);
            self.bytes[end - 8..end].copy_from_slice(&word.to_le_bytes());
            sums[at] = sum;
            sum = sum.wrapping_add(key.of_word(at, word));
        }
        let labels = dots.count_ones() as usize + 1;
        if has_escapes && has_backslash || labels > MAX_LABELS {
            (self.labels, self.is_long) = (0, true);
            return;
        }
        (self.labels, self.is_long) = (labels as u8, false);
        // Where the text begins is a dot, too, of which there are as many as are asked for.
        let begin = 1 << (63 - len);
        let mut next = || {
            let own = (dots | begin).leading_zeros();
            dots &= u64::MAX >> 1 >> own;
            own as usize
        };
        self.lens[0] = next() as u8;
        // A loop, not a closure that would be compiled apart, for another instruction set.
        for at in 1..labels.max(USUAL) {
            let own = next();
            let (before, rest) = split(own);
            let first = words[before % N] & last_bytes(rest);
            let sum = sums[before % N].wrapping_add(key.of_word(before, first));
            self.lens[at] = own as u8;
            self.hashes[at] = key.finish(sum, own);
        }
    }

    /// Whether it is of the kind that this is not for.
    pub(crate) const fn is_long(&self) -> bool {
        self.is_long
    }

    /// The hashes of the names that it ends with, from the right; the first is 0.
    #[inline(always)]
    pub(crate) fn hashes(&self) -> &[u64] {
        &self.hashes[..usize::from(self.labels)]
    }

    /// The first ones, as many as most names have at most: the whole name's instead of those that it has not.
    #[inline(always)]
    pub(crate) fn usual_hashes(&self) -> &[u64; USUAL] {
        self.hashes.first_chunk().unwrap_or(&[0; USUAL])
    }

    /// The hash of its last two labels; of the one that it has; any number if it has none.
    #[inline(always)]
    pub(crate) const fn hash_of_two(&self) -> u64 {
        self.hashes[1]
    }

    /// The hash of the name of [`Self::depth`] labels, any number if that is not known.
    #[inline(always)]
    pub(crate) fn hash(&self) -> u64 {
        self.hashes[usize::from(self.depth).wrapping_sub(1) % MAX_LABELS]
    }

    /// So many of the names.
    #[inline(always)]
    pub(crate) fn passing(&self, depth: usize) -> Passing<'_> {
        Passing {
            name: &self.bytes,
            lens: &self.lens,
            hashes: &self.hashes[..depth],
            is_whole: depth == usize::from(self.labels),
        }
    }
}
