//! Which windows of a text may be those of a pattern: a word of a table for each hash of four bytes, in which two bits tell whether the
//! bytes in front of them and behind them fit.

use packetloom_simd::{HashTable, Simd};

/// Bytes that are looked at in one step.
pub(crate) const BLOCK: usize = 64;
/// Where in a block the first window begins, so that there is a byte in front of it.
pub(crate) const FIRST: usize = 1;
/// Bytes that are read from the beginning of a block on: with the byte behind the last window at any byte of it, and with those of short
/// patterns that begin at its last bytes.
pub(crate) const READ: usize = BLOCK + 7;

/// The table. A bit of it that is set excludes a value.
#[derive(Clone, Debug)]
pub(crate) struct Filter {
    words: Vec<u32>,
    /// By how much a hash is shifted to be an index.
    shift: u32,
}

pub(crate) const MULTIPLIER: u32 = 0x9e37_79b1;

/// Words of a table.
pub(crate) const MIN_WORDS: usize = 1 << 12;
pub(crate) const MAX_WORDS: usize = 1 << 20;

/// The four bits of a byte that are tested.
pub(crate) const NIBBLE: u8 = 15;

impl Filter {
    /// For windows of which so many differ in what is tested of them.
    pub(crate) fn new(tests: usize) -> Self {
        // Up to 512 KiB the table lies in a second cache. A larger one costs more in cache misses than it keeps out, unless many windows share
        // a word; one of more than 4 MiB always does.
        let alone = (tests * 8 / 5).next_power_of_two().clamp(MIN_WORDS, 1 << 17);
        Self::of_words(alone.max((tests * 2 / 3).next_power_of_two().min(MAX_WORDS)))
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
        FilterView(HashTable::new(&self.words))
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        self.words.len() * 4
    }
}

/// A filter as blocks are looked at: by value, so that it stays in registers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FilterView<'a>(HashTable<'a>);

impl FilterView<'_> {
    /// The filter of a set that has no windows, which is not asked.
    pub(crate) fn none() -> Self {
        Self(HashTable::new(&[u32::MAX; 2]))
    }

    /// Whether the first window of a text is let through, as that of a pattern that begins with it.
    #[inline(always)]
    pub(crate) fn may_begin(self, text: &[u8], fold: u8) -> bool {
        let Some(window) = text.first_chunk() else { return false };
        let window = u32::from_le_bytes(*window) | u32::from_le_bytes([fold; 4]);
        let behind = text.get(4).map_or(0, |behind| behind | fold);
        let word = self.0.word(window.wrapping_mul(MULTIPLIER));
        // A pattern of these four bytes lets all bytes through that may be behind them.
        word & (0xffff | 1 << (16 + u32::from(behind & NIBBLE))) == 0
    }

    /// The windows of a block that are let through, a bit each; they begin at every fourth byte from `shift` behind [`FIRST`] on.
    #[inline(always)]
    pub(crate) fn pass<S: Simd, B: Block<S>>(self, simd: S, block: B, shift: usize) -> u64 {
        let mut mask = 0;
        for first in (0..BLOCK / 4).step_by(S::LANES) {
            let at = first * 4 + shift;
            // Words that begin with the byte in front, with the window, and with its third byte: that behind it is the third of these.
            let before = block.load(simd, at);
            let window = block.load(simd, at + FIRST);
            let behind = block.load(simd, at + FIRST + 2);
            let hash = simd.mul(window, simd.splat(MULTIPLIER));
            let words = simd.gather_top(self.0, hash);
            mask |= simd.nibbles_clear(words, before, behind) << first;
        }
        mask.into()
    }
}

/// A block of a text.
pub(crate) trait Block<S: Simd>: Copy {
    /// The bytes from a place of the block on, folded.
    fn load(self, simd: S, at: usize) -> S::V;
}

/// A block that is loaded as it is needed; what is set in every word of it, where there is such.
#[derive(Clone, Copy)]
pub(crate) struct InMemory<'a, S: Simd>(pub(crate) &'a [u8; READ], pub(crate) Option<S::V>);

/// A block of one vector, from its first four bytes on.
#[derive(Clone, Copy)]
pub(crate) struct Loaded<'a, S: Simd> {
    shifted: [S::V; 5],
    /// What is behind its beginning, however few bytes.
    bytes: &'a [u8],
    fold: Option<S::V>,
}

impl<'a, S: Simd> Loaded<'a, S> {
    #[inline(always)]
    pub(crate) fn new(simd: S, block: &'a [u8; READ], fold: Option<S::V>) -> Self {
        Self { shifted: simd.load_shifted(block), bytes: block, fold }
    }

    /// Of fewer bytes.
    #[inline(always)]
    pub(crate) fn rest(simd: S, bytes: &'a [u8], fold: Option<S::V>) -> Self {
        Self { shifted: simd.load_shifted_rest(bytes), bytes, fold }
    }
}

#[inline(always)]
fn folded<S: Simd>(simd: S, bytes: S::V, fold: Option<S::V>) -> S::V {
    match fold {
        Some(fold) => simd.or(bytes, fold),
        None => bytes,
    }
}

impl<S: Simd> Block<S> for InMemory<'_, S> {
    #[inline(always)]
    fn load(self, simd: S, at: usize) -> S::V {
        folded(simd, simd.load_bytes(&self.0[at..]), self.1)
    }
}

impl<S: Simd> Block<S> for Loaded<'_, S> {
    #[inline(always)]
    fn load(self, simd: S, at: usize) -> S::V {
        let bytes = match self.shifted.get(at) {
            Some(&bytes) => bytes,
            None => simd.load_rest(&self.bytes[at.min(self.bytes.len())..]),
        };
        folded(simd, bytes, self.fold)
    }
}
