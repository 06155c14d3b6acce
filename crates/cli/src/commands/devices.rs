//! `packetloom devices`.

use packetloom_device::selftest::{self, Check};
use packetloom_device::{Cache, Description, Device};
use packetloom_simd::Isa;
use serde_json::{Value, json};

use super::{stdout, write_text};
use crate::Done;
use crate::args::DevicesArgs;
use crate::failure::Failure;

pub(crate) fn run(args: &DevicesArgs) -> Done {
    let mut values = Vec::new();
    let ids = match args.device {
        Some(id) => vec![id],
        None => {
            values.push(processor());
            let (ids, missing) = packetloom_device::list();
            values.extend(missing.into_iter().map(|error| json!({ "missing": error.to_string() })));
            ids
        }
    };
    let mut failed = 0;
    for id in ids {
        match Device::open(id, Cache::user()) {
            Ok(device) => {
                let checks = selftest::run(&device);
                failed += checks.iter().filter(|check| check.outcome.is_err()).count();
                values.push(described(device.description(), &checks));
            }
            Err(error) if args.device.is_some() => return Err(error.into()),
            Err(error) => values.push(json!({ "missing": error.to_string() })),
        }
    }
    let shown: fn(&Value) -> String = if args.json { |value| format!("{value}\n") } else { text };
    write_text(&stdout(), &values.iter().map(shown).collect::<String>())?;
    if failed > 0 {
        return Err(Failure::Run(anyhow::anyhow!("{failed} checks failed")));
    }
    Ok(())
}

/// The processor that this runs on.
fn processor() -> Value {
    let sets: Vec<_> = Isa::all_available().iter().map(|isa| format!("{isa:?}")).collect();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    json!({ "device": "cpu", "cores": cores, "instructions": sets })
}

fn described(description: &Description, checks: &[Check]) -> Value {
    let check = |check: &Check| match &check.outcome {
        Ok(detail) => json!({ "check": check.name, "ok": true, "detail": detail }),
        Err(why) => json!({ "check": check.name, "ok": false, "detail": why }),
    };
    json!({
        "device": description.id.to_string(),
        "name": description.name,
        "driver": description.driver,
        "memory": description.memory,
        "units": description.units,
        "local_memory": description.local_memory,
        "group": description.group,
        "lanes": description.lanes,
        "shares_host_memory": description.shares,
        "atomics_64": description.atomics_64,
        "checks": checks.iter().map(check).collect::<Vec<_>>(),
    })
}

/// A few lines for people.
fn text(value: &Value) -> String {
    let word = |value: &Value, name: &str| match &value[name] {
        Value::String(text) => text.clone(),
        value => value.to_string(),
    };
    if let Some(missing) = value["missing"].as_str() {
        return format!("not there: {missing}\n");
    }
    if value["device"] == "cpu" {
        let sets = value["instructions"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let sets: Vec<_> = sets.collect();
        return format!("cpu: {} cores; {}\n", word(value, "cores"), sets.join(", "));
    }
    let mut text = format!(
        "{}: {}; {}; {} units, {:.1} GB, {} KB local, groups of {}, {} lanes\n",
        word(value, "device"),
        word(value, "name"),
        word(value, "driver"),
        word(value, "units"),
        value["memory"].as_f64().unwrap_or(0.0) / 1e9,
        value["local_memory"].as_u64().unwrap_or(0) / 1024,
        word(value, "group"),
        word(value, "lanes"),
    );
    for check in value["checks"].as_array().into_iter().flatten() {
        let outcome = if check["ok"] == true { "ok" } else { "FAILED" };
        text += &format!("  {}: {outcome}, {}\n", word(check, "check"), word(check, "detail"));
    }
    text
}
