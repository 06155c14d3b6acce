//! What became of a connection, by what a record knows: the flags of its first packet, and all flags of each direction.
//!
//! The idea is that of Zeek's `conn_state`. A record does not keep the order of flags, so some of its states are one here, and they have other names.

use packetloom_packet::{FlowRecord, protocol};

/// What became of a connection of TCP, or whether there was an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing came back.
    Unanswered,
    /// Not TCP: something came back.
    Answered,
    /// TCP: nothing came back, and the source gave up, with a FIN or a RST.
    Abandoned,
    /// The destination sent a RST, and no SYN.
    Rejected,
    /// Both sides have sent a SYN, the source no ACK.
    HalfOpen,
    /// Both sides have sent a SYN and the source an ACK; nobody has sent a FIN or a RST.
    Established,
    /// Of an established connection, the source alone has sent a FIN.
    SourceClosed,
    /// The destination alone has sent one.
    DestinationClosed,
    /// Both sides have sent one.
    Closed,
    /// The source has sent a RST, and not both sides a FIN.
    SourceReset,
    /// The destination has sent one.
    DestinationReset,
    /// Both sides have.
    BothReset,
    /// The first packet is no SYN, or one with an ACK: the beginning was not seen.
    Midstream,
    /// The source begins with a SYN, the destination sends something else than a SYN or a RST.
    Other,
}

const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;

impl Outcome {
    /// All there are.
    pub const ALL: [Self; 14] = [
        Self::Unanswered,
        Self::Answered,
        Self::Abandoned,
        Self::Rejected,
        Self::HalfOpen,
        Self::Established,
        Self::SourceClosed,
        Self::DestinationClosed,
        Self::Closed,
        Self::SourceReset,
        Self::DestinationReset,
        Self::BothReset,
        Self::Midstream,
        Self::Other,
    ];

    /// That of a record, whose first packet has these TCP flags.
    pub fn of(record: &FlowRecord, first: u8) -> Self {
        let is_answered = record.reverse.packets > 0;
        if record.protocol != protocol::TCP {
            return if is_answered { Self::Answered } else { Self::Unanswered };
        }
        let (source, destination) = (record.forward.tcp_flags, record.reverse.tcp_flags);
        let has = |flag: u8| [source & flag != 0, destination & flag != 0];
        if first & (SYN | ACK) != SYN {
            return Self::Midstream;
        }
        if !is_answered {
            return if source & (FIN | RST) == 0 { Self::Unanswered } else { Self::Abandoned };
        }
        if destination & SYN == 0 {
            return if destination & RST == 0 { Self::Other } else { Self::Rejected };
        }
        match (has(FIN), has(RST)) {
            ([true, true], _) => Self::Closed,
            (_, [true, true]) => Self::BothReset,
            (_, [true, false]) => Self::SourceReset,
            (_, [false, true]) => Self::DestinationReset,
            ([true, false], _) => Self::SourceClosed,
            ([false, true], _) => Self::DestinationClosed,
            ([false, false], _) if source & ACK == 0 => Self::HalfOpen,
            ([false, false], _) => Self::Established,
        }
    }

    /// What it is called.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unanswered => "unanswered",
            Self::Answered => "answered",
            Self::Abandoned => "abandoned",
            Self::Rejected => "rejected",
            Self::HalfOpen => "half-open",
            Self::Established => "established",
            Self::SourceClosed => "source-closed",
            Self::DestinationClosed => "destination-closed",
            Self::Closed => "closed",
            Self::SourceReset => "source-reset",
            Self::DestinationReset => "destination-reset",
            Self::BothReset => "both-reset",
            Self::Midstream => "midstream",
            Self::Other => "other",
        }
    }
}
