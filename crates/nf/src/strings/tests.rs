//! Streams by themselves: every occurrence of a pattern is found once, however a stream comes.

use packetloom_pattern::{Matcher, Patterns, Report, Scratch, oracle};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

use super::Config;
use super::streams::{Segment, Streams};
use crate::FunctionSpec;

/// Sends segments of a stream: how many occurrences of each pattern end at each byte, sorted.
fn found(
    streams: &mut Streams,
    matcher: &Matcher,
    stream: &[u8],
    begin: u32,
    has_begin: bool,
    segments: &[(usize, usize)],
) -> Vec<(i64, u32)> {
    let mut found = Vec::new();
    let mut take = |segment| {
        let (mut room, mut fresh, mut matches) = (Vec::new(), Vec::new(), Vec::new());
        streams.take((1, true), segment, &mut room, &mut fresh).expect("room");
        let texts: Vec<_> = fresh.iter().map(|fresh| &room[fresh.text.clone()]).collect();
        let parts: Vec<_> = fresh.iter().map(|fresh| fresh.part).collect();
        matcher.find_in_parts(&texts, &parts, Report::All, &mut Scratch::default(), &mut matches);
        let place = |m: &packetloom_pattern::Match| parts[m.text as usize].begin + i64::from(m.end);
        found.extend(matches.iter().map(|m| (place(m), m.pattern)));
        fresh.len()
    };
    if has_begin {
        take(Segment { sequence: begin, is_first: true, payload: &[] });
    }
    for &(from, until) in segments {
        let payload = &stream[from..until];
        let segment = Segment { sequence: begin.wrapping_add(from as u32), is_first: false, payload };
        take(segment);
        assert_eq!(take(segment), 0, "it is there now");
    }
    found.sort_unstable();
    found
}

fn expected(patterns: &Patterns, stream: &[u8]) -> Vec<(i64, u32)> {
    let found = oracle::matches(patterns, stream, 0).into_iter();
    let mut found: Vec<_> = found.map(|found| (i64::from(found.end), found.pattern)).collect();
    found.sort_unstable();
    found
}

#[test]
fn a_pattern_that_is_cut_anywhere_is_found_once() {
    let needle = b"a-needle-of-some-length";
    let patterns: Patterns = [&needle[..], b"needle", b"-", b"zz"].into_iter().collect();
    let stream = [&b"zzz"[..], needle, b"zz"].concat();
    let matcher = Matcher::new(patterns.clone());
    let expected = expected(&patterns, &stream);
    assert_eq!(expected.len(), 1 + 1 + 4 + 3);
    let len = stream.len();
    // Two segments and three, in each order; across the end of sequence numbers.
    for (has_begin, begin) in [(true, 77), (true, u32::MAX - 10), (false, u32::MAX - 10)] {
        for cut in 0..=len {
            for second in cut..=len {
                let cuts = [(0, cut), (cut, second), (second, len)];
                for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
                    let segments: Vec<_> =
                        order.map(|at| cuts[at]).into_iter().filter(|(from, until)| from < until).collect();
                    let mut streams = Streams::new(needle.len());
                    let mut found = found(&mut streams, &matcher, &stream, begin, has_begin, &segments);
                    if !has_begin {
                        // Places are counted from the first byte that came.
                        found.iter_mut().for_each(|(end, _)| *end += segments[0].0 as i64);
                    }
                    assert_eq!(found, expected, "{segments:?}");
                    assert_eq!(streams.counts().gaps, 0);
                }
            }
        }
    }
}

#[test]
fn what_is_missing_to_the_end_is_a_gap() {
    let patterns: Patterns = [&b"abcdef"[..]].into_iter().collect();
    let matcher = Matcher::new(patterns);
    let stream = [b'x'; 100];
    let mut streams = Streams::new(6);
    let every_other: Vec<_> = (0..20).map(|at| (5 * at, 5 * at + 3)).collect();
    assert_eq!(found(&mut streams, &matcher, &stream, 9, true, &every_other[..8]), []);
    assert_eq!(streams.counts().gaps, 7);
    // The least lately touched are forgotten, and are no less a gap.
    assert_eq!(found(&mut streams, &matcher, &stream, 9, false, &every_other[8..]), []);
    assert_eq!(streams.counts().gaps, 19);
    streams.end(1);
    assert_eq!(streams.counts().gaps, 19);
    // Another connection of the same ports.
    assert_eq!(found(&mut streams, &matcher, &stream, 9, true, &every_other[..3]), []);
    assert_eq!(found(&mut streams, &matcher, &stream, 1 << 30, true, &every_other[..2]), []);
    assert_eq!(streams.counts().gaps, 19 + 2 + 1);
}

/// Segments from anywhere, as who attacks sends them: what is kept stays small, and no place leaves its range.
#[test]
fn segments_far_apart_cost_little() {
    let mut streams = Streams::new(255);
    let (mut room, mut fresh) = (Vec::new(), Vec::new());
    for number in 0..200_000u32 {
        let sequence = number.wrapping_mul(0x7fff_ff00);
        room.clear();
        fresh.clear();
        let segment = Segment { sequence, is_first: false, payload: b"abcdef" };
        streams.take((7, number % 3 == 0), segment, &mut room, &mut fresh).expect("room");
    }
    assert!(streams.bytes() < 10_000, "{}", streams.bytes());
    streams.end(7);
    assert_eq!(streams.bytes(), 0);
}

/// Segments in front of the first byte, far behind it, and SYNs of no connection do not come between two that touch.
#[test]
fn junk_does_not_tear_a_stream() {
    let patterns: Patterns = [&b"evil.com"[..], b"?il.com"].into_iter().collect();
    let matcher = Matcher::new(patterns);
    let find = |segments: &[(u32, bool, &[u8])]| {
        let mut streams = Streams::new(40);
        let mut found = Vec::new();
        for &(sequence, is_first, payload) in segments {
            let (mut room, mut fresh, mut matches) = (Vec::new(), Vec::new(), Vec::new());
            let segment = Segment { sequence, is_first, payload };
            streams.take((1, true), segment, &mut room, &mut fresh).expect("room");
            let texts: Vec<_> = fresh.iter().map(|fresh| &room[fresh.text.clone()]).collect();
            let parts: Vec<_> = fresh.iter().map(|fresh| fresh.part).collect();
            matcher.find_in_parts(&texts, &parts, Report::All, &mut Scratch::default(), &mut matches);
            found.extend(matches.iter().map(|found| found.pattern));
        }
        found
    };
    let begin = u32::MAX - 3;
    let at = |place: i64| begin.wrapping_add(place as u32);
    let (syn, front, back) =
        ((at(0), true, &b""[..]), (at(0), false, &b"GET /ev"[..]), (at(7), false, &b"il.com"[..]));
    assert_eq!(find(&[syn, front, back]), [0]);
    // As probes of keepalive are.
    assert_eq!(find(&[syn, front, (at(-1), false, b"?"), back]), [0]);
    assert_eq!(find(&[syn, (at(-1), false, b"?"), back, front]), [0]);
    // Out of every window; twice it is more than half of all sequence numbers.
    let far = |part: i64| (at(7 + part * 0x6000_0000), false, &b"?"[..]);
    assert_eq!(find(&[syn, front, far(1), far(2), back]), [0]);
    assert_eq!(find(&[syn, front, far(1), far(2), far(3), far(4), back]), [0]);
    // A SYN that begins nothing, before the data and with a number behind it.
    let stray = (at(1 << 20), true, &b""[..]);
    assert_eq!(find(&[syn, stray, front, back]), [0]);
    assert_eq!(find(&[syn, stray, back, front]), [0]);
    assert_eq!(find(&[front, (at(-1), false, b"?"), back]), [0]);
    // In between it does, as documented.
    assert_eq!(find(&[syn, front, stray, back]), [0u32; 0]);
}

/// What a chain takes over of flows, from a file or at a reload: that they are dropped, as long as it drops any.
#[test]
fn flows_stay_dropped_as_long_as_such_are() {
    let adopted = |keys: &str| {
        let config: Config = toml::from_str(&format!("patterns = \"list\"\n{keys}")).expect("good keys");
        let mut strings = config.with_patterns("list", b"evil.com", None).expect("a pattern");
        let mut words = [u64::MAX; 2];
        assert!(strings.adopt(&mut words));
        // One bit says that; nothing else stays.
        assert!(words[0].count_ones() <= 1 && words[1] == 0, "{words:x?}");
        words[0] != 0
    };
    assert!(adopted("within = \"stream\"\naction = \"drop\""));
    assert!(adopted("flow = \"drop\"\naction = \"drop\""));
    assert!(!adopted("within = \"stream\""));
}

#[test]
fn without_memory_segments_are_searched_by_themselves() {
    let mut streams = Streams::new(20);
    streams.max_bytes = 2_000;
    let (mut room, mut fresh) = (Vec::new(), Vec::new());
    let mut kept = 0;
    for flow in 0..10 {
        let segment = |sequence| Segment { sequence, is_first: false, payload: b"some bytes of a stream" };
        for sequence in [1, 1 + 22, 100] {
            kept += u64::from(streams.take((flow, true), segment(sequence), &mut room, &mut fresh).is_some());
        }
        assert!(streams.bytes() <= 2_000);
    }
    let counts = streams.counts();
    assert!(kept >= 3 && counts.no_room == 30 - kept, "{kept} {counts:?}");
    assert!(counts.gaps > 0);
    (0..10).for_each(|flow| streams.end(flow));
    assert_eq!(streams.bytes(), 0);
    // A few patterns are remembered, each once.
    streams.max_bytes = 1 << 20;
    let segment = Segment { sequence: 1, is_first: true, payload: b"" };
    let stream = streams.take((1, true), segment, &mut room, &mut fresh).expect("room");
    let mut before = Vec::new();
    streams.remember(stream, (0..60).chain(0..60), &mut before);
    assert_eq!((before.len(), streams.counts().not_remembered), (0, 0));
    streams.remember(stream, 50..70, &mut before);
    assert_eq!((before.len(), streams.counts().not_remembered), (60, 1));
    before.clear();
    streams.remember(stream, 0..9, &mut before);
    assert_eq!((before.len(), streams.counts().not_remembered), (64, 1));
    streams.end(1);
    assert_eq!(streams.bytes(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// Segments that overlap in any way and come in any order, with none missing.
    #[test]
    fn every_occurrence_is_found_once(
        patterns in vec(vec(prop::sample::select(&b"ab"[..]), 1..12), 1..8),
        stream in vec(prop::sample::select(&b"aab"[..]), 1..200),
        segments in vec((any::<Index>(), 1usize..60), 0..4),
        cuts in vec(any::<Index>(), 0..4),
        begin in any::<u32>(),
        order in any::<u64>(),
    ) {
        let len = stream.len();
        let mut all: Vec<(usize, usize)> = segments
            .into_iter()
            .map(|(at, more)| (at.index(len), more))
            .map(|(at, more)| (at, (at + more).min(len)))
            .collect();
        // So few leave no more runs than are kept.
        let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(len + 1)).chain([0, len]).collect();
        cuts.sort_unstable();
        let whole = cuts.windows(2).map(|ends| (ends[0], ends[1])).filter(|(from, until)| from < until);
        all.extend(whole);
        let mut state = order;
        let mut below = |most: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as usize % most
        };
        for at in (1..all.len()).rev() {
            all.swap(at, below(at + 1));
        }
        let set: Patterns = patterns.iter().map(|pattern| &pattern[..]).collect();
        let longest = patterns.iter().map(Vec::len).max().unwrap_or(0);
        let mut streams = Streams::new(longest);
        let found = found(&mut streams, &Matcher::new(set.clone()), &stream, begin, true, &all);
        prop_assert_eq!(found, expected(&set, &stream));
        prop_assert_eq!(streams.counts().gaps, 0);
    }
}
