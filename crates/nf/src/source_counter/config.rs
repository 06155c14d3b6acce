//! The keys of `source-counter` in a chain file.

use schemars::JsonSchema;
use serde::Deserialize;

use super::SourceCounter;
use crate::{Context, Error, FunctionSpec};

/// Packets, bytes and flows of each source.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "source-counter")]
pub struct Config {
    /// The flow definition of the sources; "source" unless given.
    pub flows: Option<String>,
    /// The flow definition by "5-tuple" that says which flows are new; that of this name unless given.
    pub sessions: Option<String>,
}

impl crate::Config for Config {
    const NAME: &'static str = "source-counter";

    fn prepare(self, _context: &Context<'_>) -> Result<Box<dyn FunctionSpec>, Error> {
        let Self { flows, sessions } = self;
        Ok(Box::new(SourceCounter { flows, sessions }))
    }
}
