//! The first functions of a chain, which keep state for flows, and access lists among them, on a device; the others here.
//!
//! One batch is with the device while the one before it is delivered and the next one is read; on a live source there is one at a time.
//! What the device keeps is copied here from time to time. Where it fails, this machine's cores go on from the last copy: the batch that was with it is judged here, so each packet is
//! judged once, and what state lacks is what packets changed since the copy.
//!
//! State is saved from such a copy, with no batch away. For another chain all comes back here, is handed on as on cores, and goes to the
//! device again; that it began with this is the first copy.

use std::time::{Duration, Instant};

use packetloom_device::{Buffer, Device, Id, Memory, Queue, Shared};
use packetloom_io::Polled;
use packetloom_nf::flows::Counts;
use packetloom_nf::units::Span;
use packetloom_nf::{Found, Report};
use packetloom_packet::Batch;

use super::lifecycle::{self, ChainSwap, Lifecycle};
use super::{Intake, Outlet};
use crate::chain::Run;
use crate::offload::pace::Pace;
use crate::offload::stateful::records::{self, Answer, Record, Wide};
use crate::offload::stateful::{self, Buffers, Dealt, Stateful};
use crate::offload::{self, standby};
use crate::outcome::{Shares, TopFlows};
use crate::pipeline::{Expiry, Pipeline, WorkerReport};
use crate::{Chain, Error, Plan, State};

/// Packets of a batch at most: for GPUs, and for devices that are cores.
const BATCH: u32 = 1 << 16;
const BATCH_OF_CPU: u32 = 1 << 12;
/// From one copy of the state to the next, at least; and how many times as long as the copy takes.
const COPY_AFTER: Duration = Duration::from_secs(1);
const COPY_SHARE: u32 = 20;

pub(super) fn run(
    lifecycle: &mut Lifecycle<'_, '_>,
    device: &Device,
    intake: &mut Intake<'_>,
    outlet: &mut Outlet<'_>,
) -> Result<(WorkerReport, Shares), Error> {
    let restored = lifecycle.restored().unwrap_or_default();
    let mut runner = Runner::new(lifecycle.plan(), device.clone(), intake.source.is_live());
    runner.begin(lifecycle.plan(), restored)?;
    let judged = runner.judge_all(lifecycle, intake, outlet);
    runner.tell(lifecycle);
    judged?;
    let state = lifecycle.last_state(intake.position(), &mut runner)?;
    runner.end(outlet, state)
}

/// The functions and their state on a device.
struct There {
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
    /// The last copy of what it keeps, or what it began with; when that was, and how long it took.
    copy: stateful::State,
    copied: Instant,
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

impl There {
    fn new(device: &Device, plan: &Plan, batch: u32, state: &State) -> Result<Self, offload::Error> {
        let Plan { chain, .. } = plan;
        let stateful = Stateful::new(device, &chain.functions, &chain.layout, plan.stateful(), batch)?;
        let memory = Parts::new(&stateful, |bytes| device.share(bytes))?;
        let shares = device.description().shares;
        let copies = if shares { None } else { Some(Parts::new(&stateful, |bytes| device.memory(bytes))?) };
        let mut queue = device.queue()?;
        let copy = stateful.restore(&mut queue, &state.definitions)?;
        Ok(Self {
            dealt: stateful.dealt()?,
            stateful,
            queue,
            memory,
            copies,
            records: Vec::new(),
            wide: Vec::new(),
            answers: Vec::new(),
            first: Vec::new(),
            found: Vec::new(),
            sent: Instant::now(),
            copy,
            copied: Instant::now(),
            copying: Duration::ZERO,
        })
    }

    fn send(&mut self, batch: &Batch) -> Result<(), offload::Error> {
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

    /// Waits until the batch is back.
    fn wait(&mut self, limit: Duration) -> Result<(), offload::Error> {
        if self.queue.finish_within(limit.saturating_sub(self.sent.elapsed()))? {
            return Ok(());
        }
        let why = format!("no answer for {:?}", self.sent.elapsed());
        Err(packetloom_device::Error::Failed { call: "wait", why }.into())
    }

    /// Writes what was found into the batch, and has access lists take note of what their rules decided.
    fn take(&mut self, batch: &mut Batch, stages: &mut Pipeline) {
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

    /// Copies what the device keeps here, where it was not for some time.
    fn copy(&mut self) -> Result<(), offload::Error> {
        let is_due = self.copied.elapsed() >= COPY_AFTER.max(self.copying * COPY_SHARE);
        if is_due { self.read() } else { Ok(()) }
    }

    /// The same at any time.
    fn read(&mut self) -> Result<(), offload::Error> {
        let start = Instant::now();
        self.copy = self.stateful.state(&mut self.queue)?;
        self.copied = Instant::now();
        self.copying = start.elapsed();
        Ok(())
    }
}

struct Runner {
    /// None after it failed.
    device: Option<Device>,
    /// None without a device, and where it has nothing of the chain.
    there: Option<There>,
    /// Functions that it runs, or ran before it failed.
    functions: usize,
    /// Packets of a batch at most, and of the next one.
    batch: u32,
    pace: Pace,
    /// How long a batch may be away.
    limit: Duration,
    stages: Pipeline,
    live: bool,
    shares: Shares,
    /// What the user should know.
    notices: Vec<String>,
}

impl Runner {
    fn new(plan: &Plan, device: Device, live: bool) -> Self {
        let is_cpu = device.description().id == Id::Host || device.description().lanes == 1;
        let batch = if is_cpu { BATCH_OF_CPU } else { BATCH };
        let Run { device_timeout, max_latency, .. } = &plan.chain.settings.run;
        let [limit, latency] =
            [device_timeout, max_latency].map(|span| span.and_then(Span::limit).map(Duration::from_nanos));
        Self {
            limit: limit.unwrap_or_else(|| standby::limit_of(&device)),
            device: Some(device),
            there: None,
            functions: 0,
            batch,
            pace: Pace::new(batch as usize, latency),
            stages: Pipeline::alone(&plan.chain, batch as usize),
            live,
            shares: Shares::default(),
            notices: Vec::new(),
        }
    }

    /// Begins with a chain and its state: what is the device's goes there, unless that fails, and the rest is put in here.
    fn begin(&mut self, plan: &Plan, mut state: State) -> Result<(), offload::Error> {
        self.functions = plan.stateful();
        let there = match &self.device {
            Some(device) if self.functions > 0 => There::new(device, plan, self.batch, &state).map(Some),
            _ => Ok(None),
        };
        if let Ok(Some(there)) = &there {
            for held in state.definitions.iter_mut().take(there.stateful.definitions()) {
                held.entries = [Vec::new(), Vec::new()];
                held.counts = Counts::default();
            }
        }
        self.stages.restore(&state);
        self.there = there?;
        Ok(())
    }

    fn judge_all(
        &mut self,
        lifecycle: &mut Lifecycle<'_, '_>,
        intake: &mut Intake<'_>,
        outlet: &mut Outlet<'_>,
    ) -> Result<(), Error> {
        // With when it was read.
        let mut away: Option<(Batch, Instant)> = None;
        let mut spare = Some(Batch::new(self.batch as usize));
        self.do_what_is_due(lifecycle, intake, outlet)?;
        let mut begun = 0;
        loop {
            if lifecycle.is_due(intake.received, begun) {
                if let Some(last) = away.take() {
                    spare = Some(self.end_batch(last, outlet)?);
                }
                self.do_what_is_due(lifecycle, intake, outlet)?;
                begun = intake.received;
            }
            let mut next = spare.take().unwrap_or_else(|| Batch::new(self.batch as usize));
            next.set_capacity(self.pace.size());
            outlet.tell(intake, lifecycle.notice());
            let polled = intake.fill(&mut next, |packets| lifecycle.is_due(packets, begun))?;
            if polled == Polled::Nothing {
                // Where time goes on without packets, none is away then.
                if let Some(now) = intake.tick(&mut next) {
                    next.parse(lifecycle.chain().settings.run.policy());
                    self.pass_on(&mut next, Some(Expiry::at(now)), outlet)?;
                }
                spare = Some(next);
                continue;
            }
            let has_next = polled == Polled::Frames;
            let read = Instant::now();
            if has_next {
                next.parse(lifecycle.chain().settings.run.policy());
            }
            let mut done = away.take();
            if let Some((done, read)) = &mut done {
                self.finish(done, *read)?;
            }
            if has_next {
                self.send(&next);
                away = Some((next, read));
            }
            self.tell(lifecycle);
            if let Some((mut done, _)) = done {
                self.deliver(&mut done, outlet)?;
                spare = Some(done);
            }
            // On a live source nobody waits for the next batch to get the verdicts on this one.
            if self.live
                && let Some(last) = away.take()
            {
                spare = Some(self.end_batch(last, outlet)?);
                self.tell(lifecycle);
            }
            if !has_next && away.is_none() {
                break;
            }
        }
        self.read();
        self.come_back();
        Ok(())
    }

    /// Does all that is to be done before the next batch, with none on its way.
    fn do_what_is_due(
        &mut self,
        lifecycle: &mut Lifecycle<'_, '_>,
        intake: &mut Intake<'_>,
        outlet: &mut Outlet<'_>,
    ) -> Result<(), Error> {
        let at = intake.position();
        intake.until = lifecycle.between_batches(at, self, outlet, &mut || intake.report())?;
        self.tell(lifecycle);
        Ok(())
    }

    /// Sends a parsed batch on its way, if there is a device.
    fn send(&mut self, batch: &Batch) {
        let Some(there) = &mut self.there else { return };
        if let Err(error) = there.copy().and_then(|()| there.send(batch)) {
            self.fail(&error);
        }
    }

    /// Takes a batch back that was read then, and through what comes after; none other is on its way.
    fn end_batch(
        &mut self,
        (mut batch, read): (Batch, Instant),
        outlet: &mut Outlet<'_>,
    ) -> Result<Batch, Error> {
        self.finish(&mut batch, read)?;
        self.deliver(&mut batch, outlet)?;
        Ok(batch)
    }

    /// Takes the batch back that was sent, or judges it here: not before the one before it is through all functions, which have the
    /// flows of one batch at a time.
    fn finish(&mut self, batch: &mut Batch, read: Instant) -> Result<(), Error> {
        self.judge(batch)?;
        self.pace.observe(batch.len(), read.elapsed());
        Ok(())
    }

    fn judge(&mut self, batch: &mut Batch) -> Result<(), Error> {
        let Some(there) = &mut self.there else { return self.judge_here(batch) };
        match there.wait(self.limit) {
            Ok(()) => {
                self.stages.arrive(batch);
                there.take(batch, &mut self.stages);
                self.shares.device += batch.len() as u64;
            }
            Err(error) => {
                self.fail(&error);
                self.judge_here(batch)?;
            }
        }
        Ok(())
    }

    fn judge_here(&mut self, batch: &mut Batch) -> Result<(), Error> {
        self.stages.arrive(batch);
        self.stages.process(0..self.functions, batch, None)?;
        self.shares.here += batch.len() as u64;
        Ok(())
    }

    /// Copies what the device keeps, with no batch away.
    fn read(&mut self) {
        if let Some(there) = &mut self.there
            && let Err(error) = there.read()
        {
            self.fail(&error);
        }
    }

    /// Takes over here what the device has kept, as it was copied last.
    fn come_back(&mut self) -> Option<There> {
        let there = self.there.take()?;
        self.stages.take_over(&there.copy);
        Some(there)
    }

    /// Goes on without the device.
    fn fail(&mut self, error: &offload::Error) {
        let Some(there) = self.come_back() else { return };
        let since = there.copied.elapsed().as_secs_f64();
        self.lose(error, &format!(" with the state of {since:.1} s ago"));
        there.queue.abandon();
    }

    fn lose(&mut self, error: &offload::Error, with: &str) {
        let Some(device) = self.device.take() else { return };
        let id = device.description().id;
        self.notices.push(format!("{id} failed: {error}; this machine's cores go on{with}"));
        self.shares.faults += 1;
    }

    /// Tells the user what there is to be told.
    fn tell(&mut self, lifecycle: &mut Lifecycle<'_, '_>) {
        self.notices.drain(..).for_each(|text| lifecycle.notice()(&text));
    }

    /// The functions that are not the device's, and all that comes after.
    fn deliver(&mut self, batch: &mut Batch, outlet: &mut Outlet<'_>) -> Result<(), Error> {
        let expiry = if self.live { Expiry::after(batch) } else { None };
        self.pass_on(batch, expiry, outlet)
    }

    fn pass_on(
        &mut self,
        batch: &mut Batch,
        expiry: Option<Expiry>,
        outlet: &mut Outlet<'_>,
    ) -> Result<(), Error> {
        self.stages.process(self.functions..self.stages.len(), batch, expiry)?;
        outlet.finish(&mut self.stages, batch)?;
        batch.reset(packetloom_packet::batch::empty_arena());
        Ok(())
    }

    fn end(mut self, outlet: &mut Outlet<'_>, state: Option<State>) -> Result<(WorkerReport, Shares), Error> {
        outlet.drain(&mut self.stages, state.is_some())?;
        Ok((WorkerReport { state, ..self.stages.report() }, self.shares))
    }
}

impl lifecycle::Runner for Runner {
    fn save(&mut self, chain: &Chain) -> Result<State, Error> {
        self.read();
        let mut held = self.stages.save(chain);
        if let Some(there) = &self.there {
            // Nothing of these is here.
            held.iter_mut().zip(there.copy.saved()).for_each(|(held, saved)| *held = saved);
        }
        Ok(State::of(&chain.functions, &chain.layout, held))
    }

    fn drain(&mut self, ending: &[usize]) -> Result<bool, Error> {
        Ok(self.stages.drain_some(ending))
    }

    fn write_records(&mut self, outlet: &mut Outlet<'_>) -> Result<(), Error> {
        outlet.write_pending(&mut self.stages)
    }

    /// After [`lifecycle::Runner::save`], with no batch in between.
    fn reports(
        &mut self,
        _chain: &Chain,
        leaving: &[usize],
    ) -> Result<(Vec<Box<dyn Report>>, TopFlows), Error> {
        self.come_back();
        Ok(self.stages.reports(leaving.iter().copied()))
    }

    fn counted(&mut self, chain: &Chain) -> Result<WorkerReport, Error> {
        self.read();
        let mut total = self.stages.report();
        if let Some(there) = &self.there {
            // As of another worker, which has what the device keeps.
            let mut other = Pipeline::alone(chain, self.batch as usize);
            other.take_over(&there.copy);
            total.merge(&other.report());
        }
        Ok(total)
    }

    fn swap(&mut self, plan: &Plan, swap: ChainSwap) -> Result<(), Error> {
        let ChainSwap { goes_on, state, .. } = swap;
        self.stages.succeed(Pipeline::alone(plan.chain(), self.batch as usize), &goes_on);
        if let Err(error) = self.begin(plan, state) {
            self.lose(&error, "");
        }
        Ok(())
    }
}
