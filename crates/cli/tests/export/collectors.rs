//! Collectors that people use: they count what the summary says.

use std::fs;
use std::net::UdpSocket;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use packetloom_testing::has_collector;
use serde_json::Value;

use crate::capture;
use crate::support::{json, packetloom, run, stderr, succeed};

/// A collector's process, which ends with it, and so do those that it has started.
struct Running(Child);

impl Running {
    fn start(command: &mut Command) -> Self {
        Self(command.process_group(0).spawn().expect("started"))
    }

    /// Has it write what it holds, and waits until it has ended.
    fn end(mut self) {
        let id = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process(id, rustix::process::Signal::TERM).expect("told");
        self.0.wait().expect("ended");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let group = rustix::process::Pid::from_child(&self.0);
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        let _ = self.0.wait();
    }
}

/// A port that nobody has.
fn free_port() -> u16 {
    UdpSocket::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a port").port()
}

/// Waits until somebody receives datagrams at a port.
fn wait_for(port: u16) {
    let begun = Instant::now();
    let address = format!("0100007F:{port:04X}");
    while !fs::read_to_string("/proc/net/udp").expect("sockets").contains(&address) {
        assert!(begun.elapsed() < Duration::from_secs(60), "nobody listens at {port}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// Waits until whoever receives at a port has taken everything.
fn wait_until_read(port: u16) {
    let begun = Instant::now();
    let address = format!("0100007F:{port:04X}");
    loop {
        let sockets = fs::read_to_string("/proc/net/udp").expect("sockets");
        let socket = sockets.lines().find(|line| line.contains(&address)).expect("it is there");
        // Local address, remote address, state, bytes to be sent and to be read.
        let queues = socket.split_whitespace().nth(4).expect("queues");
        if queues.ends_with(":00000000") {
            return;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{socket}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// Meters a capture for a collector; the summary.
fn meter(capture: &Path, option: &str, port: u16, folder: &Path) -> Value {
    let summary = folder.join("summary.json");
    let to = format!("udp://127.0.0.1:{port}");
    let mut command = packetloom();
    command.args(["-q", "meter", "-r"]).arg(capture).args([option, &to, "--export-rate", "8Mbit/s"]);
    let output = run(command.arg("--summary").arg(&summary));
    assert!(output.status.success(), "{}", stderr(&output));
    json(&summary)
}

#[test]
fn nfdump_has_the_same_flows_packets_and_bytes() {
    if !has_collector("nfcapd") {
        return;
    }
    for option in ["--ipfix", "--netflow9"] {
        let folder = tempfile::tempdir().expect("a folder");
        let (capture, port) = (capture(folder.path()), free_port());
        let files = folder.path().join("nfcapd");
        fs::create_dir(&files).expect("a folder");
        let log = fs::File::create(folder.path().join("log")).expect("a file");
        let mut nfcapd = Command::new("nfcapd");
        nfcapd.arg("-w").arg(&files).args([
            "-b",
            "127.0.0.1",
            "-t",
            "3600",
            "-B",
            "4000000",
            "-p",
            &port.to_string(),
        ]);
        nfcapd.stdout(Stdio::null()).stderr(log);
        let running = Running::start(&mut nfcapd);
        wait_for(port);
        let summary = meter(&capture, option, port, folder.path());
        wait_until_read(port);
        running.end();
        let log = fs::read_to_string(folder.path().join("log")).expect("text");
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
        assert_eq!(totals, expected, "{option}");
    }
}

#[test]
fn nfacctd_has_the_same_packets_and_bytes() {
    if !has_collector("nfacctd") {
        return;
    }
    for option in ["--ipfix", "--netflow9"] {
        let folder = tempfile::tempdir().expect("a folder");
        let (capture, port) = (capture(folder.path()), free_port());
        let output = folder.path().join("flows.json");
        let config = format!(
            "nfacctd_ip: 127.0.0.1\nnfacctd_port: {port}\nplugins: print\nprint_output: json\nprint_output_file: {}\n\
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
        let summary = meter(&capture, option, port, folder.path());
        let expected =
            ["counted_packets", "counted_ip_bytes"].map(|name| summary[name].as_u64().expect("a count"));
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
            assert!(begun.elapsed() < Duration::from_secs(60), "{option}: {totals:?}, expected {expected:?}");
            thread::sleep(Duration::from_millis(100));
        }
        drop(running);
    }
}
