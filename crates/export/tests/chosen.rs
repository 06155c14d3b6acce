//! Messages with other than the basic fields: values by a table of their own, and as Wireshark and the crate `netflow_parser` read them.

mod samples;

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use netflow_parser::variable_versions::{ipfix, v9};
use netflow_parser::{NetflowPacket, NetflowParser};
use packetloom_export::Fields;
use packetloom_export::fields::Field;
use packetloom_export::messages::{Encoder, Options, OptionsError, Protocol};
use packetloom_packet::{FlowRecord, NameKind};
use packetloom_testing::collector::{Collector, Fields as Decoded, REVERSE};
use proptest::prelude::*;

use self::samples::{SEVERAL, detailed, millis, named, options, v4, v6};

const NOW: u64 = 1_790_000_000_700;
const CERT: u32 = 6871;

fn with_fields(protocol: Protocol, fields: &str, biflows: bool) -> Options {
    Options { fields: fields.parse().unwrap(), biflows, ..options(protocol) }
}

fn messages(options: &Options, records: &[FlowRecord]) -> Vec<Vec<u8>> {
    let (mut encoder, mut messages) = (Encoder::new(options.clone()).unwrap(), Vec::new());
    let mut send = |bytes: &[u8], _| messages.push(bytes.to_vec());
    records.iter().for_each(|record| encoder.record(record, millis(NOW), &mut send));
    encoder.flush(millis(NOW), &mut send);
    assert!(messages.iter().all(|message| message.len() <= options.message_len));
    messages
}

fn decoded(options: &Options, records: &[FlowRecord]) -> Vec<Decoded> {
    let mut collector = Collector::default();
    messages(options, records).iter().flat_map(|message| collector.message(message).flows).collect()
}

/// A number in so many bytes.
fn number(value: u64, len: usize) -> Vec<u8> {
    value.to_be_bytes()[8 - len..].to_vec()
}

/// Seconds since 1900, and a fraction of 32 bits of which the last 11 are not used, of so many milliseconds.
fn ntp(millis: u64) -> Vec<u8> {
    let fraction = ((millis % 1_000) * (1 << 32)).div_ceil(1_000).div_ceil(2_048) * 2_048;
    [number(millis / 1_000 + 2_208_988_800, 4), number(fraction, 4)].concat()
}

/// What differs by direction in `detailed(v4())`: forward, then reverse.
fn of_directions() -> [BTreeMap<(u32, u16), Vec<u8>>; 2] {
    let times = [(1_789_999_999_001, 1_790_000_000_250), (1_789_999_999_002, 1_790_000_000_500)];
    let counters = [(5, 1_234), (0x1_0000_0002, 0x0123_4567_89ab_cdef)];
    // TCP flags, those of the first packet, class of service, TTLs, lengths, fragment flags.
    let numbers = [
        [0x1b, 2, 0xb8, 63, 64, 40, 65_575, 0x60, 0, 0, 4_094, 65_535, 1],
        [0x13, 0x12, 3, 1, 255, 52, 1_500, 0x40, 8, 1, 0, 1, 0],
    ];
    let elements = [
        ((0, 6), 2),
        ((CERT, 14), 1),
        ((0, 5), 1),
        ((0, 52), 1),
        ((0, 53), 1),
        ((0, 25), 8),
        ((0, 26), 8),
        ((0, 197), 1),
        ((0, 176), 1),
        ((0, 177), 1),
        ((0, 58), 2),
        ((0, 10), 4),
        ((0, 14), 4),
    ];
    let macs = [[vec![2, 0, 0, 0, 0, 1], vec![0xff; 6]], [vec![0; 6], vec![0; 6]]];
    [0, 1].map(|way| {
        let mut fields: BTreeMap<_, _> =
            elements.iter().zip(numbers[way]).map(|(&(id, len), value)| (id, number(value, len))).collect();
        fields.extend([
            ((0, 152), number(times[way].0, 8)),
            ((0, 153), number(times[way].1, 8)),
            ((0, 154), ntp(times[way].0)),
            ((0, 155), ntp(times[way].1)),
            ((0, 2), number(counters[way].0, 8)),
            ((0, 1), number(counters[way].1, 8)),
            ((0, 56), macs[way][0].clone()),
            ((0, 80), macs[way][1].clone()),
        ]);
        fields
    })
}

/// What does not.
fn of_both() -> Vec<((u32, u16), Vec<u8>)> {
    vec![
        ((0, 60), vec![4]),
        ((0, 4), vec![6]),
        ((0, 136), vec![2]),
        ((CERT, 294), b"a \"name\", in full".to_vec()),
    ]
}

const ENDS: [(u16, [u8; 4], u16); 2] = [(8, [192, 0, 2, 1], 49_152), (12, [198, 51, 100, 2], 443)];

#[test]
fn all_fields_of_ipfix() {
    let uniflows = decoded(&with_fields(Protocol::Ipfix, "full", false), &[detailed(v4())]);
    for (way, fields) in of_directions().into_iter().enumerate() {
        let mut expected: Decoded = fields.into_iter().chain(of_both()).collect();
        for (end, (_, address, port)) in ENDS.into_iter().enumerate() {
            let at = if end == way { (8, 7) } else { (12, 11) };
            expected.insert((0, at.0), address.to_vec());
            expected.insert((0, at.1), number(port.into(), 2));
        }
        assert_eq!(uniflows[way], expected);
    }
    assert_eq!(uniflows.len(), 2);

    let [forward, reverse] = of_directions();
    let mut expected: Decoded = forward.into_iter().chain(of_both()).collect();
    for (id, address, port) in ENDS {
        expected.insert((0, id), address.to_vec());
        expected.insert((0, if id == 8 { 7 } else { 11 }), number(port.into(), 2));
    }
    expected.insert((0, 239), vec![1]);
    expected.extend(reverse.into_iter().map(|((enterprise, id), value)| match enterprise {
        CERT => ((CERT, id | 0x4000), value),
        _ => ((REVERSE, id), value),
    }));
    assert_eq!(decoded(&with_fields(Protocol::Ipfix, "full", true), &[detailed(v4())]), [expected]);
}

/// Numbers below 128, and the few above that the basic records have; times are either since the boot time or since 1970.
#[test]
fn all_fields_of_netflow() {
    let old = FlowRecord { forward: v4().reverse, ..detailed(v4()) };
    let records = [detailed(v4()), old];
    let found = decoded(&with_fields(Protocol::NetflowV9, "full", false), &records);
    let [forward, reverse] = of_directions();
    assert_eq!(found.len(), 4);
    for (flow, expected) in found[..2].iter().zip([&forward, &reverse]) {
        for id in [6, 5, 52, 53, 25, 26, 58, 10, 14, 2, 1, 56, 80] {
            let value = &flow[&(0, id)];
            // The same number in other lengths.
            let expected = &expected[&(0, id)];
            let of = |bytes: &[u8]| bytes.iter().fold(0u64, |number, byte| number << 8 | u64::from(*byte));
            let most = if value.len() >= 8 { u64::MAX } else { (1 << (8 * value.len())) - 1 };
            assert_eq!(of(value), of(expected).min(most), "{id}");
        }
        assert!(
            flow.keys()
                .all(|(enterprise, id)| *enterprise == 0 && (*id < 128 || [136, 152, 153].contains(id)))
        );
    }
    assert_eq!(found[0][&(0, 32)], [0, 0]);
    assert_eq!(found[1][&(0, 32)], [8, 1]);
}

/// A record has what is asked for, and nothing else.
#[test]
fn a_choice_of_fields() {
    let options = with_fields(Protocol::Ipfix, "dnsQName,sourceIPv6Address", false);
    let found = decoded(&options, &[detailed(v6())]);
    let source = "2001:db8::1".parse::<std::net::Ipv6Addr>().unwrap().octets().to_vec();
    assert_eq!(found, [Decoded::from([((0, 27), source)])]);
    // With nothing else, a name may be empty.
    let options = with_fields(Protocol::Ipfix, "dnsQName,sslServerName", false);
    let name = b"a \"name\", in full".to_vec();
    assert_eq!(decoded(&options, &[detailed(v6())]), [Decoded::from([((CERT, 294), name)])]);
    assert_eq!(decoded(&options, &[v6()]), [Decoded::from([((CERT, 179), vec![]), ((CERT, 294), vec![])])]);
    // One that says nothing of who it is about is still a record.
    assert_eq!(decoded(&with_fields(Protocol::Ipfix, "vlanId", true), &[v6()])[0][&(0, 58)], [0, 0]);
}

#[test]
fn messages_have_room_for_the_longest_record_and_template() {
    for (protocol, biflows) in
        [(Protocol::Ipfix, false), (Protocol::Ipfix, true), (Protocol::NetflowV9, false)]
    {
        let full = with_fields(protocol, "full", biflows);
        let needs = match Encoder::new(Options { message_len: 128, ..full.clone() }).map(drop) {
            Err(packetloom_export::messages::OptionsError::TooShort { needs }) => needs,
            other => panic!("{other:?}"),
        };
        assert!((129..1_300).contains(&needs), "{needs}");
        let long = named(v4(), &[(NameKind::HttpHost, &"x".repeat(9_999))]);
        let records: Vec<_> = std::iter::repeat_n([long, detailed(v6())], 9).flatten().collect();
        let flows = decoded(&Options { message_len: needs, ..full }, &records);
        assert_eq!(flows.len(), if biflows { 18 } else { 27 });
        if protocol == Protocol::Ipfix {
            assert_eq!(flows[0][&(0, 460)].len(), packetloom_export::fields::NAME_MAX);
        }
    }
}

/// Several names are a list for each kind, in order.
#[test]
fn several_names_are_lists() {
    let record = named(v4(), &SEVERAL);
    let names = [((CERT, 179), "b.example\na.example\nü\n"), ((0, 460), "x;y,\"z\"\n")];
    for biflows in [false, true] {
        let found = decoded(&with_fields(Protocol::Ipfix, "full", biflows), std::slice::from_ref(&record));
        let one = decoded(&with_fields(Protocol::Ipfix, "full", biflows), &[named(v4(), &[])]);
        assert_eq!(found.len(), if biflows { 1 } else { 2 });
        for (found, mut expected) in found.into_iter().zip(one) {
            expected.extend(names.map(|(element, texts)| (element, texts.as_bytes().to_vec())));
            assert_eq!(found, expected);
        }
    }
    // Of one kind alone, if that is what is asked for; and one of several that are of other kinds.
    let options = with_fields(Protocol::Ipfix, "dnsQName", false);
    let list = |text: &str| Decoded::from([((CERT, 179), text.as_bytes().to_vec())]);
    assert_eq!(decoded(&options, std::slice::from_ref(&record))[0], list("b.example\na.example\nü\n"));
    let options = with_fields(Protocol::Ipfix, "httpRequestHost", false);
    let host = b"x;y,\"z\"".to_vec();
    assert_eq!(decoded(&options, &[record])[0], Decoded::from([((0, 460), host)]));
}

/// Those for which a message has no room are left out, and counted.
#[test]
fn names_fit_into_messages() {
    let texts: Vec<_> = (0..16).map(|number| format!("{number:02}{}", "x".repeat(98))).collect();
    let names: Vec<_> = texts.iter().map(|text| (NameKind::DnsQuery, text.as_str())).collect();
    let record = named(v4(), &names);
    for message_len in [700, 1_000, 1_400, 2_100, 3_000] {
        let options = Options { message_len, ..with_fields(Protocol::Ipfix, "full", true) };
        let mut encoder = Encoder::new(options).unwrap();
        let (mut collector, mut flows) = (Collector::default(), Vec::new());
        let mut send = |bytes: &[u8], _| {
            assert!(bytes.len() <= message_len);
            flows.extend(collector.message(bytes).flows);
        };
        // The second one behind another in the same message.
        for record in [&record, &v6(), &record] {
            encoder.record(record, millis(NOW), &mut send);
        }
        encoder.flush(millis(NOW), &mut send);
        let left_out = encoder.names_left_out();
        let mut found = 0;
        for flow in [&flows[0], &flows[2]] {
            let text = String::from_utf8(flow[&(CERT, 179)].clone()).unwrap();
            let lines: Vec<_> = text.lines().collect();
            assert_eq!(lines[..], texts[..lines.len()]);
            found += lines.len() as u64;
        }
        assert_eq!(found + left_out, 32, "{message_len}");
        // All but what other fields take.
        assert!(found / 2 >= ((message_len - 400) / 101).min(16) as u64, "{found} in {message_len}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(packetloom_testing::amount(128, 2_000)))]

    /// Any choice, any lengths of messages: each record arrives, with the elements that the template says.
    #[test]
    fn any_choice_arrives(
        choice in prop::collection::btree_set(0..packetloom_export::fields::ALL.len(), 1..12),
        (protocol, biflows) in prop::sample::select(vec![
            (Protocol::Ipfix, false), (Protocol::Ipfix, true), (Protocol::NetflowV9, false),
        ]),
        message_len in 600..1_500usize,
        kinds in prop::collection::vec(0..5u8, 1..60),
    ) {
        let chosen: Vec<_> = choice.into_iter().map(|at| packetloom_export::fields::ALL[at]).collect();
        let fields = Fields::of(&chosen);
        let options = Options { fields, biflows, message_len, ..options(protocol) };
        // NetFlow v9 knows no names: nothing might be left.
        prop_assume!(protocol == Protocol::Ipfix || fields.has(packetloom_export::fields::Field::Packets));
        // These have no numbers in messages: alone they are refused.
        if protocol == Protocol::Ipfix && chosen.iter().all(|field| [Field::Outcome, Field::Fragments].contains(field)) {
            prop_assert_eq!(options.check(), Err(OptionsError::IpfixFields));
            return Ok(());
        }
        let records: Vec<_> = kinds
            .iter()
            .map(|kind| [v4(), v6(), detailed(v4()), detailed(v6()), named(v4(), &SEVERAL)][usize::from(*kind)].clone())
            .collect();
        let expected: u64 = records.iter().map(|record| options.flows(record)).sum();
        prop_assert_eq!(decoded(&options, &records).len() as u64, expected);
    }
}

#[test]
fn tshark_decodes_all_fields() {
    if !packetloom_testing::has_tshark() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for (protocol, biflows, port) in
        [(Protocol::Ipfix, false, 4739), (Protocol::Ipfix, true, 4739), (Protocol::NetflowV9, false, 2055)]
    {
        let records = [detailed(v4()), detailed(v6()), named(v4(), &SEVERAL)];
        let messages = messages(&with_fields(protocol, "full", biflows), &records);
        let path = folder.path().join("messages.pcap");
        fs::write(&path, samples::capture(&messages, port)).unwrap();
        let output = Command::new("tshark").args(["-T", "pdml", "-r"]).arg(&path).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout).unwrap();
        for complaint in ["_ws.malformed", "_ws.expert", "No template found", "Unknown Field"] {
            assert!(!text.contains(complaint), "{complaint}: {text}");
        }
        let mut shown = vec![
            ("cflow.ttl_min", "show=\"63\""),
            ("cflow.ttl_max", "show=\"64\""),
            ("cflow.vlanid", "show=\"4094\""),
            ("cflow.srcmac", "02:00:00:00:00:01"),
            ("cflow.inputint", "show=\"65535\""),
        ];
        if protocol == Protocol::Ipfix {
            shown.extend([
                ("cflow.abstimestart", "Sep 21, 2026"),
                // It has no names for elements of CERT.
                ("cflow.enterprise_private_entry", "value=\"02\""),
                ("cflow.enterprise_private_entry", "value=\"6120226e616d65222c20696e2066756c6c\""),
            ]);
        }
        for (name, value) in shown {
            let mut lines = text.lines().filter(|line| line.contains(&format!("name=\"{name}\"")));
            let found: Vec<_> = lines.clone().collect();
            assert!(lines.any(|line| line.contains(value)), "{name} {value} in {found:#?}");
        }
    }
}

/// It reads no record in which a text is empty, which RFC 7011 section 7 allows: there is none.
#[test]
fn another_parser_reads_all_messages() {
    let fields = "full";
    for (protocol, biflows) in
        [(Protocol::Ipfix, false), (Protocol::Ipfix, true), (Protocol::NetflowV9, false)]
    {
        let records = [detailed(v4()), v6(), named(v4(), &SEVERAL)];
        let messages = messages(&with_fields(protocol, fields, biflows), &records);
        let mut parser = NetflowParser::default();
        let mut found = 0;
        for message in &messages {
            let parsed = parser.parse_bytes(message);
            assert!(parsed.error.is_none(), "{:?}", parsed.error);
            for packet in parsed.packets {
                match packet {
                    NetflowPacket::IPFix(packet) => {
                        for set in packet.flowsets {
                            if let ipfix::FlowSetBody::Data(data) = set.body {
                                found += data.fields.len();
                            }
                        }
                    }
                    NetflowPacket::V9(packet) => {
                        for set in packet.flowsets {
                            if let v9::FlowSetBody::Data(data) = set.body {
                                found += data.fields.len();
                            }
                        }
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
        assert_eq!(found, if biflows { 3 } else { 5 }, "{protocol:?}");
    }
}
