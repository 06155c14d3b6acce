//! Sections of a pcap file that is in memory, whose frames several threads find at the same time.
//!
//! Where records begin in the middle of a file is a guess. So frames of a section count once it is known that the section before it ends where
//! this one begins.

use packetloom_packet::{Arena, Batch};

use super::pcap;

/// Sections of as many bytes that follow each other.
pub struct Sections {
    pub(super) arena: Arena,
    pub(super) decoder: pcap::Decoder,
    /// Where the first one begins, exactly.
    pub(super) begin: usize,
    pub(super) bytes: usize,
    /// About when packets came, in seconds.
    pub(super) seconds: u32,
}

/// A section whose frames were found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Section {
    pub(super) begin: usize,
    pub(super) end: usize,
    pub(super) frames: u64,
}

impl Sections {
    /// Puts the whole frames of the section with this number, from 0, into a batch, in place of what it has, as many as there is room for. None
    /// where nothing seems to begin there.
    pub fn find(&self, number: usize, batch: &mut Batch) -> Option<Section> {
        batch.reset(self.arena.clone());
        let bytes = (*self.arena).as_ref();
        let at = self.begin.checked_add(number.checked_mul(self.bytes)?)?;
        let limit = at.checked_add(self.bytes)?;
        let begin = match number {
            0 => at,
            _ => self.decoder.guess(bytes, at..limit.min(bytes.len()), self.seconds)?,
        };
        let (frames, len) = self.decoder.find(bytes, begin..limit, batch);
        Some(Section { begin, end: begin + len, frames })
    }
}

impl std::fmt::Debug for Sections {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sections")
            .field("begin", &self.begin)
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}
