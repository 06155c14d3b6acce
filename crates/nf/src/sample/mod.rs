//! `sample`: one of so many packets passes, all others are dropped (RFC 5475).
//!
//! Which packets these are depends on their place in the input alone, whatever became of the packets before them: so they are the same for any
//! number of workers. `systematic` takes the first of every `interval` packets (RFC 5475 section 5.1), `random` each packet with probability
//! 1/`interval` (section 5.2.2.1), by numbers of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, OOPSLA 2014) that its
//! seed begins.
//!
//! A chain has one at most. Meters behind it tell collectors of it ([`FunctionSpec::announce_sampling`]).
//!
//! - Shape: no state.
//! - Verdict: pass, or drop with [`DropReason::Sample`].

mod config;
mod cpu;
mod oracle;
#[cfg(test)]
mod tests;

use std::any::Any;
use std::num::NonZeroU32;

use packetloom_export::Sampling;
use packetloom_packet::{DropReason, Verdict};
use schemars::JsonSchema;
use serde::Serialize;

pub use self::config::{Config, Interval, Method};
use crate::{Form, Function, FunctionSpec, Oracle, Report, Standalone, is_equal, summary};

/// A sample ready to be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    interval: NonZeroU32,
    choice: Choice,
}

/// Which packets are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Choice {
    Systematic,
    /// By numbers that this one begins.
    Random(u64),
}

/// What the state of SplitMix64 grows by.
const GAMMA: u64 = 0x9e37_79b9_7f4a_7c15;

impl Sample {
    /// Whether the packet with this number in the run is taken.
    fn takes(self, number: u64) -> bool {
        let interval = u64::from(self.interval.get());
        match self.choice {
            Choice::Systematic => number.is_multiple_of(interval),
            Choice::Random(seed) => {
                let random = mix(seed.wrapping_add(number.wrapping_add(1).wrapping_mul(GAMMA)));
                // Below 2^64 / interval.
                (u128::from(random) * u128::from(interval)) >> 64 == 0
            }
        }
    }
}

/// A number of SplitMix64 from its state.
fn mix(state: u64) -> u64 {
    let state = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let state = (state ^ (state >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    state ^ (state >> 31)
}

impl FunctionSpec for Sample {
    fn name(&self) -> &'static str {
        "sample"
    }

    fn resume(&mut self, old: &dyn FunctionSpec) -> bool {
        is_equal(self, old)
    }

    fn describe(&self) -> Vec<String> {
        let interval = self.interval;
        vec![match self.choice {
            Choice::Systematic => format!("the first of every {interval} packets passes"),
            Choice::Random(seed) => format!("each packet passes with probability 1/{interval}, seed {seed}"),
        }]
    }

    fn sampling(&self) -> Option<Sampling> {
        Some(Sampling { interval: self.interval, is_random: self.choice != Choice::Systematic })
    }

    fn form(&self) -> Form<'_> {
        Form::Standalone(self)
    }
}

impl Standalone for Sample {
    fn function(&self) -> Box<dyn Function> {
        Box::new(cpu::SampleCpu::new(*self))
    }

    fn oracle(&self) -> Box<dyn Oracle> {
        Box::new(oracle::SampleOracle::new(*self))
    }
}

/// What becomes of packets that are not taken.
const DROP: Verdict = Verdict::Drop(DropReason::Sample);

/// What was sampled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SampleReport {
    /// Packets that were taken.
    pub sampled: u64,
    /// Packets that were not.
    pub not_sampled: u64,
}

/// What was sampled, for machines.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Summary {
    /// Packets that were taken.
    sampled: u64,
    /// Packets that were not.
    not_sampled: u64,
}

impl Report for SampleReport {
    fn merge(&mut self, other: &dyn Report) {
        let Some(other) = (other as &dyn Any).downcast_ref::<Self>() else { return };
        self.sampled += other.sampled;
        self.not_sampled += other.not_sampled;
    }

    fn json(&self) -> serde_json::Value {
        let Self { sampled, not_sampled } = *self;
        summary::value(&Summary { sampled, not_sampled })
    }

    fn rows(&self) -> Vec<(String, String)> {
        vec![
            ("sampled".into(), self.sampled.to_string()),
            ("not sampled".into(), self.not_sampled.to_string()),
        ]
    }
}
