//! Functions that keep state for flows give what the oracle gives: any of them in any order, with any number of workers.

#![allow(missing_docs)]

mod support;

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::ops::Range;
use std::path::Path;

use packetloom_device::faults::{Call, Faults};
use packetloom_device::{Cache, Device, Id, Layout};
use packetloom_nf::Form;
use packetloom_nf::flows::DeviceKernel;
use packetloom_packet::key::join;
use packetloom_packet::{Headers, Key, KeyBits, LinkType, MatchKey4, MatchKey6, dissect};
use proptest::prelude::*;
use proptest::strategy::{Union, ValueTree};
use proptest::test_runner::TestRunner;
use support::{
    COPIER, COPY_EVERY, How, Results, UNTIL_COPY, accelerators, capture, compare_on, devices, host,
    host_with_teams, in_vlans, is_slow, plan, results, shares, totals_of_flows, traffic, with_recent_state,
};

const BALANCER: &str = "balancer";
const LOGS: &str = "log = \"log\"\nlog_rate = \"unlimited\"\n";
const ACL: &str = "[[chain]]\nnf = \"acl\"\nrules = \"rules\"\n";
/// It writes one file: there is one in a chain at most.
const METER: &str = "[[chain]]\nnf = \"meter\"\nidle_timeout = \"2ms\"\noutput = \"flows\"\n";
const DETAILED_METER: &str =
    "[[chain]]\nnf = \"meter\"\nidle_timeout = \"2ms\"\noutput = \"flows\"\nfields = \"full\"\n";
const VLAN_METER: &str =
    "[[chain]]\nnf = \"meter\"\nidle_timeout = \"2ms\"\noutput = \"flows\"\nvlan_in_key = true\n";

/// Nanoseconds of a capture's packets changed: `change` is told the number of each and its time.
fn at_times(mut capture: Vec<u8>, mut change: impl FnMut(usize, u64) -> u64) -> Vec<u8> {
    let number = |bytes: &[u8]| u64::from(u32::from_le_bytes(bytes.try_into().expect("four bytes")));
    // Magic number, then 20 bytes to the first record.
    let is_nanos = number(&capture[..4]) == 0xa1b2_3c4d;
    let unit = if is_nanos { 1 } else { 1_000 };
    let mut at = 24;
    let mut packet = 0;
    while at < capture.len() {
        let time = number(&capture[at..at + 4]) * 1_000_000_000 + number(&capture[at + 4..at + 8]) * unit;
        let time = change(packet, time);
        capture[at..at + 4].copy_from_slice(&((time / 1_000_000_000) as u32).to_le_bytes());
        capture[at + 4..at + 8].copy_from_slice(&((time % 1_000_000_000 / unit) as u32).to_le_bytes());
        packet += 1;
        at += 16 + number(&capture[at + 8..at + 12]) as usize;
    }
    capture
}

/// A capture of packets from a few clients, some of them busy, to a few hundred servers: TCP packets with SYN, some of which are answered
/// and some refused, and UDP both ways, over IPv4 and IPv6, in time or not.
fn scans(packets: u64, seed: u64) -> Vec<u8> {
    let mut timed = Vec::new();
    let mut state = seed;
    let mut below = |most: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % most
    };
    let mut nanos = 5_000_000_000;
    // Whom each client contacted last.
    let mut contacted = [0; 12];
    for _ in 0..packets {
        nanos += below(200_000);
        let (mut server, port, other_port) = (below(300) as u32, below(40) as u16, 5_000 + below(20) as u16);
        let client = below(12).min(below(12)) as u32;
        // Protocol, TCP flags, whether the client sends it.
        let (protocol, tcp_flags, is_client) = match below(20) {
            0..8 => (6, 0x02, true),
            8..13 => (6, 0x12, false),
            13 => (6, 0x14, false),
            14 => (6, 0x10, true),
            15 => (17, 0, false),
            _ => (17, 0, true),
        };
        let last = &mut contacted[client as usize];
        match is_client {
            true => *last = server,
            false => server = *last,
        }
        let ((source, source_port), (destination, destination_port)) = match is_client {
            true => ((client, other_port), (1_000 + server, port)),
            false => ((1_000 + server, port), (client, other_port)),
        };
        let bits = KeyBits::PORTS.with(KeyBits::WHOLE);
        let bits = if protocol == 6 { bits.with(KeyBits::TCP_FLAGS) } else { bits };
        let key = match client % 3 {
            0 => Key::V6(MatchKey6 {
                source: [0x2001_0db8 << 32, source.into()],
                destination: [0x2001_0db8 << 32, destination.into()],
                source_port,
                destination_port,
                protocol,
                tcp_flags,
                bits,
                ..MatchKey6::default()
            }),
            _ => Key::V4(MatchKey4 {
                source: 0x0a00_0000 + source,
                destination: 0x0a00_0000 + destination,
                source_port,
                destination_port,
                protocol,
                tcp_flags,
                bits,
                ..MatchKey4::default()
            }),
        };
        timed.push((nanos, key));
    }
    capture(timed)
}

/// A capture whose IP packets in untagged Ethernet have DSCPs of all kinds, and wrong IPv4 header checksums.
fn coloured(capture: Vec<u8>, seed: u64) -> Vec<u8> {
    let mut state = seed;
    each_frame(capture, |frame| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // Most often of assured forwarding, with any ECN.
        let class = match (state >> 40) as u8 {
            class @ 0..128 => 0x28 + class % 0x70,
            class => class,
        };
        match frame.get(12..16) {
            Some([0x08, 0, ..]) => frame[15] = class,
            Some([0x86, 0xdd, first, second]) => {
                let second = second & 0x0f | class << 4;
                (frame[14], frame[15]) = (first & 0xf0 | class >> 4, second);
            }
            _ => {}
        }
    })
}

/// Changes the frames of a capture.
fn each_frame(mut capture: Vec<u8>, mut change: impl FnMut(&mut [u8])) -> Vec<u8> {
    let mut at = 24;
    while at < capture.len() {
        let len = u32::from_le_bytes(capture[at + 8..at + 12].try_into().expect("four bytes")) as usize;
        change(&mut capture[at + 16..at + 16 + len]);
        at += 16 + len;
    }
    capture
}

/// A balancer for what some packets of a capture are sent to; with returns, each service has a backend that sends some of the others.
fn balancer(capture: &[u8], flows: &str, with_port: bool, returns: bool) -> String {
    let mut ends: Vec<[(IpAddr, u16); 2]> = Vec::new();
    each_frame(capture.to_vec(), |frame| {
        let Ok(headers) = dissect(LinkType::ETHERNET, frame, 1500) else { return };
        ends.push(match headers.key {
            Key::V4(key) => [
                (IpAddr::V4(key.source.into()), key.source_port),
                (IpAddr::V4(key.destination.into()), key.destination_port),
            ],
            Key::V6(key) => [
                (IpAddr::V6(join(key.source).into()), key.source_port),
                (IpAddr::V6(join(key.destination).into()), key.destination_port),
            ],
        });
    });
    let mut taken: Vec<IpAddr> = Vec::new();
    let mut addresses: Vec<IpAddr> = Vec::new();
    let mut text =
        format!("[[chain]]\nnf = \"balancer\"\nflows = \"{flows}\"\ntable_size = 251\nreturns = {returns}\n");
    for &[_, (address, port)] in &ends {
        if addresses.contains(&address) || addresses.len() == 20 {
            continue;
        }
        let number = addresses.len();
        addresses.push(address);
        let port = if with_port { port } else { 0 };
        let key = |port: u16| if port > 0 { format!(", port = {port}") } else { String::new() };
        let backend = |n: usize| {
            let address = match address.is_ipv4() {
                true => format!("10.9.{number}.{n}"),
                false => format!("2001:db8:9::{number}:{n}"),
            };
            let port = if n == 2 && (port > 0 || !returns) { 8080 } else { 0 };
            format!("{{ address = \"{address}\", weight = {}{} }}", n % 3, key(port))
        };
        let mut backends: Vec<_> = (1..5).map(backend).collect();
        let is_free = |&&(sender, _): &&(IpAddr, u16)| {
            sender.is_ipv4() == address.is_ipv4() && !taken.contains(&sender)
        };
        let mut senders = ends.iter().map(|[sender, _]| sender);
        if returns && let Some(&(sender, own)) = senders.find(is_free) {
            taken.push(sender);
            let own = if port > 0 { own } else { 0 };
            backends.push(format!("{{ address = \"{sender}\", weight = {}{} }}", number % 2, key(own)));
        }
        let port = if port > 0 { format!("port = {port}\n") } else { String::new() };
        text += &format!(
            "[[chain.services]]\naddress = \"{address}\"\n{port}backends = [{}]\n",
            backends.join(", ")
        );
    }
    if addresses.is_empty() { String::new() } else { text }
}

/// A policer with rates that flows exceed: packets of all colours, or of two where there is one bucket.
fn policer() -> impl Strategy<Value = String> {
    // "" is that for sources.
    let flows = prop::sample::select(vec!["", "5-tuple", "short", "sources"]);
    let keys = prop::sample::select(vec![
        "marker = \"single-rate\"\ncir = \"8kbit/s\"\ncbs = \"1500B\"\nebs = \"1500B\"\n",
        "marker = \"single-rate\"\ncir = \"1Mbit/s\"\ncbs = \"200B\"\nebs = \"4000B\"\n",
        "marker = \"single-rate\"\ncir = \"1Mbit/s\"\ncbs = \"4000B\"\nebs = \"0B\"\n",
        "marker = \"two-rate\"\ncir = \"8kbit/s\"\ncbs = \"1500B\"\npir = \"80kbit/s\"\npbs = \"3000B\"\n",
        "marker = \"two-rate\"\ncir = \"80kbit/s\"\ncbs = \"3000B\"\npir = \"1Mbit/s\"\npbs = \"1500B\"\n",
    ]);
    let action = || {
        let marks = prop::sample::select(vec![
            "{ dscp = \"af12\" }",
            "{ dscp = \"AF23\" }",
            "{ dscp = 46 }",
            "{ dscp = \"be\" }",
        ]);
        prop_oneof![2 => prop::sample::select(vec!["", "\"pass\"", "\"drop\""]), 1 => marks]
    };
    let mode = prop::sample::select(vec![
        "",
        "mode = \"colour-blind\"\n",
        "mode = \"colour-aware\"\n",
        "mode = \"colour-aware\"\nothers = \"yellow\"\n",
    ]);
    (flows, keys, mode, [action(), action(), action()]).prop_map(
        |(flows, keys, mode, [green, yellow, red])| {
            let flows = if flows.is_empty() { String::new() } else { format!("flows = \"{flows}\"\n") };
            // All of them dropped would leave nothing to compare.
            let green = if green == "\"drop\"" { "" } else { green };
            let actions = [key("green", green), key("yellow", yellow), key("red", red)].concat();
            format!("[[chain]]\nnf = \"policer\"\n{flows}{keys}{mode}{actions}")
        },
    )
}

/// A line of a chain file, or none where the value is "".
fn key(name: &str, value: &str) -> String {
    if value.is_empty() { String::new() } else { format!("{name} = {value}\n") }
}

fn source_counter() -> impl Strategy<Value = String> {
    let flows = prop::sample::select(vec!["", "\"sources\""]);
    let sessions = prop::sample::select(vec!["", "\"short\""]);
    (flows, sessions).prop_map(|(flows, sessions)| {
        format!("[[chain]]\nnf = \"source-counter\"\n{}{}", key("flows", flows), key("sessions", sessions))
    })
}

/// A search for strings that some packets have, or for names, which none has.
fn search() -> impl Strategy<Value = String> {
    let of = |values: &[&'static str]| prop::sample::select(values.to_vec());
    let keys = (
        of(&["", "\"packet\"", "\"stream\""]),
        of(&["", "\"drop\""]),
        of(&["", "\"drop\""]),
        of(&["", "\"first\"", "\"any\""]),
        of(&["", "9"]),
        of(&["", "\"3ms\""]),
    );
    let strings = keys.prop_map(|(within, action, flow, which, mark, timeout)| {
        let flow = if action.is_empty() { "" } else { flow };
        let timeout = if flow.is_empty() && within != "\"stream\"" { "" } else { timeout };
        [
            "[[chain]]\nnf = \"strings\"\npatterns = \"strings\"\n".into(),
            key("within", within),
            key("action", action),
            key("flow", flow),
            key("match", which),
            key("mark", mark),
            key("timeout", timeout),
        ]
        .concat()
    });
    let domains = of(&["", "\"drop\""]).prop_map(|action| {
        format!("[[chain]]\nnf = \"domains\"\nlists = \"names\"\n{}", key("action", action))
    });
    prop_oneof![4 => strings, 1 => domains]
}

/// A detector of scans, by any method.
fn scan(flows: &'static str) -> impl Strategy<Value = String> {
    Union::new(detectors(flows))
}

/// One of each method, by a flow definition, or by one of those that suit it where that is "", with thresholds that traffic exceeds.
fn detectors(flows: &'static str) -> [BoxedStrategy<String>; 2] {
    let of = |values: &[&'static str]| prop::sample::select(values.to_vec());
    let common = (
        of(&["", "\"2ms\"", "\"30ms\""]),
        of(&["", "\"count\"", "\"drop\""]),
        of(&["", "7", "4611686018427387904"]),
    );
    let by_flows = match flows {
        "" => of(&["", "\"sources\"", "\"initiator\"", "\"openers\""]),
        _ => of(&["\"initiator\""]),
    };
    let fan_out = (
        (by_flows, of(&["1", "2", "5", "12", "300"]), of(&["", "\"0\"", "\"3ms\"", "\"40ms\""])),
        of(&["", "\"both\"", "\"destinations\"", "\"ports\""]),
        // By one definition there is no room for another.
        if flows.is_empty() { of(&["", "true", "false"]) } else { of(&["false"]) },
        of(&["", "\"short\""]),
    );
    let fan_out = fan_out.prop_map(|((flows, threshold, window), distinct, udp, sessions)| {
        let sessions = if udp == "false" { "" } else { sessions };
        [
            "method = \"fan-out\"\n".into(),
            key("flows", flows),
            key("threshold", threshold),
            key("window", window),
            key("distinct", distinct),
            key("udp", udp),
            key("sessions", sessions),
        ]
        .concat()
    });
    let trw = (
        if flows.is_empty() { of(&["", "\"openers\""]) } else { of(&["", "\"initiator\""]) },
        of(&["", "0.6", "0.75"]),
        of(&["", "0.25", "0.5"]),
        of(&["", "0.2", "0.001"]),
        of(&["", "0.6", "0.999"]),
    );
    let trw = trw.prop_map(|(flows, theta0, theta1, alpha, beta)| {
        let keys = [key("flows", flows), key("theta0", theta0), key("theta1", theta1), key("alpha", alpha)];
        format!("method = \"trw\"\n{}{}", keys.concat(), key("beta", beta))
    });
    [fan_out.boxed(), trw.boxed()].map(|method| {
        let scan = (method, common.clone()).prop_map(|(method, (block_for, action, seed))| {
            let keys = [key("block_for", block_for), key("action", action), key("seed", seed)];
            format!("[[chain]]\nnf = \"scan\"\n{method}{}", keys.concat())
        });
        scan.boxed()
    })
}

/// A function that keeps state for flows, by a definition's number; "balancer" where it comes to know the capture.
fn function() -> impl Strategy<Value = String> {
    let flows = prop::sample::select(vec!["5-tuple", "short", "sources", "source"]);
    let unit =
        prop::sample::select(vec![("80kbit/s", "1500B"), ("1Mbit/s", "4000B"), ("300packets/s", "3packets")]);
    prop_oneof![
        flows.clone().prop_map(|flows| format!("[[chain]]\nnf = \"counter\"\nflows = \"{flows}\"\n")),
        (flows, unit).prop_map(|(flows, (rate, burst))| format!(
            "[[chain]]\nnf = \"limiter\"\nflows = \"{flows}\"\nrate = \"{rate}\"\nburst = \"{burst}\"\n"
        )),
        policer(),
        source_counter(),
        scan(""),
        search(),
        Just(ACL.to_owned()),
        Just(BALANCER.to_owned()),
    ]
}

const DEFINITIONS: &str = "\
[flows.short]
by = \"5-tuple\"
timeout = \"3ms\"
[flows.sources]
by = \"source\"
timeout = \"20ms\"
[flows.openers]
by = \"initiator\"
timeout = \"10ms\"
";

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_chain_gives_what_the_oracle_gives(
        functions in prop::collection::vec(function(), 1..7),
        (meter, with_port, returns, balanced) in (prop::sample::select(vec!["", METER, DETAILED_METER, VLAN_METER]), any::<bool>(), any::<bool>(), prop::sample::select(vec!["5-tuple", "short"])),
        (has_scans, has_colours) in any::<(bool, bool)>(),
        filter in prop::sample::select(vec!["", "", "tcp or src port 53", "not net 10.0.0.0/9", "ip6 or ip[8] > 60"]),
        sample in prop::sample::select(vec!["", "", "interval = 2", "interval = 3\nmethod = \"random\"\nseed = 9"]),
        (packets, flows, seed) in (1u64..4_000, 1u64..300, any::<u64>()),
        // Packets that come out of order, and by how much.
        (late, by) in (0usize..9, prop_oneof![Just(0u64), 1u64..50_000_000]),
        batch in prop_oneof![Just(1usize), Just(7), Just(256)],
    ) {
        let capture = if has_scans { scans(packets, seed) } else { traffic(packets, flows.min(packets), seed) };
        let capture = at_times(capture, |packet, time| {
            if late > 0 && packet % (late + 1) == 0 { time.saturating_sub(by) } else { time }
        });
        let capture = if has_colours { coloured(capture, seed) } else { capture };
        let capture = if meter == VLAN_METER { in_vlans(&capture) } else { capture };
        // Searches do not stand behind what rewrites headers.
        let mut functions = functions;
        if functions.iter().any(|function| function.contains("\"strings\"") || function.contains("\"domains\"")) {
            functions.sort_by_key(|function| function == BALANCER);
        }
        let functions = functions.concat().replace(BALANCER, &balancer(&capture, balanced, with_port, returns));
        let filter = match filter {
            "" => String::new(),
            expression => format!("[[chain]]\nnf = \"filter\"\nexpression = \"{expression}\"\n"),
        };
        let sample = match sample {
            "" => String::new(),
            keys => format!("[[chain]]\nnf = \"sample\"\n{keys}\n"),
        };
        // Before the meter, too, some packets are gone by then.
        let (first, last) = if packets % 2 == 0 { (&*sample, "") } else { ("", &*sample) };
        let chain = format!("{DEFINITIONS}{first}{filter}{functions}{last}{meter}");
        let how = How { settings: "device = \"oracle\"", ..How::default() };
        let (oracle, ..) = results(&chain, &capture, how);
        for workers in [1, 2, 7] {
            for is_stream in [false, true] {
                // A stream's sweeps of the meter may show where packets come late.
                if is_stream && !meter.is_empty() {
                    continue;
                }
                let settings = format!("workers = {workers}\nbatch = {batch}");
                // See `shared.rs` for these.
                if shares(&chain, &settings) {
                    continue;
                }
                let how = How { settings: &settings, is_stream, ..How::default() };
                let (found, ..) = results(&chain, &capture, how);
                prop_assert_eq!(&found, &oracle, "{} workers\n{}", workers, &chain);
            }
        }
    }

    /// Detectors of scans that share a definition, so that several workers run them.
    #[test]
    fn scans_are_found_by_any_number_of_workers(
        functions in prop::collection::vec(scan("initiator"), 1..4),
        (packets, seed) in (100u64..6_000, any::<u64>()),
    ) {
        let chain = functions.concat();
        let capture = scans(packets, seed);
        let how = How { settings: "device = \"oracle\"", ..How::default() };
        let (oracle, ..) = results(&chain, &capture, how);
        for settings in ["", "workers = 2", "workers = 7\nbatch = 5"] {
            let (found, ..) = results(&chain, &capture, How { settings, ..How::default() });
            prop_assert_eq!(&found, &oracle, "{}\n{}", settings, &chain);
        }
    }
}

/// Of batches of several pieces, from each of which packets are dropped, those that pass come to a function that keeps its state in the same
/// entries again, behind one that keeps it elsewhere.
#[test]
fn later_functions_see_all_packets_that_passed_the_first() {
    let limiter = "[[chain]]\nnf = \"limiter\"\nrate = \"300packets/s\"\nburst = \"3packets\"\n";
    let by_source = "[[chain]]\nnf = \"counter\"\nflows = \"source\"\n";
    let counter = "[[chain]]\nnf = \"counter\"\n";
    // What the limiter drops is left out before the next function of its own visit, or before the next visit.
    for chain in [[limiter, counter, by_source, counter].concat(), [limiter, by_source, counter].concat()] {
        for seed in 0..3 {
            let capture = traffic(4_000, 100, seed);
            let how = How { settings: "device = \"oracle\"", ..How::default() };
            let (oracle, ..) = results(&chain, &capture, how);
            for settings in ["", "batch = 100", "batch = 700", "batch = 1024"] {
                let (found, ..) = results(&chain, &capture, How { settings, ..How::default() });
                assert_eq!(found, oracle, "{settings}\n{chain}");
            }
        }
    }
}

/// Later pieces of a batch take places of flows that earlier ones had: those packets still have them in the next visit.
#[test]
fn what_goes_within_a_batch_stays_for_its_packets() {
    let few = "[[chain]]\nnf = \"counter\"\nflows = \"few\"\n";
    let chain = format!(
        "[flows.few]\nby = \"5-tuple\"\ntimeout = \"0\"\nmax_flows = 10\n{few}[[chain]]\nnf = \"counter\"\nflows = \"source\"\n{few}"
    );
    let capture = traffic(4_000, 900, 6);
    let (found, ..) = results(&chain, &capture, How { settings: "batch = 1024", ..How::default() });
    let number = |pointer: &str| found.summary.pointer(pointer).and_then(|value| value.as_u64());
    assert!(number("/flows/few/evicted") > Some(500), "{}", found.summary);
    let packets = [0, 1, 2].map(|function| number(&format!("/functions/{function}/packets")));
    assert!(packets[0] > Some(3_000) && packets[1..] == [packets[0]; 2], "{packets:?}");
}

/// At any capacity each metered packet is in one record: records end early, and nothing is lost.
#[test]
fn a_meter_at_capacity_counts_each_packet_once() {
    let mut early = 0;
    for (seed, max_flows) in (0..).zip([1, 2, 9, 40, 130, 300, 2_000]) {
        let capture = traffic(6_000, 900, seed);
        // Some flows are idle when their places are needed, some come again, some records are cut.
        for (idle, active) in [("0", "0"), ("20ms", "50ms"), ("3s", "1s")] {
            let chain = format!(
                "[[chain]]\nnf = \"meter\"\nmax_flows = {max_flows}\nidle_timeout = \"{idle}\"\nactive_timeout = \"{active}\"\n\
                 output = \"flows\"\n"
            );
            let how = How { settings: "device = \"oracle\"", ..How::default() };
            let (oracle, ..) = results(&chain, &capture, how);
            for (workers, batch) in [(1, 256), (1, 1), (1, 1024), (2, 7), (2, 256), (7, 64), (7, 256)] {
                for is_stream in [false, true] {
                    let settings = format!("workers = {workers}\nbatch = {batch}");
                    let how = How { settings: &settings, is_stream, ..How::default() };
                    let (found, ..) = results(&chain, &capture, how);
                    let which = format!("{workers} workers, batches of {batch}, stream {is_stream}\n{chain}");
                    let report = &found.summary["functions"][0];
                    let number = |value: &serde_json::Value| value.as_u64().expect("a number");
                    let totals = totals_of_flows(&found.records);
                    let packets: u64 = totals.values().map(|[packets, _]| packets).sum();
                    let bytes: u64 = totals.values().map(|[_, bytes]| bytes).sum();
                    assert_eq!(packets, number(&report["counted_packets"]), "{which}");
                    assert_eq!(bytes, number(&report["counted_ip_bytes"]), "{which}");
                    assert_eq!(found.records.len() as u64, number(&report["biflows"]), "{which}");
                    // Flow by flow as much as the oracle finds, in however many records.
                    assert_eq!(totals, totals_of_flows(&oracle.records), "{which}");
                    for field in ["frames", "counted_packets", "counted_ip_bytes", "not_counted"] {
                        assert_eq!(report[field], oracle.summary["functions"][0][field], "{which}");
                    }
                    let lack = number(&report["ended"]["lack_of_resources"]);
                    early += lack;
                    // Room for all flows is divided among workers, who do not have as many each.
                    assert!(max_flows < 2_000 || workers > 1 || lack == 0, "{lack} early with {which}");
                    assert!(max_flows > 300 || idle != "0" || lack > 0, "{which}");
                }
            }
        }
    }
    assert!(early > 10_000, "{early} records ended for others");
}

/// Packets whose flow finds no room where it is to be remembered: they are dropped before the function, or begin no flow.
#[test]
fn without_room_nothing_is_remembered() {
    let capture = scans(3_000, 8);
    for (when_full, drops) in [("drop-new", true), ("pass-new", false)] {
        // Nothing expires, so the first flows are those with room, whoever looks.
        let chain = format!(
            "[flows.few]\nby = \"5-tuple\"\ntimeout = \"0\"\nmax_flows = 100\nwhen_full = \"{when_full}\"\n\
             [[chain]]\nnf = \"source-counter\"\nsessions = \"few\"\n\
             [[chain]]\nnf = \"scan\"\nmethod = \"fan-out\"\nthreshold = 9\nsessions = \"few\"\n"
        );
        let how = How { settings: "device = \"oracle\"", ..How::default() };
        let (oracle, ..) = results(&chain, &capture, how);
        let summary = &oracle.summary;
        let number = |pointer: &str| summary.pointer(pointer).and_then(serde_json::Value::as_u64);
        let refused = number("/flows/few/refused").expect("a number");
        assert!(refused > 1_000, "{summary}");
        // 100 of each IP version.
        assert_eq!(number("/functions/0/flows"), Some(200));
        assert_eq!(number("/functions/0/packets"), Some(if drops { 3_000 - refused } else { 3_000 }));
        assert_eq!(number("/dropped/flow_table_full"), Some(if drops { refused } else { 0 }));
        for settings in ["", "batch = 3"] {
            let (found, ..) = results(&chain, &capture, How { settings, ..How::default() });
            assert_eq!(found, oracle, "{when_full} {settings}");
        }
    }
}

/// Packets, flows and seeds of captures.
const TRAFFIC: [(u64, u64, u64); 4] = [(1_000, 100, 1), (1_500, 1, 2), (1_500, 1_500, 3), (2_000, 10, 4)];

#[test]
fn chains_run_on_accelerators() {
    give_what_the_oracle_gives(&accelerators(), &TRAFFIC);
}

#[test]
fn chains_run_on_the_host() {
    give_what_the_oracle_gives(&host(), &TRAFFIC[..2]);
}

#[test]
fn chains_run_on_the_host_over_other_traffic() {
    give_what_the_oracle_gives(&host(), &TRAFFIC[2..]);
}

fn give_what_the_oracle_gives(devices: &[Device], captures: &[(u64, u64, u64)]) {
    let function = |nf: &str, keys: &str| format!("[[chain]]\nnf = \"{nf}\"\n{keys}");
    for device in devices {
        for &(packets, flows, seed) in captures {
            if is_slow(device) && seed > 2 {
                continue;
            }
            let capture = traffic(packets, flows, seed);
            let limiter = function("limiter", "rate = \"1Mbit/s\"\nburst = \"4000B\"\n");
            let short =
                function("limiter", "flows = \"short\"\nrate = \"300packets/s\"\nburst = \"3packets\"\n");
            let counter = function("counter", "");
            let sources = function("counter", "flows = \"sources\"\n");
            let policer = function(
                "policer",
                "marker = \"single-rate\"\ncir = \"1Mbit/s\"\ncbs = \"4000B\"\nebs = \"1500B\"\nyellow = \"drop\"\n",
            );
            let balancer = balancer(&capture, "5-tuple", seed % 2 == 0, false);
            for chain in [
                format!("{counter}{limiter}{balancer}"),
                format!("{sources}{short}{counter}{balancer}{policer}{limiter}"),
            ] {
                compare_on(device, &format!("{DEFINITIONS}{chain}"), &capture);
            }
        }
    }
}

/// Functions that devices run, of each kind one.
fn on_device() -> Vec<BoxedStrategy<String>> {
    let [fan_out, trw] = detectors("");
    let flows = prop::sample::select(vec!["5-tuple", "short", "sources", "connection"]);
    let counted =
        prop::sample::select(vec!["5-tuple", "short", "sources", "connection", "initiator", "openers"]);
    vec![
        counted.prop_map(|flows| format!("[[chain]]\nnf = \"counter\"\nflows = \"{flows}\"\n")).boxed(),
        flows
            .prop_map(|flows| {
                format!(
                    "[[chain]]\nnf = \"limiter\"\nflows = \"{flows}\"\nrate = \"1Mbit/s\"\nburst = \"4000B\"\n"
                )
            })
            .boxed(),
        policer().boxed(),
        source_counter().boxed(),
        fan_out.boxed(),
        trw.boxed(),
        prop::sample::select(vec!["rules", "more", "reflecting"])
            .prop_map(|rules| format!("[[chain]]\nnf = \"acl\"\nrules = \"{rules}\"\nloose = true\n"))
            .boxed(),
        Just(BALANCER.to_owned()).boxed(),
    ]
}

/// Structs of steps lie in kernels as they do here; what steps keep and count are words of 64 bits there, which lie among others.
#[test]
fn compilers_lay_out_what_steps_have_as_rust_does() {
    let mut runner = TestRunner::deterministic();
    let capture = traffic(100, 10, 1);
    let own = balancer(&capture, "5-tuple", true, true);
    let conntrack = "[[chain]]\nnf = \"conntrack\"\n";
    // All details but names, which no device gets.
    let detailed = METER.to_owned() + "fields = \"standard\"\n";
    let mut texts: Vec<_> = vec![METER.to_owned(), detailed, conntrack.to_owned()];
    for function in on_device() {
        let text = function.new_tree(&mut runner).expect("a function").current();
        texts.push(text.replace("\"rules\"", "\"reflecting\"").replace("\"more\"", "\"reflecting\""));
    }
    let kernel = |text: &String| {
        let plan = plan(&format!("{DEFINITIONS}{}", text.replace(BALANCER, &own)), "");
        let Form::PerFlow(function) = plan.chain().functions()[0].form() else { panic!("{text}") };
        function.kernel().expect("a step")
    };
    let mut kernels: Vec<_> = texts.iter().map(kernel).collect();
    kernels.push(DeviceKernel::remember(0));
    assert!(kernels.iter().any(|kernel| kernel.name == "detailed_meter"));
    fn are_words(layout: &Layout) -> bool {
        layout.name == "u64"
            || !layout.fields.is_empty() && layout.fields.iter().all(|field| are_words(field.of))
    }
    for layout in kernels.iter().flat_map(|kernel| kernel.word_layouts()) {
        assert!(are_words(&layout), "{layout:?}");
    }
    let mut layouts: Vec<_> = kernels.iter().flat_map(|kernel| kernel.layouts()).collect();
    layouts.sort_by_key(|layout| layout.name);
    layouts.dedup_by_key(|layout| layout.name);
    assert!(layouts.len() > 25, "{}", layouts.len());
    for device in [host(), accelerators()].concat() {
        assert_eq!(device.check_layouts(&layouts), Ok(()), "{}", device.description().id);
    }
}

#[test]
fn devices_run_any_chain() {
    if packetloom_testing::sweep("random chains on devices") {
        run_any_chain(&devices(), 0..2);
    }
}

#[test]
fn devices_run_any_further_chain() {
    if packetloom_testing::sweep("further random chains on devices") {
        run_any_chain(&devices(), 2..CHAINS);
    }
}

/// Many packets of few flows, as most chains get here, are judged by all teams of a group together: more teams than a team has items, and
/// fewer.
#[test]
fn many_teams_of_a_group_run_any_chain() {
    if packetloom_testing::sweep("random chains on a host with many teams") {
        run_any_chain(&host_with_teams(2), 0..2);
    }
}

#[test]
fn many_teams_of_a_group_run_any_further_chain() {
    if packetloom_testing::sweep("further random chains on a host with many teams") {
        run_any_chain(&host_with_teams(2), 2..CHAINS);
    }
}

#[test]
fn few_teams_of_a_group_run_any_chain() {
    if packetloom_testing::sweep("random chains on a host with few teams") {
        run_any_chain(&host_with_teams(4), 0..2);
    }
}

#[test]
fn few_teams_of_a_group_run_any_further_chain() {
    if packetloom_testing::sweep("further random chains on a host with few teams") {
        run_any_chain(&host_with_teams(4), 2..CHAINS);
    }
}

/// Chains that are drawn.
const CHAINS: usize = 4;

/// Draws [`CHAINS`] chains, and runs some of them.
fn run_any_chain(devices: &[Device], chains: Range<usize>) {
    let mut runner = TestRunner::deterministic();
    // Whatever is drawn, each function is in a chain.
    let all = on_device();
    assert_eq!(all.len() % CHAINS, 0);
    let draw = |runner: &mut TestRunner, turn: usize| {
        let share = all.len() / CHAINS;
        let mut chain = all[turn * share..][..share].to_vec();
        chain.extend((0..4 - share).map(|_| Union::new(all.clone()).boxed()));
        let chain = chain.prop_shuffle();
        let rest = (1u64..4_000, prop_oneof![Just(1u64), 2u64..300, Just(4_000u64)], any::<u64>());
        let options =
            (any::<(bool, bool, bool)>(), prop::sample::select(vec!["5-tuple", "short"]), 0usize..9);
        (chain, rest, options).new_tree(runner).expect("a chain").current()
    };
    for turn in 0..CHAINS {
        let (functions, (packets, flows, seed), ((has_scans, with_port, returns), balanced, late)) =
            draw(&mut runner, turn);
        let capture =
            if has_scans { scans(packets, seed) } else { traffic(packets, flows.min(packets), seed) };
        let capture = at_times(capture, |packet, time| {
            if late > 0 && packet % (late + 1) == 0 { time.saturating_sub(4_000_000) } else { time }
        });
        let capture = coloured(capture, seed);
        let functions =
            functions.concat().replace(BALANCER, &balancer(&capture, balanced, with_port, returns));
        // A list logs, unless it stands between two functions that rewrite: those no device takes.
        let rewrites = |text: &str| text.contains("nf = \"balancer\"");
        let functions = match functions.split_once("loose = true\n") {
            Some((before, behind)) if !(rewrites(before) && rewrites(behind)) => {
                format!("{before}loose = true\n{LOGS}{behind}")
            }
            _ => functions,
        };
        if !chains.contains(&turn) {
            continue;
        }
        for device in devices.iter().filter(|device| turn == 0 || !is_slow(device)) {
            compare_on(device, &format!("{DEFINITIONS}{functions}"), &capture);
        }
    }
}

/// Rules before, between and behind functions with state, whose rewritten headers they see; whose packets are counted, logged, and rules'
/// alone.
#[test]
fn rules_are_found_on_the_host() {
    find_rules(&host());
}

#[test]
fn rules_are_found_on_accelerators() {
    find_rules(&accelerators());
}

fn find_rules(devices: &[Device]) {
    let acl = |rules: &str, keys: &str| format!("[[chain]]\nnf = \"acl\"\nrules = \"{rules}\"\n{keys}");
    let counter = "[[chain]]\nnf = \"counter\"\n";
    let limiter = |flows: &str| {
        format!(
            "[[chain]]\nnf = \"limiter\"\nflows = \"{flows}\"\nrate = \"300packets/s\"\nburst = \"3packets\"\n"
        )
    };
    // What a rewriting function and one behind it share entries for cannot be parted by a list.
    let parted =
        [&balancer(&traffic(100, 10, 1), "5-tuple", true, true), &acl("more", ""), &limiter("5-tuple")];
    assert_eq!(plan(&parted.map(String::as_str).concat(), "device = \"host\"").stateful(), 0);
    for device in devices {
        for (packets, flows) in [(3_000, 300), (2_000, 3)] {
            if is_slow(device) && flows < 300 {
                continue;
            }
            let capture = traffic(packets, flows, 11);
            // Services are at some packets' destinations, backends where no packet was sent.
            let balancer = balancer(&capture, "5-tuple", true, true);
            let chain = [
                DEFINITIONS,
                &acl("rules", ""),
                &acl("backends", "default = \"permit\"\n"),
                counter,
                &acl("rules", "default = \"permit\"\n"),
                &limiter("5-tuple"),
                &acl("rules", "counters = false\ndefault = \"permit\"\n"),
                &balancer,
                &acl("backends", "default = \"permit\"\n"),
                &limiter("short"),
                &acl("more", LOGS),
            ];
            let summary = compare_on(device, &chain.concat(), &capture);
            let hits = |function: usize| summary["functions"][function]["rules_hit"].as_u64();
            let are_hit = hits(0) > Some(3) && hits(3) > Some(2) && hits(7) > Some(1) && hits(9) > Some(1);
            let logged = summary["functions"][9]["log"]["lines"].as_u64();
            assert!(flows == 3 || are_hit && logged > Some(10), "{summary}");
        }
    }
}

/// What a list logs are the packets that it met, with their marks: as functions before it rewrote them, and none behind it.
#[test]
fn logs_have_packets_as_lists_met_them() {
    const MARKING: &str = "[[chain]]\nnf = \"acl\"\nrules = \"more\"\ndefault = \"permit\"\n";
    let logging = "[[chain]]\nnf = \"acl\"\nrules = \"rules\"\nlog = \"log\"\nlog_rate = \"unlimited\"\n";
    let capture = traffic(3_000, 300, 5);
    let balancer = balancer(&capture, "5-tuple", false, false);
    // Sends on what comes to backends of the other one.
    let further = "[[chain]]\nnf = \"balancer\"\nflows = \"short\"\n[[chain.services]]\naddress = \"10.9.0.1\"\nbackends = [{ address = \"10.8.0.1\" }]\n";
    let before = format!("{MARKING}{logging}{balancer}");
    let behind = format!("{balancer}{MARKING}{logging}");
    let between = format!("{DEFINITIONS}{balancer}{logging}{MARKING}{further}");
    for (chain, rewritten) in [(&before, false), (&behind, true), (&between, true)] {
        let how = |settings: &'static str| How { settings, ..How::default() };
        let (oracle, ..) = results(chain, &capture, how("device = \"oracle\""));
        let has = |text: &str| oracle.log.contains(text);
        assert!(oracle.log.lines().count() > 100 && has("\"mark\":4294967295"), "{chain}");
        assert_eq!(has("\"destinationIPv4Address\":\"10.9."), rewritten, "{chain}");
        assert!(!has("10.8."), "{chain}");
        for settings in ["", "batch = 7", "workers = 2", "workers = 5\nbatch = 64"] {
            let (found, ..) = results(chain, &capture, how(settings));
            assert!(found.log == oracle.log, "{settings}\n{chain}");
        }
        for device in &devices() {
            let settings = format!("device = \"{}\"", device.description().id);
            // Of two functions that rewrite the second one is not there, if a list between them logs.
            assert_eq!(plan(chain, &settings).stateful(), 3, "{chain}");
            let how = How { settings: &settings, devices: vec![device.clone()], ..How::default() };
            let (found, ..) = results(chain, &capture, how);
            assert!(found.log == oracle.log, "{settings}\n{chain}");
            assert_eq!(found.summary, oracle.summary);
        }
    }
}

/// Flows with a large share of all packets, that limits let pass and do not, with packets of others between and times of silence.
#[test]
fn devices_take_elephants() {
    let in_packets = "rate = \"20000packets/s\"\nburst = \"90packets\"\n";
    if packetloom_testing::sweep("elephants on devices") {
        take_elephants(&[(1, UNLIMITED), (1, in_packets)]);
    }
}

#[test]
fn devices_take_elephants_among_others() {
    let in_bytes = "rate = \"1Mbit/s\"\nburst = \"100kB\"\n";
    let often_full = "rate = \"300packets/s\"\nburst = \"3packets\"\n";
    if packetloom_testing::sweep("elephants among others on devices") {
        take_elephants(&[(2, in_bytes), (40, UNLIMITED), (40, often_full)]);
    }
}

const UNLIMITED: &str = "rate = \"100Gbit/s\"\nburst = \"1GB\"\n";

/// Of so many flows, with this limit.
fn take_elephants(cases: &[(u64, &str)]) {
    let function = |nf: &str, keys: &str| format!("[[chain]]\nnf = \"{nf}\"\n{keys}");
    for device in devices().iter().filter(|device| !is_slow(device)) {
        // In three batches; a GPU looks for them in large ones, and from the second one on.
        let packets = if device.description().id == Id::Host { 9_000 } else { 210_000 };
        for &(flows, limit) in cases {
            let capture = traffic(packets, flows, flows);
            let capture = at_times(capture, |packet, time| {
                let silences = packet as u64 / (packets / 3) * 30_000_000;
                if packet % 97 == 0 { time.saturating_sub(3_000_000) } else { time + silences }
            });
            let balancer = balancer(&capture, "5-tuple", true, flows == 2);
            let [counter, limiter] = [function("counter", ""), function("limiter", limit)];
            let briefly = function("limiter", &format!("flows = \"short\"\n{limit}"));
            let acl = function("acl", "rules = \"backends\"\ndefault = \"permit\"\n");
            compare_on(
                device,
                &format!("{DEFINITIONS}{counter}{acl}{limiter}{balancer}{briefly}{counter}"),
                &capture,
            );
        }
    }
}

/// Elephants of packets that are all as long, of which a limiter drops some, before and behind functions that are told how many, not which.
#[test]
fn devices_take_elephants_that_are_limited() {
    if packetloom_testing::sweep("limited elephants on devices") {
        take_limited_elephants(false);
    }
}

#[test]
fn devices_take_elephants_that_are_limited_twice() {
    if packetloom_testing::sweep("elephants on devices that are limited twice") {
        take_limited_elephants(true);
    }
}

/// With another limiter behind the first, or without.
fn take_limited_elephants(twice: bool) {
    let function = |nf: &str, keys: &str| format!("[[chain]]\nnf = \"{nf}\"\n{keys}");
    let key = Key::V4(MatchKey4 {
        source: 0x0a00_0001,
        destination: 0x0a00_0002,
        source_port: 5_000,
        destination_port: 80,
        protocol: 17,
        bits: KeyBits::PORTS.with(KeyBits::WHOLE),
        ..MatchKey4::default()
    });
    let bytes = u64::from(u16::from_be_bytes(
        packetloom_generate::frame(&key)[16..18].try_into().expect("two bytes"),
    ));
    // Income that lets one of two or of three packets pass; buckets for less than a piece, for more, for a batch, and for less than a packet.
    let limits = [1, 3, 100, 1_000, 20_000].map(|packets| (packets * bytes, 2)).into_iter();
    let limits =
        limits.chain([(bytes - 1, 2), (5 * bytes - 6, 2), (90 * bytes + 7, 3), (1_000 * bytes - 1, 3)]);
    for device in devices().iter().filter(|device| !is_slow(device)) {
        let packets = if device.description().id == Id::Host { 4_000 } else { 210_000 };
        for (number, (burst, of)) in limits.clone().enumerate() {
            let mut state = 2 * number as u64 + u64::from(twice);
            let mut nanos = 5_000_000_000;
            // One each 10 µs, in bursts, sometimes late, and with silences in which a bucket is filled, between bursts or once in a while.
            let timed = (0..packets).map(|packet| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                nanos += match (packet % 2_500, packet as usize % 8) {
                    (0, _) => 40_000_000,
                    // In pieces of eight: the bucket is filled behind the first packet, too, so that the sixth does not pass.
                    (1_000..1_100, at) => [200, 28, 0, 0, 0, 0, 40, 40][at] * 1_000,
                    _ => [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 8, 8, 8, 28, 100][state as usize >> 60] * 1_000,
                };
                (nanos - if packet % 97 == 96 { 3_000_000 } else { 0 }, key)
            });
            let limiter = |of: u64, burst: u64| {
                let rate = bytes * 100_000 / of;
                function("limiter", &format!("rate = \"{rate}B/s\"\nburst = \"{burst}B\"\n"))
            };
            let counter = function("counter", "");
            // A limiter that is only told how many of its packets another one dropped cannot tell what that did to it.
            let again = if twice { limiter(4, 10 * bytes) } else { String::new() };
            let chain = [&counter, &limiter(of, burst), &counter, &again].map(String::as_str).concat();
            let summary = compare_on(device, &chain, &capture(timed));
            let passed = summary["functions"][2]["packets"].as_u64().expect("a number");
            assert_eq!(passed == 0, burst < bytes, "{summary}");
            // Where a bucket holds more than come between two long silences, all pass.
            assert_eq!(passed == packets, burst > 2_500 * bytes, "{summary}");
        }
    }
}

/// Marks that are written and read on a device, by flows of one packet, of many, and of all.
#[test]
fn marks_are_written_on_the_host() {
    mark(&host());
}

#[test]
fn marks_are_written_on_accelerators() {
    mark(&accelerators());
}

fn mark(devices: &[Device]) {
    let policer =
        |flows: &str, keys: &str| format!("[[chain]]\nnf = \"policer\"\nflows = \"{flows}\"\n{keys}");
    let marks = "green = { dscp = \"af11\" }\nyellow = { dscp = \"af12\" }\nred = { dscp = \"af13\" }\n";
    let single =
        format!("marker = \"single-rate\"\ncir = \"80kbit/s\"\ncbs = \"1500B\"\nebs = \"1500B\"\n{marks}");
    let two = format!(
        "marker = \"two-rate\"\ncir = \"80kbit/s\"\ncbs = \"1500B\"\npir = \"160kbit/s\"\npbs = \"3000B\"\n{marks}"
    );
    let aware = "mode = \"colour-aware\"\nothers = \"yellow\"\n";
    let reader = "marker = \"two-rate\"\ncir = \"1TB/s\"\ncbs = \"9GB\"\npir = \"1TB/s\"\npbs = \"9GB\"\n\
        mode = \"colour-aware\"\nred = \"pass\"\n";
    let colours = |summary: &serde_json::Value, function: usize| {
        ["green", "yellow", "red"].map(|name| summary["functions"][function][name]["packets"].as_u64())
    };
    for device in devices {
        for flows in [1, 40, 3_000] {
            if is_slow(device) && flows != 40 {
                continue;
            }
            let capture = coloured(traffic(3_000, flows, 5), 5);
            let chain = [
                policer("source", &single),
                policer("5-tuple", reader),
                policer("source", &format!("{two}{aware}")),
                policer("5-tuple", &format!("{single}{aware}")),
                policer("5-tuple", reader),
            ];
            let chain = chain.concat();
            let summary = compare_on(device, &chain, &capture);
            assert_eq!(colours(&summary, 0), colours(&summary, 1), "what is written is read: {summary}");
            let last = colours(&summary, 4);
            assert!(flows != 40 || last.iter().all(|&packets| packets > Some(20)), "{summary}");
        }
    }
}

/// What a function remembers of flows by a second definition on a device: first packets among others of their source, flows that begin
/// anew, several functions that remember, and packets whose flow finds no room.
#[test]
fn flows_are_remembered_on_the_host() {
    remember(&host());
}

#[test]
fn flows_are_remembered_on_accelerators() {
    remember(&accelerators());
}

fn remember(devices: &[Device]) {
    let counter = |keys: &str| format!("[[chain]]\nnf = \"source-counter\"\n{keys}");
    let limiter = "[[chain]]\nnf = \"limiter\"\nrate = \"1Mbit/s\"\nburst = \"4000B\"\n";
    let chain = [&counter(""), limiter, &counter("flows = \"sources\"\n")].concat();
    for device in devices {
        for capture in [traffic(2_000, 1, 7), traffic(2_000, 40, 9), scans(2_000, 8)] {
            let summary = compare_on(device, &format!("{DEFINITIONS}{chain}"), &capture);
            let flows = |function: usize| summary["functions"][function]["flows"].as_u64();
            assert_eq!(flows(0), summary["flows"]["5-tuple"]["created"].as_u64());
            assert!(flows(0) >= flows(2) && flows(2) > Some(0), "{summary}");
        }
        // Which flows find room is open where many come at a time, and a region may hold up to a fifth more than its share.
        for (when_full, drops) in [("drop-new", true), ("pass-new", false)] {
            let chain = format!(
                "[flows.few]\nby = \"5-tuple\"\ntimeout = \"0\"\nmax_flows = 100\nwhen_full = \"{when_full}\"\n{}",
                counter("sessions = \"few\"\n")
            );
            let settings = format!("device = \"{}\"", device.description().id);
            let how = How { settings: &settings, devices: vec![device.clone()], ..How::default() };
            let (Results { summary, .. }, shares, _) = results(&chain, &scans(3_000, 8), how);
            assert!(shares.is_some_and(|shares| shares.here == 0));
            let number = |pointer: &str| summary.pointer(pointer).and_then(serde_json::Value::as_u64);
            let refused = number("/flows/few/refused").expect("a number");
            assert!(refused > 1_000, "{summary}");
            let flows = number("/functions/0/flows");
            assert!(
                flows == number("/flows/few/created") && flows >= Some(200) && flows <= Some(240),
                "{summary}"
            );
            assert_eq!(number("/functions/0/packets"), Some(if drops { 3_000 - refused } else { 3_000 }));
            assert_eq!(number("/dropped/flow_table_full"), Some(if drops { refused } else { 0 }));
        }
    }
}

/// Definitions of the names that functions mean unless they name one, whose tables are soon made and soon copied.
const SMALL: &str = "\
[flows.5-tuple]
by = \"5-tuple\"
max_flows = 40000
[flows.source]
by = \"source\"
max_flows = 10000
[flows.initiator]
by = \"initiator\"
max_flows = 10000
";

/// Scans by both methods on a device: sources with few packets and with many, more detections than are listed, in batches that follow each
/// other, at other times or all at one.
#[test]
fn scans_are_found_on_the_host() {
    if packetloom_testing::sweep("scans on the host") {
        find_scans(&host());
    }
}

#[test]
fn scans_are_found_on_accelerators() {
    if packetloom_testing::sweep("scans on accelerators") {
        find_scans(&accelerators());
    }
}

fn find_scans(devices: &[Device]) {
    let scan = |keys: &str| format!("[[chain]]\nnf = \"scan\"\n{keys}");
    let fan_out = scan("method = \"fan-out\"\nthreshold = 12\nblock_for = \"20ms\"\naction = \"drop\"\n");
    let tcp = scan(
        "method = \"fan-out\"\nflows = \"openers\"\nthreshold = 15\nwindow = \"40ms\"\nudp = false\ndistinct = \"ports\"\n",
    );
    let trw = scan("method = \"trw\"\nalpha = 0.001\nblock_for = \"20ms\"\n");
    // Many are found, each of them soon again.
    let each = scan("method = \"fan-out\"\nthreshold = 1\nblock_for = \"3us\"\nseed = 4611686018427387904\n");
    let walks = scan("method = \"trw\"\nalpha = 0.2\nbeta = 0.6\nblock_for = \"2ms\"\n");
    let counter = "[[chain]]\nnf = \"source-counter\"\nflows = \"sources\"\n";
    let captures = [
        scans(9_000, 6),
        at_times(scans(9_000, 7), |packet, time| if packet % 5 == 0 { time - 90_000_000 } else { time }),
        // The later ones came first.
        at_times(scans(9_000, 8), |packet, time| time - packet as u64 / 4_000 * 1_000_000_000),
        at_times(traffic(9_000, 4_000, 9), |_, _| 5_000_000_000),
        traffic(3_000, 1, 5),
    ];
    for device in devices {
        for (number, capture) in captures.iter().enumerate() {
            if is_slow(device) && ![0, 3].contains(&number) {
                continue;
            }
            let scans = number < 3;
            for (chain, detections) in [
                (format!("{fan_out}{counter}{trw}{tcp}"), if scans { [20, 0, 1, 1] } else { [0; 4] }),
                // A source has one detection where all packets have the same time.
                (
                    format!("{each}{walks}{trw}{fan_out}"),
                    if scans { [1_000, 500, 50, 20] } else { [if number == 3 { 500 } else { 0 }, 0, 0, 0] },
                ),
            ] {
                let summary = compare_on(device, &format!("{DEFINITIONS}{SMALL}{chain}"), capture);
                let functions = &summary["functions"];
                for (function, least) in detections.into_iter().enumerate() {
                    let found = functions[function]["detections"].as_u64().unwrap_or_default();
                    let listed = functions[function]["first"].as_array().map_or(0, Vec::len) as u64;
                    assert_eq!(listed, found.min(100), "{chain}");
                    assert!(found >= least, "{number} {function}: {found}\n{chain}");
                }
            }
        }
    }
}

/// Which detections are listed, by hand: the first hundred of all batches, by time and then by source.
#[test]
fn the_first_detections_of_all_batches_are_listed() {
    let chain =
        format!("{SMALL}[[chain]]\nnf = \"scan\"\nmethod = \"fan-out\"\nthreshold = 1\nudp = false\n");
    let at = |packet: u32| 5_000_000_000 + 10_000 * u64::from(packet);
    // Of 5,000 sources each sends one packet; what is late comes after that of the 4,500th, which is in the device's second batch.
    for (time, source, is_listed) in [
        (at(98) + 5_000, 0x0a01_ffff, true),
        (at(99), 0x0a00_0000, true),
        (at(99), 0x0a01_ffff, false),
        (at(99) + 5_000, 0x0a00_0000, false),
    ] {
        let mut sent: Vec<_> = (0..5_000).map(|packet| (at(packet), 0x0a01_0000 + packet)).collect();
        sent.insert(4_500, (time, source));
        let bits = KeyBits::PORTS.with(KeyBits::WHOLE).with(KeyBits::TCP_FLAGS);
        let syn = MatchKey4 { protocol: 6, tcp_flags: 2, bits, ..MatchKey4::default() };
        let capture =
            capture(sent.into_iter().map(|(time, source)| (time, Key::V4(MatchKey4 { source, ..syn }))));
        let mut listed: Vec<_> =
            (0..100).map(|packet| (Ipv4Addr::from_bits(0x0a01_0000 + packet), at(packet) / 1_000)).collect();
        if is_listed {
            listed[99] = (Ipv4Addr::from_bits(source), time / 1_000);
        }
        let listed: Vec<_> = listed
            .into_iter()
            .map(|(source, micros)| serde_json::json!({ "source": source, "microseconds": micros, "attempts": 1 }))
            .collect();
        for device in &devices() {
            let summary = compare_on(device, &chain, &capture);
            assert_eq!(summary["functions"][0]["detections"], 5_001);
            assert_eq!(summary["functions"][0]["first"], serde_json::Value::from(listed.clone()));
        }
    }
}

/// A device that fails when its state was just copied: cores go on as if they had had all packets, with what was counted and listed, too.
#[test]
fn cores_go_on_where_the_device_was() {
    let cache = Cache::at(Path::new(env!("CARGO_TARGET_TMPDIR")).join("kernels"));
    let device = Device::open(Id::Host, cache).expect("a C compiler with sanitisers");
    let capture = scans(16_000, 6);
    let scan = |keys: &str| format!("[[chain]]\nnf = \"scan\"\n{keys}");
    let chain = [
        SMALL,
        "[flows.connection]\nby = \"connection\"\nmax_flows = 40000\n",
        "[[chain]]\nnf = \"counter\"\nflows = \"source\"\n",
        &scan("method = \"fan-out\"\nthreshold = 12\nwindow = \"800ms\"\nblock_for = \"700ms\"\n"),
        "[[chain]]\nnf = \"limiter\"\nrate = \"8kbit/s\"\nburst = \"200B\"\n",
        &scan("method = \"trw\"\nalpha = 0.0001\nblock_for = \"600ms\"\n"),
        &scan("method = \"fan-out\"\nflows = \"initiator\"\nthreshold = 100\nwindow = \"0\"\nudp = false\naction = \"drop\"\n"),
        "[[chain]]\nnf = \"acl\"\nrules = \"reflecting\"\ndefault = \"permit\"\nlog = \"log\"\nlog_rate = \"unlimited\"\n",
    ]
    .concat();
    let (oracle, ..) = results(&chain, &capture, How { settings: "device = \"oracle\"", ..How::default() });
    for function in [1, 3, 4] {
        assert!(oracle.summary["functions"][function]["detections"].as_u64() > Some(5), "{function}");
    }
    let acl = &oracle.summary["functions"][5];
    assert!(
        acl["admitted"]["connections"].as_u64() > Some(5) && acl["log"]["lines"].as_u64() > Some(5),
        "{acl}"
    );
    let (found, shares, notices) = with_recent_state(|| {
        let faults = Faults::new();
        let fail = || {
            std::thread::sleep(UNTIL_COPY);
            faults.fail_beside(COPIER, Call::Launch, 0);
        };
        let how = How {
            settings: &format!("device = \"host\"\n{COPY_EVERY}"),
            devices: vec![device.with_faults(&faults)],
            at: Some((9_000, Box::new(fail))),
            ..How::default()
        };
        results(&chain, &capture, how)
    });
    assert!(notices[0].contains(" with the state of "), "{notices:?}");
    let shares = shares.expect("a device was used");
    assert_eq!((shares.faults, shares.device + shares.here), (1, 16_000));
    assert!(shares.device > 4_000 && shares.here > 0, "{shares:?}");
    // It may be back before the end, with all that was counted and listed here.
    assert!(notices[1..].iter().all(|said| said == "host is back"), "{notices:?}");
    assert_eq!(found.summary, oracle.summary);
    assert!(found == oracle, "other packets passed");
}

/// One flow, and as many flows as packets.
#[test]
fn one_flow_and_only_new_ones() {
    let chain =
        "[[chain]]\nnf = \"counter\"\n[[chain]]\nnf = \"limiter\"\nrate = \"8Mbit/s\"\nburst = \"9000B\"\n";
    for flows in [1, 20_000] {
        let capture = traffic(20_000, flows, 3);
        let how = How { settings: "device = \"oracle\"", ..How::default() };
        let (oracle, ..) = results(chain, &capture, how);
        assert_eq!(oracle.summary["received"], 20_000);
        assert!(oracle.summary["functions"][1]["passed"]["packets"].as_u64() > Some(0));
        if flows == 1 {
            assert!(oracle.summary["dropped"]["rate_limit"].as_u64() > Some(0), "{}", oracle.summary);
        }
        for settings in ["", "workers = 3"] {
            let (found, ..) = results(chain, &capture, How { settings, ..How::default() });
            assert_eq!(found, oracle, "{flows} flows, {settings}");
        }
    }
}

/// All colours come in traffic as it is generated, and what is dropped is what they say.
#[test]
fn policers_see_all_colours() {
    let capture = traffic(20_000, 300, 5);
    let single = "marker = \"single-rate\"\ncir = \"8kbit/s\"\ncbs = \"1500B\"\nebs = \"1500B\"\n";
    let two =
        "marker = \"two-rate\"\ncir = \"8kbit/s\"\ncbs = \"1500B\"\npir = \"80kbit/s\"\npbs = \"3000B\"\n";
    for marker in [single, two] {
        for (actions, dropped) in [
            ("", &["red"][..]),
            ("yellow = \"drop\"\n", &["yellow", "red"]),
            ("red = \"pass\"\n", &[]),
            ("yellow = \"drop\"\nred = \"pass\"\n", &["yellow"]),
        ] {
            let chain = format!(
                "[[chain]]\nnf = \"policer\"\n{marker}{actions}[[chain]]\nnf = \"counter\"\nflows = \"source\"\n"
            );
            let how = How { settings: "device = \"oracle\"", ..How::default() };
            let (oracle, ..) = results(&chain, &capture, how);
            let summary = &oracle.summary;
            let packets =
                |colour: &str| summary["functions"][0][colour]["packets"].as_u64().expect("a number");
            assert!(["green", "yellow", "red"].into_iter().all(|colour| packets(colour) > 100), "{summary}");
            let expected: u64 = dropped.iter().map(|colour| packets(colour)).sum();
            assert_eq!(summary["dropped"]["policer"].as_u64(), Some(expected), "{actions}{summary}");
            for settings in ["", "workers = 3"] {
                let (found, ..) = results(&chain, &capture, How { settings, ..How::default() });
                assert_eq!(found, oracle, "{chain}{settings}");
            }
        }
    }
}

/// What policers write is what their colours say, packet by packet, and a policer behind another one sees it.
#[test]
fn marks_are_written_and_seen() {
    let capture = coloured(traffic(20_000, 300, 5), 5);
    let policer = |keys: &str| {
        format!(
            "[[chain]]\nnf = \"policer\"\nmarker = \"single-rate\"\ncbs = \"1500B\"\nebs = \"1500B\"\n{keys}"
        )
    };
    let marks = "cir = \"80kbit/s\"\ngreen = { dscp = \"af11\" }\nyellow = { dscp = \"af12\" }\nred = { dscp = \"af13\" }\n";
    let first = policer(marks);
    // Such as are never out of tokens tell what colour packets came with.
    let reader = "[[chain]]\nnf = \"policer\"\nmarker = \"two-rate\"\ncir = \"1TB/s\"\ncbs = \"9GB\"\npir = \"1TB/s\"\n\
        pbs = \"9GB\"\nmode = \"colour-aware\"\nred = \"pass\"\n";
    // All by source, so that several workers keep the order of each.
    let counter = "[[chain]]\nnf = \"counter\"\nflows = \"source\"\n";
    let chain = format!("{reader}{first}{counter}{reader}");
    let oracle = How { settings: "device = \"oracle\"", ..How::default() };
    let (oracle, ..) = results(&chain, &capture, oracle);
    let functions = &oracle.summary["functions"];
    let colours = ["green", "yellow", "red"];
    let packets = |function: usize| colours.map(|name| functions[function][name]["packets"].as_u64());
    assert!(packets(1).iter().all(|&packets| packets > Some(500)), "{functions}");
    assert!(packets(0) != packets(1) && packets(3) == packets(1), "{functions}");

    // By bytes: of each packet at most the DSCP changed and, of IPv4, the checksum, so that the header's sum is as it was.
    let sum = |header: &[u8]| {
        let words = header.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1]));
        words.sum::<u32>() % 0xffff
    };
    let mut found = [0; 3];
    let mut passed = &oracle.passed[24..];
    each_frame(capture.clone(), |frame| {
        let written;
        (written, passed) = passed[16..].split_at(frame.len());
        let Ok(headers) = dissect(LinkType::ETHERNET, frame, 1500) else {
            assert_eq!(frame, written);
            return;
        };
        let dscp = packetloom_packet::rewrite::dscp(LinkType::ETHERNET, written).map(|dscp| dscp.number());
        found[usize::from(dscp.expect("an IP packet") - 10) / 2] += 1;
        let mut back = written.to_vec();
        // Where the header begins, behind VLAN tags.
        let is_tag = |ip: &usize| [[0x81, 0], [0x88, 0xa8]].contains(&[frame[ip - 2], frame[ip - 1]]);
        let ip = (14..).step_by(4).find(|ip| !is_tag(ip)).expect("an EtherType");
        match headers.key {
            Key::V4(_) => {
                let len = usize::from(frame[ip] & 0xf) * 4;
                assert_eq!(sum(&written[ip..ip + len]), sum(&frame[ip..ip + len]));
                assert_eq!(written[ip + 1] & 3, frame[ip + 1] & 3, "ECN");
                back[ip + 1] = frame[ip + 1];
                back[ip + 10..ip + 12].copy_from_slice(&frame[ip + 10..ip + 12]);
            }
            Key::V6(_) => {
                assert_eq!(written[ip + 1] & 0x3f, frame[ip + 1] & 0x3f, "ECN and flow label");
                back[ip..ip + 2].copy_from_slice(&frame[ip..ip + 2]);
            }
        }
        assert_eq!(back, frame);
    });
    assert_eq!(found.map(Some), packets(1));
    assert!(passed.is_empty());
    for settings in ["", "workers = 3", "workers = 4\nbatch = 1", "batch = 7", "device = \"host\""] {
        let (found, ..) = results(&chain, &capture, How { settings, ..How::default() });
        assert!(found == oracle, "{settings}");
    }
}

/// What makes the comparisons above worth something: sources are found, answers come, and several workers run what they can.
#[test]
fn detectors_find_what_they_look_for() {
    let capture = scans(20_000, 6);
    let scan =
        |keys: &str| format!("[[chain]]\nnf = \"scan\"\n{keys}action = \"drop\"\nblock_for = \"20ms\"\n");
    let both = scan("method = \"fan-out\"\nthreshold = 50\n");
    let tcp = scan("method = \"fan-out\"\nthreshold = 300\nudp = false\n");
    let trw = scan("method = \"trw\"\nalpha = 0.001\n");
    let counter = "[[chain]]\nnf = \"source-counter\"\n";
    for (chain, answers) in [(&both, false), (&tcp, false), (&trw, true)] {
        let chain = format!("{counter}{chain}");
        let (oracle, ..) =
            results(&chain, &capture, How { settings: "device = \"oracle\"", ..How::default() });
        let summary = &oracle.summary;
        let number = |pointer: &str| summary.pointer(pointer).and_then(serde_json::Value::as_u64);
        assert!(number("/functions/1/detections") > Some(3), "{summary}");
        assert!(number("/functions/1/attempts") > Some(100), "{summary}");
        assert_eq!(
            number("/functions/1/answered").is_some_and(|answered| answered > 100),
            answers,
            "{summary}"
        );
        assert_eq!(number("/dropped/scan"), number("/functions/1/scanners/packets"));
        assert_eq!(number("/functions/0/flows"), number("/flows/5-tuple/created"));
        assert_eq!(number("/functions/0/sources"), number("/flows/source/created"));
        let (found, ..) = results(&chain, &capture, How::default());
        assert_eq!(found, oracle, "{chain}");
    }
    for (chain, shared) in [
        (counter, &["source"][..]),
        (&both, &["source"]),
        (&tcp, &[]),
        (&trw, &[]),
        (&format!("{tcp}{trw}"), &["source"]),
        (&format!("{METER}{counter}"), &["source"]),
    ] {
        let plan = plan(chain, "workers = 3");
        assert_eq!(plan.workers(), 3);
        assert_eq!(plan.shared().map(|used| &*used.name).collect::<Vec<_>>(), shared, "{chain}");
    }
    // Tables of its own that packets of one flow would be spread over.
    for before in [&balancer(&capture, "5-tuple", false, false), "[[chain]]\nnf = \"conntrack\"\n"] {
        assert_eq!(plan(&format!("{before}{METER}"), "workers = 3").workers(), 1);
    }
}

/// At capacity every packet is in one counter, and what the policy says becomes of those without room.
#[test]
fn at_capacity_the_policy_decides() {
    let capture = traffic(20_000, 5_000, 4);
    for (when_full, drops) in [("evict-oldest", false), ("drop-new", true), ("pass-new", false)] {
        let chain = format!(
            "[flows.few]\nby = \"5-tuple\"\nmax_flows = 100\nwhen_full = \"{when_full}\"\n\
             [[chain]]\nnf = \"counter\"\nflows = \"few\"\n"
        );
        for settings in ["", "workers = 4", "device = \"oracle\"", "device = \"host\""] {
            let (found, ..) = results(&chain, &capture, How { settings, ..How::default() });
            let summary = &found.summary;
            let number = |value: &serde_json::Value| value.as_u64().expect("a number");
            let flows = &summary["flows"]["few"];
            let (refused, evicted) = (number(&flows["refused"]), number(&flows["evicted"]));
            let dropped = number(&summary["dropped"]["flow_table_full"]);
            let counted = number(&summary["functions"][0]["packets"]);
            assert_eq!(number(&summary["received"]), 20_000);
            assert_eq!(dropped, if drops { refused } else { 0 }, "{when_full} {settings}: {summary}");
            assert_eq!(
                (refused > 0, evicted > 0),
                (when_full != "evict-oldest", when_full == "evict-oldest"),
                "{settings}: {summary}"
            );
            let rejected = 20_000 - counted - refused;
            assert!(rejected < 1_000, "{when_full} {settings}: {summary}");
        }
    }
}

/// All packets of a flow to a service go to one backend, each backend has its share of flows, and captures hold the new
/// addresses.
#[test]
fn flows_stay_with_their_backends() {
    let backends: Vec<_> =
        (1..=4).map(|n| format!("{{ address = \"10.9.8.{n}\", port = {} }}", 8000 + n)).collect();
    let service = (Ipv4Addr::new(198, 51, 100, 1), 80);
    let chain = format!(
        "[[chain]]\nnf = \"balancer\"\n[[chain.services]]\naddress = \"{}\"\nport = {}\nbackends = [{}]\n",
        service.0,
        service.1,
        backends.join(", ")
    );
    let mut capture = traffic(1, 1, 1);
    capture.truncate(24);
    let mut clients = Vec::new();
    for packet in 0..4_000u32 {
        let client = packet * 7 % 1_000;
        let key = MatchKey4 {
            source: 0x0a00_0000 + client,
            destination: service.0.to_bits(),
            source_port: 5_000,
            destination_port: service.1,
            protocol: 6,
            bits: KeyBits::PORTS.with(KeyBits::WHOLE),
            ..MatchKey4::default()
        };
        let frame = packetloom_generate::frame(&Key::V4(key));
        for number in [0, packet, frame.len() as u32, frame.len() as u32] {
            capture.extend(number.to_le_bytes());
        }
        capture.extend(frame);
        clients.push(client);
    }
    for settings in ["device = \"oracle\"", "", "workers = 3"] {
        let (found, ..) = results(&chain, &capture, How { settings, ..How::default() });
        let mut chosen = HashMap::new();
        let mut at = 24;
        for client in &clients {
            let frame = &found.passed[at + 16..at + 16 + 60];
            at += 16 + 60;
            let Ok(Headers { key: Key::V4(key), .. }) = dissect(LinkType::ETHERNET, frame, 60) else {
                panic!("{frame:x?}")
            };
            let backend = key.destination - 0x0a09_0800;
            assert_eq!((key.source, key.source_port), (0x0a00_0000 + client, 5_000));
            assert_eq!(u32::from(key.destination_port), 8_000 + backend);
            assert_eq!(*chosen.entry(client).or_insert(backend), backend, "{settings}");
        }
        assert_eq!((at, chosen.len()), (found.passed.len(), 1_000));
        for backend in 1..=4 {
            let share = chosen.values().filter(|chosen| **chosen == backend).count();
            assert!((200..=300).contains(&share), "{share} flows of 1,000 to backend {backend} of 4");
        }
    }
}

/// The source, destination, protocol and ports or ICMP type and code of a frame to be made.
type Ends = (&'static str, &'static str, u8, u16, u16);

fn frame_of((source, destination, protocol, source_port, destination_port): Ends) -> Vec<u8> {
    let bits = KeyBits::WHOLE.with(if [1, 58].contains(&protocol) { KeyBits::ICMP } else { KeyBits::PORTS });
    let halves = |address: std::net::Ipv6Addr| packetloom_packet::key::halves(address.into());
    let key = match (source.parse().expect("an address"), destination.parse().expect("an address")) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => Key::V4(MatchKey4 {
            source: source.into(),
            destination: destination.into(),
            source_port,
            destination_port,
            protocol,
            bits,
            ..MatchKey4::default()
        }),
        (IpAddr::V6(source), IpAddr::V6(destination)) => Key::V6(MatchKey6 {
            source: halves(source),
            destination: halves(destination),
            source_port,
            destination_port,
            protocol,
            bits,
            ..MatchKey6::default()
        }),
        _ => panic!("addresses of two versions"),
    };
    let mut frame = packetloom_generate::frame(&key);
    let put = |frame: &mut [u8], at: usize, bytes: &[u8]| {
        let mut sum: u32 =
            bytes.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(*word.get(1).unwrap_or(&0))).sum();
        while sum > 0xffff {
            sum = (sum >> 16) + (sum & 0xffff);
        }
        frame[at..at + 2].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    };
    // Of headers without options, with Ethernet's 14 bytes before them: the pseudo headers of RFC 9293 section 3.1 and RFC 8200 section 8.1.
    let (pseudo, message) = if let Key::V4(_) = key {
        let header = frame[14..34].to_vec();
        put(&mut frame, 24, &header);
        (frame[26..34].to_vec(), 34..14 + usize::from(u16::from_be_bytes([frame[16], frame[17]])))
    } else {
        (frame[22..54].to_vec(), 54..54 + usize::from(u16::from_be_bytes([frame[18], frame[19]])))
    };
    let summed =
        [&pseudo, &[0, protocol][..], &(message.len() as u16).to_be_bytes(), &frame[message.clone()]]
            .concat();
    match protocol {
        6 => put(&mut frame, message.start + 16, &summed),
        17 => put(&mut frame, message.start + 6, &summed),
        58 => put(&mut frame, message.start + 2, &summed),
        _ => {}
    }
    frame
}

/// Packets from backends are those that the service would have sent, checksums included; others stay as they are.
#[test]
fn answers_of_backends_are_those_of_the_service() {
    const SERVICES: &str = "\
[[chain]]
nf = \"balancer\"
returns = true
services = [
    { address = \"192.0.2.1\", port = 80, protocol = \"tcp\", backends = [
        { address = \"10.0.0.1\", port = 8080 }, { address = \"10.0.0.2\", weight = 0 } ] },
    { address = \"192.0.2.2\", backends = [{ address = \"10.0.0.3\" }] },
    { address = \"2001:db8::1\", port = 53, protocol = \"udp\", backends = [{ address = \"2001:db8::a\", port = 5353 }] },
    { address = \"2001:db8::2\", backends = [{ address = \"2001:db8::b\" }] },
]
";
    const CLIENT: &str = "198.51.100.7";
    const CLIENT6: &str = "2001:db8:7::7";
    // What comes, what goes, and whose backend it was returned for.
    let packets: &[(Ends, Ends, Option<usize>)] = &[
        ((CLIENT, "192.0.2.1", 6, 999, 80), (CLIENT, "10.0.0.1", 6, 999, 8080), None),
        (("10.0.0.1", CLIENT, 6, 8080, 999), ("192.0.2.1", CLIENT, 6, 80, 999), Some(0)),
        // One that is drained, and has the service's port.
        (("10.0.0.2", CLIENT, 6, 80, 999), ("192.0.2.1", CLIENT, 6, 80, 999), Some(1)),
        // Another port, another protocol.
        (("10.0.0.1", CLIENT, 6, 80, 999), ("10.0.0.1", CLIENT, 6, 80, 999), None),
        (("10.0.0.1", CLIENT, 17, 8080, 999), ("10.0.0.1", CLIENT, 17, 8080, 999), None),
        // Any port, any protocol; of ICMP replies, but neither errors nor requests.
        (("10.0.0.3", CLIENT, 17, 7, 999), ("192.0.2.2", CLIENT, 17, 7, 999), Some(2)),
        (("10.0.0.3", CLIENT, 47, 0, 0), ("192.0.2.2", CLIENT, 47, 0, 0), Some(2)),
        (("10.0.0.3", CLIENT, 1, 0, 0), ("192.0.2.2", CLIENT, 1, 0, 0), Some(2)),
        (("10.0.0.3", CLIENT, 1, 3, 1), ("10.0.0.3", CLIENT, 1, 3, 1), None),
        (("10.0.0.3", CLIENT, 1, 8, 0), ("10.0.0.3", CLIENT, 1, 8, 0), None),
        // A backend that is a client of another service: its source stays, and the answer is from that service.
        (("10.0.0.3", "192.0.2.1", 6, 999, 80), ("10.0.0.3", "10.0.0.1", 6, 999, 8080), None),
        (("10.0.0.1", "10.0.0.3", 6, 8080, 999), ("192.0.2.1", "10.0.0.3", 6, 80, 999), Some(0)),
        (("2001:db8::a", CLIENT6, 17, 5353, 999), ("2001:db8::1", CLIENT6, 17, 53, 999), Some(3)),
        (("2001:db8::b", CLIENT6, 58, 129, 0), ("2001:db8::2", CLIENT6, 58, 129, 0), Some(4)),
        // Neighbour solicitation.
        (("2001:db8::b", CLIENT6, 58, 135, 0), ("2001:db8::b", CLIENT6, 58, 135, 0), None),
        (("2001:db8::b", CLIENT6, 6, 7, 999), ("2001:db8::2", CLIENT6, 6, 7, 999), Some(4)),
    ];
    let capture = |of: fn(&(Ends, Ends, Option<usize>)) -> Ends| {
        let mut capture = traffic(1, 1, 1);
        capture.truncate(24);
        for (number, packet) in (0u32..).zip(packets) {
            let frame = frame_of(of(packet));
            for word in [0, number, frame.len() as u32, frame.len() as u32] {
                capture.extend(word.to_le_bytes());
            }
            capture.extend(frame);
        }
        capture
    };
    let (before, after) = (capture(|packet| packet.0), capture(|packet| packet.1));
    let mut returned = [0u64; 5];
    packets.iter().filter_map(|packet| packet.2).for_each(|backend| returned[backend] += 1);
    for settings in ["device = \"oracle\"", "", "workers = 3\nbatch = 2", "device = \"host\""] {
        let (found, ..) = results(SERVICES, &before, How { settings, ..How::default() });
        for (number, (found, expected)) in frames(&found.passed).zip(frames(&after)).enumerate() {
            assert_eq!(found, expected, "{settings} packet {number}");
        }
        assert_eq!(found.passed.len(), after.len());
        let backends = &found.summary["functions"][0]["backends"];
        let counts: Vec<_> =
            (0..5).map(|n| backends[n]["returned"]["packets"].as_u64().expect("a number")).collect();
        assert_eq!(counts, returned, "{backends}");
        assert_eq!(found.summary["functions"][0]["others"], 5, "{}", found.summary);
    }
    for device in devices() {
        compare_on(&device, SERVICES, &before);
    }
    // Unless it is asked for, they stay as they are.
    let (found, ..) = results(&SERVICES.replace("returns = true\n", ""), &before, How::default());
    assert_eq!(frames(&found.passed).nth(1), frames(&before).nth(1));
    assert_eq!(found.summary["functions"][0]["backends"][0].get("returned"), None);
}

/// The frames of a capture.
fn frames(capture: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    let mut frames = Vec::new();
    each_frame(capture.to_vec(), |frame| frames.push(frame.to_vec()));
    frames.into_iter()
}
