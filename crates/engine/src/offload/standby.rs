//! A device that may fail: loaded in the background, left alone when it fails, tried again later.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread::Scope;
use std::time::{Duration, Instant};

use packetloom_device::Device;
use packetloom_nf::{Offload, Prepared};
use packetloom_packet::LinkType;

use super::frames::{Acl, Frames, Options};
use super::lane::{Lane, Way};
use super::{Error, is_gpu};

/// Batches that are on their way at a time.
pub const LANES: usize = 4;
/// Packets of a lane's batch at most.
pub const ROOM: usize = 1 << 14;
/// How long a batch may be away before the device counts as one that hangs, unless it is said; drivers of CPUs are slow.
const LIMIT: Duration = Duration::from_secs(2);
const LIMIT_OF_CPU: Duration = Duration::from_secs(60);
/// The same for the first launch, at which drivers still compile.
const LIMIT_OF_FIRST: Duration = Duration::from_secs(60);
/// From a failure to the first trial, and the longest time between two.
const AGAIN: Duration = Duration::from_millis(20);
const LATEST: Duration = Duration::from_secs(60);

/// How long a batch may be away from a device unless it is said.
pub fn limit_of(device: &Device) -> Duration {
    if is_gpu(device) { LIMIT } else { LIMIT_OF_CPU }
}

type Loaded = Result<Rules, Error>;

/// Rules on the device, and lanes to have packets judged by them.
#[derive(Debug)]
struct Rules {
    /// Changes that were made before.
    changes: usize,
    lanes: Vec<Lane>,
    names: Arc<[Option<Vec<u32>>]>,
    /// Which load it was.
    load: u64,
}

impl Drop for Rules {
    fn drop(&mut self) {
        for lane in &mut self.lanes {
            // What went wrong was told, or will be, by those who wait for answers.
            let _ = lane.rest();
        }
    }
}

/// A lane, and what it judges by.
#[derive(Debug)]
pub struct Loan {
    /// The lane.
    pub lane: Lane,
    /// For each function what it calls its rules, where they have names.
    pub names: Arc<[Option<Vec<u32>>]>,
    load: u64,
}

/// A device's lanes, as long as there are some.
pub struct Standby<'scope, 'env> {
    scope: &'scope Scope<'scope, 'env>,
    device: &'env Device,
    functions: &'env [Box<dyn Prepared>],
    options: Options,
    limit: Duration,
    state: State,
    /// From one trial to the next.
    pause: Duration,
    /// Whether it was said that it failed, and not yet that it is back.
    is_out: bool,
    faults: u64,
    /// How often rules were loaded.
    loads: u64,
    /// The longest time that it took, from when they were wanted to when the device had them.
    longest: Duration,
    /// What is to be said.
    news: Vec<String>,
}

enum State {
    Ready(Rules),
    Loading(Receiver<Loaded>, Instant),
    /// Until then; for good where it would only fail again.
    Failed(Option<Instant>),
}

impl<'scope, 'env> Standby<'scope, 'env> {
    /// A device that is being loaded with what some functions let it do; `limit` is how long a batch may be away.
    pub fn new(
        scope: &'scope Scope<'scope, 'env>,
        device: &'env Device,
        functions: &'env [Box<dyn Prepared>],
        options: Options,
        limit: Option<Duration>,
    ) -> Self {
        let limit = limit.unwrap_or_else(|| limit_of(device));
        let mut standby = Self {
            scope,
            device,
            functions,
            options,
            limit,
            state: State::Failed(None),
            pause: AGAIN,
            is_out: false,
            faults: 0,
            loads: 0,
            longest: Duration::ZERO,
            news: Vec::new(),
        };
        standby.load(0);
        standby
    }

    /// Has it loaded with the rules after so many changes.
    fn load(&mut self, changes: usize) {
        let loading = load(self.scope, self.device, self.functions, changes, self.options);
        self.state = State::Loading(loading, Instant::now());
    }

    /// Waits until it is loaded.
    ///
    /// # Errors
    /// Why it cannot be.
    pub fn wait(&mut self) -> Result<(), Error> {
        let State::Loading(loading, since) = &self.state else { return Ok(()) };
        let since = *since;
        // A thread that panicked says nothing.
        let rules = loading.recv().unwrap_or_else(|_| Err(gone()))?;
        self.loaded(rules, since);
        Ok(())
    }

    fn loaded(&mut self, mut rules: Rules, since: Instant) {
        self.loads += 1;
        rules.load = self.loads;
        self.longest = self.longest.max(since.elapsed());
        self.state = State::Ready(rules);
    }

    /// How long a batch may be away.
    pub fn limit(&self) -> Duration {
        self.limit
    }

    /// How often rules were loaded, and the longest time from when they were wanted to when they were there.
    pub fn loads(&self) -> (u64, Duration) {
        (self.loads, self.longest)
    }

    /// How often it failed.
    pub fn faults(&self) -> u64 {
        self.faults
    }

    /// What is to be said of it since the last time: once when it fails, once when it is back.
    pub fn news(&mut self) -> impl Iterator<Item = String> {
        self.news.drain(..)
    }

    /// A lane for a batch that is to be judged by the rules after so many changes; none where all are in use, or the device is not there or has
    /// other rules, which it will have then.
    pub fn lane(&mut self, changes: usize) -> Option<Loan> {
        match &mut self.state {
            State::Ready(rules) if rules.changes == changes => {}
            // What is under way with the rules before is judged by them all the same.
            State::Ready(_) => self.load(changes),
            State::Loading(loading, since) => {
                let since = *since;
                match loading.try_recv() {
                    Err(TryRecvError::Empty) => {}
                    Ok(Ok(rules)) => self.loaded(rules, since),
                    Ok(Err(error)) => self.fail(&error),
                    Err(TryRecvError::Disconnected) => self.fail(&gone()),
                }
            }
            State::Failed(Some(again)) if Instant::now() >= *again => self.load(changes),
            State::Failed(_) => {}
        }
        let State::Ready(rules) = &mut self.state else { return None };
        if rules.changes != changes {
            return None;
        }
        Some(Loan { lane: rules.lanes.pop()?, names: rules.names.clone(), load: rules.load })
    }

    /// Takes a lane back whose batch was judged: the device works.
    pub fn give_back(&mut self, loan: Loan) {
        if self.is_out && matches!(self.state, State::Ready(_)) {
            self.is_out = false;
            self.pause = AGAIN;
            self.news.push(format!("{} is back", self.device.description().id));
        }
        match &mut self.state {
            State::Ready(rules) if rules.load == loan.load => rules.lanes.push(loan.lane),
            // Its rules have gone.
            State::Ready(_) | State::Loading(..) => drop(loan),
            State::Failed(_) => loan.lane.abandon(),
        }
    }

    /// The device failed: it is left alone for a while. Lanes that are on their way must be abandoned.
    pub fn fail(&mut self, why: &Error) {
        if matches!(self.state, State::Failed(_)) {
            return;
        }
        self.faults += 1;
        // Rules that it does not take will not be taken later.
        let is_for_good = matches!(why, Error::Image(_));
        let again = (!is_for_good).then(|| Instant::now() + self.pause);
        self.pause = (self.pause * 2).min(LATEST);
        if let State::Ready(mut rules) = std::mem::replace(&mut self.state, State::Failed(again)) {
            // All of them first: drivers wait for kernels when memory is given back.
            rules.lanes.iter().for_each(Lane::dismiss);
            rules.lanes.drain(..).for_each(Lane::abandon);
        }
        if !self.is_out {
            self.is_out = true;
            let id = self.device.description().id;
            let later = if is_for_good { String::new() } else { format!(", and {id} is tried again") };
            self.news.push(format!("{id}: {why}; software goes on{later}"));
        }
    }
}

fn gone() -> Error {
    packetloom_device::Error::Failed { call: "load", why: "it ended without an answer".into() }.into()
}

/// Compiles and lays out, and makes lanes, in a thread of its own.
fn load<'scope, 'env>(
    scope: &'scope Scope<'scope, 'env>,
    device: &'env Device,
    functions: &'env [Box<dyn Prepared>],
    changes: usize,
    options: Options,
) -> Receiver<Loaded> {
    let (give, take) = channel();
    scope.spawn(move || {
        // Nobody waits where the run has ended.
        let _ = give.send(rules(device, functions, changes, options));
    });
    take
}

fn rules(device: &Device, functions: &[Box<dyn Prepared>], changes: usize, options: Options) -> Loaded {
    // What an abandoned queue uses is in the way until that is done.
    device.settle()?;
    let offloads: Vec<_> = functions.iter().filter_map(|function| function.offload(changes)).collect();
    let acls = offloads.iter().filter_map(|offload| match offload {
        Offload::Acl { rules, verdicts, .. } => Some(Acl { rules, verdicts }),
        _ => None,
    });
    let kernel = Arc::new(Frames::new(device, &acls.collect::<Vec<_>>(), options)?);
    let names = offloads.into_iter().map(|offload| match offload {
        Offload::Acl { names, .. } => names,
        _ => None,
    });
    let names = names.collect();
    // A kernel that stays would take a CPU's cores; and where rules change, it would be in the way of loading them.
    let changes_come = functions.iter().any(|function| !function.changes_at().is_empty());
    let with_ring = is_gpu(device) && !changes_come;
    let lanes = (0..LANES).map(|_| Lane::new(&kernel, ROOM as u32, with_ring));
    let mut lanes = lanes.collect::<Result<Vec<_>, _>>()?;
    // Drivers put off a part of the work until the first launch.
    for lane in &mut lanes {
        let _ = lane.push(&[], LinkType::ETHERNET);
        lane.submit(Way::Launch)?;
        if !lane.finish_within(LIMIT_OF_FIRST)? {
            lanes.into_iter().for_each(Lane::abandon);
            let why = format!("no answer for {LIMIT_OF_FIRST:?}");
            return Err(packetloom_device::Error::Failed { call: "first launch", why }.into());
        }
    }
    Ok(Rules { changes, lanes, names, load: 0 })
}
