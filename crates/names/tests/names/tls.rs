//! Server names of TLS.

use packetloom_names::{GiveUp, NameKind, Outcome, Watch};

use crate::encode::{counted, extension, handshake, hello, hello_with, records, server_names};
use crate::watch::{CLIENT, End, check_stream, tcp, whole};

fn server(stream: &[u8]) -> Option<String> {
    match whole(443, stream) {
        End::Found(name) => {
            assert_eq!((name.kind, name.query_type), (NameKind::TlsServer, None));
            Some(name.text.into())
        }
        End::NoName => None,
        other => panic!("{other:?}"),
    }
}

fn of_extensions(extensions: &[Vec<u8>]) -> Option<String> {
    server(&records(&hello(b"", 1, extensions), 16_384))
}

#[test]
fn names_are_found_in_one_record_or_many() {
    let message = hello_with("www.example.com", 40);
    for len in [1, 2, 3, 5, 7, 100, 16_384] {
        assert_eq!(server(&records(&message, len)).as_deref(), Some("www.example.com"), "{len}");
    }
    // On any port, also on that of DNS.
    for port in [25, 53, 8443] {
        let end = whole(port, &records(&message, 16_384));
        assert_eq!(end.text(NameKind::TlsServer), Some("www.example.com"), "{port}");
    }
}

#[test]
fn names_of_hosts_are_taken() {
    let other = extension(16, b"\0\x03\x02h2");
    assert_eq!(of_extensions(&[other.clone(), server_names(&[(0, b"a.b")])]).as_deref(), Some("a.b"));
    assert_eq!(of_extensions(&[server_names(&[(1, b"x"), (0, b"a"), (0, b"b")])]).as_deref(), Some("a"));
    assert_eq!(of_extensions(&[server_names(&[(0, b"a\\\0\xff")])]).as_deref(), Some("a\\\\\\000\\255"));
    assert_eq!(of_extensions(&[]), None);
    assert_eq!(of_extensions(&[other]), None);
    assert_eq!(of_extensions(&[server_names(&[])]), None);
    assert_eq!(of_extensions(&[server_names(&[(1, b"x")])]), None);
    assert_eq!(of_extensions(&[server_names(&[(0, b"")])]), None);
    assert_eq!(of_extensions(&[extension(0, b"")]), None);
}

#[test]
fn lengths_that_contradict_each_other_give_no_name() {
    let list = |claimed: u16, entry: &[u8]| extension(0, &[&claimed.to_be_bytes()[..], entry].concat());
    let entry = b"\0\0\x03abc";
    assert_eq!(of_extensions(&[list(6, entry)]).as_deref(), Some("abc"));
    // Longer than the extension; shorter than the name.
    assert_eq!(of_extensions(&[list(7, entry)]), None);
    assert_eq!(of_extensions(&[list(5, entry)]), None);
    // An extension longer than all of them, the list longer than the message, a message without the list's length.
    let message = hello(b"", 1, &[list(6, entry)]);
    let with = |at: usize, byte: u8| {
        let mut message = message.clone();
        message[at] = byte;
        server(&records(&message, 16_384))
    };
    let extensions = message.len() - 12 - 2;
    assert_eq!(with(extensions + 1, 12).as_deref(), Some("abc"));
    assert_eq!(with(extensions + 1, 11), None);
    assert_eq!(with(extensions + 1, 13), None);
    assert_eq!(with(3, message[3] - 1), None);
    // Without extensions: nothing behind the message is one of it.
    let mut old = hello(b"", 1, &[]);
    old.truncate(old.len() - 2);
    old[3] -= 2;
    assert_eq!(server(&records(&[&old[..], &counted(2, &list(6, entry))].concat(), 16_384)), None);
}

#[test]
fn other_streams_end_at_once() {
    let message = hello_with("a", 0);
    let with = |header: &[u8]| [header, &message].concat();
    for stream in [
        with(&[23, 3, 1, 0, 200]),
        with(&[22, 2, 1, 0, 200]),
        with(&[22, 3, 5, 0, 200]),
        with(&[22, 3, 1, 0, 0]),
        with(&[22, 3, 1, 0x40, 1]),
        records(&handshake(2, &[0; 50]), 16_384),
        // An alert after the first record.
        [records(&message[..60], 60), vec![21, 3, 1, 0, 2, 1, 0]].concat(),
    ] {
        assert_eq!(whole(443, &stream), End::NoName, "{stream:?}");
    }
}

#[test]
fn each_byte_of_a_header_counts() {
    for (header, end) in
        [(&[22, 3, 1, 0][..], End::Open), (&[22, 2], End::NoName), (&[22, 3, 5], End::NoName)]
    {
        assert_eq!(whole(443, header), end);
        assert_eq!(tcp(443, None, 0, &[(0, &header[..1]), (1, &header[1..])]), end, "{header:?}");
    }
}

#[test]
fn streams_are_cut_anywhere() {
    check_stream(
        443,
        &records(&hello_with("www.example.com", 20), 16_384),
        NameKind::TlsServer,
        "www.example.com",
    );
    check_stream(
        443,
        &records(&hello_with("www.example.com", 20), 50),
        NameKind::TlsServer,
        "www.example.com",
    );
}

#[test]
fn hellos_of_post_quantum_size_are_cut_anywhere() {
    let stream = records(&hello_with("www.example.com", 1600), 16_384);
    check_stream(443, &stream, NameKind::TlsServer, "www.example.com");
}

#[test]
fn the_first_16_kib_count() {
    let stream = |padding: usize| records(&hello_with("a", padding), 1000);
    // Its end is not needed: an extension of seven bytes behind the name.
    let fits = (0..20_000).rev().find(|&padding| stream(padding).len() - 7 <= 16_384).expect("some");
    assert_eq!(server(&stream(fits)).as_deref(), Some("a"));
    assert_eq!(whole(443, &stream(fits + 1)), End::GaveUp(GiveUp::Length));
}

#[test]
fn early_segments_are_held_within_bounds() {
    let stream = records(&hello_with("a", 3000), 16_384);
    let segments: Vec<_> = stream.chunks(600).enumerate().map(|(at, bytes)| (at * 600, bytes)).collect();
    let [a, b, c, d, e, f] = segments[..] else { panic!("{}", segments.len()) };
    let ends = |segments: &[(usize, &[u8])]| tcp(443, Some(7), 7, segments);
    assert_eq!(ends(&[b, f, d, c, a, e]).text(NameKind::TlsServer), Some("a"));
    assert_eq!(ends(&[a, f, e, d, c, b]).text(NameKind::TlsServer), Some("a"));
    // Again, they take no more.
    assert_eq!(ends(&[c, d, c, e, d, f, f, a, b]).text(NameKind::TlsServer), Some("a"));
    // However many they are, they are one piece behind one gap.
    let pieces: Vec<_> = (0..1000).map(|at| (600 + at, &stream[600 + at..][..3])).collect();
    assert_eq!(ends(&pieces), End::Open);
    assert_eq!(ends(&[&pieces[..], &[a, c, d, e, f]].concat()).text(NameKind::TlsServer), Some("a"));
    // Four gaps, not five.
    let islands: Vec<_> = (1..=5).map(|at| (at * 600, &stream[at * 600..][..100])).collect();
    assert_eq!(ends(&islands[..4]), End::Open);
    assert_eq!(ends(&islands), End::GaveUp(GiveUp::Gap));
    assert_eq!(ends(&[&islands[..4], &[a, b, c, d, e, f]].concat()).text(NameKind::TlsServer), Some("a"));
    // More than 16 KiB behind the gap's beginning.
    assert_eq!(ends(&[(16_384, b"x")]), End::GaveUp(GiveUp::Gap));
    assert_eq!(ends(&[a, (600 + 16_384, b"x")]), End::GaveUp(GiveUp::Gap));
    assert_eq!(ends(&[a, (600 + 16_383, b"x")]), End::Open);
    // Of bytes that come twice, the first count.
    let other = (f.0, &[0xff; 139][..f.1.len()]);
    assert_eq!(ends(&[f, other, a, b, c, d, e]).text(NameKind::TlsServer), Some("a"));
    assert_eq!(ends(&[other, f, a, b, c, d, e]).text(NameKind::TlsServer), None);
}

#[test]
fn watches_without_bytes_take_nothing_on_the_heap() {
    let Outcome::More(watch) = Watch::start_tcp(CLIENT, 443, Some(1), 1, b"") else { panic!() };
    assert_eq!(watch.bytes(), size_of::<Watch>());
    // A probe whether the connection lives: the byte before the first.
    let Outcome::More(watch) = watch.next(0, b"\0") else { panic!() };
    assert_eq!(watch.bytes(), size_of::<Watch>());
    let stream = records(&hello_with("a", 3000), 16_384);
    let Outcome::More(watch) = watch.next(1, &stream[..2000]) else { panic!() };
    assert!((2000..4500).contains(&watch.bytes()), "{}", watch.bytes());
    assert!(matches!(watch.next(2001, &stream[2000..]), Outcome::Found(_)));
}
