//! `packetloom acl`.

use std::path::Path;
use std::sync::atomic::Ordering;

use packetloom_classify::formats::{self, Headers, Options, Reading, Skipped, WriteError, WriteOptions};
use packetloom_classify::{Action, NO_RULE, RuleSet};
use packetloom_io::input::{is_standard, open_text};
use packetloom_io::output::Output;

use super::{Sink, stop_on_signals};
use crate::args::{ClassifyArgs, ConvertArgs, RuleAction};
use crate::failure::Failure;
use crate::{Done, talk};

/// Headers classified between two looks at the progress bar and at the wish to stop: with 100,000 rules a few milliseconds.
const BATCH: usize = 64;

/// Reads a rule file.
fn read(path: &Path, options: &Options) -> Result<Reading, Failure> {
    let mut reader = open_text(path)?;
    formats::read_rules(&path.display().to_string(), &mut *reader, options).map_err(Failure::rules)
}

/// Reads a rule file without looking at ClassBench's flags.
pub(super) fn read_rules(path: &Path) -> Result<RuleSet, Failure> {
    Ok(read(path, &Options { ignore_flags: true, ..Options::default() })?.rules)
}

/// Says what was left out of a rule file.
fn list(path: &Path, skipped: &[Skipped], json: bool) {
    let file = path.display().to_string();
    for Skipped { line, message } in skipped {
        talk::say(&if json {
            format!("{}\n", serde_json::json!({ "file": file, "line": line, "left_out": message }))
        } else {
            format!("packetloom: left out: {file}:{line}: {message}\n")
        });
    }
}

/// Reads a file of headers.
pub(super) fn read_headers(path: &Path) -> Result<Headers, Failure> {
    let mut reader = open_text(path)?;
    formats::read_headers(&path.display().to_string(), &mut *reader).map_err(|e| Failure::Run(e.into()))
}

pub(crate) fn classify(args: ClassifyArgs) -> Done {
    if is_standard(&args.rules) && is_standard(&args.headers) {
        return Err(Failure::Usage("rules and headers on standard input; expected a file for one".into()));
    }
    let stop = stop_on_signals()?;
    let interrupted = || {
        if stop.load(Ordering::Relaxed) { Err(Failure::Run(anyhow::anyhow!("interrupted"))) } else { Ok(()) }
    };
    let options = Options {
        ignore_flags: true,
        format: args.format,
        skip_unsupported: args.reading.skip_unsupported,
        list: args.reading.list,
    };
    let Reading { rules, skipped, .. } = read(&args.rules, &options)?;
    list(&args.rules, &skipped, false);
    let headers = read_headers(&args.headers)?;
    let mut output = Output::create(&args.output)?;
    let classifier = args.classifier.build(&rules);
    let bar = talk::bar(Some(headers.len() as u64), "classifying", talk::Template::Count);
    let mut v4 = vec![NO_RULE; headers.v4.len()];
    for (keys, first) in headers.v4.chunks(BATCH).zip(v4.chunks_mut(BATCH)) {
        interrupted()?;
        classifier.classify_v4(keys, first);
        bar.inc(keys.len() as u64);
    }
    let mut v6 = vec![NO_RULE; headers.v6.len()];
    for (keys, first) in headers.v6.chunks(BATCH).zip(v6.chunks_mut(BATCH)) {
        interrupted()?;
        classifier.classify_v6(keys, first);
        bar.inc(keys.len() as u64);
    }
    bar.finish_and_clear();
    let (mut v4, mut v6) = (v4.into_iter(), v6.into_iter());
    let mut line = String::new();
    for &is_v6 in &headers.is_v6 {
        let next = if is_v6 { v6.next() } else { v4.next() };
        line.clear();
        match next {
            Some(position) if position != NO_RULE => line.push_str(&position.to_string()),
            _ => line.push_str("-1"),
        }
        line.push('\n');
        output.write(line.as_bytes())?;
    }
    Ok(output.finish()?)
}

pub(crate) fn convert(args: ConvertArgs) -> Done {
    let options = Options {
        ignore_flags: args.ignore_flags,
        format: args.from,
        skip_unsupported: args.reading.skip_unsupported,
        list: args.reading.list,
    };
    let Reading { mut rules, default, skipped, .. } = read(&args.rules, &options)?;
    let unstated = args.rule_action.map(|action| match action {
        RuleAction::Permit => Action::Permit,
        RuleAction::Deny => Action::Deny,
    });
    for rule in &mut rules.rules {
        rule.action = rule.action.or(unstated);
    }
    let options = WriteOptions { default, skip_unsupported: args.reading.skip_unsupported };
    let mut sink = Sink { output: Output::create(&args.output)?, stop: stop_on_signals()? };
    let unsaid =
        formats::write_rules(&rules.rules, args.to, &options, &mut sink).map_err(|error| match error {
            WriteError::Io(source) => packetloom_io::Error::io(sink.output.name(), source).into(),
            error => Failure::Config(format!(
                "{}: {error} (--skip-unsupported leaves it out)",
                args.rules.display()
            )),
        })?;
    sink.output.finish()?;
    list(&args.rules, &skipped, args.json);
    list(&args.rules, &unsaid, args.json);
    Ok(())
}
