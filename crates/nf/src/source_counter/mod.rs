//! `source-counter`: packets, IP bytes and flows of each source.
//!
//! A flow counts once, for the source of its first packet that the function sees; what a flow is, and when it is a new one again, a
//! second definition says, by 5-tuple (`sessions`).
//!
//! - Shape: three words of the source's entry: packets, IP bytes, flows; none of the flow's, where only the function's bit counts.
//! - Verdict: always pass.
//! - At the end: all packets, bytes and flows, how many sources are still held, and those of them with the most bytes and with
//!   the most flows.

mod config;
mod cpu;
mod oracle;

use std::any::Any;

use bytemuck::{NoUninit, Pod, Zeroable};
use packetloom_memory::LaidOut;
use schemars::JsonSchema;
use serde::Serialize;

pub use self::config::Config;
use crate::flows::{
    By, DeviceKernel, Facts, FactsKept, FlowFacts, FlowFunction, FlowGroup, FlowName, FlowOracle, KernelSpec,
    Parameters, StateAt, StateSpec, Text, Top, adopt_counts, state_words,
};
use crate::{Form, FunctionSpec, PerFlow, Report, is_equal, summary};

/// A counter of sources ready to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceCounter {
    flows: Option<String>,
    sessions: Option<String>,
}

packetloom_memory::layout! {
    /// What it keeps for a source, and counts of all.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
    pub struct SourceCounted {
        /// Packets.
        pub packets: u64,
        /// Their IP bytes.
        pub bytes: u64,
        /// Flows that it sent the first packet of.
        pub flows: u64,
    }
}

packetloom_memory::layout! {
    /// What its step is given.
    #[derive(Clone, Copy, NoUninit)]
    struct SourceCounterParameters {
        /// Says of a packet that it begins a flow.
        note: u32,
    }
}

impl FunctionSpec for SourceCounter {
    fn name(&self) -> &'static str {
        "source-counter"
    }

    fn resume(&mut self, old: &dyn FunctionSpec) -> bool {
        is_equal(self, old)
    }

    fn adopt(&mut self, words: &mut [u64]) -> bool {
        adopt_counts(words)
    }

    fn describe(&self) -> Vec<String> {
        vec!["packets, IP bytes and flows of each source".into()]
    }

    fn form(&self) -> Form<'_> {
        Form::PerFlow(self)
    }
}

impl PerFlow for SourceCounter {
    fn keeps(&self) -> StateSpec {
        StateSpec { flows: self.flows.clone(), by: &[By::Source], words: state_words::<SourceCounted>() }
    }

    fn remembers(&self) -> Option<StateSpec> {
        Some(StateSpec { flows: self.sessions.clone(), by: &[By::FiveTuple], words: 0 })
    }

    fn facts_kept(&self) -> FactsKept {
        FactsKept { counts: true, ..FactsKept::default() }
    }

    fn facts(&self, _now: u64) -> Facts<'_> {
        Box::new(|words| Some(FlowFacts { counts: words.first_chunk().copied(), ..FlowFacts::default() }))
    }

    fn function(&self, at: StateAt) -> Box<dyn FlowFunction> {
        Box::new(cpu::SourceCounterCpu::new(at))
    }

    fn oracle(&self) -> Box<dyn FlowOracle> {
        Box::new(oracle::SourceCounterOracle::default())
    }

    fn kernel(&self) -> Option<DeviceKernel> {
        const TEXTS: &[Text] = &[Text {
            name: "source_counter",
            source: include_str!("source_counter.kernel.c"),
            constants: &[],
        }];
        Some(DeviceKernel::new(KernelSpec {
            state: Some(SourceCounted::LAYOUT),
            // The engine says which bit it is.
            parameters: Parameters::of(&SourceCounterParameters { note: 0 }),
            totals: Some(SourceCounted::LAYOUT),
            flow_group: FlowGroup::Own,
            ..KernelSpec::new("source_counter", TEXTS)
        }))
    }
}

/// What a counter of sources counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceCounterReport {
    /// Packets, IP bytes and flows of all sources.
    pub all: SourceCounted,
    /// Sources that are still held.
    pub sources: u64,
    /// Those of them with the most bytes.
    pub top: Top<3>,
    /// Those of them with the most flows.
    pub top_by_flows: Top<3>,
}

/// In the order of [`SourceCounted`].
const NAMES: [&str; 3] = ["packets", "bytes", "flows"];

impl SourceCounterReport {
    /// The report on all packets, and on the sources that are held.
    fn new<I>(all: SourceCounted, held: impl Fn() -> I) -> Self
    where
        I: Iterator<Item = (FlowName, SourceCounted)>,
    {
        let counts = |(name, SourceCounted { packets, bytes, flows })| (name, [packets, bytes, flows]);
        let top = |by| Top::new(NAMES, by, held().map(counts));
        Self { all, sources: held().count() as u64, top: top(1), top_by_flows: top(2) }
    }
}

/// What it counted, for machines.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Summary {
    /// Packets of all sources.
    packets: u64,
    /// Their IP bytes.
    bytes: u64,
    /// Their flows.
    flows: u64,
    /// Sources that are still held.
    sources: u64,
    /// Those of them with the most bytes.
    top: Top<3>,
    /// Those of them with the most flows.
    top_by_flows: Top<3>,
}

impl Report for SourceCounterReport {
    fn merge(&mut self, other: &dyn Report) {
        let Some(other) = (other as &dyn Any).downcast_ref::<Self>() else { return };
        self.all.packets += other.all.packets;
        self.all.bytes += other.all.bytes;
        self.all.flows += other.all.flows;
        self.sources += other.sources;
        self.top.merge(&other.top);
        self.top_by_flows.merge(&other.top_by_flows);
    }

    fn json(&self) -> serde_json::Value {
        let SourceCounted { packets, bytes, flows } = self.all;
        let (top, top_by_flows) = (self.top.clone(), self.top_by_flows.clone());
        summary::value(&Summary { packets, bytes, flows, sources: self.sources, top, top_by_flows })
    }

    fn rows(&self) -> Vec<(String, String)> {
        let SourceCounted { packets, bytes, flows } = self.all;
        let counts =
            [("packets", packets), ("IP bytes", bytes), ("flows", flows), ("sources held", self.sources)];
        let counts = counts.into_iter().map(|(name, count)| (name.to_owned(), count.to_string()));
        let by_flows = self.top_by_flows.rows().map(|(name, counts)| (format!("most flows: {name}"), counts));
        counts.chain(self.top.rows()).chain(by_flows).collect()
    }
}
