//! The JSON schema of the chain file, for editors and other programs.

use packetloom_nf::flows;
use packetloom_nf::registry::FUNCTIONS;
use schemars::{JsonSchema, SchemaGenerator, generate::SchemaSettings};
use serde_json::{Value, json};

use crate::chain::{Run, Sink, Source};

/// The schema, as of JSON Schema 2020-12.
pub fn chain_file() -> Value {
    let mut generator = SchemaSettings::draft2020_12().with(|s| s.inline_subschemas = true).into_generator();
    let functions: Vec<Value> = FUNCTIONS
        .iter()
        .map(|function| {
            let mut schema = (function.schema)(&mut generator).to_value();
            schema["description"] = function.summary.into();
            schema["properties"]["nf"] = json!({ "const": function.name });
            if let Some(required) =
                schema.as_object_mut().map(|s| s.entry("required").or_insert_with(|| json!([])))
                && let Some(required) = required.as_array_mut()
            {
                required.insert(0, "nf".into());
            }
            schema
        })
        .collect();
    fn section<T: JsonSchema>(generator: &mut SchemaGenerator) -> Value {
        T::json_schema(generator).to_value()
    }
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Packetloom chain file",
        "type": "object",
        "properties": {
            "source": section::<Source>(&mut generator),
            "flows": { "type": "object", "additionalProperties": section::<flows::Config>(&mut generator) },
            "chain": { "type": "array", "items": { "oneOf": functions } },
            "sink": section::<Sink>(&mut generator),
            "run": section::<Run>(&mut generator),
        },
        "additionalProperties": false,
    })
}
