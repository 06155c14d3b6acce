//! The batch form.

use std::sync::Arc;

use packetloom_packet::Batch;

use super::{DROP, FilterReport, Period};
use crate::{Function, Report};

pub(super) struct FilterCpu {
    filter: Arc<packetloom_filter::Filter>,
    period: Option<Period>,
    /// The places of a batch's packets that match; kept for the next batch.
    matched: Vec<u32>,
    /// The places of those outside the period, too.
    outside: Vec<u32>,
    report: FilterReport,
}

impl FilterCpu {
    pub(super) fn new(filter: Arc<packetloom_filter::Filter>, period: Option<Period>) -> Self {
        let report = FilterReport::new(period);
        Self { filter, period, matched: Vec::new(), outside: Vec::new(), report }
    }

    /// Drops packets outside a period.
    fn bound(&mut self, period: Period, batch: &mut Batch) {
        self.outside.clear();
        let wall_offset = batch.wall_offset();
        let times = batch.frames().iter().map(|frame| frame.time.shifted(wall_offset).as_nanos());
        let outside = (0..).zip(times).filter(|&(_, nanos)| !period.has(nanos));
        self.outside.extend(outside.map(|(place, _)| place));
        let (verdicts, ..) = batch.judge();
        for &place in &self.outside {
            let verdict = &mut verdicts[place as usize];
            if verdict.is_pass() {
                *self.report.outside_time.get_or_insert_default() += 1;
                *verdict = DROP;
            }
        }
    }
}

impl Function for FilterCpu {
    fn process(&mut self, batch: &mut Batch) {
        if let Some(period) = self.period {
            self.bound(period, batch);
        }
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
