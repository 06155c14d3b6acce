//! The batch form for packets by themselves.

use std::sync::Arc;

use packetloom_names::Watch;
use packetloom_packet::{Batch, DropReason};

use super::{DomainsReport, Names};
use crate::watches::payload_in;
use crate::{Function, Logged, Report};

pub(super) struct DomainsCpu {
    names: Arc<Names>,
    report: DomainsReport,
    logged: Vec<Logged>,
}

impl DomainsCpu {
    pub(super) fn new(names: Arc<Names>) -> Self {
        Self { report: DomainsReport::new(Arc::clone(&names)), names, logged: Vec::new() }
    }
}

impl Function for DomainsCpu {
    fn process(&mut self, batch: &mut Batch) {
        self.logged.clear();
        for index in 0..batch.len() {
            if !batch.verdicts()[index].is_pass() {
                continue;
            }
            let payload = payload_in(batch, index);
            let Some(name) = payload.and_then(|payload| payload.alone::<Watch>(())) else { continue };
            let Some(line) = self.report.blocks(&name) else { continue };
            let settings = &self.names.settings;
            if self.names.is_handed_out(line) {
                self.logged.push(Logged { frame: index as u32, rule: line });
            }
            if let Some(mark) = settings.mark {
                batch.set_mark(index, mark);
            }
            batch.judge().0[index] = settings.action.verdict(DropReason::Domains);
        }
    }

    fn logged(&mut self, into: &mut Vec<Logged>) {
        into.append(&mut self.logged);
    }

    fn report(&self) -> Box<dyn Report> {
        Box::new(self.report.clone())
    }
}
