//! The slow forms. That names are found and looked up as they should be is tested in `packetloom-names` and `packetloom-domains`.

use std::sync::Arc;

use packetloom_names::Name;
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
    logged: Vec<u32>,
}

impl DomainsOracle {
    pub(super) fn new(names: Arc<Names>) -> Self {
        Self { report: DomainsReport::new(Arc::clone(&names)), names, logged: Vec::new() }
    }

    /// Judges a packet by its names.
    fn judge(&mut self, packet: &mut OraclePacket, found: &[Name]) -> Verdict {
        self.logged.clear();
        let decided: Vec<_> = found.iter().map(|name| self.names.decide(name)).collect();
        let mut lines = Vec::new();
        if !self.report.count(&decided, &mut lines) {
            return Verdict::Pass;
        }
        lines.retain(|&line| self.names.is_handed_out(line));
        self.logged = lines;
        let settings = &self.names.settings;
        if let Some(mark) = settings.mark {
            packet.mark = mark;
        }
        settings.action.verdict(DropReason::Domains)
    }
}

impl Oracle for DomainsOracle {
    fn step(&mut self, packet: &mut OraclePacket) -> Verdict {
        let mut found = Vec::new();
        if let Some(payload) = payload_of_oracle(packet) {
            payload.each_name(|name| found.push(name));
        }
        self.judge(packet, &found)
    }

    fn logged(&self) -> &[u32] {
        &self.logged
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
            self.alone.logged.clear();
            self.alone.report.flows.get_or_insert_default().dropped += 1;
            return Verdict::Drop(DropReason::Domains);
        }
        let first = self.watches.follow(packet, flow);
        let kind = first.kind();
        let mut found = Vec::from_iter(first.found);
        if let Some(payload) = payload_of_oracle(packet) {
            payload.each_later_name(&kind, |name| found.push(name));
        }
        let verdict = self.alone.judge(packet, &found);
        let protocol = packet.ip.as_ref().map_or(0, |ip| ip.protocol);
        if !verdict.is_pass() && found.iter().all(|name| drops_flow(protocol, name.kind)) {
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
