//! Devices that fail when they are told to: for tests of what stands above them, and for drills.
//!
//! [`Device::with_faults`](crate::Device::with_faults) puts [`Faults`] before a device, whichever it is. A clone of them, from any
//! thread and at any time, makes calls fail, the device hang, or disappear:
//!
//! - A call that fails was not done: nothing was allocated, copied or launched. A wait that fails waited, and all was done.
//! - While the device hangs, what is queued gets to the true device, which may do it; but nobody is told that it is done.
//! - While it has disappeared every call fails, but for those that give something back.
//!
//! Faults count calls that come to the device: those of a [`Queue`](crate::Queue) that failed do not, nor do those that come with
//! arguments that do not fit.

use std::collections::BTreeSet;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use crate::backend::{Backend, Handle, SharedMemory, Value};
use crate::{Description, Error, Program};

/// Calls that can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    /// Memory of the device, or memory that it shares: [`Error::OutOfMemory`].
    Allocation,
    /// A copy in or out, from memory of the device to other memory of it, or of zeros.
    Copy,
    /// A launch of a kernel.
    Launch,
    /// A wait that comes to its end: a queue is asked whether it is done, and is. Copies that wait have one too, as have
    /// queues that are dropped with work in them.
    Finish,
}

/// How often calls of a kind fail at random: probabilities from 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Chances {
    /// Of [`Call::Allocation`].
    pub allocation: f64,
    /// Of [`Call::Copy`].
    pub copy: f64,
    /// Of [`Call::Launch`].
    pub launch: f64,
    /// Of [`Call::Finish`].
    pub finish: f64,
}

/// How many calls of a kind came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// All of them, those that failed among them.
    pub calls: u64,
    /// Those that were made to fail, by whatever fault.
    pub faults: u64,
}

/// What makes devices fail. Clones are the same faults; devices that are given the same ones fail together.
#[derive(Clone, Debug, Default)]
pub struct Faults(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    state: Mutex<State>,
    /// The device no longer hangs, or has disappeared.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    hangs: bool,
    gone: bool,
    kinds: [Kind; 4],
    random: u64,
    memories: usize,
    queues: usize,
}

/// What is known of calls of a kind.
#[derive(Debug, Default)]
struct Kind {
    counts: Counts,
    /// Which calls are to fail, as they are counted.
    planned: BTreeSet<u64>,
    /// The same where calls of threads of a name are left alone: how many others come before.
    planned_beside: Vec<(&'static str, u64)>,
    chance: f64,
}

impl Faults {
    /// None for now.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes one call fail: the next if `after` is 0, else that after so many more. Several may be planned.
    pub fn fail(&self, call: Call, after: u64) {
        let mut state = self.lock();
        let kind = &mut state.kinds[call as usize];
        kind.planned.insert(kind.counts.calls.saturating_add(after));
    }

    /// The same, where calls of threads of this name are neither counted nor fail.
    pub fn fail_beside(&self, thread: &'static str, call: Call, after: u64) {
        self.lock().kinds[call as usize].planned_beside.push((thread, after));
    }

    /// Makes calls fail at random from now on; the same calls in the same order after the same `seed`.
    pub fn at_random(&self, seed: u64, chances: Chances) {
        let mut state = self.lock();
        state.random = seed;
        let Chances { allocation, copy, launch, finish } = chances;
        for (kind, chance) in state.kinds.iter_mut().zip([allocation, copy, launch, finish]) {
            kind.chance = chance;
        }
    }

    /// Makes the device hang: until [`Self::release`] no queue is finished, and who waits for one without a limit waits so long.
    pub fn hang(&self) {
        self.lock().hangs = true;
    }

    /// Ends [`Self::hang`]: who waited goes on, as if nothing had been.
    pub fn release(&self) {
        self.lock().hangs = false;
        self.0.changed.notify_all();
    }

    /// Whether the device hangs.
    pub fn hangs(&self) -> bool {
        self.lock().hangs
    }

    /// Makes the device disappear: until [`Self::restore`] every call fails, and who waits, whether it hangs or not, is told so.
    pub fn disappear(&self) {
        self.lock().gone = true;
        self.0.changed.notify_all();
    }

    /// Ends [`Self::disappear`]. Memory, queues and kernels are there as before, though a queue that was told stays failed.
    pub fn restore(&self) {
        self.lock().gone = false;
    }

    /// Whether the device has disappeared.
    pub fn is_gone(&self) -> bool {
        self.lock().gone
    }

    /// How many calls of a kind there were so far, and how many of them were made to fail.
    pub fn counts(&self, call: Call) -> Counts {
        self.lock().kinds[call as usize].counts
    }

    /// How many memories there are now: those that were had and not given back.
    pub fn memories(&self) -> usize {
        self.lock().memories
    }

    /// How many queues there are now: those that were had and not closed.
    pub fn queues(&self) -> usize {
        self.lock().queues
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing is changed in two steps that could panic in between.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a call; the words of the fault that it is to have, if any.
    fn meet(&self, call: Call) -> Result<(), &'static str> {
        self.lock().meet(call)
    }

    /// Fails if the device has disappeared.
    fn there(&self, call: &'static str) -> Result<(), Error> {
        if self.lock().gone { Err(failed(call)(GONE)) } else { Ok(()) }
    }

    /// Waits while the device hangs, and is there.
    fn wait(&self) -> MutexGuard<'_, State> {
        self.0
            .changed
            .wait_while(self.lock(), |state| state.hangs_only())
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Whether the device hangs, and is there.
    fn hangs_only(&self) -> bool {
        self.hangs && !self.gone
    }

    fn meet(&mut self, call: Call) -> Result<(), &'static str> {
        let kind = &mut self.kinds[call as usize];
        let number = kind.counts.calls;
        kind.counts.calls += 1;
        // Each is drawn and taken, so that one fault does not move the others.
        let planned = kind.planned.remove(&number) | kind.meet_planned(thread::current().name());
        let drawn = draw(&mut self.random) < kind.chance;
        let fault = if self.gone {
            GONE
        } else if planned || drawn {
            "a fault that was asked for"
        } else {
            return Ok(());
        };
        kind.counts.faults += 1;
        Err(fault)
    }
}

impl Kind {
    /// Counts a call of a thread; whether it is to fail.
    fn meet_planned(&mut self, thread: Option<&str>) -> bool {
        let before = self.planned_beside.len();
        self.planned_beside.retain_mut(|(beside, after)| match after.checked_sub(1) {
            _ if thread == Some(*beside) => true,
            Some(left) => {
                *after = left;
                true
            }
            None => false,
        });
        self.planned_beside.len() < before
    }
}

/// A number from 0 to below 1: SplitMix64.
fn draw(state: &mut u64) -> f64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut bits = *state;
    bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^= bits >> 31;
    (bits >> 11) as f64 / (1_u64 << 53) as f64
}

const GONE: &str = "the device has disappeared, as was asked for";

fn failed(call: &'static str) -> impl FnOnce(&'static str) -> Error {
    move |why| Error::Failed { call, why: why.into() }
}

fn no_memory(bytes: usize) -> impl FnOnce(&'static str) -> Error {
    move |why| if why == GONE { failed("allocate")(why) } else { Error::OutOfMemory { bytes } }
}

/// A device with faults before it. Handles are those of the device.
#[derive(Debug)]
pub(crate) struct Faulty {
    device: Arc<dyn Backend>,
    faults: Faults,
}

impl Faulty {
    pub(crate) fn new(device: Arc<dyn Backend>, faults: Faults) -> Self {
        Self { device, faults }
    }
}

impl Backend for Faulty {
    fn description(&self) -> &Description {
        self.device.description()
    }

    fn fingerprint(&self) -> String {
        self.device.fingerprint()
    }

    fn compile(&self, program: &Program, text: &str) -> Result<Vec<u8>, Error> {
        self.faults.there("compile")?;
        self.device.compile(program, text)
    }

    fn load(&self, program: &Program, binary: &[u8]) -> Result<Handle, Error> {
        self.faults.there("load")?;
        self.device.load(program, binary)
    }

    unsafe fn kernel(&self, program: Handle, name: &str) -> Result<Handle, Error> {
        self.faults.there("kernel")?;
        // SAFETY: as the caller promises.
        unsafe { self.device.kernel(program, name) }
    }

    unsafe fn groups_per_unit(&self, kernel: Handle, group: u32) -> Result<Option<u32>, Error> {
        self.faults.there("occupancy")?;
        // SAFETY: as the caller promises.
        unsafe { self.device.groups_per_unit(kernel, group) }
    }

    unsafe fn unload(&self, program: Handle, kernels: &[Handle]) {
        // SAFETY: as the caller promises.
        unsafe { self.device.unload(program, kernels) };
    }

    fn allocate(&self, bytes: usize) -> Result<Handle, Error> {
        self.faults.meet(Call::Allocation).map_err(no_memory(bytes))?;
        let memory = self.device.allocate(bytes)?;
        self.faults.lock().memories += 1;
        Ok(memory)
    }

    fn allocate_zeros(&self, bytes: usize) -> Result<Handle, Error> {
        self.faults.meet(Call::Allocation).map_err(no_memory(bytes))?;
        let memory = self.device.allocate_zeros(bytes)?;
        self.faults.lock().memories += 1;
        Ok(memory)
    }

    unsafe fn free(&self, memory: Handle) {
        // SAFETY: as the caller promises.
        unsafe { self.device.free(memory) };
        self.faults.lock().memories -= 1;
    }

    fn share(&self, bytes: usize) -> Result<SharedMemory, Error> {
        self.faults.meet(Call::Allocation).map_err(no_memory(bytes))?;
        let memory = self.device.share(bytes)?;
        self.faults.lock().memories += 1;
        Ok(memory)
    }

    unsafe fn unshare(&self, memory: SharedMemory, bytes: usize) {
        // SAFETY: as the caller promises.
        unsafe { self.device.unshare(memory, bytes) };
        self.faults.lock().memories -= 1;
    }

    fn queue(&self) -> Result<Handle, Error> {
        self.faults.there("queue")?;
        let queue = self.device.queue()?;
        self.faults.lock().queues += 1;
        Ok(queue)
    }

    unsafe fn close(&self, queue: Handle) {
        // SAFETY: as the caller promises.
        unsafe { self.device.close(queue) };
        self.faults.lock().queues -= 1;
    }

    unsafe fn write(
        &self,
        queue: Handle,
        to: Handle,
        offset: usize,
        from: *const u8,
        bytes: usize,
    ) -> Result<(), Error> {
        self.faults.meet(Call::Copy).map_err(failed("copy"))?;
        // SAFETY: as the caller promises; no wait below ends before that of the device does.
        unsafe { self.device.write(queue, to, offset, from, bytes) }
    }

    unsafe fn read(
        &self,
        queue: Handle,
        from: Handle,
        offset: usize,
        to: *mut u8,
        bytes: usize,
    ) -> Result<(), Error> {
        self.faults.meet(Call::Copy).map_err(failed("copy"))?;
        // SAFETY: as the caller promises; no wait below ends before that of the device does.
        unsafe { self.device.read(queue, from, offset, to, bytes) }
    }

    unsafe fn copy(&self, queue: Handle, from: Handle, to: Handle, bytes: usize) -> Result<(), Error> {
        self.faults.meet(Call::Copy).map_err(failed("copy"))?;
        // SAFETY: as the caller promises; no wait below ends before that of the device does.
        unsafe { self.device.copy(queue, from, to, bytes) }
    }

    unsafe fn clear(&self, queue: Handle, memory: Handle, bytes: usize) -> Result<(), Error> {
        self.faults.meet(Call::Copy).map_err(failed("clear"))?;
        // SAFETY: as the caller promises.
        unsafe { self.device.clear(queue, memory, bytes) }
    }

    unsafe fn launch(
        &self,
        queue: Handle,
        kernel: Handle,
        groups: u32,
        group: u32,
        values: &[Value],
    ) -> Result<(), Error> {
        self.faults.meet(Call::Launch).map_err(failed("launch"))?;
        // SAFETY: as the caller promises.
        unsafe { self.device.launch(queue, kernel, groups, group, values) }
    }

    unsafe fn wait_for(&self, queue: Handle, other: Handle) -> Result<(), Error> {
        self.faults.there("order queues")?;
        // SAFETY: as the caller promises.
        unsafe { self.device.wait_for(queue, other) }
    }

    unsafe fn finish(&self, queue: Handle) -> Result<(), Error> {
        let fault = self.faults.wait().meet(Call::Finish);
        // Even where that fails: who waits may have lent memory that is theirs again afterwards.
        // SAFETY: as the caller promises.
        let finished = unsafe { self.device.finish(queue) };
        fault.map_err(failed("finish"))?;
        finished
    }

    unsafe fn is_finished(&self, queue: Handle) -> Result<bool, Error> {
        if self.faults.lock().hangs_only() {
            return Ok(false);
        }
        // SAFETY: as the caller promises.
        let finished = unsafe { self.device.is_finished(queue) };
        let mut state = self.faults.lock();
        if !state.gone && finished == Ok(false) {
            return Ok(false);
        }
        state.meet(Call::Finish).map_err(failed("query"))?;
        finished
    }

    unsafe fn is_settled(&self, queue: Handle) -> bool {
        let State { hangs, gone, .. } = *self.faults.lock();
        // SAFETY: as the caller promises.
        !hangs && !gone && unsafe { self.device.is_settled(queue) }
    }
}
