//! A device that may fail: loaded in the background, left alone when it fails, tried again later.

use std::mem;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use packetloom_device::Device;

use super::accelerator::{Accelerator, Load};
use super::{Error, Unfinished, is_gpu};

/// How long a batch may be away before the device counts as one that hangs, unless it is said; drivers of CPUs are slow.
const LIMIT: Duration = Duration::from_secs(2);
const LIMIT_OF_CPU: Duration = Duration::from_secs(60);
/// From a failure to the first trial, and the longest time between two.
const AGAIN: Duration = Duration::from_millis(20);
const LATEST: Duration = Duration::from_secs(60);

type Loaded = Result<Box<dyn Accelerator>, Error>;

/// The first functions of a chain on a device, as long as they are there.
pub(crate) struct Supervisor {
    device: Device,
    /// What puts them there.
    load: Option<Load>,
    limit: Duration,
    state: State,
    /// From one trial to the next.
    pause: Duration,
    /// Whether it was said that the device failed, and not yet that it is back.
    is_out: bool,
    faults: u64,
    loads: u64,
    longest: Duration,
    /// What is to be said.
    news: Vec<String>,
}

enum State {
    Ready(Box<dyn Accelerator>),
    Loading(Loading),
    /// They are not there: until then; for good where it would only fail again, and where there is nothing to load.
    Away(Option<Instant>),
}

/// A thread that loads what is wanted, one after the other; what is not wanted any more is left out.
struct Loading {
    thread: JoinHandle<Loaded>,
    next: Arc<Mutex<Next>>,
    /// When the latest was wanted.
    since: Instant,
}

/// What the thread does when it has loaded something.
enum Next {
    /// It ends with that.
    Nothing,
    /// It loads this in its place.
    Other(Load),
    /// It has ended, or is about to.
    Over,
}

impl Loading {
    /// Loads in place of what was there before, whose memory comes first.
    fn start(device: Device, before: State, mut load: Load) -> Self {
        let next = Arc::new(Mutex::new(Next::Nothing));
        let wanted = Arc::clone(&next);
        let thread = thread::spawn(move || {
            match before {
                State::Loading(before) => drop(before.thread.join()),
                before => drop(before),
            }
            loop {
                // What an abandoned queue uses is in the way until that is done.
                let loaded = device.settle().map_err(Error::from).and_then(|()| load(&device));
                let mut next = wanted.lock().unwrap_or_else(PoisonError::into_inner);
                match mem::replace(&mut *next, Next::Over) {
                    Next::Other(other) => {
                        *next = Next::Nothing;
                        drop(next);
                        // Its memory comes first, too.
                        drop(loaded);
                        load = other;
                    }
                    Next::Nothing | Next::Over => return loaded,
                }
            }
        });
        Self { thread, next, since: Instant::now() }
    }

    /// Has it load something else; false where it has ended.
    fn replace(&mut self, load: &Load) -> bool {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(*next, Next::Over) {
            return false;
        }
        *next = Next::Other(Arc::clone(load));
        self.since = Instant::now();
        true
    }
}

impl Supervisor {
    /// A device with nothing on it; `limit` is how long a batch may be away.
    pub(crate) fn new(device: Device, limit: Option<Duration>) -> Self {
        let limit = limit.unwrap_or(if is_gpu(&device) { LIMIT } else { LIMIT_OF_CPU });
        Self {
            device,
            load: None,
            limit,
            state: State::Away(None),
            pause: AGAIN,
            is_out: false,
            faults: 0,
            loads: 0,
            longest: Duration::ZERO,
            news: Vec::new(),
        }
    }

    /// Has something else on the device from now on, in place of what is there: no batch may be away. A device that failed gets it when it is
    /// tried again.
    pub(crate) fn load(&mut self, load: Option<Load>) {
        self.load = load;
        match self.state {
            State::Away(Some(_)) if self.load.is_some() => {}
            State::Away(None) => {
                // It did not take what was to be there before, which says nothing.
                self.is_out = false;
                self.begin();
            }
            _ => self.begin(),
        }
    }

    fn begin(&mut self) {
        let Some(load) = self.load.clone() else {
            // What is being loaded is waited for: a driver may not like to be left in the middle of something.
            let _ = self.wait();
            self.state = State::Away(None);
            return;
        };
        // Rules may change faster than they can be loaded: there is one thread, and the latest ones win.
        if let State::Loading(loading) = &mut self.state
            && loading.replace(&load)
        {
            return;
        }
        let before = mem::replace(&mut self.state, State::Away(None));
        self.state = State::Loading(Loading::start(self.device.clone(), before, load));
    }

    /// Waits until what is being loaded is there.
    ///
    /// # Errors
    /// Why it cannot be; to be told by [`Self::fail`] where the run goes on.
    pub(crate) fn wait(&mut self) -> Result<(), Error> {
        match mem::replace(&mut self.state, State::Away(None)) {
            State::Loading(Loading { thread, since, .. }) => {
                // A thread that panicked says nothing.
                let there = thread.join().unwrap_or_else(|_| {
                    let why = "it ended without an answer".into();
                    Err(packetloom_device::Error::Failed { call: "load", why }.into())
                })?;
                self.loads += 1;
                self.longest = self.longest.max(since.elapsed());
                self.state = State::Ready(there);
            }
            state => self.state = state,
        }
        Ok(())
    }

    /// Sees whether what is being loaded is there, and whether a device that failed is to be tried again. To be called all the time.
    pub(crate) fn tend(&mut self) {
        match &self.state {
            State::Loading(loading) if loading.thread.is_finished() => {
                if let Err(error) = self.wait() {
                    self.fail(&error, "");
                }
            }
            State::Away(Some(again)) if Instant::now() >= *again => self.begin(),
            _ => {}
        }
    }

    /// Leaves what is being loaded to its thread, where something is.
    pub(crate) fn leave(&mut self, unfinished: &mut Unfinished) {
        match mem::replace(&mut self.state, State::Away(None)) {
            State::Loading(loading) => unfinished.add(loading.thread),
            state => self.state = state,
        }
    }

    /// What is there.
    pub(crate) fn ready(&mut self) -> Option<&mut (dyn Accelerator + 'static)> {
        match &mut self.state {
            State::Ready(there) => Some(&mut **there),
            _ => None,
        }
    }

    /// How long a batch may be away.
    pub(crate) fn limit(&self) -> Duration {
        self.limit
    }

    /// How often functions were loaded, and the longest time from when they were wanted to when they were there.
    pub(crate) fn loads(&self) -> (u64, Duration) {
        (self.loads, self.longest)
    }

    /// How often it failed.
    pub(crate) fn faults(&self) -> u64 {
        self.faults
    }

    /// What is to be said of it since the last time: once when it fails, once when it is back.
    pub(crate) fn news(&mut self) -> impl Iterator<Item = String> {
        self.news.drain(..)
    }

    /// It judged a batch: it works.
    pub(crate) fn works(&mut self) {
        if mem::take(&mut self.is_out) {
            self.pause = AGAIN;
            self.news.push(format!("{} is back", self.device.description().id));
        }
    }

    /// It failed: it is left alone for a while, while software goes on `with` something. What was there, to be abandoned.
    pub(crate) fn fail(&mut self, why: &Error, with: &str) -> Option<Box<dyn Accelerator>> {
        self.faults += 1;
        // Rules that it does not take will not be taken later.
        let is_for_good = matches!(why, Error::Image(_));
        let again = (!is_for_good).then(|| Instant::now() + self.pause);
        self.pause = (self.pause * 2).min(LATEST);
        if !self.is_out {
            self.is_out = true;
            let id = self.device.description().id;
            let later = if is_for_good { String::new() } else { format!(", and {id} is tried again") };
            self.news.push(format!("{id}: {why}; software goes on{with}{later}"));
        }
        match mem::replace(&mut self.state, State::Away(again)) {
            State::Ready(there) => Some(there),
            _ => None,
        }
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        // A driver may not like to be left in the middle of something.
        let _ = self.wait();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use packetloom_device::Cache;

    use super::*;

    /// What a load says that puts nothing there.
    fn refusal(number: usize) -> Error {
        packetloom_device::Error::Failed { call: "load", why: format!("list {number}") }.into()
    }

    #[test]
    fn the_newest_list_wins_and_those_between_are_not_loaded() {
        let folder = tempfile::tempdir().expect("a folder");
        let device = Device::host(1, Cache::at(folder.path())).expect("a C compiler with sanitisers");
        let mut supervisor = Supervisor::new(device, None);
        let (begun, begins) = mpsc::channel();
        let (go_on, waits) = mpsc::channel::<()>();
        let waits = Mutex::new(waits);
        let first: Load = Arc::new(move |_| {
            begun.send(()).expect("somebody waits");
            waits.lock().expect("no panic").recv().expect("it goes on");
            Err(refusal(0))
        });
        supervisor.load(Some(first));
        begins.recv().expect("it is being loaded");
        let loaded = Arc::new(Mutex::new(Vec::new()));
        let others: Vec<Load> = (1..=1000)
            .map(|number| -> Load {
                let loaded = Arc::clone(&loaded);
                Arc::new(move |_| {
                    loaded.lock().expect("no panic").push(number);
                    Err(refusal(number))
                })
            })
            .collect();
        for other in &others {
            supervisor.load(Some(Arc::clone(other)));
        }
        // Nothing waits with them, and so no thread.
        assert!(others[..999].iter().all(|other| Arc::strong_count(other) == 1));
        go_on.send(()).expect("it waits");
        let why = supervisor.wait().expect_err("nothing is there");
        assert!(why.to_string().contains("list 1000"), "{why}");
        assert_eq!(*loaded.lock().expect("no panic"), [1000]);
        // When the thread has ended, there is another one.
        supervisor.load(Some(Arc::clone(&others[4])));
        let why = supervisor.wait().expect_err("nothing is there");
        assert!(why.to_string().contains("list 5"), "{why}");
    }
}
