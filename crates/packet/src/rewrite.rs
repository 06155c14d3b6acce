//! Rewriting of addresses, ports and DSCPs, with the checksums over them.
//!
//! Frames may lie in memory that can only be read, so functions rewrite the match keys of a batch, and who writes a frame
//! out, or owns its memory, applies [`Rewrite`]s to what the keys have become. Checksums are brought up to date by what changed: that needs no bytes beyond
//! the headers, and a checksum that was wrong stays wrong.

use std::mem;

use crate::dissect::{COMMON, Walk, common, network_layer, walk_ipv4, walk_ipv6};
use crate::key::{KeyBits, MatchKey4, MatchKey6, join};
use crate::wire::ethernet::Ethernet;
use crate::wire::ip::{Ipv4, Ipv6};
use crate::{Dscp, LinkType, protocol};

/// Where the checksum stands in a TCP header (RFC 9293 section 3.1).
const TCP_CHECKSUM: usize = 16;
/// Where the checksum stands in a UDP header (RFC 768).
const UDP_CHECKSUM: usize = 6;
/// Where the checksum stands in an ICMPv6 message (RFC 4443 section 2.1).
const ICMPV6_CHECKSUM: usize = 2;
/// Where the checksum stands in an SCTP packet (RFC 9260 section 3.1).
const SCTP_CHECKSUM: usize = 8;

/// One of the two ends of a packet's way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The one that sent it.
    Source,
    /// The one it is sent to.
    Destination,
}

/// An IP address as match keys hold it, in host order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Address {
    /// IPv4.
    V4(u32),
    /// IPv6: two halves, the high one first.
    V6([u64; 2]),
}

/// Another address, and perhaps another port, for one end of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rewrite {
    /// Index of the packet's frame in its batch.
    pub frame: u32,
    /// Which end.
    pub end: End,
    /// Its new address, of the packet's IP version.
    pub address: Address,
    /// Its new port; `None` leaves it as it is. Without effect where the packet has no ports.
    pub port: Option<u16>,
}

/// Writes a rewrite into the outermost IP header of a frame and the transport header after it, and brings checksums up
/// to date: IPv4's, and those of TCP, UDP, ICMPv6 and SCTP. Whether it was applied; if not, nothing was written.
///
/// `frame` holds the captured bytes, `wire_len` the bytes the frame had on the wire. Fields that were not captured whole
/// are not written. A UDP checksum of 0, which says that there is none (RFC 768), stays 0. What else knows the
/// addresses is left as it is: authentication headers, packets that an ICMP message quotes, checksums of other
/// protocols.
///
/// Not applied to frames that [`dissect()`](crate::dissect()) rejects, to packets of another IP version than the
/// address, and, where there is a port, to first fragments of SCTP.
#[inline]
pub fn apply(rewrite: &Rewrite, link: LinkType, frame: &mut [u8], wire_len: u32) -> bool {
    let Ok(packet) = network_layer(link, frame) else { return false };
    let before = frame.len() - packet.len();
    let packet = &mut frame[before..];
    let wire_len = wire_len.saturating_sub(before as u32);
    match (packet.first().map(|first| first >> 4), rewrite.address) {
        (Some(4), Address::V4(address)) => {
            let upper = walk_ipv4(packet, wire_len).ok().and_then(|walk| Upper::of(rewrite, &walk, packet));
            let Some(upper) = upper else { return false };
            let at = match rewrite.end {
                End::Source => Ipv4::SOURCE,
                End::Destination => Ipv4::DESTINATION,
            };
            let change = replace(packet, at, address.to_be_bytes());
            adjust(packet, Ipv4::CHECKSUM, change);
            upper.write(packet, rewrite, change);
            true
        }
        (Some(6), Address::V6(address)) => {
            let upper = walk_ipv6(packet, wire_len).ok().and_then(|walk| Upper::of(rewrite, &walk, packet));
            let Some(upper) = upper else { return false };
            let at = match rewrite.end {
                End::Source => Ipv6::SOURCE,
                End::Destination => Ipv6::DESTINATION,
            };
            let change = replace(packet, at, join(address).to_be_bytes());
            upper.write(packet, rewrite, change);
            true
        }
        _ => false,
    }
}

/// Writes the ends of an IPv4 packet that were rewritten into a copy of its frame, as its key has them: [`apply`]. The frame is one of
/// the [common](common()) ones. What was there is read from the frame: of a copy that was just written it would have to be waited for.
// A call for each packet would save and bring back ten registers.
#[inline(always)]
pub(crate) fn write_common(key: &MatchKey4, changes: Changes, frame: &[u8; COMMON], copy: &mut [u8; COMMON]) {
    match (changes.has(End::Source), changes.has(End::Destination)) {
        (false, true) => {
            let change = write_end(frame, copy, [30, 36], key.destination, key.destination_port);
            write_checksums(frame, copy, change);
        }
        (true, false) => {
            let change = write_end(frame, copy, [26, 34], key.source, key.source_port);
            write_checksums(frame, copy, change);
        }
        (true, true) => write_both(key, frame, copy),
        (false, false) => {}
    }
}

/// The same of both ends, which few functions rewrite.
#[cold]
fn write_both(key: &MatchKey4, frame: &[u8; COMMON], copy: &mut [u8; COMMON]) {
    let destination = write_end(frame, copy, [30, 36], key.destination, key.destination_port);
    let source = write_end(frame, copy, [26, 34], key.source, key.source_port);
    let change = [sum16(destination[0], source[0]), sum16(destination[1], source[1])];
    write_checksums(frame, copy, change);
}

/// Gives one end another address and port, which stand `at` these places. Returns what that changes in sums over addresses, and over ports.
#[inline]
fn write_end(
    frame: &[u8; COMMON],
    copy: &mut [u8; COMMON],
    [at, port_at]: [usize; 2],
    address: u32,
    port: u16,
) -> [u16; 2] {
    let (address, port) = (address.to_be_bytes(), port.to_be_bytes());
    let old = u32::from_ne_bytes([frame[at], frame[at + 1], frame[at + 2], frame[at + 3]]);
    let old_port = u16::from_ne_bytes([frame[port_at], frame[port_at + 1]]);
    copy[at..at + 4].copy_from_slice(&address);
    copy[port_at..port_at + 2].copy_from_slice(&port);
    // Of two words at a time first, as sums of either length are those of their words.
    let (sum, carry) = (!old).overflowing_add(u32::from_ne_bytes(address));
    [folded(sum + u32::from(carry)), sum16(!old_port, u16::from_ne_bytes(port))]
}

/// Brings both checksums up to date by what changed of addresses, and of ports.
#[inline]
fn write_checksums(frame: &[u8; COMMON], copy: &mut [u8; COMMON], [addresses, ports]: [u16; 2]) {
    const IP: usize = Ethernet::LEN + Ipv4::CHECKSUM;
    const TCP: usize = Ethernet::LEN + Ipv4::LEN + TCP_CHECKSUM;
    const UDP: usize = Ethernet::LEN + Ipv4::LEN + UDP_CHECKSUM;
    let checksum = |at: usize| [frame[at], frame[at + 1]];
    let mut write = |at: usize, checksum: [u8; 2]| copy[at..at + 2].copy_from_slice(&checksum);
    write(IP, adjusted(checksum(IP), addresses));
    let change = sum16(addresses, ports);
    match frame[23] {
        protocol::TCP => write(TCP, adjusted(checksum(TCP), change)),
        _ => write(UDP, adjusted_udp(checksum(UDP), change)),
    }
}

/// The same where the frame may be any.
#[inline]
pub(crate) fn write_v4(key: &MatchKey4, changes: Changes, of: (LinkType, u32), frame: &mut [u8]) {
    match frame.first_chunk_mut() {
        Some(copy) if common(of.0, copy).is_some() => write_common(key, changes, &copy.clone(), copy),
        _ => write_any(|end| key.as_rewrite(0, end), changes, of, frame),
    }
}

/// The same for IPv6.
#[inline]
pub(crate) fn write_v6(key: &MatchKey6, changes: Changes, of: (LinkType, u32), frame: &mut [u8]) {
    write_any(|end| key.as_rewrite(0, end), changes, of, frame);
}

#[inline(never)]
fn write_any(
    rewrite: impl Fn(End) -> Rewrite,
    changes: Changes,
    (link, wire_len): (LinkType, u32),
    frame: &mut [u8],
) {
    for end in [End::Source, End::Destination].into_iter().filter(|&end| changes.has(end)) {
        // Possible, or it would not have been taken, but where headers are beyond the bytes that there are.
        apply(&rewrite(end), link, frame, wire_len);
    }
}

/// The DSCP of the outermost IP header of a frame, if it was captured.
#[inline]
pub fn dscp(link: LinkType, frame: &[u8]) -> Option<Dscp> {
    dscp_of(network_layer(link, frame).ok()?)
}

/// The same of an IP packet.
#[inline]
pub fn dscp_of(packet: &[u8]) -> Option<Dscp> {
    let word = u16::from_be_bytes(*packet.first_chunk()?);
    Dscp::new((word >> dscp_shift(word)? & DSCP_BITS).into())
}

/// Writes a DSCP into the outermost IP header of a frame, and brings IPv4's checksum up to date; no other covers it. The two bits for
/// congestion notification stay. Whether it was written: not where there is no IP header, or its first bytes were not captured.
pub fn set_dscp(dscp: Dscp, link: LinkType, frame: &mut [u8]) -> bool {
    let Ok(packet) = network_layer(link, frame) else { return false };
    let before = frame.len() - packet.len();
    set_packet_dscp(dscp, &mut frame[before..])
}

/// The same of an IP packet.
pub(crate) fn set_packet_dscp(dscp: Dscp, packet: &mut [u8]) -> bool {
    let Some(word) = packet.first_chunk().map(|first| u16::from_be_bytes(*first)) else { return false };
    let Some(shift) = dscp_shift(word) else { return false };
    let new = word & !(DSCP_BITS << shift) | u16::from(dscp.number()) << shift;
    // Where it is the same, a checksum of either zero stays the one that it is.
    if new != word {
        let change = replace(packet, 0, new.to_be_bytes());
        if shift == DSCP_SHIFT_V4 {
            adjust(packet, Ipv4::CHECKSUM, change);
        }
    }
    true
}

const DSCP_BITS: u16 = 0x3f;
const DSCP_SHIFT_V4: u32 = 2;

/// The lowest of the DSCP's bits in the first word of an IP packet: after version and header length of IPv4 (RFC 791), or after IPv6's
/// version (RFC 8200 section 3).
#[inline]
fn dscp_shift(word: u16) -> Option<u32> {
    match word >> 12 {
        4 => Some(DSCP_SHIFT_V4),
        6 => Some(6),
        _ => None,
    }
}

/// The upper-layer packet inside an IP packet.
struct Upper {
    /// Where it begins and where its captured bytes end, counted from the IP header.
    start: usize,
    end: usize,
    /// Bytes it has by the IP packet's length.
    len: u32,
    protocol: u8,
    bits: KeyBits,
}

impl Upper {
    /// That of a packet to which the rewrite can be applied.
    #[inline]
    fn of<H>(rewrite: &Rewrite, walk: &Walk<'_, H>, packet: &[u8]) -> Option<Self> {
        let bits = walk.transport().ok()?.bits;
        let end = packet.len().min(walk.ip_bytes as usize);
        let start = end - walk.payload.len();
        let len = walk.ip_bytes - start as u32;
        let fits = rewrite.port.is_none() || has_free_ports(walk.protocol, bits);
        fits.then_some(Self { start, end, len, protocol: walk.protocol, bits })
    }

    /// Writes the port, and the checksum that covers it and the addresses, whose change is given.
    #[inline]
    fn write(self, packet: &mut [u8], rewrite: &Rewrite, mut change: u16) {
        // Later fragments begin with anything but a header.
        if self.bits.contains(KeyBits::LATER_FRAGMENT) {
            return;
        }
        let payload = &mut packet[self.start..self.end];
        if self.bits.contains(KeyBits::PORTS)
            && let Some(port) = rewrite.port
        {
            let at = match rewrite.end {
                End::Source => 0,
                End::Destination => 2,
            };
            // Of SCTP no checksum covers the addresses.
            if self.protocol == protocol::SCTP {
                return write_sctp_port(payload, self.len, at, port);
            }
            change = sum16(change, replace(payload, at, port.to_be_bytes()));
        }
        match self.protocol {
            protocol::TCP => adjust(payload, TCP_CHECKSUM, change),
            protocol::ICMPV6 => adjust(payload, ICMPV6_CHECKSUM, change),
            protocol::UDP => adjust_udp(payload, change),
            _ => {}
        }
    }
}

/// A field of a header, if its bytes were captured.
#[inline]
fn field<const N: usize>(bytes: &mut [u8], at: usize) -> Option<&mut [u8; N]> {
    bytes.get_mut(at..)?.first_chunk_mut()
}

/// Writes a field of whole 16-bit words; returns what that changes in a ones' complement sum over it: ~m + m' of
/// RFC 1624. Words and sums are in this machine's order of bytes, which such a sum does not depend on (RFC 1071 section 2).
#[inline]
fn replace<const N: usize>(bytes: &mut [u8], at: usize, new: [u8; N]) -> u16 {
    let Some(field) = field::<N>(bytes, at) else { return 0 };
    let change = |(old, &new): (&mut [u8; 2], _)| {
        sum16(!u16::from_ne_bytes(mem::replace(old, new)), u16::from_ne_bytes(new))
    };
    field.as_chunks_mut().0.iter_mut().zip(new.as_chunks().0).map(change).fold(0, sum16)
}

/// The ones' complement sum of two words: 0 only where both are.
#[inline]
fn sum16(a: u16, b: u16) -> u16 {
    let (sum, carry) = a.overflowing_add(b);
    sum + u16::from(carry)
}

/// That of the halves of two words.
#[inline]
fn folded(words: u32) -> u16 {
    // The upper half of this is the sum of both halves, with its carry.
    (words.wrapping_add(words.rotate_left(16)) >> 16) as u16
}

/// Brings a checksum up to date, if it was captured.
#[inline]
fn adjust(bytes: &mut [u8], at: usize, change: u16) {
    if let Some(checksum) = field(bytes, at) {
        *checksum = adjusted(*checksum, change);
    }
}

/// The same for UDP, whose checksum of 0 says that there is none.
#[inline]
fn adjust_udp(bytes: &mut [u8], change: u16) {
    if let Some(checksum) = field(bytes, UDP_CHECKSUM) {
        *checksum = adjusted_udp(*checksum, change);
    }
}

/// The checksum over words that changed: HC - ~m - m' (RFC 1624 section 4, equation 4), with the borrow from the end.
#[inline]
fn adjusted(checksum: [u8; 2], change: u16) -> [u8; 2] {
    let (difference, borrow) = u16::from_ne_bytes(checksum).overflowing_sub(change);
    (difference - u16::from(borrow)).to_ne_bytes()
}

/// The same for UDP's checksum: none stays none, and one that becomes 0 is written as the other zero.
#[inline]
fn adjusted_udp(checksum: [u8; 2], change: u16) -> [u8; 2] {
    match adjusted(checksum, change) {
        _ if checksum == [0; 2] => checksum,
        [0, 0] => [0xff; 2],
        adjusted => adjusted,
    }
}

/// Writes a port of an SCTP packet of `len` bytes, captured or not, and brings its checksum up to date.
///
/// A CRC is linear: with the difference of two packets of one length, the CRC changes by that of the difference. Here it
/// is 16 bits at `at` with zeros behind them. The checksum itself counts as 0 (RFC 9260 section 6.8), in both.
fn write_sctp_port(payload: &mut [u8], len: u32, at: usize, port: u16) {
    let new = port.to_be_bytes();
    let Some(old) = field(payload, at).map(|field| mem::replace(field, new)) else { return };
    let difference = u16::from_le_bytes(old) ^ u16::from_le_bytes(new);
    let change = crc32c_then_zeros(difference.into(), len - at as u32);
    if let Some(checksum) = field(payload, SCTP_CHECKSUM) {
        // The least significant byte comes first (RFC 9260 appendix A).
        *checksum = (u32::from_le_bytes(*checksum) ^ change).to_le_bytes();
    }
}

/// What CRC32c's register holds after `len` bytes, the first of which are those of `first`, least significant one
/// first, and the others 0; it begins at 0 and is not complemented.
///
/// Bits are coefficients modulo CRC32c's polynomial, the highest bit that of x⁰; a byte 0 multiplies by x⁸. So the
/// effort grows with the logarithm of `len`: no sender can make it large.
fn crc32c_then_zeros(first: u32, mut len: u32) -> u32 {
    let (mut register, mut power) = (first, 1 << 23);
    while len > 0 {
        if len & 1 == 1 {
            register = multiply(register, power);
        }
        power = multiply(power, power);
        len >>= 1;
    }
    register
}

/// The product of two polynomials modulo CRC32c's, in the order of bits of [`crc32c_then_zeros`].
fn multiply(a: u32, mut b: u32) -> u32 {
    /// RFC 9260 appendix A, reflected.
    const POLYNOMIAL: u32 = 0x82f6_3b78;
    let mut product = 0;
    for bit in (0..32).rev() {
        if a >> bit & 1 == 1 {
            product ^= b;
        }
        b = b >> 1 ^ if b & 1 == 1 { POLYNOMIAL } else { 0 };
    }
    product
}

/// What was rewritten of a packet: a bit for each end, one for the DSCP, and from bit 8 on that itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Changes(u16);

impl Changes {
    /// Nothing.
    pub(crate) const NONE: Self = Self(0);
    const DSCP: u16 = 1 << 2;

    #[inline]
    pub(crate) fn add(&mut self, end: End) {
        self.0 |= 1 << end as u16;
    }

    #[inline]
    pub(crate) fn has(self, end: End) -> bool {
        self.0 >> end as u16 & 1 == 1
    }

    /// The DSCP takes the place of one from before.
    #[inline]
    pub(crate) fn set_dscp(&mut self, dscp: Dscp) {
        self.0 = self.0 & 0xff | Self::DSCP | u16::from(dscp.number()) << 8;
    }

    /// Whether there is one.
    #[inline]
    pub(crate) fn has_dscp(self) -> bool {
        self.0 & Self::DSCP != 0
    }

    #[inline]
    pub(crate) fn dscp(self) -> Option<Dscp> {
        if self.has_dscp() { Dscp::new((self.0 >> 8).into()) } else { None }
    }
}

/// What a key of either IP version needs to be rewritten.
macro_rules! rewrite_keys {
    ($key:ty, $version:ident) => {
        impl $key {
            /// Gives one end another address and, where it has ports and there is one, another port. Whether that can be: the
            /// address must be of the key's IP version, and the port of a first fragment of SCTP cannot be changed, since the
            /// checksum covers the whole packet, whose length the fragment does not know.
            #[inline]
            pub(crate) fn rewrite(&mut self, end: End, address: Address, port: Option<u16>) -> bool {
                let Address::$version(to) = address else { return false };
                let (address, own_port) = match end {
                    End::Source => (&mut self.source, &mut self.source_port),
                    End::Destination => (&mut self.destination, &mut self.destination_port),
                };
                if let Some(port) = port {
                    if !has_free_ports(self.protocol, self.bits) {
                        return false;
                    }
                    if self.bits.contains(KeyBits::PORTS) {
                        *own_port = port;
                    }
                }
                *address = to;
                true
            }

            /// The rewrite that gives one end of a frame the address and the port that the key has.
            #[inline]
            pub(crate) fn as_rewrite(&self, frame: u32, end: End) -> Rewrite {
                let (address, port) = match end {
                    End::Source => (self.source, self.source_port),
                    End::Destination => (self.destination, self.destination_port),
                };
                let has_port = self.bits.contains(KeyBits::PORTS) && has_free_ports(self.protocol, self.bits);
                Rewrite { frame, end, address: Address::$version(address), port: has_port.then_some(port) }
            }
        }
    };
}

rewrite_keys!(MatchKey4, V4);
rewrite_keys!(MatchKey6, V6);

/// Whether ports can be changed, if there are some.
#[inline]
fn has_free_ports(protocol: u8, bits: KeyBits) -> bool {
    !bits.contains(KeyBits::FIRST_FRAGMENT) || first_fragment_has_free_ports(protocol)
}

#[cold]
fn first_fragment_has_free_ports(protocol: u8) -> bool {
    protocol != protocol::SCTP
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_rfc_1624() {
        // Section 4: a checksum that becomes 0, where equation 2 of RFC 1141 gives 0xffff.
        let mut word = [0x55, 0x55];
        let change = replace(&mut word, 0, [0x32, 0x85]);
        assert_eq!((word, adjusted([0xdd, 0x2f], change)), ([0x32, 0x85], [0, 0]));
    }

    #[test]
    fn equation_4_says_what_equation_3_does() {
        for change in [0, 1, 0x1234, 0x7fff, 0x8000, 0xfffe, 0xffff] {
            for checksum in 0..=u16::MAX {
                // ~(~HC + ~m + m').
                let sum = u32::from(!checksum) + u32::from(change);
                let expected = !((sum & 0xffff) + (sum >> 16)) as u16;
                assert_eq!(
                    adjusted(checksum.to_ne_bytes(), change),
                    expected.to_ne_bytes(),
                    "{checksum}, {change}"
                );
            }
        }
    }

    #[test]
    fn sums_of_two_words_at_a_time() {
        for (words, sum) in [
            (0, 0),
            (1, 1),
            (0xffff, 0xffff),
            (0x1_0000, 1),
            (0xffff_0000, 0xffff),
            (0xffff_ffff, 0xffff),
            (0x1234_5678, 0x68ac),
            (0xfffe_0003, 2),
        ] {
            assert_eq!(folded(words), sum, "{words:#x}");
        }
    }

    #[test]
    fn crc32c_of_zeros() {
        // RFC 3720 appendix B.4: of 32 bytes 0. The register begins with all bits set and is complemented in the end.
        assert_eq!(!crc32c_then_zeros(!0, 32), 0x8a91_36aa);
        assert_eq!(crc32c_then_zeros(0x1234, 0), 0x1234);
    }
}
