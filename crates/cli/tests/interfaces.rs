//! Rules for packets of some interfaces only, those that a pcapng file names, and of some states of connections.

#![allow(missing_docs)]

mod support;

use std::fs;
use std::path::Path;

use support::{json, packetloom, packets, run, stderr, succeed};

/// A block of a pcapng file: its type, and its body padded to 32 bits.
fn block(kind: u32, mut body: Vec<u8>) -> Vec<u8> {
    body.resize(body.len().next_multiple_of(4), 0);
    let len = (body.len() as u32 + 12).to_le_bytes();
    [&kind.to_le_bytes()[..], &len, &body, &len].concat()
}

/// A section with interfaces of these names, Ethernet all, and packets that came by them: the number of the interface, and the packet as
/// `packets.rs` has it.
fn section(names: &[Option<&str>], lines: &[(u32, &str)]) -> Vec<u8> {
    let header = [&0x1a2b_3c4du32.to_le_bytes()[..], &[1, 0, 0, 0], &[0xff; 8]].concat();
    let mut bytes = block(0x0a0d_0d0a, header);
    for name in names {
        let mut body = [1, 0, 0, 0, 0, 0, 0, 0].to_vec();
        if let Some(name) = name {
            body.extend([2, 0]);
            body.extend((name.len() as u16).to_le_bytes());
            body.extend(name.bytes());
            body.resize(body.len().next_multiple_of(4), 0);
            body.extend([0; 4]);
        }
        bytes.extend(block(1, body));
    }
    for (interface, line) in lines {
        let packet = packets::packet(line);
        let len = packet.bytes.len() as u32;
        let mut body = Vec::new();
        for word in [*interface, 0, packet.micros as u32, len, len] {
            body.extend(word.to_le_bytes());
        }
        body.extend(packet.bytes);
        bytes.extend(block(6, body));
    }
    bytes
}

const FROM: &str = "0.1 udp 10.0.0.1:1000 > 192.0.2.1:53";
const TO: &str = "0.1 udp 192.0.2.1:53 > 10.0.0.1:1000";

/// The numbers of the packets that pass, by every way to judge them; all packets have lengths of their own.
fn passed(folder: &Path, chain: &str, capture: &[u8]) -> Vec<usize> {
    fs::write(folder.join("in.pcapng"), capture).expect("written");
    let mut results = Vec::new();
    for way in [
        "device = \"oracle\"",
        "device = \"cpu\"",
        "device = \"cpu\"\nbatch = 1",
        "device = \"cpu\"\nbatch = 3\nworkers = 2",
        "device = \"cpu\"\nworkers = 7",
        "device = \"host\"",
    ] {
        fs::write(folder.join("chain.toml"), format!("{chain}\n[run]\n{way}\n")).expect("written");
        let mut command = packetloom();
        command.current_dir(folder).args(["run", "chain.toml", "-r", "in.pcapng"]);
        succeed(command.args(["-w", "passed.pcap", "--summary", "summary.json"]));
        let summary = json(&folder.join("summary.json"));
        let passed = fs::read(folder.join("passed.pcap")).expect("a capture");
        results.push((way, support::frames(&passed), summary));
    }
    let (_, frames, summary) = results.remove(0);
    for (way, others, other) in results {
        assert_eq!(others, frames, "{way}");
        assert_eq!(other, summary, "{way}");
    }
    frames.iter().map(Vec::len).collect()
}

/// Acls over `rules`, by every classifier.
fn chains() -> impl Iterator<Item = String> {
    let classifiers = ["linear", "tuple-space", "tuple-merge", "hybrid"];
    classifiers.into_iter().map(|classifier| {
        format!("[[chain]]\nnf = \"acl\"\nrules = \"rules\"\nclassifier = \"{classifier}\"\n")
    })
}

/// Payloads tell packets apart by their length.
fn numbered(lines: &[(u32, &str)]) -> Vec<(u32, String)> {
    lines.iter().enumerate().map(|(at, (port, line))| (*port, format!("{line} payload {at}"))).collect()
}

#[test]
fn rules_are_for_packets_of_their_interfaces() {
    let folder = tempfile::tempdir().expect("a folder");
    let rules = "\
deny udp from any to any in eth1
permit udp from any to any port 53 in eth+,!eth2
permit udp from any port 53 to any in !eth0,!eth1
deny any from any to any
";
    fs::write(folder.path().join("rules"), rules).expect("written");
    let lines = numbered(&[
        (0, FROM), // eth0: line 2
        (1, FROM), // eth1: line 1
        (2, FROM), // eth2: line 4
        (3, FROM), // without a name: line 4
        (0, TO),   // line 4
        (2, TO),   // line 3
        (3, TO),   // line 3
        (4, TO),   // of an interface that is not there: malformed
    ]);
    let lines: Vec<_> = lines.iter().map(|(port, line)| (*port, &**line)).collect();
    // What interfaces are called is another matter in another section.
    let others = numbered(&[(0, FROM), (1, FROM), (0, TO), (1, TO)]);
    let others: Vec<_> = others.iter().map(|(port, line)| (*port, &**line)).collect();
    let capture = [
        section(&[Some("eth0"), Some("eth1"), Some("eth2"), None], &lines),
        section(&[Some("eth1"), Some("eth0")], &others),
        section(&[None], &others[..1]),
    ]
    .concat();
    for chain in chains() {
        let udp = 42;
        let expected: Vec<_> = [0, 5, 6].into_iter().chain([1]).map(|number| udp + number).collect();
        assert_eq!(passed(folder.path(), &chain, &capture), expected, "{chain}");
    }
    let summary = json(&folder.path().join("summary.json"));
    let hits = summary["functions"][0]["hits"].as_array().expect("hits");
    let hits: Vec<_> = hits.iter().map(|hit| (hit["line"].clone(), hit["packets"].clone())).collect();
    assert_eq!(hits, [(1, 3), (2, 2), (3, 2), (4, 5)].map(|(line, packets)| (line.into(), packets.into())));
}

/// Random lists and packets: what is found by interface is what the oracle finds, rule by rule.
#[test]
fn random_lists_are_judged_as_the_oracle_does() {
    let mut state = 0x1234_5678_9abc_def0u64;
    let mut below = |most: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % most
    };
    let sets = ["eth0", "eth1", "!eth0", "eth+", "eth+,!eth1", "any,!eth+,eth1", "wan", "!wan,!eth2"];
    for round in 0..packetloom_testing::amount(6, 30) {
        let mut rules = String::new();
        for _ in 0..=below(40) {
            let action = ["permit", "deny"][below(2) as usize];
            let protocol = ["udp", "any"][below(2) as usize];
            let mut rule = format!("{action} {protocol} from 10.0.0.{}/31 to any", below(4) * 2);
            if protocol == "udp" && below(2) == 0 {
                rule += &format!(" port {}-{}", below(3), 3 + below(3));
            }
            if below(3) > 0 {
                rule += &format!(" in {}", sets[below(sets.len() as u64) as usize]);
            }
            rules += &(rule + "\n");
        }
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("rules"), &rules).expect("written");
        let mut capture = Vec::new();
        for _ in 0..3 {
            let all = [Some("eth0"), Some("eth1"), Some("eth2"), Some("wan"), None];
            let names: Vec<_> = (0..4).map(|_| all[below(5) as usize]).collect();
            let lines: Vec<_> = (0..150)
                .map(|number| {
                    let (source, port) = (below(8), below(7));
                    let line =
                        format!("0.{number:03} udp 10.0.0.{source}:9 > 192.0.2.1:{port} payload {number}");
                    (below(4) as u32, line)
                })
                .collect();
            let lines: Vec<_> = lines.iter().map(|(port, line)| (*port, &**line)).collect();
            capture.extend(section(&names, &lines));
        }
        let results: Vec<_> = chains().map(|chain| passed(folder.path(), &chain, &capture)).collect();
        assert!(results.iter().all(|result| *result == results[0]), "round {round}: {rules}");
    }
}

/// Both directions of a flow come by interfaces of their own, and are one flow all the same.
#[test]
fn interfaces_take_no_part_in_flows() {
    let folder = tempfile::tempdir().expect("a folder");
    let rules = "\
permit udp from any to any port 53 in inside
reflect tcp from any to any port 80 in inside
deny any from any to any in inside
permit udp from any port 53 to any
";
    fs::write(folder.path().join("rules"), rules).expect("written");
    let lines = [
        (0, FROM),
        (1, TO),
        (0, "0.2 tcp 10.0.0.1:1000 > 192.0.2.1:80 flags S"),
        (1, "0.2 tcp 192.0.2.1:80 > 10.0.0.1:1000 flags SA"),
        (0, "0.2 tcp 10.0.0.1:1000 > 192.0.2.1:80 flags A"),
        // Nobody inside asked for this.
        (1, "0.3 tcp 192.0.2.1:80 > 10.0.0.1:1001 flags SA"),
        (1, "0.3 tcp 192.0.2.9:1 > 10.0.0.1:80 flags S"),
    ];
    let capture = section(&[Some("inside"), Some("outside")], &lines);
    let chain = "[[chain]]\nnf = \"acl\"\nrules = \"rules\"\n[[chain]]\nnf = \"conntrack\"\n\
                 [[chain]]\nnf = \"meter\"\nmax_flows = 1000\n";
    assert_eq!(passed(folder.path(), chain, &capture).len(), 5);
    let summary = json(&folder.path().join("summary.json"));
    assert_eq!(
        summary["functions"][1]["connections"]["udp"],
        serde_json::json!({ "opened": 1, "replied": 1 })
    );
    assert_eq!(summary["functions"][1]["connections"]["tcp"]["established"], 1);
    assert_eq!(summary["functions"][2]["biflows"], 2);
}

fn write(folder: &Path, name: &str, text: &str) -> String {
    fs::write(folder.join(name), text).expect("written");
    folder.join(name).display().to_string()
}

#[test]
fn lists_are_asked_about_an_interface() {
    let folder = tempfile::tempdir().expect("a folder");
    let rules = "permit tcp from any to any port 22 in mgmt\ndeny tcp from any to any port 22\ndeny tcp from any to any in mgmt\n";
    let rules = write(folder.path(), "rules", rules);
    let packet = "tcp 203.0.113.9:4711 > 192.0.2.80:22";
    let explain = |more: &[&str]| {
        let output = run(packetloom().args(["acl", "explain", &rules, "--packet", packet]).args(more));
        (String::from_utf8(output.stdout.clone()).expect("text"), stderr(&output))
    };
    let (text, said) = explain(&["--in", "mgmt"]);
    assert!(text.contains("permit\n    by   line 1: permit tcp from any to any port 22 in mgmt"), "{text}");
    assert!(said.contains("about packets of mgmt"), "{said}");
    let (text, said) = explain(&[]);
    assert!(text.contains("deny\n    by   line 2"), "{text}");
    assert!(said.contains("2 rules for some interfaces only"), "{said}");
    // A rule for one interface shadows none for others, and is shadowed there.
    let check = |more: &[&str]| succeed(packetloom().args(["acl", "check", &rules]).args(more));
    let text = check(&["--in", "mgmt"]);
    assert!(text.contains("rules:2: shadowed"), "{text}");
    assert!(!check(&["--in", "lan"]).contains("shadowed"));
    // Positions are those of the whole list.
    let headers = write(folder.path(), "headers", &format!("{packet}\ntcp 1.1.1.1:1 > 1.1.1.2:2\n"));
    let classify = |more: &[&str]| {
        succeed(packetloom().args(["acl", "classify", "--rules", &rules, "--headers", &headers]).args(more))
    };
    assert_eq!(classify(&["--in", "mgmt"]), "0\n2\n");
    assert_eq!(classify(&[]), "1\n-1\n");
}

const IPTABLES: &str = "\
*filter
:INPUT DROP [0:0]
:LAN - [0:0]
-A INPUT -i lo -j ACCEPT
-A INPUT -i eth+ -j LAN
-A INPUT ! -i eth0 -p tcp -m tcp --dport 443 -j ACCEPT
-A LAN -p udp -m udp --dport 53 -j ACCEPT
-A LAN -i eth1 -p tcp -m tcp --dport 22 -j ACCEPT
COMMIT
";

#[test]
fn interfaces_of_other_formats_are_kept() {
    let folder = tempfile::tempdir().expect("a folder");
    let iptables = write(folder.path(), "save", IPTABLES);
    let convert = |from: &str, to: &str| {
        succeed(packetloom().args(["acl", "convert", from, "--to", to, "--list", "INPUT"]))
    };
    let native = convert(&iptables, "native");
    let expected = "\
permit any from 0.0.0.0/0 to 0.0.0.0/0 in lo
permit udp from 0.0.0.0/0 to 0.0.0.0/0 port 53 fragment not-later in eth+
permit tcp from 0.0.0.0/0 to 0.0.0.0/0 port 22 fragment not-later in eth1
permit tcp from 0.0.0.0/0 to 0.0.0.0/0 port 443 fragment not-later in !eth0
default deny
";
    let plain = native.replace(" fragment not-later", "");
    assert_eq!(plain, expected.replace(" fragment not-later", ""));
    // There and back again, by both formats that know of interfaces.
    let native = write(folder.path(), "native", &native);
    for format in ["iptables", "nftables"] {
        let text = succeed(packetloom().args(["acl", "convert", &native, "--to", format]));
        let other = write(folder.path(), format, &text);
        let mut back = packetloom();
        back.args(["acl", "convert", &other, "--to", "native"]);
        let back = succeed(&mut back).replace(" fragment not-later", "");
        assert_eq!(back, expected.replace(" fragment not-later", ""), "{format}: {text}");
    }
    // What cannot say it refuses, and never widens.
    for format in ["cisco-ios", "vpp", "flowspec", "exabgp"] {
        let output = run(packetloom().args(["acl", "convert", &native, "--to", format]));
        assert_eq!((output.status.code(), output.stdout.len()), (Some(65), 0), "{format}");
        assert!(stderr(&output).contains("where no rule names interfaces"), "{}", stderr(&output));
    }
    let output = run(packetloom().args([
        "acl",
        "convert",
        "--to",
        "native",
        &write(folder.path(), "out", &IPTABLES.replace("-i lo", "-o lo")),
    ]));
    assert!(stderr(&output).contains("`-o lo` has no equal here"), "{}", stderr(&output));
}

#[test]
fn what_is_wrong_with_interfaces_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    for (rule, expected) in [
        ("permit any from any to any in", "expected an interface"),
        ("permit any from any to any in eth0,eth0", "stands twice"),
        ("permit any from any to any in a-name-that-is-too-long", "up to 15"),
        ("permit any from any to any in !any", "are none"),
        ("permit any from any to any in eth0 in eth1", "stands twice"),
    ] {
        let rules = write(folder.path(), "rules", &format!("{rule}\n"));
        let output = run(packetloom().args(["acl", "check", &rules]));
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(78), "{rule}: {text}");
        assert!(text.contains("rules:1:") && text.contains(expected), "{rule}: {text}");
    }
    // Rules that change do not name interfaces.
    write(folder.path(), "rules", "permit any from any to any in eth0\n");
    write(folder.path(), "changes", "at 1\nadd permit any from any to any\ncommit\n");
    write(folder.path(), "chain.toml", "[[chain]]\nnf = \"acl\"\nrules = \"rules\"\n");
    write(folder.path(), "in.pcap", "");
    fs::write(folder.path().join("in.pcap"), packets::pcap(FROM)).expect("written");
    let mut command = packetloom();
    command.current_dir(folder.path()).args([
        "run",
        "chain.toml",
        "-r",
        "in.pcap",
        "--rules-changes",
        "changes",
    ]);
    let output = run(&mut command);
    assert_eq!(output.status.code(), Some(78), "{}", stderr(&output));
    assert!(stderr(&output).contains("rules that change"), "{}", stderr(&output));
}

/// A summary's counts of packets by state.
fn tracked(summary: &serde_json::Value) -> Vec<u64> {
    let tracked = &summary["functions"][0]["tracked"];
    let names = ["new", "established", "related", "invalid", "untracked", "connections"];
    names.map(|name| tracked[name].as_u64().expect("a count")).to_vec()
}

#[test]
fn rules_are_for_packets_of_their_states() {
    let folder = tempfile::tempdir().expect("a folder");
    let rules = "\
permit any from any to any state established,related
permit any from any to any state new in eth0
permit any from any to any state new in eth1 out eth0 # nothing leaves in a capture
deny any from any to any state invalid
permit any from any to any state untracked in eth0
";
    write(folder.path(), "rules", rules);
    let lines = [
        (0, "0.1 tcp 10.0.0.1:1000 > 192.0.2.1:80 flags S"),
        (1, "0.2 tcp 192.0.2.1:80 > 10.0.0.1:1000 flags SA"),
        (0, "0.3 tcp 10.0.0.1:1000 > 192.0.2.1:80 flags A"),
        // Of no connection.
        (1, "0.4 tcp 192.0.2.1:80 > 10.0.0.2:1000 flags SA"),
        // New until it is answered.
        (0, "0.5 udp 10.0.0.1:1 > 192.0.2.1:53"),
        (0, "0.6 udp 10.0.0.1:1 > 192.0.2.1:53"),
        (1, "0.7 udp 192.0.2.1:53 > 10.0.0.1:1"),
        (1, "0.8 icmp 192.0.2.9 > 10.0.0.1 type 3 code 1 quote 28 udp 10.0.0.1:1 > 192.0.2.1:53"),
        // From outside, which begins nothing: so nothing answers it.
        (1, "0.9 udp 192.0.2.1:9 > 10.0.0.1:9"),
        (0, "1.0 udp 10.0.0.1:9 > 192.0.2.1:9"),
        (0, "1.1 udp 10.0.0.1 > 192.0.2.1 fragment 1480"),
        (1, "1.2 udp 192.0.2.1 > 10.0.0.1 fragment 1480"),
    ];
    let capture = section(&[Some("eth0"), Some("eth1")], &lines);
    for chain in chains() {
        assert_eq!(passed(folder.path(), &chain, &capture).len(), 9, "{chain}");
        assert_eq!(tracked(&json(&folder.path().join("summary.json"))), [5, 3, 1, 1, 2, 3], "{chain}");
    }
    // Where there is no room, packets are untracked: of these flows the first alone is known.
    let chain = "[flows.few]\nby = \"connection\"\nmax_flows = 1\nwhen_full = \"pass-new\"\n[[chain]]\nnf = \"acl\"\nrules = \"rules\"\nflows = \"few\"\n";
    let mut command = packetloom();
    write(folder.path(), "chain.toml", chain);
    command.current_dir(folder.path()).args([
        "run",
        "chain.toml",
        "-r",
        "in.pcapng",
        "--summary",
        "summary.json",
    ]);
    succeed(&mut command);
    assert_eq!(tracked(&json(&folder.path().join("summary.json")))[4..], [8, 1]);
}

/// Both cannot be: a rule that admits a connection has its packets pass before rules ask for their state.
#[test]
fn a_list_has_states_or_reflects() {
    let folder = tempfile::tempdir().expect("a folder");
    write(folder.path(), "rules", "permit any from any to any state new\nreflect any from any to any\n");
    write(folder.path(), "chain.toml", "[[chain]]\nnf = \"acl\"\nrules = \"rules\"\n");
    let output = run(packetloom().current_dir(folder.path()).args(["check", "chain.toml"]));
    assert_eq!(output.status.code(), Some(78));
    assert!(
        stderr(&output).contains("rules:2: \"reflect\", and \"state\" in line 1; expected one of both"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn tools_ask_about_one_state() {
    let folder = tempfile::tempdir().expect("a folder");
    let rules = "\
permit tcp from any to any state established,related
deny tcp from any to any port 22 state new
permit tcp from any to any port 22 out wan
";
    let rules = write(folder.path(), "rules", rules);
    let packet = "tcp 10.0.0.1:1 > 192.0.2.1:22 flags A";
    let explain = |more: &[&str]| {
        let output = run(packetloom().args(["acl", "explain", &rules, "--packet", packet]).args(more));
        (String::from_utf8(output.stdout.clone()).expect("text"), stderr(&output))
    };
    for (more, decision, said) in [
        (&[][..], "deny\n    by   line 2", "that are new (--state STATE asks about others)"),
        (&["--state", "established"], "permit\n    by   line 1", "packets that are established\n"),
        (&["--state", "invalid"], "deny\n    by   the default", "that leave by none, as those of captures"),
        (&["--state", "invalid", "--out", "wan"], "permit\n    by   line 3", "packets that leave by wan\n"),
    ] {
        let (text, told) = explain(more);
        assert!(text.contains(decision), "{more:?}: {text}");
        assert!(told.contains(said), "{more:?}: {told}");
    }
    assert!(
        explain(&["--state", "old"]).1.contains("expected new, established, related, invalid or untracked")
    );
    // Rules of different states shadow each other in none.
    for (state, found) in [("new", true), ("established", true), ("invalid", false)] {
        let text = succeed(packetloom().args(["acl", "check", &rules, "--out", "wan", "--state", state]));
        assert_eq!(text.contains("rules:3:"), found, "{state}: {text}");
    }
    // What cannot say it refuses.
    for (format, reason) in [
        ("cisco-ios", "states of connections"),
        ("vpp", "states of connections"),
        ("exabgp", "states of connections"),
    ] {
        let output = run(packetloom().args(["acl", "convert", &rules, "--to", format]));
        assert_eq!(output.status.code(), Some(65), "{format}");
        assert!(stderr(&output).contains(reason), "{}", stderr(&output));
    }
    for format in ["iptables", "nftables"] {
        let v4 =
            fs::read_to_string(&rules).expect("rules").replace("from any to any", "from 0.0.0.0/0 to any");
        let v4 = write(folder.path(), "v4", &v4);
        let text = succeed(packetloom().args(["acl", "convert", &v4, "--to", format]));
        let other = write(folder.path(), format, &text);
        let back = succeed(packetloom().args(["acl", "convert", &other, "--to", "native"]));
        let expected = "\
permit tcp from 0.0.0.0/0 to 0.0.0.0/0 state established,related
deny tcp from 0.0.0.0/0 to 0.0.0.0/0 port 22 state new
permit tcp from 0.0.0.0/0 to 0.0.0.0/0 port 22 out wan
default deny
";
        assert_eq!(back, expected, "{format}: {text}");
    }
}

/// A file as real firewalls have it, over a capture of real programs, by every way to judge it.
#[test]
fn a_stateful_firewall_over_a_capture() {
    let folder = tempfile::tempdir().expect("a folder");
    let save = "\
*nat
:PREROUTING ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
-A POSTROUTING -o wan0 -j MASQUERADE
COMMIT
*filter
:INPUT ACCEPT [0:0]
:FORWARD DROP [0:0]
:lan - [0:0]
-A FORWARD -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT
-A FORWARD -m conntrack --ctstate INVALID -j DROP
-A FORWARD ! -o lan0 -s 192.0.2.0/24 -m state --state NEW -j lan
-A lan -p tcp -m multiport --dports 22,80,443 -j ACCEPT
-A lan -p udp -m udp --dport 53 -j ACCEPT
-A lan -p icmp -m icmp --icmp-type 8 -j ACCEPT
COMMIT
";
    write(folder.path(), "save", save);
    let capture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/edge/edge.pcap");
    let mut results = Vec::new();
    for way in [
        "device = \"oracle\"",
        "",
        "batch = 1",
        "workers = 2",
        "workers = 7\nbatch = 64",
        "device = \"host\"",
    ] {
        write(
            folder.path(),
            "chain.toml",
            &format!("[[chain]]\nnf = \"acl\"\nrules = \"save\"\n[run]\n{way}\n"),
        );
        let mut command = packetloom();
        command.current_dir(folder.path()).args([
            "run",
            "chain.toml",
            "-w",
            "passed.pcap",
            "--summary",
            "summary.json",
            "-r",
        ]);
        succeed(command.arg(&capture));
        let passed = fs::read(folder.path().join("passed.pcap")).expect("a capture");
        results.push((way, passed, json(&folder.path().join("summary.json"))));
    }
    let (_, passed, summary) = results.remove(0);
    assert!(tracked(&summary).iter().take(3).all(|&count| count > 0), "{summary:#}");
    assert!(summary["passed"].as_u64() > Some(1000), "{summary:#}");
    for (way, other, counts) in results {
        assert!(other == passed && counts == summary, "{way}: {counts:#}\n{summary:#}");
    }
    // The table that is left out is named, and is no loss.
    let output =
        run(packetloom().current_dir(folder.path()).args(["acl", "convert", "save", "--to", "native"]));
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(stderr(&output), "packetloom: save:1: table nat with 1 rule is not part of the list\n");
}
