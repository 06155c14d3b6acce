//! The batch form for packets by themselves.

use std::sync::Arc;

use packetloom_packet::batch::Parsed;
use packetloom_packet::{Batch, DropReason, KeyBits};

use super::{DomainsReport, Names, name_of};
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
            let (protocol, ports, bits) = match batch.parsed()[index] {
                Parsed::V4(at) => {
                    let key = &batch.v4().keys[at as usize];
                    (key.protocol, (key.source_port, key.destination_port), key.bits)
                }
                Parsed::V6(at) => {
                    let key = &batch.v6().keys[at as usize];
                    (key.protocol, (key.source_port, key.destination_port), key.bits)
                }
                Parsed::Rejected(_) => continue,
            };
            if bits.contains(KeyBits::LATER_FRAGMENT) {
                continue;
            }
            let payload = batch.payload(index).unwrap_or_default();
            let Some(name) = name_of(protocol, ports, payload) else { continue };
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
