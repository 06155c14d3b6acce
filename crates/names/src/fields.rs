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

    const fn bit(self) -> u16 {
        1 << self as u16
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

/// A set of fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Fields(u16);

impl Fields {
    /// Whether it has a field.
    #[inline]
    pub const fn has(self, field: Field) -> bool {
        self.0 & field.bit() != 0
    }

    /// Whether it has none.
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Its fields, in the order of [`Field::ALL`].
    pub fn iter(self) -> impl Iterator<Item = Field> {
        Field::ALL.into_iter().filter(move |&field| self.has(field))
    }

    pub(crate) fn remove(&mut self, field: Field) {
        self.0 &= !field.bit();
    }

    /// Those of messages of a kind.
    pub(crate) fn of(self, kind: NameKind) -> Self {
        self.iter().filter(|field| field.of() == kind).collect()
    }
}

impl From<Field> for Fields {
    fn from(field: Field) -> Self {
        Self(field.bit())
    }
}

impl FromIterator<Field> for Fields {
    fn from_iter<I: IntoIterator<Item = Field>>(fields: I) -> Self {
        Self(fields.into_iter().fold(0, |bits, field| bits | field.bit()))
    }
}

/// What a message has in a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldValue {
    /// Where it is.
    pub field: Field,
    /// The number of the question of DNS; 0 of other messages.
    pub question: u16,
    /// Its bytes. Names of DNS, TLS and QUIC are written as [`Name::text`](crate::Name::text).
    pub bytes: Box<[u8]>,
}

impl FieldValue {
    pub(crate) fn new(field: Field, bytes: impl Into<Box<[u8]>>) -> Self {
        Self { field, question: 0, bytes: bytes.into() }
    }
}

/// Values of a message: of each field one, but of DNS one for each question.
pub type Values = Vec<FieldValue>;

/// What was seen of one direction of one flow, while its first message may have fields: as a [`Watch`](crate::Watch) is for names, with the same
/// bounds.
///
/// A value is told once all of it is there, be the message longer: with [`Outcome::Found`] the last ones, and those before by [`Self::take`]. Of
/// several fields of HTTP with the same name, the first that is not empty counts.
///
/// ```
/// # use packetloom_names::{Field, FieldWatch, Fields, Outcome};
/// let wanted = Fields::from_iter([Field::HttpUri, Field::HttpHost]);
/// let (first, second) = (b"GET /a%20b//c?d HTTP/1.1\r\nHo", b"st: Example.com:80\r\n\r\n");
/// let Outcome::More(mut watch) = FieldWatch::start_tcp(wanted, (49152, 80), None, 1000, first) else { panic!() };
/// assert_eq!(*watch.take()[0].bytes, *b"/a b/c?d");
/// let Outcome::Found(values) = watch.next(1000 + first.len() as u32, second) else { panic!() };
/// assert_eq!((values[0].field, &*values[0].bytes), (Field::HttpHost, &b"example.com"[..]));
/// ```
#[derive(Debug)]
pub struct FieldWatch(State);

impl FieldWatch {
    /// Begins with the first datagram of a direction of a UDP flow between these ports, source and destination.
    pub fn start_udp(fields: Fields, ports: (u16, u16), payload: &[u8]) -> Outcome<Values, Self> {
        match dns::has_port(ports.0, ports.1) {
            true if fields.has(Field::DnsQuery) => {
                dns::query(payload).map_or(Outcome::NoName, Outcome::Found)
            }
            false if fields.has(Field::QuicSni) && quic::may_begin_with(payload) => {
                Self::outcome(Connection::start(payload))
            }
            _ => Outcome::NoName,
        }
    }

    /// Begins with the first segment of a direction of a TCP connection, as [`Watch::start_tcp`](crate::Watch::start_tcp) does.
    pub fn start_tcp(
        fields: Fields,
        ports: (u16, u16),
        begin: Option<u32>,
        sequence: u32,
        payload: &[u8],
    ) -> Outcome<Values, Self> {
        let waiting = Waiting { fields: Some(fields), ports, begin };
        if payload.is_empty() {
            return Outcome::More(Self(State::Waiting(waiting)));
        }
        Self::outcome(stream::start(waiting, sequence, payload))
    }

    /// Goes on with the next payload of the same direction of the flow, as [`Watch::next`](crate::Watch::next) does.
    pub fn next(self, sequence: u32, payload: &[u8]) -> Outcome<Values, Self> {
        Self::outcome(self.0.next(sequence, payload))
    }

    /// Values that were found and not taken yet, of a message that may have more.
    pub fn take(&mut self) -> Values {
        match &mut self.0 {
            State::Stream(stream) => stream.take_values(),
            State::Waiting(_) | State::Quic(_) => Values::new(),
        }
    }

    /// Bytes that [`Self::bytes`] is at most.
    pub const MAX_BYTES: usize = 96 * 1024;

    /// Bytes of memory that it takes, with its own, once values are taken; at most [`Self::MAX_BYTES`].
    pub fn bytes(&self) -> usize {
        self.0.bytes()
    }

    fn outcome(outcome: Outcome<Finding, State>) -> Outcome<Values, Self> {
        match outcome {
            Outcome::Found(Finding::Values(values)) => Outcome::Found(values),
            Outcome::Found(Finding::Name(name)) => {
                let field = match name.kind {
                    NameKind::QuicServer => Field::QuicSni,
                    _ => Field::TlsSni,
                };
                Outcome::Found(vec![FieldValue::new(field, Box::<[u8]>::from(name.text))])
            }
            Outcome::NoName => Outcome::NoName,
            Outcome::More(state) => Outcome::More(Self(state)),
            Outcome::GaveUp(reason) => Outcome::GaveUp(reason),
        }
    }
}
