//! `packetloom bench`.

use std::path::PathBuf;
use std::time::Duration;

use packetloom_bench::sample::Measurement;
use packetloom_bench::{acl, changes, meter};
use packetloom_classify::formats::Options;
use packetloom_engine::chain::Run;
use serde_json::Value;

use super::acl::{read_headers, read_rules};
use super::{stdout, stop_on_signals, write_text};
use crate::args::{BenchAclArgs, BenchChangesArgs, BenchMeterArgs, BenchVerb};
use crate::failure::Failure;
use crate::{Done, talk};

pub(crate) fn run(verb: BenchVerb) -> Done {
    match verb {
        BenchVerb::Meter(args) => bench_meter(args),
        BenchVerb::Acl(args) => bench_acl(&args),
        BenchVerb::Changes(args) => bench_changes(&args),
    }
}

/// A file that is removed when the benchmark ends, however it ends.
struct Temporary(PathBuf);

impl Temporary {
    fn new(name: &str) -> Self {
        Self(std::env::temp_dir().join(format!("packetloom-bench-{}-{name}", std::process::id())))
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn bench_meter(args: BenchMeterArgs) -> Done {
    let stop = stop_on_signals()?;
    let made = Temporary::new("traffic.pcap");
    let records = Temporary::new("flows.jsonl");
    let (capture, workload) = match args.read {
        Some(path) => {
            let name = path.file_name().unwrap_or(path.as_os_str()).display().to_string();
            (path, name)
        }
        None => {
            super::generate::write_traffic(&made.0, &args.shape, &stop)?;
            let shape = &args.shape;
            (made.0.clone(), format!("{} packets, {} flows, snap {}", shape.packets, shape.flows, shape.snap))
        }
    };
    let options = meter::Options {
        capture,
        output: args.output.unwrap_or_else(|| records.0.clone()),
        config: packetloom_nf::meter::Config {
            idle_timeout: args.timeouts.idle_timeout,
            active_timeout: args.timeouts.active_timeout,
            max_flows: packetloom_nf::meter::Config::default_max_flows(),
            output: None,
        },
        run: Run { batch: args.batch, workers: args.workers, ..Run::default() },
        rounds: args.rounds.rounds.get(),
        workload: format!("meter {workload}"),
    };
    show(&[meter::run(&options, &stop)?], args.rounds.json)
}

fn bench_acl(args: &BenchAclArgs) -> Done {
    let stop = stop_on_signals()?;
    let rules = read_rules(&args.rules, Options { ignore_flags: true })?;
    let headers = read_headers(&args.headers)?;
    let name = args.rules.file_name().unwrap_or(args.rules.as_os_str()).display();
    let options = acl::Options {
        kind: args.classifier,
        batch: args.batch.get(),
        rounds: args.rounds.rounds.get(),
        workload: format!("acl {name}"),
    };
    show(&[acl::run(&rules, &headers, &options, &stop)?], args.rounds.json)
}

fn bench_changes(args: &BenchChangesArgs) -> Done {
    let usage = |message: &str| Err(Failure::Usage(message.into()));
    if !(args.seconds > 0.0 && args.seconds <= 1e6) {
        return usage("--seconds; expected more than 0, up to 1000000");
    }
    if args.rate.is_some_and(|rate| !(rate > 0.0 && rate.is_finite())) {
        return usage("--rate; expected more than 0");
    }
    let stop = stop_on_signals()?;
    let rules = read_rules(&args.rules, Options { ignore_flags: true })?;
    let headers = read_headers(&args.headers)?;
    let name = args.rules.file_name().unwrap_or(args.rules.as_os_str()).display();
    let options = changes::Options {
        changes: args.changes_per_transaction.get(),
        rate: args.rate,
        time: Duration::from_secs_f64(args.seconds),
        batch: args.batch.get(),
        seed: args.seed,
        workload: format!("changes {name}"),
    };
    show_values(&[changes::run(&rules, &headers, &options, &stop)?], args.json)
}

/// Prints measurements as JSON lines, or as a table each.
fn show(measurements: &[Measurement], json: bool) -> Done {
    show_values(&measurements.iter().map(Measurement::json).collect::<Vec<_>>(), json)
}

fn show_values(values: &[Value], json: bool) -> Done {
    let mut text = String::new();
    for value in values {
        match value {
            Value::Object(fields) if !json => {
                let show = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                let shown = fields.iter().filter(|(_, value)| !value.is_null());
                let rows: Vec<_> = shown.map(|(name, value)| (name.clone(), show(value))).collect();
                text.push_str(&talk::table(&rows));
            }
            value => {
                text.push_str(&value.to_string());
                text.push('\n');
            }
        }
    }
    write_text(&stdout(), &text)
}
