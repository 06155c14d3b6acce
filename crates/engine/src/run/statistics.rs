//! What a run has counted so far, for whoever asks in another thread while it goes on.

use std::sync::{Mutex, PoisonError};

use packetloom_packet::verdict::VerdictCounts;

/// Counters that a run brings up to date after each batch.
#[derive(Debug, Default)]
pub struct Statistics(Mutex<Snapshot>);

/// The counters of a run after one of its batches.
#[derive(Clone, Copy, Debug, Default)]
pub struct Snapshot {
    /// Every packet that was judged until then, in exactly one counter.
    pub verdicts: VerdictCounts,
    /// Their bytes on the wire.
    pub wire_bytes: u64,
}

impl Statistics {
    /// The counters as they are now: those of whole batches.
    pub fn snapshot(&self) -> Snapshot {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set(&self, snapshot: Snapshot) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = snapshot;
    }
}
