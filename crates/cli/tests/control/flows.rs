//! Flows and connections that a run is asked for, or has to forget.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use serde_json::Value;

use super::support::{json, packetloom, packets, run, schema, stderr, succeed};
use super::{Fed, WAYS};

/// Functions that keep state by flow, by source, and by connection; some share entries.
const CHAIN: &str = "\
[flows.flows]
by = \"5-tuple\"
max_flows = 4000
[flows.sources]
by = \"source\"
max_flows = 4000
[flows.connections]
by = \"connection\"
max_flows = 4000
[[chain]]
nf = \"counter\"
flows = \"flows\"
[[chain]]
nf = \"source-counter\"
flows = \"sources\"
sessions = \"flows\"
[[chain]]
nf = \"limiter\"
flows = \"flows\"
rate = \"1Gbit/s\"
burst = \"10MB\"
[[chain]]
nf = \"conntrack\"
flows = \"connections\"
invalid = \"pass\"
[[chain]]
nf = \"meter\"
max_flows = 4000
output = \"records\"
";

const COUNTER: u64 = 0;
const SOURCES: u64 = 1;
const METER: u64 = 4;

/// What is kept of a flow: packets, IP bytes, the times of its first and its last packet in microseconds, who sent the first one.
type Counted = (u64, u64, u64, u64, String);

/// Packets of some hundred flows, some of them with many, and what the slow way counts of each: by protocol and ends.
fn traffic() -> (Vec<String>, BTreeMap<String, Counted>) {
    let mut state = 7u64;
    let mut below = |most: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % most
    };
    let (mut lines, mut flows) = (Vec::new(), BTreeMap::<String, Counted>::new());
    for number in 0..3000u64 {
        let micros = number * 1000;
        let host = 1 + below(20) * below(3);
        let (source, destination, header) = match below(4) {
            0 => (format!("[2001:db8::{host}]:{}", 1000 + below(10)), "[2001:db8:1::1]:443".to_owned(), 40),
            _ => (format!("10.0.0.{host}:{}", 1000 + below(10)), "192.0.2.1:80".to_owned(), 20),
        };
        let is_udp = below(3) == 0;
        let payload = below(900);
        let (name, rest, bytes) = match is_udp {
            true => ("udp", String::new(), header + 8 + payload),
            false => ("tcp", " flags A".to_owned(), header + 20 + payload),
        };
        let is_back = below(3) == 0;
        let (from, to) = if is_back { (&destination, &source) } else { (&source, &destination) };
        let seconds = format!("{}.{:06}", micros / 1_000_000, micros % 1_000_000);
        // Frames would be padded.
        lines.push(format!("{seconds} {name} {from} > {to}{rest} payload {payload}"));
        let of = flows
            .entry(format!("{name} {source} {destination}"))
            .or_insert_with(|| (0, 0, micros, micros, format!("{name} {from} {to}")));
        *of = (of.0 + 1, of.1 + bytes, of.2, micros, of.4.clone());
    }
    (lines, flows)
}

fn listed(fed: &Fed, arguments: &[&str]) -> Value {
    let text = succeed(fed.control("flows").arg("--json").args(arguments));
    assert_eq!(text.lines().count(), 1, "{text}");
    serde_json::from_str(&text).expect("JSON")
}

fn numbers(flow: &Value, keys: &[&str]) -> Vec<u64> {
    keys.iter().map(|key| flow[*key].as_u64().unwrap_or_else(|| panic!("{key} of {flow}"))).collect()
}

/// A flow with its ends in the order of their text.
fn unordered(flow: &str) -> BTreeSet<&str> {
    flow.split(' ').collect()
}

pub(crate) fn check_schema(page: &str, value: &Value) {
    let text = succeed(packetloom().args(["schema", page]));
    let of_page = serde_json::from_str(&text).expect("JSON");
    schema::check(&of_page, value).unwrap_or_else(|why| panic!("{page}: {why}: {value}"));
}

/// By every way to run: all flows with what the slow way counts, in the order of a sort of all; sums are the functions' counters.
#[test]
fn flows_are_what_a_sort_of_all_says() {
    let (lines, expected) = traffic();
    for way in WAYS {
        let mut fed = Fed::start(CHAIN, way);
        fed.send(&packets::pcap(&lines.join("\n"))[24..]);
        let counters = fed.counters_at(lines.len() as u64);
        for (function, by, key, nf) in [
            (COUNTER, "packets", 0, "counter"),
            (COUNTER, "bytes", 1, "counter"),
            (COUNTER, "last", 3, "counter"),
            (METER, "packets", 0, "meter"),
            (METER, "bytes", 1, "meter"),
            (METER, "first", 2, "meter"),
            (METER, "last", 3, "meter"),
        ] {
            let of =
                |top: &str| listed(&fed, &["--function", &function.to_string(), "--by", by, "--top", top]);
            let all = of("10000");
            check_schema("control-flows", &all);
            assert_eq!(all["nf"], nf);
            assert_eq!(numbers(&all, &["entries", "matching"]), [expected.len() as u64; 2], "{way} {nf}");
            let flows = all["flows"].as_array().expect("flows");
            assert_eq!(flows.len(), expected.len());
            let name = |flow: &Value| flow["flow"].as_str().expect("text").to_owned();
            let mut ranks = Vec::new();
            for flow in flows {
                let named = name(flow);
                let found = expected.iter().find(|(ends, _)| unordered(ends) == unordered(&named));
                let (_, (packets, bytes, first, last, began)) = found.expect("one of them");
                let counts = numbers(flow, &["packets", "bytes", "last"]);
                assert_eq!(counts, [*packets, *bytes, last * 1000], "{way} {nf}: {flow}");
                if function == METER {
                    assert_eq!(numbers(flow, &["first"]), [first * 1000], "{way} {nf}: {flow}");
                    assert_eq!(named, *began, "{way}: who sent the first packet stands first");
                }
                ranks.push([*packets, *bytes, u64::MAX - first, *last][key]);
            }
            assert!(ranks.is_sorted_by(|one, other| one >= other), "{way} {nf} {by}: {ranks:?}");
            // Fewer of them are the first of all.
            for top in [1, 7, 20] {
                let few = of(&top.to_string());
                assert_eq!(few["flows"].as_array().expect("flows"), &flows[..top], "{way} {nf} {by}");
                assert_eq!(numbers(&few, &["entries", "matching"]), [expected.len() as u64; 2]);
            }
            if function == COUNTER {
                for key in ["packets", "bytes"] {
                    let sum: u64 = flows.iter().map(|flow| flow[key].as_u64().expect("a number")).sum();
                    assert_eq!(counters["functions"][0][key], sum, "{way}");
                }
            }
        }
        for line in [
            r#"{"command":"flows","function":0,"top":3}"#,
            r#"{"command":"connections","top":3}"#,
            r#"{"command":"remove","function":"limiter","flow":"udp 10.0.0.200:1 10.0.0.201:1"}"#,
        ] {
            let answer = fed.ask(line);
            assert_eq!(answer["ok"], true, "{way}: {answer}");
            check_schema("control-answer", &answer);
        }
        let sources = listed(&fed, &["--function", "source-counter", "--top", "10000"]);
        let sum = |key: &str| -> u64 {
            sources["flows"]
                .as_array()
                .expect("flows")
                .iter()
                .map(|flow| flow[key].as_u64().expect("one"))
                .sum()
        };
        let counted = &counters["functions"][SOURCES as usize];
        assert_eq!(
            (&counted["packets"], &counted["bytes"]),
            (&sum("packets").into(), &sum("bytes").into()),
            "{way}"
        );
        assert_eq!(sources["entries"], counted["sources"], "{way}");
        fed.end();
    }
}

/// Expressions and names choose what the slow way would.
#[test]
fn expressions_choose_flows() {
    let (lines, expected) = traffic();
    let mut fed = Fed::start(CHAIN, "--workers 3");
    fed.send(&packets::pcap(&lines.join("\n"))[24..]);
    fed.counters_at(lines.len() as u64);
    let of_host =
        |ends: &str, host: &str| ends.contains(&format!(" {host}:")) || ends.contains(&format!("[{host}]"));
    type Is<'a> = Box<dyn Fn(&str) -> bool + 'a>;
    let cases: [(&str, Is<'_>); 9] = [
        ("udp", Box::new(|ends| ends.starts_with("udp"))),
        ("not udp", Box::new(|ends| !ends.starts_with("udp"))),
        ("ip6", Box::new(|ends| ends.contains('['))),
        ("host 10.0.0.5", Box::new(|ends| of_host(ends, "10.0.0.5"))),
        ("src host 10.0.0.5", Box::new(|ends| of_host(ends, "10.0.0.5"))),
        (
            "host 2001:db8::3 or tcp port 1004",
            Box::new(|ends| {
                of_host(ends, "2001:db8::3") || ends.starts_with("tcp") && ends.contains(":1004")
            }),
        ),
        (
            "src port 80 and dst portrange 1002-1003",
            Box::new(|ends| ends.contains(":80") && (ends.contains(":1002") || ends.contains(":1003"))),
        ),
        ("net 10.0.0.0/29", Box::new(|ends| (0..8).any(|host| of_host(ends, &format!("10.0.0.{host}"))))),
        ("", Box::new(|_| true)),
    ];
    for function in ["counter", "limiter", "meter"] {
        for (filter, is) in &cases {
            let wanted = expected.keys().filter(|ends| is(ends)).count() as u64;
            let list = listed(&fed, &["--function", function, "-f", filter, "--top", "10000"]);
            let found = list["flows"].as_array().expect("flows").len() as u64;
            assert_eq!(numbers(&list, &["entries", "matching"]), [expected.len() as u64, wanted], "{filter}");
            assert_eq!(found, wanted, "{function} {filter}");
            assert!(wanted > 0, "{filter}");
        }
    }
    // By one address: whatever end is asked for.
    for filter in ["host 10.0.0.5", "src host 10.0.0.5", "dst net 10.0.0.5/32"] {
        let list = listed(&fed, &["--function", "source-counter", "-f", filter]);
        assert_eq!(list["flows"][0]["flow"], "10.0.0.5", "{list}");
        assert_eq!(list["matching"], 1);
    }
    // As a table.
    let table = succeed(fed.control("flows").args(["--function", "meter", "--top", "2"]));
    assert_eq!(table.lines().count(), 4, "{table}");
    assert!(table.starts_with(&format!("function 4, meter: 2 of {} flows\n", expected.len())), "{table}");
    assert!(table.contains("packets") && table.contains("began") && !table.contains("state"), "{table}");
    for (arguments, code, why) in [
        (&["flows"][..], 1, "expected a function, one of: 0 (counter), 1 (source-counter), 2 (limiter)"),
        (
            &["flows", "--function", "9"],
            1,
            "function number 9 is none of the chain that keeps state for flows",
        ),
        (&["flows", "--function", "acl"], 1, "function \"acl\" is none of the chain"),
        (&["flows", "--function", "limiter", "--by", "packets"], 1, "expected last"),
        (&["flows", "--function", "counter", "--by", "first"], 1, "expected packets, bytes, last"),
        (
            &["connections", "--function", "counter"],
            1,
            "that tracks connections; expected one of: 3 (conntrack)",
        ),
        (&["flows", "--function", "0", "-f", "less 100"], 2, "only single packets have"),
        (&["flows", "--function", "0", "-f", "tpc"], 2, "did you mean \"tcp\""),
        (&["flows", "--function", "0", "--top", "10001"], 2, "top is 10001; expected 1 to 10000"),
        (&["flows", "--function", "0", "--top", "0"], 2, "top is 0"),
        (&["flows", "--by", "weight"], 2, "weight"),
        (&["connections", "--state", "old"], 2, "old"),
        (&["remove", "--function", "0"], 2, "required"),
        (&["remove", "--all"], 2, "--function"),
        (&["remove", "--function", "0", "--all", "-f", "tcp"], 2, "cannot be used with"),
        (
            &["remove", "--function", "0", "--flow", "tcp 10.0.0.1"],
            2,
            "is no flow; expected a protocol and two ends",
        ),
        (&["remove", "--function", "0", "--flow", "tcp 10.0.0.1:1 [::1]:1"], 2, "expected one version"),
        (&["remove", "--function", "7", "--all"], 1, "function number 7 is none"),
    ] {
        let mut client = fed.control(arguments[0]);
        let output = run(client.args(&arguments[1..]));
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(why), "{arguments:?}: {}", stderr(&output));
    }
    fed.end();
}

/// Connections of each protocol at each step, by every way to run.
#[test]
fn connections_are_told_with_their_states() {
    let lines = "\
0.0 tcp 10.0.0.1:1 > 192.0.2.1:80 flags S
0.1 tcp 10.0.0.2:1 > 192.0.2.1:80 flags S
0.2 tcp 192.0.2.1:80 > 10.0.0.2:1 flags SA
1.0 tcp 10.0.0.3:1 > 192.0.2.1:80 flags S
1.1 tcp 192.0.2.1:80 > 10.0.0.3:1 flags SA
1.2 tcp 10.0.0.3:1 > 192.0.2.1:80 flags A
2.0 tcp 192.0.2.200:1 > 10.0.0.4:80 flags S
2.1 tcp 10.0.0.4:80 > 192.0.2.200:1 flags SA
2.2 tcp 192.0.2.200:1 > 10.0.0.4:80 flags A
2.3 tcp 192.0.2.200:1 > 10.0.0.4:80 flags FA
3.0 tcp 10.0.0.5:1 > 192.0.2.1:80 flags S
3.1 tcp 192.0.2.1:80 > 10.0.0.5:1 flags RA
4.0 udp 10.0.0.6:1 > 192.0.2.1:53
4.1 udp 10.0.0.7:1 > 192.0.2.1:53
4.2 udp 192.0.2.1:53 > 10.0.0.7:1
5.0 icmp 10.0.0.8 > 192.0.2.1 type 8 code 0 id 77
";
    let chain = "[[chain]]\nnf = \"acl\"\nrules = \"rules\"\n[[chain]]\nnf = \"conntrack\"\nflows = \"c\"\n\
        [flows.c]\nby = \"connection\"\nmax_flows = 1000\n";
    for way in WAYS {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("chain.toml"), chain).expect("written");
        fs::write(folder.path().join("rules"), "reflect tcp from any to any\npermit any from any to any\n")
            .expect("written");
        let mut fed = Fed::within(folder, &["run", "chain.toml"], way);
        fed.send(&packets::pcap(lines)[24..]);
        fed.counters_at(lines.lines().count() as u64);
        let of = |arguments: &[&str]| -> Value {
            let text = succeed(fed.control("connections").arg("--json").args(arguments));
            let list = serde_json::from_str(&text).expect("JSON");
            check_schema("control-flows", &list);
            list
        };
        let told = |list: &Value| -> Vec<String> {
            let text = |flow: &Value| {
                ["flow", "state", "step"].map(|key| flow[key].as_str().expect("text").to_owned()).join(" ")
            };
            list["flows"].as_array().expect("flows").iter().map(text).collect()
        };
        let expected = [
            "icmp 10.0.0.8:77 192.0.2.1:77 new unreplied",
            "udp 10.0.0.7:1 192.0.2.1:53 established replied",
            "udp 10.0.0.6:1 192.0.2.1:53 new unreplied",
            "tcp 10.0.0.5:1 192.0.2.1:80 reset reset",
            "tcp 192.0.2.200:1 10.0.0.4:80 closing fin-opener",
            "tcp 10.0.0.3:1 192.0.2.1:80 established established",
            "tcp 10.0.0.2:1 192.0.2.1:80 opening syn-received",
            "tcp 10.0.0.1:1 192.0.2.1:80 new syn-sent",
        ];
        let all = of(&["--function", "conntrack"]);
        assert_eq!(told(&all), expected, "{way}");
        // 60 s in IDs of queries, as documented.
        let [time, last, expires] = [&all["time"], &all["flows"][0]["last"], &all["flows"][0]["expires"]]
            .map(|at| at.as_u64().expect("a time"));
        assert_eq!((time, last), (5_000_000_000, 5_000_000_000), "{way}");
        assert_eq!(expires, time + 60_000_000_000, "{way}");
        // The acl has those that its rule admitted.
        assert_eq!(told(&of(&["--function", "acl"])), &expected[3..], "{way}");
        for state in ["new", "opening", "established", "closing", "reset"] {
            let wanted: Vec<_> =
                expected.iter().filter(|line| line.split(' ').nth(3) == Some(state)).collect();
            assert_eq!(
                told(&of(&["--function", "1", "--state", state])),
                wanted.iter().map(|line| line.to_string()).collect::<Vec<_>>(),
                "{way}"
            );
        }
        assert_eq!(
            told(&of(&["--function", "1", "--state", "new", "-f", "udp", "--top", "1"])),
            &expected[2..3],
            "{way}"
        );
        fed.end();
    }
}

/// A connection that is forgotten is one that was never seen, by every way to run; others go on.
#[test]
fn what_is_removed_was_never_seen() {
    let open = |host: u32| {
        format!(
            "0.0 tcp 10.0.0.{host}:1 > 192.0.2.1:80 flags S\n0.1 tcp 192.0.2.1:80 > 10.0.0.{host}:1 flags SA\n\
             0.2 tcp 10.0.0.{host}:1 > 192.0.2.1:80 flags A\n"
        )
    };
    let more = |host: u32| format!("1.0 tcp 192.0.2.1:80 > 10.0.0.{host}:1 flags A\n");
    let chain = "[flows.c]\nby = \"connection\"\nmax_flows = 1000\n[[chain]]\nnf = \"conntrack\"\nflows = \"c\"\n\
        [[chain]]\nnf = \"counter\"\nflows = \"c\"\n";
    let all = 40;
    let remaining =
        |fed: &Fed, function: &str| listed(fed, &["--function", function])["entries"].as_u64().expect("one");
    for way in WAYS {
        let mut fed = Fed::start(chain, way);
        let opened: String = (1..=all).map(open).collect();
        fed.send(&packets::pcap(&opened)[24..]);
        fed.counters_at(3 * u64::from(all));
        let remove = |fed: &Fed, arguments: &[&str]| -> Value {
            let text = succeed(fed.control("remove").arg("--json").args(arguments));
            let removed = serde_json::from_str(&text).expect("JSON");
            check_schema("control-remove", &removed);
            removed
        };
        assert_eq!(
            remove(&fed, &["--function", "conntrack", "--flow", "tcp 192.0.2.1:80 10.0.0.1:1"])["removed"],
            1,
            "{way}"
        );
        assert_eq!(
            remove(&fed, &["--function", "conntrack", "--flow", "tcp 192.0.2.1:80 10.0.0.1:1"])["removed"],
            0,
            "{way}"
        );
        assert_eq!(
            remove(&fed, &["--function", "0", "-f", "net 10.0.0.8/29 and tcp"])["removed"],
            8,
            "{way}"
        );
        assert_eq!(remaining(&fed, "conntrack"), u64::from(all) - 9, "{way}");
        // What another function keeps in the same entries stays.
        assert_eq!(remaining(&fed, "counter"), u64::from(all), "{way}");
        fed.send(&packets::pcap(&(1..=all).map(more).collect::<String>())[24..]);
        let counters = fed.counters_at(4 * u64::from(all));
        assert_eq!(counters["dropped"]["invalid_connection"], 9, "{way}: {counters}");
        assert_eq!(counters["functions"][0]["invalid"]["packets"], 9, "{way}");
        // Those that nothing is kept of any more are begun anew, by the packets that pass.
        assert_eq!(remove(&fed, &["--function", "0", "--all"])["removed"], u64::from(all) - 9, "{way}");
        assert_eq!(remove(&fed, &["--function", "1", "--all"])["removed"], all, "{way}");
        let created = counters["flows"]["c"]["created"].as_u64().expect("a number");
        let again: String = (1..=3).map(open).collect();
        fed.send(&packets::pcap(&again)[24..]);
        let counters = fed.counters_at(4 * u64::from(all) + 9);
        assert_eq!(counters["flows"]["c"]["created"], created + 3, "{way}: {counters}");
        assert_eq!((remaining(&fed, "conntrack"), remaining(&fed, "counter")), (3, 3), "{way}");
        let (summary, _) = fed.end();
        assert_eq!(summary, counters, "{way}");
    }
}

/// Records of a meter leave when their flows are removed, with the reason and what was counted until then; flows go on as new ones.
#[test]
fn a_meter_exports_what_is_removed() {
    let (lines, expected) = traffic();
    for way in ["--workers 1", "--workers 3", "--device oracle"] {
        let mut fed = Fed::start(CHAIN, way);
        fed.send(&packets::pcap(&lines.join("\n"))[24..]);
        fed.counters_at(lines.len() as u64);
        let is_udp = |ends: &&String| ends.starts_with("udp");
        let udp = expected.keys().filter(is_udp).count();
        let said = succeed(fed.control("remove").args(["--function", "meter", "-f", "udp"]));
        assert_eq!(said, format!("function 4, meter: flows removed: {udp}\n"), "{way}");
        let counters = fed.counters_at(lines.len() as u64);
        let ended = &counters["functions"][METER as usize]["ended"];
        assert_eq!(ended["forced_end"], udp, "{way}: {ended}");
        let left = listed(&fed, &["--function", "meter"]);
        assert_eq!(left["entries"], expected.len() - udp, "{way}");
        // One of them goes on.
        let (again, _) = expected.iter().find(|(ends, _)| is_udp(ends)).expect("one");
        let [name, source, destination] = again.split(' ').collect::<Vec<_>>()[..] else { panic!("{again}") };
        fed.send(&packets::pcap(&format!("9.0 {name} {source} > {destination} payload 100"))[24..]);
        fed.counters_at(lines.len() as u64 + 1);
        let (summary, _) = fed.end();
        assert_eq!(summary["functions"][METER as usize]["biflows"], expected.len() + 1, "{way}");
        let records = fs::read_to_string(fed.at("records")).expect("records");
        let mut packets = BTreeMap::new();
        for record in records.lines() {
            let record: Value = serde_json::from_str(record).expect("JSON");
            let count = |key: &str| record.get(key).and_then(Value::as_u64).unwrap_or_default();
            let is_new = packets.insert(
                (
                    record["protocolIdentifier"].as_u64(),
                    count("flowStartMilliseconds"),
                    record["sourceTransportPort"].as_u64(),
                    record.to_string(),
                ),
                count("packetDeltaCount") + count("reversePacketDeltaCount"),
            );
            assert!(is_new.is_none(), "{way}: {record}");
            assert_eq!(record["flowEndReason"], 4, "{record}");
        }
        assert_eq!(packets.len(), expected.len() + 1, "{way}");
        assert_eq!(packets.values().sum::<u64>(), lines.len() as u64 + 1, "{way}");
        let _ = json(&fed.at("summary.json"));
    }
}

/// Flows of a meter that tells VLANs apart say theirs; one of them is removed by what is listed.
#[test]
fn vlans_are_listed_and_named() {
    let chain = "[[chain]]\nnf = \"meter\"\nvlan_in_key = true\noutput = \"records\"\n";
    let packets = "1.0 vlan 12 udp 10.0.0.1:5000 > 10.0.0.2:53\n1.1 vlan 13 udp 10.0.0.1:5000 > 10.0.0.2:53\n\
                   1.2 udp 10.0.0.1:5000 > 10.0.0.2:53\n1.3 vlan 12 udp 10.0.0.2:53 > 10.0.0.1:5000";
    // Each worker that feeds a device has some of the flows.
    let behind = format!("[[chain]]\nnf = \"acl\"\nrules = \"rules\"\ndefault = \"permit\"\n{chain}");
    let ways = WAYS.map(|way| (chain, way)).into_iter().chain([(&*behind, "--workers 3 --device host")]);
    for (chain, way) in ways {
        let mut fed = Fed::start(chain, way);
        fed.send(&packets::pcap(packets)[24..]);
        fed.counters_at(4);
        let flows = |fed: &Fed| -> Vec<(String, Option<u64>, u64)> {
            let list = listed(fed, &["--by", "first"]);
            check_schema("control-flows", &list);
            let flows = list["flows"].as_array().expect("flows").iter();
            let of = |flow: &Value| {
                let text = flow["flow"].as_str().expect("text").to_owned();
                (text, flow["vlan"].as_u64(), numbers(flow, &["packets"])[0])
            };
            flows.map(of).collect()
        };
        let ends = "udp 10.0.0.1:5000 10.0.0.2:53";
        let [first, second] = [12, 13].map(|vlan| format!("{ends} vlan {vlan}"));
        let expected =
            [(first.clone(), Some(12), 2), (second.clone(), Some(13), 1), (ends.to_owned(), None, 1)];
        assert_eq!(flows(&fed), expected, "{way}");
        for (filter, matching) in [
            ("vlan 12", &[0][..]),
            ("vlan", &[0, 1]),
            ("not vlan", &[2]),
            ("vlan 12 or vlan 13", &[0, 1]),
            ("vlan 12 and tcp", &[]),
        ] {
            let list = listed(&fed, &["--by", "first", "-f", filter]);
            let found = list["flows"].as_array().expect("flows").iter().map(|flow| flow["flow"].as_str());
            let expected = matching.iter().map(|&at: &usize| Some(expected[at].0.as_str()));
            assert!(found.eq(expected), "{way} {filter}: {list}");
        }
        for (flow, left) in [(&*second, &[0, 2][..]), (ends, &[0])] {
            let text = succeed(fed.control("remove").args(["--json", "--function", "meter", "--flow", flow]));
            assert_eq!(serde_json::from_str::<Value>(&text).expect("JSON")["removed"], 1, "{way}");
            assert_eq!(flows(&fed), left.iter().map(|&at| expected[at].clone()).collect::<Vec<_>>(), "{way}");
        }
        for vlan in ["vlan", "vlan 0", "vlan 4096", "vlan -1", "vlan x", "lan 12", "vlan 12 13"] {
            let output =
                run(fed.control("remove").args(["--function", "meter", "--flow", &format!("{ends} {vlan}")]));
            assert!(stderr(&output).contains("perhaps with \"vlan 12\" behind"), "{}", stderr(&output));
        }
        let text = succeed(fed.control("remove").args(["--json", "--function", "meter", "-f", "vlan 12"]));
        assert_eq!(serde_json::from_str::<Value>(&text).expect("JSON")["removed"], 1, "{way}");
        assert_eq!(flows(&fed), [], "{way}");
    }
}

/// Where flows are not by VLANs, a filter that tests them is an error, and nothing is removed.
#[test]
fn vlans_of_flows_without_them_are_refused() {
    let chain = "[[chain]]\nnf = \"meter\"\nmax_flows = 1000\nfields = \"full\"\noutput = \"records\"\n";
    for way in WAYS {
        let mut fed = Fed::start(chain, way);
        fed.send(&packets::pcap("1.0 vlan 12 udp 10.0.0.1:5000 > 10.0.0.2:53")[24..]);
        fed.counters_at(1);
        for arguments in
            [&["flows", "-f", "vlan 12"][..], &["remove", "--function", "meter", "-f", "udp and not vlan 13"]]
        {
            let output = run(fed.control(arguments[0]).args(&arguments[1..]));
            let expected = "filter: it tests VLANs, which flows of function 0 (meter) do not have; expected a filter without vlan, or a meter with vlan_in_key = true";
            assert!(stderr(&output).contains(expected), "{way}: {}", stderr(&output));
            assert_eq!(output.status.code(), Some(1), "{way}");
        }
        assert_eq!(listed(&fed, &[])["entries"], 1, "{way}");
    }
}
