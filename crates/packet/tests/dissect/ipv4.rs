//! IPv4 headers.

use packetloom_packet::{Headers, KeyBits, Reject};

use crate::support::*;

const OPTIONS: &[u8] = &[0xff; 40];

#[test]
fn options_are_stepped_over() {
    for len in (0..=40).step_by(4) {
        let packet = Ipv4 { protocol: UDP, options: &OPTIONS[..len], ..Ipv4::default() }.packet(&udp(7, 8));
        let key = key4(UDP, (7, 8), 0, &[KeyBits::PORTS, KeyBits::WHOLE]);
        assert_eq!(raw(&packet), Ok(Headers { key, ip_bytes: 32 + len as u32 }), "{len} bytes of options");
    }
}

#[test]
fn a_header_that_is_not_captured_whole_is_truncated() {
    let packet = Ipv4 { protocol: UDP, options: &OPTIONS[..8], ..Ipv4::default() }.packet(&udp(7, 8));
    for cut in 1..28 {
        assert_eq!(raw(&packet[..cut]), Err(Reject::IpTruncated), "cut at {cut}");
    }
    assert_eq!(raw(&packet[..28]), Err(Reject::TransportTruncated));
}

#[test]
fn a_header_length_below_20_is_malformed() {
    for ihl in 0..5 {
        let packet = Ipv4 { protocol: UDP, ihl: Some(ihl), ..Ipv4::default() }.packet(&udp(7, 8));
        assert_eq!(raw(&packet), Err(Reject::IpMalformed), "{ihl} words");
    }
}

#[test]
fn a_total_length_below_the_header_is_malformed() {
    for (options, total_len) in [(0, 1), (0, 19), (4, 20), (4, 23), (40, 59)] {
        let ip = Ipv4 {
            protocol: UDP,
            options: &OPTIONS[..options],
            total_len: Some(total_len),
            ..Ipv4::default()
        };
        assert_eq!(
            raw(&ip.packet(&udp(7, 8))),
            Err(Reject::IpMalformed),
            "{options} options, {total_len} in all"
        );
    }
}

#[test]
fn ip_bytes_are_the_total_length_whatever_was_captured() {
    for total_len in [24, 25, 32, 1_500, u16::MAX] {
        let packet = Ipv4 { protocol: UDP, total_len: Some(total_len), ..Ipv4::default() }.packet(&udp(7, 8));
        let headers = raw(&packet).expect("a whole header and ports");
        assert_eq!(headers.ip_bytes, u32::from(total_len));
        assert_eq!(headers.key, key4(UDP, (7, 8), 0, &[KeyBits::PORTS, KeyBits::WHOLE]));
    }
}

#[test]
fn bytes_after_the_ip_length_are_padding() {
    // 20 bytes of header and `inside` more; then an Ethernet trailer that must not be read as ports.
    for inside in 0..4 {
        for protocol in [TCP, UDP, SCTP] {
            let ip = Ipv4 { protocol, total_len: Some(20 + inside), ..Ipv4::default() };
            assert_eq!(
                raw(&ip.packet(&[0xaa; 26])),
                Err(Reject::TransportTruncated),
                "{protocol}, {inside} bytes"
            );
        }
    }
    let icmp = Ipv4 { protocol: ICMP, total_len: Some(21), ..Ipv4::default() }.packet(&[8, 9, 0, 0]);
    assert_eq!(raw_key(&icmp), Ok(key4(ICMP, (0, 0), 0, &[KeyBits::WHOLE])));
}

#[test]
fn with_a_total_length_of_zero_the_payload_is_all_that_was_captured() {
    let ip = Ipv4 { protocol: TCP, total_len: Some(0), options: &OPTIONS[..4], ..Ipv4::default() };
    let key = key4(TCP, (80, 9_000), 0x18, &[KeyBits::PORTS, KeyBits::TCP_FLAGS, KeyBits::WHOLE]);
    assert_eq!(raw(&ip.packet(&tcp(80, 9_000, 0x18))), Ok(Headers { key, ip_bytes: WIRE }));
}

#[test]
fn fragments() {
    const RESERVED: u16 = 0x8000;
    const DONT: u16 = 0x4000;
    const MORE: u16 = 0x2000;
    let whole = &[KeyBits::PORTS, KeyBits::TCP_FLAGS, KeyBits::WHOLE];
    let first = &[KeyBits::PORTS, KeyBits::TCP_FLAGS, KeyBits::FIRST_FRAGMENT];
    let later = &[KeyBits::LATER_FRAGMENT];
    let cases: [(u16, &[KeyBits]); 9] = [
        (0, whole),
        (DONT, whole),
        (RESERVED, whole),
        (MORE, first),
        (MORE | DONT | RESERVED, first),
        (MORE | 1, later),
        (1, later),
        (0x1fff, later),
        (DONT | 0x1000, later),
    ];
    for (fragment, bits) in cases {
        let packet = Ipv4 { protocol: TCP, fragment, ..Ipv4::default() }.packet(&tcp(80, 9_000, 0x12));
        let (ports, flags) = if bits == later { ((0, 0), 0) } else { ((80, 9_000), 0x12) };
        assert_eq!(
            raw(&packet),
            Ok(Headers { key: key4(TCP, ports, flags, bits), ip_bytes: 40 }),
            "{fragment:#06x}"
        );
    }
}

#[test]
fn a_later_fragment_needs_no_payload() {
    for protocol in [TCP, UDP, SCTP, ICMP, GRE] {
        let packet = Ipv4 { protocol, fragment: 185, ..Ipv4::default() }.packet(&[]);
        let key = key4(protocol, (0, 0), 0, &[KeyBits::LATER_FRAGMENT]);
        assert_eq!(raw(&packet), Ok(Headers { key, ip_bytes: 20 }), "{protocol}");
    }
}

#[test]
fn a_first_fragment_needs_its_ports() {
    let packet = Ipv4 { protocol: UDP, fragment: 0x2000, ..Ipv4::default() }.packet(&[1, 2, 3]);
    assert_eq!(raw(&packet), Err(Reject::TransportTruncated));
}

#[test]
fn extension_header_numbers_mean_nothing_in_ipv4() {
    // 4in4, AH and the rest are the protocol of the packet: nothing is looked for behind them.
    for protocol in [0, 4, 41, 43, 44, 50, 51, 60, 135, 139, 140, 255] {
        let packet = Ipv4::of(protocol).packet(&tcp(80, 9_000, 0x12));
        assert_eq!(raw_key(&packet), Ok(key4(protocol, (0, 0), 0, &[KeyBits::WHOLE])), "{protocol}");
    }
}
