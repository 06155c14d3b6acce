//! Classifiers over headers in memory; building the index is timed apart.

use std::sync::atomic::Ordering;

use packetloom_classify::compiled::{CompiledRule, MatchKey, first_match};
use packetloom_classify::formats::Headers;
use packetloom_classify::{Kind, NO_RULE, RuleSet};
use packetloom_io::input::Stop;
use serde_json::json;

use crate::Error;
use crate::sample::{Measurement, measure};

/// Headers for which the rules are compared one by one before anything is timed, spread over all of them.
const CHECKED: usize = 2_000;

/// What is run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The classifier.
    pub kind: Kind,
    /// Headers of a batch.
    pub batch: usize,
    /// Rounds over all headers.
    pub rounds: usize,
    /// Name of the workload.
    pub workload: String,
}

/// Times one classifier.
///
/// # Errors
///
/// [`Error::Wrong`] where comparing the rules one by one finds another, [`Error::Empty`] without headers, [`Error::Interrupted`].
pub fn run(rules: &RuleSet, headers: &Headers, options: &Options, stop: &Stop) -> Result<Measurement, Error> {
    if headers.is_empty() {
        return Err(Error::Empty);
    }
    let (classifier, build) = measure(|| options.kind.build(rules));
    let mut first = (vec![NO_RULE; headers.v4.len()], vec![NO_RULE; headers.v6.len()]);
    let classify = |first: &mut (Vec<u32>, Vec<u32>)| {
        for (keys, first) in headers.v4.chunks(options.batch).zip(first.0.chunks_mut(options.batch)) {
            classifier.classify_v4(keys, first);
        }
        for (keys, first) in headers.v6.chunks(options.batch).zip(first.1.chunks_mut(options.batch)) {
            classifier.classify_v6(keys, first);
        }
    };
    classify(&mut first);
    let step = (headers.len() / CHECKED).max(1);
    check(rules, &headers.v4, &first.0, step, options.kind)?;
    check(rules, &headers.v6, &first.1, step, options.kind)?;
    let mut rounds = Vec::new();
    for _ in 0..options.rounds {
        if stop.load(Ordering::Relaxed) {
            return Err(Error::Interrupted);
        }
        rounds.push(measure(|| classify(&mut first)).1);
    }
    Ok(Measurement {
        workload: options.workload.clone(),
        classifier: Some(options.kind.name()),
        batch: options.batch,
        device: "cpu",
        packets: headers.len() as u64,
        rounds,
        more: vec![
            ("rules", json!(rules.rules.len())),
            ("build_ms", json!(build.wall().as_micros() as f64 / 1000.0)),
        ],
    })
}

fn check<K: MatchKey>(
    rules: &RuleSet,
    keys: &[K],
    first: &[u32],
    step: usize,
    kind: Kind,
) -> Result<(), Error> {
    let rules = CompiledRule::all(rules);
    let name = |position| if position == NO_RULE { "none".into() } else { format!("rule {position}") };
    for (key, &found) in keys.iter().zip(first).step_by(step) {
        let expected = first_match(&rules, key);
        if found != expected {
            let (found, expected) = (name(found), name(expected));
            return Err(Error::Wrong(format!(
                "{kind} finds {found} for {key:?}, one by one it is {expected}"
            )));
        }
    }
    Ok(())
}
