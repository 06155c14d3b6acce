//! The three kinds of rule sets, as tables.
//!
//! The shares follow what Taylor and Turner report of real filter sets ("ClassBench: A Packet
//! Classification Benchmark", IEEE/ACM Transactions on Networking 15(3), 2007): which prefix
//! lengths go together, which classes of port ranges, how the values of a field repeat. The
//! numbers are rounded and the ports are the registered ones; no parameter file was copied.

mod acl;
mod fw;
mod ipc;

use std::fmt;
use std::str::FromStr;

use crate::error::GenerateError;
use packetloom_classify::rule::PortRange;

/// A kind of rule set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Style {
    /// Access control lists of providers' routers: specific on both sides, any source port.
    Acl,
    /// Firewalls: one side is often wild, ports on both sides.
    Fw,
    /// IP chains: many combinations of prefix lengths, a third of any protocol.
    Ipc,
}

impl Style {
    /// All styles.
    pub const ALL: [Self; 3] = [Self::Acl, Self::Fw, Self::Ipc];

    /// `acl`, `fw` or `ipc`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Acl => "acl",
            Self::Fw => "fw",
            Self::Ipc => "ipc",
        }
    }

    pub(super) fn profile(self) -> &'static Profile {
        match self {
            Self::Acl => &acl::PROFILE,
            Self::Fw => &fw::PROFILE,
            Self::Ipc => &ipc::PROFILE,
        }
    }
}

impl fmt::Display for Style {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Style {
    type Err = GenerateError;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|style| style.name() == name)
            .ok_or_else(|| GenerateError::UnknownStyle(name.to_owned()))
    }
}

/// Things with their weights.
pub(super) type Weights<T> = &'static [(T, u32)];

/// What the rules of a style look like.
pub(super) struct Profile {
    /// Which prefix lengths go together. Lengths are those of IPv4; see `prefixes` for IPv6.
    pub(super) lengths: Weights<Lengths>,
    /// Which protocols and classes of port ranges go together.
    pub(super) services: Weights<Service>,
    /// The prefixes on either side.
    pub(super) source: Side,
    pub(super) destination: Side,
    /// The source and destination ports of [`Ports::Exact`], the most popular first.
    pub(super) source_ports: &'static [u16],
    pub(super) destination_ports: &'static [u16],
    /// The ranges of [`Ports::Range`], likewise, for both sides.
    pub(super) ranges: &'static [PortRange],
    /// Rules in a hundred that take the prefixes of an earlier rule, in the smallest sets.
    pub(super) pair_share: u64,
    /// TCP rules in a hundred that ask for ACK.
    pub(super) ack_share: u32,
    /// Rules in a hundred that permit.
    pub(super) permit_share: u32,
}

/// A group of rules whose prefix lengths are drawn independently of each other.
#[derive(Clone, Copy)]
pub(super) struct Lengths {
    pub(super) source: Weights<u8>,
    pub(super) destination: Weights<u8>,
}

/// A protocol with the classes of its port ranges.
#[derive(Clone, Copy)]
pub(super) struct Service {
    pub(super) protocol: Option<u8>,
    pub(super) source: Ports,
    pub(super) destination: Ports,
}

/// The classes of port ranges of Taylor and Turner.
#[derive(Clone, Copy)]
pub(super) enum Ports {
    /// 0 to 65535.
    Any,
    /// 1024 to 65535.
    High,
    /// 0 to 1023.
    Low,
    /// One port.
    Exact,
    /// Another range.
    Range,
}

/// The prefixes on one side of the rules.
pub(super) struct Side {
    /// How many prefixes there are to choose from.
    pub(super) values: Growth,
    /// How many of them a network holds on average.
    pub(super) per_network: u64,
    /// How unequally they are chosen (see `Random::skewed`).
    pub(super) power: u32,
}

/// How many values a field has in a set of n rules: fixed + share·n²/(n + knee).
///
/// Small sets reuse a few values; past the knee nearly every rule brings its own.
pub(super) struct Growth {
    pub(super) fixed: u64,
    /// In hundredths.
    pub(super) share: u64,
    pub(super) knee: u64,
}

impl Growth {
    pub(super) fn at(&self, rules: u64) -> u64 {
        let grown = u128::from(rules) * u128::from(rules) * u128::from(self.share);
        self.fixed + (grown / (100 * (u128::from(rules) + u128::from(self.knee)))) as u64
    }
}

/// A row of a table of services.
const fn service(protocol: Option<u8>, source: Ports, destination: Ports) -> Service {
    Service { protocol, source, destination }
}

/// A range of ports.
const fn ports(low: u16, high: u16) -> PortRange {
    PortRange { low, high }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back() {
        for style in Style::ALL {
            assert_eq!(style.to_string().parse::<Style>().unwrap(), style);
        }
        assert!(matches!("ACL".parse::<Style>(), Err(GenerateError::UnknownStyle(name)) if name == "ACL"));
    }

    #[test]
    fn tables_are_sound() {
        for profile in Style::ALL.map(Style::profile) {
            for (lengths, _) in profile.lengths {
                for &(len, weight) in lengths.source.iter().chain(lengths.destination) {
                    assert!(len <= 32 && weight > 0);
                }
            }
            for side in [profile.source_ports, profile.destination_ports] {
                let mut ports = side.to_vec();
                ports.sort_unstable();
                ports.dedup();
                assert_eq!(ports.len(), side.len(), "a port stands twice");
            }
            assert!(profile.ranges.iter().all(|range| range.low < range.high && !range.is_any()));
        }
    }
}
