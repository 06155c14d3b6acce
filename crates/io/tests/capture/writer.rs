//! Captures written and read again.

use std::fs;
use std::path::Path;

use packetloom_io::Error;
use packetloom_io::capture::{CaptureReader, CaptureWriter, Resolution};
use packetloom_io::input::Stop;
use packetloom_packet::{FrameRef, LinkType, Timestamp};
use tempfile::tempdir;

use crate::support::*;

fn frame_ref(frame: &Frame) -> FrameRef {
    FrameRef {
        offset: 0,
        time: Timestamp::from_nanos(frame.nanos),
        len: frame.bytes.len() as u32,
        wire_len: frame.wire_len,
        link: LinkType(frame.link),
        port: frame.port,
    }
}

fn write(path: &Path, resolution: Resolution, frames: &[Frame]) -> Result<(), Error> {
    let mut writer = CaptureWriter::create(path, resolution)?;
    for frame in frames {
        writer.write(&frame_ref(frame), &frame.bytes)?;
    }
    writer.finish()
}

fn read(path: &Path) -> (Vec<Frame>, Resolution) {
    let reader = CaptureReader::open(path, &Stop::default()).expect("a capture");
    let resolution = reader.resolution();
    let reading = read_in_batches(reader, 16).expect("no error");
    assert_eq!(reading.truncation, None);
    (reading.frames, resolution)
}

fn frames(link: u16) -> Vec<Frame> {
    let frames = [
        frame(1_700_000_000_123_456_789, 1_500, b"cut by the capture"),
        frame(0, 0, b""),
        frame(999_999_999, 4, b"last"),
        frame(u64::from(u32::MAX) * 1_000_000_000 + 999_999_999, u32::MAX, &noise(70_000)),
    ];
    frames.into_iter().map(|frame| Frame { link, ..frame }).collect()
}

#[test]
fn what_was_written_is_read() {
    let directory = tempdir().expect("a temporary directory");
    let path = directory.path().join("out.pcap");
    for link in [1, 0, 101, 276, u16::MAX] {
        let frames = frames(link);
        write(&path, Resolution::Nanos, &frames).expect("written");
        assert_eq!(read(&path), (frames.clone(), Resolution::Nanos));

        let micros = |frame: &Frame| Frame { nanos: frame.nanos / 1_000 * 1_000, ..frame.clone() };
        write(&path, Resolution::Micros, &frames).expect("written");
        assert_eq!(read(&path), (frames.iter().map(micros).collect(), Resolution::Micros));
    }
}

#[test]
fn the_bytes_of_a_file() {
    let directory = tempdir().expect("a temporary directory");
    let path = directory.path().join("out.pcap");
    for (resolution, magic, fraction) in [(Resolution::Micros, MICROS, 7), (Resolution::Nanos, NANOS, 7_999)]
    {
        write(&path, resolution, &[Frame { link: 113, ..frame(2_000_007_999, 60, b"abc") }])
            .expect("written");
        let header: Vec<u8> =
            [magic, 0x0004_0002, 0, 0, 262_144, 113].iter().flat_map(|field| field.to_le_bytes()).collect();
        let record: Vec<u8> =
            [2, fraction, 3, 60].iter().flat_map(|field: &u32| field.to_le_bytes()).collect();
        assert_eq!(fs::read(&path).expect("a file"), [&header[..], &record, b"abc"].concat());
    }
}

#[test]
fn a_file_without_frames_is_a_capture() {
    let directory = tempdir().expect("a temporary directory");
    let path = directory.path().join("empty.pcap");
    for (resolution, magic) in [(Resolution::Micros, MICROS), (Resolution::Nanos, NANOS)] {
        write(&path, resolution, &[]).expect("written");
        let bytes = fs::read(&path).expect("a file");
        assert_eq!(
            (bytes.len(), &bytes[..4], &bytes[20..]),
            (24, &magic.to_le_bytes()[..], &[1, 0, 0, 0][..])
        );
        assert_eq!(read(&path), (vec![], resolution));
    }
}

#[test]
fn times_after_2106_are_its_last_second() {
    let directory = tempdir().expect("a temporary directory");
    let path = directory.path().join("late.pcap");
    let seconds = u64::from(u32::MAX);
    for nanos in [(seconds + 1) * 1_000_000_000, u64::MAX] {
        write(&path, Resolution::Nanos, &[frame(nanos, 1, b"x")]).expect("written");
        assert_eq!(read(&path).0[0].nanos / 1_000_000_000, seconds);
    }
}

#[test]
fn frames_of_two_link_types_are_refused() {
    let directory = tempdir().expect("a temporary directory");
    let path = directory.path().join("mixed.pcap");
    let mut writer = CaptureWriter::create(&path, Resolution::Micros).expect("made");
    let (ethernet, cooked) = (frame(1, 1, b"x"), Frame { link: 113, ..frame(2, 1, b"y") });
    writer.write(&frame_ref(&ethernet), b"x").expect("the first decides");
    match writer.write(&frame_ref(&cooked), b"y") {
        Err(Error::MixedLinkTypes { path: name, first: 1, other: 113 }) => {
            assert_eq!(name, path.display().to_string())
        }
        other => panic!("{other:?}"),
    }
    // The frame was not written, and others of the first kind still can be.
    writer.write(&frame_ref(&ethernet), b"x").expect("of the first kind");
    writer.finish().expect("finished");
    assert_eq!(read(&path).0, [ethernet.clone(), ethernet].map(|frame| Frame { nanos: 0, ..frame }));
}

#[test]
fn only_a_finished_file_appears() {
    let directory = tempdir().expect("a temporary directory");
    let path = directory.path().join("out.pcap");
    let mut writer = CaptureWriter::create(&path, Resolution::Micros).expect("made");
    writer.write(&frame_ref(&frame(1, 1, b"x")), b"x").expect("written");
    writer.flush().expect("flushed");
    assert!(!path.exists());
    drop(writer);
    assert_eq!(fs::read_dir(directory.path()).expect("a directory").count(), 0);
}

#[test]
fn errors_name_the_file() {
    let directory = tempdir().expect("a temporary directory");
    let path = directory.path().join("missing").join("out.pcap");
    let error = CaptureWriter::create(&path, Resolution::Micros).expect_err("no such directory");
    assert!(error.to_string().starts_with(&path.display().to_string()), "{error}");

    // What fits into the buffer fails at the end, the rest at once.
    for bytes in [10, 1 << 20] {
        let frames = [frame(1, 1, &vec![0; bytes])];
        let error = write(Path::new("/dev/full"), Resolution::Micros, &frames).expect_err("a full device");
        assert!(error.to_string().starts_with("/dev/full: "), "{error}");
    }
}
