//! Compiled sets that are written and read: they find the same, and nothing else than what was written is taken.

use std::fs::File;
use std::io;
use std::time::Instant;

use packetloom_pattern::{Bounds, Match, Matcher, Pattern, Patterns, Report, Scratch, Unusable};
use packetloom_simd::Isa;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

fn written(matcher: &Matcher) -> Vec<u8> {
    let mut bytes = Vec::new();
    matcher.write_to(&mut bytes).expect("memory");
    bytes
}

fn read(patterns: &Patterns, bytes: &[u8]) -> Result<Matcher, Unusable> {
    Matcher::read_from(patterns.clone(), Isa::detect(), &mut &*bytes)
}

fn found(matcher: &Matcher, texts: &[&[u8]]) -> Vec<Match> {
    let mut matches = Vec::new();
    matcher.find(texts, Report::All, &mut Scratch::default(), &mut matches);
    matches.sort_unstable();
    matches
}

/// Sets of every form: with patterns of every length, with many short ones, with letters in both cases and bounds, with one pattern.
fn sets() -> Vec<Patterns> {
    let words = |lens: &[usize], count: usize| -> Patterns {
        let mut patterns = Patterns::new();
        for number in 0..count {
            let text = format!("{number}-{}-{}", number * 7919 % 1000, "some.longer-text".repeat(16));
            let bytes = &text.as_bytes()[..lens[number % lens.len()]];
            patterns.push(Pattern::new(bytes)).expect("a pattern");
        }
        patterns
    };
    let mut options = words(&[3, 9], 40);
    options
        .push(Pattern { bytes: b"EVIL.com", ignore_case: true, bounds: Bounds::ANYWHERE })
        .expect("a pattern");
    let bounds = Bounds { offset: 3, depth: 40 };
    options.push(Pattern { bytes: b"some.longer", ignore_case: false, bounds }).expect("a pattern");
    vec![
        words(&[1, 2, 3, 4, 5, 6, 7, 8, 20, 255], 3000),
        words(&[5, 30], 2000),
        words(&[12], 5000),
        words(&[3], 50),
        options,
        words(&[9], 1),
    ]
}

#[test]
fn what_is_read_finds_what_was_written_finds() {
    let text = (0..300)
        .map(|number| format!("{number}-{} some.longer-textEvil.COM", number * 7919 % 1000))
        .collect::<String>();
    let texts: Vec<&[u8]> = text.as_bytes().chunks(700).collect();
    for patterns in sets() {
        for sample in [&[][..], &texts] {
            let compiled = Matcher::with(patterns.clone(), Isa::detect(), sample);
            let bytes = written(&compiled);
            let again = read(&patterns, &bytes).expect("what was written");
            let expected = found(&compiled, &texts);
            assert_eq!(found(&again, &texts), expected);
            assert_eq!(again.longest_list(), compiled.longest_list());
            // What is read is written as the same bytes, and every instruction set can use it.
            assert_eq!(written(&again), bytes);
            for isa in Isa::all_for_bytes() {
                let again =
                    Matcher::read_from(patterns.clone(), isa, &mut &*bytes).expect("what was written");
                assert_eq!((again.isa(), found(&again, &texts)), (isa, expected.clone()));
            }
        }
    }
}

#[test]
fn other_files_are_refused_with_their_reasons() {
    let sets = sets();
    let why = |patterns: &Patterns, bytes: &[u8]| read(patterns, bytes).expect_err("refused").to_string();
    for patterns in &sets {
        let bytes = written(&Matcher::new(patterns.clone()));
        // Cut off at every header byte, and in each part of it.
        for len in (0..60).chain((60..bytes.len()).step_by(997)).chain([bytes.len() - 1]) {
            assert_eq!(why(patterns, &bytes[..len]), "truncated", "{len}");
        }
        assert_eq!(why(patterns, &[&bytes[..], b"x"].concat()), "damaged: bytes behind its end");
        let mut other = bytes.clone();
        other[0] ^= 1;
        assert_eq!(why(patterns, &other), "not a compiled set");
        let mut other = bytes.clone();
        other[8] ^= 1;
        assert_eq!(why(patterns, &other), "compiled of other patterns, or by another version");
        let mut other = bytes.clone();
        other[43] = 0xff;
        assert_eq!(why(patterns, &other), "damaged: a number of slots that no such set has");
    }
    // The same bytes with other options, in another order, cut otherwise, and other sets.
    let set = |all: &[Pattern<'_>]| {
        let mut patterns = Patterns::new();
        for &pattern in all {
            patterns.push(pattern).expect("a pattern");
        }
        patterns
    };
    let (a, b) = (Pattern::new(b"abcdefgh"), Pattern::new(b"ijklmnop"));
    let bytes = written(&Matcher::new(set(&[a, b])));
    assert!(read(&set(&[a, b]), &bytes).is_ok());
    for other in [
        set(&[b, a]),
        set(&[a]),
        set(&[a, b, a]),
        set(&[Pattern::new(b"abcdefghi"), Pattern::new(b"jklmnop")]),
        set(&[Pattern { ignore_case: true, ..a }, b]),
        set(&[a, Pattern { bounds: Bounds { offset: 1, depth: u32::MAX }, ..b }]),
        Patterns::new(),
    ] {
        assert!(matches!(read(&other, &bytes), Err(Unusable::OtherSet)));
    }
    // Items of long patterns that say that they are looked for at every byte, or whole.
    let mut other = bytes.clone();
    let end = other.len() - 4;
    let of_kind = |kind: u8| {
        other[end - 3] = kind;
        let sum = crc(&other[..end]);
        other[end..].copy_from_slice(&sum.to_le_bytes());
        read(&set(&[a, b]), &other).err().map(|error| error.to_string())
    };
    let refused = (0..=u8::MAX)
        .filter_map(of_kind)
        .filter(|why| why == "damaged: items of other kinds than the set has")
        .count();
    assert_eq!(refused, 7, "the window alone, and whole patterns of 1 to 6 bytes");
    // The filter on the grid comes behind the number of slots.
    let mut other = bytes.clone();
    for bits in [0, 11, 21, 64] {
        other[44..48].copy_from_slice(&u32::to_le_bytes(bits));
        assert_eq!(
            read(&set(&[a, b]), &other).expect_err("refused").to_string(),
            "damaged: a number of words that no filter has"
        );
    }
    struct Broken;
    impl io::Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::Error::other("no disk"))
        }
    }
    let error = Matcher::read_from(Patterns::new(), Isa::detect(), &mut Broken).expect_err("refused");
    assert_eq!(error.to_string(), "no disk");
}

/// How long it takes to compile a large set, and to read it.
#[test]
fn reading_is_faster_than_compiling() {
    if !packetloom_testing::sweep("times of compiled sets") {
        return;
    }
    for count in [100_000, 1_000_000u64] {
        let mut patterns = Patterns::new();
        for number in 0..count {
            let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let name = format!(
                "{:x}.{}-{}.example",
                mixed >> 40,
                ["www", "mail", "cdn", "shop"][number as usize % 4],
                number
            );
            patterns.push(Pattern::new(name.as_bytes())).expect("a pattern");
        }
        let best = |run: &mut dyn FnMut()| {
            let times = (0..3).map(|_| {
                let begin = Instant::now();
                run();
                begin.elapsed().as_secs_f64()
            });
            times.fold(f64::INFINITY, f64::min)
        };
        let compile = best(&mut || drop(Matcher::new(patterns.clone())));
        let path = std::env::temp_dir().join(format!("stored-{}", std::process::id()));
        let compiled = Matcher::new(patterns.clone());
        let write = best(&mut || {
            compiled.write_to(&mut File::create(&path).expect("a file")).expect("written");
        });
        let read = best(&mut || {
            let mut file = File::open(&path).expect("a file");
            drop(Matcher::read_from(patterns.clone(), Isa::detect(), &mut file).expect("what was written"));
        });
        let bytes = std::fs::metadata(&path).expect("a file").len();
        std::fs::remove_file(&path).expect("removed");
        eprintln!(
            "{count}: compiled in {compile:.3} s, written in {write:.3} s, read in {read:.3} s, {bytes} bytes"
        );
        assert!(read < compile, "{read} of {compile} seconds");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Damage anywhere, also where the checksum is made to fit: refused, or what is read looks through texts without a panic.
    #[test]
    fn damage_is_refused_or_harmless(
        which in 0usize..6,
        damage in vec((any::<Index>(), any::<u8>()), 1..20),
        fits in any::<bool>(),
    ) {
        let patterns = &sets()[which];
        let mut bytes = written(&Matcher::new(patterns.clone()));
        let before = bytes.clone();
        let end = bytes.len() - 4;
        for (at, value) in damage {
            // Behind magic and digest, which are compared.
            let at = 40 + at.index(end - 40);
            bytes[at] = value;
        }
        if fits {
            let sum = crc(&bytes[..end]);
            bytes[end..].copy_from_slice(&sum.to_le_bytes());
        }
        match read(patterns, &bytes) {
            Ok(matcher) => {
                prop_assert!(fits || bytes == before);
                let texts: Vec<Vec<u8>> = patterns.iter().map(|pattern| pattern.bytes.repeat(2)).take(500).collect();
                let texts: Vec<&[u8]> = texts.iter().map(|text| &text[..]).collect();
                for found in found(&matcher, &texts) {
                    let (end, pattern) = (found.end as usize, patterns.get(found.pattern));
                    let text = &texts[found.text as usize][end - pattern.bytes.len()..end];
                    prop_assert!(text.eq_ignore_ascii_case(pattern.bytes));
                }
            }
            Err(_) => prop_assert!(bytes != before),
        }
    }
}

/// CRC-32 of IEEE 802.3, a bit at a time.
fn crc(bytes: &[u8]) -> u32 {
    let step = |sum: u32| if sum & 1 == 1 { sum >> 1 ^ 0xedb8_8320 } else { sum >> 1 };
    !bytes.iter().fold(!0, |sum, &byte| (0..8).fold(sum ^ u32::from(byte), |sum, _| step(sum)))
}
