//! The keys with most, compared with a count of everything.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::net::IpAddr;
use std::num::NonZeroUsize;

use packetloom_export::fields::Value;
use packetloom_packet::{FlowRecord, NameKind};
use packetloom_report::{Counts, Error, Key, Measure, Row, Top, TopSpec};
use packetloom_testing::amount;
use proptest::prelude::*;

use crate::records::{any_records, half, record};

/// One direction, as its packets have it.
struct Uniflow<'a> {
    addresses: [IpAddr; 2],
    ports: [u16; 2],
    vlan: Option<u16>,
    counts: Counts,
    record: &'a FlowRecord,
}

fn uniflows(record: &FlowRecord) -> Vec<Uniflow<'_>> {
    let vlan = |way: usize| record.more.as_ref().and_then(|more| more.details[way].vlan);
    let counts =
        |half: packetloom_packet::HalfFlow| Counts { packets: half.packets, bytes: half.bytes, flows: 1 };
    let mut flows = vec![Uniflow {
        addresses: [record.source, record.destination],
        ports: [record.source_port, record.destination_port],
        vlan: vlan(0),
        counts: counts(record.forward),
        record,
    }];
    if record.reverse.packets > 0 {
        flows.push(Uniflow {
            addresses: [record.destination, record.source],
            ports: [record.destination_port, record.source_port],
            vlan: vlan(1),
            counts: counts(record.reverse),
            record,
        });
    }
    flows
}

/// A field's value as text; none where there is none.
fn value(flow: &Uniflow<'_>, name: &str, side: usize) -> Option<String> {
    let of_kind = |kind: NameKind| {
        let (_, name) = flow.record.more.as_ref()?.names.iter().find(|(found, _)| *found == kind)?;
        Some(name.to_string())
    };
    match name {
        "source" => Some(flow.addresses[0].to_string()),
        "destination" => Some(flow.addresses[1].to_string()),
        "address" => Some(flow.addresses[side].to_string()),
        "source-port" => Some(flow.ports[0].to_string()),
        "destination-port" => Some(flow.ports[1].to_string()),
        "port" => Some(flow.ports[side].to_string()),
        "protocol" => Some(flow.record.protocol.to_string()),
        "ipVersion" => Some(if flow.addresses[0].is_ipv4() { "4" } else { "6" }.into()),
        // A VLAN is known only where there are packets, which there are.
        "vlan" => flow.vlan.map(|vlan| vlan.to_string()),
        "dnsQName" => of_kind(NameKind::DnsQuery),
        "sslServerName" => of_kind(NameKind::TlsServer),
        "httpRequestHost" => of_kind(NameKind::HttpHost),
        _ => panic!("{name}"),
    }
}

type Texts = Vec<Option<String>>;

fn texts(key: &Key) -> Texts {
    let text = |value: Value<'_>| match value {
        Value::Number(number) => number.to_string(),
        Value::Address(address) => address.to_string(),
        Value::Text(text) => text.to_owned(),
        Value::Mac(_) => panic!("no MAC is asked for"),
    };
    key.values().map(|value| value.map(text)).collect()
}

/// All keys with their counts, what has none, and the sum of all that was counted for keys.
fn count(records: &[FlowRecord], spec: &TopSpec) -> (HashMap<Texts, Counts>, Counts) {
    let mut all: HashMap<Texts, Counts> = HashMap::new();
    let mut without = Counts::default();
    for flow in records.iter().flat_map(uniflows) {
        let keys =
            [0, 1].map(|side| spec.field_names().map(|name| value(&flow, name, side)).collect::<Texts>());
        // Both sides count where a field is of either one, even if they are the same.
        let is_either = spec.field_names().any(|name| ["address", "port"].contains(&name));
        let keys = keys.into_iter().take(if is_either { 2 } else { 1 });
        let mut is_any = false;
        for key in keys.filter(|key| key.iter().any(Option::is_some)) {
            all.entry(key).or_default().add(flow.counts);
            is_any = true;
        }
        if !is_any {
            without.add(flow.counts);
        }
    }
    (all, without)
}

fn total(records: &[FlowRecord]) -> Counts {
    let mut total = Counts::default();
    records.iter().flat_map(uniflows).for_each(|flow| total.add(flow.counts));
    total
}

fn spec(text: &str, rows: usize) -> TopSpec {
    text.parse::<TopSpec>().unwrap().with_rows(NonZeroUsize::new(rows).unwrap())
}

fn top(records: &[FlowRecord], spec: TopSpec, keys: usize) -> Top {
    let mut top = Top::with_keys(spec, NonZeroUsize::new(keys).unwrap());
    records.iter().for_each(|record| top.add(record));
    top
}

const SPECS: [&str; 15] = [
    "source",
    "destination/packets",
    "address/bytes",
    "source-port/flows",
    "destination-port",
    "port/packets",
    "protocol/flows",
    "vlan",
    "flow",
    "dnsQName/flows",
    "sourceIPv6Address,destinationTransportPort",
    "address+port/flows",
    "vlan+sslServerName",
    "ipVersion+httpRequestHost/packets",
    "address+vlan+dnsQName",
];

/// What has to hold whatever was evicted or merged.
fn check_guarantees(top: &Top, records: &[FlowRecord], kept: usize) {
    let measure = top.spec().measure();
    let (counted, without) = count(records, top.spec());
    assert_eq!(top.total(), total(records));
    assert_eq!(top.without(), without);
    let sum: u64 = counted.values().map(|counts| counts.get(measure)).sum();
    let most_error = sum / kept as u64;
    assert!(top.floor() <= most_error, "{} of {sum} by {kept}", top.floor());
    let rows = top.rows();
    assert!(rows.is_sorted_by_key(|row| Reverse(row.counts.get(measure))));
    let mut missing = counted.clone();
    for row in &rows {
        let truth = missing.remove(&texts(&row.key)).expect("a key that was counted, once");
        let (found, real) = (row.counts.get(measure), truth.get(measure));
        assert!((found - row.error..=found).contains(&real), "{real} is not within {row:?}");
        assert!(row.error <= top.floor());
        for other in Measure::ALL.into_iter().filter(|it| *it != measure) {
            assert!(row.counts.get(other) <= truth.get(other));
        }
        if row.error == 0 {
            assert_eq!(row.counts, truth);
        }
    }
    for (key, counts) in &missing {
        assert!(counts.get(measure) <= top.floor(), "{key:?} {counts:?} {}", top.floor());
        assert!(counts.get(measure) <= most_error);
    }
    if top.is_exact() {
        assert!(missing.is_empty());
        assert_eq!(top.floor(), 0);
        assert_eq!(top.keys(), counted.len());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(amount(64, 2_000)))]

    #[test]
    fn rows_are_those_of_a_count_of_everything(records in any_records(120), rows in 1..30_usize) {
        for text in SPECS {
            let spec = spec(text, rows);
            let top = top(&records, spec.clone(), 1_000_000);
            let (mut counted, _) = count(&records, &spec);
            let mut highest: Vec<_> = counted.values().map(|counts| Reverse(counts.get(spec.measure()))).collect();
            highest.sort_unstable();
            highest.truncate(rows);
            let found = top.rows();
            let counts: Vec<_> = found.iter().map(|row| Reverse(row.counts.get(spec.measure()))).collect();
            prop_assert_eq!(counts, highest);
            for Row { key, counts, error } in found {
                prop_assert_eq!(Some(*counts), counted.remove(&texts(key)));
                prop_assert_eq!(*error, 0);
            }
            prop_assert!(top.is_exact());
            check_guarantees(&super::top::top(&records, super::top::spec(text, 10_000), 1_000_000), &records, 10_000);
        }
    }

    #[test]
    fn workers_together_are_one(records in any_records(120), cuts in prop::collection::vec(0..120_usize, 0..4)) {
        for text in SPECS {
            let one = top(&records, spec(text, 25), 1_000_000);
            let mut cuts = cuts.clone();
            cuts.push(0);
            cuts.push(records.len());
            cuts.iter_mut().for_each(|cut| *cut = (*cut).min(records.len()));
            cuts.sort_unstable();
            let mut merged = top(&[], spec(text, 25), 1_000_000);
            for part in cuts.windows(2) {
                merged.merge(&top(&records[part[0]..part[1]], spec(text, 25), 1_000_000));
            }
            prop_assert_eq!(merged.rows(), one.rows());
            prop_assert_eq!(merged.total(), one.total());
            prop_assert_eq!(merged.without(), one.without());
            prop_assert!(merged.is_exact());
        }
    }

    #[test]
    fn errors_beyond_the_bound_are_bounded(records in any_records(300), keys in 1..12_usize) {
        for text in SPECS {
            check_guarantees(&top(&records, spec(text, keys), keys), &records, keys);
        }
    }

    #[test]
    fn errors_of_merged_ones_are_bounded(
        records in any_records(300),
        keys in 1..12_usize,
        cuts in prop::collection::vec((0..300_usize, any::<bool>()), 1..5),
    ) {
        for text in SPECS {
            let mut cuts: Vec<_> = cuts.iter().map(|(cut, is_merged)| ((*cut).min(records.len()), *is_merged)).collect();
            cuts.sort_unstable();
            let (mut before, mut merged) = (0, top(&[], spec(text, keys), keys));
            for (cut, is_merged) in cuts.into_iter().chain([(records.len(), true)]) {
                let part = &records[before..cut];
                if is_merged {
                    merged.merge(&top(part, spec(text, keys), keys));
                } else {
                    part.iter().for_each(|record| merged.add(record));
                }
                check_guarantees(&merged, &records[..cut], keys);
                before = cut;
            }
        }
    }
}

#[test]
fn many_keys_at_the_bound() {
    let records: Vec<_> = (0..20_000_u64)
        .map(|number| {
            // One record in four is of one of ten hosts.
            let host = if number % 4 == 0 { number % 10 } else { 1_000 + number };
            let source = format!("10.{}.{}.{}", host >> 16 & 255, host >> 8 & 255, host & 255);
            record(&source, "192.0.2.1", [1, 2], half(number, number, 1 + number % 3, 100 + number % 1_000))
        })
        .collect();
    for text in ["source/bytes", "source/packets", "source/flows"] {
        let top = top(&records, spec(text, 256), 256);
        assert!(!top.is_exact());
        check_guarantees(&top, &records, 256);
        // Numbers from 0 whose remainder by 4 is 0 have even remainders by 10.
        assert!(
            top.rows()[..5].iter().all(|row| texts(&row.key)[0].as_ref().unwrap().starts_with("10.0.0."))
        );
    }
}

#[test]
fn counts_stay_at_the_greatest_number() {
    let huge = record("192.0.2.1", "192.0.2.2", [1, 2], half(0, 1, u64::MAX, u64::MAX));
    let both = FlowRecord { reverse: huge.forward, ..huge };
    let top = top(&[both.clone(), both.clone()], spec("address", 1), 1);
    assert_eq!(top.total(), Counts { packets: u64::MAX, bytes: u64::MAX, flows: 4 });
    assert_eq!(top.rows()[0].counts.bytes, u64::MAX);
    let mut merged = top.clone();
    merged.merge(&top);
    assert_eq!(merged.total().flows, 8);
}

#[test]
fn specifications_are_read_and_written() {
    for (text, written) in [
        ("source", "source/bytes"),
        ("sourceIPv4Address/packets", "source/packets"),
        ("sourceTransportPort , protocolIdentifier/flows", "source-port+protocol/flows"),
        ("flow", "source+destination+source-port+destination-port+protocol/bytes"),
        ("dnsQName+minimumTTL", "dnsQName+minimumTTL/bytes"),
        ("icmpTypeIPv6", "icmp-type/bytes"),
        ("flow,vlan/flows", "source+destination+source-port+destination-port+protocol+vlan/flows"),
    ] {
        let spec: TopSpec = text.parse().unwrap();
        assert_eq!(spec.to_string(), written);
        assert_eq!(written.parse(), Ok(spec));
    }
    for (text, error) in [
        ("", Error::Field("".into())),
        ("sauce", Error::Field("sauce".into())),
        ("source,,vlan", Error::Field("".into())),
        ("source/bytes/packets", Error::Field("source/bytes".into())),
        ("source/octets", Error::Measure("octets".into())),
        ("source/", Error::Measure("".into())),
        ("source+sourceIPv6Address", Error::Twice("source".into())),
        ("flow+protocol", Error::Twice("protocol".into())),
        ("reversePacketDeltaCount", Error::Reverse("reversePacketDeltaCount".into())),
    ] {
        assert_eq!(text.parse::<TopSpec>(), Err(error), "{text}");
    }
    let fields = "vlan+dnsQName".parse::<TopSpec>().unwrap().fields();
    assert_eq!(fields.to_string(), "vlanId,dnsQName");
    assert!(fields.has_details() && fields.has_names());
    assert!(!"flow".parse::<TopSpec>().unwrap().fields().has_details());
}
