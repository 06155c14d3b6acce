//! What a matcher finds, against the slow form and against another implementation.

mod corpus;
mod examples;
mod random;
mod stored;
mod strategies;

use packetloom_pattern::{Match, Matcher, Patterns, Report, Scratch};
use packetloom_simd::Isa;

/// All matches in texts by every instruction set of this processor, with a sample and without one: the same.
pub(crate) fn find_all(patterns: &Patterns, texts: &[&[u8]]) -> Vec<Match> {
    let mut found: Option<Vec<Match>> = None;
    for isa in Isa::all_for_bytes() {
        for sample in [&[][..], texts] {
            let matcher = Matcher::with(patterns.clone(), isa, sample);
            let matches = find(&matcher, texts, Report::All);
            check_one_a_text(&matcher, texts, &matches);
            let first = found.get_or_insert_with(|| matches.clone());
            let differs = first.iter().zip(&matches).position(|(a, b)| a != b);
            assert_eq!(
                first.len(),
                matches.len(),
                "{isa:?}, {} in the sample, from {differs:?}",
                sample.len()
            );
            assert_eq!(differs, None, "{isa:?}, {} in the sample", sample.len());
        }
    }
    found.expect("an instruction set")
}

/// In order.
pub(crate) fn find(matcher: &Matcher, texts: &[&[u8]], report: Report) -> Vec<Match> {
    let mut matches = Vec::new();
    matcher.find(texts, report, &mut Scratch::default(), &mut matches);
    matches.sort_unstable();
    matches
}

/// The reports of one match a text, against those of all.
fn check_one_a_text(matcher: &Matcher, texts: &[&[u8]], all: &[Match]) {
    let mut each = all.to_vec();
    each.sort_by_key(|m| (m.text, m.pattern, m.end));
    each.dedup_by_key(|m| (m.text, m.pattern));
    let mut found = Vec::new();
    matcher.find(texts, Report::Each, &mut Scratch::default(), &mut found);
    assert_eq!(found, each);
    let mut firsts = all.to_vec();
    firsts.dedup_by_key(|m| m.text);
    assert_eq!(find(matcher, texts, Report::First), firsts);
    let any = find(matcher, texts, Report::Any);
    assert_eq!(
        any.iter().map(|m| m.text).collect::<Vec<_>>(),
        firsts.iter().map(|m| m.text).collect::<Vec<_>>()
    );
    assert!(any.iter().all(|m| all.binary_search(m).is_ok()));
}
