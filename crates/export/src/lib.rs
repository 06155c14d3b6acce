//! Flow records as others read them.
//!
//! - [`json`]: JSON lines with IPFIX element names.
//! - [`schema`]: what these lines look like.

pub mod json;
pub mod schema;
