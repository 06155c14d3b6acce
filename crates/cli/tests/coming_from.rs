//! The commands of docs/coming-from.md do what the page says.

#![allow(missing_docs)]

mod support;

use std::path::Path;
use std::process::{Command, Output};

use support::root;

/// An interface that no machine has: a command for it ends with "no such interface" once its arguments are understood.
const NO_INTERFACE: &str = "plx-no-such-if";

fn page() -> String {
    std::fs::read_to_string(root().join("docs/coming-from.md")).expect("the page")
}

/// The fenced blocks of a page in their order: what stands behind the fence, and the text.
fn blocks(page: &str) -> Vec<(&str, &str)> {
    let between_fences = page.split("```").skip(1).step_by(2);
    between_fences.filter_map(|block| block.split_once('\n')).collect()
}

/// A command line by a shell that finds the command under test first.
fn shell(folder: &Path, line: &str) -> Output {
    let ours = Path::new(env!("CARGO_BIN_EXE_packetloom")).parent().expect("a folder");
    let others = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new("sh");
    command.current_dir(folder).env("PATH", format!("{}:{others}", ours.display()));
    command.args(["-c", &format!("exec 2>&1; {line}")]).output().expect("a shell")
}

/// Writes the page's files and runs its examples in the folder, in the order of the page.
fn run_examples(folder: &Path) -> usize {
    std::fs::copy(root().join("examples/edge/edge.pcap"), folder.join("edge.pcap")).expect("copied");
    let mut examples = 0;
    for (kind, text) in blocks(&page()) {
        if let Some(name) = kind.strip_prefix("file ") {
            std::fs::write(folder.join(name), text).expect("written");
            continue;
        }
        assert_eq!(kind, "console", "{text}");
        for example in text.split("$ ").skip(1) {
            let (line, expected) = example.split_once('\n').expect("a command and what it prints");
            let output = shell(folder, line);
            let printed = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success(), "{line}: {}\n{printed}", output.status);
            assert_printed(line, &printed, expected);
            examples += 1;
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
fn the_examples_print_what_the_page_shows() {
    let folder = tempfile::tempdir().expect("a folder");
    assert_eq!(run_examples(folder.path()), 12);
}

#[test]
fn the_commands_in_the_tables_run() {
    let folder = tempfile::tempdir().expect("a folder");
    run_examples(folder.path());
    let (mut ran, mut understood) = (0, 0);
    for row in page().lines().filter(|line| line.starts_with("| ")) {
        let commands = row.split('`').skip(1).step_by(2).filter(|code| code.starts_with("packetloom "));
        for command in commands {
            let line = command
                .replace(" lan0", &format!(" {NO_INTERFACE}0"))
                .replace(" wan0", &format!(" {NO_INTERFACE}1"));
            let output = shell(folder.path(), &line);
            let printed = String::from_utf8_lossy(&output.stdout);
            if line.contains(NO_INTERFACE) || line.contains(" control ") {
                let reason =
                    if line.contains(" control ") { "no run answers there" } else { "does not exist" };
                assert!(output.status.code() == Some(69) && printed.contains(reason), "{command}: {printed}");
                understood += 1;
            } else {
                assert!(output.status.success(), "{command}: {}\n{printed}", output.status);
                ran += 1;
            }
        }
    }
    assert_eq!((ran, understood), (15, 11));
}

#[test]
fn the_rules_in_the_tables_are_rules() {
    let page = page();
    let mut rules = String::new();
    for row in page.lines().filter(|line| line.starts_with("| ")) {
        let here = row.rsplit('|').nth(1).expect("a last column");
        for code in here.split('`').skip(1).step_by(2) {
            let is_rule =
                ["permit ", "deny ", "reflect ", "default "].iter().any(|action| code.starts_with(action));
            if is_rule && !code.contains('…') && !code.contains('"') && !code.contains('=') {
                rules += &code.replace(" from A ", " from 192.0.2.0/24 ");
                rules += "\n";
            }
        }
    }
    assert_eq!(rules.lines().count(), 6, "{rules}");
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("page.rules"), &rules).expect("written");
    let output = shell(folder.path(), "packetloom acl check page.rules");
    assert!(output.status.success(), "{rules}{}", String::from_utf8_lossy(&output.stdout));
}
