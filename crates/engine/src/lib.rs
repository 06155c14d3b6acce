//! Chains: read from a file, planned, run.
//!
//! - [`chain`]: the chain file, with an error for every key that is wrong: file, line, what was expected.
//! - [`schema`]: the chain file's JSON schema.
//! - [`layout`]: which functions share the entries of a flow definition.
//! - [`plan`]: what will run where, and what holds with several workers.
//! - [`pipeline`]: what one core does with a chain.
//! - [`mod@run`]: the runs themselves: one worker, several, a device, the oracle.
//! - `crew`: threads that share the work of one loop.
//! - [`offload`]: rules on a device.
//! - [`outcome`]: what a run counted.
//! - [`state`]: state of flows apart from a run: handed on, saved, restored.

mod bell;
pub mod chain;
mod crew;
mod error;
pub mod layout;
pub mod offload;
pub mod outcome;
pub mod pipeline;
pub mod plan;
pub mod run;
pub mod schema;
pub mod state;

pub use chain::Chain;
pub use error::{ConfigError, Error};
pub use outcome::Outcome;
pub use plan::Plan;
pub use run::{Outputs, run};
pub use state::State;
