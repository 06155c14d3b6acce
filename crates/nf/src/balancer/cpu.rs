//! The batch form.

use std::sync::Arc;

use bytemuck::{Pod, Zeroable};
use packetloom_packet::{Address, Batch, DropReason, End, Verdict};

use super::services::Services;
use super::{BalancerReport, Load};
use crate::Report;
use crate::flows::{FlowFunction, Flows, StateAt};

/// What is kept for a flow.
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Chosen {
    /// The backend's number and 1; 0 where the flow is to no service.
    backend: u32,
    /// Whether the client is the flow's lower endpoint.
    client_is_a: u32,
}

pub(super) struct BalancerCpu {
    at: StateAt,
    services: Arc<Services>,
    /// For each backend what packets get, and its load.
    targets: Vec<(Address, Option<u16>)>,
    loads: Vec<Load>,
    others: u64,
}

impl BalancerCpu {
    pub(super) fn new(at: StateAt, services: Arc<Services>) -> Self {
        let loads = vec![Load::default(); services.backends().len()];
        let targets = services.backends().iter().map(|backend| (backend.to(), backend.port)).collect();
        Self { at, services, targets, loads, others: 0 }
    }
}

impl FlowFunction for BalancerCpu {
    fn process(&mut self, batch: &mut Batch, flows: &mut Flows) {
        let Self { at, services, targets, loads, others } = self;
        flows.each(*at, batch, |mut packet, chosen: &mut Chosen, is_new| {
            if is_new {
                let key = packet.headers().key();
                if let Some(service) = services.to(&key) {
                    let backend = services.choose(service, &key);
                    *chosen = Chosen { backend: backend + 1, client_is_a: packet.from_a.into() };
                    loads[backend as usize].flows += 1;
                }
            }
            let is_to_service = u32::from(packet.from_a) == chosen.client_is_a;
            let Some(number) = chosen.backend.checked_sub(1).filter(|_| is_to_service) else {
                *others += 1;
                return Verdict::Pass;
            };
            let load = &mut loads[number as usize];
            load.packets += 1;
            load.bytes += u64::from(packet.bytes);
            let (address, port) = targets[number as usize];
            match packet.headers().rewrite(End::Destination, address, port) {
                true => Verdict::Pass,
                false => Verdict::Drop(DropReason::Rewrite),
            }
        });
    }

    fn report(&self, _flows: &Flows) -> Box<dyn Report> {
        let mut report = BalancerReport { others: self.others, ..BalancerReport::new(&self.services) };
        for ((_, load), &own) in report.backends.iter_mut().zip(&self.loads) {
            *load = own;
        }
        Box::new(report)
    }
}
