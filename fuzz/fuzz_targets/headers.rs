//! Any bytes as a frame: the views agree with the oracle's parser in every field.
#![no_main]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use libfuzzer_sys::fuzz_target;
use packetloom_nf::oracle::{OracleIp, OraclePacket};
use packetloom_packet::dissect::is_basic;
use packetloom_packet::key::join;
use packetloom_packet::rewrite::dscp;
use packetloom_packet::{Dscp, Headers, Key, KeyBits, LinkType, Reject, dissect};

fn as_oracle(headers: Result<Headers, Reject>, dscp: Option<Dscp>) -> Result<OracleIp, Reject> {
    let Headers { key, ip_bytes } = headers?;
    let (source, destination, source_port, destination_port, protocol, tcp_flags, bits) = match key {
        Key::V4(k) => (
            IpAddr::V4(Ipv4Addr::from(k.source)),
            IpAddr::V4(Ipv4Addr::from(k.destination)),
            k.source_port,
            k.destination_port,
            k.protocol,
            k.tcp_flags,
            k.bits,
        ),
        Key::V6(k) => (
            IpAddr::V6(Ipv6Addr::from(join(k.source))),
            IpAddr::V6(Ipv6Addr::from(join(k.destination))),
            k.source_port,
            k.destination_port,
            k.protocol,
            k.tcp_flags,
            k.bits,
        ),
    };
    let fragments = [KeyBits::WHOLE, KeyBits::FIRST_FRAGMENT, KeyBits::LATER_FRAGMENT];
    assert_eq!(fragments.into_iter().filter(|&bit| bits.contains(bit)).count(), 1);
    Ok(OracleIp {
        source,
        destination,
        dscp: dscp.expect("what has a key has one").number(),
        protocol,
        ports: bits.contains(KeyBits::PORTS).then_some((source_port, destination_port)),
        icmp: bits.contains(KeyBits::ICMP).then_some((source_port as u8, destination_port as u8)),
        tcp_flags: bits.contains(KeyBits::TCP_FLAGS).then_some(tcp_flags),
        first_fragment: bits.contains(KeyBits::FIRST_FRAGMENT),
        later_fragment: bits.contains(KeyBits::LATER_FRAGMENT),
        // What keys do not say.
        identifier: None,
        quoted: None,
        bytes: ip_bytes,
        header: 0,
    })
}

// A byte that chooses the link type, two for the length on the wire, the frame.
fuzz_target!(|input: &[u8]| {
    const LINKS: [u16; 21] =
        [1, 0, 12, 14, 101, 108, 113, 228, 229, 276, 147, 9, 50, 51, 104, 105, 107, 117, 119, 127, 239];
    let [link, high, low, frame @ ..] = input else { return };
    let link = LinkType(LINKS[usize::from(*link) % LINKS.len()]);
    let wire_len = u32::from(u16::from_be_bytes([*high, *low])) * 2;
    let OraclePacket { ip: oracle, other_framing, .. } = OraclePacket::new(0, link, frame, wire_len);
    assert!(oracle.is_err() || other_framing != is_basic(link, frame));
    let oracle = oracle.map(|ip| OracleIp { identifier: None, quoted: None, header: 0, ..ip });
    assert_eq!(as_oracle(dissect(link, frame, wire_len), dscp(link, frame)), oracle);
});
