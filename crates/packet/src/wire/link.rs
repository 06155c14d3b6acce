//! Link headers other than Ethernet's: BSD loopback and Linux cooked captures.

use super::{be16, be32, prefix};

/// BSD loopback: an address family in 4 bytes.
#[derive(Clone, Copy, Debug)]
pub struct Loopback<'a>(&'a [u8; 4]);

impl<'a> Loopback<'a> {
    /// Bytes of the header.
    pub const LEN: usize = 4;

    /// A view of the header at the start of `data`.
    pub fn new_checked(data: &'a [u8]) -> Option<Self> {
        prefix(data).map(Self)
    }

    /// The address family.
    ///
    /// `network_order` for LINKTYPE_LOOP; LINKTYPE_NULL has the byte order of the host that captured, and a
    /// family is a small number, so the order that makes it small is the right one.
    pub fn family(self, network_order: bool) -> u32 {
        let little = u32::from_le_bytes(*self.0);
        if !network_order && little < 0x1_0000 { little } else { be32!(self.0, 0) }
    }

    /// Whether the [family](Self::family) is AF_INET or one of the numbers BSDs, macOS and Linux give AF_INET6.
    pub fn carries_ip(self, network_order: bool) -> bool {
        matches!(self.family(network_order), 2 | 10 | 24 | 28 | 30)
    }
}

/// Linux cooked capture, version 1, 16 bytes.
#[derive(Clone, Copy, Debug)]
pub struct Sll<'a>(&'a [u8; 16]);

impl<'a> Sll<'a> {
    /// Bytes of the header.
    pub const LEN: usize = 16;

    /// A view of the header at the start of `data`.
    pub fn new_checked(data: &'a [u8]) -> Option<Self> {
        prefix(data).map(Self)
    }

    /// The EtherType of what follows.
    pub fn ethertype(self) -> u16 {
        be16!(self.0, 14)
    }
}

/// Linux cooked capture, version 2, 20 bytes.
#[derive(Clone, Copy, Debug)]
pub struct Sll2<'a>(&'a [u8; 20]);

impl<'a> Sll2<'a> {
    /// Bytes of the header.
    pub const LEN: usize = 20;

    /// A view of the header at the start of `data`.
    pub fn new_checked(data: &'a [u8]) -> Option<Self> {
        prefix(data).map(Self)
    }

    /// The EtherType of what follows.
    pub fn ethertype(self) -> u16 {
        be16!(self.0, 0)
    }
}
