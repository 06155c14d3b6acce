//! Connections of packets: queries by identifier, errors by what they quote.

use packetloom_packet::{Connection, FlowKey, Key, LinkType, Message, Role, dissect};

use crate::support::*;

/// The connection of a packet without layer 2.
fn connection(packet: &[u8]) -> Connection {
    let headers = dissect(LinkType::RAW, packet, WIRE).expect("a packet with a key");
    Connection::of(&headers.key, LinkType::RAW, packet, WIRE)
}

/// What is said about a packet: ports of the endpoints, whether the lower one sent it, what it is.
fn found(packet: &[u8]) -> (u16, u16, bool, Role) {
    let Connection { flow, from_a, role } = connection(packet);
    let (a, b) = if flow.version == 4 {
        ([0, SOURCE4.into()], [0, DESTINATION4.into()])
    } else {
        (SOURCE6, DESTINATION6)
    };
    let replied = (flow.a, flow.b) == (b, a);
    assert!((flow.a, flow.b) == (a, b) || replied && flow.a_port == flow.b_port, "{flow:?}");
    (flow.a_port, flow.b_port, from_a, role)
}

/// A message of 8 bytes whose identifier is 0x1234, and what follows.
fn message(kind: u8, rest: &[u8]) -> Vec<u8> {
    [&[kind, 0, 0, 0, 0x12, 0x34, 0, 9], rest].concat()
}

/// The same packet the other way.
fn back(mut packet: Vec<u8>) -> Vec<u8> {
    let (at, len) = if packet[0] >> 4 == 4 { (12, 4) } else { (8, 16) };
    packet[at..at + 2 * len].rotate_left(len);
    packet
}

/// Makes a packet of a protocol around a payload.
type Make = fn(u8, &[u8]) -> Vec<u8>;

/// A packet of each IP version with its ICMP, the error types and a packet of the other version.
fn versions() -> [(Make, u8, &'static [u8], Vec<u8>); 2] {
    let v4: Make = |protocol, payload| Ipv4::of(protocol).packet(payload);
    let v6: Make = |protocol, payload| Ipv6::of(protocol).packet(payload);
    let udp = udp(1000, 53);
    [(v4, ICMP, &[3, 11, 12], v6(UDP, &udp)), (v6, ICMPV6, &[1, 2, 3, 4], v4(UDP, &udp))]
}

#[test]
fn packets_with_ports_are_by_5_tuple() {
    for (packet, ..) in versions() {
        assert_eq!(found(&packet(TCP, &tcp(1000, 80, 2))), (1000, 80, true, Role::Member));
        assert_eq!(found(&packet(UDP, &udp(1000, 53))), (1000, 53, true, Role::Member));
        assert_eq!(found(&packet(GRE, &[0; 4])), (0, 0, true, Role::Member));
    }
    for protocol in [TCP, UDP, SCTP, ICMP] {
        let later = Ipv4 { fragment: 5, ..Ipv4::of(protocol) }.packet(&[3; 64]);
        assert_eq!(found(&later), (0, 0, true, Role::Untracked));
    }
    let later = Ipv4 { fragment: 5, ..Ipv4::of(GRE) }.packet(&[3; 64]);
    assert_eq!(found(&later), (0, 0, true, Role::Member));
}

#[test]
fn queries_are_by_identifier_whoever_asks() {
    for (packet, protocol, ..) in versions() {
        let pairs: &[(u8, u8)] =
            if protocol == ICMP { &[(8, 0), (13, 14), (15, 16), (17, 18)] } else { &[(128, 129)] };
        for &(request, reply) in pairs {
            let asks = connection(&packet(protocol, &message(request, &[])));
            let (a, b) = if protocol == ICMP {
                ([0, SOURCE4.into()], [0, DESTINATION4.into()])
            } else {
                (SOURCE6, DESTINATION6)
            };
            assert_eq!(
                (asks.flow.a, asks.flow.b, asks.flow.a_port, asks.flow.b_port),
                (a, b, 0x1234, 0x1234)
            );
            assert_eq!((asks.from_a, asks.role), (true, Role::Member));
            // The reply's source is the responder of another connection: it was asked by the destination.
            let answers = connection(&packet(protocol, &message(reply, &[])));
            assert_eq!((answers.flow.a, answers.flow.b, answers.from_a), (b, a, false));
            assert_eq!(answers.role, Role::Member);
            for len in 2..8 {
                let cut = packet(protocol, &message(request, &[])[..len]);
                assert_eq!(connection(&cut).role, Role::Invalid, "{len} bytes");
            }
        }
    }
}

#[test]
fn errors_are_of_what_they_quote_and_go_the_other_way() {
    for (packet, protocol, errors, other_version) in versions() {
        for &kind in errors {
            let error = |quoted: &[u8]| back(packet(protocol, &message(kind, quoted)));
            let header = if protocol == ICMP { 20 } else { 40 };
            let tcp = packet(TCP, &tcp(1000, 80, 2));
            assert_eq!(found(&error(&tcp)), (1000, 80, false, Role::Related));
            // To anybody but the sender of what it quotes it says nothing.
            assert_eq!(found(&packet(protocol, &message(kind, &tcp))).3, Role::Invalid);
            assert_eq!(found(&error(&back(tcp.clone()))).3, Role::Invalid);
            // Four bytes of the transport header have the ports; options and extension headers are walked over.
            for (len, role) in [
                (header + 4, Role::Related),
                (header + 3, Role::Invalid),
                (header - 1, Role::Invalid),
                (0, Role::Invalid),
            ] {
                assert_eq!(found(&error(&tcp[..len])).3, role, "{len} bytes");
            }
            let query = packet(protocol, &message(if protocol == ICMP { 8 } else { 128 }, &[]));
            assert_eq!(found(&error(&query)), (0x1234, 0x1234, false, Role::Related));
            assert_eq!(found(&error(&query[..header + 7])).3, Role::Invalid);
            assert_eq!(found(&error(&packet(GRE, &[0; 4]))), (0, 0, false, Role::Related));
            // What is quoted has no connection.
            assert_eq!(found(&error(&packet(protocol, &message(135, &[])))).3, Role::Untracked);
            // No error is about an error, or of the other version.
            assert_eq!(found(&error(&error(&tcp))).3, Role::Invalid);
            assert_eq!(found(&error(&other_version)).3, Role::Invalid);
            assert_eq!(found(&error(&[0x10; 60])).3, Role::Invalid);
        }
        let other_protocol = if protocol == ICMP { ICMPV6 } else { ICMP };
        assert_eq!(found(&packet(other_protocol, &message(128, &[]))).3, Role::Invalid);
    }
    let options = Ipv4 { options: &[1; 8], ..Ipv4::of(UDP) }.packet(&udp(1000, 53));
    assert_eq!(found(&back(Ipv4::of(ICMP).packet(&message(11, &options)))), (1000, 53, false, Role::Related));
    let later = Ipv4 { fragment: 5, ..Ipv4::of(UDP) }.packet(&udp(1000, 53));
    assert_eq!(found(&back(Ipv4::of(ICMP).packet(&message(11, &later)))).3, Role::Untracked);
    let chain = [extension(UDP, 0, 8), udp(1000, 53)].concat();
    let quoted = Ipv6::of(60).packet(&chain);
    assert_eq!(found(&back(Ipv6::of(ICMPV6).packet(&message(3, &quoted)))), (1000, 53, false, Role::Related));
}

#[test]
fn other_messages_are_of_no_connection() {
    for (protocol, kinds) in
        [(ICMP, &[4u8, 5, 9, 10, 1, 255][..]), (ICMPV6, &[133, 134, 135, 136, 137, 130, 143, 0, 8, 127])]
    {
        for &kind in kinds {
            assert_eq!(Message::of(protocol, kind), Message::Other);
            let payload = message(kind, &[0x45; 60]);
            let packet = if protocol == ICMP {
                Ipv4::of(ICMP).packet(&payload)
            } else {
                Ipv6::of(ICMPV6).packet(&payload)
            };
            assert_eq!(found(&packet).3, Role::Untracked, "{kind}");
        }
    }
}

/// The flow of a packet that is no member is its 5-tuple's, by which it can be spread.
#[test]
fn every_packet_has_a_flow() {
    for packet in packets() {
        let Ok(headers) = dissect(LinkType::RAW, &packet, WIRE) else { continue };
        let five_tuple = match &headers.key {
            Key::V4(key) => FlowKey::from_v4(key),
            Key::V6(key) => FlowKey::from_v6(key),
        };
        let Connection { flow, from_a, role } = Connection::of(&headers.key, LinkType::RAW, &packet, WIRE);
        if matches!(role, Role::Invalid | Role::Untracked) {
            assert_eq!((flow, from_a), five_tuple);
        }
    }
}
