//! Rules that change while headers are classified in another thread.

use std::sync::atomic::{AtomicU8, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use packetloom_classify::formats::Headers;
use packetloom_classify::live::{Change, Figures, Name, Place, Reader, Writer};
use packetloom_classify::{Kind, NO_RULE, Rule, RuleSet};
use packetloom_io::input::Stop;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng as _, SeedableRng as _};
use serde_json::{Value, json};

use crate::Error;
use crate::sample::{Clock, quantile, rounded};

/// Headers whose answers are compared at a time.
const CHECKED: usize = 100;
/// Pairs of windows, one without changes and one with.
const PAIRS: u32 = 8;

/// What is run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Changes of a transaction, at least 1.
    pub changes: usize,
    /// Changes a second at most.
    pub rate: Option<f64>,
    /// How long, all windows together.
    pub time: Duration,
    /// Headers of a batch.
    pub batch: usize,
    /// Where rules go.
    pub moves: Moves,
    /// What is drawn at random depends on it alone.
    pub seed: u64,
    /// Name of the workload.
    pub workload: String,
}

const PAUSE: u8 = 0;
const QUIET: u8 = 1;
const CHANGING: u8 = 2;
const END: u8 = 3;

/// What was classified within a window.
struct Window {
    phase: u8,
    packets: u64,
    wall: Duration,
    cpu: Duration,
}

/// Classifies all headers over and over until the end; what it did in each window.
fn classify(reader: &Reader, headers: &Headers, batch: usize, phase: &AtomicU8) -> Vec<Window> {
    let mut first = vec![NO_RULE; batch];
    let mut windows = Vec::new();
    let (mut now, mut packets, mut wall, mut cpu) = (PAUSE, 0, Instant::now(), Clock::Thread.now());
    let mut turn = |packets_of_batch: usize| {
        packets += packets_of_batch as u64;
        let next = phase.load(Ordering::Relaxed);
        if next != now {
            windows.push(Window {
                phase: now,
                packets,
                wall: wall.elapsed(),
                cpu: Clock::Thread.now() - cpu,
            });
            (now, packets, wall, cpu) = (next, 0, Instant::now(), Clock::Thread.now());
        }
        next != END
    };
    'all: loop {
        for keys in headers.v4.chunks(batch) {
            reader.view().classify_v4(keys, &mut first[..keys.len()]);
            if !turn(keys.len()) {
                break 'all;
            }
        }
        for keys in headers.v6.chunks(batch) {
            reader.view().classify_v6(keys, &mut first[..keys.len()]);
            if !turn(keys.len()) {
                break 'all;
            }
        }
    }
    windows
}

/// Where a rule that was taken out is put in again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moves {
    /// At a place that is drawn at random: in the end the rules stand in any order.
    Anywhere,
    /// Where it stood: the list stays as it is.
    Back,
}

/// Takes a rule out, puts it in again.
pub(crate) struct Mover {
    random: Xoshiro256PlusPlus,
    moves: Moves,
    rules: Vec<Rule>,
    /// The rule that is out.
    out: Option<usize>,
}

impl Mover {
    /// Gives the rules names to be called by. There is at least one.
    pub(crate) fn new(rules: &RuleSet, moves: Moves, seed: u64) -> Self {
        let mut rules = rules.rules.clone();
        for (at, rule) in rules.iter_mut().enumerate() {
            rule.id = Some(name(at));
        }
        Self { random: Xoshiro256PlusPlus::seed_from_u64(seed), moves, rules, out: None }
    }

    /// The rules as they are before the first change.
    pub(crate) fn rules(&self) -> RuleSet {
        RuleSet { rules: self.rules.clone() }
    }

    fn below(&mut self, limit: usize) -> usize {
        self.random.next_u64() as usize % limit
    }

    pub(crate) fn change(&mut self) -> Change {
        match self.out.take() {
            Some(rule) => {
                let place = match self.moves {
                    Moves::Anywhere => Place::At(self.below(self.rules.len())),
                    Moves::Back if rule + 1 == self.rules.len() => Place::Last,
                    Moves::Back => Place::Before(Name::Id(name(rule + 1))),
                };
                Change::Add(place, self.rules[rule].clone())
            }
            None => {
                let rule = self.below(self.rules.len());
                self.out = Some(rule);
                Change::Delete(Name::Id(name(rule)))
            }
        }
    }
}

fn name(rule: usize) -> Box<str> {
    format!("r{rule}").into()
}

/// What the writer did in a window.
struct Made {
    changes: u64,
    time: Duration,
    cpu: Duration,
}

/// Runs it. The result is one JSON object.
///
/// # Errors
///
/// [`Error::Wrong`] where an answer is not linear's, [`Error::Empty`] without headers or rules, [`Error::Interrupted`].
pub fn run(rules: &RuleSet, headers: &Headers, options: &Options, stop: &Stop) -> Result<Value, Error> {
    if headers.is_empty() || rules.rules.is_empty() {
        return Err(Error::Empty);
    }
    let mut mover = Mover::new(rules, options.moves, options.seed);
    let start = Instant::now();
    let mut writer = Writer::new(mover.rules());
    let build = start.elapsed();
    let before = writer.figures();
    let phase = AtomicU8::new(PAUSE);
    let window = options.time / (2 * PAIRS);
    let mut micros = Vec::new();
    let (made, windows) = thread::scope(|scope| {
        let reader = writer.reader();
        let classifying = scope.spawn(|| {
            let reader = reader;
            classify(&reader, headers, options.batch, &phase)
        });
        let mut all = || {
            check(&writer, headers, 0)?;
            let mut made = Vec::new();
            for pair in 0..PAIRS {
                phase.store(QUIET, Ordering::Relaxed);
                thread::sleep(window);
                phase.store(CHANGING, Ordering::Relaxed);
                made.push(change(&mut writer, &mut mover, options, window, &mut micros));
                phase.store(PAUSE, Ordering::Relaxed);
                check(&writer, headers, pair as usize + 1)?;
                if stop.load(Ordering::Relaxed) {
                    return Err(Error::Interrupted);
                }
            }
            Ok(made)
        };
        let made = all();
        phase.store(END, Ordering::Relaxed);
        let windows = classifying.join().map_err(|_| Error::Wrong("the classifying thread failed".into()))?;
        Ok::<_, Error>((made?, windows))
    })?;
    Ok(report(options, headers, build, (before, writer.figures()), &made, &windows, micros))
}

/// Makes changes for the time of a window.
fn change(
    writer: &mut Writer,
    mover: &mut Mover,
    options: &Options,
    window: Duration,
    micros: &mut Vec<f64>,
) -> Made {
    let (start, cpu) = (Instant::now(), Clock::Thread.now());
    let mut changes = 0;
    loop {
        let time = start.elapsed();
        if time >= window {
            return Made { changes, time, cpu: Clock::Thread.now() - cpu };
        }
        if let Some(rate) = options.rate {
            let due = Duration::from_secs_f64(changes as f64 / rate);
            if due > time {
                thread::sleep(due - time);
                continue;
            }
        }
        let transaction: Vec<Change> = (0..options.changes).map(|_| mover.change()).collect();
        let start = Instant::now();
        let applied = writer.apply(&transaction);
        micros.push(start.elapsed().as_nanos() as f64 / 1000.0);
        debug_assert!(applied.is_ok(), "the mover knows where rules are");
        changes += options.changes as u64;
    }
}

/// Compares some answers with linear's over the rules as they are now.
pub(crate) fn check(writer: &Writer, headers: &Headers, turn: usize) -> Result<(), Error> {
    let now: Vec<(u64, Rule)> = writer.serials().zip(writer.rules().cloned()).collect();
    let linear = Kind::Linear.build(&RuleSet { rules: now.iter().map(|(_, rule)| rule.clone()).collect() });
    let (reader, step) = (writer.reader(), (headers.len() / CHECKED).max(1));
    let view = reader.view();
    let compare = |expected: u32, found: u32, key: &dyn std::fmt::Debug| {
        let expected = now.get(expected as usize).map(|(serial, _)| *serial);
        let found = view.serial(found);
        if expected == found {
            return Ok(());
        }
        Err(Error::Wrong(format!(
            "version {} finds rule {found:?} for {key:?}, linear {expected:?}",
            view.version()
        )))
    };
    let (mut expected, mut found) = ([NO_RULE], [NO_RULE]);
    for key in headers.v4.iter().skip(turn).step_by(step) {
        linear.classify_v4(std::slice::from_ref(key), &mut expected);
        view.classify_v4(std::slice::from_ref(key), &mut found);
        compare(expected[0], found[0], key)?;
    }
    for key in headers.v6.iter().skip(turn).step_by(step) {
        linear.classify_v6(std::slice::from_ref(key), &mut expected);
        view.classify_v6(std::slice::from_ref(key), &mut found);
        compare(expected[0], found[0], key)?;
    }
    Ok(())
}

fn report(
    options: &Options,
    headers: &Headers,
    build: Duration,
    (before, after): (Figures, Figures),
    made: &[Made],
    windows: &[Window],
    mut micros: Vec<f64>,
) -> Value {
    let median = |mut values: Vec<f64>| {
        values.sort_by(f64::total_cmp);
        quantile(&values, 0.5)
    };
    let rates = |phase: u8, time: fn(&Window) -> Duration| -> Vec<f64> {
        let of_phase = windows.iter().filter(|window| window.phase == phase);
        of_phase.map(|window| window.packets as f64 / time(window).as_secs_f64() / 1e6).collect()
    };
    let wall: fn(&Window) -> Duration = |window| window.wall;
    let cpu: fn(&Window) -> Duration = |window| window.cpu;
    // Neighbouring windows are compared: what else the machine does is much the same in them.
    let share = |time| {
        let pairs = rates(QUIET, time).into_iter().zip(rates(CHANGING, time));
        rounded(median(pairs.map(|(quiet, changing)| changing / quiet).collect()))
    };
    let per_second: Vec<f64> =
        made.iter().map(|made| made.changes as f64 / made.time.as_secs_f64()).collect();
    let per_cpu_second = made.iter().map(|made| made.changes as f64 / made.cpu.as_secs_f64()).collect();
    micros.sort_by(f64::total_cmp);
    json!({
        "workload": options.workload,
        "changes_per_second": median(per_second.clone()).round(),
        "changes_per_cpu_second": median(per_cpu_second).round(),
        "first_window": per_second.first().map(|rate| rate.round()),
        "last_window": per_second.last().map(|rate| rate.round()),
        "changes_per_transaction": options.changes,
        "transactions": micros.len(),
        "transaction_us_p50": rounded(quantile(&micros, 0.5)),
        "transaction_us_p99": rounded(quantile(&micros, 0.99)),
        "transaction_us_max": micros.last(),
        "mpps_quiet": rounded(median(rates(QUIET, wall))),
        "mpps_changing": rounded(median(rates(CHANGING, wall))),
        "share": share(wall),
        "mpps_cpu_quiet": rounded(median(rates(QUIET, cpu))),
        "mpps_cpu_changing": rounded(median(rates(CHANGING, cpu))),
        "share_cpu": share(cpu),
        "batch": options.batch,
        "headers": headers.len(),
        "rules": after.rules,
        "build_ms": rounded(build.as_secs_f64() * 1000.0),
        "slots": [before.slots, after.slots],
        "lines": [before.lines, after.lines],
        "in_bitmaps": [before.in_bitmaps, after.in_bitmaps],
        "resident_kb": resident(),
    })
}

/// Kilobytes of memory that this process holds, where the system says.
pub(crate) fn resident() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}
