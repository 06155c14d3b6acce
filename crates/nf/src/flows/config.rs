//! `[flows.NAME]` of a chain file.

use std::fmt;

use packetloom_packet::{FlowKey, MatchKey4, MatchKey6};
use schemars::JsonSchema;
use serde::Deserialize;

use super::Definition;
use crate::units::{MaxFlows, Span};

/// What packets of a flow have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, JsonSchema)]
pub enum By {
    /// IP version, protocol, and the unordered pair of (address, port): both directions are one flow.
    #[serde(rename = "5-tuple")]
    FiveTuple,
    /// The source address.
    #[serde(rename = "source")]
    Source,
}

impl By {
    /// All there are.
    pub const ALL: &'static [Self] = &[Self::FiveTuple, Self::Source];

    /// A hash of the flow of an IPv4 packet, by which packets are spread over workers; keyed by `seed`.
    #[inline]
    pub fn spread_v4(self, key: &MatchKey4, seed: u64) -> u64 {
        match self {
            Self::FiveTuple => FlowKey::from_v4(key).0.hash(seed),
            Self::Source => {
                FlowKey::from_v4(&MatchKey4 { source: key.source, ..MatchKey4::default() }).0.hash(seed)
            }
        }
    }

    /// The same of an IPv6 packet.
    #[inline]
    pub fn spread_v6(self, key: &MatchKey6, seed: u64) -> u64 {
        match self {
            Self::FiveTuple => FlowKey::from_v6(key).0.hash(seed),
            Self::Source => {
                FlowKey::from_v6(&MatchKey6 { source: key.source, ..MatchKey6::default() }).0.hash(seed)
            }
        }
    }

    /// The word in chain files, and the name of the definition that is meant unless another is named.
    pub const fn name(self) -> &'static str {
        match self {
            Self::FiveTuple => "5-tuple",
            Self::Source => "source",
        }
    }
}

impl fmt::Display for By {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::FiveTuple => "IP version, protocol, unordered pair of (address, port)",
            Self::Source => "source address",
        })
    }
}

/// What becomes of a new flow when there is no room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum WhenFull {
    /// It takes the place of one that was not used for long.
    #[default]
    EvictOldest,
    /// Its packets are dropped until a flow has ended.
    DropNew,
    /// Its packets pass by the functions that would keep state for it, until a flow has ended.
    PassNew,
}

impl fmt::Display for WhenFull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::EvictOldest => "one not used for long goes",
            Self::DropNew => "packets of new ones are dropped",
            Self::PassNew => "packets of new ones pass without state",
        })
    }
}

/// A flow definition: packets that belong together, for functions that name it.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "flows")]
pub struct Config {
    /// What packets of a flow have in common.
    pub by: By,
    /// State is forgotten when its flow was silent for so long; "0" is never.
    #[serde(default = "Config::default_timeout")]
    pub timeout: Span,
    /// Flows of each IP version at a time, over all workers.
    #[serde(default = "Config::default_max_flows")]
    pub max_flows: MaxFlows,
    /// What becomes of a new flow when there are as many.
    #[serde(default)]
    pub when_full: WhenFull,
}

impl Config {
    /// 60 s.
    pub const fn default_timeout() -> Span {
        Span::from_secs(60)
    }

    /// About a million.
    pub const fn default_max_flows() -> MaxFlows {
        MaxFlows::clamped(1 << 20)
    }
}

impl From<Config> for Definition {
    fn from(config: Config) -> Self {
        let Config { by, timeout, max_flows, when_full } = config;
        Self { by, timeout, max_flows: max_flows.get(), when_full }
    }
}

impl From<By> for Definition {
    /// The one that is meant unless another is named.
    fn from(by: By) -> Self {
        Config {
            by,
            timeout: Config::default_timeout(),
            max_flows: Config::default_max_flows(),
            when_full: WhenFull::default(),
        }
        .into()
    }
}
