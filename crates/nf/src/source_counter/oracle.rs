//! The slow form: three numbers for each life of a source, and the lives of flows that were seen.

use std::collections::{HashMap, HashSet};

use packetloom_packet::Verdict;

use super::{SourceCounted, SourceCounterReport};
use crate::flows::{FlowOracle, OracleFlow, OracleFlows};
use crate::oracle::OraclePacket;
use crate::{Records, Report};

#[derive(Default)]
pub(super) struct SourceCounterOracle {
    seen: HashSet<u64>,
    /// Whether the packet that comes next begins a flow.
    begins: bool,
    counts: HashMap<u64, SourceCounted>,
    all: SourceCounted,
}

impl FlowOracle for SourceCounterOracle {
    fn save(&self, life: u64) -> Option<Vec<u64>> {
        let counted = self.counts.get(&life)?;
        Some(vec![counted.packets, counted.bytes, counted.flows])
    }

    fn forget(&mut self, life: u64) {
        self.counts.remove(&life);
    }

    fn load(&mut self, life: u64, words: &[u64]) {
        self.counts.insert(life, SourceCounted { packets: words[0], bytes: words[1], flows: words[2] });
    }

    fn is_remembered(&self, life: u64) -> bool {
        self.seen.contains(&life)
    }

    fn recall(&mut self, life: u64) {
        self.seen.insert(life);
    }

    fn remember(&mut self, _packet: &OraclePacket, flow: Option<&OracleFlow>) {
        self.begins = flow.is_some_and(|flow| self.seen.insert(flow.life));
    }

    fn step(&mut self, packet: &mut OraclePacket, flow: &OracleFlow, _records: &mut Records<'_>) -> Verdict {
        if let Ok(ip) = &packet.ip {
            let after = |before: SourceCounted| SourceCounted {
                packets: before.packets + 1,
                bytes: before.bytes + u64::from(ip.bytes),
                flows: if self.begins { before.flows + 1 } else { before.flows },
            };
            let before = self.counts.get(&flow.life).copied().unwrap_or_default();
            self.counts.insert(flow.life, after(before));
            self.all = after(self.all);
        }
        Verdict::Pass
    }

    fn report(&self, flows: &OracleFlows) -> Box<dyn Report> {
        let held = || flows.names().filter_map(|(name, life)| Some((name, *self.counts.get(&life)?)));
        Box::new(SourceCounterReport::new(self.all, held))
    }
}
