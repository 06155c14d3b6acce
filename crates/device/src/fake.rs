//! A device without a driver, for tests of what is the same for all devices, under Miri too: each of its queues works in threads, as an OpenCL
//! driver's for cores does. Its one kernel, `answer`, stays until it has answered one question.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{JoinHandle, spawn};

use crate::backend::{Backend, Handle, SharedMemory, Value};
use crate::{Cache, Description, Device, Entry, Error, Id, Loaded, Parameter, Program};

/// Memory is aligned to this, as that of all devices.
const ALIGNMENT: usize = 16;

#[derive(Debug)]
struct Fake {
    description: Description,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    last: Handle,
    memories: BTreeMap<Handle, (SharedMemory, usize)>,
    /// The thread that does the last of what was queued, after all before.
    queues: BTreeMap<Handle, Option<JoinHandle<()>>>,
}

/// A device, and its kernel: `answer(question, news, answer)` waits until the first word of `news` is not 0, and stores the sum of the bytes of
/// `question`, of which there are as many as that says, in `answer`.
pub(crate) fn device() -> (Device, Loaded) {
    let description = Description {
        id: Id::Host,
        name: "fake".into(),
        driver: String::new(),
        memory: 1 << 20,
        units: 1,
        local_memory: 0,
        group: 1,
        lanes: 1,
        shares: true,
        atomics_64: true,
    };
    let device = Device::new(Arc::new(Fake { description, state: Mutex::default() }), Cache::none());
    let parameters = &[Parameter::Live, Parameter::Live, Parameter::Memory];
    let program = Program {
        name: "fake",
        source: String::new(),
        defines: Vec::new(),
        group: 1,
        groups_per_unit: 1,
        stays: false,
        local: 0,
        entries: vec![Entry { name: "answer", parameters }],
    };
    let kernel = device.build(&program).unwrap().remove(0);
    (device, kernel)
}

impl Fake {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn place(&self, memory: Handle) -> SharedMemory {
        self.lock().memories[&memory].0
    }

    /// Does something in a thread, after all that was queued before.
    fn queued(&self, queue: Handle, work: impl FnOnce() + Send + 'static) {
        let mut state = self.lock();
        let last = state.queues.get_mut(&queue).unwrap();
        let before = last.take();
        *last = Some(spawn(move || {
            if let Some(before) = before {
                before.join().unwrap();
            }
            work();
        }));
    }
}

impl Backend for Fake {
    fn description(&self) -> &Description {
        &self.description
    }

    fn fingerprint(&self) -> String {
        String::new()
    }

    fn compile(&self, _program: &Program, _text: &str) -> Result<Vec<u8>, Error> {
        Ok(Vec::new())
    }

    fn load(&self, _program: &Program, _binary: &[u8]) -> Result<Handle, Error> {
        Ok(0)
    }

    unsafe fn kernel(&self, _program: Handle, _name: &str) -> Result<Handle, Error> {
        Ok(0)
    }

    unsafe fn unload(&self, _program: Handle, _kernels: &[Handle]) {}

    fn allocate(&self, bytes: usize) -> Result<Handle, Error> {
        Ok(self.share(bytes)?.handle)
    }

    fn allocate_zeros(&self, bytes: usize) -> Result<Handle, Error> {
        self.allocate(bytes)
    }

    unsafe fn free(&self, memory: Handle) {
        let (memory, bytes) = self.lock().memories.remove(&memory).unwrap();
        // SAFETY: `share` allocated it like this, and nobody uses it any more.
        unsafe { dealloc(memory.host.as_ptr(), Layout::from_size_align(bytes, ALIGNMENT).unwrap()) };
    }

    fn share(&self, bytes: usize) -> Result<SharedMemory, Error> {
        // SAFETY: there is at least one byte.
        let host = unsafe { alloc_zeroed(Layout::from_size_align(bytes, ALIGNMENT).unwrap()) };
        let mut state = self.lock();
        state.last += 1;
        let memory = SharedMemory { handle: state.last, host: NonNull::new(host).unwrap() };
        state.memories.insert(memory.handle, (memory, bytes));
        Ok(memory)
    }

    unsafe fn unshare(&self, memory: SharedMemory, _bytes: usize) {
        // SAFETY: as the caller promises.
        unsafe { self.free(memory.handle) };
    }

    fn queue(&self) -> Result<Handle, Error> {
        let mut state = self.lock();
        state.last += 1;
        let queue = state.last;
        state.queues.insert(queue, None);
        Ok(queue)
    }

    unsafe fn close(&self, queue: Handle) {
        self.lock().queues.remove(&queue);
    }

    unsafe fn write(
        &self,
        queue: Handle,
        to: Handle,
        offset: usize,
        from: *const u8,
        bytes: usize,
    ) -> Result<(), Error> {
        let to = self.place(to);
        let from = SharedMemory { handle: 0, host: NonNull::new(from.cast_mut()).unwrap() };
        self.queued(queue, move || {
            let (to, from) = (to, from);
            // SAFETY: as the caller promises.
            unsafe { to.host.add(offset).copy_from_nonoverlapping(from.host, bytes) };
        });
        Ok(())
    }

    unsafe fn read(
        &self,
        queue: Handle,
        from: Handle,
        offset: usize,
        to: *mut u8,
        bytes: usize,
    ) -> Result<(), Error> {
        let from = self.place(from);
        let to = SharedMemory { handle: 0, host: NonNull::new(to).unwrap() };
        self.queued(queue, move || {
            let (to, from) = (to, from);
            // SAFETY: as the caller promises.
            unsafe { to.host.copy_from_nonoverlapping(from.host.add(offset), bytes) };
        });
        Ok(())
    }

    unsafe fn copy(&self, queue: Handle, from: Handle, to: Handle, bytes: usize) -> Result<(), Error> {
        let (from, to) = (self.place(from), self.place(to));
        self.queued(queue, move || {
            let (to, from) = (to, from);
            // SAFETY: as the caller promises.
            unsafe { to.host.copy_from_nonoverlapping(from.host, bytes) };
        });
        Ok(())
    }

    unsafe fn clear(&self, queue: Handle, memory: Handle, bytes: usize) -> Result<(), Error> {
        let memory = self.place(memory);
        self.queued(queue, move || {
            let memory = memory;
            // SAFETY: as the caller promises.
            unsafe { memory.host.write_bytes(0, bytes) };
        });
        Ok(())
    }

    unsafe fn launch(
        &self,
        queue: Handle,
        _kernel: Handle,
        _groups: u32,
        _group: u32,
        values: &[Value],
    ) -> Result<(), Error> {
        let places = values.iter().map(|value| match value {
            Value::Memory(handle) | Value::Shared(handle) => self.place(*handle),
            Value::U32(_) | Value::U64(_) => unreachable!("the kernel takes memory"),
        });
        let [question, news, answer]: [SharedMemory; 3] = places.collect::<Vec<_>>().try_into().unwrap();
        self.queued(queue, move || {
            let (question, news, answer) = (question, news, answer);
            // SAFETY: the memory is there until the queue is finished; the host uses these words through atomics.
            let (news, answer) = unsafe {
                (
                    AtomicU32::from_ptr(news.host.as_ptr().cast()),
                    AtomicU64::from_ptr(answer.host.as_ptr().cast()),
                )
            };
            let mut count = 0;
            while count == 0 {
                std::thread::yield_now();
                count = news.load(Ordering::Acquire) as usize;
            }
            // SAFETY: the host wrote the question before the news, and leaves it alone until it is answered.
            let sum = (0..count).map(|at| u64::from(unsafe { question.host.add(at).read() })).sum();
            answer.store(sum, Ordering::Release);
        });
        Ok(())
    }

    unsafe fn wait_for(&self, _queue: Handle, _other: Handle) -> Result<(), Error> {
        Ok(())
    }

    unsafe fn finish(&self, queue: Handle) -> Result<(), Error> {
        let last = self.lock().queues.get_mut(&queue).unwrap().take();
        if let Some(last) = last {
            last.join().unwrap();
        }
        Ok(())
    }

    unsafe fn is_finished(&self, queue: Handle) -> Result<bool, Error> {
        let is_done = self.lock().queues[&queue].as_ref().is_none_or(JoinHandle::is_finished);
        if is_done {
            // SAFETY: as the caller promises.
            unsafe { self.finish(queue)? };
        }
        Ok(is_done)
    }
}
