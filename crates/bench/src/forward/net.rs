//! Three network namespaces in a row: generator c0 - pa (forwarder) pb - s0 sink. They go when the benchmark ends, also after an error.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use rustix::thread::{CpuSet, LinkNameSpaceType, move_into_link_name_space, sched_setaffinity};

use crate::Error;

/// Where `ip` keeps namespaces.
const NAMES: &str = "/var/run/netns";
/// What the names of all namespaces begin with, before the number of the process that made them.
const PREFIX: &str = "packetloom-bench-";

/// Addresses of the links' ends: of the generator, of both ports of the forwarder, and of the sink.
pub(super) const MACS: [[u8; 6]; 4] =
    [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 3], [2, 0, 0, 0, 0, 4]];

/// An error that says what went wrong.
pub(super) fn failed(what: impl Into<String>) -> Error {
    Error::Forward(what.into())
}

/// Runs a program; `package` is the one of Debian that has it.
pub(super) fn run(program: &str, package: &str, words: &[&str]) -> Result<(), Error> {
    let output = Command::new(program).args(words).output().map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => Error::ForwardMissing {
            what: format!("{program} is not installed; expected it from Debian's package {package}"),
        },
        _ => failed(format!("{program}: {error}")),
    })?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let said = said.trim();
    let said = said.char_indices().nth(500).map_or(said, |(end, _)| &said[..end]);
    Err(failed(format!("{program} {}: {said}", words.join(" "))))
}

fn ip(words: &str) -> Result<(), Error> {
    run("ip", "iproute2", &words.split_whitespace().collect::<Vec<_>>())
}

/// A network namespace.
#[derive(Debug)]
pub(super) struct Namespace(String);

impl Namespace {
    fn new(role: &str) -> Result<Self, Error> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("{PREFIX}{}-{}-{role}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        ip(&format!("netns add {name}")).map_err(|error| {
            // Whoever may not make one may not do the rest either.
            let is_refused = matches!(&error, Error::Forward(why) if why.contains("ermission") || why.contains("not permitted"));
            if is_refused { Error::ForwardMissing { what: format!("{error}; run as root") } } else { error }
        })?;
        let namespace = Self(name);
        // No packets of the kernel's own between ours.
        for setting in ["all", "default"] {
            namespace.set(&format!("ipv6/conf/{setting}/disable_ipv6"), "1");
        }
        Ok(namespace)
    }

    /// Runs `ip` in it.
    pub(super) fn ip(&self, words: &str) -> Result<(), Error> {
        ip(&format!("-n {} {words}", self.0))
    }

    /// Runs a program in it.
    pub(super) fn exec(&self, program: &str, package: &str, words: &[&str]) -> Result<(), Error> {
        self.on_cores(&[], || run(program, package, words))?
    }

    /// Runs something in a thread of its own in it, which stays on these cores if any are named. Processes that it starts stay there, too.
    pub(super) fn on_cores<T: Send>(
        &self,
        cores: &[usize],
        run: impl FnOnce() -> T + Send,
    ) -> Result<T, Error> {
        let enter = || {
            let path = format!("{NAMES}/{}", self.0);
            let file = File::open(&path).map_err(|error| failed(format!("{path}: {error}")))?;
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
                .map_err(|error| failed(format!("{}: cannot be entered: {error}", self.0)))?;
            let mut set = CpuSet::new();
            for &core in cores {
                let refused = |why: String| {
                    failed(format!(
                        "core {core}: {why}; expected the number of a core of this machine, from 0"
                    ))
                };
                if core >= CpuSet::MAX_CPU {
                    return Err(refused(format!("there are {} at most", CpuSet::MAX_CPU)));
                }
                // Each of them for itself: of several, the kernel passes over those that are not there.
                let mut one = CpuSet::new();
                one.set(core);
                sched_setaffinity(None, &one).map_err(|error| refused(error.to_string()))?;
                set.set(core);
            }
            if !cores.is_empty() {
                sched_setaffinity(None, &set).map_err(|error| failed(format!("cores {cores:?}: {error}")))?;
            }
            Ok(run())
        };
        thread::scope(|scope| {
            scope.spawn(enter).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Writes a setting of the network, if the kernel has it.
    pub(super) fn set(&self, setting: &str, value: &str) {
        // A kernel without IPv6 has none of its settings.
        let _ = self.on_cores(&[], || fs::write(format!("/proc/sys/net/{setting}"), value));
    }

    /// The number of an interface in it.
    pub(super) fn index(&self, interface: &str) -> Result<u32, Error> {
        let output = Command::new("ip").args(["-n", &self.0, "-o", "link", "show", interface]).output();
        let output = output.map_err(|error| failed(format!("ip: {error}")))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let number = text.split(':').next().and_then(|index| index.trim().parse().ok());
        number.ok_or_else(|| failed(format!("{interface} has no number")))
    }

    /// Frames that an interface was to send and that were dropped.
    pub(super) fn dropped_at_sending(&self, interface: &str) -> Result<u64, Error> {
        let text = self.on_cores(&[], || fs::read_to_string("/proc/thread-self/net/dev"))?;
        let text = text.map_err(|error| failed(format!("/proc/net/dev: {error}")))?;
        // Eight numbers of what was received, then bytes, packets, errors and drops of what was sent.
        let line = text.lines().find_map(|line| line.trim().strip_prefix(interface)?.strip_prefix(':'));
        let number = line.and_then(|numbers| numbers.split_whitespace().nth(11)?.parse().ok());
        number.ok_or_else(|| failed(format!("/proc/net/dev says nothing of {interface}")))
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = ip(&format!("netns del {}", self.0));
    }
}

/// The namespaces and the links between them.
#[derive(Debug)]
pub(super) struct Net {
    /// Has `c0`.
    pub(super) generator: Namespace,
    /// Has `pa` and `pb`.
    pub(super) forwarder: Namespace,
    /// Has `s0`.
    pub(super) sink: Namespace,
}

impl Net {
    pub(super) fn new() -> Result<Self, Error> {
        let net = Self {
            generator: Namespace::new("generator")?,
            forwarder: Namespace::new("forwarder")?,
            sink: Namespace::new("sink")?,
        };
        let [c0, pa, pb, s0] = MACS.map(written);
        let [generator, forwarder, sink] = [&net.generator.0, &net.forwarder.0, &net.sink.0];
        ip(&format!(
            "link add c0 address {c0} netns {generator} type veth peer name pa address {pa} netns {forwarder}"
        ))?;
        ip(&format!(
            "link add pb address {pb} netns {forwarder} type veth peer name s0 address {s0} netns {sink}"
        ))?;
        for (namespace, interface) in
            [(&net.generator, "c0"), (&net.forwarder, "pa"), (&net.forwarder, "pb"), (&net.sink, "s0")]
        {
            namespace.ip(&format!("link set {interface} up"))?;
        }
        Ok(net)
    }
}

fn written(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

/// Namespaces of benchmarks that were killed.
pub(super) fn leftovers() -> Vec<String> {
    let Ok(names) = fs::read_dir(NAMES) else { return Vec::new() };
    let names = names.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let is_left = |name: &String| {
        let process = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next()?.parse::<u32>().ok());
        process.is_some_and(|process| !Path::new(&format!("/proc/{process}")).exists())
    };
    names.filter(is_left).collect()
}
