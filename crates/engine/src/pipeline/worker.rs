//! One worker, for whoever has batches of their own.

use packetloom_nf::Report;
use packetloom_nf::flows::Counts;
use packetloom_packet::Batch;
use packetloom_packet::batch::Policy;

use super::{Effects, Pipeline, Shared, WorkerReport};
use crate::{Error, Plan};

/// A chain with the state of one worker. Packets are to be spread as [`Plan::spread`] says where there are several.
///
/// [`Worker::effects`] is what came of the last batch beside verdicts; what is not looked at before the next one is forgotten.
pub struct Worker {
    pipeline: Pipeline,
    policy: Policy,
}

/// What workers counted.
pub struct Counted {
    /// The functions' reports, in the chain's order.
    pub functions: Vec<Box<dyn Report>>,
    /// What the tables of each flow definition counted.
    pub flows: Vec<Counts>,
}

impl Worker {
    /// One of those that [`Shared::new`] was told of, by its number from 0.
    pub fn new(plan: &Plan, shared: &Shared, number: usize) -> Self {
        let chain = plan.chain();
        Self { pipeline: Pipeline::new(chain, shared, number), policy: chain.settings.run.policy() }
    }

    /// What the last batch, or the last call of [`Worker::drain`], has brought, for each function in the chain's order.
    pub fn effects(&mut self) -> impl Iterator<Item = Effects<'_>> {
        self.pipeline.effects()
    }

    /// Ends some of what functions still hold, flow records for one, which are [effects](Worker::effects) then. Returns whether there is more.
    pub fn drain(&mut self) -> bool {
        self.pipeline.forget_effects();
        self.pipeline.drain()
    }

    /// Judges a batch: parses its frames and takes them through the chain.
    ///
    /// # Errors
    /// [`Error::Worker`] where another worker panicked that shares tables with this one.
    pub fn judge(&mut self, batch: &mut Batch) -> Result<(), Error> {
        batch.parse(self.policy);
        self.judge_parsed(batch)
    }

    /// The same for a batch that was parsed.
    ///
    /// # Errors
    /// As [`Worker::judge`].
    pub fn judge_parsed(&mut self, batch: &mut Batch) -> Result<(), Error> {
        self.pipeline.forget_effects();
        self.pipeline.judge(batch, None)
    }

    pub(super) fn report(self) -> WorkerReport {
        self.pipeline.report()
    }
}
