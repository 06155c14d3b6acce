//! What was found in the fields of messages that come in several packets, for signatures whose contents lie in several places.

use std::collections::HashMap;

use packetloom_pattern::files::Places;

use super::List;
use super::judge::InFields;
use super::streams::DirectionKey;

/// Patterns that are remembered of a message.
const MAX_PATTERNS: usize = 64;

/// Bytes that all messages take at most, of a worker: 64 MiB.
const MAX_BYTES: usize = 64 << 20;

/// What a message takes in a map that has room, with the list of its patterns.
const PER_MESSAGE: usize = 128 + 4 * MAX_PATTERNS;

/// What was found of the message that a direction is in.
#[derive(Debug)]
pub(super) struct Remembered {
    places: Places,
    patterns: Vec<u32>,
    /// Whether something was not remembered.
    is_full: bool,
}

impl Remembered {
    const NOTHING: Self = Self { places: Places::NONE, patterns: Vec::new(), is_full: false };

    pub(super) fn clear(&mut self) {
        self.places = Places::NONE;
        self.patterns.clear();
    }

    pub(super) fn places(&self) -> Places {
        self.places
    }

    pub(super) fn patterns(&self) -> &[u32] {
        &self.patterns
    }

    /// Adds what signatures of several places may need.
    pub(super) fn add(&mut self, list: &List, part: &InFields) {
        self.places = self.places.and(part.places.both(list.places_of_several));
        for &pattern in &part.patterns {
            if !list.is_of_several[pattern as usize] || self.patterns.contains(&pattern) {
                continue;
            }
            if self.patterns.len() < MAX_PATTERNS {
                self.patterns.push(pattern);
            } else {
                self.is_full = true;
            }
        }
    }
}

/// Messages of a worker's flows.
#[derive(Debug, Default)]
pub(super) struct Messages {
    directions: HashMap<DirectionKey, Remembered>,
    /// Packets with something that was not remembered.
    pub(super) not_remembered: u64,
}

impl Messages {
    /// Has a packet judged with what is remembered of its direction, of a message that goes on or begins with it.
    pub(super) fn with<T>(&mut self, direction: DirectionKey, judge: impl FnOnce(&mut Remembered) -> T) -> T {
        let mut message = self.directions.remove(&direction).unwrap_or(Remembered::NOTHING);
        message.is_full = false;
        let judged = judge(&mut message);
        let has_room = self.directions.len() < MAX_BYTES / PER_MESSAGE;
        let is_kept = !message.places.is_empty() && has_room;
        self.not_remembered += u64::from(message.is_full || !message.places.is_empty() && !has_room);
        if is_kept {
            self.directions.insert(direction, message);
        }
        judged
    }

    /// Forgets a flow.
    pub(super) fn forget(&mut self, flow: u64) {
        for from_a in [false, true] {
            self.directions.remove(&(flow, from_a));
        }
    }
}
