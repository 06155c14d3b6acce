//! The batch form.

use packetloom_packet::Batch;

use super::{DROP, Sample, SampleReport};
use crate::{Function, Report};

pub(super) struct SampleCpu {
    sample: Sample,
    /// The verdicts of a batch, by whether packets are taken; kept for the next batch.
    taken: Vec<bool>,
    report: SampleReport,
}

impl SampleCpu {
    pub(super) fn new(sample: Sample) -> Self {
        Self { sample, taken: Vec::new(), report: SampleReport::default() }
    }
}

impl Function for SampleCpu {
    fn process(&mut self, batch: &mut Batch) {
        self.taken.clear();
        self.taken.extend((0..batch.len()).map(|index| self.sample.takes(batch.number(index))));
        let (verdicts, ..) = batch.judge();
        for (verdict, &is_taken) in verdicts.iter_mut().zip(&self.taken) {
            if verdict.is_pass() {
                self.report.sampled += u64::from(is_taken);
                self.report.not_sampled += u64::from(!is_taken);
                if !is_taken {
                    *verdict = DROP;
                }
            }
        }
    }

    fn report(&self) -> Box<dyn Report> {
        Box::new(self.report)
    }
}
