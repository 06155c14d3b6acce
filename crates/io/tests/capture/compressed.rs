//! Captures in gzip, xz and zstd, whole and damaged.

use std::sync::Arc;

use flate2::{Decompress, FlushDecompress};
use packetloom_io::Error;
use packetloom_io::capture::CaptureReader;

use crate::support::*;

/// `pcap_sample(Order::Little, MICROS)` as the program `xz` 5.4 compresses it.
const XZ_SAMPLE: &[u8] = &[
    0xfd, 0x37, 0x7a, 0x58, 0x5a, 0x00, 0x00, 0x04, 0xe6, 0xd6, 0xb4, 0x46, 0x02, 0x00, 0x21, 0x01, 0x16,
    0x00, 0x00, 0x00, 0x74, 0x2f, 0xe5, 0xa3, 0xe0, 0x00, 0x8a, 0x00, 0x5f, 0x5d, 0x00, 0x6a, 0x30, 0xd1,
    0xc8, 0x7d, 0x8b, 0xf8, 0x09, 0x9b, 0xad, 0x94, 0x4b, 0x8a, 0xf2, 0xff, 0xfa, 0xdb, 0xce, 0x75, 0x8f,
    0x63, 0x14, 0xac, 0x91, 0xa6, 0x2c, 0x0a, 0x13, 0x2d, 0x2f, 0xcd, 0x53, 0x44, 0x8f, 0x10, 0x84, 0xab,
    0x66, 0xc0, 0xde, 0x66, 0xd2, 0xa9, 0xee, 0xf4, 0x22, 0x82, 0xd2, 0x73, 0x8c, 0x23, 0xe1, 0xf3, 0xa3,
    0xa8, 0xb6, 0x08, 0xf0, 0xe6, 0x46, 0x82, 0x79, 0xaa, 0x1a, 0x01, 0x89, 0xdd, 0x25, 0x09, 0x24, 0x25,
    0xb2, 0xf6, 0x7b, 0x3f, 0x4c, 0x2c, 0xa6, 0x1e, 0xda, 0x4d, 0xe6, 0x56, 0x9f, 0x88, 0xe8, 0xe3, 0x24,
    0x9a, 0x0e, 0x89, 0x8d, 0x49, 0x8d, 0xfb, 0x00, 0x00, 0x63, 0x5e, 0x5a, 0xb6, 0xfe, 0x88, 0x80, 0xe0,
    0x00, 0x01, 0x7b, 0x8b, 0x01, 0x00, 0x00, 0x00, 0x39, 0xcf, 0x3a, 0xdc, 0xb1, 0xc4, 0x67, 0xfb, 0x02,
    0x00, 0x00, 0x00, 0x00, 0x04, 0x59, 0x5a,
];

/// The same as the program `zstd` 1.5.4 compresses what comes by a pipe.
const ZSTD_SAMPLE: &[u8] = &[
    0x28, 0xb5, 0x2f, 0xfd, 0x04, 0x58, 0x5d, 0x03, 0x00, 0x22, 0x06, 0x16, 0x21, 0xb0, 0x27, 0x8d, 0x01,
    0x94, 0x30, 0x80, 0x4a, 0x8e, 0x1c, 0x61, 0x14, 0xec, 0x9a, 0x64, 0x8d, 0xf5, 0x66, 0x65, 0x6c, 0x31,
    0x00, 0x88, 0x1e, 0x69, 0x91, 0x29, 0x5a, 0xd4, 0x4f, 0xdb, 0x7b, 0xa7, 0x4a, 0xa9, 0x53, 0x50, 0x17,
    0xc4, 0x21, 0x66, 0x53, 0xc2, 0xa2, 0x99, 0x34, 0x3d, 0xb6, 0xb8, 0x75, 0xe0, 0x4d, 0xe4, 0x47, 0xca,
    0x48, 0xbc, 0x60, 0xf0, 0xa3, 0xdf, 0xec, 0xee, 0x1e, 0x54, 0xac, 0x64, 0xa7, 0x4a, 0x26, 0xec, 0xb0,
    0xe9, 0x5f, 0xf8, 0xd3, 0xe9, 0x60, 0xd8, 0xfc, 0xee, 0x80, 0x4f, 0xc3, 0xf1, 0x80, 0x04, 0x06, 0x00,
    0x5d, 0x0d, 0x11, 0x18, 0x0e, 0x06, 0x80, 0xaa, 0xe2, 0x76, 0xa3, 0x10, 0x80, 0x0b, 0x5d, 0xab, 0x92,
    0xcc,
];

/// A small file of either format.
fn captures() -> Vec<(&'static str, Capture)> {
    vec![("pcap", pcap_sample(Order::Little, MICROS)), ("pcapng", pcapng_sample(Order::Big, Order::Little))]
}

/// A file of `count` frames of up to 500 bytes that do not compress well.
fn large(count: u32) -> Capture {
    let noise = noise(1 << 16);
    let mut file = Pcap::new(Order::Little, NANOS, 1);
    for i in 0..count {
        let start = (i as usize * 7_919) % 60_000;
        file.record(i, i, 1_500, &noise[start..start + 20 + i as usize % 480]);
    }
    file.capture()
}

/// What a stream of damaged bytes should be read as: the frames that are whole in the first `content` bytes, and
/// a truncation after them.
#[track_caller]
fn check(capture: &Capture, damaged: &[u8], content: usize, piece: usize, what: &str) {
    let what = format!("{what}, {content} bytes of content, in pieces of {piece}");
    match open_pieces(damaged, piece) {
        Ok(reader) => {
            assert!(content >= capture.header_len(), "{what}: opened");
            let reading = read_in_batches(reader, 16).expect("damage is no error");
            let (frames, end) = capture.within(content);
            assert_eq!(reading.frames.len(), frames.len(), "{what}");
            assert!(reading.frames == frames, "{what}: other frames");
            let truncation = reading.truncation.unwrap_or_else(|| panic!("{what}: no truncation"));
            assert_eq!(truncation.offset, end as u64, "{what}");
        }
        Err(e) => assert!(content < capture.header_len(), "{what}: {e}"),
    }
}

#[test]
fn the_real_xz_and_the_real_zstd() {
    let capture = pcap_sample(Order::Little, MICROS);
    for sample in [XZ_SAMPLE, ZSTD_SAMPLE] {
        for piece in [1, 7, 4096] {
            let reading =
                read_in_batches(open_pieces(sample, piece).expect("a capture"), 16).expect("no error");
            assert_eq!((reading.frames, reading.truncation), (capture.frames.clone(), None));
        }
        // All of the content is in one chunk, so any cut before its end may lose it, but no cut goes unnoticed.
        for cut in 0..sample.len() {
            if let Ok(reader) = open_pieces(&sample[..cut], 4096) {
                let reading = read_in_batches(reader, 16).expect("no error");
                assert!(capture.frames.starts_with(&reading.frames), "cut at {cut}");
                assert!(reading.truncation.is_some(), "cut at {cut}");
            }
        }
    }
    // A cut within the checksum, and a wrong one, lose nothing.
    let content = ZSTD_SAMPLE.len() - 4;
    for cut in content..ZSTD_SAMPLE.len() {
        let what = format!("zstd cut at {cut}");
        check(&capture, &ZSTD_SAMPLE[..cut], capture.bytes.len(), 4096, &what);
        let mut damaged = ZSTD_SAMPLE.to_vec();
        damaged[cut] ^= 1;
        check(&capture, &damaged, capture.bytes.len(), 4096, &format!("zstd with a wrong byte {cut}"));
    }
}

#[test]
fn zstd_of_every_level() {
    let capture = large(2_000);
    for level in [-5, 1, 2, 3, 5, 9, 13, 19, 22] {
        let bytes = zstd(&capture.bytes, level);
        for piece in [1_000, 1 << 20] {
            let reading =
                read_in_batches(open_pieces(&bytes, piece).expect("a capture"), 64).expect("no error");
            assert!(reading.frames == capture.frames && reading.truncation.is_none(), "level {level}");
        }
    }
}

#[test]
fn zstd_frames_one_after_another_and_skippable_ones() {
    let capture = pcap_sample(Order::Big, NANOS);
    let (empty, bytes) = (zstd(b"", 3), &capture.bytes);
    for cut in 0..=bytes.len() {
        let frames = [
            zstd_skippable(0, 0),
            zstd_skippable(3, 5_000),
            zstd(&bytes[..cut], 3),
            empty.clone(),
            zstd_skippable(15, 1),
            zstd_stored(&bytes[cut..], 99).bytes,
            empty.clone(),
            zstd_skippable(7, 100),
        ]
        .concat();
        for piece in [1, 4096] {
            let reader = open_pieces(&frames, piece).expect("a capture");
            let reading = read_in_batches(reader, 16).expect("no error");
            assert_eq!(reading.frames, capture.frames, "cut at {cut}, pieces of {piece}");
            assert_eq!(reading.truncation, None, "cut at {cut}, pieces of {piece}");
        }
    }
    let cut = [zstd(bytes, 3), zstd_skippable(7, 100)].concat();
    for len in 1..108 {
        check(&capture, &cut[..cut.len() - len], bytes.len(), 4096, "a skippable frame that is cut");
    }
}

#[test]
fn zstd_damaged_at_every_byte() {
    for (name, capture) in captures() {
        for bytes in [zstd(&capture.bytes, 3), zstd(&capture.bytes, 19)] {
            // Behind the magic number.
            for at in 4..bytes.len() {
                for mask in [0x01, 0x80, 0xff] {
                    let mut damaged = bytes.clone();
                    damaged[at] ^= mask;
                    let what = format!("{name}, byte {at} of {} changed by {mask:#x}", bytes.len());
                    let read = |piece| {
                        open_pieces(&damaged, piece)
                            .ok()
                            .map(|reader| read_in_batches(reader, 16).expect("damage is no error"))
                    };
                    let reading = read(4096);
                    assert_eq!(read(1), reading, "{what}");
                    // The checksum is over all of the content.
                    let is_whole = |reading: &Reading| reading.truncation.is_none();
                    if let Some(reading) = reading.filter(is_whole) {
                        assert_eq!(reading.frames, capture.frames, "{what}");
                    }
                }
            }
        }
    }
}

#[test]
fn what_is_no_frame_behind_zstd_data_is_damage() {
    let capture = pcap_sample(Order::Little, MICROS);
    let whole = zstd(&capture.bytes, 3);
    for (garbage, reason) in [
        (
            &b"trailing"[..],
            "behind the zstd data stands 74 72 61 69; expected its end or another zstd frame, 28 b5 2f fd",
        ),
        (b"\0\0\0\0\0\0\0\0", "behind the zstd data stands 00 00 00 00; expected"),
        (b"x", "behind the zstd data stands 78; expected"),
        (b"\x28\xb5\x2f\xfe", "behind the zstd data stands 28 b5 2f fe; expected"),
        (b"\x28\xb5\x2f", "unexpected end of file"),
        (b"\x5a", "unexpected end of file"),
        (b"\x28\xb5\x2f\xfd", "unexpected end of file"),
        // A reserved bit of the frame header descriptor.
        (b"\x28\xb5\x2f\xfd\x08\x58\x01\0\0", "Unsupported frame parameter"),
    ] {
        let reading = read_compressed(&[&whole, garbage].concat());
        assert_eq!(reading.frames, capture.frames, "{garbage:?}");
        let truncation = reading.truncation.unwrap_or_else(|| panic!("{garbage:?}: no truncation"));
        assert!(truncation.reason.contains(reason), "{garbage:?}: {}", truncation.reason);
        assert_eq!(truncation.offset, capture.bytes.len() as u64);
    }
}

#[test]
fn a_zstd_window_of_128_mib_is_taken_and_a_larger_one_is_named() {
    let capture = pcap_sample(Order::Little, MICROS);
    let descriptor = |exponent: u8, mantissa: u8| ((exponent - 10) << 3) | mantissa;
    let taken = zstd_with_window(&capture.bytes, 50, descriptor(27, 0)).bytes;
    let reading = read_compressed(&taken);
    assert_eq!((&reading.frames, reading.truncation), (&capture.frames, None));
    // Just above, 3 GiB, and the largest there is.
    for window in [descriptor(27, 1), descriptor(31, 4), 0xff] {
        let larger = zstd_with_window(&capture.bytes, 50, window).bytes;
        let error = open_pieces(&larger, 4096).expect_err("too large").to_string();
        let expected = "stream: the compressed data are broken: the zstd frame asks for a window of more than 128 MiB \
                        (zstd --long=28 or more); decompress it before, by zstd -dc --long=31";
        assert_eq!(error, expected, "{window:#x}");
        // In a later frame it ends the reading.
        let reading = read_compressed(&[taken.clone(), larger].concat());
        assert_eq!(reading.frames, capture.frames);
        assert!(reading.truncation.is_some_and(|truncation| truncation.reason.contains("128 MiB")));
    }
    let dictionary = b"\x28\xb5\x2f\xfd\x01\x58\x07\x01\0\0";
    let error = open_pieces(dictionary, 4096).expect_err("no dictionary").to_string();
    assert!(error.contains("made with a dictionary"), "{error}");
}

#[test]
fn gzip_of_every_level_and_with_every_header_field() {
    let capture = large(300);
    for level in 0..=9 {
        let mut encoder = flate2::GzBuilder::new()
            .filename("capture.pcap")
            .comment("a comment")
            .extra(&b"extra"[..])
            .mtime(1)
            .write(Vec::new(), flate2::Compression::new(level));
        std::io::Write::write_all(&mut encoder, &capture.bytes).expect("memory can be written");
        let bytes = encoder.finish().expect("memory can be written");
        for piece in [1_000, 1 << 20] {
            let reading =
                read_in_batches(open_pieces(&bytes, piece).expect("a capture"), 64).expect("no error");
            assert!(reading.frames == capture.frames && reading.truncation.is_none(), "level {level}");
        }
    }
}

#[test]
fn gzip_members_one_after_another() {
    let capture = pcap_sample(Order::Big, NANOS);
    let (empty, bytes) = (gzip(b""), &capture.bytes);
    for cut in 0..=bytes.len() {
        let members = [gzip(&bytes[..cut]), empty.clone(), gzip(&bytes[cut..]), empty.clone()].concat();
        for piece in [1, 4096] {
            let reader = open_pieces(&members, piece).expect("a capture");
            let reading = read_in_batches(reader, 16).expect("no error");
            assert_eq!(reading.frames, capture.frames, "cut at {cut}, pieces of {piece}");
            assert_eq!(reading.truncation, None, "cut at {cut}, pieces of {piece}");
        }
    }
}

#[test]
fn xz_streams_one_after_another() {
    let capture = pcap_sample(Order::Big, NANOS);
    let (empty, bytes) = (xz_stored(b"", 1).bytes, &capture.bytes);
    for cut in 0..=bytes.len() {
        // Streams may be followed by zeros, in fours.
        let (first, second) = (xz_stored(&bytes[..cut], 20).bytes, xz_stored(&bytes[cut..], 99).bytes);
        let streams = [first, vec![0; 8], empty.clone(), second, vec![0; 4]].concat();
        for piece in [1, 4096] {
            let reader = open_pieces(&streams, piece).expect("a capture");
            let reading = read_in_batches(reader, 16).expect("no error");
            assert_eq!(reading.frames, capture.frames, "cut at {cut}, pieces of {piece}");
            assert_eq!(reading.truncation, None, "cut at {cut}, pieces of {piece}");
        }
    }
}

/// What inflates out of a gzip file with a header of 10 bytes before it ends or breaks.
fn inflated(gzip: &[u8]) -> Vec<u8> {
    let mut content = vec![0; 1 << 20];
    let mut decompress = Decompress::new(false);
    if let Some(deflated) = gzip.get(10..) {
        let _ = decompress.decompress(deflated, &mut content, FlushDecompress::None);
    }
    content.truncate(decompress.total_out() as usize);
    content
}

#[test]
fn gzip_cut_at_every_byte() {
    for (name, capture) in captures() {
        let bytes = gzip(&capture.bytes);
        assert_eq!(inflated(&bytes), capture.bytes);
        for cut in 0..bytes.len() {
            let content = inflated(&bytes[..cut]).len();
            for piece in [1, 7, 4096] {
                check(&capture, &bytes[..cut], content, piece, &format!("{name}, gzip cut at {cut}"));
            }
        }
    }
}

#[test]
fn gzip_damaged_at_every_byte() {
    for (name, capture) in captures() {
        let bytes = gzip(&capture.bytes);
        for at in 10..bytes.len() {
            for mask in [0x01, 0x80, 0xff] {
                let mut damaged = bytes.clone();
                damaged[at] ^= mask;
                // What the damage makes of the content is read as far as it goes, like any other bytes.
                let content = inflated(&damaged);
                // Bytes may be copied from elsewhere in the content, where the same ones stand.
                let harmless = content == capture.bytes && at < bytes.len() - 8;
                let what = format!("{name}, byte {at} of {} changed by {mask:#x}", bytes.len());
                for piece in [1, 7, 4096] {
                    let what = format!("{what}, in pieces of {piece}");
                    let memory = CaptureReader::from_bytes("bytes", Arc::new(content.clone()));
                    match (open_pieces(&damaged, piece), memory) {
                        (Ok(stream), Ok(memory)) => {
                            let stream = read_in_batches(stream, 16).expect("damage is no error");
                            let memory = read_in_batches(memory, 16).expect("memory can be read");
                            assert_eq!(stream.frames, memory.frames, "{what}");
                            assert!(harmless || stream.truncation.is_some(), "{what}: no truncation");
                        }
                        (Err(_), Err(_)) => {}
                        (stream, memory) => panic!("{what}: {stream:?}, its content: {memory:?}"),
                    }
                }
            }
        }
    }
}

#[test]
fn stored_data_cut_at_every_byte() {
    for (name, capture) in captures() {
        for (format, stored) in [
            ("gzip", gzip_stored(&capture.bytes, 50)),
            ("xz", xz_stored(&capture.bytes, 50)),
            ("zstd", zstd_stored(&capture.bytes, 50)),
        ] {
            for cut in 0..stored.bytes.len() {
                for piece in [1, 4096] {
                    let what = format!("{name}, {format} cut at {cut}");
                    check(&capture, &stored.bytes[..cut], stored.content[cut], piece, &what);
                }
            }
        }
    }
}

#[test]
fn a_broken_piece_ends_the_reading_there() {
    for (name, capture) in captures() {
        for (format, stored) in [
            ("gzip", gzip_stored(&capture.bytes, 50)),
            ("xz", xz_stored(&capture.bytes, 50)),
            ("zstd", zstd_stored(&capture.bytes, 50)),
        ] {
            for &at in &stored.pieces {
                let mut damaged = stored.bytes.clone();
                // A block of a type that does not exist; a chunk of a kind that does not.
                damaged[at] = if format == "xz" { 0x03 } else { 0b110 };
                for piece in [1, 4096] {
                    let what = format!("{name}, {format} broken at {at}");
                    check(&capture, &damaged, stored.content[at], piece, &what);
                }
            }
        }
    }
}

#[test]
fn a_wrong_checksum_is_noticed_after_all_frames() {
    for (name, capture) in captures() {
        let len = capture.bytes.len();
        let mut gzip = gzip_stored(&capture.bytes, 50).bytes;
        let at = gzip.len() - 8;
        gzip[at] ^= 1;
        let mut xz = xz_stored(&capture.bytes, 50).bytes;
        // Before the footer of 12 bytes stands an index of 8 and its checksum of 4; before it, the content's.
        let at = xz.len() - 12 - 12 - 4;
        xz[at] ^= 1;
        for (format, bytes) in [("gzip", gzip), ("xz", xz)] {
            for piece in [1, 4096] {
                check(&capture, &bytes, len, piece, &format!("{name}, {format}"));
            }
        }
    }
}

#[test]
fn damage_in_a_later_member_keeps_the_earlier_ones() {
    let capture = pcap_sample(Order::Little, MICROS);
    let (first, second) = capture.bytes.split_at(capture.within(60).1);
    let mut gzip = [gzip_stored(first, 50).bytes, gzip_stored(second, 50).bytes].concat();
    let at = gzip_stored(first, 50).bytes.len() + 10;
    gzip[at] = 0b110;
    let mut xz = [xz_stored(first, 50).bytes, xz_stored(second, 50).bytes].concat();
    let at = xz_stored(first, 50).bytes.len() + 24;
    xz[at] = 0x03;
    let mut zstd = [zstd_stored(first, 50).bytes, zstd_stored(second, 50).bytes].concat();
    zstd[zstd_stored(first, 50).bytes.len() + 6] = 0b110;
    for (format, bytes) in [("gzip", gzip), ("xz", xz), ("zstd", zstd)] {
        for piece in [1, 4096] {
            check(&capture, &bytes, first.len(), piece, format);
        }
    }
}

#[test]
fn damage_far_into_a_file_keeps_what_stands_before() {
    let capture = large(4_000);
    let bytes = gzip(&capture.bytes);
    assert!(bytes.len() > 100_000);
    for tenths in 1..10 {
        let cut = bytes.len() * tenths / 10;
        let content = inflated(&bytes[..cut]).len();
        assert!(content > 50_000);
        check(&capture, &bytes[..cut], content, 65_536, &format!("gzip cut at {cut}"));

        let stored = xz_stored(&capture.bytes, 60_000);
        let cut = stored.bytes.len() * tenths / 10;
        check(&capture, &stored.bytes[..cut], stored.content[cut], 65_536, &format!("xz cut at {cut}"));

        let stored = zstd_stored(&capture.bytes, 60_000);
        let cut = stored.bytes.len() * tenths / 10;
        check(&capture, &stored.bytes[..cut], stored.content[cut], 65_536, &format!("zstd cut at {cut}"));
    }
}

#[test]
fn of_zstd_that_is_cut_all_whole_blocks_are_read() {
    // Every other bit is zero, so blocks are compressed, each to half of its size.
    let noise: Vec<u8> = noise(2_000_000).iter().map(|byte| byte & 0x55).collect();
    let mut file = Pcap::new(Order::Little, NANOS, 1);
    for (i, bytes) in noise.chunks(500).enumerate() {
        file.record(i as u32, 0, 1_500, bytes);
    }
    let capture = file.capture();
    let bytes = zstd(&capture.bytes, 3);
    assert!((800_000..1_200_000).contains(&bytes.len()), "{} bytes", bytes.len());
    for tenths in 3..10 {
        let cut = bytes.len() * tenths / 10;
        let reader = open_pieces(&bytes[..cut], 65_536).expect("a capture");
        let reading = read_in_batches(reader, 64).expect("damage is no error");
        assert!(capture.frames.starts_with(&reading.frames) && reading.truncation.is_some());
        // Nothing can be had of the block that is cut, of up to 128 KiB.
        let least = capture.within(capture.bytes.len() * tenths / 10 - (150 << 10)).0.len();
        assert!(reading.frames.len() >= least, "{} of {least} frames", reading.frames.len());
    }
}

#[test]
fn the_reason_says_that_the_compressed_data_are_broken() {
    let capture = pcap_sample(Order::Little, MICROS);
    for bytes in [gzip(&capture.bytes), xz_stored(&capture.bytes, 50).bytes, zstd(&capture.bytes, 3)] {
        let reader = open_pieces(&bytes[..bytes.len() - 1], 4096).expect("a capture");
        let reading = read_in_batches(reader, 16).expect("no error");
        let reason = reading.truncation.expect("a truncation").reason;
        assert!(reason.contains("compressed data are broken"), "{reason}");
    }
}

#[test]
fn something_else_inside() {
    for compression in [Compression::Gzip, Compression::Xz, Compression::Zstd] {
        for way in [Way::File(compression), Way::Pieces(1, compression)] {
            match way.open(b"this is no capture") {
                Err(Error::NotACapture { found, .. }) => assert_eq!(found, "74 68 69 73 20 69 73 20"),
                other => panic!("{way:?}: {other:?}"),
            }
        }
    }
}

#[test]
fn compressed_twice_is_no_capture() {
    let bytes = pcap_sample(Order::Little, MICROS).bytes;
    for twice in [gzip(&gzip(&bytes)), zstd(&gzip(&bytes), 3), gzip(&zstd(&bytes, 3))] {
        assert!(matches!(open_pieces(&twice, 4096), Err(Error::NotACapture { .. })));
    }
}

/// Opens compressed bytes in pieces of several sizes, which must come to the same; returns that.
#[track_caller]
fn read_compressed(bytes: &[u8]) -> Reading {
    let read = |size| read_in_batches(open_pieces(bytes, size).expect("a capture"), 16).expect("no error");
    let reading = read(4096);
    for size in [1, 3, 700, 1 << 20] {
        assert_eq!(read(size), reading, "pieces of {size}");
    }
    reading
}

#[test]
fn zeros_around_gzip_members_are_padding() {
    let capture = pcap_sample(Order::Little, MICROS);
    let (first, second) = capture.bytes.split_at(60);
    for zeros in [1, 2, 7, 512, 70_000, 200_000] {
        let padding = vec![0; zeros];
        for bytes in [
            [gzip(&capture.bytes), padding.clone()].concat(),
            [gzip(first), padding.clone(), gzip(second), padding.clone()].concat(),
        ] {
            let reading = read_compressed(&bytes);
            assert_eq!((&reading.frames, reading.truncation), (&capture.frames, None), "{zeros} zeros");
        }
    }
}

#[test]
fn what_is_neither_zeros_nor_a_member_behind_gzip_data_is_damage() {
    let capture = pcap_sample(Order::Little, MICROS);
    let whole = gzip(&capture.bytes);
    for (garbage, reason) in [
        (
            &b"trailing"[..],
            "behind the gzip data stands 74 72; expected its end, zeros, or another gzip member, 1f 8b",
        ),
        (b"x", "behind the gzip data stands 78; expected"),
        (b"\0\0\0x", "behind the gzip data stands 78; expected"),
        (b"\x1f\x8c", "behind the gzip data stands 1f 8c; expected"),
        (b"\x1f", "unexpected end of file"),
        (b"\x1f\x8b\x08", "unexpected end of file"),
        (b"\x1f\x8b\x07\0\0\0\0\0\0\x03", "compression method 7 in a gzip header; expected 8"),
    ] {
        let reading = read_compressed(&[&whole, garbage].concat());
        assert_eq!(reading.frames, capture.frames, "{garbage:?}");
        let truncation = reading.truncation.unwrap_or_else(|| panic!("{garbage:?}: no truncation"));
        assert!(truncation.reason.contains(reason), "{garbage:?}: {}", truncation.reason);
        assert_eq!(truncation.offset, capture.bytes.len() as u64);
    }
}

#[test]
fn zeros_around_xz_streams_are_padding_in_fours() {
    let capture = pcap_sample(Order::Little, MICROS);
    let (first, second) = capture.bytes.split_at(60);
    let stream = |bytes| xz_stored(bytes, 50).bytes;
    for zeros in [4, 8, 512, 70_000, 200_000] {
        let padding = vec![0; zeros];
        for bytes in [
            [stream(&capture.bytes), padding.clone()].concat(),
            [stream(first), padding.clone(), stream(second), padding.clone()].concat(),
        ] {
            let reading = read_compressed(&bytes);
            assert_eq!((&reading.frames, reading.truncation), (&capture.frames, None), "{zeros} zeros");
        }
    }
    for rest in [&[0; 3][..], &[0; 5], b"trailing garbage", b"\0\0\0\0trailing garbage"] {
        let reading = read_compressed(&[&stream(&capture.bytes), rest].concat());
        assert_eq!(reading.frames, capture.frames, "{rest:?}");
        let reason = reading.truncation.unwrap_or_else(|| panic!("{rest:?}: no truncation")).reason;
        assert!(reason.contains("compressed data are broken"), "{rest:?}: {reason}");
    }
}

#[test]
fn damage_before_the_end_of_the_file_header_is_named() {
    let capture = pcap_sample(Order::Little, MICROS);
    let mut wrong_checksum = gzip(&capture.bytes[..10]);
    let at = wrong_checksum.len() - 8;
    wrong_checksum[at] ^= 1;
    let section = Pcapng::new(Order::Little).capture.bytes;
    for bytes in [
        wrong_checksum,
        gzip_stored(&capture.bytes, 10).bytes[..40].to_vec(),
        xz_stored(&capture.bytes, 10).bytes[..40].to_vec(),
        zstd_stored(&capture.bytes, 10).bytes[..30].to_vec(),
        gzip_stored(&section, 26).bytes[..45].to_vec(),
        b"\x1f\x8b\x08".to_vec(),
    ] {
        for size in [1, 4096] {
            let error = open_pieces(&bytes, size).expect_err("not whole").to_string();
            assert!(error.starts_with("stream: the compressed data are broken: "), "{error}");
        }
    }
}
