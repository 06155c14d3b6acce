//! Collectors that people use: they count what the summary says.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use packetloom_testing::running::{Running, free_port, wait_for, wait_until_read};
use packetloom_testing::{has_collector, is_installed};
use serde_json::Value;

use crate::capture;
use crate::support::{json, packetloom, run, stderr, succeed};

/// Meters a capture for a collector, with these options; the summary.
fn meter(capture: &Path, option: &str, others: &[&str], port: u16, folder: &Path) -> Value {
    let summary = folder.join("summary.json");
    let to = format!("udp://127.0.0.1:{port}");
    let mut command = packetloom();
    command.args(["-q", "meter", "-r"]).arg(capture).args([option, &to, "--export-rate", "8Mbit/s"]);
    let output = run(command.args(others).arg("--summary").arg(&summary));
    assert!(output.status.success(), "{}", stderr(&output));
    json(&summary)
}

/// Options for each protocol, without sampling and sampled, and by how much collectors scale what was counted.
fn cases() -> impl Iterator<Item = (&'static str, &'static [&'static str], u64)> {
    let samples = [(&[][..], 1), (&["--sample", "10"], 10), (&["--sample", "10,random,3"], 10)];
    let options = ["--ipfix", "--netflow9"].into_iter();
    options.flat_map(move |option| samples.map(|(sample, scale)| (option, sample, scale)))
}

#[test]
fn nfdump_has_the_same_flows_packets_and_bytes() {
    if !has_collector("nfcapd") {
        return;
    }
    for (option, sample, scale) in cases() {
        let folder = tempfile::tempdir().expect("a folder");
        let (capture, port) = (capture(folder.path()), free_port());
        let files = folder.path().join("nfcapd");
        fs::create_dir(&files).expect("a folder");
        let log = folder.path().join("log");
        let running = Running::nfcapd(port, &files, &log);
        let summary = meter(&capture, option, sample, port, folder.path());
        wait_until_read(port);
        running.end();
        let log = fs::read_to_string(log).expect("text");
        assert!(log.contains("Sequence Errors: 0, Bad Packets: 0"), "{log}");
        let shown = succeed(Command::new("nfdump").arg("-R").arg(&files).args([
            "-q",
            "-N",
            "-o",
            "fmt:%pkt %byt %fl",
        ]));
        let mut totals = [0u64; 3];
        for line in shown.lines() {
            for (total, number) in totals.iter_mut().zip(line.split_whitespace()) {
                *total += number.parse::<u64>().expect("a number");
            }
        }
        let expected = ["counted_packets", "counted_ip_bytes", "uniflows"]
            .map(|name| summary[name].as_u64().expect("a count"));
        let [packets, bytes, flows] = expected;
        assert_eq!(totals, [scale * packets, scale * bytes, flows], "{option} {sample:?}");
    }
}

#[test]
fn nfacctd_has_the_same_packets_and_bytes() {
    if !has_collector("nfacctd") {
        return;
    }
    for (option, sample, scale) in cases() {
        let folder = tempfile::tempdir().expect("a folder");
        let (capture, port) = (capture(folder.path()), free_port());
        let output = folder.path().join("flows.json");
        let config = format!(
            "nfacctd_ip: 127.0.0.1\nnfacctd_port: {port}\nnfacctd_renormalize: true\nplugins: print\nprint_output: json\nprint_output_file: {}\n\
             print_output_file_append: true\nprint_refresh_time: 1\naggregate: src_host,dst_host,src_port,dst_port,proto\n",
            output.display()
        );
        let path = folder.path().join("nfacctd.conf");
        fs::write(&path, config).expect("written");
        let mut nfacctd = Command::new("nfacctd");
        let log = folder.path().join("log");
        nfacctd.arg("-f").arg(&path).stdout(Stdio::null()).stderr(fs::File::create(&log).expect("a file"));
        let running = Running::start(&mut nfacctd);
        wait_for(port);
        // What comes before its plugin is there, it drops.
        let begun = Instant::now();
        while !fs::read_to_string(&log).expect("text").contains("setting object handlers") {
            assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", fs::read_to_string(&log));
            thread::sleep(Duration::from_millis(20));
        }
        let summary = meter(&capture, option, sample, port, folder.path());
        let expected = ["counted_packets", "counted_ip_bytes"]
            .map(|name| scale * summary[name].as_u64().expect("a count"));
        let begun = Instant::now();
        loop {
            let text = fs::read_to_string(&output).unwrap_or_default();
            let flows = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
            let totals = flows.fold([0; 2], |[packets, bytes], flow| {
                let number = |name: &str| flow[name].as_u64().unwrap_or(0);
                [packets + number("packets"), bytes + number("bytes")]
            });
            if totals == expected {
                break;
            }
            assert!(
                begun.elapsed() < Duration::from_secs(60),
                "{option} {sample:?}: {totals:?}, expected {expected:?}"
            );
            thread::sleep(Duration::from_millis(100));
        }
        drop(running);
    }
}

#[test]
fn goflow2_has_the_same_flows_packets_and_bytes() {
    if !is_installed("goflow2") {
        eprintln!("skipped: goflow2 is not installed");
        return;
    }
    for (option, sample, scale) in cases() {
        let folder = tempfile::tempdir().expect("a folder");
        let (capture, port) = (capture(folder.path()), free_port());
        let output = folder.path().join("flows.json");
        let mut goflow2 = Command::new("goflow2");
        goflow2.args(["-listen", &format!("netflow://127.0.0.1:{port}"), "-addr", "127.0.0.1:0"]);
        goflow2.arg("-transport.file").arg(&output).stdout(Stdio::null());
        let running =
            Running::start(goflow2.stderr(fs::File::create(folder.path().join("log")).expect("a file")));
        wait_for(port);
        let options = [sample, &["--fields", "full"]].concat();
        let summary = meter(&capture, option, &options, port, folder.path());
        let number = |name: &str| summary[name].as_u64().expect("a count");
        // Of flows, packets, bytes; and how all of them say that packets were sampled.
        let expected = ["uniflows", "counted_packets", "counted_ip_bytes"].map(number);
        let rate = if sample.is_empty() { 0 } else { scale };
        let begun = Instant::now();
        loop {
            let text = fs::read_to_string(&output).unwrap_or_default();
            // Its workers write at the same time: an end of line may be behind two objects.
            let objects = serde_json::Deserializer::from_str(&text).into_iter::<Value>();
            let flows: Vec<_> = objects.map_while(Result::ok).collect();
            let sum =
                |name: &str| flows.iter().map(|flow| flow[name].as_u64().expect("a count")).sum::<u64>();
            let totals = [flows.len() as u64, sum("packets"), sum("bytes")];
            if totals == expected {
                assert!(flows.iter().all(|flow| flow["sampling_rate"] == rate), "{option} {sample:?}");
                break;
            }
            let log = fs::read_to_string(folder.path().join("log")).unwrap_or_default();
            assert!(
                begun.elapsed() < Duration::from_secs(60),
                "{option} {sample:?}: {totals:?}, expected {expected:?}; {log}"
            );
            thread::sleep(Duration::from_millis(100));
        }
        drop(running);
    }
}
