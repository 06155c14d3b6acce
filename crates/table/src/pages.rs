//! Memory for tables that are read at random: in huge pages where the system has such, or the TLB would miss at nearly
//! every access.

use std::ops::{Deref, DerefMut, Range};

use memmap2::MmapMut;

const HUGE_PAGE: usize = 2 << 20;

/// What a cache holds at a time.
pub(crate) type Line = [u64; 8];

/// Lines of 64 bytes, all 0 at first. Memory is taken as it is written, if the system does so.
#[derive(Debug)]
pub(crate) enum Lines {
    Mapped { memory: MmapMut, range: Range<usize> },
    Own(Vec<Line>),
}

impl Lines {
    /// So many.
    pub(crate) fn zeroed(lines: usize) -> Self {
        let bytes = lines * 64;
        let is_small = bytes < HUGE_PAGE;
        // One more page than is needed, so as to begin where a page begins; what is small begins where a small one does.
        let room = if is_small { bytes.max(1) } else { bytes.next_multiple_of(HUGE_PAGE) + HUGE_PAGE };
        match MmapMut::map_anon(room) {
            Ok(memory) if is_small => Self::Mapped { memory, range: 0..bytes },
            Ok(memory) => {
                let at = memory.as_ptr().align_offset(HUGE_PAGE).min(HUGE_PAGE);
                // Only a hint.
                #[cfg(target_os = "linux")]
                let _ = memory.advise(memmap2::Advice::HugePage);
                Self::Mapped { memory, range: at..at + bytes }
            }
            Err(_) => Self::Own(vec![[0; 8]; lines]),
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
