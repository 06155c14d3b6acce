//! The address plan: who the clients and servers are.
//!
//! A flow keeps 32 bits for an address. For IPv4 they are the address. For IPv6 they are an
//! identifier, a network's number (12 bits, servers in the upper half) over a host's (20 bits),
//! from which the address is computed whenever it is written; different identifiers give
//! different addresses.

use crate::random::{Random, mix};

/// IPv6 networks, half of them for clients.
const V6_NETWORKS: usize = 1 << 12;
/// Bits of a host's number in an IPv6 network.
const V6_HOST_BITS: u32 = 20;
/// First identifier of an IPv6 server.
const V6_SERVERS: u32 = 1 << 31;

/// An IPv4 network.
#[derive(Clone, Copy, Debug)]
struct Network {
    base: u32,
    host_bits: u32,
}

/// Draws addresses and spells them out.
pub(super) struct Endpoints {
    v4_clients: Vec<Network>,
    v4_servers: Vec<Network>,
    /// The upper 64 bits of each IPv6 network, its subnet number 0.
    v6_networks: Vec<u64>,
    /// Client networks in use, of either family.
    client_networks: u64,
    /// Servers in use, of either family; low ranks are popular.
    servers: u64,
}

impl Endpoints {
    /// A plan that suits the number of flows.
    pub(super) fn new(flows: u64, random: &mut Random) -> Self {
        let client_networks = (48 + flows / 2048).min(V6_NETWORKS as u64 / 2);
        let server_networks = (24 + flows / 8192).min(1024);
        let mut networks = |count, lengths: (u64, u64)| -> Vec<Network> {
            (0..count).map(|_| network(random, lengths)).collect()
        };
        let v4_clients = networks(client_networks, (14, 22));
        let v4_servers = networks(server_networks, (20, 24));
        let salt = random.bits();
        Self {
            v4_clients,
            v4_servers,
            v6_networks: (0..V6_NETWORKS as u64).map(|number| v6_network(salt, number)).collect(),
            client_networks,
            servers: (flows / 40).clamp(16, 1 << 18),
        }
    }

    /// A client, more often one of a popular network than not.
    pub(super) fn client(&self, ipv6: bool, random: &mut Random) -> u32 {
        let number = random.skewed(self.client_networks, 2);
        if ipv6 {
            ((number << V6_HOST_BITS) | random.skewed(1 << V6_HOST_BITS, 2)) as u32
        } else {
            let network = self.v4_clients[number as usize];
            network.base | random.skewed(1 << network.host_bits, 2) as u32
        }
    }

    /// Any client with equal chances, for flows that found every popular address taken.
    pub(super) fn any_client(&self, ipv6: bool, random: &mut Random) -> u32 {
        if ipv6 {
            random.below(u64::from(V6_SERVERS)) as u32
        } else {
            let network = random.pick(&self.v4_clients);
            network.base | random.below(1 << network.host_bits) as u32
        }
    }

    /// A server; a few of them are in great demand.
    pub(super) fn server(&self, ipv6: bool, random: &mut Random) -> u32 {
        let rank = random.skewed(self.servers, 3);
        let place = mix(rank);
        if ipv6 {
            V6_SERVERS | (place >> 33) as u32
        } else {
            let network = self.v4_servers[(place % self.v4_servers.len() as u64) as usize];
            network.base | ((place >> 32) as u32 & ((1 << network.host_bits) - 1))
        }
    }

    /// The IPv6 address of `id`.
    ///
    /// Sixteen hosts share a /64. Clients have random-looking interface identifiers (RFC 8981),
    /// servers have numbers.
    #[inline]
    pub(super) fn v6_address(&self, id: u32) -> u128 {
        let host = id & ((1 << V6_HOST_BITS) - 1);
        let upper = self.v6_networks[(id >> V6_HOST_BITS) as usize] | u64::from(host >> 4);
        let lower = if id < V6_SERVERS { mix(u64::from(id)) } else { u64::from(host & 15) + 1 };
        (u128::from(upper) << 64) | u128::from(lower)
    }
}

/// A random IPv4 network with a unicast, public address.
fn network(random: &mut Random, lengths: (u64, u64)) -> Network {
    let host_bits = 32 - random.between(lengths.0, lengths.1) as u32;
    loop {
        let address = random.bits() as u32;
        if matches!(address >> 24, 1..=9 | 11..=126 | 128..=223) {
            return Network { base: address & !((1 << host_bits) - 1), host_bits };
        }
    }
}

/// The IPv6 network `number`, a /48 inside one of some hundred /32 of the registries' blocks.
fn v6_network(salt: u64, number: u64) -> u64 {
    const REGISTRIES: [u64; 6] = [0x2001, 0x2400, 0x2600, 0x2800, 0x2a00, 0x2c00];
    let drawn = mix(salt ^ number);
    let registry = REGISTRIES[(drawn % 6) as usize];
    let provider = mix(salt ^ (1 << 32) ^ ((drawn >> 8) % 24)) & 0xffff;
    // An odd factor spreads the numbers without making two of them equal.
    let site = (number * 0x9e37) & 0xffff;
    (registry << 48) | (provider << 32) | (site << 16)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn v6_addresses_are_distinct() {
        let plan = Endpoints::new(1000, &mut Random::new(1, 1));
        let ids = (0..1 << 12).flat_map(|high| (0..40).map(move |low| (high << 20) + low * 26_001));
        let ids: BTreeSet<u32> = ids.collect();
        let addresses: BTreeSet<u128> = ids.iter().map(|&id| plan.v6_address(id)).collect();
        assert_eq!(addresses.len(), ids.len());
    }

    #[test]
    fn a_few_servers_are_popular() {
        let mut random = Random::new(1, 1);
        let plan = Endpoints::new(100_000, &mut random);
        for ipv6 in [false, true] {
            let top = plan_share(&plan, ipv6, &mut random);
            assert!((0.04..0.12).contains(&top), "{top}");
        }
    }

    /// The share of draws that the most popular server gets.
    fn plan_share(plan: &Endpoints, ipv6: bool, random: &mut Random) -> f64 {
        let mut drawn: Vec<u32> = (0..20_000).map(|_| plan.server(ipv6, random)).collect();
        drawn.sort_unstable();
        let top = drawn.chunk_by(|a, b| a == b).map(<[u32]>::len).max().unwrap_or(0);
        top as f64 / drawn.len() as f64
    }
}
