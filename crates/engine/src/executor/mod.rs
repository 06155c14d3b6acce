//! Runs a plan: source to batches, batches through the chain, what passes to the sink.
//!
//! - [`single`]: one worker, in the thread that reads.
//! - [`workers`]: several, packets spread by flow, merged again in order of arrival.
//! - [`oracle`]: packet by packet through the slow forms.

mod oracle;
mod single;
mod workers;

use std::sync::atomic::Ordering;
use std::time::Instant;

use packetloom_export::json;
use packetloom_io::capture::{CaptureReader, CaptureWriter};
use packetloom_io::input::Stop;
use packetloom_io::output::Output;
use packetloom_nf::Prepared;
use packetloom_packet::verdict::VerdictCounts;
use packetloom_packet::{Batch, FlowRecord, Timestamp};

use crate::chain::Device;
use crate::outcome::{Outcome, TopFlows};
use crate::{Error, Plan};

/// Flow records may come out of order by as much before a sweep shows: a packet this much late still finds its flow.
const REORDER_NANOS: u64 = 1_000_000_000;

/// Bytes of encoded records gathered before they are written.
const ENCODED: usize = 1 << 16;

/// What a run needs beside its plan.
pub struct Io<'a> {
    /// The packets.
    pub source: CaptureReader,
    /// Where packets go that pass.
    pub sink: Option<CaptureWriter>,
    /// For each function, where its flow records go.
    pub records: Vec<Option<Output>>,
    /// Packets after which the source counts as ended.
    pub limit: Option<u64>,
    /// Set to end the run early: what was read is finished.
    pub stop: Stop,
    /// Called after each batch with the bytes and packets read so far.
    pub progress: &'a mut dyn FnMut(u64, u64),
}

/// Runs a plan to the end of its input. Outputs are complete, under their names, when it returns without an error.
///
/// # Errors
///
/// [`Error`]; outputs then do not appear.
pub fn run(plan: &Plan, io: Io<'_>) -> Result<Outcome, Error> {
    let start = Instant::now();
    let functions = &plan.chain().functions;
    let settings = &plan.chain().settings.run;
    let mut intake =
        Intake { source: io.source, limit: io.limit, stop: io.stop, progress: io.progress, received: 0 };
    let mut outlet = Outlet {
        sink: io.sink,
        records: io.records,
        verdicts: VerdictCounts::default(),
        wire_bytes: 0,
        follow: intake.source.is_stream(),
    };
    let (reports, top_flows) = match (settings.device, plan.workers()) {
        (Device::Oracle, _) => oracle::run(functions, settings, &mut intake, &mut outlet)?,
        (Device::Cpu, 1) => single::run(functions, settings, &mut intake, &mut outlet)?,
        (Device::Cpu, workers) => workers::run(functions, settings, workers, &mut intake, &mut outlet)?,
    };
    let (verdicts, wire_bytes) = (outlet.verdicts, outlet.wire_bytes);
    outlet.finish()?;
    Ok(Outcome {
        verdicts,
        wire_bytes,
        functions: functions.iter().map(|function| function.name()).zip(reports).collect(),
        top_flows,
        truncation: intake.source.truncation().cloned(),
        stopped: intake.stop.load(Ordering::Relaxed),
        elapsed: start.elapsed(),
    })
}

/// Where batches come from.
struct Intake<'a> {
    source: CaptureReader,
    limit: Option<u64>,
    stop: Stop,
    progress: &'a mut dyn FnMut(u64, u64),
    received: u64,
}

impl Intake<'_> {
    /// Fills a batch; `false` at the end.
    fn fill(&mut self, batch: &mut Batch) -> Result<bool, Error> {
        if self.stop.load(Ordering::Relaxed) || self.limit.is_some_and(|limit| self.received >= limit) {
            return Ok(false);
        }
        if !self.source.fill(batch)? {
            return Ok(false);
        }
        if let Some(limit) = self.limit {
            batch.truncate(usize::try_from(limit - self.received).unwrap_or(usize::MAX));
        }
        self.received += batch.len() as u64;
        (self.progress)(self.source.position(), self.received);
        Ok(true)
    }
}

/// Where verdicts, packets and records go.
struct Outlet {
    sink: Option<CaptureWriter>,
    records: Vec<Option<Output>>,
    verdicts: VerdictCounts,
    wire_bytes: u64,
    /// Whether somebody may be waiting for what was decided: then nothing is held back.
    follow: bool,
}

impl Outlet {
    /// Counts a batch's verdicts and writes the frames that pass.
    fn deliver(&mut self, batch: &Batch) -> Result<(), Error> {
        for (index, (&verdict, frame)) in batch.verdicts().iter().zip(batch.frames()).enumerate() {
            self.verdicts.add(verdict);
            self.wire_bytes += u64::from(frame.wire_len);
            if let Some(sink) = &mut self.sink
                && verdict.is_pass()
            {
                sink.write(frame, batch.bytes(index))?;
            }
        }
        if self.follow
            && let Some(sink) = &mut self.sink
        {
            sink.flush()?;
        }
        Ok(())
    }

    /// Writes a function's encoded records and forgets them.
    fn write_records(&mut self, function: usize, encoded: &mut String) -> Result<(), Error> {
        if let Some(Some(output)) = self.records.get_mut(function) {
            output.write(encoded.as_bytes())?;
            if self.follow && !encoded.is_empty() {
                output.flush()?;
            }
        }
        encoded.clear();
        Ok(())
    }

    /// Writes the encoded records of every function and forgets them.
    fn write_all_records(&mut self, encoded: &mut [String]) -> Result<(), Error> {
        encoded.iter_mut().enumerate().try_for_each(|(function, lines)| self.write_records(function, lines))
    }

    fn finish(self) -> Result<(), Error> {
        if let Some(sink) = self.sink {
            sink.finish()?;
        }
        for output in self.records.into_iter().flatten() {
            output.finish()?;
        }
        Ok(())
    }
}

/// A function's records on their way out.
struct Encoder {
    /// Whether they are written at all.
    wanted: bool,
    lines: String,
    top_flows: TopFlows,
}

impl Encoder {
    fn new(function: &dyn Prepared) -> Self {
        Self {
            wanted: function.records_path().is_some(),
            lines: String::new(),
            top_flows: TopFlows::default(),
        }
    }

    fn record(&mut self, record: &FlowRecord) {
        self.top_flows.add(record);
        if self.wanted {
            json::write_record(&mut self.lines, record);
        }
    }
}

/// The time until which idle state may expire after a batch: its last packet's, less what order may be off by.
fn expiry_time(batch: &Batch) -> Option<Timestamp> {
    let last = batch.frames().last()?.time.as_nanos();
    Some(Timestamp::from_nanos(last.saturating_sub(REORDER_NANOS)))
}
