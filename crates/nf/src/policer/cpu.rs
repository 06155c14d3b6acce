//! The batch form.

use packetloom_packet::{Batch, Verdict};

use super::meter::{Colour, Levels};
use super::{Marker, PolicerReport};
use crate::Report;
use crate::flows::{FlowFunction, Flows, StateAt};

pub(super) struct PolicerCpu {
    at: StateAt,
    marker: Marker,
    /// By colour.
    verdicts: [Verdict; 3],
    report: PolicerReport,
}

impl PolicerCpu {
    pub(super) fn new(at: StateAt, marker: Marker, verdicts: [Verdict; 3]) -> Self {
        Self { at, marker, verdicts, report: PolicerReport::default() }
    }

    /// Judges a batch by a marker: what a new flow's levels are at a time, and the colour of so many bytes at a time.
    #[inline]
    fn judge(
        &mut self,
        batch: &mut Batch,
        flows: &mut Flows,
        full_at: impl Fn(u64) -> Levels,
        mark: impl Fn(&mut Levels, u64, u64) -> Colour,
    ) {
        let Self { at, verdicts, report, .. } = self;
        flows.each(*at, batch, |packet, levels: &mut Levels, is_new| {
            let now = packet.now.as_nanos();
            if is_new {
                *levels = full_at(now);
            }
            let colour = mark(levels, now, packet.bytes.into());
            report.count(colour, packet.bytes);
            verdicts[colour as usize]
        });
    }
}

impl FlowFunction for PolicerCpu {
    fn move_to(&mut self, at: StateAt) {
        self.at = at;
    }

    fn process(&mut self, batch: &mut Batch, flows: &mut Flows) {
        // All packets are green before: that is the colour-blind mode.
        let before = Colour::Green;
        match self.marker {
            Marker::SingleRate(marker) => {
                let mark = |levels: &mut Levels, now, bytes| marker.mark(levels, now, bytes, before);
                self.judge(batch, flows, |now| marker.full_at(now), mark);
            }
            Marker::TwoRate(marker) => {
                let mark = |levels: &mut Levels, now, bytes| marker.mark(levels, now, bytes, before);
                self.judge(batch, flows, |now| marker.full_at(now), mark);
            }
        }
    }

    fn add(&mut self, counted: &[u64]) {
        self.report.add(counted);
    }

    fn report(&self, _flows: &Flows) -> Box<dyn Report> {
        Box::new(self.report.clone())
    }
}
