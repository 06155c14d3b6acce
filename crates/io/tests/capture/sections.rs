//! Captures whose records several threads find.

use packetloom_io::input::Stop;

use crate::support::*;

/// Frames that have whole records of other captures in them, one after the other, with times and lengths like those around them.
fn with_records_inside(order: Order, magic: u32) -> Capture {
    let mut inner = Pcap::new(order, magic, 1);
    for number in 0..12 {
        inner.record(1_700_000_000 + number, 5, 60, &[0; 7]);
    }
    let inner = inner.capture();
    let records = &inner.bytes[inner.header_len()..];
    let mut outer = Pcap::new(order, magic, 1);
    for number in 0..200u32 {
        // Some begin in the middle of a record.
        let from = number as usize % 5 * 3;
        outer.record(1_700_000_000 + number, number, 1_500, &records[from..]);
        outer.record(1_700_000_000 + number, number, 60, &[number as u8; 60]);
    }
    outer.capture()
}

fn plain(order: Order, magic: u32) -> Capture {
    let mut capture = Pcap::new(order, magic, 1);
    for number in 0..1_000u32 {
        let len = number * number % 97;
        capture.record(1_700_000_000 + number / 3, number, 1_500, &vec![number as u8; len as usize]);
    }
    capture.capture()
}

#[test]
fn sections_have_the_frames_of_the_file() {
    for order in ORDERS {
        for magic in [MICROS, NANOS, KUZNETZOV] {
            for (capture, is_plain) in
                [(plain(order, magic), true), (with_records_inside(order, magic), false)]
            {
                for compression in [None, Some(Compression::Plain)] {
                    let way = compression.map_or(Way::Bytes, Way::File);
                    for bytes in [1, 100, 1_000, 7_777, 1 << 20] {
                        let reader = way.open(&capture.bytes).expect("a capture");
                        let (reading, others) = read_in_sections(reader, 300, bytes).expect("it can be read");
                        assert_eq!(reading.frames, capture.frames, "{order:?} {magic:x} {bytes}");
                        assert_eq!(reading.truncation, None);
                        // Most guesses are right, unless records were put there to be taken for such.
                        assert!(
                            others > 20 || !is_plain || !(100..5_000).contains(&bytes),
                            "{others}, {bytes}"
                        );
                    }
                }
            }
        }
    }
}

/// A batch that is full ends its section early; what is left comes again.
#[test]
fn sections_with_more_records_than_there_is_room_for() {
    let capture = plain(Order::Little, MICROS);
    for capacity in [1, 3, 50] {
        let reader = Way::Bytes.open(&capture.bytes).expect("a capture");
        let (reading, others) = read_in_sections(reader, capacity, 10_000).expect("it can be read");
        assert_eq!((reading.frames, others), (capture.frames.clone(), 0));
    }
}

/// Only a capture that is in memory has sections, and only until its end.
#[test]
fn what_has_no_sections() {
    let capture = plain(Order::Big, NANOS);
    for way in [Way::File(Compression::Gzip), Way::Pieces(100, Compression::Plain)] {
        assert!(way.open(&capture.bytes).expect("a capture").sections(1_000).is_none());
    }
    let mut file = Pcapng::new(Order::Little);
    let pcapng = file.interface(1, 0, &[]).capture();
    assert!(Way::Bytes.open(&pcapng.bytes).expect("a capture").sections(1_000).is_none());
    let mut reader = Way::Bytes.open(&capture.bytes).expect("a capture");
    let mut batch = packetloom_packet::Batch::new(2_000);
    assert!(reader.fill(&mut batch).expect("it can be read"));
    assert!(reader.sections(1_000).is_none());
    let stop = Stop::default();
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    let mut file = tempfile::NamedTempFile::new().expect("a file");
    std::io::Write::write_all(&mut file, &capture.bytes).expect("written");
    let reader = packetloom_io::capture::CaptureReader::open(file.path(), &stop).expect("a capture");
    assert!(reader.sections(1_000).is_none());
}

/// A section is read once, and only where it begins.
#[test]
fn sections_follow_each_other() {
    let capture = plain(Order::Little, MICROS);
    let mut reader = Way::Bytes.open(&capture.bytes).expect("a capture");
    let sections = reader.sections(2_000).expect("it has some");
    let mut batch = packetloom_packet::Batch::new(1_000);
    let [first, second] = [0, 1].map(|number| sections.find(number, &mut batch).expect("records"));
    assert!(!reader.accept(second) && reader.accept(first) && !reader.accept(first) && reader.accept(second));
}
