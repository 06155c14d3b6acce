//! `packetloom acl check` and `packetloom acl explain`.

#![allow(missing_docs)]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use packetloom_classify::formats::{self, Headers};
use packetloom_classify::{Action, Kind, NO_RULE, RuleSet};
use serde_json::{Value, json};
use support::{packetloom, run, stderr, succeed};
use tempfile::TempDir;

fn folder() -> TempDir {
    tempfile::tempdir().expect("a folder")
}

const RULES: &str = "\
# A rule of every sort.
permit tcp from any to 192.0.2.0/25 port 443 id low
permit tcp from any to 192.0.2.128/25 port 443 id high
deny tcp from 198.51.100.0/24 to 192.0.2.0/24 port 443 id late

permit udp from any to 192.0.2.53 port 53
permit udp from 203.0.113.0/24 to 192.0.2.53 port 53 id again
permit tcp from any to any flags S/SA fragment later
deny icmp from 203.0.113.0/24 to any
permit icmp from any to 192.0.2.0/24 type 8
";

/// What is printed about [`RULES`], and the exit code.
fn check(arguments: &[&str]) -> (String, String, Option<i32>) {
    let folder = folder();
    fs::write(folder.path().join("f.rules"), RULES).expect("written");
    let output = run(packetloom().current_dir(&folder).args(["acl", "check", "f.rules"]).args(arguments));
    (String::from_utf8(output.stdout.clone()).expect("text"), stderr(&output), output.status.code())
}

const TEXT: &str = "\
f.rules:4: shadowed: earlier rules match all its packets, not all with its action
    deny tcp from 198.51.100.0/24 to 192.0.2.0/24 port 443 id late
    line 2: permit tcp from 0.0.0.0/0 to 192.0.2.0/25 port 443 id low
    line 3: permit tcp from 0.0.0.0/0 to 192.0.2.128/25 port 443 id high
f.rules:4: correlated with lines 2 and 3: the order matters
f.rules:7: redundant: earlier rules with its action match all its packets
    permit udp from 203.0.113.0/24 to 192.0.2.53/32 port 53 id again
    line 6: permit udp from 0.0.0.0/0 to 192.0.2.53/32 port 53
f.rules:8: unmatchable: no packet meets all its conditions
    permit tcp from any to any flags S/SA fragment later
f.rules:10: correlated with line 9: the order matters
";

#[test]
fn findings_are_text_for_people() {
    let (text, table, code) = check(&[]);
    assert_eq!((text.as_str(), code), (TEXT, Some(0)));
    let words: Vec<_> = table.split_ascii_whitespace().collect();
    let expected = "rules 8 unmatchable 1 shadowed 1 redundant 1 covered 0 undecided 0 correlated pairs 3";
    assert_eq!(words.join(" "), expected);

    let (text, _, _) = check(&["--show", "1"]);
    assert!(text.contains("id low\n    and 1 other\n"), "{text}");
    assert!(text.contains("correlated with lines 2 and 1 other: the order"), "{text}");
    let (text, _, _) = check(&["--show", "0", "--default", "permit"]);
    assert!(text.contains("id late\n    and 2 others\n"), "{text}");
    assert!(
        text.contains("f.rules:10: redundant: the default decides its packets in the same way\n"),
        "{text}"
    );
    let (text, table, _) = check(&["--work", "3"]);
    assert!(text.contains("f.rules:4: undecided: to decide this takes more than 3 comparisons (--work)\n"));
    assert!(table.contains("undecided"), "{table}");
}

#[test]
fn findings_are_json_for_programs() {
    let (text, table, code) = check(&["--json"]);
    assert_eq!((table.as_str(), code), ("", Some(0)));
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let rule = |line: u32, position: u32, id: Option<&str>, text: &str| {
        let action = text.split(' ').next();
        json!({ "line": line, "position": position, "id": id, "comment": null, "action": action, "rule": text })
    };
    let low = rule(2, 0, Some("low"), "permit tcp from 0.0.0.0/0 to 192.0.2.0/25 port 443 id low");
    let high = rule(3, 1, Some("high"), "permit tcp from 0.0.0.0/0 to 192.0.2.128/25 port 443 id high");
    let mut late = rule(4, 2, Some("late"), "deny tcp from 198.51.100.0/24 to 192.0.2.0/24 port 443 id late");
    late["verdict"] = "shadowed".into();
    late["causes"] = json!({ "count": 2, "minimal": true, "rules": [low, high] });
    late["correlated"] = json!({ "count": 2, "rules": [low, high] });
    assert_eq!(lines[0], late);
    assert_eq!(
        (lines.len(), &lines[1]["side"], &lines[1]["causes"]["rules"][0]["line"]),
        (5, &json!("earlier"), &json!(6))
    );
    assert_eq!(
        (&lines[2]["verdict"], &lines[2]["id"], &lines[2]["causes"]),
        (&json!("unmatchable"), &Value::Null, &Value::Null)
    );
    assert_eq!((&lines[3]["verdict"], &lines[3]["correlated"]["count"]), (&json!("effective"), &json!(1)));
    let summary = json!({ "rules": 8, "unmatchable": 1, "shadowed": 1, "redundant": 1, "covered": 0, "undecided": 0, "correlated_pairs": 3, "left_out": 0 });
    assert_eq!(lines[4], json!({ "summary": summary }));

    let (text, _, _) = check(&["--json", "--show", "0", "--default", "permit"]);
    let value: Value = serde_json::from_str(text.lines().rev().nth(1).expect("a line")).expect("JSON");
    assert_eq!((&value["line"], &value["side"]), (&json!(10), &json!("later")));
    assert_eq!((&value["left_to_default"], &value["causes"]["count"]), (&json!(true), &json!(0)));
    let (text, _, _) = check(&["--json", "--work", "3"]);
    let value: Value = serde_json::from_str(text.lines().next().expect("a line")).expect("JSON");
    assert_eq!((&value["verdict"], &value["never_hit"]), (&json!("undecided"), &json!(false)));
    assert_eq!(value["correlated"], Value::Null);
}

#[test]
fn strict_fails_where_rules_do_nothing() {
    let (text, said, code) = check(&["--strict"]);
    assert_eq!((text.as_str(), code), (TEXT, Some(3)));
    assert!(said.ends_with("packetloom: 3 rules with findings\n"), "{said}");
    // Correlated rules alone are no reason to fail.
    let folder = folder();
    let file = folder.path().join("fine.rules");
    fs::write(&file, "deny icmp from 203.0.113.0/24 to any\npermit icmp from any to any type 8\n")
        .expect("written");
    let text = succeed(packetloom().args(["acl", "check", "--strict"]).arg(&file));
    assert!(text.ends_with("correlated with line 1: the order matters\n"), "{text}");
    // Findings are there also when the command fails.
    fs::write(&file, "deny any from any to any\n".repeat(2)).expect("written");
    let findings = folder.path().join("findings");
    let output = run(packetloom().args(["acl", "check", "--strict", "-o"]).arg(&findings).arg(&file));
    assert_eq!((output.status.code(), output.stdout.len()), (Some(3), 0));
    assert_eq!(fs::read_to_string(findings).expect("text").lines().count(), 5);
}

#[test]
fn rules_without_actions_are_covered_until_they_are_given_one() {
    let line = |source| format!("@{source}\t0.0.0.0/0\t0 : 65535\t0 : 65535\t0x06/0xFF\t0x1000/0x1000\n");
    let rules = [line("10.0.0.0/9"), line("10.128.0.0/9"), line("10.0.0.0/8")].concat();
    let check = |arguments: &[&str]| {
        let mut command = packetloom();
        command.args(["acl", "check", "-"]).args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.stderr(Stdio::null()).spawn().expect("started");
        child.stdin.take().expect("a pipe").write_all(rules.as_bytes()).expect("written");
        String::from_utf8(child.wait_with_output().expect("ended").stdout).expect("text")
    };
    let text = check(&[]);
    assert!(
        text.starts_with("-:3: covered: earlier rules match all its packets\n    tcp from 10.0.0.0/8"),
        "{text}"
    );
    assert_eq!(text.lines().count(), 4);
    let text = check(&["--rule-action", "deny", "--ignore-flags"]);
    let redundant = "-:3: redundant: earlier rules with its action match all its packets\n    deny tcp";
    assert!(text.contains(redundant) && !text.contains("flags"), "{text}");
}

#[test]
fn bad_rules_and_arguments_have_their_exit_codes() {
    let folder = folder();
    let file = folder.path().join("bad.rules");
    fs::write(&file, "permit tcp from any to any\npermit ip from any to any\n").expect("written");
    for verb in [&["check"][..], &["explain", "--packet", "udp 192.0.2.1:1 > 192.0.2.2:2"]] {
        let output = run(packetloom().arg("acl").args(verb).arg(&file));
        assert_eq!((output.status.code(), output.stdout.len()), (Some(78), 0));
        assert!(
            stderr(&output).contains("bad.rules:2: protocol \"ip\"; expected any, "),
            "{}",
            stderr(&output)
        );
        let output = run(packetloom().arg("acl").args(verb).arg("/nonexistent"));
        assert_eq!(output.status.code(), Some(1));
    }
    for work in ["0", "100000001", "-1", "much"] {
        let output = run(packetloom().args(["acl", "check", "--work", work]).arg(&file));
        assert_eq!(output.status.code(), Some(2), "{work}");
    }
}

/// Rules for sources across rules for destinations, `count` of each.
fn crossing(count: u32) -> String {
    let prefix = |at: u32| std::net::Ipv4Addr::from(at << 16);
    let sources = (0..count).map(|at| format!("permit any from {}/16 to any\n", prefix(at)));
    let destinations = (0..count).map(|at| format!("deny any from any to {}/16\n", prefix(at)));
    sources.chain(destinations).collect()
}

#[test]
fn an_interrupt_ends_the_check() {
    let folder = folder();
    let file = folder.path().join("crossing.rules");
    // Findings that are quickly made come first, as many as are written at a time.
    let nothing = "permit tcp from any to any flags S/SA fragment later\n".repeat(2_000);
    fs::write(&file, nothing + &crossing(20_000)).expect("written");
    let mut command = packetloom();
    command.args(["acl", "check", "--work", "100000000"]).arg(&file);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("started");
    // The first finding is there: it is at work.
    let mut line = String::new();
    let mut stdout = BufReader::new(child.stdout.take().expect("a pipe"));
    stdout.read_line(&mut line).expect("a line");
    let begin = Instant::now();
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::INT)
        .expect("signalled");
    std::io::copy(&mut stdout, &mut std::io::sink()).expect("read");
    let output = child.wait_with_output().expect("ended");
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(1), "packetloom: interrupted\n"));
    assert!(begin.elapsed() < Duration::from_secs(60), "{:?}", begin.elapsed());
}

#[test]
fn a_closed_pipe_ends_the_check_quietly() {
    let folder = folder();
    let file = folder.path().join("again.rules");
    fs::write(&file, "permit any from any to any\n".repeat(10_000)).expect("written");
    let mut command = packetloom();
    command.args(["acl", "check"]).arg(&file).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("started");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut line).expect("a line");
    assert!(line.contains("again.rules:1: redundant"), "{line}");
    let output = child.wait_with_output().expect("ended");
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), ""));
}

fn headers(path: &Path) -> Headers {
    let mut reader = packetloom_io::input::open_text(path).expect("headers");
    formats::read_headers("headers", &mut *reader).expect("headers")
}

/// For each header, the first rule that matches it.
fn first(rules: &RuleSet, headers: &Headers) -> Vec<u32> {
    let classifier = Kind::TupleMerge.build(rules);
    let mut v4 = vec![0; headers.v4.len()];
    classifier.classify_v4(&headers.v4, &mut v4);
    let mut v6 = vec![0; headers.v6.len()];
    classifier.classify_v6(&headers.v6, &mut v6);
    [v4, v6].concat()
}

fn decisions(rules: &RuleSet, first: &[u32]) -> Vec<Option<Action>> {
    let action = |&position: &u32| match position {
        NO_RULE => Some(Action::Deny),
        position => rules.rules[position as usize].action,
    };
    first.iter().map(action).collect()
}

/// In large sets too, what is said to do nothing can be taken out, one rule at a time or all that are never hit.
#[test]
fn findings_in_generated_rules_hold_for_headers_that_meet_them() {
    let folder = folder();
    let (rules, trace) = (folder.path().join("g.rules"), folder.path().join("g.trace"));
    let mut kinds: BTreeMap<String, u32> = BTreeMap::new();
    for (style, ipv6) in [("acl", false), ("fw", false), ("ipc", false), ("fw", true)] {
        let mut command = packetloom();
        command.args(["generate", "rules", "--style", style, "--rules", "2000", "--format", "native", "-o"]);
        succeed(command.arg(&rules).args(ipv6.then_some("--ipv6")));
        // Addresses of IPv6 rules only match headers made for the rule itself.
        let mut command = packetloom();
        command.args(["generate", "headers", "--headers", "20000", "--format", "native", "-o"]).arg(&trace);
        succeed(command.arg("--rules").arg(&rules).args((!ipv6).then_some("--mix")));
        let headers = headers(&trace);
        // The generator puts wide rules last, where they cover nothing: they change places with rules of all parts.
        let text = fs::read_to_string(&rules).expect("text");
        let mut lines: Vec<_> = text.lines().collect();
        let last = lines.len() - 1;
        (0..last).for_each(|at| lines.swap(at, at * 7_919 % last));
        let text = lines.join("\n");
        fs::write(&rules, &text).expect("written");
        let options = formats::Options::default();
        let all = formats::read_rules("g", &mut text.as_bytes(), &options).expect("rules").rules;
        let hit = first(&all, &headers);
        let decided = decisions(&all, &hit);
        let findings = succeed(packetloom().args(["acl", "check", "--json"]).arg(&rules));
        let without = |taken: &BTreeSet<u64>| {
            let left = all.rules.iter().zip(0..).filter(|(_, at)| !taken.contains(at));
            let left = RuleSet { rules: left.map(|(rule, _)| rule.clone()).collect() };
            let hit = first(&left, &headers);
            decisions(&left, &hit)
        };
        let mut never_hit = BTreeSet::new();
        for finding in findings.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON")) {
            let Some(verdict) = finding["verdict"].as_str().filter(|&verdict| verdict != "effective") else {
                continue;
            };
            let position = finding["position"].as_u64().expect("a position");
            let side = finding["side"].as_str().unwrap_or_default();
            if side != "later" {
                assert!(!hit.contains(&(position as u32)), "{style}: {finding}");
                never_hit.insert(position);
            }
            let count = kinds.entry(format!("{style} {verdict} {side}")).or_default();
            *count += 1;
            if *count <= 12 {
                assert!(without(&BTreeSet::from([position])) == decided, "{style}: {finding}");
            }
        }
        assert!(without(&never_hit) == decided, "{style}: {} rules at once", never_hit.len());
    }
    assert!(kinds.len() == 9 && kinds.values().all(|&count| count > 50), "{kinds:?}");
}

/// What is explained about [`RULES`].
fn explain(arguments: &[&str]) -> (String, String, Option<i32>) {
    let folder = folder();
    let file = folder.path().join("f.rules");
    fs::write(&file, RULES).expect("written");
    let output = run(packetloom().args(["acl", "explain"]).arg(&file).args(arguments));
    (String::from_utf8(output.stdout.clone()).expect("text"), stderr(&output), output.status.code())
}

#[test]
fn a_packet_is_explained_by_the_rules_that_match_it() {
    let arguments = [
        "--packet",
        " tcp 198.51.100.7:40000 > 192.0.2.200:443 flags S",
        "--packet",
        "icmp 203.0.113.9 > 192.0.2.1 type 8 code 0",
        "--packet",
        "17 [2001:db8::1]:53 > [2001:db8::2]:53 fragment first",
        "--packet",
        "udp 203.0.113.9 > 192.0.2.53 fragment later",
    ];
    let expected = "\
tcp 198.51.100.7:40000 > 192.0.2.200:443 flags S: permit
    by   line 3: permit tcp from 0.0.0.0/0 to 192.0.2.128/25 port 443 id high
    then line 4: deny tcp from 198.51.100.0/24 to 192.0.2.0/24 port 443 id late
    then the default: deny
icmp 203.0.113.9 > 192.0.2.1 type 8 code 0: deny
    by   line 9: deny icmp from 203.0.113.0/24 to 0.0.0.0/0
    then line 10: permit icmp from 0.0.0.0/0 to 192.0.2.0/24 type 8
    then the default: deny
17 [2001:db8::1]:53 > [2001:db8::2]:53 fragment first: deny
    by   the default: deny
udp 203.0.113.9 > 192.0.2.53 fragment later: deny
    by   the default: deny
";
    assert_eq!(explain(&arguments), (expected.into(), String::new(), Some(0)));
    let (text, _, _) = explain(&["--show", "0", "--default", "permit", "--packet", arguments[3]]);
    assert!(text.ends_with("to 0.0.0.0/0\n    then 1 more\n    then the default: permit\n"), "{text}");

    let (text, _, _) = explain(&["--json", "--packet", arguments[3], "--packet", arguments[5]]);
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let (deny, permit) =
        ("deny icmp from 203.0.113.0/24 to 0.0.0.0/0", "permit icmp from 0.0.0.0/0 to 192.0.2.0/24 type 8");
    let expected = json!({
        "packet": arguments[3],
        "action": "deny",
        "unless": [],
        "by": { "line": 9, "position": 6, "id": null, "comment": null, "action": "deny", "rule": deny },
        "then": [{ "line": 10, "position": 7, "id": null, "comment": null, "action": "permit", "rule": permit }],
        "more": 0,
        "default": "deny",
    });
    assert_eq!(lines[0], expected);
    assert_eq!((&lines[1]["by"], &lines[1]["action"]), (&Value::Null, &json!("deny")));
}

#[test]
fn rules_without_actions_explain_what_they_can() {
    let folder = folder();
    let file = folder.path().join("c.rules");
    fs::write(&file, "@10.0.0.0/8\t0.0.0.0/0\t0 : 65535\t53 : 53\t0x11/0xFF\t0x0000/0x0000\n")
        .expect("written");
    let explain = |arguments: &[&str]| {
        let packet = ["--packet", "udp 10.1.2.3:4 > 192.0.2.1:53"];
        succeed(packetloom().args(["acl", "explain"]).arg(&file).args(packet).args(arguments))
    };
    let rule = "udp from 10.0.0.0/8 to 0.0.0.0/0 port 53\n    then the default: deny\n";
    assert_eq!(explain(&[]), format!("udp 10.1.2.3:4 > 192.0.2.1:53: no action\n    by   line 1: {rule}"));
    let permit = explain(&["--rule-action", "permit"]);
    assert_eq!(permit, format!("udp 10.1.2.3:4 > 192.0.2.1:53: permit\n    by   line 1: permit {rule}"));
    let value: Value = serde_json::from_str(&explain(&["--json"])).expect("JSON");
    assert_eq!((&value["action"], &value["by"]["action"]), (&Value::Null, &Value::Null));
}

#[test]
fn packets_that_make_no_sense_are_refused() {
    let cases = [
        ("", "the line ends; expected a protocol"),
        ("tpc 192.0.2.1:1 > 192.0.2.2:2", "protocol \"tpc\"; expected a name such as tcp"),
        ("tcp 192.0.2.1:1 192.0.2.2:2", "\"192.0.2.2:2\"; expected \">\""),
        ("tcp 192.0.2.1:1 > 192.0.2.2", "a port on one side only; expected both or none"),
        ("tcp 192.0.2.1:1 > [2001:db8::2]:2", "one address is IPv4 and the other IPv6"),
        ("udp 192.0.2.1:1 > 192.0.2.2:2 flags S", "\"flags\"; expected type, code, flags (tcp), fragment"),
        ("tcp 192.0.2.1:1 > 192.0.2.2:70000", "port \"70000\"; expected a number from 0 to 65535"),
        ("icmp 192.0.2.1 > 192.0.2.2 code 0", "\"code\" without a type"),
        ("tcp 192.0.2.1:1 > 192.0.2.2:2 fragment later", "expected none of them"),
    ];
    for (packet, expected) in cases {
        let (text, said, code) = explain(&["--packet", packet]);
        assert_eq!((text.as_str(), code), ("", Some(2)), "{packet}");
        assert!(said.contains(expected), "{packet}: {said}");
    }
    let (_, said, code) = explain(&[]);
    assert!(said.contains("--packet") && code == Some(2), "{said}");
}

/// What stands between two fences, with the word behind the first one's language.
fn blocks<'a>(text: &'a str, language: &str) -> Vec<(&'a str, &'a str)> {
    let fence = format!("```{language}");
    let after = text.split(&fence).skip(1).filter_map(|rest| rest.split("\n```").next());
    after.filter_map(|block| block.split_once('\n')).map(|(word, block)| (word.trim(), block)).collect()
}

#[test]
fn the_examples_of_the_documentation_are_what_is_printed() {
    let folder = folder();
    let text = fs::read_to_string(support::root().join("docs/acl-analysis.md")).expect("text");
    for (name, rules) in blocks(&text, "rules ") {
        fs::write(folder.path().join(name), rules).expect("written");
    }
    let examples = blocks(&text, "console");
    assert_eq!(examples.len(), 5);
    for (_, example) in examples {
        let (command, expected) = example.split_once('\n').expect("a command and what it prints");
        let command = command.strip_prefix("$ packetloom ").expect("our command");
        // Words, of which every second one between quotation marks is one whatever is in it.
        let parts = command.split('"').enumerate();
        let words = parts.flat_map(|(at, part)| match at % 2 {
            0 => part.split_ascii_whitespace().collect(),
            _ => vec![part],
        });
        let output = run(packetloom().current_dir(&folder).args(words));
        let printed = String::from_utf8_lossy(&output.stdout).into_owned() + &stderr(&output);
        assert_eq!(printed.trim_end(), expected, "{command}");
    }
}

/// Line 6 permits what the policy permits too, but line 7, which is left out, stands between. Line 11 is left out as well, and
/// line 9, which decides nothing.
const LEFT_OUT: &str = "\
*filter
:INPUT ACCEPT [0:0]
:FORWARD DROP [0:0]
:LATE - [0:0]
-A INPUT -p tcp --dport 80 -j ACCEPT
-A INPUT -s 192.0.2.0/24 -p tcp --dport 22 -j ACCEPT
-A INPUT -p tcp -m recent --update --seconds 60 --name ssh -j DROP
-A INPUT -p tcp --dport 80 -j DROP
-A INPUT -m limit --limit 5/min -j LOG
-A INPUT -p udp --dport 53 -j ACCEPT
-A INPUT -o eth0 -p tcp --dport 443 -j LATE
-A INPUT -p tcp --dport 8080 -j LATE
-A LATE -p tcp --dport 443 -j DROP
COMMIT
";

/// Runs `acl VERB` on [`LEFT_OUT`].
fn left_out(verb: &str, arguments: &[&str]) -> (String, String) {
    let folder = folder();
    fs::write(folder.path().join("f.save"), LEFT_OUT).expect("written");
    let output = run(packetloom()
        .current_dir(&folder)
        .args(["acl", verb, "f.save", "--list", "INPUT", "--skip-unsupported"])
        .args(arguments));
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    (String::from_utf8(output.stdout.clone()).expect("text"), stderr(&output))
}

/// Line 6 would be redundant without line 7, and line 10 is: the left-out lines behind it cannot match its packets.
#[test]
fn no_finding_depends_on_what_is_left_out() {
    let (text, said) = left_out("check", &[]);
    let expected = "\
f.save:8: shadowed: earlier rules match all its packets, not all with its action
    deny tcp from 0.0.0.0/0 to 0.0.0.0/0 port 80
    line 5: permit tcp from 0.0.0.0/0 to 0.0.0.0/0 port 80
f.save:10: redundant: the default decides its packets in the same way
    permit udp from 0.0.0.0/0 to 0.0.0.0/0 port 53
";
    assert_eq!(text, expected);
    assert!(said.starts_with(
            "packetloom: 3 of 9 rules left out: -m recent 1, -m limit 1, -o 1\n    f.save:7: `-m recent` has no equal here\n"
        ), "{said}");
    let words: Vec<&str> = said.split_ascii_whitespace().collect();
    assert!(words.ends_with(&["correlated", "pairs", "0", "left", "out", "3"]), "{said}");

    let (text, _) = left_out("check", &["--json"]);
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let found: Vec<_> = lines.iter().map(|line| (&line["line"], &line["verdict"])).collect();
    let expected =
        [(&json!(8), &json!("shadowed")), (&json!(10), &json!("redundant")), (&Value::Null, &Value::Null)];
    assert_eq!(found, expected);
    assert_eq!(lines[2]["summary"]["left_out"], json!(3));
}

#[test]
fn packets_that_left_out_lines_may_decide_are_explained_so() {
    let ssh = "tcp 192.0.2.1:4711 > 198.51.100.1:22";
    let https = "tcp 192.0.2.1:4711 > 198.51.100.1:443";
    let smtp = "tcp 192.0.2.1:4711 > 198.51.100.1:25";
    let dns = "udp 192.0.2.1:4711 > 198.51.100.1:53";
    let packets = ["--packet", ssh, "--packet", https, "--packet", smtp, "--packet", dns];
    let (text, _) = left_out("explain", &packets);
    let expected = format!(
        "\
{ssh}: permit
    by   line 6: permit tcp from 192.0.2.0/24 to 0.0.0.0/0 port 22
    then the default: permit
{https}: permit, unless one of the left-out lines 7 and 11 decides
    unless line 7: `-m recent` has no equal here
    unless line 11: `-o eth0` has no equal here
    by   the default: permit
{smtp}: permit, unless left-out line 7 decides
    unless line 7: `-m recent` has no equal here
    by   the default: permit
{dns}: permit
    by   line 10: permit udp from 0.0.0.0/0 to 0.0.0.0/0 port 53
    then the default: permit
"
    );
    assert_eq!(text, expected);
    let (text, _) = left_out("explain", &["--show", "1", "--packet", https]);
    assert!(text.contains("    unless line 7: `-m recent` has no equal here\n    unless 1 more\n"), "{text}");

    let (text, _) = left_out("explain", &[&["--json"][..], &packets[..4]].concat());
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let recent = json!({ "line": 7, "left_out": "`-m recent` has no equal here" });
    let interface = json!({ "line": 11, "left_out": "`-o eth0` has no equal here" });
    assert_eq!((&lines[0]["action"], &lines[0]["unless"]), (&json!("permit"), &json!([])));
    assert_eq!((&lines[1]["action"], &lines[1]["unless"]), (&json!("permit"), &json!([recent, interface])));
}

/// A rule that admits connections is another action, not a kind of permit.
#[test]
fn rules_that_admit_connections_are_told_apart() {
    let folder = folder();
    let file = folder.path().join("f.rules");
    let rules = "reflect tcp from 10.0.0.0/8 to any id out\npermit tcp from 10.0.0.0/9 to any\n\
                 reflect tcp from 10.1.0.0/16 to any port 80\n";
    fs::write(&file, rules).expect("written");
    let packet = ["--packet", "tcp 10.1.2.3:4711 > 192.0.2.80:80"];
    let text = succeed(packetloom().args(["acl", "explain"]).arg(&file).args(packet));
    assert!(
        text.starts_with("tcp 10.1.2.3:4711 > 192.0.2.80:80: reflect\n    by   line 1: reflect tcp"),
        "{text}"
    );
    let text = succeed(packetloom().args(["acl", "check"]).arg(&file));
    assert!(text.contains("f.rules:2: shadowed: ") && text.contains("f.rules:3: redundant: "), "{text}");
}
