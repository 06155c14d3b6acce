//! The batch form for packets by themselves.

use std::sync::Arc;

use packetloom_packet::{Batch, DropReason};

use super::names_in_batch::NamesInBatch;
use super::{DomainsReport, Names};
use crate::watches::payload_in;
use crate::{Function, Logged, Report};

pub(super) struct DomainsCpu {
    names: Arc<Names>,
    report: DomainsReport,
    logged: Vec<Logged>,
    found: NamesInBatch,
    /// Kept for the next packet.
    blocking: Vec<u32>,
}

impl DomainsCpu {
    pub(super) fn new(names: Arc<Names>) -> Self {
        let report = DomainsReport::new(Arc::clone(&names));
        Self { report, names, logged: Vec::new(), found: NamesInBatch::default(), blocking: Vec::new() }
    }
}

impl Function for DomainsCpu {
    fn process(&mut self, batch: &mut Batch) {
        let Self { names, report, logged, found, blocking } = self;
        logged.clear();
        let mut decide = |found: &mut NamesInBatch, batch: &mut Batch| {
            found.decide(names, |frame, decided| {
                if !report.count(decided, blocking) {
                    return;
                }
                let handed_out = blocking.iter().filter(|&&line| names.is_handed_out(line));
                logged.extend(handed_out.map(|&rule| Logged::new(frame, rule)));
                if let Some(mark) = names.settings.mark {
                    batch.set_mark(frame as usize, mark);
                }
                batch.judge().0[frame as usize] = names.settings.action.verdict(DropReason::Domains);
            });
        };
        for index in 0..batch.len() {
            if batch.verdicts()[index].is_pass()
                && let Some(payload) = payload_in(batch, index)
            {
                payload.each_name(|name| found.push(index as u32, name));
            }
            if found.are_many() {
                decide(found, batch);
            }
        }
        decide(found, batch);
    }

    fn logged(&mut self, into: &mut Vec<Logged>) {
        into.append(&mut self.logged);
    }

    fn report(&self) -> Box<dyn Report> {
        Box::new(self.report.clone())
    }
}
