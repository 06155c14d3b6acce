//! `conntrack`: the state of connections; packets that belong to none and cannot open one are invalid, and dropped unless the chain
//! file says otherwise.
//!
//! - Shape: two words of the flow's entry: [`Connection`].
//! - Packets are new (they open a connection), established (of one that there is), related (an ICMP or ICMPv6 error that quotes a
//!   packet of one), invalid, or untracked: they have no connection, as neighbour discovery and later fragments, or there was no room.
//!   RFC 5508 section 5 has errors about no connection dropped: they are invalid.
//! - Verdict: pass, or drop with `invalid_connection`.
//!
//! [`connections`] has the states.

mod config;
mod cpu;
mod oracle;
#[cfg(test)]
mod tests;

use std::any::Any;

use bytemuck::{NoUninit, Pod, Zeroable};
use packetloom_memory::LaidOut;
use packetloom_packet::{DropReason, Verdict, protocol};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

pub use self::config::{Config, Invalid};
use crate::connections::{Class, Connection, ConnectionParameters, State, Tracker};
use crate::flows::{
    By, DeviceKernel, Facts, FactsKept, FlowFunction, FlowOracle, KernelSpec, Parameters, StateAt, StateSpec,
    Tally, Text, state_words,
};
use crate::summary::{self, Volume};
use crate::units::Span;
use crate::{Form, FunctionSpec, PerFlow, Report, connections, is_equal};

/// A connection tracker ready to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conntrack {
    config: Config,
}

impl Invalid {
    const fn verdict(self) -> Verdict {
        match self {
            Self::Drop => Verdict::Drop(DropReason::InvalidConnection),
            Self::Pass => Verdict::Pass,
        }
    }
}

impl FunctionSpec for Conntrack {
    fn name(&self) -> &'static str {
        "conntrack"
    }

    fn resume(&mut self, old: &dyn FunctionSpec) -> bool {
        is_equal(self, old)
    }

    fn adopt(&mut self, words: &mut [u64]) -> bool {
        Connection::is_valid(words)
    }

    fn describe(&self) -> Vec<String> {
        let Config { invalid, loose, timeouts, .. } = &self.config;
        let opens = if *loose { "TCP opens by any segment with ACK" } else { "TCP opens by SYN" };
        let becomes = match invalid {
            Invalid::Drop => "packets of no connection are dropped",
            Invalid::Pass => "packets of no connection are counted and pass",
        };
        vec![format!("{opens}; {becomes}"), format!("forgotten after {timeouts}")]
    }

    fn form(&self) -> Form<'_> {
        Form::PerFlow(self)
    }
}

impl PerFlow for Conntrack {
    fn keeps(&self) -> StateSpec {
        let words = state_words::<Connection>();
        StateSpec { flows: self.config.flows.clone(), by: &[By::Connection], words }
    }

    fn min_timeout(&self) -> Option<Span> {
        Some(self.config.timeouts.longest())
    }

    fn facts_kept(&self) -> FactsKept {
        Tracker::FACTS
    }

    fn facts(&self, now: u64) -> Facts<'_> {
        Tracker::new(&self.config.timeouts, self.config.loose).facts(now)
    }

    fn function(&self, at: StateAt) -> Box<dyn FlowFunction> {
        Box::new(cpu::ConntrackCpu::new(at, &self.config))
    }

    fn oracle(&self) -> Box<dyn FlowOracle> {
        Box::new(oracle::ConntrackOracle::new(self.config.clone()))
    }

    fn kernel(&self) -> Option<DeviceKernel> {
        const TEXTS: &[Text] = &[
            connections::KERNEL,
            Text {
                name: "conntrack",
                source: include_str!("conntrack.kernel.c"),
                constants: &[
                    ("CLASS_RELATED", Kind::Related as u32),
                    ("CLASS_UNTRACKED", Kind::Untracked as u32),
                ],
            },
        ];
        let Config { timeouts, loose, invalid, .. } = &self.config;
        let parameters = ConntrackParameters {
            connections: Tracker::new(timeouts, *loose).parameters(),
            invalid: invalid.verdict().code().into(),
            reserved: 0,
        };
        Some(DeviceKernel::new(KernelSpec {
            state: Some(Connection::LAYOUT),
            parameters: Parameters::of(&parameters),
            more: vec![(ConntrackMore::LAYOUT, 1)],
            ..KernelSpec::new("conntrack", TEXTS)
        }))
    }
}

packetloom_memory::layout! {
    /// What its step is given.
    #[derive(Clone, Copy, NoUninit)]
    struct ConntrackParameters {
        connections: ConnectionParameters,
        /// The verdict on what is invalid.
        invalid: u32,
        reserved: u32,
    }
}

packetloom_memory::layout! {
    /// What its step counts.
    #[derive(Clone, Copy, Pod, Zeroable)]
    struct ConntrackMore {
        /// By [`Kind`].
        kinds: [Tally; KINDS.len()],
        /// Connections that were opened, by protocol.
        opened: [u64; PROTOCOLS.len()],
        /// How often each state was entered.
        entered: [u64; State::COUNT],
    }
}

/// What a packet is, in the order of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    New = Class::New as isize,
    Established = Class::Established as isize,
    Related,
    Invalid = Class::Invalid as isize,
    Untracked,
}

const KINDS: [&str; 5] = ["new", "established", "related", "invalid", "untracked"];

impl From<Class> for Kind {
    fn from(class: Class) -> Self {
        match class {
            Class::New => Self::New,
            Class::Established => Self::Established,
            Class::Invalid => Self::Invalid,
        }
    }
}

/// Protocols that the report tells apart, in its order.
const PROTOCOLS: [&str; 4] = ["tcp", "udp", "icmp", "other"];

/// A protocol's place among [`PROTOCOLS`].
const fn place(protocol: u8) -> usize {
    match protocol {
        protocol::TCP => 0,
        protocol::UDP => 1,
        protocol::ICMP | protocol::ICMPV6 => 2,
        _ => 3,
    }
}

/// Connections of a protocol by what they came to. What a protocol has not stays 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Connections {
    /// That were opened.
    pub opened: u64,
    /// Of TCP: that became established.
    pub established: u64,
    /// Of TCP: whose sides both sent FIN.
    pub closed: u64,
    /// Of TCP: that were reset.
    pub reset: u64,
    /// Of other protocols: that were answered.
    pub replied: u64,
}

/// What a connection tracker counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConntrackReport {
    /// Packets and IP bytes: new, established, related, invalid, untracked.
    pub packets: [[u64; 2]; 5],
    /// Connections of TCP, UDP, ICMP and ICMPv6, and other protocols.
    pub connections: [Connections; 4],
}

impl ConntrackReport {
    #[inline]
    fn count(&mut self, kind: Kind, bytes: u32) {
        let [packets, all] = &mut self.packets[kind as usize];
        *packets += 1;
        *all += u64::from(bytes);
    }
}

/// What it counted, for machines.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Summary {
    /// Packets that begin a connection.
    new: Volume,
    /// Packets of a connection.
    established: Volume,
    /// ICMP errors that quote a packet of one.
    related: Volume,
    /// Packets that belong to none and begin none.
    invalid: Volume,
    /// Packets whose connections there was no room for, and those of no connection by nature.
    untracked: Volume,
    /// Connections.
    connections: ConnectionsSummary,
}

/// Connections by protocol.
#[derive(Serialize, JsonSchema)]
struct ConnectionsSummary {
    /// Of TCP.
    tcp: TcpConnections,
    /// Of UDP.
    udp: Queries,
    /// Of ICMP and ICMPv6.
    icmp: Queries,
    /// Of other protocols.
    other: Queries,
}

/// Connections of TCP by what they came to.
#[derive(Serialize, JsonSchema)]
struct TcpConnections {
    /// That were opened.
    opened: u64,
    /// That became established.
    established: u64,
    /// Whose sides both sent FIN.
    closed: u64,
    /// That were reset.
    reset: u64,
}

/// Connections of other protocols.
#[derive(Serialize, JsonSchema)]
struct Queries {
    /// That were opened.
    opened: u64,
    /// That were answered.
    replied: u64,
}

impl Report for ConntrackReport {
    fn merge(&mut self, other: &dyn Report) {
        let Some(other) = (other as &dyn Any).downcast_ref::<Self>() else { return };
        for (own, other) in self.packets.iter_mut().flatten().zip(other.packets.iter().flatten()) {
            *own += other;
        }
        for (own, other) in self.connections.iter_mut().zip(&other.connections) {
            own.opened += other.opened;
            own.established += other.established;
            own.closed += other.closed;
            own.reset += other.reset;
            own.replied += other.replied;
        }
    }

    fn json(&self) -> Value {
        let [new, established, related, invalid, untracked] = self.packets.map(Volume::from);
        let [tcp, udp, icmp, other] = self.connections;
        let answered = |Connections { opened, replied, .. }| Queries { opened, replied };
        let Connections { opened, established: into, closed, reset, .. } = tcp;
        summary::value(&Summary {
            new,
            established,
            related,
            invalid,
            untracked,
            connections: ConnectionsSummary {
                tcp: TcpConnections { opened, established: into, closed, reset },
                udp: answered(udp),
                icmp: answered(icmp),
                other: answered(other),
            },
        })
    }

    fn rows(&self) -> Vec<(String, String)> {
        let kinds = KINDS.iter().zip(self.packets);
        let kinds = kinds
            .map(|(&name, [packets, bytes])| (name.into(), format!("{packets} packets, {bytes} IP bytes")));
        let connections = PROTOCOLS.iter().zip(&self.connections).map(|(&name, connections)| {
            let &Connections { opened, established, closed, reset, replied } = connections;
            let counts = match name {
                "tcp" => {
                    format!("{opened} opened, {established} established, {closed} closed, {reset} reset")
                }
                _ => format!("{opened} opened, {replied} answered"),
            };
            (format!("{name} connections"), counts)
        });
        kinds.chain(connections).collect()
    }
}
