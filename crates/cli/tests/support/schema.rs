//! Holds JSON to a schema: the part of JSON Schema 2020-12 that ours use. A keyword that is not known here is a mistake, and so is a field
//! that an object's schema does not have, unless this says what others are like.

use serde_json::Value;

/// Keywords that say nothing about what is valid.
const NOTES: [&str; 5] = ["$schema", "title", "description", "format", "default"];

/// What is wrong with a value, if anything is.
pub fn check(schema: &Value, value: &Value) -> Result<(), String> {
    at(schema, value, "$")
}

fn at(schema: &Value, value: &Value, place: &str) -> Result<(), String> {
    let keywords = match schema {
        Value::Bool(true) => return Ok(()),
        Value::Object(keywords) => keywords,
        other => return Err(format!("{place}: the schema is {other}")),
    };
    let fail = |why: String| Err(format!("{place}: {why}: {value}"));
    for (keyword, of) in keywords {
        let holds = match keyword.as_str() {
            "type" => match of {
                Value::String(name) => is(name, value),
                Value::Array(names) => {
                    names.iter().any(|name| is(name.as_str().expect("the name of a type"), value))
                }
                other => return fail(format!("type {other}")),
            },
            "const" => of == value,
            "enum" => of.as_array().expect("values").contains(value),
            "minimum" => value.as_f64().is_none_or(|number| number >= of.as_f64().expect("a number")),
            "maximum" => value.as_f64().is_none_or(|number| number <= of.as_f64().expect("a number")),
            "minItems" => {
                value.as_array().is_none_or(|all| all.len() as u64 >= of.as_u64().expect("a number"))
            }
            "maxItems" => {
                value.as_array().is_none_or(|all| all.len() as u64 <= of.as_u64().expect("a number"))
            }
            "minLength" => {
                let is_long = |text: &str| text.chars().count() as u64 >= of.as_u64().expect("a number");
                value.as_str().is_none_or(is_long)
            }
            "uniqueItems" => value.as_array().is_none_or(|all| {
                let is_new = |(number, item): (usize, &Value)| !all[..number].contains(item);
                of == &Value::Bool(false) || all.iter().enumerate().all(is_new)
            }),
            "items" => {
                for (index, item) in value.as_array().into_iter().flatten().enumerate() {
                    at(of, item, &format!("{place}[{index}]"))?;
                }
                true
            }
            "required" => {
                let names = of.as_array().expect("names");
                value.as_object().is_none_or(|fields| {
                    names.iter().all(|name| fields.contains_key(name.as_str().expect("a name")))
                })
            }
            "properties" => {
                let others = &keywords.get("additionalProperties").cloned().unwrap_or(Value::Bool(false));
                for (name, field) in value.as_object().into_iter().flatten() {
                    let place = format!("{place}.{name}");
                    match of.get(name) {
                        Some(schema) => at(schema, field, &place)?,
                        None if *others == Value::Bool(false) => {
                            return Err(format!("{place}: the schema does not have it"));
                        }
                        None => at(others, field, &place)?,
                    }
                }
                true
            }
            "additionalProperties" if keywords.contains_key("properties") => true,
            "additionalProperties" => {
                for (name, field) in value.as_object().into_iter().flatten() {
                    at(of, field, &format!("{place}.{name}"))?;
                }
                true
            }
            "anyOf" | "oneOf" => {
                let results: Vec<_> =
                    of.as_array().expect("schemas").iter().map(|schema| at(schema, value, place)).collect();
                let good = results.iter().filter(|result| result.is_ok()).count();
                if good == 0 {
                    let why: Vec<_> = results.into_iter().filter_map(Result::err).collect();
                    return fail(format!("none of these holds: {why:?}"));
                }
                keyword == "anyOf" || good == 1
            }
            note if NOTES.contains(&note) => true,
            other => return fail(format!("keyword {other:?} is not known")),
        };
        if !holds {
            return fail(format!("{keyword} {of} does not hold"));
        }
    }
    Ok(())
}

fn is(name: &str, value: &Value) -> bool {
    match name {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("type {other:?} is not known"),
    }
}
