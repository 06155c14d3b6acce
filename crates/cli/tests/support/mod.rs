//! What the tests of the command share.
#![allow(dead_code, missing_docs, unreachable_pub)]

pub mod packets;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

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
