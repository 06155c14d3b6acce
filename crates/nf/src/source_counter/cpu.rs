//! The batch form.

use packetloom_packet::{Batch, Verdict};

use super::{Counted, SourceCounterReport};
use crate::flows::{Beginnings, FlowFunction, Flows, StateAt, Visit};
use crate::{Records, Report};

pub(super) struct SourceCounterCpu {
    at: StateAt,
    beginnings: Beginnings,
    all: Counted,
}

impl SourceCounterCpu {
    pub(super) fn new(at: StateAt) -> Self {
        Self { at, beginnings: Beginnings::default(), all: Counted::default() }
    }
}

impl Counted {
    #[inline]
    fn add(&mut self, bytes: u32, begins: bool) {
        self.packets += 1;
        self.bytes += u64::from(bytes);
        self.flows += u64::from(begins);
    }
}

impl FlowFunction for SourceCounterCpu {
    fn move_to(&mut self, at: StateAt) {
        self.at = at;
    }

    fn begin(&mut self, packets: usize) {
        self.beginnings.begin(packets);
    }

    fn remember(&mut self, at: StateAt, batch: &mut Batch, flows: &mut Visit<'_>) {
        self.beginnings.remember(at, batch, flows);
    }

    fn process(&mut self, batch: &mut Batch, flows: &mut Visit<'_>, _records: &mut Records<'_>) {
        let Self { at, beginnings, .. } = self;
        let mut all = self.all;
        flows.each(*at, batch, |packet, source: &mut Counted| {
            let begins = beginnings.contains(packet.frame);
            source.add(packet.bytes, begins);
            all.add(packet.bytes, begins);
            Verdict::Pass
        });
        self.all = all;
    }

    fn add(&mut self, counted: &[u64]) {
        self.all.packets += counted[0];
        self.all.bytes += counted[1];
        self.all.flows += counted[2];
    }

    fn report(&self, flows: &Flows) -> Box<dyn Report> {
        let held = || flows.states(self.at).map(|(name, &counted)| (name, counted));
        Box::new(SourceCounterReport::new(self.all, held))
    }
}
