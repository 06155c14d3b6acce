//! Flow records as others read them.
//!
//! - [`json`]: JSON lines with IPFIX element names.

pub mod json;
