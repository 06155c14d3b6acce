//! Tables in huge pages: an index of a few megabytes would otherwise miss in the TLB at nearly every access.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, Range};
use std::sync::Arc;

use bytemuck::{AnyBitPattern, NoUninit};
use memmap2::{Mmap, MmapMut};
use packetloom_memory::huge_pages;

/// A table: in memory of its own while it is being made, side by side with the other tables of its index afterwards.
pub(crate) enum Slab<T> {
    /// Being made.
    Own(Vec<T>),
    /// Made.
    Placed { memory: Arc<Mmap>, range: Range<usize>, of: PhantomData<T> },
    /// Never finished: it can be written as long as it lives.
    Open { memory: MmapMut, range: Range<usize>, of: PhantomData<T> },
}

impl<T: AnyBitPattern> Deref for Slab<T> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        match self {
            Self::Own(items) => items,
            Self::Placed { memory, range, .. } => bytemuck::cast_slice(&memory[range.clone()]),
            Self::Open { memory, range, .. } => bytemuck::cast_slice(&memory[range.clone()]),
        }
    }
}

impl<T: AnyBitPattern + NoUninit> Slab<T> {
    /// A table of `len` zeros that can be written, in huge pages where the system has such.
    pub(crate) fn open(len: usize) -> Self {
        let bytes = len * size_of::<T>();
        match huge_pages(bytes) {
            Some((memory, range)) => Self::Open { memory, range, of: PhantomData },
            None => Self::Own(vec![T::zeroed(); len]),
        }
    }

    /// Writes an item; nothing where the table is finished, or has no such index.
    pub(crate) fn set(&mut self, index: usize, item: T) {
        let items = match self {
            Self::Own(items) => &mut items[..],
            Self::Open { memory, range, .. } => bytemuck::cast_slice_mut(&mut memory[range.clone()]),
            Self::Placed { .. } => &mut [],
        };
        if let Some(to) = items.get_mut(index) {
            *to = item;
        }
    }
}

impl<T> From<Vec<T>> for Slab<T> {
    fn from(items: Vec<T>) -> Self {
        Self::Own(items)
    }
}

impl<T> fmt::Debug for Slab<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Slab")
    }
}

/// Something with tables.
pub(crate) trait Tables {
    /// Shows each of them to `visit`, always in the same order.
    fn each(&mut self, visit: &mut dyn FnMut(&mut dyn Place));
}

/// A table of any type.
pub(crate) trait Place {
    /// Its content.
    fn bytes(&self) -> &[u8];

    /// Moves it to where the content was copied to.
    fn place(&mut self, memory: &Arc<Mmap>, range: Range<usize>);
}

impl<T: AnyBitPattern + NoUninit> Place for Slab<T> {
    fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(self)
    }

    fn place(&mut self, memory: &Arc<Mmap>, range: Range<usize>) {
        *self = Self::Placed { memory: memory.clone(), range, of: PhantomData };
    }
}

/// Tables begin at cache lines.
const ALIGNMENT: usize = 64;

/// Copies all tables side by side into huge pages, where the system has such; where it gives no memory, they stay as they
/// are.
pub(crate) fn place(tables: &mut dyn Tables) {
    let mut total = 0;
    tables.each(&mut |table| total += table.bytes().len().next_multiple_of(ALIGNMENT));
    let Some((mut memory, Range { start: mut at, .. })) = huge_pages(total) else { return };
    let mut ranges = Vec::new();
    tables.each(&mut |table| {
        let bytes = table.bytes();
        memory[at..][..bytes.len()].copy_from_slice(bytes);
        ranges.push(at..at + bytes.len());
        at += bytes.len().next_multiple_of(ALIGNMENT);
    });
    let Ok(memory) = memory.make_read_only() else { return };
    let memory = Arc::new(memory);
    let mut ranges = ranges.into_iter();
    tables.each(&mut |table| {
        if let Some(range) = ranges.next() {
            table.place(&memory, range);
        }
    });
}
