//! A device, and the programs that are loaded there.

use std::sync::Arc;

use crate::backend::{Backend, Handle};
use crate::cache::Cache;
use crate::faults::{Faults, Faulty};
use crate::opened::{Opened, Thing};
use crate::program::Entry;
use crate::{Error, Id, Memory, Program, Queue, Shared, cuda, host, opencl};

/// What is known of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// How it is named here.
    pub id: Id,
    /// Its own name.
    pub name: String,
    /// Driver and interface, with their versions.
    pub driver: String,
    /// Bytes of memory.
    pub memory: u64,
    /// Processors: multiprocessors of a GPU, cores of a CPU.
    pub units: u32,
    /// Bytes of memory that the items of a group can share.
    pub local_memory: u32,
    /// Items that a group may have.
    pub group: u32,
    /// Items that run in step, as kernels see it (`LANES`).
    pub lanes: u32,
    /// Whether kernels can read and write [`Shared`] memory where it lies.
    pub shares: bool,
    /// Whether kernels have 64-bit atomics.
    pub atomics_64: bool,
}

/// A device that was opened. Clones are the same device.
#[derive(Clone, Debug)]
pub struct Device {
    backend: Arc<Opened>,
    cache: Cache,
}

impl Device {
    /// Opens a device; compiled kernels are kept in `cache`.
    ///
    /// # Errors
    /// [`Error::Unavailable`] where there is no such device, no driver, or no compiler.
    pub fn open(id: Id, cache: Cache) -> Result<Self, Error> {
        let backend = match id {
            Id::Cuda(number) => cuda::open(number)?,
            Id::OpenCl(number) => opencl::open(number)?,
            Id::Host => host::open(host::MAX_GROUP, &cache)?,
        };
        Ok(Self::new(backend, cache))
    }

    /// The host, of whose items so many run in step, a power of two up to 32: with fewer than a group has, it has several sets of lanes, as on a GPU.
    /// For tests; otherwise all of a group run in step.
    ///
    /// # Errors
    /// As for [`Self::open`].
    pub fn host(lanes: u32, cache: Cache) -> Result<Self, Error> {
        Ok(Self::new(host::open(lanes, &cache)?, cache))
    }

    /// The same device once more, with faults: for tests and drills. It is a device of its own: memory, queues and kernels of the
    /// one are not those of the other. No faults come to what was had of this one.
    pub fn with_faults(&self, faults: &Faults) -> Self {
        let faulty = Faulty::new(self.backend.backend().clone(), faults.clone());
        Self::new(Arc::new(faulty), self.cache.clone())
    }

    pub(crate) fn new(backend: Arc<dyn Backend>, cache: Cache) -> Self {
        Self { backend: Opened::new(backend), cache }
    }

    /// What is known of it.
    pub fn description(&self) -> &Description {
        self.backend.description()
    }

    /// Looks whether all queues that were [abandoned](Queue::abandon) are done, without waiting, and gives back what was kept for
    /// those that are.
    ///
    /// While one is not, there is no new memory, and no program is built: drivers would wait for it, maybe for ever. Queues can be
    /// had, and work if the device does.
    ///
    /// # Errors
    /// What a queue failed with that is not known to be done; [`Error::Failed`] where it only takes long. A GPU of CUDA whose
    /// kernel failed stays like this: it is lost to the process.
    pub fn settle(&self) -> Result<(), Error> {
        self.backend.settle()
    }

    /// Memory of the device; what it holds at first is not defined.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], or as for [`Self::settle`].
    pub fn memory(&self, bytes: usize) -> Result<Memory, Error> {
        self.settle()?;
        Memory::new(&self.backend, bytes)
    }

    /// Memory of the device, all zeros. The device clears it by itself: nothing is copied there.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], or as for [`Self::settle`].
    pub fn zeros(&self, bytes: usize) -> Result<Memory, Error> {
        self.settle()?;
        Memory::zeros(&self.backend, bytes)
    }

    /// Memory of the device that holds `bytes`. Waits for the copy, without a limit.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], a copy that failed, or as for [`Self::settle`].
    pub fn memory_of(&self, bytes: &[u8]) -> Result<Memory, Error> {
        let memory = self.memory(bytes.len())?;
        self.queue()?.write(&memory, 0, bytes)?;
        Ok(memory)
    }

    /// Memory of the host, zeros at first, from which copies are fastest, and which kernels can use where the device
    /// [`shares`](Description::shares).
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], or as for [`Self::settle`].
    pub fn share(&self, bytes: usize) -> Result<Shared, Error> {
        self.settle()?;
        Shared::new(&self.backend, bytes)
    }

    /// A queue of its own for copies and launches.
    ///
    /// # Errors
    /// [`Error::Failed`].
    pub fn queue(&self) -> Result<Queue, Error> {
        Queue::new(&self.backend)
    }

    /// Compiles a program, unless the cache has it, and loads it: a kernel for each of its entries. Drivers that compile in this
    /// process are waited for without a limit.
    ///
    /// # Errors
    /// [`Error::Build`] with the compiler's words, or as for [`Self::settle`].
    pub fn build(&self, program: &Program) -> Result<Vec<Loaded>, Error> {
        self.settle()?;
        let text = program.text(self.description().lanes);
        let key = Cache::key(&[&self.backend.fingerprint(), &text]);
        let kept = self.cache.get(&key).and_then(|binary| self.backend.load(program, &binary).ok());
        let handle = match kept {
            Some(handle) => handle,
            None => {
                let binary = self.backend.compile(program, &text)?;
                let handle = self.backend.load(program, &binary)?;
                self.cache.put(&key, &binary);
                handle
            }
        };
        let mut image = Image { backend: self.backend.clone(), handle, kernels: Vec::new() };
        for entry in &program.entries {
            // SAFETY: the program was loaded above and is unloaded when `image` is dropped.
            image.kernels.push(unsafe { self.backend.kernel(handle, entry.name)? });
        }
        let (image, group) = (Arc::new(image), program.group);
        let loaded = |(number, &entry)| Loaded { image: Arc::clone(&image), number, entry, group };
        Ok(program.entries.iter().enumerate().map(loaded).collect())
    }
}

/// A loaded program.
#[derive(Debug)]
pub(crate) struct Image {
    pub(crate) backend: Arc<Opened>,
    handle: Handle,
    kernels: Vec<Handle>,
}

impl Drop for Image {
    fn drop(&mut self) {
        // SAFETY: nobody has the program any more: queues hold it until they are finished.
        unsafe { self.backend.give_back(Thing::Program(self.handle, std::mem::take(&mut self.kernels))) };
    }
}

/// A kernel that was loaded onto a device.
#[derive(Clone, Debug)]
pub struct Loaded {
    pub(crate) image: Arc<Image>,
    number: usize,
    /// The entry point that it is.
    pub entry: Entry,
    /// Items in a group.
    pub group: u32,
}

impl Loaded {
    /// Groups that a compute unit holds at a time, where the driver tells.
    ///
    /// # Errors
    /// What the driver says.
    pub fn groups_per_unit(&self) -> Result<Option<u32>, Error> {
        // SAFETY: the kernel is loaded as long as the image is there.
        unsafe { self.image.backend.groups_per_unit(self.handle(), self.group) }
    }

    pub(crate) fn handle(&self) -> Handle {
        self.image.kernels[self.number]
    }
}
