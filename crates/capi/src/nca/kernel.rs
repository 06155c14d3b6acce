//! Kernels of the program: compiled for a stream's device, and launched for each buffer.

use std::cell::RefCell;
use std::ffi::c_int;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use packetloom_device::{Argument, Device, Entry, Loaded, Memory, Parameter, Program, Queue, Shared};

use super::buffer::Buffer;
use super::{nca_kernel_args, nca_packets, nca_set_kernel_arg};
use crate::status::*;

/// How long the kernels of a buffer may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// A kernel as the program has added it.
pub(super) struct Kernel {
    pub(super) id: c_int,
    pub(super) source: String,
    pub(super) name: String,
    /// Items of a group.
    pub(super) group: u32,
    /// What it gets as its table.
    pub(super) table: Vec<u8>,
    /// Says what its arguments are.
    pub(super) set_arg: nca_set_kernel_arg,
    /// Bytes of results for a packet.
    pub(super) result_size: usize,
}

/// One argument, as the program has named it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arg {
    Packets,
    Results,
    Table,
    U32(u32),
    U64(u64),
}

impl Arg {
    fn parameter(self) -> Parameter {
        match self {
            Self::Packets | Self::Table => Parameter::Constant,
            Self::Results => Parameter::Memory,
            Self::U32(_) => Parameter::U32,
            Self::U64(_) => Parameter::U64,
        }
    }
}

thread_local! {
    /// The arguments that a callback of this thread is naming, and where the program thinks they are.
    static NAMED: RefCell<Option<(usize, Vec<Arg>)>> = const { RefCell::new(None) };
}

/// Adds an argument that a callback names.
pub(super) fn name(args: *const nca_kernel_args, arg: Arg) -> Outcome<c_int> {
    /// Drivers take some hundred.
    const MOST: usize = 64;
    NAMED.with_borrow_mut(|named| match named {
        Some((_, list)) if list.len() >= MOST => Err(Fault::argument(format!("more than {MOST} arguments"))),
        Some((place, list)) if *place == args as usize => {
            list.push(arg);
            Ok(PL_OK as c_int)
        }
        _ => {
            let text =
                "args is not that of the callback of this thread; expected what set_kernel_arg was given";
            Err(Fault::argument(text))
        }
    })
}

impl Kernel {
    /// Asks the program for the arguments.
    fn args(&self, packets: &nca_packets) -> Outcome<Vec<Arg>> {
        let Some(set_arg) = self.set_arg else {
            let table = (!self.table.is_empty()).then_some(Arg::Table);
            let before = [Arg::Packets, Arg::Results].into_iter().chain(table);
            return Ok(before.chain([Arg::U32(packets.num_packets)]).collect());
        };
        let mut place = nca_kernel_args { _private: [] };
        let place = &raw mut place;
        NAMED.set(Some((place as usize, Vec::new())));
        // SAFETY: the program passed a function of this type.
        let returned = callback(|| unsafe { set_arg(self.id, place, packets) });
        let (_, args) = NAMED.take().unwrap_or_default();
        if returned != 0 {
            let text = format!("set_kernel_arg of function {} returned {returned}; expected 0", self.id);
            return Err(Fault::new(PL_ERROR_CALLBACK, text));
        }
        if args.contains(&Arg::Table) && self.table.is_empty() {
            let text = format!("function {} has no table; expected one from its init callback", self.id);
            return Err(Fault::new(PL_ERROR_CALLBACK, text));
        }
        Ok(args)
    }
}

/// A kernel on a device. Queues share it.
pub(super) struct Ready {
    kernel: Arc<Kernel>,
    loaded: Loaded,
    parameters: Vec<Parameter>,
    table: Option<Memory>,
}

impl Ready {
    /// Compiles a kernel; the program is asked for its arguments, to know of which kinds they are.
    pub(super) fn new(kernel: &Arc<Kernel>, device: &Device) -> Outcome<Self> {
        let most = device.description().group;
        if kernel.group > most {
            let (id, group) = (kernel.id, kernel.group);
            let text =
                format!("function {id} has groups of {group} items; expected {most} at most on this device");
            return Err(Fault::new(PL_ERROR_DEVICE, text));
        }
        let args = kernel.args(&nca_packets::NONE)?;
        let parameters: Vec<_> = args.iter().map(|arg| arg.parameter()).collect();
        let program = Program {
            name: intern(&kernel.name),
            source: kernel.source.clone(),
            defines: Vec::new(),
            group: kernel.group,
            groups_per_unit: 1,
            stays: false,
            local: 0,
            entries: vec![Entry { name: intern(&kernel.name), parameters: intern_parameters(&parameters) }],
        };
        let in_words = |error: packetloom_device::Error| {
            let Fault { status, text } = Fault::from(error);
            Fault::new(status, format!("function {}: {text}", kernel.id))
        };
        let loaded = device.build(&program).map_err(in_words)?.remove(0);
        let table = match &kernel.table[..] {
            [] => None,
            table => Some(device.memory_of(table)?),
        };
        Ok(Self { kernel: kernel.clone(), loaded, parameters, table })
    }
}

/// What is not done with a buffer, so that the rest is measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LeftOut {
    /// Copies, to the device and from it, where the queue has packets that lie as those of the buffer.
    pub(super) copies: bool,
    pub(super) kernels: bool,
}

/// A queue of a device, and what its kernels work with.
pub(super) struct Lane {
    queue: Queue,
    packets: Memory,
    /// For each kernel, its results: on the device, and where they are copied to.
    results: Vec<(Memory, Shared)>,
    is_copied: bool,
    /// Where the packets lie that were copied last.
    offsets: Vec<u32>,
}

impl Lane {
    pub(super) fn new(device: &Device, kernels: &[Ready], buffer: (usize, usize)) -> Outcome<Self> {
        let (max_packets, bytes) = buffer;
        let results = kernels.iter().map(|ready| {
            let bytes = max_packets * ready.kernel.result_size;
            Ok((device.zeros(bytes)?, device.share(bytes)?))
        });
        let results = results.collect::<Outcome<_>>()?;
        let (queue, packets) = (device.queue()?, device.memory(bytes)?);
        Ok(Self { queue, packets, results, is_copied: false, offsets: Vec::new() })
    }

    /// Another buffer's packets come.
    pub(super) fn begin(&mut self) {
        self.is_copied = false;
    }

    /// Queues a kernel over a buffer's packets, and the copies that it needs.
    pub(super) fn launch(
        &mut self,
        number: usize,
        ready: &Ready,
        buffer: &Buffer,
        left_out: LeftOut,
        offsets: &[u32],
        packets: &nca_packets,
    ) -> Outcome<()> {
        let (Some(shared), [.., end]) = (&buffer.shared, offsets) else {
            return Err(Fault::new(PL_ERROR_INTERNAL, "a buffer without memory that is copied from"));
        };
        let count = offsets.len() - 1;
        // A kernel relies on offsets that are those of as many packets.
        let has_copies = !left_out.copies || self.offsets != offsets;
        if !self.is_copied && has_copies {
            let mut shared = shared.lock().unwrap_or_else(PoisonError::into_inner);
            let (first, end) = (buffer.first() as usize, *end as usize);
            self.queue.copy_in(&mut shared, 0..4 * offsets.len(), &self.packets, 0)?;
            self.queue.copy_in(&mut shared, first..end, &self.packets, first)?;
            self.is_copied = true;
            offsets.clone_into(&mut self.offsets);
        }
        let args = ready.kernel.args(packets)?;
        if !args.iter().map(|arg| arg.parameter()).eq(ready.parameters.iter().copied()) {
            let id = ready.kernel.id;
            let text =
                format!("set_kernel_arg of function {id} named other kinds of arguments than at first");
            return Err(Fault::new(PL_ERROR_CALLBACK, text));
        }
        let (results, out) = &mut self.results[number];
        let of = |arg: &Arg| match *arg {
            Arg::Packets => Argument::from(&self.packets),
            Arg::Results => Argument::from(&*results),
            Arg::Table => Argument::from(ready.table.as_ref().expect("checked where it is named")),
            Arg::U32(number) => number.into(),
            Arg::U64(number) => number.into(),
        };
        let arguments: Vec<_> = args.iter().map(of).collect();
        let groups = count.div_ceil(ready.loaded.group as usize) as u32;
        if !left_out.kernels {
            self.queue.clear(results)?;
            // SAFETY: the program vouches for its kernel, as the header asks it to.
            unsafe { self.queue.launch_unchecked(&ready.loaded, groups, &arguments)? };
        }
        if !left_out.copies {
            self.queue.copy_out(results, 0..count * ready.kernel.result_size, out, 0)?;
        }
        Ok(())
    }

    /// Waits for all that is queued. A lane that fails is of no use any more.
    pub(super) fn finish(&mut self) -> Outcome<()> {
        if self.queue.finish_within(PATIENCE)? {
            return Ok(());
        }
        let text = format!("kernels of a buffer took more than {} s", PATIENCE.as_secs());
        Err(Fault::new(PL_ERROR_DEVICE, text))
    }

    /// What a kernel has found, after [`Lane::finish`].
    pub(super) fn read(&mut self, number: usize, to: &mut [u8]) -> Outcome<()> {
        self.results[number].1.read(0, to);
        Ok(())
    }

    /// Leaves a device that fails or hangs.
    pub(super) fn abandon(self) {
        self.queue.abandon();
    }
}

/// The same text for as long as the process lives: a device wants its names so. There are as many as the program has kernels.
fn intern(text: &str) -> &'static str {
    static KEPT: Mutex<Vec<&'static str>> = Mutex::new(Vec::new());
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    match kept.iter().find(|kept| **kept == text) {
        Some(kept) => kept,
        None => {
            let text: &'static str = text.to_owned().leak();
            kept.push(text);
            text
        }
    }
}

/// The same of kinds of parameters.
fn intern_parameters(parameters: &[Parameter]) -> &'static [Parameter] {
    static KEPT: Mutex<Vec<&'static [Parameter]>> = Mutex::new(Vec::new());
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    match kept.iter().find(|kept| **kept == parameters) {
        Some(kept) => kept,
        None => {
            let parameters: &'static [Parameter] = parameters.to_vec().leak();
            kept.push(parameters);
            parameters
        }
    }
}
