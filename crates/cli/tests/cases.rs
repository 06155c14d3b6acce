//! End-to-end cases: `cases/*.case`, one small text file each, run on every device.
//!
//! A case has parts that begin with `== NAME`: `packets` (see `support/packets.rs`), `chain` (a chain file; its outputs are
//! `passed.pcap` and `flows.jsonl`), files that the chain names, and what is expected:
//!
//! - `passed`: the packets that pass, by their number in `packets`, from 0;
//! - `flows`: one flow record a line, in any order:
//!   `PROTOCOL SOURCE:PORT > DESTINATION:PORT PACKETS/BYTES REVERSE_PACKETS/BYTES START-END REASON [vlan N]` with times in milliseconds;
//! - `summary`: lines `POINTER VALUE` into the summary (RFC 6901).

#![allow(missing_docs)]

mod support;

use std::collections::BTreeMap;
use std::path::Path;

use support::{frames, packets, parts};

/// What a case is run on: arguments for the chain file's `[run]`.
const CORES: [&str; 5] = [
    "device = \"oracle\"",
    "device = \"cpu\"",
    "device = \"cpu\"\nbatch = 1",
    "device = \"cpu\"\nworkers = 2\nbatch = 1",
    "device = \"cpu\"\nworkers = 5",
];
/// The same where kernels are compiled for each case.
const COMPILED: [&str; 3] =
    ["device = \"host\"", "device = \"host\"\nworkers = 3", "device = \"auto\"\nworkers = 2"];

fn flow(record: &serde_json::Value) -> String {
    let text = |name: &str| record[name].as_str().map_or_else(|| record[name].to_string(), str::to_owned);
    let address = |way: &str| match record["ipVersion"].as_u64() {
        Some(4) => text(&format!("{way}IPv4Address")),
        _ => format!("[{}]", text(&format!("{way}IPv6Address"))),
    };
    let vlan = record["vlanId"].as_u64().map(|vlan| format!(" vlan {vlan}"));
    format!(
        "{} {}:{} > {}:{} {}/{} {}/{} {}-{} {}{}",
        text("protocolIdentifier"),
        address("source"),
        text("sourceTransportPort"),
        address("destination"),
        text("destinationTransportPort"),
        text("packetDeltaCount"),
        text("octetDeltaCount"),
        text("reversePacketDeltaCount"),
        text("reverseOctetDeltaCount"),
        text("flowStartMilliseconds"),
        text("flowEndMilliseconds"),
        match record["flowEndReason"].as_u64() {
            Some(1) => "idle",
            Some(2) => "active",
            Some(4) => "end",
            Some(5) => "full",
            _ => "?",
        },
        vlan.unwrap_or_default()
    )
}

/// A chain with tables for few flows, where a case does not say for how many: the host goes through all of them, which takes longer than all
/// else there.
fn with_small_tables(chain: String) -> String {
    if chain.contains("max_flows") {
        return chain;
    }
    let few = "max_flows = 4000\n";
    let line = |line: &str| format!("{line}\n{}", if line.starts_with("[flows.") { few } else { "" });
    let others = ["5-tuple", "connection", "initiator", "source"]
        .map(|by| format!("[flows.{by}]\n{few}by = \"{by}\"\n"));
    let others = others.into_iter().filter(|table| !chain.contains(table.lines().next().unwrap_or_default()));
    chain.lines().map(line).chain(others).collect()
}

fn run_case(name: &str, parts: &BTreeMap<&str, String>, device: &str) {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |file: &str| folder.path().join(file);
    for (file, text) in parts {
        match *file {
            "packets" => std::fs::write(at("in.pcap"), packets::pcap(text)).expect("written"),
            "passed" | "flows" | "summary" => {}
            "chain" => {
                let has_run = text.contains("[run]");
                let text = if has_run {
                    text.replace("[run]", &format!("[run]\n{device}"))
                } else {
                    format!("{text}\n[run]\n{device}\n")
                };
                let text = if COMPILED.contains(&device) { with_small_tables(text) } else { text };
                std::fs::write(at("chain.toml"), text).expect("written");
            }
            file => std::fs::write(at(file), text).expect("written"),
        }
    }
    let mut command = support::packetloom();
    command.arg("run").arg(at("chain.toml")).arg("-r").arg(at("in.pcap"));
    command.arg("-w").arg(at("passed.pcap")).arg("--summary").arg(at("summary.json"));
    support::succeed(&mut command);
    let context = format!("{name} on {device:?}");
    if let Some(expected) = parts.get("passed") {
        let all = frames(&std::fs::read(at("in.pcap")).expect("the input"));
        let numbers = expected.split_ascii_whitespace().map(|n| n.parse::<usize>().expect("a number"));
        let expected: Vec<_> = numbers.map(|n| all[n].clone()).collect();
        assert_eq!(frames(&std::fs::read(at("passed.pcap")).expect("the output")), expected, "{context}");
    }
    if let Some(expected) = parts.get("flows") {
        let mut expected: Vec<_> = expected.lines().filter(|l| !l.is_empty()).map(str::to_owned).collect();
        let mut found: Vec<_> = support::json_lines(&at("flows.jsonl")).iter().map(flow).collect();
        expected.sort_unstable();
        found.sort_unstable();
        assert_eq!(found, expected, "{context}");
    }
    let summary = support::json(&at("summary.json"));
    if let Some(expected) = parts.get("summary") {
        for line in expected.lines().filter(|line| !line.is_empty()) {
            let (pointer, value) = line.split_once(' ').expect("a pointer and a value");
            let found = summary.pointer(pointer).unwrap_or(&serde_json::Value::Null);
            assert_eq!(found.to_string(), value, "{pointer} of {context}");
        }
    }
    let sum: u64 =
        summary["dropped"].as_object().expect("an object").values().filter_map(|v| v.as_u64()).sum();
    let passed = summary["passed"].as_u64().expect("a number");
    assert_eq!(summary["received"].as_u64(), Some(passed + sum), "{context}: the counters add up");
}

/// Runs every second case on some devices, from the first or from the second one on.
fn run_cases(first: usize, devices: &[&str]) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases");
    let mut names: Vec<_> =
        std::fs::read_dir(folder).expect("cases").map(|e| e.expect("a file").path()).collect();
    names.sort_unstable();
    assert!(names.len() >= 8, "{names:?}");
    for (number, path) in names.iter().enumerate().skip(first).step_by(2) {
        let text = std::fs::read_to_string(path).expect("a case");
        let parts = parts(&text);
        let name = path.file_stem().expect("a name").display().to_string();
        assert!(parts.contains_key("packets") && parts.contains_key("chain"), "{name}");
        let expectations = ["passed", "flows", "summary"].iter().filter(|part| parts.contains_key(*part));
        assert!(expectations.count() > 0, "{name} expects nothing");
        for device in devices {
            let is_compiled = COMPILED.contains(device);
            if is_compiled && number % 3 > 0 && !packetloom_testing::sweep(&format!("{name} on {device:?}")) {
                continue;
            }
            run_case(&name, &parts, device);
        }
    }
}

#[test]
fn every_case_on_cores() {
    run_cases(0, &CORES);
    run_cases(1, &CORES);
}

#[test]
fn one_half_of_the_cases_on_devices() {
    run_cases(0, &COMPILED);
}

#[test]
fn the_other_half_of_the_cases_on_devices() {
    run_cases(1, &COMPILED);
}
