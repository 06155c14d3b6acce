//! A place for a batch on its way: read, parsed, judged by one worker or several, delivered.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use packetloom_packet::Batch;
use packetloom_packet::batch::empty_arena;

use crate::Error;
use crate::pipeline::work::{Effects, Records, Work};
use crate::pipeline::{Expiry, Pipeline};

/// How far a batch has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// It is not there yet.
    Free = 0,
    /// Workers judge their shares of it.
    Shared = 1,
    /// All shares are judged, and to be put together.
    Apart = 2,
    /// A worker does that.
    Merging = 3,
    /// It is to be delivered.
    Judged = 4,
}

impl Stage {
    /// The bits that a stage takes beside a batch's number.
    const BITS: u32 = 3;

    const fn of(self, number: u64) -> u64 {
        number << Self::BITS | self as u64
    }
}

/// A worker's packets of a batch, and what came of them.
struct Share {
    batch: Batch,
    expiry: Option<Expiry>,
    effects: Effects,
}

/// See above. Batches take slots in turn: batch `n` has slot `n % slots`.
pub(super) struct Slot {
    /// The batch's [`Stage`] and number.
    stage: AtomicU64,
    work: Mutex<Work>,
    shares: Vec<Mutex<Share>>,
    /// Shares that are not judged yet.
    open: AtomicUsize,
}

fn poisoned<T>(_: PoisonError<T>) -> Error {
    Error::Worker
}

impl Slot {
    /// A slot for the batch with this number, of up to `size` packets, for so many workers.
    pub(super) fn new(number: u64, size: usize, workers: usize) -> Self {
        let share = |_| Mutex::new(Share { batch: Batch::new(0), expiry: None, effects: Effects::default() });
        Self {
            stage: AtomicU64::new(Stage::Free.of(number)),
            work: Mutex::new(Work::new(size, workers)),
            shares: (0..workers).map(share).collect(),
            open: AtomicUsize::new(0),
        }
    }

    /// The number of the batch that has the slot now, and how far it has come.
    pub(super) fn stage(&self) -> (u64, Stage) {
        let stage = self.stage.load(Ordering::Acquire);
        let all = [Stage::Free, Stage::Shared, Stage::Apart, Stage::Merging, Stage::Judged];
        let number = stage >> Stage::BITS;
        let stage = all.into_iter().find(|all| all.of(number) == stage);
        (number, stage.unwrap_or(Stage::Judged))
    }

    pub(super) fn set(&self, number: u64, stage: Stage) {
        self.stage.store(stage.of(number), Ordering::Release);
    }

    /// Takes it upon the caller to put the shares of a batch together, if that is to be done.
    pub(super) fn claim(&self, number: u64) -> bool {
        let (apart, merging) = (Stage::Apart.of(number), Stage::Merging.of(number));
        self.stage.load(Ordering::Relaxed) == apart
            && self.stage.compare_exchange(apart, merging, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    pub(super) fn work(&self) -> Result<MutexGuard<'_, Work>, Error> {
        self.work.lock().map_err(poisoned)
    }

    fn share(&self, worker: usize) -> Result<MutexGuard<'_, Share>, Error> {
        self.shares[worker].lock().map_err(poisoned)
    }

    /// Gives all workers their shares of a batch that was partitioned.
    pub(super) fn open(&self, number: u64, work: &Work) -> Result<(), Error> {
        for (worker, indices) in work.indices.iter().enumerate() {
            let mut share = self.share(worker)?;
            share.batch.gather(&work.batch, indices);
            share.expiry = work.expiry;
        }
        self.open.store(self.shares.len(), Ordering::Relaxed);
        self.set(number, Stage::Shared);
        Ok(())
    }

    /// Has a worker's pipeline judge its share of a batch; whether it was the last one.
    pub(super) fn judge_share(
        &self,
        number: u64,
        worker: usize,
        pipeline: &mut Pipeline,
    ) -> Result<bool, Error> {
        let mut share = self.share(worker)?;
        let Share { batch, expiry, effects } = &mut *share;
        if !batch.is_empty() || expiry.is_some() {
            pipeline.judge(batch, *expiry)?;
            effects.take(pipeline, expiry.is_some());
        }
        let is_last = self.open.fetch_sub(1, Ordering::AcqRel) == 1;
        if is_last {
            self.set(number, Stage::Apart);
        }
        Ok(is_last)
    }

    /// Puts together what the workers made of their shares.
    pub(super) fn merge(&self, work: &mut Work) -> Result<(), Error> {
        for worker in 0..self.shares.len() {
            let mut share = self.share(worker)?;
            let Share { batch, effects, .. } = &mut *share;
            work.merge(worker, batch, effects);
            // The batch's memory is not held any longer.
            batch.reset(empty_arena());
        }
        work.effects.sort();
        Ok(())
    }

    /// Hands over the records of all workers, function by function.
    pub(super) fn records(
        &self,
        mut write: impl FnMut(usize, &mut Records) -> Result<(), Error>,
    ) -> Result<(), Error> {
        for worker in 0..self.shares.len() {
            let mut share = self.share(worker)?;
            for (function, lines) in share.effects.records.iter_mut().enumerate() {
                if !lines.is_empty() {
                    write(function, lines)?;
                }
            }
        }
        Ok(())
    }
}
