//! Random frames whose fields come from small pools, so that random filters find something in them.

use packetloom_packet::LinkType;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

/// A frame, as captured.
#[derive(Clone, Debug)]
pub(crate) struct RawFrame {
    pub(crate) link: LinkType,
    pub(crate) bytes: Vec<u8>,
    pub(crate) wire_len: u32,
}

pub(crate) const V4: [[u8; 4]; 8] = [
    [10, 1, 2, 3],
    [10, 1, 2, 77],
    [10, 1, 9, 9],
    [10, 200, 0, 1],
    [192, 168, 0, 1],
    [224, 0, 0, 5],
    [255, 255, 255, 255],
    [0, 0, 0, 0],
];
pub(crate) const V6: [u128; 6] = [
    0x2001_0db8_0000_0000_0000_0000_0000_0001,
    0x2001_0db8_0000_0000_0000_0000_0000_0002,
    0x2001_0db8_0001_0000_ffff_0000_0000_0001,
    0xff02_0000_0000_0000_0000_0000_0000_0001,
    0xfe80_0000_0000_0000_0211_22ff_fe33_4455,
    1,
];
pub(crate) const PORTS: [u16; 8] = [0, 22, 53, 80, 443, 1024, 8080, 65535];
pub(crate) const MACS: [[u8; 6]; 4] =
    [[0, 0x11, 0x22, 0x33, 0x44, 0x55], [0xff; 6], [1, 0, 0x5e, 0, 0, 5], [2, 0, 0, 0, 0, 1]];
/// Among them numbers of IPv6 extension headers.
pub(crate) const PROTOCOLS: [u8; 14] = [0, 1, 2, 6, 6, 6, 9, 17, 17, 50, 51, 58, 103, 132];

/// What an IP packet carries: a header of the protocol's form, mostly.
fn transport() -> impl Strategy<Value = (u8, Vec<u8>)> {
    let ports = (select(&PORTS[..]), select(&PORTS[..]));
    let flags = prop_oneof![select(&[0x02, 0x12, 0x10, 0x18, 0x04, 0x01][..]), any::<u8>()];
    (select(&PROTOCOLS[..]), ports, flags, 5_u8..8, any::<(u8, u8)>(), vec(any::<u8>(), 0..40)).prop_map(
        |(protocol, (source, destination), flags, words, (kind, code), rest)| {
            let mut bytes = Vec::new();
            match protocol {
                6 => {
                    bytes.extend(source.to_be_bytes());
                    bytes.extend(destination.to_be_bytes());
                    bytes.extend([1, 2, 3, 4, 5, 6, 7, 8, words << 4, flags, 0xff, 0xff, 9, 9, 0, 0]);
                    bytes.resize(usize::from(words) * 4, 1);
                }
                17 | 132 => {
                    bytes.extend(source.to_be_bytes());
                    bytes.extend(destination.to_be_bytes());
                    bytes.extend([0, 8, 0xab, 0xcd]);
                }
                1 | 58 => {
                    bytes.extend([[0, 3, 8, 11, 128, 135][usize::from(kind) % 6], code % 5, 0, 0, 0, 1, 0, 2])
                }
                _ => {}
            }
            bytes.extend(rest);
            (protocol, bytes)
        },
    )
}

fn ipv4() -> impl Strategy<Value = Vec<u8>> {
    // Offset and flags: mostly whole packets.
    let fragment = prop_oneof![6 => Just(0x4000_u16), 4 => Just(0), 1 => Just(0x2000), 1 => Just(0x2003), 1 => Just(0x0005)];
    let odd = prop_oneof![12 => Just(0_u8), 1 => Just(1), 1 => Just(2), 1 => Just(3), 1 => Just(4)];
    (transport(), select(&V4[..]), select(&V4[..]), fragment, 0_u8..3, odd, any::<u8>()).prop_map(
        |((protocol, payload), source, destination, fragment, options, odd, tos)| {
            let header = 20 + usize::from(options) * 4;
            let mut len = (header + payload.len()) as u16;
            let mut words = (header / 4) as u8;
            match odd {
                1 => len = 0,
                2 => len = header as u16 + 2,
                3 => words = 4,
                4 => len = 10,
                _ => {}
            }
            let mut bytes = vec![0x40 | words, tos];
            bytes.extend(len.to_be_bytes());
            bytes.extend([0x12, 0x34]);
            bytes.extend(fragment.to_be_bytes());
            bytes.extend([64, protocol, 0, 0]);
            bytes.extend(source);
            bytes.extend(destination);
            bytes.resize(header, 1);
            bytes.extend(payload);
            bytes
        },
    )
}

fn ipv6() -> impl Strategy<Value = Vec<u8>> {
    let chain = prop_oneof![8 => Just(0_u8), 1 => Just(1), 1 => Just(2), 1 => Just(3), 1 => Just(4), 1 => Just(5), 1 => Just(6)];
    (transport(), select(&V6[..]), select(&V6[..]), chain, prop::bool::weighted(0.05)).prop_map(
        |((protocol, payload), source, destination, chain, is_short)| {
            // Hop-by-hop options, fragment headers (first, later, atomic), both, one that claims too much, authentication.
            let extension = |next, len| [next, len, 1, 4, 0, 0, 0, 0];
            let fragment = |next, low| [next, 0, 0, low, 0, 0, 0, 9];
            let (first, extensions) = match chain {
                1 => (0, vec![extension(protocol, 0)]),
                2 => (44, vec![fragment(protocol, 1)]),
                3 => (44, vec![fragment(protocol, 9)]),
                4 => (44, vec![fragment(protocol, 0)]),
                5 => (0, vec![extension(44, 0), fragment(protocol, 1)]),
                6 => (60, vec![extension(protocol, 200)]),
                _ => (protocol, vec![]),
            };
            let rest: Vec<u8> = extensions.concat().into_iter().chain(payload).collect();
            let len = if is_short { 2 } else { rest.len() as u16 };
            let mut bytes = vec![0x60, 0, 0, 0];
            bytes.extend(len.to_be_bytes());
            bytes.extend([first, 64]);
            bytes.extend(source.to_be_bytes());
            bytes.extend(destination.to_be_bytes());
            bytes.extend(rest);
            bytes
        },
    )
}

fn arp() -> impl Strategy<Value = Vec<u8>> {
    (select(&V4[..]), select(&V4[..]), 1_u8..3, any::<bool>()).prop_map(
        |(sender, target, operation, is_cut)| {
            let mut bytes = vec![0, 1, 8, 0, 6, 4, 0, operation, 2, 0, 0, 0, 0, 1];
            bytes.extend(sender);
            bytes.extend([0; 6]);
            bytes.extend(target);
            bytes.truncate(if is_cut { 22 } else { 28 });
            bytes
        },
    )
}

/// EtherType and what follows it.
fn payload() -> impl Strategy<Value = (u16, Vec<u8>)> {
    prop_oneof![
        8 => ipv4().prop_map(|bytes| (0x0800, bytes)),
        5 => ipv6().prop_map(|bytes| (0x86dd, bytes)),
        1 => arp().prop_map(|bytes| (0x0806, bytes)),
        1 => arp().prop_map(|bytes| (0x8035, bytes)),
        1 => (select(&[0x88cc, 0x9000, 0x0026, 0x05dc, 0x0600][..]), vec(any::<u8>(), 0..40)),
        1 => (select(&[0x0800, 0x86dd][..]), vec(any::<u8>(), 0..60)),
    ]
}

/// Ethernet frames without tags.
pub(crate) fn untagged() -> impl Strategy<Value = RawFrame> {
    frame(Just(vec![]).boxed(), Just(LinkType::ETHERNET).boxed())
}

/// Frames of several link types, some with VLAN tags.
pub(crate) fn any_frame() -> impl Strategy<Value = RawFrame> {
    let tag = (select(&[0x8100_u16, 0x88a8, 0x9100][..]), select(&[5_u16, 6, 0x6005, 4095][..]));
    let tags = prop_oneof![5 => Just(vec![]), 2 => vec(tag, 1..4)];
    let link = prop_oneof![
        6 => Just(LinkType::ETHERNET), 1 => Just(LinkType::SLL), 1 => Just(LinkType::SLL2), 1 => Just(LinkType::RAW)
    ];
    frame(tags.boxed(), link.boxed())
}

fn frame(
    tags: BoxedStrategy<Vec<(u16, u16)>>,
    link: BoxedStrategy<LinkType>,
) -> impl Strategy<Value = RawFrame> {
    let cut = prop_oneof![7 => Just(usize::MAX), 1 => 0_usize..70];
    (link, tags, payload(), select(&MACS[..]), select(&MACS[..]), 0_usize..7, cut, 0_u32..3).prop_map(
        |(link, tags, (ethertype, payload), destination, source, padding, cut, beyond)| {
            let types: Vec<_> = tags.iter().map(|&(kind, _)| kind).chain([ethertype]).collect();
            let first = types[0].to_be_bytes();
            let mut bytes = match link {
                LinkType::ETHERNET => [&destination[..], &source, &first].concat(),
                LinkType::SLL => [&[0; 14][..], &first].concat(),
                LinkType::SLL2 => [&first[..], &[0; 18]].concat(),
                _ => vec![],
            };
            if link != LinkType::RAW {
                for (at, &(_, information)) in tags.iter().enumerate() {
                    bytes.extend(information.to_be_bytes());
                    bytes.extend(types[at + 1].to_be_bytes());
                }
            }
            bytes.extend(payload);
            bytes.resize(bytes.len() + padding, 0);
            let wire_len = bytes.len() as u32 + beyond * 400;
            bytes.truncate(cut);
            RawFrame { link, bytes, wire_len }
        },
    )
}
