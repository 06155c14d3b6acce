//! `scan`: sources that try many addresses or ports, or that mostly fail.
//!
//! - `fan-out` ([`fan_out`]): a source that contacts as many distinct services as `threshold` within `window`, by TCP packets with SYN
//!   and without ACK and by first packets of UDP flows. Which those are, a second definition says, by 5-tuple (`sessions`); with
//!   `udp = false` there is none.
//! - `trw` ([`trw`]): a source whose first TCP contacts of destinations fail so often that it is hardly an honest one. It is by
//!   [`By::Initiator`], so that answers come to the entry of the source that they are for, and packets spread by that keep
//!   results exact.
//!
//! What is found is a scanner for `block_for`, or until it was silent for the definition's timeout; meanwhile nothing else is
//! counted of it. Other scans (FIN, NULL, Xmas, ICMP) are not looked for.
//!
//! - Shape: four words of the source's entry ([`fan_out::Window`]), or five ([`trw::Walk`]); none of the UDP flow's.
//! - Verdict: pass; with `action = "drop"` all packets of a scanner's entry are dropped with `scan`, the one by which it was found
//!   included, as they are by lists of blocked addresses.
//! - At the end: attempts, answers, and detections, the first of them one by one.

mod config;
mod contact;
mod cpu;
pub mod fan_out;
mod oracle;
pub mod trw;

#[cfg(test)]
mod tests;

use std::any::Any;
use std::net::IpAddr;

use bytemuck::{NoUninit, Pod, Zeroable};
use packetloom_memory::LaidOut;
use packetloom_packet::{DropReason, Timestamp, Verdict};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

pub use self::config::{Config, Kind, Threshold};
use self::cpu::Steps;
use self::fan_out::{FanOut, Window};
use self::trw::{Hypotheses, Test, Walk};
use crate::flows::{
    self, By, DeviceKernel, FlowFunction, FlowGroup, FlowOracle, KernelSpec, LISTED, ListRecord, Parameters,
    StateAt, StateSpec, Tally, Text, state_words,
};
use crate::summary::{self, Volume};
use crate::units::Span;
use crate::{Form, FunctionSpec, PerFlow, Report};

/// A detector ready to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scan {
    flows: Option<String>,
    sessions: Option<String>,
    method: Method,
    block_for: Span,
    action: Action,
    seed: u64,
    /// Whether bits of the state that it takes over mean other contacts, or steps other probabilities.
    begins_anew: bool,
}

/// What makes a scanner of a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Method {
    FanOut { threshold: u32, window: Span, distinct: Distinct, udp: bool },
    Trw(Hypotheses),
}

/// What makes contacts distinct.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Distinct {
    /// The destination address: a horizontal scan.
    Destinations,
    /// Protocol and destination port, wherever: a vertical scan.
    Ports,
    /// Address, protocol and port: either.
    #[default]
    Both,
}

impl Distinct {
    const fn name(self) -> &'static str {
        match self {
            Self::Destinations => "destinations",
            Self::Ports => "ports",
            Self::Both => "both",
        }
    }
}

/// What becomes of a scanner's packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// They are counted, and pass.
    #[default]
    Count,
    /// They are dropped.
    Drop,
}

/// What a packet is to its source's entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contact {
    /// Nothing in particular.
    None,
    /// It opens a connection to a destination with this hash.
    Opens(u64),
    /// The destination with this hash answers.
    Answers(u64),
}

/// What was found out by a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judged {
    /// Nothing.
    Nothing,
    /// It is an attempt that counts.
    Attempt,
    /// It answers one.
    Answer,
    /// It is an attempt, and its source now a scanner, after so many with this one.
    Detected {
        /// Attempts that counted.
        attempts: u32,
    },
    /// It is a scanner's.
    Scanner,
}

impl Judged {
    /// Whether it is a scanner's packet.
    const fn is_of_scanner(self) -> bool {
        matches!(self, Self::Detected { .. } | Self::Scanner)
    }
}

impl Action {
    #[inline]
    const fn verdict(self, judged: Judged) -> Verdict {
        match (self, judged.is_of_scanner()) {
            (Self::Drop, true) => Verdict::Drop(DropReason::Scan),
            _ => Verdict::Pass,
        }
    }
}

/// Bits that are set.
#[inline]
const fn ones(bits: u64) -> u32 {
    bits.count_ones()
}

impl FunctionSpec for Scan {
    fn name(&self) -> &'static str {
        "scan"
    }

    fn resume(&mut self, old: &dyn FunctionSpec) -> bool {
        let Some(old) = (old as &dyn Any).downcast_ref::<Self>() else { return false };
        *self == Self { begins_anew: false, ..old.clone() }
    }

    fn inherit(&mut self, legend: &serde_json::Value) -> Result<(), String> {
        self.begins_anew = *legend != self.legend();
        Ok(())
    }

    /// Who is a scanner stays one.
    fn adopt(&mut self, words: &mut [u64]) -> bool {
        match self.method {
            Method::FanOut { .. } => {
                let window: &mut Window = bytemuck::from_bytes_mut(bytemuck::cast_slice_mut(words));
                window.bound();
                !self.begins_anew || window.is_scanner()
            }
            Method::Trw(_) => {
                let walk: &mut Walk = bytemuck::from_bytes_mut(bytemuck::cast_slice_mut(words));
                walk.bound();
                !self.begins_anew || walk.is_scanner()
            }
        }
    }

    fn describe(&self) -> Vec<String> {
        let found = match self.method {
            Method::FanOut { threshold, window, distinct, udp } => {
                let what = match distinct {
                    Distinct::Destinations => "addresses",
                    Distinct::Ports => "ports",
                    Distinct::Both => "addresses and ports",
                };
                let udp = if udp { "TCP and UDP" } else { "TCP" };
                let within = match window.limit() {
                    Some(_) => format!(" within {window}"),
                    None => String::new(),
                };
                format!("sources that contact {threshold} {what}{within} by {udp} are scanners")
            }
            Method::Trw(hypotheses) => {
                let failures = self.test(&hypotheses).failures();
                format!(
                    "sources whose first TCP contacts mostly fail are scanners: {failures} failures at the beginning"
                )
            }
        };
        let until = match self.block_for.limit() {
            Some(_) => format!("for {}", self.block_for),
            None => "until they are forgotten".into(),
        };
        let becomes = match self.action {
            Action::Count => "their packets are counted",
            Action::Drop => "their packets are dropped",
        };
        vec![found, format!("{becomes} {until}")]
    }

    fn form(&self) -> Form<'_> {
        Form::PerFlow(self)
    }
}

impl Scan {
    /// Nanoseconds for which a source is a scanner.
    fn nanos(&self) -> u64 {
        self.block_for.limit().unwrap_or(u64::MAX)
    }

    fn test(&self, hypotheses: &Hypotheses) -> Test {
        hypotheses.test(self.nanos())
    }

    fn steps(&self) -> Steps {
        match self.method {
            Method::FanOut { threshold, window, distinct, udp } => {
                let window = window.limit().unwrap_or(u64::MAX);
                Steps::FanOut(FanOut::new(threshold, window, self.nanos()), distinct, udp)
            }
            Method::Trw(hypotheses) => Steps::Trw(self.test(&hypotheses)),
        }
    }
}

impl PerFlow for Scan {
    fn keeps(&self) -> StateSpec {
        let (by, words): (&[By], _) = match self.method {
            Method::FanOut { .. } => (&[By::Source, By::Initiator], state_words::<Window>()),
            Method::Trw(_) => (&[By::Initiator], state_words::<Walk>()),
        };
        StateSpec { flows: self.flows.clone(), by, words }
    }

    fn version(&self) -> u32 {
        match self.method {
            Method::FanOut { .. } => 1,
            Method::Trw(_) => 2,
        }
    }

    fn legend(&self) -> serde_json::Value {
        let seed = self.seed;
        match self.method {
            Method::FanOut { threshold, distinct, .. } => {
                json!({ "seed": seed, "distinct": distinct.name(), "part": fan_out::part(threshold) })
            }
            Method::Trw(Hypotheses { theta0, theta1, .. }) => {
                json!({ "seed": seed, "theta0": theta0.millionths(), "theta1": theta1.millionths() })
            }
        }
    }

    fn remembers(&self) -> Option<StateSpec> {
        match self.method {
            Method::FanOut { udp: true, .. } => {
                Some(StateSpec { flows: self.sessions.clone(), by: &[By::FiveTuple], words: 0 })
            }
            _ => None,
        }
    }

    fn function(&self, at: StateAt) -> Box<dyn FlowFunction> {
        Box::new(cpu::ScanCpu::new(at, self.steps(), self.action, self.seed))
    }

    fn oracle(&self) -> Box<dyn FlowOracle> {
        Box::new(oracle::ScanOracle::new(self))
    }

    fn kernel(&self) -> Option<DeviceKernel> {
        const COMMON: Text = Text {
            name: "scan",
            source: include_str!("scan.kernel.c"),
            constants: &[("SCAN_SCANNER_BIT", Window::SCANNER_BIT as u32)],
        };
        const FAN_OUT: &[Text] = &[
            COMMON,
            Text {
                name: "fan_out",
                source: include_str!("fan_out.kernel.c"),
                constants: &[
                    ("FAN_OUT_DESTINATIONS", Distinct::Destinations as u32),
                    ("FAN_OUT_PORTS", Distinct::Ports as u32),
                ],
            },
        ];
        const TRW: &[Text] = &[
            COMMON,
            Text {
                name: "trw",
                source: include_str!("trw.kernel.c"),
                constants: &[("TRW_IN_USE", trw::IN_USE)],
            },
        ];
        let (seed, verdict) = (self.seed, self.action.verdict(Judged::Scanner).code().into());
        let spec = match self.steps() {
            Steps::FanOut(terms, distinct, udp) => KernelSpec {
                state: Some(Window::LAYOUT),
                parameters: Parameters::of(&FanOutParameters {
                    terms,
                    seed,
                    distinct: distinct as u32,
                    udp: udp.into(),
                    verdict,
                    // The engine says which bit it is.
                    note: 0,
                }),
                ..KernelSpec::new("fan_out", FAN_OUT)
            },
            Steps::Trw(test) => KernelSpec {
                state: Some(Walk::LAYOUT),
                parameters: Parameters::of(&TrwParameters { test, seed, verdict, reserved: 0 }),
                ..KernelSpec::new("trw", TRW)
            },
        };
        Some(DeviceKernel::new(KernelSpec {
            flow_group: FlowGroup::Own,
            totals: Some(Tally::LAYOUT),
            more: vec![(ScanMore::LAYOUT, 1)],
            lists: true,
            ..spec
        }))
    }
}

packetloom_memory::layout! {
    /// What the step of `fan-out` is given.
    #[derive(Clone, Copy, NoUninit)]
    struct FanOutParameters {
        terms: FanOut,
        /// Of the hashes.
        seed: u64,
        /// What makes contacts distinct: a [`Distinct`].
        distinct: u32,
        /// Whether contacts of UDP count.
        udp: u32,
        /// On packets of scanners.
        verdict: u32,
        /// Says of a packet that it begins a flow, where those of UDP count.
        note: u32,
    }
}

packetloom_memory::layout! {
    /// What the step of `trw` is given.
    #[derive(Clone, Copy, NoUninit)]
    struct TrwParameters {
        test: Test,
        /// Of the hashes.
        seed: u64,
        /// On packets of scanners.
        verdict: u32,
        reserved: u32,
    }
}

packetloom_memory::layout! {
    /// What steps count beside packets and bytes of scanners.
    #[derive(Clone, Copy, Pod, Zeroable)]
    struct ScanMore {
        attempts: u64,
        answers: u64,
        detections: u64,
    }
}

/// A source that was found to be a scanner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Detection {
    /// When.
    pub time: Timestamp,
    /// Its address.
    pub source: IpAddr,
    /// Its attempts that counted, in the window or since its entry was made.
    pub attempts: u32,
}

/// Detections that people are shown, of those that are reported one by one.
const SHOWN: usize = 10;

/// What a detector counted.
#[derive(Clone, Debug)]
pub struct ScanReport {
    /// Attempts that counted: with `fan-out`, TCP packets with SYN and without ACK and first packets of UDP flows; with `trw`, first
    /// contacts.
    pub attempts: u64,
    /// Those that were answered; only `trw` looks.
    pub answered: Option<u64>,
    /// Sources that were found to be scanners, one that was found twice counted twice.
    pub detections: u64,
    /// Packets and IP bytes of scanners, from the packet on by which each was found.
    pub scanners: [u64; 2],
    /// The first detections, in no order, and perhaps some more.
    first: Vec<Detection>,
}

impl ScanReport {
    /// Of a detector that looks at answers or does not.
    fn new(looks_at_answers: bool) -> Self {
        let answered = looks_at_answers.then_some(0);
        let first = Vec::with_capacity(2 * LISTED);
        Self { attempts: 0, answered, detections: 0, scanners: [0; 2], first }
    }

    /// Counts a packet of so many bytes.
    #[inline]
    fn count(&mut self, judged: Judged, bytes: u32) {
        let is_attempt = matches!(judged, Judged::Attempt | Judged::Detected { .. });
        self.attempts += u64::from(is_attempt);
        if let (Judged::Answer, Some(answered)) = (judged, &mut self.answered) {
            *answered += 1;
        }
        if judged.is_of_scanner() {
            self.scanners[0] += 1;
            self.scanners[1] += u64::from(bytes);
        }
    }

    #[cold]
    fn detect(&mut self, detection: Detection) {
        self.detections += 1;
        self.list(detection);
    }

    fn list(&mut self, detection: Detection) {
        self.first.push(detection);
        if self.first.len() == 2 * LISTED {
            self.first.sort_unstable();
            self.first.truncate(LISTED);
        }
    }

    /// Adds what a device counted: see `scan.kernel.c`.
    fn add(&mut self, counted: &[u64]) {
        let (Tally { packets, bytes }, counted) = flows::counted(counted);
        let (ScanMore { attempts, answers, detections }, listed) = flows::counted(counted);
        self.scanners[0] += packets;
        self.scanners[1] += bytes;
        self.attempts += attempts;
        if let Some(own) = &mut self.answered {
            *own += answers;
        }
        self.detections += detections;
        for &ListRecord { time, is_v6, source, number } in bytemuck::cast_slice(listed) {
            let (time, attempts) = (Timestamp::from_nanos(time), number as u32);
            let version = if is_v6 == 0 { 4 } else { 6 };
            self.list(Detection { time, source: contact::address(source, version), attempts });
        }
    }

    /// The first detections: by time, at one time by address.
    pub fn first(&self) -> Vec<Detection> {
        let mut first = self.first.clone();
        first.sort_unstable();
        first.truncate(LISTED);
        first
    }
}

/// What it counted, for machines.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Summary {
    /// Attempts that counted: with `fan-out`, TCP packets with SYN and without ACK and first packets of UDP flows; with `trw`, first
    /// contacts.
    attempts: u64,
    /// Sources that were found to be scanners, one that was found twice counted twice.
    detections: u64,
    /// Packets of scanners, from the packet on by which each was found.
    scanners: Volume,
    /// The first detections, by time.
    first: Vec<Detected>,
    /// Attempts that were answered; only `trw` looks.
    #[serde(skip_serializing_if = "Option::is_none")]
    answered: Option<u64>,
}

/// A scanner that was found.
#[derive(Serialize, JsonSchema)]
struct Detected {
    /// Its address.
    source: IpAddr,
    /// When, in microseconds since 1970.
    microseconds: u64,
    /// Attempts until then.
    attempts: u32,
}

impl Report for ScanReport {
    fn merge(&mut self, other: &dyn Report) {
        let Some(other) = (other as &dyn Any).downcast_ref::<Self>() else { return };
        self.attempts += other.attempts;
        if let (Some(own), Some(other)) = (&mut self.answered, other.answered) {
            *own += other;
        }
        self.detections += other.detections;
        for (own, other) in self.scanners.iter_mut().zip(other.scanners) {
            *own += other;
        }
        self.first.extend(&other.first);
        self.first = self.first();
    }

    fn json(&self) -> serde_json::Value {
        let first = self.first().into_iter().map(|Detection { time, source, attempts }| Detected {
            source,
            microseconds: time.as_micros(),
            attempts,
        });
        summary::value(&Summary {
            attempts: self.attempts,
            detections: self.detections,
            scanners: self.scanners.into(),
            first: first.collect(),
            answered: self.answered,
        })
    }

    fn rows(&self) -> Vec<(String, String)> {
        let [packets, bytes] = self.scanners;
        let attempts = match self.answered {
            Some(answered) => ("first contacts", format!("{}, {answered} answered", self.attempts)),
            None => ("contacts", self.attempts.to_string()),
        };
        let counts = [
            attempts,
            ("scanners found", self.detections.to_string()),
            ("packets of scanners", format!("{packets} packets, {bytes} IP bytes")),
        ];
        let counts = counts.into_iter().map(|(name, value)| (name.to_owned(), value));
        let row = |Detection { time, source, attempts }: Detection| {
            let (seconds, micros) = (time.as_micros() / 1_000_000, time.as_micros() % 1_000_000);
            (source.to_string(), format!("found at {seconds}.{micros:06}, after {attempts} attempts"))
        };
        counts.chain(self.first().into_iter().take(SHOWN).map(row)).collect()
    }
}
