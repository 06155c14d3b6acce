//! Rules on a device, over keys that are there already: launches of one batch each, and what they take.

use std::time::{Duration, Instant};

use packetloom_classify::compiled::MatchKey;
use packetloom_classify::formats::Headers;
use packetloom_classify::image::{Algorithm, Image};
use packetloom_classify::{Kind, RuleSet};
use packetloom_device::{Device, Memory, Queue};
use packetloom_engine::offload::{self, OnDevice};
use packetloom_io::input::Stop;
use serde_json::{Value, json};

use crate::Error;
use crate::acl::interrupted;
use crate::engine::{Engine, Own, milliseconds};
use crate::host_fed::Transport;
use crate::oracle::Oracle;
use crate::sample::{Clock, measure, quantile, rounded, sorted};

/// What each batch size is given in a round: so much time, or so many launches.
const TIME: Duration = Duration::from_millis(100);
const LAUNCHES: usize = 1_000;
/// Headers of a batch on the CPU, which is measured beside.
const CPU_BATCH: usize = 256;

/// What is run.
#[derive(Clone, Debug)]
pub struct Options {
    /// How rules are laid out: each is measured.
    pub algorithms: Vec<Algorithm>,
    /// Keys of a launch: each number is measured.
    pub batches: Vec<usize>,
    /// Keys on the device: headers are repeated until there are so many.
    pub keys: usize,
    /// Whether kernels are compiled for the rules.
    pub specialise: bool,
    /// Rounds.
    pub rounds: usize,
    /// Name of the workload.
    pub workload: String,
}

/// Measures rules on a device, and on one core of this machine beside it: a JSON object for each algorithm and batch size.
///
/// # Errors
/// [`Error::Wrong`] where an answer is wrong, [`Error::Offload`] where the device fails, [`Error::Empty`] without headers,
/// [`Error::Mixed`] with headers of both families, [`Error::Interrupted`].
pub fn run(
    device: &Device,
    rules: &RuleSet,
    headers: &Headers,
    options: &Options,
    stop: &Stop,
) -> Result<Vec<Value>, Error> {
    match (headers.v4.is_empty(), headers.v6.is_empty()) {
        (true, true) => Err(Error::Empty),
        (false, true) => family(device, rules, headers, &headers.v4, options, stop),
        (true, false) => family(device, rules, headers, &headers.v6, options, stop),
        (false, false) => Err(Error::Mixed),
    }
}

fn family<K: MatchKey + bytemuck::Pod>(
    device: &Device,
    rules: &RuleSet,
    headers: &Headers,
    keys: &[K],
    options: &Options,
    stop: &Stop,
) -> Result<Vec<Value>, Error> {
    let oracle = Oracle::new(rules, headers);
    let (classifier, build) = measure(Clock::Thread, || Kind::default().build(rules));
    let mut cpu = Own::new(classifier, build.wall(), headers);
    cpu.pass(CPU_BATCH);
    let answers = cpu.answers();
    oracle.check(cpu.name(), &answers)?;
    let all: Vec<K> = keys.iter().copied().cycle().take(options.keys).collect();
    let on_device = device.memory_of(bytemuck::cast_slice(&all)).map_err(offload::Error::from)?;
    let first = device.memory(all.len() * 4).map_err(offload::Error::from)?;
    let mut queue = device.queue().map_err(offload::Error::from)?;
    let target = offload::target(device, options.specialise);
    let mut values = Vec::new();
    for &algorithm in &options.algorithms {
        interrupted(stop)?;
        let (image, laid_out) = measure(Clock::Thread, || Image::new::<K>(rules, algorithm, &target));
        let image = image.map_err(offload::Error::from)?;
        let (loaded, load) = measure(Clock::Thread, || OnDevice::new(device, &image, &target));
        let loaded = loaded?;
        let name = format!("{algorithm} on {}", device.description().id);
        let check = |queue: &mut Queue| {
            // Whatever a batch leaves out is seen.
            let mut found = vec![0x5eed_5eedu32; all.len()];
            queue.write(&first, 0, bytemuck::cast_slice(&found)).map_err(offload::Error::from)?;
            loaded.launch(queue, &on_device, &first, 0..all.len() as u32)?;
            queue.read(&first, 0, bytemuck::cast_slice_mut(&mut found)).map_err(offload::Error::from)?;
            found.chunks(keys.len()).try_for_each(|found| {
                let answers = &answers[..found.len()];
                oracle.same((&name, found), ("hybrid", answers))
            })
        };
        check(&mut queue)?;
        let mut measured: Vec<Measured> =
            options.batches.iter().map(|&batch| Measured::new(batch.min(all.len()))).collect();
        for _ in 0..options.rounds {
            for measured in &mut measured {
                interrupted(stop)?;
                measured.round(&loaded, &mut queue, &on_device, &first, all.len())?;
                let (_, round) = measure(Clock::Thread, || cpu.pass(CPU_BATCH));
                measured.cpu.push(headers.len() as f64 / round.cpu().as_secs_f64() / 1e6);
            }
        }
        check(&mut queue)?;
        values.extend(measured.into_iter().map(|measured| {
            let mut value = measured.json();
            value["workload"] = json!(options.workload);
            value["device"] = json!(device.description().name);
            value["transport"] = json!(Transport::OnDevice.name());
            value["algorithm"] = json!(algorithm.name());
            value["specialised"] = json!(options.specialise);
            value["rules"] = json!(rules.rules.len());
            value["packets"] = json!(all.len());
            value["tables"] = json!(image.tables);
            value["tail"] = json!(image.tail);
            value["memory_mb"] = json!(rounded(image.memory() as f64 / 1e6));
            value["layout_ms"] = milliseconds(laid_out.wall());
            value["load_ms"] = milliseconds(load.wall());
            value
        }));
    }
    Ok(values)
}

/// What launches of one batch size took.
struct Measured {
    batch: usize,
    /// Microseconds from a launch to its end.
    launches: Vec<f64>,
    /// Millions of packets a second of each round.
    mpps: Vec<f64>,
    /// The same of one core beside it.
    cpu: Vec<f64>,
}

impl Measured {
    fn new(batch: usize) -> Self {
        Self { batch, launches: Vec::new(), mpps: Vec::new(), cpu: Vec::new() }
    }

    fn round(
        &mut self,
        loaded: &OnDevice,
        queue: &mut Queue,
        keys: &Memory,
        first: &Memory,
        count: usize,
    ) -> Result<(), Error> {
        let batch = self.batch;
        let start = Instant::now();
        let (mut packets, mut begin, mut launches) = (0, 0, 0);
        while launches < LAUNCHES && (start.elapsed() < TIME || launches < 3) {
            if begin + batch > count {
                begin = 0;
            }
            let launched = Instant::now();
            loaded.launch(queue, keys, first, begin as u32..(begin + batch) as u32)?;
            queue.finish().map_err(offload::Error::from)?;
            self.launches.push(launched.elapsed().as_secs_f64() * 1e6);
            begin += batch;
            packets += batch;
            launches += 1;
        }
        self.mpps.push(packets as f64 / start.elapsed().as_secs_f64() / 1e6);
        Ok(())
    }

    fn json(self) -> Value {
        let (mpps, cpu, launches) =
            (sorted(self.mpps.clone()), sorted(self.cpu.clone()), sorted(self.launches));
        let ratios = sorted(self.mpps.iter().zip(&self.cpu).map(|(mpps, cpu)| mpps / cpu).collect());
        json!({
            "batch": self.batch,
            "mpps": rounded(quantile(&mpps, 0.5)),
            "mpps_min": rounded(quantile(&mpps, 0.0)),
            "mpps_max": rounded(quantile(&mpps, 1.0)),
            "latency_us_p50": rounded(quantile(&launches, 0.5)),
            "latency_us_p99": rounded(quantile(&launches, 0.99)),
            "latency_us_max": rounded(quantile(&launches, 1.0)),
            "core_mpps": rounded(quantile(&cpu, 0.5)),
            "cores": rounded(quantile(&ratios, 0.5)),
            "rounds": mpps.len(),
        })
    }
}
