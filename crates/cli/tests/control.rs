//! A run's control socket: what it counts, a reload, its state, its end, and clients that mean no good.

#![allow(missing_docs)]

#[path = "control/flows.rs"]
mod flows;
#[path = "control/rules.rs"]
mod rules;
mod support;

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;
use support::{json, packetloom, packets, run, stderr, succeed};
use tempfile::TempDir;

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(600);

const PACKETS: &str = "\
0.0 tcp 10.0.0.1:1000 > 192.0.2.1:80 flags S
0.1 tcp 10.0.0.2:1000 > 192.0.2.1:80 flags S
0.2 tcp 10.0.0.1:1000 > 192.0.2.1:81 flags S
0.3 tcp 10.0.0.3:1000 > 192.0.2.1:80 flags S
0.4 arp
0.5 tcp 10.0.0.2:1000 > 192.0.2.1:81 flags S
";

const RULES: &str = "permit tcp from any to any port 80\n";

/// An acl in front of functions that keep state by flow and by source, which several workers share.
///
/// Its tables are small: a device reads them back for each command.
const CHAIN: &str = "\
[flows.connections]
by = \"connection\"
max_flows = 1000
[flows.flows]
by = \"5-tuple\"
max_flows = 1000
[flows.sources]
by = \"source\"
max_flows = 1000
[[chain]]
nf = \"acl\"
rules = \"rules\"
[[chain]]
nf = \"conntrack\"
flows = \"connections\"
[[chain]]
nf = \"counter\"
flows = \"flows\"
[[chain]]
nf = \"source-counter\"
flows = \"sources\"
";

/// A chain of which a device takes an acl alone.
const ACL_ALONE: &str = "\
[[chain]]
nf = \"acl\"
rules = \"rules\"
[[chain]]
nf = \"meter\"
max_flows = 1000
";

/// Each way to run a chain.
const WAYS: [&str; 6] = [
    "--workers 1",
    "--workers 2",
    "--workers 5",
    "--device oracle",
    "--device host",
    "--device host --max-latency 1ms",
];

/// A run that is fed packet by packet, by a named pipe.
struct Fed {
    folder: TempDir,
    child: Child,
    pipe: Option<File>,
}

impl Fed {
    /// With these files beside its chain.
    fn start(chain: &str, arguments: &str) -> Self {
        Self::of(&["run", "chain.toml"], chain, arguments)
    }

    fn of(verb: &[&str], chain: &str, arguments: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("chain.toml"), chain).expect("written");
        fs::write(folder.path().join("rules"), RULES).expect("written");
        Self::within(folder, verb, arguments)
    }

    fn within(folder: TempDir, verb: &[&str], arguments: &str) -> Self {
        let fifo = folder.path().join("in");
        if !fifo.exists() {
            rustix::fs::mknodat(
                rustix::fs::CWD,
                &fifo,
                rustix::fs::FileType::Fifo,
                rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
                0,
            )
            .expect("a pipe");
        }
        let mut command = packetloom();
        command.current_dir(folder.path()).args(verb).args(["-r", "in", "--summary", "summary.json"]);
        command.args(["--control", "run.sock"]).args(arguments.split_whitespace());
        // With compiled kernels kept below the target folder.
        command.env("XDG_CACHE_HOME", env!("CARGO_TARGET_TMPDIR"));
        let child = command.stderr(Stdio::piped()).spawn().expect("started");
        // Open for reading as well, so that it does not wait for the run to open it.
        let pipe = OpenOptions::new().read(true).write(true).open(&fifo).expect("opened");
        let mut fed = Self { folder, child, pipe: Some(pipe) };
        fed.send(&packets::pcap(PACKETS)[..24]);
        // Whoever asks finds it there, however long it takes to start: it is bound before it listens.
        let (socket, begun) = (fed.at("run.sock"), Instant::now());
        while UnixStream::connect(&socket).is_err() && begun.elapsed() < Duration::from_secs(20) {
            if let Some(status) = fed.child.try_wait().expect("a child") {
                let mut said = String::new();
                fed.child.stderr.take().expect("piped").read_to_string(&mut said).expect("text");
                panic!("the run did not begin: {status}: {said}");
            }
            sleep(Duration::from_millis(1));
        }
        fed
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn send(&mut self, bytes: &[u8]) {
        self.pipe.as_mut().expect("open").write_all(bytes).expect("written");
    }

    /// Sends packets by their lines in [`PACKETS`], from 0.
    fn packets(&mut self, lines: std::ops::Range<usize>) {
        let lines: Vec<_> = PACKETS.lines().collect::<Vec<_>>()[lines].to_vec();
        self.send(&packets::pcap(&lines.join("\n"))[24..]);
    }

    fn connect(&self) -> UnixStream {
        let begin = Instant::now();
        loop {
            match UnixStream::connect(self.at("run.sock")) {
                Ok(stream) => {
                    stream.set_read_timeout(Some(PATIENCE)).expect("set");
                    return stream;
                }
                Err(error) => assert!(begin.elapsed() < PATIENCE, "{error}"),
            }
            sleep(Duration::from_millis(5));
        }
    }

    /// What it answers to a line.
    fn ask(&self, line: &str) -> Value {
        let mut stream = self.connect();
        stream.write_all(format!("{line}\n").as_bytes()).expect("sent");
        answer(&mut BufReader::new(stream))
    }

    fn counters(&self) -> Value {
        let answer = self.ask(r#"{"command":"counters"}"#);
        assert_eq!(answer["ok"], true, "{answer}");
        answer["counters"].clone()
    }

    /// Waits until it has received so many packets; its counters then.
    fn counters_at(&self, packets: u64) -> Value {
        let begin = Instant::now();
        loop {
            let counters = self.counters();
            if counters["received"] == packets {
                return counters;
            }
            assert!(begin.elapsed() < PATIENCE, "{counters}");
            sleep(Duration::from_millis(5));
        }
    }

    /// The command, as a client.
    fn control(&self, command: &str) -> Command {
        let mut client = packetloom();
        client.current_dir(self.folder.path()).args(["control", "run.sock", command]);
        client
    }

    /// Waits until it has ended; the summary, and what it said.
    fn end(&mut self) -> (Value, String) {
        self.pipe = None;
        let mut said = String::new();
        self.child.stderr.take().expect("piped").read_to_string(&mut said).expect("text");
        let status = self.child.wait().expect("ended");
        assert!(status.success(), "{status}: {said}");
        assert!(!self.at("run.sock").exists(), "the socket is removed");
        (json(&self.at("summary.json")), said)
    }
}

impl Drop for Fed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // It may be about to say why it ends.
            sleep(Duration::from_secs(1));
        }
        let ended = self.child.try_wait();
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let (true, Some(mut stderr)) = (std::thread::panicking(), self.child.stderr.take()) {
            let mut said = String::new();
            let _ = stderr.read_to_string(&mut said);
            eprintln!("the run: {ended:?}: {said}");
        }
    }
}

/// What feeds a run tells at once that there is none.
#[test]
#[should_panic(expected = "nf is \"acls\"")]
fn a_wrong_chain_is_told_at_once() {
    Fed::start("[[chain]]\nnf = \"acls\"\n", "");
}

fn answer(reader: &mut impl BufRead) -> Value {
    let mut line = String::new();
    reader.read_line(&mut line).expect("an answer");
    serde_json::from_str(&line).unwrap_or_else(|error| panic!("{line:?}: {error}"))
}

/// The summary of a run over some packets of a file.
fn summary_of(fed: &Fed, lines: usize, arguments: &str) -> Value {
    let capture: Vec<_> = PACKETS.lines().take(lines).collect();
    fs::write(fed.at("some.pcap"), packets::pcap(&capture.join("\n"))).expect("written");
    let mut command = packetloom();
    command.current_dir(fed.folder.path()).args(["run", "chain.toml", "-r", "some.pcap"]);
    command.args(["--summary", "some.json"]).args(arguments.split_whitespace());
    command.env("XDG_CACHE_HOME", env!("CARGO_TARGET_TMPDIR"));
    succeed(&mut command);
    json(&fed.at("some.json"))
}

/// By every way to run: on the way the counters are the summary of a run over the packets until then, and at last the run's own.
#[test]
fn counters_are_the_summary_of_the_packets_until_then() {
    for chain in [CHAIN, ACL_ALONE] {
        for way in WAYS {
            let mut fed = Fed::start(chain, way);
            assert_eq!(fed.counters()["received"], 0);
            for (from, to) in [(0, 3), (3, 4), (4, 6)] {
                fed.packets(from..to);
                let counters = fed.counters_at(to as u64);
                let mut expected = summary_of(&fed, to, way);
                if chain == ACL_ALONE {
                    // A meter has counted no flow before it has exported it.
                    assert_eq!(counters["functions"][0], expected["functions"][0], "{way}");
                    expected["functions"] = counters["functions"].clone();
                }
                assert_eq!(counters, expected, "{way}");
            }
            let mut counters: Value =
                serde_json::from_str(&succeed(&mut fed.control("counters"))).expect("JSON");
            let (summary, _) = fed.end();
            if chain == ACL_ALONE {
                counters["functions"] = summary["functions"].clone();
            }
            assert_eq!(counters, summary, "{way}");
        }
    }
}

/// All rules of the acls in their order, those that decided nothing among them, by every way to run.
#[test]
fn rules_are_told_one_by_one() {
    let chain = format!("{CHAIN}[[chain]]\nnf = \"acl\"\nrules = \"more\"\ndefault = \"permit\"\n");
    let schema = |page: &str| -> Value {
        serde_json::from_str(&succeed(packetloom().args(["schema", page]))).expect("JSON")
    };
    for way in WAYS {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(
            folder.path().join("more"),
            "deny udp from any to any # none\npermit tcp from 10.0.0.2 to any id two\n",
        )
        .expect("written");
        fs::write(folder.path().join("chain.toml"), &chain).expect("written");
        fs::write(folder.path().join("rules"), RULES).expect("written");
        let mut fed = Fed::within(folder, &["run", "chain.toml"], way);
        fed.packets(0..6);
        fed.counters_at(6);
        let answer = fed.ask(r#"{"command":"rules"}"#);
        support::schema::check(&schema("control-answer"), &answer)
            .unwrap_or_else(|why| panic!("{way}: {why}"));
        let rules = answer["rules"].as_array().expect("rules");
        let told: Vec<_> = rules
            .iter()
            .map(|rule| {
                (&rule["function"], &rule["line"], rule["text"].as_str().expect("text"), &rule["packets"])
            })
            .map(|(function, line, text, packets)| format!("{function} {line} {text}: {packets}"))
            .collect();
        let expected = [
            "0 1 permit tcp from any to any port 80: 3",
            "0 null default: 2",
            "4 1 deny udp from any to any # none: 0",
            "4 2 permit tcp from 10.0.0.2/32 to 0.0.0.0/0 id two: 1",
            "4 null default: 2",
        ];
        assert_eq!(told, expected, "{way}: {answer}");
        // By the command: of one acl, of all of them, and of functions that have no rules.
        let of = |arguments: &[&str]| {
            let mut client = fed.control("rules");
            client.args(arguments);
            run(&mut client)
        };
        let line_schema = schema("control-rules");
        for (arguments, count) in
            [(&["--json"][..], 5), (&["--json", "--function", "acl"], 5), (&["--json", "--function", "4"], 3)]
        {
            let output = of(arguments);
            let text = String::from_utf8(output.stdout).expect("text");
            assert_eq!(text.lines().count(), count, "{way} {arguments:?}: {text}");
            for line in text.lines() {
                let line: Value = serde_json::from_str(line).expect("JSON");
                support::schema::check(&line_schema, &line).unwrap_or_else(|why| panic!("{why}: {line}"));
            }
        }
        let table = String::from_utf8(of(&["--function", "4"]).stdout).expect("text");
        assert!(table.starts_with("function 4, acl\n") && table.lines().count() == 5, "{table}");
        assert!(table.contains("id two") && !table.contains("function 0"), "{table}");
        for (arguments, why) in [
            (
                ["--function", "1"],
                "function number 1 is no acl of the chain; expected \"acl\", or one of: 0, 4",
            ),
            (["--function", "counter"], "\"counter\" is no acl"),
        ] {
            let output = of(&arguments);
            assert_eq!(output.status.code(), Some(1));
            assert!(
                stderr(&output).contains("rules failed: ") && stderr(&output).contains(why),
                "{}",
                stderr(&output)
            );
        }
        // A capture has no interfaces.
        let output = run(&mut fed.control("ports"));
        assert_eq!(output.status.code(), Some(1));
        assert!(stderr(&output).contains("ports failed: the run reads captures"), "{}", stderr(&output));
        assert_eq!(run(fed.control("ports").args(["--function", "0"])).status.code(), Some(2));
        fed.end();
    }
    // By its other name; a meter has no rules.
    let meter = Fed::of(&["meter", "-o", "flows"], "", "");
    let mut client = packetloom();
    let output = run(client.current_dir(meter.folder.path()).args(["ctl", "run.sock", "rules"]));
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("rules failed: the chain has no acl"), "{}", stderr(&output));
    let output = run(client.arg("--json"));
    assert_eq!(output.status.code(), Some(1));
}

/// A part of a packet is waited for: what came before is counted, and commands are acted upon.
#[test]
fn half_a_packet_does_not_hold_commands_up() {
    let mut fed = Fed::start(CHAIN, "--workers 2");
    let capture = packets::pcap(PACKETS);
    fed.send(&capture[24..24 + 70 + 33]);
    assert_eq!(fed.counters_at(1)["received"], 1);
    succeed(&mut fed.control("reload"));
    fed.send(&capture[24 + 70 + 33..]);
    fed.counters_at(6);
    assert_eq!(fed.end().0["reloads"]["done"], 1);
}

#[test]
fn a_reload_is_done_or_refused_with_the_reason() {
    for (chain, way) in [
        (CHAIN, "--workers 1"),
        (CHAIN, "--workers 3"),
        (CHAIN, "--device oracle"),
        (CHAIN, "--device host"),
        (ACL_ALONE, "--device host"),
    ] {
        let mut fed = Fed::start(chain, way);
        fed.packets(0..3);
        assert_eq!(fed.counters_at(3)["passed"], 2, "{way}");
        fs::write(fed.at("rules"), "permit everything\n").expect("written");
        let output = run(&mut fed.control("reload"));
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("reload failed: ") && said.contains("rules:1:"), "{said}");
        fs::write(fed.at("rules"), "permit any from any to any\n").expect("written");
        succeed(&mut fed.control("reload"));
        // In place when the answer has come.
        fed.packets(3..6);
        let counters = fed.counters_at(6);
        assert_eq!(counters["passed"], 5, "{way}: {counters}");
        let reloads = serde_json::json!({ "done": 1, "refused": 1 });
        assert_eq!(counters["reloads"], reloads);
        assert_eq!(counters["replaced"][0]["until_packet"], 3, "{counters}");
        let (summary, said) = fed.end();
        if chain == CHAIN {
            assert_eq!(summary, counters, "{way}");
        }
        assert!(said.contains("the chain stays as it is: ") && said.contains("read again"), "{said}");
    }
}

/// Each one who asks gets an answer, and a signal asks as well.
#[test]
fn many_ask_for_a_reload() {
    let mut fed = Fed::start(CHAIN, "--workers 2");
    fed.counters_at(0);
    let mut clients: Vec<_> = (0..8).map(|_| fed.connect()).collect();
    for client in &mut clients {
        client.write_all(b"{\"command\":\"reload\"}\n").expect("sent");
    }
    let pid = rustix::process::Pid::from_child(&fed.child);
    rustix::process::kill_process(pid, rustix::process::Signal::HUP).expect("signalled");
    for client in clients {
        assert_eq!(answer(&mut BufReader::new(client)), serde_json::json!({ "ok": true }));
    }
    let done = fed.end().0["reloads"]["done"].as_u64().expect("a number");
    assert!((1..=9).contains(&done), "{done}");
}

#[test]
fn state_is_saved_when_the_answer_comes_and_a_run_goes_on_from_it() {
    for way in ["--workers 1", "--workers 3", "--device oracle", "--device host"] {
        let mut fed = Fed::start(CHAIN, &format!("{way} --save-state state"));
        fed.packets(0..4);
        fed.counters_at(4);
        succeed(&mut fed.control("save"));
        let shown = succeed(packetloom().args(["state", "--json"]).arg(fed.at("state")));
        let shown: Value = serde_json::from_str(&shown).expect("JSON");
        assert_eq!(shown["packets"], 4, "{way}");
        fs::copy(fed.at("state"), fed.at("saved")).expect("copied");
        let first = PACKETS.lines().next().expect("a packet");
        fs::write(fed.at("next.pcap"), packets::pcap(first)).expect("written");
        let mut next = packetloom();
        next.current_dir(fed.folder.path()).args(["run", "chain.toml", "-r", "next.pcap"]);
        succeed(next.args(["--restore-state", "saved", "--summary", "next.json"]));
        // The second packet of its flow.
        let counted = &json(&fed.at("next.json"))["functions"][2]["top"][0]["packets"];
        assert_eq!(*counted, 2, "{way}");
        // A folder in its place: that is said, and the run goes on.
        fs::remove_file(fed.at("state")).expect("removed");
        fs::create_dir(fed.at("state")).expect("made");
        let output = run(&mut fed.control("save"));
        assert_eq!(output.status.code(), Some(1));
        assert!(stderr(&output).contains("save failed: "), "{}", stderr(&output));
        fs::remove_dir(fed.at("state")).expect("removed");
        fed.packets(4..6);
        fed.counters_at(6);
        fed.end();
    }
}

#[test]
fn what_a_run_cannot_do_is_refused() {
    let meter = Fed::of(&["meter", "-o", "flows"], "", "");
    let no_file = Fed::start(CHAIN, "");
    for (mut client, command, why) in [
        (&meter, "reload", "a meter has no chain file"),
        (&meter, "save", "a meter has no state"),
        (&no_file, "save", "expected run --save-state FILE"),
    ]
    .map(|(fed, command, why)| (fed.control(command), command, why))
    {
        let output = run(&mut client);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{command}: {said}");
        assert!(said.contains(&format!("{command} failed: ")) && said.contains(why), "{said}");
    }
    let (mut no_file, mut meter) = (no_file, meter);
    no_file.packets(0..6);
    no_file.counters_at(6);
    assert_eq!(no_file.end().0["received"], 6);
    meter.packets(0..6);
    let begin = Instant::now();
    while meter.counters()["frames"] != 6 {
        assert!(begin.elapsed() < PATIENCE);
    }
    let (summary, _) = meter.end();
    assert_eq!(summary["frames"], 6, "{summary}");
}

/// As SIGTERM does: what was read is finished, and all outputs are there when the client has ended.
#[test]
fn stop_ends_a_run_with_all_outputs() {
    for way in ["--workers 1", "--workers 3", "--device host"] {
        let chain = format!("{CHAIN}[[chain]]\nnf = \"meter\"\nmax_flows = 1000\noutput = \"flows\"\n");
        let mut fed = Fed::start(&chain, &format!("{way} -w passed.pcap --save-state state"));
        fed.packets(0..6);
        fed.counters_at(6);
        succeed(&mut fed.control("stop"));
        let written: Vec<_> =
            ["passed.pcap", "state", "flows", "summary.json"].map(|name| fed.at(name)).into();
        assert!(written.iter().all(|path| path.is_file()), "{way}");
        let (summary, _) = fed.end();
        assert_eq!((&summary["received"], &summary["stopped"]), (&6.into(), &true.into()));
        let output = run(&mut fed.control("counters"));
        assert_eq!(output.status.code(), Some(69));
        assert!(stderr(&output).contains("no run answers there"), "{}", stderr(&output));
    }
}

#[test]
fn the_socket_is_its_owners_and_takes_no_others_place() {
    let mut fed = Fed::start(CHAIN, "");
    fed.counters_at(0);
    let metadata = fs::symlink_metadata(fed.at("run.sock")).expect("there");
    assert!(metadata.file_type().is_socket());
    assert_eq!(metadata.permissions().mode() & 0o7777, 0o600);
    fs::write(fed.at("file"), "kept").expect("written");
    fs::write(fed.at("in.pcap"), packets::pcap(PACKETS)).expect("written");
    let other = |control: &str| {
        let mut other = packetloom();
        other.current_dir(fed.folder.path()).args(["run", "chain.toml", "-r", "in.pcap"]);
        other.args(["-w", "out.pcap", "--control", control]);
        other
    };
    let long = "x/".repeat(60);
    for (control, code, why) in [
        ("run.sock", 1, "another run answers there"),
        ("file", 1, "is no socket"),
        (".", 1, "is no socket"),
        ("none/where", 1, "No such file"),
        (&*long, 1, "too long for a socket"),
        ("-", 1, "expected the path of a socket"),
        ("out.pcap", 2, "more than one output to out.pcap"),
    ] {
        let output = run(&mut other(control));
        assert_eq!(output.status.code(), Some(code), "{control}: {}", stderr(&output));
        assert!(stderr(&output).contains(why), "{control}: {}", stderr(&output));
        assert!(!fed.at("out.pcap").exists(), "nothing is written");
    }
    assert_eq!(fs::read(fed.at("file")).expect("there"), b"kept");
    // It still answers.
    fed.packets(0..6);
    fed.counters_at(6);
    fed.end();
}

/// A run that was killed leaves its socket, which the next one replaces.
#[test]
fn a_socket_of_a_run_that_was_killed_is_replaced() {
    let mut fed = Fed::start(CHAIN, "");
    fed.counters_at(0);
    fed.child.kill().expect("killed");
    fed.child.wait().expect("gone");
    assert!(fed.at("run.sock").exists());
    let mut client = fed.control("counters");
    assert_eq!(run(&mut client).status.code(), Some(69));
    fed.pipe = None;
    let folder = std::mem::replace(&mut fed.folder, tempfile::tempdir().expect("a folder"));
    let mut next = Fed::within(folder, &["run", "chain.toml"], "");
    next.packets(0..6);
    next.counters_at(6);
    // Somebody else's socket in its place stays.
    fs::remove_file(next.at("run.sock")).expect("removed");
    let _other = UnixListener::bind(next.at("run.sock")).expect("bound");
    next.pipe = None;
    assert!(next.child.wait().expect("ended").success());
    assert!(next.at("run.sock").exists());
}

/// In a chain file, relative to that; it stays for the whole run.
#[test]
fn a_chain_file_names_the_socket() {
    let chain = format!("{CHAIN}[run]\ncontrol = \"from-chain.sock\"\n");
    let folder = tempfile::tempdir().expect("a folder");
    fs::create_dir(folder.path().join("sub")).expect("made");
    fs::write(folder.path().join("sub/chain.toml"), &chain).expect("written");
    fs::write(folder.path().join("sub/rules"), RULES).expect("written");
    let mut command = packetloom();
    command.current_dir(folder.path()).args(["run", "sub/chain.toml", "-r", "-"]);
    let mut child = command.stdin(Stdio::piped()).stderr(Stdio::null()).spawn().expect("started");
    child.stdin.as_mut().expect("piped").write_all(&packets::pcap(PACKETS)).expect("written");
    let client = |command: &str| {
        let mut client = packetloom();
        client.current_dir(folder.path()).args(["control", "sub/from-chain.sock", command]);
        client
    };
    let begin = Instant::now();
    while run(&mut client("counters")).status.code() == Some(69) {
        assert!(begin.elapsed() < PATIENCE);
        sleep(Duration::from_millis(10));
    }
    fs::write(folder.path().join("sub/chain.toml"), chain.replace("from-chain", "other")).expect("written");
    let output = run(&mut client("reload"));
    assert!(stderr(&output).contains("other.sock; expected"), "{}", stderr(&output));
    succeed(&mut client("stop"));
    assert!(child.wait().expect("ended").success());
}

#[test]
fn lines_that_are_no_commands_are_answered_and_do_nothing() {
    let mut fed = Fed::start(CHAIN, "");
    let mut stream = fed.connect();
    let mut reader = BufReader::new(stream.try_clone().expect("cloned"));
    let deep = "[".repeat(1000);
    for (line, why) in [
        ("", "no JSON"),
        ("stop", "no JSON"),
        ("{\"command\":\"stop\"", "no JSON"),
        ("{\"command\":\"stop\"} x", "no JSON"),
        (&*deep, "no JSON"),
        ("\"stop\"", "expected {"),
        ("{}", "expected {"),
        ("{\"command\":[\"stop\"]}", "expected {"),
        ("{\"command\":\"Stop\"}", "unknown command \"Stop\""),
        ("{\"command\":\"stop\",\"now\":true}", "unknown key \"now\""),
        ("{\"command\":\"stop\",\"function\":0}", "unknown key \"function\" with stop"),
        ("{\"command\":\"rules\",\"function\":-1}", "function is -1; expected the number"),
        ("{\"command\":\"rules\",\"function\":[0]}", "function is [0]; expected the number"),
        ("{\"command\":\"rules\",\"function\":7}", "function number 7 is no acl"),
        ("{\"command\":\"rules\",\"rule\":7}", "unknown key \"rule\" with rules"),
        (
            "{\"command\":\"flows\",\"state\":\"new\"}",
            "unknown key \"state\" with flows; expected \"function\"",
        ),
        ("{\"command\":\"flows\",\"top\":-1}", "top is -1; expected 1 to 10000"),
        ("{\"command\":\"flows\",\"top\":1e99}", "top is 1e+99; expected 1 to 10000"),
        (
            "{\"command\":\"flows\",\"by\":\"size\"}",
            "by is \"size\"; expected one of: packets, bytes, last, first",
        ),
        ("{\"command\":\"flows\",\"filter\":7}", "filter is 7; expected an expression"),
        ("{\"command\":\"flows\",\"filter\":\"less 100\"}", "only single packets have"),
        ("{\"command\":\"flows\"}", "several functions of the chain suit"),
        ("{\"command\":\"flows\",\"function\":0}", "function number 0 is none of the chain that keeps state"),
        (
            "{\"command\":\"connections\",\"state\":\"odd\"}",
            "state is \"odd\"; expected one of: new, opening",
        ),
        ("{\"command\":\"remove\",\"all\":true}", "remove expects a function"),
        ("{\"command\":\"remove\",\"function\":1}", "remove expects one of: filter, flow"),
        ("{\"command\":\"remove\",\"function\":1,\"all\":1}", "all is 1; expected true"),
        (
            "{\"command\":\"remove\",\"function\":1,\"all\":true,\"flow\":\"10.0.0.1\"}",
            "remove expects one of",
        ),
        (
            "{\"command\":\"remove\",\"function\":1,\"flow\":\"tcp\"}",
            "is no flow; expected a protocol and two ends",
        ),
        ("{\"command\":\"ports\"}", "has no interfaces"),
    ] {
        stream.write_all(format!("{line}\n").as_bytes()).expect("sent");
        let answer = answer(&mut reader);
        assert_eq!(answer["ok"], false, "{line}");
        assert!(answer["error"].as_str().expect("why").contains(why), "{line}: {answer}");
    }
    stream.write_all(b"\xff\xfe\n").expect("sent");
    assert_eq!(answer(&mut reader)["ok"], false);
    // Several at once, in pieces, and with the end of a line of other systems.
    for piece in
        ["{\"comm", "and\":\"counters\"}\r", "\n{\"command\":\"counters\"}\n{\"command\":\"cou", "nters\"}\n"]
    {
        stream.write_all(piece.as_bytes()).expect("sent");
        sleep(Duration::from_millis(20));
    }
    for _ in 0..3 {
        assert_eq!(answer(&mut reader)["ok"], true);
    }
    // Half a line, then the end; and a line that is too long, then the end.
    stream.write_all(b"{\"command\":\"stop\"}").expect("sent");
    stream.shutdown(std::net::Shutdown::Write).expect("shut down");
    assert!(answer(&mut reader)["error"].as_str().expect("why").contains("no end"));
    assert_eq!(reader.read(&mut [0]).expect("the end"), 0);
    let mut stream = fed.connect();
    let _ = stream.write_all(" ".repeat(300_000).as_bytes());
    assert!(answer(&mut BufReader::new(stream))["error"].as_str().expect("why").contains("too long"));
    fed.packets(0..6);
    fed.counters_at(6);
    assert_eq!(fed.end().0["stopped"], false);
}

/// The run's memory, in KiB.
fn memory(child: &Child) -> u64 {
    let text = fs::read_to_string(format!("/proc/{}/status", child.id())).expect("it is there");
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a line");
    line.trim().trim_end_matches("kB").trim().parse().expect("a number")
}

/// Clients that do not read, that say nothing, that come in numbers, and that go at once: packets go on, memory stays, others are answered.
#[test]
fn hostile_clients_neither_stop_packets_nor_take_memory() {
    for way in ["--workers 1", "--workers 3"] {
        let mut fed = Fed::start(CHAIN, way);
        fed.counters_at(0);
        let (mut deaf, mut silent, mut memories) = (Vec::new(), Vec::new(), Vec::new());
        for round in 1..=6 {
            // Each says as much as it can, and reads nothing of what is answered.
            for _ in 0..20 {
                let mut client = fed.connect();
                client.set_nonblocking(true).expect("set");
                let all = b"{\"command\":\"counters\"}\n{\"command\":\"rules\"}\n{\"command\":\"ports\"}\n";
                while client.write(&all.repeat(20)).is_ok_and(|len| len > 0) {}
                deaf.push(client);
            }
            for number in 0..100 {
                match number % 4 {
                    0 => silent.push(fed.connect()),
                    1 => {
                        let mut client = fed.connect();
                        let _ = client.write_all(b"{\"command\":");
                        silent.push(client);
                    }
                    2 => {
                        let _ = fed.connect().write_all(b"{\"command\":\"counters\"}\n{\"command\":\"cou");
                    }
                    _ => drop(fed.connect()),
                }
            }
            fed.packets(0..6);
            fed.counters_at(6 * round);
            memories.push(memory(&fed.child));
        }
        // Tables take memory when the first packets come.
        assert!(memories[5] < memories[0] + (10 << 10), "{way}: {memories:?} KiB");
        // Those that were let go of see it.
        for mut client in silent.into_iter().take(50) {
            client.set_read_timeout(Some(PATIENCE)).expect("set");
            match client.read_to_end(&mut Vec::new()) {
                Ok(_) => {}
                Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}"),
            }
        }
        assert_eq!(fed.end().0["received"], 36, "{way}");
    }
}

/// What a client said before it went is done, though nobody hears of it.
#[test]
fn a_client_may_go_before_the_answer() {
    let mut fed = Fed::start(CHAIN, "");
    fed.counters_at(0);
    for _ in 0..3 {
        let mut client = fed.connect();
        client.write_all(b"{\"command\":\"reload\"}\n").expect("sent");
    }
    fed.connect().write_all(b"{\"command\":\"stop\"}\n").expect("sent");
    assert!(fed.child.wait().expect("ended").success());
    assert_eq!(json(&fed.at("summary.json"))["stopped"], true);
}

/// A run over a file that ends meanwhile: everybody is answered, or sees the end.
#[test]
fn who_asks_when_a_run_ends_is_not_kept_waiting() {
    for _ in 0..10 {
        let mut fed = Fed::start(CHAIN, "--workers 2");
        fed.counters_at(0);
        let mut clients: Vec<_> = (0..10).map(|_| fed.connect()).collect();
        fed.packets(0..6);
        for client in &mut clients[..5] {
            let _ = client.write_all(b"{\"command\":\"counters\"}\n");
        }
        fed.pipe = None;
        for client in &mut clients[5..] {
            let _ = client.write_all(b"{\"command\":\"counters\"}\n");
        }
        for client in clients {
            let mut line = String::new();
            match BufReader::new(client).read_line(&mut line) {
                Ok(_) => {}
                Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}"),
            }
        }
        fed.end();
    }
}
