//! Functions with their state on a device, fed from batches: the next one is sent while the device judges the one before. What the device keeps is copied here from time to time: in the
//! device's own memory first, between two batches, and from there by a thread of its own, which no packet waits for.

use std::collections::HashSet;
use std::mem;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use packetloom_device::{Buffer, Device, Id, Memory, Part, Queue, Shared};
use packetloom_nf::units::Span;
use packetloom_nf::{Found, FunctionSpec};
use packetloom_packet::batch::Parsed;
use packetloom_packet::{Batch, Timestamp};

use super::records::{Answer, Ipv6Addresses, Record, Records};
use super::snapshot::Snapshot;
use super::{Buffers, Left, Partition, State, Stateful};
use crate::Chain;
use crate::crew::Crew;
use crate::offload::Error;
use crate::offload::accelerator::{Accelerator, late};
use crate::outcome::Shares;
use crate::pipeline::work::Work;
use crate::pipeline::{Pipeline, StateId};
use crate::state::Held;

/// Packets of a batch at most: for GPUs, and for devices that are cores.
const BATCH: u32 = 1 << 17;
const BATCH_OF_CPU: u32 = 1 << 12;
/// From one copy of the state to the next, at least, unless the chain says.
const COPY_EVERY: Duration = Duration::from_secs(1);
/// The same as times of what the last copy took, where packets have to wait for it.
const COPY_SHARE: u32 = 20;
/// The same where they do not.
const READ_SHARE: u32 = 3;

/// States that are exported from one copy to the next at most, more or less: each is kept.
const MOST_GONE: usize = 1 << 20;
/// From one sweep of entries to the next, in nanoseconds.
const SWEEP_EVERY: u64 = 200_000_000;

/// Packets of a batch at most.
pub(crate) fn room(device: &Device) -> usize {
    let is_cpu = device.description().id == Id::Host || device.description().lanes == 1;
    (if is_cpu { BATCH_OF_CPU } else { BATCH }) as usize
}

/// Batches that are away at a time.
const DEPTH: usize = 2;

/// A place for a batch that is away.
struct Place {
    partition: Partition,
    /// What is queued here begins when the batch before is judged.
    queue: Queue,
    memory: Parts<Shared>,
    /// Where the device does not share the host's memory, what is copied there and back.
    copies: Option<Parts<Memory>>,
    /// For each piece of the batch.
    notes: Vec<Notes>,
    sent: Instant,
}

/// The functions and their state on a device.
pub(crate) struct Functions {
    device: Device,
    stateful: Arc<Stateful>,
    /// In turns: batch `n` has the place `n % DEPTH`.
    places: [Place; DEPTH],
    /// Batches that were sent, and whose answers were taken.
    sent: u64,
    taken: u64,
    /// When answers were taken last: the device had the next batch to itself from then on.
    freed: Instant,
    /// Batches that were sent before the last copy.
    copied: u64,
    /// The same before the last one that was begun while packets came; 0 for none.
    begun: u64,
    /// The last copy of what it keeps, or what it began with, with when that was; and how long it took. The one before, whose memory the next one
    /// gets: to free that takes tens of milliseconds, and so does new memory.
    copy: Option<(State, Instant)>,
    spare: State,
    copy_time: Duration,
    /// From one to the next, at least.
    copy_every: Duration,
    /// Memory of the device for copies, where it has room for them; and who brings one here, of when it is.
    snapshot: Option<Snapshot>,
    reading: Option<Reading>,
    /// Copies that were begun with since answers were taken; how long packets have waited here for the one that was begun with last, and the
    /// longest such time.
    copies: u64,
    stopped: Duration,
    longest_copy: Duration,
    /// The time of packets when entries were swept last.
    swept: u64,
}

/// A thread that brings a copy here, of when what it copies was kept.
struct Reading {
    /// Also says how long it took.
    thread: Option<JoinHandle<Result<(State, Duration), Error>>>,
    at: Instant,
    /// States that were exported since.
    gone: HashSet<StateId>,
}

impl Reading {
    fn is_over(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits for it.
    fn join(&mut self) -> Result<(State, Duration), Error> {
        let read = self.thread.take().and_then(|thread| thread.join().ok());
        read.unwrap_or_else(|| {
            let why = "it ended without an answer".into();
            Err(packetloom_device::Error::Failed { call: "copy", why }.into())
        })
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        // A driver may not like to be left in the middle of something. What went wrong will go wrong again for whoever asks next.
        let _ = self.join();
    }
}

/// What is known of a piece of a batch, and was found of it.
#[derive(Default)]
struct Notes {
    records: Records,
    answers: Vec<Answer>,
    first: Vec<u32>,
    found: Vec<Found>,
    /// Packets with which functions have exported something.
    exporting: Vec<u32>,
}

/// Memory for a batch.
struct Parts<M> {
    records: M,
    wide: M,
    answers: M,
    wide_answers: M,
    first: M,
    exports: M,
    details: M,
}

impl<M> Parts<M> {
    fn new(
        stateful: &Stateful,
        memory: impl Fn(usize) -> Result<M, packetloom_device::Error>,
    ) -> Result<Self, packetloom_device::Error> {
        let room = stateful.room() as usize;
        Ok(Self {
            records: memory(room * size_of::<Record>())?,
            wide: memory(stateful.needs().wides(room) * size_of::<Ipv6Addresses>())?,
            answers: memory(room * size_of::<Answer>())?,
            wide_answers: memory(room * size_of::<Ipv6Addresses>())?,
            first: memory(stateful.acls() * room * size_of::<u32>())?,
            exports: memory(stateful.export_words() * room * size_of::<u64>())?,
            details: memory(stateful.detail_words() * room * size_of::<u64>())?,
        })
    }

    fn buffers<'a>(&'a self, room: u32, has_v6: bool, argument: impl Fn(&'a M) -> Buffer<'a>) -> Buffers<'a> {
        Buffers {
            records: argument(&self.records),
            wide: argument(&self.wide),
            answers: argument(&self.answers),
            wide_answers: argument(&self.wide_answers),
            first: argument(&self.first),
            exports: argument(&self.exports),
            details: argument(&self.details),
            room,
            has_v6,
        }
    }
}

impl Functions {
    /// The first `count` functions of a chain, as [`Stateful::new`] takes them, on one of so many devices.
    pub(crate) fn new(device: &Device, chain: &Chain, count: usize, devices: usize) -> Result<Self, Error> {
        let room = room(device) as u32;
        let copy_every = chain.settings.run.device_copy_every.and_then(Span::limit);
        let stateful = Stateful::new(device, &chain.functions, &chain.layout, count, room, devices)?;
        let places = [Place::new(device, &stateful)?, Place::new(device, &stateful)?];
        let snapshot = match stateful.snapshot_memory() {
            Err(Error::Device(packetloom_device::Error::OutOfMemory { .. })) => None,
            made => Some(made?),
        };
        Ok(Self {
            device: device.clone(),
            places,
            stateful: Arc::new(stateful),
            sent: 0,
            taken: 0,
            copied: 0,
            begun: 0,
            freed: Instant::now(),
            copy: None,
            spare: State::default(),
            copy_time: Duration::ZERO,
            copy_every: copy_every.map_or(COPY_EVERY, Duration::from_nanos),
            snapshot,
            reading: None,
            copies: 0,
            stopped: Duration::ZERO,
            longest_copy: Duration::ZERO,
            swept: 0,
        })
    }

    /// The place of the batch that was sent last, or another one where none was.
    fn last(&mut self) -> &mut Place {
        &mut self.places[(self.sent.wrapping_sub(1) % DEPTH as u64) as usize]
    }

    /// That of the oldest batch which is away.
    fn oldest(&mut self) -> &mut Place {
        &mut self.places[(self.taken % DEPTH as u64) as usize]
    }

    /// Whether it is time for the next copy.
    fn is_copy_due(&self) -> bool {
        if self.sent == self.copied && self.copy.is_some() {
            // It is as it was then.
            return false;
        }
        let is_long = self.copy.as_ref().is_some_and(|(copy, _)| copy.gone.len() > MOST_GONE);
        let age = self.copy().map_or(Duration::MAX, |(_, age)| age);
        let age = if is_long { Duration::MAX } else { age };
        match self.snapshot {
            Some(_) => self.reading.is_none() && age >= self.copy_every.max(self.copy_time * READ_SHARE),
            None => age >= self.copy_every.max(self.copy_time * COPY_SHARE),
        }
    }

    /// Whether the oldest batch that is away was sent right after a copy. Before the first batch there is nothing to copy.
    fn is_after_copy(&self) -> bool {
        self.taken == self.begun && self.begun > 0
    }

    /// Takes the copy that was being read, if it is here.
    fn take_copy(&mut self) -> Result<(), Error> {
        if let Some(mut reading) = self.reading.take_if(|reading| reading.is_over()) {
            self.keep(&mut reading)?;
        }
        Ok(())
    }

    fn keep(&mut self, reading: &mut Reading) -> Result<(), Error> {
        let (mut state, time) = reading.join()?;
        state.gone = mem::take(&mut reading.gone);
        self.put_copy(state, reading.at);
        self.copy_time = time;
        Ok(())
    }

    fn put_copy(&mut self, state: State, at: Instant) {
        if let Some((before, _)) = self.copy.replace((state, at)) {
            self.spare = before;
        }
    }

    /// Takes note of states that were exported since the last copy, and since the one that is being read: who goes on with it must not export them
    /// again.
    fn note_gone(&mut self, gone: Vec<StateId>) {
        if let Some(reading) = &mut self.reading {
            reading.gone.extend(&gone);
        }
        if let Some((copy, _)) = &mut self.copy {
            copy.gone.extend(gone);
        }
    }

    /// Begins with a copy, with no batch away: before answers are taken, it would have what packets did that may be judged again.
    fn begin_copy(&mut self, crew: &Crew) -> Result<(), Error> {
        let Some(snapshot) = &self.snapshot else { return self.snapshot(crew) };
        let (stateful, snapshot) = (Arc::clone(&self.stateful), snapshot.clone());
        let mut queue = self.device.queue()?;
        let spare = mem::take(&mut self.spare);
        let last = self.last();
        stateful.take_snapshot(&mut last.queue, &snapshot)?;
        queue.wait_for(&last.queue)?;
        let read = move || {
            let begin = Instant::now();
            stateful.state_in(&mut queue, &snapshot, spare, None).map(|state| (state, begin.elapsed()))
        };
        match thread::Builder::new().name("state".into()).spawn(read) {
            Ok(thread) => {
                self.copied = self.sent;
                self.reading =
                    Some(Reading { thread: Some(thread), at: Instant::now(), gone: HashSet::new() });
            }
            // The system has no thread left.
            Err(_) => self.snapshot(crew)?,
        }
        Ok(())
    }
}

impl Place {
    fn new(device: &Device, stateful: &Stateful) -> Result<Self, Error> {
        let shares = device.description().shares;
        Ok(Self {
            partition: stateful.partition_memory()?,
            queue: device.queue()?,
            memory: Parts::new(stateful, |bytes| device.share(bytes))?,
            copies: if shares { None } else { Some(Parts::new(stateful, |bytes| device.memory(bytes))?) },
            notes: Vec::new(),
            sent: Instant::now(),
        })
    }

    /// Has functions judge a batch, after what is queued in another place.
    fn send(
        &mut self,
        stateful: &Stateful,
        before: &Queue,
        pieces: &[Work],
        crew: &Crew,
    ) -> Result<(), Error> {
        let needs = stateful.needs();
        if self.notes.len() < pieces.len() {
            self.notes.resize_with(pieces.len(), Notes::default);
        }
        let lens = || pieces.iter().map(|piece| piece.batch.len());
        let count: usize = lens().sum();
        // Behind the addresses of all packets, those that a piece may have at most.
        let connections = if needs.connections { 2 } else { 0 };
        let host = &mut self.memory;
        let records = host.records.split(lens().map(|len| len * size_of::<Record>()));
        let wide = lens().chain(lens().map(|len| len * connections));
        let mut wide: Vec<_> =
            host.wide.split(wide.map(|wides| wides * size_of::<Ipv6Addresses>())).collect();
        let of_connections = wide.split_off(pieces.len());
        let mut at = 0;
        let details = host.details.split(lens().map(|len| len * stateful.detail_words() * size_of::<u64>()));
        let jobs = pieces.iter().zip(&mut self.notes).zip(records).zip(wide.into_iter().zip(of_connections));
        let jobs = jobs.zip(details).map(|((((piece, notes), records), wide), details)| {
            let first = at;
            at += piece.batch.len();
            (&piece.batch, &mut notes.records, (records, details), wide, (count + connections * first) as u32)
        });
        let jobs = jobs.collect();
        crew.each(jobs, |(batch, notes, (mut records, mut details), (mut wide, mut connections), at)| {
            notes.take(batch, needs, at);
            records.write(0, bytemuck::cast_slice(&notes.packets));
            wide.write(0, bytemuck::cast_slice(&notes.wide));
            connections.write(0, bytemuck::cast_slice(&notes.connections));
            details.write(0, bytemuck::cast_slice(&notes.details));
        });
        // Those of pieces follow each other. Where devices share the packets, these count from the first one of a device's share.
        let number =
            pieces.iter().find(|piece| !piece.batch.is_empty()).map_or(0, |piece| piece.batch.number(0));
        self.sent = Instant::now();
        let has_v6 = pieces.iter().any(|piece| !piece.batch.v6().keys.is_empty());
        let room = stateful.room();
        let (host, queue, partition) = (&mut self.memory, &mut self.queue, &mut self.partition);
        queue.wait_for(before)?;
        let Some(copies) = &self.copies else {
            let buffers = host.buffers(room, has_v6, Buffer::Shared);
            return stateful.launch_numbered(queue, partition, &buffers, count as u32, number);
        };
        queue.copy_in(&mut host.records, 0..count * size_of::<Record>(), &copies.records, 0)?;
        let has_connections = self.notes[..pieces.len()].iter().any(|of| !of.records.connections.is_empty());
        let wides = match (has_connections, has_v6) {
            (true, _) => needs.wides(count),
            (false, true) => count,
            (false, false) => 0,
        };
        queue.copy_in(&mut host.wide, 0..wides * size_of::<Ipv6Addresses>(), &copies.wide, 0)?;
        let details = count * stateful.detail_words() * size_of::<u64>();
        queue.copy_in(&mut host.details, 0..details, &copies.details, 0)?;
        let buffers = copies.buffers(room, has_v6, Buffer::Memory);
        stateful.launch_numbered(queue, partition, &buffers, count as u32, number)?;
        let exports = count * stateful.export_words() * size_of::<u64>();
        queue.copy_out(&copies.exports, 0..exports, &mut host.exports, 0)?;
        queue.copy_out(&copies.answers, 0..count * size_of::<Answer>(), &mut host.answers, 0)?;
        for number in 0..stateful.acls() {
            let begin = number * room as usize * size_of::<u32>();
            queue.copy_out(&copies.first, begin..begin + count * size_of::<u32>(), &mut host.first, begin)?;
        }
        Ok(queue.copy_out(
            &copies.wide_answers,
            0..if has_v6 { count * size_of::<Ipv6Addresses>() } else { 0 },
            &mut host.wide_answers,
            0,
        )?)
    }
}

/// What came back of a piece of a batch.
struct Back<'a> {
    answers: Part<'a>,
    wide: Part<'a>,
    /// For each access list.
    first: Vec<Part<'a>>,
}

impl Notes {
    /// Writes what came back into a piece of a batch, and has access lists take note of what their rules decided.
    fn take(&mut self, batch: &mut Batch, mut back: Back<'_>, stateful: &Stateful, stages: &mut Pipeline) {
        let Self { records, answers, first: of_list, found, exporting } = self;
        answers.resize(batch.len(), Answer::default());
        back.answers.read(0, bytemuck::cast_slice_mut(answers));
        exporting.clear();
        if !stateful.exporters().is_empty() {
            let packets = (0..).zip(&*answers).filter(|(_, answer)| stateful.has_exported(answer));
            exporting.extend(packets.map(|(packet, _)| packet));
        }
        for exporter in stateful.exporters() {
            stages.judged(exporter.function, batch);
        }
        let mut is_rewritten = false;
        for (number, first) in back.first.iter_mut().enumerate() {
            // Packets are logged as a list sees them.
            if stateful.sees_rewritten(number) && !is_rewritten {
                rewrite(batch, answers, &mut back.wide);
                is_rewritten = true;
            }
            of_list.resize(batch.len(), 0);
            first.read(0, bytemuck::cast_slice_mut(of_list));
            let decided = stateful.decided(number);
            let packets = of_list.iter().zip(&*answers).zip(&records.packets);
            found.clear();
            found.extend((0..).zip(packets).filter_map(|(frame, ((&first, answer), record))| {
                let first = decided.by(first, answer)?;
                Some(Found { frame, first, bytes: record.bytes() })
            }));
            let packets = batch.len();
            stages.take(stateful.acl(number), packets, found, batch);
        }
        // What became of packets in the end.
        let (verdicts, _, _) = batch.judge();
        for (verdict, answer) in verdicts.iter_mut().zip(&*answers) {
            // What is none cannot be: kernels write what they were told.
            *verdict = answer.verdict().unwrap_or(*verdict);
        }
        if !is_rewritten {
            rewrite(batch, answers, &mut back.wide);
        }
    }
}

/// Tells functions what they have exported on a device, of packet after packet, after answers were taken; which states that were.
fn export(
    stateful: &Stateful,
    pieces: &[Work],
    notes: &[Notes],
    exports: &mut Shared,
    pipeline: &mut Pipeline,
) -> Vec<StateId> {
    let mut gone = Vec::new();
    let stride = stateful.export_words();
    let mut first = 0;
    for (Work { batch, .. }, Notes { answers, exporting, .. }) in pieces.iter().zip(notes) {
        for (number, exporter) in stateful.exporters().iter().enumerate() {
            let function = exporter.function;
            pipeline.go_by(function, batch.wall_offset());
            for &packet in exporting {
                let at = packet as usize;
                let is_v6 = matches!(batch.parsed()[at], Parsed::V6(_));
                let read = |word: usize, words: &mut [u64]| {
                    let word = (first + at) * stride + word;
                    exports.read(word * size_of::<u64>(), bytemuck::cast_slice_mut(words));
                };
                stateful.exported(number, &answers[at], is_v6, read, |why, entry, state| {
                    gone.extend(pipeline.exported(function, why, entry, state));
                });
            }
        }
        first += batch.len();
    }
    gone
}

/// Rewrites packets as the device says.
fn rewrite(batch: &mut Batch, answers: &[Answer], wide_answers: &mut Part<'_>) {
    for (frame, answer) in (0..).zip(answers) {
        let wide = || {
            let mut wide = Ipv6Addresses::default();
            wide_answers.read(frame as usize * size_of::<Ipv6Addresses>(), bytemuck::bytes_of_mut(&mut wide));
            wide
        };
        answer.rewrite(batch, frame, wide);
    }
}

impl Accelerator for Functions {
    /// None is away when a copy is begun with.
    fn depth(&self) -> usize {
        if self.is_copy_due() { 1 } else { DEPTH }
    }

    /// A parsed batch.
    fn submit(&mut self, pieces: &[Work], crew: &Crew) -> Result<bool, Error> {
        let packets: usize = pieces.iter().map(|piece| piece.batch.len()).sum();
        if packets > self.stateful.room() as usize {
            return Ok(false);
        }
        self.take_copy()?;
        if self.sent == self.taken && self.is_copy_due() {
            let begin = Instant::now();
            self.begin_copy(crew)?;
            self.begun = self.sent;
            self.copies += 1;
            self.stopped += begin.elapsed();
        }
        let [even, odd] = &mut self.places;
        let (place, before) = if self.sent.is_multiple_of(2) { (even, odd) } else { (odd, even) };
        place.send(&self.stateful, &before.queue, pieces, crew)?;
        self.sent += 1;
        Ok(true)
    }

    fn is_back(&mut self) -> bool {
        self.oldest().queue.is_finished().unwrap_or(true)
    }

    fn wait(&mut self, limit: Duration) -> Result<(), Error> {
        // None is away when a copy is begun with, and the batch after it begins when it is made.
        let is_for_copy = self.is_after_copy() || (self.taken > 0 && self.is_copy_due());
        let (freed, begin) = (self.freed, Instant::now());
        let Place { queue, sent, .. } = self.oldest();
        let since = freed.max(*sent);
        let is_back = queue.finish_within(limit.saturating_sub(since.elapsed()))?;
        if is_for_copy {
            self.stopped += begin.elapsed();
        }
        if is_back { Ok(()) } else { Err(late(since)) }
    }

    fn take(&mut self, pieces: &mut [Work], stages: &[Mutex<Pipeline>], crew: &Crew, shares: &mut Shares) {
        if self.is_after_copy() {
            self.longest_copy = self.longest_copy.max(mem::take(&mut self.stopped));
        }
        let stateful = Arc::clone(&self.stateful);
        let (copies, longest_copy) = (mem::take(&mut self.copies), mem::take(&mut self.longest_copy));
        let Place { memory, notes, .. } = self.oldest();
        let lens: Vec<_> = pieces.iter().map(|piece| piece.batch.len()).collect();
        let bytes = |each: usize| lens.iter().map(move |len| len * each);
        let count: usize = lens.iter().sum();
        shares.device += count as u64;
        shares.copies += copies;
        shares.longest_copy = shares.longest_copy.max(longest_copy);
        let answers = memory.answers.split(bytes(size_of::<Answer>()));
        let wide = memory.wide_answers.split(bytes(size_of::<Ipv6Addresses>()));
        let mut back: Vec<_> =
            answers.zip(wide).map(|(answers, wide)| Back { answers, wide, first: Vec::new() }).collect();
        // What lists found: for each in turn there is room for a whole batch.
        let rest = (stateful.room() as usize - count) * size_of::<u32>();
        let of_list = || bytes(size_of::<u32>()).chain([rest]);
        let mut first = memory.first.split((0..stateful.acls()).flat_map(|_| of_list()));
        for _ in 0..stateful.acls() {
            back.iter_mut().zip(&mut first).for_each(|(back, part)| back.first.push(part));
            first.next();
        }
        drop(first);
        let jobs = pieces.iter_mut().zip(&mut *notes).zip(back);
        crew.each_with(stages, jobs.collect(), |stages, ((piece, notes), back)| {
            notes.take(&mut piece.batch, back, &stateful, stages);
            piece.take(stages);
        });
        let mut first = stages[0].lock().unwrap_or_else(PoisonError::into_inner);
        let gone = export(&stateful, pieces, notes, &mut memory.exports, &mut first);
        drop(first);
        self.note_gone(gone);
        self.taken += 1;
        self.freed = Instant::now();
    }

    fn definitions(&self) -> usize {
        self.stateful.definitions()
    }

    fn restore(&mut self, held: &[Held]) -> Result<Vec<Left>, Error> {
        // That would be of before.
        self.reading = None;
        let stateful = Arc::clone(&self.stateful);
        let (state, left) = stateful.restore(&mut self.last().queue, held)?;
        self.put_copy(state, Instant::now());
        self.copied = self.sent;
        Ok(left)
    }

    fn is_sweep_due(&self, now: Timestamp) -> bool {
        !self.stateful.exporters().is_empty() && now.as_nanos().abs_diff(self.swept) >= SWEEP_EVERY
    }

    fn sweep(&mut self, now: Timestamp, limit: Duration, pipeline: &mut Pipeline) -> Result<(), Error> {
        if !self.is_sweep_due(now) {
            return Ok(());
        }
        let now = now.as_nanos();
        self.swept = now;
        let stateful = Arc::clone(&self.stateful);
        let mut gone = Vec::new();
        let swept = stateful.sweep(&mut self.last().queue, (now, limit), |exporter, why, entry, state| {
            gone.extend(pipeline.exported(exporter.function, why, entry, state));
        });
        self.note_gone(gone);
        swept
    }

    fn change_rules(&mut self, functions: &[Arc<dyn FunctionSpec>], changes: usize) -> Result<(), Error> {
        self.stateful.change_rules(functions, changes)
    }

    fn snapshot(&mut self, crew: &Crew) -> Result<(), Error> {
        // Better than none where the device fails now.
        if let Some(mut reading) = self.reading.take() {
            self.keep(&mut reading)?;
        }
        let start = Instant::now();
        let (stateful, spare) = (Arc::clone(&self.stateful), mem::take(&mut self.spare));
        let state = stateful.state(&mut self.last().queue, spare, crew)?;
        self.put_copy(state, Instant::now());
        self.copied = self.sent;
        self.copy_time = start.elapsed();
        Ok(())
    }

    fn await_copy(&mut self, limit: Duration) {
        let begin = Instant::now();
        while self.reading.as_ref().is_some_and(|reading| !reading.is_over()) && begin.elapsed() < limit {
            thread::sleep(Duration::from_micros(100));
        }
        // One that failed is none.
        let _ = self.take_copy();
    }

    fn copy(&self) -> Option<(&State, Duration)> {
        self.copy.as_ref().map(|(state, at)| (state, at.elapsed()))
    }

    fn abandon(mut self: Box<Self>) {
        // It may never end.
        if let Some(reading) = &mut self.reading {
            reading.thread = None;
        }
        // All of them before memory is given back, for which drivers wait for kernels.
        let _kept = self.places.map(|Place { partition, queue, memory, copies, .. }| {
            queue.abandon();
            (partition, memory, copies)
        });
    }
}
