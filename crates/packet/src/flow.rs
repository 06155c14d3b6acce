//! Flow records: what a meter exports.

use std::net::IpAddr;
use std::sync::Arc;

use crate::Timestamp;

/// The packets of one direction of a flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HalfFlow {
    /// Time of the first packet; meaningless while `packets` is 0.
    pub first: Timestamp,
    /// Latest time of any packet.
    pub last: Timestamp,
    /// Packets.
    pub packets: u64,
    /// IP bytes: total length (IPv4) or 40 + payload length (IPv6).
    pub bytes: u64,
    /// OR over the packets' TCP flags.
    pub tcp_flags: u8,
}

/// What a meter keeps of one direction beside its counters, where it is asked for it. All 0 and `None` while there is no packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Details {
    /// IP bytes of the shortest packet, and of the longest one.
    pub lengths: [u32; 2],
    /// The lowest and the highest TTL, or hop limit.
    pub ttls: [u8; 2],
    /// Type of service, or traffic class, of the first packet.
    pub class_of_service: u8,
    /// TCP flags of the first packet.
    pub first_tcp_flags: u8,
    /// OR over the packets' fragmentation flags: 0x40 do not fragment, 0x20 more fragments.
    pub fragment_flags: u8,
    /// Packets that were fragments, the first ones of several or later ones.
    pub fragments: u64,
    /// ICMP type and code of the first packet.
    pub icmp: Option<(u8, u8)>,
    /// The VLAN that the first packet was in, by its outer tag.
    pub vlan: Option<u16>,
    /// Ethernet addresses of the first packet: source and destination.
    pub macs: Option<[[u8; 6]; 2]>,
    /// The ports that the first packet came in by, and left by if there are such.
    pub ingress: u16,
    /// See above.
    pub egress: Option<u16>,
}

/// What a payload said that a flow is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NameKind {
    /// The name that is asked for in DNS.
    DnsQuery,
    /// The server that a TLS client asks for, over TCP or QUIC.
    TlsServer,
    /// The host of an HTTP request.
    HttpHost,
}

/// More about a flow than its counters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct More {
    /// Of [forward, reverse].
    pub details: [Details; 2],
    /// The names in its payloads, each once, in the order in which they came; [`NAMES_MAX`] at most.
    pub names: Vec<(NameKind, Box<str>)>,
}

/// Names that a record has at most.
pub const NAMES_MAX: usize = 16;

/// Why a record ended (IPFIX `flowEndReason`, element 136).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum EndReason {
    /// No packet for the idle timeout.
    IdleTimeout = 1,
    /// The active timeout passed while packets kept coming.
    ActiveTimeout = 2,
    /// The connection was seen to end.
    EndOfFlow = 3,
    /// The meter was stopped, or its input ended.
    ForcedEnd = 4,
    /// The table was full, and another flow needed the place.
    LackOfResources = 5,
}

/// One bidirectional flow (RFC 5103), seen from the sender of its first packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowRecord {
    /// Sender of the first packet.
    pub source: IpAddr,
    /// Receiver of the first packet.
    pub destination: IpAddr,
    /// Port of `source`, or 0.
    pub source_port: u16,
    /// Port of `destination`, or 0.
    pub destination_port: u16,
    /// IP protocol number.
    pub protocol: u8,
    /// Packets from `source` to `destination`; never empty.
    pub forward: HalfFlow,
    /// Packets the other way; may be empty.
    pub reverse: HalfFlow,
    /// Why the record ended.
    pub end_reason: EndReason,
    /// What is known beside that, where it is asked for.
    pub more: Option<Arc<More>>,
}

impl FlowRecord {
    /// Time of the record's first packet.
    pub fn start(&self) -> Timestamp {
        self.forward.first
    }

    /// Latest time of any packet of the record.
    pub fn end(&self) -> Timestamp {
        if self.reverse.packets == 0 { self.forward.last } else { self.forward.last.max(self.reverse.last) }
    }

    /// The record with all times so many nanoseconds later, or earlier.
    #[must_use]
    pub fn shifted(&self, nanos: i64) -> Self {
        let shift = |half: HalfFlow| HalfFlow {
            first: half.first.shifted(nanos),
            last: half.last.shifted(nanos),
            ..half
        };
        Self { forward: shift(self.forward), reverse: shift(self.reverse), ..self.clone() }
    }

    /// The VLAN that the first packet was in, where it is kept.
    pub fn vlan(&self) -> Option<u16> {
        self.more.as_ref()?.details[0].vlan
    }

    /// Directions in which a packet was seen: 1 or 2.
    pub fn directions(&self) -> u64 {
        1 + u64::from(self.reverse.packets > 0)
    }
}
