//! The command line: one definition from which help, man pages and completions come.

use std::fmt;
use std::num::{NonZeroU32, NonZeroU64, NonZeroUsize};
use std::path::PathBuf;
use std::str::FromStr;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{ArgGroup, Args, Parser, Subcommand, ValueEnum};
use packetloom_bench::host_fed::Transport;
use packetloom_bench::meter;
use packetloom_bench::peer::Peer;
use packetloom_classify::image::Algorithm;
use packetloom_classify::{Action, ConnectionState, Kind, PacketContext, analysis, formats};
use packetloom_device::Id;
use packetloom_engine::chain::{BatchSize, Device as DeviceChoice, Idle, Kept, Run, Workers};
use packetloom_engine::offload::frames::Slice;
use packetloom_engine::offload::{MAX_PACKETS, Placement};
use packetloom_engine::run::{FlowOrder, FunctionName};
use packetloom_export::parquet::Partition;
use packetloom_export::{Destination, Fields, LineFormat};
use packetloom_io::port::{Backend, OnExit};
use packetloom_nf::connections::Phase;
use packetloom_nf::meter::{ExportConfig, ExportProtocol};
use packetloom_nf::strings::LookIn;
use packetloom_nf::units::{self, Bounded, FileSize, Instant, MaxFlows, Span, Throughput};
use packetloom_packet::Key;
use packetloom_pattern::files::Format as PatternFormat;
use packetloom_report::{SeriesSpec, TopSpec};

use crate::control::TOP;
use crate::failure::{EXIT_CODES, Failure};
use crate::talk::Level;

/// Runs chains of network functions over batches of packets.
#[derive(Debug, Parser)]
#[command(name = "packetloom", version, about, after_help = notes())]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) verb: Verb,
    /// Say errors only, and what was asked for
    #[arg(
        short,
        long,
        global = true,
        conflicts_with = "verbose",
        help_heading = "What is said on standard error"
    )]
    pub(crate) quiet: bool,
    /// Say what is chosen, and why: files and what they were recognised as, functions, devices, workers, sizes of tables
    #[arg(short, long, global = true, help_heading = "What is said on standard error")]
    pub(crate) verbose: bool,
}

impl Cli {
    /// How much is to be said.
    pub(crate) fn level(&self) -> Level {
        match (self.quiet, self.verbose) {
            (true, _) => Level::Quiet,
            (false, true) => Level::Verbose,
            (false, false) => Level::Usual,
        }
    }
}

/// What is said of the program as a whole.
pub(crate) const NOTES: &str = "\
Captures, rules, headers and outputs may be \"-\", standard input or output. Inputs may be in gzip, xz or zstd.
The signal SIGUSR1 has run and meter print on standard error what they counted so far.";

/// What the help of the program ends with.
fn notes() -> String {
    let mut text = format!("{NOTES}\n\nExit codes:");
    for (code, what) in EXIT_CODES {
        text += &format!("\n  {code:>2}  {what}");
    }
    text
}

const CAPTURES: &str = "\
Captures: -r may be given several times. A folder stands for the files in it that begin like captures, plain or compressed, but for
hidden ones and those in folders below. A name that nothing has is a pattern, if *, ? or [...] is in it; quote it, since after -r there is
one name only. Several captures, which have to be regular files, are read one after the other as if they were one, in the order of the
times of their first packets.";

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Run a chain over a capture or network interfaces
    Run(Box<RunArgs>),
    /// Turn packets into flow records
    Meter(Box<MeterArgs>),
    /// Look for strings in packets
    Search(Box<SearchArgs>),
    /// Work with access control lists
    Acl(AclArgs),
    /// Check a chain file and print the plan; exit 78 if it is bad
    Check(CheckArgs),
    /// Ask a run what it counts, or tell it what to do, by the socket that its --control names
    #[command(visible_alias = "ctl")]
    Control(ControlArgs),
    /// Show what is in a file that run --save-state wrote; exit 78 if it is not whole
    State(StateArgs),
    /// Make traffic, rule sets and headers
    Generate(GenerateArgs),
    /// List processors and devices, and what works on them
    ///
    /// Each device is tried: copies, kernels against the same computation on the CPU, memory that a group shares, lanes in step,
    /// 64-bit atomics, memory that is used in place. Exit 69 if something fails. Compiled kernels are kept in
    /// packetloom/kernels below XDG_CACHE_HOME or ~/.cache.
    Devices(DevicesArgs),
    /// Measure
    Bench(BenchArgs),
    /// Draw what benchmarks print as JSON, as SVG files
    Plot(PlotArgs),
    /// Print a JSON schema: of chain files, or of what a verb prints as JSON
    Schema {
        /// The verb, such as "run", "acl-check" or "bench-meter"; "flow-record", "acl-log", "statistics" and "report" are the lines of those
        /// files. Chain files unless given
        #[arg(value_name = "VERB")]
        page: Option<String>,
    },
    /// Write a commented chain file to begin with, and its rules
    Example(ExampleArgs),
    /// Print a man page
    Man {
        /// What it is about: a verb, such as "run" or "acl-classify", or "chain" or "rules", the files
        page: Option<String>,
    },
    /// Print completions for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Kill the process that begins this one where it says nothing for too long
    #[command(name = VERB_OF_WATCHDOG, hide = true)]
    Watchdog(WatchdogArgs),
}

/// What a run begins its watchdog by.
pub(crate) const VERB_OF_WATCHDOG: &str = "watch-run";

#[derive(Debug, Args)]
pub(crate) struct WatchdogArgs {
    /// Its number
    pub(crate) process: i32,
    /// How long that is, in milliseconds
    pub(crate) limit: u64,
}

#[derive(Debug, Args)]
pub(crate) struct ExampleArgs {
    /// Which one; they are listed where it is not given
    pub(crate) name: Option<String>,
    /// Write it to this folder, where no file of its names may be; the current one unless given
    #[arg(short = 'o', value_name = "FOLDER", requires = "name")]
    pub(crate) output: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct DevicesArgs {
    /// Only this one: cuda:N, opencl:N, or host, where kernels are compiled by the C compiler and run under its sanitisers; exit 69 if
    /// it is not there
    #[arg(long, value_name = "DEVICE")]
    pub(crate) device: Option<Id>,
    /// Print JSON lines instead of text
    #[arg(long)]
    pub(crate) json: bool,
}

/// How the kernel hands over packets of interfaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum BackendChoice {
    Auto,
    AfXdp,
    AfPacket,
}

impl From<BackendChoice> for Backend {
    fn from(choice: BackendChoice) -> Self {
        match choice {
            BackendChoice::Auto => Self::Auto,
            BackendChoice::AfXdp => Self::AfXdp,
            BackendChoice::AfPacket => Self::AfPacket,
        }
    }
}

/// What becomes of packets when an inline run has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OnExitChoice {
    Closed,
    Open,
}

impl From<OnExitChoice> for OnExit {
    fn from(choice: OnExitChoice) -> Self {
        match choice {
            OnExitChoice::Closed => Self::Closed,
            OnExitChoice::Open => Self::Open,
        }
    }
}

/// What workers do while no packet comes by interfaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum IdleChoice {
    Sleep,
    Spin,
}

impl From<IdleChoice> for Idle {
    fn from(choice: IdleChoice) -> Self {
        match choice {
            IdleChoice::Sleep => Self::Sleep,
            IdleChoice::Spin => Self::Spin,
        }
    }
}

#[derive(Debug, Args)]
#[command(after_help = CAPTURES)]
pub(crate) struct RunArgs {
    /// Chain file
    pub(crate) chain: PathBuf,
    /// Read packets from this pcap or pcapng file instead of the chain file's source, or from several, see Captures below
    #[arg(short = 'r', value_name = "CAPTURE")]
    pub(crate) read: Vec<PathBuf>,
    /// Receive packets from this network interface instead of the chain file's source; may be given several times. Needs root, or
    /// CAP_NET_RAW and CAP_NET_ADMIN
    #[arg(short = 'i', value_name = "INTERFACE", conflicts_with = "read")]
    pub(crate) interface: Vec<String>,
    /// Send what passes from one of two interfaces out of the other one, in the kernel's place. Of several pairs, the first interface goes with
    /// the second, the third with the fourth
    #[arg(long, requires = "interface")]
    pub(crate) inline: bool,
    /// How the kernel hands over packets with --inline: by packet sockets (af_packet, the default), by AF_XDP sockets (af_xdp), or by the
    /// latter where all drivers run XDP programs (auto). AF_XDP also needs CAP_BPF
    #[arg(long, value_name = "BACKEND", value_enum, requires = "interface")]
    pub(crate) backend: Option<BackendChoice>,
    /// What becomes of packets when an inline run has ended, in whatever way, instead of what the chain file says: none pass (closed, the
    /// default), or all pass (open), by a bridge of the kernel that the run makes
    #[arg(long, value_name = "WHAT", value_enum)]
    pub(crate) on_exit: Option<OnExitChoice>,
    /// Write packets that pass to this pcap file instead of the chain file's sink
    #[arg(short = 'w', value_name = "CAPTURE")]
    pub(crate) write: Option<PathBuf>,
    /// Write packets that are dropped to this pcapng file, each with the reason as its comment
    #[arg(long, value_name = "CAPTURE")]
    pub(crate) dropped: Option<PathBuf>,
    /// Write packets that rules of the chain's acls match, whether they pass or not, to this pcapng file, each with its rules as comments.
    /// The chain file's sink says which rules; all of them unless it does
    #[arg(long, value_name = "CAPTURE")]
    pub(crate) matched: Option<PathBuf>,
    /// Stop after this many packets
    #[arg(short = 'c', value_name = "COUNT", value_parser = number::<u64>)]
    pub(crate) count: Option<u64>,
    /// Worker threads, 1 to 256
    #[arg(long, value_name = "N")]
    pub(crate) workers: Option<Workers>,
    /// What runs the functions: cpu; cuda:N, opencl:N or host, for those that have a kernel; several of these, such as cuda:0,cuda:1, which
    /// share the packets; auto, the first GPU for batches that are worth it; oracle, the slow forms to compare with
    #[arg(long, value_name = "DEVICE")]
    pub(crate) device: Option<DeviceChoice>,
    /// How long a batch for a device may take, from when it was read to its verdicts, such as 50us: batches follow the load below that
    #[arg(long, value_name = "TIME")]
    pub(crate) max_latency: Option<Span>,
    /// What workers do while no packet comes by interfaces: sleep, the default; or look for packets all the time (spin: busy polling), so
    /// that latency is lower, and each worker takes a core
    #[arg(long, value_name = "WHAT", value_enum)]
    pub(crate) idle: Option<IdleChoice>,
    /// Write the summary to this file, as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) summary: Option<PathBuf>,
    /// Change the rules of the chain's acl during the run as this file says; with one worker
    #[arg(long, value_name = "FILE", conflicts_with = "reload_at")]
    pub(crate) rules_changes: Option<PathBuf>,
    /// Begin with the state of flows that --save-state wrote
    #[arg(long, value_name = "FILE")]
    pub(crate) restore_state: Option<PathBuf>,
    /// Write the state of flows to this file when the run ends; a meter's records go on from there and do not end
    #[arg(long, value_name = "FILE")]
    pub(crate) save_state: Option<PathBuf>,
    /// Write it from time to time before, too, such as every 10s
    #[arg(long, value_name = "TIME", requires = "save_state")]
    pub(crate) save_every: Option<Span>,
    /// Go on with another chain file before packet N, from 0; may be given several times, in order of N. The signal SIGHUP has the run
    /// read its own chain file again
    #[arg(long, value_name = "N=CHAIN")]
    pub(crate) reload_at: Vec<ReloadAt>,
    /// Answer commands at this Unix socket, which only its owner may use, instead of the chain file's: see packetloom control
    #[arg(long, value_name = "PATH")]
    pub(crate) control: Option<PathBuf>,
    /// Kill the run if it hangs for so long while packets come from interfaces, such as 2s, 500ms or more, so that what --on-exit says happens
    #[arg(long, value_name = "TIME", value_parser = hang_time)]
    pub(crate) watchdog: Option<Span>,
    #[command(flatten)]
    pub(crate) statistics: StatisticsArgs,
    #[command(flatten)]
    pub(crate) rotation: RotationArgs,
    /// Leave the flags column of ClassBench rules out
    #[arg(long)]
    pub(crate) ignore_flags: bool,
    /// Print the summary as JSON on standard output, instead of a table on standard error
    #[arg(long)]
    pub(crate) json: bool,
}

/// A type of numbers that options take, all of which may have the suffixes k, M and G.
trait Number: Sized {
    /// The least of them.
    const MIN: u64 = 0;
    /// The greatest of them.
    const MAX: u64;

    /// From a number of that range.
    fn of(value: u64) -> Option<Self>;
}

macro_rules! numbers {
    ($($number:ty, $max:expr;)*) => {
        $(impl Number for $number {
            const MAX: u64 = $max as u64;

            fn of(value: u64) -> Option<Self> {
                Self::try_from(value).ok()
            }
        })*
    };
}

macro_rules! numbers_above_0 {
    ($($number:ty, $of:ty;)*) => {
        $(impl Number for $number {
            const MIN: u64 = 1;
            const MAX: u64 = <$of>::MAX as u64;

            fn of(value: u64) -> Option<Self> {
                <$of>::try_from(value).ok().and_then(Self::new)
            }
        })*
    };
}

numbers! { u32, u32::MAX; u64, u64::MAX; usize, usize::MAX; }
numbers_above_0! { NonZeroU32, u32; NonZeroU64, u64; NonZeroUsize, usize; }

/// A number as an option of that type takes it.
fn number<N: Number>(text: &str) -> Result<N, String> {
    let value = units::number(text, N::MIN..=N::MAX)?;
    N::of(value).ok_or_else(|| format!("{text:?}; expected a number from {} to {}", N::MIN, N::MAX))
}

/// A number from 1 to 64.
fn of_64(text: &str) -> Result<u16, String> {
    units::number(text, 1..=64).map(|value| value as u16)
}

/// Rows of a table.
fn rows(text: &str) -> Result<NonZeroUsize, String> {
    let rows = units::number(text, 1..=1_000_000)?;
    NonZeroUsize::new(rows as usize).ok_or_else(|| "0 rows; expected some".into())
}

/// A property of librdkafka.
fn property(text: &str) -> Result<(String, String), String> {
    let parts = text.split_once('=').filter(|(name, _)| !name.is_empty());
    let (name, value) = parts.ok_or("expected NAME=VALUE, such as security.protocol=ssl")?;
    Ok((name.into(), value.into()))
}

/// A share in percent.
fn percent(text: &str) -> Result<u8, String> {
    units::number(text, 0..=100).map(|value| value as u8)
}

/// A number of keys on a device.
fn keys(text: &str) -> Result<u32, String> {
    units::number(text, 1..=MAX_PACKETS.into()).map(|value| value as u32)
}

/// A chain file and the packet before which it is gone on with.
#[derive(Clone, Debug)]
pub(crate) struct ReloadAt {
    pub(crate) packet: u64,
    pub(crate) chain: PathBuf,
}

impl FromStr for ReloadAt {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once('=').filter(|(_, chain)| !chain.is_empty());
        let parts = parts.and_then(|(packet, chain)| Some((number(packet).ok()?, chain.into())));
        let (packet, chain) = parts.ok_or_else(|| {
            format!("{text:?}; expected the number of a packet and a chain file, such as 1000=chain.toml")
        })?;
        Ok(Self { packet, chain })
    }
}

#[derive(Debug, Args)]
pub(crate) struct ControlArgs {
    /// The run's socket
    #[arg(value_name = "PATH")]
    pub(crate) socket: PathBuf,
    /// Print JSON instead of tables; counters are JSON in any case
    #[arg(long, global = true)]
    pub(crate) json: bool,
    #[command(subcommand)]
    pub(crate) command: ControlCommand,
}

/// What to ask a run, or to tell it.
#[derive(Debug, Subcommand)]
pub(crate) enum ControlCommand {
    /// Print what the run has counted so far, as JSON
    Counters,
    /// Have it read its chain file again, and wait until it goes on with that
    Reload,
    /// Have it write its state to the file of --save-state, and wait until it lies there
    Save,
    /// End it as SIGTERM does, and wait until all outputs are written
    Stop,
    /// Print what went through each network interface, whether it is up, and what was lost there
    Ports,
    /// Print how many packets and bytes each rule of each acl has decided, all of them in their order
    Rules {
        /// Those of this function alone, which is named or has this place in the chain, from 0
        #[arg(long, value_name = "FUNCTION")]
        function: Option<FunctionName>,
    },
    /// Change the rules of an acl while packets are judged: all changes at one point between two packets, or none
    ///
    /// A statement a line: "add [first | last | before NAME | after NAME | at N] RULE", "delete NAME", "replace NAME RULE". NAME is a rule's id,
    /// or @N for its number, which "rules" prints. The next reload has the rules of the chain's files again.
    Change {
        /// A file of statements; standard input unless given, or where it is "-"
        #[arg(value_name = "FILE", conflicts_with = "statements")]
        file: Option<PathBuf>,
        /// A statement, such as "add first deny tcp from any to any port 23"; may be given several times
        #[arg(short = 'e', long = "statement", value_name = "STATEMENT")]
        statements: Vec<String>,
        /// The acl, which is named or has this place in the chain, from 0; needed where there are several
        #[arg(long, value_name = "FUNCTION")]
        function: Option<FunctionName>,
    },
    /// Print the first flows of a function that keeps state for flows, by an order
    Flows {
        #[command(flatten)]
        flows: ListArgs,
        /// What comes first: the most packets or bytes, the latest last packet, the earliest first packet; unless given, bytes, or last
        /// where the function counts none
        #[arg(long, value_name = "ORDER", value_parser = names(FlowOrder::ALL.map(FlowOrder::name)))]
        by: Option<String>,
    },
    /// Print connections of a function that tracks them, those with the latest packets first
    Connections {
        #[command(flatten)]
        flows: ListArgs,
        /// Only those in this state
        #[arg(long, value_name = "STATE", value_parser = names(Phase::ALL.map(Phase::name)))]
        state: Option<String>,
    },
    /// Have a function forget flows; a meter exports their records
    #[command(group = ArgGroup::new("which").required(true))]
    Remove {
        /// The function, which is named or has this place in the chain, from 0
        #[arg(long, value_name = "FUNCTION")]
        function: FunctionName,
        /// Flows that match this expression of hosts, nets, ports and protocols
        #[arg(short, long, value_name = "EXPRESSION", group = "which")]
        filter: Option<String>,
        /// One flow, as flows prints it, such as "tcp 10.0.0.1:1234 10.0.0.2:80"
        #[arg(long, value_name = "FLOW", group = "which")]
        flow: Option<String>,
        /// All flows of the function
        #[arg(long, group = "which")]
        all: bool,
    },
}

/// Which flows are printed.
#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// The function, which is named or has this place in the chain, from 0; needed where several suit
    #[arg(long, value_name = "FUNCTION")]
    pub(crate) function: Option<FunctionName>,
    /// Only flows that match this expression of hosts, nets, ports and protocols, such as "host 10.0.0.1 and tcp port 443"
    #[arg(short, long, value_name = "EXPRESSION")]
    pub(crate) filter: Option<String>,
    /// Print so many at most, up to 10,000
    #[arg(long, value_name = "N", default_value_t = TOP)]
    pub(crate) top: usize,
}

/// One of some names.
fn names<const N: usize>(names: [&'static str; N]) -> PossibleValuesParser {
    PossibleValuesParser::new(names)
}

#[derive(Debug, Args)]
pub(crate) struct StateArgs {
    /// State file
    pub(crate) file: PathBuf,
    /// Print it as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

const METER: &str = "\
Fields: basic are times, addresses, ports, protocol, packets, octets, TCP flags and the reason of the end. standard adds initialTCPFlags,
ipClassOfService, minimumTTL and maximumTTL, minimumIpTotalLength and maximumIpTotalLength, ICMP type and code, vlanId, ingressInterface
and egressInterface. full adds times in microseconds, fragmentFlags, Ethernet addresses, and names: dnsQName, sslServerName and
httpRequestHost. Their order is always the same.

Examples:
  packetloom meter -r capture.pcapng --fields standard --format csv -o flows.csv
  packetloom meter -i eth0 --ipfix udp://192.0.2.10:4739 --fields full
  packetloom meter -r capture.pcapng -f 'tcp port 443' --fields basic,sslServerName
  packetloom meter -r capture.pcapng --top address/packets --series 1m/protocol --report traffic.svg
  packetloom meter -r capture.pcapng --parquet flows --partition day
  packetloom meter -i eth0 --kafka kafka://broker.example:9092/flows
  packetloom meter -i trunk0 --vlan-in-key --top vlan/bytes --top outcome/flows
  packetloom meter -i eth0 --sample 100 --ipfix udp://192.0.2.10:4739
  packetloom meter -r day.pcap --begin 2026-11-27T15:00:00Z --end 2026-11-27T15:05:00Z -f 'host 192.0.2.1' --extract part.pcapng
  packetloom meter -r day.pcap -f 'tcp[13] & 4 != 0' --extract-flows reset.pcapng -o reset.jsonl
  packetloom meter -r day --each -o 'flows/{name}.jsonl' --summary 'flows/{name}.json'";

#[derive(Clone, Debug, Args)]
#[command(after_help = format!("{CAPTURES}\n\n{METER}"))]
pub(crate) struct MeterArgs {
    /// Read packets from this pcap or pcapng file, or from several, see Captures below
    #[arg(short = 'r', value_name = "CAPTURE", required_unless_present = "interface")]
    pub(crate) read: Vec<PathBuf>,
    /// Meter each capture by itself, one after the other. {name} in the names of outputs stands for the capture's name, without its folder and
    /// endings such as .pcap.gz. A capture that cannot be metered is named and passed over; exit 1 then
    #[arg(long, requires = "read", conflicts_with = "control")]
    pub(crate) each: bool,
    /// Receive packets from this network interface; may be given several times. Needs root, or CAP_NET_RAW and CAP_NET_ADMIN
    #[arg(short = 'i', value_name = "INTERFACE", conflicts_with = "read")]
    pub(crate) interface: Vec<String>,
    /// Write flow records to this file, as lines with IPFIX element names [default: standard output, unless they are exported]
    #[arg(short = 'o', value_name = "FLOWS")]
    pub(crate) output: Option<PathBuf>,
    /// What the lines are: json, csv, or flowtest, a network profile that "generate traffic --profile" reads
    #[arg(long, value_name = "FORMAT", default_value_t = LineFormat::Json)]
    pub(crate) format: LineFormat,
    /// Fields of records: basic, standard, full, or names of IPFIX elements with commas between them, see Fields below
    #[arg(long, value_name = "FIELDS", default_value_t = packetloom_nf::meter::Config::default_fields())]
    pub(crate) fields: Fields,
    /// Meter only packets that match this expression in tcpdump's language, such as 'tcp port 443 and net 10.0.0.0/8'
    #[arg(short = 'f', long, value_name = "EXPRESSION")]
    pub(crate) filter: Option<String>,
    /// Meter a sample: N, the first of every N packets of the input, or N,random or N,random,SEED, each packet with probability 1/N, the same
    /// ones for the same seed. Counters are those of the sample; IPFIX and NetFlow v9 tell collectors of it
    #[arg(long, value_name = "N[,random[,SEED]]")]
    pub(crate) sample: Option<packetloom_nf::sample::Config>,
    /// Meter only packets from this time on: RFC 3339, such as 2026-11-27T15:00:00Z, or seconds since 1970, perhaps with a fraction
    #[arg(long, value_name = "TIME")]
    pub(crate) begin: Option<Instant>,
    /// Meter only packets before this time
    #[arg(long, value_name = "TIME")]
    pub(crate) end: Option<Instant>,
    /// Write the packets that reach the meter, which --sample, --begin, --end and the filter let pass, to this pcapng file
    #[arg(long, value_name = "CAPTURE")]
    pub(crate) extract: Option<PathBuf>,
    /// Write all packets of the flows that these packets belong to, to this pcapng file, also those before them and of the other direction;
    /// captures are read a second time for it
    #[arg(long, value_name = "CAPTURE", conflicts_with = "interface")]
    pub(crate) extract_flows: Option<PathBuf>,
    /// Stop after this many packets
    #[arg(short = 'c', value_name = "COUNT", value_parser = number::<u64>)]
    pub(crate) count: Option<u64>,
    #[command(flatten)]
    pub(crate) timeouts: Timeouts,
    /// Flows of each IP version held at a time; when there are more, one that was not used for long is exported
    #[arg(long, value_name = "N", default_value_t = packetloom_nf::meter::Config::default_max_flows())]
    pub(crate) max_flows: MaxFlows,
    /// End records of TCP with their connections: with a RST, or with the first ACK after both sides have sent FIN
    #[arg(long)]
    pub(crate) end_of_flow: bool,
    /// Make the VLAN part of what a flow is, by the outer tag: packets that differ in it alone are of two flows. Records have the field vlanId
    /// then
    #[arg(long)]
    pub(crate) vlan_in_key: bool,
    /// Count packets in all framings in which IP is found, such as LLC/SNAP or pseudowires, not only in Ethernet II, VLAN tags, MPLS, PPPoE,
    /// cooked, loopback and raw captures
    #[arg(long)]
    pub(crate) all_framings: bool,
    /// Worker threads, 1 to 256
    #[arg(long, value_name = "N")]
    pub(crate) workers: Option<Workers>,
    /// What meters: cpu; cuda:N, opencl:N or host; several of these, such as cuda:0,cuda:1, which share the packets. Names and --vlan-in-key are for
    /// cpu, and so is what -f, --begin, --end and --sample let pass
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    pub(crate) device: DeviceChoice,
    /// Write the summary to this file, as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) summary: Option<PathBuf>,
    /// Answer commands at this Unix socket, which only its owner may use: see packetloom control
    #[arg(long, value_name = "PATH")]
    pub(crate) control: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) statistics: StatisticsArgs,
    #[command(flatten)]
    pub(crate) rotation: RotationArgs,
    #[command(flatten)]
    pub(crate) reports: ReportArgs,
    #[command(flatten)]
    pub(crate) export: ExportArgs,
}

const SEARCH: &str = "\
Patterns:
  A file of patterns is a list with one a line (lines), a list in hex digits (hex), or rules of Suricata or Snort (rules), of which literal
  contents are looked for; lines and rules are told apart by themselves. In lists, \\n, \\r, \\t, \\0, \\\\ and \\xHH stand for bytes, and lines
  that begin with # are comments. Each packet is searched by itself, unless --within says otherwise.

Examples:
  packetloom search -r capture.pcapng -e 'User-Agent: curl' -e '\\x7fELF'
  packetloom search -r capture.pcapng --patterns names.txt --ignore-case --count
  packetloom search -r capture.pcapng --patterns million.txt --compiled million.compiled
  packetloom search -r capture.pcapng --patterns local.rules --within stream --json -o alerts.json
  packetloom search -r capture.pcapng --patterns local.rules --in http.uri --within stream
  packetloom search -r captures/ --patterns names.txt -f 'udp port 53' -w found.pcapng
  packetloom search -r capture.pcapng -e /evil --in http.uri --count --write-flows flows.pcapng";

#[derive(Debug, Args)]
#[command(after_help = format!("{CAPTURES}\n\n{SEARCH}"))]
pub(crate) struct SearchArgs {
    /// Read packets from this pcap or pcapng file, or from several, see Captures below
    #[arg(short = 'r', value_name = "CAPTURE", required_unless_present = "interface")]
    pub(crate) read: Vec<PathBuf>,
    /// Receive packets from this network interface; may be given several times. Needs root, or CAP_NET_RAW and CAP_NET_ADMIN
    #[arg(short = 'i', value_name = "INTERFACE", conflicts_with = "read")]
    pub(crate) interface: Vec<String>,
    /// Look for this string, in which escapes stand for bytes; may be given several times
    #[arg(short = 'e', long = "string", value_name = "PATTERN", required_unless_present = "patterns")]
    pub(crate) strings: Vec<String>,
    /// Look for the patterns of this file, see Patterns below
    #[arg(long, value_name = "FILE", conflicts_with = "strings")]
    pub(crate) patterns: Option<PathBuf>,
    /// What the file is: auto, lines, hex or rules
    #[arg(long, value_name = "FORMAT", default_value_t = PatternFormat::Auto, requires = "patterns")]
    pub(crate) format: PatternFormat,
    /// Take from each rule its fast pattern alone: finds what the rule may match, and more
    #[arg(long, requires = "patterns")]
    pub(crate) by_fast_pattern: bool,
    /// Keep the compiled set in this file: it is read where it is that of the patterns, and else written
    #[arg(long, value_name = "FILE", requires = "patterns")]
    pub(crate) compiled: Option<PathBuf>,
    /// Find letters in both cases, in strings and lists; rules say themselves where
    #[arg(long)]
    pub(crate) ignore_case: bool,
    /// What is told of a packet that has several patterns: all of them, or first, the one that stands first
    #[arg(long = "match", value_name = "WHICH", value_enum, default_value_t = Which::All)]
    pub(crate) which: Which,
    /// Look in the payload, or in a header field, called as Suricata does: http.method, http.uri, http.uri.raw, http.request_line, http.host,
    /// http.host.raw, http.user_agent, http.referer, http.cookie, http.header, http.header.raw, dns.query, tls.sni or quic.sni; or in several, with
    /// commas between them. Of rules those are taken whose contents are there. Auto looks for contents of rules where each says, and for others in
    /// the payload
    #[arg(long = "in", value_name = "FIELDS", default_value_t = LookIn::default())]
    pub(crate) look_in: LookIn,
    /// How much of a packet is looked at: payload, what is behind the transport header; stream, the same with that of TCP as the stream that it is
    /// a part of; or packet, all captured bytes
    #[arg(long, value_name = "PART", value_enum, default_value_t = Part::Payload)]
    pub(crate) within: Part,
    /// Look only at packets that match this expression in tcpdump's language, such as 'tcp port 80'
    #[arg(short = 'f', long, value_name = "EXPRESSION")]
    pub(crate) filter: Option<String>,
    /// Write what is found to this file [default: standard output]
    #[arg(short = 'o', value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Write JSON lines, in the form of Suricata's EVE
    #[arg(long)]
    pub(crate) json: bool,
    /// Say where in a packet patterns lie: for each the offset of its first byte, from 0, in what --within or --in looks at; up to 64 of each
    /// pattern in a packet, and how many more there are
    #[arg(short = 'b', long, conflicts_with = "count")]
    pub(crate) byte_offset: bool,
    /// Only count: the table at the end says how many packets have each pattern
    #[arg(long, conflicts_with_all = ["output", "json"])]
    pub(crate) count: bool,
    /// Write packets in which something is found to this pcapng file
    #[arg(short = 'w', value_name = "CAPTURE")]
    pub(crate) write: Option<PathBuf>,
    /// Write all packets of flows in which something is found to this pcapng file, also those before it and of the other direction; captures are
    /// read a second time for it
    #[arg(long, value_name = "CAPTURE", conflicts_with = "interface")]
    pub(crate) write_flows: Option<PathBuf>,
    /// Stop after this many packets
    #[arg(short = 'c', value_name = "COUNT", value_parser = number::<u64>)]
    pub(crate) limit: Option<u64>,
    /// Worker threads, 1 to 256
    #[arg(long, value_name = "N")]
    pub(crate) workers: Option<Workers>,
    /// Write the summary to this file, as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) summary: Option<PathBuf>,
    /// List the lines of the file of patterns that are left out, with the reasons, as JSON lines in this file; "-" is standard output
    #[arg(long, value_name = "FILE", requires = "patterns")]
    pub(crate) left_out: Option<PathBuf>,
}

/// Which patterns of a packet are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Which {
    All,
    First,
}

/// What is searched of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Part {
    Payload,
    Stream,
    Packet,
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Reports")]
pub(crate) struct ReportArgs {
    /// Count the values of fields that flows have most of, such as source, flow or sslServerName, by bytes, or with /packets or /flows behind
    /// the fields by these; may be given several times. Records are then written only where an option says so
    #[arg(long, value_name = "SPEC")]
    pub(crate) top: Vec<TopSpec>,
    /// Rows of each table, up to a million
    #[arg(long, value_name = "N", requires = "top", value_parser = rows, default_value = "10")]
    pub(crate) top_rows: NonZeroUsize,
    /// Count packets, bytes and flows by time, such as 1m, or by time and the values of a field, such as 10s/protocol or 1m/source/packets;
    /// may be given several times
    #[arg(long, value_name = "SPEC")]
    pub(crate) series: Vec<SeriesSpec>,
    /// Write reports to this file, whose name ends in .txt, .json or .svg [default: tables on standard output]
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,
}

#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Export of flow records")]
pub(crate) struct ExportArgs {
    /// Send flow records as IPFIX to udp://HOST:PORT, tcp://HOST:PORT or tls://HOST:PORT, or write them to a file; may be given several times
    #[arg(long, value_name = "TO")]
    pub(crate) ipfix: Vec<Destination>,
    /// Send flow records as NetFlow v9 to udp://HOST:PORT; may be given several times
    #[arg(long, value_name = "TO")]
    pub(crate) netflow9: Vec<Destination>,
    /// Write flow records to Parquet files in this folder; may be given several times
    #[arg(long, value_name = "FOLDER")]
    pub(crate) parquet: Vec<PathBuf>,
    /// Send flow records to a topic of Apache Kafka, kafka://HOST:PORT/TOPIC, a message of JSON each; may be given several times. Needs librdkafka
    #[arg(long, value_name = "TO")]
    pub(crate) kafka: Vec<Destination>,
    /// With --kafka, a property of librdkafka, such as security.protocol=ssl; may be given several times
    #[arg(long, value_name = "NAME=VALUE", requires = "kafka", value_parser = property)]
    pub(crate) kafka_option: Vec<(String, String)>,
    /// With --parquet, folders by the time of a record's first packet: none, day or hour
    #[arg(long, value_name = "BY", requires = "parquet", default_value_t = Partition::None)]
    pub(crate) partition: Partition,
    /// With --parquet, rows of a file at most [default: 4194304, or about 256 MiB]
    #[arg(long, value_name = "N", requires = "parquet", value_parser = number::<NonZeroU64>)]
    pub(crate) file_rows: Option<NonZeroU64>,
    /// With --parquet, begin another file this often
    #[arg(long, value_name = "TIME", requires = "parquet")]
    pub(crate) file_time: Option<Span>,
    /// With --ipfix, one record for both directions of a flow (RFC 5103) instead of one for each
    #[arg(long, requires = "ipfix")]
    pub(crate) biflows: bool,
    /// Observation domain of IPFIX, source id of NetFlow v9
    #[arg(long, value_name = "N", value_parser = number::<u32>, default_value_t = 0)]
    pub(crate) domain: u32,
    /// Bytes of a message at most, 128 to 65535
    #[arg(long, value_name = "N", value_parser = number::<u32>, default_value_t = ExportConfig::default_message_size())]
    pub(crate) message_size: u32,
    /// Over UDP, send templates again this often; also after 64 messages
    #[arg(long, value_name = "TIME", default_value_t = ExportConfig::default_template_interval())]
    pub(crate) template_interval: Span,
    /// Say this often what was exported so far, as options data; 0 is never
    #[arg(long, value_name = "TIME", default_value_t = ExportConfig::default_template_interval())]
    pub(crate) statistics_interval: Span,
    /// Over UDP, send no faster than this [default: 200Mbit/s]
    #[arg(long, value_name = "RATE")]
    pub(crate) export_rate: Option<Throughput>,
    /// With tls://, certificates that the collector's is signed by, in PEM [default: those that the machine trusts]
    #[arg(long, value_name = "FILE")]
    pub(crate) tls_ca: Option<PathBuf>,
    /// With tls://, certificates to be shown to the collector, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub(crate) tls_certificate: Option<PathBuf>,
    /// With tls://, the private key of the first of them, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_certificate")]
    pub(crate) tls_key: Option<PathBuf>,
    /// With tls://, the name that the collector's certificate has [default: that of its host]
    #[arg(long, value_name = "NAME")]
    pub(crate) tls_name: Option<String>,
}

impl ExportArgs {
    /// One for each place.
    pub(crate) fn exports(self) -> Vec<ExportConfig> {
        let ipfix = self.ipfix.iter().map(|to| (to.clone(), ExportProtocol::Ipfix));
        let netflow = self.netflow9.iter().map(|to| (to.clone(), ExportProtocol::Netflow9));
        let folders = self.parquet.iter().map(|path| Destination::File(path.clone()));
        let folders = folders.map(|to| (to, ExportProtocol::Parquet));
        let topics = self.kafka.iter().map(|to| (to.clone(), ExportProtocol::Kafka));
        let export = |(to, protocol): (Destination, ExportProtocol)| {
            // What is for some of the places only.
            let (is_udp, is_tls) = (matches!(to, Destination::Udp(_)), matches!(to, Destination::Tls(_)));
            let file = |path: &Option<PathBuf>| path.clone().filter(|_| is_tls);
            if protocol == ExportProtocol::Parquet {
                return ExportConfig {
                    partition: self.partition,
                    file_rows: self.file_rows,
                    file_time: self.file_time,
                    ..ExportConfig::to(to, protocol)
                };
            }
            if protocol == ExportProtocol::Kafka {
                let properties = self.kafka_option.iter().cloned().collect();
                return ExportConfig { properties, ..ExportConfig::to(to, protocol) };
            }
            ExportConfig {
                biflows: self.biflows && protocol == ExportProtocol::Ipfix,
                domain: self.domain,
                message_size: self.message_size,
                template_interval: self.template_interval,
                statistics_interval: self.statistics_interval,
                rate: self.export_rate.filter(|_| is_udp),
                ca: file(&self.tls_ca),
                certificate: file(&self.tls_certificate),
                key: file(&self.tls_key),
                server_name: self.tls_name.clone().filter(|_| is_tls),
                ..ExportConfig::to(to, protocol)
            }
        };
        ipfix.chain(netflow).chain(folders).chain(topics).map(export).collect()
    }

    /// Refuses options that are for none of the places.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        let mut places = self.ipfix.iter().chain(&self.netflow9);
        let is_udp = places.clone().any(|to| matches!(to, Destination::Udp(_)));
        let is_tls = places.any(|to| matches!(to, Destination::Tls(_)));
        let lost = |what: &str, expected: &str| {
            Err(Failure::Usage(format!(
                "{what} without a place to export to that it is for; expected {expected}"
            )))
        };
        let tls = [
            ("--tls-ca", self.tls_ca.is_some()),
            ("--tls-certificate", self.tls_certificate.is_some()),
            ("--tls-name", self.tls_name.is_some()),
        ];
        match tls.iter().find(|(_, is_given)| *is_given && !is_tls) {
            Some((option, _)) => lost(option, "--ipfix tls://HOST:PORT"),
            None if self.export_rate.is_some() && !is_udp => {
                lost("--export-rate", "--ipfix or --netflow9 with udp://HOST:PORT")
            }
            None => Ok(()),
        }
    }
}

#[derive(Clone, Debug, Args)]
pub(crate) struct StatisticsArgs {
    /// Say at this interval what was counted so far, such as every 10s, on standard error or to the file of --stats-output; 0 is never
    #[arg(long, value_name = "TIME", value_parser = interval)]
    pub(crate) stats_every: Option<Span>,
    /// Append a line of JSON to this file at each interval of --stats-every, and one at the end
    #[arg(long, value_name = "FILE")]
    pub(crate) stats_output: Option<PathBuf>,
}

impl StatisticsArgs {
    /// Refuses a file for what is not to be said, unless a chain file says when.
    pub(crate) fn check(&self, in_chain: Option<Span>) -> Result<(), Failure> {
        match (&self.stats_output, self.stats_every.or(in_chain)) {
            (Some(_), None) => Err(Failure::Usage(
                "--stats-output without --stats-every; expected, say, --stats-every 10s".into(),
            )),
            _ => Ok(()),
        }
    }
}

#[derive(Clone, Debug, Args)]
pub(crate) struct RotationArgs {
    /// Write captures, records and logs to one file after another, each for so long, such as 1h: names have the time and a number, such as
    /// flows-20261127T150000Z-000001.jsonl. Of the packets' time; files begin at whole multiples of it in UTC
    #[arg(long, value_name = "TIME", value_parser = rotation_time)]
    pub(crate) rotate_every: Option<Span>,
    /// The same, each of so many bytes at most, such as 1G or 64MiB
    #[arg(long, value_name = "SIZE", value_parser = rotation_size)]
    pub(crate) rotate_size: Option<FileSize>,
    /// Keep the last N of these files of each output, and remove those before
    #[arg(long, value_name = "N")]
    pub(crate) rotate_keep: Option<Kept>,
}

impl RotationArgs {
    /// Whether the command says something of it.
    pub(crate) fn is_given(&self) -> bool {
        self.rotate_every.is_some() || self.rotate_size.is_some() || self.rotate_keep.is_some()
    }

    /// Replaces what a chain file says.
    pub(crate) fn apply(&self, run: &mut Run) -> Result<(), Failure> {
        run.rotate_every = self.rotate_every.or(run.rotate_every);
        run.rotate_size = self.rotate_size.or(run.rotate_size);
        run.rotate_keep = self.rotate_keep.or(run.rotate_keep);
        if self.rotate_keep.is_some() && run.rotation().is_none() {
            let message = "--rotate-keep without --rotate-every and --rotate-size; expected one of them";
            return Err(Failure::Usage(message.into()));
        }
        Ok(())
    }
}

/// A time that each of several files is for.
fn rotation_time(text: &str) -> Result<Span, String> {
    text.parse().and_then(packetloom_engine::chain::rotation_time)
}

/// The bytes of each of several files.
fn rotation_size(text: &str) -> Result<FileSize, String> {
    text.parse().and_then(packetloom_engine::chain::rotation_size)
}

/// A time after which a run hangs.
fn hang_time(text: &str) -> Result<Span, String> {
    text.parse().and_then(packetloom_engine::chain::hang_time)
}

/// A time from one thing to the next that a run does from time to time.
fn interval(text: &str) -> Result<Span, String> {
    text.parse().and_then(packetloom_engine::chain::interval)
}

#[derive(Clone, Debug, Args)]
pub(crate) struct Timeouts {
    /// A record ends when its flow was silent for so long; 0 is never
    #[arg(long, value_name = "TIME", default_value_t = packetloom_nf::meter::Config::default_idle_timeout())]
    pub(crate) idle_timeout: Span,
    /// A record ends when its flow has lasted so long; 0 is never
    #[arg(long, value_name = "TIME", default_value_t = packetloom_nf::meter::Config::default_active_timeout())]
    pub(crate) active_timeout: Span,
}

#[derive(Debug, Args)]
pub(crate) struct AclArgs {
    #[command(subcommand)]
    pub(crate) verb: AclVerb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum AclVerb {
    /// Print, for each header, the position of the first rule that matches it, from 0; -1 for none
    ///
    /// Rules may be in any format, headers are Packetloom's own or ClassBench's; all are recognised by content. A rule file
    /// whose lists or negations become several rules each counts every one of them. ClassBench's flags column is not looked
    /// at.
    Classify(ClassifyArgs),
    /// Write rules in another format
    ///
    /// Rules that one format has and the other cannot say are listed on standard error, by kind, with totals and the first lines of
    /// each. Unless --max-loss allows as many, nothing is written and the exit code is 65. Packets that no rule matches get the same
    /// verdict in both: a list without a default denies them, and is written so that it does.
    Convert(ConvertArgs),
    /// Find rules that do nothing, and pairs of rules whose order matters
    ///
    /// A rule is "unmatchable" if no packet meets all its conditions; "shadowed" if earlier rules match all its packets, and
    /// those of its own action would not suffice; otherwise "redundant" if taking it out changes no decision. Rules without
    /// actions, ClassBench's, are "covered" by earlier ones. Two rules of different actions are "correlated" if they overlap
    /// and neither holds the other.
    Check(AclCheckArgs),
    /// Say which rule decides a packet, and which ones would if it were not there
    Explain(ExplainArgs),
}

/// For lists whose rules may be for some interfaces or states of connections only.
#[derive(Debug, Args)]
pub(crate) struct Entry {
    /// Judge packets that came by this interface, where rules name interfaces; otherwise by one that no rule names
    #[arg(long = "in", value_name = "INTERFACE", value_parser = interface_name)]
    pub(crate) interface: Option<String>,
    /// Judge packets that leave by this interface, where rules name interfaces; otherwise such as leave by none
    #[arg(long, value_name = "INTERFACE", value_parser = interface_name)]
    pub(crate) out: Option<String>,
    /// Judge packets whose connection is in this state, where rules ask for states: new (unless given), established, related, invalid or
    /// untracked
    #[arg(long, value_name = "STATE", value_parser = state_name)]
    pub(crate) state: Option<ConnectionState>,
}

impl Entry {
    /// What is taken for known of packets.
    pub(crate) fn context(&self) -> PacketContext<'_> {
        PacketContext {
            interface: self.interface.as_deref(),
            out: self.out.as_deref(),
            state: self.state.unwrap_or(ConnectionState::New),
        }
    }
}

/// The name of one state.
fn state_name(text: &str) -> Result<ConnectionState, String> {
    ConnectionState::by_name(text)
        .ok_or_else(|| "expected new, established, related, invalid or untracked".into())
}

/// The name of one interface.
fn interface_name(text: &str) -> Result<String, String> {
    match packetloom_classify::Interfaces::named(text) {
        Ok(_) if !text.ends_with('+') => Ok(text.into()),
        Ok(_) => Err("expected the name of one interface".into()),
        Err(why) => Err(why),
    }
}

/// How a rule file is read.
#[derive(Debug, Args)]
pub(crate) struct Reading {
    /// The list to take from rules that hold several, by its name
    #[arg(long, value_name = "NAME")]
    pub(crate) list: Option<String>,
    /// Leave out what has no equal here, and list it on standard error; other rules may then decide what it decided. What
    /// `check` and `explain` say holds whatever it did
    #[arg(long)]
    pub(crate) skip_unsupported: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ConvertArgs {
    /// Rules
    #[arg(value_name = "RULES")]
    pub(crate) rules: PathBuf,
    /// Format to write
    #[arg(long, value_name = "FORMAT", value_parser = format_name())]
    pub(crate) to: formats::Format,
    /// Format of the rules; recognised by content unless given
    #[arg(long, value_name = "FORMAT", value_parser = format_name())]
    pub(crate) from: Option<formats::Format>,
    /// The list to take from rules that hold several, by its name
    #[arg(long, value_name = "NAME")]
    pub(crate) list: Option<String>,
    /// Rules that may be left out: so many, or such a share, as 5%. Where a rule that denies is left out, the result may permit more
    /// than the rules did; where one that permits is left out, less
    #[arg(long, value_name = "N|P%", default_value_t)]
    pub(crate) max_loss: MaxLoss,
    /// What is done where the format cannot say what the rules say of fragments: VPP's rules take later fragments by addresses and
    /// protocol, for example, whatever ports they ask for
    #[arg(long, value_enum, value_name = "HOW", default_value_t)]
    pub(crate) fragments: FragmentsName,
    /// What is left out is always listed; --max-loss allows it
    #[arg(long, hide = true)]
    pub(crate) skip_unsupported: bool,
    /// The action of rules that have none of their own, as ClassBench's
    #[arg(long, value_name = "ACTION", value_enum)]
    pub(crate) rule_action: Option<ActionName>,
    /// Leave the flags column of ClassBench rules out: rules match more packets, so those that permit permit more than the source, those
    /// that deny permit less
    #[arg(long)]
    pub(crate) ignore_flags: bool,
    /// Write conditions alone to a format that holds no actions and no default (classbench), instead of refusing the rules: the result
    /// permits nothing and denies nothing by itself
    #[arg(long)]
    pub(crate) conditions_only: bool,
    /// Write to this file
    #[arg(short = 'o', value_name = "FILE", default_value = "-")]
    pub(crate) output: PathBuf,
    /// List what was left out as JSON lines on standard error: all of it, and the totals
    #[arg(long)]
    pub(crate) json: bool,
}

/// How what rules say of fragments is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum FragmentsName {
    /// Exactly; rules that the format cannot say so are lost, see --max-loss
    #[default]
    Exact,
    /// As if no packet were a fragment, for such rules alone. Packets that are no fragments get the same verdict as by the source. Of
    /// fragments the result permits more where a rule permits, less where it denies; of rules for fragments alone, which are left out, it
    /// is the other way round
    Ignore,
}

impl From<FragmentsName> for formats::FragmentsAs {
    fn from(name: FragmentsName) -> Self {
        match name {
            FragmentsName::Exact => Self::Exact,
            FragmentsName::Ignore => Self::Ignored,
        }
    }
}

/// How much of a list may be lost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum MaxLoss {
    /// So many rules.
    Rules(u64),
    /// So many of a hundred.
    Percent(f64),
}

impl Default for MaxLoss {
    fn default() -> Self {
        Self::Rules(0)
    }
}

impl MaxLoss {
    /// Whether so many of all rules may be lost.
    pub(crate) fn allows(self, lost: u64, rules: u64) -> bool {
        match self {
            Self::Rules(most) => lost <= most,
            Self::Percent(percent) => lost as f64 * 100.0 <= percent * rules as f64,
        }
    }
}

impl fmt::Display for MaxLoss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rules(most) => most.fmt(f),
            Self::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

impl FromStr for MaxLoss {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected =
            || format!("{text:?}; expected a number of rules, such as 20, or a share of them, such as 5%");
        if let Some(percent) = text.strip_suffix('%') {
            let is_number = percent.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
            let percent = percent.parse().ok().filter(|percent| is_number && (0.0..=100.0).contains(percent));
            return percent.map(Self::Percent).ok_or_else(expected);
        }
        number(text).map(Self::Rules).map_err(|_| expected())
    }
}

/// A format of rules by its name.
fn format_name() -> impl TypedValueParser<Value = formats::Format> {
    PossibleValuesParser::new(formats::Format::all().map(formats::Format::name))
        .try_map(|name| name.parse::<formats::Format>())
}

#[derive(Debug, Args)]
pub(crate) struct ClassifyArgs {
    /// Rules
    #[arg(long, value_name = "FILE")]
    pub(crate) rules: PathBuf,
    /// Format of the rules; recognised by content unless given
    #[arg(long, value_name = "FORMAT", value_parser = format_name())]
    pub(crate) format: Option<formats::Format>,
    #[command(flatten)]
    pub(crate) reading: Reading,
    #[command(flatten)]
    pub(crate) entry: Entry,
    /// Headers
    #[arg(long, value_name = "FILE")]
    pub(crate) headers: PathBuf,
    /// linear, tuple-space, tuple-merge or hybrid
    #[arg(long, value_name = "NAME", default_value_t)]
    pub(crate) classifier: Kind,
    /// Where: cpu, cuda:N, opencl:N, or auto for the first GPU there is, else the CPU
    #[arg(long, value_name = "DEVICE", default_value_t)]
    pub(crate) device: Placement,
    /// Write the positions to this file
    #[arg(short = 'o', value_name = "FILE", default_value = "-")]
    pub(crate) output: PathBuf,
}

/// How rules are read, and what happens where they say nothing.
#[derive(Debug, Args)]
pub(crate) struct Policy {
    /// Rules
    pub(crate) rules: PathBuf,
    /// Format of the rules; recognised by content unless given
    #[arg(long, value_name = "FORMAT", value_parser = format_name())]
    pub(crate) format: Option<formats::Format>,
    #[command(flatten)]
    pub(crate) reading: Reading,
    #[command(flatten)]
    pub(crate) entry: Entry,
    /// Leave the flags column of ClassBench rules out
    #[arg(long)]
    pub(crate) ignore_flags: bool,
    /// The action of rules that have none
    #[arg(long, value_enum, value_name = "ACTION")]
    pub(crate) rule_action: Option<ActionName>,
    /// What happens to packets that no rule matches; what the rule file says, or deny, unless given
    #[arg(long, value_enum, value_name = "ACTION")]
    pub(crate) default: Option<ActionName>,
}

/// Actions by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ActionName {
    /// Go on
    Permit,
    /// Drop
    Deny,
}

impl From<ActionName> for Action {
    fn from(name: ActionName) -> Self {
        match name {
            ActionName::Permit => Self::Permit,
            ActionName::Deny => Self::Deny,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct AclCheckArgs {
    #[command(flatten)]
    pub(crate) policy: Policy,
    /// Comparisons that may be made for one rule, up to 100,000,000; a rule that takes more is "undecided"
    #[arg(
        long,
        value_name = "N",
        default_value_t = analysis::Options::default().work,
        value_parser = |text: &str| units::number(text, 1..=100_000_000)
    )]
    pub(crate) work: u64,
    /// Rules named with a finding; the others are counted
    #[arg(long, value_name = "N", default_value_t = analysis::Options::default().named, value_parser = number::<usize>)]
    pub(crate) show: usize,
    /// Exit with 3 if a rule is unmatchable, shadowed, redundant, covered or undecided; correlated rules are allowed
    #[arg(long)]
    pub(crate) strict: bool,
    /// Write the findings to this file
    #[arg(short = 'o', value_name = "FILE", default_value = "-")]
    pub(crate) output: PathBuf,
    /// Print a JSON object a line for each rule with findings, and a summary
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {
    #[command(flatten)]
    pub(crate) policy: Policy,
    /// A packet, such as "tcp 192.0.2.1:1234 > 198.51.100.10:443 flags S"; may be given several times
    ///
    /// Protocol, source, ">", destination; then, as needed, type N, code N, flags LETTERS, fragment first or later. A port stands
    /// behind its address and a colon, and an IPv6 address with a port in brackets. Without flags it is a packet whose flags were
    /// not captured: rules that ask for flags do not match it.
    #[arg(long, value_name = "PACKET", required = true, value_parser = PacketText::new)]
    pub(crate) packet: Vec<PacketText>,
    /// Rules shown that would come next; the others are counted
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = number::<usize>)]
    pub(crate) show: usize,
    /// Print a JSON object a line for each packet
    #[arg(long)]
    pub(crate) json: bool,
}

/// A packet as it was written, and what it means.
#[derive(Clone, Debug)]
pub(crate) struct PacketText {
    pub(crate) text: String,
    pub(crate) key: Key,
}

impl PacketText {
    fn new(text: &str) -> Result<Self, String> {
        Ok(Self { text: text.trim().to_owned(), key: formats::parse_header(text)? })
    }
}

#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// Chain file
    pub(crate) chain: PathBuf,
    /// Leave the flags column of ClassBench rules out
    #[arg(long)]
    pub(crate) ignore_flags: bool,
    /// Print the plan, or the mistakes, as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct GenerateArgs {
    #[command(subcommand)]
    pub(crate) verb: GenerateVerb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum GenerateVerb {
    /// Write a capture with heavy-tailed flows, IPv4 and IPv6, VLANs, TCP, UDP and ICMP, or with the flows of a profile
    Traffic(TrafficArgs),
    /// Write a rule set with the structure of real ones
    Rules(RulesArgs),
    /// Write headers for a rule set, in random order
    Headers(HeadersArgs),
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  packetloom generate traffic -w t.pcap --packets 2000000 --flows 100000 --snap 128
  packetloom meter -r mine.pcap --format flowtest -o mine.csv
  packetloom generate traffic -w like-mine.pcap --profile mine.csv")]
pub(crate) struct TrafficArgs {
    /// Write to this pcap file
    #[arg(short = 'w', value_name = "CAPTURE")]
    pub(crate) write: PathBuf,
    #[command(flatten)]
    pub(crate) shape: TrafficShape,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct TrafficShape {
    /// Make the flows of this network profile of FlowTest instead: CSV with times, protocols, ports, and packets and bytes of each direction,
    /// as "meter --format flowtest" writes it, perhaps compressed by gzip, xz or zstd
    #[arg(long, value_name = "FILE", conflicts_with_all = ["packets", "flows", "duration", "ipv6_share", "vlan_share"])]
    pub(crate) profile: Option<PathBuf>,
    /// Packets
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = number::<u64>)]
    pub(crate) packets: u64,
    /// Bidirectional flows
    #[arg(long, value_name = "N", default_value_t = 50_000, value_parser = number::<u64>)]
    pub(crate) flows: u64,
    /// Bytes kept of each packet; 0 is all
    #[arg(long, value_name = "BYTES", default_value_t = 0, value_parser = number::<u32>)]
    pub(crate) snap: u32,
    /// The same seed gives the same bytes
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = number::<u64>)]
    pub(crate) seed: u64,
    /// Time from the first packet to the last
    #[arg(long, value_name = "TIME", default_value = "60s")]
    pub(crate) duration: Span,
    /// Percentage of flows that are IPv6
    #[arg(long, value_name = "PERCENT", default_value_t = 25, value_parser = percent)]
    pub(crate) ipv6_share: u8,
    /// Percentage of flows with VLAN tags
    #[arg(long, value_name = "PERCENT", default_value_t = 20, value_parser = percent)]
    pub(crate) vlan_share: u8,
}

/// Styles of rule sets, after those of ClassBench.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Style {
    /// Access control lists: both prefixes long, destination ports
    Acl,
    /// Firewalls: wildcards, ranges on both sides
    Fw,
    /// IP chains: many combinations of prefix lengths, any protocol
    Ipc,
}

/// Formats of rules and headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// ClassBench's: rules without actions, headers of IPv4
    Classbench,
    /// Packetloom's own
    Native,
}

/// What `generate rules` and `generate headers` have in common.
#[derive(Debug, Args)]
pub(crate) struct Text {
    /// Write to this file
    #[arg(short = 'o', value_name = "FILE", default_value = "-")]
    pub(crate) output: PathBuf,
    /// The same seed gives the same bytes
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = number::<u64>)]
    pub(crate) seed: u64,
    /// Format; ClassBench's for IPv4, unless given
    #[arg(long, value_enum)]
    pub(crate) format: Option<Format>,
}

#[derive(Debug, Args)]
pub(crate) struct RulesArgs {
    /// What kind of real set it is like
    #[arg(long, value_enum, default_value_t = Style::Acl)]
    pub(crate) style: Style,
    /// Rules
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = number::<usize>)]
    pub(crate) rules: usize,
    /// IPv6 prefixes instead of IPv4
    #[arg(long)]
    pub(crate) ipv6: bool,
    #[command(flatten)]
    pub(crate) text: Text,
}

#[derive(Debug, Args)]
pub(crate) struct HeadersArgs {
    /// Rules that the headers are for, in any format
    #[arg(long, value_name = "FILE")]
    pub(crate) rules: PathBuf,
    /// Headers
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = number::<u64>)]
    pub(crate) headers: u64,
    /// Take source, destination and ports of a header from different rules: mostly late matches, or none
    #[arg(long)]
    pub(crate) mix: bool,
    #[command(flatten)]
    pub(crate) text: Text,
}

const PLOTS: &str = "\
Lines differ in what the legend names; what rows have in common stands in the title. Of each benchmark the files are, where there are rows
for them:
  device   throughput-batch.svg, latency-batch.svg, latency-batch-log.svg, throughput-rules.svg
  chain    throughput-workers.svg, throughput-flows.svg, latency-offered.svg (with --offered)
  acl      acl-throughput.svg, acl-batch.svg, acl-rules.svg
  meter    meter-throughput.svg, meter-workers.svg; meter-burst.svg, meter-slice.svg, meter-block.svg (with --device); meter-device.svg
           (whatever else is varied), meter-hashes.svg, meter-chains.svg (how hash functions spread keys)
  changes  changes-rate.svg, changes-latency.svg, changes-throughput.svg; churn-throughput.svg, churn-latency.svg (with --total)
  forward  forward-rate.svg, forward-flood.svg, forward-rules.svg, forward-latency.svg
  strings  strings-throughput.svg, strings-patterns.svg, strings-ratio.svg

Example:
  for n in 1 2 4; do packetloom bench chain --workers $n --json; done > workers.jsonl
  packetloom bench chain --offered 1,2,5,10 --json > offered.jsonl
  packetloom plot workers.jsonl offered.jsonl -o plots";

#[derive(Debug, Args)]
#[command(after_help = PLOTS)]
pub(crate) struct PlotArgs {
    /// JSON lines of any benchmarks, from several machines and versions if there are; standard input unless given
    #[arg(value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
    /// Write plots to this folder, which is made if it is not there; plots of the same names are replaced
    #[arg(short = 'o', value_name = "FOLDER", default_value = "plots")]
    pub(crate) output: PathBuf,
    /// Call all workloads so: rule sets of any names are then one line over the number of rules
    #[arg(long, value_name = "NAME")]
    pub(crate) workload: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    pub(crate) verb: BenchVerb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum BenchVerb {
    /// A capture to flow records, file to file
    ///
    /// Medians over the rounds: mpps of wall time, mpps_cpu packets over user and system time, ns_per_packet of wall time
    /// with its quartiles p25 and p75, cpu_ns_per_packet likewise. Reading, parsing, metering and writing the records are
    /// all in it.
    ///
    /// With --device, a meter of kernels, from headers to flow tables in the device's memory: each option that takes several values is
    /// measured with each value of the others. No timeout cuts a flow. Before and after, its records are compared with those of the CPU's
    /// meter.
    Meter(Box<BenchMeterArgs>),
    /// Classifiers over headers in memory
    ///
    /// Loading is not in the times. What a classifier finds is checked rule by rule before it is timed. They are then
    /// measured in turns, each with each batch size once a round. Medians over the rounds, as of "bench meter", but CPU time
    /// is that of the classifying thread alone. With a peer, peer_ratio is how many times as fast as the peer a classifier
    /// was by that time: the median of the rounds' ratios, with the lowest and the highest.
    Acl(BenchAclArgs),
    /// Rules that change while headers are classified in another thread
    ///
    /// Rules that are drawn at random are moved to places that are drawn at random: deleted, and added again, which counts as two
    /// changes. Windows with changes and without take turns. Rates of classification are over wall time, and over the time of its
    /// thread ("_cpu"). Before, between and after, answers are compared with linear's over the list as it is then.
    ///
    /// With --total, one thread makes so many changes as fast as it can, and classifies between parts of them. There is a row for the
    /// start, for each part, and, without a number of changes, for tables made anew of the rules as they are in the end;
    /// worn_classifies and worn_changes are how many times as fast as these the changed ones are, measured in turns.
    Changes(BenchChangesArgs),
    /// A chain over packets in memory, from frames to what is sent
    ///
    /// Each worker has a ring of frames of its own, packets of a flow in one of them as a network card spreads them; all rings together are
    /// four times the largest cache, or twice as many packets as flows, in random order. The first time around is not timed, so that all
    /// flows are known. Medians over the rounds, as of "bench meter"; ns_per_packet is of one worker. What was counted is
    /// compared with what the packets are.
    Chain(BenchChainArgs),
    /// Rules on a device: over keys that are there already, or fed from this machine's memory
    ///
    /// Every answer is compared with the CPU's, which is checked rule by rule, before and after it is timed. Over keys that are there a
    /// launch takes a batch, and the next one waits until it is done; otherwise several batches are on their way, and latency_us is from when
    /// one is handed over to when its answers are in this machine's memory. Medians over the rounds: mpps with the lowest and the highest
    /// round, core_mpps of hybrid on one core in the same rounds (from frames on, where the device begins there), cores how many of them the
    /// device stands for, all_cores_mpps and all_cores_ratio the same of all cores at once.
    Device(BenchDeviceArgs),
    /// Strings in payloads, in memory
    ///
    /// One thread, whose CPU time counts. The first payloads are compared with the slow form, and with --peer all of them with the peer's
    /// matches, before anything is timed. Peer and matcher take turns, round by round: peer_ratio is the median of the rounds' ratios.
    /// Each --size is measured with each --matching. Payloads are text such as HTTP's, or, with --attack, made of pieces of patterns.
    ///
    /// With --device, all matches are compared with the CPU's before and after they are timed, and rates are of wall time: of launches over all
    /// payloads, and of batches that are copied to the device in several queues. copies_gbps is what the copies alone reach in the
    /// same rounds, copies_share what is left of that with the search and its results.
    Strings(BenchStringsArgs),
    /// Strings by NFV compute acceleration as a program in C has it, and how much of its copies is hidden
    ///
    /// A stream has one function, a kernel that takes each packet through an automaton. Buffers that are in memory go through it in turns, all of them
    /// on their way: with copies alone, with kernels alone, with both, and with neither, each for 100 ms in each round. hidden is (copies + kernels -
    /// both) / the lesser of copies and kernels: 0 where one comes after the other, 1 where the lesser one is hidden behind the greater. Results are
    /// compared with the CPU's before and after.
    Nca(BenchNcaArgs),
    /// Packets between network namespaces: generator, "run" inline, sink
    ///
    /// A generator in the kernel sends packets of UDP by a virtual link to a run of this program, which forwards them by another one to a sink
    /// that counts them. For each list, size of packets and backend: the highest rate without loss (RFC 2544: bisected, confirmed by
    /// a longer trial), what comes out of a flood, CPU time a packet, latency at 98 and at 10 % of that rate, and where packets were
    /// dropped. Each round goes over all of them and the peers; each has new namespaces, which go at the end. Needs root, Linux 6.6, ip and
    /// ethtool, and a core for the generator beside that of the run.
    Forward(BenchForwardArgs),
}

#[derive(Debug, Args)]
#[command(after_help = "\
Example: packetloom bench forward --rule-count 0,10000 --backend af_xdp,af_packet --peer nftables")]
pub(crate) struct BenchForwardArgs {
    /// Rule lists, in any format, which have to permit some packets of UDP over IPv4; several with commas between, each measured
    #[arg(long, value_name = "FILE,…", value_delimiter = ',')]
    pub(crate) rules: Vec<PathBuf>,
    /// Generated lists of so many rules, of which the last permits everything; several with commas between; 0 is a chain without
    /// functions, and what is measured unless lists are given
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = number::<u32>)]
    pub(crate) rule_count: Vec<u32>,
    /// How the run receives and sends; several with commas between, each measured
    #[arg(long, value_enum, value_name = "BACKEND,…", value_delimiter = ',', default_value = "af_xdp")]
    pub(crate) backend: Vec<ForwardBackend>,
    /// Measure this beside the run, too; several with commas between
    #[arg(long, value_enum, value_name = "PEER,…", value_delimiter = ',')]
    pub(crate) peer: Vec<ForwardPeer>,
    /// Bytes of a packet with its check sequence, 64 to 1518; several with commas between, each measured
    #[arg(long, value_name = "BYTES,…", value_delimiter = ',', default_value = "64")]
    pub(crate) packet_size: Vec<Bounded<64, 1518>>,
    /// Flows, 1 to 65536
    #[arg(long, value_name = "N", default_value = "256")]
    pub(crate) flows: Bounded<1, 65_536>,
    /// The core of the generator, by its number from 0; the kernel receives there, too
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) generator_core: usize,
    /// The cores of the run; the first one for a peer
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1")]
    pub(crate) forwarder_core: Vec<usize>,
    /// Workers of the run
    #[arg(long, value_name = "N", default_value = "1")]
    pub(crate) workers: Workers,
    /// What the workers do while no packet comes; several with commas between, each measured
    #[arg(long, value_enum, value_name = "WHAT,…", value_delimiter = ',', default_value = "sleep")]
    pub(crate) idle: Vec<IdleChoice>,
    /// Have the run meter what passes the rules, and compare its flow records with what was sent
    #[arg(long)]
    pub(crate) meter: bool,
    /// Draw the load of each worker every 100 ms, at 98 % of the rate without loss, as SVG to this file
    #[arg(long, value_name = "FILE")]
    pub(crate) load_plot: Option<PathBuf>,
    /// How long a trial of a rate takes, such as 600ms
    #[arg(long, value_name = "TIME", default_value = "600ms")]
    pub(crate) trial: Span,
    /// How long a rate is confirmed, and latency at 10 % of it is measured
    #[arg(long, value_name = "TIME", default_value = "3s")]
    pub(crate) confirm: Span,
    /// How long 98 % of that rate is held, such as 60s; as long as a rate is confirmed, unless given
    #[arg(long, value_name = "TIME")]
    pub(crate) hold: Option<Span>,
    /// The share of packets that may be lost "without loss"
    #[arg(long, value_name = "SHARE", default_value = "0.00001", value_parser = share)]
    pub(crate) max_loss: f64,
    /// Rounds that are timed
    #[arg(long, value_name = "N", default_value = "3", value_parser = number::<NonZeroUsize>)]
    pub(crate) rounds: NonZeroUsize,
    /// Print JSON lines instead of a table
    #[arg(long)]
    pub(crate) json: bool,
}

/// A share from 0 to 1.
fn share(text: &str) -> Result<f64, String> {
    let share = text.parse().ok().filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| "expected a share from 0 to 1, such as 0.00001".into())
}

/// How a run that is measured receives and sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ForwardBackend {
    /// AF_XDP sockets
    #[value(name = "af_xdp")]
    AfXdp,
    /// Packet sockets
    #[value(name = "af_packet")]
    AfPacket,
}

/// What is measured beside a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ForwardPeer {
    /// The kernel, forwarding with the same rules: one after the other, and as maps with intervals
    Nftables,
    /// DPDK's testpmd, which looks at nothing, by the same sockets
    Testpmd,
}

const BENCH_STRINGS: &str = "\
Examples:
  packetloom bench strings --patterns names.txt --peer hyperscan
  packetloom bench strings --patterns names.txt --first 1000,2500,5000 --skip 34 --report first
  packetloom bench strings --patterns names.txt --attack without-last,runs --size 583
  packetloom bench strings --patterns names.txt --device cuda:0 --bytes 128M --json";

#[derive(Debug, Args)]
#[command(after_help = format!("{CAPTURES}\n\n{BENCH_STRINGS}"))]
pub(crate) struct BenchStringsArgs {
    /// The file of patterns
    #[arg(long, value_name = "FILE")]
    pub(crate) patterns: PathBuf,
    /// What the file is: auto, lines, hex or rules
    #[arg(long, value_name = "FORMAT", default_value_t = PatternFormat::Auto)]
    pub(crate) format: PatternFormat,
    /// Only so many of the patterns, the first ones; several with commas between
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = number::<NonZeroUsize>)]
    pub(crate) first: Vec<NonZeroUsize>,
    /// Take the payloads of this capture, or of several, see Captures below
    #[arg(short = 'r', value_name = "CAPTURE", conflicts_with_all = ["size", "matching", "attack", "bytes"])]
    pub(crate) read: Vec<PathBuf>,
    /// Bytes of a payload, or mixed: 64, 583 and 1450, seven, four and one of twelve; several with commas between
    #[arg(long, value_name = "BYTES,…", value_delimiter = ',', default_values = ["64", "583", "1450", "mixed"])]
    pub(crate) size: Vec<PayloadSize>,
    /// Percent of the payloads that have a pattern put into them; several with commas between
    #[arg(long, value_name = "PERCENT,…", value_delimiter = ',', default_values = ["0", "35"])]
    pub(crate) matching: Vec<Percent>,
    /// Payloads of pieces of patterns: without-last (byte), without-first, runs, or long-lists (the eight bytes that most patterns have in common);
    /// several with commas between
    #[arg(long, value_name = "KIND,…", value_delimiter = ',', value_enum, conflicts_with = "matching")]
    pub(crate) attack: Vec<Attack>,
    /// Bytes of all payloads
    #[arg(long, value_name = "N", default_value = "8M", value_parser = number::<NonZeroUsize>)]
    pub(crate) bytes: NonZeroUsize,
    /// Which matches are reported: all, each pattern of a payload once, as nf = "strings" asks, or its first match, or any
    #[arg(long, value_name = "WHICH", value_enum, default_value_t = Reported::All)]
    pub(crate) report: Reported,
    /// Do not look at so many bytes at the beginning of each payload, as of headers; rates count them
    #[arg(long, value_name = "BYTES", default_value_t = 0, conflicts_with = "device")]
    pub(crate) skip: usize,
    /// Compile with a sample of other such payloads, so that windows are chosen that are rare in them: auto, as a run does that has searched
    /// enough, sets of 1,000 patterns and more; always, also where WHEN is left out; or never. Of captures, every second payload is the sample
    #[arg(long, value_name = "WHEN", value_enum, default_value_t = Sampled::Auto, num_args = 0..=1, default_missing_value = "always")]
    pub(crate) sample: Sampled,
    /// The instruction set: avx512, avx2 or portable [default: the best of this processor]
    #[arg(long, value_name = "NAME")]
    pub(crate) isa: Option<String>,
    /// Payloads of a call
    #[arg(long, value_name = "N", default_value = "16384", value_parser = number::<NonZeroUsize>)]
    pub(crate) batch: NonZeroUsize,
    /// Look through them on this device, cuda:N, opencl:N or host, for all matches
    #[arg(long, value_name = "DEVICE", conflicts_with_all = ["peer", "report"])]
    pub(crate) device: Option<Id>,
    /// Where payloads are before: on-device, all of them, or host-fed, in this machine's memory, to which matches come back, too;
    /// several with commas between
    #[arg(long, value_name = "WHERE,…", value_delimiter = ',', value_enum, requires = "device", default_values_t = [StringsTransport::OnDevice, StringsTransport::HostFed])]
    pub(crate) transport: Vec<StringsTransport>,
    /// Batches from this machine's memory that are on their way at a time, each in a queue of its own
    #[arg(long, value_name = "N", default_value = "8", requires = "device")]
    pub(crate) in_flight: Bounded<1, 256>,
    /// Measure this beside: hyperscan, whose library libhs.so.5 has to be installed
    #[arg(long, value_name = "PEER", value_enum)]
    pub(crate) peer: Option<StringsPeer>,
    #[command(flatten)]
    pub(crate) rounds: Rounds,
}

/// Bytes of payloads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PayloadSize(pub(crate) packetloom_bench::strings::Size);

impl FromStr for PayloadSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        use packetloom_bench::strings::Size;
        if text == "mixed" {
            return Ok(Self(Size::Mixed));
        }
        let bytes: Bounded<1, 65_535> = text.parse().map_err(|e| format!("{e}, or \"mixed\""))?;
        Ok(Self(Size::Fixed(bytes.get())))
    }
}

/// Percent.
pub(crate) type Percent = Bounded<0, 100>;

/// Which matches a benchmark asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Reported {
    All,
    Each,
    First,
    Any,
}

/// Whether a set is compiled with a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Sampled {
    Auto,
    Always,
    Never,
}

/// Payloads that are hard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Attack {
    WithoutLast,
    WithoutFirst,
    Runs,
    LongLists,
}

/// Where payloads are before a device looks through them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum StringsTransport {
    OnDevice,
    HostFed,
}

/// What is measured beside a matcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum StringsPeer {
    Hyperscan,
}

#[derive(Debug, Args)]
#[command(after_help = CAPTURES)]
pub(crate) struct BenchMeterArgs {
    /// Read this capture instead of making one, or several, see Captures below
    #[arg(short = 'r', value_name = "CAPTURE", conflicts_with = "profile")]
    pub(crate) read: Vec<PathBuf>,
    /// Write the records to this file; otherwise to a temporary one
    #[arg(short = 'o', value_name = "FLOWS")]
    pub(crate) output: Option<PathBuf>,
    /// Fields of records, as of meter
    #[arg(long, value_name = "FIELDS", default_value_t = packetloom_nf::meter::Config::default_fields())]
    pub(crate) fields: Fields,
    #[command(flatten)]
    pub(crate) shape: TrafficShape,
    #[command(flatten)]
    pub(crate) timeouts: Timeouts,
    #[command(flatten)]
    pub(crate) rounds: Rounds,
    /// Packets of a batch
    #[arg(long, value_name = "N", default_value = "512")]
    pub(crate) batch: BatchSize,
    /// Worker threads, 1 to 256
    #[arg(long, value_name = "N", default_value = "1")]
    pub(crate) workers: Workers,
    #[command(flatten)]
    pub(crate) on_device: MeterOnDevice,
}

/// What "bench meter" measures on a device.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "On a device")]
pub(crate) struct MeterOnDevice {
    /// The device that meters: cuda:N, opencl:N or host
    #[arg(long, value_name = "DEVICE", conflicts_with_all = ["batch", "workers", "idle_timeout", "active_timeout"])]
    pub(crate) device: Option<Id>,
    /// Packets of a launch, 1 to 16777216, several with commas between
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "65536", requires = "device")]
    pub(crate) burst: Vec<Bounded<1, 16_777_216>>,
    /// Work items of a group, several with commas between; otherwise as many as suit the device
    #[arg(long, value_name = "N,…", value_delimiter = ',', requires = "device")]
    pub(crate) block: Vec<Bounded<1, 1024>>,
    /// Bytes of each frame that the device gets: 64, 128 or 256, several with commas between
    #[arg(long, value_name = "BYTES,…", value_delimiter = ',', default_values_t = [meter::SliceBytes::default()], requires = "device")]
    pub(crate) slice: Vec<meter::SliceBytes>,
    /// Packets whose keys a work item hashes and looks up at a time, 1 to 4, several with commas between
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1", requires = "device")]
    pub(crate) keys_per_thread: Vec<Bounded<1, 4>>,
    /// How headers are parsed: in-place (in the memory that they are in) or local (copied to the group's memory first), several with commas
    /// between
    #[arg(long, value_name = "HOW,…", value_delimiter = ',', default_values_t = [meter::Parse::default()], requires = "device")]
    pub(crate) parse: Vec<meter::Parse>,
    /// Where packets are: device (slices in its memory), copied (from this machine's memory, burst by burst), mapped (read in this machine's
    /// memory) or capture (from the file to a file of records), several with commas between
    #[arg(long, value_name = "WHERE,…", value_delimiter = ',', default_values_t = [meter::device::PacketMemory::default()], requires = "device")]
    pub(crate) memory: Vec<meter::device::PacketMemory>,
    /// How bursts are launched: burst (a launch for each) or resident (one kernel that is told of them), several with commas between
    #[arg(long, value_name = "HOW,…", value_delimiter = ',', default_values_t = [meter::device::Launch::default()], requires = "device")]
    pub(crate) launch: Vec<meter::device::Launch>,
    /// Hash functions: fnv1a, superfast, lanes, murmur3, xxh32, xxh64, fold, several with commas between, or all
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', default_value = "fold", requires = "device")]
    pub(crate) hash: Vec<Hashes>,
    /// Where kernels end: parse, hash, find, or all, several with commas between; records come of all alone
    #[arg(long, value_name = "STAGE,…", value_delimiter = ',', default_values_t = [meter::Stage::default()], requires = "device")]
    pub(crate) stage: Vec<meter::Stage>,
    /// Slots of each table; otherwise twice as many as there are flows
    #[arg(long, value_name = "N", requires = "device")]
    pub(crate) slots: Option<Bounded<1, 1_073_741_824>>,
    /// Bursts on their way at a time
    #[arg(long, value_name = "N", default_value = "4", requires = "device")]
    pub(crate) in_flight: Bounded<1, 4096>,
}

/// One hash function, or all.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Hashes {
    All,
    One(meter::Hash),
}

impl std::str::FromStr for Hashes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "all" { Ok(Self::All) } else { text.parse().map(Self::One) }
    }
}

#[derive(Debug, Args)]
pub(crate) struct BenchChainArgs {
    /// The chain file; unless given, a counter, a limiter that lets all pass, and a balancer: packets go to 198.51.100.1, port 80
    #[arg(value_name = "CHAIN.toml")]
    pub(crate) chain: Option<PathBuf>,
    /// Flows
    #[arg(long, value_name = "N", default_value = "2000000", value_parser = number::<NonZeroU32>)]
    pub(crate) flows: NonZeroU32,
    /// Sources that they come from
    #[arg(long, value_name = "N", default_value = "100000", value_parser = number::<NonZeroU32>)]
    pub(crate) sources: NonZeroU32,
    /// How packets are spread over them
    #[arg(long, value_enum, default_value_t = Distribution::Uniform)]
    pub(crate) distribution: Distribution,
    /// Flows of each worker that begin in a second of packets' time, each in place of one that ends; a worker has a packet each 100 ns of
    /// that time
    #[arg(long, value_name = "N", default_value = "0", conflicts_with = "device", value_parser = number::<u32>)]
    pub(crate) new_flows: u32,
    /// Flows of one packet beside the others, as of a flood; with as many as there are packets of others, or more, every other packet is one
    #[arg(long, value_name = "N", default_value = "0", conflicts_with = "device", value_parser = number::<u32>)]
    pub(crate) flood: u32,
    /// Flows that the table has room for, unless a chain is given; otherwise a fourth more than there are, and what --new-flows needs
    #[arg(long, value_name = "N", conflicts_with = "chain")]
    pub(crate) max_flows: Option<MaxFlows>,
    /// After how long a flow that was silent is forgotten, unless a chain is given; 0 is never
    #[arg(long, value_name = "TIME", default_value = "60s", conflicts_with = "chain")]
    pub(crate) timeout: Span,
    /// Bytes of a packet with its check sequence
    #[arg(long, value_name = "BYTES", default_value = "64")]
    pub(crate) packet_size: PacketSize,
    /// Packets of a batch, 1 to 1048576
    #[arg(long, value_name = "N", default_value = "256")]
    pub(crate) batch: Bounded<1, 1_048_576>,
    /// Worker threads, 1 to 256
    #[arg(long, value_name = "N", default_value = "1", conflicts_with = "device")]
    pub(crate) workers: Workers,
    /// Packets offered to all workers together in a second, in millions, several with commas between, each measured: each worker takes those
    /// that have come, up to a batch, and latency is from when a packet came to when it is sent. As many as they take unless given
    #[arg(long, value_name = "MPPS,…", value_delimiter = ',', conflicts_with = "device", value_parser = units::fraction)]
    pub(crate) offered: Vec<f64>,
    /// The device that runs all of the chain: cuda:N, opencl:N or host
    #[arg(long, value_name = "DEVICE")]
    pub(crate) device: Option<Id>,
    /// How packets get to the device
    #[arg(long, value_enum, default_value_t = ChainTransport::Records, requires = "device")]
    pub(crate) transport: ChainTransport,
    /// Bytes of a frame that are read in place, 64 or 128
    #[arg(long, value_name = "BYTES", default_value = "64", requires = "device")]
    pub(crate) slice: Slice,
    /// Batches on their way at a time, in place
    #[arg(long, value_name = "N", default_value = "4", requires = "device", value_parser = of_64)]
    pub(crate) in_flight: u16,
    #[command(flatten)]
    pub(crate) rounds: Rounds,
}

/// How packets get to a device that runs a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ChainTransport {
    /// They are there: what is known of packets whose headers were read, in its memory
    Records,
    /// Their headers are read where they lie in this machine's memory, verdicts and rewritten headers are written back to it
    InPlace,
}

/// Bytes of a packet, as Ethernet has them.
pub(crate) type PacketSize = Bounded<64, 9_018>;

/// How packets are spread over flows.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Distribution {
    /// Each packet is of any flow
    Uniform,
    /// The flow of rank r has packets in proportion to 1 / r
    Zipf,
    /// One flow in 1,000 is one of those that have 80 % of the packets
    Elephants,
    /// Uniform; and all flows would have their places in one 64th of a table whose hash anybody can compute
    Aimed,
}

#[derive(Debug, Args)]
pub(crate) struct BenchAclArgs {
    /// Rules
    #[arg(long, value_name = "FILE")]
    pub(crate) rules: PathBuf,
    /// Headers
    #[arg(long, value_name = "FILE")]
    pub(crate) headers: PathBuf,
    /// Classifiers, by their names with commas between, or "all"; the one that would be chosen unless given
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', default_values_t = [Classifiers::One(Kind::default())])]
    pub(crate) classifier: Vec<Classifiers>,
    /// Headers of a batch; several with commas between, each measured
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "256", value_parser = number::<NonZeroUsize>)]
    pub(crate) batch: Vec<NonZeroUsize>,
    /// Compare with this classifier of another project: rte_acl, in builds with the feature "dpdk"
    #[arg(long, value_name = "NAME")]
    pub(crate) peer: Option<Peer>,
    /// Take source, destination and the rest of a header from different headers: mostly late matches, or none
    #[arg(long)]
    pub(crate) mix: bool,
    #[command(flatten)]
    pub(crate) rounds: Rounds,
}

#[derive(Debug, Args)]
pub(crate) struct BenchDeviceArgs {
    /// Rules
    #[arg(long, value_name = "FILE")]
    pub(crate) rules: PathBuf,
    /// Headers, of one family
    #[arg(long, value_name = "FILE")]
    pub(crate) headers: PathBuf,
    /// The device: cuda:N or opencl:N, or host
    #[arg(long, value_name = "DEVICE", default_value = "cuda:0")]
    pub(crate) device: Id,
    /// How rules are laid out: linear, tuple-space, tuple-merge, masks; several with commas between
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', default_value = "masks")]
    pub(crate) algorithm: Vec<Algorithm>,
    /// Headers of a launch; several with commas between, each measured
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1048576", value_parser = number::<NonZeroUsize>)]
    pub(crate) batch: Vec<NonZeroUsize>,
    /// Headers on the device, with on-device: those of the file, again and again
    #[arg(long, value_name = "N", default_value = "16777216", value_parser = keys)]
    pub(crate) keys: u32,
    /// How packets get there: on-device (keys that are there already), keys (copied from this machine's memory), slices (the first bytes of
    /// frames, put together here), in-place (frames in buffers of 2 KiB, read where they lie), resident (the same, by a kernel that
    /// stays); several with commas between. With all but the first, answers come back to this machine's memory
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', default_value = "on-device")]
    pub(crate) transport: Vec<Transport>,
    /// Batches on their way at a time, from this machine's memory
    #[arg(long, value_name = "N", default_value = "4", value_parser = of_64)]
    pub(crate) in_flight: u16,
    /// Rings that feed a resident kernel, with a thread for each
    #[arg(long, value_name = "N", default_value = "1", value_parser = of_64)]
    pub(crate) feeders: u16,
    /// Packets offered in a second, in millions, to a resident kernel; several with commas between, each measured; as many as it takes
    /// unless given
    #[arg(long, value_name = "MPPS,…", value_delimiter = ',', value_parser = units::fraction)]
    pub(crate) offered: Vec<f64>,
    /// Bytes of a frame that are looked at: 64 or 128
    #[arg(long, value_name = "BYTES", default_value = "64")]
    pub(crate) slice: Slice,
    /// Use the kernel for any rules, instead of one that is compiled for these
    #[arg(long)]
    pub(crate) generic: bool,
    /// Take source, destination and the rest of a header from different headers: mostly late matches, or none
    #[arg(long)]
    pub(crate) mix: bool,
    #[command(flatten)]
    pub(crate) rounds: Rounds,
}

/// One classifier, or all.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Classifiers {
    All,
    One(Kind),
}

impl Classifiers {
    /// Those that are meant.
    pub(crate) fn kinds(self) -> Vec<Kind> {
        match self {
            Self::All => Kind::ALL.to_vec(),
            Self::One(kind) => vec![kind],
        }
    }
}

impl fmt::Display for Classifiers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("all"),
            Self::One(kind) => kind.fmt(f),
        }
    }
}

impl FromStr for Classifiers {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        if name == "all" { Ok(Self::All) } else { name.parse().map(Self::One) }
    }
}

#[derive(Debug, Args)]
pub(crate) struct BenchChangesArgs {
    /// Rules
    #[arg(long, value_name = "FILE")]
    pub(crate) rules: PathBuf,
    /// Headers
    #[arg(long, value_name = "FILE")]
    pub(crate) headers: PathBuf,
    /// Changes of a transaction
    #[arg(long, value_name = "N", default_value = "10", value_parser = number::<NonZeroUsize>)]
    pub(crate) changes_per_transaction: NonZeroUsize,
    /// Changes a second to aim at; as many as there is time for unless given
    #[arg(long, value_name = "N", value_parser = units::fraction)]
    pub(crate) rate: Option<f64>,
    /// How long, all windows together
    #[arg(long, value_name = "N", default_value_t = 5.0, conflicts_with = "total", value_parser = units::fraction)]
    pub(crate) seconds: f64,
    /// Make so many changes in one thread and show what becomes of rates, tables and memory
    #[arg(long, value_name = "N", conflicts_with = "rate", value_parser = number::<u64>)]
    pub(crate) total: Option<u64>,
    /// Rows of --total
    #[arg(long, value_name = "N", default_value = "6", requires = "total", value_parser = number::<NonZeroU64>)]
    pub(crate) parts: NonZeroU64,
    /// Put rules back where they stood, not at random places
    #[arg(long)]
    pub(crate) back: bool,
    /// Headers of a batch
    #[arg(long, value_name = "N", default_value = "256", value_parser = number::<NonZeroUsize>)]
    pub(crate) batch: NonZeroUsize,
    /// The same seed draws the same rules
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = number::<u64>)]
    pub(crate) seed: u64,
    /// Print JSON lines instead of a table
    #[arg(long)]
    pub(crate) json: bool,
}

const BENCH_NCA: &str = "\
Example:
  packetloom bench nca --patterns names.txt --device cuda:0 --size 1450 --batch 1024,16384 --queues 1,3";

#[derive(Debug, Args)]
#[command(after_help = BENCH_NCA)]
pub(crate) struct BenchNcaArgs {
    /// The file of patterns; letters count as they are there
    #[arg(long, value_name = "FILE")]
    pub(crate) patterns: PathBuf,
    /// What the file is: auto, lines, hex or rules
    #[arg(long, value_name = "FORMAT", default_value_t = PatternFormat::Auto)]
    pub(crate) format: PatternFormat,
    /// The device: cuda:0, opencl:0 or host
    #[arg(long, value_name = "DEVICE", default_value = "cuda:0")]
    pub(crate) device: Id,
    /// Bytes of a packet, up to 2048
    #[arg(long, value_name = "BYTES", default_value = "1450", value_parser = number::<NonZeroUsize>)]
    pub(crate) size: NonZeroUsize,
    /// Percent of the packets that have a pattern put into them
    #[arg(long, value_name = "PERCENT", default_value = "0")]
    pub(crate) matching: Percent,
    /// Packets of a buffer; several with commas between, each measured
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_values = ["1024", "16384"], value_parser = number::<NonZeroUsize>)]
    pub(crate) batch: Vec<NonZeroUsize>,
    /// Queues of the device, up to 64; several with commas between, each measured
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_values = ["1", "3"], value_parser = of_64)]
    pub(crate) queues: Vec<u16>,
    #[command(flatten)]
    pub(crate) rounds: Rounds,
}

#[derive(Debug, Args)]
pub(crate) struct Rounds {
    /// Rounds that are timed
    #[arg(long, value_name = "N", default_value = "7", value_parser = number::<NonZeroUsize>)]
    pub(crate) rounds: NonZeroUsize,
    /// Print JSON lines instead of a table
    #[arg(long)]
    pub(crate) json: bool,
}
