//! Makes the plans that a run goes on with, on a thread of its own: where packets come meanwhile they do not wait for it.
//!
//! A plan is loaded, or is the one before with other rules.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crossbeam_channel::{Receiver, Sender, unbounded};
use packetloom_packet::PortNames;

use super::lifecycle::Load;
use super::make_ready;
use super::rules::{RuleChange, RulesChanged};
use crate::Plan;

const NO_THREAD: &str = "there is no thread that could load another one";

/// What was loaded, and what became of the rules where it is the plan before with other ones; or why it was not.
pub(super) type Loaded = Result<(Box<Plan>, Option<RulesChanged>), String>;

/// What the thread is to do.
pub(super) enum Order {
    /// See [`LifecycleOptions::load`](super::LifecycleOptions::load).
    Load(Option<usize>),
    /// Makes a transaction of rules of a plan.
    Change(Plan, RuleChange),
    /// Frees the memory of a plan that is done.
    Drop(Box<Plan>),
}

/// See above. The thread is there from the first plan on.
pub(super) struct Loader {
    load: Option<Box<Load>>,
    /// What is made ready for the interfaces by which packets come.
    port_names: Option<PortNames>,
    thread: Option<(Sender<Order>, Receiver<Loaded>)>,
    /// Whether a plan was asked for that is not taken yet.
    is_loading: bool,
    /// Set by the thread when it has loaded something.
    ready: Arc<AtomicBool>,
}

impl Loader {
    pub(super) fn new(load: Option<Box<Load>>, port_names: Option<PortNames>) -> Self {
        Self { load, port_names, thread: None, is_loading: false, ready: Arc::new(AtomicBool::new(false)) }
    }

    /// Set when a plan is there to be taken.
    pub(super) fn ready(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.ready)
    }

    pub(super) fn is_loading(&self) -> bool {
        self.is_loading
    }

    /// Begins to make a plan, where none is being made.
    pub(super) fn begin(&mut self, order: Order) {
        if self.thread.is_none() {
            self.thread = start(self.load.take(), self.port_names.clone(), Arc::clone(&self.ready));
        }
        self.is_loading = true;
        match &self.thread {
            Some((orders, _)) => drop(orders.send(order)),
            None => self.ready.store(true, Ordering::Release),
        }
    }

    /// The plan that was asked for, if it is there.
    pub(super) fn take(&mut self) -> Option<Loaded> {
        // It may be set for one that was waited for.
        if !self.ready.swap(false, Ordering::AcqRel) || !self.is_loading {
            return None;
        }
        let loaded = match &self.thread {
            Some((_, plans)) => plans.try_recv().ok()?,
            None => Err(NO_THREAD.into()),
        };
        self.is_loading = false;
        Some(loaded)
    }

    /// The same; waits until it is there.
    pub(super) fn wait(&mut self) -> Option<Loaded> {
        if !std::mem::replace(&mut self.is_loading, false) {
            return None;
        }
        let loaded = self.thread.as_ref().and_then(|(_, plans)| plans.recv().ok());
        Some(loaded.unwrap_or_else(|| Err(NO_THREAD.into())))
    }

    /// Forgets a plan; its memory is not freed by the caller.
    pub(super) fn discard(&self, plan: Box<Plan>) {
        if let Some((orders, _)) = &self.thread {
            let _ = orders.send(Order::Drop(plan));
        }
    }
}

/// It ends after what it is doing once nobody has orders for it. Nobody waits for that: a run may end while it loads.
fn start(
    mut load: Option<Box<Load>>,
    port_names: Option<PortNames>,
    ready: Arc<AtomicBool>,
) -> Option<(Sender<Order>, Receiver<Loaded>)> {
    let (orders, ordered) = unbounded();
    let (give, plans) = unbounded();
    let work = move || {
        for order in ordered {
            let loaded = catch_unwind(AssertUnwindSafe(|| {
                let (plan, changed) = match order {
                    Order::Load(number) => {
                        let load = load.as_mut().ok_or("the run has no chain file to be read again")?;
                        (load(number)?, None)
                    }
                    Order::Change(plan, change) => {
                        let (plan, changed) = change.make(&plan)?;
                        (plan, Some(changed))
                    }
                    Order::Drop(plan) => {
                        drop(plan);
                        return Ok(None);
                    }
                };
                make_ready(&plan, port_names.as_ref());
                Ok(Some((Box::new(plan), changed)))
            }));
            let loaded = match loaded {
                Ok(Ok(None)) => continue,
                Ok(Ok(Some(loaded))) => Ok(loaded),
                Ok(Err(why)) => Err(why),
                Err(_) => Err("loading it failed".into()),
            };
            if give.send(loaded).is_err() {
                return;
            }
            ready.store(true, Ordering::Release);
        }
    };
    thread::Builder::new().name("loader".into()).spawn(work).ok().map(|_| (orders, plans))
}
