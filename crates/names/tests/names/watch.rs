//! Payloads given to a watch, and what all tests expect of it.

use packetloom_names::{GiveUp, Name, NameKind, Outcome, Watch};

/// How a watch ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Found(Name),
    NoName,
    GaveUp(GiveUp),
    /// It wants more.
    Open,
}

impl End {
    /// The text of a name of this kind.
    pub(crate) fn text(&self, kind: NameKind) -> Option<&str> {
        match self {
            Self::Found(name) if name.kind == kind => Some(&name.text),
            _ => None,
        }
    }
}

/// A TCP segment: an offset in the stream, and bytes.
pub(crate) type Segment<'a> = (usize, &'a [u8]);

/// The client's port in tests.
pub(crate) const CLIENT: u16 = 50_000;

/// Gives segments to a watch that knows where the stream begins, or not, until it ends.
pub(crate) fn tcp(port: u16, begin: Option<u32>, first: u32, segments: &[Segment<'_>]) -> End {
    let sequence = |offset: usize| first.wrapping_add(offset as u32);
    let mut segments = segments.iter();
    let &(offset, bytes) = segments.next().expect("a segment");
    let mut outcome = Watch::start_tcp(CLIENT, port, begin, sequence(offset), bytes);
    for &(offset, bytes) in segments {
        let Outcome::More(watch) = outcome else { break };
        check_size(&watch);
        outcome = watch.next(sequence(offset), bytes);
    }
    end(outcome)
}

/// A whole stream in one segment.
pub(crate) fn whole(port: u16, stream: &[u8]) -> End {
    tcp(port, None, 0, &[(0, stream)])
}

/// Gives datagrams to a watch until it ends.
pub(crate) fn udp(port: u16, datagrams: &[impl AsRef<[u8]>]) -> End {
    let mut datagrams = datagrams.iter();
    let first = datagrams.next().expect("a datagram");
    let mut outcome = Watch::start_udp(CLIENT, port, first.as_ref());
    for datagram in datagrams {
        let Outcome::More(watch) = outcome else { break };
        check_size(&watch);
        outcome = watch.next(0, datagram.as_ref());
    }
    end(outcome)
}

fn end(outcome: Outcome) -> End {
    match outcome {
        Outcome::Found(name) => End::Found(name),
        Outcome::NoName => End::NoName,
        Outcome::GaveUp(reason) => End::GaveUp(reason),
        Outcome::More(watch) => {
            check_size(&watch);
            End::Open
        }
    }
}

fn check_size(watch: &Watch) {
    assert!(watch.bytes() <= Watch::MAX_BYTES, "{}", watch.bytes());
    assert!(watch.bytes() >= size_of::<Watch>());
}

/// Every way to cut `stream` in two.
pub(crate) fn cuts(stream: &[u8]) -> impl Iterator<Item = [Segment<'_>; 2]> {
    (1..stream.len()).map(|cut| [(0, &stream[..cut]), (cut, &stream[cut..])])
}

/// Checks that a stream has a name, however it is cut in two segments, and however they come: swapped, again, and more than again. A stream
/// that is cut off has the name or none.
pub(crate) fn check_stream(port: u16, stream: &[u8], kind: NameKind, text: &str) {
    // Sequence numbers wrap inside of it.
    let first = u32::MAX - 20;
    let found = |begin, segments: &[Segment<'_>]| {
        let end = tcp(port, begin, first, segments);
        assert_eq!(end.text(kind), Some(text), "{end:?}, {segments:?}");
    };
    found(None, &[(0, stream)]);
    for [head, tail] in cuts(stream) {
        found(None, &[head, tail]);
        found(Some(first), &[tail, head]);
        found(Some(first), &[(0, b""), head, head, tail]);
        found(None, &[head, (0, &stream[..head.1.len() - 1]), (0, stream)]);
        found(Some(first), &[tail, tail, (0, stream)]);
        // The tail behind another gap, and overlapping with what fills it.
        if tail.1.len() > 2 {
            let later = (tail.0 + 2, &tail.1[2..]);
            found(None, &[head, later, (tail.0, &tail.1[..1]), (tail.0, &tail.1[..2])]);
            found(Some(first), &[later, tail, head]);
        }
        let end = tcp(port, None, first, &[head]);
        assert!(matches!(end, End::Open) || end.text(kind) == Some(text), "{end:?}, {head:?}");
    }
    let bytes: Vec<_> =
        stream.iter().enumerate().map(|(at, byte)| (at, std::slice::from_ref(byte))).collect();
    found(None, &bytes);
}
