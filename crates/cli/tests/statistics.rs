//! What a run says of itself at an interval: `--stats-every`, `--stats-output`.

#![allow(missing_docs)]

mod support;

use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;
use support::{json, packetloom, packets, run, stderr, succeed};
use tempfile::TempDir;

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);

const PACKETS: &str = "\
0.0 tcp 10.0.0.1:1000 > 192.0.2.1:80 flags S
0.1 tcp 10.0.0.2:1000 > 192.0.2.1:80 flags S
0.2 tcp 10.0.0.1:1000 > 192.0.2.1:81 flags S
0.3 arp
";

const CHAIN: &str = "[[chain]]\nnf = \"acl\"\nrules = \"rules\"\n[[chain]]\nnf = \"counter\"\n";

/// A run that reads its packets from a pipe.
struct Piped {
    folder: TempDir,
    child: Child,
}

impl Piped {
    fn start(verb: &str, arguments: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let child = command(&folder, verb, arguments).stdin(Stdio::piped()).stderr(Stdio::piped()).spawn();
        Self { folder, child: child.expect("started") }
    }

    fn send(&mut self, bytes: &[u8]) {
        self.child.stdin.as_mut().expect("piped").write_all(bytes).expect("written");
    }

    /// The whole lines of statistics so far.
    fn lines(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.folder.path().join("stats")).unwrap_or_default();
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        whole.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }

    /// Waits until so many lines have come that say that it has received so many packets.
    fn wait_for(&self, lines: usize, received: u64) {
        let begin = Instant::now();
        while self.lines().iter().filter(|line| line["received"] == received).count() < lines {
            assert!(begin.elapsed() < PATIENCE, "{:?}", self.lines());
            sleep(Duration::from_millis(5));
        }
    }

    /// Waits until it has ended; the exit code, and what it said.
    fn end(&mut self) -> (Option<i32>, String) {
        drop(self.child.stdin.take());
        let mut said = String::new();
        self.child.stderr.take().expect("piped").read_to_string(&mut said).expect("text");
        (self.child.wait().expect("ended").code(), said)
    }
}

fn command(folder: &TempDir, verb: &str, arguments: &str) -> Command {
    fs::write(folder.path().join("chain.toml"), CHAIN).expect("written");
    fs::write(folder.path().join("rules"), "permit tcp from any to any port 80\n").expect("written");
    fs::write(folder.path().join("in.pcap"), packets::pcap(PACKETS)).expect("written");
    let mut command = packetloom();
    command.current_dir(folder.path()).args(verb.split_whitespace()).args(arguments.split_whitespace());
    command.env("XDG_CACHE_HOME", env!("CARGO_TARGET_TMPDIR"));
    command
}

/// By every way to run, before a first packet comes, between packets and after them; the last line is the summary's.
#[test]
fn lines_come_while_no_packet_does() {
    let schema: Value =
        serde_json::from_str(&succeed(packetloom().args(["schema", "statistics"]))).expect("JSON");
    for verb in [
        "run chain.toml --workers 1",
        "run chain.toml --workers 3",
        "run chain.toml --device oracle",
        "run chain.toml --device host",
        "meter -o flows",
    ] {
        let arguments = "-r - --summary summary.json --stats-every 20ms --stats-output stats";
        let mut run = Piped::start(verb, arguments);
        let capture = packets::pcap(PACKETS);
        run.send(&capture[..24]);
        run.wait_for(3, 0);
        run.send(&packets::pcap(PACKETS.lines().next().expect("a line"))[24..]);
        run.wait_for(3, 1);
        run.send(&packets::pcap(&PACKETS.lines().skip(1).collect::<Vec<_>>().join("\n"))[24..]);
        run.wait_for(3, 4);
        let (code, said) = run.end();
        assert_eq!(code, Some(0), "{verb}: {said}");
        assert!(!said.contains("packetloom: received"), "{verb}: {said}");
        let lines = run.lines();
        for (at, line) in lines.iter().enumerate() {
            support::schema::check(&schema, line).unwrap_or_else(|why| panic!("{verb}: {why}: {line}"));
            assert_eq!(line["last"], at + 1 == lines.len(), "{verb}: {line}");
            let dropped = line["dropped"].as_object().expect("counts").values();
            let dropped: u64 = dropped.map(|count| count.as_u64().expect("a number")).sum();
            let number = |name: &str| line[name].as_u64().expect("a number");
            assert_eq!(number("received"), number("passed") + dropped, "{verb}: {line}");
        }
        let is_sorted = |name: &str| lines.is_sorted_by_key(|line| line[name].as_u64());
        assert!(is_sorted("elapsed") && is_sorted("received") && is_sorted("read_bytes"), "{verb}");
        // Of a device, the thread that sends batches; the slow forms say nothing.
        let workers = lines[lines.len() - 1]["workers"].as_array();
        let expected = match verb {
            "run chain.toml --workers 3" => 3,
            "run chain.toml --device oracle" => 0,
            _ => 1,
        };
        assert_eq!(workers.map_or(0, Vec::len), expected, "{verb}");
        for worker in workers.into_iter().flatten() {
            let busy = worker["busy"].as_f64().expect("a number");
            // Most of the time it waits for packets.
            assert!((0.0..0.9).contains(&busy), "{verb}: {worker}");
        }
        // By the interval, and none for times that are over.
        let elapsed = lines[lines.len() - 1]["elapsed"].as_u64().expect("a number");
        assert!(lines.len() as u64 <= elapsed / 20 + 1, "{} lines in {elapsed} ms", lines.len());
        let (last, summary) = (&lines[lines.len() - 1], json(&run.folder.path().join("summary.json")));
        if verb.starts_with("run") {
            for name in ["received", "passed", "dropped", "wire_bytes"] {
                assert_eq!(last[name], summary[name], "{verb}");
            }
        }
        assert_eq!(last["received"], 4, "{verb}");
        assert_eq!(last["read_bytes"], capture.len(), "{verb}");
    }
}

/// On standard error where no file is named, also with --quiet; the table at the end is not another one of them.
#[test]
fn lines_for_people_are_said_on_standard_error() {
    for verb in ["run chain.toml", "-q run chain.toml", "meter -o flows"] {
        let mut run = Piped::start(verb, "-r - --stats-every 50ms");
        let begin = Instant::now();
        run.send(&packets::pcap(PACKETS));
        let mut stderr = BufReader::new(run.child.stderr.take().expect("piped"));
        let (mut said, mut line) = (String::new(), String::new());
        while said.lines().filter(|line| line.contains("received 4, passed ")).count() < 2 {
            line.clear();
            assert!(stderr.read_line(&mut line).expect("text") > 0, "{verb}: {said}");
            said.push_str(&line);
        }
        drop(run.child.stdin.take());
        stderr.read_to_string(&mut said).expect("text");
        let code = run.child.wait().expect("ended").code();
        let most = begin.elapsed().as_millis() / 50;
        let lines: Vec<_> = said.lines().filter(|line| line.starts_with("packetloom: received ")).collect();
        assert_eq!(code, Some(0), "{verb}: {said}");
        assert!(lines.len() as u128 <= most, "{verb}: {said}");
        assert!(lines[lines.len() - 1].contains("received 4, passed "), "{verb}: {said}");
    }
    // Never.
    let folder = tempfile::tempdir().expect("a folder");
    let output =
        run(&mut command(&folder, "run chain.toml", "-r in.pcap --stats-every 0 --stats-output stats"));
    assert!(output.status.success() && !stderr(&output).contains("packetloom: received "));
    assert!(!folder.path().join("stats").exists());
}

/// In a chain file; what is in the file stays, and each run has a last line, also one that is over before the first interval.
#[test]
fn a_file_is_appended_to() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut first = command(&folder, "run chain.toml", "-r in.pcap");
    let keys = "[run]\nstats_every = \"1h\"\nstats_output = \"stats\"\n";
    fs::write(folder.path().join("chain.toml"), format!("{keys}{CHAIN}")).expect("written");
    fs::write(folder.path().join("stats"), "what was there\n").expect("written");
    succeed(&mut first);
    succeed(&mut first);
    let text = fs::read_to_string(folder.path().join("stats")).expect("text");
    let lines: Vec<_> = text.lines().collect();
    assert_eq!((lines.len(), lines[0]), (3, "what was there"));
    assert!(lines[1..].iter().all(|line| line.contains("\"last\":true,\"received\":4")), "{text}");
    assert_eq!(succeed(first.args(["--stats-output", "-"])).lines().count(), 1);
}

/// A full disk, and a reader that has gone: said once, counted, and packets go on.
#[test]
fn lines_that_cannot_be_written_are_counted() {
    for (name, why) in [("/dev/full", "No space left"), ("pipe", "nobody reads it any more")] {
        let folder = tempfile::tempdir().expect("a folder");
        let mut command = command(
            &folder,
            "run chain.toml",
            "-r - --summary summary.json -w passed.pcap --stats-every 20ms",
        );
        rustix::fs::mknodat(
            rustix::fs::CWD,
            folder.path().join("pipe"),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
            0,
        )
        .expect("a pipe");
        let mut reader =
            OpenOptions::new().read(true).write(true).open(folder.path().join("pipe")).expect("opened");
        command.args(["--stats-output", name]).stdin(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("started");
        let capture = packets::pcap(PACKETS);
        child.stdin.as_mut().expect("piped").write_all(&capture[..24]).expect("written");
        // Until it has written there.
        if name == "pipe" {
            assert_eq!(reader.read(&mut [0]).expect("a line"), 1);
        }
        drop(reader);
        child.stdin.as_mut().expect("piped").write_all(&capture[24..]).expect("written");
        sleep(Duration::from_millis(500));
        let mut run = Piped { folder, child };
        let (code, said) = run.end();
        assert_eq!(code, Some(1), "{name}: {said}");
        assert_eq!(
            said.lines().filter(|line| line.contains("warning") && line.contains(why)).count(),
            1,
            "{said}"
        );
        assert!(said.contains("were not written: "), "{said}");
        let summary = json(&run.folder.path().join("summary.json"));
        assert_eq!(summary["received"], 4, "{summary}");
        let left_out = summary["not_written"][name].as_u64().expect("a number");
        // The last line at least.
        assert!(left_out >= 1, "{summary}");
        let passed = fs::read(run.folder.path().join("passed.pcap")).expect("written");
        assert_eq!(support::frames(&passed).len(), 3);
    }
}

#[test]
fn what_cannot_be_is_refused() {
    for (arguments, code, why) in [
        ("-r in.pcap --stats-output stats", 2, "--stats-output without --stats-every; expected"),
        ("-r in.pcap --stats-every soon", 2, "expected a time such as"),
        ("-r in.pcap --stats-every 1ms", 2, "1ms; expected 10ms or more, or 0 for never"),
        ("-r in.pcap --stats-every 1s --stats-output in.pcap", 2, "is the same file as"),
        (
            "-r in.pcap --stats-every 1s --stats-output stats --summary stats",
            2,
            "more than one output to stats",
        ),
        ("-r in.pcap --stats-every 1s --stats-output none/stats", 1, "none/stats: "),
    ] {
        for verb in ["run chain.toml", "meter -o flows"] {
            let folder = tempfile::tempdir().expect("a folder");
            let output = run(&mut command(&folder, verb, arguments));
            assert_eq!(output.status.code(), Some(code), "{verb} {arguments}: {}", stderr(&output));
            assert!(stderr(&output).contains(why), "{verb} {arguments}: {}", stderr(&output));
            assert!(!folder.path().join("stats").exists() && !folder.path().join("flows").exists());
        }
    }
    for (keys, why) in [
        ("stats_output = \"stats\"", "chain.toml:1: stats_output without stats_every; expected"),
        ("stats_every = \"1us\"", "chain.toml:1: stats_every is 1us; expected 10ms or more"),
        ("stats_every = 10", "chain.toml:2: "),
        ("stats_every = \"1s\"\nstats_output = \"rules\"", "is the same file as"),
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        let mut command = command(&folder, "check chain.toml", "");
        fs::write(folder.path().join("chain.toml"), format!("[run]\n{keys}\n{CHAIN}")).expect("written");
        let output = run(&mut command);
        assert_eq!(output.status.code(), Some(78), "{keys}: {}", stderr(&output));
        assert!(stderr(&output).contains(why), "{keys}: {}", stderr(&output));
    }
}
