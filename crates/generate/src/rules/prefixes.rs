//! Prefixes that nest and cluster as those of real rules do.
//!
//! All prefixes of a side are paths in one tree of addresses. A path enters it through one of a
//! few networks and then goes down bit by bit, each time more likely into the heavier child. The
//! tree is not stored: a hash of the node tells which child is the heavier one. So short prefixes
//! contain long ones, and hosts gather in a few subnets of a few networks.

use crate::random::{Random, mix};
use crate::seen::Seen;
use crate::shape::{Prefix, family_bits};

/// The IPv6 length that stands for each IPv4 length: allocations of registries (/12), providers
/// (/32), sites (/48), their parts (/56), subnets (/64) and hosts (/128). It never decreases.
const V6_LENGTHS: [u8; 33] = [
    0, 3, 12, 16, 20, 20, 24, 24, 28, 28, 29, 29, 32, 32, 32, 36, 36, 40, 40, 44, 44, 48, 48, 48, 52, 56, 56,
    60, 60, 64, 64, 64, 128,
];

/// The fewest networks.
const LEAST_NETWORKS: u64 = 3;
/// Paths tried for each prefix that is wanted before fewer have to do.
const TRIES: usize = 4;

/// The tree of addresses, with the networks through which one side enters it.
pub(super) struct Tree {
    ipv6: bool,
    seed: u64,
    /// A /16 or a /32 each.
    networks: Vec<u128>,
}

impl Tree {
    /// A tree with `networks` networks and a few. Half of them are some of `other`'s, so that
    /// rules within a network come about.
    pub(super) fn new(
        ipv6: bool,
        seed: u64,
        networks: u64,
        other: Option<&Self>,
        random: &mut Random,
    ) -> Self {
        let count = LEAST_NETWORKS + networks;
        let mut networks: Vec<u128> = (0..count).map(|_| network(ipv6, random)).collect();
        if let Some(other) = other {
            for (own, &theirs) in networks.iter_mut().step_by(2).zip(&other.networks) {
                *own = theirs;
            }
        }
        Self { ipv6, seed, networks }
    }

    /// The bits of a network.
    fn network_len(&self) -> u32 {
        if self.ipv6 { 32 } else { 16 }
    }

    /// A prefix whose length stands for the IPv4 length `len`.
    fn path(&self, len: u8, random: &mut Random) -> Prefix {
        let bits = family_bits(self.ipv6);
        let len = if self.ipv6 { V6_LENGTHS[usize::from(len)] } else { len };
        let count = self.networks.len() as u64;
        // Half of the paths keep to the popular networks.
        let popular = random.bits() & 1 == 0;
        let network = if popular { random.skewed(count, 2) } else { random.below(count) };
        let mut address = self.networks[network as usize];
        let walk_end = u32::from(len).min(if self.ipv6 { 64 } else { 32 });
        for depth in self.network_len()..walk_end {
            let node = (address >> (bits - depth)) as u64;
            let heavy = mix(self.seed ^ mix(node) ^ u64::from(depth)) & 1;
            // Branches even out towards the hosts, as in the tries of real filter sets.
            let eighths = if walk_end - depth > 8 { 1 } else { 2 };
            let light = random.bits() & 7 < eighths;
            address |= u128::from(heavy ^ u64::from(light)) << (bits - 1 - depth);
        }
        if len > 64 {
            address |= u128::from(self.interface(address, random));
        }
        Prefix { address: Prefix { address, len }.bounds(bits).0, len }
    }

    /// An interface identifier in the subnet of `address`: mostly one that someone gave by hand,
    /// else one of those that the hosts gave themselves (RFC 7217).
    fn interface(&self, address: u128, random: &mut Random) -> u64 {
        if random.percent(75) {
            random.skewed(256, 2) + 1
        } else {
            mix(self.seed ^ (address >> 64) as u64 ^ random.below(256))
        }
    }

    /// A host that hardly any rule has yet: any address of any network.
    pub(super) fn stranger(&self, random: &mut Random) -> Prefix {
        let bits = family_bits(self.ipv6);
        let (low, high) =
            Prefix { address: random.pick(&self.networks), len: self.network_len() as u8 }.bounds(bits);
        let drawn = u128::from(random.bits()) << 64 | u128::from(random.bits());
        Prefix { address: low | drawn & (low ^ high), len: bits as u8 }
    }
}

/// A /16 or /32 of unicast space.
fn network(ipv6: bool, random: &mut Random) -> u128 {
    if ipv6 {
        // Blocks of the five registries (IANA IPv6 Global Unicast Address Assignments).
        let registry = random.pick(&[0x2001, 0x2400, 0x2600, 0x2800, 0x2a00, 0x2c00]);
        u128::from(registry << 16 | random.below(1 << 20)) << 96
    } else {
        let first = random.weighted(&[(1, 126), (128, 96)]);
        let octet = first + random.below(if first == 1 { 126 } else { 96 });
        u128::from(octet << 8 | random.below(256)) << 16
    }
}

/// The prefixes that one side of the rules chooses from, by IPv4 length.
pub(super) struct Pool {
    by_len: Vec<Vec<Prefix>>,
    power: u32,
}

impl Pool {
    /// A pool of about `values` distinct prefixes, shared among the lengths in proportion to `shares`.
    pub(super) fn new(tree: &Tree, values: u64, shares: &[u64; 33], power: u32, random: &mut Random) -> Self {
        let total: u64 = shares.iter().sum();
        let wanted = shares.map(|share| {
            if share == 0 {
                0
            } else {
                (u128::from(values) * u128::from(share) / u128::from(total)).max(1) as usize
            }
        });
        let mut seen = Seen::with_capacity(wanted.iter().sum());
        let by_len = (0..=32).map(|len| {
            let wanted = wanted[usize::from(len)];
            let mut prefixes = Vec::new();
            // Of short prefixes there are fewer than wanted: every network has the same ones.
            for _ in 0..TRIES * wanted + 16 * wanted.min(1) {
                if prefixes.len() == wanted {
                    break;
                }
                let prefix = tree.path(len, random);
                if seen.insert(prefix.hash()) {
                    prefixes.push(prefix);
                }
            }
            // Several IPv4 lengths may stand for one of IPv6, and one of them for all its prefixes.
            if wanted > 0 && prefixes.is_empty() {
                prefixes.push(tree.path(len, random));
            }
            prefixes
        });
        Self { by_len: by_len.collect(), power }
    }

    /// A prefix whose length stands for the IPv4 length `len`, one of those in `shares`.
    pub(super) fn draw(&self, len: u8, random: &mut Random) -> Prefix {
        let prefixes = &self.by_len[usize::from(len)];
        let count = prefixes.len() as u64;
        let popular = random.bits() & 1 == 0;
        let rank = if popular { random.skewed(count, self.power) } else { random.below(count) };
        prefixes[rank as usize]
    }
}
