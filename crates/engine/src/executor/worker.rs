//! One worker, for whoever has batches of their own.

use packetloom_nf::Report;
use packetloom_nf::flows::Counts;
use packetloom_packet::Batch;
use packetloom_packet::batch::Policy;

use super::Remains;
use super::single::Stages;
use crate::Plan;

/// A chain with the state of one worker. Packets are to be spread as [`Plan::spread`] says where there are several.
///
/// Records and logs of functions that have some are not handed out.
pub struct Worker {
    stages: Stages,
    policy: Policy,
}

/// What a worker counted.
pub struct Counted {
    /// The functions' reports, in the chain's order.
    pub functions: Vec<Box<dyn Report>>,
    /// What the tables of each flow definition counted.
    pub flows: Vec<Counts>,
}

impl Worker {
    /// One of so many workers, for batches of up to `batch` packets.
    pub fn new(plan: &Plan, workers: usize, batch: usize) -> Self {
        let chain = plan.chain();
        Self { stages: Stages::new(chain, workers, batch), policy: chain.settings.run.policy() }
    }

    /// Judges a batch: parses its frames and takes them through the chain.
    pub fn judge(&mut self, batch: &mut Batch) {
        batch.parse(self.policy);
        self.judge_parsed(batch);
    }

    /// The same for a batch that was parsed.
    pub fn judge_parsed(&mut self, batch: &mut Batch) {
        self.stages.arrive(batch);
        self.stages.process(0..self.stages.len(), batch, None);
        self.stages.encoded().for_each(String::clear);
        self.stages.logged().for_each(Vec::clear);
    }

    /// What it counted.
    pub fn finish(self) -> Counted {
        let Remains { reports, flows, .. } = self.stages.report();
        Counted { functions: reports, flows }
    }
}
