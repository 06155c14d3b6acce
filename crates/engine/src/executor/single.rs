//! One worker, in the thread that reads.

use std::ops::Range;

use packetloom_nf::{Found, Function, Logged, Prepared, Report};
use packetloom_packet::{Batch, Verdict};

use super::{ENCODED, Encoder, Expiry, Intake, Outlet};
use crate::Error;
use crate::chain::Run;
use crate::outcome::TopFlows;

/// Records handed out at a time at the end: about as many as fill the buffer of encoded ones.
const DRAINED: usize = 256;

/// A chain's functions with the state of one worker.
pub(super) struct Stages(Vec<(Box<dyn Function>, Encoder)>);

impl Stages {
    pub(super) fn new(functions: &[Box<dyn Prepared>], workers: usize) -> Self {
        Self(functions.iter().map(|f| (f.function(workers), Encoder::new(&**f))).collect())
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Takes a parsed batch through some of the chain.
    pub(super) fn process(&mut self, part: Range<usize>, batch: &mut Batch, expiry: Option<Expiry>) {
        for (function, encoder) in &mut self.0[part] {
            function.process(batch, &mut |record| encoder.record(record));
            function.logged(&mut encoder.logged);
            if let Some(Expiry { now, packets }) = expiry {
                function.expire(now, packets, &mut |record| encoder.record(record));
            }
        }
    }

    /// Takes some frames of a batch, in a batch of their own, through some of the chain; `frames` are their places in the whole one.
    pub(super) fn process_aside(&mut self, part: Range<usize>, aside: &mut Batch, frames: &[u32]) {
        let mut logged = Vec::new();
        for (function, encoder) in &mut self.0[part] {
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
        let (function, encoder) = &mut self.0[function];
        function.take(packets, found, verdicts);
        function.logged(&mut encoder.logged);
        // With those of frames that were judged aside.
        encoder.logged.sort_unstable();
    }

    /// Hands out some of what the functions still hold; returns whether there is more.
    pub(super) fn drain(&mut self) -> bool {
        self.0
            .iter_mut()
            .any(|(function, encoder)| function.drain(DRAINED, &mut |record| encoder.record(record)))
    }

    /// The records encoded so far, function by function.
    pub(super) fn encoded(&mut self) -> impl Iterator<Item = &mut String> {
        self.0.iter_mut().map(|(_, encoder)| &mut encoder.lines)
    }

    /// The packets of the last batch that are to be logged, function by function.
    pub(super) fn logged(&mut self) -> impl Iterator<Item = &mut Vec<Logged>> {
        self.0.iter_mut().map(|(_, encoder)| &mut encoder.logged)
    }

    pub(super) fn report(self) -> (Vec<Box<dyn Report>>, TopFlows) {
        let mut top_flows = TopFlows::default();
        let reports = self.0.into_iter().map(|(function, encoder)| {
            top_flows.merge(&encoder.top_flows);
            function.report()
        });
        let reports = reports.collect();
        (reports, top_flows)
    }
}

pub(super) fn run(
    functions: &[Box<dyn Prepared>],
    settings: &Run,
    intake: &mut Intake<'_>,
    outlet: &mut Outlet<'_>,
) -> Result<(Vec<Box<dyn Report>>, TopFlows), Error> {
    let mut stages = Stages::new(functions, 1);
    let mut batch = Batch::new(settings.batch.get());
    let live = intake.source.is_live();
    while intake.fill(&mut batch)? {
        batch.parse(settings.policy());
        let expiry = if live { Expiry::after(&batch) } else { None };
        stages.process(0..functions.len(), &mut batch, expiry);
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
