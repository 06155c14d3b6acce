//! Outputs that are one file after another: `--rotate-every`, `--rotate-size`, `--rotate-keep`.

#![allow(missing_docs)]

mod support;

use std::fmt::Write as _;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use support::pcapng::{self, Frame};
use support::{packetloom, packets, run, stderr, succeed};
use tempfile::TempDir;

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// 2023-11-14, 22:13:20.
const BEGIN: u64 = 1_700_000_000;

/// Its table is small: a device goes through all of it at the end.
const CHAIN: &str = "\
[run]
batch = 16
[[chain]]
nf = \"acl\"
rules = \"rules\"
log = \"log.jsonl\"
log_rate = \"unlimited\"
[[chain]]
nf = \"meter\"
idle_timeout = \"1s\"
max_flows = 1000
output = \"flows.jsonl\"
[sink]
capture = \"passed.pcap\"
dropped = \"dropped.pcapng\"
matched = \"matched.pcapng\"
";

const OUTPUTS: [&str; 5] = ["passed.pcap", "dropped.pcapng", "matched.pcapng", "log.jsonl", "flows.jsonl"];

const WAYS: [&str; 5] =
    ["--workers 1", "--workers 3", "--workers 3 -c 600", "--device oracle", "--device host"];

/// 600 packets in 60 seconds, of which some come earlier than those before them.
fn traffic() -> String {
    let mut lines = String::new();
    for number in 0..600u64 {
        let tenths = if number % 50 == 49 { number - 20 } else { number };
        let (seconds, tenth) = (BEGIN + tenths / 10, tenths % 10);
        let port = if number % 7 == 0 { 81 } else { 80 };
        let size = number % 11 * 100;
        let source = number % 13;
        writeln!(lines, "{seconds}.{tenth} udp 10.0.0.{source}:1000 > 192.0.2.1:{port} payload {size}")
            .expect("text");
    }
    lines
}

fn folder() -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, bytes: &[u8]| fs::write(folder.path().join(name), bytes).expect("written");
    write("chain.toml", CHAIN.as_bytes());
    write("rules", b"permit udp from any to any port 80 log\ndeny udp from any to any port 81 log\n");
    write("in.pcap", &packets::pcap(&traffic()));
    folder
}

fn command(folder: &TempDir, arguments: &str) -> Command {
    let mut command = packetloom();
    command.current_dir(folder.path()).args(arguments.split_whitespace());
    command.env("XDG_CACHE_HOME", env!("CARGO_TARGET_TMPDIR"));
    command
}

/// The files of an output in the order of their names, which is that of their numbers; none is there under the name itself.
fn files(folder: &Path, output: &str) -> Vec<PathBuf> {
    let (stem, extension) = output.split_once('.').expect("a name with an end");
    let entries = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    let name = |path: &PathBuf| path.file_name().expect("a name").to_str().expect("text").to_owned();
    let mut files: Vec<_> =
        entries.filter(|path| name(path).starts_with(stem) && name(path).contains('-')).collect();
    files.sort();
    let mut last = 0;
    for file in &files {
        let name = name(file);
        let rest = name.strip_prefix(stem).and_then(|rest| rest.strip_suffix(&format!(".{extension}")));
        let parts: Vec<_> = rest.unwrap_or_else(|| panic!("{name}")).split('-').collect();
        let [_, time, number] = parts[..] else { panic!("{name}") };
        assert!(time.len() == 16 && time.ends_with('Z') && number.len() == 6, "{name}");
        let number: u64 = number.parse().expect("a number");
        assert!(number > last, "{files:?}");
        last = number;
    }
    assert!(!folder.join(output).exists() && !fs::exists(folder.join(output)).expect("known"));
    files
}

/// What is in some files, without what each begins with.
fn content(output: &str, files: &[PathBuf]) -> Vec<u8> {
    let mut content = Vec::new();
    for file in files {
        let bytes = fs::read(file).expect("there");
        let header = if output.ends_with(".pcap") { 24 } else { 0 };
        content.extend(&bytes[header..]);
    }
    content
}

fn frames(files: &[PathBuf]) -> Vec<Frame> {
    files.iter().flat_map(|file| pcapng::pcapng(file)).collect()
}

/// The times of a capture's packets, in nanoseconds.
fn times(file: &Path) -> Vec<u64> {
    match file.extension().and_then(|extension| extension.to_str()) {
        Some("pcap") => pcapng::pcap(file).into_iter().map(|(nanos, _)| nanos).collect(),
        _ => pcapng::pcapng(file).into_iter().map(|frame| frame.nanos).collect(),
    }
}

/// Lines in an order that does not depend on workers.
fn sorted(text: &[u8]) -> Vec<&[u8]> {
    let mut lines: Vec<_> = text.split_inclusive(|&byte| byte == b'\n').collect();
    lines.sort();
    lines
}

#[track_caller]
fn assert_sum(output: &str, whole: &Path, files: &[PathBuf]) {
    if output.ends_with(".pcapng") {
        assert!(frames(files) == pcapng::pcapng(whole), "{output}");
    } else {
        let (sum, whole) = (content(output, files), content(output, &[whole.to_owned()]));
        assert!(!whole.is_empty() && sorted(&sum) == sorted(&whole), "{output}");
        // The order of records is that of workers; those of packets and of logs are the packets'.
        assert!(output == "flows.jsonl" || sum == whole, "{output}");
    }
}

/// By every way to run: all files together are what one would have been, and each is one by itself.
#[test]
fn files_together_are_the_one_that_there_would_have_been() {
    let mut known: Vec<(PathBuf, Vec<u8>)> = Vec::new();
    for way in WAYS {
        for (rotation, every, size) in [
            ("--rotate-every 10s", Some(10), None),
            ("--rotate-size 5k", None, Some(5_000)),
            ("--rotate-every 10s --rotate-size 8kB", Some(10), Some(8_000)),
        ] {
            let whole = folder();
            succeed(&mut command(&whole, &format!("run chain.toml -r in.pcap {way}")));
            let folder = folder();
            succeed(&mut command(&folder, &format!("run chain.toml -r in.pcap {way} {rotation}")));
            for output in OUTPUTS {
                let files = files(folder.path(), output);
                // Lines of a capture go by the time at which they are written, many at a time.
                let least = if every.is_some() && output.ends_with("jsonl") { 1 } else { 3 };
                assert!(files.len() >= least, "{way} {rotation}: {files:?}");
                assert_sum(output, &whole.path().join(output), &files);
                for file in &files {
                    let len = fs::metadata(file).expect("there").len();
                    assert!(size.is_none_or(|size| len <= size), "{}: {len} bytes", file.display());
                }
                if output.contains(".pcap") {
                    let mut before = None;
                    for file in &files {
                        let times = times(file);
                        let period = |nanos: &u64| every.map(|every| nanos / 1_000_000_000 / every);
                        // Those that are late are in the file that is written then.
                        let latest = times.iter().map(period).max().expect("frames");
                        assert_eq!(
                            latest,
                            period(&times[0]).max(before.unwrap_or(None)),
                            "{}",
                            file.display()
                        );
                        assert!(size.is_some() || before.is_none_or(|before| before < latest));
                        before = Some(latest);
                    }
                }
                if way == WAYS[0] {
                    continue;
                }
                // What packets decide is the same for any number of workers.
                for file in files.iter().filter(|_| output.contains(".pcap")) {
                    let name = PathBuf::from(rotation).join(file.file_name().expect("a name"));
                    let bytes = fs::read(file).expect("there");
                    match known.iter().find(|(other, _)| *other == name) {
                        Some((_, other)) => assert!(*other == bytes, "{way}: {}", file.display()),
                        None => known.push((name, bytes)),
                    }
                }
            }
            // Nothing is left behind.
            let parts = fs::read_dir(folder.path()).expect("a folder");
            let mut names = parts.map(|entry| entry.expect("an entry").file_name());
            assert!(!names.any(|name| name.to_str().expect("text").ends_with(".part")));
        }
    }
    // 22:13:20, and then whole multiples of ten seconds.
    let names: Vec<_> = known.iter().map(|(name, _)| name.display().to_string()).collect();
    for name in ["passed-20231114T221320Z-000001.pcap", "passed-20231114T221330Z-000002.pcap"] {
        assert!(names.iter().any(|known| *known == format!("--rotate-every 10s/{name}")), "{names:?}");
    }
}

#[test]
fn a_meter_rotates_as_well_and_keeps_the_last_files() {
    let folder = folder();
    succeed(&mut command(&folder, "meter -r in.pcap -o all.jsonl --idle-timeout 1s"));
    let arguments = "meter -r in.pcap -o flows.jsonl --idle-timeout 1s --rotate-size 3k";
    succeed(&mut command(&folder, arguments));
    let all = files(folder.path(), "flows.jsonl");
    assert_sum("flows.jsonl", &folder.path().join("all.jsonl"), &all);
    let kept = content("flows.jsonl", &all[all.len() - 2..]);
    let first = all[0].clone();
    // Others' files stay; the numbers go on behind them.
    all[1..].iter().for_each(|file| fs::remove_file(file).expect("removed"));
    succeed(command(&folder, arguments).args(["--rotate-keep", "2"]));
    let left = files(folder.path(), "flows.jsonl");
    assert_eq!((left.len(), &left[0]), (3, &first));
    assert_eq!(content("flows.jsonl", &left[1..]), kept);
}

/// By another run with the same names: both are whole.
#[test]
fn no_file_is_replaced() {
    let folder = folder();
    let mut command = command(&folder, "run chain.toml -r in.pcap --rotate-every 20s");
    succeed(&mut command);
    let first = files(folder.path(), "passed.pcap");
    let before: Vec<_> = first.iter().map(|file| fs::read(file).expect("there")).collect();
    succeed(&mut command);
    let all = files_of_two(folder.path());
    assert_eq!(all.len(), 2 * first.len());
    for (file, before) in first.iter().zip(before) {
        assert!(fs::read(file).expect("there") == before);
    }
    let second: Vec<_> = all.into_iter().filter(|file| !first.contains(file)).collect();
    let numbered =
        |file: &PathBuf| file.to_str().and_then(|name| name.split('-').next_back()).map(str::to_owned);
    let mut second: Vec<_> = second.into_iter().map(|file| (numbered(&file), file)).collect();
    second.sort();
    let second: Vec<_> = second.into_iter().map(|(_, file)| file).collect();
    assert!(content("passed.pcap", &second) == content("passed.pcap", &first));
    // Without packets there is no file.
    fs::write(folder.path().join("in.pcap"), packets::pcap("")).expect("written");
    succeed(&mut command);
    assert_eq!(files_of_two(folder.path()).len(), 2 * first.len());
}

fn files_of_two(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    entries
        .filter(|path| {
            path.file_name().is_some_and(|name| name.to_str().is_some_and(|name| name.starts_with("passed-")))
        })
        .collect()
}

/// What was finished is there and whole after kill -9; what was not is removed by the next run, as ever.
#[test]
fn a_run_that_is_killed_leaves_whole_files() {
    let folder = folder();
    let mut command = command(&folder, "run chain.toml -r - --rotate-size 5k");
    let mut child = command.stdin(Stdio::piped()).stderr(Stdio::null()).spawn().expect("started");
    let mut pipe = child.stdin.take().expect("piped");
    pipe.write_all(&packets::pcap(&traffic())).expect("written");
    let begin = Instant::now();
    while files(folder.path(), "passed.pcap").len() < 20 {
        assert!(begin.elapsed() < PATIENCE, "{:?}", files(folder.path(), "passed.pcap"));
        sleep(Duration::from_millis(5));
    }
    child.kill().expect("killed");
    child.wait().expect("gone");
    let (whole, left) = (self::folder(), files(folder.path(), "passed.pcap"));
    succeed(&mut self::command(&whole, "run chain.toml -r in.pcap"));
    let all = fs::read(whole.path().join("passed.pcap")).expect("there");
    let sum = content("passed.pcap", &left);
    assert!(all[24..].starts_with(&sum));
    for file in left {
        // Each by itself.
        assert!(times(&file).len() > 2);
    }
    let output = run(&mut self::command(&folder, "run chain.toml -r in.pcap --rotate-size 5k"));
    assert!(
        output.status.success() && stderr(&output).contains("which a run that died had left"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn what_cannot_be_rotated_is_refused() {
    let folder = folder();
    let fifo = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, folder.path().join("pipe"), fifo, rustix::fs::Mode::RUSR, 0)
        .expect("a pipe");
    for (arguments, code, why) in [
        (
            "run chain.toml -r in.pcap -w - --rotate-every 1h",
            2,
            "-: standard output, which cannot be rotated",
        ),
        ("run chain.toml -r in.pcap -w /dev/null --rotate-size 1G", 2, "/dev/null: a device, which cannot"),
        ("run chain.toml -r in.pcap --dropped pipe --rotate-size 1G", 2, "pipe: a pipe, which cannot"),
        ("run chain.toml -r in.pcap --matched . --rotate-size 1G", 2, ".: a folder, which cannot"),
        ("meter -r in.pcap --rotate-every 1h", 2, "-: standard output, which cannot"),
        ("meter -r in.pcap -o flows --rotate-keep 3", 2, "--rotate-keep without --rotate-every and"),
        ("meter -r in.pcap -o flows --rotate-every 1ms", 2, "1ms; expected 1s or more"),
        ("meter -r in.pcap -o flows --rotate-size 999", 2, "999B; expected 1kB or more"),
        ("meter -r in.pcap -o flows --rotate-size 1g", 2, "expected a size such as"),
        ("meter -r in.pcap -o flows --rotate-size 1G --rotate-keep 0", 2, "expected"),
        ("meter -r in.pcap -o none/flows --rotate-size 1G", 1, "none/flows: "),
    ] {
        let output = run(&mut command(&folder, arguments));
        assert_eq!(output.status.code(), Some(code), "{arguments}: {}", stderr(&output));
        assert!(stderr(&output).contains(why), "{arguments}: {}", stderr(&output));
    }
    for (keys, why) in [
        ("rotate_keep = 3", "chain.toml:1: rotate_keep without rotate_every and rotate_size"),
        ("rotate_every = \"10ms\"", "chain.toml:1: rotate_every is 10ms; expected 1s or more"),
        ("rotate_size = \"1B\"", "chain.toml:1: rotate_size is 1B; expected 1kB or more"),
        ("rotate_size = \"much\"", "chain.toml:2: "),
        ("rotate_every = \"1h\"\n[sink]\ncapture = \"-\"", "standard output, which cannot be rotated"),
    ] {
        let text = CHAIN.split("[sink]").next().expect("a chain").replace("[run]\nbatch = 16\n", "");
        fs::write(folder.path().join("chain.toml"), format!("[run]\n{keys}\n{text}")).expect("written");
        for arguments in ["check chain.toml", "run chain.toml -r in.pcap"] {
            let output = run(&mut command(&folder, arguments));
            assert_eq!(output.status.code(), Some(78), "{arguments}, {keys}: {}", stderr(&output));
            assert!(stderr(&output).contains(why), "{arguments}, {keys}: {}", stderr(&output));
        }
    }
}
