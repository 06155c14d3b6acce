//! Memory-mapped files: the one place of this crate with unsafe code.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use memmap2::{Advice, Mmap, UncheckedAdvice};

/// Bytes of a mapped file whose pages are brought in with one call, instead of a page fault for each few of them.
const WINDOW: usize = 1 << 20;
/// Windows that are brought in before they are read: several threads may be at that.
const AHEAD: usize = 16;
/// Windows that are let go of together, which all processors are told of; and those before them that somebody may still read.
const LET_GO: usize = 16;
const BEHIND: usize = 64;

/// A file mapped for reading from start to end.
#[derive(Debug)]
pub(crate) struct Map(Mmap);

impl Map {
    /// Maps the whole of a regular file.
    pub(crate) fn new(file: &File) -> io::Result<Self> {
        // SAFETY: the mapping is of the file's own pages (MAP_SHARED, PROT_READ), and nothing here writes to them. Rust takes bytes behind a
        // reference to stay as they are, and no file can be made to: it is relied on that nobody writes to a capture or shortens it
        // while it is read, which the documents ask for. Where somebody writes to it all the same, every value of a byte is a valid one, and
        // readers check each length and offset where they use it: other packets come of it, or a capture that counts as damaged.
        // One that is shortened raises SIGBUS where a page is gone, which ends the process. Reading it through standard input
        // avoids both.
        let map = unsafe { Mmap::map(file)? };
        // Only hints: where the kernel does not know them, reading still works.
        let _ = map.advise(Advice::Sequential);
        Ok(Self(map))
    }

    /// What is to be done for somebody who reads at a position, with so many windows brought in so far.
    pub(crate) fn paging(self: &Arc<Self>, position: usize, present: &mut usize) -> Option<Paging> {
        let bring_in = (*present).max(position / WINDOW);
        if bring_in > position / WINDOW + AHEAD || bring_in * WINDOW >= self.0.len() {
            return None;
        }
        *present = bring_in + 1;
        let let_go = (bring_in.is_multiple_of(LET_GO))
            .then(|| bring_in.checked_sub(AHEAD + BEHIND + LET_GO))
            .flatten();
        Some(Paging { map: Arc::clone(self), bring_in, let_go })
    }

    /// The bytes of some windows; none of those behind the end.
    fn range(&self, windows: Range<usize>) -> Range<usize> {
        let at = |window: usize| window.saturating_mul(WINDOW).min(self.0.len());
        at(windows.start)..at(windows.end)
    }
}

/// Pages of a mapped file that are to be brought in before they are read, and such that were read and are to be let go of. The one who
/// reads may leave that to another thread.
#[derive(Debug)]
pub struct Paging {
    map: Arc<Map>,
    bring_in: usize,
    let_go: Option<usize>,
}

impl Paging {
    /// Does it. These are hints: where the kernel does not know them, reading still works.
    pub fn run(self) {
        let Self { map, bring_in, let_go } = self;
        let range = map.range(bring_in..bring_in + 1);
        let _ = map.0.advise_range(Advice::PopulateRead, range.start, range.len());
        if let Some(first) = let_go {
            let range = map.range(first..first + LET_GO);
            // SAFETY: the mapping is of a file and is only read, so whoever reads there again finds the file's bytes, after a page fault.
            let _ =
                unsafe { map.0.unchecked_advise_range(UncheckedAdvice::DontNeed, range.start, range.len()) };
        }
    }
}

impl AsRef<[u8]> for Map {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    /// Each window is brought in once, some before they are read, and let go of once, long after.
    #[test]
    fn windows_come_and_go() {
        let mut file = tempfile::tempfile().expect("a file");
        let windows = 150;
        file.set_len((windows * WINDOW - 5) as u64).expect("room");
        file.write_all(b"begin").expect("written");
        let map = Arc::new(Map::new(&file).expect("mapped"));
        let (mut present, mut brought, mut gone) = (0, Vec::new(), Vec::new());
        for position in (0..map.0.len()).step_by(WINDOW / 3) {
            while let Some(paging) = map.paging(position, &mut present) {
                let now = position / WINDOW;
                assert!((now..=now + AHEAD).contains(&paging.bring_in), "{paging:?} at {now}");
                brought.push(paging.bring_in);
                if let Some(first) = paging.let_go {
                    assert!(first + LET_GO + BEHIND <= now, "{paging:?} at {now}");
                    gone.extend(first..first + LET_GO);
                }
                paging.run();
            }
        }
        assert_eq!(brought, (0..windows).collect::<Vec<_>>());
        assert_eq!(gone, (0..gone.len()).collect::<Vec<_>>());
        assert!(gone.len() >= LET_GO);
        // What was let go of is still there.
        assert_eq!(&(*map).as_ref()[..5], b"begin");
    }
}
