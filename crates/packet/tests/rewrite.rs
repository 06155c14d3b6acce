//! Rewriting of packets, held to packets that were made with the new addresses and ports from the beginning.

mod support;

use std::ops::Range;
use std::sync::Arc;

use packetloom_packet::batch::{Parsed, Policy};
use packetloom_packet::rewrite::{self, apply};
use packetloom_packet::{
    Address, Batch, Dscp, End, FrameRef, Key, KeyBits, LinkType, Rewrite, Timestamp, dissect,
};
use proptest::prelude::*;
use proptest::sample::{Index, select};
use support::*;

/// An address and a port; of the address, an IPv4 packet takes the first four bytes.
type Host = ([u8; 16], u16);

/// What follows the IP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Tcp,
    Udp,
    UdpWithoutChecksum,
    Sctp,
    Icmp,
    Icmpv6,
    Gre,
}

const KINDS: [Kind; 7] =
    [Kind::Tcp, Kind::Udp, Kind::UdpWithoutChecksum, Kind::Sctp, Kind::Icmp, Kind::Icmpv6, Kind::Gre];

impl Kind {
    fn protocol(self) -> u8 {
        match self {
            Self::Tcp => TCP,
            Self::Udp | Self::UdpWithoutChecksum => UDP,
            Self::Sctp => SCTP,
            Self::Icmp => ICMP,
            Self::Icmpv6 => ICMPV6,
            Self::Gre => GRE,
        }
    }

    fn has_ports(self) -> bool {
        !matches!(self, Self::Icmp | Self::Icmpv6 | Self::Gre)
    }

    /// Where the checksum stands, if there is one that is looked at.
    fn checksum(self) -> Option<Range<usize>> {
        match self {
            Self::Tcp => Some(16..18),
            Self::Udp => Some(6..8),
            Self::Sctp => Some(8..12),
            Self::Icmp | Self::Icmpv6 => Some(2..4),
            Self::UdpWithoutChecksum | Self::Gre => None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fragment {
    Whole,
    /// IPv6: a fragment header in a packet that is whole.
    Atomic,
    First,
    Later,
}

/// Everything about a frame but the hosts and the damage.
#[derive(Clone, Debug)]
struct Shape {
    link: LinkType,
    carrier: Vec<u8>,
    is_v6: bool,
    kind: Kind,
    fragment: Fragment,
    /// IPv4: words of options. IPv6: extension headers, each a number and the value of its length field.
    options: Vec<(u8, u8)>,
    payload: Vec<u8>,
    /// The IP header says 0 for its length.
    is_offloaded: bool,
    /// Bytes after the packet.
    padding: usize,
    /// Changes the payload after the checksums were made.
    damage: u8,
    /// Type of service, or traffic class.
    class: u8,
}

/// A frame, and where what a rewrite of one end may change stands in it.
struct Built {
    bytes: Vec<u8>,
    checksums: Vec<Range<usize>>,
}

fn put(bytes: &mut [u8], at: usize, field: &[u8]) {
    bytes[at..at + field.len()].copy_from_slice(field);
}

/// The Internet checksum (RFC 1071), word for word.
fn internet(bytes: &[u8]) -> u16 {
    let mut sum = 0u32;
    for word in bytes.chunks(2) {
        sum += u32::from(word[0]) * 256 + u32::from(*word.get(1).unwrap_or(&0));
        if sum > 0xffff {
            sum -= 0xffff;
        }
    }
    !(sum as u16)
}

/// CRC32c (RFC 9260 appendix A), bit for bit.
fn crc32c(bytes: &[u8]) -> u32 {
    let mut crc = !0u32;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc % 2 == 1 { (crc / 2) ^ 0x82f6_3b78 } else { crc / 2 };
        }
    }
    !crc
}

impl Shape {
    fn address<'a>(&self, host: &'a Host) -> &'a [u8] {
        if self.is_v6 { &host.0 } else { &host.0[..4] }
    }

    /// The whole upper-layer packet with its checksum.
    fn message(&self, source: Host, destination: Host) -> Vec<u8> {
        let header = match self.kind {
            Kind::Tcp => 20,
            Kind::Udp | Kind::UdpWithoutChecksum | Kind::Icmp | Kind::Icmpv6 => 8,
            Kind::Sctp => 12,
            Kind::Gre => 4,
        };
        let mut message = vec![0; header];
        message.extend(&self.payload);
        let len = message.len() as u32;
        if self.kind.has_ports() {
            put(&mut message, 0, &source.1.to_be_bytes());
            put(&mut message, 2, &destination.1.to_be_bytes());
        }
        match self.kind {
            Kind::Tcp => put(&mut message, 12, &[0x50, 0x18]),
            Kind::Udp | Kind::UdpWithoutChecksum => put(&mut message, 4, &(len as u16).to_be_bytes()),
            _ => {}
        }
        // RFC 9293 section 3.1 and RFC 8200 section 8.1: the same sum, whatever the width of the length.
        let pseudo = [
            self.address(&source),
            self.address(&destination),
            &len.to_be_bytes(),
            &[0, self.kind.protocol()],
        ];
        let checksum = internet(&[&pseudo.concat()[..], &message].concat()).to_be_bytes();
        match self.kind {
            Kind::Tcp => put(&mut message, 16, &checksum),
            Kind::Udp => put(&mut message, 6, if checksum == [0; 2] { &[0xff; 2] } else { &checksum }),
            Kind::Icmpv6 => put(&mut message, 2, &checksum),
            Kind::Icmp => {
                let checksum = internet(&message).to_be_bytes();
                put(&mut message, 2, &checksum);
            }
            Kind::Sctp => {
                let checksum = crc32c(&message).to_le_bytes();
                put(&mut message, 8, &checksum);
            }
            Kind::UdpWithoutChecksum | Kind::Gre => {}
        }
        if let Some(last) = message[header..].last_mut() {
            *last ^= self.damage;
        }
        message
    }

    fn build(&self, source: Host, destination: Host) -> Built {
        let message = self.message(source, destination);
        // The first fragment ends at the last multiple of 8 bytes; a later one has what can be taken for ports.
        let (offset, more, upper) = match self.fragment {
            Fragment::Whole | Fragment::Atomic => (0, false, message),
            Fragment::First => (0, true, message[..(message.len() - 1) / 8 * 8].to_vec()),
            Fragment::Later => (3, false, self.payload.clone()),
        };
        let mut packet = if self.is_v6 {
            self.ipv6(&source, &destination, offset, more, &upper)
        } else {
            self.ipv4(&source, &destination, offset, more, &upper)
        };
        let ip = self.carrier.len();
        let at = ip + packet.len() - upper.len();
        let mut checksums = Vec::new();
        if !self.is_v6 {
            checksums.push(ip + 10..ip + 12);
        }
        if self.fragment != Fragment::Later
            && let Some(range) = self.kind.checksum()
            && range.end <= upper.len()
        {
            checksums.push(at + range.start..at + range.end);
        }
        packet.resize(packet.len() + self.padding, 0xa5);
        Built { bytes: [&self.carrier[..], &packet].concat(), checksums }
    }

    fn ipv4(&self, source: &Host, destination: &Host, offset: u16, more: bool, upper: &[u8]) -> Vec<u8> {
        let header_len = 20 + 4 * self.options.len();
        let total_len = if self.is_offloaded { 0 } else { (header_len + upper.len()) as u16 };
        let mut packet = vec![1; header_len];
        put(&mut packet, 0, &[0x40 | (header_len / 4) as u8, self.class]);
        put(&mut packet, 2, &total_len.to_be_bytes());
        put(&mut packet, 6, &(offset | if more { 0x2000 } else { 0 }).to_be_bytes());
        put(&mut packet, 8, &[64, self.kind.protocol(), 0, 0]);
        put(&mut packet, 12, self.address(source));
        put(&mut packet, 16, self.address(destination));
        let checksum = internet(&packet).to_be_bytes();
        put(&mut packet, 10, &checksum);
        packet.extend(upper);
        packet
    }

    fn ipv6(&self, source: &Host, destination: &Host, offset: u16, more: bool, upper: &[u8]) -> Vec<u8> {
        // From the last header to the first, so that each knows what follows it.
        let (mut next, mut rest) = (self.kind.protocol(), upper.to_vec());
        if self.fragment != Fragment::Whole {
            (next, rest) = (44, [fragment(next, offset, more), rest].concat());
        }
        for &(number, units) in self.options.iter().rev() {
            let len = if number == 51 { (usize::from(units) + 2) * 4 } else { (usize::from(units) + 1) * 8 };
            (next, rest) = (number, [extension(next, units, len), rest].concat());
        }
        let payload_len = if self.is_offloaded { 0 } else { rest.len() as u16 };
        let mut packet = vec![0x60 | self.class >> 4, self.class << 4 | 0x0f, 0x12, 0x34];
        packet.extend(payload_len.to_be_bytes());
        packet.extend([next, 64]);
        packet.extend(self.address(source));
        packet.extend(self.address(destination));
        packet.extend(rest);
        packet
    }

    /// A rewrite of one end to a host.
    fn rewrite(&self, end: End, host: Host, with_port: bool) -> Rewrite {
        let half = |at: usize| u64::from_be_bytes(host.0[at..at + 8].try_into().expect("eight bytes"));
        let address =
            if self.is_v6 { Address::V6([half(0), half(8)]) } else { Address::V4((half(0) >> 32) as u32) };
        Rewrite { frame: 0, end, address, port: with_port.then_some(host.1) }
    }

    /// Whether what is asked for can be done.
    fn fits(&self, with_port: bool) -> bool {
        !(self.kind == Kind::Sctp && self.fragment == Fragment::First && with_port)
    }
}

fn shape() -> impl Strategy<Value = Shape> {
    let fragment = select(&[Fragment::Whole, Fragment::Atomic, Fragment::First, Fragment::Later]);
    let fragment = prop_oneof![2 => Just(Fragment::Whole), 1 => fragment];
    let option = (select(&[0u8, 43, 60, 51, 135, 139, 140]), 0u8..3);
    let payload = prop_oneof![
        9 => proptest::collection::vec(any::<u8>(), 4..60),
        1 => proptest::collection::vec(any::<u8>(), 2_000..3_000),
    ];
    let upper = (any::<bool>(), select(&KINDS), fragment, proptest::collection::vec(option, 0..5), payload);
    let rest = (any::<bool>(), 0usize..9, prop_oneof![Just(0), any::<u8>()], any::<u8>());
    (any::<Index>(), upper, rest).prop_map(
        |(carrier, (is_v6, kind, mut fragment, options, payload), (is_offloaded, padding, damage, class))| {
            if !is_v6 && fragment == Fragment::Atomic {
                fragment = Fragment::Whole;
            }
            let carriers = [carriers(), framings(is_v6)].concat();
            let (_, link, carrier) = carrier.get(&carriers).clone();
            // What follows a packet that does not say its length belongs to it.
            let padding = if is_offloaded { 0 } else { padding };
            Shape {
                link,
                carrier,
                is_v6,
                kind,
                fragment,
                options,
                payload,
                is_offloaded,
                padding,
                damage,
                class,
            }
        },
    )
}

/// Hosts that are often of all bits set or none: where the checksum's two zeros are met.
fn host() -> impl Strategy<Value = Host> {
    let port = prop_oneof![any::<u16>(), Just(0), Just(u16::MAX)];
    (prop_oneof![any::<[u8; 16]>(), Just([0; 16]), Just([0xff; 16])], port)
}

fn end() -> impl Strategy<Value = End> {
    select(&[End::Source, End::Destination])
}

/// The two hosts, one of them replaced.
fn replaced(hosts: (Host, Host), end: End, to: Host, with_port: bool) -> (Host, Host) {
    let (mut source, mut destination) = hosts;
    let host = if end == End::Source { &mut source } else { &mut destination };
    host.0 = to.0;
    if with_port {
        host.1 = to.1;
    }
    (source, destination)
}

proptest! {
    #[test]
    fn a_rewritten_packet_is_the_packet_of_the_new_host(
        shape in shape(), hosts in (host(), host()), end in end(), to in host(), with_port: bool,
    ) {
        let mut frame = shape.build(hosts.0, hosts.1).bytes;
        let wire_len = frame.len() as u32;
        let before = frame.clone();
        let is_applied = apply(&shape.rewrite(end, to, with_port), shape.link, &mut frame, wire_len);
        prop_assert_eq!(is_applied, shape.fits(with_port));
        let hosts = if is_applied { replaced(hosts, end, to, with_port) } else { hosts };
        let expected = shape.build(hosts.0, hosts.1).bytes;
        prop_assert!(is_applied || before == frame);
        prop_assert_eq!(frame, expected);
    }

    #[test]
    fn of_a_cut_frame_what_is_there_is_rewritten(
        shape in shape(), hosts in (host(), host()), end in end(), to in host(), with_port: bool,
    ) {
        let before = shape.build(hosts.0, hosts.1);
        let wire_len = before.bytes.len() as u32;
        let new = replaced(hosts, end, to, with_port);
        let after = shape.build(new.0, new.1);
        for cut in 0..=before.bytes.len().min(250) {
            let mut frame = before.bytes[..cut].to_vec();
            let has_key = dissect(shape.link, &frame, wire_len).is_ok();
            let is_applied = apply(&shape.rewrite(end, to, with_port), shape.link, &mut frame, wire_len);
            prop_assert_eq!(is_applied, has_key && shape.fits(with_port));
            let mut expected = if is_applied { after.bytes[..cut].to_vec() } else { before.bytes[..cut].to_vec() };
            // A checksum of which a part is missing is left.
            for field in before.checksums.iter().filter(|field| field.contains(&cut)) {
                expected[field.start..].copy_from_slice(&before.bytes[field.start..cut]);
            }
            prop_assert_eq!(frame, expected, "cut at {}", cut);
        }
    }

    #[test]
    fn there_and_back_is_where_it_was(
        shape in shape(), hosts in (host(), host()), end in end(), to in host(), with_port: bool,
        checksum in prop_oneof![any::<u16>(), Just(0), Just(u16::MAX)],
    ) {
        let Built { mut bytes, checksums } = shape.build(hosts.0, hosts.1);
        let wire_len = bytes.len() as u32;
        // Any checksum, so that what was wrong must be as wrong afterwards.
        for field in &checksums {
            put(&mut bytes, field.start, &checksum.to_be_bytes());
        }
        let mut frame = bytes.clone();
        let from = if end == End::Source { hosts.0 } else { hosts.1 };
        for host in [to, from] {
            apply(&shape.rewrite(end, host, with_port), shape.link, &mut frame, wire_len);
        }
        // 0 and 0xffff are the same number in ones' complement; UDP's 0 is none.
        for field in checksums.iter().filter(|field| field.len() == 2) {
            let [was, is] = [&bytes, &frame].map(|bytes| u16::from_be_bytes([bytes[field.start], bytes[field.start + 1]]));
            prop_assert_eq!(was % 0xffff, is % 0xffff);
            frame[field.clone()].copy_from_slice(&was.to_be_bytes());
        }
        prop_assert_eq!(frame, bytes);
    }

    #[test]
    fn arbitrary_bytes_never_panic(
        carrier in select(all_carriers()),
        packet in prop_oneof![select(packets()), proptest::collection::vec(any::<u8>(), 0..200)],
        damage in proptest::collection::vec((any::<Index>(), any::<u8>()), 0..6),
        wire_len in prop_oneof![any::<u32>(), 0u32..300],
        end in end(), to in host(), is_v6: bool, with_port: bool,
    ) {
        let (_, link, header) = carrier;
        let mut frame = [header, packet].concat();
        for (index, byte) in damage {
            if !frame.is_empty() {
                let at = index.index(frame.len());
                frame[at] = byte;
            }
        }
        let shape = Shape {
            link, carrier: vec![], is_v6, kind: Kind::Gre, fragment: Fragment::Whole, options: vec![],
            payload: vec![], is_offloaded: false, padding: 0, damage: 0, class: 0,
        };
        check_batch(link, frame, wire_len, shape.rewrite(end, to, with_port))?;
    }

    #[test]
    fn the_key_of_a_batch_is_that_of_the_rewritten_frame(
        shape in shape(), hosts in (host(), host()), end in end(), to in host(), with_port: bool,
    ) {
        let frame = shape.build(hosts.0, hosts.1).bytes;
        let wire_len = frame.len() as u32;
        check_batch(shape.link, frame, wire_len, shape.rewrite(end, to, with_port))?;
    }
}

fn dscp() -> impl Strategy<Value = Dscp> {
    (0u64..64).prop_map(|number| Dscp::new(number).expect("a DSCP"))
}

proptest! {
    /// The header checksum of the packet that is expected is summed up anew.
    #[test]
    fn a_marked_packet_is_the_packet_of_the_new_dscp(shape in shape(), hosts in (host(), host()), to in dscp()) {
        let before = shape.build(hosts.0, hosts.1);
        let marked = Shape { class: to.number() << 2 | shape.class & 3, ..shape.clone() };
        let after = marked.build(hosts.0, hosts.1);
        let old = Dscp::new((shape.class >> 2).into());
        for cut in 0..=before.bytes.len().min(250) {
            let mut frame = before.bytes[..cut].to_vec();
            let mut expected = after.bytes[..cut].to_vec();
            // The first two bytes of the header are written as one, and so is the checksum.
            let is_there = cut >= shape.carrier.len() + 2;
            let found = rewrite::dscp(shape.link, &frame);
            prop_assert_eq!(found, old.filter(|_| is_there), "cut at {}", cut);
            let checksum = shape.carrier.len() + 10;
            if !is_there {
                expected.clone_from(&frame);
            } else if !shape.is_v6 && cut == checksum + 1 {
                expected[checksum] = frame[checksum];
            }
            prop_assert_eq!(rewrite::set_dscp(to, shape.link, &mut frame), is_there);
            prop_assert_eq!(&frame, &expected, "cut at {}", cut);
            prop_assert_eq!(rewrite::dscp(shape.link, &frame), Some(to).filter(|_| is_there));
        }
    }

    /// In any bytes nothing else changes, and a wrong checksum is as wrong as before.
    #[test]
    fn marks_leave_all_else(
        carrier in select(all_carriers()),
        packet in prop_oneof![select(packets()), proptest::collection::vec(any::<u8>(), 0..200)],
        damage in proptest::collection::vec((any::<Index>(), any::<u8>()), 0..6),
        to in dscp(),
    ) {
        let (_, link, header) = carrier;
        let mut frame = [header, packet].concat();
        for (index, byte) in damage {
            if !frame.is_empty() {
                let at = index.index(frame.len());
                frame[at] = byte;
            }
        }
        let before = frame.clone();
        let old = rewrite::dscp(link, &frame);
        prop_assert_eq!(rewrite::set_dscp(to, link, &mut frame), old.is_some());
        prop_assert_eq!(rewrite::dscp(link, &frame), old.map(|_| to));
        if let Some(old) = old {
            prop_assert!(rewrite::set_dscp(old, link, &mut frame));
        }
        // But for a checksum of 0xffff, which is the same number as 0.
        let different: Vec<_> = (0..frame.len()).filter(|&at| frame[at] != before[at]).collect();
        let is_zero = |[first, second]: [usize; 2]| {
            second == first + 1 && before[first..=second] == [0xff; 2] && frame[first..=second] == [0; 2]
        };
        let same = different.is_empty() || different.try_into().is_ok_and(is_zero);
        prop_assert!(same, "{:x?}\n{:x?}", before, frame);
    }

    #[test]
    fn a_batch_has_the_dscp_of_the_marked_frame(
        shape in shape(), hosts in (host(), host()), to in prop::collection::vec(dscp(), 1..3), and_moves: bool,
    ) {
        let mut frame = shape.build(hosts.0, hosts.1).bytes;
        let mut batch = Batch::new(1);
        batch.reset(Arc::new(frame.clone()));
        let len = frame.len() as u32;
        batch.push(FrameRef { offset: 0, time: Timestamp::default(), len, wire_len: len, link: shape.link, port: 0 });
        batch.parse(Policy::PASS);
        prop_assert_eq!(Some(batch.columns().dscp(0)), rewrite::dscp(shape.link, &frame));
        let moves = shape.rewrite(End::Source, hosts.1, false);
        for &dscp in &to {
            prop_assert!(batch.set_dscp(0, dscp));
            prop_assert_eq!((batch.columns().dscp(0), batch.rewritten_dscp(0)), (dscp, Some(dscp)));
        }
        if and_moves {
            prop_assert!(batch.rewrite(moves) && apply(&moves, shape.link, &mut frame, len));
        }
        prop_assert_eq!(batch.rewrites(0).count(), usize::from(and_moves));
        rewrite::set_dscp(*to.last().expect("one"), shape.link, &mut frame);
        let mut written = batch.bytes(0).to_vec();
        batch.apply_rewrites(0, &mut written);
        prop_assert_eq!(written, frame);
    }
}

/// RFC 1071's sum by hand: 4500+0054+0000+4000+4001+0a00+0001+0a00+0002 = d958 (+ 0, nothing is carried), so the checksum is 26a7.
/// With AF12 and ECT(0), 4532: the sum is d98a, the checksum 2675.
#[test]
fn a_checksum_by_hand() {
    let header = "4500005400004000400126a70a0000010a000002";
    let bytes = |text: &str| -> Vec<u8> {
        let byte = |at| u8::from_str_radix(&text[at..at + 2], 16).expect("digits");
        (0..text.len()).step_by(2).map(byte).collect()
    };
    let mut frame = bytes(header);
    assert_eq!(internet(&frame), 0);
    // ECT(0) with the default DSCP, as who sends it makes it: 4502, 26a5.
    put(&mut frame, 0, &[0x45, 2]);
    put(&mut frame, 10, &[0x26, 0xa5]);
    assert!(rewrite::set_dscp("af12".parse().expect("a name"), LinkType::RAW, &mut frame));
    assert_eq!((&frame[..2], &frame[10..12]), (&[0x45, 0x32][..], &[0x26, 0x75][..]));
    assert_eq!(internet(&frame), 0);
    // IPv6: EF is 46, 101110; the traffic class becomes 1011 1011 with the two bits of congestion notification.
    let mut frame = [bytes("60312345"), vec![0; 36]].concat();
    assert!(rewrite::set_dscp(Dscp::EF, LinkType::RAW, &mut frame));
    assert_eq!((&frame[..4], &frame[4..]), (&bytes("6bb12345")[..], &[0; 36][..]));
}

/// A batch takes a rewrite where it can be applied, and then has the key that the rewritten frame has.
fn check_batch(
    link: LinkType,
    mut frame: Vec<u8>,
    wire_len: u32,
    rewrite: Rewrite,
) -> Result<(), TestCaseError> {
    let mut batch = Batch::new(1);
    batch.reset(Arc::new(frame.clone()));
    let len = frame.len() as u32;
    batch.push(FrameRef { offset: 0, time: Timestamp::default(), len, wire_len, link, port: 0 });
    batch.parse(Policy::PASS);
    let is_taken = batch.rewrite(rewrite);
    let before = frame.clone();
    prop_assert_eq!(apply(&rewrite, link, &mut frame, wire_len), is_taken);
    prop_assert!(is_taken || frame == before);
    prop_assert_eq!(batch.bytes(0), before);
    prop_assert_eq!(batch.rewrites(0).count(), usize::from(is_taken));
    let key = match batch.parsed()[0] {
        Parsed::V4(_) => Ok(Key::V4(batch.v4().keys[0])),
        Parsed::V6(_) => Ok(Key::V6(batch.v6().keys[0])),
        Parsed::Rejected(reject) => Err(reject),
    };
    prop_assert_eq!(dissect(link, &frame, wire_len).map(|headers| headers.key), key);
    Ok(())
}

#[test]
fn an_address_of_the_other_version_is_refused() {
    let addresses = [Address::V4(0x0a00_0001), Address::V6([1, 2])];
    for packet in packets() {
        let is_v6 = packet[0] >> 4 == 6;
        for (address, is_for_v6) in addresses.into_iter().zip([false, true]) {
            let rewrite = Rewrite { frame: 0, end: End::Source, address, port: None };
            let mut frame = packet.clone();
            let is_applied = apply(&rewrite, LinkType::RAW, &mut frame, packet.len() as u32);
            assert_eq!((is_applied, frame != packet), (is_v6 == is_for_v6, is_v6 == is_for_v6));
        }
    }
}

#[test]
fn every_port_gets_its_checksum() {
    for (kind, is_v6) in [(Kind::Udp, false), (Kind::Udp, true), (Kind::Tcp, false), (Kind::Tcp, true)] {
        let shape = Shape {
            link: LinkType::RAW,
            carrier: vec![],
            is_v6,
            kind,
            fragment: Fragment::Whole,
            options: vec![],
            payload: vec![1, 2, 3],
            is_offloaded: false,
            padding: 0,
            damage: 0,
            class: 0,
        };
        let hosts = (([1; 16], 1), ([2; 16], 2));
        let mut frame = shape.build(hosts.0, hosts.1);
        let mut has_met_zero = false;
        for port in 0..=u16::MAX {
            let to = ([3; 16], port);
            let wire_len = frame.bytes.len() as u32;
            assert!(apply(&shape.rewrite(End::Source, to, true), LinkType::RAW, &mut frame.bytes, wire_len));
            assert_eq!(frame.bytes, shape.build(to, hosts.1).bytes, "{kind:?}, {port}");
            let checksum = &frame.bytes[frame.checksums[frame.checksums.len() - 1].clone()];
            has_met_zero |= checksum == if kind == Kind::Udp { [0xff; 2] } else { [0; 2] };
        }
        // As TCP has it; as UDP, where 0 says something else, has it.
        assert!(has_met_zero, "{kind:?}");
    }
}

#[test]
fn without_a_port_it_stays() {
    let mut frame = Ipv4::of(TCP).packet(&tcp(80, 9_000, 0x10));
    let rewrite = Rewrite { frame: 0, end: End::Destination, address: Address::V4(0x0a00_0001), port: None };
    assert!(apply(&rewrite, LinkType::RAW, &mut frame, 40));
    let bits = [KeyBits::PORTS, KeyBits::TCP_FLAGS, KeyBits::WHOLE];
    let Key::V4(mut expected) = key4(TCP, (80, 9_000), 0x10, &bits) else { unreachable!() };
    expected.destination = 0x0a00_0001;
    assert_eq!(raw_key(&frame), Ok(Key::V4(expected)));
}
