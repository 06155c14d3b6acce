//! Captures built by hand, compressed files built by hand, and ways to read them.
#![allow(dead_code, reason = "each test binary uses some of it")]

use std::io::{self, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use flate2::Crc;
use flate2::write::GzEncoder;
use packetloom_io::Error;
use packetloom_io::capture::{CaptureReader, Findings, Truncation};
use packetloom_io::input::Stop;
use packetloom_packet::Batch;

pub(crate) const MICROS: u32 = 0xa1b2_c3d4;
pub(crate) const NANOS: u32 = 0xa1b2_3c4d;
pub(crate) const KUZNETZOV: u32 = 0xa1b2_cd34;

/// Byte order of a file's integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    Little,
    Big,
}

pub(crate) const ORDERS: [Order; 2] = [Order::Little, Order::Big];

impl Order {
    pub(crate) fn u16(self, value: u16) -> [u8; 2] {
        if self == Self::Little { value.to_le_bytes() } else { value.to_be_bytes() }
    }

    pub(crate) fn u32(self, value: u32) -> [u8; 4] {
        if self == Self::Little { value.to_le_bytes() } else { value.to_be_bytes() }
    }

    pub(crate) fn u64(self, value: u64) -> [u8; 8] {
        if self == Self::Little { value.to_le_bytes() } else { value.to_be_bytes() }
    }
}

/// A frame as a reader should give it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) nanos: u64,
    pub(crate) wire_len: u32,
    pub(crate) link: u16,
    pub(crate) port: u16,
    pub(crate) bytes: Vec<u8>,
}

/// An Ethernet frame of interface 0.
pub(crate) fn frame(nanos: u64, wire_len: u32, bytes: &[u8]) -> Frame {
    Frame { nanos, wire_len, link: 1, port: 0, bytes: bytes.to_vec() }
}

/// A frame of an interface that is not described.
pub(crate) fn undefined(nanos: u64, wire_len: u32, port: u16, bytes: &[u8]) -> Frame {
    Frame { link: u16::MAX, port, ..frame(nanos, wire_len, bytes) }
}

/// A capture file, and what is in it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Capture {
    pub(crate) bytes: Vec<u8>,
    /// "pcap" or "pcapng".
    pub(crate) format: &'static str,
    pub(crate) frames: Vec<Frame>,
    /// Where the file header and every record end, and the frames up to there.
    ends: Vec<(usize, usize)>,
}

impl Capture {
    /// Bytes of the file header.
    pub(crate) fn header_len(&self) -> usize {
        self.ends[0].0
    }

    /// Of the first `len` bytes, which must hold the header: the frames that are whole, and where the last whole
    /// record ends.
    pub(crate) fn within(&self, len: usize) -> (&[Frame], usize) {
        let &(end, frames) = self.ends.iter().rfind(|(end, _)| *end <= len).expect("a whole file header");
        (&self.frames[..frames], end)
    }

    fn end_record(&mut self) {
        self.ends.push((self.bytes.len(), self.frames.len()));
    }
}

/// Writes pcap.
pub(crate) struct Pcap {
    order: Order,
    magic: u32,
    link: u16,
    pub(crate) capture: Capture,
}

impl Pcap {
    /// `link` is the whole field of the header, of which the lower half is the link type.
    pub(crate) fn new(order: Order, magic: u32, link: u32) -> Self {
        let mut capture = Capture { format: "pcap", ..Capture::default() };
        capture.bytes.extend(order.u32(magic));
        capture.bytes.extend(order.u16(2));
        capture.bytes.extend(order.u16(4));
        for field in [0, 0, 65_535, link] {
            capture.bytes.extend(order.u32(field));
        }
        capture.end_record();
        Self { order, magic, link: link as u16, capture }
    }

    /// A record; `fraction` is in microseconds or nanoseconds, whichever the file has.
    pub(crate) fn record(&mut self, seconds: u32, fraction: u32, wire_len: u32, bytes: &[u8]) -> &mut Self {
        self.record_header(seconds, fraction, bytes.len() as u32, wire_len);
        self.capture.bytes.extend(bytes);
        let unit = if self.magic == NANOS { 1 } else { 1_000 };
        self.capture.frames.push(Frame {
            nanos: u64::from(seconds) * 1_000_000_000 + u64::from(fraction) * unit,
            wire_len,
            link: self.link,
            port: 0,
            bytes: bytes.to_vec(),
        });
        self.capture.end_record();
        self
    }

    /// The header of a record alone.
    pub(crate) fn record_header(&mut self, seconds: u32, fraction: u32, captured: u32, wire_len: u32) {
        for field in [seconds, fraction, captured, wire_len] {
            self.capture.bytes.extend(self.order.u32(field));
        }
        if self.magic == KUZNETZOV {
            // Interface, protocol, packet type, padding.
            self.capture.bytes.extend([9, 0, 0, 0, 8, 0, 4, 0]);
        }
    }

    pub(crate) fn capture(&self) -> Capture {
        self.capture.clone()
    }
}

pub(crate) const TSRESOL: u16 = 9;
pub(crate) const TSOFFSET: u16 = 14;

/// Writes pcapng, block by block.
pub(crate) struct Pcapng {
    pub(crate) order: Order,
    pub(crate) capture: Capture,
}

impl Pcapng {
    /// A file with its first section's header.
    pub(crate) fn new(order: Order) -> Self {
        let mut file = Self { order, capture: Capture { format: "pcapng", ..Capture::default() } };
        file.section(order);
        file
    }

    /// A block with its length before and after it.
    pub(crate) fn block(&mut self, kind: u32, body: &[u8]) -> &mut Self {
        let padded = body.len().next_multiple_of(4);
        let len = self.order.u32(padded as u32 + 12);
        self.capture.bytes.extend(self.order.u32(kind));
        self.capture.bytes.extend(len);
        self.capture.bytes.extend(body);
        self.capture.bytes.extend(vec![0; padded - body.len()]);
        self.capture.bytes.extend(len);
        self.capture.end_record();
        self
    }

    /// A section header block, from which on the file has this byte order.
    pub(crate) fn section(&mut self, order: Order) -> &mut Self {
        self.order = order;
        let body = [&order.u32(0x1a2b_3c4d)[..], &order.u16(1), &order.u16(0), &[0xff; 8]].concat();
        self.block(0x0a0d_0d0a, &body)
    }

    /// One option: code, length, value, padding.
    pub(crate) fn option(&self, code: u16, value: &[u8]) -> Vec<u8> {
        let mut option = [&self.order.u16(code)[..], &self.order.u16(value.len() as u16), value].concat();
        option.resize(option.len().next_multiple_of(4), 0);
        option
    }

    /// An interface description block.
    pub(crate) fn interface(&mut self, link: u16, snap: u32, options: &[u8]) -> &mut Self {
        let body = [&self.order.u16(link)[..], &[0; 2], &self.order.u32(snap), options].concat();
        self.block(1, &body)
    }

    fn fields(&self, fields: &[u32], bytes: &[u8]) -> Vec<u8> {
        let fields: Vec<u8> = fields.iter().flat_map(|field| self.order.u32(*field)).collect();
        [&fields, bytes].concat()
    }

    /// An enhanced packet block.
    pub(crate) fn enhanced(&mut self, interface: u32, ticks: u64, wire_len: u32, bytes: &[u8]) -> &mut Self {
        let (high, low) = ((ticks >> 32) as u32, ticks as u32);
        let body = self.fields(&[interface, high, low, bytes.len() as u32, wire_len], bytes);
        self.block(6, &body)
    }

    /// An obsolete packet block, which says that 7 frames were lost before it.
    pub(crate) fn obsolete(&mut self, interface: u16, ticks: u64, wire_len: u32, bytes: &[u8]) -> &mut Self {
        let (high, low) = ((ticks >> 32) as u32, ticks as u32);
        let rest = self.fields(&[high, low, bytes.len() as u32, wire_len], bytes);
        let body = [&self.order.u16(interface)[..], &self.order.u16(7), &rest].concat();
        self.block(2, &body)
    }

    /// A simple packet block.
    pub(crate) fn simple(&mut self, wire_len: u32, bytes: &[u8]) -> &mut Self {
        let body = self.fields(&[wire_len], bytes);
        self.block(3, &body)
    }

    /// Says what the block just written should be read as.
    pub(crate) fn gives(&mut self, frame: Frame) -> &mut Self {
        self.capture.frames.push(frame);
        self.capture.ends.pop();
        self.capture.end_record();
        self
    }

    pub(crate) fn capture(&self) -> Capture {
        self.capture.clone()
    }
}

/// A small file of every format, with all kinds of records.
pub(crate) fn samples() -> Vec<(&'static str, Capture)> {
    let mut samples = Vec::new();
    for (name, order, magic) in [
        ("pcap, microseconds", Order::Little, MICROS),
        ("pcap, microseconds, big-endian", Order::Big, MICROS),
        ("pcap, nanoseconds", Order::Little, NANOS),
        ("pcap, nanoseconds, big-endian", Order::Big, NANOS),
        ("pcap, Kuznetzov", Order::Little, KUZNETZOV),
        ("pcap, Kuznetzov, big-endian", Order::Big, KUZNETZOV),
    ] {
        samples.push((name, pcap_sample(order, magic)));
    }
    samples.push(("pcapng", pcapng_sample(Order::Little, Order::Little)));
    samples.push(("pcapng, big-endian", pcapng_sample(Order::Big, Order::Big)));
    samples.push(("pcapng, two byte orders", pcapng_sample(Order::Big, Order::Little)));
    samples
}

/// Frames of several lengths, one empty, one cut by the capture.
pub(crate) fn pcap_sample(order: Order, magic: u32) -> Capture {
    Pcap::new(order, magic, 1)
        .record(1, 999_999, 60, b"the first frame")
        .record(2, 0, 0, b"")
        .record(u32::MAX, 1, 9_000, b"cut")
        .record(3, 500, 33, b"a frame of thirty-three bytes ...")
        .capture()
}

/// Two sections with every kind of packet block, and blocks that are none.
pub(crate) fn pcapng_sample(first: Order, second: Order) -> Capture {
    const NAME_RESOLUTION: u32 = 4;
    let mut file = Pcapng::new(first);
    let name = file.option(2, b"eth0");
    file.interface(1, 20, &name);
    let nanos = file.option(TSRESOL, &[9]);
    file.interface(101, 0, &nanos);
    file.enhanced(0, 1_000_001, 60, b"enhanced").gives(frame(1_000_001_000, 60, b"enhanced"));
    file.block(NAME_RESOLUTION, b"no packet");
    file.enhanced(1, 7, 3, b"raw").gives(Frame { link: 101, port: 1, ..frame(7, 3, b"raw") });
    file.enhanced(2, 8, 3, b"not described").gives(undefined(8_000, 3, 2, b"not described"));
    file.simple(99, b"as far as the snap length").gives(frame(7, 99, b"as far as the snap l"));
    file.section(second);
    file.interface(113, 0, &[]);
    file.obsolete(0, 9, 5, b"obsol").gives(Frame { link: 113, ..frame(9_000, 5, b"obsol") });
    file.block(0x8000_0bad, b"");
    file.capture()
}

/// What a reader gave.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Reading {
    pub(crate) frames: Vec<Frame>,
    pub(crate) truncation: Option<Truncation>,
    pub(crate) findings: Findings,
}

/// Reads to the end in batches of `capacity`. All batches are kept until then, so that memory which is used again
/// too early shows.
pub(crate) fn read_in_batches(mut reader: CaptureReader, capacity: usize) -> Result<Reading, Error> {
    let mut batches = Vec::new();
    loop {
        let mut batch = Batch::new(capacity);
        let more = reader.fill(&mut batch)?;
        assert!(batch.len() <= capacity);
        assert!(more || batch.is_empty(), "the end of the capture, with frames");
        if !more {
            break;
        }
        batches.push(batch);
    }
    let mut again = Batch::new(capacity);
    assert!(!reader.fill(&mut again)? && again.is_empty(), "something after the end");
    let frames = batches.iter().flat_map(frames_of).collect();
    Ok(Reading { frames, truncation: reader.truncation().cloned(), findings: reader.findings() })
}

/// Reads to the end, as long as it can be in sections of so many bytes, the last of them first, and then in batches of `capacity`. Also
/// says how many sections were read that were not the first one.
pub(crate) fn read_in_sections(
    mut reader: CaptureReader,
    capacity: usize,
    bytes: usize,
) -> Result<(Reading, usize), Error> {
    const SECTIONS: usize = 4;
    let (mut frames, mut others) = (Vec::new(), 0);
    while let Some(sections) = reader.sections(bytes) {
        let mut batches: Vec<_> = (0..SECTIONS).map(|_| Batch::new(capacity)).collect();
        let mut found = [None; SECTIONS];
        for number in (0..SECTIONS).rev() {
            found[number] = sections.find(number, &mut batches[number]);
            assert!(batches[number].len() <= capacity);
        }
        let read = batches.iter().zip(found).take_while(|(batch, section)| {
            !batch.is_empty() && section.is_some_and(|section| reader.accept(section))
        });
        let read: Vec<_> = read.map(|(batch, _)| frames_of(batch)).collect();
        if read.is_empty() {
            break;
        }
        others += read.len() - 1;
        frames.extend(read.into_iter().flatten());
    }
    let rest = read_in_batches(reader, capacity)?;
    frames.extend(rest.frames);
    Ok((Reading { frames, ..rest }, others))
}

/// The frames of a batch.
pub(crate) fn frames_of(batch: &Batch) -> Vec<Frame> {
    let frames = batch.frames().iter().enumerate().map(|(index, frame)| {
        let bytes = batch.bytes(index).to_vec();
        assert_eq!(bytes.len(), frame.len as usize, "a frame lies within its arena");
        Frame {
            nanos: frame.time.as_nanos(),
            wire_len: frame.wire_len,
            link: frame.link.0,
            port: frame.port,
            bytes,
        }
    });
    frames.collect()
}

/// Reads bytes in memory that must be a capture.
pub(crate) fn read_bytes(bytes: &[u8]) -> Reading {
    let reader = CaptureReader::from_bytes("bytes", Arc::new(bytes.to_vec())).expect("a capture");
    read_in_batches(reader, 16).expect("memory can be read")
}

/// A way to the bytes of a capture.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Way {
    /// A file, which is mapped where it is not compressed.
    File(Compression),
    /// Memory.
    Bytes,
    /// A stream that yields at most so many bytes at once.
    Pieces(usize, Compression),
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Compression {
    Plain,
    Gzip,
    Xz,
    Zstd,
}

impl Compression {
    pub(crate) fn of(self, bytes: &[u8]) -> Vec<u8> {
        match self {
            Self::Plain => bytes.to_vec(),
            Self::Gzip => gzip(bytes),
            Self::Xz => xz_stored(bytes, 50).bytes,
            Self::Zstd => zstd_stored(bytes, 50).bytes,
        }
    }
}

pub(crate) const WAYS: [Way; 16] = [
    Way::File(Compression::Plain),
    Way::File(Compression::Gzip),
    Way::File(Compression::Xz),
    Way::File(Compression::Zstd),
    Way::Bytes,
    Way::Pieces(1, Compression::Plain),
    Way::Pieces(1, Compression::Gzip),
    Way::Pieces(1, Compression::Xz),
    Way::Pieces(1, Compression::Zstd),
    Way::Pieces(7, Compression::Plain),
    Way::Pieces(7, Compression::Gzip),
    Way::Pieces(7, Compression::Zstd),
    Way::Pieces(4096, Compression::Plain),
    Way::Pieces(4096, Compression::Gzip),
    Way::Pieces(4096, Compression::Xz),
    Way::Pieces(4096, Compression::Zstd),
];

impl Way {
    /// Opens a capture of these bytes.
    pub(crate) fn open(self, bytes: &[u8]) -> Result<CaptureReader, Error> {
        match self {
            Self::File(compression) => {
                let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
                file.write_all(&compression.of(bytes)).expect("a temporary file can be written");
                CaptureReader::open(file.path(), &Stop::default())
            }
            Self::Bytes => CaptureReader::from_bytes("bytes", Arc::new(bytes.to_vec())),
            Self::Pieces(size, compression) => open_pieces(&compression.of(bytes), size),
        }
    }
}

/// Opens a stream that yields at most `size` bytes at once.
pub(crate) fn open_pieces(bytes: &[u8], size: usize) -> Result<CaptureReader, Error> {
    CaptureReader::from_reader("stream", Pieces::new(bytes, size), &Stop::default())
}

/// Yields at most so many bytes at once, and notes the largest buffer it was offered.
pub(crate) struct Pieces {
    bytes: io::Cursor<Vec<u8>>,
    size: usize,
    pub(crate) offered: Arc<AtomicUsize>,
}

impl Pieces {
    pub(crate) fn new(bytes: &[u8], size: usize) -> Self {
        Self { bytes: io::Cursor::new(bytes.to_vec()), size, offered: Arc::default() }
    }
}

impl Read for Pieces {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.offered.fetch_max(buffer.len(), Ordering::Relaxed);
        let size = self.size.min(buffer.len());
        self.bytes.read(&mut buffer[..size])
    }
}

/// Compressed as gzip does it.
pub(crate) fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(bytes).expect("memory can be written");
    encoder.finish().expect("memory can be written")
}

/// A compressed file whose every byte's meaning is known.
#[derive(Clone, Default)]
pub(crate) struct Stored {
    pub(crate) bytes: Vec<u8>,
    /// How many bytes of the content the first 0, 1, 2, ... bytes hold.
    pub(crate) content: Vec<usize>,
    /// Where the headers of the pieces of content begin.
    pub(crate) pieces: Vec<usize>,
}

impl Stored {
    fn new() -> Self {
        Self { content: vec![0], ..Self::default() }
    }

    fn framing(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
        self.content.resize(self.bytes.len() + 1, self.content[self.content.len() - 1]);
    }

    fn content(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.bytes.push(*byte);
            self.content.push(self.content[self.content.len() - 1] + 1);
        }
    }
}

fn crc(bytes: &[u8]) -> [u8; 4] {
    let mut crc = Crc::new();
    crc.update(bytes);
    crc.sum().to_le_bytes()
}

/// gzip (RFC 1952) with stored blocks (RFC 1951 section 3.2.4) of up to `size` bytes.
pub(crate) fn gzip_stored(bytes: &[u8], size: usize) -> Stored {
    let mut file = Stored::new();
    file.framing(&[0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255]);
    for piece in bytes.chunks(size) {
        let len = piece.len() as u16;
        file.pieces.push(file.bytes.len());
        file.framing(&[&[0][..], &len.to_le_bytes(), &(!len).to_le_bytes()].concat());
        file.content(piece);
    }
    file.framing(&[1, 0, 0, 255, 255]);
    file.framing(&crc(bytes));
    file.framing(&(bytes.len() as u32).to_le_bytes());
    file
}

/// xz (the .xz file format, 1.2.1) with uncompressed LZMA2 chunks of up to `size` bytes in one block.
pub(crate) fn xz_stored(bytes: &[u8], size: usize) -> Stored {
    const FLAGS: [u8; 2] = [0, 1];
    let mut file = Stored::new();
    file.framing(&[0xfd, b'7', b'z', b'X', b'Z', 0, 0, 1]);
    file.framing(&crc(&FLAGS));
    // 12 bytes of header, no sizes; LZMA2 with a dictionary of 8 MiB.
    let block = [2, 0, 0x21, 1, 0x16, 0, 0, 0];
    file.framing(&block);
    file.framing(&crc(&block));
    let start = file.bytes.len();
    for (index, piece) in bytes.chunks(size).enumerate() {
        file.pieces.push(file.bytes.len());
        file.framing(&[if index == 0 { 1 } else { 2 }]);
        file.framing(&(piece.len() as u16 - 1).to_be_bytes());
        file.content(piece);
    }
    file.framing(&[0]);
    let unpadded = 12 + (file.bytes.len() - start) + 4;
    file.framing(&vec![0; (file.bytes.len() - start).next_multiple_of(4) - (file.bytes.len() - start)]);
    file.framing(&crc(bytes));
    let mut index = vec![0, 1];
    for mut number in [unpadded, bytes.len()] {
        while number >= 0x80 {
            index.push(number as u8 | 0x80);
            number >>= 7;
        }
        index.push(number as u8);
    }
    index.resize(index.len().next_multiple_of(4), 0);
    file.framing(&index);
    file.framing(&crc(&index));
    let footer = [&(index.len() as u32 / 4).to_le_bytes()[..], &FLAGS].concat();
    file.framing(&crc(&footer));
    file.framing(&footer);
    file.framing(b"YZ");
    file
}

/// Compressed as zstd does it, with a checksum.
pub(crate) fn zstd(bytes: &[u8], level: i32) -> Vec<u8> {
    let mut context = zstd_safe::CCtx::create();
    let mut file = vec![0; zstd_safe::compress_bound(bytes.len())];
    for parameter in
        [zstd_safe::CParameter::CompressionLevel(level), zstd_safe::CParameter::ChecksumFlag(true)]
    {
        context.set_parameter(parameter).expect("a parameter");
    }
    let len = context.compress2(&mut file[..], bytes).expect("memory can be written");
    file.truncate(len);
    file
}

/// A zstd frame (RFC 8878 section 3.1.1) with raw blocks of up to `size` bytes, without a checksum, whose window is that of this descriptor.
pub(crate) fn zstd_with_window(bytes: &[u8], size: usize, window: u8) -> Stored {
    let mut file = Stored::new();
    file.framing(&[0x28, 0xb5, 0x2f, 0xfd, 0, window]);
    for piece in bytes.chunks(size) {
        file.pieces.push(file.bytes.len());
        file.framing(&(piece.len() as u32 * 8).to_le_bytes()[..3]);
        file.content(piece);
    }
    file.framing(&[1, 0, 0]);
    file
}

/// The same with a window of 2 MiB.
pub(crate) fn zstd_stored(bytes: &[u8], size: usize) -> Stored {
    zstd_with_window(bytes, size, 11 << 3)
}

/// A zstd frame to be skipped, with so many bytes of content.
pub(crate) fn zstd_skippable(kind: u8, len: u32) -> Vec<u8> {
    [&[0x50 | kind, 0x2a, 0x4d, 0x18][..], &len.to_le_bytes(), &noise(len as usize)].concat()
}

/// Bytes without a pattern.
pub(crate) fn noise(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    std::iter::repeat_with(next).take(len).collect()
}
