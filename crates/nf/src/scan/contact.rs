//! Which packets begin a conversation with somebody, and with whom, as a hash.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use packetloom_packet::key::join;
use packetloom_packet::{FlowKey, Key, KeyBits, MatchKey4, MatchKey6, protocol};

use super::Distinct;

/// TCP's flags SYN and ACK.
const SYN: u8 = 0x02;
const ACK: u8 = 0x10;

/// Whether it is the first packet of a TCP connection: SYN without ACK, retransmitted or not.
#[inline]
pub(super) fn opens_connection(tcp_flags: u8) -> bool {
    tcp_flags & (SYN | ACK) == SYN
}

/// Whether it is the answer to one.
#[inline]
pub(super) fn answers(tcp_flags: u8) -> bool {
    tcp_flags & (SYN | ACK) == SYN | ACK
}

/// The hash of an address (in the low half where it is IPv4's), and of a service there or (0, 0); keyed by `seed`.
#[inline]
pub(super) fn hash(address: [u64; 2], version: u8, (protocol, port): (u8, u16), seed: u64) -> u64 {
    let key = FlowKey { a: address, b: [0; 2], a_port: port, b_port: 0, protocol, version, vlan: None };
    key.hash(seed)
}

/// An address of an IP version, of IPv4 in the low half.
pub(super) fn address(halves: [u64; 2], version: u8) -> IpAddr {
    match version {
        4 => IpAddr::V4(Ipv4Addr::from(halves[1] as u32)),
        _ => IpAddr::V6(Ipv6Addr::from(join(halves))),
    }
}

/// What is asked about either version's headers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Headers {
    /// Source and destination.
    pub(super) ends: [[u64; 2]; 2],
    pub(super) version: u8,
    pub(super) protocol: u8,
    /// 0 where there is none.
    pub(super) destination_port: u16,
    pub(super) tcp_flags: u8,
    pub(super) has_ports: bool,
}

impl From<Key> for Headers {
    #[inline]
    fn from(key: Key) -> Self {
        match key {
            Key::V4(MatchKey4 {
                source, destination, destination_port, protocol, tcp_flags, bits, ..
            }) => {
                let ends = [[0, source.into()], [0, destination.into()]];
                let has_ports = bits.contains(KeyBits::PORTS);
                Self { ends, version: 4, protocol, destination_port, tcp_flags, has_ports }
            }
            Key::V6(MatchKey6 {
                source, destination, destination_port, protocol, tcp_flags, bits, ..
            }) => {
                let has_ports = bits.contains(KeyBits::PORTS);
                let ends = [source, destination];
                Self { ends, version: 6, protocol, destination_port, tcp_flags, has_ports }
            }
        }
    }
}

impl Headers {
    /// Whether it is a UDP packet whose ports are known: the first fragment, if it is one.
    #[inline]
    pub(super) fn is_udp(&self) -> bool {
        self.protocol == protocol::UDP && self.has_ports
    }

    /// The hash of what is contacted, as far as it makes contacts distinct.
    #[inline]
    pub(super) fn contact(&self, distinct: Distinct, seed: u64) -> u64 {
        let service = (self.protocol, self.destination_port);
        let [_, destination] = self.ends;
        match distinct {
            Distinct::Both => hash(destination, self.version, service, seed),
            Distinct::Destinations => hash(destination, self.version, (0, 0), seed),
            Distinct::Ports => hash([0; 2], 0, service, seed),
        }
    }
}
