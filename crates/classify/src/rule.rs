//! What a rule can ask of a packet.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use packetloom_packet::protocol;

use crate::{ConnectionState, ConnectionStates, Interfaces};

/// What happens to a packet whose first matching rule says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Goes on.
    Permit,
    /// Is dropped.
    Deny,
    /// Goes on, and the connection that it opens is admitted: its packets of both directions go on, whatever rules say of them.
    Reflect,
}

impl Action {
    /// The word in rule files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Permit => "permit",
            Self::Deny => "deny",
            Self::Reflect => "reflect",
        }
    }
}

/// An IPv4 prefix; bits past its length are 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Prefix4 {
    address: u32,
    len: u8,
}

/// An IPv6 prefix; bits past its length are 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Prefix6 {
    address: u128,
    len: u8,
}

macro_rules! prefix {
    ($name:ident, $word:ty, $address:ty) => {
        impl $name {
            /// The prefix of `len` bits that holds `address`; lengths beyond the address mean all of it.
            pub const fn new(address: $word, len: u8) -> Self {
                let len = if len as u32 > <$word>::BITS { <$word>::BITS as u8 } else { len };
                Self { address: address & Self::mask_of(len), len }
            }

            const fn mask_of(len: u8) -> $word {
                match <$word>::MAX.checked_shl(<$word>::BITS - len as u32) {
                    Some(mask) => mask,
                    None => 0,
                }
            }

            /// The lowest address.
            pub const fn address(self) -> $word {
                self.address
            }

            /// Bits that are fixed.
            #[allow(clippy::len_without_is_empty)]
            pub const fn len(self) -> u8 {
                self.len
            }

            /// A word with the fixed bits set.
            pub const fn mask(self) -> $word {
                Self::mask_of(self.len)
            }

            /// Whether the prefix holds `address`.
            pub const fn contains(self, address: $word) -> bool {
                address & self.mask() == self.address
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}/{}", <$address>::from(self.address), self.len)
            }
        }
    };
}

prefix!(Prefix4, u32, Ipv4Addr);
prefix!(Prefix6, u128, Ipv6Addr);

/// Source and destination of a rule: of one family, or of either.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Addresses {
    /// Any address of any family.
    Any,
    /// IPv4 packets from one prefix to another.
    V4(Prefix4, Prefix4),
    /// IPv6 packets from one prefix to another.
    V6(Prefix6, Prefix6),
}

/// Ports from `low` to `high`, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PortRange {
    /// Lowest port.
    pub low: u16,
    /// Highest port; not below `low`.
    pub high: u16,
}

impl PortRange {
    /// Every port, and packets without ports.
    pub const ANY: Self = Self { low: 0, high: u16::MAX };

    /// One port.
    pub const fn exactly(port: u16) -> Self {
        Self { low: port, high: port }
    }

    /// Whether it is the range that asks for nothing.
    pub const fn is_any(self) -> bool {
        self.low == 0 && self.high == u16::MAX
    }

    /// Whether it holds `port`.
    pub const fn contains(self, port: u16) -> bool {
        self.low <= port && port <= self.high
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.low == self.high {
            write!(f, "{}", self.low)
        } else {
            write!(f, "{}-{}", self.low, self.high)
        }
    }
}

/// TCP flags of which some must be set and some not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TcpFlagMatch {
    /// Those of `mask` that must be set; the others of `mask` must not.
    pub set: u8,
    /// The flags that are looked at.
    pub mask: u8,
}

impl TcpFlagMatch {
    /// A packet of a connection that exists: ACK is set.
    pub const ACK: Self = Self { set: 0x10, mask: 0x10 };
}

/// Letters of the TCP flags from the lowest bit to the highest.
const FLAG_LETTERS: &str = "FSRPAUEC";

/// The TCP flags that a word of letters names, in any order: FIN, SYN, RST, PSH, ACK, URG, ECE, CWR by their first letters,
/// CWR by C.
pub fn flags_from_letters(letters: &str) -> Option<u8> {
    letters.chars().try_fold(0, |flags, letter| Some(flags | 1 << FLAG_LETTERS.find(letter)?))
}

/// The letters of a set of TCP flags.
pub fn flags_to_letters(flags: u8) -> String {
    FLAG_LETTERS
        .chars()
        .enumerate()
        .filter(|(bit, _)| flags >> bit & 1 == 1)
        .map(|(_, letter)| letter)
        .collect()
}

impl fmt::Display for TcpFlagMatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", flags_to_letters(self.set), flags_to_letters(self.mask))
    }
}

/// Which fragments a rule matches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Fragments {
    /// Whole packets and fragments alike.
    #[default]
    All,
    /// Fragments only.
    Any,
    /// Whole packets only.
    None,
    /// First fragments only.
    First,
    /// Fragments other than the first.
    Later,
    /// Whole packets and first fragments: those that begin with their transport header.
    NotLater,
}

impl Fragments {
    /// The word in rule files; none for [`Fragments::All`], which asks for nothing.
    pub const fn name(self) -> Option<&'static str> {
        match self {
            Self::All => None,
            Self::Any => Some("any"),
            Self::None => Some("none"),
            Self::First => Some("first"),
            Self::Later => Some("later"),
            Self::NotLater => Some("not-later"),
        }
    }
}

/// One rule: a packet matches when it meets every condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// What to do; `None` in formats that do not say.
    pub action: Option<Action>,
    /// Source and destination prefix.
    pub addresses: Addresses,
    /// IP protocol; `None` is any.
    pub protocol: Option<u8>,
    /// Source ports; anything but [`PortRange::ANY`] asks for a packet with ports.
    pub source_ports: PortRange,
    /// Destination ports, likewise.
    pub destination_ports: PortRange,
    /// ICMP or ICMPv6 type.
    pub icmp_type: Option<u8>,
    /// ICMP or ICMPv6 code.
    pub icmp_code: Option<u8>,
    /// TCP flags; asks for a packet whose flags were captured.
    pub tcp_flags: Option<TcpFlagMatch>,
    /// Fragments.
    pub fragments: Fragments,
    /// The interfaces by which packets come that it is for; `None` is any.
    pub interfaces: Option<Arc<Interfaces>>,
    /// The interfaces by which packets leave that it is for; `None` is any.
    pub out: Option<Arc<Interfaces>>,
    /// The states of connections that it is for.
    pub states: ConnectionStates,
    /// The mark that packets get which it decides; 0 leaves theirs as it is. Nothing in this crate sets it.
    pub mark: u32,
    /// A name given in the file.
    pub id: Option<Box<str>>,
    /// What the file says about the rule; one line.
    pub comment: Option<Box<str>>,
    /// Whether packets that this rule decides are to be logged; nothing in this crate does.
    pub log: bool,
    /// Line of the file, from 1.
    pub line: u32,
}

impl Rule {
    /// A rule that matches every packet.
    pub const fn any(action: Option<Action>) -> Self {
        Self {
            action,
            addresses: Addresses::Any,
            protocol: None,
            source_ports: PortRange::ANY,
            destination_ports: PortRange::ANY,
            icmp_type: None,
            icmp_code: None,
            tcp_flags: None,
            fragments: Fragments::All,
            interfaces: None,
            out: None,
            states: ConnectionStates::ALL,
            mark: 0,
            id: None,
            comment: None,
            log: false,
            line: 0,
        }
    }
}

/// The rule in Packetloom's own format; a rule without an action is shown without one.
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(action) = self.action {
            write!(f, "{} ", action.name())?;
        }
        match self.protocol {
            None => f.write_str("any")?,
            Some(number) => match protocol::name(number) {
                Some(name) => f.write_str(name)?,
                None => write!(f, "{number}")?,
            },
        }
        let (source, destination): (&dyn fmt::Display, &dyn fmt::Display) = match &self.addresses {
            Addresses::Any => (&"any", &"any"),
            Addresses::V4(source, destination) => (source, destination),
            Addresses::V6(source, destination) => (source, destination),
        };
        let ends = [(" from", source, self.source_ports), (" to", destination, self.destination_ports)];
        for (word, address, ports) in ends {
            write!(f, "{word} {address}")?;
            if !ports.is_any() {
                write!(f, " port {ports}")?;
            }
        }
        if let Some(icmp_type) = self.icmp_type {
            write!(f, " type {icmp_type}")?;
        }
        if let Some(code) = self.icmp_code {
            write!(f, " code {code}")?;
        }
        if let Some(flags) = self.tcp_flags {
            write!(f, " flags {flags}")?;
        }
        if let Some(fragments) = self.fragments.name() {
            write!(f, " fragment {fragments}")?;
        }
        if let Some(interfaces) = &self.interfaces {
            write!(f, " in {interfaces}")?;
        }
        if let Some(interfaces) = &self.out {
            write!(f, " out {interfaces}")?;
        }
        if !self.states.is_all() {
            write!(f, " state {}", self.states)?;
        }
        if self.mark != 0 {
            write!(f, " mark {}", self.mark)?;
        }
        if self.log {
            f.write_str(" log")?;
        }
        if let Some(id) = &self.id {
            write!(f, " id {id}")?;
        }
        if let Some(comment) = &self.comment {
            write!(f, " # {comment}")?;
        }
        Ok(())
    }
}

/// What rules may ask of a packet that is not in its key: how it comes and goes, and its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketContext<'a> {
    /// The interface by which it came; `None` where its name is not known.
    pub interface: Option<&'a str>,
    /// The interface by which it leaves if it passes; `None` where it leaves by none, or by one whose name is not known.
    pub out: Option<&'a str>,
    /// The state of its connection.
    pub state: ConnectionState,
}

impl PacketContext<'_> {
    /// A packet that opens a connection, of which no more is known.
    pub const NEW: Self = Self { interface: None, out: None, state: ConnectionState::New };
}

impl Rule {
    /// Whether it is for packets of some interfaces or states only.
    pub fn is_contextual(&self) -> bool {
        self.interfaces.is_some() || self.out.is_some() || !self.states.is_all()
    }

    /// Whether it is for packets of this context.
    pub fn is_for(&self, context: &PacketContext<'_>) -> bool {
        let holds = |set: &Option<Arc<Interfaces>>, name| set.as_ref().is_none_or(|set| set.contains(name));
        self.states.contains(context.state)
            && holds(&self.interfaces, context.interface)
            && holds(&self.out, context.out)
    }

    /// The same for packets of every interface and state.
    #[must_use]
    pub fn without_context(self) -> Self {
        Self { interfaces: None, out: None, states: ConnectionStates::ALL, ..self }
    }
}

impl RuleSet {
    /// Whether any rule is for packets of some interfaces or states only.
    pub fn is_contextual(&self) -> bool {
        self.rules.iter().any(Rule::is_contextual)
    }

    /// Whether any rule is for some states of connections only.
    pub fn names_states(&self) -> bool {
        self.rules.iter().any(|rule| !rule.states.is_all())
    }

    /// Whether any rule is for packets that leave by some interfaces only.
    pub fn names_exits(&self) -> bool {
        self.rules.iter().any(|rule| rule.out.is_some())
    }

    /// The rules that packets of a context meet, without what they say of it; and for each its position here.
    pub fn seen_in(&self, context: &PacketContext<'_>) -> (Self, Vec<u32>) {
        let positions = self.positions_seen_in(context);
        let rule = |&position: &u32| self.rules[position as usize].clone().without_context();
        (Self { rules: positions.iter().map(rule).collect() }, positions)
    }

    /// The positions alone.
    pub fn positions_seen_in(&self, context: &PacketContext<'_>) -> Vec<u32> {
        let seen = self.rules.iter().zip(0..).filter(|(rule, _)| rule.is_for(context));
        seen.map(|(_, position)| position).collect()
    }
}

/// Rules in order: the first that matches decides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleSet {
    /// The rules; a rule's position is its index here.
    pub rules: Vec<Rule>,
}
