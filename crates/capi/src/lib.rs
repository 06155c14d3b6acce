//! Packetloom for C: `packetloom.h` is made of the functions here, and says what they do.
//!
//! - `chain`: the engine. A chain is opened, takes batches of packets that the program holds, and gives verdicts and records.
//! - `nca`: NFV compute acceleration, by draft-perumal-nfvrg-nfv-compute-acceleration-00, with what the draft leaves open.
//! - `status`: status codes, error texts, and the one place that keeps panics on this side.
//! - `embedded`: a chain over packets in memory, without anything of C.
//!
//! What a program passes is checked as far as that can be done: numbers name chains, streams and buffers, so one that was closed is
//! known to be so. Pointers cannot be checked but for NULL; each function says what it expects of them. All of the crate may have
//! unsafe code, since it is called from C.
#![allow(unsafe_code)]

mod chain;
mod embedded;
mod nca;
mod status;

pub use self::chain::*;
pub use self::nca::*;
pub use self::status::{pl_last_error, pl_status, pl_version};
