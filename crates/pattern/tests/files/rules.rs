//! Rules for Suricata and Snort.

use packetloom_pattern::files::{Error, Format, Options, Places, Signatures, read};
use packetloom_pattern::{Bounds, Pattern, Patterns};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::{left_out, literals};

const ANYWHERE: Bounds = Bounds::ANYWHERE;

/// Bytes, whether they ignore case, and where they may lie.
type Literal = (Vec<u8>, bool, Bounds);

/// A file that has a usable rule at its end whose literal is "the end".
fn rules(text: &str) -> Signatures {
    let text = format!("{text}\nalert ip any any -> any any (content:\"the end\"; sid:999;)\n");
    let read = crate::read(Format::Rules, text.as_bytes()).unwrap();
    assert_eq!(read.signatures.last().map(|s| s.id), Some(Some(999)));
    read
}

/// The patterns of a rule with these options: those that are needed, and those that are excluded.
fn contents(options: &str) -> (Vec<Literal>, Vec<Literal>) {
    let read = rules(&format!("alert tcp any any -> any any ({options} sid:1;)"));
    assert_eq!(read.left_out, [], "{options}");
    let [first, _] = &read.signatures[..] else { panic!("{options}") };
    assert_eq!(first.id, Some(1));
    let get = |&number: &u32| {
        let Pattern { bytes, ignore_case, bounds } = read.patterns.get(number);
        (bytes.to_vec(), ignore_case, bounds)
    };
    (first.needs.iter().map(get).collect(), first.excludes.iter().map(get).collect())
}

/// Why a rule with these options is left out.
fn reason(options: &str) -> String {
    let read = rules(&format!("alert tcp any any -> any any ({options} sid:1;)"));
    let [(1, reason)] = &left_out(&read)[..] else { panic!("{options}: {:?}", read.left_out) };
    assert_eq!(read.signatures.len(), 1);
    // Nothing of a rule that is left out is looked for.
    assert_eq!(read.patterns.len(), 1, "{options}");
    reason.clone()
}

fn needs(bytes: &[u8], ignore_case: bool, bounds: Bounds) -> (Vec<Literal>, Vec<Literal>) {
    (vec![(bytes.to_vec(), ignore_case, bounds)], vec![])
}

#[test]
fn what_a_rule_says_about_itself() {
    let read = rules(
        "# alert tcp any any -> any any (content:\"disabled\"; sid:1;)\n\
         alert tcp $EXTERNAL_NET any -> [10.0.0.0/8, !10.1.0.0/16] [80,443:445] (msg:\"A \\\"shell\\\"\\; twice\"; \
         content:\"/bin/sh\"; reference:url,example.org/a_(b)#c; reference:cve,2020-1; classtype:trojan-activity; \
         metadata:policy x drop, created_at 2020_01_01; target:src_ip; priority:2; gid:3; sid:4; rev:5;)",
    );
    assert_eq!(read.left_out, []);
    assert_eq!(read.headers_not_checked, 1);
    let rule = &read.signatures[0];
    assert_eq!((rule.line, rule.gid, rule.id, rule.revision), (2, Some(3), Some(4), Some(5)));
    assert_eq!((&rule.name[..], rule.severity), ("A \"shell\"; twice", Some(2)));
    assert_eq!(rule.category.as_deref(), Some("trojan-activity"));
    assert_eq!((&rule.needs[..], &rule.excludes[..]), (&[0][..], &[][..]));
    let last = &read.signatures[1];
    assert_eq!((last.gid, last.revision, &last.category, last.severity), (None, None, &None, None));
    assert_eq!(last.name, "alert ip any any -> any any (content:\"the end\"; sid:999;)");
}

#[test]
fn bytes_of_contents() {
    for (content, bytes) in [
        ("abc", &b"abc"[..]),
        ("a|42 43|d|0a0D|", b"aBCd\n\r"),
        (r#"\"\;\\\:"#, b"\";\\:"),
        ("a;b)c(#,!", b"a;b)c(#,!"),
        ("|22|;|3b 7C|", b"\";;|"),
        (" a b ", b" a b "),
        ("caf\u{e9}", "caf\u{e9}".as_bytes()),
    ] {
        assert_eq!(contents(&format!("content:\"{content}\";")), needs(bytes, false, ANYWHERE), "{content}");
    }
}

#[test]
fn modifiers_as_keywords_and_behind_commas() {
    let bounds = Bounds { offset: 3, depth: 10 };
    for options in [
        "content:\"abc\"; nocase; offset:3; depth:10; fast_pattern;",
        "content: \"abc\" ; depth : 10 ; offset: 3; nocase; rawbytes; fast_pattern:only;",
        "content:\"abc\"; fast_pattern:0,2; nocase; offset:3; depth:10;",
        "content:\"abc\",nocase,offset 3,depth 10,fast_pattern;",
        "content:\"abc\", fast_pattern, fast_pattern_offset 0, fast_pattern_length 2, nocase, depth 10, offset 3;",
    ] {
        assert_eq!(contents(options), needs(b"abc", true, bounds), "{options}");
    }
    let start = Bounds { offset: 0, depth: 3 };
    assert_eq!(contents("content:\"abc\"; startswith;"), needs(b"abc", false, start));
    assert_eq!(contents("content:\"abc\"; depth:3;"), needs(b"abc", false, start));
    assert_eq!(contents("content:\"123\"; nocase;"), needs(b"123", false, ANYWHERE));
}

#[test]
fn all_contents_are_needed_but_those_that_are_negated() {
    let (needed, excluded) = contents(
        "content:\"abc\"; content:!\"def\"; depth:9; content:!\"ghi\",nocase; content:\"ABC\"; nocase; content:\"abc\";",
    );
    assert_eq!(needed, [(b"abc".to_vec(), false, ANYWHERE), (b"ABC".to_vec(), true, ANYWHERE)]);
    let depth = Bounds { offset: 0, depth: 9 };
    assert_eq!(excluded, [(b"def".to_vec(), false, depth), (b"ghi".to_vec(), true, ANYWHERE)]);
}

#[test]
fn rules_share_patterns_that_are_the_same() {
    let read = rules(
        "alert tcp any any -> any any (content:\"abc\"; nocase; sid:1;)\n\
         alert tcp any any -> any any (content:\"AbC\"; nocase; content:\"abc\"; sid:2;)\n\
         alert tcp any any -> any any (content:\"abc\"; offset:0; sid:3;)\n\
         alert tcp any any -> any any (content:\"abc\"; offset:1; sid:4;)\n",
    );
    let needs: Vec<_> = read.signatures.iter().map(|s| s.needs.to_vec()).collect();
    assert_eq!(needs, [vec![0], vec![0, 1], vec![1], vec![2], vec![3]]);
}

#[test]
fn forms_of_headers() {
    let read = rules(
        "alert http ( content:\"1\"; sid:1; )\n\
         alert ( content:\"2\"; sid:2)\n\
         drop tcp any -> any 80 (content:\"3\"; sid:3;)\n\
         reject udp any any <> any any(content:\"4\";sid:4;)\n\
         alert http2 !$HOME_NET ![1, 2] -> any any (content:\"5\"; sid:5;)   # a comment\n\
         alert tcp ANY any -> any any (content:\"6\"; service:http; sid:6;)\r\n",
    );
    assert_eq!(read.left_out, []);
    assert_eq!(read.signatures.iter().filter_map(|s| s.id).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6, 999]);
    assert_eq!(read.headers_not_checked, 5);
}

#[test]
fn rules_are_told_from_lists_by_the_first_of_them() {
    for text in [
        "\n# alert\n alert tcp any any -> any any (content:\"a\";)",
        "alert http\n(\n  # x\n  content : \"a\";\n)",
        "pass ip any any <> any any (noalert; content:\"a\";)\nalert ip any any -> any any (content:\"a\";)",
    ] {
        assert_eq!(crate::read(Format::Auto, text.as_bytes()).unwrap().format, Format::Rules, "{text}");
        assert_eq!(crate::read(Format::Lines, text.as_bytes()).unwrap().format, Format::Lines, "{text}");
    }
}

#[test]
fn rules_of_several_lines() {
    let read = rules(
        "alert tcp any any -> \\\n  any any \\\r\n (content:\"a\\\nb\"; \\\n sid:1;)\n\
         alert http\n(\n    msg:\"two\";\n    # content:\"x\";\n\n    content:\"c\",\n        nocase;\n    metadata:policy a,\n\
         \x20       policy b;\n    sid:2;\n)\n# alert tcp any any -> any any (content:\"c\"; \\\n\
         alert tcp any any -> any any (content:\"d\"; sid:3;)",
    );
    assert_eq!(read.left_out, []);
    let all: Vec<_> = read.signatures.iter().map(|s| (s.line, s.id)).collect();
    assert_eq!(all, [(1, Some(1)), (6, Some(2)), (18, Some(3)), (19, Some(999))]);
    assert_eq!(
        read.patterns.iter().map(|p| p.bytes).collect::<Vec<_>>(),
        [&b"ab"[..], b"c", b"d", b"the end"]
    );
}

#[test]
fn rules_that_ask_for_more_are_left_out() {
    for (options, name) in [
        ("content:\"a\"; pcre:\"/a\\\"b;c)/i\";", "pcre"),
        ("flow:established,to_server; content:\"a\";", "flow"),
        ("content:\"a\"; content:\"b\"; distance:0; within:5;", "distance"),
        ("content:\"a\"; content:\"b\",within 5;", "within"),
        ("http.stat_code; content:\"a\";", "http.stat_code"),
        ("content:\"a\"; http_client_body;", "http_client_body"),
        ("http.uri:1; content:\"a\";", "http.uri"),
        ("content:\"a\"; endswith;", "endswith"),
        ("content:\"a\"; dsize:>100;", "dsize"),
        ("byte_extract:1,0,x; content:\"a\"; offset:x;", "byte_extract"),
        ("content:\"a\"; offset:x;", "offset with a variable"),
        ("content:\"a\",sid 5;", "sid"),
    ] {
        assert_eq!(reason(options), format!("it needs the option {name}"), "{options}");
    }
}

fn place(field: &str) -> Places {
    Places::field(field.as_bytes()).expect("a field")
}

/// What is read of one rule with these options, for a field.
fn in_field(field: Option<&'static str>, by_fast_pattern: bool, options: &str) -> Result<Literal, String> {
    let rule = format!(
        "alert tcp any any -> any any ({options} sid:1;)\nalert tcp any any -> any any ({}content:\"the end\"; sid:999;)",
        field.map_or(String::new(), |field| format!("{field}; "))
    );
    let place = field.map_or(Places::PAYLOAD, place);
    let options = Options { places: Some(place), by_fast_pattern, ..Options::default() };
    let read = read(rule.as_bytes(), &options).expect("a rule");
    if let [left_out] = &read.left_out[..] {
        assert_eq!(read.patterns.len(), 1, "nothing of it is looked for");
        return Err(left_out.reason.to_string());
    }
    assert_eq!((&read.signatures[0].needs[..], read.signatures.len()), (&[0][..], 2));
    assert_eq!((read.places_of(0), read.signatures[0].places), (place, place));
    let Pattern { bytes, ignore_case, bounds } = read.patterns.get(0);
    Ok((bytes.to_vec(), ignore_case, bounds))
}

#[test]
fn contents_in_fields_are_those_of_rules_that_name_them() {
    let bounds = Bounds { offset: 2, depth: 9 };
    let found = Ok((b"abc".to_vec(), true, bounds));
    for options in [
        "http.uri; content:\"abc\"; nocase; offset:2; depth:9;",
        "http_uri; content:\"abc\"; nocase; offset:2; depth:9;",
        "content:\"abc\"; http_uri; nocase; offset:2; depth:9;",
        "content:\"abc\"; nocase; offset:2; depth:9; http_uri;",
        "uricontent:\"abc\"; nocase; offset:2; depth:9;",
        "http_uri; content:\"abc\",nocase,offset 2,depth 9;",
        "flow:established,to_server; http.uri; content:\"abc\"; nocase; offset:2; depth:9;",
        "http.uri; content:\"abc\"; nocase; offset:2; depth:9; flow: from_client , established;",
    ] {
        assert_eq!(in_field(Some("http.uri"), false, options), found, "{options}");
    }
    for (field, options) in [
        ("http.uri.raw", "content:\"a\"; http_raw_uri;"),
        ("http.host", "http.host; content:\"a\";"),
        ("http.header", "content:\"a\"; http_header;"),
        ("dns.query", "dns_query; content:\"a\";"),
        ("tls.sni", "flow:to_server; tls_sni; content:\"a\";"),
        ("http.cookie", "http.uri; http.cookie; content:\"a\";"),
    ] {
        assert_eq!(in_field(Some(field), false, options), Ok((b"a".to_vec(), false, ANYWHERE)), "{options}");
    }
    assert_eq!(
        in_field(None, false, "http.uri; pkt_data; content:\"a\";"),
        Ok((b"a".to_vec(), false, ANYWHERE))
    );
    for (field, options, why) in [
        (None, "http.uri; content:\"a\";", "a content is in http.uri; expected it in the payload"),
        (
            None,
            "content:\"a\"; content:\"b\"; http_uri;",
            "a content is in http.uri; expected it in the payload",
        ),
        (Some("http.uri"), "content:\"a\";", "a content is in the payload; expected it in http.uri"),
        (Some("http.uri"), "http.host; content:\"a\";", "a content is in http.host; expected it in http.uri"),
        (
            Some("http.uri"),
            "http.method; content:\"GET\"; http.uri; content:\"a\";",
            "a content is in http.method; expected it in http.uri",
        ),
        (
            Some("http.uri"),
            "http.uri; content:\"a\"; pkt_data; content:!\"b\";",
            "a content is in the payload; expected it in http.uri",
        ),
        // Snort 3 has them in front of contents alone.
        (
            Some("http.uri"),
            "content:\"a\",nocase; http_uri;",
            "a content is in the payload; expected it in http.uri",
        ),
        (Some("http.uri"), "flow:to_client; http.uri; content:\"a\";", "it needs the option flow"),
        (Some("http.uri"), "http.uri; content:\"a\"; endswith;", "it needs the option endswith"),
        (Some("http.uri"), "file.data; content:\"a\";", "it needs the option file.data"),
        (None, "flow:established,to_server; content:\"a\";", "it needs the option flow"),
    ] {
        assert_eq!(in_field(field, false, options), Err(why.into()), "{options}");
    }
}

#[test]
fn contents_of_a_rule_lie_in_several_places() {
    let uri_and_payload = place("http.uri").and(Places::PAYLOAD);
    let read_for = |places, by_fast_pattern, rule: &str| {
        let rule = format!("alert http any any -> any any ({rule} sid:1;)");
        read(rule.as_bytes(), &Options { places, by_fast_pattern, ..Options::default() })
    };
    let rule = "flow:established,to_server; http.method; content:\"POST\"; http.uri; content:\"/gate\"; depth:9; \
                content:!\"/gate\"; pkt_data; content:\"/gate\";";
    let all = place("http.method").and(uri_and_payload);
    for places in [None, Some(Places::ALL), Some(all)] {
        let read = read_for(places, false, rule).expect("a rule");
        let signature = &read.signatures[0];
        assert_eq!((&signature.needs[..], &signature.excludes[..]), (&[0, 1, 2][..], &[3][..]), "{places:?}");
        let found: Vec<_> = (0..4).map(|pattern| read.places_of(pattern)).collect();
        // The same text in another place is another pattern.
        assert_eq!(found, [place("http.method"), place("http.uri"), Places::PAYLOAD, place("http.uri")]);
        assert_eq!((signature.places, read.all_places(), read.are_single()), (all, all, false));
        let matched = |patterns: &[u32], there| {
            let mut matched = Vec::new();
            read.matched(patterns, there, &mut matched, &mut Vec::new());
            !matched.is_empty()
        };
        assert!(matched(&[2, 0, 1], all) && !matched(&[0, 1], all) && !matched(&[0, 1, 2, 3], all));
        assert!(!matched(&[0, 1, 2], uri_and_payload), "a place is not there");
    }
    let reason = |places, rule: &str| match read_for(Some(places), false, rule) {
        Err(Error::AllLeftOut { first, .. }) => first.reason.to_string(),
        other => panic!("{other:?}"),
    };
    assert_eq!(
        reason(uri_and_payload, rule),
        "a content is in http.method; expected it in the payload or http.uri"
    );
    assert_eq!(reason(Places::ALL, "flow:established,to_server; content:\"a\";"), "it needs the option flow");
    assert_eq!(
        reason(Places::ALL, "http.uri; content:!\"a\"; http.host; content:!\"b\";"),
        "all its contents are negated"
    );
    // By fast pattern: the longest of those in the places; for the payload alone of all, wherever it is.
    let rule = "http.host; content:\"abcdef\"; http.uri; content:\"abcd\"; depth:5; pkt_data; content:\"abc\"; depth:9;";
    for (places, bytes, at, depth) in [
        (None, "abcdef", Places::PAYLOAD, u32::MAX),
        (Some(Places::PAYLOAD), "abcdef", Places::PAYLOAD, u32::MAX),
        (Some(Places::ALL), "abcdef", place("http.host"), u32::MAX),
        (Some(uri_and_payload), "abcd", place("http.uri"), 5),
        (Some(place("http.method").and(Places::PAYLOAD)), "abc", Places::PAYLOAD, 9),
    ] {
        let read = read_for(places, true, rule).expect("a rule");
        let pattern = read.patterns.get(0);
        assert_eq!((pattern.bytes, pattern.bounds.depth), (bytes.as_bytes(), depth), "{places:?}");
        assert_eq!((read.places_of(0), read.patterns.len()), (at, 1));
    }
    // Patterns of lists are looked for in all places that are given.
    for (places, expected) in [(None, Places::PAYLOAD), (Some(uri_and_payload), uri_and_payload)] {
        let read = read(b"a\nb\n", &Options { places, ..Options::default() }).expect("a list");
        assert_eq!((read.places_of(1), read.signatures[1].places), (expected, Places::NONE));
        assert!(read.are_single());
    }
}

#[test]
fn candidates_in_fields() {
    let uri = Some("http.uri");
    for (options, expected) in [
        // The longest of those in the field, with its bounds.
        ("content:\"abcdef\"; http.uri; content:\"abc\"; offset:2; depth:9; pcre:\"/x/U\";", Ok((2, 9))),
        ("http.uri; content:\"abc\"; offset:2; depth:9; content:\"de\"; within:9;", Ok((2, 9))),
        ("http.uri; urilen:>9; content:\"de\"; content:\"abc\"; distance:9;", Ok((0, u32::MAX))),
        ("http.host; content:\"abc\";", Err("a content is in http.host; expected it in http.uri")),
        ("http.uri; content:\"abc\"; file.data; content:\"abcdef\";", Ok((0, u32::MAX))),
        // What stands behind an unknown option may be in another field.
        (
            "http.uri; file.data; content:\"abc\";",
            Err("a content is in another field; expected it in http.uri"),
        ),
        ("content:\"abc\"; http_client_body;", Err("a content is in another field; expected it in http.uri")),
        ("http.uri; content:!\"abc\";", Err("all its contents are negated")),
        ("http.uri; sid:2;", Err("it has no content")),
    ] {
        let expected = expected
            .map(|(offset, depth)| (b"abc".to_vec(), false, Bounds { offset, depth }))
            .map_err(str::to_owned);
        assert_eq!(in_field(uri, true, options), expected, "{options}");
    }
}

#[test]
fn rules_that_are_written_wrongly_are_left_out() {
    let long = format!("content:\"{}\";", "x".repeat(256));
    for (options, expected) in [
        ("msg:\"x\";", "it has no content"),
        ("content:!\"a\";", "all its contents are negated"),
        ("content:\"\";", "an empty pattern; expected 1 to 255 bytes"),
        ("content:\"||\";", "an empty pattern; expected 1 to 255 bytes"),
        (&long[..], "a pattern of 256 bytes; expected 1 to 255"),
        (
            "content:\"abc\"; content:\"def\"; depth:2;",
            "a pattern of 3 bytes within a depth of 2; expected a depth of 3 or more",
        ),
        ("content:abc;", "a content is written wrongly; expected \"text\" or !\"text\""),
        ("content:\"abc\"x;", "a content is written wrongly; expected \"text\" or !\"text\""),
        ("content:\"abc\",;", "a content is written wrongly; expected \"text\" or !\"text\""),
        ("content;", "a content is written wrongly; expected \"text\" or !\"text\""),
        ("content:\"a\\n\";", r#"\n is not an escape; expected \\, \", \; or \:"#),
        ("content:\"a|4|\";", "an odd number of hex digits; expected pairs"),
        ("content:\"a|4x|\";", "x is not a hex digit"),
        ("content:\"a|41\";", "hex digits that do not end; expected a second |"),
        ("content:\"a\"; offset:-1;", "the value of offset is not usable; expected a number from 0 to 65535"),
        (
            "content:\"a\"; depth:65536;",
            "the value of depth is not usable; expected a number from 0 to 65535",
        ),
        ("content:\"a\"; offset;", "the value of offset is not usable; expected a number from 0 to 65535"),
        (
            "content:\"a\"; rev:99999999999;",
            "the value of rev is not usable; expected a number from 0 to 4294967295",
        ),
        ("nocase; content:\"a\";", "the option nocase without a content before it"),
        (
            "content:\"a\"; offset:1; offset:2;",
            "the option offset does not go with another one of the same content",
        ),
        (
            "content:\"a\"; startswith; depth:5;",
            "the option depth does not go with another one of the same content",
        ),
        (
            "content:\"a\"; depth:5; startswith;",
            "the option startswith does not go with another one of the same content",
        ),
        ("content \"a\";", "options are written wrongly; expected name; or name:value;"),
        ("content:\"a\"; !;", "options are written wrongly; expected name; or name:value;"),
        ("content:\"a;", "a quoted text that does not end on its line"),
        ("content:\"a\\", "a quoted text that does not end on its line"),
    ] {
        assert_eq!(reason(options), expected, "{options}");
    }
}

#[test]
fn lines_that_are_no_rules_are_left_out_one_by_one() {
    let read = rules(
        "alert tcp any any -> any any (content:\"a\"; sid:1;)\n\
         include other.rules\n\
         alert\n\
         alert tcp any any any (content:\"a\";)\n\
         alert tcp any any -> any any any any (content:\"a\";)\n\
         alert tcp any any -> any any (content:\"a\"; sid:2;\n\
         alert tcp any any -> any any (content:\"a\"; sid:3\n\
         alert tcp any any -> any any (content:\"a\"; sid:4;) x\n\
         pass tcp any any -> any any (content:\"a\"; sid:5;)\n\
         )\n\
         \u{0}",
    );
    let not_a_rule = "not a rule; expected an action, addresses and ports, and options in parentheses";
    let expected = [
        (2, not_a_rule),
        (3, not_a_rule),
        (4, not_a_rule),
        (5, not_a_rule),
        (6, "the rule does not end; expected )"),
        (7, "the rule does not end; expected )"),
        (8, "text behind the rule; expected the end of the line after )"),
        (9, "the action pass does not report what it finds"),
        (10, not_a_rule),
        (11, not_a_rule),
    ];
    assert_eq!(left_out(&read), expected.map(|(line, reason)| (line, reason.to_string())));
    assert_eq!(read.signatures.len(), 2);
    assert_eq!(read.left_out[9].text, r"\x00");
}

#[test]
fn a_file_without_a_usable_rule_is_an_error() {
    let error = crate::read(Format::Rules, b"# alert tcp any any -> any any (content:\"a\";)").unwrap_err();
    assert_eq!(error, Error::Nothing { format: Format::Rules, lines: 1 });
    let error = crate::read(Format::Auto, b"\n\nalert tcp any any -> any any (sid:1;)\n").unwrap_err();
    assert_eq!(
        error.to_string(),
        "line 3: it has no content; none of 1 rules can be used; expected rules such as \
         alert tcp any any -> any any (msg:\"...\"; content:\"...\"; sid:1;)"
    );
}

/// The candidate that a rule with these options gives.
fn candidate(options: &str) -> Literal {
    let rule = format!("alert tcp any any -> any any ({options} sid:1;)");
    let read = read(rule.as_bytes(), &Options { by_fast_pattern: true, ..Options::default() }).unwrap();
    let [signature] = &read.signatures[..] else { panic!("{options}") };
    assert_eq!((&signature.needs[..], &signature.excludes[..], read.patterns.len()), (&[0][..], &[][..], 1));
    let Pattern { bytes, ignore_case, bounds } = read.patterns.get(0);
    (bytes.to_vec(), ignore_case, bounds)
}

#[test]
fn candidates_by_the_fast_pattern() {
    let any = |bytes: &[u8]| (bytes.to_vec(), false, ANYWHERE);
    let bounds = Bounds { offset: 2, depth: 9 };
    for (options, expected) in [
        // The longest; of those the most varied; of those the first.
        ("content:\"abc\"; content:\"abcd\"; distance:1; pcre:\"/x/\";", any(b"abcd")),
        ("content:\"aaaa\"; content:\"abcd\"; content:\"efgh\"; content:!\"abcdef\";", any(b"abcd")),
        ("content:\"abcd\"; content:\"|02 03 04 05|\";", any(b"\x02\x03\x04\x05")),
        ("content:\"abcd\"; content:\"ab\"; fast_pattern;", any(b"ab")),
        ("content:\"abcd\",nocase; content:\"ab\",fast_pattern,nocase;", (b"ab".to_vec(), true, ANYWHERE)),
        // Bounds count in the payload alone, and not from another content on.
        ("flow:established; content:\"abcd\"; offset:2; depth:9;", (b"abcd".to_vec(), false, bounds)),
        ("http.uri; content:\"abcd\"; offset:2; depth:9;", any(b"abcd")),
        ("content:\"abcd\"; offset:2; depth:9; http_uri;", any(b"abcd")),
        ("content:\"ab\"; content:\"abcd\",offset x,within 9;", any(b"abcd")),
        (
            "content:\"ab\"; offset:1; uricontent:\"abcd\"; nocase; depth:9;",
            (b"abcd".to_vec(), true, ANYWHERE),
        ),
        ("content:\"ab\"; offset:2; depth:9; content:!\"x\"; within:7;", (b"ab".to_vec(), false, bounds)),
    ] {
        assert_eq!(candidate(options), expected, "{options}");
    }
    let rule = b"alert tcp any any -> any any (content:!\"abc\"; fast_pattern;)";
    let error = read(rule, &Options { by_fast_pattern: true, ..Options::default() }).unwrap_err();
    assert!(error.to_string().starts_with("line 1: all its contents are negated; "), "{error}");
}

/// A content of these bytes, some of which are escaped in one way or another.
fn content(pattern: &[u8], hexed: &[bool]) -> Vec<u8> {
    let mut text = Vec::new();
    for (&byte, &hexed) in pattern.iter().zip(hexed) {
        match byte {
            _ if hexed => text.extend_from_slice(format!("|{byte:02X}|").as_bytes()),
            b'|' | b'\n' => text.extend_from_slice(format!("|{byte:02x}|").as_bytes()),
            b'\\' | b'"' | b';' | b':' => text.extend_from_slice(&[b'\\', byte]),
            byte => text.push(byte),
        }
    }
    text
}

/// Bytes of all values, and those that mean something.
fn pattern() -> impl Strategy<Value = (Vec<u8>, Vec<bool>)> {
    let telling = prop::sample::select(&b"\\\";:|)(#!, \n\rax4"[..]);
    vec((prop_oneof![any::<u8>(), telling], any::<bool>()), 1..=Patterns::MAX_LEN)
        .prop_map(|pairs| pairs.into_iter().unzip())
}

/// Pieces of rules in any order.
fn pieces() -> impl Strategy<Value = Vec<u8>> {
    const PIECES: [&[u8]; 24] = [
        b"alert tcp any any -> any any (",
        b"content:\"abc\";",
        b"content:!\"|41 42|\";",
        b"nocase;",
        b"offset:3;",
        b"depth:5;",
        b"sid:1;",
        b")",
        b"\n",
        b"\\\n",
        b"\r\n",
        b"\"",
        b"\\",
        b";",
        b"#",
        b"(",
        b" ",
        b"|",
        b"alert ",
        b"msg:\"x",
        b"content:\"abc\",within 3",
        b"pcre:\"/x\\\"/\";",
        b"[",
        b"\xff",
    ];
    let piece = prop::sample::select(&PIECES[..]).prop_map(<[u8]>::to_vec);
    // Whole rules between them.
    let rule = vec(prop::sample::select(&PIECES[1..7]), 1..6)
        .prop_map(|options| [b"\nalert tcp any any -> any any (", &options.concat()[..], b")\n"].concat());
    vec(prop_oneof![6 => piece, 1 => rule], 0..60).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: packetloom_testing::amount(200, 4_000), ..Default::default() })]

    #[test]
    fn contents_read_as_the_same(patterns in vec(pattern(), 1..5)) {
        let mut text = Vec::new();
        for (bytes, hexed) in &patterns {
            text.extend_from_slice(b"alert tcp any any -> any any (content:\"");
            text.extend_from_slice(&content(bytes, hexed));
            text.extend_from_slice(b"\"; sid:5;)\n");
        }
        let expected: Vec<_> = patterns.into_iter().map(|(bytes, _)| bytes).collect();
        prop_assert_eq!(literals(Format::Auto, &text), expected);
    }

    /// Whatever is in a file: signatures and what is left out begin on lines of their own, and nothing takes the rule behind it along.
    #[test]
    fn any_pieces_give_signatures_or_reasons(mut text in pieces(), by_fast_pattern: bool) {
        text.extend_from_slice(b"\n\nalert ip any any -> any any (content:\"the end\"; sid:999;)");
        let read = read(&text, &Options { format: Format::Rules, by_fast_pattern, ..Options::default() }).unwrap();
        let last = read.signatures.last().unwrap();
        let lines = text.iter().filter(|&&byte| byte == b'\n').count() as u32 + 1;
        prop_assert_eq!((last.id, last.line), (Some(999), lines));
        let mut all: Vec<_> = read.signatures.iter().map(|s| s.line).collect();
        all.extend(read.left_out.iter().map(|left| left.line));
        all.sort_unstable();
        prop_assert!(all.windows(2).all(|pair| pair[0] < pair[1]), "{all:?}");
        for signature in &read.signatures {
            prop_assert!(!signature.needs.is_empty());
            let mut numbers = signature.needs.iter().chain(&signature.excludes);
            prop_assert!(numbers.all(|&number| (number as usize) < read.patterns.len()));
        }
    }
}
