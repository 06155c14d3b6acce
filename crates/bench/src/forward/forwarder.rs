//! What forwards between the two links: a run of ours, the kernel, or DPDK's testpmd.

use std::fmt;
use std::fs;
use std::io::{BufRead, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use packetloom_classify::formats::{self, Format, WriteOptions};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::lists::{self, List};
use super::net::{Net, failed};
use super::traffic::cpu_ns;
use crate::Error;

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
    /// `packetloom run`, inline.
    Packetloom(Sockets),
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
            Self::Packetloom(sockets) => write!(f, "packetloom {}", sockets.name()),
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
    /// Starts a forwarder on a core of its own.
    pub(super) fn start(
        forwarder: Forwarder,
        list: Option<&List>,
        net: &Net,
        program: &Path,
        cores: [usize; 2],
    ) -> Result<Self, Error> {
        let mut running =
            Self { child: None, _input: None, errors: None, folder: Folder::new()?, sets: None };
        let is_xdp =
            matches!(forwarder, Forwarder::Packetloom(Sockets::AfXdp) | Forwarder::Testpmd(Sockets::AfXdp));
        if !is_xdp {
            // A veth takes frames of XDP only where an XDP program or GRO takes them on.
            net.forwarder.exec("ethtool", "ethtool", &["-K", "pa", "gro", "on"])?;
        }
        match forwarder {
            Forwarder::Packetloom(sockets) => running.start_run(sockets, list, net, program, cores[1])?,
            Forwarder::NftablesRules | Forwarder::NftablesSets => {
                running.start_kernel(forwarder == Forwarder::NftablesSets, list, net)?;
            }
            Forwarder::Testpmd(sockets) => running.start_testpmd(sockets, net, cores)?,
        }
        Ok(running)
    }

    fn start_run(
        &mut self,
        sockets: Sockets,
        list: Option<&List>,
        net: &Net,
        program: &Path,
        core: usize,
    ) -> Result<(), Error> {
        let backend = sockets.name();
        let mut chain =
            format!("[source]\ninterface = [\"pa\", \"pb\"]\nmode = \"inline\"\nbackend = \"{backend}\"\n");
        if let Some(list) = list {
            self.folder.write("bench.rules", &written(list, Format::Native)?)?;
            chain += "[[chain]]\nnf = \"acl\"\nrules = \"bench.rules\"\n";
        }
        let chain = self.folder.write("chain.toml", chain.as_bytes())?;
        let mut command = Command::new(program);
        command.arg("run").arg(chain).arg("--summary").arg(self.folder.0.join("summary.json"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = net
            .forwarder
            .on_core(Some(core), || command.spawn())?
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

    fn start_testpmd(&mut self, sockets: Sockets, net: &Net, cores: [usize; 2]) -> Result<(), Error> {
        let driver = sockets.name();
        let mut command = Command::new("dpdk-testpmd");
        // Its main thread only waits for commands.
        command.args(["--lcores", &format!("0@{},1@{}", cores[0], cores[1])]);
        command.args(["--no-pci", "--no-huge", "-m", "512", "--no-telemetry", "--no-shconf"]);
        for (number, interface) in ["pa", "pb"].iter().enumerate() {
            command.arg(format!("--vdev=net_{driver}{number},iface={interface}"));
        }
        command.args(["--", "--forward-mode=io", "--auto-start", "--no-mlockall", "--interactive"]);
        // As many buffers as that memory holds.
        command.arg("--total-num-mbufs=65536");
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child =
            net.forwarder.on_core(None, || command.spawn())?.map_err(|error| match error.kind() {
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
    pub(super) fn stop(mut self) -> Result<Option<Value>, Error> {
        let Some(child) = &mut self.child else { return Ok(None) };
        let path = self.folder.0.join("summary.json");
        kill_process(Pid::from_child(child), Signal::TERM).map_err(|error| failed(error.to_string()))?;
        let begun = Instant::now();
        while child.try_wait().map_err(|error| failed(error.to_string()))?.is_none() {
            if begun.elapsed() > PATIENCE {
                return Err(failed("the forwarder does not end"));
            }
            thread::sleep(Duration::from_millis(2));
        }
        let text = fs::read(path).ok();
        Ok(text.and_then(|text| serde_json::from_slice(&text).ok()))
    }
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
