//! Classifiers over headers in memory, in turns; building an index is timed apart.

use std::sync::atomic::Ordering;
use std::time::Duration;

use packetloom_classify::formats::Headers;
use packetloom_classify::{Kind, RuleSet};
use packetloom_io::input::Stop;
use serde_json::json;

use crate::Error;
use crate::engine::{Engine, Own};
use crate::oracle::Oracle;
use crate::peer::Peer;
use crate::sample::{Clock, Measurement, Round, measure, quantile, rounded, sorted};

/// CPU time of a round at least: short traces are gone over more than once.
const ROUND: Duration = Duration::from_millis(100);

/// What is run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Our classifiers.
    pub kinds: Vec<Kind>,
    /// What they are compared with.
    pub peer: Option<Peer>,
    /// Headers of a batch: each classifier is measured with each.
    pub batches: Vec<usize>,
    /// Rounds, in each of which everything is measured once.
    pub rounds: usize,
    /// Name of the workload.
    pub workload: String,
}

/// Builds the classifiers, compares what they find with the rules one by one and measures them.
///
/// # Errors
///
/// As [`compare`]; [`Error::NoPeer`] and [`Error::Peer`] of the peer.
pub fn run(
    rules: &RuleSet,
    headers: &Headers,
    options: &Options,
    stop: &Stop,
) -> Result<Vec<Measurement>, Error> {
    if headers.is_empty() {
        return Err(Error::Empty);
    }
    let peer = options.peer.map(|peer| peer.prepare(rules, headers)).transpose()?;
    let mut own: Vec<Box<dyn Engine + '_>> = Vec::new();
    for kind in &options.kinds {
        interrupted(stop)?;
        let (classifier, build) = measure(Clock::Thread, || kind.build(rules));
        own.push(Box::new(Own::new(classifier, build.wall(), headers)));
    }
    compare(rules, headers, Engines { own, peer }, options, stop)
}

/// What is compared.
pub struct Engines<'a> {
    /// Ours.
    pub own: Vec<Box<dyn Engine + 'a>>,
    /// What they are compared with.
    pub peer: Option<Box<dyn Engine + 'a>>,
}

/// Compares what engines find with the rules one by one, and measures them in turns: every round runs each engine with each batch size
/// once, so that a ratio of two is of neighbours in time. Of `options`, kinds and peer are not looked at.
///
/// # Errors
///
/// [`Error::Wrong`] where an engine is wrong, or two differ, [`Error::Empty`] without
/// headers, [`Error::Interrupted`].
pub fn compare(
    rules: &RuleSet,
    headers: &Headers,
    engines: Engines<'_>,
    options: &Options,
    stop: &Stop,
) -> Result<Vec<Measurement>, Error> {
    if headers.is_empty() {
        return Err(Error::Empty);
    }
    let has_peer = engines.peer.is_some();
    let mut engines: Vec<_> = engines.peer.into_iter().chain(engines.own).collect();
    let oracle = Oracle::new(rules, headers);
    let mut answers: Option<(String, Vec<u32>)> = None;
    let mut measurements = Vec::new();
    for &batch in &options.batches {
        for engine in &mut engines {
            interrupted(stop)?;
            engine.pass(batch);
            let name = format!("{} in batches of {batch}", engine.name());
            let found = engine.answers();
            match &answers {
                None => {
                    oracle.check(&name, &found)?;
                    answers = Some((name, found));
                }
                Some((other, answers)) => oracle.same((&name, &found), (other, answers))?,
            }
            let passes = warm_up(&mut **engine, batch);
            measurements.push(Measurement {
                workload: options.workload.clone(),
                classifier: Some(engine.name().to_owned()),
                batch,
                device: "cpu",
                packets: headers.len() as u64,
                passes,
                rounds: Vec::new(),
                more: [("rules", json!(rules.rules.len())), ("passes", json!(passes))]
                    .into_iter()
                    .chain(engine.facts())
                    .collect(),
            });
        }
    }
    for _ in 0..options.rounds {
        let mut turns = measurements.iter_mut();
        for _ in &options.batches {
            for (engine, measurement) in engines.iter_mut().zip(&mut turns) {
                interrupted(stop)?;
                let round = passes(&mut **engine, measurement.batch, measurement.passes);
                measurement.rounds.push(round);
            }
        }
    }
    // What was timed must have been right too.
    for engine in &engines {
        if let Some((other, answers)) = &answers {
            oracle.same((engine.name(), &engine.answers()), (other, answers))?;
        }
    }
    if has_peer {
        measurements.chunks_mut(engines.len()).for_each(add_ratios);
    }
    Ok(measurements)
}

/// Fails once the user asked to stop.
pub(crate) fn interrupted(stop: &Stop) -> Result<(), Error> {
    if stop.load(Ordering::Relaxed) { Err(Error::Interrupted) } else { Ok(()) }
}

/// Goes over all headers `count` times.
fn passes(engine: &mut dyn Engine, batch: usize, count: usize) -> Round {
    measure(Clock::Thread, || (0..count).for_each(|_| engine.pass(batch))).1
}

/// Runs an engine for a round's time; the passes that make a round.
fn warm_up(engine: &mut dyn Engine, batch: usize) -> usize {
    let mut count = 1;
    loop {
        let took = passes(engine, batch, count).cpu();
        if took >= ROUND {
            return count;
        }
        // A first pass is slow, and a clock may be coarse: not more than eight times as many at a time.
        let wanted = ROUND.as_secs_f64() / took.as_secs_f64().max(1e-9) * 1.1;
        count = (count as f64 * wanted.clamp(1.1, 8.0)).ceil() as usize;
    }
}

/// Adds to each measurement of one batch size how many times as fast as the first, the peer's, it was round by round.
fn add_ratios(measurements: &mut [Measurement]) {
    let Some((peer, own)) = measurements.split_first_mut() else { return };
    let peer = peer.per_packet(Round::cpu);
    for measurement in own {
        let rounds = peer.iter().zip(measurement.per_packet(Round::cpu));
        let ratios = sorted(rounds.map(|(peer, own)| peer / own).collect());
        for (name, share) in [("peer_ratio", 0.5), ("peer_ratio_min", 0.0), ("peer_ratio_max", 1.0)] {
            measurement.more.push((name, json!(rounded(quantile(&ratios, share)))));
        }
    }
}
