//! The keys of `conntrack` in a chain file.

use schemars::JsonSchema;
use serde::Deserialize;

use super::Conntrack;
use crate::connections::TimeoutsConfig;
use crate::{Context, Error, FunctionSpec};

/// The state of connections; packets that belong to none and cannot open one are dropped.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(rename = "conntrack")]
pub struct Config {
    /// The flow definition, by connection; "connection" unless given.
    pub flows: Option<String>,
    /// What becomes of packets that belong to no connection and cannot open one.
    pub invalid: Invalid,
    /// Take TCP connections up whose handshake was not seen.
    pub loose: bool,
    /// How long connections are remembered.
    pub timeouts: TimeoutsConfig,
}

/// What becomes of invalid packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Invalid {
    /// They are dropped.
    #[default]
    Drop,
    /// They pass.
    Pass,
}

impl crate::Config for Config {
    const NAME: &'static str = "conntrack";

    fn prepare(self, _context: &Context<'_>) -> Result<Box<dyn FunctionSpec>, Error> {
        Ok(Box::new(Conntrack { config: self }))
    }
}
