//! Strings in payloads, measured: what is found is compared with the slow form and with Hyperscan.

#![allow(missing_docs)]

use packetloom_bench::Error;
use packetloom_bench::strings::{Kind, Options, Payloads, Size, run};
use packetloom_io::input::Stop;
use packetloom_pattern::{Pattern, Patterns, Report};
use packetloom_simd::Isa;
use serde_json::Value;

/// Words of all lengths, some of them parts of others, and some that ignore case.
fn patterns() -> Patterns {
    let mut patterns = Patterns::new();
    let words = [
        "e",
        "th",
        "and",
        "Host",
        "GET /",
        "text/html",
        "Mozilla/5.0 (X11",
        "lang",
        "Accept-Language",
        "html",
    ];
    for (number, word) in words.iter().enumerate() {
        patterns
            .push(Pattern { ignore_case: number % 3 == 0, ..Pattern::new(word.as_bytes()) })
            .expect("a pattern");
    }
    for number in 0..400u32 {
        let word = format!("{}-{}.example", number.wrapping_mul(2_654_435_761) % 10_007, number % 7);
        patterns.push(Pattern::new(word.as_bytes())).expect("a pattern");
    }
    patterns
}

fn options(patterns: Patterns, report: Report, with_peer: bool) -> Options {
    let payloads = |size, kind| Payloads::new(&patterns, size, kind, 20_000, 5);
    let kinds = [
        ("clean", Kind::Text { matching: 0 }),
        ("matching", Kind::Text { matching: 35 }),
        ("without-last", Kind::WithoutLast),
        ("without-first", Kind::WithoutFirst),
        ("runs", Kind::Runs),
        ("long-lists", Kind::LongLists),
    ];
    let mut workloads = Vec::new();
    for (name, kind) in kinds {
        for size in [Size::Fixed(1), Size::Fixed(64), Size::Fixed(583), Size::Mixed] {
            workloads.push((format!("{name} {size:?}"), payloads(size, kind)));
        }
    }
    Options {
        name: "words".into(),
        workloads,
        sample: None,
        report,
        skip: 0,
        isa: Isa::detect(),
        batch: 100,
        with_peer,
        rounds: 1,
        patterns,
    }
}

#[test]
fn every_workload_is_measured() {
    for report in [Report::All, Report::Each, Report::First, Report::Any] {
        let options = options(patterns(), report, false);
        let values = run(&options, &Stop::default()).expect("measured");
        assert_eq!(values.len(), 24);
        for (value, (_, payloads)) in values.iter().zip(&options.workloads) {
            assert_eq!(value["bytes"].as_u64(), Some(payloads.bytes() as u64));
            assert_eq!(value["payloads"].as_u64(), Some(payloads.texts().len() as u64));
            assert!(value["gbps"].as_f64().is_some_and(|rate| rate > 0.0), "{value}");
            assert!(value.get("peer_ratio").is_none());
        }
        let matches = |at: usize| values[at]["matches_per_kb"].as_f64().expect("a number");
        // Clean text has words of the set, too: at least one match in each payload.
        let is_more = matches(6) > matches(2) || report != Report::All;
        assert!(is_more && matches(2) > 0.0, "{report:?}: {} {}", matches(6), matches(2));
    }
}

#[test]
fn payloads_are_the_same_every_time_and_as_long_as_they_are_said_to_be() {
    let patterns = patterns();
    let make = |seed| Payloads::new(&patterns, Size::Fixed(583), Kind::Text { matching: 35 }, 50_000, seed);
    assert_eq!(make(1).texts(), make(1).texts());
    assert_ne!(make(1).texts(), make(2).texts());
    assert!(make(1).texts().iter().all(|text| text.len() == 583));
    let of = [&b"ab"[..], b"", b"c"];
    assert_eq!(Payloads::of(of.into_iter()).texts(), of);
    let skipped = Payloads::of(of.into_iter()).with_skip(1);
    assert_eq!((skipped.texts(), skipped.bytes()), (vec![&b"b"[..], b"", b""], 3));
    // Pieces that patterns have in common, and heads of short ones.
    let words = Patterns::from_iter([&b"common-one"[..], b"common-two", b"short", b"lonely"]);
    let long = Payloads::new(&words, Size::Fixed(100), Kind::LongLists, 10_000, 1);
    let has = |piece: &[u8]| long.texts().iter().any(|text| text.windows(piece.len()).any(|at| at == piece));
    assert!(has(b"common-o") && has(b"shor") && has(b"mmon-two"));
    assert!(!has(b"short") && !has(b"common-one"), "heads, and eight bytes of others");
}

#[test]
fn nothing_to_look_through_is_said() {
    let options = Options {
        workloads: vec![("none".into(), Payloads::of(std::iter::empty()))],
        ..options(patterns(), Report::All, false)
    };
    assert!(matches!(run(&options, &Stop::default()), Err(Error::Empty)));
}

/// Where `libhs.so.5` is; with `PACKETLOOM_HYPERSCAN=1` it has to be.
#[test]
fn hyperscan_finds_the_same() {
    let mut sets = vec![patterns()];
    if let Some(strings) = packetloom_testing::corpus("strings") {
        let names = std::fs::read_to_string(strings.join("top5000.txt")).expect("names");
        sets.push(names.lines().map(str::as_bytes).collect());
    }
    for set in sets {
        for report in [Report::All, Report::Each, Report::Any] {
            let values = match run(&options(set.clone(), report, true), &Stop::default()) {
                Err(Error::Peer(why)) if std::env::var_os("PACKETLOOM_HYPERSCAN").is_none() => {
                    eprintln!("skipped: {why}");
                    return;
                }
                values => values.expect("measured"),
            };
            let has_peer = |value: &Value| {
                value["peer_version"].as_str().is_some_and(|text| text.starts_with("Hyperscan 5."))
            };
            assert!(values.iter().all(has_peer));
            assert!(values.iter().all(|value| value["peer_ratio"].as_f64().is_some_and(|ratio| ratio > 0.0)));
        }
    }
}
