//! Every way of running a chain gives what the oracle gives: verdicts, order, records, logs, counters; over generated traffic, as it
//! is and with bytes changed at random.

#![allow(missing_docs)]

mod support;

use proptest::prelude::*;
use support::{How, Results, traffic};

const CHAIN: &str = "\
[[chain]]
nf = \"acl\"
rules = \"rules\"
log = \"log\"
log_rate = \"RATE\"
log_burst = 7
[[chain]]
nf = \"meter\"
idle_timeout = \"900ms\"
active_timeout = \"5s\"
output = \"flows\"
";

/// What a run leaves, the rates of the chain's log being so high.
fn results(capture: &[u8], settings: &str, rate: &str, is_stream: bool) -> Results {
    let how = How { settings, is_stream, ..How::default() };
    let (results, _, _) = support::results(&CHAIN.replace("RATE", rate), capture, how);
    let ended = &results.summary["functions"][1]["ended"];
    let total: u64 = ended.as_object().expect("counts").values().filter_map(|count| count.as_u64()).sum();
    assert_eq!(total, results.records.len() as u64, "every record ended for one reason");
    results
}

const DEVICES: [&str; 6] = [
    "batch = 1",
    "batch = 256",
    "batch = 65535",
    "workers = 2\nbatch = 1",
    "workers = 3\nbatch = 64",
    "workers = 16\nbatch = 7",
];

/// Compares all devices; returns the log.
fn compare(capture: Vec<u8>, rate: &str) -> String {
    let oracle = results(&capture, "device = \"oracle\"", rate, false);
    for settings in DEVICES {
        let found = results(&capture, settings, rate, false);
        assert_eq!(found.summary, oracle.summary, "{settings:?}");
        assert!(found == oracle, "{settings:?}: other records, log or packets passed, or in another order");
    }
    oracle.log
}

#[test]
fn every_device_gives_what_the_oracle_gives() {
    let limited = compare(traffic(20_000, 900, 1), "300/s");
    let all = compare(traffic(20_000, 900, 1), "unlimited");
    let told = |line: &str| -> u64 {
        let line: serde_json::Value = serde_json::from_str(line).expect("JSON");
        line["suppressed"].as_u64().unwrap_or(0)
    };
    // What is suppressed is told of; the rest are the lines that there are without a limit.
    let suppressed: u64 = limited.lines().map(told).sum();
    let lines = limited.lines().filter(|line| line.contains("frame")).count();
    assert!(lines > 1_000 && suppressed > 1_000, "{lines} lines, {suppressed} suppressed");
    assert_eq!(lines + suppressed as usize, all.lines().count());
}

#[test]
fn a_stream_gives_what_a_file_gives() {
    let capture = traffic(20_000, 900, 2);
    let file = results(&capture, "", "300/s", false);
    for settings in ["", "workers = 4"] {
        assert!(results(&capture, settings, "300/s", true) == file, "{settings:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Records keep their lengths, so that the capture stays one; what is in the frames and their times is anything.
    #[test]
    fn damaged_traffic_too(
        seed: u64,
        rate in prop::sample::select(vec!["30/s", "unlimited"]),
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..300),
    ) {
        let mut capture = traffic(400, 40, seed);
        let mut allowed = Vec::new();
        let mut at = 24;
        while at < capture.len() {
            let len = u32::from_le_bytes(capture[at + 8..at + 12].try_into().expect("four bytes")) as usize;
            // Seconds (the low byte), fraction, length on the wire, and the first bytes of the frame, where headers are.
            allowed.extend([at]);
            allowed.extend(at + 4..at + 7);
            allowed.extend(at + 12..at + 14);
            allowed.extend(at + 24..at + 16 + len.min(64));
            at += 16 + len;
        }
        for (index, value) in damage {
            let at = *index.get(&allowed);
            capture[at] = value;
        }
        compare(capture, rate);
    }
}
