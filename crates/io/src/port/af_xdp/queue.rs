//! The receiving side of a queue: chunks of memory go to the kernel by the fill ring and come back with frames in them.

use packetloom_packet::Offload;

use super::super::Statistics;
use super::super::checksum::{self, Partial};
use super::super::interface::Marks;
use super::super::receive::{Arrival, Filler, LONGEST_FRAME};
use super::ring::{Consumer, Descriptor, Producer};
use super::umem::Region;

/// The rings and the memory by which a queue's frames come.
pub(super) struct Receiving {
    region: Region,
    fill: Producer<u64>,
    frames: Consumer<Descriptor>,
    /// Which chunks the kernel has.
    lent: Vec<bool>,
    /// Chunks that are to go to the kernel again.
    returning: Vec<usize>,
    /// The pieces of the frame that is looked at: chunk, place in it, bytes.
    pieces: Vec<(usize, usize, usize)>,
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

impl Receiving {
    /// All chunks of the region go to the kernel.
    pub(super) fn new(region: Region, fill: Producer<u64>, frames: Consumer<Descriptor>) -> Self {
        let chunks = region.chunks();
        let mut receiving = Self {
            region,
            fill,
            frames,
            lent: vec![false; chunks],
            returning: (0..chunks).collect(),
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
        let is_more_left = loop {
            let Some(found) = self.find(left) else { break false };
            if !found.is_sound {
                statistics.unsound += 1;
            } else if found.len > LONGEST_FRAME {
                statistics.oversized += 1;
            } else if self.copy(found.len, taking, filler) {
                statistics.received += 1;
                statistics.segments += 1;
                statistics.received_bytes += found.len as u64;
                received += 1;
            } else {
                break true;
            }
            self.release(found.entries);
            left -= found.entries;
        };
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
        self.region.chunks() * self.region.chunk()
    }

    /// Frames of one chunk that it holds.
    pub(super) fn capacity(&self) -> usize {
        self.region.chunks()
    }

    /// Looks at the oldest frame, which lies in the first of so many entries; `None` where there is no whole one.
    #[inline]
    fn find(&mut self, entries: u32) -> Option<Found> {
        self.pieces.clear();
        let mut found = Found { entries: 0, len: 0, is_sound: true };
        while found.entries < entries {
            let descriptor = self.frames.peek(found.entries);
            found.entries += 1;
            let place = self.region.locate(descriptor.address, descriptor.len);
            match place.filter(|&(chunk, _)| self.lent[chunk]) {
                Some((chunk, within)) => {
                    let len = descriptor.len as usize;
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
        let Taking { marks, time, guesses } = taking;
        let arrival = Arrival {
            time,
            wire_len: len as u32,
            link: marks.link,
            port: marks.number,
            offload: Offload::NONE,
        };
        filler.push(len, arrival, |place, offload| {
            let mut rest = &mut *place;
            for &(chunk, within, len) in &self.pieces {
                let (piece, behind) = rest.split_at_mut(len);
                self.region.read(chunk, within, piece);
                rest = behind;
            }
            if !guesses {
                return;
            }
            match checksum::guess_partial(place) {
                Some(Partial::Sum(partial)) => *offload = partial,
                // A sum could not be told from it later.
                Some(Partial::Crc(mut partial)) => drop(checksum::complete_sctp(place, &mut partial)),
                None => {}
            }
        })
    }

    /// Takes the frame that was found out of the ring; its chunks go to the kernel with the next [`refill`](Self::refill).
    #[inline]
    fn release(&mut self, entries: u32) {
        self.frames.advance(entries);
        for &(chunk, ..) in &self.pieces {
            // One that came twice goes back once.
            if std::mem::replace(&mut self.lent[chunk], false) {
                self.returning.push(chunk);
            }
        }
    }

    /// Gives the kernel all chunks that it does not have. Those for which the ring has no room, of which there are none unless the kernel
    /// gives chunks back that it was not given, wait for the next time.
    fn refill(&mut self) {
        while let Some(&chunk) = self.returning.last() {
            if !self.fill.push(self.region.address(chunk)) {
                break;
            }
            self.lent[chunk] = true;
            self.returning.pop();
        }
        self.fill.publish();
    }
}

impl std::fmt::Debug for Receiving {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Receiving").field("region", &self.region).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
