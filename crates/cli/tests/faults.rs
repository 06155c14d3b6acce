//! Captures with faults, outputs over inputs, and the signal that asks for statistics.

#![allow(missing_docs)]

mod support;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use support::{json, packetloom, packets, root, run, stderr, succeed};
use tempfile::TempDir;

/// A capture that was once read wrongly.
fn capture(name: &str) -> PathBuf {
    root().join("crates/io/tests/data").join(name)
}

/// A folder with a chain file and what it needs.
struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a folder"))
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, text: impl AsRef<[u8]>) {
        fs::write(self.at(name), text).expect("written");
    }

    /// Every file with its bytes, in order of their names.
    fn contents(&self) -> Vec<(String, Vec<u8>)> {
        let entries = fs::read_dir(self.0.path()).expect("a folder");
        let mut all: Vec<_> = entries
            .map(|entry| entry.expect("an entry"))
            .map(|entry| (entry.file_name().display().to_string(), fs::read(entry.path()).expect("a file")))
            .collect();
        all.sort();
        all
    }

    /// A command that runs in the folder.
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = packetloom();
        command.current_dir(self.0.path()).args(arguments).stdin(Stdio::null());
        command
    }
}

/// What a chain is run on.
const RUNS: [&str; 6] = [
    "device = \"oracle\"",
    "device = \"cpu\"",
    "device = \"cpu\"\nbatch = 1",
    "device = \"cpu\"\nworkers = 3",
    "device = \"host\"",
    "device = \"auto\"",
];

#[test]
fn packets_of_undefined_interfaces_are_in_one_counter_everywhere() {
    let folder = Folder::new();
    folder.write("all.rules", "default permit\n");
    for (name, undefined, place) in [
        ("iface82.pcapng", 2, "first interface 82 at byte 48, where interface 0 only is described"),
        ("badif.pcapng", 1, "first interface 3 at byte 48, where interface 0 only is described"),
        ("section-without-interface.pcapng", 1, "first interface 0 at byte 172, where none is described"),
    ] {
        for (policy, passed) in [("drop", 2 - undefined), ("pass", 2)] {
            for on in RUNS {
                let chain = format!(
                    "[[chain]]\nnf = \"acl\"\nrules = \"all.rules\"\n[run]\nmalformed = \"{policy}\"\nnon_ip = \"drop\"\n{on}\n"
                );
                folder.write("chain.toml", chain);
                let output = run(folder.command(&["run", "chain.toml", "--json", "-r"]).arg(capture(name)));
                let what = format!("{name}, {policy}, {on}: {}", stderr(&output));
                assert_eq!(output.status.code(), Some(0), "{what}");
                let summary: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
                assert_eq!(summary["received"], 2, "{what}");
                assert_eq!(summary["passed"], passed, "{what}");
                assert_eq!(summary["dropped"]["malformed"], 2 - passed, "{what}");
                let said = stderr(&output);
                assert_eq!(said.matches("warning").count(), 1, "{what}");
                assert!(said.contains(place), "{what}");
            }
        }
        let output = run(folder
            .command(&["meter", "-o", "/dev/null", "--summary", "s.json", "-r"])
            .arg(capture(name)));
        assert_eq!(output.status.code(), Some(0));
        assert!(stderr(&output).contains(place), "{}", stderr(&output));
        let summary = json(&folder.at("s.json"));
        assert_eq!(summary["frames"], 2, "{name}");
        assert_eq!(summary["counted_packets"], 2 - undefined, "{name}");
        assert_eq!(summary["not_counted"]["undefined_interface"], undefined, "{name}");
    }
}

#[test]
fn a_sink_cannot_hold_a_frame_without_a_link_type() {
    let folder = Folder::new();
    folder.write("drop.toml", "[sink]\ncapture = \"out.pcap\"\n");
    folder.write("pass.toml", "[sink]\ncapture = \"out.pcap\"\n[run]\nmalformed = \"pass\"\n");
    let output = run(folder.command(&["run", "pass.toml", "-r"]).arg(capture("badif.pcapng")));
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("out.pcap: a frame that passes names an undefined interface"),
        "{}",
        stderr(&output)
    );
    assert!(!folder.at("out.pcap").exists());
    succeed(folder.command(&["run", "drop.toml", "-r"]).arg(capture("badif.pcapng")));
    assert_eq!(fs::metadata(folder.at("out.pcap")).expect("written").len(), 24 + 16 + 62);
}

#[test]
fn unsupported_link_types_are_named_once() {
    let folder = Folder::new();
    folder.write("chain.toml", "");
    let mut bytes = fs::read(capture("radiotap.pcap")).expect("a file");
    bytes[20] = 163;
    folder.write("avs.pcap", bytes);
    let file = folder.at("avs.pcap");
    for (arguments, frames) in [
        (vec!["meter", "-o", "/dev/null", "-r"], "2 frames of"),
        (vec!["run", "chain.toml", "-r"], "2 frames of"),
        (vec!["run", "chain.toml", "-c", "1", "-r"], "1 frame of"),
    ] {
        let output = run(folder.command(&arguments).arg(&file));
        assert_eq!(output.status.code(), Some(0), "{arguments:?}");
        let said = stderr(&output);
        assert_eq!(said.matches("warning").count(), 1, "{said}");
        let expected = format!(
            "packetloom: warning: {}: {frames} link type 163 (IEEE802_11_AVS) cannot be parsed",
            file.display()
        );
        assert!(said.starts_with(&expected), "{said}");
        assert!(said.contains("supported: 0 (NULL), 1 (ETHERNET), "), "{said}");
    }
}

#[test]
fn zeros_behind_gzip_data_are_no_truncation_and_other_bytes_are() {
    let folder = Folder::new();
    let bytes = fs::read(capture("gz-zeros.pcap.gz")).expect("a file");
    folder.write("zeros.gz", &bytes);
    folder.write("garbage.gz", [&bytes[..], b"garbage"].concat());
    for (name, truncated) in [("zeros.gz", false), ("garbage.gz", true)] {
        let output =
            run(&mut folder.command(&["meter", "-r", name, "-o", "/dev/null", "--summary", "s.json"]));
        assert_eq!(output.status.code(), Some(0));
        let summary = json(&folder.at("s.json"));
        assert_eq!(
            (&summary["counted_packets"], &summary["truncated"]),
            (&1.into(), &truncated.into()),
            "{name}"
        );
        let said = stderr(&output);
        assert_eq!(said.contains("warning"), truncated, "{said}");
        assert!(
            !truncated || said.contains("behind the gzip data stands 67 61; expected its end, zeros, or"),
            "{said}"
        );
    }
}

#[test]
fn a_wrong_byte_order_magic_is_named() {
    for arguments in [vec!["meter", "-r"], vec!["bench", "meter", "-r"]] {
        let output = run(packetloom().args(&arguments).arg(capture("bom.pcapng")));
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        let expected = "bom.pcapng: the section header's byte-order magic is 0xdeadbeef; expected 0x1a2b3c4d";
        assert!(stderr(&output).contains(expected), "{}", stderr(&output));
    }
}

const RULES: &str = "permit tcp from any to any\ndefault deny\n";
const HEADERS: &str = "tcp 10.0.0.1:1 > 10.0.0.2:2\n";

/// Files that every verb can read, under several names each.
fn inputs() -> Folder {
    let folder = Folder::new();
    folder.write("a.pcap", packets::pcap("0.0 tcp 10.0.0.1:1 > 10.0.0.2:80 flags S\n"));
    folder.write("list.rules", RULES);
    folder.write("headers", HEADERS);
    folder.write("changes", "at 0\nadd first permit udp from any to any\ncommit\n");
    folder.write("chain.toml", "[[chain]]\nnf = \"acl\"\nrules = \"list.rules\"\n");
    for name in ["a.pcap", "list.rules", "headers", "changes", "chain.toml"] {
        symlink(name, folder.at(&format!("soft-{name}"))).expect("linked");
        fs::hard_link(folder.at(name), folder.at(&format!("hard-{name}"))).expect("linked");
    }
    folder
}

/// Runs a command that must be refused with both names in its message, and change nothing.
#[track_caller]
fn refused(folder: &Folder, arguments: &[&str], code: i32, named: &[&str]) {
    let before = folder.contents();
    let output = run(&mut folder.command(arguments));
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
    for name in named {
        assert!(said.contains(name), "{arguments:?}: {name:?} in {said}");
    }
    assert_eq!(said.lines().count(), 1, "{arguments:?}: {said}");
    assert!(output.stdout.is_empty(), "{arguments:?}");
    assert!(folder.contents() == before, "{arguments:?} changed something");
}

#[test]
fn an_output_that_is_an_input_is_refused() {
    let folder = inputs();
    for prefix in ["", "./", "soft-", "hard-", "../"] {
        // The same file by its folder's name.
        let own = folder.0.path().file_name().expect("a name").display().to_string();
        let other = |name: &str| match prefix {
            "../" => format!("../{own}/{name}"),
            _ => format!("{prefix}{name}"),
        };
        let (capture, rules, headers) = (&*other("a.pcap"), &*other("list.rules"), &*other("headers"));
        let (changes, chain) = (&*other("changes"), &*other("chain.toml"));
        for (arguments, named) in [
            (vec!["meter", "-r", "a.pcap", "-o", capture], ["-o", "-r a.pcap"]),
            (vec!["meter", "-r", "a.pcap", "-o", "x", "--summary", capture], ["--summary", "-r a.pcap"]),
            (vec!["run", "chain.toml", "-r", "a.pcap", "-w", capture], ["-w", "-r a.pcap"]),
            (vec!["run", "chain.toml", "-r", "a.pcap", "--summary", capture], ["--summary", "-r a.pcap"]),
            (
                vec!["run", "chain.toml", "-r", "a.pcap", "--save-state", capture],
                ["--save-state", "-r a.pcap"],
            ),
            (vec!["run", "chain.toml", "-r", "a.pcap", "-w", chain], ["-w", "chain file chain.toml"]),
            (
                vec!["run", "chain.toml", "-r", "a.pcap", "--save-state", chain],
                ["--save-state", "chain file chain.toml"],
            ),
            (
                vec!["run", "chain.toml", "-r", "a.pcap", "--rules-changes", "changes", "--summary", changes],
                ["--summary", "--rules-changes changes"],
            ),
            (
                vec!["run", "chain.toml", "-r", "a.pcap", "--reload-at", "1=headers", "-w", headers],
                ["-w", "--reload-at headers"],
            ),
            (vec!["acl", "convert", "list.rules", "--to", "native", "-o", rules], ["-o", "rules list.rules"]),
            (vec!["acl", "check", "list.rules", "-o", rules], ["-o", "rules list.rules"]),
            (
                vec!["acl", "classify", "--rules", "list.rules", "--headers", "headers", "-o", rules],
                ["-o", "--rules list.rules"],
            ),
            (
                vec!["acl", "classify", "--rules", "list.rules", "--headers", "headers", "-o", headers],
                ["-o", "--headers headers"],
            ),
            (vec!["generate", "headers", "--rules", "list.rules", "-o", rules], ["-o", "--rules list.rules"]),
            (vec!["bench", "meter", "-r", "a.pcap", "-o", capture], ["-o", "-r a.pcap"]),
        ] {
            let named = [named[0], named[1], "is the same file as", "expected another file to write to"];
            refused(&folder, &arguments, 2, &named);
        }
        // What a chain file names.
        refused(
            &folder,
            &["run", "chain.toml", "-r", "a.pcap", "-w", rules],
            78,
            &["chain.toml: -w", "acl's rules list.rules"],
        );
        for (text, named) in [
            (
                format!("[source]\ncapture = \"a.pcap\"\n[sink]\ncapture = \"{capture}\"\n"),
                ["sink", "source a.pcap"],
            ),
            (
                format!("[source]\ncapture = \"a.pcap\"\n[run]\nsummary = \"{capture}\"\n"),
                ["summary", "source a.pcap"],
            ),
            (
                format!(
                    "[[chain]]\nnf = \"meter\"\noutput = \"{capture}\"\n[source]\ncapture = \"a.pcap\"\n"
                ),
                ["meter's output", "source a.pcap"],
            ),
            (
                format!("[[chain]]\nnf = \"acl\"\nrules = \"list.rules\"\nlog = \"{rules}\"\n"),
                ["acl's output", "acl's rules list.rules"],
            ),
        ] {
            folder.write("own.toml", text);
            let message = ["own.toml: ", named[0], named[1], "is the same file as"];
            refused(&folder, &["check", "own.toml"], 78, &message);
            let more = if named[1].starts_with("source") { vec![] } else { vec!["-r", "a.pcap"] };
            refused(&folder, &[vec!["run", "own.toml"], more].concat(), 78, &message);
        }
        folder.write("own.toml", format!("[sink]\ncapture = \"{capture}\"\n"));
        refused(&folder, &["run", "own.toml", "-r", "a.pcap"], 78, &["own.toml: sink", "-r a.pcap"]);
        // An option replaces what the file names.
        succeed(&mut folder.command(&["run", "own.toml", "-r", "a.pcap", "-w", "/dev/null"]));
        fs::remove_file(folder.at("own.toml")).expect("removed");
    }
}

#[test]
fn standard_input_and_output_are_files_too() {
    let folder = inputs();
    let before = folder.contents();
    let open = |append: bool| {
        fs::OpenOptions::new().read(!append).append(append).open(folder.at("a.pcap")).expect("opened")
    };
    let mut commands = Vec::new();
    let mut command = folder.command(&["meter", "-r", "-", "-o", "a.pcap"]);
    command.stdin(open(false));
    commands.push((command, "-o a.pcap is the same file as -r standard input"));
    let mut command = folder.command(&["meter", "-r", "a.pcap"]);
    command.stdout(open(true));
    commands.push((command, "-o standard output is the same file as -r a.pcap"));
    let mut command = folder.command(&["meter", "-r", "hard-a.pcap", "-o", "/dev/stdout"]);
    command.stdout(open(true));
    commands.push((command, "is the same file as -r hard-a.pcap"));
    for (mut command, expected) in commands {
        let child = command.stderr(Stdio::piped()).spawn().expect("started");
        let output = child.wait_with_output().expect("ended");
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
        assert!(stderr(&output).contains(expected), "{}", stderr(&output));
    }
    assert!(folder.contents() == before);
}

#[test]
fn two_outputs_of_one_name_are_refused() {
    let folder = inputs();
    folder.write("there", "");
    symlink("there", folder.at("soft-there")).expect("linked");
    symlink("missing", folder.at("soft-missing")).expect("linked");
    fs::hard_link(folder.at("there"), folder.at("hard-there")).expect("linked");
    let remaining =
        || fs::read(folder.at("there")).expect("a file").is_empty() && !folder.at("missing").exists();
    for (one, other) in [
        ("missing", "missing"),
        ("missing", "./missing"),
        ("soft-missing", "missing"),
        ("there", "soft-there"),
        ("hard-there", "there"),
    ] {
        let expected = ["more than one output to", "-o", one, "--summary", other];
        for arguments in [
            vec!["meter", "-r", "a.pcap", "-o", one, "--summary", other],
            vec!["meter", "-r", "a.pcap", "-o", other, "--summary", one],
        ] {
            let output = run(&mut folder.command(&arguments));
            assert_eq!(output.status.code(), Some(2), "{arguments:?}");
            let said = stderr(&output);
            assert!(expected.iter().all(|part| said.contains(part)), "{said}");
            assert!(remaining(), "{arguments:?}");
        }
        let arguments = ["run", "chain.toml", "-r", "a.pcap", "-w", one, "--save-state", other];
        assert_eq!(run(&mut folder.command(&arguments)).status.code(), Some(2), "{arguments:?}");
        assert!(remaining(), "{arguments:?}");
    }
}

#[test]
fn special_files_are_never_in_the_way() {
    let folder = inputs();
    let before = folder.contents();
    succeed(&mut folder.command(&["meter", "-r", "a.pcap", "-o", "/dev/null", "--summary", "/dev/null"]));
    // An empty input, and the same device as output.
    let output = run(&mut folder.command(&["meter", "-r", "/dev/null", "-o", "/dev/null"]));
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("/dev/null: empty"), "{}", stderr(&output));
    let capture = fs::read(folder.at("a.pcap")).expect("a file");
    let mut child = folder
        .command(&["run", "chain.toml", "-r", "/dev/stdin", "-w", "/dev/stdout"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("started");
    child.stdin.take().expect("a pipe").write_all(&capture).expect("written");
    let output = child.wait_with_output().expect("ended");
    assert!(output.status.success() && output.stdout == capture);
    assert!(folder.contents() == before);
}

#[test]
fn one_state_file_is_read_and_written() {
    let folder = inputs();
    folder.write("chain.toml", "[[chain]]\nnf = \"counter\"\n");
    let flows = |saved: &str| {
        let text = succeed(&mut folder.command(&["state", "--json", saved]));
        let state: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        state["packets"].as_u64().expect("a count")
    };
    succeed(&mut folder.command(&["run", "chain.toml", "-r", "a.pcap", "--save-state", "s"]));
    assert_eq!(flows("s"), 1);
    symlink("s", folder.at("soft-s")).expect("linked");
    for (restore, save, packets) in [("s", "s", 2), ("s", "soft-s", 3), ("./s", "s", 4)] {
        let mut command = folder.command(&["run", "chain.toml", "-r", "a.pcap", "--json"]);
        let text = succeed(command.args(["--restore-state", restore, "--save-state", save]));
        let summary: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        // The flow was there already, with what it had.
        assert_eq!(summary["flows"]["5-tuple"]["created"], 0, "{summary}");
        assert_eq!(summary["functions"][0]["top"][0]["packets"], packets, "{summary}");
        assert!(folder.at("soft-s").is_symlink());
    }
    // No other output may take its place.
    let arguments = ["run", "chain.toml", "-r", "a.pcap", "--restore-state", "s", "--summary", "s"];
    refused(&folder, &arguments, 2, &["--summary s is the same file as --restore-state s"]);
    let bad = ["run", "chain.toml", "-r", "no-such.pcap", "--restore-state", "s", "--save-state", "s"];
    let before = fs::read(folder.at("s")).expect("a state");
    assert_eq!(run(&mut folder.command(&bad)).status.code(), Some(1));
    assert!(fs::read(folder.at("s")).expect("a state") == before, "a run that fails replaces nothing");
}

/// The lines that a child writes to standard error, as they come.
fn said(child: &mut Child) -> mpsc::Receiver<String> {
    let (sender, lines) = mpsc::channel();
    let stderr = BufReader::new(child.stderr.take().expect("a pipe"));
    std::thread::spawn(move || stderr.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
    lines
}

fn ask(child: &Child) {
    let pid = rustix::process::Pid::from_child(child);
    rustix::process::kill_process(pid, rustix::process::Signal::USR1).expect("signalled");
}

/// Asks until there is an answer about so many packets; the answer.
fn ask_until(child: &Child, lines: &mpsc::Receiver<String>, received: &str) -> String {
    for _ in 0..200 {
        ask(child);
        while let Ok(line) = lines.recv_timeout(Duration::from_millis(100)) {
            if line.contains(received) {
                return line;
            }
            assert!(line.starts_with("packetloom: received "), "{line}");
        }
    }
    panic!("no answer about {received}");
}

#[test]
fn sigusr1_asks_for_statistics_and_ends_nothing() {
    let folder = inputs();
    folder.write("list.rules", "deny udp from any to any\ndefault permit\n");
    let capture = packets::pcap(
        "0.0 tcp 10.0.0.1:1 > 10.0.0.2:80 flags S\n0.1 udp 10.0.0.1:1 > 10.0.0.2:53\n0.2 tcp 10.0.0.1:1 > 10.0.0.2:80 flags S\n",
    );
    for arguments in [
        vec!["run", "chain.toml", "-r", "-", "--json"],
        vec!["run", "chain.toml", "-r", "-", "--json", "--workers", "3"],
        vec!["run", "chain.toml", "-r", "-", "--json", "--device", "oracle"],
        vec!["meter", "-r", "-", "-o", "/dev/null", "--summary", "-"],
    ] {
        let is_run = arguments[0] == "run";
        let mut child = folder
            .command(&arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("started");
        let lines = said(&mut child);
        let mut stdin = child.stdin.take().expect("a pipe");
        stdin.write_all(&capture).expect("written");
        stdin.flush().expect("written");
        // The run waits for more; before that it may not be there yet to be asked.
        crate::support::wait_for_handler(&child, rustix::process::Signal::USR1);
        let line = ask_until(&child, &lines, "received 3,");
        let expected = if is_run {
            "packetloom: received 3, passed 2, dropped 1 (acl_rule 1); standard input: byte "
        } else {
            "packetloom: received 3, passed 3, dropped 0; standard input: byte "
        };
        assert!(line.starts_with(expected), "{arguments:?}: {line}");
        assert!(
            line.contains(&format!("byte {}; ", capture.len())) && line.ends_with("Gb/s on the wire"),
            "{line}"
        );
        // It goes on.
        stdin.write_all(&capture[24..]).expect("written");
        ask_until(&child, &lines, "received 6,");
        drop(stdin);
        let mut text = String::new();
        child.stdout.take().expect("a pipe").read_to_string(&mut text).expect("read");
        assert_eq!(child.wait().expect("ended").code(), Some(0), "{arguments:?}");
        let summary: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(summary[if is_run { "received" } else { "frames" }], 6, "{arguments:?}");
    }
}

#[test]
fn sigusr1_ends_no_other_verb() {
    let mut child = packetloom()
        .args(["generate", "traffic", "--packets", "100000000", "--flows", "1000", "-w", "/dev/null"])
        .stderr(Stdio::null())
        .spawn()
        .expect("started");
    crate::support::wait_for_handler(&child, rustix::process::Signal::USR1);
    for _ in 0..3 {
        ask(&child);
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(child.try_wait().expect("a child").is_none(), "it goes on");
    child.kill().expect("killed");
    child.wait().expect("ended");
}

#[test]
fn a_reloaded_chain_may_not_read_what_the_run_writes() {
    let folder = inputs();
    folder.write("next.toml", "[[chain]]\nnf = \"acl\"\nrules = \"out.pcap\"\n");
    folder.write("out.pcap", RULES);
    let output = run(&mut folder.command(&[
        "run",
        "chain.toml",
        "-r",
        "a.pcap",
        "-w",
        "out.pcap",
        "--reload-at",
        "0=next.toml",
    ]));
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let expected =
        "the chain stays as it is: next.toml: -w out.pcap is the same file as acl's rules out.pcap";
    assert!(stderr(&output).contains(expected), "{}", stderr(&output));
    assert!(Path::new(&folder.at("out.pcap")).exists());
}
