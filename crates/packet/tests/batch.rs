//! Batches, verdicts and counters.

mod support;

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use packetloom_packet::batch::{Arena, Loan, Parsed, Policy};
use packetloom_packet::reject::RejectCounts;
use packetloom_packet::verdict::VerdictCounts;
use packetloom_packet::{
    Address, Batch, DropReason, Dscp, End, EndReason, FlowRecord, FrameRef, HalfFlow, Headers, Key, LinkType,
    Reject, Rewrite, Timestamp, Verdict, dissect, protocol, rewrite,
};
use proptest::prelude::*;
use support::*;

/// Packets without layer 2 one after another in an arena, and where they lie.
fn arena(packets: &[Vec<u8>]) -> (Arena, Vec<FrameRef>) {
    let mut bytes = vec![0xee; 3];
    let mut frames = Vec::new();
    for (index, packet) in packets.iter().enumerate() {
        frames.push(FrameRef {
            offset: bytes.len() as u64,
            time: Timestamp::from_nanos(1_000 + index as u64),
            len: packet.len() as u32,
            wire_len: packet.len() as u32,
            link: LinkType::RAW,
            port: index as u16,
        });
        bytes.extend(packet);
    }
    (Arc::new(bytes), frames)
}

/// Frames by the offsets at which they are lent.
struct Pieces(Vec<(u64, Vec<u8>)>);

impl Loan for Pieces {
    fn get(&self, offset: u64, len: usize) -> Option<&[u8]> {
        self.0.iter().find(|(at, _)| *at == offset)?.1.get(..len)
    }

    fn get_mut(&mut self, offset: u64, len: usize) -> Option<&mut [u8]> {
        self.0.iter_mut().find(|(at, _)| *at == offset)?.1.get_mut(..len)
    }
}

/// IPv4, IPv6, broken and unreadable packets, in turns.
fn packets() -> Vec<Vec<u8>> {
    vec![
        Ipv4::of(TCP).packet(&tcp(1, 2, 0x02)),
        Ipv6::of(UDP).packet(&udp(3, 4)),
        vec![0x45, 0, 0],
        Ipv4::of(UDP).packet(&udp(5, 6)),
        Ipv6::of(ICMPV6).packet(&[128, 0, 0, 0]),
        Ipv6::of(TCP).packet(&tcp(7, 8, 0x10)),
        vec![0x50; 40],
        Ipv4::of(GRE).packet(&[0; 4]),
    ]
}

fn filled(packets: &[Vec<u8>]) -> Batch {
    let (arena, frames) = arena(packets);
    let mut batch = Batch::new(packets.len());
    batch.reset(arena);
    frames.into_iter().for_each(|frame| batch.push(frame));
    batch
}

/// What the headers of a frame of a batch said, gathered from its columns.
fn headers(batch: &Batch, index: usize) -> Result<Headers, Reject> {
    match batch.parsed()[index] {
        Parsed::V4(i) => {
            let (i, keys) = (i as usize, batch.v4());
            assert_eq!(keys.frames[i] as usize, index);
            Ok(Headers { key: Key::V4(keys.keys[i]), ip_bytes: keys.bytes[i] })
        }
        Parsed::V6(i) => {
            let (i, keys) = (i as usize, batch.v6());
            assert_eq!(keys.frames[i] as usize, index);
            Ok(Headers { key: Key::V6(keys.keys[i]), ip_bytes: keys.bytes[i] })
        }
        Parsed::Rejected(reject) => Err(reject),
    }
}

#[test]
fn a_new_batch_is_empty() {
    let batch = Batch::new(3);
    assert_eq!((batch.len(), batch.capacity(), batch.is_empty(), batch.is_full()), (0, 3, true, false));
    assert!((**batch.arena()).as_ref().is_empty());
}

#[test]
fn parsing_fills_the_columns() {
    let packets = packets();
    let mut batch = filled(&packets);
    assert!(batch.is_full() && !batch.is_empty() && batch.parsed().is_empty());
    batch.parse(Policy::PASS);
    assert_eq!((batch.parsed().len(), batch.verdicts().len()), (packets.len(), packets.len()));
    assert_eq!((batch.v4().keys.len(), batch.v6().keys.len()), (3, 3));
    for (index, packet) in packets.iter().enumerate() {
        assert_eq!(batch.bytes(index), packet);
        let expected = packetloom_packet::dissect(LinkType::RAW, packet, packet.len() as u32);
        assert_eq!(headers(&batch, index), expected, "frame {index}");
    }
}

#[test]
fn the_wire_length_reaches_the_headers() {
    let (arena, frames) =
        arena(&[Ipv4 { protocol: UDP, total_len: Some(0), ..Ipv4::default() }.packet(&udp(1, 2))]);
    let mut batch = Batch::new(1);
    batch.reset(arena);
    batch.push(FrameRef { wire_len: 4_321, ..frames[0] });
    batch.parse(Policy::PASS);
    assert_eq!(batch.v4().bytes, [4_321]);
}

#[test]
fn parsing_again_goes_on_where_it_stopped() {
    let packets = packets();
    let (arena, frames) = arena(&packets);
    let mut whole = filled(&packets);
    whole.parse(Policy::PASS);

    let mut batch = Batch::new(frames.len());
    batch.reset(arena);
    for frame in &frames {
        batch.push(*frame);
        batch.parse(Policy::PASS);
        batch.parse(Policy::PASS);
    }
    assert_eq!((batch.parsed(), batch.verdicts()), (whole.parsed(), whole.verdicts()));
    assert_eq!((&batch.v4().keys, &batch.v6().frames), (&whole.v4().keys, &whole.v6().frames));
}

/// Common frames go to the columns in groups: wherever others are among them, each has its own key.
#[test]
fn long_runs_of_common_frames_keep_their_places() {
    for others in [&[][..], &[0], &[63], &[64], &[63, 64, 130], &[1, 127, 128, 199]] {
        let frame = |index: u16| {
            let common =
                [ethernet(0x0800), Ipv4::of(TCP).packet(&[tcp(index, 80, 0x10), vec![0; 20]].concat())]
                    .concat();
            let other = [ethernet(0x86dd), Ipv6::of(UDP).packet(&udp(index, 53))].concat();
            if others.contains(&index) { other } else { common }
        };
        let frames: Vec<_> = (0..200).map(frame).collect();
        let (arena, mut refs) = arena(&frames);
        refs.iter_mut().for_each(|frame| frame.link = LinkType::ETHERNET);
        let mut batch = Batch::new(refs.len());
        batch.reset(arena);
        batch.extend(refs);
        batch.parse(Policy::PASS);
        assert_eq!((batch.verdicts().len(), batch.v6().keys.len()), (200, others.len()));
        for (index, frame) in frames.iter().enumerate() {
            let expected = dissect(LinkType::ETHERNET, frame, frame.len() as u32);
            assert_eq!(headers(&batch, index), expected, "frame {index}");
        }
    }
}

#[test]
fn frames_taken_from_a_batch_leave_by_the_ports_that_they_had_there() {
    let mut whole = filled(&packets());
    whole.egress_mut().extend([3, 1, 0, 2, 7, 7, 0, 9]);
    let mut part = Batch::new(8);
    for (from, most) in [(0, 8), (2, 3), (7, 4), (8, 1)] {
        let mut taken = 0..most;
        part.take_from(&whole, from, |_| taken.next().is_some());
        let to = (from + most).min(8);
        assert_eq!(part.frames(), &whole.frames()[from..to]);
        assert_eq!(part.egress(), &whole.egress()[from..to]);
    }
    part.reset(whole.arena().clone());
    assert!(part.egress().is_empty(), "they leave by no port");
}

#[test]
fn frames_keep_their_numbers_in_the_run() {
    let mut whole = filled(&packets());
    let numbers = |batch: &Batch| (0..batch.len()).map(|index| batch.number(index)).collect::<Vec<_>>();
    assert_eq!(numbers(&whole), (0..8).collect::<Vec<_>>());
    whole.set_first_number(100);
    let mut part = Batch::new(8);
    let mut taken = 0..5;
    part.take_from(&whole, 2, |_| taken.next().is_some());
    assert_eq!(numbers(&part), [102, 103, 104, 105, 106]);
    part.parse(Policy::PASS);
    let (mut share, mut of_share) = (Batch::new(8), Batch::new(8));
    share.gather(&part, &[0, 3, 4]);
    assert_eq!(numbers(&share), [102, 105, 106]);
    of_share.gather(&share, &[0, 2]);
    assert_eq!(numbers(&of_share), [102, 106]);
    part.take_from(&share, 1, |_| true);
    assert_eq!(numbers(&part), [105, 106]);
    share.reset(whole.arena().clone());
    share.push(whole.frames()[0]);
    assert_eq!(numbers(&share), [0]);
}

#[test]
fn reset_forgets_everything_but_the_capacity() {
    let mut batch = filled(&packets());
    batch.parse(Policy::PASS);
    let (arena, frames) = arena(&[Ipv6::of(UDP).packet(&udp(9, 9))]);
    batch.reset(arena);
    assert_eq!((batch.len(), batch.capacity()), (0, 8));
    assert!(batch.parsed().is_empty() && batch.verdicts().is_empty());
    assert!(batch.v4().keys.is_empty() && batch.v6().keys.is_empty());
    batch.push(frames[0]);
    batch.parse(Policy::PASS);
    assert_eq!(headers(&batch, 0), raw(batch.bytes(0)));
    assert_eq!((batch.v6().frames.as_slice(), batch.v6().bytes.as_slice()), (&[0][..], &[52][..]));
}

#[test]
fn push_from_keeps_keys_bytes_and_verdicts() {
    let mut batch = filled(&packets());
    batch.parse(Policy { pass_malformed: false, ..Policy::PASS });
    let (verdicts, v4, _) = batch.judge();
    let second_v4 = v4.frames[1] as usize;
    verdicts[second_v4] = Verdict::Drop(DropReason::AclRule);

    let picks = [6, 5, 3, 0, 5, 2, 1];
    let mut picked = Batch::new(picks.len());
    picked.gather(&batch, &picks.map(|index| index as u32));
    assert_eq!(picked.len(), picks.len());
    assert_eq!((picked.v4().keys.len(), picked.v6().keys.len()), (2, 3));
    for (place, index) in picks.into_iter().enumerate() {
        assert_eq!(picked.frames()[place], batch.frames()[index]);
        assert_eq!(picked.bytes(place), batch.bytes(index));
        assert_eq!(picked.verdicts()[place], batch.verdicts()[index]);
        assert_eq!(headers(&picked, place), headers(&batch, index), "place {place}");
    }
    let drops = [Verdict::Drop(DropReason::Malformed), Verdict::Drop(DropReason::AclRule)];
    assert_eq!([picked.verdicts()[0], picked.verdicts()[2]], drops);
    // A batch of picked frames is parsed already.
    picked.parse(Policy::PASS);
    assert_eq!((picked.parsed().len(), picked.verdicts().len()), (picks.len(), picks.len()));
}

fn to(frame: u32, address: Address, port: u16) -> Rewrite {
    Rewrite { frame, end: End::Destination, address, port: Some(port) }
}

fn rewrites(batch: &Batch, index: usize) -> Vec<Rewrite> {
    batch.rewrites(index).collect()
}

#[test]
fn a_frame_is_rewritten_to_what_its_key_is_in_the_end() {
    let mut batch = filled(&packets());
    batch.parse(Policy::PASS);
    assert!(!batch.has_rewrites());
    let (v4, v6) = (|n| Address::V4(n), |n| Address::V6([n, n]));
    // Frames out of order, as from a function that takes IPv4 first and from one after it.
    let all = [
        to(3, v4(1), 11),
        to(0, v4(2), 12),
        to(5, v6(3), 13),
        to(0, v4(4), 14),
        to(3, v4(5), 15),
        Rewrite { end: End::Source, port: None, ..to(0, v4(6), 0) },
    ];
    assert!(all.iter().all(|&rewrite| batch.rewrite(rewrite)) && batch.has_rewrites());
    // The last of each end, with its port whether it was changed or not.
    let source = Rewrite { end: End::Source, ..to(0, v4(6), 1) };
    for frame in 0..=batch.len() {
        let expected = match frame {
            0 => vec![source, to(0, v4(4), 14)],
            3 => vec![to(3, v4(5), 15)],
            5 => vec![to(5, v6(3), 13)],
            _ => vec![],
        };
        assert_eq!(rewrites(&batch, frame), expected, "{frame}");
    }
    let key = batch.v4().keys[0];
    assert_eq!((key.source, key.source_port, key.destination, key.destination_port), (6, 1, 4, 14));
    assert_eq!(batch.v6().keys[2].destination, [3, 3]);

    let arena = batch.arena().clone();
    batch.reset(arena);
    assert!(!batch.has_rewrites() && (0..8).all(|frame| rewrites(&batch, frame).is_empty()));
}

#[test]
fn what_cannot_be_rewritten_is_refused() {
    let (v4, v6) = (Address::V4(1), Address::V6([1, 1]));
    let mut batch = filled(&packets());
    // Not parsed: there is no key.
    assert!(!batch.rewrite(to(0, v4, 1)) && !batch.rewrite(to(8, v4, 1)));
    let fragment = Ipv4 { protocol: SCTP, fragment: 0x2000, ..Ipv4::default() }.packet(&udp(1, 2));
    let mut batch = filled(&[packets(), vec![fragment]].concat());
    batch.parse(Policy::PASS);
    for (frame, address) in [(0, v6), (1, v4), (2, v4), (2, v6), (6, v4), (8, v4), (9, v4), (u32::MAX, v6)] {
        assert!(!batch.rewrite(to(frame, address, 1)), "{frame}, {address:?}");
    }
    assert!(!batch.has_rewrites());
    assert_eq!(headers(&batch, 8), raw(batch.bytes(8)));
    // Without a port it can be.
    let without = Rewrite { port: None, ..to(8, v4, 1) };
    assert!(batch.rewrite(without));
    assert_eq!(rewrites(&batch, 8), [without]);
}

#[test]
fn rewrites_of_parts_are_put_together() {
    let mut whole = filled(&packets());
    whole.parse(Policy::PASS);
    let mut part = Batch::new(2);
    part.gather(&whole, &[3, 5]);
    let (first, second) = (to(0, Address::V4(1), 7), to(0, Address::V4(2), 8));
    assert!(part.rewrite(first) && part.rewrite(second) && part.rewrite(to(1, Address::V6([3, 4]), 9)));

    for (index, frame) in [3, 5].into_iter().enumerate() {
        whole.rewrite_from(frame, &part, index);
        assert_eq!(headers(&whole, frame), headers(&part, index));
    }
    assert_eq!(rewrites(&whole, 3), [Rewrite { frame: 3, ..second }]);
    assert_eq!(rewrites(&whole, 5), [to(5, Address::V6([3, 4]), 9)]);

    // A mark comes along, with rewrites or alone; what is rejected has none.
    assert!(part.set_dscp(0, Dscp::EF) && !whole.set_dscp(2, Dscp::EF) && !whole.set_dscp(99, Dscp::EF));
    whole.rewrite_from(3, &part, 0);
    assert_eq!(
        (whole.rewritten_dscp(3), whole.rewritten_dscp(5), whole.is_rewritten(2)),
        (Some(Dscp::EF), None, false)
    );
    let mut alone = filled(&packets());
    alone.parse(Policy::PASS);
    assert!(!alone.has_rewrites() && alone.set_dscp(0, Dscp::DEFAULT) && alone.has_rewrites());
    assert!(alone.is_rewritten(0) && !alone.is_rewritten(3) && rewrites(&alone, 0).is_empty());

    // A frame that is taken out again has the new key, and its rewrites stay.
    let mut again = Batch::new(1);
    again.gather(&whole, &[3]);
    assert_eq!(headers(&again, 0), headers(&whole, 3));
    assert!(!again.has_rewrites());
}

#[test]
fn frames_beyond_the_arena_are_cut() {
    let mut batch = Batch::new(8);
    batch.reset(Arc::new([0x45u8, 1, 2, 3]));
    let cases: [(u64, u32, &[u8]); 7] = [
        (0, 4, &[0x45, 1, 2, 3]),
        (1, 2, &[1, 2]),
        (2, 9, &[2, 3]),
        (4, 1, &[]),
        (5, 1, &[]),
        (3, u32::MAX, &[3]),
        (u64::MAX, u32::MAX, &[]),
    ];
    for (offset, len, _) in cases {
        let (time, link) = (Timestamp::default(), LinkType::RAW);
        batch.push(FrameRef { offset, time, len, wire_len: 60, link, port: 0 });
    }
    batch.parse(Policy::PASS);
    for (index, (offset, len, bytes)) in cases.into_iter().enumerate() {
        assert_eq!(batch.bytes(index), bytes, "{len} bytes at {offset}");
    }
    assert_eq!(batch.parsed()[3], Parsed::Rejected(Reject::LinkTruncated));
    assert_eq!(batch.parsed()[0], Parsed::Rejected(Reject::IpTruncated));
}

#[test]
fn a_loop_over_frames_may_judge_by_itself() {
    let mut batch = filled(&packets()[..2]);
    batch.push_verdict(Verdict::Pass);
    batch.push_verdict(Verdict::Drop(DropReason::AclDefault));
    assert_eq!(batch.verdicts(), [Verdict::Pass, Verdict::Drop(DropReason::AclDefault)]);
}

#[test]
fn the_policy_tells_non_ip_and_unknown_framings_from_malformed() {
    let unknown = [Reject::LinkType, Reject::UnknownFraming];
    for reject in Reject::ALL {
        assert_eq!(reject.is_non_ip(), reject == Reject::NotIp, "{reject:?}");
        assert_eq!(reject.is_unknown_framing(), unknown.contains(&reject), "{reject:?}");
        for bits in 0..8 {
            let [pass_non_ip, pass_unknown_framing, pass_malformed] = [1, 2, 4].map(|bit| bits & bit != 0);
            let (passes, reason) = match reject {
                Reject::NotIp => (pass_non_ip, DropReason::NonIp),
                Reject::LinkType | Reject::UnknownFraming => {
                    (pass_unknown_framing, DropReason::UnknownFraming)
                }
                _ => (pass_malformed, DropReason::Malformed),
            };
            let expected = if passes { Verdict::Pass } else { Verdict::Drop(reason) };
            let policy = Policy { pass_non_ip, pass_unknown_framing, pass_malformed };
            assert_eq!(policy.verdict(reject), expected, "{policy:?}, {reject:?}");
        }
        assert_eq!(Policy::PASS.verdict(reject), Verdict::Pass);
    }
}

#[test]
fn the_policy_reaches_the_verdicts() {
    let arp = [ethernet(0x0806), vec![0; 28]].concat();
    let (arena, mut frames) = arena(&[arp, vec![0x45; 8], Ipv4::of(UDP).packet(&udp(1, 2))]);
    frames[0].link = LinkType::ETHERNET;
    let verdicts = |policy| {
        let mut batch = Batch::new(3);
        batch.reset(arena.clone());
        frames.iter().for_each(|frame| batch.push(*frame));
        batch.parse(policy);
        batch.verdicts().to_vec()
    };
    let (non_ip, malformed) = (Verdict::Drop(DropReason::NonIp), Verdict::Drop(DropReason::Malformed));
    assert_eq!(verdicts(Policy::PASS), [Verdict::Pass; 3]);
    assert_eq!(
        verdicts(Policy { pass_non_ip: false, ..Policy::PASS }),
        [non_ip, Verdict::Pass, Verdict::Pass]
    );
    assert_eq!(
        verdicts(Policy { pass_non_ip: false, pass_malformed: false, ..Policy::PASS }),
        [non_ip, malformed, Verdict::Pass]
    );
}

#[test]
fn a_batch_knows_which_frames_are_in_other_framings() {
    let packet = Ipv4::of(UDP).packet(&udp(1, 2));
    let snap = [ethernet(40), vec![0xaa, 0xaa, 3, 0, 0, 0, 8, 0], packet.clone()].concat();
    let plain = [ethernet(IPV4), packet].concat();
    let unknown = [ethernet(0xfffe), vec![0; 40]].concat();
    let (arena, mut frames) = arena(&[plain.clone(), snap.clone(), unknown, plain, snap]);
    frames.iter_mut().for_each(|frame| frame.link = LinkType::ETHERNET);
    let mut batch = Batch::new(5);
    for _ in 0..2 {
        batch.reset(arena.clone());
        assert!(batch.other_framings().is_empty());
        // In two parts.
        frames[..2].iter().for_each(|frame| batch.push(*frame));
        batch.parse(Policy::PASS);
        frames[2..].iter().for_each(|frame| batch.push(*frame));
        batch.parse(Policy::PASS);
        assert_eq!(batch.other_framings(), [1, 4]);
        assert_eq!(batch.parsed()[2], Parsed::Rejected(Reject::UnknownFraming));
    }
    assert_eq!([0, 1, 2, 3, 4].map(|at| batch.is_other_framing(at)), [false, true, false, false, true]);
    let mut part = Batch::new(5);
    part.gather(&batch, &[4, 3, 1]);
    assert_eq!(part.other_framings(), [0, 2]);
}

/// Shares of a batch have what its frames have, and bring their verdicts and rewrites back: where all frames are common, and where not.
#[test]
fn shares_are_gathered_and_merged() {
    let common: Vec<_> = (0..40)
        .map(|number| {
            [ethernet(IPV4), Ipv4::of(UDP).packet(&[udp(number, 53), vec![0; 40]].concat())].concat()
        })
        .collect();
    for packets in [packets(), common] {
        let is_common = packets.len() == 40;
        let (arena, mut frames) = arena(&packets);
        if is_common {
            frames.iter_mut().for_each(|frame| frame.link = LinkType::ETHERNET);
        }
        let mut whole = Batch::new(frames.len());
        whole.reset(arena);
        whole.extend(frames);
        whole.parse(Policy::PASS);
        assert_eq!(whole.is_common(), is_common);
        whole.set_mark(5, 9);
        let indices = |share: usize| (0..whole.len() as u32).filter(move |&at| at as usize % 3 == share);
        let indices = [0, 1, 2].map(|share| indices(share).collect::<Vec<_>>());
        let mut shares = [(); 3].map(|()| Batch::new(0));
        for (share, indices) in shares.iter_mut().zip(&indices) {
            let mut expected = Batch::new(0);
            expected.reset(whole.arena().clone());
            expected.extend(indices.iter().map(|&at| whole.frames()[at as usize]));
            expected.parse(Policy::PASS);
            share.gather(&whole, indices);
            assert_eq!(share.frames(), expected.frames());
            assert_eq!((share.parsed(), share.verdicts()), (expected.parsed(), expected.verdicts()));
            let keys = |batch: &Batch| (batch.v4().keys.clone(), batch.v6().keys.clone());
            assert_eq!((keys(share), share.is_common()), (keys(&expected), is_common));
            assert_eq!(
                (&share.v4().frames, &share.v4().bytes),
                (&expected.v4().frames, &expected.v4().bytes)
            );
        }
        // The last frame of each share is dropped, the first one is marked where it can be.
        let dropped = Verdict::Drop(DropReason::RateLimit);
        for share in &mut shares {
            let last = share.len() - 1;
            share.judge().0[last] = dropped;
            share.set_dscp(0, Dscp::new(46).expect("six bits"));
            assert_eq!(share.mark(0), 0);
            share.set_mark(0, 7);
        }
        for (share, indices) in shares.iter().zip(&indices) {
            whole.merge(share, indices);
        }
        for (at, verdict) in whole.verdicts().iter().enumerate() {
            assert_eq!(*verdict == dropped, at + 3 >= whole.len(), "frame {at}");
            let has_key = !matches!(whole.parsed()[at], Parsed::Rejected(_));
            assert_eq!(whole.rewritten_dscp(at).is_some(), at < 3 && has_key, "frame {at}");
            assert_eq!(
                whole.mark(at),
                match at {
                    0..3 => 7,
                    5 => 9,
                    _ => 0,
                },
                "frame {at}"
            );
        }
    }
}

#[test]
fn every_packet_is_in_one_counter() {
    let mut counts = VerdictCounts::default();
    assert_eq!(counts.received(), 0);
    for (times, reason) in DropReason::ALL.into_iter().enumerate() {
        (0..=times).for_each(|_| counts.add(Verdict::Drop(reason)));
    }
    counts.add(Verdict::Pass);
    assert_eq!(counts.passed, 1);
    let dropped: Vec<_> = counts.dropped().collect();
    for (place, reason) in DropReason::ALL.into_iter().enumerate() {
        assert_eq!(dropped[place], (reason, place as u64 + 1));
    }
    assert_eq!(counts.received(), 1 + dropped.iter().map(|(_, count)| count).sum::<u64>());
    assert!(Verdict::Pass.is_pass() && !Verdict::Drop(DropReason::NonIp).is_pass());
    assert_eq!(Verdict::default(), Verdict::Pass);
}

#[test]
fn rejects_are_counted_and_merged() {
    let (mut one, mut other) = (RejectCounts::default(), RejectCounts::default());
    for (times, reject) in Reject::ALL.into_iter().enumerate() {
        (0..times).for_each(|_| one.add(reject));
        other.add(reject);
    }
    one.merge(&other);
    let counts: Vec<_> = one.iter().collect();
    let expected: Vec<_> = Reject::ALL.into_iter().zip(1..).collect();
    assert_eq!(counts, expected);
    assert_eq!(one.total(), (1..=Reject::ALL.len() as u64).sum());
}

#[test]
fn names_are_distinct() {
    // Both have an unknown framing: a frame that is rejected for it may be dropped for it.
    for mut names in [
        Reject::ALL.iter().map(|reject| reject.name()).collect::<Vec<_>>(),
        DropReason::ALL.iter().map(|reason| reason.name()).collect(),
    ] {
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}

#[test]
fn protocol_names_and_numbers_belong_together() {
    for number in 0..=u8::MAX {
        if let Some(name) = protocol::name(number) {
            assert_eq!(protocol::by_name(name), Some(number), "{name}");
        }
    }
    for (name, number) in [("tcp", 6), ("udp", 17), ("icmp", 1), ("icmpv6", 58), ("sctp", 132), ("gre", 47)] {
        assert_eq!((protocol::by_name(name), protocol::name(number)), (Some(number), Some(name)));
    }
    assert_eq!((protocol::by_name("TCP"), protocol::by_name(""), protocol::name(255)), (None, None, None));
}

#[test]
fn time_never_runs_backwards() {
    let (early, late) = (Timestamp::from_nanos(1_999_999), Timestamp::from_nanos(2_000_005));
    assert_eq!((late.nanos_since(early), early.nanos_since(late)), (6, 0));
    assert_eq!((early.as_millis(), late.as_millis(), late.as_nanos()), (1, 2, 2_000_005));
}

#[test]
fn a_record_spans_both_directions() {
    let half = |first, last, packets| HalfFlow {
        first: Timestamp::from_nanos(first),
        last: Timestamp::from_nanos(last),
        packets,
        ..HalfFlow::default()
    };
    let record = |reverse| FlowRecord {
        source: IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)),
        destination: IpAddr::V4(Ipv4Addr::new(198, 51, 100, 7)),
        source_port: 1,
        destination_port: 2,
        protocol: TCP,
        forward: half(10, 50, 3),
        reverse,
        end_reason: EndReason::ForcedEnd,
        more: None,
    };
    // An empty half's times mean nothing.
    for (reverse, end, directions) in
        [(half(0, 99, 0), 50, 1), (half(20, 40, 1), 50, 2), (half(20, 70, 1), 70, 2)]
    {
        let record = record(reverse);
        assert_eq!(
            (record.start().as_nanos(), record.end().as_nanos(), record.directions()),
            (10, end, directions)
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 2_000, ..ProptestConfig::default() })]

    /// Copies of frames that pass get what one rewrite after the other would write, also where all frames of a batch are common and
    /// nobody looks again.
    #[test]
    fn copies_of_frames_have_their_rewrites(
        kinds in prop::collection::vec((prop_oneof![3 => 0usize..2, 1 => 2usize..6], 0u8..8, prop::bool::weighted(0.8)), 1..6),
        all_are_common: bool,
        (payload, kept, room, rest) in (0usize..30, prop_oneof![Just(100), 14usize..80], 0usize..3, 0usize..100),
        (address, port, dscp) in (any::<u32>(), any::<u16>(), 0u64..64),
        next in prop::collection::vec(any::<u64>(), 0..8),
    ) {
        let data = [tcp(0x1234, 0x5678, 0x12), vec![7; payload]].concat();
        let tagged = [&ethernet(0x8100), &tag(IPV4)[..], &Ipv4::of(TCP).packet(&data)].concat();
        let whole = |ethertype, packet: Vec<u8>| [ethernet(ethertype), packet].concat();
        let frame = |kind| match kind {
            0 => whole(IPV4, Ipv4::of(TCP).packet(&data)),
            1 => whole(IPV4, Ipv4::of(UDP).packet(&[udp(1, 2), vec![7; payload]].concat())),
            2 => whole(IPV6, Ipv6::of(TCP).packet(&data)),
            3 => whole(IPV4, Ipv4 { protocol: UDP, fragment: 0x00b9, ..Ipv4::default() }.packet(&data)),
            4 => tagged.clone(),
            _ => whole(0x0806, vec![0; 28]),
        };
        let kinds: Vec<_> = kinds.into_iter().map(|(kind, ends, passes)| {
            (if all_are_common { kind % 2 } else { kind }, ends, passes)
        }).collect();
        let (arena, mut frames) = arena(&kinds.iter().map(|&(kind, ..)| frame(kind)).collect::<Vec<_>>());
        frames.iter_mut().for_each(|frame| frame.link = LinkType::ETHERNET);
        let mut batch = Batch::new(frames.len());
        batch.reset(arena);
        batch.extend(frames);
        batch.parse(Policy::PASS);
        for (frame, &(kind, ends, passes)) in (0..).zip(&kinds) {
            let address = if kind == 2 { Address::V6([address.into(), 1]) } else { Address::V4(address) };
            for end in [End::Source, End::Destination].into_iter().filter(|&end| ends >> end as u8 & 1 == 1) {
                prop_assert_eq!(batch.rewrite(Rewrite { end, ..to(frame, address, port) }), kind < 5);
            }
            if ends & 4 != 0 {
                prop_assert_eq!(batch.set_dscp(frame, Dscp::new(dscp).expect("six bits")), kind < 5);
            }
            if !passes {
                batch.judge().0[frame as usize] = Verdict::Drop(DropReason::AclRule);
            }
        }
        let passed: Vec<_> = (0..kinds.len()).filter(|&index| kinds[index].2).collect();
        // One place too few, and the last frame stays; as many; one too many; and a part of one.
        let mut places = vec![0xaa; (passed.len() + room).saturating_sub(1) * kept + rest.min(kept - 1)];
        let copied = batch.copy_passed(&mut places, kept, next.iter().copied());
        prop_assert_eq!(copied, passed.len().min(places.len() / kept));
        for (index, place) in passed.into_iter().zip(places.chunks_exact(kept)) {
            let of = batch.frames()[index];
            let bytes = batch.bytes(index);
            let mut expected = bytes[..bytes.len().min(kept)].to_vec();
            let place = &place[..expected.len()];
            let mut alone = expected.clone();
            for rewrite in batch.rewrites(index) {
                rewrite::apply(&rewrite, of.link, &mut expected, of.wire_len);
            }
            if let Some(dscp) = batch.rewritten_dscp(index) {
                rewrite::set_dscp(dscp, of.link, &mut expected);
            }
            prop_assert_eq!(place, &expected);
            batch.apply_rewrites(index, &mut alone);
            prop_assert_eq!(place, &alone);
        }
    }

    /// Frames that are lent piece by piece are as those that lie in one arena, for all that is asked of them; and they can be rewritten where
    /// they lie, as long as nobody else has them.
    #[test]
    fn lent_frames_are_as_those_of_an_arena(
        kinds in prop::collection::vec((prop_oneof![3 => 0usize..2, 1 => 2usize..6], 0u8..8), 1..80),
        (payload, behind) in (0usize..30, 0usize..80),
        (address, port, dscp) in (any::<u32>(), any::<u16>(), 0u64..64),
    ) {
        let data = [tcp(0x1234, 0x5678, 0x12), vec![7; payload]].concat();
        let whole = |ethertype, packet: Vec<u8>| [ethernet(ethertype), packet].concat();
        let frame = |kind| match kind {
            0 => whole(IPV4, Ipv4::of(TCP).packet(&data)),
            1 => whole(IPV4, Ipv4::of(UDP).packet(&[udp(1, 2), vec![7; payload]].concat())),
            2 => whole(IPV6, Ipv6::of(TCP).packet(&data)),
            3 => [&ethernet(0x8100), &tag(IPV4)[..], &Ipv4::of(TCP).packet(&data)].concat(),
            4 => vec![0x45; 9],
            _ => whole(0x0806, vec![0; 28]),
        };
        let (arena, mut frames) = arena(&kinds.iter().map(|&(kind, ..)| frame(kind)).collect::<Vec<_>>());
        frames.iter_mut().for_each(|frame| frame.link = LinkType::ETHERNET);
        let mut whole = Batch::new(frames.len());
        whole.reset(arena);
        whole.extend(frames.iter().copied());
        // Scattered, with something behind each.
        let pieces = (0u64..).zip(&frames).map(|(number, _)| {
            (number * 7_777 % 1_000 * 2_048, [whole.bytes(number as usize), &vec![0x5a; behind]].concat())
        });
        let pieces = Pieces(pieces.collect());
        let lent = frames.iter().zip(&pieces.0).map(|(frame, piece)| FrameRef { offset: piece.0, ..*frame });
        let lent: Vec<_> = lent.collect();
        let mut batch = Batch::new(frames.len());
        batch.reset_to_loan(Arc::new(pieces));
        batch.extend(lent);
        for batch in [&mut whole, &mut batch] {
            batch.parse(Policy::PASS);
            for (frame, &(kind, ends)) in (0..).zip(&kinds) {
                let address = if kind == 2 { Address::V6([address.into(), 1]) } else { Address::V4(address) };
                for end in [End::Source, End::Destination].into_iter().filter(|&end| ends >> end as u8 & 1 == 1) {
                    batch.rewrite(Rewrite { end, ..to(frame, address, port) });
                }
                if ends & 4 != 0 {
                    batch.set_dscp(frame, Dscp::new(dscp).expect("six bits"));
                }
            }
        }
        prop_assert_eq!((batch.parsed(), batch.verdicts()), (whole.parsed(), whole.verdicts()));
        prop_assert_eq!((&batch.v4().keys, &batch.v6().keys), (&whole.v4().keys, &whole.v6().keys));
        prop_assert!(batch.each_bytes().eq(whole.each_bytes()));
        let mut places = [vec![0; 128 * frames.len()], vec![0; 128 * frames.len()]];
        let none = || std::iter::empty();
        prop_assert_eq!(batch.copy_passed(&mut places[0], 128, none()), whole.copy_passed(&mut places[1], 128, none()));
        let mut share = Batch::new(0);
        share.gather(&batch, &[0]);
        for index in 0..frames.len() {
            let expected = whole.bytes(index).to_vec();
            prop_assert_eq!(batch.bytes(index), &expected);
            prop_assert_eq!(batch.payload(index), whole.payload(index));
            let columns = batch.columns();
            prop_assert_eq!(columns.bytes(index as u32), &expected);
            let mut changed = expected.clone();
            whole.apply_rewrites(index, &mut changed);
            let (copy, _) = places[0][index * 128..].split_at(changed.len());
            prop_assert!(copy == changed && places[1][index * 128..].starts_with(copy));
            // The share has them, too.
            prop_assert_eq!(batch.rewrite_in_place(index), None);
            prop_assert_eq!((batch.bytes(index), batch.is_rewritten(index)), (&expected[..], whole.is_rewritten(index)));
            share.reset(packetloom_packet::batch::empty_arena());
            prop_assert_eq!(batch.rewrite_in_place(index), Some(&mut changed[..]));
            prop_assert!(!batch.is_rewritten(index) && batch.bytes(index) == changed);
            batch.bytes_mut(index).expect("nobody else has it")[0] ^= 0xff;
            changed[0] ^= 0xff;
            prop_assert_eq!(batch.bytes(index), &changed);
            share.reset_like(&batch);
            share.push(batch.frames()[index]);
            prop_assert_eq!(share.bytes(0), &changed);
        }
        // What is not lent has no bytes.
        batch.push(FrameRef { offset: 5, ..batch.frames()[0] });
        prop_assert_eq!(batch.bytes(frames.len()), b"");
        batch.parse(Policy::PASS);
        prop_assert!(matches!(batch.parsed()[frames.len()], Parsed::Rejected(_)));
        // In an arena nothing is changed.
        prop_assert_eq!(whole.rewrite_in_place(0), None);
        prop_assert_eq!(whole.bytes_mut(0), None);
    }

    /// Also where frames came after others were parsed and rewritten, or were never parsed.
    #[test]
    fn frames_that_come_later_are_copied_too(
        before in 1usize..5,
        after in 1usize..5,
        is_rewritten: bool,
        is_parsed: bool,
        // Nothing is asked of them.
        next in prop::collection::vec(any::<u64>(), 0..12),
    ) {
        let frame = [ethernet(IPV4), Ipv4::of(TCP).packet(&tcp(1, 2, 0))].concat();
        let (arena, mut frames) = arena(&vec![frame.clone(); before + after]);
        frames.iter_mut().for_each(|frame| frame.link = LinkType::ETHERNET);
        let mut batch = Batch::new(frames.len());
        batch.reset(arena);
        batch.extend(frames[..before].iter().copied());
        batch.parse(Policy::PASS);
        if is_rewritten {
            prop_assert!(batch.rewrite(to(0, Address::V4(0x0102_0304), 5)));
        }
        batch.extend(frames[before..].iter().copied());
        if is_parsed {
            batch.parse(Policy::PASS);
        } else {
            (0..after).for_each(|_| batch.push_verdict(Verdict::Pass));
        }
        let mut places = vec![0; 64 * frames.len()];
        prop_assert_eq!(batch.copy_passed(&mut places, 64, next.iter().copied()), frames.len());
        for (index, place) in places.chunks(64).enumerate() {
            let mut expected = frame.clone();
            batch.apply_rewrites(index, &mut expected);
            prop_assert_eq!(&place[..frame.len()], &expected);
        }
    }

    /// Batches know shortcuts for common frames: what they find is what the walk over the headers finds, whatever single bytes
    /// say.
    #[test]
    fn batches_find_what_the_walk_finds(
        is_tcp: bool,
        len in 0usize..80,
        // Lengths that matter more often than others.
        changes in prop::collection::vec(
            prop_oneof![4 => (12usize..48, any::<u8>()), 1 => (Just(17), 18u8..40), 1 => (Just(16), Just(0))],
            0..4,
        ),
        link in prop_oneof![9 => Just(LinkType::ETHERNET), 1 => Just(LinkType::RAW)],
        wire_len in 0u32..100,
    ) {
        let transport = if is_tcp { tcp(0x1234, 0x5678, 0x12) } else { udp(0x1234, 0x5678) };
        let mut frame = vec![2; 12];
        frame.extend([8, 0]);
        frame.extend(Ipv4::of(if is_tcp { TCP } else { UDP }).packet(&[transport, vec![7; 20]].concat()));
        for (at, byte) in changes {
            frame[at] = byte;
        }
        frame.truncate(len);
        let mut batch = Batch::new(1);
        let captured = frame.len() as u32;
        batch.reset(Arc::new(frame.clone()));
        batch.push(FrameRef { offset: 0, time: Timestamp::default(), len: captured, wire_len, link, port: 0 });
        batch.parse(Policy::PASS);
        let found = match batch.parsed() {
            [Parsed::V4(0)] => Ok(Headers { key: Key::V4(batch.v4().keys[0]), ip_bytes: batch.v4().bytes[0] }),
            [Parsed::V6(0)] => Ok(Headers { key: Key::V6(batch.v6().keys[0]), ip_bytes: batch.v6().bytes[0] }),
            [Parsed::Rejected(reject)] => Err(*reject),
            others => panic!("{others:?}"),
        };
        prop_assert_eq!(found, dissect(link, &frame, wire_len));
        prop_assert_eq!(batch.v4().keys.len() + batch.v6().keys.len(), usize::from(found.is_ok()));
    }
}

/// For each transport and each way to carry IP: where headers are, and what is carried, without what pads the frame.
#[test]
fn payloads_are_found_in_all_framings() {
    const PAYLOAD: &[u8] = b"what is carried";
    let with = |header: Vec<u8>| [&header[..], PAYLOAD].concat();
    let mut long_tcp = tcp(1, 2, 0x18);
    long_tcp[12] = 8 << 4;
    long_tcp.extend([1; 12]);
    let mut bare_udp = udp(1000, 53);
    bare_udp.truncate(8);
    let uppers = [
        (TCP, with(tcp(80, 9_000, 0x18))),
        (TCP, with(long_tcp)),
        (UDP, with(bare_udp)),
        (protocol::SCTP, with(vec![0; 12])),
        (GRE, with(vec![])),
    ];
    let mut cases = Vec::new();
    for (upper, bytes) in &uppers {
        let plain = Ipv4::of(*upper).packet(bytes);
        let options = Ipv4 { options: &[1; 8], ..Ipv4::of(*upper) }.packet(bytes);
        cases.extend([(4, 20, plain), (4, 28, options)]);
        let chain = [extension(*upper, 1, 16), bytes.clone()].concat();
        cases.extend([(6, 40, Ipv6::of(*upper).packet(bytes)), (6, 56, Ipv6::of(0).packet(&chain))]);
    }
    // A later fragment has no transport header, an atomic one has.
    cases.push((4, 20, Ipv4 { fragment: 0x0005, ..Ipv4::of(TCP) }.packet(PAYLOAD)));
    cases.push((6, 48, Ipv6::of(44).packet(&[fragment(UDP, 7, false), PAYLOAD.to_vec()].concat())));
    cases.push((6, 48, Ipv6::of(44).packet(&with([fragment(TCP, 0, false), tcp(1, 2, 0)].concat()))));
    let mut batch = Batch::new(1 << 16);
    let (mut bytes, mut frames, mut expected) = (vec![0; 7], Vec::new(), Vec::new());
    for (version, header, packet) in &cases {
        let carriers = [carriers(), framings(*version == 6)].concat();
        for (name, link, carrier) in carriers {
            // With the EtherType or protocol of the version that is carried.
            let frame = [&carrier[..], packet, &[0xdd; 9]].concat();
            if dissect(link, &frame, frame.len() as u32).is_err() {
                continue;
            }
            let len = frame.len() as u32;
            let offset = bytes.len() as u64;
            frames.push(FrameRef { offset, time: Timestamp::default(), len, wire_len: len, link, port: 0 });
            bytes.extend(frame);
            expected.push((name, carrier.len() as u32, carrier.len() as u32 + header));
        }
    }
    assert!(expected.len() > 15 * cases.len(), "{} of {} cases", expected.len(), cases.len());
    batch.reset(Arc::new(bytes));
    batch.extend(frames);
    batch.parse(Policy::PASS);
    let indices: Vec<_> = (0..batch.len() as u32).filter(|index| index % 3 == 1).collect();
    let mut share = Batch::new(0);
    share.gather(&batch, &indices);
    let check = |batch: &Batch, index: usize, (name, network, transport): (&str, u32, u32)| {
        let layers = batch.layers(index).unwrap_or_else(|| panic!("{name}: no key"));
        assert_eq!((layers.network, layers.transport), (network, transport), "{name}");
        assert_eq!(batch.payload(index), Some(PAYLOAD), "{name}");
    };
    for (index, expected) in expected.iter().enumerate() {
        check(&batch, index, *expected);
    }
    for (index, &whole) in indices.iter().enumerate() {
        check(&share, index, expected[whole as usize]);
    }
}

#[test]
fn payloads_of_cut_headers_are_not_there() {
    let whole = Ipv4::of(TCP).packet(&tcp(1, 2, 0x18));
    let mut short = whole.clone();
    short[20 + 12] = 4 << 4;
    let frames = [whole[..36].to_vec(), whole[..39].to_vec(), short, whole.clone(), vec![0x45, 0, 0]];
    let mut batch = filled(&frames);
    batch.parse(Policy::PASS);
    let found: Vec<_> = (0..batch.len()).map(|index| batch.payload(index)).collect();
    assert_eq!(found, [None, None, None, Some(&[][..]), None]);
    assert_eq!(batch.layers(4), None);
}
