//! Rings shared with the kernel (`Documentation/networking/af_xdp.rst`): arrays of entries, each with the index of what its producer has
//! put in and the index of what its consumer has taken out.
//!
//! Indices count without end, modulo 2^32; an entry stands at its index modulo the ring's size, a power of two. Each side writes one of the
//! indices, with release order after it is done with the entries, and reads the other one with acquire order before it touches them. What the
//! kernel writes is not believed: an index that cannot be makes a ring empty, or full, and unsound.
#![allow(unsafe_code)]

use std::io;
use std::marker::PhantomData;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::mm::{MapFlags, ProtFlags};

/// A frame, or a piece of one, as `struct xdp_desc` describes it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Descriptor {
    /// Where it begins in the memory for frames.
    pub(super) address: u64,
    /// Its bytes.
    pub(super) len: u32,
    /// [`CONTINUED`](Self::CONTINUED), or nothing.
    pub(super) options: u32,
}

impl Descriptor {
    /// The frame goes on in the next entry (`XDP_PKT_CONTD`).
    pub(super) const CONTINUED: u32 = libc::XDP_PKT_CONTD;

    /// Whether the frame goes on in the next entry.
    pub(super) const fn is_continued(self) -> bool {
        self.options & Self::CONTINUED != 0
    }
}

/// What a ring may hold.
///
/// # Safety
///
/// Every pattern of bytes is a value, and its alignment divides 8.
pub(super) unsafe trait Entry: Copy {}

// SAFETY: integers.
unsafe impl Entry for u64 {}
// SAFETY: a `repr(C)` structure of integers.
unsafe impl Entry for Descriptor {}

/// A mapping that is shared with the kernel, or could be.
#[derive(Debug)]
pub(super) struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to this alone and can be used from any thread; accesses are raw, and who makes them answers for them.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// New memory, zeroed, in pages that are there.
    pub(super) fn anonymous(len: usize) -> io::Result<Self> {
        // SAFETY: a new private mapping at an address of the kernel's choice.
        let start = unsafe {
            rustix::mm::mmap_anonymous(
                ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::POPULATE,
            )?
        };
        Ok(Self { start: NonNull::new(start.cast()).ok_or(io::ErrorKind::InvalidData)?, len })
    }

    /// A ring of a socket.
    pub(super) fn of_socket(socket: impl std::os::fd::AsFd, offset: u64, len: usize) -> io::Result<Self> {
        // SAFETY: a new shared mapping at an address of the kernel's choice.
        let start = unsafe {
            rustix::mm::mmap(
                ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::POPULATE,
                socket,
                offset,
            )?
        };
        Ok(Self { start: NonNull::new(start.cast()).ok_or(io::ErrorKind::InvalidData)?, len })
    }

    /// Where it begins.
    pub(super) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Its bytes.
    pub(super) fn len(&self) -> usize {
        self.len
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this length, and nothing refers to it any more.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// Where the parts of a ring lie in its mapping (`struct xdp_ring_offset`).
#[derive(Clone, Copy, Debug)]
pub(super) struct Offsets {
    pub(super) producer: usize,
    pub(super) consumer: usize,
    pub(super) flags: usize,
    pub(super) entries: usize,
}

impl Offsets {
    /// Bytes of a mapping with so many entries.
    pub(super) fn mapping_len<T: Entry>(self, entries: u32) -> usize {
        self.entries + entries as usize * size_of::<T>()
    }
}

/// A ring in a mapping.
#[derive(Debug)]
struct Shared<T> {
    mapping: Arc<Mapping>,
    offsets: Offsets,
    size: u32,
    entry: PhantomData<T>,
}

impl<T: Entry> Shared<T> {
    fn new(mapping: Arc<Mapping>, offsets: Offsets, size: u32) -> io::Result<Self> {
        let indices = [offsets.producer, offsets.consumer, offsets.flags];
        let fits = size.is_power_of_two()
            && offsets.mapping_len::<T>(size) <= mapping.len()
            && offsets.entries.is_multiple_of(8)
            && indices.into_iter().all(|at| at.is_multiple_of(4) && at + 4 <= mapping.len());
        if fits {
            Ok(Self { mapping, offsets, size, entry: PhantomData })
        } else {
            Err(io::ErrorKind::InvalidData.into())
        }
    }

    fn word(&self, at: usize) -> &AtomicU32 {
        // SAFETY: within the mapping, which lives as long as `self`, and aligned, as was found when the ring was made. Both sides access these
        // words atomically.
        unsafe { AtomicU32::from_ptr(self.mapping.start().as_ptr().add(at).cast()) }
    }

    fn producer(&self) -> &AtomicU32 {
        self.word(self.offsets.producer)
    }

    fn consumer(&self) -> &AtomicU32 {
        self.word(self.offsets.consumer)
    }

    fn entry(&self, index: u32) -> *mut T {
        let place = (index & (self.size - 1)) as usize;
        // SAFETY: within the mapping, as was found when the ring was made.
        unsafe { self.mapping.start().as_ptr().add(self.offsets.entries).cast::<T>().add(place) }
    }
}

/// The side of a ring that puts entries in.
#[derive(Debug)]
pub(super) struct Producer<T> {
    ring: Shared<T>,
    /// Index of the next entry; those from the published index on are not seen by the other side.
    next: u32,
    /// The other side's index when it was last looked at.
    consumed: u32,
}

impl<T: Entry> Producer<T> {
    /// The ring in a mapping that begins at the index that stands there.
    pub(super) fn new(mapping: Arc<Mapping>, offsets: Offsets, size: u32) -> io::Result<Self> {
        let ring = Shared::new(mapping, offsets, size)?;
        let next = ring.producer().load(Ordering::Relaxed);
        let consumed = ring.consumer().load(Ordering::Acquire);
        Ok(Self { ring, next, consumed })
    }

    /// Entries there is room for; none where the consumer's index cannot be.
    pub(super) fn room(&mut self) -> u32 {
        self.consumed = self.ring.consumer().load(Ordering::Acquire);
        // Where more is taken than was put in, or not so much in so long, nothing can be known of any entry.
        self.ring.size.saturating_sub(self.next.wrapping_sub(self.consumed))
    }

    /// Entries that the ring holds.
    #[cfg(test)]
    pub(super) fn size(&self) -> u32 {
        self.ring.size
    }

    /// Puts an entry in, to be seen by the other side once it is [published](Self::publish); `false` where there is no room.
    pub(super) fn push(&mut self, entry: T) -> bool {
        if self.next.wrapping_sub(self.consumed) >= self.ring.size && self.room() == 0 {
            return false;
        }
        // SAFETY: within the mapping; the other side does not read entries that are not published.
        unsafe { self.ring.entry(self.next).write_volatile(entry) };
        self.next = self.next.wrapping_add(1);
        true
    }

    /// Has the other side see all entries.
    pub(super) fn publish(&mut self) {
        // Release: the entries are written before the index.
        self.ring.producer().store(self.next, Ordering::Release);
    }

    /// Index of the next entry.
    pub(super) fn next(&self) -> u32 {
        self.next
    }

    /// Takes back the entries from an index on, which the other side must not have looked for since they were published.
    pub(super) fn take_back(&mut self, from: u32) {
        self.next = from;
        self.publish();
    }

    /// The other side's index, by its own word.
    pub(super) fn consumed(&self) -> u32 {
        self.ring.consumer().load(Ordering::Acquire)
    }

    /// Whether the other side asks to be woken up (`XDP_RING_NEED_WAKEUP`).
    pub(super) fn needs_wakeup(&self) -> bool {
        self.ring.word(self.ring.offsets.flags).load(Ordering::Relaxed) & libc::XDP_RING_NEED_WAKEUP != 0
    }
}

/// The side of a ring that takes entries out.
#[derive(Debug)]
pub(super) struct Consumer<T> {
    ring: Shared<T>,
    /// Index of the oldest entry; those from the published index on are not given back yet.
    next: u32,
    /// An index of the other side that cannot be, once it was reported.
    reported: Option<u32>,
}

/// Entries that can be taken out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Available {
    /// How many.
    pub(super) entries: u32,
    /// Whether the other side's index cannot be; told once of each.
    pub(super) is_unsound: bool,
}

impl<T: Entry> Consumer<T> {
    /// The ring in a mapping that begins at the index that stands there.
    pub(super) fn new(mapping: Arc<Mapping>, offsets: Offsets, size: u32) -> io::Result<Self> {
        let ring = Shared::new(mapping, offsets, size)?;
        let next = ring.consumer().load(Ordering::Relaxed);
        Ok(Self { ring, next, reported: None })
    }

    /// Entries that there are; none where the producer's index cannot be.
    #[inline]
    pub(super) fn available(&mut self) -> Available {
        // Acquire: the entries are read after the index.
        let produced = self.ring.producer().load(Ordering::Acquire);
        let entries = produced.wrapping_sub(self.next);
        if entries <= self.ring.size {
            return Available { entries, is_unsound: false };
        }
        Available { entries: 0, is_unsound: self.reported.replace(produced) != Some(produced) }
    }

    /// Whether the other side has put nothing in, which costs less to find out than what [is available](Self::available).
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.ring.producer().load(Ordering::Relaxed) == self.next
    }

    /// The entry so many behind the oldest one. It must be [available](Self::available): of any other, what is left of an older one comes.
    #[inline]
    pub(super) fn peek(&self, ahead: u32) -> T {
        // SAFETY: within the mapping. Every pattern of bytes is a value, and the read is volatile: whatever the other side does at the same
        // time, which it must not, no more than the value can be wrong.
        unsafe { self.ring.entry(self.next.wrapping_add(ahead)).read_volatile() }
    }

    /// Takes the oldest entries out, to be given back by [`Self::publish`].
    pub(super) fn advance(&mut self, entries: u32) {
        self.next = self.next.wrapping_add(entries);
    }

    /// Lets the other side use the places of all entries that were taken out.
    pub(super) fn publish(&mut self) {
        // Release: the entries were read before.
        self.ring.consumer().store(self.next, Ordering::Release);
    }

    /// Entries that the ring holds.
    pub(super) fn size(&self) -> u32 {
        self.ring.size
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Both sides of a ring in memory of this process.
    pub(in super::super) fn both_sides<T: Entry>(size: u32, first: u32) -> (Producer<T>, Consumer<T>, Raw) {
        let offsets = Offsets { producer: 0, consumer: 64, flags: 128, entries: 192 };
        let mapping = Arc::new(Mapping::anonymous(offsets.mapping_len::<T>(size)).expect("memory"));
        let raw = Raw(Shared::<u64>::new(mapping.clone(), offsets, 1).expect("fits"));
        raw.set_producer(first);
        raw.set_consumer(first);
        let producer = Producer::new(mapping.clone(), offsets, size).expect("fits");
        (producer, Consumer::new(mapping, offsets, size).expect("fits"), raw)
    }

    /// The indices of a ring, to be set as nobody may.
    pub(in super::super) struct Raw(Shared<u64>);

    impl Raw {
        pub(in super::super) fn set_producer(&self, index: u32) {
            self.0.producer().store(index, Ordering::Release);
        }

        pub(in super::super) fn set_consumer(&self, index: u32) {
            self.0.consumer().store(index, Ordering::Release);
        }

        pub(in super::super) fn set_flags(&self, flags: u32) {
            self.0.word(self.0.offsets.flags).store(flags, Ordering::Release);
        }
    }

    #[test]
    fn descriptors_are_laid_out_as_the_kernel_has_them() {
        assert_eq!((size_of::<Descriptor>(), align_of::<Descriptor>()), (size_of::<libc::xdp_desc>(), 8));
        assert_eq!(std::mem::offset_of!(Descriptor, len), std::mem::offset_of!(libc::xdp_desc, len));
        assert_eq!(std::mem::offset_of!(Descriptor, options), std::mem::offset_of!(libc::xdp_desc, options));
    }

    /// Everything comes out as it went in, also where the indices begin again at 0.
    #[test]
    fn indices_wrap() {
        for first in [0, u32::MAX - 5, u32::MAX, 1 << 31, (1 << 31) - 3] {
            let (mut producer, mut consumer, _) = both_sides::<u64>(8, first);
            let (mut put, mut taken) = (0u64, 0u64);
            for round in 0..100 {
                let wanted = [3, 8, 1, 20][round % 4];
                let before = put;
                while put - before < wanted && producer.push(put * 7) {
                    put += 1;
                }
                assert_eq!(
                    consumer.available().entries,
                    u32::try_from(before - taken).expect("few"),
                    "not seen yet"
                );
                producer.publish();
                let available = consumer.available();
                assert!(
                    !available.is_unsound && u64::from(available.entries) == put - taken && put - taken <= 8
                );
                let take = available.entries.min([8, 2, 5][round % 3]);
                for ahead in 0..take {
                    assert_eq!(consumer.peek(ahead), (taken + u64::from(ahead)) * 7);
                }
                consumer.advance(take);
                taken += u64::from(take);
                consumer.publish();
                assert_eq!(u64::from(producer.room()), 8 - (put - taken));
            }
            assert!(put > 150 && producer.next() == first.wrapping_add(put as u32));
        }
    }

    #[test]
    fn a_full_ring_takes_nothing_and_loses_nothing() {
        let (mut producer, mut consumer, _) = both_sides::<u64>(4, u32::MAX - 1);
        assert_eq!((0..9).map(|entry| producer.push(entry)).filter(|is_taken| *is_taken).count(), 4);
        producer.publish();
        assert_eq!((producer.room(), consumer.available().entries), (0, 4));
        consumer.advance(2);
        assert!(!producer.push(9), "nothing was given back yet");
        consumer.publish();
        assert!(producer.push(9) && producer.push(10) && !producer.push(11));
        producer.publish();
        assert_eq!((0..4).map(|ahead| consumer.peek(ahead)).collect::<Vec<_>>(), [2, 3, 9, 10]);
    }

    #[test]
    fn entries_can_be_taken_back() {
        let (mut producer, mut consumer, _) = both_sides::<u64>(4, u32::MAX);
        let from = producer.next();
        assert!(producer.push(1) && producer.push(2));
        producer.publish();
        producer.take_back(from);
        assert_eq!(consumer.available().entries, 0);
        assert!((3..7).all(|entry| producer.push(entry)));
        producer.publish();
        assert_eq!((consumer.available().entries, consumer.peek(0)), (4, 3));
    }

    /// Nothing is taken out, or put in, where the other side's index cannot be; that is told once.
    #[test]
    fn indices_that_cannot_be_are_not_believed() {
        let (mut producer, mut consumer, raw) = both_sides::<u64>(8, 100);
        for index in [99, 109, 100 + (1 << 31), u32::MAX] {
            raw.set_producer(index);
            assert_eq!(consumer.available(), Available { entries: 0, is_unsound: true }, "{index}");
            assert_eq!(consumer.available(), Available { entries: 0, is_unsound: false }, "told once");
        }
        raw.set_producer(108);
        assert_eq!(consumer.available(), Available { entries: 8, is_unsound: false });
        for index in [101, 91, 100 + (1 << 31)] {
            raw.set_consumer(index);
            assert_eq!(producer.room(), 0, "{index}");
        }
        raw.set_consumer(100);
        assert_eq!(producer.room(), 8);
    }

    #[test]
    fn rings_that_do_not_fit_their_mapping_are_refused() {
        let mapping = Arc::new(Mapping::anonymous(4_096).expect("memory"));
        let offsets = Offsets { producer: 0, consumer: 64, flags: 128, entries: 192 };
        assert!(Consumer::<u64>::new(mapping.clone(), offsets, 256).is_ok());
        for (offsets, size) in [
            (offsets, 512),
            (offsets, 3),
            (offsets, 0),
            (Offsets { producer: 4_094, ..offsets }, 8),
            (Offsets { consumer: 4_096, ..offsets }, 8),
            (Offsets { flags: 129, ..offsets }, 8),
            (Offsets { entries: 196, ..offsets }, 8),
        ] {
            assert!(Producer::<u64>::new(mapping.clone(), offsets, size).is_err(), "{offsets:?} {size}");
        }
    }
}
