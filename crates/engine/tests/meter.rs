//! The meter on devices: records are the oracle's, whatever happens.

#![allow(missing_docs)]

mod support;

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use packetloom_device::Device;
use packetloom_device::faults::{Call, Chances, Faults};
use support::{
    Away, How, Results, compare_on, devices, host, host_with_teams, in_vlans, is_slow, plan, results,
    totals_of_flows, traffic,
};

const ORACLE: &str = "device = \"oracle\"";
/// All but names, which are in payloads.
const ALL_FIELDS: &str = "standard,flowStartMicroseconds,flowEndMicroseconds,fragmentFlags,fragments,sourceMacAddress,\
    destinationMacAddress,outcome";

/// A meter with these keys, whose tables are small enough to be copied at once.
fn meter(keys: &str) -> String {
    let max_flows = if keys.contains("max_flows") { "" } else { "max_flows = 4000\n" };
    format!("[[chain]]\nnf = \"meter\"\noutput = \"flows\"\n{max_flows}{keys}\n")
}

fn oracle(chain: &str, capture: &[u8]) -> Results {
    results(chain, capture, How { settings: ORACLE, ..How::default() }).0
}

fn name_of(device: &Device) -> String {
    format!("device = \"{}\"", device.description().id)
}

/// A capture with the time of every `late`th packet earlier by so many seconds.
fn disordered(mut capture: Vec<u8>, late: usize, by: u32) -> Vec<u8> {
    let number = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().expect("four bytes"));
    let (mut at, mut packet) = (24, 0);
    while at < capture.len() {
        if packet % late == late - 1 {
            let seconds = number(&capture[at..at + 4]).saturating_sub(by);
            capture[at..at + 4].copy_from_slice(&seconds.to_le_bytes());
        }
        packet += 1;
        at += 16 + number(&capture[at + 8..at + 12]) as usize;
    }
    capture
}

/// Timeouts of all lengths, records that end with their connections, packets out of order, and parts that one team or several judge.
#[test]
fn records_are_the_oracles() {
    for device in devices().into_iter().chain(host_with_teams(2)) {
        for fields in ["basic", ALL_FIELDS] {
            for end_of_flow in [false, true] {
                let keys = |idle: &str, active: &str| {
                    meter(&format!(
                        "idle_timeout = \"{idle}\"\nactive_timeout = \"{active}\"\nfields = \"{fields}\"\nend_of_flow = {end_of_flow}"
                    ))
                };
                let timeouts = [("900ms", "5s"), ("2ms", "9ms"), ("1ns", "0"), ("0", "1ns"), ("0", "0")];
                let timeouts = if is_slow(&device) { &timeouts[..2] } else { &timeouts[..] };
                for (number, (idle, active)) in (0..).zip(timeouts) {
                    let chain = keys(idle, active);
                    // Few flows are those with many packets of a batch each.
                    for flows in [3, 300] {
                        let capture = traffic(3_000, flows, number);
                        compare_on(&device, &chain, &capture);
                        compare_on(&device, &chain, &disordered(capture, 3, 1));
                    }
                }
            }
        }
    }
}

/// Behind functions that drop and mark, and before others.
#[test]
fn it_is_a_function_among_others() {
    let others = "[flows.5-tuple]\nby = \"5-tuple\"\nmax_flows = 4000\n[flows.source]\nby = \"source\"\nmax_flows = 4000\n";
    let limiter = "[[chain]]\nnf = \"limiter\"\nrate = \"80kbit/s\"\nburst = \"1500B\"\n";
    let policer = "[[chain]]\nnf = \"policer\"\nmarker = \"single-rate\"\ncir = \"80kbit/s\"\ncbs = \"1500B\"\nebs = \"500B\"\n\
        green = { dscp = \"ef\" }\nyellow = { dscp = 20 }\nred = { dscp = \"AF33\" }\n";
    let counter = "[[chain]]\nnf = \"counter\"\nflows = \"source\"\n";
    let acl = "[[chain]]\nnf = \"acl\"\nrules = \"rules\"\n";
    let own = meter(&format!("idle_timeout = \"900ms\"\nfields = \"{ALL_FIELDS}\""));
    for device in devices() {
        for chain in [
            format!("{acl}{limiter}{own}{counter}"),
            format!("{policer}{counter}{own}"),
            format!("{own}{acl}{counter}"),
        ] {
            compare_on(&device, &format!("{others}{chain}"), &traffic(4_000, 200, 3));
        }
    }
}

/// At any capacity each metered packet is in one record.
#[test]
fn a_full_table_ends_records_early_and_loses_none() {
    let mut early = 0;
    for device in devices().into_iter().chain(host_with_teams(2)) {
        for (seed, max_flows) in (0..).zip([1, 2, 9, 40, 300]) {
            let capture = traffic(3_000, 900, seed);
            for (idle, active) in [("0", "0"), ("20ms", "50ms")] {
                let keys = format!(
                    "max_flows = {max_flows}\nidle_timeout = \"{idle}\"\nactive_timeout = \"{active}\"\nend_of_flow = true"
                );
                let chain = meter(&keys);
                let expected = oracle(&chain, &capture);
                let settings = name_of(&device);
                let how = How { settings: &settings, devices: vec![device.clone()], ..How::default() };
                let (found, shares, _) = results(&chain, &capture, how);
                assert_eq!(shares.map(|shares| shares.device), Some(3_000));
                let (report, other) = (&found.summary["functions"][0], &expected.summary["functions"][0]);
                let number = |value: &serde_json::Value| value.as_u64().expect("a number");
                assert_eq!(
                    totals_of_flows(&found.records),
                    totals_of_flows(&expected.records),
                    "{settings}\n{chain}"
                );
                assert_eq!(found.records.len() as u64, number(&report["biflows"]), "{settings}\n{chain}");
                for field in ["frames", "counted_packets", "counted_ip_bytes", "not_counted"] {
                    assert_eq!(report[field], other[field], "{settings}\n{chain}");
                }
                early += number(&report["ended"]["lack_of_resources"]);
            }
        }
    }
    assert!(early > 1_000, "{early} records ended for others");
}

/// Names and VLANs in keys keep it on cores, and so do functions before it that rewrite.
#[test]
fn what_a_device_cannot_do_is_done_on_cores() {
    let balancer = "[[chain]]\nnf = \"balancer\"\n[[chain.services]]\naddress = \"192.0.2.1\"\n\
        backends = [{ address = \"10.0.0.1\" }]\n";
    let behind = meter("");
    for (chain, there, why) in [
        (meter("fields = \"full\""), 0, "names are in payloads"),
        (meter("vlan_in_key = true"), 0, "VLAN"),
        (meter("fields = \"standard\""), 1, "function 1 with its state"),
        (format!("{balancer}{behind}"), 1, "rewrites headers"),
        (format!("{behind}{balancer}"), 2, "functions 1 to 2"),
    ] {
        let plan = plan(&chain, "device = \"host\"");
        assert_eq!(plan.stateful(), there, "{chain}");
        assert!(plan.to_string().contains(why), "{plan}");
    }
    let capture = in_vlans(&traffic(1_000, 50, 5));
    for chain in [meter("vlan_in_key = true"), meter("fields = \"full\"")] {
        for device in host() {
            let settings = name_of(&device);
            let how = How { settings: &settings, devices: vec![device], ..How::default() };
            let (found, shares, _) = results(&chain, &capture, how);
            assert_eq!(shares, None);
            assert_eq!(found, oracle(&chain, &capture), "{chain}");
        }
    }
}

/// A device fails at any call, again and again: no packet is in two records, and no record is there twice; those packets are in none that came
/// between the last copy and a fault.
#[test]
fn no_packet_is_in_two_records() {
    let alone = meter("idle_timeout = \"20ms\"\nactive_timeout = \"200ms\"");
    let before_cores = format!("{alone}[[chain]]\nnf = \"meter\"\nmax_flows = 4000\nvlan_in_key = true\n");
    let cases = [(&alone, 1), (&before_cores, 1), (&before_cores, 2)];
    for (device, (chain, count)) in
        devices().into_iter().flat_map(|device| cases.map(|case| (device.clone(), case)))
    {
        let packets = if is_slow(&device) { 60_000 } else { 30_000 };
        let capture = traffic(packets, packets / 20, 24);
        let expected = totals_of_flows(&oracle(chain, &capture).records);
        let settings = format!("{}\nmax_latency = \"1us\"\ndevice_copy_every = \"10ms\"", name_of(&device));
        let faults = Faults::new();
        let mut away = Away::new(&faults);
        let mut has_begun = false;
        let each = |_| {
            away.wait(Duration::from_millis(20));
            if !std::mem::replace(&mut has_begun, true) {
                let chances = Chances { allocation: 0.001, copy: 0.001, launch: 0.01, finish: 0.01 };
                faults.at_random(1, chances);
            }
        };
        let devices = vec![device.with_faults(&faults); count];
        let how = How { each: Some(Box::new(each)), settings: &settings, devices, ..How::default() };
        let (found, shares, notices) = results(chain, &capture, how);
        let shares = shares.expect("a device was used");
        eprintln!("{settings}: {shares:?}, {} notices", notices.len());
        assert!(shares.faults > 0 && shares.device > 0 && shares.here > 0, "{shares:?}");
        let found = totals_of_flows(&found.records);
        let sum =
            |totals: &HashMap<String, [u64; 2]>| totals.values().map(|[packets, _]| packets).sum::<u64>();
        for (flow, [packets, bytes]) in &found {
            let most = expected.get(flow).unwrap_or(&[0; 2]);
            assert!(*packets <= most[0] && *bytes <= most[1], "{flow}: {packets} of {most:?}");
        }
        eprintln!("{} of {} packets are in records", sum(&found), sum(&expected));
        assert!(sum(&found) * 4 > sum(&expected), "{} of {}", sum(&found), sum(&expected));
    }
}

/// A chain whose records end with the run alone, in tables that are brought here in several pieces.
fn until_the_end() -> String {
    meter("max_flows = 100000\nidle_timeout = \"0\"\nactive_timeout = \"0\"\nfields = \"standard\"")
}

/// Records that are over with the run are in the order of the first packets of their flows, as from one core, however many threads encode them; and
/// from two devices each is there once.
#[test]
fn records_at_the_end_are_in_order() {
    let chain = until_the_end();
    let capture = traffic(14_000, 9_000, 31);
    let one_core = How { settings: "workers = 1", keeps_order: true, ..How::default() };
    let (expected, ..) = results(&chain, &capture, one_core);
    assert!(expected.records.len() > 6_000, "{} records", expected.records.len());
    for device in devices() {
        for workers in [1, 3] {
            let settings = format!("{}\nworkers = {workers}", name_of(&device));
            let how = || How { settings: &settings, keeps_order: true, ..How::default() };
            let (found, shares, notices) =
                results(&chain, &capture, How { devices: vec![device.clone()], ..how() });
            assert_eq!(notices, Vec::<String>::new());
            assert_eq!(shares.map(|shares| shares.device), Some(14_000));
            assert!(found.records == expected.records, "{settings}: other records, or in another order");
            assert_eq!(found.summary["functions"], expected.summary["functions"], "{settings}");
            let (mut found, ..) =
                results(&chain, &capture, How { devices: vec![device.clone(); 2], ..how() });
            let mut expected = expected.records.clone();
            found.records.sort_unstable();
            expected.sort_unstable();
            assert!(found.records == expected, "{settings}: two devices have other records");
        }
    }
}

/// A device fails when all packets were judged and its flows come back: no record is wrong or there twice, and the summary has those that are there.
#[test]
fn a_device_that_fails_at_the_end_leaves_no_wrong_record() {
    let chain = until_the_end();
    let capture = traffic(9_000, 6_000, 32);
    for device in devices() {
        let settings = format!("{}\nworkers = 3\ndevice_copy_every = \"1h\"", name_of(&device));
        let run = |faults: &Faults| {
            let devices = vec![device.with_faults(faults)];
            results(&chain, &capture, How { settings: &settings, devices, ..How::default() })
        };
        let faults = Faults::new();
        let (expected, ..) = run(&faults);
        let calls = [Call::Launch, Call::Copy].map(|call| (call, faults.counts(call).calls));
        let all: HashSet<_> = expected.records.iter().collect();
        let mut had_faults = 0;
        for (call, calls) in calls {
            for before_last in [1, 2, 3] {
                let faults = Faults::new();
                faults.fail(call, calls - before_last);
                let (found, shares, notices) = run(&faults);
                had_faults += shares.map_or(0, |shares| shares.faults);
                eprintln!("{call:?} {before_last}: {} records, {notices:?}", found.records.len());
                let once: HashSet<_> = found.records.iter().collect();
                assert_eq!(once.len(), found.records.len(), "a record is there twice");
                assert!(once.is_subset(&all), "{settings}: a wrong record");
                let biflows = found.summary["functions"][0]["biflows"].as_u64();
                assert_eq!(biflows, Some(found.records.len() as u64));
            }
        }
        assert!(had_faults > 3, "{had_faults} faults");
    }
}
