//! A run whose chain becomes another one, or which ends and goes on from what it saved, gives what the oracle gives, and what one run over all
//! gives.

#![allow(missing_docs)]

mod support;

use std::path::Path;

use packetloom_device::faults::{Call, Faults};
use packetloom_device::{Cache, Device};
use packetloom_engine::State;
use packetloom_packet::{Key, KeyBits, MatchKey4, MatchKey6};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use support::{
    How, Results, all_results, capture, capture_of_frames, devices, frames, in_vlans, is_slow, plan, shares,
    without_first,
};

/// A capture of packets between 12 clients and 20 servers, `10.0.0.x` and `10.0.1.x` or `2001:db8::x` and `2001:db8::1:x`, of TCP in all states,
/// UDP, and echoes.
fn talk(packets: u64, seed: u64) -> Vec<u8> {
    let mut timed = Vec::new();
    let mut state = seed;
    let mut below = |most: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % most
    };
    let mut nanos: u64 = 5_000_000_000;
    for _ in 0..packets {
        nanos += below(200_000);
        let (client, server) = (below(12).min(below(12)), 256 + below(20).min(below(20)));
        let (port, service) = (5_000 + below(3) as u16, [80, 443, 53][below(3) as usize]);
        let (protocol, tcp_flags, from_client) = match below(16) {
            0..3 => (6, 0x02, true),
            3..5 => (6, 0x12, false),
            5..8 => (6, 0x10, true),
            8 => (6, 0x10, false),
            9 => (6, 0x11, below(2) == 0),
            10 => (6, 0x04, below(2) == 0),
            11..13 => (17, 0, true),
            13 => (17, 0, false),
            14 => (1, 0, true),
            _ => (1, 0, false),
        };
        let ends = [(client, port), (server, service)];
        let [(source, source_port), (destination, destination_port)] =
            if from_client { ends } else { [ends[1], ends[0]] };
        let is_v6 = client % 3 == 0;
        let bits = KeyBits::WHOLE;
        let bits = match protocol {
            6 => bits.with(KeyBits::PORTS).with(KeyBits::TCP_FLAGS),
            17 => bits.with(KeyBits::PORTS),
            _ => bits.with(KeyBits::ICMP),
        };
        let (protocol, source_port, destination_port) = match (protocol, is_v6, from_client) {
            (1, false, _) => (1, if from_client { 8 } else { 0 }, 0),
            (1, true, _) => (58, if from_client { 128 } else { 129 }, 0),
            (protocol, ..) => (protocol, source_port, destination_port),
        };
        let key = if is_v6 {
            let address = |end| [0x2001_0db8 << 32, if end < 256 { end } else { 0x1_0000 + end - 256 }];
            let (source, destination) = (address(source), address(destination));
            Key::V6(MatchKey6 {
                source,
                destination,
                source_port,
                destination_port,
                protocol,
                tcp_flags,
                bits,
                ..MatchKey6::default()
            })
        } else {
            let address = |end: u64| 0x0a00_0000 + end as u32;
            let (source, destination) = (address(source), address(destination));
            Key::V4(MatchKey4 {
                source,
                destination,
                source_port,
                destination_port,
                protocol,
                tcp_flags,
                bits,
                ..MatchKey4::default()
            })
        };
        timed.push((nanos, key));
    }
    capture(timed)
}

/// Definitions whose numbers and names differ from chain to chain.
fn definitions() -> impl Strategy<Value = String> {
    let time = || prop::sample::select(vec!["3ms", "20ms", "10s", "0"]);
    // Now and then flows of the same name are by something else.
    let by = prop::sample::select(vec!["5-tuple", "5-tuple", "5-tuple", "source"]);
    (time(), time(), by).prop_map(|(one, two, by)| {
        format!(
            "[flows.one]\nby = \"{by}\"\ntimeout = \"{one}\"\n[flows.two]\nby = \"source\"\ntimeout = \"{two}\"\n\
             [flows.pairs]\nby = \"5-tuple\"\ntimeout = \"{one}\"\n"
        )
    })
}

/// A balancer some of whose services and backends are those of others, at other places.
fn balancer() -> impl Strategy<Value = String> {
    let service = (0u64..4, prop::bool::ANY, prop::collection::btree_set(1u32..7, 1..5), prop::bool::ANY);
    (prop::collection::vec(service, 1..4), prop::bool::ANY, 0u64..2).prop_map(|(services, is_pairs, seed)| {
        let flows = if is_pairs { "flows = \"pairs\"\n" } else { "" };
        let mut text = format!("[[chain]]\nnf = \"balancer\"\n{flows}table_size = 251\nseed = {seed}\n");
        let mut seen = Vec::new();
        for (server, is_v6, backends, drains) in services {
            if seen.contains(&(server, is_v6)) {
                continue;
            }
            seen.push((server, is_v6));
            let (address, prefix) = if is_v6 {
                (format!("2001:db8::1:{server}"), "2001:db8:9::")
            } else {
                (format!("10.0.1.{server}"), "10.9.8.")
            };
            let backend = |(place, n): (usize, &u32)| {
                let port = if n % 2 == 0 { ", port = 8080" } else { "" };
                let weight = if drains && place > 0 { 0 } else { 1 + n % 3 };
                format!("{{ address = \"{prefix}{n}\", weight = {weight}{port} }}")
            };
            let backends: Vec<_> = backends.iter().enumerate().map(backend).collect();
            let backends = backends.join(", ");
            text += &format!("[[chain.services]]\naddress = \"{address}\"\nbackends = [{backends}]\n");
        }
        text
    })
}

/// A function whose keys are one of a few, so that chains share some and differ in others.
fn function() -> impl Strategy<Value = String> {
    let of = |texts: &[&'static str]| {
        let texts: Vec<_> = texts.iter().map(|text| format!("[[chain]]\nnf = {text}\n")).collect();
        prop::sample::select(texts)
    };
    prop_oneof![
        of(&["\"counter\"\nflows = \"one\"", "\"counter\"", "\"counter\"\nflows = \"two\""]),
        of(&[
            "\"limiter\"\nflows = \"pairs\"\nrate = \"80kbit/s\"\nburst = \"1500B\"",
            "\"limiter\"\nflows = \"pairs\"\nrate = \"1Mbit/s\"\nburst = \"200B\"",
            "\"limiter\"\nflows = \"pairs\"\nrate = \"300packets/s\"\nburst = \"3packets\"",
        ]),
        of(&[
            "\"policer\"\nmarker = \"single-rate\"\ncir = \"80kbit/s\"\ncbs = \"1500B\"\nebs = \"1500B\"",
            "\"policer\"\nmarker = \"single-rate\"\ncir = \"8kbit/s\"\ncbs = \"150B\"\nebs = \"4000B\"",
            "\"policer\"\nmarker = \"two-rate\"\ncir = \"8kbit/s\"\ncbs = \"500B\"\npir = \"80kbit/s\"\npbs = \"900B\"",
            "\"policer\"\nmarker = \"two-rate\"\ncir = \"8kbit/s\"\ncbs = \"90B\"\npir = \"9kbit/s\"\npbs = \"100B\"",
        ]),
        of(&["\"source-counter\"\nsessions = \"pairs\"", "\"source-counter\"\nflows = \"two\""]),
        of(&[
            "\"scan\"\nmethod = \"fan-out\"\nthreshold = 5\nwindow = \"40ms\"\nblock_for = \"20ms\"",
            "\"scan\"\nmethod = \"fan-out\"\nthreshold = 9\nwindow = \"0\"\naction = \"drop\"",
            "\"scan\"\nmethod = \"fan-out\"\nthreshold = 5\nseed = 7\ndistinct = \"destinations\"",
            "\"scan\"\nmethod = \"trw\"\nalpha = 0.001\nblock_for = \"30ms\"",
            "\"scan\"\nmethod = \"trw\"\ntheta1 = 0.5\naction = \"drop\"",
        ]),
        of(&[
            "\"conntrack\"",
            "\"conntrack\"\ninvalid = \"pass\"\ntimeouts = { tcp_opening = \"5ms\", udp_unreplied = \"2ms\" }",
            "\"conntrack\"\nloose = true",
        ]),
        of(&[
            "\"acl\"\nrules = \"reflecting\"",
            "\"acl\"\nrules = \"reflecting\"\nloose = true\ndefault = \"permit\"",
            "\"acl\"\nrules = \"stateful\"",
            "\"acl\"\nrules = \"stateful\"\nloose = true\ndefault = \"permit\"",
            "\"acl\"\nrules = \"rules\"",
            "\"acl\"\nrules = \"rules\"\nlog = \"log\"\nlog_rate = \"1000/s\"\nlog_burst = 5",
        ]),
        balancer(),
    ]
}

const METERS: [&str; 2] = [
    "[[chain]]\nnf = \"meter\"\nidle_timeout = \"2ms\"\noutput = \"flows\"\nmax_flows = 4000\n",
    "[[chain]]\nnf = \"meter\"\noutput = \"flows\"\nmax_flows = 4000\n",
];

/// Only one log has the file; and none, where headers are rewritten: it would name these.
fn with_one_log(chain: &str) -> String {
    const LOG: &str = "log = \"log\"\nlog_rate = \"1000/s\"\nlog_burst = 5\n";
    match chain.split_once(LOG) {
        Some((before, after)) if !chain.contains("balancer") => {
            format!("{before}{LOG}{}", after.replace(LOG, ""))
        }
        _ => chain.replace(LOG, ""),
    }
}

fn chain(functions: std::ops::Range<usize>) -> impl Strategy<Value = String> {
    (definitions(), prop::collection::vec(function(), functions))
        .prop_map(|(definitions, functions)| with_one_log(&format!("{definitions}{}", functions.concat())))
}

/// A chain whose flows are by 5-tuple, so that workers share nothing.
fn chain_by_pairs() -> impl Strategy<Value = String> {
    let of = |texts: &[&'static str]| {
        let texts: Vec<_> = texts.iter().map(|text| format!("[[chain]]\nnf = {text}\n")).collect();
        prop::sample::select(texts)
    };
    let function = prop_oneof![
        of(&["\"counter\"\nflows = \"pairs\"", "\"counter\""]),
        of(&[
            "\"limiter\"\nflows = \"pairs\"\nrate = \"80kbit/s\"\nburst = \"1500B\"",
            "\"limiter\"\nrate = \"1Mbit/s\"\nburst = \"200B\"",
        ]),
        of(&["\"acl\"\nrules = \"rules\"\nlog = \"log\"\nlog_rate = \"1000/s\"\nlog_burst = 5"]),
        balancer(),
    ];
    (prop::sample::select(vec!["3ms", "10s"]), prop::collection::vec(function, 1..5)).prop_map(
        |(timeout, functions)| {
            let definition = format!("[flows.pairs]\nby = \"5-tuple\"\ntimeout = \"{timeout}\"\n");
            let chain = with_one_log(&format!("{definition}{}", functions.concat()));
            // Behind what rewrites no meter is spread.
            if chain.contains("balancer") { chain } else { chain + METERS[0] }
        },
    )
}

/// All outputs have to be open from the beginning.
const OUTPUTS: &str = "[[chain]]\nnf = \"meter\"\nidle_timeout = \"1ms\"\noutput = \"flows\"\nmax_flows = 4000\n\
    [[chain]]\nnf = \"acl\"\nrules = \"rules\"\nlog = \"log\"\n";

/// How chains are run that are to give what the oracle gives.
const SETTINGS: [&str; 4] = ["", "batch = 7", "workers = 2", "workers = 7\nbatch = 5"];

/// Whether one of these chains has its order of packets, or its number of workers, by itself.
fn is_apart<'a>(chains: impl IntoIterator<Item = &'a String>, settings: &str) -> bool {
    let wanted = plan("", settings).workers();
    chains.into_iter().any(|chain| shares(chain, settings) || plan(chain, settings).workers() != wanted)
}

fn run(chain: &str, capture: &[u8], how: How<'_>) -> (Results, State) {
    let (results, outcome, _) = all_results(chain, capture, How { saves: true, ..how });
    (results, outcome.state.expect("it is saved"))
}

/// The first flow that two states do not agree on, without what was counted on the way.
fn difference(one: &State, other: &State) -> Option<String> {
    if one.definitions.len() != other.definitions.len() {
        return Some(format!("{} definitions, {}", one.definitions.len(), other.definitions.len()));
    }
    one.definitions.iter().zip(&other.definitions).find_map(|(one, other)| {
        if (&one.name, one.by, &one.functions) != (&other.name, other.by, &other.functions) {
            return Some(format!(
                "{:?} {:?}, {:?} {:?}",
                one.name, one.functions, other.name, other.functions
            ));
        }
        let words = one.words();
        [3, 6].iter().zip(&one.entries).zip(&other.entries).find_map(|((header, one), other)| {
            let pairs = one.chunks(header + words).zip(other.chunks(header + words));
            let mut differ = pairs.filter(|(one, other)| one != other);
            let first = differ.next().map(|(one, other)| format!("{one:x?}, {other:x?}"));
            first.or_else(|| {
                (one.len() != other.len()).then(|| format!("{} words, {}", one.len(), other.len()))
            })
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, failure_persistence: None, ..ProptestConfig::default() })]

    /// One chain after the other, at any packets.
    #[test]
    fn reloads_give_what_the_oracle_gives(
        chains in prop::collection::vec((chain(1..5), 0u64..2_500, 0usize..3), 1..5),
        (packets, seed) in (1u64..2_500, any::<u64>()),
    ) {
        let capture = talk(packets, seed);
        let with_meter = |chain: &str, meter: usize| format!("{chain}{}", METERS.get(meter).unwrap_or(&""));
        let mut reloads: Vec<_> =
            chains.iter().map(|(chain, at, meter)| (*at, with_meter(chain, *meter))).collect();
        reloads.sort();
        let first = OUTPUTS;
        let how = |settings| How { settings, reloads: reloads.clone(), ..How::default() };
        let (oracle, _) = run(first, &capture, how("device = \"oracle\""));
        let met = reloads.iter().filter(|(at, _)| *at <= packets).count();
        if met > 0 {
            prop_assert_eq!(&oracle.summary["reloads"]["done"], met);
        }
        for settings in SETTINGS {
            if is_apart(reloads.iter().map(|(_, chain)| chain), settings) {
                continue;
            }
            let (found, _) = run(first, &capture, how(settings));
            prop_assert_eq!(&found, &oracle, "{}\n{:#?}", settings, &reloads);
        }
    }

    /// The same with workers that share nothing.
    #[test]
    fn reloads_with_workers_give_what_the_oracle_gives(
        chains in prop::collection::vec((chain_by_pairs(), 0u64..2_500), 1..5),
        (packets, seed) in (1u64..2_500, any::<u64>()),
    ) {
        let capture = talk(packets, seed);
        let mut reloads: Vec<_> = chains.into_iter().map(|(chain, at)| (at, chain)).collect();
        reloads.sort();
        let how = |settings| How { settings, reloads: reloads.clone(), ..How::default() };
        let (oracle, oracle_state) = run(OUTPUTS, &capture, how("device = \"oracle\""));
        for settings in SETTINGS {
            prop_assert!(!is_apart(reloads.iter().map(|(_, chain)| chain), settings));
            let (found, state) = run(OUTPUTS, &capture, how(settings));
            prop_assert_eq!(&found, &oracle, "{}\n{:#?}", settings, &reloads);
            prop_assert_eq!(difference(&state, &oracle_state), None, "{}\n{:#?}", settings, &reloads);
        }
    }

    /// A chain that becomes itself is one that stays.
    #[test]
    fn a_reload_of_the_same_chain_changes_nothing(
        chain in chain(1..6),
        at in prop::collection::btree_set(0u64..2_000, 1..6),
        seed in any::<u64>(),
    ) {
        let capture = talk(2_000, seed);
        let chain = format!("{chain}{}", METERS[0]);
        let reloads: Vec<_> = at.iter().map(|&at| (at, chain.clone())).collect();
        for settings in SETTINGS.into_iter().chain(["device = \"oracle\""]) {
            if is_apart([&chain], settings) && !settings.contains("oracle") {
                continue;
            }
            let (whole, state) = run(&chain, &capture, How { settings, ..How::default() });
            let (mut found, found_state) =
                run(&chain, &capture, How { settings, reloads: reloads.clone(), ..How::default() });
            let summary = found.summary.as_object_mut().expect("an object");
            prop_assert_eq!(summary.remove("replaced"), Some(serde_json::json!([])), "nothing was");
            prop_assert_eq!(summary.remove("reloads"), Some(serde_json::json!({ "done": at.len(), "refused": 0 })));
            prop_assert_eq!(&found, &whole, "{}\n{}", settings, &chain);
            prop_assert_eq!(difference(&found_state, &state), None, "{}\n{}", settings, &chain);
        }
    }

    /// A run that ends, and one that goes on from its state: whoever runs them, all is as in one run.
    #[test]
    fn what_is_saved_and_restored_goes_on(
        chain in chain(1..6),
        (packets, at, seed) in (1u64..2_000, 0u64..2_000, any::<u64>()),
    ) {
        let capture = talk(packets, seed);
        let at = at.min(packets);
        let rest = without_first(&capture, at);
        let oracle = "device = \"oracle\"";
        let (whole, whole_state) = run(&chain, &capture, How { settings: oracle, ..How::default() });
        let (_, fast_state) = run(&chain, &capture, How::default());
        for (before, after) in [
            (oracle, oracle),
            ("", ""),
            (oracle, "batch = 7"),
            ("batch = 7", oracle),
            ("workers = 2", "workers = 7\nbatch = 5"),
            ("", "workers = 2"),
            ("workers = 3", oracle),
        ] {
            if [before, after].into_iter().any(|settings| settings != oracle && is_apart([&chain], settings)) {
                continue;
            }
            let (first, saved) = run(&chain, &capture, How { settings: before, limit: Some(at), ..How::default() });
            prop_assert_eq!(saved.packets, at);
            // By way of the bytes of a file.
            let file = tempfile::NamedTempFile::new().expect("a file");
            saved.save(file.path()).expect("written");
            let restore = Some(State::load(file.path()).expect("a state"));
            let (second, state) = run(&chain, &rest, How { settings: after, restore, ..How::default() });
            let passed = [frames(&first.passed), frames(&second.passed)].concat();
            prop_assert!(passed == frames(&whole.passed), "{} {}: other packets\n{}", before, after, &chain);
            // What forms keep that are equal may differ in words that nobody asks for.
            if before == oracle && after == oracle {
                prop_assert_eq!(difference(&state, &whole_state), None, "{}", &chain);
            } else if before != oracle && after != oracle {
                prop_assert_eq!(difference(&state, &fast_state), None, "{}", &chain);
            }
            for (name, counts) in whole.summary["dropped"].as_object().expect("an object") {
                let number = |summary: &serde_json::Value| summary["dropped"][name].as_u64().unwrap_or(0);
                prop_assert_eq!(Some(number(&first.summary) + number(&second.summary)), counts.as_u64());
            }
        }
    }
}

/// Of a meter of [`talk`], which is [in VLANs](in_vlans) then.
const VLANS: &str = "vlan_in_key = true\n";

/// A capture of what a meter is to see.
fn talk_for(chain: &str, packets: u64, seed: u64) -> Vec<u8> {
    let capture = talk(packets, seed);
    if chain.contains(VLANS) { in_vlans(&capture) } else { capture }
}

/// A meter whose timeouts are about as long as a run's cuts are apart.
fn meter() -> impl Strategy<Value = String> {
    let timeout = || prop::sample::select(vec!["0", "300us", "1ms", "5ms", "30s"]);
    let before = prop::sample::select(vec![
        "",
        "[[chain]]\nnf = \"counter\"\n",
        "[[chain]]\nnf = \"acl\"\nrules = \"rules\"\n",
        "[[chain]]\nnf = \"source-counter\"\n",
    ]);
    let fields = prop::sample::select(vec!["", "fields = \"standard\"\n", VLANS]);
    (before, timeout(), timeout(), fields).prop_map(|(before, idle, active, fields)| {
        format!(
            "{before}[[chain]]\nnf = \"meter\"\nidle_timeout = \"{idle}\"\nactive_timeout = \"{active}\"\noutput = \"flows\"\n{fields}"
        )
    })
}

/// Runs one after the other, over packets that end at each of these; the last one hands out what is left. Each has one of the settings, in
/// turn, and goes on from the file of the one before. All records.
fn records_of_runs(chain: &str, capture: &[u8], cuts: &[u64], settings: &[&str]) -> Vec<String> {
    let (mut records, mut restore, mut from) = (Vec::new(), None, 0);
    for (turn, until) in cuts.iter().copied().map(Some).chain([None]).enumerate() {
        let how = How {
            settings: settings[turn % settings.len()],
            limit: until.map(|until| until - from),
            restore: restore.take(),
            saves: until.is_some(),
            ..How::default()
        };
        let (results, outcome, notices) = all_results(chain, &without_first(capture, from), how);
        assert_eq!(notices, Vec::<String>::new());
        records.extend(results.records);
        if let (Some(state), Some(until)) = (outcome.state, until) {
            let file = tempfile::NamedTempFile::new().expect("a file");
            state.save(file.path()).expect("written");
            restore = Some(State::load(file.path()).expect("a state"));
            from = until;
        }
    }
    records.sort_unstable();
    records
}

/// Packets of records, in both directions.
fn packets_of(records: &[String]) -> u64 {
    let of = |record: &String| {
        let record: serde_json::Value = serde_json::from_str(record).expect("JSON");
        let number = |name: &str| record[name].as_u64().expect("a number");
        number("packetDeltaCount") + number("reversePacketDeltaCount")
    };
    records.iter().map(of).sum()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    /// Records go on from run to run, whoever runs them: they are those of one run.
    #[test]
    fn records_of_runs_that_go_on_are_those_of_one_run(
        chain in meter(),
        (packets, seed) in (1u64..2_000, any::<u64>()),
        cuts in prop::collection::btree_set(0u64..2_000, 1..4),
    ) {
        let capture = talk_for(&chain, packets, seed);
        let cuts: Vec<_> = cuts.into_iter().map(|at| at.min(packets)).collect();
        let (oracle, ..) = all_results(&chain, &capture, How { settings: ORACLE, ..How::default() });
        for settings in [
            &[""][..],
            &["workers = 2", "workers = 7\nbatch = 5"],
            &["workers = 7", "", "batch = 7"],
            &[ORACLE, "workers = 2"],
            &["batch = 7", ORACLE],
        ] {
            let found = records_of_runs(&chain, &capture, &cuts, settings);
            prop_assert_eq!(&found, &oracle.records, "{:?} {:?}\n{}", settings, &cuts, &chain);
        }
    }

    /// A file is the same whoever writes it, with a meter too.
    #[test]
    fn a_meters_part_of_a_file_is_the_same_whoever_writes_it(
        chain in meter(), (packets, at, seed) in (1u64..2_000, 0u64..2_000, any::<u64>()),
    ) {
        let capture = talk_for(&chain, packets, seed);
        let (_, expected) = run(&chain, &capture, How { settings: ORACLE, ..How::default() });
        let meter = expected.definitions.iter().find(|held| held.name == "meter 1").expect("its flows");
        let words = if chain.contains("standard") || chain.contains(VLANS) { 21 } else { 9 };
        prop_assert_eq!((meter.functions[0].nf.as_str(), meter.words()), ("meter", words));
        for settings in ["", "workers = 2", "workers = 7\nbatch = 5"] {
            let (_, state) = run(&chain, &capture, How { settings, ..How::default() });
            prop_assert_eq!(difference(&state, &expected), None, "{}\n{}", settings, &chain);
            // Over a reload, and with another meter that takes over.
            for other in [chain.clone(), chain.replace("nf = \"meter\"", "nf = \"meter\"\nframings = \"all\"")] {
                let how = How { settings, reloads: vec![(at, other)], ..How::default() };
                let (_, state) = run(&chain, &capture, how);
                prop_assert_eq!(difference(&state, &expected), None, "{}\n{}", settings, &chain);
            }
        }
    }

    /// A meter whose settings change goes on with the records of the one before; one that is gone ends them.
    #[test]
    fn records_go_on_over_a_reload_with_another_meter(
        chain in meter(),
        (packets, seed) in (1u64..2_000, any::<u64>()),
        at in prop::collection::btree_set(0u64..2_000, 1..4),
    ) {
        let capture = talk_for(&chain, packets, seed);
        let (whole, ..) = all_results(&chain, &capture, How::default());
        let other = chain.replace("nf = \"meter\"", "nf = \"meter\"\nframings = \"all\"");
        let at: Vec<_> = at.into_iter().collect();
        for settings in ["", "workers = 2", "workers = 7\nbatch = 5", ORACLE] {
            let chains = [&other, &chain].into_iter().cycle();
            let reloads = at.iter().copied().zip(chains.cloned()).collect();
            let (found, _, notices) =
                all_results(&chain, &capture, How { settings, reloads, ..How::default() });
            prop_assert_eq!(&found.records, &whole.records, "{} {:?}\n{}", settings, &at, &chain);
            prop_assert_eq!(notices, Vec::<String>::new());
            let without = "[[chain]]\nnf = \"counter\"\n".to_owned();
            let reloads = vec![(at[0], without)];
            let (found, _, notices) =
                all_results(&chain, &capture, How { settings, reloads, ..How::default() });
            let (cut, ..) =
                all_results(&chain, &capture, How { settings, limit: Some(at[0]), ..How::default() });
            prop_assert_eq!(&found.records, &cut.records, "{} {:?}\n{}", settings, &at, &chain);
            prop_assert!(notices.iter().all(|said| !said.contains("meter")), "{:?}", notices);
        }
    }

    /// A meter whose records get other fields, or whose flows get VLANs, begins them anew: those of the one before end, and each packet is in one.
    #[test]
    fn records_end_where_they_get_other_fields(
        (at, seed) in (0u64..1_500, any::<u64>()), is_forward: bool, is_vlan: bool,
    ) {
        let capture = in_vlans(&talk(1_500, seed));
        let of = |key: &str| format!("[[chain]]\nnf = \"meter\"\n{key}\noutput = \"flows\"\n");
        let keys = if is_vlan { ["fields = \"standard\"", VLANS] } else { ["fields = \"basic\"", "fields = \"full\""] };
        let [first, second] = if is_forward { keys } else { [keys[1], keys[0]] };
        for settings in ["", "workers = 7", ORACLE] {
            let reloads = vec![(at, of(second))];
            let (found, ..) = all_results(&of(first), &capture, How { settings, reloads, ..How::default() });
            prop_assert_eq!(packets_of(&found.records), 1_500, "{}", settings);
        }
    }

    /// Where there is no room for all flows of a file, the records of those end that do not go on: each packet is in one.
    #[test]
    fn records_that_find_no_room_end(
        max_flows in 1u64..40, (at, seed) in (0u64..1_500, any::<u64>()),
    ) {
        let capture = talk(1_500, seed);
        let of = |max_flows: u64| format!("[[chain]]\nnf = \"meter\"\nmax_flows = {max_flows}\noutput = \"flows\"\n");
        let (large, small) = (of(1_000), of(max_flows));
        for settings in ["", "workers = 7", ORACLE] {
            let how = How { settings, limit: Some(at), saves: true, ..How::default() };
            let (first, outcome, _) = all_results(&large, &capture, how);
            let restore = outcome.state;
            let rest = without_first(&capture, at);
            let (second, ..) = all_results(&small, &rest, How { settings, restore, ..How::default() });
            let records = [first.records, second.records].concat();
            prop_assert_eq!(packets_of(&records), 1_500, "{}", settings);
            let reloads = vec![(at, small.clone())];
            let (found, ..) = all_results(&large, &capture, How { settings, reloads, ..How::default() });
            prop_assert_eq!(packets_of(&found.records), 1_500, "{}", settings);
        }
    }
}

/// A number that is more likely than others to be taken for one that means something.
fn word() -> impl Strategy<Value = u64> {
    prop_oneof![any::<u64>(), 0u64..20, Just(u64::MAX), (0u64..4).prop_map(|high| high << 32 | 1)]
}

/// Puts other words in the place of what functions keep for flows, and of the times of their last packets.
fn overwrite(state: &mut State, words: &[u64]) {
    let mut words = words.iter().cycle();
    for held in &mut state.definitions {
        let own = held.words();
        for (header, entries) in [3, 6].into_iter().zip(&mut held.entries) {
            for entry in entries.chunks_exact_mut(header + own) {
                entry[header - 1..].iter_mut().zip(&mut words).for_each(|(word, &other)| *word = other);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever words functions find, nothing breaks.
    #[test]
    fn any_words_can_be_restored(
        chain in chain(2..7),
        words in prop::collection::vec(word(), 1..40),
        (seed, at) in (any::<u64>(), 100u64..600),
    ) {
        let capture = talk(800, seed);
        let chain = format!("{chain}{}", METERS[0]);
        let (_, mut state) = run(&chain, &capture, How { limit: Some(at), ..How::default() });
        overwrite(&mut state, &words);
        let rest = without_first(&capture, at);
        for settings in ["", "workers = 3", "device = \"oracle\""] {
            let restore = Some(state.clone());
            let (found, ..) = all_results(&chain, &rest, How { settings, restore, ..How::default() });
            prop_assert_eq!(&found.summary["received"], 800 - at);
        }
    }
}

/// Workers that share tables: what does not depend on order is as in one loop, over reloads and over runs.
#[test]
fn shared_tables_are_handed_on() {
    let capture = talk(4_000, 3);
    let counters = |first: &str, timeout: &str| {
        format!(
            "[flows.two]\nby = \"source\"\ntimeout = \"{timeout}\"\n{first}[[chain]]\nnf = \"counter\"\nflows = \"two\"\n\
             [[chain]]\nnf = \"counter\"\n[[chain]]\nnf = \"counter\"\nflows = \"connection\"\n"
        )
    };
    let limiter = "[[chain]]\nnf = \"limiter\"\nflows = \"two\"\nrate = \"1Gbit/s\"\nburst = \"1MB\"\n";
    let (one, other) = (counters("", "10s"), counters(limiter, "20s"));
    let reloads = vec![(1_000, other.clone()), (2_500, one.clone()), (2_600, other)];
    let how = |settings| How { settings, reloads: reloads.clone(), ..How::default() };
    let (oracle, oracle_state) = run(&one, &capture, how("device = \"oracle\""));
    for settings in ["", "workers = 2", "workers = 7\nbatch = 5"] {
        assert_eq!(shares(&one, settings), settings.contains("workers"));
        let (found, state) = run(&one, &capture, how(settings));
        assert_eq!(found, oracle, "{settings}");
        // When tokens were counted last depends on order.
        let (held, expected) = (&state.definitions[1], &oracle_state.definitions[1]);
        assert_eq!((&held.name, &held.entries), (&expected.name, &expected.entries), "{settings}");
    }
    let (whole, whole_state) = run(&one, &capture, How::default());
    let limit = Some(1_700);
    let (_, saved) = run(&one, &capture, How { settings: "workers = 3", limit, ..How::default() });
    let rest = without_first(&capture, 1_700);
    for settings in ["", "workers = 2", "workers = 7\nbatch = 5"] {
        let (found, state) =
            run(&one, &rest, How { settings, restore: Some(saved.clone()), ..How::default() });
        assert_eq!(difference(&state, &whole_state), None, "{settings}");
        for function in 0..3 {
            let top = |results: &Results| results.summary["functions"][function]["top"].clone();
            assert_eq!(top(&found), top(&whole), "{settings}");
        }
    }
}

/// A smaller capacity: the flows stay whose last packets were the latest.
#[test]
fn a_smaller_table_keeps_the_latest_flows() {
    let capture = talk(1_000, 5);
    let chain = |most: usize, when_full: &str| {
        format!(
            "[flows.few]\nby = \"5-tuple\"\nmax_flows = {most}\nwhen_full = \"{when_full}\"\n\
             [[chain]]\nnf = \"counter\"\nflows = \"few\"\n"
        )
    };
    let (_, large) = run(&chain(1_000, "evict-oldest"), &capture, How::default());
    let [v4, v6] = large.definitions[0].flows();
    assert!(v4 > 100 && v6 > 100);
    for when_full in ["evict-oldest", "drop-new", "pass-new"] {
        for settings in ["", "device = \"oracle\""] {
            let reloads = vec![(1_000, chain(40, when_full))];
            let (found, small) =
                run(&chain(1_000, when_full), &capture, How { settings, reloads, ..How::default() });
            let counts = &found.summary["flows"]["few"];
            assert_eq!(counts["evicted"], v4 + v6 - 80, "{when_full} {settings}");
            assert_eq!(counts["created"], v4 + v6);
            for (version, header) in [(0, 3), (1, 6)] {
                let of = |state: &State| {
                    let entries = state.definitions[0].entries[version].chunks(header + 2);
                    let mut entries: Vec<_> = entries.map(<[u64]>::to_vec).collect();
                    entries.sort_by_key(|entry| std::cmp::Reverse(entry[header - 1]));
                    entries
                };
                let (kept, all) = (of(&small), of(&large));
                assert_eq!((kept.len(), &kept[..]), (40, &all[..40]), "{when_full} {settings}");
            }
        }
    }
}

/// New flows go where the new list alone would send them, and old ones stay where they are.
#[test]
fn choices_of_new_flows_are_those_of_the_new_list() {
    let balancer = |backends: &[u32]| {
        let backends: Vec<_> = backends.iter().map(|n| format!("{{ address = \"10.9.8.{n}\" }}")).collect();
        let service = |server: u32| {
            format!(
                "[[chain.services]]\naddress = \"10.0.1.{server}\"\nbackends = [{}]\n",
                backends.join(", ")
            )
        };
        let services: Vec<_> = (0..20).map(service).collect();
        format!("[[chain]]\nnf = \"balancer\"\ntable_size = 251\n{}", services.concat())
    };
    let capture = talk(3_000, 11);
    let (old, new) = (balancer(&[1, 2, 3, 4]), balancer(&[4, 6, 2, 5]));
    let destinations = |passed: &[u8]| {
        let mut at = 24;
        let mut found = Vec::new();
        while at < passed.len() {
            let len = u32::from_le_bytes(passed[at + 8..at + 12].try_into().expect("four bytes")) as usize;
            found.push(passed[at + 16 + 30..at + 16 + 34].to_vec());
            at += 16 + len;
        }
        found
    };
    let (alone_old, _) = run(&old, &capture, How::default());
    let (alone_new, _) = run(&new, &capture, How::default());
    let reloads = vec![(1_500, new.clone())];
    for settings in ["", "workers = 3", "device = \"oracle\""] {
        let (found, _) = run(&old, &capture, How { settings, reloads: reloads.clone(), ..How::default() });
        let found = destinations(&found.passed);
        let (old, new) = (destinations(&alone_old.passed), destinations(&alone_new.passed));
        assert_eq!(found[..1_500], old[..1_500]);
        let differ =
            |other: &[Vec<u8>]| found[1_500..].iter().zip(&other[1_500..]).filter(|(a, b)| a != b).count();
        // Each packet goes where one of the two would send it, and both matter.
        let of_one = (1_500..3_000).all(|n| found[n] == old[n] || found[n] == new[n]);
        assert!(of_one && differ(&old) > 50 && differ(&new) > 50, "{} {}", differ(&old), differ(&new));
    }
    // What is not held is new: with a state without flows all choices are the new list's.
    let (found, _) = run(&new, &capture, How { restore: Some(State::default()), ..How::default() });
    assert_eq!(found.passed, alone_new.passed);
}

/// A function that devices run with its state, with keys as above.
fn on_device() -> impl Strategy<Value = String> {
    let is_with_state = |function: &String| !function.contains("rules = \"rules\"");
    function().prop_filter("it keeps state", is_with_state)
}

/// A chain that is on a device as far as it can be, with a meter behind or at first.
fn chain_for_device() -> impl Strategy<Value = String> {
    let meter = prop::sample::select(vec!["", METERS[0], METERS[1]]);
    let begins = prop_oneof![4 => function(), 1 => Just(METERS[0].to_owned())];
    (definitions(), begins, prop::collection::vec(function(), 0..5), meter).prop_map(
        |(definitions, begins, functions, meter)| {
            let meter = if begins == METERS[0] { "" } else { meter };
            with_one_log(&format!("{definitions}{begins}{}{meter}", functions.concat()))
        },
    )
}

/// How a chain is run on a device.
fn on<'a>(device: &Device, settings: &'a str) -> How<'a> {
    How { settings, devices: vec![device.clone()], saves: true, ..How::default() }
}

fn name_of(device: &Device) -> String {
    format!("device = \"{}\"", device.description().id)
}

/// The devices for a turn: slow ones have the first one only.
fn devices_of(turn: usize) -> impl Iterator<Item = Device> {
    devices().into_iter().filter(move |device| turn == 0 || !is_slow(device))
}

const ORACLE: &str = "device = \"oracle\"";

/// Chains that come one after the other where a device keeps their state.
#[test]
fn reloads_on_devices_give_what_the_oracle_gives() {
    if !packetloom_testing::sweep("reloads on devices") {
        return;
    }
    let mut runner = TestRunner::deterministic();
    let first = format!("[[chain]]\nnf = \"counter\"\n{OUTPUTS}");
    for turn in 0..4 {
        let chains = prop::collection::vec((chain_for_device(), 0u64..2_500), 1..4);
        let (chains, seed) = (chains, any::<u64>()).new_tree(&mut runner).expect("chains").current();
        let capture = talk(2_500, seed);
        let mut reloads: Vec<_> = chains.into_iter().map(|(chain, at)| (at, chain)).collect();
        reloads.sort();
        let reloads = || reloads.clone();
        let (oracle, _, said) = all_results(
            &first,
            &capture,
            How { settings: ORACLE, reloads: reloads(), saves: true, ..How::default() },
        );
        assert_eq!(oracle.summary["reloads"]["done"], reloads().len());
        let (_, fast) = run(&first, &capture, How { reloads: reloads(), ..How::default() });
        for device in devices_of(turn) {
            let settings = name_of(&device);
            let (found, outcome, notices) =
                all_results(&first, &capture, How { reloads: reloads(), ..on(&device, &settings) });
            assert_eq!(found, oracle, "{settings}\n{:#?}", reloads());
            assert_eq!(notices, said, "{settings}\n{:#?}", reloads());
            assert_eq!(
                difference(&outcome.state.expect("it is saved"), &fast),
                None,
                "{settings}\n{:#?}",
                reloads()
            );
            let shares = outcome.shares.expect("a device was used");
            assert!(shares.faults == 0 && shares.device > 0 && shares.device + shares.here == 2_500);
        }
    }
}

/// Who saves and who restores, devices or others, makes no difference.
#[test]
fn what_devices_save_and_restore_goes_on() {
    if !packetloom_testing::sweep("saved state on devices") {
        return;
    }
    let mut runner = TestRunner::deterministic();
    for turn in 0..3 {
        let chain = (definitions(), prop::collection::vec(on_device(), 1..5), 0u64..2_000, any::<u64>());
        let (definitions, functions, at, seed) = chain.new_tree(&mut runner).expect("a chain").current();
        let chain = format!("{definitions}{}", functions.concat());
        let capture = talk(2_000, seed);
        let rest = without_first(&capture, at);
        let (whole, _) = run(&chain, &capture, How { settings: ORACLE, ..How::default() });
        let (_, whole_state) = run(&chain, &capture, How::default());
        for device in devices_of(turn) {
            let settings = name_of(&device);
            let here = |settings| How { settings, ..How::default() };
            for (before, after) in [
                (on(&device, &settings), on(&device, &settings)),
                (on(&device, &settings), here("batch = 7")),
                (here(""), on(&device, &settings)),
                (on(&device, &settings), here(ORACLE)),
                (here(ORACLE), on(&device, &settings)),
            ] {
                let names = format!("{} {}\n{chain}", before.settings, after.settings);
                let is_fast = ![before.settings, after.settings].contains(&ORACLE);
                let (first, saved) = run(&chain, &capture, How { limit: Some(at), ..before });
                assert_eq!(saved.packets, at);
                let file = tempfile::NamedTempFile::new().expect("a file");
                saved.save(file.path()).expect("written");
                let restore = Some(State::load(file.path()).expect("a state"));
                let (second, state) = run(&chain, &rest, How { restore, ..after });
                let passed = [frames(&first.passed), frames(&second.passed)].concat();
                assert!(passed == frames(&whole.passed), "other packets: {names}");
                if is_fast {
                    assert_eq!(difference(&state, &whole_state), None, "{names}");
                }
                for (name, counts) in whole.summary["dropped"].as_object().expect("an object") {
                    let number = |summary: &serde_json::Value| summary["dropped"][name].as_u64().unwrap_or(0);
                    assert_eq!(Some(number(&first.summary) + number(&second.summary)), counts.as_u64());
                }
            }
        }
    }
}

/// A segment of a connection of HTTP, from its client.
fn segment(sequence: u32, flags: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
    frame.extend([0x45, 0]);
    frame.extend((40 + payload.len() as u16).to_be_bytes());
    frame.extend([0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    frame.extend(40_000u16.to_be_bytes());
    frame.extend(80u16.to_be_bytes());
    frame.extend(sequence.to_be_bytes());
    frame.extend([0, 0, 0, 0, 0x50, flags, 255, 255, 0, 0, 0, 0]);
    frame.extend(payload);
    frame
}

/// The search for names goes on over reloads of the same chain: a request in segments, with a segment missing at first.
#[test]
fn names_are_found_over_reloads() {
    let request = b"GET / HTTP/1.1\r\nHost: www.example.org\r\n\r\n";
    let part = |from: usize, until: usize| segment(1 + from as u32, 0x18, &request[from..until]);
    let frames = [segment(0, 2, b""), part(0, 9), part(22, 30), part(9, 22), part(30, request.len())];
    let capture = capture_of_frames(frames.into_iter().zip(1..).map(|(frame, at)| (1_000_000 * at, frame)));
    let chain = "[[chain]]\nnf = \"meter\"\nfields = \"full\"\noutput = \"flows\"\n";
    let (whole, ..) = all_results(chain, &capture, How::default());
    assert_eq!(whole.records.len(), 1);
    assert!(whole.records[0].contains("www.example.org"), "{}", whole.records[0]);
    for settings in ["", "workers = 3", ORACLE] {
        for at in 0..5 {
            for reloads in [vec![at], (at..5).collect()] {
                let reloads = reloads.into_iter().map(|at| (at, chain.to_owned())).collect();
                let (found, ..) = all_results(chain, &capture, How { settings, reloads, ..How::default() });
                assert_eq!(found.records, whole.records, "{settings} {at}");
            }
        }
    }
}

/// Whatever words a kernel finds, nothing breaks, and cores find the same.
#[test]
fn any_words_can_be_restored_on_devices() {
    if !packetloom_testing::sweep("restored state on devices") {
        return;
    }
    let mut runner = TestRunner::deterministic();
    for turn in 0..3 {
        let parts =
            (prop::collection::vec(on_device(), 3..6), prop::collection::vec(word(), 1..40), any::<u64>());
        let (functions, words, seed) = parts.new_tree(&mut runner).expect("a chain").current();
        let chain = format!(
            "[flows.one]\nby = \"5-tuple\"\n[flows.two]\nby = \"source\"\n[flows.pairs]\nby = \"5-tuple\"\n{}",
            functions.concat()
        );
        let capture = talk(800, seed);
        let (_, mut state) = run(&chain, &capture, How { limit: Some(400), ..How::default() });
        overwrite(&mut state, &words);
        let rest = without_first(&capture, 400);
        let restore = || Some(state.clone());
        let (here, _) = run(&chain, &rest, How { restore: restore(), ..How::default() });
        for device in devices_of(turn) {
            let settings = name_of(&device);
            let (found, _) = run(&chain, &rest, How { restore: restore(), ..on(&device, &settings) });
            assert_eq!(found, here, "{settings}\n{chain}");
        }
    }
}

/// A flow with most packets of its batches, whose backend is of the other IP version, as only a file can say: all are dropped, so no function
/// behind sees any.
#[test]
fn an_elephant_may_have_a_backend_of_the_other_version() {
    let key = |packet: u64| {
        Key::V4(MatchKey4 {
            source: 0x0a00_0001,
            destination: 0xc633_6401,
            source_port: if packet.is_multiple_of(50) { packet as u16 } else { 5_000 },
            destination_port: 80,
            protocol: 17,
            bits: KeyBits::PORTS.with(KeyBits::WHOLE),
            ..MatchKey4::default()
        })
    };
    let capture = capture((1..5_000).map(|packet| (5_000_000_000 + packet * 1_000, key(packet))));
    let service = |address: &str, backend: &str| {
        format!(
            "[[chain.services]]\naddress = \"{address}\"\nport = 80\n\
             backends = [{{ address = \"{backend}\", port = 8080 }}]\n"
        )
    };
    let services = [service("198.51.100.1", "203.0.113.1"), service("2001:db8::1", "2001:db8:9::1")].concat();
    let chain = format!("[[chain]]\nnf = \"balancer\"\n{services}[[chain]]\nnf = \"counter\"\n");
    let (_, mut state) = run(&chain, &capture, How { limit: Some(100), ..How::default() });
    let own = state.definitions[0].words();
    for entry in state.definitions[0].entries[0].chunks_exact_mut(3 + own) {
        assert_eq!(entry[3] as u32, 1, "the first backend");
        entry[3] += 1;
    }
    let rest = without_first(&capture, 100);
    let restore = || Some(state.clone());
    let (here, here_state) = run(&chain, &rest, How { restore: restore(), ..How::default() });
    assert!(here.summary["dropped"]["rewrite"].as_u64() > Some(4_700), "{}", here.summary);
    for device in devices().into_iter().filter(|device| !is_slow(device)) {
        let settings = name_of(&device);
        let (found, state) = run(&chain, &rest, How { restore: restore(), ..on(&device, &settings) });
        assert_eq!(found, here, "{settings}");
        assert_eq!(difference(&state, &here_state), None, "{settings}");
    }
}

/// A smaller capacity keeps the flows whose last packets were the latest on a device, too; one that is large enough keeps all. Flows that
/// come then find a full table: of one group of places, since a flow whose group is empty finds room in a full table, too.
#[test]
fn a_smaller_table_of_a_device_keeps_the_latest_flows() {
    let capture = talk(1_000, 5);
    let chain = |most: usize| {
        format!(
            "[flows.few]\nby = \"5-tuple\"\nmax_flows = {most}\nwhen_full = \"drop-new\"\n\
             [[chain]]\nnf = \"counter\"\nflows = \"few\"\n"
        )
    };
    let reloads = || vec![(800, chain(4_000)), (900, chain(5))];
    let (oracle, oracle_state) =
        run(&chain(2_000), &capture, How { settings: ORACLE, reloads: reloads(), ..How::default() });
    let counts = &oracle.summary["flows"]["few"];
    assert!(counts["evicted"].as_u64() > Some(200) && counts["refused"].as_u64() > Some(10), "{counts}");
    for device in devices() {
        let settings = name_of(&device);
        let (found, state) =
            run(&chain(2_000), &capture, How { reloads: reloads(), ..on(&device, &settings) });
        assert_eq!(found, oracle, "{settings}");
        assert_eq!(difference(&state, &oracle_state), None, "{settings}");
    }
}

/// Where a device fails between two chains, nothing is lost of what was taken from it; where it fails when it is asked, what it is without
/// files and reloads: what changed since the last copy.
#[test]
fn a_device_may_fail_while_state_is_handed_on() {
    let device = Device::host(32, Cache::at(Path::new(env!("CARGO_TARGET_TMPDIR")).join("kernels")));
    let device = device.expect("a C compiler with sanitisers");
    let capture = talk(12_000, 7);
    let counter = "[[chain]]\nnf = \"counter\"\n";
    let limiter = "[[chain]]\nnf = \"limiter\"\nrate = \"80kbit/s\"\nburst = \"1500B\"\n";
    let next = format!("{counter}{limiter}");
    let settings = name_of(&device);
    let calls = |capture: &[u8], call| {
        let faults = Faults::new();
        run(counter, capture, on(&device.with_faults(&faults), &settings));
        faults.counts(call).calls
    };
    // Of calls that come when so many packets were read.
    let fails_behind = |read: Option<u64>, call, after, reloads: &[(u64, String)]| {
        let faults = Faults::new();
        let mut first = read;
        if first.is_none() {
            faults.fail(call, after);
        }
        let each = |packets: u64| {
            if first.take_if(|first| packets > *first).is_some() {
                faults.fail(call, after);
            }
        };
        let device = device.with_faults(&faults);
        let how = How { reloads: reloads.to_vec(), each: Some(Box::new(each)), ..on(&device, &settings) };
        let (results, outcome, notices) = all_results(counter, &capture, how);
        let shares = outcome.shares.expect("a device was used");
        assert_eq!((shares.faults, faults.counts(call).faults), (1, 1), "{call:?} {after}");
        assert_eq!(shares.device + shares.here, 12_000);
        // It is tried again, and may be back before the end.
        assert!(notices[0].contains("software goes on"), "{notices:?}");
        assert!(notices[1..].iter().all(|said| said == "host is back") && notices.len() <= 2, "{notices:?}");
        (results, outcome.state.expect("it is saved"), shares.device, notices)
    };
    let fails = |call, after, reloads: &[(u64, String)]| fails_behind(None, call, after, reloads);
    let oracle = |reloads: &[(u64, String)]| {
        run(counter, &capture, How { settings: ORACLE, reloads: reloads.to_vec(), ..How::default() })
    };
    // The next chain finds no memory.
    let reloads = [(8_000, next.clone())];
    let (expected, expected_state) = oracle(&reloads);
    // Copies that are made from time to time take memory, too: where one more of them was made than in the run that counted, it is the copy
    // for the next chain that fails, and what packets changed since the one before is not known.
    let mut tries = (0..10).map(|_| fails(Call::Allocation, calls(&capture, Call::Allocation), &reloads));
    let is_load = |(.., notices): &(_, _, _, Vec<String>)| !notices[0].contains("with the state of");
    let (found, state, judged, _) = tries.find(is_load).expect("the next chain that finds no memory");
    assert!(found == expected && judged >= 8_000, "{judged}");
    assert_eq!(difference(&state, &expected_state), None);
    // The first batch of the next chain fails: what it began with is known.
    let (found, state, judged, _) = fails_behind(Some(8_000), Call::Launch, 0, &reloads);
    assert!(found == expected && judged >= 8_000, "{judged}");
    assert_eq!(difference(&state, &expected_state), None);
    // The same with a file.
    let (_, saved) = run(counter, &capture, How { limit: Some(8_000), ..How::default() });
    let rest = without_first(&capture, 8_000);
    let restore = || Some(saved.clone());
    let (expected, expected_state) =
        run(counter, &rest, How { settings: ORACLE, restore: restore(), ..How::default() });
    let faults = Faults::new();
    faults.fail(Call::Launch, 0);
    let how = How { restore: restore(), ..on(&device.with_faults(&faults), &settings) };
    let (found, state) = run(counter, &rest, how);
    assert_eq!((found, faults.counts(Call::Launch).faults), (expected, 1));
    assert_eq!(difference(&state, &expected_state), None);
    // It fails when it is asked for what it keeps, before it has judged anything, and after: a counter's totals, and two words for each
    // IP version of a definition. The last one is asked for at the end.
    let asked = 3;
    let begun = calls(&capture[..24], Call::Copy) - asked;
    let reloads = [(0, next)];
    let (expected, expected_state) = oracle(&reloads);
    for after in begun..begun + asked {
        let (found, state, ..) = fails(Call::Copy, after, &reloads);
        assert_eq!(found, expected);
        assert_eq!(difference(&state, &expected_state), None);
    }
    let reloads = [(8_000, counter.to_owned())];
    let (found, ..) = fails(Call::Copy, begun, &reloads);
    assert_eq!((&found.summary["received"], &found.summary["reloads"]["done"]), (&12_000.into(), &1.into()));
    let counted = found.summary["functions"][0]["packets"].as_u64().expect("a number");
    assert!((4_000..=12_000).contains(&counted), "{counted}");
}
