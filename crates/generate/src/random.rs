//! Random numbers that are the same for ever: a fixed generator, seeded in a fixed way, and
//! distributions in integer arithmetic only.

use rand_xoshiro::rand_core::{Rng as _, SeedableRng as _};
use rand_xoshiro::{SplitMix64, Xoshiro256PlusPlus};

/// A stream of random numbers.
#[derive(Clone, Debug)]
pub(crate) struct Random(Xoshiro256PlusPlus);

impl Random {
    /// The stream number `stream` of `seed`. Streams of one seed are independent of each other.
    ///
    /// The state is filled by SplitMix64, as the authors of xoshiro advise, here and not by the
    /// library's `seed_from_u64`, whose method is the library's to change.
    pub(crate) fn new(seed: u64, stream: u64) -> Self {
        let mut words = SplitMix64::from_seed((seed ^ mix(stream)).to_le_bytes());
        let mut state = [0; 32];
        for word in state.chunks_exact_mut(8) {
            word.copy_from_slice(&words.next_u64().to_le_bytes());
        }
        Self(Xoshiro256PlusPlus::from_seed(state))
    }

    /// 64 random bits.
    #[inline]
    pub(crate) fn bits(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number in `0..n`, or 0 where `n` is 0. The bias is below `n` / 2⁶⁴.
    #[inline]
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        scale(self.bits(), n)
    }

    /// A number in `low..=high`; `low` must not be above `high`.
    #[inline]
    pub(crate) fn between(&mut self, low: u64, high: u64) -> u64 {
        match (high - low).checked_add(1) {
            Some(n) => low + self.below(n),
            None => self.bits(),
        }
    }

    /// True in `share` of a hundred draws.
    #[inline]
    pub(crate) fn percent(&mut self, share: u32) -> bool {
        self.below(100) < u64::from(share)
    }

    /// A rank in `0..n`, low ranks more popular: ⌊n·uᵏ⌋ for a uniform u and k = `power`.
    ///
    /// Its density falls as rank^(1/k − 1), a Zipf law with exponent 1/2 for k = 2, 2/3 for k = 3;
    /// rank 0 alone takes n^(−1/k) of the draws.
    #[inline]
    pub(crate) fn skewed(&mut self, n: u64, power: u32) -> u64 {
        let u = self.bits();
        let raised = (1..power).fold(u, |raised, _| scale(raised, u));
        scale(raised, n)
    }

    /// One of `items` with equal chances; `items` must not be empty.
    #[inline]
    pub(crate) fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len() as u64) as usize]
    }

    /// One of `items` with chances in proportion to their weights, which must not all be 0.
    pub(crate) fn weighted<T: Copy>(&mut self, items: &[(T, u32)]) -> T {
        let total: u64 = items.iter().map(|&(_, weight)| u64::from(weight)).sum();
        let mut left = self.below(total);
        for &(item, weight) in items {
            match left.checked_sub(u64::from(weight)) {
                Some(rest) => left = rest,
                None => return item,
            }
        }
        unreachable!("a number below the total falls into one of the weights")
    }

    /// Puts `items` into random order.
    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last as u64 + 1) as usize);
        }
    }
}

/// ⌊`fraction` · `n` / 2⁶⁴⌋.
#[inline]
fn scale(fraction: u64, n: u64) -> u64 {
    ((u128::from(fraction) * u128::from(n)) >> 64) as u64
}

/// A bijection of 64-bit numbers that leaves no pattern: the finalizer of SplitMix64.
#[inline]
pub(crate) fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stream_never_changes() {
        let mut random = Random::new(1, 2);
        let seen: Vec<u64> = (0..3).map(|_| random.bits()).collect();
        assert_eq!(seen, [5_845_468_077_739_584_681, 15_479_213_952_101_519_166, 8_847_509_052_567_701_534]);
    }

    #[test]
    fn bounds_hold() {
        let mut random = Random::new(7, 0);
        assert_eq!(random.below(0), 0);
        for _ in 0..1000 {
            assert!(random.below(3) < 3);
            assert!((5..=6).contains(&random.between(5, 6)));
            assert!(random.skewed(10, 3) < 10);
        }
        assert!((0..100).all(|_| !random.percent(0) && random.percent(100)));
        random.between(0, u64::MAX);
    }

    #[test]
    fn weights_are_kept() {
        let mut random = Random::new(7, 0);
        let hits = (0..10_000).filter(|_| random.weighted(&[(true, 1), (false, 3)])).count();
        assert!((2300..2700).contains(&hits), "{hits}");
    }

    #[test]
    fn low_ranks_are_popular() {
        let mut random = Random::new(7, 0);
        let first = (0..10_000).filter(|_| random.skewed(100, 2) == 0).count();
        assert!((900..1100).contains(&first), "{first}");
    }
}
