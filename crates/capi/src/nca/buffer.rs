//! Buffers of packets: offsets first, then contents, in one piece of memory that the library owns and the program may fill.
//!
//! | bytes | what |
//! | --- | --- |
//! | 0 to 4 × (packets + 1) | for each packet where it begins, then where the last one ends: `u32`, counted from the beginning of the memory |
//! | behind, from a multiple of 64 on | the packets, one after the other |
//!
//! The program may write there at any time, whatever it was told. So the library goes by a copy of the offsets, which it has checked, and
//! nothing but a packet's contents is read from there.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::slice;
use std::sync::{Mutex, MutexGuard, PoisonError};

use packetloom_device::{Device, Shared};

use crate::status::*;

/// Room for packets' contents: so many bytes for each packet of a buffer, which a long packet may take from short ones.
pub(super) const BYTES_PER_PACKET: usize = 2048;

/// Where a buffer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// The program fills it.
    Filling,
    /// The library has it.
    Ready,
    /// Its results can be read.
    Done,
}

/// What is known of a buffer.
#[derive(Debug)]
pub(super) struct Contents {
    pub(super) phase: Phase,
    /// Where packets begin, and where the last one ends.
    pub(super) offsets: Vec<u32>,
    /// When it was ready, in nanoseconds since 1970.
    pub(super) time: u64,
    /// For each function of the service chain, its results.
    pub(super) results: Vec<Vec<u8>>,
    /// Why there are none.
    pub(super) fault: Option<Fault>,
}

impl Contents {
    pub(super) fn packets(&self) -> usize {
        self.offsets.len() - 1
    }
}

/// A buffer of a stream.
pub(super) struct Buffer {
    base: NonNull<u8>,
    /// Bytes in all.
    size: u32,
    /// The first byte of contents.
    first: u32,
    max_packets: usize,
    contents: Mutex<Contents>,
    /// What the base is that of: memory from which a device copies, or none.
    pub(super) shared: Option<Mutex<Shared>>,
}

// SAFETY: the memory is not bound to a thread. It is written with the contents locked, while the program fills it, and read while the library has it.
unsafe impl Send for Buffer {}
// SAFETY: as above.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// For so many packets; in memory from which the device copies, if there is one.
    pub(super) fn new(max_packets: usize, device: Option<&Device>) -> Outcome<Self> {
        let first = (4 * (max_packets + 1)).next_multiple_of(64);
        let size = first + max_packets * BYTES_PER_PACKET;
        let (base, shared) = match device {
            Some(device) => {
                let shared = device.share(size)?;
                (shared.host(), Some(Mutex::new(shared)))
            }
            None => {
                // SAFETY: the size is not 0.
                let base = unsafe { alloc_zeroed(layout(size)) };
                let base = NonNull::new(base).ok_or_else(|| {
                    Fault::new(PL_ERROR_MEMORY, format!("no memory for a buffer of {size} bytes"))
                })?;
                (base, None)
            }
        };
        let contents = Contents {
            phase: Phase::Filling,
            offsets: vec![first as u32],
            time: 0,
            results: Vec::new(),
            fault: None,
        };
        let buffer = Self {
            base,
            size: size as u32,
            first: first as u32,
            max_packets,
            contents: Mutex::new(contents),
            shared,
        };
        buffer.write_offset(0, first as u32);
        Ok(buffer)
    }

    pub(super) fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub(super) fn size(&self) -> u32 {
        self.size
    }

    pub(super) fn first(&self) -> u32 {
        self.first
    }

    pub(super) fn max_packets(&self) -> usize {
        self.max_packets
    }

    /// What is known of it. Nothing that is done with it leaves half of a change.
    pub(super) fn lock(&self) -> MutexGuard<'_, Contents> {
        self.contents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The same, if the program has it.
    pub(super) fn filling(&self) -> Outcome<MutexGuard<'_, Contents>> {
        let contents = self.lock();
        match contents.phase {
            Phase::Filling => Ok(contents),
            Phase::Ready => Err(Fault::new(
                PL_ERROR_BUSY,
                "the buffer is being processed; expected one whose results were read",
            )),
            Phase::Done => {
                Err(Fault::new(PL_ERROR_BUSY, "the buffer has results; expected them to be read first"))
            }
        }
    }

    /// Copies packets behind those that there are: all or none.
    ///
    /// # Safety
    /// At `packets` are as many bytes as the packets have together, which are no part of the buffer.
    pub(super) unsafe fn add(
        &self,
        contents: &mut Contents,
        packets: *const u8,
        lens: &[i32],
    ) -> Outcome<()> {
        let mut bytes = 0u64;
        for (index, &len) in lens.iter().enumerate() {
            let len =
                u64::try_from(len).map_err(|_| Fault::argument(format!("packet {index} has {len} bytes")))?;
            bytes += len;
        }
        let (there, end) = (contents.packets(), self.end(contents));
        if lens.len() > self.max_packets - there || bytes > u64::from(self.size - end) {
            let text = format!(
                "no room for {} packets of {bytes} bytes: the buffer has {there} of {} packets and {} bytes left",
                lens.len(),
                self.max_packets,
                self.size - end
            );
            return Err(Fault::new(PL_ERROR_FULL, text));
        }
        // SAFETY: the bytes are there, says the caller, and there is room for them behind `end`. Nobody else writes: the contents are locked.
        unsafe { packets.copy_to_nonoverlapping(self.base.as_ptr().add(end as usize), bytes as usize) };
        let mut end = end;
        for &len in lens {
            end += len as u32;
            self.write_offset(contents.offsets.len(), end);
            contents.offsets.push(end);
        }
        Ok(())
    }

    /// Takes packets that the program has written itself.
    pub(super) fn set(&self, contents: &mut Contents, packets: usize) -> Outcome<()> {
        if packets > self.max_packets {
            let text = format!("{packets} packets; expected {} at most", self.max_packets);
            return Err(Fault::new(PL_ERROR_FULL, text));
        }
        let mut offsets = Vec::with_capacity(packets + 1);
        for index in 0..=packets {
            // SAFETY: there are so many offsets. The program may write them at the same time, so they are read once, as they are.
            let offset = unsafe { self.base.cast::<u32>().add(index).read_volatile() };
            let least = offsets.last().copied().unwrap_or(self.first);
            if offset < least || offset > self.size || (index == 0 && offset != self.first) {
                let text = format!("offset {index} is {offset}; expected {least} to {}", self.size);
                return Err(Fault::argument(text));
            }
            offsets.push(offset);
        }
        contents.offsets = offsets;
        Ok(())
    }

    /// Makes it empty.
    pub(super) fn clear(&self, contents: &mut Contents) {
        contents.phase = Phase::Filling;
        contents.offsets.truncate(1);
        // Their memory is for the next ones.
        contents.results.iter_mut().for_each(Vec::clear);
        contents.fault = None;
    }

    /// The packets with these offsets, which were checked.
    ///
    /// # Safety
    /// The library has the buffer, and the program leaves it alone as it was told.
    pub(super) unsafe fn packets<'a>(&'a self, offsets: &'a [u32]) -> Vec<&'a [u8]> {
        let packet = |pair: &[u32]| {
            // SAFETY: the offsets ascend and lie inside the memory; nobody writes there now.
            unsafe {
                let begin = self.base.as_ptr().add(pair[0] as usize);
                slice::from_raw_parts(begin, (pair[1] - pair[0]) as usize)
            }
        };
        offsets.windows(2).map(packet).collect()
    }

    fn end(&self, contents: &Contents) -> u32 {
        contents.offsets.last().copied().unwrap_or(self.first)
    }

    fn write_offset(&self, index: usize, offset: u32) {
        debug_assert!(index <= self.max_packets);
        // SAFETY: there is one more offset than packets, and the memory is aligned.
        unsafe { self.base.cast::<u32>().add(index).write(offset) };
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.shared.is_none() {
            // SAFETY: it was allocated so.
            unsafe { dealloc(self.base.as_ptr(), layout(self.size as usize)) };
        }
    }
}

fn layout(size: usize) -> Layout {
    Layout::from_size_align(size, 64).expect("less than 4 GiB")
}
