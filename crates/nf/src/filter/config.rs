//! The keys of `filter` in a chain file.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;

use super::{Filter, Period};
use crate::units::Instant;
use crate::{Context, Error, FunctionSpec};

/// Packets that match an expression, or of a time.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "filter")]
pub struct Config {
    /// In tcpdump's language, such as "tcp port 443 and net 10.0.0.0/8"; all packets match unless there is one.
    pub expression: Option<String>,
    /// The time of the first packets that pass.
    pub begin: Option<Instant>,
    /// The time before which packets pass.
    pub end: Option<Instant>,
}

impl crate::Config for Config {
    const NAME: &'static str = "filter";

    fn prepare(self, _context: &Context<'_>) -> Result<Box<dyn FunctionSpec>, Error> {
        let Self { expression, begin, end } = self;
        if expression.is_none() && begin.is_none() && end.is_none() {
            return Err(Error::Invalid("no condition; expected expression, begin or end".into()));
        }
        let filter = packetloom_filter::Filter::parse(expression.as_deref().unwrap_or_default());
        let filter = filter.map_err(|e| Error::Invalid(format!("expression: {e}")))?;
        let period = Period::new(begin, end).map_err(Error::Invalid)?;
        Ok(Box::new(Filter { filter: Arc::new(filter), period }))
    }
}
