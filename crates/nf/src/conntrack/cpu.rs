//! The batch form.

use packetloom_packet::{Batch, Role, Verdict};

use super::{Config, Connections, ConntrackMore, ConntrackReport, Kind, PROTOCOLS, place};
use crate::connections::{Arrival, Class, Connection, Signal, State, Tracker};
use crate::flows::{self, FlowFunction, Flows, StateAt, Transport, Visit};
use crate::{Records, Report};

pub(super) struct ConntrackCpu {
    at: StateAt,
    tracker: Tracker,
    invalid: Verdict,
    report: ConntrackReport,
    /// Connections that were opened by their protocol's place, and how many times each state was entered.
    opened: [u64; PROTOCOLS.len()],
    entered: [u64; State::COUNT],
}

impl ConntrackCpu {
    pub(super) fn new(at: StateAt, config: &Config) -> Self {
        Self {
            at,
            tracker: Tracker::new(&config.timeouts, config.loose),
            invalid: config.invalid.verdict(),
            report: ConntrackReport::default(),
            opened: [0; PROTOCOLS.len()],
            entered: [0; State::COUNT],
        }
    }
}

impl FlowFunction for ConntrackCpu {
    fn move_to(&mut self, at: StateAt) {
        self.at = at;
    }

    fn process(&mut self, batch: &mut Batch, flows: &mut Visit<'_>, _records: &mut Records<'_>) {
        let Self { at, tracker, invalid, report, opened, entered } = self;
        flows.each(*at, batch, |packet, connection: &mut Connection| {
            let now = packet.now.as_nanos();
            let Transport { protocol, tcp_flags, bits, source_port } = packet.transport();
            if packet.role == Role::Related {
                let is_known = tracker.is_alive(connection, now);
                report.count(if is_known { Kind::Related } else { Kind::Invalid }, packet.bytes);
                return if is_known { Verdict::Pass } else { *invalid };
            }
            let signal = Signal::of(protocol, tcp_flags, bits, source_port);
            let (class, next) = tracker.step(connection, Arrival { now, from_a: packet.from_a, signal });
            report.count(class.into(), packet.bytes);
            if class == Class::Invalid {
                return *invalid;
            }
            if class == Class::New {
                opened[place(protocol)] += 1;
            }
            if class == Class::New || next.state() != connection.state() {
                entered[next.state()] += 1;
            }
            *connection = next;
            Verdict::Pass
        });
        flows.each_without(batch, |packet| match packet.role {
            // There was no room, or there is no connection.
            Role::Member | Role::Untracked => {
                report.count(Kind::Untracked, packet.bytes);
                Verdict::Pass
            }
            Role::Related | Role::Invalid => {
                report.count(Kind::Invalid, packet.bytes);
                *invalid
            }
        });
    }

    fn add(&mut self, counted: &[u64]) {
        let ConntrackMore { kinds, opened, entered } = flows::counted(counted).0;
        let own = self.report.packets.as_flattened_mut().iter_mut();
        let own = own.chain(&mut self.opened).chain(&mut self.entered);
        let kinds = kinds.iter().flat_map(|kind| kind.words());
        let counted = kinds.chain(opened).chain(entered);
        own.zip(counted).for_each(|(own, counted)| *own += counted);
    }

    fn report(&self, _flows: &Flows) -> Box<dyn Report> {
        let mut report = self.report.clone();
        let entered = |state: State| self.entered[state as usize];
        let replied =
            [0, entered(State::UdpReplied), entered(State::IcmpReplied), entered(State::OtherReplied)];
        for ((connections, opened), replied) in report.connections.iter_mut().zip(self.opened).zip(replied) {
            *connections = Connections { opened, replied, ..Connections::default() };
        }
        let tcp = &mut report.connections[0];
        tcp.established = entered(State::Established);
        tcp.closed = entered(State::FinBoth);
        tcp.reset = entered(State::Reset);
        Box::new(report)
    }
}
