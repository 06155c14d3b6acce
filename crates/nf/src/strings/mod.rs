//! `strings`: packets in whose payload, or in whose header fields, patterns of a list lie.
//!
//! Each packet is searched by itself, so that a pattern that is cut by the end of a segment is not found, or the streams of TCP are
//! ([`Within::Stream`]). What was not captured is not searched, and packets of which a part was not are counted. Fields are those that
//! `packetloom-names` finds: of the message that a packet begins with, and with streams of the first one of each direction of a flow over segments.
//!
//! A pattern that is looked for in one place may lie in another one, too, where it does not count: the set is one, and each match is checked.
//!
//! - Shape: one compiled set for all workers. By itself a packet needs no state; for streams, and where the rest of a flow is dropped, two words
//!   of the flow's entry in a table of its own, as of `domains`: whether it is dropped, and its number, by which the ends of runs of bytes lie in
//!   a map, messages that are on their way, and what was found of these.
//! - Verdict: pass, or drop with [`DropReason::Strings`](packetloom_packet::DropReason::Strings) if that is the action. A mark, if there is one.
//! - Log: alerts in the form of Suricata's EVE.

mod config;
mod cpu;
mod fields;
mod judge;
mod learning;
mod locate;
mod look_in;
mod messages;
mod oracle;
mod per_flow;
mod store;
mod streams;
#[cfg(test)]
mod tests;

use std::any::Any;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use packetloom_names::Fields;
use packetloom_packet::{Batch, PortNames};
use packetloom_pattern::files::{LeftOut, Places, Signature, Signatures};
use packetloom_pattern::{Matcher, Patterns, Report as Wanted};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use self::config::Config;
use self::learning::{Current, Learning, When};
pub use self::look_in::{LookIn, UnknownPlace};
use self::look_in::{fields_of, place_of};
use self::store::Store;
use crate::alerts::{self, Action, Alert, AlertLog};
use crate::flows::{
    By, Definition, FlowFunction, FlowOracle, StateAt, StateSpec, WhenFull, describe_remembered, state_words,
};
use crate::log_rate::{LogCounts, LogSettings};
use crate::units::Span;
use crate::watches::Followed;
use crate::{
    Form, Function, FunctionSpec, Log, Oracle, PerFlow, Report, Standalone, TextSearch, Watch, summary,
};

/// Patterns of a list at least which is compiled again once it is known what is searched.
pub const LEARNS_FROM: usize = 1_000;

/// Which signatures are counted and logged of a packet that has several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Named {
    /// All of them.
    #[default]
    All,
    /// The one that stands first in the file.
    First,
    /// None by name: packets that match are counted together, which is faster.
    Any,
}

/// What is searched of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Within {
    /// What follows the transport header; what follows the IP header in fragments other than the first and in protocols without ports.
    #[default]
    Payload,
    /// All captured bytes, from the link header on.
    Packet,
    /// Payloads, those of TCP as the stream that they are parts of, in whichever order they come.
    Stream,
}

/// What becomes of the rest of a flow of which a packet matched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum FlowAction {
    /// It is dropped.
    Drop,
}

/// What is done with matches.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Settings {
    named: Named,
    within: Within,
    action: Action,
    mark: Option<u32>,
    /// Where it looks at flows.
    flows: Option<FlowSettings>,
    log: Option<LogSettings>,
    /// Whether the log has lines for people.
    plain: bool,
    /// Whether it says where strings lie.
    offsets: bool,
    /// Signatures whose packets are wanted.
    watch: Option<Watch>,
    /// The file of the compiled set.
    compiled: Option<PathBuf>,
}

/// Which flows are held, and what is done with them.
#[derive(Clone, Debug, PartialEq, Eq)]
struct FlowSettings {
    timeout: Span,
    max_flows: usize,
    /// Whether the rest of a flow is dropped once a packet of it matched.
    drops: bool,
}

/// Signatures and what is done with them, ready to run.
#[derive(Clone, Debug)]
pub struct Strings {
    /// What messages call the patterns.
    name: String,
    path: Option<PathBuf>,
    list: Arc<List>,
}

/// What all workers share.
#[derive(Debug)]
struct List {
    signatures: Arc<Signatures>,
    settings: Settings,
    /// Where patterns are looked for, and the fields among that.
    places: Places,
    fields: Fields,
    /// Whether each signature is one pattern, and each pattern is looked for in all places.
    is_single: bool,
    /// Whether packets with a signature are handed out, since they are logged or wanted.
    is_handed_out: Vec<bool>,
    /// Whether each pattern belongs to a signature of several.
    is_of_several: Vec<bool>,
    /// Where contents of signatures lie that have them in several places.
    places_of_several: Places,
    learning: Learning,
}

impl AsRef<Learning> for List {
    fn as_ref(&self) -> &Learning {
        &self.learning
    }
}

impl AsRef<Patterns> for List {
    fn as_ref(&self) -> &Patterns {
        &self.signatures.patterns
    }
}

impl List {
    fn new(signatures: Arc<Signatures>, settings: Settings) -> Self {
        let places = signatures.all_places();
        let mut all = 0..signatures.patterns.len() as u32;
        let is_single = signatures.are_single() && all.all(|number| signatures.places_of(number) == places);
        let of_several = signatures.signatures.iter().map(|signature| signature.places);
        let of_several = of_several.filter(|places| places.len() > 1);
        let places_of_several = of_several.fold(Places::NONE, Places::and);
        let mut is_of_several = vec![false; signatures.patterns.len()];
        for Signature { needs, excludes, .. } in &signatures.signatures {
            if needs.len() + excludes.len() > 1 {
                needs.iter().chain(excludes).for_each(|&pattern| is_of_several[pattern as usize] = true);
            }
        }
        let is_handed_out = Vec::new();
        let store = settings.compiled.clone().map(Store::new);
        let learning = Learning::new(When::DEFAULT, store);
        let mut list = Self {
            signatures,
            settings,
            places,
            fields: fields_of(places),
            is_single,
            is_handed_out,
            is_of_several,
            places_of_several,
            learning,
        };
        let numbers = 0..list.signatures.signatures.len() as u32;
        let is_logged = list.settings.log.is_some();
        list.is_handed_out = numbers.map(|number| is_logged || list.is_watched(number)).collect();
        list
    }

    /// The compiled set.
    fn matcher(&self) -> Arc<Matcher> {
        self.learning.matcher(&self.signatures.patterns)
    }

    /// The same for a worker.
    fn current(&self) -> Current {
        self.learning.current(&self.signatures.patterns)
    }

    /// What is to be found of each text: where a match is all that is asked for, one is enough; that a pattern is there is all that counts
    /// otherwise.
    fn wanted(&self) -> Wanted {
        if self.settings.named == Named::Any && self.is_single { Wanted::Any } else { Wanted::Each }
    }

    /// Whether a pattern that was found in one of these places is looked for there.
    fn is_looked_for(&self, pattern: u32, places: Places) -> bool {
        self.signatures.places_of(pattern).meets(places)
    }

    fn signature(&self, number: u32) -> &Signature {
        &self.signatures.signatures[number as usize]
    }

    /// Whether packets with a signature are wanted.
    fn is_watched(&self, number: u32) -> bool {
        let Signature { id, line, .. } = self.signature(number);
        let mark = self.settings.mark.unwrap_or(0);
        let id = id.map(|id| id.to_string());
        let is_wanted = |watch: &Watch| watch.has_named(id.as_deref(), *line, mark);
        self.settings.named != Named::Any && self.settings.watch.as_ref().is_some_and(is_wanted)
    }
}

impl alerts::Signatures for List {
    fn alert(&self, number: u32) -> Alert<'_> {
        let Signature { line, gid, id, revision, name, category, severity, .. } = self.signature(number);
        Alert {
            gid: *gid,
            id: id.unwrap_or(*line),
            revision: *revision,
            name: name.into(),
            category: category.as_deref(),
            severity: *severity,
        }
    }

    fn action(&self) -> Action {
        self.settings.action
    }

    fn is_plain(&self) -> bool {
        self.settings.plain
    }

    fn report_of(self: Arc<Self>, log: LogCounts) -> Box<dyn Report> {
        Box::new(StringsReport { log, ..StringsReport::new(self) })
    }
}

/// Left-out lines that a warning shows.
const SHOWN_LEFT_OUT: usize = 5;

/// Signatures that a table shows.
const SHOWN: usize = 10;

impl Strings {
    fn new(name: String, path: Option<PathBuf>, signatures: Arc<Signatures>, settings: Settings) -> Self {
        Self { name, path, list: Arc::new(List::new(signatures, settings)) }
    }

    /// Lines of the file that are not looked for.
    pub fn left_out(&self) -> &[LeftOut] {
        &self.list.signatures.left_out
    }
}

impl FunctionSpec for Strings {
    fn name(&self) -> &'static str {
        "strings"
    }

    fn resume(&mut self, old: &dyn FunctionSpec) -> bool {
        let Some(old) = (old as &dyn Any).downcast_ref::<Self>() else { return false };
        let is_same = old.list.settings == self.list.settings && old.list.signatures == self.list.signatures;
        if is_same {
            // It is compiled already.
            self.list = Arc::clone(&old.list);
        }
        is_same
    }

    fn describe(&self) -> Vec<String> {
        let Signatures { patterns, signatures, .. } = &*self.list.signatures;
        let Settings { within, action, mark, flows, log, .. } = &self.list.settings;
        let places = self.list.places;
        let payload = match within {
            Within::Payload => "payloads",
            Within::Packet => "packets",
            Within::Stream => "streams of TCP and other payloads",
        };
        let payload = places.has(Places::PAYLOAD).then(|| payload.to_owned());
        let messages = if *within == Within::Stream { "streams and packets" } else { "packets" };
        let fields = places.fields().collect::<Vec<_>>().join(", ");
        let fields = (!fields.is_empty()).then(|| format!("{fields} of {messages}"));
        let within = payload.into_iter().chain(fields).collect::<Vec<_>>().join(", and in ");
        let action = action.describe();
        let mark = mark.map_or(String::new(), |mark| format!(", with mark {mark}"));
        let mut lines = vec![
            format!("{} signatures of {} patterns in {within}", signatures.len(), patterns.len()),
            format!("packets that match {action}{mark}"),
        ];
        if let Some(FlowSettings { timeout, max_flows, drops }) = flows {
            let rest = if *drops { ", with the rest of their flows" } else { "" };
            lines[1].push_str(rest);
            lines.push(describe_remembered(*timeout, *max_flows));
        }
        lines.extend(log.as_ref().map(|log| format!("alerts to {}", log.path.display())));
        lines
    }

    fn details(&self) -> Vec<String> {
        let matcher = self.list.matcher();
        let mut details = vec![
            format!("{} is read as {}", self.name, self.list.signatures.format),
            format!(
                "compiled for {}: {} kB, the longest list of candidates has {}",
                matcher.isa().name(),
                matcher.heap_bytes() / 1000,
                matcher.longest_list()
            ),
        ];
        details.extend(self.list.learning.store().and_then(Store::detail).map(str::to_owned));
        details
    }

    fn warnings(&self) -> Vec<String> {
        let name = &self.name;
        let Signatures { left_out, headers_not_checked, .. } = &*self.list.signatures;
        let mut warnings = Vec::new();
        for left_out in left_out.iter().take(SHOWN_LEFT_OUT) {
            warnings.push(format!("{name}:{}: left out: {}", left_out.line, left_out.reason));
        }
        if left_out.len() > SHOWN_LEFT_OUT {
            let more = left_out.len() - SHOWN_LEFT_OUT;
            warnings.push(format!(
                "{name}: and {more} more lines left out; \"packetloom search --left-out FILE\" lists them"
            ));
        }
        if *headers_not_checked > 0 {
            warnings.push(format!(
                "{name}: {headers_not_checked} rules name protocols, addresses or ports, which are not checked"
            ));
        }
        if let Some(store) = self.list.learning.store() {
            self.list.matcher();
            warnings.extend(store.warning().map(str::to_owned));
        }
        warnings
    }

    fn watch(&mut self, which: &Watch) -> usize {
        let List { signatures, settings, .. } = &*self.list;
        let settings = Settings { watch: Some(which.clone()), ..settings.clone() };
        self.list = Arc::new(List::new(Arc::clone(signatures), settings));
        (0..self.list.signatures.signatures.len() as u32)
            .filter(|&number| self.list.is_watched(number))
            .count()
    }

    fn watched(&self, rule: u32) -> Option<String> {
        let Signature { line, name, .. } = self.list.signatures.signatures.get(rule as usize)?;
        self.list.is_watched(rule).then(|| format!("{}:{line}: {name}", self.name))
    }

    fn text_search(&self) -> Option<TextSearch<'_>> {
        let List { signatures, settings, fields, .. } = &*self.list;
        let is_by_itself = settings.flows.is_none() && fields.is_empty();
        is_by_itself.then_some(TextSearch {
            patterns: &signatures.patterns,
            text: match settings.within {
                Within::Payload | Within::Stream => Batch::payload,
                Within::Packet => |batch, index| Some(batch.bytes(index)),
            },
        })
    }

    fn hands_out(&self) -> bool {
        self.list.settings.log.is_some() || self.list.settings.watch.is_some()
    }

    fn reads_frames(&self) -> bool {
        true
    }

    fn records_path(&self) -> Option<&Path> {
        self.list.settings.log.as_ref().map(|log| &*log.path)
    }

    fn input_paths(&self) -> Vec<&Path> {
        self.path.iter().map(|path| &**path).collect()
    }

    fn kept_path(&self) -> Option<&Path> {
        self.list.settings.compiled.as_deref()
    }

    fn make_ready(&self, _names: Option<&PortNames>) {
        self.list.matcher();
    }

    fn log(&self) -> Option<Box<dyn Log>> {
        let settings = self.list.settings.log.as_ref()?;
        Some(Box::new(AlertLog::new(Arc::clone(&self.list), settings)))
    }

    fn adopt(&mut self, words: &mut [u64]) -> bool {
        // Of a flow that was dropped only as long as such are.
        let drops = self.list.settings.flows.as_ref().is_some_and(|flows| flows.drops);
        Followed::adopt(words, drops);
        true
    }

    fn form(&self) -> Form<'_> {
        match self.list.settings.flows {
            None => Form::Standalone(self),
            Some(_) => Form::PerFlow(self),
        }
    }
}

impl Standalone for Strings {
    fn function(&self) -> Box<dyn Function> {
        Box::new(cpu::StringsCpu::new(Arc::clone(&self.list)))
    }

    fn oracle(&self) -> Box<dyn Oracle> {
        Box::new(oracle::StringsOracle::new(Arc::clone(&self.list)))
    }
}

impl PerFlow for Strings {
    fn keeps(&self) -> StateSpec {
        StateSpec { flows: None, by: &[By::FiveTuple], words: state_words::<Followed>() }
    }

    fn own(&self) -> Option<Definition> {
        let FlowSettings { timeout, max_flows, .. } = *self.list.settings.flows.as_ref()?;
        Some(Definition { by: By::FiveTuple, timeout, max_flows, when_full: WhenFull::EvictOldest })
    }

    /// Streams, and names that are being searched for.
    fn keeps_aside(&self) -> bool {
        true
    }

    fn hears_ends(&self) -> bool {
        true
    }

    /// Numbers of flows are those of a run.
    fn passing(&self) -> &'static [(usize, u64)] {
        Followed::PASSING
    }

    fn function(&self, at: StateAt) -> Box<dyn FlowFunction> {
        Box::new(per_flow::StringsPerFlow::new(Arc::clone(&self.list), at))
    }

    fn oracle(&self) -> Box<dyn FlowOracle> {
        Box::new(oracle::FlowsOracle::new(Arc::clone(&self.list)))
    }
}

/// Whether less of a frame was captured than there was.
fn is_cut_off(batch: &Batch, index: usize) -> bool {
    let frame = &batch.frames()[index];
    frame.len < frame.wire_len
}

/// What was counted.
#[derive(Clone, Debug)]
pub struct StringsReport {
    list: Arc<List>,
    counts: Counts,
    /// Packets of each signature.
    by_signature: Vec<u64>,
    /// Where it looks at flows.
    flows: Option<FlowCounts>,
    log: LogCounts,
}

/// What there is to say of flows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
struct FlowCounts {
    /// Packets that were dropped since an earlier one of their flow had matched.
    dropped: u64,
    /// Segments that were not searched since all their bytes had come before.
    repeated: u64,
    /// Places of streams at which bytes were missing to the end: a pattern that lies across one is not found.
    gaps: u64,
    /// Segments that were searched by themselves, since there was no memory for their streams; directions of flows whose header field was not
    /// followed for that.
    no_room: u64,
    /// Packets with a string of a signature of several that was not remembered, since 64 others were found in the stream or in the message, or
    /// there was no memory for the message.
    not_remembered: u64,
    /// Directions of flows whose header field took too much to find: segments missing, or no end in the first bytes.
    gave_up: u64,
}

impl FlowCounts {
    fn add(&mut self, other: Self) {
        self.dropped += other.dropped;
        self.repeated += other.repeated;
        self.gaps += other.gaps;
        self.no_room += other.no_room;
        self.not_remembered += other.not_remembered;
        self.gave_up += other.gave_up;
    }
}

/// Packets and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    searched: u64,
    bytes: u64,
    without_payload: u64,
    cut_off: u64,
    matched: u64,
}

impl StringsReport {
    fn new(list: Arc<List>) -> Self {
        let by_signature = vec![0; list.signatures.signatures.len()];
        let flows = list.settings.flows.as_ref().map(|_| FlowCounts::default());
        Self { list, counts: Counts::default(), by_signature, flows, log: LogCounts::default() }
    }

    /// Counts how many bytes were searched of a packet, if it has such.
    fn searches(&mut self, bytes: Option<usize>, is_cut_off: bool) {
        match bytes {
            Some(bytes) => {
                self.counts.searched += 1;
                self.counts.bytes += bytes as u64;
                self.counts.cut_off += u64::from(is_cut_off);
            }
            None => self.counts.without_payload += 1,
        }
    }

    /// Signatures with packets, those with the most first.
    fn found(&self) -> Vec<(u32, u64)> {
        let mut found: Vec<_> =
            (0..).zip(self.by_signature.iter().copied()).filter(|&(_, n)| n > 0).collect();
        found.sort_by_key(|&(number, packets)| (std::cmp::Reverse(packets), number));
        found
    }
}

/// What was counted, for machines.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Summary {
    /// Signatures that were looked for.
    signatures: u64,
    /// Packets that were searched: those that have the header field, where one is searched.
    searched: u64,
    /// Bytes of them that were searched.
    bytes: u64,
    /// Packets without anything to search: their headers could not be read, or were not captured whole.
    without_payload: u64,
    /// Packets that were searched of which a part was not captured.
    cut_off: u64,
    /// Packets that matched.
    matched: u64,
    /// Signatures that were found, those with the most packets first.
    found: Vec<Found>,
    /// Flows and streams, where it looks at them.
    flows: Option<FlowCounts>,
    /// The log, where there is one.
    log: Option<LogCounts>,
}

/// A signature that was found.
#[derive(Serialize, JsonSchema)]
struct Found {
    /// Its line in the file.
    line: u32,
    /// Its number, where the file gives it one.
    id: Option<u32>,
    /// Its name.
    name: String,
    /// Packets that have it.
    packets: u64,
}

impl Report for StringsReport {
    fn merge(&mut self, other: &dyn Report) {
        let Some(other) = (other as &dyn Any).downcast_ref::<Self>() else { return };
        let Counts { searched, bytes, without_payload, cut_off, matched } = other.counts;
        self.counts.searched += searched;
        self.counts.bytes += bytes;
        self.counts.without_payload += without_payload;
        self.counts.cut_off += cut_off;
        self.counts.matched += matched;
        self.by_signature.iter_mut().zip(&other.by_signature).for_each(|(own, more)| *own += more);
        if let (Some(own), Some(other)) = (&mut self.flows, other.flows) {
            own.add(other);
        }
        self.log.add(other.log);
    }

    fn json(&self) -> serde_json::Value {
        let Counts { searched, bytes, without_payload, cut_off, matched } = self.counts;
        let found = self.found().into_iter().map(|(number, packets)| {
            let Signature { line, id, name, .. } = self.list.signature(number);
            Found { line: *line, id: *id, name: name.clone(), packets }
        });
        summary::value(&Summary {
            signatures: self.by_signature.len() as u64,
            searched,
            bytes,
            without_payload,
            cut_off,
            matched,
            found: found.collect(),
            flows: self.flows,
            log: self.list.settings.log.is_some().then_some(self.log),
        })
    }

    fn rows(&self) -> Vec<(String, String)> {
        let Counts { searched, bytes, without_payload, cut_off, matched } = self.counts;
        let packets = |count: u64| format!("{count} packets");
        let mut rows = vec![
            ("matched".into(), packets(matched)),
            ("searched".into(), format!("{}, {bytes} bytes", packets(searched))),
        ];
        if without_payload > 0 {
            rows.push(("without payload".into(), packets(without_payload)));
        }
        if cut_off > 0 {
            rows.push(("cut off by the capture".into(), packets(cut_off)));
        }
        let FlowCounts { dropped, repeated, gaps, no_room, not_remembered, gave_up } =
            self.flows.unwrap_or_default();
        let of_flows = [
            ("of flows that had matched", packets(dropped)),
            ("repeated", packets(repeated)),
            ("without room for streams", packets(no_room)),
            ("with strings not remembered", packets(not_remembered)),
            ("gaps in streams", gaps.to_string()),
            ("fields not found to their ends", gave_up.to_string()),
        ];
        let is_there = [dropped, repeated, no_room, not_remembered, gaps, gave_up].map(|count| count > 0);
        let of_flows = of_flows.into_iter().zip(is_there).filter(|&(_, is_there)| is_there);
        rows.extend(of_flows.map(|((name, count), _)| (name.into(), count)));
        let found = self.found();
        for &(number, count) in found.iter().take(SHOWN) {
            let Signature { line, name, .. } = self.list.signature(number);
            rows.push((format!("line {line}: {name}"), packets(count)));
        }
        if found.len() > SHOWN {
            rows.push((format!("and {} more", found.len() - SHOWN), String::new()));
        }
        if self.list.settings.log.is_some() {
            rows.push(("alerts".into(), self.log.lines.to_string()));
            if self.log.suppressed > 0 {
                rows.push(("alerts over the rate".into(), self.log.suppressed.to_string()));
            }
        }
        rows
    }
}
