//! The batch form that follows names over the packets of a flow.
//!
//! Names of DNS over UDP, which are nothing to later packets, are looked up together behind all packets of a batch; others at once, since the
//! rest of their flows may be dropped.

use std::sync::Arc;

use packetloom_packet::{Batch, DropReason, FlowKey, Verdict};

use super::names_in_batch::NamesInBatch;
use super::{DomainsReport, FlowCounts, Names, drops_flow};
use crate::alerts::Action;
use crate::flows::{End, FlowFunction, Flows, StateAt, Visit};
use crate::watches::{Followed, Watches};
use crate::{Logged, Records, Report};

pub(super) struct DomainsPerFlow {
    at: StateAt,
    names: Arc<Names>,
    watches: Watches,
    report: DomainsReport,
    logged: Vec<Logged>,
    /// Names that are nothing to later packets.
    by_themselves: NamesInBatch,
    /// Frames that get the mark.
    matched: Vec<u32>,
}

impl DomainsPerFlow {
    pub(super) fn new(names: Arc<Names>, at: StateAt) -> Self {
        Self {
            at,
            report: DomainsReport::new(Arc::clone(&names)),
            names,
            watches: Watches::default(),
            logged: Vec::new(),
            by_themselves: NamesInBatch::default(),
            matched: Vec::new(),
        }
    }
}

impl FlowFunction for DomainsPerFlow {
    fn move_to(&mut self, at: StateAt) {
        self.at = at;
    }

    fn process(&mut self, batch: &mut Batch, flows: &mut Visit<'_>, _records: &mut Records<'_>) {
        let Self { at, names, watches, report, logged, by_themselves, matched } = self;
        let settings = &names.settings;
        let verdict = settings.action.verdict(DropReason::Domains);
        matched.clear();
        flows.each(*at, batch, |packet, followed: &mut Followed| {
            if followed.is_dropped() {
                report.flows.get_or_insert_default().dropped += 1;
                return Verdict::Drop(DropReason::Domains);
            }
            let Some(name) = watches.follow(&packet, followed).found else { return Verdict::Pass };
            if !drops_flow(packet.transport().protocol, name.kind) {
                by_themselves.push(packet.frame, name);
                return Verdict::Pass;
            }
            let Some(line) = report.blocks(&name) else { return Verdict::Pass };
            if names.is_handed_out(line) {
                logged.push(Logged { frame: packet.frame, rule: line });
            }
            matched.push(packet.frame);
            if settings.action == Action::Drop {
                watches.drop_flow(followed);
            }
            verdict
        });
        by_themselves.decide(names, |frame, name, decided| {
            let Some(line) = report.count(name.kind, decided) else { return };
            if names.is_handed_out(line) {
                logged.push(Logged { frame, rule: line });
            }
            matched.push(frame);
            batch.judge().0[frame as usize] = verdict;
        });
        if let Some(mark) = settings.mark {
            matched.iter().for_each(|&frame| batch.set_mark(frame as usize, mark));
        }
    }

    fn on_end(&mut self, _flow: &FlowKey, state: &[u64], _end: End, _records: &mut Records<'_>) {
        self.watches.end(Followed::number_in(state));
    }

    fn logged(&mut self, into: &mut Vec<Logged>) {
        // Those of IPv4 came first.
        self.logged.sort_by_key(|logged| logged.frame);
        into.append(&mut self.logged);
    }

    fn report(&self, _flows: &Flows) -> Box<dyn Report> {
        let mut report = self.report.clone();
        let Watches { gave_up, no_room, .. } = self.watches;
        let dropped = report.flows.unwrap_or_default().dropped;
        report.flows = Some(FlowCounts { dropped, gave_up, no_room });
        Box::new(report)
    }
}
