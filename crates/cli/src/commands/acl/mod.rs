//! `packetloom acl`.

pub(crate) mod check;
pub(crate) mod explain;

use std::path::Path;
use std::sync::atomic::Ordering;

use packetloom_classify::formats::{self, Headers, Options};
use packetloom_classify::{Action, NO_RULE, RuleSet};
use packetloom_io::input::{Stop, is_standard, open_text};
use packetloom_io::output::Output;
use serde_json::{Value, json};

use super::stop_on_signals;
use crate::args::{ClassifyArgs, Policy};
use crate::failure::Failure;
use crate::{Done, talk};

/// Headers classified between two looks at the progress bar and at the wish to stop: with 100,000 rules a few milliseconds.
const BATCH: usize = 64;

/// Reads a rule file.
pub(super) fn read_rules(path: &Path, options: Options) -> Result<RuleSet, Failure> {
    let mut reader = open_text(path)?;
    formats::read_rules(&path.display().to_string(), &mut *reader, options).map_err(Failure::rules)
}

/// Reads the rules of a policy, each with its action where there is one.
fn read_policy(policy: &Policy) -> Result<RuleSet, Failure> {
    let mut rules = read_rules(&policy.rules, Options { ignore_flags: policy.ignore_flags })?;
    for rule in &mut rules.rules {
        rule.action = rule.action.or(policy.rule_action.map(Action::from));
    }
    Ok(rules)
}

/// A rule in JSON, for those who look it up.
fn rule_json(rules: &RuleSet, position: u32) -> Value {
    let rule = &rules.rules[position as usize];
    json!({
        "line": rule.line,
        "position": position,
        "id": rule.id,
        "action": rule.action.map(Action::name),
        "rule": rule.to_string(),
    })
}

/// Reads a file of headers.
pub(super) fn read_headers(path: &Path) -> Result<Headers, Failure> {
    let mut reader = open_text(path)?;
    formats::read_headers(&path.display().to_string(), &mut *reader).map_err(|e| Failure::Run(e.into()))
}

/// Fails once the user asked to stop.
fn go_on(stop: &Stop) -> Done {
    if stop.load(Ordering::Relaxed) { Err(Failure::Run(anyhow::anyhow!("interrupted"))) } else { Ok(()) }
}

pub(crate) fn classify(args: ClassifyArgs) -> Done {
    if is_standard(&args.rules) && is_standard(&args.headers) {
        return Err(Failure::Usage("rules and headers on standard input; expected a file for one".into()));
    }
    let stop = stop_on_signals()?;
    let rules = read_rules(&args.rules, Options { ignore_flags: true })?;
    let headers = read_headers(&args.headers)?;
    let mut output = Output::create(&args.output)?;
    let classifier = args.classifier.build(&rules);
    let bar = talk::bar(Some(headers.len() as u64), "classifying", talk::Template::Count);
    let mut v4 = vec![NO_RULE; headers.v4.len()];
    for (keys, first) in headers.v4.chunks(BATCH).zip(v4.chunks_mut(BATCH)) {
        go_on(&stop)?;
        classifier.classify_v4(keys, first);
        bar.inc(keys.len() as u64);
    }
    let mut v6 = vec![NO_RULE; headers.v6.len()];
    for (keys, first) in headers.v6.chunks(BATCH).zip(v6.chunks_mut(BATCH)) {
        go_on(&stop)?;
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
