//! Classic pcap (draft-ietf-opsawg-pcap), with the nanosecond magic and Kuznetzov's longer record header.

use std::ops::Range;

use packetloom_packet::{Batch, FrameRef, LinkType, Timestamp, prefetch_at};

use super::findings::{Fault, Findings};
use super::scouts::Scouts;
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

#[derive(Clone, Debug)]
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
    /// Ahead of who reads one frame after the other.
    scouts: Scouts,
}

/// Bytes from a record to those that are asked for: what processors ask for by themselves ends with each page.
const AHEAD: usize = 2048;

/// Records in a row that have to look like such, where it is guessed where one begins; and seconds that their times may be away from
/// those of others of the file, a day.
const IN_A_ROW: usize = 6;
const NEAR: u32 = 86_400;

/// Frames that were taken at once, and the bytes of their records.
struct Taken {
    frames: u64,
    bytes: usize,
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
            scouts: Scouts::default(),
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

    /// Appends the frames from `position` on that are whole to a batch, as many as it has room for; returns the bytes of their records.
    /// What comes next then is no whole frame, or has no room: see [`Decoder::step`].
    pub(super) fn frames(&mut self, bytes: &[u8], position: usize, batch: &mut Batch) -> usize {
        let mut scouts = self.scouts;
        let range = position..usize::MAX;
        let Taken { frames, bytes: len } = if scouts.are_out() {
            let seconds = self.seconds(bytes, position).unwrap_or(0);
            let next = |at| self.next(bytes, at);
            let guess = |range| self.guess(bytes, range, seconds);
            let beside = |at| scouts.go_on(bytes, at, next, guess);
            self.take_all(bytes, range, batch, beside)
        } else {
            // A loop without them.
            self.take_all(bytes, range, batch, |_| {})
        };
        scouts.observe(frames, len);
        self.scouts = scouts;
        self.count(frames);
        len
    }

    /// Takes note of frames that were [found](Self::find).
    pub(super) fn count(&mut self, frames: u64) {
        if !self.is_supported {
            self.unsupported += frames;
        }
    }

    /// Appends the whole frames whose records begin in a range to a batch, as many as it has room for; returns how many, and the bytes of
    /// their records.
    pub(super) fn find(&self, bytes: &[u8], range: Range<usize>, batch: &mut Batch) -> (u64, usize) {
        let taken = self.take_all(bytes, range, batch, |_| {});
        (taken.frames, taken.bytes)
    }

    fn take_all(
        &self,
        bytes: &[u8],
        range: Range<usize>,
        batch: &mut Batch,
        beside: impl FnMut(usize),
    ) -> Taken {
        match self.order {
            Order::Little => self.take::<true>(bytes, range, batch, beside),
            Order::Big => self.take::<false>(bytes, range, batch, beside),
        }
    }

    /// Where the record behind the one at a place begins.
    #[inline]
    fn next(&self, bytes: &[u8], at: usize) -> Option<usize> {
        let captured = self.order.u32(bytes.get(at..)?.first_chunk::<16>()?, 8);
        (captured <= MAX_CAPTURED).then(|| at + self.record_header + captured as usize)
    }

    /// A place in a range at which records seem to begin: some in a row have lengths and times such as records have, in seconds not far from
    /// these. There may be none where it seems so, and one that seems to be none.
    pub(super) fn guess(&self, bytes: &[u8], range: Range<usize>, seconds: u32) -> Option<usize> {
        let ticks = 1_000_000_000 / self.nanos_per_tick;
        let next = |at: usize| {
            let header: &[u8; 16] = bytes.get(at..)?.first_chunk()?;
            let [second, tick, captured, len] = [0, 4, 8, 12].map(|at| self.order.u32(header, at));
            let is_near = second.abs_diff(seconds) <= NEAR && u64::from(tick) < ticks;
            let is_frame = (1..=MAX_CAPTURED.min(len)).contains(&captured);
            (is_near && is_frame).then(|| at + self.record_header + captured as usize)
        };
        let mut places = range;
        places.find(|&at| {
            let mut chain = 0..IN_A_ROW;
            let end = chain.try_fold(at, |at, _| if at < bytes.len() { next(at) } else { Some(at) });
            end.is_some_and(|end| end <= bytes.len())
        })
    }

    /// The time of the record at a place, in seconds.
    pub(super) fn seconds(&self, bytes: &[u8], at: usize) -> Option<u32> {
        let header: &[u8; 16] = bytes.get(at..)?.first_chunk()?;
        Some(self.order.u32(header, 0))
    }

    /// Also does something `beside` with each frame, given where the next record begins.
    fn take<const LITTLE: bool>(
        &self,
        bytes: &[u8],
        range: Range<usize>,
        batch: &mut Batch,
        mut beside: impl FnMut(usize),
    ) -> Taken {
        let Self { nanos_per_tick, record_header, link, .. } = *self;
        let order = if LITTLE { Order::Little } else { Order::Big };
        let before = batch.len();
        let room = batch.capacity().saturating_sub(before);
        let mut at = range.start;
        let frames = std::iter::from_fn(|| {
            if at >= range.end {
                return None;
            }
            let header: &[u8; 16] = bytes.get(at..)?.first_chunk()?;
            let field = |at| order.u32(header, at);
            let captured = field(8);
            let begin = at + record_header;
            let end = begin + captured as usize;
            if captured > MAX_CAPTURED || end > bytes.len() {
                return None;
            }
            at = end;
            prefetch_at(bytes, begin + AHEAD);
            beside(at);
            Some(FrameRef {
                offset: begin as u64,
                time: Timestamp::from_nanos(
                    u64::from(field(0)) * 1_000_000_000 + u64::from(field(4)) * nanos_per_tick,
                ),
                len: captured,
                wire_len: field(12),
                link,
                port: 0,
            })
        });
        batch.extend(frames.take(room));
        Taken { frames: (batch.len() - before) as u64, bytes: at - range.start }
    }

    /// Says what stands at the start of bytes that do not begin with a whole frame.
    pub(super) fn step(&self, bytes: &[u8]) -> Step {
        match bytes.first_chunk::<16>().map(|header| self.order.u32(header, 8)) {
            Some(captured) if captured > MAX_CAPTURED => {
                Step::Broken(Fault::Captured(captured, MAX_CAPTURED))
            }
            _ => Step::NeedMore,
        }
    }
}
