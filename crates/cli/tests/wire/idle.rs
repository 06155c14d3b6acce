//! What a run does while no packet comes.

use std::net::UdpSocket;
use std::thread;
use std::time::{Duration, Instant};

use packetloom_testing::ends::{ping, transfer};
use packetloom_testing::net::{Net, SERVER};
use rustix::process::Signal;

use crate::product::{BACKENDS, Product, count, sum};
use crate::support::{packetloom, run, stderr};

const CHAIN: &str = "\
[[chain]]
nf = \"acl\"
rules = \"rules\"
[[chain]]
nf = \"meter\"
idle_timeout = \"300ms\"
output = \"flows.jsonl\"
";
const PERMIT: &str = "permit any from any to any\n";
/// How long threads are looked at.
const WINDOW: Duration = Duration::from_millis(500);
/// Nobody waits longer, on however busy a machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// A packet there and one back, of which none has waited until a worker wakes.
const NO_NAP: Duration = Duration::from_millis(2);
/// A run that is asked to end does so within this time, but for a machine that runs somebody else.
const AT_ONCE: Duration = Duration::from_millis(500);

/// Of each thread of a run over some time, the share in which it ran, and that in which it ran or waited for a processor.
fn shares(product: &Product) -> Vec<[f64; 2]> {
    let (begin, before) = (Instant::now(), product.thread_times());
    thread::sleep(WINDOW);
    let (after, elapsed) = (product.thread_times(), begin.elapsed().as_secs_f64());
    let shares = after.iter().filter_map(|(thread, times)| {
        let before = before.get(thread)?;
        Some([0, 1].map(|at| (times[at] - before[at]).as_secs_f64() / elapsed))
    });
    shares.collect()
}

/// Waits until the threads of a run are as they should be.
fn wait_until(product: &Product, are_so: impl Fn(&[[f64; 2]]) -> bool) {
    let begin = Instant::now();
    loop {
        let shares = shares(product);
        if are_so(&shares) {
            return;
        }
        assert!(begin.elapsed() < PATIENCE, "{shares:.3?}");
    }
}

/// By both backends, on one worker and on several: packets pass, workers never sleep, and all else happens as it does otherwise.
#[test]
fn a_run_that_spins_forwards_and_takes_a_core_for_each_worker() {
    for (backend, workers) in BACKENDS.into_iter().flat_map(|backend| [(backend, 1), (backend, 2)]) {
        // A link that was down has lost addresses. Other tests would be left hardly any time.
        let Some(net) = Net::alone() else { return };
        let arguments = format!("--idle spin --workers {workers}");
        let files = [("rules", PERMIT)];
        let mut product = Product::inline_by(backend, &net.product, CHAIN, &files, &arguments);
        for address in SERVER {
            ping(&net, address, 5).expect("answered");
            transfer(&net, address, 1 << 20);
        }
        wait_until(&product, |shares| {
            shares.iter().filter(|[_, runnable]| *runnable > 0.9).count() == workers
        });
        // What is not seen by packets: time, signals, links.
        let begin = Instant::now();
        while product.records().is_empty() {
            assert!(begin.elapsed() < PATIENCE, "no record");
            thread::sleep(Duration::from_millis(10));
        }
        product.signal(Signal::HUP);
        product.wait_for("read again");
        net.server.ip("link set s0 down").expect("down");
        product.wait_for("pb: no carrier");
        net.server.ip("link set s0 up").expect("up");
        product.wait_for("pb: the link is up");
        let (_, passed) = product.progress();
        assert!(product.said.iter().any(|line| line.contains("; workers busy ")), "{:#?}", product.said);
        let done = product.stop();
        assert_eq!(sum(&done.summary, "/dropped"), 0, "{:#}", done.summary);
        assert!(count(&done.summary, "/passed") >= passed, "{:#}", done.summary);
    }
}

#[test]
fn a_run_that_spins_ends_at_once() {
    let Some(net) = Net::alone() else { return };
    let mut shown = Vec::new();
    while shown.last().is_none_or(|took| *took >= AT_ONCE) {
        assert!(shown.len() < 10, "{shown:?}");
        let product = Product::inline(&net.product, CHAIN, &[("rules", PERMIT)], "--idle spin");
        let begin = Instant::now();
        product.stop_by(Signal::TERM);
        shown.push(begin.elapsed());
    }
}

/// Nor does one wait that comes while the other worker has looked for it: that one waits for the first one's bell.
#[test]
fn no_packet_waits_where_two_workers_spin() {
    let Some(net) = Net::alone() else { return };
    let product = Product::inline(&net.product, CHAIN, &[("rules", PERMIT)], "--idle spin --workers 2");
    let server = net.server.run(|| UdpSocket::bind("0.0.0.0:4001").expect("bound"));
    let client = net.client.run(|| UdpSocket::bind("0.0.0.0:0").expect("bound"));
    [&server, &client].iter().for_each(|socket| socket.set_read_timeout(Some(PATIENCE)).expect("set"));
    let trip = || {
        let begin = Instant::now();
        client.send_to(b"there", (SERVER[0], 4001)).expect("sent");
        let (_, from) = server.recv_from(&mut [0; 9]).expect("it comes");
        server.send_to(b"back", from).expect("sent");
        client.recv(&mut [0; 9]).expect("it comes back");
        begin.elapsed()
    };
    let mut shown = Vec::new();
    while shown.last().is_none_or(|median| *median >= NO_NAP) {
        assert!(shown.len() < 10, "{shown:?}");
        let mut trips: Vec<_> = (0..101).map(|_| trip()).collect();
        trips.sort_unstable();
        shown.push(trips[50]);
    }
    product.stop();
}

#[test]
fn what_cannot_be_is_said() {
    let output = run(packetloom().args(["run", "chain.toml", "--idle", "doze"]));
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("possible values: sleep, spin"), "{}", stderr(&output));
    let folder = tempfile::tempdir().expect("a folder");
    let chain = folder.path().join("chain.toml");
    std::fs::write(&chain, "[run]\nidle = \"doze\"\n").expect("written");
    let output = run(packetloom().arg("check").arg(&chain));
    let said = stderr(&output);
    assert_ne!(output.status.code(), Some(0));
    assert!(said.contains("chain.toml:2") && said.contains("expected `sleep` or `spin`"), "{said}");
    // For the whole run.
    let Some(net) = Net::alone() else { return };
    let chain = |idle: &str| format!("{CHAIN}[run]\nidle = \"{idle}\"\n");
    let mut product = Product::inline(&net.product, &chain("spin"), &[("rules", PERMIT)], "");
    let file = product.at("chain.toml");
    let text = std::fs::read_to_string(&file).expect("text").replace("spin", "sleep");
    std::fs::write(file, text).expect("written");
    product.signal(Signal::HUP);
    product.wait_for("idle is sleep; expected spin, which stays for the whole run");
    product.stop();
}

/// By default, and where it is asked for.
#[test]
fn a_run_that_sleeps_takes_hardly_any_time() {
    let Some(net) = Net::new() else { return };
    for (backend, arguments) in BACKENDS.into_iter().zip(["", "--idle sleep --workers 2"]) {
        let product = Product::inline_by(backend, &net.product, CHAIN, &[("rules", PERMIT)], arguments);
        ping(&net, SERVER[0], 2).expect("answered");
        wait_until(&product, |shares| shares.iter().map(|[ran, _]| ran).sum::<f64>() < 0.02);
        product.stop();
    }
}
