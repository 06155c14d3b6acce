//! Sequences by hand, and the table held to the slow form.

use std::net::{IpAddr, Ipv4Addr};

use proptest::prelude::*;

use super::*;
use crate::flows::{OracleFlow, Role};
use crate::oracle::OracleIp;

const S: u8 = 2;
const SA: u8 = 18;
const A: u8 = 16;
const FA: u8 = 17;
const R: u8 = 4;
const RA: u8 = 20;
const SECOND: u64 = 1_000_000_000;

/// A packet in both forms.
#[derive(Clone, Copy, Debug)]
struct Sent {
    now: u64,
    from_a: bool,
    protocol: u8,
    /// TCP's flags, or an ICMP type.
    says: Option<u8>,
}

fn tcp(now: u64, from_a: bool, flags: u8) -> Sent {
    Sent { now, from_a, protocol: 6, says: Some(flags) }
}

impl Sent {
    fn arrival(self) -> Arrival {
        let says = self.says.unwrap_or_default();
        let (flags, bits, port) = match (self.protocol, self.says) {
            (6, Some(flags)) => (flags, KeyBits::PORTS.with(KeyBits::TCP_FLAGS), 1),
            (1 | 58, _) => (0, KeyBits::ICMP, u16::from(says)),
            _ => (0, KeyBits::PORTS, 1),
        };
        Arrival { now: self.now, from_a: self.from_a, signal: Signal::of(self.protocol, flags, bits, port) }
    }

    fn ip(self) -> OracleIp {
        let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
        OracleIp {
            source: address,
            destination: address,
            dscp: 0,
            protocol: self.protocol,
            ports: None,
            icmp: self.says.filter(|_| self.protocol != 6).map(|kind| (kind, 0)),
            tcp_flags: self.says.filter(|_| self.protocol == 6),
            first_fragment: false,
            later_fragment: false,
            identifier: None,
            quoted: None,
            bytes: 40,
            header: 20,
        }
    }
}

/// Steps both forms; says what the packet was and the new state, 0 where the connection's time was over or there is none.
struct Both {
    fast: Tracker,
    slow: OracleTracker,
    connection: Connection,
    held: Option<OracleConnection>,
}

impl Both {
    fn new(timeouts: TimeoutsConfig, loose: bool) -> Self {
        Self {
            fast: Tracker::new(&timeouts, loose),
            slow: OracleTracker::new(timeouts, loose),
            connection: Connection::default(),
            held: None,
        }
    }

    fn step(&mut self, sent: Sent) -> Class {
        let (class, next) = self.fast.step(&self.connection, sent.arrival());
        let flow = OracleFlow { life: 1, from_a: sent.from_a, role: Role::Member };
        let (slow_class, held) = self.slow.step(self.held, &sent.ip(), &flow, sent.now);
        assert_eq!(class, slow_class, "{sent:?}");
        (self.connection, self.held) = (next, held);
        for later in [0, 1, SECOND, 100 * SECOND, 10_000 * SECOND] {
            let now = sent.now.saturating_add(later);
            let is_alive = self.held.is_some_and(|held| self.slow.is_alive(&held, now));
            assert_eq!(self.fast.is_alive(&self.connection, now), is_alive, "{sent:?}, {later} later");
        }
        class
    }
}

/// Steps both forms through packets; each is said to be of a class, and to lead to a state.
fn follow(loose: bool, packets: &[(Sent, Class, State)]) {
    let mut both = Both::new(TimeoutsConfig::DEFAULT, loose);
    for (index, &(sent, class, state)) in packets.iter().enumerate() {
        let found = (both.step(sent), both.connection.state());
        assert_eq!(found, (class, state as usize), "packet {index} of {packets:?}");
    }
}

use Class::{Established as Belongs, Invalid, New};

#[test]
fn a_handshake_and_both_fins() {
    for opener in [true, false] {
        let o = |now, flags| tcp(now, opener, flags);
        let r = |now, flags| tcp(now, !opener, flags);
        follow(
            false,
            &[
                (o(0, S), New, State::SynSent),
                // Sent again.
                (o(SECOND, S), Belongs, State::SynSent),
                (r(SECOND, SA), Belongs, State::SynReceived),
                (r(SECOND, SA), Belongs, State::SynReceived),
                (o(SECOND, A), Belongs, State::Established),
                (r(SECOND, A), Belongs, State::Established),
                (o(SECOND, FA), Belongs, State::FinOpener),
                (r(SECOND, A), Belongs, State::FinOpener),
                (r(SECOND, FA), Belongs, State::FinBoth),
                (o(SECOND, A), Belongs, State::TimeWait),
                (r(SECOND, FA), Belongs, State::TimeWait),
                // The port is used again, by either side.
                (r(SECOND, S), New, State::SynSent),
                (o(SECOND, SA), Belongs, State::SynReceived),
                (r(SECOND, A), Belongs, State::Established),
            ],
        );
    }
}

#[test]
fn fins_of_the_other_side_first_and_at_once() {
    let open = [
        (tcp(0, true, S), New, State::SynSent),
        (tcp(0, false, SA), Belongs, State::SynReceived),
        (tcp(0, true, A), Belongs, State::Established),
    ];
    let passive = [
        (tcp(0, false, FA), Belongs, State::FinOther),
        (tcp(0, true, A), Belongs, State::FinOther),
        (tcp(0, true, FA), Belongs, State::FinBoth),
        (tcp(0, false, A), Belongs, State::TimeWait),
    ];
    let at_once = [
        (tcp(0, true, FA), Belongs, State::FinOpener),
        (tcp(0, false, FA), Belongs, State::FinBoth),
        (tcp(0, false, A), Belongs, State::TimeWait),
        (tcp(0, true, A), Belongs, State::TimeWait),
    ];
    follow(false, &[&open[..], &passive].concat());
    follow(false, &[&open[..], &at_once].concat());
    // The last ACK of the handshake may come with the first FIN.
    follow(
        false,
        &[
            open[0],
            open[1],
            (tcp(0, true, FA), Belongs, State::FinOpener),
            (tcp(0, false, FA), Belongs, State::FinBoth),
        ],
    );
}

#[test]
fn both_sides_open() {
    let syns = [(tcp(0, true, S), New, State::SynSent), (tcp(0, false, S), Belongs, State::SynBoth)];
    for first in [true, false] {
        let half = if first { State::SynAnswered } else { State::SynReceived };
        follow(
            false,
            &[
                syns[0],
                syns[1],
                (tcp(0, first, SA), Belongs, half),
                (tcp(0, first, S), Belongs, half),
                (tcp(0, !first, SA), Belongs, State::Established),
            ],
        );
    }
    follow(false, &[syns[0], syns[1], (tcp(0, true, FA), Invalid, State::SynBoth)]);
}

#[test]
fn resets() {
    // Refused; tried again with the same port.
    follow(
        false,
        &[
            (tcp(0, true, S), New, State::SynSent),
            (tcp(0, false, RA), Belongs, State::Reset),
            (tcp(0, false, SA), Invalid, State::Reset),
            (tcp(0, true, S), New, State::SynSent),
        ],
    );
    // A forged one ends nothing: four minutes count from the last packet.
    let four_minutes = 240 * SECOND;
    follow(
        false,
        &[
            (tcp(0, true, S), New, State::SynSent),
            (tcp(0, false, SA), Belongs, State::SynReceived),
            (tcp(0, true, A), Belongs, State::Established),
            (tcp(0, false, R), Belongs, State::Reset),
            (tcp(four_minutes - 1, true, A), Belongs, State::Reset),
            (tcp(2 * four_minutes - 2, false, A), Belongs, State::Reset),
            (tcp(3 * four_minutes - 2, false, A), Invalid, State::Reset),
        ],
    );
    follow(false, &[(tcp(0, true, R), Invalid, State::None)]);
}

#[test]
fn half_open_connections() {
    let established = [
        (tcp(0, true, S), New, State::SynSent),
        (tcp(0, false, SA), Belongs, State::SynReceived),
        (tcp(0, true, A), Belongs, State::Established),
    ];
    // The opener has forgotten: SYN, an ACK in answer, a reset, and SYN again.
    let forgotten = [
        (tcp(0, true, S), Belongs, State::Established),
        (tcp(0, false, A), Belongs, State::Established),
        (tcp(0, true, R), Belongs, State::Reset),
        (tcp(0, true, S), New, State::SynSent),
        // The other side, too: an ACK in answer to a SYN.
        (tcp(0, false, A), Belongs, State::SynSent),
        (tcp(0, true, R), Belongs, State::Reset),
    ];
    follow(false, &[&established[..], &forgotten].concat());
    // The other side does not open a connection that there is, nor does the opener answer one.
    let odd = [
        (tcp(0, false, S), Invalid, State::Established),
        (tcp(0, true, SA), Invalid, State::Established),
        (tcp(0, false, SA), Belongs, State::Established),
    ];
    follow(false, &[&established[..], &odd].concat());
}

#[test]
fn what_opens_nothing() {
    for flags in [SA, A, FA, R, RA, 0, 1, 3, 6, 7, 5, 21, 19, 22, 8, 0x20, 0x29] {
        follow(false, &[(tcp(0, true, flags), Invalid, State::None)]);
    }
    follow(false, &[(Sent { says: None, ..tcp(0, true, 0) }, Invalid, State::None)]);
    // PSH, URG, ECE and CWR do not matter.
    follow(false, &[(tcp(0, true, 0xea), New, State::SynSent)]);
    // The opener's ACK comes after an answer.
    follow(
        false,
        &[
            (tcp(0, true, S), New, State::SynSent),
            (tcp(0, true, A), Invalid, State::SynSent),
            (tcp(0, true, SA), Invalid, State::SynSent),
            (tcp(0, true, FA), Invalid, State::SynSent),
            (tcp(0, false, FA), Invalid, State::SynSent),
        ],
    );
}

#[test]
fn loose_connections_are_picked_up() {
    follow(
        true,
        &[(tcp(0, false, A), New, State::Established), (tcp(0, true, FA), Belongs, State::FinOther)],
    );
    follow(true, &[(tcp(0, false, FA), New, State::FinOpener), (tcp(0, true, FA), Belongs, State::FinBoth)]);
    // Only one direction is seen.
    follow(true, &[(tcp(0, true, S), New, State::SynSent), (tcp(0, true, A), Belongs, State::Established)]);
    for flags in [SA, R, RA, 0] {
        follow(true, &[(tcp(0, true, flags), Invalid, State::None)]);
    }
}

#[test]
fn timeouts_to_the_nanosecond() {
    let sent = |protocol, now, from_a, says| Sent { now, from_a, protocol, says };
    let syn = |now| (tcp(now, true, S), New, State::SynSent);
    let syn_ack = |now| (tcp(now, false, SA), Belongs, State::SynReceived);
    let ack = |now| (tcp(now, true, A), Belongs, State::Established);
    // Four minutes until it is established, from the last packet.
    follow(false, &[syn(0), (tcp(240 * SECOND - 1, false, SA), Belongs, State::SynReceived)]);
    follow(false, &[syn(0), (tcp(240 * SECOND, false, SA), Invalid, State::SynSent)]);
    follow(
        false,
        &[syn(5), (tcp(240 * SECOND + 4, true, S), Belongs, State::SynSent), syn(480 * SECOND + 4)],
    );
    // Two hours and four minutes then.
    let two_hours = 7_440 * SECOND;
    follow(false, &[syn(0), syn_ack(7), ack(9), (tcp(two_hours + 8, false, A), Belongs, State::Established)]);
    follow(false, &[syn(0), syn_ack(7), ack(9), (tcp(two_hours + 9, false, A), Invalid, State::Established)]);
    // Packets that are invalid or change nothing are no sign of life; time that goes back is none either.
    follow(
        false,
        &[
            syn(0),
            syn_ack(7),
            ack(9),
            (tcp(8, true, A), Belongs, State::Established),
            (tcp(SECOND, true, 0), Invalid, State::Established),
            (tcp(SECOND, true, S), Belongs, State::Established),
            (tcp(two_hours + 9, false, A), Invalid, State::Established),
        ],
    );
    // UDP: two minutes, and five when both have sent.
    let minutes = 60 * SECOND;
    let datagram = |now, from_a| sent(17, now, from_a, None);
    follow(
        false,
        &[
            (datagram(0, true), New, State::UdpUnreplied),
            (datagram(2 * minutes - 1, true), Belongs, State::UdpUnreplied),
            (datagram(4 * minutes - 1, true), New, State::UdpUnreplied),
            (datagram(4 * minutes, false), Belongs, State::UdpReplied),
            (datagram(9 * minutes - 1, true), Belongs, State::UdpReplied),
            (datagram(14 * minutes - 1, false), New, State::UdpUnreplied),
            (datagram(14 * minutes, true), Belongs, State::UdpReplied),
        ],
    );
    // ICMP: one minute; a reply opens nothing.
    for (protocol, request, reply) in [(1, 8, 0), (1, 13, 14), (58, 128, 129)] {
        let request = |now| sent(protocol, now, true, Some(request));
        let reply = |now| sent(protocol, now, false, Some(reply));
        follow(
            false,
            &[
                (reply(0), Invalid, State::None),
                (request(0), New, State::IcmpUnreplied),
                (request(1), Belongs, State::IcmpUnreplied),
                (reply(minutes), Belongs, State::IcmpReplied),
                (request(2 * minutes - 1), Belongs, State::IcmpReplied),
                (reply(3 * minutes - 1), Invalid, State::IcmpReplied),
                (request(3 * minutes - 1), New, State::IcmpUnreplied),
            ],
        );
    }
    // Others: ten minutes.
    follow(
        false,
        &[
            (sent(47, 0, false, None), New, State::OtherUnreplied),
            (sent(47, 1, true, None), Belongs, State::OtherReplied),
            (sent(47, 10 * minutes, false, None), Belongs, State::OtherReplied),
            (sent(47, 20 * minutes, false, None), New, State::OtherUnreplied),
        ],
    );
}

#[test]
fn a_timeout_of_0_is_none() {
    let timeouts = TimeoutsConfig { udp_unreplied: Span::from_secs(0), ..TimeoutsConfig::DEFAULT };
    assert_eq!(timeouts.longest().limit(), None);
    assert_eq!(TimeoutsConfig::DEFAULT.longest(), Span::from_secs(7_440));
    let mut both = Both::new(timeouts, false);
    let datagram = |now| Sent { now, from_a: true, protocol: 17, says: None };
    assert_eq!(both.step(datagram(0)), New);
    assert_eq!(both.step(datagram(1 << 62)), Belongs);
}

use crate::units::Span;

proptest! {
    /// Any packets at any times: the table gives what follows from what each side has sent.
    #[test]
    fn the_table_is_the_slow_form(
        protocol in prop::sample::select(vec![6u8, 6, 6, 17, 1, 58, 47]),
        loose in any::<bool>(),
        packets in prop::collection::vec(
            (any::<bool>(), prop_oneof![6 => Just(0u8), 1 => any::<u8>()], 0..7usize, prop_oneof![4 => 0..SECOND, 1 => 0..9_000 * SECOND], 0..20u64),
            1..60,
        ),
    ) {
        let mut both = Both::new(TimeoutsConfig::DEFAULT, loose);
        let mut time = 0;
        for (from_a, odd, usual, later, early) in packets {
            time += later;
            let flags = if odd == 0 { [S, SA, A, FA, R, RA, A][usual] } else { odd };
            let now = if early == 0 { time / 2 } else { time };
            let sent = match protocol {
                6 => tcp(now, from_a, flags),
                // Direction and type go together.
                1 => Sent { now, from_a, protocol, says: Some(if from_a { 8 } else { 0 }) },
                58 => Sent { now, from_a, protocol, says: Some(if from_a { 128 } else { 129 }) },
                _ => Sent { now, from_a, protocol, says: None },
            };
            both.step(sent);
        }
    }
}
