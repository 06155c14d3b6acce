//! Devices of OpenCL 1.2, whichever drivers are installed.

use std::ffi::{CStr, CString, c_void};
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use opencl3::command_queue;
use opencl3::context::context;
use opencl3::device::{self, CL_DEVICE_TYPE_ALL, CL_DEVICE_TYPE_CPU};
use opencl3::error_codes::{
    CL_BUILD_PROGRAM_FAILURE, CL_INVALID_BUFFER_SIZE, CL_MEM_OBJECT_ALLOCATION_FAILURE,
    CL_OUT_OF_HOST_MEMORY, CL_OUT_OF_RESOURCES, DLOPEN_RUNTIME_LOAD_FAILED, error_text,
};
use opencl3::event::{self, CL_COMPLETE, CL_EVENT_COMMAND_EXECUTION_STATUS};
use opencl3::memory::{
    self, CL_BUFFER_CREATE_TYPE_REGION, CL_MAP_READ, CL_MAP_WRITE, CL_MEM_ALLOC_HOST_PTR, CL_MEM_READ_WRITE,
};
use opencl3::platform::platform;
use opencl3::types::{
    CL_BLOCKING, CL_NON_BLOCKING, cl_buffer_region, cl_device_id, cl_device_info, cl_event, cl_int, cl_mem,
    cl_mem_flags, cl_platform_id, cl_platform_info, cl_program,
};
use opencl3::{kernel, program};

use crate::backend::{Backend, Handle, SharedMemory, Value};
use crate::{Description, Error, Id, Program, signals};

/// What shared memory is aligned to.
const PAGE: usize = 4096;

/// The first byte of what [`Backend::compile`] gives, where the rest is what the driver made of a program.
const BINARY: u8 = b'B';

/// As [`BINARY`], where the rest is the program's text, as the driver keeps to itself what it makes of it.
const TEXT: u8 = b'T';

/// How many devices there are.
pub(crate) fn count() -> Result<usize, Error> {
    match devices() {
        Ok(devices) => Ok(devices.len()),
        Err(why) => Err(Error::Unavailable { device: "opencl".into(), why }),
    }
}

/// Opens a device by its number.
pub(crate) fn open(number: usize) -> Result<Arc<dyn Backend>, Error> {
    let id = Id::OpenCl(number);
    let unavailable = |why| Error::Unavailable { device: id.to_string(), why };
    let devices = devices().map_err(unavailable)?;
    let Some(&(platform, device)) = devices.get(number) else {
        let why = match devices.len() {
            1 => "there is only 1 OpenCL device here, opencl:0".into(),
            count => format!("there are only {count} OpenCL devices here, opencl:0 to opencl:{}", count - 1),
        };
        return Err(unavailable(why));
    };
    if device_number(device, device::CL_DEVICE_AVAILABLE)? == 0 {
        return Err(unavailable("its driver says that it is not available".into()));
    }
    if device_number(device, device::CL_DEVICE_COMPILER_AVAILABLE)? == 0 {
        return Err(unavailable("its driver has no compiler".into()));
    }
    let context = context::create_context(&[device], ptr::null(), None, ptr::null_mut())
        .map_err(|code| unavailable(format!("its driver does not open it: {}", named(code))))?;
    Ok(Arc::new(OpenCl::new(id, platform, device, Owned(context, context::release_context))?))
}

/// All devices, platform by platform; or why there are none.
fn devices() -> Result<Vec<(cl_platform_id, cl_device_id)>, String> {
    // Drivers start up at the first question, and not all of them bear two at once: PoCL 3.1 finds no device, or
    // crashes.
    static ASKING: Mutex<()> = Mutex::new(());
    let _asking = lock(&ASKING);
    signals::kept(ask)
}

fn ask() -> Result<Vec<(cl_platform_id, cl_device_id)>, String> {
    let platforms = match platform::get_platform_ids() {
        Ok(platforms) => platforms,
        Err(DLOPEN_RUNTIME_LOAD_FAILED) => return Err("the library libOpenCL.so.1 cannot be loaded".into()),
        Err(code) => return Err(format!("no OpenCL driver is installed: {}", named(code))),
    };
    let mut devices = Vec::new();
    let mut why =
        if platforms.is_empty() { "no OpenCL driver is installed" } else { "no OpenCL driver has a device" }
            .to_owned();
    for platform in platforms {
        // A driver that fails hides its own devices only.
        match device::get_device_ids(platform, CL_DEVICE_TYPE_ALL) {
            Ok(found) => devices.extend(found.into_iter().map(|device| (platform, device))),
            Err(code) => why = format!("an OpenCL driver finds no devices: {}", named(code)),
        }
    }
    if devices.is_empty() { Err(why) } else { Ok(devices) }
}

/// An object of the driver, released at its end.
#[derive(Debug)]
struct Owned(*mut c_void, unsafe fn(*mut c_void) -> Result<(), cl_int>);

impl Owned {
    /// The object, which somebody else releases.
    fn keep(self) -> *mut c_void {
        std::mem::ManuallyDrop::new(self).0
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: the object came from the driver, with one reference, which goes here; `1` is what releases its kind.
        let _ = unsafe { self.1(self.0) };
    }
}

/// A device and its context.
#[derive(Debug)]
struct OpenCl {
    device: cl_device_id,
    description: Description,
    fingerprint: String,
    options: &'static CStr,
    /// Whether the driver keeps what it makes of a text in files of its own, and makes more where it is asked for a binary.
    keeps: bool,
    /// What shared memory is mapped and unmapped with. Before `context`, as it is released before.
    mapping: Owned,
    context: Owned,
}

// SAFETY: calls of OpenCL may come from any thread, but for the arguments of one kernel, which are behind a lock.
unsafe impl Send for OpenCl {}
// SAFETY: as above.
unsafe impl Sync for OpenCl {}

/// A queue, and all that was queued since it was last known to be finished.
struct Commands {
    queue: Owned,
    events: Mutex<Vec<Command>>,
}

/// What was queued, by the name of the call, and how far it is.
struct Command {
    call: &'static str,
    event: Owned,
}

/// A kernel. Its arguments are set one by one, then it is queued: one launch at a time.
type Kernel = Mutex<Owned>;

/// Memory of the host, in a buffer that stays mapped.
struct Mapped {
    buffer: Owned,
    /// Where the buffer is mapped.
    host: NonNull<u8>,
    /// The part from a page's start on, for kernels; none where they cannot use it.
    part: Option<Owned>,
}

impl OpenCl {
    fn new(id: Id, platform: cl_platform_id, device: cl_device_id, context: Owned) -> Result<Self, Error> {
        let text = |what| device_text(device, what);
        let number = |what| device_number(device, what);
        let small = |what| Ok::<u32, Error>(number(what)?.try_into().unwrap_or(u32::MAX));
        let name = text(device::CL_DEVICE_NAME)?;
        let version = text(device::CL_DEVICE_VERSION)?;
        let driver = text(device::CL_DRIVER_VERSION)?;
        let atomics_64 = text(device::CL_DEVICE_EXTENSIONS)?
            .split_ascii_whitespace()
            .any(|extension| extension == "cl_khr_int64_base_atomics");
        let options = if atomics_64 { c"-cl-std=CL1.2 -DHAS_ATOMICS_64" } else { c"-cl-std=CL1.2" };
        let parts = [&platform_text(platform, platform::CL_PLATFORM_VERSION)?, &name, &version, &driver];
        let fingerprint = format!("opencl {parts:?} {options:?}");
        // Not by the device's vendor: others drive NVIDIA's devices too, with compilers that have no such lanes.
        let nvidia = platform_text(platform, platform::CL_PLATFORM_VENDOR)?.contains("NVIDIA");
        let platform_name = platform_text(platform, platform::CL_PLATFORM_NAME)?;
        // PoCL compiles a kernel for the size of its groups when it is first launched, and keeps that. Asked for a binary, it compiles all
        // kernels in another form before, which takes as long again and is never run.
        let keeps = platform_name == "Portable Computing Language";
        let cpu = number(device::CL_DEVICE_TYPE)? & CL_DEVICE_TYPE_CPU != 0;
        let description = Description {
            id,
            driver: format!("{platform_name}, {version}, driver {driver}"),
            name,
            memory: number(device::CL_DEVICE_GLOBAL_MEM_SIZE)?,
            units: small(device::CL_DEVICE_MAX_COMPUTE_UNITS)?,
            local_memory: small(device::CL_DEVICE_LOCAL_MEM_SIZE)?,
            group: small(device::CL_DEVICE_MAX_WORK_GROUP_SIZE)?,
            lanes: if nvidia { 32 } else { 1 },
            shares: cpu && number(device::CL_DEVICE_HOST_UNIFIED_MEMORY)? != 0,
            atomics_64,
        };
        let mapping = command_queue(&context, device)?;
        Ok(Self { device, description, fingerprint, options, keeps, mapping, context })
    }

    /// Refuses what does not fit into a group's memory: compilers of CPUs do not mind.
    fn check(&self, program: &Program) -> Result<(), Error> {
        let (asked, there) = (program.local, self.description.local_memory);
        if asked <= there {
            return Ok(());
        }
        let (name, id) = (program.name, self.description.id);
        Err(Error::Misuse(format!("{name} asks for {asked} bytes of memory for a group; {id} has {there}")))
    }

    /// Has the driver build a program of this text, or of what it once made of it.
    fn build(&self, kind: u8, bytes: &[u8]) -> Result<Owned, Error> {
        let program = if kind == TEXT {
            let text = std::str::from_utf8(bytes).map_err(|error| Error::Misuse(error.to_string()))?;
            program::create_program_with_source(self.context.0, &[text])
                .map_err(failed("clCreateProgramWithSource"))
        } else {
            // SAFETY: the device is that of the context.
            unsafe { program::create_program_with_binary(self.context.0, &[self.device], &[bytes]) }
                .map_err(failed("clCreateProgramWithBinary"))
        };
        let program = Owned(program?, program::release_program);
        let build = || program::build_program(program.0, &[self.device], self.options, None, ptr::null_mut());
        match signals::kept(build) {
            Ok(()) => Ok(program),
            Err(code @ CL_BUILD_PROGRAM_FAILURE) => {
                let log =
                    program::get_program_build_data(program.0, self.device, program::CL_PROGRAM_BUILD_LOG)
                        .map(|bytes| text(&bytes))
                        .unwrap_or_default();
                Err(Error::Build { log: if log.is_empty() { named(code) } else { log } })
            }
            Err(code) => Err(failed("clBuildProgram")(code)),
        }
    }

    fn buffer(&self, flags: cl_mem_flags, bytes: usize) -> Result<Owned, cl_int> {
        // SAFETY: without a pointer to the host's memory, the call touches none.
        let buffer = unsafe { memory::create_buffer(self.context.0, flags, bytes, ptr::null_mut()) };
        Ok(Owned(buffer?, memory::release_mem_object))
    }
}

impl Backend for OpenCl {
    fn description(&self) -> &Description {
        &self.description
    }

    fn fingerprint(&self) -> String {
        self.fingerprint.clone()
    }

    fn compile(&self, program: &Program, text: &str) -> Result<Vec<u8>, Error> {
        self.check(program)?;
        let as_text = || [&[TEXT], text.as_bytes()].concat();
        if self.keeps {
            return Ok(as_text());
        }
        let built = self.build(TEXT, text.as_bytes())?;
        let binaries = program::get_program_info(built.0, program::CL_PROGRAM_BINARIES);
        // The context has one device, so there is one at most.
        let binary = binaries.ok().and_then(|info| Vec::<Vec<u8>>::from(info).pop()).unwrap_or_default();
        Ok(if binary.is_empty() { as_text() } else { [&[BINARY][..], &binary].concat() })
    }

    fn load(&self, program: &Program, binary: &[u8]) -> Result<Handle, Error> {
        self.check(program)?;
        match binary.split_first() {
            Some((&kind @ (TEXT | BINARY), bytes)) => Ok(self.build(kind, bytes)?.keep() as Handle),
            _ => Err(Error::Misuse("no compiled program of OpenCL".into())),
        }
    }

    unsafe fn kernel(&self, program: Handle, name: &str) -> Result<Handle, Error> {
        let name = CString::new(name).map_err(|error| Error::Misuse(error.to_string()))?;
        let kernel = kernel::create_kernel(program as cl_program, &name).map_err(failed("clCreateKernel"))?;
        Ok(give(Kernel::new(Owned(kernel, kernel::release_kernel))))
    }

    unsafe fn unload(&self, program: Handle, kernels: &[Handle]) {
        for &kernel in kernels {
            // SAFETY: `kernel` gave it, and nobody has it any more, as the caller promises.
            drop(unsafe { take::<Kernel>(kernel) });
        }
        drop(Owned(program as cl_program, program::release_program));
    }

    fn allocate(&self, bytes: usize) -> Result<Handle, Error> {
        let buffer = self.buffer(CL_MEM_READ_WRITE, bytes).map_err(no_memory("clCreateBuffer", bytes))?;
        Ok(buffer.keep() as Handle)
    }

    fn allocate_zeros(&self, bytes: usize) -> Result<Handle, Error> {
        let memory = self.allocate(bytes)?;
        // SAFETY: it has so many bytes, and nobody else has it yet.
        let cleared = unsafe { fill(&self.mapping, memory, bytes) };
        let cleared = cleared.and_then(|event| {
            let event = Owned(event, event::release_event);
            event::wait_for_events(&[event.0])
        });
        if cleared.is_err() {
            // SAFETY: no queue uses it.
            unsafe { self.free(memory) };
        }
        cleared.map(|()| memory).map_err(failed("clEnqueueFillBuffer"))
    }

    unsafe fn free(&self, memory: Handle) {
        drop(Owned(memory as cl_mem, memory::release_mem_object));
    }

    fn share(&self, bytes: usize) -> Result<SharedMemory, Error> {
        // A driver aligns it as it likes. So there is a page more, and what lies before a page's start is not used.
        let whole = bytes.checked_add(PAGE).ok_or(Error::OutOfMemory { bytes })?;
        let buffer = self
            .buffer(CL_MEM_READ_WRITE | CL_MEM_ALLOC_HOST_PTR, whole)
            .map_err(no_memory("clCreateBuffer", bytes))?;
        let (mut host, flags) = (ptr::null_mut(), CL_MAP_READ | CL_MAP_WRITE);
        // SAFETY: the range is the whole buffer, which nobody uses yet.
        let mapped = unsafe {
            command_queue::enqueue_map_buffer(
                self.mapping.0,
                buffer.0,
                CL_BLOCKING,
                flags,
                0,
                whole,
                &mut host,
                0,
                ptr::null(),
            )
        };
        drop(Owned(mapped.map_err(no_memory("clEnqueueMapBuffer", bytes))?, event::release_event));
        let host = NonNull::new(host).ok_or(Error::OutOfMemory { bytes })?.cast::<u8>();
        let skipped = host.align_offset(PAGE);
        // SAFETY: fewer than a page are skipped, and there is a page more than asked for.
        let start = unsafe { host.add(skipped) };
        // SAFETY: `bytes` from there on lie in what was mapped for writing, and nobody has it yet.
        unsafe { start.write_bytes(0, bytes) };
        let mut mapped = Mapped { buffer, host, part: None };
        if self.description.shares {
            let region = cl_buffer_region { origin: skipped, size: bytes };
            // SAFETY: the region lies in the buffer, and is of the kind that is said.
            let part = unsafe {
                memory::create_sub_buffer(
                    mapped.buffer.0,
                    CL_MEM_READ_WRITE,
                    CL_BUFFER_CREATE_TYPE_REGION,
                    (&raw const region).cast(),
                )
            };
            let part = part.map_err(no_memory("clCreateSubBuffer", bytes))?;
            mapped.part = Some(Owned(part, memory::release_mem_object));
        }
        Ok(SharedMemory { handle: give(mapped), host: start })
    }

    unsafe fn unshare(&self, memory: SharedMemory, _bytes: usize) {
        // SAFETY: `share` gave it, and nobody has it any more, as the caller promises.
        let mapped = unsafe { take::<Mapped>(memory.handle) };
        drop(mapped.part);
        // SAFETY: the buffer is mapped there.
        let unmapped = unsafe {
            command_queue::enqueue_unmap_mem_object(
                self.mapping.0,
                mapped.buffer.0,
                mapped.host.as_ptr().cast(),
                0,
                ptr::null(),
            )
        };
        if let Ok(event) = unmapped {
            drop(Owned(event, event::release_event));
            let _ = command_queue::finish(self.mapping.0);
        }
    }

    fn queue(&self) -> Result<Handle, Error> {
        let queue = command_queue(&self.context, self.device)?;
        Ok(give(Commands { queue, events: Mutex::default() }))
    }

    unsafe fn close(&self, queue: Handle) {
        // SAFETY: `queue` gave it, and nobody has it any more, as the caller promises.
        drop(unsafe { take::<Commands>(queue) });
    }

    unsafe fn write(
        &self,
        queue: Handle,
        to: Handle,
        offset: usize,
        from: *const u8,
        bytes: usize,
    ) -> Result<(), Error> {
        // SAFETY: `queue` gave it, and it is open, as the caller promises.
        let queue = unsafe { lend::<Commands>(queue) };
        // SAFETY: the caller promises that the range lies inside, and that `from` stays.
        let event = unsafe {
            command_queue::enqueue_write_buffer(
                queue.queue.0,
                to as cl_mem,
                CL_NON_BLOCKING,
                offset,
                bytes,
                from.cast(),
                0,
                ptr::null(),
            )
        };
        queue.queued("clEnqueueWriteBuffer", event)
    }

    unsafe fn read(
        &self,
        queue: Handle,
        from: Handle,
        offset: usize,
        to: *mut u8,
        bytes: usize,
    ) -> Result<(), Error> {
        // SAFETY: `queue` gave it, and it is open, as the caller promises.
        let queue = unsafe { lend::<Commands>(queue) };
        // SAFETY: the caller promises that the range lies inside, and that `to` is left alone.
        let event = unsafe {
            command_queue::enqueue_read_buffer(
                queue.queue.0,
                from as cl_mem,
                CL_NON_BLOCKING,
                offset,
                bytes,
                to.cast(),
                0,
                ptr::null(),
            )
        };
        queue.queued("clEnqueueReadBuffer", event)
    }

    unsafe fn copy(&self, queue: Handle, from: Handle, to: Handle, bytes: usize) -> Result<(), Error> {
        // SAFETY: `queue` gave it, and it is open, as the caller promises.
        let queue = unsafe { lend::<Commands>(queue) };
        // SAFETY: the caller promises that both are memory of so many bytes.
        let event = unsafe {
            command_queue::enqueue_copy_buffer(
                queue.queue.0,
                from as cl_mem,
                to as cl_mem,
                0,
                0,
                bytes,
                0,
                ptr::null(),
            )
        };
        queue.queued("clEnqueueCopyBuffer", event)
    }

    unsafe fn clear(&self, queue: Handle, memory: Handle, bytes: usize) -> Result<(), Error> {
        // SAFETY: `queue` gave it, and it is open, as the caller promises.
        let queue = unsafe { lend::<Commands>(queue) };
        // SAFETY: the caller promises that it has so many bytes.
        let event = unsafe { fill(&queue.queue, memory, bytes) };
        queue.queued("clEnqueueFillBuffer", event)
    }

    unsafe fn launch(
        &self,
        queue: Handle,
        kernel: Handle,
        groups: u32,
        group: u32,
        values: &[Value],
    ) -> Result<(), Error> {
        // SAFETY: `queue` and `kernel` gave them, and they live, as the caller promises.
        let (queue, kernel) = unsafe { (lend::<Commands>(queue), lend::<Kernel>(kernel)) };
        let kernel = lock(kernel);
        for (number, value) in (0..).zip(values) {
            let memory: cl_mem;
            let (size, value) = match value {
                Value::Memory(handle) => {
                    memory = *handle as cl_mem;
                    argument(&memory)
                }
                Value::Shared(handle) => {
                    // SAFETY: `share` gave it, and it lives, as the caller promises.
                    let mapped = unsafe { lend::<Mapped>(*handle) };
                    let part = mapped.part.as_ref();
                    memory = part.ok_or_else(|| Error::Misuse("this memory is not shared".into()))?.0;
                    argument(&memory)
                }
                Value::U32(value) => argument(value),
                Value::U64(value) => argument(value),
            };
            // SAFETY: the value lives until the call is over, and is as large as is said.
            unsafe { kernel::set_kernel_arg(kernel.0, number, size, value) }
                .map_err(failed("clSetKernelArg"))?;
        }
        let (items, group) = (groups as usize * group as usize, group as usize);
        // SAFETY: one dimension, so one number each; the arguments are the kernel's, as the caller promises.
        let event = unsafe {
            command_queue::enqueue_nd_range_kernel(
                queue.queue.0,
                kernel.0,
                1,
                ptr::null(),
                &items,
                &group,
                0,
                ptr::null(),
            )
        };
        queue.queued("clEnqueueNDRangeKernel", event)
    }

    unsafe fn wait_for(&self, queue: Handle, other: Handle) -> Result<(), Error> {
        // SAFETY: `queue` gave them, and they are open, as the caller promises.
        let (queue, other) = unsafe { (lend::<Commands>(queue), lend::<Commands>(other)) };
        // SAFETY: the queue is open; no list of events means all that is in it.
        let mark = unsafe { command_queue::enqueue_marker_with_wait_list(other.queue.0, 0, ptr::null()) };
        let mark = mark.map_err(failed("clEnqueueMarkerWithWaitList"))?;
        // SAFETY: the list is of the one event, which nobody released yet.
        let barrier =
            unsafe { command_queue::enqueue_barrier_with_wait_list(queue.queue.0, 1, &raw const mark) };
        other.queued("clEnqueueMarkerWithWaitList", Ok(mark))?;
        queue.queued("clEnqueueBarrierWithWaitList", barrier)
    }

    unsafe fn finish(&self, queue: Handle) -> Result<(), Error> {
        // SAFETY: `queue` gave it, and it is open, as the caller promises.
        unsafe { lend::<Commands>(queue) }.finish()
    }

    unsafe fn is_finished(&self, queue: Handle) -> Result<bool, Error> {
        // SAFETY: `queue` gave it, and it is open, as the caller promises.
        let queue = unsafe { lend::<Commands>(queue) };
        // Commands are done in order.
        if let Some(last) = lock(&queue.events).last()
            && last.status()? > CL_COMPLETE
        {
            return Ok(false);
        }
        // To ask how far a command is does not make visible what it did; to wait for it does.
        queue.finish()?;
        Ok(true)
    }
}

impl Commands {
    /// Remembers what was queued.
    fn queued(&self, call: &'static str, event: Result<cl_event, cl_int>) -> Result<(), Error> {
        let event = Owned(event.map_err(failed(call))?, event::release_event);
        lock(&self.events).push(Command { call, event });
        // Without this a driver may leave it lying until somebody waits. Should it fail, the command is queued all
        // the same, so this is no error of the call: who waits is told.
        let _ = command_queue::flush(self.queue.0);
        Ok(())
    }

    /// Waits, then looks what became of each command: the driver's own wait does not tell.
    fn finish(&self) -> Result<(), Error> {
        let commands = std::mem::take(&mut *lock(&self.events));
        command_queue::finish(self.queue.0).map_err(failed("clFinish"))?;
        for command in commands {
            let status = command.status()?;
            if status < CL_COMPLETE {
                return Err(failed(command.call)(status));
            }
        }
        Ok(())
    }
}

impl Command {
    /// [`CL_COMPLETE`] when it is done, less when it failed, more until then.
    fn status(&self) -> Result<cl_int, Error> {
        let status = event::get_event_info(self.event.0, CL_EVENT_COMMAND_EXECUTION_STATUS);
        Ok(status.map_err(failed("clGetEventInfo"))?.into())
    }
}

/// A queue that works in order.
fn command_queue(context: &Owned, device: cl_device_id) -> Result<Owned, Error> {
    // SAFETY: the device is that of the context.
    let queue = unsafe { command_queue::create_command_queue(context.0, device, 0) };
    Ok(Owned(queue.map_err(failed("clCreateCommandQueue"))?, command_queue::release_command_queue))
}

/// Size and place of a kernel's argument.
fn argument<T>(value: &T) -> (usize, *const c_void) {
    (size_of::<T>(), ptr::from_ref(value).cast())
}

/// A handle of `object`, until it is taken back.
fn give<T>(object: T) -> Handle {
    Box::into_raw(Box::new(object)) as Handle
}

/// # Safety
/// [`give`] made the handle of a `T`, which nobody took back.
unsafe fn lend<'a, T>(handle: Handle) -> &'a T {
    // SAFETY: so it points to a `T` that lives; nobody has it alone.
    unsafe { &*(handle as *const T) }
}

/// # Safety
/// [`give`] made the handle of a `T`, which nobody took back, and nobody uses.
unsafe fn take<T>(handle: Handle) -> T {
    // SAFETY: so it points to a box that is nobody's.
    *unsafe { Box::from_raw(handle as *mut T) }
}

/// What is behind a lock. Whoever panicked with it left it whole: nothing is changed in two steps.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn device_text(device: cl_device_id, what: cl_device_info) -> Result<String, Error> {
    let bytes = device::get_device_data(device, what).map_err(failed("clGetDeviceInfo"))?;
    Ok(text(&bytes))
}

/// A number of four or eight bytes.
fn device_number(device: cl_device_id, what: cl_device_info) -> Result<u64, Error> {
    let bytes = device::get_device_data(device, what).map_err(failed("clGetDeviceInfo"))?;
    if let Ok(bytes) = bytes.as_slice().try_into() {
        Ok(u32::from_ne_bytes(bytes).into())
    } else if let Ok(bytes) = bytes.as_slice().try_into() {
        Ok(u64::from_ne_bytes(bytes))
    } else {
        Err(Error::Failed { call: "clGetDeviceInfo", why: format!("a number of {} bytes", bytes.len()) })
    }
}

fn platform_text(platform: cl_platform_id, what: cl_platform_info) -> Result<String, Error> {
    let bytes = platform::get_platform_data(platform, what).map_err(failed("clGetPlatformInfo"))?;
    Ok(text(&bytes))
}

/// Text that a driver gave: up to its zero, without the blanks that some have around it.
fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).trim().to_owned()
}

/// An error code with its name.
fn named(code: cl_int) -> String {
    format!("{} ({code})", error_text(code))
}

/// Queues that all of a buffer, of so many bytes, becomes zeros.
///
/// # Safety
/// It has so many, and stays until that is done.
unsafe fn fill(queue: &Owned, buffer: Handle, bytes: usize) -> Result<cl_event, cl_int> {
    let zero = 0u8;
    let pattern = ptr::from_ref(&zero).cast();
    // SAFETY: the driver copies the pattern, of one byte, before it returns; the rest is as the caller promises.
    unsafe {
        command_queue::enqueue_fill_buffer(queue.0, buffer as cl_mem, pattern, 1, 0, bytes, 0, ptr::null())
    }
}

/// What failed, by the code that the call gave.
fn failed(call: &'static str) -> impl Fn(cl_int) -> Error {
    move |code| Error::Failed { call, why: named(code) }
}

/// As [`failed`], for calls that need memory.
fn no_memory(call: &'static str, bytes: usize) -> impl Fn(cl_int) -> Error {
    move |code| match code {
        CL_MEM_OBJECT_ALLOCATION_FAILURE
        | CL_OUT_OF_RESOURCES
        | CL_OUT_OF_HOST_MEMORY
        | CL_INVALID_BUFFER_SIZE => Error::OutOfMemory { bytes },
        code => failed(call)(code),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Entry, Parameter};

    const PROGRAM: &str = "KERNEL void twice(GLOBAL u32 *RESTRICT x) { x[group_index()] *= 2; }";

    fn program(local: u32) -> Program {
        Program {
            name: "twice",
            source: PROGRAM.into(),
            defines: Vec::new(),
            group: 1,
            groups_per_unit: 1,
            stays: false,
            local,
            entries: vec![Entry { name: "twice", parameters: &[Parameter::Memory] }],
        }
    }

    fn opened() -> Option<Arc<dyn Backend>> {
        match open(0) {
            Ok(backend) => Some(backend),
            Err(error @ Error::Unavailable { .. }) => {
                eprintln!("skipped: {error}");
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn texts_of_drivers() {
        assert_eq!(text(b"  Some GPU \0rest"), "Some GPU");
        assert_eq!(text(b"x"), "x");
        assert_eq!(text(b""), "");
    }

    #[test]
    fn codes_have_names() {
        assert_eq!(named(-11), "CL_BUILD_PROGRAM_FAILURE (-11)");
        let error = failed("clFinish")(-5);
        assert_eq!(error.to_string(), "clFinish: CL_OUT_OF_RESOURCES (-5)");
        assert_eq!(no_memory("clCreateBuffer", 7)(-61), Error::OutOfMemory { bytes: 7 });
        assert!(matches!(no_memory("clCreateBuffer", 7)(-34), Error::Failed { .. }));
    }

    /// A driver that gives no binaries is given the text each time.
    #[test]
    fn text_loads_as_binaries_do() {
        let Some(backend) = opened() else { return };
        let program = program(0);
        let compiled = backend.compile(&program, &program.text(1)).unwrap();
        let text = [&[TEXT], program.text(1).as_bytes()].concat();
        for binary in [compiled, text] {
            let loaded = backend.load(&program, &binary).unwrap();
            let (queue, memory) = (backend.queue().unwrap(), backend.allocate(8).unwrap());
            let mut numbers = [3u32, 4];
            // SAFETY: handles of this back end, ranges inside the memory, and the kernel's own arguments; each is
            // given back once, after the queue is finished.
            unsafe {
                let kernel = backend.kernel(loaded, "twice").unwrap();
                backend.write(queue, memory, 0, numbers.as_ptr().cast(), 8).unwrap();
                backend.launch(queue, kernel, 2, 1, &[Value::Memory(memory)]).unwrap();
                backend.read(queue, memory, 0, numbers.as_mut_ptr().cast(), 8).unwrap();
                backend.finish(queue).unwrap();
                assert!(backend.kernel(loaded, "thrice").is_err());
                assert!(backend.kernel(loaded, "tw\0ice").is_err());
                backend.unload(loaded, &[kernel]);
                backend.close(queue);
                backend.free(memory);
            }
            assert_eq!(numbers, [6, 8]);
        }
    }

    #[test]
    fn what_is_no_program_does_not_load() {
        let Some(backend) = opened() else { return };
        for binary in [&b""[..], b"X", b"B", b"Bnonsense", b"Tnonsense", b"T\xff"] {
            let error = backend.load(&program(0), binary).expect_err("loaded nonsense");
            assert!(!error.to_string().is_empty());
        }
    }

    #[test]
    fn shared_memory_begins_with_a_page() {
        let Some(backend) = opened() else { return };
        for bytes in [1, PAGE, PAGE + 1, 1 << 20] {
            let shared = backend.share(bytes).unwrap();
            assert!(shared.host.addr().get().is_multiple_of(PAGE));
            // SAFETY: so much memory is there, and is given back once.
            unsafe {
                let all = std::slice::from_raw_parts(shared.host.as_ptr(), bytes);
                assert!(all.iter().all(|&byte| byte == 0));
                backend.unshare(shared, bytes);
            }
        }
    }

    #[test]
    fn a_group_has_so_much_memory() {
        let Some(backend) = opened() else { return };
        let there = backend.description().local_memory;
        assert_eq!(backend.compile(&program(there), &program(there).text(1)).map(|_| ()), Ok(()));
        if let Some(more) = there.checked_add(1) {
            let refused = program(more);
            let text = refused.text(1);
            assert!(matches!(backend.compile(&refused, &text), Err(Error::Misuse(_))));
            assert!(matches!(backend.load(&refused, b"T"), Err(Error::Misuse(_))));
        }
    }
}
