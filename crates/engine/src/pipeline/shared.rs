//! What the workers of a chain share.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use packetloom_nf::flows::{
    AnyEntry, By, Cursor, Flows, Forgotten, Poisoned, SharedFlows, Sweep, Visit, Visitor,
};
use packetloom_nf::{Form, Report};
use packetloom_packet::Batch;

use super::{Counted, Expiry, Worker, WorkerReport};
use crate::chain::Origin;
use crate::layout::{Part, Used};
use crate::{Chain, Error, Plan, State};

/// How many workers run a chain, and the tables that they share: of flow definitions whose packets meet several of them.
///
/// ```
/// # use packetloom_engine::{Chain, Plan, pipeline::{Shared, Worker}};
/// # use packetloom_packet::Batch;
/// let chain = "[[chain]]\nnf = \"source-counter\"\n";
/// let context = packetloom_nf::Context { folder: std::path::Path::new(""), ignore_flags: false };
/// let plan = Plan::new(Chain::parse("chain.toml", chain, context)?);
/// let shared = Shared::new(&plan, 2, 256);
/// let mut workers = [0, 1].map(|number| Worker::new(&plan, &shared, number));
/// // Each in a thread of its own, with packets that are spread as the plan says.
/// workers[0].judge(&mut Batch::new(256))?;
/// let counted = shared.finish(&plan, workers)?;
/// assert_eq!(counted.functions[0].json()["sources"], 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Shared {
    workers: usize,
    batch: usize,
    /// For each definition, where they share it.
    tables: Vec<Option<Arc<SharedFlows>>>,
}

impl Shared {
    /// For so many workers of a plan, with batches of up to `batch` packets.
    pub fn new(plan: &Plan, workers: usize, batch: usize) -> Self {
        Self::of(plan.chain(), plan.spread(), workers, batch)
    }

    /// For one worker, which shares nothing.
    pub(crate) fn nothing(chain: &Chain, batch: usize) -> Self {
        Self::of(chain, By::FiveTuple, 1, batch)
    }

    fn of(chain: &Chain, spread: By, workers: usize, batch: usize) -> Self {
        let tables = chain.layout.definitions.iter().map(|used| {
            let Used { definition, hears_ends, .. } = used;
            let is_shared = workers > 1 && used.is_shared(spread);
            debug_assert!(!is_shared || !hears_ends, "packets are spread so that it is not");
            is_shared.then(|| Arc::new(SharedFlows::new(definition, workers, batch, used.words(), seeds())))
        });
        Self { workers, batch, tables: tables.collect() }
    }

    /// The tables of a chain's definitions for a worker.
    pub(crate) fn tables_of(&self, chain: &Chain, worker: usize) -> Vec<Tables> {
        (0..self.tables.len()).map(|definition| self.tables(chain, definition, worker)).collect()
    }

    /// Those of a definition.
    pub(crate) fn tables(&self, chain: &Chain, definition: usize, worker: usize) -> Tables {
        let (used, workers) = (&chain.layout.definitions[definition], self.workers);
        let words = used.words();
        match &self.tables[definition] {
            Some(shared) => Tables::Shared(Visitor::new(shared, worker, workers)),
            None if used.is_own => {
                let flows = Flows::growing(&used.definition, workers, words, seeds());
                let cursor = Cursor::new(&flows);
                let sweep = used.definition.timeout.limit().map(|_| Sweep::default());
                Tables::OfOne { flows, cursor, sweep }
            }
            None => {
                // Entries move when tables grow. Packets of captures can wait for that.
                let flows = match chain.settings.source {
                    Some(Origin::Captures(_)) => Flows::growing(&used.definition, workers, words, seeds()),
                    _ => Flows::new(&used.definition, workers, self.batch, words, seeds()),
                };
                Tables::Own { cursor: Cursor::new(&flows), flows }
            }
        }
    }

    /// Puts the state of flows into the tables that are shared.
    pub(crate) fn restore(&self, state: &State) -> Result<(), Error> {
        for (held, tables) in state.definitions.iter().zip(&self.tables) {
            let ([v4, v6], Some(tables)) = (&held.entries, tables) else { continue };
            tables.restore([v4, v6], held.words(), held.counts)?;
        }
        Ok(())
    }

    /// Adds the flows of shared tables, and what these counted.
    pub(crate) fn save(&self, state: &mut State) -> Result<(), Error> {
        for (held, tables) in state.definitions.iter_mut().zip(&self.tables) {
            let Some(tables) = tables else { continue };
            let words = held.words();
            tables.each_part(|flows| {
                let saved = flows.save(words);
                held.entries.iter_mut().zip(saved).for_each(|(entries, saved)| entries.extend(saved));
                held.counts = held.counts + flows.counts();
            })?;
            held.blank();
        }
        Ok(())
    }

    /// Shows a worker's share of the entries of a definition, where workers share them.
    pub(crate) fn each_entry(
        &self,
        definition: usize,
        worker: usize,
        mut see: impl FnMut(AnyEntry<'_>),
    ) -> Result<(), Error> {
        let Some(tables) = &self.tables[definition] else { return Ok(()) };
        let mut parts = (worker..tables.parts()).step_by(self.workers);
        Ok(parts.try_for_each(|part| tables.with_part(part, |flows| flows.entries().for_each(&mut see)))?)
    }

    /// Takes a function's state out of the entries of a definition that `is_meant` says, where workers share them.
    pub(crate) fn remove(
        &self,
        part: Part,
        mut is_meant: impl FnMut(AnyEntry<'_>) -> bool,
    ) -> Result<(), Error> {
        let Some(tables) = &self.tables[part.definition] else { return Ok(()) };
        for number in 0..tables.parts() {
            tables.with_part(number, |flows| {
                let mut done = Forgotten::default();
                while flows.forget_if(&mut done, usize::MAX, part.at, &mut is_meant) {}
            })?;
        }
        Ok(())
    }

    /// Adds what is held in tables that are shared to a function's report.
    pub(crate) fn add_held(
        &self,
        chain: &Chain,
        function: usize,
        report: &mut dyn Report,
    ) -> Result<(), Error> {
        let (form, parts) = (chain.functions[function].form(), &chain.layout.parts[function]);
        let (Form::PerFlow(function), Some(parts)) = (form, parts) else { return Ok(()) };
        let Some(shared) = &self.tables[parts.main.definition] else { return Ok(()) };
        // As of another worker, which judged nothing and holds the flows.
        let function = function.function(parts.main.at);
        Ok(shared.each_part(|flows| report.merge(&*function.report(flows)))?)
    }

    /// Adds up what all workers of a plan counted.
    ///
    /// # Errors
    /// [`Error::Worker`] where there is none, or one failed.
    pub fn finish(&self, plan: &Plan, workers: impl IntoIterator<Item = Worker>) -> Result<Counted, Error> {
        let all = workers.into_iter().map(Worker::report);
        let WorkerReport { reports, flows, .. } = self.total(plan.chain(), all)?;
        Ok(Counted { functions: reports, flows })
    }

    /// Adds up what all workers left, and what is in the tables that they share.
    pub(crate) fn total(
        &self,
        chain: &Chain,
        remains: impl Iterator<Item = WorkerReport>,
    ) -> Result<WorkerReport, Error> {
        let total = remains.reduce(|mut total, remains| {
            total.merge(&remains);
            total
        });
        let mut total = total.ok_or(Error::Worker)?;
        for (shared, counts) in self.tables.iter().zip(&mut total.flows) {
            let Some(shared) = shared else { continue };
            shared.each_part(|flows| *counts = *counts + flows.counts())?;
        }
        for (function, report) in total.reports.iter_mut().enumerate() {
            self.add_held(chain, function, &mut **report)?;
        }
        Ok(total)
    }
}

/// Seeds that senders cannot know; no result depends on them.
fn seeds() -> [u64; 2] {
    [0, 1].map(|number: u64| RandomState::new().hash_one(number))
}

impl From<Poisoned> for Error {
    fn from(_: Poisoned) -> Self {
        Self::Worker
    }
}

/// The tables of a flow definition, as a worker has them.
pub(crate) enum Tables {
    /// No other worker sees packets of these flows.
    Own { flows: Flows, cursor: Cursor },
    /// The same of a definition that one function has to itself; how far it was swept, where its flows expire.
    OfOne { flows: Flows, cursor: Cursor, sweep: Option<Sweep> },
    /// Others do.
    Shared(Visitor),
}

impl Tables {
    /// Takes the flows of a batch's packets as they came.
    pub(crate) fn extract_keys(&mut self, batch: &Batch) {
        match self {
            Self::Own { flows, cursor } => cursor.extract_keys(batch, flows),
            // When they come to the function.
            Self::OfOne { .. } => {}
            Self::Shared(visitor) => visitor.extract_keys(batch),
        }
    }

    /// Takes the flows of a batch's packets as they come to the function that has these to itself, and has it `select` some.
    pub(crate) fn arrive_late(&mut self, batch: &Batch, select: impl FnOnce(&Batch, &mut Cursor)) {
        if let Self::OfOne { flows, cursor, .. } = self {
            cursor.extract_keys(batch, flows);
            select(batch, cursor);
        }
    }

    /// Has functions judge a batch, in one call of `judge` or several, each with other packets of it; flows are looked up before, if
    /// these are the first functions to see them. With tables of its own in one call, if functions want the `whole` batch.
    pub(crate) fn visit(
        &mut self,
        is_first: bool,
        whole: bool,
        batch: &mut Batch,
        judge: impl FnMut(&mut Batch, &mut Visit<'_>),
    ) -> Result<(), Error> {
        match self {
            Self::Own { flows, cursor } | Self::OfOne { flows, cursor, .. } => {
                cursor.visit(flows, is_first, whole, batch, judge);
                Ok(())
            }
            Self::Shared(visitor) => {
                debug_assert!(!whole, "parts of shared tables are visited one after the other");
                Ok(visitor.visit(is_first, batch, judge)?)
            }
        }
    }

    /// To be called when all functions are done with a batch.
    pub(crate) fn leave(&mut self) {
        if let Some(flows) = self.own() {
            flows.leave();
        }
    }

    /// Looks for flows that were silent for too long, where it is to; between batches.
    pub(crate) fn sweep(&mut self, Expiry { now, packets }: Expiry) {
        if let Self::OfOne { flows, sweep: Some(sweep), .. } = self {
            flows.sweep(sweep, now, packets);
        }
    }

    /// Those of this worker alone.
    pub(crate) fn own(&mut self) -> Option<&mut Flows> {
        match self {
            Self::Own { flows, .. } | Self::OfOne { flows, .. } => Some(flows),
            Self::Shared(_) => None,
        }
    }

    /// The flows that only this worker knows of.
    pub(crate) fn flows(&self) -> &Flows {
        match self {
            Self::Own { flows, .. } | Self::OfOne { flows, .. } => flows,
            Self::Shared(visitor) => visitor.flows(),
        }
    }
}
