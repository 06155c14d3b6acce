//! `domains`: packets with a name that a list blocks: a question of DNS, the server name of TLS or QUIC, the host of HTTP.
//!
//! Names are those that the crate `packetloom-names` finds: in the first bytes of each direction of a flow, over segments and datagrams, and in
//! later packets by themselves; or in all packets by themselves. All names of a packet are judged: of all questions of DNS, and of requests of HTTP
//! one behind the other.
//!
//! - Shape: one set of names for all workers. With flows, two words of each one's entry in a table of its own: whether it is dropped, how far
//!   its directions are, where they begin; what was seen of a name that is on its way lies in a map.
//! - Verdict: pass, or drop with [`DropReason::Domains`](packetloom_packet::DropReason::Domains) if that is the action. A mark, if there is one.
//! - Log: alerts in the form of Suricata's EVE, each with the line of a list that decided.

mod config;
mod cpu;
mod names_in_batch;
mod oracle;
mod per_flow;

use std::any::Any;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use packetloom_domains::{Action as Decision, Match};
use packetloom_names::{Name, NameKind};
use packetloom_packet::protocol;
use schemars::JsonSchema;
use serde::Serialize;

pub use self::config::{Config, Lists};
use crate::alerts::{self, Action, Alert, AlertLog};
use crate::flows::{
    By, Definition, FlowFunction, FlowOracle, StateAt, StateSpec, WhenFull, describe_remembered, state_words,
};
use crate::log_rate::{LogCounts, LogSettings};
use crate::units::Span;
use crate::watches::Followed;
use crate::{Form, Function, FunctionSpec, Log, Oracle, PerFlow, Report, Standalone, Watch, summary};

/// What is done with names that are blocked.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Settings {
    action: Action,
    mark: Option<u32>,
    log: Option<LogSettings>,
    /// Lines whose packets are wanted.
    watch: Option<Watch>,
    /// How long flows are remembered, and how many, where names are followed over packets.
    flows: Option<(Span, usize)>,
}

/// A list that was read.
#[derive(Debug, PartialEq, Eq)]
struct ListFile {
    path: PathBuf,
    /// What messages call it.
    name: String,
    text: Vec<u8>,
    /// Where every [`STEP`]th of its lines begins.
    begins: Vec<u32>,
    /// How many lines it has.
    lines: u32,
    /// The number of its first line among the lines of all lists.
    first: u32,
    report: packetloom_domains::formats::Report,
}

/// Of so many lines of a list it is known where one begins: a list may have very many, and few are ever told.
const STEP: usize = 64;

/// Characters of a line that are told.
const MAX_TOLD: usize = 200;

/// Names and what is done with them, ready to run.
#[derive(Clone, Debug)]
pub struct Domains {
    names: Arc<Names>,
}

/// What all workers share.
#[derive(Debug)]
struct Names {
    set: Arc<packetloom_domains::Domains>,
    files: Arc<Vec<ListFile>>,
    settings: Settings,
}

impl Names {
    /// A line by its number among those of all lists: its list, and its number there, from 1.
    fn line(&self, number: u32) -> (&ListFile, u32) {
        let after = self.files.partition_point(|file| file.first <= number);
        let file = &self.files[after.saturating_sub(1)];
        (file, number - file.first + 1)
    }

    /// The text of a line, as it is told.
    fn text(&self, number: u32) -> String {
        let (file, line) = self.line(number);
        let line = line as usize - 1;
        let begin = file.begins.get(line / STEP).map_or(file.text.len(), |&begin| begin as usize);
        let text = file.text[begin..].split(|&byte| byte == b'\n').nth(line % STEP).unwrap_or_default();
        let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text).trim_ascii();
        let told = String::from_utf8_lossy(text);
        told.chars()
            .take(MAX_TOLD)
            .map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c })
            .collect()
    }

    /// Whether packets that a line decides are handed out.
    fn is_handed_out(&self, number: u32) -> bool {
        self.settings.log.is_some() || self.is_watched(number)
    }

    /// Whether packets that a line decides are wanted.
    fn is_watched(&self, number: u32) -> bool {
        let mark = self.settings.mark.unwrap_or(0);
        let line = self.line(number).1;
        self.settings.watch.as_ref().is_some_and(|watch| watch.has_named(None, line, mark))
    }

    /// A name's kind, and the line that decides about it.
    fn decide(&self, name: &Name) -> (NameKind, Option<Match>) {
        (name.kind, self.set.lookup(looked_up(name)))
    }
}

/// The text of a name as lists have it.
fn looked_up(name: &Name) -> &str {
    match name.kind {
        NameKind::HttpHost => packetloom_domains::without_port(&name.text),
        _ => &name.text,
    }
}

/// Whether the rest of a flow is dropped with a packet of it that has a name of this kind: all but questions of DNS over UDP, each of which is
/// by itself.
fn drops_flow(protocol: u8, kind: NameKind) -> bool {
    protocol != protocol::UDP || kind != NameKind::DnsQuery
}

impl alerts::Signatures for Names {
    fn alert(&self, number: u32) -> Alert<'_> {
        let (file, line) = self.line(number);
        Alert {
            gid: None,
            id: line,
            revision: None,
            name: self.text(number).into(),
            category: Some(&file.name),
            severity: None,
        }
    }

    fn action(&self) -> Action {
        self.settings.action
    }

    fn report_of(self: Arc<Self>, log: LogCounts) -> Box<dyn Report> {
        Box::new(DomainsReport { log, ..DomainsReport::new(self) })
    }
}

/// Refused lines that warnings show of a list, and lines of lists that a table shows.
const SHOWN_REFUSED: usize = 5;
const SHOWN: usize = 10;

impl FunctionSpec for Domains {
    fn name(&self) -> &'static str {
        "domains"
    }

    fn resume(&mut self, old: &dyn FunctionSpec) -> bool {
        let Some(old) = (old as &dyn Any).downcast_ref::<Self>() else { return false };
        let is_same = old.names.settings == self.names.settings && old.names.files == self.names.files;
        if is_same {
            self.names = Arc::clone(&old.names);
        }
        is_same
    }

    fn describe(&self) -> Vec<String> {
        let Names { set, files, settings } = &*self.names;
        let mark = settings.mark.map_or(String::new(), |mark| format!(", with mark {mark}"));
        let lists = if files.len() == 1 { "list" } else { "lists" };
        let mut lines = vec![
            format!("{} names of {} {lists}, in DNS, TLS, HTTP and QUIC", set.len(), files.len()),
            format!("packets with a name that is blocked {}{mark}", settings.action.describe()),
        ];
        if let Some((timeout, max_flows)) = settings.flows {
            if settings.action == Action::Drop {
                lines[1].push_str(", with the rest of their flows");
            }
            lines.push(describe_remembered(timeout, max_flows));
        }
        lines.extend(settings.log.as_ref().map(|log| format!("alerts to {}", log.path.display())));
        lines
    }

    fn details(&self) -> Vec<String> {
        let lists = self.names.files.iter();
        let mut lines: Vec<_> = lists
            .map(|file| {
                format!("{} is read as {}: {} entries", file.name, file.report.format, file.report.entries)
            })
            .collect();
        lines.push(format!("the set of names takes {} kB", self.names.set.heap_bytes() / 1000));
        lines
    }

    fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        for ListFile { name, report, .. } in &*self.names.files {
            for refused in report.refused.iter().take(SHOWN_REFUSED) {
                warnings.push(format!(
                    "{name}:{}: left out: {:?}: {}",
                    refused.line, refused.text, refused.reason
                ));
            }
            let more = report.refused_count().saturating_sub(SHOWN_REFUSED);
            if more > 0 {
                let reasons = report.reasons.iter().map(|(reason, count)| format!("{count} times {reason}"));
                let reasons = reasons.collect::<Vec<_>>().join("; ");
                warnings.push(format!("{name}: and {more} more left out; in all: {reasons}"));
            }
        }
        warnings
    }

    fn watch(&mut self, which: &Watch) -> usize {
        let Names { set, files, settings } = &*self.names;
        let settings = Settings { watch: Some(which.clone()), ..settings.clone() };
        self.names = Arc::new(Names { set: Arc::clone(set), files: Arc::clone(files), settings });
        let lines: u32 = self.names.files.iter().map(|file| file.lines).sum();
        (0..lines).filter(|&number| self.names.is_watched(number)).count()
    }

    fn watched(&self, rule: u32) -> Option<String> {
        let (file, line) = self.names.line(rule);
        self.names.is_watched(rule).then(|| format!("{}:{line}: {}", file.name, self.names.text(rule)))
    }

    fn hands_out(&self) -> bool {
        self.names.settings.log.is_some() || self.names.settings.watch.is_some()
    }

    fn reads_frames(&self) -> bool {
        true
    }

    fn records_path(&self) -> Option<&Path> {
        self.names.settings.log.as_ref().map(|log| &*log.path)
    }

    fn input_paths(&self) -> Vec<&Path> {
        self.names.files.iter().map(|file| &*file.path).collect()
    }

    fn log(&self) -> Option<Box<dyn Log>> {
        let settings = self.names.settings.log.as_ref()?;
        Some(Box::new(AlertLog::new(Arc::clone(&self.names), settings)))
    }

    fn adopt(&mut self, words: &mut [u64]) -> bool {
        Followed::adopt(words, self.names.settings.action == Action::Drop);
        true
    }

    fn form(&self) -> Form<'_> {
        match self.names.settings.flows {
            None => Form::Standalone(self),
            Some(_) => Form::PerFlow(self),
        }
    }
}

impl Standalone for Domains {
    fn function(&self) -> Box<dyn Function> {
        Box::new(cpu::DomainsCpu::new(Arc::clone(&self.names)))
    }

    fn oracle(&self) -> Box<dyn Oracle> {
        Box::new(oracle::DomainsOracle::new(Arc::clone(&self.names)))
    }
}

impl PerFlow for Domains {
    fn keeps(&self) -> StateSpec {
        StateSpec { flows: None, by: &[By::FiveTuple], words: state_words::<Followed>() }
    }

    fn own(&self) -> Option<Definition> {
        let (timeout, max_flows) = self.names.settings.flows?;
        Some(Definition { by: By::FiveTuple, timeout, max_flows, when_full: WhenFull::EvictOldest })
    }

    /// Streams, and names that are being searched for.
    fn keeps_aside(&self) -> bool {
        true
    }

    fn hears_ends(&self) -> bool {
        true
    }

    fn passing(&self) -> &'static [(usize, u64)] {
        Followed::PASSING
    }

    fn function(&self, at: StateAt) -> Box<dyn FlowFunction> {
        Box::new(per_flow::DomainsPerFlow::new(Arc::clone(&self.names), at))
    }

    fn oracle(&self) -> Box<dyn FlowOracle> {
        Box::new(oracle::FlowsOracle::new(Arc::clone(&self.names)))
    }
}

/// What was counted.
#[derive(Clone, Debug)]
pub struct DomainsReport {
    names: Arc<Names>,
    /// Names, by kind.
    by_kind: BTreeMap<NameKind, u64>,
    /// Packets.
    blocked: u64,
    allowed: u64,
    /// Names that each line decided.
    by_line: BTreeMap<u32, u64>,
    /// Where names are followed over packets.
    flows: Option<FlowCounts>,
    log: LogCounts,
}

/// What there is to say of flows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "domains-flows")]
struct FlowCounts {
    /// Packets that were dropped since an earlier one of their flow had a name that is blocked.
    dropped: u64,
    /// Directions of flows whose name took too much to find: segments missing, or no name in the first bytes.
    gave_up: u64,
    /// Directions of flows that were not followed, since there was no memory for it.
    no_room: u64,
}

impl DomainsReport {
    fn new(names: Arc<Names>) -> Self {
        let (by_kind, by_line) = (BTreeMap::new(), BTreeMap::new());
        let flows = names.settings.flows.map(|_| FlowCounts::default());
        Self { names, by_kind, blocked: 0, allowed: 0, by_line, flows, log: LogCounts::default() }
    }

    /// Counts a packet's names, of which there is one at least, and what decides about them. Puts the lines that block some into `blocking`, each once
    /// and in the order of names; whether there are any.
    fn count(&mut self, names: &[(NameKind, Option<Match>)], blocking: &mut Vec<u32>) -> bool {
        blocking.clear();
        let mut is_allowed = false;
        for &(kind, found) in names {
            *self.by_kind.entry(kind).or_default() += 1;
            let Some(Match { number, action, .. }) = found else { continue };
            *self.by_line.entry(number).or_default() += 1;
            if action == Decision::Allow {
                is_allowed = true;
            } else if !blocking.contains(&number) {
                blocking.push(number);
            }
        }
        let is_blocked = !blocking.is_empty();
        self.blocked += u64::from(is_blocked);
        self.allowed += u64::from(is_allowed && !is_blocked);
        is_blocked
    }

    /// Lines that decided, those with the most names first.
    fn found(&self) -> Vec<(u32, u64)> {
        let mut found: Vec<_> = self.by_line.iter().map(|(&number, &names)| (number, names)).collect();
        found.sort_by_key(|&(number, names)| (std::cmp::Reverse(names), number));
        found
    }
}

/// What a kind of name is called.
const fn name_of_kind(kind: NameKind) -> &'static str {
    match kind {
        NameKind::DnsQuery => "dns",
        NameKind::TlsServer => "tls",
        NameKind::HttpHost => "http",
        NameKind::QuicServer => "quic",
    }
}

/// What was counted, for machines.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Summary {
    /// Names of the lists.
    names: u64,
    /// Names, by where they were: dns, tls, http or quic.
    found: BTreeMap<&'static str, u64>,
    /// Packets with a name that is blocked.
    blocked: u64,
    /// Packets with a name that an exception allows, and none that is blocked.
    allowed: u64,
    /// Lines that decided, those with the most names first.
    lines: Vec<Line>,
    /// Flows, where names are followed over packets.
    flows: Option<FlowCounts>,
    /// The log, where there is one.
    log: Option<LogCounts>,
}

/// A line of a list that decided.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "domains-line")]
struct Line {
    /// The list.
    list: String,
    /// The line's number there, from 1.
    line: u32,
    /// Its text.
    text: String,
    /// Names that it decided. A packet may have several.
    names: u64,
}

impl Report for DomainsReport {
    fn merge(&mut self, other: &dyn Report) {
        let Some(other) = (other as &dyn Any).downcast_ref::<Self>() else { return };
        for (&kind, &names) in &other.by_kind {
            *self.by_kind.entry(kind).or_default() += names;
        }
        for (&line, &names) in &other.by_line {
            *self.by_line.entry(line).or_default() += names;
        }
        self.blocked += other.blocked;
        self.allowed += other.allowed;
        if let (Some(own), Some(other)) = (&mut self.flows, other.flows) {
            own.dropped += other.dropped;
            own.gave_up += other.gave_up;
            own.no_room += other.no_room;
        }
        self.log.add(other.log);
    }

    fn json(&self) -> serde_json::Value {
        let lines = self.found().into_iter().map(|(number, names)| {
            let (file, line) = self.names.line(number);
            Line { list: file.name.clone(), line, text: self.names.text(number), names }
        });
        summary::value(&Summary {
            names: self.names.set.len() as u64,
            found: self.by_kind.iter().map(|(&kind, &names)| (name_of_kind(kind), names)).collect(),
            blocked: self.blocked,
            allowed: self.allowed,
            lines: lines.collect(),
            flows: self.flows,
            log: self.names.settings.log.is_some().then_some(self.log),
        })
    }

    fn rows(&self) -> Vec<(String, String)> {
        let packets = |count: u64| format!("{count} packets");
        let mut rows =
            vec![("blocked".into(), packets(self.blocked)), ("allowed".into(), packets(self.allowed))];
        for (&kind, &count) in &self.by_kind {
            rows.push((format!("names of {}", name_of_kind(kind)), count.to_string()));
        }
        let FlowCounts { dropped, gave_up, no_room } = self.flows.unwrap_or_default();
        let of_flows = [
            ("of flows with a blocked name", packets(dropped), dropped > 0),
            ("names given up", gave_up.to_string(), gave_up > 0),
            ("names without memory", no_room.to_string(), no_room > 0),
        ];
        let of_flows = of_flows.into_iter().filter(|&(.., is_there)| is_there);
        rows.extend(of_flows.map(|(name, count, _)| (name.into(), count)));
        let found = self.found();
        for &(number, count) in found.iter().take(SHOWN) {
            let (file, line) = self.names.line(number);
            rows.push((
                format!("{}:{line}: {}", file.name, self.names.text(number)),
                format!("{count} names"),
            ));
        }
        if found.len() > SHOWN {
            rows.push((format!("and {} more lines", found.len() - SHOWN), String::new()));
        }
        if self.names.settings.log.is_some() {
            rows.push(("alerts".into(), self.log.lines.to_string()));
            if self.log.suppressed > 0 {
                rows.push(("alerts over the rate".into(), self.log.suppressed.to_string()));
            }
        }
        rows
    }
}
