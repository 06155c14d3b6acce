//! A kernel of our own at the other end of the rings: it sends when it is woken up, as it was told to.

use std::collections::VecDeque;
use std::sync::Mutex;

use packetloom_packet::Offload;

use super::super::ring::tests::{Raw, both_sides};
use super::super::umem::Umem;
use super::*;
use crate::port::Link;

const CHUNK: usize = 2_048;
const SIZE: u32 = 64;
/// Chunks in front of those by which it sends.
const FOREIGN: u32 = 4;

/// What the kernel does when it is woken up next.
#[derive(Clone, Copy, Debug)]
enum Act {
    /// Sends all.
    Send,
    /// Sends so many entries, and says that there is no room for now.
    Some(u32),
    /// Sends so many frames of one entry, drops the next one, and says so.
    Drop(u32),
    /// Says something and does not look at the ring.
    Say(Errno),
}

#[derive(Debug)]
struct Kernel {
    acts: VecDeque<Act>,
    ring: Consumer<Descriptor>,
    completed: Producer<u64>,
    memory: Arc<Umem>,
    sent: Vec<Vec<u8>>,
    partial: Vec<u8>,
    /// Whether it says how far it came, as since Linux 6.17.
    tells: bool,
    /// Whether frames that were sent are given back.
    completes: bool,
    wakes: usize,
}

impl Kernel {
    /// Takes an entry out; whether a frame ends with it.
    fn take(&mut self, is_sent: bool) -> bool {
        let descriptor = self.ring.peek(0);
        self.ring.advance(1);
        let mut bytes = vec![0; descriptor.len as usize];
        let (chunk, within) =
            self.memory.locate(descriptor.address, descriptor.len as usize).expect("in the memory");
        self.memory.read(chunk, within, &mut bytes);
        self.partial.extend(bytes);
        if self.completes {
            assert!(self.completed.push(descriptor.address));
            self.completed.publish();
        }
        if !descriptor.is_continued() {
            let frame = std::mem::take(&mut self.partial);
            self.sent.extend(is_sent.then_some(frame));
        }
        !descriptor.is_continued()
    }

    fn wake(&mut self) -> Result<(), Errno> {
        self.wakes += 1;
        let act = self.acts.pop_front().unwrap_or(Act::Send);
        let available = self.ring.available().entries;
        let result = match act {
            Act::Send => {
                for _ in 0..available {
                    self.take(true);
                }
                self.ring.publish();
                return Ok(());
            }
            Act::Some(entries) => {
                for _ in 0..entries.min(available) {
                    self.take(true);
                }
                Err(Errno::AGAIN)
            }
            Act::Drop(frames) => {
                (0..frames).for_each(|_| assert!(self.take(true)));
                while !self.take(false) {}
                Err(Errno::BUSY)
            }
            Act::Say(error) => return Err(error),
        };
        if self.tells {
            self.ring.publish();
        }
        result
    }
}

#[derive(Debug)]
struct Waker(Arc<Mutex<Kernel>>);

impl Wake for Waker {
    fn wake(&mut self) -> Result<(), Errno> {
        self.0.lock().expect("not poisoned").wake()
    }
}

struct Ends {
    transmit: Transmit,
    kernel: Arc<Mutex<Kernel>>,
    exit: Exit,
    ring: Raw,
    completed: Raw,
}

impl Ends {
    fn new(first: u32) -> Self {
        let (ring, kernel_ring, ring_raw) = both_sides::<Descriptor>(SIZE, first);
        let (kernel_completed, completed, completed_raw) = both_sides::<u64>(SIZE, first.wrapping_sub(9));
        let memory = Umem::new(CHUNK, &[(FOREIGN, SIZE)]).expect("memory");
        let region = memory.sends(0).expect("nobody has it");
        let kernel = Arc::new(Mutex::new(Kernel {
            acts: VecDeque::new(),
            ring: kernel_ring,
            completed: kernel_completed,
            memory,
            sent: Vec::new(),
            partial: Vec::new(),
            tells: true,
            completes: true,
            wakes: 0,
        }));
        let sending = Sending::new(Box::new(Waker(kernel.clone())), region, ring, completed, SIZE);
        let mut transmit = Transmit::default();
        transmit.replace(Some(sending));
        let exit = Exit::new(&link(true));
        Self { transmit, kernel, exit, ring: ring_raw, completed: completed_raw }
    }

    /// What the kernel does the next times; then it sends.
    fn acts(&self, acts: &[Act]) {
        self.kernel.lock().expect("not poisoned").acts = acts.iter().copied().collect();
    }

    fn sent(&self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.kernel.lock().expect("not poisoned").sent)
    }

    fn send(&mut self, frames: &[Vec<u8>]) -> (usize, Option<Stop>) {
        let outgoing: Vec<_> =
            frames.iter().map(|bytes| Outgoing { bytes, offload: Offload::NONE }).collect();
        let sent = self.transmit.send(&outgoing, &self.exit).expect("sent");
        (sent.taken, sent.stopped)
    }

    /// Chunks that hold nothing, once what was completed is taken.
    fn free(&mut self) -> usize {
        let sending = self.transmit.sending.as_mut().expect("there");
        sending.reap();
        sending.free.len()
    }
}

fn link(has_carrier: bool) -> Link {
    Link {
        index: 7,
        name: "eth7".into(),
        hardware: 1,
        mtu: 9_000,
        queues: 1,
        is_up: true,
        has_carrier,
        ..Link::default()
    }
}

fn frames(count: usize, len: usize) -> Vec<Vec<u8>> {
    (0..count).map(|number| (0..len).map(|at| (at + number * 3) as u8).collect()).collect()
}

#[test]
fn frames_leave_in_order_and_no_chunk_is_lost() {
    for first in [0, u32::MAX - 20, u32::MAX - 3_000] {
        let mut ends = Ends::new(first);
        let (mut all, mut came, mut bytes) = (Vec::new(), Vec::new(), 0);
        for round in 0..200 {
            let group = frames([1, 7, 64, 33][round % 4], [60, 1_514, 2_048, 2_049, 9_014][round % 5]);
            let mut rest = &group[..];
            while !rest.is_empty() {
                let (taken, stopped) = ends.send(rest);
                assert!(taken > 0, "{stopped:?}");
                rest = &rest[taken..];
            }
            bytes += group.iter().map(Vec::len).sum::<usize>();
            came.extend(ends.sent());
            all.extend(group);
        }
        assert_eq!(came.len(), all.len());
        assert!(came == all);
        let statistics = ends.transmit.statistics();
        assert_eq!((statistics.sent, statistics.sent_bytes), (all.len() as u64, bytes as u64));
        assert_eq!((statistics.dropped, ends.free()), (0, SIZE as usize));
    }
}

/// What the kernel has no room for stays in the ring and leaves first; meanwhile nothing more is taken.
#[test]
fn what_is_not_taken_at_once_leaves_later() {
    for tells in [true, false] {
        let mut ends = Ends::new(5);
        ends.kernel.lock().expect("not poisoned").tells = tells;
        let group = frames(40, 60);
        ends.acts(&[Act::Some(3), Act::Some(0)]);
        assert_eq!(ends.send(&group), (32, Some(Stop::Busy)), "those of a burst are in the ring");
        assert!(ends.transmit.pending.load(Ordering::Relaxed));
        ends.acts(&[Act::Some(0), Act::Some(0)]);
        assert_eq!(ends.send(&group[32..]), (0, Some(Stop::Busy)));
        // Nobody sends more: looks at the port have the rest sent.
        ends.acts(&[]);
        ends.transmit.flush();
        assert!(!ends.transmit.pending.load(Ordering::Relaxed));
        assert_eq!(ends.send(&group[32..]), (8, None));
        assert!(ends.sent() == group, "{tells}");
        assert_eq!((ends.transmit.statistics().sent, ends.free()), (40, SIZE as usize));
    }
}

/// A frame that is dropped after it was taken is counted as that, with its bytes, and the others go on.
#[test]
fn dropped_frames_are_counted() {
    for tells in [true, false] {
        let mut ends = Ends::new(u32::MAX - 2);
        ends.kernel.lock().expect("not poisoned").tells = tells;
        let mut group = frames(10, 60);
        // In two chunks, and so that its bytes are told from those of the others.
        group[4] = frames(1, 3_000).remove(0);
        ends.acts(&[Act::Drop(4)]);
        let (taken, stopped) = ends.send(&group);
        assert_eq!((taken, stopped), (10, None), "they are in the ring");
        ends.acts(&[Act::Drop(0), Act::Send]);
        ends.transmit.flush();
        ends.transmit.flush();
        let statistics = ends.transmit.statistics();
        assert_eq!((statistics.sent, statistics.dropped), (8, 2));
        if tells {
            assert_eq!(statistics.sent_bytes, 8 * 60);
        }
        let mut left = group.clone();
        left.drain(4..6);
        assert!(ends.sent() == left);
        assert_eq!(ends.free(), SIZE as usize);
    }
}

/// An interface that is switched off takes nothing: what was to be sent is the caller's again.
#[test]
fn an_interface_that_is_down_takes_nothing() {
    let mut ends = Ends::new(0);
    let group = frames(3, 100);
    for (error, stop) in [(Errno::NETDOWN, Stop::Down), (Errno::NXIO, Stop::Gone)] {
        ends.acts(&[Act::Say(error)]);
        assert_eq!(ends.send(&group), (0, Some(stop)));
    }
    assert_eq!((ends.transmit.statistics().sent, ends.free()), (0, SIZE as usize));
    assert_eq!(ends.send(&group), (3, None));
    assert!(ends.sent() == group, "once");
    // Once the kernel has looked at the ring, nothing is taken back.
    ends.acts(&[Act::Some(1), Act::Say(Errno::NETDOWN)]);
    assert_eq!(ends.send(&group), (3, None));
    // What waits is no reason to look again soon, until the interface is there.
    assert!(!ends.transmit.pending.load(Ordering::Relaxed));
    ends.acts(&[Act::Say(Errno::NETDOWN)]);
    assert_eq!(ends.send(&group), (0, Some(Stop::Down)));
    assert_eq!(ends.send(&[]), (0, None));
    assert!(ends.sent() == group);
    let statistics = ends.transmit.statistics();
    assert_eq!((statistics.sent, statistics.dropped, statistics.stops), (6, 0, 3));
}

#[test]
fn what_lies_in_the_ring_when_the_interface_goes_is_dropped() {
    let mut ends = Ends::new(u32::MAX);
    ends.acts(&[Act::Some(1), Act::Some(0)]);
    assert_eq!(ends.send(&frames(5, 60)), (5, None));
    ends.transmit.replace(None);
    let statistics = ends.transmit.statistics();
    assert_eq!((statistics.sent, statistics.sent_bytes, statistics.dropped), (1, 60, 4));
    assert_eq!(ends.send(&frames(1, 60)), (0, Some(Stop::Gone)));
    assert!(!ends.transmit.pending.load(Ordering::Relaxed));
}

/// While the other end is down nothing is handed over, and what lay in the ring goes.
#[test]
fn no_carrier_takes_nothing() {
    let mut ends = Ends::new(0);
    ends.acts(&[Act::Some(0)]);
    assert_eq!(ends.send(&frames(3, 60)), (3, None));
    ends.exit = Exit::new(&link(false));
    ends.acts(&[Act::Drop(0), Act::Drop(0), Act::Drop(0)]);
    assert_eq!(ends.send(&frames(2, 60)), (0, Some(Stop::Busy)));
    let statistics = ends.transmit.statistics();
    assert_eq!((statistics.sent, statistics.dropped, ends.free()), (0, 3, SIZE as usize));
}

#[test]
fn frames_that_cannot_leave_are_passed_over_and_counted() {
    let mut ends = Ends::new(0);
    let mut tagged = frames(1, 9_018).remove(0);
    tagged[12..14].copy_from_slice(&[0x81, 0]);
    let group =
        [frames(1, 9_014), frames(1, 9_015), vec![tagged.clone()], frames(1, 13), frames(1, 60)].concat();
    assert_eq!(ends.send(&group), (5, None));
    assert!(ends.sent() == [group[0].clone(), tagged, group[4].clone()]);
    let giant = Offload::from_bytes([1, 1, 0, 0, 100, 0, 34, 0, 16, 0]);
    assert!(giant.is_giant());
    let outside = Offload::partial(50, 16);
    for offload in [giant, outside] {
        let sent = ends.transmit.send(&[Outgoing { bytes: &group[4], offload }], &ends.exit).expect("sent");
        assert_eq!((sent.taken, sent.stopped), (1, None));
    }
    let statistics = ends.transmit.statistics();
    assert_eq!((statistics.sent, statistics.too_long, statistics.refused), (3, 1, 3));
}

/// A partial checksum is finished in what leaves.
#[test]
fn partial_checksums_are_finished() {
    let mut ends = Ends::new(0);
    let mut frame = vec![0; 60];
    frame[34..40].copy_from_slice(&[0x12, 0x34, 0, 0, 0xab, 0xcd]);
    frame[40..42].copy_from_slice(&[0x01, 0x02]);
    let outgoing = [Outgoing { bytes: &frame, offload: Offload::partial(34, 6) }];
    assert_eq!(ends.transmit.send(&outgoing, &ends.exit).expect("sent").taken, 1);
    let sent = ends.sent();
    let expected = !(0x1234u16 + 0xabcd + 0x0102);
    assert_eq!(sent[0][40..42], expected.to_be_bytes());
    assert_eq!((&sent[0][..40], &sent[0][42..]), (&frame[..40], &frame[42..]));
}

/// Where chunks do not come back there is no room; what comes back that was not given is none.
#[test]
fn chunks_that_do_not_come_back_end_the_sending() {
    let mut ends = Ends::new(0);
    ends.kernel.lock().expect("not poisoned").completes = false;
    assert_eq!(ends.send(&frames(80, 60)), (64, Some(Stop::Busy)));
    assert_eq!(ends.send(&frames(1, 60)), (0, Some(Stop::Busy)));
    {
        let mut kernel = ends.kernel.lock().expect("not poisoned");
        let own = kernel.memory.address(FOREIGN + 5);
        for address in [0, u64::MAX, own + 1, own, own, 1 << 50] {
            assert!(kernel.completed.push(address));
        }
        kernel.completed.publish();
    }
    assert_eq!(ends.free(), 1);
    // An index that cannot be gives nothing back.
    ends.completed.set_producer(1 << 31);
    assert_eq!(ends.free(), 1);
}

/// A kernel that says it took more than there was sends nothing more, and nothing is lost from memory.
#[test]
fn an_index_that_cannot_be_leaves_no_room() {
    let mut ends = Ends::new(0);
    ends.ring.set_consumer(40);
    assert_eq!(ends.send(&frames(3, 60)), (0, Some(Stop::Busy)));
    ends.ring.set_consumer(0);
    assert_eq!(ends.send(&frames(3, 60)), (3, None));
    assert_eq!(ends.free(), SIZE as usize);
}

/// What the kernel says that nobody expects is an error, the next time: what was handed over is in the ring.
#[test]
fn other_errors_are_said() {
    let mut ends = Ends::new(0);
    let group = frames(2, 60);
    let outgoing: Vec<_> = group.iter().map(|bytes| Outgoing { bytes, offload: Offload::NONE }).collect();
    ends.acts(&[Act::Say(Errno::FAULT), Act::Say(Errno::FAULT)]);
    assert_eq!(ends.transmit.send(&outgoing, &ends.exit).expect("in the ring").taken, 2);
    assert_eq!(ends.transmit.send(&outgoing, &ends.exit), Err(Errno::FAULT));
    assert_eq!(ends.transmit.send(&outgoing, &ends.exit).expect("sent").taken, 2);
    assert_eq!(ends.sent().len(), 4);
    let wakes = ends.kernel.lock().expect("not poisoned").wakes;
    assert_eq!(ends.send(&[]), (0, None));
    assert_eq!(ends.kernel.lock().expect("not poisoned").wakes, wakes, "nothing to be sent, nobody woken up");
}
