//! Rules on a device that is fed from the host's memory, with answers back in it: keys that are copied, frames that are read where they
//! lie, and small batches for a kernel that stays.

use std::collections::VecDeque;
use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use packetloom_classify::compiled::MatchKey;
use packetloom_classify::formats::Headers;
use packetloom_classify::image::{Algorithm, Image};
use packetloom_classify::{Action, Classifier, Kind, NO_RULE, RuleSet};
use packetloom_device::{Buffer, Device, Memory, Queue, Shared};
use packetloom_engine::offload::frames::{Acl, Answer, Buffers, Frames, Layout, Place, Slice};
use packetloom_engine::offload::lane::{Dispatch, Lane};
use packetloom_engine::offload::ring::Ring;
use packetloom_engine::offload::{self, OnDevice, frames};
use packetloom_io::input::Stop;
use packetloom_packet::batch::Policy;
use packetloom_packet::{DropReason, Key, LinkType, MatchKey4, MatchKey6, Verdict, dissect};
use serde_json::{Value, json};

use crate::Error;
use crate::acl::interrupted;
use crate::engine::{Engine, Own};
use crate::oracle::Oracle;
use crate::sample::{quantile, rounded, sorted};

/// Time that each way and batch size is given in a round, and the CPU beside it.
const TIME: Duration = Duration::from_millis(200);
const CPU_TIME: Duration = Duration::from_millis(100);
/// Packets that a core takes at a time.
const CPU_BATCH: usize = 256;
/// Bytes from one frame to the next, as where a network card leaves them.
const BUFFER_BYTES: NonZeroU32 = NonZeroU32::new(2048).unwrap();
const BUFFER: usize = BUFFER_BYTES.get() as usize;
/// Buffers of frames at most: half a gigabyte.
const MAX_BUFFERS: usize = 1 << 18;
/// A ring's batches, as a power of two: 16,384 frames on a GPU, a large ring of a network card.
const RING_BITS: u32 = 8;
/// What is written over answers that were looked at, so that one that is left out is seen: in an answer, that software must look.
const SPOILT: u8 = 0x7f;
/// Batches between two looks at the clock, where as many are sent as the device takes.
const BATCHES_PER_CLOCK: u32 = 16;
/// How often the kernel that stays is looked after, in turns of the loop.
const TURNS_PER_LOOK: u32 = 1 << 20;

/// How packets come to the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transport {
    /// Keys that are there already.
    #[default]
    OnDevice,
    /// Keys (16 or 40 bytes) that are copied there.
    Keys,
    /// The first bytes of frames, put together by a core of this machine.
    Slices,
    /// Frames that are read where they lie in the host's memory, 2 KiB apart.
    InPlace,
    /// The same, by a kernel that stays.
    Resident,
}

impl Transport {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::OnDevice, Self::Keys, Self::Slices, Self::InPlace, Self::Resident];

    /// The name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::OnDevice => "on-device",
            Self::Keys => "keys",
            Self::Slices => "slices",
            Self::InPlace => "in-place",
            Self::Resident => "resident",
        }
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Transport {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|transport| transport.name() == name).ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("no transport {name:?}; expected one of {names}")
        })
    }
}

/// What is run.
#[derive(Clone, Debug)]
pub struct Options {
    /// How packets come to the device; not [`Transport::OnDevice`].
    pub transport: Transport,
    /// How rules are laid out.
    pub algorithm: Algorithm,
    /// Packets of a batch: each number is measured.
    pub batches: Vec<usize>,
    /// Batches on their way at a time.
    pub in_flight: usize,
    /// Packets that come in a second, in millions: each number is measured; as many as can be where there is none. For
    /// [`Transport::Resident`].
    pub offered: Vec<f64>,
    /// Rings, with a thread for each. For [`Transport::Resident`].
    pub feeders: usize,
    /// Bytes of a frame that are looked at.
    pub slice: Slice,
    /// Whether kernels are compiled for the rules.
    pub specialise: bool,
    /// Rounds.
    pub rounds: usize,
    /// Name of the workload.
    pub workload: String,
}

/// Measures a device that is fed from this machine's memory, and this machine's cores beside it: a JSON object for each batch size.
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
    let oracle = Oracle::new(rules, headers);
    let classifier = Kind::default().build(rules);
    let mut own = Own::new(classifier.clone(), Duration::ZERO, headers);
    own.pass(CPU_BATCH);
    let answers = own.answers();
    oracle.check("hybrid", &answers)?;
    match (headers.v4.is_empty(), headers.v6.is_empty()) {
        (true, true) => Err(Error::Empty),
        (false, false) => Err(Error::Mixed),
        (false, true) => family(device, rules, &*classifier, (&headers.v4, &answers), options, stop),
        (true, false) => family(device, rules, &*classifier, (&headers.v6, &answers), options, stop),
    }
}

/// Keys of one family.
trait Family: MatchKey + bytemuck::Pod + Send + Sync {
    fn key(self) -> Key;
    fn classify(classifier: &dyn Classifier, keys: &[Self], first: &mut [u32]);
}

impl Family for MatchKey4 {
    fn key(self) -> Key {
        Key::V4(self)
    }

    fn classify(classifier: &dyn Classifier, keys: &[Self], first: &mut [u32]) {
        classifier.classify_v4(keys, first);
    }
}

impl Family for MatchKey6 {
    fn key(self) -> Key {
        Key::V6(self)
    }

    fn classify(classifier: &dyn Classifier, keys: &[Self], first: &mut [u32]) {
        classifier.classify_v6(keys, first);
    }
}

fn family<K: Family>(
    device: &Device,
    rules: &RuleSet,
    classifier: &dyn Classifier,
    (keys, answers): (&[K], &[u32]),
    options: &Options,
    stop: &Stop,
) -> Result<Vec<Value>, Error> {
    if options.transport == Transport::Keys {
        let target = offload::target(device, options.specialise);
        let image = Image::new::<K>(rules, options.algorithm, &target).map_err(offload::Error::from)?;
        let loaded = OnDevice::new(device, &image, &target)?;
        let cpu = Cpu { keys, frames: None, classifier };
        return measured(options, device, rules, &cpu, stop, |batch| {
            let station = |number| KeysStation::new(device, &loaded, keys, answers, batch, number * batch);
            let stations = (0..options.in_flight).map(station).collect::<Result<Vec<_>, _>>()?;
            Ok(Box::new(Flight { stations, batch }))
        });
    }
    let traffic = Traffic::new(rules, classifier, keys, answers)?;
    let list = [Acl { rules, verdicts: &traffic.verdicts }];
    let kernel = frames::Options {
        algorithm: options.algorithm,
        specialise: options.specialise,
        slice: options.slice,
        policy: Policy::PASS,
    };
    let kernel = Arc::new(Frames::new(device, &list, kernel)?);
    let cpu = Cpu { keys, frames: Some(&traffic), classifier };
    measured(options, device, rules, &cpu, stop, |batch| match options.transport {
        Transport::Slices => {
            let station = |number| SlicesStation::new(&kernel, &traffic, batch, number * batch);
            let stations = (0..options.in_flight).map(station).collect::<Result<Vec<_>, _>>()?;
            Ok(Box::new(Flight { stations, batch }))
        }
        Transport::InPlace => {
            let buffers = (batch * options.in_flight).min(MAX_BUFFERS);
            let memory = Arc::new(traffic.buffers(device, buffers)?);
            let station =
                |number| InPlaceStation::new(&kernel, &traffic, &memory, buffers, (batch, number * batch));
            let stations = (0..options.in_flight).map(station).collect::<Result<Vec<_>, _>>()?;
            Ok(Box::new(Flight { stations, batch }))
        }
        _ => Ok(Box::new(Resident::new(device, &kernel, &traffic, batch, options.feeders)?)),
    })
}

/// A way of feeding the device with batches of one size.
trait Feed {
    /// Feeds it for a while with so many millions of packets a second, or as many as it takes; returns how many, and appends microseconds from
    /// when a batch was handed over to when its answers were there.
    fn feed(
        &mut self,
        time: Duration,
        offered: Option<f64>,
        latencies: &mut Vec<f64>,
    ) -> Result<(u64, Duration), Error>;

    /// Packets of a batch, as it is fed.
    fn batch(&self) -> usize;

    /// Compares answers with what was expected.
    fn check(&mut self) -> Result<(), Error>;
}

fn measured<'f, K: Family>(
    options: &Options,
    device: &Device,
    rules: &RuleSet,
    cpu: &Cpu<'_, K>,
    stop: &Stop,
    feed: impl Fn(usize) -> Result<Box<dyn Feed + 'f>, Error>,
) -> Result<Vec<Value>, Error> {
    let offered: Vec<Option<f64>> = match options.offered.is_empty() {
        true => vec![None],
        false => options.offered.iter().copied().map(Some).collect(),
    };
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let mut values = Vec::new();
    for &batch in &options.batches {
        let mut feed = feed(batch)?;
        feed.check()?;
        for &offered in &offered {
            let (mut mpps, mut latencies, mut one, mut all) =
                (Vec::new(), Vec::new(), Vec::new(), Vec::new());
            for _ in 0..options.rounds {
                interrupted(stop)?;
                let (packets, time) = feed.feed(TIME, offered, &mut latencies)?;
                mpps.push(packets as f64 / time.as_secs_f64() / 1e6);
                one.push(cpu.mpps(1));
                all.push(cpu.mpps(threads));
            }
            feed.check()?;
            let ratio = |of: &[f64]| {
                rounded(quantile(&sorted(mpps.iter().zip(of).map(|(a, b)| a / b).collect()), 0.5))
            };
            let (cores, all_cores) = (ratio(&one), ratio(&all));
            let [mpps, latencies, one, all] = [mpps, latencies, one, all].map(sorted);
            let figure = |values: &[f64], share| json!(rounded(quantile(values, share)));
            values.push(json!({
                "workload": options.workload,
                "device": device.description().name,
                "transport": options.transport.name(),
                "algorithm": options.algorithm.name(),
                "specialised": options.specialise,
                "rules": rules.rules.len(),
                "packets": cpu.keys.len(),
                "batch": feed.batch(),
                "slice": (options.transport != Transport::Keys).then_some(options.slice.bytes()),
                "in_flight": (options.transport != Transport::Resident).then_some(options.in_flight),
                "feeders": (options.transport == Transport::Resident).then_some(options.feeders),
                "offered_mpps": offered,
                "mpps": figure(&mpps, 0.5),
                "mpps_min": figure(&mpps, 0.0),
                "mpps_max": figure(&mpps, 1.0),
                "latency_us_p50": figure(&latencies, 0.5),
                "latency_us_p99": figure(&latencies, 0.99),
                "latency_us_max": figure(&latencies, 1.0),
                "core_mpps": figure(&one, 0.5),
                "cores": cores,
                "all_cores": threads,
                "all_cores_mpps": figure(&all, 0.5),
                "all_cores_ratio": all_cores,
                "rounds": options.rounds,
            }));
        }
    }
    Ok(values)
}

/// The frames of keys, and what is expected of them.
struct Traffic {
    frames: Vec<Vec<u8>>,
    /// Verdict and position of the first rule of each.
    expected: Vec<(Verdict, u32)>,
    /// The verdicts of the rules and, last, that without one.
    verdicts: Vec<Verdict>,
}

impl Traffic {
    fn new<K: Family>(
        rules: &RuleSet,
        classifier: &dyn Classifier,
        keys: &[K],
        answers: &[u32],
    ) -> Result<Self, Error> {
        let verdict = |action| match action {
            Some(Action::Deny) => Verdict::Drop(DropReason::AclRule),
            _ => Verdict::Pass,
        };
        let default = Verdict::Drop(DropReason::AclDefault);
        let verdicts: Vec<_> = rules.rules.iter().map(|rule| verdict(rule.action)).chain([default]).collect();
        let count = keys.len().min(MAX_BUFFERS);
        let (mut frames, mut expected) = (Vec::with_capacity(count), Vec::with_capacity(count));
        for (key, &answer) in keys[..count].iter().zip(answers) {
            let frame = packetloom_generate::frame(&key.key());
            let headers = dissect(LinkType::ETHERNET, &frame, frame.len() as u32)
                .map_err(|reject| Error::Wrong(format!("{}: {frame:x?}", reject.name())))?;
            let mut first = [answer];
            // Headers may say what no frame can, a protocol without ports that has some: then the frame is judged as it is.
            match headers.key {
                same if same == key.key() => {}
                Key::V4(key) => classifier.classify_v4(&[key], &mut first),
                Key::V6(key) => classifier.classify_v6(&[key], &mut first),
            }
            let [first] = first;
            expected.push((verdicts[rules.rules.len().min(first as usize)], first));
            frames.push(frame);
        }
        Ok(Self { frames, expected, verdicts })
    }

    fn frame(&self, number: usize) -> &[u8] {
        &self.frames[number % self.frames.len()]
    }

    /// So many buffers of 2 KiB with a frame in each.
    fn buffers(&self, device: &Device, count: usize) -> Result<Shared, Error> {
        let mut memory = device.share(count * BUFFER).map_err(offload::Error::from)?;
        for number in 0..count {
            memory.write(number * BUFFER, self.frame(number));
        }
        Ok(memory)
    }

    fn place(&self, number: usize, buffers: usize) -> Place {
        let buffer = number % buffers;
        Place::near((buffer * BUFFER) as u32, self.frame(buffer).len() as u32, LinkType::ETHERNET)
    }

    fn check(&self, number: usize, answer: Answer) -> Result<(), Error> {
        let number = number % self.frames.len();
        let (verdict, first) = self.expected[number];
        if (answer.verdict(), answer.first()) == (Some(verdict), first) {
            return Ok(());
        }
        let frame = &self.frames[number];
        Err(Error::Wrong(format!(
            "the device says {answer:?} of frame {number}, {frame:x?}; expected {verdict:?} by rule {first}"
        )))
    }
}

/// The same work on cores of this machine.
struct Cpu<'a, K> {
    keys: &'a [K],
    /// Where it begins with frames.
    frames: Option<&'a Traffic>,
    classifier: &'a dyn Classifier,
}

impl<K: Family> Cpu<'_, K> {
    /// Millions of packets a second of so many threads.
    fn mpps(&self, threads: usize) -> f64 {
        let work = |thread: usize| {
            let mut first = [NO_RULE; CPU_BATCH];
            let mut keys = Vec::with_capacity(CPU_BATCH);
            let (mut packets, mut passed) = (0usize, 0usize);
            let (start, mut at) = (Instant::now(), thread * self.keys.len() / threads);
            while start.elapsed() < CPU_TIME {
                at = if at + CPU_BATCH > self.keys.len() { 0 } else { at };
                let end = (at + CPU_BATCH).min(self.keys.len());
                let first = &mut first[..end - at];
                match self.frames {
                    None => K::classify(self.classifier, &self.keys[at..end], first),
                    Some(traffic) => {
                        keys.clear();
                        for number in at..end {
                            let frame = traffic.frame(number);
                            if let Ok(headers) = dissect(LinkType::ETHERNET, frame, frame.len() as u32)
                                && let Some(key) = same_family::<K>(headers.key)
                            {
                                keys.push(key);
                            }
                        }
                        K::classify(self.classifier, &keys, &mut first[..keys.len()]);
                        let none = traffic.verdicts.len() - 1;
                        let verdicts = first.iter().map(|&first| traffic.verdicts[none.min(first as usize)]);
                        passed += verdicts.filter(|verdict| verdict.is_pass()).count();
                    }
                }
                packets += first.len();
                at = end;
            }
            std::hint::black_box(passed);
            packets as f64 / start.elapsed().as_secs_f64() / 1e6
        };
        let work = &work;
        thread::scope(|scope| {
            let threads: Vec<_> = (0..threads).map(|thread| scope.spawn(move || work(thread))).collect();
            threads.into_iter().filter_map(|thread| thread.join().ok()).sum()
        })
    }
}

fn same_family<K: Family>(key: Key) -> Option<K> {
    let bytes = match &key {
        Key::V4(key) => bytemuck::bytes_of(key),
        Key::V6(key) => bytemuck::bytes_of(key),
    };
    bytemuck::try_pod_read_unaligned(bytes).ok()
}

/// What holds one batch.
trait Station {
    fn submit(&mut self) -> Result<(), Error>;
    fn finish(&mut self) -> Result<(), Error>;
    fn check(&mut self) -> Result<(), Error>;
}

/// Batches that are sent in turns.
struct Flight<S> {
    stations: Vec<S>,
    batch: usize,
}

impl<S: Station> Feed for Flight<S> {
    fn batch(&self) -> usize {
        self.batch
    }

    fn feed(
        &mut self,
        time: Duration,
        _: Option<f64>,
        latencies: &mut Vec<f64>,
    ) -> Result<(u64, Duration), Error> {
        let start = Instant::now();
        let mut sent: VecDeque<Instant> = VecDeque::new();
        let (mut packets, mut next) = (0, 0);
        let mut arrive = |station: &mut S, sent: Option<Instant>| -> Result<(), Error> {
            if let Some(sent) = sent {
                station.finish()?;
                latencies.push(sent.elapsed().as_secs_f64() * 1e6);
                packets += self.batch as u64;
            }
            Ok(())
        };
        let count = self.stations.len();
        while start.elapsed() < time {
            let station = &mut self.stations[next];
            if sent.len() == count {
                arrive(station, sent.pop_front())?;
            }
            sent.push_back(Instant::now());
            station.submit()?;
            next = (next + 1) % count;
        }
        // The oldest one is the next, or the first.
        let mut oldest = if sent.len() == count { next } else { 0 };
        while !sent.is_empty() {
            arrive(&mut self.stations[oldest], sent.pop_front())?;
            oldest = (oldest + 1) % count;
        }
        Ok((packets, start.elapsed()))
    }

    fn check(&mut self) -> Result<(), Error> {
        for station in &mut self.stations {
            // What is left from before, and, once that is written over, what comes now.
            for _ in 0..2 {
                station.submit()?;
                station.finish()?;
                station.check()?;
            }
        }
        Ok(())
    }
}

struct KeysStation<'a> {
    kernel: &'a OnDevice,
    queue: Queue,
    keys: Shared,
    first: Shared,
    on_device: (Memory, Memory),
    expected: Vec<u32>,
}

impl<'a> KeysStation<'a> {
    fn new<K: Family>(
        device: &Device,
        kernel: &'a OnDevice,
        keys: &[K],
        answers: &[u32],
        batch: usize,
        from: usize,
    ) -> Result<Self, offload::Error> {
        let bytes = batch * size_of::<K>();
        let mut station = Self {
            kernel,
            queue: device.queue()?,
            keys: device.share(bytes)?,
            first: device.share(batch * 4)?,
            on_device: (device.memory(bytes)?, device.memory(batch * 4)?),
            expected: (from..from + batch).map(|at| answers[at % answers.len()]).collect(),
        };
        let chosen: Vec<K> = (from..from + batch).map(|at| keys[at % keys.len()]).collect();
        station.keys.write(0, bytemuck::cast_slice(&chosen));
        Ok(station)
    }
}

impl Station for KeysStation<'_> {
    fn submit(&mut self) -> Result<(), Error> {
        let (keys, first) = &self.on_device;
        let (bytes, room) = (self.keys.len(), self.first.len());
        let mut submit = || -> Result<(), offload::Error> {
            self.queue.copy_in(&mut self.keys, 0..bytes, keys, 0)?;
            self.kernel.launch(&mut self.queue, keys, first, 0..self.expected.len() as u32)?;
            Ok(self.queue.copy_out(first, 0..room, &mut self.first, 0)?)
        };
        Ok(submit()?)
    }

    fn finish(&mut self) -> Result<(), Error> {
        Ok(self.queue.finish().map_err(offload::Error::from)?)
    }

    fn check(&mut self) -> Result<(), Error> {
        let mut found = vec![0u32; self.expected.len()];
        self.first.read(0, bytemuck::cast_slice_mut(&mut found));
        self.first.write(0, &vec![SPOILT; self.first.len()]);
        match found.iter().zip(&self.expected).position(|(found, expected)| found != expected) {
            None => Ok(()),
            Some(at) => Err(Error::Wrong(format!(
                "the device finds rule {} for key {at} of a batch; expected {}",
                found[at], self.expected[at]
            ))),
        }
    }
}

struct SlicesStation<'a> {
    lane: Lane,
    traffic: &'a Traffic,
    range: (usize, usize),
}

impl<'a> SlicesStation<'a> {
    fn new(
        kernel: &Arc<Frames>,
        traffic: &'a Traffic,
        batch: usize,
        from: usize,
    ) -> Result<Self, offload::Error> {
        Ok(Self { lane: Lane::new(kernel, batch as u32, false)?, traffic, range: (from, from + batch) })
    }
}

impl Station for SlicesStation<'_> {
    fn submit(&mut self) -> Result<(), Error> {
        self.lane.clear();
        for number in self.range.0..self.range.1 {
            // There is room for as many.
            let _ = self.lane.push(self.traffic.frame(number), LinkType::ETHERNET);
        }
        Ok(self.lane.submit(Dispatch::Launch)?)
    }

    fn finish(&mut self) -> Result<(), Error> {
        while !self.lane.is_finished()? {
            std::hint::spin_loop();
        }
        Ok(())
    }

    fn check(&mut self) -> Result<(), Error> {
        let mut answers = Vec::new();
        self.lane.answers(&mut answers);
        let numbers = self.range.0..;
        // The next batch begins with another frame, so that an answer that is left from this one is seen.
        self.range = (self.range.0 + 1, self.range.1 + 1);
        answers.iter().zip(numbers).try_for_each(|(&answer, number)| self.traffic.check(number, answer))
    }
}

struct InPlaceStation<'a> {
    kernel: Arc<Frames>,
    queue: Queue,
    traffic: &'a Traffic,
    frames: Arc<Shared>,
    buffers: usize,
    places: Shared,
    answers: Shared,
    others: Shared,
    range: (usize, usize),
}

impl<'a> InPlaceStation<'a> {
    fn new(
        kernel: &Arc<Frames>,
        traffic: &'a Traffic,
        frames: &Arc<Shared>,
        buffers: usize,
        (batch, from): (usize, usize),
    ) -> Result<Self, offload::Error> {
        let device = kernel.device();
        let station = Self {
            kernel: kernel.clone(),
            queue: device.queue()?,
            traffic,
            frames: frames.clone(),
            buffers,
            places: device.share(batch * size_of::<Place>())?,
            answers: device.share(batch * size_of::<Answer>())?,
            others: device.share(0)?,
            range: (from, from + batch),
        };
        let places: Vec<_> = (from..from + batch).map(|number| traffic.place(number, buffers)).collect();
        station.places.store_words(0, bytemuck::cast_slice(&places));
        Ok(station)
    }
}

impl Station for InPlaceStation<'_> {
    fn submit(&mut self) -> Result<(), Error> {
        let [frames, places, answers, others] =
            [&*self.frames, &self.places, &self.answers, &self.others].map(Buffer::Shared);
        let room = (self.range.1 - self.range.0) as u32;
        let buffers = Buffers { frames, bytes: self.frames.len(), places, answers, others, room };
        Ok(self.kernel.launch(&mut self.queue, &buffers, 0..room)?)
    }

    fn finish(&mut self) -> Result<(), Error> {
        while !self.queue.is_finished().map_err(offload::Error::from)? {
            std::hint::spin_loop();
        }
        Ok(())
    }

    fn check(&mut self) -> Result<(), Error> {
        let mut answers = vec![Answer::default(); self.range.1 - self.range.0];
        self.answers.load_words(0, bytemuck::cast_slice_mut(&mut answers));
        self.answers.write(0, &vec![SPOILT; self.answers.len()]);
        let buffers = (self.range.0..).map(|number| number % self.buffers);
        answers.iter().zip(buffers).try_for_each(|(&answer, number)| self.traffic.check(number, answer))
    }
}

/// Rings of buffers that are filled in turns, each with a thread of its own.
struct Resident<'a> {
    feeders: Vec<Feeder<'a>>,
}

impl<'a> Resident<'a> {
    fn new(
        device: &Device,
        kernel: &Arc<Frames>,
        traffic: &'a Traffic,
        batch: usize,
        feeders: usize,
    ) -> Result<Self, Error> {
        let groups = kernel.groups() / feeders as u32;
        let feeder = |_| Feeder::new(device, kernel, traffic, batch, groups);
        // Drivers wait for kernels when memory is asked for: all of it before the first one stays.
        let mut feeders = (0..feeders).map(feeder).collect::<Result<Vec<_>, _>>()?;
        feeders.iter_mut().try_for_each(Feeder::begin)?;
        Ok(Self { feeders })
    }
}

impl Drop for Resident<'_> {
    fn drop(&mut self) {
        // The same when it is given back.
        for feeder in &mut self.feeders {
            let _ = feeder.ring.stop();
        }
    }
}

impl Feed for Resident<'_> {
    fn batch(&self) -> usize {
        self.feeders[0].parts as usize * self.feeders[0].answers.len()
    }

    fn feed(
        &mut self,
        time: Duration,
        offered: Option<f64>,
        latencies: &mut Vec<f64>,
    ) -> Result<(u64, Duration), Error> {
        let offered = offered.map(|mpps| mpps / self.feeders.len() as f64);
        let start = Instant::now();
        let fed = thread::scope(|scope| {
            let feed = |feeder: &'_ mut Feeder<'_>| feeder.feed(start, time, offered);
            let threads: Vec<_> =
                self.feeders.iter_mut().map(|feeder| scope.spawn(move || feed(feeder))).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().map_err(|_| packetloom_engine::Error::Worker))
                .collect::<Vec<_>>()
        });
        let mut packets = 0;
        for fed in fed {
            let (fed, took) = fed??;
            packets += fed;
            latencies.extend(took);
        }
        Ok((packets, start.elapsed()))
    }

    fn check(&mut self) -> Result<(), Error> {
        self.feeders.iter_mut().try_for_each(Feeder::check)
    }
}

/// A ring of buffers, filled in turns.
struct Feeder<'a> {
    ring: Ring,
    frames: Shared,
    traffic: &'a Traffic,
    /// The ring's batches that make one of the batches that are measured.
    parts: u32,
    /// The ring's batches that were taken.
    taken: usize,
    answers: Vec<Answer>,
    turns: u32,
    passed: u64,
}

impl<'a> Feeder<'a> {
    fn new(
        device: &Device,
        kernel: &Arc<Frames>,
        traffic: &'a Traffic,
        batch: usize,
        groups: u32,
    ) -> Result<Self, Error> {
        // As many buffers as the ring has places.
        let size = kernel.group() as usize;
        let buffers = size << RING_BITS;
        let memory = traffic.buffers(device, buffers)?;
        let layout = Layout::Buffers { bytes: BUFFER_BYTES, link: LinkType::ETHERNET };
        Ok(Self {
            ring: Ring::new(kernel, layout, RING_BITS, groups)?,
            frames: memory,
            traffic,
            parts: batch.div_ceil(size).min(1 << RING_BITS) as u32,
            taken: 0,
            answers: vec![Answer::default(); size],
            turns: 0,
            passed: 0,
        })
    }

    /// Goes once around the ring, so that all buffers are told of.
    fn begin(&mut self) -> Result<(), Error> {
        let size = self.answers.len();
        let mut lens = vec![0; size];
        for number in 0..1 << RING_BITS {
            for (at, len) in lens.iter_mut().enumerate() {
                *len = self.traffic.frame(number * size + at).len() as u16;
            }
            while !self.ring.publish_buffers(&lens) {
                self.wait()?;
            }
            self.ring.look_after(&self.frames)?;
        }
        while self.ring.under_way() > 0 {
            self.wait()?;
        }
        Ok(())
    }

    /// Takes a batch, if one is there, and looks at each verdict.
    #[inline]
    fn take(&mut self) -> Result<bool, Error> {
        self.turns += 1;
        if self.turns == TURNS_PER_LOOK {
            self.turns = 0;
            self.ring.look_after(&self.frames)?;
        }
        let Some(_) = self.ring.take(&mut self.answers) else { return Ok(false) };
        self.passed += self.answers.iter().filter(|answer| answer.passes()).count() as u64;
        self.taken += 1;
        Ok(true)
    }

    /// Waits for a batch, and compares its answers.
    fn wait(&mut self) -> Result<(), Error> {
        let number = (self.taken % (1 << RING_BITS)) * self.answers.len();
        while !self.take()? {}
        self.answers.iter().zip(number..).try_for_each(|(&answer, number)| self.traffic.check(number, answer))
    }

    /// Feeds it for a while; returns packets, and microseconds from publishing to the last answer of batches.
    fn feed(
        &mut self,
        start: Instant,
        time: Duration,
        offered: Option<f64>,
    ) -> Result<(u64, Vec<f64>), Error> {
        let mut latencies = Vec::new();
        let batch = f64::from(self.parts) * self.answers.len() as f64;
        let mut sent: VecDeque<Option<Instant>> = VecDeque::with_capacity(1 << RING_BITS);
        let (mut published, mut taken) = (0u64, 0u64);
        let (mut now, mut turn) = (start, 0u32);
        loop {
            // With as many as it takes, the clock would take a good part of the time: it is asked for some of them.
            let is_asked = offered.is_some() || turn.is_multiple_of(BATCHES_PER_CLOCK);
            if is_asked {
                now = Instant::now();
            }
            turn = turn.wrapping_add(1);
            let is_due = match offered {
                Some(mpps) => published as f64 * batch <= mpps * (now - start).as_secs_f64() * 1e6,
                None => true,
            };
            let is_over = now - start >= time;
            if is_due && !is_over && self.ring.publish_again(self.parts) {
                sent.push_back(is_asked.then_some(now));
                published += 1;
                if published == 1 {
                    // It may have left since it was last fed.
                    self.ring.look_after(&self.frames)?;
                }
            }
            while self.take()? {
                taken += 1;
                if taken == u64::from(self.parts) {
                    taken = 0;
                    if let Some(Some(sent)) = sent.pop_front() {
                        latencies.push(sent.elapsed().as_secs_f64() * 1e6);
                    }
                }
            }
            if is_over && self.ring.under_way() == 0 {
                return Ok(((published as f64 * batch) as u64, latencies));
            }
        }
    }

    fn check(&mut self) -> Result<(), Error> {
        // Laps differ, so an answer that is left out is never there.
        for _ in 0..1 << RING_BITS {
            while !self.ring.publish_again(1) {
                self.wait()?;
            }
            // It may have left since it was last fed.
            self.ring.look_after(&self.frames)?;
        }
        while self.ring.under_way() > 0 {
            self.wait()?;
        }
        Ok(())
    }
}
