//! The slow form.

use std::collections::HashMap;

use packetloom_packet::{Role, Verdict};

use super::{Config, ConntrackReport, Kind, place};
use crate::connections::{Class, OracleConnection, OracleTracker};
use crate::flows::{FlowOracle, OracleFlow, OracleFlows};
use crate::oracle::OraclePacket;
use crate::{Records, Report};

pub(super) struct ConntrackOracle {
    config: Config,
    tracker: OracleTracker,
    connections: HashMap<u64, OracleConnection>,
    report: ConntrackReport,
}

impl ConntrackOracle {
    pub(super) fn new(config: Config) -> Self {
        let tracker = OracleTracker::new(config.timeouts.clone(), config.loose);
        Self { config, tracker, connections: HashMap::new(), report: ConntrackReport::default() }
    }

    fn judge(&mut self, kind: Kind, bytes: u32) -> Verdict {
        self.report.count(kind, bytes);
        if kind == Kind::Invalid { self.config.invalid.verdict() } else { Verdict::Pass }
    }
}

impl FlowOracle for ConntrackOracle {
    fn save(&self, life: u64) -> Option<Vec<u64>> {
        self.connections.get(&life).map(OracleConnection::save)
    }

    fn forget(&mut self, life: u64) {
        self.connections.remove(&life);
    }

    fn load(&mut self, life: u64, words: &[u64]) {
        if let Some(connection) = OracleConnection::load(words) {
            self.connections.insert(life, connection);
        }
    }

    fn step(&mut self, packet: &mut OraclePacket, flow: &OracleFlow, _records: &mut Records<'_>) -> Verdict {
        let Ok(ip) = &packet.ip else { return Verdict::Pass };
        let held = self.connections.get(&flow.life).copied();
        if flow.role == Role::Related {
            let is_known = held.is_some_and(|held| self.tracker.is_alive(&held, packet.nanos));
            return self.judge(if is_known { Kind::Related } else { Kind::Invalid }, ip.bytes);
        }
        let (class, next) = self.tracker.step(held, ip, flow, packet.nanos);
        if let Some(next) = next {
            let counts = &mut self.report.connections[place(ip.protocol)];
            let before = held.filter(|_| class != Class::New).map_or("", |held| held.milestone());
            if class == Class::New {
                counts.opened += 1;
            }
            match next.milestone() {
                same if same == before => {}
                "established" => counts.established += 1,
                "closed" => counts.closed += 1,
                "reset" => counts.reset += 1,
                "replied" => counts.replied += 1,
                _ => {}
            }
            self.connections.insert(flow.life, next);
        }
        self.judge(class.into(), ip.bytes)
    }

    fn step_without(&mut self, packet: &mut OraclePacket, role: Role) -> Verdict {
        let Ok(ip) = &packet.ip else { return Verdict::Pass };
        let is_invalid = matches!(role, Role::Related | Role::Invalid);
        self.judge(if is_invalid { Kind::Invalid } else { Kind::Untracked }, ip.bytes)
    }

    fn report(&self, _flows: &OracleFlows) -> Box<dyn Report> {
        Box::new(self.report.clone())
    }
}
