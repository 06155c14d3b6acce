//! The examples in C: compiled by gcc and clang against an installed library, and run: as they are, under valgrind, and with the compiler's
//! sanitisers. What they print is what the engine, the matcher and plain arithmetic say.
//!
//! valgrind, clang and pkg-config are left out where they are not installed, and the tests say so; where `PACKETLOOM_VALGRIND` is set, they have to
//! be.

#![allow(missing_docs)]

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock, PoisonError};

use packetloom_device::Id;
use packetloom_engine::run::{Io, LifecycleOptions};
use packetloom_engine::{Chain, Outputs, Plan, run};
use packetloom_generate::TrafficOptions;
use packetloom_io::capture::CaptureReader;
use packetloom_io::input::Stop;
use packetloom_io::output::Output;
use packetloom_nf::Context;
use packetloom_packet::{Batch, Verdict};
use packetloom_pattern::{Patterns, oracle};
use packetloom_testing::{devices, has_c_tool};
use serde_json::Value;

/// What a program is run under.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Under {
    Nothing,
    Valgrind,
}

/// Where the examples and the header are.
fn crate_folder() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../capi"))
}

/// Runs a program that has to succeed; what it printed.
fn output(command: &mut Command) -> String {
    let output = command.output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}: {said}", output.status);
    String::from_utf8(output.stdout).expect("text")
}

/// Where the library is installed, by the script.
fn installed() -> &'static Path {
    static INSTALLED: OnceLock<PathBuf> = OnceLock::new();
    INSTALLED.get_or_init(|| {
        let prefix = Path::new(env!("CARGO_TARGET_TMPDIR")).join("installed");
        // Cargo puts the libraries beside this test.
        let test = std::env::current_exe().expect("this test");
        let script = crate_folder().join("../../scripts/install-c");
        output(Command::new(script).arg(&prefix).arg(test.parent().expect("a folder")));
        prefix
    })
}

/// What the compiler is to be told: by pkg-config, where it is installed.
fn flags() -> Vec<String> {
    let [include, library] = ["include", "lib"].map(|folder| installed().join(folder).display().to_string());
    if !has_c_tool("pkg-config") {
        return vec![format!("-I{include}"), format!("-L{library}"), "-lpacketloom".into()];
    }
    let path = installed().join("lib/pkgconfig");
    let flags = output(Command::new("pkg-config").env("PKG_CONFIG_PATH", path).args([
        "--cflags",
        "--libs",
        "packetloom",
    ]));
    flags.split_whitespace().map(str::to_owned).collect()
}

/// Compiles an example, once.
fn compile(compiler: &str, example: &str, extra: &[&str]) -> PathBuf {
    let name = [&[compiler, example], extra].concat().join("").replace(['=', ',', '/', ':', ' '], "_");
    /// Programs that are compiled.
    static COMPILED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(&name);
    // One that may run is not written again.
    let mut compiled = COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
    if compiled.contains(&name) {
        return program;
    }
    let source = crate_folder().join("examples").join(format!("{example}.c"));
    let strict = ["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Wpedantic", "-Werror"];
    let library = format!("-Wl,-rpath,{}", installed().join("lib").display());
    output(
        Command::new(compiler)
            .args(strict)
            .args(extra)
            .arg(source)
            .args(flags())
            .args([&library, "-o"])
            .arg(&program),
    );
    compiled.insert(name);
    program
}

fn print_of<A: AsRef<OsStr>>(program: &Path, under: Under, arguments: &[A]) -> String {
    let mut command = match under {
        Under::Nothing => Command::new(program),
        Under::Valgrind => {
            let mut command = Command::new("valgrind");
            let suppressions = crate_folder().join("tests/valgrind.supp");
            command.args(["-q", "--error-exitcode=9", "--leak-check=full"]);
            command.arg("--errors-for-leak-kinds=definite,possible");
            command.arg(format!("--suppressions={}", suppressions.display())).arg(program);
            command
        }
    };
    output(command.args(arguments))
}

/// An example, compiled and run in all ways; they print the same.
fn all_ways<A: AsRef<OsStr>>(example: &str, arguments: &[A]) -> String {
    let printed = print_of(&compile("gcc", example, &[]), Under::Nothing, arguments);
    let sanitised = compile("gcc", example, &["-fsanitize=address,undefined", "-fno-sanitize-recover"]);
    assert_eq!(print_of(&sanitised, Under::Nothing, arguments), printed, "with sanitisers");
    if has_c_tool("clang") {
        let program = compile("clang", example, &[]);
        assert_eq!(print_of(&program, Under::Nothing, arguments), printed, "by clang");
    }
    if has_c_tool("valgrind") {
        let program = compile("gcc", example, &[]);
        assert_eq!(print_of(&program, Under::Valgrind, arguments), printed, "under valgrind");
    }
    printed
}

/// A capture of made traffic, and a rule file that drops some of it.
fn files(folder: &Path) -> (PathBuf, PathBuf) {
    let (capture, rules) = (folder.join("capture.pcap"), folder.join("rules"));
    let mut bytes = Vec::new();
    let options = TrafficOptions { packets: 3000, flows: 200, seed: 7, ..TrafficOptions::default() };
    packetloom_generate::write_pcap(&options, &mut bytes, |_| {}).expect("memory can be written");
    fs::write(&capture, bytes).expect("written");
    let text = "deny tcp from any to any port 0-20000\npermit tcp from any to any mark 77\n\
                deny udp from any port 30000-65535 to any\n";
    fs::write(&rules, text).expect("written");
    (capture, rules)
}

/// The packets of a capture, with their times, in nanoseconds.
fn packets(capture: &Path) -> Vec<(Vec<u8>, u64)> {
    let mut reader = CaptureReader::open(capture, &Stop::default()).expect("a capture");
    let mut batch = Batch::new(256);
    let mut packets = Vec::new();
    while reader.fill(&mut batch).expect("it is read") {
        let frames = batch.frames().iter().zip(batch.each_bytes());
        packets.extend(frames.map(|(frame, bytes)| (bytes.to_vec(), frame.time.as_nanos())));
    }
    packets
}

/// What the slow form of each function says of each packet.
fn oracle_of(chain: &str, folder: &Path, capture: &Path) -> (Value, Vec<String>) {
    let chain = format!("{chain}\n[run]\ndevice = \"oracle\"\n");
    let context = Context { folder, ignore_flags: false };
    let plan = Plan::new(Chain::parse("chain", &chain, context).expect("a chain"));
    let record = |path: Option<&Path>| path.map(|path| Output::create(path).expect("a file"));
    let records = plan.chain().functions().iter().map(|function| record(function.records_path()));
    let mut outputs = Outputs { records: records.collect(), ..Outputs::default() };
    let stop = Stop::default();
    let io = Io {
        source: Box::new(CaptureReader::open(capture, &stop).expect("a capture")),
        outputs: &mut outputs,
        limit: None,
        stop,
        progress: &mut |_, _| {},
        notice: &mut |_| {},
        devices: Vec::new(),
        life: LifecycleOptions::default(),
    };
    let outcome = run(&plan, io).expect("a run");
    outputs.publish().expect("written");
    let records = fs::read_to_string(folder.join("flows")).unwrap_or_default();
    let mut records: Vec<_> = records.lines().map(str::to_owned).collect();
    records.sort_unstable();
    (outcome.json(), records)
}

/// The verdict of a chain about each packet, judged one at a time.
fn verdicts(chain: &str, folder: &Path, packets: &[(Vec<u8>, u64)]) -> Vec<(Verdict, u32)> {
    use packetloom_engine::pipeline::{Shared, Worker};
    use packetloom_packet::batch::FrameRef;
    use packetloom_packet::{LinkType, Timestamp};
    let context = Context { folder, ignore_flags: false };
    let plan = Plan::new(Chain::parse("chain", chain, context).expect("a chain"));
    let mut worker = Worker::new(&plan, &Shared::new(&plan, 1, 1), 0);
    let mut batch = Batch::new(1);
    let judge = |(bytes, time): &(Vec<u8>, u64)| {
        batch.reset(std::sync::Arc::new(bytes.clone()));
        let len = bytes.len() as u32;
        let (time, link) = (Timestamp::from_nanos(*time), LinkType::ETHERNET);
        batch.push(FrameRef { offset: 0, time, len, wire_len: len, link, port: 0 });
        worker.judge(&mut batch).expect("it is judged");
        (batch.verdicts()[0], batch.mark(0))
    };
    packets.iter().map(judge).collect()
}

fn reason(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Pass => "pass",
        Verdict::Drop(reason) => reason.name(),
    }
}

/// The string that ends first in a packet, from some byte on: its number from 1, and where it ends.
fn first_string(patterns: &Patterns, packet: &[u8], skip: usize) -> (u32, u32) {
    let text = packet.get(skip..).unwrap_or_default();
    let mut matches = oracle::matches(patterns, text, 0);
    matches.sort_unstable();
    matches.first().map_or((0, 0), |found| (found.pattern + 1, found.end + skip as u32))
}

#[test]
fn the_engine_from_c_says_what_the_engine_says() {
    let folder = tempfile::tempdir().expect("a folder");
    let (capture, _) = files(folder.path());
    let chain = "[[chain]]\nnf = \"acl\"\nrules = \"rules\"\ndefault = \"permit\"\n\n[[chain]]\nnf = \"meter\"\noutput = \"flows\"\n";
    let path = folder.path().join("chain.toml");
    fs::write(&path, chain).expect("written");
    let printed = all_ways("engine", &[&path, &capture]);
    assert!(!folder.path().join("flows").exists(), "records go to the program");

    let all = packets(&capture);
    let lines: Vec<_> = printed.lines().collect();
    let expected = verdicts(chain, folder.path(), &all);
    let expected: Vec<_> =
        expected.iter().map(|(verdict, mark)| format!("{} {mark}", reason(*verdict))).collect();
    assert_eq!(lines[..all.len()], expected);
    assert!(
        expected.iter().any(|line| line == "acl_rule 0") && expected.iter().any(|line| line == "pass 77")
    );
    let (summary, records) = oracle_of(chain, folder.path(), &capture);
    let (last, between) = lines[all.len()..].split_last().expect("a summary");
    assert_eq!(serde_json::from_str::<Value>(last).expect("JSON"), summary);
    let mut between = between.to_vec();
    between.sort_unstable();
    assert_eq!(between, records);
    assert!(records.len() > 50, "{} records", records.len());
}

#[test]
fn a_service_chain_from_c_finds_what_plain_searches_find() {
    let folder = tempfile::tempdir().expect("a folder");
    let (capture, rules) = files(folder.path());
    let names = folder.path().join("names");
    // Ports and lengths make such bytes, too.
    let listed = [&b"\x00\x35"[..], b"\x01", b"\x02\x00", b"\x99"];
    fs::write(&names, "\\x00\\x35\n\\x01\n\\x02\\x00\n\\x99\n").expect("written");
    let printed = all_ways("nca", &[&capture, &names, &rules]);

    let all = packets(&capture);
    let patterns: Patterns = listed.into_iter().collect();
    let verdicts = verdicts("[[chain]]\nnf = \"acl\"\nrules = \"rules\"\n", folder.path(), &all);
    let expected = all.iter().zip(verdicts).map(|((packet, _), (verdict, _))| {
        let (pattern, end) = first_string(&patterns, packet, 34);
        format!("{pattern} {end} {}", reason(verdict))
    });
    let expected: Vec<_> = expected.collect();
    assert_eq!(printed.lines().collect::<Vec<_>>(), expected);
    let found: BTreeSet<_> = expected.iter().map(|line| line.split(' ').next()).collect();
    assert!(found.len() > 2 && found.contains(&Some("0")), "{found:?}");
    for device in devices() {
        let name = match device {
            Id::Host => continue,
            Id::OpenCl(_) => "opencl",
            Id::Cuda(_) => "cuda",
        };
        let arguments = [capture.as_os_str(), names.as_os_str(), rules.as_os_str(), name.as_ref()];
        let found = print_of(&compile("gcc", "nca", &[]), Under::Nothing, &arguments);
        assert_eq!(found, printed, "on {device}");
    }
}

#[test]
fn a_kernel_from_c_finds_the_same_on_every_device() {
    let folder = tempfile::tempdir().expect("a folder");
    let (capture, _) = files(folder.path());
    let kernels = crate_folder().join("examples/weigh.kernel.c");
    let arguments = |device: &str| [capture.clone(), kernels.clone(), device.into()];
    let printed = all_ways("kernel", &arguments("cpu"));
    let patterns: Patterns = [&b"HTTP/1.1"[..], b"\x00\x01\x00\x01"].into_iter().collect();
    let expected = packets(&capture).into_iter().map(|(packet, _)| {
        let weight = |byte: &u8| u32::from(*byte) * u32::from(*byte) + 1;
        let sum: u32 = packet.iter().map(weight).sum();
        format!("{} {} {}", sum.wrapping_mul(3), packet.len(), first_string(&patterns, &packet, 0).0)
    });
    assert_eq!(printed.lines().collect::<Vec<_>>(), expected.collect::<Vec<_>>());
    for device in devices() {
        let name = match device {
            Id::Host => continue,
            Id::OpenCl(_) => "opencl",
            Id::Cuda(_) => "cuda",
        };
        let clang = has_c_tool("clang").then_some("clang");
        for compiler in ["gcc"].into_iter().chain(clang) {
            let program = compile(compiler, "kernel", &[]);
            let found = print_of(&program, Under::Nothing, &arguments(name));
            assert_eq!(found, printed, "by {compiler}, on {device}");
        }
    }
}

#[test]
fn a_program_is_linked_with_the_static_library() {
    let folder = tempfile::tempdir().expect("a folder");
    let (capture, _) = files(folder.path());
    let path = folder.path().join("chain.toml");
    fs::write(&path, "[[chain]]\nnf = \"acl\"\nrules = \"rules\"\n").expect("written");
    let program = folder.path().join("engine");
    let library = installed().join("lib/libpacketloom.a");
    let system = ["-lgcc_s", "-lutil", "-lrt", "-lpthread", "-lm", "-ldl", "-o"];
    let mut gcc = Command::new("gcc");
    gcc.arg("-I").arg(installed().join("include")).arg(crate_folder().join("examples/engine.c"));
    output(gcc.arg(library).args(system).arg(&program));
    let alone = print_of(&program, Under::Nothing, &[&path, &capture]);
    let shared = print_of(&compile("gcc", "engine", &[]), Under::Nothing, &[&path, &capture]);
    assert_eq!(alone, shared);
    let wants = output(Command::new("ldd").arg(&program));
    assert!(!wants.contains("packetloom"), "{wants}");
}

#[test]
fn the_header_is_plain_c_and_cpp_and_the_library_has_its_functions_alone() {
    let header = installed().join("include/packetloom.h");
    let check = |compiler: &str, language: &str, standard: &str| {
        let strict = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only", "-x", language];
        output(Command::new(compiler).arg(standard).args(strict).arg(&header));
    };
    check("gcc", "c", "-std=c99");
    if has_c_tool("clang") {
        check("clang", "c", "-std=c99");
        check("clang", "c++", "-std=c++11");
    }
    let text = fs::read_to_string(&header).expect("text");
    let library = installed().join("lib/libpacketloom.so");
    let symbols = output(Command::new("nm").args(["-D", "--defined-only"]).arg(library));
    let symbols: BTreeSet<_> = symbols.lines().filter_map(|line| line.split(' ').nth(2)).collect();
    assert!(symbols.contains("nca_read_results") && symbols.contains("pl_chain_process"));
    for symbol in symbols {
        assert!(text.contains(&format!("{symbol}(")), "{symbol} is not in the header");
    }
}

/// The blocks of docs/c.md: files that are named, and commands with what they print.
#[test]
fn the_page_shows_what_its_commands_print() {
    if !has_c_tool("pkg-config") {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let root = crate_folder().join("../..");
    std::os::unix::fs::symlink(crate_folder().join("examples"), at("examples")).expect("linked");
    for name in ["edge.pcap", "edge.rules"] {
        fs::copy(root.join("examples/edge").join(name), at(name)).expect("copied");
    }
    let page = fs::read_to_string(root.join("docs/c.md")).expect("the page");
    let mut commands = 0;
    for block in page.split("```").skip(1).step_by(2) {
        let (kind, text) = block.split_once('\n').expect("a line");
        if let Some((_, name)) = kind.split_once(' ') {
            fs::write(at(name), text).expect("written");
        }
        for example in format!("\n{text}").split("\n$ ").skip(1).filter(|_| kind == "console") {
            let (line, expected) = example.split_once('\n').unwrap_or((example, ""));
            let library = installed().join("lib");
            let mut shell = Command::new("sh");
            shell.current_dir(folder.path()).env("LD_LIBRARY_PATH", &library);
            shell.env("PKG_CONFIG_PATH", library.join("pkgconfig")).args(["-c", line]);
            let printed = output(&mut shell);
            let lines: Vec<_> = printed.lines().collect();
            assert_eq!(lines.len(), expected.lines().count(), "{line}: {printed}");
            for (printed, expected) in lines.iter().zip(expected.lines()) {
                let (begin, end) = expected.split_once("...").unwrap_or((expected, ""));
                assert!(printed.starts_with(begin) && printed.ends_with(end), "{line}: {printed}");
            }
            commands += 1;
        }
    }
    assert_eq!(commands, 5);
}
