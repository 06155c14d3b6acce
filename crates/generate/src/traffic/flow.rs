//! What is kept of a flow while its packets are made: 56 bytes.

use super::endpoints::Endpoints;
use super::frames::{Addresses, PacketHeaders};

/// What a flow does, which decides its protocol and its packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A TCP connection: handshake, data, teardown, or as much of it as its size allows.
    Session,
    /// A bare TCP SYN to a port that may not be open.
    Scan,
    /// An unanswered UDP datagram.
    Probe,
    /// DNS questions and answers.
    Dns,
    /// NTP requests and replies.
    Ntp,
    /// UDP datagrams shaped like QUIC.
    Quic,
    /// A UDP stream in one direction.
    Media,
    /// ICMP or ICMPv6 echo requests and replies.
    Echo,
}

impl Kind {
    /// The IP protocol number.
    #[inline]
    pub(super) fn protocol(self, ipv6: bool) -> u8 {
        match self {
            Self::Session | Self::Scan => 6,
            Self::Probe | Self::Dns | Self::Ntp | Self::Quic | Self::Media => 17,
            Self::Echo if ipv6 => 58,
            Self::Echo => 1,
        }
    }
}

/// VLAN tags of all of a flow's frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tags(u16);

impl Tags {
    /// Marks a pair of tags; VLAN ids have 12 bits.
    const STACKED: u16 = 1 << 15;

    /// No tag.
    pub(super) const NONE: Self = Self(0);

    /// One tag of type 0x8100 with the VLAN id `id` (1 to 4094).
    pub(super) fn single(id: u16) -> Self {
        Self(id)
    }

    /// The same inside a service tag of type 0x88a8.
    pub(super) fn stacked(id: u16) -> Self {
        Self(id | Self::STACKED)
    }

    /// The VLAN id in the 0x8100 tag.
    #[inline]
    pub(super) fn inner(self) -> Option<u16> {
        (self != Self::NONE).then_some(self.0 & 0xfff)
    }

    /// The VLAN id in the 0x88a8 tag before it: eight customers share a service.
    #[inline]
    pub(super) fn outer(self) -> Option<u16> {
        (self.0 & Self::STACKED != 0).then_some(2000 + (self.0 & 0xfff) / 8)
    }
}

/// A flow: who talks to whom, what comes next, and when.
#[derive(Clone, Debug)]
pub(super) struct Flow {
    /// When the next packet is due, in nanoseconds after the start of the capture.
    pub(super) next: u64,
    /// When the last packet is due at the latest, on the same clock.
    pub(super) end: u64,
    /// The longest gap within the present burst, in nanoseconds.
    pub(super) burst_gap: u32,
    /// Packets still to come.
    pub(super) left: u32,
    /// The next flow in the same slot of the calendar.
    pub(super) link: u32,
    /// The client's and the server's address (see `endpoints`).
    pub(super) client: u32,
    pub(super) server: u32,
    /// TCP sequence numbers to be sent next; of an echo, the client's counts requests.
    pub(super) client_seq: u32,
    pub(super) server_seq: u32,
    /// The ports; of an echo, the client's is the identifier.
    pub(super) client_port: u16,
    pub(super) server_port: u16,
    pub(super) tags: Tags,
    pub(super) kind: Kind,
    /// Packets made so far, up to 255.
    pub(super) stage: u8,
    /// Yes-or-no properties.
    pub(super) traits: Traits,
}

/// Yes-or-no properties of a flow, a bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Traits(u8);

impl Traits {
    pub(super) const IPV6: Self = Self(1);
    /// Only the client's packets pass the place of capture.
    pub(super) const ONE_WAY: Self = Self(1 << 1);
    /// A session long enough to be closed in order.
    pub(super) const CLOSES: Self = Self(1 << 2);
    /// A long silence in mid-life is still to come.
    pub(super) const IDLES: Self = Self(1 << 3);

    #[inline]
    pub(super) fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    #[inline]
    pub(super) fn set(&mut self, other: Self, on: bool) {
        if on {
            self.0 |= other.0;
        } else {
            self.0 &= !other.0;
        }
    }
}

impl Flow {
    #[inline]
    pub(super) fn ipv6(&self) -> bool {
        self.traits.has(Traits::IPV6)
    }

    /// What the headers of a packet of either side say.
    #[inline]
    pub(super) fn headers(&self, from_client: bool, endpoints: &Endpoints) -> PacketHeaders {
        let addresses = (self.client, self.server);
        let ports = (self.client_port, self.server_port);
        let ((source, destination), ports) =
            if from_client { (addresses, ports) } else { ((addresses.1, addresses.0), (ports.1, ports.0)) };
        let addresses = if self.ipv6() {
            Addresses::V6(endpoints.v6_address(source), endpoints.v6_address(destination))
        } else {
            Addresses::V4(source, destination)
        };
        PacketHeaders { addresses, protocol: self.kind.protocol(self.ipv6()), ports, tags: self.tags }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_are_small() {
        assert_eq!(size_of::<Flow>(), 56);
    }

    #[test]
    fn tags_come_back() {
        assert_eq!((Tags::NONE.outer(), Tags::NONE.inner()), (None, None));
        assert_eq!((Tags::single(7).outer(), Tags::single(7).inner()), (None, Some(7)));
        assert_eq!((Tags::stacked(17).outer(), Tags::stacked(17).inner()), (Some(2002), Some(17)));
    }
}
