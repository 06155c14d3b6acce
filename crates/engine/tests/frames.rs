//! Frames that are judged on a device get what the slow forms give them: on the host under its compiler's sanitisers, and on whatever
//! accelerators this machine has.

#![allow(missing_docs)]

use std::num::NonZeroU32;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use packetloom_classify::compiled::{self, CompiledRule, MatchKey};
use packetloom_classify::formats::{self, Format};
use packetloom_classify::image::Algorithm;
use packetloom_classify::{Action, NO_RULE, Rule, RuleSet};
use packetloom_device::{Cache, Device, Id};
use packetloom_engine::offload::frames::{Acl, Answer, Frames, Layout, MAX_ACLS, Options, Place, Slice};
use packetloom_engine::offload::lane::{Dispatch, Lane};
use packetloom_engine::offload::ring::Ring;
use packetloom_packet::batch::Policy;
use packetloom_packet::{DropReason, Key, KeyBits, LinkType, MatchKey4, MatchKey6, Verdict, dissect};
use rand_xoshiro::Xoshiro256PlusPlus as Random;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

/// The devices that tests run on, the host first.
fn devices() -> Vec<Device> {
    let cache = || Cache::at(Path::new(env!("CARGO_TARGET_TMPDIR")).join("kernels"));
    packetloom_testing::devices()
        .into_iter()
        .map(|id| Device::open(id, cache()).expect("it was listed"))
        .collect()
}

fn random(seed: u64) -> Random {
    Random::seed_from_u64(seed)
}

fn below(random: &mut Random, n: u32) -> u32 {
    random.next_u32() % n
}

/// Rules of both families over few addresses, so that many overlap, with conditions of all kinds.
fn rules(random: &mut Random, count: usize) -> RuleSet {
    let rule = |random: &mut Random| {
        let is_v4 = below(random, 3) > 0;
        let prefix = |random: &mut Random| {
            let address: u32 = random.next_u32() & 0x0303_0303;
            if is_v4 {
                let out = random.next_u32() % 33;
                let address = address.checked_shr(out).unwrap_or(0).checked_shl(out).unwrap_or(0);
                format!("{}/{}", std::net::Ipv4Addr::from(address), 32 - out)
            } else {
                let address = u128::from(address) << 96 | u128::from(random.next_u32() & 3);
                let out = random.next_u32() % 129;
                let address = address.checked_shr(out).unwrap_or(0).checked_shl(out).unwrap_or(0);
                format!("{}/{}", std::net::Ipv6Addr::from(address), 128 - out)
            }
        };
        let (source, destination) = (prefix(random), prefix(random));
        let protocol =
            ["any", "tcp", "udp", if is_v4 { "icmp" } else { "icmpv6" }][(random.next_u32() % 4) as usize];
        let action = ["permit", "deny"][(random.next_u32() % 2) as usize];
        let ports = match (protocol, random.next_u32() % 3) {
            ("tcp" | "udp", 0) => format!(" port 0-{}", random.next_u32() % 4),
            _ => String::new(),
        };
        let flags = if protocol == "tcp" && random.next_u32().is_multiple_of(3) { " flags S/SA" } else { "" };
        format!("{action} {protocol} from {source} to {destination}{ports}{flags}\n")
    };
    let text: String = (0..count).map(|_| rule(random)).collect();
    let options = formats::Options { format: Some(Format::Native), ..formats::Options::default() };
    formats::read_rules("rules", &mut text.as_bytes(), &options).expect("good rules").rules
}

/// Frames of packets near such rules; some of them damaged, cut short or of other links.
fn frames(random: &mut Random, count: usize) -> Vec<(Vec<u8>, LinkType)> {
    (0..count)
        .map(|_| {
            let protocol = [6, 6, 17, 17, 1, 58, 132, 47][below(random, 8) as usize];
            let bits = [
                KeyBits::WHOLE,
                KeyBits::WHOLE,
                KeyBits::WHOLE,
                KeyBits::FIRST_FRAGMENT,
                KeyBits::LATER_FRAGMENT,
            ][below(random, 5) as usize];
            let mut address = || random.next_u32() & 0x0303_0303;
            let (source, destination) = (address(), address());
            let (source_port, destination_port) = (below(random, 6) as u16, below(random, 6) as u16);
            let tcp_flags = random.next_u32() as u8;
            let key = if below(random, 3) > 0 {
                Key::V4(MatchKey4 {
                    source,
                    destination,
                    source_port,
                    destination_port,
                    protocol,
                    tcp_flags,
                    bits,
                    reserved: 0,
                })
            } else {
                let halves = |word: u32, random: &mut Random| {
                    [u64::from(word) << 32, u64::from(random.next_u32() & 3)]
                };
                let (source, destination) = (halves(source, random), halves(destination, random));
                Key::V6(MatchKey6 {
                    source,
                    destination,
                    source_port,
                    destination_port,
                    protocol,
                    tcp_flags,
                    bits,
                    reserved: 0,
                })
            };
            let mut frame = packetloom_generate::frame(&key);
            let mut link = LinkType::ETHERNET;
            // Few: software must look at most of them.
            let kind = if below(random, 64) == 0 { 8 + below(random, 2) } else { below(random, 8) };
            match kind {
                8 => {
                    // LLC/SNAP, an HSR tag, or a type of nobody: software must look.
                    let header: &[u8] = match below(random, 3) {
                        0 => &[0, 60, 0xaa, 0xaa, 3, 0, 0, 0],
                        1 => &[0x89, 0x2f, 0, 60, 0, 1],
                        _ => &[0xff, 0xfe],
                    };
                    frame.splice(12..12, header.iter().copied());
                }
                9 => frame[12..14].copy_from_slice(&[[8, 6], [0x88, 0xcc]][below(random, 2) as usize]),
                0 => {
                    let at = below(random, frame.len() as u32) as usize;
                    frame[at] = random.next_u32() as u8;
                }
                1 => frame.truncate(below(random, frame.len() as u32 + 1) as usize),
                2 => {
                    // A VLAN tag, or two.
                    for _ in 0..=below(random, 2) {
                        frame.splice(12..12, [0x81, 0, 0, 7]);
                    }
                }
                3 => {
                    frame.drain(..14);
                    link = LinkType::RAW;
                }
                4 => {
                    link =
                        [LinkType(below(random, 300) as u16), LinkType(510), LinkType(60_000), LinkType::NONE]
                            [below(random, 4) as usize]
                }
                _ => frame.resize(frame.len() + below(random, 200) as usize, 0),
            }
            (frame, link)
        })
        .collect()
}

struct List {
    rules: RuleSet,
    verdicts: Vec<Verdict>,
}

impl List {
    fn new(rules: RuleSet, default: Verdict) -> Self {
        let verdict = |rule: &Rule| match rule.action {
            Some(Action::Deny) => Verdict::Drop(DropReason::AclRule),
            _ => Verdict::Pass,
        };
        let verdicts = rules.rules.iter().map(verdict).chain([default]).collect();
        Self { rules, verdicts }
    }

    fn acl(&self) -> Acl<'_> {
        Acl { rules: &self.rules, verdicts: &self.verdicts }
    }

    fn first<K: MatchKey>(&self, key: &K) -> u32 {
        let rules: Vec<CompiledRule<K>> = CompiledRule::all(&self.rules);
        compiled::first_match(&rules, key)
    }
}

const POLICY: Policy = Policy { pass_unknown_framing: false, pass_malformed: false, ..Policy::PASS };

/// Verdict, positions of all ACLs and IP bytes, one frame after the other.
fn expected(lists: &[List], (frame, link): &(Vec<u8>, LinkType)) -> (Verdict, Vec<u32>, u32) {
    let headers = match dissect(*link, frame, frame.len() as u32) {
        Ok(headers) => headers,
        Err(reject) => return (POLICY.verdict(reject), vec![NO_RULE; lists.len()], 0),
    };
    let first: Vec<u32> = lists
        .iter()
        .map(|list| match &headers.key {
            Key::V4(key) => list.first(key),
            Key::V6(key) => list.first(key),
        })
        .collect();
    let verdicts = lists
        .iter()
        .zip(&first)
        .map(|(list, &first)| list.verdicts[list.rules.rules.len().min(first as usize)]);
    let verdict = verdicts.into_iter().find(|verdict| !verdict.is_pass()).unwrap_or_default();
    (verdict, first, headers.ip_bytes)
}

fn options(slice: Slice, specialise: bool) -> Options {
    Options { algorithm: Algorithm::Masks, specialise, slice, policy: POLICY }
}

fn kernel(device: &Device, lists: &[List], options: Options) -> Arc<Frames> {
    let acls: Vec<_> = lists.iter().map(List::acl).collect();
    Arc::new(Frames::new(device, &acls, options).expect("a kernel"))
}

/// What a lane answers is what is expected, or that software must look; says how many were of the second kind.
fn agree(lane: &mut Lane, lists: &[List], frames: &[(Vec<u8>, LinkType)], what: &str) -> usize {
    let mut answers = Vec::new();
    lane.answers(&mut answers);
    let mut others = vec![Vec::new(); lists.len()];
    for (acl, positions) in others.iter_mut().enumerate().skip(1) {
        lane.first(acl, positions);
    }
    assert_eq!(answers.len(), frames.len());
    let mut beyond = 0;
    for (number, (answer, frame)) in answers.iter().zip(frames).enumerate() {
        let (verdict, first, ip_bytes) = expected(lists, frame);
        let Some(found) = answer.verdict() else {
            beyond += 1;
            continue;
        };
        let positions: Vec<_> =
            (0..lists.len()).map(|acl| if acl == 0 { answer.first() } else { others[acl][number] }).collect();
        assert_eq!(
            (found, positions, answer.ip_bytes()),
            (verdict, first, ip_bytes),
            "{what}, frame {number}: {frame:x?}"
        );
    }
    beyond
}

/// Few on the host, whose items are threads.
fn count(device: &Device, many: usize) -> usize {
    if device.description().id == Id::Host { many / 40 } else { many }
}

#[test]
fn lanes_give_what_the_slow_forms_give() {
    let mut random = random(1);
    for device in devices() {
        let id = device.description().id;
        for (acls, slice, specialise) in [
            (1, Slice::Bytes64, true),
            (1, Slice::Bytes128, false),
            (2, Slice::Bytes128, true),
            (MAX_ACLS, Slice::Bytes64, false),
        ] {
            let defaults = [Verdict::Pass, Verdict::Drop(DropReason::AclDefault)];
            let lists: Vec<_> =
                (0..acls).map(|acl| List::new(rules(&mut random, 30), defaults[acl % 2])).collect();
            let kernel = kernel(&device, &lists, options(slice, specialise));
            let room = count(&device, 20_000);
            let mut lane = Lane::new(&kernel, room as u32, false).expect("a lane");
            for len in [room, 1, room / 3, 0] {
                let frames = frames(&mut random, len);
                lane.clear();
                assert!(frames.iter().all(|(frame, link)| lane.push(frame, *link)));
                lane.submit(Dispatch::Launch).expect("submitted");
                assert!(lane.finish_within(Duration::from_secs(600)).expect("judged"));
                let what = format!("{id}, {acls} ACLs, {slice:?}, {specialise}");
                let beyond = agree(&mut lane, &lists, &frames, &what);
                // Broken lengths, and in short slices IPv6 with TCP's flags or tags.
                let most = if slice == Slice::Bytes64 { len / 3 } else { len / 20 };
                assert!(beyond <= most.max(3), "{what}: {beyond} of {len} are left to software");
            }
            assert!(!lane.push(&[], LinkType::ETHERNET) || room > 0);
        }
    }
}

#[test]
fn a_full_lane_takes_no_more() {
    let device = &devices()[0];
    let kernel =
        kernel(device, &[List::new(RuleSet::default(), Verdict::Pass)], options(Slice::Bytes64, false));
    let mut lane = Lane::new(&kernel, 2, false).expect("a lane");
    assert!(lane.push(&[0; 10], LinkType::ETHERNET) && lane.push(&[], LinkType::ETHERNET));
    assert!(!lane.push(&[0; 10], LinkType::ETHERNET));
    assert_eq!(lane.len(), 2);
    lane.submit(Dispatch::Launch).expect("submitted");
    assert!(lane.finish_within(Duration::from_secs(600)).expect("judged"));
    let mut answers = Vec::new();
    lane.answers(&mut answers);
    // Both are cut short.
    assert_eq!(
        answers.iter().map(|answer| answer.verdict()).collect::<Vec<_>>(),
        [Some(Verdict::Drop(DropReason::Malformed)); 2]
    );
}

/// Batches through a ring with more laps than one, of all sizes, at all alignments; the kernel leaves in between, and comes back.
#[test]
fn rings_give_what_the_slow_forms_give() {
    let mut random = random(2);
    for device in devices().into_iter().filter(|device| device.description().shares) {
        let id = device.description().id;
        let lists = [List::new(rules(&mut random, 30), Verdict::Drop(DropReason::AclDefault))];
        let kernel = kernel(&device, &lists, options(Slice::Bytes128, true));
        let frames = frames(&mut random, count(&device, 10_000));
        // One after the other, wherever that is.
        let mut bytes = Vec::new();
        let places: Vec<_> = frames
            .iter()
            .map(|(frame, link)| {
                let place = Place::new(bytes.len() as u64, frame.len() as u32, *link).expect("near");
                bytes.extend(frame);
                place
            })
            .collect();
        let mut memory = device.share(bytes.len().next_multiple_of(16)).expect("memory");
        memory.write(0, &bytes);
        let mut ring = Ring::new(&kernel, Layout::Anywhere, 2, 7).expect("a ring");
        let mut sent = 0;
        let mut judged: Vec<Answer> = Vec::new();
        let mut answers = vec![Answer::default(); ring.batch()];
        let start = Instant::now();
        let mut batches = 0;
        while judged.len() < frames.len() {
            let len = (below(&mut random, ring.batch() as u32 + 1) as usize).min(frames.len() - sent);
            if ring.under_way() == 4 {
                assert!(!ring.publish(&places[..1]), "a full ring takes no more");
            } else if sent < frames.len() && ring.publish(&places[sent..sent + len]) {
                sent += len;
                batches += 1;
            }
            if let Some(len) = ring.take(&mut answers) {
                judged.extend(&answers[..len]);
            }
            ring.look_after(&memory).expect("it goes on");
            assert!(start.elapsed() < Duration::from_secs(600), "{id}: {} of {}", judged.len(), frames.len());
            if judged.len() == frames.len() / 2 {
                ring.stop().expect("stopped");
            }
        }
        assert!(batches > 8, "laps");
        for (answer, frame) in judged.iter().zip(&frames) {
            let (verdict, first, ip_bytes) = expected(&lists, frame);
            if let Some(found) = answer.verdict() {
                assert_eq!(
                    (found, answer.first(), answer.ip_bytes()),
                    (verdict, first[0], ip_bytes),
                    "{id}: {frame:x?}"
                );
            }
        }
        assert!(judged.iter().filter(|answer| answer.verdict().is_none()).count() <= frames.len() / 20);
        assert_eq!(ring.take(&mut answers), None);
        assert_eq!(ring.under_way(), 0);
        ring.stop().expect("stopped");
    }
}

/// A place outside the frames' memory harms nothing: software must look at it.
#[test]
fn places_outside_are_left_to_software() {
    for device in devices().into_iter().filter(|device| device.description().shares) {
        let kernel =
            kernel(&device, &[List::new(RuleSet::default(), Verdict::Pass)], options(Slice::Bytes64, false));
        let memory = device.share(128).expect("memory");
        let mut ring = Ring::new(&kernel, Layout::Anywhere, 1, 1).expect("a ring");
        let near = |offset, len| Place::new(offset, len, LinkType::RAW).expect("near");
        let places = [near(64, 64), near(65, 64), near(1 << 38, 64), near(128, 0), near(129, 0)];
        let mut verdicts = Vec::new();
        let mut answers = vec![Answer::default(); ring.batch()];
        let start = Instant::now();
        for place in places {
            assert!(ring.publish(&[place]));
            while ring.take(&mut answers).is_none() {
                ring.look_after(&memory).expect("it goes on");
                assert!(start.elapsed() < Duration::from_secs(600));
            }
            verdicts.push(answers[0].verdict());
        }
        let malformed = Some(POLICY.verdict(packetloom_packet::Reject::IpMalformed));
        assert_eq!(verdicts, [malformed, None, None, malformed, None]);
        assert_eq!(Place::new(1 << 39, 0, LinkType::RAW), None);
    }
}

/// Buffers that follow each other, told of by the lengths of their frames.
#[test]
fn buffers_give_what_the_slow_forms_give() {
    let mut random = random(3);
    for device in devices().into_iter().filter(|device| device.description().shares) {
        let id = device.description().id;
        let lists = [List::new(rules(&mut random, 30), Verdict::Drop(DropReason::AclDefault))];
        let kernel = kernel(&device, &lists, options(Slice::Bytes128, true));
        const BYTES: NonZeroU32 = NonZeroU32::new(300).unwrap();
        let batch = kernel.group() as usize;
        let mut memory =
            device.share((8 * batch * BYTES.get() as usize).next_multiple_of(16)).expect("memory");
        let layout = Layout::Buffers { bytes: BYTES, link: LinkType::ETHERNET };
        let mut ring = Ring::new(&kernel, layout, 3, 7).expect("a ring");
        let mut answers = vec![Answer::default(); batch];
        let start = Instant::now();
        // Laps of other frames in the same buffers.
        for round in 0..30 {
            let mut frames = frames(&mut random, batch - round % 3);
            frames.iter_mut().for_each(|(frame, link)| {
                frame.truncate(BYTES.get() as usize);
                *link = LinkType::ETHERNET;
            });
            let mut lens = Vec::new();
            for (number, (frame, _)) in frames.iter().enumerate() {
                memory.write((round % 8 * batch + number) * BYTES.get() as usize, frame);
                lens.push(frame.len() as u16);
            }
            assert!(ring.publish_buffers(&lens));
            while ring.take(&mut answers).is_none() {
                ring.look_after(&memory).expect("it goes on");
                assert!(start.elapsed() < Duration::from_secs(600), "{id}");
            }
            for (number, (answer, frame)) in answers.iter().zip(&frames).enumerate() {
                let (verdict, first, ip_bytes) = expected(&lists, frame);
                if let Some(found) = answer.verdict() {
                    assert_eq!(
                        (found, answer.first(), answer.ip_bytes()),
                        (verdict, first[0], ip_bytes),
                        "{id}: round {round}, {number} of {}: {frame:x?}, starts {}",
                        frames.len(),
                        ring.starts()
                    );
                }
            }
        }
    }
}

/// A lane whose small batches go to a kernel that stays, in turns with launches.
#[test]
fn lanes_with_a_ring_give_what_the_slow_forms_give() {
    let mut random = random(4);
    for device in devices().into_iter().filter(|device| device.description().shares) {
        let id = device.description().id;
        let lists = [List::new(rules(&mut random, 30), Verdict::Drop(DropReason::AclDefault))];
        let kernel = kernel(&device, &lists, options(Slice::Bytes128, true));
        let most = 16 * kernel.group() as usize;
        let mut lane = Lane::new(&kernel, most as u32 + 9, true).expect("a lane");
        for len in [1, most / 2 + 1, most, most + 1, 3, 0, most - 1, 7, most, 2] {
            for dispatch in [Dispatch::Resident, Dispatch::Launch] {
                let frames = frames(&mut random, len);
                lane.clear();
                assert!(frames.iter().all(|(frame, link)| lane.push(frame, *link)));
                assert_eq!(lane.can(dispatch), dispatch == Dispatch::Launch || (1..=most).contains(&len));
                lane.submit(dispatch).expect("submitted");
                assert!(lane.finish_within(Duration::from_secs(600)).expect("judged"), "{id}, {len}");
                let beyond = agree(&mut lane, &lists, &frames, &format!("{id}, {len} frames, {dispatch:?}"));
                assert!(beyond <= (len / 10).max(3), "{id}: {beyond} of {len} are left to software");
            }
        }
    }
}
