//! What a rule asks of a packet: the plain form that rules and headers share.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use packetloom_classify::rule::{Addresses, PortRange, Prefix4, Prefix6, TcpFlagMatch};
use packetloom_classify::{Action, Rule};

use crate::random::mix;

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

/// How many ports a range holds.
pub(crate) fn count(range: PortRange) -> u64 {
    u64::from(range.high - range.low) + 1
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
    pub flags: Option<TcpFlagMatch>,
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
            flags: None,
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

/// What headers are made for, of a rule: one shape, or one for each family where the rule is for either. ICMP types and
/// fragments are left out: a header of the shape may miss such a rule.
impl RuleShape {
    /// The shapes of `rule`.
    pub fn of(rule: &Rule) -> impl Iterator<Item = Self> + use<> {
        let shape = |ipv6, [source, destination]: [Prefix; 2]| Self {
            ipv6,
            source,
            destination,
            source_ports: rule.source_ports,
            destination_ports: rule.destination_ports,
            protocol: rule.protocol,
            flags: rule.tcp_flags,
        };
        let shapes = match rule.addresses {
            Addresses::Any => [Some(shape(false, [Prefix::ANY; 2])), Some(shape(true, [Prefix::ANY; 2]))],
            Addresses::V4(source, destination) => {
                let prefix = |p: Prefix4| Prefix { address: p.address().into(), len: p.len() };
                [Some(shape(false, [prefix(source), prefix(destination)])), None]
            }
            Addresses::V6(source, destination) => {
                let prefix = |p: Prefix6| Prefix { address: p.address(), len: p.len() };
                [Some(shape(true, [prefix(source), prefix(destination)])), None]
            }
        };
        shapes.into_iter().flatten()
    }

    /// The rule of this shape.
    pub fn rule(&self, action: Action) -> Rule {
        let v4 = |p: Prefix| Prefix4::new(p.address as u32, p.len);
        let v6 = |p: Prefix| Prefix6::new(p.address, p.len);
        Rule {
            addresses: if self.ipv6 {
                Addresses::V6(v6(self.source), v6(self.destination))
            } else {
                Addresses::V4(v4(self.source), v4(self.destination))
            },
            protocol: self.protocol,
            source_ports: self.source_ports,
            destination_ports: self.destination_ports,
            tcp_flags: self.flags,
            ..Rule::any(Some(action))
        }
    }
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
}
