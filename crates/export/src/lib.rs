//! Flow records as others read them.
//!
//! - [`csv`]: CSV with the same names.
//! - [`json`]: JSON lines with IPFIX element names.
//! - [`messages`]: IPFIX and NetFlow v9 messages for collectors.
//! - [`schema`]: what these lines look like.

pub mod csv;
pub mod json;
pub mod messages;
pub mod schema;
