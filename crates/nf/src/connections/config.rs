//! How long connections are remembered.

use std::fmt;

use schemars::JsonSchema;
use serde::Deserialize;

use super::State;
use crate::units::Span;

/// How long a connection is remembered after its last packet, by its state; "0" is for ever.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(rename = "timeouts")]
pub struct TimeoutsConfig {
    /// TCP until it is established: 4 minutes (RFC 5382 REQ-5, RFC 7857 section 2.1).
    pub tcp_opening: Span,
    /// TCP that is established: 2 hours and 4 minutes (RFC 5382 REQ-5).
    pub tcp_established: Span,
    /// TCP after a FIN: 4 minutes (RFC 5382 REQ-5).
    pub tcp_closing: Span,
    /// TCP after the last ACK, twice the maximum segment lifetime of RFC 9293, or after a reset (RFC 7857 section 2.2): 4 minutes.
    pub tcp_closed: Span,
    /// UDP that only one side has sent: 2 minutes, the least that RFC 4787 REQ-5 allows.
    pub udp_unreplied: Span,
    /// UDP that both sides have sent: 5 minutes, what RFC 4787 REQ-5 recommends.
    pub udp_replied: Span,
    /// ICMP and ICMPv6 queries: 1 minute (RFC 5508 REQ-2).
    pub icmp: Span,
    /// Other protocols: 10 minutes, for which there is no RFC.
    pub other: Span,
}

impl TimeoutsConfig {
    /// The defaults.
    pub const DEFAULT: Self = Self {
        tcp_opening: Span::from_secs(240),
        tcp_established: Span::from_secs(7_440),
        tcp_closing: Span::from_secs(240),
        tcp_closed: Span::from_secs(240),
        udp_unreplied: Span::from_secs(120),
        udp_replied: Span::from_secs(300),
        icmp: Span::from_secs(60),
        other: Span::from_secs(600),
    };

    fn all(&self) -> [(&'static str, Span); 8] {
        let &Self {
            tcp_opening,
            tcp_established,
            tcp_closing,
            tcp_closed,
            udp_unreplied,
            udp_replied,
            icmp,
            other,
        } = self;
        [
            ("tcp_opening", tcp_opening),
            ("tcp_established", tcp_established),
            ("tcp_closing", tcp_closing),
            ("tcp_closed", tcp_closed),
            ("udp_unreplied", udp_unreplied),
            ("udp_replied", udp_replied),
            ("icmp", icmp),
            ("other", other),
        ]
    }

    /// The longest: what a flow definition has to remember; "0", for ever, is longer than any.
    pub fn longest(&self) -> Span {
        let all = self.all().map(|(_, span)| span);
        all.into_iter().max_by_key(|span| span.limit().unwrap_or(u64::MAX)).unwrap_or(Span::from_secs(0))
    }

    /// In nanoseconds, by state.
    pub(super) fn by_state(&self) -> [u64; State::COUNT] {
        let mut timeouts = [0; State::COUNT];
        let groups: [(Span, &[State]); 8] = [
            (self.tcp_opening, &[State::SynSent, State::SynBoth, State::SynReceived, State::SynAnswered]),
            (self.tcp_established, &[State::Established]),
            (self.tcp_closing, &[State::FinOpener, State::FinOther, State::FinBoth]),
            (self.tcp_closed, &[State::TimeWait, State::Reset]),
            (self.udp_unreplied, &[State::UdpUnreplied]),
            (self.udp_replied, &[State::UdpReplied]),
            (self.icmp, &[State::IcmpUnreplied, State::IcmpReplied]),
            (self.other, &[State::OtherUnreplied, State::OtherReplied]),
        ];
        for (span, states) in groups {
            for &state in states {
                timeouts[state as usize] = span.limit().unwrap_or(u64::MAX);
            }
        }
        timeouts
    }
}

impl Default for TimeoutsConfig {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl fmt::Display for TimeoutsConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (name, span)) in self.all().into_iter().enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            write!(f, "{separator}{name} {span}")?;
        }
        Ok(())
    }
}
