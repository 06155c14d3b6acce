//! The keys of `policer` in a chain file.

use schemars::JsonSchema;
use serde::Deserialize;

use super::{Action, Policer, Terms};
use crate::units::{Size, Throughput, Unit};
use crate::{Context, Error, Prepared};

/// A marker of RFC 2697 or RFC 2698 for each source.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "policer")]
pub struct Config {
    /// The flow definition; "source" unless given.
    pub flows: Option<String>,
    /// How packets are marked.
    pub marker: Kind,
    /// Committed information rate: what each flow may send on average and have marked green, in bytes, as "10Mbit/s".
    pub cir: Throughput,
    /// Committed burst size: what each flow may send at once and have marked green, in bytes, as "64kB".
    pub cbs: Size,
    /// Excess burst size, of a "single-rate" marker: what each flow may send at once beyond the committed burst and have marked
    /// yellow, in bytes.
    pub ebs: Option<Size>,
    /// Peak information rate, of a "two-rate" marker: what each flow may send on average without being marked red, in bytes; the
    /// committed rate or more.
    pub pir: Option<Throughput>,
    /// Peak burst size, of a "two-rate" marker: what each flow may send at once without being marked red, in bytes.
    pub pbs: Option<Size>,
    /// What becomes of yellow packets.
    #[serde(default = "Config::default_yellow")]
    pub yellow: Action,
    /// What becomes of red packets.
    #[serde(default = "Config::default_red")]
    pub red: Action,
}

/// How packets are marked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// By one rate and two bursts: RFC 2697.
    SingleRate,
    /// By two rates, each with its burst: RFC 2698.
    TwoRate,
}

impl Kind {
    /// The word in chain files.
    const fn name(self) -> &'static str {
        match self {
            Self::SingleRate => "single-rate",
            Self::TwoRate => "two-rate",
        }
    }

    /// The keys that say what it marks by.
    const fn keys(self) -> &'static str {
        match self {
            Self::SingleRate => "cir, cbs and ebs",
            Self::TwoRate => "cir, cbs, pir and pbs",
        }
    }
}

impl Config {
    /// Pass.
    pub const fn default_yellow() -> Action {
        Action::Pass
    }

    /// Drop.
    pub const fn default_red() -> Action {
        Action::Drop
    }

    /// What packets are marked by.
    fn terms(&self) -> Result<Terms, Error> {
        let &Self { marker, cir, cbs, ebs, pir, pbs, .. } = self;
        in_bytes("cir", cir.parts().1, "10Mbit/s")?;
        in_bytes("cbs", cbs.parts().1, "64kB")?;
        let expected = |found: &str| {
            let (name, keys) = (marker.name(), marker.keys());
            Error::Invalid(format!("{found} with marker = {name:?}; expected {keys}"))
        };
        let missing = |key: &str| expected(&format!("no {key}"));
        match (marker, ebs, pir, pbs) {
            (Kind::SingleRate, _, Some(_), _) => Err(expected("pir")),
            (Kind::SingleRate, _, _, Some(_)) => Err(expected("pbs")),
            (Kind::SingleRate, None, ..) => Err(missing("ebs")),
            (Kind::SingleRate, Some(ebs), None, None) => {
                in_bytes("ebs", ebs.parts().1, "64kB")?;
                Ok(Terms::SingleRate { cir, cbs, ebs })
            }
            (Kind::TwoRate, Some(_), ..) => Err(expected("ebs")),
            (Kind::TwoRate, _, None, _) => Err(missing("pir")),
            (Kind::TwoRate, _, _, None) => Err(missing("pbs")),
            (Kind::TwoRate, None, Some(pir), Some(pbs)) => {
                in_bytes("pir", pir.parts().1, "10Mbit/s")?;
                in_bytes("pbs", pbs.parts().1, "64kB")?;
                Ok(Terms::TwoRate { cir, cbs, pir, pbs })
            }
        }
    }
}

fn in_bytes(key: &str, unit: Unit, example: &str) -> Result<(), Error> {
    match unit {
        Unit::Bytes => Ok(()),
        Unit::Packets => {
            Err(Error::Invalid(format!("{key} is in packets; expected bytes, such as {example:?}")))
        }
    }
}

impl crate::Config for Config {
    const NAME: &'static str = "policer";

    fn prepare(self, _context: &Context<'_>) -> Result<Box<dyn Prepared>, Error> {
        let terms = self.terms()?;
        let marker = terms.marker()?;
        let Self { flows, yellow, red, .. } = self;
        Ok(Box::new(Policer { flows, terms, marker, yellow, red }))
    }
}
