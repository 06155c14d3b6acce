//! Random filters on random frames: alone, in a batch, and as the oracle sees them.

use std::sync::Arc;

use packetloom_filter::Filter;
use packetloom_packet::batch::Policy;
use packetloom_packet::{Batch, FrameRef, LinkType, Timestamp};
use packetloom_testing::amount;
use proptest::collection::vec;
use proptest::prelude::*;

use crate::frames::{RawFrame, any_frame};
use crate::oracle;
use crate::texts::filters;

/// A parsed batch of frames.
pub(crate) fn batch(frames: &[RawFrame]) -> Batch {
    let arena: Vec<u8> = frames.iter().flat_map(|frame| frame.bytes.iter().copied()).collect();
    let mut batch = Batch::new(frames.len());
    batch.reset(Arc::new(arena));
    let mut offset = 0;
    for RawFrame { link, bytes, wire_len } in frames {
        let len = bytes.len() as u32;
        batch.push(FrameRef {
            offset,
            time: Timestamp::from_nanos(0),
            len,
            wire_len: *wire_len,
            link: *link,
            port: 0,
        });
        offset += u64::from(len);
    }
    batch.parse(Policy::PASS);
    batch
}

/// Asserts that a filter finds the same in all ways; how many frames match, and how many the oracle judged.
pub(crate) fn check(filter: &Filter, frames: &[RawFrame], batch: &Batch) -> (usize, usize) {
    let mut selected = vec![u32::MAX];
    filter.select(batch, &mut selected);
    assert_eq!(selected.remove(0), u32::MAX, "what was there stays");
    let mut judged = 0;
    let mut expected = Vec::new();
    for (index, frame) in frames.iter().enumerate() {
        let alone = filter.matches(frame.link, &frame.bytes, frame.wire_len);
        assert_eq!(filter.matches_in(batch, index), alone, "{filter}: {frame:02x?}");
        if alone {
            expected.push(index as u32);
        }
        if let Some(seen) = oracle::see(frame) {
            judged += 1;
            assert_eq!(oracle::matches(filter.tree(), &seen), alone, "{filter}: {frame:02x?} {seen:?}");
        }
    }
    assert_eq!(selected, expected, "{filter}");
    (expected.len(), judged)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(amount(3_000, 30_000)))]

    #[test]
    fn all_ways_agree_with_the_oracle(text in filters(), frames in vec(any_frame(), 1..24)) {
        let filter = Filter::parse(&text).map_err(|error| TestCaseError::fail(format!("{text}: {error}")))?;
        check(&filter, &frames, &batch(&frames));
    }

    #[test]
    fn any_bytes_are_a_frame(text in filters(), bytes in vec(any::<u8>(), 0..100), link in 0_u16..300, wire_len: u32) {
        let filter = Filter::parse(&text).unwrap();
        let frames = [RawFrame { link: LinkType(link), bytes, wire_len }];
        let batch = batch(&frames);
        prop_assert_eq!(filter.matches(frames[0].link, &frames[0].bytes, wire_len), filter.matches_in(&batch, 0));
    }
}

#[test]
fn batches_of_common_frames_take_the_short_way() {
    let mut frame = vec![
        2, 0, 0, 0, 0, 1, 0, 0x11, 0x22, 0x33, 0x44, 0x55, 8, 0, 0x45, 0, 0, 40, 0, 0, 0, 0, 64, 6, 0, 0,
    ];
    frame.extend([
        10, 1, 2, 3, 192, 0, 2, 1, 0, 80, 4, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x12, 1, 0, 0, 0, 0, 0,
    ]);
    let frames: Vec<_> = (0..200_u8)
        .map(|last| {
            let mut bytes = frame.clone();
            bytes[29] = last;
            RawFrame { link: LinkType::ETHERNET, wire_len: bytes.len() as u32, bytes }
        })
        .collect();
    let batch = batch(&frames);
    assert!(batch.is_common());
    let cases = [
        ("", 200),
        ("src host 10.1.2.7", 1),
        ("src net 10.1.2.0/25 and tcp port 80", 128),
        ("not net 10.1.2.0/25", 72),
        ("tcp[tcpflags] & (tcp-syn|tcp-ack) = tcp-syn|tcp-ack", 200),
        ("ip[15] < 10 or ip[15] > 189", 20),
        ("ether src 00:11:22:33:44:55 and len = 54", 200),
        ("ether dst 00:11:22:33:44:55 or vlan or ip6 or udp", 0),
    ];
    for (text, expected) in cases {
        let (matched, judged) = check(&Filter::parse(text).unwrap(), &frames, &batch);
        assert_eq!((matched, judged), (expected, 200), "{text}");
    }
    assert!(!Filter::parse("").unwrap().matches_in(&batch, 200), "no such frame");
}
