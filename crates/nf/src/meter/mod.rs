//! `meter`: packets to bidirectional flow records (RFC 5103).
//!
//! A flow is an IP version, a protocol and an unordered pair of (address, port). A record's source is the sender of its
//! first packet; packets the other way count as reverse. On demand the VLAN is part of a flow, too, by the outer tag. Only TCP, UDP, SCTP, ICMP and ICMPv6 are metered; ports are 0 for
//! ICMP and for fragments other than the first. Packets in framings that are not basic ([`Framings`]) are left out unless asked for,
//! and counted as such.
//!
//! A record ends, judged when the flow's next packet comes, when the time since its latest packet has reached the idle
//! timeout or the time since its first packet the active timeout. Time comes from the packets; time that runs backwards
//! counts as 0. At capacity, of each IP version, the record of a flow ends to make room: of one that is idle, or else one that had no packet for
//! long ([`flows`](crate::flows)). Where it is asked for, a record of TCP ends with its connection: with a RST, or with the first ACK without
//! FIN after both sides have sent FIN. All other records end with the input.
//!
//! Which [fields](Fields) a record has is up to the configuration: beyond the basic ones it keeps details of each direction, in entries of 192
//! bytes, and 256 of IPv6.
//!
//! - Shape: one entry of 128 bytes a flow, or one with details, in a table of places for seven entries for each four that it has room for, which doubles as
//!   flows come.
//! - Verdict: always pass.

mod config;
mod cpu;
mod details;
mod export;
mod names;
mod oracle;
#[cfg(test)]
mod tests;

use std::any::Any;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytemuck::{NoUninit, Pod, Zeroable};
use packetloom_export::{Fields, Format, LineFormat, Lines, Sampling};
use packetloom_memory::LaidOut;
use packetloom_packet::reject::RejectCounts;
use packetloom_packet::{EndReason, FlowRecord};
use schemars::JsonSchema;
use serde::Serialize;

pub use config::{Config, Framings};
use cpu::{Detailed, Flow, MeterCpu};
pub use details::{DETAIL_WORDS, details_of};
pub use export::{ExportConfig, ExportProtocol};
pub use names::NameCounts;
use names::{KnownNames, Names};

use crate::flows::{
    By, Definition, DeviceKernel, End, Exports, Facts, FactsKept, FlowFunction, FlowGroup, FlowOracle,
    KernelSpec, Parameters, StateAt, StateSpec, Tally, Text, WhenFull,
};
use crate::summary::{self, NamedCounts};
use crate::units::Span;
use crate::{Form, FunctionSpec, PerFlow, Report};

/// In the number of a record: that it is not that of its first packet. Such records are the first ones at the end, by their time.
const OTHERS: u64 = 1 << 46;

/// A meter ready to run.
#[derive(Clone, Debug)]
pub struct Meter {
    settings: Settings,
    /// A number above those of the first packets of all records that it takes over.
    first: u64,
    /// Records that were given a number here.
    numbered: u64,
    /// What was known of names of records that it takes over.
    known: Arc<KnownNames>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Settings {
    idle: Span,
    active: Span,
    /// Whether records of TCP end with their connections.
    end_of_flow: bool,
    /// Whether the VLAN is part of a flow.
    vlan_in_key: bool,
    max_flows: usize,
    framings: Framings,
    fields: Fields,
    format: LineFormat,
    output: Option<PathBuf>,
    exports: Vec<packetloom_export::Settings>,
    /// The fields that reports look at, if there are any.
    reports: Option<Fields>,
    /// How the packets were sampled that come to it, if they were.
    sampling: Option<Sampling>,
}

impl Meter {
    fn new(settings: Settings) -> Self {
        Self { settings, first: 1, numbered: 0, known: Arc::default() }
    }

    /// Gives a record a number that no other has.
    fn give_number(&mut self, words: &mut [u64]) -> u64 {
        let number = OTHERS | self.numbered;
        self.numbered += 1;
        cpu::set_number(words, number);
        number
    }

    /// Whether it keeps more than counters.
    fn has_details(&self) -> bool {
        let fields = self.kept_fields();
        fields.has_details() || fields.has_names()
    }

    /// What the packets of a flow have in common.
    fn by(&self) -> &'static [By; 1] {
        if self.settings.vlan_in_key { &[By::VlanFiveTuple] } else { &[By::FiveTuple] }
    }

    /// The fields that records have to have: those that are written, and those that reports look at.
    fn kept_fields(&self) -> Fields {
        self.settings.reports.map_or(self.settings.fields, |others| self.settings.fields.and(others))
    }
}

impl FunctionSpec for Meter {
    fn name(&self) -> &'static str {
        "meter"
    }

    fn resume(&mut self, old: &dyn FunctionSpec) -> bool {
        let Some(old) = (old as &dyn Any).downcast_ref::<Self>() else { return false };
        if self.settings != old.settings {
            return false;
        }
        // Records go on with their numbers.
        self.first = old.first;
        true
    }

    fn adopt(&mut self, words: &mut [u64]) -> bool {
        let Some(number) = cpu::adopt(words) else { return false };
        // As many as no run has: the next ones would be those of others.
        if number == 0 || number >= OTHERS / 2 {
            self.give_number(words);
        } else {
            self.first = self.first.max(number + 1);
        }
        true
    }

    fn adopt_text(&mut self, words: &mut [u64], text: &str) {
        // Numbers of packets are those of a worker each.
        let number = self.give_number(words);
        self.known.add(number, text);
    }

    fn describe(&self) -> Vec<String> {
        let Settings { idle, active, end_of_flow, max_flows, framings, fields, output, exports, .. } =
            &self.settings;
        let [by] = self.by();
        let limit = |span: Span| if span.limit().is_some() { span.to_string() } else { "none".into() };
        let mut lines = vec![
            format!("flow: {by}"),
            format!("timeouts: idle {}, active {}", limit(*idle), limit(*active)),
            format!("at most {max_flows} flows of each IP version, then one not used for long is exported"),
            match output {
                Some(path) => format!("records to {}", path.display()),
                None if self.settings.reports.is_some() => "records are reported".into(),
                None if exports.is_empty() => "records are counted only".into(),
                None => "records are exported only".into(),
            },
        ];
        lines.extend(exports.iter().map(|export| format!("{} to {}", export.format.title(), export.to)));
        if *end_of_flow {
            lines.push("records of TCP end with their connections".into());
        }
        if *framings == Framings::All {
            lines.push("packets in all framings".into());
        }
        if *fields != Fields::BASIC {
            lines.push(format!("fields of records: {fields}"));
        }
        lines
    }

    fn records_path(&self) -> Option<&Path> {
        self.settings.output.as_deref()
    }

    fn record_lines(&self) -> Lines {
        Lines::new(self.settings.format, self.settings.fields).sampled(self.settings.sampling)
    }

    fn hands_over(&self) -> bool {
        self.settings.reports.is_some() || !self.settings.exports.is_empty()
    }

    fn exports(&self) -> &[packetloom_export::Settings] {
        &self.settings.exports
    }

    fn announce_sampling(&mut self, sampling: Option<Sampling>) {
        self.settings.sampling = sampling;
        for export in &mut self.settings.exports {
            match &mut export.format {
                Format::Messages(options) => options.sampling = sampling,
                Format::Parquet(options) => options.sampling = sampling,
                Format::Kafka(options) => options.sampling = sampling,
            }
        }
    }

    fn form(&self) -> Form<'_> {
        Form::PerFlow(self)
    }
}

impl PerFlow for Meter {
    fn keeps(&self) -> StateSpec {
        let words = if self.has_details() { cpu::DETAILED_WORDS } else { cpu::WORDS };
        StateSpec { flows: None, by: self.by(), words }
    }

    fn own(&self) -> Option<Definition> {
        let Settings { idle, max_flows, .. } = self.settings;
        let [by] = *self.by();
        Some(Definition { by, timeout: idle, max_flows, when_full: WhenFull::EvictOldest })
    }

    fn hears_ends(&self) -> bool {
        true
    }

    /// Details are other words, and flows in VLANs are others.
    fn version(&self) -> u32 {
        match (self.settings.vlan_in_key, self.has_details()) {
            (true, _) => 4,
            (false, true) => 3,
            (false, false) => 1,
        }
    }

    fn has_texts(&self) -> bool {
        self.kept_fields().has_names()
    }

    fn passing(&self) -> &'static [(usize, u64)] {
        if self.has_details() { cpu::DETAILED_PASSING } else { cpu::PASSING }
    }

    fn facts_kept(&self) -> FactsKept {
        FactsKept { counts: true, first: true, ..FactsKept::default() }
    }

    fn facts(&self, _now: u64) -> Facts<'_> {
        Box::new(cpu::facts)
    }

    fn function(&self, at: StateAt) -> Box<dyn FlowFunction> {
        if self.has_details() {
            let has_names = self.kept_fields().has_names();
            let names = has_names.then(|| Names::new(Arc::clone(&self.known)));
            Box::new(MeterCpu::<Detailed>::new(&self.settings, names, self.first, at))
        } else {
            Box::new(MeterCpu::<Flow>::new(&self.settings, None, self.first, at))
        }
    }

    fn oracle(&self) -> Box<dyn FlowOracle> {
        let names = self.kept_fields().has_names().then(|| Names::new(Arc::clone(&self.known)));
        Box::new(oracle::MeterOracle::new(&self.settings, self.has_details(), names, self.first))
    }

    fn kernel(&self) -> Option<DeviceKernel> {
        let Settings { idle, active, end_of_flow, framings, .. } = self.settings;
        if self.only_on_cores().is_some() {
            return None;
        }
        let details = self.has_details();
        let limits = cpu::Limits::new(idle, active);
        const COMMON: Text = Text {
            name: "meter",
            source: include_str!("meter.kernel.c"),
            constants: &[("METER_FROM_A_BIT", cpu::FROM_A_BIT), ("METER_NUMBER", cpu::NUMBER)],
        };
        const PLAIN: &[Text] =
            &[COMMON, Text { name: "plain", source: include_str!("plain.kernel.c"), constants: &[] }];
        const DETAILED: &[Text] = &[
            COMMON,
            Text {
                name: "detailed",
                source: include_str!("detailed.kernel.c"),
                constants: &[
                    ("KEPT_CLASS_OF_SERVICE", details::CLASS_OF_SERVICE as u32),
                    ("KEPT_FRAGMENT_FLAGS", details::FRAGMENT_FLAGS as u32),
                ],
            },
        ];
        let parameters = MeterParameters {
            idle: limits.idle,
            active: limits.active,
            first: self.first,
            ends_with_connection: end_of_flow.into(),
            all_framings: (framings == Framings::All).into(),
        };
        let (spec, state) = match details {
            true => (KernelSpec::new("detailed_meter", DETAILED), Detailed::LAYOUT),
            false => (KernelSpec::new("meter", PLAIN), Flow::LAYOUT),
        };
        Some(DeviceKernel::new(KernelSpec {
            state: Some(state),
            flow_group: FlowGroup::Own,
            parameters: Parameters::of(&parameters),
            totals: Some(Tally::LAYOUT),
            more: vec![(MeterMore::LAYOUT, 1)],
            exports: Some(Exports { all_framings: framings == Framings::All, details }),
            ..spec
        }))
    }

    /// A VLAN stands in a key where entries on a device have functions' bits.
    fn only_on_cores(&self) -> Option<&'static str> {
        if self.kept_fields().has_names() {
            Some("names are in payloads, which a device does not get")
        } else if self.settings.vlan_in_key {
            Some("flows on a device have no VLAN in their keys")
        } else {
            None
        }
    }
}

packetloom_memory::layout! {
    /// What its step is given.
    #[derive(Clone, Copy, NoUninit)]
    struct MeterParameters {
        /// The longest times since the latest and since the first packet that a record survives.
        idle: u64,
        active: u64,
        /// What is added to packets' numbers.
        first: u64,
        /// Whether records of TCP end with their connections.
        ends_with_connection: u32,
        /// Whether packets in all framings count.
        all_framings: u32,
    }
}

packetloom_memory::layout! {
    /// What its step counts beside packets and bytes of flows with an entry.
    #[derive(Clone, Copy, Pod, Zeroable)]
    struct MeterMore {
        /// Packets of other protocols, and in other framings.
        others: [u64; 2],
        /// Packets without an entry.
        without: Tally,
    }
}

/// Whether a packet of TCP is taken for the last one of its connection (RFC 9293 section 3.6): a RST, or the first segment with ACK and without
/// FIN after both sides have sent theirs. By the flags of the packet, and by those of both directions with it.
fn is_last(flags: u8, of_both: [u8; 2]) -> bool {
    const FIN: u8 = 1;
    const RST: u8 = 4;
    const ACK: u8 = 16;
    flags & RST != 0 || flags & (FIN | ACK) == ACK && of_both[0] & of_both[1] & FIN != 0
}

/// Why the record of a flow ends whose state is over.
fn end_reason(end: End) -> EndReason {
    match end {
        End::Expired => EndReason::IdleTimeout,
        End::Evicted => EndReason::LackOfResources,
        End::Run | End::Removed => EndReason::ForcedEnd,
    }
}

/// What a meter counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MeterReport {
    /// Frames that reached the meter.
    pub frames: u64,
    /// Packets that became part of a flow.
    pub counted_packets: u64,
    /// Their IP bytes.
    pub counted_ip_bytes: u64,
    /// Frames that did not.
    pub not_counted: RejectCounts,
    /// Flow records.
    pub biflows: u64,
    /// Directions with a packet, over all records.
    pub uniflows: u64,
    /// Records by why they ended.
    pub ended: EndCounts,
    /// What became of names, where they are looked for.
    pub names: Option<NameCounts>,
}

/// Records by why they ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct EndCounts {
    /// No packet came for the idle timeout.
    idle_timeout: u64,
    /// The flow had lasted for the active timeout.
    active_timeout: u64,
    /// The connection was seen to end; 0 unless the meter looks for that.
    end_of_flow: u64,
    /// The run ended.
    forced_end: u64,
    /// Its place was needed for another flow.
    lack_of_resources: u64,
}

impl MeterReport {
    fn count_record(&mut self, record: &FlowRecord) {
        self.biflows += 1;
        self.uniflows += record.directions();
        match record.end_reason {
            EndReason::IdleTimeout => self.ended.idle_timeout += 1,
            EndReason::ActiveTimeout => self.ended.active_timeout += 1,
            EndReason::EndOfFlow => self.ended.end_of_flow += 1,
            EndReason::ForcedEnd => self.ended.forced_end += 1,
            EndReason::LackOfResources => self.ended.lack_of_resources += 1,
        }
    }
}

/// What it counted, for machines.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Summary {
    /// Frames that reached the meter.
    frames: u64,
    /// Packets that became part of a flow.
    counted_packets: u64,
    /// Their IP bytes.
    counted_ip_bytes: u64,
    /// Frames that did not, by reason.
    not_counted: NamedCounts,
    /// Flow records.
    biflows: u64,
    /// Directions with a packet, over all records.
    uniflows: u64,
    /// Records by why they ended.
    ended: EndCounts,
    /// What became of names, where they are looked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    names: Option<NameCounts>,
}

impl MeterReport {
    /// What it counted, for machines.
    pub fn summary(&self) -> Summary {
        let not_counted = self.not_counted.iter().map(|(reject, count)| (reject.name(), count));
        Summary {
            frames: self.frames,
            counted_packets: self.counted_packets,
            counted_ip_bytes: self.counted_ip_bytes,
            not_counted: not_counted.collect(),
            biflows: self.biflows,
            uniflows: self.uniflows,
            ended: self.ended,
            names: self.names,
        }
    }
}

impl Report for MeterReport {
    fn merge(&mut self, other: &dyn Report) {
        let Some(other) = (other as &dyn Any).downcast_ref::<Self>() else { return };
        self.frames += other.frames;
        self.counted_packets += other.counted_packets;
        self.counted_ip_bytes += other.counted_ip_bytes;
        self.not_counted.merge(&other.not_counted);
        self.biflows += other.biflows;
        self.uniflows += other.uniflows;
        self.ended.idle_timeout += other.ended.idle_timeout;
        self.ended.active_timeout += other.ended.active_timeout;
        self.ended.end_of_flow += other.ended.end_of_flow;
        self.ended.forced_end += other.ended.forced_end;
        self.ended.lack_of_resources += other.ended.lack_of_resources;
        if let Some(others) = &other.names {
            self.names.get_or_insert_default().merge(others);
        }
    }

    fn json(&self) -> serde_json::Value {
        summary::value(&self.summary())
    }

    fn rows(&self) -> Vec<(String, String)> {
        let mut rows = vec![
            ("flow records".into(), self.biflows.to_string()),
            ("counted packets".into(), self.counted_packets.to_string()),
            ("counted IP bytes".into(), self.counted_ip_bytes.to_string()),
        ];
        let not_counted = self.not_counted.iter().filter(|&(_, count)| count > 0);
        rows.extend(
            not_counted.map(|(reject, count)| (format!("not counted: {}", reject.name()), count.to_string())),
        );
        if let Some(names) = &self.names {
            rows.push(("records with a name".into(), names.found.to_string()));
            let lost = [
                ("names given up", names.gave_up),
                ("names without memory", names.no_room),
                ("names left out, 16 of a record at most", names.left_out),
            ];
            rows.extend(
                lost.iter().filter(|row| row.1 > 0).map(|(what, count)| ((*what).into(), count.to_string())),
            );
        }
        if self.ended.lack_of_resources > 0 {
            rows.push(("exported early, table full".into(), self.ended.lack_of_resources.to_string()));
        }
        rows
    }
}
