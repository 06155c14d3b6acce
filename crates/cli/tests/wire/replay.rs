//! The cases of this repository and its example, sent over links: what passes is what passes from a capture.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use packetloom_testing::net::Net;

use crate::link::{Link, from_capture};
use crate::product::{BACKENDS, Product, count, interfaces};
use crate::support::{self, frames, packets, parts};

/// Cases whose token buckets hang on milliseconds between packets, or that are about times of a capture.
const BY_TIME: [&str; 4] = ["filter-time", "limiter-packets", "limiter", "policer-marks"];
/// Cases whose workers share tables, so that packets that are this close may take effect in another order: with one worker only.
const SHARED: [&str; 2] = ["scan-both", "scan-fan-out"];
/// Cases with frames of which not all was captured, or that no interface takes.
const NOT_WHOLE: [&str; 2] = ["policy", "tcp-flags"];

fn names_of<const N: usize>(names: [&str; N]) -> Vec<String> {
    names.map(str::to_owned).into()
}

/// A capture of packets that come at once, as they do over a link.
fn at_once(mut capture: Vec<u8>) -> Vec<u8> {
    let (mut at, mut micros) = (24, 0u32);
    while at < capture.len() {
        let len = u32::from_le_bytes(capture[at + 8..at + 12].try_into().expect("four bytes"));
        capture[at..at + 4].copy_from_slice(&1u32.to_le_bytes());
        capture[at + 4..at + 8].copy_from_slice(&micros.to_le_bytes());
        micros += 20;
        at += 16 + len as usize;
    }
    capture
}

fn over_links(
    net: &Net,
    link: &mut Link,
    files: &[(&str, &str)],
    all: &[Vec<u8>],
    backend: &str,
    workers: usize,
) -> (Vec<Vec<u8>>, serde_json::Value) {
    let arguments = format!("run chain.toml -i pa -i pb --inline --backend {backend} --workers {workers}");
    let mut product = Product::start(&net.product, files, &arguments);
    let came = link.send(&mut product, all);
    let done = product.stop();
    for interface in interfaces(&done.summary) {
        assert_eq!(count(interface, "/missed"), 0, "{interface:#}");
    }
    assert_eq!(count(&done.summary, "/received"), all.len() as u64, "{:#}", done.summary);
    (came, done.summary["dropped"].clone())
}

#[test]
fn cases_have_the_same_verdicts_over_links() {
    let Some(net) = Net::new() else { return };
    let mut link = Link::new(&net);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases");
    let mut names: Vec<_> =
        fs::read_dir(folder).expect("cases").map(|entry| entry.expect("a file").path()).collect();
    names.sort_unstable();
    let mut failed = BTreeMap::new();
    let (mut tried, mut not_whole, mut by_time, mut shared) = (0, Vec::new(), Vec::new(), Vec::new());
    for path in &names {
        let name = path.file_stem().expect("a name").to_str().expect("text");
        let text = fs::read_to_string(path).expect("a case");
        let parts = parts(&text);
        let capture = at_once(packets::pcap(&parts["packets"]));
        let is_whole = parts["packets"].lines().filter(|line| !line.trim().is_empty()).all(|line| {
            let packet = packets::packet(line);
            packet.wire_len == packet.bytes.len() && packet.bytes.len() >= 14
        });
        if !is_whole {
            not_whole.push(name.to_owned());
            continue;
        }
        if BY_TIME.contains(&name) {
            by_time.push(name.to_owned());
            continue;
        }
        let workdir = tempfile::tempdir().expect("a folder");
        let files: Vec<_> = parts
            .iter()
            .filter(|(name, _)| !["packets", "passed", "flows", "summary"].contains(name))
            .map(|(name, text)| (if *name == "chain" { "chain.toml" } else { name }, &**text))
            .collect();
        for (file, text) in &files {
            fs::write(workdir.path().join(file), text).expect("written");
        }
        fs::write(workdir.path().join("in.pcap"), &capture).expect("written");
        let expected = from_capture(workdir.path(), &["-r", "in.pcap"]);
        for (backend, workers) in [("af_packet", 1), ("af_packet", 2), ("af_xdp", 1)] {
            if workers > 1 && SHARED.contains(&name) {
                shared.push(name.to_owned());
                continue;
            }
            let found = over_links(&net, &mut link, &files, &frames(&capture), backend, workers);
            if found != expected {
                failed.insert(format!("{name}, {backend}, {workers}"), (found, expected.clone()));
            }
            tried += 1;
        }
    }
    // Nothing else is left out, and none of these is gone.
    assert_eq!((not_whole, by_time, shared), (names_of(NOT_WHOLE), names_of(BY_TIME), names_of(SHARED)));
    assert!(failed.is_empty(), "{:?}: {failed:?}", failed.keys());
    assert!(tried > 60, "{tried}");
}

#[test]
fn the_example_has_the_same_verdicts_over_links() {
    let Some(net) = Net::new() else { return };
    let mut link = Link::new(&net);
    let example = support::root().join("examples/edge");
    let rules = fs::read_to_string(example.join("edge.rules")).expect("rules");
    let capture = fs::read(example.join("edge.pcap")).expect("a capture");
    let chain = "[[chain]]\nnf = \"acl\"\nrules = \"edge.rules\"\n[[chain]]\nnf = \"conntrack\"\n[[chain]]\nnf = \"meter\"\n";
    let files = [("chain.toml", chain), ("edge.rules", &*rules)];
    let folder = tempfile::tempdir().expect("a folder");
    for (file, text) in files {
        fs::write(folder.path().join(file), text).expect("written");
    }
    fs::write(folder.path().join("in.pcap"), &capture).expect("written");
    let expected = from_capture(folder.path(), &["-r", "in.pcap"]);
    for (backend, workers) in BACKENDS.into_iter().flat_map(|backend| [(backend, 1), (backend, 3)]) {
        let found = over_links(&net, &mut link, &files, &frames(&capture), backend, workers);
        assert_eq!(found.1, expected.1, "{backend}, {workers} workers");
        assert_eq!(found.0.len(), expected.0.len(), "{backend}, {workers} workers");
        assert!(found.0 == expected.0, "other bytes");
    }
}
