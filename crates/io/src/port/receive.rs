//! Frames out of ports, on their way into a batch: copied, or lent where they came.

use std::sync::Arc;

use packetloom_packet::batch::empty_arena;
use packetloom_packet::{Batch, FrameRef, LinkType, Timestamp};

use super::Offload;
use super::af_xdp::Lent;

/// The longest frame of a port, with its VLAN tag: 64 KiB of IP packet, a link header and tags.
pub(super) const LONGEST_FRAME: usize = (1 << 16) + 64;
/// Bytes of a chunk for each frame a batch may hold.
const BYTES_A_FRAME: usize = 1_536;
/// The least bytes of a chunk: some giants, or a batch of small frames.
const SMALLEST_CHUNK: usize = 1 << 18;
/// The most bytes of a chunk; a batch of larger frames holds fewer of them.
const LARGEST_CHUNK: usize = 4 << 20;
/// Frames begin on cache lines.
const LINE: usize = 64;

/// Collects frames of one or several ports and makes a batch of them.
///
/// Frames lie in a chunk of memory that the batch shares; it is used again when no batch holds it any more. There are as many chunks as
/// batches under way and one or two more. Frames of ports that share memory with an [`Ingress`](super::Ingress)'s buffer stay there and are lent.
pub struct ReceiveBuffer {
    capacity: usize,
    chunk_len: usize,
    /// The chunk that is being filled, up to `used`; no batch holds it.
    chunk: Arc<Vec<u8>>,
    used: usize,
    frames: Vec<FrameRef>,
    offloads: Vec<Offload>,
    /// Frames that are lent, where ports may.
    lent: Option<Lent>,
    /// Both, while they are sorted.
    sorted: Vec<(FrameRef, Offload)>,
    /// Chunks that batches hold or have held.
    pool: Vec<Arc<Vec<u8>>>,
}

impl ReceiveBuffer {
    /// An empty buffer for batches of up to `capacity` frames.
    pub fn new(capacity: usize) -> Self {
        let capacity = capacity.max(1);
        let chunk_len = (capacity * BYTES_A_FRAME).clamp(SMALLEST_CHUNK, LARGEST_CHUNK);
        Self {
            capacity,
            chunk_len,
            chunk: Arc::new(vec![0; chunk_len]),
            used: 0,
            frames: Vec::with_capacity(capacity),
            offloads: Vec::with_capacity(capacity),
            lent: None,
            sorted: Vec::new(),
            pool: Vec::new(),
        }
    }

    /// Takes frames as a loan from now on, where they lie in this one's memory. It must be empty.
    pub(super) fn set_lent(&mut self, lent: Option<Lent>) {
        self.lent = lent;
    }

    /// Frames it may hold.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Changes how many frames it may hold; the bytes it may hold stay the same.
    pub fn set_capacity(&mut self, capacity: usize) {
        self.capacity = capacity.max(1);
    }

    /// Frames it holds.
    pub fn len(&self) -> usize {
        self.frames.len()
    }

    /// Whether it holds no frame.
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Moves the frames into `batch`, whose frames are forgotten, with what is left to be done to each.
    pub fn deliver(&mut self, batch: &mut Batch) {
        if self.frames.is_empty() {
            batch.reset(empty_arena());
            return;
        }
        match self.lent.take() {
            None => batch.reset(self.chunk.clone()),
            Some(lent) => {
                self.lent = Some(lent.another());
                let copies = (self.used > 0).then(|| self.chunk.clone());
                batch.reset_to_loan(Arc::new(lent.with_copies(copies)));
            }
        }
        batch.extend(self.frames.drain(..));
        std::mem::swap(&mut self.offloads, batch.offloads_mut());
        if self.used == 0 {
            return;
        }
        self.used = 0;
        // The one that was used last is the one that is most likely still in the cache.
        let free = self.pool.iter_mut().rposition(|chunk| Arc::get_mut(chunk).is_some());
        let next = match free {
            Some(index) => self.pool.remove(index),
            None => Arc::new(vec![0; self.chunk_len]),
        };
        self.pool.push(std::mem::replace(&mut self.chunk, next));
    }

    /// Gives each frame another time, by the one it has, in nanoseconds.
    pub(super) fn date(&mut self, time: impl Fn(u64) -> u64) {
        for frame in &mut self.frames {
            frame.time = Timestamp::from_nanos(time(frame.time.as_nanos()));
        }
    }

    /// Puts the frames in the order of their times.
    pub(super) fn sort(&mut self) {
        let Self { frames, offloads, sorted, .. } = self;
        sorted.clear();
        sorted.extend(frames.drain(..).zip(offloads.drain(..)));
        sorted.sort_by_key(|(frame, _)| frame.time);
        for &(frame, offload) in &*sorted {
            frames.push(frame);
            offloads.push(offload);
        }
    }

    /// What frames are copied to.
    pub(super) fn filler(&mut self) -> Filler<'_> {
        let Self { capacity, chunk, used, frames, offloads, lent, .. } = self;
        let Some(chunk) = Arc::get_mut(chunk) else { unreachable!("a chunk nobody else holds") };
        let (capacity, base) = (*capacity, chunk.as_ptr().align_offset(LINE));
        Filler { capacity, base, chunk, used, frames, offloads, lent: lent.as_mut() }
    }
}

impl std::fmt::Debug for ReceiveBuffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let chunks = self.pool.len() + 1;
        f.debug_struct("ReceiveBuffer").field("frames", &self.frames.len()).field("chunks", &chunks).finish()
    }
}

/// Appends frames to a [`ReceiveBuffer`].
pub(super) struct Filler<'a> {
    capacity: usize,
    chunk: &'a mut [u8],
    /// Where the first cache line of the chunk begins.
    base: usize,
    used: &'a mut usize,
    frames: &'a mut Vec<FrameRef>,
    offloads: &'a mut Vec<Offload>,
    /// What takes frames where they are.
    pub(super) lent: Option<&'a mut Lent>,
}

/// What is known of a frame beside its bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    pub(super) time: u64,
    pub(super) wire_len: u32,
    pub(super) link: LinkType,
    pub(super) port: u16,
    pub(super) offload: Offload,
}

impl Filler<'_> {
    /// Appends a frame of `len` bytes that `write` puts in its place, with a last word on what is left to be done to it; `false`, and
    /// nothing is done, where there is no room for it.
    #[inline]
    pub(super) fn push(
        &mut self,
        len: usize,
        arrival: Arrival,
        write: impl FnOnce(&mut [u8], &mut Offload),
    ) -> bool {
        let start = self.base + *self.used;
        // A line more: a batch reads whole lines of frames that are shorter.
        if self.frames.len() >= self.capacity || self.chunk.len() < start + len + LINE {
            return false;
        }
        let mut offload = arrival.offload;
        write(&mut self.chunk[start..start + len], &mut offload);
        // Also where there are no bytes: the chunk is the batch's from then on.
        *self.used += len.max(1).next_multiple_of(LINE);
        let copies_begin = self.lent.as_ref().map_or(0, |lent| lent.copies_begin());
        self.append(copies_begin + start as u64, len, arrival, offload);
        true
    }

    /// Appends a frame that `hold` has lent, with a last word as above, and names: its place as the loan has it, and its bytes. `false`, and
    /// nothing is done, where there is no room for it, or nothing that takes it.
    #[inline]
    pub(super) fn push_lent(
        &mut self,
        arrival: Arrival,
        hold: impl FnOnce(&mut Lent, &mut Offload) -> (u64, usize),
    ) -> bool {
        let Some(lent) = self.lent.as_deref_mut().filter(|_| self.frames.len() < self.capacity) else {
            return false;
        };
        let mut offload = arrival.offload;
        let (offset, len) = hold(lent, &mut offload);
        self.append(offset, len, arrival, offload);
        true
    }

    #[inline]
    fn append(&mut self, offset: u64, len: usize, arrival: Arrival, offload: Offload) {
        let Arrival { time, wire_len, link, port, .. } = arrival;
        let time = Timestamp::from_nanos(time);
        self.frames.push(FrameRef { offset, time, len: len as u32, wire_len, link, port });
        self.offloads.push(offload);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn push(buffer: &mut ReceiveBuffer, len: usize, fill: u8) -> bool {
        let arrival = Arrival {
            time: u64::from(fill),
            wire_len: len as u32 + 1,
            link: LinkType::ETHERNET,
            port: 3,
            offload: Offload::partial(u16::from(fill), 6),
        };
        buffer.filler().push(len, arrival, |place, _| place.fill(fill))
    }

    #[test]
    fn frames_without_bytes_come_out() {
        let (mut buffer, mut batch) = (ReceiveBuffer::new(4), Batch::new(4));
        for _ in 0..3 {
            assert!(push(&mut buffer, 0, 1));
            buffer.deliver(&mut batch);
            assert_eq!((batch.len(), batch.bytes(0)), (1, &[][..]));
        }
    }

    #[test]
    fn frames_come_out_as_they_went_in_beside_what_is_left_to_be_done() {
        let (mut buffer, mut batch) = (ReceiveBuffer::new(4), Batch::new(4));
        for round in 0..3 {
            for (fill, len) in [(1, 60), (2, 1_514), (3, 64), (4, 65_000)] {
                assert!(push(&mut buffer, len, fill + round), "{len}");
            }
            assert!(!push(&mut buffer, 60, 9), "it is full");
            buffer.deliver(&mut batch);
            assert!(buffer.is_empty());
            assert_eq!(batch.len(), 4);
            for (index, (fill, len)) in [(1, 60), (2, 1_514), (3, 64), (4, 65_000)].into_iter().enumerate() {
                let fill = fill + round;
                assert_eq!(batch.bytes(index), vec![fill; len]);
                let frame = batch.frames()[index];
                assert_eq!(
                    (frame.wire_len, frame.port, frame.time.as_nanos()),
                    (len as u32 + 1, 3, u64::from(fill))
                );
                assert_eq!(batch.offload(index), Offload::partial(u16::from(fill), 6));
                let address = batch.bytes(index).as_ptr();
                assert_eq!(address.align_offset(LINE), 0, "frames begin on cache lines");
                let arena = (**batch.arena()).as_ref();
                assert!(arena.len() >= frame.offset as usize + LINE);
            }
        }
        buffer.deliver(&mut batch);
        assert!(batch.is_empty());
    }

    #[test]
    fn a_full_chunk_ends_a_batch_and_the_longest_frame_fits_in_an_empty_one() {
        let mut buffer = ReceiveBuffer::new(10_000);
        let mut pushed = 0;
        while push(&mut buffer, LONGEST_FRAME, 1) {
            pushed += 1;
        }
        assert!((2..100).contains(&pushed), "{pushed}");
        let mut batch = Batch::new(1);
        buffer.deliver(&mut batch);
        assert_eq!(batch.len(), pushed);
        assert!(push(&mut ReceiveBuffer::new(1), LONGEST_FRAME, 1));
    }

    #[test]
    fn chunks_are_used_again_once_no_batch_holds_them() {
        let mut buffer = ReceiveBuffer::new(8);
        let mut batches: Vec<Batch> = (0..3).map(|_| Batch::new(8)).collect();
        for round in 0..30u8 {
            let batch = &mut batches[usize::from(round % 3)];
            assert!(push(&mut buffer, 100, round));
            buffer.deliver(batch);
        }
        assert!(buffer.pool.len() <= 4, "{buffer:?}");
        // What batches hold was not written over.
        for (batch, round) in batches.iter().zip(27..) {
            assert_eq!(batch.bytes(0), vec![round; 100]);
        }
    }
}
