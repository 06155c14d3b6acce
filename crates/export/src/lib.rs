//! Flow records as others read them.
//!
//! - [`csv`]: CSV with the same names.
//! - [`json`]: JSON lines with IPFIX element names.
//! - [`messages`]: IPFIX and NetFlow v9 messages for collectors.
//! - [`schema`]: what these lines look like.
//! - [`Exporter`]: messages on their way to a collector.

pub mod csv;
mod error;
mod exporter;
pub mod json;
pub mod messages;
pub mod schema;

pub use error::Error;
pub use exporter::{Counts, Destination, Exporter, Host, Settings, TlsSettings};
pub use messages::{Options, Protocol};
