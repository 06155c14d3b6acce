//! A set of patterns, before it is compiled.

use packetloom_memory::prefetch_at;

/// A literal to look for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pattern<'a> {
    /// Its bytes, of any values; 1 to [`Patterns::MAX_LEN`] of them.
    pub bytes: &'a [u8],
    /// Whether ASCII letters match in both cases.
    pub ignore_case: bool,
    /// Where in a text it may lie.
    pub bounds: Bounds,
}

impl<'a> Pattern<'a> {
    /// A case-sensitive pattern that may lie anywhere.
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, ignore_case: false, bounds: Bounds::ANYWHERE }
    }
}

/// Where in a text a pattern may lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// The first byte of the text at which it may begin.
    pub offset: u32,
    /// Bytes of the text from `offset` on in which all of it has to lie; [`u32::MAX`] is no bound.
    pub depth: u32,
}

impl Bounds {
    /// No bounds.
    pub const ANYWHERE: Self = Self { offset: 0, depth: u32::MAX };

    /// Whether bytes from `begin` up to `end` lie in them.
    pub fn hold(self, begin: u64, end: u64) -> bool {
        let is_deep = self.depth == Self::ANYWHERE.depth;
        begin >= self.offset.into() && (is_deep || end <= u64::from(self.offset) + u64::from(self.depth))
    }
}

/// Why a pattern cannot be in a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Refused {
    /// It has no bytes.
    #[error("an empty pattern; expected 1 to 255 bytes")]
    Empty,
    /// It has too many.
    #[error("a pattern of {0} bytes; expected 1 to 255")]
    Long(usize),
    /// It is longer than the bytes in which it has to lie.
    #[error("a pattern of {len} bytes within a depth of {depth}; expected a depth of {len} or more")]
    Depth {
        /// Bytes of the pattern.
        len: usize,
        /// The depth.
        depth: u32,
    },
    /// The set is full.
    #[error("more than {} patterns or {} bytes of them", Patterns::MAX_PATTERNS, Patterns::MAX_BYTES)]
    Full,
}

/// Patterns, numbered in the order in which they come. The same bytes may come several times.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Patterns {
    bytes: Vec<u8>,
    entries: Vec<Entry>,
    /// Those of each pattern; empty while all may lie anywhere.
    bounds: Vec<Bounds>,
    any_ignores_case: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    begin: u32,
    len: u8,
    ignore_case: bool,
}

impl Patterns {
    /// The longest pattern, in bytes.
    pub const MAX_LEN: usize = 255;
    /// The most patterns of a set.
    pub const MAX_PATTERNS: usize = 1 << 24;
    /// The most bytes of all patterns together.
    pub const MAX_BYTES: usize = 1 << 30;

    /// None yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a pattern; its number is how many there were before.
    ///
    /// # Errors
    ///
    /// A pattern that no set can have, or one too many; the set is as before.
    pub fn push(&mut self, pattern: Pattern<'_>) -> Result<u32, Refused> {
        let Pattern { bytes, ignore_case, bounds } = pattern;
        let len = match bytes.len() {
            0 => return Err(Refused::Empty),
            len => u8::try_from(len).map_err(|_| Refused::Long(len))?,
        };
        if bounds.depth < u32::from(len) {
            return Err(Refused::Depth { len: len.into(), depth: bounds.depth });
        }
        if self.len() == Self::MAX_PATTERNS || self.bytes.len() + bytes.len() > Self::MAX_BYTES {
            return Err(Refused::Full);
        }
        if bounds != Bounds::ANYWHERE && self.bounds.is_empty() {
            self.bounds.resize(self.len(), Bounds::ANYWHERE);
        }
        if bounds != Bounds::ANYWHERE || !self.bounds.is_empty() {
            self.bounds.push(bounds);
        }
        let number = self.len() as u32;
        let begin = self.bytes.len() as u32;
        self.bytes.extend_from_slice(bytes);
        self.any_ignores_case |= ignore_case;
        self.entries.push(Entry { begin, len, ignore_case });
        Ok(number)
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// One of them.
    ///
    /// # Panics
    ///
    /// Where there is none of this number.
    #[inline]
    pub fn get(&self, number: u32) -> Pattern<'_> {
        let Entry { begin, len, ignore_case } = self.entries[number as usize];
        let bytes = &self.bytes[begin as usize..][..usize::from(len)];
        let bounds = self.bounds.get(number as usize).copied().unwrap_or(Bounds::ANYWHERE);
        Pattern { bytes, ignore_case, bounds }
    }

    /// Where the bytes of a pattern begin among those of all.
    pub(crate) fn begin(&self, number: u32) -> u32 {
        self.entries[number as usize].begin
    }

    /// So many bytes from there on.
    #[inline(always)]
    pub(crate) fn bytes(&self, begin: u32, len: usize) -> &[u8] {
        &self.bytes[begin as usize..][..len]
    }

    /// Has the processor load bytes.
    #[inline(always)]
    pub(crate) fn prefetch(&self, begin: u32) {
        prefetch_at(&self.bytes, begin as usize);
    }

    /// Whether a pattern may be one that ignores case or has bounds.
    #[inline(always)]
    pub(crate) fn are_plain(&self) -> bool {
        self.bounds.is_empty() && !self.any_ignores_case
    }

    /// All, in the order of their numbers.
    pub fn iter(&self) -> impl Iterator<Item = Pattern<'_>> {
        (0..self.len() as u32).map(|number| self.get(number))
    }

    /// Whether one of them ignores case.
    pub(crate) fn any_ignores_case(&self) -> bool {
        self.any_ignores_case
    }

    /// Hands out bytes that are those of these patterns, in this order and with these options, alone.
    pub(crate) fn digest(&self, mut update: impl FnMut(&[u8])) {
        update(&(self.len() as u64).to_le_bytes());
        let mut chunk = Vec::new();
        for entries in self.entries.chunks(4096) {
            chunk.clear();
            entries.iter().for_each(|entry| chunk.extend([entry.len, entry.ignore_case.into()]));
            update(&chunk);
        }
        update(&self.bytes);
        for Bounds { offset, depth } in &self.bounds {
            update(&offset.to_le_bytes());
            update(&depth.to_le_bytes());
        }
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        self.bytes.capacity()
            + self.entries.capacity() * size_of::<Entry>()
            + self.bounds.capacity() * size_of::<Bounds>()
    }
}

impl<'a> FromIterator<&'a [u8]> for Patterns {
    /// Case-sensitive patterns that may lie anywhere.
    ///
    /// # Panics
    ///
    /// Where [`Patterns::push`] fails.
    fn from_iter<I: IntoIterator<Item = &'a [u8]>>(all: I) -> Self {
        let mut patterns = Self::new();
        for bytes in all {
            patterns.push(Pattern::new(bytes)).expect("a pattern of 1 to 255 bytes");
        }
        patterns
    }
}
