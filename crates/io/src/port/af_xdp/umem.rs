//! The memory in which frames lie on their way from and to the kernel (UMEM): chunks of equal size, each in one of two regions.
//!
//! No Rust slice refers to this memory: bytes are copied in and out, so that what the kernel writes at a wrong moment makes wrong bytes and
//! nothing worse.
#![allow(unsafe_code)]

use std::io;
use std::ptr;
use std::sync::Arc;

use super::ring::Mapping;

/// Chunks that lie side by side and belong to one owner.
#[derive(Debug)]
pub(super) struct Region {
    mapping: Arc<Mapping>,
    /// Where it begins in the mapping, and ends.
    start: usize,
    end: usize,
    chunk: usize,
}

/// Makes memory for two owners: the chunks of the first one come first. A chunk has `chunk` bytes, 2,048 or 4,096.
pub(super) fn regions(first: usize, second: usize, chunk: usize) -> io::Result<(Region, Region)> {
    let (middle, end) = (first * chunk, (first + second) * chunk);
    let mapping = Arc::new(Mapping::anonymous(end)?);
    let region = |start, end| Region { mapping: mapping.clone(), start, end, chunk };
    Ok((region(0, middle), region(middle, end)))
}

impl Region {
    /// The same chunks for a kernel that a test plays.
    #[cfg(test)]
    pub(super) fn again(&self) -> Self {
        Self { mapping: self.mapping.clone(), ..*self }
    }

    /// Address and length of the memory that the region is part of.
    pub(super) fn memory(&self) -> (u64, u64) {
        (self.mapping.start().as_ptr().expose_provenance() as u64, self.mapping.len() as u64)
    }

    /// Bytes of a chunk.
    pub(super) fn chunk(&self) -> usize {
        self.chunk
    }

    /// Chunks of the region.
    pub(super) fn chunks(&self) -> usize {
        (self.end - self.start) / self.chunk
    }

    /// Where a chunk begins in the memory, as the kernel counts.
    pub(super) fn address(&self, chunk: usize) -> u64 {
        (self.start + chunk * self.chunk) as u64
    }

    /// The chunk in which something begins, and how far behind that; `None` where it does not lie in one chunk of the region.
    pub(super) fn locate(&self, address: u64, len: u32) -> Option<(usize, usize)> {
        let at = usize::try_from(address).ok()?.checked_sub(self.start)?;
        let (chunk, within) = (at / self.chunk, at % self.chunk);
        (chunk < self.chunks() && within + len as usize <= self.chunk).then_some((chunk, within))
    }

    /// Copies bytes of a chunk out.
    ///
    /// # Panics
    ///
    /// They do not lie in the region.
    #[inline]
    pub(super) fn read(&self, chunk: usize, within: usize, to: &mut [u8]) {
        let from = self.place(chunk, within, to.len());
        // SAFETY: within the mapping, as `place` has made sure, and `to` is memory of ours.
        unsafe { ptr::copy_nonoverlapping(from.cast_const(), to.as_mut_ptr(), to.len()) };
    }

    /// Copies bytes into a chunk.
    ///
    /// # Panics
    ///
    /// They do not fit into the region.
    #[inline]
    pub(super) fn write(&mut self, chunk: usize, within: usize, from: &[u8]) {
        let to = self.place(chunk, within, from.len());
        // SAFETY: within the mapping, as `place` has made sure, and of this region alone, which is borrowed for it.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), to, from.len()) };
    }

    fn place(&self, chunk: usize, within: usize, len: usize) -> *mut u8 {
        let at = self.start + chunk * self.chunk + within;
        assert!(at <= self.end && len <= self.end - at, "{len} bytes at {within} of chunk {chunk}");
        // SAFETY: within the mapping.
        unsafe { self.mapping.start().as_ptr().add(at) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_lie_side_by_side_and_hold_what_was_written() {
        let (mut first, mut second) = regions(3, 2, 2_048).expect("memory");
        assert_eq!((first.chunks(), second.chunks(), first.memory()), (3, 2, second.memory()));
        assert_eq!((first.address(2), second.address(0)), (4_096, 6_144));
        first.write(2, 2_040, &[1; 8]);
        second.write(0, 0, &[2; 8]);
        let mut bytes = [0; 8];
        first.read(2, 2_040, &mut bytes);
        assert_eq!(bytes, [1; 8]);
        second.read(0, 0, &mut bytes);
        assert_eq!(bytes, [2; 8]);
    }

    #[test]
    fn what_lies_elsewhere_is_not_found() {
        let (first, second) = regions(3, 2, 2_048).expect("memory");
        assert_eq!(first.locate(2_048 + 256, 1_514), Some((1, 256)));
        assert_eq!(first.locate(2_048 + 256, 1_792), Some((1, 256)));
        for (address, len) in [(2_048 + 256, 1_793), (6_144, 1), (u64::MAX, 1), (1 << 40, 0), (0, u32::MAX)] {
            assert_eq!(first.locate(address, len), None, "{len} at {address}");
        }
        assert_eq!(second.locate(6_144 + 5, 1), Some((0, 5)));
        assert_eq!((second.locate(6_143, 1), second.locate(10_240, 1)), (None, None));
    }

    #[test]
    #[should_panic(expected = "bytes at 2047 of chunk 2")]
    fn a_region_is_not_left() {
        let (first, _) = regions(3, 2, 2_048).expect("memory");
        first.read(2, 2_047, &mut [0; 2]);
    }
}
