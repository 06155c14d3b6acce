//! What devices find, against the slow form and against another implementation: on all that the tests are given, and on the host with
//! several sets of lanes in a group.

#[path = "../matches/strategies.rs"]
mod strategies;

use std::path::Path;

use packetloom_device::{Cache, Device, Id};
use packetloom_pattern::image::{
    Batch, Error, Finder, FirstOnDevice, Image, OnDevice, Results, Shape, Target, pack,
};
use packetloom_pattern::{Bounds, Match, Matcher, Pattern, Patterns, Report, Scratch, oracle};
use proptest::prelude::*;

use self::strategies::{expected, many_short_ones, set, sets_of_all_kinds};

/// Devices, and how kernels are run there.
fn targets() -> Vec<(Device, Target)> {
    // Compiled kernels are kept for the next time.
    let cache = || Cache::at(Path::new(env!("CARGO_TARGET_TMPDIR")).join("kernels"));
    let opened = packetloom_testing::devices().into_iter().map(|id| {
        let device = Device::open(id, cache()).unwrap_or_else(|e| panic!("{id}: {e}"));
        let target = Target::of(&device);
        (device, target)
    });
    let mut all: Vec<_> = opened.collect();
    if all.iter().any(|(device, _)| device.description().id == Id::Host) {
        let pairs = Device::host(2, cache()).expect("the host");
        let target = Target { lanes: 2, group: 4, local_memory: 0, ..Target::of(&pairs) };
        all.push((pairs, target));
    }
    assert!(!all.is_empty());
    all
}

/// All matches on a device, in order.
fn find((device, target): &(Device, Target), patterns: &Patterns, texts: &[&[u8]]) -> Vec<Match> {
    let mut found: Option<Vec<Match>> = None;
    for sample in [&[][..], texts] {
        let mut finder = Finder::with(device, &Image::new(patterns, sample), target).expect("a kernel");
        let mut matches = Vec::new();
        finder.find(texts, &mut matches).expect("looked through");
        matches.sort_unstable();
        let first = found.get_or_insert_with(|| matches.clone());
        assert_eq!(*first, matches, "{} in the sample", sample.len());
    }
    found.expect("two samples")
}

/// Where the first match of each text ends on a device, and which it is. The texts lie behind their offsets, and their first bytes are skipped.
fn firsts(
    (device, target): &(Device, Target),
    patterns: &Patterns,
    texts: &[&[u8]],
    skip: u32,
) -> Vec<Option<(u32, u32)>> {
    const OFFSETS: usize = 8;
    let begin = (OFFSETS + 4 * (texts.len() + 1)).next_multiple_of(16) + 16;
    // Matches of what lies around them would be seen.
    let around = patterns.iter().next().map_or(0, |pattern| pattern.bytes[0]);
    let mut memory = vec![around; begin];
    for (number, text) in texts.iter().enumerate() {
        let at = memory.len() as u32;
        memory[OFFSETS + 4 * number..][..4].copy_from_slice(&at.to_ne_bytes());
        memory.extend_from_slice(text);
    }
    let end = memory.len();
    memory[OFFSETS + 4 * texts.len()..][..4].copy_from_slice(&(end as u32).to_ne_bytes());
    memory.resize(end.next_multiple_of(16), around);
    let set = FirstOnDevice::new(device, &Image::new(patterns, &[]), target).expect("a kernel");
    let mut queue = device.queue().expect("a queue");
    let memory = device.memory_of(&memory).expect("memory");
    let shape = Shape { texts: texts.len() as u32, len: (end - begin) as u32 };
    let batch = Batch { memory: (&memory).into(), shape, begin: begin as u32, offsets: OFFSETS as u32, skip };
    let found = device.memory_of(&vec![0xee; 8 * texts.len()]).expect("memory");
    set.find(&mut queue, &batch, &found).expect("looked through");
    let mut words = vec![0u64; texts.len()];
    queue.read(&found, 0, bytemuck::cast_slice_mut(&mut words)).expect("read");
    words.into_iter().map(FirstOnDevice::first).collect()
}

/// What they are by the slow form.
fn expected_firsts(patterns: &Patterns, texts: &[&[u8]], skip: u32) -> Vec<Option<(u32, u32)>> {
    let first = |text: &&[u8]| {
        let matches = oracle::matches(patterns, text.get(skip as usize..).unwrap_or_default(), 0);
        matches.iter().map(|found| (found.end + skip, found.pattern)).min()
    };
    texts.iter().map(first).collect()
}

fn literals(patterns: &[&[u8]]) -> Patterns {
    patterns.iter().copied().collect()
}

/// Finds what the slow form finds, on all devices.
fn check(patterns: &Patterns, texts: &[&[u8]]) -> Vec<Match> {
    let expected = expected(patterns, texts);
    for target in targets() {
        let id = target.0.description().id;
        assert!(find(&target, patterns, texts) == expected, "{id}: {} expected", expected.len());
        for skip in [0, 3] {
            let (found, expected) =
                (firsts(&target, patterns, texts, skip), expected_firsts(patterns, texts, skip));
            assert_eq!(found, expected, "{id}: the first matches of each text, {skip} bytes skipped");
        }
    }
    expected
}

#[test]
fn each_length_is_found_at_each_place() {
    let all: Vec<u8> = (0..=255).map(|byte: u8| byte.wrapping_mul(7) ^ 0x5a).collect();
    let lens = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 16, 31, 64, 65, 128, 255];
    // The first byte of each differs, so that most are no parts of others.
    let patterns: Vec<_> =
        lens.iter().enumerate().map(|(at, len)| &all[at..][..*len.min(&(256 - at))]).collect();
    let patterns = literals(&patterns);
    let mut texts = Vec::new();
    for pattern in patterns.iter() {
        for before in [0, 1, 2, 3, 5, 15, 16, 31, 63, 64, 66] {
            texts.push([&vec![b'x'; before][..], pattern.bytes].concat());
        }
        // All but the last byte, and the first one behind it.
        texts.push(pattern.bytes[..pattern.bytes.len() - 1].to_vec());
        texts.push(vec![pattern.bytes[pattern.bytes.len() - 1] ^ 0x80]);
    }
    let texts: Vec<_> = texts.iter().map(|text| &text[..]).collect();
    let found = check(&patterns, &texts);
    assert!(found.len() >= patterns.len() * 11);
}

#[test]
fn no_match_spans_texts() {
    let patterns = literals(&[b"abcdefgh", b"abcd", b"ab", b"a", b"\0\0\0\0", b"\0\0", b"h\0"]);
    let texts: Vec<&[u8]> = vec![
        b"",
        b"abcd",
        b"efgh",
        b"",
        b"",
        b"abcdefg",
        b"h",
        b"a",
        b"b",
        b"",
        b"abcdefgh",
        b"\0",
        b"\0\0\0",
        b"",
    ];
    assert_eq!(check(&patterns, &texts).len(), 13);
    // Behind the last one there are zeros, or nothing.
    for len in 1..40 {
        let text = vec![b'h'; len];
        assert_eq!(check(&literals(&[b"h\0", b"hhhhhhh\0", b"hhh\0\0"]), &[&text]), []);
    }
}

#[test]
fn empty_sets_and_texts() {
    assert_eq!(check(&Patterns::new(), &[b"", b"abc"]), []);
    assert_eq!(check(&literals(&[b"a", b"abcdefg"]), &[]), []);
    assert_eq!(check(&literals(&[b"a", b"abcdefg"]), &[b"", b"", b""]), []);
    let (none, some): (&[u8], &[u8]) = (b"", b"abcdefg");
    let many = [vec![none; 5000], vec![some], vec![none; 3000]].concat();
    assert_eq!(check(&literals(&[b"abcdefg"]), &many).len(), 1);
}

#[test]
fn duplicates_runs_and_parts_of_each_other() {
    let a = [b'a'; 70];
    let runs: Patterns = (1..=60).map(|len| &a[..len]).collect();
    assert_eq!(check(&runs, &[&a]).len(), (1..=60).map(|len| 71 - len).sum::<usize>());
    let name = b"www.example.co.uk";
    let parts: Patterns = (0..name.len())
        .flat_map(|begin| (begin + 1..=name.len()).map(move |end| &name[begin..end]))
        .collect();
    check(&parts, &[&[&name[..], b" ", name, b"x", &name[1..]].concat(), name]);
    let twice =
        literals(&[b"abcdefgh", b"abcdefgh", b"ab", b"ab", b"abcd", b"abcd", b"\xff\xff\xff\xff\xff"]);
    assert_eq!(check(&twice, &[b"-abcdefgh-", &[0xff; 7]]).len(), 9);
}

#[test]
fn case_and_bounds() {
    let mut patterns = Patterns::new();
    for (bytes, ignore_case) in [
        (&b"Evil.Com"[..], true),
        (b"Evil.Com", false),
        (b"GeT", true),
        (b"get", false),
        (b"[\\]^@`{|", true),
        (b"\xc1\xe1 Zz\x80\xda", true),
    ] {
        patterns.push(Pattern { ignore_case, ..Pattern::new(bytes) }).expect("a pattern");
    }
    for (offset, depth) in [(0, 3), (1, 3), (1, 4), (2, u32::MAX), (u32::MAX, u32::MAX)] {
        let bounds = Bounds { offset, depth };
        patterns.push(Pattern { bounds, ..Pattern::new(b"abc") }).expect("a pattern");
    }
    let texts: Vec<&[u8]> = vec![
        b"evil.com",
        b"EVIL.cOM",
        b"Evil.Com",
        b"GET get gEt",
        b"[\\]^@`{|",
        b"{|}~@`[\\",
        b"\xc1\xe1 zZ\x80\xda",
        b"\xe1\xc1 zZ\x80\xda",
        b"abc",
        b"xabc",
        b"xxabc",
        b"ABC",
    ];
    let found = check(&patterns, &texts);
    let of_text = |text| found.iter().filter(|m| m.text == text).map(|m| m.pattern).collect::<Vec<_>>();
    assert_eq!([of_text(0), of_text(1), of_text(2)], [vec![0], vec![0], vec![0, 1]]);
    assert_eq!([of_text(3), of_text(4), of_text(5)], [vec![2, 2, 3, 2], vec![4], vec![]]);
    assert_eq!([of_text(6), of_text(7), of_text(8)], [vec![5], vec![], vec![6]]);
    assert_eq!([of_text(9), of_text(10), of_text(11)], [vec![7, 8], vec![8, 9], vec![]]);
}

/// Names, one of which lies in each third text.
fn names_and_texts(count: usize) -> (Patterns, Vec<Vec<u8>>) {
    let name = |number: usize| {
        let mut word = (number as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let len = 5 + number % 12;
        let letters = std::iter::repeat_with(move || {
            word = word.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            b"abcdefghijklmnop.-"[(word >> 40) as usize % 18]
        });
        letters.take(len).collect::<Vec<u8>>()
    };
    let all: Vec<_> = (0..count).map(name).collect();
    let texts = (0..count).map(|at| match at % 3 {
        0 => [b"GET /", &all[at][..], b" HTTP/1.1\r\n"].concat(),
        1 => all[at][..all[at].len() - 1].to_vec(),
        _ => [&name(at + count)[..], &name(at + 2 * count)].concat(),
    });
    (all.iter().map(|name| &name[..]).collect(), texts.collect())
}

/// More than the warps of a device take at a time, with many places that pass the filters.
#[test]
fn large_batches_are_those_of_aho_corasick() {
    for target in targets() {
        let count = if target.0.description().id == Id::Host { 1500 } else { 60_000 };
        let (patterns, texts) = names_and_texts(count);
        let texts: Vec<_> = texts.iter().map(|text| &text[..]).collect();
        let automaton = aho_corasick::AhoCorasick::builder()
            .match_kind(aho_corasick::MatchKind::Standard)
            .build(patterns.iter().map(|pattern| pattern.bytes))
            .expect("an automaton");
        let mut expected = Vec::new();
        for (number, text) in texts.iter().enumerate() {
            expected.extend(automaton.find_overlapping_iter(text).map(|found| Match {
                text: number as u32,
                end: found.end() as u32,
                pattern: found.pattern().as_u32(),
            }));
        }
        expected.sort_unstable();
        assert!(expected.len() >= count / 3);
        assert!(find(&target, &patterns, &texts) == expected, "{}", target.0.description().id);
        // The processor agrees.
        let mut matches = Vec::new();
        Matcher::new(patterns).find(&texts, Report::All, &mut Scratch::default(), &mut matches);
        matches.sort_unstable();
        assert!(matches == expected);
    }
}

#[test]
fn matches_beyond_the_room_are_counted() {
    let patterns = literals(&[b"a", b"aa", b"aaaaaaaa"]);
    let text = [b'a'; 300];
    let texts: Vec<&[u8]> = vec![&text, b"b", &text];
    let expected = expected(&patterns, &texts);
    assert_eq!(expected.len(), 2 * (300 + 299 + 293));
    let mut packed = Vec::new();
    let shape = pack(&texts, &mut packed).expect("packed");
    for (device, target) in targets() {
        let set = OnDevice::new(&device, &Image::new(&patterns, &[]), &target).expect("a kernel");
        let mut queue = device.queue().expect("a queue");
        let batch = device.memory_of(&packed).expect("a batch");
        let found = device.memory(8).expect("memory");
        for room in [0, 1, 1000, expected.len() as u32 - 1, expected.len() as u32, 4000] {
            // One more, to see that it is left alone.
            let matches = device.memory_of(&vec![0xee; 12 * (room as usize + 1)]).expect("memory");
            let results = Results { matches: (&matches).into(), room, found: &found };
            set.find(&mut queue, &Batch::packed((&batch).into(), shape), results).expect("looked through");
            let mut count = [0; 8];
            queue.read(&found, 0, &mut count).expect("read");
            assert_eq!(u64::from_le_bytes(count), expected.len() as u64, "room for {room}");
            let mut words = vec![[0u32; 3]; room as usize + 1];
            queue.read(&matches, 0, bytemuck::cast_slice_mut(&mut words)).expect("read");
            let (written, left) = words.split_at((room as usize).min(expected.len()));
            assert!(left.iter().all(|word| *word == [0xeeee_eeee; 3]), "room for {room}");
            let mut written: Vec<_> =
                written.iter().map(|&[text, end, pattern]| Match { text, end, pattern }).collect();
            written.sort_unstable();
            written.dedup();
            assert_eq!(written.len(), (room as usize).min(expected.len()));
            assert!(written.iter().all(|found| expected.binary_search(found).is_ok()), "room for {room}");
        }
        // With more than there is room for at first.
        let texts = vec![&text[..]; 8];
        let mut finder = Finder::with(&device, &Image::new(&patterns, &[]), &target).expect("a kernel");
        for _ in 0..2 {
            let mut all = Vec::new();
            finder.find(&texts, &mut all).expect("looked through");
            all.sort_unstable();
            all.dedup();
            assert_eq!(all.len(), 8 * (300 + 299 + 293));
        }
    }
}

/// Offsets that no batch has: the host's kernels are checked for what they read and write.
#[test]
fn any_offsets_are_harmless() {
    let patterns = literals(&[b"a", b"aaaaaaaa"]);
    for (device, target) in targets() {
        let set = OnDevice::new(&device, &Image::new(&patterns, &[]), &target).expect("a kernel");
        let first = FirstOnDevice::new(&device, &Image::new(&patterns, &[]), &target).expect("a kernel");
        let mut queue = device.queue().expect("a queue");
        let (found, matches) = (device.memory(8).expect("memory"), device.memory(12 * 500).expect("memory"));
        let values = [0, 1, 15, 16, 17, 33, 1 << 28, u32::MAX - 1, u32::MAX];
        for seed in 0..30usize {
            let (len, texts) = (33, 1 + seed % 9);
            let mut packed = vec![b'a'; 48];
            for at in 0..=texts {
                packed.extend(values[(seed * 7 + at * (seed + 1)) % values.len()].to_ne_bytes());
            }
            let shape = Shape { texts: texts as u32, len };
            packed.resize(shape.bytes(), 0xff);
            let batch = device.memory_of(&packed).expect("a batch");
            let results = Results { matches: (&matches).into(), room: 500, found: &found };
            set.find(&mut queue, &Batch::packed((&batch).into(), shape), results).expect("looked through");
            let mut count = [0; 8];
            queue.read(&found, 0, &mut count).expect("read");
            assert!(u64::from_le_bytes(count) <= 33 + 26);
            for skip in values {
                let batch = Batch { skip, ..Batch::packed((&batch).into(), shape) };
                let firsts = device.memory(8 * texts).expect("memory");
                first.find(&mut queue, &batch, &firsts).expect("looked through");
            }
            queue.finish().expect("all are done");
        }
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let (device, target) = targets().remove(0);
    let set = OnDevice::new(&device, &Image::new(&literals(&[b"a"]), &[]), &target).expect("a kernel");
    let mut queue = device.queue().expect("a queue");
    let mut packed = Vec::new();
    let shape = pack(&[b"aaa", b"", b"a"], &mut packed).expect("packed");
    assert_eq!((shape, packed.len()), (Shape { texts: 3, len: 4 }, 32));
    let batch = device.memory_of(&packed).expect("a batch");
    let (found, matches) = (device.memory(8).expect("memory"), device.memory(24).expect("memory"));
    let mut find = |shape, room| {
        let results = Results { matches: (&matches).into(), room, found: &found };
        set.find(&mut queue, &Batch::packed((&batch).into(), shape), results)
    };
    find(shape, 2).expect("all fits");
    let misuse = |result| matches!(result, Err(Error::Device(packetloom_device::Error::Misuse(_))));
    assert!(misuse(find(shape, 3)));
    assert!(misuse(find(Shape { texts: 4, ..shape }, 2)));
    assert!(misuse(find(Shape { len: 17, ..shape }, 2)));
    assert!(misuse(find(Shape { texts: 0, len: 1 }, 2)));
    assert!(misuse(find(Shape { texts: u32::MAX, len: 0 }, 2)));
    find(Shape { texts: 0, len: 0 }, 2).expect("nothing to do");
    let first = FirstOnDevice::new(&device, &Image::new(&literals(&[b"a"]), &[]), &target).expect("a kernel");
    let mut queue = device.queue().expect("a queue");
    let packed = Batch::packed((&batch).into(), shape);
    let mut find = |batch: Batch<'_>, texts: usize| {
        first.find(&mut queue, &batch, &device.memory(8 * texts).expect("memory"))
    };
    find(packed, 3).expect("all fits");
    find(Batch { begin: 16, ..packed }, 3).expect("a word is both an offset and a text");
    assert!(misuse(find(packed, 2)));
    assert!(misuse(find(Batch { begin: 32, ..packed }, 3)));
    assert!(misuse(find(Batch { begin: 8, ..packed }, 3)));
    assert!(misuse(find(Batch { begin: u32::MAX - 15, ..packed }, 3)));
    for offsets in [2, 20, u32::MAX - 3] {
        assert!(misuse(find(Batch { offsets, ..packed }, 3)));
    }
    let mut packed = Vec::new();
    let long = vec![0; Shape::LIMIT / 4];
    let refused = pack(&[&long, &long, &long, &long], &mut packed);
    assert_eq!(refused, Err(Error::Batch { texts: 4, bytes: Shape::LIMIT }));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: packetloom_testing::amount(25, 100), ..Default::default() })]

    #[test]
    fn random_sets_are_those_of_the_oracle((patterns, texts) in sets_of_all_kinds()) {
        let texts: Vec<_> = texts.iter().map(|text| &text[..]).collect();
        check(&set(&patterns), &texts);
    }

    #[test]
    fn many_short_patterns_are_those_of_the_oracle((patterns, texts) in many_short_ones()) {
        let texts: Vec<_> = texts.iter().map(|text| &text[..]).collect();
        check(&set(&patterns), &texts);
    }
}
