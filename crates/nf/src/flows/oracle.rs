//! Lifetimes of flows, slow and obvious.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};

use super::{By, Counts, Definition, FlowName, WhenFull};
use crate::oracle::OracleIp;

/// Flows of one definition.
#[derive(Debug)]
pub struct OracleFlows {
    definition: Definition,
    /// The life of each, and its last packet's time.
    flows: HashMap<OracleKey, (u64, u64)>,
    /// How many of them are IPv4's, and IPv6's.
    held: [usize; 2],
    counts: Counts,
}

/// Protocol, lower and higher endpoint.
type OracleKey = (u8, (IpAddr, u16), (IpAddr, u16));

/// The flow of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OracleFlow {
    /// A number of its own from its first packet to the end of its state.
    pub life: u64,
    /// Whether the lower endpoint sent the packet.
    pub from_a: bool,
}

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// It has a flow.
    Flow(OracleFlow),
    /// There is no room; it is dropped.
    Dropped,
    /// There is no room; it passes by the functions.
    PassesBy,
}

impl OracleFlows {
    /// No flows yet.
    pub fn new(definition: Definition) -> Self {
        Self { definition, flows: HashMap::new(), held: [0; 2], counts: Counts::default() }
    }

    /// The flow of a packet, which may be a new one.
    pub fn touch(&mut self, ip: &OracleIp, now: u64) -> Found {
        let (source_port, destination_port) = ip.ports.unwrap_or_default();
        let none = (IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
        let ends = match self.definition.by {
            By::FiveTuple => [(ip.source, source_port), (ip.destination, destination_port)],
            By::Source => [(ip.source, 0), none],
        };
        let (protocol, from_a) = match self.definition.by {
            By::FiveTuple => (ip.protocol, ends[0] <= ends[1]),
            By::Source => (0, true),
        };
        let key = if from_a { (protocol, ends[0], ends[1]) } else { (protocol, ends[1], ends[0]) };
        let timeout = self.definition.timeout.limit().unwrap_or(u64::MAX);
        let is_dead = |last: u64| now.saturating_sub(last) >= timeout;
        if self.flows.get(&key).is_some_and(|&(_, last)| is_dead(last)) {
            self.remove(&key);
            self.counts.expired += 1;
        }
        if !self.flows.contains_key(&key) {
            if !self.has_room(ip.source.is_ipv4(), is_dead) {
                self.counts.refused += 1;
                let is_dropped = self.definition.when_full == WhenFull::DropNew;
                return if is_dropped { Found::Dropped } else { Found::PassesBy };
            }
            self.counts.created += 1;
            self.held[usize::from(ip.source.is_ipv6())] += 1;
            self.flows.insert(key, (self.counts.created, now));
        }
        let (life, last) = self.flows.entry(key).or_default();
        *last = now.max(*last);
        Found::Flow(OracleFlow { life: *life, from_a })
    }

    fn remove(&mut self, key: &OracleKey) {
        self.flows.remove(key);
        self.held[usize::from(key.1.0.is_ipv6() || key.2.0.is_ipv6())] -= 1;
    }

    /// Whether there is room for one more, or can be made.
    fn has_room(&mut self, is_v4: bool, is_dead: impl Fn(u64) -> bool) -> bool {
        if self.held[usize::from(!is_v4)] < self.definition.max_flows {
            return true;
        }
        // The other end is not always one: a source has none.
        let is_of_version = |key: &OracleKey| (key.1.0.is_ipv4() && key.2.0.is_ipv4()) == is_v4;
        let of_version = self.flows.iter().filter(|(key, _)| is_of_version(key));
        let oldest =
            of_version.min_by_key(|(_, (life, last))| (*last, *life)).map(|(key, value)| (*key, *value));
        let Some((key, (_, last))) = oldest else { return false };
        let count = match self.definition.when_full {
            _ if is_dead(last) => &mut self.counts.expired,
            WhenFull::EvictOldest => &mut self.counts.evicted,
            WhenFull::DropNew | WhenFull::PassNew => return false,
        };
        *count += 1;
        self.remove(&key);
        true
    }

    /// What was counted.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// The flows that are held, dead ones included: each with its life.
    pub fn names(&self) -> impl Iterator<Item = (FlowName, u64)> {
        let by = self.definition.by;
        self.flows.iter().map(move |(&(protocol, a, b), &(life, _))| (FlowName { by, protocol, a, b }, life))
    }
}
