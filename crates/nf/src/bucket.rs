//! A token bucket in exact integers.
//!
//! A token pays for one unit (a byte, a packet) and is 10⁹ parts, so in `dt` nanoseconds exactly `dt` ·
//! `rate` parts come in: nothing is rounded, and it does not matter in how many steps time goes on. 64 bits
//! are enough: a bucket that was empty is full after `full_after` nanoseconds, and a longer time is not
//! multiplied.
//!
//! Time comes from the packets. Time that goes back counts as 0 and the time of a level stays, so a packet
//! with a stamp in the future stops the tokens until the others are there too.

use bytemuck::{Pod, Zeroable};

use crate::Error;
use crate::flows::Text;

/// The same arithmetic for devices.
pub(crate) const KERNEL: Text = Text {
    name: "bucket",
    source: include_str!("bucket.kernel.c"),
    constants: &[("BUCKET_PARTS", PARTS as u32)],
};

/// Parts of a token: nanoseconds of a second.
pub const PARTS: u64 = 1_000_000_000;

/// The largest rate, in units per second.
pub const MAX_RATE: u64 = 1_000_000_000_000;

/// The largest burst, in units: its parts fit into 64 bits.
pub const MAX_BURST: u64 = 18_000_000_000;

/// A token bucket as it is configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Bucket {
    /// Tokens that come in, in units per second, from 1 to [`MAX_RATE`].
    pub rate: u64,
    /// Tokens that it holds at most, in units, from 1 to [`MAX_BURST`].
    pub burst: u64,
}

impl Bucket {
    /// What is calculated with.
    ///
    /// # Errors
    ///
    /// A rate or a burst beyond its limits.
    pub fn parameters(self) -> Result<BucketTerms, Error> {
        let rate = within("rate", self.rate, MAX_RATE)?;
        let full = within("burst", self.burst, MAX_BURST)? * PARTS;
        Ok(BucketTerms { rate, full, full_after: full.div_ceil(rate) })
    }
}

packetloom_memory::layout! {
    /// A token bucket as it is calculated with, for devices too.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Pod, Zeroable)]
    pub struct BucketTerms {
        /// Parts per nanosecond, which are units per second.
        rate: u64,
        /// Parts that it holds at most.
        full: u64,
        /// The smallest number of nanoseconds in which `full` parts or more come in.
        full_after: u64,
    }
}

packetloom_memory::layout! {
    /// What a bucket holds at a time: 16 bytes.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Pod, Zeroable)]
    pub struct Level {
        /// Parts.
        pub level: u64,
        /// Nanoseconds; never goes back.
        pub time: u64,
    }
}

impl BucketTerms {
    /// The level of a bucket whose first packet comes at `now`, in nanoseconds: full.
    pub fn full_at(&self, now: u64) -> Level {
        Level { level: self.full, time: now }
    }

    /// Lets in what comes until `now`, in nanoseconds.
    #[inline]
    pub fn refill(&self, level: &mut Level, now: u64) {
        let elapsed = advance(&mut level.time, now);
        level.level = self.after(level.level, elapsed);
    }

    /// Takes so many units at `now`, in nanoseconds, if there are as many; otherwise takes none. Returns
    /// whether it did.
    #[inline]
    pub fn take(&self, level: &mut Level, now: u64, units: u64) -> bool {
        self.refill(level, now);
        withdraw(&mut level.level, units)
    }

    /// The parts of a bucket that had `level` so many nanoseconds ago.
    #[inline]
    pub(crate) fn after(&self, level: u64, elapsed: u64) -> u64 {
        pour(level, self.full, self.income(elapsed)).0
    }

    /// The parts that come in during so many nanoseconds; where they would fill the bucket, as many as fill
    /// it.
    #[inline]
    pub(crate) fn income(&self, elapsed: u64) -> u64 {
        // Below `full_after` the product is below `full`, so it fits.
        if elapsed >= self.full_after { self.full } else { elapsed * self.rate }
    }
}

/// Nanoseconds from `time` to `now`, 0 where time goes back; `time` becomes the later of the two.
#[inline]
pub(crate) fn advance(time: &mut u64, now: u64) -> u64 {
    let elapsed = now.saturating_sub(*time);
    *time += elapsed;
    elapsed
}

/// A level after parts have come in to where it is full, and the parts that found no room.
#[inline]
pub(crate) fn pour(level: u64, full: u64, income: u64) -> (u64, u64) {
    // A level from before the bucket was made smaller may be above it.
    let level = level.min(full);
    let taken = income.min(full - level);
    (level + taken, income - taken)
}

/// Takes so many units from a level that has them; otherwise takes none. Returns whether it did.
#[inline]
pub(crate) fn withdraw(level: &mut u64, units: u64) -> bool {
    // More than any level where it is too much for 64 bits.
    let price = units.saturating_mul(PARTS);
    let enough = *level >= price;
    if enough {
        *level -= price;
    }
    enough
}

/// A number from 1 to `most`.
///
/// # Errors
///
/// Another number; the text begins with its name.
pub(crate) fn within(name: &str, value: u64, most: u64) -> Result<u64, Error> {
    if (1..=most).contains(&value) {
        return Ok(value);
    }
    Err(Error::Invalid(format!("{name} {value}; expected a number from 1 to {most}")))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn bucket(rate: u64, burst: u64) -> BucketTerms {
        Bucket { rate, burst }.parameters().expect("a bucket within its limits")
    }

    #[test]
    fn parameters_by_hand() {
        // 1500 tokens are 1.5e12 parts; at 1000 parts a nanosecond that is 1.5e9 ns.
        let parameters = BucketTerms { rate: 1_000, full: 1_500_000_000_000, full_after: 1_500_000_000 };
        assert_eq!(bucket(1_000, 1_500), parameters);
        // 1e9 / 3 = 333333333.33 ns, rounded up.
        assert_eq!(bucket(3, 1).full_after, 333_333_334);
        // A token comes in less than a nanosecond.
        assert_eq!(bucket(MAX_RATE, 1).full_after, 1);
        assert_eq!(bucket(1, MAX_BURST).full_after, 18_000_000_000_000_000_000);
    }

    #[test]
    fn limits_have_clear_errors() {
        for (rate, burst, text) in [
            (0, 1, "rate 0; expected a number from 1 to 1000000000000"),
            (1_000_000_000_001, 1, "rate 1000000000001; expected a number from 1 to 1000000000000"),
            (1, 0, "burst 0; expected a number from 1 to 18000000000"),
            (1, 18_000_000_001, "burst 18000000001; expected a number from 1 to 18000000000"),
            (1, u64::MAX, "burst 18446744073709551615; expected a number from 1 to 18000000000"),
        ] {
            let error = Bucket { rate, burst }.parameters().expect_err(text);
            assert_eq!(error.to_string(), text);
        }
    }

    #[test]
    fn a_bucket_by_hand() {
        // 1000 bytes/s, 1500 bytes: 1 byte each 1e6 ns.
        let bucket = bucket(1_000, 1_500);
        let start = 7 * SECOND;
        let mut level = bucket.full_at(start);
        assert!(bucket.take(&mut level, start, 1_500), "a fresh bucket is full at its first packet's time");
        assert_eq!(level, Level { level: 0, time: start });
        assert!(!bucket.take(&mut level, start, 1), "and empty then");
        assert!(bucket.take(&mut level, start, 0), "nothing is always there");
        // One nanosecond too early there are 1e9 - 1000 parts; they stay.
        assert!(!bucket.take(&mut level, start + 999_999, 1));
        assert_eq!(level, Level { level: 999_999_000, time: start + 999_999 });
        assert!(bucket.take(&mut level, start + 1_000_000, 1));
        assert_eq!(level.level, 0);
        // 0.5 s later 500 bytes: 501 do not go and cost nothing, 400 go, 100 are left.
        assert!(!bucket.take(&mut level, start + 501_000_000, 501));
        assert!(bucket.take(&mut level, start + 501_000_000, 400));
        assert_eq!(level.level, 100 * PARTS);
        // 1400 bytes are missing: full after 1.4 s, and no fuller.
        bucket.refill(&mut level, start + 1_900_999_999);
        assert_eq!(level.level, 1_500 * PARTS - 1_000);
        bucket.refill(&mut level, start + 1_901_000_001);
        assert_eq!(level.level, 1_500 * PARTS);
    }

    #[test]
    fn time_that_goes_back_counts_as_none() {
        let bucket = bucket(1, 10);
        let mut level = bucket.full_at(100 * SECOND);
        assert!(bucket.take(&mut level, 100 * SECOND, 10));
        assert!(!bucket.take(&mut level, 40 * SECOND, 1));
        assert_eq!(level, Level { level: 0, time: 100 * SECOND });
        // Time that was there already brings nothing again.
        assert!(!bucket.take(&mut level, 99 * SECOND, 1));
        assert!(!bucket.take(&mut level, 100 * SECOND, 1));
        assert!(bucket.take(&mut level, 101 * SECOND, 1));
        assert_eq!(level, Level { level: 0, time: 101 * SECOND });
    }

    #[test]
    fn extremes_do_not_overflow() {
        for (rate, burst) in [(1, 1), (1, MAX_BURST), (MAX_RATE, 1), (MAX_RATE, MAX_BURST)] {
            let bucket = bucket(rate, burst);
            let mut level = Level { level: 0, time: 0 };
            bucket.refill(&mut level, bucket.full_after - 1);
            assert!(level.level < bucket.full && bucket.full - level.level <= rate, "{rate}, {burst}");
            bucket.refill(&mut level, u64::MAX);
            assert_eq!(level, Level { level: bucket.full, time: u64::MAX });
            assert!(!bucket.take(&mut level, 0, u64::MAX));
            assert!(!bucket.take(&mut level, u64::MAX, burst + 1));
            assert!(bucket.take(&mut level, u64::MAX, burst));
        }
    }

    #[test]
    fn a_level_above_a_smaller_bucket_is_cut() {
        let mut level = bucket(1, 10).full_at(5);
        bucket(1, 4).refill(&mut level, 5);
        assert_eq!(level, Level { level: 4 * PARTS, time: 5 });
    }

    /// Small, large and limiting numbers, from 1 to `most`.
    fn number(most: u64) -> impl Strategy<Value = u64> {
        prop_oneof![
            1..=most.min(2_000),
            1..=most,
            Just(most),
            (0..64u32).prop_map(move |n| (1 << n).min(most))
        ]
    }

    /// Nanoseconds from one packet to the next, backwards too.
    fn step() -> impl Strategy<Value = i128> {
        prop_oneof![
            Just(0),
            1..2_000i128,
            1..5_000_000_000i128,
            -3_000_000_000..0i128,
            -(1i128 << 64)..1i128 << 64
        ]
    }

    /// A bucket whose tokens are fractions of 10⁹, and whose time is a u128.
    struct Slow {
        rate: u128,
        full: u128,
        level: u128,
        time: u128,
    }

    impl Slow {
        fn take(&mut self, now: u64, units: u64) -> bool {
            let now = u128::from(now);
            if now > self.time {
                self.level = self.full.min(self.level + (now - self.time) * self.rate);
                self.time = now;
            }
            let cost = u128::from(units) * 1_000_000_000;
            if self.level < cost {
                return false;
            }
            self.level -= cost;
            true
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_048))]

        #[test]
        fn buckets_are_as_in_wide_arithmetic(
            rate in number(MAX_RATE), burst in number(MAX_BURST), start in any::<u64>(),
            packets in prop::collection::vec((step(), prop_oneof![0..3_000u64, number(u64::MAX)]), 1..50),
        ) {
            let bucket = bucket(rate, burst);
            let mut level = bucket.full_at(start);
            let full = u128::from(burst) * 1_000_000_000;
            let mut slow = Slow { rate: rate.into(), full, level: full, time: start.into() };
            let mut now = start;
            for (step, units) in packets {
                now = (i128::from(now) + step).clamp(0, u64::MAX.into()) as u64;
                // Large numbers of units are taken as parts of the burst, or none would ever be there.
                for units in [units, units % burst + 1] {
                    let before = level.time;
                    prop_assert_eq!(bucket.take(&mut level, now, units), slow.take(now, units));
                    prop_assert_eq!(u128::from(level.level), slow.level);
                    prop_assert_eq!(level.time, before.max(now));
                }
            }
        }

        #[test]
        fn steps_do_not_matter(
            rate in number(MAX_RATE), burst in number(MAX_BURST), full in any::<bool>(),
            steps in prop::collection::vec(number(1 << 40), 1..20),
        ) {
            let bucket = bucket(rate, burst);
            let mut by_steps = Level { level: if full { bucket.full } else { 0 }, time: 0 };
            let mut at_once = by_steps;
            steps.iter().fold(0, |now, step| {
                bucket.refill(&mut by_steps, now + step);
                now + step
            });
            bucket.refill(&mut at_once, steps.iter().sum());
            prop_assert_eq!(by_steps, at_once);
        }

        #[test]
        fn full_after_is_the_smallest_time_that_fills(rate in number(MAX_RATE), burst in number(MAX_BURST)) {
            let bucket = bucket(rate, burst);
            let parts = |nanos: u64| u128::from(nanos) * u128::from(rate);
            let full = u128::from(burst) * 1_000_000_000;
            prop_assert!(parts(bucket.full_after) >= full && parts(bucket.full_after - 1) < full);
        }
    }
}
