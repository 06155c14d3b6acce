//! Functions that keep state for flows give what the oracle gives: any of them in any order, with any number of workers.

#![allow(missing_docs)]

mod support;

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};

use packetloom_packet::key::join;
use packetloom_packet::{Headers, Key, KeyBits, LinkType, MatchKey4, dissect};
use proptest::prelude::*;
use support::{How, results, traffic};

const BALANCER: &str = "balancer";
const ACL: &str = "[[chain]]\nnf = \"acl\"\nrules = \"rules\"\n";
const METER: &str = "[[chain]]\nnf = \"meter\"\nidle_timeout = \"2ms\"\noutput = \"flows\"\n";

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

/// A balancer for what some packets of a capture are sent to.
fn balancer(capture: &[u8], flows: &str, with_port: bool) -> String {
    let mut text = format!("[[chain]]\nnf = \"balancer\"\nflows = \"{flows}\"\ntable_size = 251\n");
    let number = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().expect("four bytes"));
    let mut addresses: Vec<IpAddr> = Vec::new();
    let mut at = 24;
    while at < capture.len() && addresses.len() < 20 {
        let len = number(&capture[at + 8..at + 12]) as usize;
        let frame = &capture[at + 16..at + 16 + len];
        at += 16 + len;
        let Ok(headers) = dissect(LinkType::ETHERNET, frame, 1500) else { continue };
        let (address, port) = match headers.key {
            Key::V4(key) => (IpAddr::V4(key.destination.into()), key.destination_port),
            Key::V6(key) => (IpAddr::V6(join(key.destination).into()), key.destination_port),
        };
        if addresses.contains(&address) {
            continue;
        }
        addresses.push(address);
        let port = if with_port && port > 0 { format!("port = {port}\n") } else { String::new() };
        let backend = |n: u32| {
            let address = if address.is_ipv4() { format!("10.9.8.{n}") } else { format!("2001:db8::{n}") };
            let port = if n == 2 { ", port = 8080" } else { "" };
            format!("{{ address = \"{address}\", weight = {}{port} }}", n % 3)
        };
        let backends: Vec<_> = (1..5).map(backend).collect();
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
    let action = || prop::sample::select(vec!["", "pass", "drop"]);
    (flows, keys, action(), action()).prop_map(|(flows, keys, yellow, red)| {
        let key = |name: &str, value: &str| match value {
            "" => String::new(),
            value => format!("{name} = \"{value}\"\n"),
        };
        let (flows, yellow, red) = (key("flows", flows), key("yellow", yellow), key("red", red));
        format!("[[chain]]\nnf = \"policer\"\n{flows}{keys}{yellow}{red}")
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
";

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_chain_gives_what_the_oracle_gives(
        functions in prop::collection::vec(function(), 1..7),
        (has_meter, with_port, balanced) in (any::<bool>(), any::<bool>(), prop::sample::select(vec!["5-tuple", "short"])),
        (packets, flows, seed) in (1u64..4_000, 1u64..300, any::<u64>()),
        // Packets that come out of order, and by how much.
        (late, by) in (0usize..9, prop_oneof![Just(0u64), 1u64..50_000_000]),
        batch in prop_oneof![Just(1usize), Just(7), Just(256)],
    ) {
        // The meter writes one file.
        let meter = if has_meter { METER } else { "" };
        let capture = at_times(traffic(packets, flows.min(packets), seed), |packet, time| {
            if late > 0 && packet % (late + 1) == 0 { time.saturating_sub(by) } else { time }
        });
        let functions = functions.concat().replace(BALANCER, &balancer(&capture, balanced, with_port));
        let chain = format!("{DEFINITIONS}{functions}{meter}");
        let how = How { settings: "device = \"oracle\"", ..How::default() };
        let (oracle, ..) = results(&chain, &capture, how);
        for workers in [1, 2, 7] {
            for is_stream in [false, true] {
                // A stream's sweeps of the meter may show where packets come late.
                if is_stream && has_meter {
                    continue;
                }
                let settings = format!("workers = {workers}\nbatch = {batch}");
                let how = How { settings: &settings, is_stream, ..How::default() };
                let (found, ..) = results(&chain, &capture, how);
                prop_assert_eq!(&found, &oracle, "{} workers\n{}", workers, &chain);
            }
        }
    }
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
            let chain =
                format!("[[chain]]\nnf = \"policer\"\n{marker}{actions}[[chain]]\nnf = \"counter\"\n");
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

/// At capacity every packet is in one counter, and what the policy says becomes of those without room.
#[test]
fn at_capacity_the_policy_decides() {
    let capture = traffic(20_000, 5_000, 4);
    for (when_full, drops) in [("evict-oldest", false), ("drop-new", true), ("pass-new", false)] {
        let chain = format!(
            "[flows.few]\nby = \"5-tuple\"\nmax_flows = 100\nwhen_full = \"{when_full}\"\n\
             [[chain]]\nnf = \"counter\"\nflows = \"few\"\n"
        );
        for settings in ["", "workers = 4", "device = \"oracle\""] {
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
                (when_full != "evict-oldest", when_full == "evict-oldest")
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
