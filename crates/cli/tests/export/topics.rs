//! Messages of a topic of Kafka: sent to a broker that librdkafka has in itself, read by kcat.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use packetloom_testing::has_collector;
use serde_json::Value;

use crate::support::{packetloom, run, stderr, succeed};
use crate::{capture, export};

struct Broker {
    child: Child,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    address: String,
}

impl Broker {
    /// `None`, and a word about it, where kcat and with it librdkafka are not installed.
    fn start() -> Option<Self> {
        if !has_collector("kcat") {
            return None;
        }
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/export/broker.py");
        let mut python = Command::new("python3");
        python.arg(script).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = python.spawn().expect("python3");
        let orders = child.stdin.take();
        let answers = BufReader::new(child.stdout.take().expect("piped"));
        let mut broker = Self { child, orders, answers, address: String::new() };
        broker.address = broker.answer();
        Some(broker)
    }

    fn answer(&mut self) -> String {
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("a line");
        line.trim().to_owned()
    }

    /// Goes "down" or "up".
    fn go(&mut self, order: &str) {
        writeln!(self.orders.as_mut().expect("piped"), "{order}").expect("told");
        assert_eq!(self.answer(), "done");
    }

    fn to(&self) -> String {
        format!("kafka://{}/flows", self.address)
    }

    /// The messages that are there, sorted.
    fn messages(&self) -> Vec<String> {
        let mut kcat = Command::new("kcat");
        kcat.args(["-C", "-q", "-e", "-o", "beginning", "-t", "flows", "-b", &self.address]);
        let mut lines: Vec<_> = succeed(&mut kcat).lines().map(str::to_owned).collect();
        lines.sort_unstable();
        lines
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        drop(self.orders.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn lines(capture: &Path, options: &[&str]) -> Vec<String> {
    let text = succeed(packetloom().args(["-q", "meter", "-r"]).arg(capture).args(options));
    let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
    lines.sort_unstable();
    lines
}

/// That both have the same messages.
fn assert_same(found: &[String], expected: &[String]) {
    let differs = found.iter().zip(expected).find(|(found, expected)| found != expected);
    assert!(found == expected, "{} messages, expected {}; first {differs:?}", found.len(), expected.len());
}

fn counts(export: &Value) -> [u64; 3] {
    ["records", "messages", "not_sent"].map(|name| export[name].as_u64().expect("a count"))
}

#[test]
fn a_topic_has_each_record_as_a_message() {
    let folder = tempfile::tempdir().expect("a folder");
    let capture = capture(folder.path());
    let summary = folder.path().join("summary.json");
    for options in [&["--workers", "1"][..], &["--workers", "3", "--fields", "standard"]] {
        let Some(broker) = Broker::start() else { return };
        let expected = lines(&capture, options);
        assert!(expected.len() > 700);
        let mut command = packetloom();
        command.args(["-q", "meter", "-r"]).arg(&capture).args(options).args(["--kafka", &broker.to()]);
        command.args(["--kafka-option", "compression.codec=zstd", "--kafka-option", "linger.ms=60000"]);
        // Nothing but what is asked for.
        assert_eq!(succeed(command.arg("--summary").arg(&summary)), "");
        assert_same(&broker.messages(), &expected);
        let export = export(&summary);
        let records = expected.len() as u64;
        assert_eq!(counts(&export), [records, records, 0]);
        let bytes: usize = expected.iter().map(String::len).sum();
        assert_eq!((&export["bytes"], &export["protocol"]), (&bytes.into(), &"kafka".into()));
    }
}

#[test]
fn a_chain_sends_to_a_topic() {
    let Some(broker) = Broker::start() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let capture = capture(folder.path());
    let chain = format!(
        "[[chain]]\nnf = \"meter\"\n[[chain.export]]\nto = \"{}\"\nprotocol = \"kafka\"\n\
         [chain.export.properties]\n\"client.id\" = \"edge\"\n",
        broker.to()
    );
    fs::write(folder.path().join("chain.toml"), chain).expect("written");
    succeed(packetloom().args(["-q", "run", "chain.toml", "-r"]).arg(&capture).current_dir(folder.path()));
    assert_same(&broker.messages(), &lines(&capture, &[]));
}

/// A broker that is away for a while gets each message once; one that stays away is said, and the messages are counted.
#[test]
fn a_broker_that_goes_away_is_waited_for() {
    let folder = tempfile::tempdir().expect("a folder");
    let capture = capture(folder.path());
    let (bytes, summary) = (fs::read(&capture).expect("a capture"), folder.path().join("summary.json"));
    // Records end soon, so that some are sent before the capture ends.
    let timeouts = ["--idle-timeout", "2s", "--active-timeout", "2s"];
    let expected = lines(&capture, &timeouts);
    for comes_back in [true, false] {
        let Some(mut broker) = Broker::start() else { return };
        let mut command = packetloom();
        command.args(["meter", "-r", "-"]).args(timeouts).args(["--kafka", &broker.to()]);
        // One that stays away is given up before long.
        let lifetime = if comes_back { "message.timeout.ms=60000" } else { "message.timeout.ms=2000" };
        command.args(["--kafka-option", lifetime]).arg("--summary").arg(&summary);
        let mut child = command
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("started");
        let mut input = child.stdin.take().expect("piped");
        let (first, rest) = bytes.split_at(bytes.len() / 2);
        input.write_all(first).expect("read");
        let begun = Instant::now();
        while broker.messages().is_empty() {
            assert!(begun.elapsed() < Duration::from_secs(60), "no message came");
            thread::sleep(Duration::from_millis(50));
        }
        broker.go("down");
        input.write_all(rest).expect("read");
        drop(input);
        if comes_back {
            broker.go("up");
        }
        let output = child.wait_with_output().expect("ended");
        let said = stderr(&output);
        let [records, _, not_sent] = counts(&export(&summary));
        assert_eq!(records + not_sent, expected.len() as u64, "{said}");
        if comes_back {
            assert!(output.status.success() && not_sent == 0, "{said}");
            // When it is noticed that a flow is idle depends on how much of a pipe is read at a time.
            let without_reason = |lines: &[String]| -> Vec<_> {
                lines
                    .iter()
                    .map(|line| line.split(",\"flowEndReason\"").next().expect("a part").to_owned())
                    .collect()
            };
            assert_same(&without_reason(&broker.messages()), &without_reason(&expected));
        } else {
            assert!(not_sent > 0 && said.contains(&format!("{}: ", broker.to())), "{said}");
        }
    }
}

#[test]
fn what_cannot_be_sent_is_said_at_the_beginning() {
    let Some(mut broker) = Broker::start() else { return };
    broker.go("down");
    let folder = tempfile::tempdir().expect("a folder");
    let capture = capture(folder.path());
    let to = broker.to();
    for (arguments, code, expected) in [
        (&["--kafka", &*to][..], 1, "expected a broker that answers, and a topic to write to"),
        (&["--kafka", "localhost:9092"], 78, "Kafka; expected kafka://HOST:PORT/TOPIC"),
        (&["--kafka", "kafka://localhost:9092"], 2, "no topic; expected kafka://HOST:PORT/TOPIC"),
        (&["--kafka", "udp://localhost:9092"], 78, "Kafka; expected kafka://HOST:PORT/TOPIC"),
        (&["--ipfix", "kafka://localhost/flows"], 78, "expected the protocol kafka there"),
        (&["--kafka", &to, "--kafka-option", "colour=red"], 78, "No such configuration property: \"colour\""),
        (
            &["--kafka", &to, "--kafka-option", "acks"],
            2,
            "expected NAME=VALUE, such as security.protocol=ssl",
        ),
        (&["--kafka", &to, "--kafka-option", "acks=1"], 78, "`acks` must be set to `all`"),
        (&["--kafka", &to, "--kafka-option", "bootstrap.servers=x"], 78, "expected the brokers in kafka://"),
        (&["--kafka", &to, "--kafka-option", "transactional.id=x"], 78, "transactional.id cannot be set"),
        (&["--kafka-option", "acks=1"], 2, "--kafka <TO>"),
    ] {
        let output = run(packetloom().args(["meter", "-r"]).arg(&capture).args(arguments));
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
        assert!(said.contains(expected), "{arguments:?}: {said}");
        assert!(output.stdout.is_empty());
    }
}
