//! What both formats have in common: lines, comments, recognition by content, and what no line may be.

use std::io::{self, BufReader, Read};

use packetloom_classify::formats::{Error, Format, Options, read_headers, read_rules};

use super::{headers, rules};

#[test]
fn comments_and_blank_lines_count_for_lines_but_not_for_positions() {
    let text =
        "# a comment\n\npermit any from any to any # the rest\n \t \n   #\n\n\tdeny any from any to any";
    let lines: Vec<_> = rules(text).unwrap().rules.iter().map(|rule| rule.line).collect();
    assert_eq!(lines, [3, 7]);

    let text = "\n# filters\n@0.0.0.0/0 0.0.0.0/0 0 : 1 0 : 1 0x00/0x00\n#\n@0.0.0.0/0 0.0.0.0/0 0 : 1 0 : 1 0x00/0x00 # x\n";
    let lines: Vec<_> = rules(text).unwrap().rules.iter().map(|rule| rule.line).collect();
    assert_eq!(lines, [3, 5]);

    let text = "# headers\n\ngre 10.0.0.1 > 10.0.0.2\n\ngre 10.0.0.1 > 10.0.0.2 # again\nnonsense\n";
    assert_eq!(
        headers(text).unwrap_err(),
        "f:6: protocol \"nonsense\"; expected a name such as tcp, or a number from 0 to 255"
    );
}

#[test]
fn files_without_a_line_hold_nothing() {
    for text in ["", "\n", "\n\n\n", "# only a comment", "  \t \r\n#\n"] {
        assert_eq!(rules(text).unwrap().rules, [], "{text:?}");
        assert!(headers(text).unwrap().is_empty(), "{text:?}");
    }
}

#[test]
fn lines_may_end_as_on_any_system_and_begin_with_blanks() {
    let plain = rules("permit tcp from any to any\ndeny any from any to any\n").unwrap();
    for text in [
        "permit tcp from any to any\r\ndeny any from any to any\r\n",
        "permit tcp from any to any\ndeny any from any to any",
        "  permit\ttcp  from any   to any \n\t deny any from any to any\t\n",
    ] {
        assert_eq!(rules(text).unwrap(), plain, "{text:?}");
    }
}

const FILTER: &str = "@10.0.0.0/8 0.0.0.0/0 0 : 65535 53 : 53 0x11/0xff";
const RULE: &str = "permit any from any to any";
const TRACE: &str = "1 2 3 4 6";
const HEADER: &str = "udp 10.0.0.1:1 > 10.0.0.2:2";

#[test]
fn the_first_line_decides_the_format() {
    assert!(rules(FILTER).unwrap().rules[0].action.is_none());
    assert!(rules(RULE).unwrap().rules[0].action.is_some());
    assert_eq!(headers(TRACE).unwrap().v4[0].protocol, 6);
    assert_eq!(headers(HEADER).unwrap().v4[0].protocol, 17);

    let filter = "expected @source/len destination/len low : high low : high protocol/mask [flags/mask]";
    let trace = "expected source destination source-port destination-port protocol [flags [filter]], \
                 or \"tcp 192.0.2.1:1 > 192.0.2.2:2\"";
    for (text, message) in [
        // A format that changes within a file.
        (format!("{RULE}\n{FILTER}"), "f:2: \"@10.0.0.0/8\"; expected permit, deny or reflect".to_owned()),
        (format!("{FILTER}\n\n{RULE}"), format!("f:3: \"permit\" begins without '@'; {filter}")),
        // Headers instead of rules.
        (TRACE.into(), "f:1: \"1\"; expected permit, deny or reflect".into()),
        (
            HEADER.into(),
            "f:1: it looks like headers of packets; expected rules; headers are what --headers of acl classify reads".into(),
        ),
    ] {
        assert_eq!(rules(&text).unwrap_err(), message, "{text}");
    }
    for (text, message) in [
        (
            format!("{TRACE}\n{HEADER}"),
            "f:2: source address \"udp\"; expected a number from 0 to 4294967295".to_owned(),
        ),
        (format!("{HEADER}\n7\n"), "f:2: the line ends; expected a source".into()),
        (
            format!("{HEADER}\nsix"),
            "f:2: protocol \"six\"; expected a name such as tcp, or a number from 0 to 255".into(),
        ),
        // Rules instead of headers.
        (RULE.into(), "f:1: source address \"permit\"; expected a number from 0 to 4294967295".into()),
        (FILTER.into(), "f:1: source address \"@10.0.0.0/8\"; expected a number from 0 to 4294967295".into()),
        ("1".into(), format!("f:1: the destination is missing; {trace}")),
    ] {
        assert_eq!(headers(&text).unwrap_err(), message, "{text}");
    }
}

#[test]
fn lines_have_a_limit() {
    let message = |line| format!("f:{line}: longer than 65536 bytes; expected one rule or header a line");
    // Padded to a length, the newline included.
    let padded = |len: usize| format!("{RULE}{}\n", " ".repeat(len - 1 - RULE.len()));
    assert_eq!(rules(padded(65_536)).unwrap().rules.len(), 1);
    assert_eq!(rules(padded(65_537)).unwrap_err(), message(1));
    // Comments are no way around it, nor is a line that never ends.
    assert_eq!(rules(format!("\n\n{RULE}#{}", "x".repeat(65_536))).unwrap_err(), message(3));
    assert_eq!(headers(format!("{HEADER}\n{}", "0".repeat(1 << 20))).unwrap_err(), message(2));
    // The file as a whole has none.
    assert_eq!(rules(padded(60_000).repeat(20)).unwrap().rules.len(), 20);
}

#[test]
fn text_is_utf8() {
    let bad = b"permit any from any to any\n# \xff\n";
    assert_eq!(rules(bad).unwrap_err(), "f:2: not UTF-8 text; expected rules or headers");
    assert_eq!(headers(b"\x80").unwrap_err(), "f:1: not UTF-8 text; expected rules or headers");
    assert_eq!(
        rules("permit any from any to any id größe # ähnlich").unwrap().rules[0].id.as_deref(),
        Some("größe")
    );
}

/// A file whose reading fails after some text.
struct Broken<'a>(&'a [u8]);

impl Read for Broken<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.0.read(buffer)? {
            0 => Err(io::Error::other("the disk is gone")),
            read => Ok(read),
        }
    }
}

#[test]
fn a_failed_read_is_no_end_of_file() {
    let file = || BufReader::new(Broken(b"permit any from any to any\n"));
    let rules = read_rules("f", &mut file(), &Options::default());
    let error = rules.unwrap_err();
    assert!(matches!(error, Error::Io { .. }));
    assert_eq!(error.to_string(), "f: the disk is gone");
    let error = read_headers("f", &mut BufReader::new(Broken(b"1 2 3 4 6\n"))).unwrap_err();
    assert_eq!(error.to_string(), "f: the disk is gone");
}

#[test]
fn formats_have_names() {
    let names: Vec<_> = Format::all().map(Format::name).collect();
    assert_eq!(
        names,
        [
            "classbench",
            "cisco-ios",
            "vpp",
            "flowspec",
            "exabgp",
            "ip6tables",
            "iptables",
            "nftables",
            "native"
        ]
    );
    for format in Format::all() {
        assert_eq!(format.name().parse(), Ok(format));
        assert_eq!(format.to_string(), format.name());
    }
    let error = "ipfw".parse::<Format>().unwrap_err();
    assert!(error.starts_with("no format \"ipfw\"; expected one of classbench, cisco-ios, "), "{error}");
}

#[test]
fn lists_without_names_have_none() {
    let options = Options { list: Some("in".into()), ..Options::default() };
    for (text, format) in [(RULE, "native"), (FILTER, "classbench")] {
        let error = read_rules("f", &mut text.as_bytes(), &options).unwrap_err();
        let message =
            format!("f: list \"in\" of the format {format}, whose lists have no names; expected no name");
        assert_eq!(error.to_string(), message);
    }
}
