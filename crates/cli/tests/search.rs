//! Strings in packets: `packetloom search`, and `nf = "strings"` in a chain.

#![allow(missing_docs)]

mod support;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::path::Path;

use serde_json::Value;
use support::packets::{self, segments, with_payload};
use support::pcapng::{self, pcapng};
use support::{json, json_lines, packetloom, root, run, stderr, succeed};

/// Packets with payloads of several kinds, in a folder.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let tcp = "tcp 10.0.0.1:1000 > 192.0.2.1:80 flags PA";
    let lines = [
        with_payload(&format!("0.0 {tcp}"), b"GET /cmd.exe HTTP/1.1\r\nHost: Evil.com\r\n\r\n"),
        with_payload(&format!("0.1 {tcp}"), b"GET /index.html HTTP/1.1\r\nHost: evil.com\r\n\r\n"),
        with_payload("0.2 udp 10.0.0.2:1000 > 192.0.2.53:53", b"\x00\x01\x01\x00\x04evil\x03com\x00"),
        with_payload("0.3 icmp 10.0.0.3 > 192.0.2.1 type 8 code 0 id 7", b"evil.com"),
        with_payload("0.4 tcp [2001:db8::1]:1000 > [2001:db8::2]:80 flags PA", b"\xff\x00evil.com\x00\xff"),
        // A string that is cut by the end of a packet, and one of which a part was not captured.
        with_payload(&format!("0.5 {tcp}"), b"evil.c"),
        with_payload(&format!("0.6 {tcp}"), b"om"),
        with_payload(&format!("0.7 {tcp}"), b"evil.com").replace('\n', " cut 60\n"),
        // Without a payload, a later fragment, and no IP.
        "0.8 tcp 10.0.0.1:1000 > 192.0.2.1:80 flags S\n".into(),
        with_payload("0.9 udp 10.0.0.1:1000 > 192.0.2.1:80", b"evil.com").replace('\n', " fragment 3\n"),
        "1.0 arp\n".into(),
    ];
    fs::write(folder.path().join("some.pcap"), packets::pcap(&lines.concat())).expect("written");
    folder
}

fn search(folder: &Path, arguments: &[&str]) -> String {
    let mut command = packetloom();
    command.current_dir(folder).args(["search", "-r", "some.pcap"]);
    succeed(command.args(arguments))
}

/// Where the strings of an alert lie: in what, from where on and up to where; and how many places there are beside these.
fn offsets(alert: &Value) -> (Vec<(String, i64, i64)>, usize) {
    let number = |value: &Value| value.as_i64().expect("a number");
    let place =
        |at: &Value| (at["in"].as_str().expect("text").to_owned(), number(&at["begin"]), number(&at["end"]));
    let told = alert["offsets"].as_array().map(|all| all.iter().map(place).collect());
    (told.unwrap_or_default(), alert["more_offsets"].as_u64().unwrap_or(0) as usize)
}

/// The numbers of packets at the beginnings of lines.
fn numbers(text: &str) -> Vec<u64> {
    text.lines().map(|line| line.split(':').next().expect("a number").parse().expect("a number")).collect()
}

#[test]
fn strings_of_the_command_line_are_found() {
    let folder = folder();
    let found = search(folder.path(), &["-e", "evil.com"]);
    assert_eq!(numbers(&found), [2, 4, 5, 10]);
    let first = found.lines().next().expect("a line");
    assert_eq!(first, "2: 1970-01-01T00:00:00.100000+0000 TCP 10.0.0.1:1000 > 192.0.2.1:80: evil.com");
    assert!(found.contains("ICMP 10.0.0.3 > 192.0.2.1: evil.com"), "{found}");
    assert!(found.contains("TCP [2001:db8::1]:1000 > [2001:db8::2]:80: evil.com"), "{found}");
    assert_eq!(numbers(&search(folder.path(), &["-e", "evil.com", "--ignore-case"])), [1, 2, 4, 5, 10]);
    // Escapes, and texts that would be no patterns in a list.
    assert_eq!(numbers(&search(folder.path(), &["-e", r"\x04evil\x03com"])), [3]);
    assert_eq!(numbers(&search(folder.path(), &["-e", "\r\n\r\n"])), [1, 2]);
    assert_eq!(search(folder.path(), &["-e", "# evil"]), "");
    assert_eq!(numbers(&search(folder.path(), &["-e", " "])), [1, 2]);
    assert_eq!(search(folder.path(), &["-e", "\u{c}"]), "");
    assert_eq!(search(folder.path(), &["-e", "\u{feff}evil"]), "");
    // Several: each is told, or the first.
    let both = ["-e", "GET", "-e", "evil.com"];
    assert_eq!(numbers(&search(folder.path(), &both)), [1, 2, 2, 4, 5, 10]);
    let first = search(folder.path(), &[&both[..], &["--match", "first"]].concat());
    assert_eq!(numbers(&first), [1, 2, 4, 5, 10]);
    // A port of the header.
    assert_eq!(search(folder.path(), &["-e", r"\x03\xe8\x00\x35"]), "");
    assert_eq!(numbers(&search(folder.path(), &["-e", r"\x03\xe8\x00\x35", "--within", "packet"])), [3]);
    // As many packets, as many workers, and only those of a filter.
    assert_eq!(numbers(&search(folder.path(), &["-e", "evil.com", "-c", "4"])), [2, 4]);
    assert_eq!(numbers(&search(folder.path(), &["-e", "evil.com", "--workers", "3"])), [2, 4, 5, 10]);
    assert_eq!(numbers(&search(folder.path(), &["-e", "evil.com", "-f", "icmp or ip6"])), [4, 5]);
}

#[test]
fn offsets_are_those_of_a_plain_search() {
    let patterns = ["ab", "b", "aab", "abab", "aaaaaaa", "bbabaabb"];
    let mut state = 7u32;
    let mut next = |below: u32| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) % below
    };
    let mut payloads: Vec<Vec<u8>> =
        (0..300).map(|_| (0..next(90)).map(|_| b"aabbx"[next(5) as usize]).collect()).collect();
    payloads.push(vec![b'a'; 900]);
    payloads.push(b"b".repeat(65));
    payloads.push(b"b".repeat(64));
    let lines: String = payloads
        .iter()
        .zip(0..)
        .map(|(payload, number)| {
            let udp = format!("{}.{:03} udp 10.0.0.1:1 > 10.0.0.2:2", number / 1000, number % 1000);
            with_payload(&udp, payload).replace(" bytes \n", "\n")
        })
        .collect();
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("some.pcap"), packets::pcap(&lines)).expect("written");
    // Behind the header of the file, a header and a frame each.
    let mut file = &packets::pcap(&lines)[24..];
    let mut frames = Vec::new();
    while let Some((head, rest)) = file.split_first_chunk::<16>() {
        let len = u32::from_le_bytes([head[8], head[9], head[10], head[11]]);
        let (frame, rest) = rest.split_at(len as usize);
        frames.push(frame.to_vec());
        file = rest;
    }
    let expected = |texts: &[Vec<u8>]| -> Vec<(u64, &str, Vec<usize>)> {
        let of_text = |(text, number): (&Vec<u8>, u64)| {
            patterns.map(|pattern| {
                let windows = text.windows(pattern.len()).enumerate();
                let begins = windows.filter(|(_, bytes)| *bytes == pattern.as_bytes()).map(|(at, _)| at);
                (number, pattern, begins.collect::<Vec<_>>())
            })
        };
        let all = texts.iter().zip(1..).flat_map(of_text);
        all.filter(|(_, _, begins)| !begins.is_empty()).collect()
    };
    let in_payloads = expected(&payloads);
    assert!(in_payloads.len() > 700);
    assert_eq!(in_payloads.iter().map(|(_, _, begins)| begins.len()).max(), Some(894));
    let strings: Vec<_> = patterns.iter().flat_map(|pattern| ["-e", pattern]).collect();
    let in_frames = expected(&frames);
    for (within, name, expected) in [
        ("payload", "payload", &in_payloads),
        ("stream", "payload", &in_payloads),
        ("packet", "packet", &in_frames),
    ] {
        for workers in ["1", "3"] {
            let how = ["--within", within, "--workers", workers, "-b"];
            let json = [&strings[..], &how, &["--json", "-o", "a.json"]].concat();
            search(folder.path(), &json);
            let alerts = json_lines(&folder.path().join("a.json"));
            let plain = search(folder.path(), &[&strings[..], &how].concat());
            assert_eq!((alerts.len(), plain.lines().count()), (expected.len(), expected.len()));
            for ((alert, line), (number, pattern, begins)) in alerts.iter().zip(plain.lines()).zip(expected) {
                assert_eq!(alert["pcap_cnt"].as_u64(), Some(*number));
                assert_eq!(alert["alert"]["signature"].as_str(), Some(*pattern));
                let places = begins
                    .iter()
                    .take(64)
                    .map(|&begin| (name.to_owned(), begin as i64, (begin + pattern.len()) as i64));
                let places: Vec<_> = places.collect();
                let more = begins.len().saturating_sub(64);
                let shown = places.iter().map(|(within, begin, _)| match &within[..] {
                    "payload" => begin.to_string(),
                    within => format!("{within} {begin}"),
                });
                let shown = shown.collect::<Vec<_>>().join(", ");
                let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
                assert!(line.ends_with(&format!(": {pattern} at {shown}{rest}")), "{line}: at {shown}{rest}");
                assert_eq!(offsets(alert), (places, more), "{alert}");
            }
        }
    }
    // Only where it is asked for.
    search(folder.path(), &[&strings[..], &["--json", "-o", "a.json"]].concat());
    assert!(json_lines(&folder.path().join("a.json")).iter().all(|alert| alert.get("offsets").is_none()));
}

#[test]
fn offsets_count_from_the_beginning_of_streams_and_fields_and_of_rules_all_contents_are_told() {
    let folder = tempfile::tempdir().expect("a folder");
    let request = b"GET /a/cmd.exe?cmd.exe HTTP/1.1\r\nHost: evil.com\r\n\r\n";
    let ends = "10.0.0.1:1000 > 192.0.2.1:80";
    // In order, and the second half before the first one.
    let one = segments(0, ends, &[(0, "S", b""), (1, "PA", &request[..10]), (11, "PA", &request[10..])]);
    let other = "10.0.0.2:1000 > 192.0.2.1:80";
    let two = segments(50, other, &[(0, "S", b""), (11, "PA", &request[10..]), (1, "PA", &request[..10])]);
    // Whose beginning was not seen, and whose first half comes behind the other one.
    let third = "10.0.0.3:1000 > 192.0.2.1:80";
    let three = segments(90, third, &[(11, "PA", &request[10..]), (1, "PA", &request[..10])]);
    fs::write(folder.path().join("some.pcap"), packets::pcap(&[one, two, three].concat())).expect("written");
    let found = |arguments: &[&str]| {
        search(folder.path(), &[arguments, &["--byte-offset", "--json", "-o", "a.json"]].concat());
        let alerts = json_lines(&folder.path().join("a.json"));
        let all = alerts.iter().map(|alert| {
            let places = offsets(alert).0.into_iter();
            let places =
                places.map(|(within, begin, end)| format!("{within} {begin}-{end}")).collect::<Vec<_>>();
            (alert["pcap_cnt"].as_u64().expect("a number"), places.join(", "))
        });
        all.collect::<Vec<_>>()
    };
    let place = |number, text: &str| (number, text.to_owned());
    let cmd = "stream 7-14, stream 15-22";
    assert_eq!(
        found(&["-e", "cmd.exe", "--within", "stream"]),
        [
            place(3, cmd),
            place(5, "stream 15-22"),
            place(6, "stream 7-14"),
            // Counted from the first byte that was seen of the stream.
            place(7, "stream 5-12"),
            place(8, "stream -3-4"),
        ]
    );
    assert_eq!(found(&["-e", "cmd.exe"]), [3, 5, 7].map(|number| place(number, "payload 5-12")));
    assert_eq!(
        found(&["-e", "cmd.exe", "--within", "stream", "--in", "http.uri", "-c", "3"]),
        [place(3, "http.uri 3-10, http.uri 11-18")]
    );
    // Contents that came in earlier packets are told there alone.
    let rules = "alert tcp any any -> any any (msg:\"several\"; content:\"Host\"; content:\"cmd\"; content:!\"nothing\"; sid:1;)\n\
                 alert http any any -> any any (msg:\"places\"; http.uri; content:\"/a\"; pkt_data; content:\"evil\"; sid:2;)\n";
    fs::write(folder.path().join("some.rules"), rules).expect("written");
    assert_eq!(
        found(&["--patterns", "some.rules", "--within", "stream", "-c", "3"]),
        [place(3, "stream 15-18, stream 33-37"), place(3, "stream 39-43, http.uri 0-2")]
    );
}

#[test]
fn what_is_found_is_counted_written_and_logged() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("list.txt"), "# names\nevil.com\nGET\nnothing-of-this\n").expect("written");
    let arguments =
        ["--patterns", "list.txt", "-w", "found.pcapng", "--summary", "s.json", "--json", "-o", "a.json"];
    search(folder.path(), &arguments);
    let frames = pcapng(&at("found.pcapng"));
    let comments: Vec<_> = frames.iter().map(|frame| frame.comments.clone()).collect();
    let [names, get] = ["list.txt:2: evil.com", "list.txt:3: GET"];
    assert_eq!(comments, [vec![get], vec![names, get], vec![names], vec![names], vec![names]]);
    assert_eq!(frames[4].nanos, 900_000_000);
    let summary = json(&at("s.json"));
    let strings = &summary["functions"][0];
    let counts = ["searched", "without_payload", "cut_off", "matched", "signatures"]
        .map(|name| strings[name].as_u64());
    assert_eq!(counts, [10, 1, 1, 5, 3].map(Some));
    let found: Vec<_> = strings["found"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|found| (found["line"].as_u64(), found["packets"].as_u64()))
        .collect();
    assert_eq!(found, [(Some(2), Some(4)), (Some(3), Some(2))]);
    let alerts = json_lines(&at("a.json"));
    assert_eq!(alerts.len(), 6);
    let alert = &alerts[1];
    assert_eq!(alert["timestamp"], "1970-01-01T00:00:00.100000+0000");
    assert_eq!((&alert["event_type"], &alert["proto"]), (&"alert".into(), &"TCP".into()));
    assert_eq!((&alert["src_ip"], alert["src_port"].as_u64()), (&"10.0.0.1".into(), Some(1000)));
    assert_eq!((&alert["dest_ip"], alert["dest_port"].as_u64()), (&"192.0.2.1".into(), Some(80)));
    let [signature, action] = ["signature", "action"].map(|name| alert["alert"][name].as_str());
    assert_eq!(
        (signature, action, alert["alert"]["signature_id"].as_u64()),
        (Some("evil.com"), Some("allowed"), Some(2))
    );
    // Nothing but the table.
    assert_eq!(search(folder.path(), &["--patterns", "list.txt", "--count"]), "");
    let mut command = packetloom();
    command.current_dir(folder.path()).args([
        "search",
        "-r",
        "some.pcap",
        "--patterns",
        "list.txt",
        "--count",
    ]);
    let table = stderr(&run(&mut command));
    assert!(table.contains("line 2: evil.com") && table.contains("4 packets"), "{table}");
}

const RULES: &str = r#"# comment
alert tcp any any -> any 80 (msg:"both"; content:"GET"; content:"evil.com"; sid:1; rev:2; classtype:trojan-activity; priority:1;)
alert tcp any any -> any any (msg:"not html"; content:"GET"; content:!"html"; sid:2;)
alert tcp any any -> any any (msg:"at the beginning"; content:"GET"; depth:3; sid:3;)
alert tcp any any -> any any (msg:"not at the beginning"; content:"GET"; offset:1; sid:4;)
alert udp any any -> any 53 (msg:"dns"; content:"|04|EVIL|03|com"; nocase; sid:5;)
alert http any any -> any any (msg:"a regular expression"; pcre:"/evil/"; sid:6;)
"#;

#[test]
fn rules_are_found_as_far_as_they_are_literal() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("local.rules"), RULES).expect("written");
    let arguments = ["--patterns", "local.rules", "--json", "-o", "a.json", "--left-out", "left.json"];
    let mut command = packetloom();
    command.current_dir(folder.path()).args(["search", "-r", "some.pcap"]).args(arguments);
    let output = run(&mut command);
    let said = stderr(&output);
    assert!(output.status.success(), "{said}");
    assert!(
        said.contains("local.rules:7: left out: ")
            && said.contains("5 rules name protocols, addresses or ports"),
        "{said}"
    );
    let left = json_lines(&at("left.json"));
    assert_eq!(left.iter().map(|line| line["line"].as_u64()).collect::<Vec<_>>(), [Some(7)]);
    assert!(left[0]["reason"].as_str().is_some_and(|reason| reason.contains("pcre")), "{left:?}");
    let alerts = json_lines(&at("a.json"));
    let found: Vec<_> = alerts
        .iter()
        .map(|alert| (alert["pcap_cnt"].as_u64(), alert["alert"]["signature_id"].as_u64()))
        .collect();
    let expected = [(1, 2), (1, 3), (2, 1), (2, 3), (3, 5)];
    assert_eq!(found, expected.map(|(packet, id)| (Some(packet), Some(id))));
    let both = &alerts[2]["alert"];
    assert_eq!(
        (both["rev"].as_u64(), both["severity"].as_u64(), both["category"].as_str()),
        (Some(2), Some(1), Some("trojan-activity"))
    );
}

/// Runs a chain in each way; what it writes, which is the same.
fn run_chain(folder: &Path, chain: &str, capture: &str, outputs: &[&str]) -> Vec<Vec<u8>> {
    fs::write(folder.join("chain.toml"), chain).expect("written");
    let mut all: Vec<Vec<Vec<u8>>> = Vec::new();
    for how in [&["--workers", "1"][..], &["--workers", "3"], &["--device", "oracle"]] {
        let mut command = packetloom();
        command.current_dir(folder).args(["run", "chain.toml", "-r", capture, "--summary", "s.json"]);
        succeed(command.args(how));
        all.push(outputs.iter().map(|name| fs::read(folder.join(name)).expect("an output")).collect());
    }
    for (at, name) in outputs.iter().enumerate() {
        let differs = all.iter().position(|outputs| outputs[at] != all[0][at]);
        assert_eq!(differs, None, "{name} of {capture} has the same bytes, whoever judges");
    }
    all.swap_remove(0)
}

#[test]
fn chains_drop_mark_log_and_capture_what_has_strings() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("list.txt"), "evil.com\nGET\n").expect("written");
    let chain = r#"
[[chain]]
nf = "strings"
patterns = "list.txt"
mark = 7
log = "alerts.json"
[[chain]]
nf = "strings"
patterns = "list.txt"
match = "any"
action = "drop"
ignore_case = true
[[chain]]
nf = "counter"
[sink]
capture = "passed.pcap"
dropped = "dropped.pcapng"
matched = { file = "matched.pcapng", rule = 2, mark = 7 }
"#;
    let outputs = ["alerts.json", "passed.pcap", "dropped.pcapng", "matched.pcapng", "s.json"];
    run_chain(folder.path(), chain, "some.pcap", &outputs);
    let summary = json(&at("s.json"));
    assert_eq!(summary["dropped"]["strings"], 5);
    assert_eq!(summary["functions"][0]["matched"], 5);
    assert_eq!(summary["functions"][0]["log"]["lines"], 6);
    assert_eq!(summary["functions"][1]["matched"], 5);
    assert_eq!(summary["functions"][1]["found"].as_array().map(Vec::len), Some(0));
    assert!(pcapng(&at("dropped.pcapng")).iter().all(|frame| frame.comment() == "strings"));
    let matched = pcapng(&at("matched.pcapng"));
    assert_eq!(
        matched.iter().map(support::pcapng::Frame::comment).collect::<Vec<_>>(),
        ["list.txt:2: GET"; 2].map(|text| format!("{}{}", folder_prefix(&matched[0], text), text))
    );
}

/// What stands in front of a comment: the folder, where the chain file's paths count from one.
fn folder_prefix(frame: &support::pcapng::Frame, text: &str) -> String {
    frame.comment().strip_suffix(text).expect("the rule").to_owned()
}

#[test]
fn a_log_has_no_more_lines_than_its_rate() {
    let folder = folder();
    fs::write(folder.path().join("list.txt"), "evil.com\n").expect("written");
    let chain = "[[chain]]\nnf = \"strings\"\npatterns = \"list.txt\"\nlog = \"a.json\"\nlog_rate = \"1/s\"\nlog_burst = 1\n";
    run_chain(folder.path(), chain, "some.pcap", &["a.json", "s.json"]);
    let lines = json_lines(&folder.path().join("a.json"));
    assert_eq!(lines.len(), 2);
    assert_eq!((lines[0]["pcap_cnt"].as_u64(), lines[1]["suppressed"].as_u64()), (Some(2), Some(3)));
    let summary = json(&folder.path().join("s.json"));
    assert_eq!(summary["functions"][0]["log"], serde_json::json!({ "lines": 1, "suppressed": 3 }));
}

#[test]
fn bad_files_and_arguments_say_what_is_wrong() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("empty.txt"), "# nothing\n\n").expect("written");
    fs::write(at("bad.txt"), "good\nbad\\q\n").expect("written");
    let refused = |arguments: &[&str], status: i32, what: &str| {
        let mut command = packetloom();
        let output =
            run(command.current_dir(folder.path()).args(["search", "-r", "some.pcap"]).args(arguments));
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {said}");
        assert!(said.contains(what), "{arguments:?}: {said}");
    };
    refused(&[], 2, "--string <PATTERN>");
    refused(&["-e", "a", "--patterns", "bad.txt"], 2, "cannot be used with");
    refused(&["--patterns", "none.txt"], 78, "none.txt");
    refused(&["--patterns", "empty.txt"], 78, "empty.txt");
    refused(&["-e", "a", "-e", ""], 2, "expected a string");
    fs::write(at("bounds.rules"), RULES).expect("written");
    refused(&["--patterns", "bounds.rules", "--within", "packet"], 78, "expected within = \"payload\"");
    refused(&["-e", "a", "-f", "tcp port"], 2, "-f: ");
    refused(&["-e", "a", "-o", "some.pcap"], 2, "some.pcap");
    refused(&["-e", "a", "--count", "--json"], 2, "cannot be used with");
    // A line that cannot be read is left out, and said.
    let mut command = packetloom();
    let output =
        run(command.current_dir(folder.path()).args(["search", "-r", "some.pcap", "--patterns", "bad.txt"]));
    assert!(output.status.success());
    assert!(stderr(&output).contains("bad.txt:2: left out: "), "{}", stderr(&output));
    let chain = |keys: &str, what: &str| {
        fs::write(at("chain.toml"), format!("[[chain]]\nnf = \"strings\"\n{keys}\n")).expect("written");
        let output = run(packetloom().arg("check").arg(at("chain.toml")));
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(78), "{keys}: {said}");
        assert!(said.contains(what) && said.contains("chain.toml"), "{keys}: {said}");
    };
    chain("", "patterns");
    chain("patterns = \"none.txt\"", "none.txt");
    chain("patterns = \"bad.txt\"\nmatch = \"any\"\nlog = \"a.json\"", "match = \"all\"");
    chain("patterns = \"bad.txt\"\nformat = \"xml\"", "expected auto, lines, hex or rules");
    chain("patterns = \"-\"", "standard input");
    chain("patterns = \"bad.txt\"\nflow = \"drop\"", "expected action = \"drop\"");
    chain("patterns = \"bad.txt\"\nflow = \"pass\"\naction = \"drop\"", "expected `drop`");
    chain("patterns = \"bad.txt\"\ntimeout = \"1s\"", "expected within = \"stream\" or flow = \"drop\"");
    chain("patterns = \"bad.txt\"\naction = \"drop\"\nmax_flows = 9", "max_flows, but no flows");
}

#[test]
fn streams_are_searched_across_segments() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let to = "10.0.0.1:1000 > 192.0.2.1:80";
    let back = "192.0.2.1:80 > 10.0.0.1:1000";
    let lines = [
        // Cut, then whole in one segment, then sent again; the SYN takes a number of its own.
        segments(
            0,
            to,
            &[(0, "S", b""), (1, "PA", b"GET /ev"), (8, "PA", b"il.com"), (8, "PA", b"il.com and evil.com")],
        ),
        // Out of order, and the other direction, in which the pattern is not.
        segments(4, to, &[(37, "PA", b"m"), (27, "PA", b"-- evil.co")]),
        segments(6, back, &[(1, "PA", b"evil"), (9, "PA", b".com")]),
        // Another connection of the same ports.
        segments(
            8,
            to,
            &[(1 << 20, "S", b""), ((1 << 20) + 1, "PA", b"evi"), ((1 << 20) + 4, "PA", b"l.com")],
        ),
        // Of UDP each packet is by itself, and a fragment of TCP, too.
        with_payload("0.011 udp 10.0.0.1:5 > 192.0.2.1:5", b"evil.c"),
        with_payload("0.012 udp 10.0.0.1:5 > 192.0.2.1:5", b"om evil.com"),
        with_payload("0.013 tcp 10.0.0.1:1000 > 192.0.2.1:80 flags PA", b"evil.com")
            .replace('\n', " fragment 0+\n"),
    ];
    fs::write(at("some.pcap"), packets::pcap(&lines.concat())).expect("written");
    assert_eq!(numbers(&search(folder.path(), &["-e", "evil.com"])), [4, 13, 14]);
    let arguments = ["-e", "evil.com", "--within", "stream", "--summary", "s.json"];
    assert_eq!(numbers(&search(folder.path(), &arguments)), [3, 4, 6, 11, 13, 14]);
    let strings = &json(&at("s.json"))["functions"][0];
    assert_eq!(
        strings["flows"],
        serde_json::json!({ "dropped": 0, "repeated": 0, "gaps": 1, "no_room": 0, "not_remembered": 0, "gave_up": 0 })
    );
    let names = ["searched", "bytes", "without_payload", "matched"];
    assert_eq!(names.map(|name| strings[name].as_u64()), [14, 78, 0, 6].map(Some));
    let described = stderr(&run(packetloom()
        .current_dir(folder.path())
        .args(["search", "-r", "some.pcap", "--count"])
        .args(arguments)));
    assert!(described.contains("gaps in streams"), "{described}");
    // Offsets and depths count from the beginning of the stream.
    fs::write(
        at("some.rules"),
        "alert tcp any any -> any any (content:\"evil.com\"; offset:5; depth:8; sid:1;)\n\
         alert tcp any any -> any any (content:\"evil.com\"; offset:6; sid:2;)\n\
         alert tcp any any -> any any (content:\"GET\"; content:\"and\"; sid:3;)\n\
         alert tcp any any -> any any (content:\"GET\"; content:\"--\"; content:!\"and\"; sid:4;)\n\
         alert tcp any any -> any any (content:\"co\"; content:!\"--\"; depth:2; sid:5;)\n",
    )
    .expect("written");
    let rules = [
        "--patterns",
        "some.rules",
        "--within",
        "stream",
        "--json",
        "-f",
        "tcp and src 10.0.0.1",
        "-o",
        "a.json",
    ];
    search(folder.path(), &rules);
    let found: Vec<_> = json_lines(&at("a.json"))
        .iter()
        .map(|alert| (alert["pcap_cnt"].as_u64(), alert["alert"]["signature_id"].as_u64()))
        .collect();
    let expected = [(3, 1), (3, 5), (4, 2), (4, 3), (4, 5), (6, 2), (6, 5), (11, 5), (14, 5)];
    assert_eq!(found, expected.map(|(packet, id)| (Some(packet), Some(id))));
}

#[test]
fn the_rest_of_a_flow_that_matched_is_dropped() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let to = "10.0.0.1:1000 > 192.0.2.1:80";
    let lines = [
        segments(
            0,
            to,
            &[(0, "S", b""), (1, "PA", b"evil"), (5, "PA", b".com"), (5, "PA", b".com"), (9, "PA", b"more")],
        ),
        segments(5, "192.0.2.1:80 > 10.0.0.1:1000", &[(1, "A", b"")]),
        segments(6, "10.0.0.1:1001 > 192.0.2.1:80", &[(1, "PA", b"all is well")]),
        with_payload("0.007 udp 10.0.0.1:5 > 192.0.2.1:5", b"evil.com"),
        with_payload("0.008 udp 192.0.2.1:5 > 10.0.0.1:5", b"as well"),
        "0.009 arp\n".into(),
        // Silent for long enough.
        segments(2_000, to, &[(13, "PA", b"evil")]),
        segments(2_001, to, &[(17, "PA", b".com")]),
    ];
    fs::write(at("some.pcap"), packets::pcap(&lines.concat())).expect("written");
    fs::write(at("list.txt"), "evil.com\n").expect("written");
    let check = |keys: &str, dropped: &[usize], flows: u64| {
        let chain = format!(
            "[[chain]]\nnf = \"strings\"\npatterns = \"list.txt\"\naction = \"drop\"\ntimeout = \"1s\"\nlog = \"a.json\"\n{keys}\n\
             [run]\nnon_ip = \"pass\"\n[sink]\ncapture = \"passed.pcap\"\ndropped = \"dropped.pcapng\"\n"
        );
        run_chain(folder.path(), &chain, "some.pcap", &["a.json", "passed.pcap", "dropped.pcapng", "s.json"]);
        let summary = json(&at("s.json"));
        let nanos: Vec<_> =
            pcapng(&at("dropped.pcapng")).iter().map(|frame| frame.nanos / 1_000_000).collect();
        assert_eq!(nanos, dropped.iter().map(|&millis| millis as u64).collect::<Vec<_>>(), "{keys}");
        assert_eq!(summary["dropped"]["strings"].as_u64(), Some(dropped.len() as u64));
        assert_eq!(summary["functions"][0]["flows"]["dropped"].as_u64(), Some(flows), "{keys}");
        assert_eq!(json_lines(&at("a.json")).len() as u64, dropped.len() as u64 - flows);
    };
    check("within = \"stream\"", &[2, 3, 4, 5, 7, 8, 2_001], 4);
    check("within = \"stream\"\nflow = \"drop\"", &[2, 3, 4, 5, 7, 8, 2_001], 4);
    check("flow = \"drop\"", &[7, 8], 1);
    check("flow = \"drop\"\nwithin = \"packet\"", &[7, 8], 1);
}

/// Streams of several flows, with what networks do to them.
fn random_streams(seed: u64, packets: usize) -> String {
    let mut state = seed;
    let mut below = |most: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % most
    };
    let words: [&[u8]; 9] =
        [b"evil", b".com", b"evil.com", b"GET ", b"ab", b"a", b"/", b"\x00", b"-needle-in-it-"];
    let mut flows: Vec<(Vec<u8>, usize)> = Vec::new();
    for _ in 0..12 {
        let mut stream = Vec::new();
        while stream.len() < 600 {
            stream.extend_from_slice(words[below(words.len())]);
        }
        flows.push((stream, 0));
    }
    let mut lines = String::new();
    let mut time = 0;
    for _ in 0..packets {
        let which = below(flows.len());
        let (stream, at) = &mut flows[which];
        time += [1, 1, 1, 400][usize::from(below(60) == 0) * 3];
        // Mostly what comes next; sometimes from before, from behind, far away, or the beginning of another stream.
        let (from, flags) = match below(40) {
            0 => ([0, 0, 0, 300][below(4)], "S"),
            1..=4 => (at.saturating_sub(below(30)), "PA"),
            5..=8 => (*at + below(20), "PA"),
            9 => (below(stream.len()), "PA"),
            _ => (*at, "PA"),
        };
        let from = from.min(stream.len());
        let until = (from + below(25)).min(stream.len());
        let payload = if flags == "S" { &[][..] } else { &stream[from..until] };
        *at = if flags == "S" || until == stream.len() { 0 } else { until.max(*at) };
        // Now and then far away, or in front of the beginning.
        let far = [0x6000_0000, 0xc000_0000, u32::MAX - 20][below(3)] * u32::from(below(25) == 0);
        let base = if flags == "S" { 0 } else { 1 + far };
        let segment = [((from as u32).wrapping_add(base), flags, payload)];
        let ends = match which {
            0..4 => format!("10.0.0.{}:1000 > 192.0.2.1:80", which / 2),
            4..8 => format!("192.0.2.1:80 > 10.0.0.{}:1000", which / 3),
            _ => format!("[2001:db8::{which}]:1000 > [2001:db8::1]:80"),
        };
        lines += &segments(time, &ends, &segment);
    }
    lines
}

#[test]
fn streams_of_any_kind_are_those_of_the_oracle() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    fs::write(at("list.txt"), "evil.com\n-needle-in-it-\naa\nab\na/evil.com-needle\n").expect("written");
    // Contents that came in earlier packets are told there alone.
    let rules = "alert tcp any any -> any any (content:\"EVIL\"; nocase; content:\"needle\"; sid:1;)\n\
                 alert tcp any any -> any any (content:\"GET evil.com\"; content:!\"aaa\"; sid:2;)\n\
                 alert tcp any any -> any any (content:\".com\"; offset:3; depth:30; sid:3;)\n";
    fs::write(at("some.rules"), rules).expect("written");
    let function = |patterns: &str, log: &str, keys: &str| {
        format!(
            "[[chain]]\nnf = \"strings\"\npatterns = \"{patterns}\"\nlog = \"{log}\"\ntimeout = \"300ms\"\n{keys}\n"
        )
    };
    let mut counted = [0; 3];
    for seed in 0..packetloom_testing::amount(6, 25) as u64 {
        fs::write(at("some.pcap"), packets::pcap(&random_streams(seed, 1500))).expect("written");
        let chains = [
            function("list.txt", "a.json", "within = \"stream\"")
                + &function("some.rules", "b.json", "within = \"stream\"\nmark = 3"),
            function("list.txt", "a.json", "flow = \"drop\"\naction = \"drop\"")
                + &function("some.rules", "b.json", "within = \"stream\"\naction = \"drop\""),
            function("some.rules", "a.json", "within = \"stream\"\naction = \"drop\"\nmatch = \"first\"")
                + &function("list.txt", "b.json", "within = \"stream\"\n"),
        ];
        for chain in chains {
            for batch in [3, 200] {
                let chain = format!("{chain}[run]\nbatch = {batch}\n[sink]\ncapture = \"passed.pcap\"\n");
                run_chain(folder.path(), &chain, "some.pcap", &["a.json", "b.json", "passed.pcap", "s.json"]);
                let functions = &json(&at("s.json"))["functions"];
                for (count, name) in counted.iter_mut().zip(["dropped", "repeated", "gaps"]) {
                    *count += functions[1]["flows"][name].as_u64().expect("a count");
                }
            }
        }
    }
    assert!(counted.iter().all(|&count| count > 100), "{counted:?}");
}

/// A reload in the middle of a run: no packet is judged by both sets, or by none.
#[test]
fn a_set_takes_the_place_of_another_between_two_packets() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    fs::write(at("some.pcap"), packets::pcap(&random_streams(7, 3000))).expect("written");
    fs::write(at("old.txt"), "evil\n.com\naa\n").expect("written");
    fs::write(at("new.txt"), "evil.com\n.com\nneedle\nGET \n").expect("written");
    let chain = |name: &str, keys: &str| {
        let function = "[[chain]]\nnf = \"strings\"\nlog = \"log\"\n";
        let text = format!("{function}patterns = \"{name}.txt\"\n{keys}\n[run]\nbatch = 7\n");
        fs::write(at(&format!("{name}.toml")), text).expect("written");
    };
    let results = |chain: &str, how: &[&str]| {
        let mut command = packetloom();
        command.current_dir(folder.path()).args(["-q", "run", chain, "-r", "some.pcap", "-w", "out.pcap"]);
        succeed(command.args(["--summary", "s.json"]).args(how));
        let passed: Vec<_> = pcapng::pcap(&at("out.pcap")).into_iter().map(|(_, frame)| frame).collect();
        (json_lines(&at("log")), passed, json(&at("s.json"))["functions"].clone())
    };
    let ways = [["--workers", "1"], ["--workers", "3"], ["--device", "oracle"]];
    let number = |alert: &Value| alert["pcap_cnt"].as_u64().expect("a number");
    for keys in ["", "action = \"drop\""] {
        chain("old", keys);
        chain("new", keys);
        let [(old, _, _), (new, _, _)] = ["old.toml", "new.toml"].map(|name| results(name, &ways[0]));
        for moment in [1, 1234, 2999] {
            let first = old.iter().filter(|alert| number(alert) <= moment);
            let expected: Vec<_> = first.chain(new.iter().filter(|alert| number(alert) > moment)).collect();
            assert!(expected.iter().any(|alert| number(alert) > moment) || moment == 2999);
            let reload = format!("{moment}=new.toml");
            for way in ways {
                let (found, passed, functions) =
                    results("old.toml", &[&way[..], &["--reload-at", &reload]].concat());
                assert!(found.iter().eq(expected.iter().copied()), "{way:?} {keys} at {moment}");
                let dropped: BTreeSet<_> = expected.iter().map(|alert| number(alert)).collect();
                let dropped = if keys.is_empty() { 0 } else { dropped.len() };
                assert_eq!(passed.len(), 3000 - dropped, "{way:?} at {moment}: {functions}");
            }
        }
    }
    // Streams: what was found of one stays with the set that found it. Results are the same, whoever judges.
    for keys in ["within = \"stream\"", "within = \"stream\"\naction = \"drop\""] {
        chain("old", keys);
        chain("new", keys);
        let [one, several, oracle] =
            ways.map(|way| results("old.toml", &[&way[..], &["--reload-at", "1500=new.toml"]].concat()));
        // One for each stream and string, before the reload and after it.
        let numbers: Vec<_> = one.0.iter().map(number).collect();
        let sides = [numbers.iter().any(|&at| at <= 1500), numbers.iter().any(|&at| at > 1500)];
        // Flows that matched before are dropped for good.
        assert_eq!(sides, [true, !keys.contains("drop")], "{keys} {numbers:?} {:?}", one.2);
        assert!(one == several && one == oracle, "{keys}");
    }
}

#[test]
fn the_oracle_finds_the_same_in_real_captures() {
    let Some(corpus) = packetloom_testing::corpus("captures") else { return };
    let Some(strings) = packetloom_testing::corpus("strings") else { return };
    let folder = tempfile::tempdir().expect("a folder");
    // Names that stand first in the list are those that captures have; the slow form takes long for all of them.
    let count = packetloom_testing::amount(300, 5000);
    let names = fs::read_to_string(strings.join("top5000.txt")).expect("names");
    let names: Vec<_> = names.lines().take(count).collect();
    let list = ["GET ", "HTTP/1.1", "\\x00\\x00\\x00", "www", "google", "e", "\\xff\\xff"].join("\n")
        + "\n"
        + &names.join("\n");
    fs::write(folder.path().join("list.txt"), list).expect("written");
    let function = |keys: &str| format!("[[chain]]\nnf = \"strings\"\npatterns = \"list.txt\"\n{keys}\n");
    let chain = [
        &function("log = \"a.json\""),
        &function("log = \"b.json\"\nwithin = \"stream\""),
        "[run]\nnon_ip = \"pass\"\nmalformed = \"pass\"\n",
    ]
    .concat();
    let mut captures: Vec<_> =
        fs::read_dir(corpus).expect("captures").map(|entry| entry.expect("an entry").path()).collect();
    captures.retain(|path| {
        path.extension().is_some_and(|end| end == "pcap" || end == "pcapng")
            && fs::metadata(path).is_ok_and(|data| data.len() < 100_000)
    });
    captures.sort();
    assert!(captures.len() > 20);
    let mut matched = [0; 2];
    for capture in captures {
        let capture = capture.to_str().expect("UTF-8");
        run_chain(folder.path(), &chain, capture, &["a.json", "b.json", "s.json"]);
        let summary = json(&folder.path().join("s.json"));
        for (function, matched) in matched.iter_mut().enumerate() {
            *matched += summary["functions"][function]["matched"].as_u64().unwrap_or(0);
        }
    }
    assert!(matched.iter().all(|&matched| matched > 900), "{matched:?}");
}

/// Rules of literals that people wrote, over real captures: alerts are those of a search for each literal in all bytes of each packet.
#[test]
fn alerts_of_rules_are_those_of_a_plain_search() {
    let Some(corpus) = packetloom_testing::corpus("captures") else { return };
    let Some(strings) = packetloom_testing::corpus("strings") else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let hex = fs::read_to_string(strings.join("snort3_longest_contents.hex")).expect("contents");
    let contents: Vec<&str> = hex.lines().collect();
    let rules = contents.iter().zip(1..).map(|(hex, sid)| {
        format!("alert ip any any -> any any (msg:\"rule {sid}\"; content:\"|{hex}|\"; sid:{sid};)\n")
    });
    fs::write(at("some.rules"), rules.collect::<String>()).expect("written");
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).expect("hex"), 16).expect("a byte");
    // By their first two bytes.
    let mut plain: HashMap<[u8; 2], Vec<(u64, Vec<u8>)>> = HashMap::new();
    for (hex, sid) in contents.iter().zip(1..) {
        let bytes: Vec<u8> = hex.as_bytes().chunks(2).map(byte).collect();
        plain.entry([bytes[0], bytes[1]]).or_default().push((sid, bytes));
    }
    // Lists each packet, with what was found wrong with it.
    fs::write(at("none.rules"), "default deny\n").expect("written");
    let policies = ["non_ip", "unknown_framing", "malformed"].map(|what| format!("{what} = \"drop\"\n"));
    let chain = format!("[[chain]]\nnf = \"acl\"\nrules = \"none.rules\"\n[run]\n{}", policies.concat());
    fs::write(at("none.toml"), chain).expect("written");
    let most = packetloom_testing::amount(100_000, u64::MAX);
    let mut captures: Vec<_> =
        fs::read_dir(corpus).expect("captures").map(|entry| entry.expect("an entry").path()).collect();
    captures.retain(|path| {
        path.extension().is_some_and(|end| end == "pcap" || end == "pcapng")
            && fs::metadata(path).is_ok_and(|data| data.len() < most)
    });
    captures.sort();
    let mut alerts = 0;
    for capture in captures {
        let capture = capture.to_str().expect("UTF-8");
        let mut listing = packetloom();
        listing.current_dir(folder.path()).args(["-q", "run", "none.toml", "-r", capture]);
        succeed(listing.args(["--dropped", "all.pcapng", "--summary", "summary.json"]));
        let mut expected = BTreeMap::<_, Vec<_>>::new();
        for (number, frame) in (1..).zip(pcapng(&at("all.pcapng"))) {
            if frame.comment() != "acl_default" {
                // Not IP, or no headers: there is no alert without addresses.
                continue;
            }
            for begin in 0..frame.bytes.len() {
                let rest = &frame.bytes[begin..];
                let of_two = rest.first_chunk().and_then(|two| plain.get(two));
                let found = of_two.into_iter().flatten().filter(|(_, bytes)| rest.starts_with(bytes));
                found.for_each(|(sid, _)| expected.entry((number, *sid)).or_default().push(begin as u64));
            }
        }
        let arguments = [
            "-r",
            capture,
            "--patterns",
            "some.rules",
            "--within",
            "packet",
            "--json",
            "-b",
            "-o",
            "alerts.json",
        ];
        let mut search = packetloom();
        search.current_dir(folder.path()).arg("search").args(arguments);
        succeed(&mut search);
        let found = json_lines(&at("alerts.json")).into_iter().map(|alert| {
            let number = |value: &Value| value.as_u64().expect("a number");
            ((number(&alert["pcap_cnt"]), number(&alert["alert"]["signature_id"])), alert)
        });
        let found: BTreeMap<_, _> = found.collect();
        assert!(found.keys().eq(expected.keys()), "{capture}");
        for (alert, begins) in found.values().zip(expected.values()) {
            let (told, more) = offsets(alert);
            let told: Vec<_> = told.into_iter().map(|(within, begin, _)| (within, begin)).collect();
            let begins: Vec<_> = begins.iter().map(|&begin| ("packet".to_owned(), begin as i64)).collect();
            assert_eq!(
                (&told[..], told.len() + more),
                (&begins[..begins.len().min(64)], begins.len()),
                "{capture}: {alert}"
            );
        }
        alerts += found.len();
    }
    assert!(alerts > packetloom_testing::amount(500, 5_000), "{alerts}");
}

#[test]
fn compiled_sets_are_kept_in_a_file() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    let list =
        "evil.com\nGET\n".to_owned() + &(0..300).map(|number| format!("word-{number}\n")).collect::<String>();
    fs::write(at("list.txt"), &list).expect("written");
    let expected = search(folder.path(), &["--patterns", "list.txt"]);
    // What is said of a search with the file, which finds the same.
    let said = |list: &str| {
        let mut command = packetloom();
        command.current_dir(folder.path()).args([
            "search",
            "-r",
            "some.pcap",
            "--patterns",
            list,
            "--compiled",
            "set",
            "-v",
        ]);
        let output = run(&mut command);
        assert!(output.status.success(), "{}", stderr(&output));
        assert_eq!(String::from_utf8_lossy(&output.stdout), expected);
        stderr(&output)
    };
    let written = said("list.txt");
    assert!(
        written.contains("the compiled set is written to set") && !written.contains("warning"),
        "{written}"
    );
    let bytes = fs::read(at("set")).expect("it is there");
    let read = said("list.txt");
    assert!(read.contains("the compiled set is read from set") && !read.contains("warning"), "{read}");
    assert_eq!(fs::read(at("set")).expect("it is there"), bytes);
    // Files of other sets and damaged ones are said, and replaced.
    fs::write(at("other.txt"), format!("{list}more\n")).expect("written");
    let other = said("other.txt");
    assert!(
        other.contains("warning: set: compiled of other patterns, or by another version; compiled again"),
        "{other}"
    );
    assert_ne!(fs::read(at("set")).expect("it is there"), bytes);
    let mut damaged = bytes.clone();
    *damaged.last_mut().expect("a byte") ^= 1;
    for (file, why) in [
        (&damaged[..], "damaged: its checksum is another one"),
        (&bytes[..bytes.len() / 2], "truncated"),
        (&[], "truncated"),
    ] {
        fs::write(at("set"), file).expect("written");
        let replaced = said("list.txt");
        assert!(replaced.contains(&format!("warning: set: {why}; compiled again")), "{replaced}");
        assert_eq!(fs::read(at("set")).expect("it is there"), bytes);
    }
    // Nothing is left beside it, and where it cannot be written the search goes on.
    let names: Vec<_> = fs::read_dir(folder.path())
        .expect("a folder")
        .map(|entry| entry.expect("an entry").file_name())
        .collect();
    assert_eq!(names.len(), 4, "{names:?}");
    let nowhere = ["-v", "--patterns", "list.txt", "--compiled", "no-folder/set"];
    let mut command = packetloom();
    let output = run(command.current_dir(folder.path()).args(["search", "-r", "some.pcap"]).args(nowhere));
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected);
    assert!(stderr(&output).contains("warning: the compiled set is not kept: "), "{}", stderr(&output));
    assert!(!stderr(&output).contains("is written to"), "{}", stderr(&output));
    // In a chain, and what somebody else has in a file stays.
    let chain =
        "[[chain]]\nnf = \"strings\"\npatterns = \"list.txt\"\ncompiled = \"set\"\nlog = \"a.json\"\n";
    run_chain(folder.path(), chain, "some.pcap", &["a.json", "s.json"]);
    let refused = |compiled: &str, status: i32, what: &str| {
        let mut command = packetloom();
        let arguments = ["search", "-r", "some.pcap", "--patterns", "list.txt", "--compiled", compiled];
        let output = run(command.current_dir(folder.path()).args(arguments));
        assert_eq!(output.status.code(), Some(status), "{}", stderr(&output));
        assert!(stderr(&output).contains(what), "{}", stderr(&output));
    };
    refused("other.txt", 78, "other.txt: not a compiled set; expected a file that packetloom wrote");
    refused("list.txt", 2, "list.txt");
    refused("some.pcap", 2, "some.pcap");
    refused(".", 78, "not a file");
    refused("-", 2, "--compiled standard output");
    assert_eq!(fs::read_to_string(at("other.txt")).expect("it is there"), format!("{list}more\n"));
    // Nothing else is written where the set is, though it is not there yet.
    let chain = "[[chain]]\nnf = \"strings\"\npatterns = \"list.txt\"\ncompiled = \"new\"\n";
    for other in ["[sink]\ncapture = \"new\"\n", chain] {
        fs::write(at("clash.toml"), format!("{chain}{other}")).expect("written");
        let mut command = packetloom();
        let output = run(command.current_dir(folder.path()).args(["run", "clash.toml", "-r", "some.pcap"]));
        assert_eq!(output.status.code(), Some(78), "{}", stderr(&output));
        let said = stderr(&output);
        assert!(said.contains("more than one output to new: "), "{said}");
        assert!(said.contains("compiled of strings new"), "{said}");
        assert!(!at("new").exists());
    }
}

#[test]
fn whole_flows_are_written() {
    let folder = folder();
    let millis = |name: &str| -> Vec<u64> {
        let frames = pcapng(&folder.path().join(name));
        frames.iter().map(|frame| frame.nanos / 1_000_000).collect()
    };
    // Of the fragment, which has no ports, that packet alone; all others but the query and ARP.
    let found =
        search(folder.path(), &["-e", "evil.com", "--write-flows", "flows.pcapng", "-w", "found.pcapng"]);
    assert_eq!(numbers(&found), [2, 4, 5, 10]);
    assert_eq!(millis("flows.pcapng"), [0, 100, 300, 400, 500, 600, 700, 800, 900]);
    assert_eq!(millis("found.pcapng"), [100, 300, 400, 900]);
    assert!(pcapng(&folder.path().join("flows.pcapng")).iter().all(|frame| frame.comments.is_empty()));
    // A filter is for the search alone; a count of packets is for both.
    let arguments = ["-e", "GET", "-f", "tcp", "-c", "7", "--count", "--write-flows", "flows.pcapng"];
    assert_eq!(search(folder.path(), &arguments), "");
    assert_eq!(millis("flows.pcapng"), [0, 100, 500, 600]);
    search(folder.path(), &["-e", "nowhere", "--write-flows", "flows.pcapng"]);
    assert!(millis("flows.pcapng").is_empty());

    // As many flows as match, by the ends that packets were made of.
    let mut fewer = 0;
    for seed in 0..4 {
        let lines = random_streams(seed, 600);
        fs::write(folder.path().join("some.pcap"), packets::pcap(&lines)).expect("written");
        let flow = |line: &str| {
            let words: Vec<_> = line.split(' ').map(str::to_owned).collect();
            let mut ends = [words[2].clone(), words[4].clone()];
            ends.sort();
            (words[1].clone(), ends)
        };
        let flows: Vec<_> = lines.lines().map(flow).collect();
        let arguments = ["-e", "needle-in-it-evil.com/", "--within", "stream", "--workers", "3"];
        let found =
            numbers(&search(folder.path(), &[&arguments[..], &["--write-flows", "flows.pcapng"]].concat()));
        let expected: Vec<_> = (1..)
            .zip(&flows)
            .filter(|(_, flow)| found.iter().any(|&number| flows[number as usize - 1] == **flow))
            .map(|(number, _)| number)
            .collect();
        fewer += usize::from(found.len() < expected.len() && expected.len() < flows.len());
        let all: Vec<_> = lines
            .lines()
            .map(|line| line.split(' ').next().expect("a time").parse::<f64>().expect("seconds"))
            .collect();
        let expected: Vec<_> =
            expected.iter().map(|&number: &usize| (all[number - 1] * 1e3).round() as u64).collect();
        assert_eq!(millis("flows.pcapng"), expected, "{seed}");
    }
    assert!(fewer > 1, "some flows have it, and others not");

    let refused = |arguments: &[&str], what: &str| {
        let mut command = packetloom();
        let output = run(command.current_dir(folder.path()).arg("search").args(arguments));
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", stderr(&output));
        assert!(stderr(&output).contains(what), "{arguments:?}: {}", stderr(&output));
    };
    refused(&["-r", "-", "-e", "a", "--write-flows", "new.pcapng"], "which can be read twice");
    refused(&["-i", "lo", "-e", "a", "--write-flows", "new.pcapng"], "cannot be used with");
    refused(&["-r", "some.pcap", "-e", "a", "--write-flows", "some.pcap"], "some.pcap");
    assert!(!folder.path().join("new.pcapng").exists());
}

/// A request in three segments, one that a packet has, a query, and names of TLS that are none.
fn requests() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let to = "10.0.0.1:1000 > 192.0.2.1:80";
    let request =
        b"GET /a%2f../evil.php?q=evil.com HTTP/1.1\r\nUser-Agent: evil/1\r\nHost: Evil.com:80\r\n\r\n";
    let later: &[u8] = b"POST /evil HTTP/1.1\r\nHost: evil.com\r\nX: evil.php\r\n\r\n/evil.php";
    let query: &[u8] = b"\x00\x01\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x04evil\x03com\x00\x00\x01\x00\x01";
    let answer = [&query[..2], b"\x81\x80", &query[4..]].concat();
    let lines = [
        segments(
            0,
            to,
            &[
                (0, "S", b""),
                (1, "PA", &request[..12]),
                (51, "PA", &request[50..]),
                (13, "PA", &request[12..50]),
                (request.len() as u32 + 1, "PA", later),
            ],
        ),
        with_payload("0.1 udp 10.0.0.1:999 > 192.0.2.53:53", query),
        with_payload("0.2 udp 192.0.2.53:53 > 10.0.0.1:999", &answer),
        with_payload("0.3 udp 10.0.0.1:999 > 192.0.2.53:53", query),
        with_payload("0.4 udp 10.0.0.1:999 > 192.0.2.53:53", query).replace('\n', " fragment 3\n"),
        "0.5 arp\n".into(),
    ];
    fs::write(folder.path().join("some.pcap"), packets::pcap(&lines.concat())).expect("written");
    folder
}

#[test]
fn header_fields_are_searched_by_name() {
    let folder = requests();
    let found = |arguments: &[&str]| numbers(&search(folder.path(), arguments));
    assert_eq!(found(&["-e", "evil.php"]), [4, 5]);
    // By itself a packet has fields of the message that it begins with.
    assert_eq!(found(&["-e", "evil.php", "--in", "http.uri"]), [0u64; 0]);
    assert_eq!(found(&["-e", "/evil", "--in", "http.uri"]), [5]);
    let stream = |pattern: &'static str, field: &'static str| {
        found(&["-e", pattern, "--in", field, "--within", "stream"])
    };
    assert_eq!(stream("/evil.php", "http.uri"), [4]);
    assert_eq!(stream("/a/", "http.uri"), [0u64; 0]);
    assert_eq!(stream("%2f", "http.uri.raw"), [4]);
    assert_eq!(stream("evil.com", "http.host"), [4, 5]);
    assert_eq!(stream("evil.com", "http.host.raw"), [5]);
    assert_eq!(stream("Evil.com:80", "http.host.raw"), [4]);
    assert_eq!(stream("evil", "http.user_agent"), [4]);
    assert_eq!(stream("POST", "http.method"), [5]);
    assert_eq!(stream("X: evil.php\\r\\n", "http.header"), [5]);
    assert_eq!(stream("evil.com", "dns.query"), [6, 8]);
    assert_eq!(stream("evil.com", "tls.sni"), [0u64; 0]);
    assert_eq!(found(&["-e", "evil.com", "--in", "dns.query"]), [6, 8]);
    // Rules by where their contents are.
    let rules = "alert http any any -> any any (msg:\"uri\"; flow:established,to_server; http.uri; content:\"/evil\"; startswith; content:!\"q=\"; sid:1;)\n\
                 alert http any any -> any any (msg:\"older\"; content:\"q=\"; http_uri; sid:2;)\n\
                 alert tcp any any -> any any (msg:\"payload\"; content:\"POST\"; sid:3;)\n\
                 alert dns any any -> any any (msg:\"dns\"; dns.query; content:\"EVIL\"; nocase; sid:4;)\n";
    fs::write(folder.path().join("some.rules"), rules).expect("written");
    let ids = |arguments: &[&str], left_out: &[u64]| {
        let all = [&["--patterns", "some.rules", "--json", "--left-out", "left.json"], arguments].concat();
        let text = search(folder.path(), &all);
        let left = json_lines(&folder.path().join("left.json"));
        assert_eq!(left.iter().filter_map(|line| line["line"].as_u64()).collect::<Vec<_>>(), left_out);
        let alerts = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
        alerts
            .map(|alert| {
                (
                    alert["pcap_cnt"].as_u64().unwrap_or(0),
                    alert["alert"]["signature_id"].as_u64().unwrap_or(0),
                )
            })
            .collect::<Vec<_>>()
    };
    assert_eq!(ids(&["--in", "http.uri", "--within", "stream"], &[3, 4]), [(4, 2), (5, 1)]);
    assert_eq!(ids(&["--in", "dns.query"], &[1, 2, 3]), [(6, 4), (8, 4)]);
    assert_eq!(ids(&["--in", "payload"], &[1, 2, 4]), [(5, 3)]);
    assert_eq!(ids(&[], &[]), [(5, 1), (5, 3), (6, 4), (8, 4)]);
    // What cannot be.
    let refused = |arguments: &[&str], status: i32, what: &str| {
        let mut command = packetloom();
        let output =
            run(command.current_dir(folder.path()).args(["search", "-r", "some.pcap"]).args(arguments));
        assert_eq!(output.status.code(), Some(status), "{arguments:?}");
        assert!(stderr(&output).contains(what), "{arguments:?}: {}", stderr(&output));
    };
    refused(
        &["-e", "a", "--in", "http.url"],
        2,
        "expected auto alone, or some of payload, http.method, http.uri,",
    );
    refused(&["-e", "a", "--in", "tls.sni", "--within", "packet"], 78, "expected within = \"payload\"");
    refused(
        &["--patterns", "some.rules", "--in", "tls.sni"],
        78,
        "line 1: a content is in http.uri; expected it in tls.sni",
    );
}

const SEVERAL_PLACES: &str = r#"
alert http any any -> any any (http.method; content:"POST"; http.uri; content:"/evil"; sid:1;)
alert http any any -> any any (http.method; content:"GET"; http.host; content:"evil.com"; sid:2;)
alert http any any -> any any (http.uri; content:"/evil"; pkt_data; content:"evil.php"; sid:3;)
alert http any any -> any any (http.uri; content:"/evil"; http.cookie; content:!"x"; sid:4;)
alert http any any -> any any (http.uri; content:"/evil"; http.user_agent; content:!"curl"; sid:5;)
alert dns any any -> any any (dns.query; content:"evil"; pkt_data; content:"|00 01 01 00|"; sid:6;)
alert http any any -> any any (flow:established,to_server; content:"GET "; http.host; content:"evil.com"; sid:7;)
alert http any any -> any any (http.method; content:"GET"; http.host; content:"evil.com"; pkt_data; content:!"POST"; sid:8;)
alert http any any -> any any (content:"POST"; http_method; content:"evil.php"; http_header; sid:9;)
alert http any any -> any any (http.uri; content:"evil.com"; http.host; content:"nowhere"; sid:10;)
alert http any any -> any any (http.host; content:"POST"; content:"/evil"; sid:11;)
alert http any any -> any any (http.uri; content:"/gate"; pkt_data; content:"id="; sid:12;)
"#;

/// Numbers of packets and rules.
fn alerts_of(folder: &Path, arguments: &[&str]) -> Vec<(u64, u64)> {
    let text = search(folder, &[arguments, &["--json"]].concat());
    let alerts = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
    let number = |value: &Value| value.as_u64().expect("a number");
    alerts.map(|alert| (number(&alert["pcap_cnt"]), number(&alert["alert"]["signature_id"]))).collect()
}

#[test]
fn contents_of_rules_are_found_each_in_its_place() {
    let folder = requests();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("some.rules"), SEVERAL_PLACES).expect("written");
    let found =
        |arguments: &[&str]| alerts_of(folder.path(), &[&["--patterns", "some.rules"], arguments].concat());
    assert_eq!(found(&[]), [(5, 1), (5, 3), (5, 9), (6, 6), (8, 6)]);
    let by_stream = [(4, 2), (4, 3), (4, 5), (4, 7), (4, 8), (5, 1), (5, 3), (5, 7), (5, 9), (6, 6), (8, 6)];
    assert_eq!(found(&["--within", "stream"]), by_stream);
    // Only rules whose contents are in these places.
    let some = ["--in", "http.method,http.uri,http.host"];
    assert_eq!(found(&some), [(5, 1)]);
    assert_eq!(found(&["--in", "payload,http.uri", "--within", "stream"]), [(4, 3), (5, 3)]);
    // Patterns of lists in any of them.
    let numbers_of = |arguments: &[&str]| numbers(&search(folder.path(), arguments));
    assert_eq!(numbers_of(&["-e", "evil.com", "--in", "http.uri,http.host", "--within", "stream"]), [4, 5]);
    assert_eq!(numbers_of(&["-e", "/evil", "--in", "http.host,http.uri"]), [5]);
    assert_eq!(numbers_of(&["-e", "evil.php", "--in", "http.host,payload"]), [4, 5]);
    assert_eq!(numbers_of(&["-e", "evil", "--in", "dns.query,http.method"]), [6, 8]);
    // Each field counts, of several questions each one by itself.
    let count = |summary: &Value, name: &str| summary["functions"][0][name].as_u64().expect("a count");
    search(folder.path(), &["-e", "evil", "--in", "http.method,dns.query", "--summary", "s.json"]);
    let summary = json(&at("s.json"));
    assert_eq!(["searched", "bytes", "matched"].map(|name| count(&summary, name)), [3, 4 + 8 + 8, 2]);

    // A message goes on in later segments, until the next one begins.
    let to = "10.0.0.1:1000 > 192.0.2.1:80";
    let post = b"POST /gate.php HTTP/1.1\r\nHost: a\r\nContent-Length: 7\r\n\r\n";
    let get = b"GET /other HTTP/1.1\r\n\r\n";
    let mut sequence = 1;
    let mut all: Vec<(u32, &str, &[u8])> = vec![(0, "S", b"")];
    for payload in [&post[..8], &post[8..], b"id=evil", b"more", b"id=", get, b"id="] {
        all.push((sequence, "PA", payload));
        sequence += payload.len() as u32;
    }
    fs::write(at("some.pcap"), packets::pcap(&segments(0, to, &all))).expect("written");
    assert_eq!(found(&["--within", "stream"]), [(4, 12), (6, 12)]);
    assert_eq!(found(&[]), [(0u64, 0u64); 0]);
    // The rest of the flow is dropped from the first of them on.
    let chain = "[[chain]]\nnf = \"strings\"\npatterns = \"some.rules\"\nwithin = \"stream\"\naction = \"drop\"\n\
                 [sink]\ncapture = \"passed.pcap\"\n";
    run_chain(folder.path(), chain, "some.pcap", &["passed.pcap", "s.json"]);
    let summary = json(&at("s.json"));
    assert_eq!(summary["functions"][0]["flows"]["dropped"].as_u64(), Some(4));
}

#[test]
fn places_of_chains_are_names_or_lists() {
    let folder = requests();
    fs::write(folder.path().join("list.txt"), "evil\n").expect("written");
    let chain = |look_in: &str| {
        let text = format!("[[chain]]\nnf = \"strings\"\npatterns = \"list.txt\"\nlook_in = {look_in}\n");
        fs::write(folder.path().join("chain.toml"), text).expect("written");
        let mut command = packetloom();
        run(command.current_dir(folder.path()).args([
            "run",
            "chain.toml",
            "-r",
            "some.pcap",
            "--summary",
            "s.json",
        ]))
    };
    for (look_in, matched) in [
        ("\"auto\"", 7),
        ("\"payload\"", 7),
        ("[\"payload\"]", 7),
        ("[\"http.uri\"]", 1),
        ("[\"http.uri\", \"dns.query\"]", 3),
    ] {
        assert!(chain(look_in).status.success(), "{look_in}");
        let summary = json(&folder.path().join("s.json"));
        assert_eq!(summary["functions"][0]["matched"].as_u64(), Some(matched), "{look_in}");
    }
    for (look_in, what) in [
        ("[]", "expected one at least"),
        (
            "[\"http.uri\", \"http.url\"]",
            "\"http.url\" is no place to look in; expected auto alone, or some of payload, http.method",
        ),
        ("[\"auto\"]", "\"auto\" is no place"),
        ("\"http.uri,http.host\"", "is no place to look in"),
        ("7", "expected the name of a place in quotes, or several in brackets"),
        ("[7]", "expected"),
        ("[\"http.uri\", \"payload\"]\nwithin = \"packet\"", "expected within = \"payload\" or \"stream\""),
    ] {
        let output = chain(look_in);
        assert_eq!(output.status.code(), Some(78), "{look_in}");
        assert!(stderr(&output).contains(what), "{look_in}: {}", stderr(&output));
    }
}

/// Requests of several flows, with bodies, in segments that mostly end where lines do, and queries between them.
fn random_requests(seed: u64, packets: usize) -> String {
    let mut state = seed;
    let mut below = |most: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % most
    };
    let firsts: [&[u8]; 4] = [
        b"GET /evil HTTP/1.1\r\n",
        b"POST /gate.php?a=%65vil HTTP/1.1\r\n",
        b"GET http://a/x/../evil HTTP/1.0\n",
        b"POST /evil/gate.php HTTP/1.1\r\n",
    ];
    let lines: [&[u8]; 9] = [
        b"Host: evil.com\r\n",
        b"Host: a\r\n",
        b"User-Agent: curl\r\n",
        b"Cookie: id=evil\r\n",
        b"User-Agent: wget\r\n",
        b"X: evil.php GET \r\n",
        b"\r\n",
        b"id=evil",
        b"no-evil/gate.php",
    ];
    let mut flows: Vec<(Vec<u8>, Vec<usize>, usize)> = Vec::new();
    let (mut text, mut time) = (String::new(), 0);
    for _ in 0..10 {
        let (mut stream, mut ends) = (Vec::new(), vec![0]);
        while stream.len() < 900 {
            let word = if stream.is_empty() || below(6) == 0 { firsts[below(4)] } else { lines[below(9)] };
            stream.extend_from_slice(word);
            ends.push(stream.len());
        }
        flows.push((stream, ends, 0));
    }
    for _ in 0..packets {
        time += [1, 1, 1, 400][usize::from(below(60) == 0) * 3];
        if below(12) == 0 {
            let names = [&b"\x04evil\x03com\x00\x00\x01\x00\x01"[..], b"\x01a\x00\x00\x01\x00\x01"];
            let count = below(3);
            let mut query =
                [b"\x00\x01", [&b"\x01\x00"[..], b"\x81\x80"][usize::from(below(5) == 0)]].concat();
            query.extend_from_slice(&[0, count as u8, 0, 0, 0, 0, 0, 0]);
            (0..count).for_each(|_| query.extend_from_slice(names[below(2)]));
            let ends = format!("udp 10.0.0.{}:1000 > 192.0.2.1:53", below(3));
            text += &with_payload(&format!("{}.{:03} {ends}", time / 1000, time % 1000), &query);
            continue;
        }
        let which = below(flows.len());
        let (stream, ends, at) = &mut flows[which];
        let (from, flags) = match below(30) {
            0 => (0, "S"),
            1..=2 => (at.saturating_sub(below(60)), "PA"),
            3..=4 => (*at + below(40), "PA"),
            _ => (*at, "PA"),
        };
        let from = from.min(stream.len());
        let next = ends.iter().copied().filter(|&end| end > from).nth(below(4));
        let until = if below(5) == 0 { from + below(30) } else { next.unwrap_or(stream.len()) };
        let until = until.min(stream.len());
        let payload = if flags == "S" { &[][..] } else { &stream[from..until] };
        *at = if flags == "S" || until == stream.len() { 0 } else { until.max(*at) };
        let segment = [(from as u32 + u32::from(flags != "S"), flags, payload)];
        text +=
            &segments(time, &format!("10.0.0.{}:{} > 192.0.2.1:80", which / 2, 1000 + which % 2), &segment);
    }
    text
}

#[test]
fn rules_of_several_places_are_those_of_the_oracle() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    fs::write(at("some.rules"), SEVERAL_PLACES).expect("written");
    fs::write(at("list.txt"), "evil\nGET\nid=evil\n/gate\n").expect("written");
    let function = |patterns: &str, log: &str, keys: &str| {
        format!("[[chain]]\nnf = \"strings\"\npatterns = \"{patterns}\"\nlog = \"{log}\"\n{keys}\n")
    };
    let mut by_rule = std::collections::BTreeMap::<u64, u64>::new();
    let mut dropped = 0;
    for seed in 0..packetloom_testing::amount(4, 25) as u64 {
        fs::write(at("some.pcap"), packets::pcap(&random_requests(seed, 900))).expect("written");
        let places = "look_in = [\"payload\", \"http.uri\", \"dns.query\", \"http.host\"]";
        let chains = [
            function("some.rules", "a.json", "within = \"stream\"\ntimeout = \"300ms\"")
                + &function("list.txt", "b.json", &format!("{places}\nwithin = \"stream\"")),
            function("some.rules", "a.json", "mark = 3") + &function("list.txt", "b.json", places),
            function("some.rules", "a.json", "within = \"stream\"\naction = \"drop\"\nmatch = \"first\"")
                + &function(
                    "list.txt",
                    "b.json",
                    "look_in = [\"http.uri\", \"http.cookie\"]\nflow = \"drop\"\naction = \"drop\"",
                ),
        ];
        for chain in chains {
            for batch in [3, 200] {
                let chain = format!("{chain}[run]\nbatch = {batch}\n[sink]\ncapture = \"passed.pcap\"\n");
                run_chain(folder.path(), &chain, "some.pcap", &["a.json", "b.json", "passed.pcap", "s.json"]);
                let functions = &json(&at("s.json"))["functions"];
                for found in functions[0]["found"].as_array().expect("a list") {
                    let number = |name: &str| found[name].as_u64().expect("a number");
                    *by_rule.entry(number("id")).or_default() += number("packets");
                }
                dropped += functions[0]["flows"]["dropped"].as_u64().unwrap_or(0);
            }
        }
    }
    let rare: Vec<_> = (1..13).filter(|rule| by_rule.get(rule).is_none_or(|&count| count < 20)).collect();
    assert_eq!(rare, [10, 11], "rules that nothing has: {by_rule:?}");
    assert!(dropped > 100, "{dropped}");
}

#[test]
fn requests_behind_others_in_a_segment_are_those_of_tshark() {
    let folder = tempfile::tempdir().expect("a folder");
    let to = "10.0.0.1:1000 > 192.0.2.1:80";
    let post = "POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 27\r\n\r\nGET /no HTTP/1.1\r\nHost: a\r\n";
    let chunked = "PUT /b HTTP/1.1\r\nHost: y\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nGET\r\n12\r\n /no HTTP/1.1\r\nHos\r\n0\r\n\r\n";
    let get = "GET /c HTTP/1.1\r\nHost: z\r\n\r\n";
    let payloads = [
        format!("{get}{post}{chunked}{get}"),
        format!("{post}{post}{get}"),
        format!("{chunked}{post}"),
        get.replace("/c", "/d"),
    ];
    let mut sequence = 1;
    let mut all: Vec<(u32, &str, &[u8])> = vec![(0, "S", b"")];
    for payload in &payloads {
        all.push((sequence, "PA", payload.as_bytes()));
        sequence += payload.len() as u32;
    }
    fs::write(folder.path().join("some.pcap"), packets::pcap(&segments(0, to, &all))).expect("written");
    let uris = [("/a", [2, 3, 4].as_slice()), ("/b", &[2, 4]), ("/c", &[2, 3]), ("/d", &[5]), ("/no", &[])];
    for (uri, expected) in uris {
        for within in ["payload", "stream"] {
            let found = search(folder.path(), &["-e", uri, "--in", "http.uri", "--within", within]);
            assert_eq!(numbers(&found), expected, "{uri} {within}");
        }
    }
    // Contents of a rule are those of one request.
    let rules = "alert http any any -> any any (http.uri; content:\"/a\"; http.host; content:\"x\"; sid:1;)\n\
                 alert http any any -> any any (http.uri; content:\"/a\"; http.host; content:\"z\"; sid:2;)\n";
    fs::write(folder.path().join("some.rules"), rules).expect("written");
    for within in ["payload", "stream"] {
        let found = alerts_of(folder.path(), &["--patterns", "some.rules", "--within", within]);
        assert_eq!(found, [(2, 1), (3, 1), (4, 1)], "{within}");
    }
    if !packetloom_testing::has_tshark() {
        return;
    }
    let output = std::process::Command::new("tshark")
        .current_dir(folder.path())
        .args([
            "-r",
            "some.pcap",
            "-n",
            "-Y",
            "http.request",
            "-T",
            "fields",
            "-e",
            "frame.number",
            "-e",
            "http.request.uri",
        ])
        .output()
        .expect("tshark runs");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let theirs: Vec<(u64, &str)> = text
        .lines()
        .filter_map(|line| line.split_once('\t'))
        .flat_map(|(number, uris)| uris.split(',').map(move |uri| (number.parse().expect("a number"), uri)))
        .collect();
    for (uri, expected) in uris {
        let mut of_uri: Vec<_> =
            theirs.iter().filter(|(_, other)| *other == uri).map(|(number, _)| *number).collect();
        of_uri.dedup();
        assert_eq!(of_uri, expected, "{uri} {theirs:?}");
    }
}

/// In packets by themselves, a rule of two places is found where both halves are, each looked for in its place alone.
#[test]
fn rules_of_two_places_are_both_halves_in_real_captures() {
    let Some(corpus) = packetloom_testing::corpus("captures") else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let rules = [
        ("http.method", "GET", "http.host", "."),
        ("http.uri", "/", "http.user_agent", "o"),
        ("http.uri", "e", "http.cookie", "="),
        ("http.host", "www", "payload", "Accept"),
        ("tls.sni", "o", "payload", "h2"),
        ("dns.query", "www", "payload", "|00 01 00 01|"),
    ];
    let option = |place: &str, content: &str| match place {
        "payload" => format!("pkt_data; content:\"{content}\"; "),
        place => format!("{place}; content:\"{content}\"; "),
    };
    let text: String = (1..)
        .zip(&rules)
        .map(|(sid, (a, b, c, d))| {
            format!("alert ip any any -> any any ({}{}sid:{sid};)\n", option(a, b), option(c, d))
        })
        .collect();
    fs::write(folder.path().join("two.rules"), text).expect("written");
    let mut captures: Vec<_> =
        fs::read_dir(corpus).expect("captures").map(|entry| entry.expect("an entry").path()).collect();
    captures.retain(|path| {
        path.extension().is_some_and(|end| end == "pcap" || end == "pcapng")
            && fs::metadata(path).is_ok_and(|data| data.len() < 2_000_000)
    });
    let mut matched = [0; 6];
    // All captures together: their packets are numbered on.
    let found = |arguments: &[&str]| {
        let mut command = packetloom();
        command.current_dir(folder.path()).arg("search");
        for capture in &captures {
            command.arg("-r").arg(capture);
        }
        let text = succeed(command.args(arguments).arg("--json"));
        let alerts = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
        let number = |value: &Value| value.as_u64().expect("a number");
        alerts
            .map(|alert| (number(&alert["pcap_cnt"]), number(&alert["alert"]["signature_id"])))
            .collect::<std::collections::BTreeSet<_>>()
    };
    let together = found(&["--patterns", "two.rules"]);
    for (sid, (a, b, c, d)) in (1..).zip(rules) {
        let half = |name: &str, place: &str, content: &str| {
            let rule = format!("alert ip any any -> any any ({}sid:{sid};)\n", option(place, content));
            fs::write(folder.path().join(name), rule).expect("written");
            found(&["--patterns", name, "--in", place])
        };
        let expected: Vec<_> = half("a.rules", a, b).intersection(&half("b.rules", c, d)).copied().collect();
        matched[sid as usize - 1] = expected.len();
        let own: Vec<_> = together.iter().copied().filter(|&(_, of)| of == sid).collect();
        assert_eq!(own, expected, "{a} {c}");
    }
    assert!(matched.iter().all(|&matched| matched > 3), "{matched:?}");
}

#[test]
fn chains_look_in_header_fields_and_drop_the_rest_of_flows() {
    let folder = requests();
    fs::write(folder.path().join("list.txt"), "evil\n").expect("written");
    let check = |field: &str, keys: &str, dropped: &[u64], flows: u64| {
        let chain = format!(
            "[[chain]]\nnf = \"strings\"\npatterns = \"list.txt\"\nlook_in = \"{field}\"\naction = \"drop\"\nlog = \"a.json\"\n\
             {keys}\n[run]\nnon_ip = \"pass\"\n[sink]\ncapture = \"passed.pcap\"\ndropped = \"dropped.pcapng\"\n"
        );
        run_chain(folder.path(), &chain, "some.pcap", &["a.json", "passed.pcap", "dropped.pcapng", "s.json"]);
        let summary = json(&folder.path().join("s.json"));
        let nanos: Vec<_> = pcapng(&folder.path().join("dropped.pcapng"))
            .iter()
            .map(|frame| frame.nanos / 1_000_000)
            .collect();
        assert_eq!(nanos, dropped, "{field} {keys}");
        assert_eq!(
            summary["functions"][0]["flows"]["dropped"].as_u64().unwrap_or(0),
            flows,
            "{field} {keys}"
        );
    };
    // Segments of the first flow are a millisecond apart.
    check("http.uri", "within = \"stream\"", &[3, 4], 1);
    check("http.uri", "", &[4], 0);
    check("http.uri", "flow = \"drop\"", &[4], 0);
    check("http.user_agent", "within = \"stream\"\nmark = 3", &[3, 4], 1);
    check("dns.query", "within = \"stream\"", &[100, 300], 0);
    check("dns.query", "", &[100, 300], 0);
}

#[test]
fn the_oracle_finds_the_same_header_fields_in_real_captures() {
    let Some(corpus) = packetloom_testing::corpus("captures") else { return };
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("list.txt"), "/\ne\nGET\nwww\n.com\nMozilla\nHost: \n").expect("written");
    let function = |field: &str, keys: &str| {
        format!("[[chain]]\nnf = \"strings\"\npatterns = \"list.txt\"\nlook_in = \"{field}\"\n{keys}\n")
    };
    let chain = [
        &function("http.header", "log = \"a.json\"\nwithin = \"stream\""),
        &function("dns.query", "log = \"b.json\""),
        &function("tls.sni", "within = \"stream\"\nmatch = \"first\"\nlog = \"c.json\""),
        &function("quic.sni", "within = \"stream\"\nmatch = \"any\"\nmark = 2"),
        "[run]\nnon_ip = \"pass\"\nmalformed = \"pass\"\n",
    ]
    .concat();
    let mut captures: Vec<_> =
        fs::read_dir(corpus).expect("captures").map(|entry| entry.expect("an entry").path()).collect();
    captures.retain(|path| {
        path.extension().is_some_and(|end| end == "pcap" || end == "pcapng")
            && fs::metadata(path).is_ok_and(|data| data.len() < 500_000)
    });
    captures.sort();
    let mut matched = [0; 4];
    for capture in captures {
        let capture = capture.to_str().expect("UTF-8");
        run_chain(folder.path(), &chain, capture, &["a.json", "b.json", "c.json", "s.json"]);
        let summary = json(&folder.path().join("s.json"));
        for (function, matched) in matched.iter_mut().enumerate() {
            *matched += summary["functions"][function]["matched"].as_u64().unwrap_or(0);
        }
    }
    assert!(matched.iter().all(|&matched| matched > 10), "{matched:?}");
}

#[test]
fn the_alerts_schema_is_what_is_written() {
    let folder = folder();
    let lines = search(folder.path(), &["-e", "evil.com", "--json"]);
    let schema: Value = serde_json::from_str(&succeed(packetloom().args(["schema", "alert"]))).expect("JSON");
    let known = schema["properties"].as_object().expect("fields");
    for line in lines.lines() {
        let alert: Value = serde_json::from_str(line).expect("JSON");
        assert!(alert.as_object().expect("an object").keys().all(|name| known.contains_key(name)), "{line}");
        let required = schema["required"].as_array().expect("fields");
        assert!(required.iter().all(|name| alert.get(name.as_str().expect("a name")).is_some()), "{line}");
    }
    assert!(root().join("docs/strings.md").is_file());
}
