//! The reference implementation, packet by packet: it counts parts of 10^-9 tokens in 128 bits.

use std::collections::HashMap;

use packetloom_packet::{DropReason, Verdict};

use super::LimiterReport;
use crate::flows::{FlowOracle, OracleFlow, OracleFlows};
use crate::oracle::OraclePacket;
use crate::units::Unit;
use crate::{Records, Report};

const SECOND: u128 = 1_000_000_000;

pub(super) struct LimiterOracle {
    rate: u64,
    burst: u64,
    unit: Unit,
    /// By life of a flow: parts of 10^-9 tokens, and the time at which the bucket held them.
    buckets: HashMap<u64, (u128, u64)>,
    report: LimiterReport,
}

impl LimiterOracle {
    pub(super) fn new(rate: u64, burst: u64, unit: Unit) -> Self {
        Self { rate, burst, unit, buckets: HashMap::new(), report: LimiterReport::default() }
    }
}

impl FlowOracle for LimiterOracle {
    fn save(&self, life: u64) -> Option<Vec<u64>> {
        let &(parts, time) = self.buckets.get(&life)?;
        Some(vec![u64::try_from(parts).ok()?, time])
    }

    fn forget(&mut self, life: u64) {
        self.buckets.remove(&life);
    }

    fn load(&mut self, life: u64, words: &[u64]) {
        self.buckets.insert(life, (words[0].into(), words[1]));
    }

    fn step(&mut self, packet: &mut OraclePacket, flow: &OracleFlow, _records: &mut Records<'_>) -> Verdict {
        let Ok(ip) = &packet.ip else { return Verdict::Pass };
        let full = u128::from(self.burst) * SECOND;
        let (parts, time) = self.buckets.get(&flow.life).copied().unwrap_or((full, packet.nanos));
        let elapsed = packet.nanos.saturating_sub(time);
        let parts = (parts + u128::from(elapsed) * u128::from(self.rate)).min(full);
        let units = if self.unit == Unit::Bytes { ip.bytes } else { 1 };
        let price = u128::from(units) * SECOND;
        let passes = parts >= price;
        let left = if passes { parts - price } else { parts };
        self.buckets.insert(flow.life, (left, packet.nanos.max(time)));
        let counts = if passes { &mut self.report.passed } else { &mut self.report.dropped };
        counts[0] += 1;
        counts[1] += u64::from(ip.bytes);
        if passes { Verdict::Pass } else { Verdict::Drop(DropReason::RateLimit) }
    }

    fn report(&self, _flows: &OracleFlows) -> Box<dyn Report> {
        Box::new(self.report.clone())
    }
}
