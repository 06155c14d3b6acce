//! `balancer`: flows to a service's address go to one of its backends each, and stay there.
//!
//! The first packet of a flow chooses the backend by Maglev hashing ([`maglev`]) over the flow's key, which is the same for each
//! balancer with the same services and seed; the flow's entry remembers it. Packets to the service get the
//! backend's address, and port where it has one, in place of the service's, with checksums brought up to date (RFC 1624). A
//! backend of weight 0 is drained: it gets no new flows. Packets of flows to no service pass as they are, and so do later
//! fragments where the service has a port, since they do not say theirs.
//!
//! - Shape: a word of the flow's entry: the backend, and which of the flow's ends is the service.
//! - Verdict: pass, or drop with `rewrite` where headers cannot be rewritten (the port of a first fragment of SCTP).

mod config;
mod cpu;
pub mod maglev;
mod oracle;
mod services;

use std::any::Any;
use std::sync::Arc;

use serde_json::json;

pub use self::config::{Config, Port, Service, ServiceBackend, TableSize, Weight};
use self::services::{Named, Services};
use crate::flows::{By, Crowd, FlowFunction, FlowOracle, Keeps, Kernel, StateAt, state_words};
use crate::{Form, PerFlow, Prepared, Report};

/// A balancer ready to run.
#[derive(Clone, Debug)]
pub struct Balancer {
    flows: Option<String>,
    services: Arc<Services>,
    /// What numbers in the state that it takes over stand for, and the numbers that these backends have here, as far as they were met.
    old: Vec<(Named, Option<u32>)>,
}

impl Prepared for Balancer {
    fn name(&self) -> &'static str {
        "balancer"
    }

    fn resume(&mut self, old: &dyn Prepared) -> bool {
        let Some(old) = (old as &dyn Any).downcast_ref::<Self>() else { return false };
        let is_same = self.flows == old.flows && self.services.configured() == old.services.configured();
        if is_same {
            self.services = old.services.clone();
        }
        is_same
    }

    fn inherit(&mut self, legend: &serde_json::Value) -> Result<(), String> {
        let named: Vec<Named> = serde_json::from_value(legend.clone())
            .map_err(|e| format!("backends by number: {e}; expected a list of service, address and port"))?;
        if let Some(Named { service, address, .. }) =
            named.iter().find(|named| named.service.address.is_ipv4() != named.address.is_ipv4())
        {
            return Err(format!("backend {address} of {service}; expected the same IP version"));
        }
        self.old = named.into_iter().map(|named| (named, None)).collect();
        Ok(())
    }

    /// A backend keeps its flows, whether it is listed or not.
    fn adopt(&mut self, words: &mut [u64]) -> bool {
        let chosen: &mut cpu::Chosen = bytemuck::from_bytes_mut(bytemuck::cast_slice_mut(words));
        if !chosen.is_valid() {
            return false;
        }
        let Some(number) = chosen.backend() else { return true };
        let Some((named, own)) = self.old.get_mut(number as usize) else { return false };
        let services = &mut self.services;
        chosen.set_backend(*own.get_or_insert_with(|| Arc::make_mut(services).number(named)));
        true
    }

    fn describe(&self) -> Vec<String> {
        self.services.describe()
    }

    fn is_per_flow(&self) -> bool {
        false
    }

    fn rewrites(&self) -> bool {
        true
    }

    fn form(&self) -> Form<'_> {
        Form::PerFlow(self)
    }
}

impl PerFlow for Balancer {
    fn keeps(&self) -> Keeps {
        Keeps { flows: self.flows.clone(), by: &[By::FiveTuple], words: state_words::<cpu::Chosen>() }
    }

    fn legend(&self) -> serde_json::Value {
        json!(self.services.named().collect::<Vec<_>>())
    }

    fn function(&self, at: StateAt) -> Box<dyn FlowFunction> {
        Box::new(cpu::BalancerCpu::new(at, self.services.clone()))
    }

    fn oracle(&self) -> Box<dyn FlowOracle> {
        Box::new(oracle::BalancerOracle::new(self.services.clone()))
    }

    fn kernel(&self) -> Option<Kernel> {
        let texts = &[("balancer", include_str!("balancer.kernel.c"))];
        let counters = (1, 3 * self.services.backends().len());
        let words = state_words::<cpu::Chosen>();
        Some(Kernel {
            name: "balancer",
            texts,
            words,
            crowd: Crowd::Steady,
            parameters: self.services.parameters(),
            counters,
        })
    }
}

/// Packets, their IP bytes, and flows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Packets that were sent there.
    pub packets: u64,
    /// Their IP bytes.
    pub bytes: u64,
    /// Flows that it was chosen for.
    pub flows: u64,
}

/// What a balancer counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BalancerReport {
    /// For each backend, in the order of the services: how it is called, and its load.
    pub backends: Vec<(String, Load)>,
    /// Packets of flows to no service.
    pub others: u64,
}

impl BalancerReport {
    fn new(services: &Services) -> Self {
        Self { backends: services.names().map(|name| (name, Load::default())).collect(), others: 0 }
    }
}

impl Report for BalancerReport {
    fn merge(&mut self, other: &dyn Report) {
        let Some(other) = (other as &dyn Any).downcast_ref::<Self>() else { return };
        self.others += other.others;
        for ((_, load), (_, other)) in self.backends.iter_mut().zip(&other.backends) {
            load.packets += other.packets;
            load.bytes += other.bytes;
            load.flows += other.flows;
        }
    }

    fn json(&self) -> serde_json::Value {
        let backend = |(name, Load { packets, bytes, flows }): &(String, Load)| json!({ "backend": name, "packets": packets, "bytes": bytes, "flows": flows });
        json!({ "backends": self.backends.iter().map(backend).collect::<Vec<_>>(), "others": self.others })
    }

    fn rows(&self) -> Vec<(String, String)> {
        let row = |(name, Load { packets, bytes, flows }): &(String, Load)| {
            (name.clone(), format!("{flows} flows, {packets} packets, {bytes} IP bytes"))
        };
        let others = ("to no service".into(), format!("{} packets", self.others));
        self.backends.iter().map(row).chain([others]).collect()
    }
}
