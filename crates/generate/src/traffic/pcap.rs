//! Writes frames into a capture file.

use std::io::{self, Write};

use super::Frame;

/// A classic capture file with nanoseconds, little-endian (draft-ietf-opsawg-pcap).
const MAGIC: u32 = 0xa1b2_3c4d;
/// LINKTYPE_ETHERNET.
const ETHERNET: u32 = 1;
/// Bytes gathered before the output sees them.
const BLOCK: usize = 256 * 1024;

/// A capture file on its way to `writer`.
pub(super) struct PcapWriter<W> {
    writer: W,
    block: Vec<u8>,
}

impl<W: Write> PcapWriter<W> {
    /// Begins a file whose records hold up to `snap` bytes.
    pub(super) fn new(writer: W, snap: u32) -> Self {
        let mut block = Vec::with_capacity(BLOCK + 4096);
        block.extend_from_slice(&MAGIC.to_le_bytes());
        block.extend_from_slice(&2u16.to_le_bytes());
        block.extend_from_slice(&4u16.to_le_bytes());
        block.extend_from_slice(&[0; 8]);
        block.extend_from_slice(&snap.to_le_bytes());
        block.extend_from_slice(&ETHERNET.to_le_bytes());
        Self { writer, block }
    }

    /// Appends a record. The frame's time must lie before the year 2106.
    #[inline]
    pub(super) fn write(&mut self, frame: &Frame<'_>) -> io::Result<()> {
        let mut header = [0; 16];
        let seconds = (frame.timestamp_ns / 1_000_000_000) as u32;
        let nanoseconds = (frame.timestamp_ns % 1_000_000_000) as u32;
        header[..4].copy_from_slice(&seconds.to_le_bytes());
        header[4..8].copy_from_slice(&nanoseconds.to_le_bytes());
        header[8..12].copy_from_slice(&(frame.bytes.len() as u32).to_le_bytes());
        header[12..].copy_from_slice(&frame.wire_len.to_le_bytes());
        self.block.extend_from_slice(&header);
        self.block.extend_from_slice(frame.bytes);
        if self.block.len() >= BLOCK {
            self.writer.write_all(&self.block)?;
            self.block.clear();
        }
        Ok(())
    }

    /// Writes what is left.
    pub(super) fn finish(mut self) -> io::Result<()> {
        self.writer.write_all(&self.block)?;
        self.writer.flush()
    }
}
