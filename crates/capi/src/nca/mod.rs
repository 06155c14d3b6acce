//! NFV compute acceleration (NCA), by draft-perumal-nfvrg-nfv-compute-acceleration-00: the functions that the draft names, with its
//! parameters, and what it leaves undefined.
//!
//! - `function`: network functions, those that are built in and the program's kernels.
//! - `stream`: traffic streams, their threads, and the order of results.
//! - `buffer`: buffers of packets.
//! - `kernel`: kernels of the program.
//! - `lane`: functions on devices, and their queues.

mod buffer;
mod function;
mod kernel;
mod lane;
mod stream;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ffi::{c_char, c_int, c_void};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use std::{ptr, slice};

use packetloom_device::Id;
use packetloom_packet::LinkType;

use self::buffer::Phase;
use self::function::{Function, Params};
use self::kernel::{Arg, Kernel};
use self::lane::LeftOut;
use self::stream::{Devices, Settings, Stream};
use crate::status::*;

/// Buffers of a stream, where `num_buffers` is 0.
pub const NCA_NUM_BUFFERS: c_int = 6;

/// Packets of a buffer, where `buffer_size` is 0.
pub const NCA_BUFFER_SIZE: c_int = 16384;

/// Devices of a stream, where `num_devices` is 0; fewer where there are not so many.
pub const NCA_NUM_DEVICES: c_int = 2;

/// Queues of a device at first: while packets of one are copied, kernels of another one run. See `nca_set_queues`.
pub const NCA_QUEUES: c_int = 3;

/// The most queues of a device.
pub const NCA_MAX_QUEUES: c_int = 64;

/// The most buffers of a stream, packets of a buffer, and functions of a service chain.
pub const NCA_MAX_BUFFERS: c_int = 1024;
/// See `NCA_MAX_BUFFERS`.
pub const NCA_MAX_BUFFER_SIZE: c_int = 1048576;
/// See `NCA_MAX_BUFFERS`.
pub const NCA_MAX_FUNCTIONS: c_int = 32;

/// The most bytes of results for a packet.
pub const NCA_MAX_RESULT_SIZE: c_int = 4096;

/// The most devices of a stream; with `NCA_CPU`, threads.
const MAX_DEVICES: c_int = 256;

/// Where a stream's functions run.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(non_camel_case_types)]
pub enum nca_dev_type {
    /// Cores of this machine: `num_devices` is how many threads. Kernels are compiled by the C compiler of this machine with its
    /// sanitisers, and run in a process of their own: slowly, to find their errors.
    NCA_CPU = 0,
    /// OpenCL devices, of all platforms in their order. PoCL makes one of this machine's cores.
    NCA_OPENCL = 1,
    /// NVIDIA GPUs, in the order of the driver.
    NCA_CUDA = 2,
}

/// What a notify callback is told.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(non_camel_case_types)]
pub enum nca_event {
    /// The results of a buffer can be read.
    NCA_RESULTS = 1,
    /// A buffer could not be processed; `nca_read_results` says why, and makes it empty.
    NCA_FAILED = 2,
}

/// What `nca_leave_out` leaves out; both together are `NCA_COPIES | NCA_KERNELS`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(non_camel_case_types)]
pub enum nca_part {
    /// Nothing, as at first.
    NCA_NOTHING = 0,
    /// Copies of packets to the device and of results from it.
    NCA_COPIES = 1,
    /// Kernels, of the program and of functions that are built in.
    NCA_KERNELS = 2,
}

/// The devices of a stream.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct nca_dev {
    /// One of `nca_dev_type`. Kernels, "strings", "aho-corasick" and "acl" run on the devices; "meter" and "chain" run on cores, in the threads that
    /// feed the devices. So do the others where a device cannot have them: docs/c.md says when.
    pub dev_type: c_int,
    /// How many, from the first on; 0 for `NCA_NUM_DEVICES`.
    pub num_devices: c_int,
}

/// What an init callback fills in. All is 0 or NULL before. What it points to is copied when the callback has returned, and must stay
/// until `nca_add_network_function` returns.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct nca_function_params {
    /// Of functions that are built in, what a chain file says of them, as TOML:
    ///
    /// "strings" and "aho-corasick": patterns = "FILE", format = "auto|lines|hex|rules", ignore_case, by_fast_pattern; skip = BYTES at the
    /// beginning of each packet that are not searched. All of a packet is searched from there on, headers too.
    ///
    /// "acl", "meter": the keys of these functions (docs/rules.md, docs/flow-records.md); tables such as [flows.NAME] may follow.
    ///
    /// "chain": a whole chain file, as for `pl_chain_parse`.
    pub config: *const c_char,
    /// The folder from which paths count; NULL for the working directory.
    pub folder: *const c_char,
    /// Of "strings" and "aho-corasick": patterns in memory, `num_patterns` of them, each of 1 to 255 bytes of any values. They are numbered
    /// from 0; those of a file come before them.
    pub patterns: *const *const u8,
    /// The lengths of the patterns, in bytes.
    pub pattern_len: *const c_int,
    /// How many patterns.
    pub num_patterns: c_int,
    /// Of "acl", "meter" and "chain": what packets begin with; 0 is Ethernet, others are numbered as in capture files.
    pub link_type: u32,
    /// Of kernels: a table that is copied to the device once; see `nca_arg_table`.
    pub table: *const c_void,
    /// Bytes of the table.
    pub table_size: usize,
    /// Of kernels: items of a group, which the kernel sees as GROUP; 0 for 32.
    pub group: u32,
}

/// The packets of a buffer, as `set_kernel_arg` sees them.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct nca_packets {
    /// The stream, or -1 where no packets are there yet.
    pub traffic_stream_id: c_int,
    /// The buffer, or -1.
    pub buffer_id: c_int,
    /// How many packets.
    pub num_packets: u32,
    /// Where each begins in `bytes`, and at `offsets[num_packets]` where the last one ends; NULL where there are no packets.
    pub offsets: *const u32,
    /// The memory of the buffer, which is only to be read; or NULL.
    pub bytes: *const u8,
}

impl nca_packets {
    const NONE: Self = Self {
        traffic_stream_id: -1,
        buffer_id: -1,
        num_packets: 0,
        offsets: ptr::null(),
        bytes: ptr::null(),
    };
}

/// The memory of a buffer, for programs that fill it themselves. Packet i lies at `bytes + offsets[i]`, up to `bytes + offsets[i + 1]`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(non_camel_case_types)]
pub struct nca_memory {
    /// Where it begins.
    pub bytes: *mut u8,
    /// The offsets, at the beginning of the memory: `max_packets` + 1 of them. `offsets[0]` is there already, and must stay as it is.
    pub offsets: *mut u32,
    /// Bytes in all: no offset may be larger.
    pub size: u32,
    /// Packets that the buffer can have.
    pub max_packets: u32,
}

/// The arguments of a kernel, while `set_kernel_arg` names them.
#[derive(Debug)]
#[allow(non_camel_case_types)]
pub struct nca_kernel_args {
    _private: [u8; 0],
}

/// Fills in the parameters of a function; not 0 where that fails. Called by `nca_add_network_function`, in the same thread.
#[allow(non_camel_case_types)]
pub type nca_init =
    Option<unsafe extern "C" fn(network_func_id: c_int, params: *mut nca_function_params) -> c_int>;

/// Names the arguments of a kernel for a buffer, in the order of its parameters, by `nca_arg_packets` and the others; not 0 where that fails. Called
/// once by `nca_traffic_stream_init`, without packets, to know of which kinds they are, and then for each buffer, by a thread of the library. Several
/// buffers may be in progress at the same time.
#[allow(non_camel_case_types)]
pub type nca_set_kernel_arg = Option<
    unsafe extern "C" fn(
        network_func_id: c_int,
        args: *mut nca_kernel_args,
        pkt_buf: *const nca_packets,
    ) -> c_int,
>;

/// Tells of a buffer: `event` is one of `nca_event`. Called by one thread of the stream, for one buffer after the other in the order in which they
/// were ready. It may call all functions but `nca_wait`, `nca_traffic_stream_close` and `nca_cleanup`. What it returns is not looked at.
#[allow(non_camel_case_types)]
pub type nca_notify =
    Option<unsafe extern "C" fn(traffic_stream_id: c_int, buffer_id: c_int, event: c_int) -> c_int>;

/// All functions and streams that there are.
struct Registry {
    functions: BTreeMap<c_int, Arc<Function>>,
    streams: BTreeMap<c_int, Arc<Stream>>,
    /// The last stream's number.
    last: c_int,
}

static REGISTRY: Mutex<Registry> =
    Mutex::new(Registry { functions: BTreeMap::new(), streams: BTreeMap::new(), last: 0 });

fn with_functions<T>(does: impl FnOnce(&mut BTreeMap<c_int, Arc<Function>>) -> T) -> T {
    // What is done with the lock held leaves no half of a change.
    does(&mut REGISTRY.lock().unwrap_or_else(PoisonError::into_inner).functions)
}

fn with_streams<T>(does: impl FnOnce(&mut BTreeMap<c_int, Arc<Stream>>, &mut c_int) -> T) -> T {
    let mut registry = REGISTRY.lock().unwrap_or_else(PoisonError::into_inner);
    let Registry { streams, last, .. } = &mut *registry;
    does(streams, last)
}

fn stream(id: c_int) -> Outcome<Arc<Stream>> {
    let found = with_streams(|streams, _| streams.get(&id).cloned());
    found.ok_or_else(|| {
        Fault::new(PL_ERROR_NOT_FOUND, format!("no traffic stream {id}; expected one that is open"))
    })
}

/// A number that is to be between two others; 0 stands for the usual one, if there is such.
fn number(name: &str, given: c_int, usual: Option<c_int>, most: c_int) -> Outcome<usize> {
    match (given, usual) {
        (0, Some(usual)) => Ok(usual as usize),
        (1.., _) if given <= most => Ok(given as usize),
        _ => Err(Fault::argument(format!("{name} is {given}; expected 1 to {most}"))),
    }
}

/// Adds a network function under an id of the program's choice, from 0 on.
///
/// With `cl_file_name` NULL it is one that is built in, and `kernel_name` says which: "strings", "aho-corasick", "acl", "meter" or
/// "chain". Else `cl_file_name` is the program's file with kernels, in the dialect of docs/kernels.md, and `kernel_name` one of its entries.
/// The program vouches for it: with the arguments that it is given, the kernel must read and write inside their memory only, and come to its end.
///
/// `init` is called at once, and fills in what the function needs; NULL where it needs nothing. `set_kernel_arg` names the arguments of a
/// kernel; where it is NULL, these are: packets, results, the table if there is one, and the number of packets as u32.
///
/// `result_buffer_size` is how many bytes of results the function has for each packet. Those that are built in have one or two numbers of
/// 32 bits in the order of bytes of this machine, so 4 or 8:
///
/// "strings", "aho-corasick": the pattern that ends first in the packet (of several that end there the one with the lowest number), counted
/// from 1, or 0 where there is none; then the number of bytes of the packet up to its end. Both find the same: on cores the second one is an
/// automaton, on devices both are the same kernel.
///
/// "acl", "meter", "chain": 0 where the packet passes, else the number of the reason why it is dropped (`pl_drop_reason`); then its mark. The
/// packets of a buffer have the time at which it was ready.
///
/// Every function of a service chain sees every packet; what one has found does not keep packets from another one.
///
/// Any thread may call it. Returns `PL_OK`, `PL_ERROR_EXISTS`, `PL_ERROR_ARGUMENT`, `PL_ERROR_CALLBACK` where `init` failed,
/// `PL_ERROR_NOT_FOUND` where no such function is built in, or `PL_ERROR_CONFIG` where a file or a key is not usable.
///
/// # Safety
/// Names are NULL or texts that end with a NUL. Callbacks are NULL or functions of their types, which return and do not throw.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nca_add_network_function(
    network_func_id: c_int,
    init: nca_init,
    cl_file_name: *const c_char,
    kernel_name: *const c_char,
    set_kernel_arg: nca_set_kernel_arg,
    result_buffer_size: c_int,
) -> c_int {
    call(|| {
        let id = network_func_id;
        if id < 0 {
            return Err(Fault::argument(format!("network_func_id is {id}; expected 0 or more")));
        }
        let exists = || Fault::new(PL_ERROR_EXISTS, format!("there is a network function {id} already"));
        if with_functions(|functions| functions.contains_key(&id)) {
            return Err(exists());
        }
        let result_size = number("result_buffer_size", result_buffer_size, None, NCA_MAX_RESULT_SIZE)?;
        // SAFETY: as above.
        let name = unsafe { text("kernel_name", kernel_name) }?;
        let mut params = nca_function_params {
            config: ptr::null(),
            folder: ptr::null(),
            patterns: ptr::null(),
            pattern_len: ptr::null(),
            num_patterns: 0,
            link_type: 0,
            table: ptr::null(),
            table_size: 0,
            group: 0,
        };
        if let Some(init) = init {
            // SAFETY: the program passed a function of this type. No lock is held.
            let returned = callback(|| unsafe { init(id, &raw mut params) });
            if returned != 0 {
                let text = format!("init of function {id} returned {returned}; expected 0");
                return Err(Fault::new(PL_ERROR_CALLBACK, text));
            }
        }
        let function = if cl_file_name.is_null() {
            // SAFETY: the callback has set them, or they are NULL.
            Function::built_in(id, name, result_size, &unsafe { read(&params) }?)?
        } else {
            // SAFETY: as above.
            let file = unsafe { text("cl_file_name", cl_file_name) }?;
            let source = std::fs::read_to_string(file).map_err(|e| {
                let why = packetloom_io::plain(&e);
                Fault::new(PL_ERROR_CONFIG, format!("{file}: {why}; expected a file with kernels"))
            })?;
            // A name goes into what is compiled.
            let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
            if name.is_empty() || !name.chars().all(is_name) {
                return Err(Fault::argument(format!(
                    "kernel_name is {name:?}; expected the name of a kernel"
                )));
            }
            let group = match params.group {
                0 => 32,
                group @ 1..=1024 => group,
                group => return Err(Fault::argument(format!("group is {group}; expected 1 to 1024"))),
            };
            let table = match (params.table_size, params.table.is_null()) {
                (0, _) => Vec::new(),
                (_, true) => {
                    return Err(Fault::argument("table is NULL; expected as many bytes as table_size says"));
                }
                // SAFETY: the callback says that there are so many bytes.
                (size, false) => unsafe { slice::from_raw_parts(params.table.cast::<u8>(), size) }.to_vec(),
            };
            let name = name.to_owned();
            Function::kernel(Kernel { id, source, name, group, table, set_arg: set_kernel_arg, result_size })
        };
        with_functions(|functions| match functions.entry(id) {
            // Another thread, or the callback, was faster.
            Entry::Occupied(_) => Err(exists()),
            Entry::Vacant(entry) => {
                entry.insert(Arc::new(function));
                Ok(PL_OK as c_int)
            }
        })
    })
}

/// What an init callback has said.
///
/// # Safety
/// What it points to is as `nca_function_params` says.
unsafe fn read(params: &nca_function_params) -> Outcome<Params<'_>> {
    let text_or_none = |name: &str, given: *const c_char| match given.is_null() {
        true => Ok(""),
        // SAFETY: as above.
        false => unsafe { text(name, given) },
    };
    let count = usize::try_from(params.num_patterns).map_err(|_| {
        Fault::argument(format!("num_patterns is {}; expected 0 or more", params.num_patterns))
    })?;
    if count > 0 && (params.patterns.is_null() || params.pattern_len.is_null()) {
        return Err(Fault::argument("patterns or pattern_len is NULL; expected both"));
    }
    let patterns = (0..count).map(|index| {
        // SAFETY: there are so many, says the callback.
        let (bytes, len) = unsafe { (*params.patterns.add(index), *params.pattern_len.add(index)) };
        match usize::try_from(len) {
            Ok(len @ 1..=255) if !bytes.is_null() => {
                // SAFETY: it has so many bytes, says the callback.
                Ok(unsafe { slice::from_raw_parts(bytes, len) })
            }
            _ => {
                Err(Fault::argument(format!("pattern {index} is NULL or has {len} bytes; expected 1 to 255")))
            }
        }
    });
    Ok(Params {
        config: text_or_none("config", params.config)?,
        folder: Path::new(text_or_none("folder", params.folder)?),
        patterns: patterns.collect::<Outcome<_>>()?,
        link: if params.link_type == 0 { LinkType::ETHERNET } else { LinkType::of_number(params.link_type) },
    })
}

/// Forgets a network function. Streams that have it go on with it. Its id may be used again.
///
/// Any thread may call it. Returns `PL_OK` or `PL_ERROR_NOT_FOUND`.
#[unsafe(no_mangle)]
pub extern "C" fn nca_remove_network_function(network_func_id: c_int) -> c_int {
    call(|| {
        let removed = with_functions(|functions| functions.remove(&network_func_id));
        match removed {
            Some(_) => Ok(PL_OK as c_int),
            None => Err(no_function(network_func_id)),
        }
    })
}

fn no_function(id: c_int) -> Fault {
    Fault::new(PL_ERROR_NOT_FOUND, format!("no network function {id}; expected one that was added"))
}

/// Opens a traffic stream: a ring of buffers that the library owns, with threads that take them through a service chain.
///
/// `num_buffers` buffers of `buffer_size` packets, numbered from 0; 0 for `NCA_NUM_BUFFERS` and `NCA_BUFFER_SIZE`. A buffer has room for
/// 2,048 bytes a packet, which long packets may take from short ones. Memory is used as it is filled; with functions on a GPU all of it is pinned.
///
/// `service_func_chain` has `num_network_funcs` ids. `network_func_parallel_sets` has the number of each one's set: functions of one set
/// may run at the same time, sets run one after the other in ascending order, and those of set 0 at any time.
///
/// `notify` is called when a buffer has results, in the order in which buffers were ready; it may be NULL, with `nca_wait` in its place.
///
/// Any thread may call it, and any thread any function with the stream: what threads do with one buffer at the same time is done one after
/// the other.
///
/// Returns the stream's id, which is positive, or `PL_ERROR_ARGUMENT`, `PL_ERROR_NOT_FOUND` where a function is not there,
/// `PL_ERROR_DEVICE` with the compiler's words where a kernel cannot be built, `PL_ERROR_CALLBACK`, `PL_ERROR_MEMORY`, `PL_ERROR_IO`,
/// or `PL_ERROR_BUSY` where a function has output files that another stream writes. To be closed with `nca_traffic_stream_close`.
///
/// # Safety
/// Both lists have `num_network_funcs` numbers. `notify` is NULL or a function of its type, which returns and does not throw.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nca_traffic_stream_init(
    num_buffers: c_int,
    buffer_size: c_int,
    notify: nca_notify,
    num_network_funcs: c_int,
    service_func_chain: *const c_int,
    network_func_parallel_sets: *const c_int,
    nca_dev: nca_dev,
) -> c_int {
    call(|| {
        let buffers = number("num_buffers", num_buffers, Some(NCA_NUM_BUFFERS), NCA_MAX_BUFFERS)?;
        let buffer_size = number("buffer_size", buffer_size, Some(NCA_BUFFER_SIZE), NCA_MAX_BUFFER_SIZE)?;
        let count = number("num_network_funcs", num_network_funcs, None, NCA_MAX_FUNCTIONS)?;
        if service_func_chain.is_null() || network_func_parallel_sets.is_null() {
            return Err(Fault::argument(
                "service_func_chain or network_func_parallel_sets is NULL; expected both",
            ));
        }
        // SAFETY: there are so many, says the program.
        let (ids, sets) = unsafe {
            (
                slice::from_raw_parts(service_func_chain, count),
                slice::from_raw_parts(network_func_parallel_sets, count),
            )
        };
        let chain = ids.iter().zip(sets).map(|(&id, &set)| {
            let set = u32::try_from(set)
                .map_err(|_| Fault::argument(format!("set {set} of function {id}; expected 0 or more")))?;
            let function = with_functions(|functions| functions.get(&id).cloned());
            Ok((function.ok_or_else(|| no_function(id))?, set))
        });
        let chain = chain.collect::<Outcome<Vec<_>>>()?;
        let devices = devices(nca_dev)?;
        let id = with_streams(|_, last| -> Outcome<c_int> {
            *last = last
                .checked_add(1)
                .ok_or_else(|| Fault::new(PL_ERROR_FULL, "more streams than there are numbers"))?;
            Ok(*last)
        })?;
        let stream = Stream::new(Settings { id, buffers, buffer_size, notify, chain, devices })?;
        with_streams(|streams, _| streams.insert(id, Arc::new(stream)));
        Ok(id)
    })
}

/// The devices that a program means.
fn devices(dev: nca_dev) -> Outcome<Devices> {
    let wanted = number("num_devices", dev.num_devices, Some(NCA_NUM_DEVICES), MAX_DEVICES)?;
    let of_kind: fn(&Id) -> bool = match dev.dev_type {
        kind if kind == nca_dev_type::NCA_CPU as c_int => return Ok(Devices::Cores(wanted)),
        kind if kind == nca_dev_type::NCA_OPENCL as c_int => |id| matches!(id, Id::OpenCl(_)),
        kind if kind == nca_dev_type::NCA_CUDA as c_int => |id| matches!(id, Id::Cuda(_)),
        kind => {
            let text = format!("dev_type is {kind}; expected NCA_CPU, NCA_OPENCL or NCA_CUDA");
            return Err(Fault::argument(text));
        }
    };
    let (ids, missing) = packetloom_device::list();
    let ids: Vec<_> = ids.into_iter().filter(of_kind).collect();
    if ids.is_empty() || (dev.num_devices > 0 && ids.len() < wanted) {
        let why: Vec<_> = missing.iter().map(|error| format!("; {error}")).collect();
        let text = format!("{} such devices, expected {wanted}{}", ids.len(), why.concat());
        return Err(Fault::new(PL_ERROR_DEVICE, text));
    }
    Ok(Devices::On(ids.into_iter().take(wanted).collect()))
}

/// Says how many queues each device of a stream has, `NCA_QUEUES` at first: as many of its buffers are processed at the same time. With one queue
/// nothing is copied while a kernel runs. With `NCA_CPU` it is how many threads there are, in place of `num_devices`.
///
/// Any thread may call it. Returns `PL_OK`, `PL_ERROR_ARGUMENT`, `PL_ERROR_NOT_FOUND`, `PL_ERROR_BUSY` where a buffer is on its way that has no
/// results yet, or another thread calls it, too; or `PL_ERROR_MEMORY`: the stream then has the queues that it had.
#[unsafe(no_mangle)]
pub extern "C" fn nca_set_queues(traffic_stream_id: c_int, queues: c_int) -> c_int {
    call(|| {
        let stream = stream(traffic_stream_id)?;
        stream.set_queues(number("queues", queues, None, NCA_MAX_QUEUES)?)?;
        Ok(PL_OK as c_int)
    })
}

/// Leaves copies or kernels out of the processing of buffers, so that a program can measure how long the others take alone: `parts` is one of
/// `nca_part`, or several. Results have no meaning then. Packets are copied nevertheless where a queue has none yet that lie in the buffer as these
/// do: kernels never see offsets of other packets. Functions that run on cores are not left out.
///
/// Any thread may call it. Returns `PL_OK`, `PL_ERROR_ARGUMENT`, `PL_ERROR_NOT_FOUND`, or `PL_ERROR_BUSY` where a buffer is on its way that has no
/// results yet.
#[unsafe(no_mangle)]
pub extern "C" fn nca_leave_out(traffic_stream_id: c_int, parts: c_int) -> c_int {
    call(|| {
        let (copies, kernels) = (nca_part::NCA_COPIES as c_int, nca_part::NCA_KERNELS as c_int);
        if parts & !(copies | kernels) != 0 {
            let text = format!("parts is {parts}; expected NCA_COPIES, NCA_KERNELS, both or 0");
            return Err(Fault::argument(text));
        }
        let left_out = LeftOut { copies: parts & copies != 0, kernels: parts & kernels != 0 };
        stream(traffic_stream_id)?.leave_out(left_out)?;
        Ok(PL_OK as c_int)
    })
}

/// Copies packets into a buffer, behind those that it has: all of them, or none where there is no room.
///
/// `packet` are the packets' bytes, one packet after the other without gaps, and `packet_len` their lengths in bytes, `num_packets` of them.
///
/// Any thread may call it. Returns `PL_OK`, `PL_ERROR_FULL`, `PL_ERROR_ARGUMENT`, `PL_ERROR_NOT_FOUND`, or `PL_ERROR_BUSY` where the
/// buffer is being processed or its results are not read.
///
/// # Safety
/// `packet_len` has `num_packets` numbers, and at `packet` are as many bytes as they say together, which are no part of a buffer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nca_add_packets(
    traffic_stream_id: c_int,
    buffer_id: c_int,
    packet: *const u8,
    packet_len: *const c_int,
    num_packets: c_int,
) -> c_int {
    call(|| {
        let stream = stream(traffic_stream_id)?;
        let buffer = stream.buffer(buffer_id)?;
        let count = number("num_packets", num_packets, Some(0), NCA_MAX_BUFFER_SIZE)?;
        if count > 0 && (packet.is_null() || packet_len.is_null()) {
            return Err(Fault::argument("packet or packet_len is NULL; expected both"));
        }
        let mut contents = buffer.filling()?;
        if count > 0 {
            // SAFETY: there are so many lengths, and so many bytes, says the program.
            unsafe { buffer.add(&mut contents, packet, slice::from_raw_parts(packet_len, count)) }?;
        }
        Ok(PL_OK as c_int)
    })
}

/// Tells where a buffer's memory is, for programs that write packets there themselves in place of `nca_add_packets`: contents from
/// `bytes + offsets[0]` on, one packet behind the other, `offsets[i]` for each; then `nca_set_packets`. It stays where it is until the stream
/// is closed. The program must not write there from `nca_buffer_ready` on until results were read.
///
/// Any thread may call it. Returns `PL_OK`, `PL_ERROR_ARGUMENT` or `PL_ERROR_NOT_FOUND`.
///
/// # Safety
/// There is room for an `nca_memory` at `memory`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nca_buffer_memory(
    traffic_stream_id: c_int,
    buffer_id: c_int,
    memory: *mut nca_memory,
) -> c_int {
    call(|| {
        let stream = stream(traffic_stream_id)?;
        let buffer = stream.buffer(buffer_id)?;
        if memory.is_null() {
            return Err(Fault::argument("memory is NULL; expected room for an nca_memory"));
        }
        let base = buffer.base();
        let (size, max_packets) = (buffer.size(), buffer.max_packets() as u32);
        let of_buffer = nca_memory { bytes: base.as_ptr(), offsets: base.cast().as_ptr(), size, max_packets };
        // SAFETY: there is room for it.
        unsafe { memory.write(of_buffer) };
        Ok(PL_OK as c_int)
    })
}

/// Says how many packets a buffer has that the program has filled itself. Its offsets are checked and copied: they ascend from the first
/// one on, and the last one, `offsets[num_packets]`, is the end of the contents.
///
/// Any thread may call it. Returns `PL_OK`, `PL_ERROR_ARGUMENT` where an offset is wrong, `PL_ERROR_FULL`, `PL_ERROR_NOT_FOUND` or
/// `PL_ERROR_BUSY`; the buffer then has what it had.
#[unsafe(no_mangle)]
pub extern "C" fn nca_set_packets(traffic_stream_id: c_int, buffer_id: c_int, num_packets: c_int) -> c_int {
    call(|| {
        let stream = stream(traffic_stream_id)?;
        let buffer = stream.buffer(buffer_id)?;
        let count = number("num_packets", num_packets, Some(0), NCA_MAX_BUFFER_SIZE)?;
        buffer.set(&mut *buffer.filling()?, count)?;
        Ok(PL_OK as c_int)
    })
}

/// How many packets a buffer has. Any thread may call it. Returns the number or `PL_ERROR_NOT_FOUND`.
#[unsafe(no_mangle)]
pub extern "C" fn nca_num_packets(traffic_stream_id: c_int, buffer_id: c_int) -> c_int {
    call(|| Ok(stream(traffic_stream_id)?.buffer(buffer_id)?.lock().packets() as c_int))
}

/// Has a buffer processed, full or not. The library has it until its results were told of.
///
/// Any thread may call it; buffers are told of in the order of these calls. Returns `PL_OK`, `PL_ERROR_ARGUMENT` where it has no packet,
/// `PL_ERROR_NOT_FOUND`, or `PL_ERROR_BUSY` where it is being processed or its results are not read.
#[unsafe(no_mangle)]
pub extern "C" fn nca_buffer_ready(traffic_stream_id: c_int, buffer_id: c_int) -> c_int {
    call(|| {
        stream(traffic_stream_id)?.ready(buffer_id)?;
        Ok(PL_OK as c_int)
    })
}

/// Waits until a buffer has results, `timeout_ms` milliseconds at most; with a negative number, as long as it takes.
///
/// Any thread may call it, but no callback, which would get `PL_ERROR_BUSY`. Returns `PL_OK`, `PL_ERROR_NOT_READY` when the time is over
/// or the buffer is not ready, or `PL_ERROR_NOT_FOUND`.
#[unsafe(no_mangle)]
pub extern "C" fn nca_wait(traffic_stream_id: c_int, buffer_id: c_int, timeout_ms: c_int) -> c_int {
    call(|| {
        outside_callbacks("nca_wait")?;
        let limit = u64::try_from(timeout_ms).ok().map(Duration::from_millis);
        stream(traffic_stream_id)?.wait(buffer_id, limit)?;
        Ok(PL_OK as c_int)
    })
}

/// How many bytes the results of a buffer have: for each function of the service chain, in its order, as many as the buffer has packets,
/// times the function's `result_buffer_size`.
///
/// Any thread may call it. Returns the number, `PL_ERROR_NOT_FOUND`, or `PL_ERROR_FULL` where it is larger than an int.
#[unsafe(no_mangle)]
pub extern "C" fn nca_results_size(traffic_stream_id: c_int, buffer_id: c_int) -> c_int {
    call(|| {
        let stream = stream(traffic_stream_id)?;
        let size = stream.buffer(buffer_id)?.lock().packets() * stream.result_size();
        c_int::try_from(size).map_err(|_| Fault::new(PL_ERROR_FULL, format!("{size} bytes of results")))
    })
}

/// Copies the results of a buffer and makes it empty, so that it can be filled again.
///
/// `result` gets, for each function of the service chain in its order, what it has found in each packet, in the order of packets:
/// `nca_results_size` bytes in all. `nca_add_network_function` says what these are.
///
/// Any thread may call it. Returns `PL_OK`; `PL_ERROR_NOT_READY` where there are no results yet, `PL_ERROR_ARGUMENT`,
/// `PL_ERROR_NOT_FOUND`; or why the buffer could not be processed (`PL_ERROR_DEVICE`, `PL_ERROR_CALLBACK`, `PL_ERROR_IO`,
/// `PL_ERROR_INTERNAL`): it is empty then, too, and nothing was copied.
///
/// # Safety
/// There is room for `nca_results_size` bytes at `result`; where several threads use one buffer, for those of a full one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nca_read_results(
    traffic_stream_id: c_int,
    buffer_id: c_int,
    result: *mut c_void,
) -> c_int {
    call(|| {
        let stream = stream(traffic_stream_id)?;
        let buffer = stream.buffer(buffer_id)?;
        if result.is_null() {
            return Err(Fault::argument("result is NULL; expected room for nca_results_size bytes"));
        }
        let mut contents = buffer.lock();
        if contents.phase != Phase::Done {
            return Err(Fault::new(PL_ERROR_NOT_READY, format!("buffer {buffer_id} has no results yet")));
        }
        if let Some(fault) = contents.fault.take() {
            buffer.clear(&mut contents);
            return Err(fault);
        }
        let mut to = result.cast::<u8>();
        for results in &contents.results {
            // SAFETY: there is room for all results, says the program.
            to = unsafe {
                to.copy_from_nonoverlapping(results.as_ptr(), results.len());
                to.add(results.len())
            };
        }
        buffer.clear(&mut contents);
        Ok(PL_OK as c_int)
    })
}

/// Closes a stream: waits until all buffers that were ready are processed and told of, ends its threads, finishes output files of its
/// functions and frees its buffers. Results that were not read are lost. Its id is not used again.
///
/// Any thread may call it, but no callback, which would get `PL_ERROR_BUSY`. Returns `PL_OK`, `PL_ERROR_NOT_FOUND` where it was closed
/// already, `PL_ERROR_BUSY` where another thread closes it, or `PL_ERROR_IO` where an output could not be finished: it is closed then, too.
#[unsafe(no_mangle)]
pub extern "C" fn nca_traffic_stream_close(traffic_stream_id: c_int) -> c_int {
    call(|| {
        outside_callbacks("nca_traffic_stream_close")?;
        let stream = stream(traffic_stream_id)?;
        close(&stream)?;
        Ok(PL_OK as c_int)
    })
}

/// Closes a stream, which is known until its last callback has returned.
fn close(stream: &Stream) -> Outcome<()> {
    let result = stream.close();
    if !matches!(&result, Err(fault) if fault.status == PL_ERROR_BUSY) {
        with_streams(|streams, _| streams.remove(&stream.id()));
    }
    result
}

/// Closes all streams and forgets all functions, for the end of a program.
///
/// Any thread may call it, but no callback, which would get `PL_ERROR_BUSY`. Returns `PL_OK`, or what `nca_traffic_stream_close` returns for a
/// stream that could not be closed or whose outputs could not be finished; the others are closed then, too.
#[unsafe(no_mangle)]
pub extern "C" fn nca_cleanup() -> c_int {
    call(|| {
        outside_callbacks("nca_cleanup")?;
        let all: Vec<_> = with_streams(|streams, _| streams.values().cloned().collect());
        let closed = all.iter().map(|stream| close(stream));
        let result = closed.fold(Ok(()), Outcome::and);
        let functions = with_functions(std::mem::take);
        drop(functions);
        result?;
        Ok(PL_OK as c_int)
    })
}

/// Names the next argument of a kernel, in `set_kernel_arg`: the packets of the buffer, as `GLOBAL const u32 *`. First come offsets, one
/// more than packets: packet i begins at byte `offsets[i]` of this memory and ends before `offsets[i + 1]`.
///
/// Returns `PL_OK`, or `PL_ERROR_ARGUMENT` outside of that callback.
#[unsafe(no_mangle)]
pub extern "C" fn nca_arg_packets(args: *mut nca_kernel_args) -> c_int {
    call(|| kernel::name(args, Arg::Packets))
}

/// Names the next argument: the results, as `GLOBAL` pointer to what the program likes; `result_buffer_size` bytes for each packet, one after the
/// other, all 0 before the kernel runs. See `nca_arg_packets`.
#[unsafe(no_mangle)]
pub extern "C" fn nca_arg_results(args: *mut nca_kernel_args) -> c_int {
    call(|| kernel::name(args, Arg::Results))
}

/// Names the next argument: the function's table, as `GLOBAL const` pointer. See `nca_arg_packets`.
#[unsafe(no_mangle)]
pub extern "C" fn nca_arg_table(args: *mut nca_kernel_args) -> c_int {
    call(|| kernel::name(args, Arg::Table))
}

/// Names the next argument: a number, as `u32`. See `nca_arg_packets`.
#[unsafe(no_mangle)]
pub extern "C" fn nca_arg_u32(args: *mut nca_kernel_args, number: u32) -> c_int {
    call(|| kernel::name(args, Arg::U32(number)))
}

/// Names the next argument: a number, as `u64`. See `nca_arg_packets`.
#[unsafe(no_mangle)]
pub extern "C" fn nca_arg_u64(args: *mut nca_kernel_args, number: u64) -> c_int {
    call(|| kernel::name(args, Arg::U64(number)))
}
