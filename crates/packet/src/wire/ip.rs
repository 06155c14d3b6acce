//! IPv4, IPv6 and IPv6 extension headers.

use super::{be16, be32, be64, prefix};
use crate::protocol;

/// The fixed part of an IPv4 header, 20 bytes (RFC 791 section 3.1).
#[derive(Clone, Copy, Debug)]
pub struct Ipv4<'a>(&'a [u8; 20]);

impl<'a> Ipv4<'a> {
    /// Bytes of the fixed part.
    pub const LEN: usize = 20;
    /// Where the header checksum stands.
    pub const CHECKSUM: usize = 10;
    /// Where the source address stands.
    pub const SOURCE: usize = 12;
    /// Where the destination address stands.
    pub const DESTINATION: usize = 16;

    /// A view of the header at the start of `data`.
    pub fn new_checked(data: &'a [u8]) -> Option<Self> {
        prefix(data).map(Self)
    }

    /// Bytes of the header with its options, as it says itself: 0 to 60.
    pub fn header_len(self) -> usize {
        usize::from(self.0[0] & 0x0f) * 4
    }

    /// Bytes of header and payload; 0 where segmentation was left to the interface.
    pub fn total_len(self) -> u16 {
        be16!(self.0, 2)
    }

    /// Whether this is a fragment with more to follow.
    pub fn more_fragments(self) -> bool {
        self.0[6] & 0x20 != 0
    }

    /// Offset of a fragment, in units of 8 bytes.
    pub fn fragment_offset(self) -> u16 {
        be16!(self.0, 6) & 0x1fff
    }

    /// Protocol of the payload.
    pub fn protocol(self) -> u8 {
        self.0[9]
    }

    /// Source address, host order.
    pub fn source(self) -> u32 {
        be32!(self.0, Self::SOURCE)
    }

    /// Destination address, host order.
    pub fn destination(self) -> u32 {
        be32!(self.0, Self::DESTINATION)
    }
}

/// An IPv6 header, 40 bytes (RFC 8200 section 3).
#[derive(Clone, Copy, Debug)]
pub struct Ipv6<'a>(&'a [u8; 40]);

impl<'a> Ipv6<'a> {
    /// Bytes of the header.
    pub const LEN: usize = 40;
    /// Where the source address stands.
    pub const SOURCE: usize = 8;
    /// Where the destination address stands.
    pub const DESTINATION: usize = 24;

    /// A view of the header at the start of `data`.
    pub fn new_checked(data: &'a [u8]) -> Option<Self> {
        prefix(data).map(Self)
    }

    /// Bytes after the header; 0 for a jumbogram or where segmentation was left to the interface.
    pub fn payload_len(self) -> u16 {
        be16!(self.0, 4)
    }

    /// Protocol of the payload, or the first extension header.
    pub fn next_header(self) -> u8 {
        self.0[6]
    }

    /// Source address: two halves, the high one first.
    pub fn source(self) -> [u64; 2] {
        [be64!(self.0, Self::SOURCE), be64!(self.0, Self::SOURCE + 8)]
    }

    /// Destination address: two halves, the high one first.
    pub fn destination(self) -> [u64; 2] {
        [be64!(self.0, Self::DESTINATION), be64!(self.0, Self::DESTINATION + 8)]
    }
}

/// The first 8 bytes of an IPv6 extension header: every kind has at least as many.
#[derive(Clone, Copy, Debug)]
pub struct Extension<'a>(&'a [u8; 8]);

impl<'a> Extension<'a> {
    /// The bytes that every extension header has; also the length of a fragment header.
    pub const LEN: usize = 8;

    /// A view of the header at the start of `data`.
    pub fn new_checked(data: &'a [u8]) -> Option<Self> {
        prefix(data).map(Self)
    }

    /// Whether headers of this number are walked: options, routing, mobility, HIP, Shim6 and authentication
    /// have a length field; the fragment header is told apart by [`protocol::FRAGMENT`].
    pub const fn is_walked(number: u8) -> bool {
        matches!(
            number,
            protocol::HOP_BY_HOP
                | protocol::ROUTING
                | protocol::DESTINATION_OPTIONS
                | protocol::MOBILITY
                | protocol::HIP
                | protocol::SHIM6
                | protocol::AH
        )
    }

    /// What follows this header.
    pub fn next_header(self) -> u8 {
        self.0[0]
    }

    /// Bytes of the whole header, given its own number: AH counts in units of 4 bytes (RFC 4302 section 2.2), the
    /// others in units of 8 (RFC 8200 section 4).
    pub fn header_len(self, number: u8) -> usize {
        let units = usize::from(self.0[1]);
        if number == protocol::AH { (units + 2) * 4 } else { (units + 1) * 8 }
    }

    /// Of a fragment header: offset in units of 8 bytes.
    pub fn fragment_offset(self) -> u16 {
        be16!(self.0, 2) >> 3
    }

    /// Of a fragment header: whether more fragments follow.
    pub fn more_fragments(self) -> bool {
        self.0[3] & 1 != 0
    }
}
