//! Ethernet II, and what stands between it and IP: VLAN tags, MPLS, PPPoE.

use super::{be16, prefix};

/// IPv4 (RFC 894).
pub const TYPE_IPV4: u16 = 0x0800;
/// IPv6 (RFC 2464).
pub const TYPE_IPV6: u16 = 0x86dd;
/// MPLS unicast (RFC 3032).
pub const TYPE_MPLS: u16 = 0x8847;
/// MPLS multicast (RFC 5332).
pub const TYPE_MPLS_MULTICAST: u16 = 0x8848;
/// PPPoE session stage (RFC 2516).
pub const TYPE_PPPOE_SESSION: u16 = 0x8864;

/// Whether an EtherType announces a VLAN tag: IEEE 802.1Q, 802.1ad, and the two that came before it.
pub const fn is_vlan(ethertype: u16) -> bool {
    matches!(ethertype, 0x8100 | 0x88a8 | 0x9100 | 0x9200)
}

/// The VLAN that a frame of Ethernet is in, by its outer tag, if it has one.
pub fn vlan_of(frame: &[u8]) -> Option<u16> {
    let header: &[u8; Ethernet::LEN + 2] = frame.first_chunk()?;
    let number = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
    is_vlan(number(Ethernet::LEN - 2)).then(|| number(Ethernet::LEN) & 0xfff)
}

/// The source and the destination address of a frame of Ethernet.
pub fn addresses_of(frame: &[u8]) -> Option<[[u8; 6]; 2]> {
    let header: &[u8; Ethernet::LEN] = frame.first_chunk()?;
    Some([*header[6..].first_chunk()?, *header.first_chunk()?])
}

/// An Ethernet II header, 14 bytes.
#[derive(Clone, Copy, Debug)]
pub struct Ethernet<'a>(&'a [u8; 14]);

impl<'a> Ethernet<'a> {
    /// Bytes of the header.
    pub const LEN: usize = 14;

    /// A view of the header at the start of `data`.
    pub fn new_checked(data: &'a [u8]) -> Option<Self> {
        prefix(data).map(Self)
    }

    /// EtherType, or a length where it is below 0x600.
    pub fn ethertype(self) -> u16 {
        be16!(self.0, 12)
    }
}

/// What follows a VLAN EtherType: tag control information and the next EtherType, 4 bytes (IEEE 802.1Q).
#[derive(Clone, Copy, Debug)]
pub struct VlanTag<'a>(&'a [u8; 4]);

impl<'a> VlanTag<'a> {
    /// Bytes of the tag.
    pub const LEN: usize = 4;

    /// A view of the tag at the start of `data`.
    pub fn new_checked(data: &'a [u8]) -> Option<Self> {
        prefix(data).map(Self)
    }

    /// The EtherType of what follows.
    pub fn ethertype(self) -> u16 {
        be16!(self.0, 2)
    }
}

/// One entry of an MPLS label stack, 4 bytes (RFC 3032 section 2.1).
#[derive(Clone, Copy, Debug)]
pub struct MplsLabel<'a>(&'a [u8; 4]);

impl<'a> MplsLabel<'a> {
    /// Bytes of an entry.
    pub const LEN: usize = 4;

    /// A view of the entry at the start of `data`.
    pub fn new_checked(data: &'a [u8]) -> Option<Self> {
        prefix(data).map(Self)
    }

    /// Whether this is the last entry of the stack.
    pub fn is_bottom(self) -> bool {
        self.0[2] & 1 == 1
    }
}

/// A PPPoE session header with the PPP protocol that follows it, 8 bytes (RFC 2516 section 4).
#[derive(Clone, Copy, Debug)]
pub struct PppoeSession<'a>(&'a [u8; 8]);

impl<'a> PppoeSession<'a> {
    /// Bytes of both headers.
    pub const LEN: usize = 8;

    /// A view of the headers at the start of `data`.
    pub fn new_checked(data: &'a [u8]) -> Option<Self> {
        prefix(data).map(Self)
    }

    /// Whether PPP carries IPv4 (0x0021) or IPv6 (0x0057).
    pub fn carries_ip(self) -> bool {
        matches!(be16!(self.0, 6), 0x0021 | 0x0057)
    }
}
