//! The batch form.

use packetloom_packet::{Batch, Dscp, Verdict};

use super::meter::{Colour, Levels};
use super::{Action, Marker, Policer, PolicerReport};
use crate::flows::{FlowFunction, Flows, Seen, StateAt, Visit};
use crate::{Records, Report};

pub(super) struct PolicerCpu {
    at: StateAt,
    marker: Marker,
    /// In the colour-aware mode.
    others: Option<Colour>,
    /// By colour.
    verdicts: [Verdict; 3],
    dscps: [Option<Dscp>; 3],
    is_plain: bool,
    report: PolicerReport,
}

impl PolicerCpu {
    pub(super) fn new(at: StateAt, policer: &Policer) -> Self {
        Self {
            at,
            marker: policer.marker,
            others: policer.others,
            verdicts: policer.actions.map(Action::verdict),
            dscps: policer.actions.map(Action::dscp),
            is_plain: policer.is_plain(),
            report: PolicerReport::default(),
        }
    }

    /// Judges a batch by a marker: what a new flow's levels are at a time, and the colour of so many bytes at a time after a colour before.
    /// A plain policer neither looks at DSCPs nor writes them.
    #[inline]
    fn judge<const IS_PLAIN: bool>(
        &mut self,
        batch: &mut Batch,
        flows: &mut Visit<'_>,
        full_at: impl Fn(u64) -> Levels,
        mark: impl Fn(&mut Levels, u64, u64, Colour) -> Colour,
    ) {
        let Self { at, others, verdicts, dscps, report, .. } = self;
        let begin = |packet: Seen<'_, '_>, levels: &mut Levels| *levels = full_at(packet.now.as_nanos());
        flows.for_each_initialized(*at, batch, begin, |mut packet, levels| {
            // All packets are green before: that is the colour-blind mode.
            let before = match *others {
                Some(others) if !IS_PLAIN => Colour::of(packet.dscp(), others),
                _ => Colour::Green,
            };
            let colour = mark(levels, packet.now.as_nanos(), packet.bytes.into(), before);
            report.count(colour, packet.bytes);
            if !IS_PLAIN && let Some(dscp) = dscps[colour as usize] {
                packet.headers().set_dscp(dscp);
            }
            verdicts[colour as usize]
        });
    }

    #[inline]
    fn process_by<const IS_PLAIN: bool>(&mut self, batch: &mut Batch, flows: &mut Visit<'_>) {
        match self.marker {
            Marker::SingleRate(marker) => {
                let mark = |levels: &mut Levels, now, bytes, before| marker.mark(levels, now, bytes, before);
                self.judge::<IS_PLAIN>(batch, flows, |now| marker.full_at(now), mark);
            }
            Marker::TwoRate(marker) => {
                let mark = |levels: &mut Levels, now, bytes, before| marker.mark(levels, now, bytes, before);
                self.judge::<IS_PLAIN>(batch, flows, |now| marker.full_at(now), mark);
            }
        }
    }
}

impl FlowFunction for PolicerCpu {
    fn move_to(&mut self, at: StateAt) {
        self.at = at;
    }

    fn process(&mut self, batch: &mut Batch, flows: &mut Visit<'_>, _records: &mut Records<'_>) {
        if self.is_plain {
            self.process_by::<true>(batch, flows);
        } else {
            self.process_by::<false>(batch, flows);
        }
    }

    fn add(&mut self, counted: &[u64]) {
        self.report.add(counted);
    }

    fn report(&self, _flows: &Flows) -> Box<dyn Report> {
        Box::new(self.report.clone())
    }
}
