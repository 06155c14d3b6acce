//! The first functions of a chain on a device, the others here, and all of them here whenever the device cannot.
//!
//! Batches leave in order of arrival, whoever judges them. As many as the [`Accelerator`] takes are on their way to the device while the next
//! one is read; on a live source there is one at a time. Where the device fails, those that were with it are judged here, so each packet is
//! judged once. State that it keeps for flows is copied here from time to time, and is gone on with from the last copy; what it lacks is what
//! packets changed since. The device is tried again after a while, and begins with the state as it is here then.
//!
//! State is saved, and handed on to another chain, with no batch away. What a device does not take of that chain, or has not taken yet, is
//! done here.
//!
//! [`Accelerator`]: crate::offload::accelerator::Accelerator

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use packetloom_device::Device;
use packetloom_io::Polled;
use packetloom_nf::Report;
use packetloom_nf::flows::Counts;
use packetloom_nf::units::Span;
use packetloom_packet::Batch;
use packetloom_packet::batch::{Policy, empty_arena};

use super::lifecycle::{self, ChainSwap, Lifecycle};
use super::{Intake, Outlet};
use crate::chain::{self, Run};
use crate::offload::pace::{Choice, Pace};
use crate::offload::supervisor::Supervisor;
use crate::offload::{self, acls, stateful};
use crate::outcome::{Shares, TopFlows};
use crate::pipeline::{Expiry, Pipeline, WorkerReport};
use crate::{Chain, Error, Plan, State};

pub(super) fn run(
    lifecycle: &mut Lifecycle<'_, '_>,
    device: Device,
    intake: &mut Intake<'_>,
    outlet: &mut Outlet<'_>,
) -> Result<(WorkerReport, Shares), Error> {
    let restored = lifecycle.restored().unwrap_or_default();
    let mut runner = Runner::new(lifecycle.plan(), device, intake);
    runner.begin(lifecycle.plan(), restored, !runner.is_auto)?;
    let judged = runner.judge_all(lifecycle, intake, outlet);
    runner.tell(lifecycle);
    judged?;
    let state = lifecycle.last_state(intake.position(), &mut runner)?;
    runner.end(outlet, state)
}

/// Packets of a batch at most, for a plan.
fn room(plan: &Plan, device: &Device) -> usize {
    if plan.offloaded() > 0 { acls::ROOM } else { stateful::room(device) }
}

/// A batch on its way through the chain.
struct Away {
    batch: Batch,
    /// Whether it is with the device.
    is_sent: bool,
    read: Instant,
    sent: Instant,
    /// Time that this machine spent on it so far.
    spent: Duration,
}

struct Runner {
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
    stages: Pipeline,
    pace: Pace,
    choice: Choice,
    under_way: VecDeque<Away>,
    spare: Vec<Batch>,
    shares: Shares,
}

impl Runner {
    fn new(plan: &Plan, device: Device, intake: &Intake<'_>) -> Self {
        let run = &plan.chain().settings.run;
        let Run { device_timeout, max_latency, .. } = run;
        let [limit, latency] =
            [device_timeout, max_latency].map(|span| span.and_then(Span::limit).map(Duration::from_nanos));
        let room = room(plan, &device);
        Self {
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
            stages: Pipeline::alone(plan.chain(), room),
            pace: Pace::new(room, latency),
            choice: Choice::default(),
            under_way: VecDeque::new(),
            spare: Vec::new(),
            shares: Shares::default(),
        }
    }

    /// Begins with a chain and its state: what is the device's goes there as soon as that is loaded, which is waited for or not.
    fn begin(&mut self, plan: &Plan, mut state: State, waits: bool) -> Result<(), offload::Error> {
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
        self.stages.restore(&state);
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
        loop {
            if lifecycle.is_due(intake.received, begun) {
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
            let mut next = self.spare.pop().unwrap_or_else(|| Batch::new(self.room));
            let is_for_device = self.is_for_device();
            // Cores like small batches better.
            let size = if is_for_device { self.pace.size() } else { self.batch.min(self.room) };
            next.set_capacity(size);
            match intake.fill(&mut next, |packets| lifecycle.is_due(packets, begun))? {
                Polled::Frames => {}
                Polled::Nothing => {
                    // Where time goes on without packets, none is away then.
                    if let Some(now) = intake.tick(&mut next) {
                        next.parse(self.policy);
                        self.stages.arrive(&next);
                        self.pass_on(&mut next, Some(Expiry::at(now)), outlet)?;
                    }
                    self.spare.push(next);
                    continue;
                }
                Polled::End => break,
            }
            let read = Instant::now();
            // Fewer than were hoped for may be better here.
            let is_full = next.len() * 2 > size;
            let is_for_device =
                is_for_device && (!self.is_auto || is_full || self.choice.is_for_device(next.len()));
            if self.parses_before {
                next.parse(self.policy);
            }
            // The next one is sent before what comes after the device is done with the one before it.
            let depth = self.supervisor.ready().map_or(1, |there| there.depth());
            let mut done = if self.under_way.len() < depth { None } else { self.under_way.pop_front() };
            if let Some(done) = &mut done {
                self.finish(done)?;
            }
            let first = intake.received - next.len() as u64;
            let away = self.send(lifecycle.plan(), next, (read, first), is_for_device);
            self.under_way.push_back(away);
            if let Some(done) = done {
                self.deliver(done, outlet)?;
            }
            // On a live source nobody waits for the next batch to get the verdicts on this one.
            if self.live {
                self.finish_all(outlet)?;
            }
        }
        self.finish_all(outlet)?;
        self.read();
        self.come_back();
        Ok(())
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

    /// Sends a batch that was read then to the device, if it is meant for it, and the device is there and takes it; the packet of the run
    /// that it begins with is given, too.
    fn send(
        &mut self,
        plan: &Plan,
        batch: Batch,
        (read, first): (Instant, u64),
        is_for_device: bool,
    ) -> Away {
        let start = Instant::now();
        let mut away = Away { batch, is_sent: false, read, sent: start, spent: Duration::ZERO };
        if is_for_device {
            if !self.is_there && self.under_way.is_empty() {
                self.hand_over(plan.chain());
            }
            away.is_sent = self.has_rules(plan, first, away.batch.len()) && self.submit(&away.batch);
        }
        away.sent = Instant::now();
        away.spent = away.sent - start;
        away
    }

    fn submit(&mut self, batch: &Batch) -> bool {
        let Some(there) = self.supervisor.ready().filter(|_| self.is_there) else { return false };
        there.submit(batch).unwrap_or_else(|error| {
            self.fail(&error);
            false
        })
    }

    /// Whether the device has the rules that all of these packets are judged by. If not, it is loaded with them when no batch is away;
    /// changes that come before a packet of a batch are made when it is judged.
    fn has_rules(&mut self, plan: &Plan, first: u64, packets: usize) -> bool {
        let changes = |packet| self.changes.partition_point(|&at| at <= packet);
        let (changed, last) = (changes(first), changes(first + packets as u64 - 1));
        if changed != self.changed && self.under_way.iter().all(|away| !away.is_sent) {
            (self.changed, self.is_there) = (changed, false);
            self.supervisor.load(plan.load(changed));
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
        self.deliver(oldest, outlet)
    }

    /// Has the first functions judge a batch: by what the device found, or here. Not before the one before it is through all functions,
    /// which have the flows of one batch at a time.
    fn finish(&mut self, away: &mut Away) -> Result<(), Error> {
        let is_back = away.is_sent && self.wait();
        let start = Instant::now();
        let batch = &mut away.batch;
        if !self.parses_before && (self.parses || !is_back) {
            batch.parse(self.policy);
        }
        self.stages.arrive(batch);
        match self.supervisor.ready().filter(|_| is_back) {
            Some(there) => {
                there.take(batch, &mut self.stages, &mut self.shares);
                self.supervisor.works();
                let spent = away.spent + start.elapsed();
                self.choice.judged_there(batch.len(), spent, start - away.sent);
            }
            None => {
                self.stages.process(0..self.functions, batch, None)?;
                self.shares.here += batch.len() as u64;
                self.choice.judged_here(batch.len(), start.elapsed());
            }
        }
        self.pace.observe(batch.len(), away.read.elapsed());
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
    fn deliver(&mut self, mut away: Away, outlet: &mut Outlet<'_>) -> Result<(), Error> {
        let expiry = if self.live { Expiry::after(&away.batch) } else { None };
        self.pass_on(&mut away.batch, expiry, outlet)?;
        self.spare.push(away.batch);
        Ok(())
    }

    fn pass_on(
        &mut self,
        batch: &mut Batch,
        expiry: Option<Expiry>,
        outlet: &mut Outlet<'_>,
    ) -> Result<(), Error> {
        self.stages.process(self.functions..self.stages.len(), batch, expiry)?;
        outlet.finish(&mut self.stages, batch)?;
        batch.reset(empty_arena());
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
    fn hand_over(&mut self, chain: &Chain) {
        let definitions = self.supervisor.ready().map_or(0, |there| there.definitions());
        let held = self.stages.save(chain).take(definitions);
        let mut state = State::of(&chain.functions, &chain.layout, held);
        self.go_there(&mut state);
        if self.is_there {
            self.stages.hand_over(chain, definitions, self.room);
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
            self.stages.take_over(copy);
        }
        self.is_there = false;
    }

    /// Goes on without the device for a while.
    fn fail(&mut self, error: &offload::Error) {
        let age = self.copy().map(|(_, age)| age.as_secs_f64());
        let with = age.map_or(String::new(), |age| format!(" with the state of {age:.1} s ago"));
        self.come_back();
        if let Some(there) = self.supervisor.fail(error, &with) {
            there.abandon();
        }
        self.under_way.iter_mut().for_each(|away| away.is_sent = false);
    }

    /// Tells the user what there is to be told.
    fn tell(&mut self, lifecycle: &mut Lifecycle<'_, '_>) {
        self.supervisor.news().for_each(|text| lifecycle.notice()(&text));
    }

    fn end(mut self, outlet: &mut Outlet<'_>, state: Option<State>) -> Result<(WorkerReport, Shares), Error> {
        outlet.drain(&mut self.stages, state.is_some())?;
        self.shares.faults = self.supervisor.faults();
        (self.shares.loads, self.shares.longest_load) = self.supervisor.loads();
        Ok((WorkerReport { state, ..self.stages.report() }, self.shares))
    }
}

impl lifecycle::Runner for Runner {
    fn save(&mut self, chain: &Chain) -> Result<State, Error> {
        self.read();
        let mut held: Vec<_> = self.stages.save(chain).collect();
        if let Some((copy, _)) = self.copy() {
            // Nothing of these is here.
            held.iter_mut().zip(copy.saved()).for_each(|(held, saved)| *held = saved);
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
        let room = self.room;
        let mut total = self.stages.report();
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
            self.spare.clear();
            self.pace = self.pace.with_room(room);
        }
        self.stages.succeed(Pipeline::alone(plan.chain(), room), &goes_on);
        // Where packets come meanwhile, they are judged here until the device has taken the chain.
        if let Err(error) = self.begin(plan, state, !self.goes_on) {
            self.fail(&error);
        }
        Ok(())
    }
}
