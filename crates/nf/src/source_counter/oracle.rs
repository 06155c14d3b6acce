//! The slow form: three numbers for each life of a source, and the lives of flows that were seen.

use std::collections::{HashMap, HashSet};

use packetloom_packet::Verdict;

use super::{Counted, SourceCounterReport};
use crate::Report;
use crate::flows::{FlowOracle, OracleFlow, OracleFlows};
use crate::oracle::OraclePacket;

#[derive(Default)]
pub(super) struct SourceCounterOracle {
    seen: HashSet<u64>,
    /// Whether the packet that comes next begins a flow.
    begins: bool,
    counts: HashMap<u64, Counted>,
}

impl FlowOracle for SourceCounterOracle {
    fn remember(&mut self, _packet: &OraclePacket, flow: Option<&OracleFlow>) {
        self.begins = flow.is_some_and(|flow| self.seen.insert(flow.life));
    }

    fn step(&mut self, packet: &mut OraclePacket, flow: &OracleFlow) -> Verdict {
        if let Ok(ip) = &packet.ip {
            let before = self.counts.get(&flow.life).copied().unwrap_or_default();
            let counted = Counted {
                packets: before.packets + 1,
                bytes: before.bytes + u64::from(ip.bytes),
                flows: if self.begins { before.flows + 1 } else { before.flows },
            };
            self.counts.insert(flow.life, counted);
        }
        Verdict::Pass
    }

    fn report(&self, flows: &OracleFlows) -> Box<dyn Report> {
        let sum = |count: fn(&Counted) -> u64| self.counts.values().map(count).sum();
        let all = Counted {
            packets: sum(|counted| counted.packets),
            bytes: sum(|counted| counted.bytes),
            flows: sum(|counted| counted.flows),
        };
        let held = || flows.names().filter_map(|(name, life)| Some((name, *self.counts.get(&life)?)));
        Box::new(SourceCounterReport::new(all, held))
    }
}
