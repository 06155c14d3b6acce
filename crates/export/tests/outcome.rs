//! Outcomes of connections, each by the packets of one.

#![allow(missing_docs)]

mod samples;

use std::sync::Arc;

use packetloom_export::messages::{Encoder, Options, Protocol};
use packetloom_export::{Fields, LineFormat, Lines, Outcome};
use packetloom_packet::{Details, FlowRecord, HalfFlow, More};

use self::samples::{detailed, options, v4};

/// The record of packets of TCP, as a meter sums them up: `SA>` has the flags SYN and ACK and comes from the source, `<R` from the
/// destination.
fn record(packets: &str) -> FlowRecord {
    let (mut halves, mut first) = ([HalfFlow::default(); 2], None);
    for packet in packets.split(' ') {
        let flags = packet
            .chars()
            .filter_map(|letter| "FSRPAUEC".find(letter))
            .fold(0, |flags, bit| flags | 1 << bit);
        let half = &mut halves[usize::from(packet.starts_with('<'))];
        half.packets += 1;
        half.tcp_flags |= flags;
        first.get_or_insert(flags);
    }
    let [forward, reverse] = halves;
    let details = Details { first_tcp_flags: first.unwrap_or(0), ..Details::default() };
    let more = More { details: [details, Details::default()], names: Vec::new() };
    FlowRecord { forward, reverse, more: Some(Arc::new(more)), ..v4() }
}

fn line(record: &FlowRecord) -> String {
    let mut line = String::new();
    Lines::new(LineFormat::Json, "outcome".parse().unwrap()).write(&mut line, record);
    line
}

#[test]
fn outcomes_follow_from_packets() {
    let cases = [
        ("S>", "unanswered"),
        ("SEC> S>", "unanswered"),
        ("S> R>", "abandoned"),
        ("S> FA>", "abandoned"),
        ("S> <RA", "rejected"),
        ("S> <RA FA>", "rejected"),
        ("S> <SA", "half-open"),
        ("S> <SA A>", "established"),
        ("SEC> <SAE A> PA> <A", "established"),
        // Both open at the same time.
        ("S> <S SA> <A", "established"),
        ("S> <SA A> FA>", "source-closed"),
        ("S> <SA A> <FA A>", "destination-closed"),
        ("S> <SA A> FA> <FA A>", "closed"),
        ("S> <SA A> FA> <FA R>", "closed"),
        ("S> <SA R>", "source-reset"),
        ("S> <SA A> <FA RA>", "source-reset"),
        ("S> <SA A> <R", "destination-reset"),
        ("S> <SA A> FA> <R", "destination-reset"),
        ("S> <SA A> R> <R", "both-reset"),
        ("SA> <A", "midstream"),
        ("A> <A FA> <FA", "midstream"),
        ("A> S> <SA", "midstream"),
        ("R>", "midstream"),
        (">", "midstream"),
        ("S> <A", "other"),
        ("S> <FA", "other"),
    ];
    for (packets, outcome) in cases {
        assert_eq!(line(&record(packets)), format!("{{\"outcome\":\"{outcome}\"}}\n"), "{packets}");
        let is_answered = packets.contains('<');
        for protocol in [1, 17, 58, 132] {
            let expected = if is_answered { "answered" } else { "unanswered" };
            let record = FlowRecord { protocol, ..record(packets) };
            assert_eq!(line(&record), format!("{{\"outcome\":\"{expected}\"}}\n"));
        }
    }
    let all: std::collections::BTreeSet<_> =
        cases.iter().map(|(_, name)| *name).chain(["answered"]).collect();
    assert_eq!(all, Outcome::ALL.map(Outcome::name).into(), "each of them is among the cases");
    // Who keeps counters alone cannot tell.
    assert_eq!(line(&FlowRecord { more: None, ..record("S>") }), "{}\n");
}

/// Messages have no number for it: they are as without it.
#[test]
fn messages_leave_outcomes_out() {
    for protocol in [Protocol::Ipfix, Protocol::NetflowV9] {
        let of = |fields: &str| {
            let fields = fields.parse::<Fields>().unwrap();
            let mut encoder = Encoder::new(Options { fields, ..options(protocol) }).unwrap();
            let mut messages = Vec::new();
            let mut send = |bytes: &[u8], _| messages.push(bytes.to_vec());
            encoder.record(&detailed(v4()), samples::millis(1), &mut send);
            encoder.flush(samples::millis(1), &mut send);
            messages
        };
        assert_eq!(of("standard,outcome"), of("standard"));
        let alone = Options { fields: "outcome".parse().unwrap(), ..options(protocol) };
        let why = alone.check().unwrap_err().to_string();
        assert!(why.contains("expected some more, such as packetDeltaCount"), "{why}");
    }
}
