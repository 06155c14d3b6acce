//! A device that is opened while something else goes on, and threads that are still at it when nobody needs it any more.

use std::fmt;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use packetloom_device::Device;

/// Opens a device; none where there is none that is wanted.
pub type Open = dyn FnOnce() -> Option<Device> + Send;

/// How long a run goes on before a device is opened. Shorter ones need none, and a thread that begins while the libraries of a driver are brought in
/// waits for that.
const AFTER: Duration = Duration::from_millis(5);

/// A device that is to be opened, by a thread of its own; waited for when this is dropped, as [`Unfinished`] are.
pub(crate) struct Opening {
    since: Instant,
    /// Until it has begun.
    open: Option<Box<Open>>,
    thread: Option<JoinHandle<Option<Device>>>,
}

impl Opening {
    pub(crate) fn new(open: Box<Open>) -> Self {
        Self { since: Instant::now(), open: Some(open), thread: None }
    }

    /// Begins when it is time for that. To be called all the time.
    pub(crate) fn tend(&mut self) {
        if self.since.elapsed() >= AFTER
            && let Some(open) = self.open.take()
        {
            // Where the system has no thread left, there is no device.
            self.thread = thread::Builder::new().name("device".into()).spawn(open).ok();
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.open.is_none() && self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits for it. A driver that panics is none.
    pub(crate) fn wait(mut self) -> Option<Device> {
        match self.open.take() {
            Some(open) => open(),
            None => self.thread.take()?.join().ok()?,
        }
    }

    /// Leaves it to its thread, if that has begun; whether it has.
    pub(crate) fn leave(mut self, unfinished: &mut Unfinished) -> bool {
        self.thread.take().map(|thread| unfinished.add(thread)).is_some()
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Threads that a run has left while they open or load a device. They are waited for when this is dropped: no driver likes it when its process
/// [exits](std::process::exit) while it is in the middle of something.
#[derive(Default)]
pub struct Unfinished(Vec<Box<dyn Thread>>);

impl Unfinished {
    pub(crate) fn add<T: Send + 'static>(&mut self, thread: JoinHandle<T>) {
        self.0.push(Box::new(thread));
    }

    /// Does not wait for threads that are not done. Whether there are any: then the process has to end without what libraries do at its end,
    /// as by `_exit`.
    #[must_use]
    pub fn leave(mut self) -> bool {
        let (over, busy): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.0).into_iter().partition(|thread| thread.is_over());
        // What they have for their end may be under way.
        over.into_iter().for_each(|thread| thread.wait());
        !busy.is_empty()
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        self.0.drain(..).for_each(|thread| thread.wait());
    }
}

impl fmt::Debug for Unfinished {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Unfinished").field(&self.0.len()).finish()
    }
}

/// A thread, whatever it comes to.
trait Thread: Send {
    fn is_over(&self) -> bool;
    fn wait(self: Box<Self>);
}

impl<T: Send> Thread for JoinHandle<T> {
    fn is_over(&self) -> bool {
        self.is_finished()
    }

    fn wait(self: Box<Self>) {
        // Nobody asks what it came to.
        let _ = self.join();
    }
}
