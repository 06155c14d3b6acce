//! What happens to a run between two batches: its chain becomes another one, its state is saved.
//!
//! A run is one chain after the other. The next one begins with the state of the flows of the one before, in its own layout
//! ([`State::fit`]); a function that is as it was goes on as it is, with all that it counted; any other hands out what it holds and is
//! done. Neither packets nor outputs see anything of it.

use std::collections::{HashMap, VecDeque};
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use packetloom_nf::flows::Counts;
use packetloom_nf::{Form, FunctionSpec, Report, Watch};
use packetloom_packet::PortNames;

use super::control::SourceReport;
use super::listing::{Scan, Scanned};
use super::loader::{Loaded, Loader, Order};
use super::rules::{RuleChange, RulesChanged};
use super::{Answer, ChangeAnswer, Control, Outlet, Position, Statistics};
use crate::chain::{Device, Origin};
use crate::layout::Used;
use crate::offload::Open;
use crate::outcome::{Reloads, Replaced, TopFlows};
use crate::pipeline::{Before, WorkerReport};
use crate::state::places_of_state;
use crate::{Chain, Error, Plan, State};

/// Functions that have left the chain, whose counts are kept.
const MOST_REPLACED: usize = 64;

/// What a run begins with, and what happens to it on the way.
#[derive(Default)]
pub struct LifecycleOptions<'a> {
    /// State that the plan was told of: see [`Plan::restore`].
    pub restore: Option<State>,
    /// Packets of the run, in order, before each of which its chain becomes another one.
    pub reload_at: Vec<u64>,
    /// What others ask for on the way. Over interfaces packets go on while a chain is loaded that was asked for.
    pub control: Arc<Control>,
    /// Makes the plan that is gone on with: the one for the number among [`LifecycleOptions::reload_at`], or the one that is asked for. Called on a
    /// thread of its own.
    pub load: Option<Box<Load>>,
    /// Called when the chain has become the one that was asked for.
    pub reloaded: Option<Box<dyn FnMut() + 'a>>,
    /// Where state goes on the way.
    pub save: Option<Saving<'a>>,
    /// Brought up to date after each batch, of any run.
    pub statistics: Arc<Statistics>,
    /// With [`Device::Auto`], packets after which state of flows moves between cores and the device, again and again, in place of when that is
    /// better: for tests.
    pub move_every: Option<NonZeroU64>,
    /// With [`Device::Auto`], opens the device in place of the first GPU, in a thread of its own while the run goes on.
    pub open: Option<Box<Open>>,
}

/// See [`LifecycleOptions::load`]; the error is what the user is told.
pub type Load = dyn FnMut(Option<usize>) -> Result<Plan, String> + Send;

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
    latest: Option<Box<Plan>>,
    life: LifecycleOptions<'a>,
    loader: Loader,
    /// Whether a device is used.
    is_on_device: bool,
    /// Whether packets go on while a chain is loaded that was asked for.
    goes_on: bool,
    /// How many of [`LifecycleOptions::reload_at`] were met.
    met: usize,
    pub(super) begun: Instant,
    saved: Instant,
    /// Since when packets wait, between two batches.
    pause_begun: Instant,
    /// Who waits for the next reload that is asked for, and for the one that is being done.
    next_reload: Vec<Answer>,
    this_reload: Vec<Answer>,
    /// Changes of rules that are asked for, and who waits for the one that is being made.
    next_changes: VecDeque<(RuleChange, ChangeAnswer)>,
    this_change: Option<ChangeAnswer>,
    notice: &'a mut dyn FnMut(&str),
    pub(super) reloads: Reloads,
    /// Transactions of rules that were made.
    pub(super) rule_changes: u64,
    pub(super) replaced: Vec<Arc<Replaced>>,
    pub(super) replaced_before: u64,
    /// Flow records of functions that are done.
    pub(super) top_flows: TopFlows,
    /// What tables counted of definitions that are done.
    pub(super) gone: Vec<(String, Counts)>,
}

/// What is to be done between two batches.
enum Due {
    Nothing,
    /// Whether it was asked for.
    Reload(Box<Plan>, bool),
    /// The plan with other rules.
    Change(Box<Plan>, RulesChanged),
    Save,
}

/// How one chain follows another.
pub(super) struct ChainSwap {
    /// What each function was in the old chain.
    pub(super) before: Vec<Before>,
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

    /// What all functions have counted so far; they go on as before.
    fn counted(&mut self, chain: &Chain) -> Result<WorkerReport, Error>;

    /// Shows a scan all entries of its function.
    fn list(&mut self, chain: &Chain, scan: &Scan<'_>) -> Result<Scanned, Error> {
        let mut scanned = Scanned::default();
        let state = self.save(chain)?;
        state.definitions[scan.part.definition].each_entry(|entry| scan.see(entry, &mut scanned));
        Ok(scanned)
    }

    /// Takes the function's state out of the entries that a scan means, and writes the records that come of it; how many.
    fn remove(&mut self, chain: &Chain, scan: &Scan<'_>, outlet: &mut Outlet<'_>) -> Result<u64, Error>;

    /// Goes on with a chain of the same layout in which one function has other rules.
    fn change(&mut self, plan: &Plan, function: usize) -> Result<(), Error>;

    /// Goes on with the next chain.
    fn swap(&mut self, plan: &Plan, swap: ChainSwap) -> Result<(), Error>;

    /// Whether another one goes on with it.
    fn has_left(&self) -> bool {
        false
    }
}

impl<'p, 'a> Lifecycle<'p, 'a> {
    /// Given are also whether a device has functions of the chain, the ports by which packets come, where they are known, and whether these
    /// go on while a chain is loaded.
    pub(super) fn new(
        first: &'p Plan,
        mut life: LifecycleOptions<'a>,
        is_on_device: bool,
        (port_names, goes_on): (Option<PortNames>, bool),
        notice: &'a mut dyn FnMut(&str),
    ) -> Self {
        let loader = Loader::new(life.load.take(), port_names);
        Self {
            first,
            latest: None,
            life,
            loader,
            is_on_device,
            goes_on,
            met: 0,
            begun: Instant::now(),
            saved: Instant::now(),
            pause_begun: Instant::now(),
            next_reload: Vec::new(),
            this_reload: Vec::new(),
            next_changes: VecDeque::new(),
            this_change: None,
            notice,
            reloads: Reloads::default(),
            rule_changes: 0,
            replaced: Vec::new(),
            replaced_before: 0,
            top_flows: TopFlows::default(),
            gone: Vec::new(),
        }
    }

    pub(super) fn plan(&self) -> &Plan {
        self.latest.as_deref().unwrap_or(self.first)
    }

    /// The chain as it is now.
    pub(super) fn chain(&self) -> &Chain {
        self.plan().chain()
    }

    pub(super) fn notice(&mut self) -> &mut dyn FnMut(&str) {
        self.notice
    }

    /// What others ask for.
    pub(super) fn control(&self) -> &Arc<Control> {
        &self.life.control
    }

    /// See [`LifecycleOptions::move_every`].
    pub(super) fn move_every(&self) -> Option<u64> {
        self.life.move_every.map(NonZeroU64::get)
    }

    /// Has somebody wait for the next reload that is asked for.
    pub(super) fn await_reload(&mut self, answer: Answer) {
        self.next_reload.push(answer);
    }

    /// Has somebody wait for a change of rules.
    pub(super) fn await_change(&mut self, change: RuleChange, answer: ChangeAnswer) {
        self.next_changes.push_back((change, answer));
    }

    /// Set from outside where the chain is to become another one before the next batch.
    pub(super) fn reload_flag(&self) -> Arc<AtomicBool> {
        if self.goes_on { self.loader.ready() } else { self.life.control.reload_flag() }
    }

    /// Begins to make the chain that is asked for, where packets go on meanwhile, and none is being made. To be called all the time.
    pub(super) fn tend(&mut self) {
        if self.goes_on && !self.loader.is_loading() {
            self.begin_asked();
        }
    }

    /// Begins to make the chain that is asked for next, if there is one; whether there is.
    fn begin_asked(&mut self) -> bool {
        if self.life.control.takes_reload() {
            self.this_reload.append(&mut self.next_reload);
            self.loader.begin(Order::Load(None));
        } else if let Some((change, answer)) = self.next_changes.pop_front() {
            self.this_change = Some(answer);
            let plan = self.plan().clone();
            self.loader.begin(Order::Change(plan, change));
        } else {
            return false;
        }
        true
    }

    /// What the run begins with.
    pub(super) fn restored(&mut self) -> Option<State> {
        self.life.restore.take()
    }

    /// Whether there is something to be done when so many packets were read, `begun` of them when something was done the last time: no
    /// state is saved twice without packets in between, however long that takes.
    pub(super) fn is_due(&mut self, packets: u64, begun: u64) -> bool {
        self.tend();
        self.until().is_some_and(|at| at <= packets)
            || self.life.control.is_asked()
            || self.reload_flag().load(Ordering::Relaxed)
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
        self.tend();
        let is_at = self.until().is_some_and(|at| at <= packets);
        if let Some((loaded, is_asked)) = self.loaded(is_at) {
            let may_follow = |(plan, changed): (Box<Plan>, _)| {
                plan.may_follow(self.first, self.is_on_device)?;
                // Without a device packets are spread by what such functions need.
                if self.is_on_device {
                    plan.may_take_over(self.plan())?;
                }
                Ok((plan, changed))
            };
            return match loaded.and_then(may_follow) {
                Ok((plan, None)) => Due::Reload(plan, is_asked),
                Ok((plan, Some(changed))) => Due::Change(plan, changed),
                Err(why) => {
                    self.refuse(&why);
                    self.due(packets)
                }
            };
        }
        if self.is_save_due() { Due::Save } else { Due::Nothing }
    }

    /// The plan that is next, if it is time for it, and whether it was asked for; `is_at` says whether it is that for one of
    /// [`LifecycleOptions::reload_at`], unless there is one that was asked for before.
    fn loaded(&mut self, is_at: bool) -> Option<(Loaded, bool)> {
        if is_at && !self.loader.is_loading() {
            self.loader.begin(Order::Load(Some(self.met)));
            self.met += 1;
            return self.loader.wait().map(|loaded| (loaded, false));
        }
        let waits = is_at || !self.goes_on && self.begin_asked();
        let loaded = if waits { self.loader.wait() } else { self.loader.take() };
        loaded.map(|loaded| (loaded, true))
    }

    /// Does all that is to be done before the next batch; packets that this one may not go beyond.
    pub(super) fn between_batches(
        &mut self,
        at: Position,
        runner: &mut impl Runner,
        outlet: &mut Outlet<'_>,
        source: &mut dyn FnMut() -> Result<SourceReport, Error>,
    ) -> Result<Option<u64>, Error> {
        let _pause = self.life.statistics.pause();
        self.pause_begun = Instant::now();
        self.serve(at, runner, outlet, source)?;
        while !runner.has_left() {
            match self.due(at.received) {
                Due::Nothing => break,
                Due::Change(plan, changed) => self.change(plan, changed, at.received, runner, outlet)?,
                Due::Reload(plan, is_asked) => {
                    let is_done = self.swap(plan, at.received, runner, outlet)?;
                    if is_done {
                        self.reloads.done += 1;
                        self.tell_held();
                        self.this_reload.drain(..).for_each(|answer| answer(Ok(())));
                    }
                    if let Some(reloaded) = self.life.reloaded.as_mut().filter(|_| is_done && is_asked) {
                        reloaded();
                    }
                }
                Due::Save => {
                    let state = runner.save(self.chain())?;
                    if let Err(why) = self.save(&at.date(self.chain(), state)) {
                        (self.notice)(&format!("state was not saved: {why}"));
                    }
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

    /// Tells those who ask how long packets have waited by now. To be called before an answer is given.
    pub(super) fn tell_held(&self) {
        self.control().tell_held(self.pause_begun.elapsed());
    }

    /// Goes on as before; says why to those who asked for something else.
    fn refuse(&mut self, why: &str) {
        self.tell_held();
        if let Some(answer) = self.this_change.take() {
            return answer(Err(why.into()));
        }
        self.reloads.refused += 1;
        (self.notice)(&format!("the chain stays as it is: {why}"));
        self.this_reload.drain(..).for_each(|answer| answer(Err(why.into())));
    }

    /// Saves state in the middle of the run.
    pub(super) fn save(&mut self, state: &State) -> Result<(), String> {
        let result = self.life.save.as_mut().map_or(Ok(()), |saving| (saving.save)(state));
        self.saved = Instant::now();
        result
    }

    /// Goes over to the chain with other rules, when so many packets were judged. Where all functions keep their state where they had it, that
    /// stays there.
    fn change(
        &mut self,
        plan: Box<Plan>,
        changed: RulesChanged,
        packets: u64,
        runner: &mut impl Runner,
        outlet: &mut Outlet<'_>,
    ) -> Result<(), Error> {
        let is_done = if plan.is_placed_as(self.plan()) {
            let latest = self.latest.replace(plan);
            let before = |function| match function {
                function if function == changed.function => Before::OtherRules(function),
                function => Before::Same(function),
            };
            let before: Vec<_> = (0..self.chain().functions.len()).map(before).collect();
            outlet.follow(self.plan(), &before);
            runner.change(self.plan(), changed.function)?;
            self.discard(latest);
            true
        } else {
            self.swap(plan, packets, runner, outlet)?
        };
        if let Some(answer) = self.this_change.take_if(|_| is_done) {
            self.rule_changes += 1;
            self.tell_held();
            answer(Ok(changed));
        }
        Ok(())
    }

    /// Forgets a plan that was the latest, if it was not the first.
    fn discard(&self, latest: Option<Box<Plan>>) {
        if let Some(latest) = latest {
            self.loader.discard(latest);
        }
    }

    /// Goes over to another chain, when so many packets were judged; whether that could be.
    fn swap(
        &mut self,
        plan: Box<Plan>,
        packets: u64,
        runner: &mut impl Runner,
        outlet: &mut Outlet<'_>,
    ) -> Result<bool, Error> {
        let state = runner.save(self.chain())?;
        let Some((swap, latest)) = self.follow(plan, state) else { return Ok(false) };
        let before = latest.as_deref().unwrap_or(self.first).chain();
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
            outlet.finish_log(function)?;
            outlet.report_log(function, &mut **report);
        }
        let names = swap.leaving.iter().map(|&(_, nf)| nf);
        let replaced = names.zip(reports).map(|(nf, report)| Arc::new(Replaced::new(nf, packets, &*report)));
        self.replaced.extend(replaced);
        // A run that is reloaded every minute goes on for months.
        let left_out = self.replaced.len().saturating_sub(MOST_REPLACED);
        self.replaced.drain(..left_out);
        self.replaced_before += left_out as u64;
        outlet.follow(self.plan(), &swap.before);
        runner.swap(self.plan(), swap)?;
        self.discard(latest);
        Ok(true)
    }

    /// Makes a plan the latest; also returns the one that was, if it was not the first. None where it cannot be.
    fn follow(&mut self, mut plan: Box<Plan>, mut state: State) -> Option<(ChainSwap, Option<Box<Plan>>)> {
        let chain = match plan.chain_mut() {
            Ok(chain) => chain,
            Err(why) => {
                self.refuse(&why);
                return None;
            }
        };
        let old = &self.chain().functions;
        let places = by_place(old);
        let mut before = vec![Before::None; chain.functions.len()];
        for (place, function) in by_place(&chain.functions) {
            let Some(&at) = places.get(&place) else { continue };
            // Its state has to be where it was, too.
            let is_in_place = places_of_state(self.chain(), at) == places_of_state(chain, function);
            let function = (&mut chain.functions[function], &mut before[function]);
            let resumes = |new: &mut dyn FunctionSpec| new.resume(&*old[at]);
            if is_in_place
                && (Arc::ptr_eq(function.0, &old[at]) || Arc::get_mut(function.0).is_some_and(resumes))
            {
                *function.1 = Before::Same(at);
            } else if function.0.succeeds(&*old[at]) {
                *function.1 = Before::OtherRules(at);
            }
        }
        let goes_on = |function: usize| matches!(before[function], Before::Same(_));
        let is_leaving = |function: usize| {
            !before.contains(&Before::Same(function)) && !before.contains(&Before::OtherRules(function))
        };
        let leaving = old.iter().enumerate().filter(|&(function, _)| is_leaving(function));
        let leaving: Vec<_> = leaving.map(|(function, prepared)| (function, prepared.name())).collect();
        let has_heir = |function: usize| {
            let places = places_of_state(self.chain(), function);
            let name = old[function].name();
            let layout = layout_of(&*old[function]);
            let mut heirs = chain.functions.iter().enumerate().filter(|(_, heir)| heir.name() == name);
            heirs.any(|(heir, function)| {
                places_of_state(chain, heir) == places && layout_of(&**function) == layout
            })
        };
        let ending: Vec<_> =
            leaving.iter().map(|&(function, _)| function).filter(|&function| !has_heir(function)).collect();
        // What they have to themselves ends with them.
        let is_over =
            |used: &Used| used.is_own && used.functions.iter().all(|(function, _)| ending.contains(function));
        let over = self.chain().layout.definitions.iter().filter(|used| is_over(used));
        let over: Vec<_> = over.map(|used| used.name.clone()).collect();
        state.definitions.retain(|held| !over.contains(&held.name));
        let definitions = &chain.layout.definitions;
        let is_gone = |name: &str| definitions.iter().all(|used| used.name != name);
        let gone = state.definitions.iter().filter(|held| is_gone(&held.name));
        let gone: Vec<_> = gone.map(|held| (held.name.clone(), held.counts)).collect();
        match state.fit(&mut chain.functions, &chain.layout, goes_on) {
            Ok((state, left_out)) => {
                left_out.iter().for_each(|what| (self.notice)(what));
                self.gone.extend(gone);
                let latest = self.latest.replace(plan);
                Some((ChainSwap { before, leaving, ending, state }, latest))
            }
            Err(why) => {
                self.refuse(&why);
                None
            }
        }
    }
}

/// Functions by their names and their places among those of the same name.
fn by_place(functions: &[Arc<dyn FunctionSpec>]) -> HashMap<(&'static str, usize), usize> {
    let mut positions = HashMap::new();
    let places = functions.iter().enumerate().map(|(function, prepared)| {
        let position = positions.entry(prepared.name()).and_modify(|position| *position += 1).or_insert(0);
        ((prepared.name(), *position), function)
    });
    places.collect()
}

impl Plan {
    /// Makes of state that was saved what the functions begin with, and tells them what of it they have to know; [`LifecycleOptions`] takes it. Also
    /// says what had to be left out.
    ///
    /// # Errors
    ///
    /// What is wrong with it, and what was expected.
    pub fn restore(&mut self, state: State) -> Result<(State, Vec<String>), String> {
        let chain = self.chain_mut()?;
        state.fit(&mut chain.functions, &chain.layout, |_| false)
    }

    /// Whether all functions keep state where those of another plan do, and run where those do.
    fn is_placed_as(&self, other: &Self) -> bool {
        self.chain.layout == other.chain.layout
            && (self.workers(), self.spread()) == (other.workers(), other.spread())
            && (self.offloaded(), self.searched(), self.stateful())
                == (other.offloaded(), other.searched(), other.stateful())
            && self.feeders() == other.feeders()
    }

    /// Whether a run that began with `first`, with functions on a device or not, can go on with this.
    fn may_follow(&self, first: &Self, is_on_device: bool) -> Result<(), String> {
        let (own, old) = (&self.chain().settings, &first.chain().settings);
        let source =
            |source: &Option<Origin>| source.as_ref().map_or_else(|| "none".into(), Origin::to_string);
        let path = |path: &Option<PathBuf>| {
            path.as_ref().map_or_else(|| "none".into(), |path| path.display().to_string())
        };
        let matched = |matched: &Option<(PathBuf, Watch)>| {
            matched.as_ref().map_or_else(
                || "none".into(),
                |(path, which)| format!("{}, of packets that {which} matched", path.display()),
            )
        };
        let span = |span: Option<packetloom_nf::units::Span>| {
            span.map_or_else(|| "none".into(), |span| span.to_string())
        };
        let size = |size: Option<packetloom_nf::units::FileSize>| {
            size.map_or_else(|| "none".into(), |size| size.to_string())
        };
        let kept =
            |keep: Option<crate::chain::Kept>| keep.map_or_else(|| "none".into(), |keep| keep.to_string());
        for (what, now, was) in [
            ("source", source(&own.source), source(&old.source)),
            ("sink", path(&own.sink), path(&old.sink)),
            ("dropped", path(&own.dropped), path(&old.dropped)),
            ("matched", matched(&own.matched), matched(&old.matched)),
            ("summary", path(&own.run.summary), path(&old.run.summary)),
            ("control", path(&own.run.control), path(&old.run.control)),
            ("stats_every", span(own.run.stats_every), span(old.run.stats_every)),
            ("watchdog", span(own.run.watchdog), span(old.run.watchdog)),
            ("stats_output", path(&own.run.stats_output), path(&old.run.stats_output)),
            ("rotate_every", span(own.run.rotate_every), span(old.run.rotate_every)),
            ("rotate_size", size(own.run.rotate_size), size(old.run.rotate_size)),
            ("rotate_keep", kept(own.run.rotate_keep), kept(old.run.rotate_keep)),
            ("device", own.run.device.to_string(), old.run.device.to_string()),
            ("workers", own.run.workers.to_string(), old.run.workers.to_string()),
            ("idle", own.run.idle.name().into(), old.run.idle.name().into()),
            ("batch", own.run.batch.to_string(), old.run.batch.to_string()),
            ("max_latency", span(own.run.max_latency), span(old.run.max_latency)),
            ("device_timeout", span(own.run.device_timeout), span(old.run.device_timeout)),
            ("device_copy_every", span(own.run.device_copy_every), span(old.run.device_copy_every)),
        ] {
            if now != was {
                return Err(format!("{what} is {now}; expected {was}, which stays for the whole run"));
            }
        }
        // A device is fed by one run loop, whatever the chain.
        if !is_on_device && self.workers() != first.workers() {
            let (now, was) = (self.workers(), first.workers());
            return Err(format!(
                "it runs on {now} workers; expected one for {was}, which stay for the whole run"
            ));
        }
        let device = &own.run.device;
        if !is_on_device && *device != Device::Auto && self.on_device() > 0 {
            return Err(format!(
                "it has functions for {device}; expected one for cores, where the run began"
            ));
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
            if header_of(self, &path) != header_of(first, &path) {
                return Err(format!(
                    "{} would get other columns; expected those that the run began with",
                    path.display()
                ));
            }
            used.push(path);
        }
        let of = |plan: &Self| -> Vec<_> {
            plan.chain().functions().iter().flat_map(|function| function.exports()).cloned().collect()
        };
        let open = of(first);
        match of(self).iter().find(|settings| !open.contains(settings)) {
            None => Ok(()),
            Some(settings) => Err(format!(
                "records are to be sent to {} in another way than before, or were not; expected exports that the run began with",
                settings.to
            )),
        }
    }
}

/// What words a function keeps for a flow: it goes on with those of its own layout only.
fn layout_of(function: &dyn FunctionSpec) -> Option<(u32, usize)> {
    match function.form() {
        Form::PerFlow(function) => Some((function.version(), function.keeps().words)),
        Form::Standalone(_) => None,
    }
}

/// What a file with functions' records begins with.
fn header_of(plan: &Plan, path: &Path) -> Option<String> {
    let functions = plan.chain().functions();
    functions.iter().find(|function| function.records_path() == Some(path))?.record_lines().header()
}

/// Where functions' records or logs go.
pub(super) fn paths(plan: &Plan) -> Vec<Option<PathBuf>> {
    plan.chain().functions().iter().map(|function| function.records_path().map(Path::to_owned)).collect()
}
