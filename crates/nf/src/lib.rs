//! The network functions, a folder each, and what they have in common.
//!
//! A function is configured from its part of a chain file ([`Config`]), prepared once (files read, indexes built:
//! [`FunctionSpec`]), and then made once for each worker ([`Function`]). Next to this implementation for batches there is an
//! [`Oracle`]: slow, obvious, packet by packet, with a parser and maps of its own. Tests compare every fast path with it.
//!
//! To add a function, copy a folder, declare the module here, and add a line to [`registry::FUNCTIONS`]; ARCHITECTURE.md lists
//! the other places.

pub mod acl;
pub mod alerts;
pub mod balancer;
pub mod bucket;
pub mod connections;
pub mod conntrack;
pub mod counter;
pub mod domains;
pub mod filter;
pub mod flows;
pub mod limiter;
pub mod log_rate;
pub mod meter;
pub mod oracle;
pub mod policer;
pub mod registry;
pub mod sample;
pub mod scan;
pub mod source_counter;
pub mod strings;
pub mod summary;
pub mod units;
mod watches;

// Frames for the tests of all functions.
#[cfg(test)]
#[path = "../tests/frames/batch.rs"]
mod batch;
#[cfg(test)]
#[path = "../tests/frames/mod.rs"]
mod frames;

use std::any::Any;
use std::borrow::Cow;
use std::io::Read;
use std::path::{Path, PathBuf};

use packetloom_classify::live::Change;
use packetloom_classify::{Rule, RuleSet};
use packetloom_export::{Fields, LineFormat, Lines, Sampling};
use packetloom_io::input;
use packetloom_packet::{Batch, FlowRecord, PacketRecord, PortNames, Verdict};
use packetloom_pattern::{Match, Patterns};
use schemars::JsonSchema;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::flows::{
    Definition, DeviceKernel, Facts, FactsKept, FlowFacts, FlowFunction, FlowOracle, StateAt, StateSpec,
};
use crate::oracle::OraclePacket;
use crate::units::Span;

/// Where a function hands its flow records.
pub type Records<'a> = dyn FnMut(&FlowRecord) + 'a;

/// A function's keys in a chain file.
pub trait Config: DeserializeOwned + schemars::JsonSchema {
    /// What `nf = "…"` calls it.
    const NAME: &'static str;

    /// Reads files and builds indexes.
    ///
    /// # Errors
    ///
    /// A file that cannot be read, or does not hold what it should.
    fn prepare(self, context: &Context<'_>) -> Result<Box<dyn FunctionSpec>, Error>;
}

/// What a function's keys are read in the light of.
#[derive(Clone, Copy, Debug)]
pub struct Context<'a> {
    /// The chain file's folder, from which relative paths count.
    pub folder: &'a Path,
    /// Whether ClassBench's flags column is left out whatever the chain file says.
    pub ignore_flags: bool,
}

/// The largest file that is read as a whole, in bytes: such as come out where it is compressed.
const MAX_FILE: u64 = 1 << 28;

impl Context<'_> {
    /// A path of the chain file as it is to be opened; `-` stays as it is.
    pub fn resolve(&self, path: &Path) -> PathBuf {
        if path.as_os_str() == "-" { path.into() } else { self.folder.join(path) }
    }

    /// Reads the file that a key names, and its path. It must not be standard input, which is for packets.
    pub(crate) fn read(
        &self,
        key: &str,
        path: &Path,
        what: &'static str,
    ) -> Result<(PathBuf, Vec<u8>), Error> {
        let path = self.resolve(path);
        if input::is_standard(&path) {
            return Err(Error::Invalid(format!(
                "{key} = \"-\"; expected a file: standard input is for packets"
            )));
        }
        let name = path.display().to_string();
        let mut text = Vec::new();
        let file = input::open_text(&path).map_err(|error| error.expecting(what))?;
        let read = file.take(MAX_FILE + 1).read_to_end(&mut text);
        read.map_err(|e| packetloom_io::Error::io(&*name, e))?;
        if text.len() as u64 > MAX_FILE {
            return Err(Error::Invalid(format!("{name}: more than {MAX_FILE} bytes; expected {what}")));
        }
        Ok((path, text))
    }
}

/// A function ready to run.
pub trait FunctionSpec: Any + Send + Sync {
    /// The function's name.
    fn name(&self) -> &'static str;

    /// Whether it does just what an older one does, so that it can go on in its place; if so, takes over from it what else is known.
    fn resume(&mut self, old: &dyn FunctionSpec) -> bool {
        let _ = old;
        false
    }

    /// Whether it is an older one with other rules, or the same as they were loaded: then it goes on with what that one counted.
    fn succeeds(&self, old: &dyn FunctionSpec) -> bool {
        let _ = old;
        false
    }

    /// The same function with rules that a transaction changes, made as a whole. Its state of flows means what it meant.
    ///
    /// # Errors
    ///
    /// Which change cannot be made, and why.
    fn change(&self, changes: &[Change]) -> Result<Box<dyn FunctionSpec>, RefusedChange> {
        let _ = changes;
        let why = format!("{} has no rules that change; expected an acl", self.name());
        Err(RefusedChange { change: None, why })
    }

    /// Told what numbers in the state stand for that it is going to take over ([`PerFlow::legend`]).
    ///
    /// # Errors
    ///
    /// What is wrong with that, and what was expected.
    fn inherit(&mut self, legend: &serde_json::Value) -> Result<(), String> {
        let _ = legend;
        Ok(())
    }

    /// Makes the state of a flow its own that another one with the same [`PerFlow::version`] kept, after [`FunctionSpec::inherit`]; `false`
    /// where there is nothing to go on with. The words may be any.
    fn adopt(&mut self, words: &mut [u64]) -> bool {
        let _ = words;
        true
    }

    /// Makes its own what another one kept of a flow as [text](PerFlow::has_texts), after [`FunctionSpec::adopt`] of its words, which may be changed once more.
    /// The text may be any.
    fn adopt_text(&mut self, words: &mut [u64], text: &str) {
        let _ = (words, text);
    }

    /// What it will do, in a line or several, for the plan.
    fn describe(&self) -> Vec<String>;

    /// What was recognised and chosen, for those who ask: of what format files are, how large tables are. It may take as long as
    /// [`FunctionSpec::make_ready`].
    fn details(&self) -> Vec<String> {
        Vec::new()
    }

    /// What the user should know before it runs.
    fn warnings(&self) -> Vec<String> {
        Vec::new()
    }

    /// Whether it gives packets other addresses or ports, which later functions see.
    fn rewrites(&self) -> bool {
        false
    }

    /// Whether it looks at frames as they came, and so must stand before all that rewrite.
    fn reads_frames(&self) -> bool {
        false
    }

    /// What the lines of its flow records look like.
    fn record_lines(&self) -> Lines {
        Lines::new(LineFormat::Json, Fields::BASIC)
    }

    /// Whether its flow records are handed over, beside what is written of them.
    fn hands_over(&self) -> bool {
        !self.exports().is_empty()
    }

    /// Where else its flow records are sent.
    fn exports(&self) -> &[packetloom_export::Settings] {
        &[]
    }

    /// How it chooses the packets that pass, where it samples.
    fn sampling(&self) -> Option<Sampling> {
        None
    }

    /// Told how the packets were sampled that come to it, if they were: what it exports says so.
    fn announce_sampling(&mut self, sampling: Option<Sampling>) {
        let _ = sampling;
    }

    /// The file its flow records or its log are to be written to.
    fn records_path(&self) -> Option<&Path> {
        None
    }

    /// The files that it was made from, beside the chain file.
    fn input_paths(&self) -> Vec<&Path> {
        Vec::new()
    }

    /// A file that it writes at the beginning, and reads the next time.
    fn kept_path(&self) -> Option<&Path> {
        None
    }

    /// How many rules it has, where they may change while it runs.
    fn rules(&self) -> Option<usize> {
        None
    }

    /// Reads changes of its rules from a file, to be made at the packets of the run that it names. One worker must see all of
    /// them.
    ///
    /// # Errors
    ///
    /// A file that cannot be read, or changes that cannot be made.
    fn change_rules(&mut self, path: &Path) -> Result<(), Error> {
        let name = self.name();
        Err(Error::Invalid(format!(
            "{}: {name} has no rules; expected a function with rules",
            path.display()
        )))
    }

    /// Has the packets that rules of the selection decide be handed out with those that are to be logged; how many rules that are.
    fn watch(&mut self, which: &Watch) -> usize {
        let _ = which;
        0
    }

    /// A rule that packets were handed out for, for people; none where it is not watched.
    fn watched(&self, rule: u32) -> Option<String> {
        let _ = rule;
        None
    }

    /// Packets of the run before which its rules change, in order.
    fn changes_at(&self) -> Vec<u64> {
        Vec::new()
    }

    /// Whether its rules have changed since they were loaded, or are going to: then what is made for them is made for any rules.
    fn has_changing_rules(&self) -> bool {
        !self.changes_at().is_empty()
    }

    /// Told before a run, and before a run goes on with it, by which interfaces packets are going to come, where that is known: what takes
    /// long is done then, and not while they wait.
    fn make_ready(&self, names: Option<&PortNames>) {
        let _ = names;
    }

    /// Whether there is something that a device can do in its place.
    fn is_offloadable(&self) -> bool {
        false
    }

    /// What a device can do in its place, after so many of its changes.
    fn offload(&self, changes: usize) -> Option<Offload<'_>> {
        let _ = changes;
        None
    }

    /// What a device can search in its place; what is found goes to [`Function::take_matches`]. Only where it keeps no state for flows.
    fn text_search(&self) -> Option<TextSearch<'_>> {
        None
    }

    /// Whether it hands out packets that are to be logged, or whose rules are watched: they have to be parsed for that.
    fn hands_out(&self) -> bool {
        self.log().is_some()
    }

    /// Makes the log of a run, where it has one.
    fn log(&self) -> Option<Box<dyn Log>> {
        None
    }

    /// What it is made into, by where its state is.
    fn form(&self) -> Form<'_>;
}

/// Why a transaction of rules is not made; nothing is changed then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedChange {
    /// Which of its changes cannot be made, from 0, if it is one of them.
    pub change: Option<usize>,
    /// Why, and what was expected.
    pub why: String,
}

/// Whether a function is one of the same type that is equal: for [`FunctionSpec::resume`].
pub(crate) fn is_equal<T: FunctionSpec + PartialEq>(own: &T, old: &dyn FunctionSpec) -> bool {
    (old as &dyn Any).downcast_ref::<T>().is_some_and(|old| own == old)
}

/// Functions by where their state is.
#[derive(Clone, Copy)]
pub enum Form<'a> {
    /// They keep none for flows.
    Standalone(&'a dyn Standalone),
    /// In the entries of a flow definition.
    PerFlow(&'a dyn PerFlow),
}

/// A function that keeps no state for flows.
pub trait Standalone: Send + Sync {
    /// Makes the batch form for one worker.
    fn function(&self) -> Box<dyn Function>;

    /// Makes the oracle.
    fn oracle(&self) -> Box<dyn Oracle>;
}

/// A function that keeps state for each flow of a definition, beside other functions.
pub trait PerFlow: Send + Sync {
    /// What it keeps, and judges packets by.
    fn keeps(&self) -> StateSpec;

    /// What it also remembers of packets' flows by another definition, which the key `sessions` of a chain file names: such as
    /// which of a source's packets begin a flow.
    fn remembers(&self) -> Option<StateSpec> {
        None
    }

    /// The definition that it has to itself, in place of one that it names: its [`StateSpec::by`] is the only one that it keeps state by. Keys
    /// are those of packets as they come to it, without such as it does not [select](FlowFunction::select). Tables begin small and grow, and
    /// where input comes as it is sent, flows that were silent for too long are looked for.
    fn own(&self) -> Option<Definition> {
        None
    }

    /// Whether it is told what becomes of its state in the end ([`FlowFunction::on_end`]). Workers do not share its table then.
    fn hears_ends(&self) -> bool {
        false
    }

    /// Bits of its words, by the places of these, that mean something in this run alone: files do not have them.
    fn passing(&self) -> &'static [(usize, u64)] {
        &[]
    }

    /// The version of what its words mean: state of another one is not taken over.
    fn version(&self) -> u32 {
        1
    }

    /// Whether it keeps more of flows than words, which it hands out as text where state is saved ([`FlowFunction::text`]).
    fn has_texts(&self) -> bool {
        false
    }

    /// Whether it keeps more of flows than words in any way: that stays with its worker.
    fn keeps_aside(&self) -> bool {
        self.has_texts()
    }

    /// What numbers in its state stand for, to be kept with that.
    fn legend(&self) -> serde_json::Value {
        serde_json::Value::Null
    }

    /// What it says of flows, for those who ask.
    fn facts_kept(&self) -> FactsKept {
        FactsKept::default()
    }

    /// What it says of flows by its states, at a time in nanoseconds.
    fn facts(&self, now: u64) -> Facts<'_> {
        let _ = now;
        Box::new(|_| Some(FlowFacts::default()))
    }

    /// How long a flow's state is to be kept at least; none where any time will do. "0" is for ever.
    fn min_timeout(&self) -> Option<Span> {
        None
    }

    /// Makes the batch form for one worker, whose state is `at` this place of each entry.
    fn function(&self, at: StateAt) -> Box<dyn FlowFunction>;

    /// Makes the oracle.
    fn oracle(&self) -> Box<dyn FlowOracle>;

    /// What devices run in its place, if there is such a thing.
    fn kernel(&self) -> Option<DeviceKernel> {
        None
    }

    /// Why devices do not run it as it is configured, where they run it otherwise.
    fn only_on_cores(&self) -> Option<&'static str> {
        None
    }
}

/// Packets that are wanted, by the rules that decide them and the mark that they carry in the end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Watch {
    /// Those that any of these decides; where it is empty, any that sets the mark, or any at all.
    pub rules: Vec<RuleName>,
    /// Only those that carry this mark, where there is one.
    pub mark: Option<u32>,
}

/// How a rule is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuleName {
    /// By its id.
    Id(String),
    /// By its line in the rule file.
    Line(u32),
}

impl Watch {
    /// Whether packets that a rule decides may be among these.
    pub fn has(&self, rule: &Rule) -> bool {
        self.has_named(rule.id.as_deref(), rule.line, rule.mark)
    }

    /// The same of a rule with this id, line and mark.
    pub fn has_named(&self, id: Option<&str>, line: u32, mark: u32) -> bool {
        let is_it = |name: &RuleName| match name {
            RuleName::Id(wanted) => id == Some(wanted),
            RuleName::Line(wanted) => line == *wanted,
        };
        match self.mark {
            Some(wanted) if self.rules.is_empty() => mark == wanted,
            _ => self.rules.is_empty() || self.rules.iter().any(is_it),
        }
    }
}

impl std::fmt::Display for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names = self.rules.iter().map(|name| match name {
            RuleName::Id(id) => format!("{id:?}"),
            RuleName::Line(line) => format!("line {line}"),
        });
        let names: Vec<_> = names.collect();
        match (&names[..], self.mark) {
            ([], None) => f.write_str("any rule"),
            ([], Some(mark)) => write!(f, "mark {mark}"),
            (names, None) => write!(f, "rule {}", names.join(", ")),
            (names, Some(mark)) => write!(f, "rule {} with mark {mark}", names.join(", ")),
        }
    }
}

/// What a device can do in place of a function.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Offload<'a> {
    /// Finds the first rule that matches.
    Acl {
        /// The rules.
        rules: Cow<'a, RuleSet>,
        /// The verdict of each and, after them, that where none matches.
        verdicts: Cow<'a, [Verdict]>,
        /// Whether each rule admits connections; empty where none does.
        admits: Cow<'a, [bool]>,
        /// Where rules change, what the function calls each of them.
        names: Option<Vec<u32>>,
    },
}

/// Patterns that are looked for in a text of each packet.
#[derive(Clone, Copy, Debug)]
pub struct TextSearch<'a> {
    /// The patterns.
    pub patterns: &'a Patterns,
    /// The text of a packet of a parsed batch, if it has one.
    pub text: for<'b> fn(&'b Batch, usize) -> Option<&'b [u8]>,
}

/// What a device found out about a packet that still passed when it came to a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its index in the batch.
    pub frame: u32,
    /// The position of the first rule that matches, or its name where it has one; or [`packetloom_classify::NO_RULE`].
    pub first: u32,
    /// Its IP bytes.
    pub bytes: u32,
}

/// The batch form of a function, owned by one worker.
pub trait Function: Send {
    /// Judges the packets of a batch that still pass, in their order; packets dropped before are not looked at.
    fn process(&mut self, batch: &mut Batch);

    /// Takes what a device found out about those of `packets` packets that came here, in place of [`Function::process`]: only where
    /// [`FunctionSpec::offload`] says what that is. Those that it drops are taken out of `found`, and the verdicts on them are written.
    fn take(&mut self, packets: usize, found: &mut Vec<Found>, batch: &mut Batch) {
        let _ = (packets, batch);
        found.clear();
    }

    /// Judges as [`Function::process`] does, with what a device found in the first `searched` packets in place of what would be found in their texts
    /// here: only where [`FunctionSpec::text_search`] says what that is. Texts are numbered as packets are; matches of a text stand together, in
    /// order of texts.
    fn take_matches(&mut self, searched: usize, matches: &[Match], batch: &mut Batch) {
        let _ = (searched, matches);
        self.process(batch);
    }

    /// Hands out the packets of the last batch that are to be logged, or whose rules are [watched](FunctionSpec::watch), in order of arrival.
    fn logged(&mut self, into: &mut Vec<Logged>) {
        let _ = into;
    }

    /// Goes on with what one counted that it [succeeds](FunctionSpec::succeeds), before its first packet.
    fn go_on(&mut self, counted: &dyn Report) {
        let _ = counted;
    }

    /// What it counted.
    fn report(&self) -> Box<dyn Report>;
}

/// The slow, obvious form of a function.
pub trait Oracle {
    /// Told of each packet before any function judges it, and whether or not it gets here: its number in the run, from 0.
    fn reach(&mut self, packet: u64) {
        let _ = packet;
    }

    /// Judges one packet, and may set its mark.
    fn step(&mut self, packet: &mut OraclePacket) -> Verdict;

    /// The rules that ask for the packet of the last step to be logged, or that are watched.
    fn logged(&self) -> &[u32] {
        &[]
    }

    /// As [`Function::go_on`].
    fn go_on(&mut self, counted: &dyn Report) {
        let _ = counted;
    }

    /// What it counted, in the same form as the function's.
    fn report(&self) -> Box<dyn Report>;
}

/// Where something lies that was found in a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[schemars(rename = "offset")]
pub struct Offset {
    /// From the beginning of what offsets count: "payload", "packet", "stream", or a header field by its name.
    #[serde(rename = "in")]
    pub within: &'static str,
    /// That of the first byte, from 0. Negative in a stream that began with a later byte, as far as was seen.
    pub begin: i64,
    /// That of the byte behind the last one.
    pub end: i64,
}

/// Where a rule's strings lie in a packet.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Offsets {
    /// As many as are told, in order.
    pub told: Vec<Offset>,
    /// How many there are beside these.
    pub more: u64,
}

/// A packet that is to be logged, or whose rule is watched.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Logged {
    /// Its index in the batch.
    pub frame: u32,
    /// The rule that decided it, by its position.
    pub rule: u32,
    /// Where its strings lie, for logs that say so.
    pub offsets: Option<Box<Offsets>>,
}

impl Logged {
    /// A packet of a log that says nothing of offsets.
    pub(crate) fn new(frame: u32, rule: u32) -> Self {
        Self { frame, rule, offsets: None }
    }
}

/// A function's log: one for a run, whatever the number of workers, so that packets come to it in order of arrival.
pub trait Log: Any + Send {
    /// Goes on as the log of a function that its own [succeeds](FunctionSpec::succeeds), before its first packet.
    fn go_on(&mut self, old: &dyn Log) {
        let _ = old;
    }

    /// Appends the packet's line, where it is to have one, which those have not whose rules are watched alone; `number` is that of the
    /// packet in the run, from 0; `offsets` is what its function has said of them.
    fn log(
        &mut self,
        lines: &mut String,
        rule: u32,
        number: u64,
        packet: &PacketRecord,
        offsets: Option<&Offsets>,
    );

    /// Appends what there is to say at the end.
    fn finish(&mut self, lines: &mut String);

    /// What it counted, to be merged into the function's report.
    fn report(&self) -> Box<dyn Report>;
}

/// What a function counted.
pub trait Report: Any + Send {
    /// Adds what the same function counted in another worker.
    fn merge(&mut self, other: &dyn Report);

    /// For machines; [`Registration::report`](registry::Registration::report) is its schema.
    fn json(&self) -> serde_json::Value;

    /// The same where the function has left its chain: without lists of what it did not do, which may be long.
    fn json_of_replaced(&self) -> serde_json::Value {
        self.json()
    }

    /// For people: pairs of a name and a value, most important first.
    fn rows(&self) -> Vec<(String, String)>;
}

/// Why a function could not be prepared.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file could not be read.
    #[error(transparent)]
    Io(#[from] packetloom_io::Error),
    /// Rules could not be read.
    #[error(transparent)]
    Rules(#[from] packetloom_classify::formats::Error),
    /// Keys that contradict each other.
    #[error("{0}")]
    Invalid(String),
}
