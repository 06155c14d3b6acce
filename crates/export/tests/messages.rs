//! Messages for collectors, decoded by a collector that was written from the RFCs alone.

mod expected;
mod samples;

use std::net::IpAddr;
use std::num::NonZeroU32;
use std::time::Duration;

use packetloom_export::messages::{Encoder, Options, OptionsError, Protocol, Sampling, Statistics};
use packetloom_packet::{EndReason, FlowRecord, HalfFlow, Timestamp};
use proptest::prelude::*;

use self::expected::expected;
use self::samples::{millis, options, v4, v6};
use packetloom_testing::collector::{Collector, Flow, Message, SCOPE, number};

/// All that left an encoder, checked as it comes.
struct Sent {
    options: Options,
    collector: Collector,
    messages: Vec<Message>,
    /// What the header of the next message has to say.
    sequence: u32,
}

impl Sent {
    fn new(options: &Options) -> Self {
        Self { options: options.clone(), collector: Collector::default(), messages: Vec::new(), sequence: 0 }
    }

    fn take(&mut self, bytes: &[u8], flows: u32) {
        assert!(bytes.len() <= self.options.message_len, "{} bytes", bytes.len());
        let message = self.collector.message(bytes);
        assert_eq!(message.version, if self.options.protocol == Protocol::Ipfix { 10 } else { 9 });
        assert_eq!(message.domain, self.options.domain);
        assert_eq!(message.flows.len(), flows as usize);
        assert_eq!(message.sequence, self.sequence);
        self.sequence = self.sequence.wrapping_add(match self.options.protocol {
            Protocol::Ipfix => (message.flows.len() + message.options.len()) as u32,
            Protocol::NetflowV9 => 1,
        });
        self.messages.push(message);
    }

    fn flows(&self) -> Vec<Flow> {
        let flows = self
            .messages
            .iter()
            .flat_map(|message| message.flows.iter().map(move |flow| Flow::new(message, flow)));
        flows.collect()
    }

    /// For each run of messages with templates, how many templates; 0 for a message with data.
    fn pattern(&self) -> Vec<usize> {
        let mut pattern: Vec<usize> = Vec::new();
        for message in &self.messages {
            match pattern.last_mut() {
                Some(last) if *last > 0 && !message.templates.is_empty() => *last += message.templates.len(),
                _ => pattern.push(message.templates.len()),
            }
        }
        pattern
    }
}

/// What is done to an encoder.
#[derive(Clone, Debug)]
enum Step {
    Record(FlowRecord),
    Statistics(Statistics),
    Flush,
    Restart,
    /// Milliseconds, forwards or backwards.
    Wait(i64),
}

/// Any number, extremes often.
fn numbers() -> impl Strategy<Value = u64> + Clone {
    prop_oneof![3 => 0..100_000_u64, 1 => Just(0), 1 => Just(u64::MAX), 1 => Just(u64::from(u32::MAX) + 1), 1 => any::<u64>()]
}

/// Times of a capture of today, of the clock's edges, of anything.
fn times() -> impl Strategy<Value = Timestamp> + Clone {
    prop_oneof![
        6 => (0..10_000_000_000_000_u64).prop_map(|nanos| 1_790_000_000_000_000_000 + nanos),
        1 => (0..10_000_000_000_000_000_u64).prop_map(|nanos| 1_785_000_000_000_000_000 + nanos),
        1 => numbers(),
    ]
    .prop_map(Timestamp::from_nanos)
}

fn halves() -> impl Strategy<Value = HalfFlow> + Clone {
    (times(), times(), numbers(), numbers(), any::<u8>()).prop_map(
        |(first, last, packets, bytes, tcp_flags)| HalfFlow { first, last, packets, bytes, tcp_flags },
    )
}

fn addresses() -> impl Strategy<Value = [IpAddr; 2]> + Clone {
    prop_oneof![
        4 => any::<[[u8; 4]; 2]>().prop_map(|both| both.map(IpAddr::from)),
        2 => any::<[[u8; 16]; 2]>().prop_map(|both| both.map(IpAddr::from)),
        1 => any::<[IpAddr; 2]>(),
    ]
}

fn records() -> impl Strategy<Value = FlowRecord> + Clone {
    let reason = prop_oneof![
        Just(EndReason::IdleTimeout),
        Just(EndReason::ActiveTimeout),
        Just(EndReason::ForcedEnd),
        Just(EndReason::LackOfResources)
    ];
    (addresses(), any::<[u16; 2]>(), any::<u8>(), halves(), halves(), any::<bool>(), reason).prop_map(
        |([source, destination], ports, protocol, forward, reverse, one_way, end_reason)| FlowRecord {
            source,
            destination,
            source_port: ports[0],
            destination_port: ports[1],
            protocol,
            forward,
            reverse: if one_way { HalfFlow::default() } else { reverse },
            end_reason,
            more: None,
        },
    )
}

fn steps() -> impl Strategy<Value = Step> {
    prop_oneof![
        40 => records().prop_map(Step::Record),
        2 => any::<[u64; 6]>().prop_map(|n| Step::Statistics(Statistics {
            messages: n[0], records: n[1], octets: n[2], lost_records: n[3]
        })),
        1 => Just(Step::Statistics(Statistics::default())),
        2 => Just(Step::Flush),
        1 => Just(Step::Restart),
        10 => (0..5_000_i64).prop_map(Step::Wait),
        1 => (-5_000_000_000..5_000_000_000_i64).prop_map(Step::Wait),
    ]
}

fn any_options() -> impl Strategy<Value = Options> {
    let protocol = prop_oneof![
        Just((Protocol::Ipfix, false)),
        Just((Protocol::Ipfix, true)),
        Just((Protocol::NetflowV9, false))
    ];
    let message_len = prop_oneof![128..160_usize, 160..1_500_usize, Just(65_535)];
    let packets = prop_oneof![Just(None), (1..20_u32).prop_map(NonZeroU32::new)];
    let interval =
        prop_oneof![Just(None), (1..20_000_u64).prop_map(|millis| Some(Duration::from_millis(millis)))];
    (protocol, any::<u32>(), message_len, 1..4_u32, packets, interval).prop_map(
        |((protocol, biflows), domain, message_len, first_templates, template_packets, template_interval)| {
            Options {
                protocol,
                fields: packetloom_export::Fields::BASIC,
                biflows,
                domain,
                message_len,
                first_templates,
                template_packets,
                template_interval,
                sampling: None,
            }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(packetloom_testing::amount(512, 5_000)))]

    /// Whatever is done: every message is well-formed, sequence numbers are right, templates precede data as often as
    /// they are to, and what is decoded is what was encoded, in its order.
    #[test]
    fn what_is_decoded_is_what_was_encoded(options in any_options(), steps in proptest::collection::vec(steps(), 0..300)) {
        let mut encoder = Encoder::new(options.clone()).unwrap();
        let mut sent = Sent::new(&options);
        let mut now = millis(1_790_000_000_000);
        let (mut flows, mut statistics) = (Vec::new(), Vec::new());
        // The rules of templates, without any state of the encoder's.
        let mut restarts = Vec::new();
        let all = if options.protocol == Protocol::Ipfix && !options.biflows { 4 } else { 6 };
        for step in &steps {
            match step {
                Step::Record(record) => {
                    prop_assert_eq!(options.flows(record) as usize, expected(record, options.biflows).len());
                    flows.extend(expected(record, options.biflows));
                    encoder.record(record, now, &mut |bytes, flows| sent.take(bytes, flows));
                }
                Step::Statistics(counters) => {
                    statistics.push(*counters);
                    encoder.statistics(counters, now, &mut |bytes, flows| sent.take(bytes, flows));
                }
                Step::Flush => encoder.flush(now, &mut |bytes, flows| sent.take(bytes, flows)),
                Step::Restart => {
                    encoder.restart();
                    restarts.push(sent.messages.len());
                    // A new session knows no templates.
                    sent.collector = Collector::default();
                }
                Step::Wait(millis) => now = now.shifted(millis * 1_000_000),
            }
        }
        encoder.flush(now, &mut |bytes, flows| sent.take(bytes, flows));
        prop_assert_eq!(sent.flows(), flows);

        let mut decoded = sent.messages.iter().flat_map(|message| message.options.iter().map(move |fields| (message, fields)));
        for counters in statistics {
            let scopes = if options.protocol == Protocol::Ipfix { [(0, 149), (0, 144)] } else { [(SCOPE, 1); 2] };
            let exported = vec![(40, counters.octets), (41, counters.messages), (42, counters.records)];
            let lost = vec![(166, counters.lost_records)];
            for (scope, values) in scopes.into_iter().zip([exported, lost]) {
                if values == [(166, 0)] {
                    continue;
                }
                let (_, fields) = decoded.next().unwrap();
                prop_assert_eq!(fields.len(), 1 + values.len());
                prop_assert_eq!(number(&fields[&scope]), u64::from(options.domain));
                for (id, value) in values {
                    prop_assert_eq!(number(&fields[&(0, id)]), value);
                }
            }
        }
        prop_assert!(decoded.next().is_none());

        // Each session begins with templates, as often as it has to, in whole sets of them; later ones come once.
        let mut since = 0;
        let mut index = 0;
        restarts.dedup();
        while index < sent.messages.len() {
            let session = index == 0 || restarts.contains(&index);
            let mut templates = 0;
            let start = index;
            while index < sent.messages.len() && !sent.messages[index].templates.is_empty()
                && (index == start || !restarts.contains(&index))
            {
                templates += sent.messages[index].templates.len();
                index += 1;
            }
            if session {
                prop_assert!(templates >= all * options.first_templates as usize, "{templates} at the start");
            }
            prop_assert_eq!(templates % all, 0);
            if templates > 0 {
                since = 0;
            } else {
                since += 1;
                index += 1;
                if let Some(packets) = options.template_packets {
                    prop_assert!(since <= packets.get(), "{since} messages without templates");
                }
            }
        }
    }
}

#[test]
fn templates_come_again_after_messages() {
    let options =
        Options { first_templates: 3, template_packets: NonZeroU32::new(2), ..options(Protocol::Ipfix) };
    let (mut encoder, mut sent) = (Encoder::new(options.clone()).unwrap(), Sent::new(&options));
    for _ in 0..5 {
        encoder.record(&v4(), millis(1), &mut |bytes, flows| sent.take(bytes, flows));
        encoder.flush(millis(1), &mut |bytes, flows| sent.take(bytes, flows));
    }
    assert_eq!(sent.pattern(), [12, 0, 0, 4, 0, 0, 4, 0]);
}

#[test]
fn how_packets_were_sampled_is_said_behind_templates_each_time() {
    let interval = NonZeroU32::new(100).unwrap();
    let hundredth = 0.01f64.to_bits();
    for (protocol, is_random, expected) in [
        (Protocol::Ipfix, false, vec![((0, 302), 0), ((0, 304), 1), ((0, 305), 1), ((0, 306), 99)]),
        (Protocol::Ipfix, true, vec![((0, 302), 0), ((0, 304), 4), ((0, 311), hundredth)]),
        (Protocol::NetflowV9, false, vec![((0, 34), 100), ((0, 35), 1), ((SCOPE, 1), 7)]),
        (Protocol::NetflowV9, true, vec![((0, 34), 100), ((0, 35), 2), ((SCOPE, 1), 7)]),
    ] {
        let options = Options {
            first_templates: 2,
            template_packets: NonZeroU32::new(2),
            sampling: Some(Sampling { interval, is_random }),
            ..options(protocol)
        };
        let (mut encoder, mut sent) = (Encoder::new(options.clone()).unwrap(), Sent::new(&options));
        for _ in 0..5 {
            encoder.record(&v4(), millis(1_790_000_000_000), &mut |bytes, flows| sent.take(bytes, flows));
            encoder.flush(millis(1_790_000_000_000), &mut |bytes, flows| sent.take(bytes, flows));
        }
        let kinds =
            sent.messages.iter().map(|message| match (&message.templates[..], message.options.len()) {
                ([.., 512, 513], 0) => 't',
                ([], 2) if message.flows.is_empty() => 's',
                ([], 0) => 'f',
                other => panic!("{other:?}"),
            });
        assert_eq!(kinds.collect::<String>(), "tstsfftsfftsf");
        let scope = if protocol == Protocol::Ipfix { (0, 149) } else { (SCOPE, 1) };
        for message in sent.messages.iter().filter(|message| !message.options.is_empty()) {
            let values = |record: usize| {
                let fields = message.options[record].iter();
                fields.map(|(id, bytes)| (*id, number(bytes))).collect::<Vec<_>>()
            };
            assert_eq!(values(0), [((0, 34), 100), (scope, 7)]);
            assert_eq!(values(1), expected);
        }
    }
}

#[test]
fn without_sampling_nothing_is_said_of_it() {
    for protocol in [Protocol::Ipfix, Protocol::NetflowV9] {
        let options = options(protocol);
        let (mut encoder, mut sent) = (Encoder::new(options.clone()).unwrap(), Sent::new(&options));
        encoder.record(&v4(), millis(1), &mut |bytes, flows| sent.take(bytes, flows));
        encoder.flush(millis(1), &mut |bytes, flows| sent.take(bytes, flows));
        assert!(sent.messages.iter().all(|message| message.options.is_empty()));
        assert!(sent.messages.iter().flat_map(|message| &message.templates).all(|&id| id < 512));
    }
}

/// What another session begins with is in none of the sequence numbers of the data that were before it.
#[test]
fn a_preamble_leaves_sequence_numbers_as_they_are() {
    for (is_sampled, records) in [(false, 0), (true, 2)] {
        let interval = NonZeroU32::new(5).unwrap();
        let sampling = is_sampled.then_some(Sampling { interval, is_random: true });
        let options = Options { sampling, ..options(Protocol::Ipfix) };
        let (mut encoder, mut sent) = (Encoder::new(options.clone()).unwrap(), Sent::new(&options));
        encoder.record(&v4(), millis(1), &mut |bytes, flows| sent.take(bytes, flows));
        encoder.flush(millis(1), &mut |bytes, flows| sent.take(bytes, flows));
        let mut preamble = Vec::new();
        let count = encoder.preamble(millis(1), &mut |bytes, _| preamble.push(bytes.to_vec()));
        assert_eq!(count, records);
        let mut collector = Collector::default();
        let found: Vec<_> = preamble.iter().map(|bytes| collector.message(bytes)).collect();
        assert!(!found[0].templates.is_empty());
        assert_eq!(found.iter().map(|message| message.options.len()).sum::<usize>(), records as usize);
        // Their sequence numbers go on as if it had not been.
        encoder.record(&v6(), millis(1), &mut |bytes, flows| sent.take(bytes, flows));
        encoder.flush(millis(1), &mut |bytes, flows| sent.take(bytes, flows));
        assert_eq!(sent.flows().len(), 3);
    }
}

#[test]
fn templates_come_again_after_time_even_without_data() {
    for protocol in [Protocol::Ipfix, Protocol::NetflowV9] {
        let all = if protocol == Protocol::Ipfix { 4 } else { 6 };
        let options = Options { template_interval: Some(Duration::from_secs(10)), ..options(protocol) };
        let (mut encoder, mut sent) = (Encoder::new(options.clone()).unwrap(), Sent::new(&options));
        let mut flush = |seconds: u64| {
            let before = sent.messages.len();
            encoder.flush(millis(1_790_000_000_000 + seconds * 1_000), &mut |bytes, flows| {
                sent.take(bytes, flows)
            });
            sent.messages[before..].iter().map(|message| message.templates.len()).sum::<usize>()
        };
        // Before any data, too: a collector may be there already.
        assert_eq!([0, 1, 9, 10, 11, 19, 20].map(&mut flush), [all, 0, 0, all, 0, 0, all]);
        // A clock that goes back by an hour holds them up by one interval at most.
        assert_eq!([10_000, 6_400, 6_409, 6_410].map(&mut flush), [all, 0, 0, all]);
    }
}

#[test]
fn a_new_session_begins_with_templates_even_if_data_are_waiting() {
    for (protocol, before, after) in
        [(Protocol::Ipfix, [0, 0], [2, 2]), (Protocol::NetflowV9, [0, 1], [2, 3])]
    {
        let options = options(protocol);
        let (mut encoder, mut messages) = (Encoder::new(options).unwrap(), Vec::new());
        for _ in 0..2 {
            encoder
                .record(&v4(), millis(1_790_000_000_000), &mut |_, _| panic!("a message that is not full"));
            // The second record waits while the session ends.
            if messages.is_empty() {
                encoder.flush(millis(1_790_000_000_000), &mut |bytes, _| messages.push(bytes.to_vec()));
            }
        }
        encoder.restart();
        encoder.flush(millis(1_790_000_000_000), &mut |bytes, _| messages.push(bytes.to_vec()));
        assert_eq!(messages.len(), 4);
        for (session, sequence) in messages.chunks(2).zip([before, after]) {
            let mut collector = Collector::default();
            let found = [&session[0], &session[1]].map(|bytes| collector.message(bytes));
            assert_eq!([found[0].sequence, found[1].sequence], sequence);
            assert_eq!([found[0].flows.len(), found[1].flows.len()], [0, 2]);
        }
    }
}

/// A record and the time at which it is exported: which pair of elements has its times.
#[test]
fn netflow_times_are_relative_where_that_is_exact() {
    const NOW: u64 = 1_790_000_000_123;
    const DAY: u64 = 86_400_000;
    for (first, last, relative) in [
        (NOW - 1_000, NOW, true),
        // Up to the header's second, which is rounded up.
        (NOW, 1_790_000_001_000, true),
        (NOW, 1_790_000_001_001, false),
        (NOW - 24 * DAY, NOW, true),
        (NOW - 25 * DAY, NOW, false),
        (NOW - (1 << 31) + 1, NOW, true),
        (NOW - (1 << 31), NOW, false),
        (NOW, NOW - 1, false),
        (0, 0, false),
        (1, u64::MAX / 1_000_000, false),
    ] {
        for base in [v4(), v6()] {
            let forward = HalfFlow { first: millis(first), last: millis(last), ..base.forward };
            let record = FlowRecord { forward, reverse: HalfFlow::default(), ..base };
            let options = options(Protocol::NetflowV9);
            let (mut encoder, mut sent) = (Encoder::new(options.clone()).unwrap(), Sent::new(&options));
            encoder.record(&record, millis(NOW), &mut |bytes, flows| sent.take(bytes, flows));
            encoder.flush(millis(NOW + 777), &mut |bytes, flows| sent.take(bytes, flows));
            assert_eq!(sent.flows(), expected(&record, false));
            let fields = &sent.messages.last().unwrap().flows[0];
            assert_eq!(fields.contains_key(&(0, 22)), relative, "{first} to {last}");
            assert_eq!(fields.contains_key(&(0, 152)), !relative, "{first} to {last}");
        }
    }
}

#[test]
fn netflow_times_after_2106_are_absolute() {
    let now = (u64::from(u32::MAX) + 1_000) * 1_000;
    let forward = HalfFlow { first: millis(now - 2), last: millis(now - 1), ..v4().forward };
    let record = FlowRecord { forward, reverse: HalfFlow::default(), ..v4() };
    let options = options(Protocol::NetflowV9);
    let (mut encoder, mut sent) = (Encoder::new(options.clone()).unwrap(), Sent::new(&options));
    encoder.record(&record, millis(now), &mut |bytes, flows| sent.take(bytes, flows));
    encoder.flush(millis(now), &mut |bytes, flows| sent.take(bytes, flows));
    assert_eq!(sent.flows(), expected(&record, false));
    assert!(sent.messages[1].flows[0].contains_key(&(0, 152)));
}

#[test]
fn the_clock_goes_back_or_ahead_while_records_wait() {
    const DAY: i64 = 86_400_000;
    for options in [options(Protocol::Ipfix), options(Protocol::NetflowV9)] {
        for wait in [-1, -10_000, 10_000, 30 * DAY, 100 * DAY, -100 * DAY] {
            for records in [&[v4()][..], &[v4(), v6()], &[v4(), v6(), v4()]] {
                let (mut encoder, mut sent) = (Encoder::new(options.clone()).unwrap(), Sent::new(&options));
                let before = millis(1_790_000_001_000);
                let after = before.shifted(wait * 1_000_000);
                let mut send = |bytes: &[u8], flows| sent.take(bytes, flows);
                encoder.record(&records[0], before, &mut send);
                records[1..].iter().for_each(|record| encoder.record(record, after, &mut send));
                encoder.flush(after, &mut send);
                let expected: Vec<_> = records.iter().flat_map(|record| expected(record, false)).collect();
                assert_eq!(sent.flows(), expected, "{wait} ms");
            }
        }
    }
}

#[test]
fn netflow_headers_have_a_boot_time_without_flows() {
    let options = options(Protocol::NetflowV9);
    let (mut encoder, mut sent) = (Encoder::new(options.clone()).unwrap(), Sent::new(&options));
    encoder
        .statistics(&Statistics::default(), millis(1_790_000_000_100), &mut |_, _| panic!("nothing is full"));
    encoder.flush(millis(1_790_000_000_200), &mut |bytes, flows| sent.take(bytes, flows));
    let headers: Vec<_> = sent.messages.iter().map(|message| (message.time, message.boot)).collect();
    assert_eq!(headers, [(1_790_000_001, 1_790_000_000_100 - (1 << 31)); 2]);
}

#[test]
fn netflow_uptimes_never_wrap() {
    let options = options(Protocol::NetflowV9);
    let (mut encoder, mut sent) = (Encoder::new(options.clone()).unwrap(), Sent::new(&options));
    let mut records = Vec::new();
    // Three years, a flow every 7 hours, each of which began 12 days before.
    for hour in (0..3 * 365 * 24_u64).step_by(7) {
        let now = 1_790_000_000_000 + hour * 3_600_000;
        let forward = HalfFlow { first: millis(now - 12 * 86_400_000), last: millis(now), ..v4().forward };
        records.push(FlowRecord { forward, reverse: HalfFlow::default(), ..v4() });
        encoder.record(records.last().unwrap(), millis(now), &mut |bytes, flows| sent.take(bytes, flows));
    }
    encoder.flush(millis(1_890_000_000_000), &mut |bytes, flows| sent.take(bytes, flows));
    assert_eq!(sent.flows(), records.iter().flat_map(|record| expected(record, false)).collect::<Vec<_>>());
    assert!(
        sent.messages.iter().flat_map(|message| &message.flows).all(|fields| fields.contains_key(&(0, 22)))
    );
}

#[test]
fn messages_are_filled() {
    let record = FlowRecord { reverse: HalfFlow::default(), ..v4() };
    for (protocol, message_len, flows) in [
        // (message_len - 16 - 4) / 49 and (message_len - 20 - 4) / 40.
        (Protocol::Ipfix, 1_400, 28),
        (Protocol::Ipfix, 20 + 49 * 10, 10),
        (Protocol::Ipfix, 20 + 49 * 10 - 1, 9),
        (Protocol::Ipfix, 65_535, 1_337),
        (Protocol::NetflowV9, 1_400, 34),
        (Protocol::NetflowV9, 24 + 40 * 10, 10),
        (Protocol::NetflowV9, 24 + 40 * 10 - 1, 9),
    ] {
        let mut encoder = Encoder::new(Options { message_len, ..options(protocol) }).unwrap();
        let mut first = None;
        for _ in 0..2_000 {
            encoder.record(&record, millis(1_790_000_000_500), &mut |bytes, flows| {
                if flows > 0 {
                    first.get_or_insert((bytes.len(), flows));
                }
            });
        }
        let len = if protocol == Protocol::Ipfix { 20 + 49 * flows } else { 24 + 40 * flows };
        assert_eq!(first, Some((len as usize, flows)), "{protocol:?}, {message_len}");
    }
}

#[test]
fn options_that_cannot_be() {
    let error = |options| Encoder::new(options).err();
    let [ipfix, netflow] = [Protocol::Ipfix, Protocol::NetflowV9].map(options);
    for message_len in [0, 127, 65_536, usize::MAX] {
        assert_eq!(
            error(Options { message_len, ..ipfix.clone() }),
            Some(OptionsError::MessageLength(message_len))
        );
    }
    assert_eq!(error(Options { message_len: 128, ..ipfix.clone() }), None);
    assert_eq!(error(Options { first_templates: 0, ..ipfix.clone() }), Some(OptionsError::NoFirstTemplates));
    assert_eq!(
        error(Options { template_interval: Some(Duration::ZERO), ..ipfix }),
        Some(OptionsError::NoInterval)
    );
    let found = error(Options { biflows: true, ..netflow });
    assert_eq!(found.unwrap().to_string(), "NetFlow v9 has no biflows; use IPFIX, or export two flows");
}

/// Bytes from words of hexadecimal digits; what follows `#` on a line is a comment.
fn hex(text: &str) -> Vec<u8> {
    let digits: String =
        text.lines().flat_map(|line| line.split('#').next().unwrap().split_whitespace()).collect();
    (0..digits.len()).step_by(2).map(|at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap()).collect()
}

/// Messages of one record are these bytes, templates first.
fn golden(options: Options, record: &FlowRecord, expected: [&str; 2]) {
    let (mut encoder, mut messages) = (Encoder::new(options).unwrap(), Vec::new());
    let mut send = |bytes: &[u8], _| messages.push(bytes.to_vec());
    encoder.record(record, millis(1_790_000_000_700), &mut send);
    encoder.flush(millis(1_790_000_000_700), &mut send);
    assert_eq!(messages, expected.map(hex));
}

#[test]
fn the_bytes_of_an_ipfix_uniflow() {
    let record = FlowRecord { reverse: HalfFlow::default(), ..v4() };
    golden(
        options(Protocol::Ipfix),
        &record,
        [
            "000a 00a8 6ab13b80 00000000 00000007                # version 10, 168 bytes, time, sequence, domain
             0002 006c                                           # templates
               0100 000c 0098 0008 0099 0008 0002 0008 0001 0008 0007 0002 000b 0002
                         0006 0002 0004 0001 003c 0001 0088 0001 0008 0004 000c 0004
               0101 000c 0098 0008 0099 0008 0002 0008 0001 0008 0007 0002 000b 0002
                         0006 0002 0004 0001 003c 0001 0088 0001 001b 0010 001c 0010
             0003 001a                                           # options templates with one scope field, a set each
               0104 0004 0001 0095 0004 0029 0008 002a 0008 0028 0008
             0003 0012
               0105 0002 0001 0090 0004 00a6 0008",
            "000a 0045 6ab13b80 00000000 00000007
             0100 0035
               000001a0c4506819 000001a0c4506cfa                 # start, end
               0000000000000005 00000000000004d2 c000 01bb 001b  # packets, octets, ports, flags
               06 04 02 c0000201 c6336402                        # protocol, version, end reason, addresses",
        ],
    );
}

#[test]
fn the_bytes_of_an_ipfix_biflow() {
    golden(
        Options { biflows: true, ..options(Protocol::Ipfix) },
        &v4(),
        [
            "000a 0168 6ab13b80 00000000 00000007
             0002 012c
               0100 000c 0098 0008 0099 0008 0002 0008 0001 0008 0007 0002 000b 0002
                         0006 0002 0004 0001 003c 0001 0088 0001 0008 0004 000c 0004
               0101 000c 0098 0008 0099 0008 0002 0008 0001 0008 0007 0002 000b 0002
                         0006 0002 0004 0001 003c 0001 0088 0001 001b 0010 001c 0010
               0102 0012 8098 0008 00007279 8099 0008 00007279 8002 0008 00007279
                         8001 0008 00007279 8006 0002 00007279 00ef 0001
                         0098 0008 0099 0008 0002 0008 0001 0008 0007 0002 000b 0002
                         0006 0002 0004 0001 003c 0001 0088 0001 0008 0004 000c 0004
               0103 0012 8098 0008 00007279 8099 0008 00007279 8002 0008 00007279
                         8001 0008 00007279 8006 0002 00007279 00ef 0001
                         0098 0008 0099 0008 0002 0008 0001 0008 0007 0002 000b 0002
                         0006 0002 0004 0001 003c 0001 0088 0001 001b 0010 001c 0010
             0003 001a
               0104 0004 0001 0095 0004 0029 0008 002a 0008 0028 0008
             0003 0012
               0105 0002 0001 0090 0004 00a6 0008",
            "000a 0068 6ab13b80 00000000 00000007
             0102 0058
               000001a0c450681a 000001a0c4506df4                 # reverse: start, end
               0000000100000002 0123456789abcdef 0013 01         # packets, octets, flags; the source is the initiator
               000001a0c4506819 000001a0c4506cfa
               0000000000000005 00000000000004d2 c000 01bb 001b
               06 04 02 c0000201 c6336402",
        ],
    );
}

#[test]
fn the_bytes_of_netflow_v9() {
    golden(
        options(Protocol::NetflowV9),
        &v6(),
        [
            "0009 0006 8000012c 6ab13b81 00000000 00000007       # version 9, 6 records, uptime, time, sequence, source
             0000 00d4
               0100 000c 0016 0004 0015 0004 0002 0008 0001 0008 0007 0002 000b 0002
                         0006 0001 0004 0001 003c 0001 0088 0001 0008 0004 000c 0004
               0101 000c 0016 0004 0015 0004 0002 0008 0001 0008 0007 0002 000b 0002
                         0006 0001 0004 0001 003c 0001 0088 0001 001b 0010 001c 0010
               0102 000c 0098 0008 0099 0008 0002 0008 0001 0008 0007 0002 000b 0002
                         0006 0001 0004 0001 003c 0001 0088 0001 0008 0004 000c 0004
               0103 000c 0098 0008 0099 0008 0002 0008 0001 0008 0007 0002 000b 0002
                         0006 0001 0004 0001 003c 0001 0088 0001 001b 0010 001c 0010
             0001 001c                                           # options templates: bytes of scopes, bytes of fields
               0104 0004 000c 0001 0004 0029 0008 002a 0008 0028 0008 0000
             0001 0014
               0105 0004 0004 0001 0004 00a6 0008 0000",
            "0009 0001 8000012c 6ab13b81 00000001 00000007
             0101 0044
               7ffff95d 7ffffe3e                                 # first, last: boot is 2^31 ms before now
               0000000000000005 00000000000004d2 0035 ffff 00 11 06 01
               20010db8000000000000000000000001 20010db8000100020003000400050006",
        ],
    );
}
