//! Where packets come from and go to: capture files, streams and network interfaces.
//!
//! - [`bpf`]: programs and maps in the kernel (Linux).
//! - [`capture`]: pcap and pcapng, read into batches and written.
//! - [`input`]: files and standard input, mapped where possible, decompressed by content.
//! - [`output`]: files that appear under their name only when they are whole.
//! - [`sink`]: where packets leave, whatever it is.
//! - [`source`]: what packets come from, whatever it is.
//! - [`port`]: network interfaces, whose frames are received and sent (Linux).

pub mod bpf;
pub mod capture;
mod decompress;
mod error;
pub mod input;
mod map;
pub mod output;
pub mod port;
pub mod sink;
pub mod source;

pub use error::{Error, plain};
pub use sink::Sink;
pub use source::{Polled, Source};
