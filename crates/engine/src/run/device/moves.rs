//! State of flows that moves between the devices and this machine's cores, with `auto`; and runs that move, since cores judge them in another way alone than
//! behind devices: see [`Plan::moves`](crate::Plan::moves).

use std::mem;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::Runner;
use super::shares::stages;
use crate::offload::pace::StateRouter;
use crate::pipeline::{Before, WorkerReport};
use crate::run::lifecycle::{self, Lifecycle};
use crate::run::workers::{self, Handover, Left, Stay};
use crate::run::{Intake, Outlet};
use crate::{Chain, Error};

/// When state moves, and what is known for that.
pub(super) struct Moves {
    pub(super) router: StateRouter,
    /// Packets after which it does in any case.
    pub(super) every: Option<u64>,
    /// Packets of the run when that was done the last time.
    last: u64,
    /// Whether there were flows before the first packet.
    pub(super) has_restored: bool,
    /// When and at how many packets and batches was looked last.
    seen: (Instant, u64, u64),
    /// Since when packets wait for a move.
    since: Option<Instant>,
}

impl Moves {
    pub(super) fn new(received: u64) -> Self {
        let router = StateRouter::default();
        let seen = (Instant::now(), received, 0);
        Self { router, every: None, last: received, has_restored: false, seen, since: None }
    }

    /// Packets of the run after which state moves, where that is said.
    pub(super) fn until(&self) -> Option<u64> {
        self.every.map(|every| self.last + every)
    }

    /// Passes over the time until now.
    pub(super) fn pass(&mut self, intake: &Intake<'_>) {
        self.seen = (Instant::now(), intake.received, intake.statistics.batches());
    }

    /// Takes note of what was judged since the last look, of which time some was spent on waiting for packets.
    fn observe(&mut self, intake: &Intake<'_>, rested: Duration) {
        let (at, packets, batches) = self.seen;
        self.pass(intake);
        let (now, received, judged) = self.seen;
        self.router.judged(received - packets, judged - batches, now - at, rested);
    }

    /// Whether state is to move, that of so many flows at most.
    fn is_due(&mut self, intake: &Intake<'_>, flows: u64) -> bool {
        match self.until() {
            Some(until) => intake.received >= until,
            None => self.router.is_to_move(flows),
        }
    }
}

/// Flows that a chain may have, at most.
fn flows(chain: &Chain) -> u64 {
    // Of each IP version so many.
    chain.layout.definitions.iter().map(|used| 2 * used.definition.max_flows as u64).sum()
}

impl Runner {
    /// Whether it is decided for each batch whether devices judge it.
    pub(super) fn has_choice(&self) -> bool {
        self.is_auto && !self.plan.moves()
    }

    /// Whether state moves between devices and cores, or stays with all cores since there is nothing for devices, or none of them yet.
    pub(super) fn has_moves(&self) -> bool {
        self.plan.moves() || self.is_auto && (self.plan.on_device() == 0 || self.is_awaited)
    }

    /// Flows whose state moves, at most: each began with a packet.
    fn flows(&self, intake: &Intake<'_>) -> u64 {
        let chain = self.plan.chain();
        let (definitions, most) = (chain.layout.definitions.len() as u64, flows(chain));
        if self.moves.has_restored { most } else { most.min(definitions * intake.received) }
    }

    /// Whether the cores are to go on with the flows of the devices: since none has them, or since that is better.
    pub(super) fn leaves_devices(&mut self, intake: &Intake<'_>, rested: Duration) -> bool {
        self.moves.observe(intake, rested);
        if !self.units().any(|unit| unit.judge().is_some()) {
            self.moves.router.forced();
            return true;
        }
        let flows = self.flows(intake);
        self.moves.is_due(intake, flows)
    }

    /// Has all cores judge packets, as without a device, until devices are to go on with the flows, or there is another chain; what all of them
    /// counted, where there are no more packets.
    pub(super) fn judge_on_cores(
        &mut self,
        lifecycle: &mut Lifecycle<'_, '_>,
        intake: &mut Intake<'_>,
        outlet: &mut Outlet<'_>,
    ) -> Result<Option<WorkerReport>, Error> {
        let first = intake.received;
        self.moves.last = first;
        if self.moves.every.is_some() {
            self.take_opened(true);
            let used = self.used;
            let waited = self.units[..used].iter_mut().enumerate();
            let failed: Vec<_> =
                waited.filter_map(|(unit, of)| Some((unit, of.supervisor.wait().err()?))).collect();
            failed.iter().for_each(|(unit, error)| self.fail(*unit, error));
        }
        let begin = self.leave_devices(intake)?;
        intake.rules_until = None;
        let until = self.moves.until().filter(|_| self.plan.on_device() > 0);
        let mut is_over = |intake: &mut Intake<'_>, lifecycle: &mut Lifecycle<'_, '_>| {
            if let Some(since) = self.moves.since.take() {
                self.moved(false, since, intake);
            }
            if !self.plan.is_same(lifecycle.plan()) {
                // It has other rules.
                self.take_rules(lifecycle);
            }
            self.take_opened(false);
            self.units().for_each(|unit| unit.supervisor.tend());
            self.tell(lifecycle);
            let rested = mem::take(&mut intake.rested);
            self.moves.observe(intake, rested);
            // While it is looked for packets all the time nobody knows how many more could come.
            let is_known = !(intake.spins && intake.source.now().is_some());
            let flows = self.flows(intake);
            let is_ready = self.units().any(|unit| unit.supervisor.ready().is_some());
            is_ready && (!self.plan.moves() || is_known && self.moves.is_due(intake, flows))
        };
        let stay = Stay { is_over: &mut is_over, until };
        let left = workers::run_until(lifecycle, intake, outlet, begin, Some(stay))?;
        self.shares.here += intake.received - first;
        match left {
            Left::Nothing(report) => return Ok(Some(report)),
            Left::Flows(Handover { pipelines, .. }, Some((plan, swap))) => {
                self.stages = pipelines.into_iter().map(Mutex::new).collect();
                lifecycle::Runner::swap(self, &plan, swap)?;
            }
            Left::Flows(handover, None) => {
                if !self.plan.is_same(lifecycle.plan()) {
                    // Rules have changed since it was decided: what is loaded has others.
                    self.take_rules(lifecycle);
                }
                self.go_on_there(handover, intake)?;
            }
        }
        Ok(None)
    }

    /// Goes on with other rules of the same chain; devices that have some are loaded anew.
    fn take_rules(&mut self, lifecycle: &Lifecycle<'_, '_>) {
        self.set_plan(lifecycle.plan());
        if self.plan.has_rules_there() {
            let _ = self.load(false);
        }
    }

    /// Hands over all flows, and what was counted.
    fn leave_devices(&mut self, intake: &Intake<'_>) -> Result<Handover, Error> {
        let (since, pause) = (Instant::now(), intake.statistics.pause());
        // Also where the device has failed meanwhile, or has another chain.
        self.moves.since = self.moves.router.is_there().then_some(since);
        let plan = self.plan.clone();
        let state = lifecycle::Runner::save(self, plan.chain())?;
        let Self { units, used, stages, .. } = self;
        for unit in &mut units[..*used] {
            if let Some((copy, _)) = unit.copy() {
                stages[0].get_mut().unwrap_or_else(PoisonError::into_inner).add_counted(copy);
            }
            unit.is_there = false;
        }
        let pipelines = mem::take(&mut self.stages).into_iter();
        let pipelines = pipelines.map(|stages| stages.into_inner().unwrap_or_else(PoisonError::into_inner));
        Ok(Handover { pipelines: pipelines.collect(), state, seed: self.seed, since, pause })
    }

    /// Has devices go on with flows that are handed over, as far as they are ready.
    fn go_on_there(&mut self, handover: Handover, intake: &Intake<'_>) -> Result<(), Error> {
        let Handover { pipelines, mut state, since, pause: _pause, .. } = handover;
        let same: Vec<_> = (0..self.plan.chain().functions.len()).map(Before::Same).collect();
        let next = stages(&self.plan, &self.crew, self.room).into_iter();
        let pipelines = pipelines.into_iter().zip(next).map(|(mut before, next)| {
            before.succeed(next.into_inner().unwrap_or_else(PoisonError::into_inner), &same);
            Mutex::new(before)
        });
        self.stages = pipelines.collect();
        (0..self.used).for_each(|unit| self.go_there(unit, &mut state));
        self.restore(&state)?;
        self.moves.last = intake.received;
        let is_there = self.units().any(|unit| unit.is_there);
        self.is_awaited &= !is_there;
        match is_there {
            true if !self.plan.moves() => {}
            true => self.moved(true, since, intake),
            false => self.moves.router.forced(),
        }
        Ok(())
    }

    /// State has moved, for which packets waited since then.
    fn moved(&mut self, is_there: bool, since: Instant, intake: &Intake<'_>) {
        let took = since.elapsed();
        self.moves.router.moved(is_there, took);
        self.moves.pass(intake);
        self.shares.moves += 1;
        self.shares.longest_move = self.shares.longest_move.max(took);
    }
}
