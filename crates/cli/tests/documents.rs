//! The commands of README.md and docs/coming-from.md do what these pages show.

#![allow(missing_docs)]

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use support::root;

/// The beginning of the names of interfaces that no machine has: a command for one ends with "does not exist" once its
/// arguments are understood.
const NO_INTERFACE: &str = "plx-no-if";

fn page(name: &str) -> String {
    fs::read_to_string(root().join(name)).expect("the page")
}

/// The fenced blocks of a page in their order: what stands behind the fence, and the text.
fn blocks(page: &str) -> Vec<(&str, &str)> {
    let between_fences = page.split("```").skip(1).step_by(2);
    between_fences.filter_map(|block| block.split_once('\n')).collect()
}

/// A folder as the pages take theirs to be: with the example, its recording, and an `iptables-save` that prints the list of
/// docs/coming-from.md.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let example = folder.path().join("examples/edge");
    fs::create_dir_all(&example).expect("made");
    for file in ["chain.toml", "edge.pcap", "edge.rules"] {
        fs::copy(root().join("examples/edge").join(file), example.join(file)).expect("copied");
    }
    fs::copy(example.join("edge.pcap"), folder.path().join("edge.pcap")).expect("copied");
    let bin = folder.path().join("bin");
    fs::create_dir(&bin).expect("made");
    let page = page("docs/coming-from.md");
    let list = blocks(&page).into_iter().find(|(kind, _)| *kind == "text fw.save").expect("the list").1;
    let program = bin.join("iptables-save");
    fs::write(&program, format!("#!/bin/sh\ncat <<'END'\n{list}END\n")).expect("written");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("executable");
    folder
}

/// A command line by a shell that finds the command under test first; what it prints, on standard error too.
fn shell(folder: &Path, line: &str) -> Output {
    let ours = Path::new(env!("CARGO_BIN_EXE_packetloom")).parent().expect("a folder");
    let others = std::env::var("PATH").unwrap_or_default();
    let path = format!("{}:{}:{others}", ours.display(), folder.join("bin").display());
    let mut command = Command::new("sh");
    command.current_dir(folder).env("PATH", path).env("XDG_CACHE_HOME", env!("CARGO_TARGET_TMPDIR"));
    command.args(["-c", &format!("exec 2>&1; {line}")]);
    command.output().expect("a shell")
}

/// Writes the page's files (blocks whose language has a name behind it) and runs its examples (`console`) in the folder, in the
/// order of the page; how many there were.
fn run_examples(folder: &Path, page: &str) -> usize {
    let mut examples = 0;
    for (kind, text) in blocks(page) {
        if let Some((_, name)) = kind.split_once(' ') {
            fs::write(folder.join(name), text).expect("written");
        } else if kind == "console" {
            let text = format!("\n{text}");
            for example in text.split("\n$ ").skip(1) {
                let (line, expected) = example.split_once('\n').unwrap_or((example, ""));
                let output = shell(folder, line);
                let printed = String::from_utf8_lossy(&output.stdout);
                assert!(output.status.success(), "{line}: {}\n{printed}", output.status);
                assert_printed(line, &printed, expected);
                examples += 1;
            }
        }
    }
    examples
}

/// Lines of "..." stand for any lines, and for none; all others are what was printed.
fn assert_printed(line: &str, printed: &str, expected: &str) {
    let mut printed_lines = printed.lines();
    let mut anything = false;
    for expected in expected.lines() {
        if expected == "..." {
            anything = true;
            continue;
        }
        let next = if anything { printed_lines.find(|line| *line == expected) } else { printed_lines.next() };
        assert_eq!(next, Some(expected), "{line}\n{printed}");
        anything = false;
    }
    assert!(anything || printed_lines.next().is_none(), "{line} prints more:\n{printed}");
}

#[test]
fn the_examples_of_the_readme_print_what_it_shows() {
    let folder = folder();
    assert_eq!(run_examples(folder.path(), &page("README.md")), 8);
}

#[test]
fn the_commands_for_those_who_come_from_other_programs_run() {
    let folder = folder();
    let page = page("docs/coming-from.md");
    assert_eq!(run_examples(folder.path(), &page), 11);
    // What stands in the tables: on the files that the examples left; for interfaces and runs that are not there, as far as it goes.
    let (mut ran, mut understood) = (0, 0);
    for row in page.lines().filter(|line| line.starts_with("| ")) {
        let commands = row.split('`').skip(1).step_by(2).filter(|code| code.starts_with("packetloom "));
        for command in commands {
            let line = command.replace(" lan0", &format!(" {NO_INTERFACE}0"));
            let line = line.replace(" wan0", &format!(" {NO_INTERFACE}1"));
            let output = shell(folder.path(), &line);
            let printed = String::from_utf8_lossy(&output.stdout);
            let is_control = line.starts_with("packetloom control ");
            if is_control || line.contains(NO_INTERFACE) {
                let reason = if is_control { "no run answers there" } else { "does not exist" };
                assert!(output.status.code() == Some(69) && printed.contains(reason), "{command}: {printed}");
                understood += 1;
            } else {
                assert!(output.status.success(), "{command}: {}\n{printed}", output.status);
                ran += 1;
            }
        }
    }
    assert_eq!((ran, understood), (17, 15));
}

/// Rules in a page's tables' last columns, without those that leave something out ("…").
fn rules_of_tables(page: &str) -> String {
    let mut rules = String::new();
    for row in page.lines().filter(|line| line.starts_with("| ")) {
        let last = row.rsplit('|').nth(1).expect("a last column");
        for code in last.split('`').skip(1).step_by(2) {
            let actions = ["permit ", "deny ", "reflect ", "default "];
            let is_rule = actions.iter().any(|action| code.starts_with(action));
            if is_rule && !code.contains(['…', '"', '=']) {
                rules += &code.replace(" from A ", " from 192.0.2.0/24 ");
                rules += "\n";
            }
        }
    }
    rules
}

#[test]
fn the_rules_for_those_who_come_from_other_programs_are_rules() {
    let folder = folder();
    let rules = rules_of_tables(&page("docs/coming-from.md"));
    assert_eq!(rules.lines().count(), 6, "{rules}");
    fs::write(folder.path().join("page.rules"), &rules).expect("written");
    let output = shell(folder.path(), "packetloom acl check page.rules");
    assert!(output.status.success(), "{rules}{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn the_rules_of_the_readme_are_rules() {
    let folder = folder();
    let readme = page("README.md");
    let rules = blocks(&readme).into_iter().find(|(kind, _)| *kind == "rules").expect("rules").1;
    fs::write(folder.path().join("page.rules"), rules).expect("written");
    let printed = support::succeed(support::packetloom().current_dir(&folder).args([
        "acl",
        "convert",
        "page.rules",
        "--to",
        "native",
    ]));
    assert!(printed.lines().count() >= 4, "{printed}");
}
