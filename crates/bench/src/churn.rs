//! A long time of changes, as fast as they can be made: whether rates, memory and tables stay as they were.
//!
//! One thread makes changes and, between parts of them, classifies. What is seen after each part stands beside the same for tables
//! made anew of the rules as they are in the end: where rules move, packets may meet others, and so cost more or less, without any
//! wear of the tables.

use std::sync::atomic::Ordering;
use std::time::Duration;

use packetloom_classify::formats::Headers;
use packetloom_classify::live::{Change, Writer};
use packetloom_classify::{NO_RULE, Rule, RuleSet};
use packetloom_io::input::Stop;
use serde_json::{Value, json};

use crate::Error;
use crate::changes::{Mover, Moves, check, resident};
use crate::sample::{Clock, measure, quantile, rounded, sorted};

/// How often classifying is timed at each point; the median counts.
const ROUNDS: usize = 5;

/// What is run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Changes of a transaction, at least 1.
    pub changes: usize,
    /// Changes in all, about.
    pub total: u64,
    /// Into how many parts they are divided, at least 1.
    pub parts: u64,
    /// Headers of a batch.
    pub batch: usize,
    /// Where rules go.
    pub moves: Moves,
    /// What is drawn at random depends on it alone.
    pub seed: u64,
    /// Name of the workload.
    pub workload: String,
}

/// Packets a second of CPU time, in millions.
fn rate(writer: &Writer, headers: &Headers, batch: usize) -> f64 {
    let reader = writer.reader();
    let mut first = vec![NO_RULE; batch];
    let mut pass = || {
        for keys in headers.v4.chunks(batch) {
            reader.view().classify_v4(keys, &mut first[..keys.len()]);
        }
        for keys in headers.v6.chunks(batch) {
            reader.view().classify_v6(keys, &mut first[..keys.len()]);
        }
    };
    pass();
    let rounds = (0..ROUNDS).map(|_| measure(Clock::Thread, &mut pass).1.cpu().as_secs_f64());
    headers.len() as f64 / quantile(&sorted(rounds.collect()), 0.5) / 1e6
}

/// What is seen at one point.
fn point(writer: &Writer, headers: &Headers, options: &Options, made: &Made) -> Value {
    let figures = writer.figures();
    let micros = sorted(made.micros.clone());
    let shown = |value: f64| if value.is_finite() { json!(rounded(value)) } else { Value::Null };
    json!({
        "workload": options.workload,
        "changes": made.changes,
        "changes_per_cpu_second": shown((micros.len() * options.changes) as f64 / made.cpu.as_secs_f64()),
        "us_p50": shown(quantile(&micros, 0.5)),
        "us_p99": shown(quantile(&micros, 0.99)),
        "us_max": shown(quantile(&micros, 1.0)),
        "mpps_cpu": rounded(rate(writer, headers, options.batch)),
        "rules": figures.rules,
        "slots": figures.slots,
        "tables": figures.tables,
        "lines": figures.lines,
        "copies": figures.copies,
        "in_bitmaps": figures.in_bitmaps,
        "renewals": figures.renewals,
        "memory_kb": writer.memory() / 1024,
        "resident_kb": resident(),
    })
}

/// Changes that were made since the last point, and in all.
#[derive(Default)]
struct Made {
    changes: u64,
    cpu: Duration,
    micros: Vec<f64>,
}

/// Runs it. A JSON object for the start, for each part, and for tables made anew in the end, whose changes are `null`.
///
/// # Errors
///
/// [`Error::Wrong`] where an answer is not linear's, [`Error::Empty`] without headers or rules, [`Error::Interrupted`].
pub fn run(rules: &RuleSet, headers: &Headers, options: &Options, stop: &Stop) -> Result<Vec<Value>, Error> {
    if headers.is_empty() || rules.rules.is_empty() {
        return Err(Error::Empty);
    }
    let mut mover = Mover::new(rules, options.moves, options.seed);
    let mut writer = Writer::new(mover.rules());
    check(&writer, headers, 0)?;
    let mut made = Made::default();
    let mut points = vec![point(&writer, headers, options, &made)];
    for part in 1..=options.parts {
        made = Made { changes: made.changes, ..Made::default() };
        while made.changes < options.total * part / options.parts {
            let transaction: Vec<Change> = (0..options.changes).map(|_| mover.change()).collect();
            let (applied, round) = measure(Clock::Thread, || writer.apply(&transaction));
            debug_assert!(applied.is_ok(), "the mover knows where rules are");
            made.micros.push(round.cpu().as_nanos() as f64 / 1000.0);
            made.cpu += round.cpu();
            made.changes += options.changes as u64;
            if stop.load(Ordering::Relaxed) {
                return Err(Error::Interrupted);
            }
        }
        check(&writer, headers, part as usize)?;
        points.push(point(&writer, headers, options, &made));
    }
    let now: Vec<Rule> = writer.rules().cloned().collect();
    drop(writer);
    let mut fresh = point(&Writer::new(RuleSet { rules: now }), headers, options, &Made::default());
    fresh["changes"] = Value::Null;
    points.push(fresh);
    Ok(points)
}
