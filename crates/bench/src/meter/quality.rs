//! How evenly hashes are spread: over flows of a capture, and over keys that somebody chose who knows the function.

use packetloom_device::Device;
use packetloom_packet::protocol;
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

use super::kernels::{Flow, Kernels};
use crate::Error;

/// Keys that are aimed at one part of the table, and parts that it has.
const AIMED: usize = 16_384;
const PARTS: u32 = 64;
/// Keys that are tried at a time, and how often: as many times as there are parts, and some more.
const TRIED: usize = 1 << 17;
const TRIES: usize = 2 * AIMED * PARTS as usize / TRIED;

/// How evenly keys are spread over buckets, of which there are as many as keys, or up to twice as many.
#[derive(Clone, Copy, Debug)]
pub(super) struct Quality {
    /// Chi-square over the buckets, divided by its degrees of freedom: about 1 for numbers drawn at random.
    pub(super) chi_square: f64,
    /// Keys of the fullest bucket.
    pub(super) longest: u32,
}

impl Quality {
    /// That of these hashes, whose upper bits choose the bucket, as in the table.
    pub(super) fn of(hashes: &[u32]) -> Self {
        let count = hashes.len().next_power_of_two().max(2);
        let mut buckets = vec![0u32; count];
        for &hash in hashes {
            buckets[((u64::from(hash) * count as u64) >> 32) as usize] += 1;
        }
        let mean = hashes.len() as f64 / count as f64;
        let squares: f64 = buckets.iter().map(|&found| (f64::from(found) - mean).powi(2)).sum();
        let chi_square = if hashes.is_empty() { 0.0 } else { squares / mean / (count - 1) as f64 };
        Self { chi_square, longest: buckets.into_iter().max().unwrap_or(0) }
    }
}

/// That of the keys of flows.
pub(super) fn of_flows(
    device: &Device,
    kernels: &Kernels,
    flows: &[Flow],
    seed: u64,
) -> Result<Quality, Error> {
    let mut hashes = Vec::with_capacity(flows.len());
    for (version, words) in [(4, 4), (6, 10)] {
        let mut keys = Vec::new();
        flows.iter().filter(|flow| flow.version == version).for_each(|flow| flow.words(&mut keys));
        hashes.extend(kernels.hash_keys(device, &keys, words, seed)?);
    }
    Ok(Quality::of(&hashes))
}

/// That of keys of TCP over IPv4 that would all be in one part of the table if the seed were 0: no quality of the function, but of its seed.
pub(super) fn of_aimed(device: &Device, kernels: &Kernels, seed: u64) -> Result<Quality, Error> {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(1);
    let mut aimed: Vec<u32> = Vec::with_capacity(AIMED * 4);
    for _ in 0..TRIES {
        if aimed.len() >= AIMED * 4 {
            break;
        }
        let keys: Vec<u32> = (0..TRIED)
            .flat_map(|_| {
                let (ports, addresses) = (random.next_u64() as u32, random.next_u64());
                [ports, addresses as u32, (addresses >> 32) as u32, u32::from(protocol::TCP)]
            })
            .collect();
        let hashes = kernels.hash_keys(device, &keys, 4, 0)?;
        let chosen = keys.chunks_exact(4).zip(hashes).filter(|(_, hash)| hash / (u32::MAX / PARTS + 1) == 0);
        aimed.extend(chosen.flat_map(|(key, _)| key));
    }
    aimed.truncate(AIMED * 4);
    Ok(Quality::of(&kernels.hash_keys(device, &aimed, 4, seed)?))
}
