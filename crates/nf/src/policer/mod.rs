//! Policing: packets are marked by how far their traffic exceeds what was agreed.
//!
//! [`meter`] has the arithmetic: the markers of RFC 2697 and RFC 2698.

pub mod meter;
