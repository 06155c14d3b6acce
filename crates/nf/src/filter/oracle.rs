//! The slow form: each packet by itself, from its bytes. That the filter means what it says is tested in `packetloom-filter`.

use std::sync::Arc;

use packetloom_packet::Verdict;

use super::{DROP, FilterReport};
use crate::oracle::OraclePacket;
use crate::{Oracle, Report};

pub(super) struct FilterOracle {
    filter: Arc<packetloom_filter::Filter>,
    report: FilterReport,
}

impl FilterOracle {
    pub(super) fn new(filter: Arc<packetloom_filter::Filter>) -> Self {
        Self { filter, report: FilterReport::default() }
    }
}

impl Oracle for FilterOracle {
    fn step(&mut self, packet: &mut OraclePacket) -> Verdict {
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
