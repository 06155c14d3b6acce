//! What a run counted.

use std::any::Any;
use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::time::Duration;

use packetloom_io::capture::{FileReport, Findings, Truncation};
use packetloom_io::port::{EgressCounts, IngressCounts, PortBackend};
use packetloom_nf::Report;
use packetloom_nf::filter::FilterReport;
use packetloom_nf::flows::Counts;
use packetloom_nf::meter::{self, MeterReport};
use packetloom_nf::registry::FUNCTIONS;
use packetloom_nf::sample::SampleReport;
use packetloom_nf::summary::{self, Named, NamedCounts};
use packetloom_packet::FlowRecord;
use packetloom_packet::verdict::VerdictCounts;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Serialize;
use serde_json::{Value, json};

use crate::offload::Unfinished;
use crate::{State, schema};

/// Flows shown at the end of a run.
const TOP_FLOWS: usize = 5;

/// What a run counted, and what its functions did.
pub struct Outcome {
    /// Every packet in exactly one counter.
    pub verdicts: VerdictCounts,
    /// Bytes on the wire of the packets received.
    pub wire_bytes: u64,
    /// The functions' reports, in the chain's order, with their names.
    pub functions: Vec<(&'static str, Box<dyn Report>)>,
    /// What the tables of the chain's flow definitions counted, with their names.
    pub flows: Vec<(String, Counts)>,
    /// The flow records with the most bytes.
    pub top_flows: TopFlows,
    /// Where and why the capture could not be read further.
    pub truncation: Option<Truncation>,
    /// What is to be said of each of several captures, where there is anything; `findings` has nothing then.
    pub files: Vec<FileReport>,
    /// What was odd about the packets that were read. Not part of the summary for machines: its counters have these packets.
    pub findings: Findings,
    /// Whether it was stopped before the end of its input.
    pub stopped: bool,
    /// Time from the first packet to the end.
    pub elapsed: Duration,
    /// What a device did of it, where one was used. Not part of the summary for machines, which is the same wherever packets are judged.
    pub shares: Option<Shares>,
    /// What of a device was still being opened or loaded when the run was over.
    pub unfinished: Unfinished,
    /// How often the chain became another one.
    pub reloads: Reloads,
    /// Transactions of rules that were asked for on the way and made.
    pub rule_changes: u64,
    /// What functions counted that are not part of the chain any more, in the order in which they left it: the last ones, 64 at most.
    pub replaced: Vec<Arc<Replaced>>,
    /// Functions that left it before these.
    pub replaced_before: u64,
    /// The state of all flows at the end, where it is to be saved.
    pub state: Option<State>,
    /// What went through each network interface, where there are any.
    pub interfaces: Vec<Interface>,
    /// What became of packets, records and logs, where the run did not wait for their outputs.
    pub written: Vec<Written>,
    /// What became of flow records that were exported.
    pub exported: Vec<Exported>,
    /// What was counted of flow records, where [`Outputs`](crate::Outputs) ask for it.
    pub reports: Option<packetloom_report::Reports>,
}

/// What became of flow records at one of the places that they are sent to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exported {
    /// Where.
    pub to: String,
    /// What they became: "ipfix", "netflow9", "parquet" or "kafka".
    pub protocol: &'static str,
    /// What became of them.
    pub counts: packetloom_export::Counts,
}

impl Exported {
    /// For people: counts that are not zero, and those of what was sent.
    pub fn rows(&self) -> Vec<(String, String)> {
        let packetloom_export::Counts {
            messages,
            files,
            records,
            bytes,
            not_sent,
            names_left_out,
            refused,
            reconnects,
            resent,
        } = self.counts;
        let (parts, number) = if self.is_parquet() { ("files", files) } else { ("messages", messages) };
        let mut rows = vec![
            ("records".into(), records.to_string()),
            (parts.into(), number.to_string()),
            ("bytes".into(), bytes.to_string()),
        ];
        let others = [
            ("records not sent", not_sent),
            ("names without room in a message", names_left_out),
            ("answers that nobody listens", refused),
            ("connections after the first", reconnects),
            ("messages sent again", resent),
        ];
        rows.extend(
            others
                .iter()
                .filter(|(_, count)| *count > 0)
                .map(|(name, count)| ((*name).into(), count.to_string())),
        );
        rows
    }

    /// For machines.
    fn summary(&self) -> ExportSummary {
        let packetloom_export::Counts {
            messages,
            files,
            records,
            bytes,
            not_sent,
            names_left_out,
            refused,
            reconnects,
            resent,
        } = self.counts;
        ExportSummary {
            to: self.to.clone(),
            protocol: self.protocol,
            messages,
            files: self.is_parquet().then_some(files),
            records,
            bytes,
            not_sent,
            names_left_out,
            refused,
            reconnects,
            resent,
        }
    }

    fn is_parquet(&self) -> bool {
        self.protocol == "parquet"
    }

    /// For machines, where there are any.
    fn summaries(all: &[Self]) -> Option<Vec<ExportSummary>> {
        (!all.is_empty()).then(|| all.iter().map(Self::summary).collect())
    }
}

/// What became of flow records that were exported, for machines.
#[derive(Serialize, JsonSchema)]
struct ExportSummary {
    /// Where they were sent: "udp://HOST:PORT", "tcp://HOST:PORT", "tls://HOST:PORT", "kafka://HOST:PORT/TOPIC", a file, or a folder.
    to: String,
    /// "ipfix", "netflow9", "parquet" or "kafka".
    protocol: &'static str,
    /// Messages that were sent; over TCP and TLS and to Kafka, that have arrived.
    messages: u64,
    /// Parquet files that are complete.
    #[serde(skip_serializing_if = "Option::is_none")]
    files: Option<u64>,
    /// Data records of flows in messages, rows of files, or messages to Kafka.
    records: u64,
    /// Bytes of the messages, or files.
    bytes: u64,
    /// Data records that were not sent, rows that were not written, or messages that Kafka did not acknowledge.
    not_sent: u64,
    /// In IPFIX, names of records for which messages had no room.
    names_left_out: u64,
    /// Over UDP: answers that nobody listens.
    refused: u64,
    /// Over TCP and TLS: connections after the first one.
    reconnects: u64,
    /// Over TCP and TLS: messages that were sent again.
    resent: u64,
}

/// What became of an output that a run did not wait for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// Its name.
    pub output: String,
    /// Packets or records that were left out.
    pub not_written: u64,
    /// Whether nothing was, and it did not fail.
    pub is_whole: bool,
}

impl Written {
    /// For machines: how much was left out of each output.
    fn counts(all: &[Self]) -> NamedCounts {
        let mut counts = NamedCounts::default();
        for Self { output, not_written, .. } in all {
            // Several may go to one device or pipe.
            match counts.0.iter_mut().find(|(name, _)| name == output) {
                Some((_, others)) => *others += not_written,
                None => counts.0.push((output.clone().into(), *not_written)),
            }
        }
        counts
    }
}

/// What went through a network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// What came in by it.
    pub ingress_counts: IngressCounts,
    /// What left by it, inline.
    pub egress_counts: Option<EgressCounts>,
}

impl Interface {
    /// All interfaces of a run, by number.
    pub(crate) fn all(
        ingress_counts: Vec<IngressCounts>,
        egress_counts: Option<Vec<EgressCounts>>,
    ) -> Vec<Self> {
        let egress_counts = egress_counts.into_iter().flatten().map(Some).chain(std::iter::repeat(None));
        let interface = |(ingress_counts, egress_counts)| Self { ingress_counts, egress_counts };
        ingress_counts.into_iter().zip(egress_counts).map(interface).collect()
    }

    /// For people: counts that are not zero, and those of packets that came and left.
    pub fn rows(&self) -> Vec<(String, String)> {
        let counts = &self.ingress_counts.counts;
        let mut rows = vec![("received".into(), counts.received.to_string())];
        let others = [
            ("missed: ring full", counts.dropped),
            ("left unread", self.ingress_counts.unread()),
            ("longer than 64 KiB", counts.oversized),
            ("not sound", counts.unsound),
            ("dropped by the driver", counts.dropped_by_driver),
        ];
        let mut add = |name: String, count: u64| {
            if count > 0 {
                rows.push((name, count.to_string()));
            }
        };
        others.into_iter().for_each(|(name, count)| add(name.into(), count));
        if let Some(egress_counts) = &self.egress_counts {
            for (reason, count) in egress_counts.not_sent() {
                add(format!("not sent: {}", reason.replace('_', " ")), count);
            }
            rows.push(("sent".into(), egress_counts.counts.sent.to_string()));
        }
        rows
    }

    /// For machines.
    pub(crate) fn summary(&self) -> InterfaceSummary {
        let IngressCounts { interface, backend, backend_reason, counts } = &self.ingress_counts;
        let egress_counts = self.egress_counts.as_ref();
        let of_driver = (*backend != PortBackend::AfPacket).then_some(counts.dropped_by_driver);
        InterfaceSummary {
            name: interface.to_string(),
            backend: backend.name(),
            backend_reason: backend_reason.clone(),
            dropped_by_driver: of_driver,
            received: counts.received,
            received_bytes: counts.received_bytes,
            segments: counts.segments,
            missed: counts.dropped,
            unread: self.ingress_counts.unread(),
            oversized: counts.oversized,
            unsound: counts.unsound,
            outgoing: counts.outgoing,
            sent: egress_counts.map(|egress_counts| egress_counts.counts.sent),
            sent_bytes: egress_counts.map(|egress_counts| egress_counts.counts.sent_bytes),
            not_sent: egress_counts.map(|egress_counts| egress_counts.not_sent().into_iter().collect()),
        }
    }
}

/// The summary of an interface.
#[derive(Serialize, JsonSchema)]
pub(crate) struct InterfaceSummary {
    /// Its name.
    name: String,
    /// How the kernel handed over packets: af_packet, af_xdp_native, af_xdp_generic.
    backend: &'static str,
    /// Why it was not what would be better, where that is so.
    #[serde(skip_serializing_if = "Option::is_none")]
    backend_reason: Option<String>,
    /// Packets that came in by it.
    received: u64,
    /// Their bytes on the wire.
    received_bytes: u64,
    /// Packets of the wire that the kernel had put together, counted one by one.
    segments: u64,
    /// Packets that the kernel left out since the ring was full.
    missed: u64,
    /// Packets that were in the ring when the run ended.
    unread: u64,
    /// Packets longer than 64 KiB.
    oversized: u64,
    /// Packets whose description by the kernel contradicts itself.
    unsound: u64,
    /// Packets that the machine itself sent, which are left out.
    outgoing: u64,
    /// With AF_XDP: packets that the driver's queues had no room for, by its own counters.
    #[serde(skip_serializing_if = "Option::is_none")]
    dropped_by_driver: Option<u64>,
    /// Inline: packets that left by it.
    #[serde(skip_serializing_if = "Option::is_none")]
    sent: Option<u64>,
    /// Inline: their bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    sent_bytes: Option<u64>,
    /// Inline: packets that could not leave, by reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    not_sent: Option<NamedCounts>,
}

/// The summary of a run, for machines.
#[derive(Serialize, JsonSchema)]
#[schemars(title = "Summary of a run")]
pub(crate) struct Summary {
    /// Packets received: passed and dropped.
    received: u64,
    /// Packets that passed.
    passed: u64,
    /// Packets that were dropped, by reason.
    dropped: NamedCounts,
    /// Bytes on the wire of the packets received.
    wire_bytes: u64,
    /// What the functions counted, in the order of the chain.
    functions: Vec<FunctionSummary>,
    /// Whether a capture ends within a packet.
    truncated: bool,
    /// Whether the run was stopped before the end of its input.
    stopped: bool,
    /// What the tables of the chain's flow definitions counted, by name.
    #[serde(skip_serializing_if = "Option::is_none")]
    flows: Option<Named<TableSummary>>,
    /// What went through each interface.
    #[serde(skip_serializing_if = "Option::is_none")]
    interfaces: Option<Vec<InterfaceSummary>>,
    /// Over interfaces, and where something was left out: packets, records or lines that were left out of each output.
    #[serde(skip_serializing_if = "Option::is_none")]
    not_written: Option<NamedCounts>,
    /// What became of flow records that were exported, where there are such.
    #[serde(skip_serializing_if = "Option::is_none")]
    exports: Option<Vec<ExportSummary>>,
    /// How often the chain became another one, where that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    reloads: Option<Reloads>,
    /// Transactions of rules that a control socket asked for and that were made, where there were such.
    #[serde(skip_serializing_if = "Option::is_none")]
    rule_changes: Option<u64>,
    /// What functions counted that are not part of the chain any more: the last 64.
    #[serde(skip_serializing_if = "Option::is_none")]
    replaced: Option<Vec<FunctionSummary>>,
    /// Functions that left the chain before these, whose counts are not kept, where there were such.
    #[serde(skip_serializing_if = "Option::is_none")]
    replaced_before: Option<u64>,
}

/// The summary of `packetloom meter`, for machines.
#[derive(Serialize, JsonSchema)]
#[schemars(title = "Summary of packetloom meter")]
pub(crate) struct MeterSummary {
    #[serde(flatten)]
    counted: meter::Summary,
    /// With --sample, packets that were not taken: they do not reach the meter.
    #[serde(skip_serializing_if = "Option::is_none")]
    not_sampled: Option<u64>,
    /// With --begin or --end, packets of the sample outside that time.
    #[serde(skip_serializing_if = "Option::is_none")]
    outside_time: Option<u64>,
    /// With a filter, packets of the sample, within that time, that do not match it.
    #[serde(skip_serializing_if = "Option::is_none")]
    not_matched: Option<u64>,
    /// Whether a capture ends within a packet.
    truncated: bool,
    /// What went through each interface.
    #[serde(skip_serializing_if = "Option::is_none")]
    interfaces: Option<Vec<InterfaceSummary>>,
    /// Over interfaces, and where something was left out: records or lines that were left out of each output.
    #[serde(skip_serializing_if = "Option::is_none")]
    not_written: Option<NamedCounts>,
    /// What became of flow records that were exported, where there are such.
    #[serde(skip_serializing_if = "Option::is_none")]
    exports: Option<Vec<ExportSummary>>,
}

/// What the tables of a flow definition counted.
#[derive(Serialize, JsonSchema)]
struct TableSummary {
    /// Flows that were found for the first time.
    created: u64,
    /// Flows that were silent for longer than the timeout.
    expired: u64,
    /// Flows that had to go for others.
    evicted: u64,
    /// Packets whose flow found no room.
    refused: u64,
}

impl From<Counts> for TableSummary {
    fn from(Counts { created, expired, evicted, refused }: Counts) -> Self {
        Self { created, expired, evicted, refused }
    }
}

/// What a function counted, with its name.
#[derive(Serialize)]
pub(crate) struct FunctionSummary {
    nf: &'static str,
    #[serde(flatten)]
    report: Value,
    /// Packets of the run until it left the chain, if it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    until_packet: Option<u64>,
}

impl JsonSchema for FunctionSummary {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "FunctionSummary".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let until = json!({
            "type": "integer",
            "minimum": 0,
            "description": "Packets of the run until the function left the chain.",
        });
        let functions = FUNCTIONS.iter().map(|function| {
            let mut schema = schema::named(function, function.report, generator);
            schema["properties"]["until_packet"] = until.clone();
            schema
        });
        json_schema!({ "oneOf": functions.collect::<Vec<_>>() })
    }
}

/// How often a chain became another one during a run, and how often it did not since that one could not be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Reloads {
    /// It did.
    pub done: u64,
    /// It did not.
    pub refused: u64,
}

/// A function that left the chain during a run.
pub struct Replaced {
    /// Its name.
    pub nf: &'static str,
    /// Packets of the run until then.
    pub packets: u64,
    /// What it counted, for machines.
    pub summary: Value,
    /// The same for people.
    pub rows: Vec<(String, String)>,
}

impl Replaced {
    pub(crate) fn new(nf: &'static str, packets: u64, report: &dyn Report) -> Self {
        Self { nf, packets, summary: report.json_of_replaced(), rows: report.rows() }
    }
}

/// Who judged packets by the functions that a device has kernels for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shares {
    /// Whether the run was over before a device was there, if there is one.
    pub is_late: bool,
    /// Packets that devices judged.
    pub device: u64,
    /// The same of each device by its name.
    pub devices: Vec<(String, u64)>,
    /// Of these, and of those that came back for software to look at, the ones that a kernel judged that stays.
    pub resident: u64,
    /// Packets that were judged on this machine's cores: since that was better, since the device had failed, or since their headers are
    /// longer than what it looks at.
    pub here: u64,
    /// How often the device failed.
    pub faults: u64,
    /// Batches that were with devices at a time, at most.
    pub away: usize,
    /// How often rules were loaded onto it, and the longest time from when they were wanted to when they were there.
    pub loads: u64,
    /// See above.
    pub longest_load: Duration,
    /// How often the state that devices keep was copied while packets came, and the longest time that they waited for one on this machine: until
    /// the device was told to copy, or, where it has no room for that, until the copy was here.
    pub copies: u64,
    /// See above.
    pub longest_copy: Duration,
    /// How often state of flows moved between devices and cores, and the longest time that packets waited for that.
    pub moves: u64,
    /// See above.
    pub longest_move: Duration,
}

/// The flow records with the most bytes in both directions together.
#[derive(Clone, Debug, Default)]
pub struct TopFlows(BinaryHeap<Reverse<Ranked>>);

#[derive(Clone, Debug)]
struct Ranked(FlowRecord);

impl Ranked {
    /// More bytes first; what is left only makes the order total.
    fn rank(&self) -> impl Ord {
        let flow = &self.0;
        let bytes = flow.forward.bytes + flow.reverse.bytes;
        let ends = (flow.source, flow.destination, flow.source_port, flow.destination_port);
        (bytes, flow.forward.packets, ends, flow.vlan())
    }
}

impl PartialEq for Ranked {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Ranked {}

impl PartialOrd for Ranked {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Ranked {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.rank().cmp(&other.rank())
    }
}

impl TopFlows {
    /// Takes a record into account.
    pub fn add(&mut self, record: &FlowRecord) {
        let bytes = |record: &FlowRecord| record.forward.bytes + record.reverse.bytes;
        if self.0.len() == TOP_FLOWS {
            if self.0.peek().is_some_and(|Reverse(least)| bytes(record) < bytes(&least.0)) {
                return;
            }
            self.0.push(Reverse(Ranked(record.clone())));
            self.0.pop();
        } else {
            self.0.push(Reverse(Ranked(record.clone())));
        }
    }

    /// Takes another worker's flows into account.
    pub fn merge(&mut self, other: &Self) {
        for Reverse(Ranked(record)) in &other.0 {
            self.add(record);
        }
    }

    /// The records, most bytes first.
    pub fn into_sorted(self) -> Vec<FlowRecord> {
        self.0.into_sorted_vec().into_iter().map(|Reverse(Ranked(record))| record).collect()
    }
}

impl Outcome {
    /// The summary for machines. Times and rates are left out: the same packets give the same summary.
    pub fn json(&self) -> Value {
        let function = |nf: &'static str, report, until_packet| FunctionSummary { nf, report, until_packet };
        let over_interfaces = !self.interfaces.is_empty();
        let tells_written = over_interfaces || self.written.iter().any(|written| !written.is_whole);
        let Reloads { done, refused } = self.reloads;
        let reloaded = done + refused > 0;
        summary::value(&Summary {
            received: self.verdicts.received(),
            passed: self.verdicts.passed,
            dropped: self.verdicts.dropped().map(|(reason, count)| (reason.name(), count)).collect(),
            wire_bytes: self.wire_bytes,
            functions: self.functions.iter().map(|(nf, report)| function(nf, report.json(), None)).collect(),
            truncated: self.truncation.is_some(),
            stopped: self.stopped,
            flows: (!self.flows.is_empty())
                .then(|| self.flows.iter().map(|(name, counts)| (name.clone(), (*counts).into())).collect()),
            interfaces: over_interfaces.then(|| self.interfaces.iter().map(Interface::summary).collect()),
            not_written: tells_written.then(|| Written::counts(&self.written)),
            exports: Exported::summaries(&self.exported),
            reloads: reloaded.then_some(self.reloads),
            rule_changes: (self.rule_changes > 0).then_some(self.rule_changes),
            replaced: reloaded.then(|| {
                let replaced = self.replaced.iter();
                replaced.map(|old| function(old.nf, old.summary.clone(), Some(old.packets))).collect()
            }),
            replaced_before: (self.replaced_before > 0).then_some(self.replaced_before),
        })
    }

    /// The summary of a chain with a meter, as `packetloom meter` has it; of others, there is nothing in it.
    pub fn meter_json(&self) -> Value {
        let over_interfaces = !self.interfaces.is_empty();
        let tells_written = over_interfaces || self.written.iter().any(|written| !written.is_whole);
        let Some(meter) = self.report_of::<MeterReport>() else { return Value::Null };
        let filter = self.report_of::<FilterReport>();
        summary::value(&MeterSummary {
            counted: meter.summary(),
            not_sampled: self.report_of::<SampleReport>().map(|sample| sample.not_sampled),
            outside_time: filter.and_then(|filter| filter.outside_time),
            not_matched: filter.map(|filter| filter.not_matched),
            truncated: self.truncation.is_some(),
            interfaces: over_interfaces.then(|| self.interfaces.iter().map(Interface::summary).collect()),
            not_written: tells_written.then(|| Written::counts(&self.written)),
            exports: Exported::summaries(&self.exported),
        })
    }

    /// The first report of this kind.
    fn report_of<T: Report>(&self) -> Option<&T> {
        let mut reports = self.functions.iter().map(|(_, report)| &**report as &dyn Any);
        reports.find_map(|report| report.downcast_ref())
    }

    /// Adds what the tables of a flow definition counted that is not used any more, or was not for a time.
    pub(crate) fn add_counts(&mut self, name: String, counts: Counts) {
        match self.flows.iter_mut().find(|(other, _)| *other == name) {
            Some((_, own)) => *own = *own + counts,
            None => self.flows.push((name, counts)),
        }
    }
}

impl std::fmt::Debug for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Outcome").field("verdicts", &self.verdicts).finish_non_exhaustive()
    }
}
