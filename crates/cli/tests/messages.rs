//! What the command says of arguments and files that it cannot use.

#![allow(missing_docs)]

mod support;

use std::fs;
use std::io::Write;

use support::{packetloom, run, stderr, succeed};

/// All verbs that take options, as words.
const VERBS: [&str; 21] = [
    "run",
    "meter",
    "acl classify",
    "acl convert",
    "acl check",
    "acl explain",
    "check",
    "control",
    "state",
    "generate traffic",
    "generate rules",
    "generate headers",
    "devices",
    "bench meter",
    "bench acl",
    "bench changes",
    "bench chain",
    "bench device",
    "bench nca",
    "plot",
    "man",
];

/// What the standard library and the parser of arguments say of bad numbers.
const NOT_OURS: [&str; 7] = [
    "invalid digit",
    "cannot parse",
    "number too large",
    "invalid float",
    "non-zero type",
    "is not in ",
    "target type",
];

/// The options of a verb that take a value, from its help.
fn options(verb: &str) -> Vec<String> {
    let help = succeed(packetloom().args(verb.split(' ')).arg("-h"));
    let option = |line: &str| {
        let words: Vec<&str> = line.split_ascii_whitespace().collect();
        let at = words.iter().take(2).position(|word| word.starts_with('-') && !word.ends_with(','))?;
        words.get(at + 1).filter(|value| value.starts_with('<')).map(|_| words[at].to_owned())
    };
    help.lines().filter(|line| line.trim_start().starts_with('-')).filter_map(option).collect()
}

#[test]
fn numbers_that_are_none_are_told_in_words_of_ours() {
    let folder = tempfile::tempdir().expect("a folder");
    let (mut options_tried, mut numbers) = (0, 0);
    for verb in VERBS {
        for option in options(verb) {
            options_tried += 1;
            // Nothing runs: what follows is no option.
            for value in ["1x", "", "99999999999999999999"] {
                let joined = if option.starts_with("--") {
                    format!("{option}={value}")
                } else {
                    format!("{option}{value}")
                };
                let mut command = packetloom();
                command.current_dir(folder.path()).args(verb.split(' ')).arg(&joined);
                let output = run(command.arg("--no-such-option"));
                let said = stderr(&output);
                for words in NOT_OURS {
                    assert!(!said.contains(words), "{verb} {joined}: {said}");
                }
                let is_number = said.contains(" is not a number; expected digits");
                numbers += usize::from(value == "1x" && is_number);
                assert!(!is_number || said.contains("suffix k, M or G"), "{verb} {joined}: {said}");
            }
        }
    }
    assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 0, "nothing is written");
    assert!(options_tried > 80 && numbers > 35, "{options_tried} options, {numbers} of numbers");
}

#[test]
fn counts_may_have_a_suffix_in_every_verb() {
    let lines = |arguments: &[&str]| {
        succeed(packetloom().args(["generate", "rules"]).args(arguments)).lines().count()
    };
    assert_eq!(lines(&["--rules", "1.5k"]), 1500);
    for (arguments, expected) in [
        (
            &["meter", "-r", "none", "-c", "2k", "--max-flows", "1M", "--workers", "0.002k"][..],
            "none: No such file",
        ),
        (&["acl", "check", "none", "--work", "100M", "--show", "1k"], "none: No such file"),
        (&["run", "none", "-c", "1G", "--reload-at", "2k=x"], "none:1: cannot be read"),
        (&["acl", "check", "none", "--work", "101M"], "\"101M\"; expected a number from 1 to 100000000"),
        (&["meter", "-r", "none", "--max-flows", "3G"], "\"3G\"; expected a number from 1 to 2147483648"),
        (&["acl", "check", "none", "--show", "1.0001k"], "\"1.0001k\" is not a whole number"),
        (
            &["bench", "changes", "--rules", "x", "--headers", "y", "--seconds", "inf"],
            "\"inf\" is not a number",
        ),
    ] {
        let output = run(packetloom().args(arguments));
        assert!(stderr(&output).contains(expected), "{arguments:?}: {}", stderr(&output));
    }
}

#[test]
fn a_file_that_cannot_be_opened_is_named_with_what_was_expected() {
    let folder = tempfile::tempdir().expect("a folder");
    let chain = "[[chain]]\nnf = \"acl\"\nrules = \"f.rules\"\n";
    fs::write(folder.path().join("f.toml"), chain).expect("written");
    fs::write(folder.path().join("f.rules"), "default deny\n").expect("written");
    for (arguments, expected) in [
        (&["acl", "check", "none"][..], "none: No such file or directory; expected a rule file"),
        (&["acl", "convert", "--to", "vpp", "."], ".: is a directory; expected a rule file"),
        (
            &["acl", "classify", "--rules", "f.rules", "--headers", "none"],
            "none: No such file or directory; expected a file of headers",
        ),
        (&["meter", "-r", "none"], "none: No such file or directory; expected a pcap or pcapng capture"),
        (&["run", "f.toml", "-r", "."], ".: a folder without captures; expected pcap or pcapng files in it"),
        (
            &["acl", "convert", "--to", "vpp", "f.rules", "-o", "none/f"],
            "none/f: No such file or directory; expected a file that can be written",
        ),
        (&["state", "none"], "none: No such file or directory; expected a state file"),
        (&["run", "f.toml", "-r", "f.rules", "--rules-changes", "none"], "expected a file of rule changes"),
        (&["check", "none"], "none:1: cannot be read: No such file or directory; expected a chain file"),
    ] {
        let output = run(packetloom().current_dir(&folder).args(arguments));
        assert!(!output.status.success() && output.stdout.is_empty(), "{arguments:?}");
        assert!(stderr(&output).contains(expected), "{arguments:?}: {}", stderr(&output));
    }
}

#[test]
fn a_file_of_another_kind_is_told_what_it_looks_like() {
    let folder = tempfile::tempdir().expect("a folder");
    let gzip = |bytes: &[u8]| {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).expect("written");
        encoder.finish().expect("compressed")
    };
    let list = "Chain INPUT (policy ACCEPT)\ntarget     prot opt source               destination\n";
    for (name, bytes, what, advice) in [
        ("list", list.as_bytes().to_vec(), "the output of iptables -L", "use iptables-save"),
        ("list.gz", gzip(list.as_bytes()), "the output of iptables -L", "use iptables-save"),
        (
            "twice",
            gzip(&gzip(b"default deny")),
            "something that was compressed twice, by gzip",
            "use gzip -d",
        ),
        (
            "text",
            b"table inet t {\n\tchain c {\n".to_vec(),
            "a ruleset of nftables as text",
            "use nft -j list ruleset",
        ),
        (
            "script",
            b"#!/bin/sh\niptables -A INPUT -j ACCEPT\n".to_vec(),
            "commands of iptables",
            "run them, and use iptables-save",
        ),
        (
            "fragment",
            b" 10 permit tcp any any eq 80\n".to_vec(),
            "entries of a Cisco access list without its first line",
            "use show access-lists",
        ),
        (
            "part",
            b"!\ninterface Gi0/1\n ip access-group WEB in\n".to_vec(),
            "a Cisco configuration without an access list",
            "use show access-lists",
        ),
        (
            "page",
            b"<!DOCTYPE html>\n<html></html>\n".to_vec(),
            "a web page (HTML)",
            "expected the file itself",
        ),
        ("chain", b"[[chain]]\nnf = \"acl\"\n".to_vec(), "a chain file", "use packetloom run"),
        ("headers", b"tcp 10.0.0.1:1 > 10.0.0.2:2\n".to_vec(), "headers of packets", "--headers"),
        ("zip", b"PK\x03\x04....".to_vec(), "a zip archive", "use unzip"),
    ] {
        fs::write(folder.path().join(name), bytes).expect("written");
        for verb in ["check", "explain", "convert"] {
            let more = match verb {
                "explain" => &["--packet", "tcp 10.0.0.1:1 > 10.0.0.2:2"][..],
                "convert" => &["--to", "vpp"],
                _ => &[],
            };
            let output = run(packetloom().current_dir(&folder).args(["acl", verb, name]).args(more));
            assert_eq!((output.status.code(), output.stdout.len()), (Some(78), 0), "{name}");
            let said = stderr(&output);
            assert!(said.starts_with(&format!("packetloom: {name}:")) && said.lines().count() == 1, "{said}");
            assert!(said.contains(&format!(": it looks like {what}")), "{said}");
            assert!(said.contains(advice), "{said}");
        }
        let output = run(packetloom().current_dir(&folder).args(["meter", "-r", name]));
        let said = stderr(&output);
        assert!(said.contains(&format!("{name}: not a capture: it looks like {what}")), "{said}");
        assert!(said.ends_with("expected pcap or pcapng, plain or in gzip, xz or zstd\n"), "{said}");
    }
    // Rules where a capture is expected, and the other way round.
    for (name, bytes, expected) in [
        (
            "f.save",
            &b"*filter\n:INPUT ACCEPT [0:0]\nCOMMIT\n"[..],
            "it looks like rules (iptables); expected pcap",
        ),
        ("f.rules", b"permit any from any to any\n", "it looks like rules (native); expected pcap"),
        ("f.json", b"{\"nftables\": []}\n", "it looks like JSON; expected pcap"),
        ("f.txt", b"some words\n", "it looks like text; expected pcap"),
        ("f.bin", b"\x01\x02\x03\x04", "it begins with 01 02 03 04; expected pcap"),
    ] {
        fs::write(folder.path().join(name), bytes).expect("written");
        let output = run(packetloom().current_dir(&folder).args(["meter", "-r", name]));
        assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{name}");
        assert!(stderr(&output).contains(expected), "{name}: {}", stderr(&output));
    }
    let capture = support::root().join("examples/edge/edge.pcap");
    let check = |file: &std::path::Path| run(packetloom().args(["acl", "check"]).arg(file));
    let said = stderr(&check(&capture));
    assert!(said.contains("edge.pcap: it looks like a capture of packets; expected rules here"), "{said}");
    let empty = folder.path().join("empty");
    fs::write(&empty, "").expect("written");
    let output = check(&empty);
    assert_eq!(output.status.code(), Some(78));
    assert!(
        stderr(&output).contains("empty: empty; expected rules, or \"default permit\""),
        "{}",
        stderr(&output)
    );
    fs::write(&empty, "{\"a\": 1}\n").expect("written");
    let said = stderr(&check(&empty));
    assert!(said.contains("no \"nftables\"; expected JSON as \"nft -j list ruleset\" prints it"), "{said}");
}

#[test]
fn all_mistakes_of_a_file_are_told_at_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let told = |arguments: &[&str], name: &str, text: &str| {
        fs::write(folder.path().join(name), text).expect("written");
        let output = run(packetloom().current_dir(&folder).args(arguments).arg(name));
        assert_eq!((output.status.code(), output.stdout.len()), (Some(78), 0), "{text}");
        stderr(&output)
    };
    let check = ["acl", "check"];
    // One alone is told as before.
    let one = "permti any from any to any\n";
    let said = "f:1: \"permti\"; expected permit, deny or reflect; did you mean \"permit\"?\n";
    assert_eq!(told(&check, "f", one), format!("packetloom: {said}"));
    let several = "permit tpc from any to any\npermit any from any to any\ndefault dney\n";
    let said = "\
packetloom: f: 2 mistakes
    f:1: protocol \"tpc\"; expected any, a name such as tcp, or a number from 0 to 255; did you mean \"tcp\"?
    f:3: \"dney\"; expected permit or deny; did you mean \"deny\"?
";
    assert_eq!(told(&check, "f", several), said);
    let said = told(&check, "f", &"x\n".repeat(77));
    assert!(
        said.starts_with("packetloom: f: 77 mistakes\n    f:1: ") && said.lines().count() == 22,
        "{said}"
    );
    assert!(said.contains("\n    f:20: ") && said.ends_with("\n    and 57 more\n"), "{said}");
    // In lists of every kind.
    for (text, expected) in [
        (
            "ip access-list extended A\n permit tcq any any\n permit ip any any\n deny udp any any ew 1\n",
            ["f:2: ", "f:4: "],
        ),
        ("set acl-plugin acl premit, dney\n", ["\"premit\"", "\"dney\""]),
        (
            "*filter\n:INPUT ACCEPT [0:0]\n-A INPT -j DROP\n-A INPUT -o x -j DROP\n-A INPUT -s x -j DROP\nCOMMIT\n",
            ["f:3: ", "f:5: "],
        ),
        (
            "*filter\n:INPUT ACCEPT [0:0]\n-A INPUT -o x -j DROP\n-A INPUT -m y -j DROP\nCOMMIT\n",
            ["f:3: `-o x`", "f:4: `-m y`"],
        ),
        ("@10.0.0.0/8 x\n@10.0.0.0/9 y\n", ["f:1: ", "f:2: "]),
    ] {
        let said = told(&check, "f", text);
        assert!(said.starts_with("packetloom: f: 2 mistakes\n"), "{said}");
        expected.iter().for_each(|expected| assert!(said.contains(expected), "{said}"));
    }
    let chain =
        "[sorce]\n[run]\nworkers = 0\n[[chain]]\nnf = \"acl\"\nrulez = \"x\"\n[[chain]]\nnf = \"metre\"\n";
    let said = told(&["check"], "f.toml", chain);
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines[0], "packetloom: f.toml: 4 mistakes");
    for (line, (beginning, end)) in lines[1..].iter().zip([
        ("    f.toml:1: unknown key \"sorce\"; expected one of ", "; did you mean \"source\"?"),
        ("    f.toml:3: 0; expected a number from 1 to ", "256"),
        ("    f.toml:6: unknown field `rulez`, expected one of ", "; did you mean \"rules\"?"),
        ("    f.toml:8: nf is \"metre\"; expected ", "; did you mean \"meter\"?"),
    ]) {
        assert!(line.starts_with(beginning) && line.ends_with(end), "{line}");
    }
    assert_eq!(lines.len(), 5);
}

#[test]
fn rules_that_decide_no_packet_are_told_at_the_end_of_a_run() {
    let folder = tempfile::tempdir().expect("a folder");
    let rules: String = (1..=2852).map(|port| format!("deny sctp from any to any port {port}\n")).collect();
    fs::write(folder.path().join("f.rules"), rules + "permit any from any to any id all\n").expect("written");
    let chain = "[[chain]]\nnf = \"acl\"\nrules = \"f.rules\"\n[run]\nsummary = \"f.json\"\n";
    fs::write(folder.path().join("f.toml"), chain).expect("written");
    let capture = support::root().join("examples/edge/edge.pcap");
    let output = run(packetloom().current_dir(&folder).args(["run", "f.toml", "-r"]).arg(capture));
    let said = stderr(&output);
    let words = |line: &str| line.split_ascii_whitespace().collect::<Vec<_>>().join(" ");
    let lines: Vec<String> = said.lines().map(words).collect();
    let at = lines.iter().position(|line| line == "rules not hit 2852 of 2853").expect("the count");
    assert_eq!(lines[at + 1], "rule 0, line 1: deny sctp from any to any port 1 no packets");
    assert_eq!(lines[at + 10], "rule 9, line 10: deny sctp from any to any port 10 no packets");
    assert_eq!(lines[at + 11], "and 2,842 more no packets");
    let function = &support::json(&folder.path().join("f.json"))["functions"][0];
    assert_eq!((&function["rules_hit"], &function["rules_not_hit"]), (&1.into(), &2852.into()));
    let idle = function["not_hit"].as_array().expect("rules");
    assert_eq!((idle.len(), &idle[2851]["line"], &idle[2851]["rule"]), (2852, &2852.into(), &2851.into()));
}
