//! The slow forms. That names are found and looked up as they should be is tested in `packetloom-names` and `packetloom-domains`.

use std::sync::Arc;

use packetloom_names::{Name, Watch};
use packetloom_packet::{DropReason, Role, Verdict};

use super::{DomainsReport, FlowCounts, Names, drops_flow};
use crate::flows::{End, FlowName, FlowOracle, OracleFlow, OracleFlows};
use crate::oracle::OraclePacket;
use crate::watches::{OracleWatches, payload_of_oracle};
use crate::{Oracle, Records, Report};

/// Each packet by itself.
pub(super) struct DomainsOracle {
    names: Arc<Names>,
    report: DomainsReport,
    /// What the last packet is logged for.
    logged: Option<u32>,
}

impl DomainsOracle {
    pub(super) fn new(names: Arc<Names>) -> Self {
        Self { report: DomainsReport::new(Arc::clone(&names)), names, logged: None }
    }

    /// Judges a packet by its name.
    fn judge(&mut self, packet: &mut OraclePacket, name: Option<&Name>) -> Verdict {
        self.logged = None;
        let Some(line) = name.and_then(|name| self.report.blocks(name)) else { return Verdict::Pass };
        let settings = &self.names.settings;
        if self.names.is_handed_out(line) {
            self.logged = Some(line);
        }
        if let Some(mark) = settings.mark {
            packet.mark = mark;
        }
        settings.action.verdict(DropReason::Domains)
    }
}

/// The name in a packet by itself.
fn alone(packet: &OraclePacket) -> Option<Name> {
    payload_of_oracle(packet)?.alone::<Watch>(())
}

impl Oracle for DomainsOracle {
    fn step(&mut self, packet: &mut OraclePacket) -> Verdict {
        let name = alone(packet);
        self.judge(packet, name.as_ref())
    }

    fn logged(&self) -> &[u32] {
        self.logged.as_slice()
    }

    fn report(&self) -> Box<dyn Report> {
        Box::new(self.report.clone())
    }
}

/// Packets with those of their flows before.
pub(super) struct FlowsOracle {
    alone: DomainsOracle,
    watches: OracleWatches,
}

impl FlowsOracle {
    pub(super) fn new(names: Arc<Names>) -> Self {
        Self { alone: DomainsOracle::new(names), watches: OracleWatches::new(()) }
    }
}

impl FlowOracle for FlowsOracle {
    fn save(&self, life: u64) -> Option<Vec<u64>> {
        self.watches.save(life)
    }

    fn forget(&mut self, life: u64) {
        self.watches.end(life);
    }

    fn load(&mut self, life: u64, words: &[u64]) {
        self.watches.load(life, words);
    }

    fn step(&mut self, packet: &mut OraclePacket, flow: &OracleFlow, _records: &mut Records<'_>) -> Verdict {
        if self.watches.is_dropped(flow.life) {
            self.alone.logged = None;
            self.alone.report.flows.get_or_insert_default().dropped += 1;
            return Verdict::Drop(DropReason::Domains);
        }
        let name = self.watches.follow(packet, flow).found;
        let verdict = self.alone.judge(packet, name.as_ref());
        let protocol = packet.ip.as_ref().map_or(0, |ip| ip.protocol);
        if !verdict.is_pass() && name.is_some_and(|name| drops_flow(protocol, name.kind)) {
            self.watches.drop_flow(flow.life);
        }
        verdict
    }

    fn step_without(&mut self, packet: &mut OraclePacket, _role: Role) -> Verdict {
        self.alone.step(packet)
    }

    fn on_end(&mut self, life: u64, _flow: &FlowName, _end: End, _records: &mut Records<'_>) {
        self.forget(life);
    }

    fn logged(&self) -> &[u32] {
        self.alone.logged()
    }

    fn report(&self, _flows: &OracleFlows) -> Box<dyn Report> {
        let mut report = self.alone.report.clone();
        let (gave_up, no_room) = self.watches.counts();
        let dropped = report.flows.unwrap_or_default().dropped;
        report.flows = Some(FlowCounts { dropped, gave_up, no_room });
        Box::new(report)
    }
}
