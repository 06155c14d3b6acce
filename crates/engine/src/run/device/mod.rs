//! The first functions of a chain on a device, or on several, the others here, and all of them here whenever the device cannot.
//!
//! Batches leave in order of arrival, whoever judges them. As many as the [`Accelerator`] takes are on their way to the device while the next
//! one is read. On a live source that is so where it is worth it ([`Overlap`]): otherwise the next one has all packets that come until the one before is
//! back. Where several workers feed the device a batch is in pieces: each thread of a [`Crew`] does what is to be done here for a piece of it, while
//! another one reads the next batch; what functions with state judge is in shares by flow. Where the device fails, those that were with it are judged here, so each packet is
//! judged once. State that it keeps for flows is copied here from time to time, and is gone on with from the last copy; what it lacks is what
//! packets changed since. The device is tried again after a while, and begins with the state as it is here then.
//!
//! Several devices share the packets. Where they keep no state each batch goes to one of them. Otherwise a batch is split by a hash of the flows, and
//! each device has the flows of its packets; the flows of one that fails are here until it is back, and the others go on.
//!
//! With `auto`, a chain with functions with state is run by all cores as without a device, or with the device, whichever is better, if there are several
//! workers or the device has such functions: flows move between two batches. Where the device is still to be opened, all functions are run so until
//! it is there.
//!
//! State is saved, and handed on to another chain, with no batch away. What a device does not take of that chain, or has not taken yet, is
//! done here.
//!
//! [`Accelerator`]: crate::offload::accelerator::Accelerator
//! [`Overlap`]: crate::offload::pace::Overlap

mod ends;
mod moves;
mod pieces;
mod shares;
mod unit;

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::mem;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use packetloom_device::Device;
use packetloom_io::Polled;
use packetloom_io::capture::Resolution;
use packetloom_nf::Report;
use packetloom_nf::flows::Counts;
use packetloom_nf::units::Span;
use packetloom_packet::Timestamp;
use packetloom_packet::batch::{Policy, empty_arena};

use self::moves::Moves;
use self::pieces::Pieces;
use self::shares::stages;
use self::unit::{Unit, Units};
use super::lifecycle::{self, ChainSwap, Lifecycle};
use super::listing::Scan;
use super::reader::Partition;
use super::statistics::TurnClock;
use super::{Intake, Outlet, pipelines};
use crate::chain::{self, Run};
use crate::crew::Crew;
use crate::offload::opening::Opening;
use crate::offload::pace::{BatchSizer, Overlap, Router};
use crate::offload::{self, Unfinished, stateful};
use crate::outcome::{Shares, TopFlows};
use crate::pipeline::work::Work;
use crate::pipeline::{Expiry, Pipeline, WorkerReport};
use crate::state::{Held, Saved};
use crate::{Chain, Error, Plan, State};

/// What a run on devices came to.
pub(super) struct Ran {
    pub(super) report: WorkerReport,
    /// Who judged how many packets; none where there was no device.
    pub(super) shares: Option<Shares>,
    pub(super) unfinished: Unfinished,
}

/// Runs a chain on devices, of which there is one at least; or on cores, until one is opened.
pub(super) fn run(
    lifecycle: &mut Lifecycle<'_, '_>,
    (devices, opening): (Vec<Device>, Option<Opening>),
    intake: &mut Intake<'_>,
    outlet: &mut Outlet<'_>,
) -> Result<Ran, Error> {
    let restored = lifecycle.restored();
    let mut runner = Runner::new(lifecycle.plan(), (devices, opening), intake, outlet)?;
    runner.moves.every = lifecycle.move_every();
    runner.moves.has_restored = restored.is_some();
    if let Some((_, error)) =
        runner.begin(lifecycle.plan(), restored.unwrap_or_default(), !runner.is_auto)?.pop()
    {
        return Err(error.into());
    }
    loop {
        if runner.has_moves()
            && let Some(report) = runner.judge_on_cores(lifecycle, intake, outlet)?
        {
            runner.tell(lifecycle);
            return Ok(runner.left(report));
        }
        let judged = runner.judge_all(lifecycle, intake, outlet);
        runner.tell(lifecycle);
        if judged? {
            break;
        }
    }
    let state = lifecycle.last_state(intake.position(), &mut runner)?;
    runner.end(outlet, state)
}

/// Packets of a batch at most, for a plan.
fn room<'d>(plan: &Plan, devices: impl Iterator<Item = &'d Device>) -> usize {
    let of_functions = || devices.map(stateful::room).min();
    if plan.is_stateless_there() { plan.room() } else { of_functions().unwrap_or_else(|| plan.room()) }
}

/// How long a copy of a device's state is waited for that was begun before the device failed.
const COPY_LIMIT: Duration = Duration::from_millis(100);

/// Which of several devices has a flow of a definition that devices have.
fn owner(partition: Partition, held: &Held, key: &[u64]) -> usize {
    partition.worker(held.by.spread_saved(key, partition.seed))
}

/// A batch on its way through the chain.
struct Away {
    pieces: Pieces,
    /// The devices that it is with.
    with: Units,
    sent: Instant,
    /// Time that this machine spent on it so far.
    spent: Duration,
}

struct Runner {
    /// What is run.
    plan: Plan,
    units: Vec<Unit>,
    /// How long a batch may be away.
    limit: Option<Duration>,
    /// With none of them, until one is opened.
    opening: Option<Opening>,
    /// Whether the device that is opened in the background has not judged anything yet.
    is_awaited: bool,
    /// How many of these are used, from the first on.
    used: usize,
    /// The one that got a batch last.
    turn: usize,
    /// What flows are spread with, one that senders cannot know.
    seed: u64,
    /// By what they are spread among devices, where several have state.
    partition: Option<Partition>,
    /// By what they are spread among the threads here, where each judges its share of the flows of functions behind the devices'.
    spread: Option<Partition>,
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
    /// Whether flows of packets that pass are collected.
    takes_flows: bool,
    /// Packets of the run before which rules change.
    changes: Vec<u64>,
    /// What each thread of the crew judges by, or takes note of what the device found; all but the first keep no state, unless each has its share.
    stages: Vec<Mutex<Pipeline>>,
    crew: Arc<Crew>,
    /// That of the capture that frames go to which pass.
    resolution: Option<Resolution>,
    pace: BatchSizer,
    choice: Router,
    /// On a live source: whether batches overlap.
    overlap: Overlap,
    /// When the last batch was sent, and whether the source had nothing since.
    sent: Instant,
    has_rested: bool,
    /// How far time had come with the last batch that came back.
    time: Option<Timestamp>,
    moves: Moves,
    under_way: VecDeque<Away>,
    spare: Vec<Pieces>,
    shares: Shares,
}

impl Runner {
    fn new(
        plan: &Plan,
        (devices, opening): (Vec<Device>, Option<Opening>),
        intake: &mut Intake<'_>,
        outlet: &Outlet<'_>,
    ) -> Result<Self, Error> {
        let run = &plan.chain().settings.run;
        let Run { device_timeout, max_latency, .. } = run;
        let [limit, latency] =
            [device_timeout, max_latency].map(|span| span.and_then(Span::limit).map(Duration::from_nanos));
        let room = room(plan, devices.iter());
        let crew = Arc::new(Crew::new(run.workers.get())?);
        intake.leaves_paging = crew.members() > 1;
        Ok(Self {
            units: devices.into_iter().map(|device| Unit::new(device, limit)).collect(),
            limit,
            is_awaited: opening.is_some(),
            opening,
            used: 1,
            turn: 0,
            seed: RandomState::new().hash_one(0u64),
            partition: None,
            spread: None,
            is_auto: run.device == chain::Device::Auto,
            live: intake.source.is_live(),
            goes_on: intake.source.now().is_some(),
            room,
            batch: run.batch.get(),
            policy: run.policy(),
            functions: 0,
            parses_before: false,
            parses: false,
            takes_flows: outlet.outputs.passed_flows.is_some(),
            changes: Vec::new(),
            stages: stages(plan, &crew, room),
            crew,
            resolution: outlet.outputs.sink.as_ref().map(|sink| sink.resolution()),
            pace: BatchSizer::new(room, latency),
            choice: Router::default(),
            overlap: Overlap::default(),
            sent: Instant::now(),
            has_rested: false,
            time: None,
            moves: Moves::new(intake.received),
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

    /// Begins with a chain and its state: what is the devices' goes there as soon as that is loaded, which is waited for or not. The devices that
    /// could not be loaded, and why.
    fn begin(
        &mut self,
        plan: &Plan,
        mut state: State,
        waits: bool,
    ) -> Result<Vec<(usize, offload::Error)>, Error> {
        self.set_plan(plan);
        self.choice = Router::default();
        self.overlap = Overlap::default();
        self.moves.router.forget();
        self.used = if plan.suits_several() { self.units.len() } else { self.units.len().min(1) };
        let (seed, used, workers) = (self.seed, self.used, self.crew.members());
        let spread = plan.device_spread().filter(|_| used > 1);
        self.partition = spread.map(|by| Partition { by, seed, workers: used });
        self.spread = plan.spread_of_flows().map(|by| Partition { by, seed, workers });
        let failed = self.load(waits);
        for number in (0..self.used).filter(|number| failed.iter().all(|(failed, _)| failed != number)) {
            self.go_there(number, &mut state);
        }
        self.restore(&state)?;
        Ok(failed)
    }

    /// Takes the device that was opened, once it is, which is waited for or not, and begins to load the chain's functions onto it: while cores have all
    /// flows.
    fn take_opened(&mut self, waits: bool) {
        self.opening.iter_mut().for_each(Opening::tend);
        let Some(opening) = self.opening.take_if(|opening| waits || opening.is_over()) else { return };
        let Some(device) = opening.wait() else { return };
        self.units.push(Unit::new(device, self.limit));
        self.used = 1;
        self.resize(&self.plan.clone());
        let _ = self.load(false);
    }

    /// Goes on with batches of the size that devices have room for.
    fn resize(&mut self, plan: &Plan) {
        let room = room(plan, self.units.iter().map(|unit| &unit.device));
        if room != self.room {
            self.room = room;
            self.pace = self.pace.with_room(room);
        }
        // As many pieces as suit what the device has.
        self.spare.clear();
    }

    /// Takes note of the chain that is run.
    fn set_plan(&mut self, plan: &Plan) {
        self.plan = plan.clone();
        let functions = plan.chain().functions();
        self.policy = plan.chain().settings.run.policy();
        self.functions = plan.on_device();
        self.parses_before = plan.offloaded() == 0;
        let (there, here) = functions.split_at(self.functions);
        self.parses =
            self.takes_flows || !here.is_empty() || there.iter().any(|function| function.hands_out());
        let ruled = functions.iter().filter(|_| plan.has_rules_there());
        self.changes = ruled.flat_map(|function| function.changes_at()).collect();
    }

    /// Begins to load the chain's functions onto the devices, which is waited for or not. Those that could not be loaded, and why.
    fn load(&mut self, waits: bool) -> Vec<(usize, offload::Error)> {
        for (number, unit) in self.units.iter_mut().enumerate() {
            (unit.changed, unit.is_there) = (0, false);
            let load = (number < self.used).then(|| self.plan.load(0, self.used)).flatten();
            unit.supervisor.load(load);
        }
        let waited = (0..if waits { self.used } else { 0 })
            .filter_map(|number| Some((number, self.units[number].supervisor.wait().err()?)));
        waited.collect()
    }

    /// The devices that are used.
    fn units(&mut self) -> impl Iterator<Item = &mut Unit> {
        self.units[..self.used].iter_mut()
    }

    /// How many batches may be away, or on their way through functions here.
    fn depth(&mut self) -> usize {
        // One of them gets its flows when no batch is on its way.
        if self.units().any(Unit::waits_for_flows) {
            return 1;
        }
        // None is away when states are looked for that are over.
        let time = self.time;
        let is_due =
            |unit: &mut Unit| unit.judge().zip(time).is_some_and(|(there, now)| there.is_sweep_due(now));
        if self.units().any(is_due) {
            return 1;
        }
        let is_split = self.partition.is_some();
        let depths = self.units().filter_map(|unit| Some(unit.judge()?.depth()));
        let depth = if is_split { depths.min() } else { Some(depths.sum()) };
        depth.unwrap_or(1).max(1)
    }

    /// Judges packets until there are no more, or until the cores are to go on with the flows; whether there are no more.
    fn judge_all(
        &mut self,
        lifecycle: &mut Lifecycle<'_, '_>,
        intake: &mut Intake<'_>,
        outlet: &mut Outlet<'_>,
    ) -> Result<bool, Error> {
        self.do_what_is_due(lifecycle, intake, outlet)?;
        let mut begun = intake.received;
        let later = self.crew.later();
        // What was read, while the batch before it was sent.
        let mut next: Option<(Pieces, bool)> = None;
        let times = outlet.statistics.begin_workers(1);
        let mut clock = TurnClock::start(&times[0]);
        let mut has_worked = false;
        loop {
            let rested = mem::take(&mut intake.rested);
            clock.rest(rested);
            clock.turn(mem::replace(&mut has_worked, true));
            if lifecycle.is_due(intake.received, begun) {
                if let Some((pieces, is_for_device)) = next.take() {
                    self.go_on_with(pieces, intake.received, is_for_device, outlet)?;
                }
                self.finish_all(outlet)?;
                self.do_what_is_due(lifecycle, intake, outlet)?;
                begun = intake.received;
            }
            self.units().for_each(|unit| unit.supervisor.tend());
            self.tell(lifecycle);
            if self.has_moves() && self.leaves_devices(intake, rested) {
                if let Some((pieces, is_for_device)) = next.take() {
                    self.go_on_with(pieces, intake.received, is_for_device, outlet)?;
                }
                self.finish_all(outlet)?;
                return Ok(false);
            }
            outlet.tell(intake, lifecycle.notice());
            // Verdicts that are known do not wait for the next packets to be read.
            while self.is_back() || self.live && self.under_way.len() >= self.depth() {
                self.finish_oldest(outlet)?;
            }
            let mut pieces = self.spare.pop().unwrap_or_else(|| self.pieces());
            let is_for_device = self.is_for_device();
            // What flows met cannot be judged again by other rules, so those of a batch are the same, where devices have the flows.
            let has_flows = self.plan.stateful() > 0;
            intake.rules_until = self.next_change(intake.received).filter(|_| has_flows);
            // Cores like small batches better: for each of the threads that judge them there.
            let here = self.batch * if self.plan.stateful() == 0 { self.plan.feeders() } else { 1 };
            let size = if is_for_device { self.pace.size() } else { here.min(self.room) };
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
                None if self.live && !self.under_way.is_empty() => {
                    pieces.fill(size, intake, &later, |intake, batch| intake.poll(batch))
                }
                None => {
                    let is_due = |packets: u64| lifecycle.is_due(packets, begun);
                    pieces.fill(size, intake, &later, |intake, batch| intake.fill(batch, is_due))
                }
                Some((before, is_for_device)) => {
                    let crew = Arc::clone(&self.crew);
                    let end = intake.received;
                    let read = || pieces.fill(size, intake, &later, |intake, batch| intake.poll(batch));
                    let send = || self.go_on_with(before, end, is_for_device, outlet);
                    let (polled, done) = crew.beside(read, send);
                    done?;
                    polled
                }
            };
            if polled.is_err() {
                // Packets that came before go on first.
                self.finish_all(outlet)?;
            }
            match polled? {
                Polled::Frames => {}
                // What comes until one is back comes together.
                Polled::Nothing if !self.under_way.is_empty() => {
                    self.has_rested = true;
                    self.spare.push(pieces);
                    self.finish_oldest(outlet)?;
                    continue;
                }
                Polled::Nothing => {
                    (has_worked, self.has_rested) = (false, true);
                    // Where time goes on without packets, none is away then.
                    let first = &mut pieces.works[0];
                    if let Some(now) = intake.tick(&mut first.batch) {
                        first.batch.parse(self.policy);
                        self.main().extract_keys(&first.batch);
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
            if self.live {
                // Nobody waits for the next batch to get the verdicts on this one. Unless they overlap the next one has what comes meanwhile.
                let packets = pieces.packets;
                self.go_on_with(pieces, intake.received, is_for_device, outlet)?;
                let sent = self.under_way.back().filter(|away| !away.with.is_empty()).map(|away| away.sent);
                if !self.overlap.is_worth(packets) {
                    self.finish_all(outlet)?;
                }
                let has_rested = mem::take(&mut self.has_rested) || !intake.rested.is_zero();
                let since = mem::replace(&mut self.sent, sent.unwrap_or_else(Instant::now));
                if let Some(sent) = sent {
                    self.overlap.observe(packets, sent - since, has_rested);
                }
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
        // Where it is not kept, it is over: see `end`.
        if lifecycle.saves() {
            (0..self.used).for_each(|unit| self.come_back(unit));
        }
        Ok(true)
    }

    /// Room for another batch.
    fn pieces(&self) -> Pieces {
        // More than there are threads, of which some are behind; but shares of them are not to be too small.
        let each = if self.spread.is_some() { 1 } else { 2 };
        let count = if self.has_pieces() { each * self.crew.members() } else { 1 };
        let spread = self.partition.or(self.spread);
        Pieces::new(count, self.room, spread.map_or(1, |spread| spread.workers))
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
            is_for_device && (!self.has_choice() || is_full || self.choice.is_for_device(pieces.packets));
        if self.parses_before && !pieces.is_parsed {
            let policy = self.policy;
            pieces.each(&self.crew, |work| work.batch.parse(policy));
        }
        let first = end - pieces.packets as u64;
        let depth = if self.is_change_due(first) { 1 } else { self.depth() };
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
        let away = self.under_way.iter().filter(|away| !away.with.is_empty()).count();
        self.shares.away = self.shares.away.max(away);
        match done {
            Some(done) => self.deliver(done.pieces, outlet),
            None => Ok(()),
        }
    }

    /// Whether the next batch is meant for the device.
    fn is_for_device(&mut self) -> bool {
        let is_ready = self.units().any(|unit| unit.supervisor.ready().is_some());
        is_ready && (!self.has_choice() || self.choice.choose(self.pace.size()))
    }

    /// Does all that is to be done before the next batch, with none on its way.
    fn do_what_is_due(
        &mut self,
        lifecycle: &mut Lifecycle<'_, '_>,
        intake: &mut Intake<'_>,
        outlet: &mut Outlet<'_>,
    ) -> Result<(), Error> {
        self.overlap.restart();
        (self.sent, self.has_rested) = (Instant::now(), false);
        let at = intake.position();
        let until = lifecycle.between_batches(at, self, outlet, &mut || intake.report())?;
        let moves = self.moves.until().filter(|_| self.has_moves());
        intake.until = [until, moves].into_iter().flatten().min();
        self.moves.pass(intake);
        self.tell(lifecycle);
        Ok(())
    }

    /// Sends a batch to a device, or its shares to all of them, if it is meant for them, and they are there and take it; with the batch, so many
    /// packets of the run were read.
    fn send(&mut self, mut pieces: Pieces, end: u64, is_for_device: bool) -> Away {
        let start = Instant::now();
        let mut with = Units::default();
        if is_for_device {
            let first = end - pieces.packets as u64;
            if self.under_way.is_empty() {
                (0..self.used).for_each(|unit| self.hand_over(unit));
                self.change_rules(first);
            }
            if let Some(partition) = self.partition {
                pieces.split(partition, &self.crew);
                for unit in 0..self.used {
                    let share = pieces.share(unit);
                    if share.iter().any(|piece| !piece.batch.is_empty()) && self.submit(unit, share) {
                        with.add(unit);
                    }
                }
            } else if let Some(unit) = self.freest()
                && (self.plan.stateful() > 0 || self.has_rules(unit, first, pieces.packets))
                && self.submit(unit, pieces.used())
            {
                with.add(unit);
            }
        }
        let sent = Instant::now();
        Away { pieces, with, sent, spent: sent - start }
    }

    /// The device with the fewest batches; of several of these each in its turn.
    fn freest(&mut self) -> Option<usize> {
        let Self { under_way, units, used, turn, .. } = self;
        let away = |unit: usize| under_way.iter().filter(|away| away.with.has(unit)).count();
        let in_turn = (1..=*used).map(|further| (*turn + further) % *used);
        let there = in_turn.filter(|&unit| units[unit].judge().is_some());
        let freest = there.min_by_key(|&unit| away(unit))?;
        *turn = freest;
        Some(freest)
    }

    fn submit(&mut self, unit: usize, pieces: &[Work]) -> bool {
        let Some(there) = self.units[unit].judge() else { return false };
        there.submit(pieces, &self.crew).unwrap_or_else(|error| {
            self.fail(unit, &error);
            false
        })
    }

    /// Packets of the run after which rules change next, where more than so many are judged before.
    fn next_change(&self, packets: u64) -> Option<u64> {
        self.changes.get(self.changes_before(packets)).copied()
    }

    /// Changes of rules that this packet of the run has behind it.
    fn changes_before(&self, packet: u64) -> usize {
        self.changes.partition_point(|&at| at <= packet)
    }

    /// Whether devices that have flows have other rules than those that this packet of the run is judged by.
    fn is_change_due(&mut self, packet: u64) -> bool {
        let changed = self.changes_before(packet);
        self.plan.stateful() > 0 && self.units().any(|unit| unit.is_there && unit.changed != changed)
    }

    /// Has them go on with these rules, with no batch away.
    fn change_rules(&mut self, packet: u64) {
        if !self.is_change_due(packet) {
            return;
        }
        let changed = self.changes_before(packet);
        for unit in 0..self.used {
            let of_unit = &mut self.units[unit];
            let Some(there) = of_unit.supervisor.ready().filter(|_| of_unit.is_there) else { continue };
            let functions = self.plan.chain().functions();
            match there.change_rules(functions, changed) {
                Ok(()) => of_unit.changed = changed,
                Err(error) => {
                    // A device that works, but has no room for the rules, has what it keeps as of now.
                    let _ = self.units[unit].read(&self.crew);
                    self.fail(unit, &error);
                }
            }
        }
    }

    /// Whether a device has the rules that all of these packets are judged by. If not, it is loaded with them when no batch is away;
    /// changes that come before a packet of a batch are made when it is judged.
    fn has_rules(&mut self, unit: usize, first: u64, packets: usize) -> bool {
        let [changed, last] = [first, first + packets as u64 - 1].map(|packet| self.changes_before(packet));
        let of_unit = &mut self.units[unit];
        if changed != of_unit.changed && !self.under_way.iter().any(|away| away.with.has(unit)) {
            (of_unit.changed, of_unit.is_there) = (changed, false);
            of_unit.supervisor.load(self.plan.load(changed, self.used));
        }
        changed == of_unit.changed && changed == last
    }

    /// Whether nobody has to wait for the oldest batch.
    fn is_back(&mut self) -> bool {
        let Self { under_way, units, .. } = self;
        under_way.front().is_some_and(|oldest| {
            oldest.with.iter().all(|unit| units[unit].judge().is_none_or(|there| there.is_back()))
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

    /// Has the first functions judge a batch: by what devices found, or here. Not before the one before it is through all functions,
    /// which have the flows of one batch at a time.
    fn finish(&mut self, away: &mut Away) -> Result<(), Error> {
        for unit in away.with.iter() {
            if !self.wait(unit) {
                away.with.remove(unit);
            }
        }
        let start = Instant::now();
        let (policy, packets) = (self.policy, away.pieces.packets);
        if !self.parses_before && (self.parses || away.with.is_empty()) {
            away.pieces.each(&self.crew, |work| work.batch.parse(policy));
        }
        if away.pieces.is_split {
            for unit in 0..self.used {
                let share = away.pieces.share(unit);
                if !away.with.has(unit) || !self.take(unit, share) {
                    self.judge_here(share)?;
                }
            }
            self.extract_keys(&away.pieces);
            away.pieces.merge(&self.crew);
        } else if let Some(unit) = away.with.iter().next()
            && self.units[unit].judge().is_some()
        {
            self.extract_keys(&away.pieces);
            self.take(unit, away.pieces.used());
            let spent = away.spent + start.elapsed();
            self.choice.judged_there(packets, spent, start - away.sent);
        } else {
            self.judge_here(away.pieces.used())?;
            self.choice.judged_here(packets, start.elapsed());
        }
        // Of sections there are about as many packets as were asked for.
        let read = if away.pieces.is_about { away.pieces.asked } else { packets };
        self.pace.observe(read, away.pieces.read.elapsed());
        if self.live {
            away.pieces.used().iter_mut().for_each(|work| work.expiry = Expiry::after(&work.batch));
            let last = away.pieces.used().last().and_then(|work| work.expiry);
            self.time = last.map(|expiry| expiry.now()).or(self.time);
        }
        Ok(())
    }

    /// Takes the flows of a batch as it came, for functions here that come after the devices'.
    fn extract_keys(&mut self, pieces: &Pieces) {
        if !self.is_whole() && !self.has_pieces() {
            self.main().extract_keys(&pieces.works[0].batch);
        }
    }

    /// Takes what a device found about the oldest packets that are with it; whether it is still there.
    fn take(&mut self, unit: usize, pieces: &mut [Work]) -> bool {
        let Self { units, stages, crew, shares, .. } = self;
        let unit = &mut units[unit];
        let Some(there) = unit.judge() else { return false };
        let before = shares.device;
        there.take(pieces, stages, crew, shares);
        unit.judged += shares.device - before;
        unit.supervisor.works();
        true
    }

    /// Has the functions that are a device's judge packets here: by all threads, where that depends on no other packets.
    fn judge_here(&mut self, pieces: &mut [Work]) -> Result<(), Error> {
        let functions = self.functions;
        self.shares.here += pieces.iter().map(|work| work.batch.len() as u64).sum::<u64>();
        let at_once = self.plan.is_stateless_there() && self.has_pieces();
        // Shares are taken of what comes of it.
        let has_shares = self.spread.is_some();
        self.each_piece(at_once, pieces, |stages, work| {
            if !has_shares {
                stages.extract_keys(&work.batch);
            }
            stages.process(0..functions, &mut work.batch, None)?;
            // Functions behind them have other tables. The next share, or what takes these tables to a device, may come before those.
            stages.leave();
            Ok(())
        })
    }

    /// Has functions here do something with each piece, and takes what came of it: all threads at once, or this one by what keeps the state.
    fn each_piece(
        &mut self,
        at_once: bool,
        pieces: &mut [Work],
        judge: impl Fn(&mut Pipeline, &mut Work) -> Result<(), Error> + Sync,
    ) -> Result<(), Error> {
        let judge = |stages: &mut Pipeline, work: &mut Work| {
            judge(stages, work)?;
            work.take(stages);
            Ok(())
        };
        if !at_once {
            let main = self.main();
            return pieces.iter_mut().try_for_each(|work| judge(main, work));
        }
        let failed = Mutex::new(Ok(()));
        self.crew.each_with(&self.stages, pieces.iter_mut().collect(), |stages, work| {
            if let Err(error) = judge(stages, work) {
                *failed.lock().unwrap_or_else(PoisonError::into_inner) = Err(error);
            }
        });
        failed.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the oldest batch that is with a device; whether it has come back.
    fn wait(&mut self, unit: usize) -> bool {
        let limit = self.units[unit].supervisor.limit();
        let Some(there) = self.units[unit].judge() else { return false };
        match there.wait(limit) {
            Ok(()) => true,
            Err(error) => {
                self.fail(unit, &error);
                false
            }
        }
    }

    /// The functions that are not the device's, and all that comes after.
    fn deliver(&mut self, mut pieces: Pieces, outlet: &mut Outlet<'_>) -> Result<(), Error> {
        match self.spread {
            Some(spread) => self.judge_shares(&mut pieces, spread)?,
            None => self.judge_rest(&mut pieces)?,
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

    /// Has the functions that are not the device's judge a batch: by all threads, where they keep no state.
    fn judge_rest(&mut self, pieces: &mut Pieces) -> Result<(), Error> {
        let (mut functions, all) = (self.functions, self.plan.chain().functions.len());
        if self.has_pieces() && functions < all {
            self.each_piece(true, pieces.used(), |stages, work| {
                stages.process(functions..all, &mut work.batch, None)
            })?;
            functions = all;
        }
        for work in pieces.used() {
            self.main().process(functions..all, &mut work.batch, work.expiry)?;
            if let Some(expiry) = work.expiry {
                self.sweep(expiry);
            }
            work.take(self.main());
        }
        Ok(())
    }

    /// Ends idle state on devices, unless batches are away.
    fn sweep(&mut self, expiry: Expiry) {
        if !self.under_way.is_empty() {
            return;
        }
        for unit in 0..self.used {
            let Self { units, stages, .. } = self;
            let main = stages[0].get_mut().unwrap_or_else(PoisonError::into_inner);
            let limit = units[unit].supervisor.limit();
            let swept = units[unit].judge().map_or(Ok(()), |there| there.sweep(expiry.now(), limit, main));
            if let Err(error) = swept {
                self.fail(unit, &error);
            }
        }
    }

    /// Has a device begin with the flows of its functions, if it is there, with no batch away; takes them out of a state.
    fn go_there(&mut self, unit: usize, state: &mut State) {
        let partition = self.partition;
        let of_unit = &mut self.units[unit];
        let definitions = of_unit.definitions();
        let Some(there) = of_unit.supervisor.ready() else { return };
        let restored = match partition {
            None => there.restore(&state.definitions),
            Some(partition) => {
                let mut own = state.share(|held, key| owner(partition, held, key) == unit);
                own.definitions.iter_mut().for_each(|held| held.counts = Counts::default());
                there.restore(&own.definitions)
            }
        };
        let left = match restored {
            Ok(left) => left,
            Err(error) => return self.fail(unit, &error),
        };
        of_unit.is_there = true;
        for (definition, (entries, words)) in left.iter().enumerate() {
            self.main().evicted(definition, entries, *words);
        }
        match partition {
            None => {
                for held in state.definitions.iter_mut().take(definitions) {
                    held.entries = [Vec::new(), Vec::new()];
                    held.counts = Counts::default();
                }
            }
            Some(partition) => {
                let there = state.definitions.iter().take(definitions);
                let names: Vec<_> = there.map(|held| held.name.clone()).collect();
                let rest = |held: &Held, key: &[u64]| {
                    !names.contains(&held.name) || owner(partition, held, key) != unit
                };
                *state = state.share(rest);
            }
        }
    }

    /// The same with what is here, if the device waits for it.
    fn hand_over(&mut self, unit: usize) {
        if !self.units[unit].waits_for_flows() {
            return;
        }
        let definitions = self.units[unit].definitions();
        let (plan, room) = (self.plan.clone(), self.room);
        let chain = plan.chain();
        let held = self.main().save(chain).take(definitions);
        let mut state = State::of(&chain.functions, &chain.layout, held);
        self.go_there(unit, &mut state);
        if self.units[unit].is_there {
            self.main().hand_over(chain, definitions, room);
            // The flows of other devices that are not there, if there are any.
            self.main().restore(&state);
        }
    }

    /// Copies what the devices keep, with no batch away.
    fn read(&mut self) {
        for unit in 0..self.used {
            if let Err(error) = self.units[unit].read(&self.crew) {
                self.fail(unit, &error);
            }
        }
    }

    /// Takes over here what a device has kept, as it was copied last.
    fn come_back(&mut self, unit: usize) {
        let Self { units, stages, .. } = self;
        if let Some((copy, _)) = units[unit].copy() {
            stages[0].get_mut().unwrap_or_else(PoisonError::into_inner).take_over(copy);
        }
        units[unit].is_there = false;
    }

    /// Goes on without a device for a while.
    fn fail(&mut self, unit: usize, error: &offload::Error) {
        let of_unit = &mut self.units[unit];
        if self.plan.stateful() > 0 {
            // Its rules are those at the beginning when it is loaded again.
            of_unit.changed = 0;
        }
        if let Some(there) = of_unit.supervisor.ready() {
            there.await_copy(COPY_LIMIT);
        }
        let age = of_unit.copy().map(|(_, age)| age.as_secs_f64());
        let with = age.map_or(String::new(), |age| format!(" with the state of {age:.1} s ago"));
        self.come_back(unit);
        if let Some(there) = self.units[unit].supervisor.fail(error, &with) {
            there.abandon();
        }
        self.under_way.iter_mut().for_each(|away| away.with.remove(unit));
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
        for unit in &mut self.units {
            unit.supervisor.news().for_each(|text| lifecycle.notice()(&text));
        }
    }

    fn end(mut self, outlet: &mut Outlet<'_>, state: Option<State>) -> Result<Ran, Error> {
        self.drain_all(outlet, state.is_some())?;
        let Self { units, used, stages, crew, .. } = &mut self;
        let copies = units[..*used].iter_mut().filter_map(Unit::copy).map(|(copy, _)| copy);
        ends::end(&copies.collect::<Vec<_>>(), stages, crew, outlet)?;
        let report = WorkerReport { state, ..self.report() };
        Ok(self.left(report))
    }

    /// Adds who judged how many packets, and what became of the devices meanwhile; with `auto`, leaves to their threads what is not done.
    fn left(mut self, report: WorkerReport) -> Ran {
        let mut unfinished = Unfinished::default();
        // Where devices were named, what is being loaded is waited for.
        if self.is_auto {
            self.units.iter_mut().for_each(|unit| unit.supervisor.leave(&mut unfinished));
        }
        self.shares.is_late = match self.opening {
            Some(opening) if opening.is_over() => opening.wait().is_some(),
            // A run that is over before it began needed none.
            Some(opening) => opening.leave(&mut unfinished),
            None => false,
        };
        let has_devices = self.shares.is_late || !self.units.is_empty();
        for Unit { device, supervisor, judged, .. } in &self.units {
            let (loads, longest) = supervisor.loads();
            self.shares.faults += supervisor.faults();
            self.shares.loads += loads;
            self.shares.longest_load = self.shares.longest_load.max(longest);
            self.shares.devices.push((device.description().id.to_string(), *judged));
        }
        Ran { report, shares: has_devices.then_some(self.shares), unfinished }
    }
}

impl lifecycle::Runner for Runner {
    fn save(&mut self, chain: &Chain) -> Result<State, Error> {
        self.read();
        let mut held = pipelines::save(self.keepers(), chain)?;
        for (copy, _) in self.units[..self.used].iter_mut().filter_map(Unit::copy) {
            for (held, (entries, counts)) in held.iter_mut().zip(copy.saved()) {
                held.add(Saved { entries, counts, ..Saved::default() });
            }
        }
        Ok(State::of(&chain.functions, &chain.layout, held))
    }

    /// What devices keep comes back for it; they get it again with the next batch.
    fn remove(&mut self, _chain: &Chain, scan: &Scan<'_>, outlet: &mut Outlet<'_>) -> Result<u64, Error> {
        self.read();
        (0..self.used).for_each(|unit| self.come_back(unit));
        pipelines::remove(self.keepers(), scan, outlet)
    }

    /// After [`lifecycle::Runner::save`], with no batch in between.
    fn drain(&mut self, ending: &[usize]) -> Result<bool, Error> {
        (0..self.used).for_each(|unit| self.come_back(unit));
        pipelines::drain(self.keepers(), ending)
    }

    fn write_records(&mut self, outlet: &mut Outlet<'_>) -> Result<(), Error> {
        pipelines::write_records(&self.stages, outlet)
    }

    /// After [`lifecycle::Runner::save`], with no batch in between.
    fn reports(
        &mut self,
        _chain: &Chain,
        leaving: &[usize],
    ) -> Result<(Vec<Box<dyn Report>>, TopFlows), Error> {
        (0..self.used).for_each(|unit| self.come_back(unit));
        pipelines::reports(&self.stages, leaving)
    }

    fn counted(&mut self, chain: &Chain) -> Result<WorkerReport, Error> {
        self.read();
        let room = self.room;
        let mut total = self.report();
        for (copy, _) in self.units[..self.used].iter_mut().filter_map(Unit::copy) {
            // As of another worker, which has what the device keeps.
            let mut other = Pipeline::alone(chain, room);
            other.take_over(copy);
            total.merge(&other.report());
        }
        Ok(total)
    }

    /// Where the function is on devices, what they keep comes back; they get it again with the next batch when they have its rules.
    fn change(&mut self, plan: &Plan, function: usize) -> Result<(), Error> {
        let is_there = function < self.functions && plan.has_rules_there();
        if is_there {
            self.read();
            (0..self.used).for_each(|unit| self.come_back(unit));
        }
        pipelines::change(&self.stages, plan.chain(), function)?;
        self.set_plan(plan);
        if is_there {
            for (unit, error) in self.load(!self.goes_on) {
                self.fail(unit, &error);
            }
        }
        Ok(())
    }

    fn swap(&mut self, plan: &Plan, swap: ChainSwap) -> Result<(), Error> {
        let ChainSwap { before, state, .. } = swap;
        self.resize(plan);
        for (stages, next) in self.stages.iter_mut().zip(stages(plan, &self.crew, self.room)) {
            let next = next.into_inner().unwrap_or_else(PoisonError::into_inner);
            stages.get_mut().unwrap_or_else(PoisonError::into_inner).succeed(next, &before);
        }
        // Where packets come meanwhile, they are judged here until the device has taken the chain.
        let waits = !self.goes_on && !plan.moves();
        for (unit, error) in self.begin(plan, state, waits)? {
            self.fail(unit, &error);
        }
        Ok(())
    }
}
