//! `packetloom search`: a chain that looks for strings, behind a filter where there is one.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use packetloom_engine::chain::Settings;
use packetloom_engine::run::LifecycleOptions;
use packetloom_engine::{Chain, Outcome, Plan};
use packetloom_io::output::Output;
use packetloom_io::port::Backend;
use packetloom_nf::alerts::{self, Action};
use packetloom_nf::units::ByName;
use packetloom_nf::{Config, Context, FunctionSpec, Watch, filter, log_rate, strings};
use packetloom_pattern::files::{Format, LeftOut};
use schemars::JsonSchema;
use serde::Serialize;

use super::files::Files;
use super::{Signals, Wanted, all_written, execute, flows, origin, passing, select, stop_on_signals};
use crate::args::{Part, SearchArgs, Which};
use crate::failure::Failure;
use crate::{Done, talk};

/// A line of a file of patterns that is left out.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "left-out")]
pub(crate) struct LeftOutLine {
    /// Its number in the file, from 1.
    line: u32,
    /// The line, or the beginning of a long one.
    text: String,
    /// Why.
    reason: String,
}

pub(crate) fn run(args: SearchArgs) -> Done {
    let source = origin(&args.read, &args.interface, None, Backend::AfPacket)?.map(select).transpose()?;
    let captures = source.as_ref().map_or(&[][..], |source| source.captures());
    let output = args.output.or_else(|| (!args.count).then(super::stdout));
    let files = Files::default().captures(Some("-r"), captures).output("-o", output.as_deref());
    let files = files.input("--patterns", args.patterns.as_deref());
    // Written where it is not there, so that nothing else may be.
    let files = files.output("--compiled", args.compiled.as_deref());
    let files = files.output("-w", args.write.as_deref()).output("--left-out", args.left_out.as_deref());
    let files = files.output("--write-flows", args.write_flows.as_deref());
    files.output("--summary", args.summary.as_deref()).check()?;
    if args.write_flows.is_some() {
        flows::check_twice("--write-flows", captures)?;
    }

    let config = strings::Config {
        patterns: args.patterns.clone().unwrap_or_default(),
        format: ByName(args.format),
        by_fast_pattern: args.by_fast_pattern,
        ignore_case: args.ignore_case,
        compiled: args.compiled.clone(),
        named: match args.which {
            Which::All => strings::Named::All,
            Which::First => strings::Named::First,
        },
        look_in: args.look_in,
        within: match args.within {
            Part::Payload => strings::Within::Payload,
            Part::Stream => strings::Within::Stream,
            Part::Packet => strings::Within::Packet,
        },
        action: Action::Pass,
        mark: None,
        flow: None,
        timeout: None,
        max_flows: None,
        log: output,
        log_rate: alerts::default_rate(),
        log_burst: log_rate::default_burst(),
        plain: !args.json,
        offsets: args.byte_offset,
    };
    let context = Context { folder: Path::new(""), ignore_flags: false };
    let strings = match &args.patterns {
        Some(_) => config.load(&context)?,
        None => {
            if args.strings.iter().any(String::is_empty) {
                return Err(Failure::Usage("-e ''; expected a string of 1 to 255 bytes".into()));
            }
            let lines: Vec<_> = args.strings.iter().map(|text| as_line(text)).collect();
            let config = strings::Config { format: ByName(Format::Lines), ..config };
            config.with_patterns("-e", lines.join("\n").as_bytes(), None)?
        }
    };
    if let Some(to) = &args.left_out {
        write_left_out(strings.left_out(), to)?;
    }
    let strings: Box<dyn FunctionSpec> = Box::new(strings);
    let filter =
        args.filter.map(|expression| filter::Config { expression: Some(expression), begin: None, end: None });
    let filter = filter.map(|config| config.prepare(&context)).transpose();
    let filter = filter.map_err(|e| Failure::Usage(format!("-f: {e}")))?;
    let functions = filter.into_iter().chain([strings]).collect();
    let settings = Settings { run: passing(args.workers), ..Settings::default() };
    let chain = Chain::new(settings, functions, &BTreeMap::new());
    let mut chain = chain.map_err(|(_, why)| packetloom_nf::Error::Invalid(why))?;
    if let Some(path) = args.write {
        chain.write_matched(path, Watch::default()).map_err(Failure::Usage)?;
    } else if args.write_flows.is_some() {
        chain.watch_matched(&Watch::default()).map_err(Failure::Usage)?;
    }
    let (plan, life) = (Plan::new(chain), LifecycleOptions::default());
    let Some(source) = source else { unreachable!("the arguments ask for one") };
    let stop = stop_on_signals()?;
    let signals = Signals {
        stop: stop.clone(),
        no_reload: Some("a search has no chain file to be read again".to_owned()),
    };
    let summary = args.summary.as_deref();
    // Opened before the search, so that it does not fail after it.
    let write_flows = args.write_flows.as_deref().map(Output::create).transpose()?;
    let mut matched = write_flows.is_some().then(HashSet::new);
    let wanted =
        Wanted { summaries: summary.as_slice(), matched_flows: matched.as_mut(), ..Wanted::default() };
    let outcome = execute(&plan, &source, wanted, args.limit, life, signals, Outcome::json)?;
    let written = all_written(&outcome);
    talk::say(&talk::outcome(outcome));
    if let Some((output, matched)) = write_flows.zip(matched) {
        flows::write_packets("--write-flows", &matched, source.captures(), args.limit, output, &stop)?;
    }
    written
}

/// A string of the command line as a line of a list, whose comments, blank lines and byte order mark are no strings.
fn as_line(text: &str) -> String {
    let text = text.replace('\n', "\\x0a").replace('\r', "\\x0d");
    if let Some(rest) = text.strip_prefix('\u{feff}') {
        return format!("\\xef\\xbb\\xbf{rest}");
    }
    match text.chars().next() {
        Some(first) if first == '#' || first.is_ascii_whitespace() => {
            format!("\\x{:02x}{}", u32::from(first), &text[1..])
        }
        _ => text,
    }
}

/// Writes what a file of patterns has that is not looked for.
fn write_left_out(left_out: &[LeftOut], to: &Path) -> Done {
    let mut text = String::new();
    for LeftOut { line, text: of_line, reason } in left_out {
        let line = LeftOutLine { line: *line, text: of_line.clone(), reason: reason.to_string() };
        text.push_str(&serde_json::to_string(&line).map_err(anyhow::Error::from)?);
        text.push('\n');
    }
    super::write_text(to, &text)
}
