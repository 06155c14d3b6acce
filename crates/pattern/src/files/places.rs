//! Where contents lie.

use std::fmt;

/// Fields that contents of rules may lie in, by the names that Suricata has for its sticky buffers, and by older ones.
pub const BUFFERS: [(&str, &str); 14] = [
    ("http.method", "http_method"),
    ("http.uri", "http_uri"),
    ("http.uri.raw", "http_raw_uri"),
    ("http.request_line", "http_request_line"),
    ("http.host", "http_host"),
    ("http.host.raw", "http_raw_host"),
    ("http.user_agent", "http_user_agent"),
    ("http.referer", "http_referer"),
    ("http.cookie", "http_cookie"),
    ("http.header", "http_header"),
    ("http.header.raw", "http_raw_header"),
    ("dns.query", "dns_query"),
    ("tls.sni", "tls_sni"),
    ("quic.sni", "quic_sni"),
];

/// A set of places where contents lie: the payload, and fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Places(u16);

impl Places {
    /// None.
    pub const NONE: Self = Self(0);
    /// The payload alone.
    pub const PAYLOAD: Self = Self(1);
    /// The payload and all of [`BUFFERS`].
    pub const ALL: Self = Self((2 << BUFFERS.len()) - 1);

    /// The field of this name, the first or the older one of [`BUFFERS`].
    pub fn field(name: &[u8]) -> Option<Self> {
        let is_name = |(buffer, older): &(&str, &str)| [buffer.as_bytes(), older.as_bytes()].contains(&name);
        BUFFERS.iter().position(is_name).map(|number| Self(2 << number))
    }

    /// Those of both sets.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Those that both sets have.
    #[must_use]
    pub const fn both(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// How many it has.
    pub const fn len(self) -> u32 {
        self.0.count_ones()
    }

    /// Whether it has all of the other set.
    #[inline]
    pub const fn has(self, other: Self) -> bool {
        other.0 & !self.0 == 0
    }

    /// Whether the two sets have a place in common.
    #[inline]
    pub const fn meets(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Whether it has none.
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Names of its fields.
    pub fn fields(self) -> impl Iterator<Item = &'static str> {
        let has = move |number: &usize| self.0 & 2 << number != 0;
        (0..BUFFERS.len()).filter(has).map(|number| BUFFERS[number].0)
    }

    pub(super) const fn bits(self) -> u16 {
        self.0
    }
}

/// The payload.
impl Default for Places {
    fn default() -> Self {
        Self::PAYLOAD
    }
}

/// As "the payload or http.uri".
impl fmt::Display for Places {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let payload = self.has(Self::PAYLOAD).then_some("the payload");
        let all: Vec<_> = payload.into_iter().chain(self.fields()).collect();
        match &all[..] {
            [] => f.write_str("another field"),
            [one] => f.write_str(one),
            [front @ .., last] => write!(f, "{} or {last}", front.join(", ")),
        }
    }
}
