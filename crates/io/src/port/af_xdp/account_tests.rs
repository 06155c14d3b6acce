//! An account over all rings: whatever the order in which frames come, are forwarded and dropped, rings are full, frames are given back and
//! interfaces go away and come back, each chunk is in one place, no frame changes while somebody has it, and all leave as they were sent.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};

use packetloom_packet::{Batch, LinkType, Offload};
use proptest::prelude::*;
use rustix::io::Errno;

use super::super::interface::{Exit, Marks, Outgoing};
use super::super::{Link, Mode, ReceiveBuffer, Statistics, Stop};
use super::queue::{Receiving, Taking};
use super::ring::tests::both_sides;
use super::ring::{Consumer, Descriptor, Producer};
use super::transmit::{Sending, Transmit, Wake};
use super::umem::{Lent, Umem};

const CHUNK: usize = 2_048;
const HEADROOM: usize = 256;
/// Chunks by which each interface receives and sends, and places in its rings.
const SIZE: u32 = 16;
const SENDS: u32 = 8;
const INTERFACES: usize = 3;

/// A frame: its number, and whether it was rewritten, say its bytes.
fn frame(number: u32, len: usize, is_rewritten: bool) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..len).map(|at| (at as u32 * 5 + number * 11) as u8).collect();
    bytes[14..18].copy_from_slice(&number.to_be_bytes());
    bytes[18] = u8::from(is_rewritten);
    bytes
}

/// The kernel's side of an interface.
#[derive(Debug)]
struct Kernel {
    umem: Arc<Umem>,
    fill: Consumer<u64>,
    frames: Producer<Descriptor>,
    /// Chunks of frames in the receive ring, or that were there.
    arrived: VecDeque<u32>,
    ring: Consumer<Descriptor>,
    completed: Producer<u64>,
    /// Addresses in the completion ring, or that were there.
    told: VecDeque<u64>,
    /// What it is sending, with the bytes that it saw first.
    sending: VecDeque<(Descriptor, Vec<u8>)>,
    partial: Vec<u8>,
    /// Frames that have left.
    left: Vec<Vec<u8>>,
    /// Entries that it sends the next times that it is woken up; then all. None: it says that the interface is down.
    acts: VecDeque<Option<u32>>,
}

impl Kernel {
    fn read(&self, descriptor: Descriptor) -> Vec<u8> {
        let len = descriptor.len as usize;
        let (chunk, within) = self.umem.locate(descriptor.address, len).expect("in the memory");
        let mut bytes = vec![0; len];
        self.umem.read(chunk, within, &mut bytes);
        bytes
    }

    /// Has a frame come; whether there was room.
    fn arrive(&mut self, bytes: &[u8]) -> bool {
        let pieces: Vec<_> = bytes.chunks(CHUNK - HEADROOM).collect();
        if (self.fill.available().entries as usize) < pieces.len()
            || (self.frames.room() as usize) < pieces.len()
        {
            return false;
        }
        for (index, piece) in pieces.iter().enumerate() {
            let address = self.fill.peek(0) + HEADROOM as u64;
            self.fill.advance(1);
            self.umem.write_as_kernel(address, piece);
            let options = if index + 1 < pieces.len() { Descriptor::CONTINUED } else { 0 };
            assert!(self.frames.push(Descriptor { address, len: piece.len() as u32, options }));
            self.arrived.push_back((address / CHUNK as u64) as u32);
        }
        self.fill.publish();
        self.frames.publish();
        true
    }

    /// Gives back so many of the chunks that it has sent; what it sees in them at the end is what it saw at first.
    fn complete(&mut self, count: usize) {
        for _ in 0..count.min(self.sending.len()).min(self.completed.room() as usize) {
            let (descriptor, bytes) = self.sending.pop_front().expect("there are as many");
            assert_eq!(self.read(descriptor), bytes, "it was changed on its way");
            assert!(self.completed.push(descriptor.address));
            self.told.push_back(descriptor.address);
        }
        self.completed.publish();
    }

    fn wake(&mut self) -> Result<(), Errno> {
        let available = self.ring.available().entries;
        let (count, result) = match self.acts.pop_front() {
            None => (available, Ok(())),
            Some(Some(entries)) => (entries.min(available), Err(Errno::AGAIN)),
            Some(None) => return Err(Errno::NETDOWN),
        };
        for _ in 0..count {
            let descriptor = self.ring.peek(0);
            self.ring.advance(1);
            let bytes = self.read(descriptor);
            self.partial.extend(&bytes);
            self.sending.push_back((descriptor, bytes));
            if !descriptor.is_continued() {
                let frame = std::mem::take(&mut self.partial);
                self.left.push(frame);
            }
        }
        self.ring.publish();
        result
    }

    /// Chunks by which it may receive now, or in which frames wait to be received.
    fn receives_by(&mut self) -> Vec<u32> {
        let waiting = self.frames.size() - self.frames.room();
        while self.arrived.len() > waiting as usize {
            self.arrived.pop_front();
        }
        let entries = self.fill.available().entries;
        let filled = (0..entries).map(|entry| (self.fill.peek(entry) / CHUNK as u64) as u32);
        filled.chain(self.arrived.iter().copied()).collect()
    }

    /// Chunks in the transmit ring, under way, and in the completion ring.
    fn sends_by(&mut self) -> Vec<u32> {
        let waiting = self.completed.size() - self.completed.room();
        while self.told.len() > waiting as usize {
            self.told.pop_front();
        }
        let entries = self.ring.available().entries;
        let in_ring = (0..entries).map(|entry| self.ring.peek(entry).address);
        let sending = self.sending.iter().map(|(descriptor, _)| descriptor.address);
        let all = in_ring.chain(sending).chain(self.told.iter().copied());
        all.map(|address| (address / CHUNK as u64) as u32).collect()
    }
}

#[derive(Debug)]
struct Waker(Arc<Mutex<Kernel>>);

impl Wake for Waker {
    fn wake(&mut self) -> Result<(), Errno> {
        self.0.lock().expect("not poisoned").wake()
    }
}

/// An interface in use.
struct InUse {
    kernel: Arc<Mutex<Kernel>>,
    receiving: Receiving,
    /// What was handed to it to be sent, in order.
    sent: Vec<Vec<u8>>,
}

impl InUse {
    fn kernel(&self) -> MutexGuard<'_, Kernel> {
        self.kernel.lock().expect("not poisoned")
    }
}

struct World {
    umem: Arc<Umem>,
    interfaces: Vec<Option<InUse>>,
    transmits: Vec<Transmit>,
    exit: Exit,
    buffer: ReceiveBuffer,
    statistics: Statistics,
    /// Batches that somebody has, with the frames in them.
    batches: VecDeque<(Batch, Vec<Vec<u8>>)>,
    /// Frames that were received, or are in rings, by their numbers.
    lens: Vec<usize>,
}

impl World {
    fn new() -> Self {
        let umem = Umem::new(CHUNK, &[(SIZE, SENDS); INTERFACES]).expect("memory");
        let mut buffer = ReceiveBuffer::new(32);
        buffer.set_lent(Some(Lent::new(std::slice::from_ref(&umem))));
        let link = Link { mtu: 9_000, is_up: true, has_carrier: true, ..Link::default() };
        let mut world = Self {
            umem,
            interfaces: (0..INTERFACES).map(|_| None).collect(),
            transmits: (0..INTERFACES).map(|_| Transmit::default()).collect(),
            exit: Exit::new(&link),
            buffer,
            statistics: Statistics::default(),
            batches: VecDeque::new(),
            lens: Vec::new(),
        };
        (0..INTERFACES).for_each(|place| world.come(place));
        world
    }

    /// An interface comes, or comes back.
    fn come(&mut self, place: usize) {
        self.go(place);
        let first = (self.lens.len() as u32).wrapping_sub(3);
        let (fill, kernel_fill, _) = both_sides::<u64>(SIZE, first);
        let (kernel_frames, frames, _) = both_sides::<Descriptor>(SIZE, first);
        let (ring, kernel_ring, _) = both_sides::<Descriptor>(SENDS, first);
        let (kernel_completed, completed, _) = both_sides::<u64>(SENDS, first);
        assert_eq!(self.umem.divide(place, 1, SIZE).expect("divided"), SIZE);
        let kernel = Arc::new(Mutex::new(Kernel {
            umem: self.umem.clone(),
            fill: kernel_fill,
            frames: kernel_frames,
            arrived: VecDeque::new(),
            ring: kernel_ring,
            completed: kernel_completed,
            told: VecDeque::new(),
            sending: VecDeque::new(),
            partial: Vec::new(),
            left: Vec::new(),
            acts: VecDeque::new(),
        }));
        let region = self.umem.sends(place).expect("nobody has it");
        let sending = Sending::new(Box::new(Waker(kernel.clone())), region, ring, completed, SENDS);
        self.transmits[place].replace(Some(sending));
        let receiving = Receiving::new(self.umem.pool(place, 0).expect("nobody uses it"), fill, frames);
        self.interfaces[place] = Some(InUse { kernel, receiving, sent: Vec::new() });
    }

    fn go(&mut self, place: usize) {
        self.transmits[place].replace(None);
        self.interfaces[place] = None;
    }

    fn arrive(&mut self, place: usize, len: usize) {
        let Some(interface) = &self.interfaces[place] else { return };
        if interface.kernel().arrive(&frame(self.lens.len() as u32, len, false)) {
            self.lens.push(len);
        }
    }

    fn receive(&mut self, place: usize) {
        let Some(interface) = &mut self.interfaces[place] else { return };
        let marks = Marks { mode: Mode::Inline, link: LinkType::ETHERNET, number: place as u16 };
        let taking = Taking { marks, time: 5, guesses: false };
        interface.receiving.receive(taking, &mut self.buffer.filler(), &mut self.statistics);
        if interface.receiving.is_idle() {
            interface.receiving.refill();
        }
    }

    fn deliver(&mut self) {
        let mut batch = Batch::new(32);
        self.buffer.deliver(&mut batch);
        let frames = (0..batch.len()).map(|index| {
            let bytes = batch.bytes(index);
            let number = u32::from_be_bytes(bytes[14..18].try_into().expect("four"));
            let expected = frame(number, self.lens[number as usize], false);
            assert_eq!(bytes, expected);
            expected
        });
        let frames = frames.collect();
        self.batches.push_back((batch, frames));
    }

    /// Sends the frames of a batch whose bits in `passes` are set by an interface; others of them are rewritten first.
    fn forward(&mut self, place: usize, passes: u32, rewrites: u32, kept: bool) {
        let Some((mut batch, mut frames)) = self.batches.pop_front() else { return };
        let chosen = |bits: u32, index: usize| bits >> (index % 32) & 1 == 1;
        for index in (0..batch.len()).filter(|&index| chosen(rewrites, index)) {
            if let Some(bytes) = batch.bytes_mut(index) {
                bytes[18] = 1;
                frames[index][18] = 1;
            }
        }
        let outgoing: Vec<_> = (0..batch.len())
            .filter(|&index| chosen(passes, index))
            .map(|index| Outgoing { bytes: batch.bytes(index), offload: Offload::NONE })
            .collect();
        let sent = self.transmits[place].send(&outgoing, &self.exit).expect("sent");
        match &mut self.interfaces[place] {
            Some(interface) => {
                interface.sent.extend(outgoing[..sent.taken].iter().map(|frame| frame.bytes.to_vec()));
            }
            None => assert!(outgoing.is_empty() || sent.stopped == Some(Stop::Gone)),
        }
        if kept {
            self.batches.push_back((batch, frames));
        }
    }

    fn check(&mut self) {
        // Who has frames sees them as they were.
        for (batch, frames) in &self.batches {
            assert!((0..batch.len()).all(|index| batch.bytes(index) == frames[index]));
        }
        let mut places = vec![Vec::new(); (INTERFACES as u32 * (SIZE + SENDS)) as usize];
        for (place, interface) in self.interfaces.iter().enumerate() {
            let Some(interface) = interface else { continue };
            let mut kernel = interface.kernel();
            assert!(interface.sent.starts_with(&kernel.left), "in order, and no other");
            kernel
                .receives_by()
                .iter()
                .for_each(|&chunk| places[chunk as usize].push(("received by", place)));
            kernel.sends_by().iter().for_each(|&chunk| places[chunk as usize].push(("sent by", place)));
            let returning = interface.receiving.returning();
            returning.iter().for_each(|&chunk| places[chunk as usize].push(("returning", place)));
            let free = self.transmits[place].free();
            free.iter().for_each(|&chunk| places[chunk as usize].push(("free", place)));
        }
        for place in 0..INTERFACES {
            self.umem.free(place).iter().for_each(|&chunk| places[chunk as usize].push(("free", place)));
            for chunk in self.umem.receives(place) {
                let (is_held, egress) = self.umem.away(chunk);
                let places = &places[chunk as usize];
                match egress {
                    Some(egress) => assert_eq!(places, &[("sent by", egress)], "{chunk}"),
                    None if is_held => assert!(places.is_empty(), "{chunk}: {places:?}"),
                    None => assert!(
                        matches!(places[..], [("received by" | "returning" | "free", of)] if of == place),
                        "{chunk}: {places:?}"
                    ),
                }
            }
            let Some(_) = &self.interfaces[place] else { continue };
            let begin = self.umem.receives(place).end;
            for chunk in begin..begin + SENDS {
                assert!(
                    matches!(places[chunk as usize][..], [("sent by" | "free", of)] if of == place),
                    "{chunk}: {:?}",
                    places[chunk as usize]
                );
            }
        }
    }

    /// Once everybody is done, the kernel can receive by all chunks again, and all that was sent has left.
    fn settle(mut self) {
        for place in 0..INTERFACES {
            if self.interfaces[place].is_none() {
                self.come(place);
            }
        }
        // The completion ring has room for some of them at a time, and so has a batch.
        for _ in 0..16 {
            self.receive_all();
            self.deliver();
            self.batches.clear();
            for (interface, transmit) in self.interfaces.iter().zip(&mut self.transmits) {
                let interface = interface.as_ref().expect("it came back");
                interface.kernel().acts.clear();
                transmit.flush();
                interface.kernel().complete(usize::MAX);
                transmit.flush();
            }
        }
        self.receive_all();
        self.check();
        for (place, interface) in self.interfaces.iter().enumerate() {
            let interface = interface.as_ref().expect("it came back");
            assert_eq!(interface.kernel().left, interface.sent);
            let mut chunks = interface.kernel().receives_by();
            chunks.sort_unstable();
            assert!(chunks.iter().copied().eq(self.umem.receives(place)), "{chunks:?}");
            assert_eq!(self.transmits[place].free().len(), SENDS as usize);
        }
        assert_eq!(self.statistics.unsound, 0);
    }

    fn receive_all(&mut self) {
        (0..INTERFACES).for_each(|place| self.receive(place));
    }

    /// Frames that were copied when they were received, and when they were sent.
    fn copied(&mut self) -> (u64, u64) {
        let sent = self.transmits.iter_mut().map(|transmit| transmit.statistics().copied).sum();
        (self.statistics.copied, sent)
    }
}

/// What happens next.
#[derive(Clone, Debug)]
enum Step {
    Arrive(usize, usize),
    Receive(usize),
    Deliver,
    Forward(usize, u32, u32, bool),
    Drop,
    Acts(usize, Vec<Option<u32>>),
    Flush(usize),
    Complete(usize, usize),
    Go(usize),
    Come(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let place = || 0..INTERFACES;
    let len = prop_oneof![4 => 60..1_515usize, 1 => 1_793..6_000usize];
    let act = prop_oneof![3 => (0..9u32).prop_map(Some), 1 => Just(None)];
    prop_oneof![
        24 => (place(), len).prop_map(|(place, len)| Step::Arrive(place, len)),
        8 => place().prop_map(Step::Receive),
        6 => Just(Step::Deliver),
        8 => (place(), any::<u32>(), any::<u32>(), any::<bool>())
            .prop_map(|(place, passes, rewrites, kept)| Step::Forward(place, passes, rewrites, kept)),
        2 => Just(Step::Drop),
        2 => (place(), prop::collection::vec(act, 1..4)).prop_map(|(place, acts)| Step::Acts(place, acts)),
        3 => place().prop_map(Step::Flush),
        6 => (place(), 0..6usize).prop_map(|(place, count)| Step::Complete(place, count)),
        1 => place().prop_map(Step::Go),
        1 => place().prop_map(Step::Come),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn each_chunk_is_in_one_place(steps in prop::collection::vec(step(), 1..300)) {
        let mut world = World::new();
        for step in steps {
            match step {
                Step::Arrive(place, len) => world.arrive(place, len),
                Step::Receive(place) => world.receive(place),
                Step::Deliver => world.deliver(),
                Step::Forward(place, passes, rewrites, kept) => world.forward(place, passes, rewrites, kept),
                Step::Drop => drop(world.batches.pop_front()),
                Step::Acts(place, acts) => {
                    if let Some(interface) = &world.interfaces[place] {
                        interface.kernel().acts = acts.into();
                    }
                }
                Step::Flush(place) => world.transmits[place].flush(),
                Step::Complete(place, count) => {
                    if let Some(interface) = &world.interfaces[place] {
                        interface.kernel().complete(count);
                    }
                }
                Step::Go(place) => world.go(place),
                Step::Come(place) => world.come(place),
            }
            world.check();
        }
        world.settle();
    }
}

/// Frames in one chunk are not copied, neither when they are received nor when they are sent, whether they are rewritten or not.
#[test]
fn frames_leave_from_where_they_came() {
    let mut world = World::new();
    for round in 0..100 {
        for place in 0..2 {
            (0..4).for_each(|_| world.arrive(place, 60 + round * 14));
        }
        world.receive_all();
        world.deliver();
        world.forward(1, 0x0f, 0x05, true);
        world.forward(0, 0xf0, 0xa0, false);
        world.check();
        for place in 0..2 {
            world.interfaces[place].as_ref().expect("there").kernel().complete(usize::MAX);
            world.transmits[place].flush();
        }
    }
    assert_eq!((world.copied(), world.statistics.received), ((0, 0), 800));
    let sent: u64 = world.transmits.iter_mut().map(|transmit| transmit.statistics().sent).sum();
    assert_eq!(sent, 800);
    world.settle();
}

/// An interface that never gives anything back keeps half of the chunks by which another one receives, and copies in all of its own; the other
/// one goes on, and what it sends elsewhere leaves.
#[test]
fn an_interface_that_never_completes_stops_no_other() {
    let mut world = World::new();
    let mut by_address = 0;
    for _ in 0..50 {
        (0..4).for_each(|_| world.arrive(0, 100));
        let before = world.statistics.received;
        world.receive(0);
        assert_eq!(world.statistics.received - before, 4, "there are chunks to receive by");
        world.deliver();
        // Two of them to the one that is stuck, and two to the other one.
        world.forward(1, 0x3, 0, true);
        world.forward(2, 0xc, 0, false);
        world.check();
        world.interfaces[2].as_ref().expect("there").kernel().complete(usize::MAX);
        world.transmits[2].flush();
        by_address = world.umem.receives(0).filter(|&chunk| world.umem.away(chunk).1 == Some(1)).count();
    }
    assert!((1..=SIZE as usize / 2).contains(&by_address), "{by_address}");
    let sent = |transmit: &mut Transmit| transmit.statistics().sent;
    assert_eq!(
        (sent(&mut world.transmits[1]), sent(&mut world.transmits[2])),
        (u64::from(SIZE / 2 + SENDS), 100)
    );
    world.settle();
}
