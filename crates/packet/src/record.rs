//! What is said of one packet, in a log.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::batch::Parsed;
use crate::key::join;
use crate::{Batch, KeyBits, Timestamp};

/// A packet as a log names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketRecord {
    /// When it was captured.
    pub time: Timestamp,
    /// Source address.
    pub source: IpAddr,
    /// Destination address.
    pub destination: IpAddr,
    /// IP protocol number.
    pub protocol: u8,
    /// Source and destination port, where it has ports.
    pub ports: Option<(u16, u16)>,
    /// Type and code, of ICMP and ICMPv6.
    pub icmp: Option<(u8, u8)>,
    /// TCP flags, where they were captured.
    pub tcp_flags: Option<u8>,
    /// Whether it is a fragment.
    pub fragment: Option<Fragment>,
    /// IP bytes.
    pub bytes: u32,
    /// Its mark, 0 where none was set.
    pub mark: u32,
}

/// Where a fragment stands in its datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fragment {
    /// The first of several.
    First,
    /// Any other.
    Later,
}

impl Fragment {
    /// The word in rules and logs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::First => "first",
            Self::Later => "later",
        }
    }
}

impl PacketRecord {
    /// That of a frame of a parsed batch; `None` where its headers gave no key.
    pub fn of(batch: &Batch, frame: usize) -> Option<Self> {
        let mark = batch.mark(frame);
        let time = batch.frames()[frame].time.shifted(batch.wall_offset());
        macro_rules! record {
            ($keys:expr, $at:expr, $address:expr) => {{
                let (key, bytes) = (&$keys.keys[$at as usize], $keys.bytes[$at as usize]);
                let has = |bits| key.bits.contains(bits);
                let fragment = if has(KeyBits::FIRST_FRAGMENT) {
                    Some(Fragment::First)
                } else {
                    has(KeyBits::LATER_FRAGMENT).then_some(Fragment::Later)
                };
                let numbers = (key.source_port, key.destination_port);
                Some(Self {
                    time,
                    source: $address(key.source),
                    destination: $address(key.destination),
                    protocol: key.protocol,
                    ports: has(KeyBits::PORTS).then_some(numbers),
                    icmp: has(KeyBits::ICMP).then_some((numbers.0 as u8, numbers.1 as u8)),
                    tcp_flags: has(KeyBits::TCP_FLAGS).then_some(key.tcp_flags),
                    fragment,
                    bytes,
                    mark,
                })
            }};
        }
        match batch.parsed()[frame] {
            Parsed::V4(at) => record!(batch.v4(), at, |address| IpAddr::V4(Ipv4Addr::from(address))),
            Parsed::V6(at) => record!(batch.v6(), at, |address| IpAddr::V6(Ipv6Addr::from(join(address)))),
            Parsed::Rejected(_) => None,
        }
    }
}
