//! `filter`: packets that match an expression in tcpdump's language pass, all others are dropped; so are packets outside a period, if one is given.
//!
//! The language is that of the crate `packetloom-filter`, a subset of pcap-filter(7). An expression is about packets as they arrive: a
//! chain with a function that rewrites headers before a filter is refused. A period is by the packets' times, which those of interfaces have, too:
//! its beginning is part of it, its end is not.
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
use crate::units::Instant;
use crate::{Form, Function, FunctionSpec, Oracle, Report, Standalone, summary};

/// A filter ready to run.
#[derive(Clone, Debug)]
pub struct Filter {
    filter: Arc<packetloom_filter::Filter>,
    period: Option<Period>,
}

/// A span of time that begins or ends, or both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Period {
    begin: Option<Instant>,
    /// Not part of it.
    end: Option<Instant>,
}

impl Period {
    /// None where it has neither.
    fn new(begin: Option<Instant>, end: Option<Instant>) -> Result<Option<Self>, String> {
        if let (Some(begin), Some(end)) = (begin, end)
            && begin >= end
        {
            return Err(format!(
                "it begins at {begin} and ends at {end}; expected an end behind its beginning"
            ));
        }
        let is_bound = begin.is_some() || end.is_some();
        Ok(is_bound.then_some(Self { begin, end }))
    }

    /// Whether a time in nanoseconds since 1970 is in it.
    fn has(self, nanos: u64) -> bool {
        self.begin.is_none_or(|begin| begin.as_nanos() <= nanos)
            && self.end.is_none_or(|end| nanos < end.as_nanos())
    }
}

impl FunctionSpec for Filter {
    fn name(&self) -> &'static str {
        "filter"
    }

    fn resume(&mut self, old: &dyn FunctionSpec) -> bool {
        (old as &dyn Any)
            .downcast_ref::<Self>()
            .is_some_and(|old| self.filter.text() == old.filter.text() && self.period == old.period)
    }

    fn describe(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if let Some(Period { begin, end }) = self.period {
            let begin = begin.map(|begin| format!(" from {begin}")).unwrap_or_default();
            let end = end.map(|end| format!(" before {end}")).unwrap_or_default();
            lines.push(format!("packets pass whose time is{begin}{end}"));
        }
        if !self.filter.text().trim().is_empty() || lines.is_empty() {
            lines.push(format!("packets pass that match: {}", self.filter));
        }
        lines
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
        Box::new(cpu::FilterCpu::new(Arc::clone(&self.filter), self.period))
    }

    fn oracle(&self) -> Box<dyn Oracle> {
        Box::new(oracle::FilterOracle::new(Arc::clone(&self.filter), self.period))
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
    /// Packets outside the period, of which it is not known whether they match; where there is one.
    pub outside_time: Option<u64>,
}

impl FilterReport {
    fn new(period: Option<Period>) -> Self {
        Self { outside_time: period.map(|_| 0), ..Self::default() }
    }
}

/// What it counted, for machines.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Summary {
    /// Packets that match.
    matched: u64,
    /// Packets that do not.
    not_matched: u64,
    /// With begin or end, packets outside that time, whether they match or not.
    #[serde(skip_serializing_if = "Option::is_none")]
    outside_time: Option<u64>,
}

impl Report for FilterReport {
    fn merge(&mut self, other: &dyn Report) {
        let Some(other) = (other as &dyn Any).downcast_ref::<Self>() else { return };
        self.matched += other.matched;
        self.not_matched += other.not_matched;
        if let Some(others) = other.outside_time {
            *self.outside_time.get_or_insert_default() += others;
        }
    }

    fn json(&self) -> serde_json::Value {
        let Self { matched, not_matched, outside_time } = *self;
        summary::value(&Summary { matched, not_matched, outside_time })
    }

    fn rows(&self) -> Vec<(String, String)> {
        let mut rows = vec![
            ("matched".into(), self.matched.to_string()),
            ("not matched".into(), self.not_matched.to_string()),
        ];
        rows.extend(self.outside_time.map(|count| ("outside the time".into(), count.to_string())));
        rows
    }
}
