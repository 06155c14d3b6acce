//! What happens to a run between two interfaces while packets come.

use std::fs::OpenOptions;
use std::io::Write;
use std::net::UdpSocket;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use packetloom_testing::ends::{is_answered, ping, transfer};
use packetloom_testing::net::{Net, SERVER, run};
use rustix::net::sockopt::set_socket_recv_buffer_size_force;
use rustix::process::Signal;

use crate::product::{BACKENDS, Product, count, interfaces, sum};

const CHAIN: &str = "[[chain]]\nnf = \"acl\"\nrules = \"rules\"\n[[chain]]\nnf = \"counter\"\n";
const PERMIT: &str = "permit any from any to any\n";

/// Datagrams from the client to the server until something is done; how many were sent and how many came.
fn meanwhile(net: &Net, something: impl FnOnce()) -> (u64, u64) {
    meanwhile_timed(net, true, |_| something())
}

/// The same. What is done is given the longest time, in nanoseconds, between two of them that came, which it may reset. If the chain does not forward
/// them afterwards, they are not waited for.
fn meanwhile_timed(net: &Net, is_forwarded: bool, something: impl FnOnce(&AtomicU64)) -> (u64, u64) {
    // While a kernel asks for an address it keeps few datagrams for it, and drops the others where nobody counts them.
    let mac = net.server.mac("s0").map(|byte| format!("{byte:02x}")).join(":");
    net.client.ip(&format!("neigh replace {} lladdr {mac} dev c0", SERVER[0])).expect("known");
    let server = net.server.run(|| {
        let server = UdpSocket::bind("0.0.0.0:4000").expect("bound");
        // Where this process does not get to run for a while, it is not the server that loses datagrams.
        set_socket_recv_buffer_size_force(&server, 32 << 20).expect("set");
        server
    });
    server.set_read_timeout(Some(Duration::from_millis(100))).expect("set");
    let client = net.client.run(|| UdpSocket::bind("0.0.0.0:0").expect("bound"));
    let (is_done, is_over) = (AtomicBool::new(false), AtomicBool::new(false));
    let (sent, came) = (AtomicU64::new(0), AtomicU64::new(0));
    let gap = AtomicU64::new(0);
    let wait_for = |are_enough: &dyn Fn() -> bool, limit: Duration| {
        let begin = Instant::now();
        while !are_enough() && begin.elapsed() < limit {
            thread::sleep(Duration::from_millis(5));
        }
    };
    thread::scope(|scope| {
        let sender = scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                // A link that is down refuses.
                let is_sent = client.send_to(&[7; 64], (SERVER[0], 4000)).is_ok();
                sent.fetch_add(u64::from(is_sent), Ordering::Relaxed);
                thread::sleep(Duration::from_millis(1));
            }
        });
        scope.spawn(|| {
            let mut last = None;
            while !is_over.load(Ordering::Relaxed) {
                let has_come = server.recv(&mut [0; 100]).is_ok();
                came.fetch_add(u64::from(has_come), Ordering::Relaxed);
                if has_come && !is_done.load(Ordering::Relaxed) {
                    let since = last.replace(Instant::now()).map_or(0, |last| last.elapsed().as_nanos());
                    gap.fetch_max(since as u64, Ordering::Relaxed);
                }
            }
        });
        // However this ends, so do the threads.
        let _over = [Set(&is_over), Set(&is_done)];
        let so_far = || came.load(Ordering::Relaxed);
        wait_for(&|| so_far() >= 100, Duration::from_secs(30));
        assert!(so_far() >= 100, "{} datagrams came", so_far());
        something(&gap);
        let until = so_far() + 100;
        if is_forwarded {
            wait_for(&|| so_far() >= until, Duration::from_secs(60));
        }
        is_done.store(true, Ordering::Relaxed);
        sender.join().expect("no panic");
        if is_forwarded {
            wait_for(&|| so_far() >= sent.load(Ordering::Relaxed), Duration::from_secs(60));
        }
    });
    (sent.into_inner(), came.into_inner())
}

/// Sets a flag when it goes.
struct Set<'a>(&'a AtomicBool);

impl Drop for Set<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_reload_loses_no_packet() {
    let Some(net) = Net::new() else { return };
    let mut product = Product::inline(&net.product, CHAIN, &[("rules", PERMIT)], "--workers 2");
    let (sent, came) = meanwhile(&net, || {
        for round in 0..5 {
            std::fs::write(product.at("rules"), format!("deny tcp from any to any port {round}\n{PERMIT}"))
                .expect("written");
            product.forget();
            product.signal(Signal::HUP);
            product.wait_for("read again");
            thread::sleep(Duration::from_millis(50));
        }
    });
    let done = product.stop();
    assert_eq!(sent, came, "{:#}", done.summary);
    assert_eq!(count(&done.summary, "/reloads/done"), 5, "{:#}", done.summary);
    assert_eq!(sum(&done.summary, "/dropped"), 0);
}

/// So many that it takes a while to read them.
fn many_rules(product: &Product) {
    let mut generate = crate::support::packetloom();
    generate.args(["generate", "rules", "--rules", "200000", "--format", "native", "-o"]);
    crate::support::succeed(generate.arg(product.at("many")));
    let many = std::fs::read_to_string(product.at("many")).expect("rules");
    std::fs::write(product.at("rules"), format!("{PERMIT}{many}")).expect("written");
}

#[test]
fn packets_do_not_wait_for_rules_to_be_read() {
    let Some(net) = Net::new() else { return };
    for workers in [1, 2] {
        let arguments = format!("--workers {workers}");
        let mut product = Product::inline(&net.product, CHAIN, &[("rules", PERMIT)], &arguments);
        many_rules(&product);
        // Whoever waits for rules to be read does so each time; that a busy machine runs somebody else is another matter.
        let (mut reloads, mut shown) = (0, Vec::new());
        let (sent, came) = meanwhile_timed(&net, true, |gap| {
            let goes_on = |&(loading, gap): &(Duration, Duration)| gap < loading / 3;
            while reloads < 10 && !shown.last().is_some_and(goes_on) {
                product.forget();
                let begin = Instant::now();
                gap.store(0, Ordering::Relaxed);
                product.signal(Signal::HUP);
                product.wait_for("read again");
                shown.push((begin.elapsed(), Duration::from_nanos(gap.load(Ordering::Relaxed))));
                reloads += 1;
            }
            assert!(shown.last().is_some_and(goes_on), "read within, without a packet for: {shown:?}");
        });
        let done = product.stop();
        assert_eq!(sent, came, "{:#}", done.summary);
        assert_eq!(count(&done.summary, "/reloads/done"), reloads, "{:#}", done.summary);
    }
}

/// It is read again once more, since what was read may be older than the signal.
#[test]
fn a_chain_that_is_asked_for_while_it_is_read_is_read_again() {
    let Some(net) = Net::new() else { return };
    let mut product = Product::inline(&net.product, CHAIN, &[("rules", PERMIT)], "");
    // A pipe for rules: whoever has opened it to write knows that they are being read, for as long as it is open.
    let rules = product.at("rules");
    std::fs::remove_file(&rules).expect("removed");
    run("mkfifo", rules.to_str().expect("a path")).expect("made");
    let reader = || {
        let nonblocking = rustix::fs::OFlags::NONBLOCK.bits() as i32;
        let begin = Instant::now();
        loop {
            match OpenOptions::new().write(true).custom_flags(nonblocking).open(&rules) {
                Ok(pipe) => return pipe,
                Err(error) => assert!(begin.elapsed() < Duration::from_secs(60), "nobody reads: {error}"),
            }
            thread::sleep(Duration::from_millis(1));
        }
    };
    product.signal(Signal::HUP);
    let mut pipe = reader();
    for _ in 0..3 {
        product.signal(Signal::HUP);
    }
    pipe.write_all(PERMIT.as_bytes()).expect("read");
    drop(pipe);
    product.wait_for("read again");
    product.forget();
    let mut pipe = reader();
    pipe.write_all(PERMIT.as_bytes()).expect("read");
    drop(pipe);
    product.wait_for("read again");
    // A run does not wait for what it reads.
    product.signal(Signal::HUP);
    let pipe = reader();
    let done = product.stop();
    drop(pipe);
    assert_eq!(count(&done.summary, "/reloads/done"), 2, "{:#}", done.summary);
}

#[test]
fn a_run_may_end_while_packets_come() {
    let Some(net) = Net::new() else { return };
    for (signal, workers) in [(Signal::TERM, 1), (Signal::INT, 3)] {
        let arguments = format!("--workers {workers}");
        let product = Product::inline(&net.product, CHAIN, &[("rules", PERMIT)], &arguments);
        let mut done = None;
        // Where nothing is in between, nothing comes; what was received is in one counter, which is checked.
        meanwhile_timed(&net, false, |_| done = Some(product.stop_by(signal)));
        let done = done.expect("it ended");
        assert!(count(&done.summary, "/received") >= 100);
        assert_eq!(done.summary["stopped"], true);
        assert_eq!(interfaces(&done.summary).map(|of| sum(of, "/not_sent")).sum::<u64>(), 0);
    }
}

/// No packet comes while a device has nothing to do.
#[test]
fn a_run_on_a_device_says_and_does_what_there_is_without_packets() {
    let Some(net) = Net::new() else { return };
    // Few flows: a device that is a core copies them each second.
    let flows = "[flows.few]\nby = \"connection\"\nmax_flows = 10000\n";
    let acl = format!(
        "{flows}[[chain]]\nnf = \"acl\"\nrules = \"rules\"\n[[chain]]\nnf = \"counter\"\nflows = \"few\"\n"
    );
    let conntrack = format!("{flows}[[chain]]\nnf = \"conntrack\"\nflows = \"few\"\n");
    for chain in [&*acl, &*conntrack] {
        let mut product = Product::inline(&net.product, chain, &[("rules", PERMIT)], "--device host");
        product.wait_until_ready(&net);
        ping(&net, SERVER[0], 3).expect("answered");
        net.server.ip("link set s0 down").expect("down");
        product.wait_for("pb: no carrier");
        product.signal(Signal::HUP);
        product.wait_for("read again");
        net.server.ip("link set s0 up").expect("up");
        product.wait_for("pb: the link is up");
        ping(&net, SERVER[0], 3).expect("answered");
        let done = product.stop();
        assert_eq!(count(&done.summary, "/reloads/done"), 1, "{:#}", done.summary);
    }
}

#[test]
fn links_go_and_come_back() {
    BACKENDS.into_iter().for_each(links_of_a_backend_go_and_come_back);
}

fn links_of_a_backend_go_and_come_back(backend: &str) {
    let Some(net) = Net::new() else { return };
    let mut product = Product::inline_by(backend, &net.product, CHAIN, &[("rules", PERMIT)], "");
    ping(&net, SERVER[0], 3).expect("answered");
    // The other end of a link, which shows by its carrier alone.
    net.server.ip("link set s0 down").expect("down");
    product.wait_for("pb: no carrier");
    assert!(!is_answered(&net, SERVER[0]), "nobody is there");
    net.server.ip("link set s0 up").expect("up");
    product.wait_for("pb: the link is up");
    ping(&net, SERVER[0], 3).expect("answered");
    // An interface of its own.
    net.product.ip("link set pa down").expect("down");
    product.wait_for("pa: switched off");
    net.product.ip("link set pa up").expect("up");
    product.wait_for("pa: the link is up");
    ping(&net, SERVER[0], 3).expect("answered");
    // One that goes and comes with the same name.
    product.forget();
    net.product.ip("link del pa").expect("removed");
    product.wait_for("pa: removed");
    net.connect_a().expect("made again");
    product.wait_for("pa: the link is up");
    ping(&net, SERVER[0], 3).expect("answered");
    transfer(&net, SERVER[0], 4 << 20);
    // And with the number that it had.
    product.forget();
    let index = net.product.index("pa");
    net.product.ip(&format!("link set pa netns {}", net.client.name())).expect("moved");
    product.wait_for("pa: removed");
    net.client.ip(&format!("link set pa netns {}", net.product.name())).expect("moved back");
    net.product.ip("link set pa up").expect("up");
    product.wait_for("pa: the link is up");
    assert_eq!(net.product.index("pa"), index);
    ping(&net, SERVER[0], 3).expect("answered");
    let done = product.stop();
    assert_eq!(sum(&done.summary, "/dropped"), 0, "{:#}", done.summary);
}

/// The names of the tables of nft in the product's namespace.
fn tables(net: &Net) -> String {
    let output = net.product.run(|| std::process::Command::new("nft").args(["list", "tables"]).output());
    String::from_utf8(output.expect("nft").stdout).expect("text")
}

fn wait_for_tables(net: &Net, are_right: impl Fn(&str) -> bool) {
    let begin = Instant::now();
    while !are_right(&tables(net)) {
        assert!(begin.elapsed() < Duration::from_secs(60), "{}", tables(net));
        thread::sleep(Duration::from_millis(10));
    }
}

/// Another namespace gives an interface back with the number that it had.
#[test]
fn an_interface_comes_back_with_its_number() {
    BACKENDS.into_iter().for_each(an_interface_of_a_backend_comes_back);
}

fn an_interface_of_a_backend_comes_back(backend: &str) {
    let Some(net) = Net::new() else { return };
    let mut product = Product::inline_by(backend, &net.product, CHAIN, &[("rules", PERMIT)], "");
    let index = || net.product.show("pa").split(':').next().expect("a number").to_owned();
    for round in 0..2 {
        let before = index();
        product.forget();
        net.product.ip(&format!("link set pa netns {}", net.server.name())).expect("moved");
        product.wait_for("pa: removed");
        net.server.ip(&format!("link set pa netns {}", net.product.name())).expect("moved back");
        // The first time it may have got another one, which was free over there; then that is free in both.
        assert!(round == 0 || index() == before);
        // Its settings are those of a new one.
        net.product.set("ipv6/conf/pa/disable_ipv6", "1");
        net.product.ip("link set pa up").expect("up");
        product.wait_for("pa: the link is up");
        ping(&net, SERVER[0], 3).expect("answered");
    }
    product.stop();
}

/// The kernel's own handling stays off where an interface is renamed, and is not touched where another one gets its name.
#[test]
fn a_renamed_interface_stays_in_use() {
    BACKENDS.into_iter().for_each(a_renamed_interface_of_a_backend_stays);
}

fn a_renamed_interface_of_a_backend_stays(backend: &str) {
    let Some(net) = Net::new() else { return };
    net.product.ip("addr add 10.9.0.8/24 dev pa").expect("an address");
    let mut product = Product::inline_by(backend, &net.product, CHAIN, &[("rules", PERMIT)], "");
    let is_used = |name: &str| {
        ping(&net, SERVER[0], 3).expect("answered through the chain");
        assert!(!is_answered(&net, "10.9.0.8"), "the kernel has nothing");
        let guarded = tables(&net);
        assert!(
            guarded.contains(&format!("packetloom-{name}\n")) && guarded.lines().count() == 2,
            "{guarded}"
        );
    };
    is_used("pa");
    net.product.ip("link set pa down").expect("down");
    net.product.ip("link set pa name px").expect("renamed");
    net.product.ip("link set px up").expect("up");
    wait_for_tables(&net, |tables| tables.contains("packetloom-px\n"));
    // The client's kernel notices the carrier a little later.
    let begin = Instant::now();
    while !is_answered(&net, SERVER[0]) {
        assert!(begin.elapsed() < Duration::from_secs(60), "not answered");
    }
    is_used("px");
    // Another one has the name now, and goes again.
    net.product.ip("link add pa type veth peer name pz").expect("another one");
    is_used("px");
    net.product.ip("link del pa").expect("removed");
    is_used("px");
    // Where the one in use goes, the next one of its old name is used.
    product.forget();
    net.product.ip("link del px").expect("removed");
    product.wait_for("pa: removed");
    net.connect_a().expect("made again");
    product.wait_for("pa: the link is up");
    net.product.ip("addr add 10.9.0.8/24 dev pa").expect("an address");
    is_used("pa");
    product.stop();
    assert_eq!(tables(&net), "");
}

#[test]
fn a_run_that_is_killed_leaves_the_kernel_as_it_was() {
    BACKENDS.into_iter().for_each(a_killed_run_of_a_backend_leaves_nothing);
}

fn a_killed_run_of_a_backend_leaves_nothing(backend: &str) {
    let Some(net) = Net::new() else { return };
    run("nft", "--version").expect("nft is installed");
    let product = Product::inline_by(backend, &net.product, CHAIN, &[("rules", PERMIT)], "");
    ping(&net, SERVER[0], 3).expect("answered");
    assert!(["pa", "pb"].iter().all(|name| tables(&net).contains(&format!("packetloom-{name}"))));
    product.kill();
    wait_for_tables(&net, |tables| !tables.contains("packetloom"));
    // The kernel has the packets again.
    net.product.ip("addr add 10.9.0.8/24 dev pa").expect("an address");
    ping(&net, "10.9.0.8", 3).expect("answered by the kernel");
}

/// Idle flows are exported while nothing comes, and what is written can be read meanwhile.
#[test]
fn records_are_there_while_the_run_goes_on() {
    let Some(net) = Net::new() else { return };
    let chain =
        "[[chain]]\nnf = \"meter\"\nmax_flows = 10000\nidle_timeout = \"500ms\"\noutput = \"flows.jsonl\"\n";
    for arguments in ["--workers 2", "--device host"] {
        records_appear(&net, chain, arguments);
    }
    // Behind functions that a device has.
    let acl = format!("[[chain]]\nnf = \"acl\"\nrules = \"rules\"\n{chain}");
    let conntrack = format!(
        "[flows.few]\nby = \"connection\"\nmax_flows = 10000\n[[chain]]\nnf = \"conntrack\"\nflows = \"few\"\n{chain}"
    );
    for chain in [acl, conntrack] {
        records_appear(&net, &chain, "--device host");
    }
}

fn records_appear(net: &Net, chain: &str, arguments: &str) {
    let mut product = Product::inline(&net.product, chain, &[("rules", PERMIT)], arguments);
    product.wait_until_ready(net);
    let before = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
    ping(net, SERVER[0], 4).expect("answered");
    let begin = Instant::now();
    let is_ping = |record: &&serde_json::Value| record["protocolIdentifier"] == 1;
    loop {
        let records = product.records();
        let pings: Vec<_> = records.iter().filter(is_ping).collect();
        for record in &pings {
            assert_eq!(record["flowEndReason"], 1, "{record:#}");
            let start = u128::from(count(record, "/flowStartMilliseconds"));
            assert!(
                (before.as_millis()..before.as_millis() + 600_000).contains(&start),
                "wall time: {record:#}"
            );
        }
        // One record, unless the machine was halted between two of them for longer than a flow may be idle.
        let sum = |key: &str| pings.iter().map(|record| count(record, key)).sum::<u64>();
        let counts = [sum("/packetDeltaCount"), sum("/reversePacketDeltaCount")];
        assert!(counts[0] + counts[1] <= 8, "{pings:#?}");
        if counts[0] + counts[1] == 8 {
            assert!(pings.len() > 1 || counts == [4, 4], "{pings:#?}");
            break;
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "no record");
        thread::sleep(Duration::from_millis(50));
    }
    product.stop();
}
