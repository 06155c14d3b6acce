//! The JSON schema of reports.

use serde_json::{Map, Value, json};

use crate::counts::Measure;

fn count(what: &str) -> Value {
    json!({ "type": "integer", "minimum": 0, "maximum": u64::MAX, "description": what })
}

fn counts_of_intervals(what: &str) -> Value {
    json!({ "type": "array", "items": { "type": "integer", "minimum": 0, "maximum": u64::MAX }, "description": what })
}

/// An object that has all of these, and nothing else.
fn object(what: &str, properties: &[(&str, Value)]) -> Value {
    let required: Vec<_> = properties.iter().map(|(name, _)| *name).collect();
    let properties: Map<String, Value> =
        properties.iter().map(|(name, schema)| ((*name).to_owned(), schema.clone())).collect();
    json!({
        "type": "object", "properties": properties, "required": required, "additionalProperties": false, "description": what
    })
}

fn counts(what: &str) -> Value {
    object(what, &three())
}

fn three() -> [(&'static str, Value); 3] {
    [
        ("packets", count("Packets.")),
        ("bytes", count("IP bytes.")),
        ("flows", count("Flows of one direction each.")),
    ]
}

fn three_of_intervals() -> [(&'static str, Value); 3] {
    [
        ("packets", counts_of_intervals("Packets in each interval.")),
        ("bytes", counts_of_intervals("IP bytes in each interval.")),
        ("flows", counts_of_intervals("Flows that began in each interval.")),
    ]
}

fn key() -> Value {
    json!({
        "type": "object",
        "additionalProperties": { "type": ["string", "integer", "null"] },
        "description": "The value of each of the fields: addresses and names are texts, other values numbers, and null is none."
    })
}

fn common(kind: &str) -> Vec<(&'static str, Value)> {
    let names: Vec<_> = Measure::ALL.into_iter().map(Measure::name).collect();
    let text = |what: &str| json!({ "type": "string", "description": what });
    vec![
        ("kind", json!({ "const": kind })),
        ("spec", text("What the report was asked for.")),
        (
            "fields",
            json!({ "type": "array", "items": { "type": "string" }, "description": "What flows are grouped by." }),
        ),
        ("measure", json!({ "enum": names, "description": "What the order is by." })),
        ("exact", json!({ "type": "boolean", "description": "Whether all counts are exact." })),
        (
            "error",
            count(
                "What of the measure a value has at most that is missing, and the highest error of all; 0 if it is exact.",
            ),
        ),
    ]
}

fn top() -> Value {
    let mut row = vec![("key", key())];
    row.extend(three());
    row.push((
        "error",
        count(
            "By how much the measure may be too high; if it is not 0, the other two counts may be too low.",
        ),
    ));
    let mut top = common("top");
    top.extend([
        ("keys", count("Distinct values; if it is not exact, there were more.")),
        (
            "rows",
            json!({ "type": "array", "items": object("A value, and what its flows have.", &row), "description": "Those with most, and the highest first." }),
        ),
        ("without_value", counts("Flows that have no value in any of the fields.")),
        ("total", counts("All flows.")),
    ]);
    object("The values that flows have most of.", &top)
}

/// The schema of a series; those with fields have lines.
fn series(has_fields: bool) -> Value {
    let mut series = common("series");
    series.extend([
        ("interval_ms", count("Milliseconds of an interval.")),
        (
            "asked_interval_ms",
            count("What was asked for; intervals are longer where there would have been too many."),
        ),
        (
            "start_ms",
            json!({
                "type": ["integer", "null"],
                "minimum": 0,
                "description": "When the first interval begins, in milliseconds since 1970; null without flows."
            }),
        ),
    ]);
    series.extend(three_of_intervals());
    if has_fields {
        let mut line = vec![("key", key())];
        line.extend(three_of_intervals());
        line.push(("total", counts("Their sums.")));
        line.push(("error", count("What of the measure may be missing here, and be among the others.")));
        let lines = json!({
            "type": "array",
            "items": object("The flows of one value.", &line),
            "description": "The values with most, and those with the most first."
        });
        series.extend([("lines", lines), ("others", object("All other flows.", &three_of_intervals()))]);
    }
    series.push(("total", counts("All flows.")));
    object("Packets, bytes and flows by time.", &series)
}

/// The schema of a file of reports.
pub fn reports() -> Value {
    let report = json!({ "oneOf": [top(), series(false), series(true)] });
    let list = json!({ "type": "array", "items": report, "description": "The reports, in their order." });
    let mut schema = object("Reports of flows.", &[("reports", list)]);
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema".into();
    schema["title"] = "Reports of flows: the values with most, and counts by time".into();
    schema
}
