//! The little that is read of transport headers: ports, TCP flags, ICMP type and code.

use super::{be16, prefix};

/// Source and destination port: how TCP, UDP and SCTP begin, 4 bytes.
#[derive(Clone, Copy, Debug)]
pub struct Ports<'a>(&'a [u8; 4]);

impl<'a> Ports<'a> {
    /// Bytes of both ports.
    pub const LEN: usize = 4;

    /// A view of the ports at the start of `data`.
    pub fn new_checked(data: &'a [u8]) -> Option<Self> {
        prefix(data).map(Self)
    }

    /// Source port.
    pub fn source(self) -> u16 {
        be16!(self.0, 0)
    }

    /// Destination port.
    pub fn destination(self) -> u16 {
        be16!(self.0, 2)
    }
}

/// A TCP header as far as its flags, 14 bytes (RFC 9293 section 3.1).
#[derive(Clone, Copy, Debug)]
pub struct TcpFlags<'a>(&'a [u8; 14]);

impl<'a> TcpFlags<'a> {
    /// Bytes up to and with the flags.
    pub const LEN: usize = 14;

    /// A view of the header at the start of `data`.
    pub fn new_checked(data: &'a [u8]) -> Option<Self> {
        prefix(data).map(Self)
    }

    /// CWR, ECE, URG, ACK, PSH, RST, SYN, FIN from the highest bit to the lowest.
    pub fn flags(self) -> u8 {
        self.0[13]
    }
}

/// How ICMP and ICMPv6 messages begin, 2 bytes (RFC 792, RFC 4443).
#[derive(Clone, Copy, Debug)]
pub struct Icmp<'a>(&'a [u8; 2]);

impl<'a> Icmp<'a> {
    /// A view of the message at the start of `data`.
    pub fn new_checked(data: &'a [u8]) -> Option<Self> {
        prefix(data).map(Self)
    }

    /// Message type.
    pub fn message_type(self) -> u8 {
        self.0[0]
    }

    /// Message code.
    pub fn code(self) -> u8 {
        self.0[1]
    }
}
