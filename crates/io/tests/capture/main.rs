//! Captures read and written.

mod arbitrary;
mod compressed;
mod cut;
mod faults;
mod long;
mod pcap;
mod pcapng;
mod sections;
mod series;
mod stream;
#[path = "../support/mod.rs"]
mod support;
mod writer;
