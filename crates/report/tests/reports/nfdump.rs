//! nfdump's statistics of the same flows.

use std::fs;
use std::net::UdpSocket;
use std::path::Path;
use std::process::Command;

use packetloom_export::Fields;
use packetloom_export::fields::Value;
use packetloom_export::messages::{Encoder, Options, Protocol};
use packetloom_packet::{FlowRecord, HalfFlow};
use packetloom_report::{Counts, Top, TopSpec};
use packetloom_testing::has_collector;
use packetloom_testing::running::{Running, free_port, wait_until_read};

use crate::records::{Numbers, START, half, millis, record};

/// Flows of few hosts and services, both ways and one way; some hosts talk to themselves, and some flows have several records.
fn records() -> Vec<FlowRecord> {
    let mut numbers = Numbers(1);
    let host = |number: u64| match number {
        0..40 => format!("10.0.0.{number}"),
        _ => format!("2001:db8::{number:x}"),
    };
    let mut records = Vec::new();
    for _ in 0..3_000 {
        let source = numbers.skewed(60);
        let destination = match numbers.below(50) {
            0 => source,
            _ if source < 40 => numbers.skewed(40),
            _ => 40 + numbers.skewed(20),
        };
        let ports =
            [1_024 + numbers.skewed(300) as u16, [53, 80, 443, 8_080, 22][numbers.skewed(5) as usize]];
        let mut some = || {
            let first = numbers.below(500_000);
            let packets = 1 + numbers.skewed(2_000);
            half(first, first + numbers.below(60_000), packets, packets * 40 + numbers.below(100_000))
        };
        let forward = some();
        let reverse = some();
        let is_answered = numbers.below(3) > 0;
        let flow = FlowRecord {
            reverse: if is_answered { reverse } else { HalfFlow::default() },
            protocol: [6, 17][numbers.skewed(2) as usize],
            ..record(&host(source), &host(destination), ports, forward)
        };
        records.push(flow);
    }
    records
}

/// Has nfcapd write the records into files.
fn collect(records: &[FlowRecord], folder: &Path) {
    let port = free_port();
    let log = folder.join("log");
    let files = folder.join("files");
    fs::create_dir(&files).expect("a folder");
    let running = Running::nfcapd(port, &files, &log);
    let options = Options {
        protocol: Protocol::Ipfix,
        fields: Fields::BASIC,
        biflows: false,
        domain: 7,
        message_len: 1_400,
        first_templates: 1,
        template_packets: None,
        template_interval: None,
        sampling: None,
    };
    let mut encoder = Encoder::new(options).expect("options");
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let mut send = |message: &[u8], _| {
        socket.send_to(message, ("127.0.0.1", port)).expect("sent");
        wait_until_read(port);
    };
    let now = millis((START + 1_000) * 1_000);
    records.iter().for_each(|record| encoder.record(record, now, &mut send));
    encoder.flush(now, &mut send);
    wait_until_read(port);
    running.end();
    let log = fs::read_to_string(log).expect("text");
    assert!(log.contains("Sequence Errors: 0, Bad Packets: 0"), "{log}");
}

/// A key, as nfdump writes it, and packets, bytes and flows.
type Row = (String, [u64; 3]);

fn nfdump(folder: &Path, arguments: &[&str]) -> String {
    let mut nfdump = Command::new("nfdump");
    nfdump.arg("-R").arg(folder.join("files")).args(["-q", "-N", "-6", "-n", "10"]).args(arguments);
    let output = nfdump.output().expect("nfdump");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("text")
}

/// The top ten of one field.
fn of_field(folder: &Path, statistic: &str) -> Vec<Row> {
    let text = nfdump(folder, &["-s", statistic, "-o", "csv"]);
    let mut lines = text.lines();
    let head: Vec<_> = lines.next().expect("a head").split(',').collect();
    let rows = lines.take_while(|line| !line.is_empty());
    rows.map(|line| {
        let cells: Vec<_> = line.split(',').map(str::trim).collect();
        // Some statistics call what came in as others call all of it.
        let cell = |names: [&str; 2]| cells[head.iter().position(|it| names.contains(it)).expect("a column")];
        let number = |names| cell(names).parse().expect("a number");
        (cell(["val"; 2]).to_owned(), [number(["pkt", "ipkt"]), number(["byt", "ibyt"]), number(["fl"; 2])])
    })
    .collect()
}

/// The top ten flows.
fn of_flows(folder: &Path, statistic: &str) -> Vec<Row> {
    let format = "fmt:%sa %da %sp %dp %pr %pkt %byt %fl";
    let text = nfdump(folder, &["-s", statistic, "-o", format]);
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    lines
        .map(|line| {
            let cells: Vec<_> = line.split_whitespace().collect();
            assert_eq!(cells.len(), 8, "{line}");
            let counts = [5, 6, 7].map(|at| cells[at].parse().expect("a number"));
            (cells[..5].join(" "), counts)
        })
        .collect()
}

/// Ours, with values as nfdump writes them for single fields.
fn ours(records: &[FlowRecord], spec: &str) -> Vec<Row> {
    let mut top = Top::new(spec.parse::<TopSpec>().expect("a specification"));
    records.iter().for_each(|record| top.add(record));
    assert!(top.is_exact());
    let rows = top.rows().into_iter().map(|row| {
        let values = row.key.values().map(|value| match value.expect("a value") {
            Value::Number(number) => number.to_string(),
            Value::Address(address) => address.to_string(),
            other => panic!("{other:?}"),
        });
        let Counts { packets, bytes, flows } = row.counts;
        (values.collect::<Vec<_>>().join(" "), [packets, bytes, flows])
    });
    rows.collect()
}

#[test]
fn the_top_ten_are_those_of_nfdump() {
    if !has_collector("nfcapd") || !has_collector("nfdump") {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let records = records();
    collect(&records, folder.path());
    for (statistic, spec) in [
        ("srcip/bytes", "source/bytes"),
        ("srcip/packets", "source/packets"),
        ("dstip/flows", "destination/flows"),
        ("ip/packets", "address/packets"),
        ("ip/bytes", "address/bytes"),
        ("srcport/bytes", "source-port/bytes"),
        ("dstport/flows", "destination-port/flows"),
        ("port/flows", "port/flows"),
        ("proto/packets", "protocol/packets"),
    ] {
        let expected = of_field(folder.path(), statistic);
        assert_eq!(expected.len(), if spec.starts_with("protocol") { 2 } else { 10 });
        assert_eq!(ours(&records, spec), expected, "{statistic}");
    }
    for (statistic, spec) in [("record/bytes", "flow/bytes"), ("record/packets", "flow/packets")] {
        let expected = of_flows(folder.path(), statistic);
        assert_eq!(expected.len(), 10);
        assert_eq!(ours(&records, spec), expected, "{statistic}");
    }
}
