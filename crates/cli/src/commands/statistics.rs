//! What a run says of itself from time to time, and when it is sent SIGUSR1, or SIGHUP where that has no other effect.

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use indicatif::ProgressBar;
use packetloom_engine::Outcome;
use packetloom_engine::outcome::Written;
use packetloom_engine::run::{Report, Snapshot, Statistics, WorkerLoad};
use packetloom_io::output::Output;
use packetloom_packet::Timestamp;
use signal_hook::consts::{SIGHUP, SIGUSR1};
use signal_hook::iterator::{Handle, Signals};

use crate::failure::Failure;
use crate::talk;

/// A run that can be asked.
pub(super) struct Asked {
    /// The capture's name.
    pub(super) name: String,
    /// Its bytes, where that is known.
    pub(super) total: Option<u64>,
    /// Of these, what was read.
    pub(super) position: Arc<AtomicU64>,
    pub(super) statistics: Arc<Statistics>,
    pub(super) bar: ProgressBar,
    /// Whether it reads captures.
    pub(super) is_capture: bool,
    /// Why SIGHUP has no effect on it, where it does not have the usual one or a reload.
    pub(super) no_reload: Option<String>,
}

/// How long it is waited for the run to ask the kernel what went through its interfaces.
const INTERFACES: Duration = Duration::from_millis(100);

/// Prints statistics on standard error at each SIGUSR1, and why nothing is read again at each SIGHUP, until it is dropped: in a thread of its
/// own, so that a run answers which waits for packets. Another thread does the same at an interval.
pub(super) struct Reporter {
    run: Arc<Asked>,
    start: Instant,
    signals: Handle,
    thread: Option<JoinHandle<()>>,
    /// Dropped where there is to be no other report.
    over: Option<Sender<()>>,
    regular: Option<JoinHandle<(Option<Output>, Loads)>>,
}

/// What workers did since this was asked for the last time.
struct Loads {
    since: Instant,
    busy: Vec<Duration>,
}

impl Loads {
    fn take(&mut self, statistics: &Statistics) -> Vec<WorkerLoad> {
        let (busy, longest_turns) = (statistics.busy(), statistics.take_longest_turns());
        let elapsed = std::mem::replace(&mut self.since, Instant::now()).elapsed();
        let before = std::mem::take(&mut self.busy).into_iter().chain(std::iter::repeat(Duration::ZERO));
        let workers = busy.iter().zip(before).zip(longest_turns);
        let load = |((&busy, before), longest_turn): ((&Duration, Duration), Duration)| WorkerLoad {
            busy: share(busy.saturating_sub(before), elapsed),
            longest_turn,
        };
        let loads = workers.map(load).collect();
        self.busy = busy;
        loads
    }
}

/// A part of a time, 0 to 1.
fn share(part: Duration, of: Duration) -> f64 {
    (part.as_secs_f64() / of.as_secs_f64().max(1e-9)).min(1.0)
}

impl Reporter {
    /// Reports at an interval, too, if one is given: to an output, or else on standard error.
    pub(super) fn start(
        run: Asked,
        every: Option<Duration>,
        output: Option<Output>,
    ) -> Result<Self, Failure> {
        let fail = |e| Failure::Run(anyhow::anyhow!("cannot handle signals: {e}"));
        let run = Arc::new(run);
        let hangup = run.no_reload.as_ref().map(|_| SIGHUP);
        let mut signals = Signals::new([SIGUSR1].into_iter().chain(hangup)).map_err(fail)?;
        let handle = signals.handle();
        let start = Instant::now();
        let theirs = Arc::clone(&run);
        let answer = move || {
            for signal in &mut signals {
                match &theirs.no_reload {
                    Some(why) if signal == SIGHUP => {
                        theirs.say(&format!("packetloom: SIGHUP: {why}; the run goes on\n"));
                    }
                    _ => theirs.say(&theirs.text(start)),
                }
            }
        };
        let thread = std::thread::Builder::new().name("statistics".into()).spawn(answer).map_err(fail)?;
        let mut reporter =
            Self { run, start, signals: handle, thread: Some(thread), over: None, regular: None };
        if let Some(every) = every {
            let (over, is_over) = channel();
            let run = Arc::clone(&reporter.run);
            let regular = move || run.report(start, every, output, &is_over);
            reporter.over = Some(over);
            let thread = std::thread::Builder::new().name("interval".into()).spawn(regular).map_err(fail)?;
            reporter.regular = Some(thread);
        }
        Ok(reporter)
    }

    /// Ends the reports at an interval with the counters of the whole run, if there was one, and has what became of them be part of it.
    pub(super) fn finish(mut self, outcome: Option<&mut Outcome>) {
        let Some((mut output, mut loads)) = self.end() else { return };
        if let Some(outcome) = outcome {
            let snapshot = Snapshot { verdicts: outcome.verdicts, wire_bytes: outcome.wire_bytes };
            let report = Report {
                interfaces: outcome.interfaces.clone(),
                ..self.run.at(self.start, snapshot, &mut loads)
            };
            self.run.append(&mut output, &Report { is_last: true, ..report });
            if output.settle().is_err() {
                output.say_that_nobody_reads();
            }
            self.run.tell(&mut output);
            outcome.written.push(Written {
                output: output.name().to_owned(),
                not_written: output.not_written(),
                is_whole: output.is_whole(),
            });
        }
    }

    /// Ends the reports at an interval; where they went, and what workers did until then.
    fn end(&mut self) -> Option<(Output, Loads)> {
        self.over = None;
        let (output, loads) = self.regular.take()?.join().ok()?;
        Some((output?, loads))
    }
}

impl Drop for Reporter {
    fn drop(&mut self) {
        self.end();
        self.signals.close();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Asked {
    /// Prints what was asked for.
    fn say(&self, text: &str) {
        self.bar.suspend(|| talk::error(text));
    }

    /// Reports at an interval, until there is nobody any more who could say that it is over; returns where that went.
    fn report(
        &self,
        start: Instant,
        every: Duration,
        mut output: Option<Output>,
        is_over: &Receiver<()>,
    ) -> (Option<Output>, Loads) {
        let mut loads = Loads { since: start, busy: Vec::new() };
        // Beyond what the clock has, never.
        let mut due = start.checked_add(every);
        loop {
            let left = due.map_or(Duration::MAX, |due| due.saturating_duration_since(Instant::now()));
            if is_over.recv_timeout(left) != Err(RecvTimeoutError::Timeout) {
                return (output, loads);
            }
            match &mut output {
                Some(output) => {
                    let interfaces = self.statistics.interfaces(INTERFACES);
                    let report = self.at(start, self.statistics.snapshot(), &mut loads);
                    self.append(output, &Report { interfaces, ..report });
                }
                None => self.say(&self.text(start)),
            }
            // Those that are late are left out, and not made up for.
            let now = Instant::now();
            while let Some(next) = due.filter(|due| *due <= now) {
                due = next.checked_add(every);
            }
        }
    }

    /// What it has counted, now.
    fn at(&self, start: Instant, snapshot: Snapshot, loads: &mut Loads) -> Report {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Report {
            time: Timestamp::from_nanos(u64::try_from(wall.as_nanos()).unwrap_or(u64::MAX)),
            elapsed: start.elapsed(),
            snapshot,
            read_bytes: self.is_capture.then(|| self.position.load(Ordering::Relaxed)),
            interfaces: Vec::new(),
            workers: loads.take(&self.statistics),
            is_last: false,
        }
    }

    /// Appends a line to an output that has a thread of its own.
    fn append(&self, output: &mut Output, report: &Report) {
        let line = format!("{}\n", report.json());
        // Neither fails but where nobody reads.
        if output.write_items(line.as_bytes(), 1).and_then(|()| output.flush()).is_err() {
            output.say_that_nobody_reads();
        }
        self.tell(output);
    }

    /// Says what is to be known of an output.
    fn tell(&self, output: &mut Output) {
        while let Some(text) = output.notice() {
            self.say(&format!("packetloom: warning: {text}\n"));
        }
    }

    /// One line.
    fn text(&self, start: Instant) -> String {
        let Snapshot { verdicts, wire_bytes } = self.statistics.snapshot();
        let dropped: u64 = verdicts.dropped().map(|(_, count)| count).sum();
        let reasons: Vec<_> = verdicts
            .dropped()
            .filter(|&(_, count)| count > 0)
            .map(|(reason, count)| format!("{} {count}", reason.name()))
            .collect();
        let mut text = format!(
            "packetloom: received {}, passed {}, dropped {dropped}",
            verdicts.received(),
            verdicts.passed
        );
        // Writing to a String cannot fail.
        if !reasons.is_empty() {
            let _ = write!(text, " ({})", reasons.join(", "));
        }
        let _ = write!(text, "; {}: byte {}", self.name, self.position.load(Ordering::Relaxed));
        if let Some(total) = self.total {
            let _ = write!(text, " of {total}");
        }
        let elapsed = start.elapsed();
        let busy = self.statistics.busy();
        if !busy.is_empty() {
            let busy: Vec<_> =
                busy.iter().map(|&busy| format!("{:.0} %", share(busy, elapsed) * 100.0)).collect();
            let _ = write!(text, "; workers busy {}", busy.join(", "));
        }
        text + "; " + &talk::rates(verdicts.received(), wire_bytes, elapsed)
    }
}
