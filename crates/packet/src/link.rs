//! Link types, numbered as in capture files (the tcpdump group's LINKTYPE registry).

/// What a frame of a capture or an interface begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LinkType(pub u16);

impl LinkType {
    /// BSD loopback: a 4-byte address family in the byte order of the capturing host.
    pub const NULL: Self = Self(0);
    /// Ethernet II.
    pub const ETHERNET: Self = Self(1);
    /// Raw IP, the number some systems write for DLT_RAW.
    pub const RAW_BSD: Self = Self(12);
    /// Raw IP, the number OpenBSD writes for DLT_RAW.
    pub const RAW_OPENBSD: Self = Self(14);
    /// Raw IP; the first nibble says which version.
    pub const RAW: Self = Self(101);
    /// OpenBSD loopback: a 4-byte address family in network byte order.
    pub const LOOP: Self = Self(108);
    /// Linux "cooked" capture.
    pub const SLL: Self = Self(113);
    /// Raw IPv4.
    pub const IPV4: Self = Self(228);
    /// Raw IPv6.
    pub const IPV6: Self = Self(229);
    /// Linux "cooked" capture, version 2.
    pub const SLL2: Self = Self(276);
}
