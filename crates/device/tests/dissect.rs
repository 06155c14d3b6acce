//! The kernels' walk over headers beside the software's, on the host and on what other devices there are.

use std::collections::BTreeMap;
use std::rc::Rc;

use packetloom_device::{Arguments, Cache, Device, Entry, Error, Id, Kernel, Program};
use packetloom_packet::dissect::{
    HEADERS_BEYOND, HEADERS_REJECTED, HEADERS_V4, HEADERS_V6, KERNEL, defines, dissect, is_beyond_kernels,
};
use packetloom_packet::{Headers, Key, KeyBits, LinkType, Reject};

use support::*;

#[path = "../../packet/tests/support/mod.rs"]
mod support;

/// Bytes of local memory for each item. Odd, so that frames begin and end at any alignment.
const SLOT: usize = 333;
/// Words of an answer.
const WORDS: usize = 13;
/// Cases of one launch.
const LAUNCH: usize = 1 << 15;

/// A slice ends where its slot does: with one item in a group, that is where local memory does.
const SOURCE: &str = "
typedef struct { u8 bytes[GROUP * SLOT]; } Slots;

KERNEL void walk(WALK_PARAMETERS) {
  LOCAL_MEMORY(Slots, slots);
  LOCAL u8 *slot = slots->bytes + local_index() * SLOT;
  for (u32 i = group_index() * GROUP + local_index(); i < count; i += group_count() * GROUP) {
    GLOBAL const u32 *mine = cases + 4 * i;
    u32 have = mine[1];
    for (u32 j = 0; j < SLOT - have; j++) slot[j] = (u8)filler;
    for (u32 j = 0; j < have; j++) slot[SLOT - have + j] = bytes[mine[0] + j];
    Headers headers = dissect(slot + SLOT - have, have, mine[2], mine[3]);
    GLOBAL u32 *answer = out + 13 * i;
    answer[0] = headers.kind, answer[1] = headers.reject, answer[2] = headers.ip_bytes;
    for (u32 j = 0; j < 4; j++) {
      answer[3 + j] = headers.source[j];
      answer[7 + j] = headers.destination[j];
    }
    answer[11] = headers.ports, answer[12] = headers.rest;
  }
}
";

packetloom_device::arguments! {
    /// What `walk` takes: bytes, where each case lies in them, and room for answers.
    struct Walked as WALK_PARAMETERS {
        bytes: fixed u8 [..],
        cases: fixed u32 [4 * count],
        out: write u32 [count * WORDS as u64],
        count: u32,
        filler: u32,
    }
}

/// The walk on a device.
struct Walk {
    device: Device,
    kernel: Kernel<Walked<'static>>,
}

impl Walk {
    /// None, and words why, where there is no such device.
    fn on(id: Id, group: u32, text: &str) -> Option<Self> {
        let device = match Device::open(id, Cache::none()) {
            Ok(device) => device,
            Err(error @ Error::Unavailable { .. }) if id != Id::Host => {
                eprintln!("skipped: {error}");
                return None;
            }
            Err(error) => panic!("{error}"),
        };
        let mut defines = defines();
        defines.push(("SLOT".into(), SLOT.to_string()));
        defines.push(Walked::define());
        let program = Program {
            name: "dissect_test",
            source: [text, SOURCE].concat(),
            defines,
            group,
            groups_per_unit: 1,
            stays: false,
            local: group * SLOT as u32,
            entries: vec![Entry::of::<Walked<'_>>("walk")],
        };
        let loaded = device.build(&program).expect("compiles").remove(0);
        // SAFETY: it reads bytes of cases where their words say, and those are made below; what goes beyond is seen on the host.
        #[allow(unsafe_code)]
        let kernel = unsafe { Kernel::new(loaded) }.expect("its arguments");
        Some(Self { device, kernel })
    }

    fn run(&self, cases: &[Case]) -> Result<Vec<[u32; WORDS]>, Error> {
        let mut queue = self.device.queue()?;
        let mut answers = Vec::new();
        for (round, cases) in cases.chunks(LAUNCH).enumerate() {
            let (mut bytes, mut words) = (Vec::new(), Vec::new());
            for case in cases {
                assert!(case.have <= SLOT && case.have <= case.frame.len());
                words
                    .extend([bytes.len(), case.have, case.frame.len(), case.link.0.into()].map(|x| x as u32));
                bytes.extend(&case.frame[..case.have]);
            }
            // What stands in front of a frame is none of it.
            let filler = [0xff, 0, 0x45, 0x60][round % 4];
            let bytes = self.device.memory_of(&bytes)?;
            let words = self.device.memory_of(bytemuck::cast_slice(&words))?;
            let out = self.device.memory(cases.len() * WORDS * 4)?;
            let arguments = Walked {
                bytes: (&bytes).into(),
                cases: (&words).into(),
                out: (&out).into(),
                count: cases.len() as u32,
                filler,
            };
            queue.launch(&self.kernel, 16, &arguments)?;
            let mut round = vec![[0; WORDS]; cases.len()];
            queue.read(&out, 0, bytemuck::cast_slice_mut(&mut round))?;
            answers.extend(round);
        }
        Ok(answers)
    }
}

/// Every device that there is: on the host one item a group, so that reads past a slice are caught.
fn walks() -> impl Iterator<Item = (Id, Walk)> {
    let devices = [(Id::Host, 1), (Id::OpenCl(0), 32), (Id::Cuda(0), 32)];
    devices.into_iter().filter_map(|(id, group)| Some((id, Walk::on(id, group, KERNEL)?)))
}

/// What was captured of a frame, and how much of it a kernel gets.
#[derive(Clone, Debug)]
struct Case {
    link: LinkType,
    frame: Rc<[u8]>,
    have: usize,
}

fn software(link: LinkType, frame: &[u8]) -> Result<Headers, Reject> {
    dissect(link, frame, WIRE)
}

/// The words that stand for what the software said.
fn words(said: &Result<Headers, Reject>) -> [u32; WORDS] {
    let mut words = [0; WORDS];
    let headers = match said {
        Ok(headers) => headers,
        Err(reject) => {
            words[0] = HEADERS_REJECTED;
            words[1] = reject.number();
            return words;
        }
    };
    words[2] = headers.ip_bytes;
    match headers.key {
        Key::V4(key) => {
            words[0] = HEADERS_V4;
            let [source, destination, ports, rest]: [u32; 4] = bytemuck::cast(key);
            (words[3], words[7], words[11], words[12]) = (source, destination, ports, rest);
        }
        Key::V6(key) => {
            words[0] = HEADERS_V6;
            let halves = [key.source, key.destination].concat();
            for (i, half) in halves.into_iter().enumerate() {
                words[3 + 2 * i] = (half >> 32) as u32;
                words[4 + 2 * i] = half as u32;
            }
            words[11..].copy_from_slice(&bytemuck::cast::<_, [u32; 10]>(key)[8..]);
        }
    }
    words
}

/// Where the IP header begins, if the walk gets there: what is cut before its first byte is rejected for that.
fn ip_begins(link: LinkType, frame: &[u8]) -> Option<usize> {
    let cut = (1..=frame.len()).find(|&cut| software(link, &frame[..cut]) != Err(Reject::LinkTruncated))?;
    let found = [Err(Reject::IpTruncated), Err(Reject::IpMalformed)];
    found.contains(&software(link, &frame[..cut])).then_some(cut - 1)
}

/// Whether the walk gets to a length of zero.
fn has_no_length(link: LinkType, frame: &[u8]) -> bool {
    let Some(begin) = ip_begins(link, frame) else { return false };
    let packet = &frame[begin..];
    let header_len = usize::from(packet[0] & 15) * 4;
    match packet[0] >> 4 {
        4 if packet.len() >= 20 && header_len >= 20 && packet.len() >= header_len => packet[2..4] == [0, 0],
        6 if packet.len() >= 40 => packet[4..6] == [0, 0],
        _ => false,
    }
}

/// The end of the last byte that the software's answer depends on: the answer stays with each one after it changed to
/// others, and with all of them changed to some patterns that mean something in several places.
fn depends_up_to(link: LinkType, frame: &[u8], changes: &[u8]) -> usize {
    const PATTERNS: [[u8; 2]; 9] =
        [[0, 0], [0xff, 0xff], [59, 0], [0, 59], [8, 0], [0, 8], [0x86, 0xdd], [0xdd, 0x86], [0, 0x21]];
    let said = software(link, frame);
    let mut changed = frame.to_vec();
    let mut matters = |at: usize| {
        let differs = changes.iter().any(|change| {
            changed[at] = frame[at] ^ change;
            software(link, &changed) != said
        });
        let tail_differs = PATTERNS.iter().any(|pattern| {
            changed[at..].iter_mut().zip(pattern.iter().cycle()).for_each(|(byte, new)| *byte = *new);
            software(link, &changed) != said
        });
        changed[at..].copy_from_slice(&frame[at..]);
        differs || tail_differs
    };
    (0..frame.len()).rev().find(|&at| matters(at)).map_or(0, |at| at + 1)
}

/// What is expected of all slices of a captured frame.
struct Expected {
    said: [u32; WORDS],
    /// The answer is this for slices that are no shorter, and HEADERS_BEYOND for others.
    least: usize,
    /// The end of the IP header of a rejected frame. The kernel reads it as a whole, and may answer a slice that ends in
    /// it by HEADERS_BEYOND although its first bytes would tell.
    header: usize,
    /// A rejected frame may have one byte that says only in which way the next step fails, and a later fragment one that says only what
    /// is known by then.
    may_fail_either_way: bool,
}

impl Expected {
    fn of(link: LinkType, frame: &[u8], changes: &[u8]) -> Self {
        if is_beyond_kernels(link, frame) || has_no_length(link, frame) {
            let mut said = [0; WORDS];
            said[0] = HEADERS_BEYOND;
            return Self { said, least: 0, header: 0, may_fail_either_way: false };
        }
        let said = software(link, frame);
        let header = match ip_begins(link, frame) {
            Some(begin) if said.is_err() => begin + if frame[begin] >> 4 == 4 { 20 } else { 40 },
            _ => 0,
        };
        let may_fail_either_way = match &said {
            Err(reject) => {
                matches!(reject, Reject::LinkTruncated | Reject::NotIp | Reject::ExtensionChain)
            }
            // The first byte of an offset may tell that it is not 0.
            Ok(headers) => {
                matches!(headers.key, Key::V6(key) if key.bits.contains(KeyBits::LATER_FRAGMENT))
            }
        };
        Self { said: words(&said), least: depends_up_to(link, frame, changes), header, may_fail_either_way }
    }
}

/// How many answers there were of each kind.
#[derive(Debug, Default)]
struct Counts {
    /// By kind and reject, of whole frames and of slices.
    whole: BTreeMap<(u32, u32), usize>,
    sliced: BTreeMap<(u32, u32), usize>,
    /// Slices answered by HEADERS_BEYOND although nothing was: those that end in an IP header, and others.
    cautious: [usize; 2],
}

/// Holds the answers of a device to what is expected; frames that follow one another may be the same.
fn check(id: Id, walk: &Walk, cases: &[Case], changes: &[u8]) -> Counts {
    let answers = walk.run(cases).expect("runs");
    let mut counts = Counts::default();
    let mut last: Option<(&Case, Expected)> = None;
    for (case, answer) in cases.iter().zip(&answers) {
        if !last.as_ref().is_some_and(|(of, _)| of.link == case.link && Rc::ptr_eq(&of.frame, &case.frame)) {
            last = Some((case, Expected::of(case.link, &case.frame, changes)));
        }
        let (_, expected) = last.as_ref().expect("was set");
        let beyond = answer[0] == HEADERS_BEYOND;
        assert!(!beyond || answer[1..] == [0; WORDS - 1], "{id}: {case:x?}: {answer:x?}");
        let is_whole = case.have == case.frame.len();
        if beyond && !is_whole && expected.least <= case.have && expected.said[0] != HEADERS_BEYOND {
            let in_header = case.have < expected.header;
            assert!(in_header || expected.may_fail_either_way, "{id}: nothing of it is beyond: {case:x?}");
            counts.cautious[usize::from(!in_header)] += 1;
        } else if case.have < expected.least {
            assert!(beyond, "{id}: what matters is beyond: {case:x?}: {answer:x?}");
        } else {
            assert_eq!(answer, &expected.said, "{id}: {case:x?}");
        }
        let counts = if is_whole { &mut counts.whole } else { &mut counts.sliced };
        *counts.entry((answer[0], answer[1])).or_default() += 1;
    }
    println!("{id}: {} cases: {counts:?}", cases.len());
    counts
}

/// Packets with lengths that contradict each other, long chains, and what else is not ordinary.
fn odd_packets() -> Vec<Vec<u8>> {
    let tcp = tcp(80, 9_000, 0x1b);
    let v4 = |protocol, total_len| Ipv4 { protocol, total_len: Some(total_len), ..Ipv4::default() };
    let v6 = |next, payload_len| Ipv6 { next, payload_len: Some(payload_len) };
    let mut packets = vec![
        Ipv4 { ihl: Some(4), ..Ipv4::of(TCP) }.packet(&tcp),
        Ipv4 { ihl: Some(0), ..Ipv4::of(TCP) }.packet(&tcp),
        Ipv4 { ihl: Some(15), ..Ipv4::of(TCP) }.packet(&tcp),
        Ipv4 { ihl: Some(15), total_len: Some(200), ..Ipv4::of(TCP) }.packet(&[0x5a; 60]),
        Ipv4 { options: &[7; 40], ..Ipv4::of(TCP) }.packet(&tcp),
        Ipv4 { options: &[7; 40], fragment: 0x3fff, ..Ipv4::of(TCP) }.packet(&tcp),
        Ipv4 { options: &[7; 40], ..Ipv4::of(ICMP) }.packet(&[3, 1]),
        v4(TCP, 19).packet(&tcp),
        v4(UDP, 65_535).packet(&udp(53, 1_024)),
        Ipv4::of(50).packet(&[]),
        vec![0x55; 60],
        Ipv6::of(60).packet(&[extension(43, 20, 168), extension(TCP, 1, 16), tcp.clone()].concat()),
        Ipv6::of(60).packet(&[extension(43, 20, 168), extension(50, 1, 16)].concat()),
        Ipv6::of(60).packet(&extension(60, 255, 100)),
        Ipv6::of(51).packet(&[extension(59, 0, 8), vec![0; 4]].concat()),
        Ipv6::of(51).packet(&[extension(UDP, 255, 8), vec![0; 100]].concat()),
        Ipv6::of(44).packet(
            &[fragment(44, 0, true), fragment(44, 0, false), fragment(TCP, 0, false), tcp.clone()].concat(),
        ),
        Ipv6::of(44).packet(&[fragment(44, 0, true), fragment(TCP, 1, false), tcp.clone()].concat()),
        Ipv6::of(0).packet(&extension(0, 0, 8).repeat(12)),
        Ipv6::of(59).packet(&[]),
        Ipv6::of(139)
            .packet(&[extension(140, 0, 8), extension(135, 0, 8), extension(SCTP, 0, 8), udp(1, 2)].concat()),
        v6(UDP, 65_535).packet(&udp(53, 1_024)),
        v6(60, 12).packet(&[extension(TCP, 0, 8), tcp.clone()].concat()),
        v6(60, 7).packet(&[extension(TCP, 0, 8), tcp.clone()].concat()),
        v6(60, 23).packet(&[extension(TCP, 2, 24), tcp.clone()].concat()),
        v6(44, 7).packet(&[fragment(TCP, 0, false), tcp.clone()].concat()),
    ];
    for payload in [0, 1, 2, 3, 4, 13, 14] {
        for protocol in [TCP, UDP, SCTP, ICMP, ICMPV6] {
            packets.push(v4(protocol, 20 + payload).packet(&tcp));
            // Otherwise it says none.
            if payload > 0 {
                packets.push(v6(protocol, payload).packet(&tcp));
            }
        }
    }
    packets
}

/// Packets behind every header that carries IP; the odd ones behind some.
fn frames() -> Vec<(LinkType, Vec<u8>)> {
    let mut frames = Vec::new();
    for (number, (_, link, header)) in carriers().into_iter().enumerate() {
        let odd = if number % 3 == 0 { odd_packets() } else { Vec::new() };
        let packets = packets().into_iter().chain(odd);
        frames.extend(packets.map(|packet| (link, [&header[..], &packet].concat())));
    }
    // Software must look at those of other framings.
    for (number, (_, link, header)) in [framings(false), framings(true)].concat().into_iter().enumerate() {
        let packets = packets().into_iter().skip(number % 2).step_by(5);
        frames.extend(packets.map(|packet| (link, [&header[..], &packet].concat())));
    }
    frames.push((LinkType(2), ethernet(IPV4)));
    frames.push((LinkType::NONE, ethernet(IPV4)));
    frames.push((LinkType::ETHERNET, [ethernet(0x8100), tag(0x88cc), vec![0; 46]].concat()));
    frames.push((LinkType::ETHERNET, [ethernet(0x88e5), vec![0; 46]].concat()));
    frames.push((LinkType::SLL, [sll(0x0806), vec![0; 46]].concat()));
    frames.push((LinkType::ETHERNET, [ethernet(0x0806), vec![0; 46]].concat()));
    frames.push((LinkType::ETHERNET, [ethernet(0x8847), label(false).repeat(20)].concat()));
    frames.push((LinkType::ETHERNET, [ethernet(0x8100), tag(0x8100).repeat(70)].concat()));
    frames
}

/// Small numbers that look random: SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((u128::from(x ^ x >> 31) * limit as u128) >> 64) as usize
    }
}

fn sliced(cases: &mut Vec<Case>, link: LinkType, frame: &Rc<[u8]>, slices: impl IntoIterator<Item = usize>) {
    let slices = slices.into_iter().filter(|&have| have <= frame.len());
    cases.extend(slices.map(|have| Case { link, frame: frame.clone(), have }));
}

#[test]
fn whole_frames_cut_anywhere_are_answered_as_by_software() {
    let mut cases = Vec::new();
    for (link, frame) in frames() {
        for len in 0..=frame.len() {
            sliced(&mut cases, link, &frame[..len].into(), [len]);
        }
    }
    for (id, walk) in walks() {
        let counts = check(id, &walk, &cases, &[]);
        let kinds: Vec<_> = counts.whole.keys().copied().collect();
        // All there are, but for those of meters and of framings that software knows.
        let others = [Reject::Protocol, Reject::UnknownFraming, Reject::OtherFraming];
        let rejects = Reject::ALL.into_iter().filter(|reject| !others.contains(reject));
        let rejects = rejects.map(|reject| (HEADERS_REJECTED, reject.number()));
        assert_eq!(
            kinds,
            rejects.chain([(HEADERS_BEYOND, 0), (HEADERS_V4, 0), (HEADERS_V6, 0)]).collect::<Vec<_>>()
        );
    }
}

#[test]
fn slices_of_any_length_are_answered_as_by_software_or_not_at_all() {
    let changes: Vec<u8> = (1..=u8::MAX).collect();
    let mut cases = Vec::new();
    for (link, frame) in frames() {
        let whole: Rc<[u8]> = frame.as_slice().into();
        sliced(&mut cases, link, &whole, 0..whole.len());
    }
    for (id, walk) in walks() {
        let counts = check(id, &walk, &cases, &changes);
        assert!(counts.whole.is_empty());
        for kind in [HEADERS_BEYOND, HEADERS_V4, HEADERS_V6] {
            assert!(counts.sliced[&(kind, 0)] > 1000);
        }
        assert!(counts.sliced[&(HEADERS_REJECTED, Reject::ExtensionChain.number())] > 100);
        assert!(counts.sliced[&(HEADERS_REJECTED, Reject::TransportTruncated.number())] > 100);
        let [in_header, others] = counts.cautious;
        assert!(in_header < cases.len() / 10 && others < cases.len() / 1000, "{in_header}, {others}");
    }
}

#[test]
fn damaged_frames_are_answered_as_by_software_or_not_at_all() {
    let mut random = Random(27);
    let frames = frames();
    let mut cases = Vec::new();
    for round in 0..30_000 {
        let (mut link, mut frame) = frames[random.below(frames.len())].clone();
        if round % 16 == 0 {
            frame.iter_mut().for_each(|byte| *byte = random.below(256) as u8);
        }
        for _ in 0..1 + random.below(3) {
            let (at, bit) = (random.below(frame.len()), random.below(8));
            frame[at] = if random.below(2) == 0 { random.below(256) as u8 } else { frame[at] ^ 1 << bit };
        }
        if random.below(32) == 0 {
            link = frames[random.below(frames.len())].0;
        }
        if random.below(2) == 0 {
            frame.truncate(random.below(frame.len() + 1));
        }
        let (len, frame) = (frame.len(), frame.into());
        sliced(&mut cases, link, &frame, [len, 64, 128, random.below(len + 1)]);
    }
    for (id, walk) in walks() {
        let counts = check(id, &walk, &cases, &[0xff, 1, 2, 4, 8, 0x10, 0x20, 0x40, 0x80]);
        assert!(counts.whole.len() >= 9 && counts.sliced.len() >= 9);
        let [in_header, others] = counts.cautious;
        // Few changes are tried of each byte: some that matter, as those to an EtherType, are not among them.
        assert!(in_header < cases.len() / 10 && others < cases.len() / 200, "{in_header}, {others}");
    }
}

#[test]
fn numbers_are_known_as_the_software_knows_them() {
    let v4 = Ipv4::of(UDP).packet(&udp(1_000, 53));
    let mut whole = Vec::new();
    for number in 0..=u16::MAX {
        whole.push((LinkType::ETHERNET, [ethernet(number), tag(IPV4), v4.clone()].concat()));
        whole.push((LinkType::ETHERNET, [ethernet(0x8864), pppoe(number), v4.clone()].concat()));
        whole.push((LinkType(number), v4.clone()));
    }
    for family in 0..=300_u32 {
        for bytes in [family.to_be_bytes(), family.to_le_bytes(), (family << 16).to_be_bytes()] {
            for link in [LinkType::NULL, LinkType::LOOP] {
                whole.push((link, [&bytes[..], &v4].concat()));
            }
        }
    }
    for number in 0..=u8::MAX {
        whole.push((LinkType::RAW, Ipv4::of(number).packet(&tcp(1, 2, 3))));
        whole.push((LinkType::RAW, Ipv6::of(number).packet(&[extension(TCP, 1, 16), tcp(1, 2, 3)].concat())));
    }
    let mut cases = Vec::new();
    for (link, frame) in whole {
        sliced(&mut cases, link, &frame.as_slice().into(), [frame.len()]);
    }
    for (id, walk) in walks() {
        let counts = check(id, &walk, &cases, &[]);
        assert!(counts.whole.len() >= 6);
    }
}

#[test]
fn slices_are_enough_for_ordinary_frames() {
    let mut random = Random(3);
    let ethernet_tagged = |tags: &[u8], ethertype| match tags {
        [] => ethernet(ethertype),
        _ => [ethernet(0x8100), tag(ethertype)].concat(),
    };
    let mut cases = Vec::new();
    for _ in 0..500 {
        let ports = (random.below(1 << 16) as u16, random.below(1 << 16) as u16);
        let tcp = tcp(ports.0, ports.1, random.below(256) as u8);
        let udp = udp(ports.0, ports.1);
        let mut more = |head: &[u8]| [head, &vec![0x5a; random.below(1_400)]].concat();
        for tags in [&[][..], &[1]] {
            for (protocol, head) in [(TCP, &tcp[..]), (UDP, &udp), (SCTP, &udp), (ICMP, &[8, 0, 1, 2, 3, 4])]
            {
                let frame = [ethernet_tagged(tags, IPV4), Ipv4::of(protocol).packet(&more(head))].concat();
                sliced(&mut cases, LinkType::ETHERNET, &frame.into(), [64, 128]);
            }
            for (next, head) in [(TCP, &tcp[..]), (UDP, &udp), (SCTP, &udp), (ICMPV6, &[128, 0, 1, 2, 3, 4])]
            {
                let frame = [ethernet_tagged(tags, IPV6), Ipv6::of(next).packet(&more(head))].concat();
                sliced(&mut cases, LinkType::ETHERNET, &frame.into(), [64, 128]);
            }
        }
    }
    for (id, walk) in walks() {
        let answers = walk.run(&cases).expect("runs");
        let mut beyond = 0;
        for (case, answer) in cases.iter().zip(&answers) {
            let said = software(case.link, &case.frame).expect("a key");
            // The flags of TCP over IPv6 end at byte 68 or later.
            let has_flags_beyond =
                case.have == 64 && matches!(said.key, Key::V6(key) if key.bits.contains(KeyBits::TCP_FLAGS));
            if has_flags_beyond {
                assert_eq!(answer[0], HEADERS_BEYOND, "{id}: {case:x?}");
                beyond += 1;
            } else {
                assert_eq!(answer, &words(&Ok(said)), "{id}: {case:x?}");
            }
        }
        assert!(beyond > 0 && beyond < cases.len() / 8, "{id}: {beyond} of {}", cases.len());
    }
}

#[test]
fn reads_past_a_slice_are_caught() {
    let question = "have < read || at > have - read ?";
    assert!(KERNEL.contains(question));
    let walk = Walk::on(Id::Host, 1, &KERNEL.replace(question, "have + 1 < read || at > have + 1 - read ?"));
    let frame: Rc<[u8]> = [ethernet(IPV4), Ipv4::of(TCP).packet(&tcp(80, 9_000, 0x1b))].concat().into();
    let walk = walk.expect("the host");
    let run = |have| walk.run(&[Case { link: LinkType::ETHERNET, frame: frame.clone(), have }]);
    assert!(run(48).is_ok());
    match run(47) {
        Err(Error::Failed { why, .. }) => assert!(why.contains("AddressSanitizer"), "{why}"),
        other => panic!("{other:?}"),
    }
}
