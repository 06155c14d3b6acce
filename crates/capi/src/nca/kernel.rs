//! Kernels of the program, compiled for a stream's device.

use std::cell::RefCell;
use std::ffi::c_int;
use std::sync::{Arc, Mutex, PoisonError};

use packetloom_device::{Argument, Device, Entry, Loaded, Memory, Parameter, Program, Queue};

use super::{nca_kernel_args, nca_packets, nca_set_kernel_arg};
use crate::status::*;

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

/// A kernel on a device.
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
        let loaded = device.build(&program)?.remove(0);
        let table = match &kernel.table[..] {
            [] => None,
            table => Some(device.memory_of(table)?),
        };
        Ok(Self { kernel: kernel.clone(), loaded, parameters, table })
    }

    /// Bytes of results for a packet.
    pub(super) fn result_size(&self) -> usize {
        self.kernel.result_size
    }

    /// Queues it over packets that the device has.
    pub(super) fn launch(
        &self,
        queue: &mut Queue,
        on_device: &Memory,
        results: &Memory,
        packets: &nca_packets,
    ) -> Outcome<()> {
        let args = self.kernel.args(packets)?;
        if !args.iter().map(|arg| arg.parameter()).eq(self.parameters.iter().copied()) {
            let id = self.kernel.id;
            let text =
                format!("set_kernel_arg of function {id} named other kinds of arguments than at first");
            return Err(Fault::new(PL_ERROR_CALLBACK, text));
        }
        let of = |arg: &Arg| match *arg {
            Arg::Packets => Argument::from(on_device),
            Arg::Results => Argument::from(results),
            Arg::Table => Argument::from(self.table.as_ref().expect("checked where it is named")),
            Arg::U32(number) => number.into(),
            Arg::U64(number) => number.into(),
        };
        let arguments: Vec<_> = args.iter().map(of).collect();
        let groups = packets.num_packets.div_ceil(self.loaded.group);
        queue.clear(results)?;
        // SAFETY: the program vouches for its kernel, as the header asks it to.
        unsafe { queue.launch_unchecked(&self.loaded, groups, &arguments)? };
        Ok(())
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
