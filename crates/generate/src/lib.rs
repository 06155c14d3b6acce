//! Synthetic traffic, rule sets and headers for Packetloom, with the structure of real ones.
//!
//! - [`traffic`]: captures with an exact number of packets and flows.
//! - [`profile`]: captures with the flows of a network profile of FlowTest.
//! - [`rules`]: ordered rule sets with the structure that ClassBench reports of real ones.
//! - [`headers`]: headers that meet the rules of a set; [`mix_headers`] mixes such headers with each other.
//!
//! Everything here is reproducible for ever: one seed gives the same bytes on every platform and
//! with every compiler. So only integers decide, and nothing depends on an order of hashing.

#![forbid(unsafe_code)]

mod error;
pub mod frame;
pub mod headers;
mod mix;
mod random;
pub mod rules;
mod seen;
mod shape;
pub mod traffic;

pub use error::GenerateError;
pub use frame::frame;
pub use headers::{Header, HeaderFormat, HeaderOptions, HeaderTransport, Headers, Popularity, write_headers};
pub use mix::mix_headers;
pub use rules::{RuleOptions, Style, generate_rules};
pub use shape::{Prefix, RuleShape};
pub use traffic::profile;
pub use traffic::{Frame, Traffic, TrafficOptions, TrafficSummary, write_pcap};
