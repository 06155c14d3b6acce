//! Against sums that are worked out bit by bit and with packets put together by hand.

use super::*;

/// The Internet checksum the slow way: one bit of one word at a time, carry by carry (RFC 1071).
fn slow_sum(bytes: &[u8]) -> u16 {
    let mut total: u16 = 0;
    for at in (0..bytes.len()).step_by(2) {
        let word = u16::from(bytes[at]) * 256 + bytes.get(at + 1).map_or(0, |&low| u16::from(low));
        let (next, carry) = total.overflowing_add(word);
        total = if carry { next + 1 } else { next };
    }
    total
}

/// A pseudo header as the RFCs draw it.
fn slow_pseudo(source: &[u8], destination: &[u8], protocol: u8, len: usize) -> Vec<u8> {
    let mut bytes = [source, destination].concat();
    if source.len() == 4 {
        bytes.extend([0, protocol]);
        bytes.extend((len as u16).to_be_bytes());
    } else {
        bytes.extend((len as u32).to_be_bytes());
        bytes.extend([0, 0, 0, protocol]);
    }
    bytes
}

/// Whether a transport checksum is right: the sum over everything is all ones.
fn is_right(source: &[u8], destination: &[u8], protocol: u8, segment: &[u8]) -> bool {
    slow_sum(&[slow_pseudo(source, destination, protocol, segment.len()), segment.to_vec()].concat())
        == 0xffff
}

/// Bytes without a pattern (splitmix64).
fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed;
    (0..len)
        .map(|_| {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            (mixed >> 56) as u8
        })
        .collect()
}

const SOURCE: [u8; 4] = [10, 1, 2, 3];
const DESTINATION: [u8; 4] = [192, 168, 7, 9];
const SOURCE6: [u8; 16] = [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xfe];
const DESTINATION6: [u8; 16] = [0xfd, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14];

/// An Ethernet header with VLAN tags of these TPIDs.
fn ethernet(tags: &[u16], ethertype: u16) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    for tpid in tags {
        frame.extend(tpid.to_be_bytes());
        frame.extend([0x20, 7]);
    }
    frame.extend(ethertype.to_be_bytes());
    frame
}

/// An Ethernet frame with IPv4, `options` bytes of options and a transport segment.
fn ipv4(tags: &[u16], options: usize, protocol: u8, segment: &[u8]) -> Vec<u8> {
    let mut frame = ethernet(tags, 0x0800);
    let total = 20 + options + segment.len();
    frame.extend([0x45 + (options / 4) as u8, 0]);
    frame.extend((total as u16).to_be_bytes());
    frame.extend([0, 1, 0x40, 0, 64, protocol, 0, 0]);
    frame.extend(SOURCE);
    frame.extend(DESTINATION);
    frame.extend(vec![1; options]);
    frame.extend(segment);
    frame
}

/// An Ethernet frame with IPv6, these extension headers (number and bytes) and a transport segment.
fn ipv6(extensions: &[(u8, Vec<u8>)], protocol: u8, segment: &[u8]) -> Vec<u8> {
    let mut frame = ethernet(&[], 0x86dd);
    let len = extensions.iter().map(|(_, bytes)| bytes.len()).sum::<usize>() + segment.len();
    frame.extend([0x60, 0, 0, 0]);
    frame.extend((len as u16).to_be_bytes());
    let mut numbers: Vec<u8> = extensions.iter().map(|&(number, _)| number).collect();
    numbers.push(protocol);
    frame.extend([numbers[0], 64]);
    frame.extend(SOURCE6);
    frame.extend(DESTINATION6);
    for ((_, bytes), next) in extensions.iter().zip(&numbers[1..]) {
        frame.push(*next);
        frame.extend(&bytes[1..]);
    }
    frame.extend(segment);
    frame
}

/// A segment with noise in it, whose checksum field at `offset` holds what a sender leaves: the sum over the pseudo header.
fn partial(source: &[u8], destination: &[u8], protocol: u8, offset: usize, len: usize) -> Vec<u8> {
    let mut segment = noise(len as u64 + u64::from(protocol), len);
    let pseudo = slow_sum(&slow_pseudo(source, destination, protocol, len));
    segment[offset..offset + 2].copy_from_slice(&pseudo.to_be_bytes());
    if protocol == 17 {
        segment[4..6].copy_from_slice(&(len as u16).to_be_bytes());
    }
    segment
}

#[test]
fn sums_are_those_of_the_slow_form() {
    for len in 0..200 {
        let bytes = noise(len, len as usize);
        assert_eq!(sum(&bytes), slow_sum(&bytes), "{len} bytes");
    }
    // Sums that carry at every step, and the two zeros of ones' complement.
    for len in [1, 2, 15, 16, 17, 64, 65_535] {
        assert_eq!(sum(&vec![0xff; len]), slow_sum(&vec![0xff; len]), "{len} bytes of ones");
        assert_eq!(sum(&vec![0; len]), 0);
    }
}

#[test]
fn a_partial_checksum_is_finished() {
    for (protocol, offset) in [(protocol::TCP, 16), (protocol::UDP, 6)] {
        for len in [20, 21, 100, 1_459, 1_460, 65_000] {
            for (tags, options) in [(&[][..], 0), (&[0x8100][..], 8), (&[0x88a8, 0x8100][..], 40)] {
                let segment = partial(&SOURCE, &DESTINATION, protocol, offset, len);
                let mut frame = ipv4(tags, options, protocol, &segment);
                let start = frame.len() - len;
                let mut offload = Offload::partial(start as u16, offset as u16);
                let before = frame.clone();
                assert!(!is_right(&SOURCE, &DESTINATION, protocol, &frame[start..]));
                complete_checksum(&mut frame, &mut offload).expect("in the frame");
                assert!(
                    is_right(&SOURCE, &DESTINATION, protocol, &frame[start..]),
                    "{protocol} {len} {tags:?}"
                );
                assert!(!offload.needs_checksum());
                // Nothing else is touched, and a second time does nothing.
                let mut without = frame.clone();
                without[start + offset..start + offset + 2]
                    .copy_from_slice(&before[start + offset..start + offset + 2]);
                assert_eq!(without, before);
                let finished = frame.clone();
                complete_checksum(&mut frame, &mut offload).expect("nothing to do");
                assert_eq!(frame, finished);
            }
            let segment = partial(&SOURCE6, &DESTINATION6, protocol, offset, len.min(60_000));
            let mut frame = ipv6(&[], protocol, &segment);
            let mut offload = Offload::partial(54, offset as u16);
            complete_checksum(&mut frame, &mut offload).expect("in the frame");
            assert!(is_right(&SOURCE6, &DESTINATION6, protocol, &frame[54..]), "IPv6 {protocol} {len}");
        }
    }
}

#[test]
fn a_checksum_that_comes_out_as_zero_is_sent_as_ones_by_udp_alone() {
    for (protocol, offset, expected) in [(protocol::UDP, 6, [0xff; 2]), (protocol::TCP, 16, [0; 2])] {
        // The last word makes the sum all ones, whose complement is 0, which UDP reads as "none".
        let mut segment = partial(&SOURCE, &DESTINATION, protocol, offset, 24);
        segment[22..].copy_from_slice(&[0, 0]);
        let rest = slow_sum(&segment);
        segment[22..].copy_from_slice(&(!rest).to_be_bytes());
        let mut frame = ipv4(&[], 0, protocol, &segment);
        complete_checksum(&mut frame, &mut Offload::partial(34, offset as u16)).expect("in the frame");
        assert_eq!(frame[34 + offset..36 + offset], expected);
        assert!(is_right(&SOURCE, &DESTINATION, protocol, &frame[34..]));
    }
}

#[test]
fn a_checksum_outside_of_the_frame_is_refused() {
    let frame = ipv4(&[], 0, protocol::TCP, &[0; 17]);
    for (start, offset) in [(34, 16), (34, 17), (51, 0), (60, 0), (u16::MAX, u16::MAX)] {
        let mut copy = frame.clone();
        let mut offload = Offload::partial(start, offset);
        let at = usize::from(start) + usize::from(offset);
        assert_eq!(complete_checksum(&mut copy, &mut offload), Err(ChecksumOutside { at, len: 51 }));
        assert!(!restart_partial(&mut copy, &mut offload));
        assert_eq!((copy, offload.needs_checksum()), (frame.clone(), true));
    }
    // The last place that is inside.
    assert_eq!(complete_checksum(&mut frame.clone(), &mut Offload::partial(34, 15)), Ok(()));
}

/// CRC-32C of "123456789" is the check value of the catalogue of CRCs; SCTP's stands least significant byte first.
#[test]
fn sctp_gets_its_crc() {
    assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    let mut segment = noise(9, 32);
    segment[8..12].copy_from_slice(&[0; 4]);
    let crc = crc32c(&segment).to_le_bytes();
    segment[8..12].copy_from_slice(&[0xaa; 4]);
    for mut frame in [ipv4(&[0x8100], 4, protocol::SCTP, &segment), ipv6(&[], protocol::SCTP, &segment)] {
        let start = frame.len() - 32;
        let mut offload = Offload::partial(start as u16, 8);
        complete_checksum(&mut frame, &mut offload).expect("in the frame");
        assert_eq!(frame[start + 8..start + 12], crc);
        assert!(!offload.needs_checksum());
    }
    // At the same place in another protocol it is an ordinary sum.
    let mut frame = ipv4(&[], 0, 200, &segment);
    complete_checksum(&mut frame, &mut Offload::partial(34, 8)).expect("in the frame");
    assert_eq!(frame[44..46], [0xaa, 0xaa]);
    // Its field has four bytes.
    let mut cut = ipv4(&[], 0, protocol::SCTP, &segment[..11]);
    assert!(!complete_sctp(&mut cut, &mut Offload::partial(34, 8)));
}

/// After a rewrite, the partial sum is what the sender would have left for the new addresses; finishing it gives a right checksum.
#[test]
fn a_rewritten_frame_gets_the_partial_sum_of_its_new_addresses() {
    for (protocol, offset) in [(protocol::TCP, 16), (protocol::UDP, 6)] {
        for len in [20, 1_000, 64_000] {
            let segment = partial(&SOURCE, &DESTINATION, protocol, offset, len);
            let mut frame = ipv4(&[0x88a8, 0x8100], 12, protocol, &segment);
            let start = frame.len() - len;
            let mut offload = Offload::partial(start as u16, offset as u16);
            let original = frame.clone();
            assert!(restart_partial(&mut frame, &mut offload));
            assert_eq!(frame, original, "nothing was rewritten");
            // Finished, rewritten with any update of the sum, and started again.
            complete_checksum(&mut frame, &mut offload).expect("in the frame");
            let destination = [203, 0, 113, 250];
            let network = start - 12 - 20;
            frame[network + 16..network + 20].copy_from_slice(&destination);
            frame[start..start + 2].copy_from_slice(&[0x12, 0x34]);
            frame[start + offset] ^= 0x5a;
            assert!(restart_partial(&mut frame, &mut offload) && offload.needs_checksum());
            let expected = slow_sum(&slow_pseudo(&SOURCE, &destination, protocol, len)).to_be_bytes();
            assert_eq!(frame[start + offset..start + offset + 2], expected);
            complete_checksum(&mut frame, &mut offload).expect("in the frame");
            assert!(is_right(&SOURCE, &destination, protocol, &frame[start..]));
        }
    }
}

#[test]
fn ipv6_and_its_extension_headers_too() {
    let options = (protocol::HOP_BY_HOP, vec![0, 1, 1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    let no_segments_left = (protocol::ROUTING, {
        let mut header = vec![0, 2, 2, 0, 0, 0, 0, 0];
        header.extend([9; 16]);
        header
    });
    let last = [0xfc; 16];
    let segments = (protocol::ROUTING, {
        let mut header = vec![0, 4, 4, 1, 1, 0, 0, 0];
        header.extend(last);
        header.extend(DESTINATION6);
        header
    });
    let source_route = (protocol::ROUTING, {
        let mut header = vec![0, 4, 0, 2, 0, 0, 0, 0];
        header.extend([7; 16]);
        header.extend(last);
        header
    });
    for (extensions, destination) in [
        (vec![], DESTINATION6),
        (vec![options.clone()], DESTINATION6),
        (vec![options.clone(), no_segments_left], DESTINATION6),
        (vec![segments], last),
        (vec![options, source_route], last),
    ] {
        let segment = partial(&SOURCE6, &destination, protocol::TCP, 16, 333);
        let mut frame = ipv6(&extensions, protocol::TCP, &segment);
        let start = frame.len() - 333;
        let original = frame.clone();
        frame[start + 16..start + 18].copy_from_slice(&[1, 2]);
        assert!(restart_partial(&mut frame, &mut Offload::partial(start as u16, 16)));
        assert_eq!(frame, original, "{extensions:?}");
    }
}

/// What the header does not count is not in the length: padding to 60 bytes. A length of 0 is that of a giant.
#[test]
fn the_length_is_that_of_the_header_unless_it_has_none() {
    let segment = partial(&SOURCE, &DESTINATION, protocol::UDP, 6, 9);
    let mut frame = ipv4(&[], 0, protocol::UDP, &segment);
    frame.resize(60, 0);
    let original = frame.clone();
    frame[40..42].copy_from_slice(&[1, 2]);
    assert!(restart_partial(&mut frame, &mut Offload::partial(34, 6)));
    assert_eq!(frame, original);

    let len = 70_000;
    let segment = noise(1, len);
    let mut frame = ipv4(&[], 0, protocol::TCP, &segment);
    frame[16..18].copy_from_slice(&[0, 0]);
    assert!(restart_partial(&mut frame, &mut Offload::partial(34, 16)));
    let mut pseudo = slow_pseudo(&SOURCE, &DESTINATION, protocol::TCP, 0);
    pseudo.extend((len as u32).to_be_bytes());
    assert_eq!(frame[50..52], slow_sum(&pseudo).to_be_bytes());
}

#[test]
fn a_checksum_within_a_tunnel_is_left_alone() {
    // IPv4 in IPv4 in Ethernet: the partial sum is the inner one's.
    let inner = &ipv4(&[], 0, protocol::TCP, &[0; 40])[14..];
    let mut frame = ipv4(&[], 0, protocol::IPIP, inner);
    let original = frame.clone();
    assert!(!restart_partial(&mut frame, &mut Offload::partial(54, 16)));
    // ARP, and frames that end anywhere.
    assert!(!restart_partial(&mut [0; 60], &mut Offload::partial(34, 16)));
    for len in 0..original.len() {
        let mut cut = original[..len].to_vec();
        restart_partial(&mut cut, &mut Offload::partial(34, 2));
        let _ = complete_checksum(&mut cut, &mut Offload::partial(34, 8));
    }
    // Nothing is known of a frame that came with nothing to be done.
    assert!(!restart_partial(&mut frame, &mut Offload::NONE.clone()));
    assert_eq!(frame, original);
}

/// Partial checksums are found where they are, behind tags, options and extension headers, and completing them gives the right one.
#[test]
fn partial_checksums_are_guessed() {
    let hop_by_hop = (0, vec![0; 8]);
    for (protocol, offset) in [(6, 16), (17, 6)] {
        for len in [20, 21, 63, 1_400] {
            let v4 = partial(&SOURCE, &DESTINATION, protocol, offset, len);
            let v6 = partial(&SOURCE6, &DESTINATION6, protocol, offset, len);
            for (mut frame, start, is_v4) in [
                (ipv4(&[], 0, protocol, &v4), 34, true),
                (ipv4(&[0x8100], 12, protocol, &v4), 50, true),
                (ipv4(&[0x88a8, 0x8100], 0, protocol, &v4), 42, true),
                (ipv6(&[], protocol, &v6), 54, false),
                (ipv6(std::slice::from_ref(&hop_by_hop), protocol, &v6), 62, false),
            ] {
                let guess = guess_partial(&frame);
                assert_eq!(
                    guess,
                    Some(Partial::Sum(Offload::partial(start, offset as u16))),
                    "{protocol} {len}"
                );
                // Padding to the shortest frame is none of its bytes.
                let mut padded = frame.clone();
                padded.extend([0; 9]);
                assert_eq!(guess_partial(&padded), guess);
                let Some(Partial::Sum(mut offload)) = guess else { continue };
                complete_checksum(&mut frame, &mut offload).expect("in the frame");
                let segment = &frame[usize::from(start)..];
                let right = match is_v4 {
                    true => is_right(&SOURCE, &DESTINATION, protocol, segment),
                    false => is_right(&SOURCE6, &DESTINATION6, protocol, segment),
                };
                assert!(right, "{protocol} {len}");
                // A finished one is none, unless it is the same number; then finishing it changes nothing.
                if let Some(Partial::Sum(mut again)) = guess_partial(&frame) {
                    let before = frame.clone();
                    complete_checksum(&mut frame, &mut again).expect("in the frame");
                    assert_eq!(frame, before);
                }
                // Nor is anything found in what is cut, without a panic.
                for end in 0..frame.len().min(80) {
                    let _ = guess_partial(&padded[..end]);
                }
            }
        }
    }
}

#[test]
fn what_has_no_partial_checksum_is_left_alone() {
    let segment = partial(&SOURCE, &DESTINATION, 17, 6, 100);
    let whole = ipv4(&[], 0, 17, &segment);
    assert!(guess_partial(&whole).is_some());
    // Fragments, another protocol, another sum, none, and no IP.
    for (at, bits) in [(20, 0x20), (21, 0x01), (23, 0x01), (41, 0x01)] {
        let mut frame = whole.clone();
        frame[at] ^= bits;
        assert_eq!(guess_partial(&frame), None, "{at}");
    }
    let mut none = whole.clone();
    none[40..42].fill(0);
    assert_eq!(guess_partial(&none), None);
    let mut arp = whole.clone();
    arp[13] = 6;
    assert_eq!(guess_partial(&arp), None);
    let first = (44, vec![0, 0, 0, 1, 0, 0, 0, 9]);
    assert_eq!(guess_partial(&ipv6(&[first], 17, &partial(&SOURCE6, &DESTINATION6, 17, 6, 50))), None);
    // Bytes behind the packet that would be summed up, a datagram with options behind it, a frame that is cut.
    let behind = [&whole[..], &[0, 0, 7]].concat();
    assert_eq!(guess_partial(&behind), None);
    let mut options = whole.clone();
    options[39] -= 8;
    assert_eq!(guess_partial(&options), None);
    assert_eq!(guess_partial(&whole[..whole.len() - 1]), None);
    // SCTP, whose field is empty.
    let mut sctp = noise(9, 60);
    sctp[8..12].fill(0);
    assert_eq!(guess_partial(&ipv4(&[], 0, 132, &sctp)), Some(Partial::Crc(Offload::partial(34, 8))));
    let padded = [&ipv4(&[], 0, 132, &sctp)[..], &[0; 4]].concat();
    assert_eq!(guess_partial(&padded), None);
    sctp[11] = 1;
    assert_eq!(guess_partial(&ipv4(&[], 0, 132, &sctp)), None);
    for seed in 0..2_000 {
        let frame = noise(seed, seed as usize % 100);
        let _ = guess_partial(&frame);
    }
}
