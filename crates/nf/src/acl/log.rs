//! The log: a line for each packet that a rule with `log` decides, as far as a token bucket lets it.
//!
//! One bucket for all rules of a list and all workers, and time is that of the packets: the same packets give the same lines.

use std::path::PathBuf;
use std::sync::Arc;

use packetloom_export::json;
use packetloom_packet::PacketRecord;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use super::{AclReport, List};
use crate::units::Rate;
use crate::{Log, Report};

/// Where the log goes, and how much of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LogSettings {
    pub(super) path: PathBuf,
    pub(super) rate: Rate,
    pub(super) burst: u32,
}

/// A token bucket in packet time, full at first. Credit is counted in nanoseconds times the rate's count, so nothing is
/// rounded.
struct Bucket {
    rate: Rate,
    /// Credit at most.
    full: u128,
    credit: u128,
    /// The time up to which credit was given.
    until: u64,
}

/// A packet that is late by no more finds time where it was. When time goes back further, the clock was set: credit
/// is given from there on, none for the step itself.
const LATE_NANOS: u64 = 1_000_000_000;

impl Bucket {
    fn new(rate: Rate, burst: u32) -> Self {
        let full = u128::from(rate.parts().1) * u128::from(burst);
        Self { rate, full, credit: full, until: 0 }
    }

    /// Takes a token, if there is one at `time`.
    fn take(&mut self, time: u64) -> bool {
        let (count, cost) = self.rate.parts();
        let elapsed = time.saturating_sub(self.until);
        self.credit = self.full.min(self.credit + u128::from(elapsed) * u128::from(count));
        if elapsed > 0 || self.until - time > LATE_NANOS {
            self.until = time;
        }
        let left = self.credit.checked_sub(cost.into());
        self.credit = left.unwrap_or(self.credit);
        left.is_some()
    }
}

/// Lines that were written, and those that were not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct LogCounts {
    /// Lines that were written.
    pub(super) lines: u64,
    /// Lines that the rate left out.
    pub(super) suppressed: u64,
}

/// The log of one run.
pub(super) struct AclLog {
    list: Arc<List>,
    bucket: Bucket,
    counts: LogCounts,
    /// Lines suppressed since the last one that was written.
    since: u64,
}

impl AclLog {
    pub(super) fn new(list: Arc<List>, settings: &LogSettings) -> Self {
        let bucket = Bucket::new(settings.rate, settings.burst);
        Self { list, bucket, counts: LogCounts::default(), since: 0 }
    }
}

impl Log for AclLog {
    fn log(&mut self, lines: &mut String, rule: u32, number: u64, packet: &PacketRecord) {
        if !self.list.is_logged(&self.list.rules.rules[rule as usize]) {
            return;
        }
        if !self.bucket.take(packet.time.as_nanos()) {
            self.counts.suppressed += 1;
            self.since += 1;
            return;
        }
        self.counts.lines += 1;
        let mut field = |name: &str, value: &dyn std::fmt::Display| {
            // Writing to a String cannot fail.
            let _ = std::fmt::Write::write_fmt(lines, format_args!("{name}{value}"));
        };
        // As other programs number the frames of a capture.
        field("{\"frame\":", &(number + 1));
        let text = |text: &str| Value::from(text);
        let position = rule as usize;
        let rule = &self.list.rules.rules[position];
        field(",\"action\":", &text(self.list.action(position).name()));
        field(",\"rule\":", &position);
        field(",\"line\":", &rule.line);
        if let Some(id) = &rule.id {
            field(",\"id\":", &text(id));
        }
        if let Some(comment) = &rule.comment {
            field(",\"comment\":", &text(comment));
        }
        if self.since > 0 {
            field(",\"suppressed\":", &std::mem::take(&mut self.since));
        }
        lines.push(',');
        json::write_packet(lines, packet);
        lines.push_str("}\n");
    }

    fn finish(&mut self, lines: &mut String) {
        if self.since > 0 {
            lines.push_str(&format!("{{\"suppressed\":{}}}\n", std::mem::take(&mut self.since)));
        }
    }

    fn report(&self) -> Box<dyn Report> {
        Box::new(AclReport { log: self.counts, ..AclReport::new(self.list.clone()) })
    }
}
