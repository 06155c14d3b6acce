//! Work on a device.
//!
//! - [`keys`]: the first rule that matches each key of an array.
//! - [`frames`]: from frames to verdicts in one kernel.
//! - [`lane`]: batches on their way to a device and back, for launches.
//! - [`ring`]: small batches, for a kernel that stays.
//! - [`stateful`]: functions that keep state for flows.
//! - `accelerator`: what a run needs of a device; [`acls`] is that for ACLs alone, `strings` for a search of payloads.
//! - `opening`: a device that is opened in the background. `supervisor`: one that may fail.
//! - [`pace`]: how many packets a batch has, and who judges it.

pub(crate) mod accelerator;
pub mod acls;
pub mod frames;
pub mod keys;
pub mod lane;
pub(crate) mod opening;
pub mod pace;
pub mod ring;
pub mod stateful;
pub(crate) mod strings;
pub(crate) mod supervisor;

use std::fmt;
use std::str::FromStr;

use packetloom_classify::image::{self, Algorithm, Target};
use packetloom_device::{Cache, Device, Id};
use packetloom_packet::Reject;
use packetloom_packet::batch::Policy;

pub use keys::{Classifier, MAX_PACKETS, OnDevice};
pub use opening::{Open, Unfinished};

/// Where work is done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// On this machine's cores.
    #[default]
    Cpu,
    /// On the first GPU there is, else on this machine's cores.
    Auto,
    /// On this device, or not at all.
    On(Id),
}

impl Placement {
    /// The device, opened; `None` for this machine's cores.
    ///
    /// # Errors
    /// Where a device was named that cannot be had.
    pub fn open(self) -> Result<Option<Device>, packetloom_device::Error> {
        let open = |id| Device::open(id, Cache::user());
        match self {
            Self::Cpu => Ok(None),
            Self::On(id) => open(id).map(Some),
            Self::Auto if packetloom_device::may_have_gpu() => {
                let mut devices = packetloom_device::ids().filter_map(|id| open(id).ok());
                Ok(devices.find(is_gpu))
            }
            Self::Auto => Ok(None),
        }
    }
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            Self::Auto => f.write_str("auto"),
            Self::On(id) => id.fmt(f),
        }
    }
}

impl FromStr for Placement {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "cpu" => Ok(Self::Cpu),
            "auto" => Ok(Self::Auto),
            _ => text
                .parse()
                .map(Self::On)
                .map_err(|_| format!("no device {text:?}; expected cpu, auto, cuda:N, opencl:N or host")),
        }
    }
}

/// Why rules are not on a device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The device failed, or has no room.
    #[error(transparent)]
    Device(#[from] packetloom_device::Error),
    /// The rules cannot be laid out for it.
    #[error(transparent)]
    Image(#[from] image::Error),
    /// Texts cannot be searched there.
    #[error(transparent)]
    Search(packetloom_pattern::image::Error),
}

impl From<packetloom_pattern::image::Error> for Error {
    fn from(error: packetloom_pattern::image::Error) -> Self {
        match error {
            packetloom_pattern::image::Error::Device(error) => Self::Device(error),
            error => Self::Search(error),
        }
    }
}

/// How a device takes rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// How they are laid out.
    pub algorithm: Algorithm,
    /// Whether a kernel is compiled for them: slower to begin with, faster after.
    pub specialise: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { algorithm: Algorithm::default(), specialise: true }
    }
}

/// Lanes in step are what tells a GPU from a CPU behind the same interface; the host's are threads.
fn is_gpu(device: &Device) -> bool {
    device.description().lanes > 1 && device.description().id != Id::Host
}

/// What becomes of frames without a match key, as kernels are told it: a verdict's number for that of a reason.
fn policy_define(policy: Policy) -> (String, String) {
    let verdict = |text, reject: Reject| {
        format!("(reject) == {}u ? {}u : {text}", reject.number(), policy.verdict(reject).code())
    };
    let malformed = format!("{}u", policy.verdict(Reject::IpMalformed).code());
    ("VERDICT_OF(reject)".into(), format!("({})", Reject::ALL.into_iter().fold(malformed, verdict)))
}

/// What suits a device.
pub fn target(device: &Device, specialise: bool) -> Target {
    let description = device.description();
    match device.description().id {
        // Two groups fill a multiprocessor's lanes and share its local memory.
        Id::Cuda(_) => Target {
            lanes: description.lanes,
            group: description.group.min(1024),
            groups_per_unit: 2,
            // The driver keeps 1 KB for each group.
            local_memory: (description.local_memory / 2).saturating_sub(1024),
            packets_a_lane: 2,
            specialise,
        },
        Id::OpenCl(_) => Target {
            lanes: description.lanes,
            group: if description.lanes > 1 { description.group.min(512) } else { description.group.min(64) },
            groups_per_unit: 2,
            local_memory: description.local_memory,
            packets_a_lane: 2,
            specialise,
        },
        // Lanes are threads there: few are enough to meet each other.
        Id::Host => Target {
            lanes: description.lanes.min(4),
            group: description.lanes.min(4),
            groups_per_unit: 1,
            local_memory: description.local_memory,
            packets_a_lane: 2,
            specialise,
        },
    }
}
