//! Headers that a device reads in this machine's memory, and writes back there, are judged and rewritten as cores do it, and as the oracle: on the
//! host under its compiler's sanitisers, and on whatever accelerators this machine has.

#![allow(missing_docs)]

mod support;

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;

use packetloom_device::Device;
use packetloom_engine::Plan;
use packetloom_engine::offload::frames::Slice;
use packetloom_engine::offload::stateful::headers::{Lane, Outcome, Port, Slots};
use packetloom_engine::offload::stateful::{Stateful, offloadable};
use packetloom_engine::pipeline::{Shared, Worker};
use packetloom_packet::{
    Batch, FrameRef, Key, KeyBits, LinkType, MatchKey4, MatchKey6, Timestamp, Verdict, dissect, protocol,
};
use rand_xoshiro::Xoshiro256PlusPlus as Random;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use support::{How, plan, results, traffic};

/// The devices of this machine, the host first; what is missing is said.
fn devices() -> Vec<Device> {
    support::devices().into_iter().filter(|device| device.description().shares).collect()
}

/// A frame as it was captured.
#[derive(Clone, Debug)]
struct Frame {
    bytes: Vec<u8>,
    link: LinkType,
    wire_len: u32,
    time: Timestamp,
}

const SERVICES: [u32; 2] = [0xc000_0201, 0xc000_0202];
const WIDE_SERVICES: [[u64; 2]; 2] = [[0x2001_0db8 << 32, 1], [0x2001_0db8 << 32, 2]];

/// Every other service has one port; some backends have another one.
const BALANCER: &str = "\
[[chain]]
nf = \"balancer\"
table_size = 251
services = [
    { address = \"192.0.2.1\", port = 80, backends = [
        { address = \"10.9.0.1\" }, { address = \"10.9.0.2\", port = 8080 }, { address = \"255.255.255.255\", port = 65535 } ] },
    { address = \"192.0.2.2\", backends = [{ address = \"10.9.1.1\" }, { address = \"0.0.0.0\" }] },
    { address = \"2001:db8::1\", port = 80, backends = [
        { address = \"2001:db8:9::1\", port = 8080 }, { address = \"ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff\" } ] },
    { address = \"2001:db8::2\", backends = [{ address = \"2001:db8:9::2\" }, { address = \"::\" }] },
]
";
const COUNTER: &str = "[[chain]]\nnf = \"counter\"\n";
const LIMITER: &str = "[[chain]]\nnf = \"limiter\"\nrate = \"1Mbit/s\"\nburst = \"4000B\"\n";
const POLICER: &str = "[[chain]]\nnf = \"policer\"\nmarker = \"single-rate\"\ncir = \"1Mbit/s\"\ncbs = \"4000B\"\nebs = \"1500B\"\n\
    yellow = \"drop\"\n";
const SHORT: &str = "[flows.short]\nby = \"5-tuple\"\ntimeout = \"3ms\"\n\
    [[chain]]\nnf = \"limiter\"\nflows = \"short\"\nrate = \"300packets/s\"\nburst = \"3packets\"\n";

fn below(random: &mut Random, n: u32) -> u32 {
    random.next_u32() % n
}

/// Packets from a few clients, most of them to services; most frames are damaged, tagged, cut short or odd in some other way.
fn frames(random: &mut Random, count: usize, link: Option<LinkType>) -> Vec<Frame> {
    let mut nanos = 1_700_000_000_000_000_000;
    let frame = |_| {
        nanos += u64::from(below(random, 200_000));
        // Some come late, and some after a long time: neither can be said as one after another.
        let late = [0, 0, 0, 0, 0, 0, 0, 5_000_000][below(random, 8) as usize];
        nanos += [0, 0, 6_000_000_000][below(random, 600).saturating_sub(597) as usize];
        let time = Timestamp::from_nanos(nanos - late);
        let mut bytes = packetloom_generate::frame(&key(random));
        let mut own = link.unwrap_or(LinkType::ETHERNET);
        for _ in 0..below(random, 3) {
            damage(random, &mut bytes);
        }
        if own != LinkType::ETHERNET {
            bytes.drain(..bytes.len().min(14));
        } else if link.is_none() && below(random, 4) == 0 {
            own = [LinkType::RAW, LinkType::NULL, LinkType(299)][below(random, 3) as usize];
        }
        let wire_len = bytes.len() as u32 + [0, 0, 100][below(random, 3) as usize];
        Frame { bytes, link: own, wire_len, time }
    };
    (0..count).map(frame).collect()
}

fn key(random: &mut Random) -> Key {
    let protocols = [6, 6, 6, 17, 17, 17, 1, 58, 132, 132, 47];
    let protocol = protocols[below(random, protocols.len() as u32) as usize];
    let fragments = [KeyBits::WHOLE, KeyBits::WHOLE, KeyBits::FIRST_FRAGMENT, KeyBits::LATER_FRAGMENT];
    let bits = fragments[below(random, 4) as usize];
    let bits = match protocol {
        _ if bits == KeyBits::LATER_FRAGMENT => bits,
        protocol::ICMP | protocol::ICMPV6 => bits.with(KeyBits::ICMP),
        47 => bits,
        protocol::TCP => bits.with(KeyBits::PORTS).with(KeyBits::TCP_FLAGS),
        _ => bits.with(KeyBits::PORTS),
    };
    let client = below(random, 12);
    let (source_port, destination_port) =
        (5_000 + below(random, 3) as u16, [80, 80, 80, 81][below(random, 4) as usize]);
    let tcp_flags = random.next_u32() as u8;
    let service = below(random, 3) as usize;
    if below(random, 5) > 1 {
        let (source, destination) = (0x0a00_0000 + client, *SERVICES.get(service).unwrap_or(&0x0a00_0063));
        let key = MatchKey4 { source, destination, source_port, destination_port, ..MatchKey4::default() };
        Key::V4(MatchKey4 { protocol, tcp_flags, bits, ..key })
    } else {
        let source = [0x2001_0db8 << 32 | 7, client.into()];
        let destination = *WIDE_SERVICES.get(service).unwrap_or(&[7, 7]);
        let key = MatchKey6 { source, destination, source_port, destination_port, ..MatchKey6::default() };
        Key::V6(MatchKey6 { protocol, tcp_flags, bits, ..key })
    }
}

/// Does something to a frame of untagged Ethernet.
fn damage(random: &mut Random, bytes: &mut Vec<u8>) {
    let is_v4 = bytes.get(12..14) == Some(&[8, 0]);
    let add_to_len = |bytes: &mut Vec<u8>, at: usize, more: u16| {
        if let Some(len) = bytes.get_mut(at..at + 2) {
            let more = u16::from_be_bytes([len[0], len[1]]).wrapping_add(more);
            len.copy_from_slice(&more.to_be_bytes());
        }
    };
    match below(random, 12) {
        0 if !bytes.is_empty() => {
            let at = below(random, bytes.len() as u32) as usize;
            bytes[at] = random.next_u32() as u8;
        }
        1 => bytes.truncate(below(random, bytes.len() as u32 + 1) as usize),
        // Up to sixty bytes of tags.
        2 if bytes.len() > 12 => {
            for _ in 0..=below(random, 15) {
                bytes.splice(12..12, [0x81, 0, 0, 7]);
            }
        }
        // Options.
        3 if is_v4 && bytes.len() >= 34 => {
            let words = below(random, 11) as u8;
            if bytes[14] & 15 == 5 {
                bytes[14] += words;
                bytes.splice(34..34, std::iter::repeat_n(1, words as usize * 4));
                add_to_len(bytes, 16, u16::from(words) * 4);
            }
        }
        // Extension headers; a few of them long.
        4 | 5 if !is_v4 && bytes.len() >= 54 => {
            let units = [0, 0, 1, 2, 15][below(random, 5) as usize];
            let next = std::mem::replace(&mut bytes[20], [0, 43, 60][below(random, 3) as usize]);
            let header = [next, units].into_iter().chain(std::iter::repeat_n(0, 6 + usize::from(units) * 8));
            bytes.splice(54..54, header);
            add_to_len(bytes, 18, 8 + u16::from(units) * 8);
        }
        // No length, as where segmentation is left to the interface.
        6 if bytes.len() >= 20 => {
            let at = if is_v4 { 16 } else { 18 };
            bytes[at..at + 2].fill(0);
        }
        // Less than there is.
        7 if bytes.len() >= 20 => {
            let at = if is_v4 { 16 } else { 18 };
            bytes[at..at + 2].copy_from_slice(&(20 + below(random, 40) as u16).to_be_bytes());
        }
        // Checksums that sums have two ways of saying, or none.
        8 | 9 => {
            let checksum = [[0, 0], [0xff, 0xff], [0xff, 0xfe], [0, 1]][below(random, 4) as usize];
            for at in [24, 34 + 6, 34 + 16, 54 + 2, 54 + 6, 54 + 16] {
                if let Some(field) = bytes.get_mut(at..at + 2)
                    && below(random, 2) == 0
                {
                    field.copy_from_slice(&checksum);
                }
            }
        }
        _ => bytes.resize(bytes.len() + below(random, 200) as usize, 0x5a),
    }
}

/// A batch of frames, parsed.
fn batch_of(frames: &[Frame], plan: &Plan) -> Batch {
    let mut batch = Batch::new(frames.len());
    let mut offset = 0;
    batch.reset(Arc::new(frames.iter().flat_map(|frame| frame.bytes.clone()).collect::<Vec<_>>()));
    for frame in frames {
        let (len, port) = (frame.bytes.len() as u32, 0);
        let Frame { link, wire_len, time, .. } = *frame;
        batch.push(FrameRef { offset, time, len, wire_len, link, port });
        offset += u64::from(len);
    }
    batch.parse(plan.chain().settings.run.policy());
    batch
}

/// What becomes of frames: the verdict and, of one that passes, its bytes.
type Judged = (Verdict, Vec<u8>);

fn on_a_core(plan: &Plan, frames: &[Frame]) -> Vec<Judged> {
    let mut worker = Worker::new(plan, &Shared::new(plan, 1, 100), 0);
    let judge = |frames: &[Frame]| {
        let mut batch = batch_of(frames, plan);
        worker.judge_parsed(&mut batch).expect("one worker");
        let judged = frames.iter().enumerate().map(|(at, frame)| {
            let mut bytes = frame.bytes.clone();
            batch.apply_rewrites(at, &mut bytes);
            (batch.verdicts()[at], if batch.verdicts()[at].is_pass() { bytes } else { Vec::new() })
        });
        judged.collect::<Vec<_>>()
    };
    frames.chunks(100).flat_map(judge).collect()
}

/// How many packets went which way.
#[derive(Debug, Default, PartialEq)]
struct Ways {
    written: usize,
    by_host: usize,
    looked_at: usize,
}

fn on_a_device(
    device: &Device,
    plan: &Plan,
    frames: &[Frame],
    slice: Slice,
    (batch, lanes): (usize, usize),
) -> (Vec<Judged>, Ways) {
    let chain = plan.chain();
    let (functions, layout) = (chain.functions(), chain.layout());
    let count = offloadable(functions, layout);
    assert_eq!(count, functions.len());
    let stateful = Stateful::new(device, functions, layout, count, batch as u32, 1).expect("a device");
    let port = Port::new(device, slice, chain.settings.run.policy()).expect("kernels");
    let port = Arc::new(port);
    let mut queue = device.queue().expect("a queue");
    let link = frames[0].link;
    let mut slots = Slots::new(device, frames.len() as u32, slice, link).expect("memory");
    let batches: Vec<_> = frames.chunks(batch).collect();
    for (number, frames) in batches.iter().enumerate() {
        for (at, frame) in frames.iter().enumerate() {
            let time = frame.time.as_nanos().checked_sub(frames[0].time.as_nanos());
            let time = time.and_then(|time| u32::try_from(time).ok());
            slots.put((number * batch + at) as u32, &frame.bytes, frame.link, time);
        }
    }
    let mut ways = Ways::default();
    let mut judged = Vec::new();
    // Batches of each step; those that are judged first.
    let mut free: Vec<_> = (0..lanes).map(|_| Lane::new(&port, &stateful).expect("a lane")).collect();
    let (mut reading, mut judging) = (VecDeque::new(), VecDeque::new());
    let mut next = batches.iter().enumerate();
    let mut take = |(mut lane, frames): (Lane, &[Frame]), free: &mut Vec<Lane>| {
        while !lane.is_finished().expect("no fault") {}
        let mut outcomes = Vec::new();
        lane.outcomes(&mut outcomes);
        assert_eq!(outcomes.len(), frames.len());
        let any_for_host = outcomes.iter().any(|outcome| outcome.is_for_host());
        let answers = if any_for_host { lane.answers().expect("copied") } else { Vec::new() };
        for (at, (outcome, frame)) in outcomes.iter().zip(frames).enumerate() {
            let verdict = outcome.verdict().expect("a verdict");
            let mut bytes = if verdict.is_pass() { frame.bytes.clone() } else { Vec::new() };
            assert!(verdict.is_pass() || *outcome == Outcome::default() || !outcome.is_written());
            if outcome.is_written() {
                ways.written += 1;
                lane.read_header(at as u32, &mut bytes);
            } else if outcome.is_for_host() {
                ways.by_host += 1;
                let mut alone = batch_of(std::slice::from_ref(frame), plan);
                answers[at].0.rewrite(&mut alone, 0, || answers[at].1);
                alone.apply_rewrites(0, &mut bytes);
            }
            judged.push((verdict, bytes));
        }
        free.push(lane);
    };
    loop {
        // As many as there is room for are read before any is judged, and judged before any is taken.
        while let Some(mut lane) = free.pop() {
            let Some((number, frames)) = next.next() else {
                free.push(lane);
                break;
            };
            let from = (number * batch) as u32;
            lane.read(&slots, from..from + frames.len() as u32, frames[0].time).expect("queued");
            reading.push_back((lane, *frames));
        }
        while let Some((mut lane, frames)) = reading.pop_front() {
            let look = |packet: u32| {
                ways.looked_at += 1;
                let frame = &frames[packet as usize];
                (dissect(frame.link, &frame.bytes, frame.wire_len), frame.time)
            };
            lane.judge(&stateful, &mut queue, look).expect("queued");
            judging.push_back((lane, frames));
            if judging.len() > 1 {
                break;
            }
        }
        match judging.pop_front() {
            Some(first) => take(first, &mut free),
            None => break,
        }
    }
    (judged, ways)
}

/// What the oracle lets pass.
fn passed_by_oracle(chain: &str, frames: &[Frame]) -> Vec<Vec<u8>> {
    let mut capture = traffic(1, 1, 1);
    capture.truncate(24);
    capture[20..24].copy_from_slice(&u32::from(frames[0].link.0).to_le_bytes());
    for frame in frames {
        let nanos = frame.time.as_nanos();
        let times = [nanos / 1_000_000_000, nanos % 1_000_000_000];
        for word in
            times.map(|time| time as u32).into_iter().chain([frame.bytes.len() as u32, frame.wire_len])
        {
            capture.extend(word.to_le_bytes());
        }
        capture.extend(&frame.bytes);
    }
    let how = How { settings: "device = \"oracle\"", ..How::default() };
    let (oracle, ..) = results(chain, &capture, how);
    let mut rest = &oracle.passed[24..];
    let mut passed = Vec::new();
    while !rest.is_empty() {
        let len = u32::from_le_bytes(rest[8..12].try_into().expect("four bytes")) as usize;
        passed.push(rest[16..16 + len].to_vec());
        rest = &rest[16 + len..];
    }
    passed
}

fn passed(judged: &[Judged]) -> Vec<Vec<u8>> {
    judged.iter().filter(|judged| judged.0.is_pass()).map(|judged| judged.1.clone()).collect()
}

fn compare(found: &[Judged], expected: &[Judged], frames: &[Frame], what: &str) {
    assert_eq!(found.len(), expected.len());
    for (at, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert_eq!(found, expected, "{what}, packet {at}: {:x?}", frames[at]);
    }
}

#[test]
fn hostile_frames_are_judged_and_rewritten_as_by_cores_and_the_oracle() {
    let acl = |rules: &str| format!("[[chain]]\nnf = \"acl\"\nrules = \"{rules}\"\ndefault = \"permit\"\n");
    let chains = [
        format!("{COUNTER}{LIMITER}{BALANCER}"),
        format!("{SHORT}{}{COUNTER}{BALANCER}{}{POLICER}", acl("rules"), acl("backends")),
        BALANCER.to_owned(),
    ];
    for (chain, link, slice, size) in [
        (0, LinkType::ETHERNET, Slice::Bytes64, (64, 3)),
        (0, LinkType::ETHERNET, Slice::Bytes128, (300, 2)),
        (1, LinkType::ETHERNET, Slice::Bytes64, (100, 2)),
        (2, LinkType::RAW, Slice::Bytes64, (33, 4)),
    ]
    .into_iter()
    .take(packetloom_testing::amount(1, 4))
    {
        let mut random = Random::seed_from_u64(size.0 as u64);
        let frames = frames(&mut random, 2_500, Some(link));
        let chain = &chains[chain];
        let plan = plan(chain, "");
        let expected = on_a_core(&plan, &frames);
        assert_eq!(passed(&expected), passed_by_oracle(chain, &frames), "cores differ from the oracle");
        let is_rewritten = |(judged, frame): (&Judged, &Frame)| judged.0.is_pass() && judged.1 != frame.bytes;
        let rewritten = expected.iter().zip(&frames).filter(|&both| is_rewritten(both)).count();
        for device in devices() {
            let what = format!("{:?}, {slice:?}, {chain}", device.description().id);
            let (found, ways) = on_a_device(&device, &plan, &frames, slice, size);
            compare(&found, &expected, &frames, &what);
            // All ways are taken, and most packets go the one that is fast.
            let Ways { written, by_host, looked_at } = ways;
            assert!(written + by_host >= rewritten && by_host > 20 && written > 300, "{what}: {ways:?}");
            assert!((20..frames.len() / 2).contains(&looked_at), "{what}: {ways:?}");
        }
    }
}

/// Frames of other links than most are looked at by software, and their times and rewrites are right, too.
#[test]
fn frames_of_other_links_take_effect_in_order() {
    if !packetloom_testing::sweep("frames_of_other_links_take_effect_in_order") {
        return;
    }
    let mut random = Random::seed_from_u64(5);
    let mut frames = frames(&mut random, 1_500, None);
    // That of the slots.
    frames[0].link = LinkType::ETHERNET;
    let plan = plan(&format!("{COUNTER}{LIMITER}{BALANCER}"), "");
    let expected = on_a_core(&plan, &frames);
    let others = frames.iter().filter(|frame| frame.link != LinkType::ETHERNET).count();
    for device in devices() {
        let what = device.description().id.to_string();
        let (found, ways) = on_a_device(&device, &plan, &frames, Slice::Bytes64, (64, 3));
        compare(&found, &expected, &frames, &what);
        assert!(others > 200 && ways.looked_at > others, "{what}: {others}, {ways:?}");
    }
}

/// Batches of which software parses all packets, more than go to a device at a time; and such as nobody parses.
#[test]
fn software_parses_whole_batches() {
    let mut random = Random::seed_from_u64(6);
    let key = MatchKey4 {
        source: 0x0a00_0001,
        destination: SERVICES[0],
        source_port: 5_000,
        destination_port: 80,
        protocol: protocol::TCP,
        bits: KeyBits::PORTS.with(KeyBits::TCP_FLAGS).with(KeyBits::WHOLE),
        ..MatchKey4::default()
    };
    let frame = |number: u32| {
        let mut bytes = packetloom_generate::frame(&Key::V4(MatchKey4 { source: number % 50, ..key }));
        // Without a length.
        bytes[16..18].fill(0);
        let (wire_len, time) = (bytes.len() as u32, Timestamp::from_nanos(u64::from(number) * 1_000));
        Frame { bytes, link: LinkType::ETHERNET, wire_len, time }
    };
    let mut frames: Vec<_> = (0..2_600).map(frame).collect();
    frames.iter_mut().skip(2_200).for_each(|frame| frame.bytes.truncate(below(&mut random, 14) as usize));
    let plan = plan(&format!("{COUNTER}{LIMITER}{BALANCER}"), "");
    let expected = on_a_core(&plan, &frames);
    for device in devices() {
        let (found, ways) = on_a_device(&device, &plan, &frames, Slice::Bytes64, (1_100, 2));
        compare(&found, &expected, &frames, &device.description().id.to_string());
        let by_host = expected[..2_200].iter().filter(|judged| judged.0.is_pass()).count();
        assert_eq!(ways, Ways { written: 0, by_host, looked_at: 2_200 });
    }
}

/// A recording of real programs; what they send to most is balanced.
#[test]
fn a_recording_is_judged_and_rewritten_as_by_cores_and_the_oracle() {
    if !packetloom_testing::sweep("a_recording_is_judged_and_rewritten_as_by_cores_and_the_oracle") {
        return;
    }
    let capture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/edge/edge.pcap");
    let capture = std::fs::read(capture).expect("the recording");
    let number = |at: usize| u32::from_le_bytes(capture[at..at + 4].try_into().expect("four bytes"));
    let unit = if number(0) == 0xa1b2_3c4d { 1 } else { 1_000 };
    let link = LinkType(number(20) as u16);
    let mut frames = Vec::new();
    let mut at = 24;
    while at < capture.len() {
        let time = u64::from(number(at)) * 1_000_000_000 + u64::from(number(at + 4)) * unit;
        let (len, wire_len) = (number(at + 8) as usize, number(at + 12));
        let bytes = capture[at + 16..at + 16 + len].to_vec();
        frames.push(Frame { bytes, link, wire_len, time: Timestamp::from_nanos(time) });
        at += 16 + len;
    }
    let mut services: Vec<String> = Vec::new();
    for frame in &frames {
        let service = match dissect(frame.link, &frame.bytes, frame.wire_len) {
            Ok(packetloom_packet::Headers { key: Key::V4(key), .. }) => {
                let address = std::net::Ipv4Addr::from(key.destination);
                format!("{{ address = \"{address}\", backends = [{{ address = \"10.9.0.1\" }}] }},")
            }
            Ok(packetloom_packet::Headers { key: Key::V6(key), .. }) => {
                let address = std::net::Ipv6Addr::from(packetloom_packet::key::join(key.destination));
                format!("{{ address = \"{address}\", backends = [{{ address = \"2001:db8::9\" }}] }},")
            }
            Err(_) => continue,
        };
        if !services.contains(&service) {
            services.push(service);
        }
    }
    let chain =
        format!("{COUNTER}{POLICER}[[chain]]\nnf = \"balancer\"\nservices = [\n{}\n]\n", services.join("\n"));
    let plan = plan(&chain, "");
    let expected = on_a_core(&plan, &frames);
    assert_eq!(passed(&expected), passed_by_oracle(&chain, &frames), "cores differ from the oracle");
    for device in devices() {
        let (found, ways) = on_a_device(&device, &plan, &frames, Slice::Bytes64, (256, 3));
        compare(&found, &expected, &frames, &device.description().id.to_string());
        println!("{ways:?} of {}", frames.len());
        assert!(ways.written > frames.len() / 10 && ways.by_host > 0, "{ways:?} of {}", frames.len());
    }
}

/// By hand: RFC 1624's way over a TCP packet whose checksums are right stays right.
#[test]
fn checksums_that_were_right_stay_right() {
    // 10.0.0.1:5000 to 192.0.2.1:80, an ACK without payload.
    let frame: [u8; 54] = [
        2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x08, 0x00, //
        0x45, 0, 0, 40, 0, 1, 0x40, 0, 64, 6, 0x6e, 0xcd, 10, 0, 0, 1, 192, 0, 2, 1, //
        0x13, 0x88, 0, 80, 0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x10, 0x10, 0, 0xbf, 0xf7, 0, 0,
    ];
    let folded = |bytes: &[u8]| {
        let sum: u32 = bytes.chunks(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1])).sum();
        (sum >> 16) + (sum & 0xffff)
    };
    let right = |frame: &[u8]| {
        let pseudo = [&frame[26..34], &[0, 6, 0, 20], &frame[34..54]].concat();
        (folded(&frame[14..34]), folded(&pseudo)) == (0xffff, 0xffff)
    };
    assert!(right(&frame));
    let chain = "[[chain]]\nnf = \"balancer\"\nservices = [\n    { address = \"192.0.2.1\", port = 80, \
                 backends = [{ address = \"10.9.8.7\", port = 8080 }] },\n]\n";
    let time = Timestamp::from_nanos(1);
    let frames = [Frame { bytes: frame.to_vec(), link: LinkType::ETHERNET, wire_len: 60, time }];
    for device in devices() {
        let (found, ways) = on_a_device(&device, &plan(chain, ""), &frames, Slice::Bytes64, (1, 1));
        let [(verdict, bytes)] = &found[..] else { panic!("{found:?}") };
        assert_eq!((*verdict, ways), (Verdict::Pass, Ways { written: 1, by_host: 0, looked_at: 0 }));
        assert_eq!((&bytes[30..34], &bytes[36..38]), (&[10, 9, 8, 7][..], &[0x1f, 0x90][..]));
        assert!(right(bytes), "{bytes:x?}");
    }
}

/// Whatever a checksum is before, as far as sums are special at either end, and of the others some; with an address whose words are all the other zero, and ports that stay.
#[test]
fn checksums_of_all_kinds_are_brought_up_to_date_as_by_software() {
    if !packetloom_testing::sweep("checksums_of_all_kinds_are_brought_up_to_date_as_by_software") {
        return;
    }
    let chain = "[[chain]]\nnf = \"balancer\"\nservices = [\n    { address = \"255.255.255.255\", backends = [{ address = \"0.0.0.0\" }] },\n    \
                 { address = \"192.0.2.1\", backends = [{ address = \"10.9.8.7\", port = 8080 }] },\n]\n";
    let frames = (0..=u16::MAX).flat_map(|checksum| {
        let kinds =
            [(u32::MAX, protocol::UDP, 6), (u32::MAX, protocol::TCP, 16), (SERVICES[0], protocol::UDP, 6)];
        kinds.map(|(destination, protocol, at)| {
            let bits = KeyBits::PORTS.with(KeyBits::WHOLE);
            let key = MatchKey4 {
                destination,
                protocol,
                source_port: 9,
                destination_port: 80,
                bits,
                ..MatchKey4::default()
            };
            let mut bytes = packetloom_generate::frame(&Key::V4(key));
            bytes[24..26].copy_from_slice(&checksum.to_be_bytes());
            bytes[34 + at..36 + at].copy_from_slice(&checksum.to_be_bytes());
            let wire_len = bytes.len() as u32;
            Frame { bytes, link: LinkType::ETHERNET, wire_len, time: Timestamp::from_nanos(1) }
        })
    });
    let frames: Vec<_> = frames.collect();
    let plan = plan(chain, "");
    let expected = on_a_core(&plan, &frames);
    // No checksum stays none, and none becomes none.
    for (at, (frame, (_, bytes))) in frames.iter().zip(&expected).enumerate().filter(|(at, _)| at % 3 != 1) {
        assert_eq!(frame.bytes[40..42] == [0, 0], bytes[40..42] == [0, 0], "packet {at}");
    }
    let is_special = |(at, (_, bytes)): &(usize, &Judged)| {
        let (checksum, field) = (at / 3, if at % 3 == 1 { 50 } else { 40 });
        let after = u16::from_be_bytes([bytes[field], bytes[field + 1]]);
        [0..=9, 0xfff0..=0xffff].iter().any(|ends| ends.contains(&checksum) || ends.contains(&after.into()))
            || checksum % 101 == 0
    };
    let special = expected.iter().enumerate().filter(is_special);
    let (frames, expected): (Vec<_>, Vec<_>) =
        special.map(|(at, judged)| (frames[at].clone(), judged.clone())).unzip();
    for device in devices() {
        let (found, ways) = on_a_device(&device, &plan, &frames, Slice::Bytes64, (1_000, 2));
        compare(&found, &expected, &frames, &device.description().id.to_string());
        assert_eq!(ways, Ways { written: frames.len(), ..Ways::default() });
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let device = &devices()[0];
    let plan = plan(COUNTER, "");
    let chain = plan.chain();
    let port = Port::new(device, Slice::Bytes64, chain.settings.run.policy()).expect("kernels");
    let stateful = Stateful::new(device, chain.functions(), chain.layout(), 1, 10, 1).expect("a device");
    let mut lane = Lane::new(&Arc::new(port), &stateful).expect("a lane");
    let slots = |count, slice| Slots::new(device, count, slice, LinkType::ETHERNET).expect("memory");
    let begin = Timestamp::from_nanos(0);
    for (slots, packets) in [
        (slots(20, Slice::Bytes64), 5..16),
        (slots(20, Slice::Bytes64), 15..21),
        (slots(20, Slice::Bytes128), 0..10),
    ] {
        let error = lane.read(&slots, packets.clone(), begin).expect_err("no room");
        assert!(error.to_string().contains("do not fit"), "{error}");
    }
    lane.read(&slots(20, Slice::Bytes64), 10..20, begin).expect("there is room");
    assert_eq!((lane.len(), lane.is_empty()), (10, false));
}
