//! How packets come to a meter on a device: laps over a capture, burst by burst.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use packetloom_device::{Buffer, Device, Memory, Queue, Shared};
use packetloom_export::json::write_record;
use packetloom_io::input::Stop;
use packetloom_io::output::Output;
use packetloom_packet::{FlowRecord, FrameRef, LinkType};

use super::device::{Launch, PacketMemory, Point};
use super::kernels::{Burst, Feed, Found, Kernels, SliceBytes, Slices, Tables, is_gpu};
use super::records::{read, records};
use crate::Error;
use crate::sample::{Clock, Round, measure};

/// Launches of a queue after which it is waited for, since it holds what it was given until then.
const UNFINISHED: usize = 256;
/// In place of a frame's length: the host must look at it. The same as in the kernel.
const NO_LEN: u16 = u16::MAX;
/// Bytes of records that are written at a time.
const WRITTEN: usize = 1 << 20;
/// How often a group of a kernel that stays asks for news in vain before it leaves: seconds, at least.
const PATIENCE: u32 = 1 << 28;
/// How often the host asks a kernel that stays in vain before it looks whether that is still there.
const ASKED: u32 = 1 << 16;
/// In place of a number of bursts: the kernel is to leave.
const LEAVE: u64 = u64::MAX;

/// The captures changed since their packets were counted.
fn changed() -> Error {
    Error::Wrong("the capture has other packets than when it was read before".into())
}

/// Memory of either side.
#[derive(Debug)]
enum Place {
    Device(Memory),
    Host(Shared),
}

impl Place {
    fn buffer(&self) -> Buffer<'_> {
        match self {
            Self::Device(memory) => memory.into(),
            Self::Host(shared) => shared.into(),
        }
    }

    /// A copy in the device's memory.
    fn copied(mut shared: Shared, device: &Device) -> Result<Self, Error> {
        let (bytes, memory) = (shared.len(), device.memory(shared.len())?);
        let mut queue = device.queue()?;
        queue.copy_in(&mut shared, 0..bytes, &memory, 0)?;
        queue.finish()?;
        Ok(Self::Device(memory))
    }
}

/// Slices of all packets, for a device.
#[derive(Debug)]
pub(super) struct Held {
    slice: SliceBytes,
    frames: Place,
    lens: Place,
    times: Place,
    link: LinkType,
    /// Times by the packets' numbers.
    pub(super) clock: Vec<u64>,
}

impl Held {
    /// Reads so many packets from captures, to where they are to be.
    pub(super) fn new(
        device: &Device,
        captures: &[PathBuf],
        packets: usize,
        slice: SliceBytes,
        memory: PacketMemory,
        stop: &Stop,
    ) -> Result<Self, Error> {
        let mut staging = Staging::new(device, slice, packets)?;
        let mut clock = Vec::with_capacity(packets);
        let mut link = None;
        read(captures, stop, |frame, bytes| {
            if clock.len() == packets {
                return Err(changed());
            }
            staging.push(frame, bytes, *link.get_or_insert(frame.link));
            clock.push(frame.time.as_nanos());
            Ok(())
        })?;
        if clock.len() != packets {
            return Err(changed());
        }
        let Staging { frames, lens, times, .. } = staging;
        let place = |shared| match memory {
            PacketMemory::Device => Place::copied(shared, device),
            _ => Ok(Place::Host(shared)),
        };
        let (frames, lens, times) = (place(frames)?, place(lens)?, place(times)?);
        Ok(Self { slice, frames, lens, times, link: link.unwrap_or(LinkType::NONE), clock })
    }

    /// Whether they are as a point wants them.
    pub(super) fn serves(&self, slice: SliceBytes, memory: PacketMemory) -> bool {
        self.slice == slice && matches!(self.frames, Place::Device(_)) == (memory == PacketMemory::Device)
    }

    fn slices(&self) -> Slices<'_> {
        let [frames, lens, times] = [&self.frames, &self.lens, &self.times].map(Place::buffer);
        Slices { frames, lens, times, link: self.link }
    }

    /// Queues that a burst is copied to a lane.
    fn copy(&mut self, begin: usize, count: usize, lane: &mut Lane) -> Result<(), Error> {
        let Lane { queue, frames, lens, times, .. } = lane;
        let memories = [(&mut self.frames, frames), (&mut self.lens, lens), (&mut self.times, times)];
        for ((from, to), bytes) in memories.into_iter().zip(bytes_of(self.slice)) {
            if let Place::Host(shared) = from {
                queue.copy_in(shared, begin * bytes..(begin + count) * bytes, to, 0)?;
            }
        }
        Ok(())
    }
}

/// Bytes that a packet has of slices, lengths and times.
fn bytes_of(slice: SliceBytes) -> [usize; 3] {
    [slice.get(), size_of::<u16>(), size_of::<u64>()]
}

/// Slices that a core copies together, in memory that a device copies from or reads.
#[derive(Debug)]
struct Staging {
    frames: Shared,
    lens: Shared,
    times: Shared,
    slice: SliceBytes,
    count: usize,
}

impl Staging {
    fn new(device: &Device, slice: SliceBytes, packets: usize) -> Result<Self, Error> {
        let [frames, lens, times] = bytes_of(slice).map(|bytes| device.share(packets * bytes));
        Ok(Self { frames: frames?, lens: lens?, times: times?, slice, count: 0 })
    }

    /// Adds a frame, where there is room.
    fn push(&mut self, frame: &FrameRef, bytes: &[u8], link: LinkType) {
        let at = self.count;
        let [slice, of_len, of_time] = bytes_of(self.slice);
        self.frames.write(at * slice, &bytes[..bytes.len().min(slice)]);
        // Only whether the headers are whole depends on the length: they are, long before this.
        let len = if frame.link == link { bytes.len().min((NO_LEN - 1).into()) as u16 } else { NO_LEN };
        self.lens.write(at * of_len, &len.to_ne_bytes());
        self.times.write(at * of_time, &frame.time.as_nanos().to_ne_bytes());
        self.count += 1;
    }

    /// Queues that they are copied to a lane.
    fn copy(&mut self, lane: &mut Lane) -> Result<(), Error> {
        let Lane { queue, frames, lens, times, .. } = lane;
        let memories = [(&mut self.frames, frames), (&mut self.lens, lens), (&mut self.times, times)];
        for ((from, to), bytes) in memories.into_iter().zip(bytes_of(self.slice)) {
            queue.copy_in(from, 0..self.count * bytes, to, 0)?;
        }
        Ok(())
    }
}

/// A queue, and memory of the device for a burst that is copied there.
#[derive(Debug)]
struct Lane {
    queue: Queue,
    frames: Memory,
    lens: Memory,
    times: Memory,
    launches: usize,
}

impl Lane {
    fn new(device: &Device, slice: SliceBytes, packets: usize) -> Result<Self, Error> {
        let [frames, lens, times] = bytes_of(slice).map(|bytes| device.memory(packets * bytes));
        Ok(Self { queue: device.queue()?, frames: frames?, lens: lens?, times: times?, launches: 0 })
    }

    /// Queues that a burst is metered which was copied here.
    fn meter(
        &mut self,
        kernels: &Kernels,
        link: LinkType,
        burst: Burst,
        tables: &Tables,
        seed: u64,
    ) -> Result<(), Error> {
        let slices = Slices {
            frames: (&self.frames).into(),
            lens: (&self.lens).into(),
            times: (&self.times).into(),
            link,
        };
        kernels.meter(&mut self.queue, slices, burst, tables, seed)
    }

    /// Waits now and then.
    fn launched(&mut self) -> Result<(), Error> {
        self.launches += 1;
        if self.launches.is_multiple_of(UNFINISHED) { Ok(self.queue.finish()?) } else { Ok(()) }
    }
}

/// What a kernel that stays and the host tell each other.
#[derive(Debug)]
struct Talk {
    news: Shared,
    told: Shared,
    tickets: Memory,
}

/// A point that is measured: its kernels, tables and queues.
#[derive(Debug)]
pub(super) struct Course {
    device: Device,
    point: Point,
    pub(super) kernels: Kernels,
    pub(super) tables: Tables,
    lanes: Vec<Lane>,
    stagings: Vec<Staging>,
    talk: Option<Talk>,
    packets: usize,
    pub(super) seed: u64,
}

/// What came of a lap.
#[derive(Debug)]
pub(super) struct Lap {
    pub(super) round: Round,
    pub(super) found: Found,
    /// Time in which flows left the device.
    pub(super) emitted: Duration,
    /// Of a lap over the capture: its records, in order, and how many packets are in them.
    pub(super) records: Option<(Vec<FlowRecord>, u64)>,
}

impl Course {
    /// For so many packets, with so many slots for flows of each IP version.
    pub(super) fn new(
        device: &Device,
        point: Point,
        slots: [u32; 2],
        packets: usize,
        in_flight: usize,
        seed: u64,
    ) -> Result<Self, Error> {
        let slice = point.shape.slice;
        let burst = point.burst.min(packets);
        let is_copied = matches!(point.memory, PacketMemory::Copied | PacketMemory::Capture);
        let room = if is_copied { burst } else { 0 };
        let lanes = (0..in_flight).map(|_| Lane::new(device, slice, room)).collect::<Result<_, _>>()?;
        let stagings = match point.memory {
            PacketMemory::Capture => {
                (0..in_flight).map(|_| Staging::new(device, slice, burst)).collect::<Result<_, _>>()?
            }
            _ => Vec::new(),
        };
        let talk = match point.launch {
            Launch::Burst => None,
            Launch::Resident => {
                let bursts = packets.div_ceil(burst);
                Some(Talk {
                    news: device.share(8)?,
                    told: device.share(bursts * 8)?,
                    tickets: device.memory((bursts + 1) * 4)?,
                })
            }
        };
        Ok(Self {
            device: device.clone(),
            kernels: Kernels::new(device, point.shape)?,
            tables: Tables::new(device, slots, packets as u32)?,
            point: Point { burst, ..point },
            lanes,
            stagings,
            talk,
            packets,
            seed,
        })
    }

    /// Meters the capture once, from empty tables, or only so many bursts of it.
    pub(super) fn lap(
        &mut self,
        held: Option<&mut Held>,
        most: usize,
        captures: &[PathBuf],
        output: &std::path::Path,
        stop: &Stop,
    ) -> Result<Lap, Error> {
        let queue = &mut self.lanes[0].queue;
        self.tables.clear(queue)?;
        if let Some(talk) = &self.talk {
            queue.clear(&talk.tickets)?;
        }
        queue.finish()?;
        let Some(held) = held else { return self.lap_of_capture(captures, output, stop) };
        let (done, round) = measure(Clock::Process, || match self.talk {
            None => self.bursts(held, most),
            Some(_) => self.resident(held),
        });
        done?;
        let start = Instant::now();
        let found = self.kernels.collect(&self.device, &mut self.lanes[0].queue, &self.tables)?;
        Ok(Lap { round, found, emitted: start.elapsed(), records: None })
    }

    /// A launch for each burst.
    fn bursts(&mut self, held: &mut Held, most: usize) -> Result<(), Error> {
        let Self { point, kernels, tables, lanes, packets, seed, .. } = self;
        let (packets, in_flight) = (*packets, lanes.len());
        for number in 0..packets.div_ceil(point.burst).min(most) {
            let begin = number * point.burst;
            let count = point.burst.min(packets - begin);
            let lane = &mut lanes[number % in_flight];
            let burst = Burst { from: begin as u32, count: count as u32, number: begin as u32 };
            if point.memory == PacketMemory::Copied {
                held.copy(begin, count, lane)?;
                lane.meter(kernels, held.link, Burst { from: 0, ..burst }, tables, *seed)?;
            } else {
                kernels.meter(&mut lane.queue, held.slices(), burst, tables, *seed)?;
            }
            lane.launched()?;
        }
        lanes.iter_mut().try_for_each(|lane| Ok(lane.queue.finish()?))
    }

    /// One launch, which is told of bursts; as many are published as there may be in flight.
    fn resident(&mut self, held: &Held) -> Result<(), Error> {
        let Self { point, kernels, tables, lanes, talk, packets, seed, .. } = self;
        let Some(talk) = talk else { return Ok(()) };
        let bursts = packets.div_ceil(point.burst);
        // The host's kernels do not run beside it: all is published before.
        let in_flight = if is_gpu(&self.device) { lanes.len() } else { bursts };
        talk.told.write(0, &vec![0; bursts * 8]);
        let mut published = bursts.min(in_flight);
        talk.news.store_words(0, &[published as u64]);
        let feed = Feed {
            burst: point.burst as u32,
            news: &talk.news,
            told: &talk.told,
            tickets: &talk.tickets,
            patience: PATIENCE,
        };
        let queue = &mut lanes[0].queue;
        kernels.reside(queue, held.slices(), *packets as u32, &feed, tables, *seed)?;
        let (mut done, mut asked) = (0, 0u32);
        while done < bursts {
            if published < bursts && published - done < in_flight {
                published = bursts.min(done + in_flight);
                talk.news.store_words(0, &[published as u64]);
            }
            let mut word = [0];
            talk.told.load_words(done * 8, &mut word);
            if word[0] != 0 {
                (done, asked) = (done + 1, 0);
                continue;
            }
            asked = asked.wrapping_add(1);
            if asked.is_multiple_of(ASKED) && queue.is_finished()? {
                // It may have told just before.
                talk.told.load_words(done * 8, &mut word);
                if word[0] == 0 {
                    return Err(Error::Wrong(format!("the kernel left after {done} of {bursts} bursts")));
                }
            }
        }
        talk.news.store_words(0, &[LEAVE]);
        Ok(queue.finish()?)
    }

    /// PacketMemory a capture to a file of records.
    fn lap_of_capture(
        &mut self,
        captures: &[PathBuf],
        output: &std::path::Path,
        stop: &Stop,
    ) -> Result<Lap, Error> {
        let (done, round) = measure(Clock::Process, || {
            let clock = self.stage_capture(captures, stop)?;
            let start = Instant::now();
            let found = self.kernels.collect(&self.device, &mut self.lanes[0].queue, &self.tables)?;
            let emitted = start.elapsed();
            let all = records(&found, &clock, captures, stop)?;
            write(&all.0, output)?;
            Ok::<_, Error>((found, emitted, all))
        });
        let (found, emitted, all) = done?;
        Ok(Lap { round, found, emitted, records: Some(all) })
    }

    /// Copies slices together and to the device, burst by burst, and has them metered; the packets' times.
    fn stage_capture(&mut self, captures: &[PathBuf], stop: &Stop) -> Result<Vec<u64>, Error> {
        let Self { point, kernels, tables, lanes, stagings, packets, seed, .. } = self;
        let mut clock: Vec<u64> = Vec::with_capacity(*packets);
        let mut link = None;
        let mut at = 0;
        let submit = |at: usize, staging: &mut Staging, lane: &mut Lane, end: usize, link: LinkType| {
            let count = staging.count;
            staging.copy(lane)?;
            let burst = Burst { from: 0, count: count as u32, number: (end - count) as u32 };
            lane.meter(kernels, link, burst, tables, *seed)?;
            staging.count = 0;
            Ok::<_, Error>(at + 1)
        };
        let in_flight = lanes.len();
        read(captures, stop, |frame, bytes| {
            if clock.len() == *packets {
                return Err(changed());
            }
            let (staging, lane) = (&mut stagings[at % in_flight], &mut lanes[at % in_flight]);
            if staging.count == 0 {
                // What was copied from it before must be there.
                lane.queue.finish()?;
            }
            let link = *link.get_or_insert(frame.link);
            staging.push(frame, bytes, link);
            clock.push(frame.time.as_nanos());
            if staging.count == point.burst {
                at = submit(at, staging, lane, clock.len(), link)?;
            }
            Ok(())
        })?;
        let (staging, lane) = (&mut stagings[at % in_flight], &mut lanes[at % in_flight]);
        if staging.count > 0 {
            submit(at, staging, lane, clock.len(), link.unwrap_or(LinkType::NONE))?;
        }
        lanes.iter_mut().try_for_each(|lane| lane.queue.finish())?;
        if clock.len() == *packets { Ok(clock) } else { Err(changed()) }
    }
}

/// Writes records to a file.
fn write(records: &[FlowRecord], path: &std::path::Path) -> Result<(), Error> {
    let mut output = Output::create(path)?;
    let mut text = String::with_capacity(WRITTEN + 1024);
    for record in records {
        write_record(&mut text, record);
        if text.len() >= WRITTEN {
            output.write(text.as_bytes())?;
            text.clear();
        }
    }
    output.write(text.as_bytes())?;
    Ok(output.finish()?)
}
