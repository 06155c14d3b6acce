//! `packetloom meter`: a chain of one meter, behind a filter where there is one, through which everything else passes.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use packetloom_engine::chain::{PolicyAction, Run, Settings};
use packetloom_engine::run::LifecycleOptions;
use packetloom_engine::{Chain, Outcome, Plan};
use packetloom_export::Destination;
use packetloom_io::port::Backend;
use packetloom_nf::{Config, Context, filter, meter};

use super::files::Files;
use super::{Signals, all_written, execute, origin, select, stop_on_signals};
use crate::args::MeterArgs;
use crate::control::{Controlled, Server};
use crate::failure::Failure;
use crate::{Done, talk};

pub(crate) fn run(args: MeterArgs) -> Done {
    let source = origin(&args.read, &args.interface, false, Backend::AfPacket)?.map(select).transpose()?;
    let captures = source.as_ref().map_or(&[][..], |source| source.captures());
    let is_exported = !args.export.ipfix.is_empty() || !args.export.netflow9.is_empty();
    let output = args.output.or_else(|| (!is_exported).then(super::stdout));
    let files = Files::default().captures(Some("-r"), captures).output("-o", output.as_deref());
    let to_file = |files: Files, to: &Destination| files.output("--ipfix", to.file().map(|path| &**path));
    let files = args.export.ipfix.iter().fold(files, to_file);
    let files = files.output("--summary", args.summary.as_deref());
    let files = files.output("--control", args.control.as_deref());
    let statistics = args.statistics;
    files.output("--stats-output", statistics.stats_output.as_deref()).check()?;
    statistics.check(None)?;
    args.export.check()?;
    let config = meter::Config {
        idle_timeout: args.timeouts.idle_timeout,
        active_timeout: args.timeouts.active_timeout,
        max_flows: args.max_flows,
        framings: if args.all_framings { meter::Framings::All } else { meter::Framings::Basic },
        output,
        export: args.export.exports(),
    };
    let mut run = Run {
        workers: args.workers.unwrap_or(Run::default().workers),
        non_ip: PolicyAction::Pass,
        unknown_framing: Some(PolicyAction::Pass),
        malformed: PolicyAction::Pass,
        stats_every: statistics.stats_every,
        stats_output: statistics.stats_output,
        ..Run::default()
    };
    args.rotation.apply(&mut run)?;
    let settings = Settings { run, ..Settings::default() };
    let context = Context { folder: Path::new(""), ignore_flags: false };
    let filter = args.filter.map(|expression| filter::Config { expression }.prepare(&context)).transpose();
    let filter = filter.map_err(|e| Failure::Usage(format!("-f: {e}")))?;
    let functions = filter.into_iter().chain([config.prepare(&context)?]).collect();
    let chain = Chain::new(settings, functions, &BTreeMap::new());
    let chain = chain.map_err(|(_, why)| packetloom_nf::Error::Invalid(why))?;
    chain.check_rotation().map_err(Failure::Usage)?;
    let summaries = args.summary.as_deref();
    let (plan, life) = (Plan::new(chain), LifecycleOptions::default());
    let Some(source) = source else { unreachable!("the arguments ask for one") };
    let stop = stop_on_signals()?;
    let no_reload = Some("a meter has no chain file to be read again".to_owned());
    let controlled = Controlled {
        control: Arc::clone(&life.control),
        stop: Arc::clone(&stop),
        summarise: Outcome::meter_json,
        no_reload: no_reload.clone(),
        no_save: Some("a meter has no state that is kept in a file".into()),
    };
    // Dropped when everything is written.
    let _server = args.control.as_deref().map(|path| Server::start(path, controlled)).transpose()?;
    let signals = Signals { stop, no_reload };
    let outcome =
        execute(&plan, &source, summaries.as_slice(), args.count, life, signals, Outcome::meter_json)?;
    let written = all_written(&outcome);
    talk::say(&talk::outcome(outcome));
    written
}
