//! `run` and `meter` over network interfaces, between network namespaces that the tests make: a client, the product, a server.
//!
//! Where namespaces may not be made the tests say that they are skipped; with `PACKETLOOM_LIVE=1` they fail there.
#![allow(missing_docs)]

#[path = "../support/mod.rs"]
mod support;

mod clock;
mod control;
mod exit;
mod export;
mod frames;
mod idle;
mod inline;
mod life;
mod link;
mod loss;
mod monitor;
mod outputs;
mod pairs;
mod product;
mod replay;
mod rules;
mod watchdog;
