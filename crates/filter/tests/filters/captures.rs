//! Filters on real captures: against the oracle, and against libpcap where a frame is in untagged Ethernet.

use std::path::{Path, PathBuf};

use packetloom_filter::Filter;
use packetloom_io::capture::CaptureReader;
use packetloom_io::input::Stop;
use packetloom_packet::{Batch, LinkType};
use packetloom_testing::{amount, corpus};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;

use crate::agreement::check;
use crate::frames::RawFrame;
use crate::libpcap::{Counts, Difference, compare};
use crate::pcap::Pcap;
use crate::texts::shared_filters;

/// What people write.
const USUAL: [&str; 30] = [
    "tcp",
    "udp port 53",
    "port 53 or 80 or 443",
    "tcp port 443 and net 10.0.0.0/8",
    "not tcp and not udp",
    "host 192.168.1.1 or net 192.168.0.0/16",
    "src net 10.0.0.0/8 and dst portrange 1-1024",
    "tcp[tcpflags] & (tcp-syn|tcp-ack) == tcp-syn",
    "tcp[tcpflags] & tcp-rst != 0",
    "tcp port 80 and (((ip[2:2] - ((ip[0]&0xf)<<2)) - ((tcp[12]&0xf0)>>2)) != 0)",
    "tcp[(tcp[12] & 0xf0) >> 2 : 4] = 0x47455420",
    "icmp",
    "icmp[icmptype] != icmp-echo and icmp[icmptype] != icmp-echoreply",
    "icmp6 and icmp6[icmp6type] = icmp6-neighborsolicit",
    "ip6",
    "ip6 and not icmp6",
    "ip6 multicast or ip multicast",
    "arp or rarp",
    "arp host 192.168.1.1",
    "broadcast",
    "multicast and not broadcast",
    "ether[0] & 1 = 0 and ip[16] >= 224",
    "ip[6:2] & 0x3fff != 0",
    "ip[8] < 5",
    "ip[0] & 0xf != 5",
    "less 100",
    "greater 1000 and tcp",
    "sctp or esp or ah or proto 47",
    "udp[8:2] & 0x8000 != 0 and port 53",
    "ether proto 0x88cc or ip proto 2",
];

/// The frames of a capture.
fn frames(path: &Path) -> Vec<RawFrame> {
    let mut reader = CaptureReader::open(path, &Stop::default()).expect("a capture");
    let mut batch = Batch::new(512);
    let mut frames = Vec::new();
    while reader.fill(&mut batch).expect("readable") {
        for (index, frame) in batch.frames().iter().enumerate() {
            let bytes = batch.bytes(index).to_vec();
            frames.push(RawFrame { link: frame.link, bytes, wire_len: frame.wire_len });
        }
    }
    frames
}

/// All captures of the corpus.
fn captures() -> Option<Vec<PathBuf>> {
    let folder = corpus("captures")?;
    let entries = folder.read_dir().expect("a folder").map(|entry| entry.expect("an entry").path());
    let is_capture = |path: &PathBuf| {
        path.extension()
            .is_some_and(|extension| ["pcap", "pcapng", "cap"].iter().any(|name| extension == *name))
    };
    let mut captures: Vec<_> = entries.filter(is_capture).collect();
    captures.sort();
    assert!(captures.len() > 80, "{} captures", captures.len());
    Some(captures)
}

fn random_filters(count: usize) -> Vec<String> {
    let mut runner = TestRunner::deterministic();
    let strategy = shared_filters();
    (0..count).map(|_| strategy.new_tree(&mut runner).expect("a filter").current()).collect()
}

#[test]
fn captures_are_filtered_as_the_oracle_and_libpcap_filter_them() {
    let Some(captures) = captures() else { return };
    let pcap = Pcap::load();
    let random = random_filters(amount(60, 600));
    let texts: Vec<&str> = USUAL.into_iter().chain(random.iter().map(String::as_str)).collect();
    let filters: Vec<_> = texts.iter().map(|text| Filter::parse(text).expect(text)).collect();
    let programs: Option<Vec<_>> =
        pcap.as_ref().map(|pcap| texts.iter().map(|text| pcap.compile(text).expect(text)).collect());
    let (mut counts, mut matched_usual, mut total, mut judged_frames) =
        (Counts::default(), [0; USUAL.len()], 0, 0);
    for path in captures {
        // Long captures: their beginning.
        let mut frames = frames(&path);
        frames.truncate(amount(400, usize::MAX));
        total += frames.len();
        let batch = crate::agreement::batch(&frames);
        for (at, filter) in filters.iter().enumerate() {
            let (matched, judged) = check(filter, &frames, &batch);
            if let Some(count) = matched_usual.get_mut(at) {
                *count += matched;
            }
            judged_frames += if at == 0 { judged } else { 0 };
        }
        if let (Some(pcap), Some(programs)) = (&pcap, &programs) {
            for frame in frames.iter().filter(|frame| frame.link == LinkType::ETHERNET) {
                for both in filters.iter().zip(programs) {
                    compare(pcap, both, frame, &mut counts);
                }
            }
        }
    }
    eprintln!("{total} frames, {judged_frames} by the oracle; {counts:?}; {matched_usual:?}");
    assert!(judged_frames * 10 > total * 9, "{judged_frames} of {total}");
    let without: Vec<_> = USUAL.iter().zip(matched_usual).filter(|&(_, count)| count == 0).collect();
    assert!(without.len() < 6, "filters that find nothing say little: {without:?}");
    if pcap.is_some() {
        let differing: usize = counts.by_difference.iter().sum();
        assert!(counts.equal > differing * 4, "{counts:?}");
        assert!(counts.by_difference[Difference::Framing as usize] > 0, "{counts:?}");
    }
}
