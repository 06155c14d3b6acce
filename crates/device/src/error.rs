//! What can go wrong with a device.

/// Why something could not be done on a device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no such device here, or no library to reach it by.
    #[error("{device}: {why}")]
    Unavailable {
        /// The device that was asked for.
        device: String,
        /// What is missing.
        why: String,
    },
    /// The device's compiler refused a kernel.
    #[error("kernel does not compile: {log}")]
    Build {
        /// What the compiler said.
        log: String,
    },
    /// The device has no room for what was asked of it.
    #[error("the device has no {bytes} bytes left")]
    OutOfMemory {
        /// Bytes that were asked for.
        bytes: usize,
    },
    /// A call came with arguments that do not fit the kernel or the memory.
    #[error("{0}")]
    Misuse(String),
    /// The device, or its driver, failed.
    #[error("{call}: {why}")]
    Failed {
        /// What was being done.
        call: &'static str,
        /// What the driver said.
        why: String,
    },
}
