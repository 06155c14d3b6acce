//! The batch form that follows names over the packets of a flow.

use std::sync::Arc;

use bytemuck::{Pod, Zeroable};
use packetloom_names::Name;
use packetloom_packet::{Batch, DropReason, FlowKey, KeyBits, Verdict};

use super::{DomainsReport, FlowCounts, Names, drops_flow};
use crate::alerts::Action;
use crate::flows::{End, FlowFunction, Flows, Seen, StateAt, Visit, number_of_new};
use crate::watches::{Payload, Stage, Watches, sequence_of};
use crate::{Logged, Records, Report};

/// What is kept of a flow.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Kept {
    /// [`DROPPED`]; how far each direction is, from [`WAYS`] on; its number, from [`NUMBER`] on.
    bits: u64,
    /// Of each direction of TCP the sequence number of its first byte, once its SYN was seen.
    begins: [u32; 2],
}

/// The flow is dropped.
const DROPPED: u64 = 1;
const WAYS: u32 = 1;
const NUMBER: u32 = 8;

/// Only that is kept in files.
pub(super) const PASSING: &[(usize, u64)] = &[(0, !DROPPED), (1, !0)];

/// Makes the words of a flow its own, whatever they are: that it is dropped only as long as flows are.
pub(super) fn adopt(words: &mut [u64], action: Action) {
    let kept = if action == Action::Drop { DROPPED } else { 0 };
    if let [bits, begins] = words {
        (*bits, *begins) = (*bits & kept, 0);
    }
}

/// How far a direction is, in three bits: whether there may be a name, whether that is over, whether its beginning is known.
const WATCHING: u64 = 1;
const OVER: u64 = 2;
const HAS_BEGIN: u64 = 4;

impl Kept {
    fn way(&self, way: usize) -> u64 {
        self.bits >> (WAYS + 3 * way as u32) & 7
    }

    fn set_way(&mut self, way: usize, bits: u64) {
        let shift = WAYS + 3 * way as u32;
        self.bits = self.bits & !(7 << shift) | bits << shift;
    }

    /// Its number, which it has from now on.
    fn number(&mut self) -> u64 {
        if self.bits >> NUMBER == 0 {
            self.bits |= number_of_new() << NUMBER;
        }
        self.bits >> NUMBER
    }
}

pub(super) struct DomainsPerFlow {
    at: StateAt,
    names: Arc<Names>,
    watches: Watches,
    report: DomainsReport,
    logged: Vec<Logged>,
    /// Frames that get the mark.
    matched: Vec<u32>,
}

impl DomainsPerFlow {
    pub(super) fn new(names: Arc<Names>, at: StateAt) -> Self {
        Self {
            at,
            report: DomainsReport::new(Arc::clone(&names)),
            names,
            watches: Watches::default(),
            logged: Vec::new(),
            matched: Vec::new(),
        }
    }
}

/// The name that a packet completes, or has by itself.
fn name_of(packet: &Seen<'_, '_>, kept: &mut Kept, watches: &mut Watches) -> Option<Name> {
    let transport = packet.transport();
    if !transport.bits.contains(KeyBits::PORTS) || transport.bits.contains(KeyBits::LATER_FRAGMENT) {
        return None;
    }
    let bytes = packet.payload().unwrap_or_default();
    let (protocol, ports) = (transport.protocol, packet.numbers());
    let alone = Payload { protocol, ports, sequence: 0, begin: None, bytes };
    let Some((sequence, is_first)) = sequence_of(packet) else { return alone.name() };
    let way = usize::from(!packet.from_a);
    let mut bits = kept.way(way);
    if is_first && (bits & HAS_BEGIN == 0 || kept.begins[way] != sequence) {
        // The first connection of these ports, or another one.
        kept.begins[way] = sequence;
        bits = HAS_BEGIN;
    }
    let stage = match bits {
        bits if bits & OVER != 0 => Stage::Over,
        bits if bits & WATCHING != 0 => Stage::Watching,
        _ => Stage::Before,
    };
    let begin = (bits & HAS_BEGIN != 0).then_some(kept.begins[way]);
    let (stage, name) = match stage {
        Stage::Over => (stage, None),
        _ if bytes.is_empty() => (stage, None),
        _ => watches.look(kept.number(), way, stage, Payload { sequence, begin, ..alone }),
    };
    let is = match stage {
        Stage::Before => 0,
        Stage::Watching => WATCHING,
        Stage::Over => OVER,
    };
    kept.set_way(way, bits & HAS_BEGIN | is);
    // Names of later requests and questions, and of connections whose beginning was not seen.
    if name.is_none() && stage == Stage::Over { alone.name() } else { name }
}

impl FlowFunction for DomainsPerFlow {
    fn move_to(&mut self, at: StateAt) {
        self.at = at;
    }

    fn process(&mut self, batch: &mut Batch, flows: &mut Visit<'_>, _records: &mut Records<'_>) {
        let Self { at, names, watches, report, logged, matched } = self;
        let settings = &names.settings;
        let verdict = settings.action.verdict(DropReason::Domains);
        matched.clear();
        flows.each(*at, batch, |packet, kept: &mut Kept| {
            if kept.bits & DROPPED != 0 {
                report.flows.get_or_insert_default().dropped += 1;
                return Verdict::Drop(DropReason::Domains);
            }
            let Some(name) = name_of(&packet, kept, watches) else { return Verdict::Pass };
            let Some(line) = report.blocks(&name) else { return Verdict::Pass };
            if names.is_handed_out(line) {
                logged.push(Logged { frame: packet.frame, rule: line });
            }
            matched.push(packet.frame);
            if settings.action == Action::Drop && drops_flow(packet.transport().protocol, name.kind) {
                watches.end(kept.bits >> NUMBER);
                *kept = Kept { bits: DROPPED, ..Kept::zeroed() };
            }
            verdict
        });
        if let Some(mark) = settings.mark {
            matched.iter().for_each(|&frame| batch.set_mark(frame as usize, mark));
        }
    }

    fn on_end(&mut self, _flow: &FlowKey, state: &[u64], _end: End, _records: &mut Records<'_>) {
        self.watches.end(state[0] >> NUMBER);
    }

    fn logged(&mut self, into: &mut Vec<Logged>) {
        // Those of IPv4 came first.
        self.logged.sort_by_key(|logged| logged.frame);
        into.append(&mut self.logged);
    }

    fn report(&self, _flows: &Flows) -> Box<dyn Report> {
        let mut report = self.report.clone();
        let Watches { gave_up, no_room, .. } = self.watches;
        let dropped = report.flows.unwrap_or_default().dropped;
        report.flows = Some(FlowCounts { dropped, gave_up, no_room });
        Box::new(report)
    }
}
