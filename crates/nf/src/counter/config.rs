//! The keys of `counter` in a chain file.

use schemars::JsonSchema;
use serde::Deserialize;

use super::Counter;
use crate::{Context, Error, FunctionSpec};

/// Packets and bytes of each flow.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "counter")]
pub struct Config {
    /// The flow definition; "5-tuple" unless given.
    pub flows: Option<String>,
}

impl crate::Config for Config {
    const NAME: &'static str = "counter";

    fn prepare(self, _context: &Context<'_>) -> Result<Box<dyn FunctionSpec>, Error> {
        Ok(Box::new(Counter { flows: self.flows }))
    }
}
