//! The oracle's parser against the header views: equal in every field and in every reason for a rejection.

mod frames;
mod framings;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use packetloom_nf::oracle::{OracleIp, OraclePacket};
use packetloom_packet::dissect::is_basic;
use packetloom_packet::key::join;
use packetloom_packet::rewrite::dscp;
use packetloom_packet::{Dscp, Headers, Key, KeyBits, LinkType, Reject, dissect};
use proptest::prelude::*;

use crate::frames::{Fragment, Packet, Transport, ethernet};
use crate::framings::{
    Behind, GUESSED, INNERMOST, INNERMOST_GUESSED, LINKS, SURE, Wrap, Wrap4Or6, has_packets_alone,
};

/// What the views say, in the oracle's words.
fn views(link: u16, frame: &[u8], wire_len: u32) -> Result<OracleIp, Reject> {
    let Headers { key, ip_bytes } = dissect(LinkType(link), frame, wire_len)?;
    let (source, destination, source_port, destination_port, protocol, tcp_flags, bits) = match key {
        Key::V4(key) => (
            IpAddr::V4(Ipv4Addr::from(key.source)),
            IpAddr::V4(Ipv4Addr::from(key.destination)),
            key.source_port,
            key.destination_port,
            key.protocol,
            key.tcp_flags,
            key.bits,
        ),
        Key::V6(key) => (
            IpAddr::V6(Ipv6Addr::from(join(key.source))),
            IpAddr::V6(Ipv6Addr::from(join(key.destination))),
            key.source_port,
            key.destination_port,
            key.protocol,
            key.tcp_flags,
            key.bits,
        ),
    };
    let has = |bit| bits.contains(bit);
    let fragments = [KeyBits::WHOLE, KeyBits::FIRST_FRAGMENT, KeyBits::LATER_FRAGMENT];
    assert_eq!(fragments.into_iter().filter(|&bit| has(bit)).count(), 1, "{bits:?}");
    // What does not say anything is 0.
    assert!(has(KeyBits::PORTS) || has(KeyBits::ICMP) || (source_port, destination_port) == (0, 0));
    assert!(has(KeyBits::TCP_FLAGS) || tcp_flags == 0);
    Ok(OracleIp {
        source,
        destination,
        dscp: dscp(LinkType(link), frame).map(Dscp::number).expect("what has a key has one"),
        protocol,
        ports: has(KeyBits::PORTS).then_some((source_port, destination_port)),
        icmp: has(KeyBits::ICMP).then_some((source_port as u8, destination_port as u8)),
        tcp_flags: has(KeyBits::TCP_FLAGS).then_some(tcp_flags),
        first_fragment: has(KeyBits::FIRST_FRAGMENT),
        later_fragment: has(KeyBits::LATER_FRAGMENT),
        identifier: None,
        quoted: None,
        bytes: ip_bytes,
        header: 0,
    })
}

fn oracle(link: u16, frame: &[u8], wire_len: u32) -> Result<OracleIp, Reject> {
    let packet = OraclePacket::new(7, LinkType(link), frame, wire_len);
    assert_eq!(packet.nanos, 7);
    if packet.ip.is_ok() {
        assert_eq!(packet.other_framing, !is_basic(LinkType(link), frame));
    }
    // What only connections and names ask about is compared there.
    packet.ip.map(|ip| OracleIp { identifier: None, quoted: None, header: 0, ..ip })
}

/// What stands between the link header and IP.
#[derive(Clone, Debug)]
enum Middle {
    None,
    /// Labels, then the packet as it is.
    Mpls(u16, usize),
    /// The PPP protocol.
    Pppoe(u16),
    /// Headers from the innermost to the outermost.
    Framings((&'static str, Wrap4Or6), Vec<(&'static str, Wrap)>),
}

/// A packet on some link.
#[derive(Clone, Debug)]
struct OnLink {
    link: u16,
    /// Which of the headers of that link type.
    header: usize,
    vlans: Vec<u16>,
    middle: Middle,
    /// An EtherType instead of the right one.
    other: Option<u16>,
    /// The address family of loopback headers, and whether it is little-endian.
    family: (u32, bool),
    packet: Packet,
}

/// One of the headers of a link type that is among [`LINKS`].
fn of_link(link: u16, number: usize) -> Option<framings::OnLink> {
    let of_type: Vec<_> = LINKS.iter().filter(|(_, other, _)| *other == link).collect();
    (!of_type.is_empty()).then(|| of_type[number % of_type.len()].2)
}

const RAW: [u16; 5] = [12, 14, 101, 228, 229];

impl OnLink {
    /// The frame, and the bytes before the IP header.
    fn frame(&self) -> (Vec<u8>, usize) {
        let packet = self.packet.bytes();
        let ip = if packet[0] >> 4 == 4 { 0x0800u16 } else { 0x86dd };
        // The EtherType of each layer stands in the layer before it.
        let (last, mut rest) = match &self.middle {
            &Middle::Framings((_, innermost), ref outer) => {
                let version = packet[0] >> 4;
                outer
                    .iter()
                    .fold(innermost(version, &packet), |(ethertype, rest), (_, wrap)| wrap(ethertype, &rest))
            }
            Middle::None => (self.other.unwrap_or(ip), packet.clone()),
            &Middle::Mpls(ethertype, labels) => {
                let mut stack = Vec::new();
                for label in 1..=labels {
                    stack.extend([0, label as u8, if label == labels { 0xf1 } else { 0xf0 }, 64]);
                }
                (ethertype, [stack, packet.clone()].concat())
            }
            &Middle::Pppoe(ppp) => {
                let mut session = vec![0x11, 0, 0, 1];
                session.extend((packet.len() as u16 + 2).to_be_bytes());
                session.extend(ppp.to_be_bytes());
                (0x8864, [session, packet.clone()].concat())
            }
        };
        let mut ethertype = last;
        for &tpid in self.vlans.iter().rev() {
            let tag = [[0, 1], ethertype.to_be_bytes()].concat();
            (ethertype, rest) = (tpid, [tag, rest].concat());
        }
        if [113, 276].contains(&self.link) && ethertype < 0x600 && matches!(self.middle, Middle::Framings(..))
        {
            ethertype = 4;
        }
        let frame = match self.link {
            1 => ethernet(ethertype, &rest),
            113 => [vec![0; 14], ethertype.to_be_bytes().to_vec(), rest].concat(),
            276 => [ethertype.to_be_bytes().to_vec(), vec![0; 18], rest].concat(),
            0 | 108 => {
                let (family, little) = self.family;
                let family = if little { family.to_le_bytes() } else { family.to_be_bytes() };
                [family.to_vec(), packet.clone()].concat()
            }
            link => match of_link(link, self.header) {
                Some(put) if has_packets_alone(link) => put(Behind { ethertype: ip, rest: &packet }),
                Some(put) => put(Behind { ethertype, rest: &rest }),
                None => packet.clone(),
            },
        };
        let before = frame.len() - packet.len();
        (frame, before)
    }

    /// Why there is no IP packet to be found, where there is none.
    fn reject(&self) -> Option<Reject> {
        let (family, little) = self.family;
        match self.link {
            0 | 108 => match family {
                _ if self.link == 108 && little => Some(Reject::UnknownFraming),
                2 | 10 | 24 | 28 | 30 => None,
                7 => Some(Reject::NotIp),
                _ => Some(Reject::UnknownFraming),
            },
            link if RAW.contains(&link) || has_packets_alone(link) => None,
            link if [1, 113, 276].contains(&link) || of_link(link, 0).is_some() => {
                match (&self.middle, self.other) {
                    (Middle::None, Some(_)) | (Middle::Pppoe(0xc021), _) if self.may_be_numbered() => {
                        Some(Reject::UnknownFraming)
                    }
                    (Middle::None, Some(0x0806 | 0x88cc)) => Some(Reject::NotIp),
                    (Middle::None, Some(_)) => Some(Reject::UnknownFraming),
                    (Middle::Pppoe(0xc021), _) => Some(Reject::NotIp),
                    _ => None,
                }
            }
            65_535 => Some(Reject::UndefinedInterface),
            _ => Some(Reject::LinkType),
        }
    }
}

impl OnLink {
    /// Whether a frame of Frame Relay may have a control field of two bytes in place of an EtherType.
    fn may_be_numbered(&self) -> bool {
        self.link == 107 && self.frame().0[2] != 3
    }

    /// Whether a pseudowire's channel may as well be the address of an Ethernet frame, whose EtherType is the beginning of the packet's source
    /// address then: one that may lead to IP.
    fn has_another_reading(&self) -> bool {
        const WALKED: [u16; 24] = [
            0x0800, 0x86dd, 0x8847, 0x8848, 0x8864, 0x8100, 0x88a8, 0x9100, 0x9200, 0x9300, 0x8870, 0x8926,
            0x893f, 0x88e7, 0xdada, 0x8909, 0x6558, 0x892f, 0x22f3, 0x8903, 0x894f, 0x88e5, 0x8906, 0x809b,
        ];
        // LLC behind a pseudowire without a control word: with the first bytes of IP it may look like the length and the LLC of an Ethernet
        // header behind a control word.
        if let Middle::Framings(("LLC", _), around) = &self.middle
            && around.first().is_some_and(|(name, _)| *name == "no control word")
            && self.packet.bytes().get(1).is_some_and(|byte| [0xaa, 0xab, 0x06, 0x07].contains(byte))
        {
            return true;
        }
        let Middle::Framings(("channel", _), _) = self.middle else { return false };
        let IpAddr::V6(source) = self.packet.source else { return false };
        let first = source.segments()[0];
        first < 0x0600 || WALKED.contains(&first)
    }
}

/// What was put into a packet.
fn intended(packet: &Packet) -> OracleIp {
    let (mut ports, mut icmp, mut tcp_flags) = (None, None, None);
    let later_fragment = matches!(packet.fragment, Fragment::Later(..));
    match packet.transport {
        _ if later_fragment => {}
        Transport::Tcp(source, destination, flags) => {
            (ports, tcp_flags) = (Some((source, destination)), Some(flags))
        }
        Transport::Udp(source, destination) | Transport::Sctp(source, destination) => {
            ports = Some((source, destination))
        }
        Transport::Icmp(kind, code) | Transport::Icmpv6(kind, code) => icmp = Some((kind, code)),
        Transport::Other(_) => {}
    }
    OracleIp {
        source: packet.source,
        destination: packet.destination,
        dscp: packet.class / 4,
        protocol: packet.transport.protocol(),
        ports,
        icmp,
        tcp_flags,
        first_fragment: packet.fragment == Fragment::First,
        later_fragment,
        identifier: None,
        quoted: None,
        bytes: packet.bytes().len() as u32,
        header: 0,
    }
}

fn packet() -> impl Strategy<Value = Packet> {
    let transport = (any::<(u16, u16, u8, u8)>(), 0..7u8).prop_map(|((a, b, x, y), kind)| match kind {
        0 | 1 => Transport::Tcp(a, b, x),
        2 => Transport::Udp(a, b),
        3 => Transport::Sctp(a, b),
        4 => Transport::Icmp(x, y),
        5 => Transport::Icmpv6(x, y),
        // GRE, ESP, IPv6 in IP: neither has ports nor is walked.
        _ => Transport::Other([47, 50, 41][usize::from(x) % 3]),
    });
    let fragment = prop_oneof![
        3 => Just(Fragment::Whole),
        1 => Just(Fragment::First),
        1 => (1..0x1fffu16, any::<bool>()).prop_map(|(offset, more)| Fragment::Later(offset, more)),
    ];
    let addresses = prop_oneof![
        any::<[u32; 2]>().prop_map(|pair| pair.map(|address| IpAddr::V4(address.into()))),
        any::<[u128; 2]>().prop_map(|pair| pair.map(|address| IpAddr::V6(address.into()))),
    ];
    let numbers = prop::sample::select(vec![0, 43, 60, 135, 139, 140, 51]);
    let options = prop_oneof![2 => Just(Vec::new()), 1 => prop::collection::vec((numbers, 0..3u8), 0..10)];
    (addresses, transport, fragment, options, 0..60usize, any::<u8>()).prop_map(
        |([source, destination], transport, fragment, options, payload, class)| Packet {
            source,
            destination,
            transport,
            fragment,
            options,
            payload,
            class,
        },
    )
}

/// Some headers, of which one at most has two readings; no more than are stepped over.
fn framings() -> impl Strategy<Value = Middle> {
    let sure = || prop::collection::vec(prop::sample::select(SURE), 0..3);
    let guess = prop::option::of(prop::sample::select(GUESSED));
    prop_oneof![
        3 => (prop::sample::select(INNERMOST), sure(), guess, sure()).prop_map(|(innermost, inner, guess, outer)| {
            Middle::Framings(innermost, [inner, guess.into_iter().collect(), outer].concat())
        }),
        1 => (prop::sample::select(INNERMOST_GUESSED), sure())
            .prop_map(|(innermost, outer)| Middle::Framings(innermost, outer)),
    ]
}

fn on_link() -> impl Strategy<Value = OnLink> {
    let others = [1, 1, 1, 113, 276, 0, 108, 12, 14, 101, 228, 229, 147, 163, 65_535];
    let link =
        prop::sample::select(others.into_iter().chain(LINKS.iter().map(|link| link.1)).collect::<Vec<_>>());
    let vlans = prop::collection::vec(prop::sample::select(vec![0x8100, 0x88a8, 0x9100, 0x9200]), 0..3);
    let middle = prop_oneof![
        4 => Just(Middle::None),
        1 => (prop::sample::select(vec![0x8847, 0x8848]), 1..4usize).prop_map(|(tpid, labels)| Middle::Mpls(tpid, labels)),
        1 => prop::sample::select(vec![0x0021, 0x0057, 0xc021]).prop_map(Middle::Pppoe),
        6 => framings(),
    ];
    // ARP, a length, LLDP.
    let other =
        prop_oneof![8 => Just(None), 1 => prop::sample::select(vec![0x0806, 46, 0x88cc]).prop_map(Some)];
    let family = (prop::sample::select(vec![2, 10, 24, 28, 30, 2, 7, 0x0200]), any::<bool>());
    (link, 0..8usize, vlans, middle, other, family, packet()).prop_map(
        |(link, header, vlans, middle, other, family, packet)| OnLink {
            link,
            header,
            vlans,
            middle,
            other,
            family,
            packet,
        },
    )
}

/// What becomes of a frame on its way.
#[derive(Clone, Debug)]
enum Damage {
    /// Only the first bytes were captured.
    Cut(prop::sample::Index),
    /// A byte with other bits: anywhere.
    Flip(prop::sample::Index, u8),
    /// A byte before the IP header, set to a value that means something.
    SetLink(prop::sample::Index, u8),
    /// A byte of the IP header or of what follows it, set to a value that means something.
    Set(usize, u8),
}

fn damage() -> impl Strategy<Value = Vec<Damage>> {
    let one = prop_oneof![
        any::<prop::sample::Index>().prop_map(Damage::Cut),
        (any::<prop::sample::Index>(), 1..=u8::MAX).prop_map(|(at, bits)| Damage::Flip(at, bits)),
        (
            any::<prop::sample::Index>(),
            prop::sample::select(vec![
                0, 1, 2, 3, 4, 5, 6, 7, 8, 0x10, 0x21, 0x45, 0x47, 0x57, 0x60, 0x81, 0x86, 0x88, 0x89, 0xaa,
                0xdd, 0xff
            ])
        )
            .prop_map(|(at, value)| Damage::SetLink(at, value)),
        (
            0..80usize,
            prop::sample::select(vec![0, 1, 3, 4, 6, 7, 17, 20, 40, 44, 0x40, 0x45, 0x4f, 0x60, 0xff])
        )
            .prop_map(|(at, value)| Damage::Set(at, value)),
    ];
    prop::collection::vec(one, 0..5)
}

/// An EtherType or a few bytes that stand in headers.
fn piece() -> impl Strategy<Value = Vec<u8>> {
    let ethertypes = vec![
        0x0800, 0x86dd, 0x8100, 0x88a8, 0x9300, 0x8847, 0x8864, 0x8870, 0x8926, 0x893f, 0x88e7, 0xdada,
        0x8909, 0x6558, 0x892f, 0x22f3, 0x8903, 0x894f, 0x88e5, 0x0806, 0x8906, 0x809b, 60, 0x05ff,
    ];
    let bytes: Vec<&[u8]> = vec![
        &[0, 1],
        &[0, 0, 0, 0],
        &[0, 1, 0, 2, 0, 3],
        &[0, 0, 0x40, 0, 0, 1],
        &[1, 1, 0, 1, 0, 7],
        &[0xaa, 0xaa, 3, 0, 0, 0],
        &[0xaa, 0xaa, 3, 0, 0, 0xf8],
        &[0xaa, 0xaa, 3, 0, 0x80, 0xc2, 0, 7],
        &[0xaa, 0xaa, 3, 0, 0, 12, 0x20, 0],
        &[6, 6, 3],
        &[0x42, 0x42, 3],
        &[0xfe, 0xfe, 3, 0x83],
        &[0xff, 0xff],
        &[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2],
        &[0x42, 0, 0, 0, 0, 1, 2, 0, 8, 0, 0x45, 2],
        &[1, 0, 12, 0, 0, 0, 2, 0, 0, 0, 0, 2],
        &[0x0f, 0xc2, 2, 1, 0, 0, 10, 255],
        &[0x0f, 0xc2, 2, 3, 0, 0, 10, 255],
        &[0x0f, 0xc2, 2, 4, 0, 0, 10, 255],
        &[0x0f, 0xc2, 2, 5, 0, 0, 10, 255],
        &[0, 1, 0x31, 64],
        &[0, 1, 0x20, 64],
        &[0x10, 0, 0, 0x21],
        &[0x10, 0, 0, 0x57],
        &[0x11, 0, 0, 1, 0, 9],
        &[0x21],
        &[0, 0x57],
        &[2, 0x81],
        &[0, 0x31, 0, 1],
        &[0xc0, 0x21, 8, 1, 0, 9, 0, 0x21],
        &[0xff, 3],
        &[3, 0xcc],
        &[3, 0, 0x80, 0, 0, 0],
        &[3, 0xcf],
    ];
    prop_oneof![
        3 => prop::sample::select(ethertypes).prop_map(|ethertype: u16| ethertype.to_be_bytes().to_vec()),
        2 => prop::sample::select(bytes).prop_map(<[u8]>::to_vec),
        1 => (prop::sample::select(SURE), packet()).prop_map(|((_, wrap), packet)| {
            let (ethertype, bytes) = wrap(0x0800, &packet.bytes()[..4]);
            [&ethertype.to_be_bytes()[..], &bytes[..bytes.len() - 4]].concat()
        }),
    ]
}

/// Bytes on the wire, from those captured.
fn wire_len() -> impl Strategy<Value = Option<i64>> {
    prop_oneof![
        2 => Just(Some(0)),
        1 => (-200..200i64).prop_map(Some),
        1 => (0..70_000i64).prop_map(Some),
        1 => Just(Some(i64::from(u32::MAX))),
        1 => Just(None),
    ]
}

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config(8_192))]

    #[test]
    fn whole_frames_say_what_was_put_into_them(frame in on_link()) {
        let (bytes, _) = frame.frame();
        let wire_len = bytes.len() as u32;
        let found = views(frame.link, &bytes, wire_len);
        prop_assert_eq!(&oracle(frame.link, &bytes, wire_len), &found);
        if frame.has_another_reading() && found == Err(Reject::UnknownFraming) {
            return Ok(());
        }
        prop_assert_eq!(found, frame.reject().map_or_else(|| Ok(intended(&frame.packet)), Err));
    }
}

proptest! {
    #![proptest_config(config(65_536))]

    #[test]
    fn damaged_frames_are_read_alike(frame in on_link(), damage in damage(), wire_len in wire_len()) {
        let (mut bytes, before) = frame.frame();
        let mut bytes_of_link = before.min(bytes.len());
        for damage in damage {
            bytes_of_link = bytes_of_link.min(bytes.len());
            match damage {
                Damage::SetLink(at, value) if bytes_of_link > 0 => {
                    let at = at.index(bytes_of_link);
                    bytes[at] = value;
                }
                Damage::Cut(at) => bytes.truncate(at.index(bytes.len() + 1)),
                Damage::Flip(at, bits) if !bytes.is_empty() => {
                    let at = at.index(bytes.len());
                    bytes[at] ^= bits;
                }
                Damage::Set(at, value) if before + at < bytes.len() => bytes[before + at] = value,
                _ => {}
            }
        }
        let wire_len = wire_len.map_or(0, |more| (bytes.len() as i64 + more).clamp(0, u32::MAX.into()) as u32);
        prop_assert_eq!(oracle(frame.link, &bytes, wire_len), views(frame.link, &bytes, wire_len));
    }

    #[test]
    fn any_bytes_are_read_alike(
        link in prop::sample::select(
            vec![0, 1, 9, 12, 14, 50, 51, 101, 104, 105, 107, 108, 113, 117, 119, 127, 228, 229, 239, 276, 147],
        ),
        bytes in prop::collection::vec(any::<u8>(), 0..100),
        wire_len: u32,
    ) {
        prop_assert_eq!(oracle(link, &bytes, wire_len), views(link, &bytes, wire_len));
    }

    /// Headers that mean something at any place, in any order: most frames go a long way.
    #[test]
    fn heaps_of_headers_are_read_alike(
        link in prop::sample::select(vec![1, 1, 1, 1, 113, 276, 9, 50, 51, 104, 105, 107]),
        pieces in prop::collection::vec(piece(), 1..24),
        packet in packet(),
        cut in prop::option::weighted(0.2, any::<prop::sample::Index>()),
    ) {
        let mut bytes = match link {
            1 => vec![2; 12],
            113 => vec![0; 14],
            104 => vec![0x0f, 0],
            105 => [&[0x08][..], &[0; 23]].concat(),
            107 => vec![0x18, 0x41],
            _ => vec![],
        };
        let mut pieces = pieces.concat();
        if link == 276 && pieces.len() >= 2 {
            bytes.extend(pieces.drain(..2));
            bytes.extend([0; 18]);
        }
        bytes.extend(pieces);
        bytes.extend(packet.bytes());
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len() + 1));
        }
        let wire_len = bytes.len() as u32;
        prop_assert_eq!(oracle(link, &bytes, wire_len), views(link, &bytes, wire_len));
    }
}

/// Every prefix of frames that have everything, with all three lengths on the wire.
#[test]
fn cut_frames_are_read_alike_at_every_byte() {
    let (v4, v6) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1]));
    let mut seen = std::collections::HashSet::new();
    for address in [v4, v6] {
        for fragment in [Fragment::Whole, Fragment::First, Fragment::Later(3, true)] {
            for transport in [
                Transport::Tcp(1, 2, 0x12),
                Transport::Icmp(8, 1),
                Transport::Udp(3, 4),
                Transport::Other(47),
            ] {
                let packet = Packet {
                    fragment,
                    options: vec![(0, 0), (51, 1), (60, 1)],
                    ..Packet::new(address, address, transport)
                };
                let framings =
                    SURE.iter().chain(GUESSED).map(|&outer| Middle::Framings(INNERMOST[0], vec![outer]));
                let innermost = INNERMOST.iter().chain(INNERMOST_GUESSED);
                let innermost = innermost.map(|&innermost| Middle::Framings(innermost, Vec::new()));
                for middle in [Middle::None, Middle::Mpls(0x8847, 2), Middle::Pppoe(0x21)]
                    .into_iter()
                    .chain(framings)
                    .chain(innermost)
                {
                    let others = [(1, 0), (113, 0), (276, 0), (0, 0), (101, 0)];
                    // All headers with the packet behind them, and one of each with all framings.
                    let all = if matches!(middle, Middle::None) { LINKS.len() } else { 0 };
                    let numbered = LINKS.iter().take(all).enumerate().map(|(number, link)| {
                        (link.1, LINKS[..number].iter().filter(|other| other.1 == link.1).count())
                    });
                    let some = [(9, 0), (104, 0), (105, 1), (107, 2)];
                    for (link, header) in others.into_iter().chain(some).chain(numbered) {
                        let frame = OnLink {
                            link,
                            header,
                            vlans: vec![0x88a8, 0x8100],
                            middle: middle.clone(),
                            other: None,
                            family: (2, true),
                            packet: packet.clone(),
                        };
                        let (bytes, before) = frame.frame();
                        for len in 0..=bytes.len() {
                            for wire_len in [bytes.len(), len, before] {
                                let found = views(link, &bytes[..len], wire_len as u32);
                                assert_eq!(
                                    oracle(link, &bytes[..len], wire_len as u32),
                                    found,
                                    "{frame:?} cut at {len}"
                                );
                                seen.extend(found.err());
                            }
                        }
                    }
                }
            }
        }
    }
    for reject in
        [Reject::LinkTruncated, Reject::IpTruncated, Reject::ExtensionChain, Reject::TransportTruncated]
    {
        assert!(seen.contains(&reject), "{reject:?}");
    }
}

/// A change to the bytes of a packet from its IP header on.
type Change = fn(&mut Vec<u8>);

/// Frames whose meaning is laid down: both parsers must find it, so that they are not wrong together.
#[test]
fn lengths_and_fragments_mean_what_the_standards_say() {
    let ip4 = |transport| Packet::new([10, 0, 0, 1].into(), [10, 0, 0, 2].into(), transport);
    let ip6 = |transport| Packet::new(Ipv6Addr::LOCALHOST.into(), Ipv6Addr::from(2).into(), transport);
    let tcp = Transport::Tcp(1, 2, 0x12);
    let bytes = |bytes| move |ip: &mut OracleIp| ip.bytes = bytes;
    let no_ports = |ip: &mut OracleIp| (ip.ports, ip.tcp_flags) = (None, None);
    type Expected = Result<Box<dyn Fn(&mut OracleIp)>, Reject>;
    let ok = |change: Box<dyn Fn(&mut OracleIp)>| -> Expected { Ok(change) };
    let cases: Vec<(&str, Packet, Change, u32, Expected)> = vec![
        ("as it is", ip4(tcp), |_| {}, 40, ok(Box::new(|_| {}))),
        (
            "a total length of 0: bytes on the wire",
            ip4(tcp),
            |p| p[2..4].fill(0),
            1_500,
            ok(Box::new(bytes(1_500))),
        ),
        (
            "a total length of 0, nothing on the wire",
            ip4(tcp),
            |p| p[2..4].fill(0),
            0,
            Err(Reject::TransportTruncated),
        ),
        (
            "a total length beyond the captured bytes",
            ip4(tcp),
            |p| p[2] = 4,
            40,
            ok(Box::new(bytes(40 + 1024))),
        ),
        ("a total length within the header", ip4(tcp), |p| p[3] = 19, 40, Err(Reject::IpMalformed)),
        ("a total length without ports", ip4(tcp), |p| p[3] = 23, 40, Err(Reject::TransportTruncated)),
        (
            "a total length with ports and no flags",
            ip4(tcp),
            |p| p[3] = 33,
            40,
            ok(Box::new(|ip| (ip.bytes, ip.tcp_flags) = (33, None))),
        ),
        ("flags just captured", ip4(tcp), |p| p.truncate(34), 40, ok(Box::new(|_| {}))),
        ("flags not captured", ip4(tcp), |p| p.truncate(33), 40, ok(Box::new(|ip| ip.tcp_flags = None))),
        ("ports not captured", ip4(tcp), |p| p.truncate(23), 40, Err(Reject::TransportTruncated)),
        ("a header of 16 bytes", ip4(tcp), |p| p[0] = 0x44, 40, Err(Reject::IpMalformed)),
        (
            "options that were not captured",
            ip4(tcp),
            |p| (p[0], _) = (0x4f, p.truncate(59)),
            40,
            Err(Reject::IpTruncated),
        ),
        ("version 5", ip4(tcp), |p| p[0] = 0x55, 40, Err(Reject::IpMalformed)),
        (
            "ICMP without its type",
            ip4(Transport::Icmp(8, 0)),
            |p| p.truncate(21),
            28,
            ok(Box::new(|ip| ip.icmp = None)),
        ),
        ("do not fragment", ip4(tcp), |p| p[6] = 0x40, 40, ok(Box::new(|_| {}))),
        ("a first fragment", ip4(tcp), |p| p[6] = 0x20, 40, ok(Box::new(|ip| ip.first_fragment = true))),
        (
            "the last fragment, at offset 8",
            ip4(tcp),
            |p| p[7] = 1,
            40,
            ok(Box::new(move |ip| (ip.later_fragment, _) = (true, no_ports(ip)))),
        ),
        (
            "a fragment at the highest offset, without a byte of its own",
            ip4(tcp),
            |p| {
                p.truncate(20);
                p[6..8].fill(0x3f);
            },
            40,
            ok(Box::new(move |ip| (ip.later_fragment, _) = (true, no_ports(ip)))),
        ),
        ("IPv6", ip6(tcp), |_| {}, 60, ok(Box::new(|_| {}))),
        (
            "a payload length of 0: bytes on the wire",
            ip6(tcp),
            |p| p[4..6].fill(0),
            9_000,
            ok(Box::new(bytes(9_000))),
        ),
        (
            "a payload length of 0, nothing on the wire",
            ip6(tcp),
            |p| p[4..6].fill(0),
            0,
            Err(Reject::TransportTruncated),
        ),
        ("a cut IPv6 header", ip6(tcp), |p| p.truncate(39), 60, Err(Reject::IpTruncated)),
        (
            "an atomic fragment is a whole packet",
            Packet { fragment: Fragment::First, ..ip6(tcp) },
            |p| p[43] = 0,
            68,
            ok(Box::new(|ip| ip.first_fragment = false)),
        ),
        (
            "the reserved bits of a fragment header",
            Packet { fragment: Fragment::First, ..ip6(tcp) },
            |p| (p[41], p[43]) = (0xff, 7),
            68,
            ok(Box::new(|_| {})),
        ),
        (
            "a later fragment of a chain that goes on",
            Packet { fragment: Fragment::Later(1, false), ..ip6(tcp) },
            |p| p[40] = 60,
            68,
            ok(Box::new(|ip| ip.protocol = 60)),
        ),
        (
            "a header that runs past the packet",
            Packet { options: vec![(60, 0)], ..ip6(tcp) },
            |p| p[41] = 9,
            68,
            Err(Reject::ExtensionChain),
        ),
        (
            "a header that runs past the IP length",
            Packet { options: vec![(60, 0)], ..ip6(tcp) },
            |p| p[5] = 7,
            68,
            Err(Reject::ExtensionChain),
        ),
        (
            "AH counts in units of 4",
            Packet { options: vec![(51, 4)], ..ip6(tcp) },
            |p| assert_eq!(p.len(), 40 + 24 + 20),
            84,
            ok(Box::new(|_| {})),
        ),
        ("AH in IPv4 is not walked", ip4(Transport::Other(51)), |_| {}, 24, ok(Box::new(|_| {}))),
        ("no next header", ip6(Transport::Other(59)), |_| {}, 44, ok(Box::new(|_| {}))),
    ];
    for (what, packet, change, wire_len, expected) in cases {
        let mut bytes = packet.bytes();
        change(&mut bytes);
        let expected = expected.map(|change| {
            let mut ip = intended(&packet);
            change(&mut ip);
            ip
        });
        assert_eq!(views(101, &bytes, wire_len), expected, "views: {what}");
        assert_eq!(oracle(101, &bytes, wire_len), expected, "oracle: {what}");
        // The same behind an Ethernet header, whose bytes are none of the packet's.
        let frame = packet.in_frame(&bytes);
        let wire_len = if wire_len == 0 { 0 } else { wire_len + 14 };
        assert_eq!(views(1, &frame, wire_len), expected, "views: {what}, Ethernet");
        assert_eq!(oracle(1, &frame, wire_len), expected, "oracle: {what}, Ethernet");
    }
}
