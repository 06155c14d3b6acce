//! Where patterns are looked for.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use packetloom_names::{Field, Fields};
use packetloom_pattern::files::Places;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// Where patterns are looked for: in each of these places; or, unless given, contents of rules where each says, and patterns of lists in the
/// payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LookIn(Option<Places>);

impl LookIn {
    const AUTO: &str = "auto";
    const PAYLOAD: &str = "payload";

    /// In the payload.
    pub const fn payload() -> Self {
        Self(Some(Places::PAYLOAD))
    }

    /// The places, where they are given.
    pub(super) const fn places(self) -> Option<Places> {
        self.0
    }

    /// Names of places.
    fn names() -> impl Iterator<Item = &'static str> {
        [Self::PAYLOAD].into_iter().chain(Field::ALL.map(Field::name))
    }

    fn place(name: &str) -> Result<Places, UnknownPlace> {
        match Places::field(name.as_bytes()) {
            _ if name == Self::PAYLOAD => Ok(Places::PAYLOAD),
            Some(place) if Self::names().any(|field| field == name) => Ok(place),
            _ => Err(UnknownPlace { name: name.into() }),
        }
    }

    fn several<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<Self, UnknownPlace> {
        let mut all = Places::NONE;
        for name in names {
            all = all.and(Self::place(name)?);
        }
        Ok(Self(Some(all)))
    }
}

/// The place of a field.
pub(super) fn place_of(field: Field) -> Places {
    Places::field(field.name().as_bytes()).unwrap_or(Places::NONE)
}

/// The fields among places.
pub(super) fn fields_of(places: Places) -> Fields {
    Field::ALL.into_iter().filter(|&field| places.has(place_of(field))).collect()
}

/// Names with commas between them, as on the command line.
impl fmt::Display for LookIn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(places) = self.0 else { return f.write_str(Self::AUTO) };
        let payload = places.has(Places::PAYLOAD).then_some(Self::PAYLOAD);
        f.write_str(&payload.into_iter().chain(places.fields()).collect::<Vec<_>>().join(","))
    }
}

/// A name of neither the payload nor a field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name:?} is no place to look in; expected auto alone, or some of {expected}", expected = LookIn::names().collect::<Vec<_>>().join(", "))]
pub struct UnknownPlace {
    name: String,
}

impl FromStr for LookIn {
    type Err = UnknownPlace;

    fn from_str(names: &str) -> Result<Self, UnknownPlace> {
        if names == Self::AUTO { Ok(Self::default()) } else { Self::several(names.split(',')) }
    }
}

impl<'de> Deserialize<'de> for LookIn {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(OneOrSeveral)
    }
}

struct OneOrSeveral;

impl<'de> Visitor<'de> for OneOrSeveral {
    type Value = LookIn;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a place in quotes, or several in brackets")
    }

    fn visit_str<E: de::Error>(self, name: &str) -> Result<LookIn, E> {
        let is_auto = name == LookIn::AUTO;
        let look_in = if is_auto { Ok(LookIn::default()) } else { LookIn::several([name]) };
        look_in.map_err(E::custom)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut names: A) -> Result<LookIn, A::Error> {
        let mut all = Vec::new();
        while let Some(name) = names.next_element::<Cow<'_, str>>()? {
            all.push(name);
        }
        if all.is_empty() {
            return Err(de::Error::custom("no place to look in; expected one at least"));
        }
        LookIn::several(all.iter().map(|name| &**name)).map_err(de::Error::custom)
    }
}

impl JsonSchema for LookIn {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "look-in".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let places: Vec<_> = Self::names().collect();
        let one: Vec<_> = [Self::AUTO].into_iter().chain(Self::names()).collect();
        json_schema!({
            "anyOf": [
                { "type": "string", "enum": one },
                { "type": "array", "items": { "type": "string", "enum": places }, "minItems": 1 },
            ],
        })
    }
}
