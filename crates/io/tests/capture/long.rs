//! Captures of whole packets that are longer than what readers look at ahead.

use crate::support::*;

/// Packets of up to 2,000 bytes, some of which have records of another capture in them.
fn payloads() -> impl Iterator<Item = Vec<u8>> {
    let mut inner = Pcap::new(Order::Little, MICROS, 1);
    (0..60).for_each(|number| {
        inner.record(1_700_000_000 + number, 5, 60, &[0; 17]);
    });
    let inner = inner.capture();
    let records = inner.bytes[inner.header_len()..].to_vec();
    (0..3_000usize).map(move |number| {
        let len = number * 7_919 % 2_000;
        if number % 3 == 0 { records[..len.min(records.len())].to_vec() } else { vec![number as u8; len] }
    })
}

fn pcap(order: Order, magic: u32) -> Capture {
    let mut capture = Pcap::new(order, magic, 1);
    for (payload, number) in payloads().zip(0..) {
        capture.record(1_700_000_000 + number / 9, number, 2_000, &payload);
    }
    capture.capture()
}

fn pcapng(order: Order) -> Capture {
    let mut capture = Pcapng::new(order);
    capture.interface(1, 0, &[]);
    for (payload, number) in payloads().zip(0..) {
        let micros = 1_700_000_000_000_000 + number;
        capture.enhanced(0, micros, 2_000, &payload).gives(frame(micros * 1_000, 2_000, &payload));
        if number % 50 == 0 {
            capture.block(4, &[1; 300]);
        }
    }
    capture.capture()
}

#[test]
fn long_captures_have_the_frames_of_the_file() {
    let pcaps = ORDERS.into_iter().flat_map(|order| [MICROS, KUZNETZOV].map(|magic| pcap(order, magic)));
    for capture in pcaps.chain(ORDERS.map(pcapng)) {
        assert!(capture.bytes.len() > 5 << 19);
        for way in [Way::Bytes, Way::File(Compression::Plain)] {
            for batch in [7, 256] {
                let reading = read_in_batches(way.open(&capture.bytes).expect("a capture"), batch);
                let reading = reading.expect("it can be read");
                assert!(reading.frames == capture.frames, "{} {batch}", capture.format);
                assert_eq!(reading.truncation, None);
                // One that ends within a record.
                let len = capture.bytes.len() - 900;
                let reading = read_in_batches(way.open(&capture.bytes[..len]).expect("a capture"), batch);
                assert!(reading.expect("it can be read").frames == capture.within(len).0);
            }
        }
    }
}
