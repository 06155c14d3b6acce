//! The names that IOS has for numbers.

use packetloom_packet::protocol::{ICMP, ICMPV6, SCTP, TCP, UDP};

/// Names of protocols, of IPv4 and IPv6 lists alike.
pub(super) const PROTOCOLS: &[(&str, u8)] = &[
    ("ahp", 51),
    ("eigrp", 88),
    ("esp", 50),
    ("gre", 47),
    ("igmp", 2),
    ("ipinip", 4),
    ("nos", 94),
    ("ospf", 89),
    ("pcp", 108),
    ("pim", 103),
    ("sctp", SCTP),
    ("tcp", TCP),
    ("udp", UDP),
];

const TCP_PORTS: &[(&str, u16)] = &[
    ("bgp", 179),
    ("chargen", 19),
    ("cmd", 514),
    ("connectedapps-plain", 15001),
    ("connectedapps-tls", 15002),
    ("daytime", 13),
    ("discard", 9),
    ("domain", 53),
    ("drip", 3949),
    ("echo", 7),
    ("exec", 512),
    ("finger", 79),
    ("ftp", 21),
    ("ftp-data", 20),
    ("gopher", 70),
    ("hostname", 101),
    ("ident", 113),
    ("irc", 194),
    ("klogin", 543),
    ("kshell", 544),
    ("login", 513),
    ("lpd", 515),
    ("msrpc", 135),
    ("nntp", 119),
    ("onep-plain", 15001),
    ("onep-tls", 15002),
    ("pim-auto-rp", 496),
    ("pop2", 109),
    ("pop3", 110),
    ("smtp", 25),
    ("sunrpc", 111),
    ("syslog", 514),
    ("tacacs", 49),
    ("talk", 517),
    ("telnet", 23),
    ("time", 37),
    ("uucp", 540),
    ("whois", 43),
    ("www", 80),
];

const UDP_PORTS: &[(&str, u16)] = &[
    ("biff", 512),
    ("bootpc", 68),
    ("bootps", 67),
    ("discard", 9),
    ("dnsix", 195),
    ("domain", 53),
    ("echo", 7),
    ("isakmp", 500),
    ("mobile-ip", 434),
    ("nameserver", 42),
    ("netbios-dgm", 138),
    ("netbios-ns", 137),
    ("netbios-ss", 139),
    ("non500-isakmp", 4500),
    ("ntp", 123),
    ("pim-auto-rp", 496),
    ("rip", 520),
    ("snmp", 161),
    ("snmptrap", 162),
    ("sunrpc", 111),
    ("syslog", 514),
    ("tacacs", 49),
    ("talk", 517),
    ("tftp", 69),
    ("time", 37),
    ("who", 513),
    ("xdmcp", 177),
];

/// A message: its type, and its code where it has one.
type Message = (u8, Option<u8>);

const ICMP_MESSAGES: &[(&str, Message)] = &[
    ("administratively-prohibited", (3, Some(13))),
    ("alternate-address", (6, None)),
    ("conversion-error", (31, None)),
    ("dod-host-prohibited", (3, Some(10))),
    ("dod-net-prohibited", (3, Some(9))),
    ("echo", (8, None)),
    ("echo-reply", (0, None)),
    ("general-parameter-problem", (12, Some(0))),
    ("host-isolated", (3, Some(8))),
    ("host-precedence-unreachable", (3, Some(14))),
    ("host-redirect", (5, Some(1))),
    ("host-tos-redirect", (5, Some(3))),
    ("host-tos-unreachable", (3, Some(12))),
    ("host-unknown", (3, Some(7))),
    ("host-unreachable", (3, Some(1))),
    ("information-reply", (16, None)),
    ("information-request", (15, None)),
    ("mask-reply", (18, None)),
    ("mask-request", (17, None)),
    ("mobile-redirect", (32, None)),
    ("net-redirect", (5, Some(0))),
    ("net-tos-redirect", (5, Some(2))),
    ("net-tos-unreachable", (3, Some(11))),
    ("net-unreachable", (3, Some(0))),
    ("network-unknown", (3, Some(6))),
    ("no-room-for-option", (12, Some(2))),
    ("option-missing", (12, Some(1))),
    ("packet-too-big", (3, Some(4))),
    ("parameter-problem", (12, None)),
    ("port-unreachable", (3, Some(3))),
    ("precedence-unreachable", (3, Some(15))),
    ("protocol-unreachable", (3, Some(2))),
    ("reassembly-timeout", (11, Some(1))),
    ("redirect", (5, None)),
    ("router-advertisement", (9, None)),
    ("router-solicitation", (10, None)),
    ("source-quench", (4, None)),
    ("source-route-failed", (3, Some(5))),
    ("time-exceeded", (11, None)),
    ("timestamp-reply", (14, None)),
    ("timestamp-request", (13, None)),
    ("traceroute", (30, None)),
    ("ttl-exceeded", (11, Some(0))),
    ("unreachable", (3, None)),
];

const ICMPV6_MESSAGES: &[(&str, Message)] = &[
    ("beyond-scope", (1, Some(2))),
    ("destination-unreachable", (1, Some(3))),
    ("dhaad-reply", (145, None)),
    ("dhaad-request", (144, None)),
    ("echo-reply", (129, None)),
    ("echo-request", (128, None)),
    ("header", (4, Some(0))),
    ("hop-limit", (3, Some(0))),
    ("mld-query", (130, None)),
    ("mld-reduction", (132, None)),
    ("mld-report", (131, None)),
    ("mpd-advertisement", (147, None)),
    ("mpd-solicitation", (146, None)),
    ("nd-na", (136, None)),
    ("nd-ns", (135, None)),
    ("next-header", (4, Some(1))),
    ("no-admin", (1, Some(1))),
    ("no-route", (1, Some(0))),
    ("packet-too-big", (2, None)),
    ("parameter-option", (4, Some(2))),
    ("parameter-problem", (4, None)),
    ("port-unreachable", (1, Some(4))),
    ("reassembly-timeout", (3, Some(1))),
    ("renum-command", (138, Some(0))),
    ("renum-result", (138, Some(1))),
    ("renum-seq-number", (138, Some(255))),
    ("router-advertisement", (134, None)),
    ("router-renumbering", (138, None)),
    ("router-solicitation", (133, None)),
    ("time-exceeded", (3, None)),
    ("unreachable", (1, None)),
];

fn find<T: Copy>(names: &[(&str, T)], word: &str) -> Option<T> {
    names.iter().find(|(name, _)| *name == word).map(|(_, value)| *value)
}

/// A protocol by its name; `ip` and `ipv6`, which are every protocol, have none.
pub(super) fn protocol(word: &str, icmp: u8) -> Option<u8> {
    if word == "icmp" { Some(icmp) } else { find(PROTOCOLS, word) }
}

/// A port by its name. Where the protocol may be either, so may the name.
pub(super) fn port(word: &str, protocol: Option<u8>) -> Option<u16> {
    match protocol {
        Some(TCP) => find(TCP_PORTS, word),
        Some(UDP) => find(UDP_PORTS, word),
        Some(_) => None,
        None => find(TCP_PORTS, word).or_else(|| find(UDP_PORTS, word)),
    }
}

/// A message by its name.
pub(super) fn message(word: &str, protocol: u8) -> Option<Message> {
    match protocol {
        ICMP => find(ICMP_MESSAGES, word),
        ICMPV6 => find(ICMPV6_MESSAGES, word),
        _ => None,
    }
}
