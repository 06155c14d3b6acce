//! What the command says of arguments and files that it cannot use.

#![allow(missing_docs)]

mod support;

use std::fs;

use support::{packetloom, run, stderr, succeed};

/// All verbs that take options, as words.
const VERBS: [&str; 19] = [
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
                let output = run(packetloom().args(verb.split(' ')).arg(&joined).arg("--no-such-option"));
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
        (&["run", "f.toml", "-r", "."], ".: is a directory; expected a pcap or pcapng capture"),
        (
            &["acl", "convert", "--to", "vpp", "f.rules", "-o", "none/f"],
            "none/f: No such file or directory; expected a file that can be written",
        ),
        (&["state", "none"], "none: No such file or directory; expected a state file"),
        (&["run", "f.toml", "-r", "f.rules", "--rules-changes", "none"], "expected a file of rule changes"),
        (
            &["check", "none"],
            "none:1: cannot be read: No such file or directory (os error 2); expected a chain file",
        ),
    ] {
        let output = run(packetloom().current_dir(&folder).args(arguments));
        assert!(!output.status.success() && output.stdout.is_empty(), "{arguments:?}");
        assert!(stderr(&output).contains(expected), "{arguments:?}: {}", stderr(&output));
    }
}
