use super::*;
use crate::Config as _;

#[test]
fn numbers_are_those_of_splitmix64() {
    // The first ones of this seed as others compute them.
    let expected = [
        6_457_827_717_110_365_317,
        3_203_168_211_198_807_973,
        9_817_491_932_198_370_423,
        4_593_380_528_125_082_431,
        16_408_922_859_458_223_821,
    ];
    let mut state = 1_234_567u64;
    for number in expected {
        state = state.wrapping_add(GAMMA);
        assert_eq!(mix(state), number);
    }
}

#[test]
fn a_random_sample_has_about_the_packets_that_it_should_and_no_period() {
    let interval = NonZeroU32::new(10).unwrap();
    let numbers = |seed| {
        let sample = Sample { interval, choice: Choice::Random(seed) };
        (0..100_000).filter(|&number| sample.takes(number)).collect::<Vec<_>>()
    };
    let (one, other) = (numbers(1), numbers(2));
    // Ten standard deviations, of a fixed seed.
    assert!((9_050..10_950).contains(&one.len()), "{}", one.len());
    assert_ne!(one, other);
    let gaps: std::collections::BTreeSet<_> = one.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(gaps.len() > 30, "{gaps:?}");
}

#[test]
fn text_says_what_is_taken() {
    let read = |text: &str| text.parse::<Config>();
    let config = |interval, method, seed| Config { interval: Interval::clamped(interval), method, seed };
    assert_eq!(read("100"), Ok(config(100, Method::Systematic, None)));
    assert_eq!(read("1k,random"), Ok(config(1_000, Method::Random, None)));
    assert_eq!(read("2,random,18446744073709551615"), Ok(config(2, Method::Random, Some(u64::MAX))));
    for (text, why) in [
        ("1", "expected a number from 2 to 4294967295"),
        ("0", "expected a number from 2"),
        ("5000000000", "expected a number from 2"),
        ("", "not a number"),
        ("10,systematic", "expected N, N,random or N,random,SEED"),
        ("10,random,", "not a number"),
        ("10,random,1,2", "expected N, N,random or N,random,SEED"),
    ] {
        assert!(read(text).unwrap_err().contains(why), "{text}: {:?}", read(text));
    }
    let context = crate::Context { folder: std::path::Path::new(""), ignore_flags: false };
    let seeded = config(2, Method::Systematic, Some(1)).prepare(&context);
    assert!(seeded.err().unwrap().to_string().contains("a seed; expected it with method"));
}
