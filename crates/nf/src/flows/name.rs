//! Flows by name, and the largest of them.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::fmt;
use std::net::{IpAddr, SocketAddr};

use packetloom_packet::VlanId;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use super::By;

/// What the packets of a flow have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FlowName {
    /// Which of the fields those are.
    pub by: By,
    /// The protocol of a 5-tuple or a connection.
    pub protocol: u8,
    /// The lower endpoint of a 5-tuple, who sent an ICMP query, the source, or the initiator.
    pub a: (IpAddr, u16),
    /// The other endpoint.
    pub b: (IpAddr, u16),
    /// The VLAN, where it is part of the flow and its packets are in one.
    pub vlan: Option<VlanId>,
}

impl FlowName {
    /// For machines: its fields.
    pub fn json(&self) -> Value {
        let Self { by, protocol, a, b, .. } = self;
        match by {
            By::FiveTuple | By::Connection | By::VlanFiveTuple => json!({
                "a": a.0.to_string(), "a_port": a.1, "b": b.0.to_string(), "b_port": b.1, "protocol": protocol,
            }),
            By::Source => json!({ "source": a.0.to_string() }),
            By::Initiator => json!({ "initiator": a.0.to_string() }),
        }
    }
}

impl FlowName {
    /// The schema of [`FlowName::json`] with these counts beside it.
    fn schema(counts: &[&str]) -> Schema {
        let count = json!({ "type": "integer", "minimum": 0 });
        let address = json!({ "type": "string", "description": "An address." });
        let port = json!({ "type": "integer", "minimum": 0, "maximum": 65_535 });
        let of = |fields: &[(&str, &Value)]| {
            let counts = counts.iter().map(|&name| (name, &count));
            let all: Vec<_> = fields.iter().copied().chain(counts).collect();
            let names: Vec<_> = all.iter().map(|(name, _)| *name).collect();
            let properties: Value = all.iter().map(|&(name, schema)| (name, schema.clone())).collect();
            json!({ "type": "object", "properties": properties, "required": names })
        };
        let endpoints =
            [("a", &address), ("a_port", &port), ("b", &address), ("b_port", &port), ("protocol", &count)];
        json_schema!({
            "description": "A flow by what its packets have in common, and what was counted of it.",
            "oneOf": [of(&endpoints), of(&[("source", &address)]), of(&[("initiator", &address)])],
        })
    }
}

impl fmt::Display for FlowName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { by, protocol, a, b, .. } = self;
        match by {
            By::FiveTuple | By::Connection | By::VlanFiveTuple => {
                write!(f, "{} and {}, protocol {protocol}", SocketAddr::from(*a), SocketAddr::from(*b))
            }
            By::Source | By::Initiator => a.0.fmt(f),
        }
    }
}

/// How many are kept.
const MOST: usize = 10;

/// The flows with the most of something, of `N` counts that there are of each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Top<const N: usize> {
    /// What the counts are called.
    counts: [&'static str; N],
    /// Which of them decides.
    by: usize,
    flows: Vec<(FlowName, [u64; N])>,
}

impl<const N: usize> Top<N> {
    /// Those with the most of the count number `by`, of flows with their counts.
    pub fn new(
        counts: [&'static str; N],
        by: usize,
        flows: impl Iterator<Item = (FlowName, [u64; N])>,
    ) -> Self {
        let mut top = Self { counts, by, flows: Vec::new() };
        for flow in flows {
            top.flows.push(flow);
            // Now and then, so that it stays small.
            if top.flows.len() == 64 * MOST {
                top.cut();
            }
        }
        top.cut();
        top
    }

    fn cut(&mut self) {
        let by = self.by;
        self.flows.sort_unstable_by_key(|&(name, counts)| (Reverse((counts[by], counts)), name));
        self.flows.truncate(MOST);
    }

    /// Takes another worker's into account.
    pub fn merge(&mut self, other: &Self) {
        self.flows.extend(&other.flows);
        self.cut();
    }

    /// For people.
    pub fn rows(&self) -> impl Iterator<Item = (String, String)> {
        self.flows.iter().map(|(name, counts)| {
            let counts: Vec<_> =
                counts.iter().zip(self.counts).map(|(count, name)| format!("{count} {name}")).collect();
            (name.to_string(), counts.join(", "))
        })
    }
}

impl<const N: usize> Serialize for Top<N> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.flows.iter().map(|(name, counts)| {
            let mut value = name.json();
            for (name, count) in self.counts.into_iter().zip(counts) {
                value[name] = (*count).into();
            }
            value
        }))
    }
}

impl<const N: usize> JsonSchema for Top<N> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        format!("Top{N}").into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        // All that is counted of flows; see `Top::new`.
        let flow = FlowName::schema(&["packets", "bytes", "flows"][..N.min(3)]);
        json_schema!({ "type": "array", "items": flow, "maxItems": MOST })
    }
}
