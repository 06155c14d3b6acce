//! Classifiers over headers in memory; building the index is timed apart.

use std::sync::atomic::Ordering;

use packetloom_classify::formats::Headers;
use packetloom_classify::{Classifier, Kind, NO_RULE, RuleSet};
use packetloom_io::input::Stop;
use serde_json::json;

use crate::Error;
use crate::sample::{Measurement, measure};

/// Headers compared with the linear oracle before anything is timed, spread over all of them.
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
/// [`Error::Wrong`] where it disagrees with the linear oracle, [`Error::Empty`] without headers, [`Error::Interrupted`].
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
    check(rules, headers, &first, &*classifier)?;
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

fn check(
    rules: &RuleSet,
    headers: &Headers,
    first: &(Vec<u32>, Vec<u32>),
    classifier: &dyn Classifier,
) -> Result<(), Error> {
    let linear = Kind::Linear.build(rules);
    let step = (headers.len() / CHECKED).max(1);
    let mut expected = [NO_RULE];
    let wrong = |key: &dyn std::fmt::Debug, expected: u32, found: u32| {
        let rule = |position| if position == NO_RULE { "none".into() } else { format!("rule {position}") };
        let (found, expected) = (rule(found), rule(expected));
        Err(Error::Wrong(format!("{} finds {found} for {key:?}, linear {expected}", classifier.kind())))
    };
    for (key, &found) in headers.v4.iter().zip(&first.0).step_by(step) {
        linear.classify_v4(std::slice::from_ref(key), &mut expected);
        if expected[0] != found {
            return wrong(key, expected[0], found);
        }
    }
    for (key, &found) in headers.v6.iter().zip(&first.1).step_by(step) {
        linear.classify_v6(std::slice::from_ref(key), &mut expected);
        if expected[0] != found {
            return wrong(key, expected[0], found);
        }
    }
    Ok(())
}
