//! IP protocol numbers (IANA "Assigned Internet Protocol Numbers") and their names.

/// ICMP (RFC 792).
pub const ICMP: u8 = 1;
/// IPv4 in IP (RFC 2003).
pub const IPIP: u8 = 4;
/// TCP (RFC 9293).
pub const TCP: u8 = 6;
/// UDP (RFC 768).
pub const UDP: u8 = 17;
/// IPv6 hop-by-hop options (RFC 8200 section 4.3).
pub const HOP_BY_HOP: u8 = 0;
/// IPv6 routing header (RFC 8200 section 4.4).
pub const ROUTING: u8 = 43;
/// IPv6 fragment header (RFC 8200 section 4.5).
pub const FRAGMENT: u8 = 44;
/// Generic routing encapsulation (RFC 2784).
pub const GRE: u8 = 47;
/// Encapsulating security payload (RFC 4303).
pub const ESP: u8 = 50;
/// Authentication header (RFC 4302).
pub const AH: u8 = 51;
/// ICMPv6 (RFC 4443).
pub const ICMPV6: u8 = 58;
/// IPv6 destination options (RFC 8200 section 4.6).
pub const DESTINATION_OPTIONS: u8 = 60;
/// SCTP (RFC 9260).
pub const SCTP: u8 = 132;
/// Mobility header (RFC 6275).
pub const MOBILITY: u8 = 135;
/// Host identity protocol (RFC 7401).
pub const HIP: u8 = 139;
/// Shim6 (RFC 5533).
pub const SHIM6: u8 = 140;

const NAMES: &[(&str, u8)] = &[
    ("icmp", ICMP),
    ("igmp", 2),
    ("ipip", IPIP),
    ("tcp", TCP),
    ("udp", UDP),
    ("dccp", 33),
    ("ipv6", 41),
    ("rsvp", 46),
    ("gre", GRE),
    ("esp", ESP),
    ("ah", AH),
    ("icmpv6", ICMPV6),
    ("eigrp", 88),
    ("ospf", 89),
    ("pim", 103),
    ("vrrp", 112),
    ("l2tp", 115),
    ("sctp", SCTP),
    ("udplite", 136),
];

/// The number of a protocol given by its lower-case name.
pub fn by_name(name: &str) -> Option<u8> {
    NAMES.iter().find(|(n, _)| *n == name).map(|&(_, number)| number)
}

/// The lower-case name of a protocol, where it has a usual one.
pub fn name(number: u8) -> Option<&'static str> {
    NAMES.iter().find(|&&(_, n)| n == number).map(|&(name, _)| name)
}

/// Whether the protocol's header begins with a source and a destination port of 16 bits each.
pub const fn has_ports(protocol: u8) -> bool {
    matches!(protocol, TCP | UDP | SCTP)
}

/// Whether the protocol's header begins with a type and a code of 8 bits each.
pub const fn has_type_and_code(protocol: u8) -> bool {
    matches!(protocol, ICMP | ICMPV6)
}

/// Whether a flow meter counts packets of this protocol.
pub const fn is_metered(protocol: u8) -> bool {
    has_ports(protocol) || has_type_and_code(protocol)
}
