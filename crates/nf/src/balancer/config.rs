//! The keys of `balancer` in a chain file.

use std::net::IpAddr;
use std::sync::Arc;

use packetloom_packet::protocol;
use schemars::JsonSchema;
use serde::Deserialize;

use super::returns::Returns;
use super::services::{Backend, Front, Services};
use super::{Balancer, maglev};
use crate::units::Bounded;
use crate::{Context, Error, FunctionSpec};

/// Flows to services spread over backends.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "balancer")]
pub struct Config {
    /// The flow definition, by "5-tuple"; that of this name unless given.
    pub flows: Option<String>,
    /// What is sent where, the first one that fits.
    pub services: Vec<Service>,
    /// Entries of each service's table: a prime number, 100 times that of its backends or more.
    #[serde(default = "Config::default_table_size")]
    pub table_size: TableSize,
    /// Whether packets from a backend get its service's address and port as their source again.
    #[serde(default)]
    pub returns: bool,
    /// Changes which flows go where; balancers that share flows need the same.
    #[serde(default)]
    pub seed: u64,
}

/// A number of entries.
pub type TableSize = Bounded<2, { maglev::MAX_SIZE as u64 }>;

/// A port.
pub type Port = Bounded<1, 65_535>;

/// What flows are sent to.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Service {
    /// Its address.
    pub address: IpAddr,
    /// Its port; any unless given.
    pub port: Option<Port>,
    /// Its protocol, as "tcp"; any unless given.
    pub protocol: Option<String>,
    /// Where its flows go.
    pub backends: Vec<ServiceBackend>,
}

/// Where flows go.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ServiceBackend {
    /// Its address.
    pub address: IpAddr,
    /// Its port; that of the packets unless given.
    pub port: Option<Port>,
    /// Its share of new flows, beside the others'; 0 is none.
    #[serde(default = "ServiceBackend::default_weight")]
    pub weight: Weight,
}

/// A share of flows.
pub type Weight = Bounded<0, 65_535>;

impl ServiceBackend {
    /// 1.
    pub const fn default_weight() -> Weight {
        Weight::clamped(1)
    }
}

impl Config {
    /// 65,537: good for 655 backends.
    pub const fn default_table_size() -> TableSize {
        TableSize::clamped(maglev::DEFAULT_SIZE as u64)
    }
}

impl crate::Config for Config {
    const NAME: &'static str = "balancer";

    fn prepare(self, _context: &Context<'_>) -> Result<Box<dyn FunctionSpec>, Error> {
        let mut services = Services::new(self.seed);
        if self.services.is_empty() {
            return Err(Error::Invalid("no services; expected one or more: [[chain.services]]".into()));
        }
        for service in self.services {
            let number = |name: String| match protocol::by_name(&name).or_else(|| name.parse().ok()) {
                Some(number) => Ok(number),
                None => Err(Error::Invalid(format!(
                    "protocol {name:?}; expected a name such as \"tcp\", or a number from 0 to 255 in quotes"
                ))),
            };
            let protocol = service.protocol.map(number).transpose()?;
            let port = |port: Option<Port>| port.map(|port| port.get() as u16);
            let backend = |backend: ServiceBackend| Backend {
                address: backend.address,
                port: port(backend.port),
                weight: backend.weight.get() as u32,
            };
            let backends: Vec<_> = service.backends.into_iter().map(backend).collect();
            let size = self.table_size.get() as u32;
            let front = Front { address: service.address, port: port(service.port), protocol };
            services.add(front, &backends, size)?;
        }
        let returns = self.returns.then(|| Returns::new(&services).map(Arc::new)).transpose()?;
        Ok(Box::new(Balancer { flows: self.flows, services: Arc::new(services), returns, old: Vec::new() }))
    }
}
