//! Frames as both forms of a function get them: in a batch, and one by one.

use std::sync::Arc;

use packetloom_packet::{Batch, FrameRef, LinkType, Timestamp};

use super::frames::Packet;
use crate::oracle::OraclePacket;

/// A frame that was captured, all of it.
#[derive(Clone, Debug)]
pub(crate) struct Captured {
    pub(crate) nanos: u64,
    pub(crate) link: LinkType,
    pub(crate) bytes: Vec<u8>,
}

impl Captured {
    /// A packet in an Ethernet frame.
    pub(crate) fn new(nanos: u64, packet: &Packet) -> Self {
        Self { nanos, link: LinkType::ETHERNET, bytes: packet.in_frame(&packet.bytes()) }
    }

    /// What the oracle sees of it.
    pub(crate) fn for_oracle(&self) -> OraclePacket {
        OraclePacket::new(self.nanos, self.link, &self.bytes, self.bytes.len() as u32)
    }
}

/// Puts frames into a batch, in place of those that it held.
pub(crate) fn fill(batch: &mut Batch, frames: &[Captured]) {
    let arena: Vec<u8> = frames.iter().flat_map(|frame| frame.bytes.iter().copied()).collect();
    batch.reset(Arc::new(arena));
    let mut offset = 0;
    for frame in frames {
        let len = frame.bytes.len() as u32;
        let time = Timestamp::from_nanos(frame.nanos);
        batch.push(FrameRef { offset, time, len, wire_len: len, link: frame.link, port: 0 });
        offset += u64::from(len);
    }
}
