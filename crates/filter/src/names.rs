//! The words of the language, and what its names stand for. Names of services are built in, so that a filter means the same everywhere.

use packetloom_packet::protocol;

use crate::parse::Proto;

/// Names of protocols that may stand before other words, alone, or before an index.
pub(crate) const PROTOCOLS: &[(&str, Proto)] = &[
    ("ether", Proto::Ether),
    ("link", Proto::Ether),
    ("ip", Proto::Ipv4),
    ("ip6", Proto::Ipv6),
    ("arp", Proto::Arp),
    ("rarp", Proto::Rarp),
    ("tcp", Proto::Tcp),
    ("udp", Proto::Udp),
    ("sctp", Proto::Sctp),
    ("icmp", Proto::Icmp),
    ("icmp6", Proto::Icmp6),
    ("icmpv6", Proto::Icmp6),
    ("igmp", Proto::Igmp),
    ("igrp", Proto::Igrp),
    ("pim", Proto::Pim),
    ("vrrp", Proto::Vrrp),
    ("carp", Proto::Carp),
    ("ah", Proto::Ah),
    ("esp", Proto::Esp),
];

/// The other words of the subset, for hints.
pub(crate) const WORDS: &[&str] = &[
    "src",
    "dst",
    "host",
    "net",
    "port",
    "portrange",
    "proto",
    "mask",
    "and",
    "or",
    "not",
    "broadcast",
    "multicast",
    "less",
    "greater",
    "len",
    "vlan",
];

/// Words of the language that are not in the subset, and what to write in their place.
pub(crate) const UNSUPPORTED: &[(&str, &str)] = &[
    ("protochain", "`proto` looks behind IPv6 extension headers by itself"),
    ("gateway", ""),
    ("mpls", "tests look behind MPLS labels by themselves"),
    ("pppoed", "write `ether proto 0x8863`"),
    ("pppoes", "tests look behind PPPoE headers by themselves; `ether proto 0x8864` matches the frames"),
    ("geneve", ""),
    ("vxlan", ""),
    ("llc", ""),
    ("fddi", ""),
    ("tr", ""),
    ("wlan", ""),
    ("ppp", ""),
    ("slip", ""),
    ("atalk", "write `ether proto 0x809b`"),
    ("aarp", "write `ether proto 0x80f3`"),
    ("decnet", "write `ether proto 0x6003`"),
    ("lat", "write `ether proto 0x6004`"),
    ("sca", "write `ether proto 0x6007`"),
    ("moprc", "write `ether proto 0x6002`"),
    ("mopdl", "write `ether proto 0x6001`"),
    ("iso", ""),
    ("esis", ""),
    ("isis", ""),
    ("es-is", ""),
    ("is-is", ""),
    ("clnp", ""),
    ("stp", ""),
    ("ipx", "write `ether proto 0x8137`"),
    ("netbeui", ""),
    ("radio", ""),
    ("lane", ""),
    ("type", ""),
    ("subtype", ""),
    ("dir", ""),
    ("direction", ""),
    ("addr1", ""),
    ("addr2", ""),
    ("addr3", ""),
    ("addr4", ""),
    ("ra", ""),
    ("ta", ""),
    ("inbound", ""),
    ("outbound", ""),
    ("ifname", ""),
    ("ifindex", ""),
    ("on", ""),
    ("rulenum", ""),
    ("rnr", ""),
    ("rset", ""),
    ("ruleset", ""),
    ("srnr", ""),
    ("subrulenum", ""),
    ("reason", ""),
    ("action", ""),
    ("vpi", ""),
    ("vci", ""),
    ("byte", ""),
];

/// Names of numbers in comparisons.
pub(crate) const NUMBERS: &[(&str, u32)] = &[
    ("tcpflags", 13),
    ("tcp-fin", 0x01),
    ("tcp-syn", 0x02),
    ("tcp-rst", 0x04),
    ("tcp-push", 0x08),
    ("tcp-ack", 0x10),
    ("tcp-urg", 0x20),
    ("tcp-ece", 0x40),
    ("tcp-cwr", 0x80),
    ("icmptype", 0),
    ("icmpcode", 1),
    ("icmp-echoreply", 0),
    ("icmp-unreach", 3),
    ("icmp-sourcequench", 4),
    ("icmp-redirect", 5),
    ("icmp-echo", 8),
    ("icmp-routeradvert", 9),
    ("icmp-routersolicit", 10),
    ("icmp-timxceed", 11),
    ("icmp-paramprob", 12),
    ("icmp-tstamp", 13),
    ("icmp-tstampreply", 14),
    ("icmp-ireq", 15),
    ("icmp-ireqreply", 16),
    ("icmp-maskreq", 17),
    ("icmp-maskreply", 18),
    ("icmp6type", 0),
    ("icmp6code", 1),
    ("icmp6-destinationunreach", 1),
    ("icmp6-packettoobig", 2),
    ("icmp6-timeexceeded", 3),
    ("icmp6-parameterproblem", 4),
    ("icmp6-echo", 128),
    ("icmp6-echoreply", 129),
    ("icmp6-multicastlistenerquery", 130),
    ("icmp6-multicastlistenerreportv1", 131),
    ("icmp6-multicastlistenerdone", 132),
    ("icmp6-routersolicit", 133),
    ("icmp6-routeradvert", 134),
    ("icmp6-neighborsolicit", 135),
    ("icmp6-neighboradvert", 136),
    ("icmp6-redirect", 137),
    ("icmp6-routerrenum", 138),
    ("icmp6-nodeinformationquery", 139),
    ("icmp6-nodeinformationresponse", 140),
    ("icmp6-ineighbordiscoverysolicit", 141),
    ("icmp6-ineighbordiscoveryadvert", 142),
    ("icmp6-multicastlistenerreportv2", 143),
    ("icmp6-homeagentdiscoveryrequest", 144),
    ("icmp6-homeagentdiscoveryreply", 145),
    ("icmp6-mobileprefixsolicit", 146),
    ("icmp6-mobileprefixadvert", 147),
    ("icmp6-certpathsolicit", 148),
    ("icmp6-certpathadvert", 149),
    ("icmp6-multicastrouteradvert", 151),
    ("icmp6-multicastroutersolicit", 152),
    ("icmp6-multicastrouterterm", 153),
];

/// Names of ports (IANA "Service Name and Transport Protocol Port Number Registry", and names that /etc/services usually has), by name.
const SERVICES: &[(&str, u16)] = &[
    ("bgp", 179),
    ("bootpc", 68),
    ("bootps", 67),
    ("chargen", 19),
    ("daytime", 13),
    ("dhcpv6-client", 546),
    ("dhcpv6-server", 547),
    ("discard", 9),
    ("domain", 53),
    ("domain-s", 853),
    ("echo", 7),
    ("finger", 79),
    ("ftp", 21),
    ("ftp-data", 20),
    ("ftps", 990),
    ("http", 80),
    ("http-alt", 8080),
    ("https", 443),
    ("imap", 143),
    ("imap2", 143),
    ("imaps", 993),
    ("ipfix", 4739),
    ("ipp", 631),
    ("isakmp", 500),
    ("kerberos", 88),
    ("l2tp", 1701),
    ("ldap", 389),
    ("ldaps", 636),
    ("mdns", 5353),
    ("microsoft-ds", 445),
    ("mqtt", 1883),
    ("ms-sql-s", 1433),
    ("ms-wbt-server", 3389),
    ("mysql", 3306),
    ("netbios-dgm", 138),
    ("netbios-ns", 137),
    ("netbios-ssn", 139),
    ("nfs", 2049),
    ("nntp", 119),
    ("ntp", 123),
    ("openvpn", 1194),
    ("pop3", 110),
    ("pop3s", 995),
    ("postgresql", 5432),
    ("radius", 1812),
    ("radius-acct", 1813),
    ("rsync", 873),
    ("rtsp", 554),
    ("sip", 5060),
    ("sip-tls", 5061),
    ("smtp", 25),
    ("snmp", 161),
    ("snmp-trap", 162),
    ("snmptrap", 162),
    ("socks", 1080),
    ("ssdp", 1900),
    ("ssh", 22),
    ("submission", 587),
    ("submissions", 465),
    ("sunrpc", 111),
    ("syslog", 514),
    ("tacacs", 49),
    ("telnet", 23),
    ("telnets", 992),
    ("tftp", 69),
    ("time", 37),
    ("whois", 43),
    ("xmpp-client", 5222),
    ("xmpp-server", 5269),
];

/// EtherTypes that `ether proto` takes by name.
pub(crate) const ETHERTYPES: &[(&str, u16)] = &[
    ("ip", super::ETHERTYPE_IPV4),
    ("ip6", super::ETHERTYPE_IPV6),
    ("arp", super::ETHERTYPE_ARP),
    ("rarp", super::ETHERTYPE_RARP),
];

/// What a name stands for in a table.
pub(crate) fn find<T: Copy>(table: &[(&str, T)], name: &str) -> Option<T> {
    table.iter().find(|(other, _)| *other == name).map(|&(_, value)| value)
}

/// The port of a service.
pub(crate) fn service(name: &str) -> Option<u16> {
    find(SERVICES, name)
}

/// All names of services.
pub(crate) fn services() -> impl Iterator<Item = &'static str> {
    SERVICES.iter().map(|&(name, _)| name)
}

/// All words of the subset.
pub(crate) fn words() -> impl Iterator<Item = &'static str> {
    WORDS.iter().copied().chain(PROTOCOLS.iter().map(|&(name, _)| name))
}

/// The number of an IP protocol that `proto` takes by name.
pub(crate) fn ip_protocol(name: &str) -> Option<u8> {
    match name {
        "icmp6" | "ipv6-icmp" => Some(protocol::ICMPV6),
        "igrp" => Some(9),
        "carp" => Some(112),
        _ => protocol::by_name(name),
    }
}

/// The candidate that is nearest to a word, if one is near: an insertion, deletion, substitution or swap of neighbours away, two of them
/// for longer words.
pub(crate) fn nearest<'a>(word: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let most = match word.len() {
        0..=2 => return None,
        3..=4 => 1,
        5..=32 => 2,
        _ => return None,
    };
    let word = word.to_ascii_lowercase();
    let distances = candidates.map(|other| (distance(word.as_bytes(), other.as_bytes()), other));
    distances
        .filter(|&(distance, _)| distance <= most)
        .min_by_key(|&(distance, _)| distance)
        .map(|(_, other)| other)
}

/// Edits from one word to the other.
fn distance(a: &[u8], b: &[u8]) -> usize {
    let mut before = vec![0; b.len() + 1];
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i; b.len() + 1];
        for j in 1..=b.len() {
            let changed = usize::from(a[i - 1] != b[j - 1]);
            row[j] = (last[j - 1] + changed).min(last[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                row[j] = row[j].min(before[j - 2] + 1);
            }
        }
        before = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}
