//! The receiving side of a queue: chunks of memory go to the kernel by the fill ring and come back with frames in them.
//!
//! A frame is lent to the batch in the chunk in which it came, where that is one, the batch takes frames of this memory and not too many are
//! lent already; else it is copied.

use packetloom_packet::Offload;

use super::super::Statistics;
use super::super::checksum::{self, Partial};
use super::super::interface::Marks;
use super::super::receive::{Arrival, Filler, LONGEST_FRAME};
use super::ring::{Consumer, Descriptor, Producer};
use super::umem::QueuePool;

/// The rings and the memory by which a queue's frames come.
pub(super) struct Receiving {
    fill: Producer<u64>,
    frames: Consumer<Descriptor>,
    /// Which chunks of the pool the kernel has, and how many these are.
    lent: Vec<bool>,
    filled: usize,
    /// Chunks that are to go to the kernel again.
    returning: Vec<u32>,
    /// The pieces of the frame that is looked at: chunk, place in it, bytes.
    pieces: Vec<(u32, usize, usize)>,
    // Dropped last: the kernel keeps a socket until its rings are not mapped any more, and receives by its chunks until then.
    pool: QueuePool,
}

/// A frame in the ring.
#[derive(Clone, Copy, Debug)]
struct Found {
    entries: u32,
    len: usize,
    /// Whether all of it lies in chunks that the kernel had.
    is_sound: bool,
}

/// How frames of a port are taken.
#[derive(Clone, Copy, Debug)]
pub(super) struct Taking {
    pub(super) marks: Marks,
    /// What frames that are there now are dated with, in nanoseconds since the epoch.
    pub(super) time: u64,
    /// Whether senders may have left checksums partial.
    pub(super) guesses: bool,
}

impl Taking {
    fn arrival(self, len: usize) -> Arrival {
        let Marks { link, number, .. } = self.marks;
        Arrival { time: self.time, wire_len: len as u32, link, port: number, offload: Offload::NONE }
    }

    /// What is left to be done to a frame.
    #[inline]
    fn guess(self, frame: &mut [u8], offload: &mut Offload) {
        if !self.guesses {
            return;
        }
        match checksum::guess_partial(frame) {
            Some(Partial::Sum(partial)) => *offload = partial,
            // A sum could not be told from it later.
            Some(Partial::Crc(mut partial)) => drop(checksum::complete_sctp(frame, &mut partial)),
            None => {}
        }
    }
}

impl Receiving {
    /// All free chunks of the pool go to the kernel.
    pub(super) fn new(pool: QueuePool, fill: Producer<u64>, frames: Consumer<Descriptor>) -> Self {
        let chunks = pool.chunks().len();
        let mut receiving = Self {
            pool,
            fill,
            frames,
            lent: vec![false; chunks],
            filled: 0,
            returning: Vec::with_capacity(chunks),
            pieces: Vec::new(),
        };
        receiving.refill();
        receiving
    }

    /// Whether there is nothing to be looked at.
    pub(super) fn is_idle(&self) -> bool {
        self.frames.is_empty()
    }

    /// Takes the frames that are there, as many as there is room for; how many, and whether there are more.
    pub(super) fn receive(
        &mut self,
        taking: Taking,
        filler: &mut Filler<'_>,
        statistics: &mut Statistics,
    ) -> (usize, bool) {
        let available = self.frames.available();
        statistics.unsound += u64::from(available.is_unsound);
        let (mut left, mut received) = (available.entries, 0);
        let part = filler.lent.as_ref().filter(|_| left > 0).and_then(|lent| lent.part(self.pool.umem()));
        let mut room = if part.is_some() { self.pool.room() } else { 0 };
        let is_more_left = loop {
            let Some(found) = self.find(left) else { break false };
            let may_be_lent = found.is_sound && found.entries == 1 && found.len <= LONGEST_FRAME && room > 0;
            let lent_by = part.filter(|_| may_be_lent);
            let is_lent = lent_by.is_some();
            if !found.is_sound {
                statistics.unsound += 1;
            } else if found.len > LONGEST_FRAME {
                statistics.oversized += 1;
            } else if match lent_by {
                Some(part) => self.lend(part, taking, filler),
                None => self.copy(found.len, taking, filler),
            } {
                statistics.received += 1;
                statistics.segments += 1;
                statistics.received_bytes += found.len as u64;
                statistics.copied += u64::from(!is_lent);
                room -= u32::from(is_lent);
                received += 1;
            } else {
                break true;
            }
            self.release(found.entries, is_lent);
            left -= found.entries;
        };
        if let (Some(lent), Some(part)) = (&mut filler.lent, part) {
            lent.count(part, &self.pool);
        }
        self.frames.publish();
        self.refill();
        (received, is_more_left)
    }

    /// Whether the kernel wants to be woken up to take chunks.
    pub(super) fn needs_wakeup(&self) -> bool {
        self.fill.needs_wakeup()
    }

    /// Frames that are there and were not taken.
    pub(super) fn unread(&mut self) -> u64 {
        let entries = self.frames.available().entries;
        (0..entries).filter(|&entry| !self.frames.peek(entry).is_continued()).count() as u64
    }

    /// Bytes of memory that frames lie in.
    pub(super) fn bytes(&self) -> usize {
        self.lent.len() * self.pool.umem().chunk()
    }

    /// Frames of one chunk that it holds.
    pub(super) fn capacity(&self) -> usize {
        self.lent.len()
    }

    /// Chunks that are to go to the kernel again.
    #[cfg(test)]
    pub(super) fn returning(&self) -> &[u32] {
        &self.returning
    }

    /// The place of a chunk in the pool; none where it is of another one.
    #[inline]
    fn place(&self, chunk: u32) -> Option<usize> {
        let place = chunk.checked_sub(self.pool.chunks().start)? as usize;
        (place < self.lent.len()).then_some(place)
    }

    /// Looks at the oldest frame, which lies in the first of so many entries; `None` where there is no whole one.
    #[inline]
    fn find(&mut self, entries: u32) -> Option<Found> {
        self.pieces.clear();
        let mut found = Found { entries: 0, len: 0, is_sound: true };
        while found.entries < entries {
            let descriptor = self.frames.peek(found.entries);
            found.entries += 1;
            let len = descriptor.len as usize;
            let chunk = self.pool.umem().locate(descriptor.address, len);
            match chunk.filter(|&(chunk, _)| self.place(chunk).is_some_and(|place| self.lent[place])) {
                Some((chunk, within)) => {
                    self.pieces.push((chunk, within, len));
                    found.len += len;
                }
                None => found.is_sound = false,
            }
            if !descriptor.is_continued() {
                return Some(found);
            }
        }
        // One that fills the whole ring and goes on would never end.
        (found.entries == self.frames.size()).then_some(Found { is_sound: false, ..found })
    }

    /// Copies the frame that was found; `false` where there is no room for it.
    #[inline]
    fn copy(&self, len: usize, taking: Taking, filler: &mut Filler<'_>) -> bool {
        filler.push(len, taking.arrival(len), |place, offload| {
            let mut rest = &mut *place;
            for &(chunk, within, len) in &self.pieces {
                let (piece, behind) = rest.split_at_mut(len);
                self.pool.umem().read(chunk, within, piece);
                rest = behind;
            }
            taking.guess(place, offload);
        })
    }

    /// Lends the frame that was found, which lies in one chunk; `false` where there is no room for it.
    #[inline]
    fn lend(&self, part: usize, taking: Taking, filler: &mut Filler<'_>) -> bool {
        let piece @ (chunk, within, len) = self.pieces[0];
        filler.push_lent(taking.arrival(len), |lent, offload| {
            taking.guess(lent.hold(part, piece), offload);
            (lent.offset(part, chunk, within), len)
        })
    }

    /// Takes the frame that was found out of the ring; its chunks go to the kernel with the next [`refill`](Self::refill), unless they are
    /// lent.
    #[inline]
    fn release(&mut self, entries: u32, is_lent: bool) {
        self.frames.advance(entries);
        for &(chunk, ..) in &self.pieces {
            let Some(place) = self.place(chunk) else { continue };
            // One that came twice goes back once.
            if std::mem::replace(&mut self.lent[place], false) {
                self.filled -= 1;
                if !is_lent {
                    self.returning.push(chunk);
                }
            }
        }
    }

    /// Gives the kernel all chunks of the pool that it does not have and that are free. Those for which the ring has no room, of which there
    /// are none unless the kernel gives chunks back that it was not given, wait for the next time.
    pub(super) fn refill(&mut self) {
        if self.filled + self.returning.len() < self.lent.len() {
            self.pool.take_free(&mut self.returning);
        }
        if self.returning.is_empty() {
            return;
        }
        while let Some(&chunk) = self.returning.last() {
            if !self.fill.push(self.pool.umem().address(chunk)) {
                break;
            }
            if let Some(place) = self.place(chunk) {
                self.lent[place] = true;
                self.filled += 1;
            }
            self.returning.pop();
        }
        self.fill.publish();
    }
}

impl std::fmt::Debug for Receiving {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Receiving").field("pool", &self.pool).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
