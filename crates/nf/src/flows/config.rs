//! `[flows.NAME]` of a chain file.

use std::fmt;

use packetloom_packet::batch::Parsed;
use packetloom_packet::wire::ethernet;
use packetloom_packet::{Batch, Connection, FlowKey, Key, LinkType, MatchKey4, MatchKey6, Role, VlanId};
use packetloom_table::states::KeyForm;
use schemars::JsonSchema;
use serde::Deserialize;

use super::Definition;
use crate::Error;
use crate::connections::TimeoutsConfig;
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
    /// The address of the end that opens connections, as far as the packet alone tells: the source's, but the destination's of a
    /// TCP packet with SYN and ACK.
    #[serde(rename = "initiator")]
    Initiator,
    /// As 5-tuple, but ICMP and ICMPv6 queries with their replies are by requester, responder and identifier, and errors are of
    /// the connection of the packet that they quote.
    #[serde(rename = "connection")]
    Connection,
    /// As 5-tuple, and the VLAN by the outer tag. Only of definitions that functions have to themselves.
    #[serde(skip)]
    VlanFiveTuple,
}

impl By {
    /// All there are.
    pub const ALL: [Self; 5] =
        [Self::FiveTuple, Self::Source, Self::Initiator, Self::Connection, Self::VlanFiveTuple];
    /// Those of definitions that functions share, as chain files have them.
    pub const SHARED: [Self; 4] = [Self::FiveTuple, Self::Source, Self::Initiator, Self::Connection];
    /// TCP's flags of an answer to the first packet of a connection (RFC 9293, section 3.5).
    pub const SYN_ACK: u8 = 0x12;

    /// Whether a flow is one address, and not a protocol with two ends.
    pub const fn is_address(self) -> bool {
        matches!(self, Self::Source | Self::Initiator)
    }

    /// What the keys of flows are in a table.
    pub const fn key_form(self) -> KeyForm {
        match self {
            Self::FiveTuple | Self::Connection => KeyForm::Whole,
            Self::Source | Self::Initiator => KeyForm::Address,
            Self::VlanFiveTuple => KeyForm::Extended,
        }
    }

    /// What packets have in common that are spread as those of these flows, or more of them.
    pub const fn spread_by(self) -> Self {
        if matches!(self, Self::VlanFiveTuple) { Self::FiveTuple } else { self }
    }

    /// A hash of the flow of a packet of a batch, by which packets are spread over workers, keyed by `seed`; none where the frame has
    /// no key.
    #[inline]
    pub fn spread(self, batch: &Batch, index: usize, seed: u64) -> Option<u64> {
        let by_connection = self == Self::Connection;
        Some(match batch.parsed()[index] {
            Parsed::V4(at) => match &batch.v4().keys[at as usize] {
                key if by_connection && Connection::role_of(key.protocol, key.bits).is_none() => {
                    connection(&Key::V4(*key), batch, index).flow.hash(seed)
                }
                key => self.spread_v4(key, seed),
            },
            Parsed::V6(at) => match &batch.v6().keys[at as usize] {
                key if by_connection && Connection::role_of(key.protocol, key.bits).is_none() => {
                    connection(&Key::V6(*key), batch, index).flow.hash(seed)
                }
                key => self.spread_v6(key, seed),
            },
            Parsed::Rejected(_) => return None,
        })
    }

    /// The same for all packets of a flow of a definition by this, by its key in an entry of IPv4 or IPv6.
    pub fn spread_saved(self, key: &[u64], seed: u64) -> u64 {
        let (a, b, version) = match key {
            [ends, _] => ([0, ends & 0xffff_ffff], [0, ends >> 32], 4),
            [a, b, c, d, ..] => ([*a, *b], [*c, *d], 6),
            _ => ([0; 2], [0; 2], 0),
        };
        let rest = key.last().copied().unwrap_or_default();
        match self {
            Self::FiveTuple | Self::Connection | Self::VlanFiveTuple => FlowKey {
                a,
                b,
                a_port: rest as u16,
                b_port: (rest >> 16) as u16,
                protocol: (rest >> 32) as u8,
                version,
                vlan: None,
            }
            .hash(seed),
            Self::Source | Self::Initiator if version == 4 => {
                self.spread_v4(&MatchKey4 { source: a[1] as u32, ..MatchKey4::default() }, seed)
            }
            Self::Source | Self::Initiator => {
                self.spread_v6(&MatchKey6 { source: a, ..MatchKey6::default() }, seed)
            }
        }
    }

    /// The same of an IPv4 packet, which is not ICMP where flows are by connection: its key does not say enough.
    #[inline]
    pub fn spread_v4(self, key: &MatchKey4, seed: u64) -> u64 {
        match self {
            Self::FiveTuple | Self::Connection | Self::VlanFiveTuple => FlowKey::from_v4(key).0.hash(seed),
            Self::Source | Self::Initiator => {
                let source = if self.is_from_source(key.tcp_flags) { key.source } else { key.destination };
                FlowKey::from_v4(&MatchKey4 { source, ..MatchKey4::default() }).0.hash(seed)
            }
        }
    }

    /// The same of an IPv6 packet.
    #[inline]
    pub fn spread_v6(self, key: &MatchKey6, seed: u64) -> u64 {
        match self {
            Self::FiveTuple | Self::Connection | Self::VlanFiveTuple => FlowKey::from_v6(key).0.hash(seed),
            Self::Source | Self::Initiator => {
                let source = if self.is_from_source(key.tcp_flags) { key.source } else { key.destination };
                FlowKey::from_v6(&MatchKey6 { source, ..MatchKey6::default() }).0.hash(seed)
            }
        }
    }

    /// Whether it is the source address that packets with these TCP flags (0 where there are none) have in common with others of
    /// their flow, where it is one address.
    #[inline]
    pub(super) fn is_from_source(self, tcp_flags: u8) -> bool {
        self != Self::Initiator || tcp_flags & Self::SYN_ACK != Self::SYN_ACK
    }

    /// The word in chain files, and the name of the definition that is meant unless another is named.
    pub const fn name(self) -> &'static str {
        match self {
            Self::FiveTuple => "5-tuple",
            Self::Source => "source",
            Self::Initiator => "initiator",
            Self::Connection => "connection",
            Self::VlanFiveTuple => "5-tuple-vlan",
        }
    }
}

impl fmt::Display for By {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::FiveTuple => "IP version, protocol, unordered pair of (address, port)",
            Self::VlanFiveTuple => "IP version, protocol, unordered pair of (address, port), VLAN",
            Self::Source => "source address",
            Self::Initiator => "source address, destination address of TCP packets with SYN and ACK",
            Self::Connection => "5-tuple, query of ICMP, or what an error quotes",
        })
    }
}

/// The connection of a packet of a batch, which was not rewritten yet.
pub(super) fn connection(key: &Key, batch: &Batch, index: usize) -> Connection {
    let frame = batch.frames()[index];
    Connection::of(key, frame.link, batch.bytes(index), frame.wire_len)
}

/// The VLAN of a packet of a batch, by its outer tag, if it is in one.
#[inline]
pub(super) fn vlan(batch: &Batch, index: usize) -> Option<VlanId> {
    let is_ethernet = batch.frames()[index].link == LinkType::ETHERNET;
    let tag = if is_ethernet { ethernet::vlan_of(batch.bytes(index)) } else { None };
    VlanId::new(tag?)
}

/// What a packet of a batch, which was not rewritten yet, is to the connections there are; none where it is a member of that of its
/// 5-tuple, or the frame has no key.
pub fn connection_of(batch: &Batch, index: usize) -> Option<Connection> {
    let key = match batch.parsed()[index] {
        Parsed::V4(at) => Key::V4(batch.v4().keys[at as usize]),
        Parsed::V6(at) => Key::V6(batch.v6().keys[at as usize]),
        Parsed::Rejected(_) => return None,
    };
    let (protocol, bits) = match &key {
        Key::V4(key) => (key.protocol, key.bits),
        Key::V6(key) => (key.protocol, key.bits),
    };
    let is_member = Connection::role_of(protocol, bits) == Some(Role::Member);
    (!is_member).then(|| connection(&key, batch, index))
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
    /// State is forgotten when its flow was silent for so long; "0" is never. "60s" unless given, and "124m" by connection.
    pub timeout: Option<Span>,
    /// Flows of each IP version at a time, over all workers.
    #[serde(default = "Config::default_max_flows")]
    pub max_flows: MaxFlows,
    /// What becomes of a new flow when there are as many.
    #[serde(default)]
    pub when_full: WhenFull,
}

impl Config {
    /// 60 s; what connections of TCP need: 124 minutes.
    pub const fn default_timeout(by: By) -> Span {
        match by {
            By::FiveTuple | By::Source | By::Initiator | By::VlanFiveTuple => Span::from_secs(60),
            By::Connection => TimeoutsConfig::DEFAULT.tcp_established,
        }
    }

    /// About a million.
    pub const fn default_max_flows() -> MaxFlows {
        MaxFlows::clamped(1 << 20)
    }
}

impl From<Config> for Definition {
    fn from(config: Config) -> Self {
        let Config { by, timeout, max_flows, when_full } = config;
        let timeout = timeout.unwrap_or(Config::default_timeout(by));
        Self { by, timeout, max_flows: max_flows.get(), when_full }
    }
}

impl From<By> for Definition {
    /// The one that is meant unless another is named.
    fn from(by: By) -> Self {
        Config { by, timeout: None, max_flows: Config::default_max_flows(), when_full: WhenFull::default() }
            .into()
    }
}

/// What a function says of the flows that it may have to itself.
pub(crate) struct Remembered {
    pub(crate) timeout: Option<Span>,
    pub(crate) max_flows: Option<MaxFlows>,
}

impl Remembered {
    /// How long flows are remembered that are silent, and how many of each IP version, if they are.
    ///
    /// # Errors
    ///
    /// They are not, but something is said of it; what was `expected` then.
    pub(crate) fn flows(self, are_remembered: bool, expected: &str) -> Result<Option<(Span, usize)>, Error> {
        let Self { timeout, max_flows } = self;
        if are_remembered {
            let timeout = timeout.unwrap_or(Span::from_secs(300));
            let max_flows = max_flows.unwrap_or(Config::default_max_flows());
            return Ok(Some((timeout, max_flows.get())));
        }
        let given = [("timeout", timeout.is_some()), ("max_flows", max_flows.is_some())];
        match given.iter().find(|(_, is_given)| *is_given) {
            None => Ok(None),
            Some((key, _)) => {
                Err(Error::Invalid(format!("{key}, but no flows are remembered; expected {expected}")))
            }
        }
    }
}

/// What a plan says of them.
pub(crate) fn describe_remembered(timeout: Span, max_flows: usize) -> String {
    let timeout = match timeout.limit() {
        Some(_) => format!("forgotten after {timeout}"),
        None => "never forgotten".into(),
    };
    format!("flows {timeout}, at most {max_flows} of each IP version")
}
