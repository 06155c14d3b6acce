//! Any bytes as a frame that is rewritten: the oracle's parser finds the new address, port and DSCP, and all else as it was.
#![no_main]

use std::net::IpAddr;

use libfuzzer_sys::fuzz_target;
use packetloom_nf::oracle::OraclePacket;
use packetloom_packet::rewrite::{apply, set_dscp};
use packetloom_packet::{Address, Dscp, End, LinkType, Reject, Rewrite};

// A byte that chooses the link type, one for what is rewritten, two for the length on the wire, the frame.
fuzz_target!(|input: &[u8]| {
    const LINKS: [u16; 11] = [1, 0, 12, 14, 101, 108, 113, 228, 229, 276, 147];
    let [link, what, high, low, frame @ ..] = input else { return };
    let link = LinkType(LINKS[usize::from(*link) % LINKS.len()]);
    let wire_len = u32::from(u16::from_be_bytes([*high, *low])) * 2;
    let end = if what & 1 == 0 { End::Source } else { End::Destination };
    let (address, ip) = if what & 2 == 0 {
        (Address::V4(0x0a0b_0c0d), IpAddr::from([10, 11, 12, 13]))
    } else {
        (Address::V6([0x2001_0db8_0000_0000, 0x1122]), IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, 0x1122]))
    };
    let rewrite = Rewrite { frame: 0, end, address, port: (what & 4 == 0).then_some(0x5566) };

    let mut expected = OraclePacket::new(0, link, frame, wire_len).ip;
    let mut is_possible = false;
    if let Ok(packet) = &mut expected
        && packet.source.is_ipv4() == ip.is_ipv4()
        && !(packet.protocol == 132 && packet.first_fragment && rewrite.port.is_some())
    {
        is_possible = true;
        *if end == End::Source { &mut packet.source } else { &mut packet.destination } = ip;
        if let (Some((source, destination)), Some(port)) = (&mut packet.ports, rewrite.port) {
            *if end == End::Source { source } else { destination } = port;
        }
    }
    let mut rewritten = frame.to_vec();
    assert_eq!(apply(&rewrite, link, &mut rewritten, wire_len), is_possible);
    assert!(is_possible || rewritten == frame);
    // In framings that are guessed, what is rewritten may look like a header where another reading expects one: then there are two.
    let guessed = [&[0, 0x80, 0xc2, 0][..], &[0x88, 0x47], &[0x88, 0x48], &[2, 0x81], &[2, 0x83]];
    let is_guessed = guessed.iter().any(|header| frame.windows(header.len()).any(|bytes| bytes == *header));
    let found = OraclePacket::new(0, link, &rewritten, wire_len).ip;
    if is_guessed && found == Err(Reject::UnknownFraming) {
        return;
    }
    assert_eq!(found, expected);

    let dscp = Dscp::new(u64::from(what >> 2)).expect("six bits");
    let is_marked = set_dscp(dscp, link, &mut rewritten);
    if let Ok(packet) = &mut expected {
        assert!(is_marked);
        packet.dscp = dscp.number();
    }
    let found = OraclePacket::new(0, link, &rewritten, wire_len).ip;
    assert!(found == expected || is_guessed && found == Err(Reject::UnknownFraming));
});
