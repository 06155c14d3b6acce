//! A kernel of our own at the other end of the rings.

use std::sync::Arc;

use packetloom_packet::{Batch, LinkType};

use super::super::ring::tests::{Raw, both_sides};
use super::super::umem::Umem;
use super::*;
use crate::port::{Mode, ReceiveBuffer};

const CHUNK: usize = 2_048;
const SIZE: u32 = 8;
const HEADROOM: u64 = 256;

/// The kernel's sides of the rings, and its view of the memory.
struct Kernel {
    fill: Consumer<u64>,
    frames: Producer<Descriptor>,
    raw: Raw,
    fill_raw: Raw,
    buffer: ReceiveBuffer,
    statistics: Statistics,
}

impl Kernel {
    fn new(first: u32) -> (Self, Receiving) {
        let (fill, kernel_fill, fill_raw) = both_sides::<u64>(SIZE, first);
        let (kernel_frames, frames, raw) = both_sides::<Descriptor>(SIZE, first.wrapping_add(7));
        let umem = Umem::new(CHUNK, &[(SIZE, 0)]).expect("memory");
        assert_eq!(umem.divide(0, 1, SIZE).expect("divided"), SIZE);
        let kernel = Self {
            fill: kernel_fill,
            frames: kernel_frames,
            raw,
            fill_raw,
            buffer: ReceiveBuffer::new(64),
            statistics: Statistics::default(),
        };
        (kernel, Receiving::new(umem.pool(0, 0).expect("nobody uses it"), fill, frames))
    }

    /// A chunk that it was given.
    fn chunk(&mut self) -> Option<u64> {
        (self.fill.available().entries > 0).then(|| {
            let address = self.fill.peek(0);
            self.fill.advance(1);
            self.fill.publish();
            address
        })
    }

    /// Has a frame of these bytes come, in as many chunks as it takes; whether it had them.
    fn deliver(&mut self, umem: &Umem, bytes: &[u8]) -> bool {
        let pieces: Vec<_> = bytes.chunks(CHUNK - HEADROOM as usize).collect();
        if (self.fill.available().entries as usize) < pieces.len() {
            return false;
        }
        for (index, piece) in pieces.iter().enumerate() {
            let address = self.chunk().expect("there are enough") + HEADROOM;
            umem.write_as_kernel(address, piece);
            let options = if index + 1 < pieces.len() { Descriptor::CONTINUED } else { 0 };
            assert!(self.frames.push(Descriptor { address, len: piece.len() as u32, options }));
        }
        self.frames.publish();
        true
    }

    /// Puts a descriptor into the ring, whatever it says.
    fn push(&mut self, address: u64, len: u32, options: u32) {
        assert!(self.frames.push(Descriptor { address, len, options }));
        self.frames.publish();
    }

    /// What is received of what came.
    fn received(&mut self, receiving: &mut Receiving) -> Vec<Vec<u8>> {
        let marks = Marks { mode: Mode::Inline, link: LinkType::ETHERNET, number: 3 };
        let taking = Taking { marks, time: 5, guesses: false };
        let mut batch = Batch::new(64);
        receiving.receive(taking, &mut self.buffer.filler(), &mut self.statistics);
        self.buffer.deliver(&mut batch);
        assert!(batch.frames().iter().all(|frame| (frame.port, frame.time.as_nanos()) == (3, 5)));
        (0..batch.len()).map(|index| batch.bytes(index).to_vec()).collect()
    }

    /// Chunks that it has and that no frame came in.
    fn has(&mut self) -> u32 {
        self.fill.available().entries
    }
}

fn frame(number: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + number) as u8).collect()
}

/// Whatever the indices, and however many chunks a frame takes: the kernel gets every chunk back.
#[test]
fn frames_come_whole_and_no_chunk_is_lost() {
    for first in [0, u32::MAX - 3, u32::MAX - 1_000] {
        let (mut kernel, mut receiving) = Kernel::new(first);
        let lens = [60, 1_514, 1_792, 1_793, 9_014, 60, 3_584, 5_000];
        let umem = memory(&receiving);
        let (mut sent, mut came) = (Vec::new(), Vec::new());
        for round in 0..500 {
            let next = frame(round, lens[round % lens.len()]);
            if !kernel.deliver(&umem, &next) {
                came.extend(kernel.received(&mut receiving));
                assert_eq!(kernel.has(), SIZE);
                assert!(kernel.deliver(&umem, &next), "it has all chunks");
            }
            sent.push(next);
        }
        came.extend(kernel.received(&mut receiving));
        assert_eq!(came.len(), sent.len());
        assert!(came == sent);
        assert_eq!((kernel.has(), kernel.statistics.unsound), (SIZE, 0));
        assert_eq!((kernel.statistics.received, receiving.unread()), (500, 0));
        let bytes: usize = sent.iter().map(Vec::len).sum();
        assert_eq!(kernel.statistics.received_bytes, bytes as u64);
    }
}

/// The memory, as the kernel has it.
fn memory(receiving: &Receiving) -> Arc<Umem> {
    receiving.pool.umem().clone()
}

#[test]
fn a_frame_waits_for_its_last_piece() {
    let (mut kernel, mut receiving) = Kernel::new(0);
    let address = kernel.chunk().expect("a chunk");
    kernel.push(address + HEADROOM, 1_000, Descriptor::CONTINUED);
    assert!(kernel.received(&mut receiving).is_empty());
    assert_eq!((receiving.unread(), kernel.has()), (0, SIZE - 1));
    let last = kernel.chunk().expect("a chunk");
    kernel.push(last + HEADROOM, 500, 0);
    assert_eq!(receiving.unread(), 1);
    let came = kernel.received(&mut receiving);
    assert_eq!((came.len(), came[0].len(), kernel.has()), (1, 1_500, SIZE));
}

/// A full buffer leaves frames in the ring, and chunks with them.
#[test]
fn what_there_is_no_room_for_stays() {
    let (mut kernel, mut receiving) = Kernel::new(u32::MAX);
    kernel.buffer = ReceiveBuffer::new(3);
    let umem = memory(&receiving);
    for number in 0..5 {
        assert!(kernel.deliver(&umem, &frame(number, 100)));
    }
    assert_eq!(kernel.received(&mut receiving).len(), 3);
    assert_eq!((receiving.unread(), kernel.has()), (2, SIZE - 2));
    let rest = kernel.received(&mut receiving);
    assert_eq!(rest, [frame(3, 100), frame(4, 100)]);
    assert_eq!(kernel.has(), SIZE);
}

/// Frames that do not lie in chunks that the kernel has are counted, and nothing is read or given away for them.
#[test]
fn descriptors_that_cannot_be_are_counted() {
    let (mut kernel, mut receiving) = Kernel::new(u32::MAX - 4);
    let umem = memory(&receiving);
    let end = u64::from(SIZE) * CHUNK as u64;
    for (number, (address, len)) in
        [(end, 60), (u64::MAX, 60), (u64::MAX - 10, u32::MAX), (0, 2_049), (2_000, 100), (1 << 40, 0)]
            .into_iter()
            .enumerate()
    {
        kernel.push(address, len, 0);
        assert!(kernel.received(&mut receiving).is_empty());
        assert_eq!((kernel.statistics.unsound, kernel.has()), (number as u64 + 1, SIZE), "{address} {len}");
    }
    // A chunk in which another frame came that is taken in the same look: it was given once, and goes back once.
    let address = kernel.chunk().expect("a chunk") + HEADROOM;
    kernel.push(address, 60, 0);
    kernel.push(address, 60, 0);
    let unsound = kernel.statistics.unsound;
    assert_eq!(kernel.received(&mut receiving).len(), 1);
    assert_eq!((kernel.statistics.unsound, kernel.has()), (unsound + 1, SIZE));
    // It goes on.
    assert!(kernel.deliver(&umem, &frame(2, 600)));
    assert_eq!(kernel.received(&mut receiving).pop(), Some(frame(2, 600)));
}

/// A frame that never ends, and one that is longer than any may be.
#[test]
fn endless_frames_are_passed_over() {
    let (mut kernel, mut receiving) = Kernel::new(0);
    for _ in 0..SIZE {
        let address = kernel.chunk().expect("a chunk");
        kernel.push(address + HEADROOM, 100, Descriptor::CONTINUED);
    }
    assert!(kernel.received(&mut receiving).is_empty());
    assert_eq!((kernel.statistics.unsound, kernel.has()), (1, SIZE));
    let umem = memory(&receiving);
    assert!(kernel.deliver(&umem, &frame(1, 200)));
    assert_eq!(kernel.received(&mut receiving), [frame(1, 200)]);
}

#[test]
fn indices_that_cannot_be_stop_a_queue_and_do_no_harm() {
    let (mut kernel, mut receiving) = Kernel::new(3);
    let next = kernel.frames.next();
    for ahead in [SIZE + 1, 1 << 31, u32::MAX] {
        kernel.raw.set_producer(next.wrapping_add(ahead));
        let before = kernel.statistics.unsound;
        for _ in 0..3 {
            assert!(kernel.received(&mut receiving).is_empty());
        }
        assert_eq!(kernel.statistics.unsound, before + 1, "told once");
    }
    kernel.raw.set_producer(next);
    // A fill ring that says that more was taken than was put in: chunks wait until it is right again.
    let umem = memory(&receiving);
    assert!(kernel.deliver(&umem, &frame(1, 100)));
    kernel.fill_raw.set_consumer(0x8000_0000);
    assert_eq!(kernel.received(&mut receiving).len(), 1);
    kernel.fill_raw.set_consumer(4);
    assert!(kernel.received(&mut receiving).is_empty());
    assert_eq!(kernel.has(), SIZE);
}

#[test]
fn the_kernel_is_woken_up_where_it_asks_for_that() {
    let (kernel, receiving) = Kernel::new(0);
    assert!(!receiving.needs_wakeup());
    kernel.fill_raw.set_flags(libc::XDP_RING_NEED_WAKEUP);
    assert!(receiving.needs_wakeup());
}

/// Checksums that senders left partial are told, where they may have.
#[test]
fn partial_checksums_are_guessed_where_that_is_wanted() {
    let (mut kernel, mut receiving) = Kernel::new(0);
    let umem = memory(&receiving);
    let mut udp = vec![0; 60];
    udp[12] = 8;
    udp[14] = 0x45;
    udp[17] = 46;
    udp[23] = 17;
    udp[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
    let sum: u32 = 0x0a00 + 1 + 0x0a00 + 2 + 17 + 26;
    udp[39] = 26;
    udp[40..42].copy_from_slice(&(sum as u16).to_be_bytes());
    for (guesses, expected) in [(true, Offload::partial(34, 6)), (false, Offload::NONE)] {
        assert!(kernel.deliver(&umem, &udp));
        let marks = Marks { mode: Mode::Inline, link: LinkType::ETHERNET, number: 0 };
        let taking = Taking { marks, time: 0, guesses };
        receiving.receive(taking, &mut kernel.buffer.filler(), &mut kernel.statistics);
        let mut batch = Batch::new(4);
        kernel.buffer.deliver(&mut batch);
        assert_eq!(batch.offload(0), expected);
        assert_eq!(batch.bytes(0), udp);
    }
}
