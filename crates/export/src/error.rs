//! What can go wrong on the way to a collector.

use std::io;

/// Records that cannot be exported.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Settings that do not go together: where to, and what was expected.
    #[error("{0}")]
    Settings(String),
    /// A collector's name has no address.
    #[error("{host}: {why}; expected the name or address of a collector")]
    Resolve {
        /// The name.
        host: String,
        /// What the resolver said.
        why: String,
    },
    /// A collector cannot be reached.
    #[error("{to}: {}", packetloom_io::plain(.source))]
    Io {
        /// Where to.
        to: String,
        /// What the system said.
        source: io::Error,
    },
    /// No broker of a Kafka cluster answers, or the topic cannot be written to.
    #[error("{to}: {why}; expected a broker that answers, and a topic to write to")]
    Kafka {
        /// Where to.
        to: String,
        /// What librdkafka said.
        why: String,
    },
    /// Certificates that cannot be used.
    #[error("TLS: {0}")]
    Tls(String),
    /// A file cannot be written.
    #[error(transparent)]
    File(packetloom_io::Error),
}
