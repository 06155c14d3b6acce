//! The C library as files to link with, `libpacketloom.so` and `.a` once installed: what `packetloom-capi` has. That crate is a library of Rust, so that
//! other crates use it without building these files.

pub use packetloom_capi::*;
