//! A back end, and what is left of queues that nobody waits for.
//!
//! What a queue uses may only be given back once the queue is done, and drivers wait for the whole device where memory is given
//! back: CUDA does. So what belongs to a queue that was abandoned is kept until it is done, and so is all that is to be given
//! back meanwhile. If it never is, that is a leak: the price of not hanging.

use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};

use crate::Error;
use crate::backend::{Backend, Handle, SharedMemory};
use crate::queue::Held;

/// A back end that was opened.
#[derive(Debug)]
pub(crate) struct Opened {
    backend: Arc<dyn Backend>,
    left: Mutex<Left>,
}

/// What waits for the device.
#[derive(Debug, Default)]
struct Left {
    queues: Vec<Abandoned>,
    /// To be given back when there are no such queues any more.
    things: Vec<Thing>,
}

#[derive(Debug)]
struct Abandoned {
    queue: Handle,
    /// What went wrong; nothing where it only took too long.
    error: Option<Error>,
    /// What the device may still use.
    held: Held,
}

/// What is given back at its end.
#[derive(Debug)]
pub(crate) enum Thing {
    Memory(Handle),
    /// With its bytes.
    Shared(SharedMemory, usize),
    /// With its kernels.
    Program(Handle, Vec<Handle>),
}

impl Opened {
    pub(crate) fn new(backend: Arc<dyn Backend>) -> Arc<Self> {
        Arc::new(Self { backend, left: Mutex::default() })
    }

    pub(crate) fn backend(&self) -> &Arc<dyn Backend> {
        &self.backend
    }

    /// Gives a thing back, now or when abandoned queues are done.
    ///
    /// # Safety
    /// It is of this back end, was not given back yet, and no queue uses it but those that were abandoned.
    pub(crate) unsafe fn give_back(&self, thing: Thing) {
        let _ = self.settle();
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        if !left.queues.is_empty() {
            left.things.push(thing);
            return;
        }
        // A driver may take its time.
        drop(left);
        // SAFETY: as the caller promises.
        unsafe { self.release(thing) };
    }

    /// Leaves a queue alone that is not done, or failed.
    ///
    /// # Safety
    /// The queue is open, and nobody uses it any more; `held` is what it uses.
    pub(crate) unsafe fn abandon(&self, queue: Handle, error: Option<Error>, held: Held) {
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        left.queues.push(Abandoned { queue, error, held });
        drop(left);
        // It may be done after all.
        let _ = self.settle();
    }

    /// Gives back what abandoned queues used, of those that are done; fails if some are not. Does not wait.
    pub(crate) fn settle(&self) -> Result<(), Error> {
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        if left.queues.is_empty() {
            return Ok(());
        }
        let queues = std::mem::take(&mut left.queues);
        // SAFETY: they were open when they were abandoned, and are closed below only, once they are no longer there.
        let is_done = |abandoned: &Abandoned| unsafe { self.backend.is_settled(abandoned.queue) };
        let (done, waiting): (Vec<_>, Vec<_>) = queues.into_iter().partition(is_done);
        left.queues = waiting;
        let answer = match left.queues.first() {
            None => Ok(()),
            Some(Abandoned { error: Some(error), .. }) => Err(error.clone()),
            Some(_) => {
                Err(Error::Failed { call: "wait", why: "a queue that was abandoned is not done".into() })
            }
        };
        let things = if answer.is_ok() { std::mem::take(&mut left.things) } else { Vec::new() };
        // What is dropped below comes here again.
        drop(left);
        for Abandoned { queue, held, .. } in done {
            // SAFETY: the queue is done, and nobody has it.
            unsafe { self.backend.close(queue) };
            drop(held);
        }
        for thing in things {
            // SAFETY: nobody has it, as who gave it back promised, and all queues are done that were abandoned.
            unsafe { self.release(thing) };
        }
        answer
    }

    /// # Safety
    /// As for [`Self::give_back`], and no queue uses it.
    unsafe fn release(&self, thing: Thing) {
        // SAFETY: as the caller promises.
        unsafe {
            match thing {
                Thing::Memory(memory) => self.backend.free(memory),
                Thing::Shared(memory, bytes) => self.backend.unshare(memory, bytes),
                Thing::Program(program, kernels) => self.backend.unload(program, &kernels),
            }
        }
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        if self.settle().is_err() {
            // To close the device would wait for it, too.
            std::mem::forget(self.backend.clone());
        }
    }
}

impl Deref for Opened {
    type Target = dyn Backend;

    fn deref(&self) -> &Self::Target {
        &*self.backend
    }
}
