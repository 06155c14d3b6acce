//! Writes pcap files.

use std::mem;
use std::path::Path;

use packetloom_packet::{Batch, FrameRef, LinkType};

use super::{Resolution, pcap};
use crate::Error;
use crate::output::Output;

/// The snapshot length written into file headers: the largest that capture programs accept.
const SNAP: u32 = 262_144;

/// As much of a frame as is written.
fn within_snap(bytes: &[u8]) -> &[u8] {
    &bytes[..bytes.len().min(SNAP as usize)]
}

/// A pcap file being written: little-endian, one link type.
#[derive(Debug)]
pub struct CaptureWriter {
    output: Output,
    link: Option<LinkType>,
    resolution: Resolution,
    /// A frame that is rewritten; kept for the next one.
    rewritten: Vec<u8>,
}

impl CaptureWriter {
    /// Makes the file; its header is written with the first frame, which decides the link type.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] where the file cannot be made.
    pub fn create(path: &Path, resolution: Resolution) -> Result<Self, Error> {
        Ok(Self { output: Output::create(path)?, link: None, resolution, rewritten: Vec::new() })
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
        self.output.write(&header)
    }

    /// Appends a frame with its captured bytes, of which more than 262,144 are cut off as by a snapshot length. Seconds past the year 2106, which the format cannot hold, are
    /// written as its last second.
    ///
    /// # Errors
    ///
    /// [`Error::MixedLinkTypes`], [`Error::NoLinkType`] for a frame of [`LinkType::NONE`], or [`Error::Io`].
    pub fn write(&mut self, frame: &FrameRef, bytes: &[u8]) -> Result<(), Error> {
        if frame.link == LinkType::NONE {
            return Err(Error::NoLinkType { path: self.output.name().into() });
        }
        match self.link {
            None => self.header(frame.link)?,
            Some(link) if link != frame.link => {
                return Err(Error::MixedLinkTypes {
                    path: self.output.name().into(),
                    first: link.0,
                    other: frame.link.0,
                });
            }
            Some(_) => {}
        }
        let bytes = within_snap(bytes);
        let nanos = frame.time.as_nanos();
        let seconds = u32::try_from(nanos / 1_000_000_000).unwrap_or(u32::MAX);
        let fraction = (nanos % 1_000_000_000) as u32;
        let fraction = match self.resolution {
            Resolution::Micros => fraction / 1_000,
            Resolution::Nanos => fraction,
        };
        let mut record = [0; 16];
        record[0..4].copy_from_slice(&seconds.to_le_bytes());
        record[4..8].copy_from_slice(&fraction.to_le_bytes());
        record[8..12].copy_from_slice(&(bytes.len() as u32).to_le_bytes());
        record[12..16].copy_from_slice(&frame.wire_len.to_le_bytes());
        self.output.write(&record)?;
        self.output.write(bytes)
    }

    /// Appends the frames of a batch whose verdict is to pass, with their rewrites.
    ///
    /// # Errors
    ///
    /// As [`CaptureWriter::write`].
    pub fn write_passed(&mut self, batch: &Batch) -> Result<(), Error> {
        let frames = batch.verdicts().iter().zip(batch.frames()).enumerate();
        for (index, (_, frame)) in frames.filter(|(_, (verdict, _))| verdict.is_pass()) {
            if !batch.is_rewritten(index) {
                self.write(frame, batch.bytes(index))?;
                continue;
            }
            let mut bytes = mem::take(&mut self.rewritten);
            bytes.clear();
            bytes.extend_from_slice(within_snap(batch.bytes(index)));
            batch.apply_rewrites(index, &mut bytes);
            let result = self.write(frame, &bytes);
            self.rewritten = bytes;
            result?;
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
