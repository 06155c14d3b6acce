//! `packetloom acl convert`, and rules of other formats where rules are read.

#![allow(missing_docs)]

mod support;

use std::fs;

use support::{packetloom, run, stderr, succeed};

const SAVE: &str = "*filter\n:INPUT ACCEPT [0:0]\n:FORWARD DROP [0:0]\n-A INPUT -o lo -j ACCEPT\n-A INPUT -p tcp -m limit -j DROP\n\
                    -A INPUT -p tcp -m multiport --dports 22,80 -m comment --comment \"a b\" -j ACCEPT\n-A FORWARD -j ACCEPT\nCOMMIT\n";

#[test]
fn rules_are_converted_with_their_default() {
    let folder = tempfile::tempdir().expect("a folder");
    let (own, save, nft) = (folder.path().join("own"), folder.path().join("save"), folder.path().join("nft"));
    let text = "permit tcp from 10.0.0.0/8 to 0.0.0.0/0 port 22 flags S/SA log # admins\n\
                deny any from 0.0.0.0/0 to 0.0.0.0/0 fragment later\ndefault permit\n";
    fs::write(&own, text).expect("written");
    succeed(packetloom().args(["acl", "convert", "--to", "iptables"]).arg(&own).arg("-o").arg(&save));
    let written = fs::read_to_string(&save).expect("the output");
    assert_eq!(
        written,
        "*filter\n:FORWARD ACCEPT [0:0]\n\
         -A FORWARD -s 10.0.0.0/8 -p 6 -m tcp --dport 22 --tcp-flags SYN,ACK SYN -j LOG\n\
         -A FORWARD -s 10.0.0.0/8 -p 6 -m tcp --dport 22 --tcp-flags SYN,ACK SYN -m comment --comment \"admins\" -j ACCEPT\n\
         -A FORWARD -f -j DROP\nCOMMIT\n"
    );
    // Through a third format and back it is the same text.
    succeed(packetloom().args(["acl", "convert", "--to", "nftables"]).arg(&save).arg("-o").arg(&nft));
    assert_eq!(succeed(packetloom().args(["acl", "convert", "--to", "native"]).arg(&nft)), text);
    // What has no action gets one from outside.
    let filter = "@10.0.0.0/8\t0.0.0.0/0\t0 : 65535\t80 : 80\t0x06/0xFF\t0x0200/0x1200\n";
    fs::write(&own, filter).expect("written");
    let convert =
        |more: &[&str]| run(packetloom().args(["acl", "convert", "--to", "native"]).arg(&own).args(more));
    let output = convert(&[]);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(65), 0));
    assert_eq!(
        stderr(&output),
        format!(
            "packetloom: 1 of 1 rule left out: native, where every rule has an action 1\n    \
             {0}:1: where every rule has an action: tcp from 10.0.0.0/8 to 0.0.0.0/0 port 80 flags S/SA\n\
             packetloom: {0}: nothing is written, as 1 of 1 rule would be lost; expected 0 at most; --max-loss 1 allows it\n",
            own.display()
        )
    );
    let line = |more: &[&str]| String::from_utf8(convert(more).stdout).expect("text");
    assert_eq!(
        line(&["--rule-action", "deny"]),
        "deny tcp from 10.0.0.0/8 to 0.0.0.0/0 port 80 flags S/SA\n"
    );
    assert_eq!(
        line(&["--rule-action", "permit", "--ignore-flags"]),
        "permit tcp from 10.0.0.0/8 to 0.0.0.0/0 port 80\n"
    );
}

#[test]
fn what_is_left_out_is_listed() {
    let folder = tempfile::tempdir().expect("a folder");
    let (save, out) = (folder.path().join("save"), folder.path().join("out"));
    fs::write(&save, SAVE).expect("written");
    let convert = |more: &[&str]| {
        run(packetloom()
            .args(["acl", "convert"])
            .arg(&save)
            .args(["--list", "INPUT"])
            .args(more)
            .arg("-o")
            .arg(&out))
    };
    let name = save.display();
    let said = format!(
        "packetloom: 2 of 3 rules left out: -o 1, -m limit 1\n    \
         {name}:4: `-o lo` has no equal here\n    {name}:5: `-m limit` has no equal here\n"
    );
    let refused = |most: &str| {
        format!(
            "packetloom: {name}: nothing is written, as 2 of 3 rules would be lost; expected {most} at most; --max-loss 2 allows it\n"
        )
    };
    for (more, most) in [
        (&[][..], "0"),
        (&["--skip-unsupported"], "0"),
        (&["--max-loss", "1"], "1"),
        (&["--max-loss", "66.6%"], "66.6%"),
    ] {
        let output = convert(&[&["--to", "native"], more].concat());
        assert_eq!((output.status.code(), out.exists()), (Some(65), false), "{more:?}");
        assert_eq!(stderr(&output), said.clone() + &refused(most), "{more:?}");
    }
    for (most, expected) in [("two", "expected a number of rules, such as 20"), ("101%", "such as 5%")] {
        let output = convert(&["--to", "native", "--max-loss", most]);
        assert_eq!(output.status.code(), Some(2), "{most}");
        assert!(stderr(&output).contains(expected), "{most}: {}", stderr(&output));
    }
    let output = convert(&["--to", "native", "--max-loss", "67%"]);
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(stderr(&output), said);
    assert_eq!(
        fs::read_to_string(&out).expect("the output"),
        "permit tcp from 0.0.0.0/0 to 0.0.0.0/0 port 22 # a b\npermit tcp from 0.0.0.0/0 to 0.0.0.0/0 port 80 # a b\ndefault permit\n"
    );
    // As JSON, with what the other format has no words for.
    fs::remove_file(&out).expect("removed");
    let output = convert(&["--to", "ip6tables"]);
    assert_eq!((output.status.code(), out.exists()), (Some(65), false));
    let output = convert(&["--to", "ip6tables", "--max-loss", "3", "--json"]);
    let mut lines: Vec<serde_json::Value> =
        stderr(&output).lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    // One rule of the file became two here.
    let groups = serde_json::json!([
        { "group": "-o", "rules": 1, "lines": [4] },
        { "group": "-m limit", "rules": 1, "lines": [5] },
        { "group": "ip6tables, which holds IPv6 only", "rules": 1, "lines": [6, 6] },
    ]);
    let totals = serde_json::json!({ "rules": 3, "left_out": 3, "groups": groups });
    assert_eq!(lines.pop().expect("totals")["losses"], totals);
    let said: Vec<_> = lines.iter().map(|line| (line["line"].as_u64(), line["left_out"].as_str())).collect();
    assert_eq!(
        said,
        [
            (Some(4), Some("`-o lo` has no equal here")),
            (Some(5), Some("`-m limit` has no equal here")),
            (Some(6), Some("which holds IPv6 only: permit tcp from 0.0.0.0/0 to 0.0.0.0/0 port 22 # a b")),
            (Some(6), Some("which holds IPv6 only: permit tcp from 0.0.0.0/0 to 0.0.0.0/0 port 80 # a b")),
        ]
    );
    assert_eq!(fs::read_to_string(&out).expect("the output"), "*filter\n:FORWARD ACCEPT [0:0]\nCOMMIT\n");
}

#[test]
fn many_losses_are_said_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let rule = |number: usize| {
        let module = match number {
            0..900 => "-m recent --set ",
            900..1023 => "-m limit --limit 5/min ",
            _ => "",
        };
        format!("-A INPUT -p udp {module}-s 10.0.{}.{} -j DROP\n", number / 256, number % 256)
    };
    let rules: String = (0..3729).map(rule).collect();
    fs::write(folder.path().join("f.save"), format!("*filter\n:INPUT ACCEPT [0:0]\n{rules}COMMIT\n"))
        .expect("written");
    let verb = |arguments: &[&str]| {
        run(packetloom().current_dir(&folder).args(["acl", arguments[0], "f.save"]).args(&arguments[1..]))
    };
    let said = "\
packetloom: 1,023 of 3,729 rules left out: -m recent 900, -m limit 123
    f.save:3: `-m recent` has no equal here
    f.save:4: `-m recent` has no equal here
    f.save:5: `-m recent` has no equal here
    and 897 more
    f.save:903: `-m limit` has no equal here
    f.save:904: `-m limit` has no equal here
    f.save:905: `-m limit` has no equal here
    and 120 more
";
    let output = verb(&["convert", "--to", "native", "-o", "out"]);
    assert_eq!((output.status.code(), folder.path().join("out").exists()), (Some(65), false));
    let refused = "packetloom: f.save: nothing is written, as 1,023 of 3,729 rules would be lost; expected 0 at most; \
                   --max-loss 1023 allows it\n";
    assert_eq!(stderr(&output), said.to_owned() + refused);
    let output = verb(&["convert", "--to", "native", "-o", "out", "--max-loss", "1023"]);
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), said));
    assert_eq!(
        fs::read_to_string(folder.path().join("out")).expect("rules").lines().count(),
        3729 - 1023 + 1
    );
    // Where rules are read, too; in JSON all of them.
    let packet = ["--packet", "udp 10.0.0.1:1 > 10.0.0.2:2"];
    let output = verb(&["explain", "--skip-unsupported", packet[0], packet[1]]);
    assert_eq!((output.status.code(), stderr(&output).as_str()), (Some(0), said));
    let output = verb(&["explain", "--skip-unsupported", "--json", packet[0], packet[1]]);
    let lines: Vec<serde_json::Value> =
        stderr(&output).lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!(lines.len(), 1024);
    assert_eq!(lines[1023]["losses"]["left_out"], 1023);
    assert_eq!(lines[1023]["losses"]["groups"][1]["lines"].as_array().expect("lines").len(), 123);
}

/// Several rules of one line are as many rules.
#[test]
fn losses_are_counted_in_rules_of_the_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let chain = r#"{"chain":{"family":"ip","table":"t","name":"c","handle":1,"type":"filter","hook":"input","prio":0,"policy":"drop"}}"#;
    let rule = |handle: u32, statement: &str| {
        format!(
            r#"{{"rule":{{"family":"ip","table":"t","chain":"c","handle":{handle},"expr":[{statement}]}}}}"#
        )
    };
    let (limit, accept) = (r#"{"limit":{"rate":5,"per":"second"}},{"accept":null}"#, r#"{"accept":null}"#);
    let nft = [rule(2, limit), rule(3, limit), rule(4, accept)].join(",");
    for (name, text, said) in [
        (
            "f.vpp",
            "set acl-plugin acl permit proto 47 sport 1, permit proto 47 sport 2, deny src 10.0.0.0/8\n"
                .to_owned(),
            "packetloom: 2 of 3 rules left out: sport or dport with proto 47, which VPP does not look at 2\n",
        ),
        (
            "f.json",
            format!(r#"{{"nftables":[{chain},{nft}]}}"#),
            "packetloom: 2 of 3 rules left out: limit 2\n    \
             f.json:1: ip t c handle 2: `limit` has no equal here\n    f.json:1: ip t c handle 3:",
        ),
    ] {
        fs::write(folder.path().join(name), text).expect("written");
        let output = run(packetloom().current_dir(&folder).args(["acl", "convert", "--to", "native", name]));
        assert_eq!(output.status.code(), Some(65), "{name}");
        assert!(stderr(&output).starts_with(said), "{name}: {}", stderr(&output));
    }
}

/// What is done with packets by rules.
fn actions(rules: &std::path::Path, packets: &[String]) -> Vec<String> {
    let mut explain = packetloom();
    explain.args(["acl", "explain", "--json"]).arg(rules);
    packets.iter().for_each(|packet| {
        explain.args(["--packet", packet]);
    });
    let lines = succeed(&mut explain);
    let action =
        |line: &str| serde_json::from_str::<serde_json::Value>(line).expect("JSON")["action"].to_string();
    lines.lines().map(action).collect()
}

#[test]
fn fragments_are_ignored_where_that_is_asked_for_and_nothing_else_is() {
    let folder = tempfile::tempdir().expect("a folder");
    let (own, out) = (folder.path().join("own.rules"), folder.path().join("out"));
    // Of every kind, so that each format has no words for some.
    let rules = "\
permit tcp from 10.0.0.0/24 to 0.0.0.0/0 port 80 fragment not-later
deny tcp from 10.0.1.0/24 to 0.0.0.0/0 port 80 fragment none
permit tcp from 10.0.1.0/24 to 0.0.0.0/0 fragment first
deny any from 10.0.2.0/24 to 0.0.0.0/0 fragment any
permit tcp from 2001:db8::/32 to ::/0 port 443 fragment none
deny udp from 2001:db8::/32 to ::/0 fragment first
permit any from 10.0.0.0/16 to 0.0.0.0/0 fragment none
default deny
";
    fs::write(&own, rules).expect("written");
    let packets = |more: &str| -> Vec<String> {
        let hosts = ["10.0.0.1", "10.0.1.1", "10.0.2.1", "10.1.0.1"];
        let has_ports = more != " fragment later";
        let mut packets = Vec::new();
        for protocol in ["tcp", "udp"] {
            for port in [80, 443, 1] {
                let (v4, v6) =
                    if has_ports { (format!(":{port}"), format!("]:{port}")) } else { Default::default() };
                let open = if has_ports { "[" } else { "" };
                packets.extend(hosts.map(|host| format!("{protocol} {host}{v4} > 192.0.2.1{v4}{more}")));
                packets.extend(
                    ["2001:db8::1", "2001:db9::1"]
                        .map(|host| format!("{protocol} {open}{host}{v6} > {open}2001:db8::2{v6}{more}")),
                );
            }
        }
        packets
    };
    let whole = packets("");
    let expected = actions(&own, &whole);
    assert!(expected.contains(&"\"permit\"".into()) && expected.contains(&"\"deny\"".into()));
    let convert = |to: &str, more: &[&str]| {
        run(packetloom().args(["acl", "convert", "--to", to]).arg(&own).arg("-o").arg(&out).args(more))
    };
    for (to, said) in [
        (
            "vpp",
            "fragments ignored in 7 of 7 rules: of fragments, 5 permit more than the source, 2 permit less\n",
        ),
        (
            "cisco-ios",
            "fragments ignored in 6 of 7 rules: of fragments, 4 permit more than the source, 2 permit less\n",
        ),
        (
            "nftables",
            "fragments ignored in 2 of 7 rules: of fragments, 2 permit more than the source, 0 permit less\n",
        ),
    ] {
        let output = convert(to, &[]);
        assert_eq!((output.status.code(), out.exists()), (Some(65), false), "{to}");
        assert!(stderr(&output).contains("--fragments ignore writes"), "{to}: {}", stderr(&output));
        let output = convert(to, &["--fragments", "ignore"]);
        assert_eq!(output.status.code(), Some(0), "{to}: {}", stderr(&output));
        assert!(stderr(&output).starts_with(&format!("packetloom: {said}")), "{to}: {}", stderr(&output));
        assert_eq!(actions(&out, &whole), expected, "{to}");
        fs::remove_file(&out).expect("removed");
    }
    // What it does to fragments is what it says: a rule that permits permits more of them here.
    let output = convert("vpp", &["--fragments", "ignore", "--json"]);
    let lines: Vec<serde_json::Value> =
        stderr(&output).lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let first = serde_json::json!({
        "file": own.display().to_string(), "line": 1, "approximated": "fragments", "permits": "more",
        "rule": "permit tcp from 10.0.0.0/24 to 0.0.0.0/0 port 80 fragment not-later"
    });
    assert_eq!((lines.len(), &lines[0]), (8, &first));
    let totals = serde_json::json!({ "rules": 7, "approximated": 7, "permit_more": 5, "permit_less": 2 });
    assert_eq!(lines[7]["approximations"], totals);
    let later = ["tcp 10.0.0.1 > 192.0.2.1 fragment later".to_owned()];
    assert_eq!(
        (actions(&own, &later), actions(&out, &later)),
        (vec!["\"deny\"".into()], vec!["\"permit\"".into()])
    );
    // What a format can say is written as it is.
    fs::write(&own, "permit any from 10.0.0.0/8 to 0.0.0.0/0\ndefault deny\n").expect("written");
    let output = convert("vpp", &["--fragments", "ignore"]);
    assert_eq!((output.status.code(), stderr(&output)), (Some(0), String::new()));
}

#[test]
fn classify_reads_every_format() {
    let folder = tempfile::tempdir().expect("a folder");
    let (save, headers) = (folder.path().join("save"), folder.path().join("headers"));
    fs::write(&save, SAVE).expect("written");
    fs::write(&headers, "tcp 10.0.0.1:1 > 10.0.0.2:80\ntcp 10.0.0.1:1 > 10.0.0.2:81\n").expect("written");
    let classify = |more: &[&str]| {
        run(packetloom()
            .args(["acl", "classify", "--rules"])
            .arg(&save)
            .arg("--headers")
            .arg(&headers)
            .args(more))
    };
    let output = classify(&["--list", "INPUT", "--skip-unsupported"]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "1\n-1\n");
    assert!(stderr(&output).starts_with("packetloom: 2 of 3 rules left out: "), "{}", stderr(&output));
    for (more, code, message) in [
        (&[][..], 78, "several lists; expected the name of one (--list): INPUT, FORWARD"),
        (&["--list", "INPUT"], 78, "`-o lo` has no equal here"),
        (&["--list", "x"], 78, "no list \"x\"; expected one of INPUT, FORWARD"),
        (&["--format", "ip6tables", "--list", "FORWARD"], 0, ""),
        (&["--format", "native"], 78, "expected permit, deny or reflect"),
        (&["--format", "ipfw"], 2, "invalid value 'ipfw' for '--format <FORMAT>'"),
    ] {
        let output = classify(more);
        assert_eq!(output.status.code(), Some(code), "{more:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(message), "{more:?}: {}", stderr(&output));
    }
}

/// A file of the formats' own tests.
fn fault(name: &str) -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../classify/tests/formats/faults").join(name)
}

#[test]
fn a_list_without_a_default_denies_in_every_format() {
    let convert =
        |to: &str| run(packetloom().args(["acl", "convert", "--to", to]).arg(fault("01-no-default.rules")));
    let folder = tempfile::tempdir().expect("a folder");
    let written = folder.path().join("written");
    for to in ["native", "cisco-ios", "flowspec", "exabgp", "iptables", "nftables"] {
        let output = convert(to);
        assert_eq!(output.status.code(), Some(0), "{to}: {}", stderr(&output));
        fs::write(&written, &output.stdout).expect("written");
        // What is no packet of the rule is denied, of either family.
        let explain = packetloom()
            .args(["acl", "explain"])
            .arg(&written)
            .args(["--packet", "udp 10.0.0.1:1 > 10.0.0.2:2", "--packet", "udp [::1]:1 > [::2]:2"])
            .args(["--packet", "tcp 10.0.0.1:1 > 192.0.2.80:443"])
            .output()
            .expect("run");
        let text = String::from_utf8(explain.stdout).expect("text");
        let verdicts: Vec<_> = text.lines().filter(|line| !line.starts_with(' ')).collect();
        assert_eq!(
            verdicts,
            [
                "udp 10.0.0.1:1 > 10.0.0.2:2: deny",
                "udp [::1]:1 > [::2]:2: deny",
                "tcp 10.0.0.1:1 > 192.0.2.80:443: permit"
            ],
            "{to}: {}",
            String::from_utf8_lossy(&explain.stderr)
        );
    }
    for to in ["classbench", "vpp", "ip6tables"] {
        let output = convert(to);
        let code = if to == "classbench" { 78 } else { 65 };
        assert_eq!((output.status.code(), output.stdout.len()), (Some(code), 0), "{to}");
    }
    // Conditions alone, for those who ask for no more.
    let output = run(packetloom()
        .args(["acl", "convert", "--to", "classbench", "--conditions-only"])
        .arg(fault("01-no-default.rules")));
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "@0.0.0.0/0\t192.0.2.80/32\t0 : 65535\t443 : 443\t0x06/0xFF\t0x0000/0x0000\t\n"
    );
    let filters = folder.path().join("filters");
    fs::write(&filters, "ipv4 03 03812f\n").expect("written");
    let output = run(packetloom().args(["acl", "convert", "--to", "classbench"]).arg(&filters));
    assert_eq!(output.status.code(), Some(78));
    assert_eq!(
        stderr(&output),
        format!(
            "packetloom: {}: the default permit cannot be written in this format, which holds conditions only \
             (--conditions-only leaves actions and the default out)\n",
            filters.display()
        )
    );
}

#[test]
fn what_a_file_says_is_read_or_refused_at_its_line() {
    let convert = |path: &std::path::Path, more: &[&str]| {
        run(packetloom().args(["acl", "convert", "--to", "native"]).arg(path).args(more))
    };
    for (name, more, text) in [
        (
            "02-announce-flow.conf",
            &[][..],
            "deny udp from 0.0.0.0/0 to 198.51.100.7/32 port 53\ndefault permit\n",
        ),
        ("05-peruser.cfg", &["--list", "A"], "permit any from 0.0.0.0/0 to 0.0.0.0/0 id 10\ndefault deny\n"),
        ("06-noexpr.json", &[], "permit tcp from any to any port 22\ndefault deny\n"),
        (
            "06-vmap-accept.json",
            &[],
            "deny tcp from any to any port 22\ndeny tcp from any to any port 23\ndefault deny\n",
        ),
        (
            "06-const-concat.json",
            &["--max-loss", "1"],
            "permit tcp from 0.0.0.0/0 to 0.0.0.0/0 port 22\ndefault deny\n",
        ),
    ] {
        let output = convert(&fault(name), more);
        assert_eq!(output.status.code(), Some(0), "{name}: {}", stderr(&output));
        assert_eq!(String::from_utf8_lossy(&output.stdout), text, "{name}");
    }
    for (name, message) in [
        ("05-asa-line.cfg", ":2: \"access-list WEB extended\" is the syntax of Cisco ASA"),
        ("05-peruser.cfg", ": several lists; expected the name of one (--list): A, B"),
        (
            "05-typo.cfg",
            ":3: \"extened B\" after \"ip access-list\"; expected standard or extended, and a name",
        ),
        (
            "05-v6-extra-word.cfg",
            ":2: \"extended AL6\" after \"ipv6 access-list\"; expected a name and nothing else",
        ),
        ("06-const-concat.json", ":5: ip t c handle 4: `80` has no equal here"),
        ("09-mangle-only.v4", ":1: no list of rules: the tables are mangle; expected a table \"*filter\""),
        ("10-vpp-delete.vpp", ": no list of rules; expected \"set acl-plugin acl …\""),
    ] {
        for verb in [&["acl", "convert", "--to", "native"][..], &["acl", "check"]] {
            let output = run(packetloom().args(verb).arg(fault(name)));
            // What has no equal is lost where rules are converted.
            let is_lost = name == "06-const-concat.json" && verb[1] == "convert";
            let code = if is_lost { 65 } else { 78 };
            assert_eq!((output.status.code(), output.stdout.len()), (Some(code), 0), "{name}");
            let said = stderr(&output);
            assert!(said.contains(&format!("{name}{message}")), "{name}: {said}");
        }
    }
}

#[test]
fn a_list_of_no_rules_is_said() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("rules");
    let convert = |text: &str, from: &str| {
        fs::write(&file, text).expect("written");
        run(packetloom().args(["acl", "convert", "--to", "nftables", "--from", from]).arg(&file))
    };
    for (from, text) in [
        ("exabgp", "neighbor 192.0.2.1 { local-as 1; family { ipv4 flow; } }\n"),
        ("flowspec", "# nothing\n"),
        ("classbench", "# nothing\n"),
        ("cisco-ios", "hostname r1\n"),
        ("vpp", "show version\n"),
        ("iptables", "*nat\nCOMMIT\n"),
        ("nftables", "{\"nftables\": []}\n"),
    ] {
        let output = convert(text, from);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(78), 0), "{from}: {}", stderr(&output));
        assert!(stderr(&output).contains("; expected "), "{from}: {}", stderr(&output));
    }
    // Our own list of nothing denies everything; that it says so is worth a warning.
    let output = convert("# nothing\n", "native");
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(
        stderr(&output),
        format!(
            "packetloom: warning: {}: no rules and no default; expected some, as every packet is denied\n",
            file.display()
        )
    );
    // These say something: a policy, a default.
    for (from, text) in [("iptables", "*filter\n:INPUT ACCEPT [0:0]\nCOMMIT\n"), ("native", "default deny\n")]
    {
        let output = convert(text, from);
        assert_eq!((output.status.code(), stderr(&output)), (Some(0), String::new()), "{from}");
    }
}
