//! Frames built by hand, byte by byte, without the crate's own views.
#![allow(dead_code, reason = "each test binary uses some of it")]

use packetloom_packet::{Headers, Key, KeyBits, LinkType, MatchKey4, MatchKey6, Reject, dissect};

pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;
pub(crate) const ICMP: u8 = 1;
pub(crate) const ICMPV6: u8 = 58;
pub(crate) const SCTP: u8 = 132;
pub(crate) const GRE: u8 = 47;

pub(crate) const IPV4: u16 = 0x0800;
pub(crate) const IPV6: u16 = 0x86dd;

/// Source and destination of every IPv4 packet built here.
pub(crate) const SOURCE4: u32 = 0xc000_0201;
pub(crate) const DESTINATION4: u32 = 0xc633_6407;
/// Source and destination of every IPv6 packet built here.
pub(crate) const SOURCE6: [u64; 2] = [0x2001_0db8_0001_0002, 0x0003_0004_0005_0006];
pub(crate) const DESTINATION6: [u64; 2] = [0x2001_0db8_00aa_00bb, 0x00cc_00dd_00ee_00ff];

/// A wire length that no header built here has by chance.
pub(crate) const WIRE: u32 = 9_999;

/// An IPv4 header; what is not set is what an ordinary packet has.
#[derive(Clone, Copy, Default)]
pub(crate) struct Ipv4 {
    pub(crate) protocol: u8,
    /// Bytes 6 and 7: flags and fragment offset.
    pub(crate) fragment: u16,
    pub(crate) options: &'static [u8],
    /// Another header length than the true one, in words.
    pub(crate) ihl: Option<u8>,
    /// Another total length than the true one.
    pub(crate) total_len: Option<u16>,
}

impl Ipv4 {
    pub(crate) fn of(protocol: u8) -> Self {
        Self { protocol, ..Self::default() }
    }

    pub(crate) fn packet(self, payload: &[u8]) -> Vec<u8> {
        let header_len = 20 + self.options.len();
        assert!(header_len.is_multiple_of(4));
        let total_len = self.total_len.unwrap_or((header_len + payload.len()) as u16);
        let mut packet = vec![0x40 | self.ihl.unwrap_or(header_len as u8 / 4), 0xb8];
        packet.extend(total_len.to_be_bytes());
        packet.extend([0x12, 0x34]);
        packet.extend(self.fragment.to_be_bytes());
        packet.extend([64, self.protocol, 0, 0]);
        packet.extend(SOURCE4.to_be_bytes());
        packet.extend(DESTINATION4.to_be_bytes());
        packet.extend(self.options);
        packet.extend(payload);
        packet
    }
}

/// An IPv6 header; what is not set is what an ordinary packet has.
#[derive(Clone, Copy, Default)]
pub(crate) struct Ipv6 {
    pub(crate) next: u8,
    /// Another payload length than the true one.
    pub(crate) payload_len: Option<u16>,
}

impl Ipv6 {
    pub(crate) fn of(next: u8) -> Self {
        Self { next, ..Self::default() }
    }

    pub(crate) fn packet(self, payload: &[u8]) -> Vec<u8> {
        let mut packet = vec![0x6b, 0x80, 0x12, 0x34];
        packet.extend(self.payload_len.unwrap_or(payload.len() as u16).to_be_bytes());
        packet.extend([self.next, 64]);
        for half in SOURCE6.into_iter().chain(DESTINATION6) {
            packet.extend(half.to_be_bytes());
        }
        packet.extend(payload);
        packet
    }
}

/// An extension header of `len` bytes, its length field `units`.
pub(crate) fn extension(next: u8, units: u8, len: usize) -> Vec<u8> {
    let mut header = vec![0xee; len];
    header[0] = next;
    header[1] = units;
    header
}

/// An IPv6 fragment header; `offset` in units of 8 bytes. The reserved bits are set.
pub(crate) fn fragment(next: u8, offset: u16, more: bool) -> Vec<u8> {
    let field = offset << 3 | 0b110 | u16::from(more);
    let mut header = vec![next, 0xff];
    header.extend(field.to_be_bytes());
    header.extend([1, 2, 3, 4]);
    header
}

/// A TCP header of 20 bytes.
pub(crate) fn tcp(source: u16, destination: u16, flags: u8) -> Vec<u8> {
    let mut header = Vec::new();
    header.extend(source.to_be_bytes());
    header.extend(destination.to_be_bytes());
    // The lowest bit beside the data offset was once a flag (NS); it is none of the eight.
    header.extend([1, 2, 3, 4, 5, 6, 7, 8, 0x51, flags, 0xff, 0xff, 0, 0, 0, 0]);
    header
}

/// A UDP header with 4 bytes of payload.
pub(crate) fn udp(source: u16, destination: u16) -> Vec<u8> {
    let mut header = Vec::new();
    header.extend(source.to_be_bytes());
    header.extend(destination.to_be_bytes());
    header.extend([0, 12, 0, 0, b'd', b'a', b't', b'a']);
    header
}

/// An Ethernet header.
pub(crate) fn ethernet(ethertype: u16) -> Vec<u8> {
    [&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2], &ethertype.to_be_bytes()[..]].concat()
}

/// A VLAN tag: priority and identifier, then the EtherType of what follows.
pub(crate) fn tag(ethertype: u16) -> Vec<u8> {
    [&[0xe1, 0x23], &ethertype.to_be_bytes()[..]].concat()
}

/// An MPLS label stack entry.
pub(crate) fn label(bottom: bool) -> Vec<u8> {
    // All bits beside the bottom bit are set, so that no other is taken for it.
    vec![0xff, 0xff, if bottom { 0xff } else { 0xfe }, 0xff]
}

/// A PPPoE session header and the number of the protocol in it.
pub(crate) fn pppoe(protocol: u16) -> Vec<u8> {
    [&[0x11, 0, 0, 7, 0, 99], &protocol.to_be_bytes()[..]].concat()
}

/// A Linux cooked header, version 1.
pub(crate) fn sll(ethertype: u16) -> Vec<u8> {
    [&[0, 4, 0, 1, 0, 6, 2, 0, 0, 0, 0, 1, 0x08, 0x00], &ethertype.to_be_bytes()[..]].concat()
}

/// A Linux cooked header, version 2.
pub(crate) fn sll2(ethertype: u16) -> Vec<u8> {
    [&ethertype.to_be_bytes()[..], &[0, 0, 0, 0, 0, 3, 0, 1, 4, 6, 2, 0, 0, 0, 0, 1, 0x86, 0xdd]].concat()
}

/// Headers that carry IP: a name, the link type, the bytes.
pub(crate) fn carriers() -> Vec<(&'static str, LinkType, Vec<u8>)> {
    let ethernet_with = |ethertype, rest: &[&[u8]]| [&ethernet(ethertype), &rest.concat()[..]].concat();
    vec![
        ("Ethernet, IPv4", LinkType::ETHERNET, ethernet(IPV4)),
        ("Ethernet, IPv6", LinkType::ETHERNET, ethernet(IPV6)),
        ("VLAN", LinkType::ETHERNET, ethernet_with(0x8100, &[&tag(IPV4)])),
        ("802.1ad tag alone", LinkType::ETHERNET, ethernet_with(0x88a8, &[&tag(IPV6)])),
        ("QinQ", LinkType::ETHERNET, ethernet_with(0x88a8, &[&tag(0x8100), &tag(IPV4)])),
        ("old QinQ", LinkType::ETHERNET, ethernet_with(0x9100, &[&tag(0x9200), &tag(IPV6)])),
        ("three tags", LinkType::ETHERNET, ethernet_with(0x9200, &[&tag(0x88a8), &tag(0x8100), &tag(IPV4)])),
        ("five tags", LinkType::ETHERNET, ethernet_with(0x8100, &[&tag(0x8100).repeat(4), &tag(IPV4)])),
        ("MPLS", LinkType::ETHERNET, ethernet_with(0x8847, &[&label(true)])),
        ("MPLS multicast", LinkType::ETHERNET, ethernet_with(0x8848, &[&label(true)])),
        (
            "MPLS, three labels",
            LinkType::ETHERNET,
            ethernet_with(0x8847, &[&label(false).repeat(2), &label(true)]),
        ),
        (
            "MPLS in a VLAN",
            LinkType::ETHERNET,
            ethernet_with(0x8100, &[&tag(0x8847), &label(false), &label(true)]),
        ),
        ("PPPoE, IPv4", LinkType::ETHERNET, ethernet_with(0x8864, &[&pppoe(0x0021)])),
        ("PPPoE, IPv6", LinkType::ETHERNET, ethernet_with(0x8864, &[&pppoe(0x0057)])),
        (
            "PPPoE in QinQ",
            LinkType::ETHERNET,
            ethernet_with(0x88a8, &[&tag(0x8100), &tag(0x8864), &pppoe(0x0021)]),
        ),
        ("SLL", LinkType::SLL, sll(IPV4)),
        ("SLL, VLAN", LinkType::SLL, [sll(0x8100), tag(IPV6)].concat()),
        ("SLL2", LinkType::SLL2, sll2(IPV6)),
        ("SLL2, VLAN", LinkType::SLL2, [sll2(0x8100), tag(IPV4)].concat()),
        ("NULL, little-endian", LinkType::NULL, vec![2, 0, 0, 0]),
        ("NULL, big-endian", LinkType::NULL, vec![0, 0, 0, 2]),
        ("NULL, IPv6 of Linux", LinkType::NULL, vec![10, 0, 0, 0]),
        ("NULL, IPv6 of NetBSD", LinkType::NULL, vec![0, 0, 0, 24]),
        ("NULL, IPv6 of FreeBSD", LinkType::NULL, vec![28, 0, 0, 0]),
        ("NULL, IPv6 of macOS", LinkType::NULL, vec![0, 0, 0, 30]),
        ("LOOP", LinkType::LOOP, vec![0, 0, 0, 2]),
        ("LOOP, IPv6", LinkType::LOOP, vec![0, 0, 0, 24]),
        ("raw", LinkType::RAW, vec![]),
        ("raw, BSD's number", LinkType::RAW_BSD, vec![]),
        ("raw, OpenBSD's number", LinkType::RAW_OPENBSD, vec![]),
        ("raw IPv4", LinkType::IPV4, vec![]),
        ("raw IPv6", LinkType::IPV6, vec![]),
        ("PPP", LinkType::PPP, vec![0, 0x21]),
        ("PPP, one byte", LinkType::PPP, vec![0x57]),
        ("PPP in HDLC", LinkType::PPP, vec![0xff, 3, 0, 0x57]),
        ("PPP in HDLC, one byte", LinkType::PPP_HDLC, vec![0xff, 3, 0x21]),
        ("PPP in HDLC, MPLS", LinkType::PPP_HDLC, [vec![0xff, 3, 0x02, 0x81], label(true)].concat()),
        ("Cisco HDLC for PPP", LinkType::PPP_HDLC, vec![0x0f, 0, 8, 0]),
        ("PPPoE alone", LinkType::PPP_ETHER, pppoe(0x0021)),
        ("Cisco HDLC", LinkType::C_HDLC, vec![0x0f, 0, 8, 0]),
        ("Cisco HDLC to all, VLAN", LinkType::C_HDLC, [vec![0x8f, 0, 0x81, 0], tag(IPV6)].concat()),
        ("Frame Relay", LinkType::FRELAY, vec![0x18, 0x41, 3, 0xcc]),
        ("Frame Relay, four bytes of address", LinkType::FRELAY, vec![0x18, 0x40, 0x10, 0x01, 3, 0x8e]),
        ("Frame Relay, SNAP", LinkType::FRELAY, vec![0x18, 0x41, 3, 0, 0x80, 0, 0, 0, 8, 0]),
        ("Frame Relay, PPP", LinkType::FRELAY, vec![0x18, 0x41, 3, 0xcf, 0, 0x21]),
        ("Frame Relay, Cisco", LinkType::FRELAY, vec![0x18, 0x41, 0x86, 0xdd]),
        ("802.11", LinkType::IEEE802_11, wireless([0x08, 1], &[])),
        ("802.11, QoS", LinkType::IEEE802_11, wireless([0x88, 2], &[5, 0])),
        (
            "802.11, four addresses, QoS, HT",
            LinkType::IEEE802_11,
            wireless([0x88, 0x83], &[4, 0, 0, 0, 0, 1, 5, 0, 0, 0, 0, 0]),
        ),
        ("802.11, first fragment", LinkType::IEEE802_11, wireless([0x08, 5], &[])),
        (
            "radiotap",
            LinkType::IEEE802_11_RADIOTAP,
            [vec![0, 0, 8, 0, 0, 0, 0, 0], wireless([0x08, 1], &[])].concat(),
        ),
        (
            "radiotap, time, flags, padding",
            LinkType::IEEE802_11_RADIOTAP,
            [vec![0, 0, 17, 0, 3, 0, 0, 0], vec![0xff; 8], vec![0x20], wireless([0x88, 1], &[5, 0, 0, 0])]
                .concat(),
        ),
        (
            "radiotap, three words of fields",
            LinkType::IEEE802_11_RADIOTAP,
            [
                vec![0, 0, 17, 0, 2, 0, 0, 0x80],
                vec![0, 0, 0, 0x80, 0, 0, 0, 0],
                vec![0x20],
                wireless([0x88, 1], &[5, 0, 0, 0]),
            ]
            .concat(),
        ),
        (
            "Prism",
            LinkType::IEEE802_11_PRISM,
            [vec![0x44, 0, 0, 0, 144, 0, 0, 0], vec![0; 136], wireless([0x08, 1], &[])].concat(),
        ),
        ("pflog", LinkType::PFLOG, [vec![61, 2], vec![0; 62]].concat()),
        ("pflog, FreeBSD, IPv6", LinkType::PFLOG, [vec![72, 28], vec![0; 70]].concat()),
        ("NFLOG", LinkType::NFLOG, vec![2, 0, 0, 5, 6, 0, 10, 0, b'a', 0, 0, 0, 0xff, 0xff, 9, 0]),
        ("NFLOG, big-endian", LinkType::NFLOG, vec![10, 0, 0, 5, 0, 8, 0, 1, 8, 0, 3, 0, 0xff, 0xff, 0, 9]),
    ]
}

/// An 802.11 header of three addresses with these first bytes, more of it, and SNAP with IPv4.
pub(crate) fn wireless(control: [u8; 2], more: &[u8]) -> Vec<u8> {
    let addresses = [vec![2, 0, 0, 0, 0, 1], vec![2, 0, 0, 0, 0, 2], vec![2, 0, 0, 0, 0, 3]].concat();
    let header = [&control, &[0, 0][..], &addresses, &[0x50, 0x12], more].concat();
    [header, vec![0xaa, 0xaa, 3, 0, 0, 0, 8, 0]].concat()
}

/// Headers of the other framings that carry IP of a version: a name, the link type, the bytes.
pub(crate) fn framings(is_v6: bool) -> Vec<(&'static str, LinkType, Vec<u8>)> {
    let ip = if is_v6 { IPV6 } else { IPV4 };
    let (e, a) = (LinkType::ETHERNET, ethernet);
    let with = |bytes: &[u8], ethertype: u16| [bytes, &ethertype.to_be_bytes()].concat();
    let snap = |organisation: [u8; 3], protocol: u16| {
        with(&[&[0xaa, 0xaa, 3][..], &organisation].concat(), protocol)
    };
    let of = |headers: &[Vec<u8>]| headers.concat();
    let inner = || a(ip);
    let other_mac = || [&[0xa4, 0x11, 0x22, 0x33, 0x44, 0x55], &inner()[6..]].concat();
    let next = if is_v6 { 2 } else { 1 };
    let nsh = |next| vec![0x0f, 0xc2, 2, next, 0, 0, 10, 255];
    let short = vec![if is_v6 { 0x57 } else { 0x21 }];
    let session = || vec![0x11, 0, 0, 7, 0, 99];
    let channel = vec![0x10, 0, 0, short[0]];
    vec![
        ("LLC/SNAP", e, of(&[a(60), snap([0; 3], ip)])),
        ("LLC/SNAP, a length of no length", e, of(&[a(0x05ff), snap([0; 3], ip)])),
        ("LLC/SNAP, 802.1H", e, of(&[a(60), snap([0, 0, 0xf8], ip)])),
        ("LLC/SNAP, Apple", e, of(&[a(60), snap([8, 0, 7], ip)])),
        ("LLC/SNAP, group, response, final", e, of(&[a(60), with(&[0xab, 0xab, 0x13, 0, 0, 0], ip)])),
        ("LLC/SNAP in a VLAN", e, of(&[a(0x8100), tag(60), snap([0; 3], ip)])),
        ("a VLAN in LLC/SNAP", e, of(&[a(60), snap([0; 3], 0x8100), tag(ip)])),
        ("LLC of IP", e, of(&[a(60), vec![6, 6, 3]])),
        ("jumbo LLC", e, of(&[a(0x8870), snap([0; 3], ip)])),
        ("bridged in SNAP, padded", e, of(&[a(60), snap([0, 0x80, 0xc2], 7), vec![0, 0], inner()])),
        ("bridged in SNAP", e, of(&[a(60), snap([0, 0x80, 0xc2], 1), inner()])),
        ("tag 0x9300", e, of(&[a(0x9300), tag(ip)])),
        ("tag 0x9300 between VLAN tags", e, of(&[a(0x8100), tag(0x9300), tag(0x88a8), tag(ip)])),
        ("VN-Tag", e, of(&[a(0x8926), with(&[0, 1, 0, 2], ip)])),
        ("E-Tag", e, of(&[a(0x893f), with(&[0, 1, 0, 2, 0, 3], ip)])),
        ("I-Tag", e, of(&[a(0x88e7), vec![0, 0, 0, 9], inner()])),
        ("EDSA", e, of(&[a(0xdada), with(&[0, 0, 0x40, 0, 0, 1], ip)])),
        ("Cisco MetaData", e, of(&[a(0x8909), with(&[1, 1, 0, 1, 0, 7], ip)])),
        ("bridging", e, of(&[a(0x6558), inner()])),
        ("HSR", e, of(&[a(0x892f), with(&[0, 60, 0, 1], ip)])),
        ("TRILL", e, of(&[a(0x22f3), vec![0, 1, 0, 2, 0, 3], inner()])),
        ("TRILL, options", e, of(&[a(0x22f3), vec![0, 0x81, 0, 2, 0, 3, 1, 2, 3, 4, 5, 6, 7, 8], inner()])),
        ("FabricPath", e, of(&[a(0x8903), vec![0, 0x60], inner()])),
        (
            "ISL",
            e,
            of(&[
                vec![1, 0, 0x0c, 0, 0, 0, 2, 0, 0, 0, 0, 1, 0, 80, 0xaa, 0xaa, 3, 0, 0, 0x0c],
                vec![1, 0x11, 0, 0, 0, 0],
                inner(),
            ]),
        ),
        ("NSH", e, of(&[a(0x894f), nsh(next)])),
        ("NSH, metadata", e, of(&[a(0x894f), vec![0x0f, 0xc6, 1, next, 0, 0, 10, 255], vec![7; 16]])),
        ("NSH, Ethernet", e, of(&[a(0x894f), nsh(3), inner()])),
        ("NSH in NSH", e, of(&[a(0x894f), nsh(4), nsh(next)])),
        ("NSH, MPLS", e, of(&[a(0x894f), nsh(5), label(false), label(true)])),
        ("pseudowire, control word", e, of(&[a(0x8847), label(true), vec![0, 0, 0, 7], inner()])),
        ("pseudowire", e, of(&[a(0x8847), label(false), label(true), inner()])),
        ("pseudowire, another address", e, of(&[a(0x8848), label(true), other_mac()])),
        ("pseudowire of a VLAN", e, of(&[a(0x8847), label(true), vec![0; 4], a(0x8100), tag(ip)])),
        ("pseudowire of a VLAN, no control word", e, of(&[a(0x8847), label(true), a(0x8100), tag(ip)])),
        ("associated channel", e, of(&[a(0x8847), label(true), channel])),
        ("PPPoE, compressed", e, of(&[a(0x8864), session(), short])),
        ("PPPoE, MPLS", e, of(&[a(0x8864), pppoe(0x0281), label(true)])),
        ("PPPoE, bridged", e, of(&[a(0x8864), pppoe(0x0031), vec![0, 1], inner()])),
        ("SLL, LLC", LinkType::SLL, of(&[sll(4), snap([0; 3], ip)])),
        ("SLL2, LLC", LinkType::SLL2, of(&[sll2(4), snap([0; 3], ip)])),
        ("SLL, VN-Tag", LinkType::SLL, of(&[sll(0x8926), with(&[0, 1, 0, 2], ip)])),
        (
            "much",
            e,
            of(&[a(0x88e7), vec![0; 4], a(0x893f), with(&[0; 6], 0x8100), tag(60), snap([0; 3], ip)]),
        ),
    ]
}

/// All of [`carriers`] and [`framings`].
pub(crate) fn all_carriers() -> Vec<(&'static str, LinkType, Vec<u8>)> {
    [carriers(), framings(false), framings(true)].concat()
}

/// Packets of every shape.
pub(crate) fn packets() -> Vec<Vec<u8>> {
    let options: &[u8] = &[1; 12];
    let chain = [
        extension(43, 0, 8),
        extension(51, 1, 16),
        extension(60, 2, 16),
        extension(44, 0, 8),
        fragment(0, 0, true),
        extension(TCP, 0, 8),
        tcp(80, 9_000, 0x1b),
    ];
    vec![
        Ipv4::of(TCP).packet(&tcp(80, 9_000, 0x1b)),
        Ipv4::of(UDP).packet(&udp(53, 1_024)),
        Ipv4::of(ICMP).packet(&[8, 0, 1, 2]),
        Ipv4::of(GRE).packet(&[0; 8]),
        Ipv4 { protocol: TCP, options, ..Ipv4::default() }.packet(&tcp(80, 9_000, 0x1b)),
        Ipv4 { protocol: TCP, total_len: Some(0), ..Ipv4::default() }.packet(&tcp(80, 9_000, 0x1b)),
        Ipv4 { protocol: UDP, fragment: 0x2000, ..Ipv4::default() }.packet(&udp(53, 1_024)),
        Ipv4 { protocol: UDP, fragment: 0x0010, ..Ipv4::default() }.packet(&udp(53, 1_024)),
        Ipv6::of(TCP).packet(&tcp(80, 9_000, 0x1b)),
        Ipv6::of(SCTP).packet(&udp(53, 1_024)),
        Ipv6::of(ICMPV6).packet(&[128, 0, 1, 2]),
        Ipv6 { next: TCP, payload_len: Some(0) }.packet(&tcp(80, 9_000, 0x1b)),
        Ipv6::of(0).packet(&chain.concat()),
        Ipv6::of(44).packet(&[fragment(60, 7, true), vec![0; 16]].concat()),
    ]
}

/// The key of an IPv4 packet between the two usual addresses.
pub(crate) fn key4(protocol: u8, ports: (u16, u16), tcp_flags: u8, bits: &[KeyBits]) -> Key {
    Key::V4(MatchKey4 {
        source: SOURCE4,
        destination: DESTINATION4,
        source_port: ports.0,
        destination_port: ports.1,
        protocol,
        tcp_flags,
        bits: all(bits),
        reserved: 0,
    })
}

/// The key of an IPv6 packet between the two usual addresses.
pub(crate) fn key6(protocol: u8, ports: (u16, u16), tcp_flags: u8, bits: &[KeyBits]) -> Key {
    Key::V6(MatchKey6 {
        source: SOURCE6,
        destination: DESTINATION6,
        source_port: ports.0,
        destination_port: ports.1,
        protocol,
        tcp_flags,
        bits: all(bits),
        reserved: 0,
    })
}

fn all(bits: &[KeyBits]) -> KeyBits {
    bits.iter().fold(KeyBits::default(), |sum, &bit| sum.with(bit))
}

/// What a packet without layer 2 is dissected to.
pub(crate) fn raw(packet: &[u8]) -> Result<Headers, Reject> {
    dissect(LinkType::RAW, packet, WIRE)
}

/// The key of a packet without layer 2.
pub(crate) fn raw_key(packet: &[u8]) -> Result<Key, Reject> {
    raw(packet).map(|headers| headers.key)
}
