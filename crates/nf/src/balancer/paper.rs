//! Which backend a new flow gets, the slow and obvious way, for the oracle: nothing of it is shared with [`maglev`](super::maglev) and
//! [`services`](super::services) but the numbers that fix the hashes.
//!
//! Eisenbud et al., NSDI 2016, section 3.4, pseudocode 1, with turns by weight as [`maglev`](super::maglev) has them.

use std::net::IpAddr;

use super::services::{Front, Services};
use crate::oracle::OracleIp;

/// Services in their order, each with its table.
pub(super) struct SlowServices {
    services: Vec<SlowService>,
    seed: u64,
}

struct SlowService {
    front: Front,
    /// The number of the backend of each entry.
    table: Vec<u32>,
}

impl SlowServices {
    /// Those that a chain file lists.
    pub(super) fn new(services: &Services) -> Self {
        let (fronts, backends, seed) = services.configured();
        let ends = fronts.iter().skip(1).map(|next| next.first as usize).chain([backends.len()]);
        let service = |(service, end): (&super::services::Service, usize)| {
            let first = service.first as usize;
            let named = backends[first..end].iter().map(|backend| {
                let name = match (backend.address, backend.port) {
                    (address, None) => address.to_string(),
                    (IpAddr::V4(address), Some(port)) => format!("{address}:{port}"),
                    (IpAddr::V6(address), Some(port)) => format!("[{address}]:{port}"),
                };
                (name.into_bytes(), backend.weight)
            });
            let table = table(&named.collect::<Vec<_>>(), service.table.size());
            let table = table.into_iter().map(|backend| backend + service.first).collect();
            SlowService { front: service.front, table }
        };
        Self { services: fronts.iter().zip(ends).map(service).collect(), seed }
    }

    /// The number of the backend of a flow that begins with this packet; none where it is to no service.
    pub(super) fn backend(&self, ip: &OracleIp) -> Option<u32> {
        let is_to = |SlowService { front: Front { address, port, protocol }, .. }: &&SlowService| {
            *address == ip.destination
                && port.is_none_or(|port| ip.ports.is_some_and(|(_, destination)| destination == port))
                && protocol.is_none_or(|protocol| protocol == ip.protocol)
        };
        let SlowService { table, .. } = self.services.iter().find(is_to)?;
        // The upper half of the hash says how far down the table.
        let upper = flow_hash(ip, self.seed) >> 32;
        Some(table[(u128::from(upper) * table.len() as u128 / (1 << 32)) as usize])
    }
}

/// The table of backends, by their names and weights.
pub(super) fn table(backends: &[(Vec<u8>, u32)], size: usize) -> Vec<u32> {
    let mut order: Vec<_> = (0..backends.len()).filter(|&n| backends[n].1 > 0).collect();
    order.sort_by_key(|&n| &backends[n].0);
    let largest = backends.iter().map(|backend| u128::from(backend.1)).max().unwrap_or_default();
    // The entries in the order in which a backend prefers them.
    let permutation = |name: &[u8], j: usize| {
        let [offset, skip] =
            [0xcbf2_9ce4_8422_2325, 0x243f_6a88_85a3_08d3].map(|basis| name_hash(name, basis));
        let size = size as u128;
        ((u128::from(offset) % size + j as u128 * (u128::from(skip) % (size - 1) + 1)) % size) as usize
    };
    let mut next = vec![0; order.len()];
    let mut entry: Vec<Option<u32>> = vec![None; size];
    let (mut n, mut round) = (0, 0);
    while n < size && !order.is_empty() {
        round += 1;
        for (i, &backend) in order.iter().enumerate() {
            let (name, weight) = &backends[backend];
            let turns = |rounds: u128| rounds * u128::from(*weight) / largest;
            if n == size || turns(round) == turns(round - 1) {
                continue;
            }
            let mut c = permutation(name, next[i]);
            while entry[c].is_some() {
                next[i] += 1;
                c = permutation(name, next[i]);
            }
            entry[c] = Some(backend as u32);
            next[i] += 1;
            n += 1;
        }
    }
    entry.into_iter().flatten().collect()
}

/// FNV-1a from a basis on, in numbers that have room for its products, and the finalizer of SplitMix64.
fn name_hash(name: &[u8], basis: u64) -> u64 {
    const MODULUS: u128 = 1 << 64;
    let mut hash = u128::from(basis);
    for &byte in name {
        hash = (hash ^ u128::from(byte)) * 1_099_511_628_211 % MODULUS;
    }
    let mut hash = (hash + 0x9e37_79b9_7f4a_7c15) % MODULUS;
    hash = (hash ^ (hash / (1 << 30))) * 0xbf58_476d_1ce4_e5b9 % MODULUS;
    hash = (hash ^ (hash / (1 << 27))) * 0x94d0_49bb_1331_11eb % MODULUS;
    (hash ^ (hash / (1 << 31))) as u64
}

/// The hash of a packet's flow: of the lower endpoint, the higher one, protocol and version, keyed by a seed.
fn flow_hash(ip: &OracleIp, seed: u64) -> u64 {
    // Both halves of the product of two numbers, one over the other.
    let mix = |x: u64, y: u64| {
        let product = u128::from(x) * u128::from(y);
        (product % (1 << 64)) as u64 ^ (product / (1 << 64)) as u64
    };
    let number = |address: IpAddr| match address {
        IpAddr::V4(address) => u128::from(u32::from(address)),
        IpAddr::V6(address) => u128::from(address),
    };
    let (source_port, destination_port) = ip.ports.unwrap_or_default();
    let mut ends = [(number(ip.source), source_port), (number(ip.destination), destination_port)];
    ends.sort_unstable();
    let [(a, a_port), (b, b_port)] = ends;
    let [low, high] = [|number: u128| number as u64, |number: u128| (number >> 64) as u64];
    let version = if ip.destination.is_ipv4() { 4 } else { 6 };
    let mut hash = mix(low(a) ^ seed, low(b) ^ 0x9e37_79b9_7f4a_7c15);
    if version == 6 {
        hash ^= mix(high(a) ^ seed.rotate_left(17), high(b) ^ 0xd6e8_feb8_6659_fd93);
    }
    let rest = [version << 40, u64::from(ip.protocol) << 32, u64::from(b_port) << 16, a_port.into()];
    hash = mix(hash ^ 0xa076_1d64_78bd_642f, rest.iter().sum::<u64>() ^ seed.rotate_left(32));
    mix(hash ^ seed, 0x9e37_79b9_7f4a_7c15)
}

#[cfg(test)]
mod tests {
    use packetloom_packet::{Key, KeyBits, MatchKey4, MatchKey6};
    use proptest::prelude::*;

    use super::*;
    use crate::balancer::services::Backend;

    /// Table 1 of the paper cannot be made of names; this one another program made.
    #[test]
    fn a_table_that_never_changes() {
        let names: Vec<_> = (0..3).map(|n| (format!("10.0.0.{n}:80").into_bytes(), 1)).collect();
        assert_eq!(table(&names, 13), [0, 2, 2, 0, 2, 0, 0, 1, 0, 1, 1, 2, 1]);
    }

    fn address(version: u8) -> impl Strategy<Value = IpAddr> {
        // Few, so that packets are to services and both ends are alike now and then.
        (0..4u16, any::<bool>()).prop_map(move |(last, high)| match version {
            4 => IpAddr::from([192, 0, if high { 255 } else { 2 }, last as u8]),
            _ => IpAddr::from([0x2001, 0xdb8, u16::from(high), 0, 0, 0, 0, last]),
        })
    }

    fn front(version: u8) -> impl Strategy<Value = Front> {
        let (port, protocol) =
            (prop::option::of(80..82u16), prop::option::of(prop::sample::select(vec![6, 17])));
        (address(version), port, protocol).prop_map(|(address, port, protocol)| Front {
            address,
            port,
            protocol,
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        /// What the fast look-up finds for a packet is what stands here.
        #[test]
        fn the_look_up_finds_what_stands_here(
            fronts in prop::collection::vec(prop_oneof![front(4), front(6)], 1..5),
            counts in prop::collection::vec((1..9u8, 0..4u32), 5),
            seed in any::<u64>(),
            packets in prop::collection::vec(
                (prop_oneof![(address(4), address(4)), (address(6), address(6))],
                 prop::sample::select(vec![1u8, 6, 17, 47]), prop::option::of((79..83u16, 79..83u16))),
                1..60,
            ),
        ) {
            let mut services = Services::new(seed);
            for (front, (count, weight)) in fronts.iter().zip(counts) {
                let backend = |n: u8| Backend {
                    address: match front.address {
                        IpAddr::V4(_) => IpAddr::from([10, 0, 0, n]),
                        IpAddr::V6(_) => IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, n.into()]),
                    },
                    port: n.is_multiple_of(2).then_some(8080),
                    // The last one has some.
                    weight: if n + 1 == count { weight + 1 } else { weight },
                };
                // Those that one before covers are refused.
                let _ = services.add(*front, &(0..count).map(backend).collect::<Vec<_>>(), 251);
            }
            let slow = SlowServices::new(&services);
            for ((source, destination), protocol, ports) in packets {
                let ip = OracleIp {
                    source,
                    destination,
                    dscp: 0,
                    protocol,
                    ports,
                    icmp: None,
                    tcp_flags: None,
                    first_fragment: false,
                    later_fragment: false,
                    identifier: None,
                    quoted: None,
                    bytes: 40,
                    header: 20,
                };
                let (source_port, destination_port) = ports.unwrap_or_default();
                let bits = if ports.is_some() { KeyBits::PORTS } else { KeyBits::default() };
                let halves = |address: std::net::Ipv6Addr| {
                    let bits = address.to_bits();
                    [(bits >> 64) as u64, bits as u64]
                };
                let key = match (source, destination) {
                    (IpAddr::V4(source), IpAddr::V4(destination)) => Key::V4(MatchKey4 {
                        source: source.into(),
                        destination: destination.into(),
                        source_port,
                        destination_port,
                        protocol,
                        bits,
                        ..MatchKey4::default()
                    }),
                    (IpAddr::V6(source), IpAddr::V6(destination)) => Key::V6(MatchKey6 {
                        source: halves(source),
                        destination: halves(destination),
                        source_port,
                        destination_port,
                        protocol,
                        bits,
                        ..MatchKey6::default()
                    }),
                    _ => unreachable!("both of one version"),
                };
                let fast = services.look_for(&key).map(|standing| services.read(standing));
                prop_assert_eq!(slow.backend(&ip), fast);
            }
        }
    }
}
