//! Messages as decoders that others wrote read them: Wireshark's, and the crate `netflow_parser`.

mod expected;
mod samples;

use std::fs;
use std::process::Command;

use netflow_parser::variable_versions::field_value::FieldValue;
use netflow_parser::variable_versions::{ipfix, v9};
use netflow_parser::{NetflowPacket, NetflowParser};
use packetloom_export::messages::{Encoder, Options, Protocol, Sampling, Statistics};
use packetloom_packet::{EndReason, FlowRecord, HalfFlow};
use roxmltree::{Document, Node};

use self::expected::expected;
use self::samples::{capture, millis, options, v4, v6};
use packetloom_testing::collector::{Collector, Fields, Flow, REVERSE};

const NOW: u64 = 1_790_000_000_700;

/// A number that no element has: the scope of NetFlow v9.
const SCOPE_SYSTEM: u16 = u16::MAX;

const STATISTICS: Statistics = Statistics { messages: 11, records: 12, octets: 13, lost_records: 14 };

/// Flows both ways and one way, of both families, old ones, extremes; more than go into one message.
fn records() -> Vec<FlowRecord> {
    let edge = HalfFlow { packets: u64::MAX, bytes: u64::MAX, tcp_flags: 0xff, ..v4().forward };
    let old = HalfFlow { first: millis(946_684_800_123), last: millis(1_000_000_000_456), ..v4().forward };
    let both = [v4(), v6(), FlowRecord { reverse: v4().reverse, ..v6() }];
    let mut records = Vec::new();
    for (base, port) in both.into_iter().cycle().zip(1..30) {
        records.push(FlowRecord { source_port: port, ..base.clone() });
        records.push(FlowRecord {
            forward: old,
            protocol: port as u8,
            end_reason: EndReason::ForcedEnd,
            ..base
        });
    }
    records.push(FlowRecord { forward: edge, reverse: edge, end_reason: EndReason::LackOfResources, ..v4() });
    records
}

fn all_options() -> [Options; 3] {
    let [ipfix, netflow] = [Protocol::Ipfix, Protocol::NetflowV9].map(options);
    [ipfix.clone(), Options { biflows: true, ..ipfix }, netflow]
}

fn messages(options: &Options) -> Vec<Vec<u8>> {
    let (mut encoder, mut messages) = (Encoder::new(options.clone()).unwrap(), Vec::new());
    let mut send = |bytes: &[u8], _| messages.push(bytes.to_vec());
    records().iter().for_each(|record| encoder.record(record, millis(NOW), &mut send));
    encoder.statistics(&STATISTICS, millis(NOW), &mut send);
    encoder.flush(millis(NOW), &mut send);
    messages
}

fn all_expected(options: &Options) -> Vec<Flow> {
    records().iter().flat_map(|record| expected(record, options.biflows)).collect()
}

/// Wireshark's names for elements, as far as they are used here.
const WIRESHARK: &[(&str, u16)] = &[
    ("cflow.octets", 1),
    ("cflow.packets", 2),
    ("cflow.protocol", 4),
    ("cflow.tcpflags", 6),
    ("cflow.srcport", 7),
    ("cflow.srcaddr", 8),
    ("cflow.dstport", 11),
    ("cflow.dstaddr", 12),
    ("cflow.timeend", 21),
    ("cflow.timestart", 22),
    ("cflow.srcaddrv6", 27),
    ("cflow.dstaddrv6", 28),
    ("cflow.octets_exported", 40),
    ("cflow.packets_exported", 41),
    ("cflow.flows_exported", 42),
    ("cflow.octetsexp", 40),
    ("cflow.packetsexp", 41),
    ("cflow.flowsexp", 42),
    ("cflow.ip_version", 60),
    ("cflow.flow_end_reason", 136),
    ("cflow.flow_exporter", 144),
    ("cflow.od_id", 149),
    ("cflow.abstimestart", 152),
    ("cflow.abstimeend", 153),
    ("cflow.notsent_flows", 166),
    ("cflow.notsent_packets", 167),
    ("cflow.notsent_octets", 168),
    ("cflow.biflow_direction", 239),
    ("cflow.scope_system", SCOPE_SYSTEM),
];

fn bytes_of(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

/// The elements of a record, wherever Wireshark puts them. Numbers and addresses as it shows them have to be the
/// bytes that it points at; the second time and counter of a kind are those of the reverse direction, or the other
/// way round.
fn wireshark_fields(flow: Node<'_, '_>) -> Vec<(u16, Vec<u8>, String)> {
    let mut fields = Vec::new();
    for field in flow.children().filter(|node| node.has_tag_name("field")) {
        let [name, show, value] =
            ["name", "show", "value"].map(|attribute| field.attribute(attribute).unwrap_or_default());
        if name == "cflow.timedelta" {
            fields.extend(wireshark_fields(field));
            continue;
        }
        let id = WIRESHARK.iter().find(|(known, _)| *known == name);
        let id =
            id.unwrap_or_else(|| panic!("{name}: {}", field.attribute("showname").unwrap_or_default())).1;
        fields.push((id, bytes_of(value), show.to_owned()));
    }
    fields
}

#[test]
fn tshark_decodes_every_field() {
    if !packetloom_testing::has_tshark() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for options in all_options() {
        let messages = messages(&options);
        let port = if options.protocol == Protocol::Ipfix { 4739 } else { 2055 };
        let path = folder.path().join("messages.pcap");
        fs::write(&path, capture(&messages, port)).unwrap();
        let output = Command::new("tshark").args(["-T", "pdml", "-r"]).arg(&path).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).unwrap();
        for complaint in ["_ws.malformed", "_ws.expert", "No template found", "Unknown Field"] {
            assert!(!text.contains(complaint), "{complaint}");
        }
        let document = Document::parse(&text).unwrap();
        let packets: Vec<_> = document.descendants().filter(|node| node.has_tag_name("packet")).collect();
        assert_eq!(packets.len(), messages.len());

        let (mut flows, mut counters) = (Vec::new(), Vec::new());
        let mut collector = Collector::default();
        for (packet, bytes) in packets.iter().zip(&messages) {
            // For the header, which is compared, too.
            let message = collector.message(bytes);
            let field = |name: &str| {
                let field = packet.descendants().find(|node| node.attribute("name") == Some(name));
                field.unwrap_or_else(|| panic!("no {name}")).attribute("show").unwrap().to_owned()
            };
            assert_eq!(field("cflow.version"), message.version.to_string());
            assert_eq!(field("cflow.sequence"), message.sequence.to_string());
            let domain = if message.version == 10 { "cflow.od_id" } else { "cflow.source_id" };
            assert_eq!(field(domain), options.domain.to_string());

            for flow in packet.descendants() {
                if !flow.attribute("show").is_some_and(|show| show.starts_with("Flow ")) {
                    continue;
                }
                let fields = wireshark_fields(flow);
                // Where an element is there twice, the first is the reverse one.
                let mut seen = Fields::new();
                for (index, (id, bytes, show)) in fields.iter().enumerate() {
                    let first_of_two = fields[index + 1..].iter().any(|(other, ..)| other == id);
                    let shown = match *id {
                        8 | 12 | 27 | 28 | 152 | 153 | 21 | 22 | SCOPE_SYSTEM => None,
                        6 => Some(u64::from_str_radix(show.trim_start_matches("0x"), 16).unwrap()),
                        _ => Some(show.parse().unwrap()),
                    };
                    if let Some(shown) = shown {
                        assert_eq!(packetloom_testing::collector::number(bytes), shown, "element {id}");
                    }
                    if let 8 | 12 | 27 | 28 = id {
                        let address: std::net::IpAddr = show.parse().unwrap();
                        let octets = match address {
                            std::net::IpAddr::V4(address) => address.octets().to_vec(),
                            std::net::IpAddr::V6(address) => address.octets().to_vec(),
                        };
                        assert_eq!(*bytes, octets);
                    }
                    seen.insert((if first_of_two { REVERSE } else { 0 }, *id), bytes.clone());
                }
                if seen.contains_key(&(0, 136)) {
                    flows.push(Flow::new(&message, &seen));
                } else {
                    counters.push(seen);
                }
            }
        }
        assert_eq!(flows, all_expected(&options));
        check_statistics(&options, &counters);
    }
}

#[test]
fn tshark_reads_how_packets_were_sampled() {
    if !packetloom_testing::has_tshark() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let interval = std::num::NonZeroU32::new(1_000).unwrap();
    for (protocol, is_random, expected) in [
        (
            Protocol::Ipfix,
            false,
            &[
                ("cflow.sampling_interval", "1000"),
                ("cflow.selector_id", "0"),
                ("cflow.selector_algorithm", "1"),
                ("cflow.sampling_packet_interval", "1"),
                ("cflow.sampling_packet_space", "999"),
            ][..],
        ),
        (
            Protocol::Ipfix,
            true,
            &[
                ("cflow.sampling_interval", "1000"),
                ("cflow.selector_id", "0"),
                ("cflow.selector_algorithm", "4"),
                ("cflow.sampling_probability", "0.001"),
            ],
        ),
        (
            Protocol::NetflowV9,
            false,
            &[
                ("cflow.sampling_interval", "1000"),
                ("cflow.sampling_interval", "1000"),
                ("cflow.sampling_algorithm", "1"),
            ],
        ),
        (
            Protocol::NetflowV9,
            true,
            &[
                ("cflow.sampling_interval", "1000"),
                ("cflow.sampling_interval", "1000"),
                ("cflow.sampling_algorithm", "2"),
            ],
        ),
    ] {
        let options = Options { sampling: Some(Sampling { interval, is_random }), ..options(protocol) };
        let port = if protocol == Protocol::Ipfix { 4739 } else { 2055 };
        let path = folder.path().join("messages.pcap");
        fs::write(&path, capture(&messages(&options), port)).unwrap();
        let output = Command::new("tshark").args(["-T", "pdml", "-r"]).arg(&path).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).unwrap();
        for complaint in ["_ws.malformed", "_ws.expert", "No template found", "Unknown Field"] {
            assert!(!text.contains(complaint), "{complaint}");
        }
        let document = Document::parse(&text).unwrap();
        let fields = document.descendants().filter_map(|node| {
            let [name, show] = [node.attribute("name")?, node.attribute("show")?];
            (name.contains("sampling") || name.contains("selector")).then_some((name, show))
        });
        assert_eq!(fields.collect::<Vec<_>>(), expected);
    }
}

/// The two options data records.
fn check_statistics(options: &Options, found: &[Fields]) {
    let scopes = if options.protocol == Protocol::Ipfix { [149, 144] } else { [SCOPE_SYSTEM; 2] };
    let values = [vec![(40, 13), (41, 11), (42, 12)], vec![(166, 14)]];
    assert_eq!(found.len(), 2);
    for ((fields, scope), values) in found.iter().zip(scopes).zip(values) {
        assert_eq!(fields.len(), 1 + values.len());
        for (id, value) in values.into_iter().chain([(scope, options.domain.into())]) {
            assert_eq!(packetloom_testing::collector::number(&fields[&(0, id)]), value, "element {id}");
        }
    }
}

/// The crate's names for elements, as far as they are used here.
const CRATE: &[(&str, u16)] = &[
    ("octetdeltacount", 1),
    ("inbytes", 1),
    ("packetdeltacount", 2),
    ("inpkts", 2),
    ("protocolidentifier", 4),
    ("protocol", 4),
    ("tcpcontrolbits", 6),
    ("tcpflags", 6),
    ("sourcetransportport", 7),
    ("l4srcport", 7),
    ("sourceipv4address", 8),
    ("ipv4srcaddr", 8),
    ("destinationtransportport", 11),
    ("l4dstport", 11),
    ("destinationipv4address", 12),
    ("ipv4dstaddr", 12),
    ("lastswitched", 21),
    ("firstswitched", 22),
    ("sourceipv6address", 27),
    ("ipv6srcaddr", 27),
    ("destinationipv6address", 28),
    ("ipv6dstaddr", 28),
    ("exportedoctettotalcount", 40),
    ("totalbytesexp", 40),
    ("exportedmessagetotalcount", 41),
    ("totalpktsexp", 41),
    ("exportedflowrecordtotalcount", 42),
    ("totalflowsexp", 42),
    ("ipversion", 60),
    ("ipprotocolversion", 60),
    ("flowendreason", 136),
    ("exportingprocessid", 144),
    ("observationdomainid", 149),
    ("flowstartmilliseconds", 152),
    ("flowendmilliseconds", 153),
    ("notsentflowtotalcount", 166),
    ("notsentpackettotalcount", 167),
    ("notsentoctettotalcount", 168),
    ("biflowdirection", 239),
];

/// An element by the name that the crate gives it, such as `ReverseInformationElement(ReversePacketDeltaCount)`.
fn crate_field(field: &dyn std::fmt::Debug, value: &FieldValue) -> ((u32, u16), Vec<u8>) {
    let text = format!("{field:?}").to_lowercase();
    let name = text.rsplit('(').next().unwrap().trim_end_matches(')');
    let (enterprise, name) = name.strip_prefix("reverse").map_or((0, name), |name| (REVERSE, name));
    let id = CRATE.iter().find(|(known, _)| *known == name).unwrap_or_else(|| panic!("{text}")).1;
    let mut bytes = Vec::new();
    value.write_be_bytes(&mut bytes).unwrap();
    ((enterprise, id), bytes)
}

/// All data records of a message.
fn crate_records(packet: &NetflowPacket) -> Vec<Fields> {
    let mut records = Vec::new();
    match packet {
        NetflowPacket::IPFix(packet) => {
            let fields = |record: &Vec<ipfix::IPFixFieldPair>| {
                record.iter().map(|(field, value)| crate_field(field, value)).collect()
            };
            for set in &packet.flowsets {
                match &set.body {
                    ipfix::FlowSetBody::Templates(_) | ipfix::FlowSetBody::OptionsTemplate(_) => {}
                    ipfix::FlowSetBody::Data(data) => records.extend(data.fields.iter().map(fields)),
                    ipfix::FlowSetBody::OptionsData(data) => records.extend(data.fields.iter().map(fields)),
                    other => panic!("{other:?}"),
                }
            }
        }
        NetflowPacket::V9(packet) => {
            let fields = |record: &Vec<v9::V9FieldPair>| -> Fields {
                record.iter().map(|(field, value)| crate_field(field, value)).collect()
            };
            for set in &packet.flowsets {
                match &set.body {
                    v9::FlowSetBody::Template(_) | v9::FlowSetBody::OptionsTemplate(_) => {}
                    v9::FlowSetBody::Data(data) => records.extend(data.fields.iter().map(fields)),
                    v9::FlowSetBody::OptionsData(data) => {
                        for record in &data.fields {
                            let mut found = fields(&record.options_fields);
                            let [v9::ScopeDataField::System(system)] = &record.scope_fields[..] else {
                                panic!("{:?}", record.scope_fields)
                            };
                            found.insert((0, SCOPE_SYSTEM), system.clone());
                            records.push(found);
                        }
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
        other => panic!("{other:?}"),
    }
    records
}

#[test]
fn netflow_parser_decodes_every_field() {
    for options in all_options() {
        let (mut flows, mut counters) = (Vec::new(), Vec::new());
        let (mut parser, mut collector) = (NetflowParser::default(), Collector::default());
        for bytes in messages(&options) {
            // For the boot time.
            let message = collector.message(&bytes);
            let result = parser.parse_bytes(&bytes);
            assert!(result.error.is_none(), "{:?}", result.error);
            let [packet] = &result.packets[..] else {
                panic!("{} packets of a message", result.packets.len())
            };
            for fields in crate_records(packet) {
                if fields.contains_key(&(0, 136)) {
                    flows.push(Flow::new(&message, &fields));
                } else {
                    counters.push(fields);
                }
            }
        }
        assert_eq!(flows, all_expected(&options));
        check_statistics(&options, &counters);
    }
}
