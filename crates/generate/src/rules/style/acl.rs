//! Access control lists.

use super::Ports::{Any, Exact, High, Range};
use super::{Growth, Lengths, Profile, Side, Weights, ports, service};
use packetloom_classify::rule::PortRange;
use packetloom_packet::protocol::{ICMP, TCP, UDP};

/// Lengths of a specific source: hosts and pairs, and the blocks around /23.
const SOURCE: Weights<u8> =
    &[(32, 690), (31, 190), (30, 24), (29, 5), (28, 2), (25, 6), (24, 30), (23, 40), (22, 11), (21, 2)];

/// Lengths of a specific destination: hosts and pairs, blocks of every size.
#[rustfmt::skip]
const DESTINATION: Weights<u8> = &[
    (32, 685), (31, 155), (30, 24), (29, 3), (28, 3), (27, 2), (26, 5), (25, 17), (24, 22), (23, 20),
    (22, 35), (21, 9), (20, 2), (18, 2), (17, 4), (16, 7),
];

/// Lengths of a wide destination.
#[rustfmt::skip]
const WIDE_DESTINATION: Weights<u8> = &[
    (15, 5), (14, 3), (13, 2), (12, 2), (11, 1), (10, 1), (9, 1), (8, 1), (7, 1), (6, 1), (5, 1),
    (4, 1), (3, 1), (2, 1), (1, 1), (0, 2),
];

/// Lengths of a wide source.
const WIDE_SOURCE: Weights<u8> = &[(9, 1), (8, 3), (7, 3), (6, 1), (2, 1), (1, 1), (0, 3)];

/// Ranges of services, the most popular first.
#[rustfmt::skip]
const RANGES: &[PortRange] = &[
    ports(0, 1023), ports(20, 21), ports(135, 139), ports(137, 138), ports(1520, 1529),
    ports(6000, 6063), ports(8000, 8099), ports(1300, 1349), ports(5000, 5099), ports(1645, 1646),
    ports(1812, 1813), ports(7000, 7099), ports(9000, 9009), ports(2000, 2099), ports(3300, 3399),
    ports(5900, 5910), ports(33_434, 33_534), ports(49_152, 65_535), ports(10_000, 20_000),
    ports(4000, 4049), ports(1433, 1434), ports(161, 162), ports(8000, 8999), ports(5500, 5599),
    ports(512, 515), ports(67, 68), ports(109, 110), ports(6660, 6669),
];

pub(super) const PROFILE: Profile = Profile {
    lengths: &[
        (Lengths { source: SOURCE, destination: DESTINATION }, 982),
        (Lengths { source: SOURCE, destination: WIDE_DESTINATION }, 15),
        (Lengths { source: WIDE_SOURCE, destination: DESTINATION }, 3),
    ],
    services: &[
        (service(Some(TCP), Any, Exact), 560),
        (service(Some(TCP), Any, Any), 190),
        (service(Some(TCP), Any, Range), 105),
        (service(Some(TCP), Any, High), 20),
        (service(None, Any, Any), 84),
        (service(Some(ICMP), Any, Any), 28),
        (service(Some(UDP), Any, Exact), 10),
        (service(Some(UDP), Any, Range), 3),
    ],
    source: Side { values: Growth { fixed: 0, share: 200, knee: 15_000 }, per_network: 64, power: 2 },
    destination: Side { values: Growth { fixed: 320, share: 9, knee: 200 }, per_network: 16, power: 3 },
    source_ports: &[],
    destination_ports: &[
        1521, 443, 80, 22, 25, 53, 1433, 21, 135, 3306, 8080, 139, 20, 23, 445, 5432, 110, 143, 389, 636, 88,
        161, 162, 514, 123, 69, 993, 995, 465, 587, 1720, 5060, 5061, 1723, 500, 4500, 1812, 1813, 1645,
        1646, 49, 179, 512, 513, 515, 631, 873, 992, 990, 1494, 1526, 1525, 1522, 2049, 111, 2401, 3128,
        3268, 3389, 5631, 5632, 5900, 6000, 6379, 6667, 7001, 8443, 8888, 9000, 9090, 9100, 9200, 10_000,
        11_211, 27_017,
    ],
    ranges: RANGES,
    pair_share: 40,
    ack_share: 10,
    permit_share: 75,
};
