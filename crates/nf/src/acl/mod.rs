//! `acl`: ordered rules, the first that matches decides.
//!
//! A packet that no rule matches gets the default action. Frames without a match key (not IP, or malformed) are not judged
//! here: the chain's policy did that. A non-first fragment has neither ports nor flags, so a rule that asks for them does
//! not match it. Source of the semantics: those of router access lists, as in RFC 8519.
//!
//! A rule with `reflect` permits, and admits the connection that its packet opens: packets of it, of both directions, and ICMP errors
//! that quote one of them pass from then on, before rules are asked. A connection is opened as [`connections`](crate::connections)
//! has it, and forgotten after its own timeouts. Packets that no entry was found for are judged by the rules alone.
//!
//! A rule with `in` or `out` is for packets that come or leave by some interfaces only, one with `state` for packets whose connection is
//! in one of these states. A list with such a rule tracks connections: a packet that is permitted and opens one begins it, and every packet
//! is judged by the rules, with the state that it has. Rules that change cannot have these, nor are such lists judged on devices.
//!
//! - Shape: stateless where no rule has `reflect`. Keys in, verdicts out; packets and bytes of each rule and worker (16 bytes). Where
//!   one has, or asks for a state, two words of the flow's entry.
//! - Counters: a rule counts the packets that it decides; those that pass by their connection are counted together, and so are those of rules
//!   that transactions took away.
//! - Marks: a packet that a rule with `mark` decides gets that mark, which stays until another function sets one.
//! - Log: packets that rules with `log` decide, in order of arrival, limited in packet time.
//! - Drop reasons: `acl_rule`, `acl_default`.

mod classes;
mod config;
mod cpu;
mod judge;
mod live;
mod log;
mod oracle;
mod reflect;
mod states;
#[cfg(test)]
mod tests;
mod transaction;

use std::any::Any;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use bytemuck::{Pod, Zeroable};
use packetloom_classify::formats::{Elsewhere, Format, Skipped, grouped};
use packetloom_classify::live::{Change, RuleList};
use packetloom_classify::{Action, Classifier, ConnectionState, Kind, Rule, RuleSet};
use packetloom_packet::{DropReason, PortNames, Verdict};
use schemars::JsonSchema;
use serde::Serialize;

use classes::Classes;
pub use config::{Config, DefaultAction};

use crate::connections::{Connection, TimeoutsConfig};
use crate::log_rate::{LogCounts, LogSettings};
use crate::{
    Error, Form, Function, FunctionSpec, Log, Offload, Oracle, RefusedChange, Report, Standalone, Watch,
    summary,
};

/// Rules that were read and indexed.
#[derive(Debug)]
pub struct Acl {
    list: Arc<List>,
    kind: Kind,
    /// Built when it is first needed: neither the oracle nor rules that change need it.
    classifier: OnceLock<Arc<dyn Classifier>>,
    /// Those of each class of packets, in place of that, where rules are for some interfaces or states only.
    classes: OnceLock<Arc<Classes>>,
    /// The rule file's name.
    name: String,
    /// The rule file, where rules come from one.
    path: Option<PathBuf>,
    /// What the rules were recognised as.
    format: Format,
    /// What of it was left out.
    skipped: Vec<Skipped>,
    /// What it has beside the list.
    elsewhere: Vec<Elsewhere>,
    /// Where rules change, the list as it was loaded and what becomes of it; `list` has all rules that ever are in it.
    changes: Option<Arc<live::Changes>>,
    /// Where transactions changed the rules, the list as it was loaded, and the rules by their names.
    edited: Option<(Arc<List>, RuleList)>,
}

/// What a chain file says beside the rules.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Settings {
    /// The action for rules whose format gives none.
    unstated: Action,
    default: Action,
    /// Whether each rule's packets and bytes are counted.
    counters: bool,
    log: Option<LogSettings>,
    /// Rules whose packets are wanted, beside those that are logged.
    watch: Option<Watch>,
    admits: Admits,
}

/// What holds for connections that rules with `reflect` admit, or that are tracked for rules with `state`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Admits {
    /// The flow definition.
    flows: Option<String>,
    loose: bool,
    timeouts: TimeoutsConfig,
}

/// A rule list whose every rule has an action.
#[derive(Debug)]
struct List {
    rules: RuleSet,
    settings: Settings,
    /// For each rule and, after them, the default: what the batch form needs to know of it, a byte each.
    verdicts: Vec<Verdict>,
    /// Whether its packets are to be handed out, since they are logged or the rule is watched; empty where none are.
    logs: Vec<bool>,
    /// The mark that it sets, or 0; empty where none does.
    marks: Vec<u32>,
    /// Whether it admits connections; empty where none does.
    admits: Vec<bool>,
    /// Whether any rule is for some interfaces or states only, or connections are tracked.
    is_contextual: bool,
    /// Whether any is for some states, or was since the list was loaded: connections are tracked then.
    tracks: bool,
    /// Whether any admits connections, or did since then.
    reflects: bool,
    /// Whether a file changes the rules, and it has all that ever are in it.
    is_of_changes: bool,
    /// The number of each rule, where transactions made the list.
    numbers: Option<Vec<u64>>,
    /// The list that it goes on from.
    before: OnceLock<transaction::Before>,
}

impl List {
    fn new(rules: RuleSet, settings: Settings) -> Self {
        let mut list = Self {
            is_contextual: rules.is_contextual(),
            tracks: rules.names_states(),
            reflects: false,
            is_of_changes: false,
            numbers: None,
            before: OnceLock::new(),
            rules,
            settings,
            verdicts: Vec::new(),
            logs: Vec::new(),
            marks: Vec::new(),
            admits: Vec::new(),
        };
        let positions = || (0..list.rules.rules.len()).map(Some).chain([None]);
        let verdicts = positions().map(|position| list.verdict(position)).collect();
        let wanted = list.rules.rules.iter().map(|rule| list.is_logged(rule) || list.is_watched(rule));
        let wanted: Vec<_> = wanted.chain([false]).collect();
        if wanted.contains(&true) {
            list.logs = wanted;
        }
        if list.rules.rules.iter().any(|rule| rule.mark != 0) {
            list.marks = list.rules.rules.iter().map(|rule| rule.mark).chain([0]).collect();
        }
        list.verdicts = verdicts;
        let admits = (0..list.rules.rules.len()).map(|position| list.action(position) == Action::Reflect);
        list.admits = admits.collect();
        list.reflects = list.admits.contains(&true);
        if !list.reflects {
            list.admits = Vec::new();
        }
        list
    }

    /// Whether packets that a rule decides are logged.
    fn is_logged(&self, rule: &Rule) -> bool {
        rule.log && self.settings.log.is_some()
    }

    /// Whether packets that a rule decides are wanted.
    fn is_watched(&self, rule: &Rule) -> bool {
        self.settings.watch.as_ref().is_some_and(|watch| watch.has(rule))
    }

    /// Whether a rule, or the default, admits connections.
    fn admits(&self, first: u32) -> bool {
        self.admits.get(first as usize).is_some_and(|&admits| admits)
    }

    /// The action of the rule at `position`.
    fn action(&self, position: usize) -> Action {
        self.rules.rules[position].action.unwrap_or(self.settings.unstated)
    }

    /// The verdict of the rule at `position`, or of the default.
    fn verdict(&self, position: Option<usize>) -> Verdict {
        let (action, reason) = match position {
            Some(position) => (self.action(position), DropReason::AclRule),
            None => (self.settings.default, DropReason::AclDefault),
        };
        match action {
            Action::Permit | Action::Reflect => Verdict::Pass,
            Action::Deny => Verdict::Drop(reason),
        }
    }
}

impl Acl {
    /// The classifier, for rules that stay as they are.
    fn classifier(&self) -> Arc<dyn Classifier> {
        self.classifier.get_or_init(|| self.kind.build(&self.list.rules)).clone()
    }

    /// What finds rules by the class of packets; `None` where all rules are for all of them.
    fn classes(&self) -> Option<Arc<Classes>> {
        let classes = || Arc::new(Classes::new(self.list.clone(), self.kind));
        self.list.is_contextual.then(|| self.classes.get_or_init(classes).clone())
    }

    /// Whether it keeps state for connections.
    fn keeps_connections(&self) -> bool {
        self.list.reflects || self.list.tracks
    }

    /// Rules with `log`.
    fn logging(&self) -> usize {
        self.list.rules.rules.iter().filter(|rule| rule.log).count()
    }
}

impl FunctionSpec for Acl {
    fn name(&self) -> &'static str {
        "acl"
    }

    /// Where rules change, packets of the run decide when, which a new run would begin to count again.
    fn resume(&mut self, old: &dyn FunctionSpec) -> bool {
        let Some(old) = (old as &dyn Any).downcast_ref::<Self>() else { return false };
        // Names of rules begin anew, too.
        let is_same =
            self.is_same_beside_rules(old) && old.list.numbers.is_none() && self.list.rules == old.list.rules;
        if is_same {
            self.list = old.list.clone();
            self.classifier = old.classifier.clone();
            self.classes = old.classes.clone();
        }
        is_same
    }

    fn succeeds(&self, old: &dyn FunctionSpec) -> bool {
        let Some(old) = (old as &dyn Any).downcast_ref::<Self>() else { return false };
        self.is_same_beside_rules(old) && self.loaded() == old.loaded()
    }

    fn change(&self, changes: &[Change]) -> Result<Box<dyn FunctionSpec>, RefusedChange> {
        Ok(Box::new(self.changed(changes)?))
    }

    fn rules(&self) -> Option<usize> {
        Some(self.list.rules.rules.len())
    }

    fn adopt(&mut self, words: &mut [u64]) -> bool {
        Connection::is_valid(words)
    }

    fn describe(&self) -> Vec<String> {
        let settings = &self.list.settings;
        let default = settings.default.name();
        let mut lines = match &self.changes {
            None => vec![
                format!("{} rules of {}, first match wins", self.list.rules.rules.len(), self.name),
                format!("default {default}, classifier {}", self.kind),
            ],
            Some(changes) => vec![
                format!("{} rules of {}, first match wins", changes.loaded.rules.len(), self.name),
                format!("{} transactions of {}", changes.transactions.len(), changes.name),
                format!("default {default}, classifier for rules that change"),
            ],
        };
        if self.list.reflects {
            let admitting = self.list.admits.iter().filter(|&&admits| admits).count();
            let Admits { loose, timeouts, .. } = &settings.admits;
            let by = if *loose { ", TCP by any segment with ACK" } else { "" };
            lines.push(format!("{admitting} rules admit the connections that their packets open{by}"));
            lines.push(format!("forgotten after {timeouts}"));
        }
        let named = |of: fn(&Rule) -> bool| self.list.rules.rules.iter().filter(|rule| of(rule)).count();
        if self.list.tracks {
            let stateful = named(|rule| !rule.states.is_all());
            let Admits { loose, timeouts, .. } = &settings.admits;
            let by = if *loose { "any segment with ACK" } else { "SYN" };
            lines.push(format!("{stateful} rules ask for states of connections; TCP opens by {by}"));
            lines.push(format!("forgotten after {timeouts}"));
        }
        for elsewhere in &self.elsewhere {
            lines.push(format!("without {elsewhere}"));
        }
        match named(|rule| rule.interfaces.is_some()) {
            0 => {}
            named => lines.push(format!("{named} rules are for packets of some interfaces only")),
        }
        match named(|rule| rule.out.is_some()) {
            0 => {}
            named => lines.push(format!(
                "{named} rules are for packets that leave by some interfaces, which those of captures do not"
            )),
        }
        if self.list.is_contextual {
            lines.push("judged by cores, not by devices".into());
        }
        let marking = self.list.marks.iter().filter(|&&mark| mark != 0).count();
        if marking > 0 {
            lines.push(format!("{marking} rules mark the packets that they decide"));
        }
        if !settings.counters {
            lines.push("rules are not counted".into());
        }
        if let Some(LogSettings { path, rate, burst }) = &settings.log {
            let logging = self.logging();
            let path = path.display();
            lines.push(format!("log of {logging} rules to {path}, at most {rate} after a burst of {burst}"));
        }
        lines
    }

    fn details(&self) -> Vec<String> {
        let mut line =
            format!("{}: {} rules of format {}", self.name, self.list.rules.rules.len(), self.format);
        if self.changes.is_none() && !self.list.rules.is_contextual() {
            let bytes = self.classifier().memory();
            line +=
                &format!(", tables of {} KB for the search ({})", grouped(bytes.div_ceil(1000)), self.kind);
        }
        vec![line]
    }

    fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        let mut groups: BTreeMap<String, usize> = BTreeMap::new();
        for skipped in &self.skipped {
            let count = groups.entry(skipped.construct()).or_default();
            *count += 1;
            if *count <= SHOWN_LOSSES {
                warnings.push(format!("{}:{}: {}", self.name, skipped.line, skipped.message));
            }
        }
        for (construct, count) in groups.into_iter().filter(|(_, count)| *count > SHOWN_LOSSES) {
            warnings.push(format!(
                "{}: {construct}: and {} more left out",
                self.name,
                grouped(count - SHOWN_LOSSES)
            ));
        }
        let logging = self.logging();
        if logging > 0 && self.list.settings.log.is_none() {
            warnings.push(format!(
                "{}: {logging} rules with log are not logged; log = \"FILE\" in the chain file does that",
                self.name
            ));
        }
        warnings
    }

    fn records_path(&self) -> Option<&Path> {
        self.list.settings.log.as_ref().map(|log| &*log.path)
    }

    fn input_paths(&self) -> Vec<&Path> {
        self.path.as_deref().into_iter().collect()
    }

    fn change_rules(&mut self, path: &Path) -> Result<(), Error> {
        let loaded = match &self.changes {
            None => self.list.rules.clone(),
            Some(changes) => changes.loaded.clone(),
        };
        let (changes, rules) = live::Changes::read(path, loaded)?;
        let list = List::new(rules, self.list.settings.clone());
        self.list = Arc::new(List { is_of_changes: true, ..list });
        self.changes = Some(Arc::new(changes));
        Ok(())
    }

    fn watch(&mut self, which: &Watch) -> usize {
        let settings = Settings { watch: Some(which.clone()), ..self.list.settings.clone() };
        let list = List::new(self.list.rules.clone(), settings);
        self.list = Arc::new(List { is_of_changes: self.list.is_of_changes, ..list });
        self.list.rules.rules.iter().filter(|rule| self.list.is_watched(rule)).count()
    }

    fn watched(&self, rule: u32) -> Option<String> {
        let rule = self.list.rules.rules.get(rule as usize).filter(|rule| self.list.is_watched(rule))?;
        Some(match rule.line {
            0 => format!("{}: {rule}", self.name),
            line => format!("{}:{line}: {rule}", self.name),
        })
    }

    fn changes_at(&self) -> Vec<u64> {
        let changes = self.changes.iter().flat_map(|changes| &changes.transactions);
        changes.map(|transaction| transaction.at).collect()
    }

    fn has_changing_rules(&self) -> bool {
        self.edited.is_some() || !self.changes_at().is_empty()
    }

    fn is_offloadable(&self) -> bool {
        !self.list.reflects && !self.list.is_contextual
    }

    fn make_ready(&self, names: Option<&PortNames>) {
        match self.classes() {
            Some(classes) => names.into_iter().for_each(|names| classes.expect(names)),
            None if self.changes.is_none() => drop(self.classifier()),
            None => {}
        }
    }

    fn offload(&self, changes: usize) -> Option<Offload<'_>> {
        let List { rules, verdicts, admits, .. } = &*self.list;
        let Some(all) = &self.changes else {
            let (rules, verdicts) = (Cow::Borrowed(rules), Cow::Borrowed(&verdicts[..]));
            return Some(Offload::Acl { rules, verdicts, admits: Cow::Borrowed(admits), names: None });
        };
        // The list has the rules by their serial numbers.
        let made = all.transactions[..changes].iter().map(|transaction| &transaction.changes[..]);
        let names: Vec<_> = packetloom_classify::live::serials_after(&all.loaded, made)
            .into_iter()
            .map(|serial| serial as u32)
            .collect();
        let now = names.iter().map(|&name| rules.rules[name as usize].clone()).collect();
        let verdicts = names.iter().map(|&name| verdicts[name as usize]).chain(verdicts.last().copied());
        let admits = names.iter().map(|&name| self.list.admits(name));
        Some(Offload::Acl {
            rules: Cow::Owned(RuleSet { rules: now }),
            verdicts: verdicts.collect(),
            admits: admits.collect(),
            names: Some(names),
        })
    }

    fn form(&self) -> Form<'_> {
        if self.keeps_connections() { Form::PerFlow(self) } else { Form::Standalone(self) }
    }

    fn hands_out(&self) -> bool {
        !self.list.logs.is_empty()
    }

    fn log(&self) -> Option<Box<dyn Log>> {
        let settings = self.list.settings.log.as_ref()?;
        Some(Box::new(log::AclLog::new(self.list.clone(), settings)))
    }
}

impl Standalone for Acl {
    fn function(&self) -> Box<dyn Function> {
        if let Some(changes) = &self.changes {
            return Box::new(cpu::AclCpu::new(self.list.clone(), live::Changing::new(changes.clone())));
        }
        if let Some(classes) = self.classes() {
            return Box::new(cpu::AclCpu::new(self.list.clone(), classes::ByClass::new(classes)));
        }
        Box::new(cpu::AclCpu::new(self.list.clone(), cpu::Fixed::new(self.classifier())))
    }

    fn oracle(&self) -> Box<dyn Oracle> {
        Box::new(oracle::AclOracle::new(self.list.clone(), self.changes.clone()))
    }
}

/// What one rule decided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(align(16))]
struct Counter {
    packets: u64,
    /// IP bytes.
    bytes: u64,
}

// Both in one cache line, four rules to a line.
const _: () = assert!(size_of::<Counter>() == 16);

impl Counter {
    #[inline]
    fn add(&mut self, bytes: u32) {
        self.packets += 1;
        self.bytes += u64::from(bytes);
    }

    fn merge(&mut self, other: Self) {
        self.packets += other.packets;
        self.bytes += other.bytes;
    }
}

/// Packets and bytes by the rule that decided.
#[derive(Clone, Debug)]
pub struct AclReport {
    list: Arc<List>,
    /// For each rule and, after them, the default; the default's packets alone where rules are not counted.
    counters: Vec<Counter>,
    /// The same of rules that transactions took away, and how many these were.
    deleted: Counter,
    deleted_rules: u64,
    log: LogCounts,
    admitted: Admitted,
    tracked: Tracked,
}

/// What a list that tracks connections saw.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Tracked {
    /// That were opened.
    connections: u64,
    /// Packets by the state that they had.
    packets: [u64; ConnectionState::COUNT],
}

impl Tracked {
    fn summary(&self) -> TrackedSummary {
        let of = |state: ConnectionState| self.packets[state as usize];
        TrackedSummary {
            connections: self.connections,
            new: of(ConnectionState::New),
            established: of(ConnectionState::Established),
            related: of(ConnectionState::Related),
            invalid: of(ConnectionState::Invalid),
            untracked: of(ConnectionState::Untracked),
        }
    }
}

/// The summary of a list that tracks connections.
#[derive(Serialize, JsonSchema)]
struct TrackedSummary {
    /// Connections that packets opened which the list permits.
    connections: u64,
    /// Packets that open a connection, or could.
    new: u64,
    /// Packets of connections that were opened.
    established: u64,
    /// ICMP errors about packets of such connections.
    related: u64,
    /// Packets that neither open a connection nor belong to one.
    invalid: u64,
    /// Packets whose connection is not known.
    untracked: u64,
}

packetloom_memory::layout! {
    /// What passed since its connection was admitted.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable, Serialize, JsonSchema)]
    struct Admitted {
        /// Connections that rules admitted.
        connections: u64,
        /// Packets of them.
        packets: u64,
        /// IP bytes.
        bytes: u64,
        /// Errors that quote a packet of one.
        related: u64,
    }
}

impl AclReport {
    fn new(list: Arc<List>) -> Self {
        let rules = if list.settings.counters { list.rules.rules.len() } else { 0 };
        let counters = vec![Counter::default(); rules + 1];
        Self {
            list,
            counters,
            deleted: Counter::default(),
            deleted_rules: 0,
            log: LogCounts::default(),
            admitted: Admitted::default(),
            tracked: Tracked::default(),
        }
    }

    /// Counts a packet: the way of the oracle.
    fn count(&mut self, position: Option<usize>, bytes: u32) {
        let default = self.counters.len() - 1;
        match position {
            Some(position) if self.list.settings.counters => self.counters[position].add(bytes),
            Some(_) => {}
            None => self.counters[default].add(bytes),
        }
    }

    /// Whether rules admit connections, or did before the list was another one.
    fn admits(&self) -> bool {
        self.list.reflects || self.admitted != Admitted::default()
    }

    /// Whether rules are for states of connections, or were.
    fn tracks(&self) -> bool {
        self.list.tracks || self.tracked != Tracked::default()
    }

    fn default(&self) -> Counter {
        self.counters.last().copied().unwrap_or_default()
    }

    /// Rules that decided a packet: position, rule, counter.
    fn hit_rules(&self) -> impl Iterator<Item = (usize, &Rule, Counter)> {
        self.counted_rules().filter(|(_, _, counter)| counter.packets > 0)
    }

    /// Rules that decided none: position, rule.
    fn idle_rules(&self) -> impl Iterator<Item = (usize, &Rule)> {
        let idle = self.counted_rules().filter(|(_, _, counter)| counter.packets == 0);
        idle.map(|(position, rule, _)| (position, rule))
    }

    /// For machines, without the rules that decided no packet.
    fn summary(&self) -> Summary {
        let (counters, default) = (self.list.settings.counters, self.default());
        let hits: Vec<_> = self
            .hit_rules()
            .map(|(position, rule, Counter { packets, bytes })| Hit {
                rule: position,
                number: self.list.number(position),
                line: line(rule),
                id: rule.id.clone(),
                comment: rule.comment.clone(),
                text: rule.to_string(),
                packets,
                bytes,
            })
            .collect();
        Summary {
            rules: self.list.rules.rules.len(),
            default_packets: default.packets,
            rules_hit: counters.then_some(hits.len()),
            default_bytes: counters.then_some(default.bytes),
            hits: counters.then_some(hits),
            rules_not_hit: counters.then(|| self.idle_rules().count()),
            not_hit: None,
            admitted: self.admits().then_some(self.admitted),
            deleted: (self.deleted_rules > 0).then(|| Deleted {
                rules: self.deleted_rules,
                packets: counters.then_some(self.deleted.packets),
                bytes: counters.then_some(self.deleted.bytes),
            }),
            tracked: self.tracks().then(|| self.tracked.summary()),
            log: self.list.settings.log.is_some().then_some(self.log),
        }
    }

    /// Rules with their counters, where they are counted.
    fn counted_rules(&self) -> impl Iterator<Item = (usize, &Rule, Counter)> {
        let rules = self.list.rules.rules.iter().zip(&self.counters).enumerate();
        let counted = rules.filter(|_| self.list.settings.counters);
        counted.map(|(position, (rule, &counter))| (position, rule, counter))
    }
}

/// A rule's line in its file, if it has one.
fn line(rule: &Rule) -> Option<u32> {
    (rule.line > 0).then_some(rule.line)
}

/// Lines shown of each kind of what was left out.
const SHOWN_LOSSES: usize = 3;

/// Rules shown at the end of a run.
const SHOWN_RULES: usize = 10;

/// What it counted, for machines.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Summary {
    /// Rules of the list.
    rules: usize,
    /// Packets that no rule matched.
    default_packets: u64,
    /// Rules that decided a packet.
    #[serde(skip_serializing_if = "Option::is_none")]
    rules_hit: Option<usize>,
    /// IP bytes of packets that no rule matched.
    #[serde(skip_serializing_if = "Option::is_none")]
    default_bytes: Option<u64>,
    /// Rules that decided a packet, all of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    hits: Option<Vec<Hit>>,
    /// Rules that decided none.
    #[serde(skip_serializing_if = "Option::is_none")]
    rules_not_hit: Option<usize>,
    /// Rules that decided none, all of them; not of an acl that was replaced.
    #[serde(skip_serializing_if = "Option::is_none")]
    not_hit: Option<Vec<Idle>>,
    /// What passed since its connection was admitted, where rules admit connections.
    #[serde(skip_serializing_if = "Option::is_none")]
    admitted: Option<Admitted>,
    /// Rules that were deleted or replaced on the way, where there are such.
    #[serde(skip_serializing_if = "Option::is_none")]
    deleted: Option<Deleted>,
    /// Packets by the state of their connection, where rules are for some states.
    #[serde(skip_serializing_if = "Option::is_none")]
    tracked: Option<TrackedSummary>,
    /// The log, where there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    log: Option<LogCounts>,
}

/// Rules that are gone, and what they had decided.
#[derive(Serialize, JsonSchema)]
struct Deleted {
    /// Rules that were deleted or replaced.
    rules: u64,
    /// Packets that they decided.
    #[serde(skip_serializing_if = "Option::is_none")]
    packets: Option<u64>,
    /// Their IP bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
}

/// A rule that decided packets.
#[derive(Serialize, JsonSchema)]
struct Hit {
    /// Its position in the list, from 0.
    rule: usize,
    /// The number N that @N names it by in transactions, where there may be such.
    #[serde(skip_serializing_if = "Option::is_none")]
    number: Option<u64>,
    /// Its line in the rule file; null for a rule that a transaction added.
    line: Option<u32>,
    /// Its id, if it has one.
    id: Option<Box<str>>,
    /// Its comment, if it has one.
    comment: Option<Box<str>>,
    /// The rule.
    text: String,
    /// Packets that it decided.
    packets: u64,
    /// Their IP bytes.
    bytes: u64,
}

/// A rule that decided none.
#[derive(Serialize, JsonSchema)]
struct Idle {
    /// Its position in the list, from 0.
    rule: usize,
    /// The number N that @N names it by in transactions, where there may be such.
    #[serde(skip_serializing_if = "Option::is_none")]
    number: Option<u64>,
    /// Its line in the rule file; null for a rule that a transaction added.
    line: Option<u32>,
    /// Its id, if it has one.
    id: Option<Box<str>>,
    /// The rule.
    text: String,
}

impl Report for AclReport {
    fn merge(&mut self, other: &dyn Report) {
        let Some(other) = (other as &dyn Any).downcast_ref::<Self>() else { return };
        for (mine, theirs) in self.counters.iter_mut().zip(&other.counters) {
            mine.merge(*theirs);
        }
        self.deleted.merge(other.deleted);
        self.deleted_rules = self.deleted_rules.max(other.deleted_rules);
        self.log.add(other.log);
        self.admitted.connections += other.admitted.connections;
        self.admitted.packets += other.admitted.packets;
        self.admitted.bytes += other.admitted.bytes;
        self.admitted.related += other.admitted.related;
        self.tracked.connections += other.tracked.connections;
        for (mine, theirs) in self.tracked.packets.iter_mut().zip(other.tracked.packets) {
            *mine += theirs;
        }
    }

    fn json(&self) -> serde_json::Value {
        let idle = self.idle_rules().map(|(rule, of)| Idle {
            rule,
            number: self.list.number(rule),
            line: line(of),
            id: of.id.clone(),
            text: of.to_string(),
        });
        summary::value(&Summary {
            not_hit: self.list.settings.counters.then(|| idle.collect()),
            ..self.summary()
        })
    }

    fn json_of_replaced(&self) -> serde_json::Value {
        summary::value(&self.summary())
    }

    fn rows(&self) -> Vec<(String, String)> {
        let shown = |Counter { packets, bytes }| format!("{packets} packets, {bytes} bytes");
        let default = format!("default ({})", self.list.settings.default.name());
        let mut rows = Vec::new();
        if self.list.settings.counters {
            let mut hits: Vec<_> = self.hit_rules().collect();
            rows.push(("rules hit".into(), format!("{} of {}", hits.len(), self.list.rules.rules.len())));
            rows.push((default, shown(self.default())));
            hits.sort_by_key(|&(position, _, counter)| (std::cmp::Reverse(counter.packets), position));
            for (_, rule, counter) in hits.iter().take(SHOWN_RULES) {
                let line = line(rule).map_or_else(|| "added".into(), |line| format!("line {line}"));
                rows.push((format!("{line}: {rule}"), shown(*counter)));
            }
            if hits.len() > SHOWN_RULES {
                let mut rest = Counter::default();
                hits[SHOWN_RULES..].iter().for_each(|&(_, _, counter)| rest.merge(counter));
                rows.push((format!("{} more rules", hits.len() - SHOWN_RULES), shown(rest)));
            }
            let idle = self.idle_rules().count();
            if idle > 0 {
                rows.push(("rules not hit".into(), format!("{idle} of {}", self.list.rules.rules.len())));
                for (position, rule) in self.idle_rules().take(SHOWN_RULES) {
                    let line = line(rule).map_or_else(|| "added".into(), |line| format!("line {line}"));
                    rows.push((format!("rule {position}, {line}: {rule}"), "no packets".into()));
                }
                if idle > SHOWN_RULES {
                    rows.push((format!("and {} more", grouped(idle - SHOWN_RULES)), "no packets".into()));
                }
            }
            if self.deleted_rules > 0 {
                rows.push((format!("{} rules deleted", self.deleted_rules), shown(self.deleted)));
            }
        } else {
            rows.push((default, format!("{} packets", self.default().packets)));
        }
        if self.admits() {
            let Admitted { connections, packets, bytes, related } = self.admitted;
            rows.push(("connections admitted".into(), connections.to_string()));
            rows.push(("of them".into(), format!("{packets} packets, {bytes} bytes")));
            rows.push(("errors about them".into(), format!("{related} packets")));
        }
        if self.tracks() {
            rows.push(("connections opened".into(), self.tracked.connections.to_string()));
            for (state, packets) in ConnectionState::ALL.iter().zip(self.tracked.packets) {
                rows.push((state.name().into(), format!("{packets} packets")));
            }
        }
        if self.list.settings.log.is_some() {
            rows.push(("logged".into(), format!("{} packets", self.log.lines)));
            if self.log.suppressed > 0 {
                rows.push(("not logged, over the rate".into(), format!("{} packets", self.log.suppressed)));
            }
        }
        rows
    }
}
