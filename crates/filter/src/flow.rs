//! Filters of flows: by addresses, protocols, ports and VLANs alone.

use packetloom_packet::{FlowKey, KeyBits, LinkType, MatchKey4, MatchKey6, Reject, VlanId, protocol};

use crate::frame::Frame;
use crate::program::{KeyRef, Packet};
use crate::tree::{Node, Test};
use crate::{Error, Filter};

/// A filter of flows: a flow matches where a packet of one of its directions would. `vlan` tests the VLAN of a flow, which is that of the outer tag; flows that
/// are not by VLANs [have none](Self::tests_vlans).
///
/// ```
/// # use packetloom_filter::FlowFilter;
/// # use packetloom_packet::{FlowKey, KeyBits, MatchKey4};
/// let filter = FlowFilter::parse("host 10.0.0.1 and tcp port 443")?;
/// let bits = KeyBits::PORTS;
/// let packet = MatchKey4 { source: 0x0a00_0002, destination: 0x0a00_0001, source_port: 443, protocol: 6, bits, ..MatchKey4::default() };
/// assert!(filter.matches(&FlowKey::from_v4(&packet).0));
/// assert!(FlowFilter::parse("less 100").is_err());
/// # Ok::<(), packetloom_filter::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct FlowFilter(Filter);

impl FlowFilter {
    /// Reads one, as [`Filter::parse`] does.
    ///
    /// # Errors
    ///
    /// As [`Filter::parse`]; and tests of what single packets have: lengths, TCP flags, bytes, Ethernet addresses and types.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let filter = Filter::parse(text)?;
        let needs_packets =
            filter.nodes.iter().any(|node| matches!(node, Node::Test(test) if !is_of_flows(test)));
        if needs_packets {
            let message = "it tests what only single packets have; expected tests of hosts, nets, ports, protocols and VLANs, \
                such as \"host 10.0.0.1 and tcp port 443\"";
            return Err(Error::new(text, 0, text, message));
        }
        Ok(Self(filter))
    }

    /// Whether it tests VLANs: of use for flows that are by VLANs, too.
    pub fn tests_vlans(&self) -> bool {
        self.0.nodes.iter().any(|node| matches!(node, Node::Test(Test::Vlan(_))))
    }

    /// Whether a flow matches.
    pub fn matches(&self, flow: &FlowKey) -> bool {
        // Of later fragments flows have no ports.
        let has_ports = protocol::has_ports(flow.protocol) && (flow.a_port | flow.b_port) != 0;
        let bits = if has_ports { KeyBits::PORTS } else { KeyBits::default() };
        let packet = FlowPacket { vlan: flow.vlan };
        let (a, b) = ((flow.a, flow.a_port), (flow.b, flow.b_port));
        [(a, b), (b, a)].into_iter().any(|((source, source_port), (destination, destination_port))| {
            let protocol = flow.protocol;
            match flow.version {
                4 => {
                    let (source, destination) = (source[1] as u32, destination[1] as u32);
                    let ports = MatchKey4 { source_port, destination_port, ..MatchKey4::default() };
                    self.0
                        .program
                        .run(KeyRef::V4(&MatchKey4 { source, destination, protocol, bits, ..ports }), &packet)
                }
                _ => {
                    let ports = MatchKey6 { source_port, destination_port, ..MatchKey6::default() };
                    self.0
                        .program
                        .run(KeyRef::V6(&MatchKey6 { source, destination, protocol, bits, ..ports }), &packet)
                }
            }
        })
    }
}

/// Whether the key of a flow says enough for a test.
fn is_of_flows(test: &Test) -> bool {
    match test {
        Test::Ipv4
        | Test::Ipv6
        | Test::Protocol { .. }
        | Test::Net4 { .. }
        | Test::Net6 { .. }
        | Test::Ports { .. }
        | Test::Ipv4Multicast
        | Test::Ipv6Multicast
        | Test::Vlan(_) => true,
        Test::EtherType(_)
        | Test::Mac { .. }
        | Test::EtherMulticast
        | Test::Length { .. }
        | Test::TcpFlags { .. }
        | Test::Compare(_) => false,
    }
}

/// What a flow has of packets beside addresses, protocol and ports.
struct FlowPacket {
    vlan: Option<VlanId>,
}

impl Packet for FlowPacket {
    fn has_vlan(&self, id: Option<u16>) -> bool {
        self.vlan.is_some_and(|vlan| id.is_none_or(|id| id == vlan.number()))
    }

    fn wire_len(&self) -> u32 {
        0
    }

    fn frame(&self) -> Frame<'_> {
        Frame::without_key(LinkType::NONE, &[], Reject::NotIp).0
    }
}
