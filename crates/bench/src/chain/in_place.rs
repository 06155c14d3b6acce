//! A chain on a device over headers that it reads in this machine's memory, with verdicts and rewritten headers back there.

use std::sync::Arc;

use packetloom_device::{Device, Queue};
use packetloom_engine::offload::frames::Slice;
use packetloom_engine::offload::stateful::Stateful;
use packetloom_engine::offload::stateful::headers::{Lane, Outcome, Port, Slots};
use packetloom_engine::pipeline::{Shared, Worker};
use packetloom_engine::{Plan, offload};
use packetloom_io::input::Stop;
use packetloom_nf::flows::By;
use packetloom_packet::{Batch, LinkType, Timestamp, dissect};
use serde_json::json;

use super::{GAP, Options, Packets, Ring, packets, passes_of, whole_chain};
use crate::Error;
use crate::acl::interrupted;
use crate::sample::{Clock, Measurement, Round, measure};

/// How headers are read.
#[derive(Clone, Copy, Debug)]
pub struct Feed {
    /// Bytes of each frame.
    pub slice: Slice,
    /// Batches on their way at a time.
    pub in_flight: usize,
}

/// Measures a chain on a device that reads headers in this machine's memory, from these to verdicts and rewritten headers in it, with several batches
/// on their way.
///
/// The first lap is compared with what this machine's cores make of it.
///
/// # Errors
/// As [`run_on`](super::run_on); and where the device cannot read this machine's memory, or headers are longer than what is read.
pub fn run_in_place(
    plan: &Plan,
    options: &Options,
    device: &Device,
    feed: Feed,
    stop: &Stop,
) -> Result<Measurement, Error> {
    let options = &Options { workers: 1, ..options.clone() };
    let stateful = whole_chain(plan, options, device)?;
    let batch = stateful.room() as usize;
    let Packets { rings, flows, .. } = packets(options, By::FiveTuple)?;
    let ring = &rings[0];
    let mut flight = Flight::new(plan, device, stateful, ring, feed)?;
    let mut check = Check::new(plan, ring, batch);
    flight.laps(1, |lane, from, _| {
        interrupted(stop)?;
        check.batch(lane, from)
    })?;
    check.end(feed.slice)?;
    let mut outcomes = Vec::new();
    let (mut judged, mut passed) = (0u64, 0u64);
    let mut go = |laps: usize| -> Result<Round, Error> {
        let (done, round) = measure(Clock::Process, || {
            flight.laps(laps, |lane, _, _| {
                lane.outcomes(&mut outcomes);
                judged += outcomes.len() as u64;
                passed += outcomes.iter().map(|outcome| u64::from(outcome.passes())).sum::<u64>();
                Ok(())
            })
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
        batch,
        device: "device",
        packets: ring.count as u64,
        passes,
        rounds,
        more: vec![
            ("on", json!(device.description().id.to_string())),
            ("transport", json!("in-place")),
            ("slice", json!(feed.slice.bytes())),
            ("in_flight", json!(feed.in_flight)),
            ("flows", json!(flows)),
            ("distribution", json!(options.distribution.name())),
            ("packet_size", json!(options.packet_size)),
            ("passed", json!(passed as f64 / judged as f64)),
        ],
    })
}

/// Batches that go around a ring, several at a time.
struct Flight<'a> {
    stateful: Stateful,
    /// The one in which all of them are judged.
    queue: Queue,
    lanes: Vec<Lane>,
    slots: Slots,
    ring: &'a Ring,
    /// Laps before.
    laps: u64,
}

impl<'a> Flight<'a> {
    fn new(
        plan: &Plan,
        device: &Device,
        stateful: Stateful,
        ring: &'a Ring,
        feed: Feed,
    ) -> Result<Self, offload::Error> {
        let batch = stateful.room();
        let port = Arc::new(Port::new(device, feed.slice, plan.chain().settings.run.policy())?);
        let mut slots = Slots::new(device, ring.count as u32, feed.slice, LinkType::ETHERNET)?;
        for number in 0..ring.count as u32 {
            let time = number % batch * GAP as u32;
            slots.put(number, ring.frame(number as usize), LinkType::ETHERNET, Some(time));
        }
        let lanes = (0..feed.in_flight).map(|_| Lane::new(&port, &stateful)).collect::<Result<_, _>>()?;
        Ok(Self { stateful, queue: device.queue()?, lanes, slots, ring, laps: 0 })
    }

    /// Goes around so often; `take` is told of each batch when it is back, in order: its lane, its first packet, and how many there were before
    /// this lap.
    fn laps(
        &mut self,
        laps: usize,
        mut take: impl FnMut(&mut Lane, usize, u64) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let Self { stateful, queue, lanes, slots, ring, laps: before } = self;
        let (count, room) = (ring.count, stateful.room() as usize);
        let per_lap = count.div_ceil(room);
        let batches = per_lap * laps;
        // The first packet of a batch, and those of the laps before it.
        let place =
            |batch: usize| (batch % per_lap * room, (*before + (batch / per_lap) as u64) * count as u64);
        let in_flight = lanes.len();
        let (mut read, mut judged, mut taken) = (0, 0, 0);
        while taken < batches {
            if read < batches && read - taken < in_flight {
                let (from, earlier) = place(read);
                let packets = from as u32..(from + room).min(count) as u32;
                let time = Timestamp::from_nanos((earlier + from as u64) * GAP);
                lanes[read % in_flight].read(slots, packets, time)?;
                read += 1;
            }
            if judged < read && lanes[judged % in_flight].is_finished()? {
                let (from, earlier) = place(judged);
                let look = |packet: u32| {
                    let number = from + packet as usize;
                    let frame = ring.frame(number);
                    let time = Timestamp::from_nanos((earlier + number as u64) * GAP);
                    (dissect(LinkType::ETHERNET, frame, frame.len() as u32), time)
                };
                lanes[judged % in_flight].judge(stateful, queue, look)?;
                judged += 1;
            }
            if taken < judged && lanes[taken % in_flight].is_finished()? {
                let (from, earlier) = place(taken);
                take(&mut lanes[taken % in_flight], from, earlier)?;
                taken += 1;
            }
        }
        *before += laps as u64;
        // All of it is done: nothing that it used is held any longer.
        Ok(queue.finish()?)
    }
}

/// What a core makes of the same packets.
struct Check<'a> {
    ring: &'a Ring,
    worker: Worker,
    frames: Batch,
    outcomes: Vec<Outcome>,
    room: usize,
    wrong: u64,
    for_host: u64,
}

impl<'a> Check<'a> {
    fn new(plan: &Plan, ring: &'a Ring, room: usize) -> Self {
        Self {
            ring,
            worker: Worker::new(plan, &Shared::new(plan, 1, room), 0),
            frames: Batch::new(room),
            outcomes: Vec::new(),
            room,
            wrong: 0,
            for_host: 0,
        }
    }

    /// Compares each verdict, and the bytes of each frame that passes.
    fn batch(&mut self, lane: &mut Lane, from: usize) -> Result<(), Error> {
        self.ring.fill(&mut self.frames, from, self.room, from as u64);
        self.worker.judge(&mut self.frames)?;
        lane.outcomes(&mut self.outcomes);
        if self.outcomes.len() != self.frames.len() {
            let (found, expected) = (self.outcomes.len(), self.frames.len());
            return Err(Error::Wrong(format!("{found} packets were judged; expected {expected}")));
        }
        let (mut expected, mut found) = (Vec::new(), Vec::new());
        for (at, (outcome, &verdict)) in self.outcomes.iter().zip(self.frames.verdicts()).enumerate() {
            for copy in [&mut expected, &mut found] {
                copy.clear();
                copy.extend_from_slice(self.ring.frame(from + at));
            }
            if verdict.is_pass() {
                self.frames.apply_rewrites(at, &mut expected);
            }
            if outcome.is_written() {
                lane.read_header(at as u32, &mut found);
            }
            self.for_host += u64::from(outcome.is_for_host());
            let is_same = outcome.verdict() == Some(verdict) && (found == expected || outcome.is_for_host());
            self.wrong += u64::from(!is_same);
        }
        Ok(())
    }

    fn end(&self, slice: Slice) -> Result<(), Error> {
        let (of, slice) = (self.ring.count, slice.bytes());
        if self.wrong > 0 {
            let wrong = self.wrong;
            return Err(Error::Wrong(format!("{wrong} of {of} packets were judged otherwise than by cores")));
        }
        if self.for_host > 0 {
            let count = self.for_host;
            return Err(Error::Wrong(format!("{count} of {of} packets are rewritten behind {slice} bytes")));
        }
        Ok(())
    }
}
