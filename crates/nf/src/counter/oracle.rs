//! The slow form: two numbers for each life of a flow.

use std::collections::HashMap;

use packetloom_packet::Verdict;

use super::{CounterReport, top};
use crate::flows::{FlowOracle, OracleFlow, OracleFlows};
use crate::oracle::OraclePacket;
use crate::{Records, Report};

#[derive(Default)]
pub(super) struct CounterOracle {
    counts: HashMap<u64, (u64, u64)>,
    packets: u64,
    bytes: u64,
}

impl FlowOracle for CounterOracle {
    fn save(&self, life: u64) -> Option<Vec<u64>> {
        let &(packets, bytes) = self.counts.get(&life)?;
        Some(vec![packets, bytes])
    }

    fn forget(&mut self, life: u64) {
        self.counts.remove(&life);
    }

    fn load(&mut self, life: u64, words: &[u64]) {
        self.counts.insert(life, (words[0], words[1]));
    }

    fn step(&mut self, packet: &mut OraclePacket, flow: &OracleFlow, _records: &mut Records<'_>) -> Verdict {
        if let Ok(ip) = &packet.ip {
            let (packets, bytes) = self.counts.get(&flow.life).copied().unwrap_or((0, 0));
            self.counts.insert(flow.life, (packets + 1, bytes + u64::from(ip.bytes)));
            self.packets += 1;
            self.bytes += u64::from(ip.bytes);
        }
        Verdict::Pass
    }

    fn report(&self, flows: &OracleFlows) -> Box<dyn Report> {
        let held = flows.names().filter_map(|(name, life)| {
            let &(packets, bytes) = self.counts.get(&life)?;
            Some((name, [packets, bytes]))
        });
        Box::new(CounterReport { packets: self.packets, bytes: self.bytes, top: top(held) })
    }
}
