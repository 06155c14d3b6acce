//! Where patterns are looked for.

use std::fmt;
use std::str::FromStr;

use packetloom_names::Field;

use crate::units::Named;

/// Where patterns are looked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LookIn {
    /// In payloads.
    #[default]
    Payload,
    /// In a header field.
    Field(Field),
}

impl LookIn {
    const PAYLOAD: &str = "payload";

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Payload => Self::PAYLOAD,
            Self::Field(field) => field.name(),
        }
    }

    /// The field whose contents of rules are looked for.
    pub(super) fn buffer(self) -> Option<&'static str> {
        match self {
            Self::Payload => None,
            Self::Field(field) => Some(field.name()),
        }
    }
}

impl fmt::Display for LookIn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A name of neither the payload nor a field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name:?} is no place to look in; expected {expected}", expected = LookIn::names().join(", "))]
pub struct UnknownPlace {
    name: String,
}

impl FromStr for LookIn {
    type Err = UnknownPlace;

    fn from_str(name: &str) -> Result<Self, UnknownPlace> {
        let mut fields = Field::ALL.into_iter();
        match fields.find(|field| field.name() == name) {
            Some(field) => Ok(Self::Field(field)),
            None if name == Self::PAYLOAD => Ok(Self::Payload),
            None => Err(UnknownPlace { name: name.into() }),
        }
    }
}

impl Named for LookIn {
    const KIND: &'static str = "look-in";

    fn names() -> Vec<&'static str> {
        [Self::PAYLOAD].into_iter().chain(Field::ALL.map(Field::name)).collect()
    }
}
