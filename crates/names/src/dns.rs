//! The questions of DNS messages (RFC 1035 section 4.1; RFC 6762 section 18).

use crate::stream::Step;
use crate::text::push_escaped;
use crate::wire::{Field, Stop, be16};
use crate::{Name, NameKind};

/// DNS and multicast DNS.
const PORTS: [u16; 2] = [53, 5353];

/// Bytes of a message before its first question, and where its number of questions is.
const HEADER: usize = 12;
const QUESTIONS: usize = 4;

/// Bytes that a name on the wire can have, with the lengths of its labels.
const MAX_NAME: usize = 255;

/// Bytes before a message on a stream: its length (RFC 1035 section 4.2.2).
const PREFIX: usize = 2;
/// Bytes on a stream behind which there is nothing of the first question: neither its name, the root in it a pointer of two bytes, nor its
/// type.
pub(crate) const MAX_STREAM: usize = PREFIX + HEADER + MAX_NAME + 1 + 2;

/// Questions of a message that are read.
const MAX_QUESTIONS: usize = 64;

/// Whether a flow between these ports has DNS messages.
#[inline]
pub(crate) fn has_port(source: u16, destination: u16) -> bool {
    PORTS.contains(&source) || PORTS.contains(&destination)
}

/// The name of the first question of the message that begins at `begin` in `bytes` and ends at `end`; not all of it may be there.
fn first_question(bytes: &[u8], begin: usize, end: usize) -> Result<Name, Stop> {
    let message = Field { bytes, end };
    if message.at(begin + QUESTIONS)? == [0, 0] {
        return Err(Stop::NoName);
    }
    question(message, begin, begin + HEADER).map(|(name, _)| name)
}

/// The name of the question at `at` of a message that begins at `begin`, and where the next question is; not all of it may be there.
fn question(message: Field<'_>, begin: usize, start: usize) -> Result<(Name, usize), Stop> {
    let mut text = String::with_capacity(64);
    // Where to read, how much the name has, from where on no pointer may point, and where the question goes on.
    let (mut at, mut len, mut floor, mut after) = (start, 0, start, None);
    loop {
        let [first] = message.at(at)?;
        match first {
            0 => break,
            1..=63 => {
                let label = message.within(at + 1, first.into())?;
                len += 1 + usize::from(first);
                // With the root, whose label is empty.
                if len + 1 > MAX_NAME {
                    return Err(Stop::NoName);
                }
                if !text.is_empty() {
                    text.push('.');
                }
                push_escaped(&mut text, label.all_from(at + 1)?, true);
                at = label.end;
            }
            0xc0.. => {
                let target = begin + (be16(message.at(at)?) & 0x3fff);
                after.get_or_insert(at + 2);
                // To what is before the labels that it ends: it ends, therefore.
                if target >= floor {
                    return Err(Stop::NoName);
                }
                (at, floor) = (target, target);
            }
            // Kinds of labels that nobody uses any more (RFC 6891 section 5).
            64.. => return Err(Stop::NoName),
        }
    }
    if text.is_empty() {
        text.push('.');
    }
    let behind = after.unwrap_or(at + 1);
    let query_type = match message.at(behind) {
        Ok(number) => Some(u16::from_be_bytes(number)),
        Err(Stop::NoName) => None,
        Err(needs) => return Err(needs),
    };
    // Behind the type is the class.
    Ok((Name { kind: NameKind::DnsQuery, text: text.into(), query_type }, behind + 4))
}

/// Hands out the names of the first questions of a whole message, in order.
pub(crate) fn for_each_question(payload: &[u8], mut take: impl FnMut(Name)) {
    let message = Field { bytes: payload, end: payload.len() };
    let count = message.at(QUESTIONS).map_or(0, be16);
    let mut at = HEADER;
    for _ in 0..count.min(MAX_QUESTIONS) {
        let Ok((name, next)) = question(message, 0, at) else { return };
        take(name);
        at = next;
    }
}

/// The next message of a segment that has whole messages and nothing else, and what is behind it.
pub(crate) fn split_message(segment: &[u8]) -> Option<(&[u8], &[u8])> {
    let (prefix, rest) = segment.split_first_chunk::<PREFIX>()?;
    rest.split_at_checked(be16(*prefix)).filter(|(message, _)| message.len() >= HEADER)
}

/// The name in a datagram.
pub(crate) fn datagram(payload: &[u8]) -> Option<Name> {
    first_question(payload, 0, payload.len()).ok()
}

/// A message on a stream, as far as its first question.
#[derive(Debug, Default)]
pub(crate) struct Message {
    bytes: Vec<u8>,
}

impl Message {
    /// Takes the bytes that follow.
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> Step {
        let found = if self.bytes.is_empty() {
            on_stream(bytes)
        } else {
            self.bytes.extend_from_slice(bytes);
            on_stream(&self.bytes)
        };
        match found {
            Ok(name) => Step::Found(name),
            Err(Stop::NoName) => Step::NoName,
            Err(Stop::Needs(_)) => {
                if self.bytes.is_empty() {
                    self.bytes.extend_from_slice(bytes);
                }
                Step::More
            }
        }
    }

    /// Bytes on the heap.
    pub(crate) fn heap(&self) -> usize {
        self.bytes.capacity()
    }
}

fn on_stream(bytes: &[u8]) -> Result<Name, Stop> {
    let prefix = Field { bytes, end: usize::MAX };
    first_question(bytes, PREFIX, PREFIX + be16(prefix.at(0)?))
}
