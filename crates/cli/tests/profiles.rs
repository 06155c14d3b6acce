//! Network profiles of FlowTest: traffic made of them, and profiles written of traffic.

#![allow(missing_docs)]

mod support;

use std::fs;
use std::io::Write;
use std::path::Path;

use support::{packetloom, root, run, stderr, succeed};

const HEADER: &str =
    "START_TIME,END_TIME,L3_PROTO,L4_PROTO,SRC_PORT,DST_PORT,PACKETS,BYTES,PACKETS_REV,BYTES_REV\n";

/// Lines of a profile with times from the earliest begin on, sorted.
fn rows(text: &str) -> Vec<Vec<i64>> {
    let lines = text.strip_prefix(HEADER).expect("the line of names").lines();
    let cells = lines.map(|line| line.split(',').map(|cell| cell.parse().expect("a number")).collect());
    let mut rows: Vec<Vec<i64>> = cells.collect();
    let earliest = rows.iter().map(|row| row[0]).min().expect("a flow");
    for row in &mut rows {
        row[0] -= earliest;
        row[1] -= earliest;
    }
    rows.sort_unstable();
    rows
}

fn generate(profile: &Path, capture: &Path) -> String {
    let mut command = packetloom();
    let output = run(command.args(["generate", "traffic", "--profile"]).arg(profile).arg("-w").arg(capture));
    assert!(output.status.success(), "{}", stderr(&output));
    stderr(&output)
}

/// The profile of a capture, no flow of which is cut by a timeout.
fn profile(capture: &Path, options: &[&str]) -> String {
    let mut command = packetloom();
    command.args(["-q", "meter", "--format", "flowtest", "--idle-timeout", "1h", "--active-timeout", "24h"]);
    succeed(command.args(options).arg("-r").arg(capture))
}

#[test]
fn metering_what_a_profile_made_gives_its_flows() {
    let folder = tempfile::tempdir().expect("a folder");
    let [csv, gz, capture, again] =
        ["p.csv", "p.csv.gz", "p.pcap", "again.pcap"].map(|name| folder.path().join(name));
    // Lines as those of FlowTest's own profiles: before time zero, one way, ICMP, longer than timeouts, short and full packets.
    let lines = "-3662,-3662,4,17,53,38176,1,84,1,68\n\
                 -126506,-1514,4,6,16386,443,28,10122,27,11019\n\
                 642995,688834,4,6,49154,59075,396,578494,49,10646\n\
                 -4729,24,6,58,0,0,1,72,1,64\n\
                 -273164,618532,4,17,5060,5060,15,6973,75,7228\n\
                 -273194,627120,4,1,0,0,1785,51765,1785,51765\n\
                 622215,685944,6,6,993,59594,12,960,0,0\n\
                 622215,685944,6,6,993,59594,12,960,0,0\n\
                 -30196,-30196,4,6,17469,6379,1,40,0,0\n\
                 5060,6504,4,17,51585,80,33,5151,559,674874\n";
    fs::write(&csv, format!("{HEADER}{lines}")).expect("written");
    assert_eq!(generate(&csv, &capture), "");
    assert_eq!(rows(&profile(&capture, &[])), rows(&format!("{HEADER}{lines}")));
    let packets: i64 = rows(&format!("{HEADER}{lines}")).iter().map(|row| row[6] + row[8]).sum();
    for workers in ["1", "3"] {
        // A sample counts less, and a profile has no column that says so.
        let sampled = profile(&capture, &["--sample", "10", "--workers", workers]);
        assert_eq!(rows(&sampled).iter().map(|row| row[6] + row[8]).sum::<i64>(), (packets + 9) / 10);
    }
    let mut encoder =
        flate2::write::GzEncoder::new(fs::File::create(&gz).expect("a file"), flate2::Compression::fast());
    encoder.write_all(&fs::read(&csv).expect("read")).expect("compressed");
    encoder.finish().expect("compressed");
    generate(&gz, &again);
    assert!(fs::read(&capture).expect("read") == fs::read(&again).expect("read"));
}

#[test]
fn traffic_like_that_of_a_capture() {
    let folder = tempfile::tempdir().expect("a folder");
    let [mine, like] = ["mine.csv", "like.pcap"].map(|name| folder.path().join(name));
    let text = profile(&root().join("examples/edge/edge.pcap"), &[]);
    fs::write(&mine, &text).expect("written");
    assert_eq!(generate(&mine, &like), "");
    assert_eq!(rows(&profile(&like, &[])), rows(&text));
    // The benchmark makes it, too.
    let mut command = packetloom();
    command.args(["bench", "meter", "--rounds", "1", "--json", "--profile"]).arg(&mine);
    let measured: serde_json::Value = serde_json::from_str(&succeed(&mut command)).expect("JSON");
    let packets: i64 = rows(&text).iter().map(|row| row[6] + row[8]).sum();
    assert_eq!(
        (&measured["packets"], &measured["workload"]),
        (&packets.into(), &"meter mine.csv, snap 0".into())
    );
}

#[test]
fn profiles_that_cannot_be_used_are_told() {
    let folder = tempfile::tempdir().expect("a folder");
    let [csv, capture] = ["p.csv", "p.pcap"].map(|name| folder.path().join(name));
    let refused = |text: &str, message: &str, code: i32| {
        fs::write(&csv, text).expect("written");
        for verb in
            [&["generate", "traffic", "-w", capture.to_str().expect("UTF-8")][..], &["bench", "meter"]]
        {
            let output = run(packetloom().args(verb).arg("--profile").arg(&csv));
            assert_eq!(output.status.code(), Some(code), "{}", stderr(&output));
            assert!(stderr(&output).ends_with(message), "{}", stderr(&output));
            assert!(!capture.exists(), "no output of a profile that was refused");
        }
    };
    let name = csv.display();
    refused(
        &format!("{HEADER}0,0,4,6,1,2,1,40,0,0\n0,0,4,6,1,2,none,40,0,0\n"),
        &format!("packetloom: {name}:3: PACKETS is \"none\"; expected a whole number below 2^64\n"),
        1,
    );
    refused(
        &format!("{HEADER}0,0,4,47,0,0,1,40,0,0\n"),
        &format!("packetloom: {name}: no flow that can be made; expected one\n"),
        1,
    );
    // What packets cannot be is told, flow by kind.
    fs::write(&csv, format!("{HEADER}0,0,4,47,0,0,1,40,0,0\n0,0,4,6,1,2,3,40,0,0\n0,0,4,6,2,2,3,80,0,0\n"))
        .expect("written");
    let told = generate(&csv, &capture);
    let lines: Vec<_> = told.lines().collect();
    assert_eq!(
        lines,
        [
            format!(
                "packetloom: warning: {name}: 1 flow left out: neither TCP, UDP nor ICMP (ICMPv6 for IPv6)"
            ),
            format!(
                "packetloom: warning: {name}: 2 flows with fewer bytes than the headers of their packets need: raised to that"
            ),
        ]
    );
    for (arguments, message) in [
        (
            &["generate", "traffic", "-w", "x.pcap", "--profile", "p.csv", "--flows", "3"][..],
            "cannot be used with",
        ),
        (&["generate", "traffic", "-w", "x.csv", "--profile", "x.csv"], "x.csv"),
        (&["generate", "traffic", "-w", "x.pcap", "--profile", "nowhere.csv"], "nowhere.csv"),
        (&["bench", "meter", "-r", "x.pcap", "--profile", "x.csv"], "cannot be used with"),
        (
            &["meter", "-r", "x.pcap", "--each", "--format", "flowtest"],
            "--format flowtest with --each and no file for each capture",
        ),
    ] {
        let output = run(packetloom().current_dir(folder.path()).args(arguments));
        assert!(!output.status.success());
        assert!(stderr(&output).contains(message), "{}", stderr(&output));
    }
}
