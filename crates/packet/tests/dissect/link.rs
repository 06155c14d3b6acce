//! Everything below IP.

use packetloom_packet::dissect::{MAX_HEADERS, is_basic};
use packetloom_packet::{Headers, KeyBits, LinkType, Reject, dissect};

use crate::support::*;

#[test]
fn the_numbers_are_the_registrys() {
    let numbers = [
        (LinkType::NULL, 0),
        (LinkType::ETHERNET, 1),
        (LinkType::RAW_BSD, 12),
        (LinkType::RAW_OPENBSD, 14),
        (LinkType::RAW, 101),
        (LinkType::LOOP, 108),
        (LinkType::SLL, 113),
        (LinkType::IPV4, 228),
        (LinkType::IPV6, 229),
        (LinkType::SLL2, 276),
        (LinkType::PPP, 9),
        (LinkType::PPP_HDLC, 50),
        (LinkType::PPP_ETHER, 51),
        (LinkType::C_HDLC, 104),
        (LinkType::IEEE802_11, 105),
        (LinkType::FRELAY, 107),
        (LinkType::PFLOG, 117),
        (LinkType::IEEE802_11_PRISM, 119),
        (LinkType::IEEE802_11_RADIOTAP, 127),
        (LinkType::NFLOG, 239),
    ];
    for (link, number) in numbers {
        assert_eq!(link.0, number);
    }
}

#[test]
fn ip_is_found_behind_every_header() {
    // What IP it is, its own first nibble says.
    let v4 = Ipv4::of(UDP).packet(&udp(1000, 53));
    let v6 = Ipv6::of(UDP).packet(&udp(1000, 53));
    let bits = [KeyBits::PORTS, KeyBits::WHOLE];
    for (name, link, header) in carriers() {
        let walk = |packet: &[u8]| dissect(link, &[&header, packet].concat(), WIRE);
        assert_eq!(walk(&v4), Ok(Headers { key: key4(UDP, (1000, 53), 0, &bits), ip_bytes: 32 }), "{name}");
        assert_eq!(walk(&v6), Ok(Headers { key: key6(UDP, (1000, 53), 0, &bits), ip_bytes: 52 }), "{name}");
    }
}

#[test]
fn a_length_of_zero_means_the_wire_length_less_layer_2() {
    let v4 = Ipv4 { protocol: GRE, total_len: Some(0), ..Ipv4::default() }.packet(&[0; 8]);
    let v6 = Ipv6 { next: GRE, payload_len: Some(0) }.packet(&[0; 8]);
    for (name, link, header) in carriers() {
        for packet in [&v4, &v6] {
            let frame = [&header[..], packet].concat();
            let walk = |wire_len| dissect(link, &frame, wire_len).expect(name).ip_bytes;
            assert_eq!(walk(header.len() as u32 + 5_000), 5_000, "{name}");
            assert_eq!(walk(header.len() as u32 + 100_000), 100_000, "{name}");
            // Nonsense, but never less than the header that is there.
            let least = if packet[0] >> 4 == 4 { 20 } else { 40 };
            assert_eq!(walk(0), least, "{name}");
            assert_eq!(walk(header.len() as u32 + 19), least, "{name}");
        }
    }
}

#[test]
fn a_cut_within_layer_2_is_told() {
    for (name, link, header) in carriers() {
        for cut in 0..=header.len() {
            assert_eq!(
                dissect(link, &header[..cut], WIRE),
                Err(Reject::LinkTruncated),
                "{name} cut at {cut}"
            );
        }
    }
}

#[test]
fn ip_is_found_in_every_other_framing() {
    let v4 = Ipv4::of(UDP).packet(&udp(1000, 53));
    let v6 = Ipv6::of(UDP).packet(&udp(1000, 53));
    let bits = [KeyBits::PORTS, KeyBits::WHOLE];
    for (is_v6, packet, headers) in [
        (false, &v4, Headers { key: key4(UDP, (1000, 53), 0, &bits), ip_bytes: 32 }),
        (true, &v6, Headers { key: key6(UDP, (1000, 53), 0, &bits), ip_bytes: 52 }),
    ] {
        for (name, link, header) in framings(is_v6) {
            // Behind the packet there may be a trailer, such as PRP's.
            for trailer in [0, 6] {
                let frame = [&header[..], packet, &vec![0x88; trailer]].concat();
                assert_eq!(dissect(link, &frame, WIRE), Ok(headers), "{name}");
                assert!(!is_basic(link, &frame), "{name}");
            }
            for cut in 0..=header.len() {
                let cut_at = dissect(link, &header[..cut], WIRE);
                let expected = [Err(Reject::LinkTruncated), Err(Reject::UnknownFraming)];
                assert!(expected.contains(&cut_at), "{name} cut at {cut}: {cut_at:?}");
            }
        }
    }
    for (name, link, header) in carriers() {
        assert!(is_basic(link, &[&header[..], &v4].concat()), "{name}");
    }
}

/// A header's name, the link type, and its bytes.
type Named = (&'static str, LinkType, Vec<u8>);

fn check_all(headers: Vec<Named>, expected: Reject) {
    for packet in [Ipv4::of(UDP).packet(&udp(1, 2)), Ipv6::of(UDP).packet(&udp(1, 2))] {
        for (name, link, header) in &headers {
            let frame = [&header[..], &packet].concat();
            assert_eq!(dissect(*link, &frame, WIRE), Err(expected), "{name}");
        }
    }
}

#[test]
fn what_never_carries_ip_is_not_ip() {
    let e = LinkType::ETHERNET;
    let llc = |bytes: &[u8]| [&ethernet(60), bytes].concat();
    let mut headers = vec![
        ("ARP in a VLAN", e, [ethernet(0x8100), tag(0x0806)].concat()),
        ("PPPoE discovery", e, [ethernet(0x8863), pppoe(0x0021)].concat()),
        ("PPPoE with LCP", e, [ethernet(0x8864), pppoe(0xc021)].concat()),
        ("PPPoE with IPCP", e, [ethernet(0x8864), pppoe(0x8021)].concat()),
        (
            "LCP that rejects IPV6CP",
            e,
            [ethernet(0x8864), pppoe(0xc021), vec![8, 1, 0, 20, 0x80, 0x57]].concat(),
        ),
        ("spanning tree", e, llc(&[0x42, 0x42, 3])),
        ("spanning tree in a VLAN", e, [ethernet(0x8100), tag(60), vec![0x42, 0x42, 3]].concat()),
        ("PVST+", e, llc(&[0xaa, 0xaa, 3, 0, 0, 0x0c, 1, 0x0b])),
        ("CDP", e, llc(&[0xaa, 0xaa, 3, 0, 0, 0x0c, 0x20, 0])),
        ("ARP in LLC/SNAP", e, llc(&[0xaa, 0xaa, 3, 0, 0, 0, 8, 6])),
        (
            "AppleTalk in SNAP",
            e,
            llc(&[0xaa, 0xaa, 3, 8, 0, 7, 0x80, 0x9b, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]),
        ),
        ("IS-IS", e, llc(&[0xfe, 0xfe, 3, 0x83])),
        ("NetBIOS", e, llc(&[0xf0, 0xf1, 0x01, 0x02])),
        ("XID of the null SAP", e, llc(&[0, 1, 0xaf])),
        ("IPX in 802.3", e, llc(&[0xff, 0xff, 0, 30])),
        ("IPX in SLL", LinkType::SLL, sll(1)),
        ("FCoE", e, [ethernet(0x8906), vec![0; 14], vec![6, 0, 0, 0, 0, 0, 0, 0, 8]].concat()),
        ("SLL with ARP", LinkType::SLL, sll(0x0806)),
        ("SLL2 with ARP", LinkType::SLL2, sll2(0x0806)),
        ("NULL with AppleTalk", LinkType::NULL, vec![16, 0, 0, 0]),
        ("a beacon", LinkType::IEEE802_11, wireless([0x80, 0], &[])),
        ("an acknowledgement", LinkType::IEEE802_11, vec![0xd4, 0, 0, 0, 2, 0, 0, 0, 0, 1]),
        ("802.11 without data", LinkType::IEEE802_11, wireless([0x48, 1], &[])),
        ("802.11 without data, QoS", LinkType::IEEE802_11, wireless([0xc8, 1], &[5, 0])),
        ("EAPOL in 802.11", LinkType::IEEE802_11, [&wireless([0x08, 1], &[])[..30], &[0x88, 0x8e]].concat()),
        (
            "a beacon behind radiotap",
            LinkType::IEEE802_11_RADIOTAP,
            [vec![0, 0, 8, 0, 0, 0, 0, 0], vec![0x80, 0]].concat(),
        ),
        ("LCP", LinkType::PPP, vec![0xff, 3, 0xc0, 0x21]),
        ("IPCP", LinkType::PPP_HDLC, vec![0x80, 0x21]),
        ("Cisco's SLARP", LinkType::C_HDLC, vec![0x8f, 0, 0x80, 0x35]),
        ("Cisco's CDP", LinkType::PPP_HDLC, vec![0x8f, 0, 0x20, 0]),
        ("IS-IS on Frame Relay", LinkType::FRELAY, vec![0x18, 0x41, 3, 0x83]),
        ("ARP on Frame Relay", LinkType::FRELAY, vec![0x18, 0x41, 3, 0, 0x80, 0, 0, 0, 8, 6]),
        ("ARP in an I-Tag", e, [ethernet(0x88e7), vec![0; 4], ethernet(0x0806)].concat()),
    ];
    for ethertype in
        [0x0806, 0x0842, 0x22ea, 0x6003, 0x8035, 0x8137, 0x8809, 0x888e, 0x8892, 0x88cc, 0x88f7, 0x9000]
    {
        headers.push(("an EtherType", e, ethernet(ethertype)));
    }
    check_all(headers, Reject::NotIp);
}

#[test]
fn what_may_carry_ip_is_an_unknown_framing() {
    let e = LinkType::ETHERNET;
    let llc = |bytes: &[u8]| [&ethernet(60), bytes].concat();
    let mpls = |rest: &[u8]| [ethernet(0x8847), label(true), rest.to_vec()].concat();
    let of_802_11 = {
        let mut header = sll(0x0806);
        header[2..4].copy_from_slice(&803u16.to_be_bytes());
        header
    };
    let headers = vec![
        ("no LLC", e, ethernet(60)),
        ("a type that is IPv4's with its bytes swapped", e, ethernet(0x0008)),
        ("a type of nobody", e, ethernet(0xfffe)),
        ("MACsec", e, ethernet(0x88e5)),
        ("TIPC", e, ethernet(0x88ca)),
        ("EtherCAT", e, ethernet(0x88a4)),
        ("FCoE with IP", e, [ethernet(0x8906), vec![0; 14], vec![6, 0, 0, 0, 0, 0, 0, 0, 5]].concat()),
        ("a VLAN tag inside PPPoE", e, [ethernet(0x8864), pppoe(0x8100), tag(IPV4)].concat()),
        ("PPPoE with compressed TCP", e, [ethernet(0x8864), pppoe(0x002d)].concat()),
        ("LCP that rejects IP", e, [ethernet(0x8864), pppoe(0xc021), vec![8, 1, 0, 40, 0, 0x21]].concat()),
        ("SNAP in numbered frames", e, llc(&[0xaa, 0xaa, 0, 0, 0, 0, 0, 8, 0])),
        ("SNAP to another SAP", e, llc(&[0xaa, 0x42, 3, 0, 0, 0, 8, 0])),
        ("SNAP of nobody", e, llc(&[0xaa, 0xaa, 3, 0x12, 0x34, 0x56, 8, 0])),
        ("a length in SNAP", e, llc(&[0xaa, 0xaa, 3, 0, 0, 0, 0, 60])),
        ("CLNP", e, llc(&[0xfe, 0xfe, 3, 0x81])),
        ("ISL with something else than Ethernet", e, {
            let mut header = framings(false).into_iter().find(|framing| framing.0 == "ISL").expect("ISL").2;
            header[5] = 0x10;
            header
        }),
        ("NSH of another version", e, [ethernet(0x894f), vec![0x4f, 0xc2, 2, 1, 0, 0, 0, 0]].concat()),
        ("NSH without room", e, [ethernet(0x894f), vec![0x0f, 0xc1, 2, 1, 0, 0, 0, 0]].concat()),
        ("NSH with something else", e, [ethernet(0x894f), vec![0x0f, 0xc2, 2, 6, 0, 0, 0, 0]].concat()),
        ("metadata of another version", e, [ethernet(0x8909), vec![2, 1, 0, 1, 0, 7, 8, 0]].concat()),
        ("MPLS with a control word and nothing else", e, mpls(&[0; 4])),
        ("MPLS with nibble 5", e, mpls(&[0x50; 4])),
        ("ARP in a pseudowire", e, mpls(&ethernet(0x0806))),
        ("ARP in a pseudowire with a control word", e, mpls(&[vec![0; 4], ethernet(0x0806)].concat())),
        ("another channel", e, mpls(&[0x10, 0, 0, 7])),
        ("encrypted 802.11", LinkType::IEEE802_11, wireless([0x08, 0x41], &[])),
        ("802.11 frames in one", LinkType::IEEE802_11, wireless([0x88, 1], &[0x85, 0])),
        ("a later fragment of 802.11", LinkType::IEEE802_11, {
            let mut header = wireless([0x08, 1], &[]);
            header[22] = 0x51;
            header
        }),
        ("802.11 of another version", LinkType::IEEE802_11, wireless([0x09, 1], &[])),
        ("802.11 of a reserved kind", LinkType::IEEE802_11, wireless([0x0c, 1], &[])),
        ("802.11 of a reserved subtype", LinkType::IEEE802_11, wireless([0xd8, 1], &[5, 0])),
        (
            "802.11 without SNAP",
            LinkType::IEEE802_11,
            [&wireless([0x08, 1], &[])[..24], &[0x42, 0x42, 3]].concat(),
        ),
        ("radiotap of another version", LinkType::IEEE802_11_RADIOTAP, vec![1, 0, 8, 0, 0, 0, 0, 0]),
        ("radiotap that is too short", LinkType::IEEE802_11_RADIOTAP, vec![0, 0, 7, 0, 0, 0, 0, 0]),
        (
            "radiotap without room for its flags",
            LinkType::IEEE802_11_RADIOTAP,
            [vec![0, 0, 8, 0, 2, 0, 0, 0], wireless([0x08, 1], &[])].concat(),
        ),
        (
            "another header than Prism's",
            LinkType::IEEE802_11_PRISM,
            [vec![0x80, 0x21, 0x10, 1], vec![0; 140]].concat(),
        ),
        ("numbered PPP", LinkType::PPP, vec![0xff, 0x13, 0, 0x21]),
        ("PPP of another protocol", LinkType::PPP, vec![0xff, 3, 0, 0x2d]),
        ("Cisco HDLC to another address", LinkType::C_HDLC, vec![0x0e, 0, 8, 0]),
        ("Cisco HDLC with a length", LinkType::C_HDLC, vec![0x0f, 0, 0, 60]),
        ("Frame Relay with a byte of address", LinkType::FRELAY, vec![0x19, 3, 0xcc]),
        (
            "Frame Relay with five bytes of address",
            LinkType::FRELAY,
            vec![0x18, 0x40, 0x40, 0x40, 0x41, 3, 0xcc],
        ),
        ("Q.933 on Frame Relay", LinkType::FRELAY, vec![0, 1, 3, 8]),
        ("ARP as Cisco has it on Frame Relay, or a numbered frame", LinkType::FRELAY, vec![0x18, 0x41, 8, 6]),
        ("a length on Frame Relay", LinkType::FRELAY, vec![0x18, 0x41, 0, 60]),
        ("a short pflog", LinkType::PFLOG, [vec![44, 2], vec![0; 42]].concat()),
        ("pflog of another family", LinkType::PFLOG, [vec![61, 16], vec![0; 62]].concat()),
        ("NFLOG of a bridge", LinkType::NFLOG, vec![7, 0, 0, 5, 0xff, 0xff, 9, 0]),
        ("NFLOG of another version", LinkType::NFLOG, vec![2, 1, 0, 5, 0xff, 0xff, 9, 0]),
        ("NFLOG with something behind the packet", LinkType::NFLOG, vec![2, 0, 0, 5, 24, 0, 9, 0]),
        (
            "NFLOG with a large number",
            LinkType::NFLOG,
            vec![2, 0, 0, 5, 8, 0, 1, 1, 0, 0, 0, 0, 0xff, 0xff, 9, 0],
        ),
        ("NFLOG with a length of nothing", LinkType::NFLOG, vec![2, 0, 0, 5, 3, 0, 9, 0]),
        ("SLL, 802.11", LinkType::SLL, of_802_11),
        ("SLL, PPP", LinkType::SLL, sll(7)),
        ("NULL with no family", LinkType::NULL, vec![0; 4]),
        ("NULL with two families", LinkType::NULL, vec![2, 0, 2, 0]),
        ("LOOP in the other byte order", LinkType::LOOP, vec![2, 0, 0, 0]),
    ];
    check_all(headers, Reject::UnknownFraming);
}

#[test]
fn the_number_of_headers_is_limited() {
    let e_tag = |ethertype: u16| [&[0; 6][..], &ethertype.to_be_bytes()].concat();
    let tags = |count: usize| [ethernet(0x893f), e_tag(0x893f).repeat(count - 1), e_tag(0x9300)].concat();
    let packet = [tag(0x8100).repeat(50), tag(IPV4), Ipv4::of(UDP).packet(&udp(1, 2))].concat();
    let walk = |count| dissect(LinkType::ETHERNET, &[tags(count), packet.clone()].concat(), WIRE);
    // Ethernet's is one of them; VLAN tags are none.
    let most = MAX_HEADERS as usize - 1;
    assert!(walk(most).is_ok());
    assert_eq!(walk(most + 1), Err(Reject::UnknownFraming));
    // An end of each kind, before the limit and behind it.
    assert_eq!(dissect(LinkType::ETHERNET, &tags(most), WIRE), Err(Reject::LinkTruncated));
    let long = [ethernet(0x894f), [0x0f, 0xc2, 2, 4, 0, 0, 0, 0].repeat(100)].concat();
    assert_eq!(dissect(LinkType::ETHERNET, &long, WIRE), Err(Reject::UnknownFraming));
}

#[test]
fn of_two_readings_that_both_find_ip_neither_is_taken() {
    let packet = Ipv4::of(UDP).packet(&udp(1, 2));
    // With a control word the source address is 08:00:45 in its last half: a packet of its own without one.
    let mut frame = [ethernet(0x8847), label(true), vec![0; 4], ethernet(IPV4), packet.clone()].concat();
    assert!(dissect(LinkType::ETHERNET, &frame, WIRE).is_ok());
    frame[14 + 4 + 12..14 + 4 + 15].copy_from_slice(&[8, 0, 0x45]);
    assert_eq!(dissect(LinkType::ETHERNET, &frame, WIRE), Err(Reject::UnknownFraming));
    // Where it cannot be IP, it is by chance.
    frame[14 + 4 + 14] = 0x75;
    assert!(dissect(LinkType::ETHERNET, &frame, WIRE).is_ok());
    // A header that may lead to IP is no chance.
    frame[14 + 4 + 12..14 + 4 + 14].copy_from_slice(&0x88e5u16.to_be_bytes());
    assert_eq!(dissect(LinkType::ETHERNET, &frame, WIRE), Err(Reject::UnknownFraming));

    // A frame is guessed at once.
    let nested =
        [ethernet(0x8847), label(true), ethernet(0x8847), label(true), ethernet(IPV4), packet].concat();
    assert_eq!(dissect(LinkType::ETHERNET, &nested, WIRE), Err(Reject::UnknownFraming));
}

#[test]
fn a_label_stack_without_bottom_ends_with_the_frame() {
    let frame = [ethernet(0x8847), label(false).repeat(20)].concat();
    assert_eq!(dissect(LinkType::ETHERNET, &frame, WIRE), Err(Reject::LinkTruncated));
}

#[test]
fn an_unknown_version_is_malformed() {
    for nibble in [0, 1, 5, 7, 15] {
        let mut packet = Ipv4::of(UDP).packet(&udp(1, 2));
        packet[0] = nibble << 4 | 5;
        assert_eq!(raw(&packet), Err(Reject::IpMalformed), "{nibble}");
        let frame = [ethernet(IPV4), packet].concat();
        assert_eq!(dissect(LinkType::ETHERNET, &frame, WIRE), Err(Reject::IpMalformed), "{nibble}");
    }
}

#[test]
fn unknown_link_types_are_not_guessed_at() {
    let v4 = Ipv4::of(UDP).packet(&udp(1, 2));
    let known: Vec<_> = carriers().into_iter().map(|(_, link, _)| link).collect();
    for number in 0..=u16::MAX {
        let link = LinkType(number);
        assert_eq!(link.is_supported(), known.contains(&link), "{number}");
        if !known.contains(&link) {
            let reason = if link == LinkType::NONE { Reject::UndefinedInterface } else { Reject::LinkType };
            assert_eq!(dissect(link, &v4, WIRE), Err(reason), "{number}");
            assert_eq!(dissect(link, &[], WIRE), Err(reason), "{number}");
        }
    }
}

#[test]
fn link_types_have_names() {
    let named: Vec<_> = (0..=u16::MAX).map(LinkType).filter(|link| link.name().is_some()).collect();
    assert!(named.len() >= 60, "{} names", named.len());
    let mut names: Vec<_> = named.iter().filter_map(|link| link.name()).collect();
    names.sort_unstable();
    names.dedup();
    // RAW stands for three numbers.
    assert_eq!(names.len(), named.len() - 2);
    for (number, name) in [(1, "ETHERNET"), (127, "IEEE802_11_RADIOTAP"), (147, "USER0"), (228, "IPV4")] {
        assert_eq!(LinkType(number).name(), Some(name));
    }
    for number in [2, 11, 65_534, 65_535] {
        assert_eq!(LinkType(number).name(), None, "{number}");
    }
    assert!(LinkType::SUPPORTED.iter().all(|link| link.name().is_some()));
}

#[test]
fn no_number_of_a_capture_means_that_there_is_no_link_type() {
    for (number, link) in [(0, 0), (1, 1), (65_533, 65_533), (65_534, 65_534), (65_535, 65_534)] {
        assert_eq!(LinkType::of_number(number), LinkType(link), "{number}");
    }
    assert_eq!(LinkType::of_number(u32::MAX), LinkType(65_534));
}
