//! What a flow sends next: the protocols' play, reduced to who speaks, with which header fields,
//! and how many bytes.

use super::flow::{Flow, Kind, Traits};
use super::payload::Payload;
use crate::random::Random;

/// TCP flags (RFC 9293 section 3.1).
pub(super) mod flags {
    pub(crate) const FIN: u8 = 0x01;
    pub(crate) const SYN: u8 = 0x02;
    pub(crate) const RST: u8 = 0x04;
    pub(crate) const PSH: u8 = 0x08;
    pub(crate) const ACK: u8 = 0x10;
}

/// Bytes that fill an IP packet of 1,500 bytes less a TCP header with timestamps.
const FULL_V4: u16 = 1448;
const FULL_V6: u16 = 1428;

/// The options of a TCP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Options {
    /// None: what a scanner or a closed port sends.
    None,
    /// What a SYN carries: maximum segment size, SACK, timestamps, window scale; 20 bytes.
    Opening,
    /// Timestamps; 12 bytes.
    Timestamps,
}

/// A transport header.
#[derive(Clone, Copy, Debug)]
pub(super) enum Transport {
    Tcp { seq: u32, ack: u32, flags: u8, options: Options },
    Udp,
    Echo { reply: bool, identifier: u16, sequence: u16 },
}

/// A packet to be made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment {
    pub(super) from_client: bool,
    pub(super) transport: Transport,
    pub(super) payload: Payload,
    /// Payload bytes.
    pub(super) len: u16,
}

impl Segment {
    pub(super) fn udp(from_client: bool, payload: Payload, len: u16) -> Self {
        Self { from_client, transport: Transport::Udp, payload, len }
    }

    /// A segment at the client's and the server's next sequence numbers, of which the sender's moves on.
    pub(super) fn tcp(
        (client, server): (&mut u32, &mut u32),
        from_client: bool,
        flags: u8,
        options: Options,
        len: u16,
    ) -> Self {
        let (seq, ack) = if from_client { (client, *server) } else { (server, *client) };
        let transport =
            Transport::Tcp { seq: *seq, ack: if flags & flags::ACK == 0 { 0 } else { ack }, flags, options };
        let occupies = u32::from(len) + u32::from(flags & (flags::SYN | flags::FIN) != 0);
        *seq = seq.wrapping_add(occupies);
        let payload = if len == 0 { Payload::Zeros } else { Payload::Data };
        Self { from_client, transport, payload, len }
    }
}

/// The next packet of `flow`, whose `left` still counts it.
#[inline]
pub(super) fn next(flow: &mut Flow, random: &mut Random) -> Segment {
    let from_client = flow.stage & 1 == 0;
    let segment = match flow.kind {
        Kind::Session => session(flow, random),
        Kind::Scan => tcp(flow, true, flags::SYN, Options::None, 0),
        Kind::Probe => Segment::udp(true, Payload::Data, 18 + (random.bits() & 63) as u16),
        Kind::Dns if from_client => Segment::udp(true, Payload::DnsQuestion, 33),
        Kind::Dns => Segment::udp(false, Payload::DnsAnswer, 49),
        Kind::Ntp if from_client => Segment::udp(true, Payload::NtpRequest, 48),
        Kind::Ntp => Segment::udp(false, Payload::NtpReply, 48),
        Kind::Quic => quic(flow, random),
        Kind::Media => Segment::udp(true, Payload::Data, 172 + (random.bits() & 511) as u16),
        Kind::Echo => echo(flow, from_client),
    };
    // Two packets make a round, so that even and odd stages go on past the top.
    flow.stage = if flow.stage == u8::MAX { u8::MAX - 1 } else { flow.stage + 1 };
    segment
}

/// The next packet of a TCP connection.
///
/// Two packets are a refused connection, three a half-open one; shorter connections end by a
/// reset, those of seven packets and more by an exchange of FINs.
fn session(flow: &mut Flow, random: &mut Random) -> Segment {
    use Options::{Opening, Timestamps};
    use flags::{ACK, FIN, PSH, RST, SYN};

    let one_way = flow.traits.has(Traits::ONE_WAY);
    let closes = flow.traits.has(Traits::CLOSES);
    match (flow.stage, flow.left) {
        (0, _) => tcp(flow, true, SYN, Opening, 0),
        (1, 1) if !one_way => tcp(flow, false, RST | ACK, Options::None, 0),
        (1, _) if !one_way => tcp(flow, false, SYN | ACK, Opening, 0),
        (_, 3) if closes => tcp(flow, true, FIN | ACK, Timestamps, 0),
        (_, 2) if closes => tcp(flow, one_way, FIN | ACK, Timestamps, 0),
        (_, 1) if closes => tcp(flow, true, ACK, Timestamps, 0),
        (_, 1) => tcp(flow, true, RST | ACK, Options::None, 0),
        (1 | 2, _) => tcp(flow, true, ACK, Timestamps, 0),
        (3, _) => {
            let request = 80 + random.below(500) as u16;
            tcp(flow, true, PSH | ACK, Timestamps, request)
        }
        _ => {
            let bits = random.bits();
            let from_client = one_way || bits & 0xff >= 158;
            let full = if flow.ipv6() { FULL_V6 } else { FULL_V4 };
            // Full segments, middling ones, and bare acknowledgements; the server has more to say.
            let (most, some) = if from_client { (9, 52) } else { (178, 230) };
            let len = match (bits >> 8) & 0xff {
                hump if hump < most => full,
                hump if hump < some => 180 + ((bits >> 16) & 0x1ff) as u16,
                _ => 0,
            };
            // Of a train of full segments the last one pushes.
            let flags = if len == 0 || (len == full && bits >> 60 != 0) { ACK } else { PSH | ACK };
            tcp(flow, from_client, flags, Timestamps, len)
        }
    }
}

/// A TCP segment of a flow at its present sequence numbers, which it moves on.
fn tcp(flow: &mut Flow, from_client: bool, flags: u8, options: Options, len: u16) -> Segment {
    let seqs = (&mut flow.client_seq, &mut flow.server_seq);
    Segment::tcp(seqs, from_client, flags, options, len)
}

/// The next datagram of something like QUIC: a full first flight each way, then mostly downloads.
fn quic(flow: &Flow, random: &mut Random) -> Segment {
    match flow.stage {
        0 | 1 => Segment::udp(flow.stage == 0, Payload::QuicInitial, 1200),
        _ => {
            let bits = random.bits();
            let from_client = bits & 0xff >= 140;
            let len = match (from_client, (bits >> 8) & 0xff) {
                (false, 0..200) => 1252,
                (false, _) | (true, 0..30) => 60 + ((bits >> 16) & 0x1ff) as u16,
                (true, _) => 31 + ((bits >> 16) & 15) as u16,
            };
            Segment::udp(from_client, Payload::QuicShort, len)
        }
    }
}

/// The next echo request or reply, as `ping` sends them.
fn echo(flow: &mut Flow, from_client: bool) -> Segment {
    if from_client {
        flow.client_seq = flow.client_seq.wrapping_add(1);
    }
    let (identifier, sequence) = (flow.client_port, flow.client_seq as u16);
    let transport = Transport::Echo { reply: !from_client, identifier, sequence };
    Segment { from_client, transport, payload: Payload::Data, len: 56 }
}
