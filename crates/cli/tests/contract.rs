//! What the command promises to whoever calls it: exit codes, how much it says, files that it leaves or does not, examples, man pages.

#![allow(missing_docs)]

mod support;

use std::fs;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use support::{packetloom, root, run, stderr, succeed};

fn edge() -> PathBuf {
    root().join("examples/edge/edge.pcap")
}

fn code(arguments: &[&str], folder: &Path) -> (Option<i32>, String) {
    let output = run(packetloom().current_dir(folder).args(arguments));
    (output.status.code(), stderr(&output))
}

#[test]
fn exit_codes_tell_what_happened() {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).expect("written");
    write("good.toml", "[[chain]]\nnf = \"counter\"\n");
    write("bad.toml", "[[chain]]\nnf = \"contuer\"\n");
    write("twice.rules", "permit any from any to any\npermit tcp from any to any\n");
    write(
        "fw.save",
        "*filter\n:FORWARD DROP [0:0]\n-A FORWARD -p tcp -m limit --limit 5/s -j ACCEPT\nCOMMIT\n",
    );
    let edge = edge();
    let edge = edge.to_str().expect("text");
    let mut told = Vec::new();
    for (arguments, expected) in [
        (&["run", "good.toml", "-r", edge][..], 0),
        (&["acl", "check", "twice.rules"], 0),
        (&["run", "good.toml", "-r", "none.pcap"], 1),
        (&["meter", "-r", edge, "-o", "none/flows"], 1),
        (&["run", "good.toml"], 2),
        (&["run"], 2),
        (&["acl", "check", "--strict", "twice.rules"], 3),
        (&["acl", "convert", "fw.save", "--to", "native"], 65),
        (&["run", "good.toml", "-i", "plx-no-if0"], 69),
        (&["devices", "--device", "cuda:63"], 69),
        (&["control", "none.sock", "counters"], 69),
        (&["check", "bad.toml"], 78),
        (&["check", "none.toml"], 78),
        (&["state", "good.toml"], 78),
        (&["acl", "check", "good.toml"], 78),
    ] {
        let (found, said) = code(arguments, folder.path());
        assert_eq!(found, Some(expected), "{arguments:?}: {said}");
        // What went wrong is said, of which line of the program it is; success says nothing of the kind.
        assert_eq!(
            said.lines().any(|line| line.starts_with("packetloom: ") || line.starts_with("error: ")),
            expected != 0,
            "{said}"
        );
        told.push(expected);
    }
    told.dedup();
    // Help, man pages and documents have these and no others.
    let in_help: Vec<i32> = succeed(packetloom().arg("--help"))
        .lines()
        .skip_while(|line| *line != "Exit codes:")
        .skip(1)
        .filter_map(|line| line.split_ascii_whitespace().next()?.parse().ok())
        .collect();
    assert_eq!(in_help, told);
    let page = fs::read_to_string(root().join("docs/chains.md")).expect("the page");
    let in_page: Vec<i32> = page
        .lines()
        .skip_while(|line| *line != "| exit code | |")
        .filter_map(|line| line.split('|').nth(1)?.trim().parse().ok())
        .collect();
    assert_eq!(in_page, told);
    for page in [&["man"][..], &["man", "run"], &["man", "acl-check"], &["man", "chain"], &["man", "rules"]] {
        let text = succeed(packetloom().args(page));
        let section = text.split(".SH \"EXIT STATUS\"\n").nth(1).expect("exit codes");
        let section = section.split(".SH").next().expect("a section");
        let in_man: Vec<i32> = section
            .lines()
            .filter_map(|line| line.strip_prefix("\\fB")?.strip_suffix("\\fP")?.parse().ok())
            .collect();
        assert_eq!(in_man, told, "{page:?}");
    }
}

#[test]
fn as_much_is_said_as_is_asked_for() {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).expect("written");
    write("f.rules", "permit any from any to any log\n");
    write("f.toml", "[[chain]]\nnf = \"acl\"\nrules = \"f.rules\"\n[[chain]]\nnf = \"counter\"\n");
    let said = |options: &[&str]| {
        let mut command = packetloom();
        let output =
            run(command.current_dir(&folder).args(["run", "f.toml", "-r"]).arg(edge()).args(options));
        assert_eq!(output.status.code(), Some(0));
        assert!(output.stdout.is_empty());
        stderr(&output)
    };
    let usual = said(&[]);
    assert!(usual.starts_with("packetloom: warning: ") && usual.contains("\npackets\n"), "{usual}");
    for quiet in ["-q", "--quiet"] {
        assert_eq!(said(&[quiet]), "");
    }
    // Also before the verb; errors are said all the same, and what was asked for is printed.
    let output = run(packetloom().args(["-q", "check", "none.toml"]));
    assert_eq!(output.status.code(), Some(78));
    assert!(stderr(&output).starts_with("packetloom: none.toml:1: "), "{}", stderr(&output));
    let plan = succeed(packetloom().current_dir(&folder).args(["check", "-q", "f.toml"]));
    assert!(plan.starts_with("source "), "{plan}");
    let verbose = said(&["-v", "--workers", "2"]);
    for part in [
        "packetloom: workers   2 workers, packets spread by flow",
        "packetloom: 1 acl     1 rules of ",
        "f.rules: 1 rules of format native, tables of ",
        "packetloom: flows     5-tuple: ",
        "packetloom: device    cpu, batches of 512",
        "edge.pcap: ",
        " bytes, mapped\n",
    ] {
        assert!(verbose.contains(part), "{part}: {verbose}");
    }
    assert!(verbose.contains("\npackets\n"), "{verbose}");
    // On a device it says which one.
    let mut command = packetloom();
    command.current_dir(&folder).env("XDG_CACHE_HOME", env!("CARGO_TARGET_TMPDIR"));
    let output = run(command.args(["-v", "run", "f.toml", "--device", "host", "-r"]).arg(edge()));
    assert!(stderr(&output).contains("packetloom: device host: "), "{}", stderr(&output));
    let output = run(packetloom().current_dir(&folder).args(["acl", "check", "-v", "f.rules"]));
    assert!(
        stderr(&output).contains("f.rules: 1 rule of format native, recognised by its content\n"),
        "{}",
        stderr(&output)
    );
    assert_eq!(code(&["-v", "-q", "check", "f.toml"], folder.path()).0, Some(2));
}

/// A run that waits for packets, with an output that is not whole.
fn waiting(folder: &Path, output: &str) -> Child {
    let mut child = packetloom()
        .current_dir(folder)
        .args(["run", "f.toml", "-r", "-", "-w", output])
        .stdin(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("started");
    let bytes = fs::read(edge()).expect("a capture");
    child.stdin.as_mut().expect("a pipe").write_all(&bytes[..10_000]).expect("written");
    let process = format!("-{}-", child.id());
    let start = Instant::now();
    while !parts(folder).iter().any(|name| name.contains(&process)) {
        assert!(start.elapsed() < Duration::from_secs(60), "it writes");
        std::thread::sleep(Duration::from_millis(10));
    }
    child
}

/// The part files in a folder.
fn parts(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("a folder");
    let names = entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("text"));
    let mut parts: Vec<_> = names.filter(|name| name.ends_with(".part")).collect();
    parts.sort();
    parts
}

#[test]
fn what_a_killed_run_left_is_removed_and_what_a_live_one_writes_is_not() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("f.toml"), "[[chain]]\nnf = \"counter\"\n").expect("written");
    let mut killed = waiting(folder.path(), "a.pcap");
    killed.kill().expect("killed");
    let status = killed.wait().expect("a child");
    assert_eq!(status.signal(), Some(9));
    let left = parts(folder.path());
    assert_eq!(left.len(), 1, "it could not remove it");
    // The next one removes it and says so, and the one after that finds one that is written.
    let mut live = waiting(folder.path(), "b.pcap");
    let written = parts(folder.path());
    assert!(written.len() == 1 && written != left, "{written:?}");
    let mut command = packetloom();
    let output = run(command.current_dir(&folder).args(["run", "f.toml", "-w", "c.pcap", "-r"]).arg(edge()));
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(parts(folder.path()), written, "{}", stderr(&output));
    drop(live.stdin.take());
    assert!(live.wait().expect("a child").success());
    assert!(folder.path().join("b.pcap").exists() && parts(folder.path()).is_empty());
    let mut killed = waiting(folder.path(), "d.pcap");
    killed.kill().expect("killed");
    killed.wait().expect("a child");
    let left = parts(folder.path());
    let mut command = packetloom();
    let output = run(command.current_dir(&folder).args(["run", "f.toml", "-w", "d.pcap", "-r"]).arg(edge()));
    let told = format!("{}, which a run that died had left\n", left[0]);
    assert!(
        stderr(&output).contains("packetloom: removed ") && stderr(&output).contains(&told),
        "{}",
        stderr(&output)
    );
    assert!(parts(folder.path()).is_empty() && folder.path().join("d.pcap").exists());
}

#[test]
fn examples_are_good_and_run_over_the_recording() {
    let listed = succeed(packetloom().arg("example"));
    let names: Vec<&str> =
        listed.lines().map(|line| line.split("  ").next().expect("a name").trim()).collect();
    for name in [
        "edge-filter",
        "connection-firewall",
        "flow-probe",
        "balancer",
        "scan-detector",
        "rate-limiter",
        "marker",
        "string-search",
    ] {
        assert!(names.contains(&name), "{listed}");
    }
    assert!(listed.lines().all(|line| line.ends_with('.') && line.len() > 40), "{listed}");
    for name in names {
        let folder = tempfile::tempdir().expect("a folder");
        let arguments = ["example", name, "-o"];
        let output = run(packetloom().args(arguments).arg(folder.path()));
        assert!(
            output.status.success() && stderr(&output).contains("packetloom check"),
            "{}",
            stderr(&output)
        );
        let chain = format!("{name}.toml");
        let text = fs::read_to_string(folder.path().join(&chain)).expect("a chain");
        assert!(text.lines().filter(|line| line.contains('#')).count() > 5, "{name} is explained");
        let plan = run(packetloom().current_dir(&folder).args(["check", &chain]));
        assert_eq!(plan.status.code(), Some(0), "{name}: {}", stderr(&plan));
        assert_eq!(stderr(&plan), "", "{name}: without warnings");
        let output = run(packetloom().current_dir(&folder).args(["run", &chain, "-r"]).arg(edge()));
        assert_eq!(output.status.code(), Some(0), "{name}: {}", stderr(&output));
        assert!(!stderr(&output).contains("warning"), "{name}: {}", stderr(&output));
        let summary = support::json(&folder.path().join(format!("{name}.json")));
        assert_eq!(summary["received"], 5061, "{name}");
        // Each does what it is for.
        let functions = &summary["functions"];
        let found = match name {
            "edge-filter" | "connection-firewall" => {
                let function = if name == "edge-filter" { &functions[0] } else { &functions[1] };
                let drops = summary["dropped"].as_object().expect("reasons").values();
                assert!(drops.filter_map(|count| count.as_u64()).sum::<u64>() > 20, "{summary}");
                function["hits"].as_array().map_or(0, Vec::len)
            }
            "flow-probe" => functions[0]["biflows"].as_u64().map_or(0, |flows| flows as usize),
            "scan-detector" => functions[0]["detections"].as_u64().map_or(0, |found| found as usize),
            "rate-limiter" => functions[0]["red"]["packets"].as_u64().map_or(0, |found| found as usize),
            "balancer" => functions[0]["backends"][1]["flows"].as_u64().map_or(0, |flows| flows as usize),
            "string-search" => {
                assert_eq!(functions[0]["found"].as_array().map(Vec::len), Some(4), "{summary}");
                functions[1]["blocked"].as_u64().map_or(0, |found| found as usize)
            }
            _ => fs::read(folder.path().join("marker.mark7.pcapng")).expect("a capture").len(),
        };
        assert!(found > 0, "{name}: {summary}");
        // Nothing is written over.
        let output = run(packetloom().args(arguments).arg(folder.path()));
        assert_eq!(output.status.code(), Some(1));
        assert!(stderr(&output).contains(&format!("{chain}: is there already")), "{}", stderr(&output));
        assert_eq!(fs::read_to_string(folder.path().join(&chain)).expect("a chain"), text);
    }
    let output = run(packetloom().args(["example", "firewall"]));
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("expected one of: edge-filter, "), "{}", stderr(&output));
    assert_eq!(run(packetloom().args(["example", "-o", "x"])).status.code(), Some(2));
}

#[test]
fn man_pages_are_whole() {
    let subcommands = |text: &str| -> Vec<String> {
        let lines = text.lines().skip_while(|line| *line != "Commands:").skip(1);
        let lines = lines.take_while(|line| !line.trim().is_empty());
        // What a verb does may go on in the lines below.
        let lines = lines.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
        lines.filter_map(|line| Some(line.split_ascii_whitespace().next()?.to_owned())).collect()
    };
    let mut pages = vec![String::new(), "chain".into(), "rules".into()];
    for verb in subcommands(&succeed(packetloom().arg("--help"))) {
        if verb == "help" {
            continue;
        }
        let below = subcommands(&succeed(packetloom().args([&*verb, "--help"])));
        pages.extend(below.iter().filter(|name| *name != "help").map(|name| format!("{verb}-{name}")));
        pages.push(verb);
    }
    assert!(pages.len() > 20, "{pages:?}");
    let has_groff =
        Command::new("groff").arg("--version").output().is_ok_and(|output| output.status.success());
    for page in &pages {
        let text = succeed(packetloom().arg("man").args((!page.is_empty()).then_some(page)));
        for section in ["NAME", "SEE ALSO", "EXIT STATUS"] {
            let found = text.matches(&format!(".SH \"{section}\"\n")).count()
                + text.matches(&format!(".SH {section}\n")).count();
            assert_eq!(found, 1, "{page}: {section}");
        }
        // Nothing that looks like an instruction and is none, and no Markdown.
        for line in text.lines().filter(|line| line.starts_with(['.', '\''])) {
            let request = line.split_ascii_whitespace().next().expect("a word");
            let known =
                [".TH", ".SH", ".SS", ".PP", ".TP", ".IP", ".RS", ".RE", ".nf", ".fi", ".ie", ".el", ".br"];
            assert!(known.contains(&request), "{page}: {line}");
        }
        assert_eq!(text.matches(".nf").count(), text.matches(".fi").count(), "{page}");
        assert!(!text.contains("](") && !text.contains("```"), "{page}");
        if has_groff {
            let mut groff = Command::new("groff")
                .args(["-man", "-Kutf8", "-Tutf8", "-ww", "-rLL=100n"])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .expect("started");
            let mut input = groff.stdin.take().expect("a pipe");
            let for_groff = text.clone();
            let writer = std::thread::spawn(move || input.write_all(for_groff.as_bytes()));
            let output = groff.wait_with_output().expect("it ends");
            writer.join().expect("a thread").expect("written");
            // Lines that cannot be broken are no mistake.
            let said: Vec<_> = stderr(&output)
                .lines()
                .filter(|line| {
                    !line.contains("cannot adjust")
                        && !line.contains("can't break")
                        && !line.contains("cannot break")
                })
                .map(str::to_owned)
                .collect();
            assert_eq!(said, [""; 0], "{page}");
            assert!(!output.stdout.is_empty());
        }
    }
    if !has_groff {
        eprintln!("not formatted: groff is not here");
    }
    let chain = succeed(packetloom().args(["man", "chain"]));
    for part in [
        "nf = \\(dqacl\\(dq",
        "\\fBwhen_full\\fP",
        "\\fBmatched\\fP",
        "first match wins",
        ".SH \"EXAMPLES\"",
        "packetloom\\-rules(5)",
    ] {
        assert!(chain.contains(part), "{part}");
    }
    let rules = succeed(packetloom().args(["man", "rules"]));
    for part in ["\\fBreflect\\fP", ".SH \"EXAMPLES\"", "id telnet", "packetloom\\-chain(5)"] {
        assert!(rules.contains(part), "{part}");
    }
    let output = run(packetloom().args(["man", "chains"]));
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).ends_with(", chain, rules\n"), "{}", stderr(&output));
}

#[test]
fn check_takes_folders_and_patterns_as_a_run_does() {
    let folder = tempfile::tempdir().expect("a folder");
    let day = folder.path().join("day");
    fs::create_dir(&day).expect("made");
    for name in ["b.pcap", "a.pcap"] {
        fs::copy(edge(), day.join(name)).expect("copied");
    }
    fs::write(day.join("notes.txt"), "no capture").expect("written");
    let chain = |capture: &str| {
        let text = format!("[source]\ncapture = {capture}\n[[chain]]\nnf = \"counter\"\n");
        fs::write(folder.path().join("f.toml"), text).expect("written");
        run(packetloom().current_dir(&folder).args(["check", "f.toml"]))
    };
    let output = chain("\"day\"");
    let plan = String::from_utf8(output.stdout.clone()).expect("text");
    assert!(plan.starts_with("source    day/a.pcap and day/b.pcap\n"), "{plan}");
    assert!(
        stderr(&output).contains("not read, since they do not begin like captures: day/notes.txt"),
        "{}",
        stderr(&output)
    );
    let json = succeed(packetloom().current_dir(&folder).args(["check", "f.toml", "--json"]));
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!((&json["captures"][1], &json["left_out"][0]), (&"day/b.pcap".into(), &"day/notes.txt".into()));
    let plan = String::from_utf8(chain("\"day/[b]*\"").stdout).expect("text");
    assert!(plan.starts_with("source    day/b.pcap\n"), "{plan}");
    let output = chain("\"night/*\"");
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("night/*: nothing has such a name"), "{}", stderr(&output));
    let output = chain("[\"day/a.pcap\", \"day\"]");
    assert!(stderr(&output).contains("are one file; expected each capture once"), "{}", stderr(&output));
}

/// What is wrong with a key hides nothing of the others.
#[test]
fn all_mistakes_of_a_section_are_told() {
    let folder = tempfile::tempdir().expect("a folder");
    let text = "\
[source]
capture = 7
interfaces = \"eth0\"
[flows.a]
by = \"colour\"
timeout = \"soon\"
[flows.b]
max_flows = 0
[run]
workers = 0
device = \"gpu\"
colour = 1
batch = 0
[[chain]]
nf = \"limiter\"
rate = \"fast\"
burst = \"much\"
flow = \"a\"
[sink]
capture = 1
dropped = 2
";
    fs::write(folder.path().join("f.toml"), text).expect("written");
    let output = run(packetloom().current_dir(&folder).args(["check", "f.toml", "--json"]));
    let checked: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let mistakes = checked["mistakes"].as_array().expect("mistakes");
    let lines: Vec<_> = mistakes.iter().map(|mistake| mistake["line"].as_u64().expect("a line")).collect();
    assert_eq!(lines, [2, 3, 5, 6, 8, 10, 11, 12, 13, 16, 17, 18, 20, 21], "{}", stderr(&output));
    assert!(stderr(&output).starts_with("packetloom: f.toml: 14 mistakes\n"), "{}", stderr(&output));
    // A key that is missing since it was taken out is not told.
    assert!(!stderr(&output).contains("missing"), "{}", stderr(&output));
    fs::write(folder.path().join("f.toml"), "[[chain]]\nnf = \"limiter\"\n").expect("written");
    let output = run(packetloom().current_dir(&folder).args(["check", "f.toml"]));
    assert!(stderr(&output).contains("f.toml:1: missing field `rate`"), "{}", stderr(&output));
}

/// Of a long list the beginning is told, and the whole is there as JSON lines.
#[test]
fn what_is_cut_is_listed_in_json() {
    let folder = tempfile::tempdir().expect("a folder");
    let text: String = (0..3_000).map(|line| format!("permti tcp from any to any port {line}\n")).collect();
    fs::write(folder.path().join("f.rules"), text).expect("written");
    let (found, said) = code(&["acl", "check", "f.rules"], folder.path());
    assert_eq!(found, Some(78));
    assert!(
        said.starts_with("packetloom: f.rules: 3,000 mistakes\n") && said.ends_with("    and 2,980 more\n"),
        "{said}"
    );
    for verb in
        [&["check"][..], &["explain", "--packet", "1 10.0.0.1 > 10.0.0.2"], &["convert", "--to", "vpp"]]
    {
        let mut arguments = vec!["acl"];
        arguments.extend(verb);
        arguments.extend(["--json", "f.rules"]);
        let (found, said) = code(&arguments, folder.path());
        assert_eq!(found, Some(78));
        let schema: serde_json::Value =
            serde_json::from_str(&succeed(packetloom().args(["schema", "acl-convert"]))).expect("JSON");
        let lines: Vec<serde_json::Value> = said
            .lines()
            .take_while(|line| line.starts_with('{'))
            .map(|line| serde_json::from_str(line).expect("JSON"))
            .collect();
        assert_eq!((lines.len(), &lines[2_999]["line"]), (3_000, &3_000.into()), "{verb:?}");
        assert_eq!(support::schema::check(&schema, &lines[7]), Ok(()));
    }
}
