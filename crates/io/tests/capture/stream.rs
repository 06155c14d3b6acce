//! Streams: what is read when, and how much memory it takes.

use std::fs::OpenOptions;
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use packetloom_io::Error;
use packetloom_io::capture::CaptureReader;
use packetloom_io::input::Stop;
use packetloom_packet::Batch;
use rustix::fs::{CWD, FileType, Mode};

use crate::support::*;

/// Yields one piece, or one error, a call; counts the calls.
struct Script {
    steps: std::vec::IntoIter<io::Result<Vec<u8>>>,
    calls: Arc<AtomicUsize>,
}

impl Script {
    fn new(steps: Vec<io::Result<Vec<u8>>>) -> Self {
        Self { steps: steps.into_iter(), calls: Arc::default() }
    }
}

impl Read for Script {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let piece = self.steps.next().unwrap_or(Ok(Vec::new()))?;
        buffer[..piece.len()].copy_from_slice(&piece);
        Ok(piece.len())
    }
}

fn three_frames() -> Capture {
    Pcap::new(Order::Little, MICROS, 1)
        .record(1, 0, 5, b"first")
        .record(2, 0, 6, b"second")
        .record(3, 0, 5, b"third")
        .capture()
}

#[test]
fn pieces_of_every_size() {
    for (name, capture) in samples() {
        for size in 1..=capture.bytes.len() {
            let reading =
                read_in_batches(open_pieces(&capture.bytes, size).expect("a capture"), 4).expect("no error");
            assert_eq!(reading.frames, capture.frames, "{name}, pieces of {size}");
            assert_eq!(reading.truncation, None, "{name}, pieces of {size}");
        }
    }
}

#[test]
fn batches_of_every_size() {
    let mut file = Pcap::new(Order::Little, MICROS, 1);
    for i in 0..100 {
        file.record(i, i, i, &noise(i as usize));
    }
    for capacity in [1, 2, 3, 7, 99, 100, 101] {
        for way in [Way::File(Compression::Plain), Way::Bytes, Way::Pieces(1_000, Compression::Gzip)] {
            let reader = way.open(&file.capture.bytes).expect("a capture");
            let reading = read_in_batches(reader, capacity).expect("no error");
            assert_eq!(reading.frames, file.capture.frames, "batches of {capacity}, {way:?}");
        }
    }
}

#[test]
fn records_across_chunks_while_batches_are_held() {
    // Some records are shorter, some longer than the reader's chunks; all of them cross borders.
    let mut file = Pcap::new(Order::Big, NANOS, 1);
    let noise = noise(900_000);
    for (index, len) in [100, 200_000, 1, 300_000, 60_000, 900_000, 0, 250_000, 270_000]
        .into_iter()
        .cycle()
        .take(20)
        .enumerate()
    {
        file.record(index as u32, 0, len as u32, &noise[..len]);
    }
    for size in [4_096, 100_003, 1 << 18, usize::MAX] {
        for capacity in [1, 3, 100] {
            let reader = open_pieces(&file.capture.bytes, size).expect("a capture");
            let reading = read_in_batches(reader, capacity).expect("no error");
            let same = reading.frames == file.capture.frames;
            assert!(same && reading.truncation.is_none(), "pieces of {size}, batches of {capacity}");
        }
    }
}

#[test]
fn a_batch_that_is_used_again_gives_the_same() {
    let mut file = Pcap::new(Order::Little, MICROS, 1);
    for i in 0..2_000 {
        file.record(i, 0, i, &noise(700));
    }
    let mut reader = open_pieces(&file.capture.bytes, 5_000).expect("a capture");
    let (mut batch, mut frames) = (Batch::new(64), Vec::new());
    while reader.fill(&mut batch).expect("no error") {
        frames.extend(frames_of(&batch));
    }
    assert!(batch.is_empty() && frames == file.capture.frames);
}

#[test]
fn frames_that_came_are_given_before_more_is_waited_for() {
    let capture = three_frames();
    let second_ends = capture.within(70).1;
    let (now, later) = capture.bytes.split_at(second_ends + 20);
    let script = Script::new(vec![Ok(now[..6].to_vec()), Ok(now[6..].to_vec()), Ok(later.to_vec())]);
    let calls = script.calls.clone();
    let mut reader = CaptureReader::from_reader("stream", script, &Stop::default()).expect("a capture");
    let mut batch = Batch::new(100);

    assert!(reader.fill(&mut batch).expect("no error"));
    assert_eq!(frames_of(&batch), capture.frames[..2]);
    assert_eq!(reader.position(), second_ends as u64);
    let before = calls.load(Ordering::Relaxed);
    assert_eq!(before, 2);

    assert!(reader.fill(&mut batch).expect("no error"));
    assert_eq!(frames_of(&batch), capture.frames[2..]);
    assert_eq!(calls.load(Ordering::Relaxed), 3);

    assert!(!reader.fill(&mut batch).expect("no error"));
    assert_eq!((reader.position(), reader.truncation()), (capture.bytes.len() as u64, None));
}

#[test]
fn frames_that_were_decompressed_are_given_before_more_is_waited_for() {
    let capture = three_frames();
    let second_ends = capture.within(70).1;
    for stored in
        [gzip_stored(&capture.bytes, 5), xz_stored(&capture.bytes, 5), zstd_stored(&capture.bytes, 5)]
    {
        // As many bytes as hold the second frame and a little of the third.
        let cut = stored.content.iter().position(|len| *len == second_ends + 8).expect("such a place");
        let (now, later) = stored.bytes.split_at(cut);
        let script = Script::new(vec![Ok(now[..6].to_vec()), Ok(now[6..].to_vec()), Ok(later.to_vec())]);
        let calls = script.calls.clone();
        let mut reader = CaptureReader::from_reader("stream", script, &Stop::default()).expect("a capture");
        let (mut batch, mut frames) = (Batch::new(100), Vec::new());
        while frames.len() < 2 {
            assert!(reader.fill(&mut batch).expect("no error"));
            frames.extend(frames_of(&batch));
            assert_eq!(calls.load(Ordering::Relaxed), 2, "more was waited for");
        }
        assert_eq!(frames, capture.frames[..2]);
        assert!(reader.fill(&mut batch).expect("no error"));
        assert_eq!(frames_of(&batch), capture.frames[2..]);
    }
}

#[test]
fn an_error_comes_after_the_frames_before_it() {
    let capture = three_frames();
    let broken = || Err(io::Error::from_raw_os_error(5));
    for (steps, compressed) in [
        (vec![Ok(capture.bytes[..6].to_vec()), Ok(capture.bytes[6..70].to_vec()), broken()], false),
        (vec![Ok(gzip(&capture.bytes)[..6].to_vec()), broken()], true),
    ] {
        let opened = CaptureReader::from_reader("eth0", Script::new(steps), &Stop::default());
        let mut batch = Batch::new(100);
        let error = match (opened, compressed) {
            // Nothing could be decompressed yet.
            (Err(error), true) => error,
            (Ok(mut reader), false) => {
                assert!(reader.fill(&mut batch).expect("frames"));
                assert_eq!(frames_of(&batch), capture.within(70).0);
                reader.fill(&mut batch).expect_err("an error")
            }
            (other, _) => panic!("{other:?}"),
        };
        match error {
            Error::Io { path, source } => {
                assert_eq!((path.as_str(), source.raw_os_error()), ("eth0", Some(5)))
            }
            other => panic!("{other}"),
        }
    }
}

#[test]
fn interruptions_go_unnoticed() {
    let capture = three_frames();
    let interrupted = || Err(io::Error::from(io::ErrorKind::Interrupted));
    for bytes in [
        capture.bytes.clone(),
        gzip(&capture.bytes),
        xz_stored(&capture.bytes, 50).bytes,
        zstd(&capture.bytes, 3),
    ] {
        let mut steps = vec![interrupted(), interrupted()];
        for piece in bytes.chunks(5) {
            // The first read is for six bytes, to see what they are.
            steps.extend([Ok(piece[..piece.len().min(1)].to_vec()), interrupted(), Ok(piece[1..].to_vec())]);
        }
        steps.retain(|step| !matches!(step, Ok(piece) if piece.is_empty()));
        let reader =
            CaptureReader::from_reader("stream", Script::new(steps), &Stop::default()).expect("a capture");
        let reading = read_in_batches(reader, 16).expect("no error");
        assert_eq!((reading.frames, reading.truncation), (capture.frames.clone(), None));
    }
}

#[test]
fn what_a_reader_says_of_itself() {
    let capture = three_frames();
    let len = capture.bytes.len() as u64;
    for (way, stream) in [
        (Way::File(Compression::Plain), false),
        (Way::Bytes, false),
        (Way::File(Compression::Gzip), true),
        (Way::Pieces(7, Compression::Plain), true),
    ] {
        let mut reader = way.open(&capture.bytes).expect("a capture");
        assert!(!reader.is_live(), "{way:?}: nobody sends anything while it is read");
        assert_eq!(reader.total(), (!stream).then_some(len), "{way:?}");
        let mut batch = Batch::new(1);
        let mut ends = Vec::new();
        while reader.fill(&mut batch).expect("no error") {
            ends.push(reader.position());
        }
        assert_eq!(ends, [45, 67, 88], "{way:?}");
    }
    assert_eq!(
        CaptureReader::from_reader("eth0", &b"\xd4\xc3\xb2\xa1"[..], &Stop::default())
            .expect_err("cut")
            .to_string(),
        "eth0: cut within its pcap file header"
    );
}

#[test]
fn claims_of_a_stream_cost_no_memory() {
    let claims = {
        let mut pcap = Pcap::new(Order::Little, MICROS, 1);
        pcap.record_header(1, 2, 1 << 20, 1 << 20);
        let mut enhanced = Pcapng::new(Order::Little);
        enhanced.interface(1, 0, &[]);
        enhanced.capture.bytes.extend([6u32, 15 << 20].iter().flat_map(|field| field.to_le_bytes()));
        let mut unknown = Pcapng::new(Order::Little);
        unknown.capture.bytes.extend([0xbad, 0x7fff_fffcu32].iter().flat_map(|field| field.to_le_bytes()));
        let section =
            [0x0a0d_0d0au32, 15 << 20, 0x1a2b_3c4d].iter().flat_map(|field| field.to_le_bytes()).collect();
        [pcap.capture.bytes, enhanced.capture.bytes, unknown.capture.bytes, section]
    };
    for mut bytes in claims {
        bytes.extend([0; 100]);
        let pieces = Pieces::new(&bytes, usize::MAX);
        let offered = pieces.offered.clone();
        let mut batch = Batch::new(16);
        if let Ok(mut reader) = CaptureReader::from_reader("stream", pieces, &Stop::default()) {
            while reader.fill(&mut batch).expect("no error") {}
            assert!(reader.truncation().is_some());
        }
        let offered = offered.load(Ordering::Relaxed);
        assert!(offered <= 512 << 10, "a buffer of {offered} bytes for {} bytes", bytes.len());
    }
}

#[test]
fn buffers_grow_with_what_came() {
    // A block of 15 MiB of which 3 come.
    let mut file = Pcapng::new(Order::Little);
    file.interface(1, 0, &[]).enhanced(0, 1, 1, b"x").gives(frame(1_000, 1, b"x"));
    file.capture.bytes.extend([6u32, 15 << 20].iter().flat_map(|field| field.to_le_bytes()));
    file.capture.bytes.extend(vec![0; 3 << 20]);
    let pieces = Pieces::new(&file.capture.bytes, 50_000);
    let offered = pieces.offered.clone();
    let reader = CaptureReader::from_reader("stream", pieces, &Stop::default()).expect("a capture");
    let reading = read_in_batches(reader, 16).expect("no error");
    assert_eq!(reading.frames, file.capture.frames);
    assert!(reading.truncation.is_some());
    assert!(offered.load(Ordering::Relaxed) <= 8 << 20);
}

#[test]
fn a_block_of_almost_16_mib_is_read() {
    let mut file = Pcapng::new(Order::Big);
    let bytes = vec![7; (16 << 20) - 32];
    file.interface(1, 0, &[]).enhanced(0, 1, 9, &bytes).gives(frame(1_000, 9, &bytes));
    file.enhanced(0, 2, 1, b"x").gives(frame(2_000, 1, b"x"));
    let reading =
        read_in_batches(open_pieces(&file.capture.bytes, 1 << 20).expect("a capture"), 16).expect("no error");
    assert!(reading.frames == file.capture.frames && reading.truncation.is_none());
}

#[test]
fn a_stream_that_was_stopped_is_not_truncated() {
    let capture = three_frames();
    let stop = Stop::default();
    let mut reader = CaptureReader::from_reader("stream", Pieces::new(&capture.bytes[..80], 4096), &stop)
        .expect("a capture");
    stop.store(true, Ordering::Relaxed);
    let mut batch = Batch::new(16);
    assert!(reader.fill(&mut batch).expect("no error"));
    assert_eq!(frames_of(&batch), capture.frames[..2]);
    assert!(!reader.fill(&mut batch).expect("no error"));
    assert_eq!(reader.truncation(), None);
}

/// A named pipe in a directory of its own.
fn pipe() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("pipe");
    rustix::fs::mknodat(CWD, &path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).expect("a named pipe");
    (directory, path)
}

#[test]
fn a_named_pipe_is_a_stream() {
    for compression in [Compression::Plain, Compression::Gzip, Compression::Xz, Compression::Zstd] {
        let capture = three_frames();
        let (_directory, path) = pipe();
        let bytes = compression.of(&capture.bytes);
        let writer = thread::spawn({
            let path = path.clone();
            move || OpenOptions::new().write(true).open(path).and_then(|mut pipe| pipe.write_all(&bytes))
        });
        let reader = CaptureReader::open(&path, &Stop::default()).expect("a capture");
        assert!(reader.total().is_none());
        assert_eq!(reader.is_live(), matches!(compression, Compression::Plain), "{compression:?}");
        let reading = read_in_batches(reader, 16).expect("no error");
        assert_eq!((reading.frames, reading.truncation), (capture.frames, None), "{compression:?}");
        writer.join().expect("no panic").expect("the pipe can be written");
    }
}

#[test]
fn waiting_for_a_pipe_can_be_stopped() {
    let capture = three_frames();
    let (_directory, path) = pipe();
    // Open for reading too, so that the pipe never ends by itself.
    let mut writer = OpenOptions::new().read(true).write(true).open(&path).expect("a pipe");
    writer.write_all(&capture.bytes[..80]).expect("the pipe can be written");
    let stop = Stop::default();
    let (sender, progress) = mpsc::channel();
    thread::spawn({
        let stop = stop.clone();
        move || {
            let mut reader = CaptureReader::open(&path, &stop).expect("a capture");
            let (mut batch, mut frames) = (Batch::new(16), Vec::new());
            while reader.fill(&mut batch).expect("no error") {
                frames.extend(frames_of(&batch));
                sender.send((frames.clone(), None)).expect("somebody listens");
            }
            sender.send((frames, Some(reader.truncation().cloned()))).expect("somebody listens");
        }
    });
    let next = || progress.recv_timeout(Duration::from_secs(20)).expect("the reader goes on");
    while next().0.len() < 2 {}
    // Now it waits for the rest of the third record.
    assert!(progress.recv_timeout(Duration::from_millis(50)).is_err());
    stop.store(true, Ordering::Relaxed);
    assert_eq!(next(), (capture.frames[..2].to_vec(), Some(None)));
}
