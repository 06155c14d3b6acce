//! From the bytes of a frame to its match key.
//!
//! Only the outermost IP header counts: tunnels are packets of the tunnel's protocol. No checksum is verified.
//! Lengths are believed as far as the bytes were captured.
//!
//! Frames in basic framings, nearly all there are, take a short walk over layer 2; `framing.rs` is the walk for all others.

use crate::key::{KeyBits, MatchKey4, MatchKey6};
use crate::wire::ethernet::{self, Ethernet, MplsLabel, PppoeSession, VlanTag};
use crate::wire::ip::{Extension, Ipv4, Ipv6};
use crate::wire::link::{Loopback, Sll, Sll2};
use crate::wire::transport::{Icmp, Ports, TcpFlags};
use crate::wire::{be16, be32, be64};
use crate::{LinkType, Reject, protocol};

mod connection;
mod framing;
mod kernel;

pub use connection::{Connection, Message, Role};
pub use framing::MAX_HEADERS;
pub use kernel::{HEADERS_BEYOND, HEADERS_REJECTED, HEADERS_V4, HEADERS_V6, KERNEL, defines};

/// The match key of an IP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// Of an IPv4 packet.
    V4(MatchKey4),
    /// Of an IPv6 packet.
    V6(MatchKey6),
}

/// What the headers of a frame said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headers {
    /// The fields that rules look at.
    pub key: Key,
    /// Bytes of the IP packet, by its own length field; where that is 0 (segmentation left to the interface),
    /// the bytes on the wire after layer 2.
    pub ip_bytes: u32,
}

/// Walks the headers of a frame.
///
/// `data` holds the captured bytes, `wire_len` the bytes the frame had on the wire.
///
/// # Errors
///
/// The reason why the frame has no match key.
#[inline]
pub fn dissect(link: LinkType, data: &[u8], wire_len: u32) -> Result<Headers, Reject> {
    dissect_and_tell(link, data, wire_len, || {}).map(|(headers, _)| headers)
}

/// As [`dissect`], with where the headers are.
///
/// # Errors
///
/// The reason why the frame has no match key.
pub fn dissect_with_layers(link: LinkType, data: &[u8], wire_len: u32) -> Result<(Headers, Layers), Reject> {
    dissect_and_tell(link, data, wire_len, || {})
}

/// The same, with where the headers are; tells where the frame is in no basic framing, and IP was found in it.
// With one call of each walk over IP, so that all are inlined: another would cost the frames in basic framings a dozen instructions.
#[inline]
pub(crate) fn dissect_and_tell(
    link: LinkType,
    data: &[u8],
    wire_len: u32,
    is_other: impl FnOnce(),
) -> Result<(Headers, Layers), Reject> {
    let packet = match basic_network_layer(link, data) {
        Ok(packet) => packet,
        Err(Reject::UnknownFraming) => unwrap_and_tell(link, data, is_other)?,
        Err(reject) => return Err(reject),
    };
    // Bytes before the IP header are at most data.len(), so no subtraction below can wrap but the saturating one.
    let network = (data.len() - packet.len()) as u32;
    let wire_len = wire_len.saturating_sub(network);
    let (headers, len) = match packet.first().ok_or(Reject::LinkTruncated)? >> 4 {
        4 => ipv4(packet, wire_len)?,
        6 => ipv6(packet, wire_len)?,
        _ => return Err(Reject::IpMalformed),
    };
    Ok((headers, Layers { network, transport: network + len }))
}

/// Where the headers of an IP packet are in its frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layers {
    /// Offset of the outermost IP header.
    pub network: u32,
    /// Offset of what follows the IP header and its extensions: the transport header, but in fragments other than the first.
    pub transport: u32,
}

impl Layers {
    /// Of frames without a key: beyond all bytes.
    pub(crate) const BEYOND: Self = Self { network: u32::MAX, transport: u32::MAX };
    /// Those of the most common frames: IPv4 without options in untagged Ethernet.
    pub(crate) const COMMON: Self =
        Self { network: Ethernet::LEN as u32, transport: (Ethernet::LEN + Ipv4::LEN) as u32 };
}

/// Bytes of the transport header at the beginning of some captured bytes; `None` where not all of it was captured, or it says that it is
/// shorter than it can be. Protocols other than TCP, UDP, SCTP, ICMP and ICMPv6 have none.
pub(crate) fn transport_header_len(protocol: u8, bytes: &[u8]) -> Option<usize> {
    let len = match protocol {
        protocol::TCP => {
            let len = usize::from(*bytes.get(TCP_OFFSET)? >> 4) * 4;
            if len < TCP_HEADER { return None } else { len }
        }
        protocol::SCTP => SCTP_HEADER,
        protocol::UDP | protocol::ICMP | protocol::ICMPV6 => UDP_HEADER,
        _ => 0,
    };
    (bytes.len() >= len).then_some(len)
}

/// Where the length of TCP's header stands, and the least it can be (RFC 9293 section 3.1).
const TCP_OFFSET: usize = 12;
const TCP_HEADER: usize = 20;
/// Bytes of the headers of UDP (RFC 768), ICMP (RFC 792) and ICMPv6 (RFC 4443), and of the common header of SCTP (RFC 9260 section 3.1).
const UDP_HEADER: usize = 8;
const SCTP_HEADER: usize = 12;

/// The captured bytes from the IP header on of a frame in another framing; tells where there is one.
#[cold]
#[inline(never)]
fn unwrap_and_tell(link: LinkType, data: &[u8], is_other: impl FnOnce()) -> Result<&[u8], Reject> {
    let packet = framing::unwrap(link, data)?;
    if !link.is_beyond_kernels() {
        is_other();
    }
    Ok(packet)
}

/// Whether a frame is in a basic framing, as far as its captured bytes tell: Ethernet II, VLAN tags of the four usual types, MPLS with IP in it, PPPoE
/// with an uncompressed protocol number, Linux cooked, BSD loopback and raw IP; and any frame of a link type whose header kernels do not
/// know, whatever is behind that.
///
/// A meter counts these alone unless it is told to count all. Frames of other framings that carry IP have match keys, too.
pub fn is_basic(link: LinkType, data: &[u8]) -> bool {
    link.is_beyond_kernels() || is_in_short_walk(link, data)
}

/// Whether the short walk knows a frame's framing.
fn is_in_short_walk(link: LinkType, data: &[u8]) -> bool {
    basic_network_layer(link, data) != Err(Reject::UnknownFraming)
}

/// Whether kernels leave the judgement of a frame to software since they do not know its framing.
pub fn is_beyond_kernels(link: LinkType, data: &[u8]) -> bool {
    !is_in_short_walk(link, data) && !kernel::is_never_ip(link, data)
}

/// Bytes of the headers of the most common frames: Ethernet's, IPv4's, and TCP's up to its checksum.
pub(crate) const COMMON: usize = 52;

/// The headers of the most common frames, as [`dissect`] finds them, in fewer steps: TCP or UDP in one piece, in IPv4 without
/// options, in untagged Ethernet, captured up to where TCP has its checksum.
#[inline]
pub(crate) fn common(link: LinkType, frame: &[u8; COMMON]) -> Option<(MatchKey4, u32)> {
    let protocol = frame[23];
    let is_tcp = protocol == protocol::TCP;
    let ip_bytes = be16!(frame, 16);
    let is_common = link == LinkType::ETHERNET
        && be16!(frame, 12) == ethernet::TYPE_IPV4
        && frame[14] == 0x45
        // Neither more fragments nor an offset.
        && be16!(frame, 20) & 0x3fff == 0
        && (is_tcp || protocol == protocol::UDP)
        // All of it is inside.
        && ip_bytes >= (COMMON - Ethernet::LEN) as u16;
    let bits = KeyBits::WHOLE.with(KeyBits::PORTS);
    let (flags, bits) = if is_tcp { (frame[47], bits.with(KeyBits::TCP_FLAGS)) } else { (0, bits) };
    let rest = u32::from_le_bytes([protocol, flags, bits.0, 0]);
    let key = MatchKey4::of_words([
        be64!(frame, 26).rotate_left(32),
        u64::from(be32!(frame, 34).rotate_left(16)) | u64::from(rest) << 32,
    ]);
    is_common.then_some((key, ip_bytes.into()))
}

/// The captured bytes from the outermost IP header on.
pub(crate) fn network_layer(link: LinkType, data: &[u8]) -> Result<&[u8], Reject> {
    match basic_network_layer(link, data) {
        Err(Reject::UnknownFraming) => framing::unwrap(link, data),
        found => found,
    }
}

/// The same for basic framings alone.
fn basic_network_layer(link: LinkType, data: &[u8]) -> Result<&[u8], Reject> {
    let (ethertype, len) = match link {
        LinkType::ETHERNET => {
            (Ethernet::new_checked(data).ok_or(Reject::LinkTruncated)?.ethertype(), Ethernet::LEN)
        }
        LinkType::SLL => (Sll::new_checked(data).ok_or(Reject::LinkTruncated)?.ethertype(), Sll::LEN),
        LinkType::SLL2 => (Sll2::new_checked(data).ok_or(Reject::LinkTruncated)?.ethertype(), Sll2::LEN),
        LinkType::RAW | LinkType::RAW_BSD | LinkType::RAW_OPENBSD | LinkType::IPV4 | LinkType::IPV6 => {
            return Ok(data);
        }
        LinkType::NULL | LinkType::LOOP => {
            let header = Loopback::new_checked(data).ok_or(Reject::LinkTruncated)?;
            return if header.carries_ip(link == LinkType::LOOP) {
                Ok(&data[Loopback::LEN..])
            } else {
                Err(Reject::UnknownFraming)
            };
        }
        LinkType::NONE => return Err(Reject::UndefinedInterface),
        _ if link.is_beyond_kernels() => return Err(Reject::UnknownFraming),
        _ => return Err(Reject::LinkType),
    };
    let rest = &data[len..];
    match ethertype {
        ethernet::TYPE_IPV4 | ethernet::TYPE_IPV6 => Ok(rest),
        _ => tagged(ethertype, rest),
    }
}

/// Steps over VLAN tags, MPLS labels and PPPoE.
fn tagged(mut ethertype: u16, mut rest: &[u8]) -> Result<&[u8], Reject> {
    while ethernet::is_vlan(ethertype) {
        ethertype = VlanTag::new_checked(rest).ok_or(Reject::LinkTruncated)?.ethertype();
        rest = &rest[VlanTag::LEN..];
    }
    match ethertype {
        ethernet::TYPE_IPV4 | ethernet::TYPE_IPV6 => Ok(rest),
        ethernet::TYPE_MPLS | ethernet::TYPE_MPLS_MULTICAST => {
            loop {
                let bottom = MplsLabel::new_checked(rest).ok_or(Reject::LinkTruncated)?.is_bottom();
                rest = &rest[MplsLabel::LEN..];
                if bottom {
                    break;
                }
            }
            // MPLS does not say what it carries (RFC 4928 section 3): the first nibble must look like IP.
            match rest.first().ok_or(Reject::LinkTruncated)? >> 4 {
                4 | 6 => Ok(rest),
                // Perhaps a pseudowire.
                _ => Err(Reject::UnknownFraming),
            }
        }
        ethernet::TYPE_PPPOE_SESSION => {
            let session = PppoeSession::new_checked(rest).ok_or(Reject::LinkTruncated)?;
            let carries_ip = session.carries_ip();
            if carries_ip { Ok(&rest[PppoeSession::LEN..]) } else { Err(Reject::UnknownFraming) }
        }
        _ => Err(Reject::UnknownFraming),
    }
}

/// An IP packet whose headers were walked up to the transport header.
#[derive(Clone, Copy)]
pub(crate) struct Walk<'a, H> {
    /// The IP header.
    header: H,
    /// As [`Headers::ip_bytes`].
    pub(crate) ip_bytes: u32,
    /// What follows the last header that was walked.
    pub(crate) protocol: u8,
    /// [`KeyBits::WHOLE`], [`KeyBits::FIRST_FRAGMENT`] or [`KeyBits::LATER_FRAGMENT`].
    fragment: KeyBits,
    /// The captured bytes inside the IP length, from the transport header on.
    pub(crate) payload: &'a [u8],
}

/// What the transport header adds to a key.
#[derive(Clone, Copy, Default)]
pub(crate) struct Transport {
    source_port: u16,
    destination_port: u16,
    tcp_flags: u8,
    /// With those of fragmentation.
    pub(crate) bits: KeyBits,
}

impl<H> Walk<'_, H> {
    /// Reads the transport header; later fragments have none.
    #[inline]
    pub(crate) fn transport(&self) -> Result<Transport, Reject> {
        let bits = self.fragment;
        if bits == KeyBits::LATER_FRAGMENT {
            return Ok(Transport { bits, ..Transport::default() });
        }
        if protocol::has_ports(self.protocol) {
            let ports = Ports::new_checked(self.payload).ok_or(Reject::TransportTruncated)?;
            let mut transport = Transport {
                source_port: ports.source(),
                destination_port: ports.destination(),
                tcp_flags: 0,
                bits: bits.with(KeyBits::PORTS),
            };
            if self.protocol == protocol::TCP
                && let Some(tcp) = TcpFlags::new_checked(self.payload)
            {
                transport.tcp_flags = tcp.flags();
                transport.bits = transport.bits.with(KeyBits::TCP_FLAGS);
            }
            return Ok(transport);
        }
        if protocol::has_type_and_code(self.protocol)
            && let Some(icmp) = Icmp::new_checked(self.payload)
        {
            return Ok(Transport {
                source_port: icmp.message_type().into(),
                destination_port: icmp.code().into(),
                tcp_flags: 0,
                bits: bits.with(KeyBits::ICMP),
            });
        }
        Ok(Transport { bits, ..Transport::default() })
    }
}

/// Headers, and the bytes before the transport header.
#[inline]
fn ipv4(packet: &[u8], wire_len: u32) -> Result<(Headers, u32), Reject> {
    let walk = walk_ipv4(packet, wire_len)?;
    let transport = walk.transport()?;
    let key = MatchKey4 {
        source: walk.header.source(),
        destination: walk.header.destination(),
        source_port: transport.source_port,
        destination_port: transport.destination_port,
        protocol: walk.protocol,
        tcp_flags: transport.tcp_flags,
        bits: transport.bits,
        reserved: 0,
    };
    Ok((Headers { key: Key::V4(key), ip_bytes: walk.ip_bytes }, walk.header.header_len() as u32))
}

/// Walks the headers of a packet that begins as an IPv4 packet does; `wire_len` counts from its first byte.
#[inline]
pub(crate) fn walk_ipv4(packet: &[u8], wire_len: u32) -> Result<Walk<'_, Ipv4<'_>>, Reject> {
    let ip = Ipv4::new_checked(packet).ok_or(Reject::IpTruncated)?;
    let header_len = ip.header_len();
    if header_len < Ipv4::LEN {
        return Err(Reject::IpMalformed);
    }
    if packet.len() < header_len {
        return Err(Reject::IpTruncated);
    }
    let ip_bytes = match ip.total_len() {
        0 => wire_len.max(header_len as u32),
        len => u32::from(len),
    };
    if (ip_bytes as usize) < header_len {
        return Err(Reject::IpMalformed);
    }
    let fragment = if ip.fragment_offset() > 0 {
        KeyBits::LATER_FRAGMENT
    } else if ip.more_fragments() {
        KeyBits::FIRST_FRAGMENT
    } else {
        KeyBits::WHOLE
    };
    let payload = &packet[header_len..packet.len().min(ip_bytes as usize)];
    Ok(Walk { header: ip, ip_bytes, protocol: ip.protocol(), fragment, payload })
}

/// Headers, and the bytes before the transport header.
fn ipv6(packet: &[u8], wire_len: u32) -> Result<(Headers, u32), Reject> {
    let walk = walk_ipv6(packet, wire_len)?;
    let transport = walk.transport()?;
    let key = MatchKey6 {
        source: walk.header.source(),
        destination: walk.header.destination(),
        source_port: transport.source_port,
        destination_port: transport.destination_port,
        protocol: walk.protocol,
        tcp_flags: transport.tcp_flags,
        bits: transport.bits,
        reserved: 0,
    };
    let end = packet.len().min(walk.ip_bytes as usize);
    let len = (end - walk.payload.len()) as u32;
    Ok((Headers { key: Key::V6(key), ip_bytes: walk.ip_bytes }, len))
}

/// Walks the headers of a packet that begins as an IPv6 packet does; `wire_len` counts from its first byte.
#[inline]
pub(crate) fn walk_ipv6(packet: &[u8], wire_len: u32) -> Result<Walk<'_, Ipv6<'_>>, Reject> {
    let ip = Ipv6::new_checked(packet).ok_or(Reject::IpTruncated)?;
    let ip_bytes = match ip.payload_len() {
        0 => wire_len.max(Ipv6::LEN as u32),
        len => Ipv6::LEN as u32 + u32::from(len),
    };
    let mut rest = &packet[Ipv6::LEN..packet.len().min(ip_bytes as usize)];
    let mut protocol = ip.next_header();
    let mut fragment = KeyBits::WHOLE;
    loop {
        if Extension::is_walked(protocol) {
            let extension = Extension::new_checked(rest).ok_or(Reject::ExtensionChain)?;
            rest = rest.get(extension.header_len(protocol)..).ok_or(Reject::ExtensionChain)?;
            protocol = extension.next_header();
        } else if protocol == protocol::FRAGMENT {
            let header = Extension::new_checked(rest).ok_or(Reject::ExtensionChain)?;
            rest = &rest[Extension::LEN..];
            protocol = header.next_header();
            if header.fragment_offset() > 0 {
                fragment = KeyBits::LATER_FRAGMENT;
                break;
            }
            // An "atomic" fragment (RFC 6946) is a whole packet.
            if header.more_fragments() {
                fragment = KeyBits::FIRST_FRAGMENT;
            }
        } else {
            break;
        }
    }
    Ok(Walk { header: ip, ip_bytes, protocol, fragment, payload: rest })
}
