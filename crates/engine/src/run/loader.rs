//! Makes the plans that a run goes on with, on a thread of its own: where packets come meanwhile they do not wait for it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crossbeam_channel::{Receiver, Sender, unbounded};
use packetloom_packet::PortNames;

use super::lifecycle::Load;
use super::make_ready;
use crate::Plan;

const NO_THREAD: &str = "there is no thread that could load another one";

/// What was loaded, or why it was not.
type Loaded = Result<Box<Plan>, String>;

/// What the thread is to do.
enum Order {
    Load(Option<usize>),
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
    pub(super) fn new(load: Box<Load>, port_names: Option<PortNames>) -> Self {
        Self {
            load: Some(load),
            port_names,
            thread: None,
            is_loading: false,
            ready: Arc::new(AtomicBool::new(false)),
        }
    }

    /// Set when a plan is there to be taken.
    pub(super) fn ready(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.ready)
    }

    pub(super) fn is_loading(&self) -> bool {
        self.is_loading
    }

    /// Begins to load a plan, where none is being loaded: see [`LifecycleOptions::load`](super::LifecycleOptions::load).
    pub(super) fn begin(&mut self, number: Option<usize>) {
        if let Some(load) = self.load.take() {
            self.thread = start(load, self.port_names.clone(), Arc::clone(&self.ready));
        }
        self.is_loading = true;
        match &self.thread {
            Some((orders, _)) => drop(orders.send(Order::Load(number))),
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
    mut load: Box<Load>,
    port_names: Option<PortNames>,
    ready: Arc<AtomicBool>,
) -> Option<(Sender<Order>, Receiver<Loaded>)> {
    let (orders, ordered) = unbounded();
    let (give, plans) = unbounded();
    let work = move || {
        for order in ordered {
            let number = match order {
                Order::Load(number) => number,
                Order::Drop(plan) => {
                    drop(plan);
                    continue;
                }
            };
            let loaded = catch_unwind(AssertUnwindSafe(|| {
                let plan = load(number)?;
                make_ready(&plan, port_names.as_ref());
                Ok(Box::new(plan))
            }));
            let loaded = loaded.unwrap_or_else(|_| Err("loading it failed".into()));
            if give.send(loaded).is_err() {
                return;
            }
            ready.store(true, Ordering::Release);
        }
    };
    thread::Builder::new().name("loader".into()).spawn(work).ok().map(|_| (orders, plans))
}
