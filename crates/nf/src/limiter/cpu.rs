//! The fast implementation, for batches.

use packetloom_packet::{Batch, DropReason, Verdict};

use super::{LimiterReport, LimiterTotals};
use crate::bucket::{BucketTerms, Level};
use crate::flows::{self, FlowFunction, Flows, Seen, StateAt, Visit};
use crate::units::Unit;
use crate::{Records, Report};

pub(super) struct LimiterCpu {
    at: StateAt,
    parameters: BucketTerms,
    unit: Unit,
    report: LimiterReport,
}

impl LimiterCpu {
    pub(super) fn new(at: StateAt, parameters: BucketTerms, unit: Unit) -> Self {
        Self { at, parameters, unit, report: LimiterReport::default() }
    }
}

impl LimiterCpu {
    /// `units` says how many tokens a packet of so many bytes needs.
    #[inline]
    fn judge(&mut self, batch: &mut Batch, flows: &mut Visit<'_>, units: impl Fn(u32) -> u64) {
        let parameters = self.parameters;
        let mut report = self.report.clone();
        let begin =
            |packet: Seen<'_, '_>, level: &mut Level| *level = parameters.full_at(packet.now.as_nanos());
        flows.for_each_initialized(self.at, batch, begin, |packet, level| {
            let passes = parameters.take(level, packet.now.as_nanos(), units(packet.bytes));
            report.count(passes, packet.bytes);
            if passes { Verdict::Pass } else { Verdict::Drop(DropReason::RateLimit) }
        });
        self.report = report;
    }
}

impl FlowFunction for LimiterCpu {
    fn move_to(&mut self, at: StateAt) {
        self.at = at;
    }

    fn process(&mut self, batch: &mut Batch, flows: &mut Visit<'_>, _records: &mut Records<'_>) {
        match self.unit {
            Unit::Bytes => self.judge(batch, flows, u64::from),
            Unit::Packets => self.judge(batch, flows, |_| 1),
        }
    }

    fn add(&mut self, counted: &[u64]) {
        let LimiterReport { passed, dropped } = &mut self.report;
        let counted: LimiterTotals = flows::counted(counted).0;
        let all = [counted.passed.words(), counted.dropped.words()];
        for (own, counted) in passed.iter_mut().chain(dropped).zip(all.as_flattened()) {
            *own += counted;
        }
    }

    fn report(&self, _flows: &Flows) -> Box<dyn Report> {
        Box::new(self.report.clone())
    }
}
