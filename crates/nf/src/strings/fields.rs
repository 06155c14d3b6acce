//! The batch form for header fields of flows: over the segments of each one's first messages, or with what becomes of its rest.

use std::sync::Arc;

use packetloom_names::{Field, FieldWatch};
use packetloom_packet::{Batch, DropReason, FlowKey, Verdict, protocol};
use packetloom_pattern::{Match, Scratch};

use super::cpu::{bytes_of, emptied};
use super::judge::Judge;
use super::learning::Current;
use super::{FlowCounts, List, Within};
use crate::flows::{End, FlowFunction, Flows, StateAt, Visit};
use crate::watches::{Followed, Watches, payload_of};
use crate::{Logged, Records, Report};

pub(super) struct FieldsPerFlow {
    at: StateAt,
    field: Field,
    judge: Judge,
    set: Current,
    watches: Watches<FieldWatch>,
    /// Frames that match.
    matched: Vec<u32>,
    /// The rest is kept for the next packet.
    texts: Vec<&'static [u8]>,
    matches: Vec<Match>,
    scratch: Scratch,
    patterns: Vec<u32>,
}

/// Whether the rest of a flow is dropped with a packet of it: not of questions of DNS over UDP, each of which is by itself.
pub(super) fn drops_flow(list: &List, field: Field, protocol: u8) -> bool {
    let drops = list.settings.flows.as_ref().is_some_and(|flows| flows.drops);
    drops && !(protocol == protocol::UDP && field == Field::DnsQuery)
}

impl FieldsPerFlow {
    pub(super) fn new(list: Arc<List>, field: Field, at: StateAt) -> Self {
        Self {
            at,
            field,
            set: list.current(),
            judge: Judge::new(list),
            watches: Watches::new(field),
            matched: Vec::new(),
            texts: Vec::new(),
            matches: Vec::new(),
            scratch: Scratch::default(),
            patterns: Vec::new(),
        }
    }
}

impl FlowFunction for FieldsPerFlow {
    fn move_to(&mut self, at: StateAt) {
        self.at = at;
    }

    fn process(&mut self, batch: &mut Batch, flows: &mut Visit<'_>, _records: &mut Records<'_>) {
        let Self { at, field, judge, set, watches, matched, texts: room, matches, scratch, patterns } = self;
        let list = Arc::clone(&judge.list);
        let settings = &list.settings;
        let verdict = settings.action.verdict(DropReason::Strings);
        matched.clear();
        flows.each(*at, batch, |packet, followed: &mut Followed| {
            if followed.is_dropped() {
                judge.report.flows.get_or_insert_default().dropped += 1;
                return Verdict::Drop(DropReason::Strings);
            }
            let values = match settings.within {
                Within::Stream => watches.follow(&packet, followed),
                _ => payload_of(&packet).and_then(|payload| payload.alone::<FieldWatch>(*field)),
            };
            let Some(values) = values else { return Verdict::Pass };
            judge.report.searches(Some(bytes_of(&values)), packet.is_cut_off());
            let mut texts = emptied(std::mem::take(room));
            texts.extend(values.iter().map(|value| &**value));
            matches.clear();
            set.for_texts(&list, &texts).find(&texts, list.wanted(), scratch, matches);
            *room = emptied(texts);
            if !judge.matches_in_texts(packet.frame, matches, patterns) {
                return Verdict::Pass;
            }
            matched.push(packet.frame);
            if drops_flow(&list, *field, packet.transport().protocol) {
                watches.drop_flow(followed);
            }
            verdict
        });
        if let Some(mark) = settings.mark {
            matched.iter().for_each(|&frame| batch.set_mark(frame as usize, mark));
        }
    }

    fn on_end(&mut self, _flow: &FlowKey, state: &[u64], _end: End, _records: &mut Records<'_>) {
        self.watches.end(Followed::number_in(state));
    }

    fn logged(&mut self, into: &mut Vec<Logged>) {
        // Of all pieces of a batch, in each of which those of IPv4 came first.
        self.judge.logged.sort_by_key(|logged| logged.frame);
        into.append(&mut self.judge.logged);
    }

    fn report(&self, _flows: &Flows) -> Box<dyn Report> {
        let mut report = self.judge.report.clone();
        let Watches { gave_up, no_room, .. } = self.watches;
        let flows = report.flows.unwrap_or_default();
        report.flows = Some(FlowCounts { gave_up, no_room, ..flows });
        Box::new(report)
    }
}
