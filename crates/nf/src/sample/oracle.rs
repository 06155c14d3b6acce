//! The slow form: it counts packets down, and draws a number for each in turn.

use packetloom_packet::Verdict;

use super::{Choice, DROP, GAMMA, Sample, SampleReport, mix};
use crate::oracle::OraclePacket;
use crate::{Oracle, Report};

pub(super) struct SampleOracle {
    sample: Sample,
    /// Packets of the run that were looked at.
    packets: u64,
    /// Where that is systematic, packets until the next one that is taken.
    left: u32,
    /// The state of SplitMix64.
    state: u64,
    is_taken: bool,
    report: SampleReport,
}

impl SampleOracle {
    pub(super) fn new(sample: Sample) -> Self {
        let state = if let Choice::Random(seed) = sample.choice { seed } else { 0 };
        Self { sample, packets: 0, left: 0, state, is_taken: false, report: SampleReport::default() }
    }
}

impl Oracle for SampleOracle {
    fn reach(&mut self, packet: u64) {
        // One by one, also those before it became part of the chain.
        while self.packets <= packet {
            self.packets += 1;
            let interval = self.sample.interval.get();
            if self.sample.choice == Choice::Systematic {
                self.is_taken = self.left == 0;
                self.left = if self.is_taken { interval - 1 } else { self.left - 1 };
            } else {
                self.state = self.state.wrapping_add(GAMMA);
                self.is_taken = mix(self.state) <= u64::MAX / u64::from(interval);
            }
        }
    }

    fn step(&mut self, _packet: &mut OraclePacket) -> Verdict {
        if self.is_taken {
            self.report.sampled += 1;
            Verdict::Pass
        } else {
            self.report.not_sampled += 1;
            DROP
        }
    }

    fn report(&self) -> Box<dyn Report> {
        Box::new(self.report)
    }
}
