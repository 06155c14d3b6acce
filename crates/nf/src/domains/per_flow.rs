//! The batch form that follows names over the packets of a flow.
//!
//! Names of DNS over UDP, which are nothing to later packets, are looked up together behind all packets of a batch; others at once, since the
//! rest of their flows may be dropped.

use std::sync::Arc;

use packetloom_domains::Match;
use packetloom_names::{Name, NameKind};
use packetloom_packet::{Batch, DropReason, FlowKey, Verdict};

use super::names_in_batch::NamesInBatch;
use super::{DomainsReport, FlowCounts, Names, drops_flow};
use crate::alerts::Action;
use crate::flows::{End, FlowFunction, Flows, StateAt, Visit};
use crate::watches::{Followed, Watches, payload_of};
use crate::{Logged, Records, Report};

pub(super) struct DomainsPerFlow {
    at: StateAt,
    names: Arc<Names>,
    watches: Watches,
    report: DomainsReport,
    logged: Vec<Logged>,
    /// Names that are nothing to later packets.
    by_themselves: NamesInBatch,
    /// Kept for the next packet: what decides about its names, and the lines that block some.
    decided: Vec<(NameKind, Option<Match>)>,
    blocking: Vec<u32>,
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
            decided: Vec::new(),
            blocking: Vec::new(),
            matched: Vec::new(),
        }
    }
}

impl FlowFunction for DomainsPerFlow {
    fn move_to(&mut self, at: StateAt) {
        self.at = at;
    }

    fn process(&mut self, batch: &mut Batch, flows: &mut Visit<'_>, _records: &mut Records<'_>) {
        let Self { at, names, watches, report, logged, by_themselves, decided, blocking, matched } = self;
        let settings = &names.settings;
        let verdict = settings.action.verdict(DropReason::Domains);
        matched.clear();
        flows.each(*at, batch, |packet, followed: &mut Followed| {
            if followed.is_dropped() {
                report.flows.get_or_insert_default().dropped += 1;
                return Verdict::Drop(DropReason::Domains);
            }
            let first = watches.follow(&packet, followed);
            let kind = first.kind();
            let is_by_itself = kind.found.is_some_and(|kind| !drops_flow(packet.transport().protocol, kind));
            decided.clear();
            let mut take = |name: Name| {
                if is_by_itself {
                    by_themselves.push(packet.frame, name);
                } else {
                    decided.push(names.decide(&name));
                }
            };
            first.found.into_iter().for_each(&mut take);
            if let Some(payload) = payload_of(&packet) {
                payload.each_later_name(&kind, take);
            }
            if !report.count(decided, blocking) {
                return Verdict::Pass;
            }
            let handed_out = blocking.iter().filter(|&&line| names.is_handed_out(line));
            logged.extend(handed_out.map(|&rule| Logged::new(packet.frame, rule)));
            matched.push(packet.frame);
            if settings.action == Action::Drop {
                watches.drop_flow(followed);
            }
            verdict
        });
        by_themselves.decide(names, |frame, decided| {
            if !report.count(decided, blocking) {
                return;
            }
            let handed_out = blocking.iter().filter(|&&line| names.is_handed_out(line));
            logged.extend(handed_out.map(|&rule| Logged::new(frame, rule)));
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
