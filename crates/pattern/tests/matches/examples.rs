//! Sets and texts of every kind that has an edge.

use packetloom_pattern::{Bounds, Match, Matcher, Part, Pattern, Patterns, Refused, Report, Scratch, oracle};
use packetloom_simd::Isa;

use crate::{find, find_all};

fn set(patterns: &[&[u8]]) -> Patterns {
    patterns.iter().copied().collect()
}

fn check(patterns: &Patterns, texts: &[&[u8]]) -> Vec<Match> {
    let found = find_all(patterns, texts);
    let expected: Vec<_> =
        texts.iter().enumerate().flat_map(|(at, text)| oracle::matches(patterns, text, at as u32)).collect();
    assert_eq!(found, expected);
    found
}

#[test]
fn each_length_is_found_at_each_place_of_a_text() {
    let all: Vec<u8> = (0..=255).map(|byte: u8| byte.wrapping_mul(7) ^ 0x5a).collect();
    for len in [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 16, 31, 64, 65, 127, 128, 200, 255] {
        let pattern = &all[..len];
        let patterns = set(&[pattern]);
        let texts: Vec<Vec<u8>> = (0..150)
            .flat_map(|before| [0, 1, 2, 3, 60, 68, 130].map(|after| (before, after)))
            .map(|(before, after)| [&vec![b'x'; before][..], pattern, &vec![0; after]].concat())
            .collect();
        let texts: Vec<_> = texts.iter().map(|text| &text[..]).collect();
        for isa in Isa::all_for_bytes() {
            let found = find(&Matcher::with(patterns.clone(), isa, &[]), &texts, Report::All);
            let expected: Vec<_> = texts
                .iter()
                .enumerate()
                .flat_map(|(at, text)| oracle::matches(&patterns, text, at as u32))
                .collect();
            assert!(expected.len() >= texts.len());
            assert_eq!(found, expected, "{len} bytes, {isa:?}");
        }
        // All but one of its bytes are there.
        for missing in 0..len {
            let mut text = pattern.to_vec();
            text[missing] ^= 0x80;
            if len > 1 {
                assert_eq!(find(&Matcher::new(patterns.clone()), &[&text], Report::All), []);
            }
        }
        assert_eq!(find(&Matcher::new(patterns), &[&pattern[..len - 1], b""], Report::All), []);
    }
}

#[test]
fn every_duplicate_is_found() {
    let found = check(&set(&[b"abcdefgh", b"abcdefgh", b"ab", b"ab", b"abcd", b"abcd"]), &[b"-abcdefgh-"]);
    assert_eq!(found.len(), 6);
}

#[test]
fn zeros_and_ones_are_bytes_as_others() {
    let patterns = set(&[
        b"\0",
        b"\0\0",
        b"\0\0\0\0\0\0\0",
        b"\xff\xff\xff\xff",
        b"\0\xff\0\xff\0\xff\0\xff",
        &[0; 255],
    ]);
    let zeros = [0; 400];
    let ones = [0xff; 100];
    let both: Vec<u8> = (0..100).map(|at| if at % 2 == 0 { 0 } else { 0xff }).collect();
    for len in [0, 1, 2, 6, 7, 8, 63, 64, 65, 254, 255, 256, 400] {
        check(&patterns, &[&zeros[..len], &ones[..len.min(100)], &both[..len.min(100)], b"", b"\0"]);
    }
    // What lies behind the end of a text is no part of it.
    assert_eq!(check(&set(&[b"a\0"]), &[b"a", b"aa", b"a\0"]).len(), 1);
    assert_eq!(check(&set(&[b"abcdefg\0\0"]), &[b"abcdefg", b"abcdefg\0"]), []);
}

#[test]
fn runs_have_a_match_at_each_place() {
    let a = [b'a'; 300];
    let patterns: Patterns = (1..=255).map(|len| &a[..len]).collect();
    let found = check(&patterns, &[&a]);
    assert_eq!(found.len(), (1..=255).map(|len| 301 - len).sum::<usize>());
}

#[test]
fn prefixes_suffixes_and_middles_of_each_other() {
    let name = b"www.example.co.uk/index.html";
    let patterns: Patterns = (0..name.len())
        .flat_map(|begin| (begin + 1..=name.len()).map(move |end| &name[begin..end]))
        .collect();
    let text = [&name[..], b" ", name, b"x", &name[1..], &name[..20]].concat();
    check(&patterns, &[&text, name, &text[3..], &text[5..60]]);
}

#[test]
fn case_is_ignored_where_it_is_asked_for() {
    let mut patterns = Patterns::new();
    for (bytes, ignore_case) in [
        (&b"Evil.Com"[..], true),
        (b"Evil.Com", false),
        (b"GeT", true),
        (b"get", false),
        (b"[\\]^", true),
        (b"{|}~\x00\x20\x40", true),
    ] {
        patterns.push(Pattern { ignore_case, ..Pattern::new(bytes) }).unwrap();
    }
    let found = check(
        &patterns,
        &[
            b"evil.com",
            b"Evil.Com",
            b"EVIL.COM",
            b"GET get gEt",
            b"{|}~",
            b"[\\]^",
            b"{|}~\x20\x20\x40",
            b"[\\]^\x00\x20\x40",
            b"{|}~\x00\x20\x40",
            b"evil\x0ecom",
        ],
    );
    let of_text = |text| found.iter().filter(|m| m.text == text).map(|m| m.pattern).collect::<Vec<_>>();
    assert_eq!(of_text(0), [0]);
    assert_eq!(of_text(1), [0, 1]);
    assert_eq!(of_text(2), [0]);
    assert_eq!(of_text(3), [2, 2, 3, 2]);
    // Only letters have cases.
    assert_eq!(
        [of_text(4), of_text(5), of_text(6), of_text(7), of_text(8), of_text(9)],
        [vec![], vec![4], vec![], vec![4], vec![5], vec![]]
    );
}

#[test]
fn bounds_are_those_of_offset_and_depth() {
    let mut patterns = Patterns::new();
    let mut push = |bytes, offset, depth| {
        patterns.push(Pattern { bounds: Bounds { offset, depth }, ..Pattern::new(bytes) }).unwrap();
    };
    push(b"abc", 0, 3);
    push(b"abc", 1, 3);
    push(b"abc", 1, 4);
    push(b"abc", 2, u32::MAX);
    push(b"abcdefghij", 2, 12);
    push(b"abc", u32::MAX, u32::MAX);
    let found = check(
        &patterns,
        &[b"abc", b"xabc", b"xxabc", b"xxabcdefghij", b"xxxxabcdefghij", b"xxxxxabcdefghij"],
    );
    let of_text = |text| found.iter().filter(|m| m.text == text).map(|m| m.pattern).collect::<Vec<_>>();
    assert_eq!([of_text(0), of_text(1), of_text(2)], [vec![0], vec![1, 2], vec![2, 3]]);
    assert_eq!([of_text(3), of_text(4), of_text(5)], [vec![2, 3, 4], vec![3, 4], vec![3]]);
    // The greatest depth is none, however far behind a part begins.
    for (begin, pattern) in [(0, 0), (1 << 40, 3)] {
        let mut found = Vec::new();
        let part = Part { begin, new: (0, 3) };
        let matcher = Matcher::new(patterns.clone());
        matcher.find_in_parts(&[b"abc"], &[part], Report::First, &mut Scratch::default(), &mut found);
        assert_eq!(found, [Match { text: 0, end: 3, pattern }]);
    }
}

#[test]
fn what_no_set_can_have_is_refused() {
    let mut patterns = Patterns::new();
    assert_eq!(patterns.push(Pattern::new(b"")), Err(Refused::Empty));
    assert_eq!(patterns.push(Pattern::new(&[1; 256])), Err(Refused::Long(256)));
    let bounds = Bounds { offset: 7, depth: 2 };
    assert_eq!(
        patterns.push(Pattern { bounds, ..Pattern::new(b"abc") }),
        Err(Refused::Depth { len: 3, depth: 2 })
    );
    assert!(patterns.is_empty());
    assert_eq!(check(&patterns, &[b"", b"abc"]), []);
    assert_eq!(patterns.push(Pattern::new(&[1; 255])), Ok(0));
    assert_eq!(patterns.push(Pattern::new(b"a")), Ok(1));
    assert_eq!((patterns.len(), patterns.get(1)), (2, Pattern::new(b"a")));
}

#[test]
fn many_texts_are_looked_through_in_parts() {
    let patterns = set(&[b"needle-in-it", b"x"]);
    let long = [&vec![b'-'; 70_000][..], b"needle-in-it", &vec![b'-'; 70_000]].concat();
    let mut texts: Vec<&[u8]> = vec![b"needle-in-it"; 20_000];
    texts.extend([&long[..], b"x", &long, b""]);
    let found = find(&Matcher::new(patterns), &texts, Report::All);
    assert_eq!(found.len(), 20_003);
    assert_eq!(found[20_000], Match { text: 20_000, end: 70_012, pattern: 0 });
}

#[test]
fn long_texts_are_looked_through_in_parts() {
    // So many short ones that there are windows at every byte, too.
    let short: Vec<Vec<u8>> = (0..200).map(|number| format!("{number:05}").into_bytes()).collect();
    let patterns: Patterns =
        short.iter().map(|bytes| &bytes[..]).chain([&b"needle-in-it"[..], b"x"]).collect();
    let piece: Vec<u8> = (0..200).flat_map(|number| format!("{number:05}-").into_bytes()).collect();
    // Parts have 65,536 bytes: matches at all places around their ends.
    let texts: Vec<Vec<u8>> = (0..70)
        .map(|before| {
            let mut text = vec![b'-'; 65_536 - 64 + before];
            text.extend_from_slice(b"00007needle-in-itx");
            text.extend(piece.iter().cycle().take(70_000));
            text
        })
        .collect();
    let texts: Vec<&[u8]> =
        texts.iter().map(|text| &text[..]).chain([&b"00001"[..], b"", b"00002"]).collect();
    for isa in Isa::all_for_bytes() {
        let matcher = Matcher::with(patterns.clone(), isa, &[]);
        let found = find(&matcher, &texts, Report::All);
        for (number, text) in texts.iter().enumerate().step_by(9) {
            let of_text: Vec<_> = found.iter().filter(|m| m.text == number as u32).copied().collect();
            assert_eq!(of_text, oracle::matches(&patterns, text, number as u32), "{number}, {isa:?}");
        }
        crate::check_one_a_text(&matcher, &texts, &found);
    }
}

#[test]
fn thousands_of_short_patterns_are_found_at_every_byte() {
    // More windows at every byte than are found by classes, of two lengths.
    let numbers: Vec<String> =
        (0..2500).map(|number| format!("{:01$}", number * 7, 5 + number % 2)).collect();
    let patterns: Patterns = numbers.iter().map(|number| number.as_bytes()).collect();
    let text: String = (0..300).map(|number| format!("{:05}-", number * 49)).collect();
    let texts: Vec<&[u8]> = (0..70).map(|begin| &text.as_bytes()[begin..][..60 + 2 * begin]).collect();
    assert!(
        check(&patterns, &[&texts[..], &[text.as_bytes()], &[b"00007", b"000014", b"0000"]].concat()).len()
            > 100
    );
}

#[test]
fn nothing_is_found_behind_an_end() {
    // Zeros, as may be read there; as a short pattern, as a window at every byte, and as one on the grid.
    let mut patterns: Patterns = (1..=9).map(|len| &[0; 9][..len]).collect();
    for number in 0..200u32 {
        patterns.push(Pattern::new(format!("{number:05}").as_bytes())).expect("a pattern");
    }
    let few: Patterns = (1..=9).map(|len| &[0; 9][..len]).collect();
    let lens = (0..150).flat_map(|len| (0..10.min(len)).map(move |zeros| (len, zeros)));
    let texts: Vec<Vec<u8>> =
        lens.clone().map(|(len, zeros)| [vec![b'-'; len - zeros], vec![0; zeros]].concat()).collect();
    let texts: Vec<&[u8]> = texts.iter().map(|text| &text[..]).collect();
    for patterns in [patterns, few] {
        let found = check(&patterns, &texts);
        assert_eq!(found.len(), lens.clone().map(|(_, zeros)| zeros * (zeros + 1) / 2).sum::<usize>());
    }
}

#[test]
fn matches_are_added_to_what_is_there() {
    let matcher = Matcher::new(set(&[b"a"]));
    let before = Match { text: 0, end: 9, pattern: 9 };
    for report in [Report::All, Report::Each, Report::First, Report::Any] {
        let mut matches = vec![before];
        let mut scratch = Scratch::default();
        matcher.find(&[b"a"], report, &mut scratch, &mut matches);
        matcher.find(&[b"", b"a"], report, &mut scratch, &mut matches);
        let found = |text| Match { text, end: 1, pattern: 0 };
        assert_eq!(matches, [before, found(0), found(1)]);
    }
}
