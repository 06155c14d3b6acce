//! The chain file.
//!
//! ```toml
//! [source]
//! capture = "in.pcap"
//!
//! [flows.sessions]
//! by = "5-tuple"
//!
//! [[chain]]
//! nf = "acl"
//! rules = "edge.rules"
//!
//! [sink]
//! capture = "permitted.pcap"
//!
//! [run]
//! workers = 2
//! ```
//!
//! Paths are relative to the chain file's folder; `-` is standard input or output.

use std::collections::BTreeMap;
use std::fmt;
use std::num::{NonZeroU32, NonZeroUsize};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use packetloom_classify::formats::did_you_mean;
use packetloom_device::Id;
use packetloom_io::output::{Rotation, cannot_rotate};
use packetloom_io::port::{Backend, Mode, OnExit};
use packetloom_nf::registry::{FUNCTIONS, Registration};
use packetloom_nf::units::{Bounded, FileSize, Span};
use packetloom_nf::{Config, Context, FunctionSpec, RuleName, Watch, acl, flows};
use packetloom_packet::batch::Policy;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, de};
use toml::Spanned;
use toml::de::{DeTable, DeValue, ValueDeserializer};

use crate::ConfigError;
use crate::layout::Layout;
use crate::offload::Placement;

/// A chain that was read and whose functions are ready to run.
pub struct Chain {
    /// Where packets come from and go to, and how they are run.
    pub settings: Settings,
    /// The functions, in order.
    pub(crate) functions: Vec<Arc<dyn FunctionSpec>>,
    /// Where they keep their state.
    pub(crate) layout: Layout,
    /// The flow definitions that there are, used or not.
    flows: BTreeMap<String, flows::Definition>,
}

/// Everything of a chain file but the functions.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Where packets come from.
    pub source: Option<Origin>,
    /// The capture to write the packets to that pass.
    pub sink: Option<PathBuf>,
    /// The pcapng file to write them to beside: of all link types and interfaces.
    pub extracted: Option<PathBuf>,
    /// The same for those that are dropped.
    pub dropped: Option<PathBuf>,
    /// The same for those that rules matched, and which rules.
    pub matched: Option<(PathBuf, Watch)>,
    /// How it is run.
    pub run: Run,
}

/// Where packets come from: a capture or network interfaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Pcap or pcapng files, folders of them, or patterns, as [`Selection::of`](packetloom_io::capture::Selection::of) takes them.
    Captures(Vec<PathBuf>),
    /// Network interfaces.
    Interfaces(Interfaces),
}

/// Network interfaces that packets come from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interfaces {
    /// Their names; inline the first two are a pair, the next two, and so on.
    pub names: Vec<String>,
    /// Whether packets that pass leave by the other interface of the pair, in the kernel's place, and what becomes of these when the run
    /// ends; none where packets are only looked at.
    pub inline: Option<OnExit>,
    /// How the kernel hands over packets.
    pub backend: Backend,
}

impl Interfaces {
    /// What is done with packets.
    pub fn mode(&self) -> Mode {
        if self.inline.is_some() { Mode::Inline } else { Mode::Monitor }
    }

    /// Refuses what does not go together.
    ///
    /// # Errors
    ///
    /// A name stands twice, there are too few, too many or, inline, an odd number of them, or the backend takes from the kernel what is only to
    /// be looked at.
    pub fn check(self) -> Result<Self, String> {
        let Self { names, inline, backend } = &self;
        if let Some((_, name)) = names.iter().enumerate().find(|(at, name)| names[..*at].contains(name)) {
            return Err(format!("interface {name:?} is named twice; expected different interfaces"));
        }
        if inline.is_none() && *backend == Backend::AfXdp {
            return Err("backend \"af_xdp\" without mode \"inline\": the kernel would not get the packets that are only to be looked at; \
                 expected \"af_packet\" or \"auto\""
                .into());
        }
        match (inline, names.len()) {
            (Some(_), count) if count % 2 == 1 || count == 0 => Err(format!(
                "mode \"inline\" with {count} {}; expected two, or several pairs: what passes from the first leaves by the second, from the \
                 third by the fourth",
                if count == 1 { "interface" } else { "interfaces" }
            )),
            (_, 1..=MAX_INTERFACES) => Ok(self),
            (_, count) => Err(format!("{count} interfaces; expected 1 to {MAX_INTERFACES} of them")),
        }
    }
}

impl Origin {
    /// The captures, if it is such.
    pub fn captures(&self) -> &[PathBuf] {
        match self {
            Self::Captures(paths) => paths,
            Self::Interfaces(..) => &[],
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Captures(paths) => {
                let names: Vec<_> = paths.iter().map(|path| path.display().to_string()).collect();
                f.write_str(&listed(&names))
            }
            Self::Interfaces(interfaces) => interfaces.fmt(f),
        }
    }
}

impl fmt::Display for Interfaces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.inline {
            Some(_) => {
                let pairs: Vec<_> = self.names.chunks(2).map(listed).collect();
                write!(f, "{}, inline", pairs.join(", "))?;
            }
            None => f.write_str(&listed(&self.names))?,
        }
        match self.backend {
            Backend::AfPacket => {}
            Backend::AfXdp => f.write_str(", backend af_xdp")?,
            Backend::Auto => f.write_str(", backend auto")?,
        }
        if self.inline == Some(OnExit::Open) { f.write_str(", on exit open") } else { Ok(()) }
    }
}

/// Names, the last one after "and".
fn listed(names: &[String]) -> String {
    match names {
        [rest @ .., last] if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
        names => names.concat(),
    }
}

/// Interfaces of a run, at most.
pub const MAX_INTERFACES: usize = 64;

/// Where packets come from.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "source")]
pub struct Source {
    /// A pcap or pcapng file, plain or in gzip, xz or zstd; "-" is standard input. Or a folder, for the captures in it, a pattern with *, ? and
    /// [...], or several of these: they are read as one, in the order of the times of their first packets.
    pub capture: Option<Captures>,
    /// A network interface, or several.
    pub interface: Option<Names>,
    /// What is done with packets of interfaces; monitor unless given.
    pub mode: Option<SourceMode>,
    /// How the kernel hands over packets of interfaces; af_packet unless given.
    pub backend: Option<SourceBackend>,
    /// Inline, what becomes of packets when the run has ended, in whatever way; closed unless given.
    pub on_exit: Option<SourceOnExit>,
}

/// One capture or several.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "expected a capture in quotes, or several: [\"a.pcap\", \"b.pcap\"]")]
pub enum Captures {
    /// One.
    One(PathBuf),
    /// Several.
    Several(Vec<PathBuf>),
}

/// One name or several.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "expected a name in quotes, or several: [\"eth0\", \"eth1\"]")]
pub enum Names {
    /// One.
    One(String),
    /// Several.
    Several(Vec<String>),
}

/// What is done with the packets of network interfaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SourceMode {
    /// They are looked at, and the kernel handles them as well.
    Monitor,
    /// What passes from one of two interfaces leaves by the other, or of several pairs of interfaces; the kernel does not handle it.
    Inline,
}

/// What becomes of packets between the interfaces of an inline run that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SourceOnExit {
    /// None pass.
    Closed,
    /// All pass, by a bridge of the kernel.
    Open,
}

impl From<SourceOnExit> for OnExit {
    fn from(on_exit: SourceOnExit) -> Self {
        match on_exit {
            SourceOnExit::Closed => Self::Closed,
            SourceOnExit::Open => Self::Open,
        }
    }
}

/// How the kernel hands over packets of network interfaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SourceBackend {
    /// AF_XDP where all drivers run XDP programs and the mode is inline, else packet sockets.
    Auto,
    /// Packet sockets.
    AfPacket,
    /// AF_XDP sockets; only inline. The drivers run the XDP program, or else the kernel does.
    AfXdp,
}

impl From<SourceBackend> for Backend {
    fn from(backend: SourceBackend) -> Self {
        match backend {
            SourceBackend::Auto => Self::Auto,
            SourceBackend::AfPacket => Self::AfPacket,
            SourceBackend::AfXdp => Self::AfXdp,
        }
    }
}

impl Source {
    /// What it names.
    fn origin(self, context: Context<'_>) -> Result<Option<Origin>, String> {
        let backend = self.backend.map(Backend::from);
        if backend.is_some() && self.interface.is_none() {
            return Err("backend without interface; expected interface = [\"eth0\", \"eth1\"]".into());
        }
        let on_exit = self.on_exit.map(OnExit::from);
        if on_exit.is_some() && self.mode != Some(SourceMode::Inline) {
            return Err(
                "on_exit without mode = \"inline\": packets that are only looked at pass in any case".into(),
            );
        }
        match (self.capture, self.interface, self.mode) {
            (Some(_), Some(_), _) => Err("both capture and interface; expected one of them".into()),
            (_, None, Some(_)) => {
                Err("mode without interface; expected interface = [\"eth0\", \"eth1\"]".into())
            }
            (None, None, None) => Ok(None),
            (Some(captures), None, None) => {
                let paths = match captures {
                    Captures::One(path) => vec![path],
                    Captures::Several(paths) if paths.is_empty() => {
                        return Err("capture = []; expected one capture or several".into());
                    }
                    Captures::Several(paths) => paths,
                };
                Ok(Some(Origin::Captures(paths.iter().map(|path| context.resolve(path)).collect())))
            }
            (None, Some(names), mode) => {
                let names = match names {
                    Names::One(name) => vec![name],
                    Names::Several(names) => names,
                };
                let inline = (mode == Some(SourceMode::Inline)).then(|| on_exit.unwrap_or_default());
                let interfaces = Interfaces { names, inline, backend: backend.unwrap_or_default() };
                interfaces.check().map(Origin::Interfaces).map(Some)
            }
        }
    }
}

/// Where packets go that passed the chain.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "sink")]
pub struct Sink {
    /// A pcap file to be written; "-" is standard output. Without it, packets that pass are only counted.
    pub capture: Option<PathBuf>,
    /// A pcapng file to be written with the packets that are dropped, as they came, each with the reason as its comment; "-" is standard output.
    pub dropped: Option<PathBuf>,
    /// A pcapng file to be written with the packets that rules of an acl matched, whether they pass or not, each with its rules as comments:
    /// "FILE" for all rules, or { file = "FILE", rule = "ID", mark = N } for some. "-" is standard output.
    pub matched: Option<Matched>,
}

/// A capture of packets that rules matched.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "expected a file in quotes, or { file = \"FILE\", rule = \"ID\", mark = 7 }")]
pub enum Matched {
    /// Of those of any rule.
    All(PathBuf),
    /// Of those of some.
    Some(MatchedBy),
}

/// Which packets that rules matched.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MatchedBy {
    /// The file.
    pub file: PathBuf,
    /// A rule's id or its line in the rule file, or several; any rule unless given.
    pub rule: Option<RuleNames>,
    /// The mark that packets carry in the end, which one of the rules has set; any or none unless given.
    pub mark: Option<NonZeroU32>,
}

/// One rule or several.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "expected the id of a rule in quotes, its line, or several: [\"telnet\", 12]")]
pub enum RuleNames {
    /// One.
    One(OneRule),
    /// Several.
    Several(Vec<OneRule>),
}

/// A rule.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "expected the id of a rule in quotes, or its line")]
pub enum OneRule {
    /// By its id.
    Id(String),
    /// By its line in the rule file.
    Line(u32),
}

impl Matched {
    /// The file, and the rules.
    fn into_parts(self) -> (PathBuf, Watch) {
        let MatchedBy { file, rule, mark } = match self {
            Self::All(file) => return (file, Watch::default()),
            Self::Some(by) => by,
        };
        let rules = match rule {
            None => Vec::new(),
            Some(RuleNames::One(rule)) => vec![rule],
            Some(RuleNames::Several(rules)) => rules,
        };
        let name = |rule| match rule {
            OneRule::Id(id) => RuleName::Id(id),
            OneRule::Line(line) => RuleName::Line(line),
        };
        (file, Watch { rules: rules.into_iter().map(name).collect(), mark: mark.map(NonZeroU32::get) })
    }
}

/// How a chain is run.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(rename = "run")]
pub struct Run {
    /// What runs the functions.
    pub device: Device,
    /// Worker threads.
    pub workers: Workers,
    /// Packets of a batch on the processor: 512 unless given. Those for a device follow the load.
    pub batch: BatchSize,
    /// How long a batch may take from when it was read to its verdicts, where a device is used: batches are made smaller until they are
    /// in time.
    pub max_latency: Option<Span>,
    /// How long a batch may be away before the device counts as one that hangs; 2 s for GPUs unless given.
    pub device_timeout: Option<Span>,
    /// From one copy of the state that a device keeps to the next: 1 s unless given, 10ms or more. What packets change between two is lost where
    /// the device fails.
    pub device_copy_every: Option<Span>,
    /// What happens to frames of protocols that are known not to carry IP, such as ARP.
    pub non_ip: PolicyAction,
    /// What happens to frames that may carry IP in a framing that is not known; unless given, a chain with an acl drops them, and others let
    /// them pass.
    pub unknown_framing: Option<PolicyAction>,
    /// What happens to frames whose headers cannot be parsed.
    pub malformed: PolicyAction,
    /// What workers do while no packet comes by interfaces.
    pub idle: Idle,
    /// The file for the summary, as JSON; "-" is standard output.
    pub summary: Option<PathBuf>,
    /// The Unix socket by which the run is asked for its counters, and told what to do.
    pub control: Option<PathBuf>,
    /// The run is killed where it hangs for so long, 500ms or more, with packets of interfaces; it is not unless given.
    pub watchdog: Option<Span>,
    /// How often the run says what it has counted so far: 10ms or more, "0" is never.
    pub stats_every: Option<Span>,
    /// The file that each of these is appended to as a line of JSON; unless given, they are said on standard error. "-" is standard output.
    pub stats_output: Option<PathBuf>,
    /// Captures, records and logs are files after one another, which begin at multiples of this time, 1s or more: FILE-20261127T150000Z-000001.
    pub rotate_every: Option<Span>,
    /// Captures, records and logs are files after one another of so many bytes at most, 1000 or more.
    pub rotate_size: Option<FileSize>,
    /// How many of these files stay, the last ones of each output; all of them unless given.
    pub rotate_keep: Option<Kept>,
}

/// The shortest time, in nanoseconds, from one thing to the next that a run does from time to time.
const SHORTEST: u64 = 10_000_000;

/// A time from one thing to the next that a run does from time to time; none is never.
///
/// # Errors
///
/// It is too short, and what was expected.
pub fn interval(span: Span) -> Result<Span, String> {
    match span.limit() {
        Some(nanos) if nanos < SHORTEST => Err(format!("{span}; expected 10ms or more, or 0 for never")),
        _ => Ok(span),
    }
}

/// The shortest time, in nanoseconds, after which a run counts as one that hangs, and the time after which a device does unless one is given.
const SHORTEST_HANG: u64 = 500_000_000;
const DEVICE_TIMEOUT: Span = Span::from_secs(2);

/// A time after which a run counts as one that hangs; none is never.
///
/// # Errors
///
/// It is too short, and what was expected.
pub fn hang_time(span: Span) -> Result<Span, String> {
    match span.limit() {
        Some(nanos) if nanos < SHORTEST_HANG => {
            Err(format!("{span}; expected 500ms or more, or 0 for never"))
        }
        _ => Ok(span),
    }
}

/// The shortest time that a file of several is for, in nanoseconds, and the least bytes of one.
const SHORTEST_FILE: u64 = 1_000_000_000;
const SMALLEST_FILE: u64 = 1_000;

/// A time that each file of several is for; none is any.
///
/// # Errors
///
/// It is too short, and what was expected.
pub fn rotation_time(span: Span) -> Result<Span, String> {
    match span.limit() {
        Some(nanos) if nanos < SHORTEST_FILE => {
            Err(format!("{span}; expected 1s or more, or 0 for no limit"))
        }
        _ => Ok(span),
    }
}

/// The bytes of each file of several, at most.
///
/// # Errors
///
/// They are too few, and what was expected.
pub fn rotation_size(size: FileSize) -> Result<FileSize, String> {
    if size.bytes() < SMALLEST_FILE {
        return Err(format!("{size}; expected 1kB or more"));
    }
    Ok(size)
}

impl Default for Run {
    fn default() -> Self {
        Self {
            device: Device::Cpu,
            workers: Workers::clamped(1),
            batch: BatchSize::clamped(512),
            max_latency: None,
            device_timeout: None,
            device_copy_every: None,
            non_ip: PolicyAction::Pass,
            unknown_framing: None,
            malformed: PolicyAction::Drop,
            idle: Idle::Sleep,
            summary: None,
            control: None,
            watchdog: None,
            stats_every: None,
            stats_output: None,
            rotate_every: None,
            rotate_size: None,
            rotate_keep: None,
        }
    }
}

impl Run {
    /// When captures, records and logs go on in another file, if they do.
    pub fn rotation(&self) -> Option<Rotation> {
        let every = self.rotate_every.and_then(Span::limit);
        let size = self.rotate_size.map(FileSize::bytes);
        let keep = self.rotate_keep.and_then(|keep| NonZeroUsize::new(keep.get()));
        (every.is_some() || size.is_some()).then_some(Rotation { every, size, keep })
    }

    /// When it counts as one that hangs, if ever.
    ///
    /// # Errors
    ///
    /// A device may be waited for that long, and what was expected.
    pub fn watchdog(&self) -> Result<Option<Duration>, String> {
        let device_timeout = self.device_timeout.unwrap_or(DEVICE_TIMEOUT);
        let limit = |span: Span| span.limit().map(Duration::from_nanos);
        match self.watchdog {
            Some(watchdog) if self.device.is_placed() && watchdog <= device_timeout => Err(format!(
                "watchdog {watchdog}, and a device that may be away for {device_timeout}; expected a longer time than device_timeout"
            )),
            watchdog => Ok(watchdog.and_then(limit)),
        }
    }

    /// Refuses what does not go together.
    fn check(&self) -> Result<(), String> {
        self.watchdog.map_or(Ok(Span::default()), hang_time).map_err(|why| format!("watchdog is {why}"))?;
        self.rotate_every
            .map_or(Ok(Span::default()), rotation_time)
            .map_err(|why| format!("rotate_every is {why}"))?;
        self.rotate_size
            .map_or(Ok(None), |size| rotation_size(size).map(Some))
            .map_err(|why| format!("rotate_size is {why}"))?;
        if self.rotate_keep.is_some() && self.rotate_every.is_none() && self.rotate_size.is_none() {
            return Err("rotate_keep without rotate_every and rotate_size; expected one of them".into());
        }
        self.stats_every
            .map_or(Ok(Span::default()), interval)
            .map_err(|why| format!("stats_every is {why}"))?;
        if let Some(span) = self.device_copy_every
            && span.limit().is_some_and(|nanos| nanos < SHORTEST)
        {
            return Err(format!("device_copy_every is {span}; expected 10ms or more"));
        }
        match (&self.stats_output, self.stats_every) {
            (Some(_), None) => Err("stats_output without stats_every; expected stats_every = \"10s\"".into()),
            _ => Ok(()),
        }
    }

    /// How often it says what it has counted so far, if it does.
    pub fn stats_every(&self) -> Option<Duration> {
        self.stats_every.and_then(Span::limit).map(Duration::from_nanos)
    }

    /// The policy for frames without a match key; of a [`Chain`], which knows whether it has an acl.
    pub fn policy(&self) -> Policy {
        Policy {
            pass_non_ip: self.non_ip == PolicyAction::Pass,
            pass_unknown_framing: self.unknown_framing != Some(PolicyAction::Drop),
            pass_malformed: self.malformed == PolicyAction::Pass,
        }
    }
}

/// What runs the functions of a chain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Device {
    /// The processor's cores, in batches.
    #[default]
    Cpu,
    /// The slow, obvious form of each function, packet by packet, to compare with.
    Oracle,
    /// The first GPU, for batches that are worth it, and the processor for the others.
    Auto,
    /// These devices for what they have kernels for: one, or several that share the packets.
    On(Vec<Id>),
}

/// Devices that share a chain's packets, at most.
pub const MAX_DEVICES: usize = 16;

impl Device {
    /// Whether functions may run on a device.
    pub fn is_placed(&self) -> bool {
        !matches!(self, Self::Cpu | Self::Oracle)
    }

    /// The devices, opened; none for this machine's cores, also where `auto` finds no GPU.
    ///
    /// # Errors
    /// Where one was named that cannot be had.
    pub fn open(&self) -> Result<Vec<packetloom_device::Device>, packetloom_device::Error> {
        match self {
            Self::Cpu | Self::Oracle => Ok(Vec::new()),
            Self::Auto => Ok(Placement::Auto.open()?.into_iter().collect()),
            Self::On(ids) => {
                let opened = ids.iter().map(|&id| Placement::On(id).open());
                Ok(opened.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
            }
        }
    }

    /// The devices with these names.
    fn named<'a>(names: impl Iterator<Item = &'a str>) -> Result<Self, String> {
        let mut ids = Vec::new();
        for name in names {
            let id: Id = name
                .parse()
                .map_err(|_| format!("no device {name:?} in a list; expected cuda:N, opencl:N or host"))?;
            if ids.contains(&id) {
                return Err(format!("device {id} is named twice; expected different devices"));
            }
            ids.push(id);
        }
        if ids.is_empty() || ids.len() > MAX_DEVICES {
            return Err(format!("{} devices; expected 1 to {MAX_DEVICES} of them", ids.len()));
        }
        Ok(Self::On(ids))
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            Self::Oracle => f.write_str("oracle"),
            Self::Auto => f.write_str("auto"),
            Self::On(ids) => f.write_str(&ids.iter().map(Id::to_string).collect::<Vec<_>>().join(",")),
        }
    }
}

impl FromStr for Device {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "cpu" => Ok(Self::Cpu),
            "oracle" => Ok(Self::Oracle),
            "auto" => Ok(Self::Auto),
            _ if text.contains(',') => Self::named(text.split(',').map(str::trim)),
            _ => text.parse().map(|id| Self::On(vec![id])).map_err(|_| {
                format!("no device {text:?}; expected cpu, oracle, auto, cuda:N, opencl:N or host")
            }),
        }
    }
}

impl<'de> Deserialize<'de> for Device {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> de::Visitor<'de> for Visitor {
            type Value = Device;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a device in quotes, or several: [\"cuda:0\", \"cuda:1\"]")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Device, E> {
                text.parse().map_err(E::custom)
            }

            fn visit_seq<A: de::SeqAccess<'de>>(self, mut names: A) -> Result<Device, A::Error> {
                let mut all = Vec::new();
                while let Some(name) = names.next_element::<String>()? {
                    all.push(name);
                }
                Device::named(all.iter().map(String::as_str)).map_err(de::Error::custom)
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

impl JsonSchema for Device {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Device".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "What runs the functions: the processor, the slow forms to compare with, the first GPU for batches that are \
                            worth it, a device, or several devices that share the packets.",
            "oneOf": [
                { "type": "string", "pattern": "^(cpu|oracle|auto|host|(cuda|opencl):[0-9]+)(,(host|(cuda|opencl):[0-9]+))*$" },
                {
                    "type": "array",
                    "items": { "type": "string", "pattern": "^(host|(cuda|opencl):[0-9]+)$" },
                    "minItems": 1,
                    "maxItems": MAX_DEVICES,
                    "uniqueItems": true
                }
            ]
        })
    }
}

/// A number of worker threads.
pub type Workers = Bounded<1, 256>;

/// A number of files.
pub type Kept = Bounded<1, 1_000_000>;

/// A number of packets in a batch.
pub type BatchSize = Bounded<1, 65_535>;

/// What workers do while no packet comes by interfaces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Idle {
    /// They sleep until the kernel has packets, and wake some tens of microseconds after one has come.
    #[default]
    Sleep,
    /// They go on looking for packets (busy polling), so that none waits; each of them takes a core all the time.
    Spin,
}

impl Idle {
    /// The word in chain files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sleep => "sleep",
            Self::Spin => "spin",
        }
    }
}

/// What a policy does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum PolicyAction {
    /// Lets frames pass.
    Pass,
    /// Drops them.
    Drop,
}

impl PolicyAction {
    /// The word in chain files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Drop => "drop",
        }
    }
}

/// Keys of the file's top level.
const TOP_LEVEL: [&str; 5] = ["source", "flows", "chain", "sink", "run"];

/// The text of a chain file, to turn what went wrong into a place.
struct File<'a> {
    name: &'a str,
    text: &'a str,
    context: Context<'a>,
}

impl File<'_> {
    fn error(&self, offset: usize, message: impl Into<String>) -> ConfigError {
        let before = &self.text.as_bytes()[..offset.min(self.text.len())];
        let line = 1 + before.iter().filter(|&&byte| byte == b'\n').count();
        let mut message = message.into();
        if let Some(word) = did_you_mean(&message) {
            message += &format!("; did you mean {word:?}?");
        }
        ConfigError { file: self.name.into(), line, message, others: Vec::new() }
    }

    fn toml_error(&self, error: &toml::de::Error, fallback: usize) -> ConfigError {
        // Its text spreads over lines; one line is what a compiler's error looks like.
        let message = error.message().lines().map(str::trim).collect::<Vec<_>>().join(", ");
        self.error(error.span().map_or(fallback, |span| span.start), message)
    }

    /// Reads a section of the file; what is wrong with each of its keys is a mistake.
    fn section<'d, T: Deserialize<'d> + Default>(
        &self,
        table: &mut DeTable<'d>,
        key: &str,
        mistakes: &mut Mistakes,
    ) -> T {
        let value = table.remove(key).map(|value| self.read(value, T::deserialize));
        value.and_then(|read| mistakes.take_all(read)).unwrap_or_default()
    }

    /// Reads a table, again without each key that something is wrong with, so that this is told of all of them.
    fn read<'d, T>(
        &self,
        value: Spanned<DeValue<'d>>,
        read: impl Fn(ValueDeserializer<'d>) -> Result<T, toml::de::Error>,
    ) -> Result<T, Vec<ConfigError>> {
        let (start, mut left, mut errors) = (value.span().start, value, Vec::new());
        loop {
            let error = match read(ValueDeserializer::from(left.clone())) {
                Ok(read) if errors.is_empty() => return Ok(read),
                Ok(_) => return Err(errors),
                Err(error) => error,
            };
            // Perhaps by the name of one that was taken out.
            if !errors.is_empty() && error.message().starts_with("missing field") {
                return Err(errors);
            }
            errors.push(self.toml_error(&error, start));
            let (Some(at), DeValue::Table(table)) = (error.span(), left.get_mut()) else {
                return Err(errors);
            };
            let is_at = |span: Range<usize>| span.start <= at.start && at.end <= span.end;
            let found = table.iter().find(|(key, value)| is_at(key.span()) || is_at(value.span()));
            let Some(key) = found.map(|(key, _)| key.get_ref().to_string()) else { return Err(errors) };
            table.remove(&*key);
        }
    }

    /// The function that stands there, and where its name does.
    fn function(
        &self,
        value: Spanned<DeValue<'_>>,
    ) -> Result<(Box<dyn FunctionSpec>, usize), Vec<ConfigError>> {
        let span = value.span();
        let names = || FUNCTIONS.iter().map(|f| format!("{:?}", f.name)).collect::<Vec<_>>().join(" or ");
        let DeValue::Table(mut table) = value.into_inner() else {
            return Err(vec![self.error(span.start, "expected a table: [[chain]]")]);
        };
        let Some(nf) = table.remove("nf") else {
            return Err(vec![
                self.error(span.start, format!("[[chain]] without nf; expected nf = {}", names())),
            ]);
        };
        let (nf_start, nf) = (nf.span().start, nf.into_inner());
        let Some(registration) = nf.as_str().and_then(Registration::by_name) else {
            let found = nf.as_str().map_or_else(|| nf.type_str().into(), |name| format!("{name:?}"));
            return Err(vec![self.error(nf_start, format!("nf is {found}; expected {}", names()))]);
        };
        let prepare = self.read(Spanned::new(span, DeValue::Table(table)), registration.parse)?;
        match prepare(&self.context) {
            Ok(function) => Ok((function, nf_start)),
            Err(e) => Err(vec![self.error(nf_start, format!("{}: {e}", registration.name))]),
        }
    }
}

/// Mistakes of a file.
#[derive(Default)]
struct Mistakes(Vec<ConfigError>);

impl Mistakes {
    /// What was read, or nothing where that was a mistake.
    fn take<T>(&mut self, result: Result<T, ConfigError>) -> Option<T> {
        result.map_err(|error| self.0.push(error)).ok()
    }

    /// The same of several mistakes.
    fn take_all<T>(&mut self, result: Result<T, Vec<ConfigError>>) -> Option<T> {
        result.map_err(|errors| self.0.extend(errors)).ok()
    }

    /// All mistakes as one error, in order of lines.
    fn end(mut self) -> Result<(), ConfigError> {
        self.0.sort_by_key(|error| error.line);
        let mut errors = self.0.into_iter();
        let Some(first) = errors.next() else { return Ok(()) };
        Err(ConfigError { others: errors.map(|error| (error.line, error.message)).collect(), ..first })
    }
}

impl Chain {
    /// A chain of functions that are ready to run, over flows that are defined by name. The policy for unknown framings is settled here
    /// where the settings do not say it.
    ///
    /// # Errors
    ///
    /// The function whose flow definition is not there or does not suit it, and why.
    pub fn new(
        mut settings: Settings,
        functions: Vec<impl Into<Arc<dyn FunctionSpec>>>,
        flows: &BTreeMap<String, flows::Definition>,
    ) -> Result<Self, (usize, String)> {
        let mut functions: Vec<_> = functions.into_iter().map(Into::into).collect();
        let layout = Layout::new(&functions, flows)
            .map_err(|(function, why)| (function, format!("{}: {why}", functions[function].name())))?;
        let rewrites = functions.iter().position(|function| function.rewrites()).unwrap_or(functions.len());
        if let Some(at) = functions.iter().skip(rewrites).position(|function| function.reads_frames()) {
            let [name, before] = [rewrites + at, rewrites].map(|at| functions[at].name());
            return Err((
                rewrites + at,
                format!("{name}: it stands behind {before}, which rewrites headers; expected it before"),
            ));
        }
        let exports = |at: usize| functions[at].exports().iter().map(move |export| (at, &export.to));
        let all: Vec<_> = (0..functions.len()).flat_map(exports).collect();
        let again = all
            .iter()
            .enumerate()
            .find(|(number, (_, to))| all[..*number].iter().any(|(_, other)| other == to));
        if let Some((_, (at, to))) = again {
            return Err((
                *at,
                format!("{}: more than one export to {to}; expected each place once", functions[*at].name()),
            ));
        }
        let mut sampling = None;
        for (at, function) in functions.iter_mut().enumerate() {
            if let Some(function) = Arc::get_mut(function) {
                function.announce_sampling(sampling);
            }
            match (sampling, function.sampling()) {
                (Some(_), Some(_)) => {
                    let name = function.name();
                    return Err((
                        at,
                        format!("{name}: the chain has another one before; expected one at most"),
                    ));
                }
                (None, chosen) => sampling = chosen,
                (Some(_), None) => {}
            }
        }
        let has_acl = functions.iter().any(|function| function.name() == <acl::Config as Config>::NAME);
        let default = if has_acl { PolicyAction::Drop } else { PolicyAction::Pass };
        settings.run.unknown_framing.get_or_insert(default);
        Ok(Self { settings, functions, layout, flows: flows.clone() })
    }

    /// The functions, in order.
    pub fn functions(&self) -> &[Arc<dyn FunctionSpec>] {
        &self.functions
    }

    /// Where packets, records and logs go.
    pub fn outputs(&self) -> impl Iterator<Item = &Path> {
        let Settings { sink, extracted, dropped, matched, .. } = &self.settings;
        let matched = matched.iter().map(|(path, _)| &**path);
        let captures =
            [sink, extracted, dropped].into_iter().filter_map(|path| path.as_deref()).chain(matched);
        let files = self.functions.iter().flat_map(|function| {
            let exports = function.exports().iter().filter_map(|export| export.to.file().map(|path| &**path));
            function.records_path().into_iter().chain(exports)
        });
        captures.chain(files)
    }

    /// Refuses outputs that are to be one file after another, and cannot.
    ///
    /// # Errors
    ///
    /// The first one, and what was expected.
    pub fn check_rotation(&self) -> Result<(), String> {
        if self.settings.run.rotation().is_none() {
            return Ok(());
        }
        let mut found = self.outputs().filter_map(|path| Some((path, cannot_rotate(path)?)));
        found.next().map_or(Ok(()), |(path, found)| {
            Err(format!(
                "{}: {found}, which cannot be rotated; expected the name of a file, or no rotation",
                path.display()
            ))
        })
    }

    /// Its settings and its functions, to make another chain of.
    pub fn into_parts(self) -> (Settings, Vec<Arc<dyn FunctionSpec>>) {
        (self.settings, self.functions)
    }

    /// Where functions keep their state.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Reads the chain file at `path` and prepares its functions; `ignore_flags` as in [`Context`].
    ///
    /// # Errors
    ///
    /// [`ConfigError`] for all that is wrong with the file's keys, and for the first thing in each file that it names.
    pub fn load(path: &Path, ignore_flags: bool) -> Result<Self, ConfigError> {
        let name = path.display().to_string();
        let bytes = std::fs::read(path).map_err(|e| ConfigError {
            file: name.clone(),
            line: 1,
            message: format!("cannot be read: {}; expected a chain file", packetloom_io::plain(&e)),
            others: Vec::new(),
        })?;
        let text = String::from_utf8(bytes).map_err(|e| {
            let line =
                1 + e.as_bytes()[..e.utf8_error().valid_up_to()].iter().filter(|&&b| b == b'\n').count();
            let message = "not UTF-8 text; expected a chain file".into();
            ConfigError { file: name.clone(), line, message, others: Vec::new() }
        })?;
        let context = Context { folder: path.parent().unwrap_or(Path::new("")), ignore_flags };
        Self::parse(&name, &text, context)
    }

    /// Reads a chain from text; `name` is its file's name in messages.
    ///
    /// # Errors
    ///
    /// As [`Chain::load`].
    pub fn parse(name: &str, text: &str, context: Context<'_>) -> Result<Self, ConfigError> {
        let file = File { name, text, context };
        let mut table = DeTable::parse(text).map_err(|e| file.toml_error(&e, 0))?.into_inner();
        // What is wrong with one key does not hide what is wrong with the others.
        let mut mistakes = Mistakes::default();
        let unknown: Vec<_> =
            table.keys().filter(|key| !TOP_LEVEL.contains(&key.get_ref().as_ref())).collect();
        for key in unknown {
            let message =
                format!("unknown key {:?}; expected one of {}", key.get_ref(), TOP_LEVEL.join(", "));
            mistakes.0.push(file.error(key.span().start, message));
        }
        let source_start = table.get("source").map_or(0, |source| source.span().start);
        let source: Source = file.section(&mut table, "source", &mut mistakes);
        let source = source.origin(context).map_err(|why| file.error(source_start, why));
        let source = mistakes.take(source).flatten();
        let sink_start = table.get("sink").map_or(0, |sink| sink.span().start);
        let mut sink: Sink = file.section(&mut table, "sink", &mut mistakes);
        let run_start = table.get("run").map_or(0, |run| run.span().start);
        let mut run: Run = file.section(&mut table, "run", &mut mistakes);
        let checked = run.check().map_err(|why| file.error(run_start, why));
        mistakes.take(checked);
        let mut flows: BTreeMap<String, flows::Config> = BTreeMap::new();
        match table.remove("flows").map(|value| (value.span().start, value.into_inner())) {
            None => {}
            Some((_, DeValue::Table(definitions))) => {
                for (name, definition) in definitions {
                    let read = file.read(definition, flows::Config::deserialize);
                    flows.extend(mistakes.take_all(read).map(|read| (name.get_ref().to_string(), read)));
                }
            }
            Some((start, other)) => {
                let message = format!("flows is a {}; expected tables: [flows.NAME]", other.type_str());
                mistakes.0.push(file.error(start, message));
            }
        }
        for path in
            [&mut sink.capture, &mut sink.dropped, &mut run.summary, &mut run.control, &mut run.stats_output]
                .into_iter()
                .flatten()
        {
            *path = context.resolve(path);
        }
        let functions = match table.remove("chain").map(|value| (value.span().start, value.into_inner())) {
            None => Vec::new(),
            Some((_, DeValue::Array(functions))) => {
                functions.into_iter().filter_map(|value| mistakes.take_all(file.function(value))).collect()
            }
            Some((start, other)) => {
                let message = format!("chain is a {}; expected tables: [[chain]]", other.type_str());
                mistakes.0.push(file.error(start, message));
                Vec::new()
            }
        };
        mistakes.end()?;
        let (functions, places): (Vec<_>, Vec<_>) = functions.into_iter().unzip();
        let flows = flows.into_iter().map(|(name, flows)| (name, flows.into())).collect();
        let settings =
            Settings { source, sink: sink.capture, dropped: sink.dropped, run, ..Settings::default() };
        let mut chain = Self::new(settings, functions, &flows)
            .map_err(|(function, why)| file.error(places[function], why))?;
        if let Some(matched) = sink.matched {
            let (path, which) = matched.into_parts();
            chain
                .write_matched(context.resolve(&path), which)
                .map_err(|why| file.error(sink_start, format!("matched: {why}")))?;
        }
        Ok(chain)
    }
}

impl Chain {
    /// Has packets that rules match be written to a capture of their own.
    ///
    /// # Errors
    ///
    /// It has no such rule.
    pub fn write_matched(&mut self, path: PathBuf, which: Watch) -> Result<(), String> {
        self.watch_matched(&which)?;
        self.settings.matched = Some((path, which));
        Ok(())
    }

    /// Has functions tell which packets rules match, for [`Outputs::matched_flows`](crate::run::Outputs::matched_flows).
    ///
    /// # Errors
    ///
    /// It has no such rule.
    pub fn watch_matched(&mut self, which: &Watch) -> Result<(), String> {
        let functions = self.functions.iter_mut().filter_map(Arc::get_mut);
        let found: usize = functions.map(|function| function.watch(which)).sum();
        if found == 0 {
            let has_some = |function: &dyn FunctionSpec| {
                function.rules().is_some() || ["strings", "domains"].contains(&function.name())
            };
            let count = self.functions.iter().filter(|function| has_some(&***function)).count();
            return Err(match count {
                0 => "the chain has no acl and no strings, whose rules would match packets; expected one"
                    .into(),
                _ => format!(
                    "no acl, strings or domains of the chain has such a rule: {which}; expected the id or the line of a rule, or a mark that one sets"
                ),
            });
        }
        Ok(())
    }

    /// Has the rules of its one function that has any change while it runs, as a file says. One worker must run it.
    ///
    /// # Errors
    ///
    /// [`packetloom_nf::Error`]: not just one such function, a file that cannot be read, or changes that cannot be made.
    pub fn change_rules(&mut self, path: &Path) -> Result<(), packetloom_nf::Error> {
        let functions = self.functions.iter_mut().filter_map(Arc::get_mut);
        let mut with_rules: Vec<_> = functions.filter(|function| function.rules().is_some()).collect();
        match &mut with_rules[..] {
            [function] => function.change_rules(path)?,
            others => {
                return Err(packetloom_nf::Error::Invalid(format!(
                    "{}: the chain has {} functions with rules; expected one, which the changes are for",
                    path.display(),
                    others.len()
                )));
            }
        }
        // New rules may want state for flows.
        self.layout = Layout::new(&self.functions, &self.flows)
            .map_err(|(_, why)| packetloom_nf::Error::Invalid(format!("{}: {why}", path.display())))?;
        Ok(())
    }

    /// The same chain with another function in the place of one; it shares all others.
    pub(crate) fn with_function(&self, at: usize, function: Arc<dyn FunctionSpec>) -> Result<Self, String> {
        let mut functions = self.functions.clone();
        functions[at] = function;
        let layout = Layout::new(&functions, &self.flows).map_err(|(_, why)| why)?;
        Ok(Self { settings: self.settings.clone(), functions, layout, flows: self.flows.clone() })
    }
}

impl std::fmt::Debug for Chain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let functions: Vec<_> = self.functions.iter().map(|function| function.name()).collect();
        f.debug_struct("Chain").field("settings", &self.settings).field("functions", &functions).finish()
    }
}
