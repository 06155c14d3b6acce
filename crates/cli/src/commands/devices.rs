//! `packetloom devices`.

use packetloom_device::selftest::{self, Check};
use packetloom_device::{Cache, Description, Device};
use packetloom_nf::summary;
use packetloom_simd::Isa;
use schemars::JsonSchema;
use serde::Serialize;

use super::{stdout, write_text};
use crate::args::DevicesArgs;
use crate::failure::Failure;
use crate::{Done, talk};

pub(crate) fn run(args: &DevicesArgs) -> Done {
    let mut values = Vec::new();
    let ids = match args.device {
        Some(id) => vec![id],
        None => {
            values.push(processor());
            let (ids, missing) = packetloom_device::list();
            values.extend(missing.into_iter().map(|error| Line::Missing { missing: error.to_string() }));
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
            Err(error) => values.push(Line::Missing { missing: error.to_string() }),
        }
    }
    let shown: fn(&Line) -> String =
        if args.json { |line| format!("{}\n", summary::value(line)) } else { text };
    write_text(&stdout(), &values.iter().map(shown).collect::<String>())?;
    if failed > 0 {
        return Err(Failure::Unavailable(format!("{} failed", talk::amount(failed as u64, "check"))));
    }
    Ok(())
}

/// A line of `packetloom devices --json`.
#[derive(Serialize, JsonSchema)]
#[serde(untagged)]
#[schemars(title = "A line of packetloom devices")]
pub(crate) enum Line {
    /// The processor that this runs on.
    Processor(Processor),
    /// A device.
    Device(DeviceSummary),
    /// A device that is not there, or a kind of them.
    Missing {
        /// Why it is not there.
        missing: String,
    },
}

/// The processor that this runs on.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Processor {
    /// `cpu`.
    device: &'static str,
    /// Its cores that may be used.
    cores: usize,
    /// The instruction sets that the search uses.
    instructions: Vec<String>,
}

/// A device and what works on it.
#[derive(Serialize, JsonSchema)]
pub(crate) struct DeviceSummary {
    /// Its name for `--device`.
    device: String,
    /// What its maker calls it.
    name: String,
    /// The version of its driver.
    driver: String,
    /// Bytes of its memory.
    memory: u64,
    /// Its multiprocessors.
    units: u32,
    /// Bytes of memory that a group shares.
    local_memory: u32,
    /// Threads of a group at most.
    group: u32,
    /// Threads in step.
    lanes: u32,
    /// Whether its memory is this machine's.
    shares_host_memory: bool,
    /// Whether it has atomics of 64 bits.
    atomics_64: bool,
    /// What was tried.
    checks: Vec<CheckSummary>,
}

/// Something that was tried.
#[derive(Serialize, JsonSchema)]
struct CheckSummary {
    /// What it is.
    check: &'static str,
    /// Whether it works.
    ok: bool,
    /// What was seen, or what is wrong.
    detail: String,
}

fn processor() -> Line {
    let instructions = Isa::all_available().iter().map(|isa| format!("{isa:?}")).collect();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    Line::Processor(Processor { device: "cpu", cores, instructions })
}

fn described(description: &Description, checks: &[Check]) -> Line {
    let check = |check: &Check| {
        let (Ok(detail) | Err(detail)) = &check.outcome;
        CheckSummary { check: check.name, ok: check.outcome.is_ok(), detail: detail.clone() }
    };
    Line::Device(DeviceSummary {
        device: description.id.to_string(),
        name: description.name.clone(),
        driver: description.driver.clone(),
        memory: description.memory,
        units: description.units,
        local_memory: description.local_memory,
        group: description.group,
        lanes: description.lanes,
        shares_host_memory: description.shares,
        atomics_64: description.atomics_64,
        checks: checks.iter().map(check).collect(),
    })
}

/// A few lines for people.
fn text(line: &Line) -> String {
    let device = match line {
        Line::Missing { missing } => return format!("not there: {missing}\n"),
        Line::Processor(Processor { cores, instructions, .. }) => {
            return format!("cpu: {cores} cores; {}\n", instructions.join(", "));
        }
        Line::Device(device) => device,
    };
    let mut text = format!(
        "{}: {}; {}; {} units, {:.1} GB, {} KB local, groups of {}, {} lanes\n",
        device.device,
        device.name,
        device.driver,
        device.units,
        device.memory as f64 / 1e9,
        device.local_memory / 1024,
        device.group,
        device.lanes,
    );
    for CheckSummary { check, ok, detail } in &device.checks {
        let outcome = if *ok { "ok" } else { "FAILED" };
        text += &format!("  {check}: {outcome}, {detail}\n");
    }
    text
}
