//! Rules of a run that change in transactions.

use std::fs;
use std::io::{BufReader, Read, Write};
use std::process::{Output, Stdio};
use std::time::Duration;

use serde_json::{Value, json};

use crate::flows::check_schema;
use crate::support::{packetloom, packets, run, stderr, succeed};
use crate::{CHAIN, Fed, PACKETS, WAYS, answer};

/// Asks by the command, with these statements as its standard input.
fn change(fed: &Fed, arguments: &[&str], statements: &str) -> Output {
    let mut client = fed.control("change");
    client.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = client.spawn().expect("started");
    // It may end before it has read all.
    let _ = child.stdin.take().expect("piped").write_all(statements.as_bytes());
    child.wait_with_output().expect("ended")
}

/// What each rule decided: its number, line, id, text and packets.
fn told(fed: &Fed) -> Vec<String> {
    let answer = fed.ask(r#"{"command":"rules","function":0}"#);
    let rules = answer["rules"].as_array().unwrap_or_else(|| panic!("{answer}"));
    let told = rules.iter().map(|rule| {
        format!(
            "{} {} {} {}: {}",
            rule["number"],
            rule["line"],
            rule["id"],
            rule["text"].as_str().expect("text"),
            rule["packets"]
        )
    });
    told.collect()
}

/// By every way to run: packets before a transaction meet the rules before it, those after it the others; rules that stay go on to be counted, and
/// packets of those that are gone are in the sums.
#[test]
fn rules_change_between_packets() {
    for way in WAYS {
        let mut fed = Fed::start(CHAIN, way);
        fed.packets(0..3);
        fed.counters_at(3);
        let statements = "# the third client stays out\nadd first deny tcp from 10.0.0.3 to any id third\nadd permit tcp from any to any port 81 id more # those too\n";
        let output = change(&fed, &["--json"], statements);
        assert!(output.status.success(), "{way}: {}", stderr(&output));
        let changed: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        check_schema("control-change", &changed);
        let expected = json!({ "version": env!("CARGO_PKG_VERSION"), "function": 0, "nf": "acl", "added": 2, "deleted": 0, "replaced": 0, "rules": 3 });
        assert_eq!(changed, expected, "{way}");
        assert_eq!(
            told(&fed),
            [
                "1 null \"third\" deny tcp from 10.0.0.3/32 to 0.0.0.0/0 id third: 0",
                "0 1 null permit tcp from any to any port 80: 2",
                "2 null \"more\" permit tcp from any to any port 81 id more # those too: 0",
                "null null null default: 1",
            ],
            "{way}"
        );
        fed.packets(3..6);
        let counters = fed.counters_at(6);
        assert_eq!(counters["passed"], 4, "{way}: {counters}");
        // From a file, and by statements in arguments.
        fs::write(fed.at("statements"), "delete third\nreplace @0 permit tcp from any to any port 8080\n")
            .expect("written");
        let output = change(&fed, &["statements", "--function", "acl"], "");
        let said = String::from_utf8(output.stdout).expect("text");
        assert_eq!(
            said, "function 0, acl: rules added: 0, deleted: 1, replaced: 1; now there are 2\n",
            "{way}"
        );
        let output = change(
            &fed,
            &["-e", "delete @2", "--statement", "add first permit any from any to any", "--function", "0"],
            "",
        );
        assert!(output.status.success(), "{way}: {}", stderr(&output));
        assert_eq!(
            told(&fed),
            [
                "3 null null permit any from any to any: 0",
                "0 null null permit tcp from any to any port 8080: 0",
                "null null null default: 1",
                "null null null deleted: 4",
            ],
            "{way}"
        );
        let lines = succeed(fed.control("rules").args(["--function", "0", "--json"]));
        for line in lines.lines() {
            let line: Value = serde_json::from_str(line).expect("JSON");
            check_schema("control-rules", &line);
        }
        let table = succeed(fed.control("rules").args(["--function", "0"]));
        let head: Vec<_> = table.lines().nth(1).expect("a head").split_whitespace().collect();
        assert_eq!(head, ["rule", "number", "line", "id", "packets", "bytes"]);
        assert!(table.contains(" @3 ") && table.contains("deleted"), "{table}");
        fed.packets(0..6);
        fed.counters_at(12);
        // The chain is read again: its rules are those of its file.
        succeed(&mut fed.control("reload"));
        assert_eq!(
            told(&fed),
            [
                "0 1 null permit tcp from any to any port 80: 0",
                "null null null default: 1",
                "null null null deleted: 9"
            ],
            "{way}"
        );
        fed.packets(0..1);
        fed.counters_at(13);
        let (summary, said) = fed.end();
        assert_eq!(summary["rule_changes"], 3, "{way}: {summary:#}");
        assert_eq!(summary["reloads"], json!({ "done": 1, "refused": 0 }));
        let acl = &summary["functions"][0];
        assert_eq!(
            acl["deleted"],
            json!({ "rules": 5, "packets": 9, "bytes": acl["deleted"]["bytes"] }),
            "{way}: {acl:#}"
        );
        // Others are not IP.
        assert_eq!(acl["hits"][0]["packets"], 1);
        assert_eq!(summary["received"], 13);
        if !way.contains("host") {
            assert!(!said.contains("warning"), "{way}: {said}");
        }
        check_schema("run", &summary);
    }
}

/// Connections that were admitted or tracked pass on, whatever becomes of the rule that let them begin.
#[test]
fn connections_go_on_when_their_rule_is_gone() {
    let chain = "[[chain]]\nnf = \"acl\"\nrules = \"rules\"\nloose = true\n";
    for way in ["--workers 1", "--workers 3", "--device oracle", "--device host"] {
        let mut fed = Fed::start(chain, way);
        assert!(
            change(&fed, &["-e", "replace @0 reflect tcp from 10.0.0.1 to any port 80"], "").status.success()
        );
        let segment = |line: &str| packets::pcap(line)[24..].to_vec();
        fed.send(&segment("1.0 tcp 10.0.0.1:1000 > 192.0.2.1:80 flags S"));
        fed.counters_at(1);
        assert!(change(&fed, &["-e", "delete @0"], "").status.success());
        // An answer of the one that was let begin; and another one, which nobody lets begin now.
        fed.send(&segment("1.1 tcp 192.0.2.1:80 > 10.0.0.1:1000 flags SA"));
        fed.send(&segment("1.2 tcp 10.0.0.1:1001 > 192.0.2.1:80 flags S"));
        let counters = fed.counters_at(3);
        assert_eq!(counters["passed"], 2, "{way}: {counters}");
        let (summary, _) = fed.end();
        let acl = &summary["functions"][0];
        assert_eq!((&acl["rules"], &acl["admitted"]["packets"]), (&json!(0), &json!(1)), "{way}: {acl}");
        assert_eq!(acl["deleted"]["packets"], 1);
    }
}

/// What cannot be read or made leaves all rules as they are, and says which statement that is, and what was expected.
#[test]
fn what_cannot_be_changed_is_refused_with_the_reason() {
    let mut fed = Fed::start(CHAIN, "--workers 2");
    fs::write(fed.at("bad"), "add permit any from any to any\n\ndelete @0 now\n").expect("written");
    fs::write(fed.at("bytes"), b"delete \xff\n").expect("written");
    fs::write(fed.at("large"), "add permit tcp from any to any port 1\n".repeat(10_000)).expect("written");
    fs::write(fed.at("quoted"), format!("delete {}", "\"\\".repeat(70_000))).expect("written");
    let before = told(&fed);
    for (arguments, statements, code, why) in [
        (
            &[][..],
            "delete @0 now\n",
            78,
            "standard input: line 1, \"delete @0 now\": \"now\"; expected the end of the line",
        ),
        (&["bad"], "", 78, "bad: line 3, \"delete @0 now\": \"now\"; expected the end of the line"),
        (&["bytes"], "", 78, "bytes: not UTF-8 text; expected statements"),
        (
            &["large"],
            "",
            2,
            "large: more statements than a line of the socket has room for; expected up to 262144 bytes",
        ),
        (&["quoted"], "", 2, "quoted: more statements than a line of the socket has room for"),
        (&["none"], "", 1, "none: No such file"),
        (&[], "", 78, "standard input: no changes; expected lines with add, delete or replace"),
        (
            &["-e", "at 5"],
            "",
            78,
            "-e: line 1, \"at 5\": \"at\"; expected add, delete or replace: all lines are one transaction",
        ),
        (
            &["-e", "add allow"],
            "",
            78,
            "-e: line 1, \"add allow\": \"allow\"; expected permit, deny or reflect",
        ),
        (
            &["-e", "delete @0", "-e", "delete web"],
            "",
            1,
            "change failed: line 2, \"delete web\": no rule web; expected the id of a rule",
        ),
        (
            &["-e", "add at 2 permit any from any to any"],
            "",
            1,
            "place 2; expected one from 0 to 1, the number of rules",
        ),
        (
            &["-e", "delete @0", "--function", "1"],
            "",
            1,
            "change failed: function number 1 is no acl of the chain; expected one of: 0",
        ),
        (&["-e", "delete @0", "file"], "", 2, "cannot be used with"),
    ] {
        let output = change(&fed, arguments, statements);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
        assert!(said.contains(why), "{arguments:?}: {said}");
        assert_eq!(told(&fed), before, "{arguments:?}");
    }
    // By the socket itself.
    let mut stream = fed.connect();
    let mut reader = BufReader::new(stream.try_clone().expect("cloned"));
    for (line, why) in [
        (r#"{"command":"change"}"#, "change expects statements: lines with add, delete or replace"),
        (
            r#"{"command":"change","statements":["delete @0"]}"#,
            "statements is [\"delete @0\"]; expected lines",
        ),
        (
            r#"{"command":"change","statements":"delete @0","at":5}"#,
            "unknown key \"at\" with change; expected \"function\", \"statements\"",
        ),
        (
            r#"{"command":"change","statements":"drop @0"}"#,
            "line 1, \"drop @0\": \"drop\"; expected add, delete or replace",
        ),
        (r#"{"command":"change","statements":"delete @0\n\u0000"}"#, "line 2, "),
        (
            r#"{"command":"change","statements":"delete @18446744073709551616"}"#,
            "expected a number from 0 to 18446744073709551615",
        ),
    ] {
        stream.write_all(format!("{line}\n").as_bytes()).expect("sent");
        let answer = answer(&mut reader);
        assert_eq!(answer["ok"], false, "{line}");
        assert!(answer["error"].as_str().expect("why").contains(why), "{line}: {answer}");
    }
    assert_eq!(told(&fed), before);
    fed.packets(0..6);
    fed.counters_at(6);
    let (summary, _) = fed.end();
    assert_eq!((&summary["rule_changes"], &summary["functions"][0]["rules"]), (&Value::Null, &json!(1)));
    // Rules that a file changes do not change otherwise; and there may be none at all.
    let folder = tempfile::tempdir().expect("a folder");
    for (name, text) in
        [("chain.toml", CHAIN), ("rules", crate::RULES), ("changes", "at 3\ndelete @0\ncommit\n")]
    {
        fs::write(folder.path().join(name), text).expect("written");
    }
    let mut fed = Fed::within(folder, &["run", "chain.toml"], "--rules-changes changes");
    let said = stderr(&change(&fed, &["-e", "delete @0"], ""));
    assert!(
        said.contains("its rules change as changes says; expected an acl without --rules-changes"),
        "{said}"
    );
    fed.end();
    let mut fed = Fed::start("[[chain]]\nnf = \"counter\"\n", "");
    let said = stderr(&change(&fed, &["-e", "delete @0"], ""));
    assert!(said.contains("the chain has no acl, whose rules would change"), "{said}");
    fed.end();
    let output = run(packetloom().args(["control", "nowhere", "change", "-e", "delete @0"]));
    assert_eq!(output.status.code(), Some(69), "{}", stderr(&output));
}

/// A line that is nearly as long as lines may be, byte by byte and at once; a longer one; and one that breaks off.
#[test]
fn long_lines_are_read_to_their_limit() {
    const LINE: usize = 1 << 18;
    let mut fed = Fed::start(CHAIN, "");
    let begin = r#"{"command":"change","statements":""#;
    let statement = |number: usize| format!("add permit tcp from any to any port {}\\n", number % 60_000);
    let mut line = begin.to_owned();
    let mut rules = 0;
    while line.len() + 60 < LINE {
        line += &statement(rules);
        rules += 1;
    }
    line += "\"}";
    line += &" ".repeat(LINE - 1 - line.len());
    let mut stream = fed.connect();
    let mut reader = BufReader::new(stream.try_clone().expect("cloned"));
    stream.write_all(format!("{line}\n").as_bytes()).expect("sent");
    let told = answer(&mut reader);
    assert_eq!(
        (&told["ok"], &told["added"], &told["rules"]),
        (&json!(true), &json!(rules), &json!(rules + 1)),
        "{told}"
    );
    check_schema("control-answer", &told);
    // In small pieces, with the next line behind it.
    let pieces = format!("{line}\n{{\"command\":\"counters\"}}\n");
    for piece in pieces.as_bytes().chunks(777) {
        stream.write_all(piece).expect("sent");
    }
    let told = answer(&mut reader);
    assert_eq!((&told["added"], &told["rules"]), (&json!(rules), &json!(2 * rules + 1)), "{told}");
    assert_eq!(answer(&mut reader)["counters"]["functions"][0]["rules"], json!(2 * rules + 1));
    // One byte more.
    let _ = stream.write_all(format!("{line} \n").as_bytes());
    let told = answer(&mut reader);
    assert!(
        told["error"].as_str().is_some_and(|why| why.contains("too long; expected up to 262144 bytes")),
        "{told}"
    );
    assert_eq!(reader.read(&mut [0]).unwrap_or(0), 0);
    let mut stream = fed.connect();
    stream.write_all(&line.as_bytes()[..100_000]).expect("sent");
    stream.shutdown(std::net::Shutdown::Write).expect("shut down");
    let told = answer(&mut BufReader::new(stream));
    assert!(told["error"].as_str().is_some_and(|why| why.contains("no end")), "{told}");
    assert_eq!(fed.counters()["functions"][0]["rules"], json!(2 * rules + 1));
    fed.packets(0..6);
    fed.counters_at(6);
    fed.end();
}

/// Clients that change rules at the same time, while the chain is read again: each transaction is made as a whole, or refused.
#[test]
fn many_change_rules_at_once() {
    const CLIENTS: u64 = 6;
    const ROUNDS: u64 = 15;
    let mut fed = Fed::start(CHAIN, "--workers 3");
    let fed_now = &fed;
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                scope.spawn(move || {
                    let mut stream = fed_now.connect();
                    let mut reader = BufReader::new(stream.try_clone().expect("cloned"));
                    let mut ask = |line: &str| {
                        stream.write_all(format!("{line}\n").as_bytes()).expect("sent");
                        answer(&mut reader)
                    };
                    for round in 0..ROUNDS {
                        let add = |number: u64| {
                            format!(
                                "add first permit tcp from any to any port 80 id c{client}-{round}-{number}"
                            )
                        };
                        let line =
                            json!({ "command": "change", "statements": format!("{}\n{}", add(0), add(1)) });
                        let told = ask(&line.to_string());
                        assert_eq!((&told["ok"], &told["added"]), (&json!(true), &json!(2)), "{told}");
                        let of_both = format!("delete c{client}-{round}-0\ndelete c{client}-{round}-1");
                        let told = ask(&json!({ "command": "change", "statements": of_both }).to_string());
                        // They may have gone with a reload.
                        assert!(
                            told["ok"] == true
                                || told["error"].as_str().is_some_and(|why| why.contains("no rule")),
                            "{told}"
                        );
                    }
                })
            })
            .collect();
        for _ in 0..3 {
            assert_eq!(fed_now.ask(r#"{"command":"reload"}"#), json!({ "ok": true }));
            std::thread::sleep(Duration::from_millis(20));
        }
        clients.into_iter().for_each(|client| client.join().expect("no panic"));
    });
    // Pairs came and went.
    let rules = told(&fed).len();
    let acl = fed.counters()["functions"][0].clone();
    assert_eq!(acl["rules"].as_u64().expect("a number") % 2, 1, "{acl}");
    assert!(rules >= 2);
    fed.packets(0..PACKETS.lines().count());
    fed.counters_at(6);
    let (summary, _) = fed.end();
    assert!(summary["rule_changes"].as_u64() > Some(CLIENTS * ROUNDS), "{}", summary["rule_changes"]);
    assert_eq!(summary["passed"], 4);
}

/// Rules that are added are logged, without a line, and the rate of the log is that of all lists together.
#[test]
fn a_log_goes_on_with_the_rules_that_are_added() {
    let chain =
        "[[chain]]\nnf = \"acl\"\nrules = \"rules\"\nlog = \"log\"\nlog_rate = \"1/s\"\nlog_burst = 1\n";
    for way in ["--workers 1", "--workers 3", "--device oracle"] {
        let mut fed = Fed::start(chain, way);
        let make = |fed: &Fed, statement: &str| {
            let output = change(fed, &["-e", statement], "");
            assert!(output.status.success(), "{way}: {}", stderr(&output));
        };
        make(&fed, "replace @0 permit tcp from any to any port 80 id web log # the web");
        fed.packets(0..1);
        fed.counters_at(1);
        make(&fed, "add first deny tcp from 10.0.0.3 to any log");
        fed.packets(1..4);
        let counters = fed.counters_at(4);
        assert_eq!(
            counters["functions"][0]["log"],
            json!({ "lines": 1, "suppressed": 2 }),
            "{way}: {counters}"
        );
        fed.end();
        let log = fs::read_to_string(fed.at("log")).expect("a log");
        let lines: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        lines.iter().for_each(|line| check_schema("acl-log", line));
        assert_eq!(lines.len(), 2, "{way}: {log}");
        assert_eq!(
            (&lines[0]["id"], &lines[0]["frame"], &lines[0]["line"]),
            (&json!("web"), &json!(1), &Value::Null)
        );
        assert_eq!(lines[1], json!({ "suppressed": 2 }));
    }
}
