//! Flow records as others read them.
//!
//! - [`fields`]: the fields that they may have.
//! - [`Lines`]: records as lines: [`json`] with IPFIX element names, [`csv`] with the same names.
//! - [`messages`]: IPFIX and NetFlow v9 messages for collectors.
//! - [`parquet`]: Parquet files.
//! - [`kafka`]: messages of a topic of Apache Kafka.
//! - [`schema`]: what these lines look like.
//! - [`Exporter`]: messages on their way to a collector, and records on their way to files.

pub mod csv;
mod error;
mod exporter;
pub mod fields;
pub mod flowtest;
pub mod json;
pub mod kafka;
mod lines;
pub mod messages;
mod outcome;
pub mod parquet;
pub mod schema;

pub use error::Error;
pub use exporter::{Counts, Destination, Exporter, Format, Host, Settings, TlsSettings};
pub use fields::Fields;
pub use lines::{LineFormat, Lines};
pub use messages::{Options, Protocol, Sampling};
pub use outcome::Outcome;
