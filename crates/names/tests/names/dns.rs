//! Questions of DNS messages.

use packetloom_names::{Name, NameKind, Outcome, Watch, for_each_question};
use proptest::prelude::*;

use crate::encode::{counted, dns, labels};
use crate::watch::{End, check_stream, udp, whole};

const A: u16 = 1;
const AAAA: u16 = 28;

/// The name and the type that a message has in a datagram to port 53.
fn question(message: &[u8]) -> Option<(String, Option<u16>)> {
    match udp(53, &[message]) {
        End::Found(Name { kind: NameKind::DnsQuery, text, query_type }) => Some((text.into(), query_type)),
        End::NoName => None,
        other => panic!("{other:?}"),
    }
}

/// The text of a name on the wire.
fn text(name: Vec<u8>) -> Option<String> {
    question(&dns(0x0100, &[(name, A)])).map(|(text, _)| text)
}

#[test]
fn first_questions_are_found() {
    let first = (labels(&[b"wWw", b"example", b"com"]), AAAA);
    let second = (labels(&[b"other"]), A);
    let expected = Some(("wWw.example.com".to_owned(), Some(AAAA)));
    assert_eq!(question(&dns(0x0100, std::slice::from_ref(&first))), expected);
    // A response, and a message with several questions.
    assert_eq!(question(&dns(0x8180, &[first.clone(), second])), expected);
    assert_eq!(question(&dns(0x8180, &[])), None);
    // What follows is not read.
    assert_eq!(question(&[dns(0x0100, &[first]), vec![0xff; 40]].concat()), expected);
}

/// All names of a payload; none where it is no message.
fn questions(payload: &[u8], is_segment: bool) -> Option<Vec<String>> {
    let mut found = Vec::new();
    for_each_question(payload, is_segment, |name| found.push(name.text.into())).then_some(found)
}

/// With the length before it that a message has on a stream.
fn on_stream(message: &[u8]) -> Vec<u8> {
    counted(2, message)
}

#[test]
fn all_questions_are_handed_out() {
    // The second name ends as the first, the third is the second.
    let names = [labels(&[b"a", b"example"]), b"\x01b\xc0\x0e".to_vec(), b"\xc0\x1b".to_vec()];
    let message = dns(0x0100, &names.map(|name| (name, A)));
    let expected = ["a.example", "b.example", "b.example"];
    assert_eq!(questions(&message, false).expect("a datagram"), expected);
    // Up to where it was cut.
    assert_eq!(questions(&message[..message.len() - 5], false).expect("a datagram"), expected[..2]);
    assert_eq!(questions(&message[..11], false).expect("a datagram"), [""; 0]);
    // Of many the first.
    let many: Vec<_> =
        (0..100).map(|number: u8| (labels(&[&[b'a' + number % 26, b'0' + number / 26]]), A)).collect();
    assert_eq!(questions(&dns(0, &many), false).expect("a datagram").len(), 32);
    // More than there are.
    let mut wrong = dns(0, &[(labels(&[b"a"]), A)]);
    wrong[4] = 0xff;
    assert_eq!(questions(&wrong, false).expect("a datagram"), ["a"]);
}

#[test]
fn segments_have_whole_messages() {
    let [a, b] = [b"a", b"b"].map(|name| on_stream(&dns(0x0100, &[(labels(&[name]), A)])));
    let both = [&a[..], &b].concat();
    assert_eq!(questions(&both, true).expect("messages"), ["a", "b"]);
    assert_eq!(
        questions(&[&both[..], &on_stream(&dns(0x8180, &[]))].concat(), true).expect("messages").len(),
        2
    );
    for wrong in
        [&both[..both.len() - 1], &both[1..], &both[2..], &[0, 0], &[0], b"", &[&both[..], &[0]].concat()]
    {
        assert_eq!(questions(wrong, true), None, "{wrong:?}");
    }
}

proptest! {
    #[test]
    fn any_questions_are_handed_out(messages in prop::collection::vec(prop::collection::vec("[a-z]{1,9}(\\.[a-z]{1,9}){0,3}", 0..9), 1..4)) {
        let wire = |name: &String| (labels(&name.split('.').map(str::as_bytes).collect::<Vec<_>>()), AAAA);
        let messages: Vec<_> =
            messages.iter().map(|names| (names, dns(0, &names.iter().map(wire).collect::<Vec<_>>()))).collect();
        for (names, message) in &messages {
            prop_assert_eq!(questions(message, false), Some((*names).clone()));
        }
        let stream: Vec<_> = messages.iter().flat_map(|(_, message)| on_stream(message)).collect();
        let all: Vec<_> = messages.iter().flat_map(|(names, _)| names.iter().cloned()).collect();
        prop_assert_eq!(questions(&stream, true), Some(all));
    }

    /// Any bytes: no panic.
    #[test]
    fn any_bytes_have_some(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        questions(&bytes, false);
        questions(&bytes, true);
    }
}

#[test]
fn ports_decide() {
    let message = dns(0, &[(labels(&[b"host", b"local"]), 12)]);
    let found = |source, destination| matches!(Watch::start_udp(source, destination, &message), Outcome::Found(name) if &*name.text == "host.local");
    assert!(found(50_000, 53) && found(53, 50_000) && found(5353, 5353) && found(50_000, 5353));
    assert!(!found(50_000, 5355) && !found(50_000, 443));
}

#[test]
fn odd_bytes_are_escaped() {
    for (label, expected) in [
        (&b"a b_-*/"[..], "a b_-*/"),
        (b"a.b", "a\\.b"),
        (b"a\\b", "a\\\\b"),
        (b"a\0\n\x7f", "a\\000\\010\\127"),
        (b"\xc3\xbc", "\u{fc}"),
        (b"\xc3", "\\195"),
        (b"x\xff\xc3y", "x\\255\\195y"),
        ("\u{202e}\u{85}".as_bytes(), "\\226\\128\\174\\194\\133"),
    ] {
        assert_eq!(text(labels(&[label, b"x"])), Some(format!("{expected}.x")), "{label:?}");
    }
    assert_eq!(text(labels(&[])), Some(".".to_owned()));
}

#[test]
fn names_have_255_bytes() {
    let long = [b'a'; 63];
    let longest = labels(&[&long, &long, &long, &long[..61]]);
    assert_eq!(longest.len(), 255);
    assert_eq!(text(longest).map(|text| text.len()), Some(253));
    assert_eq!(text(labels(&[&long, &long, &long, &long[..62]])), None);
    assert_eq!(text(b"\x40aaaa\0".to_vec()), None);
}

#[test]
fn pointers_lead_back_only() {
    // To the number of questions, whose high byte is 0, and to its low byte: a label of one byte, then the end.
    assert_eq!(text(b"\x01a\xc0\x04".to_vec()), Some("a".to_owned()));
    assert_eq!(text(b"\x01a\xc0\x05".to_vec()), Some("a.\\000".to_owned()));
    assert_eq!(question(&dns(0, &[(b"\xc0\x04".to_vec(), AAAA)])), Some((".".to_owned(), Some(AAAA))));
    // To itself, to its own name, forward, out of the message, cut off.
    for name in [&b"\xc0\x0c"[..], b"\x01a\xc0\x0c", b"\x01a\xc0\x0e", b"\xc0\x10", b"\xff\xff", b"\x01a\xc0"]
    {
        assert_eq!(text(name.to_vec()), None, "{name:?}");
    }
    // In a circle through the header: the identifier points to the flags, they back.
    let mut message = dns(0xc000, &[(b"\xc0\x02".to_vec(), A)]);
    message[..2].copy_from_slice(&[0xc0, 2]);
    assert_eq!(question(&message), None);
}

#[test]
fn what_is_cut_off_has_the_whole_name_or_none() {
    let message = dns(0x0100, &[(labels(&[b"example", b"com"]), A)]);
    let name = "example.com".to_owned();
    for len in 0..message.len() {
        let expected = match message.len() - len {
            5.. => None,
            3..=4 => Some((name.clone(), None)),
            _ => Some((name.clone(), Some(A))),
        };
        assert_eq!(question(&message[..len]), expected, "{len}");
    }
}

#[test]
fn streams_have_messages_behind_their_lengths() {
    let message = dns(0x8180, &[(labels(&[b"example", b"com"]), A), (labels(&[b"other"]), A)]);
    let stream = [counted(2, &message), counted(2, &dns(0, &[(labels(&[b"next"]), A)]))].concat();
    check_stream(53, &stream, NameKind::DnsQuery, "example.com");
    let End::Found(name) = whole(53, &stream) else { panic!() };
    assert_eq!(name.query_type, Some(A));
    // The message ends with the name: what follows is not its type.
    let short = [counted(2, &message[..12 + 13]), vec![9; 9]].concat();
    let End::Found(name) = whole(53, &short) else { panic!() };
    assert_eq!((&*name.text, name.query_type), ("example.com", None));
    // It ends before.
    assert_eq!(whole(53, &[counted(2, &message[..12 + 12]), vec![0; 9]].concat()), End::NoName);
    assert_eq!(whole(53, &counted(2, &dns(0x8180, &[]))), End::NoName);
    assert_eq!(whole(5354, &stream), End::NoName);
}
