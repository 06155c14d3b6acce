//! Huge pages: without them, the TLB would miss at nearly every access to a table of a few megabytes.

use std::ops::Range;

use memmap2::{MmapMut, MmapOptions};

const HUGE_PAGE: usize = 2 << 20;

/// Maps so many bytes, all 0 at first, where a huge page begins, and says where in the mapping they are; none where the system gives no memory.
/// The system takes memory as it is written to, in huge pages if it has such.
pub fn huge_pages(bytes: usize) -> Option<(MmapMut, Range<usize>)> {
    // One more page than is needed, so as to begin where a page begins.
    let room = bytes.checked_next_multiple_of(HUGE_PAGE)?.checked_add(HUGE_PAGE)?;
    let mut options = MmapOptions::new();
    options.len(room);
    // Miri has neither this nor hints.
    if !cfg!(miri) {
        options.no_reserve_swap();
    }
    let memory = options.map_anon().ok()?;
    let at = memory.as_ptr().align_offset(HUGE_PAGE).min(HUGE_PAGE);
    // Only a hint.
    #[cfg(all(target_os = "linux", not(miri)))]
    let _ = memory.advise(memmap2::Advice::HugePage);
    Some((memory, at..at + bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_zero_and_begins_where_a_huge_page_does() {
        // What is interpreted looks at few bytes.
        let sizes: &[usize] =
            if cfg!(miri) { &[0, 1, 4_097] } else { &[0, 1, HUGE_PAGE - 1, HUGE_PAGE, 3 * HUGE_PAGE + 5] };
        for &bytes in sizes {
            let (mut memory, range) = huge_pages(bytes).expect("some memory");
            let own = &mut memory[range];
            assert!(own.len() == bytes && own.as_ptr().addr().is_multiple_of(HUGE_PAGE));
            assert!(own.iter().all(|&byte| byte == 0));
            own.fill(7);
        }
        assert!(huge_pages(usize::MAX - 5).is_none());
    }
}
