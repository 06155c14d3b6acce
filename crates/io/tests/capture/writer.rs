//! Captures written and read again.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use packetloom_io::Error;
use packetloom_io::capture::{CaptureReader, CaptureWriter, PcapngWriter, Resolution};
use packetloom_io::input::Stop;
use packetloom_packet::batch::Policy;
use packetloom_packet::{Address, Batch, DropReason, End, FrameRef, LinkType, Rewrite, Timestamp, Verdict};
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
    for link in [1, 0, 101, 276, u16::MAX - 1] {
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

/// A UDP packet without layer 2 from and to these hosts, whose last bytes are the last of the message.
fn udp(source: ([u8; 4], u16), destination: ([u8; 4], u16), message: &[u8]) -> Vec<u8> {
    let len = |header: usize| ((header + message.len()) as u16).to_be_bytes();
    let (ports, addresses) =
        ([source.1, destination.1].map(u16::to_be_bytes), [source.0, destination.0].concat());
    let sum = |bytes: &[u8]| {
        let words =
            bytes.chunks(2).map(|word| u32::from(word[0]) * 256 + u32::from(*word.get(1).unwrap_or(&0)));
        let sum: u32 = words.sum();
        (!((sum % 0xffff) as u16)).to_be_bytes()
    };
    let mut packet = [&[0x45, 0], &len(28)[..], &[0, 0, 0, 0, 64, 17, 0, 0], &addresses].concat();
    let checksum = sum(&packet);
    packet[10..12].copy_from_slice(&checksum);
    let mut datagram = [ports.as_flattened(), &len(8), &[0, 0], message].concat();
    let checksum = sum(&[&addresses, &[0, 17][..], &len(8), &datagram].concat());
    datagram[6..8].copy_from_slice(&checksum);
    [packet, datagram].concat()
}

#[test]
fn what_passes_is_written_with_its_rewrites() {
    let directory = tempdir().expect("a temporary directory");
    let path = directory.path().join("out.pcap");
    let (client, service) = (([192, 0, 2, 1], 40_000), ([198, 51, 100, 7], 53));
    let (outside, server) = (([203, 0, 113, 9], 1_024), ([10, 0, 0, 5], 5_353));
    let message = noise(300_000);
    let packets: Vec<_> = [5, 8, 60_000, 1_000, 2, 3]
        .into_iter()
        .map(|len| udp(client, service, &message[..len]))
        .chain([b"no packet".to_vec()])
        .collect();
    // The third was cut by the capture after its addresses and ports, the fourth before them.
    let captured = |index: usize| match index {
        2 => 26,
        3 => 12,
        _ => packets[index].len(),
    };
    let mut batch = Batch::new(packets.len());
    batch.reset(Arc::new(packets.concat()));
    let mut offset = 0;
    for (index, packet) in packets.iter().enumerate() {
        let (len, wire_len) = (captured(index) as u32, packet.len() as u32);
        let time = Timestamp::from_nanos(index as u64);
        batch.push(FrameRef { offset, time, len, wire_len, link: LinkType::RAW, port: 0 });
        offset += packet.len() as u64;
    }
    batch.parse(Policy::PASS);
    let address = |host: ([u8; 4], u16)| Address::V4(u32::from_be_bytes(host.0));
    let to_server =
        |frame| Rewrite { frame, end: End::Destination, address: address(server), port: Some(server.1) };
    let from_outside =
        |frame| Rewrite { frame, end: End::Source, address: address(outside), port: Some(outside.1) };
    // Not in order of frames, one frame twice, one that is dropped.
    for rewrite in [to_server(2), to_server(4), to_server(5), from_outside(4), from_outside(0)] {
        assert!(batch.rewrite(rewrite));
    }
    assert!(!batch.rewrite(to_server(3)));
    batch.judge().0[5] = Verdict::Drop(DropReason::AclRule);

    let mut writer = CaptureWriter::create(&path, Resolution::Nanos).expect("made");
    writer.write_passed(&batch).expect("written");
    writer.finish().expect("finished");
    let expected = [
        (0, udp(outside, service, &message[..5])),
        (1, packets[1].clone()),
        (2, udp(client, server, &message[..60_000])),
        (3, packets[3].clone()),
        (4, udp(outside, server, &message[..2])),
        (6, packets[6].clone()),
    ];
    let expected = expected.map(|(index, mut bytes): (usize, Vec<u8>)| {
        let wire_len = bytes.len() as u32;
        bytes.truncate(captured(index));
        Frame { link: 101, ..frame(index as u64, wire_len, &bytes) }
    });
    assert_eq!(read(&path).0, expected);
}

#[test]
fn a_rewritten_frame_is_cut_as_any_other() {
    let directory = tempdir().expect("a temporary directory");
    let path = directory.path().join("out.pcap");
    // One packet that what follows makes a long frame, and one behind more tags than are written.
    let near = [&[0; 12][..], &[8, 0], &udp(([1; 4], 1), ([2; 4], 2), b"near"), &noise(300_000)].concat();
    let far =
        [&[0; 12][..], &[0x81, 0, 0, 1].repeat(70_000), &[8, 0], &udp(([1; 4], 1), ([2; 4], 2), b"far")]
            .concat();
    let mut expected = [near.clone(), far.clone()].map(|bytes| bytes[..262_144].to_vec());
    expected[0][14..46].copy_from_slice(&udp(([1; 4], 1), ([9; 4], 2), b"near"));
    let mut batch = Batch::new(2);
    batch.reset(Arc::new([&near[..], &far].concat()));
    for (index, (offset, len)) in [(0, near.len()), (near.len(), far.len())].into_iter().enumerate() {
        let frame = frame(index as u64, len as u32, b"");
        batch.push(FrameRef { offset: offset as u64, len: len as u32, ..frame_ref(&frame) });
    }
    batch.parse(Policy::PASS);
    for frame in 0..2 {
        let rewrite = Rewrite { frame, end: End::Destination, address: Address::V4(0x0909_0909), port: None };
        assert!(batch.rewrite(rewrite));
    }
    let mut writer = CaptureWriter::create(&path, Resolution::Nanos).expect("made");
    writer.write_passed(&batch).expect("written");
    writer.finish().expect("finished");
    let written: Vec<_> = read(&path).0.into_iter().map(|frame| frame.bytes).collect();
    assert!(written == expected);
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

/// Each frame names the interface that it came by, and each interface is described once, however many there are.
#[test]
fn interfaces_of_pcapng_are_described_once() {
    const PORTS: u16 = 20_000;
    let folder = tempdir().expect("a folder");
    let path = folder.path().join("many.pcapng");
    // Every third has no name, and two share one.
    let name = |port: u16| (!port.is_multiple_of(3)).then(|| format!("eth{}", port / 6).into_boxed_str());
    let mut batch = Batch::new(usize::from(PORTS));
    batch.reset(Arc::new(*b"frame"));
    batch.set_port_names(Some((0..PORTS).map(name).collect()));
    for number in 0..PORTS {
        // In another order, by links that take turns.
        let port = (u32::from(number) * 7_919 % u32::from(PORTS)) as u16;
        let of =
            Frame { link: [1, 101][usize::from(number % 2)], port, ..frame(u64::from(number), 5, b"frame") };
        batch.push(frame_ref(&of));
    }
    let mut writer = PcapngWriter::create(&path).expect("a file");
    for _ in 0..2 {
        writer.write_commented(&batch, (0..batch.len()).map(|index| (index, &[][..]))).expect("written");
    }
    writer.finish().expect("written");
    let (mut interfaces, mut found) = (Vec::new(), Vec::new());
    let file = fs::read(&path).expect("a capture");
    let mut rest = &file[..];
    while !rest.is_empty() {
        let [kind, length] =
            [0, 4].map(|at| u32::from_le_bytes(rest[at..at + 4].try_into().expect("4 bytes")));
        let (block, others) = rest.split_at(length as usize);
        match kind {
            1 => {
                // The name is the first option, if there is one.
                let of_name = block[16..18] == [2, 0];
                let name = of_name.then(|| block[20..20 + usize::from(block[18])].to_vec());
                interfaces.push((u16::from_le_bytes([block[8], block[9]]), name));
            }
            6 => found.push(u32::from_le_bytes(block[8..12].try_into().expect("4 bytes")) as usize),
            _ => {}
        }
        rest = others;
    }
    let expected = |frame: &FrameRef| (frame.link.0, name(frame.port).map(|name| name.as_bytes().to_vec()));
    let expected: Vec<_> = batch.frames().iter().map(expected).collect();
    let described: std::collections::HashSet<_> = expected.iter().cloned().collect();
    assert_eq!(interfaces.len(), described.len());
    assert!(found.iter().map(|number| &interfaces[*number]).eq(expected.iter().chain(&expected)));
}
