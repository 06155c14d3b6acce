//! The batch form against the oracle; timeouts, capacity, sweeping, and the order of records.

use std::any::Any;
use std::collections::HashMap;
use std::net::IpAddr;

use packetloom_export::fields::Field;
use packetloom_export::{Fields, LineFormat};
use packetloom_packet::batch::Policy;
use packetloom_packet::{Batch, DropReason, EndReason, FlowRecord, HalfFlow, LinkType, Timestamp, Verdict};
use proptest::prelude::*;
use serde_json::json;

use super::{Framings, Meter, MeterReport, Settings};
use crate::batch::{Captured, fill};
use crate::flows::{Cursor, End, Ending, FlowFunction, Flows, Found, OracleFlows, StateAt, Sweep};
use crate::frames::{Fragment, Packet, Transport, ethernet};
use crate::registry::Registration;
use crate::{Context, FunctionSpec, PerFlow, Records, Report};

const SECOND: u64 = 1_000_000_000;

/// A meter with timeouts in nanoseconds, 0 for none.
fn meter(idle: u64, active: u64, max_flows: usize) -> Meter {
    let span = |nanos: u64| format!("{nanos}ns").parse().expect("a span");
    let framings = Framings::Basic;
    Meter::new(Settings {
        idle: span(idle),
        active: span(active),
        end_of_flow: false,
        vlan_in_key: false,
        max_flows,
        framings,
        fields: Fields::BASIC,
        format: LineFormat::Json,
        output: None,
        exports: Vec::new(),
        reports: None,
        sampling: None,
    })
}

/// The same with other fields in its records.
fn with_fields(meter: &Meter, fields: Fields) -> Meter {
    Meter::new(Settings { fields, ..meter.settings.clone() })
}

/// The same whose records of TCP end with their connections.
fn ending(meter: &Meter) -> Meter {
    Meter::new(Settings { end_of_flow: true, ..meter.settings.clone() })
}

/// The same with the VLAN as a part of its flows.
fn by_vlan(meter: &Meter) -> Meter {
    let fields = meter.settings.fields.and(Fields::of(&[Field::Vlan]));
    Meter::new(Settings { vlan_in_key: true, fields, ..meter.settings.clone() })
}

/// A meter with its table, as one of so many workers has them.
struct Alone {
    function: Box<dyn FlowFunction>,
    flows: Flows,
    cursor: Cursor,
    sweep: Option<Sweep>,
    ending: Ending,
    /// Of its state.
    words: usize,
}

impl Alone {
    fn new(meter: &Meter, workers: usize) -> Self {
        let definition = meter.own().expect("it has one to itself");
        let words = meter.keeps().words;
        let flows = Flows::growing(&definition, workers, words, [3, 4]);
        Self {
            function: meter.function(StateAt::default()),
            cursor: Cursor::new(&flows),
            flows,
            sweep: definition.timeout.limit().map(|_| Sweep::default()),
            ending: Ending::default(),
            words,
        }
    }

    fn process(&mut self, batch: &mut Batch, records: &mut Records<'_>) {
        let Self { function, flows, cursor, .. } = self;
        cursor.extract_keys(batch, flows);
        function.select(batch, cursor);
        cursor.visit(flows, true, false, batch, |batch, flows| function.process(batch, flows, records));
        self.leave(records);
    }

    fn leave(&mut self, records: &mut Records<'_>) {
        self.flows.each_ended(|entry, end| {
            if let Some(state) = entry.state_words(StateAt::default(), self.words) {
                self.function.on_end(&entry.flow(), state, end, records);
            }
        });
        self.flows.leave();
    }

    fn expire(&mut self, now: Timestamp, packets: usize, records: &mut Records<'_>) {
        if let Some(sweep) = &mut self.sweep {
            self.flows.sweep(sweep, now, packets);
            self.leave(records);
        }
    }

    fn drain(&mut self, most: usize, records: &mut Records<'_>) -> bool {
        let at = (StateAt::default(), self.words);
        self.ending.step(&mut *self.function, at, &mut self.flows, most, records)
    }

    fn report(&self) -> Box<dyn Report> {
        self.function.report(&self.flows)
    }
}

fn report_of(report: &dyn Report) -> MeterReport {
    (report as &dyn Any).downcast_ref::<MeterReport>().expect("a meter's report").clone()
}

/// What a meter made of some packets.
#[derive(Debug, PartialEq)]
struct Outcome {
    /// In the order in which they were handed out.
    records: Vec<FlowRecord>,
    report: MeterReport,
}

impl Outcome {
    /// With the records in an order that all that they have decides.
    fn sorted(mut self) -> Self {
        let half = |half: &HalfFlow| (half.first, half.last, half.packets, half.bytes, half.tcp_flags);
        let key = |record: &FlowRecord| {
            let ends = (record.source, record.source_port, record.destination, record.destination_port);
            (ends, record.protocol, half(&record.forward), half(&record.reverse))
        };
        // Few are equal so far: such as those of ICMP of other kinds, or of one VLAN beside another.
        let in_full = |record: &FlowRecord| format!("{record:?}");
        self.records.sort_unstable_by(|a, b| key(a).cmp(&key(b)).then_with(|| in_full(a).cmp(&in_full(b))));
        self
    }
}

/// The VLAN of each direction of a record.
fn vlans_of(record: &FlowRecord) -> Option<[Option<u16>; 2]> {
    record.more.as_ref().map(|more| more.details.map(|details| details.vlan))
}

/// Takes frames through the batch form, `size` at a time, without what remains at the end.
fn feed(function: &mut Alone, frames: &[Captured], size: usize, records: &mut Vec<FlowRecord>) {
    let mut batch = Batch::new(size);
    for frames in frames.chunks(size) {
        fill(&mut batch, frames);
        batch.parse(Policy::PASS);
        function.process(&mut batch, &mut |record| records.push(record.clone()));
        assert!(batch.verdicts().iter().all(|verdict| verdict.is_pass()), "a meter drops nothing");
    }
}

fn drain(function: &mut Alone, records: &mut Vec<FlowRecord>) {
    while function.drain(7, &mut |record| records.push(record.clone())) {}
}

fn expire(function: &mut Alone, now: u64, packets: usize) -> Vec<FlowRecord> {
    let mut records = Vec::new();
    function.expire(Timestamp::from_nanos(now), packets, &mut |record| records.push(record.clone()));
    records
}

fn by_batches(meter: &Meter, frames: &[Captured], size: usize) -> Outcome {
    let mut function = Alone::new(meter, 1);
    let mut records = Vec::new();
    feed(&mut function, frames, size, &mut records);
    drain(&mut function, &mut records);
    Outcome { records, report: report_of(&*function.report()) }
}

fn one_by_one(meter: &Meter, frames: &[Captured]) -> Outcome {
    let mut oracle = meter.oracle();
    let mut flows = OracleFlows::new(meter.own().expect("it has one to itself"));
    let mut records = Vec::new();
    let mut take = |record: &FlowRecord| records.push(record.clone());
    for frame in frames {
        let mut packet = frame.for_oracle();
        if !oracle.select(&packet) {
            continue;
        }
        let found = flows.find_or_insert(&packet, packet.ip.as_ref().expect("it was selected"));
        for (life, flow, end) in flows.take_ended() {
            oracle.on_end(life, &flow, end, &mut take);
        }
        let Found::Flow(flow) = found else { panic!("there is room") };
        assert_eq!(oracle.step(&mut packet, &flow, &mut take), Verdict::Pass);
    }
    let mut left: Vec<_> = flows.names().collect();
    left.sort_by_key(|&(_, life)| oracle.rank(life));
    left.iter().for_each(|(flow, life)| oracle.on_end(*life, flow, End::Run, &mut take));
    Outcome { records, report: report_of(&*oracle.report(&flows)) }
}

/// Packets, bytes, records and directions of records, against what was counted.
fn check_totals(outcome: &Outcome) {
    let halves = || outcome.records.iter().flat_map(|record| [record.forward, record.reverse]);
    let report = &outcome.report;
    assert_eq!(halves().map(|half| half.packets).sum::<u64>(), report.counted_packets);
    assert_eq!(halves().map(|half| half.bytes).sum::<u64>(), report.counted_ip_bytes);
    assert_eq!(halves().filter(|half| half.packets > 0).count() as u64, report.uniflows);
    assert_eq!(outcome.records.len() as u64, report.biflows);
    assert_eq!(report.frames, report.counted_packets + report.not_counted.total());
    for (reason, count) in [
        (EndReason::IdleTimeout, report.ended.idle_timeout),
        (EndReason::ActiveTimeout, report.ended.active_timeout),
        (EndReason::EndOfFlow, report.ended.end_of_flow),
        (EndReason::ForcedEnd, report.ended.forced_end),
        (EndReason::LackOfResources, report.ended.lack_of_resources),
    ] {
        assert_eq!(outcome.records.iter().filter(|record| record.end_reason == reason).count() as u64, count);
    }
    assert!(outcome.records.iter().all(|record| record.forward.packets > 0));
}

/// The two ends and the protocol of a record, in either direction.
fn flow_of(record: &FlowRecord) -> (u8, [(IpAddr, u16); 2]) {
    let mut ends = [(record.source, record.source_port), (record.destination, record.destination_port)];
    ends.sort_unstable();
    (record.protocol, ends)
}

/// Packets of a few endpoints, so that many belong to one flow, in both directions.
fn packet(families: &'static [u8]) -> impl Strategy<Value = Packet> {
    let port = || prop::sample::select(vec![0, 53, 443]);
    let flags = prop::sample::select(vec![0x00, 0x02, 0x12, 0x10, 0x11, 0x11, 0x14]);
    let transport = prop_oneof![
        3 => (port(), port(), flags).prop_map(|(source, destination, flags)| Transport::Tcp(source, destination, flags)),
        3 => (port(), port()).prop_map(|(source, destination)| Transport::Udp(source, destination)),
        1 => (port(), port()).prop_map(|(source, destination)| Transport::Sctp(source, destination)),
        1 => any::<[bool; 2]>().prop_map(|[kind, code]| Transport::Icmp(kind.into(), code.into())),
        1 => any::<bool>().prop_map(|kind| Transport::Icmpv6(kind.into(), 0)),
        1 => Just(Transport::Other(47)),
    ];
    let fragment = prop_oneof![6 => Just(Fragment::Whole), 1 => Just(Fragment::First), 1 => Just(Fragment::Later(2, true))];
    // The same numbers in both families: they are not the same flows.
    let address = |family: u8, last: u8| match family {
        4 => IpAddr::from([0, 0, 0, last]),
        _ => IpAddr::from(std::net::Ipv6Addr::from(u128::from(last))),
    };
    (prop::sample::select(families), [1..4u8, 1..4u8], transport, fragment, 0..20usize).prop_map(
        move |(family, [source, destination], transport, fragment, payload)| Packet {
            fragment,
            payload,
            ..Packet::new(address(family, source), address(family, destination), transport)
        },
    )
}

/// Packets, now and then frames that are none, at times that mostly grow.
fn traffic(families: &'static [u8], backwards: bool) -> impl Strategy<Value = Vec<Captured>> {
    let steps = if backwards {
        vec![0, 1, 5, 299, 300, 999, 1_000, 1_001, 3_000, -1, -300, -1_000, -5_000]
    } else {
        vec![0, 1, 5, 299, 300, 999, 1_000, 1_001, 3_000]
    };
    let tag = prop_oneof![3 => Just(None), 1 => (0..3u8).prop_map(Some)];
    let whole =
        (packet(families), any::<[u8; 2]>(), 60..66u8, tag).prop_map(|(packet, [class, flags], ttl, tag)| {
            let mut frame = Captured::new(0, &packet);
            let header = &mut frame.bytes[14..];
            if header[0] >> 4 == 4 {
                (header[1], header[8]) = (class, ttl);
                // Do not fragment.
                header[6] |= flags & 0x40;
            } else {
                header[0] |= class >> 4;
                header[1] |= class << 4;
                header[7] = ttl;
            }
            frame.bytes[5] = tag.unwrap_or(9);
            if let Some(id) = tag {
                frame.bytes.splice(12..12, [0x81, 0, 0xe0, id]);
            }
            frame
        });
    let cut = (packet(families), 0..50usize).prop_map(|(packet, len)| {
        let mut frame = Captured::new(0, &packet);
        frame.bytes.truncate(len);
        frame
    });
    let arp = Just(Captured { nanos: 0, link: LinkType::ETHERNET, bytes: ethernet(0x0806, &[0; 28]) });
    let frame = prop_oneof![16 => whole, 1 => cut, 1 => arp];
    prop::collection::vec((frame, prop::sample::select(steps)), 0..200).prop_map(|frames| {
        let mut now = 10_000i64;
        frames
            .into_iter()
            .map(|(frame, step)| {
                now = (now + step).max(0);
                Captured { nanos: now as u64, ..frame }
            })
            .collect()
    })
}

/// No timeout, or one that the steps of time fall short of, meet or exceed.
fn timeout() -> impl Strategy<Value = u64> {
    prop::sample::select(vec![0, 1, 300, 1_000, 3_000])
}

/// The same frames with `unit` instead of each nanosecond.
fn slower(frames: &[Captured], unit: u64) -> Vec<Captured> {
    frames.iter().map(|frame| Captured { nanos: frame.nanos * unit, ..frame.clone() }).collect()
}

const BOTH: &[u8] = &[4, 6];

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config(1_024))]

    #[test]
    fn batches_give_the_oracles_records(
        frames in traffic(BOTH, true), idle in timeout(), active in timeout(), size in 1..=100usize,
    ) {
        let basic = meter(idle, active, 1_000);
        let [standard, full] = [Fields::STANDARD, Fields::FULL].map(|fields| with_fields(&basic, fields));
        for meter in [ending(&basic), ending(&full), by_vlan(&basic), ending(&by_vlan(&full)), basic, standard, full] {
            let found = by_batches(&meter, &frames, size);
            check_totals(&found);
            prop_assert_eq!(found.sorted(), one_by_one(&meter, &frames).sorted());
        }
    }

    #[test]
    fn what_is_left_at_the_end_comes_in_the_oracles_order(
        frames in traffic(BOTH, true), idle in timeout(), active in timeout(), size in 1..=100usize,
    ) {
        let meter = meter(idle, active, 1_000);
        let meter = if size % 2 == 0 { by_vlan(&meter) } else { meter };
        let left = |outcome: Outcome| -> Vec<_> {
            outcome.records.into_iter().filter(|record| record.end_reason == EndReason::ForcedEnd).collect()
        };
        prop_assert_eq!(left(by_batches(&meter, &frames, size)), left(one_by_one(&meter, &frames)));
    }

    #[test]
    fn with_room_for_one_flow_there_is_one_that_can_go(
        frames in traffic(BOTH, true), idle in timeout(), active in timeout(), size in 1..=100usize,
    ) {
        let meter = meter(idle, active, 1);
        for meter in [ending(&meter), by_vlan(&meter), meter] {
            let found = by_batches(&meter, &frames, size);
            check_totals(&found);
            prop_assert_eq!(found.sorted(), one_by_one(&meter, &frames).sorted());
        }
    }

    #[test]
    fn at_capacity_nothing_is_lost_and_no_more_is_held(
        frames in traffic(BOTH, true), idle in timeout(), active in timeout(), capacity in 1..=20usize, size in 2..=100usize,
    ) {
        let meter = meter(idle, active, capacity);
        let mut function = Alone::new(&meter, 1);
        let mut records = Vec::new();
        feed(&mut function, &frames, size, &mut records);
        let before = records.len();
        drain(&mut function, &mut records);
        for is_v4 in [true, false] {
            let held = records[before..].iter().filter(|record| record.source.is_ipv4() == is_v4).count();
            prop_assert!(held <= capacity, "{} flows held", held);
        }
        // None goes before there are as many.
        if records.iter().any(|record| record.end_reason == EndReason::LackOfResources) {
            prop_assert!(records.len() > capacity);
        }
        let outcome = Outcome { records, report: report_of(&*function.report()) };
        check_totals(&outcome);
        // Each flow has the packets it would have without a limit, in however many records.
        let totals = |records: &[FlowRecord]| {
            let mut totals: HashMap<_, [u64; 2]> = HashMap::new();
            for record in records {
                let [packets, bytes] = totals.entry(flow_of(record)).or_default();
                *packets += record.forward.packets + record.reverse.packets;
                *bytes += record.forward.bytes + record.reverse.bytes;
            }
            totals
        };
        let oracle = one_by_one(&meter, &frames);
        prop_assert_eq!(totals(&outcome.records), totals(&oracle.records));
        prop_assert_eq!(outcome.report.not_counted, oracle.report.not_counted);
    }

    #[test]
    fn sweeps_show_in_nothing_but_the_reason_of_the_last_record(
        frames in traffic(BOTH, false), idle in timeout(), active in timeout(), size in 1..=20usize,
    ) {
        // In seconds, so that most sweeps go over the whole table.
        let frames = slower(&frames, SECOND);
        let (idle, active) = (idle * SECOND, active * SECOND);
        let meter = meter(idle, active, 1_000);
        let (mut function, mut records) = (Alone::new(&meter, 1), Vec::new());
        for frames in frames.chunks(size) {
            feed(&mut function, frames, size, &mut records);
            let now = frames.last().expect("a chunk is not empty").nanos;
            for record in expire(&mut function, now, frames.len()) {
                prop_assert_eq!(record.end_reason, EndReason::IdleTimeout);
                prop_assert!(idle > 0 && now - record.end().as_nanos() >= idle, "{:?} is not idle", record);
                records.push(record);
            }
        }
        drain(&mut function, &mut records);
        let found = Outcome { records, report: report_of(&*function.report()) };
        check_totals(&found);
        // A flow that never came again ends with the input for the oracle, and may have been found idle here.
        let mut expected = one_by_one(&meter, &frames).sorted().records;
        for record in &mut expected {
            let swept = FlowRecord { end_reason: EndReason::IdleTimeout, ..record.clone() };
            if record.end_reason == EndReason::ForcedEnd && found.records.contains(&swept) {
                *record = swept;
            }
        }
        let expected = Outcome { records: expected, report: found.report.clone() };
        prop_assert_eq!(found.sorted(), expected.sorted());
    }

    #[test]
    fn sweeps_never_change_the_totals(
        frames in traffic(BOTH, true),
        idle in timeout(),
        capacity in 1..=50usize,
        size in 1..=20usize,
        nows in prop::collection::vec(prop_oneof![4 => 0..60_000u64, 1 => Just(u64::MAX / SECOND)], 1..20),
    ) {
        let frames = slower(&frames, SECOND);
        let meter = meter(idle * SECOND, 0, capacity);
        let (mut function, mut records) = (Alone::new(&meter, 1), Vec::new());
        for (frames, now) in frames.chunks(size).zip(nows.iter().cycle()) {
            feed(&mut function, frames, size, &mut records);
            records.extend(expire(&mut function, now * SECOND, frames.len()));
        }
        drain(&mut function, &mut records);
        let outcome = Outcome { records, report: report_of(&*function.report()) };
        check_totals(&outcome);
        prop_assert_eq!(outcome.report.counted_packets, one_by_one(&meter, &frames).report.counted_packets);
    }

    #[test]
    fn reports_of_workers_add_up(frames in traffic(BOTH, true), idle in timeout(), active in timeout()) {
        let meter = meter(idle, active, 1_000);
        // Both directions of a flow go to one worker.
        let worker_of = |frame: &Captured| {
            let ip = frame.for_oracle().ip.ok()?;
            Some(usize::from(ip.protocol == 6 || ip.source == ip.destination))
        };
        let mut parts = [Vec::new(), Vec::new()];
        for frame in &frames {
            parts[worker_of(frame).unwrap_or(0)].push(frame.clone());
        }
        let [mut first, second] = parts.map(|frames| by_batches(&meter, &frames, 10));
        let whole = one_by_one(&meter, &frames);
        first.report.merge(&second.report);
        prop_assert_eq!(first.report.json(), whole.report.json());
        prop_assert_eq!(first.report.rows(), whole.report.rows());
        first.records.extend(second.records);
        prop_assert_eq!(first.sorted(), whole.sorted());
    }
}

const A: [u8; 4] = [10, 0, 0, 1];
const B: [u8; 4] = [10, 0, 0, 2];

fn udp(nanos: u64, source: ([u8; 4], u16), destination: ([u8; 4], u16)) -> Captured {
    Captured::new(
        nanos,
        &Packet::new(source.0.into(), destination.0.into(), Transport::Udp(source.1, destination.1)),
    )
}

/// Holds both forms to the same list: start, end, packets forward and reverse, reason.
fn check_records(meter: &Meter, frames: &[Captured], expected: &[(u64, u64, u64, u64, EndReason)]) {
    for outcome in [by_batches(meter, frames, 100), by_batches(meter, frames, 1), one_by_one(meter, frames)] {
        let found: Vec<_> = outcome
            .records
            .iter()
            .map(|r| {
                let (start, end) = (r.start().as_nanos(), r.end().as_nanos());
                (start, end, r.forward.packets, r.reverse.packets, r.end_reason)
            })
            .collect();
        assert_eq!(found, expected);
    }
}

#[test]
fn timeouts_are_reached_by_gaps_as_long_as_they() {
    use EndReason::{ActiveTimeout, ForcedEnd, IdleTimeout};
    let at = |times: &[u64]| -> Vec<_> { times.iter().map(|&nanos| udp(nanos, (A, 1), (B, 2))).collect() };
    // Idle: one short of it, and exactly it.
    check_records(&meter(100, 0, 9), &at(&[1_000, 1_099]), &[(1_000, 1_099, 2, 0, ForcedEnd)]);
    check_records(
        &meter(100, 0, 9),
        &at(&[1_000, 1_100]),
        &[(1_000, 1_000, 1, 0, IdleTimeout), (1_100, 1_100, 1, 0, ForcedEnd)],
    );
    // Active: since the first packet, however busy the flow.
    check_records(&meter(0, 100, 9), &at(&[1_000, 1_050, 1_099]), &[(1_000, 1_099, 3, 0, ForcedEnd)]);
    check_records(
        &meter(0, 100, 9),
        &at(&[1_000, 1_050, 1_100, 1_199]),
        &[(1_000, 1_050, 2, 0, ActiveTimeout), (1_100, 1_199, 2, 0, ForcedEnd)],
    );
    // Where both are reached, the flow was idle.
    check_records(
        &meter(100, 100, 9),
        &at(&[1_000, 1_100]),
        &[(1_000, 1_000, 1, 0, IdleTimeout), (1_100, 1_100, 1, 0, ForcedEnd)],
    );
    // None at all.
    check_records(&meter(0, 0, 9), &at(&[0, u64::MAX]), &[(0, u64::MAX, 2, 0, ForcedEnd)]);
    // Time that runs backwards counts as none: the latest packet stays at 2,000.
    check_records(&meter(100, 0, 9), &at(&[2_000, 500, 2_099]), &[(2_000, 2_099, 3, 0, ForcedEnd)]);
    check_records(&meter(100, 1_000, 9), &at(&[2_000, 500, 1_500]), &[(2_000, 2_000, 3, 0, ForcedEnd)]);
}

#[test]
fn an_answer_keeps_a_flow_alive_and_is_its_reverse() {
    use EndReason::ForcedEnd;
    let frames = [
        udp(1_000, (B, 2), (A, 1)),
        udp(1_090, (A, 1), (B, 2)),
        udp(1_180, (B, 2), (A, 1)),
        udp(1_270, (A, 1), (B, 2)),
    ];
    check_records(&meter(100, 0, 9), &frames, &[(1_000, 1_270, 2, 2, ForcedEnd)]);
    let record = &by_batches(&meter(100, 0, 9), &frames, 100).records[0];
    assert_eq!((record.source, record.source_port), (B.into(), 2), "the first sender is the source");
    assert_eq!((record.destination, record.destination_port, record.protocol), (A.into(), 1, 17));
    let times = [record.forward, record.reverse]
        .map(|half| (half.first.as_nanos(), half.last.as_nanos(), half.bytes));
    assert_eq!(times, [(1_000, 1_180, 56), (1_090, 1_270, 56)]);
}

/// Each VLAN has flows of its own, with both directions, and so have packets that are in none: a tag with the number 0 is a priority alone. Inner
/// tags do not matter.
#[test]
fn vlans_tell_flows_apart_where_they_are_part_of_them() {
    let in_vlan = |tags: &[[u8; 4]], frame: Captured| {
        let bytes = [&frame.bytes[..12], tags.as_flattened(), &frame.bytes[12..]].concat();
        Captured { bytes, ..frame }
    };
    let v6 = |nanos, is_answer: bool| {
        let [a, b] = [1, 2].map(|last: u128| IpAddr::from(last.to_be_bytes()));
        let (source, destination) = if is_answer { ((b, 2), (a, 1)) } else { ((a, 1), (b, 2)) };
        let transport = Transport::Udp(source.1, destination.1);
        Captured::new(nanos, &Packet::new(source.0, destination.0, transport))
    };
    let v4 = |nanos, is_answer: bool| {
        if is_answer { udp(nanos, (B, 2), (A, 1)) } else { udp(nanos, (A, 1), (B, 2)) }
    };
    // What stands before the EtherType, and the VLAN.
    let tags: [(&[[u8; 4]], u16); 6] = [
        (&[], 0),
        (&[[0x81, 0, 0, 1]], 1),
        (&[[0x88, 0xa8, 0x71, 0], [0x81, 0, 0, 1]], 0x100),
        (&[[0x91, 0, 0xff, 0xff]], 0xfff),
        (&[[0x81, 0, 0xe0, 0]], 0),
        // Of the same VLAN as another one, with another priority and inner tag.
        (&[[0x81, 0, 0xa1, 0], [0x81, 0, 0, 9]], 0x100),
    ];
    for packet in [&v4 as &dyn Fn(u64, bool) -> Captured, &v6] {
        let all = [false, true].into_iter().flat_map(|is_answer| tags.map(|(tags, _)| (tags, is_answer)));
        let frames: Vec<_> = (1..)
            .zip(all)
            .map(|(nanos, (tags, is_answer))| in_vlan(tags, packet(nanos, is_answer)))
            .collect();
        let alone = meter(0, 0, 99);
        for outcome in [by_batches(&alone, &frames, 4), one_by_one(&alone, &frames)] {
            assert_eq!(outcome.records.len(), 1);
        }
        for meter in [by_vlan(&alone), ending(&by_vlan(&alone))] {
            for outcome in [by_batches(&meter, &frames, 4), one_by_one(&meter, &frames)] {
                let found = outcome.records.iter().map(|record| {
                    let vlans = vlans_of(record).expect("details").map(|vlan| vlan.unwrap_or(0));
                    (vlans, record.forward.packets, record.reverse.packets, record.source_port)
                });
                let expected = [(0, 2), (1, 1), (0x100, 2), (0xfff, 1)];
                let expected = expected.map(|(vlan, packets)| ([vlan; 2], packets, packets, 1));
                assert_eq!(found.collect::<Vec<_>>(), expected);
            }
        }
    }
}

#[test]
fn a_flow_with_itself_has_one_direction() {
    let frames = [udp(1, (A, 7), (A, 7)), udp(2, (A, 7), (A, 7))];
    check_records(&meter(0, 0, 9), &frames, &[(1, 2, 2, 0, EndReason::ForcedEnd)]);
    // The same host on both sides, but two ports: two directions.
    let frames = [udp(1, (A, 8), (A, 7)), udp(2, (A, 7), (A, 8))];
    check_records(&meter(0, 0, 9), &frames, &[(1, 2, 1, 1, EndReason::ForcedEnd)]);
}

#[test]
fn icmp_and_later_fragments_have_ports_0() {
    let packet =
        |transport, fragment| Packet { fragment, payload: 8, ..Packet::new(A.into(), B.into(), transport) };
    let back = |packet: Packet| Packet { source: packet.destination, destination: packet.source, ..packet };
    let frames: Vec<_> = [
        packet(Transport::Icmp(8, 0), Fragment::Whole),
        back(packet(Transport::Icmp(0, 0), Fragment::Whole)),
        packet(Transport::Icmp(8, 0), Fragment::Later(2, false)),
        packet(Transport::Udp(5, 6), Fragment::First),
        packet(Transport::Udp(5, 6), Fragment::Later(2, false)),
        back(packet(Transport::Udp(6, 5), Fragment::Later(4, true))),
        packet(Transport::Udp(0, 0), Fragment::Whole),
    ]
    .iter()
    .zip(1..)
    .map(|(packet, nanos)| Captured::new(nanos, packet))
    .collect();
    let meter = meter(0, 0, 9);
    for outcome in [by_batches(&meter, &frames, 100), one_by_one(&meter, &frames)] {
        let found: Vec<_> = outcome
            .records
            .iter()
            .map(|r| (r.protocol, r.source_port, r.destination_port, r.forward.packets, r.reverse.packets))
            .collect();
        assert_eq!(found, [(1, 0, 0, 2, 1), (17, 5, 6, 1, 0), (17, 0, 0, 2, 1)]);
    }
}

#[test]
fn flags_and_bytes_are_kept_for_each_direction() {
    let tcp = |nanos, source: [u8; 4], destination: [u8; 4], flags, payload| {
        let transport = Transport::Tcp(9, 9, flags);
        Captured::new(nanos, &Packet { payload, ..Packet::new(source.into(), destination.into(), transport) })
    };
    let frames =
        [tcp(1, A, B, 0x02, 0), tcp(2, B, A, 0x12, 0), tcp(3, A, B, 0x10, 100), tcp(4, A, B, 0x01, 0)];
    let record = &by_batches(&meter(0, 0, 9), &frames, 2).records[0];
    assert_eq!((record.forward.tcp_flags, record.forward.bytes), (0x13, 3 * 40 + 100));
    assert_eq!((record.reverse.tcp_flags, record.reverse.bytes), (0x12, 40));
}

#[test]
fn packets_dropped_before_are_not_seen() {
    let frames = [udp(1, (A, 1), (B, 2)), udp(2, (A, 1), (B, 2)), udp(3, (A, 3), (B, 4))];
    let arp = Captured { nanos: 4, link: LinkType::ETHERNET, bytes: ethernet(0x0806, &[0; 28]) };
    let mut cut = frames[0].clone();
    cut.bytes.truncate(20);
    let frames = [&frames[..], &[arp, cut]].concat();
    let mut function = Alone::new(&meter(0, 0, 9), 1);
    let mut batch = Batch::new(5);
    fill(&mut batch, &frames);
    // The policy drops what is not IP; an earlier function the first packet.
    batch.parse(Policy { pass_non_ip: false, ..Policy::PASS });
    batch.judge().0[0] = Verdict::Drop(DropReason::AclRule);
    let mut records = Vec::new();
    function.process(&mut batch, &mut |record| records.push(record.clone()));
    drain(&mut function, &mut records);
    assert_eq!(records.iter().map(|record| record.forward.packets).collect::<Vec<_>>(), [1, 1]);
    assert_eq!(
        function.report().json(),
        json!({
            "frames": 3,
            "counted_packets": 2,
            "counted_ip_bytes": 56,
            "not_counted": {
                "unsupported_link_type": 0,
                "undefined_interface": 0,
                "link_truncated": 0,
                "not_ip": 0,
                "ip_truncated": 1,
                "ip_malformed": 0,
                "extension_chain": 0,
                "transport_truncated": 0,
                "protocol": 0,
                "unknown_framing": 0,
                "other_framing": 0,
            },
            "biflows": 2,
            "uniflows": 2,
            "ended": { "idle_timeout": 0, "active_timeout": 0, "end_of_flow": 0, "forced_end": 2, "lack_of_resources": 0 },
        })
    );
}

#[test]
fn records_end_with_their_connections_where_it_is_asked_for() {
    let tcp = |nanos: u64, is_forward: bool, flags: u8| {
        let (from, to, ports) = if is_forward { (A, B, (1000, 80)) } else { (B, A, (80, 1000)) };
        Captured::new(nanos, &Packet::new(from.into(), to.into(), Transport::Tcp(ports.0, ports.1, flags)))
    };
    const SYN: u8 = 2;
    const ACK: u8 = 16;
    const FIN: u8 = 1 | ACK;
    const RST: u8 = 4;
    // Both sides close, one acknowledges last; then it is acknowledged once more. Another connection is reset, and the next one goes on.
    let frames = [
        tcp(1, true, SYN),
        tcp(2, false, SYN | ACK),
        tcp(3, true, FIN),
        tcp(4, false, ACK),
        tcp(5, false, FIN),
        tcp(6, true, ACK),
        tcp(7, true, ACK),
        tcp(8, false, RST | ACK),
        tcp(9, true, SYN),
        tcp(10, false, SYN | ACK),
    ];
    let by_packets = |outcome: &Outcome| -> Vec<_> {
        outcome.records.iter().map(|r| (r.forward.packets, r.reverse.packets, r.end_reason)).collect()
    };
    use EndReason::{EndOfFlow, ForcedEnd};
    let basic = meter(0, 0, 9);
    for meter in [basic.clone(), with_fields(&basic, Fields::FULL)] {
        for size in [1, 4, 100] {
            let outcome = by_batches(&ending(&meter), &frames, size);
            assert_eq!(outcome, one_by_one(&ending(&meter), &frames));
            assert_eq!(by_packets(&outcome), [(3, 3, EndOfFlow), (1, 1, EndOfFlow), (1, 1, ForcedEnd)]);
            assert_eq!(outcome.report.json()["ended"]["end_of_flow"], json!(2));
            assert_eq!(by_packets(&by_batches(&meter, &frames, size)), [(5, 5, ForcedEnd)]);
        }
    }
    // Nothing is left of one that has ended.
    let ended = by_batches(&ending(&basic), &frames[..6], 2);
    assert_eq!(by_packets(&ended), [(3, 3, EndOfFlow)]);
}

#[test]
fn other_framings_are_counted_where_they_are_asked_for() {
    let plain = udp(1, (A, 1), (B, 2));
    let in_snap = |frame: &Captured| {
        let mut frame = frame.clone();
        frame.bytes.splice(12..12, [0, 40, 0xaa, 0xaa, 3, 0, 0, 0]);
        frame
    };
    let unknown = Captured { nanos: 4, link: LinkType::ETHERNET, bytes: ethernet(0xfffe, &[0; 28]) };
    let frames = [plain.clone(), in_snap(&plain), plain.clone(), in_snap(&plain), unknown, plain];
    for (framings, packets, left_out) in [(Framings::Basic, 3, 2), (Framings::All, 5, 0)] {
        let meter = Meter::new(Settings { framings, ..meter(0, 0, 9).settings });
        for size in [1, 4, 6] {
            let outcome = by_batches(&meter, &frames, size);
            assert_eq!(outcome, one_by_one(&meter, &frames));
            assert_eq!(outcome.records[0].forward.packets, packets);
            let report = outcome.report.json();
            assert_eq!((&report["frames"], &report["counted_packets"]), (&json!(6), &json!(packets)));
            assert_eq!(report["not_counted"]["other_framing"], json!(left_out));
            assert_eq!(report["not_counted"]["unknown_framing"], json!(1));
        }
    }
}

#[test]
fn at_capacity_a_flow_that_was_not_used_for_long_goes() {
    use EndReason::{ForcedEnd, IdleTimeout, LackOfResources};
    let flow = |nanos, port| udp(nanos, (A, port), (B, 80));
    // The first stays busy, so the second goes, though they are looked up together.
    let frames = [flow(1, 1), flow(2, 1), flow(3, 2), flow(4, 1), flow(5, 3), flow(6, 3)];
    let by_port = |outcome: Outcome| -> Vec<_> {
        outcome.records.iter().map(|r| (r.source_port, r.forward.packets, r.end_reason)).collect()
    };
    let expected = [(2, 1, LackOfResources), (1, 3, ForcedEnd), (3, 2, ForcedEnd)];
    for size in [1, 2, 100] {
        let outcome = by_batches(&meter(0, 0, 2), &frames, size);
        let rows = outcome.report.rows();
        assert_eq!(rows.last(), Some(&("exported early, table full".to_owned(), "1".to_owned())));
        assert_eq!(by_port(outcome), expected);
    }
    assert_eq!(by_port(one_by_one(&meter(0, 0, 2), &frames)), expected);
    // One that is idle goes for that.
    let frames = [flow(1, 1), flow(1, 1), flow(2, 2), flow(90, 1), flow(103, 3), flow(104, 3)];
    let expected = [(2, 1, IdleTimeout), (1, 3, ForcedEnd), (3, 2, ForcedEnd)];
    assert_eq!(by_port(by_batches(&meter(100, 0, 2), &frames, 100)), expected);
    assert_eq!(by_port(one_by_one(&meter(100, 0, 2), &frames)), expected);
    // Both IP versions have room by themselves.
    let v6 = |nanos, port| {
        let [a, b] = ["2001:db8::1", "2001:db8::2"].map(|address| address.parse().expect("an address"));
        Captured::new(nanos, &Packet::new(a, b, Transport::Udp(port, 80)))
    };
    let frames = [flow(1, 1), flow(2, 2), v6(3, 3), v6(4, 4)];
    assert_eq!(by_batches(&meter(0, 0, 2), &frames, 100), one_by_one(&meter(0, 0, 2), &frames));
    assert_eq!(one_by_one(&meter(0, 0, 2), &frames).report.ended.forced_end, 4);
}

#[test]
fn workers_share_the_capacity() {
    let frames: Vec<_> = (1..=12).map(|port| udp(port.into(), (A, port), (B, 80))).collect();
    for (workers, share) in [(1, 10), (3, 4), (4, 3), (10, 1), (64, 1)] {
        let mut function = Alone::new(&meter(0, 0, 10), workers);
        let mut records = Vec::new();
        feed(&mut function, &frames, 5, &mut records);
        assert_eq!(records.len(), 12 - share, "{workers} workers");
    }
}

#[test]
fn what_is_left_is_handed_out_in_order_of_creation_a_few_at_a_time() {
    let frames: Vec<_> = (0..100u64).map(|n| udp(n, (A, 1 + (n * 37 % 50) as u16), (B, 80))).collect();
    let mut function = Alone::new(&meter(0, 0, 1_000), 1);
    feed(&mut function, &frames, 64, &mut Vec::new());
    let mut starts = Vec::new();
    let mut calls = Vec::new();
    loop {
        let before = starts.len();
        let more = function.drain(20, &mut |record| starts.push(record.start().as_nanos()));
        calls.push((starts.len() - before, more));
        if !more {
            break;
        }
    }
    assert_eq!(calls, [(20, true), (20, true), (10, false)]);
    assert_eq!(starts, (0..50).collect::<Vec<_>>());
    assert!(!function.drain(20, &mut |_| panic!("nothing is left")));
    // The meter is as new.
    feed(&mut function, &frames[..1], 1, &mut Vec::new());
    let mut records = Vec::new();
    drain(&mut function, &mut records);
    assert_eq!(records.len(), 1);
}

#[test]
fn a_sweep_exports_what_is_idle_and_nothing_else() {
    let flow = |nanos, port| udp(nanos, (A, port), (B, 80));
    let now = 100 * SECOND;
    let idle = 5 * SECOND;
    // Idle for exactly as long, for one nanosecond less, for longer; one that came again, one from the future.
    let frames = [
        flow(now - idle, 1),
        flow(now - idle + 1, 2),
        flow(1, 3),
        flow(1, 4),
        flow(now - 1, 4),
        flow(now + 7, 5),
    ];
    let mut function = Alone::new(&meter(idle, 0, 9), 1);
    feed(&mut function, &frames, 100, &mut Vec::new());
    // The flow that came again after its timeout is in two records by now.
    let mut ports: Vec<_> =
        expire(&mut function, now, 6).iter().map(|r| (r.source_port, r.end_reason)).collect();
    ports.sort_unstable_by_key(|&(port, _)| port);
    assert_eq!(ports, [(1, EndReason::IdleTimeout), (3, EndReason::IdleTimeout)]);
    assert_eq!(expire(&mut function, now, 6), []);
    assert_eq!(expire(&mut function, now + SECOND, 6).len(), 1);
    assert_eq!(report_of(&*function.report()).ended.idle_timeout, 4);
    let mut left = Vec::new();
    drain(&mut function, &mut left);
    assert_eq!(left.iter().map(|record| record.source_port).collect::<Vec<_>>(), [4, 5]);
}

#[test]
fn without_an_idle_timeout_nothing_is_swept() {
    let mut function = Alone::new(&meter(0, 1, 9), 1);
    feed(&mut function, &[udp(1, (A, 1), (B, 2))], 1, &mut Vec::new());
    assert_eq!(expire(&mut function, u64::MAX, 1), []);
}

/// A meter that holds `count` flows of time 0.
fn full_of(count: u32, idle: u64) -> Alone {
    let frames: Vec<_> = (0..count)
        .map(|n| {
            let [high, low] = [(n >> 16) as u16, n as u16];
            udp(0, ([10, 1, 0, high as u8], low), (B, 80))
        })
        .collect();
    let mut function = Alone::new(&meter(idle, 0, 1 << 20), 1);
    feed(&mut function, &frames, 1_000, &mut Vec::new());
    function
}

#[test]
fn a_round_of_sweeps_takes_less_than_half_a_second() {
    const ROUND: u64 = SECOND * 2 / 5;
    for (count, step) in [(1_000, ROUND / 10), (3, ROUND / 100), (1, ROUND / 7), (10_000, ROUND / 3)] {
        let mut function = full_of(count, 10 * SECOND);
        // A round just before all of them are idle.
        let start = 10 * SECOND - 1;
        assert_eq!(expire(&mut function, start, 1), []);
        let swept: Vec<_> =
            (1..=SECOND / 2 / step).map(|n| expire(&mut function, start + n * step, 1).len()).collect();
        assert_eq!(swept.iter().sum::<usize>(), count as usize, "{count} flows, every {step} ns");
        // Flows are spread by their hashes: somewhat more may be in a share of all places.
        let share = (u64::from(count) * step).div_ceil(ROUND) as usize;
        let most = 2 * share + 30;
        assert!(swept.iter().all(|&swept| swept <= most), "{swept:?}, about {share} expected");
    }
}

#[test]
fn sweeps_are_bounded_and_reach_everything_in_the_end() {
    let count = 50_000;
    let mut function = full_of(count, SECOND);
    let mut found = Vec::new();
    for second in 10..14 {
        let swept = expire(&mut function, second * SECOND, 64).len();
        assert!(swept <= 16_384, "{swept} at once");
        found.push(swept);
    }
    assert_eq!(found.iter().sum::<usize>(), count as usize, "{found:?}");
    // A larger batch pays for more.
    let mut function = full_of(count, SECOND);
    assert_eq!(expire(&mut function, 10 * SECOND, 10_000).len(), 40_000);
}

/// One wrong stamp must not end the sweeping for good.
#[test]
fn sweeping_goes_on_after_time_jumped_ahead_and_back() {
    let mut function = Alone::new(&meter(SECOND, 0, 9), 1);
    let future = 1_000_000 * SECOND;
    assert_eq!(expire(&mut function, future, 1), []);
    feed(&mut function, &[udp(10 * SECOND, (A, 1), (B, 2))], 1, &mut Vec::new());
    let found: usize = (11..15).map(|second| expire(&mut function, second * SECOND, 1).len()).sum();
    assert_eq!(found, 1);
}

#[test]
fn reports_add_up_field_by_field() {
    let frames = |port: u16, count: u64| -> Vec<Captured> {
        let arp = Captured { nanos: 0, link: LinkType::ETHERNET, bytes: ethernet(0x0806, &[0; 28]) };
        let gre = Captured::new(0, &Packet::new(A.into(), B.into(), Transport::Other(47)));
        let flow = (0..count).map(|n| udp(n * 10, (A, port), (B, 2)));
        flow.chain([udp(0, (B, 2), (A, port)), arp, gre]).collect()
    };
    let mut one = by_batches(&meter(10, 0, 9), &frames(1, 3), 2).report;
    let other = by_batches(&meter(0, 20, 1), &[frames(2, 4), frames(3, 1)].concat(), 2).report;
    one.merge(&other);
    let mut expected = MeterReport {
        frames: 3 + 3 + 4 + 3 + 1 + 3,
        counted_packets: 4 + 5 + 2,
        counted_ip_bytes: 11 * 28,
        // Three records by idleness and the end; two by activity and a full table; the last by the end.
        biflows: 3 + 3,
        uniflows: 3 + 1 + 3 + 2,
        ..MeterReport::default()
    };
    for reject in [packetloom_packet::Reject::NotIp, packetloom_packet::Reject::Protocol] {
        (0..3).for_each(|_| expected.not_counted.add(reject));
    }
    expected.ended.idle_timeout = 2;
    expected.ended.active_timeout = 1;
    expected.ended.lack_of_resources = 1;
    expected.ended.forced_end = 2;
    assert_eq!(one, expected);
}

#[test]
fn keys_of_a_chain_file_have_defaults_and_limits() {
    let prepare = |keys: &str| -> Result<Box<dyn FunctionSpec>, String> {
        let keys = toml::de::ValueDeserializer::parse(keys).expect("good TOML");
        let function = Registration::by_name("meter").expect("a function that is registered");
        let prepare = (function.parse)(keys).map_err(|error| error.message().to_owned())?;
        let context = Context { folder: "/chains".as_ref(), ignore_flags: false };
        prepare(&context).map_err(|error| error.to_string())
    };
    let meter = prepare("{}").unwrap();
    assert_eq!((meter.name(), meter.records_path()), ("meter", None));
    assert_eq!(
        meter.describe(),
        [
            "flow: IP version, protocol, unordered pair of (address, port)",
            "timeouts: idle 30s, active 5m",
            "at most 4194304 flows of each IP version, then one not used for long is exported",
            "records are counted only",
        ]
    );
    let keys =
        "{ idle_timeout = \"0\", active_timeout = \"1500ms\", max_flows = 1, output = \"flows.json\" }";
    let meter = prepare(keys).unwrap();
    assert_eq!(meter.records_path(), Some("/chains/flows.json".as_ref()));
    assert_eq!(
        meter.describe()[1..],
        [
            "timeouts: idle none, active 1500ms",
            "at most 1 flows of each IP version, then one not used for long is exported",
            "records to /chains/flows.json"
        ]
    );
    let meter = prepare("{ framings = \"all\" }").unwrap();
    assert_eq!(meter.describe().last().map(String::as_str), Some("packets in all framings"));
    let meter = prepare("{ export = [{ to = \"tls://a\", ca = \"ca\", rate = \"1Mbit/s\" }] }");
    assert_eq!(
        meter.err().as_deref(),
        Some("export to tls://a: a rate; expected one with udp:// only: others take what they can")
    );
    let meter =
        prepare("{ export = [{ to = \"flows\" }, { to = \"udp://a\", protocol = \"netflow9\" }] }").unwrap();
    assert_eq!(
        meter.describe()[3..],
        ["records are exported only", "IPFIX to /chains/flows", "NetFlow v9 to udp://a"]
    );
    for (output, path) in [("-", "-"), ("/tmp/flows", "/tmp/flows"), ("a/../b", "/chains/a/../b")] {
        let meter = prepare(&format!("{{ output = {output:?} }}")).unwrap();
        assert_eq!(meter.records_path(), Some(path.as_ref()));
    }
    for (keys, message) in [
        (
            "{ export = [{ to = \"tls://a\", key = \"k\" }] }",
            "export to tls://a: certificate and key; expected both or none",
        ),
        (
            "{ export = [{ to = \"udp://a\", rate = \"9packets/s\" }] }",
            "export to udp://a: rate counts packets; expected bits or bytes, such as \"200Mbit/s\"",
        ),
        (
            "{ export = [{ to = \"udp://a\", biflows = true, protocol = \"netflow9\" }] }",
            "export to udp://a: NetFlow v9 has no biflows; use IPFIX, or export two flows",
        ),
        ("{ framings = \"some\" }", "unknown variant `some`, expected `basic` or `all`"),
        ("{ max_flows = 0 }", "0; expected a number from 1 to 2147483648"),
        ("{ max_flows = 4294967296 }", "4294967296; expected a number from 1 to 2147483648"),
        ("{ idle_timeout = 30 }", "invalid type: integer `30`, expected a time in quotes, such as \"30s\""),
        (
            "{ active_timeout = \"soon\" }",
            "\"soon\"; expected a time such as \"30s\", \"200ms\", \"5m\" or \"0\"",
        ),
        (
            "{ idle = \"30s\" }",
            "unknown field `idle`, expected one of `idle_timeout`, `active_timeout`, `end_of_flow`, `vlan_in_key`, `max_flows`, `framings`, `fields`, `format`, `output`, `export`",
        ),
    ] {
        assert_eq!(prepare(keys).err().as_deref(), Some(message), "{keys}");
    }
}
