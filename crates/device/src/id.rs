//! Names of devices.

use std::fmt;
use std::str::FromStr;

/// What a device is called: `cuda:0`, `opencl:0`, `host`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Id {
    /// An NVIDIA GPU, by the number that the driver gives it.
    Cuda(usize),
    /// An OpenCL device, numbered over all platforms.
    OpenCl(usize),
    /// A process of this machine that runs kernels as compiled by the C compiler, checked by its sanitisers: for tests.
    Host,
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cuda(number) => write!(f, "cuda:{number}"),
            Self::OpenCl(number) => write!(f, "opencl:{number}"),
            Self::Host => f.write_str("host"),
        }
    }
}

impl FromStr for Id {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, number) = text.split_once(':').unwrap_or((text, "0"));
        let number = || number.parse().map_err(|_| format!("device {text:?}: {number:?} is no number"));
        match kind {
            "cuda" => Ok(Self::Cuda(number()?)),
            "opencl" => Ok(Self::OpenCl(number()?)),
            "host" if text == "host" => Ok(Self::Host),
            _ => Err(format!("no device {text:?}; expected cuda:N, opencl:N or host")),
        }
    }
}
