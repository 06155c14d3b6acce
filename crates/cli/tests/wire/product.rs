//! The command, at work in the product's namespace.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use packetloom_testing::net::{Namespace, Net};
use rustix::process::{Pid, Signal, kill_process};

use crate::support;

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(600);

/// How the kernel hands over frames, inline.
pub(crate) const BACKENDS: [&str; 2] = ["af_packet", "af_xdp"];

/// A run of the command.
pub(crate) struct Product {
    child: Child,
    folder: PathBuf,
    lines: Receiver<String>,
    /// What it has said so far.
    pub(crate) said: Vec<String>,
    _folder: tempfile::TempDir,
}

/// What it left.
pub(crate) struct Done {
    pub(crate) summary: serde_json::Value,
    pub(crate) records: Vec<serde_json::Value>,
    /// The capture of what passed, if it was asked for as `passed.pcap`.
    pub(crate) passed: Vec<u8>,
    /// What it has said that was not forgotten.
    pub(crate) said: Vec<String>,
}

impl Product {
    /// Writes files into a folder of its own and runs the command there, in a namespace, until its interfaces are open.
    pub(crate) fn start(namespace: &Namespace, files: &[(&str, &str)], arguments: &str) -> Self {
        Self::start_with(&[], namespace, files, arguments)
    }

    /// The same with variables of its environment.
    fn start_with(
        environment: &[(&str, &OsStr)],
        namespace: &Namespace,
        files: &[(&str, &str)],
        arguments: &str,
    ) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        for (name, text) in files {
            fs::write(folder.path().join(name), text).expect("written");
        }
        let mut command = support::packetloom();
        command.args(arguments.split_whitespace()).args(["--summary", "summary.json"]);
        command.envs(environment.iter().copied());
        command.current_dir(folder.path()).stderr(Stdio::piped()).stdout(Stdio::null());
        let mut child = namespace.run(|| command.spawn().expect("started"));
        let stderr = BufReader::new(child.stderr.take().expect("piped"));
        let (say, lines) = channel();
        thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                if say.send(line).is_err() {
                    break;
                }
            }
        });
        let path = folder.path().to_owned();
        let mut product = Self { child, folder: path, lines, said: Vec::new(), _folder: folder };
        product.wait_for("receiving from");
        product
    }

    /// Between the two interfaces, with this chain.
    pub(crate) fn inline(
        namespace: &Namespace,
        chain: &str,
        files: &[(&str, &str)],
        arguments: &str,
    ) -> Self {
        Self::inline_by(BACKENDS[0], namespace, chain, files, arguments)
    }

    /// The same by another backend.
    pub(crate) fn inline_by(
        backend: &str,
        namespace: &Namespace,
        chain: &str,
        files: &[(&str, &str)],
        arguments: &str,
    ) -> Self {
        Self::inline_with(&[], backend, namespace, chain, files, arguments)
    }

    /// The same with variables of its environment.
    pub(crate) fn inline_with(
        environment: &[(&str, &OsStr)],
        backend: &str,
        namespace: &Namespace,
        chain: &str,
        files: &[(&str, &str)],
        arguments: &str,
    ) -> Self {
        let chain = format!(
            "[source]\ninterface = [\"pa\", \"pb\"]\nmode = \"inline\"\nbackend = \"{backend}\"\n{chain}"
        );
        let files = [files, &[("chain.toml", &*chain)]].concat();
        Self::start_with(environment, namespace, &files, &format!("run chain.toml {arguments}"))
    }

    /// Waits until it says something.
    pub(crate) fn wait_for(&mut self, text: &str) {
        let begin = Instant::now();
        while !self.said.iter().any(|line| line.contains(text)) {
            let left = PATIENCE.saturating_sub(begin.elapsed());
            match self.lines.recv_timeout(left) {
                Ok(line) => self.said.push(line),
                Err(_) => panic!("it did not say {text:?}, but: {:#?}", self.said),
            }
        }
    }

    /// Forgets what it said until now.
    pub(crate) fn forget(&mut self) {
        self.said.clear();
        while self.lines.try_recv().is_ok() {}
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it is there");
    }

    /// Packets that it has received so far, and those of them that passed and were sent, by its own word.
    pub(crate) fn progress(&mut self) -> (u64, u64) {
        let known = self.said.len();
        self.signal(Signal::USR1);
        let begin = Instant::now();
        loop {
            let left = PATIENCE.saturating_sub(begin.elapsed());
            match self.lines.recv_timeout(left) {
                Ok(line) => self.said.push(line),
                Err(_) => panic!("it does not say what it counted, but: {:#?}", self.said),
            }
            let number = |line: &str, word: &str| line.split(word).nth(1)?.split(',').next()?.parse().ok();
            let counts = |line: &String| Some((number(line, "received ")?, number(line, "passed ")?));
            if let Some(counts) = self.said[known..].iter().find_map(counts) {
                return counts;
            }
        }
    }

    /// Packets wait until a device is made ready: for the first ones, who asks for an address that is not there.
    pub(crate) fn wait_until_ready(&mut self, net: &Net) {
        net.client.exec("ping -q -c 1 -W 1 10.9.0.77").expect_err("nobody is there");
        self.wait_until_received(1);
    }

    /// Waits until it has received so many packets, and has sent those that pass; how many these are.
    pub(crate) fn wait_until_received(&mut self, packets: u64) -> u64 {
        let begin = Instant::now();
        loop {
            let (received, passed) = self.progress();
            if received >= packets {
                return passed;
            }
            assert!(begin.elapsed() < PATIENCE, "it has received {received} of {packets} packets");
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Waits until so many packets have passed.
    pub(crate) fn wait_until_passed(&mut self, packets: u64) {
        let begin = Instant::now();
        loop {
            let (received, passed) = self.progress();
            if passed >= packets {
                return;
            }
            assert!(begin.elapsed() < PATIENCE, "{passed} of {packets} packets passed, {received} came");
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Waits until a SIGSTOP has taken effect.
    pub(crate) fn wait_until_stopped(&self) {
        let begin = Instant::now();
        let stat = format!("/proc/{}/stat", self.child.id());
        loop {
            let text = fs::read_to_string(&stat).expect("it is there");
            // The state stands behind the name, which is in parentheses.
            if text.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T')) {
                return;
            }
            assert!(begin.elapsed() < PATIENCE, "it goes on: {text}");
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Whether it has said something by now.
    pub(crate) fn has_said(&mut self, text: &str) -> bool {
        self.said.extend(self.lines.try_iter());
        self.said.iter().any(|line| line.contains(text))
    }

    /// For each of its threads by number, the time that it ran so far, and with it the time that it waited for a processor.
    pub(crate) fn thread_times(&self) -> BTreeMap<u32, [Duration; 2]> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.child.id())).expect("it is there").flatten();
        let times = tasks.filter_map(|task| {
            let number = task.file_name().to_str()?.parse().ok()?;
            // A thread may end in between.
            let text = fs::read_to_string(task.path().join("schedstat")).ok()?;
            let mut nanos = text.split(' ').map_while(|word| word.parse().ok()).map(Duration::from_nanos);
            let (ran, waited) = (nanos.next()?, nanos.next()?);
            Some((number, [ran, ran + waited]))
        });
        times.collect()
    }

    /// Waits until it is gone; the signal that has killed it, if one has.
    pub(crate) fn wait_until_gone(&mut self) -> Option<i32> {
        let begin = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("a child") {
                return status.signal();
            }
            assert!(begin.elapsed() < PATIENCE, "it does not end");
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Kills it, and waits until it is gone.
    pub(crate) fn kill(mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("gone");
    }

    /// A file that it reads or writes.
    pub(crate) fn at(&self, file: &str) -> PathBuf {
        self.folder.join(file)
    }

    /// The records that it has written so far.
    pub(crate) fn records(&self) -> Vec<serde_json::Value> {
        records(&self.folder)
    }

    /// Ends it with a signal; every packet has to be in one counter.
    pub(crate) fn stop_by(self, signal: Signal) -> Done {
        self.signal(signal);
        self.end()
    }

    /// Waits until it ends; every packet has to be in one counter.
    pub(crate) fn end(self) -> Done {
        self.end_with(0)
    }

    /// Ends it where it has to say that it could not write everything.
    pub(crate) fn stop_incomplete(self) -> Done {
        self.signal(Signal::TERM);
        let done = self.end_with(1);
        let is_said = |text: &str| done.said.iter().any(|line| line.contains(text));
        assert!(is_said("packets or records were not written") && is_said("not written"), "{:#?}", done.said);
        done
    }

    fn end_with(mut self, code: i32) -> Done {
        let begin = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("a child") {
                break status;
            }
            assert!(begin.elapsed() < PATIENCE, "it does not end");
            thread::sleep(Duration::from_millis(1));
        };
        while let Ok(line) = self.lines.recv_timeout(PATIENCE) {
            self.said.push(line);
        }
        assert_eq!(status.code(), Some(code), "{status}: {:#?}", self.said);
        let summary = support::json(&self.folder.join("summary.json"));
        check_counters(&summary);
        let records = records(&self.folder);
        let passed = fs::read(self.folder.join("passed.pcap")).unwrap_or_default();
        if code == 0 {
            assert_eq!(sum(&summary, "/not_written"), 0, "{summary:#}");
        }
        Done { summary, records, passed, said: std::mem::take(&mut self.said) }
    }

    pub(crate) fn stop(self) -> Done {
        self.stop_by(Signal::INT)
    }
}

impl Drop for Product {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn records(folder: &Path) -> Vec<serde_json::Value> {
    let path = folder.join("flows.jsonl");
    if path.exists() { support::json_lines(&path) } else { Vec::new() }
}

/// A number in a summary.
pub(crate) fn count(value: &serde_json::Value, pointer: &str) -> u64 {
    let found = value.pointer(pointer).and_then(serde_json::Value::as_u64);
    found.unwrap_or_else(|| panic!("no number {pointer} in {value:#}"))
}

/// The sum of the numbers in an object of a summary.
pub(crate) fn sum(value: &serde_json::Value, pointer: &str) -> u64 {
    let object = value.pointer(pointer).and_then(serde_json::Value::as_object);
    let object = object.unwrap_or_else(|| panic!("no object {pointer} in {value:#}"));
    object.values().map(|value| value.as_u64().expect("a number")).sum()
}

fn check_counters(summary: &serde_json::Value) {
    // A meter's summary has no verdicts: all passes.
    if summary.get("dropped").is_none() {
        let received: u64 = interfaces(summary).map(|interface| count(interface, "/received")).sum();
        assert_eq!(count(summary, "/frames"), received, "{summary:#}");
        return;
    }
    let (received, passed) = (count(summary, "/received"), count(summary, "/passed"));
    assert_eq!(received, passed + sum(summary, "/dropped"), "{summary:#}");
    let came: u64 = interfaces(summary).map(|interface| count(interface, "/received")).sum();
    assert_eq!(came, received, "{summary:#}");
    if interfaces(summary).all(|interface| interface.get("sent").is_some()) {
        let left: u64 = interfaces(summary)
            .map(|interface| count(interface, "/sent") + sum(interface, "/not_sent"))
            .sum();
        assert_eq!(left, passed, "{summary:#}");
    }
}

/// What a summary says of each interface.
pub(crate) fn interfaces(summary: &serde_json::Value) -> impl Iterator<Item = &serde_json::Value> {
    summary["interfaces"].as_array().expect("interfaces").iter()
}

/// Packets of both directions in flow records.
pub(crate) fn packets(records: &[serde_json::Value]) -> u64 {
    let of = |record: &serde_json::Value| {
        count(record, "/packetDeltaCount") + count(record, "/reversePacketDeltaCount")
    };
    records.iter().map(of).sum()
}
