//! What becomes of packets between two interfaces when the run has ended, in whatever way.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::net::UdpSocket;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use packetloom_testing::ends::{echo, is_answered, ping, transfer};
use packetloom_testing::net::{Net, SERVER};
use rustix::net::sockopt::set_socket_recv_buffer_size_force;
use rustix::process::Signal;

use crate::link::Link;
use crate::product::{BACKENDS, Product, count};
use crate::support::{self, packetloom};

const CHAIN: &str = "[[chain]]\nnf = \"acl\"\nrules = \"rules\"\n";
/// Port 81 is denied.
const RULES: &str = "deny udp from any to any port 81\npermit any from any to any\n";
const BRIDGE: &str = "pl-pa";
/// What nobody waits for longer, on however busy a machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a gap may be.
const GAP: Duration = Duration::from_millis(100);
const RETURN: Duration = Duration::from_secs(1);
/// A busy machine runs somebody else meanwhile: of so many rounds one has to be in time.
const ROUNDS: u32 = 10;

/// Numbered datagrams from the client to the server.
#[derive(Default)]
struct Stream {
    /// When each was sent.
    sent: Vec<Instant>,
    /// How often each came.
    came: BTreeMap<u32, u32>,
}

impl Stream {
    /// Sends them while something is done, which is told whether something that was sent from now on has come; then until the last ones come.
    fn during(net: &Net, something: impl FnOnce(&dyn Fn())) -> Self {
        // While a kernel asks for an address it keeps few datagrams for it.
        let mac = net.server.mac("s0").map(|byte| format!("{byte:02x}")).join(":");
        net.client.ip(&format!("neigh replace {} lladdr {mac} dev c0", SERVER[0])).expect("known");
        let server = net.server.run(|| {
            let server = UdpSocket::bind("0.0.0.0:4000").expect("bound");
            set_socket_recv_buffer_size_force(&server, 32 << 20).expect("set");
            server
        });
        server.set_read_timeout(Some(Duration::from_millis(20))).expect("set");
        let client = net.client.run(|| UdpSocket::bind("0.0.0.0:0").expect("bound"));
        let (is_done, is_over) = (AtomicBool::new(false), AtomicBool::new(false));
        let stream = std::sync::Mutex::new(Self::default());
        let lock = || stream.lock().expect("no panic");
        thread::scope(|scope| {
            let sender = scope.spawn(|| {
                while !is_done.load(Ordering::Relaxed) {
                    let number = lock().sent.len() as u32;
                    // Noted before: nothing comes before it was sent.
                    lock().sent.push(Instant::now());
                    client.send_to(&number.to_be_bytes(), (SERVER[0], 4000)).expect("sent");
                    thread::sleep(Duration::from_micros(500));
                }
            });
            scope.spawn(|| {
                let mut number = [0; 4];
                while !is_over.load(Ordering::Relaxed) {
                    if server.recv(&mut number).is_ok() {
                        *lock().came.entry(u32::from_be_bytes(number)).or_default() += 1;
                    }
                }
            });
            // However this ends, so do the threads.
            let _over = [Set(&is_over), Set(&is_done)];
            let wait = || {
                let (from, begin) = (lock().sent.len() as u32, Instant::now());
                while lock().came.range(from..).count() < 100 {
                    assert!(begin.elapsed() < PATIENCE, "nothing comes");
                    thread::sleep(Duration::from_millis(2));
                }
            };
            wait();
            something(&wait);
            wait();
            is_done.store(true, Ordering::Relaxed);
            sender.join().expect("no panic");
            // Time for what comes twice.
            thread::sleep(Duration::from_millis(100));
        });
        let stream = stream.into_inner().expect("no panic");
        assert!(stream.came.values().all(|&times| times == 1), "a datagram came twice");
        stream
    }

    /// The longest time of which nothing that was sent came.
    fn gap(&self) -> Duration {
        let (mut gap, mut since) = (Duration::ZERO, None);
        for (number, sent) in (0..).zip(&self.sent) {
            if self.came.contains_key(&number) {
                gap = gap.max(since.take().map_or(Duration::ZERO, |since| *sent - since));
            } else {
                since.get_or_insert(*sent);
            }
        }
        gap
    }
}

/// Sets a flag when it goes.
struct Set<'a>(&'a AtomicBool);

impl Drop for Set<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Datagrams to the port that is denied.
struct Denied {
    server: UdpSocket,
    client: UdpSocket,
    sent: Cell<u32>,
}

impl Denied {
    fn new(net: &Net) -> Self {
        let server = net.server.run(|| UdpSocket::bind("0.0.0.0:81").expect("bound"));
        server.set_read_timeout(Some(Duration::from_millis(300))).expect("set");
        let client = net.client.run(|| UdpSocket::bind("0.0.0.0:0").expect("bound"));
        Self { server, client, sent: Cell::new(0) }
    }

    /// Whether one that is sent now comes.
    fn comes(&self) -> bool {
        self.sent.set(self.sent.get() + 1);
        let number = self.sent.get().to_be_bytes();
        self.client.send_to(&number, (SERVER[0], 81)).expect("sent");
        let mut came = [0; 4];
        // Some of before may come late.
        while self.server.recv(&mut came).is_ok() {
            if came == number {
                return true;
            }
        }
        false
    }

    /// Waits until one comes.
    fn wait(&self) {
        let begin = Instant::now();
        while !self.comes() {
            assert!(begin.elapsed() < PATIENCE, "by the kernel everything passes");
        }
    }
}

fn start(net: &Net, backend: &str, arguments: &str) -> Product {
    Product::inline_by(backend, &net.product, CHAIN, &[("rules", RULES)], arguments)
}

/// Runs the command where it is to fail at once.
fn refused(net: &Net, folder: &Path, arguments: &str) -> Output {
    let mut command = packetloom();
    command.current_dir(folder).args(arguments.split_whitespace());
    net.product.run(|| command.output().expect("run"))
}

/// What runs have left is in no way of another one.
fn has_bridge(net: &Net) -> bool {
    net.product.exec(&format!("ip link show {BRIDGE}")).is_ok()
}

#[test]
fn the_kernel_takes_over_where_that_is_wanted() {
    BACKENDS.into_iter().for_each(the_kernel_takes_over_from_a_backend);
}

fn the_kernel_takes_over_from_a_backend(backend: &str) {
    let Some(net) = Net::new() else { return };
    let denied = Denied::new(&net);
    let mut product = start(&net, backend, "--on-exit open");
    let settings = net.product.show(BRIDGE);
    for setting in [
        "NOARP",
        "UP",
        "mtu 1500",
        "stp_state 0",
        "mcast_snooping 0",
        "addrgenmode none",
        "alias packetloom: ",
    ] {
        assert!(settings.contains(setting), "{setting}: {settings}");
    }
    assert!(["pa", "pb"].iter().all(|port| net.product.show(port).contains(&format!("master {BRIDGE}"))));
    ping(&net, SERVER[0], 3).expect("answered");
    // For each way to end, and for the start after it.
    let mut shortest = [Duration::MAX; 4];
    for round in 0.. {
        assert!(!denied.comes());
        let mut gaps = [Duration::MAX; 4];
        for (place, signal) in [(0, Signal::KILL), (2, Signal::TERM)] {
            let mut ending = Some(product);
            gaps[place] = Stream::during(&net, |wait| {
                let product = ending.take().expect("one");
                match signal {
                    Signal::KILL => product.kill(),
                    signal => drop(product.stop_by(signal)),
                }
                wait();
            })
            .gap();
            denied.wait();
            let mut next = None;
            gaps[place + 1] =
                Stream::during(&net, |_| next = Some(start(&net, backend, "--on-exit open"))).gap();
            product = next.expect("one");
            assert!(!denied.comes());
        }
        for (shortest, gap) in shortest.iter_mut().zip(gaps) {
            *shortest = gap.min(*shortest);
        }
        if shortest.iter().all(|&gap| gap <= GAP) {
            eprintln!("{backend}, round {round}: {shortest:?}");
            break;
        }
        assert!(round < ROUNDS, "{backend}: {shortest:?}");
    }
    product.kill();
    // Whoever may be asked for is, and frames are as long as before.
    for address in SERVER {
        ping(&net, address, 2).expect("answered");
        echo(&net, address, &[0, 1_472, 9_000]).expect("echoed");
        transfer(&net, address, 4 << 20);
    }
    let addresses = net.product.run(|| Command::new("ip").args(["addr", "show", BRIDGE]).output());
    let addresses = String::from_utf8(addresses.expect("ip").stdout).expect("text");
    assert!(!addresses.contains("inet"), "{addresses}");
    // Closed again: what was left is removed.
    let mut product = start(&net, backend, "");
    product.wait_for("pa and pb: removed the bridge pl-pa, which a run with on_exit \"open\" has left");
    assert!(!has_bridge(&net));
    ping(&net, SERVER[0], 2).expect("answered");
    product.kill();
    assert!(!is_answered(&net, SERVER[0]), "closed");
}

/// Answers to what was asked before a run was killed pass after it.
#[test]
fn what_is_closed_stays_so_until_there_is_a_run_again() {
    for backend in BACKENDS {
        let Some(net) = Net::new() else { return };
        let folder = tempfile::tempdir().expect("a folder");
        let state = folder.path().join("state");
        let rules = "permit any from any to any state established\npermit any from any to any in pa\ndeny any from any to any\n";
        let start = |arguments: &str| {
            let state = state.display();
            let arguments = format!("--save-state {state} --save-every 50ms {arguments}");
            Product::inline_by(backend, &net.product, CHAIN, &[("rules", rules)], &arguments)
        };
        let mut shortest = Duration::MAX;
        for round in 0.. {
            let product = start("");
            let server = net.server.run(|| UdpSocket::bind("0.0.0.0:4001").expect("bound"));
            let client = net.client.run(|| UdpSocket::bind("0.0.0.0:0").expect("bound"));
            for socket in [&server, &client] {
                socket.set_read_timeout(Some(Duration::from_millis(1))).expect("set");
            }
            client.send_to(b"question", (SERVER[0], 4001)).expect("sent");
            let begin = Instant::now();
            let from = loop {
                match server.recv_from(&mut [0; 99]) {
                    Ok((_, from)) => break from,
                    Err(_) => assert!(begin.elapsed() < PATIENCE, "no question"),
                }
            };
            // Saved after that.
            let (asked, begin) = (std::time::SystemTime::now(), Instant::now());
            let is_saved =
                || state.metadata().and_then(|file| file.modified()).is_ok_and(|time| time > asked);
            while !is_saved() {
                assert!(begin.elapsed() < PATIENCE, "nothing is saved");
                // There is something to save where packets come.
                client.send_to(b"more", (SERVER[0], 4001)).expect("sent");
                thread::sleep(Duration::from_millis(5));
            }
            product.kill();
            assert!(!is_answered(&net, SERVER[0]), "closed");
            let begin = Instant::now();
            let product = start(&format!("--restore-state {}", state.display()));
            let is_come = || client.recv(&mut [0; 99]).is_ok();
            while !is_come() {
                assert!(begin.elapsed() < PATIENCE, "no answer");
                server.send_to(b"answer", from).expect("sent");
            }
            shortest = shortest.min(begin.elapsed());
            // Whom nobody has asked has nothing to say.
            let stranger = net.server.run(|| UdpSocket::bind("0.0.0.0:4002").expect("bound"));
            let before = product.stop();
            let product = start("");
            stranger.send_to(b"hello", from).expect("sent");
            server.send_to(b"answer", from).expect("sent");
            let done = product.stop();
            assert!(count(&before.summary, "/functions/0/tracked/established") > 0, "{:#}", before.summary);
            assert_eq!(count(&done.summary, "/functions/0/tracked/established"), 0, "{:#}", done.summary);
            if shortest <= RETURN {
                eprintln!("{backend}, round {round}: {shortest:?}");
                break;
            }
            assert!(round < ROUNDS, "{backend}: {shortest:?}");
        }
    }
}

/// An interface that was removed, or taken out of the bridge, or the bridge itself.
#[test]
fn the_bridge_is_mended() {
    for backend in BACKENDS {
        let Some(net) = Net::new() else { return };
        let denied = Denied::new(&net);
        let mut product = start(&net, backend, "--on-exit open");
        let again = "pa and pb: the bridge pl-pa is below them again";
        let is_mended = |product: &mut Product| {
            product.wait_for(again);
            product.forget();
            assert!(
                ["pa", "pb"].iter().all(|port| net.product.show(port).contains(&format!("master {BRIDGE}")))
            );
            assert!(!denied.comes());
            ping(&net, SERVER[0], 2).expect("answered");
        };
        net.product.ip("link set pb nomaster").expect("taken out");
        is_mended(&mut product);
        net.product.ip(&format!("link del {BRIDGE}")).expect("removed");
        is_mended(&mut product);
        net.product.ip(&format!("link set {BRIDGE} down")).expect("switched off");
        is_mended(&mut product);
        net.product.ip("link del pa").expect("removed");
        product.wait_for("pa: removed");
        net.connect_a().expect("made again");
        is_mended(&mut product);
        // One that is renamed stays where it is.
        net.product.ip("link set pa down").expect("down");
        net.product.ip("link set pa name px").expect("renamed");
        net.product.ip("link set px up").expect("up");
        product.wait_for("pa: the link is up");
        product.kill();
        ping(&net, SERVER[0], 2).expect("answered by the kernel");
        denied.wait();
    }
}

/// What is no business of a bridge: frames of its own protocols, tags, a host that has moved to the other side.
#[test]
fn frames_of_all_kinds_pass_by_the_bridge() {
    let Some(net) = Net::new() else { return };
    start(&net, BACKENDS[0], "--on-exit open").kill();
    let mut link = Link::new(&net);
    let frame = |to: [u8; 6], from: [u8; 6], rest: &[u8]| {
        let mut bytes = [&to[..], &from, rest].concat();
        bytes.resize(60, 0);
        bytes
    };
    let group = |last| [0x01, 0x80, 0xc2, 0, 0, last];
    let (host, other) = ([2, 0, 0, 0, 0, 9], [2, 0, 0, 0, 0, 8]);
    let there = [
        frame(group(0x0), host, &[0, 39, 0x42, 0x42, 3]),
        frame(group(0x2), host, &[0x88, 0x09, 1]),
        frame(group(0x3), host, &[0x88, 0x8e, 1]),
        frame(group(0xe), host, &[0x88, 0xcc, 2, 7]),
        frame([0xff; 6], host, &[0x81, 0, 0, 5, 0x08, 0x06, 0, 1]),
        frame(other, host, &[0x88, 0xa8, 0, 7, 0x81, 0, 0, 5, 0x12, 0x34]),
        // To the host from its own side: it was seen there before.
        frame(host, other, &[0x12, 0x34]),
    ];
    let back = [frame(other, host, &[0x12, 0x34]), frame(host, other, &[0x12, 0x35])];
    let [mut came, came_back] = link.exchange(&there, &back);
    // One that pauses the link stays on it.
    link.client.send(&[frame(group(0x1), host, &[0x88, 0x08, 0, 1]), there[0].clone()]);
    let begin = Instant::now();
    while came.len() <= there.len() && begin.elapsed() < PATIENCE {
        link.server.take_all(&mut came);
    }
    assert_eq!(came, [&there[..], &there[..1]].concat());
    assert_eq!(came_back, back);
}

/// A bridge that somebody else has made.
#[test]
fn a_bridge_that_is_there_is_used_and_left() {
    let Some(net) = Net::new() else { return };
    let denied = Denied::new(&net);
    let ip = |words: &str| net.product.ip(words).expect(words);
    ip("link add br7 type bridge");
    ip("link set pa master br7");
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("chain.toml"), CHAIN).expect("written");
    std::fs::write(folder.path().join("rules"), RULES).expect("written");
    let run = "run chain.toml -i pa -i pb --inline --on-exit";
    let fails = |on_exit: &str, expected: &str| {
        let output = refused(&net, folder.path(), &format!("{run} {on_exit}"));
        let text = support::stderr(&output);
        assert!(output.status.code() == Some(1) && text.contains(expected), "{text}");
    };
    fails(
        "open",
        "pa and pb: pa is a port of br7; expected that both are ports of one bridge, or neither of anything",
    );
    ip("link set pb master br7");
    fails(
        "closed",
        "pa and pb: both are ports of the bridge br7, which would forward when this process ends; expected on_exit \"open\"",
    );
    let mut product = start(&net, BACKENDS[0], "--on-exit open");
    product.wait_for(
        "the bridge br7, whose ports they are, is switched off; nothing passes when this process ends",
    );
    ip("link set br7 up");
    ping(&net, SERVER[0], 2).expect("answered");
    assert!(!denied.comes() && !has_bridge(&net));
    product.kill();
    ping(&net, SERVER[0], 2).expect("answered by the kernel");
    denied.wait();
    // What is forwarded by the kernel alone is not a pair's.
    ip("link del br7");
    ip("link add br7 type bridge");
    ip("link add br8 type bridge");
    ip("link set pa master br7");
    ip("link set pb master br8");
    let product = start(&net, BACKENDS[0], "");
    ping(&net, SERVER[0], 2).expect("answered");
    product.stop();
    assert!(!is_answered(&net, SERVER[0]));
}

#[test]
fn what_does_not_go_together_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    std::fs::write(at("rules"), RULES).expect("written");
    let check = |source: &str, arguments: &str| {
        std::fs::write(at("chain.toml"), format!("{source}\n{CHAIN}")).expect("written");
        let mut command = packetloom();
        command.current_dir(folder.path()).args(arguments.split_whitespace());
        let output = support::run(&mut command);
        (output.status.code(), support::stderr(&output))
    };
    let source = "[source]\ninterface = [\"a\", \"b\"]\n";
    for (lines, expected) in [
        ("on_exit = \"open\"", "on_exit without mode = \"inline\""),
        ("mode = \"monitor\"\non_exit = \"closed\"", "on_exit without mode = \"inline\""),
        ("mode = \"inline\"\non_exit = \"ajar\"", "chain.toml:4: "),
    ] {
        let (code, text) = check(&format!("{source}{lines}"), "check chain.toml");
        assert!(code == Some(78) && text.contains(expected), "{text}");
    }
    for arguments in ["-r x.pcap --on-exit open", "-i a --on-exit open", "-i a -i b --on-exit closed"] {
        let (code, text) = check("", &format!("run chain.toml {arguments}"));
        assert!(code == Some(2) && text.contains("--on-exit for packets that do not pass inline"), "{text}");
    }
}
