//! The oracle: every rule in turn, each condition as the rule file states it.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use packetloom_classify::live::{Change, Name, Place};
use packetloom_classify::rule::{Addresses, Fragments};
use packetloom_classify::{Action, ConnectionState, Rule};
use packetloom_packet::Verdict;

use super::live::Changes;
use super::{AclReport, Admits, List};
use crate::connections::{Class, OracleConnection, OracleTracker};
use crate::flows::{FlowOracle, OracleFlow, OracleFlows, Role};
use crate::oracle::{OracleIp, OraclePacket};
use crate::{Oracle, Records, Report};

pub(super) struct AclOracle {
    list: Arc<List>,
    /// The rules as they are now, in order: their positions in `list`, which has all that ever are.
    now: Vec<usize>,
    changing: Option<Changing>,
    report: AclReport,
    logged: Option<u32>,
    tracker: OracleTracker,
    /// Those that were admitted, by the life of their flow.
    admitted: HashMap<u64, OracleConnection>,
}

/// Where it stands in a file of changes.
struct Changing {
    changes: Arc<Changes>,
    made: usize,
    /// The rules that have the numbers from 0 on, or had them last.
    numbers: Vec<usize>,
    /// The position that the next new rule has.
    next: usize,
}

impl AclOracle {
    pub(super) fn new(list: Arc<List>, changes: Option<Arc<Changes>>) -> Self {
        let loaded = changes.as_ref().map_or(list.rules.rules.len(), |changes| changes.loaded.rules.len());
        let now: Vec<usize> = (0..loaded).collect();
        let changing =
            changes.map(|changes| Changing { changes, made: 0, numbers: now.clone(), next: loaded });
        let Admits { timeouts, loose, .. } = &list.settings.admits;
        Self {
            report: AclReport::new(list.clone()),
            now,
            changing,
            logged: None,
            tracker: OracleTracker::new(timeouts.clone(), *loose),
            admitted: HashMap::new(),
            list,
        }
    }

    fn change(&mut self, packet: u64) {
        let Some(changing) = &mut self.changing else { return };
        while let Some(due) = changing.changes.clone().transactions.get(changing.made)
            && due.at <= packet
        {
            changing.made += 1;
            due.changes
                .iter()
                .for_each(|change| changing.make(&self.list.rules.rules, &mut self.now, change));
        }
    }

    /// What the rules say of a packet: the position of the first one that matches, and the verdict.
    fn decide(
        &mut self,
        packet: &mut OraclePacket,
        state: Option<ConnectionState>,
    ) -> (Option<usize>, Verdict) {
        self.logged = None;
        let Ok(ip) = &packet.ip else { return (None, Verdict::Pass) };
        let rules = &self.list.rules.rules;
        let comes_by = |rule: &Rule| {
            let interface = packet.interface.as_deref();
            rule.interfaces.as_ref().is_none_or(|interfaces| interfaces.contains(interface))
        };
        let leaves_by = |rule: &Rule| {
            let interface = packet.out.as_deref();
            rule.out.as_ref().is_none_or(|interfaces| interfaces.contains(interface))
        };
        let has_state = |rule: &Rule| {
            rule.states.is_all() || state.is_some_and(|state| rule.states.iter().any(|of| of == state))
        };
        let matching = |&position: &usize| {
            let rule = &rules[position];
            comes_by(rule) && leaves_by(rule) && has_state(rule) && matches(rule, ip)
        };
        let position = self.now.iter().copied().find(matching);
        self.report.count(position, ip.bytes);
        let is_wanted =
            |rule: &Rule| rule.log || self.list.settings.watch.as_ref().is_some_and(|watch| watch.has(rule));
        self.logged =
            position.filter(|&position| is_wanted(&rules[position])).map(|position| position as u32);
        if let Some(mark) = position.map(|position| rules[position].mark).filter(|&mark| mark != 0) {
            packet.mark = mark;
        }
        (position, self.list.verdict(position))
    }
}

impl AclOracle {
    /// The verdict on a packet in a state, which is counted where connections are tracked.
    fn decide_tracked(&mut self, packet: &mut OraclePacket, state: ConnectionState) -> Verdict {
        if !self.list.tracks {
            return self.decide(packet, None).1;
        }
        if packet.ip.is_ok() {
            self.report.tracked.packets[state as usize] += 1;
        }
        self.decide(packet, Some(state)).1
    }

    /// A packet of a flow, or an error that quotes one, where rules ask for states.
    fn step_tracked(&mut self, packet: &mut OraclePacket, flow: &OracleFlow) -> Verdict {
        let Ok(ip) = &packet.ip else { return Verdict::Pass };
        let held = self.admitted.get(&flow.life).copied();
        if flow.role == Role::Related {
            let is_known = held.is_some_and(|held| self.tracker.is_alive(&held, packet.nanos));
            let state = if is_known { ConnectionState::Related } else { ConnectionState::Invalid };
            return self.decide_tracked(packet, state);
        }
        let (class, next) = self.tracker.step(held, ip, flow, packet.nanos);
        let is_answer = held.is_some_and(|held| held.is_answered() || held.opener_is_a() != flow.from_a);
        let state = match class {
            Class::New => ConnectionState::New,
            Class::Established if is_answer => ConnectionState::Established,
            Class::Established => ConnectionState::New,
            Class::Invalid => ConnectionState::Invalid,
        };
        let verdict = self.decide_tracked(packet, state);
        if verdict == Verdict::Pass && class != Class::Invalid {
            if class == Class::New {
                self.report.tracked.connections += 1;
            }
            if let Some(next) = next {
                self.admitted.insert(flow.life, next);
            }
        }
        verdict
    }
}

impl Changing {
    /// Where a rule stands in the list.
    fn place(&self, rules: &[Rule], now: &[usize], name: &Name) -> usize {
        let found = now.iter().position(|&rule| match name {
            Name::Id(id) => rules[rule].id.as_ref() == Some(id),
            Name::Number(number) => self.numbers[*number as usize] == rule,
        });
        found.expect("changes are checked before a run")
    }

    fn make(&mut self, rules: &[Rule], now: &mut Vec<usize>, change: &Change) {
        match change {
            Change::Add(place, _) => {
                let at = match place {
                    Place::First => 0,
                    Place::Last => now.len(),
                    Place::Before(name) => self.place(rules, now, name),
                    Place::After(name) => self.place(rules, now, name) + 1,
                    Place::At(at) => *at,
                };
                now.insert(at, self.next);
                self.numbers.push(self.next);
            }
            Change::Delete(name) => {
                now.remove(self.place(rules, now, name));
                return;
            }
            Change::Replace(name, _) => {
                let at = self.place(rules, now, name);
                let old = std::mem::replace(&mut now[at], self.next);
                self.numbers.iter_mut().filter(|rule| **rule == old).for_each(|rule| *rule = self.next);
            }
        }
        self.next += 1;
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
    fn reach(&mut self, packet: u64) {
        self.change(packet);
    }

    fn step(&mut self, packet: &mut OraclePacket) -> Verdict {
        self.decide(packet, None).1
    }

    fn logged(&self) -> &[u32] {
        self.logged.as_slice()
    }

    fn go_on(&mut self, counted: &dyn Report) {
        self.report.go_on_with(counted);
    }

    fn report(&self) -> Box<dyn Report> {
        Box::new(self.report.clone())
    }
}

impl FlowOracle for AclOracle {
    fn save(&self, life: u64) -> Option<Vec<u64>> {
        self.admitted.get(&life).map(OracleConnection::save)
    }

    fn forget(&mut self, life: u64) {
        self.admitted.remove(&life);
    }

    fn load(&mut self, life: u64, words: &[u64]) {
        if let Some(connection) = OracleConnection::load(words) {
            self.admitted.insert(life, connection);
        }
    }

    fn reach(&mut self, packet: u64) {
        self.change(packet);
    }

    fn step(&mut self, packet: &mut OraclePacket, flow: &OracleFlow, _records: &mut Records<'_>) -> Verdict {
        self.logged = None;
        let Ok(ip) = &packet.ip else { return Verdict::Pass };
        if self.list.tracks {
            return self.step_tracked(packet, flow);
        }
        let held = self.admitted.get(&flow.life).copied();
        if flow.role == Role::Related {
            if held.is_some_and(|held| self.tracker.is_alive(&held, packet.nanos)) {
                self.report.admitted.related += 1;
                return Verdict::Pass;
            }
            return self.decide(packet, None).1;
        }
        let (class, next) = self.tracker.step(held, ip, flow, packet.nanos);
        if let (Class::Established, Some(next)) = (class, next) {
            self.report.admitted.packets += 1;
            self.report.admitted.bytes += u64::from(ip.bytes);
            self.admitted.insert(flow.life, next);
            return Verdict::Pass;
        }
        let (position, verdict) = self.decide(packet, None);
        let admits = position.is_some_and(|position| self.list.action(position) == Action::Reflect);
        if let (Class::New, Some(next), true) = (class, next, admits) {
            self.report.admitted.connections += 1;
            self.admitted.insert(flow.life, next);
        }
        verdict
    }

    fn step_without(&mut self, packet: &mut OraclePacket, role: Role) -> Verdict {
        let is_invalid = role == Role::Related || role == Role::Invalid;
        let state = if is_invalid { ConnectionState::Invalid } else { ConnectionState::Untracked };
        self.decide_tracked(packet, state)
    }

    fn logged(&self) -> &[u32] {
        self.logged.as_slice()
    }

    fn go_on(&mut self, counted: &dyn Report) {
        self.report.go_on_with(counted);
    }

    fn report(&self, _flows: &OracleFlows) -> Box<dyn Report> {
        Box::new(self.report.clone())
    }
}
