//! The state of connections as a middlebox sees them: from flags and directions alone.
//!
//! A connection is a state, who opened it, and the time of its last packet: two words ([`Connection`]). A step ([`Tracker::step`])
//! looks its state, the packet's direction and what the packet says up in a table of bytes, so that whatever has the table
//! steps in the same way. Nothing is written: the caller keeps the new connection or leaves the old one, as where a rule denies the
//! packet.
//!
//! TCP is RFC 9293's state machine seen from between two endpoints; sequence numbers are not looked at, so a blind reset or FIN
//! counts. What follows from that:
//!
//! - A SYN opens. One SYN of each side is a simultaneous open (section 3.5). A connection is established when each side has sent an
//!   ACK after its SYN.
//! - A SYN of the opener in a connection that is established passes and changes nothing: the other side answers it with an ACK and
//!   gets a reset (half-open connections, section 3.5.1). So does an ACK in answer to a SYN.
//! - A SYN opens a new connection where both sides sent FIN, or one a reset: a port that is used again (section 3.6.1).
//! - After a reset packets of the old connection still pass, and keep it for as long as they come: the reset may have been forged
//!   or lost (RFC 7857 section 2.2).
//! - SYN with FIN or RST, FIN with RST, and segments without SYN, RST or ACK are invalid; as are segments whose flags are missing.
//!
//! A connection whose state's timeout has passed since its last packet is gone, judged when the next packet comes. Time that runs
//! backwards counts as 0. Packets that are invalid or change nothing do not prolong it.

mod config;
mod oracle;
#[cfg(test)]
mod tests;

use bytemuck::{NoUninit, Pod, Zeroable};
use packetloom_packet::{KeyBits, Message, protocol};

pub use self::config::TimeoutsConfig;
pub(crate) use self::oracle::{OracleConnection, OracleTracker};
use crate::flows::{Facts, FactsKept, FlowFacts, Text};

/// The states of connections, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum State {
    /// There is no connection.
    None,
    /// TCP: a SYN.
    SynSent,
    /// TCP: a SYN of each side.
    SynBoth,
    /// TCP: a SYN of each side, and an ACK of the one that did not open.
    SynReceived,
    /// TCP: a SYN of each side, and an ACK of the opener.
    SynAnswered,
    /// TCP: an ACK of each side after its SYN.
    Established,
    /// TCP: a FIN of the opener.
    FinOpener,
    /// TCP: a FIN of the other side.
    FinOther,
    /// TCP: a FIN of each side.
    FinBoth,
    /// TCP: a FIN of each side, and an ACK after.
    TimeWait,
    /// TCP: a reset.
    Reset,
    /// UDP: one side has sent.
    UdpUnreplied,
    /// UDP: both sides have.
    UdpReplied,
    /// ICMP and ICMPv6: a request.
    IcmpUnreplied,
    /// ICMP and ICMPv6: a request and a reply.
    IcmpReplied,
    /// Other protocols: one side has sent.
    OtherUnreplied,
    /// Other protocols: both sides have.
    OtherReplied,
}

impl State {
    /// How many there are.
    pub const COUNT: usize = 17;

    /// By their numbers.
    const ALL: [Self; Self::COUNT] = [
        Self::None,
        Self::SynSent,
        Self::SynBoth,
        Self::SynReceived,
        Self::SynAnswered,
        Self::Established,
        Self::FinOpener,
        Self::FinOther,
        Self::FinBoth,
        Self::TimeWait,
        Self::Reset,
        Self::UdpUnreplied,
        Self::UdpReplied,
        Self::IcmpUnreplied,
        Self::IcmpReplied,
        Self::OtherUnreplied,
        Self::OtherReplied,
    ];

    /// What it is called.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::SynSent => "syn-sent",
            Self::SynBoth => "syn-both",
            Self::SynReceived => "syn-received",
            Self::SynAnswered => "syn-answered",
            Self::Established => "established",
            Self::FinOpener => "fin-opener",
            Self::FinOther => "fin-other",
            Self::FinBoth => "fin-both",
            Self::TimeWait => "time-wait",
            Self::Reset => "reset",
            Self::UdpUnreplied | Self::IcmpUnreplied | Self::OtherUnreplied => "unreplied",
            Self::UdpReplied | Self::IcmpReplied | Self::OtherReplied => "replied",
        }
    }

    /// How far the connection is.
    pub const fn phase(self) -> Phase {
        match self {
            Self::None | Self::SynSent | Self::UdpUnreplied | Self::IcmpUnreplied | Self::OtherUnreplied => {
                Phase::New
            }
            Self::SynBoth | Self::SynReceived | Self::SynAnswered => Phase::Opening,
            Self::Established | Self::UdpReplied | Self::IcmpReplied | Self::OtherReplied => {
                Phase::Established
            }
            Self::FinOpener | Self::FinOther | Self::FinBoth | Self::TimeWait => Phase::Closing,
            Self::Reset => Phase::Reset,
        }
    }
}

/// How far a connection is, whatever its protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The other side has not answered.
    New,
    /// TCP: each side has sent a SYN, and one of them no ACK.
    Opening,
    /// TCP: an ACK of each side after its SYN; else packets of each side.
    Established,
    /// TCP: a FIN of a side, or of both.
    Closing,
    /// TCP: a reset.
    Reset,
}

impl Phase {
    /// All there are.
    pub const ALL: [Self; 5] = [Self::New, Self::Opening, Self::Established, Self::Closing, Self::Reset];

    /// What it is called.
    pub const fn name(self) -> &'static str {
        match self {
            Self::New => "new",
            Self::Opening => "opening",
            Self::Established => "established",
            Self::Closing => "closing",
            Self::Reset => "reset",
        }
    }
}

/// What a packet says to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Signal {
    /// TCP: SYN without ACK.
    Syn,
    /// TCP: SYN and ACK.
    SynAck,
    /// TCP: ACK, without SYN, FIN or RST.
    Ack,
    /// TCP: FIN and ACK.
    Fin,
    /// TCP: RST.
    Reset,
    /// Flags that no segment has, or none captured; an ICMP message that is neither a query nor a reply.
    Bad,
    /// A UDP datagram.
    Datagram,
    /// An ICMP or ICMPv6 query.
    Request,
    /// A reply to one.
    Reply,
    /// A packet of another protocol.
    Packet,
}

impl Signal {
    /// How many there are.
    pub const COUNT: usize = 10;

    /// What a packet says, by its key's fields; of ICMP and ICMPv6 the port is the type.
    #[inline]
    pub const fn of(protocol: u8, tcp_flags: u8, bits: KeyBits, source_port: u16) -> Self {
        match protocol {
            protocol::TCP if !bits.contains(KeyBits::TCP_FLAGS) => Self::Bad,
            protocol::TCP => Self::of_flags(tcp_flags),
            protocol::UDP => Self::Datagram,
            protocol::ICMP | protocol::ICMPV6 => match Message::of(protocol, source_port as u8) {
                Message::Request => Self::Request,
                Message::Reply => Self::Reply,
                _ => Self::Bad,
            },
            _ => Self::Packet,
        }
    }

    /// What TCP's flags say.
    const fn of_flags(flags: u8) -> Self {
        const FIN: u8 = 1;
        const SYN: u8 = 2;
        const RST: u8 = 4;
        const ACK: u8 = 16;
        const FIN_ACK: u8 = FIN | ACK;
        const SYN_ACK: u8 = SYN | ACK;
        const RST_ACK: u8 = RST | ACK;
        match flags & (FIN | SYN | RST | ACK) {
            SYN => Self::Syn,
            SYN_ACK => Self::SynAck,
            ACK => Self::Ack,
            FIN_ACK => Self::Fin,
            RST | RST_ACK => Self::Reset,
            _ => Self::Bad,
        }
    }
}

/// What a packet is to the connections there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// It opens one.
    New,
    /// It belongs to one.
    Established,
    /// Neither: with the number that it has among what `conntrack` counts.
    Invalid = 3,
}

/// Bits of a step: the new state, and whether the packet opens a connection, or leaves all as it is.
const STATE: u8 = 0x1f;
const OPENS: u8 = 0x20;
const STAYS: u8 = 0x40;
const INVALID: u8 = 0x80;

/// Steps by state, by direction (of the opener, of the other side), by signal.
type Steps = [[[u8; Signal::COUNT]; 2]; State::COUNT];

/// All steps; where `loose`, connections whose beginning was not seen are picked up.
const fn steps(loose: bool) -> Steps {
    use Signal as G;
    use State as S;
    const BOTH: [bool; 2] = [true, true];
    const OPENER: [bool; 2] = [true, false];
    const OTHER: [bool; 2] = [false, true];

    const fn set(steps: &mut Steps, from: State, directions: [bool; 2], signal: Signal, step: u8) {
        let mut direction = 0;
        while direction < 2 {
            if directions[direction] {
                steps[from as usize][direction][signal as usize] = step;
            }
            direction += 1;
        }
    }

    let mut all = [[[INVALID; Signal::COUNT]; 2]; State::COUNT];
    let steps = &mut all;
    // Where there is no connection a packet is the opener's.
    set(steps, S::None, OPENER, G::Syn, S::SynSent as u8 | OPENS);
    set(steps, S::None, OPENER, G::Datagram, S::UdpUnreplied as u8 | OPENS);
    set(steps, S::None, OPENER, G::Request, S::IcmpUnreplied as u8 | OPENS);
    set(steps, S::None, OPENER, G::Packet, S::OtherUnreplied as u8 | OPENS);
    if loose {
        set(steps, S::None, OPENER, G::Ack, S::Established as u8 | OPENS);
        set(steps, S::None, OPENER, G::Fin, S::FinOpener as u8 | OPENS);
        set(steps, S::SynSent, OPENER, G::Ack, S::Established as u8);
        set(steps, S::SynSent, OPENER, G::Fin, S::FinOpener as u8);
    }

    set(steps, S::SynSent, OPENER, G::Syn, S::SynSent as u8);
    set(steps, S::SynSent, OTHER, G::Syn, S::SynBoth as u8);
    set(steps, S::SynSent, OTHER, G::SynAck, S::SynReceived as u8);
    set(steps, S::SynSent, OTHER, G::Ack, S::SynSent as u8 | STAYS);
    set(steps, S::SynBoth, BOTH, G::Syn, S::SynBoth as u8);
    set(steps, S::SynBoth, OPENER, G::SynAck, S::SynAnswered as u8);
    set(steps, S::SynBoth, OPENER, G::Ack, S::SynAnswered as u8);
    set(steps, S::SynBoth, OTHER, G::SynAck, S::SynReceived as u8);
    set(steps, S::SynBoth, OTHER, G::Ack, S::SynReceived as u8);
    set(steps, S::SynReceived, BOTH, G::Syn, S::SynReceived as u8);
    set(steps, S::SynReceived, OPENER, G::SynAck, S::Established as u8);
    set(steps, S::SynReceived, OPENER, G::Ack, S::Established as u8);
    set(steps, S::SynReceived, OTHER, G::SynAck, S::SynReceived as u8);
    set(steps, S::SynReceived, OTHER, G::Ack, S::SynReceived as u8);
    set(steps, S::SynAnswered, BOTH, G::Syn, S::SynAnswered as u8);
    set(steps, S::SynAnswered, OPENER, G::SynAck, S::SynAnswered as u8);
    set(steps, S::SynAnswered, OPENER, G::Ack, S::SynAnswered as u8);
    set(steps, S::SynAnswered, OTHER, G::SynAck, S::Established as u8);
    set(steps, S::SynAnswered, OTHER, G::Ack, S::Established as u8);

    let mut index = 0;
    const OPEN: [State; 5] =
        [State::SynReceived, State::SynAnswered, State::Established, State::FinOpener, State::FinOther];
    while index < OPEN.len() {
        let from = OPEN[index];
        if from as u8 >= S::Established as u8 {
            set(steps, from, OPENER, G::Syn, from as u8 | STAYS);
            set(steps, from, OTHER, G::SynAck, from as u8 | STAYS);
            set(steps, from, BOTH, G::Ack, from as u8);
        }
        let has_fin = [from as u8 == S::FinOpener as u8, from as u8 == S::FinOther as u8];
        let (opener, other) = match has_fin {
            [true, _] => (S::FinOpener, S::FinBoth),
            [_, true] => (S::FinBoth, S::FinOther),
            _ => (S::FinOpener, S::FinOther),
        };
        set(steps, from, OPENER, G::Fin, opener as u8);
        set(steps, from, OTHER, G::Fin, other as u8);
        index += 1;
    }

    set(steps, S::FinBoth, BOTH, G::Fin, S::FinBoth as u8);
    set(steps, S::FinBoth, BOTH, G::Ack, S::TimeWait as u8);
    set(steps, S::TimeWait, BOTH, G::Fin, S::TimeWait as u8);
    set(steps, S::TimeWait, BOTH, G::Ack, S::TimeWait as u8);
    set(steps, S::Reset, BOTH, G::Fin, S::Reset as u8);
    set(steps, S::Reset, BOTH, G::Ack, S::Reset as u8);
    set(steps, S::FinBoth, BOTH, G::Syn, S::SynSent as u8 | OPENS);
    set(steps, S::TimeWait, BOTH, G::Syn, S::SynSent as u8 | OPENS);
    set(steps, S::Reset, BOTH, G::Syn, S::SynSent as u8 | OPENS);
    let mut from = S::SynSent as usize;
    while from <= S::Reset as usize {
        steps[from][0][G::Reset as usize] = S::Reset as u8;
        steps[from][1][G::Reset as usize] = S::Reset as u8;
        from += 1;
    }

    set(steps, S::UdpUnreplied, OPENER, G::Datagram, S::UdpUnreplied as u8);
    set(steps, S::UdpUnreplied, OTHER, G::Datagram, S::UdpReplied as u8);
    set(steps, S::UdpReplied, BOTH, G::Datagram, S::UdpReplied as u8);
    set(steps, S::IcmpUnreplied, OPENER, G::Request, S::IcmpUnreplied as u8);
    set(steps, S::IcmpUnreplied, OTHER, G::Reply, S::IcmpReplied as u8);
    set(steps, S::IcmpReplied, OPENER, G::Request, S::IcmpReplied as u8);
    set(steps, S::IcmpReplied, OTHER, G::Reply, S::IcmpReplied as u8);
    set(steps, S::OtherUnreplied, OPENER, G::Packet, S::OtherUnreplied as u8);
    set(steps, S::OtherUnreplied, OTHER, G::Packet, S::OtherReplied as u8);
    set(steps, S::OtherReplied, BOTH, G::Packet, S::OtherReplied as u8);
    all
}

static STRICT: Steps = steps(false);
static LOOSE: Steps = steps(true);

packetloom_memory::layout! {
    /// A connection: what a function keeps of it. All 0 is none.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
    pub struct Connection {
        /// The state's number in the lowest byte; above it, whether endpoint `a` opened it.
        bits: u64,
        /// The time of its last packet, in nanoseconds.
        last: u64,
    }
}

const OPENED_BY_A: u64 = 1 << 8;

impl Connection {
    /// Whether these words are one.
    pub fn is_valid(words: &[u64]) -> bool {
        matches!(words, [bits, _] if (bits & 0xff) < State::COUNT as u64)
    }

    /// Whether a packet of it comes from the end that opened it, and the other one has not answered.
    #[inline]
    pub const fn is_unanswered_by(&self, from_a: bool) -> bool {
        const UNANSWERED: u32 = 1 << State::SynSent as u32
            | 1 << State::UdpUnreplied as u32
            | 1 << State::IcmpUnreplied as u32
            | 1 << State::OtherUnreplied as u32;
        UNANSWERED >> (self.bits & 0x1f) & 1 == 1 && (self.bits & OPENED_BY_A != 0) == from_a
    }

    /// The number of its state, whether its timeout has passed or not.
    #[inline]
    pub const fn state(&self) -> usize {
        (self.bits & 0xff) as usize
    }
}

/// A packet as its connection sees it.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// When it came, in nanoseconds.
    pub now: u64,
    /// Whether endpoint `a` sent it.
    pub from_a: bool,
    /// What it says.
    pub signal: Signal,
}

/// Steps of connections for devices.
pub(crate) const KERNEL: Text = Text {
    name: "connections",
    source: include_str!("connections.kernel.c"),
    constants: &[
        ("CONNECTION_STATES", State::COUNT as u32),
        ("CONNECTION_BY_A", OPENED_BY_A as u32),
        ("CONNECTION_STATE", STATE as u32),
        ("CONNECTION_OPENS", OPENS as u32),
        ("CONNECTION_STAYS", STAYS as u32),
        ("CONNECTION_INVALID", INVALID as u32),
        ("SIGNAL_SYN", Signal::Syn as u32),
        ("SIGNAL_SYN_ACK", Signal::SynAck as u32),
        ("SIGNAL_ACK", Signal::Ack as u32),
        ("SIGNAL_FIN", Signal::Fin as u32),
        ("SIGNAL_RESET", Signal::Reset as u32),
        ("SIGNAL_BAD", Signal::Bad as u32),
        ("SIGNAL_DATAGRAM", Signal::Datagram as u32),
        ("SIGNAL_REQUEST", Signal::Request as u32),
        ("SIGNAL_REPLY", Signal::Reply as u32),
        ("SIGNAL_PACKET", Signal::Packet as u32),
        ("CLASS_NEW", Class::New as u32),
        ("CLASS_ESTABLISHED", Class::Established as u32),
        ("CLASS_INVALID", Class::Invalid as u32),
    ],
};

/// Words of the steps of a state and direction, a byte each.
const STEP_WORDS: usize = Signal::COUNT.div_ceil(4);

packetloom_memory::layout! {
    /// What [`KERNEL`] is given.
    #[derive(Clone, Copy, NoUninit)]
    pub(crate) struct ConnectionParameters {
        /// By state.
        timeouts: [u64; State::COUNT],
        /// By state and direction, bytes by signal.
        steps: [[[u32; STEP_WORDS]; 2]; State::COUNT],
    }
}

/// What steps connections.
#[derive(Clone, Debug)]
pub struct Tracker {
    steps: &'static Steps,
    /// By state, in nanoseconds.
    timeouts: [u64; State::COUNT],
}

impl Tracker {
    /// One with these timeouts; where `loose`, connections whose beginning was not seen are picked up.
    pub fn new(timeouts: &TimeoutsConfig, loose: bool) -> Self {
        Self { steps: if loose { &LOOSE } else { &STRICT }, timeouts: timeouts.by_state() }
    }

    /// Timeouts and steps as [`KERNEL`] takes them.
    pub(crate) fn parameters(&self) -> ConnectionParameters {
        let words = |of: &[u8; Signal::COUNT]| {
            let mut words = [0; STEP_WORDS];
            of.iter().enumerate().for_each(|(at, &step)| words[at / 4] |= u32::from(step) << (at % 4 * 8));
            words
        };
        let steps = self.steps.each_ref().map(|of| of.each_ref().map(words));
        ConnectionParameters { timeouts: self.timeouts, steps }
    }

    /// What there is to say of the connections that there are at a time.
    pub(crate) fn facts(self, now: u64) -> Facts<'static> {
        Box::new(move |words| {
            let &[bits, last] = words else { return None };
            let connection = Connection { bits, last };
            let state = State::ALL.get(connection.state()).copied().filter(|&state| state != State::None)?;
            let timeout = self.timeouts[state as usize];
            self.is_alive(&connection, now).then(|| FlowFacts {
                last: Some(last),
                from_a: Some(bits & OPENED_BY_A != 0),
                state: Some(state),
                expires: (timeout != u64::MAX).then(|| last.saturating_add(timeout)),
                ..FlowFacts::default()
            })
        })
    }

    /// What [`Tracker::facts`] says.
    pub(crate) const FACTS: FactsKept = FactsKept { counts: false, first: false, state: true };

    /// Whether there is a connection at a time.
    #[inline]
    pub fn is_alive(&self, connection: &Connection, now: u64) -> bool {
        now.saturating_sub(connection.last) < self.timeouts[connection.state() % State::COUNT]
    }

    /// What a packet is to a connection, and what that becomes if the packet passes.
    #[inline]
    pub fn step(&self, connection: &Connection, arrival: Arrival) -> (Class, Connection) {
        let Arrival { now, from_a, signal } = arrival;
        let is_alive = self.is_alive(connection, now);
        let state = if is_alive { connection.state() % State::COUNT } else { State::None as usize };
        let by_a = if is_alive { connection.bits & OPENED_BY_A != 0 } else { from_a };
        let step = self.steps[state][usize::from(by_a != from_a)][signal as usize];
        let last = if is_alive { connection.last.max(now) } else { now };
        let state = u64::from(step & STATE);
        if step & (OPENS | STAYS | INVALID) == 0 {
            let opener = connection.bits & OPENED_BY_A;
            return (Class::Established, Connection { bits: state | opener, last });
        }
        match step {
            _ if step & INVALID != 0 => (Class::Invalid, *connection),
            _ if step & STAYS != 0 => (Class::Established, *connection),
            _ => (Class::New, Connection { bits: state | if from_a { OPENED_BY_A } else { 0 }, last }),
        }
    }
}
