//! Frames from lines of text, for test cases that a person can read.
//!
//! ```text
//! SECONDS [vlan N]... [tcp|udp|sctp|icmp|icmpv6|NUMBER] SOURCE[:PORT] > DESTINATION[:PORT]
//!     [flags LETTERS] [type N code N] [id N] [payload BYTES] [bytes DIGITS] [fragment OFFSET[+]] [quote BYTES PACKET] [cut BYTES]
//! SECONDS arp
//! SECONDS hex DIGITS
//! ```
//!
//! `payload` is the number of bytes after the transport header, zeros; `bytes` are others behind them, in hex digits; `quote` has the first
//! bytes of a packet, from its protocol on, stand there; `fragment` gives the offset in units of 8 bytes, with a `+` where more follow;
//! `cut` keeps so many bytes of the frame.

use std::net::IpAddr;

/// A frame with its time in microseconds and its length on the wire.
pub struct Packet {
    pub micros: u64,
    pub wire_len: usize,
    pub bytes: Vec<u8>,
}

/// Bytes in hex digits.
fn digits(text: &str) -> Vec<u8> {
    let byte = |at| u8::from_str_radix(&text[at..at + 2], 16).expect("hexadecimal digits");
    (0..text.len()).step_by(2).map(byte).collect()
}

/// A classic pcap file (microseconds, Ethernet) of the lines.
pub fn pcap(lines: &str) -> Vec<u8> {
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4u32, 2 | 4 << 16, 0, 0, 262_144, 1] {
        file.extend(word.to_le_bytes());
    }
    for packet in lines.lines().map(str::trim).filter(|line| !line.is_empty()).map(packet) {
        let seconds = [packet.micros / 1_000_000, packet.micros % 1_000_000];
        for word in [seconds[0] as usize, seconds[1] as usize, packet.bytes.len(), packet.wire_len] {
            file.extend((word as u32).to_le_bytes());
        }
        file.extend(packet.bytes);
    }
    file
}

/// One frame.
pub fn packet(line: &str) -> Packet {
    let mut words = line.split_ascii_whitespace().peekable();
    let seconds: f64 = words.next().expect("a time").parse().expect("seconds");
    let micros = (seconds * 1e6).round() as u64;
    let mut ethernet = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
    while words.next_if_eq(&"vlan").is_some() {
        ethernet.extend([0x81, 0]);
        ethernet.extend(words.next().expect("a VLAN").parse::<u16>().expect("a number").to_be_bytes());
    }
    let bytes = match words.next().expect("a protocol") {
        "arp" => {
            ethernet.extend([8, 6]);
            ethernet.extend([0; 28]);
            return Packet { micros, wire_len: ethernet.len(), bytes: ethernet };
        }
        "hex" => {
            let bytes = digits(&words.collect::<String>());
            return Packet { micros, wire_len: bytes.len(), bytes };
        }
        protocol => ip(protocol, &mut words, &mut ethernet),
    };
    let wire_len = bytes.len();
    let cut = words.next_if_eq(&"cut").map(|_| words.next().expect("bytes").parse().expect("a number"));
    assert_eq!(words.next(), None, "a word too many in {line:?}");
    Packet { micros, wire_len, bytes: bytes[..cut.unwrap_or(wire_len)].to_vec() }
}

type Words<'a> = std::iter::Peekable<std::str::SplitAsciiWhitespace<'a>>;

fn number<T: std::str::FromStr>(words: &mut Words<'_>) -> T {
    let word = words.next().expect("a number");
    word.parse().unwrap_or_else(|_| panic!("{word:?} is no number"))
}

fn ip(protocol: &str, words: &mut Words<'_>, ethernet: &mut Vec<u8>) -> Vec<u8> {
    let protocol = match protocol {
        "icmp" => 1,
        "tcp" => 6,
        "udp" => 17,
        "icmpv6" => 58,
        "sctp" => 132,
        other => other.parse().unwrap_or_else(|_| panic!("{other:?} is no protocol")),
    };
    let (source, source_port) = endpoint(words.next().expect("a source"));
    assert_eq!(words.next(), Some(">"));
    let (destination, destination_port) = endpoint(words.next().expect("a destination"));
    let flags = words.next_if_eq(&"flags").map_or(0u8, |_| {
        let letters = words.next().expect("flags");
        letters.chars().map(|letter| 1 << "FSRPAUEC".find(letter).expect("a TCP flag")).sum()
    });
    let sequence: u32 = words.next_if_eq(&"seq").map_or(0, |_| number(words));
    let mut icmp = [8, 0, 0, 0, 0, 0, 0, 0];
    if words.next_if_eq(&"type").is_some() {
        icmp[0] = number(words);
        assert_eq!(words.next(), Some("code"));
        icmp[1] = number(words);
    }
    if words.next_if_eq(&"id").is_some() {
        icmp[4..6].copy_from_slice(&number::<u16>(words).to_be_bytes());
    }
    let payload: usize = words.next_if_eq(&"payload").map_or(0, |_| number(words));
    let bytes = words.next_if_eq(&"bytes").map_or(Vec::new(), |_| digits(words.next().expect("digits")));
    let fragment = words.next_if_eq(&"fragment").map(|_| {
        let word = words.next().expect("an offset");
        let (offset, more) = word.strip_suffix('+').map_or((word, false), |offset| (offset, true));
        (offset.parse::<u16>().expect("a number"), more)
    });
    let later = fragment.is_some_and(|(offset, _)| offset > 0);
    let mut transport = Vec::new();
    match protocol {
        _ if later => {}
        6 => {
            transport.extend(source_port.to_be_bytes());
            transport.extend(destination_port.to_be_bytes());
            transport.extend(sequence.to_be_bytes());
            transport.extend([0, 0, 0, 0, 0x50, flags, 0, 0, 0, 0, 0, 0]);
        }
        17 | 132 => {
            transport.extend(source_port.to_be_bytes());
            transport.extend(destination_port.to_be_bytes());
            transport.extend([0, 0, 0, 0]);
        }
        1 | 58 => {
            transport.extend(icmp);
        }
        _ => {}
    }
    transport.extend(vec![0; payload]);
    transport.extend(bytes);
    if words.next_if_eq(&"quote").is_some() {
        let bytes: usize = number(words);
        let protocol = words.next().expect("a protocol");
        // Behind the EtherType.
        transport.extend(&ip(protocol, words, &mut Vec::new())[2..][..bytes]);
    }
    let mut bytes = std::mem::take(ethernet);
    match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let (offset, more) = fragment.unwrap_or((0, false));
            bytes.extend([8, 0, 0x45, 0]);
            bytes.extend((20 + transport.len() as u16).to_be_bytes());
            bytes.extend([0, 1]);
            bytes.extend((offset | u16::from(more) << 13).to_be_bytes());
            bytes.extend([64, protocol, 0, 0]);
            bytes.extend(source.octets());
            bytes.extend(destination.octets());
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let extension = if fragment.is_some() { 8 } else { 0 };
            bytes.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            bytes.extend((extension + transport.len() as u16).to_be_bytes());
            bytes.extend([if fragment.is_some() { 44 } else { protocol }, 64]);
            bytes.extend(source.octets());
            bytes.extend(destination.octets());
            if let Some((offset, more)) = fragment {
                bytes.extend([protocol, 0]);
                bytes.extend((offset << 3 | u16::from(more)).to_be_bytes());
                bytes.extend([0, 0, 0, 1]);
            }
        }
        _ => panic!("addresses of two families"),
    }
    bytes.extend(transport);
    bytes
}

fn endpoint(word: &str) -> (IpAddr, u16) {
    if let Ok(address) = word.parse() {
        return (address, 0);
    }
    let (address, port) = word.rsplit_once(':').unwrap_or_else(|| panic!("{word:?} is no endpoint"));
    let address =
        address.trim_matches(['[', ']']).parse().unwrap_or_else(|_| panic!("{word:?} is no endpoint"));
    (address, port.parse().expect("a port"))
}

/// A line for a packet with this payload.
pub fn with_payload(line: &str, payload: &[u8]) -> String {
    let digits: String = payload.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{line} bytes {digits}\n")
}

/// Packets of a TCP connection with these payloads, each from its place of the stream on, a millisecond apart.
pub fn segments(from: u64, ends: &str, segments: &[(u32, &str, &[u8])]) -> String {
    let line = |(number, (place, flags, payload)): (u64, &(u32, &str, &[u8]))| {
        let sequence = 0xffff_fff0u32.wrapping_add(*place);
        let time = format!("{}.{:03}", (from + number) / 1000, (from + number) % 1000);
        with_payload(&format!("{time} tcp {ends} flags {flags} seq {sequence}"), payload)
            .replace(" bytes \n", "\n")
    };
    (0..).zip(segments).map(line).collect()
}
