//! `balancer`: flows to a service's address go to one of its backends each, and stay there.
//!
//! The first packet of a flow chooses the backend by Maglev hashing ([`maglev`]) over the flow's key, which is the same for each
//! balancer with the same services and seed; the flow's entry remembers it. Packets to the service get the
//! backend's address, and port where it has one, in place of the service's, with checksums brought up to date (RFC 1624). A
//! backend of weight 0 is drained: it gets no new flows. Packets of flows to no service pass as they are, and so do later
//! fragments where the service has a port, since they do not say theirs.
//!
//! With `returns`, packets from backends get the service's address and port as their source again. No state decides that: what comes from a
//! backend's address, port and protocol is from there, and a chain file where that may be two services' is refused. A packet that goes to
//! a backend keeps its source, wherever it comes from. Of ICMP and ICMPv6 only the replies to queries are returned: errors would have to be
//! from whom the packet that they quote was sent to, and neighbours must know each other's own addresses.
//!
//! - Shape: a word of the flow's entry: the backend, and which of the flow's ends is the service.
//! - Verdict: pass, or drop with `rewrite` where headers cannot be rewritten (the port of a first fragment of SCTP).

mod config;
mod cpu;
pub mod maglev;
mod oracle;
mod paper;
mod returns;
mod services;

#[cfg(test)]
mod tests;

use std::any::Any;
use std::sync::Arc;

use bytemuck::{Pod, Zeroable};
use packetloom_memory::LaidOut;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;

pub use self::config::{Config, Port, Service, ServiceBackend, TableSize, Weight};
use self::returns::Returns;
use self::services::{Named, Services};
use crate::flows::{
    By, DeviceKernel, FlowFunction, FlowGroup, FlowOracle, KernelSpec, StateAt, StateSpec, Tally, Text,
    state_words,
};
use crate::summary::{self, Volume};
use crate::{Form, FunctionSpec, PerFlow, Report};

/// A balancer ready to run.
#[derive(Clone, Debug)]
pub struct Balancer {
    flows: Option<String>,
    services: Arc<Services>,
    /// Where packets from backends are returned.
    returns: Option<Arc<Returns>>,
    /// What numbers in the state that it takes over stand for, and the numbers that these backends have here, as far as they were met.
    old: Vec<(Named, Option<u32>)>,
}

impl FunctionSpec for Balancer {
    fn name(&self) -> &'static str {
        "balancer"
    }

    fn resume(&mut self, old: &dyn FunctionSpec) -> bool {
        let Some(old) = (old as &dyn Any).downcast_ref::<Self>() else { return false };
        let is_same = self.flows == old.flows
            && self.services.configured() == old.services.configured()
            && self.returns.is_some() == old.returns.is_some();
        if is_same {
            self.services = old.services.clone();
            self.returns = old.returns.clone();
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
        let number = match *own {
            Some(number) => number,
            None => {
                let before = self.services.backends().len();
                let number = Arc::make_mut(&mut self.services).number(named);
                let is_new = self.services.backends().len() > before;
                if let Some(returns) = self.returns.as_mut().filter(|_| is_new) {
                    let backend = self.services.backend(number);
                    Arc::make_mut(returns).add(number, named.service, backend);
                }
                *own.insert(number)
            }
        };
        chosen.set_backend(number);
        true
    }

    fn describe(&self) -> Vec<String> {
        let returns = self
            .returns
            .as_ref()
            .map(|_| "packets from backends get their service's address and port".to_owned());
        self.services.describe().into_iter().chain(returns).collect()
    }

    fn rewrites(&self) -> bool {
        true
    }

    fn form(&self) -> Form<'_> {
        Form::PerFlow(self)
    }
}

impl PerFlow for Balancer {
    fn keeps(&self) -> StateSpec {
        StateSpec { flows: self.flows.clone(), by: &[By::FiveTuple], words: state_words::<cpu::Chosen>() }
    }

    fn legend(&self) -> serde_json::Value {
        json!(self.services.named().collect::<Vec<_>>())
    }

    fn function(&self, at: StateAt) -> Box<dyn FlowFunction> {
        Box::new(cpu::BalancerCpu::new(at, self.services.clone(), self.returns.clone()))
    }

    fn oracle(&self) -> Box<dyn FlowOracle> {
        Box::new(oracle::BalancerOracle::new(self.services.clone(), self.returns.is_some()))
    }

    fn kernel(&self) -> Option<DeviceKernel> {
        const TEXTS: &[Text] = &[Text {
            name: "balancer",
            source: include_str!("balancer.kernel.c"),
            constants: &[("BALANCER_ANY", services::ANY)],
        }];
        let backends = self.services.backends().len();
        let returned = if self.returns.is_some() { backends } else { 0 };
        Some(DeviceKernel::new(KernelSpec {
            state: Some(cpu::Chosen::LAYOUT),
            parameters: self.services.parameters(self.returns.as_deref()),
            totals: Some(BalancerTotals::LAYOUT),
            more: vec![(Load::LAYOUT, backends), (Tally::LAYOUT, returned)],
            flow_group: FlowGroup::Summarized(Some(BalancerSummary::LAYOUT)),
            ..KernelSpec::new("balancer", TEXTS)
        }))
    }
}

packetloom_memory::layout! {
    /// What its step counts by name.
    #[derive(Clone, Copy, Pod, Zeroable)]
    struct BalancerTotals {
        /// Packets to no service, and from no backend where these are returned.
        others: u64,
    }
}

packetloom_memory::layout! {
    /// What the packets of a piece have in common.
    #[allow(dead_code, reason = "kernels alone have it")]
    struct BalancerSummary {
        is_v6: u64,
    }
}

packetloom_memory::layout! {
    /// Packets, their IP bytes, and flows.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
    pub struct Load {
        /// Packets that were sent there.
        pub packets: u64,
        /// Their IP bytes.
        pub bytes: u64,
        /// Flows that it was chosen for.
        pub flows: u64,
    }
}

/// What a balancer counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BalancerReport {
    /// For each backend, in the order of the services: how it is called, and its load.
    pub backends: Vec<(String, Load)>,
    /// Where they are returned, packets from each backend and their IP bytes.
    pub returned: Option<Vec<[u64; 2]>>,
    /// Packets of flows to no service, and from no backend where these are returned.
    pub others: u64,
}

impl BalancerReport {
    fn new(services: &Services, returns: bool) -> Self {
        let backends: Vec<_> = services.names().map(|name| (name, Load::default())).collect();
        let returned = returns.then(|| vec![[0; 2]; backends.len()]);
        Self { backends, returned, others: 0 }
    }

    /// For each backend how it is called, its load, and what was returned.
    fn each(&self) -> impl Iterator<Item = (&str, Load, Option<[u64; 2]>)> {
        let returned = |number| Some(*self.returned.as_ref()?.get(number)?);
        self.backends
            .iter()
            .enumerate()
            .map(move |(number, (name, load))| (&name[..], *load, returned(number)))
    }
}

/// What it counted, for machines.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Summary {
    /// The backends, in the order of the services.
    backends: Vec<BackendSummary>,
    /// Packets of flows to no service, and from no backend where these are returned.
    others: u64,
}

/// A backend and what it got.
#[derive(Serialize, JsonSchema)]
struct BackendSummary {
    /// Its service and its address.
    backend: String,
    /// Packets that were sent there.
    packets: u64,
    /// Their IP bytes.
    bytes: u64,
    /// Flows that it was chosen for.
    flows: u64,
    /// Packets from it, where these are returned.
    #[serde(skip_serializing_if = "Option::is_none")]
    returned: Option<Volume>,
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
        let returned = self.returned.iter_mut().flatten().zip(other.returned.iter().flatten());
        for (own, other) in returned {
            own[0] += other[0];
            own[1] += other[1];
        }
    }

    fn json(&self) -> serde_json::Value {
        let backends = self.each().map(|(name, Load { packets, bytes, flows }, returned)| BackendSummary {
            backend: name.into(),
            packets,
            bytes,
            flows,
            returned: returned.map(Volume::from),
        });
        summary::value(&Summary { backends: backends.collect(), others: self.others })
    }

    fn rows(&self) -> Vec<(String, String)> {
        let row = |(name, Load { packets, bytes, flows }, returned): (&str, Load, Option<[u64; 2]>)| {
            let returned = returned.map_or_else(String::new, |[packets, bytes]| {
                format!("; returned {packets} packets, {bytes} IP bytes")
            });
            (name.to_owned(), format!("{flows} flows, {packets} packets, {bytes} IP bytes{returned}"))
        };
        let others = ("to no service".into(), format!("{} packets", self.others));
        self.each().map(row).chain([others]).collect()
    }
}
