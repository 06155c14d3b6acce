//! IP in any framing meets the rules: what passes an ACL that denies everything has no IP in it, as tshark reads it.
//!
//! Where tshark is not installed its part is skipped, and they say so; where `PACKETLOOM_TSHARK` is set, it has to be. Sweeps over all
//! numbers of a kind run where `PACKETLOOM_SWEEPS` is set.

#![allow(missing_docs)]

mod support;

#[path = "../../nf/tests/framings/mod.rs"]
mod framings;

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use framings::{Behind, GUESSED, INNERMOST, INNERMOST_GUESSED, LINKS, OnLink, SURE, has_packets_alone};
use packetloom_testing::{amount, corpus, has_tshark};
use serde_json::Value;
use support::{json, packetloom, packets, succeed};

/// The numbers of the frames, from 1, in which tshark finds IP.
fn with_ip(capture: &Path) -> Vec<usize> {
    let mut command = Command::new("tshark");
    command.arg("-n").arg("-r").arg(capture).args(["-T", "fields", "-e", "frame.number", "-Y", "ip or ipv6"]);
    succeed(&mut command).lines().map(|line| line.parse().expect("a number")).collect()
}

const DENY_ALL: &str = "permit tcp from 10.255.255.255 to 10.255.255.255 port 1\ndefault deny\n";

/// Runs a chain of an ACL with these rules over a capture; the summary.
fn filter(rules: &str, capture: &Path, passed: &Path) -> Value {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |file: &str| folder.path().join(file);
    std::fs::write(at("chain.toml"), "[[chain]]\nnf = \"acl\"\nrules = \"rules\"\n").expect("written");
    std::fs::write(at("rules"), rules).expect("written");
    let mut command = packetloom();
    command.arg("run").arg(at("chain.toml")).arg("-r").arg(capture).arg("-w").arg(passed);
    succeed(command.arg("--summary").arg(at("summary.json")));
    json(&at("summary.json"))
}

fn write_pcap(path: &Path, link: u32, frames: &[Vec<u8>]) {
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4u32, 2 | 4 << 16, 0, 0, 262_144, link] {
        file.extend(word.to_le_bytes());
    }
    for frame in frames {
        for word in [1, 0, frame.len() as u32, frame.len() as u32] {
            file.extend(word.to_le_bytes());
        }
        file.extend(frame);
    }
    std::fs::write(path, file).expect("written");
}

/// The bytes of the frame with a number, from 1, of a pcap file.
fn frame_of(capture: &Path, number: usize) -> Vec<u8> {
    let file = std::fs::read(capture).expect("a capture");
    let mut rest = &file[24..];
    for _ in 1..number {
        rest = &rest[16 + len_of(rest)..];
    }
    rest[16..16 + len_of(rest)].to_vec()
}

fn len_of(record: &[u8]) -> usize {
    u32::from_le_bytes(record[8..12].try_into().expect("four bytes")) as usize
}

/// Has frames pass an ACL that denies everything, and tshark look for IP among those that do. How many frames there are, in how many of them
/// it finds IP, and how many pass.
fn sweep(what: &str, link: u32, frames: &[Vec<u8>]) -> [usize; 3] {
    let folder = tempfile::tempdir().expect("a folder");
    let (capture, passed) = (folder.path().join("in.pcap"), folder.path().join("passed.pcap"));
    write_pcap(&capture, link, frames);
    let summary = filter(DENY_ALL, &capture, &passed);
    assert_eq!(summary["received"], frames.len());
    let found = with_ip(&capture).len();
    let leaked = with_ip(&passed);
    let leaked: Vec<_> = leaked.into_iter().map(|number| frame_of(&passed, number)).collect();
    let passed = summary["passed"].as_u64().expect("a number") as usize;
    println!(
        "{what}: {} frames, tshark finds IP in {found}; dropped {}; passed {passed}",
        frames.len(),
        summary["dropped"]
    );
    assert!(leaked.is_empty(), "{what}: IP in frames that passed: {leaked:x?}");
    [frames.len(), found, passed]
}

/// A packet of each version.
fn both() -> [(u8, Vec<u8>); 2] {
    let of = |line| packets::packet(line).bytes[14..].to_vec();
    [
        (4, of("0 udp 10.0.0.1:1000 > 10.0.0.2:53 payload 20")),
        (6, of("0 udp [2001:db8::1]:1000 > [2001:db8::2]:53 payload 20")),
    ]
}

fn ethernet(ethertype: u16, rest: &[u8]) -> Vec<u8> {
    [&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1], &ethertype.to_be_bytes()[..], rest].concat()
}

/// Packets of both versions in each framing, alone, behind a VLAN tag, in front of one, and both.
fn in_framings() -> Vec<(String, Vec<u8>)> {
    let mut frames = Vec::new();
    for (version, packet) in both() {
        let innermost = INNERMOST.iter().chain(INNERMOST_GUESSED);
        for (number, (inner, innermost)) in innermost.enumerate() {
            let none = [("none", None)].into_iter();
            let sure = SURE.iter().map(|(name, wrap)| (*name, Some(wrap)));
            // Of two readings one at a time.
            let guessed = GUESSED.iter().take(if number < INNERMOST.len() { GUESSED.len() } else { 0 });
            for (name, wrap) in none.chain(sure).chain(guessed.map(|(name, wrap)| (*name, Some(wrap)))) {
                for vlans in 0..4 {
                    let (_, vlan) = SURE[0];
                    let (mut ethertype, mut rest) = innermost(version, &packet);
                    if vlans & 1 == 1 {
                        (ethertype, rest) = vlan(ethertype, &rest);
                    }
                    if let Some(wrap) = wrap {
                        (ethertype, rest) = wrap(ethertype, &rest);
                    }
                    if vlans & 2 == 2 {
                        (ethertype, rest) = vlan(ethertype, &rest);
                    }
                    frames.push((
                        format!("IPv{version} in {inner} in {name}, {vlans}"),
                        ethernet(ethertype, &rest),
                    ));
                }
            }
        }
    }
    frames
}

#[test]
fn ip_in_every_framing_meets_the_rules() {
    let (names, frames): (Vec<_>, Vec<_>) = in_framings().into_iter().unzip();
    let folder = tempfile::tempdir().expect("a folder");
    let (capture, passed) = (folder.path().join("in.pcap"), folder.path().join("passed.pcap"));
    write_pcap(&capture, 1, &frames);
    let all = frames.len();
    let summary = filter(DENY_ALL, &capture, &passed);
    assert_eq!((&summary["passed"], &summary["dropped"]["acl_default"]), (&0.into(), &all.into()));
    let permit = "permit udp from 10.0.0.1 port 1000 to 10.0.0.2 port 53\n\
        permit udp from 2001:db8::1 port 1000 to 2001:db8::2 port 53\ndefault deny\n";
    let summary = filter(permit, &capture, &passed);
    assert_eq!(summary["passed"], all, "{summary}");
    assert_eq!(
        std::fs::read(&passed).expect("a capture")[24..],
        std::fs::read(&capture).expect("a capture")[24..]
    );
    if has_tshark() {
        let found = with_ip(&capture);
        // It does not look into pseudowires, EDSA and the tag 0x9300 unless it is told to.
        println!("tshark finds IP in {} of {all}", found.len());
        assert!(found.len() * 2 > all);
        for (name, number) in names.iter().zip(1..) {
            if name.starts_with("IPv4 in its EtherType in SNAP,") {
                assert!(found.contains(&number), "{name}");
            }
        }
    }
}

/// Rewritten headers are written in every framing: no checksum of layer 2 covers them.
#[test]
fn headers_are_rewritten_in_every_framing() {
    let (_, frames): (Vec<_>, Vec<_>) = in_framings().into_iter().unzip();
    let folder = tempfile::tempdir().expect("a folder");
    let at = |file: &str| folder.path().join(file);
    write_pcap(&at("in.pcap"), 1, &frames);
    let chain = "[[chain]]\nnf = \"balancer\"\n\
        [[chain.services]]\naddress = \"10.0.0.2\"\nport = 53\nprotocol = \"udp\"\n\
        backends = [{ address = \"10.0.0.77\", port = 5353 }]\n\
        [[chain.services]]\naddress = \"2001:db8::2\"\nport = 53\nprotocol = \"udp\"\n\
        backends = [{ address = \"2001:db8::77\", port = 5353 }]\n\
        [[chain]]\nnf = \"policer\"\nmarker = \"single-rate\"\ncir = \"1Gbit/s\"\ncbs = \"1MB\"\nebs = \"1MB\"\n\
        green = { dscp = \"af11\" }\n";
    std::fs::write(at("chain.toml"), chain).expect("written");
    for device in ["cpu", "oracle", "host"] {
        let mut command = packetloom();
        command.arg("run").arg(at("chain.toml")).arg("-r").arg(at("in.pcap")).arg("-w").arg(at("out.pcap"));
        succeed(command.args(["--device", device]));
        let written = std::fs::read(at("out.pcap")).expect("a capture");
        let mut rest = &written[24..];
        for frame in &frames {
            let (found, behind) = rest[16..].split_at(frame.len());
            rest = behind;
            // The packet is the last thing in a frame.
            let is_v4 = frame.ends_with(&both()[0].1);
            let packet = frame.len() - both()[usize::from(!is_v4)].1.len();
            let differs = |at: usize| frame[at] != found[at];
            assert!((0..packet).all(|at| !differs(at)), "{device}: {frame:x?}");
            let (last, end, port) =
                if is_v4 { (packet + 19, 77, packet + 22) } else { (packet + 39, 0x77, packet + 42) };
            assert_eq!((found[last], &found[port..port + 2]), (end, &[0x14, 0xe9][..]), "{device}");
            let dscp = if is_v4 {
                found[packet + 1] >> 2
            } else {
                found[packet] << 2 & 0x3c | found[packet + 1] >> 6
            };
            assert_eq!(dscp, 10, "{device}: {frame:x?}");
        }
        assert!(rest.is_empty());
    }
}

/// Numbers that look random: SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((u128::from(x ^ x >> 31) * limit as u128) >> 64) as usize
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
}

/// Headers of protocols that never carry IP, from the link header on.
fn never_ip() -> Vec<Vec<u8>> {
    let ethertypes = [
        0x0806, 0x0842, 0x22ea, 0x22f4, 0x6001, 0x6002, 0x6003, 0x6004, 0x6005, 0x6007, 0x8035, 0x80f3,
        0x8137, 0x8138, 0x8809, 0x8863, 0x887b, 0x888e, 0x8892, 0x88a2, 0x88b8, 0x88b9, 0x88ba, 0x88c7,
        0x88cc, 0x88e1, 0x88e3, 0x88ee, 0x88f5, 0x88f6, 0x88f7, 0x88fb, 0x8902, 0x890d, 0x8906, 0x8914,
        0x809b, 0x9000,
    ];
    let mut heads: Vec<_> = ethertypes.map(|ethertype| ethernet(ethertype, &[])).into();
    let saps = [0x00, 0x02, 0x04, 0x42, 0x82, 0xe0, 0xf0, 0xf4, 0xf8, 0xfc];
    for destination in saps {
        heads.extend(saps.map(|source| ethernet(60, &[destination, source, 3])));
        heads.extend(
            [0, 1, 2, 0x13, 0x7f, 0xaf, 0xe3]
                .map(|control| ethernet(60, &[destination, destination, control])),
        );
    }
    heads.extend([
        ethernet(60, &[0xff, 0xff]),
        ethernet(60, &[0xfe, 0xfe, 3, 0x82]),
        ethernet(60, &[0xfe, 0xfe, 3, 0x83]),
    ]);
    for cisco in [0x0104u16, 0x010b, 0x010c, 0x0111, 0x2000, 0x2001, 0x2003, 0x2004, 0x200a] {
        heads.push(ethernet(60, &[&[0xaa, 0xaa, 3, 0, 0, 12], &cisco.to_be_bytes()[..]].concat()));
    }
    heads.push(ethernet(60, &[0xaa, 0xaa, 3, 0, 0x80, 0xc2, 0, 0x0e]));
    heads.push(ethernet(60, &[0xaa, 0xaa, 3, 0, 0, 0x81, 1, 0xa2]));
    heads.push(ethernet(60, &[0xaa, 0xaa, 3, 0, 0xe0, 0x2b, 0, 0xbb]));
    heads.push(ethernet(60, &[0xaa, 0xaa, 3, 0, 0xe0, 0x52, 0x20, 0]));
    for ppp in [
        0x8021u16, 0x8023, 0x8029, 0x802b, 0x8031, 0x8053, 0x8057, 0x80fd, 0x8207, 0x8281, 0xc021, 0xc023,
        0xc025, 0xc02b, 0xc02d, 0xc223, 0xc227,
    ] {
        heads.push(ethernet(0x8864, &[&[0x11, 0, 0, 1, 0, 60], &ppp.to_be_bytes()[..]].concat()));
    }
    heads
}

/// IP at any place in protocols that are said never to carry it, and framings with some bytes changed.
fn mutations(count: usize, random: &mut Random) -> Vec<Vec<u8>> {
    const BYTES: [u8; 24] = [
        0, 1, 2, 3, 4, 5, 6, 8, 0x10, 0x16, 0x21, 0x45, 0x57, 0x60, 0x80, 0x81, 0x86, 0x88, 0x89, 0xaa, 0xcc,
        0xdd, 0xfe, 0xff,
    ];
    let (heads, framed, packets) = (never_ip(), in_framings(), both());
    (0..count)
        .map(|number| {
            let (version, packet) = &packets[random.below(2)];
            if number % 2 == 0 {
                let mut frame = heads[random.below(heads.len())].clone();
                for _ in 0..random.below(40) {
                    let any = random.below(256) as u8;
                    frame.push(if number % 4 == 0 {
                        random.pick(&BYTES)
                    } else {
                        random.pick(&[0, 0, 0, any])
                    });
                }
                let ethertype = if *version == 4 { 0x0800 } else { 0x86dd };
                match random.below(4) {
                    0 => frame.extend(packet),
                    1 => frame.extend(&ethernet(ethertype, packet)[12..]),
                    2 => frame.extend(ethernet(ethertype, packet)),
                    _ => {
                        frame.extend([&[0xaa, 0xaa, 3, 0, 0, 0], &ethernet(ethertype, packet)[12..]].concat())
                    }
                }
                frame
            } else {
                let mut frame = framed[random.below(framed.len())].1.clone();
                // Before the packet, mostly.
                let until = frame.len().saturating_sub(packet.len()).max(20);
                for _ in 0..1 + random.below(4) {
                    frame[random.below(until)] = match random.below(3) {
                        0 => random.below(256) as u8,
                        _ => random.pick(&BYTES),
                    };
                }
                if random.below(8) == 0 {
                    frame.truncate(14 + random.below(frame.len() - 14));
                }
                frame
            }
        })
        .collect()
}

#[test]
fn no_ip_passes_where_everything_is_denied() {
    if !has_tshark() {
        return;
    }
    let [frames, found, passed] = sweep("mutations", 1, &mutations(40_000, &mut Random(3)));
    assert!(found > frames / 10 && passed > frames / 10, "{found}, {passed}");
}

/// Packets behind a link header: alone, in SNAP, MPLS or a VLAN, and in something that never carries IP.
fn on_link(link: u16, put: OnLink) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    for (version, packet) in both() {
        let ethertype = if version == 4 { 0x0800 } else { 0x86dd };
        frames.push(put(Behind { ethertype, rest: &packet }));
        if has_packets_alone(link) {
            continue;
        }
        let vlan = [&[0, 1], &u16::to_be_bytes(ethertype)[..], &packet].concat();
        let labels = [&[0, 1, 0x31, 64], &packet[..]].concat();
        for (ethertype, rest) in [(0x8100, &vlan), (0x8847, &labels), (0x0806, &packet), (0x88cc, &packet)] {
            frames.push(put(Behind { ethertype, rest }));
        }
    }
    frames
}

/// Frames of a link type with some bytes changed, mostly before the packet.
fn mutations_on_link(put: OnLink, link: u16, count: usize, random: &mut Random) -> Vec<Vec<u8>> {
    const BYTES: [u8; 26] = [
        0, 1, 2, 3, 4, 6, 8, 9, 0x0f, 0x10, 0x18, 0x20, 0x21, 0x40, 0x45, 0x48, 0x57, 0x60, 0x80, 0x82, 0x86,
        0x88, 0x8f, 0xaa, 0xcc, 0xff,
    ];
    let frames = on_link(link, put);
    (0..count)
        .map(|_| {
            let mut frame = frames[random.below(frames.len())].clone();
            let until = frame.len().saturating_sub(both()[0].1.len()).max(8).min(frame.len());
            for _ in 0..1 + random.below(4) {
                frame[random.below(until)] = match random.below(3) {
                    0 => random.below(256) as u8,
                    _ => random.pick(&BYTES),
                };
            }
            if random.below(8) == 0 {
                frame.truncate(1 + random.below(frame.len() - 1));
            }
            frame
        })
        .collect()
}

#[test]
fn ip_behind_every_link_header_meets_the_rules() {
    let folder = tempfile::tempdir().expect("a folder");
    let (capture, passed) = (folder.path().join("in.pcap"), folder.path().join("passed.pcap"));
    let permit = "permit udp from 10.0.0.1 port 1000 to 10.0.0.2 port 53\n\
        permit udp from 2001:db8::1 port 1000 to 2001:db8::2 port 53\ndefault deny\n";
    for &(name, link, put) in LINKS {
        let frames = both().map(|(version, packet)| {
            put(Behind { ethertype: if version == 4 { 0x0800 } else { 0x86dd }, rest: &packet })
        });
        write_pcap(&capture, link.into(), &frames);
        let summary = filter(DENY_ALL, &capture, &passed);
        assert_eq!(summary["dropped"]["acl_default"], 2, "{name}: {summary}");
        let summary = filter(permit, &capture, &passed);
        assert_eq!(summary["passed"], 2, "{name}: {summary}");
        // It takes attributes of NFLOG to be in the byte order of the file.
        if has_tshark() && name != "NFLOG, big-endian" {
            assert_eq!(with_ip(&capture), [1, 2], "{name}");
        }
        // A meter counts these, whatever the framing.
        let mut command = packetloom();
        command.args(["meter", "-o", "/dev/null", "--summary"]).arg(folder.path().join("s.json"));
        succeed(command.arg("-r").arg(&capture));
        assert_eq!(json(&folder.path().join("s.json"))["counted_packets"], 2, "{name}");
    }
}

#[test]
fn no_ip_of_other_link_types_passes_where_everything_is_denied() {
    if !has_tshark() {
        return;
    }
    let mut sums = [0; 3];
    for &(name, link, put) in LINKS {
        let count = amount(2_000, 40_000);
        let counts = sweep(name, link.into(), &mutations_on_link(put, link, count, &mut Random(link.into())));
        sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
    }
    let [frames, found, passed] = sums;
    println!("all: {frames} frames, tshark finds IP in {found}; passed {passed}");
    assert!(found > frames / 10 && passed > frames / 20, "{sums:?}");
}

/// All numbers of a kind, each before a packet of one of the versions.
fn numbered(make: impl Fn(u16, u8, &[u8]) -> Vec<u8>) -> Vec<Vec<u8>> {
    let packets = both();
    let numbers = (0..=u16::MAX).map(|number| {
        let (version, packet) = &packets[usize::from(number ^ number >> 8) % 2];
        make(number, *version, packet)
    });
    numbers.collect()
}

/// The same before packets of both versions.
fn numbered_before_both(make: impl Fn(u16, u8, &[u8]) -> Vec<u8>) -> Vec<Vec<u8>> {
    let packets = both();
    (0..=u16::MAX)
        .flat_map(|number| packets.each_ref().map(|(version, packet)| make(number, *version, packet)))
        .collect()
}

/// Sweeps, each with a name, a link type, and what makes its frames.
#[derive(Default)]
struct Sweeps(Vec<(String, u32, Frames)>);

type Frames = Box<dyn Fn() -> Vec<Vec<u8>> + Send + Sync>;

impl Sweeps {
    fn add(&mut self, what: &str, link: u32, frames: impl Fn() -> Vec<Vec<u8>> + Send + Sync + 'static) {
        self.0.push((what.to_owned(), link, Box::new(frames)));
    }

    /// Makes all of them, on all cores; the sums of what [`sweep`] counts.
    fn run(self) -> [usize; 3] {
        let next = AtomicUsize::new(0);
        let some = || {
            let mut sums = [0; 3];
            while let Some((what, link, frames)) = self.0.get(next.fetch_add(1, Ordering::Relaxed)) {
                let counts = sweep(what, *link, &frames());
                sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
            }
            sums
        };
        let threads = thread::available_parallelism().map_or(1, |threads| threads.get().min(8));
        let sums = thread::scope(|scope| {
            let threads: Vec<_> = (0..threads).map(|_| scope.spawn(some)).collect();
            let sums = |thread: thread::ScopedJoinHandle<'_, _>| {
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            threads.into_iter().map(sums).collect::<Vec<[usize; 3]>>()
        });
        [0, 1, 2].map(|of| sums.iter().map(|sums| sums[of]).sum())
    }
}

#[test]
fn no_number_of_any_kind_has_ip_pass() {
    if !packetloom_testing::sweep("frames with every number of a kind") {
        return;
    }
    if !has_tshark() {
        return;
    }
    let ip = |version: u8| if version == 4 { [8, 0] } else { [0x86, 0xdd] };
    let mut sweeps = Sweeps::default();
    sweeps.add("EtherTypes", 1, move || numbered_before_both(move |n, _, packet| ethernet(n, packet)));
    sweeps.add("EtherTypes behind a VLAN tag", 1, move || {
        numbered(move |n, _, packet| ethernet(0x8100, &[&[0, 1], &n.to_be_bytes()[..], packet].concat()))
    });
    for gap in [2, 4, 6] {
        sweeps.add(&format!("EtherTypes, {gap} bytes, an EtherType"), 1, move || {
            numbered(move |n, version, packet| {
                ethernet(n, &[&vec![0; gap], &ip(version)[..], packet].concat())
            })
        });
    }
    for gap in [0, 2, 4, 6] {
        sweeps.add(&format!("EtherTypes, {gap} bytes, Ethernet"), 1, move || {
            numbered(move |n, version, packet| {
                ethernet(n, &[vec![0; gap], ethernet(u16::from_be_bytes(ip(version)), packet)].concat())
            })
        });
    }
    sweeps.add("LLC, both SAPs", 1, move || {
        numbered(move |n, _, packet| ethernet(60, &[&n.to_be_bytes(), &[3][..], packet].concat()))
    });
    sweeps.add("LLC, a SAP and a control field", 1, move || {
        numbered(move |n, _, packet| {
            let [sap, control] = n.to_be_bytes();
            ethernet(60, &[&[sap, sap, control], packet].concat())
        })
    });
    sweeps.add("SNAP's control field and gaps", 1, move || {
        numbered(move |n, version, packet| {
            let [control, gap] = n.to_be_bytes();
            let gap = vec![0; usize::from(gap % 32)];
            ethernet(60, &[&[0xaa, 0xaa, control, 0, 0, 0], &gap[..], &ip(version), packet].concat())
        })
    });
    for organisation in [
        [0, 0, 0],
        [0, 0, 0xf8],
        [8, 0, 7],
        [0, 0, 12],
        [0, 0x80, 0xc2],
        [0, 0, 0x81],
        [0, 0xe0, 0x2b],
        [0, 0xe0, 0x52],
    ] {
        sweeps.add(&format!("SNAP {organisation:x?}"), 1, move || {
            numbered(move |n, _, packet| {
                ethernet(60, &[&[0xaa, 0xaa, 3], &organisation[..], &n.to_be_bytes(), packet].concat())
            })
        });
    }
    sweeps.add("PPP", 1, move || {
        numbered_before_both(move |n, _, packet| {
            ethernet(
                0x8864,
                &[&[0x11, 0, 0, 1, 0, packet.len() as u8 + 2], &n.to_be_bytes()[..], packet].concat(),
            )
        })
    });
    sweeps.add("associated channels", 1, move || {
        numbered(move |n, _, packet| {
            ethernet(0x8847, &[&[0, 1, 1, 64, 0x10, 0], &n.to_be_bytes()[..], packet].concat())
        })
    });
    sweeps.add("what follows MPLS", 1, move || {
        numbered(move |n, version, packet| {
            let first = n.to_be_bytes();
            let mut inner = ethernet(u16::from_be_bytes(ip(version)), packet);
            inner[..2].copy_from_slice(&first);
            ethernet(0x8847, &[&[0, 1, 1, 64], &inner[..]].concat())
        })
    });
    sweeps.add("NSH", 1, move || {
        numbered(move |n, _, packet| {
            let [next, words] = n.to_be_bytes();
            let context = vec![0; (usize::from(words % 64) * 4).saturating_sub(4)];
            ethernet(0x894f, &[&[0x0f, 0xc0 | words, 2, next], &context[..], packet].concat())
        })
    });
    for (what, link) in [("NULL", 0), ("LOOP", 108)] {
        sweeps.add(what, link, move || {
            numbered(move |n, _, packet| [&u32::from(n).to_be_bytes(), packet].concat())
        });
        sweeps.add(what, link, move || {
            numbered(move |n, _, packet| [&u32::from(n).to_le_bytes(), packet].concat())
        });
    }
    sweeps.add("SLL", 113, move || {
        numbered(move |n, _, packet| {
            [&[0, 0, 0, 1, 0, 6, 0, 0, 0, 0, 0, 0, 0, 0], &n.to_be_bytes()[..], packet].concat()
        })
    });
    sweeps.add("SLL, hardware types", 113, move || {
        numbered(move |n, version, packet| {
            let protocol: u16 = [0x0806, 1, 4, 0x88cc][usize::from(n % 4)];
            let head =
                [&[0, 0], &n.to_be_bytes()[..], &[0, 6, 0, 0, 0, 0, 0, 0, 0, 0], &protocol.to_be_bytes()]
                    .concat();
            [head, vec![0x45, 0, 0, 0], ip(version).to_vec(), packet.to_vec()].concat()
        })
    });
    sweeps.add("SLL2", 276, move || {
        numbered(move |n, _, packet| {
            [&n.to_be_bytes(), &[0, 0, 0, 0, 0, 1, 0, 1, 0, 6, 0, 0, 0, 0, 0, 0, 0, 0][..], packet].concat()
        })
    });
    for link in [12, 14, 101, 228, 229] {
        sweeps.add("raw IP", link, move || {
            numbered(move |n, _, packet| [&n.to_be_bytes(), &packet[2..]].concat())
        });
    }
    let ethertype = |version: u8| if version == 4 { 0x0800 } else { 0x86dd };
    for (name, at) in [("802.11", 0), ("802.11, QoS", 24), ("radiotap", 0), ("radiotap", 2), ("radiotap", 4)]
    {
        let &(_, link, put) = LINKS.iter().find(|link| link.0 == name).expect("a header");
        sweeps.add(&format!("{name}, byte {at}"), link.into(), move || {
            numbered(|n, version, packet| {
                let mut frame = put(Behind { ethertype: ethertype(version), rest: packet });
                frame[at..at + 2].copy_from_slice(&n.to_be_bytes());
                frame
            })
        });
    }
    for (what, link, before) in [
        ("PPP", 9, &[][..]),
        ("PPP in HDLC", 50, &[0xff, 3]),
        ("PPP, second and third byte", 50, &[0xff]),
        ("Cisco HDLC", 104, &[0x0f, 0]),
        ("Frame Relay's address", 107, &[]),
        ("Frame Relay", 107, &[0x18, 0x41]),
        ("Frame Relay, NLPID", 107, &[0x18, 0x41, 3]),
        ("Frame Relay, NLPID behind padding", 107, &[0x18, 0x41, 3, 0]),
    ] {
        sweeps.add(what, link, move || numbered(|n, _, packet| [before, &n.to_be_bytes(), packet].concat()));
    }
    for (what, link, len) in [("pflog", 117, 62), ("NFLOG", 239, 2)] {
        sweeps.add(what, link, move || {
            numbered(|n, _, packet| {
                let attribute = if link == 239 { &[0xff, 0xff, 9, 0][..] } else { &[] };
                [&n.to_be_bytes(), &vec![0; len][..], attribute, packet].concat()
            })
        });
    }
    for seed in 10..15 {
        sweeps.add("mutations", 1, move || mutations(200_000, &mut Random(seed)));
    }
    let sums = sweeps.run();
    println!("all: {} frames, tshark finds IP in {}; passed {}", sums[0], sums[1], sums[2]);
    assert!(sums[1] > sums[0] / 10 && sums[2] > sums[0] / 20, "{sums:?}");
}

#[test]
fn no_ip_of_real_captures_passes_where_everything_is_denied() {
    let Some(captures) = corpus("captures") else { return };
    if !has_tshark() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let passed = folder.path().join("passed.pcap");
    let ([mut all, mut left], mut found) = ([0, 0], 0);
    let expected = json(&captures.join("expected.json"));
    for capture in expected.as_array().expect("a list") {
        let name = capture["file"].as_str().expect("a name");
        let summary = filter(DENY_ALL, &captures.join(name), &passed);
        let numbers = with_ip(&passed);
        assert!(numbers.is_empty(), "{name}: IP in frames {numbers:?} of those that passed");
        let number = |value: &Value| value.as_u64().expect("a number");
        let (non_ip, unknown) = (number(&summary["passed"]), number(&summary["dropped"]["unknown_framing"]));
        if non_ip + unknown > 0 {
            println!("{name}: {non_ip} passed, {unknown} in unknown framings");
        }
        (all, left) = (all + number(&summary["received"]), left + non_ip);
        found += with_ip(&captures.join(name)).len();
    }
    println!("{all} frames, tshark finds IP in {found}; {left} passed");
    assert!(found > 10_000);
}
