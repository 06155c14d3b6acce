//! Random names in random messages that come in random pieces, and random bytes.

use packetloom_names::NameKind;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};

use crate::encode::{
    Initial, QUIC_DRAFT_29, QUIC_V1, QUIC_V2, counted, crypto, dns, extension, hello, labels, records,
    server_names,
};
use crate::watch::{End, Segment, tcp, udp, whole};

/// A stream in segments that have every byte, in an order and with repetitions that a watch has to stand: of every four that come, one
/// place at most is left out, and comes after them.
fn segments<'a>(
    stream: &'a [u8],
    cuts: &[Index],
    overlaps: &[(Index, Index)],
    swaps: &[bool],
) -> Vec<Segment<'a>> {
    let mut ends: Vec<_> = cuts.iter().map(|cut| cut.index(stream.len())).collect();
    ends.extend([0, stream.len()]);
    ends.sort_unstable();
    ends.dedup();
    let mut segments: Vec<_> = ends.windows(2).map(|ends| (ends[0], &stream[ends[0]..ends[1]])).collect();
    for (pair, &swap) in segments.chunks_mut(3).zip(swaps) {
        if swap {
            pair.rotate_left(1);
        }
    }
    // Any part of the stream that came already.
    for (begin, at) in overlaps {
        let at = at.index(segments.len());
        let begin = begin.index(stream.len());
        let end = segments[..at].iter().map(|(offset, bytes)| offset + bytes.len()).max().unwrap_or(0);
        if begin < end {
            segments.insert(at, (begin, &stream[begin..end]));
        }
    }
    segments
}

fn name() -> impl Strategy<Value = String> {
    "[a-z0-9-]{1,20}(\\.[a-z0-9-]{1,20}){0,3}"
}

/// A stream with a name of this kind, its port, and how many of its bytes have to be there.
fn stream() -> impl Strategy<Value = (u16, Vec<u8>, NameKind, String)> {
    let extensions = vec((1u16..60, vec(any::<u8>(), 0..300)), 0..8);
    let tls = (name(), vec(any::<u8>(), 0..33), 0..40usize, extensions, any::<Index>(), 1..2000usize)
        .prop_map(|(name, session, suites, extensions, at, len)| {
            let mut extensions: Vec<_> =
                extensions.iter().map(|(kind, body)| extension(*kind, body)).collect();
            extensions.insert(at.index(extensions.len() + 1), server_names(&[(0, name.as_bytes())]));
            (443, records(&hello(&session, suites, &extensions), len), NameKind::TlsServer, name)
        });
    let fields = vec(("[A-GI-Za-gi-z][a-z-]{0,20}", "[ -~]{0,100}"), 0..10);
    let http = ("[A-Z]{1,10}", "/[!-~]{0,60}", fields, any::<Index>(), name()).prop_map(
        |(method, target, fields, at, name)| {
            let mut lines: Vec<_> =
                fields.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
            lines.insert(at.index(lines.len() + 1), format!("Host: {name}\r\n"));
            let request = format!("{method} {target} HTTP/1.1\r\n{}\r\n", lines.concat());
            (80, request.into_bytes(), NameKind::HttpHost, name)
        },
    );
    let question = (name(), any::<u16>(), any::<u16>(), vec(any::<u8>(), 0..40));
    let dns = question.prop_map(|(name, kind, flags, rest)| {
        let labels = labels(&name.split('.').map(str::as_bytes).collect::<Vec<_>>());
        let message = [dns(flags, &[(labels, kind)]), rest].concat();
        (53, counted(2, &message), NameKind::DnsQuery, name)
    });
    prop_oneof![tls, http, dns]
}

/// What makes a watch look closer.
const BEGINNINGS: &[&[u8]] = &[
    b"",
    b"\x16\x03\x01",
    b"\x16\x03\x01\x02\x00\x01",
    b"GET / HTTP/1.1\r\n",
    b"HOST ",
    b"\xc0\0\0\0\x01\x08",
    b"\xd0\x6b\x33\x43\xcf\x08",
    b"\0\x40\x12\x34\0\0\0\x01",
];

proptest! {
    #![proptest_config(ProptestConfig { cases: packetloom_testing::amount(500, 20_000), ..Default::default() })]

    #[test]
    fn names_are_found_however_streams_are_cut(
        (port, stream, kind, name) in stream(),
        cuts in vec(any::<Index>(), 0..12),
        overlaps in vec(any::<(Index, Index)>(), 0..4),
        swaps in vec(any::<bool>(), 5),
        first in any::<u32>(),
        knows_begin in any::<bool>(),
    ) {
        let mut segments = segments(&stream, &cuts, &overlaps, &swaps);
        if !knows_begin {
            let at = segments.iter().position(|&(offset, _)| offset == 0).expect("one");
            segments.swap(0, at);
        }
        let end = tcp(port, knows_begin.then_some(first), first, &segments);
        prop_assert_eq!(end.text(kind), Some(&*name), "{:?}", end);
    }

    #[test]
    fn what_is_cut_off_has_no_other_name((port, stream, kind, name) in stream(), len in any::<Index>()) {
        let end = whole(port, &stream[..1 + len.index(stream.len())]);
        prop_assert!(matches!(end, End::Open) || end.text(kind) == Some(&*name), "{:?}", end);
        if kind == NameKind::DnsQuery {
            let end = udp(53, &[&stream[2..][..len.index(stream.len() - 1)]]);
            prop_assert!(matches!(end, End::NoName) || end.text(kind) == Some(&*name), "{:?}", end);
        }
    }

    #[test]
    fn names_are_found_however_hellos_are_scrambled(
        name in name(),
        padding in 0..2500usize,
        version in prop_oneof![Just(QUIC_V1), Just(QUIC_V2), Just(QUIC_DRAFT_29)],
        id in vec(any::<u8>(), 8..21),
        token in vec(any::<u8>(), 0..100),
        cuts in vec(any::<Index>(), 0..30),
        order in any::<u64>(),
        datagrams in 1..8usize,
        number_len in 1..5usize,
    ) {
        let names = server_names(&[(0, name.as_bytes())]);
        let message = hello(b"", 3, &[extension(51, &vec![0; padding]), names]);
        let mut ends: Vec<_> = cuts.iter().map(|cut| cut.index(message.len())).collect();
        ends.extend([0, message.len()]);
        ends.sort_unstable();
        ends.dedup();
        let mut frames: Vec<_> = ends.windows(2).map(|ends| crypto(&message, ends[0]..ends[1])).collect();
        frames.sort_by_key(|frame| {
            let sum = frame.iter().take(5).fold(order, |sum, &byte| (sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
            sum.rotate_left(20)
        });
        let parts: Vec<_> = frames.chunks(frames.len().div_ceil(datagrams)).map(<[_]>::concat).collect();
        let datagrams: Vec<_> = parts.iter().enumerate().map(|(number, frames)| {
            let number = number as u32;
            Initial { version, key_id: &id, destination: &id, token: &token, number, number_len }.datagram(frames)
        }).collect();
        let end = udp(443, &datagrams);
        prop_assert_eq!(end.text(NameKind::QuicServer), Some(&*name), "{:?}", end);
        // All but one of them, and one that is cut off.
        for missing in 0..datagrams.len() {
            let mut some = datagrams.clone();
            some[missing].pop();
            let end = udp(443, &some);
            let is_right = matches!(end, End::Open | End::NoName) || end.text(NameKind::QuicServer) == Some(&*name);
            prop_assert!(is_right, "{:?}", end);
        }
    }

    #[test]
    fn any_frames_end_somehow(
        datagrams in vec(vec((select(&[0u8, 1, 2, 3, 6, 6, 6, 6, 0x1c, 8][..]), vec(any::<u8>(), 0..20)), 0..40), 1..20)
    ) {
        let datagrams: Vec<_> = datagrams.iter().map(|frames| {
            let frames: Vec<_> = frames.iter().flat_map(|(kind, bytes)| [&[*kind][..], bytes].concat()).collect();
            Initial::FIRST.datagram(&frames)
        }).collect();
        // What is no hello: the first handshake message of it is of another type, or does not end.
        let end = udp(443, &datagrams);
        prop_assert!(!matches!(end, End::Found(_)), "{:?}", end);
    }

    #[test]
    fn any_bytes_end_somehow(
        port in prop_oneof![Just(53u16), Just(443)],
        beginning in select(BEGINNINGS),
        segments in vec((0..200u32, vec(any::<u8>(), 0..100)), 1..20),
        knows_begin in any::<bool>(),
    ) {
        let first = [beginning, &segments[0].1].concat();
        let mut segments: Vec<Segment> = segments.iter().map(|(offset, bytes)| (*offset as usize, &bytes[..])).collect();
        segments[0].1 = &first;
        let begin = knows_begin.then_some(0);
        tcp(port, begin, 0, &segments);
        // A stream in one piece, and byte by byte, tells the same.
        let stream: Vec<_> = segments.iter().flat_map(|&(_, bytes)| bytes).copied().collect();
        if port != 53 && !stream.is_empty() {
            let bytes: Vec<_> = stream.iter().enumerate().map(|(at, byte)| (at, std::slice::from_ref(byte))).collect();
            prop_assert_eq!(whole(port, &stream), tcp(port, None, 0, &bytes));
        }
        let datagrams: Vec<_> = segments.iter().map(|&(_, bytes)| bytes).collect();
        udp(port, &datagrams);
    }
}
