//! The batch form.

use packetloom_packet::{Batch, Verdict};

use super::{CounterReport, top};
use crate::flows::{self, FlowFunction, Flows, StateAt, Tally, Visit};
use crate::{Records, Report};

pub(super) struct CounterCpu {
    at: StateAt,
    all: Tally,
}

impl CounterCpu {
    pub(super) fn new(at: StateAt) -> Self {
        Self { at, all: Tally::default() }
    }
}

impl Tally {
    #[inline]
    fn add(&mut self, bytes: u32) {
        self.packets += 1;
        self.bytes += u64::from(bytes);
    }
}

impl FlowFunction for CounterCpu {
    fn move_to(&mut self, at: StateAt) {
        self.at = at;
    }

    fn process(&mut self, batch: &mut Batch, flows: &mut Visit<'_>, _records: &mut Records<'_>) {
        let mut all = self.all;
        flows.each(self.at, batch, |packet, flow: &mut Tally| {
            flow.add(packet.bytes);
            all.add(packet.bytes);
            Verdict::Pass
        });
        self.all = all;
    }

    fn add(&mut self, counted: &[u64]) {
        let Tally { packets, bytes } = flows::counted(counted).0;
        self.all.packets += packets;
        self.all.bytes += bytes;
    }

    fn report(&self, flows: &Flows) -> Box<dyn Report> {
        let states = flows.states(self.at);
        let top = top(states.map(|(name, &Tally { packets, bytes })| (name, [packets, bytes])));
        Box::new(CounterReport { packets: self.all.packets, bytes: self.all.bytes, top })
    }
}
