//! Classic pcap.

use std::sync::Arc;

use packetloom_io::capture::{CaptureReader, Resolution};

use crate::support::*;

const LIMIT: u32 = 1 << 20;

fn open(capture: &Capture) -> CaptureReader {
    CaptureReader::from_bytes("bytes", Arc::new(capture.bytes.clone())).expect("a capture")
}

#[test]
fn every_magic_in_both_byte_orders() {
    for order in ORDERS {
        for (magic, resolution, nanos) in [
            (MICROS, Resolution::Micros, 1_700_000_000_123_456_000),
            (NANOS, Resolution::Nanos, 1_700_000_000_000_123_456),
            (KUZNETZOV, Resolution::Micros, 1_700_000_000_123_456_000),
        ] {
            let mut file = Pcap::new(order, magic, 1);
            file.record(1_700_000_000, 123_456, 70, b"first").record(0, 0, 5, b"second");
            let capture = file.capture();
            assert_eq!(open(&capture).resolution(), resolution);
            let reading = read_bytes(&capture.bytes);
            let expected = [frame(nanos, 70, b"first"), frame(0, 5, b"second")];
            assert_eq!(
                (&reading.frames[..], reading.truncation),
                (&expected[..], None),
                "{order:?} {magic:#x}"
            );
        }
    }
}

#[test]
fn a_file_without_frames() {
    let reading = read_bytes(&Pcap::new(Order::Big, NANOS, 1).capture().bytes);
    assert_eq!((reading.frames, reading.truncation), (vec![], None));
}

#[test]
fn times_beyond_a_second_are_added_up() {
    // Broken writers do that; nothing overflows.
    for (magic, nanos) in [(MICROS, u64::from(u32::MAX) * 1_000), (NANOS, u64::from(u32::MAX))] {
        let mut file = Pcap::new(Order::Little, magic, 1);
        file.record(u32::MAX, u32::MAX, 1, b"x");
        let reading = read_bytes(&file.capture().bytes);
        assert_eq!(reading.frames[0].nanos, u64::from(u32::MAX) * 1_000_000_000 + nanos);
    }
}

#[test]
fn the_link_type_is_the_fields_lower_half() {
    for order in ORDERS {
        for (field, link) in [
            (0, 0),
            (1, 1),
            (101, 101),
            (276, 276),
            (0xfffe, 0xfffe),
            // Stands for no link type elsewhere.
            (0xffff, 0xfffe),
            // The length of the frame check sequence, in the four upper bits.
            (0xf000_0001, 1),
            (0x2000_0114, 276),
            // The same with the bit that says that it is known, as the draft wants it: 4 bytes of Ethernet's.
            (0x2400_0001, 1),
            (0x0400_0071, 113),
        ] {
            let mut file = Pcap::new(order, MICROS, field);
            file.record(1, 2, 3, b"abc");
            let found = read_bytes(&file.capture().bytes).frames[0].link;
            assert_eq!(found, link, "{field:#010x} {order:?}");
        }
    }
}

#[test]
fn a_captured_length_over_1_mib_ends_the_reading() {
    for magic in [MICROS, KUZNETZOV] {
        for captured in [LIMIT + 1, 0x7fff_ffff, u32::MAX] {
            let mut file = Pcap::new(Order::Little, magic, 1);
            file.record(1, 2, 3, b"abc");
            let whole = file.capture.bytes.len();
            file.record_header(4, 5, captured, captured);
            file.capture.bytes.extend(vec![0; 2 << 20]);
            for way in WAYS {
                let reader = way.open(&file.capture.bytes).expect("a capture");
                let reading = read_in_batches(reader, 16).expect("no error");
                assert_eq!(reading.frames, file.capture.frames, "{captured} bytes, {way:?}");
                let truncation = reading.truncation.expect("a truncation");
                assert_eq!(truncation.offset, whole as u64, "{captured} bytes, {way:?}");
                assert!(truncation.reason.contains("captured length"), "{}", truncation.reason);
            }
        }
    }
}

#[test]
fn a_captured_length_of_1_mib_is_read() {
    let mut file = Pcap::new(Order::Big, NANOS, 1);
    file.record(1, 2, LIMIT, &noise(LIMIT as usize)).record(3, 4, 3, b"abc");
    for way in [Way::File(Compression::Plain), Way::Bytes, Way::Pieces(4096, Compression::Plain)] {
        let reader = way.open(&file.capture.bytes).expect("a capture");
        let reading = read_in_batches(reader, 16).expect("no error");
        assert!(reading.frames == file.capture.frames && reading.truncation.is_none(), "{way:?}");
    }
}
