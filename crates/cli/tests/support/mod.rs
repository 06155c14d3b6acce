//! What the tests of the command share.
#![allow(dead_code, missing_docs, unreachable_pub)]

pub mod packets;
pub mod pcapng;
pub mod schema;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};
use std::time::{Duration, Instant};

/// The command under test.
pub fn packetloom() -> Command {
    Command::new(env!("CARGO_BIN_EXE_packetloom"))
}

/// Runs a command to its end.
pub fn run(command: &mut Command) -> Output {
    command.output().expect("the command can be started")
}

/// Runs a command that must succeed; its standard output.
pub fn succeed(command: &mut Command) -> String {
    let output = run(command);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{command:?}: {} {stderr}", output.status);
    String::from_utf8(output.stdout).expect("text")
}

/// Waits until a child has a handler for a signal, which would end it before.
pub fn wait_for_handler(child: &Child, signal: rustix::process::Signal) {
    let path = format!("/proc/{}/status", child.id());
    let begin = Instant::now();
    loop {
        let status = std::fs::read_to_string(&path).expect("it is there");
        let caught =
            status.lines().find_map(|line| line.strip_prefix("SigCgt:")).expect("signals that are caught");
        let caught = u64::from_str_radix(caught.trim(), 16).expect("bits");
        if caught >> (signal.as_raw() - 1) & 1 == 1 {
            return;
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "no handler for {signal:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Standard error as text.
pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A file of JSON lines.
pub fn json_lines(path: &Path) -> Vec<serde_json::Value> {
    let text = std::fs::read_to_string(path).expect("a text file");
    text.lines().map(|line| serde_json::from_str(line).expect("a JSON object a line")).collect()
}

/// A JSON file.
pub fn json(path: &Path) -> serde_json::Value {
    serde_json::from_str(&std::fs::read_to_string(path).expect("a text file")).expect("JSON")
}

/// The repository's root.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The parts of a case, by name: see `cases.rs`.
pub fn parts(text: &str) -> BTreeMap<&str, String> {
    let mut parts: BTreeMap<&str, String> = BTreeMap::new();
    let mut current = None;
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("== ") {
            current = Some(parts.entry(name.trim()).or_default());
        } else if let Some(part) = &mut current {
            part.push_str(line);
            part.push('\n');
        }
    }
    parts
}

/// The bytes of each frame of a pcap file.
pub fn frames(file: &[u8]) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    let mut rest = &file[24..];
    while !rest.is_empty() {
        let len = u32::from_le_bytes(rest[8..12].try_into().expect("four bytes")) as usize;
        frames.push(rest[16..16 + len].to_vec());
        rest = &rest[16 + len..];
    }
    frames
}

/// Has tshark find no wrong checksum in a capture, and many right ones.
pub fn assert_checksums(capture: &[u8]) {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), capture).expect("written");
    let mut tshark = Command::new("tshark");
    for preference in ["ip.check_checksum", "tcp.check_checksum", "udp.check_checksum"] {
        tshark.args(["-o", &format!("{preference}:TRUE")]);
    }
    tshark.args(["-T", "fields", "-r"]).arg(file.path());
    for field in ["ip.checksum.status", "tcp.checksum.status", "udp.checksum.status"] {
        tshark.args(["-e", field]);
    }
    let (mut right, mut wrong) = (0, 0);
    for status in succeed(&mut tshark).split(['\t', '\n']) {
        right += usize::from(status == "1");
        wrong += usize::from(status == "0");
    }
    assert!(right > 50 && wrong == 0, "{right} right and {wrong} wrong checksums");
}

/// A certificate authority, and a collector's certificate that is signed by it.
pub fn certificates(folder: &Path) {
    let openssl = |arguments: &str| {
        let output = run(Command::new("openssl").args(arguments.split(' ')).current_dir(folder));
        assert!(output.status.success(), "{}", stderr(&output));
    };
    const KEY: &str = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2";
    openssl(&format!("req -x509 {KEY} -subj /CN=authority -keyout ca.key -out ca.pem"));
    openssl(&format!(
        "req -x509 -CA ca.pem -CAkey ca.key {KEY} -subj /CN=collector.example -addext \
         subjectAltName=DNS:collector.example -addext basicConstraints=critical,CA:FALSE -keyout key.pem -out cert.pem"
    ));
}
