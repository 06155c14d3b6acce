//! What a run says of itself when it is sent SIGUSR1, or SIGHUP where that has no other effect.

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;

use indicatif::ProgressBar;
use packetloom_engine::run::{Snapshot, Statistics};
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
    /// Why SIGHUP has no effect on it, where it does not have the usual one or a reload.
    pub(super) no_reload: Option<String>,
}

/// Prints statistics on standard error at each SIGUSR1, and why nothing is read again at each SIGHUP, until it is dropped: in a thread of its
/// own, so that a run answers which waits for packets.
pub(super) struct Reporter {
    signals: Handle,
    thread: Option<JoinHandle<()>>,
}

impl Reporter {
    pub(super) fn start(run: Asked) -> Result<Self, Failure> {
        let fail = |e| Failure::Run(anyhow::anyhow!("cannot handle signals: {e}"));
        let hangup = run.no_reload.as_ref().map(|_| SIGHUP);
        let mut signals = Signals::new([SIGUSR1].into_iter().chain(hangup)).map_err(fail)?;
        let handle = signals.handle();
        let start = Instant::now();
        let answer = move || {
            for signal in &mut signals {
                let text = match &run.no_reload {
                    Some(why) if signal == SIGHUP => format!("packetloom: SIGHUP: {why}; the run goes on\n"),
                    _ => run.text(start),
                };
                // It was asked for.
                run.bar.suspend(|| talk::error(&text));
            }
        };
        let thread = std::thread::Builder::new().name("statistics".into()).spawn(answer).map_err(fail)?;
        Ok(Self { signals: handle, thread: Some(thread) })
    }
}

impl Drop for Reporter {
    fn drop(&mut self) {
        self.signals.close();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Asked {
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
        text + "; " + &talk::rates(verdicts.received(), wire_bytes, start.elapsed())
    }
}
