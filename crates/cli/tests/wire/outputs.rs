//! Outputs that fail, or that nobody reads, while packets are forwarded.

use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use packetloom_testing::ends::{is_answered, ping};
use packetloom_testing::net::{Net, SERVER, run};
use rustix::fs::OFlags;
use rustix::process::Signal;

use crate::link::Link;
use crate::loss::numbered;
use crate::product::{Product, count, interfaces, sum};
use crate::support::frames;
use crate::support::packets::packet;

const COUNTER: &str = "[[chain]]\nnf = \"counter\"\n";
const LOG: &str = "[[chain]]\nnf = \"acl\"\nrules = \"rules\"\nlog = \"OUTPUT\"\nlog_rate = \"unlimited\"\n";
const METER: &str = "[[chain]]\nnf = \"meter\"\nidle_timeout = \"50ms\"\noutput = \"OUTPUT\"\n";
const RULES: &str = "permit any from any to any log\n";

/// Longer than it is waited for a reader at the end.
const LONG: Duration = Duration::from_secs(60);

/// Records of a capture, of which the last may be cut.
fn whole_frames(mut capture: &[u8]) -> u64 {
    capture = capture.get(24..).unwrap_or_default();
    let mut frames = 0;
    while let Some(len) = capture.get(8..12).and_then(|len| len.try_into().ok()).map(u32::from_le_bytes) {
        let Some(rest) = capture.get(16 + len as usize..) else { break };
        (capture, frames) = (rest, frames + 1);
    }
    frames
}

/// A pipe with a name, and an end of it that never waits.
fn pipe(folder: &Path) -> (PathBuf, File) {
    let path = folder.join("pipe");
    run("mkfifo", path.to_str().expect("a path")).expect("made");
    let nonblocking = OFlags::NONBLOCK.bits() as i32;
    let file = OpenOptions::new().read(true).write(true).custom_flags(nonblocking).open(&path);
    (path, file.expect("opened"))
}

/// The same in a monitor's.
#[test]
fn packets_pass_when_the_disk_is_full() {
    let Some(net) = Net::new() else { return };
    for (chain, arguments, workers) in [
        (COUNTER, "-w /dev/full", 1),
        (COUNTER, "-w /dev/full", 2),
        (LOG, "", 1),
        (METER, "", 3),
        (LOG, "--device oracle", 1),
        (COUNTER, "-w /dev/full --device oracle", 1),
    ] {
        let chain = chain.replace("OUTPUT", "/dev/full");
        let arguments = format!("{arguments} --workers {workers}");
        let mut product = Product::inline(&net.product, &chain, &[("rules", RULES)], &arguments);
        ping(&net, SERVER[0], 2).expect("answered");
        product.wait_for("warning: /dev/full: No space left on device");
        ping(&net, SERVER[0], 10).expect("answered");
        // The last answer is counted a moment after it was sent.
        product.wait_until_passed(24);
        let done = product.stop_incomplete();
        let passed = count(&done.summary, "/passed");
        assert!(passed >= 24 && sum(&done.summary, "/dropped") == 0, "{:#}", done.summary);
        let not_written = count(&done.summary["not_written"]["/dev/full"], "");
        if chain.contains("meter") {
            assert_eq!(not_written, sum(&done.summary, "/functions/0/ended"), "{:#}", done.summary);
        } else if chain.contains("log") {
            // What is not IP passes, and no rule decides it.
            assert!((24..=passed).contains(&not_written), "{:#}", done.summary);
        } else {
            assert_eq!(not_written, passed, "{:#}", done.summary);
        }
        let warnings = done.said.iter().filter(|line| line.contains("No space left")).count();
        assert_eq!(warnings, 1, "{:#?}", done.said);
    }
    let mut product = Product::start(&net.product, &[], "meter -i pa -o /dev/full --idle-timeout 50ms");
    is_answered(&net, SERVER[0]);
    product.wait_for("warning: /dev/full: No space left on device");
    let (before, _) = product.progress();
    is_answered(&net, SERVER[0]);
    product.wait_until_received(before + 1);
    let done = product.stop_incomplete();
    assert!(count(&done.summary["not_written"]["/dev/full"], "") > 0, "{:#}", done.summary);
}

/// What fits is there, and whole; what does not is counted.
#[test]
fn a_capture_ends_where_its_disk_is_full() {
    let Some(net) = Net::new() else { return };
    let mut link = Link::new(&net);
    let folder = tempfile::tempdir().expect("a folder");
    let disk = Disk::new(folder.path());
    let all = numbered(3_000, 500);
    for workers in [1, 2] {
        let capture = folder.path().join(format!("{workers}.pcap"));
        let arguments = format!("--workers {workers} -w {}", capture.display());
        let mut product = Product::inline(&net.product, COUNTER, &[], &arguments);
        assert!(link.send(&mut product, &all) == all, "all are forwarded");
        let done = product.stop_incomplete();
        let written = frames(&fs::read(&capture).expect("a capture"));
        assert!(!written.is_empty() && all.starts_with(&written), "{} frames", written.len());
        let not_written = sum(&done.summary, "/not_written");
        assert_eq!(written.len() as u64 + not_written, 3_000, "{:#}", done.summary);
        fs::remove_file(capture).expect("removed");
    }
    drop(disk);
}

/// Files after one another: where the disk is full what comes is counted, and a later file is written where there is room again.
#[test]
fn a_rotated_capture_goes_on_when_a_disk_has_room_again() {
    let Some(net) = Net::new() else { return };
    let mut link = Link::new(&net);
    let folder = tempfile::tempdir().expect("a folder");
    let disk = Disk::new(folder.path());
    let all = numbered(3_000, 500);
    for workers in [1, 2] {
        let capture = folder.path().join("all.pcap");
        let arguments = format!("--workers {workers} -w {} --rotate-size 100kB", capture.display());
        let mut product = Product::inline(&net.product, COUNTER, &[], &arguments);
        let written = || {
            let files = captures(folder.path());
            let read = |path: &PathBuf| frames(&fs::read(path).expect("a capture"));
            let all: Vec<_> = files.iter().flat_map(read).collect();
            files.into_iter().for_each(|file| fs::remove_file(file).expect("removed"));
            all
        };
        assert!(link.send(&mut product, &all) == all, "all are forwarded");
        product.wait_for("what comes until the next file is left out, and counted");
        let first = written();
        assert!(first.len() > 400, "{} frames", first.len());
        // With room again.
        assert!(link.send(&mut product, &all[..800]) == all[..800], "all are forwarded");
        let done = product.stop_incomplete();
        let second = written();
        assert!(second.len() >= 400, "{} frames", second.len());
        let mut sent = all.iter().chain(&all[..800]);
        assert!(
            first.iter().chain(&second).all(|frame| sent.any(|other| other == frame)),
            "in order, each once"
        );
        let not_written = sum(&done.summary, "/not_written");
        assert_eq!((first.len() + second.len()) as u64 + not_written, 3_800, "{:#}", done.summary);
        let warnings = done.said.iter().filter(|line| line.contains("No space left")).count();
        assert_eq!(warnings, 1, "{:#?}", done.said);
    }
    drop(disk);
}

/// By the clock, also where nothing comes any more: a file has its name soon after its time, and all of them together are what passed.
#[test]
fn files_are_finished_by_the_clock_while_nothing_comes() {
    let Some(net) = Net::new() else { return };
    let mut link = Link::new(&net);
    let all = numbered(300, 100);
    for workers in [1, 3] {
        let arguments = format!(
            "--workers {workers} -w all.pcap --rotate-every 1s --rotate-keep 1000 --stats-every 50ms --stats-output stats"
        );
        let mut product = Product::inline(&net.product, COUNTER, &[], &arguments);
        let folder = product.at(".");
        for round in 1..=2 {
            assert!(link.send(&mut product, &all) == all, "all are forwarded");
            let begin = Instant::now();
            while captures(&folder).len() < round {
                assert!(begin.elapsed() < LONG, "no file is finished");
                thread::sleep(Duration::from_millis(10));
            }
        }
        let written = || -> Vec<_> {
            captures(&folder).iter().flat_map(|file| frames(&fs::read(file).expect("a capture"))).collect()
        };
        let begin = Instant::now();
        while written().len() < 2 * all.len() && begin.elapsed() < LONG {
            thread::sleep(Duration::from_millis(10));
        }
        assert!(written() == [&all[..], &all[..]].concat(), "{} frames before the end", written().len());
        let last_line = || -> serde_json::Value {
            let lines = fs::read_to_string(product.at("stats")).expect("lines");
            let whole = lines.rfind('\n').map_or("", |end| &lines[..end]);
            serde_json::from_str(whole.lines().last().unwrap_or("{}")).expect("JSON")
        };
        let begin = Instant::now();
        while last_line()["received"].as_u64() < Some(600) {
            assert!(begin.elapsed() < LONG, "{}", last_line());
            thread::sleep(Duration::from_millis(10));
        }
        let last = last_line();
        let received: u64 = interfaces(&last).map(|interface| count(interface, "/received")).sum();
        assert!(received == count(&last, "/received") && received >= 600, "{last}");
        let done = product.stop();
        assert_eq!(sum(&done.summary, "/not_written"), 0, "{:#}", done.summary);
    }
}

/// Records that come of no packet, while nothing comes, are in files of the time at which they come: not in one for each.
#[test]
fn records_of_idle_flows_are_in_files_of_their_time() {
    let Some(net) = Net::new() else { return };
    let mut link = Link::new(&net);
    let chain = "[[chain]]\nnf = \"meter\"\nidle_timeout = \"1500ms\"\noutput = \"idle.jsonl\"\n";
    let product = Product::inline(&net.product, chain, &[], "--rotate-every 1s");
    let begin = Instant::now();
    for flow in 0..100 {
        link.client
            .send(&[packet(&format!("0 udp 10.0.0.1:{} > 10.0.0.2:80 payload 18", 1_000 + flow)).bytes]);
        thread::sleep(Duration::from_millis(20));
    }
    let files = || -> Vec<PathBuf> {
        let entries =
            fs::read_dir(product.at(".")).expect("a folder").map(|entry| entry.expect("an entry").path());
        entries.filter(|path| path.extension().is_some_and(|end| end == "jsonl")).collect()
    };
    let records = || -> usize {
        files().iter().map(|file| fs::read_to_string(file).expect("text").lines().count()).sum()
    };
    while records() < 100 {
        assert!(begin.elapsed() < LONG, "{} records", records());
        thread::sleep(Duration::from_millis(10));
    }
    let most = begin.elapsed().as_secs() as usize + 2;
    assert!(files().len() <= most, "{} files in {:?}", files().len(), begin.elapsed());
    product.stop();
}

/// The captures of a folder, in order of their names.
fn captures(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    let mut files: Vec<_> =
        entries.filter(|path| path.extension().is_some_and(|end| end == "pcap")).collect();
    files.sort();
    files
}

/// A small disk.
struct Disk(String);

impl Disk {
    fn new(at: &Path) -> Self {
        let at = at.to_str().expect("a path").to_owned();
        run("mount", &format!("-t tmpfs -o size=512k none {at}")).expect("mounted");
        Self(at)
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = run("umount", &self.0);
    }
}

/// A reader that never reads keeps no packet waiting, and the run from ending for a while only.
#[test]
fn packets_do_not_wait_for_a_reader() {
    let Some(net) = Net::new() else { return };
    let mut link = Link::new(&net);
    // More than may wait.
    let all = numbered(8_500, 8_900);
    for workers in [1, 2] {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, mut pipe) = pipe(folder.path());
        let arguments = format!("--workers {workers} -w {}", path.display());
        let mut product = Product::inline(&net.product, COUNTER, &[], &arguments);
        assert!(link.send(&mut product, &all) == all, "all are forwarded");
        product.wait_for("not taken fast enough");
        let begin = Instant::now();
        let done = product.stop_incomplete();
        assert!(begin.elapsed() < LONG, "it took {:?} to end", begin.elapsed());
        let mut read = Vec::new();
        // It ends where there is nothing, since this end is open for writing, too.
        let _ = pipe.read_to_end(&mut read);
        let (written, not_written) = (whole_frames(&read), sum(&done.summary, "/not_written"));
        assert!(written < 10 && (8_500 - written..=8_500).contains(&not_written), "{written}, {not_written}");
    }
}

/// One that is slow gets everything, as long as it fits.
#[test]
fn a_slow_reader_gets_everything() {
    let Some(net) = Net::new() else { return };
    let mut link = Link::new(&net);
    let all = numbered(3_000, 1_000);
    for (chain, workers) in [(COUNTER, 1), (LOG, 2)] {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, mut pipe) = pipe(folder.path());
        let is_log = chain == LOG;
        let capture = if is_log { String::new() } else { format!("-w {}", path.display()) };
        let chain = chain.replace("OUTPUT", path.to_str().expect("a path"));
        let arguments = format!("--workers {workers} {capture}");
        let mut product = Product::inline(&net.product, &chain, &[("rules", RULES)], &arguments);
        assert!(link.send(&mut product, &all) == all, "all are forwarded");
        product.signal(Signal::TERM);
        let is_over = Arc::new(AtomicBool::new(false));
        let reader = thread::spawn({
            let is_over = Arc::clone(&is_over);
            move || {
                // Nobody takes anything at first.
                thread::sleep(Duration::from_millis(200));
                let (mut read, mut buffer) = (Vec::new(), vec![0; 1 << 14]);
                loop {
                    // Before it is looked whether there is more: what comes later is nothing.
                    let was_over = is_over.load(Ordering::Relaxed);
                    match pipe.read(&mut buffer) {
                        Ok(len) => read.extend_from_slice(&buffer[..len]),
                        Err(_) if was_over => return read,
                        Err(_) => thread::sleep(Duration::from_millis(5)),
                    }
                }
            }
        });
        let done = product.end();
        is_over.store(true, Ordering::Relaxed);
        let read = reader.join().expect("no panic");
        let written = match is_log {
            true => read.iter().filter(|&&byte| byte == b'\n').count(),
            false => frames(&read).len(),
        };
        assert_eq!(written, 3_000, "{:#}", done.summary);
    }
}

#[test]
fn packets_pass_when_a_reader_has_gone() {
    let Some(net) = Net::new() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let (path, pipe) = pipe(folder.path());
    let arguments = format!("-w {}", path.display());
    let mut product = Product::inline(&net.product, COUNTER, &[], &arguments);
    ping(&net, SERVER[0], 2).expect("answered");
    drop(pipe);
    ping(&net, SERVER[0], 5).expect("answered");
    product.wait_for("nobody reads it any more");
    ping(&net, SERVER[0], 5).expect("answered");
    let done = product.stop_incomplete();
    assert!(sum(&done.summary, "/not_written") >= 10, "{:#}", done.summary);
}
