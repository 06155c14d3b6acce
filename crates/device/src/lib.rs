//! Devices that run kernels.
//!
//! - [`Device`]: opened by its [`Id`]; gives memory, queues and compiled [`Program`]s.
//! - [`Queue`]: copies and launches, done one after the other.
//! - [`list`]: the devices of this machine. [`selftest`]: what works on one of them.
//! - [`faults`]: devices that fail, hang or disappear when they are told to.
//!
//! A kernel is written once, in the dialect of `kernels/prelude.h`, and compiled by NVRTC, by an OpenCL driver, or by the C
//! compiler of this machine. No library is needed to start: CUDA and OpenCL are looked for when they are asked for.
//!
//! Nothing here can check what a kernel does with the memory that it is given. So whoever declares a kernel vouches for it, once
//! ([`Kernel::new`], which is unsafe), for all arguments of a type that [`arguments!`] makes; launches of it are safe then, and check those. What
//! lies in memory that Rust and kernels share is declared by [`layout!`]. `docs/kernels.md` shows how to add a kernel. Kernels are
//! tested under sanitisers ([`Id::Host`]).
//!
//! Drivers are called through their C interfaces, so this crate has unsafe code.

#![allow(unsafe_code)]

mod arguments;
mod backend;
mod cache;
mod cuda;
mod device;
mod error;
#[cfg(test)]
mod fake;
pub mod faults;
mod host;
mod id;
mod layout;
mod memory;
mod opencl;
mod opened;
mod program;
mod queue;
pub mod selftest;
mod signals;

use std::{fs, iter};

pub use arguments::{Argument, Arguments, Buffer, Kernel, has_elements};
pub use cache::Cache;
pub use device::{Description, Device, Loaded};
pub use error::Error;
pub use host::host_memory;
pub use id::Id;
pub use layout::u32x4;
pub use memory::{Memory, Part, Shared};
pub use packetloom_memory::{LaidOut, Layout, layout};
pub use program::{Entry, Parameter, Program};
pub use queue::Queue;

/// The example of `docs/kernels.md`.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/kernels.md")]
pub struct HowToAddAKernel;

/// The devices of this machine, the host itself not among them; and why a kind of device cannot be had.
pub fn list() -> (Vec<Id>, Vec<Error>) {
    let (mut ids, mut missing) = (Vec::new(), Vec::new());
    match cuda::count() {
        Ok(count) => ids.extend((0..count).map(Id::Cuda)),
        Err(error) => missing.push(error),
    }
    match opencl::count() {
        Ok(count) => ids.extend((0..count).map(Id::OpenCl)),
        Err(error) => missing.push(error),
    }
    (ids, missing)
}

/// The same devices, one after the other: OpenCL is asked only if those of CUDA were not enough.
pub fn ids() -> impl Iterator<Item = Id> {
    let cuda = iter::once_with(|| cuda::count().unwrap_or(0)).flat_map(|count| (0..count).map(Id::Cuda));
    let opencl = iter::once_with(|| opencl::count().unwrap_or(0));
    cuda.chain(opencl.flat_map(|count| (0..count).map(Id::OpenCl)))
}

/// Whether this machine may have a GPU: it shows a display controller, or another accelerator, or a file in `/dev` that a driver of Linux has made for one. To
/// ask the drivers takes tenths of a second.
pub fn may_have_gpu() -> bool {
    let names = |folder: &str| {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().into_string().ok())
    };
    let of_nvidia = |rest: &str| rest.starts_with(|first: char| first.is_ascii_digit());
    let is_file_of_gpu = |name: &str| {
        name.strip_prefix("nvidia").is_some_and(of_nvidia) || ["kfd", "dxg", "mali0"].contains(&name)
    };
    // Display controllers, and processing accelerators.
    let is_class_of_gpu = |class: &str| class.starts_with("0x03") || class.starts_with("0x12");
    let devices = "/sys/bus/pci/devices";
    let class = |device: String| fs::read_to_string(format!("{devices}/{device}/class")).ok();
    names("/dev").any(|name| is_file_of_gpu(&name))
        || names("/dev/dri").any(|name| name.starts_with("renderD"))
        || names(devices).filter_map(class).any(|class| is_class_of_gpu(&class))
}
