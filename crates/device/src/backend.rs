//! What a back end does; what is the same for all of them (checks, ownership, the cache) is in the types that are made of it.

use std::fmt;
use std::ptr::NonNull;

use crate::{Description, Error, Program};

/// Something of a back end: memory, a queue, a kernel, whatever its driver calls them by.
pub(crate) type Handle = u64;

/// What a kernel is given, as its driver wants it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    /// Memory of the device, from [`Backend::allocate`].
    Memory(Handle),
    /// Memory of the host, from [`Backend::share`].
    Shared(Handle),
    U32(u32),
    U64(u64),
}

/// Memory of the host that a device can reach.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SharedMemory {
    pub(crate) handle: Handle,
    pub(crate) host: NonNull<u8>,
}

// SAFETY: it is an address; whoever follows it answers for what is there.
unsafe impl Send for SharedMemory {}

/// A driver. Handles belong to the back end that gave them.
///
/// # Safety
/// Whoever calls the unsafe functions passes handles of this back end that were not given back yet, ranges inside the
/// memory that are not empty, at least one group, arguments as the kernel's entry declares them, and leaves shared memory and kernels alive until the queues that use
/// them are finished.
pub(crate) trait Backend: Send + Sync + fmt::Debug {
    fn description(&self) -> &Description;

    /// What makes a compiled binary of this device unlike those of others: architecture, versions of compiler and driver.
    fn fingerprint(&self) -> String;

    /// Compiles a program's text to what `load` takes.
    fn compile(&self, program: &Program, text: &str) -> Result<Vec<u8>, Error>;

    /// Loads what `compile` made.
    fn load(&self, program: &Program, binary: &[u8]) -> Result<Handle, Error>;

    /// The kernel of an entry of a loaded program.
    unsafe fn kernel(&self, program: Handle, name: &str) -> Result<Handle, Error>;

    /// Groups of so many items of a kernel that a compute unit holds at a time, where the driver tells.
    unsafe fn groups_per_unit(&self, kernel: Handle, group: u32) -> Result<Option<u32>, Error> {
        let _ = (kernel, group);
        Ok(None)
    }

    unsafe fn unload(&self, program: Handle, kernels: &[Handle]);

    fn allocate(&self, bytes: usize) -> Result<Handle, Error>;

    /// The same, all zeros.
    fn allocate_zeros(&self, bytes: usize) -> Result<Handle, Error>;

    unsafe fn free(&self, memory: Handle);

    fn share(&self, bytes: usize) -> Result<SharedMemory, Error>;

    unsafe fn unshare(&self, memory: SharedMemory, bytes: usize);

    fn queue(&self) -> Result<Handle, Error>;

    unsafe fn close(&self, queue: Handle);

    /// Queues a copy into the device's memory. `from` stays as it is until the queue is finished.
    unsafe fn write(
        &self,
        queue: Handle,
        to: Handle,
        offset: usize,
        from: *const u8,
        bytes: usize,
    ) -> Result<(), Error>;

    /// Queues a copy out of the device's memory. `to` is left alone until the queue is finished.
    unsafe fn read(
        &self,
        queue: Handle,
        from: Handle,
        offset: usize,
        to: *mut u8,
        bytes: usize,
    ) -> Result<(), Error>;

    /// Queues a copy from the beginning of the device's memory to the beginning of other memory of it.
    unsafe fn copy(&self, queue: Handle, from: Handle, to: Handle, bytes: usize) -> Result<(), Error>;

    /// Queues that all of the device's memory, of so many bytes, becomes zeros.
    unsafe fn clear(&self, queue: Handle, memory: Handle, bytes: usize) -> Result<(), Error>;

    /// Queues a kernel over `groups` groups of `group` items each.
    unsafe fn launch(
        &self,
        queue: Handle,
        kernel: Handle,
        groups: u32,
        group: u32,
        values: &[Value],
    ) -> Result<(), Error>;

    /// Has what is queued from here on begin when all that is in another queue by now is done. Does not wait.
    unsafe fn wait_for(&self, queue: Handle, other: Handle) -> Result<(), Error>;

    /// Waits until all that was queued is done.
    unsafe fn finish(&self, queue: Handle) -> Result<(), Error>;

    /// Whether all that was queued is done, without waiting.
    unsafe fn is_finished(&self, queue: Handle) -> Result<bool, Error>;

    /// Whether the device is certain to use nothing any more of what was queued, whatever became of it. Does not wait.
    unsafe fn is_settled(&self, queue: Handle) -> bool {
        // SAFETY: as the caller promises.
        matches!(unsafe { self.is_finished(queue) }, Ok(true))
    }
}
