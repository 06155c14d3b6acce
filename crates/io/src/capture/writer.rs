//! Writes pcap files.

use std::mem;
use std::path::Path;

use packetloom_packet::{Batch, FrameRef, LinkType, Timestamp};

use super::{Resolution, pcap};
use crate::Error;
use crate::output::Output;
use crate::port::{complete_checksum, restart_partial};

/// The snapshot length written into file headers: the largest that capture programs accept.
const SNAP: u32 = 262_144;

/// Bytes of a record's header.
const HEADER: usize = 16;

/// As much of a frame as is written.
pub(super) fn within_snap(bytes: &[u8]) -> &[u8] {
    &bytes[..bytes.len().min(SNAP as usize)]
}

/// Frames as the records of a pcap file, put together apart from the file: by several threads, say, of which one appends them.
#[derive(Debug, Default)]
pub struct EncodedFrames {
    records: Vec<u8>,
    /// How many they are.
    count: u64,
    /// Frames that are left out.
    left_out: u64,
    /// That of all of them.
    link: Option<LinkType>,
    /// That of the first frame which has another one, or none: it and what comes after are left out.
    other: Option<LinkType>,
}

impl EncodedFrames {
    /// Takes the frames of a batch whose verdict is to pass, with their rewrites, in place of those before.
    pub fn encode_passed(&mut self, batch: &Batch, resolution: Resolution) {
        self.clear();
        // At most, so that the buffer grows once.
        let most = |frame: &FrameRef| HEADER + (frame.len as usize).min(SNAP as usize);
        self.records.reserve(batch.frames().iter().map(most).sum());
        let frames = batch.verdicts().iter().zip(batch.frames()).enumerate();
        let has_changes = batch.has_rewrites() || batch.has_offloads();
        let wall_offset = batch.wall_offset();
        for (index, (_, frame)) in frames.filter(|(_, (verdict, _))| verdict.is_pass()) {
            let time = frame.time.shifted(wall_offset);
            let is_encoded = self.push((frame, time), batch.bytes(index), resolution, |bytes| {
                if has_changes {
                    finish(batch, index, bytes);
                }
            });
            self.left_out += u64::from(!is_encoded);
        }
    }

    /// Forgets the frames; allocations are kept.
    pub fn clear(&mut self) {
        self.records.clear();
        (self.count, self.left_out) = (0, 0);
        self.link = None;
        self.other = None;
    }

    /// Appends a frame whose bytes are changed then; `false` where its link type is not that of the others.
    fn push(
        &mut self,
        (frame, time): (&FrameRef, Timestamp),
        bytes: &[u8],
        resolution: Resolution,
        change: impl FnOnce(&mut [u8]),
    ) -> bool {
        if self.other.is_some() {
            return false;
        }
        if frame.link == LinkType::NONE || *self.link.get_or_insert(frame.link) != frame.link {
            self.other = Some(frame.link);
            return false;
        }
        let bytes = within_snap(bytes);
        let nanos = time.as_nanos();
        let seconds = u32::try_from(nanos / 1_000_000_000).unwrap_or(u32::MAX);
        let fraction = (nanos % 1_000_000_000) as u32;
        let fraction = match resolution {
            Resolution::Micros => fraction / 1_000,
            Resolution::Nanos => fraction,
        };
        let mut header = [0; HEADER];
        header[0..4].copy_from_slice(&seconds.to_le_bytes());
        header[4..8].copy_from_slice(&fraction.to_le_bytes());
        header[8..12].copy_from_slice(&(bytes.len() as u32).to_le_bytes());
        header[12..16].copy_from_slice(&frame.wire_len.to_le_bytes());
        self.records.extend_from_slice(&header);
        let at = self.records.len();
        self.records.extend_from_slice(bytes);
        change(&mut self.records[at..]);
        self.count += 1;
        true
    }
}

/// Writes into a copy of a frame what is to be rewritten, and what its sender has left to be done.
pub(super) fn finish(batch: &Batch, index: usize, bytes: &mut [u8]) {
    let is_rewritten = batch.is_rewritten(index);
    if is_rewritten {
        batch.apply_rewrites(index, bytes);
    }
    let mut offload = batch.offload(index);
    if offload.needs_checksum() && bytes.len() == batch.bytes(index).len() {
        if is_rewritten {
            restart_partial(bytes, &mut offload);
        }
        // One that stands beyond the frame cannot be finished by anybody.
        let _ = complete_checksum(bytes, &mut offload);
    }
}

/// A pcap file being written: little-endian, one link type.
#[derive(Debug)]
pub struct CaptureWriter {
    output: Output,
    link: Option<LinkType>,
    resolution: Resolution,
    /// Frames on their way; kept for the next ones.
    frames: EncodedFrames,
}

impl CaptureWriter {
    /// Makes the file; its header is written with the first frame, which decides the link type.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] where the file cannot be made.
    pub fn create(path: &Path, resolution: Resolution) -> Result<Self, Error> {
        Ok(Self::over(Output::create(path)?, resolution))
    }

    /// Writes to an output, which may be several files: frames go to them by their times.
    pub fn over(output: Output, resolution: Resolution) -> Self {
        Self { output, link: None, resolution, frames: EncodedFrames::default() }
    }

    /// As [`Output::appear`].
    ///
    /// # Errors
    ///
    /// [`Error::Io`]; the file then does not appear.
    pub fn appear(&mut self) -> Result<(), Error> {
        self.output.appear()
    }

    /// As [`Output::detach`]. Frames of another link type than the first one's are then left out, as all that come after them.
    ///
    /// # Errors
    ///
    /// As [`Output::detach`].
    pub fn detach(&mut self) -> Result<(), Error> {
        self.output.detach()
    }

    /// How finely the file's timestamps are divided.
    pub fn resolution(&self) -> Resolution {
        self.resolution
    }

    fn header(&mut self, link: LinkType) -> Result<(), Error> {
        self.link = Some(link);
        let magic = match self.resolution {
            Resolution::Micros => pcap::MAGIC_MICROS,
            Resolution::Nanos => pcap::MAGIC_NANOS,
        };
        let mut header = [0; pcap::HEADER_LEN];
        header[0..4].copy_from_slice(&magic.to_le_bytes());
        header[4..6].copy_from_slice(&2u16.to_le_bytes());
        header[6..8].copy_from_slice(&4u16.to_le_bytes());
        header[16..20].copy_from_slice(&SNAP.to_le_bytes());
        header[20..24].copy_from_slice(&u32::from(link.0).to_le_bytes());
        self.output.write_header(&header)
    }

    /// Appends a frame with its captured bytes, of which more than 262,144 are cut off as by a snapshot length. Seconds past the year 2106, which the format cannot hold, are
    /// written as its last second.
    ///
    /// # Errors
    ///
    /// [`Error::MixedLinkTypes`], [`Error::NoLinkType`] for a frame of [`LinkType::NONE`], or [`Error::Io`].
    pub fn write(&mut self, frame: &FrameRef, bytes: &[u8]) -> Result<(), Error> {
        let mut frames = mem::take(&mut self.frames);
        frames.clear();
        frames.push((frame, frame.time), bytes, self.resolution, |_| {});
        let result = self.append(&frames);
        self.frames = frames;
        result
    }

    /// Appends the frames of a batch whose verdict is to pass, with their rewrites.
    ///
    /// # Errors
    ///
    /// As [`CaptureWriter::write`].
    pub fn write_passed(&mut self, batch: &Batch) -> Result<(), Error> {
        let mut frames = mem::take(&mut self.frames);
        frames.encode_passed(batch, self.resolution);
        let result = self.append(&frames);
        self.frames = frames;
        result
    }

    /// Appends frames that were encoded with this file's [resolution](Self::resolution).
    ///
    /// # Errors
    ///
    /// As [`CaptureWriter::write`].
    pub fn append(&mut self, frames: &EncodedFrames) -> Result<(), Error> {
        match self.append_like(frames) {
            Err((error, left_out)) if self.output.is_detached() => {
                self.output.give_up(&error, left_out);
                Ok(())
            }
            result => result.map_err(|(error, _)| error),
        }
    }

    /// Appends frames as long as they have the file's link type; where they have not, also says how many these are.
    fn append_like(&mut self, frames: &EncodedFrames) -> Result<(), (Error, u64)> {
        let path = || self.output.name().into();
        let wrong = |first: LinkType, other: LinkType| match other {
            LinkType::NONE => Error::NoLinkType { path: path() },
            other => Error::MixedLinkTypes { path: path(), first: first.0, other: other.0 },
        };
        if let (Some(first), Some(link)) = (self.link, frames.link)
            && first != link
        {
            return Err((wrong(first, link), frames.count + frames.left_out));
        }
        let failed = frames.other.map(|other| wrong(frames.link.unwrap_or(other), other));
        if let Some(link) = frames.link {
            let header = if self.link.is_none() { self.header(link) } else { Ok(()) };
            let written = header.and_then(|()| match self.output.is_rotating() {
                true => self.write_records(&frames.records),
                false => self.output.write_items(&frames.records, frames.count),
            });
            written.map_err(|error| (error, 0))?;
        }
        failed.map_or(Ok(()), |error| Err((error, frames.left_out)))
    }

    /// Writes records one by one.
    fn write_records(&mut self, mut records: &[u8]) -> Result<(), Error> {
        while let Some((header, _)) = records.split_first_chunk::<HEADER>() {
            let field =
                |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
            let (record, others) = records.split_at(HEADER + field(8) as usize);
            let fraction = match self.resolution {
                Resolution::Micros => u64::from(field(4)) * 1_000,
                Resolution::Nanos => u64::from(field(4)),
            };
            self.output.write_record(u64::from(field(0)) * 1_000_000_000 + fraction, record)?;
            records = others;
        }
        Ok(())
    }

    /// Hands everything so far to the system, for readers that follow the output.
    ///
    /// # Errors
    ///
    /// [`Error::Io`].
    pub fn flush(&mut self) -> Result<(), Error> {
        self.output.flush()
    }

    /// Makes the file whole but for its name. One without frames says Ethernet.
    ///
    /// # Errors
    ///
    /// [`Error::Io`].
    pub fn complete(&mut self) -> Result<(), Error> {
        if self.link.is_none() {
            self.header(LinkType::ETHERNET)?;
        }
        self.output.flush()
    }

    /// Completes the file and gives it its name.
    ///
    /// # Errors
    ///
    /// [`Error::Io`]; the file then does not appear.
    pub fn finish(mut self) -> Result<(), Error> {
        self.complete()?;
        self.output.finish()
    }
}

impl AsRef<Output> for CaptureWriter {
    fn as_ref(&self) -> &Output {
        &self.output
    }
}

impl AsMut<Output> for CaptureWriter {
    fn as_mut(&mut self) -> &mut Output {
        &mut self.output
    }
}
