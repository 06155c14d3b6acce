//! pcapng.

use std::sync::Arc;

use packetloom_io::capture::{CaptureReader, Overlong, Resolution, Undefined};

use crate::support::*;

/// Reads a file and expects what it was said to give, and no truncation.
#[track_caller]
fn check(file: &Pcapng) {
    let reading = read_bytes(&file.capture.bytes);
    assert_eq!(reading.frames, file.capture.frames);
    assert_eq!(reading.truncation, None);
}

#[test]
fn packet_blocks_of_every_kind_in_both_byte_orders() {
    for order in ORDERS {
        let mut file = Pcapng::new(order);
        file.interface(1, 0, &[]);
        file.enhanced(0, 1 << 33, 1_500, b"enhanced").gives(frame((1 << 33) * 1_000, 1_500, b"enhanced"));
        file.obsolete(0, 5, 60, b"obsolete").gives(frame(5_000, 60, b"obsolete"));
        file.simple(6, b"simple").gives(frame(5_000, 6, b"simple"));
        check(&file);
    }
}

#[test]
fn options_and_padding_after_a_packet_are_not_its_bytes() {
    for order in ORDERS {
        let mut file = Pcapng::new(order);
        file.interface(1, 0, &[]);
        let comment = [file.option(1, b"a comment"), file.option(0, b"")].concat();
        for len in 0..9 {
            let bytes = &b"12345678"[..len];
            let mut body: Vec<u8> =
                [0, 0, 7, len as u32, 99].iter().flat_map(|field| order.u32(*field)).collect();
            body.extend(bytes);
            body.resize(body.len().next_multiple_of(4), 0xee);
            body.extend(&comment);
            file.block(6, &body).gives(frame(7_000, 99, bytes));
        }
        check(&file);
    }
}

#[test]
fn interfaces_have_their_own_link_type_and_number() {
    let mut file = Pcapng::new(Order::Little);
    for link in [1, 101, 113, 0xfffe] {
        file.interface(link, 0, &[]);
    }
    for (port, link) in [(2, 113), (0, 1), (3, 0xfffe), (1, 101)] {
        file.enhanced(port, 1, 1, b"x").gives(Frame { link, port: port as u16, ..frame(1_000, 1, b"x") });
        file.obsolete(port as u16, 1, 1, b"y").gives(Frame {
            link,
            port: port as u16,
            ..frame(1_000, 1, b"y")
        });
    }
    // An interface may be described after packets of others.
    file.interface(276, 0, &[]);
    file.enhanced(4, 1, 1, b"z").gives(Frame { link: 276, port: 4, ..frame(1_000, 1, b"z") });
    check(&file);
}

#[test]
fn a_section_starts_anew() {
    let orders = [(Order::Little, Order::Big), (Order::Big, Order::Little), (Order::Big, Order::Big)];
    for (first, second) in orders {
        let mut file = Pcapng::new(first);
        let nanos = file.option(TSRESOL, &[9]);
        file.interface(101, 0, &nanos).interface(113, 0, &[]);
        file.enhanced(0, 1, 1, b"1").gives(Frame { link: 101, ..frame(1, 1, b"1") });
        file.section(second);
        // No interface yet: the first section's do not count.
        file.enhanced(0, 2, 1, b"2").gives(undefined(2_000, 1, 0, b"2"));
        file.simple(1, b"3").gives(undefined(1, 1, 0, b"3"));
        file.obsolete(1, 4, 1, b"4").gives(undefined(4_000, 1, 1, b"4"));
        file.interface(1, 0, &[]);
        file.enhanced(0, 5, 1, b"5").gives(frame(5_000, 1, b"5"));
        file.enhanced(1, 6, 1, b"6").gives(undefined(6_000, 1, 1, b"6"));
        file.section(first);
        file.section(first);
        file.interface(276, 0, &[]);
        file.enhanced(0, 7, 1, b"7").gives(Frame { link: 276, ..frame(7_000, 1, b"7") });
        check(&file);
    }
}

#[test]
fn packets_of_undefined_interfaces_are_frames_without_a_link_type() {
    for order in ORDERS {
        let mut file = Pcapng::new(order);
        let first = file.capture.bytes.len() as u64;
        file.enhanced(7, 1, 1, b"x").gives(undefined(1_000, 1, 7, b"x"));
        file.obsolete(0, 1 << 32, 1, b"x").gives(undefined(1_000 << 32, 1, 0, b"x"));
        // The time of the latest frame whose interface is known: there was none. No snap length either.
        file.simple(9, b"all bytes").gives(undefined(0, 9, 0, b"all bytes"));
        file.interface(1, 1, &[]);
        // The port is the number as far as it goes.
        for (id, port) in [(1, 1), (0xffff, 0xffff), (0x1_0000, 0xffff), (u32::MAX, 0xffff)] {
            file.enhanced(id, 1, 5, b"x").gives(undefined(1_000, 5, port, b"x"));
        }
        file.obsolete(1, 1, 1, b"x").gives(undefined(1_000, 1, 1, b"x"));
        // Their times, of unknown unit, are not the latest.
        file.simple(1, b"y").gives(frame(0, 1, b"y"));
        for way in WAYS {
            let reading =
                read_in_batches(way.open(&file.capture.bytes).expect("a capture"), 3).expect("no error");
            assert_eq!((reading.frames, reading.truncation), (file.capture.frames.clone(), None), "{way:?}");
            let expected = Undefined { frames: 8, interface: 7, described: 0, offset: first };
            assert_eq!(reading.findings.undefined, Some(expected), "{way:?}");
        }
    }
}

#[test]
fn a_link_type_of_65535_is_one() {
    let mut file = Pcapng::new(Order::Little);
    file.interface(0xffff, 0, &[]);
    file.enhanced(0, 1, 1, b"x").gives(Frame { link: 0xfffe, ..frame(1_000, 1, b"x") });
    let reading = read_bytes(&file.capture.bytes);
    assert_eq!(reading.frames, file.capture.frames);
    assert_eq!(reading.findings.unsupported, [(0xffff, 1)].into());
    assert_eq!(reading.findings.undefined, None);
}

#[test]
fn the_magic_of_a_section_header_is_checked() {
    for order in ORDERS {
        let bad =
            [&[0x0a, 0x0d, 0x0d, 0x0a][..], &order.u32(28), &[0xef, 0xbe, 0xad, 0xde], &[0; 16]].concat();
        check_broken(order, &bad, "a wrong magic");
        for way in WAYS {
            let error = way.open(&bad).expect_err("no capture").to_string();
            assert!(
                error.contains("byte-order magic is 0xdeadbeef; expected 0x1a2b3c4d"),
                "{way:?}: {error}"
            );
        }
    }
}

#[test]
fn a_first_block_that_is_wrong_is_not_called_cut() {
    let header = |len: u32| {
        [&[0x0a, 0x0d, 0x0d, 0x0a][..], &len.to_le_bytes(), &[0x4d, 0x3c, 0x2b, 0x1a], &[0; 16]].concat()
    };
    for (len, expected) in [
        (13, "a block's length is 13; expected a multiple of 4 that is 12 or more"),
        ((16 << 20) + 4, "a block's length is 16777220; expected 16 MiB at most"),
        (40, "cut within its pcapng file header"),
    ] {
        for way in WAYS {
            let error = way.open(&header(len)).expect_err("no capture").to_string();
            assert!(error.contains(expected), "{way:?}: {error}");
        }
    }
}

#[test]
fn resolutions_of_timestamps() {
    const TEN_19: u64 = 10_000_000_000_000_000_000;
    let cases: [(Option<u8>, u64, u64); 26] = [
        (None, 1_000_000, 1_000_000_000),
        (Some(6), 1_000_000, 1_000_000_000),
        (Some(0), 3, 3_000_000_000),
        (Some(3), 3, 3_000_000),
        (Some(8), 3, 30),
        (Some(9), 3, 3),
        (Some(10), 39, 3),
        (Some(12), 1_999, 1),
        (Some(28), TEN_19, 1),
        (Some(28), TEN_19 - 1, 0),
        (Some(29), u64::MAX, 0),
        (Some(47), u64::MAX, 0),
        (Some(48), u64::MAX, 0),
        (Some(127), u64::MAX, 0),
        (Some(0x80), 3, 3_000_000_000),
        (Some(0x80 | 10), 1_024 + 512, 1_500_000_000),
        (Some(0x80 | 20), 1, 953),
        (Some(0x80 | 32), 1 << 31, 500_000_000),
        (Some(0x80 | 63), u64::MAX, 1_999_999_999),
        (Some(0x80 | 64), u64::MAX, 999_999_999),
        (Some(0x80 | 93), u64::MAX, 1),
        (Some(0xff), u64::MAX, 0),
        // Beyond the year 2554 there are no nanoseconds: the last one stands for all.
        (None, u64::MAX, u64::MAX),
        (Some(0), 18_446_744_074, u64::MAX),
        (Some(0x80), u64::MAX, u64::MAX),
        (Some(9), u64::MAX, u64::MAX),
    ];
    for (tsresol, ticks, nanos) in cases {
        for order in ORDERS {
            let mut file = Pcapng::new(order);
            let option = tsresol.map(|value| file.option(TSRESOL, &[value])).unwrap_or_default();
            file.interface(1, 0, &option);
            file.enhanced(0, ticks, 1, b"x").obsolete(0, ticks, 1, b"x");
            let times: Vec<_> =
                read_bytes(&file.capture.bytes).frames.iter().map(|frame| frame.nanos).collect();
            assert_eq!(times, [nanos; 2], "if_tsresol {tsresol:?}, {ticks} ticks, {order:?}");
        }
    }
}

#[test]
fn offsets_of_timestamps() {
    const SECOND: u64 = 1_000_000_000;
    let cases: [(i64, u64, u64); 8] = [
        (0, 5, 5_000),
        (1_000, 5, 1_000 * SECOND + 5_000),
        (-1, 2_000_001, SECOND + 1_000),
        (-2, 2_000_000, 0),
        (-3, 2_000_000, 0),
        (i64::MIN, u64::MAX, u64::MAX - (1 << 63)),
        // About 292 years, the most that fits.
        (i64::MAX, 0, i64::MAX as u64),
        (i64::MAX, u64::MAX, u64::MAX),
    ];
    for (seconds, ticks, nanos) in cases {
        for order in ORDERS {
            let mut file = Pcapng::new(order);
            let option = file.option(TSOFFSET, &order.u64(seconds as u64));
            file.interface(1, 0, &option).enhanced(0, ticks, 1, b"x");
            let found = read_bytes(&file.capture.bytes).frames[0].nanos;
            assert_eq!(found, nanos, "{seconds} seconds, {ticks} ticks, {order:?}");
        }
    }
}

#[test]
fn interface_options_stand_in_any_order() {
    for order in ORDERS {
        let file = Pcapng::new(order);
        let name = file.option(2, b"wlan0");
        let resolution = file.option(TSRESOL, &[3]);
        let offset = file.option(TSOFFSET, &order.u64(1));
        let end = file.option(0, b"");
        let two_bytes = file.option(TSRESOL, &[9, 9]);
        let four_bytes = file.option(TSOFFSET, &order.u32(1));
        let too_long = [order.u16(2), order.u16(100), [0xee; 2], [0xee; 2]].concat();
        // For 5 ticks of milliseconds and one second; of milliseconds; of microseconds.
        let (both, millis, neither) = (1_005_000_000, 5_000_000, 5_000);
        let cases = [
            (vec![&name, &resolution, &offset, &end], both),
            (vec![&offset, &name, &resolution], both),
            (vec![&resolution, &end, &offset], millis),
            (vec![&end, &resolution], neither),
            // Lengths other than the options have are ignored.
            (vec![&two_bytes, &four_bytes, &end], neither),
            (vec![&four_bytes, &resolution], millis),
            // An option that runs past its block ends them.
            (vec![&resolution, &too_long], millis),
            (vec![&too_long, &resolution], neither),
        ];
        for (case, (options, nanos)) in cases.into_iter().enumerate() {
            let mut file = Pcapng::new(order);
            let options: Vec<u8> = options.into_iter().flatten().copied().collect();
            file.interface(1, 0, &options).enhanced(0, 5, 1, b"x").gives(frame(nanos, 1, b"x"));
            let reading = read_bytes(&file.capture.bytes);
            assert_eq!(reading.frames, file.capture.frames, "case {case}, {order:?}");
        }
    }
}

/// An interface may be described late, and with any resolution.
#[test]
fn the_resolution_is_as_fine_as_it_can_be() {
    for order in ORDERS {
        let bytes = Arc::new(Pcapng::new(order).interface(1, 0, &[]).capture().bytes);
        let reader = CaptureReader::from_bytes("bytes", bytes).expect("a capture");
        assert_eq!(reader.resolution(), Resolution::Nanos);
    }
}

#[test]
fn simple_packets_have_the_first_interface_and_the_last_time() {
    for order in ORDERS {
        let mut file = Pcapng::new(order);
        let millis = file.option(TSRESOL, &[3]);
        file.interface(113, 0, &[]).interface(1, 0, &millis);
        file.simple(1, b"a").gives(Frame { link: 113, ..frame(0, 1, b"a") });
        file.enhanced(1, 5, 1, b"b").gives(Frame { port: 1, ..frame(5_000_000, 1, b"b") });
        file.simple(1, b"c").gives(Frame { link: 113, ..frame(5_000_000, 1, b"c") });
        file.obsolete(0, 3, 1, b"d").gives(Frame { link: 113, ..frame(3_000, 1, b"d") });
        file.simple(1, b"e").gives(Frame { link: 113, ..frame(3_000, 1, b"e") });
        check(&file);
    }
}

#[test]
fn simple_packets_end_at_the_snap_length_the_wire_length_or_the_block() {
    let twelve = b"twelve bytes";
    for (snap, wire_len, len) in [
        (0, 12, 12),
        (0, 9, 9),
        (0, 99, 12),
        (5, 99, 5),
        (12, 99, 12),
        (99, 12, 12),
        (5, 3, 3),
        (u32::MAX, 10, 10),
        (1, 0, 0),
    ] {
        let mut file = Pcapng::new(Order::Big);
        file.interface(1, snap, &[]);
        file.simple(wire_len, twelve).gives(frame(0, wire_len, &twelve[..len]));
        // A later interface's snap length does not count.
        file.interface(1, 1, &[]);
        file.simple(wire_len, twelve).gives(frame(0, wire_len, &twelve[..len]));
        check(&file);
    }
}

#[test]
fn a_captured_length_beyond_its_block_ends_with_the_block() {
    for order in ORDERS {
        for captured in [9, 4_000, u32::MAX] {
            let mut file = Pcapng::new(order);
            file.interface(1, 0, &[]);
            let fields: Vec<u8> =
                [0, 0, 1, captured, 60].iter().flat_map(|field| order.u32(*field)).collect();
            let offset = file.capture.bytes.len() as u64;
            file.block(6, &[&fields[..], b"8 bytes."].concat()).gives(frame(1_000, 60, b"8 bytes."));
            file.enhanced(0, 2, 4, b"next").gives(frame(2_000, 4, b"next"));
            check(&file);
            let expected = Overlong { frames: 1, claimed: captured, held: 8, offset };
            assert_eq!(read_bytes(&file.capture.bytes).findings.overlong, Some(expected));
        }
    }
}

#[test]
fn unknown_blocks_are_skipped() {
    for order in ORDERS {
        let mut file = Pcapng::new(order);
        // Name resolution, interface statistics, decryption secrets, custom blocks, and numbers nobody has.
        for kind in [4, 5, 10, 0xbad, 0x4000_0bad, 0, 7, 0x8000_0001, u32::MAX] {
            file.block(kind, b"");
            file.block(kind, &noise(37));
        }
        file.interface(1, 0, &[]).block(5, &noise(100));
        file.enhanced(0, 1, 1, b"x").gives(frame(1_000, 1, b"x"));
        file.block(4, b"");
        check(&file);
    }
}

#[test]
fn unknown_blocks_longer_than_a_chunk_are_skipped() {
    let mut file = Pcapng::new(Order::Little);
    file.interface(1, 0, &[]);
    for (index, len) in [(1u64, 1 << 18), (2, (1 << 18) - 100), (3, 3 << 20), (4, 17 << 20)] {
        file.block(0xbad, &vec![0x0a; len]);
        file.enhanced(0, index, 1, b"x").gives(frame(index * 1_000, 1, b"x"));
    }
    for way in [Way::Bytes, Way::Pieces(65_537, Compression::Plain), Way::File(Compression::Gzip)] {
        let reader = way.open(&file.capture.bytes).expect("a capture");
        let reading = read_in_batches(reader, 16).expect("no error");
        assert_eq!(reading.frames, file.capture.frames, "{way:?}");
        assert_eq!(reading.truncation, None, "{way:?}");
    }
    // Cut within the last of them, which begins before the last frame.
    let cut = file.capture.bytes.len() - 1_000;
    let (frames, end) = file.capture.within(cut);
    for way in [Way::Bytes, Way::Pieces(65_537, Compression::Plain), Way::File(Compression::Gzip)] {
        let reader = way.open(&file.capture.bytes[..cut]).expect("a capture");
        let reading = read_in_batches(reader, 16).expect("no error");
        assert_eq!(reading.frames, frames, "{way:?}");
        assert_eq!(reading.truncation.map(|truncation| truncation.offset), Some(end as u64), "{way:?}");
    }
}

/// Reads a file with a good frame, then these bytes, then another good frame; expects the first one only.
fn check_broken(order: Order, bad: &[u8], what: &str) {
    let mut file = Pcapng::new(order);
    file.interface(1, 0, &[]);
    file.enhanced(0, 1, 1, b"x").gives(frame(1_000, 1, b"x"));
    let end = file.capture.bytes.len() as u64;
    file.capture.bytes.extend(bad);
    file.enhanced(0, 2, 1, b"y");
    for way in [Way::Bytes, Way::Pieces(7, Compression::Plain), Way::File(Compression::Gzip)] {
        let reader = way.open(&file.capture.bytes).expect("a capture");
        let reading = read_in_batches(reader, 16).expect("no error");
        assert_eq!(reading.frames, file.capture.frames, "{what}, {order:?}, {way:?}");
        assert_eq!(
            reading.truncation.map(|truncation| truncation.offset),
            Some(end),
            "{what}, {order:?}, {way:?}"
        );
    }
}

#[test]
fn impossible_block_lengths_end_the_reading() {
    for order in ORDERS {
        for kind in [1u32, 2, 3, 6, 0xbad] {
            for len in [0u32, 1, 4, 8, 11, 13, 14, 15, 30, u32::MAX, u32::MAX - 2] {
                let bad = [&order.u32(kind)[..], &order.u32(len), &[0; 36]].concat();
                check_broken(order, &bad, &format!("block {kind}, length {len}"));
            }
        }
        for len in [0, 8, 13] {
            let bad =
                [&[0x0a, 0x0d, 0x0d, 0x0a][..], &order.u32(len), &order.u32(0x1a2b_3c4d), &[0; 24]].concat();
            check_broken(order, &bad, &format!("section header, length {len}"));
        }
    }
}

#[test]
fn blocks_without_room_for_their_fields_end_the_reading() {
    for order in ORDERS {
        for (kind, longest) in [(1u32, 4), (2, 16), (6, 16), (3, 0)] {
            for body in (0..=longest).step_by(4) {
                let len = order.u32(12 + body);
                let bad = [&order.u32(kind)[..], &len, &vec![0; body as usize], &len].concat();
                check_broken(order, &bad, &format!("block {kind} with {body} bytes"));
            }
        }
    }
}

#[test]
fn packet_blocks_beyond_16_mib_end_the_reading() {
    for order in ORDERS {
        for kind in [1u32, 2, 3, 6] {
            let bad = [&order.u32(kind)[..], &order.u32((16 << 20) + 4), &[0; 100]].concat();
            check_broken(order, &bad, &format!("block {kind}"));
        }
    }
}

#[test]
fn an_unknown_block_longer_than_the_file_is_cut() {
    for order in ORDERS {
        for len in [200, 16 << 20, u32::MAX - 3] {
            let bad = [&order.u32(0xbad)[..], &order.u32(len), &[0; 36]].concat();
            check_broken(order, &bad, &format!("length {len}"));
        }
    }
}

#[test]
fn a_section_has_at_most_65536_interfaces() {
    let mut file = Pcapng::new(Order::Little);
    for _ in 0..1 << 16 {
        file.interface(1, 0, &[]);
    }
    file.enhanced(0xffff, 1, 1, b"x").gives(Frame { port: 0xffff, ..frame(1_000, 1, b"x") });
    check(&file);
    let end = file.capture.bytes.len() as u64;
    file.interface(1, 0, &[]).enhanced(0, 1, 1, b"x");
    let reading = read_bytes(&file.capture.bytes);
    assert_eq!(reading.frames, file.capture.frames);
    assert_eq!(reading.truncation.map(|truncation| truncation.offset), Some(end));
}
