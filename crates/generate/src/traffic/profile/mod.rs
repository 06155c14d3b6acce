//! Traffic with the flows of a network profile, as CESNET's FlowTest has them.
//!
//! A profile is a CSV file of anonymous bidirectional flows: when each begins and ends, its protocols and ports, and packets and
//! IP bytes of each direction (<https://github.com/CESNET/FlowTest>, `tools/ft-profiler/README.md` and `tools/ft-generator/README.md`).
//! The traffic has exactly these flows; what a profile does not say is made up from a seed: addresses, which packet is how long, and
//! when it comes.
//!
//! - **Times**: the earliest flow begins at [`ProfileOptions::start`], the others as much later as the profile says. The first packet of
//!   a flow comes when the flow begins, the last one when it ends, the others evenly between them: no gap is longer than twice the mean.
//! - **Directions** alternate at random, beginning forward, then in reverse where there is such a packet.
//! - **Lengths** of TCP are mostly those of full segments and bare acknowledgements, of UDP near the mean, of ICMP the mean. Packets have
//!   1,500 bytes at most, unless that is too little for the bytes of the direction.
//! - **TCP** begins with SYN and SYN ACK where bytes and packets allow that, and then ends with FIN. Otherwise the flow is one that was
//!   there before.
//!
//! Values that no packets can have are changed, and counted ([`Adjustments`]).
//!
//! ```
//! use packetloom_generate::profile::{Profile, ProfileOptions, ProfileTraffic};
//!
//! let text = "START_TIME,END_TIME,L3_PROTO,L4_PROTO,SRC_PORT,DST_PORT,PACKETS,BYTES,PACKETS_REV,BYTES_REV\n\
//!             -5,1200,4,17,53124,53,2,140,2,390\n";
//! let profile = Profile::read(text.as_bytes(), "web.csv")?;
//! let mut traffic = ProfileTraffic::new(profile, &ProfileOptions::default())?;
//! let mut bytes = 0;
//! while let Some(frame) = traffic.next_frame() {
//!     bytes += u64::from(frame.wire_len) - 14; // Ethernet
//! }
//! assert_eq!(bytes, 140 + 390);
//! # Ok::<(), packetloom_generate::GenerateError>(())
//! ```

mod flow;
mod read;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::io::{BufRead, Write};
use std::net::IpAddr;
use std::time::Duration;

use packetloom_packet::protocol;

use self::flow::{End, Flow, LONGEST};
use self::read::{Reader, Row};
use super::endpoints::Endpoints;
use super::frames::FrameWriter;
use super::{Capture, Frame, MAX_FLOWS, MAX_PACKETS, TrafficOptions, TrafficSummary};
use crate::error::GenerateError;
use crate::random::Random;
use crate::seen::Seen;

/// Draws of a popular pair of addresses before any pair will do.
const POPULAR_DRAWS: u32 = 16;
/// Draws of addresses for a flow, of which one may have to have the addresses of another one.
const MOST_DRAWS: u32 = 1_000;

/// What was left out of a profile, or changed, because no packets can be like that: numbers of flows. A flow may count in several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Adjustments {
    /// Left out: of another protocol than TCP, UDP, and the ICMP of its version of IP.
    pub protocol: u64,
    /// Left out: without packets.
    pub empty: u64,
    /// A direction has fewer bytes than the headers of its packets need: it got as many.
    pub short: u64,
    /// A direction has more bytes than its packets can hold, 65,535 each or 65,575 with IPv6: it got as many.
    pub long: u64,
    /// A single packet takes time: the flow ends when it begins.
    pub single: u64,
    /// ICMP with ports: they are 0.
    pub ports: u64,
}

/// The flows of a profile, 80 bytes each; up to three times as many while it is read.
#[derive(Debug)]
pub struct Profile {
    /// By their begin, then in the order of the file.
    flows: Vec<Flow>,
    /// IPv6 addresses that the file names.
    named: Vec<u128>,
    packets: u64,
    adjustments: Adjustments,
}

impl Profile {
    /// Reads a profile; `name` is for messages.
    ///
    /// Lines that are empty or begin with `#` are passed over. The first other line names the columns: `START_TIME` and `END_TIME`
    /// (milliseconds, perhaps negative or with a fraction), `L3_PROTO` (4 or 6), `L4_PROTO`, `SRC_PORT` and `DST_PORT` (empty: 0), `PACKETS`,
    /// `BYTES`, `PACKETS_REV` and `BYTES_REV`, in any order; and, where the profile has them, `SRC_IP` and `DST_IP` (empty: made up).
    ///
    /// # Errors
    ///
    /// [`GenerateError::BadProfile`] for a line that is not like that, a flow that ends before it begins, and flows or packets beyond
    /// [`MAX_FLOWS`] and [`MAX_PACKETS`]; [`GenerateError::NoFlows`] where no flow is left; the reader's errors.
    pub fn read(reader: impl BufRead, name: &str) -> Result<Self, GenerateError> {
        let mut reader = Reader::new(reader, name)?;
        let mut profile =
            Self { flows: Vec::new(), named: Vec::new(), packets: 0, adjustments: Adjustments::default() };
        while let Some(row) = reader.row()? {
            profile.add(&row).map_err(|reason| reader.bad(reason))?;
        }
        if profile.flows.is_empty() {
            return Err(GenerateError::NoFlows);
        }
        profile.flows.sort_by_key(|flow| flow.start);
        Ok(profile)
    }

    /// Adds a flow as packets can have it; says why that is not possible.
    fn add(&mut self, row: &Row) -> Result<(), String> {
        let adjustments = &mut self.adjustments;
        let icmp = if row.ipv6 { protocol::ICMPV6 } else { protocol::ICMP };
        if ![protocol::TCP, protocol::UDP, icmp].contains(&row.protocol) {
            adjustments.protocol += 1;
            return Ok(());
        }
        if row.packets == [0, 0] {
            adjustments.empty += 1;
            return Ok(());
        }
        let total = row.packets[0].saturating_add(row.packets[1]);
        self.packets = self.packets.saturating_add(total);
        if self.packets > MAX_PACKETS || self.flows.len() as u64 == MAX_FLOWS {
            return Err(format!(
                "with this line, these are more than {MAX_PACKETS} packets or {MAX_FLOWS} flows; expected a smaller profile"
            ));
        }
        let shortest = flow::shortest(row.protocol, row.ipv6);
        let longest = LONGEST[usize::from(row.ipv6)];
        let bytes = [0, 1].map(|way| {
            let packets = row.packets[way];
            row.bytes[way].clamp(packets * shortest, packets * longest)
        });
        adjustments.short += u64::from((0..2).any(|way| bytes[way] > row.bytes[way]));
        adjustments.long += u64::from((0..2).any(|way| bytes[way] < row.bytes[way]));
        let mut duration = row.end.abs_diff(row.start);
        if total == 1 && duration > 0 {
            adjustments.single += 1;
            duration = 0;
        }
        let mut ports = row.ports;
        if row.protocol == icmp && ports != [0, 0] {
            adjustments.ports += 1;
            ports = [0, 0];
        }
        let ends = row.addresses.map(|address| match address {
            None => End::MadeUp(0),
            Some(IpAddr::V4(address)) => End::V4(address.to_bits()),
            Some(IpAddr::V6(address)) => {
                self.named.push(address.to_bits());
                // At most two for each of MAX_FLOWS.
                End::V6(self.named.len() as u32 - 1)
            }
        });
        // At most MAX_PACKETS.
        let packets = row.packets.map(|packets| packets as u32);
        self.flows.push(Flow::new(row, duration, packets, bytes, ends, ports));
        Ok(())
    }

    /// Flows that traffic is made of.
    pub fn flows(&self) -> u64 {
        self.flows.len() as u64
    }

    /// Packets of all of them.
    pub fn packets(&self) -> u64 {
        self.packets
    }

    /// What is not as the file says.
    pub fn adjustments(&self) -> Adjustments {
        self.adjustments
    }

    /// Makes up addresses: no two flows have the same addresses and ports, unless the file names them.
    fn meet(&mut self, seed: u64) -> Endpoints {
        let random = &mut Random::new(seed, 0);
        let endpoints = Endpoints::new(self.flows(), random);
        let Self { flows, named, .. } = self;
        let mut seen = Seen::with_capacity(flows.len());
        for flow in flows {
            flow.seqs = [random.bits() as u32, random.bits() as u32];
            let mut draws = 0;
            loop {
                draws += 1;
                if let End::MadeUp(client) = &mut flow.ends[0] {
                    *client = if draws > POPULAR_DRAWS {
                        endpoints.any_client(flow.ipv6, random)
                    } else {
                        endpoints.client(flow.ipv6, random)
                    };
                }
                if let End::MadeUp(server) = &mut flow.ends[1] {
                    // There are few servers: one client that the file names may have met all of them.
                    *server = if draws > POPULAR_DRAWS {
                        endpoints.any_client(flow.ipv6, random)
                    } else {
                        endpoints.server(flow.ipv6, random)
                    };
                }
                let is_made_up = flow.ends.iter().any(|end| matches!(end, End::MadeUp(_)));
                if seen.insert(flow.key(named)) || !is_made_up || draws == MOST_DRAWS {
                    break;
                }
            }
        }
        endpoints
    }
}

/// How traffic is made of a profile. The same options and profile give the same bytes on every machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProfileOptions {
    /// Chooses one of the many captures with these flows. Default 1.
    pub seed: u64,
    /// Bytes captured of each frame at most; 0 captures whole frames. Default 0.
    pub snap: u32,
    /// When the earliest flow begins, since 1970-01-01T00:00:00Z. Default 2026-01-01T00:00:00Z.
    pub start: Duration,
}

impl Default for ProfileOptions {
    fn default() -> Self {
        let TrafficOptions { seed, snap, start, .. } = TrafficOptions::default();
        Self { seed, snap, start }
    }
}

/// Makes the frames of a profile's flows one after the other, by time.
///
/// Beside the profile it holds 16 bytes for each flow that has begun and not ended, and, while it is set up, 5.3 for each flow.
pub struct ProfileTraffic {
    profile: Profile,
    endpoints: Endpoints,
    frames: FrameWriter,
    random: Random,
    /// Flows that have begun.
    begun: usize,
    /// Of those that have not ended, when the next packet is due, and which it is. At the same time, the earlier flow comes first.
    due: BinaryHeap<Reverse<(u64, u32)>>,
    /// Nanoseconds since 1970.
    start: u64,
    snap: usize,
}

impl ProfileTraffic {
    /// Plans the traffic.
    ///
    /// # Errors
    ///
    /// [`GenerateError::TimeOutOfRange`] if a flow ends after the last second of a capture file, in the year 2106.
    pub fn new(mut profile: Profile, options: &ProfileOptions) -> Result<Self, GenerateError> {
        let earliest = profile.flows.first().ok_or(GenerateError::NoFlows)?.start;
        let last = profile
            .flows
            .iter()
            .map(|flow| u128::from(flow.start.abs_diff(earliest)) + u128::from(flow.duration))
            .max();
        let end = options.start.as_nanos() + last.unwrap_or(0);
        if end / 1_000_000_000 > u128::from(u32::MAX) {
            return Err(GenerateError::TimeOutOfRange);
        }
        let endpoints = profile.meet(options.seed);
        Ok(Self {
            profile,
            endpoints,
            frames: FrameWriter::new(),
            random: Random::new(options.seed, 1),
            begun: 0,
            due: BinaryHeap::new(),
            // Below 2³² s.
            start: options.start.as_nanos() as u64,
            snap: if options.snap == 0 { usize::MAX } else { options.snap as usize },
        })
    }

    /// The next frame, or `None` after the last. It is valid until the next call.
    pub fn next_frame(&mut self) -> Option<Frame<'_>> {
        let Profile { flows, named, .. } = &mut self.profile;
        let earliest = flows.first()?.start;
        while let Some(flow) = flows.get(self.begun) {
            let begins = flow.start.abs_diff(earliest);
            if self.due.peek().is_some_and(|Reverse((due, _))| *due < begins) {
                break;
            }
            self.due.push(Reverse((begins, self.begun as u32)));
            self.begun += 1;
        }
        let mut first = self.due.peek_mut()?;
        let Reverse((due, index)) = *first;
        let flow = &mut flows[index as usize];
        let segment = flow.next(&mut self.random);
        match flow.due(&mut self.random) {
            Some(later) => first.0.0 = flow.start.abs_diff(earliest) + later,
            None => drop(PeekMut::pop(first)),
        }
        let headers = flow.headers(segment.from_client, &self.endpoints, named);
        let milliseconds = (due / 1_000_000) as u32;
        let (wire_len, bytes) = self.frames.write(&headers, &segment, milliseconds, self.snap);
        Some(Frame { timestamp_ns: self.start + due, wire_len: wire_len as u32, bytes })
    }
}

/// Writes a capture file with the flows of a profile, as [`write_pcap`](super::write_pcap) does.
///
/// # Errors
///
/// As [`ProfileTraffic::new`], before anything is written; and the output's errors.
pub fn write_profile_pcap<W: Write>(
    profile: Profile,
    options: &ProfileOptions,
    writer: W,
    progress: impl FnMut(u64),
) -> Result<TrafficSummary, GenerateError> {
    let flows = profile.flows();
    let mut traffic = ProfileTraffic::new(profile, options)?;
    let mut file = Capture::new(writer, options.snap, progress);
    while let Some(frame) = traffic.next_frame() {
        file.write(&frame)?;
    }
    file.finish(flows)
}
