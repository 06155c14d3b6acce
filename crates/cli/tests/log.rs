//! What rules with `log` leave in a run's log, and what rules count.

#![allow(missing_docs)]

mod support;

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use support::{json, json_lines, packetloom, packets, run, stderr, succeed};
use tempfile::TempDir;

const DEVICES: [&str; 6] = [
    "device = \"oracle\"",
    "device = \"cpu\"",
    "device = \"cpu\"\nbatch = 1",
    "device = \"cpu\"\nbatch = 3",
    "device = \"cpu\"\nworkers = 2\nbatch = 1",
    "device = \"cpu\"\nworkers = 5",
];

/// A folder with packets, rules and a chain of one acl with more keys.
fn folder(packets: &str, rules: &str, keys: &str) -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, text: &[u8]| fs::write(folder.path().join(name), text).expect("written");
    write("in.pcap", &packets::pcap(packets));
    write("rules", rules.as_bytes());
    write("chain", format!("[[chain]]\nnf = \"acl\"\nrules = \"rules\"\n{keys}\n").as_bytes());
    folder
}

/// Runs the folder's chain with more arguments on every device; the log and the acl's part of the summary, which are the same
/// on all of them.
fn on_every_device(folder: &Path, devices: &[&str], arguments: &[&str]) -> (Vec<Value>, Value) {
    let at = |file: &str| folder.join(file);
    let chain = fs::read_to_string(at("chain")).expect("a chain");
    let mut all = Vec::new();
    for device in devices {
        fs::write(at("chain.toml"), format!("{chain}[run]\n{device}\n")).expect("written");
        let mut command = packetloom();
        command.arg("run").arg(at("chain.toml")).arg("-r").arg(at("in.pcap"));
        succeed(command.arg("--summary").arg(at("summary.json")).args(arguments));
        let text = fs::read_to_string(at("log")).expect("a log");
        all.push((text, json(&at("summary.json"))["functions"][0].clone()));
        assert_eq!(all.first(), all.last(), "{device}");
    }
    (json_lines(&at("log")), all.swap_remove(0).1)
}

#[test]
fn a_line_for_each_packet_that_a_rule_with_log_decides() {
    let packets = "\
0.000001 tcp 10.0.0.1:1000 > 192.0.2.1:23 flags S
0.25 arp
0.5 udp 10.0.0.1:1000 > 192.0.2.1:53 payload 12
1 icmp 10.0.0.1 > 192.0.2.1 type 8 code 0
1 tcp [2001:db8::1]:1000 > [2001:db8::2]:23 flags SA
1.5 udp 10.0.0.1 > 192.0.2.1 payload 8 fragment 3
1.5 udp 10.0.0.1:7 > 192.0.2.1:7 payload 8 fragment 0+
2 47 10.0.0.9 > 192.0.2.1 payload 4
2 icmpv6 2001:db8::1 > 2001:db8::2 type 128 code 0
";
    let rules = "\
# The rules.
deny tcp from any to any port 23 log id no-telnet # \"telnet\" is over
permit udp from any to any port 53
permit any from any to any fragment any log
permit icmp from any to any type 8 log
permit icmpv6 from any to any type 128 log
";
    let folder = folder(packets, rules, "log = \"log\"");
    let (lines, summary) = on_every_device(folder.path(), &DEVICES, &[]);
    let telnet =
        json!({ "action": "deny", "rule": 0, "line": 2, "id": "no-telnet", "comment": "\"telnet\" is over" });
    let permit = |rule: u32| json!({ "action": "permit", "rule": rule, "line": rule + 2 });
    let v4 =
        json!({ "ipVersion": 4, "sourceIPv4Address": "10.0.0.1", "destinationIPv4Address": "192.0.2.1" });
    let v6 = json!({ "ipVersion": 6, "sourceIPv6Address": "2001:db8::1", "destinationIPv6Address": "2001:db8::2" });
    let line = |frame: u32, micros: u32, rule: &Value, ends: &Value, more: Value| {
        let mut line = json!({ "frame": frame, "observationTimeMicroseconds": micros });
        for part in [rule, ends, &more] {
            line.as_object_mut().expect("an object").extend(part.as_object().expect("an object").clone());
        }
        line
    };
    let tcp = |flags: u32, bytes: u32| {
        json!({
            "protocolIdentifier": 6, "sourceTransportPort": 1000, "destinationTransportPort": 23,
            "tcpControlBits": flags, "ipTotalLength": bytes,
        })
    };
    let expected = [
        line(1, 1, &telnet, &v4, tcp(2, 40)),
        line(
            4,
            1_000_000,
            &permit(3),
            &v4,
            json!({ "protocolIdentifier": 1, "icmpTypeIPv4": 8, "icmpCodeIPv4": 0, "ipTotalLength": 28 }),
        ),
        line(5, 1_000_000, &telnet, &v6, tcp(18, 60)),
        line(
            6,
            1_500_000,
            &permit(2),
            &v4,
            json!({ "protocolIdentifier": 17, "fragment": "later", "ipTotalLength": 28 }),
        ),
        line(
            7,
            1_500_000,
            &permit(2),
            &v4,
            json!({
                "protocolIdentifier": 17, "sourceTransportPort": 7, "destinationTransportPort": 7,
                "fragment": "first", "ipTotalLength": 36,
            }),
        ),
        line(
            9,
            2_000_000,
            &permit(4),
            &v6,
            json!({ "protocolIdentifier": 58, "icmpTypeIPv6": 128, "icmpCodeIPv6": 0, "ipTotalLength": 48 }),
        ),
    ];
    assert_eq!(lines, expected);
    // The fields come in one order.
    let text = fs::read_to_string(folder.path().join("log")).expect("a log");
    assert_eq!(
        text.lines().next(),
        Some(
            "{\"frame\":1,\"action\":\"deny\",\"rule\":0,\"line\":2,\"id\":\"no-telnet\",\"comment\":\"\\\"telnet\\\" is over\",\
             \"observationTimeMicroseconds\":1,\"ipVersion\":4,\"sourceIPv4Address\":\"10.0.0.1\",\
             \"destinationIPv4Address\":\"192.0.2.1\",\"protocolIdentifier\":6,\"sourceTransportPort\":1000,\
             \"destinationTransportPort\":23,\"tcpControlBits\":2,\"ipTotalLength\":40}"
        )
    );
    assert_eq!(summary["log"], json!({ "lines": 6, "suppressed": 0 }));
    assert_eq!((&summary["default_packets"], &summary["default_bytes"]), (&json!(1), &json!(24)));
    let hits = summary["hits"].as_array().expect("hits");
    let counted: Vec<_> =
        hits.iter().map(|hit| [&hit["packets"], &hit["bytes"]].map(Value::as_u64)).collect();
    let counters = [[2, 100], [1, 40], [2, 64], [1, 28], [1, 48]];
    assert_eq!(counted, counters.map(|counter| counter.map(Some)));
    assert_eq!((&hits[0]["comment"], &hits[1]["comment"]), (&json!("\"telnet\" is over"), &Value::Null));
}

#[test]
fn lines_over_the_rate_are_counted_and_told_of() {
    // Thirty flows, so that each of several workers has some; all at once, then one every 0.1 s.
    let mut packets = String::new();
    for port in 0..30 {
        packets += &format!("5.0 udp 10.0.0.{port}:{port} > 192.0.2.1:9\n");
    }
    for packet in 1..=30 {
        packets +=
            &format!("{}.{} udp 10.0.0.{packet}:{packet} > 192.0.2.1:9\n", 5 + packet / 10, packet % 10);
    }
    let keys = "log = \"log\"\nlog_rate = \"2/s\"\nlog_burst = 4";
    let folder = folder(&packets, "permit udp from any to any log\n", keys);
    let (lines, summary) = on_every_device(folder.path(), &DEVICES, &[]);
    let found: Vec<_> =
        lines.iter().map(|line| (line["frame"].as_u64(), line["suppressed"].as_u64())).collect();
    let steady = |frame, suppressed| (Some(frame), Some(suppressed));
    let mut expected: Vec<_> = (1..=4).map(|frame| (Some(frame), None)).collect();
    // A line each half second: the 5th of the later packets, and every 5th from there.
    expected.extend([
        steady(35, 30),
        steady(40, 4),
        steady(45, 4),
        steady(50, 4),
        steady(55, 4),
        steady(60, 4),
    ]);
    assert_eq!(found, expected);
    assert_eq!(summary["log"], json!({ "lines": 10, "suppressed": 50 }));

    // What is suppressed after the last line is told of in one of its own.
    let (lines, summary) = on_every_device(folder.path(), &DEVICES, &["-c", "42"]);
    assert_eq!(lines.last(), Some(&json!({ "suppressed": 2 })));
    assert_eq!(summary["log"], json!({ "lines": 6, "suppressed": 36 }));
}

#[test]
fn rules_that_are_added_during_a_run_count_and_log() {
    let packets = "0.0 tcp 10.0.0.1:1000 > 192.0.2.1:80 flags S payload 10\n".repeat(6);
    let folder = folder(&packets, "permit tcp from any to any id web\n", "log = \"log\"");
    let changes = folder.path().join("changes");
    fs::write(
        &changes,
        "at 2\nadd first deny tcp from any to any port 80 log id no-web # closed\ncommit\n\
         at 4\ndelete no-web\nreplace web permit any from any to any log\ncommit\n",
    )
    .expect("written");
    let arguments = ["--rules-changes", changes.to_str().expect("text")];
    let (lines, summary) = on_every_device(folder.path(), &DEVICES[..4], &arguments);
    let found: Vec<_> = lines
        .iter()
        .map(|line| {
            json!([line["frame"], line["action"], line["rule"], line["line"], line["id"], line["comment"]])
        })
        .collect();
    let deny = |frame: u32| json!([frame, "deny", 1, 2, "no-web", "closed"]);
    let permit = |frame: u32| json!([frame, "permit", 2, 6, "web", null]);
    assert_eq!(found, [deny(3), deny(4), permit(5), permit(6)]);
    let hits = summary["hits"].as_array().expect("hits");
    let counted: Vec<_> = hits.iter().map(|hit| json!([hit["rule"], hit["packets"], hit["bytes"]])).collect();
    assert_eq!(counted, [json!([0, 2, 100]), json!([1, 2, 100]), json!([2, 2, 100])]);
    assert_eq!(summary["log"], json!({ "lines": 4, "suppressed": 0 }));
}

#[test]
fn without_counters_totals_stay() {
    let packets = "0 tcp 10.0.0.1:1 > 192.0.2.1:80 flags S\n0 tcp 10.0.0.1:1 > 192.0.2.1:81 flags S\n0 udp 10.0.0.1:1 > 192.0.2.1:81\n";
    let rules = "permit tcp from any to any port 80\ndeny tcp from any to any log\n";
    let folder = folder(packets, rules, "log = \"log\"\ncounters = false");
    let (lines, acl) = on_every_device(folder.path(), &DEVICES, &[]);
    assert_eq!(lines.len(), 1);
    assert_eq!(
        acl,
        json!({ "nf": "acl", "rules": 2, "default_packets": 1, "log": { "lines": 1, "suppressed": 0 } })
    );
    let summary = json(&folder.path().join("summary.json"));
    assert_eq!((&summary["passed"], &summary["dropped"]["acl_rule"]), (&json!(1), &json!(1)));
    assert_eq!(summary["dropped"]["acl_default"], 1);
}

#[test]
fn people_are_told_what_was_logged_and_what_was_not() {
    let packets = "0 udp 10.0.0.1:1 > 192.0.2.1:9\n".repeat(3);
    let rules = "permit udp from any to any log # chatter\n";
    let folder = folder(&packets, rules, "log = \"log\"\nlog_burst = 1");
    let at = |file: &str| folder.path().join(file);
    let output = run(packetloom().arg("run").arg(at("chain")).arg("-r").arg(at("in.pcap")));
    let text = stderr(&output);
    for row in [
        "default (deny)",
        "0 packets, 0 bytes",
        "line 1: permit udp from any to any log # chatter  3 packets, 84 bytes",
        "logged ",
        "1 packets\n",
        "not logged, over the rate ",
        "2 packets\n",
    ] {
        assert!(text.contains(row), "{row:?} in {text}");
    }
    let plan = succeed(packetloom().arg("check").arg(at("chain")));
    assert!(plan.contains("log of 1 rules to "), "{plan}");

    fs::write(at("chain"), "[[chain]]\nnf = \"acl\"\nrules = \"rules\"\n").expect("written");
    let output = run(packetloom().arg("run").arg(at("chain")).arg("-r").arg(at("in.pcap")));
    let warning = format!(
        "packetloom: warning: {}: 1 rules with log are not logged; log = \"FILE\" in the chain file does that\n",
        at("rules").display()
    );
    assert!(output.status.success() && stderr(&output).starts_with(&warning), "{}", stderr(&output));
}

#[test]
fn the_log_is_an_output_like_others() {
    let folder = folder("0 udp 10.0.0.1:1 > 192.0.2.1:9\n", "permit udp from any to any log\n", "");
    let at = |file: &str| folder.path().join(file);
    let chain = fs::read_to_string(at("chain")).expect("a chain");
    let run_with = |keys: &str, arguments: &[&str]| {
        fs::write(at("chain"), format!("{chain}{keys}\n[sink]\ncapture = \"passed\"\n")).expect("written");
        run(packetloom().arg("run").arg(at("chain")).arg("-r").arg(at("in.pcap")).args(arguments))
    };
    // Standard output, and then nothing else there.
    let output = run_with("log = \"-\"", &[]);
    assert!(output.status.success() && output.stdout.starts_with(b"{\"frame\":1,"), "{}", stderr(&output));
    let output = run_with("log = \"-\"", &["--json"]);
    assert_eq!(output.status.code(), Some(78));
    let said = stderr(&output);
    assert!(said.contains("more than one output to standard output") && said.contains("--json"), "{said}");
    assert_eq!(run_with("log = \"passed\"", &[]).status.code(), Some(78));
    // A full disk fails the run, and nothing appears.
    fs::remove_file(at("passed")).expect("packets of the first run");
    let output = run_with("log = \"/dev/full\"", &[]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(stderr(&output), "packetloom: /dev/full: No space left on device\n");
    assert!(!at("passed").exists());
}

#[test]
fn bad_keys_are_refused_by_line() {
    let folder = folder("", "", "");
    let chain = folder.path().join("chain");
    let rate = "expected a rate of 1 or more such as \"100/s\" or \"10/minute\", or \"unlimited\"";
    for (key, message) in [
        ("counters = \"bytes\"", "invalid type: string \"bytes\", expected a boolean".into()),
        ("log = true", "invalid type: boolean `true`, expected path string".into()),
        (
            "log_rate = 100",
            "invalid type: integer `100`, expected a rate in quotes, such as \"100/s\"".into(),
        ),
        ("log_rate = \"100\"", format!("\"100\"; {rate}")),
        ("log_rate = \"0/s\"", format!("\"0/s\"; {rate}")),
        ("log_burst = 0", "0; expected a number from 1 to 1000000".into()),
        ("log_burst = 1000001", "1000001; expected a number from 1 to 1000000".into()),
    ] {
        fs::write(&chain, format!("[[chain]]\nnf = \"acl\"\nrules = \"rules\"\n{key}\n")).expect("written");
        let output = run(packetloom().arg("check").arg(&chain));
        let found = (output.status.code(), stderr(&output));
        assert_eq!(found, (Some(78), format!("packetloom: {}:4: {message}\n", chain.display())), "{key}");
    }
}

/// A mark is in the log, whichever rule of a chain set it, and no other format can say it.
#[test]
fn packets_carry_the_marks_of_rules() {
    let packets = "\
0 tcp 10.0.0.1:1000 > 192.0.2.1:80 flags S
1 udp 10.0.0.1:1000 > 192.0.2.1:53
2 udp 10.0.0.1:1000 > 192.0.2.1:7
";
    let rules = "\
permit tcp from any to any mark 0x1F
permit udp from any to any port 53 mark 7
permit udp from any to any
";
    let folder = folder(packets, rules, "[[chain]]\nnf = \"acl\"\nrules = \"all\"\nlog = \"log\"");
    fs::write(
        folder.path().join("all"),
        "permit udp from any to any port 53 log mark 8\npermit any from any to any log\n",
    )
    .expect("written");
    let (lines, _) = on_every_device(folder.path(), &DEVICES, &[]);
    let marks: Vec<_> = lines.iter().map(|line| line["mark"].as_u64()).collect();
    assert_eq!(marks, [Some(31), Some(8), None]);
    let rules = folder.path().join("rules");
    for format in ["nftables", "iptables", "cisco-ios", "vpp"] {
        let output = run(packetloom().args(["acl", "convert", "--to", format]).arg(&rules));
        assert_eq!((output.status.code(), output.stdout.len()), (Some(65), 0), "{format}");
        assert!(stderr(&output).contains("where no rule sets a mark"), "{}", stderr(&output));
    }
}
