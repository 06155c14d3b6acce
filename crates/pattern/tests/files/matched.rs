//! Which signatures a payload has, against the slow form.

use packetloom_pattern::files::{Format, Places, Signatures};
use packetloom_pattern::oracle;
use proptest::collection::vec;
use proptest::prelude::*;

use crate::read;

fn matched(read: &Signatures, patterns: &[u32]) -> Vec<u32> {
    let mut matched = Vec::new();
    // What is in the scratch does not matter.
    read.matched(patterns, Places::PAYLOAD, &mut matched, &mut vec![1, 0, 7]);
    matched
}

/// Bytes, whether they are negated, ignore case, an offset, a depth.
type Content = (String, bool, bool, u32, Option<u32>);

fn content() -> impl Strategy<Value = Content> {
    let depth = prop_oneof![2 => Just(None), 1 => (3u32..12).prop_map(Some)];
    let offset = prop_oneof![2 => Just(0), 1 => 0u32..6];
    ("[abAB]{1,3}", prop::bool::weighted(0.3), any::<bool>(), offset, depth)
}

/// Whether a payload has a content, byte by byte.
fn holds((bytes, is_negated, ignore_case, offset, depth): &Content, payload: &[u8]) -> bool {
    let mut is_there = false;
    for begin in *offset as usize..payload.len() {
        let end = begin + bytes.len();
        let fits = end <= payload.len() && depth.is_none_or(|depth| end <= (offset + depth) as usize);
        is_there |= fits
            && payload[begin..end]
                .iter()
                .zip(bytes.as_bytes())
                .all(|(found, wanted)| found == wanted || *ignore_case && found.eq_ignore_ascii_case(wanted));
    }
    is_there != *is_negated
}

fn rule(contents: &[Content]) -> String {
    let option = |(bytes, is_negated, ignore_case, offset, depth): &Content| {
        let mark = if *is_negated { "!" } else { "" };
        let nocase = if *ignore_case { " nocase;" } else { "" };
        let offset = if *offset > 0 { format!(" offset:{offset};") } else { String::new() };
        let depth = depth.map(|depth| format!(" depth:{depth};")).unwrap_or_default();
        format!("content:{mark}\"{bytes}\";{nocase}{offset}{depth} ")
    };
    let options: String = contents.iter().map(option).collect();
    format!("alert ip any any -> any any ({options})\n")
}

proptest! {
    #![proptest_config(ProptestConfig { cases: packetloom_testing::amount(300, 4_000), ..Default::default() })]

    #[test]
    fn signatures_are_those_whose_contents_hold(
        rules in vec((content(), vec(content(), 0..5)), 1..30),
        payloads in vec("[abABx]{0,16}", 1..20),
    ) {
        // The first content of each is there, so that it can be used.
        let rules: Vec<Vec<Content>> = rules
            .into_iter()
            .map(|((bytes, _, ignore_case, offset, depth), rest)| {
                [vec![(bytes, false, ignore_case, offset, depth)], rest].concat()
            })
            .collect();
        let text: String = rules.iter().map(|contents| rule(contents)).collect();
        let read = read(Format::Rules, text.as_bytes()).unwrap();
        prop_assert_eq!(&read.left_out, &[]);
        for payload in &payloads {
            let found = oracle::matches(&read.patterns, payload.as_bytes(), 0);
            let found: Vec<_> = found.iter().map(|m| m.pattern).collect();
            let expected: Vec<_> = (0..rules.len() as u32)
                .filter(|&number| rules[number as usize].iter().all(|content| holds(content, payload.as_bytes())))
                .collect();
            prop_assert_eq!(matched(&read, &found), expected);
        }
    }

    /// By any numbers, in any order, any number of times.
    #[test]
    fn signatures_are_those_that_need_what_is_there(
        rules in vec((content(), vec(content(), 0..5)), 1..30),
        found in vec(vec(any::<prop::sample::Index>(), 0..40), 1..10),
    ) {
        let text: String = rules
            .into_iter()
            .map(|(first, rest)| rule(&[vec![(first.0, false, first.2, first.3, first.4)], rest].concat()))
            .collect();
        let read = read(Format::Rules, text.as_bytes()).unwrap();
        for found in found {
            let found: Vec<u32> = found.iter().map(|index| index.index(read.patterns.len()) as u32).collect();
            let holds = |&number: &u32| {
                let signature = &read.signatures[number as usize];
                signature.needs.iter().all(|pattern| found.contains(pattern))
                    && !signature.excludes.iter().any(|pattern| found.contains(pattern))
            };
            let expected: Vec<_> = (0..read.signatures.len() as u32).filter(holds).collect();
            prop_assert_eq!(matched(&read, &found), expected);
        }
    }
}
