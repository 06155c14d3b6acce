//! Reports as JSON.

use serde_json::{Map, Value, json};

use crate::counts::{Counts, Measure};
use crate::series::Series;
use crate::top::Top;

const NANOS_OF_MILLI: u64 = 1_000_000;

/// Writes the three counts into an object.
fn put(object: &mut Value, counts: Counts) {
    for measure in Measure::ALL {
        object[measure.name()] = counts.get(measure).into();
    }
}

fn counts(counts: Counts) -> Value {
    let mut object = Value::Object(Map::new());
    put(&mut object, counts);
    object
}

/// Writes the three counts of each interval into an object.
fn put_all(object: &mut Value, counts: &[Counts]) {
    for measure in Measure::ALL {
        object[measure.name()] = counts.iter().map(|counts| counts.get(measure)).collect();
    }
}

pub(crate) fn top(top: &Top) -> Value {
    let spec = top.spec();
    let rows = top.rows().into_iter().map(|row| {
        let mut object = json!({ "key": row.key.json(spec.key()) });
        put(&mut object, row.counts);
        object["error"] = row.error.into();
        object
    });
    json!({
        "kind": "top",
        "spec": spec.to_string(),
        "fields": spec.field_names().collect::<Vec<_>>(),
        "measure": spec.measure().name(),
        "exact": top.is_exact(),
        "error": top.floor(),
        "keys": top.keys(),
        "rows": rows.collect::<Vec<_>>(),
        "without_value": counts(top.without()),
        "total": counts(top.total()),
    })
}

pub(crate) fn series(series: &Series) -> Value {
    let spec = series.spec();
    let mut object = json!({
        "kind": "series",
        "spec": spec.to_string(),
        "fields": spec.field_names().collect::<Vec<_>>(),
        "measure": spec.measure().name(),
        "interval_ms": series.interval_nanos() / NANOS_OF_MILLI,
        "asked_interval_ms": spec.interval_nanos() / NANOS_OF_MILLI,
        "start_ms": series.start_nanos().map(|start| start / NANOS_OF_MILLI),
        "exact": series.is_exact(),
        "error": series.floor(),
    });
    put_all(&mut object, &series.counts().collect::<Vec<_>>());
    if let Some(key) = spec.key() {
        let lines = series.lines();
        let others = series.others(&lines);
        let lines = lines.iter().map(|line| {
            let mut object = json!({ "key": line.key.json(key) });
            put_all(&mut object, &line.counts);
            object["total"] = counts(line.total);
            object["error"] = line.error.into();
            object
        });
        object["lines"] = lines.collect();
        let mut rest = Value::Object(Map::new());
        put_all(&mut rest, &others);
        object["others"] = rest;
    }
    object["total"] = counts(series.total());
    object
}
