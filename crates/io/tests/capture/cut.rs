//! Files of every format, cut at every byte and read in every way.

use packetloom_io::Error;

use crate::support::*;

/// Checks what opening and reading the first `cut` bytes gives.
fn check(name: &str, capture: &Capture, cut: usize, way: Way) {
    let what = || format!("{name} cut at {cut} of {}, {way:?}", capture.bytes.len());
    let reader = match (way.open(&capture.bytes[..cut]), cut) {
        (Ok(reader), _) if cut >= capture.header_len() => reader,
        (Err(Error::Empty { .. }), 0) => return,
        (Err(Error::NotACapture { found, .. }), 1..4) => {
            let bytes: Vec<_> = capture.bytes[..cut].iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(found, bytes.join(" "), "{}", what());
            return;
        }
        (Err(Error::HeaderCut { format, .. }), 4..) if cut < capture.header_len() => {
            assert_eq!(format, capture.format, "{}", what());
            return;
        }
        (outcome, _) => panic!("{}: {outcome:?}", what()),
    };
    let reading = read_in_batches(reader, 3).expect("a broken tail is no error");
    let (frames, end) = capture.within(cut);
    assert_eq!(reading.frames, frames, "{}", what());
    match reading.truncation {
        Some(truncation) => {
            assert_ne!(cut, end, "{}: {truncation:?}", what());
            assert_eq!(truncation.offset, end as u64, "{}: {truncation:?}", what());
            assert!(!truncation.reason.is_empty());
        }
        None => assert_eq!(cut, end, "{}: no truncation", what()),
    }
}

#[test]
fn the_samples_hold_what_they_say() {
    for (name, capture) in samples() {
        let reading = read_bytes(&capture.bytes);
        assert_eq!(reading.frames, capture.frames, "{name}");
        assert_eq!(reading.truncation, None, "{name}");
        assert!(capture.frames.len() >= 4, "{name}");
    }
}

#[test]
fn every_cut_in_every_way() {
    for (name, capture) in samples() {
        for cut in 0..=capture.bytes.len() {
            for way in WAYS {
                check(name, &capture, cut, way);
            }
        }
    }
}
