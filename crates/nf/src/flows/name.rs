//! Flows by name, and the largest of them.

use std::cmp::Reverse;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use serde_json::{Value, json};

use super::By;

/// What the packets of a flow have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FlowName {
    /// Which of the fields those are.
    pub by: By,
    /// The protocol of a 5-tuple.
    pub protocol: u8,
    /// The lower endpoint of a 5-tuple, or the source.
    pub a: (IpAddr, u16),
    /// The higher endpoint of a 5-tuple.
    pub b: (IpAddr, u16),
}

impl FlowName {
    /// For machines: its fields.
    pub fn json(&self) -> Value {
        let Self { by, protocol, a, b } = self;
        match by {
            By::FiveTuple => json!({
                "a": a.0.to_string(), "a_port": a.1, "b": b.0.to_string(), "b_port": b.1, "protocol": protocol,
            }),
            By::Source => json!({ "source": a.0.to_string() }),
        }
    }
}

impl fmt::Display for FlowName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { by, protocol, a, b } = self;
        match by {
            By::FiveTuple => {
                write!(f, "{} and {}, protocol {protocol}", SocketAddr::from(*a), SocketAddr::from(*b))
            }
            By::Source => a.0.fmt(f),
        }
    }
}

/// How many are kept.
const MOST: usize = 10;

/// The flows with the most of something.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Top(Vec<(FlowName, u64, u64)>);

impl Top {
    /// Those with the most bytes, of flows with their packets and bytes.
    pub fn new(flows: impl Iterator<Item = (FlowName, u64, u64)>) -> Self {
        let mut top = Self::default();
        for flow in flows {
            top.0.push(flow);
            // Now and then, so that it stays small.
            if top.0.len() == 64 * MOST {
                top.cut();
            }
        }
        top.cut();
        top
    }

    fn cut(&mut self) {
        self.0.sort_unstable_by_key(|&(name, packets, bytes)| (Reverse((bytes, packets)), name));
        self.0.truncate(MOST);
    }

    /// Takes another worker's into account.
    pub fn merge(&mut self, other: &Self) {
        self.0.extend(&other.0);
        self.cut();
    }

    /// For machines.
    pub fn json(&self) -> Value {
        let flow = |(name, packets, bytes): &(FlowName, u64, u64)| {
            let mut value = name.json();
            value["packets"] = (*packets).into();
            value["bytes"] = (*bytes).into();
            value
        };
        self.0.iter().map(flow).collect()
    }

    /// For people.
    pub fn rows(&self) -> impl Iterator<Item = (String, String)> {
        self.0
            .iter()
            .map(|(name, packets, bytes)| (name.to_string(), format!("{packets} packets, {bytes} bytes")))
    }
}
