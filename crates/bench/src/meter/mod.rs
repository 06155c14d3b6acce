//! A capture to flow records, from file to file: reading, parsing, metering and writing are all timed.

pub mod device;
mod feed;
mod kernels;
mod quality;
mod records;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use packetloom_engine::chain::{Device, PolicyAction, Run, Settings};
use packetloom_engine::run::{Io, LifecycleOptions};
use packetloom_engine::{Chain, Outputs, Plan};
use packetloom_io::capture::CaptureSeries;
use packetloom_io::input::Stop;
use packetloom_io::output::Output;
use packetloom_nf::{Config, Context, meter};
use serde_json::{Value, json};

pub use kernels::{Hash, Parse, SliceBytes, Stage};

use crate::Error;
use crate::sample::{Clock, Measurement, measure};

/// What is run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The captures.
    pub captures: Vec<PathBuf>,
    /// Where records are written, anew each round.
    pub output: PathBuf,
    /// The meter's keys.
    pub config: meter::Config,
    /// How the chain is run.
    pub run: Run,
    /// Rounds over the capture, after one that is not timed.
    pub rounds: usize,
    /// Name of the workload.
    pub workload: String,
}

/// Packets that the oracle handles too, before anything is timed.
const CHECKED: u64 = 100_000;

/// A plan with a meter alone, through which everything passes.
fn plan(options: &Options, device: Device) -> Result<Plan, Error> {
    let config = meter::Config { output: Some(options.output.clone()), ..options.config.clone() };
    let run =
        Run { device, non_ip: PolicyAction::Pass, malformed: PolicyAction::Pass, ..options.run.clone() };
    let context = Context { folder: Path::new(""), ignore_flags: false };
    let settings = Settings { run, ..Settings::default() };
    let functions = vec![config.prepare(&context)?];
    let chain = Chain::new(settings, functions, &BTreeMap::new());
    Ok(Plan::new(chain.map_err(|(_, why)| packetloom_nf::Error::Invalid(why))?))
}

/// Runs a plan over the capture, or over its first packets; the summary.
fn once(options: &Options, plan: &Plan, limit: Option<u64>, stop: &Stop) -> Result<Value, Error> {
    let mut outputs = Outputs { records: vec![Some(Output::create(&options.output)?)], ..Outputs::default() };
    let io = Io {
        source: Box::new(CaptureSeries::open(&options.captures, stop)?),
        outputs: &mut outputs,
        limit,
        stop: stop.clone(),
        progress: &mut |_, _| {},
        notice: &mut |_| {},
        devices: Vec::new(),
        life: LifecycleOptions::default(),
    };
    let outcome = packetloom_engine::run(plan, io)?;
    outputs.publish()?;
    if outcome.stopped { Err(Error::Interrupted) } else { Ok(outcome.json()) }
}

/// Compares records and counts of the first packets with the oracle's.
fn check(options: &Options, fast: &Plan, stop: &Stop) -> Result<(), Error> {
    let mut results = Vec::new();
    for plan in [fast, &plan(options, Device::Oracle)?] {
        let summary = once(options, plan, Some(CHECKED), stop)?;
        let text = std::fs::read_to_string(&options.output)
            .map_err(|e| packetloom_io::Error::io(options.output.display().to_string(), e))?;
        let mut records: Vec<_> = text.lines().map(str::to_owned).collect();
        records.sort_unstable();
        results.push((summary, records));
    }
    if results[0] == results[1] {
        Ok(())
    } else {
        Err(Error::Wrong("the meter and its oracle give different records".into()))
    }
}

/// Times the meter, after comparing it with the oracle over the first packets.
///
/// # Errors
///
/// A file that cannot be read or written; [`Error::Wrong`] where the oracle disagrees or rounds differ; [`Error::Empty`];
/// [`Error::Interrupted`].
pub fn run(options: &Options, stop: &Stop) -> Result<Measurement, Error> {
    let plan = plan(options, Device::Cpu)?;
    // What a device or a pipe swallowed cannot be compared.
    if !std::fs::metadata(&options.output).is_ok_and(|metadata| !metadata.is_file()) {
        check(options, &plan, stop)?;
    }
    let expected = once(options, &plan, None, stop)?;
    let packets = expected["received"].as_u64().unwrap_or(0);
    if packets == 0 {
        return Err(Error::Empty);
    }
    let mut rounds = Vec::new();
    for _ in 0..options.rounds {
        let (summary, round) = measure(Clock::Process, || once(options, &plan, None, stop));
        if summary? != expected {
            return Err(Error::Wrong("two rounds over the same capture gave different counts".into()));
        }
        rounds.push(round);
    }
    Ok(Measurement {
        workload: options.workload.clone(),
        classifier: None,
        batch: options.run.batch.get(),
        device: "cpu",
        packets,
        passes: 1,
        rounds,
        more: vec![
            ("workers", json!(plan.workers())),
            ("records", expected["functions"][0]["biflows"].clone()),
        ],
    })
}
