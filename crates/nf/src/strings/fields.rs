//! Header fields of packets: over the segments of each flow's first messages, or of each packet by itself.

use std::sync::Arc;

use packetloom_names::{Field, FieldWatch, Fields};
use packetloom_packet::{Batch, protocol};
use packetloom_pattern::{Match, Scratch};

use super::cpu::emptied;
use super::judge::{InFields, Message, in_fields};
use super::learning::Current;
use super::messages::Messages;
use super::{FlowCounts, List, Within};
use crate::flows::Seen;
use crate::watches::{Followed, Payload, Watches, payload_in, payload_of};

/// Finds fields, and patterns in them, a packet at a time.
pub(super) struct FlowFields {
    fields: Fields,
    follows: bool,
    watches: Watches<FieldWatch>,
    /// Where signatures have contents in several places of messages that come in several packets.
    pub(super) messages: Option<Messages>,
    set: Current,
    /// The rest is kept for the next packet.
    texts: Vec<&'static [u8]>,
    matches: Vec<Match>,
    scratch: Scratch,
}

/// Whether the rest of a flow is dropped with a packet of it: not of questions of DNS over UDP, each of which is by itself.
pub(super) fn drops_flow(list: &List, protocol: u8, messages: &[Message]) -> bool {
    let drops = list.settings.flows.as_ref().is_some_and(|flows| flows.drops);
    let has_question =
        || messages.iter().flat_map(|message| &message.values).any(|value| value.field == Field::DnsQuery);
    drops && !(protocol == protocol::UDP && has_question())
}

/// The messages that a payload has by itself: the one that it begins with, and requests behind it.
pub(super) fn alone(payload: Option<Payload<'_>>, fields: Fields) -> Vec<Message> {
    let mut messages = Vec::new();
    let mut next = payload;
    while let Some(payload) = next {
        let values = payload.alone::<FieldWatch>(fields);
        messages.extend(values.map(|values| Message { begins: true, values }));
        next = payload.behind_request();
    }
    messages
}

impl FlowFields {
    /// None where no field is looked at.
    pub(super) fn new(list: &Arc<List>) -> Option<Self> {
        let follows = list.settings.within == Within::Stream;
        let is_remembered = follows && !list.places_of_several.is_empty();
        (!list.fields.is_empty()).then(|| Self {
            fields: list.fields,
            follows,
            watches: Watches::new(list.fields),
            messages: is_remembered.then(Messages::default),
            set: list.current(),
            texts: Vec::new(),
            matches: Vec::new(),
            scratch: Scratch::default(),
        })
    }

    /// What a packet of a flow has of messages.
    pub(super) fn of_packet(&mut self, packet: &Seen<'_, '_>, followed: &mut Followed) -> Vec<Message> {
        if !self.follows {
            return alone(payload_of(packet), self.fields);
        }
        let progress = self.watches.follow(packet, followed);
        let is_told = progress.begins || progress.found.is_some();
        let message = Message { begins: progress.begins, values: progress.found.unwrap_or_default() };
        let later = payload_of(packet).and_then(|payload| payload.behind_request());
        is_told.then_some(message).into_iter().chain(alone(later, self.fields)).collect()
    }

    /// The same of a packet of no flow.
    pub(super) fn of_other(&self, batch: &Batch, index: usize) -> Vec<Message> {
        alone(payload_in(batch, index), self.fields)
    }

    /// Drops a flow from now on.
    pub(super) fn drop_flow(&mut self, followed: &mut Followed) {
        self.forget(followed.number());
        followed.drop_flow();
    }

    /// Ends a flow.
    pub(super) fn forget(&mut self, flow: u64) {
        self.watches.end(flow);
        if let Some(messages) = &mut self.messages {
            messages.forget(flow);
        }
    }

    /// What was counted.
    pub(super) fn counts(&self) -> FlowCounts {
        let Watches { gave_up, no_room, .. } = self.watches;
        let not_remembered = self.messages.as_ref().map_or(0, |messages| messages.not_remembered);
        FlowCounts { gave_up, no_room, not_remembered, ..FlowCounts::default() }
    }

    /// What is found in messages.
    pub(super) fn search(&mut self, list: &Arc<List>, messages: &[Message]) -> Vec<InFields> {
        if messages.is_empty() {
            return Vec::new();
        }
        let Self { set, texts: room, matches, scratch, .. } = self;
        let mut texts = emptied(std::mem::take(room));
        texts.extend(messages.iter().flat_map(|message| &message.values).map(|value| &*value.bytes));
        matches.clear();
        set.for_texts(list, &texts).find(&texts, list.wanted(), scratch, matches);
        *room = emptied(texts);
        in_fields(list, messages, 0, matches)
    }
}
