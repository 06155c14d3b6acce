//! Memory-mapped files: the one place of this crate with unsafe code.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;

use memmap2::{Advice, Mmap};

/// How far ahead of the reader pages are brought in: one call per this many bytes instead of a page fault per 64 KiB.
const READ_AHEAD: usize = 4 << 20;

/// A file mapped for reading from start to end.
#[derive(Debug)]
pub(crate) struct Map(Mmap);

impl Map {
    /// Maps the whole of a regular file.
    pub(crate) fn new(file: &File) -> io::Result<Self> {
        // SAFETY: the mapping is private and only read. The bytes may change if another process writes to the
        // file meanwhile; every reader of them checks lengths where it uses them and keeps no reference whose
        // validity depends on their value. A file that is shortened meanwhile raises SIGBUS, which ends the
        // process: documented, and avoided by reading the file through standard input.
        let map = unsafe { Mmap::map(file)? };
        // Only hints: where the kernel does not know them, reading still works.
        let _ = map.advise(Advice::Sequential);
        Ok(Self(map))
    }

    /// Brings in the pages after `position`, once in [`READ_AHEAD`] bytes; returns how far pages are in.
    pub(crate) fn read_ahead(&self, position: usize, present: usize) -> usize {
        if position + READ_AHEAD / 2 < present || present >= self.0.len() {
            return present;
        }
        let start = position.max(present);
        let len = READ_AHEAD.min(self.0.len().saturating_sub(start));
        let _ = self.0.advise_range(Advice::PopulateRead, start, len);
        start + len
    }
}

impl AsRef<[u8]> for Map {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}
