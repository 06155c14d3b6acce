//! `packetloom bench forward`: packets between namespaces add up, nothing is left behind, and what is missing is said.

#![allow(missing_docs)]
#![cfg(target_os = "linux")]

mod support;

use std::fs;
use std::os::unix::process::CommandExt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use packetloom_testing::net::Net;
use serde_json::Value;
use support::schema::check;
use support::{packetloom, run, stderr, succeed};

/// A benchmark as short as it can be.
fn bench(arguments: &[&str]) -> std::process::Command {
    bench_for("40ms", arguments)
}

/// The same, with rates that are held for so long.
fn bench_for(time: &str, arguments: &[&str]) -> std::process::Command {
    let mut command = packetloom();
    command.args(["bench", "forward", "--trial", "20ms", "--confirm", time, "--rounds", "1", "--json"]);
    // Other tests run beside this one: what is lost says nothing.
    command.args(["--max-loss", "0.5"]).args(arguments);
    command
}

/// Whether two cores and namespaces may be used here; by nobody else of these tests as long as it is held, since a run that spins leaves the
/// others hardly any time.
fn cores() -> Option<MutexGuard<'static, ()>> {
    static CORES: Mutex<()> = Mutex::new(());
    let is_possible =
        Net::new().is_some() && std::thread::available_parallelism().is_ok_and(|cores| cores.get() >= 2);
    is_possible.then(|| CORES.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Namespaces of a process.
fn namespaces(process: u32) -> usize {
    let names = fs::read_dir("/var/run/netns").into_iter().flatten().flatten();
    let prefix = format!("packetloom-bench-{process}-");
    names.filter(|name| name.file_name().to_string_lossy().starts_with(&prefix)).count()
}

fn rows(text: &str) -> Vec<Value> {
    let schema: Value =
        serde_json::from_str(&succeed(packetloom().args(["schema", "bench-forward"]))).expect("JSON");
    let rows: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    for row in &rows {
        check(&schema, row).unwrap_or_else(|why| panic!("{why}: {row:#}"));
    }
    rows
}

#[test]
fn packets_of_both_backends_add_up_and_nothing_is_left() {
    let Some(_cores) = cores() else { return };
    let mut command = bench(&["--rule-count", "0,100", "--backend", "af_xdp,af_packet", "--flows", "16"]);
    let child = command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn();
    let child = child.expect("started");
    let process = child.id();
    let output = child.wait_with_output().expect("ended");
    assert!(output.status.success(), "{}", stderr(&output));
    let rows = rows(std::str::from_utf8(&output.stdout).expect("text"));
    let names: Vec<_> = rows.iter().map(|row| (row["forwarder"].as_str(), row["rules"].as_u64())).collect();
    let [xdp, packet] = [Some("packetloom af_xdp"), Some("packetloom af_packet")];
    assert_eq!(names, [(xdp, Some(0)), (packet, Some(0)), (xdp, Some(100)), (packet, Some(100))]);
    for row in &rows {
        assert_eq!(row["unaccounted"], 0, "{row:#}");
        assert_eq!(row["dropped_by_chain"], 0, "{row:#}");
        let [sent, received] = ["sent", "received"].map(|key| row[key].as_u64().expect("a number"));
        assert!(received > 1000 && sent >= received, "{row:#}");
        for key in ["flood_mpps", "cpu_ns_per_packet", "process_ns_per_packet"] {
            assert!(row[key].as_f64().is_some_and(|figure| figure > 0.0), "{key}: {row:#}");
        }
        // On a busy machine a rate may not be found.
        assert_eq!(row["no_loss_mpps"].is_null(), row["latency_10_us_p99"].is_null(), "{row:#}");
    }
    assert_eq!(namespaces(process), 0);
}

#[test]
fn flow_records_say_what_was_sent_and_the_load_is_drawn() {
    let Some(_cores) = cores() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let plot = folder.path().join("loads.svg");
    let plot_text = plot.to_str().expect("text");
    let options = ["--rule-count", "100", "--meter", "--flows", "20", "--workers", "2"];
    let others = ["--idle", "sleep,spin", "--load-plot", plot_text];
    let mut tries = 0;
    let rows = loop {
        let output = run(&mut bench_for("500ms", &[&options[..], &others[..]].concat()));
        let rows = rows(std::str::from_utf8(&output.stdout).expect("text"));
        // On a busy machine a rate may not be found.
        if rows.iter().all(|row| row["no_loss_mpps"].is_number()) {
            assert!(output.status.success(), "{}", stderr(&output));
            break rows;
        }
        tries += 1;
        assert!(tries < 5, "{}: {rows:#?}", stderr(&output));
    };
    let names: Vec<_> = rows.iter().filter_map(|row| row["forwarder"].as_str()).collect();
    assert_eq!(names, ["packetloom af_xdp", "packetloom af_xdp spin"]);
    for row in &rows {
        assert_eq!(row["workload"], "forward acl_100 + meter");
        assert_eq!((&row["workers"], &row["unaccounted"]), (&2.into(), &0.into()), "{row:#}");
        let number = |key: &str| row[key].as_u64().unwrap_or_else(|| panic!("{key}: {row:#}"));
        assert_eq!(number("lost_98"), number("dropped_98"), "{row:#}");
        assert!(number("dropped_before_98") + number("lost_in_stalls_98") <= number("lost_98"), "{row:#}");
        assert_eq!(number("wrong_flows_98"), 0, "{row:#}");
        let recorded = number("recorded_98");
        assert!(
            recorded > 100 && (number("sent_98") - number("lost_98")..=number("sent_98")).contains(&recorded),
            "{row:#}"
        );
        assert!(row["turn_98_us"].as_f64().is_some_and(|turn| turn > 0.0), "{row:#}");
    }
    let svg = fs::read_to_string(&plot).expect("a picture");
    for run in ["packetloom af_xdp, forward", "packetloom af_xdp spin, forward"] {
        for worker in ["worker 1", "worker 2"] {
            assert!(svg.contains(&format!("{worker}: {run}")), "{run}: {worker}: {svg}");
        }
    }
    // Axes have thin lines.
    let is_load = |line: &&str| line.starts_with("<polyline") && line.contains("stroke-width=\"2\"");
    let longest =
        svg.lines().filter(is_load).map(|line| line.matches(',').count()).filter(|points| *points > 2);
    assert!(longest.count() == 4, "{svg}");
}

#[test]
fn the_kernel_forwards_by_the_same_rules() {
    let Some(_cores) = cores() else { return };
    let output = run(&mut bench(&["--rule-count", "100", "--peer", "nftables", "--flows", "16"]));
    assert!(output.status.success(), "{}", stderr(&output));
    let rows = rows(std::str::from_utf8(&output.stdout).expect("text"));
    let names: Vec<_> = rows.iter().filter_map(|row| row["forwarder"].as_str()).collect();
    assert_eq!(names, ["packetloom af_xdp", "nftables rules", "nftables sets"]);
    for row in &rows[1..] {
        assert!(row["received"].as_u64().is_some_and(|packets| packets > 1000), "{row:#}");
        assert_eq!(row["against"], "packetloom af_xdp", "{row:#}");
        assert!(row["peer_ratio"].as_f64().is_some_and(|ratio| ratio > 0.0), "{row:#}");
    }
    assert!(rows[2]["sets"].as_u64().is_some_and(|sets| sets > 0), "{:#}", rows[2]);
}

#[test]
fn what_cannot_be_is_said() {
    let fails = |arguments: &[&str], code: i32, expected: &str| {
        let output = run(&mut bench(arguments));
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
        assert!(said.contains(expected) && output.stdout.is_empty(), "{arguments:?}: {said}");
    };
    fails(&["--backend", "dpdk"], 2, "possible values: af_xdp, af_packet");
    fails(&["--peer", "vpp"], 2, "possible values: nftables, testpmd");
    fails(&["--generator-core", "1"], 2, "name one core; expected two");
    fails(&["--packet-size", "63"], 2, "63");
    fails(&["--idle", "doze"], 2, "possible values: sleep, spin");
    fails(&["--workers", "0"], 2, "--workers");
    fails(&["--load-plot", "/nowhere/loads.svg"], 1, "/nowhere/loads.svg");
    let output = run(packetloom().args(["bench", "forward", "--max-loss", "2"]));
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("expected a share from 0 to 1"), "{}", stderr(&output));
    let folder = tempfile::tempdir().expect("a folder");
    let closed = folder.path().join("closed.rules");
    fs::write(&closed, "deny any from any to any\n").expect("written");
    let Some(_cores) = cores() else { return };
    fails(&["--rules", closed.to_str().expect("text")], 1, "expected rules that permit 256 flows");
    fails(&["--forwarder-core", "4000"], 1, "core 4000");
    // Programs are looked for when they are needed.
    let output = run(bench(&[]).env("PATH", folder.path()));
    assert_eq!(output.status.code(), Some(69), "{}", stderr(&output));
    assert!(stderr(&output).contains("ip is not installed; expected it from Debian's package iproute2"));
    // Somebody who may not make namespaces.
    let output = run(bench(&[]).uid(65_534).gid(65_534));
    assert_eq!(output.status.code(), Some(69), "{}", stderr(&output));
    assert!(stderr(&output).contains("run as root"), "{}", stderr(&output));
}
