//! The first functions of a chain, which keep state for flows, on a device; the others here.
//!
//! One batch is with the device while the one before it is delivered and the next one is read. What the device keeps is copied here from
//! time to time. Where it fails, this machine's cores go on from the last copy: the batch that was with it is judged here, so each packet is
//! judged once, and what state lacks is what packets changed since the copy.

use std::time::{Duration, Instant};

use packetloom_device::{Argument, Device, Id, Memory, Queue, Shared};
use packetloom_nf::units::Span;
use packetloom_packet::Batch;

use super::single::Stages;
use super::{ENCODED, Expiry, Intake, Outlet, Remains};
use crate::offload::stateful::records::{self, Answer, Needs, Record, Wide};
use crate::offload::stateful::{Buffers, State, Stateful};
use crate::offload::{self, standby};
use crate::outcome::Shares;
use crate::{Chain, Error};

/// Packets of a batch: for GPUs, and for devices that are cores.
const BATCH: u32 = 1 << 16;
const BATCH_OF_CPU: u32 = 1 << 12;
/// From one copy of the state to the next, at least; and how many times as long as the copy takes.
const COPY_AFTER: Duration = Duration::from_secs(1);
const COPY_SHARE: u32 = 20;

pub(super) fn run(
    chain: &Chain,
    device: &Device,
    functions: usize,
    intake: &mut Intake<'_>,
    outlet: &mut Outlet<'_>,
    notice: &mut dyn FnMut(&str),
) -> Result<(Remains, Shares), Error> {
    let settings = &chain.settings.run;
    let batch = if device.description().id == Id::Host || device.description().lanes == 1 {
        BATCH_OF_CPU
    } else {
        BATCH
    };
    let stateful = Stateful::new(device, &chain.functions, &chain.layout, functions, batch)?;
    let limit = settings.device_timeout.and_then(Span::limit).map(Duration::from_nanos);
    let mut runner = Runner {
        there: Some(There::new(stateful)?),
        functions,
        limit: limit.unwrap_or_else(|| standby::limit_of(device)),
        stages: Stages::alone(chain, batch as usize),
        live: intake.source.is_live(),
        shares: Shares::default(),
    };
    let mut away: Option<Batch> = None;
    let mut spare = Some(Batch::new(batch as usize));
    loop {
        let mut next = spare.take().unwrap_or_else(|| Batch::new(batch as usize));
        let has_next = intake.fill(&mut next)?;
        if has_next {
            next.parse(settings.policy());
        }
        let mut done = away.take();
        if let Some(done) = &mut done {
            runner.finish(done, notice)?;
        }
        if has_next {
            runner.send(&next, notice);
            away = Some(next);
        }
        if let Some(mut done) = done {
            runner.deliver(&mut done, outlet)?;
            spare = Some(done);
        }
        if !has_next && away.is_none() {
            break;
        }
    }
    runner.end(outlet, notice)
}

/// The functions and their state on a device.
struct There {
    stateful: Stateful,
    queue: Queue,
    memory: Parts<Shared>,
    /// Where the device does not share the host's memory, what is copied there and back.
    copies: Option<Parts<Memory>>,
    records: Vec<Record>,
    wide: Vec<Wide>,
    answers: Vec<Answer>,
    sent: Instant,
    /// The last copy of what it keeps, and when it was made, and how long that took.
    copy: Option<State>,
    copied: Instant,
    copying: Duration,
}

/// Memory for a batch.
struct Parts<M> {
    records: M,
    wide: M,
    answers: M,
    wide_answers: M,
}

impl<M> Parts<M> {
    fn new(
        room: u32,
        needs: Needs,
        memory: impl Fn(usize) -> Result<M, packetloom_device::Error>,
    ) -> Result<Self, packetloom_device::Error> {
        let room = room as usize;
        Ok(Self {
            records: memory(room * size_of::<Record>())?,
            wide: memory(needs.wides(room) * size_of::<Wide>())?,
            answers: memory(room * size_of::<Answer>())?,
            wide_answers: memory(room * size_of::<Wide>())?,
        })
    }

    fn buffers<'a>(
        &'a self,
        room: u32,
        has_v6: bool,
        argument: impl Fn(&'a M) -> Argument<'a>,
    ) -> Buffers<'a> {
        Buffers {
            records: argument(&self.records),
            wide: argument(&self.wide),
            answers: argument(&self.answers),
            wide_answers: argument(&self.wide_answers),
            room,
            has_v6,
        }
    }
}

impl There {
    fn new(stateful: Stateful) -> Result<Self, offload::Error> {
        let device = stateful.device();
        let (room, needs) = (stateful.room(), stateful.needs());
        let memory = Parts::new(room, needs, |bytes| device.share(bytes))?;
        let shares = device.description().shares;
        let copies = if shares { None } else { Some(Parts::new(room, needs, |bytes| device.memory(bytes))?) };
        let queue = device.queue()?;
        Ok(Self {
            stateful,
            queue,
            memory,
            copies,
            records: Vec::new(),
            wide: Vec::new(),
            answers: Vec::new(),
            sent: Instant::now(),
            copy: None,
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
        let Some(copies) = &self.copies else {
            return self.stateful.launch(
                &mut self.queue,
                &self.memory.buffers(room, has_v6, Argument::Shared),
                count as u32,
                0,
            );
        };
        let (host, queue) = (&self.memory, &mut self.queue);
        queue.copy_in(&host.records, 0..count * size_of::<Record>(), &copies.records, 0)?;
        queue.copy_in(&host.wide, 0..self.wide.len() * size_of::<Wide>(), &copies.wide, 0)?;
        self.stateful.launch(queue, &copies.buffers(room, has_v6, Argument::Memory), count as u32, 0)?;
        queue.copy_out(&copies.answers, 0..count * size_of::<Answer>(), &host.answers, 0)?;
        Ok(queue.copy_out(
            &copies.wide_answers,
            0..if has_v6 { count * size_of::<Wide>() } else { 0 },
            &host.wide_answers,
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

    /// Writes what was found into the batch.
    fn take(&mut self, batch: &mut Batch) {
        self.answers.resize(batch.len(), Answer::default());
        self.memory.answers.read(0, bytemuck::cast_slice_mut(&mut self.answers));
        let (verdicts, _, _) = batch.judge();
        for (verdict, answer) in verdicts.iter_mut().zip(&self.answers) {
            // What is none cannot be: kernels write what they were told.
            *verdict = answer.verdict().unwrap_or(*verdict);
        }
        for (frame, answer) in (0..).zip(&self.answers) {
            let wide = || {
                let mut wide = Wide::default();
                let at = frame as usize * size_of::<Wide>();
                self.memory.wide_answers.read(at, bytemuck::bytes_of_mut(&mut wide));
                wide
            };
            answer.rewrite(batch, frame, wide);
        }
    }

    /// Copies what the device keeps here, where it was not for some time.
    fn copy(&mut self) -> Result<(), offload::Error> {
        if self.copied.elapsed() < COPY_AFTER.max(self.copying * COPY_SHARE) {
            return Ok(());
        }
        let start = Instant::now();
        self.copy = Some(self.stateful.state(&mut self.queue)?);
        self.copied = Instant::now();
        self.copying = start.elapsed();
        Ok(())
    }
}

struct Runner {
    /// None after it failed.
    there: Option<There>,
    /// Functions that it runs.
    functions: usize,
    /// How long a batch may be away.
    limit: Duration,
    stages: Stages,
    live: bool,
    shares: Shares,
}

impl Runner {
    /// Sends a parsed batch on its way, if there is a device.
    fn send(&mut self, batch: &Batch, notice: &mut dyn FnMut(&str)) {
        let Some(there) = &mut self.there else { return };
        if let Err(error) = there.copy().and_then(|()| there.send(batch)) {
            self.fail(&error, notice);
        }
    }

    /// Takes the batch back that was sent, or judges it here: not before the one before it is through all functions, which have the
    /// flows of one batch at a time.
    fn finish(&mut self, batch: &mut Batch, notice: &mut dyn FnMut(&str)) -> Result<(), Error> {
        let Some(there) = &mut self.there else { return self.judge_here(batch) };
        match there.wait(self.limit) {
            Ok(()) => {
                self.stages.arrive(batch);
                there.take(batch);
                self.shares.device += batch.len() as u64;
            }
            Err(error) => {
                self.fail(&error, notice);
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

    /// Goes on without the device.
    fn fail(&mut self, error: &offload::Error, notice: &mut dyn FnMut(&str)) {
        let Some(there) = self.there.take() else { return };
        let since = match &there.copy {
            Some(state) => {
                self.stages.take_over(state);
                format!("with the state of {:.1} s ago", there.copied.elapsed().as_secs_f64())
            }
            None => "without the state of before".into(),
        };
        let id = there.stateful.device().description().id;
        notice(&format!("{id} failed: {error}; this machine's cores go on {since}"));
        self.shares.faults += 1;
        there.queue.abandon();
    }

    /// The functions that are not the device's, and all that comes after.
    fn deliver(&mut self, batch: &mut Batch, outlet: &mut Outlet<'_>) -> Result<(), Error> {
        let expiry = if self.live { Expiry::after(batch) } else { None };
        self.stages.process(self.functions..self.stages.len(), batch, expiry)?;
        for (index, logged) in self.stages.logged().enumerate() {
            outlet.log_batch(index, logged, batch)?;
        }
        outlet.deliver(batch)?;
        for (index, lines) in self.stages.encoded().enumerate() {
            if lines.len() >= ENCODED || self.live {
                outlet.write_records(index, lines)?;
            }
        }
        batch.reset(packetloom_packet::batch::empty_arena());
        Ok(())
    }

    fn end(
        mut self,
        outlet: &mut Outlet<'_>,
        notice: &mut dyn FnMut(&str),
    ) -> Result<(Remains, Shares), Error> {
        if let Some(there) = &mut self.there {
            match there.stateful.state(&mut there.queue) {
                Ok(state) => self.stages.take_over(&state),
                Err(error) => self.fail(&error, notice),
            }
        }
        loop {
            let more = self.stages.drain();
            for (index, lines) in self.stages.encoded().enumerate() {
                outlet.write_records(index, lines)?;
            }
            if !more {
                break;
            }
        }
        Ok((self.stages.report(), self.shares))
    }
}
