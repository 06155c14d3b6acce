//! What a run counted.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use packetloom_io::capture::{FileReport, Findings, Truncation};
use packetloom_io::port::{Arrivals, Departures, PortBackend};
use packetloom_nf::Report;
use packetloom_nf::flows::Counts;
use packetloom_packet::FlowRecord;
use packetloom_packet::verdict::VerdictCounts;
use serde_json::{Map, Value, json};

use crate::State;

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
    /// How often the chain became another one.
    pub reloads: Reloads,
    /// What functions counted that are not part of the chain any more, in the order in which they left it.
    pub replaced: Vec<Replaced>,
    /// The state of all flows at the end, where it is to be saved.
    pub state: Option<State>,
    /// What went through each network interface, where there are any.
    pub interfaces: Vec<Interface>,
    /// What became of packets, records and logs, where the run did not wait for their outputs.
    pub written: Vec<Written>,
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
    pub fn json(all: &[Self]) -> Value {
        let mut counts = Map::new();
        for Self { output, not_written, .. } in all {
            // Several may go to one device or pipe.
            let others = counts.get(output).and_then(Value::as_u64).unwrap_or(0);
            counts.insert(output.clone(), (others + not_written).into());
        }
        Value::Object(counts)
    }
}

/// What went through a network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// What came in by it.
    pub arrivals: Arrivals,
    /// What left by it, inline.
    pub departures: Option<Departures>,
}

impl Interface {
    /// All interfaces of a run, by number.
    pub(crate) fn all(arrivals: Vec<Arrivals>, departures: Option<Vec<Departures>>) -> Vec<Self> {
        let departures = departures.into_iter().flatten().map(Some).chain(std::iter::repeat(None));
        let interface = |(arrivals, departures)| Self { arrivals, departures };
        arrivals.into_iter().zip(departures).map(interface).collect()
    }

    /// For people: counts that are not zero, and those of packets that came and left.
    pub fn rows(&self) -> Vec<(String, String)> {
        let counts = &self.arrivals.counts;
        let mut rows = vec![("received".into(), counts.received.to_string())];
        let others = [
            ("missed: ring full", counts.dropped),
            ("left unread", self.arrivals.unread()),
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
        if let Some(departures) = &self.departures {
            for (reason, count) in departures.not_sent() {
                add(format!("not sent: {}", reason.replace('_', " ")), count);
            }
            rows.push(("sent".into(), departures.counts.sent.to_string()));
        }
        rows
    }

    /// For machines.
    pub fn json(&self) -> Value {
        let Arrivals { interface, backend, backend_reason, counts } = &self.arrivals;
        let mut value = json!({
            "name": interface,
            "backend": backend.name(),
            "received": counts.received,
            "received_bytes": counts.received_bytes,
            "segments": counts.segments,
            "missed": counts.dropped,
            "unread": self.arrivals.unread(),
            "oversized": counts.oversized,
            "unsound": counts.unsound,
            "outgoing": counts.outgoing,
        });
        if let Some(reason) = backend_reason {
            value["backend_reason"] = reason.as_str().into();
        }
        if *backend != PortBackend::AfPacket {
            value["dropped_by_driver"] = counts.dropped_by_driver.into();
        }
        if let Some(departures) = &self.departures {
            value["sent"] = departures.counts.sent.into();
            value["sent_bytes"] = departures.counts.sent_bytes.into();
            let not_sent = departures.not_sent().into_iter();
            value["not_sent"] =
                not_sent.map(|(reason, count)| (reason.into(), count.into())).collect::<Map<_, _>>().into();
        }
        value
    }
}

/// How often a chain became another one during a run, and how often it did not since that one could not be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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
    /// What it counted.
    pub report: Box<dyn Report>,
}

/// Who judged packets by the functions that a device has kernels for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shares {
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
    /// How often rules were loaded onto it, and the longest time from when they were wanted to when they were there.
    pub loads: u64,
    /// See above.
    pub longest_load: Duration,
    /// How often the state that devices keep was copied while packets came, and the longest time that they waited for one on this machine: until
    /// the device was told to copy, or, where it has no room for that, until the copy was here.
    pub copies: u64,
    /// See above.
    pub longest_copy: Duration,
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
        (bytes, flow.forward.packets, flow.source, flow.destination, flow.source_port, flow.destination_port)
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
            self.0.push(Reverse(Ranked(*record)));
            self.0.pop();
        } else {
            self.0.push(Reverse(Ranked(*record)));
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
        let dropped: Map<_, _> =
            self.verdicts.dropped().map(|(reason, count)| (reason.name().into(), count.into())).collect();
        let function = |nf: &str, report: &dyn Report| {
            let mut object = Map::new();
            object.insert("nf".into(), nf.into());
            if let Value::Object(fields) = report.json() {
                object.extend(fields);
            }
            object
        };
        let functions: Vec<_> = self.functions.iter().map(|(nf, report)| function(nf, &**report)).collect();
        let mut value = json!({
            "received": self.verdicts.received(),
            "passed": self.verdicts.passed,
            "dropped": dropped,
            "wire_bytes": self.wire_bytes,
            "functions": functions,
            "truncated": self.truncation.is_some(),
            "stopped": self.stopped,
        });
        if !self.flows.is_empty() {
            let flows = self.flows.iter().map(|(name, Counts { created, expired, evicted, refused })| {
                let counts =
                    json!({ "created": created, "expired": expired, "evicted": evicted, "refused": refused });
                (name.clone(), counts)
            });
            value["flows"] = Value::Object(flows.collect());
        }
        if !self.interfaces.is_empty() {
            value["interfaces"] = self.interfaces.iter().map(Interface::json).collect();
        }
        if !self.interfaces.is_empty() {
            value["not_written"] = Written::json(&self.written);
        }
        let Reloads { done, refused } = self.reloads;
        if done + refused > 0 {
            value["reloads"] = json!({ "done": done, "refused": refused });
            let replaced = self.replaced.iter().map(|Replaced { nf, packets, report }| {
                let mut object = function(nf, &**report);
                object.insert("until_packet".into(), (*packets).into());
                object
            });
            value["replaced"] = replaced.collect();
        }
        value
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
