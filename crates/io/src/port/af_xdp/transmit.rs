//! The sending side of a port: chunks of memory with frames go to the kernel by a ring and come back by another one.
//!
//! A frame that a batch holds in the memory that all interfaces share leaves from there; all others are copied into chunks of the port's own.
//!
//! In copy mode the kernel looks at the ring only when it is woken up, and sends within that call: what it has not taken then stays in the ring
//! until the next time. A call ends with the first frame that the interface drops (EBUSY), after some frames, or where there is no room
//! for now (EAGAIN); it says nothing else of what it has done. Since Linux 6.17 the ring's index says how far it came.

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::super::checksum::complete_checksum;
use super::super::interface::{Exit, Outgoing};
use super::super::{PortState, SendStatistics, Sent, Stop};
use super::ring::{Consumer, Descriptor, Producer};
use super::umem::{Account, Region};

/// Frames for which the kernel is woken up: it sends as many with one call.
const BURST: usize = 32;
/// How long it is waited for chunks that the kernel has taken, before a socket is closed.
const LAST_WAIT: Duration = Duration::from_millis(5);
/// Bytes of an Ethernet header, where its EtherType stands, and bytes of an 802.1Q tag.
const HEADER: usize = 14;
const ETHERTYPE: usize = 12;
const TAG: usize = 4;

/// What has the kernel look at a ring.
pub(super) trait Wake: Debug + Send {
    /// Has it send what is there.
    fn wake(&mut self) -> Result<(), Errno>;
}

/// What sends out of an interface for all senders of a port.
#[derive(Debug, Default)]
pub(in super::super) struct Transmit {
    /// None where the interface is gone.
    sending: Option<Sending>,
    statistics: SendStatistics,
    /// Whether frames lie in the ring that the kernel did not take yet.
    pending: Arc<AtomicBool>,
    /// Whether chunks of others are under way, which come back by the ring.
    under_way: Arc<AtomicBool>,
}

/// The rings and the memory by which frames leave.
pub(super) struct Sending {
    wake: Box<dyn Wake>,
    ring: Producer<Descriptor>,
    completed: Consumer<u64>,
    /// Of the region's own chunks: those that hold nothing, and whether each is one that the kernel has.
    free: Vec<u32>,
    lent: Vec<bool>,
    /// Chunks of others that the kernel has.
    under_way: usize,
    /// By place in the ring: the chunk, and, where a frame ends there, its bytes.
    slots: Vec<Slot>,
    /// Index up to which the kernel has taken frames, as far as that is known.
    taken: u32,
    /// Whether the interface was switched off or gone when the kernel was woken up last: then what waits does not leave soon.
    is_stopped: bool,
    /// A frame with its checksum finished.
    scratch: Vec<u8>,
    // Dropped last: the kernel keeps the socket until its rings are not mapped any more.
    region: Region,
}

#[derive(Clone, Copy, Debug, Default)]
struct Slot {
    chunk: u32,
    frame_len: Option<usize>,
}

/// What came of waking the kernel up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Woken {
    /// It has taken all.
    Done,
    /// It has no room for now, or has just dropped a frame for lack of room.
    Busy,
    /// The interface is switched off or gone; whether the kernel may have looked at the ring.
    Stopped(Stop, bool),
    /// Something else.
    Failed(Errno),
}

/// What came of a frame that was to be put into the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Placed {
    Yes,
    /// There is no room.
    Full,
    TooLong,
    Refused,
}

impl Transmit {
    /// Whether frames wait to be sent, to be looked at without the lock.
    pub(super) fn pending(&self) -> Arc<AtomicBool> {
        self.pending.clone()
    }

    /// Whether frames are under way in chunks by which others receive, to be looked at without the lock.
    pub(super) fn under_way(&self) -> Arc<AtomicBool> {
        self.under_way.clone()
    }

    /// Sends by other rings from now on, or no more; what lies in those so far does not leave.
    pub(super) fn replace(&mut self, sending: Option<Sending>) {
        if let Some(sending) = &mut self.sending {
            sending.wait_for_chunks();
            sending.drop_all(&mut self.statistics);
        }
        self.sending = sending;
        self.note_pending();
    }

    /// Sends frames: see [`Sender::send`](super::super::Sender::send).
    pub(in super::super) fn send(&mut self, frames: &[Outgoing<'_>], exit: &Exit) -> Result<Sent, Errno> {
        let result = match &mut self.sending {
            Some(sending) => sending.send(frames, exit, &mut self.statistics),
            None => Ok(Sent { taken: 0, stopped: Some(Stop::Gone) }),
        };
        self.statistics.stops += u64::from(result.is_ok_and(|sent| sent.stopped.is_some()));
        self.note_pending();
        result
    }

    /// Has the kernel take what it did not take yet, and gives back the chunks that it is done with.
    pub(super) fn flush(&mut self) {
        if let Some(sending) = &mut self.sending {
            // What fails is said when something is to be sent.
            let _ = sending.wake(&mut self.statistics);
            sending.reap();
        }
        self.note_pending();
    }

    /// The same, but that the kernel is not asked where the interface was switched off or gone when it was asked last.
    pub(super) fn tend(&mut self) {
        match &mut self.sending {
            Some(sending) if sending.is_stopped => {
                sending.reap();
                self.note_pending();
            }
            _ => self.flush(),
        }
    }

    /// What was sent so far. Frames that the kernel does not take count as dropped as long as they lie in the ring.
    pub(in super::super) fn statistics(&mut self) -> SendStatistics {
        self.flush();
        let mut statistics = self.statistics;
        if let Some(sending) = &self.sending {
            sending.pending().for_each(|len| count_dropped(&mut statistics, len));
        }
        statistics
    }

    /// Chunks for copies that hold nothing.
    #[cfg(test)]
    pub(super) fn free(&self) -> &[u32] {
        self.sending.as_ref().map_or(&[], |sending| &sending.free)
    }

    fn note_pending(&self) {
        let is_pending =
            self.sending.as_ref().is_some_and(|sending| sending.is_pending() && !sending.is_stopped);
        self.pending.store(is_pending, Ordering::Relaxed);
        let is_under_way = self.sending.as_ref().is_some_and(|sending| sending.under_way > 0);
        self.under_way.store(is_under_way, Ordering::Relaxed);
    }
}

/// Counts a frame as dropped that was counted as sent.
fn count_dropped(statistics: &mut SendStatistics, len: usize) {
    statistics.sent = statistics.sent.saturating_sub(1);
    statistics.sent_bytes = statistics.sent_bytes.saturating_sub(len as u64);
    statistics.dropped += 1;
}

impl Sending {
    /// All chunks of the region are for copies; `entries` is the size of `ring`.
    pub(super) fn new(
        wake: Box<dyn Wake>,
        region: Region,
        ring: Producer<Descriptor>,
        completed: Consumer<u64>,
        entries: u32,
    ) -> Self {
        let chunks = region.chunks();
        Self {
            wake,
            taken: ring.next(),
            region,
            ring,
            completed,
            lent: vec![false; chunks.len()],
            free: chunks.rev().collect(),
            under_way: 0,
            slots: vec![Slot::default(); entries as usize],
            is_stopped: false,
            scratch: Vec::new(),
        }
    }

    fn send(
        &mut self,
        frames: &[Outgoing<'_>],
        exit: &Exit,
        statistics: &mut SendStatistics,
    ) -> Result<Sent, Errno> {
        let stopped = |taken, stop| Ok(Sent { taken, stopped: (taken < frames.len()).then_some(stop) });
        if exit.is(PortState::NoCarrier) {
            // Each would be taken and dropped, with a call for each.
            self.drop_pending(statistics);
            return stopped(0, Stop::Busy);
        }
        match self.wake(statistics) {
            Woken::Done => {}
            Woken::Busy => return stopped(0, Stop::Busy),
            Woken::Stopped(stop, _) => return stopped(0, stop),
            Woken::Failed(error) => return Err(error),
        }
        let mut taken = 0;
        while taken < frames.len() {
            self.reap();
            let (from, mtu) = (self.ring.next(), exit.mtu() as usize);
            let (mut count, mut bytes, mut last) = (0, 0, Placed::Yes);
            let copied = statistics.copied;
            let umem = self.region.umem().clone();
            let mut account = umem.account();
            for frame in frames[taken..].iter().take(BURST) {
                last = self.place(frame, mtu, &mut account, statistics);
                if last != Placed::Yes {
                    break;
                }
                count += 1;
                bytes += frame.bytes.len() as u64;
            }
            drop(account);
            if count > 0 {
                self.ring.publish();
                statistics.sent += count as u64;
                statistics.sent_bytes += bytes;
                match self.wake(statistics) {
                    Woken::Done => taken += count,
                    Woken::Stopped(stop, false) => {
                        // The kernel has not seen them.
                        self.take_back(from);
                        statistics.sent -= count as u64;
                        statistics.sent_bytes -= bytes;
                        statistics.copied = copied;
                        return stopped(taken, stop);
                    }
                    // They stay in the ring. What else it was is said the next time.
                    Woken::Busy | Woken::Stopped(..) | Woken::Failed(_) => {
                        return stopped(taken + count, Stop::Busy);
                    }
                }
            }
            match last {
                Placed::Yes => {}
                Placed::Full if count == 0 => return stopped(taken, Stop::Busy),
                Placed::Full => {}
                Placed::TooLong => {
                    statistics.too_long += 1;
                    taken += 1;
                }
                Placed::Refused => {
                    statistics.refused += 1;
                    taken += 1;
                }
            }
        }
        Ok(Sent { taken, stopped: None })
    }

    /// Puts a frame into the ring, to be seen once that is published.
    fn place(
        &mut self,
        frame: &Outgoing<'_>,
        mtu: usize,
        account: &mut Account,
        statistics: &mut SendStatistics,
    ) -> Placed {
        let bytes = frame.bytes;
        // As packet sockets have it: there is room for a tag on top of the MTU if it is an 802.1Q tag.
        let is_tagged = bytes.get(ETHERTYPE..HEADER) == Some(&[0x81, 0]);
        if bytes.len() > mtu + HEADER + if is_tagged { TAG } else { 0 } {
            return Placed::TooLong;
        }
        if bytes.len() < HEADER || frame.offload.is_giant() {
            return Placed::Refused;
        }
        if !frame.offload.needs_checksum()
            && let Some(address) = self.region.umem().address_of(bytes)
            && let Some((chunk, _)) = self.region.umem().locate(address, bytes.len())
            && self.ring.room() > 0
            && account.send(chunk, self.region.interface())
        {
            self.under_way += 1;
            self.push(chunk, Some(bytes.len()), Descriptor { address, len: bytes.len() as u32, options: 0 });
            return Placed::Yes;
        }
        let pieces = bytes.len().div_ceil(self.region.umem().chunk());
        if self.free.len() < pieces || (self.ring.room() as usize) < pieces {
            return Placed::Full;
        }
        if !frame.offload.needs_checksum() {
            self.copy(bytes);
        } else {
            let mut scratch = std::mem::take(&mut self.scratch);
            scratch.clear();
            scratch.extend_from_slice(bytes);
            let is_finished = complete_checksum(&mut scratch, &mut frame.offload.clone()).is_ok();
            if is_finished {
                self.copy(&scratch);
            }
            self.scratch = scratch;
            if !is_finished {
                return Placed::Refused;
            }
        }
        statistics.copied += 1;
        Placed::Yes
    }

    /// Puts a copy into the ring, for which there are room and chunks.
    fn copy(&mut self, bytes: &[u8]) {
        let chunk_len = self.region.umem().chunk();
        let pieces = bytes.len().div_ceil(chunk_len);
        for (number, piece) in (1..).zip(bytes.chunks(chunk_len)) {
            let Some(chunk) = self.free.pop() else { unreachable!("there are as many as pieces") };
            self.region.write(chunk, piece);
            self.set_lent(chunk, true);
            let is_last = number == pieces;
            let descriptor = Descriptor {
                address: self.region.umem().address(chunk),
                len: piece.len() as u32,
                options: if is_last { 0 } else { Descriptor::CONTINUED },
            };
            self.push(chunk, is_last.then_some(bytes.len()), descriptor);
        }
    }

    /// Puts a chunk into the ring, for which there is room.
    fn push(&mut self, chunk: u32, frame_len: Option<usize>, descriptor: Descriptor) {
        let place = self.ring.next() as usize & (self.slots.len() - 1);
        self.slots[place] = Slot { chunk, frame_len };
        self.ring.push(descriptor);
    }

    /// Whether the kernel has a chunk of the region's own from now on; whether it had it before. `None` where it is of somebody else.
    fn set_lent(&mut self, chunk: u32, is_lent: bool) -> Option<bool> {
        let place = chunk.checked_sub(self.region.chunks().start)? as usize;
        self.lent.get_mut(place).map(|lent| std::mem::replace(lent, is_lent))
    }

    /// Has the kernel take what is in the ring, as long as it does.
    fn wake(&mut self, statistics: &mut SendStatistics) -> Woken {
        let woken = self.try_wake(statistics);
        self.is_stopped = matches!(woken, Woken::Stopped(..));
        woken
    }

    fn try_wake(&mut self, statistics: &mut SendStatistics) -> Woken {
        let mut has_looked = false;
        while self.is_pending() {
            match self.wake.wake() {
                Ok(()) => {
                    self.taken = self.ring.next();
                    return Woken::Done;
                }
                Err(Errno::INTR) => {}
                Err(Errno::BUSY) => {
                    self.count_last_taken(statistics);
                    return Woken::Busy;
                }
                Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM) => {
                    has_looked = true;
                    self.reap();
                    if !self.catch_up() {
                        return Woken::Busy;
                    }
                }
                Err(Errno::NETDOWN) => return Woken::Stopped(Stop::Down, has_looked),
                Err(Errno::NXIO | Errno::NODEV) => return Woken::Stopped(Stop::Gone, has_looked),
                Err(error) => return Woken::Failed(error),
            }
        }
        Woken::Done
    }

    /// Whether there are frames that the kernel has not taken, as far as that is known.
    fn is_pending(&self) -> bool {
        self.taken != self.ring.next()
    }

    /// The bytes of the frames that the kernel has not taken, as far as that is known.
    fn pending(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.ring.next().wrapping_sub(self.taken))
            .filter_map(|ahead| self.slot(self.taken.wrapping_add(ahead)).frame_len)
    }

    fn slot(&self, index: u32) -> Slot {
        self.slots[index as usize & (self.slots.len() - 1)]
    }

    /// Looks how far the kernel came; whether that is farther than was known.
    fn catch_up(&mut self) -> bool {
        let consumed = self.ring.consumed();
        let ahead = consumed.wrapping_sub(self.taken);
        // Before Linux 6.17 the index may be that of an earlier call.
        let is_farther = ahead > 0 && ahead <= self.ring.next().wrapping_sub(self.taken);
        if is_farther {
            self.taken = consumed;
        }
        is_farther
    }

    /// Counts the frame that the kernel took last, and dropped: the last one that it says it took, or else the first one that it had not.
    fn count_last_taken(&mut self, statistics: &mut SendStatistics) {
        if !self.catch_up() {
            while self.is_pending() {
                let slot = self.slot(self.taken);
                self.taken = self.taken.wrapping_add(1);
                if slot.frame_len.is_some() {
                    break;
                }
            }
        }
        let len = self.slot(self.taken.wrapping_sub(1)).frame_len;
        count_dropped(statistics, len.unwrap_or(0));
    }

    /// Has the kernel drop what is in the ring while the other end is down: a call for each frame.
    fn drop_pending(&mut self, statistics: &mut SendStatistics) {
        for _ in 0..self.ring.next().wrapping_sub(self.taken) {
            if self.wake(statistics) != Woken::Busy {
                break;
            }
        }
    }

    /// Waits for the chunks that the kernel has taken out of the ring, for a moment: some drivers read them after the socket is closed.
    fn wait_for_chunks(&mut self) {
        let begin = Instant::now();
        loop {
            self.catch_up();
            self.reap();
            let in_ring = self.ring.next().wrapping_sub(self.taken) as usize;
            let with_kernel = self.under_way + self.lent.len() - self.free.len();
            if with_kernel <= in_ring || begin.elapsed() >= LAST_WAIT {
                return;
            }
            thread::sleep(LAST_WAIT / 50);
        }
    }

    /// Counts what is in the ring as dropped.
    fn drop_all(&mut self, statistics: &mut SendStatistics) {
        self.catch_up();
        self.pending().for_each(|len| count_dropped(statistics, len));
        self.taken = self.ring.next();
    }

    /// Takes entries from an index on out of the ring, which the kernel has not looked at.
    fn take_back(&mut self, from: u32) {
        let umem = self.region.umem().clone();
        let mut account = umem.account();
        for ahead in 0..self.ring.next().wrapping_sub(from) {
            let chunk = self.slot(from.wrapping_add(ahead)).chunk;
            self.take_in(chunk, &mut account);
        }
        self.ring.take_back(from);
    }

    /// The kernel does not have a chunk any more. One that it did not have is none.
    fn take_in(&mut self, chunk: u32, account: &mut Account) {
        match self.set_lent(chunk, false) {
            Some(true) => self.free.push(chunk),
            Some(false) => {}
            None => self.under_way -= usize::from(account.complete(chunk, self.region.interface())),
        }
    }

    /// Takes chunks back whose frames the kernel is done with; those that it did not have are none.
    fn reap(&mut self) {
        let available = self.completed.available().entries;
        if available == 0 {
            return;
        }
        let umem = self.region.umem().clone();
        let mut account = umem.account();
        for entry in 0..available {
            if let Some((chunk, _)) = umem.locate(self.completed.peek(entry), 0) {
                self.take_in(chunk, &mut account);
            }
        }
        self.completed.advance(available);
        self.completed.publish();
    }
}

impl Debug for Sending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sending")
            .field("wake", &self.wake)
            .field("free", &self.free.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
