//! The fields that a flow record may have: what they are called, how messages number them, and what a record says.
//!
//! Names and numbers are those of the IANA registry "IP Flow Information Export (IPFIX) Entities", and of CERT (enterprise 6871) where
//! that has none; what neither has is in lines and Parquet files alone. Names that differ by IP version, such as `sourceIPv4Address` and
//! `sourceIPv6Address`, are one field.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use packetloom_packet::{Details, FlowRecord, HalfFlow, NameKind, protocol};

use crate::Outcome;

/// The enterprise number of CERT.
pub(crate) const CERT: u32 = 6871;

/// A field of a flow record. The order is that of columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
#[allow(missing_docs, reason = "their names say it, and Field::spec")]
pub enum Field {
    StartMillis,
    EndMillis,
    StartMicros,
    EndMicros,
    IpVersion,
    Source,
    Destination,
    SourcePort,
    DestinationPort,
    Protocol,
    Packets,
    Octets,
    TcpFlags,
    FirstTcpFlags,
    ClassOfService,
    MinTtl,
    MaxTtl,
    MinLength,
    MaxLength,
    FragmentFlags,
    Fragments,
    IcmpType,
    IcmpCode,
    Vlan,
    SourceMac,
    DestinationMac,
    Ingress,
    Egress,
    EndReason,
    Outcome,
    DnsQuery,
    TlsServer,
    HttpHost,
}

/// What is known of a field.
#[derive(Clone, Copy, Debug)]
pub struct Spec {
    /// Its name, of IPv4 and of IPv6.
    pub names: [&'static str; 2],
    /// The name in the reverse direction, where there is one.
    pub reverse: Option<[&'static str; 2]>,
    /// Its number, of IPv4 and of IPv6; 0 where messages have no number for it.
    pub(crate) numbers: [u16; 2],
    /// Whose number that is; 0 is IANA.
    pub(crate) enterprise: u32,
    /// Bytes of its value in IPFIX, of IPv4 and of IPv6; none is a text with its length before it.
    pub(crate) len: Option<[u8; 2]>,
    /// The greatest value of a number.
    pub most: u64,
    /// What it is.
    pub what: &'static str,
}

/// A value of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    /// A number; of times since 1970.
    Number(u64),
    /// An address.
    Address(IpAddr),
    /// An Ethernet address.
    Mac([u8; 6]),
    /// Text, of [`NAME_MAX`] bytes at most.
    Text(&'a str),
}

/// What lines and files call the number of packets of which one was taken, where packets were sampled: that of IANA's element 34.
pub(crate) const SAMPLING_INTERVAL: &str = "samplingInterval";

/// Bytes of a name at most; what is longer is cut.
pub const NAME_MAX: usize = 254;

/// Of a record: what the sender of its first packet has sent, or the other side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From `source` to `destination`.
    Forward,
    /// The other way.
    Reverse,
}

impl Way {
    pub(crate) fn half(self, record: &FlowRecord) -> &HalfFlow {
        match self {
            Self::Forward => &record.forward,
            Self::Reverse => &record.reverse,
        }
    }
}

/// All fields, in order.
pub const ALL: [Field; 33] = [
    Field::StartMillis,
    Field::EndMillis,
    Field::StartMicros,
    Field::EndMicros,
    Field::IpVersion,
    Field::Source,
    Field::Destination,
    Field::SourcePort,
    Field::DestinationPort,
    Field::Protocol,
    Field::Packets,
    Field::Octets,
    Field::TcpFlags,
    Field::FirstTcpFlags,
    Field::ClassOfService,
    Field::MinTtl,
    Field::MaxTtl,
    Field::MinLength,
    Field::MaxLength,
    Field::FragmentFlags,
    Field::Fragments,
    Field::IcmpType,
    Field::IcmpCode,
    Field::Vlan,
    Field::SourceMac,
    Field::DestinationMac,
    Field::Ingress,
    Field::Egress,
    Field::EndReason,
    Field::Outcome,
    Field::DnsQuery,
    Field::TlsServer,
    Field::HttpHost,
];

const PORT: u64 = u16::MAX as u64;
const BYTE: u64 = u8::MAX as u64;
const ANY: u64 = u64::MAX;
const WORD: u64 = u32::MAX as u64;

/// A number of IANA with the same name and number for both IP versions.
const fn number(name: &'static str, number: u16, len: u8, most: u64, what: &'static str) -> Spec {
    Spec {
        names: [name; 2],
        reverse: None,
        numbers: [number; 2],
        enterprise: 0,
        len: Some([len; 2]),
        most,
        what,
    }
}

/// The same with a name in the reverse direction.
const fn two_way(
    name: &'static str,
    reverse: &'static str,
    id: u16,
    len: u8,
    most: u64,
    what: &'static str,
) -> Spec {
    Spec { reverse: Some([reverse; 2]), ..number(name, id, len, most, what) }
}

const fn text(name: &'static str, number: u16, enterprise: u32, what: &'static str) -> Spec {
    Spec { names: [name; 2], reverse: None, numbers: [number; 2], enterprise, len: None, most: 0, what }
}

impl Field {
    /// What is known of it.
    pub const fn spec(self) -> Spec {
        match self {
            Self::StartMillis => two_way(
                "flowStartMilliseconds",
                "reverseFlowStartMilliseconds",
                152,
                8,
                ANY,
                "The time of the first packet, in milliseconds since 1970.",
            ),
            Self::EndMillis => two_way(
                "flowEndMilliseconds",
                "reverseFlowEndMilliseconds",
                153,
                8,
                ANY,
                "The time of the last packet.",
            ),
            Self::StartMicros => two_way(
                "flowStartMicroseconds",
                "reverseFlowStartMicroseconds",
                154,
                8,
                ANY,
                "The time of the first packet, in microseconds since 1970.",
            ),
            Self::EndMicros => two_way(
                "flowEndMicroseconds",
                "reverseFlowEndMicroseconds",
                155,
                8,
                ANY,
                "The time of the last packet, in microseconds.",
            ),
            Self::IpVersion => number("ipVersion", 60, 1, 6, "The version of IP."),
            Self::Source => Spec {
                names: ["sourceIPv4Address", "sourceIPv6Address"],
                numbers: [8, 27],
                len: Some([4, 16]),
                ..number("", 0, 0, 0, "The address of who began.")
            },
            Self::Destination => Spec {
                names: ["destinationIPv4Address", "destinationIPv6Address"],
                numbers: [12, 28],
                len: Some([4, 16]),
                ..number("", 0, 0, 0, "The other address.")
            },
            Self::SourcePort => {
                number("sourceTransportPort", 7, 2, PORT, "The port of who began, 0 where there is none.")
            }
            Self::DestinationPort => {
                number("destinationTransportPort", 11, 2, PORT, "The other port, 0 where there is none.")
            }
            Self::Protocol => number("protocolIdentifier", 4, 1, BYTE, "The protocol above IP."),
            Self::Packets => {
                two_way("packetDeltaCount", "reversePacketDeltaCount", 2, 8, ANY, "Packets of who began.")
            }
            Self::Octets => {
                two_way("octetDeltaCount", "reverseOctetDeltaCount", 1, 8, ANY, "Their IP bytes.")
            }
            Self::TcpFlags => two_way(
                "tcpControlBits",
                "reverseTcpControlBits",
                6,
                2,
                PORT,
                "Of TCP: all flags that who began has sent.",
            ),
            Self::FirstTcpFlags => Spec {
                numbers: [14; 2],
                enterprise: CERT,
                ..two_way(
                    "initialTCPFlags",
                    "reverseInitialTCPFlags",
                    14,
                    1,
                    BYTE,
                    "Of TCP: the flags of the first packet.",
                )
            },
            Self::ClassOfService => two_way(
                "ipClassOfService",
                "reverseIpClassOfService",
                5,
                1,
                BYTE,
                "Type of service, or traffic class, of the first packet.",
            ),
            Self::MinTtl => {
                two_way("minimumTTL", "reverseMinimumTTL", 52, 1, BYTE, "The lowest TTL or hop limit.")
            }
            Self::MaxTtl => two_way("maximumTTL", "reverseMaximumTTL", 53, 1, BYTE, "The highest one."),
            Self::MinLength => two_way(
                "minimumIpTotalLength",
                "reverseMinimumIpTotalLength",
                25,
                8,
                WORD,
                "IP bytes of the shortest packet.",
            ),
            Self::MaxLength => two_way(
                "maximumIpTotalLength",
                "reverseMaximumIpTotalLength",
                26,
                8,
                WORD,
                "IP bytes of the longest one.",
            ),
            Self::FragmentFlags => two_way(
                "fragmentFlags",
                "reverseFragmentFlags",
                197,
                1,
                BYTE,
                "All fragmentation flags: 64 is do not fragment, 32 more fragments.",
            ),
            Self::Fragments => {
                two_way("fragments", "reverseFragments", 0, 8, ANY, "Packets that were fragments.")
            }
            Self::IcmpType => Spec {
                names: ["icmpTypeIPv4", "icmpTypeIPv6"],
                reverse: Some(["reverseIcmpTypeIPv4", "reverseIcmpTypeIPv6"]),
                numbers: [176, 178],
                ..number("", 0, 1, BYTE, "Of ICMP: the type of the first packet.")
            },
            Self::IcmpCode => Spec {
                names: ["icmpCodeIPv4", "icmpCodeIPv6"],
                reverse: Some(["reverseIcmpCodeIPv4", "reverseIcmpCodeIPv6"]),
                numbers: [177, 179],
                ..number("", 0, 1, BYTE, "Of ICMP: its code.")
            },
            Self::Vlan => two_way(
                "vlanId",
                "reverseVlanId",
                58,
                2,
                4095,
                "The VLAN of the first packet, by its outer tag, if it has one.",
            ),
            Self::SourceMac => two_way(
                "sourceMacAddress",
                "reverseSourceMacAddress",
                56,
                6,
                0,
                "The Ethernet address that the first packet came from.",
            ),
            Self::DestinationMac => two_way(
                "destinationMacAddress",
                "reverseDestinationMacAddress",
                80,
                6,
                0,
                "The one that it went to.",
            ),
            Self::Ingress => two_way(
                "ingressInterface",
                "reverseIngressInterface",
                10,
                4,
                PORT,
                "The number of the port that the first packet came in by.",
            ),
            Self::Egress => two_way(
                "egressInterface",
                "reverseEgressInterface",
                14,
                4,
                PORT,
                "The number of the port that it left by, if it leaves by one.",
            ),
            Self::EndReason => {
                number("flowEndReason", 136, 1, 5, "Why the record ended, as IPFIX numbers it.")
            }
            Self::Outcome => {
                text("outcome", 0, 0, "What became of the connection, or whether there was an answer.")
            }
            Self::DnsQuery => text("dnsQName", 179, CERT, "The name that is asked for in DNS."),
            Self::TlsServer => {
                text("sslServerName", 294, CERT, "The server that a TLS client asks for, over TCP or QUIC.")
            }
            Self::HttpHost => text("httpRequestHost", 460, 0, "The host that an HTTP request is for."),
        }
    }

    const fn bit(self) -> u64 {
        1 << self as u8
    }

    /// Whether it is more than the counters of a flow.
    const fn is_detail(self) -> bool {
        matches!(
            self,
            Self::FirstTcpFlags
                | Self::ClassOfService
                | Self::MinTtl
                | Self::MaxTtl
                | Self::MinLength
                | Self::MaxLength
                | Self::FragmentFlags
                | Self::Fragments
                | Self::IcmpType
                | Self::IcmpCode
                | Self::Vlan
                | Self::SourceMac
                | Self::DestinationMac
                | Self::Ingress
                | Self::Egress
                | Self::Outcome
        )
    }

    /// Whether messages have a number for it.
    pub(crate) const fn is_in_messages(self) -> bool {
        self.spec().numbers[0] != 0
    }

    /// Of a field for names, the kind.
    const fn name_kind(self) -> Option<NameKind> {
        match self {
            Self::DnsQuery => Some(NameKind::DnsQuery),
            Self::TlsServer => Some(NameKind::TlsServer),
            Self::HttpHost => Some(NameKind::HttpHost),
            _ => None,
        }
    }

    pub(crate) const fn is_name(self) -> bool {
        self.name_kind().is_some()
    }

    /// Of a field for names, all that a record has, in order; none of another field.
    pub fn names(self, record: &FlowRecord) -> impl Iterator<Item = &str> {
        let names = record.more.as_ref().map_or(&[][..], |more| &more.names);
        let own = names.iter().filter(move |(kind, _)| self.name_kind() == Some(*kind));
        own.map(|(_, text)| cut(text))
    }

    /// What a record says, in one direction; none where it says nothing. Of several [names](Self::names) it is the first.
    ///
    /// The end forward is that of the whole record.
    pub fn value(self, record: &FlowRecord, way: Way) -> Option<Value<'_>> {
        if way == Way::Reverse && self.spec().reverse.is_none() {
            return None;
        }
        let half = way.half(record);
        let is_there = half.packets > 0;
        let number = |value: u64| Some(Value::Number(value));
        let timed = |value: u64| is_there.then_some(Value::Number(value));
        let end = match way {
            Way::Forward => record.end(),
            Way::Reverse => half.last,
        };
        let is_tcp = record.protocol == protocol::TCP;
        let detail = |of: &dyn Fn(&Details) -> Option<u64>| {
            let more = record.more.as_ref().filter(|_| is_there)?;
            Some(Value::Number(of(&more.details[way as usize])?))
        };
        let mac = |side: usize| {
            let more = record.more.as_ref().filter(|_| is_there)?;
            Some(Value::Mac(more.details[way as usize].macs?[side]))
        };
        match self {
            Self::StartMillis => timed(half.first.as_millis()),
            Self::EndMillis => timed(end.as_millis()),
            Self::StartMicros => timed(half.first.as_micros()),
            Self::EndMicros => timed(end.as_micros()),
            Self::IpVersion => number(if record.source.is_ipv4() { 4 } else { 6 }),
            Self::Source => Some(Value::Address(record.source)),
            Self::Destination => Some(Value::Address(record.destination)),
            Self::SourcePort => number(record.source_port.into()),
            Self::DestinationPort => number(record.destination_port.into()),
            Self::Protocol => number(record.protocol.into()),
            Self::Packets => number(half.packets),
            Self::Octets => number(half.bytes),
            Self::TcpFlags => is_tcp.then_some(Value::Number(half.tcp_flags.into())),
            Self::FirstTcpFlags => detail(&|it| is_tcp.then(|| it.first_tcp_flags.into())),
            Self::ClassOfService => detail(&|it| Some(it.class_of_service.into())),
            Self::MinTtl => detail(&|it| Some(it.ttls[0].into())),
            Self::MaxTtl => detail(&|it| Some(it.ttls[1].into())),
            Self::MinLength => detail(&|it| Some(it.lengths[0].into())),
            Self::MaxLength => detail(&|it| Some(it.lengths[1].into())),
            Self::FragmentFlags => detail(&|it| Some(it.fragment_flags.into())),
            Self::Fragments => detail(&|it| Some(it.fragments)),
            Self::IcmpType => detail(&|it| Some(it.icmp?.0.into())),
            Self::IcmpCode => detail(&|it| Some(it.icmp?.1.into())),
            Self::Vlan => detail(&|it| Some(it.vlan?.into())),
            Self::SourceMac => mac(0),
            Self::DestinationMac => mac(1),
            Self::Ingress => detail(&|it| Some(it.ingress.into())),
            Self::Egress => detail(&|it| Some(it.egress?.into())),
            Self::EndReason => number(record.end_reason as u64),
            Self::Outcome => {
                let first = record.more.as_ref()?.details[0].first_tcp_flags;
                Some(Value::Text(Outcome::of(record, first).name()))
            }
            Self::DnsQuery | Self::TlsServer | Self::HttpHost => self.names(record).next().map(Value::Text),
        }
    }

    /// What one direction says as a flow of its own (a uniflow): with its own end, and with addresses and ports as its packets have them,
    /// so that [`Field::Source`] is the sender.
    pub fn uniflow_value(self, record: &FlowRecord, way: Way) -> Option<Value<'_>> {
        let half = way.half(record);
        let turned = match (way, self) {
            (Way::Forward, Self::EndMillis) => return Some(Value::Number(half.last.as_millis())),
            (Way::Forward, Self::EndMicros) => return Some(Value::Number(half.last.as_micros())),
            (Way::Reverse, Self::Source) => Self::Destination,
            (Way::Reverse, Self::Destination) => Self::Source,
            (Way::Reverse, Self::SourcePort) => Self::DestinationPort,
            (Way::Reverse, Self::DestinationPort) => Self::SourcePort,
            (_, field) => field,
        };
        let way = if turned.spec().reverse.is_some() { way } else { Way::Forward };
        turned.value(record, way)
    }
}

/// As much of a name as a field holds.
fn cut(name: &str) -> &str {
    &name[..name.floor_char_boundary(NAME_MAX)]
}

/// A field of one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    /// The field.
    pub field: Field,
    /// The direction.
    pub way: Way,
}

impl Column {
    /// Its name, of IPv4 and of IPv6.
    pub fn names(self) -> [&'static str; 2] {
        let spec = self.field.spec();
        match self.way {
            Way::Forward => spec.names,
            Way::Reverse => spec.reverse.unwrap_or(spec.names),
        }
    }

    /// What a record says.
    pub fn value(self, record: &FlowRecord) -> Option<Value<'_>> {
        self.field.value(record, self.way)
    }
}

/// Which fields records have.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Fields(u64);

impl Fields {
    /// Times, addresses, ports, protocol, counters, TCP flags, and why the record ended.
    pub const BASIC: Self = Self::of(&[
        Field::StartMillis,
        Field::EndMillis,
        Field::IpVersion,
        Field::Source,
        Field::Destination,
        Field::SourcePort,
        Field::DestinationPort,
        Field::Protocol,
        Field::Packets,
        Field::Octets,
        Field::TcpFlags,
        Field::EndReason,
    ]);

    /// The basic ones, first TCP flags, class of service, TTLs, lengths, ICMP type and code, VLAN and ports.
    pub const STANDARD: Self = Self::of(&[
        Field::FirstTcpFlags,
        Field::ClassOfService,
        Field::MinTtl,
        Field::MaxTtl,
        Field::MinLength,
        Field::MaxLength,
        Field::IcmpType,
        Field::IcmpCode,
        Field::Vlan,
        Field::Ingress,
        Field::Egress,
    ])
    .and(Self::BASIC);

    /// All that there are.
    pub const FULL: Self = Self::of(&ALL);

    /// These fields.
    pub const fn of(fields: &[Field]) -> Self {
        let (mut bits, mut at) = (0, 0);
        while at < fields.len() {
            bits |= fields[at].bit();
            at += 1;
        }
        Self(bits)
    }

    /// These and others.
    #[must_use]
    pub const fn and(self, others: Self) -> Self {
        Self(self.0 | others.0)
    }

    /// Whether this one is among them.
    pub const fn has(self, field: Field) -> bool {
        self.0 & field.bit() != 0
    }

    /// They, in order.
    pub fn iter(self) -> impl Iterator<Item = Field> {
        ALL.into_iter().filter(move |&field| self.has(field))
    }

    /// Whether a meter is to keep more than counters.
    pub fn has_details(self) -> bool {
        self.iter().any(Field::is_detail)
    }

    /// Whether a meter is to look for names in payloads.
    pub fn has_names(self) -> bool {
        self.iter().any(Field::is_name)
    }

    /// All columns, in the order of JSON and CSV: counters of both directions come before times and flags of the reverse one.
    pub fn columns(self) -> impl Iterator<Item = Column> {
        const FORWARD_TIMES: [Field; 4] =
            [Field::StartMillis, Field::EndMillis, Field::StartMicros, Field::EndMicros];
        let columns = |fields: &'static [Field], way| {
            fields.iter().map(move |&field| Column { field, way }).filter(move |it| self.has(it.field))
        };
        let counters = &const { [Field::Packets, Field::Octets] };
        let before = &ALL[..Field::Packets as usize];
        let behind = &ALL[Field::Octets as usize + 1..];
        let both = behind.iter().filter(move |&&field| self.has(field)).flat_map(|&field| {
            let reverse = field.spec().reverse.map(|_| Column { field, way: Way::Reverse });
            [Some(Column { field, way: Way::Forward }), reverse].into_iter().flatten()
        });
        columns(before, Way::Forward)
            .chain(columns(counters, Way::Forward))
            .chain(columns(counters, Way::Reverse))
            .chain(columns(&const { FORWARD_TIMES }, Way::Reverse))
            .chain(both)
    }
}

impl fmt::Debug for Fields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Fields {
    /// The name of a preset, or of all fields.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((name, _)) = PRESETS.iter().find(|(_, fields)| fields == self) {
            return f.write_str(name);
        }
        for (number, field) in self.iter().enumerate() {
            f.write_str(if number > 0 { "," } else { "" })?;
            f.write_str(field.spec().names[0])?;
        }
        Ok(())
    }
}

const PRESETS: [(&str, Fields); 3] =
    [("basic", Fields::BASIC), ("standard", Fields::STANDARD), ("full", Fields::FULL)];

impl FromStr for Fields {
    type Err = String;

    /// Names of presets and fields, with commas between them.
    fn from_str(text: &str) -> Result<Self, String> {
        let one = |name: &str| {
            let preset = PRESETS.iter().find(|(preset, _)| *preset == name).map(|(_, fields)| *fields);
            let field =
                || ALL.into_iter().find(|field| field.spec().names.contains(&name)).map(|it| Self::of(&[it]));
            preset.or_else(field).ok_or_else(|| {
                format!(
                    "\"{name}\" is no field; expected basic, standard, full, or names such as vlanId or minimumTTL, \
                     with commas between them"
                )
            })
        };
        text.split(',').map(str::trim).try_fold(Self(0), |all, name| Ok(all.and(one(name)?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_in_order_and_have_names_of_their_own() {
        assert!(ALL.is_sorted());
        for (number, field) in ALL.into_iter().enumerate() {
            assert_eq!(field as usize, number);
            for name in field.spec().names {
                assert_eq!(name.parse(), Ok(Fields::of(&[field])));
            }
        }
        let mut names: Vec<_> = Fields::FULL.columns().map(|column| column.names()[0]).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
        assert_eq!(count, 33 + ALL.into_iter().filter(|field| field.spec().reverse.is_some()).count());
    }

    #[test]
    fn fields_are_read_and_written() {
        for text in ["basic", "standard", "full", "ipVersion,vlanId"] {
            assert_eq!(text.parse::<Fields>().unwrap().to_string(), text);
        }
        assert_eq!("basic, vlanId".parse(), Ok(Fields::BASIC.and(Fields::of(&[Field::Vlan]))));
        for text in ["", "vlan", "basic,,full"] {
            assert!(text.parse::<Fields>().unwrap_err().contains("is no field; expected basic"), "{text}");
        }
        assert!(!Fields::BASIC.has_details() && !Fields::BASIC.has_names());
        assert!(Fields::STANDARD.has_details() && !Fields::STANDARD.has_names());
        assert!(Fields::FULL.has_names());
    }

    #[test]
    fn names_are_cut_between_characters() {
        let name = "ä".repeat(200);
        assert_eq!(cut(&name).len(), NAME_MAX);
        assert_eq!(cut("short"), "short");
    }
}
