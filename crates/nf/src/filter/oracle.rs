//! The slow form: each packet by itself, from its bytes. That the filter means what it says is tested in `packetloom-filter`.

use std::sync::Arc;

use packetloom_packet::Verdict;

use super::{DROP, FilterReport, Period};
use crate::oracle::OraclePacket;
use crate::{Oracle, Report};

pub(super) struct FilterOracle {
    filter: Arc<packetloom_filter::Filter>,
    period: Option<Period>,
    report: FilterReport,
}

impl FilterOracle {
    pub(super) fn new(filter: Arc<packetloom_filter::Filter>, period: Option<Period>) -> Self {
        Self { filter, period, report: FilterReport::new(period) }
    }
}

impl Oracle for FilterOracle {
    fn step(&mut self, packet: &mut OraclePacket) -> Verdict {
        if let (Some(Period { begin, end }), Some(outside)) = (self.period, &mut self.report.outside_time) {
            let time = i128::from(packet.nanos) + i128::from(packet.wall_offset);
            let is_before = begin.is_some_and(|begin| time < i128::from(begin.as_nanos()));
            let is_after = end.is_some_and(|end| time >= i128::from(end.as_nanos()));
            if is_before || is_after {
                *outside += 1;
                return DROP;
            }
        }
        if self.filter.matches(packet.link, &packet.frame, packet.wire_len) {
            self.report.matched += 1;
            Verdict::Pass
        } else {
            self.report.not_matched += 1;
            DROP
        }
    }

    fn report(&self) -> Box<dyn Report> {
        Box::new(self.report)
    }
}
