//! The slow forms. That names are found and looked up as they should be is tested in `packetloom-names` and `packetloom-domains`.

use std::collections::HashMap;
use std::sync::Arc;

use packetloom_names::Name;
use packetloom_packet::{DropReason, Role, Verdict};

use super::{DomainsReport, FlowCounts, Names, drops_flow, name_of};
use crate::flows::{End, FlowName, FlowOracle, OracleFlow, OracleFlows};
use crate::oracle::OraclePacket;
use crate::watches::{Payload, Stage, Watches};
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
    let ip = packet.ip.as_ref().ok().filter(|ip| !ip.later_fragment)?;
    name_of(ip.protocol, ip.ports?, packet.payload().unwrap_or_default())
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

/// What is known of a life of a flow.
#[derive(Clone, Copy)]
struct Held {
    is_dropped: bool,
    stages: [Stage; 2],
    begins: [Option<u32>; 2],
}

/// Packets with those of their flows before.
pub(super) struct FlowsOracle {
    alone: DomainsOracle,
    watches: Watches,
    held: HashMap<u64, Held>,
}

impl FlowsOracle {
    pub(super) fn new(names: Arc<Names>) -> Self {
        Self { alone: DomainsOracle::new(names), watches: Watches::default(), held: HashMap::new() }
    }

    /// The name that a packet completes, or has by itself.
    fn name(&mut self, packet: &OraclePacket, flow: &OracleFlow) -> Option<Name> {
        let ip = packet.ip.as_ref().ok()?;
        let ports = ip.ports.filter(|_| !ip.later_fragment)?;
        let transport = packet.frame.get(packet.network + ip.header..).unwrap_or_default();
        let mut sequence = 0;
        if ip.protocol == 6 {
            let number = transport.get(4..8).filter(|_| !ip.first_fragment);
            let Some(number) = number else { return alone(packet) };
            sequence = number.iter().fold(0, |number, &byte| number << 8 | u32::from(byte));
        } else if ip.first_fragment {
            return alone(packet);
        }
        let held = self.held.get_mut(&flow.life)?;
        let way = usize::from(!flow.from_a);
        if ip.protocol == 6 && ip.tcp_flags.is_some_and(|flags| flags / 2 % 2 == 1) {
            sequence = sequence.wrapping_add(1);
            if held.begins[way] != Some(sequence) {
                held.begins[way] = Some(sequence);
                held.stages[way] = Stage::Before;
            }
        }
        let bytes = packet.payload().unwrap_or_default();
        let payload = Payload { protocol: ip.protocol, ports, sequence, begin: held.begins[way], bytes };
        if held.stages[way] != Stage::Over && !bytes.is_empty() {
            let (stage, name) = self.watches.look(flow.life, way, held.stages[way], payload);
            held.stages[way] = stage;
            if name.is_some() || stage != Stage::Over {
                return name;
            }
        }
        if held.stages[way] == Stage::Over { alone(packet) } else { None }
    }
}

impl FlowOracle for FlowsOracle {
    fn save(&self, life: u64) -> Option<Vec<u64>> {
        self.held.get(&life).map(|held| vec![u64::from(held.is_dropped), 0])
    }

    fn forget(&mut self, life: u64) {
        self.held.remove(&life);
        self.watches.end(life);
    }

    fn load(&mut self, life: u64, words: &[u64]) {
        let is_dropped = words[0] % 2 == 1;
        self.held.insert(life, Held { is_dropped, stages: [Stage::Before; 2], begins: [None; 2] });
    }

    fn step(&mut self, packet: &mut OraclePacket, flow: &OracleFlow, _records: &mut Records<'_>) -> Verdict {
        let new = Held { is_dropped: false, stages: [Stage::Before; 2], begins: [None; 2] };
        if self.held.entry(flow.life).or_insert(new).is_dropped {
            self.alone.logged = None;
            self.alone.report.flows.get_or_insert_default().dropped += 1;
            return Verdict::Drop(DropReason::Domains);
        }
        let name = self.name(packet, flow);
        let verdict = self.alone.judge(packet, name.as_ref());
        let protocol = packet.ip.as_ref().map_or(0, |ip| ip.protocol);
        if !verdict.is_pass() && name.is_some_and(|name| drops_flow(protocol, name.kind)) {
            self.watches.end(flow.life);
            self.held.insert(flow.life, Held { is_dropped: true, ..new });
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
        let Watches { gave_up, no_room, .. } = self.watches;
        let dropped = report.flows.unwrap_or_default().dropped;
        report.flows = Some(FlowCounts { dropped, gave_up, no_room });
        Box::new(report)
    }
}
