//! IP chains.

use super::Ports::{Any, Exact, High, Range};
use super::{Growth, Lengths, Profile, Side, Weights, ports, service};
use packetloom_classify::rule::PortRange;
use packetloom_packet::protocol::{AH, ESP, GRE, ICMP, TCP, UDP};

/// Lengths of a specific source: every size of network.
#[rustfmt::skip]
const SOURCE: Weights<u8> = &[
    (32, 285), (31, 92), (30, 13), (29, 9), (28, 18), (27, 30), (26, 55), (25, 103), (24, 150),
    (23, 120), (22, 42), (21, 8), (20, 2), (19, 1), (18, 7), (17, 20), (16, 24), (15, 8), (14, 2),
    (13, 1),
];
#[rustfmt::skip]
const DESTINATION: Weights<u8> = &[
    (32, 350), (31, 105), (30, 10), (29, 13), (28, 27), (27, 42), (26, 64), (25, 112), (24, 128),
    (23, 63), (22, 13), (21, 4), (20, 2), (19, 1), (18, 3), (17, 16), (16, 28), (15, 15), (14, 2),
];
const WIDE_SOURCE: Weights<u8> = &[(0, 60), (1, 36), (2, 4)];
const WIDE_DESTINATION: Weights<u8> = &[(0, 62), (1, 34), (2, 4)];

/// Ranges of services, the most popular first.
#[rustfmt::skip]
const RANGES: &[PortRange] = &[
    ports(20, 23), ports(109, 110), ports(20, 21), ports(1645, 1646), ports(137, 139),
    ports(6000, 6063), ports(5000, 5001), ports(67, 68), ports(161, 162), ports(33_434, 33_534),
    ports(1812, 1813),
];

pub(super) const PROFILE: Profile = Profile {
    lengths: &[
        (Lengths { source: SOURCE, destination: DESTINATION }, 905),
        (Lengths { source: WIDE_SOURCE, destination: DESTINATION }, 57),
        (Lengths { source: SOURCE, destination: WIDE_DESTINATION }, 35),
        (Lengths { source: WIDE_SOURCE, destination: WIDE_DESTINATION }, 3),
    ],
    services: &[
        (service(None, Any, Any), 330),
        (service(Some(UDP), Any, Exact), 220),
        (service(Some(TCP), Any, Exact), 135),
        (service(Some(UDP), Any, High), 70),
        (service(Some(UDP), Exact, Any), 68),
        (service(Some(TCP), Exact, Any), 66),
        (service(Some(TCP), Any, Any), 25),
        (service(Some(TCP), Any, Range), 22),
        (service(Some(TCP), Range, Any), 18),
        (service(Some(ICMP), Any, Any), 12),
        (service(Some(UDP), Any, Range), 8),
        (service(Some(UDP), Range, Any), 4),
        (service(Some(UDP), High, Any), 4),
        (service(Some(UDP), Any, Any), 4),
        (service(Some(GRE), Any, Any), 4),
        (service(Some(UDP), Exact, Exact), 3),
        (service(Some(ESP), Any, Any), 2),
        (service(Some(AH), Any, Any), 2),
        (service(Some(UDP), Exact, Range), 3),
    ],
    source: Side { values: Growth { fixed: 0, share: 125, knee: 5400 }, per_network: 16, power: 2 },
    destination: Side { values: Growth { fixed: 0, share: 125, knee: 1100 }, per_network: 16, power: 2 },
    source_ports: &[
        161, 53, 80, 25, 1433, 143, 22, 443, 5540, 109, 69, 514, 123, 162, 5631, 5632, 389, 1723, 500, 110,
        20, 3389, 1812, 88,
    ],
    destination_ports: &[
        514, 69, 80, 53, 9000, 25, 1433, 137, 143, 162, 22, 113, 139, 119, 161, 443, 1645, 1646, 135, 5631,
        500, 524, 1723, 3389, 389, 445, 123, 110, 21, 23, 179, 1812, 3306, 5060, 8080, 1521,
    ],
    ranges: RANGES,
    pair_share: 12,
    ack_share: 5,
    permit_share: 70,
};
