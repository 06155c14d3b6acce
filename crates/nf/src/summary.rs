//! What the summaries of functions have in common: they are types, from which both the JSON and its schema come.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use serde_json::Value;

/// A summary as JSON.
pub fn value(summary: &impl Serialize) -> Value {
    // It cannot fail: the keys of all maps are text.
    serde_json::to_value(summary).unwrap_or_default()
}

/// Packets and their IP bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Volume {
    /// Packets.
    pub packets: u64,
    /// Their IP bytes.
    pub bytes: u64,
}

impl From<[u64; 2]> for Volume {
    fn from([packets, bytes]: [u64; 2]) -> Self {
        Self { packets, bytes }
    }
}

/// Values by name, in an order that stays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named<T>(pub Vec<(Cow<'static, str>, T)>);

/// Counts by name.
pub type NamedCounts = Named<u64>;

impl<T> Default for Named<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<N: Into<Cow<'static, str>>, T> FromIterator<(N, T)> for Named<T> {
    fn from_iter<I: IntoIterator<Item = (N, T)>>(values: I) -> Self {
        Self(values.into_iter().map(|(name, value)| (name.into(), value)).collect())
    }
}

impl<T: Serialize> Serialize for Named<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, value) in &self.0 {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

impl<T: JsonSchema> JsonSchema for Named<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        format!("Named{}", T::schema_name()).into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "object", "additionalProperties": generator.subschema_for::<T>() })
    }
}
