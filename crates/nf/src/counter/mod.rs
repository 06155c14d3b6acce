//! `counter`: packets and IP bytes of each flow.
//!
//! - Shape: two words of the flow's entry: packets, IP bytes, of both directions together.
//! - Verdict: always pass.
//! - At the end: all packets and bytes, and the flows with the most bytes of those that are still held.

mod config;
mod cpu;
mod oracle;

use std::any::Any;

use packetloom_memory::LaidOut;
use schemars::JsonSchema;
use serde::Serialize;

pub use self::config::Config;
use crate::flows::{
    By, DeviceKernel, Facts, FactsKept, FlowFacts, FlowFunction, FlowGroup, FlowName, FlowOracle, KernelSpec,
    StateAt, StateSpec, Tally, Text, Top, adopt_counts, state_words,
};
use crate::{Form, FunctionSpec, PerFlow, Report, is_equal, summary};

/// A counter ready to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counter {
    flows: Option<String>,
}

packetloom_memory::layout! {
    /// What the packets of a flow do to what it keeps.
    #[allow(dead_code, reason = "kernels alone have it")]
    struct CounterSummary {
        packets: u64,
        bytes: u64,
        /// The bytes of each packet, or 0 where they differ.
        each: u64,
    }
}

impl FunctionSpec for Counter {
    fn name(&self) -> &'static str {
        "counter"
    }

    fn resume(&mut self, old: &dyn FunctionSpec) -> bool {
        is_equal(self, old)
    }

    fn adopt(&mut self, words: &mut [u64]) -> bool {
        adopt_counts(words)
    }

    fn describe(&self) -> Vec<String> {
        vec!["packets and IP bytes of each flow".into()]
    }

    fn form(&self) -> Form<'_> {
        Form::PerFlow(self)
    }
}

impl PerFlow for Counter {
    fn keeps(&self) -> StateSpec {
        let by = &[By::FiveTuple, By::Source, By::Initiator, By::Connection];
        StateSpec { flows: self.flows.clone(), by, words: state_words::<Tally>() }
    }

    fn facts_kept(&self) -> FactsKept {
        FactsKept { counts: true, ..FactsKept::default() }
    }

    fn facts(&self, _now: u64) -> Facts<'_> {
        Box::new(|words| Some(FlowFacts { counts: words.first_chunk().copied(), ..FlowFacts::default() }))
    }

    fn function(&self, at: StateAt) -> Box<dyn FlowFunction> {
        Box::new(cpu::CounterCpu::new(at))
    }

    fn oracle(&self) -> Box<dyn FlowOracle> {
        Box::new(oracle::CounterOracle::default())
    }

    fn kernel(&self) -> Option<DeviceKernel> {
        const TEXTS: &[Text] =
            &[Text { name: "counter", source: include_str!("counter.kernel.c"), constants: &[] }];
        Some(DeviceKernel::new(KernelSpec {
            state: Some(Tally::LAYOUT),
            totals: Some(Tally::LAYOUT),
            flow_group: FlowGroup::Summarized(Some(CounterSummary::LAYOUT)),
            ..KernelSpec::new("counter", TEXTS)
        }))
    }
}

/// The flows with the most bytes, of flows with their packets and bytes.
fn top(flows: impl Iterator<Item = (FlowName, [u64; 2])>) -> Top<2> {
    Top::new(["packets", "bytes"], 1, flows)
}

/// What a counter counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CounterReport {
    /// Packets.
    pub packets: u64,
    /// Their IP bytes.
    pub bytes: u64,
    /// The flows with the most bytes.
    pub top: Top<2>,
}

/// What it counted, for machines.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Summary {
    /// Packets of all flows.
    packets: u64,
    /// Their IP bytes.
    bytes: u64,
    /// The flows with the most bytes.
    top: Top<2>,
}

impl Report for CounterReport {
    fn merge(&mut self, other: &dyn Report) {
        let Some(other) = (other as &dyn Any).downcast_ref::<Self>() else { return };
        self.packets += other.packets;
        self.bytes += other.bytes;
        self.top.merge(&other.top);
    }

    fn json(&self) -> serde_json::Value {
        summary::value(&Summary { packets: self.packets, bytes: self.bytes, top: self.top.clone() })
    }

    fn rows(&self) -> Vec<(String, String)> {
        let counts =
            [("packets".into(), self.packets.to_string()), ("IP bytes".into(), self.bytes.to_string())];
        counts.into_iter().chain(self.top.rows()).collect()
    }
}
