//! `packetloom bench`.

use std::iter;
use std::path::{Path, PathBuf};
use std::time::Duration;

use packetloom_bench::host_fed::{self, Transport};
use packetloom_bench::plot::draw_loads;
use packetloom_bench::sample::Measurement;
use packetloom_bench::{acl, chain, changes, churn, device, forward, meter, nca, strings};
use packetloom_classify::RuleSet;
use packetloom_classify::formats::{Headers, Options};
use packetloom_device::{Cache, Device};
use packetloom_engine::chain::{Idle, Run};
use packetloom_engine::{Chain, Plan};
use packetloom_io::output::Output;
use packetloom_nf::Context;
use packetloom_nf::units::Span;
use packetloom_pattern::{Bounds, Pattern, Patterns};
use packetloom_simd::Isa;
use serde_json::{Map, Value};

use super::acl::{read_headers, read_rules};
use super::files::Files;
use super::{stdout, stop_on_signals, write_text};
use crate::args::{
    Attack, BenchAclArgs, BenchChainArgs, BenchChangesArgs, BenchDeviceArgs, BenchForwardArgs,
    BenchMeterArgs, BenchNcaArgs, BenchStringsArgs, BenchVerb, ChainTransport, Distribution, ForwardBackend,
    ForwardPeer, Hashes, MeterOnDevice, PayloadSize, Percent, Reported, Sampled, StringsTransport,
};
use crate::failure::Failure;
use crate::{Done, talk};

/// What the table of "bench acl" shows of each measurement.
const COLUMNS: [&str; 12] = [
    "classifier",
    "batch",
    "mpps_cpu",
    "cpu_ns_per_packet",
    "cpu_p25",
    "cpu_p75",
    "mpps",
    "build_ms",
    "memory_mb",
    "peer_ratio",
    "peer_ratio_min",
    "peer_ratio_max",
];

/// What the table of "bench device" shows of each measurement.
const DEVICE_COLUMNS: [&str; 18] = [
    "transport",
    "algorithm",
    "batch",
    "mpps",
    "mpps_min",
    "mpps_max",
    "latency_us_p50",
    "latency_us_p99",
    "latency_us_max",
    "core_mpps",
    "cores",
    "all_cores_mpps",
    "all_cores_ratio",
    "offered_mpps",
    "tables",
    "tail",
    "memory_mb",
    "load_ms",
];

/// What the table of "bench meter" shows of each measurement on a device.
const METER_COLUMNS: [&str; 17] = [
    "memory",
    "launch",
    "batch",
    "slice",
    "parse",
    "block",
    "keys_per_thread",
    "hash",
    "stage",
    "mpps",
    "handed_back",
    "without_room",
    "records_ms",
    "chi_square",
    "longest_chain",
    "aimed_chi_square",
    "aimed_longest_chain",
];

/// What "bench chain" runs unless a chain is given: all packets pass.
const DEFAULT_CHAIN: &str = r#"
[[chain]]
nf = "counter"
flows = "sessions"
[[chain]]
nf = "limiter"
flows = "sessions"
rate = "100Gbit/s"
burst = "1GB"
[[chain]]
nf = "balancer"
flows = "sessions"
[[chain.services]]
address = "198.51.100.1"
port = 80
"#;

/// Headers are mixed in the same way every time.
const MIX_SEED: u64 = 1;

pub(crate) fn run(verb: BenchVerb) -> Done {
    match verb {
        BenchVerb::Meter(args) => bench_meter(*args),
        BenchVerb::Acl(args) => bench_acl(&args),
        BenchVerb::Chain(args) => bench_chain(&args),
        BenchVerb::Changes(args) => bench_changes(&args),
        BenchVerb::Device(args) => bench_device(&args),
        BenchVerb::Strings(args) => bench_strings(&args),
        BenchVerb::Nca(args) => bench_nca(args),
        BenchVerb::Forward(args) => bench_forward(&args),
    }
}

/// What the table of "bench forward" shows of each measurement.
const FORWARD_COLUMNS: [&str; 18] = [
    "workload",
    "forwarder",
    "packet_size",
    "no_loss_mpps",
    "no_loss_mpps_min",
    "no_loss_mpps_max",
    "flood_mpps",
    "cpu_ns_per_packet",
    "process_ns_per_packet",
    "latency_98_us_p99",
    "latency_10_us_p50",
    "latency_10_us_p99",
    "sent",
    "received",
    "unaccounted",
    "arrival_gap_us",
    "peer_ratio",
    "peer_cpu_ratio",
];

fn bench_forward(args: &BenchForwardArgs) -> Done {
    let usage = |message: String| Err(Failure::Usage(message));
    if args.forwarder_core.contains(&args.generator_core) {
        return usage("--generator-core and --forwarder-core name one core; expected two".into());
    }
    let time = |name: &str, span: Span| match span.limit() {
        Some(limit @ 1_000_000..=3_600_000_000_000) => Ok(Duration::from_nanos(limit)),
        _ => Err(Failure::Usage(format!("{name} {span}; expected 1ms to 1h"))),
    };
    let (trial, confirm) = (time("--trial", args.trial)?, time("--confirm", args.confirm)?);
    let hold = args.hold.map_or(Ok(confirm), |hold| time("--hold", hold))?;
    let mut lists = Vec::new();
    for &count in &args.rule_count {
        lists.push(if count == 0 { None } else { Some(forward::List::generated(count as usize)?) });
    }
    for path in &args.rules {
        let reading = super::acl::read(path, &Options { ignore_flags: true, ..Options::default() }, false)?;
        let name = path.file_name().unwrap_or(path.as_os_str()).display().to_string();
        let default = reading.default.unwrap_or(packetloom_classify::Action::Deny);
        lists.push(Some(forward::List { name, rules: reading.rules.rules, default }));
    }
    if lists.is_empty() {
        lists.push(None);
    }
    let sockets = args.backend.iter().map(|backend| match backend {
        ForwardBackend::AfXdp => forward::Sockets::AfXdp,
        ForwardBackend::AfPacket => forward::Sockets::AfPacket,
    });
    let sockets: Vec<_> = sockets.collect();
    let idle: Vec<_> = args.idle.iter().copied().map(Idle::from).collect();
    let of_run = |&sockets| idle.iter().map(move |&idle| forward::Forwarder::Packetloom(sockets, idle));
    let mut forwarders: Vec<_> = sockets.iter().flat_map(of_run).collect();
    for peer in &args.peer {
        match peer {
            ForwardPeer::Nftables => {
                forwarders.extend([forward::Forwarder::NftablesRules, forward::Forwarder::NftablesSets])
            }
            ForwardPeer::Testpmd => {
                forwarders.extend(sockets.iter().copied().map(forward::Forwarder::Testpmd));
            }
        }
    }
    let program = std::env::current_exe();
    let options = forward::Options {
        program: program.map_err(|error| anyhow::anyhow!("where this program is: {error}"))?,
        lists,
        forwarders,
        packet_sizes: args.packet_size.iter().map(|size| size.get()).collect(),
        flows: args.flows.get(),
        generator_core: args.generator_core,
        forwarder_cores: args.forwarder_core.clone(),
        workers: args.workers.get(),
        meter: args.meter,
        rounds: args.rounds.get(),
        trial,
        confirm,
        hold,
        tolerance: args.max_loss,
    };
    let mut files = Files::default().output("--load-plot", args.load_plot.as_deref());
    for path in &args.rules {
        files = files.input("--rules", Some(path));
    }
    files.check()?;
    // Before anything is measured.
    let load_plot = args.load_plot.as_deref().map(Output::create).transpose()?;
    let stop = stop_on_signals()?;
    for name in forward::leftovers() {
        talk::say(&format!(
            "packetloom: warning: {name} is left of a benchmark that was killed; expected: ip netns del {name}\n"
        ));
    }
    let measured = forward::run(&options, &stop, |next| talk::explain(|| next.to_owned()))?;
    print(&measured.rows, args.json, |values| rows(values, &FORWARD_COLUMNS))?;
    if let Some(mut output) = load_plot {
        output.write(draw_loads(&measured.loads)?.as_bytes())?;
        output.finish()?;
    }
    Ok(())
}

/// What the table of "bench strings" shows of each measurement.
const STRINGS_COLUMNS: [&str; 18] = [
    "workload",
    "transport",
    "patterns",
    "sampled",
    "gbps",
    "p25",
    "p75",
    "mpps",
    "matches_per_kb",
    "copies_gbps",
    "copies_share",
    "peer_gbps",
    "peer_ratio",
    "peer_ratio_min",
    "peer_ratio_max",
    "build_ms",
    "peer_build_ms",
    "memory_mb",
];

/// Payloads are the same every time; those of a sample are others.
const PAYLOAD_SEED: u64 = 1;
const SAMPLE_SEED: u64 = 2;

/// Bytes of a sample.
const SAMPLE_BYTES: usize = 3 << 20;

/// The patterns of a file that are looked for in payloads.
fn read_patterns(file: &Path, format: packetloom_pattern::files::Format) -> Result<Patterns, Failure> {
    let path = file.display();
    let text = std::fs::read(file).map_err(|e| packetloom_io::Error::io(path.to_string(), e))?;
    let options = packetloom_pattern::files::Options {
        format,
        places: Some(packetloom_pattern::files::Places::PAYLOAD),
        ..Default::default()
    };
    let signatures = packetloom_pattern::files::read(&text, &options);
    Ok(signatures.map_err(|e| Failure::Config(format!("{path}: {e}")))?.patterns)
}

fn bench_strings(args: &BenchStringsArgs) -> Done {
    let captures = super::captures(&args.read)?;
    Files::default().captures(Some("-r"), &captures).input("--patterns", Some(&args.patterns)).check()?;
    let stop = stop_on_signals()?;
    let isa = match &args.isa {
        None => Isa::detect(),
        Some(name) => {
            let all = Isa::all_available();
            let names = all.iter().map(|isa| isa.name()).collect::<Vec<_>>().join(", ");
            let refused = || Failure::Usage(format!("--isa {name:?}; expected one of: {names}"));
            all.into_iter().find(|isa| isa.name() == name).ok_or_else(refused)?
        }
    };
    let all = read_patterns(&args.patterns, args.format)?;
    let name = args.patterns.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let sizes = match &args.first[..] {
        [] => vec![all.len()],
        some => some.iter().map(|first| first.get().min(all.len())).collect(),
    };
    let device = args.device.map(|id| Device::open(id, Cache::user())).transpose()?;
    let transports: Vec<_> = args
        .transport
        .iter()
        .map(|transport| match transport {
            StringsTransport::OnDevice => strings::device::Transport::OnDevice,
            StringsTransport::HostFed => strings::device::Transport::HostFed,
        })
        .collect();
    let mut measured = Vec::new();
    for size in sizes {
        let mut patterns = Patterns::new();
        for pattern in all.iter().take(size) {
            // Hyperscan gets none.
            let bounds = if args.peer.is_some() { Bounds::ANYWHERE } else { pattern.bounds };
            patterns.push(Pattern { bounds, ..pattern }).map_err(anyhow::Error::from)?;
        }
        let is_sampled = match args.sample {
            Sampled::Auto => patterns.len() >= packetloom_nf::strings::LEARNS_FROM,
            Sampled::Always => true,
            Sampled::Never => false,
        };
        let mut workloads = string_workloads(args, &captures, &patterns, &stop)?;
        let mut of_captures = None;
        if is_sampled
            && !captures.is_empty()
            && let [(_, payloads)] = &mut workloads[..]
        {
            let texts = payloads.texts();
            let half = |first| strings::Payloads::of(texts.iter().skip(first).step_by(2).copied());
            (of_captures, *payloads) = (Some(half(1)), half(0));
        }
        let skipped = |(name, payloads): (String, strings::Payloads)| (name, payloads.with_skip(args.skip));
        let workloads = workloads.into_iter().map(skipped).collect();
        let sample = is_sampled.then(|| {
            of_captures.unwrap_or_else(|| {
                let kind = strings::Kind::Text { matching: 0 };
                strings::Payloads::new(&patterns, strings::Size::Fixed(1450), kind, SAMPLE_BYTES, SAMPLE_SEED)
            })
        });
        let options = strings::Options {
            name: name.clone(),
            patterns,
            workloads,
            sample,
            report: match args.report {
                Reported::All => packetloom_pattern::Report::All,
                Reported::Each => packetloom_pattern::Report::Each,
                Reported::First => packetloom_pattern::Report::First,
                Reported::Any => packetloom_pattern::Report::Any,
            },
            skip: args.skip,
            isa,
            batch: args.batch.get(),
            with_peer: args.peer.is_some(),
            rounds: args.rounds.rounds.get(),
        };
        measured.extend(match &device {
            None => strings::run(&options, &stop)?,
            Some(device) => strings::device::run(device, &options, &transports, args.in_flight.get(), &stop)?,
        });
    }
    print(&measured, args.rounds.json, |rows_of| rows(rows_of, &STRINGS_COLUMNS))
}

/// What the table of "bench nca" shows of each measurement.
const NCA_COLUMNS: [&str; 11] = [
    "workload",
    "batch",
    "queues",
    "gbps",
    "copies_us",
    "kernels_us",
    "both_us",
    "neither_us",
    "hidden",
    "hidden_min",
    "hidden_max",
];

fn bench_nca(args: BenchNcaArgs) -> Done {
    Files::default().input("--patterns", Some(&args.patterns)).check()?;
    let stop = stop_on_signals()?;
    let size = args.size.get();
    if size > 2048 {
        return Err(Failure::Usage(format!("--size {size}; expected 1 to 2048")));
    }
    let most = packetloom_bench::nca::MAX_BATCH;
    if let Some(batch) = args.batch.iter().find(|batch| batch.get() > most) {
        return Err(Failure::Usage(format!("--batch {batch}; expected 1 to {most}")));
    }
    let all = read_patterns(&args.patterns, args.format)?;
    let mut patterns = Patterns::new();
    for pattern in all.iter() {
        patterns.push(Pattern::new(pattern.bytes)).map_err(anyhow::Error::from)?;
    }
    let options = nca::Options {
        name: args.patterns.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        patterns,
        device: args.device,
        size,
        matching: args.matching.get() as u8,
        batch: args.batch.iter().map(|batch| batch.get()).collect(),
        queues: args.queues.iter().map(|&queues| queues.into()).collect(),
        rounds: args.rounds.rounds.get(),
    };
    let measured = nca::run(&options, &stop)?;
    print(&measured, args.rounds.json, |rows_of| rows(rows_of, &NCA_COLUMNS))
}

/// The payloads that are measured, by name.
fn string_workloads(
    args: &BenchStringsArgs,
    captures: &[PathBuf],
    patterns: &Patterns,
    stop: &packetloom_io::input::Stop,
) -> Result<Vec<(String, strings::Payloads)>, Failure> {
    if !captures.is_empty() {
        return Ok(vec![("captures".into(), strings::payloads_of(captures, stop)?)]);
    }
    let kinds: Vec<_> = match &args.attack[..] {
        [] => {
            let kind = |percent: &Percent| {
                (format!("{percent}%"), strings::Kind::Text { matching: percent.get() as u8 })
            };
            args.matching.iter().map(kind).collect()
        }
        attacks => {
            let kind = |attack: &Attack| match attack {
                Attack::WithoutLast => ("without-last".to_owned(), strings::Kind::WithoutLast),
                Attack::WithoutFirst => ("without-first".to_owned(), strings::Kind::WithoutFirst),
                Attack::Runs => ("runs".to_owned(), strings::Kind::Runs),
                Attack::LongLists => ("long-lists".to_owned(), strings::Kind::LongLists),
            };
            attacks.iter().map(kind).collect()
        }
    };
    let mut workloads = Vec::new();
    for PayloadSize(size) in &args.size {
        let size_name = match size {
            strings::Size::Fixed(bytes) => bytes.to_string(),
            strings::Size::Mixed => "mixed".into(),
        };
        for (kind_name, kind) in &kinds {
            let payloads = strings::Payloads::new(patterns, *size, *kind, args.bytes.get(), PAYLOAD_SEED);
            workloads.push((format!("{size_name} {kind_name}"), payloads));
        }
    }
    Ok(workloads)
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
    let captures = super::captures(&args.read)?;
    let files =
        Files::default().captures(Some("-r"), &captures).input("--profile", args.shape.profile.as_deref());
    files.output("-o", args.output.as_deref()).check()?;
    let stop = stop_on_signals()?;
    let made = Temporary::new("traffic.pcap");
    let records = Temporary::new("flows.jsonl");
    let (captures, workload) = match &captures[..] {
        [path] => {
            let name = file_name(path);
            (captures, name)
        }
        [_, ..] => {
            let name = format!("{} captures", captures.len());
            (captures, name)
        }
        [] => {
            let shape = &args.shape;
            super::generate::write_traffic(&made.0, shape, &stop)?;
            let flows = match &shape.profile {
                Some(profile) => file_name(profile),
                None => format!("{} packets, {} flows", shape.packets, shape.flows),
            };
            (vec![made.0.clone()], format!("{flows}, snap {}", shape.snap))
        }
    };
    if let Some(id) = args.on_device.device {
        let output = args.output.unwrap_or_else(|| records.0.clone());
        let device = Device::open(id, Cache::user())?;
        let options = on_device(&args.on_device, captures, output, args.rounds.rounds.get(), &workload);
        let values = values(&meter::device::run(&device, &options, &stop)?);
        return print(&values, args.rounds.json, meters_side_by_side);
    }
    let options = meter::Options {
        captures,
        output: args.output.unwrap_or_else(|| records.0.clone()),
        config: packetloom_nf::meter::Config {
            idle_timeout: args.timeouts.idle_timeout,
            active_timeout: args.timeouts.active_timeout,
            max_flows: packetloom_nf::meter::Config::default_max_flows(),
            end_of_flow: false,
            vlan_in_key: false,
            framings: Default::default(),
            fields: args.fields,
            format: Default::default(),
            output: None,
            export: Vec::new(),
            reports: None,
        },
        run: Run { batch: args.batch, workers: args.workers, ..Run::default() },
        rounds: args.rounds.rounds.get(),
        workload: format!("meter {workload}"),
    };
    print(&values(&[meter::run(&options, &stop)?]), args.rounds.json, list)
}

/// The name of a file without its folder.
fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).display().to_string()
}

/// What is measured of a meter on a device.
fn on_device(
    args: &MeterOnDevice,
    captures: Vec<PathBuf>,
    output: PathBuf,
    rounds: usize,
    workload: &str,
) -> meter::device::Options {
    let hashes = args.hash.iter().flat_map(|hash| match hash {
        Hashes::All => meter::Hash::ALL.to_vec(),
        Hashes::One(hash) => vec![*hash],
    });
    meter::device::Options {
        captures,
        output,
        bursts: args.burst.iter().map(|burst| burst.get()).collect(),
        blocks: args.block.iter().map(|block| block.get() as u32).collect(),
        slices: args.slice.clone(),
        keys_per_thread: args.keys_per_thread.iter().map(|keys| keys.get() as u32).collect(),
        parses: args.parse.clone(),
        memories: args.memory.clone(),
        launches: args.launch.clone(),
        hashes: hashes.collect(),
        stages: args.stage.clone(),
        slots: args.slots.map(|slots| slots.get() as u32),
        in_flight: args.in_flight.get(),
        rounds,
        workload: format!("meter {workload}"),
    }
}

fn bench_chain(args: &BenchChainArgs) -> Done {
    let stop = stop_on_signals()?;
    let flows = args.flows.get();
    let (chain, name) = match &args.chain {
        Some(path) => (Chain::load(path, false)?, path.display().to_string()),
        None => {
            let context = Context { folder: Path::new(""), ignore_flags: false };
            // More room than flows, since they are not spread evenly over workers.
            let room = u64::from(flows) * 5 / 4 + 1024 * args.workers.get() as u64;
            // And for those that ended, until they are forgotten.
            let ended = u64::from(args.new_flows) * args.timeout.limit().unwrap_or_default() / 1_000_000_000;
            let room = room + ended * args.workers.get() as u64;
            let room = args.max_flows.map_or(room, |most| most.get() as u64);
            let timeout = args.timeout;
            let backends = (1..17).map(|n| format!("{{ address = \"203.0.113.{n}\", port = 8080 }}"));
            let backends = backends.collect::<Vec<_>>().join(", ");
            let text = format!(
                "[flows.sessions]\nby = \"5-tuple\"\nmax_flows = {room}\ntimeout = \"{timeout}\"\n{DEFAULT_CHAIN}backends = [{backends}]\n"
            );
            (Chain::parse("the default chain", &text, context)?, "counter, limiter, balancer".into())
        }
    };
    let options = chain::Options {
        flows: flows.into(),
        new_flows: args.new_flows.into(),
        flood: args.flood.into(),
        sources: args.sources.get().into(),
        distribution: match args.distribution {
            Distribution::Uniform => chain::Distribution::Uniform,
            Distribution::Zipf => chain::Distribution::Zipf,
            Distribution::Elephants => chain::Distribution::Elephants,
            Distribution::Aimed => chain::Distribution::Aimed,
        },
        packet_size: args.packet_size.get(),
        workers: args.workers.get(),
        batch: args.batch.get(),
        offered: args.offered.clone(),
        rounds: args.rounds.rounds.get(),
        workload: format!("chain {name}"),
    };
    let plan = Plan::new(chain);
    let measurements = match args.device {
        None => chain::run(&plan, &options, &stop)?,
        Some(id) => {
            let device = Device::open(id, Cache::user())?;
            let feed = chain::Feed { slice: args.slice, in_flight: args.in_flight.into() };
            vec![match args.transport {
                ChainTransport::Records => chain::run_on(&plan, &options, &device, &stop)?,
                ChainTransport::InPlace => chain::run_in_place(&plan, &options, &device, feed, &stop)?,
            }]
        }
    };
    print(&values(&measurements), args.rounds.json, list)
}

/// Rules and headers, mixed if they shall be, and what the two are called.
fn workload(rules: &Path, headers: &Path, mix: bool) -> Result<(RuleSet, Headers, String), Failure> {
    let name = rules.file_name().unwrap_or(rules.as_os_str()).display().to_string();
    let (rules, mut headers) = (read_rules(rules)?, read_headers(headers)?);
    if mix {
        packetloom_generate::mix_headers(&mut headers, MIX_SEED);
    }
    Ok((rules, headers, if mix { name + ", mixed headers" } else { name }))
}

fn bench_acl(args: &BenchAclArgs) -> Done {
    let stop = stop_on_signals()?;
    let (rules, headers, name) = workload(&args.rules, &args.headers, args.mix)?;
    let mut options = acl::Options {
        kinds: Vec::new(),
        peer: args.peer,
        batches: args.batch.iter().map(|batch| batch.get()).collect(),
        rounds: args.rounds.rounds.get(),
        workload: format!("acl {name}"),
    };
    for kind in args.classifier.iter().flat_map(|chosen| chosen.kinds()) {
        if !options.kinds.contains(&kind) {
            options.kinds.push(kind);
        }
    }
    let values = values(&acl::run(&rules, &headers, &options, &stop)?);
    print(&values, args.rounds.json, |values| side_by_side(values, &COLUMNS))
}

fn bench_device(args: &BenchDeviceArgs) -> Done {
    let stop = stop_on_signals()?;
    let device = Device::open(args.device, Cache::user())?;
    let (rules, headers, name) = workload(&args.rules, &args.headers, args.mix)?;
    let batches: Vec<_> = args.batch.iter().map(|batch| batch.get()).collect();
    let mut values = Vec::new();
    for &transport in &args.transport {
        if transport == Transport::OnDevice {
            let options = device::Options {
                algorithms: args.algorithm.clone(),
                batches: batches.clone(),
                keys: args.keys as usize,
                specialise: !args.generic,
                rounds: args.rounds.rounds.get(),
                workload: format!("device {name}"),
            };
            values.extend(device::run(&device, &rules, &headers, &options, &stop)?);
            continue;
        }
        for &algorithm in &args.algorithm {
            let options = host_fed::Options {
                transport,
                algorithm,
                batches: batches.clone(),
                in_flight: args.in_flight.into(),
                offered: if transport == Transport::Resident { args.offered.clone() } else { Vec::new() },
                feeders: args.feeders.into(),
                slice: args.slice,
                specialise: !args.generic,
                rounds: args.rounds.rounds.get(),
                workload: format!("device {name}"),
            };
            values.extend(host_fed::run(&device, &rules, &headers, &options, &stop)?);
        }
    }
    print(&values, args.rounds.json, |values| side_by_side(values, &DEVICE_COLUMNS))
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
    let rules = read_rules(&args.rules)?;
    let headers = read_headers(&args.headers)?;
    let name = args.rules.file_name().unwrap_or(args.rules.as_os_str()).display();
    let workload = format!("changes {name}");
    let moves = if args.back { changes::Moves::Back } else { changes::Moves::Anywhere };
    if let Some(total) = args.total {
        let options = churn::Options {
            changes: args.changes_per_transaction.get(),
            total,
            parts: args.parts.get(),
            batch: args.batch.get(),
            moves,
            seed: args.seed,
            workload,
        };
        let points = churn::run(&rules, &headers, &options, &stop)?;
        let text = if args.json { lines(&points) } else { one_below_another(&points) };
        return write_text(&stdout(), &text);
    }
    let options = changes::Options {
        changes: args.changes_per_transaction.get(),
        rate: args.rate,
        time: Duration::from_secs_f64(args.seconds),
        batch: args.batch.get(),
        moves,
        seed: args.seed,
        workload,
    };
    let value = changes::run(&rules, &headers, &options, &stop)?;
    let text = if args.json { lines(&[value]) } else { list(&[value]) };
    write_text(&stdout(), &text)
}

/// Measurements as JSON.
fn values(measurements: &[Measurement]) -> Vec<Value> {
    measurements.iter().map(Measurement::json).collect()
}

/// Prints measurements as JSON lines, or as `table` makes of them.
fn print(values: &[Value], json: bool, table: impl FnOnce(&[Value]) -> String) -> Done {
    let text = if json { lines(values) } else { table(values) };
    write_text(&stdout(), &text)
}

/// JSON lines, each with where and of what it is.
fn lines(values: &[Value]) -> String {
    let machine = machine();
    let line = |value: &Value| {
        let mut value = value.clone();
        value["machine"] = machine.clone().into();
        value["version"] = env!("CARGO_PKG_VERSION").into();
        value["commit"] = option_env!("PACKETLOOM_COMMIT").into();
        format!("{value}\n")
    };
    values.iter().map(line).collect()
}

/// This machine: its processor, how many of its cores may be used, and its system.
fn machine() -> String {
    let processors = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = processors.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    let model = model.map_or("a processor without a name", |(_, name)| name.trim());
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let system = rustix::system::uname();
    let [name, release, architecture] = [system.sysname(), system.release(), system.machine()];
    let [name, release, architecture] = [name, release, architecture].map(|text| text.to_string_lossy());
    format!("{model}, {}, {name} {release} {architecture}", talk::amount(cores as u64, "core"))
}

/// A value as a cell: text without quotes, and nothing where there is none.
fn cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        value => value.to_string(),
    }
}

/// The fields of each measurement below each other.
fn list(measurements: &[Value]) -> String {
    let fields = measurements.iter().filter_map(Value::as_object);
    let rows = |fields: &Map<String, Value>| {
        let shown = fields.iter().filter(|(_, value)| !value.is_null());
        shown.map(|(name, value)| (name.clone(), cell(value))).collect::<Vec<_>>()
    };
    fields.map(|fields| talk::table(&rows(fields))).collect()
}

/// A row for each point of a run, below its name.
fn one_below_another(points: &[Value]) -> String {
    let Some(first) = points.first().and_then(Value::as_object) else { return String::new() };
    let title = format!("{}\n", cell(&first["workload"]));
    let names: Vec<_> = first.keys().filter(|&name| name != "workload").cloned().collect();
    let rows = points.iter().map(|point| names.iter().map(|name| cell(&point[name])).collect());
    title + &talk::grid(&iter::once(names.clone()).chain(rows).collect::<Vec<_>>())
}

/// A row for each measurement of a meter on a device, below what they have in common.
fn meters_side_by_side(measurements: &[Value]) -> String {
    let Some(first) = measurements.first() else { return String::new() };
    let title = format!(
        "{} on {}: {} packets, {} records, {} rounds\n",
        cell(&first["workload"]),
        cell(&first["on"]),
        measurements.iter().filter_map(|row| row["packets"].as_u64()).max().unwrap_or(0),
        cell(&first["records"]),
        cell(&first["rounds"])
    );
    title + &rows(measurements, &METER_COLUMNS)
}

/// A row for each measurement, below what they have in common.
fn side_by_side(measurements: &[Value], shown: &[&str]) -> String {
    let Some(first) = measurements.first() else { return String::new() };
    let common = |name: &str| cell(&first[name]);
    let title = format!(
        "{}: {} rules, {} headers, {} rounds\n",
        common("workload"),
        common("rules"),
        common("packets"),
        common("rounds")
    );
    title + &rows(measurements, shown)
}

/// A row for each measurement, with those fields that any of them has.
fn rows(measurements: &[Value], shown: &[&str]) -> String {
    let columns: Vec<_> =
        shown.iter().copied().filter(|&name| measurements.iter().any(|row| !row[name].is_null())).collect();
    let names = columns.iter().map(|&name| name.to_owned()).collect();
    let rows = measurements.iter().map(|row| columns.iter().map(|&name| cell(&row[name])).collect());
    talk::grid(&iter::once(names).chain(rows).collect::<Vec<_>>())
}
