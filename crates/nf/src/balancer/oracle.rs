//! The slow form.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use packetloom_packet::key::halves;
use packetloom_packet::{DropReason, Key, KeyBits, MatchKey4, MatchKey6, Verdict};

use super::BalancerReport;
use super::services::Services;
use crate::flows::{FlowOracle, OracleFlow, OracleFlows};
use crate::oracle::{OracleIp, OraclePacket};
use crate::{Records, Report};

pub(super) struct BalancerOracle {
    services: Arc<Services>,
    /// For each life of a flow, its backend and whether the lower endpoint is the client.
    chosen: HashMap<u64, Option<(u32, bool)>>,
    /// Whether packets from backends are returned.
    returns: bool,
    report: BalancerReport,
}

impl BalancerOracle {
    pub(super) fn new(services: Arc<Services>, returns: bool) -> Self {
        let report = BalancerReport::new(&services, returns);
        Self { services, returns, chosen: HashMap::new(), report }
    }
}

/// The key by which services are found and flows hashed.
fn key(ip: &OracleIp) -> Key {
    let (source_port, destination_port) = ip.ports.unwrap_or_default();
    let bits = if ip.ports.is_some() { KeyBits::PORTS } else { KeyBits::default() };
    match (ip.source, ip.destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => Key::V4(MatchKey4 {
            source: source.into(),
            destination: destination.into(),
            source_port,
            destination_port,
            protocol: ip.protocol,
            bits,
            ..MatchKey4::default()
        }),
        (source, destination) => {
            let address = |address: IpAddr| match address {
                IpAddr::V4(address) => halves(address.to_ipv6_mapped().into()),
                IpAddr::V6(address) => halves(address.into()),
            };
            Key::V6(MatchKey6 {
                source: address(source),
                destination: address(destination),
                source_port,
                destination_port,
                protocol: ip.protocol,
                bits,
                ..MatchKey6::default()
            })
        }
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

    fn load(&mut self, life: u64, words: &[u64]) {
        let backend = (words[0] % (1 << 32)) as u32;
        let chosen = backend.checked_sub(1).map(|backend| (backend, words[0] >> 32 == 1));
        self.chosen.insert(life, chosen);
    }

    fn step(&mut self, packet: &mut OraclePacket, flow: &OracleFlow, _records: &mut Records<'_>) -> Verdict {
        let Ok(ip) = &mut packet.ip else { return Verdict::Pass };
        let services = &self.services;
        let report = &mut self.report;
        let chosen = *self.chosen.entry(flow.life).or_insert_with(|| {
            let key = key(ip);
            let backend = services.read(services.look_for(&key)?);
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
