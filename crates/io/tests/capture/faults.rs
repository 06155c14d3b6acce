//! Files that were once read wrongly, each of a kind.

use std::path::{Path, PathBuf};

use packetloom_io::Error;
use packetloom_io::capture::{CaptureReader, CaptureWriter, Resolution, Undefined};
use packetloom_io::input::Stop;
use packetloom_packet::batch::{Parsed, Policy};
use packetloom_packet::{Batch, Reject};

use crate::support::*;

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

fn read(name: &str) -> Reading {
    let reader = CaptureReader::open(&file(name), &Stop::default()).expect("a capture");
    read_in_batches(reader, 16).expect("no error")
}

/// What came of each frame, in order.
fn rejects(name: &str) -> Vec<Option<Reject>> {
    let mut reader = CaptureReader::open(&file(name), &Stop::default()).expect("a capture");
    let mut batch = Batch::new(100);
    assert!(reader.fill(&mut batch).expect("no error"));
    batch.parse(Policy::PASS);
    let reject = |parsed: &Parsed| if let Parsed::Rejected(reject) = parsed { Some(*reject) } else { None };
    batch.parsed().iter().map(reject).collect()
}

#[test]
fn packets_of_undefined_interfaces_are_counted() {
    let undefined = Some(Reject::UndefinedInterface);
    for (name, expected, first) in [
        (
            "iface82.pcapng",
            vec![undefined, undefined],
            Undefined { frames: 2, interface: 82, described: 1, offset: 48 },
        ),
        (
            "badif.pcapng",
            vec![undefined, None],
            Undefined { frames: 1, interface: 3, described: 1, offset: 48 },
        ),
        (
            "section-without-interface.pcapng",
            vec![None, undefined],
            Undefined { frames: 1, interface: 0, described: 0, offset: 172 },
        ),
    ] {
        assert_eq!(rejects(name), expected, "{name}");
        let reading = read(name);
        assert_eq!((reading.findings.undefined, reading.truncation), (Some(first), None), "{name}");
    }
    let warnings = read("iface82.pcapng").findings.warnings();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(
        warnings[0].starts_with(
            "2 packet blocks name an interface that the section does not describe, first interface 82 at byte 48, where interface 0 only \
             is described; "
        ),
        "{warnings:?}"
    );
}

#[test]
fn a_frame_without_a_link_type_is_not_written() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("out.pcap");
    let mut reader = CaptureReader::open(&file("badif.pcapng"), &Stop::default()).expect("a capture");
    let mut batch = Batch::new(100);
    assert!(reader.fill(&mut batch).expect("no error"));
    batch.parse(Policy { pass_non_ip: true, pass_unknown_framing: true, pass_malformed: false });
    let mut writer = CaptureWriter::create(&path, Resolution::Nanos).expect("made");
    writer.write_passed(&batch).expect("only the other one passes");
    for index in [0, 1] {
        let result = writer.write(&batch.frames()[index], batch.bytes(index));
        assert_eq!(matches!(result, Err(Error::NoLinkType { .. })), index == 0, "{result:?}");
    }
}

#[test]
fn unsupported_link_types_are_named() {
    let mut bytes = std::fs::read(file("radiotap.pcap")).expect("a file");
    assert!(read_bytes(&bytes).findings.warnings().is_empty());
    // A header of another kind before 802.11.
    bytes[20] = 163;
    let reading = read_bytes(&bytes);
    assert_eq!(reading.findings.unsupported, [(163, 2)].into());
    let warnings = reading.findings.warnings();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(
        warnings[0].starts_with("2 frames of link type 163 (IEEE802_11_AVS) cannot be parsed and count as "),
        "{warnings:?}"
    );
    assert!(warnings[0].contains("supported: 0 (NULL), 1 (ETHERNET), 9 (PPP), 12 (RAW), "), "{warnings:?}");
}

#[test]
fn many_link_types_are_summed_up() {
    let mut capture = Pcapng::new(Order::Big);
    for link in [147, 1, 163, 2, 3, 4, 5, 65_535] {
        capture.interface(link, 0, &[]);
    }
    for interface in [2, 2, 7, 0, 1, 3, 4, 5, 6] {
        capture.enhanced(interface, 1, 1, b"x");
    }
    capture.simple(1, b"x");
    let warnings = read_bytes(&capture.capture.bytes).findings.warnings();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    let expected = "9 frames of link types 147 (USER0): 2, 163 (IEEE802_11_AVS): 2, 2: 1, 3 (AX25): 1, 4: 1, and 2 more cannot be parsed";
    assert!(warnings[0].starts_with(expected), "{warnings:?}");

    // Numbers beyond 16 bits are named as they stand there.
    let mut capture = Pcap::new(Order::Little, MICROS, 0x1_0001);
    capture.record(1, 1, 1, b"x");
    let reading = read_bytes(&capture.capture.bytes);
    assert_eq!(reading.findings.unsupported, [(0x1_0001, 1)].into());
    assert!(reading.findings.warnings()[0].starts_with("1 frame of link type 65537 cannot be parsed"));
}

#[test]
fn zeros_behind_gzip_data_are_no_truncation() {
    let reading = read("gz-zeros.pcap.gz");
    assert_eq!((reading.frames.len(), reading.truncation), (1, None));
    assert_eq!(reading.findings.warnings(), [""; 0]);
}

#[test]
fn a_wrong_byte_order_magic_is_named() {
    let error =
        CaptureReader::open(&file("bom.pcapng"), &Stop::default()).expect_err("no capture").to_string();
    let expected = "bom.pcapng: the section header's byte-order magic is 0xdeadbeef; expected 0x1a2b3c4d in either byte order";
    assert!(error.ends_with(expected), "{error}");
}
