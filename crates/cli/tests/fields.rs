//! Fields of records: what is asked for, in each format, of real captures.

#![allow(missing_docs)]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::{IpAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Command;

use netflow_parser::variable_versions::field_value::FieldValue;
use netflow_parser::variable_versions::{ipfix, v9};
use netflow_parser::{NetflowPacket, NetflowParser};
use packetloom_testing::collector::{Collector, Fields, REVERSE, number};
use packetloom_testing::{corpus, has_tshark};
use serde_json::Value;
use support::{json, packetloom, packets, root, run, succeed};

fn edge() -> PathBuf {
    root().join("examples/edge/edge.pcap")
}

fn meter(capture: &Path, arguments: &[&str]) -> String {
    succeed(packetloom().args(["-q", "meter", "-r"]).arg(capture).args(arguments))
}

fn records(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

#[test]
fn presets_have_more_and_more_and_lists_what_they_say() {
    let of = |fields: &str| -> BTreeSet<String> {
        let lines = records(&meter(&edge(), &["--fields", fields]));
        lines.iter().flat_map(|record| record.as_object().expect("an object").keys().cloned()).collect()
    };
    let [basic, standard, full] = ["basic", "standard", "full"].map(of);
    assert!(basic.is_subset(&standard) && standard.is_subset(&full));
    assert!(!basic.contains("minimumTTL") && standard.contains("minimumTTL"));
    assert!(!standard.contains("sourceMacAddress") && full.contains("sourceMacAddress"));
    assert_eq!(meter(&edge(), &["--fields", "basic"]), meter(&edge(), &[]));
    let list = of("maximumTTL,ipVersion");
    assert_eq!(Vec::from_iter(list), ["ipVersion", "maximumTTL", "reverseMaximumTTL"]);
}

#[test]
fn csv_has_the_values_of_json() {
    let text = meter(&edge(), &["--fields", "full", "--format", "csv"]);
    let mut reader = csv::Reader::from_reader(text.as_bytes());
    let names: Vec<_> = reader.headers().expect("names").iter().map(str::to_owned).collect();
    let rows: Vec<_> = reader.records().map(|row| row.expect("a row")).collect();
    let lines = records(&meter(&edge(), &["--fields", "full"]));
    assert_eq!(rows.len(), lines.len());
    for (row, record) in rows.iter().zip(lines) {
        for (name, found) in names.iter().zip(row) {
            let expected = match &record[name] {
                Value::Null => String::new(),
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            assert_eq!(found, expected, "{name}");
        }
    }
}

#[test]
fn each_file_of_csv_begins_with_the_names() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = packetloom();
    command.current_dir(&folder).args([
        "-q",
        "meter",
        "--format",
        "csv",
        "--rotate-size",
        "2k",
        "-o",
        "flows.csv",
    ]);
    succeed(command.arg("-r").arg(edge()));
    let files: Vec<_> =
        fs::read_dir(&folder).expect("a folder").map(|file| file.expect("a file").path()).collect();
    assert!(files.len() > 1);
    let mut lines = 0;
    for file in files {
        let text = fs::read_to_string(file).expect("text");
        assert!(text.starts_with("flowStartMilliseconds,flowEndMilliseconds,ipVersion,"), "{text}");
        assert_eq!(text.matches("ipVersion").count(), 1);
        lines += text.lines().count() - 1;
    }
    assert_eq!(lines, meter(&edge(), &[]).lines().count());
}

#[test]
fn what_is_no_field_or_format_is_refused() {
    for (arguments, expected) in [
        (["--fields", "basic,vlan"], "\"vlan\" is no field; expected basic, standard, full, or names"),
        (["--format", "xml"], "\"xml\" is no format of lines; expected json, csv or flowtest"),
    ] {
        let output = run(packetloom().args(["meter", "-r", "none"]).args(arguments));
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(text.contains(expected), "{text}");
    }
    let arguments = ["meter", "--ipfix", "flows.ipfix", "--fields", "full", "--message-size", "200", "-r"];
    let output = run(packetloom().args(arguments).arg(edge()));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("would not fit into a message; expected messages of at least"), "{text}");
}

/// The captures of the corpus with what is expected of them, without timeouts.
fn captures() -> Vec<(PathBuf, Value)> {
    let Some(folder) = corpus("captures") else { return Vec::new() };
    let expected = json(&folder.join("expected.json"));
    let expected = expected.as_array().expect("a list").iter();
    let of = |capture: &Value| (folder.join(capture["file"].as_str().expect("a name")), capture.clone());
    expected.map(of).collect()
}

const NO_TIMEOUTS: [&str; 4] = ["--idle-timeout", "0", "--active-timeout", "0"];

/// The IPFIX messages of a file.
fn messages(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let len = usize::from(u16::from_be_bytes([*rest.get(2)?, *rest.get(3)?]));
        let (message, behind) = rest.split_at(len);
        rest = behind;
        Some(message)
    })
}

/// A record of both directions under the names of JSON: what the digest of a capture is made of, and details.
fn named(fields: &Fields) -> Value {
    let mut record = serde_json::Map::new();
    let address = |bytes: &[u8]| match bytes.len() {
        4 => IpAddr::from(<[u8; 4]>::try_from(bytes).expect("4 bytes")).to_string(),
        _ => IpAddr::from(<[u8; 16]>::try_from(bytes).expect("16 bytes")).to_string(),
    };
    let names = BTreeMap::from([
        ((0, 60), "ipVersion"),
        ((0, 4), "protocolIdentifier"),
        ((0, 7), "sourceTransportPort"),
        ((0, 11), "destinationTransportPort"),
        ((0, 2), "packetDeltaCount"),
        ((0, 1), "octetDeltaCount"),
        ((REVERSE, 2), "reversePacketDeltaCount"),
        ((REVERSE, 1), "reverseOctetDeltaCount"),
        ((0, 52), "minimumTTL"),
        ((0, 53), "maximumTTL"),
        ((0, 25), "minimumIpTotalLength"),
        ((0, 26), "maximumIpTotalLength"),
        ((0, 136), "flowEndReason"),
    ]);
    for (element, bytes) in fields {
        match element {
            (0, 8) => drop(record.insert("sourceIPv4Address".into(), address(bytes).into())),
            (0, 12) => drop(record.insert("destinationIPv4Address".into(), address(bytes).into())),
            (0, 27) => drop(record.insert("sourceIPv6Address".into(), address(bytes).into())),
            (0, 28) => drop(record.insert("destinationIPv6Address".into(), address(bytes).into())),
            element => {
                if let Some(name) = names.get(element) {
                    record.insert((*name).into(), number(bytes).into());
                }
            }
        }
    }
    for name in ["reversePacketDeltaCount", "reverseOctetDeltaCount"] {
        record.entry(name).or_insert(0.into());
    }
    record.into()
}

/// Each capture of the corpus as IPFIX: both decoders find as many records as there are biflows, and ours the values of JSON.
#[test]
fn captures_come_back_from_ipfix() {
    let scratch = tempfile::tempdir().expect("a folder");
    let (ipfix, lines) = (scratch.path().join("flows.ipfix"), scratch.path().join("flows.jsonl"));
    for (capture, expected) in captures() {
        let mut command = packetloom();
        command
            .args(["-q", "meter", "--fields", "full", "--biflows"])
            .args(NO_TIMEOUTS)
            .arg("-r")
            .arg(&capture);
        succeed(command.arg("--ipfix").arg(&ipfix).arg("-o").arg(&lines));
        let (mut collector, mut parser) = (Collector::default(), NetflowParser::default());
        let (mut flows, mut others) = (Vec::new(), 0);
        let bytes = fs::read(&ipfix).expect("a file");
        for message in messages(&bytes) {
            let decoded = collector.message(message);
            flows.extend(decoded.flows.iter().map(named));
            let parsed = parser.parse_bytes(message);
            assert!(parsed.error.is_none(), "{capture:?}: {:?}", parsed.error);
            for packet in parsed.packets {
                let NetflowPacket::IPFix(packet) = packet else { panic!("{packet:?}") };
                // Options data are 260 and 261.
                for set in &packet.flowsets {
                    if let netflow_parser::variable_versions::ipfix::FlowSetBody::Data(data) = &set.body {
                        others += data.fields.len();
                    }
                }
            }
        }
        assert_eq!(flows.len() as u64, expected["biflows"].as_u64().expect("a count"), "{capture:?}");
        assert_eq!(others, flows.len(), "{capture:?}");
        let names: Vec<_> = flows
            .first()
            .map(|flow| flow.as_object().expect("an object").keys().cloned().collect())
            .unwrap_or_default();
        let of_json: Vec<Value> = records(&fs::read_to_string(&lines).expect("text"));
        for (found, expected) in flows.iter().zip(&of_json) {
            for name in names.iter().filter(|name| !name.ends_with("Address")) {
                assert_eq!(found[name], expected[name], "{name} in {capture:?}");
            }
            for side in ["source", "destination"] {
                let name = format!("{side}IPv{}Address", found["ipVersion"]);
                assert_eq!(found[&name], expected[&name], "{capture:?}");
            }
        }
    }
}

/// Packets and octets of flow records as the crate `netflow_parser` reads them in messages of either protocol, and how many records that are.
#[derive(Debug, Default, PartialEq, Eq)]
struct Totals {
    records: u64,
    packets: u64,
    octets: u64,
}

impl Totals {
    /// Of a summary, and so many records.
    fn of(summary: &Value, records: &str) -> Self {
        let [records, packets, octets] =
            [records, "counted_packets", "counted_ip_bytes"].map(|name| summary[name].as_u64().expect(name));
        Self { records, packets, octets }
    }

    /// Counts a field by its name there.
    fn add(&mut self, field: &dyn std::fmt::Debug, value: &FieldValue) {
        let name = format!("{field:?}");
        let name = name.rsplit('(').next().expect("a name").trim_end_matches(')').to_lowercase();
        let total = match name.strip_prefix("reverse").unwrap_or(&name) {
            "packetdeltacount" | "inpkts" => &mut self.packets,
            "octetdeltacount" | "inbytes" => &mut self.octets,
            _ => return,
        };
        let mut bytes = Vec::new();
        value.write_be_bytes(&mut bytes).expect("memory");
        *total += number(&bytes);
    }

    fn parse(&mut self, parser: &mut NetflowParser, message: &[u8]) {
        let parsed = parser.parse_bytes(message);
        assert!(parsed.error.is_none(), "{:?}", parsed.error);
        for packet in parsed.packets {
            match packet {
                NetflowPacket::IPFix(packet) => {
                    for set in &packet.flowsets {
                        let ipfix::FlowSetBody::Data(data) = &set.body else { continue };
                        self.records += data.fields.len() as u64;
                        data.fields.iter().flatten().for_each(|(field, value)| self.add(field, value));
                    }
                }
                NetflowPacket::V9(packet) => {
                    for set in &packet.flowsets {
                        let v9::FlowSetBody::Data(data) = &set.body else { continue };
                        self.records += data.fields.len() as u64;
                        data.fields.iter().flatten().for_each(|(field, value)| self.add(field, value));
                    }
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

/// Each capture of the corpus by a decoder that is not ours: records, packets and octets are those of the summary, as uniflows and as biflows of
/// IPFIX and in NetFlow v9.
#[test]
fn another_decoder_has_the_packets_and_octets_of_captures() {
    let folder = tempfile::tempdir().expect("a folder");
    let (ipfix, summary) = (folder.path().join("flows.ipfix"), folder.path().join("summary.json"));
    for (capture, _) in captures() {
        let meter = |options: &[&str]| {
            let mut command = packetloom();
            command.args(["-q", "meter", "--all-framings", "--summary"]).arg(&summary).args(NO_TIMEOUTS);
            succeed(command.args(options).arg("-r").arg(&capture));
            json(&summary)
        };
        for (options, records) in [
            (&[][..], "uniflows"),
            (&["--biflows"], "biflows"),
            (&["--fields", "full"], "uniflows"),
            (&["--fields", "full", "--biflows"], "biflows"),
        ] {
            let summary = meter(&[&["--ipfix", ipfix.to_str().expect("text")], options].concat());
            let (mut parser, mut found) = (NetflowParser::default(), Totals::default());
            let bytes = fs::read(&ipfix).expect("a file");
            messages(&bytes).for_each(|message| found.parse(&mut parser, message));
            assert_eq!(found, Totals::of(&summary, records), "{capture:?} {options:?}");
        }
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
        rustix::net::sockopt::set_socket_recv_buffer_size(&socket, 1 << 20).expect("a larger buffer");
        let to = format!("udp://{}", socket.local_addr().expect("an address"));
        // What the largest of them exports fits into the buffer.
        let summary = meter(&["--netflow9", &to]);
        socket.set_nonblocking(true).expect("set");
        let (mut parser, mut found, mut buffer) =
            (NetflowParser::default(), Totals::default(), vec![0; 1 << 16]);
        while let Ok(len) = socket.recv(&mut buffer) {
            found.parse(&mut parser, &buffer[..len]);
        }
        assert_eq!(found, Totals::of(&summary, "uniflows"), "{capture:?}");
    }
}

/// A flow of seven days with more octets than 32 bits hold, cut by the active timeout or not, in JSON and as Wireshark reads it from IPFIX.
#[test]
fn a_flow_of_days_with_more_octets_than_32_bits_hold() {
    const BEGIN: u64 = 1_700_000_000;
    const DAYS: u64 = 7 * 86_400;
    const PACKETS: u64 = 66_001;
    const OCTETS: u64 = PACKETS * 65_535;
    const { assert!(OCTETS > 1 << 32) };
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    // Headers of datagrams as long as can be.
    let mut frame = packets::packet("0 udp 10.0.0.1:5000 > 10.0.0.2:53").bytes;
    frame[16..18].copy_from_slice(&u16::MAX.to_be_bytes());
    let mut file = packets::pcap("");
    for packet in 0..PACKETS {
        let micros = packet * DAYS * 1_000_000 / (PACKETS - 1);
        let (seconds, micros) = (BEGIN + micros / 1_000_000, micros % 1_000_000);
        for word in [seconds, micros, frame.len() as u64, 14 + 65_535] {
            file.extend((word as u32).to_le_bytes());
        }
        file.extend(&frame);
    }
    fs::write(at("capture"), file).expect("written");
    let to = at("flows.ipfix");
    for workers in ["1", "3"] {
        let options = ["--workers", workers, "-o", "-", "--ipfix", to.to_str().expect("text")];
        let lines = records(&meter(&at("capture"), &[&NO_TIMEOUTS[..], &options].concat()));
        assert_eq!(lines.len(), 1);
        let values = ["packetDeltaCount", "octetDeltaCount", "flowStartMilliseconds", "flowEndMilliseconds"];
        let expected = [PACKETS, OCTETS, BEGIN * 1_000, (BEGIN + DAYS) * 1_000];
        assert_eq!(values.map(|name| lines[0][name].as_u64()), expected.map(Some));
        if has_tshark() {
            let fields = ["packets", "octets", "abstimestart", "abstimeend"];
            let mut command = Command::new("tshark");
            command.args(["-T", "fields", "-E", "separator=|", "-r"]).arg(&to).env("TZ", "UTC");
            let text =
                succeed(command.args(fields.iter().flat_map(|name| ["-e".into(), format!("cflow.{name}")])));
            let found: Vec<_> = text.lines().filter(|line| line.contains("2023")).collect();
            let begin_and_end = "Nov 14, 2023 22:13:20.000000000 UTC|Nov 21, 2023 22:13:20.000000000 UTC";
            assert_eq!(found, [format!("{PACKETS}|{OCTETS}|{begin_and_end}")], "{text}");
        }
    }
    // With the timeouts that are usual, records after one another that leave nothing out.
    let cut = records(&meter(&at("capture"), &[]));
    let sum = |name: &str| cut.iter().map(|record| record[name].as_u64().expect("a number")).sum::<u64>();
    assert_eq!((sum("packetDeltaCount"), sum("octetDeltaCount")), (PACKETS, OCTETS));
    assert!(cut.len() as u64 >= DAYS / 310, "{} records", cut.len());
    let of =
        |name: &str| cut.iter().map(|record| record[name].as_u64().expect("a number")).collect::<Vec<_>>();
    let (starts, ends) = (of("flowStartMilliseconds"), of("flowEndMilliseconds"));
    assert!(starts.iter().zip(&ends).all(|(start, end)| end - start <= 300_000), "none is longer");
    assert!(ends.iter().zip(&starts[1..]).all(|(end, next)| end < next), "in order");
}

/// The start is the time of the packet that came first, the end the latest time, whatever the order of packets' times.
#[test]
fn the_start_is_of_the_packet_that_came_first() {
    let folder = tempfile::tempdir().expect("a folder");
    let capture = folder.path().join("capture");
    // Forward at 100,100 s, 100,000 s and 0 s; backward at 100,050 s and 100,060 s.
    let lines = "100100 udp 10.0.0.1:1 > 10.0.0.2:2\n100000 udp 10.0.0.1:1 > 10.0.0.2:2\n\
                 100060 udp 10.0.0.2:2 > 10.0.0.1:1\n0 udp 10.0.0.1:1 > 10.0.0.2:2\n\
                 100050 udp 10.0.0.2:2 > 10.0.0.1:1\n";
    fs::write(&capture, packets::pcap(lines)).expect("written");
    for workers in ["1", "3"] {
        let found = records(&meter(&capture, &["--fields", "full", "--workers", workers]));
        assert_eq!(found.len(), 1);
        let seconds = |name: &str| found[0][name].as_u64().expect(name) / 1_000;
        assert_eq!((seconds("flowStartMilliseconds"), seconds("flowEndMilliseconds")), (100_100, 100_100));
        assert_eq!(found[0]["packetDeltaCount"], 3);
        let reverse = ["reverseFlowStartMilliseconds", "reverseFlowEndMilliseconds"].map(seconds);
        assert_eq!(reverse, [100_060; 2]);
    }
}

/// Each capture of the corpus, by the oracle and by several workers: all fields are the same.
#[test]
fn captures_have_the_fields_of_the_oracle() {
    let folder = tempfile::tempdir().expect("a folder");
    let chain = |device: &str| {
        format!(
            "[run]\n{device}\nnon_ip = \"pass\"\nunknown_framing = \"pass\"\nmalformed = \"pass\"\n\
             [[chain]]\nnf = \"meter\"\nfields = \"full\"\nframings = \"all\"\noutput = \"flows\"\n"
        )
    };
    for (capture, _) in captures() {
        let mut found = ["device = \"oracle\"", "workers = 1", "workers = 3"].map(|device| {
            fs::write(folder.path().join("chain.toml"), chain(device)).expect("written");
            succeed(packetloom().current_dir(&folder).args(["-q", "run", "chain.toml", "-r"]).arg(&capture));
            let text = fs::read_to_string(folder.path().join("flows")).expect("text");
            text.lines().map(str::to_owned).collect::<Vec<_>>()
        });
        found.iter_mut().for_each(|lines| lines.sort_unstable());
        assert_eq!(found[0], found[1], "{capture:?}");
        assert_eq!(found[0], found[2], "{capture:?}");
    }
}

/// The lowest and the highest TTL of IPv4, the longest packet and how many are fragments, as Wireshark sees them.
#[test]
fn ttls_lengths_and_fragments_are_those_of_tshark() {
    if !has_tshark() {
        return;
    }
    let mut compared = 0;
    // Each takes tshark a second.
    for (capture, _) in captures().into_iter().step_by(3) {
        let fields =
            ["ip.ttl", "ip.len", "ip.proto", "ipv6.nxt", "frame.protocols", "ip.flags.mf", "ip.frag_offset"];
        let mut command = Command::new("tshark");
        command.args(["-T", "fields", "-o", "ip.defragment:FALSE", "-r"]).arg(&capture);
        command.args(fields.iter().flat_map(|field| ["-e", field]));
        let output = command.output().expect("tshark");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let (mut ttls, mut longest, mut fragments) = (Vec::new(), 0, 0);
        for line in text.lines() {
            let columns: Vec<_> = line.split('\t').collect();
            // One IPv4 header, which is the outermost of a packet that is metered, in Ethernet.
            let is_one = columns.len() == 7 && !columns[0].contains(',') && columns[3].is_empty();
            if is_one
                && columns[4].starts_with("eth:ethertype:ip:")
                && ["1", "6", "17", "132"].contains(&columns[2])
            {
                ttls.push(columns[0].parse::<u64>().expect("a TTL"));
                longest = longest.max(columns[1].parse::<u64>().expect("a length"));
                let has_more = ["1", "True"].contains(&columns[5]);
                fragments += u64::from(has_more || columns[6] != "0");
            }
        }
        // Captures whose packets are all of that kind.
        if ttls.is_empty() || ttls.len() != text.lines().count() {
            continue;
        }
        let lines = records(&meter(&capture, &["--fields", "full"]));
        let packets: u64 = lines
            .iter()
            .map(|record| {
                record["packetDeltaCount"].as_u64().expect("a count")
                    + record["reversePacketDeltaCount"].as_u64().expect("a count")
            })
            .sum();
        if packets != ttls.len() as u64 {
            continue;
        }
        let all = |names: [&str; 2]| {
            let values = lines.iter().flat_map(|record| names.map(|name| record[name].as_u64()));
            values.flatten().collect::<Vec<_>>()
        };
        assert_eq!(all(["minimumTTL", "reverseMinimumTTL"]).iter().min(), ttls.iter().min(), "{capture:?}");
        assert_eq!(all(["maximumTTL", "reverseMaximumTTL"]).iter().max(), ttls.iter().max(), "{capture:?}");
        let lengths = all(["maximumIpTotalLength", "reverseMaximumIpTotalLength"]);
        assert_eq!(lengths.iter().max(), Some(&longest), "{capture:?}");
        assert_eq!(all(["fragments", "reverseFragments"]).iter().sum::<u64>(), fragments, "{capture:?}");
        compared += 1;
    }
    assert!(corpus("captures").is_none() || compared > 3, "{compared} captures");
}

/// Packets by VLAN, addresses and ports.
type ByVlan = BTreeMap<(u64, [String; 2]), u64>;

/// What records say, whose flows are in VLANs.
fn by_vlan(lines: &[Value]) -> ByVlan {
    let mut found = ByVlan::new();
    for record in lines {
        let end = |side: &str| {
            let address = record[format!("{side}IPv{}Address", record["ipVersion"])].as_str();
            format!("{} {}", address.expect("an address"), record[format!("{side}TransportPort")])
        };
        let mut ends = ["source", "destination"].map(end);
        ends.sort();
        let count = |name: &str| record[name].as_u64().expect("a count");
        let packets = count("packetDeltaCount") + count("reversePacketDeltaCount");
        *found.entry((record["vlanId"].as_u64().unwrap_or(0), ends)).or_default() += packets;
    }
    found
}

/// Flows in VLANs are those of Wireshark, by the outer tag, in captures that have tags.
#[test]
fn flows_in_vlans_are_those_of_tshark() {
    if !has_tshark() {
        return;
    }
    let mut compared = 0;
    for (capture, _) in captures() {
        let lines = records(&meter(&capture, &[&NO_TIMEOUTS[..], &["--vlan-in-key"]].concat()));
        if lines.iter().all(|record| record["vlanId"].is_null()) {
            continue;
        }
        let fields = [
            "frame.protocols",
            "vlan.id",
            "ip.src",
            "ip.dst",
            "ipv6.src",
            "ipv6.dst",
            "tcp.srcport",
            "tcp.dstport",
            "udp.srcport",
            "udp.dstport",
        ];
        let mut command = Command::new("tshark");
        command.args(["-T", "fields", "-E", "occurrence=f", "-o", "ip.defragment:FALSE", "-r"]).arg(&capture);
        command.args(fields.iter().flat_map(|field| ["-e", field]));
        let output = command.output().expect("tshark");
        let mut expected = ByVlan::new();
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            let columns: Vec<_> = line.split('\t').collect();
            let [protocols, vlan, a4, b4, a6, b6, tcp_a, tcp_b, udp_a, udp_b] = columns[..] else {
                panic!("{line}")
            };
            let behind = protocols.trim_start_matches("eth:ethertype").replace(":vlan:ethertype", "");
            let is = |protocol: &str| {
                [":ip:", ":ipv6:"].iter().any(|ip| behind.starts_with(&format!("{ip}{protocol}")))
            };
            if is("") {
                // Not those of a packet in a tunnel.
                let end = |[v4, v6, tcp, udp]: [&str; 4]| {
                    let port = if is("tcp") {
                        tcp
                    } else if is("udp") {
                        udp
                    } else {
                        "0"
                    };
                    format!("{} {port}", if v4.is_empty() { v6 } else { v4 })
                };
                let mut ends = [end([a4, a6, tcp_a, udp_a]), end([b4, b6, tcp_b, udp_b])];
                ends.sort();
                *expected.entry((vlan.parse().unwrap_or(0), ends)).or_default() += 1;
            }
        }
        let found = by_vlan(&lines);
        // Not where it sees more of the packets, such as those in tunnels.
        if found.values().sum::<u64>() == expected.values().sum::<u64>() {
            assert_eq!(found, expected, "{capture:?}");
            compared += 1;
        }
    }
    assert!(corpus("captures").is_none() || compared > 4, "{compared} captures");
}

/// A flow in several VLANs is as many records in every format, and each has its VLAN, whatever the fields.
#[test]
fn flows_in_vlans_have_theirs_in_every_format() {
    let folder = tempfile::tempdir().expect("a folder");
    let lines: String = (0..40)
        .map(|number| {
            let (from, to) = if number % 3 == 0 {
                ("10.0.0.2:53", "10.0.0.1:5000")
            } else {
                ("10.0.0.1:5000", "10.0.0.2:53")
            };
            format!(
                "1.{number:02} vlan {} udp {from} > {to} payload {number}\n",
                [7, 4095, 12, 12][number % 4]
            )
        })
        .collect();
    let capture = folder.path().join("capture");
    fs::write(&capture, packets::pcap(&lines)).expect("written");
    let ends = ["10.0.0.1 5000", "10.0.0.2 53"].map(str::to_owned);
    let expected: ByVlan =
        [(7, 10), (12, 20), (4095, 10)].map(|(vlan, packets)| ((vlan, ends.clone()), packets)).into();
    for workers in ["1", "3"] {
        let found = by_vlan(&records(&meter(&capture, &["--vlan-in-key", "--workers", workers])));
        assert_eq!(found, expected);
    }
    let basic = by_vlan(&records(&meter(&capture, &["--fields", "basic,vlanId"])));
    assert_eq!(basic.values().copied().collect::<Vec<_>>(), [40], "one flow without it");
    let csv = meter(&capture, &["--vlan-in-key", "--fields", "packetDeltaCount", "--format", "csv"]);
    let names = "packetDeltaCount,reversePacketDeltaCount,vlanId,reverseVlanId";
    assert_eq!(csv.lines().collect::<Vec<_>>(), [names, "4,6,7,7", "7,3,4095,4095", "13,7,12,12"]);
    let report = meter(&capture, &["--vlan-in-key", "--top", "vlan/packets", "-o", "/dev/null"]);
    let top: Vec<_> = report.lines().filter(|line| line.contains("12") || line.contains("4095")).collect();
    assert!(top.len() == 2, "{report}");
    // Both directions of each, under the number of vlanId, in messages of either protocol.
    let to = folder.path().join("flows.ipfix");
    meter(&capture, &["--vlan-in-key", "--ipfix", to.to_str().expect("text")]);
    let mut collector = Collector::default();
    let mut found = BTreeMap::<u64, u64>::new();
    for message in messages(&fs::read(&to).expect("a file")) {
        for flow in collector.message(message).flows {
            let value = |element: (u32, u16)| number(&flow[&element]);
            *found.entry(value((0, 58))).or_default() += value((0, 2));
        }
    }
    assert_eq!(found, BTreeMap::from([(7, 10), (12, 20), (4095, 10)]));
}

/// Outcomes say nothing else than what Wireshark has seen of the same streams.
#[test]
fn outcomes_agree_with_tshark() {
    if !has_tshark() {
        return;
    }
    let mut compared = BTreeMap::<String, usize>::new();
    for (capture, _) in captures().into_iter().step_by(2) {
        let lines = records(&meter(&capture, &[&NO_TIMEOUTS[..], &["--fields", "full"]].concat()));
        let fields = [
            "tcp.completeness",
            "ip.src",
            "ip.dst",
            "ipv6.src",
            "ipv6.dst",
            "tcp.srcport",
            "tcp.dstport",
            "tcp.stream",
        ];
        let mut command = Command::new("tshark");
        command.args(["-2", "-T", "fields", "-o", "ip.defragment:FALSE", "-r"]).arg(&capture);
        command.args(fields.iter().flat_map(|field| ["-e", field]));
        let output = command.output().expect("tshark");
        // What was seen of each stream, by its ends; none where these have several.
        let mut streams = BTreeMap::<[String; 2], Option<(String, u64)>>::new();
        // Those of which packets are in tunnels, where a meter does not see them.
        let mut tunnelled = BTreeSet::new();
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            let columns: Vec<_> = line.split('\t').collect();
            let [seen, a4, b4, a6, b6, a, b, stream] = columns[..] else { panic!("{line}") };
            if [a4, b4, a6, b6].iter().any(|addresses| addresses.contains(',')) {
                tunnelled.insert(stream.to_owned());
            }
            if stream.is_empty() {
                continue;
            }
            let mut ends = [format!("{a4}{a6} {a}"), format!("{b4}{b6} {b}")];
            ends.sort();
            let new = seen.parse().ok().map(|seen| (stream.to_owned(), seen));
            let known = streams.entry(ends).or_insert_with(|| new.clone());
            if *known != new {
                *known = None;
            }
        }
        for record in lines.iter().filter(|record| record["protocolIdentifier"] == 6) {
            let version = &record["ipVersion"];
            let end = |side: &str| {
                let address = record[format!("{side}IPv{version}Address")].as_str().expect("an address");
                format!("{address} {}", record[format!("{side}TransportPort")])
            };
            let mut ends = ["source", "destination"].map(end);
            ends.sort();
            let Some(Some((stream, seen))) = streams.get(&ends) else { continue };
            if tunnelled.contains(stream) {
                continue;
            }
            // SYN, SYN and ACK, ACK, data, FIN, RST.
            let has = |bit: u32| seen >> bit & 1 == 1;
            let outcome = record["outcome"].as_str().expect("a word");
            let is_so = match outcome {
                "midstream" => true,
                "unanswered" => has(0) && !has(1) && !has(4) && !has(5),
                "abandoned" => has(0) && !has(1) && (has(4) || has(5)),
                "rejected" => has(0) && !has(1) && has(5),
                "half-open" | "established" => has(0) && has(1) && !has(4) && !has(5),
                "source-closed" | "destination-closed" => has(0) && has(1) && has(4) && !has(5),
                "closed" => has(0) && has(1) && has(4),
                "source-reset" | "destination-reset" | "both-reset" => has(0) && has(1) && has(5),
                "other" => has(0) && !has(1),
                _ => false,
            };
            assert!(is_so, "{outcome} of {ends:?} in {capture:?}, of which Wireshark has {seen}");
            *compared.entry(outcome.to_owned()).or_default() += 1;
        }
    }
    assert!(corpus("captures").is_none() || compared.len() > 3, "{compared:?}");
}
