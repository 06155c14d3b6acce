//! Flow records that leave for collectors: by a collector written from the RFCs alone, and by those that people use.

mod collectors;
mod files;
mod places;
mod streams;
mod topics;

#[path = "../support/mod.rs"]
mod support;

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use packetloom_testing::collector::{Collector, Flow, Half, Message};
use serde_json::Value;

use self::support::{json, packetloom, succeed};

/// A capture of some hundred flows in a folder.
fn capture(folder: &Path) -> PathBuf {
    let path = folder.join("capture.pcap");
    let options = ["--packets", "20000", "--flows", "800", "--duration", "100s", "-w"];
    succeed(packetloom().args(["-q", "generate", "traffic"]).args(options).arg(&path));
    path
}

/// What a collector has to make of flow records in JSON lines.
fn expected(records: &[Value], biflows: bool) -> Vec<Flow> {
    let number =
        |record: &Value, name: &str| record.get(name).map_or(0, |value| value.as_u64().expect("a number"));
    let address = |record: &Value, side: &str| -> IpAddr {
        let name = format!("{side}IPv{}Address", record["ipVersion"]);
        record[&*name].as_str().expect("an address").parse().expect("an address")
    };
    let mut flows = Vec::new();
    for record in records {
        let half = |names: [&str; 5]| {
            let [start, end, packets, bytes, flags] = names.map(|name| number(record, name));
            Half { start, end, packets, bytes, flags }
        };
        let forward = half([
            "flowStartMilliseconds",
            "flowEndMilliseconds",
            "packetDeltaCount",
            "octetDeltaCount",
            "tcpControlBits",
        ]);
        let reverse = half([
            "reverseFlowStartMilliseconds",
            "reverseFlowEndMilliseconds",
            "reversePacketDeltaCount",
            "reverseOctetDeltaCount",
            "reverseTcpControlBits",
        ]);
        let addresses = ["source", "destination"].map(|side| address(record, side));
        let ports = ["sourceTransportPort", "destinationTransportPort"].map(|name| number(record, name));
        let flow = Flow {
            addresses,
            ports,
            protocol: number(record, "protocolIdentifier"),
            end_reason: number(record, "flowEndReason"),
            forward,
            reverse: None,
            direction: None,
        };
        if reverse.packets == 0 {
            flows.push(flow);
        } else if biflows {
            flows.push(Flow { reverse: Some(reverse), direction: Some(1), ..flow });
        } else {
            let back = Flow {
                addresses: [addresses[1], addresses[0]],
                ports: [ports[1], ports[0]],
                forward: reverse,
                ..flow.clone()
            };
            flows.extend([flow, back]);
        }
    }
    flows
}

/// The same without the time of the forward direction's last packet: JSON lines have that of both directions.
fn without_ends(mut flows: Vec<Flow>) -> Vec<Flow> {
    flows.iter_mut().for_each(|flow| flow.forward.end = 0);
    flows
}

/// The same in an order that does not depend on that of the records: several workers' are in no order.
fn sorted(flows: &[Flow]) -> Vec<String> {
    let mut lines: Vec<_> = without_ends(flows.to_vec()).iter().map(|flow| format!("{flow:?}")).collect();
    lines.sort_unstable();
    lines
}

/// The messages of a stream or a file, which say how long they are.
fn split(mut stream: &[u8]) -> Vec<Vec<u8>> {
    let mut messages = Vec::new();
    while !stream.is_empty() {
        let len = usize::from(u16::from_be_bytes([stream[2], stream[3]]));
        let (message, rest) = stream.split_at(len);
        messages.push(message.to_vec());
        stream = rest;
    }
    messages
}

/// What a collector makes of messages.
fn decode(messages: &[Vec<u8>]) -> (Vec<Flow>, Vec<Message>) {
    let mut collector = Collector::default();
    let messages: Vec<_> = messages.iter().map(|message| collector.message(message)).collect();
    let flows =
        messages.iter().flat_map(|message| message.flows.iter().map(|fields| Flow::new(message, fields)));
    (flows.collect(), messages)
}

/// The same records as JSON lines.
fn records(capture: &Path) -> Vec<Value> {
    records_of(capture, &[])
}

/// The same with options.
fn records_of(capture: &Path, options: &[&str]) -> Vec<Value> {
    let text = succeed(packetloom().args(["-q", "meter", "-r"]).arg(capture).args(options));
    text.lines().map(|line| serde_json::from_str(line).expect("a record")).collect()
}

/// The only export in a summary.
fn export(summary: &Path) -> Value {
    let summary = json(summary);
    let exports = summary["exports"].as_array().expect("exports");
    assert_eq!(exports.len(), 1);
    exports[0].clone()
}
