//! A long time of changes, as fast as they can be made: whether rates, memory and tables stay as they were.
//!
//! One thread makes changes and, between parts of them, classifies. What is seen after each part stands beside the same for tables
//! made anew of the rules as they are in the end, and both are timed in turns: where rules move, packets may meet others, and so cost
//! more or less, without any wear of the tables.

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

/// Transactions that worn tables and new ones make in turns, in each round.
const COMPARED: usize = 1_000;

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

/// CPU time of classifying all headers once.
fn pass(writer: &Writer, headers: &Headers, batch: usize) -> Duration {
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
    measure(Clock::Thread, &mut pass).1.cpu()
}

/// Packets a second of CPU time, in millions.
fn rate(writer: &Writer, headers: &Headers, batch: usize) -> f64 {
    pass(writer, headers, batch);
    let rounds = (0..ROUNDS).map(|_| pass(writer, headers, batch).as_secs_f64());
    headers.len() as f64 / quantile(&sorted(rounds.collect()), 0.5) / 1e6
}

/// Makes one transaction; the CPU time that it took.
fn make(writer: &mut Writer, transaction: &[Change]) -> Duration {
    let (made, round) = measure(Clock::Thread, || writer.apply(transaction));
    debug_assert!(made.is_ok(), "the mover knows where rules are");
    round.cpu()
}

/// How many times as fast the worn tables are as new ones of the same rules, in classifying and in changing, in turns: medians.
fn beside(
    worn: &mut Writer,
    new: &mut Writer,
    mover: &mut Mover,
    headers: &Headers,
    options: &Options,
) -> [f64; 2] {
    let rounds = (0..ROUNDS).map(|_| {
        let [of_worn, of_new] = [&*worn, &*new].map(|writer| pass(writer, headers, options.batch));
        let classifying = of_new.as_secs_f64() / of_worn.as_secs_f64();
        let (mut of_worn, mut of_new) = (Duration::ZERO, Duration::ZERO);
        for _ in 0..COMPARED {
            let transaction: Vec<Change> = (0..options.changes).map(|_| mover.change()).collect();
            of_worn += make(worn, &transaction);
            of_new += make(new, &transaction);
        }
        [classifying, of_new.as_secs_f64() / of_worn.as_secs_f64()]
    });
    let rounds: Vec<_> = rounds.collect();
    [0, 1].map(|what| rounded(quantile(&sorted(rounds.iter().map(|round| round[what]).collect()), 0.5)))
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
        "worn_classifies": Value::Null,
        "worn_changes": Value::Null,
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
            let cpu = make(&mut writer, &transaction);
            made.micros.push(cpu.as_nanos() as f64 / 1000.0);
            made.cpu += cpu;
            made.changes += options.changes as u64;
            if stop.load(Ordering::Relaxed) {
                return Err(Error::Interrupted);
            }
        }
        check(&writer, headers, part as usize)?;
        points.push(point(&writer, headers, options, &made));
    }
    let now: Vec<Rule> = writer.rules().cloned().collect();
    let mut new = Writer::new(RuleSet { rules: now });
    let mut fresh = point(&new, headers, options, &Made::default());
    let [classifying, changing] = beside(&mut writer, &mut new, &mut mover, headers, options);
    fresh["changes"] = Value::Null;
    fresh["worn_classifies"] = json!(classifying);
    fresh["worn_changes"] = json!(changing);
    points.push(fresh);
    Ok(points)
}
