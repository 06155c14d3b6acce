//! Rules that change during a run: every device says the same, packet by packet, and what cannot be done is said beforehand.

#![allow(missing_docs)]

mod support;

use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::Output;

use support::{json, packetloom, packets, root, run, stderr};

/// Runs `chain` over `capture`, with the changes in the folder.
fn run_with(folder: &Path, chain: &str, capture: &Path) -> Output {
    let at = |file: &str| folder.join(file);
    fs::write(at("chain.toml"), chain).expect("written");
    let mut command = packetloom();
    command.arg("run").arg(at("chain.toml")).arg("-r").arg(capture).arg("-w").arg(at("passed.pcap"));
    command.arg("--summary").arg(at("summary.json")).arg("--rules-changes").arg(at("changes"));
    run(&mut command)
}

const DEVICES: [&str; 5] = [
    "device = \"oracle\"",
    "device = \"cpu\"",
    "device = \"cpu\"\nbatch = 1",
    "device = \"cpu\"\nbatch = 3",
    "device = \"cpu\"\nbatch = 65535",
];

/// What passes and the summary, which all devices must agree on.
fn results(folder: &Path, chain: &str, capture: &Path) -> (Vec<u8>, serde_json::Value) {
    let mut all = DEVICES.map(|device| {
        let output = run_with(folder, &format!("{chain}\n[run]\n{device}\n"), capture);
        assert!(output.status.success(), "{device}: {}", stderr(&output));
        let summary = json(&folder.join("summary.json"));
        (fs::read(folder.join("passed.pcap")).expect("packets"), summary)
    });
    for (device, result) in DEVICES.iter().zip(&all) {
        assert_eq!(result.1, all[0].1, "{device}");
        assert!(result.0 == all[0].0, "{device}: other packets pass");
    }
    std::mem::take(&mut all[0])
}

const ACL: &str = "[[chain]]\nnf = \"acl\"\nrules = \"rules\"\n";

#[test]
fn packets_meet_the_rules_of_their_time() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |file: &str| folder.path().join(file);
    let line = "0.0 tcp 10.0.0.1:1000 > 192.0.2.1:80 flags S\n";
    fs::write(at("in.pcap"), packets::pcap(&line.repeat(8))).expect("written");
    fs::write(at("rules"), "permit tcp from 10.0.0.1 to any id web\n").expect("written");
    // Two transactions before the same packet; one that changes nothing in the end; one after the last packet.
    fs::write(
        at("changes"),
        "at 2\nadd first deny tcp from any to any port 80 id no-web\ncommit\n\
         at 3\ndelete no-web\ncommit\nreplace web deny tcp from any to any port 80\ncommit\n\
         at 5\ndelete web\nadd permit any from any to any id all\ncommit\n\
         at 6\nadd first deny any from any to any id never\ndelete never\ncommit\n\
         at 8\ndelete all\ncommit\n",
    )
    .expect("written");
    let (_, summary) = results(folder.path(), ACL, &at("in.pcap"));
    assert_eq!((&summary["passed"], &summary["dropped"]["acl_rule"]), (&5.into(), &3.into()));
    let hits = summary["functions"][0]["hits"].as_array().expect("hits");
    let found: Vec<_> = hits
        .iter()
        .map(|hit| (hit["rule"].as_u64(), hit["line"].as_u64(), hit["id"].as_str(), hit["packets"].as_u64()))
        .collect();
    let hit = |rule, line, id, packets| (Some(rule), Some(line), Some(id), Some(packets));
    assert_eq!(
        found,
        [hit(0, 1, "web", 2), hit(1, 2, "no-web", 1), hit(2, 7, "web", 2), hit(3, 11, "all", 3)]
    );
    assert_eq!(summary["functions"][0]["rules"], 5);
}

#[test]
fn random_changes_over_recorded_traffic_are_as_the_oracle_says() {
    let folder = tempfile::tempdir().expect("a folder");
    let edge = root().join("examples/edge");
    let text = fs::read_to_string(edge.join("edge.rules")).expect("rules");
    fs::write(folder.path().join("rules"), &text).expect("written");
    let rules: Vec<&str> = text
        .lines()
        .map(|line| {
            line.split('#').next().unwrap_or_default().split(" id ").next().unwrap_or_default().trim()
        })
        .filter(|line| !line.is_empty())
        .collect();
    let mut random = 1u64;
    let mut below = |limit: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as usize % limit
    };
    let (mut changes, mut names, mut at) = (String::new(), Vec::<String>::new(), 0);
    for transaction in 0..400 {
        at += below(25);
        let _ = writeln!(changes, "at {at}");
        for change in 0..=below(3) {
            let rule = rules[below(rules.len())];
            let other = if below(2) == 0 { rule.replacen("permit", "deny", 1) } else { rule.into() };
            let id = format!("t{transaction}.{change}");
            let _ = match below(if names.is_empty() { 3 } else { 8 }) {
                0 => writeln!(changes, "add first {other} id {id}"),
                1 => writeln!(changes, "add {other} id {id}"),
                2 => writeln!(changes, "add at 1 {other} id {id}"),
                3 => writeln!(changes, "add before {} {other} id {id}", names[below(names.len())]),
                4 => writeln!(changes, "add after {} {other} id {id}", names[below(names.len())]),
                5 => {
                    let name = names.swap_remove(below(names.len()));
                    let _ = writeln!(changes, "replace {name} {other} id {id}");
                    names.push(id);
                    continue;
                }
                _ => {
                    let _ = writeln!(changes, "delete {}", names.swap_remove(below(names.len())));
                    continue;
                }
            };
            names.push(id);
        }
        changes.push_str("commit\n");
    }
    fs::write(folder.path().join("changes"), changes).expect("written");
    let (_, summary) = results(folder.path(), ACL, &edge.join("edge.pcap"));
    let hit = summary["functions"][0]["rules_hit"].as_u64().expect("a number");
    assert!(hit > 30, "{hit} rules were hit");
}

#[test]
fn what_cannot_be_done_is_said_before_the_run() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |file: &str| folder.path().join(file);
    fs::write(at("in.pcap"), packets::pcap("0.0 udp 10.0.0.1:1 > 10.0.0.2:2\n")).expect("written");
    fs::write(at("rules"), "permit any from any to any id a\n").expect("written");
    let name = at("changes").display().to_string();
    let known = "expected the id of a rule of the list, or @N for the one with number N";
    for (changes, chain, code, message) in [
        ("delete b\ncommit\n", ACL.to_owned(), 78, format!("{name}:1: no rule b; {known}")),
        (
            "at 9\ndelete a\ncommit\n\ndelete a\ncommit\n",
            ACL.into(),
            78,
            format!("{name}:5: no rule a; {known}"),
        ),
        (
            "delete a\ncommitt\n",
            ACL.into(),
            78,
            format!(
                "{name}:2: \"committ\"; expected at, add, delete, replace or commit; did you mean \"commit\"?"
            ),
        ),
        (
            "delete a\ncommit\n",
            ACL.repeat(2),
            78,
            format!("{name}: the chain has 2 functions with rules; expected one, which the changes are for"),
        ),
        (
            "delete a\ncommit\n",
            format!("{ACL}[run]\nworkers = 2\n"),
            2,
            "--rules-changes with 2 workers; expected 1".into(),
        ),
    ] {
        fs::write(at("changes"), changes).expect("written");
        let output = run_with(folder.path(), &chain, &at("in.pcap"));
        assert_eq!((output.status.code(), stderr(&output)), (Some(code), format!("packetloom: {message}\n")));
        assert!(!at("passed.pcap").exists(), "nothing is written");
    }
}
