//! The slow form.

use std::collections::HashMap;
use std::sync::Arc;

use packetloom_packet::{DropReason, Verdict};

use super::BalancerReport;
use super::paper::SlowServices;
use super::services::Services;
use crate::flows::{FlowOracle, OracleFlow, OracleFlows};
use crate::oracle::{OracleIp, OraclePacket};
use crate::{Records, Report};

pub(super) struct BalancerOracle {
    services: Arc<Services>,
    /// The same with tables of its own.
    slow: SlowServices,
    /// For each life of a flow, its backend and whether the lower endpoint is the client.
    chosen: HashMap<u64, Option<(u32, bool)>>,
    /// Whether packets from backends are returned.
    returns: bool,
    report: BalancerReport,
}

impl BalancerOracle {
    pub(super) fn new(services: Arc<Services>, returns: bool) -> Self {
        let report = BalancerReport::new(&services, returns);
        let slow = SlowServices::new(&services);
        Self { services, slow, returns, chosen: HashMap::new(), report }
    }
}

/// Whether a packet may be an answer: all of them, but of ICMP and ICMPv6 replies only, and what does not say what it is.
fn may_answer(ip: &OracleIp) -> bool {
    match (ip.protocol, ip.icmp) {
        (1, Some((kind, _))) => [0, 14, 16, 18].contains(&kind),
        (58, Some((kind, _))) => kind == 129,
        (1 | 58, None) => ip.later_fragment,
        _ => true,
    }
}

impl BalancerOracle {
    /// Judges a packet that is to no service: perhaps it is from one.
    fn give_back(&mut self, ip: &mut OracleIp) -> Verdict {
        for (number, service, backend) in self.services.all() {
            let is_from = backend.address == ip.source
                && service.protocol.is_none_or(|protocol| protocol == ip.protocol)
                && match (backend.port, service.port) {
                    (Some(port), _) | (None, Some(port)) => {
                        ip.ports.is_some_and(|(source, _)| source == port)
                    }
                    (None, None) => true,
                };
            if !self.returns || !is_from || !may_answer(ip) {
                continue;
            }
            if let Some(returned) = &mut self.report.returned {
                returned[number as usize][0] += 1;
                returned[number as usize][1] += u64::from(ip.bytes);
            }
            if let (Some((source, _)), Some(port)) = (&mut ip.ports, service.port)
                && *source != port
            {
                // SCTP's checksum covers all of the packet, of which a first fragment is only a part.
                if ip.protocol == 132 && ip.first_fragment {
                    return Verdict::Drop(DropReason::Rewrite);
                }
                *source = port;
            }
            ip.source = service.address;
            return Verdict::Pass;
        }
        self.report.others += 1;
        Verdict::Pass
    }
}

impl FlowOracle for BalancerOracle {
    fn save(&self, life: u64) -> Option<Vec<u64>> {
        let words = match *self.chosen.get(&life)? {
            None => 0,
            Some((backend, client_is_a)) => u64::from(backend) + 1 + if client_is_a { 1 << 32 } else { 0 },
        };
        Some(vec![words])
    }

    fn forget(&mut self, life: u64) {
        self.chosen.remove(&life);
    }

    fn load(&mut self, life: u64, words: &[u64]) {
        let backend = (words[0] % (1 << 32)) as u32;
        let chosen = backend.checked_sub(1).map(|backend| (backend, words[0] >> 32 == 1));
        self.chosen.insert(life, chosen);
    }

    fn step(&mut self, packet: &mut OraclePacket, flow: &OracleFlow, _records: &mut Records<'_>) -> Verdict {
        let Ok(ip) = &mut packet.ip else { return Verdict::Pass };
        let (services, slow) = (&self.services, &self.slow);
        let report = &mut self.report;
        let chosen = *self.chosen.entry(flow.life).or_insert_with(|| {
            let backend = slow.backend(ip)?;
            report.backends[backend as usize].1.flows += 1;
            Some((backend, flow.from_a))
        });
        let Some((number, _)) = chosen.filter(|&(_, client_is_a)| client_is_a == flow.from_a) else {
            return self.give_back(ip);
        };
        let (_, load) = &mut report.backends[number as usize];
        load.packets += 1;
        load.bytes += u64::from(ip.bytes);
        let backend = services.backend(number);
        // SCTP's checksum covers all of the packet, of which a first fragment is only a part.
        if backend.port.is_some() && ip.protocol == 132 && ip.first_fragment {
            return Verdict::Drop(DropReason::Rewrite);
        }
        ip.destination = backend.address;
        if let (Some(port), Some((_, destination_port))) = (backend.port, &mut ip.ports) {
            *destination_port = port;
        }
        Verdict::Pass
    }

    fn report(&self, _flows: &OracleFlows) -> Box<dyn Report> {
        Box::new(self.report.clone())
    }
}
