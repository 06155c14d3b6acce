//! Several captures, folders and patterns in place of one capture.

#![allow(missing_docs)]

mod support;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use support::packets::packet;
use support::{frames, json, packetloom, run, stderr, succeed};
use tempfile::TempDir;

/// A pcap file of some packets, with the byte order and the precision that are asked for.
fn pcap(lines: &[String], is_big: bool, is_fine: bool, link: u32) -> Vec<u8> {
    let mut file = Vec::new();
    let mut word = |word: u32| file.extend(if is_big { word.to_be_bytes() } else { word.to_le_bytes() });
    for header in [if is_fine { 0xa1b2_3c4d } else { 0xa1b2_c3d4 }, 0x0002_0004, 0, 0, 262_144, link] {
        word(header);
    }
    for line in lines {
        let packet = packet(line);
        // Raw IP has no link header.
        let bytes = if link == 101 { &packet.bytes[14..] } else { &packet.bytes[..] };
        let fraction = (packet.micros % 1_000_000) as u32 * if is_fine { 1_000 } else { 1 };
        for word in [(packet.micros / 1_000_000) as u32, fraction, bytes.len() as u32, bytes.len() as u32] {
            file.extend(if is_big { word.to_be_bytes() } else { word.to_le_bytes() });
        }
        file.extend(bytes);
    }
    file
}

/// Packets of several flows from a second on, some of which go on in all captures.
fn lines(second: usize) -> Vec<String> {
    (0..300)
        .map(|number| {
            let micros = second * 1_000_000 + number * 1_000;
            let (port, from) = (1_000 + number % 50, if number % 7 == 0 { 1 } else { second });
            format!("{micros} udp 10.0.{from}.1:{port} > 10.1.0.1:53 payload {}", number % 40)
        })
        .collect()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(bytes).expect("memory");
    gzip.finish().expect("memory")
}

/// A folder in which a command runs.
struct Folder(TempDir);

impl Folder {
    /// With captures of one to four seconds: `1` to `4` in other orders, and `all`, where they are one.
    fn new() -> Self {
        let folder = Self(tempfile::tempdir().expect("a folder"));
        folder.write("x-b.pcap", pcap(&lines(1), true, false, 1));
        folder.write("x-a.pcap.gz", gzip(&pcap(&lines(2), false, true, 101)));
        folder.write("day/3", pcap(&lines(3), false, false, 1));
        folder.write("day/README", b"no capture");
        folder.write("4.pcap", pcap(&lines(4), true, true, 1));
        let all: Vec<_> = (1..=4).flat_map(lines).collect();
        folder.write("all", pcap(&all, false, true, 1));
        folder
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, bytes: impl AsRef<[u8]>) {
        fs::create_dir_all(self.at(name).parent().expect("a folder")).expect("a folder");
        fs::write(self.at(name), bytes).expect("written");
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = packetloom();
        command.current_dir(self.0.path()).args(arguments).stdin(Stdio::null());
        command
    }
}

/// Lines of a file in order.
fn sorted(path: &Path) -> Vec<String> {
    let mut lines: Vec<_> = fs::read_to_string(path).expect("a file").lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

/// What all captures are named by.
const ALL: [&str; 6] = ["-r", "4.pcap", "-r", "x-*.pcap*", "-r", "day"];

#[test]
fn a_meter_has_the_records_of_one_capture() {
    let folder = Folder::new();
    succeed(&mut folder.command(&["meter", "-r", "all", "-o", "expected", "--summary", "expected.json"]));
    assert!(sorted(&folder.at("expected")).len() > 100);
    for workers in ["1", "3"] {
        let rest = ["-o", "found", "--summary", "found.json", "--workers", workers];
        let output = run(&mut folder.command(&[&["meter"], &ALL[..], &rest].concat()));
        assert_eq!(output.status.code(), Some(0));
        let left_out = "packetloom: warning: not read, since they do not begin like captures: day/README\n";
        assert!(stderr(&output).starts_with(left_out), "{}", stderr(&output));
        assert_eq!(sorted(&folder.at("found")), sorted(&folder.at("expected")));
        let (mut found, expected) = (json(&folder.at("found.json")), json(&folder.at("expected.json")));
        // Raw IP has 14 bytes fewer on the wire.
        for key in ["bytes", "wire_bytes"] {
            if expected[key] != Value::Null {
                found[key] = expected[key].clone();
            }
        }
        assert_eq!(found, expected);
    }
}

#[test]
fn a_chain_file_names_several_captures() {
    let folder = Folder::new();
    folder.write("rules", "deny udp from any port 1003 to any\ndefault permit\n");
    for (device, workers) in [("oracle", 1), ("cpu", 1), ("cpu", 4)] {
        let run_table =
            format!("[run]\ndevice = \"{device}\"\nworkers = {workers}\nsummary = \"summary.json\"\n");
        let functions = "[[chain]]\nnf = \"acl\"\nrules = \"rules\"\n[[chain]]\nnf = \"counter\"\n";
        // Relative to the chain file.
        let source = "[source]\ncapture = [\"day\", \"4.pcap\", \"x-b*\"]\n[sink]\ncapture = \"out\"\n";
        folder.write("chain.toml", format!("{source}{run_table}{functions}"));
        succeed(packetloom().arg("run").arg(folder.at("chain.toml")).current_dir("/"));
        let summary = json(&folder.at("summary.json"));
        assert_eq!((&summary["received"], &summary["passed"]), (&900.into(), &(900 - 18).into()), "{device}");
        let expected: Vec<_> = [1, 3, 4]
            .into_iter()
            .flat_map(lines)
            .filter(|line| !line.contains(":1003 "))
            .map(|line| packet(&line).bytes)
            .collect();
        assert_eq!(frames(&fs::read(folder.at("out")).expect("a capture")), expected, "{device}");
    }
    let text = succeed(&mut folder.command(&["check", "chain.toml"]));
    // Folders and patterns by what they stand for.
    assert!(text.starts_with("source    day/3, 4.pcap and x-b.pcap\n"), "{text}");
    folder.write("none.toml", "[source]\ncapture = []\n");
    folder.write("number.toml", "[source]\ncapture = 7\n");
    for (chain, reason) in [
        ("none.toml", "capture = []; expected one capture or several"),
        ("number.toml", "expected a capture in quotes, or several"),
    ] {
        let output = run(&mut folder.command(&["check", chain]));
        assert_eq!(output.status.code(), Some(78));
        assert!(stderr(&output).contains(reason), "{}", stderr(&output));
    }
}

#[test]
fn each_capture_is_warned_of_by_its_name() {
    let folder = Folder::new();
    let cut = pcap(&lines(5), false, false, 147);
    folder.write("cut", &cut[..cut.len() - 3]);
    for verb in [&["meter", "-o", "/dev/null"][..], &["run", "chain.toml"]] {
        folder.write("chain.toml", "");
        let output =
            run(&mut folder
                .command(&[verb, &["-r", "cut", "-r", "x-b.pcap", "--summary", "s.json"]].concat()));
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let said = stderr(&output);
        assert_eq!(said.matches("warning").count(), 2, "{said}");
        assert!(
            said.contains("packetloom: warning: cut: 299 frames of link type 147 (USER0) cannot be parsed"),
            "{said}"
        );
        assert!(said.contains("packetloom: warning: cut: the file ends within a record at byte"), "{said}");
        assert_eq!(json(&folder.at("s.json"))["truncated"], true);
    }
}

#[test]
fn what_cannot_be_read_stops_the_run_before_anything_is_written() {
    let folder = Folder::new();
    folder.write("text", "no capture");
    folder.write("empty/README", "no capture");
    for (captures, reason) in [
        (&["-r", "4.pcap", "-r", "missing"][..], "packetloom: missing: No such file"),
        (&["-r", "4.pcap", "-r", "text"], "packetloom: text: not a capture"),
        (
            &["-r", "4.pcap", "-r", "-"],
            "packetloom: standard input: one of several captures, and no regular file",
        ),
        (&["-r", "empty"], "packetloom: empty: a folder without captures"),
        (&["-r", "y-*"], "packetloom: y-*: nothing has such a name"),
        (&["-r", "day", "-r", "day/3"], "packetloom: day/3 and day/3 are one file"),
    ] {
        for verb in [&["meter", "-o", "out"][..], &["bench", "meter", "-o", "out"]] {
            let output = run(&mut folder.command(&[verb, captures].concat()));
            assert_eq!(output.status.code(), Some(1), "{captures:?}");
            assert!(stderr(&output).contains(reason), "{captures:?}: {}", stderr(&output));
            assert!(!folder.at("out").exists(), "{captures:?}");
        }
    }
    // An input is no output.
    let output = run(&mut folder.command(&["meter", "-r", "day", "-o", "day/3"]));
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("-o day/3 is the same file as -r day/3"), "{}", stderr(&output));
    folder.write("chain.toml", "[source]\ncapture = [\"x-*\", \"day\"]\n[sink]\ncapture = \"day/3\"\n");
    let output = run(&mut folder.command(&["run", "chain.toml"]));
    assert_eq!(output.status.code(), Some(78));
    assert!(stderr(&output).contains("which would be lost"), "{}", stderr(&output));
    // A pcap file has one link type.
    folder.write("chain.toml", "");
    let output = run(&mut folder.command(&["run", "chain.toml", "-r", "x-*", "-w", "out"]));
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains(
            "out: a pcap file holds frames of one link type; this one has 1, and a frame of link type 101"
        ),
        "{}",
        stderr(&output)
    );
    assert!(!folder.at("out").exists());
}

#[test]
fn a_benchmark_takes_several_captures() {
    let folder = Folder::new();
    let arguments = [&["bench", "meter"], &ALL[..], &["--rounds", "1", "--json"]].concat();
    let text = succeed(&mut folder.command(&arguments));
    let value: Value = serde_json::from_str(text.lines().next().expect("a line")).expect("JSON");
    assert_eq!(value["workload"], "meter 4 captures");
}
