//! A capture to flow records, from file to file: reading, parsing, metering and writing are all timed.

use std::path::{Path, PathBuf};

use packetloom_engine::chain::{PolicyAction, Run, Settings};
use packetloom_engine::executor::Io;
use packetloom_engine::{Chain, Plan};
use packetloom_io::capture::CaptureReader;
use packetloom_io::input::Stop;
use packetloom_io::output::Output;
use packetloom_nf::{Config, Context, meter};
use serde_json::json;

use crate::Error;
use crate::sample::{Measurement, measure};

/// What is run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The capture.
    pub capture: PathBuf,
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

/// Times the meter.
///
/// # Errors
///
/// A file that cannot be read or written; [`Error::Wrong`] where rounds disagree.
pub fn run(options: &Options) -> Result<Measurement, Error> {
    let config = meter::Config { output: Some(options.output.clone()), ..options.config.clone() };
    let run = Run { non_ip: PolicyAction::Pass, malformed: PolicyAction::Pass, ..options.run.clone() };
    let batch = run.batch.get().into();
    let chain = Chain {
        settings: Settings { run, ..Settings::default() },
        functions: vec![config.prepare(&Context { folder: Path::new(""), ignore_flags: false })?],
    };
    let plan = Plan::new(chain);
    let stop = Stop::default();
    let once = || -> Result<_, Error> {
        let io = Io {
            source: CaptureReader::open(&options.capture, &stop)?,
            sink: None,
            records: vec![Some(Output::create(&options.output)?)],
            limit: None,
            stop: stop.clone(),
            progress: &mut |_, _| {},
        };
        Ok(packetloom_engine::run(&plan, io)?)
    };
    let expected = once()?.json();
    let mut rounds = Vec::new();
    for _ in 0..options.rounds {
        let (outcome, round) = measure(once);
        if outcome?.json() != expected {
            return Err(Error::Wrong("two rounds over the same capture gave different counts".into()));
        }
        rounds.push(round);
    }
    Ok(Measurement {
        workload: options.workload.clone(),
        classifier: None,
        batch,
        device: "cpu",
        packets: expected["received"].as_u64().unwrap_or(0),
        rounds,
        more: vec![
            ("workers", json!(plan.workers())),
            ("records", expected["functions"][0]["biflows"].clone()),
        ],
    })
}
