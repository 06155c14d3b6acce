//! How many lines a log may have in a time.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Serialize;

use crate::units::{Bounded, Rate};

/// A number of lines of a log.
pub type LogBurst = Bounded<1, 1_000_000>;

/// Lines that may come at once unless a chain file says otherwise.
pub fn default_burst() -> LogBurst {
    LogBurst::clamped(100)
}

/// Where the log goes, and how much of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LogSettings {
    pub(crate) path: PathBuf,
    pub(crate) rate: Rate,
    pub(crate) burst: LogBurst,
}

/// A token bucket in packet time, full at first. Credit is counted in nanoseconds times the rate's count, so nothing is
/// rounded.
#[derive(Clone)]
pub(crate) struct Bucket {
    rate: Rate,
    /// Credit at most.
    full: u128,
    credit: u128,
    /// The time up to which credit was given.
    until: u64,
}

/// A packet that is late by no more finds time where it was. When time goes back further, the clock was set: credit
/// is given from there on, none for the step itself.
const LATE_NANOS: u64 = 1_000_000_000;

impl Bucket {
    pub(crate) fn new(rate: Rate, burst: LogBurst) -> Self {
        let full = u128::from(rate.parts().1) * burst.get() as u128;
        Self { rate, full, credit: full, until: 0 }
    }

    /// Takes a token, if there is one at `time`.
    pub(crate) fn take(&mut self, time: u64) -> bool {
        let (count, cost) = self.rate.parts();
        let elapsed = time.saturating_sub(self.until);
        self.credit = self.full.min(self.credit + u128::from(elapsed) * u128::from(count));
        if elapsed > 0 || self.until - time > LATE_NANOS {
            self.until = time;
        }
        let left = self.credit.checked_sub(cost.into());
        self.credit = left.unwrap_or(self.credit);
        left.is_some()
    }
}

/// Lines that were written, and those that were not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct LogCounts {
    /// Lines that were written.
    pub(crate) lines: u64,
    /// Lines that the rate left out.
    pub(crate) suppressed: u64,
}

impl LogCounts {
    /// Adds what another worker or the log itself counted.
    pub(crate) fn add(&mut self, other: Self) {
        self.lines += other.lines;
        self.suppressed += other.suppressed;
    }
}
