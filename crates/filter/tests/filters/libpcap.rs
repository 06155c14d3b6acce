//! The same filters compiled by libpcap, on untagged Ethernet frames: the same results but for differences that have a name.

use packetloom_filter::Filter;
use packetloom_filter::tree::{Base, Node, Op, Test};
use packetloom_packet::dissect::dissect_with_layers;
use packetloom_packet::{LinkType, Reject};
use packetloom_testing::amount;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use crate::frames::{RawFrame, untagged};
use crate::oracle::{self, Seen};
use crate::pcap::{Pcap, Run};
use crate::texts::shared_filters;

/// Why a result may differ from libpcap's: the table "Differences from libpcap" of docs/filters.md.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Difference {
    /// libpcap ends a program at a load beyond the captured bytes: the frame does not match, whatever else the filter says.
    Aborted,
    /// libpcap read bytes behind the IP packet.
    Padding,
    /// Headers that are cut or contradict each other: we find no ports and the like there.
    Malformed,
    /// Less than a fixed IP header was captured, or its version contradicts the EtherType.
    NoIpHeader,
    /// We look behind the extension headers of IPv6.
    ExtensionHeaders,
    /// We index transport headers in IPv6, too.
    Ipv6Index,
    /// We look behind VLAN tags, MPLS, PPPoE and LLC.
    Framing,
    /// libpcap forgets that the right operand of an operator is of a protocol that the packet is not of.
    RightOperand,
}

pub(crate) const DIFFERENCES: usize = 8;

/// Whether a filter asks for more than addresses of IP.
fn any_test(tree: &[Node], mut is_such: impl FnMut(&Test) -> bool) -> bool {
    tree.iter().any(|node| matches!(node, Node::Test(test) if is_such(test)))
}

fn any_op(test: &Test, mut is_such: impl FnMut(&Op) -> bool) -> bool {
    matches!(test, Test::Compare(both) if both.left.iter().chain(&both.right).any(&mut is_such))
}

fn is_about_transport(test: &Test) -> bool {
    let is_transport = |op: &Op| {
        matches!(op, Op::TcpFlags | Op::Icmp { .. } | Op::Load { base: Base::Transport { .. }, .. })
    };
    matches!(test, Test::Protocol { .. } | Test::Ports { .. } | Test::TcpFlags { .. })
        || any_op(test, is_transport)
}

/// Whether it indexes the header of a protocol of both IP versions.
fn is_index_of_both(test: &Test) -> bool {
    let is_such = |op: &Op| {
        matches!(op, Op::TcpFlags | Op::Load { base: Base::Transport { ipv4: true, ipv6: true, .. }, .. })
    };
    matches!(test, Test::TcpFlags { .. }) || any_op(test, is_such)
}

/// Whether a comparison has a right operand with an index, and no value.
fn is_right_operand_missing(test: &Test, seen: Option<&Seen>) -> bool {
    let Test::Compare(both) = test else { return false };
    [&both.left, &both.right].into_iter().any(|ops| {
        let has_index = (0..ops.len()).filter(|&at| matches!(ops[at], Op::Binary(_))).any(|at| {
            let right = oracle::right_operand(&ops[..at]);
            ops[right..at].iter().any(|op| matches!(op, Op::Load { .. } | Op::TcpFlags | Op::Icmp { .. }))
        });
        has_index && seen.is_none_or(|seen| oracle::value(ops, seen).is_none())
    })
}

/// The same of flags of TCP, of which the tree does not say on which side of the operator they stood.
fn are_right_flags_missing(filter: &Filter, seen: Option<&Seen>) -> bool {
    let are_flags = |test: &Test| matches!(test, Test::TcpFlags { .. });
    let text: String = filter.to_string().split([' ', '(']).collect();
    text.contains("&tcp[")
        && any_test(filter.tree(), are_flags)
        && seen.and_then(|seen| seen.ip.as_ref()).is_none_or(|ip| ip.flags.is_none())
}

/// The difference that a frame may make to a filter.
pub(crate) fn difference(filter: &Filter, frame: &RawFrame, run: Run) -> Option<Difference> {
    let tree = filter.tree();
    let bytes = &frame.bytes;
    if run.is_aborted {
        return Some(Difference::Aborted);
    }
    let seen = oracle::see(frame);
    if any_test(tree, |test| is_right_operand_missing(test, seen.as_ref()))
        || are_right_flags_missing(filter, seen.as_ref())
    {
        return Some(Difference::RightOperand);
    }
    let ethertype = bytes.get(12..14).map_or(0, |field| u16::from_be_bytes([field[0], field[1]]));
    let version = match ethertype {
        0x0800 => 4,
        0x86dd => 6,
        _ => {
            let (is_key, is_none) = match dissect_with_layers(frame.link, bytes, frame.wire_len) {
                Ok(_) => (true, false),
                Err(reject) => (false, matches!(reject, Reject::NotIp | Reject::UnknownFraming)),
            };
            // A frame that is neither IP nor tagged has only its EtherType.
            let is_tagged = matches!(ethertype, 0x8100 | 0x88a8 | 0x9100 | 0x9200);
            let is_framing = is_tagged || is_key || !is_none;
            return is_framing.then_some(Difference::Framing);
        }
    };
    let fixed = if version == 4 { 20 } else { 40 };
    let nibble = bytes.get(14).map(|byte| byte >> 4);
    if bytes.len() < 14 + fixed || nibble != Some(version) {
        return Some(Difference::NoIpHeader);
    }
    let seen = seen.and_then(|seen| seen.ip).expect("an IP packet");
    if !seen.is_sound {
        return any_test(tree, is_about_transport).then_some(Difference::Malformed);
    }
    if run.read_to > seen.end {
        return Some(Difference::Padding);
    }
    let is_extended = version == 6 && matches!(bytes[20], 0 | 43 | 44 | 51 | 60 | 135 | 139 | 140);
    if is_extended && any_test(tree, is_about_transport) {
        return Some(Difference::ExtensionHeaders);
    }
    (version == 6 && any_test(tree, is_index_of_both)).then_some(Difference::Ipv6Index)
}

/// Frames compared, and those that were not, by difference.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) equal: usize,
    pub(crate) matched: usize,
    pub(crate) by_difference: [usize; DIFFERENCES],
}

/// Compares one filter on one frame.
pub(crate) fn compare(
    pcap: &Pcap,
    (filter, program): (&Filter, &crate::pcap::Program),
    frame: &RawFrame,
    counts: &mut Counts,
) {
    let run = pcap.run(program, frame);
    let ours = filter.matches(frame.link, &frame.bytes, frame.wire_len);
    match difference(filter, frame, run) {
        Some(difference) => counts.by_difference[difference as usize] += 1,
        None => {
            assert_eq!(ours, run.matches, "{filter}: {frame:02x?}");
            counts.equal += 1;
            counts.matched += usize::from(ours);
        }
    }
}

#[test]
fn random_filters_match_the_same_frames() {
    let Some(pcap) = Pcap::load() else { return };
    let mut counts = Counts::default();
    let config = ProptestConfig {
        cases: amount(3_000, 30_000),
        failure_persistence: None,
        ..ProptestConfig::default()
    };
    let mut runner = TestRunner::new(config);
    let counted = std::cell::RefCell::new(&mut counts);
    let result = runner.run(&(shared_filters(), vec(untagged(), 1..24)), |(text, frames)| {
        let filter = Filter::parse(&text).map_err(|error| TestCaseError::fail(format!("{text}: {error}")))?;
        let program =
            pcap.compile(&text).map_err(|error| TestCaseError::fail(format!("{text}: libpcap: {error}")))?;
        frames.iter().for_each(|frame| compare(&pcap, (&filter, &program), frame, &mut counted.borrow_mut()));
        Ok(())
    });
    result.unwrap_or_else(|error| panic!("{error}"));
    let differing: usize = counts.by_difference.iter().sum();
    eprintln!("{counts:?}");
    assert!(counts.equal > differing, "most are compared: {counts:?}");
    assert!(counts.matched * 10 > counts.equal, "{counts:?}");
}

#[test]
fn what_libpcap_refuses_and_takes() {
    let Some(pcap) = Pcap::load() else { return };
    // Taken by both: forms of the manual.
    for text in [
        "",
        "host 10.1.2.3",
        "net 10",
        "net 10.1",
        "net 10.1 mask 255.255",
        "src or dst port 80",
        "tcp portrange 1-5 or 7-9",
        "port (80 or 443)",
        "port 80 or (443 or 444)",
        "port not 80",
        "host 10.1.2.3 and not (10.1.2.4 or 10.1.2.5)",
        "tcp[tcpflags] & (tcp-syn|tcp-fin) != 0 and not src and dst net 10.0.0.0/8",
        "tcp port 80 and (((ip[2:2] - ((ip[0]&0xf)<<2)) - ((tcp[12]&0xf0)>>2)) != 0)",
        "ether[0] & 1 = 0 and ip[16] >= 224",
        "icmp[icmptype] != icmp-echo and icmp[icmptype] != icmp-echoreply",
        "ether host aabb.ccdd.eeff or aabbccddeeff",
        "len ^ 5 ^ 6 = 3",
        "-len = 5",
        "1 = len",
        "(len) = (60)",
        "vlan 5 and vlan",
        "not not not ip",
        "less 0x10",
    ] {
        Filter::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        pcap.compile(text).unwrap_or_else(|error| panic!("{text}: libpcap: {error}"));
    }
    // Refused by both.
    for text in [
        "10.0.0.1",
        "80",
        "(80)",
        "len",
        "host 10.0.0.0/8",
        "net 10.0.0.1/8",
        "net 10.0.0.0/33",
        "host 2001:db8::/32",
        "net 2001:db8::1/32",
        "ip6 host 1.2.3.4",
        "arp net ::/0",
        "ip port 80",
        "arp port 5",
        "tcp host 1.2.3.4",
        "tcp src 80",
        "port 65536",
        "port 08",
        "vlan 4096",
        "(port 80) or 81",
        "tcp port 80 and (udp or 443)",
        "len = 5 or 6",
        "len > 5 > 6",
        "ip and",
        "or ip",
        "ip)",
        "(ip",
        "ah[0] = 1",
        "tcp[0:3] = 1",
        "tcp[0",
        "len / 0 = 1",
        "len << 32 = 1",
        "less -1",
        "TCP",
        "ether",
        "ether aa:bb:cc:dd:ee:ff",
        "ip6 broadcast",
        "ip broadcast",
        "arp multicast",
        "host",
        "port 80, 443",
        "src port or dst port 5",
    ] {
        assert!(Filter::parse(text).is_err(), "{text}");
        assert!(pcap.compile(text).is_err(), "libpcap: {text}");
    }
    // Taken here alone.
    for text in ["net 10/8", "proto tcp", "icmpv6", "port 4739 or ipfix and net 10/8 or 11/8"] {
        Filter::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
    }
    // Taken by libpcap alone.
    for text in
        ["ip6 protochain 6", "mpls", "pppoes 5", "ether proto 0x42", "net 0", "len ^ 5 + 6 = 3", "host 10.1"]
    {
        assert!(Filter::parse(text).is_err(), "{text}");
        pcap.compile(text).unwrap_or_else(|error| panic!("{text}: libpcap: {error}"));
    }
}

/// A frame of IPv4 or TCP in IPv6, with what stands between Ethernet's addresses and IP.
fn framed(between: &[u8], packet: &[u8]) -> RawFrame {
    let bytes = [&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2], between, packet].concat();
    RawFrame { link: LinkType::ETHERNET, wire_len: bytes.len() as u32, bytes }
}

fn tcp4() -> Vec<u8> {
    let mut bytes = vec![0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0, 10, 1, 2, 3, 192, 0, 2, 1];
    bytes.extend([0, 80, 4, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x12, 1, 0, 0, 0, 0, 0]);
    bytes
}

fn tcp6(extension: &[u8]) -> Vec<u8> {
    let mut bytes =
        vec![0x60, 0, 0, 0, 0, 20 + extension.len() as u8, if extension.is_empty() { 6 } else { 0 }, 64];
    bytes.extend([0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    bytes.extend([0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
    bytes.extend(extension);
    bytes.extend([0, 80, 4, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x12, 1, 0, 0, 0, 0, 0]);
    bytes
}

#[test]
fn the_differences_are_those_that_are_documented() {
    let Some(pcap) = Pcap::load() else { return };
    let plain = framed(&[8, 0], &tcp4());
    let tagged = framed(&[0x81, 0, 0, 5, 8, 0], &tcp4());
    let twice = framed(&[0x88, 0xa8, 0, 5, 0x81, 0, 0, 6, 8, 0], &tcp4());
    let mpls = framed(&[0x88, 0x47, 0, 1, 0x01, 64], &tcp4());
    let v6 = framed(&[0x86, 0xdd], &tcp6(&[]));
    let extended = framed(&[0x86, 0xdd], &tcp6(&[6, 0, 1, 4, 0, 0, 0, 0]));
    let mut cut = framed(&[8, 0], &tcp4());
    cut.bytes.truncate(36);
    let mut cut_header = framed(&[8, 0], &tcp4());
    cut_header.bytes.truncate(30);
    let mut udp = framed(&[8, 0], &tcp4());
    udp.bytes[14 + 9] = 17;
    let padded = framed(&[8, 0], &[&tcp4()[..], &[7; 6]].concat());
    let cases = [
        // Text, frame, ours, libpcap's.
        ("tcp port 80", &plain, true, true),
        ("tcp port 80", &tagged, true, false),
        ("ip", &tagged, true, false),
        ("vlan and ip", &tagged, true, true),
        ("vlan 5", &tagged, true, true),
        ("vlan 6", &tagged, false, false),
        ("vlan 5", &twice, true, true),
        ("vlan 6", &twice, true, false),
        ("vlan 5 and vlan 6", &twice, true, true),
        ("vlan 6 and vlan 5", &twice, true, false),
        (r"ether proto \ip", &tagged, true, false),
        ("ether proto 0x8100", &tagged, true, true),
        ("ether proto 0x8100", &twice, true, false),
        ("tcp port 80", &mpls, true, false),
        ("vlan", &mpls, false, false),
        ("tcp port 80", &v6, true, true),
        ("tcp[tcpflags] & tcp-syn != 0", &v6, true, false),
        ("tcp[0:2] = 80", &v6, true, false),
        ("tcp port 80", &extended, true, false),
        ("tcp", &extended, true, false),
        ("ip6 proto 0", &extended, true, true),
        ("ip6[6] = 0", &extended, true, true),
        // libpcap does not check the protocol of right operands.
        ("0 = tcp[13] & 128", &udp, false, false),
        ("0 = 128 & tcp[13]", &udp, false, true),
        ("1 + udp[0] > 0", &plain, false, true),
        // libpcap's programs end where bytes are missing.
        ("not tcp port 80", &cut, true, false),
        ("not dst port 80", &cut, true, false),
        ("tcp[13] = 0 or ip", &cut, true, false),
        ("ip", &cut, true, true),
        ("ip", &cut_header, false, true),
        ("ip[41] = 7", &padded, false, true),
        ("ether[55] = 7", &padded, true, true),
    ];
    for (text, frame, ours, theirs) in cases {
        let filter = Filter::parse(text).unwrap();
        let program = pcap.compile(text).unwrap();
        assert_eq!(filter.matches(frame.link, &frame.bytes, frame.wire_len), ours, "{text}: {frame:02x?}");
        assert_eq!(pcap.run(&program, frame).matches, theirs, "libpcap: {text}: {frame:02x?}");
    }
}

#[test]
fn named_numbers_are_those_of_libpcap() {
    let Some(pcap) = Pcap::load() else { return };
    let frame = framed(&[8, 0], &tcp4());
    let mut names = 0;
    // Every name of a number that this machine's libpcap may know, by trying all numbers of one byte.
    for name in include_str!("../../src/names.rs").lines().filter_map(|line| {
        let line = line.trim().strip_prefix("(\"")?;
        let (name, number) = line.split_once("\", ")?;
        let is_number = name.starts_with("icmp") || name.starts_with("tcp");
        (is_number && number.starts_with(|c: char| c.is_ascii_digit())).then_some(name)
    }) {
        let number = (0..256).find(|number| {
            let filter = Filter::parse(&format!("len + 1000 = {name} + {}", 1000 + 54 - number)).unwrap();
            filter.matches(frame.link, &frame.bytes, frame.wire_len)
        });
        let number = number.unwrap_or_else(|| panic!("{name}"));
        let program = pcap.compile(&format!("len + 1000 = {name} + {}", 1000 + 54 - number)).unwrap();
        assert!(pcap.run(&program, &frame).matches, "{name} = {number}");
        names += 1;
    }
    assert!(names > 50, "{names}");
}
