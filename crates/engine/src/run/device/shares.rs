//! Functions with state behind those on a device: each thread of the crew judges the packets of its flows, with tables of its own.
//!
//! A batch comes back in pieces, which are about any flows. They are split by a hash of the flow; each thread's functions judge its share of all pieces
//! in order of arrival, and the shares are put together. So what stays from one batch to the next is that of a share, whichever thread judges it.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::Runner;
use super::pieces::Pieces;
use crate::crew::Crew;
use crate::pipeline::work::Work;
use crate::pipeline::{Pipeline, Shared};
use crate::run::reader::Partition;
use crate::run::{Outlet, pipelines};
use crate::{Error, Plan, State};

/// What the threads of a crew judge a plan's batches by.
pub(super) fn stages(plan: &Plan, crew: &Crew, room: usize) -> Vec<Mutex<Pipeline>> {
    let chain = plan.chain();
    let tables = match plan.spread_here() {
        // None of them are shared.
        Some(_) => Shared::new(plan, crew.members(), room),
        None => Shared::nothing(chain, room),
    };
    (0..crew.members()).map(|number| Mutex::new(Pipeline::new(chain, &tables, number))).collect()
}

fn lock(pipeline: &Mutex<Pipeline>) -> MutexGuard<'_, Pipeline> {
    pipeline.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Runner {
    /// What judges packets of flows here, and keeps their state that is here: that of one thread, or of all where each has its share.
    pub(super) fn keepers(&self) -> &[Mutex<Pipeline>] {
        &self.stages[..self.spread.map_or(1, |spread| spread.workers)]
    }

    /// Goes on with the flows of a state here.
    pub(super) fn restore(&self, state: &State) -> Result<(), Error> {
        pipelines::restore(self.keepers(), self.spread, state)
    }

    /// Has the functions that are not the device's judge a batch, in shares.
    pub(super) fn judge_shares(&self, pieces: &mut Pieces, spread: Partition) -> Result<(), Error> {
        let functions = self.functions..self.plan.chain().functions.len();
        pieces.split(spread, &self.crew);
        let failed = Mutex::new(Ok(()));
        let judge = |(pipeline, share): (&Mutex<Pipeline>, &mut [Work])| {
            let mut pipeline = lock(pipeline);
            let judged = share.iter_mut().try_for_each(|work| {
                if work.batch.is_empty() && work.expiry.is_none() {
                    return Ok(());
                }
                // As they came: no function rewrites that keeps no state.
                pipeline.extract_keys(&work.batch);
                pipeline.process(functions.clone(), &mut work.batch, work.expiry)?;
                work.take(&mut pipeline);
                Ok(())
            });
            if judged.is_err() {
                *failed.lock().unwrap_or_else(PoisonError::into_inner) = judged;
            }
        };
        // What one thread judges sooner than others come to it. Where time goes on without packets, each share may have many flows that end.
        let is_small = pieces.used < 2 && pieces.packets > 0;
        let shares = self.stages.iter().zip(pieces.shares());
        if is_small {
            shares.for_each(judge)
        } else {
            self.crew.each(shares.collect(), judge)
        }
        pieces.merge(&self.crew);
        failed.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes all that functions still hold, unless their state `is_kept`.
    pub(super) fn drain_all(&self, outlet: &mut Outlet<'_>, is_kept: bool) -> Result<(), Error> {
        outlet.outputs.linger();
        let mut left: Vec<_> = if is_kept { Vec::new() } else { self.keepers().iter().collect() };
        while !left.is_empty() {
            let have_more = Mutex::new(Vec::new());
            self.crew.each(left, |pipeline| {
                let mut of_thread = lock(pipeline);
                while of_thread.drain() {
                    if of_thread.records().any(|records| records.are_many()) {
                        have_more.lock().unwrap_or_else(PoisonError::into_inner).push(pipeline);
                        break;
                    }
                }
            });
            pipelines::write_records(&self.stages, outlet)?;
            left = have_more.into_inner().unwrap_or_else(PoisonError::into_inner);
        }
        pipelines::write_records(&self.stages, outlet)
    }
}
