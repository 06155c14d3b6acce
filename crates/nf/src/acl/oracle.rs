//! The oracle: every rule in turn, each condition as the rule file states it.

use std::net::IpAddr;
use std::sync::Arc;

use packetloom_classify::Rule;
use packetloom_classify::rule::{Addresses, Fragments};
use packetloom_packet::Verdict;

use super::{AclReport, List};
use crate::oracle::{OracleIp, OraclePacket};
use crate::{Oracle, Records, Report};

pub(super) struct AclOracle {
    list: Arc<List>,
    report: AclReport,
}

impl AclOracle {
    pub(super) fn new(list: Arc<List>) -> Self {
        let report = AclReport::new(list.clone());
        Self { list, report }
    }
}

fn holds(prefix: &str, address: IpAddr) -> bool {
    let Some((base, len)) = prefix.split_once('/') else { return false };
    let (Ok(base), Ok(len)) = (base.parse::<IpAddr>(), len.parse::<usize>()) else { return false };
    let bits = |address: IpAddr| -> Vec<bool> {
        let octets = match address {
            IpAddr::V4(address) => address.octets().to_vec(),
            IpAddr::V6(address) => address.octets().to_vec(),
        };
        octets.iter().flat_map(|octet| (0..8).rev().map(move |bit| octet >> bit & 1 == 1)).collect()
    };
    base.is_ipv4() == address.is_ipv4() && bits(base)[..len] == bits(address)[..len]
}

/// Whether a packet meets every condition of a rule.
pub(super) fn matches(rule: &Rule, ip: &OracleIp) -> bool {
    let addresses = match rule.addresses {
        Addresses::Any => true,
        Addresses::V4(source, destination) => {
            holds(&source.to_string(), ip.source) && holds(&destination.to_string(), ip.destination)
        }
        Addresses::V6(source, destination) => {
            holds(&source.to_string(), ip.source) && holds(&destination.to_string(), ip.destination)
        }
    };
    let protocol = rule.protocol.is_none_or(|protocol| protocol == ip.protocol);
    let ports = (rule.source_ports.is_any() && rule.destination_ports.is_any())
        || ip.ports.is_some_and(|(source, destination)| {
            rule.source_ports.contains(source) && rule.destination_ports.contains(destination)
        });
    let icmp_type = rule.icmp_type.is_none_or(|wanted| ip.icmp.is_some_and(|(found, _)| found == wanted));
    let icmp_code = rule.icmp_code.is_none_or(|wanted| ip.icmp.is_some_and(|(_, found)| found == wanted));
    let flags = rule
        .tcp_flags
        .is_none_or(|wanted| ip.tcp_flags.is_some_and(|found| found & wanted.mask == wanted.set));
    let fragment = match rule.fragments {
        Fragments::All => true,
        Fragments::Any => ip.first_fragment || ip.later_fragment,
        Fragments::None => !ip.first_fragment && !ip.later_fragment,
        Fragments::First => ip.first_fragment,
        Fragments::Later => ip.later_fragment,
        Fragments::NotLater => !ip.later_fragment,
    };
    addresses && protocol && ports && icmp_type && icmp_code && flags && fragment
}

impl Oracle for AclOracle {
    fn step(&mut self, packet: &OraclePacket, _records: &mut Records<'_>) -> Verdict {
        let Ok(ip) = &packet.ip else { return Verdict::Pass };
        let position = self.list.rules.rules.iter().position(|rule| matches(rule, ip));
        self.report.count(position);
        self.list.verdict(position)
    }

    fn report(&self) -> Box<dyn Report> {
        Box::new(self.report.clone())
    }
}
