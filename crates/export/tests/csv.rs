//! CSV, as the `csv` crate reads it.

mod samples;

use std::num::NonZeroU32;

use packetloom_export::{Fields, LineFormat, Lines, Sampling};
use packetloom_packet::{EndReason, FlowRecord, HalfFlow, Timestamp};
use serde_json::{Map, Value};

use self::samples::{SEVERAL, detailed, named, v4, v6};

fn csv(fields: Fields) -> Lines {
    Lines::new(LineFormat::Csv, fields)
}

fn read(records: &[FlowRecord], fields: Fields) -> (Vec<String>, Vec<Vec<String>>) {
    let mut text = csv(fields).header().unwrap();
    records.iter().for_each(|record| csv(fields).write(&mut text, record));
    assert_eq!(text.matches("\r\n").count(), records.len() + 1);
    assert_eq!(text.matches('\n').count(), records.len() + 1);
    let mut reader = csv::Reader::from_reader(text.as_bytes());
    let names = reader.headers().unwrap().iter().map(String::from).collect();
    let rows = reader.records().map(|row| row.unwrap().iter().map(String::from).collect());
    (names, rows.collect())
}

fn records() -> Vec<FlowRecord> {
    let edge = HalfFlow {
        first: Timestamp::from_nanos(u64::MAX),
        last: Timestamp::from_nanos(0),
        packets: u64::MAX,
        bytes: u64::MAX,
        tcp_flags: 0xff,
    };
    vec![
        v4(),
        v6(),
        FlowRecord { protocol: 17, ..v4() },
        FlowRecord {
            protocol: 6,
            forward: edge,
            reverse: edge,
            end_reason: EndReason::LackOfResources,
            ..v6()
        },
        FlowRecord { source: "::".parse().unwrap(), ..v4() },
        FlowRecord { destination: "::ffff:192.0.2.7".parse().unwrap(), ..v4() },
        detailed(v4()),
        detailed(v6()),
        named(v6(), &SEVERAL),
    ]
}

/// Each value is that of JSON, each that JSON leaves out is empty, and no key of JSON is missing.
#[test]
fn values_are_those_of_json() {
    for fields in ["basic", "standard", "full", "dnsQName,vlanId"].map(|text| text.parse().unwrap()) {
        let (names, rows) = read(&records(), fields);
        assert_eq!(rows.len(), records().len());
        for (record, row) in records().iter().zip(rows) {
            let mut line = String::new();
            Lines::new(LineFormat::Json, fields).write(&mut line, record);
            let mut expected: Map<String, Value> = serde_json::from_str(&line).unwrap();
            for (name, value) in names.iter().zip(&row) {
                match expected.remove(name) {
                    Some(Value::String(text)) => assert_eq!(value.replace("\\059", ";"), text, "{name}"),
                    Some(Value::Array(texts)) => {
                        let found: Vec<_> = value.split(';').map(|text| text.replace("\\059", ";")).collect();
                        assert_eq!(Value::from(found), Value::from(texts), "{name}");
                    }
                    Some(number) => assert_eq!(*value, number.to_string(), "{name}"),
                    None => assert_eq!(value, "", "{name}"),
                }
            }
            assert!(expected.is_empty(), "{expected:?}");
        }
    }
}

/// Several names are an array in JSON, and in CSV have semicolons between them.
#[test]
fn several_names() {
    let fields = "dnsQName,sslServerName,httpRequestHost".parse().unwrap();
    let record = named(v4(), &SEVERAL);
    let mut text = String::new();
    Lines::new(LineFormat::Json, fields).write(&mut text, &record);
    csv(fields).write(&mut text, &record);
    let json = r#"{"dnsQName":["b.example","a.example","ü"],"httpRequestHost":"x;y,\"z\""}"#;
    assert_eq!(text, format!("{json}\n{}\r\n", r#"b.example;a.example;ü,,"x\059y,""z""""#));
}

/// Where packets are sampled, each record says so, behind all that it says otherwise.
#[test]
fn sampled_records_say_so() {
    let sampling = Some(Sampling { interval: NonZeroU32::new(100).unwrap(), is_random: true });
    for fields in ["basic", "full", "vlanId"].map(|text| text.parse().unwrap()) {
        for record in &records() {
            let [mut plain, mut sampled] = [String::new(), String::new()];
            let json = Lines::new(LineFormat::Json, fields);
            json.write(&mut plain, record);
            json.clone().sampled(sampling).write(&mut sampled, record);
            let mut expected: Map<String, Value> = serde_json::from_str(&plain).unwrap();
            expected.insert("samplingInterval".into(), 100.into());
            assert_eq!(serde_json::from_str::<Map<String, Value>>(&sampled).unwrap(), expected);
            assert!(sampled.ends_with("}\n") && sampled.matches('\n').count() == 1);
            let [mut plain, mut sampled] =
                [csv(fields), csv(fields).sampled(sampling)].map(|lines| lines.header().unwrap());
            csv(fields).write(&mut plain, record);
            csv(fields).sampled(sampling).write(&mut sampled, record);
            let expected = plain.replacen("\r\n", ",samplingInterval\r\n", 1);
            let expected = expected.strip_suffix("\r\n").unwrap();
            assert_eq!(sampled, format!("{expected},100\r\n"));
            assert_eq!(json.clone().sampled(None).header(), None);
        }
    }
}

#[test]
fn a_line() {
    let mut text = String::new();
    let lines = csv(Fields::BASIC);
    lines.write(&mut text, &v4());
    assert_eq!(
        text,
        "1789999999001,1790000000500,4,192.0.2.1,,198.51.100.2,,49152,443,6,5,1234,4294967298,81985529216486895,\
         1789999999002,1790000000500,27,19,2\r\n"
    );
    text.clear();
    lines.write(&mut text, &v6());
    assert_eq!(
        text,
        "1789999999001,1790000000250,6,,2001:db8::1,,2001:db8:1:2:3:4:5:6,53,65535,17,5,1234,0,0,,,,,1\r\n"
    );
}
