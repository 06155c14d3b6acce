//! Frames of all kinds, sent by hand.

use std::fs;

use packetloom_testing::amount;
use packetloom_testing::net::Net;

use crate::link::{Link, from_capture};
use crate::product::{Product, count, interfaces, packets as packets_of, sum};
use crate::support::packets::packet;

const ACL: &str = "[[chain]]\nnf = \"acl\"\nrules = \"rules\"\n";
const RULES: &str =
    "deny tcp from any to any port 81\ndeny udp from any to any port 81\npermit any from any to any\n";
/// Marks every packet, so that each one is rewritten.
const MARKS: &str = "[[chain]]\nnf = \"policer\"\nmarker = \"single-rate\"\ncir = \"1GB/s\"\ncbs = \"1GB\"\nebs = \"1GB\"\ngreen = { dscp = \"ef\" }\n";

fn frame(words: &str) -> Vec<u8> {
    packet(&format!("0 {words}")).bytes
}

/// A frame with tags: TPID and TCI of each.
fn tagged(frame: &[u8], tags: &[(u16, u16)]) -> Vec<u8> {
    let mut bytes = frame[..12].to_vec();
    for (tpid, tci) in tags {
        bytes.extend(tpid.to_be_bytes());
        bytes.extend(tci.to_be_bytes());
    }
    bytes.extend(&frame[12..]);
    bytes
}

/// A capture of whole Ethernet frames.
fn capture(frames: &[Vec<u8>]) -> Vec<u8> {
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4u32, 2 | 4 << 16, 0, 0, 262_144, 1] {
        file.extend(word.to_le_bytes());
    }
    for (micros, frame) in (0u32..).zip(frames) {
        for word in [1, micros, frame.len() as u32, frame.len() as u32] {
            file.extend(word.to_le_bytes());
        }
        file.extend(frame);
    }
    file
}

/// What comes out of a chain between two interfaces, and its counters of drops: the same as from a capture.
fn both_ways(link: &mut Link, net: &Net, chain: &str, frames: &[Vec<u8>], workers: usize) -> Vec<Vec<u8>> {
    let folder = tempfile::tempdir().expect("a folder");
    let files = [("chain.toml", chain), ("rules", RULES)];
    for (name, text) in files {
        fs::write(folder.path().join(name), text).expect("written");
    }
    fs::write(folder.path().join("in.pcap"), capture(frames)).expect("written");
    let (passed, dropped) = from_capture(folder.path(), &["-r", "in.pcap"]);
    let mut product =
        Product::inline(&net.product, chain, &[("rules", RULES)], &format!("--workers {workers}"));
    let came = link.send(&mut product, frames);
    let done = product.stop();
    assert_eq!(interfaces(&done.summary).map(|of| count(of, "/missed")).sum::<u64>(), 0);
    assert_eq!(done.summary["dropped"], dropped, "{workers} workers");
    assert_eq!(came, passed, "{workers} workers");
    assert_eq!(count(&done.summary, "/received"), frames.len() as u64);
    came
}

/// The kernel takes the outer tag out of a frame, and knows only some kinds of tags: frames are judged and leave with all of them.
#[test]
fn tags_stay_as_they_are() {
    let Some(net) = Net::new() else { return };
    let mut link = Link::new(&net);
    let stacks: [&[(u16, u16)]; 9] = [
        &[(0x8100, 5)],
        // No VLAN, only a priority; and none at all.
        &[(0x8100, 0xe000)],
        &[(0x8100, 0)],
        // Drop eligible, of priority 7, in the last VLAN.
        &[(0x8100, 0xffff)],
        &[(0x88a8, 7)],
        &[(0x88a8, 7), (0x8100, 5)],
        &[(0x8100, 7), (0x8100, 5)],
        &[(0x88a8, 0xf007), (0x88a8, 6), (0x8100, 5)],
        &[(0x9100, 7), (0x8100, 5)],
    ];
    let [mut all, mut permitted] = [Vec::new(), Vec::new()];
    for tags in stacks {
        for (ends, payload) in [
            ("10.0.0.1:1000 > 10.0.0.2", 18),
            ("[2001:db8::1]:1000 > [2001:db8::2]", 18),
            ("10.0.0.1:1000 > 10.0.0.2", 1_400),
        ] {
            for port in [80, 81] {
                let frame = tagged(&frame(&format!("udp {ends}:{port} payload {payload}")), tags);
                if port == 80 {
                    permitted.push(frame.clone());
                }
                all.push(frame);
            }
        }
    }
    for workers in [1, 2] {
        let came = both_ways(&mut link, &net, ACL, &all, workers);
        assert_eq!(came, permitted);
        // Rewrites are where they belong, too.
        let marked = both_ways(&mut link, &net, &format!("{ACL}{MARKS}"), &all, workers);
        assert_eq!(marked.len(), permitted.len());
        assert!(marked.iter().zip(&permitted).all(|(marked, permitted)| marked != permitted));
    }
}

/// What is no IP passes unless it is to be dropped, and no frame that IP cannot be read from.
#[test]
fn malformed_frames_are_dropped_and_counted() {
    let Some(net) = Net::new() else { return };
    let mut link = Link::new(&net);
    let whole = frame("udp 10.0.0.1:1000 > 10.0.0.2:80 payload 18");
    let whole_v6 = frame("udp [2001:db8::1]:1000 > [2001:db8::2]:80 payload 18");
    let changed = |frame: &[u8], at: usize, bytes: &[u8]| {
        let mut frame = frame.to_vec();
        frame[at..at + bytes.len()].copy_from_slice(bytes);
        frame
    };
    let malformed = vec![
        // No header at all, and a part of one.
        whole[..14].to_vec(),
        whole[..20].to_vec(),
        whole[..33].to_vec(),
        whole_v6[..53].to_vec(),
        // Headers of 16 bytes, and of more than there are.
        changed(&whole, 14, &[0x44]),
        changed(&frame("udp 10.0.0.1:1000 > 10.0.0.2:80"), 14, &[0x4f]),
        // A total length below the header's.
        changed(&whole, 16, &[0, 19]),
        // Another version than the EtherType says.
        changed(&whole, 14, &[0x65]),
        changed(&whole_v6, 14, &[0x40]),
        // Ports that are cut off.
        frame("tcp 10.0.0.1:1000 > 10.0.0.2:80")[..36].to_vec(),
    ];
    let others = vec![
        whole.clone(),
        whole_v6.clone(),
        // More was announced than came, as in captures that were cut: headers are whole, and say enough.
        changed(&whole, 16, &[0xff, 0xff]),
        changed(&whole_v6, 18, &[0xff, 0xff]),
        frame("arp"),
        // LLDP.
        changed(&frame("arp"), 12, &[0x88, 0xcc]),
    ];
    // An EtherType for experiments, in which IP may be found.
    let unknown = changed(&frame("arp"), 12, &[0x88, 0xb5]);
    // One of each, in turns.
    let mut all = Vec::new();
    for at in 0..malformed.len().max(others.len()) {
        all.extend(malformed.get(at).cloned());
        all.extend(others.get(at).cloned());
    }
    let ip_alone = &others[..4];
    all.push(unknown);
    for workers in [1, 2] {
        let came = both_ways(&mut link, &net, ACL, &all, workers);
        assert_eq!(came, others);
        let came = both_ways(&mut link, &net, &format!("{ACL}[run]\nnon_ip = \"drop\"\n"), &all, workers);
        assert_eq!(came, ip_alone);
        let lenient = format!("{ACL}[run]\nmalformed = \"pass\"\nunknown_framing = \"pass\"\n");
        let came = both_ways(&mut link, &net, &lenient, &all, workers);
        assert_eq!(came, all);
    }
}

/// Many flows, both ways at once: every frame comes once, and those of a direction in their order.
#[test]
fn frames_of_both_directions_come_once_and_in_order() {
    let Some(net) = Net::new() else { return };
    let mut link = Link::new(&net);
    let each = amount(20_000, 200_000u32);
    let [there, back] = [false, true].map(|is_back| {
        let frames = (0..each).map(|number| {
            let flow = format!("10.0.{}.{}:1000", number / 200 % 3, number % 200 + 1);
            let server = "192.0.2.1:80";
            let (from, to) = if is_back { (server, &*flow) } else { (&*flow, server) };
            let mut bytes = frame(&format!("udp {from} > {to} payload {}", 18 + number % 700));
            let len = bytes.len();
            bytes[len - 4..].copy_from_slice(&number.to_be_bytes());
            bytes
        });
        frames.collect::<Vec<_>>()
    });
    let chain = format!(
        "{ACL}[[chain]]\nnf = \"conntrack\"\n[[chain]]\nnf = \"meter\"\nidle_timeout = \"300ms\"\noutput = \"flows.jsonl\"\n"
    );
    for workers in [1, 3] {
        let arguments = format!("--workers {workers}");
        let product = Product::inline(&net.product, &chain, &[("rules", RULES)], &arguments);
        let came = link.exchange(&there, &back);
        let done = product.stop();
        // Not shown where they differ: there are many.
        assert!(came[0] == there && came[1] == back, "{workers} workers: other frames, or in another order");
        assert_eq!(count(&done.summary, "/passed"), 2 * u64::from(each));
        assert_eq!(count(&done.summary, "/functions/2/counted_packets"), 2 * u64::from(each));
        assert_eq!(packets_of(&done.records), 2 * u64::from(each));
        for interface in interfaces(&done.summary) {
            for key in ["/received", "/sent", "/segments"] {
                assert_eq!(count(interface, key), u64::from(each), "{interface:#}");
            }
        }
    }
}

/// A monitor counts what came, and sends nothing.
#[test]
fn a_monitor_sends_nothing() {
    let Some(net) = Net::new() else { return };
    let mut link = Link::new(&net);
    let frames: Vec<_> = (0..1_000)
        .map(|number| frame(&format!("udp 10.0.0.1:1000 > 10.0.0.2:{}", 80 + number % 2)))
        .collect();
    let bytes: usize = frames.iter().map(Vec::len).sum();
    for workers in [1, 2] {
        let files = [("chain.toml", ACL), ("rules", RULES)];
        let arguments = format!("run chain.toml -i pa -w passed.pcap --workers {workers}");
        let mut product = Product::start(&net.product, &files, &arguments);
        assert_eq!(link.send_of(&mut product, &frames, 0), Vec::<Vec<u8>>::new());
        let done = product.stop();
        let interface = interfaces(&done.summary).next().expect("one");
        assert_eq!(count(interface, "/received"), 1_000);
        assert_eq!(count(interface, "/received_bytes"), bytes as u64);
        assert_eq!((count(&done.summary, "/passed"), sum(&done.summary, "/dropped")), (500, 500));
        assert_eq!(count(&done.summary, "/dropped/acl_rule"), 500);
        assert_eq!(crate::support::frames(&done.passed).len(), 500);
    }
    let mut product = Product::start(&net.product, &[], "meter -i pa -o flows.jsonl");
    assert_eq!(link.send_of(&mut product, &frames, 0), Vec::<Vec<u8>>::new());
    let done = product.stop();
    assert_eq!((done.records.len(), packets_of(&done.records)), (2, 1_000));
    let mut back = Vec::new();
    link.client.take_all(&mut back);
    assert_eq!(back, Vec::<Vec<u8>>::new(), "nothing comes back");
}
