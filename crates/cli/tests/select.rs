//! Which packets `packetloom meter` takes: a sample, a time, those of a filter; and what it extracts of them.

#![allow(missing_docs)]

mod support;

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use support::pcapng::{pcap, pcapng};
use support::{json, packetloom, root, run, stderr, succeed};

/// A capture of some hundred flows within 100 s in a folder.
fn capture(folder: &Path) -> PathBuf {
    let path = folder.join("capture.pcap");
    let options = ["--packets", "20000", "--flows", "300", "--duration", "100s", "-w"];
    succeed(packetloom().args(["-q", "generate", "traffic"]).args(options).arg(&path));
    path
}

/// Times and bytes of frames.
type Frames = Vec<(u64, Vec<u8>)>;

/// Meters a capture: its records, sorted, its summary, and the packets that it extracts.
fn meter(capture: &Path, options: &[&str]) -> (Vec<String>, Value, Frames) {
    let folder = tempfile::tempdir().expect("a folder");
    let (summary, extract) = (folder.path().join("s.json"), folder.path().join("part.pcapng"));
    let mut command = packetloom();
    command.args(["-q", "meter", "-r"]).arg(capture).args(options);
    let text = succeed(command.arg("--summary").arg(&summary).arg("--extract").arg(&extract));
    let mut records: Vec<_> = text.lines().map(str::to_owned).collect();
    records.sort_unstable();
    let frames = pcapng(&extract);
    assert!(frames.iter().all(|frame| frame.comments.is_empty()));
    (records, json(&summary), frames.into_iter().map(|frame| (frame.nanos, frame.bytes)).collect())
}

fn refused(options: &[&str]) -> String {
    let output = run(packetloom().args(["meter", "-r", "none.pcap"]).args(options));
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    stderr(&output)
}

#[test]
fn a_sample_is_by_places_in_the_input_and_the_same_for_any_number_of_workers() {
    let folder = tempfile::tempdir().expect("a folder");
    let capture = capture(folder.path());
    let all = pcap(&capture);
    let every_seventh: Frames = all.iter().step_by(7).cloned().collect();
    let mut taken = Vec::new();
    for sample in ["7", "7,random", "7,random,0", "7,random,5"] {
        let one = meter(&capture, &["--sample", sample]);
        for workers in ["2", "5"] {
            assert_eq!(
                meter(&capture, &["--sample", sample, "--workers", workers]),
                one,
                "{sample}, {workers} workers"
            );
        }
        let (_, summary, frames) = one;
        assert_eq!(summary["frames"], frames.len());
        assert_eq!(summary["not_sampled"], all.len() - frames.len());
        assert_eq!((summary.get("outside_time"), summary.get("not_matched")), (None, None));
        taken.push(frames);
    }
    assert!(taken[0] == every_seventh);
    // Ten standard deviations around a seventh of 20,000.
    assert!(taken[1..].iter().all(|frames| (2_360..3_360).contains(&frames.len())));
    assert!(taken[1] == taken[2], "0 is the seed unless there is another one");
    assert!(taken[1] != taken[3]);
    // What is extracted has the same flow records.
    let part = folder.path().join("part.pcapng");
    let mut command = packetloom();
    let sampled = succeed(
        command.args(["-q", "meter", "--sample", "7", "-r"]).arg(&capture).arg("--extract").arg(&part),
    );
    // But for how it was sampled.
    let sampled = sampled.replace(",\"samplingInterval\":7", "");
    assert_eq!(succeed(packetloom().args(["-q", "meter", "-r"]).arg(&part)), sampled);
    // Of several captures, places are those in all of them together.
    let (again, summary) = (folder.path().join("again.pcap"), folder.path().join("s.json"));
    fs::copy(&capture, &again).expect("copied");
    let mut command = packetloom();
    command.args(["-q", "meter", "--sample", "20001", "-r"]).arg(&capture).arg("-r").arg(&again);
    succeed(command.arg("--summary").arg(&summary));
    assert_eq!((&json(&summary)["frames"], &json(&summary)["not_sampled"]), (&2.into(), &39_998.into()));
}

#[test]
fn a_time_begins_with_its_first_packets_and_ends_before_those_at_its_end() {
    let folder = tempfile::tempdir().expect("a folder");
    let capture = capture(folder.path());
    let all = pcap(&capture);
    // The times of packets in the middle, and how many are before them.
    let [begin, end] = [5_000, 12_000].map(|packet: usize| all[packet].0);
    let between: Frames = all.iter().filter(|(nanos, _)| (begin..end).contains(nanos)).cloned().collect();
    assert!((6_000..8_000).contains(&between.len()));
    let text = |nanos: u64| format!("{}.{:09}", nanos / 1_000_000_000, nanos % 1_000_000_000);
    let (begin, end) = (text(begin), text(end));
    for workers in ["1", "3"] {
        let options = ["--begin", &begin, "--end", &end, "--workers", workers];
        let (_, summary, frames) = meter(&capture, &options);
        assert!(frames == between);
        assert_eq!(
            (&summary["frames"], &summary["outside_time"]),
            (&frames.len().into(), &(all.len() - frames.len()).into())
        );
    }
    let (_, before, _) = meter(&capture, &["--end", &begin]);
    let (_, after, _) = meter(&capture, &["--begin", &end]);
    let frames = |summary: &Value| summary["frames"].as_u64().expect("a number") as usize;
    assert_eq!(frames(&before) + between.len() + frames(&after), all.len());
    // With all that chooses packets, each is in one counter.
    let options = ["--sample", "3", "--begin", &begin, "--end", &end, "-f", "tcp"];
    let (_, summary, _) = meter(&capture, &options);
    let counts = ["frames", "not_sampled", "outside_time", "not_matched"]
        .map(|name| summary[name].as_u64().expect("a count"));
    assert!(counts.iter().all(|&count| count > 100), "{counts:?}");
    assert_eq!(counts.iter().sum::<u64>(), 20_000);
}

#[test]
fn times_are_by_rfc_3339_or_in_seconds() {
    let edge = root().join("examples/edge/edge.pcap");
    let frames = pcap(&edge);
    let (first, last) = (frames[0].0, frames[frames.len() - 1].0);
    // A whole second within it, in several ways.
    let second = (first + last) / 2 / 1_000_000_000;
    let date =
        std::process::Command::new("date").args(["-u", "+%FT%TZ", "-d", &format!("@{second}")]).output();
    let utc = String::from_utf8(date.expect("date").stdout).expect("text").trim().to_owned();
    let date = std::process::Command::new("date")
        .args(["-u", "+%FT%T", "-d", &format!("@{}", second - 5_400)])
        .output();
    let west = String::from_utf8(date.expect("date").stdout).expect("text").trim().to_owned() + "-01:30";
    let expected = meter(&edge, &["--begin", &second.to_string()]);
    assert!(expected.1["outside_time"].as_u64() > Some(0) && expected.1["frames"].as_u64() > Some(0));
    for begin in [format!("{second}.000"), utc.clone(), utc.replace('Z', ".0Z"), utc.to_lowercase(), west] {
        assert!(meter(&edge, &["--begin", &begin]) == expected, "{begin}");
    }
    for (options, why) in [
        (&["--begin", "yesterday"][..], "expected a time such as 2026-11-27T15:00:00Z"),
        (&["--begin", "2026-11-27"], "seconds since 1970"),
        (&["--begin", "2026-11-27T15:00:00"], "seconds since 1970"),
        (&["--end", "2026-02-30T15:00:00Z"], "seconds since 1970"),
        (&["--end", "1.0000000001"], "seconds since 1970"),
        (&["--end", "1969-12-31T23:59:59Z"], "expected a time from 1970 to 2554"),
        (&["--begin", "18446744074"], "expected a time from 1970 to 2554"),
        (
            &["--begin", "5", "--end", "5"],
            "--end 1970-01-01T00:00:05Z: not after --begin 1970-01-01T00:00:05Z; expected a later time",
        ),
        (&["--sample", "1"], "expected a number from 2 to 4294967295"),
        (&["--sample", "10,often"], "expected N, N,random or N,random,SEED"),
    ] {
        assert!(refused(options).contains(why), "{options:?}: {}", refused(options));
    }
}

#[test]
fn what_a_filter_lets_pass_is_extracted_with_its_link_types() {
    let edge = root().join("examples/edge/edge.pcap");
    let (records, summary, frames) = meter(&edge, &["-f", "tcp"]);
    assert!(!records.is_empty() && !frames.is_empty());
    assert_eq!(
        (&summary["frames"], &summary["counted_packets"]),
        (&frames.len().into(), &frames.len().into())
    );
    let all = pcap(&edge);
    assert_eq!(summary["not_matched"], all.len() - frames.len());
    assert!(frames.iter().all(|frame| all.contains(frame)));
    // Without a filter also what has no flow.
    let (_, _, frames) = meter(&edge, &[]);
    assert!(frames == all);
    // One of Ethernet, and one that no interface is described for: pcap files have no place for it.
    let odd = root().join("crates/io/tests/data/badif.pcapng");
    let (_, _, frames) = meter(&odd, &[]);
    assert_eq!(frames.len(), 2);
    // One file is not two outputs.
    let output = run(packetloom().args(["meter", "-o", "x", "--extract", "x", "-r"]).arg(&edge));
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("--extract"), "{}", stderr(&output));
}

/// Meters a capture and extracts the packets of flows; the naive filter of the same: those of the flows of packets that a filter lets pass.
fn flows_of(capture: &Path, options: &[&str]) -> (Frames, Frames) {
    let folder = tempfile::tempdir().expect("a folder");
    let (part, whole) = (folder.path().join("part.pcapng"), folder.path().join("whole.pcapng"));
    let mut command = packetloom();
    command.args(["-q", "meter", "-o", "/dev/null", "-r"]).arg(capture).args(options);
    succeed(command.arg("--extract").arg(&part).arg("--extract-flows").arg(&whole));
    let frames = |path: &Path| pcapng(path).into_iter().map(|frame| (frame.nanos, frame.bytes)).collect();
    let part: Frames = frames(&part);
    let wanted: HashSet<_> = part.iter().filter_map(|(_, bytes)| naive_flow(bytes)).collect();
    let mut expected = pcap(capture);
    expected.retain(|(_, bytes)| naive_flow(bytes).is_some_and(|flow| wanted.contains(&flow)));
    (frames(&whole), expected)
}

/// The flow of a frame of Ethernet II with tags or not, with IPv4 or IPv6 and no more headers before the transport's: its ends in order, and the
/// protocol.
fn naive_flow(frame: &[u8]) -> Option<([Vec<u8>; 2], u8)> {
    let mut behind = &frame[12..];
    while let [0x81, 0, ..] | [0x88, 0xa8, ..] = behind {
        behind = &behind[4..];
    }
    let ip = &behind[2..];
    let (protocol, addresses, transport) = match u16::from_be_bytes([behind[0], behind[1]]) {
        0x0800 => (ip[9], [&ip[12..16], &ip[16..20]], &ip[usize::from(ip[0] & 15) * 4..]),
        0x86dd => (ip[6], [&ip[8..24], &ip[24..40]], &ip[40..]),
        _ => return None,
    };
    let ports = match protocol {
        6 | 17 | 132 => [&transport[..2], &transport[2..4]],
        1 | 58 => [&[][..]; 2],
        _ => return None,
    };
    let mut ends = [0, 1].map(|side| [addresses[side], ports[side]].concat());
    ends.sort_unstable();
    Some((ends, protocol))
}

#[test]
fn all_packets_of_flows_are_extracted_of_which_one_reaches_the_meter() {
    let folder = tempfile::tempdir().expect("a folder");
    let capture = capture(folder.path());
    let all = pcap(&capture);
    let middle = all[10_000].0 / 1_000_000_000;
    let (begin, end) = (middle.to_string(), (middle + 1).to_string());
    for options in [
        &["-f", "tcp[13] & 2 != 0"][..],
        &["-f", "udp and greater 600"],
        &["--sample", "301"],
        &["--begin", &begin, "--end", &end],
        &["--begin", &begin, "--end", &end, "-f", "ip6", "--workers", "3"],
    ] {
        let (found, expected) = flows_of(&capture, options);
        assert!(!found.is_empty() && found.len() < all.len(), "{options:?}: {}", found.len());
        assert!(found == expected, "{options:?}: {} packets, {} expected", found.len(), expected.len());
    }
    assert!(flows_of(&capture, &["-f", "host 192.0.2.255"]).0.is_empty());
    // Counted are packets that reach the meter, and -c holds both times.
    let (found, _) = flows_of(&capture, &["-c", "100", "--sample", "3"]);
    assert!(found.len() <= 100 && found.iter().all(|frame| all[..100].contains(frame)));
    // Of several captures, packets of all of them.
    let (again, whole) = (folder.path().join("again.pcap"), folder.path().join("whole.pcapng"));
    fs::copy(&capture, &again).expect("copied");
    let mut command = packetloom();
    command.args(["-q", "meter", "-o", "/dev/null", "-f", "udp", "-r"]).arg(&capture).arg("-r").arg(&again);
    succeed(command.arg("--extract-flows").arg(&whole));
    let (one, _) = flows_of(&capture, &["-f", "udp"]);
    assert_eq!(pcapng(&whole).len(), 2 * one.len());
}

#[test]
fn flows_are_extracted_from_what_can_be_read_twice() {
    let edge = root().join("examples/edge/edge.pcap");
    for (arguments, why) in [
        (&["-r", "-"][..], "--extract-flows with -r -; expected a file, which can be read twice"),
        (&["-r", "/dev/null"], "--extract-flows with -r /dev/null; expected a file"),
        (&["--each", "-r", "/dev/null"], "--extract-flows"),
        (&["-i", "lo"], "cannot be used with"),
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        let mut command = packetloom();
        command.current_dir(&folder).arg("meter").args(arguments).args(["--extract-flows", "{name}.pcapng"]);
        let output = run(command.stdin(std::process::Stdio::null()));
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(why), "{arguments:?}: {}", stderr(&output));
        assert_eq!(fs::read_dir(&folder).expect("a folder").count(), 0);
    }
    let output = run(packetloom().args(["meter", "--extract", "x", "--extract-flows", "x", "-r"]).arg(&edge));
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("--extract-flows"), "{}", stderr(&output));
}

#[test]
fn a_chain_has_one_sample() {
    let folder = tempfile::tempdir().expect("a folder");
    let check = |chain: &str| {
        fs::write(folder.path().join("chain.toml"), chain).expect("written");
        run(packetloom().arg("check").arg(folder.path().join("chain.toml")))
    };
    let plan = check("[[chain]]\nnf = \"sample\"\ninterval = 10\nmethod = \"random\"\nseed = 3\n");
    let text = String::from_utf8_lossy(&plan.stdout);
    assert!(text.contains("1 sample  each packet passes with probability 1/10, seed 3\n"), "{text}");
    for (chain, why) in [
        (
            "[[chain]]\nnf = \"sample\"\ninterval = 2\n[[chain]]\nnf = \"sample\"\ninterval = 2\n",
            ":5: sample: the chain has another one before; expected one at most",
        ),
        (
            "[[chain]]\nnf = \"sample\"\ninterval = 2\nseed = 1\n",
            "a seed; expected it with method = \"random\" only",
        ),
        ("[[chain]]\nnf = \"sample\"\ninterval = 1\n", "expected a number from 2"),
        ("[[chain]]\nnf = \"filter\"\n", "no condition; expected expression, begin or end"),
        ("[[chain]]\nnf = \"filter\"\nbegin = \"2\"\nend = \"1\"\n", "expected an end behind its beginning"),
    ] {
        let output = check(chain);
        assert_eq!(output.status.code(), Some(78));
        assert!(stderr(&output).contains(why), "{}", stderr(&output));
    }
}

#[test]
fn each_capture_by_itself_and_those_that_cannot_be_read_are_passed_over() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    fs::create_dir(at("day")).expect("a folder");
    fs::create_dir(at("out")).expect("a folder");
    for (name, packets) in [("day/b.pcap", "300"), ("day/a.x.PCAP", "500")] {
        let options = ["--packets", packets, "--flows", "20", "-w"];
        succeed(packetloom().args(["-q", "generate", "traffic"]).args(options).arg(at(name)));
    }
    fs::write(at("bad.pcap"), "no capture").expect("written");
    let outputs =
        ["-o", "out/{name}.jsonl", "--summary", "out/{name}.json", "--extract", "out/x-{name}.pcapng"];
    let each = |captures: &[&str], others: &[&str]| {
        let mut command = packetloom();
        command.current_dir(folder.path()).args(["meter", "--each"]).args(others);
        run(command.args(captures.iter().flat_map(|capture| ["-r", capture])))
    };
    let output = each(&["day", "bad.pcap", "gone.pcap"], &outputs);
    assert_eq!(output.status.code(), Some(1));
    let text = stderr(&output);
    for said in [
        "packetloom: day/b.pcap\n",
        "packetloom: bad.pcap: passed over: bad.pcap: not a capture",
        "packetloom: gone.pcap: passed over: gone.pcap: ",
        "packetloom: 2 of 4 captures were passed over\n",
    ] {
        assert!(text.contains(said), "{said}: {text}");
    }
    let mut written: Vec<_> = fs::read_dir(at("out"))
        .expect("a folder")
        .map(|entry| entry.expect("a file").file_name().into_string().expect("text"))
        .collect();
    written.sort();
    assert_eq!(written, ["a.x.json", "a.x.jsonl", "b.json", "b.jsonl", "x-a.x.pcapng", "x-b.pcapng"]);
    for (name, capture) in [("a.x", "day/a.x.PCAP"), ("b", "day/b.pcap")] {
        let alone = succeed(packetloom().args(["-q", "meter", "-r"]).arg(at(capture)));
        assert_eq!(fs::read_to_string(at(&format!("out/{name}.jsonl"))).expect("records"), alone);
        assert!(pcapng(&at(&format!("out/x-{name}.pcapng"))).len() >= 300);
    }
    // Folders of outputs are made, and what is no capture in a folder is named.
    fs::write(at("day/notes.pcap"), "no capture").expect("written");
    let output = each(&["day"], &["-o", "new/{name}/flows.jsonl", "--extract-flows", "new/{name}.pcapng"]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stderr(&output).contains("not read, since they do not begin like captures: day/notes.pcap"));
    fs::remove_file(at("day/notes.pcap")).expect("removed");
    for name in ["a.x", "b"] {
        let records = |path: String| fs::read_to_string(at(&path)).expect("records");
        assert_eq!(records(format!("new/{name}/flows.jsonl")), records(format!("out/{name}.jsonl")));
        assert!(at(&format!("new/{name}.pcapng")).is_file());
    }
    // Without a bad one, and to standard output, one after the other.
    let output = each(&["day"], &[]);
    assert!(output.status.success(), "{}", stderr(&output));
    let both =
        ["a.x", "b"].map(|name| fs::read_to_string(at(&format!("out/{name}.jsonl"))).expect("records"));
    assert_eq!(String::from_utf8_lossy(&output.stdout), both.concat());
    fs::copy(at("day/b.pcap"), at("b.pcapng")).expect("copied");
    for (captures, others, why) in [
        (&["day"][..], &["-o", "flows.jsonl"][..], "-o flows.jsonl with --each; expected {name} in it"),
        (&["day"], &["--ipfix", "flows.ipfix"], "--ipfix flows.ipfix with --each; expected {name} in it"),
        (
            &["day", "b.pcapng"],
            &outputs,
            "b.pcapng and day/b.pcap are both named b; expected a name for each",
        ),
        (&["day"], &["-o", "day/{name}.pcap"], "day/b.pcap"),
        (&["-"], &[], "-r - with --each; expected files"),
        (&[], &[], "required"),
    ] {
        let output = each(captures, others);
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
        assert!(stderr(&output).contains(why), "{}", stderr(&output));
    }
    assert_eq!(pcap(&at("day/b.pcap")).len(), 300, "nothing was lost");
}
