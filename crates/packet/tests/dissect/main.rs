//! Header walks over frames built by hand.

mod connection;
mod cut;
mod ipv4;
mod ipv6;
mod link;
#[path = "../support/mod.rs"]
mod support;
mod transport;
