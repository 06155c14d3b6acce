//! `limiter`: a token bucket for each flow; packets without enough tokens are dropped.
//!
//! A bucket holds up to `burst` tokens, is full when the first packet of its flow comes, and gains `rate` tokens a second. If the limit
//! is in bytes, a packet needs as many tokens as it has IP bytes; if it is in packets, a packet needs one. With enough tokens the packet
//! takes them and passes; otherwise it takes none and is dropped. Both directions of a 5-tuple share a bucket. The arithmetic is exact:
//! see [`crate::bucket`].
//!
//! - Shape: two words of the flow's entry: [`crate::bucket::Level`].
//! - Verdict: pass, or drop with `rate_limit`.

mod config;
mod cpu;
mod oracle;

use std::any::Any;

use bytemuck::{NoUninit, Pod, Zeroable};
use packetloom_memory::LaidOut;
use schemars::JsonSchema;
use serde::Serialize;

pub use self::config::Config;
use crate::bucket::{self, BucketTerms, Level};
use crate::flows::{
    By, DeviceKernel, FlowFunction, FlowGroup, FlowOracle, KernelSpec, Parameters, StateAt, StateSpec, Tally,
    Text, state_words,
};
use crate::summary::{self, Volume};
use crate::units::{Size, Throughput, Unit};
use crate::{Form, FunctionSpec, PerFlow, Report, is_equal};

/// A limiter ready to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limiter {
    flows: Option<String>,
    rate: Throughput,
    burst: Size,
    unit: Unit,
    parameters: BucketTerms,
}

impl FunctionSpec for Limiter {
    fn name(&self) -> &'static str {
        "limiter"
    }

    fn resume(&mut self, old: &dyn FunctionSpec) -> bool {
        is_equal(self, old)
    }

    /// With a smaller burst, a bucket keeps only as many tokens as it can hold now.
    fn adopt(&mut self, words: &mut [u64]) -> bool {
        words[0] = words[0].min(self.parameters.full_at(0).level);
        true
    }

    fn describe(&self) -> Vec<String> {
        vec![format!("{} of each flow, bursts of {}; more is dropped", self.rate, self.burst)]
    }

    fn form(&self) -> Form<'_> {
        Form::PerFlow(self)
    }
}

impl PerFlow for Limiter {
    fn keeps(&self) -> StateSpec {
        let by = &[By::FiveTuple, By::Source, By::Connection];
        StateSpec { flows: self.flows.clone(), by, words: state_words::<Level>() }
    }

    /// Tokens that count packets cannot stand for bytes, so each unit has a version of its own.
    fn version(&self) -> u32 {
        match self.unit {
            Unit::Bytes => 1,
            Unit::Packets => 2,
        }
    }

    fn function(&self, at: StateAt) -> Box<dyn FlowFunction> {
        Box::new(cpu::LimiterCpu::new(at, self.parameters, self.unit))
    }

    fn oracle(&self) -> Box<dyn FlowOracle> {
        let (rate, _) = self.rate.parts();
        let (burst, _) = self.burst.parts();
        Box::new(oracle::LimiterOracle::new(rate, burst, self.unit))
    }

    fn kernel(&self) -> Option<DeviceKernel> {
        const TEXTS: &[Text] = &[
            bucket::KERNEL,
            Text { name: "limiter", source: include_str!("limiter.kernel.c"), constants: &[] },
        ];
        let counts_bytes = (self.unit == Unit::Bytes).into();
        let parameters = LimiterParameters { bucket: self.parameters, counts_bytes, reserved: 0 };
        Some(DeviceKernel::new(KernelSpec {
            state: Some(Level::LAYOUT),
            parameters: Parameters::of(&parameters),
            totals: Some(LimiterTotals::LAYOUT),
            flow_group: FlowGroup::Summarized(Some(LimiterSummary::LAYOUT)),
            ..KernelSpec::new("limiter", TEXTS)
        }))
    }
}

packetloom_memory::layout! {
    /// What its step is given.
    #[derive(Clone, Copy, NoUninit)]
    struct LimiterParameters {
        bucket: BucketTerms,
        /// Whether tokens count bytes, or packets.
        counts_bytes: u32,
        reserved: u32,
    }
}

packetloom_memory::layout! {
    /// What its step counts.
    #[derive(Clone, Copy, Pod, Zeroable)]
    struct LimiterTotals {
        passed: Tally,
        dropped: Tally,
    }
}

packetloom_memory::layout! {
    /// What a piece of packets does to a bucket, whatever its level is: see `limiter.kernel.c`. All numbers count from its first packet.
    #[allow(dead_code, reason = "kernels alone have it")]
    struct LimiterSummary {
        /// The level that the bucket must have at the first packet for all packets to pass, plus LIMITER_ZERO.
        needed: u64,
        /// The income until the latest packet.
        income: u64,
        /// What is taken if all packets pass.
        taken: u64,
        /// The least that U can be at the end, minus what is taken; LIMITER_NEVER if some packet does not pass at any level.
        least: u64,
        /// The price of all packets; 0 if prices differ, or if the bucket might become full after a packet that does not pass.
        price: u64,
        /// The most by which the level before any packet exceeds that at the first one, if all pass, plus LIMITER_ZERO.
        ahead: u64,
    }
}

/// What a limiter counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LimiterReport {
    /// Packets and IP bytes that passed.
    pub passed: [u64; 2],
    /// Packets and IP bytes that were dropped.
    pub dropped: [u64; 2],
}

impl LimiterReport {
    #[inline]
    fn count(&mut self, passes: bool, bytes: u32) {
        let [packets, all] = if passes { &mut self.passed } else { &mut self.dropped };
        *packets += 1;
        *all += u64::from(bytes);
    }
}

/// The report as JSON.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Summary {
    /// Packets within the rate.
    passed: Volume,
    /// Packets above it.
    dropped: Volume,
}

impl Report for LimiterReport {
    fn merge(&mut self, other: &dyn Report) {
        let Some(other) = (other as &dyn Any).downcast_ref::<Self>() else { return };
        for (own, other) in self.passed.iter_mut().zip(other.passed) {
            *own += other;
        }
        for (own, other) in self.dropped.iter_mut().zip(other.dropped) {
            *own += other;
        }
    }

    fn json(&self) -> serde_json::Value {
        summary::value(&Summary { passed: self.passed.into(), dropped: self.dropped.into() })
    }

    fn rows(&self) -> Vec<(String, String)> {
        let row = |name: &str, [packets, bytes]: [u64; 2]| {
            (name.to_owned(), format!("{packets} packets, {bytes} IP bytes"))
        };
        vec![row("within the rate", self.passed), row("above it", self.dropped)]
    }
}
