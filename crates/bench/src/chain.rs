//! A chain over packets in memory: rings of frames, one for each worker, that are gone around in the order of no table.

mod in_place;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use memmap2::MmapMut;
use packetloom_device::{Buffer, Device, Memory, Queue, host_memory};
use packetloom_engine::Plan;
use packetloom_engine::layout::Used;
use packetloom_engine::offload::stateful::records::{Answer, Ipv6Addresses, Records};
use packetloom_engine::offload::stateful::{self, Buffers, Partition, Stateful};
use packetloom_engine::pipeline::{Shared, Worker};
use packetloom_io::input::Stop;
use packetloom_nf::flows::{By, Counts, V4, key_words};
use packetloom_packet::{
    Arena, Batch, Dscp, FlowKey, FrameRef, Key, KeyBits, LinkType, MatchKey4, Rewrite, Timestamp, protocol,
};
use packetloom_table::states::{self, KeyForm, States};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use serde_json::{Value, json};

pub use in_place::{Feed, run_in_place};

use crate::Error;
use crate::acl::interrupted;
use crate::sample::{Clock, Measurement, Round, measure, quantile, rounded, sorted};

/// Bytes of frames in all rings together, at least: four times the largest cache, so that no frame is in a cache when it comes.
const CACHES: usize = 4;
/// Where the system does not say how large that is.
const CACHE: usize = 32 << 20;
/// Nanoseconds of packets' time from one packet to the next of a worker.
const GAP: u64 = 100;
const NANOS: u64 = 1_000_000_000;
/// Time that a round takes.
const TIME: Duration = Duration::from_secs(1);
/// The least packets have, without their check sequence (IEEE 802.3).
const SHORTEST: usize = 60;
/// One flow in so many is an elephant, and together they have so much of the packets.
const ELEPHANTS: (u64, f64) = (1000, 0.8);
/// Equal shares of a table, one of which flows are aimed at, as a power of two: it would have to hold as many times what it has room for.
const SHARES: u32 = 64;
/// Ports that clients use.
const PORTS: u64 = 64_512;
/// The service that packets go to: 198.51.100.1 (RFC 5737), port 80.
pub const SERVICE: (u32, u16) = (0xc633_6401, 80);

/// How packets are spread over flows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Distribution {
    /// Each packet is of any flow.
    #[default]
    Uniform,
    /// The flow of rank r has packets in proportion to 1 / r.
    Zipf,
    /// One flow in 1,000 is one of those that have 80 % of the packets.
    Elephants,
    /// Each packet is of any flow; and all flows, floods' too, would have their places in one 64th of a table whose hash anybody can
    /// compute.
    Aimed,
}

impl Distribution {
    /// As results have it.
    fn name(self) -> &'static str {
        match self {
            Self::Uniform => "uniform",
            Self::Zipf => "zipf",
            Self::Elephants => "elephants",
            Self::Aimed => "aimed",
        }
    }
}

/// What is run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Flows at a time.
    pub flows: u64,
    /// Flows of each worker that begin in a second of packets' time, each in place of one that ends.
    pub new_flows: u64,
    /// Flows of one packet, as of a flood, beside the others: every other packet, or fewer.
    pub flood: u64,
    /// Sources that they come from.
    pub sources: u64,
    /// How packets are spread over them.
    pub distribution: Distribution,
    /// Bytes of a packet on the wire without preamble, with its check sequence of 4.
    pub packet_size: usize,
    /// Worker threads.
    pub workers: usize,
    /// Packets of a batch.
    pub batch: usize,
    /// Packets that all workers together are offered in a second, in millions, one measurement after the other; as many as they take, if
    /// there are none.
    pub offered: Vec<f64>,
    /// Rounds.
    pub rounds: usize,
    /// Name of the workload.
    pub workload: String,
}

/// Memory with frames, in huge pages where the system has such, as that of network cards' rings is. The counter of those who hold it is
/// written with each batch: no other worker's is near it.
#[repr(align(128))]
struct Frames(MmapMut);

impl Frames {
    fn new(bytes: &[u8]) -> Result<Self, Error> {
        // One that is empty cannot be mapped.
        let mut memory = MmapMut::map_anon(bytes.len().max(1)).map_err(Error::Memory)?;
        // Only a hint.
        #[cfg(target_os = "linux")]
        let _ = memory.advise(memmap2::Advice::HugePage);
        memory[..bytes.len()].copy_from_slice(bytes);
        Ok(Self(memory))
    }
}

impl AsRef<[u8]> for Frames {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// The packets of one worker.
struct Ring {
    frames: Arena,
    count: usize,
    /// Bytes from one frame to the next, and of each.
    stride: usize,
    len: usize,
    /// The packets of floods, in order.
    flood: Vec<u32>,
}

impl Ring {
    /// The bytes of a frame.
    fn frame(&self, number: usize) -> &[u8] {
        &(*self.frames).as_ref()[number * self.stride..][..self.len]
    }

    /// Where up to `most` frames begin, from one on, or from the first one after the last.
    fn offsets(&self, from: usize, most: usize) -> impl Iterator<Item = u64> + use<> {
        let (stride, from) = (self.stride, if from == self.count { 0 } else { from });
        (from..(from + most).min(self.count)).map(move |number| (number * stride) as u64)
    }

    /// Makes a batch of up to `most` frames from one on; `packet` is the number of the first, which says its time.
    fn fill(&self, batch: &mut Batch, from: usize, most: usize, packet: u64) {
        let (stride, len) = (self.stride, self.len as u32);
        batch.reset(self.frames.clone());
        batch.extend((from..(from + most).min(self.count)).zip(packet..).map(|(number, packet)| FrameRef {
            offset: (number * stride) as u64,
            time: Timestamp::from_nanos(packet * GAP),
            len,
            wire_len: len,
            link: LinkType::ETHERNET,
            port: 0,
        }));
    }
}

/// The flow of a number, one of [`PORTS`] for each source.
fn flow(number: u64, sources: u64) -> MatchKey4 {
    let (source, port) = (number % sources, number / sources);
    MatchKey4 {
        // 10.0.0.0/8 and on.
        source: 0x0a00_0000u32.wrapping_add(source as u32),
        destination: SERVICE.0,
        source_port: (port % PORTS) as u16 + 1024,
        destination_port: SERVICE.1,
        protocol: protocol::TCP,
        tcp_flags: 0x10,
        bits: KeyBits::PORTS.with(KeyBits::TCP_FLAGS).with(KeyBits::WHOLE),
        reserved: 0,
    }
}

/// In which of its [`SHARES`] shares a table has room for a flow of a number, unless that is full.
fn share(table: &States<V4>, number: u64, sources: u64) -> u64 {
    let words = key_words(&FlowKey::from_v4(&flow(number, sources)).0);
    table.hash(&[words[0], words[1]]) >> (u64::BITS - SHARES.ilog2())
}

/// The numbers of so many flows, or fewer, that would be in the first share of a table without seeds.
fn aimed(sources: u64, count: u64) -> Vec<u64> {
    let table = States::new(KeyForm::Whole, 1, 1, 0, u64::MAX, states::WhenFull::Evict, [0, 0]);
    let is_aimed = |number: &u64| share(&table, *number, sources) == 0;
    (0..sources * PORTS).filter(is_aimed).take(count as usize).collect()
}

/// One of the flows that there are at a time.
fn draw(random: &mut Xoshiro256PlusPlus, options: &Options) -> u64 {
    let share = |random: &mut Xoshiro256PlusPlus| (random.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
    let any = |random: &mut Xoshiro256PlusPlus, of: u64| {
        ((u128::from(random.next_u64()) * u128::from(of)) >> 64) as u64
    };
    match options.distribution {
        Distribution::Uniform | Distribution::Aimed => any(random, options.flows),
        // The inverse of the harmonic numbers' logarithm, close enough.
        Distribution::Zipf => {
            let rank = ((options.flows as f64 + 1.0).ln() * share(random)).exp() as u64;
            rank.clamp(1, options.flows) - 1
        }
        Distribution::Elephants => {
            let elephants = (options.flows / ELEPHANTS.0).max(1);
            if share(random) < ELEPHANTS.1 { any(random, elephants) } else { any(random, options.flows) }
        }
    }
}

/// The largest cache of the first processor.
fn cache() -> usize {
    let size = |index: usize| {
        let path = format!("/sys/devices/system/cpu/cpu0/cache/index{index}/size");
        let text = std::fs::read_to_string(path).ok()?;
        text.trim().strip_suffix('K')?.parse::<usize>().ok().map(|kib| kib << 10)
    };
    (0..8).filter_map(size).max().unwrap_or(CACHE)
}

/// What the packets are: rings with all of them, and how many different flows and sources they are of; packets of floods count as none.
struct Packets {
    rings: Vec<Ring>,
    flows: u64,
    sources: u64,
}

/// How many packets there are, and how many flows they are of but for floods.
fn extent(options: &Options, stride: usize) -> (u64, u64) {
    let packets = ((CACHES * cache() / stride) as u64).max(2 * options.flows.max(options.flood));
    if options.new_flows == 0 {
        return (packets, options.flows);
    }
    // So many, that a flow is silent for three quarters of the way around.
    let packets = packets.max((4 * options.flows * NANOS).div_ceil(options.new_flows * GAP));
    (packets, (packets * GAP * options.new_flows).div_ceil(NANOS))
}

fn packets(options: &Options, spread: By) -> Result<Packets, Error> {
    let len = options.packet_size.saturating_sub(4).max(SHORTEST);
    let stride = (len + 4).next_multiple_of(64);
    let (packets, all) = extent(options, stride);
    // Twice, while they are brought to their rings.
    let bytes = packets.saturating_mul(2 * stride as u64);
    if let Some(left) = host_memory("MemAvailable").filter(|&left| left < bytes) {
        let why = format!(
            "{packets} packets, which need {} MiB of memory; expected no more than the {} MiB that are left: fewer or shorter \
             packets, fewer flows, or more new ones in a second",
            bytes >> 20,
            left >> 20
        );
        return Err(packetloom_nf::Error::Invalid(why).into());
    }
    let wanted = all + options.flood;
    let is_aimed = options.distribution == Distribution::Aimed;
    let aimed = is_aimed.then(|| aimed(options.sources, wanted));
    let there_are = aimed.as_ref().map_or(options.sources * PORTS, |aimed| aimed.len() as u64);
    if there_are < wanted {
        let why = format!(
            "{wanted} flows of {} sources, which have {PORTS} ports each; expected more sources",
            options.sources
        );
        return Err(packetloom_nf::Error::Invalid(why).into());
    }
    let mut random = Xoshiro256PlusPlus::seed_from_u64(1);
    // Spread as a network card does, by a hash that is the same for both directions.
    let worker =
        |key: &MatchKey4| ((u128::from(spread.spread_v4(key, 7)) * options.workers as u128) >> 64) as usize;
    let mut rings: Vec<(Vec<u8>, Vec<u32>)> = vec![Default::default(); options.workers];
    let mut seen = vec![false; all as usize];
    let mut sources = vec![false; options.sources as usize];
    for packet in 0..packets {
        // Spread evenly: the next one is due with this packet.
        let fresh = packet * options.flood / packets;
        let is_flood = (packet + 1) * options.flood / packets > fresh;
        let flow_at = if is_flood {
            all + fresh
        } else {
            // The flows that there are at a time move on.
            let first = packet * GAP * options.new_flows / NANOS;
            (first + draw(&mut random, options)) % all
        };
        if let Some(seen) = seen.get_mut(flow_at as usize) {
            *seen = true;
        }
        let number = aimed.as_ref().map_or(flow_at, |aimed| aimed[flow_at as usize]);
        sources[(number % options.sources) as usize] = true;
        // A flow's rank says nothing about its address.
        let key = flow(number, options.sources);
        let mut frame = packetloom_generate::frame(&Key::V4(key));
        frame.resize(len, 0);
        let total = (len - 14) as u16;
        frame[16..18].copy_from_slice(&total.to_be_bytes());
        frame.resize(stride, 0);
        let (memory, flood) = &mut rings[worker(&key)];
        if is_flood {
            flood.push((memory.len() / stride) as u32);
        }
        memory.extend(frame);
    }
    let ring = |(memory, flood): (Vec<u8>, Vec<u32>)| {
        let count = memory.len() / stride;
        Ok(Ring { frames: Arc::new(Frames::new(&memory)?), count, stride, len, flood })
    };
    let rings = rings.into_iter().map(ring).collect::<Result<_, Error>>()?;
    let count = |seen: Vec<bool>| seen.into_iter().filter(|&seen| seen).count() as u64;
    Ok(Packets { rings, flows: count(seen), sources: count(sources) })
}

/// A worker that goes around its ring. What one writes is away from what another one reads.
#[repr(align(128))]
struct Runner<'a> {
    ring: &'a Ring,
    worker: Worker,
    batch: Batch,
    size: usize,
    /// Where frames that pass are written, with their rewrites: a ring to send from.
    sent: Vec<u8>,
    /// The next frame, and which of the floods' frames comes next.
    at: usize,
    flood_at: usize,
    /// Packets so far, those of them that were judged, and those that passed.
    packets: u64,
    judged: u64,
    passed: u64,
    /// Those of floods.
    flood: u64,
    /// Of a round with packets that are offered: nanoseconds that each packet of a batch waited, from the first to the last in even steps.
    waited: Vec<Waited>,
}

/// How long a batch's packets waited, in nanoseconds: the first of so many, and the last.
#[derive(Clone, Copy, Debug)]
struct Waited {
    first: u64,
    last: u64,
    packets: u64,
}

impl Waited {
    /// That of each.
    fn each(self) -> impl Iterator<Item = f64> {
        let Self { first, last, packets } = self;
        let step = (first - last) as f64 / packets.saturating_sub(1).max(1) as f64;
        (0..packets).map(move |packet| first as f64 - step * packet as f64)
    }
}

impl<'a> Runner<'a> {
    fn new(ring: &'a Ring, worker: Worker, options: &Options) -> Self {
        Self {
            ring,
            worker,
            batch: Batch::new(options.batch),
            size: options.batch,
            sent: vec![0; options.batch * ring.stride],
            at: 0,
            flood_at: 0,
            packets: 0,
            judged: 0,
            passed: 0,
            flood: 0,
            waited: Vec::new(),
        }
    }

    /// Goes around once.
    fn lap(&mut self) -> Result<(), Error> {
        while self.at < self.ring.count {
            self.step(self.size, self.size)?;
        }
        Ok(())
    }

    /// Goes around until it is to stop.
    fn run(&mut self, stop: &AtomicBool) -> Result<(), Error> {
        while self.ring.count > 0 && !stop.load(Ordering::Relaxed) {
            self.step(self.size, self.size)?;
        }
        Ok(())
    }

    /// The same with packets that come at even steps of so many nanoseconds: takes those that are there, up to a batch.
    fn run_offered(&mut self, stop: &AtomicBool, step: f64) -> Result<(), Error> {
        self.waited.clear();
        let start = Instant::now();
        let mut taken = 0u64;
        while self.ring.count > 0 && !stop.load(Ordering::Relaxed) {
            let come = (start.elapsed().as_nanos() as f64 / step) as u64;
            if come == taken {
                std::hint::spin_loop();
                continue;
            }
            let most = (come - taken).min(self.size as u64) as usize;
            let packets = self.step(most, 0)? as u64;
            let now = start.elapsed().as_nanos() as f64;
            let since = |packet: u64| (now - (packet + 1) as f64 * step).max(0.0) as u64;
            self.waited.push(Waited { first: since(taken), last: since(taken + packets - 1), packets });
            taken += packets;
        }
        Ok(())
    }

    /// Takes a batch of so many packets at most through the chain; how many there were. Of those behind them so many are there, too.
    fn step(&mut self, most: usize, behind: usize) -> Result<usize, Error> {
        if self.at == self.ring.count {
            (self.at, self.flood_at) = (0, 0);
        }
        let (begin, end) = (self.at, (self.at + most).min(self.ring.count));
        self.ring.fill(&mut self.batch, begin, most, self.packets);
        self.worker.judge(&mut self.batch)?;
        self.at = end;
        self.send(behind);
        self.packets += (end - begin) as u64;
        self.judged += self.batch.verdicts().len() as u64;
        let flood = &self.ring.flood[self.flood_at..];
        let flood = flood.iter().take_while(|&&packet| (packet as usize) < end).count();
        self.flood_at += flood;
        self.flood += flood as u64;
        Ok(end - begin)
    }

    /// Writes the frames that pass, as they are to be sent.
    fn send(&mut self, behind: usize) {
        let next = self.ring.offsets(self.at, behind);
        self.passed += self.batch.copy_passed(&mut self.sent, self.ring.stride, next) as u64;
    }
}

/// Memory of a batch on a device.
struct Parts {
    records: Memory,
    wide: Memory,
    answers: Memory,
    wide_answers: Memory,
    first: Memory,
    exports: Memory,
    details: Memory,
    room: u32,
}

impl Parts {
    fn buffers(&self) -> Buffers<'_> {
        Buffers {
            records: Buffer::Memory(&self.records),
            wide: Buffer::Memory(&self.wide),
            answers: Buffer::Memory(&self.answers),
            wide_answers: Buffer::Memory(&self.wide_answers),
            first: Buffer::Memory(&self.first),
            exports: Buffer::Memory(&self.exports),
            details: Buffer::Memory(&self.details),
            room: self.room,
            has_v6: false,
        }
    }
}

/// All functions of a chain on a device.
fn whole_chain(plan: &Plan, options: &Options, device: &Device) -> Result<Stateful, Error> {
    let (functions, layout) = (plan.chain().functions(), plan.chain().layout());
    let count = stateful::offloadable(functions, layout);
    if count < functions.len() {
        let name = functions[count].name();
        let why = format!(
            "{name} is not for a device, where it stands; expected a chain that a device can run with its state"
        );
        return Err(packetloom_nf::Error::Invalid(why).into());
    }
    let batch = u32::try_from(options.batch).unwrap_or(u32::MAX);
    Ok(Stateful::new(device, functions, layout, count, batch, 1)?)
}

/// Batches on their way through a chain on a device: each is partitioned while the one before is judged.
struct InFlight<'a> {
    stateful: &'a Stateful,
    partitioning: Queue,
    judging: Queue,
    /// What batches are partitioned in, in turns.
    partition: [Partition; 2],
}

impl<'a> InFlight<'a> {
    fn new(stateful: &'a Stateful) -> Result<Self, packetloom_engine::offload::Error> {
        let queue = || stateful.device().queue();
        let partition = [stateful.partition_memory()?, stateful.partition_memory()?];
        Ok(Self { stateful, partitioning: queue()?, judging: queue()?, partition })
    }

    /// Queues batches: each with its packets, whose times are so many nanoseconds later than they say.
    fn run<'b>(
        &mut self,
        batches: impl Iterator<Item = (&'b Parts, u32, u64)>,
    ) -> Result<(), packetloom_engine::offload::Error> {
        let Self { stateful, partitioning, judging, partition: [own, other] } = self;
        let mut last: Option<(&Parts, u64)> = None;
        for (parts, packets, since) in batches {
            if last.is_some() {
                judging.wait_for(partitioning)?;
            }
            // A batch that comes again is not partitioned while it is judged.
            if let Some((before, since)) = last.take_if(|(before, _)| std::ptr::eq(*before, parts)) {
                stateful.judge(judging, other, &before.buffers(), since)?;
            }
            // Not before the batch that was partitioned in the same memory is judged.
            partitioning.wait_for(judging)?;
            stateful.partition(partitioning, own, &parts.buffers(), packets)?;
            if let Some((parts, since)) = last.replace((parts, since)) {
                stateful.judge(judging, other, &parts.buffers(), since)?;
            }
            std::mem::swap(own, other);
        }
        if let Some((parts, since)) = last {
            judging.wait_for(partitioning)?;
            stateful.judge(judging, other, &parts.buffers(), since)?;
        }
        Ok(())
    }
}

/// How often a round is to go around, when it took so long once.
fn passes_of(first: &Round) -> usize {
    (TIME.as_nanos() / first.wall().as_nanos().max(1)) as usize + 1
}

/// Measures a chain on a device, over batches of packets in its memory whose headers were read, from these to verdicts and rewritten ends.
///
/// The first lap is compared with what this machine's cores make of it.
///
/// # Errors
/// As [`run`]; and where the device fails, or does not run all of the chain.
pub fn run_on(plan: &Plan, options: &Options, device: &Device, stop: &Stop) -> Result<Measurement, Error> {
    let options = &Options { workers: 1, ..options.clone() };
    let stateful = whole_chain(plan, options, device)?;
    let batch = stateful.room();
    let Packets { rings, flows, .. } = packets(options, By::FiveTuple)?;
    let mut in_flight = InFlight::new(&stateful)?;
    let mut worker = Worker::new(plan, &Shared::new(plan, 1, batch as usize), 0);
    let mut lap = Vec::new();
    let mut wrong = 0u64;
    let mut packets = 0u64;
    let mut frames = Batch::new(batch as usize);
    let mut records = Records::default();
    let ring = &rings[0];
    while (packets as usize) < ring.count {
        interrupted(stop)?;
        ring.fill(&mut frames, packets as usize, batch as usize, packets);
        let len = frames.len() as u32;
        frames.parse(plan.chain().settings.run.policy());
        records.take(&frames, stateful.needs(), len);
        let room = len;
        let mut wide = records.wide.clone();
        wide.resize(len as usize, Ipv6Addresses::default());
        wide.extend(&records.connections);
        wide.resize(stateful.needs().wides(room as usize), Ipv6Addresses::default());
        let mut details = records.details.as_flattened().to_vec();
        details.resize(stateful.detail_words() * room as usize, 0);
        let parts = Parts {
            records: device.memory_of(bytemuck::cast_slice(&records.packets))?,
            wide: device.memory_of(bytemuck::cast_slice(&wide))?,
            answers: device.memory(room as usize * 16)?,
            wide_answers: device.memory(room as usize * 32)?,
            first: device.memory(stateful.acls() * room as usize * 4)?,
            exports: device.memory(stateful.export_words() * room as usize * 8)?,
            details: device.memory_of(bytemuck::cast_slice(&details))?,
            room,
        };
        in_flight.run(std::iter::once((&parts, len, 0)))?;
        let mut answers = vec![Answer::default(); len as usize];
        in_flight.judging.read(&parts.answers, 0, bytemuck::cast_slice_mut(&mut answers))?;
        // What cores find, and what the device found put into the same frames.
        worker.judge_parsed(&mut frames)?;
        let expected: Vec<_> =
            (0..frames.len()).map(|frame| (frames.verdicts()[frame], rewritten(&frames, frame))).collect();
        ring.fill(&mut frames, packets as usize, batch as usize, packets);
        frames.parse(plan.chain().settings.run.policy());
        for (frame, (answer, (verdict, rewrites))) in answers.iter().zip(expected).enumerate() {
            answer.rewrite(&mut frames, frame as u32, Default::default);
            let is_same = answer.verdict() == Some(verdict)
                && (!verdict.is_pass() || rewritten(&frames, frame) == rewrites);
            wrong += u64::from(!is_same);
        }
        packets += u64::from(len);
        lap.push((parts, len));
    }
    if wrong > 0 {
        return Err(Error::Wrong(format!(
            "{wrong} of {packets} packets were judged otherwise than by cores"
        )));
    }
    let mut laps = 1u64;
    let mut go = |times: usize| -> Result<Round, Error> {
        let (done, round) = measure(Clock::Process, || {
            let each = (laps..).take(times);
            let batches = each
                .flat_map(|number| lap.iter().map(move |(parts, len)| (parts, *len, number * packets * GAP)));
            in_flight.run(batches)?;
            laps += times as u64;
            in_flight.partitioning.finish()?;
            in_flight.judging.finish().map_err(Error::from)
        });
        done.map(|()| round)
    };
    let passes = passes_of(&go(1)?);
    let mut rounds = Vec::new();
    for _ in 0..options.rounds {
        interrupted(stop)?;
        rounds.push(go(passes)?);
    }
    Ok(Measurement {
        workload: options.workload.clone(),
        classifier: None,
        batch: batch as usize,
        device: "device",
        packets,
        passes,
        rounds,
        more: vec![
            ("on", json!(device.description().id.to_string())),
            ("transport", json!("records")),
            ("flows", json!(flows)),
            ("distribution", json!(options.distribution.name())),
            ("packet_size", json!(options.packet_size)),
        ],
    })
}

/// What is to be rewritten in a frame.
fn rewritten(batch: &Batch, frame: usize) -> (Vec<Rewrite>, Option<Dscp>) {
    (batch.rewrites(frame).collect(), batch.rewritten_dscp(frame))
}

/// Measures a chain over packets in memory, from frames to what is sent.
///
/// # Errors
/// [`Error::Wrong`] where its counts are not those of the packets; more flows than sources have ports, or several workers for a chain
/// that one must run; [`Error::Interrupted`].
pub fn run(plan: &Plan, options: &Options, stop: &Stop) -> Result<Vec<Measurement>, Error> {
    let invalid = |why: &str| Err(packetloom_nf::Error::Invalid(why.into()).into());
    let layout = plan.chain().layout();
    if options.workers > 1 && layout.spread(plan.chain().functions()).is_none() {
        return invalid("no way to spread packets suits all functions; expected one worker");
    }
    if options.offered.iter().any(|&mpps| !(mpps > 0.0 && mpps.is_finite())) {
        return invalid("packets offered in a second; expected more than 0");
    }
    let Packets { rings, flows, sources } = packets(options, plan.spread())?;
    let shared = Shared::new(plan, options.workers, options.batch);
    // In threads of their own, so that their memory is apart. All flows are known after this, and all memory is there.
    let mut runners: Vec<_> = thread::scope(|scope| {
        let start = |(number, ring)| {
            let shared = &shared;
            scope.spawn(move || {
                let mut runner = Runner::new(ring, Worker::new(plan, shared, number), options);
                runner.lap().map(|()| runner)
            })
        };
        let starting: Vec<_> = rings.iter().enumerate().map(start).collect();
        starting.into_iter().map(joined).collect::<Result<_, _>>()
    })?;
    let packets: usize = rings.iter().map(|ring| ring.count).sum();
    let offered: Vec<Option<f64>> = match &options.offered[..] {
        [] => vec![None],
        offered => offered.iter().copied().map(Some).collect(),
    };
    let mut measured = Vec::new();
    for offered in offered {
        // From one packet of a worker to its next.
        let step = offered.map(|mpps| 1e3 * options.workers as f64 / mpps);
        let mut rounds = Vec::new();
        let mut waited = Vec::new();
        for _ in 0..options.rounds {
            interrupted(stop)?;
            let before = judged(&runners);
            let (done, round) = go(&mut runners, step);
            done?;
            let more = judged(&runners) - before;
            rounds.push(round.scaled(packets as f64 / more.max(1) as f64));
            let of_round = runners.iter().flat_map(|runner| &runner.waited);
            waited.push(sorted(of_round.flat_map(|waited| waited.each()).collect()));
        }
        measured.push((offered, rounds, waited));
    }
    let expected: u64 = runners.iter().map(|runner| runner.packets).sum();
    let judged = judged(&runners);
    let passed: u64 = runners.iter().map(|runner| runner.passed).sum();
    let flood: u64 = runners.iter().map(|runner| runner.flood).sum();
    let counts = shared.finish(plan, runners.into_iter().map(|runner| runner.worker))?.flows;
    let is_shared = |used: &&Used| options.workers > 1 && used.is_shared(plan.spread());
    let shared: Vec<_> = layout.definitions.iter().filter(is_shared).map(|used| used.name.as_str()).collect();
    if judged != expected {
        return Err(Error::Wrong(format!("{judged} packets were judged; expected {expected}")));
    }
    // Where no packet is dropped before, all flows are found, or refused.
    for (used, counts) in layout.definitions.iter().zip(&counts) {
        let expected = match used.definition.by {
            By::FiveTuple | By::Connection | By::VlanFiveTuple => flows,
            By::Source | By::Initiator => sources,
        };
        let is_first = used.functions.first().is_some_and(|(function, _)| *function == 0);
        if is_first && counts.created + counts.refused < expected {
            let found = counts.created;
            return Err(Error::Wrong(format!(
                "{found} flows of {} were found; expected {expected}",
                used.name
            )));
        }
    }
    let all = counts.iter().fold(Counts::default(), |all, &counts| all + counts);
    let if_asked = |is_asked: bool, value: u64| if is_asked { json!(value) } else { json!(null) };
    let measurement = |(offered, rounds, waited): (Option<f64>, Vec<Round>, Vec<Vec<f64>>)| {
        // Microseconds, the median over the rounds.
        let latency = |share: f64| {
            let of_rounds = sorted(waited.iter().map(|waited| quantile(waited, share) / 1e3).collect());
            offered.map(|_| json!(rounded(quantile(&of_rounds, 0.5)))).unwrap_or_default()
        };
        Measurement {
            workload: options.workload.clone(),
            classifier: None,
            batch: options.batch,
            device: "cpu",
            packets: packets as u64,
            passes: 1,
            more: vec![
                ("workers", json!(options.workers)),
                ("shared", if shared.is_empty() { Value::Null } else { json!(shared.join(", ")) }),
                ("flows", json!(flows)),
                ("distribution", json!(options.distribution.name())),
                ("packet_size", json!(options.packet_size)),
                ("passed", json!(passed as f64 / judged as f64)),
                ("new_flows", if_asked(options.new_flows > 0, options.new_flows)),
                ("flood", if_asked(options.flood > 0, flood)),
                ("created", json!(all.created)),
                ("expired", json!(all.expired)),
                ("evicted", json!(all.evicted)),
                ("refused", json!(all.refused)),
                ("offered_mpps", json!(offered)),
                ("latency_us_p50", latency(0.5)),
                ("latency_us_p99", latency(0.99)),
                ("latency_us_p999", latency(0.999)),
                ("latency_us_max", latency(1.0)),
            ],
            rounds,
        }
    };
    Ok(measured.into_iter().map(measurement).collect())
}

/// Packets that workers judged.
fn judged(runners: &[Runner<'_>]) -> u64 {
    runners.iter().map(|runner| runner.judged).sum()
}

/// What a thread came to.
fn joined<T>(thread: thread::ScopedJoinHandle<'_, Result<T, Error>>) -> Result<T, Error> {
    thread.join().unwrap_or(Err(packetloom_engine::Error::Worker.into()))
}

/// Has all workers go around for a time, with packets that come at steps of so many nanoseconds to each, if they are offered.
fn go(runners: &mut [Runner<'_>], step: Option<f64>) -> (Result<(), Error>, Round) {
    let start = Barrier::new(runners.len() + 1);
    let stop = AtomicBool::new(false);
    measure(Clock::Process, || {
        thread::scope(|scope| {
            let (start, stop) = (&start, &stop);
            let running: Vec<_> = runners
                .iter_mut()
                .map(|runner| {
                    scope.spawn(move || {
                        start.wait();
                        match step {
                            Some(step) => runner.run_offered(stop, step),
                            None => runner.run(stop),
                        }
                    })
                })
                .collect();
            start.wait();
            thread::sleep(TIME);
            stop.store(true, Ordering::Relaxed);
            running.into_iter().try_for_each(joined)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aimed_flows_meet_in_no_table_with_seeds() {
        let numbers = aimed(100_000, 6400);
        assert!(numbers.is_sorted_by(|one, next| one < next));
        let counts = |seeds| {
            let table = States::new(KeyForm::Whole, 1, 1, 0, u64::MAX, states::WhenFull::Evict, seeds);
            let mut counts = [0; SHARES as usize];
            for &number in &numbers {
                counts[share(&table, number, 100_000) as usize] += 1;
            }
            counts
        };
        assert_eq!(counts([0, 0])[0], 6400);
        // 100 each, more or less.
        assert!(counts([1, 2]).iter().all(|count| (50..150).contains(count)), "{:?}", counts([1, 2]));
        // There are no more.
        assert!(aimed(1, PORTS).len() < 2000);
    }
}
