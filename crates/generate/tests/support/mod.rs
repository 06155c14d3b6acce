//! Reads generated captures by a parser that knows nothing of the generator.

#![allow(dead_code)]

use std::collections::BTreeMap;

/// A record of a capture file, taken apart.
#[derive(Clone)]
pub(crate) struct Packet {
    pub(crate) time: u64,
    pub(crate) captured: usize,
    pub(crate) wire: usize,
    /// VLAN tag types.
    pub(crate) tags: Vec<u16>,
    pub ipv6: bool,
    pub(crate) protocol: u8,
    /// Source and destination: address and port.
    pub(crate) ends: [(Vec<u8>, u16); 2],
    /// The transport header and payload by the IP header's length, not the frame's.
    pub(crate) transport: Vec<u8>,
    /// Bytes of the IP packet.
    pub(crate) ip_len: usize,
    /// The IPv4 header's sum, 0xffff when it is right.
    pub(crate) header_sum: u16,
    /// The sum over pseudo-header and transport, 0xffff when it is right.
    pub(crate) transport_sum: u16,
}

/// A flow's key: IPv6, protocol, ends in order.
pub(crate) type Key = (bool, u8, [(Vec<u8>, u16); 2]);

impl Packet {
    pub(crate) fn key(&self) -> Key {
        let mut ends = self.ends.clone();
        ends.sort();
        (self.ipv6, self.protocol, ends)
    }
}

pub(crate) fn be16(bytes: &[u8]) -> u16 {
    u16::from_be_bytes([bytes[0], bytes[1]])
}

pub(crate) fn le32(bytes: &[u8]) -> u32 {
    u32::from_le_bytes(bytes[..4].try_into().unwrap())
}

/// RFC 1071, word by word.
pub(crate) fn ones_complement(bytes: &[u8]) -> u16 {
    let mut sum = 0u32;
    for word in bytes.chunks(2) {
        sum += u32::from(word[0]) << 8 | u32::from(*word.get(1).unwrap_or(&0));
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// Takes a frame apart. Of a cut one, the sums mean nothing.
fn dissect(time: u64, wire: usize, frame: &[u8]) -> Packet {
    let mut at = 12;
    let mut tags = Vec::new();
    while matches!(be16(&frame[at..]), 0x8100 | 0x88a8) {
        tags.push(be16(&frame[at..]));
        let id = be16(&frame[at + 2..]) & 0xfff;
        assert!((1..4095).contains(&id));
        at += 4;
    }
    let kind = be16(&frame[at..]);
    let ip = &frame[at + 2..];
    let (ipv6, header, protocol, ip_len, addresses) = match kind {
        0x0800 => (false, 20, ip[9], usize::from(be16(&ip[2..])), [&ip[12..16], &ip[16..20]]),
        0x86dd => (true, 40, ip[6], 40 + usize::from(be16(&ip[4..])), [&ip[8..24], &ip[24..40]]),
        other => panic!("EtherType {other:#06x}"),
    };
    assert_eq!(ip[0] >> 4, if ipv6 { 6 } else { 4 });
    assert_eq!(wire, (at + 2 + ip_len).max(60), "the frame is as long as its packet");
    let transport = ip[header..ip_len.min(ip.len())].to_vec();
    let ports = if matches!(protocol, 6 | 17) { [be16(&transport), be16(&transport[2..])] } else { [0, 0] };
    let mut pseudo = Vec::new();
    if protocol != 1 {
        pseudo.extend_from_slice(addresses[0]);
        pseudo.extend_from_slice(addresses[1]);
        pseudo.extend_from_slice(&((ip_len - header) as u32).to_be_bytes());
        pseudo.extend_from_slice(&[0, 0, 0, protocol]);
    }
    pseudo.extend_from_slice(&transport);
    Packet {
        time,
        captured: frame.len(),
        wire,
        tags,
        ipv6,
        protocol,
        ends: [(addresses[0].to_vec(), ports[0]), (addresses[1].to_vec(), ports[1])],
        ip_len,
        header_sum: if ipv6 { 0xffff } else { ones_complement(&ip[..20]) },
        transport_sum: ones_complement(&pseudo),
        transport,
    }
}

/// The packets of a capture file with this snap length.
pub(crate) fn packets(file: &[u8], snap: u32) -> Vec<Packet> {
    assert_eq!(le32(file), 0xa1b2_3c4d);
    assert_eq!(file[4..16], [2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(le32(&file[16..]), if snap == 0 { 262_144 } else { snap });
    assert_eq!(le32(&file[20..]), 1);
    let mut rest = &file[24..];
    let mut packets = Vec::new();
    while !rest.is_empty() {
        let [seconds, nanoseconds, captured, wire] = [0, 4, 8, 12].map(|at| le32(&rest[at..]));
        assert!(nanoseconds < 1_000_000_000);
        let time = u64::from(seconds) * 1_000_000_000 + u64::from(nanoseconds);
        let (frame, after) = rest[16..].split_at(captured as usize);
        packets.push(dissect(time, wire as usize, frame));
        rest = after;
    }
    packets
}

/// Packets by flow.
pub(crate) fn flows(packets: &[Packet]) -> BTreeMap<Key, Vec<&Packet>> {
    let mut flows = BTreeMap::<_, Vec<_>>::new();
    for packet in packets {
        flows.entry(packet.key()).or_default().push(packet);
    }
    flows
}

/// FNV-1a, 64 bits.
pub(crate) fn digest(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}
