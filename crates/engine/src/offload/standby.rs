//! A device that may fail: loaded in the background, left alone when it fails, tried again later.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread::Scope;
use std::time::{Duration, Instant};

use packetloom_device::{Device, Id};
use packetloom_packet::LinkType;

use super::Error;
use super::frames::{Acl, Frames, Options};
use super::lane::Lane;
use super::pace::Pace;

/// Batches that are on their way at a time.
pub const LANES: usize = 4;
/// How long a batch may be away before the device counts as one that hangs, unless it is said; drivers of CPUs are slow.
const LIMIT: Duration = Duration::from_secs(2);
const LIMIT_OF_CPU: Duration = Duration::from_secs(60);
/// The same for the first launch, at which drivers still compile.
const LIMIT_OF_FIRST: Duration = Duration::from_secs(60);
/// From a failure to the first trial, and the longest time between two.
const AGAIN: Duration = Duration::from_millis(100);
const LATEST: Duration = Duration::from_secs(60);

type Loaded = Result<Vec<Lane>, Error>;

/// A device's lanes, as long as there are some.
#[derive(Debug)]
pub struct Standby<'scope, 'env> {
    scope: &'scope Scope<'scope, 'env>,
    device: &'env Device,
    acls: &'env [Acl<'env>],
    options: Options,
    limit: Duration,
    state: State,
    /// From one trial to the next.
    pause: Duration,
    faults: u64,
    /// What is to be said.
    news: Vec<String>,
}

#[derive(Debug)]
enum State {
    /// Lanes without work.
    Ready(Vec<Lane>),
    Loading(Receiver<Loaded>),
    Failed(Instant),
}

impl<'scope, 'env> Standby<'scope, 'env> {
    /// A device that is being loaded with the rules of some ACLs; `limit` is how long a batch may be away.
    pub fn new(
        scope: &'scope Scope<'scope, 'env>,
        device: &'env Device,
        acls: &'env [Acl<'env>],
        options: Options,
        limit: Option<Duration>,
    ) -> Self {
        let by_kind = if device.description().lanes > 1 && device.description().id != Id::Host {
            LIMIT
        } else {
            LIMIT_OF_CPU
        };
        let limit = limit.unwrap_or(by_kind);
        let state = State::Loading(load(scope, device, acls, options));
        Self { scope, device, acls, options, limit, state, pause: AGAIN, faults: 0, news: Vec::new() }
    }

    /// Waits until it is loaded.
    ///
    /// # Errors
    /// Why it cannot be.
    pub fn wait(&mut self) -> Result<(), Error> {
        let State::Loading(loading) = &self.state else { return Ok(()) };
        // A thread that panicked says nothing.
        let loaded = loading.recv().unwrap_or_else(|_| Err(gone()))?;
        self.state = State::Ready(loaded);
        Ok(())
    }

    /// How long a batch may be away.
    pub fn limit(&self) -> Duration {
        self.limit
    }

    /// How often it failed.
    pub fn faults(&self) -> u64 {
        self.faults
    }

    /// What is to be said of it since the last time: once when it fails, once when it is back.
    pub fn news(&mut self) -> impl Iterator<Item = String> {
        self.news.drain(..)
    }

    /// A lane for a batch; none where all are in use, or the device is not there.
    pub fn lane(&mut self) -> Option<Lane> {
        match &mut self.state {
            State::Ready(lanes) => lanes.pop(),
            State::Loading(loading) => {
                match loading.try_recv() {
                    Err(TryRecvError::Empty) => return None,
                    Ok(Ok(lanes)) => {
                        if self.faults > 0 {
                            self.news.push(format!("{} is back", self.device.description().id));
                        }
                        self.pause = AGAIN;
                        self.state = State::Ready(lanes);
                    }
                    Ok(Err(error)) => self.fail(&error),
                    Err(TryRecvError::Disconnected) => self.fail(&gone()),
                }
                self.lane_if_ready()
            }
            State::Failed(again) if Instant::now() >= *again => {
                self.state = State::Loading(load(self.scope, self.device, self.acls, self.options));
                None
            }
            State::Failed(_) => None,
        }
    }

    fn lane_if_ready(&mut self) -> Option<Lane> {
        if let State::Ready(lanes) = &mut self.state { lanes.pop() } else { None }
    }

    /// Takes a lane back whose batch was judged.
    pub fn give_back(&mut self, lane: Lane) {
        // Those of before a failure are of no use.
        if let State::Ready(lanes) = &mut self.state {
            lanes.push(lane);
        } else {
            lane.abandon();
        }
    }

    /// The device failed: it is left alone for a while. Lanes that are on their way must be abandoned.
    pub fn fail(&mut self, why: &Error) {
        if matches!(self.state, State::Failed(_)) {
            return;
        }
        self.faults += 1;
        let id = self.device.description().id;
        let before = std::mem::replace(&mut self.state, State::Failed(Instant::now() + self.pause));
        match before {
            State::Ready(lanes) => {
                lanes.into_iter().for_each(Lane::abandon);
                self.news.push(format!("{id}: {why}; software goes on, and {id} is tried again"));
            }
            // It was said already, unless it is the first time.
            State::Loading(_) | State::Failed(_) => {
                if self.faults == 1 {
                    self.news.push(format!("{id}: {why}; software goes on, and {id} is tried again"));
                }
            }
        }
        self.pause = (self.pause * 2).min(LATEST);
    }
}

fn gone() -> Error {
    packetloom_device::Error::Failed { call: "load", why: "it ended without an answer".into() }.into()
}

/// Compiles and lays out, and makes lanes, in a thread of its own.
fn load<'scope, 'env>(
    scope: &'scope Scope<'scope, 'env>,
    device: &'env Device,
    acls: &'env [Acl<'env>],
    options: Options,
) -> Receiver<Loaded> {
    let (give, take) = channel();
    scope.spawn(move || {
        let load = || -> Loaded {
            // What an abandoned queue uses is in the way until that is done.
            device.settle()?;
            let kernel = Arc::new(Frames::new(device, acls, options)?);
            let mut lanes =
                (0..LANES).map(|_| Lane::new(&kernel, Pace::most() as u32)).collect::<Result<Vec<_>, _>>()?;
            // Drivers put off a part of the work until the first launch.
            for lane in &mut lanes {
                lane.push(&[], LinkType::ETHERNET);
                lane.submit()?;
                if !lane.finish_within(LIMIT_OF_FIRST)? {
                    lanes.into_iter().for_each(Lane::abandon);
                    let why = format!("no answer for {LIMIT_OF_FIRST:?}");
                    return Err(packetloom_device::Error::Failed { call: "first launch", why }.into());
                }
            }
            Ok(lanes)
        };
        // Nobody waits where the run has ended.
        let _ = give.send(load());
    });
    take
}
