//! JSON schemas, for editors and other programs: of the chain file, and of what a run prints. They come from the types by which these
//! are read and written.

use packetloom_nf::flows;
use packetloom_nf::registry::{FUNCTIONS, Registration};
use schemars::{JsonSchema, Schema, SchemaGenerator, generate::SchemaSettings};
use serde_json::{Value, json};

use crate::chain::{Run, Sink, Source};
use crate::outcome::{MeterSummary, Summary};
use crate::run::{FlowList, Removed, ReportLine, RulesChanged};
use crate::state::StateSummary;

/// The schema of what a type is written as, as of JSON Schema 2020-12.
pub fn of<T: JsonSchema>() -> Value {
    let settings =
        SchemaSettings::draft2020_12().for_serialize().with(|settings| settings.inline_subschemas = true);
    settings.into_generator().into_root_schema_for::<T>().to_value()
}

/// The schema of the summary of a run.
pub fn run_summary() -> Value {
    of::<Summary>()
}

/// The schema of the summary of `packetloom meter`.
pub fn meter_summary() -> Value {
    of::<MeterSummary>()
}

/// The schema of a line of statistics that a run writes on its way.
pub fn statistics() -> Value {
    of::<ReportLine>()
}

/// The schema of what `packetloom state` prints of a state file.
pub fn state() -> Value {
    of::<StateSummary>()
}

/// The schema of flows of a function as a run tells them: [`crate::run::Listed::json`].
pub fn flow_list() -> Value {
    of::<FlowList>()
}

/// The schema of what a run says that was removed: [`crate::run::Removed::json`].
pub fn removed() -> Value {
    of::<Removed>()
}

/// The schema of how rules were changed.
pub fn rules_changed() -> Value {
    of::<RulesChanged>()
}

/// The schema of something of a function that also has the function's name.
pub(crate) fn named(
    function: &Registration,
    schema: fn(&mut SchemaGenerator) -> Schema,
    generator: &mut SchemaGenerator,
) -> Value {
    let mut schema = schema(generator).to_value();
    schema["properties"]["nf"] = json!({ "const": function.name });
    if let Some(required) = schema.as_object_mut().map(|s| s.entry("required").or_insert_with(|| json!([])))
        && let Some(required) = required.as_array_mut()
    {
        required.insert(0, "nf".into());
    }
    schema
}

/// The schema, as of JSON Schema 2020-12.
pub fn chain_file() -> Value {
    let mut generator = SchemaSettings::draft2020_12().with(|s| s.inline_subschemas = true).into_generator();
    let functions: Vec<Value> = FUNCTIONS
        .iter()
        .map(|function| {
            let mut schema = named(function, function.schema, &mut generator);
            schema["description"] = function.summary.into();
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
