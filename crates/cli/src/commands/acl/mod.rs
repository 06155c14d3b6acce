//! `packetloom acl`.

pub(crate) mod check;
pub(crate) mod explain;
pub(crate) mod losses;

use std::io::{self, BufRead, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use packetloom_classify::formats::{
    self, Format, Headers, Options, Reading, Skipped, WriteError, WriteOptions,
};
use packetloom_classify::{Action, Classifier, Gaps, Kind, NO_RULE, Rule, RuleSet};
use packetloom_device::Device;
use packetloom_engine::offload;
use packetloom_io::input::{Stop, is_standard, open_text};
use packetloom_io::output::Output;
use packetloom_packet::{MatchKey4, MatchKey6};
use schemars::JsonSchema;
use serde::Serialize;

use self::losses::Losses;
use super::files::Files;
use super::{Sink, stop_on_signals};
use crate::args::{ActionName, ClassifyArgs, ConvertArgs, Entry, Policy};
use crate::failure::Failure;
use crate::{Done, talk};

/// Headers classified between two looks at the progress bar and at the wish to stop: with 100,000 rules a few milliseconds.
const BATCH: usize = 64;
/// The same on a device, which has its own cost for each batch.
const DEVICE_BATCH: usize = 1 << 18;

/// Reads a rule file; lists all its mistakes as JSON lines, if so, of which a message has the first ones.
pub(super) fn read(path: &Path, options: &Options, json: bool) -> Result<Reading, Failure> {
    let mut reader = open_text(path).map_err(|error| error.expecting("a rule file"))?;
    let file = path.display().to_string();
    // What cannot be read is told by whoever reads it.
    if options.format.is_none() && reader.fill_buf().is_ok_and(<[u8]>::is_empty) {
        return Err(Failure::Config(format!(
            "{file}: empty; expected rules, or \"default permit\" or \"default deny\" for a list of none"
        )));
    }
    let reading = formats::read_rules(&file, &mut *reader, options).map_err(|error| {
        if json {
            talk::error(&losses::mistakes(&file, &error));
        }
        Failure::rules(error)
    })?;
    let Reading { rules, default, skipped, format, elsewhere, .. } = &reading;
    talk::explain(|| {
        let how = if options.format.is_some() { "as it was said" } else { "recognised by its content" };
        format!("{file}: {} of format {format}, {how}", talk::amount(rules.rules.len() as u64, "rule"))
    });
    for elsewhere in elsewhere {
        talk::say(&format!("packetloom: {file}:{}: {elsewhere} is not part of the list\n", elsewhere.line));
    }
    // Only our own format has lists that say nothing at all; files of others are refused.
    if *format == Format::Native && rules.rules.is_empty() && default.is_none() && skipped.is_empty() {
        talk::say(&format!(
            "packetloom: warning: {file}: no rules and no default; expected some, as every packet is denied\n"
        ));
    }
    Ok(reading)
}

/// Reads a rule file without looking at ClassBench's flags.
pub(super) fn read_rules(path: &Path) -> Result<RuleSet, Failure> {
    let rules = read(path, &Options { ignore_flags: true, ..Options::default() }, false)?.rules;
    match rules.rules.iter().find(|rule| rule.is_contextual()) {
        None => Ok(rules),
        Some(Rule { line, .. }) => Err(Failure::Config(format!(
            "{}:{line}: a rule for some interfaces or states only (\"in\", \"out\", \"state\"); expected none, since headers do not say them",
            path.display()
        ))),
    }
}

/// Says what was left out of a rule file.
fn report_losses(path: &Path, reading: &Reading, json: bool) {
    Losses::of_reading(&path.display().to_string(), reading).report(json);
}

/// Gives an action to rules that have none.
fn state_actions(rules: &mut RuleSet, action: Option<ActionName>) {
    for rule in &mut rules.rules {
        rule.action = rule.action.or(action.map(Action::from));
    }
}

/// Rules, what happens to packets that none of them matches, and what was left out.
struct List {
    /// As packets of one context meet them.
    rules: RuleSet,
    /// All rules, and for each of those the position here; none where these are all.
    whole: Option<(RuleSet, Vec<u32>)>,
    default: Action,
    skipped: Vec<Skipped>,
    gaps: Gaps,
}

/// Reads the rules of a policy, each with its action where there is one; says what was left out, in JSON if that is asked for.
fn read_policy(policy: &Policy, json: bool) -> Result<List, Failure> {
    let options = Options {
        ignore_flags: policy.ignore_flags,
        format: policy.format,
        skip_unsupported: policy.reading.skip_unsupported,
        list: policy.reading.list.clone(),
    };
    let reading = read(&policy.rules, &options, json)?;
    report_losses(&policy.rules, &reading, json);
    let Reading { mut rules, skipped, default, gaps, .. } = reading;
    state_actions(&mut rules, policy.rule_action);
    let default = policy.default.map(Action::from).or(default).unwrap_or(Action::Deny);
    let context = policy.entry.context();
    let (rules, whole) = seen_in(rules, &policy.entry);
    let gaps = match &whole {
        Some((_, positions)) => gaps.seen_in(&context, positions),
        // What was left out may name interfaces all the same.
        None => gaps.seen_in(&context, &(0..rules.rules.len() as u32).collect::<Vec<_>>()),
    };
    Ok(List { rules, whole, default, skipped, gaps })
}

/// The rules that packets of a context meet; and, where these are not all, all of them, with the positions of those. Says which packets
/// are meant.
fn seen_in(rules: RuleSet, entry: &Entry) -> (RuleSet, Option<(RuleSet, Vec<u32>)>) {
    let count = |of: fn(&Rule) -> bool| rules.rules.iter().filter(|rule| of(rule)).count();
    let say = |named: usize, only: &str, about: String, hint: &str| {
        if named > 0 {
            talk::say(&format!(
                "packetloom: {} for {only} only; this is about packets {about}{hint}\n",
                talk::amount(named as u64, "rule")
            ));
        }
    };
    let (about, hint) = match &entry.interface {
        Some(name) => (format!("of {name}"), ""),
        None => ("of others".into(), " (--in INTERFACE asks about one)"),
    };
    say(count(|rule| rule.interfaces.is_some()), "some interfaces", about, hint);
    let (about, hint) = match &entry.out {
        Some(name) => (format!("that leave by {name}"), ""),
        None => ("that leave by none, as those of captures".into(), " (--out INTERFACE asks about one)"),
    };
    say(count(|rule| rule.out.is_some()), "packets that leave by some interfaces", about, hint);
    let hint = if entry.state.is_some() { "" } else { " (--state STATE asks about others)" };
    let about = format!("that are {}", entry.context().state);
    say(count(|rule| !rule.states.is_all()), "some states of connections", about, hint);
    if !rules.is_contextual() {
        return (rules, None);
    }
    let (seen, positions) = rules.seen_in(&entry.context());
    (seen, Some((rules, positions)))
}

impl List {
    /// The position of a rule among all of them.
    fn position(&self, position: u32) -> u32 {
        self.whole.as_ref().map_or(position, |(_, positions)| positions[position as usize])
    }

    /// A rule as the file has it.
    fn rule(&self, position: u32) -> &Rule {
        let rules = self.whole.as_ref().map_or(&self.rules, |(rules, _)| rules);
        &rules.rules[self.position(position) as usize]
    }
}

/// A rule for those who look it up.
#[derive(Serialize, JsonSchema)]
pub(crate) struct RuleSummary {
    /// Its line in the rule file.
    line: u32,
    /// Its position in the list, from 0.
    position: u32,
    /// Its id, if it has one.
    id: Option<Box<str>>,
    /// Its comment, if it has one.
    comment: Option<Box<str>>,
    /// `permit` or `deny`; none where the format has no actions.
    action: Option<&'static str>,
    /// The rule.
    rule: String,
}

impl RuleSummary {
    fn new(list: &List, position: u32) -> Self {
        let rule = list.rule(position);
        Self {
            line: rule.line,
            position: list.position(position),
            id: rule.id.clone(),
            comment: rule.comment.clone(),
            action: rule.action.map(Action::name),
            rule: rule.to_string(),
        }
    }
}

/// Reads a file of headers.
pub(super) fn read_headers(path: &Path) -> Result<Headers, Failure> {
    let mut reader = open_text(path).map_err(|error| error.expecting("a file of headers"))?;
    formats::read_headers(&path.display().to_string(), &mut *reader).map_err(|e| Failure::Run(e.into()))
}

/// Fails once the user asked to stop.
fn go_on(stop: &Stop) -> Done {
    if stop.load(Ordering::Relaxed) { Err(Failure::Run(anyhow::anyhow!("interrupted"))) } else { Ok(()) }
}

/// What classifies headers.
enum Classify {
    Cpu(Arc<dyn Classifier>),
    Device(Box<offload::Classifier>),
}

impl Classify {
    fn new(device: Option<Device>, rules: &RuleSet, kind: Kind) -> Result<Self, Failure> {
        Ok(match device {
            None => Self::Cpu(kind.build(rules)),
            Some(device) => {
                let options = offload::Options { algorithm: kind.into(), ..offload::Options::default() };
                Self::Device(Box::new(offload::Classifier::new(&device, rules, options)?))
            }
        })
    }

    fn batch(&self) -> usize {
        match self {
            Self::Cpu(_) => BATCH,
            Self::Device(_) => DEVICE_BATCH,
        }
    }

    fn classify_v4(&mut self, keys: &[MatchKey4], first: &mut [u32]) -> Done {
        match self {
            Self::Cpu(classifier) => classifier.classify_v4(keys, first),
            Self::Device(classifier) => classifier.classify_v4(keys, first)?,
        }
        Ok(())
    }

    fn classify_v6(&mut self, keys: &[MatchKey6], first: &mut [u32]) -> Done {
        match self {
            Self::Cpu(classifier) => classifier.classify_v6(keys, first),
            Self::Device(classifier) => classifier.classify_v6(keys, first)?,
        }
        Ok(())
    }
}

pub(crate) fn classify(args: ClassifyArgs) -> Done {
    if is_standard(&args.rules) && is_standard(&args.headers) {
        return Err(Failure::Usage("rules and headers on standard input; expected a file for one".into()));
    }
    let files = Files::default().input("--rules", Some(&args.rules)).input("--headers", Some(&args.headers));
    files.output("-o", Some(&args.output)).check()?;
    let stop = stop_on_signals()?;
    let options = Options {
        ignore_flags: true,
        format: args.format,
        skip_unsupported: args.reading.skip_unsupported,
        list: args.reading.list,
    };
    let reading = read(&args.rules, &options, false)?;
    report_losses(&args.rules, &reading, false);
    let rules = reading.rules;
    let (rules, whole) = seen_in(rules, &args.entry);
    let headers = read_headers(&args.headers)?;
    let mut output = Output::create(&args.output)?;
    let mut classifier = Classify::new(args.device.open()?, &rules, args.classifier)?;
    let bar = talk::bar(Some(headers.len() as u64), "classifying", talk::Template::Count);
    let mut v4 = vec![NO_RULE; headers.v4.len()];
    for (keys, first) in headers.v4.chunks(classifier.batch()).zip(v4.chunks_mut(classifier.batch())) {
        go_on(&stop)?;
        classifier.classify_v4(keys, first)?;
        bar.inc(keys.len() as u64);
    }
    let mut v6 = vec![NO_RULE; headers.v6.len()];
    for (keys, first) in headers.v6.chunks(classifier.batch()).zip(v6.chunks_mut(classifier.batch())) {
        go_on(&stop)?;
        classifier.classify_v6(keys, first)?;
        bar.inc(keys.len() as u64);
    }
    bar.finish_and_clear();
    let (mut v4, mut v6) = (v4.into_iter(), v6.into_iter());
    let mut line = String::new();
    for &is_v6 in &headers.is_v6 {
        let next = if is_v6 { v6.next() } else { v4.next() };
        line.clear();
        match next {
            Some(position) if position != NO_RULE => {
                let place = whole.as_ref().map_or(position, |(_, positions)| positions[position as usize]);
                line.push_str(&place.to_string());
            }
            _ => line.push_str("-1"),
        }
        line.push('\n');
        output.write(line.as_bytes())?;
    }
    Ok(output.finish()?)
}

pub(crate) fn convert(args: ConvertArgs) -> Done {
    Files::default().input("rules", Some(&args.rules)).output("-o", Some(&args.output)).check()?;
    let stop = stop_on_signals()?;
    let file = args.rules.display().to_string();
    let options = Options {
        ignore_flags: args.ignore_flags,
        format: args.from,
        skip_unsupported: true,
        list: args.list,
    };
    let mut reading = read(&args.rules, &options, args.json)?;
    state_actions(&mut reading.rules, args.rule_action);
    let options = WriteOptions {
        default: reading.default,
        skip_unsupported: true,
        conditions_only: args.conditions_only,
        fragments: args.fragments.into(),
    };
    let write = |writer: &mut dyn Write, name: &str| {
        formats::write_rules(&reading.rules.rules, args.to, &options, writer).map_err(|error| match error {
            WriteError::Io(source) => packetloom_io::Error::io(name, source).into(),
            error => Failure::Config(format!("{file}: {error}")),
        })
    };
    // Nothing is written before it is known what would be lost.
    let written = write(&mut Nowhere { stop: stop.clone() }, "the rules")?;
    let mut losses = Losses::of_reading(&file, &reading);
    losses.add_written(&written, args.to, &reading.origins);
    losses.report(args.json);
    losses.allow(args.max_loss)?;
    let output = Output::create(&args.output)?;
    let name = output.name().to_owned();
    let mut sink = Sink { output, stop };
    write(&mut sink, &name)?;
    Ok(sink.output.finish()?)
}

/// Takes everything and keeps nothing, until the user asks to stop.
struct Nowhere {
    stop: Stop,
}

impl Write for Nowhere {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        match self.stop.load(Ordering::Relaxed) {
            true => Err(io::Error::other("interrupted")),
            false => Ok(buffer.len()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
