//! Memory for tables that are read at random: in huge pages where the system has such, or the TLB would miss at nearly
//! every access.

use std::ops::{Deref, DerefMut, Range};
use std::sync::atomic::AtomicU64;

use memmap2::{MmapMut, MmapRaw};
use packetloom_memory::huge_pages;

/// Bytes for which there are more small pages than a first-level TLB has room for.
const SMALL: usize = 128 << 10;

/// What a cache holds at a time.
pub(crate) type Line = [u64; 8];

/// Memory of so many bytes, all 0 at first, and where they are in it, if the system gives any. It is taken as it is written, if the system
/// does so. What is small begins where a small page does.
fn mapped(bytes: usize) -> Option<(MmapMut, Range<usize>)> {
    if bytes >= SMALL {
        return huge_pages(bytes);
    }
    Some((MmapMut::map_anon(bytes.max(1)).ok()?, 0..bytes))
}

/// Lines of 64 bytes, all 0 at first.
#[derive(Debug)]
pub(crate) enum Lines {
    Mapped { memory: MmapMut, range: Range<usize> },
    Own(Vec<Line>),
}

impl Lines {
    /// So many.
    pub(crate) fn zeroed(lines: usize) -> Self {
        match mapped(lines * size_of::<Line>()) {
            Some((memory, range)) => Self::Mapped { memory, range },
            None => Self::Own(vec![[0; 8]; lines]),
        }
    }

    /// So many, with addresses for up to `most`.
    pub(crate) fn reserved(lines: usize, most: usize) -> Self {
        match mapped(most.max(lines) * size_of::<Line>()) {
            Some((memory, Range { start, .. })) => {
                Self::Mapped { memory, range: start..start + lines * size_of::<Line>() }
            }
            None => Self::zeroed(lines),
        }
    }

    /// Makes them more where they are, if there are addresses for so many.
    pub(crate) fn extend(&mut self, lines: usize) -> bool {
        match self {
            Self::Mapped { memory, range } => {
                let end = range.start + lines * size_of::<Line>();
                let fits = end <= memory.len();
                if fits {
                    range.end = end;
                }
                fits
            }
            Self::Own(_) => false,
        }
    }
}

impl Deref for Lines {
    type Target = [Line];

    #[inline]
    fn deref(&self) -> &[Line] {
        match self {
            Self::Mapped { memory, range } => bytemuck::cast_slice(&memory[range.clone()]),
            Self::Own(lines) => lines,
        }
    }
}

impl DerefMut for Lines {
    #[inline]
    fn deref_mut(&mut self) -> &mut [Line] {
        match self {
            Self::Mapped { memory, range } => bytemuck::cast_slice_mut(&mut memory[range.clone()]),
            Self::Own(lines) => lines,
        }
    }
}

/// Words, all 0 at first, that some read while another one writes them. What says where they are is away from what is written.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) enum Words {
    Mapped { memory: MmapRaw, range: Range<usize> },
    Own(Vec<AtomicU64>),
}

impl Words {
    /// So many.
    pub(crate) fn zeroed(words: usize) -> Self {
        match mapped(words * 8) {
            Some((memory, range)) => Self::Mapped { memory: memory.into(), range },
            None => Self::Own((0..words).map(|_| AtomicU64::new(0)).collect()),
        }
    }
}

impl Deref for Words {
    type Target = [AtomicU64];

    #[inline]
    #[allow(unsafe_code)]
    fn deref(&self) -> &[AtomicU64] {
        match self {
            Self::Mapped { memory, range } => {
                let first = memory.as_mut_ptr().wrapping_add(range.start).cast::<AtomicU64>();
                // SAFETY: the range lies in this memory, which is mapped as long as `self` is there, begins where a page does, and
                // was zeros at first; nothing else leads there.
                unsafe { std::slice::from_raw_parts(first, range.len() / 8) }
            }
            Self::Own(words) => words,
        }
    }
}
