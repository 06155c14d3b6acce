//! What the verbs print as JSON is what `packetloom schema` says, and nothing else.

#![allow(missing_docs)]

mod support;

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};
use support::schema::check;
use support::{json as read_json, packetloom, root, run, stderr, succeed};

/// The schema of a verb.
fn schema(page: &str) -> Value {
    let text = succeed(packetloom().args(["schema", page]));
    let schema: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema", "{page}");
    assert!(schema["title"].is_string(), "{page}: {schema}");
    schema
}

#[track_caller]
fn hold(page: &str, value: &Value) {
    if let Err(why) = check(&schema(page), value) {
        panic!("{page}: {why}");
    }
}

/// Lines of JSON, all of which have to be as a schema says; how many there are.
#[track_caller]
fn hold_lines(page: &str, text: &str) -> usize {
    let schema = schema(page);
    for line in text.lines() {
        let value = serde_json::from_str(line).expect("JSON");
        if let Err(why) = check(&schema, &value) {
            panic!("{page}: {why}");
        }
    }
    text.lines().count()
}

fn edge() -> std::path::PathBuf {
    root().join("examples/edge/edge.pcap")
}

/// A folder with a rule file, headers and a chain of all functions.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).expect("written");
    write("reflect.rules", "reflect udp from any to any port 53\n");
    write(
        "some.rules",
        "deny tcp from any to any port 23 id telnet log # no telnet\npermit tcp from any to any log\n\
         deny tcp from any to any port 22\npermit udp from any to any port 53\ndefault deny\n",
    );
    write("strings.txt", "HTTP/1.1\n");
    write("names.txt", "web.edge.example\n");
    write("headers", "tcp 192.0.2.1:1 > 198.51.100.1:23\nudp 192.0.2.1:1 > 198.51.100.1:53\n");
    write(
        "all.toml",
        r#"
[flows.sessions]
by = "5-tuple"
[flows.connections]
by = "connection"
[flows.sources]
by = "source"
[flows.initiators]
by = "initiator"
[[chain]]
nf = "acl"
rules = "some.rules"
default = "permit"
log = "log.jsonl"
log_rate = "2/s"
log_burst = 3
[[chain]]
nf = "acl"
rules = "reflect.rules"
default = "permit"
flows = "connections"
[[chain]]
nf = "conntrack"
flows = "connections"
[[chain]]
nf = "counter"
flows = "sessions"
[[chain]]
nf = "filter"
expression = "ip or ip6"
[[chain]]
nf = "strings"
patterns = "strings.txt"
look_in = ["payload", "http.uri"]
log = "alerts.jsonl"
[[chain]]
nf = "domains"
lists = ["names.txt"]
log = "names.jsonl"
[[chain]]
nf = "counter"
flows = "sources"
[[chain]]
nf = "limiter"
flows = "sessions"
rate = "1Mbit/s"
burst = "64kB"
[[chain]]
nf = "policer"
flows = "sources"
marker = "single-rate"
cir = "1Mbit/s"
cbs = "64kB"
ebs = "64kB"
[[chain]]
nf = "scan"
method = "trw"
flows = "initiators"
[[chain]]
nf = "scan"
method = "fan-out"
flows = "sources"
threshold = 20
window = "60s"
[[chain]]
nf = "source-counter"
flows = "sources"
sessions = "sessions"
[[chain]]
nf = "balancer"
flows = "sessions"
returns = true
[[chain.services]]
address = "198.51.100.10"
port = 443
backends = [{ address = "203.0.113.1", port = 8443 }, { address = "203.0.113.2", port = 8443 }]
[[chain]]
nf = "meter"
output = "flows.jsonl"
[[chain]]
nf = "sample"
interval = 2
method = "random"
"#,
    );
    folder
}

fn in_folder(folder: &Path) -> Command {
    let mut command = packetloom();
    command.current_dir(folder).env("XDG_CACHE_HOME", env!("CARGO_TARGET_TMPDIR"));
    command
}

#[test]
fn the_checker_finds_what_is_wrong() {
    let schema = json!({
        "type": "object",
        "properties": {
            "a": { "type": ["integer", "null"], "minimum": 0 },
            "b": { "oneOf": [{ "const": 1 }, { "enum": [2, 3] }] },
            "c": { "type": "object", "additionalProperties": { "type": "string" } },
            "d": { "type": "array", "items": { "type": "boolean" }, "maxItems": 1 },
        },
        "required": ["a"],
    });
    for good in [json!({ "a": 1 }), json!({ "a": null, "b": 3, "c": { "x": "y" }, "d": [true] })] {
        assert_eq!(check(&schema, &good), Ok(()));
    }
    for bad in [
        json!({}),
        json!([]),
        json!({ "a": -1 }),
        json!({ "a": "1" }),
        json!({ "a": 1, "b": 4 }),
        json!({ "a": 1, "c": { "x": 1 } }),
        json!({ "a": 1, "d": [1] }),
        json!({ "a": 1, "d": [true, true] }),
        json!({ "a": 1, "new": 1 }),
    ] {
        assert!(check(&schema, &bad).is_err(), "{bad}");
    }
    assert!(check(&json!({ "typo": 1 }), &json!(1)).is_err());
}

#[test]
fn a_run_over_all_functions() {
    let folder = folder();
    let output = succeed(in_folder(folder.path()).args(["run", "all.toml", "--json", "-r"]).arg(edge()));
    let summary: Value = serde_json::from_str(&output).expect("JSON");
    hold("run", &summary);
    let functions = summary["functions"].as_array().expect("functions");
    let names: std::collections::BTreeSet<_> =
        functions.iter().map(|function| function["nf"].as_str().expect("a name")).collect();
    let chain_file: Value = serde_json::from_str(&succeed(packetloom().arg("schema"))).expect("JSON");
    let all = chain_file["properties"]["chain"]["items"]["oneOf"].as_array().expect("functions");
    assert_eq!(names.len(), all.len(), "all functions are in the chain: {names:?}");
    assert!(hold_lines("flow-record", &read(folder.path(), "flows.jsonl")) > 100);
    assert!(hold_lines("alert", &read(folder.path(), "alerts.jsonl")) > 10);
    assert!(hold_lines("alert", &read(folder.path(), "names.jsonl")) > 10);
    let log = read(folder.path(), "log.jsonl");
    assert!(hold_lines("acl-log", &log) > 3 && log.contains("suppressed"), "{log}");
    assert_eq!(succeed(packetloom().args(["schema", "chain"])), succeed(packetloom().arg("schema")));
}

fn read(folder: &Path, name: &str) -> String {
    fs::read_to_string(folder.join(name)).expect("a text file")
}

/// Reloads, several captures and the state of flows have fields of their own.
#[test]
fn a_run_with_reloads_and_state() {
    let folder = folder();
    fs::write(
        folder.path().join("counter.toml"),
        "[flows.f]\nby = \"source\"\n[[chain]]\nnf = \"counter\"\nflows = \"f\"\n",
    )
    .expect("written");
    let mut command = in_folder(folder.path());
    command.args(["run", "all.toml", "--summary", "s.json", "--reload-at", "1000=counter.toml"]);
    succeed(command.args(["--save-state", "state", "-r"]).arg(edge()));
    let summary = read_json(&folder.path().join("s.json"));
    hold("run", &summary);
    assert_eq!(summary["reloads"]["done"], 1);
    assert!(summary["replaced"].as_array().is_some_and(|replaced| replaced.len() > 5));
    let state = succeed(in_folder(folder.path()).args(["state", "state", "--json"]));
    hold("state", &serde_json::from_str(&state).expect("JSON"));
    assert!(state.contains("\"functions\": [\n"));
}

#[test]
fn a_search() {
    let folder = folder();
    fs::write(folder.path().join("list.txt"), "HTTP/1.1\nbad\\q\n").expect("written");
    let mut command = in_folder(folder.path());
    command.args(["search", "--patterns", "list.txt", "--left-out", "left", "--json", "-o", "found"]);
    succeed(command.args(["--summary", "s.json", "-r"]).arg(edge()));
    hold("search", &read_json(&folder.path().join("s.json")));
    assert_eq!(hold_lines("search-left-out", &read(folder.path(), "left")), 1);
    assert_eq!(hold_lines("alert", &read(folder.path(), "found")), 124);
}

#[test]
fn a_meter() {
    let folder = folder();
    let mut command = in_folder(folder.path());
    succeed(command.args(["meter", "-o", "flows", "--summary", "s.json", "-r"]).arg(edge()));
    hold("meter", &read_json(&folder.path().join("s.json")));
    assert_eq!(hold_lines("flow-record", &read(folder.path(), "flows")), 323);
    let mut command = in_folder(folder.path());
    succeed(command.args(["meter", "-o", "flows", "--sample", "2", "--summary", "s.json", "-r"]).arg(edge()));
    let summary = read_json(&folder.path().join("s.json"));
    hold("meter", &summary);
    assert!(hold_lines("flow-record", &read(folder.path(), "flows")) > 100);
    assert!(read(folder.path(), "flows").lines().all(|line| line.contains("\"samplingInterval\":2")));
    assert!(summary["not_sampled"].as_u64().is_some_and(|packets| packets > 100), "{summary}");
}

#[test]
fn checks() {
    let folder = folder();
    let output = succeed(in_folder(folder.path()).args(["check", "all.toml", "--json"]));
    let checked: Value = serde_json::from_str(&output).expect("JSON");
    hold("check", &checked);
    assert_eq!((&checked["ok"], &checked["mistakes"]), (&json!(true), &json!([])));
    let plan = succeed(in_folder(folder.path()).args(["check", "all.toml"]));
    assert_eq!(checked["plan"], json!(plan.lines().collect::<Vec<_>>()));
    fs::write(folder.path().join("bad.toml"), "[sorce]\n[run]\nworkers = 0\n").expect("written");
    let output = run(in_folder(folder.path()).args(["check", "bad.toml", "--json"]));
    assert_eq!(output.status.code(), Some(78));
    let checked: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    hold("check", &checked);
    assert_eq!(checked["ok"], false);
    let lines: Vec<_> =
        checked["mistakes"].as_array().expect("mistakes").iter().map(|mistake| &mistake["line"]).collect();
    assert_eq!(lines, [1, 3]);

    let rules = ["acl", "check", "some.rules", "--json"];
    let findings = succeed(in_folder(folder.path()).args(rules));
    assert_eq!(hold_lines("acl-check", &findings), 2, "{findings}");
    // With little work, and with rules of every verdict.
    let findings = succeed(in_folder(folder.path()).args(rules).args(["--work", "1"]));
    assert!(findings.contains("\"undecided\"") && hold_lines("acl-check", &findings) >= 2, "{findings}");
    let all = "permit tcp from any to any port 80\npermit tcp from any to any port 80\npermit udp from 10.0.0.0/8 to any\n\
               permit udp from any to any\ndeny icmp from 10.0.0.0/8 to any\npermit icmp from any to any type 8\n";
    fs::write(folder.path().join("all.rules"), all).expect("written");
    let findings = succeed(in_folder(folder.path()).args(["acl", "check", "all.rules", "--json"]));
    assert!(hold_lines("acl-check", &findings) >= 4, "{findings}");
    for part in ["\"side\":\"earlier\"", "\"side\":\"later\"", "\"correlated\":{\"count\":1"] {
        assert!(findings.contains(part), "{part}: {findings}");
    }
    let explained = succeed(in_folder(folder.path()).args([
        "acl",
        "explain",
        "some.rules",
        "--json",
        "--packet",
        "tcp 192.0.2.1:1 > 198.51.100.1:22",
        "--packet",
        "17 192.0.2.1:1 > 198.51.100.1:2",
        "--packet",
        "1 192.0.2.1 > 198.51.100.1",
    ]));
    assert_eq!(hold_lines("acl-explain", &explained), 3);
}

#[test]
fn conversions() {
    let folder = folder();
    let save = "*filter\n:FORWARD DROP [0:0]\n-A FORWARD -p tcp -m limit --limit 5/s -j ACCEPT\n\
                -A FORWARD -p udp --dport 53 -j ACCEPT\nCOMMIT\n";
    fs::write(folder.path().join("fw.save"), save).expect("written");
    let convert = |rules: &str, options: &[&str]| {
        let mut command = in_folder(folder.path());
        command.args(["acl", "convert", rules, "--json", "-o", "out"]).args(options);
        let output = run(&mut command);
        assert!(output.status.success(), "{}", stderr(&output));
        stderr(&output)
    };
    let lost = convert("fw.save", &["--to", "native", "--max-loss", "1"]);
    assert_eq!(hold_lines("acl-convert", &lost), 2, "{lost}");
    let approximated = convert("some.rules", &["--to", "vpp", "--fragments", "ignore", "--max-loss", "4"]);
    assert!(hold_lines("acl-convert", &approximated) > 2, "{approximated}");
    assert!(approximated.contains("\"approximations\""), "{approximated}");
}

#[test]
fn devices() {
    let folder = folder();
    let text = succeed(in_folder(folder.path()).args(["devices", "--json", "--device", "host"]));
    assert_eq!(hold_lines("devices", &text), 1);
    // Devices that this machine does not have are among them.
    let output = run(in_folder(folder.path()).args(["devices", "--json"]));
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(hold_lines("devices", &text) >= 2, "{text}");
}

/// A run that is ended with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn what_a_run_answers() {
    let folder = folder();
    let mut command = in_folder(folder.path());
    command.args(["run", "all.toml", "--control", "socket", "-r", "-"]);
    // Nothing comes, and nothing ends.
    let child = command.stdin(Stdio::piped()).stderr(Stdio::null()).spawn().expect("started");
    let mut running = Running(child);
    let header = &fs::read(edge()).expect("a capture")[..24];
    std::io::Write::write_all(running.0.stdin.as_mut().expect("a pipe"), header).expect("written");
    let socket = folder.path().join("socket");
    let counters = loop {
        let output = run(packetloom().arg("control").arg(&socket).arg("counters"));
        if output.status.success() {
            break output.stdout;
        }
        assert_eq!(output.status.code(), Some(69), "{}", stderr(&output));
        assert!(running.0.try_wait().expect("a child").is_none(), "it runs");
        std::thread::sleep(std::time::Duration::from_millis(20));
    };
    hold("control", &serde_json::from_slice(&counters).expect("JSON"));
    let mut stream = std::os::unix::net::UnixStream::connect(&socket).expect("a socket");
    let lines = "{\"command\":\"counters\"}\n{\"command\":\"dance\"}\n{\"command\":\"stop\"}\n";
    std::io::Write::write_all(&mut stream, lines.as_bytes()).expect("written");
    let mut answers = String::new();
    let mut reader = std::io::BufReader::new(stream);
    for _ in 0..3 {
        std::io::BufRead::read_line(&mut reader, &mut answers).expect("an answer");
    }
    assert_eq!(hold_lines("control-answer", &answers), 3);
    let ok: Vec<_> = answers.lines().map(|line| line.contains("\"ok\":true")).collect();
    assert_eq!(ok, [true, false, true], "{answers}");
}

/// Each benchmark, as short as it can be.
#[test]
fn benchmarks() {
    let folder = folder();
    succeed(
        in_folder(folder.path()).args(["generate", "rules", "--style", "fw", "--rules", "60", "-o", "fw"]),
    );
    let headers = ["generate", "headers", "--rules", "fw", "--headers", "300", "-o", "trace"];
    succeed(in_folder(folder.path()).args(headers));
    let bench = |arguments: &[&str]| {
        let text = succeed(in_folder(folder.path()).arg("bench").args(arguments).arg("--json"));
        let lines = hold_lines(&format!("bench-{}", arguments[0]), &text);
        let first: Value = serde_json::from_str(text.lines().next().expect("a line")).expect("JSON");
        assert_eq!(first["version"], env!("CARGO_PKG_VERSION"));
        assert!(first["machine"].as_str().is_some_and(|machine| machine.contains("Linux")), "{first}");
        lines
    };
    let edge = edge();
    let strings = ["strings", "--patterns", "strings.txt", "--rounds", "1"];
    let made = ["--bytes", "100k", "--size", "64,mixed", "--matching", "0,35", "--sample"];
    assert_eq!(bench(&[&strings[..], &made].concat()), 4);
    let attacked = ["--bytes", "100k", "--size", "583", "--attack", "without-last,runs", "--report", "any"];
    assert_eq!(bench(&[&strings[..], &attacked].concat()), 2);
    let captures = ["-r", edge.to_str().expect("text"), "--sample", "always"];
    assert_eq!(bench(&[&strings[..], &captures].concat()), 1);
    assert_eq!(
        bench(&[&strings[..], &["-r", edge.to_str().expect("text"), "--report", "first"]].concat()),
        1
    );
    assert_eq!(bench(&["meter", "--rounds", "1", "-r", edge.to_str().expect("text")]), 1);
    let meter = ["meter", "--rounds", "1", "-r", edge.to_str().expect("text"), "--device", "host"];
    let lists =
        ["--slice", "64,128", "--memory", "device,capture", "--stage", "parse,all", "--burst", "2000"];
    assert_eq!(bench(&[&meter[..], &lists[..]].concat()), 8);
    let files = ["--rules", "fw", "--headers", "trace"];
    assert_eq!(bench(&[&["acl", "--rounds", "1", "--classifier", "all"], &files[..]].concat()), 4);
    let flows = ["--rounds", "1", "--flows", "100"];
    assert_eq!(bench(&[&["chain"], &flows[..]].concat()), 1);
    assert_eq!(bench(&[&["chain", "--offered", "0.1"], &flows[..]].concat()), 1);
    assert_eq!(bench(&[&["changes", "--seconds", "0.2"], &files[..]].concat()), 1);
    assert_eq!(bench(&[&["changes", "--total", "100", "--parts", "2"], &files[..]].concat()), 4);
    let nca = ["nca", "--patterns", "strings.txt", "--device", "host", "--rounds", "1", "--size", "100"];
    assert_eq!(bench(&[&nca[..], &["--batch", "8,40", "--queues", "1,2", "--matching", "35"]].concat()), 4);
    for transport in ["on-device", "slices"] {
        let device =
            ["device", "--device", "host", "--rounds", "1", "--batch", "64", "--keys", "300", "--transport"];
        assert_eq!(bench(&[&device[..], &[transport], &files[..]].concat()), 1, "{transport}");
    }
}

#[test]
fn a_page_that_is_none() {
    let output = run(packetloom().args(["schema", "generate"]));
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("expected one of: chain, run, meter"), "{}", stderr(&output));
}
