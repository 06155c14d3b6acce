//! From the patterns of a packet to what is said of it.

use std::sync::Arc;

use packetloom_names::Values;
use packetloom_pattern::Match;
use packetloom_pattern::files::Places;

use super::messages::Remembered;
use super::{List, Named, StringsReport, place_of};
use crate::Logged;

/// Judges packets by the patterns in them, and counts.
pub(super) struct Judge {
    pub(super) list: Arc<List>,
    pub(super) report: StringsReport,
    /// Packets of the batch that are handed out.
    pub(super) logged: Vec<Logged>,
    /// What a packet has, and room to find it out.
    signatures: Vec<u32>,
    of_part: Vec<u32>,
    patterns: Vec<u32>,
    room: Vec<u32>,
}

/// What was found in the payload of a packet.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct InPayload<'a> {
    /// Whether there is one, in which patterns are looked for.
    pub(super) is_there: bool,
    /// Patterns that the packet brings; ascending.
    pub(super) new: &'a [u32],
    /// Those that its stream had before.
    pub(super) before: &'a [u32],
}

/// A message that a packet has, or a part of one.
#[derive(Debug)]
pub(super) struct Message {
    /// Whether it begins with the packet.
    pub(super) begins: bool,
    /// What was found of it now.
    pub(super) values: Values,
}

/// What was found in fields that belong together: those of a message, or in a question of DNS.
#[derive(Debug)]
pub(super) struct InFields {
    pub(super) begins: bool,
    /// Whether it is a question of DNS, which is by itself.
    pub(super) is_question: bool,
    /// Fields that are there.
    pub(super) places: Places,
    /// Ascending.
    pub(super) patterns: Vec<u32>,
}

impl Judge {
    pub(super) fn new(list: Arc<List>) -> Self {
        Self {
            report: StringsReport::new(Arc::clone(&list)),
            list,
            logged: Vec::new(),
            signatures: Vec::new(),
            of_part: Vec::new(),
            patterns: Vec::new(),
            room: Vec::new(),
        }
    }

    /// Whether a packet has a signature, which is counted. `remembered` is what is known of the message that its direction is in, where such is
    /// remembered. Of what lies in a stream and in a message over several packets those signatures count alone of which the packet brings
    /// something.
    pub(super) fn matches(
        &mut self,
        frame: u32,
        payload: InPayload<'_>,
        fields: &[InFields],
        mut remembered: Option<&mut Remembered>,
    ) -> bool {
        let Self { list, signatures, of_part, patterns, room, .. } = self;
        signatures.clear();
        let nothing =
            [InFields { begins: false, is_question: false, places: Places::NONE, patterns: Vec::new() }];
        let payload_place = if payload.is_there { Places::PAYLOAD } else { Places::NONE };
        for part in if fields.is_empty() { &nothing } else { fields } {
            patterns.clear();
            patterns.extend_from_slice(payload.new);
            patterns.extend_from_slice(payload.before);
            patterns.extend_from_slice(&part.patterns);
            let mut there = payload_place.and(part.places);
            let mut has_before = !payload.before.is_empty();
            if let Some(message) = remembered.as_deref_mut() {
                if part.begins {
                    message.clear();
                }
                if !part.is_question {
                    patterns.extend_from_slice(message.patterns());
                    there = there.and(message.places());
                    has_before |= !message.places().is_empty();
                    message.add(list, part);
                }
            }
            of_part.clear();
            list.signatures.matched(patterns, there, of_part, room);
            if has_before {
                let is_new = |pattern: &u32| {
                    payload.new.binary_search(pattern).is_ok() || part.patterns.binary_search(pattern).is_ok()
                };
                of_part.retain(|&number| {
                    let signature = list.signature(number);
                    signature.places.meets(part.places) || signature.needs.iter().any(is_new)
                });
            }
            signatures.append(of_part);
        }
        signatures.sort_unstable();
        signatures.dedup();
        self.tell(frame)
    }

    /// Counts a packet with the signatures that it has, if any.
    fn tell(&mut self, frame: u32) -> bool {
        let Self { list, report, logged, signatures, .. } = self;
        if signatures.is_empty() {
            return false;
        }
        report.counts.matched += 1;
        let named = match list.settings.named {
            Named::All => &signatures[..],
            Named::First => &signatures[..1],
            Named::Any => &[],
        };
        for &signature in named {
            report.by_signature[signature as usize] += 1;
            if list.is_handed_out[signature as usize] {
                logged.push(Logged::new(frame, signature));
            }
        }
        true
    }
}

/// What was found in the values of messages, in which the texts of `matches` are numbered, from `first` on.
pub(super) fn in_fields(
    list: &List,
    messages: &[Message],
    first: u32,
    mut matches: &[Match],
) -> Vec<InFields> {
    let mut all = Vec::new();
    let mut text = first;
    for Message { begins, values } in messages {
        if values.is_empty() {
            all.push(InFields {
                begins: *begins,
                is_question: false,
                places: Places::NONE,
                patterns: Vec::new(),
            });
        }
        for of_question in values.chunk_by(|a, b| a.question == b.question) {
            let is_question = of_question[0].field == packetloom_names::Field::DnsQuery;
            let mut part =
                InFields { begins: *begins, is_question, places: Places::NONE, patterns: Vec::new() };
            for value in of_question {
                let place = place_of(value.field);
                let count = matches.partition_point(|found| found.text <= text);
                let found = matches[..count].iter().map(|found| found.pattern);
                part.patterns.extend(found.filter(|&pattern| list.is_looked_for(pattern, place)));
                part.places = part.places.and(place);
                matches = &matches[count..];
                text += 1;
            }
            part.patterns.sort_unstable();
            all.push(part);
        }
    }
    all
}

/// Bytes of all values of messages.
pub(super) fn bytes_of(messages: &[Message]) -> usize {
    messages.iter().flat_map(|message| &message.values).map(|value| value.bytes.len()).sum()
}
