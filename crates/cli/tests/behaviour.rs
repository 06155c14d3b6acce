//! How the command behaves at its edges: outputs that fail, inputs that are broken, signals, exit codes, messages.

#![allow(missing_docs)]

mod support;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use packetloom_classify::Kind;
use support::{json, packetloom, packets, root, run, stderr, succeed};
use tempfile::TempDir;

fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder")
}

fn edge() -> std::path::PathBuf {
    root().join("examples/edge/edge.pcap")
}

/// The names of everything in a folder, hidden files too.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("a folder");
    let mut names: Vec<_> = entries.map(|e| e.expect("an entry").file_name().display().to_string()).collect();
    names.sort_unstable();
    names
}

#[test]
fn an_unwritable_path_is_named_and_the_exit_code_is_1() {
    for path in ["/nonexistent/flows.jsonl", "/proc/flows.jsonl", "/"] {
        let output = run(packetloom().arg("meter").arg("-r").arg(edge()).args(["-o", path]));
        assert_eq!(output.status.code(), Some(1), "{path}");
        assert!(stderr(&output).contains(path), "{}", stderr(&output));
    }
}

#[test]
fn a_full_disk_is_an_error_for_every_output() {
    let folder = folder();
    let summary = folder.path().join("summary.json");
    let output = run(packetloom()
        .arg("meter")
        .arg("-r")
        .arg(edge())
        .args(["-o", "/dev/full", "--summary"])
        .arg(&summary));
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("/dev/full: No space left on device"), "{}", stderr(&output));
    assert_eq!(names(folder.path()), Vec::<String>::new(), "no summary of a run that failed");

    let chain = folder.path().join("chain.toml");
    fs::write(&chain, "[[chain]]\nnf = \"meter\"\noutput = \"flows.jsonl\"\n").expect("written");
    let output = run(packetloom().arg("run").arg(&chain).arg("-r").arg(edge()).args(["-w", "/dev/full"]));
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(names(folder.path()), ["chain.toml"], "no flows of a run that failed, whole or in part");

    let output = run(packetloom().args([
        "generate",
        "traffic",
        "--packets",
        "50000",
        "--flows",
        "9",
        "-w",
        "/dev/full",
    ]));
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("No space left"), "{}", stderr(&output));
}

#[test]
fn an_existing_output_survives_a_run_that_fails() {
    let folder = folder();
    let flows = folder.path().join("flows.jsonl");
    fs::write(&flows, "of an earlier run\n").expect("written");
    let output = run(packetloom().arg("meter").arg("-r").arg("/nonexistent.pcap").arg("-o").arg(&flows));
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(fs::read_to_string(&flows).expect("text"), "of an earlier run\n");
    assert_eq!(names(folder.path()), ["flows.jsonl"]);
}

#[test]
fn a_closed_pipe_is_no_error() {
    let folder = folder();
    let capture = folder.path().join("t.pcap");
    succeed(
        packetloom()
            .args(["generate", "traffic", "--packets", "60000", "--flows", "30000", "-w"])
            .arg(&capture),
    );
    let mut child = packetloom()
        .arg("meter")
        .arg("-r")
        .arg(&capture)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("started");
    let mut line = String::new();
    BufReader::with_capacity(64, child.stdout.take().expect("a pipe")).read_line(&mut line).expect("a line");
    assert!(line.starts_with("{\"flowStart"));
    let output = child.wait_with_output().expect("ended");
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), ""));
}

#[test]
fn inputs_that_are_no_captures_are_refused() {
    let folder = folder();
    let file = folder.path().join("in");
    let gzip_of_nothing: &[u8] = &[0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let cases: [(&[u8], &str); 7] = [
        (b"", "empty"),
        (b"\n", "not a capture"),
        (b"hello, this is text and no capture", "it looks like text"),
        (b"\x01\x02\x03\x04\x05\x06\x07\x08 no capture", "01 02 03 04"),
        (&[0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0], "cut within its pcap file header"),
        (&[0x0a, 0x0d, 0x0d, 0x0a, 28, 0, 0, 0, 0x4d, 0x3c, 0x2b, 0x1a], "cut within its pcapng file header"),
        (gzip_of_nothing, "empty"),
    ];
    for (bytes, expected) in cases {
        fs::write(&file, bytes).expect("written");
        for stdin in [false, true] {
            let mut command = packetloom();
            command.args(["meter", "-r"]).arg(if stdin { Path::new("-") } else { &file });
            command.stdin(if stdin { fs::File::open(&file).expect("a file").into() } else { Stdio::null() });
            let output = run(&mut command);
            assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{expected}");
            assert!(stderr(&output).contains(expected), "{expected:?} in {}", stderr(&output));
        }
    }
    let output = run(packetloom().args(["meter", "-r"]).arg(folder.path()));
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn a_capture_cut_at_every_byte_gives_its_whole_records() {
    let folder = folder();
    let (cut, summary) = (folder.path().join("cut.pcap"), folder.path().join("summary.json"));
    let whole = packets::pcap(
        "0.0 tcp 10.0.0.1:1 > 10.0.0.2:80 flags S\n0.5 arp\n1.0 udp [::1]:1 > [::2]:53 payload 9",
    );
    let mut ends = vec![24];
    while let Some(header) = whole.get(ends[ends.len() - 1] + 8..ends[ends.len() - 1] + 12) {
        let len = u32::from_le_bytes(header.try_into().expect("four bytes")) as usize;
        ends.push(ends[ends.len() - 1] + 16 + len);
    }
    for len in 0..=whole.len() {
        fs::write(&cut, &whole[..len]).expect("written");
        let output =
            run(packetloom().arg("meter").arg("-r").arg(&cut).args(["-o", "-", "--summary"]).arg(&summary));
        if len < 24 {
            assert_eq!(output.status.code(), Some(1), "{len} bytes");
            continue;
        }
        assert_eq!(output.status.code(), Some(0), "{len} bytes: {}", stderr(&output));
        let frames = ends.iter().filter(|&&end| end <= len).count() - 1;
        let summary = json(&summary);
        assert_eq!(summary["frames"], frames, "{len} bytes");
        assert_eq!(summary["truncated"], !ends.contains(&len), "{len} bytes");
        assert_eq!(stderr(&output).contains("warning"), !ends.contains(&len), "{len} bytes");
    }
}

#[test]
fn standard_input_and_output_work_for_captures() {
    let folder = folder();
    let chain = folder.path().join("chain.toml");
    fs::write(&chain, "[[chain]]\nnf = \"meter\"\n").expect("written");
    let mut child = packetloom()
        .args(["run", "-r", "-", "-w", "-"])
        .arg(&chain)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("started");
    let capture = fs::read(edge()).expect("the capture");
    let mut stdin = child.stdin.take().expect("a pipe");
    let input = capture.clone();
    let writer = std::thread::spawn(move || stdin.write_all(&input));
    let mut output = Vec::new();
    child.stdout.take().expect("a pipe").read_to_end(&mut output).expect("read");
    writer.join().expect("joined").expect("written");
    assert!(child.wait().expect("ended").success());
    assert!(output[24..] == capture[24..], "everything passes, byte for byte");
}

#[test]
fn the_first_signal_drains_and_the_summary_is_written() {
    let folder = folder();
    let summary = folder.path().join("summary.json");
    let flows = folder.path().join("flows.jsonl");
    let mut child = packetloom()
        .args(["meter", "-r", "-", "--summary"])
        .arg(&summary)
        .arg("-o")
        .arg(&flows)
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("started");
    let mut stdin = child.stdin.take().expect("a pipe");
    let capture = packets::pcap("0.0 tcp 10.0.0.1:1 > 10.0.0.2:80\n0.5 udp 10.0.0.1:1 > 10.0.0.2:80");
    // The second record is not whole: more is on its way when the signal comes.
    stdin.write_all(&capture[..capture.len() - 5]).expect("written");
    stdin.flush().expect("written");
    let part_is_there = || names(folder.path()).iter().any(|name| name.ends_with(".part"));
    let start = Instant::now();
    while !part_is_there() && start.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(part_is_there(), "records are not under their name before they are whole");
    let pid = rustix::process::Pid::from_child(&child);
    support::wait_for_handler(&child, rustix::process::Signal::USR1);
    // The first packet was taken.
    let mut said = std::io::BufReader::new(child.stderr.take().expect("a pipe"));
    let mut line = String::new();
    while !line.contains("received 1,") {
        rustix::process::kill_process(pid, rustix::process::Signal::USR1).expect("signalled");
        std::thread::sleep(Duration::from_millis(10));
        line.clear();
        assert!(said.read_line(&mut line).expect("text") > 0, "it has ended");
    }
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("signalled");
    let mut rest = String::new();
    said.read_to_string(&mut rest).expect("text");
    let status = child.wait().expect("ended");
    assert_eq!(status.code(), Some(0), "{rest}");
    assert_eq!(json(&summary)["frames"], 1);
    assert_eq!(json(&summary)["truncated"], false, "stopped, not cut");
    assert_eq!(support::json_lines(&flows).len(), 1);
    assert_eq!(names(folder.path()), ["flows.jsonl", "summary.json"]);
    drop(stdin);
}

#[test]
fn bad_chains_name_file_line_and_what_was_expected() {
    let folder = folder();
    let chain = folder.path().join("chain.toml");
    fs::write(folder.path().join("bad.rules"), "permit ip from any to any\n").expect("written");
    fs::write(
        folder.path().join("no-action.rules"),
        "@10.0.0.0/8\t0.0.0.0/0\t0 : 65535\t0 : 65535\t0x06/0xFF\n",
    )
    .expect("written");
    let cases = [
        ("[sorce]\n", 1, "unknown key \"sorce\"; expected one of source, flows, chain, sink, run"),
        ("[source]\ncapture = 5\n", 2, "expected a capture in quotes, or several: [\"a.pcap\", \"b.pcap\"]"),
        ("\n[run]\nworkers = 0\n", 3, "0; expected a number from 1 to 256"),
        ("[run]\nworker = 2\n", 2, "unknown field `worker`, expected one of"),
        ("[run]\nnon_ip = \"maybe\"\n", 2, "unknown variant `maybe`, expected `pass` or `drop`"),
        ("[run]\nbatch = 70000\n", 2, "70000; expected a number from 1 to 65535"),
        ("[[chain]]\n", 1, "[[chain]] without nf; expected nf = \"acl\" or \"balancer\" or"),
        ("[[chain]]\nnf = \"nat\"\n", 2, "nf is \"nat\"; expected \"acl\" or \"balancer\" or"),
        ("[[chain]]\nnf = 7\n", 2, "nf is integer"),
        ("[chain]\nnf = \"acl\"\n", 1, "chain is a table; expected tables: [[chain]]"),
        ("[[chain]]\nnf = \"acl\"\n", 1, "missing field `rules`"),
        (
            "[[chain]]\nnf = \"meter\"\nidle = \"3s\"\n",
            3,
            "unknown field `idle`, expected one of `idle_timeout`",
        ),
        ("[[chain]]\nnf = \"meter\"\nidle_timeout = \"3 parsecs\"\n", 3, "expected a time such as \"30s\""),
        ("[[chain]]\nnf = \"meter\"\nidle_timeout = 3\n", 3, "expected a time in quotes"),
        ("[[chain]]\nnf = \"meter\"\nmax_flows = 0\n", 3, "0; expected a number from 1 to 2147483648"),
        (
            "[flows.\"meter 1\"]\nby = \"5-tuple\"\n[[chain]]\nnf = \"counter\"\nflows = \"meter 1\"\n[[chain]]\nnf = \"meter\"\n",
            7,
            "meter: flows \"meter 1\" are those that a function has to itself; expected another name",
        ),
        (
            "[flows.\"meter 1\"]\nby = \"5-tuple\"\n[[chain]]\nnf = \"meter\"\n[[chain]]\nnf = \"counter\"\nflows = \"meter 1\"\n",
            6,
            "counter: flows \"meter 1\" are those that a function has to itself; expected another name",
        ),
        ("[[chain]]\nnf = \"acl\"\nrules = \"none.rules\"\n", 2, "none.rules: No such file"),
        (
            "[[chain]]\nnf = \"acl\"\nrules = \"bad.rules\"\n",
            2,
            "bad.rules:1: protocol \"ip\"; expected any, a name",
        ),
        (
            "[[chain]]\nnf = \"acl\"\nrules = \"no-action.rules\"\n",
            2,
            "no-action.rules:1: the rule has no action; expected rule_action",
        ),
        (
            "[flows.a]\nby = \"connection\"\ntimeout = \"5m\"\n[[chain]]\nnf = \"conntrack\"\nflows = \"a\"\n",
            5,
            "conntrack: flows \"a\" are forgotten after 5m, before the longest of the timeouts has passed; expected [flows] with \
             timeout = \"124m\" or more",
        ),
        (
            "[[chain]]\nnf = \"conntrack\"\ntimeouts = { other = \"0\" }\n",
            2,
            "conntrack: flows \"connection\" are forgotten after 124m, before the longest of the timeouts has passed; expected \
             [flows] with timeout = \"0\"",
        ),
        (
            "[[chain]]\nnf = \"conntrack\"\nflows = \"5-tuple\"\n",
            2,
            "conntrack: flows \"5-tuple\" are by \"5-tuple\"; expected by = \"connection\"",
        ),
        ("[flows.a]\n", 1, "missing field `by`"),
        (
            "[flows.a]\nby = \"colour\"\n",
            2,
            "unknown variant `colour`, expected one of `5-tuple`, `source`, `initiator`, `connection`",
        ),
        ("[flows.a]\nby = \"source\"\nmax_flows = 0\n", 3, "0; expected a number from 1 to 2147483648"),
        (
            "[[chain]]\nnf = \"counter\"\nflows = \"a\"\n",
            2,
            "counter: flows is \"a\"; expected one of \"5-tuple\", \"source\", \"initiator\", \"connection\"",
        ),
        (
            "[[chain]]\nnf = \"source-counter\"\nsessions = \"a\"\n",
            2,
            "source-counter: sessions is \"a\"; expected one of \"5-tuple\", \"source\", \"initiator\", \"connection\"",
        ),
        (
            "[[chain]]\nnf = \"source-counter\"\nsessions = \"source\"\n",
            2,
            "source-counter: flows \"source\" are by \"source\"; expected by = \"5-tuple\"",
        ),
        (
            "[[chain]]\nnf = \"scan\"\nmethod = \"trw\"\nflows = \"source\"\n",
            2,
            "scan: flows \"source\" are by \"source\"; expected by = \"initiator\"",
        ),
        (
            "[[chain]]\nnf = \"scan\"\nmethod = \"trw\"\ntheta1 = 0.9\n",
            2,
            "scan: theta0 0.8; expected more than theta1, 0.9",
        ),
        (
            "[[chain]]\nnf = \"scan\"\nmethod = \"trw\"\nalpha = 1.0\n",
            4,
            "1; expected a number above 0 and below 1",
        ),
        (
            "[flows.a]\nby = \"source\"\n[[chain]]\nnf = \"balancer\"\nflows = \"a\"\n\
             services = [{ address = \"1.1.1.1\", backends = [{ address = \"2.2.2.2\" }] }]\n",
            4,
            "balancer: flows \"a\" are by \"source\"; expected by = \"5-tuple\"",
        ),
        ("[[chain]]\nnf = \"limiter\"\nrate = \"1Mbit/s\"\n", 1, "missing field `burst`"),
        (
            "[[chain]]\nnf = \"limiter\"\nrate = \"1Mbit/s\"\nburst = \"3packets\"\n",
            2,
            "limiter: rate is in bytes and burst in packets; expected the same",
        ),
        ("[[chain]]\nnf = \"limiter\"\nrate = \"1 Mbit\"\nburst = \"1kB\"\n", 3, "\"1 Mbit\"; expected"),
        ("[[chain]]\nnf = \"balancer\"\nservices = []\n", 2, "no services; expected one or more"),
        (
            "[[chain]]\nnf = \"balancer\"\n[[chain.services]]\naddress = \"1.1.1.1\"\n\
             backends = [{ address = \"::1\" }]\n",
            2,
            "backend ::1 of 1.1.1.1; expected the same IP version",
        ),
        (
            "[[chain]]\nnf = \"balancer\"\n[[chain.services]]\naddress = \"1.1.1.1\"\n\
             backends = [{ address = \"2.2.2.2\", weight = 0 }]\n",
            2,
            "weight",
        ),
        ("[run\n", 1, "unclosed table, expected `]`"),
        ("[run]\nworkers = 1\nworkers = 2\n", 3, "duplicate key"),
    ];
    for (text, line, expected) in cases {
        fs::write(&chain, text).expect("written");
        for verb in ["check", "run"] {
            let output = run(packetloom().arg(verb).arg(&chain));
            assert_eq!(output.status.code(), Some(78), "{verb} {text:?}: {}", stderr(&output));
            let message = stderr(&output);
            let start = format!("packetloom: {}:{line}: ", chain.display());
            assert!(message.starts_with(&start), "{start:?} begins {message:?} for {text:?}");
            assert!(message.contains(expected), "{expected:?} in {message:?} for {text:?}");
            assert_eq!(message.lines().count(), 1, "{message}");
        }
    }
    let output = run(packetloom().args(["check", "/nonexistent/chain.toml"]));
    assert_eq!(output.status.code(), Some(78));
    fs::write(&chain, [0xff, 0xfe]).expect("written");
    assert_eq!(run(packetloom().arg("check").arg(&chain)).status.code(), Some(78));
}

#[test]
fn bad_rules_are_78_and_bad_headers_1() {
    let folder = folder();
    let (rules, headers) = (folder.path().join("rules"), folder.path().join("headers"));
    let classify = |rules: &Path, headers: &Path| {
        run(packetloom().args(["acl", "classify", "--rules"]).arg(rules).arg("--headers").arg(headers))
    };
    fs::write(&rules, "# fine\npermit tcp from 10.0.0.1/8 to any\n").expect("written");
    fs::write(&headers, "tcp 10.0.0.1:1 > 10.0.0.2:2\nudp 10.0.0.1 > 10.0.0.2:2\n").expect("written");
    let output = classify(&rules, &headers);
    assert_eq!(output.status.code(), Some(78));
    assert!(
        stderr(&output).contains("rules:2: \"10.0.0.1/8\" has bits set past its length; expected 10.0.0.0/8")
    );
    fs::write(&rules, "permit tcp from 10.0.0.0/8 to any\n").expect("written");
    let output = classify(&rules, &headers);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0));
    assert!(stderr(&output).contains("headers:2: a port on one side only"), "{}", stderr(&output));
    assert_eq!(classify(Path::new("/nonexistent"), &headers).status.code(), Some(1));
}

#[test]
fn classify_answers_in_the_order_of_the_headers() {
    let folder = folder();
    let (rules, headers) = (folder.path().join("rules"), folder.path().join("headers"));
    fs::write(
        &rules,
        "# a comment does not count\ndeny tcp from 2001:db8::/32 to any port 22\n\npermit any from any to any port 53\npermit icmp from 10.0.0.0/8 to any type 8\n",
    )
    .expect("written");
    fs::write(
        &headers,
        "udp 10.0.0.1:1 > 10.0.0.2:53\ntcp [2001:db8::1]:1 > [::1]:22\ntcp [2001:db9::1]:1 > [::1]:22\nicmp 10.0.0.1 > 10.0.0.2 type 8\nudp [::1]:1 > [::2]:53\nicmp 10.0.0.1 > 10.0.0.2 type 0\n",
    )
    .expect("written");
    for classifier in Kind::ALL.map(Kind::name) {
        let mut command = packetloom();
        command
            .args(["acl", "classify", "--classifier", classifier, "--rules"])
            .arg(&rules)
            .arg("--headers")
            .arg(&headers);
        assert_eq!(succeed(&mut command), "1\n0\n-1\n2\n1\n-1\n", "{classifier}");
    }
}

#[test]
fn the_count_of_packets_can_be_limited() {
    let folder = folder();
    let summary = folder.path().join("summary.json");
    for workers in ["1", "3"] {
        let mut command = packetloom();
        command.arg("meter").arg("-r").arg(edge()).args([
            "-c",
            "100",
            "-o",
            "/dev/null",
            "--workers",
            workers,
        ]);
        succeed(command.arg("--summary").arg(&summary));
        assert_eq!(json(&summary)["frames"], 100);
    }
}

#[test]
fn wrong_usage_is_2() {
    let chain = root().join("examples/edge/chain.toml");
    let chain = chain.to_str().expect("text");
    for arguments in [
        vec![],
        vec!["meter"],
        vec!["meter", "-r", "x", "--idle-timeout", "soon"],
        vec!["meter", "-r", "x", "--workers", "0"],
        vec!["meter", "-r", "x", "-o", "-", "--summary", "-"],
        vec!["run", chain, "-w", "-", "--json"],
        vec!["generate", "traffic", "-w", "/dev/null", "--packets", "5", "--flows", "6"],
        vec!["man", "nonsense"],
    ] {
        let output = run(packetloom().args(&arguments));
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", stderr(&output));
    }
}

#[test]
fn help_man_pages_completions_and_schema_come_from_the_definitions() {
    assert!(succeed(packetloom().arg("--help")).contains("Exit codes"));
    assert!(succeed(packetloom().args(["meter", "--help"])).contains("--idle-timeout"));
    assert!(succeed(packetloom().arg("man")).contains(".TH PACKETLOOM"));
    assert!(succeed(packetloom().args(["man", "acl-classify"])).contains("ClassBench"));
    assert!(succeed(packetloom().args(["completions", "bash"])).contains("_packetloom"));
    let schema: serde_json::Value = serde_json::from_str(&succeed(packetloom().arg("schema"))).expect("JSON");
    let functions = schema["properties"]["chain"]["items"]["oneOf"].as_array().expect("functions");
    let names: Vec<_> =
        functions.iter().map(|f| f["properties"]["nf"]["const"].as_str().expect("a name")).collect();
    assert_eq!(
        names,
        [
            "acl",
            "balancer",
            "conntrack",
            "counter",
            "domains",
            "filter",
            "limiter",
            "meter",
            "policer",
            "sample",
            "scan",
            "source-counter",
            "strings"
        ]
    );
    assert_eq!(functions[0]["required"], serde_json::json!(["nf", "rules"]));
    assert_eq!(schema["properties"]["run"]["additionalProperties"], false);
    let source = schema["properties"]["source"].to_string();
    assert!(
        ["backend", "auto", "af_packet", "af_xdp"].iter().all(|word| source.contains(&format!("\"{word}\"")))
    );
    assert!(succeed(packetloom().args(["run", "--help"])).contains("--backend <BACKEND>"));
}

#[test]
fn a_plan_says_which_definitions_a_function_keeps_state_by() {
    let folder = folder();
    let chain = folder.path().join("chain.toml");
    let plan = |text: &str| {
        fs::write(&chain, text).expect("written");
        succeed(packetloom().arg("check").arg(&chain))
    };
    let text = plan("[[chain]]\nnf = \"source-counter\"\n[run]\nworkers = 4\n");
    let of_source = "flows     source: source address, forgotten after 1m, at most 1048576, then one not used for long goes; an entry of 64 \
                     bytes (IPv6 64) with the state of function 1, looked up once\n";
    let of_session = "flows     5-tuple: IP version, protocol, unordered pair of (address, port), forgotten after 1m, at most 1048576, then \
                      one not used for long goes; an entry of 64 bytes (IPv6 64) with the state of function 1, looked up once\n";
    assert!(text.contains(of_source) && text.contains(of_session), "{text}");
    let shared = "workers   4 workers, packets spread by flow: each flow's state is exact, order in files is kept; max_flows is divided among \
                  the workers; source (by source) is shared by them: totals are exact, packets that came less than 10 ms apart may take \
                  effect in another order\n";
    assert!(text.contains(shared), "{text}");
    let meter = "[[chain]]\nnf = \"meter\"\noutput = \"x\"\n";
    let text = plan(&format!("[[chain]]\nnf = \"conntrack\"\n{meter}[run]\nworkers = 4\n"));
    assert!(text.contains("workers   1 worker, since no way to spread packets"), "{text}");
    let text = plan("[[chain]]\nnf = \"scan\"\nmethod = \"trw\"\n[run]\nworkers = 4\n");
    assert!(text.contains("workers   4 workers, packets spread by initiator"), "{text}");
}

#[test]
fn benchmarks_print_one_json_object_a_line() {
    let arguments = ["bench", "meter", "--packets", "20000", "--flows", "900", "--rounds", "2", "--json"];
    let line: serde_json::Value =
        serde_json::from_str(&succeed(packetloom().args(arguments))).expect("one object");
    for name in ["mpps", "mpps_cpu", "ns_per_packet", "p25", "p75"] {
        assert!(line[name].as_f64().is_some_and(|value| value > 0.0), "{name} of {line}");
    }
    assert_eq!(
        (line["packets"].as_u64(), line["batch"].as_u64(), line["device"].as_str()),
        (Some(20_000), Some(512), Some("cpu"))
    );

    let folder = folder();
    let (rules, headers) = (folder.path().join("rules"), folder.path().join("headers"));
    fs::write(&rules, "permit tcp from 10.0.0.0/8 to any port 80\n").expect("written");
    fs::write(&headers, "tcp 10.0.0.1:1 > 10.0.0.2:80\n".repeat(500)).expect("written");
    let mut command = packetloom();
    command.args(["bench", "acl", "--json", "--batch", "32", "--classifier", "linear", "--rules"]);
    let line = succeed(command.arg(&rules).arg("--headers").arg(&headers));
    let line: serde_json::Value = serde_json::from_str(&line).expect("one object");
    assert_eq!(
        (line["classifier"].as_str(), line["batch"].as_u64(), line["packets"].as_u64()),
        (Some("linear"), Some(32), Some(500))
    );
    assert!(line["mpps"].as_f64().is_some_and(|value| value > 0.0));
}

#[test]
fn classifiers_are_measured_side_by_side() {
    let folder = folder();
    let (rules, headers) = (folder.path().join("rules"), folder.path().join("headers"));
    fs::write(&rules, "permit tcp from 10.0.0.0/8 to any port 80\ndeny any from any to any\n")
        .expect("written");
    fs::write(&headers, "tcp 10.0.0.1:1 > 10.0.0.2:80\nudp [::1]:1 > [::2]:2\n".repeat(100))
        .expect("written");
    let bench = |arguments: &[&str]| {
        let mut command = packetloom();
        command.args(["bench", "acl", "--rounds", "1", "--rules"]).arg(&rules).arg("--headers").arg(&headers);
        command.args(arguments);
        command
    };
    let lines = |arguments: &[&str]| -> Vec<(String, u64)> {
        let text = succeed(bench(arguments).arg("--json"));
        text.lines()
            .map(|line| serde_json::from_str::<serde_json::Value>(line).expect("an object a line"))
            .map(|line| {
                let name = line["classifier"].as_str().expect("a name").to_owned();
                (name, line["batch"].as_u64().expect("a number"))
            })
            .collect()
    };
    let one = lines(&["--classifier", "tuple-merge,linear,tuple-merge", "--batch", "1,64"]);
    let pair = |name: &str, batch| (name.to_owned(), batch);
    assert_eq!(one, [pair("tuple-merge", 1), pair("linear", 1), pair("tuple-merge", 64), pair("linear", 64)]);
    let all: Vec<_> = Kind::ALL.iter().map(|kind| pair(kind.name(), 256)).collect();
    assert_eq!(lines(&["--classifier", "all"]), all);
    assert_eq!(lines(&[]), [pair(Kind::default().name(), 256)]);

    let table = succeed(&mut bench(&["--classifier", "all", "--mix"]));
    let rows: Vec<_> = table.lines().collect();
    assert_eq!(rows[0], "acl rules, mixed headers: 2 rules, 200 headers, 1 rounds");
    assert_eq!(rows[1].split_whitespace().take(3).collect::<Vec<_>>(), ["classifier", "batch", "mpps_cpu"]);
    assert_eq!(rows.len(), 2 + Kind::ALL.len(), "{table}");

    for (arguments, expected) in [
        (["--classifier", "linear,best"], "no classifier \"best\""),
        (["--classifier", ""], "no classifier \"\""),
        (["--batch", "0"], "--batch"),
        (["--batch", "16,"], "--batch"),
        (["--peer", "iptables"], "no peer \"iptables\"; expected rte_acl"),
    ] {
        let output = run(&mut bench(&arguments));
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(stderr(&output).contains(expected), "{arguments:?}: {}", stderr(&output));
    }
    let output = run(&mut bench(&["--peer", "rte_acl"]));
    if cfg!(feature = "dpdk") {
        assert!(output.status.success(), "{}", stderr(&output));
    } else {
        assert_eq!(output.status.code(), Some(2));
        assert!(stderr(&output).contains("--features dpdk"), "{}", stderr(&output));
    }
}

#[test]
fn generated_rules_and_headers_can_be_read_and_the_classifiers_agree() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    for (style, family, format) in [
        ("acl", "", "classbench"),
        ("fw", "--ipv6", "native"),
        ("ipc", "", "native"),
        ("acl", "--ipv6", "native"),
        ("ipc", "--ipv6", "classbench"),
    ] {
        let mut command = packetloom();
        command.args(["generate", "rules", "--rules", "300", "--style", style, "--format", format, "-o"]);
        command.arg(at("rules")).args(Some(family).filter(|family| !family.is_empty()));
        succeed(&mut command);
        for mix in [None, Some("--mix")] {
            let mut command = packetloom();
            command.args(["generate", "headers", "--headers", "3000", "--rules"]).arg(at("rules"));
            succeed(command.arg("-o").arg(at("headers")).args(mix));
            let all = Kind::ALL.map(|kind| {
                let mut command = packetloom();
                command.args(["acl", "classify", "--classifier", kind.name(), "--rules"]).arg(at("rules"));
                succeed(command.arg("--headers").arg(at("headers")))
            });
            assert_eq!(all[0].lines().count(), 3000, "{style} {family} {mix:?}");
            assert!(all.iter().all(|out| *out == all[0]), "{style} {family} {mix:?}: the classifiers differ");
            let positions: std::collections::BTreeSet<_> = all[0].lines().collect();
            assert!(
                !positions.contains("-1") && positions.len() > 20,
                "the last rule matches everything: {positions:?}"
            );
        }
    }
    // ClassBench's headers are IPv4 only; the last rules were IPv6.
    let arguments = ["generate", "headers", "--format", "classbench", "--rules"];
    let output = run(packetloom().args(arguments).arg(at("rules")));
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("IPv4 only; expected --format native"));
}

#[test]
fn generated_traffic_has_the_flows_that_were_asked_for() {
    let folder = folder();
    let (capture, summary) = (folder.path().join("t.pcap"), folder.path().join("summary.json"));
    let mut command = packetloom();
    command.args([
        "generate",
        "traffic",
        "--packets",
        "30000",
        "--flows",
        "2000",
        "--snap",
        "96",
        "--seed",
        "7",
        "-w",
    ]);
    succeed(command.arg(&capture));
    let mut command = packetloom();
    command.args(["meter", "-o", "/dev/null", "--idle-timeout", "0", "--active-timeout", "0", "-r"]);
    succeed(command.arg(&capture).arg("--summary").arg(&summary));
    let summary = json(&summary);
    assert_eq!(
        (summary["frames"].as_u64(), summary["counted_packets"].as_u64()),
        (Some(30_000), Some(30_000))
    );
    assert_eq!(summary["biflows"], 2000);
}

#[test]
fn two_outputs_to_one_file_are_refused() {
    let folder = folder();
    let chain = folder.path().join("chain.toml");
    let text = "[[chain]]\nnf = \"meter\"\noutput = \"x\"\n[sink]\ncapture = \"./x\"\n";
    fs::write(&chain, text).expect("written");
    let output = run(packetloom().arg("check").arg(&chain));
    assert_eq!(output.status.code(), Some(78));
    assert!(stderr(&output).contains("more than one output to"), "{}", stderr(&output));
    assert_eq!(run(packetloom().arg("run").arg(&chain).arg("-r").arg(edge())).status.code(), Some(78));
    let flows = folder.path().join("flows");
    let output = run(packetloom()
        .arg("meter")
        .arg("-r")
        .arg(edge())
        .arg("-o")
        .arg(&flows)
        .arg("--summary")
        .arg(&flows));
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(names(folder.path()), ["chain.toml"]);
    // A device takes any number.
    succeed(packetloom().arg("meter").arg("-r").arg(edge()).args([
        "-o",
        "/dev/null",
        "--summary",
        "/dev/null",
    ]));
}

#[test]
fn a_run_that_fails_late_leaves_nothing() {
    let folder = folder();
    let chain = folder.path().join("chain.toml");
    fs::write(&chain, "[[chain]]\nnf = \"meter\"\noutput = \"/dev/full\"\n[sink]\ncapture = \"y.pcap\"\n")
        .expect("written");
    assert_eq!(run(packetloom().arg("run").arg(&chain).arg("-r").arg(edge())).status.code(), Some(1));
    let flows = folder.path().join("flows");
    for summary in ["/nonexistent/s.json", "/dev/full"] {
        let mut command = packetloom();
        command.arg("meter").arg("-r").arg(edge()).arg("-o").arg(&flows).args(["--summary", summary]);
        assert_eq!(run(&mut command).status.code(), Some(1), "{summary}");
    }
    assert_eq!(names(folder.path()), ["chain.toml"]);
}

#[test]
fn nobody_has_to_listen_to_what_is_said() {
    let full = || fs::OpenOptions::new().write(true).open("/dev/full").expect("a device");
    let status =
        packetloom().arg("meter").arg("-r").arg(edge()).args(["-o", "/dev/null"]).stderr(full()).status();
    assert_eq!(status.expect("started").code(), Some(0));
    let status = packetloom().args(["check", "/nonexistent"]).stderr(full()).status();
    assert_eq!(status.expect("started").code(), Some(78));
}

#[test]
fn standard_output_by_another_name_is_not_replaced() {
    let folder = folder();
    let path = folder.path().join("all");
    fs::write(&path, "first\n").expect("written");
    let file = fs::OpenOptions::new().append(true).open(&path).expect("a file");
    let mut command = packetloom();
    command.arg("meter").arg("-r").arg(edge()).args(["-o", "/dev/stdout"]).stdout(file).stderr(Stdio::null());
    assert!(command.status().expect("started").success());
    let text = fs::read_to_string(&path).expect("text");
    assert!(text.starts_with("first\n{\"flowStart"), "{}", &text[..40]);
}

#[test]
fn a_signal_before_the_capture_begins_gives_an_empty_summary() {
    let folder = folder();
    let summary = folder.path().join("summary.json");
    for sent in [&b""[..], &[0xd4, 0xc3, 0xb2], &[0x0a, 0x0d, 0x0d, 0x0a, 28, 0]] {
        let mut child = packetloom()
            .args(["meter", "-r", "-", "-o", "/dev/null", "--summary"])
            .arg(&summary)
            .stdin(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("started");
        let mut stdin = child.stdin.take().expect("a pipe");
        stdin.write_all(sent).expect("written");
        support::wait_for_handler(&child, rustix::process::Signal::INT);
        // The bytes that were sent are read.
        std::thread::sleep(Duration::from_millis(50));
        rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::INT)
            .expect("signalled");
        assert!(child.wait().expect("ended").success(), "{sent:?}");
        assert_eq!(
            (json(&summary)["frames"].as_u64(), json(&summary)["truncated"].as_bool()),
            (Some(0), Some(false))
        );
        drop(stdin);
    }
}

/// A pcapng file with one interface, nanoseconds, and one frame.
fn pcapng(nanos: u64, frame: &[u8]) -> Vec<u8> {
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>();
    let mut file = words(&[0x0a0d_0d0a, 28, 0x1a2b_3c4d, 1, u32::MAX, u32::MAX, 28]);
    file.extend(words(&[1, 32, 1, 0, 9 | 1 << 16, 9, 0, 32]));
    let padded = frame.len().next_multiple_of(4);
    let len = (32 + padded) as u32;
    let captured = frame.len() as u32;
    file.extend(words(&[6, len, 0, (nanos >> 32) as u32, nanos as u32, captured, captured]));
    file.extend(frame);
    file.resize(file.len() + padded - frame.len(), 0);
    file.extend(len.to_le_bytes());
    file
}

#[test]
fn written_captures_keep_nanoseconds_and_can_be_read_again() {
    let folder = folder();
    let (input, output) = (folder.path().join("in.pcapng"), folder.path().join("out.pcap"));
    let chain = folder.path().join("chain.toml");
    fs::write(&chain, "").expect("written");
    let mut frame = packets::packet("0 udp 10.0.0.1:1 > 10.0.0.2:2 payload 100").bytes;
    for len in [frame.len(), 2 << 20] {
        frame.resize(len, 0);
        fs::write(&input, pcapng(1_700_000_000_123_456_789, &frame)).expect("written");
        succeed(packetloom().arg("run").arg(&chain).arg("-r").arg(&input).arg("-w").arg(&output));
        let written = fs::read(&output).expect("a capture");
        // Seconds and fraction of the first record stand behind the file header.
        let stamp = [1_700_000_000u32, 123_456_789].map(u32::to_le_bytes).concat();
        assert_eq!(written[24..32], stamp[..]);
        let summary = succeed(packetloom().arg("run").arg(&chain).arg("-r").arg(&output).arg("--json"));
        let summary: serde_json::Value = serde_json::from_str(&summary).expect("JSON");
        assert_eq!(
            (summary["passed"].as_u64(), summary["truncated"].as_bool()),
            (Some(1), Some(false)),
            "{len} bytes"
        );
        assert_eq!(summary["wire_bytes"], len, "the length on the wire stays");
    }
}

#[test]
fn how_a_capture_arrives_does_not_matter() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    // A flow's second packet comes late, when others have brought time far ahead.
    let mut lines = String::from("0.0 udp 10.0.0.1:1 > 10.0.0.2:2\n");
    for packet in 0..3000 {
        lines += &format!(
            "{}.0 udp 10.0.{}.{}:1 > 10.0.0.2:2\n",
            100 + packet / 10,
            1 + packet / 200,
            packet % 200
        );
    }
    lines += "20.0 udp 10.0.0.2:2 > 10.0.0.1:1\n";
    let capture = packets::pcap(&lines);
    fs::write(at("plain.pcap"), &capture).expect("written");
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(&capture).expect("memory");
    fs::write(at("packed.pcap.gz"), gzip.finish().expect("memory")).expect("written");
    let mut results = Vec::new();
    for (name, workers, stdin) in [
        ("plain.pcap", "1", false),
        ("plain.pcap", "3", false),
        ("packed.pcap.gz", "1", false),
        ("packed.pcap.gz", "4", false),
        ("plain.pcap", "1", true),
        ("packed.pcap.gz", "2", true),
    ] {
        let mut command = packetloom();
        command.args(["meter", "--workers", workers, "--summary"]).arg(at("summary.json"));
        if stdin {
            command.args(["-r", "-"]).stdin(fs::File::open(at(name)).expect("a capture"));
        } else {
            command.arg("-r").arg(at(name));
        }
        let text = succeed(&mut command);
        let mut records: Vec<_> = text.lines().map(str::to_owned).collect();
        records.sort_unstable();
        results.push((records, json(&at("summary.json"))));
    }
    assert!(
        results[0].0.iter().any(|record| record.contains("\"reversePacketDeltaCount\":1")),
        "the late packet"
    );
    assert!(results.iter().all(|result| *result == results[0]));
}

#[test]
fn from_a_pipe_idle_flows_are_written_while_others_go_on() {
    for workers in ["1", "8"] {
        let mut child = packetloom()
            .args(["meter", "-r", "-", "--workers", workers])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("started");
        let mut stdin = child.stdin.take().expect("a pipe");
        let mut lines = String::new();
        for flow in 1..=16 {
            lines += &format!("1000.0 udp 10.0.0.{flow}:1 > 10.0.1.1:2\n");
        }
        stdin.write_all(&packets::pcap(&lines)).expect("written");
        let mut reader = BufReader::new(child.stdout.take().expect("a pipe"));
        let records = std::thread::spawn(move || {
            let mut line = String::new();
            (0..16)
                .map(|_| reader.read_line(&mut line))
                .filter(|read| matches!(read, Ok(n) if *n > 0))
                .count()
        });
        // One other flow goes on; the input does not end until the idle ones have come out.
        for second in 1001..1400 {
            let packet = packets::pcap(&format!("{second}.0 udp 10.0.0.99:1 > 10.0.1.1:2"));
            if stdin.write_all(&packet[24..]).is_err() || records.is_finished() {
                break;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let start = Instant::now();
        while !records.is_finished() && start.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(10));
        }
        assert!(records.is_finished(), "with {workers} workers idle flows wait for the end of the input");
        assert_eq!(records.join().expect("read"), 16);
        drop(stdin);
        assert!(child.wait().expect("ended").success());
    }
}

#[test]
fn from_a_pipe_a_record_leaves_within_a_second_of_its_timeout() {
    for workers in ["1", "3"] {
        let mut child = packetloom()
            .args(["meter", "-r", "-", "--idle-timeout", "1s", "--workers", workers])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("started");
        let mut stdin = child.stdin.take().expect("a pipe");
        // A flow of one packet, then others until just before a second after its timeout. No other one is silent for so long.
        let mut lines = String::from("1000.0 udp 10.0.0.1:1 > 10.0.1.1:2\n");
        for packet in 1..=38u64 {
            let nanos = packet * 50_000_000;
            let (second, fraction) = (1_000 + nanos / 1_000_000_000, nanos % 1_000_000_000);
            lines += &format!("{second}.{fraction:09} udp 10.0.0.{}:1 > 10.0.1.1:2\n", 2 + packet % 5);
        }
        stdin.write_all(&packets::pcap(&lines)).expect("written");
        let mut reader = BufReader::new(child.stdout.take().expect("a pipe"));
        // The input goes on, though nothing comes.
        let (say, said) = std::sync::mpsc::channel();
        let records = std::thread::spawn(move || {
            let mut line = String::new();
            while reader.read_line(&mut line).is_ok_and(|len| len > 0) {
                say.send(std::mem::take(&mut line)).expect("somebody waits");
            }
        });
        let record = said.recv_timeout(Duration::from_secs(60));
        let record = record.unwrap_or_else(|_| panic!("with {workers} workers the record waits"));
        assert!(record.contains("\"sourceIPv4Address\":\"10.0.0.1\""), "{record}");
        drop(stdin);
        assert!(child.wait().expect("ended").success());
        records.join().expect("read");
        assert_eq!(said.iter().count(), 5);
    }
}

#[test]
fn wrong_uses_of_standard_input_are_refused() {
    let folder = folder();
    let chain = folder.path().join("chain.toml");
    fs::write(&chain, "[[chain]]\nnf = \"acl\"\nrules = \"-\"\n").expect("written");
    let output = run(packetloom().arg("check").arg(&chain).stdin(Stdio::null()));
    assert_eq!(output.status.code(), Some(78));
    assert!(stderr(&output).contains("expected a file"), "{}", stderr(&output));
    let mut command = packetloom();
    command.args(["acl", "classify", "--rules", "-", "--headers", "-"]).stdin(Stdio::null());
    assert_eq!(run(&mut command).status.code(), Some(2));
}

#[test]
fn a_closed_pipe_costs_no_other_output() {
    let folder = folder();
    let summary = folder.path().join("summary.json");
    // As little output as fits into a buffer, so that only the end of the run meets the closed pipe.
    let mut child = packetloom()
        .args(["meter", "-r", "-", "--summary"])
        .arg(&summary)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("started");
    drop(child.stdout.take());
    let mut stdin = child.stdin.take().expect("a pipe");
    stdin.write_all(&packets::pcap("0.0 udp 10.0.0.1:1 > 10.0.0.2:2")).expect("written");
    drop(stdin);
    assert_eq!(child.wait().expect("ended").code(), Some(0));
    assert_eq!(json(&summary)["frames"], 1);
}

#[test]
fn json_on_standard_output_goes_beside_a_summary_file() {
    let folder = folder();
    let (chain, summary) = (folder.path().join("chain.toml"), folder.path().join("summary.json"));
    fs::write(&chain, "[run]\nsummary = \"summary.json\"\n").expect("written");
    let text = succeed(packetloom().arg("run").arg(&chain).arg("-r").arg(edge()).arg("--json"));
    assert_eq!(text, fs::read_to_string(&summary).expect("a summary"));
    assert_eq!(json(&summary)["received"], 5061);
}

#[test]
fn chains_are_measured_in_memory() {
    let args = ["bench", "chain", "--flows", "100", "--rounds", "1", "--workers", "2", "--json"];
    let text = succeed(packetloom().args(args));
    let figures: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!((figures["workers"].as_u64(), figures["flows"].as_u64()), (Some(2), Some(100)));
    // The chain that is run unless one is given lets all pass.
    assert_eq!(figures["passed"], 1.0);
    assert!(figures["ns_per_packet"].as_f64() > Some(0.0), "{text}");
    let folder = folder();
    let chain = folder.path().join("chain.toml");
    let by_source = "[[chain]]\nnf = \"counter\"\nflows = \"source\"\n";
    for text in [by_source, "[[chain]]\nnf = \"counter\"\nflows = \"connection\"\n"] {
        fs::write(&chain, text).expect("written");
        succeed(packetloom().args(["bench", "chain"]).arg(&chain).args(&args[2..]));
    }
    assert_eq!(figures["shared"], serde_json::Value::Null);
    let both = format!("{by_source}[[chain]]\nnf = \"counter\"\n");
    fs::write(&chain, &both).expect("written");
    let text = succeed(packetloom().args(["bench", "chain"]).arg(&chain).args(&args[2..]));
    assert_eq!(serde_json::from_str::<serde_json::Value>(&text).expect("JSON")["shared"], "source");
    fs::write(
        &chain,
        format!("{both}[[chain]]\nnf = \"conntrack\"\n[[chain]]\nnf = \"meter\"\noutput = \"x\"\n"),
    )
    .expect("written");
    let output = run(packetloom().args(["bench", "chain"]).arg(&chain).args(&args[2..]));
    assert!(stderr(&output).contains("expected one worker"), "{}", stderr(&output));
    let limiter = "[[chain]]\nnf = \"limiter\"\nrate = \"1packets/s\"\nburst = \"1packets\"\n";
    fs::write(&chain, limiter).expect("written");
    let figures = succeed(packetloom().args(["bench", "chain"]).arg(&chain).args(&args[2..6]).arg("--json"));
    let figures: serde_json::Value = serde_json::from_str(&figures).expect("JSON");
    assert!(figures["passed"].as_f64() < Some(0.01), "{figures}");
}

#[test]
fn the_shared_chain_that_ships_shares_a_table_and_lets_all_pass() {
    let chain = root().join("examples/bench/shared.toml");
    let args = ["--flows", "100", "--rounds", "1", "--workers", "2", "--json"];
    let text = succeed(packetloom().args(["bench", "chain"]).arg(&chain).args(args));
    let figures: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!((figures["shared"].as_str(), figures["passed"].as_f64()), (Some("hosts"), Some(1.0)));
    assert_eq!((figures["evicted"].as_u64(), figures["created"].as_u64()), (Some(0), Some(200)));
}

/// What a benchmark of the default chain prints, a line for each measurement.
fn bench_chain(args: &[&str]) -> Vec<serde_json::Value> {
    let text = succeed(packetloom().args(["bench", "chain", "--rounds", "1", "--json"]).args(args));
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

#[test]
fn chains_are_measured_under_a_load() {
    const OFFERED: [f64; 2] = [0.05, 0.2];
    let measure = || bench_chain(&["--flows", "100", "--offered", "0.05,0.2"]);
    let rate = |figures: &serde_json::Value| figures["mpps"].as_f64().expect("a number");
    // A machine that is halted meanwhile carries less than is offered; not each time.
    let keeps_up = |all: &[serde_json::Value]| {
        all.iter().zip(OFFERED).all(|(figures, offered)| rate(figures) > offered * 0.5)
    };
    let tries: Vec<_> = (0..5)
        .scan(false, |is_done, _| {
            let figures = (!*is_done).then(measure)?;
            *is_done = keeps_up(&figures);
            Some(figures)
        })
        .collect();
    let figures = tries.last().expect("one");
    assert!(keeps_up(figures), "{tries:#?}");
    assert_eq!(figures.len(), 2);
    for (figures, offered) in figures.iter().zip(OFFERED) {
        assert_eq!(figures["offered_mpps"], offered);
        assert!(rate(figures) < offered * 1.1, "{figures}");
        let latencies =
            ["p50", "p99", "p999", "max"].map(|share| figures[format!("latency_us_{share}")].as_f64());
        assert!(latencies[0] > Some(0.0) && latencies.is_sorted(), "{figures}");
    }
    let output = run(packetloom().args(["bench", "chain", "--offered", "0"]));
    assert!(stderr(&output).contains("expected more than 0"), "{}", stderr(&output));
}

#[test]
fn chains_are_measured_while_flows_come_and_go() {
    let number = |figures: &serde_json::Value, name: &str| figures[name].as_u64().expect(name);
    // Each packet of the flood makes an entry, and none takes that of a flow which goes on.
    let flood = &bench_chain(&["--flows", "1000", "--flood", "20000"])[0];
    assert!(number(flood, "flood") >= 20_000, "{flood}");
    assert_eq!(number(flood, "created"), 1000 + number(flood, "flood"));
    assert_eq!(number(flood, "evicted"), number(flood, "created") - (1000 * 5 / 4 + 1024));
    let roomy = &bench_chain(&["--flows", "1000", "--flood", "20000", "--max-flows", "5000"])[0];
    assert_eq!(number(roomy, "evicted"), number(roomy, "created") - 5000);
    // Flows begin again when they were forgotten, unless they never are.
    let new = ["--flows", "100", "--new-flows", "2000000", "--timeout"];
    let comes_again = &bench_chain(&[&new[..], &["1ms"]].concat())[0];
    assert!(number(comes_again, "expired") > 0, "{comes_again}");
    assert!(number(comes_again, "created") >= number(comes_again, "flows"), "{comes_again}");
    assert!(number(comes_again, "flows") > 100, "{comes_again}");
    let never = &bench_chain(&[&new[..], &["0"]].concat())[0];
    assert_eq!(number(never, "expired"), 0);
    // Where hashes are keyed, flows that are aimed at a share of a table are like others.
    let aimed = &bench_chain(&["--flows", "5000", "--distribution", "aimed"])[0];
    assert_eq!(aimed["distribution"], "aimed");
    assert_eq!([number(aimed, "created"), number(aimed, "evicted")], [5000, 0], "{aimed}");
    let output = run(packetloom().args(["bench", "chain", "--flood", "100000", "--sources", "1"]));
    assert!(stderr(&output).contains("expected more sources"), "{}", stderr(&output));
    // For which a system with all the memory that it can address would be too small.
    let output = run(packetloom().args(["bench", "chain", "--flows", "16000000", "--new-flows", "1"]));
    assert!(stderr(&output).contains("expected no more than"), "{}", stderr(&output));
}
