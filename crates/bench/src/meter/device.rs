//! The flow meter on a device: bursts of headers to flow records, beside what a core makes of the same capture.
//!
//! No timeout cuts a flow: a record is a flow of the whole capture, as the CPU's meter has it without timeouts. Before anything is timed, and
//! again after it, the device's records are compared with those of the CPU's meter, every byte of them.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::path::PathBuf;
use std::time::Instant;

use packetloom_device::{Device, Id};
use packetloom_engine::chain::{Device as Place, Run};
use packetloom_export::json::write_record;
use packetloom_io::input::Stop;
use packetloom_nf::meter::Config;
use packetloom_nf::units::{MaxFlows, Span};
use packetloom_packet::FlowRecord;
use serde_json::{Value, json};

use super::feed::{Course, Held};
use super::kernels::{Flow, Hash, Kernels, Parse, Shape, SliceBytes, Stage, is_gpu, words};
use super::quality::{self, Quality};
use super::records::records;
use super::{once, plan};
use crate::Error;
use crate::acl::interrupted;
use crate::sample::{Measurement, rounded};

/// Launches of a round at most: with more bursts than that, a round is over the first packets alone.
const LAUNCHES: usize = 20_000;

/// Where packets are before they are metered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PacketMemory {
    /// Slices in the device's memory.
    #[default]
    Device,
    /// Slices in this machine's memory, copied to the device burst by burst.
    Copied,
    /// Slices in this machine's memory, where kernels read them.
    Mapped,
    /// The capture: its frames are found, slices are copied together and to the device burst by burst, records are written to a file.
    Capture,
}

impl PacketMemory {
    const ALL: [Self; 4] = [Self::Device, Self::Copied, Self::Mapped, Self::Capture];

    /// The word for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Device => "device",
            Self::Copied => "copied",
            Self::Mapped => "mapped",
            Self::Capture => "capture",
        }
    }
}

/// How bursts are launched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Launch {
    /// A launch for each.
    #[default]
    Burst,
    /// One launch, whose kernel stays and is told of bursts.
    Resident,
}

impl Launch {
    const ALL: [Self; 2] = [Self::Burst, Self::Resident];

    /// The word for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Burst => "burst",
            Self::Resident => "resident",
        }
    }
}

words!(PacketMemory, "memory"; Launch, "way of launching");

/// What is run: each of these lists with each of the others.
#[derive(Clone, Debug)]
pub struct Options {
    /// The captures.
    pub captures: Vec<PathBuf>,
    /// Where the CPU's records are written, and those of [`PacketMemory::Capture`].
    pub output: PathBuf,
    /// Packets of a launch.
    pub bursts: Vec<usize>,
    /// Items of a group; none for what suits the device.
    pub blocks: Vec<u32>,
    /// Bytes of each frame.
    pub slices: Vec<SliceBytes>,
    /// Packets of an item at a time, 1 or 2.
    pub keys_per_thread: Vec<u32>,
    /// PacketMemory where kernels parse.
    pub parses: Vec<Parse>,
    /// Where packets are.
    pub memories: Vec<PacketMemory>,
    /// How bursts are launched.
    pub launches: Vec<Launch>,
    /// Hash functions.
    pub hashes: Vec<Hash>,
    /// Where kernels end.
    pub stages: Vec<Stage>,
    /// Slots of each table; unless given, twice as many as there are flows.
    pub slots: Option<u32>,
    /// Queues that launches take turns in.
    pub in_flight: usize,
    /// Rounds, after one that is not timed.
    pub rounds: usize,
    /// Name of the workload.
    pub workload: String,
}

/// One of them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Point {
    pub(super) shape: Shape,
    pub(super) memory: PacketMemory,
    pub(super) launch: Launch,
    pub(super) burst: usize,
}

impl Options {
    /// All combinations. What is read anew for a point stands outermost.
    fn points(&self) -> Vec<Point> {
        let block = |&block| Shape { block: Some(block), ..Shape::default() };
        let mut shapes: Vec<_> = self.blocks.iter().map(block).collect();
        if shapes.is_empty() {
            shapes.push(Shape::default());
        }
        shapes = times(&self.stages, &shapes, |shape, &stage| Shape { stage, ..shape });
        shapes = times(&self.hashes, &shapes, |shape, &hash| Shape { hash, ..shape });
        shapes = times(&self.keys_per_thread, &shapes, |shape, &keys| Shape { keys, ..shape });
        shapes = times(&self.parses, &shapes, |shape, &parse| Shape { parse, ..shape });
        let point = |&shape| Point { shape, memory: PacketMemory::Device, launch: Launch::Burst, burst: 1 };
        let points: Vec<_> = shapes.iter().map(point).collect();
        let points = times(&self.launches, &points, |point, &launch| Point { launch, ..point });
        let points = times(&self.memories, &points, |point, &memory| Point { memory, ..point });
        let points = times(&self.slices, &points, |point, &slice| {
            let shape = Shape { slice, ..point.shape };
            Point { shape, ..point }
        });
        let burst =
            |point: &Point| self.bursts.iter().map(|&burst| Point { burst, ..*point }).collect::<Vec<_>>();
        points.iter().flat_map(burst).collect()
    }
}

/// What each of `all` becomes with each of `values`, those with the same value side by side.
fn times<T: Copy, V>(values: &[V], all: &[T], with: impl Fn(T, &V) -> T) -> Vec<T> {
    values.iter().flat_map(|value| all.iter().map(|&one| with(one, value)).collect::<Vec<_>>()).collect()
}

/// Measures the meter on a device: a measurement for each combination of what is asked for.
///
/// # Errors
/// A file that cannot be read or written; [`Error::Wrong`] where records differ from the CPU's; [`Error::Device`] where the device fails or cannot do
/// what is asked; [`Error::Empty`]; [`Error::Interrupted`].
pub fn run(device: &Device, options: &Options, stop: &Stop) -> Result<Vec<Measurement>, Error> {
    let expected = Expected::new(options, stop)?;
    let seed = RandomState::new().hash_one(0u8);
    let mut bench = Bench { device, options, stop, expected, held: None, seed, qualities: Vec::new() };
    options.points().into_iter().map(|point| bench.measure(point)).collect()
}

/// What the CPU's meter makes of the captures.
struct Expected {
    /// The records' lines, in order of flows' first packets.
    text: String,
    packets: u32,
    counted: u64,
    /// Flows of each IP version.
    flows: [u32; 2],
}

impl Expected {
    fn new(options: &Options, stop: &Stop) -> Result<Self, Error> {
        // A device or a pipe cannot be read again.
        let output = &options.output;
        if output.metadata().is_ok_and(|metadata| !metadata.is_file()) {
            let why =
                format!("records are compared with those in {}; expected a regular file", output.display());
            return Err(packetloom_device::Error::Misuse(why).into());
        }
        let cpu = super::Options {
            captures: options.captures.clone(),
            output: options.output.clone(),
            config: Config {
                idle_timeout: Span::from_secs(0),
                active_timeout: Span::from_secs(0),
                max_flows: MaxFlows::clamped(u64::MAX),
                end_of_flow: false,
                vlan_in_key: false,
                framings: Default::default(),
                output: None,
                fields: Config::default_fields(),
                format: Default::default(),
                export: Vec::new(),
                reports: None,
            },
            run: Run::default(),
            rounds: 1,
            workload: String::new(),
        };
        let summary = once(&cpu, &plan(&cpu, Place::Cpu)?, None, stop)?;
        let packets = summary["received"].as_u64().unwrap_or(0);
        if packets == 0 {
            return Err(Error::Empty);
        }
        let Some(packets) = u32::try_from(packets).ok().filter(|&packets| packets <= 1 << 31) else {
            let why = format!("{packets} packets; expected at most {} with a device", 1u32 << 31);
            return Err(packetloom_device::Error::Misuse(why).into());
        };
        let text = std::fs::read_to_string(&options.output)
            .map_err(|e| packetloom_io::Error::io(options.output.display().to_string(), e))?;
        let v6 = text.lines().filter(|line| line.contains("\"ipVersion\":6")).count();
        let flows = [text.lines().count() - v6, v6].map(|flows| flows as u32);
        let counted = summary["functions"][0]["counted_packets"].as_u64().unwrap_or(0);
        Ok(Self { text, packets, counted, flows })
    }

    /// Compares records with these.
    fn check(&self, records: &[FlowRecord], what: &str) -> Result<(), Error> {
        let mut text = String::with_capacity(self.text.len());
        records.iter().for_each(|record| write_record(&mut text, record));
        if text == self.text {
            return Ok(());
        }
        // Flows may begin at the same time where captures are several.
        let sorted = |text: &str| {
            let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
            lines.sort_unstable();
            lines
        };
        let (found, expected) = (sorted(&text), sorted(&self.text));
        if found == expected {
            return Ok(());
        }
        let differs = found.iter().find(|line| expected.binary_search(line).is_err());
        Err(Error::Wrong(format!(
            "{what}: {} records, {} of the CPU's meter; the first that it has not: {}",
            found.len(),
            expected.len(),
            differs.map_or("none", String::as_str)
        )))
    }
}

/// What points have in common.
struct Bench<'a> {
    device: &'a Device,
    options: &'a Options,
    stop: &'a Stop,
    expected: Expected,
    held: Option<Held>,
    seed: u64,
    /// Of flows of the capture, and of aimed keys.
    qualities: Vec<(Hash, [Quality; 2])>,
}

impl Bench<'_> {
    fn measure(&mut self, point: Point) -> Result<Measurement, Error> {
        interrupted(self.stop)?;
        self.refuse(point)?;
        let what = format!("{} on {}", self.options.workload, self.device.description().id);
        let packets = self.expected.packets as usize;
        let slots = match self.options.slots {
            Some(slots) => [slots; 2],
            None => self.expected.flows.map(|flows| (flows.saturating_mul(2)).max(64)),
        };
        self.hold(point)?;
        let in_flight = self.options.in_flight;
        let mut course = Course::new(self.device, point, slots, packets, in_flight, self.seed)?;
        let is_whole = point.shape.stage == Stage::All;
        let takes_turns = point.launch == Launch::Burst && point.memory != PacketMemory::Capture;
        let most = if takes_turns { LAUNCHES } else { usize::MAX };
        let timed = packets.min(most.saturating_mul(point.burst));
        let (mut rounds, mut records_ms, mut handed, mut full, mut quality) = (Vec::new(), 0.0, 0, 0, None);
        // The first time around is not timed.
        for number in 0..=self.options.rounds {
            interrupted(self.stop)?;
            let most = if number == 0 { usize::MAX } else { most };
            let Options { captures, output, .. } = self.options;
            let lap = course.lap(self.held.as_mut(), most, captures, output, self.stop)?;
            if number > 0 {
                rounds.push(lap.round);
            }
            // The first and the last one are compared, of those over all packets.
            let is_compared = number == 0 || number == self.options.rounds;
            if !is_compared || number > 0 && timed < packets {
                continue;
            }
            let found = &lap.found;
            if !is_whole {
                let seen = found.counted + found.rejected + found.handed.len() as u64;
                if seen != packets as u64 {
                    return Err(Error::Wrong(format!("{what}: {seen} of {packets} packets were looked at")));
                }
                continue;
            }
            let start = Instant::now();
            let (all, counted) = match lap.records {
                Some(records) => records,
                None => {
                    let clock = self.held.as_ref().map_or(&[][..], |held| &held.clock);
                    records(found, clock, captures, self.stop)?
                }
            };
            records_ms = (lap.emitted + start.elapsed()).as_secs_f64() * 1e3;
            self.expected.check(&all, &what)?;
            if counted != self.expected.counted {
                let expected = self.expected.counted;
                let why =
                    format!("{what}: {counted} packets in records, {expected} in those of the CPU's meter");
                return Err(Error::Wrong(why));
            }
            (handed, full) = (found.handed.len(), found.full);
            quality = Some(self.quality(point.shape.hash, &course.kernels, &found.flows)?);
        }
        let shape = point.shape;
        let mut more = vec![
            ("workers", json!(1)),
            ("records", json!(u64::from(self.expected.flows[0]) + u64::from(self.expected.flows[1]))),
            ("on", json!(self.device.description().name)),
            ("memory", json!(point.memory.name())),
            ("launch", json!(point.launch.name())),
            ("in_flight", json!(in_flight)),
            ("slice", json!(shape.slice.get())),
            ("parse", json!(shape.parse.name())),
            ("block", json!(course.kernels.block)),
            ("keys_per_thread", json!(shape.keys)),
            ("hash", json!(shape.hash.name())),
            ("stage", json!(shape.stage.name())),
            ("table_mb", json!(rounded(course.tables.bytes() as f64 / 1e6))),
        ];
        // Its kernels are a process of their own, whose time is not in that of this one.
        if self.device.description().id == Id::Host {
            let of_cpu = ["mpps_cpu", "cpu_ns_per_packet", "cpu_p25", "cpu_p75"];
            more.extend(of_cpu.map(|name| (name, Value::Null)));
        }
        if let Some([own, aimed]) = quality {
            more.extend([
                ("handed_back", json!(handed)),
                ("without_room", json!(full)),
                ("records_ms", json!(rounded(records_ms))),
                ("chi_square", json!(rounded(own.chi_square))),
                ("longest_chain", json!(own.longest)),
                ("aimed_chi_square", json!(rounded(aimed.chi_square))),
                ("aimed_longest_chain", json!(aimed.longest)),
            ]);
        }
        Ok(Measurement {
            workload: self.options.workload.clone(),
            classifier: None,
            batch: point.burst,
            device: "device",
            packets: timed as u64,
            passes: 1,
            rounds,
            more,
        })
    }

    /// What cannot be, before anything is done.
    fn refuse(&self, point: Point) -> Result<(), Error> {
        let is_resident = point.launch == Launch::Resident;
        if is_resident && matches!(point.memory, PacketMemory::Copied | PacketMemory::Capture) {
            let memory = point.memory;
            let why = format!("--memory {memory} with --launch resident; expected --memory device or mapped");
            return Err(packetloom_device::Error::Misuse(why).into());
        }
        let description = self.device.description();
        if is_resident && !is_gpu(self.device) && description.id != Id::Host {
            let why = "its kernels do not all run at a time, beside this machine's; --launch resident expects a GPU".into();
            let device = description.id.to_string();
            return Err(packetloom_device::Error::Unavailable { device, why }.into());
        }
        if (is_resident || point.memory == PacketMemory::Mapped) && !description.shares {
            let why = "it does not share this machine's memory, which its kernels are to read".into();
            let device = description.id.to_string();
            return Err(packetloom_device::Error::Unavailable { device, why }.into());
        }
        Ok(())
    }

    /// Has slices of all packets where a point wants them; of a capture none.
    fn hold(&mut self, point: Point) -> Result<(), Error> {
        let slice = point.shape.slice;
        if point.memory == PacketMemory::Capture {
            self.held = None;
        } else if !self.held.as_ref().is_some_and(|held| held.serves(slice, point.memory)) {
            // The memory of the others first.
            self.held = None;
            let (packets, captures) = (self.expected.packets as usize, &self.options.captures);
            self.held = Some(Held::new(self.device, captures, packets, slice, point.memory, self.stop)?);
        }
        Ok(())
    }

    /// How evenly a function spreads the capture's flows, and aimed keys.
    fn quality(&mut self, hash: Hash, kernels: &Kernels, flows: &[Flow]) -> Result<[Quality; 2], Error> {
        if let Some((_, known)) = self.qualities.iter().find(|(of, _)| *of == hash) {
            return Ok(*known);
        }
        let own = quality::of_flows(self.device, kernels, flows, self.seed)?;
        let both = [own, quality::of_aimed(self.device, kernels, self.seed)?];
        self.qualities.push((hash, both));
        Ok(both)
    }
}
