//! The keys of `limiter` in a chain file.

use schemars::JsonSchema;
use serde::Deserialize;

use super::Limiter;
use crate::bucket::Bucket;
use crate::units::{Size, Throughput};
use crate::{Context, Error, FunctionSpec};

/// A token bucket for each flow.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "limiter")]
pub struct Config {
    /// The flow definition; "5-tuple" unless given.
    pub flows: Option<String>,
    /// What each flow may send on average, as "10Mbit/s" or "1000packets/s".
    pub rate: Throughput,
    /// What each flow may send at once, as "64kB" or "100packets".
    pub burst: Size,
}

impl crate::Config for Config {
    const NAME: &'static str = "limiter";

    fn prepare(self, _context: &Context<'_>) -> Result<Box<dyn FunctionSpec>, Error> {
        let Self { flows, rate, burst } = self;
        let ((per_second, unit), (units, unit_of_burst)) = (rate.parts(), burst.parts());
        if unit != unit_of_burst {
            return Err(Error::Invalid(format!(
                "rate is in {} and burst in {}; expected the same",
                unit.name(),
                unit_of_burst.name()
            )));
        }
        let parameters = Bucket { rate: per_second, burst: units }.parameters()?;
        Ok(Box::new(Limiter { flows, rate, burst, unit, parameters }))
    }
}
