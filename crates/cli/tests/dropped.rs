//! Packets that are dropped are written to a capture of their own, each with the reason.

#![allow(missing_docs)]

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;

use support::pcapng::{Frame, pcap, pcapng};
use support::{json, packetloom, root, run, stderr, succeed};

/// How many frames have each reason, whatever is said beside.
fn reasons(frames: &[Frame]) -> BTreeMap<&str, u64> {
    let mut reasons = BTreeMap::new();
    for frame in frames {
        let reason = frame.comment().split(": ").next().expect("a reason");
        *reasons.entry(reason).or_default() += 1;
    }
    reasons
}

#[test]
fn each_packet_is_in_one_of_two_captures() {
    let example = root().join("examples/edge");
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let mut all = Vec::new();
    for options in
        [&["--workers", "1"][..], &["--workers", "3"], &["--device", "oracle"], &["--device", "host"]]
    {
        // What the chain file names is written beside it otherwise.
        let chain = fs::read_to_string(example.join("chain.toml")).expect("a chain file");
        let chain = chain.replace("output = \"flows.jsonl\"\n", "max_flows = 10000\n");
        for name in ["edge.pcap", "edge.rules"] {
            fs::copy(example.join(name), at(name)).expect("copied");
        }
        fs::write(at("chain.toml"), chain).expect("written");
        let mut command = packetloom();
        command.current_dir(folder.path()).args(["run", "chain.toml"]).args(options);
        succeed(command.args(["-w", "passed.pcap", "--dropped", "dropped.pcapng", "--summary", "s.json"]));
        let (dropped, passed, summary) =
            (pcapng(&at("dropped.pcapng")), pcap(&at("passed.pcap")), json(&at("s.json")));
        let counted: BTreeMap<&str, u64> = summary["dropped"]
            .as_object()
            .expect("an object")
            .iter()
            .map(|(name, count)| (&**name, count.as_u64().expect("a number")))
            .filter(|&(_, count)| count > 0)
            .collect();
        assert_eq!(reasons(&dropped), counted, "{options:?}");
        assert!(!dropped.is_empty() && !passed.is_empty());
        // Those of both captures are those of the recording; of each in order.
        let mut frames: Vec<_> = dropped.iter().map(|frame| (frame.nanos, frame.bytes.clone())).collect();
        assert!(frames.is_sorted_by_key(|(nanos, _)| *nanos), "{options:?}");
        frames.extend(passed);
        frames.sort();
        let mut recorded = pcap(&at("edge.pcap"));
        recorded.sort();
        assert!(frames == recorded, "{options:?}");
        all.push(fs::read(at("dropped.pcapng")).expect("a capture"));
    }
    assert!(all.windows(2).all(|pair| pair[0] == pair[1]), "the same bytes, whoever judges");
}

/// Frames of several link types, and of none, have a place there: pcap files have one for all.
#[test]
fn all_link_types_are_written() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("chain.toml"), "[sink]\ndropped = \"d.pcapng\"\n[run]\nnon_ip = \"drop\"\n")
        .expect("written");
    let capture = root().join("crates/io/tests/data/badif.pcapng");
    succeed(packetloom().current_dir(folder.path()).args(["run", "chain.toml", "-r"]).arg(&capture));
    let dropped = pcapng(&folder.path().join("d.pcapng"));
    let comments: Vec<_> = dropped.iter().map(|frame| (frame.link, frame.comment())).collect();
    assert_eq!(comments, [(147, "malformed: undefined_interface")]);

    // An Ethernet frame of ARP and a raw IP frame that is cut off, on two interfaces.
    let block = |kind: u32, body: &[u8]| {
        let len = (body.len() + 12) as u32;
        [&kind.to_le_bytes()[..], &len.to_le_bytes(), body, &len.to_le_bytes()].concat()
    };
    let interface = |link: u16| block(1, &[&link.to_le_bytes()[..], &[0; 6]].concat());
    let frame = |interface: u32, bytes: &[u8], wire: u32| {
        let fields = [interface, 0, 1_000_000 * (interface + 1), bytes.len() as u32, wire];
        let fields: Vec<u8> = fields.iter().flat_map(|field| field.to_le_bytes()).collect();
        let pad = vec![0; bytes.len().next_multiple_of(4) - bytes.len()];
        block(6, &[&fields[..], bytes, &pad].concat())
    };
    let header = block(0x0a0d_0d0a, &[&0x1a2b_3c4du32.to_le_bytes()[..], &[1, 0, 0, 0], &[0xff; 8]].concat());
    let arp = [&[0xff; 12][..], &[8, 6], &[7; 29]].concat();
    let short = [0x45, 0, 0, 40];
    let file =
        [header, interface(1), interface(101), frame(0, &arp, 60), frame(1, &short, 40), frame(0, &arp, 60)];
    fs::write(folder.path().join("in.pcapng"), file.concat()).expect("written");
    let mut command = packetloom();
    succeed(command.current_dir(folder.path()).args([
        "run",
        "chain.toml",
        "-r",
        "in.pcapng",
        "--workers",
        "2",
    ]));
    let dropped = pcapng(&folder.path().join("d.pcapng"));
    let expected = |link: u16, nanos: u64, wire_len: u32, bytes: &[u8], comment: &str| Frame {
        link,
        nanos,
        wire_len,
        bytes: bytes.to_vec(),
        comments: vec![comment.into()],
    };
    assert_eq!(
        dropped,
        [
            expected(1, 1_000_000_000, 60, &arp, "non_ip"),
            expected(101, 2_000_000_000, 40, &short, dropped[1].comment()),
            expected(1, 1_000_000_000, 60, &arp, "non_ip"),
        ]
    );
    if std::env::var_os("PACKETLOOM_TSHARK").is_some() {
        let mut tshark = Command::new("tshark");
        let fields = ["-T", "fields", "-e", "frame.time_epoch", "-e", "frame.comment", "-e", "frame.len"];
        let text = succeed(tshark.arg("-r").arg(folder.path().join("d.pcapng")).args(fields));
        let lines: Vec<_> = text.lines().map(|line| line.split('\t').collect::<Vec<_>>()).collect();
        assert_eq!(lines.len(), 3);
        assert_eq!(lines[0], ["1.000000000", "non_ip", "60"]);
        assert_eq!(lines[1][1], dropped[1].comment());
    } else {
        eprintln!("not compared with tshark: PACKETLOOM_TSHARK is not set");
    }
}

#[test]
fn nothing_dropped_is_a_capture_without_packets() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("chain.toml"), "[run]\nmalformed = \"pass\"\n").expect("written");
    let capture = root().join("examples/edge/edge.pcap");
    let mut command = packetloom();
    succeed(
        command
            .current_dir(folder.path())
            .args(["run", "chain.toml", "--dropped", "d.pcapng", "-r"])
            .arg(capture),
    );
    assert_eq!(pcapng(&folder.path().join("d.pcapng")), []);
    assert_eq!(fs::metadata(folder.path().join("d.pcapng")).expect("a capture").len(), 28);
}

#[test]
fn it_is_no_other_file_of_the_run() {
    let folder = tempfile::tempdir().expect("a folder");
    let capture = root().join("examples/edge/edge.pcap");
    fs::copy(&capture, folder.path().join("in.pcap")).expect("copied");
    fs::write(folder.path().join("chain.toml"), "[sink]\ncapture = \"x\"\n").expect("written");
    for (dropped, why) in [("in.pcap", "in.pcap"), ("x", "more than one output to x")] {
        let mut command = packetloom();
        let arguments = ["run", "chain.toml", "-r", "in.pcap", "--dropped", dropped];
        let output = run(command.current_dir(folder.path()).args(arguments));
        assert!(!output.status.success());
        assert!(
            stderr(&output).contains(why) && stderr(&output).contains("--dropped"),
            "{}",
            stderr(&output)
        );
    }
    assert_eq!(
        fs::read(&capture).expect("a capture"),
        fs::read(folder.path().join("in.pcap")).expect("as it was")
    );
}
