//! Flow records as others read them.
//!
//! - [`json`]: JSON lines with IPFIX element names.
//! - [`messages`]: IPFIX and NetFlow v9 messages for collectors.
//! - [`schema`]: what these lines look like.

pub mod json;
pub mod messages;
pub mod schema;
