//! Everything below IP.

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
fn other_payloads_are_not_ip() {
    let v4 = Ipv4::of(UDP).packet(&udp(1, 2));
    let headers = [
        ("ARP", LinkType::ETHERNET, ethernet(0x0806)),
        ("an 802.3 length", LinkType::ETHERNET, ethernet(0x0040)),
        ("a type that is IPv4's with its bytes swapped", LinkType::ETHERNET, ethernet(0x0008)),
        ("ARP in a VLAN", LinkType::ETHERNET, [ethernet(0x8100), tag(0x0806)].concat()),
        ("PPPoE discovery", LinkType::ETHERNET, [ethernet(0x8863), pppoe(0x0021)].concat()),
        ("PPPoE with LCP", LinkType::ETHERNET, [ethernet(0x8864), pppoe(0xc021)].concat()),
        ("PPPoE with IPCP", LinkType::ETHERNET, [ethernet(0x8864), pppoe(0x8021)].concat()),
        (
            "a VLAN tag inside PPPoE",
            LinkType::ETHERNET,
            [ethernet(0x8864), pppoe(0x8100), tag(IPV4)].concat(),
        ),
        (
            "MPLS with a control word",
            LinkType::ETHERNET,
            [ethernet(0x8847), label(true), vec![0; 4]].concat(),
        ),
        ("MPLS with nibble 5", LinkType::ETHERNET, [ethernet(0x8847), label(true), vec![0x50; 4]].concat()),
        ("SLL with ARP", LinkType::SLL, sll(0x0806)),
        ("SLL2 with ARP", LinkType::SLL2, sll2(0x0806)),
        ("NULL with no family", LinkType::NULL, vec![0; 4]),
        ("NULL with AppleTalk", LinkType::NULL, vec![16, 0, 0, 0]),
        ("NULL with two families", LinkType::NULL, vec![2, 0, 2, 0]),
        ("LOOP in the other byte order", LinkType::LOOP, vec![2, 0, 0, 0]),
    ];
    for (name, link, header) in headers {
        assert_eq!(dissect(link, &[header, v4.clone()].concat(), WIRE), Err(Reject::NotIp), "{name}");
    }
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
