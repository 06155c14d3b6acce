//! What a rule asks of a packet: the plain form that rules and headers share.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::random::mix;

/// IP protocol numbers that are treated apart.
pub(crate) mod protocol {
    pub(crate) const ICMP: u8 = 1;
    pub(crate) const TCP: u8 = 6;
    pub(crate) const UDP: u8 = 17;
    pub(crate) const GRE: u8 = 47;
    pub(crate) const ESP: u8 = 50;
    pub(crate) const AH: u8 = 51;
    pub(crate) const ICMPV6: u8 = 58;
    pub(crate) const SCTP: u8 = 132;
}

/// An address prefix. The family is its owner's affair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Prefix {
    /// The address; an IPv4 address is the low 32 bits. Bits past the length do not count.
    pub address: u128,
    /// Bits that are fixed, counted from the family's highest: 0 to 32, or 0 to 128.
    pub len: u8,
}

impl Prefix {
    /// Every address.
    pub const ANY: Self = Self { address: 0, len: 0 };

    /// A hash that tells different prefixes apart.
    pub(crate) fn hash(self) -> u64 {
        mix(mix(mix((self.address >> 64) as u64) ^ self.address as u64) ^ u64::from(self.len))
    }

    /// The lowest and the highest address, in a family of `bits` bits.
    pub(crate) fn bounds(self, bits: u32) -> (u128, u128) {
        let free = bits - u32::from(self.len);
        // The low `free` bits; 128 of them overflow a shift.
        let mask = u128::MAX.checked_shr(128 - free).unwrap_or(0);
        (self.address & !mask, self.address | mask)
    }
}

/// A range of ports, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PortRange {
    /// The lowest port.
    pub low: u16,
    /// The highest port, not below `low`.
    pub high: u16,
}

impl PortRange {
    /// Every port; a rule with it asks for none.
    pub const ANY: Self = Self { low: 0, high: u16::MAX };

    /// One port.
    pub const fn exactly(port: u16) -> Self {
        Self { low: port, high: port }
    }

    /// Whether it is [`PortRange::ANY`].
    pub const fn is_any(self) -> bool {
        self.low == 0 && self.high == u16::MAX
    }

    /// Whether it holds `port`.
    pub const fn contains(self, port: u16) -> bool {
        self.low <= port && port <= self.high
    }

    /// How many ports it holds.
    pub(crate) fn count(self) -> u64 {
        u64::from(self.high - self.low) + 1
    }
}

/// `443` or `1024-65535`.
impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.low == self.high {
            write!(f, "{}", self.low)
        } else {
            write!(f, "{}-{}", self.low, self.high)
        }
    }
}

/// TCP flags that a rule looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlagMatch {
    /// Those of `mask` that must be set; the others of `mask` must not.
    pub set: u8,
    /// The flags looked at; 0 where a rule asks for none.
    pub mask: u8,
}

impl FlagMatch {
    /// No flag is looked at.
    pub const NONE: Self = Self { set: 0, mask: 0 };
    /// A packet of a connection that exists: ACK set.
    pub const ACK: Self = Self { set: 0x10, mask: 0x10 };
}

/// Flags as letters, the lowest bit first: FIN, SYN, RST, PSH, ACK, URG, ECE, CWR.
pub(crate) struct FlagLetters(pub(crate) u8);

impl fmt::Display for FlagLetters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letters = "FSRPAUEC".char_indices();
        letters.filter(|(bit, _)| self.0 >> bit & 1 == 1).try_for_each(|(_, letter)| write!(f, "{letter}"))
    }
}

/// What a rule asks of a packet. A packet must meet all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RuleShape {
    /// IPv6, not IPv4.
    pub ipv6: bool,
    /// Where the packet comes from.
    pub source: Prefix,
    /// Where it goes to.
    pub destination: Prefix,
    /// Source ports.
    pub source_ports: PortRange,
    /// Destination ports.
    pub destination_ports: PortRange,
    /// The IP protocol; `None` is any.
    pub protocol: Option<u8>,
    /// TCP flags; of use with TCP only.
    pub flags: FlagMatch,
}

impl RuleShape {
    /// The rule that every packet of its family meets.
    pub const fn any(ipv6: bool) -> Self {
        Self {
            ipv6,
            source: Prefix::ANY,
            destination: Prefix::ANY,
            source_ports: PortRange::ANY,
            destination_ports: PortRange::ANY,
            protocol: None,
            flags: FlagMatch::NONE,
        }
    }

    /// A hash that tells apart what differs in addresses, ports or protocol.
    pub(crate) fn hash(&self) -> u64 {
        let PortRange { low: source_low, high: source_high } = self.source_ports;
        let PortRange { low: destination_low, high: destination_high } = self.destination_ports;
        let ports = [source_low, source_high, destination_low, destination_high];
        let ports = ports.iter().fold(0, |word, &port| word << 16 | u64::from(port));
        let protocol = self.protocol.map_or(0, |number| 1 + u64::from(number)) << 1 | u64::from(self.ipv6);
        let words = [self.source.hash(), self.destination.hash(), ports, protocol];
        words.iter().fold(0, |hash, word| mix(hash ^ word))
    }

    /// Bits of an address.
    pub(crate) fn bits(&self) -> u32 {
        family_bits(self.ipv6)
    }
}

/// Bits of an address: 32 or 128.
pub(crate) fn family_bits(ipv6: bool) -> u32 {
    if ipv6 { 128 } else { 32 }
}

/// The address in its usual text form (RFC 5952 for IPv6).
pub(crate) fn ip(ipv6: bool, address: u128) -> IpAddr {
    if ipv6 { IpAddr::V6(Ipv6Addr::from(address)) } else { IpAddr::V4(Ipv4Addr::from(address as u32)) }
}

/// A protocol as Packetloom's formats name it.
pub(crate) struct ProtocolName(pub(crate) u8);

impl fmt::Display for ProtocolName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            protocol::TCP => f.write_str("tcp"),
            protocol::UDP => f.write_str("udp"),
            protocol::ICMP => f.write_str("icmp"),
            protocol::ICMPV6 => f.write_str("icmpv6"),
            protocol::SCTP => f.write_str("sctp"),
            number => write!(f, "{number}"),
        }
    }
}

/// How rules and headers are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TextFormat {
    /// ClassBench's filter and trace lines; IPv4 only, and filters have no action.
    ClassBench,
    /// Packetloom's own.
    Packetloom,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_of_prefixes() {
        let net = Prefix { address: 0x0a01_0203, len: 24 };
        assert_eq!(net.bounds(32), (0x0a01_0200, 0x0a01_02ff));
        assert_eq!(Prefix::ANY.bounds(32), (0, 0xffff_ffff));
        assert_eq!(Prefix::ANY.bounds(128), (0, u128::MAX));
        assert_eq!(Prefix { address: 7, len: 128 }.bounds(128), (7, 7));
    }

    #[test]
    fn flags_as_letters() {
        assert_eq!(FlagLetters(0x12).to_string(), "SA");
        assert_eq!(FlagLetters(0xff).to_string(), "FSRPAUEC");
    }
}
