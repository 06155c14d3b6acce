//! The frame of a match key.

use packetloom_packet::{Key, KeyBits, MatchKey4, MatchKey6, protocol};

/// The shortest frame, without its check sequence (IEEE 802.3).
const SHORTEST: usize = 60;
/// EtherTypes (IANA IEEE 802 numbers).
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
/// Of IPv4: more fragments; an offset of 8 bytes.
const MORE: u16 = 0x2000;
const LATER: u16 = 1;

/// An Ethernet frame whose headers say what `key` says, as far as headers can: ports where the protocol has them, and flags where that is
/// TCP. Checksums are 0.
pub fn frame(key: &Key) -> Vec<u8> {
    let mut frame = vec![0x02, 0, 0, 0, 0, 1, 0x02, 0, 0, 0, 0, 2];
    match key {
        Key::V4(key) => v4(&mut frame, key),
        Key::V6(key) => v6(&mut frame, key),
    }
    frame.resize(frame.len().max(SHORTEST), 0);
    frame
}

fn v4(frame: &mut Vec<u8>, key: &MatchKey4) {
    let transport = transport(key.protocol, key.source_port, key.destination_port, key.tcp_flags);
    frame.extend(IPV4.to_be_bytes());
    frame.extend([0x45, 0]);
    frame.extend((20 + transport.len() as u16).to_be_bytes());
    frame.extend([0; 2]);
    frame.extend(fragment(key.bits).to_be_bytes());
    frame.extend([64, key.protocol, 0, 0]);
    frame.extend(key.source.to_be_bytes());
    frame.extend(key.destination.to_be_bytes());
    frame.extend(transport);
}

fn v6(frame: &mut Vec<u8>, key: &MatchKey6) {
    let transport = transport(key.protocol, key.source_port, key.destination_port, key.tcp_flags);
    let is_whole = fragment(key.bits) == 0;
    let extension = if is_whole { 0 } else { 8 };
    frame.extend(IPV6.to_be_bytes());
    frame.extend([0x60, 0, 0, 0]);
    frame.extend((transport.len() as u16 + extension).to_be_bytes());
    frame.extend([if is_whole { key.protocol } else { protocol::FRAGMENT }, 64]);
    for half in key.source.into_iter().chain(key.destination) {
        frame.extend(half.to_be_bytes());
    }
    if !is_whole {
        // Offset (13 bits), two reserved, and more fragments (RFC 8200 section 4.5).
        let field = if key.bits.contains(KeyBits::LATER_FRAGMENT) { 8u16 } else { 1 };
        frame.extend([key.protocol, 0]);
        frame.extend(field.to_be_bytes());
        frame.extend([0; 4]);
    }
    frame.extend(transport);
}

fn fragment(bits: KeyBits) -> u16 {
    if bits.contains(KeyBits::LATER_FRAGMENT) {
        LATER
    } else if bits.contains(KeyBits::FIRST_FRAGMENT) {
        MORE
    } else {
        0
    }
}

/// A transport header: ports and flags, or type and code, or nothing that anybody reads.
fn transport(number: u8, source: u16, destination: u16, flags: u8) -> Vec<u8> {
    let mut header = vec![0; if number == protocol::TCP { 20 } else { 8 }];
    if protocol::has_type_and_code(number) {
        header[..2].copy_from_slice(&[source as u8, destination as u8]);
    } else if protocol::has_ports(number) {
        header[..2].copy_from_slice(&source.to_be_bytes());
        header[2..4].copy_from_slice(&destination.to_be_bytes());
    }
    if number == protocol::TCP {
        header[12] = 5 << 4;
        header[13] = flags;
    }
    header
}
