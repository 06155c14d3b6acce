//! Where packets come from and go to: capture files and streams.
//!
//! - [`capture`]: pcap and pcapng, read into batches and written.
//! - [`input`]: files and standard input, mapped where possible, decompressed by content.
//! - [`output`]: files that appear under their name only when they are whole.

pub mod capture;
mod decompress;
mod error;
pub mod input;
mod map;
pub mod output;

pub use error::Error;
