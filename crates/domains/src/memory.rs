//! The memory of a set: one piece, in huge pages if it is large. Without them, the TLB would miss at nearly every access.

use std::ops::Range;

use memmap2::MmapMut;
use packetloom_memory::huge_pages;

/// Bytes of which a set is put into huge pages.
const LARGE: usize = 1 << 20;
/// Bytes of a huge page.
const PAGE: usize = 2 << 20;

enum Memory {
    Small(Box<[u64]>),
    Huge(MmapMut, Range<usize>),
}

/// Three arrays.
pub(crate) struct Arrays {
    memory: Memory,
    /// Bytes of the first one, and of the first two, and of all.
    ends: [usize; 3],
}

impl Arrays {
    pub(crate) fn new(words: &[u64], numbers: &[u32], bytes: &[u8]) -> Self {
        let first = size_of_val(words);
        let second = first + size_of_val(numbers);
        let ends = [first, second, second + bytes.len()];
        let huge = if ends[2] >= LARGE { huge_pages(ends[2]) } else { None };
        let memory = match huge {
            Some((memory, range)) => Memory::Huge(memory, range),
            None => Memory::Small(vec![0; ends[2].div_ceil(8)].into()),
        };
        let mut arrays = Self { memory, ends };
        let own = match &mut arrays.memory {
            Memory::Small(words) => bytemuck::cast_slice_mut(words),
            Memory::Huge(memory, range) => &mut memory[range.clone()],
        };
        own[..first].copy_from_slice(bytemuck::cast_slice(words));
        own[first..second].copy_from_slice(bytemuck::cast_slice(numbers));
        own[second..ends[2]].copy_from_slice(bytes);
        arrays
    }

    /// The arrays.
    #[inline]
    pub(crate) fn get(&self) -> (&[u64], &[u32], &[u8]) {
        let [first, second, third] = self.ends;
        let all = match &self.memory {
            Memory::Small(words) => bytemuck::cast_slice(words),
            Memory::Huge(memory, range) => &memory[range.clone()],
        };
        (bytemuck::cast_slice(&all[..first]), bytemuck::cast_slice(&all[first..second]), &all[second..third])
    }

    /// Bytes of memory.
    pub(crate) fn bytes(&self) -> usize {
        match &self.memory {
            Memory::Small(words) => size_of_val(&**words),
            Memory::Huge(_, range) => range.len().next_multiple_of(PAGE),
        }
    }
}
