//! One of the devices of a run.

use std::time::Duration;

use packetloom_device::Device;

use crate::crew::Crew;
use crate::offload::accelerator::Accelerator;
use crate::offload::supervisor::Supervisor;
use crate::offload::{Error, stateful};

/// A device, and what is known of it.
pub(super) struct Unit {
    pub(super) device: Device,
    pub(super) supervisor: Supervisor,
    /// Whether it has the flows of its functions.
    pub(super) is_there: bool,
    /// How many changes of rules those on it, or on their way there, have seen.
    pub(super) changed: usize,
    /// Packets that it judged.
    pub(super) judged: u64,
}

impl Unit {
    /// With nothing on it; `limit` is how long a batch may be away.
    pub(super) fn new(device: Device, limit: Option<Duration>) -> Self {
        let supervisor = Supervisor::new(device.clone(), limit);
        Self { device, supervisor, is_there: false, changed: 0, judged: 0 }
    }

    /// Its functions, where it has them and their flows.
    pub(super) fn judge(&mut self) -> Option<&mut (dyn Accelerator + 'static)> {
        self.supervisor.ready().filter(|_| self.is_there)
    }

    /// Whether it has its functions, and waits for their flows.
    pub(super) fn waits_for_flows(&mut self) -> bool {
        !self.is_there && self.supervisor.ready().is_some()
    }

    /// Flow definitions whose flows it keeps.
    pub(super) fn definitions(&mut self) -> usize {
        self.supervisor.ready().map_or(0, |there| there.definitions())
    }

    /// Copies what it keeps, with no batch away.
    pub(super) fn read(&mut self, crew: &Crew) -> Result<(), Error> {
        self.judge().map_or(Ok(()), |there| there.snapshot(crew))
    }

    /// The last copy of what it keeps, if it keeps something; and how old it is.
    pub(super) fn copy(&mut self) -> Option<(&stateful::State, Duration)> {
        self.judge()?.copy()
    }
}

/// Some of the devices of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Units(u32);

impl Units {
    pub(super) fn add(&mut self, unit: usize) {
        self.0 |= 1 << unit;
    }

    pub(super) fn remove(&mut self, unit: usize) {
        self.0 &= !(1 << unit);
    }

    pub(super) fn has(self, unit: usize) -> bool {
        self.0 >> unit & 1 == 1
    }

    pub(super) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(super) fn iter(self) -> impl Iterator<Item = usize> {
        (0..u32::BITS as usize).filter(move |&unit| self.has(unit))
    }
}
