//! What a run has counted so far, for whoever asks in another thread while it goes on.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use packetloom_nf::summary::{self, NamedCounts};
use packetloom_packet::Timestamp;
use packetloom_packet::verdict::VerdictCounts;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use crate::outcome::{Interface, InterfaceSummary};

/// Counters that a run brings up to date after each batch.
#[derive(Debug, Default)]
pub struct Statistics {
    snapshot: Mutex<Snapshot>,
    interfaces: Mutex<Interfaces>,
    has_interfaces: Condvar,
    /// Batches that the run is done with.
    batches: AtomicU64,
    /// What the run does that may take long while packets wait.
    pauses: AtomicU32,
}

/// As long as it is there, nobody expects that the run is done with batches.
pub(super) struct Pause(Arc<Statistics>);

impl Drop for Pause {
    fn drop(&mut self) {
        self.0.pauses.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The counters of a run after one of its batches.
#[derive(Clone, Copy, Debug, Default)]
pub struct Snapshot {
    /// Every packet that was judged until then, in exactly one counter.
    pub verdicts: VerdictCounts,
    /// Their bytes on the wire.
    pub wire_bytes: u64,
}

/// What went through interfaces, which only the run can ask the kernel for.
#[derive(Debug, Default)]
struct Interfaces {
    /// Whether somebody waits for it.
    is_asked: bool,
    last: Vec<Interface>,
}

impl Statistics {
    /// The counters as they are now: those of whole batches.
    pub fn snapshot(&self) -> Snapshot {
        *self.snapshot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What went through the interfaces; where the run does not say so within a time, what it said the last time.
    pub fn interfaces(&self, within: Duration) -> Vec<Interface> {
        let mut interfaces = self.lock_interfaces();
        interfaces.is_asked = true;
        let waited = self.has_interfaces.wait_timeout_while(interfaces, within, |found| found.is_asked);
        waited.unwrap_or_else(PoisonError::into_inner).0.last.clone()
    }

    /// Batches that the run is done with so far; over interfaces there are some every 100 ms even if no packet comes. `None` while it does what
    /// may take long: it begins, saves state, goes over to another chain, or ends.
    pub fn progress(&self) -> Option<u64> {
        let batches = self.batches.load(Ordering::Relaxed);
        (batches > 0 && self.pauses.load(Ordering::Relaxed) == 0).then_some(batches)
    }

    /// Something begins that may take long.
    pub(super) fn pause(self: &Arc<Self>) -> Pause {
        self.pauses.fetch_add(1, Ordering::Relaxed);
        Pause(Arc::clone(self))
    }

    pub(super) fn set(&self, snapshot: Snapshot) {
        self.batches.fetch_add(1, Ordering::Relaxed);
        *self.snapshot.lock().unwrap_or_else(PoisonError::into_inner) = snapshot;
    }

    /// Tells who asks what went through the interfaces, if that can be found out.
    pub(super) fn answer(&self, find: impl FnOnce() -> Option<Vec<Interface>>) {
        let mut interfaces = self.lock_interfaces();
        if std::mem::take(&mut interfaces.is_asked) {
            if let Some(found) = find() {
                interfaces.last = found;
            }
            self.has_interfaces.notify_all();
        }
    }

    fn lock_interfaces(&self) -> MutexGuard<'_, Interfaces> {
        self.interfaces.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a run has counted at a moment, for machines.
#[derive(Clone, Debug)]
pub struct Report {
    /// By the wall clock.
    pub time: Timestamp,
    /// Since it began, by the monotonic clock.
    pub elapsed: Duration,
    /// What it counted.
    pub snapshot: Snapshot,
    /// Bytes that were read of captures.
    pub read_bytes: Option<u64>,
    /// What went through its interfaces.
    pub interfaces: Vec<Interface>,
    /// Whether it has ended.
    pub is_last: bool,
}

/// A line of statistics.
#[derive(Serialize, JsonSchema)]
#[schemars(title = "A line of --stats-output")]
pub(crate) struct ReportLine {
    /// When it was written, in milliseconds since 1970.
    time: u64,
    /// Milliseconds since the run began, by the monotonic clock.
    elapsed: u64,
    /// Whether it is the last line of its run, with the counters of the summary.
    last: bool,
    /// Packets received: passed and dropped.
    received: u64,
    /// Packets that passed.
    passed: u64,
    /// Packets that were dropped, by reason.
    dropped: NamedCounts,
    /// Bytes on the wire of the packets received.
    wire_bytes: u64,
    /// Bytes read of captures.
    #[serde(skip_serializing_if = "Option::is_none")]
    read_bytes: Option<u64>,
    /// What went through each interface.
    #[serde(skip_serializing_if = "Option::is_none")]
    interfaces: Option<Vec<InterfaceSummary>>,
}

impl Report {
    /// As one line of JSON.
    pub fn json(&self) -> Value {
        let Snapshot { verdicts, wire_bytes } = self.snapshot;
        let interfaces = self.interfaces.iter().map(Interface::summary);
        summary::value(&ReportLine {
            time: self.time.as_millis(),
            elapsed: u64::try_from(self.elapsed.as_millis()).unwrap_or(u64::MAX),
            last: self.is_last,
            received: verdicts.received(),
            passed: verdicts.passed,
            dropped: verdicts.dropped().map(|(reason, count)| (reason.name(), count)).collect(),
            wire_bytes,
            read_bytes: self.read_bytes,
            interfaces: (!self.interfaces.is_empty()).then(|| interfaces.collect()),
        })
    }
}
