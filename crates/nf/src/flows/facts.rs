//! Flows as somebody outside asks for them: which ones, and what functions say of them.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use packetloom_filter::FlowFilter;
use packetloom_packet::key::join;
use packetloom_packet::{FlowKey, VlanId, protocol};

use crate::connections::State;

/// What a function says of a flow by its state. Times are in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct FlowFacts {
    /// Packets and their IP bytes, of both directions.
    pub counts: Option<[u64; 2]>,
    /// The time of the first packet.
    pub first: Option<u64>,
    /// The time of the last packet, where it is another one than the entry's.
    pub last: Option<u64>,
    /// Whether endpoint `a` sent the first packet.
    pub from_a: Option<bool>,
    /// The state of a connection.
    pub state: Option<State>,
    /// The time at which a connection is gone, if no packet comes before.
    pub expires: Option<u64>,
}

/// Which [`FlowFacts`] a function has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FactsKept {
    /// Packets and bytes.
    pub counts: bool,
    /// The time of the first packet.
    pub first: bool,
    /// The state of a connection.
    pub state: bool,
}

/// Which flows are meant.
#[derive(Clone, Debug)]
pub enum Selection {
    /// All of them.
    All,
    /// Those that match.
    Filter(FlowFilter),
    /// One.
    Flow(FlowEnds),
}

impl Selection {
    /// Whether it says something of VLANs that flows have only if they are by VLANs, too.
    pub fn tests_vlans(&self) -> bool {
        matches!(self, Self::Filter(filter) if filter.tests_vlans())
    }

    /// Whether a flow is among them, which may be by one address.
    pub fn has(&self, flow: &FlowKey, is_by_address: bool) -> bool {
        match self {
            Self::All => true,
            // At both ends, so that it does not matter which one is asked for.
            Self::Filter(filter) if is_by_address => filter.matches(&FlowKey { b: flow.a, ..*flow }),
            Self::Filter(filter) => filter.matches(flow),
            Self::Flow(ends) => ends.is(flow, is_by_address),
        }
    }
}

/// What a function says of flows by its states: none of one that is over.
pub type Facts<'a> = Box<dyn Fn(&[u64]) -> Option<FlowFacts> + Send + Sync + 'a>;

/// A flow as text: "tcp 10.0.0.1:1234 10.0.0.2:80", "icmp 10.0.0.1 10.0.0.2", or where flows are by one address,
/// "10.0.0.1". A port of 0 may be left out; of an ICMP query as a connection both are its identifier. Where the VLAN is part of a flow, and its
/// packets are in one, " vlan 12" comes behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowEnds {
    /// Of flows by one address.
    Address(IpAddr),
    /// A protocol and two ends, in any order; the VLAN.
    Ends(u8, [(IpAddr, u16); 2], Option<VlanId>),
}

fn address(version: u8, halves: [u64; 2]) -> IpAddr {
    match version {
        4 => Ipv4Addr::from(halves[1] as u32).into(),
        _ => Ipv6Addr::from(join(halves)).into(),
    }
}

impl FlowEnds {
    /// Those of a flow, which may be by one address; the one that began it first, if that is known.
    pub fn of(flow: &FlowKey, is_by_address: bool, from_a: Option<bool>) -> Self {
        let a = (address(flow.version, flow.a), flow.a_port);
        let b = (address(flow.version, flow.b), flow.b_port);
        match is_by_address {
            true => Self::Address(a.0),
            false => {
                Self::Ends(flow.protocol, if from_a == Some(false) { [b, a] } else { [a, b] }, flow.vlan)
            }
        }
    }

    /// Whether they are those of a flow.
    fn is(&self, flow: &FlowKey, is_by_address: bool) -> bool {
        let end = |halves, port| (address(flow.version, halves), port);
        let (a, b) = (end(flow.a, flow.a_port), end(flow.b, flow.b_port));
        match *self {
            Self::Address(address) => is_by_address && a.0 == address,
            Self::Ends(protocol, ends, vlan) => {
                let is_between = ends == [a, b] || ends == [b, a];
                !is_by_address && flow.protocol == protocol && is_between && flow.vlan == vlan
            }
        }
    }
}

impl fmt::Display for FlowEnds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (number, [a, b], vlan) = match self {
            Self::Address(address) => return address.fmt(f),
            Self::Ends(protocol, ends, vlan) => (*protocol, *ends, *vlan),
        };
        match protocol::name(number) {
            Some(name) => f.write_str(name)?,
            None => number.fmt(f)?,
        }
        let has_ports = a.1 != 0 || b.1 != 0;
        for end in [a, b] {
            f.write_str(" ")?;
            if has_ports { SocketAddr::from(end).fmt(f)? } else { end.0.fmt(f)? }
        }
        vlan.map_or(Ok(()), |vlan| write!(f, " vlan {}", vlan.number()))
    }
}

impl FromStr for FlowEnds {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "{text:?} is no flow; expected a protocol and two ends, such as \"tcp 10.0.0.1:1234 10.0.0.2:80\", perhaps with \"vlan 12\" \
                 behind, or one address"
            )
        };
        let end = |word: &str| -> Option<(IpAddr, u16)> {
            let of_socket = word.parse::<SocketAddr>().map(|end| (end.ip(), end.port()));
            of_socket
                .ok()
                .or_else(|| Some((word.trim_start_matches('[').trim_end_matches(']').parse().ok()?, 0)))
        };
        let vlan = |word: &str| word.parse().ok().filter(|number| *number < 4096).and_then(VlanId::new);
        let words: Vec<_> = text.split_whitespace().collect();
        match words[..] {
            [address] => Ok(Self::Address(address.parse().map_err(|_| wrong())?)),
            [name, a, b, ref vlans @ ..] => {
                let vlan = match vlans {
                    [] => None,
                    ["vlan", number] => Some(vlan(number).ok_or_else(wrong)?),
                    _ => return Err(wrong()),
                };
                let by_number = || name.parse().ok();
                let protocol =
                    protocol::by_name(&name.to_ascii_lowercase()).or_else(by_number).ok_or_else(wrong)?;
                let (Some(a), Some(b)) = (end(a), end(b)) else { return Err(wrong()) };
                if a.0.is_ipv4() != b.0.is_ipv4() {
                    return Err(format!("{text:?} has ends of IPv4 and of IPv6; expected one version"));
                }
                Ok(Self::Ends(protocol, [a, b], vlan))
            }
            _ => Err(wrong()),
        }
    }
}

#[cfg(test)]
mod tests {
    use packetloom_packet::{KeyBits, MatchKey4};
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// What is printed of a flow names it, whoever stands first, and no other one.
        #[test]
        fn text_names_its_flow(
            [source, destination]: [u32; 2],
            [source_port, destination_port] in prop::array::uniform2(prop_oneof![Just(0u16), Just(80), any::<u16>()]),
            protocol: u8,
            from_a: Option<bool>,
            other: u32,
            vlan in prop_oneof![Just(0), Just(1), 0u16..4096],
        ) {
            let bits = KeyBits::PORTS;
            let key = MatchKey4 { source, destination, source_port, destination_port, protocol, bits, ..MatchKey4::default() };
            let (v4, _) = FlowKey::from_v4(&key);
            let v6 = FlowKey { version: 6, a: [source.into(), 1], b: [source.into(), 2], ..v4 };
            let (elsewhere, _) = FlowKey::from_v4(&MatchKey4 { source: other, ..key });
            let elsewhere = FlowKey { vlan: VlanId::new(vlan), ..elsewhere };
            for flow in [v4, v6].map(|flow| FlowKey { vlan: VlanId::new(vlan), ..flow }) {
                let text = FlowEnds::of(&flow, false, from_a).to_string();
                let named = Selection::Flow(text.parse().expect("a flow"));
                prop_assert!(named.has(&flow, false), "{text}");
                prop_assert!(!named.has(&flow, true), "{text}");
                prop_assert_eq!(named.has(&elsewhere, false), elsewhere == flow, "{}", text);
                for vlan in [0, 1, (vlan + 1) % 4096].map(VlanId::new) {
                    let elsewhere = FlowKey { vlan, ..flow };
                    prop_assert_eq!(named.has(&elsewhere, false), elsewhere == flow, "{}", text);
                }
                let text = FlowEnds::of(&flow, true, None).to_string();
                let named = Selection::Flow(text.parse().expect("an address"));
                prop_assert!(named.has(&flow, true) && !named.has(&flow, false), "{text}");
            }
        }

        /// Any text is a flow or a mistake that says what was expected.
        #[test]
        fn any_text_is_answered(text in "[a-z0-9 :.\\[\\]%-]{0,40}|tcp .{0,40}|tcp 1\\.2\\.3\\.4 ::1 vlan .{0,6}") {
            if let Err(why) = text.parse::<FlowEnds>() {
                prop_assert!(why.contains("expected"), "{why}");
            }
        }
    }
}
