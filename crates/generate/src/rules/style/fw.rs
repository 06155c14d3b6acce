//! Firewalls.

use super::Ports::{Any, Exact, High, Low, Range};
use super::{Growth, Lengths, Profile, Side, Weights, ports, service};
use packetloom_classify::rule::PortRange;
use packetloom_packet::protocol::{GRE, ICMP, TCP, UDP};

/// Lengths of a specific source; a few are short.
#[rustfmt::skip]
const SOURCE: Weights<u8> = &[
    (32, 470), (31, 220), (30, 75), (29, 52), (28, 48), (27, 32), (26, 20), (25, 9), (24, 8), (23, 12),
    (22, 14), (21, 12), (20, 9), (19, 2), (17, 1), (16, 3), (15, 3), (13, 2), (12, 3), (11, 2), (8, 2),
    (7, 1),
];
#[rustfmt::skip]
const DESTINATION: Weights<u8> = &[
    (32, 600), (31, 280), (30, 50), (29, 15), (28, 17), (27, 8), (26, 2), (25, 1), (23, 3), (22, 12),
    (21, 9), (20, 5),
];
const WIDE_SOURCE: Weights<u8> = &[(0, 62), (1, 28), (2, 10)];
const WIDE_DESTINATION: Weights<u8> = &[(0, 75), (1, 19), (2, 6)];

/// Ranges of services, the most popular first.
#[rustfmt::skip]
const RANGES: &[PortRange] = &[
    ports(33_434, 33_600), ports(137, 139), ports(20, 21), ports(6000, 6063), ports(49_152, 65_535),
    ports(5060, 5061), ports(10_000, 20_000),
];

pub(super) const PROFILE: Profile = Profile {
    lengths: &[
        (Lengths { source: WIDE_SOURCE, destination: DESTINATION }, 560),
        (Lengths { source: SOURCE, destination: WIDE_DESTINATION }, 235),
        (Lengths { source: SOURCE, destination: DESTINATION }, 200),
        (Lengths { source: WIDE_SOURCE, destination: WIDE_DESTINATION }, 5),
    ],
    services: &[
        (service(Some(TCP), Any, Exact), 400),
        (service(Some(UDP), Any, Exact), 145),
        (service(Some(TCP), Any, Any), 115),
        (service(Some(UDP), Exact, Any), 95),
        (service(Some(GRE), Any, Any), 55),
        (service(Some(TCP), High, High), 40),
        (service(Some(ICMP), Any, Any), 40),
        (service(Some(UDP), High, High), 25),
        (service(Some(UDP), Exact, Exact), 20),
        (service(Some(UDP), High, Exact), 18),
        (service(Some(UDP), Exact, High), 18),
        (service(None, Any, Any), 12),
        (service(Some(TCP), High, Range), 5),
        (service(Some(TCP), Range, High), 5),
        (service(Some(UDP), Range, Range), 3),
        (service(Some(TCP), Low, High), 2),
        (service(Some(TCP), High, Low), 2),
    ],
    source: Side { values: Growth { fixed: 0, share: 90, knee: 3500 }, per_network: 16, power: 2 },
    destination: Side { values: Growth { fixed: 0, share: 150, knee: 4700 }, per_network: 16, power: 2 },
    source_ports: &[123, 53, 750, 161, 88, 67, 69, 162, 500, 514, 1812],
    destination_ports: &[
        22, 80, 53, 25, 443, 123, 21, 2105, 544, 161, 750, 23, 67, 69, 110, 88, 119, 179, 37, 143, 162, 389,
        445, 500, 514, 543, 873, 993, 1433, 1723, 2401, 3306, 3389, 5432, 8080,
    ],
    ranges: RANGES,
    pair_share: 25,
    ack_share: 3,
    permit_share: 60,
};
