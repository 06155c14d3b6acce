//! Functions with their state on a device, fed from batches: one is away at a time. What the device keeps is copied here from time to time.

use std::time::{Duration, Instant};

use packetloom_device::{Buffer, Device, Id, Memory, Queue, Shared};
use packetloom_nf::Found;
use packetloom_packet::Batch;

use super::records::{self, Answer, Record, Wide};
use super::{Buffers, Dealt, State, Stateful};
use crate::Chain;
use crate::offload::Error;
use crate::offload::accelerator::{Accelerator, late};
use crate::outcome::Shares;
use crate::pipeline::Pipeline;
use crate::state::Held;

/// Packets of a batch at most: for GPUs, and for devices that are cores.
const BATCH: u32 = 1 << 16;
const BATCH_OF_CPU: u32 = 1 << 12;
/// From one copy of the state to the next, at least; and how many times as long as the copy takes.
const COPY_AFTER: Duration = Duration::from_secs(1);
const COPY_SHARE: u32 = 20;

/// Packets of a batch at most.
pub(crate) fn room(device: &Device) -> usize {
    let is_cpu = device.description().id == Id::Host || device.description().lanes == 1;
    (if is_cpu { BATCH_OF_CPU } else { BATCH }) as usize
}

/// The functions and their state on a device.
pub(crate) struct Functions {
    stateful: Stateful,
    dealt: Dealt,
    queue: Queue,
    memory: Parts<Shared>,
    /// Where the device does not share the host's memory, what is copied there and back.
    copies: Option<Parts<Memory>>,
    records: Vec<Record>,
    wide: Vec<Wide>,
    answers: Vec<Answer>,
    first: Vec<u32>,
    found: Vec<Found>,
    sent: Instant,
    /// The last copy of what it keeps, or what it began with, with when that was; and how long it took.
    copy: Option<(State, Instant)>,
    copying: Duration,
}

/// Memory for a batch.
struct Parts<M> {
    records: M,
    wide: M,
    answers: M,
    wide_answers: M,
    first: M,
}

impl<M> Parts<M> {
    fn new(
        stateful: &Stateful,
        memory: impl Fn(usize) -> Result<M, packetloom_device::Error>,
    ) -> Result<Self, packetloom_device::Error> {
        let room = stateful.room() as usize;
        Ok(Self {
            records: memory(room * size_of::<Record>())?,
            wide: memory(stateful.needs().wides(room) * size_of::<Wide>())?,
            answers: memory(room * size_of::<Answer>())?,
            wide_answers: memory(room * size_of::<Wide>())?,
            first: memory(stateful.acls() * room * size_of::<u32>())?,
        })
    }

    fn buffers<'a>(&'a self, room: u32, has_v6: bool, argument: impl Fn(&'a M) -> Buffer<'a>) -> Buffers<'a> {
        Buffers {
            records: argument(&self.records),
            wide: argument(&self.wide),
            answers: argument(&self.answers),
            wide_answers: argument(&self.wide_answers),
            first: argument(&self.first),
            room,
            has_v6,
        }
    }
}

impl Functions {
    /// The first `count` functions of a chain, as [`Stateful::new`] takes them.
    pub(crate) fn new(device: &Device, chain: &Chain, count: usize) -> Result<Self, Error> {
        let room = room(device) as u32;
        let stateful = Stateful::new(device, &chain.functions, &chain.layout, count, room)?;
        let memory = Parts::new(&stateful, |bytes| device.share(bytes))?;
        let shares = device.description().shares;
        let copies = if shares { None } else { Some(Parts::new(&stateful, |bytes| device.memory(bytes))?) };
        Ok(Self {
            dealt: stateful.dealt()?,
            stateful,
            queue: device.queue()?,
            memory,
            copies,
            records: Vec::new(),
            wide: Vec::new(),
            answers: Vec::new(),
            first: Vec::new(),
            found: Vec::new(),
            sent: Instant::now(),
            copy: None,
            copying: Duration::ZERO,
        })
    }

    fn send(&mut self, batch: &Batch) -> Result<(), Error> {
        records::of_batch(batch, self.stateful.needs(), &mut self.records, &mut self.wide);
        self.memory.records.write(0, bytemuck::cast_slice(&self.records));
        self.memory.wide.write(0, bytemuck::cast_slice(&self.wide));
        self.sent = Instant::now();
        let (room, has_v6, count) = (self.stateful.room(), !batch.v6().keys.is_empty(), self.records.len());
        let (host, queue, dealt) = (&mut self.memory, &mut self.queue, &mut self.dealt);
        let Some(copies) = &self.copies else {
            let buffers = host.buffers(room, has_v6, Buffer::Shared);
            return self.stateful.launch(queue, dealt, &buffers, count as u32, 0);
        };
        queue.copy_in(&mut host.records, 0..count * size_of::<Record>(), &copies.records, 0)?;
        queue.copy_in(&mut host.wide, 0..self.wide.len() * size_of::<Wide>(), &copies.wide, 0)?;
        let buffers = copies.buffers(room, has_v6, Buffer::Memory);
        self.stateful.launch(queue, dealt, &buffers, count as u32, 0)?;
        queue.copy_out(&copies.answers, 0..count * size_of::<Answer>(), &mut host.answers, 0)?;
        for number in 0..self.stateful.acls() {
            let begin = number * room as usize * size_of::<u32>();
            queue.copy_out(&copies.first, begin..begin + count * size_of::<u32>(), &mut host.first, begin)?;
        }
        Ok(queue.copy_out(
            &copies.wide_answers,
            0..if has_v6 { count * size_of::<Wide>() } else { 0 },
            &mut host.wide_answers,
            0,
        )?)
    }

    /// Rewrites the packets of the batch as the device says.
    fn rewrite(&mut self, batch: &mut Batch) {
        let Self { answers, memory, .. } = self;
        for (frame, answer) in (0..).zip(&*answers) {
            let wide = || {
                let mut wide = Wide::default();
                let at = frame as usize * size_of::<Wide>();
                memory.wide_answers.read(at, bytemuck::bytes_of_mut(&mut wide));
                wide
            };
            answer.rewrite(batch, frame, wide);
        }
    }
}

impl Accelerator for Functions {
    fn depth(&self) -> usize {
        1
    }

    /// A parsed batch.
    fn submit(&mut self, batch: &Batch) -> Result<bool, Error> {
        let age = self.copy().map_or(Duration::MAX, |(_, age)| age);
        if age >= COPY_AFTER.max(self.copying * COPY_SHARE) {
            self.snapshot()?;
        }
        self.send(batch).map(|()| true)
    }

    fn is_back(&mut self) -> bool {
        self.queue.is_finished().unwrap_or(true)
    }

    fn wait(&mut self, limit: Duration) -> Result<(), Error> {
        let is_back = self.queue.finish_within(limit.saturating_sub(self.sent.elapsed()))?;
        if is_back { Ok(()) } else { Err(late(self.sent)) }
    }

    /// Access lists take note of what their rules decided.
    fn take(&mut self, batch: &mut Batch, stages: &mut Pipeline, shares: &mut Shares) {
        shares.device += batch.len() as u64;
        self.answers.resize(batch.len(), Answer::default());
        self.memory.answers.read(0, bytemuck::cast_slice_mut(&mut self.answers));
        let room = self.stateful.room() as usize;
        let mut is_rewritten = false;
        for number in 0..self.stateful.acls() {
            // Packets are logged as a list sees them.
            if self.stateful.sees_rewritten(number) && !is_rewritten {
                self.rewrite(batch);
                is_rewritten = true;
            }
            self.first.resize(batch.len(), 0);
            let begin = number * room * size_of::<u32>();
            self.memory.first.read(begin, bytemuck::cast_slice_mut(&mut self.first));
            let packets = self.first.iter().zip(&self.answers).zip(&self.records);
            self.found.clear();
            self.found.extend((0..).zip(packets).filter_map(|(frame, ((&first, answer), record))| {
                let first = self.stateful.decided(number, first, answer)?;
                Some(Found { frame, first, bytes: record.bytes() })
            }));
            let packets = batch.len();
            stages.take(self.stateful.acl(number), packets, &mut self.found, batch);
        }
        // What became of packets in the end.
        let (verdicts, _, _) = batch.judge();
        for (verdict, answer) in verdicts.iter_mut().zip(&self.answers) {
            // What is none cannot be: kernels write what they were told.
            *verdict = answer.verdict().unwrap_or(*verdict);
        }
        if !is_rewritten {
            self.rewrite(batch);
        }
    }

    fn definitions(&self) -> usize {
        self.stateful.definitions()
    }

    fn restore(&mut self, held: &[Held]) -> Result<(), Error> {
        self.copy = Some((self.stateful.restore(&mut self.queue, held)?, Instant::now()));
        Ok(())
    }

    fn snapshot(&mut self) -> Result<(), Error> {
        let start = Instant::now();
        self.copy = Some((self.stateful.state(&mut self.queue)?, Instant::now()));
        self.copying = start.elapsed();
        Ok(())
    }

    fn copy(&self) -> Option<(&State, Duration)> {
        self.copy.as_ref().map(|(state, at)| (state, at.elapsed()))
    }

    fn abandon(self: Box<Self>) {
        self.queue.abandon();
    }
}
