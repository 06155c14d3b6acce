//! The keys of `sample` in a chain file, and the same on a command line.

use std::num::NonZeroU32;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::Deserialize;

use super::{Choice, Sample};
use crate::units::{Bounded, number};
use crate::{Context, Error, FunctionSpec};

/// Of how many packets one is taken.
pub type Interval = Bounded<2, { u32::MAX as u64 }>;

/// One of so many packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "sample")]
pub struct Config {
    /// Of how many packets one is taken, 2 or more.
    pub interval: Interval,
    /// "systematic", the first of every interval; or "random", each packet with probability 1/interval.
    #[serde(default)]
    pub method: Method,
    /// With "random", what it begins with: the same seed takes the same packets.
    #[serde(default)]
    pub seed: Option<u64>,
}

/// Which packets are taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Method {
    /// The first of every interval.
    #[default]
    Systematic,
    /// Each with the same probability.
    Random,
}

impl crate::Config for Config {
    const NAME: &'static str = "sample";

    fn prepare(self, _context: &Context<'_>) -> Result<Box<dyn FunctionSpec>, Error> {
        let choice = match (self.method, self.seed) {
            (Method::Systematic, None) => Choice::Systematic,
            (Method::Systematic, Some(_)) => {
                return Err(Error::Invalid("a seed; expected it with method = \"random\" only".into()));
            }
            (Method::Random, seed) => Choice::Random(seed.unwrap_or_default()),
        };
        let interval = u32::try_from(self.interval.get()).ok().and_then(NonZeroU32::new);
        let Some(interval) = interval else { unreachable!("it is 2 to u32::MAX") };
        Ok(Box::new(Sample { interval, choice }))
    }
}

/// `N`, `N,random` or `N,random,SEED`.
impl FromStr for Config {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = text.split(',');
        let interval = parts.next().unwrap_or_default().parse()?;
        let method = match parts.next() {
            None => Method::Systematic,
            Some("random") => Method::Random,
            Some(other) => return Err(format!("{other:?}; expected N, N,random or N,random,SEED")),
        };
        let seed = parts.next().map(|seed| number(seed, 0..=u64::MAX)).transpose()?;
        if parts.next().is_some() {
            return Err(format!("{text:?}; expected N, N,random or N,random,SEED"));
        }
        Ok(Self { interval, method, seed })
    }
}
