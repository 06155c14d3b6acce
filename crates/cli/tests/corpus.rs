//! Real captures and ClassBench rule sets with known answers, from the folder that PACKETLOOM_CORPUS names.

#![allow(missing_docs)]

mod support;

use std::fmt::Write;
use std::io::Read;
use std::net::IpAddr;
use std::path::Path;

use packetloom_classify::Kind;
use packetloom_device::Id;
use packetloom_testing::corpus;
use serde_json::Value;
use sha2::{Digest, Sha256};
use support::{json, json_lines, packetloom, succeed};

/// The digest of expected.json: over the sorted lines of all biflows, endpoints in order of their bytes.
fn biflow_digest(records: &[Value]) -> String {
    let mut lines: Vec<String> = records
        .iter()
        .map(|record| {
            let version = record["ipVersion"].as_u64().expect("a version");
            let end = |way: &str| {
                let name = format!("{way}IPv{version}Address");
                let address: IpAddr = record[name].as_str().expect("an address").parse().expect("an address");
                let octets = match address {
                    IpAddr::V4(address) => address.octets().to_vec(),
                    IpAddr::V6(address) => address.octets().to_vec(),
                };
                (octets, record[format!("{way}TransportPort")].as_u64().expect("a port"))
            };
            let (source, destination) = (end("source"), end("destination"));
            let (a, b) = if source <= destination { (source, destination) } else { (destination, source) };
            let hex = |octets: &[u8]| {
                octets.iter().fold(String::new(), |mut hex, octet| {
                    let _ = write!(hex, "{octet:02x}");
                    hex
                })
            };
            let both = |forward: &str, reverse: &str| {
                record[forward].as_u64().expect("a count") + record[reverse].as_u64().expect("a count")
            };
            format!(
                "{version} {} {} {} {} {} {} {}",
                record["protocolIdentifier"],
                hex(&a.0),
                a.1,
                hex(&b.0),
                b.1,
                both("packetDeltaCount", "reversePacketDeltaCount"),
                both("octetDeltaCount", "reverseOctetDeltaCount")
            )
        })
        .collect();
    lines.sort_unstable();
    Sha256::digest(lines.join("\n")).iter().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

fn check_capture(folder: &Path, expected: &Value, arguments: &[&str]) {
    let file = expected["file"].as_str().expect("a name");
    let scratch = tempfile::tempdir().expect("a folder");
    let (flows, summary) = (scratch.path().join("flows.jsonl"), scratch.path().join("summary.json"));
    let mut command = packetloom();
    command
        .arg("meter")
        .arg("-r")
        .arg(folder.join(file))
        .arg("-o")
        .arg(&flows)
        .arg("--summary")
        .arg(&summary);
    command.args(["--idle-timeout", "0", "--active-timeout", "0"]).args(arguments);
    succeed(&mut command);
    let (records, summary) = (json_lines(&flows), json(&summary));
    for name in ["frames", "counted_packets", "counted_ip_bytes", "biflows", "uniflows"] {
        assert_eq!(summary[name], expected[name], "{name} of {file} {arguments:?}");
    }
    let not_counted = summary["not_counted"].as_object().expect("reasons");
    let not_counted: u64 = not_counted.values().filter_map(Value::as_u64).sum();
    assert_eq!(
        summary["frames"].as_u64(),
        Some(summary["counted_packets"].as_u64().expect("a count") + not_counted),
        "{file}: every frame is counted once"
    );
    assert_eq!(records.len() as u64, expected["biflows"].as_u64().expect("a count"), "{file}");
    assert_eq!(biflow_digest(&records), expected["biflow_digest"].as_str().expect("a digest"), "{file}");
}

#[test]
fn captures_have_the_expected_flows() {
    let Some(folder) = corpus("captures") else { return };
    let expected = json(&folder.join("expected.json"));
    let expected = expected.as_array().expect("a list");
    assert_eq!(expected.len(), 95);
    for capture in expected {
        check_capture(&folder, capture, &[]);
        check_capture(&folder, capture, &["--workers", "3"]);
        for device in packetloom_testing::devices() {
            check_capture(&folder, capture, &["--max-flows", "20000", "--device", &device.to_string()]);
        }
    }
}

/// What is found in real captures is the same on any device.
#[test]
fn captures_are_searched_on_devices() {
    let (Some(captures), Some(strings)) = (corpus("captures"), corpus("strings")) else { return };
    let expected = json(&captures.join("expected.json"));
    let scratch = tempfile::tempdir().expect("a folder");
    let words = "HTTP\n\\x00\\x01\ncom\n\\xff\\xff\\xff\\xff\nwww\n\\x17\\x03\n";
    std::fs::write(scratch.path().join("words"), words).expect("written");
    let names = strings.join("top5000.txt");
    let chain = format!(
        "[[chain]]\nnf = \"strings\"\npatterns = {names:?}\nlog = \"alerts\"\n\
         [[chain]]\nnf = \"strings\"\npatterns = \"words\"\nwithin = \"packet\"\naction = \"drop\"\n[sink]\ncapture = \"passed\"\n"
    );
    // Either of both searches on the device: the first one that there is, in turns.
    let turned = chain.split("[[chain]]").collect::<Vec<_>>();
    let (sink, second) = (&turned[2][turned[2].find("[sink]").expect("a sink")..], turned[2]);
    let second = second.strip_suffix(sink).expect("it ends with it");
    let turned = format!("[[chain]]{second}[[chain]]{}{sink}", turned[1]);
    let results = |capture: &Path, chain: &str, arguments: &[&str]| {
        std::fs::write(scratch.path().join("chain.toml"), chain).expect("written");
        let mut command = packetloom();
        command.current_dir(&scratch).args(["run", "chain.toml", "--json", "-r"]).arg(capture);
        let summary = succeed(command.args(arguments));
        let files =
            ["alerts", "passed"].map(|name| std::fs::read(scratch.path().join(name)).expect("written"));
        (summary, files)
    };
    let mut found = 0;
    for (capture, chain) in
        expected.as_array().expect("a list").iter().zip([&chain, &turned].into_iter().cycle())
    {
        let file = capture["file"].as_str().expect("a name");
        let expected = results(&captures.join(file), chain, &[]);
        found += expected.1[0].len();
        for device in packetloom_testing::devices() {
            let on_it = results(&captures.join(file), chain, &["--device", &device.to_string()]);
            assert!(on_it == expected, "{file} on {device}\n{chain}");
        }
    }
    assert!(found > 10_000, "{found} bytes of alerts");
}

/// Captures with what tshark 4.0 says of them: TCP streams with a SYN (and again each SYN that follows a reset with the same sequence
/// number, which tshark counts as one stream: 9 of the last but two), streams with a whole handshake (`tcp.completeness & 7 == 7`),
/// ICMP errors and the queries with different identifiers, each with those that were answered by whom they were sent to, and
/// messages that are neither.
const CONNECTIONS: &[(&str, [u64; 6])] = &[
    ("ndpi__alexa-app.pcapng", [121, 116, 0, 0, 0, 14]),
    ("retina__tls_ciphers.pcap", [73, 73, 0, 0, 0, 0]),
    ("ndpi__whatsapp_login_call.pcap", [5, 4, 10, 0, 0, 0]),
    ("ndpi__wechat.pcap", [35, 35, 0, 0, 0, 4]),
    ("ndpi__tunnelbear.pcap", [19, 19, 0, 0, 0, 0]),
    ("ipfixprobe__tls.pcap", [6, 6, 0, 0, 0, 0]),
    ("suricata-verify__tls-subjectaltname_input.pcap", [68 + 9, 67, 0, 0, 0, 4]),
    ("ipfixprobe__mixed.pcap", [0, 0, 17, 3, 1, 12]),
    ("zeek__pppoe.pcap", [0, 0, 0, 1, 1, 11]),
];

#[test]
fn captures_have_the_expected_connections() {
    let Some(folder) = corpus("captures") else { return };
    let scratch = tempfile::tempdir().expect("a folder");
    let (chain, summary) = (scratch.path().join("chain.toml"), scratch.path().join("summary.json"));
    std::fs::write(&chain, "[[chain]]\nnf = \"conntrack\"\ninvalid = \"pass\"\n").expect("written");
    for (file, expected) in CONNECTIONS {
        let mut command = packetloom();
        command.arg("run").arg(&chain).arg("-r").arg(folder.join(file)).arg("--summary").arg(&summary);
        succeed(&mut command);
        let summary = json(&summary);
        let found = [
            "connections/tcp/opened",
            "connections/tcp/established",
            "related/packets",
            "connections/icmp/opened",
            "connections/icmp/replied",
            "untracked/packets",
        ];
        let found = found.map(|name| {
            let count = summary.pointer(&format!("/functions/0/{name}")).and_then(Value::as_u64);
            count.expect("a count")
        });
        assert_eq!(&found, expected, "{file}");
    }
}

/// Little-endian 32-bit integers of an xz file.
fn truth(path: &Path) -> Vec<i32> {
    let mut reader = packetloom_io::input::open_text(path).expect("the truth");
    let mut bytes = Vec::new();
    reader.read_to_end(&mut bytes).expect("xz");
    bytes.chunks_exact(4).map(|word| i32::from_le_bytes(word.try_into().expect("four bytes"))).collect()
}

fn classify(rules: &Path, headers: &Path, classifier: &str) -> Vec<i32> {
    classify_on("cpu", rules, headers, classifier)
}

fn classify_on(device: &str, rules: &Path, headers: &Path, classifier: &str) -> Vec<i32> {
    let mut command = packetloom();
    // Compiled kernels are kept there.
    command.env("XDG_CACHE_HOME", env!("CARGO_TARGET_TMPDIR"));
    command.args(["acl", "classify", "--device", device, "--classifier", classifier]);
    command.arg("--rules").arg(rules).arg("--headers").arg(headers);
    succeed(&mut command).lines().map(|line| line.parse().expect("a number")).collect()
}

/// The rules of a set without those that match everything, written to `path`.
fn without_catch_all(rules: &Path, path: &Path) -> usize {
    let mut text = String::new();
    packetloom_io::input::open_text(rules).expect("rules").read_to_string(&mut text).expect("text");
    let is_catch_all = |line: &str| {
        let words: Vec<_> = line.split_ascii_whitespace().collect();
        words[0].ends_with("/0")
            && words[1].ends_with("/0")
            && words[2..8] == ["0", ":", "65535", "0", ":", "65535"]
            && words[8].ends_with("/0x00")
    };
    let kept: Vec<_> = text.lines().filter(|line| !is_catch_all(line)).collect();
    std::fs::write(path, kept.join("\n")).expect("written");
    text.lines().count() - kept.len()
}

fn check_rules(sizes: &[&str]) {
    let Some(folder) = corpus("rules") else { return };
    let scratch = tempfile::tempdir().expect("a folder");
    for name in sizes.iter().flat_map(|size| ["acl1", "fw1", "ipc1"].map(|style| format!("{style}_{size}"))) {
        let file = |extension: &str| folder.join(format!("{name}.{extension}.xz"));
        let (rules, headers, truth) = (file("rules"), file("trace"), truth(&file("truth")));
        assert_eq!(truth.len(), 100_000);
        for classifier in Kind::ALL.map(Kind::name) {
            assert!(
                classify(&rules, &headers, classifier) == truth,
                "{name}: {classifier} differs from the truth"
            );
        }
        let fewer = scratch.path().join(&name);
        let removed = without_catch_all(&rules, &fewer);
        let all = Kind::ALL.map(|kind| classify(&fewer, &headers, kind.name()));
        assert!(
            all.iter().all(|positions| *positions == all[0]),
            "{name} without {removed} catch-all rules: the classifiers differ"
        );
    }
}

#[test]
fn rule_sets_of_a_thousand() {
    check_rules(&["1k"]);
}

#[test]
fn rule_sets_of_ten_thousand() {
    check_rules(&["10k"]);
}

#[test]
fn rule_sets_of_a_hundred_thousand() {
    if !packetloom_testing::sweep("rule sets of 100,000") {
        return;
    }
    check_rules(&["100k"]);
}

/// The same on a device, if it is there.
fn check_rules_on(device: Id, size: &str, kinds: &[Kind]) {
    let Some(folder) = corpus("rules") else { return };
    if !packetloom_testing::devices().contains(&device) {
        return;
    }
    let scratch = tempfile::tempdir().expect("a folder");
    for name in ["acl1", "fw1", "ipc1"].map(|style| format!("{style}_{size}")) {
        let file = |extension: &str| folder.join(format!("{name}.{extension}.xz"));
        let (rules, headers, truth) = (file("rules"), file("trace"), truth(&file("truth")));
        let fewer = scratch.path().join(&name);
        let removed = without_catch_all(&rules, &fewer);
        let expected = classify(&fewer, &headers, Kind::default().name());
        for kind in kinds.iter().map(|kind| kind.name()) {
            let on_device = |rules: &Path| classify_on(&device.to_string(), rules, &headers, kind);
            assert!(on_device(&rules) == truth, "{name}: {kind} on {device} differs from the truth");
            let without = format!("{name} without {removed} catch-all rules");
            assert!(on_device(&fewer) == expected, "{without}: {kind} on {device} differs from the CPU");
        }
    }
}

#[test]
fn rule_sets_of_a_thousand_on_opencl() {
    check_rules_on(Id::OpenCl(0), "1k", &Kind::ALL);
}

#[test]
fn rule_sets_of_ten_thousand_on_opencl() {
    check_rules_on(Id::OpenCl(0), "10k", &Kind::ALL);
}

/// Without linear, which takes a minute where a CPU is the device.
#[test]
fn rule_sets_of_a_hundred_thousand_on_opencl() {
    check_rules_on(Id::OpenCl(0), "100k", &[Kind::TupleSpace, Kind::TupleMerge, Kind::Hybrid]);
}

/// No rule that decides a header of the trace is said to do nothing, and nothing is left undecided.
fn check_analysis(size: &str) {
    let Some(folder) = corpus("rules") else { return };
    for name in ["acl1", "fw1", "ipc1"].map(|style| format!("{style}_{size}")) {
        let file = |extension: &str| folder.join(format!("{name}.{extension}.xz"));
        let mut hit = truth(&file("truth"));
        hit.sort_unstable();
        for flags in [None, Some("--ignore-flags")] {
            let mut command = packetloom();
            let text = succeed(command.args(["acl", "check", "--json"]).args(flags).arg(file("rules")));
            let findings: Vec<Value> =
                text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
            let (summary, findings) = findings.split_last().expect("a summary");
            let of = |name: &str| summary["summary"][name].as_u64().expect("a count");
            let others = ["unmatchable", "shadowed", "redundant", "undecided", "correlated_pairs"].map(of);
            assert_eq!((of("covered"), others), (findings.len() as u64, [0; 5]), "{name}: {summary}");
            for finding in findings {
                // The truth is without flags: what is covered with them is covered without.
                let position = finding["position"].as_i64().expect("a position");
                assert!(hit.binary_search(&(position as i32)).is_err(), "{name}: {finding}");
                let causes = finding["causes"]["rules"].as_array().expect("causes");
                assert!(
                    finding["causes"]["minimal"] == true && causes.len() as u64 == finding["causes"]["count"]
                );
                assert!(causes.iter().all(|cause| cause["position"].as_i64() < Some(position)), "{finding}");
            }
        }
    }
}

#[test]
fn covered_rules_of_a_thousand_are_not_in_the_truth() {
    check_analysis("1k");
}

#[test]
fn covered_rules_of_a_hundred_thousand_are_not_in_the_truth() {
    if !packetloom_testing::sweep("the analysis of rule sets of 100,000") {
        return;
    }
    check_analysis("100k");
}
