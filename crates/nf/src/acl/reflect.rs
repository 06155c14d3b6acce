//! The batch form of lists whose rules admit connections: rules are found for the whole batch, then packets are stepped in order.
//!
//! A flow's entry holds a [`Connection`] where a rule admitted it, and none else.

use std::sync::Arc;

use bytemuck::NoUninit;
use packetloom_classify::NO_RULE;
use packetloom_memory::LaidOut;
use packetloom_packet::batch::Columns;
use packetloom_packet::{Batch, Role, Verdict};

use super::classes::{ByClass, Ports};
use super::cpu::{Finder, Fixed};
use super::judge::Judge;
use super::states::AclStates;
use super::{Acl, Admits, Admitted, List, live, oracle};
use crate::connections::{self, Arrival, Class, Connection, ConnectionParameters, Signal, Tracker};
use crate::flows::{
    self, By, DeviceKernel, Facts, FactsKept, FlowFunction, FlowOracle, Flows, KernelSpec, KeyAt, Parameters,
    StateAt, StateSpec, Text, Transport, Visit, state_words,
};
use crate::units::Span;
use crate::{Found, Logged, PerFlow, Records, Report};

impl PerFlow for Acl {
    fn keeps(&self) -> StateSpec {
        let flows = self.list.settings.admits.flows.clone();
        StateSpec { flows, by: &[By::Connection], words: state_words::<Connection>() }
    }

    fn min_timeout(&self) -> Option<Span> {
        Some(self.list.settings.admits.timeouts.longest())
    }

    fn facts_kept(&self) -> FactsKept {
        Tracker::FACTS
    }

    fn facts(&self, now: u64) -> Facts<'_> {
        let Admits { timeouts, loose, .. } = &self.list.settings.admits;
        Tracker::new(timeouts, *loose).facts(now)
    }

    fn function(&self, at: StateAt) -> Box<dyn FlowFunction> {
        let list = self.list.clone();
        match (&self.changes, self.classes()) {
            (Some(changes), _) => Box::new(AclReflect::new(at, list, live::Changing::new(changes.clone()))),
            (None, Some(classes)) if list.tracks => Box::new(AclStates::new(at, list, classes)),
            (None, Some(classes)) => Box::new(AclReflect::new(at, list, ByClass::new(classes))),
            (None, None) => Box::new(AclReflect::new(at, list, Fixed::new(self.classifier()))),
        }
    }

    fn oracle(&self) -> Box<dyn FlowOracle> {
        Box::new(oracle::AclOracle::new(self.list.clone(), self.changes.clone()))
    }

    fn kernel(&self) -> Option<DeviceKernel> {
        if self.list.is_contextual {
            return None;
        }
        const TEXTS: &[Text] = &[
            connections::KERNEL,
            Text { name: "acl", source: include_str!("acl.kernel.c"), constants: &[] },
        ];
        let Admits { timeouts, loose, .. } = &self.list.settings.admits;
        let connections = Tracker::new(timeouts, *loose).parameters();
        Some(DeviceKernel::new(KernelSpec {
            state: Some(Connection::LAYOUT),
            // The engine says which bit it is.
            parameters: Parameters::of(&AclParameters { connections, note: 0, reserved: 0 }),
            totals: Some(Admitted::LAYOUT),
            decides: true,
            ..KernelSpec::new("acl", TEXTS)
        }))
    }
}

packetloom_memory::layout! {
    /// What its step is given.
    #[derive(Clone, Copy, NoUninit)]
    struct AclParameters {
        connections: ConnectionParameters,
        /// From this bit of a packet's notes on stands what rules decide.
        note: u32,
        reserved: u32,
    }
}

struct AclReflect<F> {
    at: StateAt,
    tracker: Tracker,
    finder: F,
    judge: Judge,
    /// For each of the batch's keys the first rule, where its packet still passes.
    first_v4: Vec<u32>,
    first_v6: Vec<u32>,
}

impl<F> AclReflect<F> {
    fn new(at: StateAt, list: Arc<List>, finder: F) -> Self {
        let Admits { timeouts, loose, .. } = &list.settings.admits;
        let tracker = Tracker::new(timeouts, *loose);
        Self { at, tracker, finder, judge: Judge::new(list), first_v4: Vec::new(), first_v6: Vec::new() }
    }
}

impl<F: Finder> FlowFunction for AclReflect<F> {
    fn move_to(&mut self, at: StateAt) {
        self.at = at;
    }

    fn wants_whole(&self) -> bool {
        true
    }

    fn process(&mut self, batch: &mut Batch, flows: &mut Visit<'_>, _records: &mut Records<'_>) {
        let Self { at, tracker, finder, judge, first_v4, first_v6 } = self;
        let Columns { frames, verdicts, v4, v6, port_names, egress, .. } = batch.columns();
        let ports = Ports { frames, egress, names: port_names };
        first_v4.resize(v4.keys.len(), NO_RULE);
        first_v6.resize(v6.keys.len(), NO_RULE);
        finder.find(verdicts, (v4, v6), &ports, |found_v4, found_v6, _| {
            found_v4.scatter(first_v4);
            found_v6.scatter(first_v6);
        });
        let first = |at: KeyAt| match at {
            KeyAt::V4(at) => first_v4[at],
            KeyAt::V6(at) => first_v6[at],
        };
        flows.each(*at, batch, |packet, connection: &mut Connection| {
            let now = packet.now.as_nanos();
            let found = Found { frame: packet.frame, first: first(packet.key_at()), bytes: packet.bytes };
            if packet.role == Role::Related {
                if tracker.is_alive(connection, now) {
                    judge.report.admitted.related += 1;
                    return Verdict::Pass;
                }
                return judge.one(found);
            }
            let Transport { protocol, tcp_flags, bits, source_port } = packet.transport();
            let signal = Signal::of(protocol, tcp_flags, bits, source_port);
            let (class, next) = tracker.step(connection, Arrival { now, from_a: packet.from_a, signal });
            if class == Class::Established {
                *connection = next;
                judge.report.admitted.packets += 1;
                judge.report.admitted.bytes += u64::from(packet.bytes);
                return Verdict::Pass;
            }
            let verdict = judge.one(found);
            if class == Class::New && judge.report.list.admits(found.first) {
                *connection = next;
                judge.report.admitted.connections += 1;
            }
            verdict
        });
        flows.each_without(batch, |packet| {
            judge.one(Found { frame: packet.frame, first: first(packet.key_at()), bytes: packet.bytes })
        });
        judge.mark(batch);
    }

    fn take(&mut self, packets: usize, found: &[Found], batch: &mut Batch) {
        self.finder.skip(packets);
        for &found in found {
            self.judge.one(found);
        }
        self.judge.mark(batch);
    }

    fn add(&mut self, counted: &[u64]) {
        let Admitted { connections, packets, bytes, related } = flows::counted(counted).0;
        let own = &mut self.judge.report.admitted;
        own.connections += connections;
        own.packets += packets;
        own.bytes += bytes;
        own.related += related;
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
