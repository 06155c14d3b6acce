//! Names of lists in packets: `nf = "domains"`.

#![allow(missing_docs)]

mod support;

use std::fs;
use std::path::Path;

use support::packets::{self, segments};
use support::pcapng::pcapng;
use support::{json, json_lines, packetloom, run, stderr, succeed};

/// A question of DNS, and a request of HTTP, in hex digits.
fn question(name: &str) -> String {
    let mut message = b"\x12\x34\x01\0\0\x01\0\0\0\0\0\0".to_vec();
    for label in name.split('.') {
        message.push(label.len() as u8);
        message.extend(label.as_bytes());
    }
    message.extend(b"\0\0\x01\0\x01");
    message.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn request(host: &str) -> String {
    let request = format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n");
    request.bytes().map(|byte| format!("{byte:02x}")).collect()
}

/// A ClientHello of TLS that asks for a server (RFC 8446, RFC 6066), with an extension of so many bytes in front of the name.
fn hello(server: &str, padding: usize) -> Vec<u8> {
    let sized = |bytes: &[u8]| [&(bytes.len() as u16).to_be_bytes()[..], bytes].concat();
    let name = sized(&[&[0][..], &sized(server.as_bytes())].concat());
    let extensions = [&[0, 21][..], &sized(&vec![0; padding]), &[0, 0], &sized(&name)].concat();
    let body = [&[3, 3][..], &[7; 32], &[0], &sized(&[0x13, 1]), &[1, 0], &sized(&extensions)].concat();
    let message = [&[1, 0][..], &sized(&body)].concat();
    [&[22, 3, 1][..], &sized(&message)].concat()
}

const LIST: &str = "# a list\nevil.com\n*.tracker.example\nnot a name\n";
const RULES: &str = "! rules\n||ads.example^\n@@||good.evil.com^\n||ads.example^$third-party\n";

fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let dns = "udp 10.0.0.1:1000 > 192.0.2.53:53 bytes";
    let http = "tcp 10.0.0.1:1000 > 192.0.2.1:80 flags PA bytes";
    let lines = [
        format!("0.0 {dns} {}", question("www.EVIL.com")),
        format!("0.1 {dns} {}", question("notevil.com")),
        format!("0.2 {dns} {}", question("a.good.evil.com")),
        format!("0.3 {dns} {}", question("tracker.example")),
        format!("0.4 {dns} {}", question("a.tracker.example")),
        format!("0.5 {http} {}", request("ads.example:8080")),
        format!("0.6 {http} {}", request("example.org")),
        "0.7 tcp 10.0.0.1:1000 > 192.0.2.1:80 flags A payload 40".into(),
        "0.8 arp".into(),
    ];
    let write = |name: &str, bytes: &[u8]| fs::write(folder.path().join(name), bytes).expect("written");
    write("some.pcap", &packets::pcap(&lines.join("\n")));
    write("list.txt", LIST.as_bytes());
    write("rules.txt", RULES.as_bytes());
    folder
}

/// Runs a chain in each way; the last of its summaries, which are the same.
fn run_chain(folder: &Path, chain: &str, outputs: &[&str]) -> serde_json::Value {
    fs::write(folder.join("chain.toml"), chain).expect("written");
    let mut all: Vec<Vec<Vec<u8>>> = Vec::new();
    for how in [&["--workers", "1"][..], &["--workers", "3"], &["--device", "oracle"]] {
        let mut command = packetloom();
        command.current_dir(folder).args(["run", "chain.toml", "-r", "some.pcap", "--summary", "s.json"]);
        succeed(command.args(how));
        let outputs = outputs.iter().chain(&["s.json"]);
        all.push(outputs.map(|name| fs::read(folder.join(name)).expect("an output")).collect());
    }
    assert!(all.windows(2).all(|pair| pair[0] == pair[1]), "the same bytes, whoever judges");
    json(&folder.join("s.json"))
}

#[test]
fn packets_with_a_name_of_a_list_are_dropped_marked_and_logged() {
    let folder = folder();
    let chain = r#"
[[chain]]
nf = "domains"
lists = ["list.txt", "rules.txt"]
streams = false
action = "drop"
mark = 9
log = "alerts.json"
[[chain]]
nf = "counter"
[sink]
dropped = "dropped.pcapng"
matched = { file = "matched.pcapng", mark = 9 }
"#;
    let summary = run_chain(folder.path(), chain, &["alerts.json", "dropped.pcapng", "matched.pcapng"]);
    let domains = &summary["functions"][0];
    assert_eq!((domains["blocked"].as_u64(), domains["allowed"].as_u64()), (Some(3), Some(1)));
    assert_eq!(domains["found"], serde_json::json!({ "dns": 5, "http": 2 }));
    assert_eq!(summary["dropped"]["domains"], 3);
    let lines: Vec<_> = domains["lines"]
        .as_array()
        .expect("lines")
        .iter()
        .map(|line| {
            let list = line["list"].as_str().expect("a path").rsplit('/').next().expect("a name").to_owned();
            (list, line["line"].as_u64().expect("a number"), line["names"].as_u64().expect("a number"))
        })
        .collect();
    let expected = [("list.txt", 2, 1), ("list.txt", 3, 1), ("rules.txt", 2, 1), ("rules.txt", 3, 1)];
    assert_eq!(lines, expected.map(|(list, line, names)| (list.to_owned(), line, names)));
    let alerts = json_lines(&folder.path().join("alerts.json"));
    assert!(
        alerts[2]["alert"]["category"].as_str().is_some_and(|list| list.ends_with("rules.txt")),
        "{}",
        alerts[2]
    );
    let told: Vec<_> = alerts
        .iter()
        .map(|alert| {
            (
                alert["pcap_cnt"].as_u64(),
                alert["alert"]["signature"].as_str(),
                alert["alert"]["action"].as_str(),
            )
        })
        .collect();
    let expected = [(1, "evil.com"), (5, "*.tracker.example"), (6, "||ads.example^")];
    assert_eq!(told, expected.map(|(packet, text)| (Some(packet), Some(text), Some("blocked"))));
    assert!(pcapng(&folder.path().join("dropped.pcapng")).iter().all(|frame| frame.comment() == "domains"));
    let matched = pcapng(&folder.path().join("matched.pcapng"));
    assert_eq!(matched.len(), 3);
    assert!(matched[0].comment().ends_with("list.txt:2: evil.com"), "{}", matched[0].comment());
}

#[test]
fn names_are_followed_over_segments_and_their_flows_dropped() {
    let folder = folder();
    let hello = hello("www.evil.com", 1500);
    let request =
        |path: &str, host: &str| format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n").into_bytes();
    let (front, back) = hello.split_at(1400);
    let [to, from] = ["10.0.0.1:1000 > 192.0.2.1:443", "192.0.2.1:443 > 10.0.0.1:1000"];
    let web = "10.0.0.1:2000 > 192.0.2.1:80";
    let cut = request("/", "evil.com");
    let dns = |millis: u64, name: &str| {
        format!("0.{millis:03} udp 10.0.0.1:1000 > 192.0.2.53:53 bytes {}\n", question(name))
    };
    let lines = [
        // Out of order, then more, and the other direction.
        segments(
            0,
            to,
            &[
                (0, "S", b""),
                (1401, "PA", back),
                (1, "PA", front),
                (1, "PA", front),
                (1 + hello.len() as u32, "PA", b"more"),
            ],
        ),
        segments(5, from, &[(1, "A", b"")]),
        // A later request of a connection whose first name is none of the list's.
        segments(
            6,
            web,
            &[
                (1, "PA", &request("/", "example.org")),
                (100, "PA", &request("/", "evil.com")),
                (300, "PA", b"more"),
            ],
        ),
        // Each question is by itself.
        dns(9, "evil.com"),
        dns(10, "example.org"),
        dns(11, "a.evil.com"),
        // Another connection of the same ports, after a while, whose request is cut.
        segments(
            2_000,
            web,
            &[(5000, "S", b""), (5001, "PA", &cut[..20]), (5021, "PA", &cut[20..]), (9000, "PA", b"more")],
        ),
    ];
    fs::write(folder.path().join("some.pcap"), packets::pcap(&lines.concat())).expect("written");
    let check = |keys: &str, dropped: &[u64], of_flows: Option<u64>, blocked: u64| {
        let chain = format!(
            "[[chain]]\nnf = \"domains\"\nlists = \"list.txt\"\nlog = \"a.json\"\nmark = 3\n{keys}\n[sink]\ndropped = \"dropped.pcapng\"\n"
        );
        let summary = run_chain(folder.path(), &chain, &["a.json", "dropped.pcapng"]);
        let domains = &summary["functions"][0];
        let millis: Vec<_> = pcapng(&folder.path().join("dropped.pcapng"))
            .iter()
            .map(|frame| frame.nanos / 1_000_000)
            .collect();
        assert_eq!(millis, dropped, "{keys}");
        assert_eq!(domains["flows"]["dropped"].as_u64(), of_flows, "{keys}: {domains}");
        assert_eq!(domains["blocked"].as_u64(), Some(blocked), "{keys}");
        assert_eq!(json_lines(&folder.path().join("a.json")).len() as u64, blocked, "{keys}");
    };
    check("action = \"drop\"\ntimeout = \"1s\"", &[2, 3, 4, 5, 7, 8, 9, 11, 2002, 2003], Some(5), 5);
    check("", &[], Some(0), 5);
    check("action = \"drop\"\nstreams = false", &[7, 9, 11], None, 3);
}

/// Several questions of one message, several messages and several requests of one segment.
#[test]
fn all_names_of_a_packet_are_judged() {
    let folder = folder();
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let questions = |names: &[&str]| {
        let mut message = b"\x12\x34\x01\0".to_vec();
        message.extend((names.len() as u16).to_be_bytes());
        message.extend([0; 6]);
        for name in names {
            for label in name.split('.') {
                message.push(label.len() as u8);
                message.extend(label.as_bytes());
            }
            message.extend(b"\0\0\x01\0\x01");
        }
        message
    };
    let sized = |message: Vec<u8>| [&(message.len() as u16).to_be_bytes()[..], &message].concat();
    let get = |host: &str| format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n").into_bytes();
    let post = |host: &str, body: &str| {
        let length = body.len();
        format!("POST / HTTP/1.1\r\nHost: {host}\r\nContent-Length: {length}\r\n\r\n{body}").into_bytes()
    };
    let nameless = b"GET / HTTP/1.0\r\n\r\n".as_slice();
    let udp = |millis: u64, message: &[u8]| {
        format!("0.{millis:03} udp 10.0.0.1:1000 > 192.0.2.53:53 bytes {}\n", hex(message))
    };
    let dns = "10.0.0.1:1001 > 192.0.2.53:53";
    let web = |port: u16| format!("10.0.0.1:{port} > 192.0.2.1:80");
    let cut = [get("example.org"), get("a.tracker.example")].concat();
    let lines = [
        udp(1, &questions(&["example.org", "www.evil.com"])),
        // Both lines of the list, one of them twice, and an exception.
        udp(2, &questions(&["evil.com", "a.tracker.example", "a.evil.com", "good.evil.com"])),
        udp(3, &questions(&["example.org", "good.evil.com"])),
        segments(
            10,
            dns,
            &[
                (0, "S", b""),
                (
                    1,
                    "PA",
                    &[
                        sized(questions(&[])),
                        sized(questions(&["example.org"])),
                        sized(questions(&["evil.com"])),
                    ]
                    .concat(),
                ),
            ],
        ),
        // A later packet of a connection: messages behind one that has no question.
        segments(
            20,
            &web(2000),
            &[
                (0, "S", b""),
                (1, "PA", &[post("example.org", "GET"), get("example.net"), get("evil.com")].concat()),
                (900, "PA", &[nameless, &get("ads.example")].concat()),
            ],
        ),
        // A request that has no name in front of one that has, at the beginning; and what is sent again.
        segments(
            30,
            &web(2001),
            &[
                (1, "PA", &[nameless, &get("evil.com")].concat()),
                (1, "PA", &[nameless, &get("evil.com")].concat()),
            ],
        ),
        // Behind a request whose head is cut, sent again with more.
        segments(
            40,
            &web(2002),
            &[(0, "S", b""), (1, "PA", &cut[..18]), (1, "PA", &cut[..30]), (31, "PA", &cut[30..])],
        ),
    ];
    fs::write(folder.path().join("some.pcap"), packets::pcap(&lines.concat())).expect("written");
    let check = |keys: &str, found: [u64; 2], of_lines: [u64; 4], blocked: &[(u64, &[u64])]| {
        let chain = format!(
            "[[chain]]\nnf = \"domains\"\nlists = [\"list.txt\", \"rules.txt\"]\nlog = \"a.json\"\nmark = 3\n{keys}\n[sink]\nmatched = {{ file = \"m.pcapng\", mark = 3 }}\n"
        );
        let summary = run_chain(folder.path(), &chain, &["a.json", "m.pcapng"]);
        let domains = &summary["functions"][0];
        assert_eq!(domains["found"], serde_json::json!({ "dns": found[0], "http": found[1] }), "{keys}");
        let names = |list: &str, number: u64| {
            let lines = domains["lines"].as_array().expect("lines").iter();
            let mut lines = lines.filter(|line| line["list"].as_str().is_some_and(|own| own.ends_with(list)));
            lines
                .find(|line| line["line"] == number)
                .map_or(0, |line| line["names"].as_u64().expect("a number"))
        };
        let told = [names("list.txt", 2), names("list.txt", 3), names("rules.txt", 2), names("rules.txt", 3)];
        assert_eq!(told, of_lines, "{keys}: {domains}");
        assert_eq!(domains["blocked"], blocked.len(), "{keys}");
        // Each line once a packet, in the order of names.
        let mut alerts: Vec<(u64, Vec<u64>)> = Vec::new();
        for alert in json_lines(&folder.path().join("a.json")) {
            let packet = alert["pcap_cnt"].as_u64().expect("a number");
            let line = alert["alert"]["signature_id"].as_u64().expect("a number");
            match alerts.last_mut() {
                Some((last, lines)) if *last == packet => lines.push(line),
                _ => alerts.push((packet, vec![line])),
            }
        }
        let expected: Vec<_> = blocked.iter().map(|&(packet, lines)| (packet, lines.to_vec())).collect();
        assert_eq!(alerts, expected, "{keys}");
        assert_eq!(pcapng(&folder.path().join("m.pcapng")).len(), blocked.len(), "{keys}");
        domains["allowed"].as_u64()
    };
    let [first, second]: [&[u64]; 2] = [&[2], &[2, 3]];
    let blocked =
        [(1, first), (2, second), (5, first), (7, first), (8, first), (9, first), (10, first), (14, &[3])];
    let allowed = check("", [10, 8], [7, 2, 1, 2], &blocked);
    assert_eq!(allowed, Some(1));
}

/// Lines far down, behind others of any bytes.
#[test]
fn lines_are_told_as_they_are() {
    let folder = folder();
    let mut list = b"\xef\xbb\xbf# first\r\n".to_vec();
    for line in 2..200u32 {
        let text: &[u8] = match line {
            130 => b"evil.com # \xfc\x1b]0;\r\n",
            150 => b"  *.tracker.example\r\n",
            line if line % 3 == 0 => b"\n",
            _ => b"# \xff\r\n",
        };
        list.extend_from_slice(text);
    }
    fs::write(folder.path().join("list.txt"), list).expect("written");
    let summary = run_chain(folder.path(), "[[chain]]\nnf = \"domains\"\nlists = \"list.txt\"\n", &[]);
    let lines = summary["functions"][0]["lines"].as_array().expect("lines");
    let told: Vec<_> = lines.iter().map(|line| (line["line"].as_u64(), line["text"].as_str())).collect();
    let expected = [(130, "evil.com # \u{fffd}\u{fffd}]0;"), (150, "*.tracker.example")];
    assert_eq!(told, expected.map(|(line, text)| (Some(line), Some(text))));
}

#[test]
fn what_is_refused_of_lists_is_said() {
    let folder = folder();
    let check = |keys: &str| {
        let path = folder.path().join("chain.toml");
        fs::write(&path, format!("[[chain]]\nnf = \"domains\"\n{keys}\n")).expect("written");
        let output = run(packetloom().arg("check").arg(&path));
        (output.status.code(), stderr(&output) + &String::from_utf8_lossy(&output.stdout))
    };
    let (status, said) = check("lists = [\"list.txt\", \"rules.txt\"]");
    assert_eq!(status, Some(0), "{said}");
    assert!(said.contains("list.txt:4: left out: ") && said.contains("rules.txt:4: left out: "), "{said}");
    assert!(said.contains("4 names of 2 lists"), "{said}");
    for (keys, what) in [
        ("", "lists"),
        ("lists = []", "expected a file"),
        ("lists = \"none.txt\"", "none.txt"),
        ("lists = \"some.pcap\"", "some.pcap: no name"),
        ("lists = \"list.txt\"\nformat = \"xml\"", "expected one of plain, hosts, adblock, rpz"),
        ("lists = \"-\"", "standard input"),
        ("lists = \"list.txt\"\nstreams = false\ntimeout = \"1s\"", "expected streams = true"),
        ("lists = \"list.txt\"\nmax_flows = 0", "expected a number from 1 to"),
    ] {
        let (status, said) = check(keys);
        assert_eq!(status, Some(78), "{keys}: {said}");
        assert!(said.contains(what), "{keys}: {said}");
    }
    // A list is not overwritten by what is written.
    let chain = "[[chain]]\nnf = \"domains\"\nlists = [\"list.txt\", \"rules.txt\"]\nlog = \"rules.txt\"\n";
    fs::write(folder.path().join("chain.toml"), chain).expect("written");
    let mut command = packetloom();
    let output = run(command.current_dir(folder.path()).args(["run", "chain.toml", "-r", "some.pcap"]));
    assert!(!output.status.success());
    assert_eq!(fs::read_to_string(folder.path().join("rules.txt")).expect("the list"), RULES);
}

#[test]
fn the_oracle_finds_the_same_names_in_real_captures() {
    let Some(corpus) = packetloom_testing::corpus("captures") else { return };
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("list.txt"), "com\nnet\n*.org\nlocal\nexample\n").expect("written");
    let function = |keys: &str| format!("[[chain]]\nnf = \"domains\"\nlists = \"list.txt\"\n{keys}\n");
    let chain = [
        &function("log = \"a.json\"\nstreams = false"),
        &function("log = \"b.json\""),
        &function("log = \"c.json\"\naction = \"drop\""),
        "[run]\nnon_ip = \"pass\"\nmalformed = \"pass\"\n",
    ]
    .concat();
    let mut blocked = [0; 3];
    let mut captures: Vec<_> =
        fs::read_dir(corpus).expect("captures").map(|entry| entry.expect("an entry").path()).collect();
    captures.retain(|path| {
        path.extension().is_some_and(|end| end == "pcap" || end == "pcapng")
            && fs::metadata(path).is_ok_and(|data| data.len() < 2_000_000)
    });
    captures.sort();
    assert!(captures.len() > 50);
    for capture in captures {
        fs::copy(&capture, folder.path().join("some.pcap")).expect("copied");
        let summary = run_chain(folder.path(), &chain, &["a.json", "b.json", "c.json"]);
        for (function, blocked) in blocked.iter_mut().enumerate() {
            *blocked += summary["functions"][function]["blocked"].as_u64().unwrap_or(0);
        }
    }
    // Of a flow that is dropped one is enough.
    assert!(
        blocked[0] > 100 && blocked[1] >= blocked[0] && (50..blocked[1]).contains(&blocked[2]),
        "{blocked:?}"
    );
}
