//! Rewrites of a chain's functions: later functions see them, and so does who reads what passed, however the chain is run.

#![allow(missing_docs)]

mod support;

use packetloom_nf::oracle::OraclePacket;
use packetloom_nf::{Form, Function, FunctionSpec, Oracle, Report, Standalone};
use packetloom_packet::{Address, Batch, End, KeyBits, Rewrite, Verdict};
use support::{How, Results, results, traffic};

/// Sends packets from ports of 0 to 32767 on to other hosts and ports, under another source address. So that order counts, a
/// port depends on what it was before, and IPv6 packets are rewritten first.
#[derive(Clone, Debug)]
struct Mover;

impl FunctionSpec for Mover {
    fn name(&self) -> &'static str {
        "mover"
    }

    fn describe(&self) -> Vec<String> {
        vec![]
    }

    fn form(&self) -> Form<'_> {
        Form::Standalone(self)
    }
}

impl Standalone for Mover {
    fn function(&self) -> Box<dyn Function> {
        Box::new(Self)
    }

    fn oracle(&self) -> Box<dyn Oracle> {
        Box::new(Self)
    }
}

/// Where packets to a port go.
fn moved(port: u16) -> u16 {
    match port {
        443 => 22,
        80 => 443,
        other => other.rotate_left(1),
    }
}

impl Function for Mover {
    fn process(&mut self, batch: &mut Batch) {
        let (verdicts, v4, v6) = batch.judge();
        let mut rewrites = Vec::new();
        macro_rules! gather {
            ($keys:expr, $address:expr, $source:expr, $destination:expr) => {
                for (key, &frame) in $keys.keys.iter().zip(&$keys.frames) {
                    let has_ports = key.bits.contains(KeyBits::PORTS);
                    if verdicts[frame as usize].is_pass() && key.source_port < 32_768 {
                        let port = has_ports.then_some(moved(key.destination_port));
                        let destination = $address($destination(key.destination));
                        rewrites.push(Rewrite { frame, end: End::Destination, address: destination, port });
                        let source = $address($source);
                        rewrites.push(Rewrite { frame, end: End::Source, address: source, port: None });
                    }
                }
            };
        }
        gather!(v6, Address::V6, [0x2001_0db8 << 32, 9], |[high, low]: [u64; 2]| [!high, low + 1]);
        gather!(v4, Address::V4, 0xc000_0209, |address: u32| !address);
        for rewrite in rewrites {
            // First fragments of SCTP stay as they are.
            batch.rewrite(rewrite);
        }
    }

    fn report(&self) -> Box<dyn Report> {
        Box::new(Self)
    }
}

impl Oracle for Mover {
    fn step(&mut self, _packet: &mut OraclePacket) -> Verdict {
        unreachable!("chains with this function are not run by the oracle")
    }

    fn report(&self) -> Box<dyn Report> {
        Box::new(Self)
    }
}

impl Report for Mover {
    fn merge(&mut self, _other: &dyn Report) {}

    fn json(&self) -> serde_json::Value {
        serde_json::Value::Null
    }

    fn rows(&self) -> Vec<(String, String)> {
        vec![]
    }
}

const ACL: &str = "[[chain]]\nnf = \"acl\"\nrules = \"rules\"\n";
const LOGGING: &str = "[[chain]]\nnf = \"acl\"\nrules = \"rules\"\nlog = \"log\"\ndefault = \"permit\"\n";

/// What a chain leaves with movers at these places.
fn run(chain: &str, capture: &[u8], settings: &str, movers: &[usize]) -> Results {
    let functions = movers.iter().map(|&place| (place, Box::new(Mover) as Box<dyn FunctionSpec>)).collect();
    results(chain, capture, How { settings, functions, ..How::default() }).0
}

#[test]
fn a_chain_does_what_its_functions_do_one_after_another() {
    let capture = traffic(20_000, 1_000, 3);
    let moved = run("", &capture, "", &[0]);
    assert_ne!(moved.passed, capture);
    let judged = run(ACL, &moved.passed, "", &[]);
    let again = run("", &judged.passed, "", &[0]);
    // What was moved matters to the rules.
    let unmoved = run(ACL, &capture, "", &[]);
    assert_ne!(judged.summary["functions"], unmoved.summary["functions"]);

    for settings in ["", "batch = 7", "workers = 3", "workers = 4\nbatch = 1"] {
        let whole = run(ACL, &capture, settings, &[0, 2]);
        assert!(whole.passed == again.passed, "{settings}");
        assert_eq!(whole.summary["functions"][1], judged.summary["functions"][0], "{settings}");
    }
}

#[test]
fn workers_and_devices_give_the_same() {
    let capture = traffic(3_000, 300, 4);
    let chain = format!("{LOGGING}{ACL}");
    let one = run(&chain, &capture, "", &[1, 3]);
    assert!(one.log.lines().count() > 10);
    for settings in ["workers = 2", "workers = 5\nbatch = 64", "device = \"host\""] {
        assert!(run(&chain, &capture, settings, &[1, 3]) == one, "{settings}");
    }
}
