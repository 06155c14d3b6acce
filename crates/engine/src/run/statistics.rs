//! What a run has counted so far, for whoever asks in another thread while it goes on.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

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
    /// What its workers did with their time.
    workers: Mutex<Arc<[WorkerTime]>>,
}

/// What a worker did with its time, in nanoseconds.
#[derive(Debug, Default)]
pub(super) struct WorkerTime {
    /// For how long it worked.
    busy: AtomicU64,
    /// Its longest turn since that was last asked for.
    longest_turn: AtomicU64,
}

/// Takes a worker's time: a turn is from one look for something to do to the next.
pub(super) struct TurnClock<'a> {
    time: &'a WorkerTime,
    last: Instant,
}

impl<'a> TurnClock<'a> {
    pub(super) fn start(time: &'a WorkerTime) -> Self {
        Self { time, last: Instant::now() }
    }

    /// A turn is over, in which there was something to do or not.
    pub(super) fn turn(&mut self, has_worked: bool) {
        let now = Instant::now();
        let nanos = u64::try_from(now.saturating_duration_since(self.last).as_nanos()).unwrap_or(u64::MAX);
        self.last = now;
        if has_worked {
            self.time.busy.fetch_add(nanos, Ordering::Relaxed);
        }
        if nanos > self.time.longest_turn.load(Ordering::Relaxed) {
            self.time.longest_turn.fetch_max(nanos, Ordering::Relaxed);
        }
    }

    /// So much of the turn that goes on was spent waiting for packets.
    pub(super) fn rest(&mut self, time: Duration) {
        self.last += time;
    }

    /// The time since the last turn was spent waiting.
    pub(super) fn skip(&mut self) {
        self.last = Instant::now();
    }
}

/// What a worker did in a time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct WorkerLoad {
    /// The share of that time in which it had something to do, 0 to 1.
    pub busy: f64,
    /// The longest time from one look for something to do to the next, without waiting.
    pub longest_turn: Duration,
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

    /// How long each worker of the run has worked so far; of a run on devices, the thread that sends them batches, by whose time these are away, too.
    pub fn busy(&self) -> Vec<Duration> {
        self.workers().iter().map(|time| Duration::from_nanos(time.busy.load(Ordering::Relaxed))).collect()
    }

    /// The longest turn of each worker since this was asked for the last time: from one look for something to do to the next, without
    /// waiting. Longer ones are of a processor that did something else, or of a large batch.
    pub fn take_longest_turns(&self) -> Vec<Duration> {
        let longest = |time: &WorkerTime| Duration::from_nanos(time.longest_turn.swap(0, Ordering::Relaxed));
        self.workers().iter().map(longest).collect()
    }

    /// So many workers begin, in place of those before, whose time they go on with if these are not fewer.
    pub(super) fn begin_workers(&self, workers: usize) -> Arc<[WorkerTime]> {
        let mut times = self.workers.lock().unwrap_or_else(PoisonError::into_inner);
        if times.len() < workers {
            *times = (0..workers).map(|_| WorkerTime::default()).collect();
        }
        Arc::clone(&times)
    }

    fn workers(&self) -> Arc<[WorkerTime]> {
        Arc::clone(&self.workers.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Batches that the run is done with so far; over interfaces there are some every 100 ms even if no packet comes. `None` while it does what
    /// may take long: it begins, saves state, goes over to another chain, or ends.
    pub fn progress(&self) -> Option<u64> {
        let batches = self.batches.load(Ordering::Relaxed);
        (batches > 0 && self.pauses.load(Ordering::Relaxed) == 0).then_some(batches)
    }

    /// Batches that the run is done with so far.
    pub(super) fn batches(&self) -> u64 {
        self.batches.load(Ordering::Relaxed)
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
    /// What each worker did since the report before; of a run on devices, the thread that sends them batches.
    pub workers: Vec<WorkerLoad>,
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
    /// What each worker did since the line before; of a run on devices, the thread that sends them batches, for which to wait for these is
    /// something to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    workers: Option<Vec<WorkerLine>>,
}

/// What a worker did since the line before.
#[derive(Serialize, JsonSchema)]
struct WorkerLine {
    /// The share of the time in which it had something to do, 0 to 1.
    busy: f64,
    /// Microseconds of the longest time from one look for something to do to the next, without sleep.
    longest_turn_us: u64,
}

impl Report {
    /// As one line of JSON.
    pub fn json(&self) -> Value {
        let Snapshot { verdicts, wire_bytes } = self.snapshot;
        let interfaces = self.interfaces.iter().map(Interface::summary);
        let workers = self.workers.iter().map(|load| WorkerLine {
            busy: (load.busy * 1000.0).round() / 1000.0,
            longest_turn_us: u64::try_from(load.longest_turn.as_micros()).unwrap_or(u64::MAX),
        });
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
            workers: (!self.workers.is_empty()).then(|| workers.collect()),
        })
    }
}
