//! The verbs, a file each.

pub(crate) mod acl;
pub(crate) mod bench;
pub(crate) mod check;
pub(crate) mod control;
pub(crate) mod devices;
pub(crate) mod docs;
mod each;
pub(crate) mod example;
pub(crate) mod files;
mod flows;
pub(crate) mod generate;
pub(crate) mod meter;
pub(crate) mod plot;
pub(crate) mod run;
pub(crate) mod search;
pub(crate) mod state;
mod statistics;

use std::collections::HashSet;
use std::io::{self, Write};
use std::mem;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use indicatif::ProgressBar;
use packetloom_device::{Description, Device};
use packetloom_engine::chain::{self, Interfaces, Origin, PolicyAction, Run, Workers};
use packetloom_engine::offload::{Open, Placement, Unfinished};
use packetloom_engine::run::{Io, LifecycleOptions};
use packetloom_engine::{Outcome, Outputs, Plan};
use packetloom_export::Exporter;
use packetloom_io::Source;
use packetloom_io::capture::{CaptureSeries, CaptureWriter, FileReport, PcapngWriter, Resolution, Selection};
use packetloom_io::input::Stop;
use packetloom_io::output::{Output, removed_parts};
use packetloom_io::port::{Backend, Egress, Ingress, OnExit};
use packetloom_packet::FlowKey;
use packetloom_report::Reports;
use signal_hook::consts::{SIGINT, SIGTERM};

use self::statistics::{Asked, Reporter};
use crate::failure::Failure;
use crate::talk;
use crate::watchdog::Watchdog;

/// A flag that the first SIGINT or SIGTERM sets; a second one ends the process.
fn stop_on_signals() -> Result<Stop, Failure> {
    let stop = Stop::default();
    for signal in [SIGINT, SIGTERM] {
        let register = || {
            // In this order: the second handler runs after the first, so only a second signal finds the flag set.
            signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&stop))?;
            signal_hook::flag::register(signal, Arc::clone(&stop))
        };
        register().map_err(|e| Failure::Run(anyhow::anyhow!("cannot handle signals: {e}")))?;
    }
    Ok(stop)
}

/// What signals do to a run.
struct Signals {
    /// Set by those that end it.
    stop: Stop,
    /// Why SIGHUP does not have its chain read again, where it does not; a run over interfaces says so and goes on.
    no_reload: Option<String>,
}

/// What the command line says of where packets come from.
fn origin(
    read: &[PathBuf],
    interfaces: &[String],
    inline: Option<OnExit>,
    backend: Backend,
) -> Result<Option<Origin>, Failure> {
    match (read, interfaces) {
        ([_, ..], _) => Ok(Some(Origin::Captures(read.into()))),
        ([], []) => Ok(None),
        ([], names) => {
            let interfaces = Interfaces { names: names.to_vec(), inline, backend }.check();
            let interfaces = interfaces.map_err(|why| Failure::Usage(format!("-i: {why}")))?;
            Ok(Some(Origin::Interfaces(interfaces)))
        }
    }
}

/// The captures that paths name; says what is left out.
fn captures(paths: &[PathBuf]) -> Result<Vec<PathBuf>, Failure> {
    let Selection { captures, left_out } = Selection::of(paths)?;
    tell_of_left_out(&left_out);
    Ok(captures)
}

/// Says what files of folders are not read; "check --json" has all of them.
fn tell_of_left_out(left_out: &[PathBuf]) {
    /// Files that are named at most.
    const NAMED: usize = 5;
    if !left_out.is_empty() {
        let mut names: Vec<_> = left_out.iter().take(NAMED).map(|path| path.display().to_string()).collect();
        if left_out.len() > NAMED {
            names.push(format!("and {} more", talk::grouped((left_out.len() - NAMED) as u64)));
        }
        let names = names.join(", ");
        talk::say(&format!(
            "packetloom: warning: not read, since they do not begin like captures: {names}\n"
        ));
    }
}

/// The same source with the files that folders and patterns stand for.
fn select(origin: Origin) -> Result<Origin, Failure> {
    match origin {
        Origin::Captures(paths) => Ok(Origin::Captures(captures(&paths)?)),
        interfaces @ Origin::Interfaces(..) => Ok(interfaces),
    }
}

/// An opened source, and what is to be known of it.
struct Opened {
    source: Box<dyn Source>,
    egress: Option<Box<dyn packetloom_io::Sink>>,
    /// Its name in messages.
    name: String,
    /// Its bytes, where that is known.
    total: Option<u64>,
    /// How the kernel hands over packets, where that was to be chosen.
    backend: Option<&'static str>,
    /// That of its times.
    resolution: Resolution,
}

fn open(origin: &Origin, stop: &Stop) -> Result<Opened, Failure> {
    match origin {
        Origin::Captures(paths) => {
            let capture = CaptureSeries::open(paths, stop)?;
            Ok(Opened {
                egress: None,
                backend: None,
                name: capture.name().to_owned(),
                total: capture.total(),
                resolution: capture.resolution(),
                source: Box::new(capture),
            })
        }
        Origin::Interfaces(interfaces) => {
            let Interfaces { names, inline, backend } = interfaces;
            let ingress = Ingress::open(names, interfaces.mode(), *backend, inline.unwrap_or_default())?;
            let egress = inline
                .is_some()
                .then(|| Box::new(Egress::new(ingress.senders())) as Box<dyn packetloom_io::Sink>);
            Ok(Opened {
                egress,
                backend: (*backend != Backend::AfPacket).then(|| ingress.backend().name()),
                name: origin.to_string(),
                total: None,
                resolution: Resolution::Nanos,
                source: Box::new(ingress),
            })
        }
    }
}

/// How a chain is run that is made of a verb's arguments: nothing is dropped for want of headers.
fn passing(workers: Option<Workers>) -> Run {
    Run {
        workers: workers.unwrap_or(Run::default().workers),
        non_ip: PolicyAction::Pass,
        unknown_framing: Some(PolicyAction::Pass),
        malformed: PolicyAction::Pass,
        ..Run::default()
    }
}

/// What is wanted of a run beside what its chain writes.
#[derive(Default)]
struct Wanted<'a> {
    summaries: &'a [&'a Path],
    /// What counts flow records, where that goes, and as what.
    reports: Option<(Reports, &'a Path, packetloom_report::Format)>,
    /// Where the flows go that packets that match belong to.
    matched_flows: Option<&'a mut HashSet<FlowKey>>,
    /// The same of packets that pass.
    passed_flows: Option<&'a mut HashSet<FlowKey>>,
}

/// Opens what a plan names, runs it with a progress bar, writes the summary that `summarise` makes, and warns of a capture
/// that could not be read to its end, and of packets in it that no function can judge. Nothing appears under its name unless
/// everything is whole, but for what grows while packets come from interfaces, which go on whatever becomes of it. The
/// caller has checked that no output is an input.
fn execute(
    plan: &Plan,
    origin: &Origin,
    wanted: Wanted<'_>,
    limit: Option<u64>,
    mut life: LifecycleOptions<'_>,
    signals: Signals,
    summarise: fn(&Outcome) -> serde_json::Value,
) -> Result<Outcome, Failure> {
    warn(plan);
    talk::explain(|| plan.to_string());
    for function in plan.chain().functions() {
        talk::explain(|| function.details().join("\n"));
    }
    for capture in origin.captures() {
        talk::explain(|| said_of(capture));
    }
    // Of a run before this one: two of them in a driver at a time would be in each other's way.
    drop(unfinished().take());
    let devices = open_devices(plan)?;
    let Signals { stop, no_reload } = signals;
    // Interfaces are opened last: from then on packets wait, or are lost.
    let capture = match origin {
        Origin::Captures(_) => Some(open(origin, &stop)?),
        Origin::Interfaces(..) => None,
    };
    let resolution = capture.as_ref().map_or(Resolution::Nanos, |capture| capture.resolution);
    let chain = plan.chain();
    let sink = chain.settings.sink.as_ref();
    let rotation = chain.settings.run.rotation();
    let make = |path: &Path| match rotation {
        Some(rotation) => Output::rotating(path, rotation),
        None => Output::create(path),
    };
    let records = chain.functions().iter().map(|function| {
        let mut output = function.records_path().map(make).transpose()?;
        if let (Some(output), Some(header)) = (&mut output, function.record_lines().header()) {
            output.write_header(header.as_bytes())?;
        }
        Ok::<_, packetloom_io::Error>(output)
    });
    let capture_at = |path: &Path| make(path).map(PcapngWriter::over);
    let mut outputs = Outputs {
        egress: None,
        extracted: chain.settings.extracted.as_deref().map(capture_at).transpose()?,
        dropped: chain.settings.dropped.as_deref().map(capture_at).transpose()?,
        matched: chain.settings.matched.as_ref().map(|(path, _)| capture_at(path)).transpose()?,
        sink: sink
            .map(|path| make(path).map(|output| CaptureWriter::over(output, resolution)))
            .transpose()?,
        records: records.collect::<Result<_, _>>()?,
        reports: None,
        matched_flows: wanted.matched_flows.as_ref().map(|_| HashSet::new()),
        passed_flows: wanted.passed_flows.as_ref().map(|_| HashSet::new()),
        summaries: wanted
            .summaries
            .iter()
            .map(|path| Output::create(path).map(Some))
            .collect::<Result<_, _>>()?,
        exporters: Vec::new(),
    };
    // Opened before the run, so that it does not fail after it.
    let report = match wanted.reports {
        Some((reports, to, format)) => {
            outputs.reports = Some(reports);
            Some((Output::create(to)?, format))
        }
        None => None,
    };
    let settings = &chain.settings.run;
    let every = settings.stats_every();
    let mut statistics =
        settings.stats_output.as_deref().filter(|_| every.is_some()).map(Output::append).transpose()?;
    statistics.as_mut().map_or(Ok(()), Output::detach)?;
    tell_of_removed();
    outputs.exporters = open_exporters(plan, capture.is_some(), make)?;
    let is_capture = capture.is_some();
    // Before the interfaces: it holds none of them.
    let watched = Arc::clone(&life.statistics);
    let hang = settings.watchdog().map_err(Failure::Usage)?;
    let watchdog = (!is_capture).then(|| Watchdog::start(hang, watched)).transpose()?;
    let opened = capture.map_or_else(|| open(origin, &stop), Ok)?;
    let Opened { source, egress, name, total, backend, .. } = opened;
    outputs.egress = egress;
    if !is_capture {
        outputs.appear()?;
        outputs.detach()?;
    }
    let bar = talk::bar(total, "reading", talk::Template::Bytes);
    let position = Arc::new(AtomicU64::new(0));
    let asked = Asked {
        name: name.clone(),
        total,
        position: position.clone(),
        statistics: life.statistics.clone(),
        bar: bar.clone(),
        is_capture,
        no_reload: no_reload.filter(|_| !is_capture),
    };
    let reporter = Reporter::start(asked, every, statistics)?;
    if !is_capture {
        // Last of all: whoever waits for it may send signals from then on.
        let backend = backend.map(|backend| format!(" ({backend})")).unwrap_or_default();
        talk::say(&format!("packetloom: receiving from {origin}{backend}\n"));
    }
    watchdog.iter().for_each(Watchdog::ready);
    let mut progress = |bytes, packets| {
        position.store(bytes, Ordering::Relaxed);
        bar.set_position(bytes);
        if !bar.is_hidden() {
            bar.set_message(format!("{packets} packets"));
        }
    };
    let mut notice = |text: &str| bar.suspend(|| talk::error(&format!("packetloom: warning: {text}\n")));
    if is_auto(plan) && packetloom_device::may_have_gpu() {
        life.open = Some(open_first_gpu(bar.clone()));
    }
    let io = Io {
        source,
        outputs: &mut outputs,
        limit,
        stop,
        progress: &mut progress,
        notice: &mut notice,
        devices,
        life,
    };
    let mut result = packetloom_engine::run(plan, io);
    drop(watchdog);
    reporter.finish(result.as_mut().ok());
    bar.finish_and_clear();
    let mut outcome = result?;
    *unfinished() = Some(mem::take(&mut outcome.unfinished));
    let matched = wanted.matched_flows.zip(outputs.matched_flows.take());
    let passed = wanted.passed_flows.zip(outputs.passed_flows.take());
    for (into, flows) in matched.into_iter().chain(passed) {
        *into = flows;
    }
    let reported = report.zip(outcome.reports.take()).map_or(Ok(()), |((mut output, format), reports)| {
        output.write_header(reports.write(format).as_bytes())?;
        output.finish()
    });
    let summary = pretty(&summarise(&outcome))?;
    let written = outputs.write_summaries(&summary).map_err(packetloom_engine::Error::from);
    let published = written.and_then(|()| outputs.publish());
    if let Err(error) = published.and(reported.map_err(packetloom_engine::Error::from)) {
        let is_unread = match &error {
            packetloom_engine::Error::Io(error)
            | packetloom_engine::Error::Export(packetloom_export::Error::File(error)) => {
                error.is_broken_pipe()
            }
            _ => false,
        };
        // After hours over interfaces it is not lost with a full disk.
        if !is_capture && !is_unread {
            talk::error(&talk::outcome(outcome));
        }
        return Err(error.into());
    }
    if origin.captures().len() > 1 {
        outcome.files.iter().for_each(warn_of);
    } else {
        let (truncation, findings) = (outcome.truncation.clone(), outcome.findings.clone());
        warn_of(&FileReport { name, truncation, findings });
    }
    Ok(outcome)
}

/// Opens what records are exported to. While packets come from interfaces, nobody waits for it.
fn open_exporters(
    plan: &Plan,
    is_capture: bool,
    make: impl Fn(&Path) -> Result<Output, packetloom_io::Error>,
) -> Result<Vec<Exporter>, Failure> {
    let exports = plan.chain().functions().iter().flat_map(|function| function.exports());
    let open = |settings: &packetloom_export::Settings| {
        let output = settings.to.file().map(|path| make(path)).transpose()?;
        Ok(Exporter::start(settings.clone(), output, is_capture)?)
    };
    exports.map(open).collect()
}

/// What a capture is, as far as its name says.
fn said_of(capture: &Path) -> String {
    let name = capture.display();
    match std::fs::metadata(capture) {
        Ok(metadata) if metadata.is_file() => {
            format!("{name}: {}, mapped", talk::amount(metadata.len(), "byte"))
        }
        _ => format!("{name}: read as it comes"),
    }
}

/// Whether a plan has functions for a device that is looked for.
fn is_auto(plan: &Plan) -> bool {
    plan.on_device() > 0 && plan.chain().settings.run.device == chain::Device::Auto
}

/// Opens the devices that a plan names and has functions for; none where cores have all of them, or begin.
fn open_devices(plan: &Plan) -> Result<Vec<Device>, Failure> {
    if is_auto(plan) && !packetloom_device::may_have_gpu() {
        talk::explain(no_gpu);
    }
    if plan.on_device() == 0 || is_auto(plan) {
        return Ok(Vec::new());
    }
    let devices = plan.chain().settings.run.device.open()?;
    devices.iter().for_each(explain_device);
    Ok(devices)
}

/// Opens the first GPU, while packets are read.
fn open_first_gpu(bar: ProgressBar) -> Box<Open> {
    Box::new(move || {
        let device = Placement::Auto.open().ok().flatten();
        bar.suspend(|| match &device {
            Some(device) => explain_device(device),
            None => talk::explain(no_gpu),
        });
        device
    })
}

fn no_gpu() -> String {
    "auto: no GPU here; all functions run on cores".into()
}

fn explain_device(device: &Device) {
    talk::explain(|| {
        let Description { id, name, driver, memory, units, .. } = device.description();
        format!("device {id}: {name}, {driver}, {units} units, {:.1} GB", *memory as f64 / 1e9)
    });
}

/// Threads of the last run that may still open a device, or load it.
fn unfinished() -> MutexGuard<'static, Option<Unfinished>> {
    static UNFINISHED: Mutex<Option<Unfinished>> = Mutex::new(None);
    UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends the program with this code. Where a driver is in the middle of something, nothing is run that libraries have for the end of a process: they might
/// take away what the driver uses, and the other way is to wait for it.
pub(crate) fn end(code: u8) -> ExitCode {
    if unfinished().take().is_some_and(Unfinished::leave) {
        // Nobody is left to be told.
        let _ = io::stdout().flush();
        signal_hook::low_level::exit(code.into());
    }
    ExitCode::from(code)
}

/// Says what runs that died had left and is removed.
pub(crate) fn tell_of_removed() {
    for path in removed_parts() {
        let path = path.display();
        talk::say(&format!("packetloom: removed {path}, which a run that died had left\n"));
    }
}

/// Says what was odd about a capture.
fn warn_of(report: &FileReport) {
    let FileReport { name, truncation, findings } = report;
    for warning in findings.warnings() {
        talk::say(&format!("packetloom: warning: {name}: {warning}\n"));
    }
    if let Some(truncation) = truncation {
        let (reason, offset) = (&truncation.reason, truncation.offset);
        talk::say(&format!(
            "packetloom: warning: {name}: {reason} at byte {offset}; what came before was read\n"
        ));
    }
}

/// Fails where something was left out of outputs.
fn all_written(outcome: &Outcome) -> Result<(), Failure> {
    let left_out = outcome.written.iter().filter(|written| !written.is_whole);
    let mut left_out: Vec<_> =
        left_out.map(|written| format!("{} of {}", written.not_written, written.output)).collect();
    let not_sent = outcome.exported.iter().filter(|exported| exported.counts.not_sent > 0);
    left_out.extend(not_sent.map(|exported| format!("{} to {}", exported.counts.not_sent, exported.to)));
    if left_out.is_empty() {
        return Ok(());
    }
    Err(Failure::Run(anyhow::anyhow!("packets or records were not written: {}", left_out.join(", "))))
}

/// An output that fails once the user asked to stop.
struct Sink {
    output: Output,
    stop: Stop,
}

impl Write for Sink {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(io::Error::other("interrupted"));
        }
        match self.output.write(buffer) {
            Ok(()) => Ok(buffer.len()),
            Err(packetloom_io::Error::Io { source, .. }) => Err(source),
            Err(error) => Err(io::Error::other(error)),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Says what the user should know before a plan runs.
fn warn(plan: &Plan) {
    let warnings = plan.chain().functions().iter().flat_map(|function| function.warnings());
    for warning in warnings.chain(plan.warning()) {
        talk::say(&format!("packetloom: warning: {warning}\n"));
    }
}

/// Writes a JSON value and a newline to a file or standard output.
fn write_json(path: &Path, value: &serde_json::Value) -> Result<(), Failure> {
    write_text(path, &pretty(value)?)
}

/// A JSON value over several lines, with a newline at the end.
fn pretty(value: &serde_json::Value) -> Result<String, Failure> {
    let mut text = serde_json::to_string_pretty(value).map_err(anyhow::Error::from)?;
    text.push('\n');
    Ok(text)
}

/// Writes a text to a file or standard output.
fn write_text(path: &Path, text: &str) -> Result<(), Failure> {
    let mut output = Output::create(path)?;
    output.write(text.as_bytes())?;
    Ok(output.finish()?)
}

/// The path of standard output.
fn stdout() -> PathBuf {
    PathBuf::from("-")
}
