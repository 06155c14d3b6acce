//! The first functions of a chain on a device, the others here, and all of them here whenever the device cannot.
//!
//! Batches leave in order of arrival, whoever judges them. As many as the [`Accelerator`] takes are on their way to the device while the next
//! one is read; on a live source there is one at a time. Where there are several workers, and the device has the whole chain, a batch is in
//! pieces: each thread of a [`Crew`] does what is to be done here for a piece of it, while another one reads the next batch. Where the device fails, those that were with it are judged here, so each packet is
//! judged once. State that it keeps for flows is copied here from time to time, and is gone on with from the last copy; what it lacks is what
//! packets changed since. The device is tried again after a while, and begins with the state as it is here then.
//!
//! State is saved, and handed on to another chain, with no batch away. What a device does not take of that chain, or has not taken yet, is
//! done here.
//!
//! [`Accelerator`]: crate::offload::accelerator::Accelerator

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use packetloom_device::Device;
use packetloom_io::Polled;
use packetloom_io::capture::Resolution;
use packetloom_nf::Report;
use packetloom_nf::flows::Counts;
use packetloom_nf::units::Span;
use packetloom_packet::Batch;
use packetloom_packet::batch::{Policy, empty_arena};

use super::lifecycle::{self, ChainSwap, Lifecycle};
use super::{Intake, Outlet};
use crate::chain::{self, Run};
use crate::crew::Crew;
use crate::offload::pace::{Choice, Pace};
use crate::offload::supervisor::Supervisor;
use crate::offload::{self, acls, stateful};
use crate::outcome::{Shares, TopFlows};
use crate::pipeline::work::Work;
use crate::pipeline::{Expiry, Pipeline, WorkerReport};
use crate::{Chain, Error, Plan, State};

pub(super) fn run(
    lifecycle: &mut Lifecycle<'_, '_>,
    device: Device,
    intake: &mut Intake<'_>,
    outlet: &mut Outlet<'_>,
) -> Result<(WorkerReport, Shares), Error> {
    let restored = lifecycle.restored().unwrap_or_default();
    let mut runner = Runner::new(lifecycle.plan(), device, intake, outlet)?;
    runner.begin(lifecycle.plan(), restored, !runner.is_auto)?;
    let judged = runner.judge_all(lifecycle, intake, outlet);
    runner.tell(lifecycle);
    judged?;
    let state = lifecycle.last_state(intake.position(), &mut runner)?;
    runner.end(outlet, state)
}

/// Packets of a batch at most, for a plan.
fn room(plan: &Plan, device: &Device) -> usize {
    if plan.offloaded() > 0 { acls::room(plan.feeders()) } else { stateful::room(device) }
}

/// What the threads of a crew judge a plan's batches by.
fn stages(plan: &Plan, crew: &Crew, room: usize) -> Vec<Mutex<Pipeline>> {
    (0..crew.members()).map(|_| Mutex::new(Pipeline::alone(plan.chain(), room))).collect()
}

/// How long a copy of a device's state is waited for that was begun before the device failed.
const COPY_LIMIT: Duration = Duration::from_millis(100);

/// Packets that are worth a piece of their own.
const PIECE: usize = 512;

/// A batch, in one piece or several, each with packets but the first of a batch that has none.
struct Pieces {
    works: Vec<Work>,
    /// How many of these are in use, from the first on.
    used: usize,
    /// Packets in all.
    packets: usize,
    /// Packets that were to be read, and when they had been.
    asked: usize,
    read: Instant,
    is_parsed: bool,
    /// Whether they are about as many as were asked for, since there are more.
    is_about: bool,
}

impl Pieces {
    /// Room for a batch in so many pieces at most.
    fn new(count: usize, room: usize) -> Self {
        let works = (0..count).map(|_| Work::new(room / count, 0)).collect();
        Self { works, used: 0, packets: 0, asked: 0, read: Instant::now(), is_parsed: false, is_about: false }
    }

    fn used(&mut self) -> &mut [Work] {
        &mut self.works[..self.used]
    }

    /// Reads up to so many packets; the first piece of them by `first`. Pages of a mapped capture that are needed soon are brought in `later`.
    fn fill(
        &mut self,
        size: usize,
        intake: &mut Intake<'_>,
        later: &impl Fn(Box<dyn FnOnce() + Send>),
        first: impl FnOnce(&mut Intake<'_>, &mut Batch) -> Result<Polled, Error>,
    ) -> Result<Polled, Error> {
        (self.used, self.packets, self.asked) = (0, 0, size);
        (self.is_parsed, self.is_about) = (false, false);
        let each = self.size_of_piece(size);
        let mut first = Some(first);
        while self.packets < size && self.used < self.works.len() {
            let batch = &mut self.works[self.used].batch;
            batch.set_capacity(each.min(size - self.packets));
            let polled = match first.take() {
                Some(first) => first(intake, batch)?,
                // What is to be done between two batches is not done within one.
                None if intake.until.is_some_and(|until| until <= intake.received) => break,
                None => match intake.poll(batch) {
                    Err(error) => {
                        intake.failed = Some(error);
                        break;
                    }
                    polled => polled?,
                },
            };
            if intake.leaves_paging
                && let Some(paging) = intake.source.paging()
            {
                later(Box::new(|| paging.run()));
            }
            if polled != Polled::Frames {
                if self.used > 0 {
                    break;
                }
                return Ok(polled);
            }
            self.packets += batch.len();
            self.used += 1;
        }
        self.read = Instant::now();
        Ok(Polled::Frames)
    }

    /// Packets of a piece of a batch at most.
    fn size_of_piece(&self, size: usize) -> usize {
        size.div_ceil(self.works.len()).max(PIECE.min(size))
    }

    /// Reads about so many packets with all threads of a crew, which also parse them, as a policy says, if one is given; whether that can be.
    fn fill_sections(
        &mut self,
        size: usize,
        intake: &mut Intake<'_>,
        crew: &Crew,
        policy: Option<Policy>,
    ) -> bool {
        let works = size.div_ceil(self.size_of_piece(size));
        // All of them together are no more than that.
        let (each, works) = (size / works, &mut self.works[..works]);
        let parse = |work: &mut Work| policy.into_iter().for_each(|policy| work.batch.parse(policy));
        let Some(used) = intake.poll_sections(works, each, crew, parse) else { return false };
        self.packets = works[..used].iter().map(|work| work.batch.len()).sum();
        (self.used, self.asked, self.read) = (used, size, Instant::now());
        (self.is_parsed, self.is_about) = (policy.is_some(), used == works.len());
        true
    }

    /// Does something with each piece.
    fn each(&mut self, crew: &Crew, work: impl Fn(&mut Work) + Send + Sync) {
        crew.each(self.used().iter_mut().collect(), work);
    }
}

/// A batch on its way through the chain.
struct Away {
    pieces: Pieces,
    /// Whether it is with the device.
    is_sent: bool,
    sent: Instant,
    /// Time that this machine spent on it so far.
    spent: Duration,
}

struct Runner {
    /// What is run.
    plan: Plan,
    device: Device,
    supervisor: Supervisor,
    /// Whether batches are also judged here where that is better, from the beginning on.
    is_auto: bool,
    live: bool,
    /// Whether packets go on while something is loaded.
    goes_on: bool,
    /// Packets of a batch at most, and of one that is judged here.
    room: usize,
    batch: usize,
    policy: Policy,
    /// Functions that the device takes, from the first on.
    functions: usize,
    /// Whether it looks at parsed batches, and whether they are parsed here in any case: where somebody needs keys here.
    parses_before: bool,
    parses: bool,
    /// Packets of the run before which rules change, and how many changes those on the device, or on their way there, have seen.
    changes: Vec<u64>,
    changed: usize,
    /// Whether the device has the flows of its functions.
    is_there: bool,
    /// What each thread of the crew judges by, or takes note of what the device found: all but the first keep no state.
    stages: Vec<Mutex<Pipeline>>,
    crew: Arc<Crew>,
    /// That of the capture that frames go to which pass.
    resolution: Option<Resolution>,
    pace: Pace,
    choice: Choice,
    under_way: VecDeque<Away>,
    spare: Vec<Pieces>,
    shares: Shares,
}

impl Runner {
    fn new(plan: &Plan, device: Device, intake: &mut Intake<'_>, outlet: &Outlet<'_>) -> Result<Self, Error> {
        let run = &plan.chain().settings.run;
        let Run { device_timeout, max_latency, .. } = run;
        let [limit, latency] =
            [device_timeout, max_latency].map(|span| span.and_then(Span::limit).map(Duration::from_nanos));
        let room = room(plan, &device);
        let crew = Arc::new(Crew::new(run.workers.get())?);
        intake.leaves_paging = crew.members() > 1;
        Ok(Self {
            supervisor: Supervisor::new(device.clone(), limit),
            device,
            is_auto: run.device == chain::Device::Auto,
            live: intake.source.is_live(),
            goes_on: intake.source.now().is_some(),
            room,
            batch: run.batch().get(),
            policy: run.policy(),
            functions: 0,
            parses_before: false,
            parses: false,
            changes: Vec::new(),
            changed: 0,
            is_there: false,
            stages: stages(plan, &crew, room),
            crew,
            resolution: outlet.outputs.sink.as_ref().map(|sink| sink.resolution()),
            pace: Pace::new(room, latency),
            choice: Choice::default(),
            under_way: VecDeque::new(),
            spare: Vec::new(),
            shares: Shares::default(),
            plan: plan.clone(),
        })
    }

    /// What judges batches here, and keeps the state that is here.
    fn main(&mut self) -> &mut Pipeline {
        self.stages[0].get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the device has the whole chain.
    fn is_whole(&self) -> bool {
        self.functions == self.plan.chain().functions.len()
    }

    /// Whether batches are in several pieces: what is done here for one of them depends on no other.
    fn has_pieces(&self) -> bool {
        self.plan.feeders() > 1
    }

    /// Begins with a chain and its state: what is the device's goes there as soon as that is loaded, which is waited for or not.
    fn begin(&mut self, plan: &Plan, mut state: State, waits: bool) -> Result<(), offload::Error> {
        self.plan = plan.clone();
        let functions = plan.chain().functions();
        self.policy = plan.chain().settings.run.policy();
        self.functions = plan.on_device();
        self.parses_before = plan.offloaded() == 0;
        let (there, here) = functions.split_at(self.functions);
        self.parses = !here.is_empty() || there.iter().any(|function| function.log().is_some());
        self.changes = functions.iter().flat_map(|function| function.changes_at()).collect();
        self.changed = 0;
        self.is_there = false;
        self.choice = Choice::default();
        self.supervisor.load(plan.load(0));
        let loaded = if waits { self.supervisor.wait() } else { Ok(()) };
        if loaded.is_ok() {
            self.go_there(&mut state);
        }
        self.main().restore(&state);
        loaded
    }

    fn judge_all(
        &mut self,
        lifecycle: &mut Lifecycle<'_, '_>,
        intake: &mut Intake<'_>,
        outlet: &mut Outlet<'_>,
    ) -> Result<(), Error> {
        self.do_what_is_due(lifecycle, intake, outlet)?;
        let mut begun = 0;
        let later = self.crew.later();
        // What was read, while the batch before it was sent.
        let mut next: Option<(Pieces, bool)> = None;
        loop {
            if lifecycle.is_due(intake.received, begun) {
                if let Some((pieces, is_for_device)) = next.take() {
                    self.go_on_with(pieces, intake.received, is_for_device, outlet)?;
                }
                self.finish_all(outlet)?;
                self.do_what_is_due(lifecycle, intake, outlet)?;
                begun = intake.received;
            }
            self.supervisor.tend();
            self.tell(lifecycle);
            outlet.tell(intake, lifecycle.notice());
            // Verdicts that are known do not wait for the next packets to be read.
            while self.is_back() {
                self.finish_oldest(outlet)?;
            }
            let mut pieces = self.spare.pop().unwrap_or_else(|| self.pieces());
            let is_for_device = self.is_for_device();
            // Cores like small batches better.
            let size = if is_for_device { self.pace.size() } else { self.batch.min(self.room) };
            let reads_together = !self.live && self.has_pieces();
            let policy = self.parses_before.then_some(self.policy);
            if reads_together && pieces.fill_sections(size, intake, &self.crew, policy) {
                if let Some((before, is_for_device)) = next.take() {
                    let end = intake.received - pieces.packets as u64;
                    self.go_on_with(before, end, is_for_device, outlet)?;
                }
                self.go_on_with(pieces, intake.received, is_for_device, outlet)?;
                continue;
            }
            let polled = match next.take() {
                None => {
                    let is_due = |packets: u64| lifecycle.is_due(packets, begun);
                    pieces.fill(size, intake, &later, |intake, batch| intake.fill(batch, is_due))?
                }
                Some((before, is_for_device)) => {
                    let crew = Arc::clone(&self.crew);
                    let end = intake.received;
                    let read = || pieces.fill(size, intake, &later, |intake, batch| intake.poll(batch));
                    let send = || self.go_on_with(before, end, is_for_device, outlet);
                    let (polled, done) = crew.beside(read, send);
                    done?;
                    polled?
                }
            };
            match polled {
                Polled::Frames => {}
                Polled::Nothing => {
                    // Where time goes on without packets, none is away then.
                    let first = &mut pieces.works[0];
                    if let Some(now) = intake.tick(&mut first.batch) {
                        first.batch.parse(self.policy);
                        self.main().arrive(&first.batch);
                        first.expiry = Some(Expiry::at(now));
                        pieces.used = 1;
                        self.deliver(pieces, outlet)?;
                    } else {
                        self.spare.push(pieces);
                    }
                    continue;
                }
                Polled::End => break,
            }
            // On a live source nobody waits for the next batch to get the verdicts on this one.
            if self.live {
                self.go_on_with(pieces, intake.received, is_for_device, outlet)?;
                self.finish_all(outlet)?;
            } else if self.crew.members() == 1 {
                self.go_on_with(pieces, intake.received, is_for_device, outlet)?;
            } else {
                next = Some((pieces, is_for_device));
            }
        }
        if let Some((pieces, is_for_device)) = next.take() {
            self.go_on_with(pieces, intake.received, is_for_device, outlet)?;
        }
        self.finish_all(outlet)?;
        self.read();
        self.come_back();
        Ok(())
    }

    /// Room for another batch.
    fn pieces(&self) -> Pieces {
        // More than there are threads, of which some are behind.
        let count = if self.has_pieces() { 2 * self.crew.members() } else { 1 };
        Pieces::new(count, self.room)
    }

    /// Sends a batch that was read, with which so many packets of the run were; and has what comes back go on, which is the oldest batch
    /// where as many are away as can be.
    fn go_on_with(
        &mut self,
        mut pieces: Pieces,
        end: u64,
        is_for_device: bool,
        outlet: &mut Outlet<'_>,
    ) -> Result<(), Error> {
        // Fewer than were hoped for may be better here.
        let is_full = pieces.packets * 2 > pieces.asked;
        let is_for_device =
            is_for_device && (!self.is_auto || is_full || self.choice.is_for_device(pieces.packets));
        if self.parses_before && !pieces.is_parsed {
            let policy = self.policy;
            pieces.each(&self.crew, |work| work.batch.parse(policy));
        }
        let depth = self.supervisor.ready().map_or(1, |there| there.depth());
        while self.under_way.len() > depth {
            self.finish_oldest(outlet)?;
        }
        // The next one is sent before what comes after the device is done with the one before it.
        let mut done = if self.under_way.len() < depth { None } else { self.under_way.pop_front() };
        if let Some(done) = &mut done {
            self.finish(done)?;
        }
        let away = self.send(pieces, end, is_for_device);
        self.under_way.push_back(away);
        match done {
            Some(done) => self.deliver(done.pieces, outlet),
            None => Ok(()),
        }
    }

    /// Whether the next batch is meant for the device.
    fn is_for_device(&mut self) -> bool {
        self.supervisor.ready().is_some() && (!self.is_auto || self.choice.choose(self.pace.size()))
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

    /// Sends a batch to the device, if it is meant for it, and the device is there and takes it; with the batch, so many packets of the run
    /// were read.
    fn send(&mut self, mut pieces: Pieces, end: u64, is_for_device: bool) -> Away {
        let start = Instant::now();
        let mut is_sent = false;
        if is_for_device {
            if !self.is_there && self.under_way.is_empty() {
                self.hand_over();
            }
            is_sent =
                self.has_rules(end - pieces.packets as u64, pieces.packets) && self.submit(pieces.used());
        }
        let sent = Instant::now();
        Away { pieces, is_sent, sent, spent: sent - start }
    }

    fn submit(&mut self, pieces: &[Work]) -> bool {
        let Some(there) = self.supervisor.ready().filter(|_| self.is_there) else { return false };
        there.submit(pieces, &self.crew).unwrap_or_else(|error| {
            self.fail(&error);
            false
        })
    }

    /// Whether the device has the rules that all of these packets are judged by. If not, it is loaded with them when no batch is away;
    /// changes that come before a packet of a batch are made when it is judged.
    fn has_rules(&mut self, first: u64, packets: usize) -> bool {
        let changes = |packet| self.changes.partition_point(|&at| at <= packet);
        let (changed, last) = (changes(first), changes(first + packets as u64 - 1));
        if changed != self.changed && self.under_way.iter().all(|away| !away.is_sent) {
            (self.changed, self.is_there) = (changed, false);
            self.supervisor.load(self.plan.load(changed));
        }
        changed == self.changed && changed == last
    }

    /// Whether nobody has to wait for the oldest batch.
    fn is_back(&mut self) -> bool {
        self.under_way.front().is_some_and(|oldest| {
            !oldest.is_sent || self.supervisor.ready().is_none_or(|there| there.is_back())
        })
    }

    /// Takes all batches through the chain that are on their way.
    fn finish_all(&mut self, outlet: &mut Outlet<'_>) -> Result<(), Error> {
        while !self.under_way.is_empty() {
            self.finish_oldest(outlet)?;
        }
        Ok(())
    }

    fn finish_oldest(&mut self, outlet: &mut Outlet<'_>) -> Result<(), Error> {
        let Some(mut oldest) = self.under_way.pop_front() else { return Ok(()) };
        self.finish(&mut oldest)?;
        self.deliver(oldest.pieces, outlet)
    }

    /// Has the first functions judge a batch: by what the device found, or here. Not before the one before it is through all functions,
    /// which have the flows of one batch at a time.
    fn finish(&mut self, away: &mut Away) -> Result<(), Error> {
        let is_back = away.is_sent && self.wait();
        let start = Instant::now();
        let (policy, packets) = (self.policy, away.pieces.packets);
        if !self.parses_before && (self.parses || !is_back) {
            away.pieces.each(&self.crew, |work| work.batch.parse(policy));
        }
        if is_back && !self.is_whole() {
            // There is one piece.
            let (main, pieces) = (self.main(), &away.pieces.works);
            main.arrive(&pieces[0].batch);
        }
        match self.supervisor.ready().filter(|_| is_back) {
            Some(there) => {
                there.take(away.pieces.used(), &self.stages, &self.crew, &mut self.shares);
                self.supervisor.works();
                let spent = away.spent + start.elapsed();
                self.choice.judged_there(packets, spent, start - away.sent);
            }
            None => {
                let functions = self.functions;
                for work in away.pieces.used() {
                    let main = self.main();
                    main.arrive(&work.batch);
                    main.process(0..functions, &mut work.batch, None)?;
                    work.take(main);
                }
                self.shares.here += packets as u64;
                self.choice.judged_here(packets, start.elapsed());
            }
        }
        // Of sections there are about as many packets as were asked for.
        let read = if away.pieces.is_about { away.pieces.asked } else { packets };
        self.pace.observe(read, away.pieces.read.elapsed());
        if self.live {
            away.pieces.used().iter_mut().for_each(|work| work.expiry = Expiry::after(&work.batch));
        }
        Ok(())
    }

    /// Waits for the oldest batch that is with the device; whether it has come back.
    fn wait(&mut self) -> bool {
        let limit = self.supervisor.limit();
        let Some(there) = self.supervisor.ready() else { return false };
        match there.wait(limit) {
            Ok(()) => true,
            Err(error) => {
                self.fail(&error);
                false
            }
        }
    }

    /// The functions that are not the device's, and all that comes after.
    fn deliver(&mut self, mut pieces: Pieces, outlet: &mut Outlet<'_>) -> Result<(), Error> {
        let functions = self.functions;
        for work in pieces.used() {
            let main = self.main();
            main.process(functions..main.len(), &mut work.batch, work.expiry)?;
            work.take(main);
        }
        let resolution = self.resolution;
        pieces.each(&self.crew, |work| work.finish(resolution));
        for work in pieces.used() {
            outlet.take(work)?;
            work.expiry = None;
            work.batch.reset(empty_arena());
        }
        self.spare.push(pieces);
        Ok(())
    }

    /// Has the device begin with the flows of its functions, if it is there, with no batch away; takes them out of a state.
    fn go_there(&mut self, state: &mut State) {
        let Some(there) = self.supervisor.ready() else { return };
        if let Err(error) = there.restore(&state.definitions) {
            return self.fail(&error);
        }
        self.is_there = true;
        for held in state.definitions.iter_mut().take(there.definitions()) {
            held.entries = [Vec::new(), Vec::new()];
            held.counts = Counts::default();
        }
    }

    /// The same with what is here.
    fn hand_over(&mut self) {
        let definitions = self.supervisor.ready().map_or(0, |there| there.definitions());
        let (plan, room) = (self.plan.clone(), self.room);
        let chain = plan.chain();
        let held = self.main().save(chain).take(definitions);
        let mut state = State::of(&chain.functions, &chain.layout, held);
        self.go_there(&mut state);
        if self.is_there {
            self.main().hand_over(chain, definitions, room);
        }
    }

    /// Copies what the device keeps, with no batch away.
    fn read(&mut self) {
        if self.is_there
            && let Some(there) = self.supervisor.ready()
            && let Err(error) = there.snapshot()
        {
            self.fail(&error);
        }
    }

    /// The last copy of what the device keeps, if it keeps something; and how old it is.
    fn copy(&mut self) -> Option<(&stateful::State, Duration)> {
        self.supervisor.ready().filter(|_| self.is_there)?.copy()
    }

    /// Takes over here what the device has kept, as it was copied last.
    fn come_back(&mut self) {
        if self.is_there
            && let Some((copy, _)) = self.supervisor.ready().and_then(|there| there.copy())
        {
            self.stages[0].get_mut().unwrap_or_else(PoisonError::into_inner).take_over(copy);
        }
        self.is_there = false;
    }

    /// Goes on without the device for a while.
    fn fail(&mut self, error: &offload::Error) {
        if let Some(there) = self.supervisor.ready() {
            there.await_copy(COPY_LIMIT);
        }
        let age = self.copy().map(|(_, age)| age.as_secs_f64());
        let with = age.map_or(String::new(), |age| format!(" with the state of {age:.1} s ago"));
        self.come_back();
        if let Some(there) = self.supervisor.fail(error, &with) {
            there.abandon();
        }
        self.under_way.iter_mut().for_each(|away| away.is_sent = false);
    }

    /// What all threads have counted so far.
    fn report(&mut self) -> WorkerReport {
        let mut total = self.main().report();
        for stages in &mut self.stages[1..] {
            total.merge(&stages.get_mut().unwrap_or_else(PoisonError::into_inner).report());
        }
        total
    }

    /// Tells the user what there is to be told.
    fn tell(&mut self, lifecycle: &mut Lifecycle<'_, '_>) {
        self.supervisor.news().for_each(|text| lifecycle.notice()(&text));
    }

    fn end(mut self, outlet: &mut Outlet<'_>, state: Option<State>) -> Result<(WorkerReport, Shares), Error> {
        outlet.drain(self.main(), state.is_some())?;
        self.shares.faults = self.supervisor.faults();
        (self.shares.loads, self.shares.longest_load) = self.supervisor.loads();
        Ok((WorkerReport { state, ..self.report() }, self.shares))
    }
}

impl lifecycle::Runner for Runner {
    fn save(&mut self, chain: &Chain) -> Result<State, Error> {
        self.read();
        let mut held: Vec<_> = self.main().save(chain).collect();
        if let Some((copy, _)) = self.copy() {
            // Nothing of these is here.
            held.iter_mut().zip(copy.saved()).for_each(|(held, saved)| *held = saved);
        }
        Ok(State::of(&chain.functions, &chain.layout, held))
    }

    fn drain(&mut self, ending: &[usize]) -> Result<bool, Error> {
        Ok(self.main().drain_some(ending))
    }

    fn write_records(&mut self, outlet: &mut Outlet<'_>) -> Result<(), Error> {
        outlet.write_pending(self.main())
    }

    /// After [`lifecycle::Runner::save`], with no batch in between.
    fn reports(
        &mut self,
        _chain: &Chain,
        leaving: &[usize],
    ) -> Result<(Vec<Box<dyn Report>>, TopFlows), Error> {
        self.come_back();
        let (mut reports, mut top_flows) = self.main().reports(leaving.iter().copied());
        for stages in &mut self.stages[1..] {
            let stages = stages.get_mut().unwrap_or_else(PoisonError::into_inner);
            let (others, flows) = stages.reports(leaving.iter().copied());
            reports.iter_mut().zip(&others).for_each(|(report, other)| report.merge(&**other));
            top_flows.merge(&flows);
        }
        Ok((reports, top_flows))
    }

    fn counted(&mut self, chain: &Chain) -> Result<WorkerReport, Error> {
        self.read();
        let room = self.room;
        let mut total = self.report();
        if let Some((copy, _)) = self.copy() {
            // As of another worker, which has what the device keeps.
            let mut other = Pipeline::alone(chain, room);
            other.take_over(copy);
            total.merge(&other.report());
        }
        Ok(total)
    }

    fn swap(&mut self, plan: &Plan, swap: ChainSwap) -> Result<(), Error> {
        let ChainSwap { goes_on, state, .. } = swap;
        let room = room(plan, &self.device);
        if room != self.room {
            self.room = room;
            self.pace = self.pace.with_room(room);
        }
        // As many pieces as suit what the device has.
        self.spare.clear();
        for (stages, next) in self.stages.iter_mut().zip(stages(plan, &self.crew, room)) {
            let next = next.into_inner().unwrap_or_else(PoisonError::into_inner);
            stages.get_mut().unwrap_or_else(PoisonError::into_inner).succeed(next, &goes_on);
        }
        // Where packets come meanwhile, they are judged here until the device has taken the chain.
        if let Err(error) = self.begin(plan, state, !self.goes_on) {
            self.fail(&error);
        }
        Ok(())
    }
}
