//! One worker or several.
//!
//! All of them do the same: whoever has nothing else to do reads the next batch, of which it finds the frames only, lets others read on,
//! and parses it. Where no function keeps state for flows it judges the batch as well, so workers take consecutive batches. Otherwise it
//! partitions the packets by a hash of their flow, and each worker judges its share of each batch, in the order of the batches; one that is
//! ahead of others puts the shares together. Batches are delivered in order of arrival by the thread that began the run, which is a worker
//! too. It also does what is to be done between two batches, with the others at rest: a reload, a copy of the state.

use std::hash::{BuildHasher, RandomState};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, TryLockError};
use std::thread;
use std::time::Instant;

use crossbeam_channel::{Receiver, Sender, bounded};
use packetloom_io::capture::Resolution;
use packetloom_nf::Report;

use super::lifecycle::{ChainSwap, Lifecycle, Runner};
use super::listing::{Scan, Scanned};
use super::pipelines::{self, each_of, lock};
use super::reader::{Partition, Read, Reader, Scheme};
use super::slot::{Slot, Stage};
use super::statistics::{Pause, TurnClock, WorkerTime};
use super::{Intake, Outlet};
use crate::bell::Bell;
use crate::outcome::TopFlows;
use crate::pipeline::work::{Records, Work};
use crate::pipeline::{Before, Expiry, Pipeline, Shared, WorkerReport};
use crate::{Chain, Error, Plan, State};

/// Batches on their way for each worker, and beside: enough that none waits while another is slow.
const SLOTS_PER_WORKER: usize = 2;
const SLOTS: usize = 4;

/// Packets of a batch at most, where several workers get shares of it.
const MAX_BATCH: usize = 1 << 14;

/// Records handed over at the end, not written yet, for each worker.
const PENDING: usize = 4;

/// Packets of a batch: a worker's share of it is as large as the batches of one worker.
fn size(plan: &Plan) -> usize {
    let batch = plan.chain().settings.run.batch.get();
    (batch * plan.workers()).min(MAX_BATCH).max(batch)
}

/// What workers share.
struct Run<'r, 'i> {
    reader: Mutex<Reader<'r, 'i>>,
    slots: Vec<Slot>,
    /// What each worker judges by.
    pipelines: Vec<Mutex<Pipeline>>,
    /// Batches delivered.
    delivered: AtomicU64,
    /// Batches in all; `u64::MAX` before that is known.
    batches: AtomicU64,
    has_failed: AtomicBool,
    /// Whether all that is left is what functions hold.
    is_over: AtomicBool,
    bell: Bell,
    /// What workers do with their time.
    times: Arc<[WorkerTime]>,
    workers: usize,
    /// What packets are partitioned with.
    seed: u64,
    /// Whether somebody may be waiting for verdicts.
    live: bool,
    /// Whether packets come by interfaces, and whether workers stay awake while none does.
    by_interfaces: bool,
    spins: bool,
    /// Whether the state is kept at the end.
    is_kept: AtomicBool,
    /// That of the capture that frames go to which pass.
    resolution: Option<Resolution>,
}

/// What a look for something to do came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    /// Something, which was done.
    Work,
    /// No packet has come, and all that came are delivered.
    Idle,
    /// Nothing that this worker could do.
    Nothing,
}

/// What only the thread does that began the run.
struct Desk<'d, 'p, 'a, 'o, 's> {
    lifecycle: &'d mut Lifecycle<'p, 'a>,
    outlet: &'d mut Outlet<'o>,
    shared: Shared,
    /// Packets read when something was done between two batches the last time.
    begun: u64,
    size: usize,
    stay: Option<Stay<'s>>,
    /// Whether others go on; and with which chain, where it is the next one.
    has_left: bool,
    next: Option<(Plan, ChainSwap)>,
}

/// What workers begin with, and what they leave to others: the functions of a chain with all that they counted, and the state of flows.
pub(super) struct Handover {
    pub(super) pipelines: Vec<Pipeline>,
    pub(super) state: State,
    /// What flows are spread with among workers, all the run long: what functions keep beside their entries stays where it is.
    pub(super) seed: u64,
    /// Since when packets wait, for which nobody takes it that the run hangs.
    pub(super) since: Instant,
    pub(super) pause: Pause,
}

/// When workers leave a run to others, who also go over to the next chain in their place.
pub(super) struct Stay<'s> {
    /// Asked all the time whether that is before the next batch.
    pub(super) is_over: &'s mut dyn FnMut(&mut Intake<'_>, &mut Lifecycle<'_, '_>) -> bool,
    /// Packets of the run after which they do in any case.
    pub(super) until: Option<u64>,
}

/// How workers leave a run.
pub(super) enum Left {
    /// It is over.
    Nothing(WorkerReport),
    /// Others go on, and with which chain, where it is the next one.
    Flows(Handover, Option<(Plan, ChainSwap)>),
}

/// Tells the others that a worker failed, also where it panics.
struct Alarm<'a, 'r, 'i>(&'a Run<'r, 'i>, bool);

impl Drop for Alarm<'_, '_, '_> {
    fn drop(&mut self) {
        if self.1 {
            self.0.has_failed.store(true, Ordering::SeqCst);
        }
        self.0.bell.ring();
    }
}

pub(super) fn run(
    lifecycle: &mut Lifecycle<'_, '_>,
    intake: &mut Intake<'_>,
    outlet: &mut Outlet<'_>,
) -> Result<WorkerReport, Error> {
    let state = lifecycle.restored().unwrap_or_default();
    let pause = intake.statistics.pause();
    let seed = RandomState::new().hash_one(0u64);
    let begin = Handover { pipelines: Vec::new(), state, seed, since: Instant::now(), pause };
    match run_until(lifecycle, intake, outlet, begin, None)? {
        Left::Nothing(report) => Ok(report),
        Left::Flows(..) => unreachable!("nobody goes on"),
    }
}

/// The same where others went before, or go on; without pipelines for whoever begins.
pub(super) fn run_until(
    lifecycle: &mut Lifecycle<'_, '_>,
    intake: &mut Intake<'_>,
    outlet: &mut Outlet<'_>,
    begin: Handover,
    stay: Option<Stay<'_>>,
) -> Result<Left, Error> {
    let plan = lifecycle.plan();
    let (size, workers) = (size(plan), plan.workers());
    let shared = Shared::new(plan, workers, size);
    let same: Vec<_> = (0..plan.chain().functions.len()).map(Before::Same).collect();
    let mut before = begin.pipelines.into_iter();
    // Those beyond have no flows, but what they counted.
    let pipelines = (0..workers.max(before.len())).map(|number| {
        let next = match number < workers {
            true => Pipeline::new(plan.chain(), &shared, number),
            false => Pipeline::alone(plan.chain(), size),
        };
        let Some(mut before) = before.next() else { return Mutex::new(next) };
        before.succeed(next, &same);
        Mutex::new(before)
    });
    let pipelines = pipelines.collect();
    let scheme = scheme(plan, begin.seed);
    let (live, spins) = (intake.source.is_live(), intake.spins);
    let by_interfaces = intake.source.now().is_some();
    intake.leaves_paging = workers > 1;
    let asked = (Arc::clone(lifecycle.control()), lifecycle.reload_flag());
    let begun = intake.received;
    let reader = Reader::new(intake, scheme, asked, size);
    let slots = (SLOTS_PER_WORKER * (workers - 1) + 1 + if workers > 1 { SLOTS } else { 0 }) as u64;
    let run = Run {
        reader: Mutex::new(reader),
        slots: (0..slots).map(|number| Slot::new(number, size, workers)).collect(),
        pipelines,
        delivered: AtomicU64::new(0),
        batches: AtomicU64::new(u64::MAX),
        has_failed: AtomicBool::new(false),
        is_over: AtomicBool::new(false),
        bell: Bell::default(),
        times: outlet.statistics.begin_workers(workers),
        workers,
        seed: begin.seed,
        live,
        by_interfaces,
        spins,
        is_kept: AtomicBool::new(lifecycle.saves()),
        resolution: outlet.outputs.sink.as_ref().map(|sink| sink.resolution()),
    };
    let mut desk = Desk { lifecycle, outlet, shared, begun, size, stay, has_left: false, next: None };
    run.restore(&desk.shared, &begin.state)?;
    drop((begin.state, begin.pause));
    desk.between_batches(&run)?;
    let state = thread::scope(|scope| {
        let (give, take) = bounded(PENDING * workers);
        let others: Vec<_> = (1..workers)
            .map(|worker| {
                let (run, give) = (&run, give.clone());
                scope.spawn(move || run.help(worker, &give))
            })
            .collect();
        drop(give);
        let lead = catch_unwind(AssertUnwindSafe(|| run.lead(&mut desk, &take)));
        // Whoever still has something to hand over sees that nobody takes it.
        drop(take);
        let mut result = lead.unwrap_or(Err(Error::Worker));
        for other in others {
            // Who stops because another worker failed does not say why.
            if let Err(error) = other.join().unwrap_or(Err(Error::Worker))
                && matches!(result, Ok(_) | Err(Error::Worker))
            {
                result = Err(error);
            }
        }
        result
    })?;
    let since = Instant::now();
    let Desk { lifecycle, outlet, mut shared, has_left, next, .. } = desk;
    let pause = outlet.statistics.pause();
    let mut all = All { run: &run, shared: &mut shared, size, next: None, is_alone: true };
    if !has_left {
        return Ok(Left::Nothing(WorkerReport { state, ..all.counted(lifecycle.chain())? }));
    }
    let state = if next.is_some() { State::default() } else { all.save(lifecycle.chain())? };
    let pipelines =
        run.pipelines.into_iter().map(|pipeline| pipeline.into_inner().map_err(|_| Error::Worker));
    let pipelines = pipelines.collect::<Result<_, _>>()?;
    Ok(Left::Flows(Handover { pipelines, state, seed: begin.seed, since, pause }, next))
}

/// How a plan's batches are judged.
fn scheme(plan: &Plan, seed: u64) -> Scheme {
    let (chain, workers) = (plan.chain(), plan.workers());
    let keeps_state = !chain.layout.definitions.is_empty();
    let partition = Partition { by: plan.spread(), seed, workers };
    Scheme {
        policy: chain.settings.run.policy(),
        partition: (keeps_state && workers > 1).then_some(partition),
        is_bounded: plan.shared().next().is_some(),
    }
}

impl Run<'_, '_> {
    fn slot(&self, number: u64) -> &Slot {
        &self.slots[(number % self.slots.len() as u64) as usize]
    }

    fn delivered(&self) -> u64 {
        self.delivered.load(Ordering::Acquire)
    }

    fn batches(&self) -> u64 {
        self.batches.load(Ordering::Acquire)
    }

    /// A worker's part in the run, but for the one whose thread began it.
    fn help(&self, worker: usize, records: &Sender<(usize, Records)>) -> Result<(), Error> {
        let mut alarm = Alarm(self, true);
        let mut mine = 0;
        let mut clock = TurnClock::start(&self.times[worker]);
        while mine < self.batches() {
            let seen = self.bell.events();
            self.go_on()?;
            let found = self.work(worker, &mut mine)?;
            clock.turn(found == Found::Work);
            if found != Found::Work {
                self.wait(seen);
                clock.skip();
            }
        }
        while !self.is_over.load(Ordering::Acquire) {
            let seen = self.bell.events();
            self.go_on()?;
            self.bell.wait(seen);
        }
        let mut pipeline = lock(&self.pipelines[worker])?;
        loop {
            let more = !self.is_kept.load(Ordering::Relaxed) && pipeline.drain();
            for (function, lines) in pipeline.records().enumerate() {
                // Nobody takes them where the run has failed.
                if !lines.is_empty() && records.send((function, std::mem::take(lines))).is_err() {
                    return Err(Error::Worker);
                }
            }
            if !more {
                break;
            }
        }
        alarm.1 = false;
        Ok(())
    }

    /// The same for the one whose thread began it; the state at the end, where it is wanted.
    fn lead(
        &self,
        desk: &mut Desk<'_, '_, '_, '_, '_>,
        records: &Receiver<(usize, Records)>,
    ) -> Result<Option<State>, Error> {
        let mut alarm = Alarm(self, true);
        let mut mine = 0;
        let mut clock = TurnClock::start(&self.times[0]);
        while self.delivered() < self.batches() {
            let seen = self.bell.events();
            self.go_on()?;
            let has_delivered = self.deliver(desk)?;
            let has_paused = desk.pause(self)?;
            let found = self.work(0, &mut mine)?;
            let has_worked = has_delivered | has_paused | (found == Found::Work);
            clock.turn(has_worked);
            match found {
                _ if has_worked => {}
                Found::Idle if self.spins => {}
                Found::Idle => {
                    self.wait_for_packets()?;
                    clock.skip();
                }
                Found::Work | Found::Nothing => {
                    self.wait(seen);
                    clock.skip();
                }
            }
        }
        let state = if desk.has_left { None } else { desk.last_state(self)? };
        if desk.has_left {
            self.is_kept.store(true, Ordering::Relaxed);
        } else {
            desk.outlet.outputs.linger();
        }
        self.is_over.store(true, Ordering::Release);
        self.bell.ring();
        let mut pipeline = lock(&self.pipelines[0])?;
        let mut more = true;
        while more {
            more = !self.is_kept.load(Ordering::Relaxed) && pipeline.drain();
            // They were written before functions became those of another chain.
            if desk.next.is_none() {
                desk.outlet.write_pending(&mut pipeline)?;
            }
            // Others hand over theirs meanwhile.
            for (function, mut lines) in records.try_iter() {
                desk.outlet.write_records(function, &mut lines)?;
            }
        }
        for (function, mut lines) in records {
            desk.outlet.write_records(function, &mut lines)?;
        }
        alarm.1 = false;
        Ok(state)
    }

    /// Fails where another worker has.
    fn go_on(&self) -> Result<(), Error> {
        if self.has_failed.load(Ordering::Relaxed) { Err(Error::Worker) } else { Ok(()) }
    }

    /// Waits for other workers, where nothing is to be done.
    fn wait(&self, seen: u64) {
        if self.spins { self.bell.spin(seen) } else { self.bell.wait(seen) }
    }

    /// Waits for packets, where all that were read are delivered: only the thread that has everything to do that somebody may wait for.
    fn wait_for_packets(&self) -> Result<(), Error> {
        let mut reader = lock(&self.reader)?;
        // Another worker may have read some meanwhile.
        if reader.next == self.delivered() { reader.intake.rest() } else { Ok(()) }
    }

    /// Does what there is to be done.
    fn work(&self, worker: usize, mine: &mut u64) -> Result<Found, Error> {
        if self.judge_share(worker, mine)? || self.merge()? {
            return Ok(Found::Work);
        }
        self.read(worker)
    }

    /// Judges a worker's share of the next batch that it has one of.
    fn judge_share(&self, worker: usize, mine: &mut u64) -> Result<bool, Error> {
        let slot = loop {
            let slot = self.slot(*mine);
            match slot.stage() {
                (number, Stage::Shared) if number == *mine => break slot,
                // Another worker judged the whole of it.
                (number, stage) if number > *mine || (number == *mine && stage == Stage::Judged) => {
                    *mine += 1
                }
                _ => return Ok(false),
            }
        };
        if slot.judge_share(*mine, worker, &mut *lock(&self.pipelines[worker])?)? {
            self.bell.ring();
        }
        *mine += 1;
        Ok(true)
    }

    /// Puts the shares of a batch together: a worker that is ahead of others, and not the one that all wait for.
    fn merge(&self) -> Result<bool, Error> {
        let delivered = self.delivered();
        let Some(number) =
            (delivered..delivered + self.slots.len() as u64).find(|&number| self.slot(number).claim(number))
        else {
            return Ok(false);
        };
        let slot = self.slot(number);
        let mut work = slot.work()?;
        slot.merge(&mut work)?;
        self.finish(number, slot, &mut work);
        Ok(true)
    }

    /// Reads and parses the next batch, and judges or partitions it.
    fn read(&self, worker: usize) -> Result<Found, Error> {
        let mut reader = match self.reader.try_lock() {
            Ok(reader) => reader,
            // The other one may find nothing, and wait for the bell: it does not ring for a packet that comes then.
            Err(TryLockError::WouldBlock) if worker == 0 && self.by_interfaces => return Ok(Found::Idle),
            Err(TryLockError::WouldBlock) => return Ok(Found::Nothing),
            Err(TryLockError::Poisoned(_)) => return Err(Error::Worker),
        };
        let number = reader.next;
        let slot = self.slot(number);
        if slot.stage() != (number, Stage::Free) {
            return Ok(Found::Nothing);
        }
        let mut work = slot.work()?;
        let tick = match reader.read(&mut work.batch, self.delivered())? {
            Read::Batch => None,
            Read::Tick(now) => Some(now),
            Read::Idle if number == self.delivered() => return Ok(Found::Idle),
            Read::Nothing | Read::Idle => return Ok(Found::Nothing),
            Read::End => {
                self.batches.store(number, Ordering::Release);
                self.bell.ring();
                return Ok(Found::Nothing);
            }
        };
        let scheme = reader.scheme;
        let paging = if reader.intake.leaves_paging { reader.intake.source.paging() } else { None };
        drop(reader);
        // Others may read on.
        if self.pipelines.len() > 1 {
            self.bell.ring();
        }
        if let Some(paging) = paging {
            paging.run();
        }
        let Work { batch, expiry, indices, .. } = &mut *work;
        batch.parse(scheme.policy);
        *expiry = match tick {
            Some(now) => Some(Expiry::at(now)),
            None if self.live => Expiry::after(batch),
            None => None,
        };
        match scheme.partition {
            None => {
                let mut pipeline = lock(&self.pipelines[worker])?;
                pipeline.judge(batch, *expiry)?;
                work.take(&mut pipeline);
                self.finish(number, slot, &mut work);
            }
            Some(partition) => {
                partition.split(batch, indices);
                slot.open(number, &work)?;
                drop(work);
                self.bell.ring();
            }
        }
        Ok(Found::Work)
    }

    /// Makes a batch ready to be delivered.
    fn finish(&self, number: u64, slot: &Slot, work: &mut Work) {
        work.finish(self.resolution);
        slot.set(number, Stage::Judged);
        if self.pipelines.len() > 1 {
            self.bell.ring();
        }
    }

    /// Delivers batches that are ready, in order.
    fn deliver(&self, desk: &mut Desk<'_, '_, '_, '_, '_>) -> Result<bool, Error> {
        let mut number = self.delivered();
        let begun = number;
        while self.slot(number).stage() == (number, Stage::Judged) {
            let slot = self.slot(number);
            let mut work = slot.work()?;
            desk.outlet.take(&mut work)?;
            slot.records(|function, lines| desk.outlet.write_records(function, lines))?;
            // Its memory is not held any longer.
            work.batch.reset(packetloom_packet::batch::empty_arena());
            number += 1;
            self.delivered.store(number, Ordering::Release);
            slot.set(number - 1 + self.slots.len() as u64, Stage::Free);
        }
        let has_delivered = number > begun;
        if has_delivered && self.pipelines.len() > 1 {
            self.bell.ring();
        }
        Ok(has_delivered)
    }

    /// Gives each worker the flows whose packets it gets.
    fn restore(&self, shared: &Shared, state: &State) -> Result<(), Error> {
        let partition = lock(&self.reader)?.scheme.partition;
        pipelines::restore(&self.pipelines[..self.workers], partition, state)?;
        shared.restore(state)
    }
}

impl Desk<'_, '_, '_, '_, '_> {
    /// Does what is to be done between two batches, once all that were read are delivered; whether there was something.
    fn pause(&mut self, run: &Run<'_, '_>) -> Result<bool, Error> {
        self.lifecycle.tend();
        {
            let mut reader = match run.reader.try_lock() {
                Ok(reader) => reader,
                Err(TryLockError::WouldBlock) => return Ok(false),
                Err(TryLockError::Poisoned(_)) => return Err(Error::Worker),
            };
            self.outlet.tell(reader.intake, self.lifecycle.notice());
            // No state is saved twice without packets in between, however long that takes.
            reader.is_save_due = reader.intake.received > self.begun && self.lifecycle.is_save_due();
            if let Some(stay) = &mut self.stay
                && !reader.is_leaving
            {
                reader.is_leaving = (stay.is_over)(reader.intake, self.lifecycle);
            }
            if !reader.is_paused || reader.has_ended || run.delivered() < reader.next {
                return Ok(false);
            }
        }
        self.between_batches(run)?;
        Ok(true)
    }

    /// Does all that is to be done before the next batch, with none on its way.
    fn between_batches(&mut self, run: &Run<'_, '_>) -> Result<(), Error> {
        let is_alone = self.stay.is_none();
        let mut all = All { run, shared: &mut self.shared, size: self.size, next: None, is_alone };
        let at = lock(&run.reader)?.intake.position();
        let mut source = || lock(&run.reader)?.intake.report();
        let until = self.lifecycle.between_batches(at, &mut all, self.outlet, &mut source)?;
        self.next = all.next;
        let stays_until = self.stay.as_ref().and_then(|stay| stay.until);
        let mut reader = lock(&run.reader)?;
        reader.intake.until = [until, stays_until].into_iter().flatten().min();
        self.has_left =
            self.next.is_some() || reader.is_leaving || stays_until.is_some_and(|until| until <= at.received);
        if self.has_left {
            run.batches.store(reader.next, Ordering::Release);
        }
        reader.is_paused = self.has_left;
        reader.is_save_due = false;
        self.begun = at.received;
        drop(reader);
        run.bell.ring();
        Ok(())
    }

    /// The state at the end, where it is wanted.
    fn last_state(&mut self, run: &Run<'_, '_>) -> Result<Option<State>, Error> {
        let mut all = All { run, shared: &mut self.shared, size: self.size, next: None, is_alone: true };
        let at = lock(&run.reader)?.intake.position();
        self.lifecycle.last_state(at, &mut all)
    }
}

/// All workers, at rest.
struct All<'a, 'r, 'i> {
    run: &'a Run<'r, 'i>,
    shared: &'a mut Shared,
    size: usize,
    /// The next chain, where others go over to it.
    next: Option<(Plan, ChainSwap)>,
    /// Whether there are no others.
    is_alone: bool,
}

impl Runner for All<'_, '_, '_> {
    fn save(&mut self, chain: &Chain) -> Result<State, Error> {
        let held = pipelines::save(&self.run.pipelines, chain)?;
        let mut state = State::of(&chain.functions, &chain.layout, held);
        self.shared.save(&mut state)?;
        Ok(state)
    }

    fn list(&mut self, _chain: &Chain, scan: &Scan<'_>) -> Result<Scanned, Error> {
        let Self { run, shared, .. } = &*self;
        let definition = scan.part.definition;
        let list = |worker: usize| {
            let mut scanned = Scanned::default();
            lock(&run.pipelines[worker])?.entries(definition).for_each(|entry| scan.see(entry, &mut scanned));
            shared.each_entry(definition, worker, |entry| scan.see(entry, &mut scanned))?;
            Ok::<_, Error>(scanned)
        };
        let mut listed = each_of(0..run.pipelines.len(), list)?.into_iter();
        let mut scanned = listed.next().ok_or(Error::Worker)?;
        listed.for_each(|other| scan.merge(&mut scanned, other));
        Ok(scanned)
    }

    fn remove(&mut self, _chain: &Chain, scan: &Scan<'_>, outlet: &mut Outlet<'_>) -> Result<u64, Error> {
        let mut removed = 0;
        self.shared.remove(scan.part, |entry| scan.is_meant(entry, &mut removed))?;
        Ok(removed + pipelines::remove(&self.run.pipelines, scan, outlet)?)
    }

    fn drain(&mut self, ending: &[usize]) -> Result<bool, Error> {
        pipelines::drain(&self.run.pipelines, ending)
    }

    fn write_records(&mut self, outlet: &mut Outlet<'_>) -> Result<(), Error> {
        pipelines::write_records(&self.run.pipelines, outlet)
    }

    fn reports(
        &mut self,
        chain: &Chain,
        leaving: &[usize],
    ) -> Result<(Vec<Box<dyn Report>>, TopFlows), Error> {
        let (mut reports, top_flows) = pipelines::reports(&self.run.pipelines, leaving)?;
        for (&function, report) in leaving.iter().zip(&mut reports) {
            self.shared.add_held(chain, function, &mut **report)?;
        }
        Ok((reports, top_flows))
    }

    fn counted(&mut self, chain: &Chain) -> Result<WorkerReport, Error> {
        let pipelines = self.run.pipelines.iter();
        let counted: Vec<_> =
            pipelines.map(|pipeline| Ok(lock(pipeline)?.report())).collect::<Result<_, Error>>()?;
        self.shared.total(chain, counted.into_iter())
    }

    fn change(&mut self, plan: &Plan, function: usize) -> Result<(), Error> {
        pipelines::change(&self.run.pipelines, plan.chain(), function)
    }

    fn has_left(&self) -> bool {
        self.next.is_some()
    }

    fn swap(&mut self, plan: &Plan, swap: ChainSwap) -> Result<(), Error> {
        if !self.is_alone {
            self.next = Some((plan.clone(), swap));
            return Ok(());
        }
        let ChainSwap { before, state, .. } = swap;
        let workers = self.run.pipelines.len();
        *self.shared = Shared::new(plan, workers, self.size);
        {
            let mut reader = lock(&self.run.reader)?;
            // Functions with tables of their own that go on find their flows where they were.
            reader.scheme = scheme(plan, self.run.seed);
        }
        for (number, pipeline) in self.run.pipelines.iter().enumerate() {
            lock(pipeline)?.succeed(Pipeline::new(plan.chain(), self.shared, number), &before);
        }
        self.run.restore(self.shared, &state)
    }
}
