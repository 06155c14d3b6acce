//! The keys of `filter` in a chain file.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;

use super::Filter;
use crate::{Context, Error, FunctionSpec};

/// Packets that match an expression.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "filter")]
pub struct Config {
    /// In tcpdump's language, such as "tcp port 443 and net 10.0.0.0/8".
    pub expression: String,
}

impl crate::Config for Config {
    const NAME: &'static str = "filter";

    fn prepare(self, _context: &Context<'_>) -> Result<Box<dyn FunctionSpec>, Error> {
        let filter = packetloom_filter::Filter::parse(&self.expression);
        let filter = filter.map_err(|e| Error::Invalid(format!("expression: {e}")))?;
        Ok(Box::new(Filter(Arc::new(filter))))
    }
}
