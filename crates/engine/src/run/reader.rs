//! Batches from the source, one after the other: what only one worker does at a time.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use packetloom_io::Polled;
use packetloom_nf::flows::By;
use packetloom_packet::batch::{Policy, empty_arena};
use packetloom_packet::{Batch, Timestamp};

use super::{Control, Intake};
use crate::Error;

/// Where workers share tables, packets that are under way at a time came within so many nanoseconds, so that none is judged long after
/// another one that came later; and those of a batch within a part of that, so that there are several batches.
pub(crate) const APART: u64 = 10_000_000;
const APART_IN_BATCH: u64 = APART / 4;

/// How batches are judged, for as long as the chain is the same.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scheme {
    /// What becomes of frames without a key.
    pub(super) policy: Policy,
    /// How the packets of a batch are partitioned among workers; none where any worker may judge any batch.
    pub(super) partition: Option<Partition>,
    /// Whether packets under way have to be close in time.
    pub(super) is_bounded: bool,
}

/// Which worker judges a packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Partition {
    pub(super) by: By,
    /// One that senders cannot know, so that they cannot aim all their flows at one worker.
    pub(super) seed: u64,
    pub(super) workers: usize,
}

impl Partition {
    /// The worker for a hash: its upper half times the number of workers, no division.
    pub(super) fn worker(self, hash: u64) -> usize {
        (((hash >> 32) * self.workers as u64) >> 32) as usize
    }

    /// For each worker the indices of its packets in a parsed batch, in order.
    pub(super) fn split(self, batch: &Batch, into: &mut [Vec<u32>]) {
        into.iter_mut().for_each(Vec::clear);
        for index in 0..batch.len() {
            // Frames without a key have no flow; any worker will do, as long as it is always the same.
            let worker = self.by.spread(batch, index, self.seed).map_or(0, |hash| self.worker(hash));
            into[worker].push(index as u32);
        }
    }
}

/// The earliest and the latest of some packets' times, in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Times(u64, u64);

impl Times {
    const NONE: Self = Self(u64::MAX, 0);

    fn and(self, other: Self) -> Self {
        Self(self.0.min(other.0), self.1.max(other.1))
    }

    fn span(self) -> u64 {
        self.1.saturating_sub(self.0)
    }
}

/// What reading came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Read {
    /// A batch is there, as [`Reader::scheme`] says.
    Batch,
    /// A batch without frames, at this time: none has come for a while.
    Tick(Timestamp),
    /// Nothing may be read now: others have to go on first.
    Nothing,
    /// Nothing has come.
    Idle,
    /// There is no more.
    End,
}

/// The source, and what is known of the batches that came from it.
pub(super) struct Reader<'r, 'i> {
    pub(super) intake: &'r mut Intake<'i>,
    /// The number of the batch that is read next.
    pub(super) next: u64,
    pub(super) scheme: Scheme,
    /// Where something may be asked for that is done between two batches.
    control: Arc<Control>,
    /// Set where the chain is to become another one then.
    reload: Arc<AtomicBool>,
    /// Whether the state is to be saved then.
    pub(super) is_save_due: bool,
    /// Whether others are to go on then.
    pub(super) is_leaving: bool,
    /// Whether the next batch has to wait for that.
    pub(super) is_paused: bool,
    pub(super) has_ended: bool,
    /// What was read and not handed out yet, from `at` on, where batches are cut by time.
    held: Batch,
    at: usize,
    /// Whether the next batch was filled, and waits for others.
    is_filled: bool,
    times: Times,
    /// The times of batches under way, with their numbers.
    under_way: VecDeque<(u64, Times)>,
}

impl<'r, 'i> Reader<'r, 'i> {
    pub(super) fn new(
        intake: &'r mut Intake<'i>,
        scheme: Scheme,
        (control, reload): (Arc<Control>, Arc<AtomicBool>),
        size: usize,
    ) -> Self {
        Self {
            intake,
            next: 0,
            scheme,
            control,
            reload,
            is_save_due: false,
            is_leaving: false,
            is_paused: false,
            has_ended: false,
            held: Batch::new(size),
            at: 0,
            is_filled: false,
            times: Times::NONE,
            under_way: VecDeque::new(),
        }
    }

    /// Fills the next batch, which is not parsed then; so many were delivered before it.
    pub(super) fn read(&mut self, batch: &mut Batch, delivered: u64) -> Result<Read, Error> {
        let is_reached = self.intake.until.is_some_and(|until| until <= self.intake.received);
        let is_asked = self.control.is_asked() || self.reload.load(Ordering::Relaxed);
        let is_due = is_reached || self.is_save_due || self.is_leaving || is_asked;
        // Not while some of what was read is still to be judged: state has all packets that were read.
        self.is_paused |= is_due && !self.is_filled && self.at >= self.held.len();
        if self.is_paused || self.has_ended {
            return Ok(Read::Nothing);
        }
        if !self.is_filled {
            match self.fill(batch)? {
                Polled::Frames => {}
                Polled::Nothing => return Ok(self.tick(batch)),
                Polled::End => {
                    self.has_ended = true;
                    return Ok(Read::End);
                }
            }
        }
        if self.scheme.is_bounded {
            while self.under_way.pop_front_if(|(number, _)| *number < delivered).is_some() {}
            let times = self.under_way.iter().fold(self.times, |times, (_, other)| times.and(*other));
            self.is_filled = !self.under_way.is_empty() && times.span() > APART;
            if self.is_filled {
                return Ok(Read::Nothing);
            }
            self.under_way.push_back((self.next, self.times));
        }
        self.next += 1;
        Ok(Read::Batch)
    }

    /// What is to be done where nothing has come.
    fn tick(&mut self, batch: &mut Batch) -> Read {
        let Some(now) = self.intake.tick(batch) else { return Read::Idle };
        self.next += 1;
        Read::Tick(now)
    }

    fn fill(&mut self, batch: &mut Batch) -> Result<Polled, Error> {
        if !self.scheme.is_bounded {
            return self.intake.poll(batch);
        }
        let Self { intake, held, at, times, .. } = self;
        // At the end there is less than there was.
        if *at >= held.len() {
            let polled = intake.poll(held)?;
            if polled != Polled::Frames {
                return Ok(polled);
            }
            *at = 0;
        }
        *times = Times::NONE;
        let is_near = |frame: &&packetloom_packet::FrameRef| {
            let now = frame.time.as_nanos();
            let with = times.and(Times(now, now));
            let is_near = with.span() <= APART_IN_BATCH;
            if is_near {
                *times = with;
            }
            is_near
        };
        batch.take_from(held, *at, is_near);
        *at += batch.len();
        if *at >= held.len() {
            // The batch alone has the frames' memory: they can be rewritten there, and go back when it is delivered.
            held.reset(empty_arena());
            *at = 0;
        }
        Ok(Polled::Frames)
    }
}
