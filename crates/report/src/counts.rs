//! Packets, bytes and flows.

use std::fmt;
use std::str::FromStr;

use packetloom_packet::{FlowRecord, HalfFlow};

use crate::Error;

/// What reports count. Sums stay at the greatest number instead of running over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Packets.
    pub packets: u64,
    /// IP bytes.
    pub bytes: u64,
    /// Flows: each direction of a record in which there were packets is one, as in NetFlow.
    pub flows: u64,
}

impl Counts {
    /// One direction of a record.
    pub(crate) const fn of(half: &HalfFlow) -> Self {
        Self { packets: half.packets, bytes: half.bytes, flows: 1 }
    }

    /// All directions of a record.
    pub fn of_record(record: &FlowRecord) -> Self {
        let mut counts = Self::of(&record.forward);
        if record.reverse.packets > 0 {
            counts.add(Self::of(&record.reverse));
        }
        counts
    }

    /// One of the three.
    pub const fn get(self, measure: Measure) -> u64 {
        match measure {
            Measure::Packets => self.packets,
            Measure::Bytes => self.bytes,
            Measure::Flows => self.flows,
        }
    }

    /// Adds others.
    pub const fn add(&mut self, others: Self) {
        self.packets = self.packets.saturating_add(others.packets);
        self.bytes = self.bytes.saturating_add(others.bytes);
        self.flows = self.flows.saturating_add(others.flows);
    }

    /// What is left without a part of them.
    pub(crate) const fn without(self, part: Self) -> Self {
        Self {
            packets: self.packets.saturating_sub(part.packets),
            bytes: self.bytes.saturating_sub(part.bytes),
            flows: self.flows.saturating_sub(part.flows),
        }
    }

    pub(crate) const fn raise(&mut self, measure: Measure, by: u64) {
        let count = match measure {
            Measure::Packets => &mut self.packets,
            Measure::Bytes => &mut self.bytes,
            Measure::Flows => &mut self.flows,
        };
        *count = count.saturating_add(by);
    }
}

/// One of the three things that are counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Measure {
    /// Packets.
    Packets,
    /// IP bytes.
    #[default]
    Bytes,
    /// Flows of one direction each.
    Flows,
}

impl Measure {
    /// All of them, in the order of columns.
    pub const ALL: [Self; 3] = [Self::Packets, Self::Bytes, Self::Flows];

    /// Its name in specifications and in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Packets => "packets",
            Self::Bytes => "bytes",
            Self::Flows => "flows",
        }
    }

    /// Its name on axes.
    pub(crate) const fn title(self) -> &'static str {
        match self {
            Self::Packets => "packets",
            Self::Bytes => "IP bytes",
            Self::Flows => "flows",
        }
    }
}

impl fmt::Display for Measure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Measure {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        Self::ALL.into_iter().find(|it| it.name() == text).ok_or_else(|| Error::Measure(text.into()))
    }
}
