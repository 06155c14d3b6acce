//! Synthetic traffic: a known number of packets in a known number of flows, shaped like a link's.
//!
//! What is alike: heavy-tailed flow sizes (Pareto, exponent 1); TCP connections with handshake
//! and teardown, DNS, NTP, QUIC-like and media datagrams, pings and scans; both directions of
//! most flows; bursts, gaps and a few long silences; packet sizes with their three humps, about
//! 600 bytes on average; clients in networks and servers of very unequal popularity; IPv6 and
//! VLAN tags. All checksums are right over the whole packet, also where only its beginning is
//! captured. What is not: payloads say nothing, nothing is lost, and nobody answers to load.
//!
//! ```
//! use packetloom_generate::{Traffic, TrafficOptions};
//!
//! let options = TrafficOptions { packets: 1000, flows: 80, seed: 1, ..Default::default() };
//! let mut traffic = Traffic::new(&options)?;
//! let mut bytes = 0;
//! while let Some(frame) = traffic.next_frame() {
//!     bytes += u64::from(frame.wire_len);
//! }
//! assert_eq!(traffic.produced(), 1000);
//! # Ok::<(), packetloom_generate::GenerateError>(())
//! ```

mod calendar;
mod checksum;
mod endpoints;
mod flow;
mod frames;
mod pace;
mod payload;
mod pcap;
mod plan;
pub mod profile;
mod session;

use std::io::Write;
use std::time::Duration;

use self::calendar::Calendar;
use self::endpoints::Endpoints;
use self::flow::Flow;
use self::frames::FrameWriter;
use self::pace::Pace;
use self::pcap::PcapWriter;
use crate::error::GenerateError;
use crate::random::Random;

/// The most packets that can be asked for.
pub const MAX_PACKETS: u64 = u32::MAX as u64;

/// The most flows that can be asked for: what the address plan holds with some room to spare.
pub const MAX_FLOWS: u64 = 1 << 28;

/// The snap length that a capture file states when frames are not cut (tcpdump's).
const WHOLE: u32 = 262_144;

/// Packets between two reports of progress.
const REPORT_EVERY: u64 = 1 << 16;

/// What traffic to make. The same options give the same bytes on every machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrafficOptions {
    /// Packets, exactly; at least as many as flows. Default 1,000,000.
    pub packets: u64,
    /// Bidirectional flows, exactly: distinct keys of IP version, protocol and the unordered pair
    /// of (address, port), where ICMP has no ports. Default 75,000.
    pub flows: u64,
    /// Chooses one of the many captures with these properties. Default 1.
    pub seed: u64,
    /// Bytes captured of each frame at most; 0 captures whole frames. Default 0.
    pub snap: u32,
    /// The time that the capture covers. Default 60 s.
    pub duration: Duration,
    /// When it begins, since 1970-01-01T00:00:00Z. Default 2026-01-01T00:00:00Z.
    pub start: Duration,
    /// How many flows in a hundred are IPv6. Default 25.
    pub ipv6_share: u32,
    /// How many flows in a hundred are in a VLAN; a quarter of those are in two (IEEE 802.1ad).
    /// Default 20.
    pub vlan_share: u32,
}

impl Default for TrafficOptions {
    fn default() -> Self {
        Self {
            packets: 1_000_000,
            flows: 75_000,
            seed: 1,
            snap: 0,
            duration: Duration::from_secs(60),
            start: Duration::from_secs(1_767_225_600),
            ipv6_share: 25,
            vlan_share: 20,
        }
    }
}

impl TrafficOptions {
    /// Checks the options; returns start and duration in nanoseconds.
    fn check(&self) -> Result<(u64, u64), GenerateError> {
        let (packets, flows) = (self.packets, self.flows);
        if flows == 0 {
            return Err(GenerateError::NoFlows);
        }
        if flows > MAX_FLOWS {
            return Err(GenerateError::TooManyFlows { flows, limit: MAX_FLOWS });
        }
        if packets < flows {
            return Err(GenerateError::TooFewPackets { packets, flows });
        }
        if packets > MAX_PACKETS {
            return Err(GenerateError::TooManyPackets { packets, limit: MAX_PACKETS });
        }
        for (what, value) in [("ipv6_share", self.ipv6_share), ("vlan_share", self.vlan_share)] {
            if value > 100 {
                return Err(GenerateError::BadShare { what, value });
            }
        }
        let end = self.start.checked_add(self.duration).ok_or(GenerateError::TimeOutOfRange)?;
        if end.as_secs() > u64::from(u32::MAX) {
            return Err(GenerateError::TimeOutOfRange);
        }
        // Below 2³² s, so that both fit.
        Ok((self.start.as_nanos() as u64, self.duration.as_nanos() as u64))
    }
}

/// A generated frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// Nanoseconds since 1970-01-01T00:00:00Z; never less than the frame's before.
    pub timestamp_ns: u64,
    /// Length on the wire in bytes, without the frame check sequence; 60 to 1,522, or as a profile says, to 65,589.
    pub wire_len: u32,
    /// The captured beginning of the Ethernet frame, at most the snap length.
    pub bytes: &'a [u8],
}

/// Makes frames one after the other.
///
/// It holds 56 bytes a flow and up to 8 more while it is set up or running, whatever the number
/// of packets.
pub struct Traffic {
    flows: Vec<Flow>,
    calendar: Calendar,
    endpoints: Endpoints,
    frames: FrameWriter,
    pace: Pace,
    random: Random,
    start: u64,
    snap: usize,
    packets: u64,
    produced: u64,
}

impl Traffic {
    /// Plans the traffic.
    ///
    /// # Errors
    ///
    /// No flows, fewer packets than flows, more than [`MAX_PACKETS`] or [`MAX_FLOWS`], a share
    /// above 100, or an end after 2106, past the last second of a capture file.
    pub fn new(options: &TrafficOptions) -> Result<Self, GenerateError> {
        let (start, duration) = options.check()?;
        let endpoints = Endpoints::new(options.flows, &mut Random::new(options.seed, 0));
        let pace = Pace::new(duration);
        let mut flows = plan::plan(options, &endpoints, &pace, &mut Random::new(options.seed, 1));
        let calendar = Calendar::new(&mut flows, options.packets, duration);
        Ok(Self {
            flows,
            calendar,
            endpoints,
            frames: FrameWriter::new(),
            pace,
            random: Random::new(options.seed, 2),
            start,
            snap: if options.snap == 0 { usize::MAX } else { options.snap as usize },
            packets: options.packets,
            produced: 0,
        })
    }

    /// The next frame, or `None` after the last. It is valid until the next call.
    #[inline]
    pub fn next_frame(&mut self) -> Option<Frame<'_>> {
        let first = self.calendar.first(&self.flows)?;
        let flow = &mut self.flows[first as usize];
        let due = flow.next;
        let segment = session::next(flow, &mut self.random);
        flow.left -= 1;
        if flow.left == 0 {
            self.calendar.remove_first();
        } else {
            self.pace.advance(flow, &mut self.random);
            self.calendar.delay_first(flow);
        }
        self.produced += 1;
        let milliseconds = (due / 1_000_000) as u32;
        let headers = flow.headers(segment.from_client, &self.endpoints);
        let (wire_len, bytes) = self.frames.write(&headers, &segment, milliseconds, self.snap);
        Some(Frame { timestamp_ns: self.start + due, wire_len: wire_len as u32, bytes })
    }

    /// Frames made so far.
    pub fn produced(&self) -> u64 {
        self.produced
    }

    /// Frames still to come.
    pub fn remaining(&self) -> u64 {
        self.packets - self.produced
    }
}

/// What [`write_pcap`] wrote.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrafficSummary {
    /// Packets, as asked for.
    pub packets: u64,
    /// Flows, as asked for.
    pub flows: u64,
    /// Bytes of all frames on the wire.
    pub wire_bytes: u64,
    /// Bytes of all frames as captured.
    pub captured_bytes: u64,
    /// Bytes of the file.
    pub file_bytes: u64,
}

/// Writes a capture file: classic pcap, nanoseconds, little-endian, Ethernet.
///
/// The output is written in blocks of 256 KiB and flushed at the end, so it need not be buffered.
/// `progress` is called now and then, and at the end, with the number of packets made so far.
///
/// # Errors
///
/// As [`Traffic::new`], before anything is written; and the output's errors.
pub fn write_pcap<W: Write>(
    options: &TrafficOptions,
    writer: W,
    progress: impl FnMut(u64),
) -> Result<TrafficSummary, GenerateError> {
    let mut traffic = Traffic::new(options)?;
    let mut file = Capture::new(writer, options.snap, progress);
    while let Some(frame) = traffic.next_frame() {
        file.write(&frame)?;
    }
    file.finish(options.flows)
}

/// A capture file that is being written, and what is in it so far.
struct Capture<W, P> {
    file: PcapWriter<W>,
    summary: TrafficSummary,
    progress: P,
}

impl<W: Write, P: FnMut(u64)> Capture<W, P> {
    /// `snap` as in [`TrafficOptions`].
    fn new(writer: W, snap: u32, progress: P) -> Self {
        let file = PcapWriter::new(writer, if snap == 0 { WHOLE } else { snap });
        Self { file, summary: TrafficSummary::default(), progress }
    }

    fn write(&mut self, frame: &Frame<'_>) -> Result<(), GenerateError> {
        self.file.write(frame)?;
        let summary = &mut self.summary;
        summary.packets += 1;
        summary.wire_bytes += u64::from(frame.wire_len);
        summary.captured_bytes += frame.bytes.len() as u64;
        if summary.packets.is_multiple_of(REPORT_EVERY) {
            (self.progress)(summary.packets);
        }
        Ok(())
    }

    fn finish(mut self, flows: u64) -> Result<TrafficSummary, GenerateError> {
        self.file.finish()?;
        (self.progress)(self.summary.packets);
        let file_bytes = 24 + 16 * self.summary.packets + self.summary.captured_bytes;
        Ok(TrafficSummary { flows, file_bytes, ..self.summary })
    }
}
