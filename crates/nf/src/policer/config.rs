//! The keys of `policer` in a chain file.

use std::fmt;

use packetloom_packet::Dscp;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde::de::{self, Deserializer};

use super::meter::Colour;
use super::{Action, Policer, Terms};
use crate::units::{Size, Throughput, Unit};
use crate::{Context, Error, FunctionSpec};

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
    /// Whether the DSCP with which a packet comes here counts: "colour-blind" or "colour-aware".
    #[serde(default)]
    pub mode: Mode,
    /// In the "colour-aware" mode, the colour of packets whose DSCP is none of assured forwarding; "green" unless given.
    pub others: Option<Colour>,
    /// What becomes of green packets: "pass", "drop", or a DSCP that they get, as { dscp = "af11" }.
    #[serde(default = "Config::default_green")]
    pub green: Action,
    /// What becomes of yellow packets.
    #[serde(default = "Config::default_yellow")]
    pub yellow: Action,
    /// What becomes of red packets.
    #[serde(default = "Config::default_red")]
    pub red: Action,
}

/// Whether packets have a colour already.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// No: all of them are green before.
    #[default]
    ColourBlind,
    /// By their DSCP: the drop precedence of assured forwarding (RFC 2597).
    ColourAware,
}

/// A DSCP as chain files have it: its name, such as "af12", or its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark(pub Dscp);

impl<'de> Deserialize<'de> for Mark {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Mark;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a DSCP: a name such as \"af12\", or a number from 0 to 63")
            }

            fn visit_str<E: de::Error>(self, name: &str) -> Result<Mark, E> {
                name.parse().map(Mark).map_err(E::custom)
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Mark, E> {
                let dscp = u64::try_from(number).ok().and_then(Dscp::new);
                dscp.map(Mark).ok_or_else(|| E::invalid_value(de::Unexpected::Signed(number), &self))
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

impl<'de> Deserialize<'de> for Action {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> de::Visitor<'de> for Visitor {
            type Value = Action;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"pass\", \"drop\", or a DSCP such as { dscp = \"af12\" }")
            }

            fn visit_str<E: de::Error>(self, word: &str) -> Result<Action, E> {
                match word {
                    "pass" => Ok(Action::Pass),
                    "drop" => Ok(Action::Drop),
                    _ => Err(E::invalid_value(de::Unexpected::Str(word), &self)),
                }
            }

            fn visit_map<A: de::MapAccess<'de>>(self, mut map: A) -> Result<Action, A::Error> {
                let mut mark = None;
                while let Some(key) = map.next_key::<String>()? {
                    if key != "dscp" {
                        return Err(de::Error::invalid_value(
                            de::Unexpected::Other(&format!("key {key:?}")),
                            &self,
                        ));
                    }
                    mark = Some(map.next_value()?);
                }
                mark.map(Action::Dscp)
                    .ok_or_else(|| de::Error::invalid_value(de::Unexpected::Other("no key"), &self))
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

impl JsonSchema for Mark {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Dscp".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A DSCP: \"default\", \"be\", \"cs0\" to \"cs7\", \"af11\" to \"af43\", \"ef\", or its number.",
            "anyOf": [
                { "type": "string", "pattern": "^([Dd][Ee][Ff][Aa][Uu][Ll][Tt]|[Bb][Ee]|[Cc][Ss][0-7]|[Aa][Ff][1-4][1-3]|[Ee][Ff])$" },
                { "type": "integer", "minimum": 0, "maximum": 63 },
            ]
        })
    }
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
    pub const fn default_green() -> Action {
        Action::Pass
    }

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

    fn prepare(self, _context: &Context<'_>) -> Result<Box<dyn FunctionSpec>, Error> {
        let terms = self.terms()?;
        let marker = terms.marker()?;
        let Self { flows, mode, others, green, yellow, red, .. } = self;
        let others = match (mode, others) {
            (Mode::ColourBlind, Some(_)) => {
                return Err(Error::Invalid(
                    "others with mode = \"colour-blind\"; expected mode = \"colour-aware\"".into(),
                ));
            }
            (Mode::ColourBlind, None) => None,
            (Mode::ColourAware, others) => Some(others.unwrap_or(Colour::Green)),
        };
        Ok(Box::new(Policer { flows, terms, marker, others, actions: [green, yellow, red] }))
    }
}
