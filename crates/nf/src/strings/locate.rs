//! Where the strings of a packet's signatures lie. A packet that is handed out is searched again for that, so that searches know of no places.

use packetloom_pattern::files::Places;
use packetloom_pattern::{Match, Matcher, Part, Report, Scratch};

use super::judge::Message;
use super::{List, Within, place_of};
use crate::{Logged, Offset, Offsets};

/// Places of a signature in a packet that are told; the number of all others is.
const MAX_OFFSETS: usize = 64;

/// A text of a packet.
pub(super) struct Text<'a> {
    bytes: &'a [u8],
    /// What it is of a longer one.
    part: Part,
    /// What the longer one is called, and which patterns are looked for there.
    within: &'static str,
    place: Places,
}

impl<'a> Text<'a> {
    /// A whole text.
    fn new(bytes: &'a [u8], within: &'static str, place: Places) -> Self {
        Self { bytes, part: Part { begin: 0, new: (0, bytes.len() as u32) }, within, place }
    }

    /// What is searched of a packet by itself.
    pub(super) fn payload(bytes: &'a [u8], within: Within) -> Self {
        let within = if within == Within::Packet { "packet" } else { "payload" };
        Self::new(bytes, within, Places::PAYLOAD)
    }

    /// A part of a stream.
    pub(super) fn stream(bytes: &'a [u8], part: Part) -> Self {
        Self { part, ..Self::new(bytes, "stream", Places::PAYLOAD) }
    }

    /// The values of messages.
    pub(super) fn values(messages: &'a [Message]) -> impl Iterator<Item = Self> {
        let values = messages.iter().flat_map(|message| &message.values);
        values.map(|value| Self::new(&value.bytes, value.field.name(), place_of(value.field)))
    }
}

/// What is kept for the next packet.
#[derive(Default)]
pub(super) struct Locator {
    scratch: Scratch,
    matches: Vec<Match>,
    found: Vec<Match>,
}

impl Locator {
    /// Says of the signatures of a packet where their strings lie in its texts.
    pub(super) fn locate(
        &mut self,
        list: &List,
        matcher: &Matcher,
        texts: &[Text<'_>],
        logged: &mut [Logged],
    ) {
        let Self { scratch, matches, found } = self;
        matches.clear();
        let bytes: Vec<_> = texts.iter().map(|text| text.bytes).collect();
        let parts: Vec<_> = texts.iter().map(|text| text.part).collect();
        matcher.find_in_parts(&bytes, &parts, Report::All, scratch, matches);
        matches.retain(|found| list.is_looked_for(found.pattern, texts[found.text as usize].place));
        matches.sort_unstable_by_key(|found| found.pattern);
        for Logged { rule, offsets, .. } in logged {
            found.clear();
            for &pattern in &list.signature(*rule).needs {
                let first = matches.partition_point(|found| found.pattern < pattern);
                let of_pattern = matches[first..].iter().take_while(|found| found.pattern == pattern);
                found.extend(of_pattern);
            }
            let len_of = |found: &Match| list.signatures.patterns.get(found.pattern).bytes.len() as u32;
            found.sort_unstable_by_key(|found| (found.text, found.end - len_of(found), found.end));
            let offset = |found: &Match| {
                let Text { part, within, .. } = &texts[found.text as usize];
                let end = part.begin + i64::from(found.end);
                Offset { within, begin: end - i64::from(len_of(found)), end }
            };
            let told = found.iter().take(MAX_OFFSETS).map(offset).collect();
            let more = found.len().saturating_sub(MAX_OFFSETS) as u64;
            *offsets = Some(Box::new(Offsets { told, more }));
        }
    }
}
