//! The verbs, a file each.

pub(crate) mod acl;
pub(crate) mod bench;
pub(crate) mod check;
pub(crate) mod docs;
pub(crate) mod generate;
pub(crate) mod meter;
pub(crate) mod run;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use packetloom_engine::executor::Io;
use packetloom_engine::{Outcome, Plan};
use packetloom_io::capture::{CaptureReader, CaptureWriter};
use packetloom_io::input::Stop;
use packetloom_io::output::Output;
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::failure::Failure;
use crate::talk;

/// A flag that the first SIGINT or SIGTERM sets; a second one ends the process.
fn stop_on_signals() -> Result<Stop, Failure> {
    let stop = Stop::default();
    for signal in [SIGINT, SIGTERM] {
        let register = || {
            // In this order: the second handler runs after the first, so only a second signal finds the flag set.
            signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&stop))?;
            signal_hook::flag::register(signal, Arc::clone(&stop))
        };
        register().map_err(|e| Failure::Run(anyhow::Error::new(e).context("cannot handle signals")))?;
    }
    Ok(stop)
}

/// Refuses outputs of which two would be mixed on standard output.
fn one_on_stdout<'a>(outputs: impl IntoIterator<Item = Option<&'a Path>>) -> Result<(), Failure> {
    match outputs.into_iter().flatten().filter(|path| path.as_os_str() == "-").count() {
        0 | 1 => Ok(()),
        _ => {
            Err(Failure::Usage("more than one output on standard output; expected at most one \"-\"".into()))
        }
    }
}

/// Opens what a plan names, runs it with a progress bar, and warns of a capture that could not be read to its end.
fn execute(plan: &Plan, source: &Path, limit: Option<u64>) -> Result<Outcome, Failure> {
    let stop = stop_on_signals()?;
    let source = CaptureReader::open(source, &stop)?;
    let name = source.name().to_owned();
    let chain = plan.chain();
    let sink = chain.settings.sink.as_ref();
    let sink = sink.map(|path| CaptureWriter::create(path, source.resolution())).transpose()?;
    let records =
        chain.functions.iter().map(|function| function.records_path().map(Output::create).transpose());
    let records = records.collect::<Result<_, _>>()?;
    let bar = talk::bar(source.total(), "reading", talk::Template::Bytes);
    let mut progress = |bytes, packets| {
        bar.set_position(bytes);
        if !bar.is_hidden() {
            bar.set_message(format!("{packets} packets"));
        }
    };
    let result =
        packetloom_engine::run(plan, Io { source, sink, records, limit, stop, progress: &mut progress });
    bar.finish_and_clear();
    let outcome = result?;
    if let Some(truncation) = &outcome.truncation {
        eprintln!(
            "packetloom: warning: {name}: {} at byte {}; what came before was read",
            truncation.reason, truncation.offset
        );
    }
    Ok(outcome)
}

/// Writes a JSON value and a newline to a file or standard output.
fn write_json(path: &Path, value: &serde_json::Value) -> Result<(), Failure> {
    let mut text = serde_json::to_string_pretty(value).map_err(anyhow::Error::from)?;
    text.push('\n');
    write_text(path, &text)
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
