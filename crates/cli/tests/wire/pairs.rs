//! Several pairs of interfaces, between which one run forwards.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use packetloom_testing::ends::{is_answered, ping};
use packetloom_testing::net::{Net, SERVER, ip};

use crate::link::End;
use crate::product::{BACKENDS, Product, count, interfaces, packets as packets_of, sum};
use crate::support::packets::packet;
use crate::support::{packetloom, run, stderr};

/// Port 81 is denied to those who come by pc, port 82 to those who leave by pb.
const RULES: &str = "\
deny udp from any to any port 81 in pc
deny udp from any to any port 82 out pb
deny udp from any to any port 83 in pa out pd
permit any from any to any
";
const CHAIN: &str = "\
[[chain]]
nf = \"acl\"
rules = \"rules\"
[[chain]]
nf = \"meter\"
output = \"flows.jsonl\"
";
const SECOND: &str = "10.8.0.2";
/// Whoever waits longer than this has lost something.
const PATIENCE: Duration = Duration::from_secs(60);

/// Makes another pair beside pa and pb: c1 at the client, pc, pd, and s1 at the server.
fn add_pair(net: &Net) {
    let ends = [(&net.client, "c1", "pc", "10.8.0.1"), (&net.server, "s1", "pd", SECOND)];
    for (end, name, port, address) in ends {
        let (namespace, product) = (end.name(), net.product.name());
        ip(&format!("link add {name} netns {namespace} type veth peer name {port} netns {product}"))
            .expect("made");
        net.product.set(&format!("ipv6/conf/{port}/disable_ipv6"), "1");
        end.ip(&format!("addr add {address}/24 dev {name}")).expect("an address");
        end.ip(&format!("link set {name} up")).expect("up");
        net.product.ip(&format!("link set {port} up")).expect("up");
    }
}

fn start(net: &Net, backend: &str, arguments: &str) -> Product {
    let chain = format!(
        "[source]\ninterface = [\"pa\", \"pb\", \"pc\", \"pd\"]\nmode = \"inline\"\nbackend = \"{backend}\"\n{CHAIN}"
    );
    let files = [("chain.toml", &*chain), ("rules", RULES)];
    Product::start(&net.product, &files, &format!("run chain.toml {arguments}"))
}

/// Datagrams to a port, told apart by a number.
fn frames(port: u16, number: usize) -> Vec<Vec<u8>> {
    let of = |at: usize| {
        packet(&format!("0 udp 10.0.0.1:9 > 10.0.0.2:{port} payload {}", number * 100 + at)).bytes
    };
    (0..50).map(of).collect()
}

/// The ends of the two pairs.
fn ends(net: &Net) -> [End; 4] {
    let ends = [(&net.client, "c0"), (&net.server, "s0"), (&net.client, "c1"), (&net.server, "s1")];
    ends.map(|(namespace, interface)| End::open(namespace, interface))
}

/// Sends frames from one end, of which so many are to come at the other one of its pair; what came at each, but for what kernels ask each other
/// (ARP): they do at any time, once they have talked.
fn send(ends: &mut [End; 4], from: usize, frames: &[Vec<u8>], come: usize) -> [Vec<Vec<u8>>; 4] {
    ends[from].send(frames);
    let is_arp = |frame: &Vec<u8>| frame.get(12..14) == Some(&[8, 6]);
    let (mut first, begin) = (Vec::new(), Instant::now());
    while first.len() < come && begin.elapsed() < PATIENCE {
        if !ends[from ^ 1].take(&mut first) {
            thread::sleep(Duration::from_millis(1));
        }
        first.retain(|frame| !is_arp(frame));
    }
    // What is not to come is seen as well.
    let mut at = 0;
    ends.each_mut().map(|end| {
        let mut came = if at == from ^ 1 { std::mem::take(&mut first) } else { Vec::new() };
        end.take_all(&mut came);
        came.retain(|frame| !is_arp(frame));
        at += 1;
        came
    })
}

#[test]
fn frames_leave_by_the_other_interface_of_their_pair_only() {
    for backend in BACKENDS {
        for workers in [1, 3] {
            frames_of_a_backend_leave_by_their_pair(backend, workers);
        }
    }
}

fn frames_of_a_backend_leave_by_their_pair(backend: &str, workers: usize) {
    let Some(net) = Net::new() else { return };
    add_pair(&net);
    let mut ends = ends(&net);
    let mut product = start(&net, backend, &format!("--workers {workers}"));
    assert!(product.said.iter().any(|line| line.contains("receiving from pa and pb, pc and pd, inline")));
    let mut sent = 0;
    for (port, denied) in [(80, &[][..]), (81, &[2]), (82, &[0]), (83, &[])] {
        for from in 0..4 {
            let frames = frames(port, from);
            let passed = if denied.contains(&from) { &[] } else { &frames[..] };
            let came = send(&mut ends, from, &frames, passed.len());
            sent += frames.len() as u64;
            product.wait_until_received(sent);
            for (at, came) in came.into_iter().enumerate() {
                let expected = if at == from ^ 1 { passed } else { &[] };
                // What an end sends it sees as well.
                assert!(
                    at == from || came == expected,
                    "{backend}, {workers}: from {from} to {port}: {} at {at}",
                    came.len()
                );
            }
        }
    }
    let done = product.stop();
    for (number, interface) in interfaces(&done.summary).enumerate() {
        assert_eq!(interface["name"], ["pa", "pb", "pc", "pd"][number]);
        let denied = if [1, 3].contains(&number) { 50 } else { 0 };
        let counts = [count(interface, "/received"), count(interface, "/sent"), sum(interface, "/not_sent")];
        assert_eq!(counts, [200, 200 - denied, 0], "{interface:#}");
    }
    // One flow of all pairs, to each port; both ways look the same.
    assert_eq!((done.records.len(), packets_of(&done.records)), (4, 700), "{:#?}", done.records);
}

#[test]
fn a_pair_goes_on_without_another_one() {
    for backend in BACKENDS {
        let Some(net) = Net::new() else { return };
        add_pair(&net);
        let mut product = start(&net, backend, "--workers 2 --on-exit open");
        let second = |net: &Net| net.client.exec(&format!("ping -q -c 1 -W 1 {SECOND}")).is_ok();
        let wait_for_second = || {
            let begin = Instant::now();
            while !second(&net) {
                assert!(begin.elapsed() < PATIENCE, "not answered");
            }
        };
        ping(&net, SERVER[0], 3).expect("answered");
        wait_for_second();
        net.server.ip("link set s1 down").expect("down");
        product.wait_for("pd: no carrier");
        assert!(!second(&net));
        ping(&net, SERVER[0], 20).expect("answered");
        net.product.ip("link del pa").expect("removed");
        product.wait_for("pa: removed");
        net.server.ip("link set s1 up").expect("up");
        product.wait_for("pd: the link is up");
        wait_for_second();
        assert!(!is_answered(&net, SERVER[0]));
        net.connect_a().expect("made again");
        product.wait_for("pa and pb: the bridge pl-pa is below them again");
        ping(&net, SERVER[0], 3).expect("answered");
        wait_for_second();
        // The kernel keeps them apart as well. Its packet filters, where they look at what bridges forward, drop packets without checksums.
        product.kill();
        let filters = Path::new("/proc/sys/net/bridge/bridge-nf-call-iptables");
        if filters.exists() {
            net.product.set("bridge/bridge-nf-call-iptables", "0");
        }
        ping(&net, SERVER[0], 3).expect("answered by the kernel");
        wait_for_second();
        let mut ends = ends(&net);
        for from in 0..4 {
            let frames = frames(80, from);
            for (at, came) in send(&mut ends, from, &frames, frames.len()).into_iter().enumerate() {
                let expected = if at == from ^ 1 { &frames[..] } else { &[] };
                assert!(at == from || came == expected, "{backend}: from {from}: {} at {at}", came.len());
            }
        }
        // A closed run leaves nothing open of pairs that there were before.
        let mut product = start(&net, backend, "-i pa -i pc --inline");
        for bridge in ["pl-pa", "pl-pc"] {
            product.wait_for(&format!(
                "pa and pc: removed the bridge {bridge}, which a run with on_exit \"open\" has left"
            ));
        }
        product.kill();
        for from in [0, 2] {
            let came = send(&mut ends, from, &frames(80, from), 0);
            assert!((0..4).all(|at| at == from || came[at].is_empty()), "{backend}: from {from}");
        }
    }
}

#[test]
fn interfaces_without_another_one_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("rules"), RULES).expect("written");
    std::fs::write(folder.path().join("chain.toml"), CHAIN).expect("written");
    let expected = "expected two, or several pairs: what passes from the first leaves by the second, from the third by the fourth";
    for (names, found) in [(&["a"][..], "1 interface"), (&["a", "b", "c"], "3 interfaces")] {
        let mut command = packetloom();
        command.current_dir(folder.path()).args(["run", "chain.toml", "--inline"]);
        command.args(names.iter().flat_map(|name| ["-i", name]));
        let output = run(&mut command);
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(text.contains(&format!("-i: mode \"inline\" with {found}; {expected}")), "{text}");
    }
    let many: Vec<_> = (0..66).map(|number| format!("eth{number}")).collect();
    std::fs::write(
        folder.path().join("chain.toml"),
        format!("[source]\ninterface = {many:?}\nmode = \"inline\"\n{CHAIN}"),
    )
    .expect("written");
    let output = run(packetloom().current_dir(folder.path()).args(["check", "chain.toml"]));
    let text = stderr(&output);
    assert!(
        output.status.code() == Some(78) && text.contains("66 interfaces; expected 1 to 64 of them"),
        "{text}"
    );
}
