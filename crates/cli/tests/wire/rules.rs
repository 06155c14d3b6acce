//! Runs between interfaces whose rules change, and whose flows are listed and removed, while connections go on.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use packetloom_testing::net::{Net, SERVER};
use serde_json::Value;

use crate::product::{Product, count};
use crate::support::{packetloom, run, stderr, succeed};

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(120);
/// So long nobody answers who should not.
const SILENCE: Duration = Duration::from_millis(400);

const CHAIN: &str = "[[chain]]\nnf = \"conntrack\"\n[[chain]]\nnf = \"acl\"\nrules = \"rules\"\n[[chain]]\nnf = \"meter\"\noutput = \"flows.jsonl\"\n";

/// A connection over which a client asks and a server answers.
struct Talk {
    client: TcpStream,
    server: TcpStream,
}

impl Talk {
    fn new(net: &Net, port: u16) -> Self {
        let listener = net.server.run(|| TcpListener::bind(("0.0.0.0", port)).expect("bound"));
        let client = net.client.run(|| TcpStream::connect((SERVER[0], port)).expect("connected"));
        let (server, _) = listener.accept().expect("a connection");
        for stream in [&client, &server] {
            stream.set_read_timeout(Some(PATIENCE)).expect("set");
            stream.set_nodelay(true).expect("set");
        }
        Self { client, server }
    }

    /// A question and its answer.
    fn turn(&mut self, number: u64) {
        let mut got = [0; 8];
        self.client.write_all(&number.to_be_bytes()).expect("the connection is there");
        self.server.read_exact(&mut got).expect("it arrives");
        self.server.write_all(&got).expect("the connection is there");
        self.client.read_exact(&mut got).expect("it is answered");
        assert_eq!(u64::from_be_bytes(got), number);
    }
}

fn control(product: &Product, words: &[&str]) -> String {
    succeed(packetloom().arg("control").arg(product.at("run.sock")).args(words))
}

/// Waits until something holds.
fn until(mut holds: impl FnMut() -> bool, what: &str) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < PATIENCE, "{what}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// Sets a flag when it goes.
struct Set<'a>(&'a AtomicBool);

impl Drop for Set<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Across transactions and reloads, a connection that is permitted goes on, and one that is denied stays denied.
#[test]
fn permitted_connections_go_on_while_rules_change() {
    let Some(net) = Net::new() else { return };
    let others: String = (0..2_000)
        .map(|port| format!("deny tcp from 10.200.0.0/16 to any port {}\n", 10_000 + port))
        .collect();
    let rules = format!(
        "permit tcp from any to any port 7000 id there\npermit tcp from any port 7000 to any id back\n{others}"
    );
    for workers in [1, 3] {
        let arguments = format!("--workers {workers} --control run.sock");
        let product = Product::inline(&net.product, CHAIN, &[("rules", &rules)], &arguments);
        let mut talk = Talk::new(&net, 7_000);
        let denied = net.server.run(|| TcpListener::bind("0.0.0.0:7001").expect("bound"));
        let address: SocketAddr = (SERVER[0].parse::<std::net::IpAddr>().expect("an address"), 7_001).into();
        let (turns, tries, is_over) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
        thread::scope(|scope| {
            scope.spawn(|| {
                let _over = Set(&is_over);
                while !is_over.load(Ordering::Relaxed) {
                    talk.turn(turns.fetch_add(1, Ordering::Relaxed));
                }
            });
            scope.spawn(|| {
                let _over = Set(&is_over);
                while !is_over.load(Ordering::Relaxed) {
                    let connected =
                        net.client.run(|| TcpStream::connect_timeout(&address, Duration::from_millis(50)));
                    assert!(connected.is_err(), "{address}: what was denied is connected");
                    tries.fetch_add(1, Ordering::Relaxed);
                }
            });
            let _over = Set(&is_over);
            for round in 0..20 {
                let mut statements = format!("add first deny udp from 10.201.0.{round} to any id r{round}\n");
                if round % 7 != 0 {
                    statements += &format!(
                        "delete r{}\nreplace @{} deny tcp from any to any port 9\n",
                        round - 1,
                        10 + round
                    );
                }
                std::fs::write(product.at("statements"), &statements).expect("written");
                control(&product, &["change", product.at("statements").to_str().expect("a path")]);
                // Reloads forget the rules that were added.
                if round % 7 == 6 {
                    control(&product, &["reload"]);
                }
                let (turn, tried) = (turns.load(Ordering::Relaxed), tries.load(Ordering::Relaxed));
                let goes_on =
                    || turns.load(Ordering::Relaxed) > turn + 3 && tries.load(Ordering::Relaxed) > tried;
                until(|| goes_on() || is_over.load(Ordering::Relaxed), "the connection goes on");
                assert!(!is_over.load(Ordering::Relaxed), "round {round}");
            }
            control(&product, &["reload"]);
        });
        // Now it is denied itself; then it goes on as if nothing had been.
        let deny = "add first deny tcp from any to any port 7000 id stop";
        control(&product, &["change", "-e", deny, "--function", "acl"]);
        talk.client.write_all(&7u64.to_be_bytes()).expect("to the kernel");
        talk.server.set_read_timeout(Some(SILENCE)).expect("set");
        talk.server.read_exact(&mut [0; 8]).expect_err("denied");
        control(&product, &["change", "-e", "delete stop"]);
        talk.server.set_read_timeout(Some(PATIENCE)).expect("set");
        talk.server.read_exact(&mut [0; 8]).expect("sent again");
        talk.turn(8);
        drop(denied);
        let done = product.stop();
        assert_eq!(count(&done.summary, "/rule_changes"), 22, "{:#}", done.summary);
        assert_eq!(count(&done.summary, "/reloads/done"), 3);
        let acl = &done.summary["functions"][1];
        // Packets that it denied are in its counters, those of rules that are gone among them.
        assert_eq!(count(acl, "/default_packets"), count(&done.summary, "/dropped/acl_default"));
        assert!(count(acl, "/default_packets") > tries.into_inner() / 2, "{acl:#}");
        assert_eq!(count(acl, "/deleted/packets"), count(&done.summary, "/dropped/acl_rule"), "{acl:#}");
        assert!(count(acl, "/deleted/packets") > 0, "those that were denied for a while: {acl:#}");
        assert_eq!(done.summary["replaced"], serde_json::json!([]), "no reload leaves anything behind");
    }
}

/// Flows of interfaces are listed, and removed: a connection that the run has forgotten is one that it does not know.
#[test]
fn flows_of_interfaces_are_listed_and_removed() {
    let Some(net) = Net::new() else { return };
    let rules = "permit any from any to any\n";
    for workers in [1, 3] {
        let arguments = format!("--workers {workers} --control run.sock");
        let product = Product::inline(&net.product, CHAIN, &[("rules", rules)], &arguments);
        let mut talk = Talk::new(&net, 7_002);
        talk.turn(1);
        let listed = |words: &[&str]| -> Value {
            let words = [words, &["--json", "-f", "tcp port 7002"]].concat();
            serde_json::from_str(&control(&product, &words)).expect("JSON")
        };
        let connections = listed(&["connections", "--state", "established"]);
        let flow = &connections["flows"][0];
        assert_eq!(
            (&connections["matching"], &flow["state"]),
            (&1.into(), &"established".into()),
            "{connections}"
        );
        let name = flow["flow"].as_str().expect("a flow").to_owned();
        let client = talk.client.local_addr().expect("an address");
        assert_eq!(name, format!("tcp {client} {}:7002", SERVER[0]));
        // Both sides' packets, by the meter, with times of the wall.
        let mut flows = listed(&["flows", "--function", "meter"]);
        until(
            || {
                flows = listed(&["flows", "--function", "meter"]);
                flows["flows"][0]["packets"].as_u64() >= Some(6)
            },
            "a handshake, a question and its answer",
        );
        let flow = &flows["flows"][0];
        let now =
            std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("later").as_nanos();
        let first = u128::from(flow["first"].as_u64().expect("a time"));
        assert!(first < now && now - first < PATIENCE.as_nanos(), "{flow}");
        let of_none = ["remove", "--function", "conntrack", "--flow", "tcp 10.99.0.1:1 10.99.0.2:2"];
        assert!(control(&product, &of_none).ends_with("flows removed: 0\n"));
        talk.turn(2);
        let said = control(&product, &["remove", "--function", "conntrack", "--flow", &name]);
        assert_eq!(said, "function 0, conntrack: flows removed: 1\n");
        talk.client.write_all(&3u64.to_be_bytes()).expect("to the kernel");
        talk.server.set_read_timeout(Some(SILENCE)).expect("set");
        talk.server.read_exact(&mut [0; 8]).expect_err("nobody knows the connection");
        // Its record ends at once.
        let said = control(&product, &["remove", "--function", "meter", "-f", "tcp port 7002"]);
        assert_eq!(said, "function 2, meter: flows removed: 1\n");
        let output = run(packetloom().arg("control").arg(product.at("run.sock")).args([
            "remove",
            "--function",
            "acl",
            "--all",
        ]));
        assert!(
            stderr(&output).contains("function \"acl\" is none of the chain that keeps state"),
            "{}",
            stderr(&output)
        );
        let done = product.stop();
        assert!(count(&done.summary, "/dropped/invalid_connection") > 0, "{:#}", done.summary);
        let ended: Vec<_> = done
            .records
            .iter()
            .filter(|record| record["flowEndReason"] == 4 && record["destinationTransportPort"] == 7_002)
            .collect();
        assert_eq!(ended.len(), 1, "{:#?}", done.records);
    }
}
