//! What happens to a run between two batches: its chain becomes another one, its state is saved.
//!
//! A run is one chain after the other. The next one begins with the state of the flows of the one before, in its own layout
//! ([`State::fit`]); a function that is as it was goes on as it is, with all that it counted; any other hands out what it holds and is
//! done. Neither packets nor outputs see anything of it.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use packetloom_nf::flows::Counts;
use packetloom_nf::{Prepared, Report};

use super::{Outlet, Position, Statistics};
use crate::chain::Origin;
use crate::layout::Used;
use crate::outcome::{Reloads, Replaced, TopFlows};
use crate::state::places_of_state;
use crate::{Chain, Error, Plan, State};

/// What a run begins with, and what happens to it on the way.
#[derive(Default)]
pub struct Life<'a> {
    /// State that the plan was told of: see [`Plan::restore`].
    pub restore: Option<State>,
    /// Packets of the run, in order, before each of which its chain becomes another one.
    pub reload_at: Vec<u64>,
    /// Set from outside to have the chain become another one before the next batch.
    pub reload: Arc<AtomicBool>,
    /// Makes the plan that is gone on with: the one for the number among [`Life::reload_at`], or the one that is asked for.
    pub load: Option<Box<Load<'a>>>,
    /// Where state goes on the way.
    pub save: Option<Saving<'a>>,
    /// Brought up to date after each batch, of any run.
    pub statistics: Arc<Statistics>,
}

/// See [`Life::load`]; the error is what the user is told.
pub type Load<'a> = dyn FnMut(Option<usize>) -> Result<Plan, String> + 'a;

/// See [`Saving::save`]; the error is what the user is told.
pub type Save<'a> = dyn FnMut(&State) -> Result<(), String> + 'a;

/// How state is saved.
pub struct Saving<'a> {
    /// From one time to the next during the run, by the clock; at the end it is part of [`Outcome`](crate::Outcome).
    pub every: Option<Duration>,
    /// Called with it; the run goes on where that fails.
    pub save: Box<Save<'a>>,
}

/// Where a run stands in its life.
pub(super) struct Lifecycle<'p, 'a> {
    first: &'p Plan,
    /// The plan that came after it.
    latest: Option<Plan>,
    life: Life<'a>,
    /// How many of [`Life::reload_at`] were met.
    met: usize,
    saved: Instant,
    notice: &'a mut dyn FnMut(&str),
    pub(super) reloads: Reloads,
    pub(super) replaced: Vec<Replaced>,
    /// Flow records of functions that are done.
    pub(super) top_flows: TopFlows,
    /// What tables counted of definitions that are done.
    pub(super) gone: Vec<(String, Counts)>,
}

/// What is to be done between two batches.
enum Due {
    Nothing,
    Reload(Box<Plan>),
    Save,
}

/// How one chain follows another.
pub(super) struct ChainSwap {
    /// For each function the one of the old chain that goes on as it.
    pub(super) goes_on: Vec<Option<usize>>,
    /// Functions of the old chain that are done, by their place there, and what they are called.
    pub(super) leaving: Vec<(usize, &'static str)>,
    /// Those of them whose state nobody goes on with.
    pub(super) ending: Vec<usize>,
    /// What flows begin with.
    pub(super) state: State,
}

/// What runs a chain, and can hand over to what runs the next.
pub(super) trait Runner: Sized {
    /// The state of all flows.
    fn save(&mut self, chain: &Chain) -> Result<State, Error>;

    /// Tells functions of some more states that are over; whether there are more.
    fn drain(&mut self, ending: &[usize]) -> Result<bool, Error>;

    /// Writes the records that came of it.
    fn write_records(&mut self, outlet: &mut Outlet<'_>) -> Result<(), Error>;

    /// What functions counted that are done, and the flow records that they made.
    fn reports(
        &mut self,
        chain: &Chain,
        leaving: &[usize],
    ) -> Result<(Vec<Box<dyn Report>>, TopFlows), Error>;

    /// Goes on with the next chain.
    fn swap(&mut self, plan: &Plan, swap: ChainSwap) -> Result<(), Error>;
}

impl<'p, 'a> Lifecycle<'p, 'a> {
    pub(super) fn new(first: &'p Plan, life: Life<'a>, notice: &'a mut dyn FnMut(&str)) -> Self {
        Self {
            first,
            latest: None,
            life,
            met: 0,
            saved: Instant::now(),
            notice,
            reloads: Reloads::default(),
            replaced: Vec::new(),
            top_flows: TopFlows::default(),
            gone: Vec::new(),
        }
    }

    pub(super) fn plan(&self) -> &Plan {
        self.latest.as_ref().unwrap_or(self.first)
    }

    /// The chain as it is now.
    pub(super) fn chain(&self) -> &Chain {
        self.plan().chain()
    }

    pub(super) fn notice(&mut self) -> &mut dyn FnMut(&str) {
        self.notice
    }

    /// Set from outside where the chain is to become another one.
    pub(super) fn reload_flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.life.reload)
    }

    /// What the run begins with.
    pub(super) fn restored(&mut self) -> Option<State> {
        self.life.restore.take()
    }

    /// Whether there is something to be done when so many packets were read, `begun` of them when something was done the last time: no
    /// state is saved twice without packets in between, however long that takes.
    pub(super) fn is_due(&self, packets: u64, begun: u64) -> bool {
        self.until().is_some_and(|at| at <= packets)
            || self.life.reload.load(Ordering::Relaxed)
            || packets > begun && self.is_save_due()
    }

    /// Packets of the run after which there is something to be done.
    pub(super) fn until(&self) -> Option<u64> {
        self.life.reload_at.get(self.met).copied()
    }

    /// Whether the state is wanted at the end.
    pub(super) fn saves(&self) -> bool {
        self.life.save.is_some()
    }

    /// What is to be done when so many packets were judged. To be called until there is nothing.
    fn due(&mut self, packets: u64) -> Due {
        let asked = if self.until().is_some_and(|at| at <= packets) {
            self.met += 1;
            Some(self.met - 1)
        } else if self.life.reload.swap(false, Ordering::Relaxed) {
            None
        } else if self.is_save_due() {
            return Due::Save;
        } else {
            return Due::Nothing;
        };
        let Some(load) = &mut self.life.load else { return self.due(packets) };
        match load(asked).and_then(|plan| plan.may_follow(self.first).map(|()| plan)) {
            Ok(plan) => Due::Reload(Box::new(plan)),
            Err(why) => {
                self.refuse(&why);
                self.due(packets)
            }
        }
    }

    /// Does all that is to be done before the next batch; packets that this one may not go beyond.
    pub(super) fn between_batches(
        &mut self,
        at: Position,
        runner: &mut impl Runner,
        outlet: &mut Outlet<'_>,
    ) -> Result<Option<u64>, Error> {
        loop {
            match self.due(at.received) {
                Due::Nothing => break,
                Due::Reload(plan) => self.reload(*plan, at.received, runner, outlet)?,
                Due::Save => {
                    let state = runner.save(self.chain())?;
                    self.save(&at.date(self.chain(), state));
                    self.saved = Instant::now();
                    break;
                }
            }
        }
        Ok(self.until())
    }

    /// The state at the end, where it is wanted.
    pub(super) fn last_state(&self, at: Position, runner: &mut impl Runner) -> Result<Option<State>, Error> {
        self.saves().then(|| Ok(at.date(self.chain(), runner.save(self.chain())?))).transpose()
    }

    /// Whether the state is to be saved now, as it is from time to time.
    pub(super) fn is_save_due(&self) -> bool {
        let every = self.life.save.as_ref().and_then(|saving| saving.every);
        every.is_some_and(|every| self.saved.elapsed() >= every)
    }

    fn refuse(&mut self, why: &str) {
        self.reloads.refused += 1;
        (self.notice)(&format!("the chain stays as it is: {why}"));
    }

    /// Saves state in the middle of the run.
    fn save(&mut self, state: &State) {
        let Some(saving) = &mut self.life.save else { return };
        if let Err(why) = (saving.save)(state) {
            (self.notice)(&format!("state was not saved: {why}"));
        }
    }

    /// Goes over to another chain, when so many packets were judged.
    fn reload(
        &mut self,
        plan: Plan,
        packets: u64,
        runner: &mut impl Runner,
        outlet: &mut Outlet<'_>,
    ) -> Result<(), Error> {
        let state = runner.save(self.chain())?;
        let Some((swap, before)) = self.follow(plan, state) else { return Ok(()) };
        let before = before.as_ref().unwrap_or(self.first).chain();
        let leaving: Vec<_> = swap.leaving.iter().map(|&(function, _)| function).collect();
        loop {
            let more = runner.drain(&swap.ending)?;
            runner.write_records(outlet)?;
            if !more {
                break;
            }
        }
        let (mut reports, top_flows) = runner.reports(before, &leaving)?;
        self.top_flows.merge(&top_flows);
        for (&function, report) in leaving.iter().zip(&mut reports) {
            outlet.finish_log(function, &mut **report)?;
        }
        let names = swap.leaving.iter().map(|&(_, nf)| nf);
        let replaced = names.zip(reports).map(|(nf, report)| Replaced { nf, packets, report });
        self.replaced.extend(replaced);
        outlet.follow(self.plan(), &swap.goes_on);
        self.reloads.done += 1;
        runner.swap(self.plan(), swap)
    }

    /// Makes a plan the latest; also returns the one that was, if it was not the first. None where it cannot be.
    fn follow(&mut self, mut plan: Plan, mut state: State) -> Option<(ChainSwap, Option<Plan>)> {
        let old = &self.chain().functions;
        let places = by_place(old);
        let mut goes_on = vec![None; plan.chain.functions.len()];
        for (place, function) in by_place(&plan.chain.functions) {
            // Its state has to be where it was, too.
            if let Some(&before) = places.get(&place)
                && places_of_state(self.chain(), before) == places_of_state(&plan.chain, function)
                && plan.chain.functions[function].resume(&*old[before])
            {
                goes_on[function] = Some(before);
            }
        }
        let leaving = old.iter().enumerate().filter(|&(function, _)| !goes_on.contains(&Some(function)));
        let leaving: Vec<_> = leaving.map(|(function, prepared)| (function, prepared.name())).collect();
        let has_heir = |function: usize| {
            let places = places_of_state(self.chain(), function);
            let name = old[function].name();
            let mut heirs = plan.chain.functions.iter().enumerate().filter(|(_, heir)| heir.name() == name);
            heirs.any(|(heir, _)| places_of_state(&plan.chain, heir) == places)
        };
        let ending: Vec<_> =
            leaving.iter().map(|&(function, _)| function).filter(|&function| !has_heir(function)).collect();
        // What they have to themselves ends with them.
        let is_over =
            |used: &Used| used.is_own && used.functions.iter().all(|(function, _)| ending.contains(function));
        let over = self.chain().layout.definitions.iter().filter(|used| is_over(used));
        let over: Vec<_> = over.map(|used| used.name.clone()).collect();
        state.definitions.retain(|held| !over.contains(&held.name));
        let definitions = &plan.chain.layout.definitions;
        let is_gone = |name: &str| definitions.iter().all(|used| used.name != name);
        let gone = state.definitions.iter().filter(|held| is_gone(&held.name));
        let gone: Vec<_> = gone.map(|held| (held.name.clone(), held.counts)).collect();
        let chain = &mut plan.chain;
        match state.fit(&mut chain.functions, &chain.layout, |function| goes_on[function].is_some()) {
            Ok((state, left_out)) => {
                left_out.iter().for_each(|what| (self.notice)(what));
                self.gone.extend(gone);
                let before = self.latest.replace(plan);
                Some((ChainSwap { goes_on, leaving, ending, state }, before))
            }
            Err(why) => {
                self.refuse(&why);
                None
            }
        }
    }
}

/// Functions by their names and their places among those of the same name.
fn by_place(functions: &[Box<dyn Prepared>]) -> HashMap<(&'static str, usize), usize> {
    let mut positions = HashMap::new();
    let places = functions.iter().enumerate().map(|(function, prepared)| {
        let position = positions.entry(prepared.name()).and_modify(|position| *position += 1).or_insert(0);
        ((prepared.name(), *position), function)
    });
    places.collect()
}

impl Plan {
    /// Makes of state that was saved what the functions begin with, and tells them what of it they have to know; [`Life`] takes it. Also
    /// says what had to be left out.
    ///
    /// # Errors
    ///
    /// What is wrong with it, and what was expected.
    pub fn restore(&mut self, state: State) -> Result<(State, Vec<String>), String> {
        state.fit(&mut self.chain.functions, &self.chain.layout, |_| false)
    }

    /// Whether its state can be taken from it between two batches: not where a device has several of them as whole frames, for acls alone.
    pub fn has_life(&self) -> bool {
        self.offloaded() == 0
    }

    /// Whether a run that began with `first` can go on with this.
    fn may_follow(&self, first: &Self) -> Result<(), String> {
        let (own, old) = (&self.chain().settings, &first.chain().settings);
        let source =
            |source: &Option<Origin>| source.as_ref().map_or_else(|| "none".into(), Origin::to_string);
        let path = |path: &Option<PathBuf>| {
            path.as_ref().map_or_else(|| "none".into(), |path| path.display().to_string())
        };
        let span = |span: Option<packetloom_nf::units::Span>| {
            span.map_or_else(|| "none".into(), |span| span.to_string())
        };
        for (what, now, was) in [
            ("source", source(&own.source), source(&old.source)),
            ("sink", path(&own.sink), path(&old.sink)),
            ("summary", path(&own.run.summary), path(&old.run.summary)),
            ("device", own.run.device.to_string(), old.run.device.to_string()),
            ("workers", own.run.workers.to_string(), old.run.workers.to_string()),
            ("batch", own.run.batch.to_string(), old.run.batch.to_string()),
            ("max_latency", span(own.run.max_latency), span(old.run.max_latency)),
            ("device_timeout", span(own.run.device_timeout), span(old.run.device_timeout)),
        ] {
            if now != was {
                return Err(format!("{what} is {now}; expected {was}, which stays for the whole run"));
            }
        }
        // A device is fed by one, whatever the chain.
        if first.stateful() == 0 && self.workers() != first.workers() {
            let (now, was) = (self.workers(), first.workers());
            return Err(format!(
                "it runs on {now} workers; expected one for {was}, which stay for the whole run"
            ));
        }
        let device = own.run.device;
        if !self.has_life() {
            return Err(format!("its acls alone are on {device}; expected functions with state there, too"));
        }
        if self.stateful() > 0 && first.stateful() == 0 {
            return Err(format!("it keeps state on {device}; expected one for cores, where the run began"));
        }
        let open: Vec<_> = paths(first).into_iter().flatten().collect();
        let mut used = Vec::new();
        for path in paths(self).into_iter().flatten() {
            if !open.contains(&path) {
                return Err(format!(
                    "{} is to be written; expected files that the run began with",
                    path.display()
                ));
            }
            if used.contains(&path) {
                return Err(format!("more than one output to {}; expected a file for each", path.display()));
            }
            used.push(path);
        }
        Ok(())
    }
}

/// Where functions' records or logs go.
pub(super) fn paths(plan: &Plan) -> Vec<Option<PathBuf>> {
    plan.chain().functions().iter().map(|function| function.records_path().map(Path::to_owned)).collect()
}
