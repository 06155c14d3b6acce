//! What is read behind IP, which is the same for both versions.

use packetloom_packet::{Key, KeyBits, Reject, protocol};

use crate::support::*;

type MakeKey = fn(u8, (u16, u16), u8, &[KeyBits]) -> Key;

/// A whole packet of each IP version around `payload`, its header's length and how its key is made.
fn both(protocol: u8, payload: &[u8]) -> [(Vec<u8>, usize, MakeKey); 2] {
    [
        (Ipv4::of(protocol).packet(payload), 20, key4 as MakeKey),
        (Ipv6::of(protocol).packet(payload), 40, key6 as MakeKey),
    ]
}

#[test]
fn tcp_as_far_as_it_was_captured() {
    for (packet, header, key) in both(TCP, &tcp(0x1234, 0xfedc, 0xa5)) {
        for captured in 0..=20 {
            let expected = match captured {
                0..4 => Err(Reject::TransportTruncated),
                4..14 => Ok(key(TCP, (0x1234, 0xfedc), 0, &[KeyBits::PORTS, KeyBits::WHOLE])),
                _ => {
                    let bits = [KeyBits::PORTS, KeyBits::TCP_FLAGS, KeyBits::WHOLE];
                    Ok(key(TCP, (0x1234, 0xfedc), 0xa5, &bits))
                }
            };
            assert_eq!(raw_key(&packet[..header + captured]), expected, "{captured} bytes of TCP");
        }
    }
}

#[test]
fn all_eight_flags_are_kept() {
    for flags in 0..=u8::MAX {
        for (packet, _, key) in both(TCP, &tcp(1, 2, flags)) {
            let bits = [KeyBits::PORTS, KeyBits::TCP_FLAGS, KeyBits::WHOLE];
            assert_eq!(raw_key(&packet), Ok(key(TCP, (1, 2), flags, &bits)));
        }
    }
}

#[test]
fn udp_and_sctp_need_their_ports_alone() {
    for protocol in [UDP, SCTP] {
        for (packet, header, key) in both(protocol, &udp(0x1234, 0xfedc)) {
            for captured in 0..=12 {
                let expected = if captured < 4 {
                    Err(Reject::TransportTruncated)
                } else {
                    Ok(key(protocol, (0x1234, 0xfedc), 0, &[KeyBits::PORTS, KeyBits::WHOLE]))
                };
                assert_eq!(raw_key(&packet[..header + captured]), expected, "{protocol}, {captured} bytes");
            }
        }
    }
}

#[test]
fn icmp_type_and_code_come_together_or_not_at_all() {
    // ICMP of one version inside the other is odd, but it is what the packet says.
    for protocol in [ICMP, ICMPV6] {
        for (packet, header, key) in both(protocol, &[129, 7, 0xbb, 0xcc]) {
            for captured in 0..=4 {
                let expected = if captured < 2 {
                    key(protocol, (0, 0), 0, &[KeyBits::WHOLE])
                } else {
                    key(protocol, (129, 7), 0, &[KeyBits::ICMP, KeyBits::WHOLE])
                };
                assert_eq!(
                    raw_key(&packet[..header + captured]),
                    Ok(expected),
                    "{protocol}, {captured} bytes"
                );
            }
        }
    }
}

#[test]
fn other_protocols_have_a_key_without_ports() {
    let not_walked = |number: &u8| ![0, 43, 44, 51, 60, 135, 139, 140].contains(number);
    for protocol in (0..=u8::MAX).filter(not_walked) {
        if [TCP, UDP, SCTP, ICMP, ICMPV6].contains(&protocol) {
            assert!(protocol::is_metered(protocol), "{protocol}");
            continue;
        }
        assert!(!protocol::is_metered(protocol), "{protocol}");
        for payload in [&[][..], &[1, 2, 3, 4, 5, 6, 7, 8]] {
            for (packet, _, key) in both(protocol, payload) {
                assert_eq!(raw_key(&packet), Ok(key(protocol, (0, 0), 0, &[KeyBits::WHOLE])), "{protocol}");
            }
        }
    }
}
