//! Ports between network namespaces: a client, the product with a forwarder between two ports, a server.
//!
//! Where namespaces may not be made the tests say that they are skipped; with `PACKETLOOM_LIVE=1` they fail there. Throughput is measured
//! with `PACKETLOOM_SWEEPS=1`.
#![cfg(target_os = "linux")]

mod flood;
mod forwarder;
mod frames;
mod guard;
mod links;
mod rings;
mod shared;
mod through;
mod xdp;

use packetloom_testing::{ends, net};
