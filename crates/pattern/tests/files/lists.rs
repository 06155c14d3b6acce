//! Lists of literals as text and as hex digits.

use packetloom_pattern::files::{Error, Format, Options, Places, Reason, display};
use packetloom_pattern::{Patterns, Refused};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::{left_out, literals, read};

#[test]
fn each_line_is_a_pattern() {
    let text = b"\xef\xbb\xbf# a comment\nfirst\n\n   \n second \r\n\\x00\\xfF\\n\\r\\t\\0\\\\\n\\#5\na#b\n\xff\xfe\nlast";
    let expected: [&[u8]; 7] =
        [b"first", b" second ", b"\0\xff\n\r\t\0\\", b"#5", b"a#b", b"\xff\xfe", b"last"];
    assert_eq!(literals(Format::Lines, text), expected);
    let read = read(Format::Auto, text).unwrap();
    assert_eq!(read.format, Format::Lines);
    assert_eq!(read.signatures.iter().map(|s| s.line).collect::<Vec<_>>(), [2, 5, 6, 7, 8, 9, 10]);
    assert_eq!(read.signatures[0].name, "first");
    assert_eq!(read.signatures[5].name, r"\xff\xfe");
    assert_eq!(read.headers_not_checked, 0);
}

#[test]
fn lines_that_are_no_pattern_are_left_out_with_the_reason() {
    let long = "x".repeat(256);
    let text = format!("good\n\\q\na\\#\n\\x4\n\\x4g\nend\\\n{long}\n");
    let read = read(Format::Lines, text.as_bytes()).unwrap();
    assert_eq!(read.signatures.len(), 1);
    let escape = |escape: &str| Reason::Escape(escape.into());
    let reasons: Vec<_> = read.left_out.iter().map(|left| (left.line, left.reason.clone())).collect();
    assert_eq!(
        reasons,
        [
            (2, escape(r"\q")),
            (3, escape(r"\#")),
            (4, escape(r"\x")),
            (5, escape(r"\x4g")),
            (6, escape(r"\")),
            (7, Reason::Pattern(Refused::Long(256))),
        ]
    );
    assert_eq!(read.left_out[5].text, "x".repeat(80) + "...");
}

#[test]
fn hex_digits_are_pairs() {
    let text = b"4142\r\n# a comment\n 41 4243 # another\n\n  # a third\n00ff\n4\ngg\n4 1\n414\n";
    let read = read(Format::Hex, text).unwrap();
    let literals: Vec<_> = read.patterns.iter().map(|pattern| pattern.bytes).collect();
    assert_eq!(literals, [&b"AB"[..], b"ABC", b"\0\xff"]);
    assert_eq!(read.signatures.iter().map(|s| s.line).collect::<Vec<_>>(), [1, 3, 6]);
    let odd = "an odd number of hex digits; expected pairs".to_string();
    assert_eq!(
        left_out(&read),
        [(7, odd.clone()), (8, "g is not a hex digit".into()), (9, odd.clone()), (10, odd)]
    );
}

#[test]
fn a_literal_that_comes_twice_is_one_pattern() {
    let read = read(Format::Lines, b"same\nother\nsame\n").unwrap();
    assert_eq!((read.patterns.len(), read.signatures.len()), (2, 3));
    let mut matched = vec![9];
    read.matched(&[0, 0], Places::PAYLOAD, &mut matched, &mut Vec::new());
    assert_eq!(matched, [9, 0, 2]);
}

#[test]
fn digits_and_words_are_not_guessed_to_be_anything_else() {
    for text in [&b"4142\n"[..], b"alert\n", b"drop table x\n", b"alert (1)\n", b"alert(document.cookie);\n"]
    {
        assert_eq!(read(Format::Auto, text).unwrap().format, Format::Lines, "{text:?}");
    }
}

#[test]
fn a_file_without_a_pattern_is_an_error() {
    let error = read(Format::Lines, b"# only\n\n").unwrap_err();
    assert_eq!(error, Error::Nothing { format: Format::Lines, lines: 2 });
    assert_eq!(error.to_string(), "no patterns in 2 lines; expected a pattern a line");
    let error = read(Format::Hex, b"# x\nxyz\n4").unwrap_err();
    assert_eq!(
        error.to_string(),
        "line 2: x is not a hex digit; none of 2 patterns can be used; expected lines of hex digits"
    );
}

#[test]
fn names_of_formats() {
    for format in Format::ALL {
        assert_eq!(format.to_string().parse(), Ok(format));
    }
    let error = "json".parse::<Format>().unwrap_err();
    assert_eq!(
        error.to_string(),
        r#""json" is not a format of patterns; expected auto, lines, hex or rules"#
    );
    assert_eq!(
        Options::default(),
        Options { format: Format::Auto, by_fast_pattern: false, ignore_case: false, places: None }
    );
}

#[test]
fn shown_patterns_are_readable() {
    for (pattern, shown) in [
        (&b"GET /x#y"[..], "GET /x#y"),
        (b"#x", r"\#x"),
        (b" a b ", r"\x20a b\x20"),
        (b"a\\b\0\r\n\t", r"a\\b\0\r\n\t"),
        ("ü\u{202e}\u{feff}".as_bytes(), r"ü\xe2\x80\xae\xef\xbb\xbf"),
        (b"\xff\x1b[2J", r"\xff\x1b[2J"),
    ] {
        assert_eq!(display(pattern), shown);
    }
}

/// Bytes of all values, and those that mean something.
fn pattern() -> impl Strategy<Value = Vec<u8>> {
    let telling = prop::sample::select(&b"\\#x0 \t\r\nnF|\xef\xbb\xbf\xc3\xbc"[..]);
    vec(prop_oneof![any::<u8>(), telling], 1..=Patterns::MAX_LEN)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: packetloom_testing::amount(200, 4_000), ..Default::default() })]

    #[test]
    fn what_is_shown_reads_as_the_same(patterns in vec(pattern(), 1..6), is_crlf: bool) {
        let end = if is_crlf { "\r\n" } else { "\n" };
        let text: String = patterns.iter().map(|pattern| display(pattern) + end).collect();
        prop_assert_eq!(literals(Format::Lines, text.as_bytes()), patterns);
    }

    #[test]
    fn hex_digits_read_as_the_same(patterns in vec(pattern(), 1..6), is_upper: bool, blank in " ?") {
        let digits = |byte: &u8| if is_upper { format!("{byte:02X}{blank}") } else { format!("{byte:02x}{blank}") };
        let line = |pattern: &Vec<u8>| pattern.iter().map(digits).collect::<String>() + "\n";
        let text: String = patterns.iter().map(line).collect();
        prop_assert_eq!(literals(Format::Hex, text.as_bytes()), patterns);
    }

    /// Each line of a list is a comment, blank, a signature or left out.
    #[test]
    fn no_line_is_lost(text in vec(pattern(), 0..6), is_hex: bool) {
        let text = text.join(&b"\n"[..]);
        let format = if is_hex { Format::Hex } else { Format::Lines };
        let body = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&text);
        let is_said = |line: &[u8]| {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            let begin = if is_hex { line.trim_ascii() } else { line };
            !line.trim_ascii().is_empty() && !begin.starts_with(b"#")
        };
        let lines = body.split(|&byte| byte == b'\n').filter(|line| is_said(line)).count();
        let found = match read(format, &text) {
            Ok(read) => read.signatures.len() + read.left_out.len(),
            Err(Error::AllLeftOut { count, .. }) => count,
            Err(Error::Nothing { .. }) => 0,
        };
        prop_assert_eq!(found, lines);
    }
}
