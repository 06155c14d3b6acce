//! Frames as bytes, written from the header formats once more: they share no code with either parser.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// What follows the IP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    /// Source and destination port, flags.
    Tcp(u16, u16, u8),
    /// Source and destination port.
    Udp(u16, u16),
    /// Source and destination port.
    Sctp(u16, u16),
    /// Type and code.
    Icmp(u8, u8),
    /// Type and code.
    Icmpv6(u8, u8),
    /// Any other protocol: its number.
    Other(u8),
}

impl Transport {
    pub(crate) fn protocol(self) -> u8 {
        match self {
            Self::Icmp(..) => 1,
            Self::Tcp(..) => 6,
            Self::Udp(..) => 17,
            Self::Icmpv6(..) => 58,
            Self::Sctp(..) => 132,
            Self::Other(protocol) => protocol,
        }
    }

    pub(crate) fn bytes(self) -> Vec<u8> {
        let ports = |source: u16, destination: u16, len: usize| {
            let mut bytes = vec![0; len];
            bytes[..2].copy_from_slice(&source.to_be_bytes());
            bytes[2..4].copy_from_slice(&destination.to_be_bytes());
            bytes
        };
        match self {
            Self::Tcp(source, destination, flags) => {
                let mut bytes = ports(source, destination, 20);
                (bytes[12], bytes[13]) = (0x50, flags);
                bytes
            }
            Self::Udp(source, destination) => ports(source, destination, 8),
            Self::Sctp(source, destination) => ports(source, destination, 12),
            Self::Icmp(kind, code) | Self::Icmpv6(kind, code) => vec![kind, code, 0, 0, 0, 1, 0, 2],
            Self::Other(_) => vec![0xaa; 4],
        }
    }
}

/// Where a packet stands among the fragments of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fragment {
    Whole,
    First,
    /// Offset in units of 8 bytes, and whether more follow.
    Later(u16, bool),
}

impl Fragment {
    fn offset(self) -> u16 {
        if let Self::Later(offset, _) = self { offset } else { 0 }
    }

    fn more(self) -> bool {
        matches!(self, Self::First | Self::Later(_, true))
    }
}

/// An IP packet. A later fragment carries no transport header, only bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Packet {
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
    pub(crate) transport: Transport,
    pub(crate) fragment: Fragment,
    /// IPv4: words of options, at most 10. IPv6: headers before the fragment header, each a number and the value of its
    /// length field.
    pub(crate) options: Vec<(u8, u8)>,
    /// Bytes after the transport header.
    pub(crate) payload: usize,
    /// Type of service, or traffic class.
    pub(crate) class: u8,
}

impl Packet {
    pub(crate) fn new(source: IpAddr, destination: IpAddr, transport: Transport) -> Self {
        let (fragment, options, payload, class) = (Fragment::Whole, Vec::new(), 0, 0);
        Self { source, destination, transport, fragment, options, payload, class }
    }

    /// The packet from its IP header on.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut inner = match self.fragment {
            Fragment::Later(..) => Vec::new(),
            _ => self.transport.bytes(),
        };
        inner.resize(inner.len() + self.payload, 0x5a);
        match (self.source, self.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => self.v4(source, destination, &inner),
            (IpAddr::V6(source), IpAddr::V6(destination)) => self.v6(source, destination, inner),
            _ => panic!("addresses of two families"),
        }
    }

    fn v4(&self, source: Ipv4Addr, destination: Ipv4Addr, inner: &[u8]) -> Vec<u8> {
        let header_len = 20 + 4 * self.options.len();
        let mut bytes = vec![0; header_len];
        (bytes[0], bytes[1]) = (0x40 | (header_len / 4) as u8, self.class);
        bytes[2..4].copy_from_slice(&((header_len + inner.len()) as u16).to_be_bytes());
        let fragment = self.fragment.offset() | if self.fragment.more() { 0x2000 } else { 0 };
        bytes[6..8].copy_from_slice(&fragment.to_be_bytes());
        (bytes[8], bytes[9]) = (64, self.transport.protocol());
        bytes[12..16].copy_from_slice(&source.octets());
        bytes[16..20].copy_from_slice(&destination.octets());
        bytes.extend_from_slice(inner);
        bytes
    }

    fn v6(&self, source: Ipv6Addr, destination: Ipv6Addr, inner: Vec<u8>) -> Vec<u8> {
        // From the last header to the first, so that each knows what follows it.
        let (mut next, mut rest) = (self.transport.protocol(), inner);
        if self.fragment != Fragment::Whole {
            let offset = self.fragment.offset() << 3 | u16::from(self.fragment.more());
            let mut header = vec![next, 0];
            header.extend(offset.to_be_bytes());
            header.extend([0, 0, 0, 7]);
            header.extend(rest);
            (next, rest) = (44, header);
        }
        for &(number, units) in self.options.iter().rev() {
            let len = if number == 51 { (usize::from(units) + 2) * 4 } else { (usize::from(units) + 1) * 8 };
            let mut header = vec![0; len];
            (header[0], header[1]) = (next, units);
            header.extend(rest);
            (next, rest) = (number, header);
        }
        let mut bytes = vec![0x60 | self.class >> 4, self.class << 4, 0, 0];
        bytes.extend((rest.len() as u16).to_be_bytes());
        bytes.extend([next, 64]);
        bytes.extend(source.octets());
        bytes.extend(destination.octets());
        bytes.extend(rest);
        bytes
    }

    /// An Ethernet frame of `bytes`, which are this packet's or were made from them.
    pub(crate) fn in_frame(&self, bytes: &[u8]) -> Vec<u8> {
        ethernet(if self.source.is_ipv4() { 0x0800 } else { 0x86dd }, bytes)
    }
}

/// An Ethernet frame.
pub(crate) fn ethernet(ethertype: u16, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0x02; 12];
    bytes.extend(ethertype.to_be_bytes());
    bytes.extend(payload);
    bytes
}
