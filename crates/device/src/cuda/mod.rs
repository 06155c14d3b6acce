//! GPUs by CUDA: its driver, and NVRTC as the compiler. Either library is looked for when it is first needed.
//!
//! All devices are used through their primary contexts, which are bound to the calling thread at every call: callers may come
//! from any thread, and a bind costs next to nothing where nothing changes.

mod nvrtc;

use std::ffi::{CStr, CString, c_int, c_void};
use std::ptr::{self, NonNull};
use std::sync::{Arc, OnceLock};

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;

use crate::backend::{Backend, Handle, SharedMemory, Value};
use crate::{Description, Error, Id, Program};

/// The oldest CUDA whose driver is used: older ones may lack functions, at which the bindings would panic.
const OLDEST: c_int = 12_080;

/// Dynamic shared memory that a group can have without being asked for: 48 KB.
const UNASKED: u32 = 48 << 10;
/// Bytes of a group's part that the driver takes (compute capability 8.0 and on).
const RESERVED: u32 = 1 << 10;

/// How many GPUs there are.
pub(crate) fn count() -> Result<usize, Error> {
    match driver() {
        Ok(driver) => Ok(driver.count),
        Err(why) => Err(Error::Unavailable { device: "cuda".into(), why: why.into() }),
    }
}

/// Opens a GPU by the driver's number for it.
pub(crate) fn open(number: usize) -> Result<Arc<dyn Backend>, Error> {
    let unavailable = |why| Error::Unavailable { device: Id::Cuda(number).to_string(), why };
    let driver = driver().map_err(|why| unavailable(why.into()))?;
    if number >= driver.count {
        return Err(unavailable(format!("there is no such GPU; GPUs of this machine: {}", driver.count)));
    }
    let cuda = Cuda::open(number, driver).map_err(|error| unavailable(words(error)))?;
    Ok(Arc::new(cuda))
}

/// A driver that works.
struct Driver {
    /// The newest CUDA that it can do, as 1000 × major + 10 × minor.
    version: c_int,
    count: usize,
}

/// The driver of this machine, or why there is none.
fn driver() -> Result<&'static Driver, &'static str> {
    static DRIVER: OnceLock<Result<Driver, String>> = OnceLock::new();
    DRIVER.get_or_init(start).as_ref().map_err(String::as_str)
}

fn start() -> Result<Driver, String> {
    // SAFETY: loading the driver's library runs its initialisers, which have no demands.
    if !unsafe { sys::is_culib_present() } {
        return Err("the library of NVIDIA's driver, libcuda.so.1, is not on this machine".into());
    }
    let mut version = 0;
    // SAFETY: the driver writes one number.
    unsafe { sys::cuDriverGetVersion(&raw mut version) }.result().map_err(words)?;
    if version < OLDEST {
        let (is, wanted) = (cuda_version(version), cuda_version(OLDEST));
        return Err(format!("the driver is of CUDA {is}; that of CUDA {wanted} or newer is needed"));
    }
    result::init().map_err(words)?;
    let count = result::device::get_count().map_err(words)?;
    match usize::try_from(count) {
        Ok(count) if count > 0 => Ok(Driver { version, count }),
        _ => Err("the driver sees no GPU".into()),
    }
}

/// `13.0` for 13000.
fn cuda_version(version: c_int) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

/// What the driver calls an error: name and description.
fn words(error: DriverError) -> String {
    let text = |text: Result<&CStr, DriverError>| text.ok().map(|text| text.to_string_lossy().into_owned());
    match (text(error.error_name()), text(error.error_string())) {
        (Some(name), Some(description)) => format!("{name}: {description}"),
        (Some(name), None) => name,
        _ => "an error that the driver has no name for".into(),
    }
}

fn failed(call: &'static str) -> impl FnOnce(DriverError) -> Error {
    move |error| Error::Failed { call, why: words(error) }
}

fn no_memory(call: &'static str, bytes: usize) -> impl FnOnce(DriverError) -> Error {
    move |error| match error.0 {
        sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => Error::OutOfMemory { bytes },
        _ => failed(call)(error),
    }
}

/// A GPU that was opened.
#[derive(Debug)]
struct Cuda {
    device: sys::CUdevice,
    /// The primary context, retained.
    context: sys::CUcontext,
    /// 10 × major + minor of the compute capability: 90 for `sm_90`.
    architecture: u32,
    /// Bytes of memory that all groups of a multiprocessor can have.
    per_unit: u32,
    description: Description,
}

// SAFETY: the driver may be called from any thread, and several may have the context bound at once.
unsafe impl Send for Cuda {}
// SAFETY: as above.
unsafe impl Sync for Cuda {}

/// What a program's handle points to.
struct Module {
    module: sys::CUmodule,
    /// Bytes of dynamic shared memory of each group.
    local: u32,
    /// How much of a multiprocessor's memory is for groups, in percent.
    part: u32,
}

/// What a kernel's handle points to.
struct Kernel {
    function: sys::CUfunction,
    /// Bytes of dynamic shared memory of each group.
    local: u32,
}

impl Cuda {
    fn open(number: usize, driver: &Driver) -> Result<Self, DriverError> {
        use sys::CUdevice_attribute as Attribute;
        // The driver's count, which is greater, is such a number too.
        let device = result::device::get(number as c_int)?;
        let attribute = |attribute| {
            // SAFETY: the device is one of the driver's.
            let value = unsafe { result::device::get_attribute(device, attribute)? };
            Ok(u32::try_from(value).unwrap_or(0))
        };
        let major = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        let mut interface = format!("CUDA {}", cuda_version(driver.version));
        // Where Linux tells it; CUDA itself does not.
        if let Ok(version) = std::fs::read_to_string("/sys/module/nvidia/version") {
            interface += &format!(", driver {}", version.trim());
        }
        let description = Description {
            id: Id::Cuda(number),
            name: result::device::get_name(device)?,
            driver: interface,
            // SAFETY: the device is one of the driver's.
            memory: unsafe { result::device::total_mem(device)? } as u64,
            units: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
            local_memory: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
            group: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?,
            lanes: 32,
            shares: attribute(Attribute::CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY)? != 0,
            atomics_64: true,
        };
        let per_unit = attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR)?;
        // Last, since what is retained must be released.
        // SAFETY: the device is one of the driver's.
        let context = unsafe { result::primary_ctx::retain(device)? };
        Ok(Self { device, context, architecture: 10 * major + minor, per_unit, description })
    }

    /// Makes the driver's calls of this thread go to this device.
    fn bind(&self) -> Result<(), DriverError> {
        // SAFETY: the context is retained as long as `self` lives.
        unsafe { result::ctx::set_current(self.context) }
    }
}

impl Drop for Cuda {
    fn drop(&mut self) {
        // SAFETY: it was retained once, and all that was made in it holds the back end, so is gone.
        let _ = unsafe { result::primary_ctx::release(self.device) };
    }
}

// What cannot be given back is lost; those who drop it have nobody to tell. A device that failed refuses it all, and has told
// so wherever somebody waited for it.
impl Backend for Cuda {
    fn description(&self) -> &Description {
        &self.description
    }

    fn fingerprint(&self) -> String {
        let compiler = nvrtc::version().map_or("none".into(), |(major, minor)| format!("{major}.{minor}"));
        let options = nvrtc::OPTIONS.join(" ");
        format!("sm_{}; NVRTC {compiler} {options}; {}", self.architecture, self.description.driver)
    }

    fn compile(&self, program: &Program, text: &str) -> Result<Vec<u8>, Error> {
        nvrtc::compile(program.name, text, self.architecture)
    }

    fn load(&self, program: &Program, binary: &[u8]) -> Result<Handle, Error> {
        let (local, most) = (program.local, self.description.local_memory);
        if local > most {
            let (name, id) = (program.name, self.description.id);
            let why = format!("{name} takes {local} bytes of local memory for a group; {id} has {most}");
            return Err(Error::Misuse(why));
        }
        // The driver is not told the length: it follows headers in a CUBIN, and reads PTX up to a zero.
        if !binary.starts_with(b"\x7fELF") && binary.last() != Some(&0) {
            return Err(Error::Failed { call: "load", why: "neither a CUBIN nor PTX".into() });
        }
        self.bind().map_err(failed("load"))?;
        // SAFETY: it is one of the two; it is what NVRTC gave, or else the hash before it in the cache would not fit.
        let module = unsafe { result::module::load_data(binary.as_ptr().cast()) }.map_err(failed("load"))?;
        let of_all = program.groups_per_unit * (local + RESERVED) * 100;
        let part = if program.stays { 100 } else { of_all.div_ceil(self.per_unit.max(1)).min(100) };
        Ok(Box::into_raw(Box::new(Module { module, local, part })) as Handle)
    }

    unsafe fn kernel(&self, program: Handle, name: &str) -> Result<Handle, Error> {
        // SAFETY: the handle is of `load` and was not unloaded, as the caller promises.
        let &Module { module, local, part: percent } = unsafe { &*(program as *const Module) };
        let c_name = CString::new(name)
            .map_err(|_| Error::Misuse(format!("a kernel is called {name:?}, which has a zero in it")))?;
        let get = || {
            self.bind()?;
            // SAFETY: the module is loaded, see above.
            let function = unsafe { result::module::get_function(module, c_name)? };
            if local > UNASKED {
                let most = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
                // SAFETY: the function is the module's. `load` saw to it that the number is not above an `i32`.
                unsafe { result::function::set_function_attribute(function, most, local as i32)? };
            }
            if local > 0 {
                // A multiprocessor divides its memory between cache and groups by what runs there first, and changes that only
                // when nothing does: kernels that stay, one after the other, would not all find room.
                let part = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT;
                // SAFETY: the function is the module's; the value is a percentage.
                unsafe { result::function::set_function_attribute(function, part, percent as i32)? };
            }
            Ok(function)
        };
        let function = get().map_err(failed("kernel"))?;
        Ok(Box::into_raw(Box::new(Kernel { function, local })) as Handle)
    }

    unsafe fn groups_per_unit(&self, kernel: Handle, group: u32) -> Result<Option<u32>, Error> {
        // SAFETY: the handle is of `kernel` and was not unloaded, as the caller promises.
        let &Kernel { function, local } = unsafe { &*(kernel as *const Kernel) };
        // SAFETY: the function is loaded, see above.
        let ask = |()| unsafe {
            result::occupancy::max_active_block_per_multiprocessor(function, group as i32, local as usize)
        };
        let groups = self.bind().and_then(ask).map_err(failed("occupancy"))?;
        Ok(u32::try_from(groups).ok())
    }

    unsafe fn unload(&self, program: Handle, kernels: &[Handle]) {
        for &kernel in kernels {
            // SAFETY: the handle is a box of `kernel`, given back once, as the caller promises.
            drop(unsafe { Box::from_raw(kernel as *mut Kernel) });
        }
        // SAFETY: the handle is a box of `load`, given back once, as the caller promises.
        let program = unsafe { Box::from_raw(program as *mut Module) };
        // SAFETY: it was loaded and no queue runs its kernels, as the caller promises.
        let _ = self.bind().and_then(|()| unsafe { result::module::unload(program.module) });
    }

    fn allocate(&self, bytes: usize) -> Result<Handle, Error> {
        // SAFETY: nothing is asked of memory before it is written.
        let memory = self.bind().and_then(|()| unsafe { result::malloc_sync(bytes) });
        memory.map_err(no_memory("allocate", bytes))
    }

    fn allocate_zeros(&self, bytes: usize) -> Result<Handle, Error> {
        let memory = self.allocate(bytes)?;
        // SAFETY: it has so many bytes, and nobody else has it yet.
        let cleared = self.bind().and_then(|()| unsafe { result::memset_d8_sync(memory, 0, bytes) });
        // Queues do not wait for what this was queued in, whose call may return before it is done.
        // SAFETY: no queue is given up for it.
        let cleared = cleared.and_then(|()| unsafe { result::stream::synchronize(ptr::null_mut()) });
        if cleared.is_err() {
            // SAFETY: no queue uses it.
            unsafe { self.free(memory) };
        }
        cleared.map(|()| memory).map_err(failed("clear"))
    }

    unsafe fn free(&self, memory: Handle) {
        // SAFETY: it was allocated, is freed once, and no queue uses it, as the caller promises.
        let _ = self.bind().and_then(|()| unsafe { result::free_sync(memory) });
    }

    fn share(&self, bytes: usize) -> Result<SharedMemory, Error> {
        let shares = self.description.shares;
        let flags = sys::CU_MEMHOSTALLOC_PORTABLE | if shares { sys::CU_MEMHOSTALLOC_DEVICEMAP } else { 0 };
        // SAFETY: it is written below before anybody reads it.
        let memory = self.bind().and_then(|()| unsafe { result::malloc_host(bytes, flags) });
        let memory = memory.map_err(no_memory("share", bytes))?;
        let Some(host) = NonNull::new(memory.cast::<u8>()) else {
            return Err(Error::OutOfMemory { bytes });
        };
        // SAFETY: so many bytes were allocated.
        unsafe { host.write_bytes(0, bytes) };
        // Where the device does not share, no kernel is given the handle.
        let mut handle = 0;
        if shares {
            // SAFETY: the memory was allocated to be mapped; the driver writes one address.
            let got = unsafe { sys::cuMemHostGetDevicePointer_v2(&raw mut handle, memory, 0) }.result();
            if let Err(error) = got {
                // SAFETY: it was allocated, and nobody has it.
                let _ = unsafe { result::free_host(memory) };
                return Err(failed("share")(error));
            }
        }
        Ok(SharedMemory { handle, host })
    }

    unsafe fn unshare(&self, memory: SharedMemory, _bytes: usize) {
        // SAFETY: it was shared, is given back once, and no queue uses it, as the caller promises.
        let _ = self.bind().and_then(|()| unsafe { result::free_host(memory.host.as_ptr().cast()) });
    }

    fn queue(&self) -> Result<Handle, Error> {
        use result::stream::{StreamKind, create};
        let stream = self.bind().and_then(|()| create(StreamKind::NonBlocking)).map_err(failed("queue"))?;
        Ok(stream as Handle)
    }

    unsafe fn close(&self, queue: Handle) {
        // SAFETY: the queue is open and closed once, as the caller promises.
        let _ = self.bind().and_then(|()| unsafe { result::stream::destroy(queue as sys::CUstream) });
    }

    unsafe fn write(
        &self,
        queue: Handle,
        to: Handle,
        offset: usize,
        from: *const u8,
        bytes: usize,
    ) -> Result<(), Error> {
        let (to, from, stream) = (to + offset as u64, from.cast::<c_void>(), queue as sys::CUstream);
        let copy = || {
            self.bind()?;
            // SAFETY: both ranges are memory, and stay so until the queue is finished, as the caller promises.
            unsafe { sys::cuMemcpyHtoDAsync_v2(to, from, bytes, stream) }.result()
        };
        copy().map_err(failed("copy"))
    }

    unsafe fn read(
        &self,
        queue: Handle,
        from: Handle,
        offset: usize,
        to: *mut u8,
        bytes: usize,
    ) -> Result<(), Error> {
        let (from, to, stream) = (from + offset as u64, to.cast::<c_void>(), queue as sys::CUstream);
        let copy = || {
            self.bind()?;
            // SAFETY: both ranges are memory, and stay so until the queue is finished, as the caller promises.
            unsafe { sys::cuMemcpyDtoHAsync_v2(to, from, bytes, stream) }.result()
        };
        copy().map_err(failed("copy"))
    }

    unsafe fn copy(&self, queue: Handle, from: Handle, to: Handle, bytes: usize) -> Result<(), Error> {
        let copy = || {
            self.bind()?;
            // SAFETY: both are memory of so many bytes, and stay so until the queue is finished, as the caller promises.
            unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, bytes, queue as sys::CUstream) }.result()
        };
        copy().map_err(failed("copy"))
    }

    unsafe fn clear(&self, queue: Handle, memory: Handle, bytes: usize) -> Result<(), Error> {
        let clear = || {
            self.bind()?;
            // SAFETY: it has so many bytes, and stays until the queue is finished, as the caller promises.
            unsafe { result::memset_d8_async(memory, 0, bytes, queue as sys::CUstream) }
        };
        clear().map_err(failed("clear"))
    }

    unsafe fn launch(
        &self,
        queue: Handle,
        kernel: Handle,
        groups: u32,
        group: u32,
        values: &[Value],
    ) -> Result<(), Error> {
        // SAFETY: the handle is of `kernel`, and its program is loaded, as the caller promises.
        let &Kernel { function, local } = unsafe { &*(kernel as *const Kernel) };
        let address = |value: &Value| match value {
            Value::Memory(value) | Value::Shared(value) | Value::U64(value) => {
                ptr::from_ref(value).cast_mut().cast::<c_void>()
            }
            Value::U32(value) => ptr::from_ref(value).cast_mut().cast(),
        };
        let mut values: Vec<*mut c_void> = values.iter().map(address).collect();
        let (grid, block, stream) = ((groups, 1, 1), (group, 1, 1), queue as sys::CUstream);
        let mut launch = || {
            self.bind()?;
            // SAFETY: the values are those that the kernel's entry declares, as the caller promises. The driver copies them
            // before it returns, and does not write to them.
            unsafe { result::launch_kernel(function, grid, block, local, stream, &mut values) }
        };
        launch().map_err(failed("launch"))
    }

    unsafe fn wait_for(&self, queue: Handle, other: Handle) -> Result<(), Error> {
        use result::event;
        use sys::{CUevent_flags, CUevent_wait_flags};
        let (stream, other) = (queue as sys::CUstream, other as sys::CUstream);
        let order = || {
            self.bind()?;
            let event = event::create(CUevent_flags::CU_EVENT_DISABLE_TIMING)?;
            // SAFETY: both queues are open, as the caller promises, and the event was just made.
            let ordered = unsafe { event::record(event, other) }.and_then(|()| unsafe {
                result::stream::wait_event(stream, event, CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT)
            });
            // SAFETY: nobody else has it; the driver keeps it for as long as it is waited for.
            let _ = unsafe { event::destroy(event) };
            ordered
        };
        order().map_err(failed("order queues"))
    }

    unsafe fn finish(&self, queue: Handle) -> Result<(), Error> {
        // SAFETY: the queue is open, as the caller promises.
        let finished =
            self.bind().and_then(|()| unsafe { result::stream::synchronize(queue as sys::CUstream) });
        finished.map_err(failed("finish"))
    }

    unsafe fn is_finished(&self, queue: Handle) -> Result<bool, Error> {
        self.bind().map_err(failed("query"))?;
        // SAFETY: the queue is open, as the caller promises.
        match unsafe { sys::cuStreamQuery(queue as sys::CUstream) } {
            sys::CUresult::CUDA_SUCCESS => Ok(true),
            sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            error => Err(failed("query")(DriverError(error))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Argument, Cache, Device, Entry, Parameter};

    #[test]
    fn without_a_driver_there_is_no_device() {
        // SAFETY: as in `start`.
        if unsafe { sys::is_culib_present() } {
            return;
        }
        for (error, name) in [(count().err(), "cuda"), (open(0).err(), "cuda:0"), (open(7).err(), "cuda:7")] {
            match error {
                Some(Error::Unavailable { device, why }) => {
                    assert_eq!(device, name);
                    assert!(why.contains("libcuda"), "{why}");
                }
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn versions_are_written_as_nvidia_does() {
        assert_eq!(cuda_version(12_080), "12.8");
        assert_eq!(cuda_version(13_000), "13.0");
    }

    /// Does nothing where there is no GPU or no NVRTC.
    #[test]
    fn a_gpu_does_what_it_is_told() {
        let Ok(count) = count() else { return };
        assert!(matches!(open(count).err(), Some(Error::Unavailable { .. })));
        if nvrtc::version().is_none() {
            return;
        }
        let device = Device::open(Id::Cuda(0), Cache::none()).unwrap();
        let description = device.description().clone();
        println!("{description:?}");
        // More than can be had unasked.
        let words = 16 << 10;
        let mut program = Program {
            name: "turn",
            source: format!(
                "typedef struct {{ u32 words[{words}]; }} Local;
                KERNEL void turn(GLOBAL const u32 *in, GLOBAL u32 *out, u32 add, u64 scale) {{
                    LOCAL_MEMORY(Local, local);
                    GLOBAL const u32 *from = in + group_index() * {words};
                    GLOBAL u32 *to = out + group_index() * {words};
                    for (u32 i = local_index(); i < {words}; i += GROUP) local->words[i] = from[i];
                    barrier_group();
                    for (u32 i = local_index(); i < {words}; i += GROUP)
                        to[i] = (u32)((local->words[{words} - 1 - i] + add) * scale >> 8);
                }}"
            ),
            defines: Vec::new(),
            group: 256,
            groups_per_unit: 1,
            stays: false,
            local: 4 * words,
            entries: vec![Entry {
                name: "turn",
                parameters: &[Parameter::Memory, Parameter::Memory, Parameter::U32, Parameter::U64],
            }],
        };
        let kernel = device.build(&program).unwrap().remove(0);
        let groups = 300;
        let numbers: Vec<u32> = (0..groups * words).map(|i| i.wrapping_mul(0x9e37_79b9)).collect();
        let (add, scale) = (7_u32, 0x1_2345_6789_u64);
        let expected: Vec<u32> = numbers
            .chunks_exact(words as usize)
            .flat_map(|chunk| chunk.iter().rev())
            .map(|&number| (u64::from(number.wrapping_add(add)).wrapping_mul(scale) >> 8) as u32)
            .collect();

        let mut queue = device.queue().unwrap();
        let bytes: &[u8] = bytemuck::cast_slice(&numbers);
        let from = device.memory_of(bytes).unwrap();
        let to = device.memory(bytes.len()).unwrap();
        let launch = |queue: &mut crate::Queue, from: Argument<'_>, to: Argument<'_>| {
            let arguments = [from, to, add.into(), scale.into()];
            // SAFETY: the memory has a part for each group.
            unsafe { queue.launch_unchecked(&kernel, groups, &arguments).unwrap() };
        };
        launch(&mut queue, (&from).into(), (&to).into());
        while !queue.is_finished().unwrap() {}
        let mut got = vec![0_u32; numbers.len()];
        queue.read(&to, 0, bytemuck::cast_slice_mut(&mut got)).unwrap();
        assert!(got == expected);

        // A part, through memory of the host.
        let mut shared = device.share(bytes.len()).unwrap();
        let half = bytes.len() / 2;
        shared.write(half, &bytes[..half]);
        queue.copy_in(&mut shared, half..2 * half, &from, half).unwrap();
        queue.copy_out(&from, 0..bytes.len(), &mut shared, 0).unwrap();
        queue.finish().unwrap();
        let mut part = vec![0; half];
        shared.read(0, &mut part);
        assert!(part == bytes[..half]);
        shared.read(half, &mut part);
        assert!(part == bytes[..half]);

        // Where it lies, from another thread.
        if description.shares {
            shared.write(0, bytes);
            let mut out = device.share(bytes.len()).unwrap();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let mut queue = device.queue().unwrap();
                    launch(&mut queue, (&shared).into(), (&out).into());
                    queue.finish().unwrap();
                });
            });
            got.fill(0);
            out.read(0, bytemuck::cast_slice_mut(&mut got));
            assert!(got == expected);
        }

        // No groups, no bytes, too many bytes.
        let arguments = [(&from).into(), (&to).into(), Argument::U32(0), Argument::U64(0)];
        // SAFETY: no group does anything.
        unsafe { queue.launch_unchecked(&kernel, 0, &arguments).unwrap() };
        queue.copy_in(&mut shared, 0..0, &from, 0).unwrap();
        queue.finish().unwrap();
        let too_many = description.memory as usize + 1;
        assert_eq!(device.memory(too_many).err(), Some(Error::OutOfMemory { bytes: too_many }));
        program.local = description.local_memory + 1;
        assert!(matches!(device.build(&program).err(), Some(Error::Misuse(_))));
        program.local = 0;
        program.source.push('}');
        assert!(matches!(device.build(&program).err(), Some(Error::Build { .. })));
    }
}
