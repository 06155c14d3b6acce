//! Copies and launches, one after the other.

use std::any::Any;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::backend::{Handle, Value};
use crate::memory::{Use, Work, fits};
use crate::opened::Opened;
use crate::program::Parameter;
use crate::{Argument, Arguments, Buffer, Error, Kernel, Loaded, Memory, Shared};

/// What queued work uses.
#[derive(Debug, Default)]
pub(crate) struct Held {
    things: Vec<Arc<dyn Any + Send + Sync>>,
    shared: Vec<Use>,
}

impl Held {
    fn is_empty(&self) -> bool {
        self.things.is_empty() && self.shared.is_empty()
    }

    fn clear(&mut self) {
        self.things.clear();
        self.shared.clear();
    }

    /// How much it is, for [`Self::truncate`].
    fn mark(&self) -> (usize, usize) {
        (self.things.len(), self.shared.len())
    }

    fn truncate(&mut self, (things, shared): (usize, usize)) {
        self.things.truncate(things);
        self.shared.truncate(shared);
    }
}

/// How long a queue that is dropped waits for its device.
const PATIENCE: Duration = Duration::from_secs(60);
/// While a queue is waited for with a limit: how long without giving the core away, and how long then without sleeping.
const SPIN: Duration = Duration::from_micros(50);
const YIELD: Duration = Duration::from_micros(250);
const SLEEP: Duration = Duration::from_micros(20);

/// Work for a device, done in the order in which it was queued. Different queues do not wait for each other, unless they are [told](Self::wait_for).
///
/// What a call could not queue was not queued; the queue goes on. But what was queued and failed leaves nothing to go on with:
/// once [`finish`](Self::finish), or another call that waits, says what the device failed with, every further call
/// says the same, and does nothing. Then drop the queue, which does not wait, and try another: drivers know whether the device can
/// go on. CUDA's cannot after a kernel that failed; it says so at every call until the process ends.
///
/// A queue that is dropped waits until all that was queued is done, for a minute at most; then it is [abandoned](Self::abandon).
#[derive(Debug)]
pub struct Queue {
    backend: Arc<Opened>,
    handle: Handle,
    /// What is in use until the queue is finished.
    held: Held,
    /// What the device failed with.
    failed: Option<Error>,
    /// Whether nobody waits for it.
    abandoned: bool,
}

impl Queue {
    pub(crate) fn new(backend: &Arc<Opened>) -> Result<Self, Error> {
        let handle = backend.queue()?;
        Ok(Self { backend: backend.clone(), handle, held: Held::default(), failed: None, abandoned: false })
    }

    /// Copies `bytes` to `offset` of `to`, and waits until all that was queued is done, without a limit; [`Self::copy_in`] does not
    /// wait.
    ///
    /// # Errors
    /// [`Error::Misuse`] where they do not fit, or what the device says.
    pub fn write(&mut self, to: &Memory, offset: usize, bytes: &[u8]) -> Result<(), Error> {
        self.usable(&to.0.backend)?;
        inside(offset, bytes.len(), to.len())?;
        if !bytes.is_empty() {
            // SAFETY: the range lies inside the memory; `bytes` outlives the call, which waits below.
            unsafe { self.backend.write(self.handle, to.0.handle, offset, bytes.as_ptr(), bytes.len())? };
        }
        self.finish()
    }

    /// Copies the bytes from `offset` of `from` on, and waits until all that was queued is done, without a limit;
    /// [`Self::copy_out`] does not wait.
    ///
    /// # Errors
    /// [`Error::Misuse`] where there are not so many, or what the device says.
    pub fn read(&mut self, from: &Memory, offset: usize, bytes: &mut [u8]) -> Result<(), Error> {
        self.usable(&from.0.backend)?;
        inside(offset, bytes.len(), from.len())?;
        if !bytes.is_empty() {
            // SAFETY: the range lies inside the memory; `bytes` outlives the call, which waits below.
            unsafe {
                self.backend.read(self.handle, from.0.handle, offset, bytes.as_mut_ptr(), bytes.len())?
            };
        }
        self.finish()
    }

    /// Queues a copy of a part of the host's memory to `offset` of `to`. Until the queue is finished nobody but kernels gets at that memory of
    /// the host.
    ///
    /// # Errors
    /// [`Error::Misuse`] for ranges outside, or what the device says.
    pub fn copy_in(
        &mut self,
        from: &mut Shared,
        part: Range<usize>,
        to: &Memory,
        offset: usize,
    ) -> Result<(), Error> {
        self.usable(&to.0.backend)?;
        inside(part.start, part.len(), from.len())?;
        inside(offset, part.len(), to.len())?;
        if part.is_empty() {
            return Ok(());
        }
        let before = self.held.mark();
        self.held.things.push(to.0.clone());
        self.held.shared.push(Use::new(from, Work::Hold));
        // SAFETY: both ranges lie inside; both memories are held until the queue is finished, and until then the host's is not written.
        let queued = unsafe {
            let host = from.0.memory.host.as_ptr().add(part.start);
            self.backend.write(self.handle, to.0.handle, offset, host, part.len())
        };
        self.queued(before, queued)
    }

    /// Queues a copy of a part of the device's memory to `offset` of `to`. Until the queue is finished nobody but kernels gets at that memory of
    /// the host.
    ///
    /// # Errors
    /// [`Error::Misuse`] for ranges outside, or what the device says.
    pub fn copy_out(
        &mut self,
        from: &Memory,
        part: Range<usize>,
        to: &mut Shared,
        offset: usize,
    ) -> Result<(), Error> {
        self.usable(&from.0.backend)?;
        inside(part.start, part.len(), from.len())?;
        inside(offset, part.len(), to.len())?;
        if part.is_empty() {
            return Ok(());
        }
        let before = self.held.mark();
        self.held.things.push(from.0.clone());
        self.held.shared.push(Use::new(to, Work::Hold));
        // SAFETY: both ranges lie inside; both memories are held until the queue is finished, and until then the host's is left alone.
        let queued = unsafe {
            let host = to.0.memory.host.as_ptr().add(offset);
            self.backend.read(self.handle, from.0.handle, part.start, host, part.len())
        };
        self.queued(before, queued)
    }

    /// Queues a copy of all of the device's memory to other memory of it, of as many bytes.
    ///
    /// # Errors
    /// [`Error::Misuse`] where there are more or fewer, or what the device says.
    pub fn copy(&mut self, from: &Memory, to: &Memory) -> Result<(), Error> {
        self.usable(&from.0.backend)?;
        self.usable(&to.0.backend)?;
        if from.len() != to.len() || Arc::ptr_eq(&from.0, &to.0) {
            let why = format!("a copy of {} bytes of memory to {} others", from.len(), to.len());
            return Err(Error::Misuse(why));
        }
        if from.is_empty() {
            return Ok(());
        }
        let before = self.held.mark();
        self.held.things.push(from.0.clone());
        self.held.things.push(to.0.clone());
        // SAFETY: both memories are as long, no part of each other, and held until the queue is finished.
        let queued = unsafe { self.backend.copy(self.handle, from.0.handle, to.0.handle, from.len()) };
        self.queued(before, queued)
    }

    /// Queues that all of `memory` becomes zeros.
    ///
    /// # Errors
    /// [`Error::Misuse`] for memory of another device, or what the device says.
    pub fn clear(&mut self, memory: &Memory) -> Result<(), Error> {
        self.usable(&memory.0.backend)?;
        if memory.is_empty() {
            return Ok(());
        }
        let before = self.held.mark();
        self.held.things.push(memory.0.clone());
        // SAFETY: it has so many bytes, and is held until the queue is finished.
        let queued = unsafe { self.backend.clear(self.handle, memory.0.handle, memory.len()) };
        self.queued(before, queued)
    }

    /// Queues a kernel over `groups` groups; none is no work.
    ///
    /// # Errors
    /// [`Error::Misuse`] where memory is too short for the numbers beside it ([`Arguments::check`]) or of another device, or what the device says.
    pub fn launch<A: Arguments>(
        &mut self,
        kernel: &Kernel<A>,
        groups: u32,
        arguments: &A,
    ) -> Result<(), Error> {
        arguments.check()?;
        // SAFETY: who made the kernel vouched for it with arguments that pass this check.
        arguments.with(|arguments| unsafe { self.launch_unchecked(&kernel.loaded, groups, arguments) })
    }

    /// Queues a kernel for which nobody vouched.
    ///
    /// # Safety
    /// With these arguments the kernel does what [`Kernel::new`] asks for.
    ///
    /// # Errors
    /// [`Error::Misuse`] where the arguments are not those of its entry, or what the device says.
    pub unsafe fn launch_unchecked(
        &mut self,
        kernel: &Loaded,
        groups: u32,
        arguments: &[Argument<'_>],
    ) -> Result<(), Error> {
        self.usable(&kernel.image.backend)?;
        let before = self.held.mark();
        let queued = self.try_launch(kernel, groups, arguments);
        self.queued(before, queued)
    }

    /// As `launch_unchecked`; may fail after it began to hold things.
    fn try_launch(&mut self, kernel: &Loaded, groups: u32, arguments: &[Argument<'_>]) -> Result<(), Error> {
        let parameters = kernel.entry.parameters;
        if arguments.len() != parameters.len() {
            let (name, wanted) = (kernel.entry.name, parameters.len());
            return Err(Error::Misuse(format!("{name} takes {wanted} arguments, not {}", arguments.len())));
        }
        let mut values = Vec::with_capacity(arguments.len());
        for (number, (argument, parameter)) in arguments.iter().zip(parameters).enumerate() {
            values.push(match (argument, parameter) {
                (Argument::Buffer(buffer), Parameter::Memory | Parameter::Constant | Parameter::Live) => {
                    let work = match parameter {
                        Parameter::Constant => Work::Hold,
                        Parameter::Live => Work::Look,
                        _ => Work::Write,
                    };
                    match buffer {
                        Buffer::Memory(memory) => {
                            self.own(&memory.0.backend)?;
                            self.held.things.push(memory.0.clone());
                            Value::Memory(memory.0.handle)
                        }
                        Buffer::Shared(shared) => {
                            self.own(&shared.0.backend)?;
                            if !self.backend.description().shares {
                                let name = kernel.entry.name;
                                let why =
                                    format!("argument {number} of {name}: the device does not share it");
                                return Err(Error::Misuse(why));
                            }
                            self.held.shared.push(Use::new(shared, work));
                            Value::Shared(shared.0.memory.handle)
                        }
                    }
                }
                (Argument::U32(value), Parameter::U32) => Value::U32(*value),
                (Argument::U64(value), Parameter::U64) => Value::U64(*value),
                _ => {
                    let name = kernel.entry.name;
                    let why = format!("argument {number} of {name} is {argument:?}, not {parameter:?}");
                    return Err(Error::Misuse(why));
                }
            });
        }
        if groups == 0 {
            return Ok(());
        }
        self.held.things.push(kernel.image.clone());
        // SAFETY: the values are those that the entry declares; memory and kernel are held until the queue is finished.
        unsafe { self.backend.launch(self.handle, kernel.handle(), groups, kernel.group, &values) }
    }

    /// Has what is queued here from now on begin when all is done that is queued in `other` by now. Does not wait itself.
    ///
    /// # Errors
    /// [`Error::Misuse`] for a queue of another device, what the other one failed with, or what the device says.
    pub fn wait_for(&mut self, other: &Self) -> Result<(), Error> {
        self.usable(&other.backend)?;
        other.not_failed()?;
        // SAFETY: both queues are open, and of this back end.
        unsafe { self.backend.wait_for(self.handle, other.handle) }
    }

    /// Waits until all that was queued is done, for ever if the device hangs.
    ///
    /// # Errors
    /// What went wrong since the last time; then at every further call.
    pub fn finish(&mut self) -> Result<(), Error> {
        self.not_failed()?;
        // SAFETY: the queue is open.
        let finished = unsafe { self.backend.finish(self.handle) };
        self.finished(finished.map(|()| true)).map(drop)
    }

    /// Waits until all that was queued is done, but not longer than `limit`; says whether it is. If not, the queue goes on, and can be
    /// waited for again, or [abandoned](Self::abandon).
    ///
    /// # Errors
    /// What went wrong since the last time; then at every further call.
    pub fn finish_within(&mut self, limit: Duration) -> Result<bool, Error> {
        let start = Instant::now();
        loop {
            if self.is_finished()? {
                return Ok(true);
            }
            let waited = start.elapsed();
            if waited >= limit {
                return Ok(false);
            } else if waited < SPIN {
                std::hint::spin_loop();
            } else if waited < YIELD {
                std::thread::yield_now();
            } else {
                std::thread::sleep(SLEEP.min(limit - waited));
            }
        }
    }

    /// Whether all that was queued is done.
    ///
    /// # Errors
    /// What went wrong since the last time; then at every further call.
    pub fn is_finished(&mut self) -> Result<bool, Error> {
        self.not_failed()?;
        // SAFETY: the queue is open.
        let finished = unsafe { self.backend.is_finished(self.handle) };
        self.finished(finished)
    }

    /// Ends a queue whose device hangs, or failed, without waiting.
    ///
    /// The device may still use whatever was queued with: memory it reads and writes, kernels it runs, the queue itself. To give
    /// that back would let it write into what belongs to somebody else by then, or wait for it. So it is leaked on purpose: kept
    /// until the device says that it is done, which is looked for when the device is next asked for something
    /// ([`Device::settle`](crate::Device::settle)), and for good if it never is. Whatever else of the device is dropped meanwhile
    /// is kept too, since drivers wait for the device there; so abandon the queue first, then drop memory and kernels.
    pub fn abandon(mut self) {
        self.abandoned = true;
    }

    /// What is known after the device was asked whether it is done.
    fn finished(&mut self, answer: Result<bool, Error>) -> Result<bool, Error> {
        match &answer {
            Ok(true) => self.held.clear(),
            Ok(false) => {}
            Err(error) => self.failed = Some(error.clone()),
        }
        answer
    }

    /// What was not queued is not held: all that came after `before`.
    fn queued(&mut self, before: (usize, usize), answer: Result<(), Error>) -> Result<(), Error> {
        if answer.is_err() {
            self.held.truncate(before);
        }
        answer
    }

    fn not_failed(&self) -> Result<(), Error> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    fn usable(&self, other: &Arc<Opened>) -> Result<(), Error> {
        self.not_failed()?;
        self.own(other)
    }

    fn own(&self, other: &Arc<Opened>) -> Result<(), Error> {
        if Arc::ptr_eq(&self.backend, other) {
            Ok(())
        } else {
            Err(Error::Misuse("memory, kernel or queue of another device".into()))
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // Whatever goes wrong here, nobody is there to be told; what holds nothing has nothing to wait for.
        let is_done = !self.abandoned
            && self.failed.is_none()
            && (self.held.is_empty() || matches!(self.finish_within(PATIENCE), Ok(true)));
        if is_done {
            // SAFETY: nothing is queued any more, and nobody has the queue.
            unsafe { self.backend.close(self.handle) };
        } else {
            let held = std::mem::take(&mut self.held);
            // SAFETY: the queue is open, nobody has it any more, and that is what it uses.
            unsafe { self.backend.abandon(self.handle, self.failed.take(), held) };
        }
    }
}

fn inside(offset: usize, len: usize, bytes: usize) -> Result<(), Error> {
    if fits(offset, len, bytes) {
        Ok(())
    } else {
        Err(Error::Misuse(format!("{len} bytes at {offset} do not lie in {bytes} bytes of memory")))
    }
}
