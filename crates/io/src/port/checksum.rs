//! Finishes transport checksums that a sender left partial (RFC 1071; `CHECKSUM_PARTIAL` in the kernel). When to do which is said in the [parent module](super).

use packetloom_packet::protocol;
use packetloom_packet::wire::ethernet::{self, Ethernet, VlanTag};
use packetloom_packet::wire::ip::{Extension, Ipv4, Ipv6};

use super::Offload;

/// Where the checksum stands in a UDP header.
const UDP_CHECKSUM: usize = 6;

/// Why a partial checksum was not finished: it stands, or what it covers begins, beyond the bytes there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("partial checksum at byte {at}, but the frame has {len} bytes")]
pub struct ChecksumOutside {
    /// Where the checksum should stand.
    pub at: usize,
    /// Bytes of the frame.
    pub len: usize,
}

/// Finishes a partial checksum, and notes in `offload` that nothing is left to be done about it. Without effect where none is partial.
///
/// `frame` must be whole: the checksum covers it to its end. A giant comes out as one large packet with a right checksum; it can still be
/// cut into segments by its `offload` if it is TCP, but not if it is UDP, for which [`restart_partial`] is needed.
///
/// # Errors
///
/// The checksum field lies outside of the frame; nothing is written.
pub fn complete_checksum(frame: &mut [u8], offload: &mut Offload) -> Result<(), ChecksumOutside> {
    if !offload.needs_checksum() {
        return Ok(());
    }
    let (start, at) = (offload.checksum_start(), offload.checksum_at());
    let outside = ChecksumOutside { at, len: frame.len() };
    if frame.len() < at + 2 {
        return Err(outside);
    }
    if complete_sctp(frame, offload) {
        return Ok(());
    }
    // The sum over the pseudo header stands in the field, so it is in the sum.
    let checksum = match !sum(&frame[start..]) {
        // 0 says "no checksum" in UDP; 0xffff is the same number, which others are not written as (RFC 1624 section 3).
        0 if at - start == UDP_CHECKSUM => 0xffff,
        checksum => checksum,
    };
    frame[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
    offload.set_needs_checksum(false);
    Ok(())
}

/// The same for SCTP alone, whose checksum is a CRC and has four bytes. Whether it was one.
pub(super) fn complete_sctp(frame: &mut [u8], offload: &mut Offload) -> bool {
    let (start, at) = (offload.checksum_start(), offload.checksum_at());
    if !offload.is_at_sctp_checksum() || frame.len() < at + 4 || !is_sctp(frame, start) {
        return false;
    }
    frame[at..at + 4].copy_from_slice(&[0; 4]);
    let crc = crc32c(&frame[start..]);
    frame[at..at + 4].copy_from_slice(&crc.to_le_bytes());
    offload.set_needs_checksum(false);
    true
}

/// Makes the checksum partial (again): writes the folded sum over the pseudo header, from the addresses as they stand in the frame, into
/// the checksum field, and notes in `offload` that it is to be finished. Returns whether it did.
///
/// For frames that came with a partial checksum and were rewritten; also for those that [`complete_checksum`] has finished since. It does
/// nothing, and nothing is needed, where the checksum that was partial is not that of the outermost IP packet (in a tunnel): addresses of
/// the outer header are not in it.
pub fn restart_partial(frame: &mut [u8], offload: &mut Offload) -> bool {
    let (start, at) = (offload.checksum_start(), offload.checksum_at());
    if start == 0 || frame.len() < at + 2 {
        return false;
    }
    let Some(sum) = pseudo_header(frame, start) else { return false };
    frame[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    offload.set_needs_checksum(true);
    true
}

/// A checksum that looks as if its sender had left it to the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Partial {
    /// The sum over the pseudo header stands in the field of TCP or UDP.
    Sum(Offload),
    /// Nothing stands in that of SCTP.
    Crc(Offload),
}

/// What was left of the checksum of the outermost IP packet, where the frame came without a word about that.
///
/// A field that holds the sum over the pseudo header is right by chance once in 65,536 packets, and then stays what it is when it is finished. A
/// wrong one that looks like it becomes right: so this is only for links whose senders leave checksums partial.
pub(super) fn guess_partial(frame: &[u8]) -> Option<Partial> {
    let network = network(frame)?;
    let packet = frame.get(network..)?;
    let (upper, number, packet_len) = match packet.first()? >> 4 {
        4 => {
            let header = Ipv4::new_checked(packet)?;
            if header.more_fragments() || header.fragment_offset() != 0 {
                return None;
            }
            (header.header_len(), header.protocol(), usize::from(header.total_len()))
        }
        6 => {
            let header = Ipv6::new_checked(packet)?;
            let (mut next, mut at) = (header.next_header(), Ipv6::LEN);
            // None is left partial in fragments.
            while Extension::is_walked(next) && next != protocol::FRAGMENT {
                let header = Extension::new_checked(packet.get(at..)?)?;
                at += header.header_len(next);
                next = header.next_header();
            }
            (at, next, Ipv6::LEN + usize::from(header.payload_len()))
        }
        _ => return None,
    };
    // What stands behind the packet is summed up when the checksum is finished, and so must be nothing, or zeros: padding. A frame that is cut
    // has no sum.
    let behind = packet.get(packet_len..)?;
    if behind.iter().any(|&byte| byte != 0) {
        return None;
    }
    let start = network + upper;
    let partial = |offset| Some(Offload::partial(u16::try_from(start).ok()?, offset));
    let offset = match number {
        protocol::TCP => 16,
        // The checksum is that of the datagram, behind which the packet may have options (RFC 9868).
        protocol::UDP => {
            let len = frame.get(start + 4..start + 6)?;
            if usize::from(u16::from_be_bytes([len[0], len[1]])) != packet_len.checked_sub(upper)? {
                return None;
            }
            6
        }
        // Zeros behind the packet would change its CRC.
        protocol::SCTP if !behind.is_empty() => return None,
        protocol::SCTP => {
            let field = frame.get(start + 8..start + 12)?;
            return (field == [0; 4]).then(|| partial(8)).flatten().map(Partial::Crc);
        }
        _ => return None,
    };
    let at = start + usize::from(offset);
    let field: [u8; 2] = frame.get(at..at + 2)?.try_into().ok()?;
    (pseudo_header(frame, start)? == u16::from_be_bytes(field))
        .then(|| partial(offset))
        .flatten()
        .map(Partial::Sum)
}

/// Folded ones' complement sum over the pseudo header of the outermost IP packet, if its transport header begins at `transport`
/// (RFC 9293 section 3.1, RFC 8200 section 8.1).
fn pseudo_header(frame: &[u8], transport: usize) -> Option<u16> {
    let network = network(frame)?;
    let packet = frame.get(network..)?;
    let upper = transport.checked_sub(network)?;
    let in_frame = frame.len().checked_sub(transport)?;
    let (addresses, protocol, packet_len) = match packet.first()? >> 4 {
        4 => {
            let header = Ipv4::new_checked(packet)?;
            if header.header_len() != upper {
                return None;
            }
            (sum(packet.get(Ipv4::SOURCE..Ipv4::LEN)?), header.protocol(), usize::from(header.total_len()))
        }
        6 => {
            let header = Ipv6::new_checked(packet)?;
            let (protocol, destination) = ipv6_upper(packet, header.next_header(), upper)?;
            let source = sum(packet.get(Ipv6::SOURCE..Ipv6::DESTINATION)?);
            let len = match usize::from(header.payload_len()) {
                0 => 0,
                len => len + Ipv6::LEN,
            };
            (fold(u64::from(source) + u64::from(sum(destination))), protocol, len)
        }
        _ => return None,
    };
    // A length of 0 says that it did not fit in the field. The frame may be padded beyond what the header says.
    let len = match packet_len {
        0 => in_frame,
        len => len.checked_sub(upper)?.min(in_frame),
    };
    let len = len as u64;
    Some(fold(u64::from(addresses) + u64::from(protocol) + (len >> 16) + (len & 0xffff)))
}

/// Protocol of the header at `upper` in an IPv6 packet, and the address the packet is finally for.
fn ipv6_upper(packet: &[u8], mut next: u8, upper: usize) -> Option<(u8, &[u8])> {
    let mut at = Ipv6::LEN;
    let mut destination = packet.get(Ipv6::DESTINATION..Ipv6::LEN)?;
    while at < upper {
        let rest = packet.get(at..)?;
        let header = Extension::new_checked(rest)?;
        let len = match next {
            // Only a first fragment can have a checksum, and none is left partial in fragments.
            protocol::FRAGMENT => return None,
            number if Extension::is_walked(number) => header.header_len(number),
            _ => return None,
        };
        if next == protocol::ROUTING && rest[3] != 0 {
            // Segments are left: the checksum has the last address of the route.
            destination = match rest[2] {
                0 => rest.get(len.checked_sub(16)?..len)?,
                2 | 4 => rest.get(8..24)?,
                _ => return None,
            };
        }
        next = header.next_header();
        at += len;
    }
    (at == upper).then_some((next, destination))
}

/// Where an IP packet begins in an Ethernet frame, behind VLAN tags.
fn network(frame: &[u8]) -> Option<usize> {
    let mut ethertype = Ethernet::new_checked(frame)?.ethertype();
    let mut at = Ethernet::LEN;
    while ethernet::is_vlan(ethertype) {
        ethertype = VlanTag::new_checked(frame.get(at..)?)?.ethertype();
        at += VlanTag::LEN;
    }
    matches!(ethertype, ethernet::TYPE_IPV4 | ethernet::TYPE_IPV6).then_some(at)
}

/// Whether the outermost IP packet is SCTP whose header begins at `transport`.
fn is_sctp(frame: &[u8], transport: usize) -> bool {
    let number = || {
        let network = network(frame)?;
        let packet = frame.get(network..)?;
        let upper = transport.checked_sub(network)?;
        match packet.first()? >> 4 {
            4 => Ipv4::new_checked(packet).filter(|h| h.header_len() == upper).map(Ipv4::protocol),
            6 => {
                ipv6_upper(packet, Ipv6::new_checked(packet)?.next_header(), upper).map(|(number, _)| number)
            }
            _ => None,
        }
    };
    number() == Some(protocol::SCTP)
}

/// Folded ones' complement sum of big-endian 16-bit words, the last one padded with 0 (RFC 1071).
fn sum(bytes: &[u8]) -> u16 {
    // Sums of words of any width agree after folding, since 2^16 = 1 modulo 2^16 - 1; four at a time keep additions independent.
    let (blocks, rest) = bytes.as_chunks::<16>();
    let mut sums = [0u64; 4];
    for block in blocks {
        for (sum, word) in sums.iter_mut().zip(block.as_chunks::<4>().0) {
            *sum += u64::from(u32::from_be_bytes(*word));
        }
    }
    let (words, last) = rest.as_chunks::<2>();
    let mut total: u64 = sums.iter().sum();
    total += words.iter().map(|&word| u64::from(u16::from_be_bytes(word))).sum::<u64>();
    if let Some(&last) = last.first() {
        total += u64::from(last) << 8;
    }
    fold(total)
}

/// Adds the carries back in until 16 bits are left.
const fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// CRC-32C of SCTP packets (RFC 9260 appendix A), bits reversed.
fn crc32c(bytes: &[u8]) -> u32 {
    const TABLE: [u32; 256] = {
        let mut table = [0; 256];
        let mut byte = 0;
        while byte < 256 {
            let mut crc = byte as u32;
            let mut bit = 0;
            while bit < 8 {
                crc = if crc & 1 == 1 { (crc >> 1) ^ 0x82f6_3b78 } else { crc >> 1 };
                bit += 1;
            }
            table[byte] = crc;
            byte += 1;
        }
        table
    };
    !bytes.iter().fold(!0, |crc, &byte| (crc >> 8) ^ TABLE[usize::from(crc as u8 ^ byte)])
}

#[cfg(test)]
mod tests;
