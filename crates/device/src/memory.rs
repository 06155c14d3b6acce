//! Memory of a device, and memory of the host that a device can reach.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use packetloom_memory::prefetch_address;

use crate::Error;
use crate::backend::{Handle, SharedMemory};
use crate::opened::{Opened, Thing};

/// Memory of a device. Clones are the same memory.
#[derive(Clone, Debug)]
pub struct Memory(pub(crate) Arc<Allocation>);

#[derive(Debug)]
pub(crate) struct Allocation {
    pub(crate) backend: Arc<Opened>,
    pub(crate) handle: Handle,
    pub(crate) bytes: usize,
}

impl Memory {
    pub(crate) fn new(backend: &Arc<Opened>, bytes: usize) -> Result<Self, Error> {
        // No driver has memory of no bytes.
        let handle = backend.allocate(bytes.max(1))?;
        Ok(Self(Arc::new(Allocation { backend: backend.clone(), handle, bytes })))
    }

    /// Bytes it has.
    pub fn len(&self) -> usize {
        self.0.bytes
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.0.bytes == 0
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // SAFETY: nobody has it any more: queues hold it until they are finished.
        unsafe { self.backend.give_back(Thing::Memory(self.handle)) };
    }
}

/// Memory of the host that a device copies from and to, and whose kernels may use it where it lies. Clones are the same
/// memory.
///
/// The device may change it at any time. So it is never lent as a slice: bytes are copied in and out, and what is being
/// written meanwhile may come out in part. Words are read and written whole, in order ([`Shared::load`], [`Shared::store`]).
#[derive(Clone, Debug)]
pub struct Shared(pub(crate) Arc<SharedAllocation>);

#[derive(Debug)]
pub(crate) struct SharedAllocation {
    pub(crate) backend: Arc<Opened>,
    pub(crate) memory: SharedMemory,
    pub(crate) bytes: usize,
}

// SAFETY: the memory is not bound to a thread, and is accessed through raw copies and atomics alone.
unsafe impl Send for SharedAllocation {}
// SAFETY: as above.
unsafe impl Sync for SharedAllocation {}

impl Shared {
    pub(crate) fn new(backend: &Arc<Opened>, bytes: usize) -> Result<Self, Error> {
        let memory = backend.share(bytes.max(1))?;
        Ok(Self(Arc::new(SharedAllocation { backend: backend.clone(), memory, bytes })))
    }

    /// Bytes it has.
    pub fn len(&self) -> usize {
        self.0.bytes
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.0.bytes == 0
    }

    /// Copies `bytes` to `offset`.
    ///
    /// # Panics
    /// Where they do not fit.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(fits(offset, bytes.len(), self.0.bytes), "write outside shared memory");
        // SAFETY: the range lies inside the memory, which nobody has references into.
        unsafe {
            std::ptr::copy_nonoverlapping(
                bytes.as_ptr(),
                self.0.memory.host.as_ptr().add(offset),
                bytes.len(),
            );
        }
    }

    /// Copies the bytes from `offset` on to `bytes`.
    ///
    /// # Panics
    /// Where there are not so many.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) {
        assert!(fits(offset, bytes.len(), self.0.bytes), "read outside shared memory");
        // SAFETY: the range lies inside the memory, which nobody has references into.
        unsafe {
            std::ptr::copy_nonoverlapping(
                self.0.memory.host.as_ptr().add(offset),
                bytes.as_mut_ptr(),
                bytes.len(),
            );
        }
    }

    /// The word at `offset`; what was written before it was, is seen too.
    ///
    /// # Panics
    /// Where there is no whole, aligned word.
    pub fn load(&self, offset: usize) -> u32 {
        self.word(offset).load(Ordering::Acquire)
    }

    /// Writes the word at `offset`, after all that was written before.
    ///
    /// # Panics
    /// Where there is no whole, aligned word.
    pub fn store(&self, offset: usize, word: u32) {
        self.word(offset).store(word, Ordering::Release);
    }

    /// Reads words of 64 bits from `offset` on, each whole; what was written before they were, is seen too.
    ///
    /// # Panics
    /// Where there are not so many, or they are not aligned.
    pub fn load_words(&self, offset: usize, words: &mut [u64]) {
        let atomics = self.words(offset, words.len());
        for (word, atomic) in words.iter_mut().zip(atomics) {
            *word = atomic.load(Ordering::Relaxed);
        }
        fence(Ordering::Acquire);
    }

    /// Writes words of 64 bits from `offset` on, each whole, after all that was written before.
    ///
    /// # Panics
    /// Where they do not fit, or are not aligned.
    pub fn store_words(&self, offset: usize, words: &[u64]) {
        fence(Ordering::Release);
        for (&word, atomic) in words.iter().zip(self.words(offset, words.len())) {
            atomic.store(word, Ordering::Relaxed);
        }
    }

    /// Has the processor fetch the line of its cache that holds the byte at `offset`, which will be needed soon.
    #[inline]
    pub fn prefetch(&self, offset: usize) {
        if offset < self.0.bytes {
            prefetch_address(self.0.memory.host.as_ptr().wrapping_add(offset));
        }
    }

    fn words(&self, offset: usize, count: usize) -> &[AtomicU64] {
        let fits = count.checked_mul(8).is_some_and(|bytes| fits(offset, bytes, self.0.bytes));
        assert!(fits && offset.is_multiple_of(8), "no such words of shared memory");
        // SAFETY: the words lie inside the memory and are aligned, as that of every back end is to 16 bytes; they are atomic, so
        // others may write them meanwhile.
        unsafe { std::slice::from_raw_parts(self.0.memory.host.as_ptr().add(offset).cast(), count) }
    }

    fn word(&self, offset: usize) -> &AtomicU32 {
        assert!(fits(offset, 4, self.0.bytes) && offset.is_multiple_of(4), "no word of shared memory");
        // SAFETY: the word lies inside the memory and is aligned, as that of every back end is to 16 bytes.
        unsafe { AtomicU32::from_ptr(self.0.memory.host.as_ptr().add(offset).cast()) }
    }
}

impl Drop for SharedAllocation {
    fn drop(&mut self) {
        // SAFETY: nobody has it any more: queues hold it until they are finished.
        unsafe { self.backend.give_back(Thing::Shared(self.memory, self.bytes.max(1))) };
    }
}

/// Whether `len` bytes from `offset` on lie inside `bytes`.
pub(crate) fn fits(offset: usize, len: usize, bytes: usize) -> bool {
    offset.checked_add(len).is_some_and(|end| end <= bytes)
}
