//! IPv6 headers and chains of extension headers.

use packetloom_packet::{Headers, KeyBits, Reject};

use crate::support::*;

const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const ESP: u8 = 50;
const AH: u8 = 51;
const NO_NEXT: u8 = 59;
const DESTINATION: u8 = 60;
/// Mobility, HIP and Shim6.
const OTHERS: [u8; 3] = [135, 139, 140];

const WHOLE: &[KeyBits] = &[KeyBits::PORTS, KeyBits::WHOLE];

/// Numbers whose length field counts units of 8 bytes after the first 8.
fn in_eights() -> impl Iterator<Item = u8> {
    [HOP_BY_HOP, ROUTING, DESTINATION].into_iter().chain(OTHERS)
}

#[test]
fn the_fixed_header_is_needed() {
    let packet = Ipv6::of(UDP).packet(&udp(7, 8));
    for cut in 1..40 {
        assert_eq!(raw(&packet[..cut]), Err(Reject::IpTruncated), "cut at {cut}");
    }
    assert_eq!(raw(&packet[..40]), Err(Reject::TransportTruncated));
}

#[test]
fn ip_bytes_are_the_header_and_the_payload_length() {
    for payload_len in [4, 12, 1_460, u16::MAX] {
        let packet = Ipv6 { next: UDP, payload_len: Some(payload_len) }.packet(&udp(7, 8));
        let key = key6(UDP, (7, 8), 0, WHOLE);
        assert_eq!(raw(&packet), Ok(Headers { key, ip_bytes: 40 + u32::from(payload_len) }));
    }
}

#[test]
fn bytes_after_the_payload_length_are_padding() {
    for inside in 1..4 {
        let packet = Ipv6 { next: UDP, payload_len: Some(inside) }.packet(&udp(7, 8));
        assert_eq!(raw(&packet), Err(Reject::TransportTruncated), "{inside}");
    }
}

#[test]
fn every_walked_header_is_stepped_over() {
    let sizes = in_eights()
        .flat_map(|number| [(number, 0, 8), (number, 1, 16), (number, 3, 32), (number, 255, 2_048)])
        .chain([(AH, 0, 8), (AH, 1, 12), (AH, 4, 24), (AH, 255, 1_028)]);
    for (number, units, len) in sizes {
        let payload = [extension(TCP, units, len), tcp(80, 9_000, 0x02)].concat();
        let key = key6(TCP, (80, 9_000), 0x02, &[KeyBits::PORTS, KeyBits::TCP_FLAGS, KeyBits::WHOLE]);
        let ip_bytes = 40 + payload.len() as u32;
        let what = format!("header {number}, length field {units}");
        assert_eq!(raw(&Ipv6::of(number).packet(&payload)), Ok(Headers { key, ip_bytes }), "{what}");
    }
}

#[test]
fn a_chain_of_all_of_them() {
    let payload = [
        extension(DESTINATION, 0, 8),
        extension(ROUTING, 1, 16),
        extension(AH, 2, 24),
        extension(135, 4, 24),
        extension(139, 0, 8),
        extension(140, 0, 8),
        extension(DESTINATION, 0, 8),
        extension(DESTINATION, 0, 8),
        extension(UDP, 1, 16),
        udp(7, 8),
    ]
    .concat();
    assert_eq!(raw_key(&Ipv6::of(HOP_BY_HOP).packet(&payload)), Ok(key6(UDP, (7, 8), 0, WHOLE)));
}

#[test]
fn a_header_that_runs_past_the_captured_bytes_breaks_the_chain() {
    for (number, units, len) in in_eights().map(|number| (number, 2, 24)).chain([(AH, 4, 24)]) {
        let packet = Ipv6::of(number).packet(&[extension(UDP, units, len), udp(7, 8)].concat());
        for cut in 40..64 {
            assert_eq!(raw(&packet[..cut]), Err(Reject::ExtensionChain), "header {number} cut at {cut}");
        }
        assert_eq!(raw(&packet[..64]), Err(Reject::TransportTruncated), "header {number}");
    }
}

#[test]
fn a_header_that_runs_past_the_payload_length_breaks_the_chain() {
    let payload = [extension(UDP, 2, 24), udp(7, 8)].concat();
    for (payload_len, reject) in
        [(7, Reject::ExtensionChain), (23, Reject::ExtensionChain), (27, Reject::TransportTruncated)]
    {
        let packet = Ipv6 { next: HOP_BY_HOP, payload_len: Some(payload_len) }.packet(&payload);
        assert_eq!(raw(&packet), Err(reject), "{payload_len}");
    }
    // The fragment header has no length field, but must be there.
    let payload = [fragment(UDP, 0, true), udp(7, 8)].concat();
    let packet = Ipv6 { next: FRAGMENT, payload_len: Some(7) }.packet(&payload);
    assert_eq!(raw(&packet), Err(Reject::ExtensionChain));
}

#[test]
fn a_chain_that_ends_with_the_packet() {
    // Whether that is enough depends on what it leads to.
    for (next, expected) in [
        (TCP, Err(Reject::TransportTruncated)),
        (SCTP, Err(Reject::TransportTruncated)),
        (ICMPV6, Ok(key6(ICMPV6, (0, 0), 0, &[KeyBits::WHOLE]))),
        (NO_NEXT, Ok(key6(NO_NEXT, (0, 0), 0, &[KeyBits::WHOLE]))),
        (DESTINATION, Err(Reject::ExtensionChain)),
        (FRAGMENT, Err(Reject::ExtensionChain)),
        (AH, Err(Reject::ExtensionChain)),
    ] {
        assert_eq!(raw_key(&Ipv6::of(HOP_BY_HOP).packet(&extension(next, 0, 8))), expected, "{next}");
    }
}

#[test]
fn fragments() {
    let packet = |offset, more| Ipv6::of(FRAGMENT).packet(&[fragment(UDP, offset, more), udp(7, 8)].concat());
    let cases = [
        ("first", packet(0, true), key6(UDP, (7, 8), 0, &[KeyBits::PORTS, KeyBits::FIRST_FRAGMENT])),
        ("atomic", packet(0, false), key6(UDP, (7, 8), 0, WHOLE)),
        ("middle", packet(1, true), key6(UDP, (0, 0), 0, &[KeyBits::LATER_FRAGMENT])),
        ("last", packet(0x1fff, false), key6(UDP, (0, 0), 0, &[KeyBits::LATER_FRAGMENT])),
    ];
    for (name, packet, key) in cases {
        assert_eq!(raw(&packet), Ok(Headers { key, ip_bytes: 60 }), "{name}");
    }
}

#[test]
fn a_fragment_header_is_read_whole() {
    let packet = Ipv6::of(FRAGMENT).packet(&fragment(UDP, 9, false));
    for cut in 40..48 {
        assert_eq!(raw(&packet[..cut]), Err(Reject::ExtensionChain), "cut at {cut}");
    }
    // A later fragment needs no payload.
    assert_eq!(raw_key(&packet), Ok(key6(UDP, (0, 0), 0, &[KeyBits::LATER_FRAGMENT])));
}

#[test]
fn headers_around_a_fragment_header() {
    let before = [extension(FRAGMENT, 0, 8), fragment(UDP, 0, true), udp(7, 8)].concat();
    let first = &[KeyBits::PORTS, KeyBits::FIRST_FRAGMENT];
    assert_eq!(raw_key(&Ipv6::of(HOP_BY_HOP).packet(&before)), Ok(key6(UDP, (7, 8), 0, first)));

    let after = [fragment(DESTINATION, 0, true), extension(UDP, 1, 16), udp(7, 8)].concat();
    assert_eq!(raw_key(&Ipv6::of(FRAGMENT).packet(&after)), Ok(key6(UDP, (7, 8), 0, first)));

    // What stands behind the header of a later fragment is the middle of something: it is not walked, and the
    // protocol stays that of the extension header, which no meter counts.
    for number in in_eights().chain([AH, FRAGMENT]) {
        let later = [fragment(number, 5, true), extension(UDP, 0, 8), udp(7, 8)].concat();
        let key = key6(number, (0, 0), 0, &[KeyBits::LATER_FRAGMENT]);
        assert_eq!(raw_key(&Ipv6::of(FRAGMENT).packet(&later)), Ok(key), "{number}");
    }

    // An atomic fragment inside a fragment does not make a whole packet of it.
    let twice = [fragment(FRAGMENT, 0, true), fragment(UDP, 0, false), udp(7, 8)].concat();
    assert_eq!(raw_key(&Ipv6::of(FRAGMENT).packet(&twice)), Ok(key6(UDP, (7, 8), 0, first)));
}

#[test]
fn other_numbers_end_the_chain() {
    for number in [4, 41, GRE, ESP, NO_NEXT, 253, 255] {
        let packet = Ipv6::of(number).packet(&[extension(UDP, 0, 8), udp(7, 8)].concat());
        assert_eq!(raw_key(&packet), Ok(key6(number, (0, 0), 0, &[KeyBits::WHOLE])), "{number}");
    }
}
