//! Random sets and texts.

use packetloom_pattern::{Bounds, Matcher, Part, Report, Scratch, oracle};
use packetloom_simd::Isa;
use proptest::prelude::*;

use crate::find_all;
use crate::strategies::{expected, many_short_ones, set, sets_of_all_kinds};

proptest! {
    #![proptest_config(ProptestConfig { cases: packetloom_testing::amount(100, 400), ..Default::default() })]

    #[test]
    fn matches_are_those_of_the_oracle((patterns, texts) in sets_of_all_kinds()) {
        let set = set(&patterns);
        let texts: Vec<_> = texts.iter().map(|text| &text[..]).collect();
        prop_assert_eq!(find_all(&set, &texts), expected(&set, &texts));
    }

    /// Of parts, what has a new byte, and lies in the bounds of the longer text.
    #[test]
    fn parts_have_the_matches_with_new_bytes(
        (patterns, texts) in sets_of_all_kinds(),
        places in prop::collection::vec((any::<[prop::sample::Index; 3]>(), -20i64..40), 12),
    ) {
        let unbounded = patterns.iter().map(|(bytes, ignore_case, _)| (bytes.clone(), *ignore_case, Bounds::ANYWHERE));
        let (set, unbounded) = (set(&patterns), set(&unbounded.collect::<Vec<_>>()));
        let (mut all, mut parts, mut expected) = (Vec::new(), Vec::new(), Vec::new());
        for (number, (text, (places, begin))) in (0..).zip(texts.iter().zip(&places)) {
            let mut places = places.map(|place| place.index(text.len() + 1) as u32);
            places.sort_unstable();
            let new = (places[0], places[1 + number as usize % 2]);
            all.push(&text[..]);
            parts.push(Part { begin: *begin, new });
            expected.extend(oracle::matches(&unbounded, text, number).into_iter().filter(|found| {
                let (bytes, _, bounds) = &patterns[found.pattern as usize];
                let from = found.end - bytes.len() as u32;
                let place = (begin + i64::from(from)).max(0) as u64;
                from < new.1 && found.end > new.0 && bounds.hold(place, place + bytes.len() as u64)
            }));
        }
        for isa in Isa::all_for_bytes() {
            let mut found = Vec::new();
            let matcher = Matcher::with(set.clone(), isa, &[]);
            matcher.find_in_parts(&all, &parts, Report::All, &mut Scratch::default(), &mut found);
            found.sort_unstable();
            prop_assert_eq!(&found, &expected);
        }
    }

    /// Enough short patterns for windows at every byte.
    #[test]
    fn many_short_patterns_are_those_of_the_oracle((patterns, texts) in many_short_ones()) {
        let set = set(&patterns);
        let texts: Vec<_> = texts.iter().map(|text| &text[..]).collect();
        prop_assert_eq!(find_all(&set, &texts), expected(&set, &texts));
    }
}
