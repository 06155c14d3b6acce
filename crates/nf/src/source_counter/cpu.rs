//! The batch form.

use packetloom_packet::{Batch, Verdict};

use super::{SourceCounted, SourceCounterReport};
use crate::flows::{self, Beginnings, FlowFunction, Flows, StateAt, Visit};
use crate::{Records, Report};

pub(super) struct SourceCounterCpu {
    at: StateAt,
    beginnings: Beginnings,
    all: SourceCounted,
}

impl SourceCounterCpu {
    pub(super) fn new(at: StateAt) -> Self {
        Self { at, beginnings: Beginnings::default(), all: SourceCounted::default() }
    }
}

impl SourceCounted {
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
        flows.each(*at, batch, |packet, source: &mut SourceCounted| {
            let begins = beginnings.contains(packet.frame);
            source.add(packet.bytes, begins);
            all.add(packet.bytes, begins);
            Verdict::Pass
        });
        self.all = all;
    }

    fn add(&mut self, counted: &[u64]) {
        let SourceCounted { packets, bytes, flows } = flows::counted(counted).0;
        self.all.packets += packets;
        self.all.bytes += bytes;
        self.all.flows += flows;
    }

    fn report(&self, flows: &Flows) -> Box<dyn Report> {
        let held = || flows.states(self.at).map(|(name, &counted)| (name, counted));
        Box::new(SourceCounterReport::new(self.all, held))
    }
}
