//! Benchmarks: a result is compared before it is timed, rounds are repeated, and the spread is part of the answer.
//!
//! - [`sample`]: rounds of wall and CPU time, medians and quartiles.
//! - [`acl`]: classifiers over headers in memory, and [`peer`]s beside them.
//! - [`chain`]: chains over packets in memory.
//! - [`changes`]: rules that change while headers are classified.
//! - [`churn`]: whether a long time of changes wears the tables out.
//! - [`device`]: rules on a device, over keys that are there.
//! - [`engine`]: what they have in common.
//! - [`forward`]: packets between network namespaces, and the kernel and testpmd beside.
//! - [`host_fed`]: rules on a device that is fed from this machine's memory.
//! - [`meter`]: a capture to flow records, from file to file.
//! - [`nca`]: NFV compute acceleration as programs in C use it, and how much of its copies is hidden.
//! - [`plot`]: pictures of the results.
//! - [`schema`]: what the results look like.
//! - [`strings`]: strings in payloads, and Hyperscan beside.

pub mod acl;
mod captures;
pub mod chain;
pub mod changes;
pub mod churn;
pub mod device;
pub mod engine;
pub mod forward;
pub mod host_fed;
pub mod meter;
pub mod nca;
mod oracle;
pub mod peer;
pub mod plot;
pub mod sample;
pub mod schema;
pub mod strings;

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
    /// A peer was asked for that this build does not have.
    #[error(
        "built without DPDK; expected a build with `cargo build --release -p packetloom --features dpdk`, which needs \
         libdpdk-dev and pkg-config"
    )]
    NoPeer,
    /// A peer could not be prepared.
    #[error("{0}")]
    Peer(String),
    /// The system has no memory for packets.
    #[error("memory for packets: {0}")]
    Memory(std::io::Error),
    /// A device failed.
    #[error(transparent)]
    Device(#[from] packetloom_device::Error),
    /// A device could not look through payloads.
    #[error(transparent)]
    Strings(#[from] packetloom_pattern::image::Error),
    /// A device could not do what was asked.
    #[error(transparent)]
    Offload(#[from] packetloom_engine::offload::Error),
    /// Headers of both families where one is measured.
    #[error("headers of IPv4 and of IPv6; expected those of one family")]
    Mixed,
    /// There is not a single packet.
    #[error("nothing to measure: no packets")]
    Empty,
    /// Packets could not be forwarded, or not be measured.
    #[error("{0}")]
    Forward(String),
    /// A program or a right is missing that forwarding needs.
    #[error("{what}")]
    ForwardMissing {
        /// Which one, and what to do.
        what: String,
    },
    /// The library for C refuses something, or fails.
    #[error("{0}")]
    Nca(String),
    /// Results that cannot be drawn.
    #[error("{0}")]
    Plot(String),
    /// The user asked to stop.
    #[error("interrupted")]
    Interrupted,
}
