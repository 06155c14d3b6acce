//! `filter`: packets that match an expression in tcpdump's language pass, all others are dropped.
//!
//! The language is that of the crate `packetloom-filter`, a subset of pcap-filter(7). An expression is about packets as they arrive: a
//! chain with a function that rewrites headers before a filter is refused.
//!
//! - Shape: no state.
//! - Verdict: pass, or drop with [`DropReason::Filter`].

mod config;
mod cpu;
mod oracle;

use std::any::Any;
use std::sync::Arc;

use packetloom_packet::{DropReason, Verdict};
use schemars::JsonSchema;
use serde::Serialize;

pub use self::config::Config;
use crate::{Form, Function, FunctionSpec, Oracle, Report, Standalone, summary};

/// A filter ready to run.
#[derive(Clone, Debug)]
pub struct Filter(Arc<packetloom_filter::Filter>);

impl FunctionSpec for Filter {
    fn name(&self) -> &'static str {
        "filter"
    }

    fn resume(&mut self, old: &dyn FunctionSpec) -> bool {
        (old as &dyn Any).downcast_ref::<Self>().is_some_and(|old| self.0.text() == old.0.text())
    }

    fn describe(&self) -> Vec<String> {
        vec![format!("packets pass that match: {}", self.0)]
    }

    fn reads_frames(&self) -> bool {
        true
    }

    fn form(&self) -> Form<'_> {
        Form::Standalone(self)
    }
}

impl Standalone for Filter {
    fn function(&self) -> Box<dyn Function> {
        Box::new(cpu::FilterCpu::new(Arc::clone(&self.0)))
    }

    fn oracle(&self) -> Box<dyn Oracle> {
        Box::new(oracle::FilterOracle::new(Arc::clone(&self.0)))
    }
}

/// What becomes of packets that do not match.
const DROP: Verdict = Verdict::Drop(DropReason::Filter);

/// What a filter counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FilterReport {
    /// Packets that match.
    pub matched: u64,
    /// Packets that do not.
    pub not_matched: u64,
}

/// What it counted, for machines.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Summary {
    /// Packets that match.
    matched: u64,
    /// Packets that do not.
    not_matched: u64,
}

impl Report for FilterReport {
    fn merge(&mut self, other: &dyn Report) {
        let Some(other) = (other as &dyn Any).downcast_ref::<Self>() else { return };
        self.matched += other.matched;
        self.not_matched += other.not_matched;
    }

    fn json(&self) -> serde_json::Value {
        let Self { matched, not_matched } = *self;
        summary::value(&Summary { matched, not_matched })
    }

    fn rows(&self) -> Vec<(String, String)> {
        vec![
            ("matched".into(), self.matched.to_string()),
            ("not matched".into(), self.not_matched.to_string()),
        ]
    }
}
