//! Counts by time, compared with those of packets one at a time.

use std::collections::{BTreeMap, HashMap};

use packetloom_packet::{FlowRecord, HalfFlow, Timestamp};
use packetloom_report::{Bounds, Counts, Error, Series, SeriesSpec};
use packetloom_testing::amount;
use proptest::prelude::*;

use crate::records::{any_records, half, record};

const SECOND: u64 = 1_000_000_000;

/// The packets of a direction one at a time, each with its interval since 1970.
fn packets(half: &HalfFlow, interval: u64) -> Vec<(u64, Counts)> {
    let [first, last, interval] = [half.first.as_nanos(), half.last.as_nanos(), interval].map(u128::from);
    let (count, bytes) = (u128::from(half.packets), u128::from(half.bytes));
    let span = last.saturating_sub(first);
    let packets = (0..count).map(|packet| {
        // Times are fractions of the gaps between packets.
        let gaps = (count - 1).max(1);
        let at = (first * gaps + packet * span) / (gaps * interval);
        let bytes = bytes * (packet + 1) / count - bytes * packet / count;
        (at as u64, Counts { packets: 1, bytes: bytes as u64, flows: u64::from(packet == 0) })
    });
    packets.collect()
}

fn halves(record: &FlowRecord) -> impl Iterator<Item = (&HalfFlow, bool)> {
    [(&record.forward, false), (&record.reverse, true)].into_iter().filter(|(half, _)| half.packets > 0)
}

/// Counts of all intervals that have any, of those directions that are wanted.
fn count(
    records: &[FlowRecord],
    interval: u64,
    is_wanted: impl Fn(&FlowRecord, bool) -> bool,
) -> BTreeMap<u64, Counts> {
    let mut all: BTreeMap<u64, Counts> = BTreeMap::new();
    for record in records {
        for (half, _) in halves(record).filter(|(_, is_reverse)| is_wanted(record, *is_reverse)) {
            for (at, counts) in packets(half, interval) {
                all.entry(at).or_default().add(counts);
            }
        }
    }
    all
}

fn sum<'a>(counts: impl IntoIterator<Item = &'a Counts>) -> Counts {
    let mut sum = Counts::default();
    counts.into_iter().for_each(|counts| sum.add(*counts));
    sum
}

fn total(records: &[FlowRecord]) -> Counts {
    let mut total = Counts::default();
    for (half, _) in records.iter().flat_map(halves) {
        total.add(Counts { packets: half.packets, bytes: half.bytes, flows: 1 });
    }
    total
}

fn series(records: &[FlowRecord], spec: &str, bounds: Bounds) -> Series {
    let mut series = Series::with_bounds(spec.parse().unwrap(), bounds);
    records.iter().for_each(|record| series.add(record));
    series
}

/// Holds the counts of all intervals against those of packets.
fn check(series: &Series, records: &[FlowRecord]) {
    let interval = series.interval_nanos();
    let counted = count(records, interval, |_, _| true);
    let found: Vec<_> = series.counts().collect();
    assert_eq!(sum(&found), total(records));
    assert_eq!(series.total(), total(records));
    assert_eq!(series.start_nanos(), counted.keys().next().map(|first| first * interval));
    let Some(start) = series.start_nanos() else {
        assert!(found.is_empty());
        return;
    };
    let numbers = start / interval..;
    assert_eq!(numbers.clone().nth(found.len() - 1), counted.keys().last().copied());
    for (number, counts) in numbers.zip(found) {
        assert_eq!(counts, counted.get(&number).copied().unwrap_or_default(), "interval {number}");
    }
}

fn destination_port(record: &FlowRecord, is_reverse: bool) -> u16 {
    if is_reverse { record.source_port } else { record.destination_port }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(amount(64, 2_000)))]

    #[test]
    fn intervals_are_those_of_single_packets(records in any_records(40), interval in prop_oneof![Just("7ms"), Just("1s"), Just("1m"), Just("1d")]) {
        let series = series(&records, interval, Bounds::default());
        prop_assert_eq!(series.interval_nanos(), series.spec().interval_nanos());
        check(&series, &records);
    }

    #[test]
    fn intervals_double_where_there_are_too_many(records in any_records(40), intervals in 0..40_usize) {
        let bounds = Bounds { intervals, ..Bounds::default() };
        let series = series(&records, "100ms/destination-port", bounds);
        prop_assert!(series.counts().len() <= intervals.max(2));
        check(&series, &records);
        for line in series.lines() {
            prop_assert_eq!(sum(&line.counts), line.total);
        }
    }

    #[test]
    fn lines_and_others_are_all(records in any_records(60), lines in 1..8_usize) {
        for measure in ["packets", "bytes", "flows"] {
            let spec: SeriesSpec = format!("10s/destination-port/{measure}").parse().unwrap();
            let mut series = Series::new(spec.with_lines(lines.try_into().unwrap()));
            records.iter().for_each(|record| series.add(record));
            check(&series, &records);
            let found = series.lines();
            let mut all: HashMap<u16, Counts> = HashMap::new();
            for record in &records {
                for (half, is_reverse) in halves(record) {
                    let counts = Counts { packets: half.packets, bytes: half.bytes, flows: 1 };
                    all.entry(destination_port(record, is_reverse)).or_default().add(counts);
                }
            }
            let mut most: Vec<_> = all.values().map(|counts| counts.get(series.spec().measure())).collect();
            most.sort_unstable_by(|left, right| right.cmp(left));
            most.truncate(lines);
            prop_assert_eq!(found.iter().map(|line| line.total.get(series.spec().measure())).collect::<Vec<_>>(), most);
            let first = series.start_nanos().unwrap_or(0) / (10 * SECOND);
            for line in &found {
                let Some(Some(packetloom_export::fields::Value::Number(port))) = line.key.values().next() else {
                    panic!("{:?} is no port", line.key);
                };
                let counted = count(&records, 10 * SECOND, |record, is_reverse| u64::from(destination_port(record, is_reverse)) == port);
                for (number, counts) in (first..).zip(&line.counts) {
                    prop_assert_eq!(*counts, counted.get(&number).copied().unwrap_or_default());
                }
                prop_assert_eq!(line.error, 0);
            }
            for (at, (all, others)) in series.counts().zip(series.others(&found)).enumerate() {
                let mut sum = others;
                found.iter().for_each(|line| sum.add(line.counts[at]));
                prop_assert_eq!(sum, all);
            }
        }
    }

    #[test]
    fn workers_together_are_one(records in any_records(60), cut in 0..60_usize, intervals in prop_oneof![Just(100_000_usize), 2..50_usize]) {
        let bounds = Bounds { intervals, ..Bounds::default() };
        for spec in ["1s", "1s/protocol", "1s/source+vlan/flows"] {
            let one = series(&records, spec, bounds);
            let (left, right) = records.split_at(cut.min(records.len()));
            for (left, right) in [(left, right), (right, left), (&records, &[])] {
                let mut merged = series(left, spec, bounds);
                merged.merge(&series(right, spec, bounds));
                prop_assert_eq!(merged.interval_nanos(), one.interval_nanos());
                prop_assert_eq!(merged.start_nanos(), one.start_nanos());
                prop_assert_eq!(merged.counts().collect::<Vec<_>>(), one.counts().collect::<Vec<_>>());
                prop_assert_eq!(merged.total(), one.total());
                prop_assert_eq!(merged.lines(), one.lines());
            }
        }
    }

    #[test]
    fn errors_beyond_the_bound_are_stated(records in any_records(100), cells in 4..200_usize, cut in 0..100_usize) {
        let bounds = Bounds { cells, ..Bounds::default() };
        let (left, right) = records.split_at(cut.min(records.len()));
        let mut merged = series(left, "10s/source/packets", bounds);
        merged.merge(&series(right, "10s/source/packets", bounds));
        for series in [merged, series(&records, "10s/source/packets", bounds)] {
            check(&series, &records);
            let mut all: HashMap<std::net::IpAddr, u64> = HashMap::new();
            for record in &records {
                for (half, is_reverse) in halves(record) {
                    *all.entry(if is_reverse { record.destination } else { record.source }).or_default() += half.packets;
                }
            }
            for line in series.lines() {
                let Some(Some(packetloom_export::fields::Value::Address(source))) = line.key.values().next() else {
                    panic!("{:?} is no address", line.key);
                };
                let truth = all.remove(&source).expect("a source, once");
                let found = line.total.packets;
                prop_assert!((found..=found + line.error).contains(&truth), "{} is not within {:?}", truth, line);
                prop_assert_eq!(sum(&line.counts), line.total);
                prop_assert!(line.error <= series.floor());
            }
            // Of those that are kept only the first five are lines.
            let is_full = series.lines().len() == SeriesSpec::LINES.get();
            prop_assert!(is_full || all.values().all(|packets| *packets <= series.floor()));
            prop_assert_eq!(series.is_exact(), series.floor() == 0);
        }
    }
}

#[test]
fn packets_lie_evenly_between_the_first_and_the_last_one() {
    let flow = record("192.0.2.1", "192.0.2.2", [1, 2], half(0, 4_000, 5, 104));
    let found: Vec<_> = series(&[flow], "1s", Bounds::default()).counts().collect();
    let counts = |packets, bytes, flows| Counts { packets, bytes, flows };
    assert_eq!(
        found,
        [counts(1, 20, 1), counts(1, 21, 0), counts(1, 21, 0), counts(1, 21, 0), counts(1, 21, 0)]
    );
    let alone = record("192.0.2.1", "192.0.2.2", [1, 2], half(0, 4_000, 1, 104));
    let found: Vec<_> = series(&[alone], "1s", Bounds::default()).counts().collect();
    assert_eq!(found, [counts(1, 104, 1)]);
}

#[test]
fn times_that_cannot_be_do_no_harm() {
    let at = |nanos| Timestamp::from_nanos(nanos);
    let extremes = [
        HalfFlow { first: at(u64::MAX), last: at(0), packets: 3, bytes: 7, tcp_flags: 0 },
        HalfFlow { first: at(0), last: at(u64::MAX), packets: u64::MAX, bytes: u64::MAX, tcp_flags: 0 },
        HalfFlow { first: at(0), last: at(0), packets: 0, bytes: 5, tcp_flags: 0 },
        half(0, 0, 1, 1),
    ];
    for spec in ["1ms", "366d/source", "1s/protocol/flows"] {
        for intervals in [0, 2, 3, 1_000] {
            let mut all = Series::with_bounds(spec.parse().unwrap(), Bounds { intervals, cells: 10 });
            for forward in extremes {
                all.add(&record("192.0.2.1", "192.0.2.2", [1, 2], forward));
            }
            assert_eq!(all.total(), Counts { packets: u64::MAX, bytes: u64::MAX, flows: 4 });
            assert!(all.counts().len() <= intervals.max(2));
            assert_eq!(all.counts().map(|counts| counts.flows).sum::<u64>(), 4);
            let mut twice = all.clone();
            twice.merge(&all);
            assert_eq!(twice.total().flows, 8);
        }
    }
}

#[test]
fn specifications_are_read_and_written() {
    for (text, written) in [
        ("1m", "1m/bytes"),
        ("60s/packets", "1m/packets"),
        ("500ms/protocolIdentifier", "500ms/protocol/bytes"),
        ("1h/source+vlan/flows", "1h/source+vlan/flows"),
        ("24h/sslServerName", "1d/sslServerName/bytes"),
    ] {
        let spec: SeriesSpec = text.parse().unwrap();
        assert_eq!(spec.to_string(), written);
        assert_eq!(written.parse(), Ok(spec));
    }
    for (text, error) in [
        ("", Error::Interval("".into())),
        ("bytes", Error::Interval("bytes".into())),
        ("0s", Error::Interval("0s".into())),
        ("1m/", Error::Field("".into())),
        ("1m/sauce", Error::Field("sauce".into())),
        ("1m/source/octets", Error::Measure("octets".into())),
        ("1m/address", Error::EitherSide("address".into())),
    ] {
        assert_eq!(text.parse::<SeriesSpec>(), Err(error), "{text}");
    }
    assert!("1m/vlan".parse::<SeriesSpec>().unwrap().fields().has_details());
}
