//! The slow form: what each side has sent, and what follows from it.

use super::{Class, State, TimeoutsConfig};
use crate::flows::{OracleFlow, Role};
use crate::oracle::OracleIp;
use crate::units::Span;

/// What one side of a TCP connection has sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sent {
    syn: bool,
    ack: bool,
    fin: bool,
}

/// A connection, from the side of who opened it and from that of the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OracleConnection {
    opener_is_a: bool,
    last: u64,
    sides: [Sent; 2],
    /// Whether an ACK came after the FINs of both.
    is_closed: bool,
    is_reset: bool,
    is_replied: bool,
    protocol: u8,
}

/// What a TCP segment is, if it can be one.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Segment {
    Syn,
    SynAck,
    Ack,
    Fin,
    Rst,
}

fn segment(flags: Option<u8>) -> Option<Segment> {
    let flags = flags?;
    let has = |bit: u8| flags / bit % 2 == 1;
    let (fin, syn, rst, ack) = (has(1), has(2), has(4), has(16));
    match (syn, fin, rst) {
        (true, false, false) => Some(if ack { Segment::SynAck } else { Segment::Syn }),
        (false, true, false) if ack => Some(Segment::Fin),
        (false, false, true) => Some(Segment::Rst),
        (false, false, false) if ack => Some(Segment::Ack),
        _ => None,
    }
}

impl OracleConnection {
    /// In the words of [`Connection`](super::Connection).
    pub(crate) fn save(&self) -> Vec<u64> {
        let [opener, other] = self.sides;
        let state = match self.protocol {
            6 if self.is_reset => State::Reset,
            6 if self.is_closed => State::TimeWait,
            6 => match (opener.fin, other.fin) {
                (true, true) => State::FinBoth,
                (true, false) => State::FinOpener,
                (false, true) => State::FinOther,
                (false, false) if self.is_established() => State::Established,
                (false, false) if other.ack => State::SynReceived,
                (false, false) if opener.ack => State::SynAnswered,
                (false, false) if other.syn => State::SynBoth,
                (false, false) => State::SynSent,
            },
            17 if self.is_replied => State::UdpReplied,
            17 => State::UdpUnreplied,
            1 | 58 if self.is_replied => State::IcmpReplied,
            1 | 58 => State::IcmpUnreplied,
            _ if self.is_replied => State::OtherReplied,
            _ => State::OtherUnreplied,
        };
        vec![state as u64 + if self.opener_is_a { 256 } else { 0 }, self.last]
    }

    /// What these words say; none where that is no connection.
    pub(crate) fn load(words: &[u64]) -> Option<Self> {
        let is = |state: State| words[0] % 256 == state as u64;
        let is_any = |states: &[State]| states.iter().any(|&state| is(state));
        if is(State::None) || words[0] % 256 >= State::COUNT as u64 {
            return None;
        }
        let protocol = match () {
            () if is_any(&[State::UdpUnreplied, State::UdpReplied]) => 17,
            () if is_any(&[State::IcmpUnreplied, State::IcmpReplied]) => 1,
            () if is_any(&[State::OtherUnreplied, State::OtherReplied]) => 255,
            () => 6,
        };
        let after_handshake = [
            State::Established,
            State::FinOpener,
            State::FinOther,
            State::FinBoth,
            State::TimeWait,
            State::Reset,
        ];
        let is_established = is_any(&after_handshake);
        let opener = Sent {
            syn: true,
            ack: is_established || is(State::SynAnswered),
            fin: is_any(&[State::FinOpener, State::FinBoth, State::TimeWait]),
        };
        let other = Sent {
            syn: is_established || is_any(&[State::SynBoth, State::SynReceived, State::SynAnswered]),
            ack: is_established || is(State::SynReceived),
            fin: is_any(&[State::FinOther, State::FinBoth, State::TimeWait]),
        };
        Some(Self {
            opener_is_a: words[0] / 256 % 2 == 1,
            last: words[1],
            sides: if protocol == 6 { [opener, other] } else { [Sent::default(); 2] },
            is_closed: is(State::TimeWait),
            is_reset: is(State::Reset),
            is_replied: is_any(&[State::UdpReplied, State::IcmpReplied, State::OtherReplied]),
            protocol,
        })
    }

    /// Whether endpoint `a` opened it.
    pub(crate) fn opener_is_a(&self) -> bool {
        self.opener_is_a
    }

    /// Whether the end that did not open it has sent something, or it was reset.
    pub(crate) fn is_answered(&self) -> bool {
        match self.protocol {
            6 => self.is_reset || self.sides[1].syn,
            _ => self.is_replied,
        }
    }

    fn is_established(&self) -> bool {
        self.sides.iter().all(|side| side.syn && side.ack)
    }

    fn fins(&self) -> usize {
        self.sides.iter().filter(|side| side.fin).count()
    }

    fn timeout(&self, timeouts: &TimeoutsConfig) -> Span {
        match self.protocol {
            6 if self.is_reset || self.is_closed => timeouts.tcp_closed,
            6 if self.fins() > 0 => timeouts.tcp_closing,
            6 if self.is_established() => timeouts.tcp_established,
            6 => timeouts.tcp_opening,
            17 if self.is_replied => timeouts.udp_replied,
            17 => timeouts.udp_unreplied,
            1 | 58 => timeouts.icmp,
            _ => timeouts.other,
        }
    }

    /// What the summary calls what it has come to.
    pub(crate) fn milestone(&self) -> &'static str {
        match self.protocol {
            6 if self.is_reset => "reset",
            6 if self.is_closed || self.fins() == 2 => "closed",
            6 if self.fins() == 0 && self.is_established() => "established",
            6 => "",
            _ if self.is_replied => "replied",
            _ => "",
        }
    }

    /// A TCP segment of a connection that there is; `None` where it is invalid, else whether it counts as a sign of life.
    fn tcp(&mut self, segment: Segment, side: usize, loose: bool) -> Option<bool> {
        let is_opener = side == 0;
        let other = 1 - side;
        let is_done = self.is_reset || self.fins() == 2;
        let is_over_handshake = self.is_established() || self.fins() > 0;
        match segment {
            Segment::Rst => self.is_reset = true,
            Segment::Syn if is_over_handshake => return is_opener.then_some(false),
            Segment::Syn => self.sides[side].syn = true,
            Segment::SynAck if is_done => return None,
            Segment::SynAck if is_over_handshake => return (!is_opener).then_some(false),
            Segment::SynAck if !self.sides[other].syn => return None,
            Segment::SynAck => self.sides[side] = Sent { syn: true, ack: true, fin: false },
            Segment::Ack | Segment::Fin if self.is_reset => {}
            Segment::Ack if self.fins() == 2 => self.is_closed = true,
            Segment::Ack if is_over_handshake => {}
            Segment::Ack if !self.sides[side].syn => return Some(false),
            Segment::Ack if self.sides[other].syn => self.sides[side].ack = true,
            Segment::Ack if loose => self.pick_up(),
            Segment::Ack => return None,
            Segment::Fin if is_over_handshake => self.sides[side].fin = true,
            Segment::Fin if self.sides.iter().any(|side| side.ack) => self.sides[side].fin = true,
            Segment::Fin if loose && is_opener && !self.sides[other].syn => {
                self.pick_up();
                self.sides[side].fin = true;
            }
            Segment::Fin => return None,
        }
        Some(true)
    }

    fn pick_up(&mut self) {
        let sent = Sent { syn: true, ack: true, fin: false };
        self.sides = [sent; 2];
    }
}

/// What steps connections, with the timeouts as they stand in the chain file.
#[derive(Clone, Debug)]
pub(crate) struct OracleTracker {
    timeouts: TimeoutsConfig,
    loose: bool,
}

impl OracleTracker {
    pub(crate) fn new(timeouts: TimeoutsConfig, loose: bool) -> Self {
        Self { timeouts, loose }
    }

    /// Whether a connection is not forgotten at a time.
    pub(crate) fn is_alive(&self, connection: &OracleConnection, now: u64) -> bool {
        let elapsed = now.saturating_sub(connection.last);
        connection.timeout(&self.timeouts).limit().is_none_or(|limit| elapsed < limit)
    }

    /// What a member of a flow is to its connection, and what that becomes.
    pub(crate) fn step(
        &self,
        held: Option<OracleConnection>,
        ip: &OracleIp,
        flow: &OracleFlow,
        now: u64,
    ) -> (Class, Option<OracleConnection>) {
        debug_assert_eq!(flow.role, Role::Member, "errors have no step");
        let alive = held.filter(|connection| self.is_alive(connection, now));
        let side = usize::from(alive.is_some_and(|connection| connection.opener_is_a != flow.from_a));
        let new = OracleConnection {
            opener_is_a: flow.from_a,
            // Time that runs backwards does not make a connection that goes on younger.
            last: alive.map_or(now, |connection| connection.last.max(now)),
            protocol: ip.protocol,
            ..OracleConnection::default()
        };
        if ip.protocol == 6 {
            let Some(segment) = segment(ip.tcp_flags) else { return (Class::Invalid, held) };
            let is_over = alive.is_some_and(|alive| alive.is_reset || alive.fins() == 2);
            let Some(mut connection) = alive.filter(|_| !(is_over && segment == Segment::Syn)) else {
                let mut new = new;
                match segment {
                    Segment::Syn => new.sides[0].syn = true,
                    Segment::Ack if self.loose => new.pick_up(),
                    Segment::Fin if self.loose => {
                        new.pick_up();
                        new.sides[0].fin = true;
                    }
                    _ => return (Class::Invalid, held),
                }
                return (Class::New, Some(new));
            };
            return match connection.tcp(segment, side, self.loose) {
                None => (Class::Invalid, held),
                Some(false) => (Class::Established, held),
                Some(true) => {
                    connection.last = connection.last.max(now);
                    (Class::Established, Some(connection))
                }
            };
        }
        // A reply that nobody asked for opens nothing.
        let is_reply = |kind: u8| [0, 14, 16, 18, 129].contains(&kind);
        let is_message = [1, 58].contains(&ip.protocol);
        match alive {
            None if is_message && ip.icmp.is_none_or(|(kind, _)| is_reply(kind)) => (Class::Invalid, held),
            None => (Class::New, Some(new)),
            Some(connection) => {
                let is_replied = connection.is_replied || side == 1;
                let last = connection.last.max(now);
                (Class::Established, Some(OracleConnection { is_replied, last, ..connection }))
            }
        }
    }
}
