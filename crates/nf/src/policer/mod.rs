//! `policer`: a marker of RFC 2697 (single rate) or RFC 2698 (two rates) for each source; the colour says what becomes of a packet.
//!
//! Both markers have two buckets of tokens that are full when the first packet of a flow comes, and mark a packet of `B` bytes
//! green, yellow or red. In the colour-blind mode what a packet was marked with before does not count.
//!
//! - `single-rate` (RFC 2697, sections 2 and 3): what comes in at CIR goes into C, which holds CBS, and while C is full into E, which
//!   holds EBS. A packet is green and taken from C if C has `B` bytes; else yellow and taken from E if E has; else red.
//! - `two-rate` (RFC 2698, sections 2 and 3): C, which holds CBS, gets CIR, and P, which holds PBS, gets PIR. A packet is red if P has
//!   less than `B` bytes; else yellow and taken from P if C has less; else green and taken from both.
//!
//! In the colour-aware mode (sections 3 of both) a packet keeps its colour or gets a worse one. It has it from its DSCP as it comes to the
//! function: the drop precedence of assured forwarding (RFC 2597 section 6), AFx1 green, AFx2 yellow and AFx3 red; that of others the
//! chain file says.
//!
//! A colour's tokens are taken whether its packets pass or not. Both directions of a 5-tuple share a marker. [`meter`] has the arithmetic:
//! exact. Packets of a colour may get a DSCP, which says it to others: six bits of the DS field (RFC 2474), and the two for congestion
//! notification (RFC 3168) stay as they are.
//!
//! - Units: bytes of IP packets, from the IP header on, as the RFCs measure; rates are in bytes per second.
//! - Shape: three words of the flow's entry: [`meter::Levels`].
//! - Verdict: pass, or drop with `policer`; red packets are dropped and others pass, unless the chain file says otherwise.
//! - Rewrites: the DSCP, where the chain file says so.

mod config;
mod cpu;
pub mod meter;
mod oracle;

#[cfg(test)]
mod tests;

use std::any::Any;
use std::fmt;

use bytemuck::{NoUninit, Pod, Zeroable};
use packetloom_memory::LaidOut;
use packetloom_packet::{DropReason, Dscp, Verdict};
use schemars::JsonSchema;
use serde::Serialize;

pub use self::config::{Config, Kind, Mark, Mode};
use self::meter::{Colour, Levels, SingleRate, SingleRateMarker, TwoRate, TwoRateMarker};
use crate::bucket::BucketTerms;
use crate::flows::{
    self, By, DeviceKernel, FlowFunction, FlowOracle, KernelSpec, Parameters, StateAt, StateSpec, Tally,
    Text, state_words,
};
use crate::summary::{self, Volume};
use crate::units::{Size, Throughput};
use crate::{Error, Form, FunctionSpec, PerFlow, Report, bucket, is_equal};

/// A policer ready to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policer {
    flows: Option<String>,
    terms: Terms,
    marker: Marker,
    /// In the colour-aware mode, the colour before of packets whose DSCP says none.
    others: Option<Colour>,
    /// By colour.
    actions: [Action; 3],
}

impl Policer {
    /// Whether it neither looks at DSCPs nor writes them.
    fn is_plain(&self) -> bool {
        self.others.is_none() && self.actions.iter().all(|action| action.dscp().is_none())
    }
}

/// What becomes of packets of a colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema)]
#[schemars(rename_all = "lowercase")]
pub enum Action {
    /// They pass.
    Pass,
    /// They are dropped.
    Drop,
    /// They pass with this DSCP, as { dscp = "af12" }.
    Dscp(Mark),
}

impl Action {
    const fn verdict(self) -> Verdict {
        match self {
            Self::Pass | Self::Dscp(_) => Verdict::Pass,
            Self::Drop => Verdict::Drop(DropReason::Policer),
        }
    }

    const fn dscp(self) -> Option<Dscp> {
        match self {
            Self::Dscp(Mark(dscp)) => Some(dscp),
            Self::Pass | Self::Drop => None,
        }
    }
}

/// What packets are marked by, all of it in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Terms {
    SingleRate { cir: Throughput, cbs: Size, ebs: Size },
    TwoRate { cir: Throughput, cbs: Size, pir: Throughput, pbs: Size },
}

/// What marks them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Marker {
    SingleRate(SingleRateMarker),
    TwoRate(TwoRateMarker),
}

impl Terms {
    fn marker(self) -> Result<Marker, Error> {
        let rate = |rate: Throughput| rate.parts().0;
        let size = |size: Size| size.parts().0;
        Ok(match self {
            Self::SingleRate { cir, cbs, ebs } => {
                let single = SingleRate { cir: rate(cir), cbs: size(cbs), ebs: size(ebs) };
                Marker::SingleRate(single.marker()?)
            }
            Self::TwoRate { cir, cbs, pir, pbs } => {
                let two = TwoRate { cir: rate(cir), cbs: size(cbs), pir: rate(pir), pbs: size(pbs) };
                Marker::TwoRate(two.marker()?)
            }
        })
    }
}

impl fmt::Display for Terms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SingleRate { cir, cbs, ebs } => {
                write!(f, "CIR {cir}, CBS {cbs}, EBS {ebs} of each flow (RFC 2697)")
            }
            Self::TwoRate { cir, cbs, pir, pbs } => {
                write!(f, "CIR {cir}, CBS {cbs}, PIR {pir}, PBS {pbs} of each flow (RFC 2698)")
            }
        }
    }
}

impl FunctionSpec for Policer {
    fn name(&self) -> &'static str {
        "policer"
    }

    fn resume(&mut self, old: &dyn FunctionSpec) -> bool {
        is_equal(self, old)
    }

    /// No bucket holds more than it does now; what it held more is lost.
    fn adopt(&mut self, words: &mut [u64]) -> bool {
        let full = match &self.marker {
            Marker::SingleRate(marker) => marker.full_at(0),
            Marker::TwoRate(marker) => marker.full_at(0),
        };
        words[0] = words[0].min(full.committed);
        words[1] = words[1].min(full.outer);
        true
    }

    fn describe(&self) -> Vec<String> {
        let colours = || NAMES.into_iter().zip(self.actions);
        let mut lines = vec![self.terms.to_string()];
        if let Some(others) = self.others {
            let others = NAMES[others as usize];
            lines.push(format!(
                "colour-aware: AFx1 comes green, AFx2 yellow, AFx3 red, others {others} (RFC 2597)"
            ));
        }
        let dropped: Vec<_> =
            colours().filter(|&(_, action)| action == Action::Drop).map(|(name, _)| name).collect();
        match &dropped[..] {
            [] => lines.push("colours are counted, all packets pass".into()),
            names => lines.push(format!("{} packets are dropped", names.join(" and "))),
        }
        let marked = colours().filter_map(|(name, action)| Some((name, action.dscp()?)));
        lines.extend(marked.map(|(name, dscp)| format!("{name} packets get DSCP {dscp}")));
        lines
    }

    fn form(&self) -> Form<'_> {
        Form::PerFlow(self)
    }
}

impl PerFlow for Policer {
    fn keeps(&self) -> StateSpec {
        let by = &[By::Source, By::FiveTuple];
        StateSpec { flows: self.flows.clone(), by, words: state_words::<Levels>() }
    }

    /// The second bucket of one marker is not that of the other.
    fn version(&self) -> u32 {
        match self.marker {
            Marker::SingleRate(_) => 1,
            Marker::TwoRate(_) => 2,
        }
    }

    fn function(&self, at: StateAt) -> Box<dyn FlowFunction> {
        Box::new(cpu::PolicerCpu::new(at, self))
    }

    fn oracle(&self) -> Box<dyn FlowOracle> {
        Box::new(oracle::PolicerOracle::new(self.terms, self.others, self.actions))
    }

    fn kernel(&self) -> Option<DeviceKernel> {
        const NONE: u32 = u32::MAX;
        const TEXTS: &[Text] = &[
            bucket::KERNEL,
            Text {
                name: "policer",
                source: include_str!("policer.kernel.c"),
                constants: &[
                    ("POLICER_GREEN", Colour::Green as u32),
                    ("POLICER_YELLOW", Colour::Yellow as u32),
                    ("POLICER_RED", Colour::Red as u32),
                    ("POLICER_NONE", NONE),
                ],
            },
        ];
        let (([first, second], full), has_two_rates) = match &self.marker {
            Marker::SingleRate(marker) => (marker.buckets(), false),
            Marker::TwoRate(marker) => (marker.buckets(), true),
        };
        let dscp = |action: Action| action.dscp().map_or(NONE, |dscp| u32::from(dscp.number()));
        let parameters = PolicerParameters {
            first,
            second,
            committed_full: full.committed,
            outer_full: full.outer,
            has_two_rates: has_two_rates.into(),
            verdicts: self.actions.map(|action| action.verdict().code().into()),
            dscps: self.actions.map(dscp),
            others: self.others.map_or(NONE, |others| others as u32),
        };
        Some(DeviceKernel::new(KernelSpec {
            state: Some(Levels::LAYOUT),
            parameters: Parameters::of(&parameters),
            totals: Some(PolicerTotals::LAYOUT),
            dscps: self.others.is_some(),
            ..KernelSpec::new("policer", TEXTS)
        }))
    }
}

packetloom_memory::layout! {
    /// What its step is given.
    #[derive(Clone, Copy, NoUninit)]
    struct PolicerParameters {
        /// With one rate the first bucket is both.
        first: BucketTerms,
        second: BucketTerms,
        committed_full: u64,
        outer_full: u64,
        has_two_rates: u32,
        /// By colour: the verdict, and the DSCP that packets get, or POLICER_NONE.
        verdicts: [u32; 3],
        dscps: [u32; 3],
        /// The colour of packets whose DSCP says none, or POLICER_NONE where all are green before.
        others: u32,
    }
}

packetloom_memory::layout! {
    /// What its step counts: of each colour.
    #[derive(Clone, Copy, Pod, Zeroable)]
    struct PolicerTotals {
        colours: [Tally; 3],
    }
}

/// What a policer counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicerReport {
    /// Packets and IP bytes of each colour: green, yellow, red.
    pub colours: [[u64; 2]; 3],
}

/// In the order of [`PolicerReport::colours`].
const NAMES: [&str; 3] = ["green", "yellow", "red"];

impl PolicerReport {
    fn add(&mut self, counted: &[u64]) {
        let counted: PolicerTotals = flows::counted(counted).0;
        for ([packets, bytes], counted) in self.colours.iter_mut().zip(counted.colours) {
            *packets += counted.packets;
            *bytes += counted.bytes;
        }
    }

    #[inline]
    fn count(&mut self, colour: Colour, bytes: u32) {
        let [packets, all] = &mut self.colours[colour as usize];
        *packets += 1;
        *all += u64::from(bytes);
    }
}

/// What it counted, for machines.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Summary {
    /// Packets that conform.
    green: Volume,
    /// Packets that exceed.
    yellow: Volume,
    /// Packets that violate.
    red: Volume,
}

impl Report for PolicerReport {
    fn merge(&mut self, other: &dyn Report) {
        let Some(other) = (other as &dyn Any).downcast_ref::<Self>() else { return };
        for (own, other) in self.colours.iter_mut().flatten().zip(other.colours.iter().flatten()) {
            *own += other;
        }
    }

    fn json(&self) -> serde_json::Value {
        let [green, yellow, red] = self.colours.map(Volume::from);
        summary::value(&Summary { green, yellow, red })
    }

    fn rows(&self) -> Vec<(String, String)> {
        let row = |(&name, [packets, bytes]): (&&str, [u64; 2])| {
            (name.to_owned(), format!("{packets} packets, {bytes} IP bytes"))
        };
        NAMES.iter().zip(self.colours).map(row).collect()
    }
}
