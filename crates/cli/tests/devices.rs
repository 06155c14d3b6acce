//! `packetloom devices`, and other verbs with `--device`.

#![allow(missing_docs)]

mod support;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::thread;

use packetloom_device::{Cache, Device, Id};
use serde_json::Value;
use support::{packetloom, run, stderr, succeed};
use tempfile::TempDir;

/// The command, with compiled kernels kept below the target folder.
fn with_cache() -> Command {
    let mut command = packetloom();
    command.env("XDG_CACHE_HOME", env!("CARGO_TARGET_TMPDIR")).stdin(Stdio::null());
    command
}

/// Whether the host can be a device; if not, the test says that it skips.
fn host_is_there() -> bool {
    let host = Device::open(Id::Host, Cache::none());
    host.inspect_err(|error| eprintln!("skipped: {error}")).is_ok()
}

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).expect("a JSON object a line")).collect()
}

const RULES: &str = "\
deny tcp from 192.0.2.0/24 to any port 22
permit tcp from any to 198.51.100.0/25 port 80-443 flags S/SA
permit udp from any port 53 to 203.0.113.7
permit tcp from 2001:db8::/32 to 2001:db8:1::/48 port 443
permit icmp from any to any type 8
deny any from any to any fragment later
permit udp from 2001:db8::1 to any port 1000-2000
";

/// Both families in turns.
const HEADERS: &str = "\
tcp 192.0.2.9:1234 > 198.51.100.10:22
tcp [2001:db8::5]:4000 > [2001:db8:1::1]:443 flags S
tcp 10.0.0.1:1 > 198.51.100.127:443 flags S
tcp 10.0.0.1:1 > 198.51.100.128:443 flags S
udp [2001:db8::1]:5 > [2001:db8::2]:2000
udp [2001:db8::1]:5 > [2001:db8::2]:2001
udp 10.0.0.1:53 > 203.0.113.7:9
icmp 10.0.0.1 > 10.0.0.2 type 8 code 0
udp 10.0.0.1 > 203.0.113.7 fragment later
udp 2001:db8::1 > 2001:db8::2 fragment later
";

const POSITIONS: &str = "0\n3\n1\n-1\n6\n-1\n2\n4\n5\n5\n";

/// A folder with these files.
fn folder(headers: &str) -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("rules"), RULES).expect("written");
    fs::write(folder.path().join("headers"), headers).expect("written");
    folder
}

/// A verb with both files.
fn on(folder: &TempDir, verb: &[&str], device: &str) -> Command {
    let mut command = with_cache();
    command.current_dir(folder).args(verb).args(["--rules", "rules", "--headers", "headers"]);
    command.args(["--device", device]);
    command
}

const CLASSIFY: &[&str] = &["acl", "classify"];
const BENCH: &[&str] = &["bench", "device", "--keys", "200", "--batch", "64,200", "--rounds", "1", "--json"];

#[test]
fn devices_are_listed_and_tried() {
    let text = succeed(with_cache().args(["devices", "--json"]));
    let values = lines(&text);
    let (processor, others) = values.split_first().expect("the processor");
    assert_eq!(processor["device"], "cpu");
    assert!(processor["cores"].as_u64() > Some(0) && processor["instructions"].is_array(), "{processor}");
    let (ids, missing) = packetloom_device::list();
    let of = |name: &str| others.iter().filter_map(|value| value[name].as_str()).collect::<Vec<_>>();
    assert_eq!(of("device"), ids.iter().map(ToString::to_string).collect::<Vec<_>>());
    assert_eq!(of("missing"), missing.iter().map(ToString::to_string).collect::<Vec<_>>());
    assert_eq!(others.len(), ids.len() + missing.len());
    for device in others.iter().filter(|value| value["device"].is_string()) {
        let checks = device["checks"].as_array().expect("checks");
        assert!(checks.len() > 4 && checks.iter().all(|check| check["ok"] == true), "{device}");
        assert!(["memory", "units", "group", "lanes"].iter().all(|name| device[name].as_u64() > Some(0)));
    }
    // For people: a line for each, and one for each check.
    let text = succeed(with_cache().arg("devices"));
    let checks = others.iter().filter_map(|value| value["checks"].as_array()).map(Vec::len).sum::<usize>();
    assert_eq!(text.lines().count(), values.len() + checks, "{text}");
    assert!(text.starts_with("cpu: ") && !text.contains("FAILED"), "{text}");
}

#[test]
fn the_host_is_tried_when_it_is_named() {
    if !host_is_there() {
        return;
    }
    let values = lines(&succeed(with_cache().args(["devices", "--json", "--device", "host"])));
    assert_eq!((values.len(), &values[0]["device"]), (1, &"host".into()));
    assert!(values[0]["checks"].as_array().expect("checks").iter().all(|check| check["ok"] == true));
}

#[test]
fn a_device_that_is_not_there_is_69() {
    let folder = folder(HEADERS);
    for device in ["cuda:99", "opencl:99"] {
        let mut devices = with_cache();
        devices.args(["devices", "--device", device]);
        for mut command in [devices, on(&folder, CLASSIFY, device), on(&folder, BENCH, device)] {
            let output = run(&mut command);
            assert_eq!((output.status.code(), output.stdout.len()), (Some(69), 0), "{command:?}");
            let said = stderr(&output);
            let kind = device.split(':').next().expect("a kind");
            assert!(said.starts_with(&format!("packetloom: {kind}")) && said.lines().count() == 1, "{said}");
            assert!(!said.contains(['{', '"']), "a sentence for people: {said}");
        }
    }
}

#[test]
fn what_is_no_device_is_wrong_usage() {
    let folder = folder(HEADERS);
    for device in ["nonsense", "host:1", "cuda:", "opencl:x", "cpu:0", ""] {
        let mut devices = with_cache();
        devices.args(["devices", "--device", device]);
        for mut command in [devices, on(&folder, CLASSIFY, device), on(&folder, BENCH, device)] {
            let output = run(&mut command);
            assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{command:?}");
            assert!(stderr(&output).contains("--device"), "{}", stderr(&output));
        }
    }
}

#[test]
fn headers_are_classified_on_any_device() {
    let folder = folder(HEADERS);
    let mut devices: Vec<_> = packetloom_testing::devices().iter().map(ToString::to_string).collect();
    devices.extend(["cpu", "auto"].map(str::to_owned));
    for device in devices {
        for kind in ["linear", "tuple-space", "tuple-merge", "hybrid"] {
            let mut command = on(&folder, CLASSIFY, &device);
            assert_eq!(succeed(command.args(["--classifier", kind])), POSITIONS, "{kind} on {device}");
        }
    }
}

#[test]
fn a_device_is_measured() {
    if !host_is_there() {
        return;
    }
    let of_ipv4: Vec<_> = HEADERS.lines().filter(|line| !line.contains("2001")).collect();
    let folder = folder(&of_ipv4.join("\n"));
    for (flag, specialised) in [(None, true), (Some("--generic"), false)] {
        let values = lines(&succeed(on(&folder, BENCH, "host").args(flag)));
        assert_eq!(values.len(), 2, "one for each batch");
        for (value, batch) in values.iter().zip([64, 200]) {
            let same = ["batch", "packets", "rounds", "rules"].map(|name| value[name].as_u64());
            assert_eq!(same, [Some(batch), Some(200), Some(1), Some(7)], "{value}");
            assert_eq!(value["algorithm"], "masks");
            assert_eq!(value["specialised"], specialised);
            assert_eq!(value["workload"], "device rules");
            let numbers = "mpps mpps_min mpps_max latency_us_p50 latency_us_p99 latency_us_max core_mpps cores \
                           memory_mb layout_ms load_ms";
            assert!(numbers.split(' ').all(|name| value[name].as_f64() >= Some(0.0)), "{value}");
            assert!(
                value["tables"].is_u64() && value["tail"].is_u64() && value["device"].is_string(),
                "{value}"
            );
        }
    }
    let text =
        succeed(on(&folder, &BENCH[..BENCH.len() - 1], "host").args(["--algorithm", "linear,tuple-space"]));
    assert!(text.contains("linear") && text.contains("tuple-space"), "{text}");
}

/// Keys of both families do not lie on a device together.
#[test]
fn headers_of_both_families_are_not_measured() {
    if !host_is_there() {
        return;
    }
    for (headers, why) in [(HEADERS, "of one family"), ("", "no packets")] {
        let output = run(&mut on(&folder(headers), BENCH, "host"));
        assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0));
        assert!(stderr(&output).contains(why), "{}", stderr(&output));
    }
}

/// A folder with a chain of an ACL, and packets for it.
fn chain() -> TempDir {
    let folder = folder(HEADERS);
    let chain = "[source]\ncapture = \"in.pcap\"\n[[chain]]\nnf = \"acl\"\nrules = \"rules\"\n\
                 [sink]\ncapture = \"out.pcap\"\n";
    fs::write(folder.path().join("chain.toml"), chain).expect("written");
    let mut generate = packetloom();
    generate.current_dir(&folder).args(["generate", "traffic", "--packets", "2000", "--flows", "90"]);
    succeed(generate.args(["-w", "in.pcap"]));
    folder
}

#[test]
fn a_chain_gives_the_same_on_any_device() {
    if !host_is_there() {
        return;
    }
    let folder = chain();
    let results = |device: &[&str]| {
        let mut command = with_cache();
        command.current_dir(&folder).args(["run", "chain.toml", "--json"]).args(device);
        let summary = succeed(&mut command);
        (summary, fs::read(folder.path().join("out.pcap")).expect("a capture"))
    };
    let expected = results(&[]);
    for device in ["oracle", "host", "auto"] {
        assert!(results(&["--device", device]) == expected, "{device}");
    }
    // However far drivers are when the run is over.
    for _ in 0..packetloom_testing::amount(20, 1_000) {
        assert!(results(&["--device", "auto"]) == expected);
    }
    assert!(results(&["--device", "host", "--max-latency", "1us"]) == expected);
    // What it did is said.
    let output = run(with_cache().current_dir(&folder).args(["run", "chain.toml", "--device", "host"]));
    assert!(output.status.success());
    for text in ["judged by it", "judged here", "failures"] {
        assert!(stderr(&output).contains(text), "{text} in {}", stderr(&output));
    }
}

/// What a search of payloads leaves, behind an ACL: the summary, alerts, and packets that passed.
#[test]
fn payloads_are_searched_on_any_device() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str| folder.path().join(name);
    fs::write(file("rules"), "deny udp from any to any port 53\npermit any from any to any\n")
        .expect("written");
    fs::write(file("words"), "HTTP/1.1\nUser-Agent: curl\nGET /\nexample\n").expect("written");
    let chain = "[[chain]]\nnf = \"acl\"\nrules = \"rules\"\n\
                 [[chain]]\nnf = \"strings\"\npatterns = \"words\"\naction = \"drop\"\nlog = \"alerts\"\n\
                 [sink]\ncapture = \"out.pcap\"\n";
    fs::write(file("chain.toml"), chain).expect("written");
    let command = |arguments: &[&str]| {
        let mut command = with_cache();
        command.current_dir(&folder).args(arguments);
        command
    };
    let edge = support::root().join("examples/edge/edge.pcap");
    let results = |arguments: &[&str]| {
        let mut command = command(&["run", "chain.toml", "--json", "-r"]);
        let summary = succeed(command.arg(&edge).args(arguments));
        let [alerts, passed] = ["alerts", "out.pcap"].map(|name| fs::read(file(name)).expect("written"));
        (summary, alerts, passed)
    };
    let expected = results(&[]);
    assert!(expected.1.len() > 1_000);
    for device in packetloom_testing::devices() {
        let device = device.to_string();
        for arguments in [&["--workers", "1"][..], &["--workers", "3"], &["--max-latency", "1us"]] {
            let found = results(&[&["--device", &device], arguments].concat());
            assert!(found == expected, "{device} {arguments:?}");
        }
        let mut command = command(&["run", "chain.toml", "--device", &device, "-r"]);
        let output = run(command.arg(&edge));
        let said = stderr(&output);
        let judged = said.lines().find(|line| line.contains("judged by it")).unwrap_or_default();
        assert!(output.status.success() && judged.trim_end().ends_with(" 5061"), "{said}");
    }
    fs::write(file("other.toml"), format!("{chain}[run]\ndevice = \"cuda:0\"\nworkers = 2\n"))
        .expect("written");
    let checked = succeed(&mut command(&["check", "other.toml"]));
    let placed = "device    cuda:0: function 2 as far as it searches payloads; function 1 on this machine's cores; batches";
    assert!(checked.contains(placed), "{checked}");
    assert!(checked.contains("workers   2 workers feed the device"), "{checked}");
}

/// Headers in this machine's memory, judged on the host as a device: packets are large, so that there are few of them.
#[test]
fn a_chain_that_is_fed_from_memory_is_measured() {
    if !packetloom_testing::sweep("chains fed from memory on the host") || !host_is_there() {
        return;
    }
    let args = ["bench", "chain", "--flows", "100", "--packet-size", "9018", "--rounds", "1", "--json"];
    let on_host = ["--device", "host", "--batch", "1000", "--transport", "in-place", "--in-flight", "3"];
    let text = succeed(with_cache().args(args).args(on_host));
    let figures = &lines(&text)[0];
    for (name, expected) in [("on", "host"), ("transport", "in-place")] {
        assert_eq!(figures[name], expected, "{text}");
    }
    for (name, expected) in [("slice", 64), ("in_flight", 3), ("batch", 1000), ("flows", 100)] {
        assert_eq!(figures[name], expected, "{text}");
    }
    assert!(figures["mpps"].as_f64() > Some(0.0) && figures["passed"] == 1.0, "{text}");
    // One that drops packets by their times, of which each flow has one in 10 µs: they are compared with a core, too.
    let folder = tempfile::tempdir().expect("a folder");
    let chain = folder.path().join("chain.toml");
    let text = "[[chain]]\nnf = \"limiter\"\nrate = \"100000packets/s\"\nburst = \"1packets\"\n";
    fs::write(&chain, text).expect("written");
    let text = succeed(with_cache().args(args).arg(&chain).args(on_host).args(["--slice", "128"]));
    let figures = &lines(&text)[0];
    let passed = figures["passed"].as_f64().expect("a share");
    assert!((0.2..0.9).contains(&passed) && figures["slice"] == 128, "{text}");
    // It is of no use without a device, and takes known values.
    let mut without = packetloom();
    let output = run(without.args(args).args(&on_host[2..]));
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    let output = run(packetloom().args(args).args(on_host).args(["--slice", "65"]));
    assert!(stderr(&output).contains("expected 64 or 128"), "{}", stderr(&output));
}

#[test]
fn a_chain_for_a_device_that_is_not_there_is_69_and_writes_nothing() {
    let folder = chain();
    let mut command = with_cache();
    let output = run(command.current_dir(&folder).args(["run", "chain.toml", "--device", "opencl:99"]));
    assert_eq!(output.status.code(), Some(69), "{}", stderr(&output));
    assert!(!folder.path().join("out.pcap").exists());
    // A plan needs no device.
    let text = fs::read_to_string(folder.path().join("chain.toml")).expect("a chain");
    for (keys, expected) in [
        ("device = \"opencl:99\"\nmax_latency = \"50us\"", "function 1 as one kernel"),
        ("device = \"gpu\"", "expected cpu, oracle, auto, cuda:N, opencl:N or host"),
        ("device = 1", "a device in quotes"),
        ("device = \"host\"\nmax_latency = 50", "in quotes"),
        ("device = \"host\"\ndevice_copy_every = \"1ms\"", "device_copy_every is 1ms; expected 10ms or more"),
    ] {
        fs::write(folder.path().join("other.toml"), format!("{text}[run]\n{keys}\n")).expect("written");
        let output = run(packetloom().current_dir(&folder).args(["check", "other.toml"]));
        let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), stderr(&output));
        assert!(said.contains(expected), "{keys}: {said}");
    }
}

#[test]
fn a_device_that_is_fed_from_memory_is_measured() {
    if !host_is_there() {
        return;
    }
    let headers: String = HEADERS
        .lines()
        .filter(|line| !line.contains('[') && !line.contains("::"))
        .fold(String::new(), |headers, line| headers + line + "\n");
    let folder = folder(&headers);
    let bench = ["bench", "device", "--rounds", "1", "--batch", "8,100", "--json", "--in-flight", "2"];
    let transports = ["--transport", "on-device,keys,slices,in-place,resident", "--keys", "100"];
    let text = succeed(on(&folder, &bench, "host").args(transports));
    let rows = lines(&text);
    let shown: Vec<_> = rows.iter().map(|row| (row["transport"].as_str(), row["batch"].as_u64())).collect();
    let expected = ["on-device", "keys", "slices", "in-place", "resident"];
    let expected: Vec<_> =
        expected.iter().flat_map(|&name| [8, 100].map(|batch| (Some(name), Some(batch)))).collect();
    assert_eq!(shown, expected);
    for row in rows {
        assert!(row["mpps"].as_f64().is_some_and(|mpps| mpps > 0.0), "{row}");
        assert!(row["core_mpps"].as_f64().is_some_and(|mpps| mpps > 0.0), "{row}");
        assert!(row["latency_us_p50"].as_f64() <= row["latency_us_p99"].as_f64(), "{row}");
    }
    let output = run(on(&folder, &bench, "host").args(["--transport", "pigeon"]));
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("on-device, keys, slices, in-place, resident"), "{}", stderr(&output));
}

/// Records of the sample capture, in order of their text, and what the meter says in the end.
fn metered(folder: &TempDir, arguments: &[&str]) -> (Vec<String>, Value, String) {
    let (flows, summary) = (folder.path().join("flows.jsonl"), folder.path().join("summary.json"));
    let mut command = with_cache();
    command.args(["meter", "-r"]).arg(support::root().join("examples/edge/edge.pcap"));
    command
        .arg("-o")
        .arg(&flows)
        .arg("--summary")
        .arg(&summary)
        .args(["--max-flows", "20000"])
        .args(arguments);
    let output = run(&mut command);
    assert!(output.status.success(), "{}", stderr(&output));
    let mut records: Vec<_> =
        fs::read_to_string(&flows).expect("records").lines().map(str::to_owned).collect();
    records.sort_unstable();
    (records, support::json(&summary), stderr(&output))
}

#[test]
fn flows_are_metered_on_any_device() {
    let folder = tempfile::tempdir().expect("a folder");
    for device in packetloom_testing::devices() {
        let device = device.to_string();
        for arguments in [
            &["--fields", "standard"][..],
            &["--idle-timeout", "20ms", "--active-timeout", "100ms", "--end-of-flow"],
            // On cores.
            &["--fields", "full"],
            &["-f", "tcp"],
        ] {
            let expected = metered(&folder, arguments);
            assert!(expected.0.len() > 10);
            let found = metered(&folder, &[arguments, &["--device", &device]].concat());
            assert_eq!((&found.0, &found.1), (&expected.0, &expected.1), "{device} {arguments:?}");
            let is_there = !["full", "-f"].iter().any(|on_cores| arguments.contains(on_cores));
            assert_eq!(found.2.contains("judged by it"), is_there, "{}", found.2);
            assert_eq!(found.2.contains("takes none of these functions"), !is_there, "{}", found.2);
        }
    }
    let output = run(with_cache().args(["meter", "-r", "x.pcap", "--device", "gpu"]));
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(stderr(&output).contains("gpu"), "{}", stderr(&output));
}

/// Records of flows that are silent, or that end, leave as the time of packets goes on, and before the pipe ends; of a meter alone, and of one with a
/// function behind it that all workers run.
#[test]
fn flows_that_are_over_leave_a_device() {
    let capture = fs::read(support::root().join("examples/edge/edge.pcap")).expect("a capture");
    let folder = tempfile::tempdir().expect("a folder");
    let chain = folder.path().join("chain.toml");
    let functions = "[[chain]]\nnf = \"meter\"\nend_of_flow = true\nmax_flows = 1000\noutput = \"-\"\n\
        [[chain]]\nnf = \"sample\"\ninterval = 2\n[run]\nworkers = 2\n";
    fs::write(&chain, functions).expect("written");
    let chain = chain.to_str().expect("text");
    let meter = ["meter", "-r", "-", "--idle-timeout", "100ms", "--max-flows", "1000"];
    for device in packetloom_testing::devices() {
        // Why they end before the pipe does, how many do, and how many are left. Of silent ones those of the last second are still there.
        for (arguments, reason, before, after) in
            [(&meter[..], 1, 400, 47), (&["run", chain, "-r", "-"], 3, 192, 131)]
        {
            let mut child = with_cache()
                .args(arguments)
                .args(["--device", &device.to_string()])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()
                .expect("started");
            let mut stdin = child.stdin.take().expect("a pipe");
            let capture = capture.clone();
            // Records come meanwhile, more than a pipe holds.
            let writer = thread::spawn(move || {
                stdin.write_all(&capture).expect("written");
                stdin
            });
            let mut records = BufReader::new(child.stdout.take().expect("a pipe")).lines();
            for _ in 0..before {
                let record = records.next().expect("a record").expect("text");
                let record: Value = serde_json::from_str(&record).expect("JSON");
                assert_eq!(record["flowEndReason"], reason);
            }
            drop(writer.join().expect("no panic"));
            assert!(child.wait().expect("ended").success());
            assert_eq!(records.count(), after, "{arguments:?}");
        }
    }
}

/// Where a device was named and has nothing to do, the reason is said without being asked for.
#[test]
fn a_meter_that_stays_on_cores_says_why() {
    if !host_is_there() {
        return;
    }
    let edge = support::root().join("examples/edge/edge.pcap");
    let said = |options: &[&str]| {
        let mut command = with_cache();
        command
            .args(["meter", "--device", "host", "--max-flows", "1000", "-o", "/dev/null", "-r"])
            .arg(&edge);
        let output = run(command.args(options));
        assert!(output.status.success(), "{}", stderr(&output));
        stderr(&output)
    };
    for (options, why) in [
        (&["--fields", "full"][..], "names are in payloads, which a device does not get"),
        (&["--vlan-in-key"], "flows on a device have no VLAN in their keys"),
        (&["-f", "tcp"], "filter is for cores, and so is what comes behind it"),
        (&["--begin", "0"], "filter is for cores, and so is what comes behind it"),
        (&["--sample", "2"], "sample is for cores, and so is what comes behind it"),
    ] {
        let expected = format!(
            "packetloom: warning: host takes none of these functions, since {why}: all on this machine's cores\n"
        );
        assert!(said(options).contains(&expected), "{options:?}: {}", said(options));
    }
    for options in [&[][..], &["--device", "cpu", "-f", "tcp"]] {
        let mut command = with_cache();
        let device = if options.is_empty() { &["--device", "host"][..] } else { &[] };
        command.args(["meter", "--max-flows", "1000", "-o", "/dev/null", "-r"]).arg(&edge);
        let output = run(command.args(device).args(options));
        assert!(output.status.success() && !stderr(&output).contains("warning"), "{}", stderr(&output));
    }
}
