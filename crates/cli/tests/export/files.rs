//! Messages in files, and what is refused.

use std::fs;

use crate::support::{packetloom, run, stderr, succeed};
use crate::{capture, decode, expected, export, records, sorted, split, without_ends};

#[test]
fn a_file_has_the_records_whatever_the_number_of_workers() {
    let folder = tempfile::tempdir().expect("a folder");
    let capture = capture(folder.path());
    let records = records(&capture);
    assert!(records.len() > 700);
    for biflows in [false, true] {
        for workers in ["1", "3"] {
            let (file, summary) = (folder.path().join("flows.ipfix"), folder.path().join("summary.json"));
            let mut command = packetloom();
            command.args(["-q", "meter", "--workers", workers, "-r"]).arg(&capture).arg("--ipfix").arg(&file);
            command.arg("--summary").arg(&summary).args(biflows.then_some("--biflows"));
            // Nothing but what is asked for.
            assert_eq!(succeed(&mut command), "");
            let bytes = fs::read(&file).expect("a file");
            let (flows, messages) = decode(&split(&bytes));
            assert_eq!(sorted(&flows), sorted(&expected(&records, biflows)));
            if workers == "1" {
                assert_eq!(without_ends(flows.clone()), without_ends(expected(&records, biflows)));
            }
            let export = export(&summary);
            assert_eq!(export["records"], flows.len());
            assert_eq!(
                (&export["messages"], &export["bytes"]),
                (&messages.len().into(), &bytes.len().into())
            );
            assert_eq!((&export["not_sent"], &export["protocol"]), (&0.into(), &"ipfix".into()));
            assert_eq!(messages.iter().map(|message| message.options.len()).sum::<usize>(), 1);
        }
    }
}

#[test]
fn a_chain_exports_beside_its_output() {
    let folder = tempfile::tempdir().expect("a folder");
    let capture = capture(folder.path());
    let chain = "[[chain]]\nnf = \"meter\"\noutput = \"flows.jsonl\"\n\
                 [[chain.export]]\nto = \"uniflows.ipfix\"\ndomain = 7\nmessage_size = 512\n\
                 [[chain.export]]\nto = \"biflows.ipfix\"\nbiflows = true\nstatistics_interval = \"0\"\n";
    fs::write(folder.path().join("chain.toml"), chain).expect("written");
    succeed(packetloom().args(["-q", "run", "chain.toml", "-r"]).arg(&capture).current_dir(folder.path()));
    let records = crate::support::json_lines(&folder.path().join("flows.jsonl"));
    for (name, biflows, domain, len) in [("uniflows", false, 7, 512), ("biflows", true, 0, 1_400)] {
        let bytes = fs::read(folder.path().join(name).with_extension("ipfix")).expect("a file");
        let messages = split(&bytes);
        assert!(messages.iter().all(|message| message.len() <= len));
        let (flows, messages) = decode(&messages);
        assert_eq!(without_ends(flows), without_ends(expected(&records, biflows)));
        assert!(messages.iter().all(|message| message.domain == domain));
        assert_eq!(messages.iter().any(|message| !message.options.is_empty()), !biflows);
    }
}

#[test]
fn files_after_one_another_begin_with_templates() {
    let folder = tempfile::tempdir().expect("a folder");
    let capture = capture(folder.path());
    let mut command = packetloom();
    command.args(["-q", "meter", "--rotate-size", "20k", "--ipfix", "flows.ipfix", "-r"]).arg(&capture);
    succeed(command.current_dir(folder.path()));
    let mut names: Vec<_> =
        fs::read_dir(folder.path()).expect("a folder").map(|entry| entry.expect("it").path()).collect();
    names.retain(|path| path.extension().is_some_and(|of| of == "ipfix"));
    // Their names end in numbers.
    names.sort_by_key(|path| {
        path.file_stem().expect("a name").to_string_lossy().rsplit('-').next().map(str::to_owned)
    });
    assert!(names.len() > 3, "{names:?}");
    let mut flows = Vec::new();
    for name in &names {
        let bytes = fs::read(name).expect("a file");
        assert!(bytes.len() <= 20_000);
        // Each by itself.
        flows.extend(decode(&split(&bytes)).0);
    }
    assert_eq!(without_ends(flows), without_ends(expected(&records(&capture), false)));
}

#[test]
fn what_does_not_go_together_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let capture = capture(folder.path());
    for (arguments, expected) in [
        (
            "--ipfix sctp://a",
            "\"sctp\" is no transport; expected udp://, tcp://, tls://, kafka:// or the name of a file",
        ),
        ("--ipfix udp://a:0", "\"0\" is no port; expected 1 to 65535"),
        ("--netflow9 tcp://a", "NetFlow v9 is for datagrams; expected udp://HOST:PORT, or IPFIX"),
        ("--netflow9 flows.nf9", "NetFlow v9 is for datagrams; expected udp://HOST:PORT, or IPFIX"),
        ("--ipfix a.ipfix --ipfix a.ipfix", "more than one output to a.ipfix"),
        (
            "--ipfix a.ipfix --message-size 127",
            "messages of 127 bytes are not possible; expected 128 to 65,535",
        ),
        ("--ipfix a.ipfix --tls-ca ca.pem", "--tls-ca without a place to export to that it is for"),
        (
            "--ipfix a.ipfix --export-rate 1Mbit/s",
            "--export-rate without a place to export to that it is for",
        ),
        ("--ipfix udp://127.0.0.1 --message-size 65508", "messages of more than 65,507 bytes"),
        ("--ipfix udp://127.0.0.1 --export-rate 1packets/s", "rate counts packets"),
        ("--biflows", "--ipfix"),
        ("--ipfix tls://127.0.0.1:9 --tls-ca missing.pem", "missing.pem"),
        ("--ipfix capture.pcap", "capture.pcap"),
    ] {
        let mut command = packetloom();
        command.args(["meter", "-r"]).arg(&capture).args(arguments.split(' ')).current_dir(folder.path());
        let output = run(&mut command);
        assert!(!output.status.success(), "{arguments}");
        let said = stderr(&output);
        assert!(said.contains(expected), "{arguments}: {said}");
        assert!(!said.contains("panicked"), "{said}");
    }
    for (export, line, expected) in [
        ("to = 7", 4, "a place in quotes"),
        ("to = \"udp://\"", 4, "is no name of a host"),
        ("to = \"a\"\nprotocol = \"sflow\"", 5, "sflow"),
        ("to = \"udp://a\"\ntls = 1", 5, "tls"),
        ("biflows = true", 3, "to"),
    ] {
        let chain = format!("[[chain]]\nnf = \"meter\"\n[[chain.export]]\n{export}\n");
        fs::write(folder.path().join("chain.toml"), chain).expect("written");
        let output = run(packetloom().args(["check", "chain.toml"]).current_dir(folder.path()));
        let said = format!("{}{}", stderr(&output), String::from_utf8_lossy(&output.stdout));
        assert!(said.contains(expected) && said.contains(&format!("chain.toml:{line}:")), "{export}: {said}");
    }
}

/// Other outputs go on where a reader leaves; where there is none, that is the end.
#[test]
fn a_reader_that_leaves_is_let_go() {
    let folder = tempfile::tempdir().expect("a folder");
    let capture = capture(folder.path());
    for output in ["", "-o flows.jsonl"] {
        let mut command = packetloom();
        command.args(["-q", "meter", "--ipfix", "-", "--summary", "summary.json", "-r"]).arg(&capture);
        command.args(output.split_whitespace()).current_dir(folder.path());
        let mut child = command.stdout(std::process::Stdio::piped()).spawn().expect("started");
        // Nothing was read.
        drop(child.stdout.take());
        assert!(child.wait().expect("ended").success());
        assert!(folder.path().join("summary.json").exists());
        assert_eq!(folder.path().join("flows.jsonl").exists(), !output.is_empty());
        let _ = fs::remove_file(folder.path().join("summary.json"));
    }
}

#[test]
fn a_file_that_cannot_be_written_fails_the_run() {
    let folder = tempfile::tempdir().expect("a folder");
    let capture = capture(folder.path());
    let output = run(packetloom().args(["meter", "-r"]).arg(&capture).args(["--ipfix", "/dev/full"]));
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).contains("/dev/full: No space left on device"), "{}", stderr(&output));
    let output =
        run(packetloom().args(["meter", "-r"]).arg(&capture).args(["--ipfix", "missing/flows.ipfix"]));
    assert!(stderr(&output).contains("missing/flows.ipfix"), "{}", stderr(&output));
}
