//! Which windows of a text may be those of a pattern: a word of a table for each hash of four bytes, in which two bits tell whether the
//! bytes in front of them and behind them fit.

use packetloom_simd::Simd;

/// Bytes that are looked at in one step.
pub(crate) const BLOCK: usize = 64;
/// Where in a block the first window begins, so that there is a byte in front of it.
pub(crate) const FIRST: usize = 1;
/// Bytes that are read from the beginning of a block on: with the byte behind its last window, and with those of short patterns that begin
/// at its last bytes.
pub(crate) const READ: usize = BLOCK + 4;

/// The table. A bit of it that is set excludes a value.
#[derive(Clone, Debug)]
pub(crate) struct Filter {
    words: Vec<u32>,
    /// By how much a hash is shifted to be an index.
    shift: u32,
}

pub(crate) const MULTIPLIER: u32 = 0x9e37_79b1;

/// The four bits of a byte that are tested.
const NIBBLE: u8 = 15;

impl Filter {
    /// For so many windows.
    pub(crate) fn new(windows: usize) -> Self {
        Self::of_words(Self::words_for(windows))
    }

    /// Words for so many windows.
    pub(crate) fn words_for(windows: usize) -> usize {
        // Beyond 4 MiB the table costs more in cache misses than it keeps out.
        (windows * 8 / 5).next_power_of_two().clamp(1 << 10, 1 << 20)
    }

    /// Of these words, as many as [`of_words`](Self::of_words) takes.
    pub(crate) fn from_words(words: Vec<u32>) -> Self {
        Self { shift: 32 - words.len().ilog2(), words }
    }

    pub(crate) fn words(&self) -> &[u32] {
        &self.words
    }

    /// Of so many words, a power of two.
    pub(crate) fn of_words(words: usize) -> Self {
        Self::from_words(vec![u32::MAX; words])
    }

    /// Lets a window through, between these bytes as far as they are known.
    pub(crate) fn allow(&mut self, window: u32, before: Option<u8>, behind: Option<u8>) {
        let half = |byte: Option<u8>| match byte {
            Some(byte) => 1 << (byte & NIBBLE),
            None => 0xffff,
        };
        let allowed: u32 = half(before) | half(behind) << 16;
        self.words[(window.wrapping_mul(MULTIPLIER) >> self.shift) as usize] &= !allowed;
    }

    /// Its words, and by how much a hash is shifted to be the number of one.
    #[cfg(feature = "device")]
    pub(crate) fn into_parts(self) -> (Vec<u32>, u32) {
        (self.words, self.shift)
    }

    /// What is needed to look at blocks.
    pub(crate) fn view(&self) -> FilterView<'_> {
        FilterView { words: &self.words, shift: self.shift }
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        self.words.len() * 4
    }
}

/// A filter as blocks are looked at: by value, so that it stays in registers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FilterView<'a> {
    words: &'a [u32],
    shift: u32,
}

impl FilterView<'_> {
    /// The windows of a block that are let through, a bit each; they begin at every fourth byte from [`FIRST`] on. `from` begins with the
    /// block; `fold` is set in every word, where there is such.
    #[inline(always)]
    pub(crate) fn pass<S: Simd>(self, simd: S, from: &[u8; READ], fold: Option<S::V>) -> u32 {
        let mut mask = 0;
        for first in (0..BLOCK / 4).step_by(S::LANES) {
            let from = &from[first * 4..];
            // Words that begin with the byte in front, with the window, and with its third byte: that behind it is the third of these.
            let before = load(simd, from, fold);
            let window = load(simd, &from[FIRST..], fold);
            let behind = load(simd, &from[FIRST + 2..], fold);
            let hash = simd.mul(window, simd.splat(MULTIPLIER));
            let words = simd.gather(self.words, simd.shr(hash, self.shift));
            mask |= simd.nibbles_clear(words, before, behind) << first;
        }
        mask
    }
}

/// Bytes of a text, folded.
#[inline(always)]
pub(crate) fn load<S: Simd>(simd: S, from: &[u8], fold: Option<S::V>) -> S::V {
    let bytes = simd.load_bytes(from);
    match fold {
        Some(fold) => simd.or(bytes, fold),
        None => bytes,
    }
}
