//! Flow records as others read them.
//!
//! - [`json`]: JSON lines with IPFIX element names.
//! - [`schema`]: what these lines look like.
//! - [`messages`]: IPFIX and NetFlow v9.
//! - [`Exporter`]: messages on their way to a collector.

mod error;
mod exporter;
pub mod json;
pub mod messages;
pub mod schema;

pub use error::Error;
pub use exporter::{Counts, Destination, Exporter, Host, Settings, TlsSettings};
pub use messages::{Options, Protocol};
