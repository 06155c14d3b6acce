//! Capture files: pcap and pcapng, from a mapped file or a stream, into batches; and out again: pcap, and pcapng for dropped frames.

mod findings;
mod pcap;
mod pcapng;
mod pcapng_writer;
mod reader;
mod scouts;
mod sections;
mod select;
mod series;
mod writer;

pub use findings::{Findings, Overlong, Undefined};
pub use pcapng_writer::PcapngWriter;
pub use reader::{CaptureReader, Truncation};
pub use sections::{Section, Sections};
pub use select::Selection;
pub use series::{CaptureSeries, FileReport};
pub use writer::{CaptureWriter, EncodedFrames};

pub use crate::map::Paging;

use packetloom_packet::FrameRef;

/// How finely a capture's timestamps are divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// Microseconds.
    Micros,
    /// Nanoseconds, or anything else that microseconds would not hold.
    Nanos,
}

/// What a decoder found at the start of the bytes it was shown.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// A frame, its offset counted from the start of the bytes, and the bytes its record takes.
    Frame(FrameRef, usize),
    /// Something else than a frame, of this many bytes, perhaps more than were shown.
    Skip(u64),
    /// The record is not whole yet.
    NeedMore,
    /// What stands here is no record: reading ends.
    Broken(findings::Fault),
}

/// A capture format and what its headers said so far.
#[derive(Debug)]
enum Decoder {
    Pcap(pcap::Decoder),
    Pcapng(pcapng::Decoder),
}

/// Bytes that suffice to recognise any format and to read a pcap file header.
const HEADER_LEN: usize = pcap::HEADER_LEN;

impl Decoder {
    /// Looks at what stands at the start of `bytes`, which are at this offset in the file.
    fn step(&mut self, bytes: &[u8], offset: u64) -> Step {
        match self {
            Self::Pcap(decoder) => decoder.step(bytes),
            Self::Pcapng(decoder) => decoder.step(bytes, offset),
        }
    }

    fn findings(&self) -> Findings {
        match self {
            Self::Pcap(decoder) => decoder.findings(),
            Self::Pcapng(decoder) => decoder.findings().clone(),
        }
    }

    fn resolution(&self) -> Resolution {
        match self {
            Self::Pcap(decoder) => decoder.resolution(),
            // Each interface has a resolution of its own, and may be described late.
            Self::Pcapng(_) => Resolution::Nanos,
        }
    }
}

/// Byte order of a file's own integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Little,
    Big,
}

impl Order {
    /// The 16-bit integer at `at`; 0 where the bytes end before it, which callers rule out by a length check.
    #[inline]
    fn u16(self, bytes: &[u8], at: usize) -> u16 {
        let Some(&raw) = bytes.get(at..).and_then(|rest| rest.first_chunk()) else { return 0 };
        match self {
            Self::Little => u16::from_le_bytes(raw),
            Self::Big => u16::from_be_bytes(raw),
        }
    }

    /// The 32-bit integer at `at`, as [`Order::u16`].
    #[inline]
    fn u32(self, bytes: &[u8], at: usize) -> u32 {
        let Some(&raw) = bytes.get(at..).and_then(|rest| rest.first_chunk()) else { return 0 };
        match self {
            Self::Little => u32::from_le_bytes(raw),
            Self::Big => u32::from_be_bytes(raw),
        }
    }
}
