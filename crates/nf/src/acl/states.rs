//! The batch form of lists with rules for some states of connections only.
//!
//! A packet's state depends on the packets before it, of its own batch among them. So its rule is looked for in the state that its
//! flow's entry gives it when the batch comes, for all packets at once; then packets are stepped in order, and looked up again where
//! they have another state by then. A flow's entry holds a [`Connection`] where a packet that was permitted opened it.

use std::sync::Arc;

use packetloom_classify::ConnectionState;
use packetloom_packet::batch::Columns;
use packetloom_packet::{Batch, Role, Verdict};

use super::classes::{ByClass, Classes, Guesses, Ports};
use super::judge::Judge;
use super::{Admits, List};
use crate::connections::{Arrival, Class, Connection, Signal, Tracker};
use crate::flows::{FlowFunction, Flows, KeyAt, Seen, StateAt, Transport, Visit};
use crate::{Found, Logged, Records, Report};

pub(super) struct AclStates {
    at: StateAt,
    tracker: Tracker,
    finder: ByClass,
    judge: Judge,
    guesses4: Guesses,
    guesses6: Guesses,
}

impl AclStates {
    pub(super) fn new(at: StateAt, list: Arc<List>, classes: Arc<Classes>) -> Self {
        let Admits { timeouts, loose, .. } = &list.settings.admits;
        Self {
            at,
            tracker: Tracker::new(timeouts, *loose),
            finder: ByClass::new(classes),
            judge: Judge::new(list),
            guesses4: Guesses::default(),
            guesses6: Guesses::default(),
        }
    }
}

/// The state of a packet that has an entry; and what its connection becomes if it passes, and whether it opens it.
#[inline]
fn step(
    tracker: &Tracker,
    packet: &Seen<'_, '_>,
    connection: &Connection,
) -> (ConnectionState, Option<(Connection, bool)>) {
    let now = packet.now.as_nanos();
    if packet.role == Role::Related {
        let is_known = tracker.is_alive(connection, now);
        return (if is_known { ConnectionState::Related } else { ConnectionState::Invalid }, None);
    }
    let Transport { protocol, tcp_flags, bits, source_port } = packet.transport();
    let signal = Signal::of(protocol, tcp_flags, bits, source_port);
    let (class, next) = tracker.step(connection, Arrival { now, from_a: packet.from_a, signal });
    match class {
        Class::New => (ConnectionState::New, Some((next, true))),
        Class::Established if connection.is_unanswered_by(packet.from_a) => {
            (ConnectionState::New, Some((next, false)))
        }
        Class::Established => (ConnectionState::Established, Some((next, false))),
        Class::Invalid => (ConnectionState::Invalid, None),
    }
}

/// The state of a packet that has no entry.
fn without(role: Role) -> ConnectionState {
    match role {
        // There was no room, or there is no connection.
        Role::Member | Role::Untracked => ConnectionState::Untracked,
        Role::Related | Role::Invalid => ConnectionState::Invalid,
    }
}

impl FlowFunction for AclStates {
    fn move_to(&mut self, at: StateAt) {
        self.at = at;
    }

    fn wants_whole(&self) -> bool {
        true
    }

    fn process(&mut self, batch: &mut Batch, flows: &mut Visit<'_>, _records: &mut Records<'_>) {
        let Self { at, tracker, finder, judge, guesses4, guesses6 } = self;
        guesses4.begin(batch.v4().keys.len());
        guesses6.begin(batch.v6().keys.len());
        let mut guess = |packet: &Seen<'_, '_>, state| match packet.key_at() {
            KeyAt::V4(at) => guesses4.states[at] = state,
            KeyAt::V6(at) => guesses6.states[at] = state,
        };
        flows.look(*at, batch, |packet, connection| guess(&packet, step(tracker, &packet, connection).0));
        flows.each_without(batch, |packet| {
            guess(&packet, without(packet.role));
            Verdict::Pass
        });
        let Columns { frames, verdicts, v4, v6, port_names, egress, .. } = batch.columns();
        let ports = Ports { frames, egress, names: port_names };
        finder.find_guessed(verdicts, (v4, v6), &ports, (guesses4, guesses6));
        let mut judge_one = |packet: &Seen<'_, '_>, state: ConnectionState| {
            let (guesses, place) = match packet.key_at() {
                KeyAt::V4(at) => (&*guesses4, at),
                KeyAt::V6(at) => (&*guesses6, at),
            };
            let first = finder.first(guesses, place, state, || packet.key());
            judge.report.tracked.packets[state as usize] += 1;
            judge.one(Found { frame: packet.frame, first, bytes: packet.bytes })
        };
        let mut opened = 0;
        flows.each(*at, batch, |packet, connection: &mut Connection| {
            let (state, next) = step(tracker, &packet, connection);
            let verdict = judge_one(&packet, state);
            if let (true, Some((next, opens))) = (verdict.is_pass(), next) {
                *connection = next;
                opened += u64::from(opens);
            }
            verdict
        });
        flows.each_without(batch, |packet| judge_one(&packet, without(packet.role)));
        judge.report.tracked.connections += opened;
        judge.mark(batch);
    }

    fn logged(&mut self, into: &mut Vec<Logged>) {
        self.judge.logged(into);
    }

    fn go_on(&mut self, counted: &dyn Report) {
        self.judge.report.go_on_with(counted);
    }

    fn report(&self, _flows: &Flows) -> Box<dyn Report> {
        Box::new(self.judge.report.clone())
    }
}
