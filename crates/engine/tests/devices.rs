//! Every way of running a chain gives what the oracle gives: verdicts, order, records, logs, counters; over generated traffic, as it
//! is and with bytes changed at random.

#![allow(missing_docs)]

use std::path::Path;
use std::sync::Arc;

use packetloom_engine::chain::Chain;
use packetloom_engine::executor::Io;
use packetloom_engine::{Outputs, Plan, run};
use packetloom_generate::TrafficOptions;
use packetloom_io::capture::{CaptureReader, CaptureWriter, Resolution};
use packetloom_io::input::Stop;
use packetloom_io::output::Output;
use packetloom_nf::Context;
use proptest::prelude::*;

const RULES: &str = "\
deny tcp from any to any port 22 id ssh
permit tcp from any to any port 443
permit udp from any port 0-32767 to any
deny icmp from any to any type 8 log
permit any from 0.0.0.0/1 to any log
permit icmpv6 from any to any
permit tcp from any to any flags A/SA log id ack # of a connection
";

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

/// What a run leaves: summary, records in order of their text, the log, the capture of what passed.
#[derive(Debug, PartialEq)]
struct Results {
    summary: serde_json::Value,
    records: Vec<String>,
    log: String,
    passed: Vec<u8>,
}

fn results(folder: &Path, capture: &Arc<Vec<u8>>, settings: &str, rate: &str, stream: bool) -> Results {
    let text = format!("{CHAIN}[run]\n{settings}\n").replace("RATE", rate);
    std::fs::write(folder.join("rules"), RULES).expect("written");
    let chain = Chain::parse("chain", &text, Context { folder, ignore_flags: false }).expect("a good chain");
    let plan = Plan::new(chain);
    let stop = Stop::default();
    let source = if stream {
        let bytes: &[u8] = capture;
        CaptureReader::from_reader("stream", std::io::Cursor::new(bytes.to_vec()), &stop)
    } else {
        CaptureReader::from_bytes("memory", capture.clone())
    };
    let output = |name: &str| Some(Output::create(&folder.join(name)).expect("a file"));
    let mut outputs = Outputs {
        sink: Some(CaptureWriter::create(&folder.join("passed"), Resolution::Nanos).expect("a file")),
        records: vec![output("log"), output("flows")],
        summaries: vec![],
    };
    let io = Io {
        source: source.expect("a capture"),
        outputs: &mut outputs,
        limit: None,
        stop,
        progress: &mut |_, _| {},
        notice: &mut |_| {},
        device: None,
    };
    let summary = run(&plan, io).expect("a run").json();
    outputs.publish().expect("written");
    let ended = &summary["functions"][1]["ended"];
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).expect("records");
    let mut records: Vec<String> = read("flows").lines().map(str::to_owned).collect();
    records.sort_unstable();
    let total: u64 = ended.as_object().expect("counts").values().filter_map(|count| count.as_u64()).sum();
    assert_eq!(total, records.len() as u64, "every record ended for one reason");
    let log = read("log");
    Results { summary, records, log, passed: std::fs::read(folder.join("passed")).expect("a capture") }
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
    let folder = tempfile::tempdir().expect("a folder");
    let capture = Arc::new(capture);
    let oracle = results(folder.path(), &capture, "device = \"oracle\"", rate, false);
    for settings in DEVICES {
        let found = results(folder.path(), &capture, settings, rate, false);
        assert_eq!(found.summary, oracle.summary, "{settings:?}");
        assert!(found == oracle, "{settings:?}: other records, log or packets passed, or in another order");
    }
    oracle.log
}

fn traffic(packets: u64, flows: u64, seed: u64) -> Vec<u8> {
    let options = TrafficOptions { packets, flows, seed, snap: 96, ..TrafficOptions::default() };
    let mut bytes = Vec::new();
    packetloom_generate::write_pcap(&options, &mut bytes, |_| {}).expect("memory can be written");
    bytes
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
    let folder = tempfile::tempdir().expect("a folder");
    let capture = Arc::new(traffic(20_000, 900, 2));
    let file = results(folder.path(), &capture, "", "300/s", false);
    for settings in ["", "workers = 4"] {
        assert!(results(folder.path(), &capture, settings, "300/s", true) == file, "{settings:?}");
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
