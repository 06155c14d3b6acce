//! The batch form.

use std::sync::Arc;

use packetloom_packet::Batch;

use super::{DROP, FilterReport};
use crate::{Function, Report};

pub(super) struct FilterCpu {
    filter: Arc<packetloom_filter::Filter>,
    /// The places of a batch's packets that match; kept for the next batch.
    matched: Vec<u32>,
    report: FilterReport,
}

impl FilterCpu {
    pub(super) fn new(filter: Arc<packetloom_filter::Filter>) -> Self {
        Self { filter, matched: Vec::new(), report: FilterReport::default() }
    }
}

impl Function for FilterCpu {
    fn process(&mut self, batch: &mut Batch) {
        self.matched.clear();
        self.filter.select(batch, &mut self.matched);
        let mut matched = self.matched.iter().copied().peekable();
        let (verdicts, ..) = batch.judge();
        for (place, verdict) in verdicts.iter_mut().enumerate() {
            let matches = matched.next_if_eq(&(place as u32)).is_some();
            if verdict.is_pass() {
                self.report.matched += u64::from(matches);
                self.report.not_matched += u64::from(!matches);
                if !matches {
                    *verdict = DROP;
                }
            }
        }
    }

    fn report(&self) -> Box<dyn Report> {
        Box::new(self.report)
    }
}
