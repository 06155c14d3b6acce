//! Writes a packet's bytes: Ethernet, VLAN tags, IPv4 or IPv6, TCP, UDP or ICMP, checksums.

use super::checksum::{fold, sum};
use super::flow::Tags;
use super::payload::{HEADROOM, Patterns, SHORTEST_FRAME};
use super::session::{Options, Segment, Transport};

/// EtherTypes (IANA IEEE 802 numbers).
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const VLAN: u16 = 0x8100;
const SERVICE_VLAN: u16 = 0x88a8;

/// The routers at both ends of the wire, with locally administered addresses.
const CLIENT_SIDE: [u8; 6] = [0x02, 0x70, 0x6b, 0x74, 0x00, 0x01];
const SERVER_SIDE: [u8; 6] = [0x02, 0x70, 0x6b, 0x74, 0x00, 0x02];

/// Hop limits as they are some hops away from a client and a server.
const CLIENT_TTL: u8 = 61;
const SERVER_TTL: u8 = 52;

/// Makes frames, one after the other, in buffers of its own.
pub(super) struct FrameWriter {
    patterns: Patterns,
    /// The next IPv4 identification.
    identification: u16,
}

/// The addresses of a packet, source first.
#[derive(Clone, Copy, Debug)]
pub(super) enum Addresses {
    V4(u32, u32),
    V6(u128, u128),
}

/// What a packet's headers say beside what its segment does.
#[derive(Clone, Copy, Debug)]
pub(super) struct PacketHeaders {
    pub(super) addresses: Addresses,
    /// The IP protocol number, that of the segment's transport.
    pub(super) protocol: u8,
    /// Source and destination; of an echo, nobody reads them.
    pub(super) ports: (u16, u16),
    pub(super) tags: Tags,
}

impl PacketHeaders {
    fn ipv6(&self) -> bool {
        matches!(self.addresses, Addresses::V6(..))
    }
}

impl FrameWriter {
    pub(super) fn new() -> Self {
        Self { patterns: Patterns::new(), identification: 0 }
    }

    /// Makes the frame of `segment`, `milliseconds` after the start; returns its length on the
    /// wire and its first `snap` bytes.
    #[inline]
    pub(super) fn write(
        &mut self,
        headers: &PacketHeaders,
        segment: &Segment,
        milliseconds: u32,
        snap: usize,
    ) -> (usize, &[u8]) {
        let payload_len = usize::from(segment.len);
        let payload_sum = u64::from(self.patterns.sum(segment.payload, payload_len));
        let &PacketHeaders { addresses, protocol, tags, .. } = headers;
        let ip_header = if headers.ipv6() { 40 } else { 20 };
        let transport_header = header_len(segment.transport);
        let transport_len = (transport_header + payload_len) as u16;
        let tags = usize::from(tags.inner().is_some()) + usize::from(tags.outer().is_some());
        let ip_start = HEADROOM - transport_header - ip_header;
        let start = ip_start - 14 - 4 * tags;

        let buffer = self.patterns.buffer(segment.payload);
        let mut out = Writer { rest: &mut buffer[start..HEADROOM] };
        ethernet(&mut out, headers, segment.from_client);
        let ttl = if segment.from_client { CLIENT_TTL } else { SERVER_TTL };
        let address_sum = match addresses {
            Addresses::V4(source, destination) => {
                self.identification = self.identification.wrapping_add(1);
                let header = Ipv4 { len: 20 + transport_len, id: self.identification, ttl, protocol };
                header.write(&mut out, source, destination);
                u64::from(source) + u64::from(destination)
            }
            Addresses::V6(source, destination) => {
                ipv6(&mut out, transport_len, protocol, ttl);
                out.put(source.to_be_bytes());
                out.put(destination.to_be_bytes());
                words(source) + words(destination)
            }
        };
        // ICMP alone has no pseudo-header (RFC 792); the others do (RFC 9293, 768, 8200, 4443).
        let pseudo =
            if protocol == 1 { 0 } else { address_sum + u64::from(protocol) + u64::from(transport_len) };
        let field = transport(&mut out, headers, segment, transport_len, milliseconds);
        let header = &mut buffer[HEADROOM - transport_header..];
        let checksum = !fold(pseudo + sum(&header[..transport_header]) + payload_sum);
        // In UDP 0 says that there is no checksum, and ones stand for it (RFC 768).
        let checksum = if checksum == 0 && protocol == 17 { 0xffff } else { checksum };
        header[field..field + 2].copy_from_slice(&checksum.to_be_bytes());

        let wire_len = (HEADROOM - start + payload_len).max(SHORTEST_FRAME);
        (wire_len, &buffer[start..start + wire_len.min(snap)])
    }
}

/// Bytes put one after the other into a buffer that has just room for them.
struct Writer<'a> {
    rest: &'a mut [u8],
}

impl Writer<'_> {
    #[inline]
    fn put<const N: usize>(&mut self, bytes: [u8; N]) {
        let rest = std::mem::take(&mut self.rest);
        let (head, tail) = rest.split_at_mut(N);
        head.copy_from_slice(&bytes);
        self.rest = tail;
    }
}

/// An unfragmented IPv4 header without options (RFC 791).
struct Ipv4 {
    len: u16,
    id: u16,
    ttl: u8,
    protocol: u8,
}

impl Ipv4 {
    #[inline]
    fn write(&self, out: &mut Writer<'_>, source: u32, destination: u32) {
        let mut header = [0; 20];
        header[0] = 0x45;
        header[2..4].copy_from_slice(&self.len.to_be_bytes());
        header[4..6].copy_from_slice(&self.id.to_be_bytes());
        // Do not fragment.
        header[6] = 0x40;
        header[8] = self.ttl;
        header[9] = self.protocol;
        header[12..16].copy_from_slice(&source.to_be_bytes());
        header[16..20].copy_from_slice(&destination.to_be_bytes());
        let checksum = !fold(sum(&header));
        header[10..12].copy_from_slice(&checksum.to_be_bytes());
        out.put(header);
    }
}

/// An IPv6 header as far as the addresses (RFC 8200).
#[inline]
fn ipv6(out: &mut Writer<'_>, payload_len: u16, protocol: u8, ttl: u8) {
    out.put((6u32 << 28).to_be_bytes());
    out.put(payload_len.to_be_bytes());
    out.put([protocol, ttl]);
}

/// The addresses of the routers, the tags, and the type of what follows.
#[inline]
fn ethernet(out: &mut Writer<'_>, headers: &PacketHeaders, from_client: bool) {
    let (destination, source) =
        if from_client { (SERVER_SIDE, CLIENT_SIDE) } else { (CLIENT_SIDE, SERVER_SIDE) };
    out.put(destination);
    out.put(source);
    if let Some(id) = headers.tags.outer() {
        out.put(SERVICE_VLAN.to_be_bytes());
        out.put(id.to_be_bytes());
    }
    if let Some(id) = headers.tags.inner() {
        out.put(VLAN.to_be_bytes());
        out.put(id.to_be_bytes());
    }
    out.put(if headers.ipv6() { IPV6 } else { IPV4 }.to_be_bytes());
}

/// Bytes of a transport header.
#[inline]
fn header_len(transport: Transport) -> usize {
    match transport {
        Transport::Tcp { options: Options::None, .. } => 20,
        Transport::Tcp { options: Options::Timestamps, .. } => 32,
        Transport::Tcp { options: Options::Opening, .. } => 40,
        Transport::Udp | Transport::Echo { .. } => 8,
    }
}

/// Writes the transport header with its checksum 0; returns where in it the checksum belongs.
#[inline]
fn transport(
    out: &mut Writer<'_>,
    headers: &PacketHeaders,
    segment: &Segment,
    len: u16,
    milliseconds: u32,
) -> usize {
    let (source, destination) = headers.ports;
    match segment.transport {
        Transport::Tcp { seq, ack, flags, options } => {
            out.put(source.to_be_bytes());
            out.put(destination.to_be_bytes());
            out.put(seq.to_be_bytes());
            out.put(ack.to_be_bytes());
            out.put([(header_len(segment.transport) as u8) << 2, flags]);
            // A window of 501, then the checksum and no urgent pointer.
            out.put([0x01, 0xf5, 0, 0, 0, 0]);
            let echo = if ack == 0 { 0 } else { milliseconds };
            match options {
                Options::None => {}
                Options::Opening => {
                    let mss: u16 = if headers.ipv6() { 1440 } else { 1460 };
                    out.put([2, 4]);
                    out.put(mss.to_be_bytes());
                    out.put([4, 2, 8, 10]);
                    out.put(milliseconds.to_be_bytes());
                    out.put(echo.to_be_bytes());
                    out.put([1, 3, 3, 7]);
                }
                Options::Timestamps => {
                    out.put([1, 1, 8, 10]);
                    out.put(milliseconds.to_be_bytes());
                    out.put(echo.to_be_bytes());
                }
            }
            16
        }
        Transport::Udp => {
            out.put(source.to_be_bytes());
            out.put(destination.to_be_bytes());
            out.put(len.to_be_bytes());
            out.put([0, 0]);
            6
        }
        Transport::Echo { reply, identifier, sequence } => {
            // RFC 792 and RFC 4443 section 4.
            let kind = match (headers.ipv6(), reply) {
                (false, false) => 8,
                (false, true) => 0,
                (true, false) => 128,
                (true, true) => 129,
            };
            out.put([kind, 0, 0, 0]);
            out.put(identifier.to_be_bytes());
            out.put(sequence.to_be_bytes());
            2
        }
    }
}

/// The sum of an address's words.
#[inline]
fn words(address: u128) -> u64 {
    let (high, low) = ((address >> 64) as u64, address as u64);
    (high >> 32) + (high & 0xffff_ffff) + (low >> 32) + (low & 0xffff_ffff)
}
