//! Copies and launches, one after the other.

use std::any::Any;
use std::ops::Range;
use std::sync::Arc;

use crate::backend::{Backend, Handle, Value};
use crate::memory::fits;
use crate::program::Parameter;
use crate::{Error, Loaded, Memory, Shared};

/// What a kernel is given.
#[derive(Clone, Copy, Debug)]
pub enum Argument<'a> {
    /// Memory of the device.
    Memory(&'a Memory),
    /// Memory of the host, where the device shares it.
    Shared(&'a Shared),
    /// A number.
    U32(u32),
    /// A number.
    U64(u64),
}

/// Work for a device, done in the order in which it was queued. Different queues do not wait for each other.
#[derive(Debug)]
pub struct Queue {
    backend: Arc<dyn Backend>,
    handle: Handle,
    /// What is in use until the queue is finished.
    held: Vec<Arc<dyn Any + Send + Sync>>,
}

impl Queue {
    pub(crate) fn new(backend: &Arc<dyn Backend>) -> Result<Self, Error> {
        Ok(Self { backend: backend.clone(), handle: backend.queue()?, held: Vec::new() })
    }

    /// Copies `bytes` to `offset` of `to`, and waits until all that was queued is done.
    ///
    /// # Errors
    /// [`Error::Misuse`] where they do not fit, or what the device says.
    pub fn write(&mut self, to: &Memory, offset: usize, bytes: &[u8]) -> Result<(), Error> {
        self.own(&to.0.backend)?;
        inside(offset, bytes.len(), to.len())?;
        if !bytes.is_empty() {
            // SAFETY: the range lies inside the memory; `bytes` outlives the call, which waits below.
            unsafe { self.backend.write(self.handle, to.0.handle, offset, bytes.as_ptr(), bytes.len())? };
        }
        self.finish()
    }

    /// Copies the bytes from `offset` of `from` on, and waits until all that was queued is done.
    ///
    /// # Errors
    /// [`Error::Misuse`] where there are not so many, or what the device says.
    pub fn read(&mut self, from: &Memory, offset: usize, bytes: &mut [u8]) -> Result<(), Error> {
        self.own(&from.0.backend)?;
        inside(offset, bytes.len(), from.len())?;
        if !bytes.is_empty() {
            // SAFETY: the range lies inside the memory; `bytes` outlives the call, which waits below.
            unsafe {
                self.backend.read(self.handle, from.0.handle, offset, bytes.as_mut_ptr(), bytes.len())?
            };
        }
        self.finish()
    }

    /// Queues a copy of a part of the host's memory to `offset` of `to`.
    ///
    /// # Errors
    /// [`Error::Misuse`] for ranges outside, or what the device says.
    pub fn copy_in(
        &mut self,
        from: &Shared,
        part: Range<usize>,
        to: &Memory,
        offset: usize,
    ) -> Result<(), Error> {
        self.own(&to.0.backend)?;
        inside(part.start, part.len(), from.len())?;
        inside(offset, part.len(), to.len())?;
        if part.is_empty() {
            return Ok(());
        }
        self.held.extend([from.0.clone() as Arc<_>, to.0.clone() as Arc<_>]);
        // SAFETY: both ranges lie inside; both memories are held until the queue is finished.
        unsafe {
            let host = from.0.memory.host.as_ptr().add(part.start);
            self.backend.write(self.handle, to.0.handle, offset, host, part.len())
        }
    }

    /// Queues a copy of a part of the device's memory to `offset` of `to`.
    ///
    /// # Errors
    /// [`Error::Misuse`] for ranges outside, or what the device says.
    pub fn copy_out(
        &mut self,
        from: &Memory,
        part: Range<usize>,
        to: &Shared,
        offset: usize,
    ) -> Result<(), Error> {
        self.own(&from.0.backend)?;
        inside(part.start, part.len(), from.len())?;
        inside(offset, part.len(), to.len())?;
        if part.is_empty() {
            return Ok(());
        }
        self.held.extend([from.0.clone() as Arc<_>, to.0.clone() as Arc<_>]);
        // SAFETY: both ranges lie inside; both memories are held until the queue is finished.
        unsafe {
            let host = to.0.memory.host.as_ptr().add(offset);
            self.backend.read(self.handle, from.0.handle, part.start, host, part.len())
        }
    }

    /// Queues a kernel over `groups` groups; none is no work.
    ///
    /// # Errors
    /// [`Error::Misuse`] where the arguments are not those of its entry, or what the device says.
    pub fn launch(&mut self, kernel: &Loaded, groups: u32, arguments: &[Argument<'_>]) -> Result<(), Error> {
        self.own(&kernel.image.backend)?;
        let parameters = kernel.entry.parameters;
        if arguments.len() != parameters.len() {
            let (name, wanted) = (kernel.entry.name, parameters.len());
            return Err(Error::Misuse(format!("{name} takes {wanted} arguments, not {}", arguments.len())));
        }
        let mut values = Vec::with_capacity(arguments.len());
        for (number, (argument, parameter)) in arguments.iter().zip(parameters).enumerate() {
            values.push(match (argument, parameter) {
                (Argument::Memory(memory), Parameter::Memory) => {
                    self.own(&memory.0.backend)?;
                    self.held.push(memory.0.clone());
                    Value::Memory(memory.0.handle)
                }
                (Argument::Shared(shared), Parameter::Memory) if self.backend.description().shares => {
                    self.own(&shared.0.backend)?;
                    self.held.push(shared.0.clone());
                    Value::Shared(shared.0.memory.handle)
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
        self.held.push(kernel.image.clone());
        // SAFETY: the values are those that the entry declares; memory and kernel are held until the queue is finished.
        unsafe { self.backend.launch(self.handle, kernel.handle(), groups, kernel.group, &values) }
    }

    /// Waits until all that was queued is done.
    ///
    /// # Errors
    /// What went wrong since the last time.
    pub fn finish(&mut self) -> Result<(), Error> {
        // SAFETY: the queue is open.
        unsafe { self.backend.finish(self.handle)? };
        self.held.clear();
        Ok(())
    }

    /// Whether all that was queued is done.
    ///
    /// # Errors
    /// What went wrong since the last time.
    pub fn is_finished(&mut self) -> Result<bool, Error> {
        // SAFETY: the queue is open.
        let finished = unsafe { self.backend.is_finished(self.handle)? };
        if finished {
            self.held.clear();
        }
        Ok(finished)
    }

    fn own(&self, other: &Arc<dyn Backend>) -> Result<(), Error> {
        if Arc::ptr_eq(&self.backend, other) {
            Ok(())
        } else {
            Err(Error::Misuse("memory or kernel of another device".into()))
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // Whatever went wrong was, or will be, told by somebody who can act on it.
        let _ = self.finish();
        // SAFETY: nothing is queued any more, and nobody has the queue.
        unsafe { self.backend.close(self.handle) };
    }
}

fn inside(offset: usize, len: usize, bytes: usize) -> Result<(), Error> {
    if fits(offset, len, bytes) {
        Ok(())
    } else {
        Err(Error::Misuse(format!("{len} bytes at {offset} do not lie in {bytes} bytes of memory")))
    }
}
