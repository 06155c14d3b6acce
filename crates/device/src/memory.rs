//! Memory of a device, and memory of the host that a device can reach.

use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use packetloom_memory::prefetch_address;

use crate::Error;
use crate::backend::{Handle, SharedMemory};
use crate::opened::{Opened, Thing};

/// Memory of a device. Clones are the same memory.
///
/// Only queues and kernels access it. What is read while another queue writes it is any mix of what was there and what comes.
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

    pub(crate) fn zeros(backend: &Arc<Opened>, bytes: usize) -> Result<Self, Error> {
        let handle = backend.allocate_zeros(bytes.max(1))?;
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

/// Memory of the host that a device copies from and to, and whose kernels may use it where it lies.
///
/// It has one owner. Two ways lead to its bytes:
///
/// - Copies ([`Self::write`], [`Self::read`]) take `&mut self`.
/// - Words ([`Self::load`], [`Self::store`] and those of 64 bits) take `&self` and are atomic, so threads and running kernels
///   may use them at the same time.
///
/// Both panic where what is queued forbids them, until the queue's [`finish`](crate::Queue::finish), or another call that waits, said that it is done:
///
/// | queued | copies | words |
/// | --- | --- | --- |
/// | a copy from or to it, a kernel that gets it as [`Constant`](crate::Parameter::Constant) | no | no |
/// | a kernel that may write it ([`Memory`](crate::Parameter::Memory)) | no | yes |
/// | a kernel that gets it as [`Live`](crate::Parameter::Live) | yes | yes |
///
/// So whatever the device does, an access from here finds bytes that nobody else writes, or a whole word.
///
/// A device is outside of Rust's memory model. What holds with it: a kernel that is launched sees all that was written before the launch, and
/// what it wrote is seen here once its queue is finished. A kernel that runs sees all that was written before a [stored](Self::store) word
/// when it has loaded that word by `load_acquire_64`, and what it wrote before `fence_shared` and a word is seen after that word was
/// [loaded](Self::load). Of live memory that is written at the same time it may find any mix of what was there and what comes. Where two queues write the same
/// bytes at the same time, any mix is left.
#[derive(Debug)]
pub struct Shared(pub(crate) Arc<SharedAllocation>);

#[derive(Debug)]
pub(crate) struct SharedAllocation {
    pub(crate) backend: Arc<Opened>,
    pub(crate) memory: SharedMemory,
    pub(crate) bytes: usize,
    /// Copies from and to it, and kernels for which it stays as it is, that are not known to be done.
    holders: AtomicU32,
    /// Kernels that may write it and are not known to be done.
    writers: AtomicU32,
}

// SAFETY: the memory is not bound to a thread, and is accessed as `Shared` says: by its one owner, or through atomics.
unsafe impl Send for SharedAllocation {}
// SAFETY: as above.
unsafe impl Sync for SharedAllocation {}

impl SharedAllocation {
    /// Whether it is left to atomics, at least. What those did that are done is seen.
    fn is_free(&self) -> bool {
        self.holders.load(Ordering::Acquire) == 0
    }

    fn counter(&self, work: Work) -> Option<&AtomicU32> {
        match work {
            Work::Hold => Some(&self.holders),
            Work::Write => Some(&self.writers),
            Work::Look => None,
        }
    }
}

/// What a queue does with shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// A copy in either direction, or a kernel for which it stays as it is.
    Hold,
    /// A kernel that may write it.
    Write,
    /// A kernel that reads it while others may write it.
    Look,
}

/// Shared memory as long as queued work uses it.
#[derive(Debug)]
pub(crate) struct Use(Arc<SharedAllocation>, Work);

impl Use {
    pub(crate) fn new(shared: &Shared, work: Work) -> Self {
        if let Some(counter) = shared.0.counter(work) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
        Self(shared.0.clone(), work)
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        if let Some(counter) = self.0.counter(self.1) {
            // After the wait that told that the work is done.
            counter.fetch_sub(1, Ordering::Release);
        }
    }
}

impl Shared {
    pub(crate) fn new(backend: &Arc<Opened>, bytes: usize) -> Result<Self, Error> {
        let memory = backend.share(bytes.max(1))?;
        let (holders, writers) = Default::default();
        Ok(Self(Arc::new(SharedAllocation { backend: backend.clone(), memory, bytes, holders, writers })))
    }

    /// Bytes it has.
    pub fn len(&self) -> usize {
        self.0.bytes
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.0.bytes == 0
    }

    /// Where its bytes are, aligned to 16, for as long as it lives: for callers in other languages. Whoever accesses them there keeps
    /// to the table above without being checked, and to that no call of the owner copies the same bytes at the same time.
    pub fn host(&self) -> NonNull<u8> {
        self.0.memory.host
    }

    /// Whether what is queued forbids copies: see above.
    pub fn is_busy(&self) -> bool {
        !self.0.is_free() || self.0.writers.load(Ordering::Acquire) != 0
    }

    /// Copies `bytes` to `offset`.
    ///
    /// # Panics
    /// Where they do not fit, and where the memory [is busy](Self::is_busy).
    #[inline]
    pub fn write(&mut self, offset: usize, bytes: &[u8]) {
        let to = self.exclusive(offset, bytes.len());
        // SAFETY: the range lies inside the memory, which only its owner accesses now, who is borrowed; `bytes` is no part of it, since no
        // reference into it is ever made but to its words' atomics.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }

    /// Copies the bytes from `offset` on to `bytes`.
    ///
    /// # Panics
    /// Where there are not so many, and where the memory [is busy](Self::is_busy).
    #[inline]
    pub fn read(&mut self, offset: usize, bytes: &mut [u8]) {
        let from = self.exclusive(offset, bytes.len());
        // SAFETY: as above.
        unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len()) };
    }

    /// Parts of so many bytes that follow each other, from the beginning on, for as many threads.
    ///
    /// # Panics
    /// As for [`Self::write`].
    pub fn split(&mut self, lens: impl IntoIterator<Item = usize>) -> impl Iterator<Item = Part<'_>> {
        let mut offset = 0;
        lens.into_iter().map(move |len| {
            let host = NonNull::new(self.exclusive(offset, len)).expect("memory is nowhere else than at 0");
            offset += len;
            Part { host, bytes: len, owner: PhantomData }
        })
    }

    /// Where `len` bytes are that nobody else writes, nor reads but kernels, as long as the owner is borrowed.
    #[inline]
    fn exclusive(&mut self, offset: usize, len: usize) -> *mut u8 {
        assert!(fits(offset, len, self.0.bytes), "{len} bytes at {offset} of {} shared ones", self.0.bytes);
        assert!(!self.is_busy(), "shared memory is accessed before its queue is finished");
        self.0.memory.host.as_ptr().wrapping_add(offset)
    }

    /// The word at `offset`; what was written before it was, is seen too.
    ///
    /// # Panics
    /// Where there is no whole, aligned word, and where what is queued forbids it.
    pub fn load(&self, offset: usize) -> u32 {
        self.word(offset).load(Ordering::Acquire)
    }

    /// Writes the word at `offset`, after all that was written before.
    ///
    /// # Panics
    /// As for [`Self::load`].
    pub fn store(&self, offset: usize, word: u32) {
        self.word(offset).store(word, Ordering::Release);
    }

    /// Reads words of 64 bits from `offset` on, each whole; what was written before they were, is seen too.
    ///
    /// # Panics
    /// Where there are not so many, they are not aligned, or what is queued forbids it.
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
    /// As for [`Self::load_words`].
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
        assert!(self.0.is_free(), "{HELD}");
        // SAFETY: the words lie inside the memory and are aligned, as that of every back end is to 16 bytes. As long as the owner is
        // borrowed, no copy begins, and none is under way: so all others that use them are atomics, and kernels.
        unsafe { std::slice::from_raw_parts(self.0.memory.host.as_ptr().add(offset).cast(), count) }
    }

    fn word(&self, offset: usize) -> &AtomicU32 {
        assert!(fits(offset, 4, self.0.bytes) && offset.is_multiple_of(4), "no word of shared memory");
        assert!(self.0.is_free(), "{HELD}");
        // SAFETY: as above.
        unsafe { AtomicU32::from_ptr(self.0.memory.host.as_ptr().add(offset).cast()) }
    }
}

/// Bytes of [shared memory](Shared) that nobody else has, as long as its owner is borrowed.
#[derive(Debug)]
pub struct Part<'a> {
    host: NonNull<u8>,
    bytes: usize,
    owner: PhantomData<&'a mut Shared>,
}

// SAFETY: the bytes are not bound to a thread, and no other part has them: `Shared::split` hands out each byte once.
unsafe impl Send for Part<'_> {}

impl Part<'_> {
    /// Bytes it has.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Copies `bytes` to `offset`.
    ///
    /// # Panics
    /// Where they do not fit.
    #[inline]
    pub fn write(&mut self, offset: usize, bytes: &[u8]) {
        let to = self.at(offset, bytes.len());
        // SAFETY: the range lies inside the part, which is borrowed, and was not busy when its owner was borrowed for it; nothing can be queued
        // that uses it until that ends.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }

    /// Copies the bytes from `offset` on to `bytes`.
    ///
    /// # Panics
    /// Where there are not so many.
    #[inline]
    pub fn read(&mut self, offset: usize, bytes: &mut [u8]) {
        let from = self.at(offset, bytes.len());
        // SAFETY: as above.
        unsafe { std::ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len()) };
    }

    #[inline]
    fn at(&self, offset: usize, len: usize) -> *mut u8 {
        assert!(fits(offset, len, self.bytes), "{len} bytes at {offset} of {} of a part", self.bytes);
        self.host.as_ptr().wrapping_add(offset)
    }
}

/// Why a word cannot be had.
const HELD: &str = "a word of shared memory is accessed before its queue is finished";

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

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use crate::fake;

    /// Whether it is refused.
    fn panics(access: impl FnOnce()) -> bool {
        catch_unwind(AssertUnwindSafe(access)).is_err()
    }

    #[test]
    fn a_copy_keeps_all_others_away_until_it_is_finished() {
        let (device, _) = fake::device();
        let memory = device.memory(16).unwrap();
        let mut shared = device.share(16).unwrap();
        let mut queue = device.queue().unwrap();
        for round in 0..4 {
            shared.write(0, &[round; 16]);
            assert!(!shared.is_busy());
            match round {
                0 | 1 => queue.copy_in(&mut shared, 0..16, &memory, 0).unwrap(),
                _ => queue.copy_out(&memory, 0..16, &mut shared, 0).unwrap(),
            }
            assert!(shared.is_busy());
            assert!(panics(|| shared.write(0, &[9])) && panics(|| shared.read(0, &mut [9])));
            assert!(panics(|| shared.store(0, 9)) && panics(|| assert_eq!(shared.load(0), 9)));
            assert!(panics(|| shared.store_words(0, &[9])) && panics(|| shared.load_words(0, &mut [9])));
            while round % 2 == 1 && !queue.is_finished().unwrap() {
                std::thread::yield_now();
            }
            queue.finish().unwrap();
            let mut bytes = [9; 16];
            shared.read(0, &mut bytes);
            assert_eq!(bytes, [round.min(1); 16], "the device has what was copied there last");
        }
        // What is not queued keeps nobody away.
        assert!(queue.copy_in(&mut shared, 0..17, &memory, 0).is_err() && !shared.is_busy());
    }

    #[test]
    fn memory_is_copied_to_other_memory_of_its_length() {
        let (device, _) = fake::device();
        let [from, to] = [[7u8; 20], [0; 20]].map(|bytes| device.memory_of(&bytes).unwrap());
        let short = device.memory(19).unwrap();
        let mut queue = device.queue().unwrap();
        queue.copy(&from, &to).unwrap();
        let mut bytes = [0; 20];
        queue.read(&to, 0, &mut bytes).unwrap();
        assert_eq!(bytes, [7; 20]);
        for (from, to) in [(&from, &short), (&short, &from), (&from, &from.clone())] {
            assert!(matches!(queue.copy(from, to), Err(crate::Error::Misuse(_))));
        }
        let (other, _) = fake::device();
        assert!(queue.copy(&other.memory(20).unwrap(), &to).is_err());
    }

    #[test]
    fn parts_are_written_and_read_by_as_many_threads() {
        let (device, _) = fake::device();
        let memory = device.memory(12).unwrap();
        let mut shared = device.share(12).unwrap();
        std::thread::scope(|scope| {
            for (number, mut part) in (1..).zip(shared.split([4, 0, 7])) {
                scope.spawn(move || {
                    let bytes = vec![number; part.len()];
                    part.write(0, &bytes);
                    assert_eq!(part.is_empty(), number == 2);
                    assert!(panics(|| part.write(1, &bytes)), "one more than there is");
                });
            }
        });
        let mut bytes = [9; 12];
        shared.read(0, &mut bytes);
        assert_eq!(bytes[..11], [1, 1, 1, 1, 3, 3, 3, 3, 3, 3, 3]);
        for mut part in shared.split([6, 6]) {
            let mut bytes = [9; 3];
            part.read(1, &mut bytes);
            assert!(bytes == [1, 1, 1] || bytes[..2] == [3, 3], "{bytes:?}");
        }
        assert!(panics(|| shared.split([6, 7]).for_each(drop)), "there are not so many");
        let mut queue = device.queue().unwrap();
        queue.copy_in(&mut shared, 0..12, &memory, 0).unwrap();
        assert!(panics(|| shared.split([1]).for_each(drop)), "it is busy");
        queue.finish().unwrap();
    }

    /// Copies by threads of the queue, and the same bytes from here right after.
    #[test]
    fn queues_that_are_dropped_or_left_alone_keep_others_away_until_they_are_done() {
        let (device, _) = fake::device();
        let memory = device.memory(8).unwrap();
        let mut shared = device.share(8).unwrap();
        for is_left in [false, true] {
            let mut queue = device.queue().unwrap();
            shared.write(0, &[1; 8]);
            queue.copy_in(&mut shared, 0..8, &memory, 0).unwrap();
            match is_left {
                true => queue.abandon(),
                false => drop(queue),
            }
            while device.settle().is_err() {
                std::thread::yield_now();
            }
            shared.write(0, &[2; 8]);
        }
    }

    /// A kernel that runs is told by words, and what it only reads is written meanwhile.
    #[test]
    fn a_kernel_that_runs_is_talked_to_by_words() {
        let (device, kernel) = fake::device();
        let [mut question, mut news, mut answer] = [64, 4, 8].map(|bytes| device.share(bytes).unwrap());
        let mut queue = device.queue().unwrap();
        let arguments = [&question, &news, &answer].map(Into::into);
        // SAFETY: the kernel reads as many bytes as the news say, and there are.
        unsafe { queue.launch_unchecked(&kernel, 1, &arguments).unwrap() };
        assert!(answer.is_busy() && !question.is_busy());
        assert!(panics(|| answer.write(0, &[9])) && panics(|| answer.read(0, &mut [9])));
        question.write(0, &[3; 10]);
        let mut sum = [0];
        std::thread::scope(|scope| {
            // Another thread may tell it, and listen.
            scope.spawn(|| news.store(0, 10));
            while sum == [0] {
                std::thread::yield_now();
                answer.load_words(0, &mut sum);
            }
        });
        assert_eq!(sum, [30]);
        question.write(0, &[4; 64]);
        queue.finish().unwrap();
        let mut bytes = [0; 8];
        answer.read(0, &mut bytes);
        assert_eq!(bytes, 30u64.to_ne_bytes());
        news.write(0, &[0; 4]);
    }

    #[test]
    fn what_lies_outside_is_refused() {
        let (device, _) = fake::device();
        let mut shared = device.share(12).unwrap();
        assert!(panics(|| shared.write(12, &[1])) && panics(|| shared.read(usize::MAX, &mut [1])));
        assert!(panics(|| shared.store(2, 1)) && panics(|| shared.store(12, 1)));
        assert!(panics(|| shared.store_words(8, &[1])) && panics(|| shared.load_words(4, &mut [1])));
        shared.write(12, &[]);
        shared.store_words(0, &[u64::MAX]);
        shared.store(8, 1);
        let mut bytes = [0; 12];
        shared.read(0, &mut bytes);
        assert_eq!(bytes, [255, 255, 255, 255, 255, 255, 255, 255, 1, 0, 0, 0]);
        shared.prefetch(100);
    }
}
