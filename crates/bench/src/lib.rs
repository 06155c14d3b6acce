//! Benchmarks: a result is compared before it is timed, rounds are repeated, and the spread is part of the answer.
//!
//! - [`sample`]: rounds of wall and CPU time, medians and quartiles.
//! - [`acl`]: classifiers over headers in memory.
//! - [`changes`]: rules that change while headers are classified.
//! - [`meter`]: a capture to flow records, from file to file.

pub mod acl;
pub mod changes;
pub mod meter;
pub mod sample;

/// A benchmark that could not be run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The run itself failed.
    #[error(transparent)]
    Engine(#[from] packetloom_engine::Error),
    /// A file could not be read or written.
    #[error(transparent)]
    Io(#[from] packetloom_io::Error),
    /// The function could not be prepared.
    #[error(transparent)]
    Function(#[from] packetloom_nf::Error),
    /// A fast path disagrees with the oracle: nothing was timed.
    #[error("{0}")]
    Wrong(String),
    /// There is not a single packet.
    #[error("nothing to measure: no packets")]
    Empty,
    /// The user asked to stop.
    #[error("interrupted")]
    Interrupted,
}
