//! The log: a line for each packet that a rule with `log` decides, as far as a token bucket lets it.
//!
//! One bucket for all rules of a list and all workers, and time is that of the packets: the same packets give the same lines.

use std::any::Any;
use std::sync::Arc;

use packetloom_export::json;
use packetloom_packet::PacketRecord;
use serde_json::Value;

use super::{AclReport, List};
use crate::log_rate::{Bucket, LogCounts, LogSettings};
use crate::{Log, Offsets, Report};

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
    fn go_on(&mut self, old: &dyn Log) {
        if let Some(Self { bucket, counts, since, .. }) = (old as &dyn Any).downcast_ref() {
            (self.bucket, self.counts, self.since) = (bucket.clone(), *counts, *since);
        }
    }

    fn log(
        &mut self,
        lines: &mut String,
        rule: u32,
        number: u64,
        packet: &PacketRecord,
        _offsets: Option<&Offsets>,
    ) {
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
        if let Some(line) = super::line(rule) {
            field(",\"line\":", &line);
        }
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
