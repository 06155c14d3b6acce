//! The questions of DNS messages (RFC 1035 section 4.1; RFC 6762 section 18).

use crate::stream::Step;
use crate::text::push_escaped;
use crate::wire::{Field, Stop, be16};
use crate::{FieldValue, Finding, Name, NameKind, Values};

/// DNS and multicast DNS.
const PORTS: [u16; 2] = [53, 5353];

/// Bytes of a message before its first question, and where its flags and its number of questions are.
const HEADER: usize = 12;
const FLAGS: usize = 2;
const QUESTIONS: usize = 4;
/// The flag of a response.
const RESPONSE: u8 = 0x80;
/// Questions of a message whose names are told: hardly a program asks two.
const MAX_QUESTIONS: usize = 32;
/// Pointers in a name that are followed: those who write names point to one place, which may have a pointer itself.
const MAX_POINTERS: usize = 16;
/// Bytes of a question behind its name: type and class.
const BEHIND_NAME: usize = 4;

/// Bytes that a name on the wire can have, with the lengths of its labels.
const MAX_NAME: usize = 255;

/// Bytes before a message on a stream: its length (RFC 1035 section 4.2.2).
const PREFIX: usize = 2;
/// Bytes on a stream behind which there is nothing of the first question: neither its name, the root in it a pointer of two bytes, nor its
/// type.
const MAX_STREAM: usize = PREFIX + HEADER + MAX_NAME + 1 + 2;
/// The same of all questions whose names are told.
const MAX_QUERY: usize = PREFIX + HEADER + MAX_QUESTIONS * (MAX_NAME + 1 + BEHIND_NAME);

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
    let mut pointers = 0;
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
                pointers += 1;
                // To what is before the labels that it ends: it ends, therefore.
                if target >= floor || pointers > MAX_POINTERS {
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
    Ok((Name { kind: NameKind::DnsQuery, text: text.into(), query_type }, behind + BEHIND_NAME))
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

/// The names of all questions of a query, as far as they were read.
#[derive(Debug, Default)]
struct Questions {
    values: Values,
    /// Where the next question is, from the first on.
    next: usize,
    /// Bytes of names.
    bytes: usize,
}

impl Questions {
    /// Reads on in the query that begins at `begin` in `bytes` and ends at `end`; its names once all are read.
    fn read(&mut self, bytes: &[u8], begin: usize, end: usize) -> Result<Values, Stop> {
        let message = Field { bytes, end };
        let [flags] = message.at(begin + FLAGS)?;
        let count = be16(message.at(begin + QUESTIONS)?).min(MAX_QUESTIONS);
        if flags & RESPONSE != 0 {
            return Err(Stop::NoName);
        }
        let first = begin + HEADER;
        while self.values.len() < count {
            let (name, next) = match question(message, begin, first + self.next) {
                Err(Stop::NoName) => break,
                read => read?,
            };
            let text = Box::<[u8]>::from(name.text);
            self.bytes += text.len();
            let question = self.values.len() as u16;
            self.values.push(FieldValue { question, ..FieldValue::new(crate::Field::DnsQuery, text) });
            self.next = next - first;
        }
        if self.values.is_empty() { Err(Stop::NoName) } else { Ok(std::mem::take(&mut self.values)) }
    }
}

/// The names that the query in a datagram asks for.
pub(crate) fn query(payload: &[u8]) -> Option<Values> {
    Questions::default().read(payload, 0, payload.len()).ok()
}

/// The name in a datagram.
pub(crate) fn datagram(payload: &[u8]) -> Option<Name> {
    first_question(payload, 0, payload.len()).ok()
}

/// A message on a stream, as far as its first question, or as its questions.
#[derive(Debug)]
pub(crate) struct Message {
    /// Where all names of a query are told, and not the first of any message.
    questions: Option<Questions>,
    bytes: Vec<u8>,
    /// Bytes before which nothing more can be said.
    needs: usize,
}

impl Message {
    /// One of which all questions are told where they are values, else the first.
    pub(crate) fn new(are_values: bool) -> Self {
        let questions = are_values.then(Questions::default);
        Self { questions, bytes: Vec::new(), needs: 0 }
    }

    /// Bytes of a stream that it is given.
    pub(crate) fn limit(&self) -> usize {
        if self.questions.is_some() { MAX_QUERY } else { MAX_STREAM }
    }

    /// Takes the bytes that follow.
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> Step {
        let Self { questions, bytes: kept, needs } = self;
        let is_first = kept.is_empty();
        if !is_first {
            kept.extend_from_slice(bytes);
            if kept.len() < *needs {
                return Step::More;
            }
        }
        match read(if is_first { bytes } else { kept }, questions.as_mut()) {
            Ok(finding) => Step::Found(finding),
            Err(Stop::NoName) => Step::NoName,
            Err(Stop::Needs(more)) => {
                *needs = more;
                if is_first {
                    kept.extend_from_slice(bytes);
                }
                Step::More
            }
        }
    }

    /// Bytes on the heap.
    pub(crate) fn heap(&self) -> usize {
        let of_questions =
            |questions: &Questions| questions.bytes + questions.values.capacity() * size_of::<FieldValue>();
        self.bytes.capacity() + self.questions.as_ref().map_or(0, of_questions)
    }
}

/// What the bytes of a message on a stream tell.
fn read(bytes: &[u8], questions: Option<&mut Questions>) -> Result<Finding, Stop> {
    let prefix = Field { bytes, end: usize::MAX };
    let end = PREFIX + be16(prefix.at(0)?);
    match questions {
        Some(questions) => questions.read(bytes, PREFIX, end).map(Finding::Values),
        None => first_question(bytes, PREFIX, end).map(Finding::Name),
    }
}
