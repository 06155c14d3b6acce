//! Interfaces that are looked at.

use packetloom_testing::ends::{echo, ping};
use packetloom_testing::net::{Net, SERVER};

use crate::product::{Product, count, interfaces, packets};
use crate::support::{packetloom, run, stderr};

/// Connects the two interfaces in the middle, as the kernel does it.
pub(crate) fn bridge(net: &Net) {
    net.product.ip("link add br0 type bridge").expect("a bridge");
    for port in ["pa", "pb"] {
        net.product.ip(&format!("link set {port} master br0")).expect("a port");
    }
    net.product.ip("link set br0 up").expect("up");
}

const LENS: [usize; 6] = [1, 10, 100, 1_000, 1_400, 1_472];

fn echoes(net: &Net) {
    for address in SERVER {
        echo(net, address, &LENS[..5]).expect("echoed");
    }
}

#[test]
fn a_meter_counts_what_an_interface_sees_both_ways() {
    let Some(net) = Net::new() else { return };
    bridge(&net);
    // On the way, where packets come in and go out, and at an end, which sends itself.
    for (namespace, interface) in [(&net.product, "pa"), (&net.server, "s0")] {
        let arguments = format!("meter -i {interface} -o flows.jsonl");
        let product = Product::start(namespace, &[], &arguments);
        echoes(&net);
        let done = product.stop();
        let is_udp = |record: &&serde_json::Value| record["protocolIdentifier"] == 17;
        let udp: Vec<_> = done.records.iter().filter(is_udp).cloned().collect();
        assert_eq!((udp.len(), packets(&udp)), (2, 2 * 2 * 5), "{interface}: {:#?}", done.records);
        for record in &udp {
            assert_eq!(
                (count(record, "/packetDeltaCount"), count(record, "/reversePacketDeltaCount")),
                (5, 5)
            );
        }
        assert_eq!(count(&done.summary, "/counted_packets"), packets(&done.records));
    }
}

#[test]
fn several_interfaces_are_one_stream() {
    let Some(net) = Net::new() else { return };
    bridge(&net);
    let chain = "[[chain]]\nnf = \"conntrack\"\n[[chain]]\nnf = \"counter\"\n";
    let product =
        Product::start(&net.product, &[("chain.toml", chain)], "run chain.toml -i pa -i pb --workers 2");
    echoes(&net);
    let done = product.stop();
    // Each packet comes in by one interface and goes out by the other, and is seen twice.
    let interfaces: Vec<_> = interfaces(&done.summary).collect();
    assert_eq!(interfaces.len(), 2);
    for interface in interfaces {
        assert!(count(interface, "/received") >= 20, "{interface:#}");
        assert!(interface.get("sent").is_none(), "nothing is sent: {interface:#}");
    }
    assert_eq!(count(&done.summary, "/functions/0/connections/udp/opened"), 2, "{:#}", done.summary);
    assert_eq!(count(&done.summary, "/functions/0/connections/udp/replied"), 2, "{:#}", done.summary);
}

/// A monitor leaves packets to the kernel, whatever would be fastest; it is said of each interface what was used.
#[test]
fn a_monitor_that_may_choose_uses_packet_sockets() {
    let Some(net) = Net::new() else { return };
    bridge(&net);
    let chain = "[source]\ninterface = [\"pa\", \"pb\"]\nbackend = \"auto\"\n";
    let product = Product::start(&net.product, &[("chain.toml", chain)], "run chain.toml");
    ping(&net, SERVER[0], 3).expect("answered");
    let done = product.stop();
    for interface in done.summary["interfaces"].as_array().expect("two") {
        assert_eq!(interface["backend"], "af_packet", "{interface:#}");
        let reason = interface["backend_reason"].as_str().expect("a reason");
        assert!(reason.contains("a monitor must leave packets to the kernel"), "{interface:#}");
    }
}

/// What is looked at passes all the same, whatever the chain says of it.
#[test]
fn a_monitor_drops_nothing() {
    let Some(net) = Net::new() else { return };
    bridge(&net);
    let chain = "[source]\ninterface = \"pa\"\n[[chain]]\nnf = \"acl\"\nrules = \"rules\"\n";
    let files = [("chain.toml", chain), ("rules", "deny any from any to any\n")];
    let product = Product::start(&net.product, &files, "run chain.toml -c 5");
    for address in SERVER {
        ping(&net, address, 5).expect("answered");
    }
    let done = product.stop();
    assert_eq!(count(&done.summary, "/received"), 5, "as many as were asked for");
}

#[test]
fn what_cannot_be_opened_is_named() {
    let Some(net) = Net::new() else { return };
    let in_product = |arguments: &[&str]| net.product.run(|| run(packetloom().args(arguments)));
    let output = in_product(&["meter", "-i", "nope", "-o", "-"]);
    assert_eq!(output.status.code(), Some(69));
    let text = stderr(&output);
    assert!(text.contains("\"nope\"") && text.contains("pa, pb"), "{text}");
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("chain.toml");
    let chain = path.to_str().expect("a path");
    for (source, expected) in [
        ("interface = \"pa\"\ncapture = \"-\"", "both capture and interface"),
        ("interface = \"pa\"\nmode = \"inline\"", "expected two"),
        ("interface = [\"pa\", \"pa\"]\nmode = \"inline\"", "named twice"),
        ("interface = []", "0 interfaces"),
        ("interface = 3", "expected a name in quotes"),
        ("mode = \"inline\"", "mode without interface"),
        ("interface = \"pa\"\nmode = \"bridge\"", "`monitor` or `inline`"),
        ("backend = \"af_xdp\"", "backend without interface"),
        ("interface = \"pa\"\nbackend = \"af_xdp\"", "the kernel would not get the packets"),
        ("interface = \"pa\"\nbackend = \"dpdk\"", "`af_packet`"),
    ] {
        std::fs::write(&path, format!("[source]\n{source}\n")).expect("written");
        let output = in_product(&["run", chain]);
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(78), "{text}");
        assert!(
            text.contains(expected)
                && text.contains("chain.toml:1")
                    | text.contains("chain.toml:2")
                    | text.contains("chain.toml:3"),
            "{text}"
        );
    }
    for (arguments, expected) in [
        (&["--backend", "af_xdp"][..], "-i <INTERFACE>"),
        (&["-i", "pa", "--backend", "af_xdp"], "the kernel would not get the packets"),
        (&["-i", "pa", "-i", "pb", "--inline", "--backend", "dpdk"], "af_xdp"),
    ] {
        std::fs::write(&path, "").expect("written");
        let output = in_product(&[&["run", chain], arguments].concat());
        let text = stderr(&output);
        assert!(output.status.code() == Some(2) && text.contains(expected), "{text}");
    }
    // One at a time, inline.
    std::fs::write(&path, "[source]\ninterface = [\"pa\", \"pb\"]\nmode = \"inline\"\n").expect("written");
    let first = Product::inline(&net.product, "", &[], "");
    let output = in_product(&["run", chain]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("another packetloom"), "{}", stderr(&output));
    first.stop();
}
