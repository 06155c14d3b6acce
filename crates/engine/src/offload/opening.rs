//! A device that is opened while something else goes on, and threads that are still at it when nobody needs it any more.

use std::fmt;
use std::thread::{self, JoinHandle};

use packetloom_device::Device;

/// Opens a device; none where there is none that is wanted.
pub type Open = dyn FnOnce() -> Option<Device> + Send;

/// A thread that opens a device; waited for when this is dropped, as [`Unfinished`] are.
pub(crate) struct Opening(Option<JoinHandle<Option<Device>>>);

impl Opening {
    /// Begins; none where the system has no thread left.
    pub(crate) fn start(open: Box<Open>) -> Option<Self> {
        thread::Builder::new().name("device".into()).spawn(open).ok().map(|thread| Self(Some(thread)))
    }

    pub(crate) fn is_over(&self) -> bool {
        self.0.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits for it. A driver that panics is none.
    pub(crate) fn wait(mut self) -> Option<Device> {
        self.0.take()?.join().ok()?
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        if let Some(thread) = self.0.take() {
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

    pub(crate) fn add_opening(&mut self, mut opening: Opening) {
        opening.0.take().into_iter().for_each(|thread| self.add(thread));
    }

    /// Does not wait for threads that are not done. Whether there are any: then the process has to end without what libraries do at its end,
    /// as by `_exit`.
    #[must_use]
    pub fn leave(mut self) -> bool {
        self.0.retain(|thread| !thread.is_over());
        !std::mem::take(&mut self.0).is_empty()
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
