//! Names as most are: up to 63 bytes of text without escapes, up to eight labels.

use packetloom_simd::Simd;

use crate::hash::{Key, of_first, words_before};
use crate::set::Passing;

/// Bytes of text.
pub(crate) const MAX_TEXT: usize = 63;
const MAX_LABELS: usize = 8;
/// Labels that are always looked for: where there are fewer, the whole name stands for the others.
const USUAL: usize = 4;
const WORDS: usize = 8;

/// A name in lower case, and the names that it ends with, from the right.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Short {
    /// Ends with the text.
    line: [u64; WORDS],
    /// Their hashes, but for that of the last label alone, which is rarely needed. Behind those of the labels come others.
    hashes: [u64; MAX_LABELS],
    /// Bytes of the names.
    lens: [u8; MAX_LABELS],
    labels: u8,
    /// Whether the text is of another kind; there are no names then.
    is_long: bool,
    /// For its user.
    pub(crate) depth: u8,
}

impl Short {
    pub(crate) const EMPTY: Self = Self {
        line: [0; WORDS],
        hashes: [0; MAX_LABELS],
        lens: [0; MAX_LABELS],
        labels: 0,
        is_long: false,
        depth: 0,
    };

    /// Takes another text, in presentation form or, if `has_escapes` is not set, with backslashes that stand for themselves.
    #[inline(always)]
    pub(crate) fn set<S: Simd>(&mut self, simd: S, key: &Key, text: &[u8], has_escapes: bool) {
        let text = text.strip_suffix(b".").unwrap_or(text);
        (self.labels, self.is_long) = (0, text.len() > MAX_TEXT);
        if text.is_empty() || self.is_long {
            return;
        }
        let [dots, backslashes] = simd.lower_case(text, bytemuck::cast_mut(&mut self.line), *b".\\");
        let labels = dots.count_ones() as usize + 1;
        if has_escapes && backslashes != 0 || labels > MAX_LABELS {
            self.is_long = true;
            return;
        }
        self.labels = labels as u8;
        if text.len() <= 32 {
            self.hash_words::<4>(key, text.len(), dots);
        } else {
            self.hash_words::<WORDS>(key, text.len(), dots);
        }
    }

    /// Hashes a text of so many bytes, which take `N` words at most, with dots as they are said to be.
    #[inline(always)]
    fn hash_words<const N: usize>(&mut self, key: &Key, len: usize, mut dots: u64) {
        let Self { line, hashes, lens, labels, .. } = self;
        // From the right.
        let word = |at: usize| u64::from_le(line[WORDS - 1 - at % N]);
        let mut sums = [0u64; N];
        for at in 1..N {
            sums[at] = sums[at - 1].wrapping_add(key.of_word(at - 1, word(at - 1)));
        }
        // Where the text begins is a dot, too, of which there are as many as are asked for.
        let begin = 1 << (63 - len);
        let mut next = || {
            let own = (dots | begin).leading_zeros() as usize;
            dots &= !(1 << (63 - own));
            own
        };
        lens[0] = next() as u8;
        // A loop, not a closure that would be compiled apart, for another instruction set.
        for at in 1..USUAL {
            let own = next();
            let before = words_before(own);
            lens[at] = own as u8;
            hashes[at] = sums[before % N].wrapping_add(key.of_first(own, word(before) & of_first(own)));
        }
        for at in USUAL..usize::from(*labels) {
            let own = next();
            let before = words_before(own);
            lens[at] = own as u8;
            hashes[at] = sums[before % N].wrapping_add(key.of_first(own, word(before) & of_first(own)));
        }
    }

    /// Whether a text of no more bytes than the name has is what it ends with.
    #[inline(always)]
    pub(crate) fn ends_with<S: Simd>(&self, simd: S, text: &[u8]) -> bool {
        simd.ends_with(bytemuck::cast_ref(&self.line), text)
    }

    /// How many labels it has, up to eight; none where it is of another kind.
    #[inline(always)]
    pub(crate) fn labels(&self) -> usize {
        self.labels.into()
    }

    /// Whether it is of the kind that this is not for.
    pub(crate) const fn is_long(&self) -> bool {
        self.is_long
    }

    /// The hashes of the names that it ends with, from the right, as many as it has labels; the first has no meaning.
    #[inline(always)]
    pub(crate) const fn hashes(&self) -> &[u64; MAX_LABELS] {
        &self.hashes
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
            name: bytemuck::bytes_of(&self.line),
            lens: &self.lens,
            hashes: &self.hashes[..depth],
            is_whole: depth == usize::from(self.labels),
        }
    }
}
