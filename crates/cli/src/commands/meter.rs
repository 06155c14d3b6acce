//! `packetloom meter`: a chain of one meter, behind a sample and a filter where there are such, through which everything else passes.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::sync::Arc;

use packetloom_engine::chain::{Run, Settings};
use packetloom_engine::run::LifecycleOptions;
use packetloom_engine::{Chain, Outcome, Plan};
use packetloom_export::{Destination, LineFormat};
use packetloom_io::input::Stop;
use packetloom_io::output::Output;
use packetloom_io::port::Backend;
use packetloom_nf::{Config, Context, filter, meter};
use packetloom_report::{Format, Reports};

use super::files::Files;
use super::{Signals, Wanted, all_written, each, execute, flows, origin, passing, select, stop_on_signals};
use crate::args::{ExportArgs, MeterArgs};
use crate::control::{Controlled, Server};
use crate::failure::Failure;
use crate::{Done, talk};

pub(crate) fn run(args: MeterArgs) -> Done {
    let stop = stop_on_signals()?;
    if args.each { each::run(&args, &stop) } else { one(args, &stop) }
}

/// One run over interfaces, or over captures that are read as one.
pub(super) fn one(args: MeterArgs, stop: &Stop) -> Done {
    let source = origin(&args.read, &args.interface, None, Backend::AfPacket)?.map(select).transpose()?;
    let captures = source.as_ref().map_or(&[][..], |source| source.captures());
    let ExportArgs { ipfix, netflow9, parquet, kafka, .. } = &args.export;
    let is_exported = ipfix.len() + netflow9.len() + parquet.len() + kafka.len() > 0;
    let reports = args.reports;
    let rows = reports.top_rows;
    let tops = reports.top.into_iter().map(|top| top.with_rows(rows)).collect::<Vec<_>>();
    let is_reported = !tops.is_empty() || !reports.series.is_empty();
    let reported = is_reported.then(|| Reports::new(tops, reports.series));
    let report = match (&reported, reports.report) {
        (None, Some(_)) => {
            return Err(Failure::Usage("--report without --top and --series; expected one of them".into()));
        }
        (_, path) => path,
    };
    let named = report.as_deref().filter(|path| *path != super::stdout());
    let format = named.map_or(Ok(Format::Text), Format::of);
    let format = format.map_err(|e| Failure::Usage(e.to_string()))?;
    let report = report.or_else(|| is_reported.then(super::stdout));
    let output = args.output.or_else(|| (!is_exported && !is_reported).then(super::stdout));
    if output.is_none() && args.format != LineFormat::default() {
        return Err(Failure::Usage(format!(
            "--format {} without -o; expected a file for the lines",
            args.format
        )));
    }
    let files = Files::default().captures(Some("-r"), captures).output("-o", output.as_deref());
    let to_file = |files: Files, to: &Destination| files.output("--ipfix", to.file().map(|path| &**path));
    let files = args.export.ipfix.iter().fold(files, to_file);
    let files = files.output("--extract", args.extract.as_deref());
    let files = files.output("--extract-flows", args.extract_flows.as_deref());
    let files = files.output("--report", report.as_deref());
    let files = files.output("--summary", args.summary.as_deref());
    let files = files.output("--control", args.control.as_deref());
    let statistics = args.statistics;
    files.output("--stats-output", statistics.stats_output.as_deref()).check()?;
    statistics.check(None)?;
    args.export.check()?;
    if args.extract_flows.is_some() {
        flows::check_twice("--extract-flows", captures)?;
    }
    let config = meter::Config {
        idle_timeout: args.timeouts.idle_timeout,
        active_timeout: args.timeouts.active_timeout,
        max_flows: args.max_flows,
        end_of_flow: args.end_of_flow,
        vlan_in_key: args.vlan_in_key,
        framings: if args.all_framings { meter::Framings::All } else { meter::Framings::Basic },
        fields: args.fields,
        format: args.format,
        output,
        export: args.export.exports(),
        reports: reported.as_ref().map(Reports::fields),
    };
    let mut run = Run {
        stats_every: statistics.stats_every,
        stats_output: statistics.stats_output,
        device: args.device,
        ..passing(args.workers)
    };
    args.rotation.apply(&mut run)?;
    let settings = Settings { run, extracted: args.extract, ..Settings::default() };
    let context = Context { folder: Path::new(""), ignore_flags: false };
    let filter = filter::Config { expression: args.filter, begin: args.begin, end: args.end };
    let filters = filter.expression.is_some() || filter.begin.is_some() || filter.end.is_some();
    if let Some((begin, end)) = filter.begin.zip(filter.end).filter(|(begin, end)| begin >= end) {
        return Err(Failure::Usage(format!(
            "--end {end}: not after --begin {begin}; expected a later time: the end is not part of it"
        )));
    }
    let filter = filters.then(|| filter.prepare(&context)).transpose();
    let filter = filter.map_err(|e| Failure::Usage(format!("-f: {e}")))?;
    let sample = args.sample.map(|sample| sample.prepare(&context)).transpose()?;
    let functions = sample.into_iter().chain(filter).chain([config.prepare(&context)?]).collect();
    let chain = Chain::new(settings, functions, &BTreeMap::new());
    let chain = chain.map_err(|(_, why)| packetloom_nf::Error::Invalid(why))?;
    chain.check_rotation().map_err(Failure::Usage)?;
    let summaries = args.summary.as_deref();
    let (plan, life) = (Plan::new(chain), LifecycleOptions::default());
    let Some(source) = source else { unreachable!("the arguments ask for one") };
    let no_reload = Some("a meter has no chain file to be read again".to_owned());
    let controlled = Controlled {
        control: Arc::clone(&life.control),
        stop: Arc::clone(stop),
        summarise: Outcome::meter_json,
        no_reload: no_reload.clone(),
        no_save: Some("a meter has no state that is kept in a file".into()),
    };
    // Dropped when everything is written.
    let _server = args.control.as_deref().map(|path| Server::start(path, controlled)).transpose()?;
    let signals = Signals { stop: Arc::clone(stop), no_reload };
    let reports = reported.zip(report.as_deref()).map(|(reports, to)| (reports, to, format));
    // Opened before the run, so that it does not fail after it.
    let extract_flows = args.extract_flows.as_deref().map(Output::create).transpose()?;
    let mut extracted = extract_flows.is_some().then(HashSet::new);
    let wanted = Wanted {
        summaries: summaries.as_slice(),
        reports,
        passed_flows: extracted.as_mut(),
        ..Wanted::default()
    };
    let outcome = execute(&plan, &source, wanted, args.count, life, signals, Outcome::meter_json)?;
    let written = all_written(&outcome);
    talk::say(&talk::outcome(outcome));
    if let Some((output, extracted)) = extract_flows.zip(extracted) {
        flows::write_packets("--extract-flows", &extracted, source.captures(), args.count, output, stop)?;
    }
    written
}
