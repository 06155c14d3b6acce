//! One worker, in the thread that reads.

use std::hash::{BuildHasher, RandomState};
use std::ops::Range;

use packetloom_nf::flows::{FlowFunction, Flows};
use packetloom_nf::{Form, Found, Function, Logged};
use packetloom_packet::{Batch, Verdict};

use super::{ENCODED, Encoder, Expiry, Intake, Outlet, Remains};
use crate::layout::{Part, Parts};
use crate::offload::stateful::State;
use crate::outcome::TopFlows;
use crate::{Chain, Error};

/// Records handed out at a time at the end: about as many as fill the buffer of encoded ones.
const DRAINED: usize = 256;

/// A chain's functions with the state of one worker.
pub(super) struct Stages {
    stages: Vec<Stage>,
    /// The tables of the chain's flow definitions.
    flows: Vec<Flows>,
}

/// A function, and what comes out of it beside verdicts.
struct Stage {
    function: Fast,
    encoder: Encoder,
}

/// A function's batch form.
enum Fast {
    Standalone(Box<dyn Function>),
    PerFlow(Box<dyn FlowFunction>, Parts),
}

impl Stages {
    /// Those of one worker of `workers`, for batches of up to `batch` packets.
    pub(super) fn new(chain: &Chain, workers: usize, batch: usize) -> Self {
        // Seeds that senders cannot know; no result depends on them.
        let seed = |number: u64| RandomState::new().hash_one(number);
        let flows = chain
            .layout
            .definitions
            .iter()
            .map(|used| Flows::new(&used.definition, workers, batch, used.words(), [seed(0), seed(1)]));
        let stages = chain.functions.iter().zip(&chain.layout.parts).map(|(function, part)| {
            let encoder = Encoder::new(&**function);
            let function = match (function.form(), part) {
                (Form::Standalone(function), _) => Fast::Standalone(function.function(workers)),
                (Form::PerFlow(function), Some(parts)) => {
                    Fast::PerFlow(function.function(parts.main.at), *parts)
                }
                (Form::PerFlow(_), None) => unreachable!("the layout has a part for each of them"),
            };
            Stage { function, encoder }
        });
        Self { stages: stages.collect(), flows: flows.collect() }
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.stages.len()
    }

    /// Takes the flows of a batch's packets as they came, whatever is rewritten later: before they meet the first of the
    /// functions that are here.
    pub(super) fn arrive(&mut self, batch: &Batch) {
        self.flows.iter_mut().for_each(|flows| flows.arrive(batch));
    }

    /// Takes over what a device kept for the first functions.
    pub(super) fn take_over(&mut self, state: &State) {
        for (definition, flows) in self.flows.iter_mut().enumerate() {
            state.put_into(definition, flows);
        }
        for (Stage { function, .. }, counted) in self.stages.iter_mut().zip(&state.functions) {
            if let Fast::PerFlow(function, _) = function {
                function.add(counted);
            }
        }
    }

    /// Takes a parsed batch through some of the chain.
    pub(super) fn process(&mut self, part: Range<usize>, batch: &mut Batch, expiry: Option<Expiry>) {
        let flows = &mut self.flows;
        let is_last = part.end == self.stages.len();
        for Stage { function, encoder } in &mut self.stages[part] {
            match function {
                Fast::Standalone(function) => {
                    function.process(batch, &mut |record| encoder.record(record));
                    function.logged(&mut encoder.logged);
                    if let Some(Expiry { now, packets }) = expiry {
                        function.expire(now, packets, &mut |record| encoder.record(record));
                    }
                }
                Fast::PerFlow(function, Parts { main, remembers }) => {
                    if let Some(part) = remembers {
                        function.begin(batch.len());
                        let flows = touched(flows, *part, batch);
                        function.remember(part.at, batch, flows);
                    }
                    let flows = touched(flows, *main, batch);
                    function.process(batch, flows);
                    function.logged(&mut encoder.logged);
                }
            }
        }
        if is_last {
            flows.iter_mut().for_each(Flows::leave);
        }
    }

    /// Takes some frames of a batch, in a batch of their own, through standalone functions of the chain; `frames` are their places
    /// in the whole one.
    pub(super) fn process_aside(&mut self, part: Range<usize>, aside: &mut Batch, frames: &[u32]) {
        let mut logged = Vec::new();
        for Stage { function, encoder } in &mut self.stages[part] {
            let Fast::Standalone(function) = function else { continue };
            function.process(aside, &mut |record| encoder.record(record));
            function.logged(&mut logged);
            let in_whole = |Logged { frame, rule }| Logged { frame: frames[frame as usize], rule };
            encoder.logged.extend(logged.drain(..).map(in_whole));
        }
    }

    /// Has a function take what a device found about so many packets in its place.
    pub(super) fn take(
        &mut self,
        function: usize,
        packets: usize,
        found: &mut Vec<Found>,
        verdicts: &mut [Verdict],
    ) {
        let Stage { function, encoder } = &mut self.stages[function];
        let Fast::Standalone(function) = function else { return };
        function.take(packets, found, verdicts);
        function.logged(&mut encoder.logged);
        // With those of frames that were judged aside.
        encoder.logged.sort_unstable();
    }

    /// Hands out some of what the functions still hold; returns whether there is more.
    pub(super) fn drain(&mut self) -> bool {
        self.stages.iter_mut().any(|Stage { function, encoder }| match function {
            Fast::Standalone(function) => function.drain(DRAINED, &mut |record| encoder.record(record)),
            Fast::PerFlow(..) => false,
        })
    }

    /// The records encoded so far, function by function.
    pub(super) fn encoded(&mut self) -> impl Iterator<Item = &mut String> {
        self.stages.iter_mut().map(|stage| &mut stage.encoder.lines)
    }

    /// The packets of the last batch that are to be logged, function by function.
    pub(super) fn logged(&mut self) -> impl Iterator<Item = &mut Vec<Logged>> {
        self.stages.iter_mut().map(|stage| &mut stage.encoder.logged)
    }

    pub(super) fn report(self) -> Remains {
        let mut top_flows = TopFlows::default();
        let reports = self.stages.iter().map(|Stage { function, encoder }| {
            top_flows.merge(&encoder.top_flows);
            match function {
                Fast::Standalone(function) => function.report(),
                Fast::PerFlow(function, parts) => function.report(&self.flows[parts.main.definition]),
            }
        });
        let reports = reports.collect();
        Remains { reports, top_flows, flows: self.flows.iter().map(Flows::counts).collect() }
    }
}

/// The flows of a part's definition, looked up where this is the first part to see packets.
fn touched<'a>(flows: &'a mut [Flows], part: Part, batch: &mut Batch) -> &'a mut Flows {
    let flows = &mut flows[part.definition];
    if part.is_first {
        flows.touch(batch);
    }
    flows
}

pub(super) fn run(chain: &Chain, intake: &mut Intake<'_>, outlet: &mut Outlet<'_>) -> Result<Remains, Error> {
    let settings = &chain.settings.run;
    let mut stages = Stages::new(chain, 1, settings.batch.get());
    let mut batch = Batch::new(settings.batch.get());
    let live = intake.source.is_live();
    while intake.fill(&mut batch)? {
        batch.parse(settings.policy());
        let expiry = if live { Expiry::after(&batch) } else { None };
        stages.arrive(&batch);
        stages.process(0..stages.len(), &mut batch, expiry);
        for (index, logged) in stages.logged().enumerate() {
            outlet.log_batch(index, logged, &batch)?;
        }
        outlet.deliver(&batch)?;
        for (index, lines) in stages.encoded().enumerate() {
            if lines.len() >= ENCODED || live {
                outlet.write_records(index, lines)?;
            }
        }
    }
    loop {
        let more = stages.drain();
        for (index, lines) in stages.encoded().enumerate() {
            outlet.write_records(index, lines)?;
        }
        if !more {
            break;
        }
    }
    Ok(stages.report())
}
