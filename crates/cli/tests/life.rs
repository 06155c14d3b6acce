//! The life of state through the command line: runs that go on from a file, and chains that change on the way.

#![allow(missing_docs)]

mod support;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use support::{json, packetloom, packets, stderr, succeed};
use tempfile::TempDir;

const PACKETS: &str = "\
0.0 tcp 10.0.0.1:1000 > 192.0.2.1:80
0.1 tcp 10.0.0.2:1000 > 192.0.2.1:80
0.2 tcp 10.0.0.1:1000 > 192.0.2.1:80
0.3 tcp 10.0.0.3:1000 > 192.0.2.1:80
0.4 tcp 10.0.0.1:1000 > 192.0.2.1:80
0.5 tcp 10.0.0.2:1000 > 192.0.2.1:80
";

/// With a small table: a device goes through all of it at the end.
fn balancer(backend: &str) -> String {
    format!(
        "[flows.5-tuple]\nby = \"5-tuple\"\nmax_flows = 4000\n\
         [[chain]]\nnf = \"counter\"\n[[chain]]\nnf = \"balancer\"\n[[chain.services]]\naddress = \"192.0.2.1\"\n\
         backends = [{{ address = \"{backend}\" }}]\n"
    )
}

struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        let folder = Self(tempfile::tempdir().expect("a folder"));
        folder.write("all.pcap", packets::pcap(PACKETS));
        folder
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, bytes: impl AsRef<[u8]>) {
        fs::write(self.at(name), bytes).expect("written");
    }

    fn run(&self, chain: &str, more: &[&str]) -> Command {
        let mut command = packetloom();
        command.current_dir(self.0.path()).args(["run", chain, "--summary", "summary.json"]).args(more);
        // With compiled kernels kept below the target folder.
        command.env("XDG_CACHE_HOME", env!("CARGO_TARGET_TMPDIR"));
        command
    }

    fn summary(&self) -> serde_json::Value {
        json(&self.at("summary.json"))
    }
}

fn fail(command: &mut Command, code: i32) -> String {
    let output: Output = support::run(command);
    assert_eq!(output.status.code(), Some(code), "{command:?}: {}", stderr(&output));
    stderr(&output)
}

/// The last byte of each packet's destination in a capture of TCP packets.
fn destinations(path: &Path) -> Vec<u8> {
    let file = fs::read(path).expect("a capture");
    let mut at = 24;
    let mut found = Vec::new();
    while at < file.len() {
        found.push(file[at + 16 + 33]);
        at += 16 + u32::from_le_bytes(file[at + 8..at + 12].try_into().expect("four bytes")) as usize;
    }
    found
}

/// By hand: the flows of 10.0.0.1 and 10.0.0.2 chose the old backend, 7; that of 10.0.0.3 comes after the reload and gets 8.
#[test]
fn flows_keep_a_backend_that_is_listed_no_more() {
    let folder = Folder::new();
    folder.write("old.toml", balancer("198.51.100.7"));
    folder.write("new.toml", balancer("198.51.100.8"));
    for device in ["cpu", "oracle", "host"] {
        for workers in ["1", "2"] {
            let more = [
                "-r",
                "all.pcap",
                "-w",
                "out.pcap",
                "--device",
                device,
                "--workers",
                workers,
                "--reload-at",
                "2=new.toml",
            ];
            succeed(&mut folder.run("old.toml", &more));
            assert_eq!(destinations(&folder.at("out.pcap")), [7, 7, 7, 8, 7, 7]);
            let summary = folder.summary();
            let backend = |name: &str, packets: u64, flows: u64| serde_json::json!({ "backend": name, "packets": packets, "bytes": packets * 40, "flows": flows });
            let gone = "198.51.100.7 of 192.0.2.1, listed no more";
            assert_eq!(
                summary["functions"][1]["backends"],
                serde_json::json!([backend("198.51.100.8 of 192.0.2.1", 1, 1), backend(gone, 3, 0)]),
                "{summary}"
            );
            let old = &summary["replaced"][0];
            assert_eq!((&old["nf"], &old["until_packet"]), (&"balancer".into(), &2.into()));
            assert_eq!(old["backends"], serde_json::json!([backend("198.51.100.7 of 192.0.2.1", 2, 2)]));
            // The counter is as it was, so it goes on counting.
            assert_eq!(summary["functions"][0]["packets"], 6);
            assert_eq!(summary["functions"][0]["top"][0]["packets"], 3);
            assert_eq!(summary["flows"]["5-tuple"]["created"], 3);
            assert_eq!(summary["reloads"], serde_json::json!({ "done": 1, "refused": 0 }));
        }
    }
}

/// What a backend answers to a flow that it has kept comes from the service, whatever list there is by then.
#[test]
fn answers_of_a_backend_that_is_listed_no_more_are_returned() {
    let folder = Folder::new();
    folder.write(
        "answers.pcap",
        packets::pcap(
            "\
0.0 tcp 10.0.0.1:1000 > 192.0.2.1:80
0.1 tcp 198.51.100.7:80 > 10.0.0.1:1000
0.2 tcp 198.51.100.9:80 > 10.0.0.1:1000
",
        ),
    );
    let returning = |backend: &str| {
        balancer(backend).replace("nf = \"balancer\"\n", "nf = \"balancer\"\nreturns = true\n")
    };
    folder.write("old.toml", returning("198.51.100.7"));
    folder.write("new.toml", returning("198.51.100.8"));
    for device in ["cpu", "oracle", "host"] {
        let more = ["-r", "answers.pcap", "-w", "out.pcap", "--device", device, "--reload-at", "1=new.toml"];
        succeed(&mut folder.run("old.toml", &more));
        let file = fs::read(folder.at("out.pcap")).expect("a capture");
        let frames = file[24..].chunks(16 + 54);
        let sources: Vec<_> = frames.map(|frame| frame[16 + 26..][..4].to_vec()).collect();
        assert_eq!(sources, [[10, 0, 0, 1], [192, 0, 2, 1], [198, 51, 100, 9]], "{device}");
        let backends = &folder.summary()["functions"][1]["backends"];
        let returned = |backend: usize| backends[backend]["returned"]["packets"].as_u64();
        assert_eq!((returned(0), returned(1)), (Some(0), Some(1)), "{backends}");
    }
}

/// By hand: the bucket of 10.0.0.1 holds 9 packets after its first one; from the reload on it holds 1, which the one at 0.2 takes. At 0.4
/// there are 0.2, and 0.4 at 0.5 in that of 10.0.0.2.
#[test]
fn a_bucket_holds_no_more_than_its_new_burst() {
    let folder = Folder::new();
    let limiter = |burst: &str| {
        format!(
            "[flows.source]\nby = \"source\"\nmax_flows = 4000\n\
             [[chain]]\nnf = \"limiter\"\nrate = \"1packets/s\"\nburst = \"{burst}\"\nflows = \"source\"\n"
        )
    };
    folder.write("large.toml", limiter("10packets"));
    folder.write("small.toml", limiter("1packets"));
    for device in ["cpu", "oracle", "host"] {
        succeed(
            &mut folder
                .run("large.toml", &["-r", "all.pcap", "--device", device, "--reload-at", "1=small.toml"]),
        );
        let summary = folder.summary();
        assert_eq!((&summary["passed"], &summary["dropped"]["rate_limit"]), (&4.into(), &2.into()));
        let counted = |limiter: &serde_json::Value| {
            ["passed", "dropped"].map(|what| limiter[what]["packets"].as_u64().expect("a number"))
        };
        assert_eq!(counted(&summary["functions"][0]), [3, 2]);
        assert_eq!(counted(&summary["replaced"][0]), [1, 0]);
    }
}

/// What a balancer chose over two runs, whose second one has another list and another number of workers.
#[test]
fn a_run_goes_on_from_a_file() {
    let folder = Folder::new();
    folder.write("old.toml", balancer("198.51.100.7"));
    folder.write("new.toml", balancer("198.51.100.8"));
    let rest: Vec<_> = PACKETS.lines().skip(2).collect();
    folder.write("rest.pcap", packets::pcap(&rest.join("\n")));
    let mut files = Vec::new();
    for device in ["oracle", "cpu", "host"] {
        let more = ["-r", "all.pcap", "-c", "2", "--device", device, "--save-state", "state"];
        succeed(&mut folder.run("old.toml", &more));
        files.push(fs::read(folder.at("state")).expect("a state"));
        for workers in ["1", "2", "7"] {
            let more = [
                "-r",
                "rest.pcap",
                "-w",
                "out.pcap",
                "--device",
                device,
                "--workers",
                workers,
                "--restore-state",
                "state",
            ];
            succeed(&mut folder.run("new.toml", &more));
            assert_eq!(destinations(&folder.at("out.pcap")), [7, 8, 7, 7]);
            let summary = folder.summary();
            // A run counts its own packets; what is kept for a flow goes on.
            assert_eq!(summary["functions"][0]["packets"], 4);
            assert_eq!(summary["functions"][0]["top"][0]["packets"], 3);
            assert_eq!(summary["flows"]["5-tuple"]["created"], 1);
        }
    }
    assert!(files[0] == files[1] && files[1] == files[2], "the same state is the same bytes");
    let text = succeed(packetloom().arg("state").arg(folder.at("state")));
    assert!(text.contains("flows \"5-tuple\" by 5-tuple") && text.contains("2 of IPv4, 0 of IPv6"), "{text}");
    assert!(text.contains("balancer 1 ") && text.contains("of 2 flows, 8 bytes each"), "{text}");
    let shown = succeed(packetloom().arg("state").arg("--json").arg(folder.at("state")));
    let shown: serde_json::Value = serde_json::from_str(&shown).expect("JSON");
    assert_eq!(
        (&shown["version"], &shown["packets"], &shown["nanoseconds"]),
        (&2.into(), &2.into(), &100_000_000.into())
    );
    let legend = &shown["definitions"][0]["functions"][1]["legend"][0];
    assert_eq!(legend["address"], "198.51.100.7");
    assert_eq!(legend["service"]["address"], "192.0.2.1");
}

/// A meter's records go on over files, however many workers there are, and over a reload that changes its keys.
#[test]
fn a_meters_records_go_on() {
    let folder = Folder::new();
    let meter = |more: &str| {
        format!("[[chain]]\nnf = \"meter\"\nidle_timeout = \"350ms\"\n{more}output = \"flows\"\n")
    };
    folder.write("chain.toml", meter(""));
    folder.write("all-framings.toml", meter("framings = \"all\"\n"));
    folder.write("counter.toml", "[[chain]]\nnf = \"counter\"\n");
    let rest: Vec<_> = PACKETS.lines().skip(4).collect();
    folder.write("rest.pcap", packets::pcap(&rest.join("\n")));
    let records = || fs::read_to_string(folder.at("flows")).expect("records");
    let sorted = |text: &str| {
        let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
        lines.sort_unstable();
        lines
    };
    succeed(&mut folder.run("chain.toml", &["-r", "all.pcap"]));
    let whole = records();
    // One was silent for too long, and is two.
    assert_eq!(whole.lines().count(), 4, "{whole}");
    for (before, after) in [("1", "1"), ("1", "7"), ("7", "2")] {
        let more = ["-r", "all.pcap", "-c", "4", "--workers", before, "--save-state", "state"];
        succeed(&mut folder.run("chain.toml", &more));
        assert_eq!(records(), "");
        let more = ["-r", "rest.pcap", "--workers", after, "--restore-state", "state"];
        succeed(&mut folder.run("chain.toml", &more));
        assert_eq!(sorted(&records()), sorted(&whole), "{before} {after}");
        if after == "1" {
            assert_eq!(records(), whole, "in order");
        }
    }
    let text = succeed(packetloom().arg("state").arg(folder.at("state")));
    assert!(
        text.contains("flows \"meter 1\" by 5-tuple") && text.contains("of 3 flows, 72 bytes each"),
        "{text}"
    );
    succeed(&mut folder.run("chain.toml", &["-r", "all.pcap", "--reload-at", "4=all-framings.toml"]));
    assert_eq!(sorted(&records()), sorted(&whole));
    let summary = folder.summary();
    assert_eq!(summary["replaced"][0]["counted_packets"], 4);
    assert_eq!(
        (&summary["functions"][0]["counted_packets"], &summary["functions"][0]["biflows"]),
        (&2.into(), &4.into())
    );
    // Without a meter, nobody goes on with them.
    let output = folder
        .run("counter.toml", &["-r", "rest.pcap", "--restore-state", "state"])
        .output()
        .expect("it runs");
    assert!(
        stderr(&output).contains("flows \"meter 1\": no function keeps state for them now"),
        "{output:?}"
    );
    succeed(&mut folder.run("chain.toml", &["-r", "all.pcap", "--reload-at", "4=counter.toml"]));
    assert_eq!(records().lines().count(), 3);
}

#[test]
fn bad_state_is_78_and_says_why() {
    let folder = Folder::new();
    folder.write("chain.toml", balancer("198.51.100.7"));
    succeed(&mut folder.run("chain.toml", &["-r", "all.pcap", "--save-state", "state"]));
    let good = fs::read(folder.at("state")).expect("a state");
    let mut changed = good.clone();
    changed[40] ^= 1;
    let mut other = good.clone();
    other[8] = 3;
    for (bytes, why) in [
        (&good[..good.len() - 9], "cut or changed: its checksum is"),
        (&good[..13], "cut before its end"),
        (&changed, "cut or changed: its checksum is"),
        (&other, "state of version 3; expected version 1 or 2"),
        (&b""[..], "no state; expected a file that --save-state wrote"),
        (&packets::pcap(PACKETS), "no state; expected a file that --save-state wrote"),
    ] {
        folder.write("bad", bytes);
        for mut command in [folder.run("chain.toml", &["-r", "all.pcap", "--restore-state", "bad"]), {
            let mut command = packetloom();
            command.current_dir(folder.0.path()).args(["state", "bad"]);
            command
        }] {
            let said = fail(&mut command, 78);
            assert!(said.contains("bad: ") && said.contains(why), "{said}");
        }
    }
    let said = fail(&mut folder.run("chain.toml", &["-r", "all.pcap", "--restore-state", "none"]), 1);
    assert!(said.contains("none: No such file"), "{said}");
    // Flows by something else, and a function whose words mean something else: left out, and said.
    folder.write(
        "by.toml",
        "[flows.5-tuple]\nby = \"source\"\n[[chain]]\nnf = \"counter\"\nflows = \"5-tuple\"\n",
    );
    let output = support::run(&mut folder.run("by.toml", &["-r", "all.pcap", "--restore-state", "state"]));
    assert_eq!(output.status.code(), Some(0));
    assert!(
        stderr(&output).contains("flows \"5-tuple\": were by 5-tuple, are by source now"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn a_file_appears_when_it_is_whole_and_not_where_a_run_fails() {
    let folder = Folder::new();
    folder.write("chain.toml", balancer("198.51.100.7"));
    folder.write("state", "before");
    fail(&mut folder.run("chain.toml", &["-r", "none.pcap", "--save-state", "state"]), 1);
    assert_eq!(fs::read(folder.at("state")).expect("a file"), b"before");
    let said = fail(&mut folder.run("chain.toml", &["-r", "all.pcap", "--save-state", "no/where"]), 1);
    assert!(said.contains("no/where"), "{said}");
    let said = fail(&mut folder.run("chain.toml", &["-r", "all.pcap", "--save-state", "summary.json"]), 2);
    assert!(said.contains("more than one output to"), "{said}");
    succeed(&mut folder.run("chain.toml", &["-r", "all.pcap", "--save-state", "state"]));
    let mut names: Vec<_> =
        fs::read_dir(&folder.0).expect("a folder").map(|entry| entry.expect("a file").file_name()).collect();
    names.sort();
    assert_eq!(names, ["all.pcap", "chain.toml", "state", "summary.json"]);
}

/// A chain that cannot be gone on with: the old one goes on, and what is wrong is said.
#[test]
fn a_bad_chain_changes_nothing() {
    let folder = Folder::new();
    folder.write("chain.toml", format!("{}[sink]\ncapture = \"out.pcap\"\n", balancer("198.51.100.7")));
    let sink = "[sink]\ncapture = \"out.pcap\"\n";
    for (text, why) in [
        ("[[chain]]\nnf = \"none\"\n".into(), "bad.toml:2: nf is \"none\""),
        (balancer("198.51.100.8"), "sink is none; expected"),
        (format!("{sink}[run]\nworkers = 3\n"), "workers is 3; expected 1, which stays for the whole run"),
        (format!("{sink}[run]\nbatch = 3\n"), "batch is 3; expected 512"),
        (
            format!("{sink}[[chain]]\nnf = \"meter\"\noutput = \"flows\"\n"),
            "expected files that the run began with",
        ),
    ] {
        folder.write("bad.toml", text);
        let output =
            support::run(&mut folder.run("chain.toml", &["-r", "all.pcap", "--reload-at", "2=bad.toml"]));
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(0), "{said}");
        assert!(said.contains("the chain stays as it is") && said.contains(why), "{said}");
        let summary = folder.summary();
        assert_eq!(summary["reloads"], serde_json::json!({ "done": 0, "refused": 1 }));
        assert_eq!(summary["functions"][1]["backends"][0]["packets"], 6);
        assert_eq!(destinations(&folder.at("out.pcap")), [7; 6]);
    }
    let said = fail(&mut folder.run("chain.toml", &["-r", "all.pcap", "--reload-at", "x=chain.toml"]), 2);
    assert!(said.contains("expected the number of a packet and a chain file"), "{said}");
    let backwards = ["-r", "all.pcap", "--reload-at", "3=chain.toml", "--reload-at", "2=chain.toml"];
    let said = fail(&mut folder.run("chain.toml", &backwards), 2);
    assert!(said.contains("expected that of the packets"), "{said}");
}

/// A run on a device goes on with any chain: with state there, with ACLs alone, and on cores. One that began on cores stays there.
#[test]
fn a_device_goes_on_with_any_chain() {
    let folder = Folder::new();
    folder.write("rules", "permit any from any to any\n");
    // No device takes such a meter.
    let meter = "[[chain]]\nnf = \"meter\"\nvlan_in_key = true\n";
    folder.write("acl.toml", format!("[[chain]]\nnf = \"acl\"\nrules = \"rules\"\n{meter}"));
    folder.write("chain.toml", balancer("198.51.100.7"));
    folder.write("cores.toml", meter);
    for next in ["2=chain.toml", "2=acl.toml"] {
        let more = ["-r", "all.pcap", "--device", "host", "--reload-at", next];
        let output = support::run(&mut folder.run("cores.toml", &more));
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let why = "it has functions for host; expected one for cores, where the run began";
        assert!(stderr(&output).contains(why), "{}", stderr(&output));
        assert_eq!(folder.summary()["reloads"], serde_json::json!({ "done": 0, "refused": 1 }));
    }
    // What an acl on a device stands before is saved and restored.
    let on_device =
        |more: &[&str]| succeed(&mut folder.run("acl.toml", &[&["--device", "host"], more].concat()));
    on_device(&["-r", "all.pcap", "-c", "2", "--save-state", "s"]);
    on_device(&["-r", "all.pcap", "-c", "4", "--restore-state", "s", "--reload-at", "1=acl.toml"]);
    assert_eq!(folder.summary()["reloads"], serde_json::json!({ "done": 1, "refused": 0 }));
    succeed(&mut folder.run("acl.toml", &["-r", "all.pcap", "-c", "2", "--save-state", "t"]));
    assert_eq!(fs::read(folder.at("s")).expect("a state"), fs::read(folder.at("t")).expect("a state"));
    // From a device to cores, and back, in one run; with ACLs alone in between.
    let more = ["--reload-at", "2=cores.toml", "--reload-at", "3=acl.toml", "--reload-at", "4=chain.toml"];
    let more = [&["-r", "all.pcap", "--device", "host"][..], &more].concat();
    succeed(&mut folder.run("chain.toml", &more));
    let summary = folder.summary();
    assert_eq!(summary["reloads"], serde_json::json!({ "done": 3, "refused": 0 }));
    assert_eq!(summary["functions"][0]["packets"], 2, "{summary}");
    let replaced = summary["replaced"].as_array().expect("a list");
    let names: Vec<_> = replaced.iter().map(|of| (of["nf"].as_str(), of["until_packet"].as_u64())).collect();
    assert_eq!(
        names,
        [
            (Some("counter"), Some(2)),
            (Some("balancer"), Some(2)),
            (Some("acl"), Some(4)),
            (Some("meter"), Some(4))
        ]
    );
}

/// The summary does not grow with the number of reloads: it has the last 64 functions that were replaced, without rules that decided nothing.
#[test]
fn counts_of_functions_that_were_replaced_long_ago_are_not_kept() {
    let folder = Folder::new();
    let packets: String =
        (0..80).map(|number| format!("{}.0 tcp 10.0.0.1:1000 > 192.0.2.1:80\n", number)).collect();
    folder.write("many.pcap", packets::pcap(&packets));
    for (name, rules) in [
        ("a", "permit tcp from any to any port 80\ndeny udp from any to any\n"),
        ("b", "permit tcp from any to any\ndeny udp from any to any\ndeny icmp from any to any\n"),
    ] {
        folder.write(&format!("{name}.rules"), rules);
        let chain = format!("[[chain]]\nnf = \"acl\"\nrules = \"{name}.rules\"\ndefault = \"deny\"\n");
        folder.write(&format!("{name}.toml"), chain);
    }
    // Before each packet from the second to the 71st.
    let reloads: Vec<_> =
        (1..=70).map(|at| format!("{at}={}.toml", if at % 2 == 0 { "a" } else { "b" })).collect();
    let mut more = vec!["-r", "many.pcap"];
    more.extend(reloads.iter().flat_map(|reload| ["--reload-at", reload]));
    let output = support::run(&mut folder.run("a.toml", &more));
    let said = stderr(&output);
    assert!(output.status.success() && said.contains("functions before these  6"), "{said}");
    let summary = folder.summary();
    assert_eq!(summary["reloads"]["done"], 70);
    assert_eq!(summary["replaced_before"], 6);
    let replaced = summary["replaced"].as_array().expect("a list");
    assert_eq!(replaced.len(), 64);
    for (number, of) in replaced.iter().enumerate() {
        assert_eq!(of["until_packet"], 7 + number);
        assert_eq!((&of["hits"][0]["packets"], &of["rules_hit"]), (&1.into(), &1.into()), "{of}");
        assert_eq!(of["rules_not_hit"], of["rules"].as_u64().expect("a number") - 1);
        assert!(of.get("not_hit").is_none(), "{of}");
    }
    assert_eq!(summary["functions"][0]["hits"][0]["packets"], 10);
    assert_eq!(summary["functions"][0]["not_hit"].as_array().map(Vec::len), Some(1));
}

/// Waits until something is so, for some time.
fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(120), "{what}");
        sleep(Duration::from_millis(10));
    }
}

/// A run that nobody ends: its chain is read again, its state saved on the way, and at the signal that ends it.
#[test]
fn signals_reload_and_save() {
    for device in ["cpu", "host"] {
        reload_and_save_by_signals(device);
    }
}

fn reload_and_save_by_signals(device: &str) {
    let folder = Folder::new();
    // Kernels are kept from then on.
    for backend in ["198.51.100.8", "198.51.100.7"] {
        folder.write("chain.toml", balancer(backend));
        succeed(&mut folder.run("chain.toml", &["-r", "all.pcap", "--device", device]));
    }
    let more = ["-r", "-", "--device", device, "--save-state", "state", "--save-every", "1us"];
    let mut child = folder
        .run("chain.toml", &more)
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("started");
    let pid = rustix::process::Pid::from_child(&child);
    let signal = |signal| rustix::process::kill_process(pid, signal).expect("signalled");
    let mut stdin = child.stdin.take().expect("a pipe");
    let mut said = BufReader::new(child.stderr.take().expect("a pipe"));
    let capture = packets::pcap(PACKETS);
    let packet = |number: usize| &capture[24 + number * (16 + 54)..][..16 + 54];
    let packets_saved = || {
        let shown = support::run(packetloom().args(["state", "--json"]).arg(folder.at("state")));
        let shown: serde_json::Value = serde_json::from_slice(&shown.stdout).unwrap_or_default();
        shown["packets"].as_u64()
    };
    let mut send = |bytes: &[u8]| {
        stdin.write_all(bytes).expect("written");
        stdin.flush().expect("written");
        sleep(Duration::from_millis(50));
    };
    send(&capture[..24]);
    send(packet(0));
    send(packet(1));
    wait_until("state is saved on the way", || packets_saved() == Some(2));
    folder.write("chain.toml", balancer("198.51.100.8"));
    signal(rustix::process::Signal::HUP);
    let mut line = String::new();
    while !line.contains("chain.toml: read again") {
        line.clear();
        assert!(said.read_line(&mut line).expect("text") > 0, "it has ended");
    }
    // What is being waited for when the signal comes is judged by the old chain.
    send(packet(2));
    send(packet(3));
    send(packet(4));
    wait_until("packets are judged by the new chain", || packets_saved() == Some(5));
    signal(rustix::process::Signal::INT);
    let mut rest = String::new();
    said.read_to_string(&mut rest).expect("text");
    let status = child.wait().expect("ended");
    assert_eq!(status.code(), Some(0), "{rest}");
    let summary = folder.summary();
    assert_eq!((&summary["received"], &summary["stopped"]), (&5.into(), &true.into()));
    assert_eq!(summary["reloads"], serde_json::json!({ "done": 1, "refused": 0 }));
    assert_eq!(summary["functions"][1]["backends"][0]["flows"], 1, "{summary}");
    assert_eq!(packets_saved(), Some(5));
    drop(stdin);
}

/// Saving takes longer than the time from one to the next: packets go on all the same.
#[test]
fn a_run_goes_on_where_saving_takes_long() {
    let folder = Folder::new();
    folder.write("chain.toml", balancer("198.51.100.7"));
    for workers in ["1", "2"] {
        let more = ["-r", "all.pcap", "--workers", workers, "--save-state", "state", "--save-every", "1us"];
        succeed(&mut folder.run("chain.toml", &more));
        assert_eq!(folder.summary()["received"], 6);
    }
}

/// The second balancer is as it was but for its place among those of its flows: what is kept there stood for the backends of the first.
#[test]
fn a_function_whose_place_is_another_one_takes_state_over() {
    let folder = Folder::new();
    let chain = |first: &str| {
        let balancer = |flows: &str, service: u8, backends: &[u8]| {
            let backends: Vec<_> =
                backends.iter().map(|n| format!("{{ address = \"198.51.100.{n}\" }}")).collect();
            format!(
                "[[chain]]\nnf = \"balancer\"\nflows = \"{flows}\"\n[[chain.services]]\naddress = \"192.0.2.{service}\"\nbackends = [{}]\n",
                backends.join(", ")
            )
        };
        let definitions = "[flows.a]\nby = \"5-tuple\"\n[flows.b]\nby = \"5-tuple\"\n";
        format!("{definitions}{}{}", balancer(first, 1, &[1, 2, 3, 4, 5, 6]), balancer("a", 2, &[9]))
    };
    folder.write("old.toml", chain("a"));
    folder.write("new.toml", chain("b"));
    let mut passed = Vec::new();
    for device in ["cpu", "oracle"] {
        let more = ["-r", "all.pcap", "-w", "out.pcap", "--device", device, "--reload-at", "4=new.toml"];
        succeed(&mut folder.run("old.toml", &more));
        let summary = folder.summary();
        assert_eq!((&summary["received"], &summary["reloads"]["done"]), (&6.into(), &1.into()));
        passed.push(fs::read(folder.at("out.pcap")).expect("a capture"));
    }
    assert!(passed[0] == passed[1]);
}
