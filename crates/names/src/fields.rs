//! Header fields by name: the bytes that signatures look at, called as Suricata calls its buffers.

use crate::quic::{self, Connection};
use crate::{Finding, NameKind, Outcome, State, Waiting, dns, stream};

/// A field of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Field {
    /// The method of an HTTP request.
    HttpMethod,
    /// Its target without scheme and authority, with escapes (`%2f`) decoded once, and its path without `//`, `/./` and `/../`
    /// (RFC 3986 section 6.2.2).
    HttpUri,
    /// Its target as it was sent.
    HttpUriRaw,
    /// Its first line, without the end of the line.
    HttpRequestLine,
    /// Its Host in small letters, without the port.
    HttpHost,
    /// Its Host as it was sent.
    HttpHostRaw,
    /// The value of its User-Agent.
    HttpUserAgent,
    /// The value of its Referer.
    HttpReferer,
    /// The value of its Cookie.
    HttpCookie,
    /// All its fields but Cookie, as `Name: value` with CR LF behind each, without blanks around either.
    HttpHeader,
    /// All its fields as they were sent, with the blank line behind them.
    HttpHeaderRaw,
    /// The names of the questions of a DNS query, of the first 32 of them.
    DnsQuery,
    /// The server name of a TLS ClientHello on TCP.
    TlsSni,
    /// The server name of a TLS ClientHello in QUIC.
    QuicSni,
}

impl Field {
    /// All.
    pub const ALL: [Self; 14] = [
        Self::HttpMethod,
        Self::HttpUri,
        Self::HttpUriRaw,
        Self::HttpRequestLine,
        Self::HttpHost,
        Self::HttpHostRaw,
        Self::HttpUserAgent,
        Self::HttpReferer,
        Self::HttpCookie,
        Self::HttpHeader,
        Self::HttpHeaderRaw,
        Self::DnsQuery,
        Self::TlsSni,
        Self::QuicSni,
    ];

    /// Its name, that of Suricata's buffer.
    pub const fn name(self) -> &'static str {
        match self {
            Self::HttpMethod => "http.method",
            Self::HttpUri => "http.uri",
            Self::HttpUriRaw => "http.uri.raw",
            Self::HttpRequestLine => "http.request_line",
            Self::HttpHost => "http.host",
            Self::HttpHostRaw => "http.host.raw",
            Self::HttpUserAgent => "http.user_agent",
            Self::HttpReferer => "http.referer",
            Self::HttpCookie => "http.cookie",
            Self::HttpHeader => "http.header",
            Self::HttpHeaderRaw => "http.header.raw",
            Self::DnsQuery => "dns.query",
            Self::TlsSni => "tls.sni",
            Self::QuicSni => "quic.sni",
        }
    }

    /// The kind of message that has it.
    pub(crate) const fn of(self) -> NameKind {
        match self {
            Self::DnsQuery => NameKind::DnsQuery,
            Self::TlsSni => NameKind::TlsServer,
            Self::QuicSni => NameKind::QuicServer,
            _ => NameKind::HttpHost,
        }
    }
}

/// The values of a field in a message, as bytes: several of questions of DNS, else one. Names of DNS, TLS and QUIC are written as
/// [`Name::text`](crate::Name::text).
pub type Values = Vec<Box<[u8]>>;

/// What was seen of one direction of one flow, while its first message may have a field: as a [`Watch`](crate::Watch) is for names, with the same
/// bounds.
///
/// A value is told once all of it is there, be the message longer; of several fields of HTTP with the same name, the first that is not empty.
///
/// ```
/// # use packetloom_names::{Field, FieldWatch, Outcome};
/// let request = b"GET /a%20b//c?d HTTP/1.1\r\nHost: Example.com:80\r\n\r\n";
/// let value = |field| match FieldWatch::start_tcp(field, (49152, 80), None, 1000, request) {
///     Outcome::Found(values) => values[0].to_vec(),
///     other => panic!("{other:?}"),
/// };
/// assert_eq!(value(Field::HttpUri), b"/a b/c?d");
/// assert_eq!(value(Field::HttpHost), b"example.com");
/// ```
#[derive(Debug)]
pub struct FieldWatch(State);

impl FieldWatch {
    /// Begins with the first datagram of a direction of a UDP flow between these ports, source and destination.
    pub fn start_udp(field: Field, ports: (u16, u16), payload: &[u8]) -> Outcome<Values, Self> {
        match (field, dns::has_port(ports.0, ports.1)) {
            (Field::DnsQuery, true) => dns::query(payload).map_or(Outcome::NoName, Outcome::Found),
            (Field::QuicSni, false) if quic::may_begin_with(payload) => {
                Self::outcome(Connection::start(payload))
            }
            _ => Outcome::NoName,
        }
    }

    /// Begins with the first segment of a direction of a TCP connection, as [`Watch::start_tcp`](crate::Watch::start_tcp) does.
    pub fn start_tcp(
        field: Field,
        ports: (u16, u16),
        begin: Option<u32>,
        sequence: u32,
        payload: &[u8],
    ) -> Outcome<Values, Self> {
        let waiting = Waiting { field: Some(field), ports, begin };
        if payload.is_empty() {
            return Outcome::More(Self(State::Waiting(waiting)));
        }
        Self::outcome(stream::start(waiting, sequence, payload))
    }

    /// Goes on with the next payload of the same direction of the flow, as [`Watch::next`](crate::Watch::next) does.
    pub fn next(self, sequence: u32, payload: &[u8]) -> Outcome<Values, Self> {
        Self::outcome(self.0.next(sequence, payload))
    }

    /// Bytes of memory that it takes, with its own; at most [`Watch::MAX_BYTES`](crate::Watch::MAX_BYTES).
    pub fn bytes(&self) -> usize {
        self.0.bytes()
    }

    fn outcome(outcome: Outcome<Finding, State>) -> Outcome<Values, Self> {
        match outcome {
            Outcome::Found(Finding::Values(values)) => Outcome::Found(values),
            Outcome::Found(Finding::Name(name)) => Outcome::Found(vec![name.text.into()]),
            Outcome::NoName => Outcome::NoName,
            Outcome::More(state) => Outcome::More(Self(state)),
            Outcome::GaveUp(reason) => Outcome::GaveUp(reason),
        }
    }
}
