//! Random sets and texts that are made of their pieces.

use packetloom_pattern::{Bounds, Match, Pattern, Patterns, oracle};
use proptest::collection::vec;
use proptest::prelude::*;

/// A pattern: its bytes, whether it ignores case, where it may lie.
pub(crate) type Owned = (Vec<u8>, bool, Bounds);

/// Bytes from few values, so that patterns are parts of each other, or from all.
pub(crate) fn bytes(len: impl Into<proptest::collection::SizeRange> + Clone) -> BoxedStrategy<Vec<u8>> {
    let few = vec(prop::sample::select(&b"aAb\0\xff"[..]), len.clone());
    let letters =
        vec(prop::sample::select(&b"abcdefghijklmnopqrstuvwxyz.-ABCDEFG0123456789"[..]), len.clone());
    prop_oneof![few, letters, vec(any::<u8>(), len)].boxed()
}

fn pattern() -> impl Strategy<Value = Owned> {
    let len = prop_oneof![4 => 1usize..8, 4 => 7usize..14, 1 => 14usize..=255];
    let bounds = prop_oneof![
        4 => Just(Bounds::ANYWHERE),
        1 => (0u32..20, 255u32..300).prop_map(|(offset, depth)| Bounds { offset, depth }),
    ];
    (len.prop_flat_map(|len| bytes(len..=len)), prop::bool::weighted(0.2), bounds)
}

/// A text of whole patterns, parts of them, and other bytes.
fn text(patterns: &[Vec<u8>]) -> impl Strategy<Value = Vec<u8>> + use<> {
    let patterns = patterns.to_vec();
    let piece = (any::<prop::sample::Index>(), 0..8u8, any::<prop::sample::Index>()).prop_map(
        move |(which, kind, at)| {
            let pattern = which.get(&patterns);
            let at = at.index(pattern.len());
            match kind {
                0 => pattern[at..].to_vec(),
                1 => pattern[..at].to_vec(),
                2 => vec![pattern[at]; 9],
                3 => pattern.to_ascii_uppercase(),
                _ => pattern.clone(),
            }
        },
    );
    vec(prop_oneof![3 => piece.boxed(), 1 => bytes(0..40)], 0..12).prop_map(|pieces| pieces.concat())
}

/// Patterns of all kinds, and texts with them.
pub(crate) fn sets_of_all_kinds() -> impl Strategy<Value = (Vec<Owned>, Vec<Vec<u8>>)> {
    vec(pattern(), 1..60).prop_flat_map(|patterns| {
        let bytes: Vec<_> = patterns.iter().map(|(bytes, ..)| bytes.clone()).collect();
        (Just(patterns), vec(text(&bytes), 0..12))
    })
}

/// Enough short patterns for windows at every byte, and texts with them.
pub(crate) fn many_short_ones() -> impl Strategy<Value = (Vec<Owned>, Vec<Vec<u8>>)> {
    vec(bytes(1..8), 151..600).prop_flat_map(|patterns| {
        let texts = vec(text(&patterns), 0..6);
        let owned = patterns.into_iter().map(|bytes| (bytes, false, Bounds::ANYWHERE)).collect();
        (Just(owned), texts)
    })
}

pub(crate) fn set(patterns: &[Owned]) -> Patterns {
    let mut set = Patterns::new();
    for (bytes, ignore_case, bounds) in patterns {
        set.push(Pattern { bytes, ignore_case: *ignore_case, bounds: *bounds }).expect("a pattern");
    }
    set
}

/// What the slow form finds, in order.
pub(crate) fn expected(set: &Patterns, texts: &[&[u8]]) -> Vec<Match> {
    texts.iter().enumerate().flat_map(|(at, text)| oracle::matches(set, text, at as u32)).collect()
}
