//! Strings in payloads on a device: payloads that are there already, and those that come from this machine's memory, with results back in it.

use std::time::{Duration, Instant};

use packetloom_device::{Buffer, Device, Memory, Queue, Shared};
use packetloom_io::input::Stop;
use packetloom_pattern::image::{Batch, Image, OnDevice, Results, Shape, Target, pack};
use packetloom_pattern::{Match, Matcher, Report, Scratch};
use serde_json::{Value, json};

use super::{Options, Own};
use crate::Error;
use crate::acl::interrupted;
use crate::engine::milliseconds;
use crate::sample::{Clock, measure, quantile, rounded, sorted};

/// Time that each way is given in a round.
const TIME: Duration = Duration::from_millis(100);
/// Launches that are queued before they are waited for.
const LAUNCHES: usize = 32;
/// Bytes of a match, and room for more than are expected, which would be wrong.
const MATCH: usize = 12;
const MORE: usize = 1024;

/// Where payloads are before a device looks through them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// In its own memory, all of them in one batch.
    OnDevice,
    /// In memory of this machine, packed in batches, which are copied; matches come back to this machine's memory.
    HostFed,
}

impl Transport {
    /// The name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::OnDevice => "on-device",
            Self::HostFed => "host-fed",
        }
    }
}

/// Measures every workload each way: a JSON object for each. All matches are wanted; those of the device are compared with those of the
/// processor before and after it is timed. Rates are of wall time, medians over the rounds.
///
/// # Errors
///
/// [`Error::Wrong`] where the device finds something else, what it says, no payloads, payloads that are too long for a batch.
pub fn run(
    device: &Device,
    options: &Options,
    transports: &[Transport],
    in_flight: usize,
    stop: &Stop,
) -> Result<Vec<Value>, Error> {
    let sample = options.sample.as_ref().map(super::Payloads::texts).unwrap_or_default();
    let matcher = Matcher::with(options.patterns.clone(), options.isa, &sample);
    let (image, build) = measure(Clock::Thread, || Image::new(&options.patterns, &sample));
    let (set, load) = measure(Clock::Thread, || OnDevice::new(device, &image, &Target::of(device)));
    let set = set?;
    let mut values = Vec::new();
    for (name, payloads) in &options.workloads {
        let texts = payloads.texts();
        if texts.is_empty() {
            return Err(Error::Empty);
        }
        let mut own = Own { matcher: &matcher, scratch: Scratch::default(), matches: Vec::new() };
        own.pass(&texts, options);
        own.matches.sort_unstable();
        let count = own.matches.len();
        for &transport in transports {
            let mut value = match transport {
                Transport::OnDevice => on_device(device, &set, &texts, &own.matches, options, stop)?,
                Transport::HostFed => host_fed(device, &set, &texts, &own.matches, options, in_flight, stop)?,
            };
            value["workload"] = format!("strings {} {name}", options.name).into();
            value["device"] = device.description().name.clone().into();
            value["transport"] = transport.name().into();
            let gbps = value["gbps"].as_f64().unwrap_or(f64::NAN);
            value["mpps"] =
                json!(rounded(gbps * texts.len() as f64 * 1000.0 / (payloads.bytes() as f64 * 8.0)));
            value["patterns"] = json!(options.patterns.len());
            value["payloads"] = json!(texts.len());
            value["bytes"] = json!(payloads.bytes());
            value["report"] = super::name_of(Report::All).into();
            value["matches_per_kb"] = json!(rounded(count as f64 * 1000.0 / payloads.bytes() as f64));
            value["isa"] = options.isa.name().into();
            value["sampled"] = json!(super::is_sampled(options));
            value["build_ms"] = milliseconds(build.wall());
            value["load_ms"] = milliseconds(load.wall());
            value["memory_mb"] = json!(rounded(image.memory() as f64 / 1e6));
            value["longest_list"] = json!(image.longest_list());
            value["rounds"] = json!(options.rounds);
            values.push(value);
        }
    }
    Ok(values)
}

/// The quartiles of rates.
fn rates(rates: Vec<f64>, batch: usize) -> Value {
    let rates = sorted(rates);
    json!({
        "gbps": rounded(quantile(&rates, 0.5)),
        "p25": rounded(quantile(&rates, 0.25)),
        "p75": rounded(quantile(&rates, 0.75)),
        "batch": batch,
    })
}

/// Matches as a device writes them, in order, against those that are expected.
fn compare(words: &[[u32; 3]], expected: &[Match]) -> Result<(), Error> {
    let mut found: Vec<_> = words.iter().map(|&[text, end, pattern]| Match { text, end, pattern }).collect();
    found.sort_unstable();
    if found == expected {
        return Ok(());
    }
    let at = found.iter().zip(expected).position(|(a, b)| a != b).unwrap_or(found.len().min(expected.len()));
    Err(Error::Wrong(format!(
        "the device finds {} matches, the processor {}; of those in order, number {at} is {:?}, expected {:?}",
        found.len(),
        expected.len(),
        found.get(at),
        expected.get(at),
    )))
}

fn is_complete(found: [u32; 2], room: u32) -> Result<usize, Error> {
    match found {
        [found, 0] if found <= room => Ok(found as usize),
        [low, high] => {
            let found = u64::from(high) << 32 | u64::from(low);
            Err(Error::Wrong(format!("the device finds {found} matches; expected {room} at most")))
        }
    }
}

fn on_device(
    device: &Device,
    set: &OnDevice,
    texts: &[&[u8]],
    expected: &[Match],
    options: &Options,
    stop: &Stop,
) -> Result<Value, Error> {
    let mut packed = Vec::new();
    let shape = pack(texts, &mut packed)?;
    let batch = device.memory_of(&packed)?;
    drop(packed);
    let room = (expected.len() + MORE) as u32;
    let (matches, found) = (device.memory(room as usize * MATCH)?, device.memory(8)?);
    let mut queue = device.queue()?;
    let launch = |queue: &mut Queue| {
        let results = Results { matches: (&matches).into(), room, found: &found };
        set.find(queue, &Batch::packed((&batch).into(), shape), results)
    };
    let check = |queue: &mut Queue| {
        let mut count = [0u32; 2];
        queue.read(&found, 0, bytemuck::cast_slice_mut(&mut count))?;
        let mut words = vec![[0u32; 3]; is_complete(count, room)?];
        queue.read(&matches, 0, bytemuck::cast_slice_mut(&mut words))?;
        compare(&words, expected)
    };
    launch(&mut queue)?;
    check(&mut queue)?;
    let mut gbps = Vec::new();
    for _ in 0..options.rounds {
        interrupted(stop)?;
        let (begun, mut launches) = (Instant::now(), 0);
        while launches == 0 || begun.elapsed() < TIME {
            // One first, to see how long it takes.
            for _ in 0..if launches == 0 { 1 } else { LAUNCHES.min(launches) } {
                launch(&mut queue)?;
                launches += 1;
            }
            queue.finish()?;
        }
        gbps.push((launches as f64 * f64::from(shape.len) * 8.0) / begun.elapsed().as_nanos() as f64);
    }
    check(&mut queue)?;
    Ok(rates(gbps, texts.len()))
}

/// A batch on its way, with all that it needs.
struct Station {
    queue: Queue,
    shape: Shape,
    /// In this machine's memory.
    packed: Shared,
    batch: Memory,
    found: Memory,
    count: Shared,
    room: u32,
    /// Where the device does not write to this machine's memory itself.
    on_device: Option<Memory>,
    matches: Shared,
    expected: Vec<Match>,
}

impl Station {
    fn new(device: &Device, texts: &[&[u8]], expected: Vec<Match>) -> Result<Self, Error> {
        let mut bytes = Vec::new();
        let shape = pack(texts, &mut bytes)?;
        let mut packed = device.share(bytes.len())?;
        packed.write(0, &bytes);
        let room = expected.len() + MORE;
        let on_device = match device.description().shares {
            true => None,
            false => Some(device.memory(room * MATCH)?),
        };
        Ok(Self {
            queue: device.queue()?,
            shape,
            packed,
            batch: device.memory(bytes.len())?,
            found: device.memory(8)?,
            count: device.share(8)?,
            room: room as u32,
            on_device,
            matches: device.share(room * MATCH)?,
            expected,
        })
    }

    fn copy(&mut self) -> Result<(), Error> {
        let len = self.packed.len();
        Ok(self.queue.copy_in(&mut self.packed, 0..len, &self.batch, 0)?)
    }

    fn submit(&mut self, set: &OnDevice) -> Result<(), Error> {
        self.copy()?;
        let Self { queue, shape, batch, found, count, room, on_device, matches, .. } = self;
        let to = match on_device {
            Some(memory) => Buffer::Memory(memory),
            None => Buffer::Shared(matches),
        };
        let batch = Batch::packed((&*batch).into(), *shape);
        set.find(queue, &batch, Results { matches: to, room: *room, found })?;
        queue.copy_out(found, 0..8, count, 0)?;
        if let Some(memory) = on_device {
            queue.copy_out(memory, 0..memory.len(), matches, 0)?;
        }
        Ok(())
    }

    /// Waits for it; returns how many matches there are.
    fn finish(&mut self) -> Result<usize, Error> {
        self.queue.finish()?;
        let mut count = [0u32; 2];
        self.count.read(0, bytemuck::cast_slice_mut(&mut count));
        let found = is_complete(count, self.room)?;
        if found == self.expected.len() {
            return Ok(found);
        }
        let expected = self.expected.len();
        Err(Error::Wrong(format!("the device finds {found} matches of a batch, the processor {expected}")))
    }

    fn check(&mut self, set: &OnDevice) -> Result<(), Error> {
        // What is left out is seen.
        self.matches.write(0, &vec![0xff; self.matches.len()]);
        self.submit(set)?;
        let mut words = vec![[0u32; 3]; self.finish()?];
        self.matches.read(0, bytemuck::cast_slice_mut(&mut words));
        compare(&words, &self.expected)
    }
}

/// Sends batches in turns for a while; gigabits of payload a second.
fn feed(
    stations: &mut [Station],
    mut submit: impl FnMut(&mut Station) -> Result<(), Error>,
    mut finish: impl FnMut(&mut Station) -> Result<(), Error>,
) -> Result<f64, Error> {
    let (begun, mut bits, mut sent) = (Instant::now(), 0.0, 0);
    while begun.elapsed() < TIME {
        let at = sent % stations.len();
        if sent >= stations.len() {
            finish(&mut stations[at])?;
        }
        submit(&mut stations[at])?;
        bits += f64::from(stations[at].shape.len) * 8.0;
        sent += 1;
    }
    let left = sent.min(stations.len());
    stations[..left].iter_mut().try_for_each(&mut finish)?;
    Ok(bits / begun.elapsed().as_nanos() as f64)
}

fn host_fed(
    device: &Device,
    set: &OnDevice,
    texts: &[&[u8]],
    expected: &[Match],
    options: &Options,
    in_flight: usize,
    stop: &Stop,
) -> Result<Value, Error> {
    let batch = options.batch.min(texts.len());
    let batches: Vec<_> = texts.chunks_exact(batch).collect();
    let station = |number: usize| {
        let number = number % batches.len();
        let first = (number * batch) as u32;
        let begin = expected.partition_point(|found| found.text < first);
        let of_batch = expected[begin..].iter().take_while(|found| ((found.text - first) as usize) < batch);
        let of_batch = of_batch.map(|found| Match { text: found.text - first, ..*found });
        Station::new(device, batches[number], of_batch.collect())
    };
    let mut stations = (0..in_flight).map(station).collect::<Result<Vec<_>, _>>()?;
    stations.iter_mut().try_for_each(|station| station.check(set))?;
    let (mut gbps, mut copies, mut shares) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..options.rounds {
        interrupted(stop)?;
        let alone = feed(&mut stations, Station::copy, |station| Ok(station.queue.finish()?))?;
        let rate = feed(&mut stations, |station| station.submit(set), |station| station.finish().map(drop))?;
        gbps.push(rate);
        copies.push(alone);
        shares.push(rate / alone);
    }
    stations.iter_mut().try_for_each(|station| station.check(set))?;
    let mut value = rates(gbps, batch);
    value["in_flight"] = json!(in_flight);
    value["copies_gbps"] = json!(rounded(quantile(&sorted(copies), 0.5)));
    value["copies_share"] = json!(rounded(quantile(&sorted(shares), 0.5)));
    Ok(value)
}
