//! One worker, for whoever has batches of their own.

use packetloom_nf::Report;
use packetloom_nf::flows::Counts;
use packetloom_packet::batch::Policy;
use packetloom_packet::{Batch, Timestamp};

use super::{Effects, Expiry, Pipeline, Shared, WorkerReport};
use crate::{Error, Plan};

/// A chain with the state of one worker. Packets are to be spread as [`Plan::spread`] says where there are several.
///
/// Where the chain has a sample, each batch has to say which packets of the input it has: [`Batch::set_first_number`].
///
/// [`Worker::effects`] is what came of the last batch beside verdicts; what is not looked at before the next one is forgotten.
pub struct Worker {
    pipeline: Pipeline,
    policy: Policy,
    /// Whether idle state expires as time goes on.
    is_live: bool,
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
        let pipeline = Pipeline::new(chain, shared, number);
        Self { pipeline, policy: chain.settings.run.policy(), is_live: false }
    }

    /// Says whether packets come as they are sent: then the state of flows that were silent for too long ends a second after its timeout. It
    /// ends when the flow's next packet comes where this is not said.
    pub fn set_live(&mut self, is_live: bool) {
        self.is_live = is_live;
    }

    /// Has idle state expire where no packet came until `now`, of a worker that is [live](Worker::set_live). What comes of it is what
    /// [`Worker::effects`] has then.
    ///
    /// # Errors
    /// As [`Worker::judge`].
    pub fn pass_time(&mut self, now: Timestamp) -> Result<(), Error> {
        self.pipeline.forget_effects();
        let expiry = self.is_live.then(|| Expiry::at(now));
        self.pipeline.judge(&mut Batch::new(0), expiry)
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
        let expiry = if self.is_live { Expiry::after(batch) } else { None };
        self.pipeline.judge(batch, expiry)
    }

    /// What the only worker of a plan has counted so far; of several, [`Shared::finish`] adds up what they counted.
    pub fn counted(&self) -> Counted {
        let WorkerReport { reports, flows, .. } = self.pipeline.report();
        Counted { functions: reports, flows }
    }

    pub(super) fn report(self) -> WorkerReport {
        self.pipeline.report()
    }
}
