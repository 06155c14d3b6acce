//! Runs a plan: source to batches, batches through the chain, what passes to the sink.
//!
//! - `workers`: one worker or several; any of them does what is to be done next.
//! - `device`: one worker or several that feed a device.
//! - `pipelines`: the functions of several workers, between two batches.
//! - `oracle`: packet by packet through the slow forms.
//! - [`LifecycleOptions`]: what happens to a run between two batches.
//! - `loader`: what it goes on with, made on a thread of its own.
//! - [`Control`]: what others ask of it on the way.
//! - `listing`: flows that they ask for, or have removed.
//! - `rules`: rules that they change.
//! - [`Statistics`]: what a run has counted so far.

mod control;
mod device;
mod lifecycle;
mod listing;
mod loader;
mod logs;
mod matches;
mod oracle;
mod pipelines;
mod reader;
mod rules;
mod slot;
mod statistics;
mod workers;

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use packetloom_export::Exporter;
use packetloom_io::capture::{CaptureWriter, Paging, PcapngWriter, Section};
use packetloom_io::input::Stop;
use packetloom_io::output::Output;
use packetloom_io::{Polled, Sink, Source};
use packetloom_nf::flows::{AnyEntry, Forgotten};
use packetloom_packet::batch::{Loan, empty_arena};
use packetloom_packet::verdict::VerdictCounts;
use packetloom_packet::{Batch, FlowKey, PortNames, Timestamp};
use packetloom_report::Reports;

use self::control::Closing;
pub use self::control::{Answer, ChangeAnswer, Control, Counted, Request};
use self::lifecycle::Lifecycle;
pub use self::lifecycle::{LifecycleOptions, Load, Save, Saving};
pub(crate) use self::listing::FlowList;
use self::listing::Scan;
pub use self::listing::{FlowOrder, FlowQuery, FlowRemoval, FunctionName, Listed, MOST_LISTED, Removed};
use self::logs::Logs;
use self::matches::Matches;
pub(crate) use self::reader::APART;
pub use self::rules::{RuleChange, RulesChanged};
use self::statistics::Pause;
pub(crate) use self::statistics::ReportLine;
pub use self::statistics::{Report, Snapshot, Statistics, WorkerLoad};
use crate::bell::NAP;
use crate::chain::{Device, Idle, MAX_DEVICES};
use crate::crew::Crew;
use crate::offload::opening::Opening;
use crate::offload::{Placement, Unfinished};
use crate::outcome::{Exported, Interface, Outcome, Written};
use crate::pipeline::work::{ENCODED, Records, Work};
use crate::pipeline::{Pipeline, last_time};
use crate::{Chain, Error, Plan, State, offload};

/// Bytes of a record, before any was seen.
const RECORD: u64 = 128;

/// Bytes of a capture that several threads read at a time, at most.
const SECTIONS: u64 = 16 << 20;

/// After so many wrong guesses at where records begin, one thread reads so many batches.
const WRONG: u32 = 16;
const REST: u32 = 1 << 10;

/// Nanoseconds without packets after which idle state expires all the same, where time goes on.
const TICK: u64 = 50_000_000;

/// Nanoseconds after its interval at which a file is finished that nothing comes for.
const AFTER: u64 = 1_000_000_000;

/// Nanoseconds that the time of records may be ahead of the clock before it is taken for wrong.
const AHEAD: u64 = 60_000_000_000;

/// What a run needs beside its plan.
pub struct Io<'a> {
    /// The packets.
    pub source: Box<dyn Source>,
    /// Where results go.
    pub outputs: &'a mut Outputs,
    /// Packets after which the source counts as ended.
    pub limit: Option<u64>,
    /// Set to end the run early: what was read is finished.
    pub stop: Stop,
    /// Called after each batch with the bytes and packets read so far.
    pub progress: &'a mut (dyn FnMut(u64, u64) + Send),
    /// Called with what the user should know at once: that a device failed, that it is back.
    pub notice: &'a mut dyn FnMut(&str),
    /// Devices in place of those that the chain names, if there are any.
    pub devices: Vec<packetloom_device::Device>,
    /// What it begins with, and what happens to it on the way.
    pub life: LifecycleOptions<'a>,
}

/// Flows that [`Outputs::matched_flows`] and [`Outputs::passed_flows`] collect, each: some 700 MB of them, and half as much again while
/// room for them grows. What a table of a power of two holds.
pub const MAX_COLLECTED_FLOWS: usize = (1 << 24) / 8 * 7;

/// Where the results of a run go. No file appears under its name before [`Outputs::publish`] or [`Outputs::appear`].
#[derive(Debug, Default)]
pub struct Outputs {
    /// Where packets go that pass.
    pub sink: Option<CaptureWriter>,
    /// Where they go beside, whatever link types and interfaces they have.
    pub extracted: Option<PcapngWriter>,
    /// Where those go that are dropped.
    pub dropped: Option<PcapngWriter>,
    /// Where those go that rules matched.
    pub matched: Option<PcapngWriter>,
    /// Collects the flows that these belong to, up to [`MAX_COLLECTED_FLOWS`] and one more; what has no ports, such as a later fragment, is a
    /// flow by addresses and protocol. The chain has to [watch](crate::Chain::watch_matched) for them.
    pub matched_flows: Option<HashSet<FlowKey>>,
    /// Collects in the same way the flows of packets that pass.
    pub passed_flows: Option<HashSet<FlowKey>>,
    /// Where they leave meanwhile, inline.
    pub egress: Option<Box<dyn Sink>>,
    /// For each function, where its flow records or its log go.
    pub records: Vec<Option<Output>>,
    /// Where flow records are sent beside: for all functions in order, as [`FunctionSpec::exports`](packetloom_nf::FunctionSpec::exports)
    /// has them.
    pub exporters: Vec<Exporter>,
    /// What counts flow records, of functions that [hand them over](packetloom_nf::FunctionSpec::hands_over); afterwards it is in [`Outcome`].
    pub reports: Option<Reports>,
    /// Where the caller is going to write the summary: opened before the run, so that it does not fail after it.
    pub summaries: Vec<Option<Output>>,
}

impl Outputs {
    /// Has files with packets, records and logs appear under their names now, since they are going to grow for long.
    ///
    /// # Errors
    ///
    /// [`packetloom_io::Error::Io`] for the first that cannot.
    pub fn appear(&mut self) -> Result<(), packetloom_io::Error> {
        self.sink.as_mut().map_or(Ok(()), CaptureWriter::appear)?;
        self.exporters.iter_mut().for_each(Exporter::appear);
        self.extracted.as_mut().map_or(Ok(()), PcapngWriter::appear)?;
        self.dropped.as_mut().map_or(Ok(()), PcapngWriter::appear)?;
        self.matched.as_mut().map_or(Ok(()), PcapngWriter::appear)?;
        self.records.iter_mut().flatten().try_for_each(Output::appear)
    }

    /// Has threads write packets, records and logs from now on: packets do not wait for them. What becomes of these outputs is part of
    /// [`Outcome`].
    ///
    /// # Errors
    ///
    /// [`packetloom_io::Error::Io`] for the first that cannot.
    pub fn detach(&mut self) -> Result<(), packetloom_io::Error> {
        self.results().try_for_each(Output::detach)
    }

    /// Whether frames that pass are written as they came.
    fn wants_frames(&self) -> bool {
        self.extracted.is_some() || self.matched.is_some()
    }

    /// Where packets, records and logs go.
    fn results(&mut self) -> impl Iterator<Item = &mut Output> {
        let sink = self.sink.iter_mut().map(AsMut::as_mut);
        let others = self.extracted.iter_mut().chain(&mut self.dropped).chain(&mut self.matched);
        let others = others.map(AsMut::as_mut);
        sink.chain(others).chain(self.records.iter_mut().flatten())
    }

    /// Finishes files of outputs that are several, where their interval is over.
    fn pass_time(&mut self, now: u64) -> Result<(), packetloom_io::Error> {
        self.results().try_for_each(|output| output.pass_time(now))
    }

    /// Passes over that nobody reads an exported file any more, unless that is the end of the run.
    fn unless_left(&mut self, result: Result<(), packetloom_export::Error>) -> Result<(), Error> {
        match result {
            Err(packetloom_export::Error::File(error)) if error.is_broken_pipe() && !self.is_empty() => {
                Ok(())
            }
            result => Ok(result?),
        }
    }

    /// From now on nothing else has to be done than to wait for outputs that are detached, and for exporters.
    fn linger(&mut self) {
        self.exporters.iter_mut().for_each(Exporter::linger);
        self.results().for_each(Output::linger);
    }

    /// What the user should know of outputs that are detached, and of exporters, if there is anything.
    fn notice(&mut self) -> Option<String> {
        let of_outputs = self.results().find_map(Output::notice);
        of_outputs.or_else(|| self.exporters.iter_mut().find_map(Exporter::notice))
    }

    /// What was exported so far.
    fn exported(&self) -> Vec<Exported> {
        let exported = |exporter: &Exporter| Exported {
            to: exporter.settings().to.to_string(),
            protocol: exporter.settings().format.name(),
            counts: exporter.counts(),
        };
        self.exporters.iter().map(exported).collect()
    }

    /// Waits for outputs that are detached, and until exported records have arrived.
    fn settle(&mut self) -> Result<(), Error> {
        self.linger();
        self.exporters.iter_mut().for_each(Exporter::close);
        for index in 0..self.exporters.len() {
            let result = self.exporters[index].finish();
            self.unless_left(result)?;
        }
        self.linger();
        self.with(|outputs| &mut outputs.sink, |sink| sink.as_mut().settle())?;
        self.with(|outputs| &mut outputs.extracted, |extracted| extracted.as_mut().settle())?;
        self.with(|outputs| &mut outputs.dropped, |dropped| dropped.as_mut().settle())?;
        self.with(|outputs| &mut outputs.matched, |matched| matched.as_mut().settle())?;
        for index in 0..self.records.len() {
            self.with(|outputs| &mut outputs.records[index], Output::settle)?;
        }
        Ok(())
    }

    /// What became of outputs that are detached.
    fn written(&self) -> Vec<Written> {
        let sink = self.sink.iter().map(AsRef::as_ref);
        let others = self.extracted.iter().chain(&self.dropped).chain(&self.matched).map(AsRef::as_ref);
        let results = sink.chain(others).chain(self.records.iter().flatten());
        let written = |output: &Output| Written {
            output: output.name().to_owned(),
            not_written: output.not_written(),
            is_whole: output.is_whole(),
        };
        results.filter(|output| output.is_detached()).map(written).collect()
    }

    /// Hands everything to the system.
    ///
    /// # Errors
    ///
    /// [`packetloom_io::Error::Io`] for the first output that fails. One whose reader went away is let go of; that is an
    /// error only when no other is left.
    pub fn flush(&mut self) -> Result<(), packetloom_io::Error> {
        self.with(|outputs| &mut outputs.sink, CaptureWriter::complete)?;
        self.with(|outputs| &mut outputs.extracted, PcapngWriter::complete)?;
        self.with(|outputs| &mut outputs.dropped, PcapngWriter::complete)?;
        self.with(|outputs| &mut outputs.matched, PcapngWriter::complete)?;
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
    fn with<T: AsMut<Output>>(
        &mut self,
        output: impl Fn(&mut Self) -> &mut Option<T>,
        work: impl FnOnce(&mut T) -> Result<(), packetloom_io::Error>,
    ) -> Result<(), packetloom_io::Error> {
        let Some(target) = output(self) else { return Ok(()) };
        match work(target) {
            Err(error) if error.is_broken_pipe() => {
                // One that is detached counts what would have been written.
                let left = output(self).take_if(|output| !output.as_mut().is_detached());
                drop(left);
                if self.is_empty() {
                    return Err(error);
                }
                if let Some(left) = output(self) {
                    left.as_mut().say_that_nobody_reads();
                }
                Ok(())
            }
            result => result,
        }
    }

    /// Gives the files their names, once all of them are whole.
    ///
    /// # Errors
    ///
    /// As [`Outputs::flush`]; then none appears.
    pub fn publish(mut self) -> Result<(), Error> {
        self.flush()?;
        // What became of those that are detached is known, and they have their names.
        if let Some(sink) = self.sink.filter(|sink| !sink.as_ref().is_detached()) {
            sink.finish()?;
        }
        for capture in self.extracted.into_iter().chain(self.dropped).chain(self.matched) {
            if !capture.as_ref().is_detached() {
                capture.finish()?;
            }
        }
        let mut outputs = self.records.into_iter().chain(self.summaries).flatten();
        outputs.try_for_each(|output| if output.is_detached() { Ok(()) } else { output.finish() })?;
        self.exporters.into_iter().try_for_each(Exporter::publish)?;
        Ok(())
    }

    /// Whether anybody still wants results.
    fn is_empty(&mut self) -> bool {
        self.egress.is_none()
            && self.reports.is_none()
            && self.matched_flows.is_none()
            && self.passed_flows.is_none()
            && self.exporters.iter().all(Exporter::is_left)
            && self.summaries.iter().all(Option::is_none)
            && self.results().all(|output| output.is_left())
    }
}

/// Runs a plan to the end of its input. Its outputs are flushed when it returns without an error, and left to be published.
///
/// # Errors
///
/// [`Error`].
pub fn run(plan: &Plan, io: Io<'_>) -> Result<Outcome, Error> {
    let _closing = Closing(Arc::clone(&io.life.control));
    let chain = plan.chain();
    let settings = &chain.settings.run;
    let paths = lifecycle::paths(plan);
    let port_names = io.source.port_names();
    make_ready(plan, port_names.as_ref());
    let mut intake = Intake {
        // Where frames come by interfaces.
        spins: settings.idle == Idle::Spin && io.source.now().is_some(),
        rested: Duration::ZERO,
        source: io.source,
        limit: io.limit,
        stop: io.stop,
        progress: io.progress,
        received: 0,
        leaves_paging: false,
        guesses: Guesses { record: RECORD, wrong: 0, rest: 0 },
        failed: None,
        until: None,
        rules_until: None,
        time: None,
        ends_at: None,
        is_over: false,
        ticked: None,
        statistics: Arc::clone(&io.life.statistics),
        end: None,
    };
    let matches = Matches::new(plan, io.outputs.matched_flows.is_some());
    let mut outlet = Outlet {
        outputs: io.outputs,
        paths,
        outputs_of: Vec::new(),
        exporters_of: Vec::new(),
        verdicts: VerdictCounts::default(),
        wire_bytes: 0,
        live: intake.source.is_live(),
        logs: Logs::new(&chain.functions),
        matches,
        statistics: io.life.statistics.clone(),
        now: 0,
        rotates: settings.rotation().is_some(),
    };
    outlet.outputs_of = outlet.outputs_of(plan);
    outlet.exporters_of = outlet.exporters_of(plan);
    let mut life = io.life;
    let mut devices = match settings.device.is_placed() {
        true if io.devices.is_empty() && settings.device != Device::Auto => {
            settings.device.open().map_err(offload::Error::from)?
        }
        true => io.devices,
        false => Vec::new(),
    };
    if devices.len() > MAX_DEVICES {
        return Err(Error::Devices(devices.len()));
    }
    let mut opening = None;
    if plan.on_device() == 0 {
        devices.clear();
    } else if devices.is_empty()
        && settings.device == Device::Auto
        && (life.open.is_some() || packetloom_device::may_have_gpu())
    {
        let first_gpu = || Placement::Auto.open().ok().flatten();
        opening = Some(Opening::new(life.open.take().unwrap_or_else(|| Box::new(first_gpu))));
    }
    let (mut shares, mut unfinished) = (None, Unfinished::default());
    let goes_on = intake.source.now().is_some();
    let is_on_device = !devices.is_empty() || opening.is_some();
    let mut lifecycle = Lifecycle::new(plan, life, is_on_device, (port_names, goes_on), io.notice);
    let counted = if settings.device == Device::Oracle {
        oracle::run(&mut lifecycle, &mut intake, &mut outlet)?
    } else if !is_on_device {
        workers::run(&mut lifecycle, &mut intake, &mut outlet)?
    } else {
        let left = device::run(&mut lifecycle, (devices, opening), &mut intake, &mut outlet)?;
        (shares, unfinished) = (left.shares, left.unfinished);
        left.report
    };
    outlet.finish_logs()?;
    outlet.outputs.flush()?;
    outlet.outputs.settle()?;
    outlet.tell(&mut intake, lifecycle.notice());
    let outcome = lifecycle.outcome(counted, intake.report()?, &outlet);
    Ok(Outcome { shares, unfinished, reports: outlet.outputs.reports.take(), ..outcome })
}

/// Where batches come from.
struct Intake<'a> {
    source: Box<dyn Source>,
    /// Whether it is looked for frames all the time.
    spins: bool,
    /// For how long it was waited for since whoever asks last did.
    rested: Duration,
    limit: Option<u64>,
    stop: Stop,
    progress: &'a mut (dyn FnMut(u64, u64) + Send),
    received: u64,
    /// Whether another thread may bring in the pages of a mapped capture.
    leaves_paging: bool,
    guesses: Guesses,
    /// What reading failed with, where packets that came before are to go on first.
    failed: Option<Error>,
    /// Packets that no batch goes beyond: where something is to be done between two of them, and where rules change on a device.
    until: Option<u64>,
    rules_until: Option<u64>,
    /// The time of the last packet, in nanoseconds.
    time: Option<u64>,
    /// When it was asked to end, where time goes on without packets.
    ends_at: Option<Timestamp>,
    /// Whether it has come to that time.
    is_over: bool,
    /// When nothing had come for the first time, or at the last [tick](Intake::tick).
    ticked: Option<Timestamp>,
    statistics: Arc<Statistics>,
    /// There once it has ended.
    end: Option<Pause>,
}

impl Intake<'_> {
    /// Fills a batch; waits until there are frames, or no frames and something else to be done, which `is_due` says of so many packets.
    /// Where time goes on without packets it waits for a moment only.
    fn fill(&mut self, batch: &mut Batch, mut is_due: impl FnMut(u64) -> bool) -> Result<Polled, Error> {
        loop {
            match self.poll(batch)? {
                Polled::Nothing if is_due(self.received) => return Ok(Polled::Nothing),
                Polled::Nothing => self.rest()?,
                polled => return Ok(polled),
            }
            if self.source.now().is_some() {
                return Ok(Polled::Nothing);
            }
        }
    }

    /// Where nothing has come, waits until something may have, for a moment at most.
    fn rest(&mut self) -> Result<(), Error> {
        if !self.spins {
            let begun = Instant::now();
            self.source.wait(NAP)?;
            self.rested += begun.elapsed();
        }
        Ok(())
    }

    /// Where nothing has come, from time to time a batch without frames, at this time, so that idle state expires.
    fn tick(&mut self, batch: &mut Batch) -> Option<Timestamp> {
        let now = self.source.now()?;
        let since = *self.ticked.get_or_insert(now);
        if now.nanos_since(since) < TICK {
            return None;
        }
        self.ticked = Some(now);
        batch.reset(empty_arena());
        batch.set_wall_offset(self.source.wall_offset());
        Some(now)
    }

    /// Fills a batch with what is there. At the end the source is released: what becomes of outputs may take long.
    fn poll(&mut self, batch: &mut Batch) -> Result<Polled, Error> {
        let polled = self.poll_source(batch)?;
        if polled == Polled::End && self.end.is_none() {
            self.end = Some(self.statistics.pause());
            self.source.release()?;
        }
        Ok(polled)
    }

    fn poll_source(&mut self, batch: &mut Batch) -> Result<Polled, Error> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        if self.is_over || self.limit.is_some_and(|limit| self.received >= limit) {
            return Ok(Polled::End);
        }
        if self.stop.load(Ordering::Relaxed) && self.ends_at.is_none() {
            self.ends_at = self.source.now();
            // What the kernel has received by then is finished; of a capture, what was read.
            if self.ends_at.is_none() {
                return Ok(Polled::End);
            }
        }
        let room = batch.capacity();
        // No more is read than is judged, so that what the reader counts is what the run counts.
        for until in [self.until, self.rules_until, self.limit].into_iter().flatten() {
            let left = usize::try_from(until - self.received).unwrap_or(room);
            batch.set_capacity(batch.capacity().min(left));
        }
        if !self.leaves_paging
            && let Some(paging) = self.source.paging()
        {
            paging.run();
        }
        let polled = self.source.poll(batch)?;
        batch.set_capacity(room);
        if polled != Polled::Frames {
            return Ok(if self.ends_at.is_some() { Polled::End } else { polled });
        }
        self.ticked = None;
        batch.set_first_number(self.received);
        self.is_over = self.ends_at.is_some_and(|end| last_time(batch) > Some(end));
        self.received += batch.len() as u64;
        self.time = last_time(batch).map(Timestamp::as_nanos).or(self.time);
        (self.progress)(self.source.position(), self.received);
        Ok(Polled::Frames)
    }

    /// Whether the next packet is one that a batch must not go beyond.
    fn is_at_bound(&self) -> bool {
        let bounds = [self.until, self.rules_until];
        bounds.into_iter().flatten().any(|until| until <= self.received)
    }

    /// Fills some batches, in order, with up to so many packets each, and does something with each of them: all that by threads of a crew.
    /// How many were filled; none where only [`Self::poll`] can.
    fn poll_sections(
        &mut self,
        works: &mut [Work],
        size: usize,
        crew: &Crew,
        then: impl Fn(&mut Work) + Sync,
    ) -> Option<usize> {
        let room = (works.len() * size) as u64;
        let bounds = [self.until, self.rules_until, self.limit];
        let is_near = bounds.into_iter().flatten().any(|bound| bound.saturating_sub(self.received) < room);
        if is_near || self.stop.load(Ordering::Relaxed) {
            return None;
        }
        let Guesses { record, wrong, rest } = &mut self.guesses;
        if *rest > 0 {
            *rest -= 1;
            return None;
        }
        // Somewhat fewer records than there is room for, as long as they are like those before; and no more than is brought in before.
        let bytes = (size as u64 * *record * 7 / 8).min(SECTIONS / works.len() as u64);
        let sections = self.source.sections(usize::try_from(bytes).unwrap_or(usize::MAX))?;
        let mut found = vec![None; works.len()];
        let mut jobs: Vec<_> = std::iter::from_fn(|| self.source.paging()).map(Part::Paging).collect();
        let parts = works.iter_mut().zip(&mut found).enumerate();
        jobs.extend(parts.map(|(number, of)| Part::Section(number, of)));
        crew.each(jobs, |part| match part {
            Part::Section(number, (work, found)) => {
                work.batch.set_capacity(size);
                *found = sections.find(number, &mut work.batch);
                if found.is_some() {
                    then(work);
                }
            }
            Part::Paging(paging) => paging.run(),
        });
        let begin = self.source.position();
        let sections = works.iter().zip(found);
        let accepted = sections.take_while(|(work, section)| {
            !work.batch.is_empty() && section.is_some_and(|section| self.source.accept(section))
        });
        let filled = accepted.count();
        let (filled, others) = works.split_at_mut(filled);
        let mut number = self.received;
        for work in &mut *filled {
            work.batch.set_first_number(number);
            number += work.batch.len() as u64;
        }
        others.iter_mut().for_each(|work| work.batch.reset(empty_arena()));
        let last = filled.last()?;
        let packets: usize = filled.iter().map(|work| work.batch.len()).sum();
        *record = ((self.source.position() - begin) / packets as u64).max(1);
        // A section that has no room for all of its records is no wrong guess about the next one.
        match others.is_empty() || last.batch.is_full() {
            true => *wrong = wrong.saturating_sub(1),
            false => *wrong += 1,
        }
        if *wrong >= WRONG {
            (*wrong, *rest) = (WRONG - 1, REST);
        }
        self.received += packets as u64;
        self.time = last_time(&last.batch).map(Timestamp::as_nanos).or(self.time);
        (self.progress)(self.source.position(), self.received);
        Some(filled.len())
    }

    /// How far it has come.
    fn position(&self) -> Position {
        Position { received: self.received, time: self.time }
    }
}

/// What is known for guesses at where records are.
struct Guesses {
    /// Bytes of one, on average of the last batch.
    record: u64,
    /// Wrong guesses, less those that were right.
    wrong: u32,
    /// Batches that are read without guesses.
    rest: u32,
}

/// What one thread of several does that read.
enum Part<'w> {
    /// Finds the frames of the section with this number.
    Section(usize, (&'w mut Work, &'w mut Option<Section>)),
    Paging(Paging),
}

/// How far the source has come.
#[derive(Clone, Copy, Debug)]
struct Position {
    /// Packets that were read.
    received: u64,
    /// The time of the last packet, in nanoseconds.
    time: Option<u64>,
}

impl Position {
    /// State of a chain for whoever goes on with it, with what is known of the packets that led to it.
    fn date(self, chain: &Chain, mut state: State) -> State {
        state.detach(chain);
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
    /// For each function the numbers of its exporters.
    exporters_of: Vec<Vec<usize>>,
    verdicts: VerdictCounts,
    wire_bytes: u64,
    /// Whether somebody may be waiting for what was decided: then nothing is held back.
    live: bool,
    logs: Logs,
    matches: Matches,
    statistics: Arc<Statistics>,
    /// The time of the last packet that came to be written, in nanoseconds: by which records go to files.
    now: u64,
    /// Whether outputs are several files.
    rotates: bool,
}

/// Has functions do what takes long before packets come by these ports.
fn make_ready(plan: &Plan, names: Option<&PortNames>) {
    // The oracle takes nothing of it.
    if plan.chain().settings.run.device != Device::Oracle {
        plan.chain().functions.iter().for_each(|function| function.make_ready(names));
    }
}

/// Adds the flows of some frames of a batch to others, until there are more than [`MAX_COLLECTED_FLOWS`].
fn collect(flows: &mut HashSet<FlowKey>, batch: &Batch, frames: impl Iterator<Item = usize>) {
    for key in frames.filter_map(|frame| batch.flow_key(frame)) {
        if flows.len() > MAX_COLLECTED_FLOWS {
            break;
        }
        flows.insert(key);
    }
}

impl Outlet<'_> {
    /// Takes what came of a batch.
    fn take(&mut self, work: &mut Work) -> Result<(), Error> {
        let Work { batch, effects, counts, wire_bytes, passed, .. } = work;
        let _kept = self.keep_frames(batch);
        self.send_passed(batch);
        self.pass_time(batch);
        for (function, entries) in effects.log_entries.iter_mut().enumerate() {
            self.log_batch(function, entries)?;
        }
        self.verdicts.merge(counts);
        self.wire_bytes += *wire_bytes;
        self.publish_statistics();
        self.write_extracted(batch)?;
        self.write_dropped(batch)?;
        self.write_matched(batch)?;
        self.write_passed(|sink| sink.append(passed))?;
        for (function, records) in effects.records.iter_mut().enumerate() {
            if !records.is_empty() {
                self.write_records(function, records)?;
            }
        }
        Ok(())
    }

    /// Writes and exports the records that a worker has.
    fn write_pending(&mut self, pipeline: &mut Pipeline) -> Result<(), Error> {
        let mut records = pipeline.records().enumerate();
        records.try_for_each(|(function, records)| self.write_records(function, records))
    }

    /// Takes a function's state out of the entries of a pipeline that a scan means, and writes the records that come of it; how many.
    fn remove(&mut self, pipeline: &mut Pipeline, scan: &Scan<'_>) -> Result<u64, Error> {
        let (mut done, mut removed) = (Forgotten::default(), 0);
        loop {
            let is_meant = |entry: AnyEntry<'_>| scan.is_meant(entry, &mut removed);
            let more = pipeline.remove_some(scan.function, &mut done, is_meant);
            self.write_pending(pipeline)?;
            if !more {
                return Ok(removed);
            }
        }
    }

    /// Counts a batch's verdicts, sends and writes the frames that pass.
    fn deliver(&mut self, batch: &mut Batch) -> Result<(), Error> {
        let _kept = self.keep_frames(batch);
        self.send_passed(batch);
        self.pass_time(batch);
        self.verdicts.merge(&VerdictCounts::of(batch.verdicts()));
        self.wire_bytes += batch.frames().iter().map(|frame| u64::from(frame.wire_len)).sum::<u64>();
        self.publish_statistics();
        self.write_extracted(batch)?;
        self.write_dropped(batch)?;
        self.write_matched(batch)?;
        self.write_passed(|sink| sink.write_passed(batch))
    }

    /// Has records that come of a batch go to the file for its time; time that has come does not go back.
    fn pass_time(&mut self, batch: &Batch) {
        if let Some(time) = last_time(batch).filter(|_| self.rotates) {
            self.now = self.now.max(time.shifted(batch.wall_offset()).as_nanos());
        }
    }

    /// Keeps frames that are sent from being changed where they lie, as long as it is held: where outputs want them as they came.
    fn keep_frames(&self, batch: &Batch) -> Option<Arc<dyn Loan>> {
        self.outputs.wants_frames().then(|| batch.loan().cloned()).flatten()
    }

    /// Sends frames that pass, inline.
    fn send_passed(&mut self, batch: &mut Batch) {
        if let Some(egress) = &mut self.outputs.egress {
            egress.send_passed(batch);
        }
    }

    /// Something the user should know of what was sent or written, if there is any.
    fn notice(&mut self) -> Option<String> {
        let sent = self.outputs.egress.as_mut().and_then(|egress| egress.notice());
        sent.or_else(|| self.outputs.notice())
    }

    /// Says what the user should know of where packets come from and go to, and what went through interfaces to whoever asks.
    fn tell(&mut self, intake: &mut Intake<'_>, say: &mut dyn FnMut(&str)) {
        let egress_counts = || self.outputs.egress.as_ref().map(|egress| egress.egress_counts());
        self.statistics
            .answer(|| Some(Interface::all(intake.source.ingress_counts().ok()?, egress_counts())));
        if let Some(now) = intake.source.now().filter(|_| self.rotates) {
            // What has come until then and is not written yet is so, soon after.
            let now = now.shifted(intake.source.wall_offset()).as_nanos().saturating_sub(AFTER);
            // Records that come of no packet are of this time. The clock may have been far ahead.
            self.now = if self.now > now.saturating_add(AHEAD) { now } else { self.now.max(now) };
            if let Err(error) = self.outputs.pass_time(now) {
                say(&error.to_string());
            }
        }
        while let Some(text) = intake.source.notice().or_else(|| self.notice()) {
            say(&text);
        }
    }

    /// Shows what was counted so far to whoever asks.
    fn publish_statistics(&self) {
        self.statistics.set(Snapshot { verdicts: self.verdicts, wire_bytes: self.wire_bytes });
    }

    /// Writes frames that pass, if they are wanted.
    fn write_passed(
        &mut self,
        write: impl FnOnce(&mut CaptureWriter) -> Result<(), packetloom_io::Error>,
    ) -> Result<(), Error> {
        let live = self.live;
        Ok(self.outputs.with(
            |outputs| &mut outputs.sink,
            |sink| {
                write(sink)?;
                if live { sink.flush() } else { Ok(()) }
            },
        )?)
    }

    /// Writes frames that pass to a pcapng file, and notes their flows, if they are wanted there.
    fn write_extracted(&mut self, batch: &Batch) -> Result<(), Error> {
        let live = self.live;
        if let Some(flows) = &mut self.outputs.passed_flows {
            let verdicts = batch.verdicts().iter().enumerate();
            collect(flows, batch, verdicts.filter(|(_, verdict)| verdict.is_pass()).map(|(frame, _)| frame));
        }
        Ok(self.outputs.with(
            |outputs| &mut outputs.extracted,
            |extracted| {
                extracted.write_passed(batch)?;
                if live { extracted.flush() } else { Ok(()) }
            },
        )?)
    }

    /// Writes frames that are dropped, if they are wanted.
    fn write_dropped(&mut self, batch: &Batch) -> Result<(), Error> {
        let live = self.live;
        Ok(self.outputs.with(
            |outputs| &mut outputs.dropped,
            |dropped| {
                dropped.write_dropped(batch)?;
                if live { dropped.flush() } else { Ok(()) }
            },
        )?)
    }

    /// For each function of a plan the number of the output that is its.
    fn outputs_of(&self, plan: &Plan) -> Vec<Option<usize>> {
        let number = |path: Option<PathBuf>| {
            let number = self.paths.iter().position(|of| path.is_some() && *of == path)?;
            (number < self.outputs.records.len()).then_some(number)
        };
        lifecycle::paths(plan).into_iter().map(number).collect()
    }

    /// For each function of a plan the numbers of its exporters.
    fn exporters_of(&self, plan: &Plan) -> Vec<Vec<usize>> {
        let number =
            |settings| self.outputs.exporters.iter().position(|exporter| exporter.settings() == settings);
        let functions = plan.chain().functions().iter();
        functions.map(|function| function.exports().iter().filter_map(number).collect()).collect()
    }

    /// Writes and exports a function's records, and forgets them.
    fn write_records(&mut self, function: usize, records: &mut Records) -> Result<(), Error> {
        self.write_lines(function, &mut records.lines)?;
        for &exporter in &self.exporters_of[function] {
            let result = self.outputs.exporters[exporter].export(&records.flows);
            self.outputs.unless_left(result)?;
        }
        if let Some(reports) = &mut self.outputs.reports {
            records.flows.iter().for_each(|record| reports.add(record));
        }
        records.flows.clear();
        Ok(())
    }

    /// Writes a function's encoded lines and forgets them.
    fn write_lines(&mut self, function: usize, encoded: &mut String) -> Result<(), Error> {
        if let Some(output) = self.outputs_of[function] {
            let follow = self.live && !encoded.is_empty();
            let now = self.now;
            self.outputs.with(
                |outputs| &mut outputs.records[output],
                |output| {
                    if output.is_rotating() {
                        encoded
                            .split_inclusive('\n')
                            .try_for_each(|line| output.write_record(now, line.as_bytes()))?;
                    } else {
                        let records = if output.is_detached() { lines(encoded) } else { 0 };
                        output.write_items(encoded.as_bytes(), records)?;
                    }
                    if follow { output.flush() } else { Ok(()) }
                },
            )?;
        }
        encoded.clear();
        Ok(())
    }
}

/// Records are a line each.
fn lines(encoded: &str) -> u64 {
    encoded.bytes().filter(|&byte| byte == b'\n').count() as u64
}
