//! Packets that rules matched are written to a capture of their own, each with its rules.

#![allow(missing_docs)]

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::Value;
use support::pcapng::{Frame, pcap, pcapng};
use support::{json, packetloom, root, run, stderr, succeed};

const RULES: &str = "\
deny tcp from any to any port 23 id telnet log
permit udp from any to any port 53 mark 7 id dns
permit udp from any port 53 to any mark 7
permit tcp from any to any port 22 mark 8 id ssh
permit any from any to any id rest
";

/// Two lists: the first one marks, and the second one drops some of what it marked.
const SECOND: &str = "\
deny udp from any to 192.0.2.0/24 id second
permit tcp from any to any mark 9 id over
";

fn folder(sink: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).expect("written");
    write("first.rules", RULES);
    write("second.rules", SECOND);
    let chain = "[[chain]]\nnf = \"acl\"\nrules = \"first.rules\"\n\
                 [[chain]]\nnf = \"acl\"\nrules = \"second.rules\"\ndefault = \"permit\"\n";
    write("chain.toml", &format!("{chain}[sink]\n{sink}\n"));
    fs::copy(root().join("examples/edge/edge.pcap"), folder.path().join("edge.pcap")).expect("copied");
    folder
}

/// Runs the chain in each way; the frames, which are the same, and the summary.
fn matched(folder: &Path, options: &[&str]) -> (Vec<Frame>, Value) {
    let mut all = Vec::new();
    for how in [&["--workers", "1"][..], &["--workers", "3"], &["--device", "oracle"], &["--device", "host"]]
    {
        let mut command = packetloom();
        command.current_dir(folder).env("XDG_CACHE_HOME", env!("CARGO_TARGET_TMPDIR"));
        command.args(["run", "chain.toml", "-r", "edge.pcap", "--summary", "s.json"]).args(how);
        succeed(command.args(options));
        all.push(fs::read(folder.join("m.pcapng")).expect("a capture"));
    }
    assert!(all.windows(2).all(|pair| pair[0] == pair[1]), "the same bytes, whoever judges");
    (pcapng(&folder.join("m.pcapng")), json(&folder.join("s.json")))
}

/// How many frames have each comment.
fn comments(frames: &[Frame]) -> BTreeMap<&str, u64> {
    let mut counts = BTreeMap::new();
    for comment in frames.iter().flat_map(|frame| &frame.comments) {
        *counts.entry(&**comment).or_default() += 1;
    }
    counts
}

/// How many packets the summary has for each rule, by what comments are.
fn hits(summary: &Value) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    for (function, file) in [(0, "first.rules"), (1, "second.rules")] {
        for hit in summary["functions"][function]["hits"].as_array().expect("hits") {
            let name = format!("{file}:{}: {}", hit["line"], hit["text"].as_str().expect("text"));
            counts.insert(name, hit["packets"].as_u64().expect("a number"));
        }
    }
    counts
}

#[test]
fn all_that_rules_matched() {
    let folder = folder("");
    let (frames, summary) = matched(folder.path(), &["--matched", "m.pcapng"]);
    let counted = hits(&summary);
    let found: BTreeMap<_, _> =
        comments(&frames).into_iter().map(|(name, count)| (name.to_owned(), count)).collect();
    assert_eq!(found, counted);
    assert!(counted.len() >= 5, "{counted:?}");
    // They are those of the recording, in order; some met a rule of each list.
    let recorded = pcap(&folder.path().join("edge.pcap"));
    let mut rest = recorded.iter();
    for frame in &frames {
        assert!(rest.any(|(nanos, bytes)| (*nanos, bytes) == (frame.nanos, &frame.bytes)), "{frame:?}");
    }
    assert!(frames.iter().any(|frame| frame.comments.len() == 2));
    // All but those without an address.
    assert_eq!(frames.len(), 5057);
}

#[test]
fn those_of_some_rules() {
    for (rule, lines) in [
        ("\"telnet\"", &["first.rules:1: "][..]),
        ("3", &["first.rules:3: "]),
        ("[\"ssh\", \"second\", 3]", &["first.rules:3: ", "first.rules:4: ", "second.rules:1: "]),
        // A line of both.
        ("1", &["first.rules:1: ", "second.rules:1: "]),
    ] {
        let folder = folder(&format!("matched = {{ file = \"m.pcapng\", rule = {rule} }}"));
        let (frames, summary) = matched(folder.path(), &[]);
        let counted: BTreeMap<_, _> = hits(&summary)
            .into_iter()
            .filter(|(name, _)| lines.iter().any(|line| name.starts_with(line)))
            .collect();
        let found: BTreeMap<_, _> =
            comments(&frames).into_iter().map(|(name, count)| (name.to_owned(), count)).collect();
        assert_eq!((&found, found.len()), (&counted, lines.len()), "{rule}");
    }
}

#[test]
fn those_that_carry_a_mark() {
    let folder = folder("matched = { file = \"other.pcapng\", mark = 7 }");
    // What the command line says is the file.
    let (frames, summary) = matched(folder.path(), &["--matched", "m.pcapng"]);
    assert!(!folder.path().join("other.pcapng").exists());
    let counted = hits(&summary);
    let of_dns: u64 = [2, 3]
        .map(|line| {
            let begins = format!("first.rules:{line}: ");
            counted.iter().find(|(name, _)| name.starts_with(&begins)).expect("a rule").1
        })
        .into_iter()
        .sum();
    assert_eq!(frames.len() as u64, of_dns, "dropped or not");
    assert!(frames.iter().all(|frame| frame.comment().contains(" mark 7")));
    // The second list gives those of the first another mark.
    let folder = over(8);
    let (frames, _) = matched(folder.path(), &["--matched", "m.pcapng"]);
    assert_eq!(frames, []);
    let folder = over(9);
    let (frames, summary) = matched(folder.path(), &["--matched", "m.pcapng"]);
    let of_tcp = hits(&summary).into_iter().find(|(name, _)| name.starts_with("second.rules:2: "));
    assert_eq!(Some(frames.len() as u64), of_tcp.map(|(_, count)| count));
}

fn over(mark: u32) -> tempfile::TempDir {
    folder(&format!("matched = {{ file = \"m.pcapng\", mark = {mark} }}"))
}

/// Logs have what they had.
#[test]
fn what_is_matched_is_not_logged() {
    let folder = folder("matched = \"m.pcapng\"");
    let chain = fs::read_to_string(folder.path().join("chain.toml")).expect("a chain");
    let chain =
        chain.replacen("first.rules\"\n", "first.rules\"\nlog = \"log\"\nlog_rate = \"unlimited\"\n", 1);
    fs::write(folder.path().join("chain.toml"), chain).expect("written");
    let (_, summary) = matched(folder.path(), &[]);
    let log = fs::read_to_string(folder.path().join("log")).expect("a log");
    assert_eq!(log.lines().count(), 6);
    assert!(log.lines().all(|line| line.contains("\"id\":\"telnet\"")), "{log}");
    assert_eq!(summary["functions"][0]["log"]["lines"], 6);
}

#[test]
fn what_cannot_be_is_said() {
    for (sink, expected) in [
        (
            "matched = { file = \"m\", rule = \"nobody\" }",
            "matched: no acl, strings or domains of the chain has such a rule: rule \"nobody\"; expected ",
        ),
        (
            "matched = { file = \"m\", mark = 77 }",
            "matched: no acl, strings or domains of the chain has such a rule: mark 77; expected ",
        ),
        ("matched = { rule = \"telnet\" }", "expected a file in quotes, or { file = "),
        ("matched = 7", "expected a file in quotes, or { file = "),
        ("matched = \"x\"\ndropped = \"x\"", "more than one output to "),
    ] {
        let folder = folder(sink);
        let output = run(packetloom().current_dir(&folder).args(["check", "chain.toml"]));
        assert_eq!(output.status.code(), Some(78), "{sink}");
        assert!(stderr(&output).contains(expected), "{sink}: {}", stderr(&output));
    }
    let folder = folder("");
    fs::write(folder.path().join("none.toml"), "[[chain]]\nnf = \"counter\"\n").expect("written");
    let arguments = ["run", "none.toml", "-r", "edge.pcap", "--matched", "m"];
    let output = run(packetloom().current_dir(&folder).args(arguments));
    assert_eq!(output.status.code(), Some(78));
    assert!(stderr(&output).contains("the chain has no acl"), "{}", stderr(&output));
    let plan = folder.path().join("plan.toml");
    fs::write(&plan, "[[chain]]\nnf = \"acl\"\nrules = \"first.rules\"\n[sink]\nmatched = { file = \"m\", rule = \"dns\" }\n")
        .expect("written");
    let said = succeed(packetloom().arg("check").arg(&plan));
    assert!(
        said.contains(&format!(
            "matched   {}: packets that rule \"dns\" matched",
            folder.path().join("m").display()
        )),
        "{said}"
    );
}

/// A reload cannot have it go elsewhere, and rules of the next chain are watched, too.
#[test]
fn a_reload_goes_on_with_it() {
    let folder = folder("matched = { file = \"m.pcapng\", rule = \"dns\" }");
    let chain = fs::read_to_string(folder.path().join("chain.toml")).expect("a chain");
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).expect("written");
    write(
        "next.rules",
        &RULES
            .replace("id dns", "id web")
            .replace("permit any from any to any id rest", "permit any from any to any id dns"),
    );
    write("next.toml", &chain.replacen("first.rules", "next.rules", 1));
    write("other.toml", &chain.replace("\"dns\"", "\"ssh\""));
    let mut command = packetloom();
    command.current_dir(&folder).args([
        "run",
        "chain.toml",
        "-r",
        "edge.pcap",
        "--reload-at",
        "2000=next.toml",
    ]);
    succeed(command.args(["--summary", "s.json"]));
    let frames = pcapng(&folder.path().join("m.pcapng"));
    let (first, next): (Vec<_>, Vec<_>) =
        frames.iter().partition(|frame| frame.comment().starts_with("first.rules:2: "));
    assert!(!first.is_empty() && next.iter().all(|frame| frame.comment().starts_with("next.rules:5: ")));
    let summary = json(&folder.path().join("s.json"));
    assert_eq!(first.len() + next.len(), frames.len());
    let hits = |function: &Value, id: &str| {
        let hits = function["hits"].as_array().expect("hits");
        hits.iter().find(|hit| hit["id"] == id).map(|hit| hit["packets"].as_u64().expect("a number"))
    };
    assert_eq!(hits(&summary["replaced"][0], "dns"), Some(first.len() as u64));
    assert_eq!(hits(&summary["functions"][0], "dns"), Some(next.len() as u64));
    let arguments = ["run", "chain.toml", "-r", "edge.pcap", "--reload-at", "2000=other.toml"];
    let output = run(packetloom().current_dir(&folder).args(arguments));
    assert!(stderr(&output).contains("matched is "), "{}", stderr(&output));
}
