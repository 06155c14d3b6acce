//! One direction of a TCP connection, from its first byte on.

use crate::dns::Message;
use crate::http::Request;
use crate::tls::Records;
use crate::{Fields, Finding, GiveUp, NameKind, Outcome, State, Values, Waiting, dns, http, tls};

/// Gaps in what was seen of a stream, and the bytes from the first one's beginning in which all that is held has to end.
const MAX_GAPS: usize = 4;
const MAX_AHEAD: usize = tls::MAX_STREAM;

/// What some more bytes of a stream told.
#[derive(Debug)]
pub(crate) enum Step {
    Found(Finding),
    NoName,
    More,
}

/// What a payload told, with the state that takes the next one.
pub(crate) trait IntoOutcome {
    fn into_outcome(self, state: impl FnOnce() -> State) -> Outcome<Finding, State>;
}

impl IntoOutcome for Result<Step, GiveUp> {
    fn into_outcome(self, state: impl FnOnce() -> State) -> Outcome<Finding, State> {
        match self {
            Ok(Step::Found(finding)) => Outcome::Found(finding),
            Ok(Step::NoName) => Outcome::NoName,
            Ok(Step::More) => Outcome::More(state()),
            Err(reason) => Outcome::GaveUp(reason),
        }
    }
}

/// What a stream carries.
#[derive(Clone, Copy, Debug)]
enum Protocol {
    Tls,
    Http,
    Dns,
}

impl Protocol {
    /// That of a stream that begins with these bytes, one or more, and may have one of the fields, if such are looked for.
    #[inline]
    fn of(ports: (u16, u16), fields: Option<Fields>, bytes: &[u8]) -> Option<Self> {
        let protocol = Self::by(ports, bytes)?;
        let kind = match protocol {
            Self::Tls => NameKind::TlsServer,
            Self::Http => NameKind::HttpHost,
            Self::Dns => NameKind::DnsQuery,
        };
        fields.is_none_or(|fields| !fields.of(kind).is_empty()).then_some(protocol)
    }

    #[inline]
    fn by(ports: (u16, u16), bytes: &[u8]) -> Option<Self> {
        if dns::has_port(ports.0, ports.1) && !Records::begins_with_hello(bytes) {
            return Some(Self::Dns);
        }
        match bytes[0] {
            b'A'..=b'Z' => Request::may_begin_with(bytes).then_some(Self::Http),
            tls::HANDSHAKE => Records::may_begin_with(bytes).then_some(Self::Tls),
            _ => None,
        }
    }
}

/// What reads the bytes of a stream, in order.
#[derive(Debug)]
enum Reader {
    Tls(Records),
    Http(Request),
    Dns(Message),
}

impl Reader {
    fn new(protocol: Protocol, fields: Option<Fields>) -> Self {
        match protocol {
            Protocol::Tls => Self::Tls(Records::default()),
            Protocol::Http => Self::Http(Request::new(fields)),
            Protocol::Dns => Self::Dns(Message::new(fields.is_some())),
        }
    }

    fn feed(&mut self, bytes: &[u8]) -> Step {
        match self {
            Self::Tls(records) => records.feed(bytes),
            Self::Http(request) => request.feed(bytes),
            Self::Dns(message) => message.feed(bytes),
        }
    }

    /// Bytes of a stream that it is given.
    fn limit(&self) -> usize {
        match self {
            Self::Tls(_) => tls::MAX_STREAM,
            Self::Http(_) => http::MAX_STREAM,
            Self::Dns(message) => message.limit(),
        }
    }

    /// What was found of a message that has more.
    fn take_values(&mut self) -> Values {
        match self {
            Self::Http(request) => request.take_values(),
            Self::Tls(_) | Self::Dns(_) => Values::new(),
        }
    }

    fn heap(&self) -> usize {
        match self {
            Self::Tls(records) => records.heap(),
            Self::Http(request) => request.heap(),
            Self::Dns(message) => message.heap(),
        }
    }
}

/// A stream of which some bytes were seen.
#[derive(Debug)]
pub(crate) struct Stream {
    fields: Option<Fields>,
    ports: (u16, u16),
    /// The sequence number of the first byte that was not read.
    next: u32,
    /// Bytes that were read.
    read: usize,
    /// None before the first byte.
    reader: Option<Reader>,
    /// Bytes behind a gap each, with the sequence numbers of the first of them.
    held: Vec<(u32, Box<[u8]>)>,
}

/// The first segment of a stream that has bytes.
#[inline]
pub(crate) fn start(waiting: Waiting, sequence: u32, payload: &[u8]) -> Outcome<Finding, State> {
    let next = waiting.begin.unwrap_or(sequence);
    let late = sequence.wrapping_sub(next) as i32;
    if late > 0 {
        return Stream::new(waiting, next).hold_first(sequence, payload);
    }
    // Bytes before the beginning are those of a probe whether the connection lives.
    let Some(bytes) = payload.get(late.unsigned_abs() as usize..).filter(|bytes| !bytes.is_empty()) else {
        return Outcome::More(State::Waiting(waiting));
    };
    match Protocol::of(waiting.ports, waiting.fields, bytes) {
        Some(protocol) => take_first(waiting, next, protocol, bytes),
        None => Outcome::NoName,
    }
}

/// The first bytes of a stream that may have a name.
#[inline(never)]
fn take_first(waiting: Waiting, next: u32, protocol: Protocol, bytes: &[u8]) -> Outcome<Finding, State> {
    let mut stream = Stream::new(waiting, next);
    stream.reader = Some(Reader::new(protocol, waiting.fields));
    stream.read(bytes).into_outcome(|| State::Stream(Box::new(stream)))
}

impl Stream {
    fn new(Waiting { fields, ports, .. }: Waiting, next: u32) -> Self {
        Self { fields, ports, next, read: 0, reader: None, held: Vec::new() }
    }

    #[cold]
    #[inline(never)]
    fn hold_first(mut self, sequence: u32, payload: &[u8]) -> Outcome<Finding, State> {
        self.hold(sequence, payload).map(|()| Step::More).into_outcome(|| State::Stream(Box::new(self)))
    }

    /// Takes a segment: what was read already is left out, what is behind a gap is held.
    pub(crate) fn next(&mut self, sequence: u32, payload: &[u8]) -> Result<Step, GiveUp> {
        let Some(bytes) = self.unread(sequence, payload) else {
            self.hold(sequence, payload)?;
            return Ok(Step::More);
        };
        let mut step = self.read(bytes)?;
        while matches!(step, Step::More)
            && let Some(at) =
                self.held.iter().position(|(sequence, bytes)| self.unread(*sequence, bytes).is_some())
        {
            let (sequence, payload) = self.held.swap_remove(at);
            let bytes = self.unread(sequence, &payload).unwrap_or_default();
            step = self.read(bytes)?;
        }
        Ok(step)
    }

    /// The bytes of a segment that were not read, none of them perhaps; `None` where there is a gap before it.
    fn unread<'a>(&self, sequence: u32, payload: &'a [u8]) -> Option<&'a [u8]> {
        let ahead = sequence.wrapping_sub(self.next) as i32;
        (ahead <= 0).then(|| payload.get(ahead.unsigned_abs() as usize..).unwrap_or_default())
    }

    /// Reads what comes next.
    fn read(&mut self, bytes: &[u8]) -> Result<Step, GiveUp> {
        if bytes.is_empty() {
            return Ok(Step::More);
        }
        if self.reader.is_none() {
            let protocol = Protocol::of(self.ports, self.fields, bytes);
            self.reader = protocol.map(|protocol| Reader::new(protocol, self.fields));
        }
        let Some(reader) = &mut self.reader else { return Ok(Step::NoName) };
        let room = reader.limit() - self.read;
        let step = reader.feed(&bytes[..bytes.len().min(room)]);
        if matches!(step, Step::More) && bytes.len() >= room {
            // What was found counts, though there is more that was not.
            let values = reader.take_values();
            return if values.is_empty() {
                Err(GiveUp::Length)
            } else {
                Ok(Step::Found(Finding::Values(values)))
            };
        }
        self.read += bytes.len();
        self.next = self.next.wrapping_add(bytes.len() as u32);
        Ok(step)
    }

    /// Keeps bytes behind a gap. Segments that touch become one; of a byte that came twice, the first counts.
    fn hold(&mut self, sequence: u32, payload: &[u8]) -> Result<(), GiveUp> {
        if payload.is_empty() {
            return Ok(());
        }
        let next = self.next;
        let ahead = |sequence: u32| sequence.wrapping_sub(next) as usize;
        let mut begin = ahead(sequence);
        let mut end = begin + payload.len();
        if end > MAX_AHEAD {
            return Err(GiveUp::Gap);
        }
        let touching = self.held.extract_if(.., |(other, bytes)| {
            ahead(*other) <= begin + payload.len() && begin <= ahead(*other) + bytes.len()
        });
        let touching: Vec<_> = touching.collect();
        for (other, bytes) in &touching {
            begin = begin.min(ahead(*other));
            end = end.max(ahead(*other) + bytes.len());
        }
        let mut joined = vec![0; end - begin].into_boxed_slice();
        joined[ahead(sequence) - begin..][..payload.len()].copy_from_slice(payload);
        for (other, bytes) in &touching {
            joined[ahead(*other) - begin..][..bytes.len()].copy_from_slice(bytes);
        }
        self.held.push((next.wrapping_add(begin as u32), joined));
        if self.held.len() > MAX_GAPS { Err(GiveUp::Gap) } else { Ok(()) }
    }

    /// What was found of a message that has more.
    pub(crate) fn take_values(&mut self) -> Values {
        self.reader.as_mut().map_or(Values::new(), Reader::take_values)
    }

    /// Bytes on the heap, without its own.
    pub(crate) fn heap(&self) -> usize {
        let held: usize = self.held.iter().map(|(_, bytes)| bytes.len()).sum();
        let list = self.held.capacity() * size_of::<(u32, Box<[u8]>)>();
        self.reader.as_ref().map_or(0, Reader::heap) + list + held
    }
}
