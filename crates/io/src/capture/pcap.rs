//! Classic pcap (draft-ietf-opsawg-pcap), with the nanosecond magic and Kuznetzov's longer record header.

use packetloom_packet::{FrameRef, LinkType, Timestamp};

use super::findings::{Fault, Findings};
use super::{Order, Resolution, Step};

/// Bytes of the file header.
pub(super) const HEADER_LEN: usize = 24;

/// Microseconds.
pub(super) const MAGIC_MICROS: u32 = 0xa1b2_c3d4;
/// Nanoseconds.
pub(super) const MAGIC_NANOS: u32 = 0xa1b2_3c4d;
/// Microseconds, records with 8 more bytes of header (written by patched libpcaps of the 1990s).
const MAGIC_KUZNETZOV: u32 = 0xa1b2_cd34;

/// A captured length beyond this is taken for garbage, four times what capture programs allow.
const MAX_CAPTURED: u32 = 4 * 262_144;

#[derive(Debug)]
pub(super) struct Decoder {
    order: Order,
    nanos_per_tick: u64,
    record_header: usize,
    link: LinkType,
    /// The link type as the file header has it.
    number: u32,
    /// Whether frames of it can be parsed; if not, how many there were.
    is_supported: bool,
    unsupported: u64,
}

impl Decoder {
    /// The byte order, if these are the first bytes of a pcap file.
    pub(super) fn recognise(bytes: &[u8]) -> Option<Order> {
        let magic: [u8; 4] = *bytes.first_chunk()?;
        let known = |magic| matches!(magic, MAGIC_MICROS | MAGIC_NANOS | MAGIC_KUZNETZOV);
        if known(u32::from_le_bytes(magic)) {
            Some(Order::Little)
        } else if known(u32::from_be_bytes(magic)) {
            Some(Order::Big)
        } else {
            None
        }
    }

    /// Reads a whole file header.
    pub(super) fn new(order: Order, header: &[u8; HEADER_LEN]) -> Self {
        let magic = order.u32(header, 0);
        // The upper six bits of the link type hold the length of a frame check sequence, a reserved bit, and whether
        // that length is known.
        let number = order.u32(header, 20) & 0x03ff_ffff;
        let link = LinkType::of_number(number);
        Self {
            order,
            nanos_per_tick: if magic == MAGIC_NANOS { 1 } else { 1_000 },
            record_header: if magic == MAGIC_KUZNETZOV { 24 } else { 16 },
            link,
            number,
            is_supported: link.is_supported(),
            unsupported: 0,
        }
    }

    pub(super) fn resolution(&self) -> Resolution {
        if self.nanos_per_tick == 1 { Resolution::Nanos } else { Resolution::Micros }
    }

    pub(super) fn findings(&self) -> Findings {
        let mut findings = Findings::default();
        if self.unsupported > 0 {
            findings.add_unsupported(self.number, self.unsupported);
        }
        findings
    }

    #[inline]
    pub(super) fn step(&mut self, bytes: &[u8]) -> Step {
        let Some(header) = bytes.first_chunk::<16>().filter(|_| bytes.len() >= self.record_header) else {
            return Step::NeedMore;
        };
        let field = |at| self.order.u32(header, at);
        let captured = field(8);
        if captured > MAX_CAPTURED {
            return Step::Broken(Fault::Captured(captured, MAX_CAPTURED));
        }
        let len = self.record_header + captured as usize;
        if bytes.len() < len {
            return Step::NeedMore;
        }
        if !self.is_supported {
            self.unsupported += 1;
        }
        let time = u64::from(field(0)) * 1_000_000_000 + u64::from(field(4)) * self.nanos_per_tick;
        let frame = FrameRef {
            offset: self.record_header as u64,
            time: Timestamp::from_nanos(time),
            len: captured,
            wire_len: field(12),
            link: self.link,
            port: 0,
        };
        Step::Frame(frame, len)
    }
}
