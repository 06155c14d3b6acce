//! Comparing classifiers with what they should find.

use std::sync::Arc;

use packetloom_classify::compiled::{self, CompiledRule, MatchKey};
use packetloom_classify::hybrid::Hybrid;
use packetloom_classify::linear::Linear;
use packetloom_classify::{Classifier, Kind, RuleSet};
use packetloom_packet::{Key, MatchKey4, MatchKey6};
use packetloom_simd::Isa;

use crate::model;

/// Sizes of batches: none, one, about a vector, about a group, and more.
pub(crate) const BATCHES: [usize; 10] = [0, 1, 7, 8, 9, 127, 128, 129, 256, 1000];

/// Every kind, and those with vector instructions with each instruction set that this machine has.
pub(crate) fn classifiers(rules: &RuleSet) -> Vec<(String, Arc<dyn Classifier>)> {
    let linear = |isa: Isa| -> Arc<dyn Classifier> { Arc::new(Linear::with_isa(rules, isa)) };
    // Of these two, those that `build` chooses are among them.
    let by_isa = |kind: &Kind| matches!(kind, Kind::Linear | Kind::Hybrid);
    let kinds =
        Kind::ALL.into_iter().filter(|kind| !by_isa(kind)).map(|kind| (kind.to_string(), kind.build(rules)));
    let linears = Isa::all_available().into_iter().map(|isa| (format!("linear with {isa:?}"), linear(isa)));
    let hybrid = |isa: Isa| -> Arc<dyn Classifier> { Arc::new(Hybrid::with_isa(rules, isa)) };
    let hybrids = Isa::all_available().into_iter().map(|isa| (format!("hybrid with {isa:?}"), hybrid(isa)));
    kinds.chain(linears).chain(hybrids).collect()
}

/// What classifies batches of either family.
pub(crate) trait Classifies {
    fn v4(&mut self, keys: &[MatchKey4], first: &mut [u32]);
    fn v6(&mut self, keys: &[MatchKey6], first: &mut [u32]);
}

impl Classifies for &dyn Classifier {
    fn v4(&mut self, keys: &[MatchKey4], first: &mut [u32]) {
        self.classify_v4(keys, first);
    }

    fn v6(&mut self, keys: &[MatchKey6], first: &mut [u32]) {
        self.classify_v6(keys, first);
    }
}

/// The keys of each family, in their order.
pub(crate) fn by_family(keys: &[Key]) -> (Vec<MatchKey4>, Vec<MatchKey6>) {
    let v4 = keys.iter().filter_map(|key| if let Key::V4(key) = key { Some(*key) } else { None });
    let v6 = keys.iter().filter_map(|key| if let Key::V6(key) = key { Some(*key) } else { None });
    (v4.collect(), v6.collect())
}

/// What stands for each key in the list of its family, in the order of the keys.
fn in_order(keys: &[Key], (v4, v6): (Vec<u32>, Vec<u32>)) -> Vec<u32> {
    let (mut v4, mut v6) = (v4.into_iter(), v6.into_iter());
    keys.iter().map(|key| if matches!(key, Key::V4(_)) { v4.next() } else { v6.next() }.unwrap()).collect()
}

/// What the classifier says of each header, given to it in batches of this size; 0 is all of them, and none before.
pub(crate) fn classify(mut classifier: impl Classifies, keys: &[Key], batch: usize) -> Vec<u32> {
    let (v4, v6) = by_family(keys);
    // What stands there before does not matter.
    let mut first = (vec![7; v4.len()], vec![7; v6.len()]);
    let batch = if batch > 0 {
        batch
    } else {
        classifier.v4(&[], &mut []);
        classifier.v6(&[], &mut []);
        keys.len().max(1)
    };
    for (keys, first) in v4.chunks(batch).zip(first.0.chunks_mut(batch)) {
        classifier.v4(keys, first);
    }
    for (keys, first) in v6.chunks(batch).zip(first.1.chunks_mut(batch)) {
        classifier.v6(keys, first);
    }
    in_order(keys, first)
}

/// Where a classifier first differs from `expected`, with any of these sizes of batches.
fn difference_from(expected: &[u32], rules: &RuleSet, keys: &[Key], batches: &[usize]) -> Option<String> {
    classifiers(rules).into_iter().find_map(|(name, classifier)| {
        batches.iter().find_map(|&batch| {
            let found = classify(&*classifier, keys, batch);
            let at = (0..keys.len()).find(|&at| found[at] != expected[at])?;
            let (found, expected) = (found[at], expected[at]);
            Some(format!("{name}, batch {batch}: {found} instead of {expected} for {:x?}", keys[at]))
        })
    })
}

/// Where a classifier, or the oracle, first differs from the model.
pub(crate) fn difference(rules: &RuleSet, keys: &[Key], batch: usize) -> Option<String> {
    let expected: Vec<_> = keys.iter().map(|key| model::first_match(rules, key)).collect();
    if by_oracle(rules, keys) != expected {
        return Some("the oracle differs from the model".into());
    }
    difference_from(&expected, rules, keys, &[batch])
}

/// What comparing the compiled rules one by one finds. Quicker than the model, and it says what keys that no packet has match.
pub(crate) fn by_oracle(rules: &RuleSet, keys: &[Key]) -> Vec<u32> {
    fn first<K: MatchKey>(rules: &RuleSet, keys: &[K]) -> Vec<u32> {
        let rules = CompiledRule::all(rules);
        keys.iter().map(|key| compiled::first_match(&rules, key)).collect()
    }
    let (v4, v6) = by_family(keys);
    in_order(keys, (first(rules, &v4), first(rules, &v6)))
}

/// All classifiers find what the model says.
pub(crate) fn agree(rules: &RuleSet, keys: &[Key]) {
    assert_eq!(difference(rules, keys, 256), None);
}

/// All classifiers find what the oracle finds.
pub(crate) fn agree_with_oracle(rules: &RuleSet, keys: &[Key], batches: &[usize]) {
    assert_eq!(difference_from(&by_oracle(rules, keys), rules, keys, batches), None);
}
