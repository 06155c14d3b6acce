//! The connection that a packet belongs to: that of its 5-tuple, of a query's identifier, or of the packet that an error quotes.
//!
//! - TCP, UDP, SCTP and other protocols: the 5-tuple, both directions.
//! - ICMP and ICMPv6 queries and their replies (RFC 792, RFC 950, RFC 4443): requester, responder and identifier, as RFC 5508
//!   has it. The requester is endpoint `a`, and both ports are the identifier.
//! - Errors: ICMP destination unreachable, time exceeded and parameter problem (RFC 792), ICMPv6's types 1 to 4 (RFC 4443), are
//!   of the connection of the packet that they quote, and go the other way (RFC 5508 section 5). Source quench is deprecated
//!   (RFC 6633), and a redirect is about a route.
//! - Other messages, such as neighbour discovery, and later fragments of protocols with ports or messages, are of none; nor are
//!   errors that quote one of these.

use super::{Transport, network_layer, walk_ipv4, walk_ipv6};
use crate::wire::be16;
use crate::{FlowKey, Key, KeyBits, LinkType, Reject, protocol};

/// What a packet is to a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// One of its packets.
    #[default]
    Member,
    /// An error that quotes one of its packets.
    Related,
    /// Of none, since it is cut off, or quotes what no connection sends.
    Invalid,
    /// Of none.
    Untracked,
}

/// A packet's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    /// Which; the packet's 5-tuple where it belongs to none.
    pub flow: FlowKey,
    /// Whether endpoint `a` sent the packet; of an error, whether it goes to endpoint `b`.
    pub from_a: bool,
    /// What the packet is to it.
    pub role: Role,
}

/// What an ICMP or ICMPv6 message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// A query with an identifier.
    Request,
    /// The answer to one.
    Reply,
    /// An error that quotes a packet.
    Error,
    /// Anything else.
    Other,
}

impl Message {
    /// What a message of a type is; ICMPv6's where `protocol` is that.
    pub const fn of(protocol: u8, message_type: u8) -> Self {
        match (protocol, message_type) {
            // Echo, timestamp, information (RFC 792) and address mask (RFC 950).
            (protocol::ICMP, 8 | 13 | 15 | 17) | (protocol::ICMPV6, 128) => Self::Request,
            (protocol::ICMP, 0 | 14 | 16 | 18) | (protocol::ICMPV6, 129) => Self::Reply,
            (protocol::ICMP, 3 | 11 | 12) | (protocol::ICMPV6, 1..=4) => Self::Error,
            _ => Self::Other,
        }
    }
}

/// Bytes that every message has, and where the identifier of a query stands.
const MESSAGE: usize = 8;
const IDENTIFIER: usize = 4;

impl Connection {
    /// What a packet is to the connection of its 5-tuple; `None` for ICMP and ICMPv6, whose bytes say more.
    #[inline]
    pub const fn role_of(protocol: u8, bits: KeyBits) -> Option<Role> {
        let is_message = protocol::has_type_and_code(protocol);
        if bits.contains(KeyBits::LATER_FRAGMENT) && (is_message || protocol::has_ports(protocol)) {
            return Some(Role::Untracked);
        }
        if is_message { None } else { Some(Role::Member) }
    }

    /// The connection of a packet, given its key, what its frame begins with, the captured bytes and how many there were.
    pub fn of(key: &Key, link: LinkType, data: &[u8], wire_len: u32) -> Self {
        let ((flow, from_a), protocol, bits) = match key {
            Key::V4(key) => (FlowKey::from_v4(key), key.protocol, key.bits),
            Key::V6(key) => (FlowKey::from_v6(key), key.protocol, key.bits),
        };
        let with = |role| Self { flow, from_a, role };
        match Self::role_of(protocol, bits) {
            Some(role) => with(role),
            None => match message(link, data, wire_len) {
                Ok(Some(found)) => found,
                Ok(None) => with(Role::Untracked),
                Err(_) => with(Role::Invalid),
            },
        }
    }
}

/// What is read of a packet again for its connection.
struct Packet<'a> {
    version: u8,
    source: [u64; 2],
    destination: [u64; 2],
    protocol: u8,
    transport: Transport,
    payload: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Walks the headers of an IP packet.
    fn new(packet: &'a [u8], wire_len: u32) -> Result<Self, Reject> {
        match packet.first().map(|first| first >> 4) {
            Some(4) => {
                let walk = walk_ipv4(packet, wire_len)?;
                Ok(Self {
                    version: 4,
                    source: [0, walk.header.source().into()],
                    destination: [0, walk.header.destination().into()],
                    protocol: walk.protocol,
                    transport: walk.transport()?,
                    payload: walk.payload,
                })
            }
            Some(6) => {
                let walk = walk_ipv6(packet, wire_len)?;
                Ok(Self {
                    version: 6,
                    source: walk.header.source(),
                    destination: walk.header.destination(),
                    protocol: walk.protocol,
                    transport: walk.transport()?,
                    payload: walk.payload,
                })
            }
            _ => Err(Reject::IpMalformed),
        }
    }

    /// What the message is that it carries, and the message; it has to be its IP version's.
    fn message(&self) -> Result<(Message, &'a [u8; MESSAGE], &'a [u8]), Reject> {
        let of_version = if self.version == 4 { protocol::ICMP } else { protocol::ICMPV6 };
        if self.protocol != of_version {
            return Err(Reject::IpMalformed);
        }
        let (header, rest) = self.payload.split_first_chunk().ok_or(Reject::TransportTruncated)?;
        Ok((Message::of(self.protocol, header[0]), header, rest))
    }

    /// The connection of a query or of its reply.
    fn query(&self, message: Message, header: &[u8; MESSAGE]) -> (FlowKey, bool) {
        let from_a = message == Message::Request;
        let (a, b) = if from_a { (self.source, self.destination) } else { (self.destination, self.source) };
        let identifier = be16!(header, IDENTIFIER);
        (FlowKey::new(self.version, self.protocol, (a, identifier), (b, identifier)), from_a)
    }

    /// The connection of a packet that an error quotes, and who sent it; `None` where it has none.
    fn quoted(&self) -> Result<Option<(FlowKey, bool)>, Reject> {
        match Connection::role_of(self.protocol, self.transport.bits) {
            Some(Role::Member) => {
                let Transport { source_port, destination_port, .. } = self.transport;
                let (source, destination) =
                    ((self.source, source_port), (self.destination, destination_port));
                Ok(Some(FlowKey::between(self.version, self.protocol, source, destination)))
            }
            Some(_) => Ok(None),
            None => match self.message()? {
                (message @ (Message::Request | Message::Reply), header, _) => {
                    Ok(Some(self.query(message, header)))
                }
                (Message::Other, ..) => Ok(None),
                // No error is about an error (RFC 1122 section 3.2.2, RFC 4443 section 2.4).
                (Message::Error, ..) => Err(Reject::IpMalformed),
            },
        }
    }
}

/// The connection of an ICMP or ICMPv6 message; `None` where it has none.
#[cold]
fn message(link: LinkType, data: &[u8], wire_len: u32) -> Result<Option<Connection>, Reject> {
    let packet = network_layer(link, data)?;
    let wire_len = wire_len.saturating_sub((data.len() - packet.len()) as u32);
    let outer = Packet::new(packet, wire_len)?;
    let (message, header, rest) = outer.message()?;
    Ok(match message {
        Message::Request | Message::Reply => {
            let (flow, from_a) = outer.query(message, header);
            Some(Connection { flow, from_a, role: Role::Member })
        }
        Message::Error => {
            // As many bytes as are there, whatever their number was.
            let quoted = Packet::new(rest, rest.len() as u32)?;
            // An error goes to who sent what it quotes (RFC 1122 section 3.2.2, RFC 4443 section 2.2); to anybody else anyone could send one that
            // quotes a connection of their own.
            if quoted.version != outer.version || quoted.source != outer.destination {
                return Err(Reject::IpMalformed);
            }
            quoted.quoted()?.map(|(flow, from_a)| Connection { flow, from_a: !from_a, role: Role::Related })
        }
        Message::Other => None,
    })
}
