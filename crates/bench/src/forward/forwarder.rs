//! What forwards between the two links: a run of ours, the kernel, or DPDK's testpmd.

use std::collections::HashMap;
use std::fmt;
use std::fs;
use std::io::{BufRead, BufReader, Write as _};
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use packetloom_classify::formats::{self, Format, WriteOptions};
use packetloom_engine::chain::Idle;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::lists::{self, Flow, List};
use super::net::{Net, failed};
use super::traffic::cpu_ns;
use super::{LOADS_EVERY, Options};
use crate::Error;

/// Files that our run writes.
const SUMMARY: &str = "summary.json";
const STATISTICS: &str = "statistics.jsonl";
const RECORDS: &str = "flows.jsonl";
/// How long a forwarder may take to start, or to end.
const PATIENCE: Duration = Duration::from_secs(120);

/// How our run, or testpmd, receives and sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sockets {
    /// AF_XDP.
    AfXdp,
    /// Packet sockets.
    AfPacket,
}

impl Sockets {
    /// Its name in chain files and results.
    pub fn name(self) -> &'static str {
        match self {
            Self::AfXdp => "af_xdp",
            Self::AfPacket => "af_packet",
        }
    }
}

/// What forwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forwarder {
    /// `packetloom run`, inline, and what its workers do while no packet comes.
    Packetloom(Sockets, Idle),
    /// The kernel, with the list as rules of nftables one after the other.
    NftablesRules,
    /// The kernel, with the list as maps of nftables with intervals.
    NftablesSets,
    /// DPDK's testpmd, which looks at nothing (`--forward-mode=io`).
    Testpmd(Sockets),
}

impl fmt::Display for Forwarder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Packetloom(sockets, Idle::Sleep) => write!(f, "packetloom {}", sockets.name()),
            Self::Packetloom(sockets, idle) => write!(f, "packetloom {} {}", sockets.name(), idle.name()),
            Self::NftablesRules => f.write_str("nftables rules"),
            Self::NftablesSets => f.write_str("nftables sets"),
            Self::Testpmd(sockets) => write!(f, "testpmd net_{}", sockets.name()),
        }
    }
}

/// A folder that is removed at the end.
#[derive(Debug)]
struct Folder(PathBuf);

impl Folder {
    fn new() -> Result<Self, Error> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("packetloom-bench-{}-{number}", std::process::id()));
        fs::create_dir(&path).map_err(|error| failed(format!("{}: {error}", path.display())))?;
        Ok(Self(path))
    }

    fn write(&self, name: &str, bytes: &[u8]) -> Result<PathBuf, Error> {
        let path = self.0.join(name);
        fs::write(&path, bytes).map_err(|error| failed(format!("{}: {error}", path.display())))?;
        Ok(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A forwarder at work.
#[derive(Debug)]
pub(super) struct Running {
    child: Option<Child>,
    /// Held open, since testpmd ends with it.
    _input: Option<ChildStdin>,
    /// What testpmd says on standard error.
    errors: Option<Receiver<String>>,
    folder: Folder,
    /// Maps of intervals that the rules have become.
    pub(super) sets: Option<usize>,
}

impl Running {
    /// Starts a forwarder on cores of its own.
    pub(super) fn start(
        forwarder: Forwarder,
        list: Option<&List>,
        net: &Net,
        options: &Options,
    ) -> Result<Self, Error> {
        let mut running =
            Self { child: None, _input: None, errors: None, folder: Folder::new()?, sets: None };
        let is_xdp = matches!(
            forwarder,
            Forwarder::Packetloom(Sockets::AfXdp, _) | Forwarder::Testpmd(Sockets::AfXdp)
        );
        if !is_xdp {
            // A veth takes frames of XDP only where an XDP program or GRO takes them on.
            net.forwarder.exec("ethtool", "ethtool", &["-K", "pa", "gro", "on"])?;
        }
        match forwarder {
            Forwarder::Packetloom(sockets, idle) => running.start_run(sockets, idle, list, net, options)?,
            Forwarder::NftablesRules | Forwarder::NftablesSets => {
                running.start_kernel(forwarder == Forwarder::NftablesSets, list, net)?;
            }
            Forwarder::Testpmd(sockets) => running.start_testpmd(sockets, net, options)?,
        }
        Ok(running)
    }

    fn start_run(
        &mut self,
        sockets: Sockets,
        idle: Idle,
        list: Option<&List>,
        net: &Net,
        options: &Options,
    ) -> Result<(), Error> {
        let (backend, idle, workers) = (sockets.name(), idle.name(), options.workers);
        let mut chain =
            format!("[source]\ninterface = [\"pa\", \"pb\"]\nmode = \"inline\"\nbackend = \"{backend}\"\n");
        chain += &format!("[run]\nworkers = {workers}\nidle = \"{idle}\"\n");
        if let Some(list) = list {
            self.folder.write("bench.rules", &written(list, Format::Native)?)?;
            chain += "[[chain]]\nnf = \"acl\"\nrules = \"bench.rules\"\n";
        }
        if options.meter {
            chain += &format!("[[chain]]\nnf = \"meter\"\noutput = \"{RECORDS}\"\n");
        }
        let chain = self.folder.write("chain.toml", chain.as_bytes())?;
        let program = &options.program;
        let mut command = Command::new(program);
        command.arg("run").arg(chain).arg("--summary").arg(self.folder.0.join(SUMMARY));
        command.arg("--stats-every").arg(format!("{}ms", LOADS_EVERY.as_millis()));
        command.arg("--stats-output").arg(self.folder.0.join(STATISTICS));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = net
            .forwarder
            .on_cores(&options.forwarder_cores, || command.spawn())?
            .map_err(|error| failed(format!("{}: cannot be started: {error}", program.display())))?;
        let said = child.stderr.take().map(lines);
        self.child = Some(child);
        self.wait_for(said, "receiving from", "packetloom run")
    }

    fn start_kernel(&mut self, as_sets: bool, list: Option<&List>, net: &Net) -> Result<(), Error> {
        let kernel = &net.forwarder;
        kernel.set("ipv4/ip_forward", "1");
        for of in ["all", "default", "pa", "pb"] {
            kernel.set(&format!("ipv4/conf/{of}/rp_filter"), "0");
        }
        kernel.ip("neigh add 198.18.0.2 lladdr 02:00:00:00:00:04 dev pb nud permanent")?;
        kernel.ip("addr add 198.18.0.1/30 dev pb")?;
        kernel.ip("route add default via 198.18.0.2")?;
        let Some(list) = list else { return Ok(()) };
        let (text, json) = if as_sets {
            let (text, sets) = lists::sets(list)?;
            self.sets = Some(sets);
            (text.into_bytes(), false)
        } else {
            (written(list, Format::Nftables)?, true)
        };
        let file = self.folder.write("rules.nft", &text)?;
        let file = file.display().to_string();
        let words: &[&str] = if json { &["-j", "-f", &file] } else { &["-f", &file] };
        kernel.exec("nft", "nftables", words)
    }

    fn start_testpmd(&mut self, sockets: Sockets, net: &Net, options: &Options) -> Result<(), Error> {
        let driver = sockets.name();
        let mut command = Command::new("dpdk-testpmd");
        // Its main thread only waits for commands.
        let forwarder_core = options.forwarder_cores.first().copied().unwrap_or_default();
        command.args(["--lcores", &format!("0@{},1@{forwarder_core}", options.generator_core)]);
        command.args(["--no-pci", "--no-huge", "-m", "512", "--no-telemetry", "--no-shconf"]);
        for (number, interface) in ["pa", "pb"].iter().enumerate() {
            command.arg(format!("--vdev=net_{driver}{number},iface={interface}"));
        }
        command.args(["--", "--forward-mode=io", "--auto-start", "--no-mlockall", "--interactive"]);
        // As many buffers as that memory holds.
        command.arg("--total-num-mbufs=65536");
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child =
            net.forwarder.on_cores(&[], || command.spawn())?.map_err(|error| match error.kind() {
                std::io::ErrorKind::NotFound => Error::ForwardMissing {
                    what: "dpdk-testpmd is not installed; expected it from Debian's package dpdk-dev".into(),
                },
                _ => failed(format!("dpdk-testpmd: {error}")),
            })?;
        self._input = child.stdin.take();
        self.errors = child.stderr.take().map(lines);
        self.child = Some(child);
        Ok(())
    }

    /// Why its process has ended, if it has.
    pub(super) fn has_ended(&mut self) -> Option<String> {
        let status = self.child.as_mut()?.try_wait().ok()??;
        let said: Vec<_> = self.errors.iter().flatten().take(30).collect();
        Some(format!("{status}: {}", said.join("; ")))
    }

    /// Waits until it says something; what it says from then on is read, and forgotten.
    fn wait_for(&mut self, said: Option<Receiver<String>>, text: &str, name: &str) -> Result<(), Error> {
        let begun = Instant::now();
        let mut all = Vec::new();
        while let Some(said) = &said {
            match said.recv_timeout(PATIENCE.saturating_sub(begun.elapsed())) {
                Ok(line) if line.contains(text) => return Ok(()),
                Ok(line) => all.push(line),
                Err(_) => break,
            }
        }
        let last: Vec<_> = all.iter().rev().take(5).rev().map(String::as_str).collect();
        Err(failed(format!("{name} did not start: {}", last.join("; "))))
    }

    /// Nanoseconds of CPU time of its process so far, all threads together; none of the kernel.
    pub(super) fn cpu_ns(&self) -> Result<Option<u64>, Error> {
        let Some(child) = &self.child else { return Ok(None) };
        let tasks = format!("/proc/{}/task", child.id());
        let threads = fs::read_dir(&tasks).map_err(|error| failed(format!("{tasks}: {error}")))?;
        let threads = threads.flatten().map(|thread| thread.path().join("schedstat").display().to_string());
        // A thread may end in between.
        Ok(Some(threads.filter_map(|path| cpu_ns(&path).ok()).sum()))
    }

    /// Ends it; what our run has counted.
    pub(super) fn stop(mut self) -> Result<Option<Counted>, Error> {
        let Some(child) = &mut self.child else { return Ok(None) };
        kill_process(Pid::from_child(child), Signal::TERM).map_err(|error| failed(error.to_string()))?;
        let begun = Instant::now();
        while child.try_wait().map_err(|error| failed(error.to_string()))?.is_none() {
            if begun.elapsed() > PATIENCE {
                return Err(failed("the forwarder does not end"));
            }
            thread::sleep(Duration::from_millis(2));
        }
        let read = |name: &str| fs::read_to_string(self.folder.0.join(name)).ok();
        let Some(summary) = read(SUMMARY).and_then(|text| serde_json::from_str(&text).ok()) else {
            return Ok(None);
        };
        let lines = read(STATISTICS).unwrap_or_default();
        let records = read(RECORDS).map(|text| recorded(&text)).transpose()?;
        Ok(Some(Counted { summary, loads: lines.lines().filter_map(loads).collect(), recorded: records }))
    }
}

/// What our run has counted.
#[derive(Debug)]
pub(super) struct Counted {
    pub(super) summary: Value,
    /// What its workers did from time to time.
    pub(super) loads: Vec<Loads>,
    /// Packets of flows by its records, if it has a meter.
    pub(super) recorded: Option<HashMap<Flow, u64>>,
}

/// What workers did since the time before.
#[derive(Debug)]
pub(super) struct Loads {
    /// Milliseconds since 1970.
    pub(super) time: u64,
    /// Frames that interfaces have lost by then.
    pub(super) lost: u64,
    /// For each of them the share of the time in which it had something to do, and the microseconds of its longest turn.
    pub(super) workers: Vec<(f64, f64)>,
}

/// By a line of statistics.
fn loads(line: &str) -> Option<Loads> {
    let line: Value = serde_json::from_str(line).ok()?;
    let worker = |worker: &Value| Some((worker["busy"].as_f64()?, worker["longest_turn_us"].as_f64()?));
    let workers = line["workers"].as_array()?.iter().filter_map(worker).collect();
    let lost = line["interfaces"].as_array().map_or(0, |interfaces| interfaces.iter().map(lost).sum());
    Some(Loads { time: line["time"].as_u64()?, lost, workers })
}

/// Frames that came to an interface and were dropped before they were received, by what our run says of it.
pub(super) fn lost(interface: &Value) -> u64 {
    let counts = ["missed", "oversized", "unsound", "dropped_by_driver"];
    counts.iter().filter_map(|key| interface[key].as_u64()).sum()
}

/// Packets of each flow by flow records, a line each.
fn recorded(lines: &str) -> Result<HashMap<Flow, u64>, Error> {
    let mut flows = HashMap::new();
    for line in lines.lines() {
        let record: Value =
            serde_json::from_str(line).map_err(|error| failed(format!("a flow record: {error}: {line}")))?;
        let address = |name: &str| Some(u32::from(record[name].as_str()?.parse::<Ipv4Addr>().ok()?));
        let port = |name: &str| u16::try_from(record[name].as_u64()?).ok();
        let there = || {
            Some(Flow {
                source: address("sourceIPv4Address")?,
                destination: address("destinationIPv4Address")?,
                ports: [port("sourceTransportPort")?, port("destinationTransportPort")?],
            })
        };
        let flow = there().ok_or_else(|| failed(format!("a flow record of other packets: {line}")))?;
        let Flow { source, destination, ports: [from, to] } = flow;
        let back = Flow { source: destination, destination: source, ports: [to, from] };
        for (flow, packets) in [(flow, "packetDeltaCount"), (back, "reversePacketDeltaCount")] {
            let packets = record[packets].as_u64().unwrap_or(0);
            if packets > 0 {
                *flows.entry(flow).or_default() += packets;
            }
        }
    }
    Ok(flows)
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A list in a format; rules without an action permit.
fn written(list: &List, format: Format) -> Result<Vec<u8>, Error> {
    let mut rules = list.rules.clone();
    for rule in &mut rules {
        rule.action.get_or_insert(packetloom_classify::Action::Permit);
    }
    let mut text = Vec::new();
    let options = WriteOptions { default: Some(list.default), ..WriteOptions::default() };
    formats::write_rules(&rules, format, &options, &mut text)
        .map_err(|error| failed(format!("{}: {error}", list.name)))?;
    text.flush().map_err(|error| failed(error.to_string()))?;
    Ok(text)
}

/// The lines of a process's output as they come, parts without an end, such as prompts, included.
fn lines(output: impl std::io::Read + Send + 'static) -> Receiver<String> {
    let (say, lines) = channel();
    thread::spawn(move || {
        let mut output = BufReader::new(output);
        let mut text = String::new();
        while let Ok(bytes) = output.fill_buf() {
            if bytes.is_empty() {
                break;
            }
            text.push_str(&String::from_utf8_lossy(bytes));
            let length = bytes.len();
            output.consume(length);
            for line in std::mem::take(&mut text).lines() {
                let _ = say.send(line.to_owned());
            }
        }
    });
    lines
}
