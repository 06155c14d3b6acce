//! Lifetimes of flows, slow and obvious.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};

use packetloom_packet::VlanId;

use super::{By, Counts, Definition, End, FlowName, Role, WhenFull};
use crate::oracle::{OracleIp, OraclePacket};

/// Flows of one definition.
#[derive(Debug)]
pub struct OracleFlows {
    definition: Definition,
    /// The life of each, and its last packet's time.
    flows: HashMap<OracleKey, (u64, u64)>,
    /// How many of them are IPv4's, and IPv6's.
    held: [usize; 2],
    /// Lives so far.
    lives: u64,
    /// Those that ended since somebody asked.
    ended: Vec<(u64, FlowName, End)>,
    counts: Counts,
}

/// Protocol, lower and higher endpoint; the VLAN, where flows are by that, too, or 0.
type OracleKey = (u8, (IpAddr, u16), (IpAddr, u16), u16);

/// The flow of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OracleFlow {
    /// A number of its own from its first packet to the end of its state.
    pub life: u64,
    /// Whether the lower endpoint sent the packet, or the initiator, or who sent the query of an ICMP connection.
    pub from_a: bool,
    /// What the packet is to the flow: one of its packets, or an error that quotes one.
    pub role: Role,
}

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// It has a flow.
    Flow(OracleFlow),
    /// There is no room; it is dropped.
    Dropped,
    /// It has none: there is no room where it is a [`Role::Member`], or it is something else.
    Without(Role),
}

/// What a packet is to the flow of a key.
struct Belongs {
    role: Role,
    key: OracleKey,
    from_a: bool,
}

impl Belongs {
    /// By protocol, addresses and ports.
    fn by_ends(ip: &OracleIp) -> Self {
        let (source_port, destination_port) = ip.ports.unwrap_or_default();
        let (source, destination) = ((ip.source, source_port), (ip.destination, destination_port));
        let from_a = source <= destination;
        let (a, b) = if from_a { (source, destination) } else { (destination, source) };
        Self { role: Role::Member, key: (ip.protocol, a, b, 0), from_a }
    }

    fn by_connection(ip: &OracleIp) -> Self {
        let without = |role| Self { role, ..Self::by_ends(ip) };
        let is_message = [1, 58].contains(&ip.protocol);
        if ip.later_fragment && (is_message || [6, 17, 132].contains(&ip.protocol)) {
            return without(Role::Untracked);
        }
        if !is_message {
            return Self::by_ends(ip);
        }
        let is_of_version = ip.source.is_ipv4() == (ip.protocol == 1);
        let (true, Some((kind, _)), Some(identifier)) = (is_of_version, ip.icmp, ip.identifier) else {
            return without(Role::Invalid);
        };
        let ask = |asks: IpAddr, answers: IpAddr, from_a: bool| {
            let key = (ip.protocol, (asks, identifier), (answers, identifier), 0);
            Self { role: Role::Member, key, from_a }
        };
        match (ip.protocol, kind) {
            (1, 8 | 13 | 15 | 17) | (58, 128) => ask(ip.source, ip.destination, true),
            (1, 0 | 14 | 16 | 18) | (58, 129) => ask(ip.destination, ip.source, false),
            (1, 3 | 11 | 12) | (58, 1..=4) => {
                // It goes to who sent what it quotes.
                let is_for_sender = |quoted: &&OracleIp| quoted.source == ip.destination;
                // An error is not about an error: what is quoted has no quotation, and so is invalid if it should have one.
                let quoted = ip.quoted.as_deref().filter(is_for_sender).map(Self::by_connection);
                match quoted {
                    Some(Self { role: Role::Member, key, from_a }) => {
                        Self { role: Role::Related, key, from_a: !from_a }
                    }
                    Some(Self { role: Role::Untracked, .. }) => without(Role::Untracked),
                    _ => without(Role::Invalid),
                }
            }
            _ => without(Role::Untracked),
        }
    }
}

/// The other end is not always one: a source has none.
fn is_of_v4(key: &OracleKey) -> bool {
    key.1.0.is_ipv4() && key.2.0.is_ipv4()
}

/// A flow apart from what holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedFlow {
    /// Its key in words: for IPv4 both addresses, for IPv6 the halves of each; then ports and protocol, and where flows are by that, too,
    /// from bit 47 on the VLAN, or 0, and above it a bit that is set.
    pub key: Vec<u64>,
    /// The time of its last packet.
    pub last: u64,
}

/// The end that a flow has not, which is by one address.
const NO_END: (IpAddr, u16) = (IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);

fn name(by: By, &(protocol, a, b, vlan): &OracleKey) -> FlowName {
    FlowName { by, protocol, a, b, vlan: VlanId::new(vlan) }
}

fn words(by: By, key: &OracleKey) -> Vec<u64> {
    let &(protocol, a, b, vlan) = key;
    let mut rest = u64::from(a.1) + (u64::from(b.1) << 16) + (u64::from(protocol) << 32);
    if by == By::VlanFiveTuple {
        rest += (u64::from(vlan) << 47) + (1 << 59);
    }
    let halves = |address: IpAddr| match address {
        IpAddr::V6(address) => {
            let bits = u128::from(address);
            [(bits >> 64) as u64, bits as u64]
        }
        IpAddr::V4(_) => [0; 2],
    };
    match (a.0, b.0) {
        (IpAddr::V4(a), IpAddr::V4(b)) => {
            vec![u64::from(u32::from(a)) + (u64::from(u32::from(b)) << 32), rest]
        }
        (a, b) => [&halves(a)[..], &halves(b), &[rest]].concat(),
    }
}

fn key(by: By, words: &[u64]) -> OracleKey {
    let v6 = |high: u64, low: u64| IpAddr::from((u128::from(high) << 64 | u128::from(low)).to_be_bytes());
    let v4 = |bits: u64| IpAddr::from((bits as u32).to_be_bytes());
    let (a, b, rest) = match *words {
        [a, b, c, d, rest] => (v6(a, b), v6(c, d), rest),
        [ends, rest] => (v4(ends), v4(ends >> 32), rest),
        _ => unreachable!("keys have two words or five"),
    };
    let ports = [rest as u16, (rest >> 16) as u16];
    match by {
        By::FiveTuple | By::Connection | By::VlanFiveTuple => {
            ((rest >> 32) as u8, (a, ports[0]), (b, ports[1]), (rest >> 47) as u16 % 4096)
        }
        By::Source | By::Initiator => (0, (a, 0), NO_END, 0),
    }
}

impl OracleFlows {
    /// No flows yet.
    pub fn new(definition: Definition) -> Self {
        Self {
            definition,
            flows: HashMap::new(),
            held: [0; 2],
            lives: 0,
            ended: Vec::new(),
            counts: Counts::default(),
        }
    }

    /// The flow of a packet, which may be a new one; by these headers, which may be others than it has now.
    pub fn find_or_insert(&mut self, packet: &OraclePacket, ip: &OracleIp) -> Found {
        let now = packet.nanos;
        let of_one =
            |address, from_a| Belongs { role: Role::Member, key: (0, (address, 0), NO_END, 0), from_a };
        let Belongs { role, key, from_a } = match self.definition.by {
            By::FiveTuple => Belongs::by_ends(ip),
            By::Source => of_one(ip.source, true),
            By::Initiator => {
                let is_answer = ip.tcp_flags.is_some_and(|flags| flags / 2 % 2 == 1 && flags / 16 % 2 == 1);
                of_one(if is_answer { ip.destination } else { ip.source }, !is_answer)
            }
            By::Connection => Belongs::by_connection(ip),
            By::VlanFiveTuple => {
                let Belongs { role, key: (protocol, a, b, _), from_a } = Belongs::by_ends(ip);
                Belongs { role, key: (protocol, a, b, packet.vlan().unwrap_or(0)), from_a }
            }
        };
        let timeout = self.definition.timeout.limit();
        let is_dead = |last: u64| timeout.is_some_and(|timeout| now.saturating_sub(last) >= timeout);
        match role {
            Role::Member => {}
            // An error finds a flow, or not, and changes nothing.
            Role::Related => {
                let held = self.flows.get(&key).filter(|&&(_, last)| !is_dead(last));
                let flow = held.map(|&(life, _)| Found::Flow(OracleFlow { life, from_a, role }));
                return flow.unwrap_or(Found::Without(role));
            }
            Role::Invalid | Role::Untracked => return Found::Without(role),
        }
        if self.flows.get(&key).is_some_and(|&(_, last)| is_dead(last)) {
            self.remove(&key, End::Expired);
        }
        if !self.flows.contains_key(&key) {
            if !self.has_room(ip.source.is_ipv4(), is_dead) {
                self.counts.refused += 1;
                let is_dropped = self.definition.when_full == WhenFull::DropNew;
                return if is_dropped { Found::Dropped } else { Found::Without(role) };
            }
            self.counts.created += 1;
            self.insert(key, ip.source.is_ipv4(), now);
        }
        let (life, last) = self.flows.entry(key).or_default();
        *last = now.max(*last);
        Found::Flow(OracleFlow { life: *life, from_a, role })
    }

    /// Begins a life.
    fn insert(&mut self, key: OracleKey, is_v4: bool, now: u64) -> u64 {
        self.held[usize::from(!is_v4)] += 1;
        self.lives += 1;
        self.flows.insert(key, (self.lives, now));
        self.lives
    }

    fn remove(&mut self, key: &OracleKey, end: End) {
        let Some((life, _)) = self.flows.remove(key) else { return };
        self.held[usize::from(!is_of_v4(key))] -= 1;
        match end {
            End::Expired => self.counts.expired += 1,
            End::Evicted => self.counts.evicted += 1,
            End::Run | End::Removed => {}
        }
        self.ended.push((life, name(self.definition.by, key), end));
    }

    /// Ends the life of a flow of which nothing is kept any more.
    pub fn end(&mut self, flow: &FlowName) {
        self.remove(&(flow.protocol, flow.a, flow.b, flow.vlan.map_or(0, VlanId::number)), End::Removed);
    }

    /// The lives that ended since this was asked for the last time, in order.
    pub fn take_ended(&mut self) -> Vec<(u64, FlowName, End)> {
        std::mem::take(&mut self.ended)
    }

    /// The flows that are held, dead ones included, apart from what holds them, and the life of each.
    pub fn save(&self) -> impl Iterator<Item = (SavedFlow, u64)> {
        let by = self.definition.by;
        self.flows.iter().map(move |(key, &(life, last))| (SavedFlow { key: words(by, key), last }, life))
    }

    /// Takes over flows that were saved, and what was counted; with no life that is not above `lives`. Of those of an IP version for which
    /// there is no room the ones stay whose last packets were the latest. Returns the life of each; those of the others have
    /// ended.
    pub fn restore(
        &mut self,
        mut saved: Vec<SavedFlow>,
        counts: Counts,
        lives: u64,
    ) -> Vec<(SavedFlow, u64)> {
        self.lives = self.lives.max(lives);
        self.counts = counts;
        saved.sort_by_key(|flow| (std::cmp::Reverse(flow.last), flow.key.clone()));
        let mut restored = Vec::new();
        for flow in saved {
            let is_v4 = flow.key.len() == 2;
            let is_full = self.held[usize::from(!is_v4)] == self.definition.max_flows;
            let key = key(self.definition.by, &flow.key);
            let life = self.insert(key, is_v4, flow.last);
            if is_full {
                self.remove(&key, End::Evicted);
            }
            restored.push((flow, life));
        }
        restored
    }

    /// The number of the last life.
    pub fn lives(&self) -> u64 {
        self.lives
    }

    /// Whether there is room for one more, or can be made.
    fn has_room(&mut self, is_v4: bool, is_dead: impl Fn(u64) -> bool) -> bool {
        if self.held[usize::from(!is_v4)] < self.definition.max_flows {
            return true;
        }
        let of_version = self.flows.iter().filter(|(key, _)| is_of_v4(key) == is_v4);
        let oldest =
            of_version.min_by_key(|(_, (life, last))| (*last, *life)).map(|(key, value)| (*key, *value));
        let Some((key, (_, last))) = oldest else { return false };
        let end = match self.definition.when_full {
            _ if is_dead(last) => End::Expired,
            WhenFull::EvictOldest => End::Evicted,
            WhenFull::DropNew | WhenFull::PassNew => return false,
        };
        self.remove(&key, end);
        true
    }

    /// What was counted.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// The flows that are held, dead ones included: each with its life.
    pub fn names(&self) -> impl Iterator<Item = (FlowName, u64)> {
        let by = self.definition.by;
        self.flows.iter().map(move |(key, &(life, _))| (name(by, key), life))
    }
}
