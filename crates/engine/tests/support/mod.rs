//! Runs of chains, and all that they leave.

#![allow(unreachable_pub, dead_code, reason = "each test takes what it needs")]

use packetloom_device::faults::{Call, Faults};
use packetloom_device::{Cache, Device, Id};
use packetloom_engine::chain::Chain;
use packetloom_engine::offload::Open;
use packetloom_engine::outcome::Shares;
use packetloom_engine::run::{Control, Io, LifecycleOptions, Request, RuleChange, RulesChanged, Saving};
use packetloom_engine::{Outcome, Outputs, Plan, State, run};
use packetloom_generate::TrafficOptions;
use packetloom_io::capture::{CaptureReader, CaptureWriter, Resolution};
use packetloom_io::input::Stop;
use packetloom_io::output::Output;
use packetloom_io::{Polled, Source};
use packetloom_nf::{Context, FunctionSpec};
use packetloom_packet::batch::empty_arena;
use packetloom_packet::{Batch, FrameRef, Key, PortNames};
use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroU64;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};

pub const RULES: &str = "\
deny tcp from any to any port 22 id ssh
permit tcp from any to any port 443 mark 443
permit udp from any port 0-32767 to any
deny icmp from any to any type 8 log
permit any from 0.0.0.0/1 to any mark 0xffffffff log
permit icmpv6 from any to any
permit tcp from any to any flags A/SA log id ack # of a connection
";
const MORE_RULES: &str = "\
deny udp from any to any port 0-2000
permit tcp from any to any mark 2
permit any from 0.0.0.0/2 to any log
";
/// Strings of which each is in some payloads.
const STRINGS: &str = "loompack\n\\x00\\x00\nab\n\\xff\\xff\nab\n\\x10\\x01\nAb\n\\x7f\\x80\n";
/// Rules of which each is a string, several of them, or where they are: in payloads with strings that are [planted].
const SIGNATURES: &str = "\
alert ip any any -> any any (msg:\"two\"; content:\"loom-0-\"; content:\"loom-1-\"; sid:1;)
alert ip any any -> any any (msg:\"first\"; content:\"loom-2-\"; depth:40; sid:2;)
alert ip any any -> any any (msg:\"later\"; content:\"LOOM-3-\"; nocase; offset:8; sid:3;)
alert ip any any -> any any (msg:\"without\"; content:\"loom-4-\"; content:!\"loom-5-\"; sid:4;)
alert ip any any -> any any (msg:\"short\"; content:\"|00 01 02|\"; sid:5;)
alert ip any any -> any any (msg:\"one\"; content:\"loom-6-\"; sid:6;)
alert ip any any -> any any (msg:\"the same\"; content:\"loom-6-\"; sid:7;)
";
/// Rules about backends of a balancer, to which no packet is sent.
const BACKEND_RULES: &str = "\
deny tcp from any to 10.9.0.0/16 port 8080
permit any from any to 10.9.0.0/16
permit any from any to 2001:db8:9::/48
";
/// Rules that admit connections.
const REFLECTING: &str = "\
deny tcp from any to any flags R/R id resets log
reflect tcp from 10.0.0.0/31 to any mark 3 id out log
permit tcp from any to 10.0.0.2
reflect udp from any to any port 7
permit udp from 10.0.0.3 to any log
reflect icmp from 10.0.0.0/31 to any type 8
permit icmp from any to 10.0.0.0/31 type 11 log
reflect any from 2001:db8::/127 to any log
permit any from any to any fragment later
reflect 47 from any to any
";

/// Rules for states of connections and interfaces, of which the names are known in some captures.
const STATEFUL: &str = "\
deny any from any to any state invalid id invalid log
permit any from any to any state established,related mark 5
permit tcp from 10.0.0.0/31 to any state new id out log
deny udp from any to any port 7 in eth0
permit udp from any to any port 7 state new,untracked
permit udp from 10.0.0.3 to any in eth1,wg+ log
permit icmp from 10.0.0.0/31 to any type 8
permit tcp from any to 10.0.0.2 flags S/SA out !eth0
permit any from 2001:db8::/127 to any state new out eth+
permit any from any to any fragment later state untracked log
permit 47 from any to any
";

/// Strings that tests plant in payloads, of 1 to 60 bytes, of which some lie in others.
pub fn planted() -> Vec<Vec<u8>> {
    let planted = (0..150usize).map(|number| {
        let name = format!("loom-{number}-{}", "0123456789".repeat(number % 6)).into_bytes();
        if number % 3 == 0 { name } else { name[number % 5..].to_vec() }
    });
    planted.chain([vec![0xee], vec![0xfe, 0xff], vec![0, 1, 2], b"loom".to_vec()]).collect()
}

/// What a run leaves: summary, records in order of their text unless it is asked for them as they are, the log, the capture of what passed.
#[derive(Debug, PartialEq)]
pub struct Results {
    pub summary: serde_json::Value,
    pub records: Vec<String>,
    pub log: String,
    pub passed: Vec<u8>,
}

/// How a chain is run.
#[derive(Default)]
pub struct How<'a> {
    pub settings: &'a str,
    /// In place of those that the settings name.
    pub devices: Vec<Device>,
    pub is_stream: bool,
    /// Whether records stay in the order of their file.
    pub keeps_order: bool,
    /// A file of changes of the rules.
    pub changes: Option<&'a str>,
    /// Functions that no chain file knows, each with the place in the chain at which it is put in.
    pub functions: Vec<(usize, Box<dyn FunctionSpec>)>,
    /// Called when so many packets were read.
    pub at: Option<(u64, Box<dyn FnMut() + Send + 'a>)>,
    /// Called each time that packets were read, with how many were so far.
    pub each: Option<Box<dyn FnMut(u64) + Send + 'a>>,
    /// Packets after which the run ends.
    pub limit: Option<u64>,
    /// Whether packets come as somebody sends them, so that nobody waits for the next ones.
    pub is_live: bool,
    /// Whether packets come by interfaces with names, and leave by such.
    pub is_wired: bool,
    /// State that it begins with.
    pub restore: Option<State>,
    /// Whether its state is saved at the end.
    pub saves: bool,
    /// Packets before which the chain becomes another one, in order.
    pub reloads: Vec<(u64, String)>,
    /// Packets before which rules change, in order.
    pub transactions: Option<Arc<Transactions>>,
    /// Packets after which flows move between cores and devices, again and again.
    pub move_every: Option<u64>,
    /// With `auto`, what opens the device.
    pub open: Option<Box<Open>>,
}

/// Transactions of rules, and what became of them.
#[derive(Default)]
pub struct Transactions {
    pub due: Vec<(u64, String)>,
    pub answers: Mutex<Vec<Result<RulesChanged, String>>>,
}

impl Transactions {
    pub fn new(due: Vec<(u64, String)>) -> Arc<Self> {
        Arc::new(Self { due, answers: Mutex::default() })
    }

    pub fn answers(&self) -> Vec<Result<RulesChanged, String>> {
        self.answers.lock().expect("no panic").clone()
    }
}

/// A source that has nothing from where a transaction is due until it is answered.
struct Gated {
    source: Box<dyn Source>,
    transactions: Arc<Transactions>,
    control: Arc<Control>,
    received: u64,
    asked: usize,
}

impl Source for Gated {
    fn poll(&mut self, batch: &mut Batch) -> Result<Polled, packetloom_io::Error> {
        let Transactions { due, answers } = &*self.transactions;
        while let Some((_, statements)) = due.get(self.asked).filter(|(at, _)| *at <= self.received)
            && self.asked == answers.lock().expect("no panic").len()
        {
            self.asked += 1;
            let transactions = Arc::clone(&self.transactions);
            let answer = move |answer| transactions.answers.lock().expect("no panic").push(answer);
            match RuleChange::parse(None, statements) {
                Ok(change) => self.control.ask(Request::Change(change, Box::new(answer))),
                Err(why) => answer(Err(why)),
            }
        }
        if answers.lock().expect("no panic").len() < self.asked {
            batch.reset(empty_arena());
            return Ok(Polled::Nothing);
        }
        let room = batch.capacity();
        if let Some((at, _)) = due.get(self.asked) {
            batch.set_capacity(room.min((at - self.received) as usize));
        }
        let polled = self.source.poll(batch);
        batch.set_capacity(room);
        self.received += batch.len() as u64;
        polled
    }

    fn wait(&mut self, timeout: std::time::Duration) -> Result<(), packetloom_io::Error> {
        std::thread::sleep(timeout);
        Ok(())
    }

    fn is_live(&self) -> bool {
        self.source.is_live()
    }

    fn port_names(&self) -> Option<PortNames> {
        self.source.port_names()
    }
}

/// A capture whose packets come by four interfaces, two of which have names, and leave by others.
struct Wired(CaptureReader);

impl Source for Wired {
    fn poll(&mut self, batch: &mut Batch) -> Result<Polled, packetloom_io::Error> {
        let polled = self.0.poll(batch)?;
        let (arena, frames, wall) = (batch.arena().clone(), batch.frames().to_vec(), batch.wall_offset());
        batch.reset(arena);
        batch.set_wall_offset(wall);
        batch.set_port_names(self.port_names());
        for frame in frames {
            // By the frame alone, however batches are cut.
            let port = (frame.offset.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as u16 % 4;
            batch.push(FrameRef { port, ..frame });
            batch.egress_mut().push(port ^ 1);
        }
        Ok(polled)
    }

    fn wait(&mut self, timeout: std::time::Duration) -> Result<(), packetloom_io::Error> {
        self.0.wait(timeout)
    }

    fn is_live(&self) -> bool {
        self.0.is_live()
    }

    fn port_names(&self) -> Option<PortNames> {
        static NAMES: OnceLock<PortNames> = OnceLock::new();
        Some(NAMES.get_or_init(|| Arc::new([Some("eth0".into()), Some("wg1".into()), None])).clone())
    }
}

/// Frames that come as somebody sends them: now and then there are none.
struct Live {
    source: Box<dyn Source>,
    polls: u32,
}

/// Looks until there is none: batches are measured in series, which are to have some without.
const RESTS: u32 = 101;

impl Source for Live {
    fn poll(&mut self, batch: &mut Batch) -> Result<Polled, packetloom_io::Error> {
        self.polls += 1;
        if self.polls.is_multiple_of(RESTS) {
            batch.reset(empty_arena());
            return Ok(Polled::Nothing);
        }
        self.source.poll(batch)
    }

    fn wait(&mut self, timeout: std::time::Duration) -> Result<(), packetloom_io::Error> {
        self.source.wait(timeout)
    }

    fn is_live(&self) -> bool {
        true
    }
}

/// A chain whose tables have room for what tests send, where it does not say for how many flows: a million, as is the default, is memory that
/// takes longer to clear than all else that a test does.
fn with_small_tables(chain: &str) -> String {
    const MOST: i64 = 1 << 16;
    let mut chain: toml::Table = chain.parse().expect("a good chain");
    let limit = |table: &mut toml::Value| {
        table.as_table_mut().expect("keys and values").entry("max_flows").or_insert(MOST.into());
    };
    let flows = chain.entry("flows").or_insert_with(|| toml::Table::new().into());
    let flows = flows.as_table_mut().expect("definitions");
    for by in ["5-tuple", "connection", "initiator", "source"] {
        let definition = || toml::Table::from_iter([("by".to_owned(), by.into())]).into();
        flows.entry(by).or_insert_with(definition);
    }
    flows.iter_mut().for_each(|(_, definition)| limit(definition));
    if let Some(functions) = chain.get_mut("chain") {
        let functions = functions.as_array_mut().expect("functions").iter_mut();
        functions.filter(|function| function["nf"].as_str() == Some("meter")).for_each(limit);
    }
    toml::to_string(&chain).expect("a good chain")
}

/// A chain over rules that it may name, with settings of the run.
fn chain_in(folder: &Path, chain: &str, settings: &str) -> Chain {
    std::fs::write(folder.join("rules"), RULES).expect("written");
    std::fs::write(folder.join("more"), MORE_RULES).expect("written");
    std::fs::write(folder.join("backends"), BACKEND_RULES).expect("written");
    std::fs::write(folder.join("reflecting"), REFLECTING).expect("written");
    std::fs::write(folder.join("stateful"), STATEFUL).expect("written");
    std::fs::write(folder.join("strings"), STRINGS).expect("written");
    std::fs::write(folder.join("signatures"), SIGNATURES).expect("written");
    let hex =
        |string: Vec<u8>| string.iter().map(|byte| format!("{byte:02x}")).chain(["\n".into()]).collect();
    let planted: String = planted().into_iter().map(hex).collect::<Vec<String>>().concat();
    std::fs::write(folder.join("planted"), planted).expect("written");
    std::fs::write(folder.join("zeros"), "\\0\n").expect("written");
    std::fs::write(folder.join("names"), "example.com\n*.example.net\n").expect("written");
    std::fs::write(folder.join("admit-all"), "reflect any from any to any\n").expect("written");
    let text = format!("{}[run]\n{settings}\n", with_small_tables(chain));
    Chain::parse("chain", &text, Context { folder, ignore_flags: false }).expect("a good chain")
}

/// How a chain is going to be run.
pub fn plan(chain: &str, settings: &str) -> Plan {
    let folder = tempfile::tempdir().expect("a folder");
    Plan::new(chain_in(folder.path(), chain, settings))
}

/// Whether a chain's workers share tables: then the order of packets is not that of the oracle.
pub fn shares(chain: &str, settings: &str) -> bool {
    plan(chain, settings).shared().next().is_some()
}

pub fn results(chain: &str, capture: &[u8], how: How<'_>) -> (Results, Option<Shares>, Vec<String>) {
    let (results, outcome, notices) = all_results(chain, capture, how);
    (results, outcome.shares, notices)
}

pub fn all_results(chain: &str, capture: &[u8], mut how: How<'_>) -> (Results, Outcome, Vec<String>) {
    let folder = tempfile::tempdir().expect("a folder");
    let folder = folder.path();
    let mut chain = chain_in(folder, chain, how.settings);
    if let Some(changes) = how.changes {
        std::fs::write(folder.join("changes"), changes).expect("written");
        chain.change_rules(&folder.join("changes")).expect("good changes");
    }
    if !how.functions.is_empty() {
        let (settings, mut functions) = chain.into_parts();
        for (place, function) in how.functions.drain(..) {
            functions.insert(place, function.into());
        }
        chain = Chain::new(settings, functions, &BTreeMap::new()).unwrap_or_else(|(_, why)| panic!("{why}"));
    }
    let mut plan = Plan::new(chain);
    let mut notices = Vec::new();
    let restore = how.restore.take().map(|state| plan.restore(state).expect("a good state"));
    let restore = restore.map(|(state, left_out)| {
        notices.extend(left_out);
        state
    });
    let stop = Stop::default();
    let source = if how.is_stream {
        CaptureReader::from_reader("stream", std::io::Cursor::new(capture.to_vec()), &stop).expect("a stream")
    } else {
        std::fs::write(folder.join("capture"), capture).expect("written");
        CaptureReader::open(&folder.join("capture"), &stop).expect("a capture")
    };
    let output = |path: Option<&Path>| path.map(|path| Output::create(path).expect("a file"));
    let mut outputs = Outputs {
        sink: Some(CaptureWriter::create(&folder.join("passed"), Resolution::Nanos).expect("a file")),
        records: plan.chain().functions().iter().map(|function| output(function.records_path())).collect(),
        summaries: vec![],
        ..Outputs::default()
    };
    let control = Arc::new(Control::default());
    let mut source: Box<dyn Source> = if how.is_wired { Box::new(Wired(source)) } else { Box::new(source) };
    if how.is_live {
        source = Box::new(Live { source, polls: 0 });
    }
    if let Some(transactions) = how.transactions.take() {
        source = Box::new(Gated { source, transactions, control: control.clone(), received: 0, asked: 0 });
    }
    let (at, reloads, settings) = (folder.to_owned(), how.reloads.clone(), how.settings.to_owned());
    let load = move |number: Option<usize>| {
        Ok(Plan::new(chain_in(&at, &reloads[number.expect("none is asked for")].1, &settings)))
    };
    let life = LifecycleOptions {
        restore,
        reload_at: how.reloads.iter().map(|(at, _)| *at).collect(),
        load: Some(Box::new(load)),
        control,
        save: how.saves.then(|| Saving { every: None, save: Box::new(|_| Ok(())) }),
        move_every: how.move_every.and_then(NonZeroU64::new),
        open: how.open.take(),
        ..LifecycleOptions::default()
    };
    let io = Io {
        source,
        outputs: &mut outputs,
        limit: how.limit,
        stop,
        life,
        progress: &mut |_, packets| {
            if let Some(each) = &mut how.each {
                each(packets);
            }
            if how.at.as_ref().is_some_and(|(at, _)| packets >= *at)
                && let Some((_, mut call)) = how.at.take()
            {
                call();
            }
        },
        notice: &mut |text| notices.push(text.to_owned()),
        devices: how.devices,
    };
    let outcome = run(&plan, io).expect("a run");
    outputs.publish().expect("written");
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap_or_default();
    let mut records: Vec<String> = read("flows").lines().map(str::to_owned).collect();
    if !how.keeps_order {
        records.sort_unstable();
    }
    let passed = std::fs::read(folder.join("passed")).expect("a capture");
    // Lists of names are told by their paths.
    let summary = outcome.json().to_string().replace(&format!("{}/", folder.display()), "");
    let summary = serde_json::from_str(&summary).expect("JSON");
    (Results { summary, records, log: read("log"), passed }, outcome, notices)
}

pub fn traffic(packets: u64, flows: u64, seed: u64) -> Vec<u8> {
    let options = TrafficOptions { packets, flows, seed, snap: 96, ..TrafficOptions::default() };
    let mut bytes = Vec::new();
    packetloom_generate::write_pcap(&options, &mut bytes, |_| {}).expect("memory can be written");
    bytes
}

/// A capture of packets, each with its time in nanoseconds.
pub fn capture(packets: impl IntoIterator<Item = (u64, Key)>) -> Vec<u8> {
    capture_of_frames(packets.into_iter().map(|(nanos, key)| (nanos, packetloom_generate::frame(&key))))
}

/// A capture of Ethernet frames, each with its time in nanoseconds.
pub fn capture_of_frames(frames: impl IntoIterator<Item = (u64, Vec<u8>)>) -> Vec<u8> {
    let mut capture = traffic(1, 1, 1);
    capture.truncate(24);
    for (nanos, frame) in frames {
        for number in [nanos / 1_000_000_000, nanos % 1_000_000_000, frame.len() as u64, frame.len() as u64] {
            capture.extend((number as u32).to_le_bytes());
        }
        capture.extend(frame);
    }
    capture
}

/// A capture of Ethernet with every other frame in a VLAN: 5 or 0, or 5 around another one. Packets of one flow are in several.
pub fn in_vlans(capture: &[u8]) -> Vec<u8> {
    let tags = [
        &[][..],
        &[[0x81, 0, 0xe0, 5]],
        &[[0x81, 0, 0, 0]],
        &[],
        &[[0x88, 0xa8, 0, 5], [0x81, 0, 0, 7]],
        &[],
    ];
    let (mut tagged, mut at) = (capture[..24].to_vec(), 24);
    for tags in tags.into_iter().cycle() {
        let Some(record) = capture.get(at..at + 16) else { break };
        let length = |at: usize| u32::from_le_bytes(record[at..at + 4].try_into().expect("four bytes"));
        let frame = &capture[at + 16..][..length(8) as usize];
        let more = 4 * tags.len() as u32;
        tagged.extend(&record[..8]);
        [8, 12].iter().for_each(|&at| tagged.extend((length(at) + more).to_le_bytes()));
        tagged.extend([&frame[..12], tags.as_flattened(), &frame[12..]].concat());
        at += 16 + frame.len();
    }
    tagged
}

/// A capture without its first packets.
pub fn without_first(capture: &[u8], packets: u64) -> Vec<u8> {
    let mut at = 24;
    for _ in 0..packets {
        let len = u32::from_le_bytes(capture[at + 8..at + 12].try_into().expect("four bytes"));
        at += 16 + len as usize;
    }
    [&capture[..24], &capture[at..]].concat()
}

/// What was sent on, without the header of the capture.
pub fn frames(passed: &[u8]) -> &[u8] {
    &passed[24..]
}

fn cache() -> Cache {
    Cache::at(Path::new(env!("CARGO_TARGET_TMPDIR")).join("kernels"))
}

fn opened(ids: impl IntoIterator<Item = Id>) -> Vec<Device> {
    ids.into_iter().map(|id| Device::open(id, cache()).expect("it was listed")).collect()
}

/// The devices that tests run on, the host first.
pub fn devices() -> Vec<Device> {
    opened(packetloom_testing::devices())
}

/// The devices that tests run on, but for the host.
pub fn accelerators() -> Vec<Device> {
    opened(packetloom_testing::accelerators())
}

/// The host, if tests run on it.
pub fn host() -> Vec<Device> {
    opened(packetloom_testing::devices().into_iter().filter(|id| *id == Id::Host))
}

/// A host, if tests run on it, on which a group of eight items has several teams of so many, as a GPU's groups have.
pub fn host_with_teams(items: u32) -> Vec<Device> {
    let opened = || Device::host(items, cache()).expect("a C compiler with sanitisers");
    packetloom_testing::devices().contains(&Id::Host).then(opened).into_iter().collect()
}

/// Whether kernels compile slowly for a device, and know no groups there: cores, through OpenCL.
pub fn is_slow(device: &Device) -> bool {
    device.description().lanes == 1
}

/// What a device that runs all of a chain leaves is what the oracle leaves; its summary.
pub fn compare_on(device: &Device, chain: &str, capture: &[u8]) -> serde_json::Value {
    let id = device.description().id;
    let functions = chain.matches("[[chain]]").count();
    assert_eq!(plan(chain, &format!("device = \"{id}\"")).stateful(), functions, "{chain}");
    let how = How { settings: "device = \"oracle\"", ..How::default() };
    let (oracle, ..) = results(chain, capture, how);
    let settings = format!("device = \"{id}\"");
    let how = How { settings: &settings, devices: vec![device.clone()], ..How::default() };
    let (found, shares, notices) = results(chain, capture, how);
    assert_eq!(notices, Vec::<String>::new());
    let shares = shares.expect("a device was used");
    assert_eq!(shares.here, 0, "{id}: all of them were judged there");
    assert_eq!(Some(shares.device), oracle.summary["received"].as_u64());
    assert_eq!(found.summary, oracle.summary, "{id}\n{chain}");
    assert!(found.log == oracle.log, "{id}: other packets were logged\n{chain}");
    assert!(found == oracle, "{id}: other packets passed, or rewritten otherwise\n{chain}");
    found.summary
}

/// From one copy of a device's state to the next, in `[run]`; and how long to wait until the next batch begins with one.
pub const COPY_EVERY: &str = "device_copy_every = \"200ms\"";
pub const UNTIL_COPY: std::time::Duration = std::time::Duration::from_millis(250);
/// The thread that brings a copy here, by launches of its own.
pub const COPIER: &str = "state";

/// A run with [`COPY_EVERY`] in which a device fails [`UNTIL_COPY`] after its state was copied, so that the next copy comes first. A slow machine
/// may take longer to bring that copy here: then what packets did since the one before is lost, as documented, and it is tried again.
pub fn with_recent_state(
    mut run: impl FnMut() -> (Results, Option<Shares>, Vec<String>),
) -> (Results, Option<Shares>, Vec<String>) {
    const SAID: &str = " with the state of ";
    let mut tries = Vec::new();
    for _ in 0..8 {
        let found = run();
        let mut ages = found.2.iter().filter_map(|said| said.split_once(SAID)).map(|(_, age)| age);
        if ages.all(|age| age.starts_with("0.0") || age.starts_with("0.1")) {
            return found;
        }
        tries.push(found.2);
    }
    panic!("no copy was in time: {tries:#?}");
}

/// Whether a device judges packets, by its launches.
pub struct Away<'a>(&'a Faults, u64);

impl<'a> Away<'a> {
    pub fn new(faults: &'a Faults) -> Self {
        Self(faults, 0)
    }

    /// Waits where nothing was launched since the last time: cores would be through before the device comes back.
    pub fn wait(&mut self, time: std::time::Duration) {
        let launches = self.0.counts(Call::Launch).calls;
        if std::mem::replace(&mut self.1, launches) == launches {
            std::thread::sleep(time);
        }
    }
}

/// Packets and bytes of each flow over its records, in both directions.
pub fn totals_of_flows(records: &[String]) -> HashMap<String, [u64; 2]> {
    let mut totals: HashMap<String, [u64; 2]> = HashMap::new();
    for record in records {
        let record: serde_json::Value = serde_json::from_str(record).expect("JSON");
        let end = |name: &str| {
            let address = ["IPv4", "IPv6"].map(|version| &record[format!("{name}{version}Address")]);
            format!("{address:?} {}", record[format!("{name}TransportPort")])
        };
        let mut ends = [end("source"), end("destination")];
        ends.sort_unstable();
        let flow = totals.entry(format!("{} {ends:?}", record["protocolIdentifier"])).or_default();
        let number = |field: &str| record[field].as_u64().expect("a number");
        flow[0] += number("packetDeltaCount") + number("reversePacketDeltaCount");
        flow[1] += number("octetDeltaCount") + number("reverseOctetDeltaCount");
    }
    totals
}
