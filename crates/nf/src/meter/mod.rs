//! `meter`: packets to bidirectional flow records (RFC 5103).
//!
//! A flow is an IP version, a protocol and an unordered pair of (address, port). A record's source is the sender of its
//! first packet; packets the other way count as reverse. Only TCP, UDP, SCTP, ICMP and ICMPv6 are metered; ports are 0 for
//! ICMP and for fragments other than the first. Packets in framings that are not basic ([`Framings`]) are left out unless asked for,
//! and counted as such.
//!
//! A record ends, judged when the flow's next packet comes, when the time since its latest packet has reached the idle
//! timeout or the time since its first packet the active timeout. Time comes from the packets; time that runs backwards
//! counts as 0. At capacity, of each IP version, the record of a flow ends to make room: of one that is idle, or else one that had no packet for
//! long ([`flows`](crate::flows)). All other records end with the input.
//!
//! - Shape: one entry of 128 bytes a flow, in a table of places for seven entries for each four that it has room for, which doubles as
//!   flows come.
//! - Verdict: always pass.

mod config;
mod cpu;
mod export;
mod oracle;
#[cfg(test)]
mod tests;

use std::any::Any;
use std::path::{Path, PathBuf};

use packetloom_packet::reject::RejectCounts;
use packetloom_packet::{EndReason, FlowRecord};
use schemars::JsonSchema;
use serde::Serialize;

pub use config::{Config, Framings};
pub use export::{ExportConfig, ExportProtocol};

use crate::flows::{By, Definition, End, FlowFunction, FlowOracle, StateAt, StateSpec, WhenFull};
use crate::summary::{self, NamedCounts};
use crate::units::Span;
use crate::{Form, FunctionSpec, PerFlow, Report};

/// A meter ready to run.
#[derive(Clone, Debug)]
pub struct Meter {
    settings: Settings,
    /// A number above those of the first packets of all records that it takes over.
    first: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Settings {
    idle: Span,
    active: Span,
    max_flows: usize,
    framings: Framings,
    output: Option<PathBuf>,
    exports: Vec<packetloom_export::Settings>,
}

impl Meter {
    fn new(settings: Settings) -> Self {
        // What comes out of a file has number 0.
        Self { settings, first: 1 }
    }
}

impl FunctionSpec for Meter {
    fn name(&self) -> &'static str {
        "meter"
    }

    fn resume(&mut self, old: &dyn FunctionSpec) -> bool {
        (old as &dyn Any).downcast_ref::<Self>().is_some_and(|old| self.settings == old.settings)
    }

    fn adopt(&mut self, words: &mut [u64]) -> bool {
        let Some(number) = cpu::adopt(words) else { return false };
        self.first = self.first.max(number + 1);
        true
    }

    fn describe(&self) -> Vec<String> {
        let Settings { idle, active, max_flows, framings, output, exports } = &self.settings;
        let limit = |span: Span| if span.limit().is_some() { span.to_string() } else { "none".into() };
        let mut lines = vec![
            "flow: IP version, protocol, unordered pair of (address, port)".into(),
            format!("timeouts: idle {}, active {}", limit(*idle), limit(*active)),
            format!("at most {max_flows} flows of each IP version, then one not used for long is exported"),
            match output {
                Some(path) => format!("records to {}", path.display()),
                None if exports.is_empty() => "records are counted only".into(),
                None => "records are exported only".into(),
            },
        ];
        lines.extend(
            exports.iter().map(|export| format!("{} to {}", export.messages.protocol.title(), export.to)),
        );
        if *framings == Framings::All {
            lines.push("packets in all framings".into());
        }
        lines
    }

    fn records_path(&self) -> Option<&Path> {
        self.settings.output.as_deref()
    }

    fn exports(&self) -> &[packetloom_export::Settings] {
        &self.settings.exports
    }

    fn form(&self) -> Form<'_> {
        Form::PerFlow(self)
    }
}

impl PerFlow for Meter {
    fn keeps(&self) -> StateSpec {
        StateSpec { flows: None, by: &[By::FiveTuple], words: cpu::WORDS }
    }

    fn own(&self) -> Option<Definition> {
        let Settings { idle, max_flows, .. } = self.settings;
        Some(Definition { by: By::FiveTuple, timeout: idle, max_flows, when_full: WhenFull::EvictOldest })
    }

    fn hears_ends(&self) -> bool {
        true
    }

    fn passing(&self) -> &'static [(usize, u64)] {
        cpu::PASSING
    }

    fn function(&self, at: StateAt) -> Box<dyn FlowFunction> {
        let Settings { idle, active, framings, .. } = self.settings;
        Box::new(cpu::MeterCpu::new(idle, active, framings, self.first, at))
    }

    fn oracle(&self) -> Box<dyn FlowOracle> {
        let Settings { idle, active, framings, .. } = self.settings;
        Box::new(oracle::MeterOracle::new(idle, active, framings, self.first))
    }
}

/// Why the record of a flow ends whose state is over.
fn end_reason(end: End) -> EndReason {
    match end {
        End::Expired => EndReason::IdleTimeout,
        End::Evicted => EndReason::LackOfResources,
        End::Run => EndReason::ForcedEnd,
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
}

/// Records by why they ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct EndCounts {
    /// No packet came for the idle timeout.
    idle_timeout: u64,
    /// The flow had lasted for the active timeout.
    active_timeout: u64,
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
        self.ended.forced_end += other.ended.forced_end;
        self.ended.lack_of_resources += other.ended.lack_of_resources;
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
        if self.ended.lack_of_resources > 0 {
            rows.push(("exported early, table full".into(), self.ended.lack_of_resources.to_string()));
        }
        rows
    }
}
