//! Names in the first payload of a flow: DNS queries, the server names of TLS and QUIC, the hosts of HTTP; and other header fields of the same
//! messages ([`FieldWatch`]).
//!
//! A [`Watch`] is given what one direction of one flow carries, and tells the first name in it:
//!
//! | kind | where | source |
//! | --- | --- | --- |
//! | [`NameKind::DnsQuery`] | UDP and TCP, port 53 or 5353: the first question of the first message, a query or a response | RFC 1035, RFC 6762 |
//! | [`NameKind::TlsServer`] | TCP, any port: the `server_name` of the ClientHello that the stream begins with | RFC 8446, RFC 6066 |
//! | [`NameKind::HttpHost`] | TCP, any port but those of DNS: the `Host` of the request that the stream begins with, HTTP/1.0 or 1.1 | RFC 9112 |
//! | [`NameKind::QuicServer`] | UDP, any port but those of DNS: the `server_name` of the ClientHello in the client's Initial packets, QUIC 1, 2 and drafts 29 to 34 | RFC 9000, RFC 9001, RFC 9369 |
//!
//! Nothing is read but the bytes that it is given, and they may be cut off at the length of a capture: a name that is there whole is
//! found, one that is not is no name. Behind a segment that was cut off there is a gap that is never filled, so the watch gives up once it
//! holds too much. An Initial packet that was cut off cannot be decrypted.
//!
//! Later names of a flow are found by those who begin anew: with a segment that begins with another request, or [`for_each_question`] of a payload of DNS.
//!
//! Nothing is verified that names do not need: checksums of packets, certificates, whether a response answers a query. A client may write
//! any name, and with Encrypted ClientHello the name is that of the outer one.
//!
//! # Differences from tshark 4.0
//!
//! `dns.qry.name`, `tls.handshake.extensions_server_name` and `http.host` are the same text on the captures of the tests, but:
//!
//! | case | tshark | here |
//! | --- | --- | --- |
//! | several names in one direction of a flow | each, with the packet that has it | a watch tells the first |
//! | a name that is complete before its message is | with the packet that ends the message | with the packet that ends the name |
//! | DNS on other ports (LLMNR's 5355, what it knows by heuristics), HTTP over UDP (SSDP) | a name | none |
//! | TLS after a greeting (STARTTLS, `CONNECT`, PostgreSQL) | a name | none, or the host of the request |
//! | packets in tunnels and in ICMP messages | their names | none: the outermost flow counts |
//! | the DNS root | `<Root>` | `.` |
//! | a dot or a backslash in a DNS label | as they are | `\.`, `\\` |
//! | controls, bytes that are not UTF-8 | `\n`, `\001`, replaced | `\010`, `\001`, each byte as three decimal digits |
//! | a pointer in a name that leads forward, or into the same name | followed, or an error as the name | none |
//! | a DNS message that ends behind the name | none | the name, without a type |
//! | a `Host` with blanks behind it, or several of them | with the blanks; each | without; the first |
//! | a `Host` that contains a NUL | up to there | all of it |
//! | a `Host` after a request line of HTTP/0.9 or 2, empty lines before the request line | a name | none |
//! | a `Host` after a method that it does not know, or in a head that does not end | none | a name |

mod dns;
mod fields;
mod hello;
mod http;
mod quic;
mod stream;
mod text;
mod tls;
mod wire;

use std::fmt;

pub use fields::{Field, FieldValue, FieldWatch, Fields, Values};
use quic::Connection;
use stream::{IntoOutcome, Stream};

/// Whether a flow of UDP or TCP between these ports is taken for one of DNS.
#[inline]
pub fn is_dns(source_port: u16, destination_port: u16) -> bool {
    dns::has_port(source_port, destination_port)
}

/// Hands out the names that the questions of DNS messages ask for, in order: of the message that a datagram is, or, where it is a segment of TCP, of the
/// messages that it has if it has whole ones and nothing else. Of each message that are the first 32. A segment may not be such: then it is false.
pub fn for_each_question(payload: &[u8], is_segment: bool, take: impl FnMut(Name)) -> bool {
    if !is_segment {
        dns::for_each_question(payload, take);
        return true;
    }
    let mut rest = payload;
    while let Some((_, behind)) = dns::split_message(rest) {
        rest = behind;
    }
    if payload.is_empty() || !rest.is_empty() {
        return false;
    }
    for_each_leading_question(payload, take);
    true
}

/// The same of the whole DNS messages that a segment of TCP begins with, whatever is behind them.
pub fn for_each_leading_question(segment: &[u8], mut take: impl FnMut(Name)) {
    let mut rest = segment;
    while let Some((message, behind)) = dns::split_message(rest) {
        dns::for_each_question(message, &mut take);
        rest = behind;
    }
}

/// What is behind a request of HTTP/1.x that these bytes begin with, or that has a part of its head before them: the next request, if there is one.
/// None where not all of it is there. Of a body counts its Content-Length, or its chunks (RFC 9112 section 6.3), as far as the fields that say so are
/// in these bytes.
pub fn behind_request(bytes: &[u8]) -> Option<&[u8]> {
    http::behind_request(bytes)
}

/// Whether bytes begin with the first line of a request of HTTP/1.x.
pub fn begins_with_request(bytes: &[u8]) -> bool {
    http::begins_with_request(bytes)
}

/// Where a name was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NameKind {
    /// A question of a DNS message.
    DnsQuery,
    /// The server name of a TLS ClientHello on TCP.
    TlsServer,
    /// The Host of an HTTP/1.x request.
    HttpHost,
    /// The server name of a TLS ClientHello in QUIC.
    QuicServer,
}

/// A name that a flow begins with.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Name {
    /// Where it was found.
    pub kind: NameKind,
    /// Its text, at least one character, in the case that it was sent in: labels of DNS with dots between and none at the end (`.` is the
    /// root); a Host with the port that it may have.
    ///
    /// Characters that are shown stand for themselves, beyond ASCII, too. A backslash is `\\`, a dot in a label of DNS is `\.`, and each
    /// byte of anything else (controls, invalid UTF-8, marks of the direction of text) is `\DDD`, its number in three decimal digits, as
    /// in zone files (RFC 1035 section 5.1).
    pub text: Box<str>,
    /// The type of a DNS question (QTYPE), where it was captured; `None` for other kinds.
    pub query_type: Option<u16>,
}

impl Name {
    fn new(kind: NameKind, text: Box<str>) -> Self {
        Self { kind, text, query_type: None }
    }
}

/// Why a watch ended before it could tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GiveUp {
    /// No name in the first bytes: 16 KiB of TLS or QUIC's handshake, 8 KiB of HTTP.
    Length,
    /// Segments are missing: behind them are more than four others, or more than 16 KiB.
    Gap,
    /// No name in the first 16 datagrams of a QUIC connection.
    Datagrams,
    /// The handshake of a QUIC connection came in too many pieces: more than 64 with gaps between.
    Pieces,
}

impl fmt::Display for GiveUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Length => "no name in the first bytes of the stream",
            Self::Gap => "missing TCP segments",
            Self::Datagrams => "no name in the first datagrams of the QUIC connection",
            Self::Pieces => "QUIC handshake in too many pieces",
        })
    }
}

/// What a payload told.
#[derive(Debug)]
pub enum Outcome<T = Name, W = Watch> {
    /// The name of the flow, or values of fields.
    Found(T),
    /// This direction of the flow has none.
    NoName,
    /// It may have one: to be given the next payload.
    More(W),
    /// It may have had one, but took too much to find out.
    GaveUp(GiveUp),
}

/// What was found.
#[derive(Debug)]
enum Finding {
    Name(Name),
    /// Of fields that are no names.
    Values(Values),
}

/// What was seen of one direction of a flow, while it may have a name.
///
/// ```
/// # use packetloom_names::{NameKind, Outcome, Watch};
/// let (first, second) = (b"GET / HTTP/1.1\r\nHo", b"st: example.com\r\n\r\n");
/// let Outcome::More(watch) = Watch::start_tcp(49152, 80, None, 1000, first) else { panic!() };
/// let Outcome::Found(name) = watch.next(1000 + first.len() as u32, second) else { panic!() };
/// assert_eq!((name.kind, &*name.text), (NameKind::HttpHost, "example.com"));
/// ```
#[derive(Debug)]
pub struct Watch(State);

/// No more than what an empty segment costs; what has bytes is on the heap.
#[derive(Debug)]
enum State {
    Waiting(Waiting),
    Stream(Box<Stream>),
    Quic(Box<Connection>),
}

/// A TCP connection without a byte.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    /// What is looked for, where that is not the first name.
    fields: Option<Fields>,
    /// Source and destination.
    ports: (u16, u16),
    begin: Option<u32>,
}

impl State {
    fn next(self, sequence: u32, payload: &[u8]) -> Outcome<Finding, Self> {
        match self {
            Self::Waiting(waiting) if payload.is_empty() => Outcome::More(Self::Waiting(waiting)),
            Self::Waiting(waiting) => stream::start(waiting, sequence, payload),
            Self::Stream(mut stream) => stream.next(sequence, payload).into_outcome(|| Self::Stream(stream)),
            Self::Quic(mut connection) => connection.next(payload).into_outcome(|| Self::Quic(connection)),
        }
    }

    /// Bytes of memory that it takes, with its own.
    fn bytes(&self) -> usize {
        let boxed = match self {
            Self::Waiting(_) => 0,
            Self::Stream(stream) => size_of::<Stream>() + stream.heap(),
            Self::Quic(connection) => size_of::<Connection>() + connection.heap(),
        };
        size_of::<Self>() + boxed
    }
}

impl Watch {
    /// Bytes that [`Self::bytes`] is at most.
    pub const MAX_BYTES: usize = 64 * 1024;

    /// Begins with the first datagram of a direction of a UDP flow.
    ///
    /// A payload without a name, nearly always, takes a few nanoseconds and no memory.
    #[inline]
    pub fn start_udp(source_port: u16, destination_port: u16, payload: &[u8]) -> Outcome {
        if dns::has_port(source_port, destination_port) {
            return dns::datagram(payload).map_or(Outcome::NoName, Outcome::Found);
        }
        if quic::may_begin_with(payload) {
            Self::outcome(Connection::start(payload))
        } else {
            Outcome::NoName
        }
    }

    /// Begins with the first segment of a direction of a TCP connection, with the sequence number of its first byte of payload.
    ///
    /// `begin` is the sequence number of the connection's first byte in this direction, one more than that of its SYN, where that was
    /// seen. It lets segments come out of order from the first on; without it, this segment is taken for the first one.
    ///
    /// A payload without a name, nearly always, takes a few nanoseconds and no memory. One without bytes (a SYN, an ACK) takes none on
    /// the heap, but it tells nothing: better called with the first that has some.
    #[inline]
    pub fn start_tcp(
        source_port: u16,
        destination_port: u16,
        begin: Option<u32>,
        sequence: u32,
        payload: &[u8],
    ) -> Outcome {
        let waiting = Waiting { fields: None, ports: (source_port, destination_port), begin };
        if payload.is_empty() {
            return Outcome::More(Self(State::Waiting(waiting)));
        }
        Self::outcome(stream::start(waiting, sequence, payload))
    }

    /// Goes on with the next payload of the same direction of the flow, in the order of the capture.
    ///
    /// A TCP segment has the sequence number of its first byte of payload; it may have been sent before, in whole or in part, or be early.
    /// Where segments overlap, bytes that were read are not read again. `sequence` has no meaning for UDP.
    pub fn next(self, sequence: u32, payload: &[u8]) -> Outcome {
        Self::outcome(self.0.next(sequence, payload))
    }

    /// Bytes of memory that it takes, with its own; at most [`Self::MAX_BYTES`].
    pub fn bytes(&self) -> usize {
        self.0.bytes()
    }

    #[inline]
    fn outcome(outcome: Outcome<Finding, State>) -> Outcome {
        match outcome {
            Outcome::Found(Finding::Name(name)) => Outcome::Found(name),
            // Values are told where a field is looked for alone.
            Outcome::Found(Finding::Values(_)) | Outcome::NoName => Outcome::NoName,
            Outcome::More(state) => Outcome::More(Self(state)),
            Outcome::GaveUp(reason) => Outcome::GaveUp(reason),
        }
    }
}
