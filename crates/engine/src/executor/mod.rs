//! Runs a plan: source to batches, batches through the chain, what passes to the sink.
//!
//! - `single`: one worker, in the thread that reads.
//! - `workers`: several, packets spread by flow, merged again in order of arrival.
//! - `device`: one worker that feeds a device.
//! - `stateful`: one worker that feeds a device which keeps state for flows.
//! - `oracle`: packet by packet through the slow forms.
//! - [`Life`]: what happens to a run between two batches.
//! - [`Statistics`]: what a run has counted so far.
//! - [`Worker`]: one worker, for whoever has batches of their own; [`Shared`]: what several of them share.

mod device;
mod life;
mod logs;
mod oracle;
mod shared;
mod single;
mod stateful;
mod statistics;
mod worker;
mod workers;

pub use self::life::{Life, Load, Save, Saving};
pub use self::shared::Shared;
pub use self::statistics::{Snapshot, Statistics};
pub use self::worker::{Counted, Worker};
pub(crate) use self::workers::APART;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use packetloom_export::json;
use packetloom_io::capture::{CaptureReader, CaptureWriter};
use packetloom_io::input::Stop;
use packetloom_io::output::Output;
use packetloom_nf::flows::Counts;
use packetloom_nf::{Logged, Prepared, Report};
use packetloom_packet::verdict::VerdictCounts;
use packetloom_packet::{Batch, FlowRecord, LinkType, Timestamp};

use self::life::Course;
use self::logs::Logs;
use crate::chain::Device;
use crate::outcome::{Outcome, TopFlows};
use crate::{Error, Plan, State, offload};

/// On a live source packets may come out of order by as much before a sweep shows: a packet this late finds its flow.
const REORDER_NANOS: u64 = 1_000_000_000;

/// Bytes of encoded records gathered before they are written.
const ENCODED: usize = 1 << 16;

/// What a run needs beside its plan.
pub struct Io<'a> {
    /// The packets.
    pub source: CaptureReader,
    /// Where results go.
    pub outputs: &'a mut Outputs,
    /// Packets after which the source counts as ended.
    pub limit: Option<u64>,
    /// Set to end the run early: what was read is finished.
    pub stop: Stop,
    /// Called after each batch with the bytes and packets read so far.
    pub progress: &'a mut dyn FnMut(u64, u64),
    /// Called with what the user should know at once: that a device failed, that it is back.
    pub notice: &'a mut dyn FnMut(&str),
    /// A device in place of the one that the chain names.
    pub device: Option<packetloom_device::Device>,
    /// What it begins with, and what happens to it on the way: where [`Plan::has_life`].
    pub life: Life<'a>,
}

/// The files that a run writes. None appears under its name before [`Outputs::publish`].
#[derive(Debug, Default)]
pub struct Outputs {
    /// Where packets go that pass.
    pub sink: Option<CaptureWriter>,
    /// For each function, where its flow records or its log go.
    pub records: Vec<Option<Output>>,
    /// Where the caller is going to write the summary: opened before the run, so that it does not fail after it.
    pub summaries: Vec<Option<Output>>,
}

impl Outputs {
    /// Hands everything to the system.
    ///
    /// # Errors
    ///
    /// [`packetloom_io::Error::Io`] for the first output that fails. One whose reader went away is let go of; that is an
    /// error only when no other is left.
    pub fn flush(&mut self) -> Result<(), packetloom_io::Error> {
        self.with(|outputs| &mut outputs.sink, CaptureWriter::complete)?;
        for index in 0..self.records.len() {
            self.with(|outputs| &mut outputs.records[index], Output::flush)?;
        }
        for index in 0..self.summaries.len() {
            self.with(|outputs| &mut outputs.summaries[index], Output::flush)?;
        }
        Ok(())
    }

    /// Writes the same text to all summaries.
    ///
    /// # Errors
    ///
    /// As [`Outputs::flush`].
    pub fn write_summaries(&mut self, text: &str) -> Result<(), packetloom_io::Error> {
        (0..self.summaries.len()).try_for_each(|index| {
            self.with(|outputs| &mut outputs.summaries[index], |output| output.write(text.as_bytes()))
        })
    }

    /// Does something with an output, if it is there. One whose reader went away is let go of, and the run goes on for the
    /// others; with none left, that is the end of it.
    fn with<T>(
        &mut self,
        output: impl Fn(&mut Self) -> &mut Option<T>,
        work: impl FnOnce(&mut T) -> Result<(), packetloom_io::Error>,
    ) -> Result<(), packetloom_io::Error> {
        let Some(target) = output(self) else { return Ok(()) };
        match work(target) {
            Err(error) if error.is_broken_pipe() => {
                *output(self) = None;
                if self.is_empty() { Err(error) } else { Ok(()) }
            }
            result => result,
        }
    }

    /// Gives the files their names, once all of them are whole.
    ///
    /// # Errors
    ///
    /// As [`Outputs::flush`]; then none appears.
    pub fn publish(mut self) -> Result<(), packetloom_io::Error> {
        self.flush()?;
        if let Some(sink) = self.sink {
            sink.finish()?;
        }
        self.records.into_iter().chain(self.summaries).flatten().try_for_each(Output::finish)
    }

    /// Whether anybody still wants results.
    fn is_empty(&self) -> bool {
        self.sink.is_none() && self.records.iter().chain(&self.summaries).all(Option::is_none)
    }
}

/// Runs a plan to the end of its input. Its outputs are flushed when it returns without an error, and left to be published.
///
/// # Errors
///
/// [`Error`].
pub fn run(plan: &Plan, io: Io<'_>) -> Result<Outcome, Error> {
    let start = Instant::now();
    let chain = plan.chain();
    let settings = &chain.settings.run;
    let paths = life::paths(plan);
    let mut intake = Intake {
        source: io.source,
        limit: io.limit,
        stop: io.stop,
        progress: io.progress,
        received: 0,
        until: None,
        time: None,
    };
    let mut outlet = Outlet {
        outputs: io.outputs,
        paths,
        outputs_of: Vec::new(),
        verdicts: VerdictCounts::default(),
        wire_bytes: 0,
        live: intake.source.is_live(),
        logs: Logs::new(&chain.functions),
        statistics: io.life.statistics.clone(),
    };
    outlet.outputs_of = outlet.outputs_of(plan);
    let is_auto = settings.device == Device::Auto;
    let placed = match (settings.device.placement(), io.device) {
        (None, _) => None,
        (Some(_), Some(device)) => Some(device),
        (Some(placement), None) => placement.open().map_err(offload::Error::from)?,
    };
    let mut shares = None;
    let mut course = Course::new(plan, io.life, io.notice);
    let Remains { mut reports, top_flows, flows, state } = match (placed, plan.workers()) {
        _ if settings.device == Device::Oracle => oracle::run(&mut course, &mut intake, &mut outlet)?,
        (Some(device), _) if plan.offloaded() > 0 => {
            let on = device::Use { device: &device, functions: plan.offloaded(), is_auto };
            let (remains, judged) = device::run(chain, on, &mut intake, &mut outlet, course.notice())?;
            shares = Some(judged);
            remains
        }
        (Some(device), _) if plan.stateful() > 0 => {
            let (remains, judged) = stateful::run(&mut course, &device, &mut intake, &mut outlet)?;
            shares = Some(judged);
            remains
        }
        (_, 1) => single::run(&mut course, &mut intake, &mut outlet)?,
        _ => workers::run(&mut course, &mut intake, &mut outlet)?,
    };
    outlet.finish_logs(&mut reports)?;
    outlet.outputs.flush()?;
    let chain = course.chain();
    let names = chain.layout.definitions.iter().map(|used| used.name.clone());
    let mut outcome = Outcome {
        verdicts: outlet.verdicts,
        wire_bytes: outlet.wire_bytes,
        functions: chain.functions.iter().map(|function| function.name()).zip(reports).collect(),
        flows: names.zip(flows).collect(),
        top_flows,
        truncation: intake.source.truncation().cloned(),
        findings: intake.source.findings(),
        stopped: intake.stop.load(Ordering::Relaxed),
        elapsed: start.elapsed(),
        shares,
        reloads: course.reloads,
        replaced: course.replaced,
        state,
    };
    outcome.top_flows.merge(&course.top_flows);
    for (name, counts) in course.gone {
        outcome.add_counts(name, counts);
    }
    Ok(outcome)
}

/// What a run, or a worker of it, leaves behind.
struct Remains {
    reports: Vec<Box<dyn Report>>,
    top_flows: TopFlows,
    /// What the tables of each flow definition counted.
    flows: Vec<Counts>,
    /// The state of flows, where it is wanted.
    state: Option<State>,
}

impl Remains {
    /// Adds what another worker counted.
    fn merge(&mut self, other: &Self) {
        for (report, other) in self.reports.iter_mut().zip(&other.reports) {
            report.merge(&**other);
        }
        self.top_flows.merge(&other.top_flows);
        for (counts, &other) in self.flows.iter_mut().zip(&other.flows) {
            *counts = *counts + other;
        }
    }
}

/// Where batches come from.
struct Intake<'a> {
    source: CaptureReader,
    limit: Option<u64>,
    stop: Stop,
    progress: &'a mut dyn FnMut(u64, u64),
    received: u64,
    /// Packets that no batch goes beyond.
    until: Option<u64>,
    /// The time of the last packet, in nanoseconds.
    time: Option<u64>,
}

impl Intake<'_> {
    /// Fills a batch; `false` at the end.
    fn fill(&mut self, batch: &mut Batch) -> Result<bool, Error> {
        if self.stop.load(Ordering::Relaxed) || self.limit.is_some_and(|limit| self.received >= limit) {
            return Ok(false);
        }
        let room = batch.capacity();
        // No more is read than is judged, so that what the reader counts is what the run counts.
        for until in [self.until, self.limit].into_iter().flatten() {
            let left = usize::try_from(until - self.received).unwrap_or(room);
            batch.set_capacity(batch.capacity().min(left));
        }
        let has_more = self.source.fill(batch)?;
        batch.set_capacity(room);
        if !has_more {
            return Ok(false);
        }
        self.received += batch.len() as u64;
        self.time = last_time(batch).map(Timestamp::as_nanos).or(self.time);
        (self.progress)(self.source.position(), self.received);
        Ok(true)
    }

    /// State with what is known of the packets that led to it.
    fn date(&self, mut state: State) -> State {
        state.sort();
        State { packets: self.received, time: self.time, ..state }
    }
}

/// Where verdicts, packets, records and logs go.
struct Outlet<'a> {
    outputs: &'a mut Outputs,
    /// Where each of the outputs for records goes.
    paths: Vec<Option<PathBuf>>,
    /// For each function the number of the output that is its.
    outputs_of: Vec<Option<usize>>,
    verdicts: VerdictCounts,
    wire_bytes: u64,
    /// Whether somebody may be waiting for what was decided: then nothing is held back.
    live: bool,
    logs: Logs,
    statistics: Arc<Statistics>,
}

impl Outlet<'_> {
    /// Counts a batch's verdicts and writes the frames that pass.
    fn deliver(&mut self, batch: &Batch) -> Result<(), Error> {
        for (&verdict, frame) in batch.verdicts().iter().zip(batch.frames()) {
            self.verdicts.add(verdict);
            self.wire_bytes += u64::from(frame.wire_len);
        }
        self.statistics.set(Snapshot { verdicts: self.verdicts, wire_bytes: self.wire_bytes });
        let live = self.live;
        Ok(self.outputs.with(
            |outputs| &mut outputs.sink,
            |sink| {
                sink.write_passed(batch)?;
                if live { sink.flush() } else { Ok(()) }
            },
        )?)
    }

    /// For each function of a plan the number of the output that is its.
    fn outputs_of(&self, plan: &Plan) -> Vec<Option<usize>> {
        let number = |path: Option<PathBuf>| {
            let number = self.paths.iter().position(|of| path.is_some() && *of == path)?;
            (number < self.outputs.records.len()).then_some(number)
        };
        life::paths(plan).into_iter().map(number).collect()
    }

    /// Writes a function's encoded records and forgets them.
    fn write_records(&mut self, function: usize, encoded: &mut String) -> Result<(), Error> {
        if let Some(output) = self.outputs_of[function] {
            let follow = self.live && !encoded.is_empty();
            self.outputs.with(
                |outputs| &mut outputs.records[output],
                |output| {
                    output.write(encoded.as_bytes())?;
                    if follow { output.flush() } else { Ok(()) }
                },
            )?;
        }
        encoded.clear();
        Ok(())
    }

    /// Writes the encoded records of every function and forgets them.
    fn write_all_records(&mut self, encoded: &mut [String]) -> Result<(), Error> {
        encoded.iter_mut().enumerate().try_for_each(|(function, lines)| self.write_records(function, lines))
    }
}

/// What comes out of a function beside verdicts, on its way out.
struct Encoder {
    /// Whether records are written at all.
    wanted: bool,
    lines: String,
    top_flows: TopFlows,
    /// Packets of the last batch that are to be logged.
    logged: Vec<Logged>,
}

impl Encoder {
    fn new(function: &dyn Prepared) -> Self {
        Self {
            wanted: function.records_path().is_some(),
            lines: String::new(),
            top_flows: TopFlows::default(),
            logged: Vec::new(),
        }
    }

    fn record(&mut self, record: &FlowRecord) {
        self.top_flows.add(record);
        if self.wanted {
            json::write_record(&mut self.lines, record);
        }
    }
}

/// The time of a batch's last frame whose time can be trusted: where its interface is undefined, so is the unit.
fn last_time(batch: &Batch) -> Option<Timestamp> {
    batch.frames().iter().rev().find(|frame| frame.link != LinkType::NONE).map(|frame| frame.time)
}

/// How far time has come on a live source, so that idle state can expire.
#[derive(Clone, Copy, Debug)]
struct Expiry {
    /// The last packet's time, less what order may be off by.
    now: Timestamp,
    /// Packets since the last time.
    packets: usize,
}

impl Expiry {
    fn after(batch: &Batch) -> Option<Self> {
        let last = last_time(batch)?.as_nanos();
        let now = Timestamp::from_nanos(last.saturating_sub(REORDER_NANOS));
        Some(Self { now, packets: batch.len() })
    }
}
