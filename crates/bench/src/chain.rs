//! A chain over packets in memory: rings of frames, one for each worker, that are gone around in the order of no table.

use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use packetloom_engine::Plan;
use packetloom_engine::executor::Worker;
use packetloom_io::input::Stop;
use packetloom_nf::flows::{By, Counts};
use packetloom_packet::{Arena, Batch, FrameRef, Key, KeyBits, LinkType, MatchKey4, Timestamp, protocol};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use serde_json::json;

use crate::Error;
use crate::acl::interrupted;
use crate::sample::{Clock, Measurement, Round, measure};

/// Bytes of frames in all rings together, at least: four times the largest cache, so that no frame is in a cache when it comes.
const CACHES: usize = 4;
/// Where the system does not say how large that is.
const CACHE: usize = 32 << 20;
/// Nanoseconds of packets' time from one packet to the next of a worker.
const GAP: u64 = 100;
/// Time that a round takes at least.
const TIME: Duration = Duration::from_millis(300);
/// The least packets have, without their check sequence (IEEE 802.3).
const SHORTEST: usize = 60;
/// One flow in so many is an elephant, and together they have so much of the packets.
const ELEPHANTS: (u64, f64) = (1000, 0.8);
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
}

/// What is run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Flows.
    pub flows: u64,
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
    /// Rounds.
    pub rounds: usize,
    /// Name of the workload.
    pub workload: String,
}

/// Memory with frames.
struct Frames(Vec<u8>);

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

/// The flow of the next packet.
fn draw(random: &mut Xoshiro256PlusPlus, options: &Options) -> u64 {
    let share = |random: &mut Xoshiro256PlusPlus| (random.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
    let any = |random: &mut Xoshiro256PlusPlus, of: u64| {
        ((u128::from(random.next_u64()) * u128::from(of)) >> 64) as u64
    };
    match options.distribution {
        Distribution::Uniform => any(random, options.flows),
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

/// What the packets are: rings with all of them, and how many different flows and sources they are of.
struct Packets {
    rings: Vec<Ring>,
    flows: u64,
    sources: u64,
}

fn packets(options: &Options, spread: By) -> Packets {
    let len = options.packet_size.saturating_sub(4).max(SHORTEST);
    let stride = (len + 4).next_multiple_of(64);
    let packets = (CACHES * cache() / stride).max(2 * options.flows as usize);
    let mut random = Xoshiro256PlusPlus::seed_from_u64(1);
    // Spread as a network card does, by a hash that is the same for both directions.
    let worker =
        |key: &MatchKey4| ((u128::from(spread.spread_v4(key, 7)) * options.workers as u128) >> 64) as usize;
    let mut memory: Vec<Vec<u8>> = vec![Vec::new(); options.workers];
    let mut seen = vec![false; options.flows as usize];
    let mut sources = vec![false; options.sources as usize];
    for _ in 0..packets {
        let number = draw(&mut random, options);
        seen[number as usize] = true;
        sources[(number % options.sources) as usize] = true;
        // A flow's rank says nothing about its address.
        let key = flow(number, options.sources);
        let mut frame = packetloom_generate::frame(&Key::V4(key));
        frame.resize(len, 0);
        let total = (len - 14) as u16;
        frame[16..18].copy_from_slice(&total.to_be_bytes());
        frame.resize(stride, 0);
        memory[worker(&key)].extend(frame);
    }
    let ring = |memory: Vec<u8>| {
        let count = memory.len() / stride;
        Ring { frames: Arc::new(Frames(memory)), count, stride, len }
    };
    let count = |seen: Vec<bool>| seen.into_iter().filter(|&seen| seen).count() as u64;
    Packets { rings: memory.into_iter().map(ring).collect(), flows: count(seen), sources: count(sources) }
}

/// A worker that goes around its ring.
struct Runner<'a> {
    ring: &'a Ring,
    worker: Worker,
    batch: Batch,
    size: usize,
    /// Where frames that pass are written, with their rewrites: a ring to send from.
    sent: Vec<u8>,
    /// Packets so far, and those that passed.
    packets: u64,
    passed: u64,
}

impl Runner<'_> {
    /// Goes around so often.
    fn go(&mut self, laps: usize) {
        for _ in 0..laps {
            let mut at = 0;
            while at < self.ring.count {
                let end = (at + self.size).min(self.ring.count);
                self.batch.reset(self.ring.frames.clone());
                for number in at..end {
                    self.batch.push(FrameRef {
                        offset: (number * self.ring.stride) as u64,
                        time: Timestamp::from_nanos(self.packets * GAP),
                        len: self.ring.len as u32,
                        wire_len: self.ring.len as u32,
                        link: LinkType::ETHERNET,
                        port: 0,
                    });
                    self.packets += 1;
                }
                self.worker.judge(&mut self.batch);
                self.send();
                at = end;
            }
        }
    }

    /// Writes the frames that pass, as they are to be sent.
    fn send(&mut self) {
        let (stride, len) = (self.ring.stride, self.ring.len);
        let frames = (*self.ring.frames).as_ref();
        let buffers = self.sent.chunks_exact_mut(stride);
        for (index, ((verdict, frame), buffer)) in
            self.batch.verdicts().iter().zip(self.batch.frames()).zip(buffers).enumerate()
        {
            if !verdict.is_pass() {
                continue;
            }
            // Whole cache lines, which is what is fastest.
            let from = &frames[frame.offset as usize..][..stride];
            for (line, from) in buffer.as_chunks_mut::<64>().0.iter_mut().zip(from.as_chunks::<64>().0) {
                *line = *from;
            }
            self.batch.apply_rewrites(index, &mut buffer[..len]);
            self.passed += 1;
        }
    }
}

/// Measures a chain over packets in memory, from frames to what is sent.
///
/// # Errors
/// [`Error::Wrong`] where its counts are not those of the packets; more flows than sources have ports, or several workers for a chain
/// that one must run; [`Error::Interrupted`].
pub fn run(plan: &Plan, options: &Options, stop: &Stop) -> Result<Measurement, Error> {
    let invalid = |why: &str| Err(packetloom_nf::Error::Invalid(why.into()).into());
    let layout = plan.chain().layout();
    let spread = match layout.spread(plan.chain().functions()) {
        None if options.workers > 1 => {
            return invalid(
                "no way to spread packets keeps all packets of each flow together; expected one worker",
            );
        }
        spread => spread.unwrap_or(By::FiveTuple),
    };
    if options.flows > options.sources * PORTS {
        return invalid("more flows than their sources have ports; expected more sources");
    }
    let Packets { rings, flows, sources } = packets(options, spread);
    let mut runners: Vec<_> = rings
        .iter()
        .map(|ring| Runner {
            ring,
            worker: Worker::new(plan, options.workers, options.batch),
            batch: Batch::new(options.batch),
            size: options.batch,
            sent: vec![0; options.batch * ring.stride],
            packets: 0,
            passed: 0,
        })
        .collect();
    let packets: usize = rings.iter().map(|ring| ring.count).sum();
    // All flows are known after this; and it says how long a lap takes.
    let (_, first) = laps(&mut runners, 1);
    let passes = (TIME.as_nanos() / first.wall().as_nanos().max(1)) as usize + 1;
    let mut rounds = Vec::new();
    for _ in 0..options.rounds {
        interrupted(stop)?;
        let ((), round) = laps(&mut runners, passes);
        rounds.push(round);
    }
    let judged: u64 = runners.iter().map(|runner| runner.packets).sum();
    let passed: u64 = runners.iter().map(|runner| runner.passed).sum();
    let mut counts = vec![Counts::default(); layout.definitions.len()];
    for runner in runners {
        for (counts, more) in counts.iter_mut().zip(runner.worker.finish().flows) {
            *counts = *counts + more;
        }
    }
    let expected = (packets * (1 + options.rounds * passes)) as u64;
    if judged != expected {
        return Err(Error::Wrong(format!("{judged} packets were judged; expected {expected}")));
    }
    // Where no packet is dropped before, all flows are found, or refused.
    for (used, counts) in layout.definitions.iter().zip(counts) {
        let expected = if used.definition.by == By::Source { sources } else { flows };
        let is_first = used.functions.first().is_some_and(|(function, _)| *function == 0);
        if is_first && counts.created + counts.refused < expected {
            let found = counts.created;
            return Err(Error::Wrong(format!(
                "{found} flows of {} were found; expected {expected}",
                used.name
            )));
        }
    }
    Ok(Measurement {
        workload: options.workload.clone(),
        classifier: None,
        batch: options.batch,
        device: "cpu",
        packets: packets as u64,
        passes,
        rounds,
        more: vec![
            ("workers", json!(options.workers)),
            ("flows", json!(flows)),
            ("packet_size", json!(options.packet_size)),
            ("passed", json!(passed as f64 / judged as f64)),
        ],
    })
}

/// Has all workers go around so often, at once.
fn laps(runners: &mut [Runner<'_>], laps: usize) -> ((), Round) {
    let start = Barrier::new(runners.len());
    measure(Clock::Process, || {
        thread::scope(|scope| {
            for runner in runners {
                let start = &start;
                scope.spawn(move || {
                    start.wait();
                    runner.go(laps);
                });
            }
        });
    })
}
