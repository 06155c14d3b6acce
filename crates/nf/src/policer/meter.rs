//! The markers of RFC 2697 (single rate, srTCM) and RFC 2698 (two rates, trTCM), in exact integers.
//!
//! Both have two token buckets and mark a packet of `B` bytes green, yellow or red. The RFCs count whole
//! tokens, one at a time; here a token is 10⁹ parts that come in nanosecond by nanosecond
//! ([`crate::bucket`]), so that no time between two packets is rounded. Where a whole number of tokens comes
//! in each nanosecond the two are the same.
//!
//! In the colour-aware mode a packet has a colour already. The colour-blind mode is the colour-aware one with
//! all packets green before: the rules of the RFCs' sections 3 are then the same.
//!
//! Rates are in bytes of IP packets per second, sizes in bytes; times are in nanoseconds. Time that goes back
//! counts as 0.

use bytemuck::{Pod, Zeroable};
use packetloom_packet::Dscp;
use schemars::JsonSchema;
use serde::Deserialize;

use crate::Error;
use crate::bucket::{Bucket, BucketTerms, MAX_BURST, MAX_RATE, PARTS, advance, pour, withdraw, within};

/// What a packet is marked with; a later one is worse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[repr(u8)]
pub enum Colour {
    /// Within the committed rate and burst.
    Green,
    /// Beyond them, but within the excess burst, or the peak rate and burst.
    Yellow,
    /// Beyond those too.
    Red,
}

impl Colour {
    /// The colour that a packet has already: its drop precedence in a class of assured forwarding (RFC 2597 section 6, RFC 2697 section 6), or
    /// that of the `others`.
    #[inline]
    pub fn of(dscp: Dscp, others: Self) -> Self {
        match dscp.assured() {
            Some((_, 1)) => Self::Green,
            Some((_, 2)) => Self::Yellow,
            Some(_) => Self::Red,
            None => others,
        }
    }
}

packetloom_memory::layout! {
    /// What the two buckets of a marker hold at a time: 24 bytes.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Pod, Zeroable)]
    pub struct Levels {
        /// Parts in the bucket C.
        pub committed: u64,
        /// Parts in the bucket E of a single rate, or P of two rates.
        pub outer: u64,
        /// Nanoseconds; never goes back.
        pub time: u64,
    }
}

/// A single rate three colour marker as it is configured (RFC 2697, section 2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SingleRate {
    /// Committed information rate, in bytes per second, from 1 to [`MAX_RATE`].
    pub cir: u64,
    /// Committed burst size, in bytes.
    pub cbs: u64,
    /// Excess burst size, in bytes. One of the two sizes may be 0; together they are at most [`MAX_BURST`].
    pub ebs: u64,
}

impl SingleRate {
    /// What marks packets.
    ///
    /// # Errors
    ///
    /// A rate or sizes beyond their limits.
    pub fn marker(self) -> Result<SingleRateMarker, Error> {
        let rate = within("CIR", self.cir, MAX_RATE)?;
        let burst = within("CBS + EBS", self.cbs.saturating_add(self.ebs), MAX_BURST)?;
        let both = Bucket { rate, burst }.parameters()?;
        Ok(SingleRateMarker { both, committed_full: self.cbs * PARTS, excess_full: self.ebs * PARTS })
    }
}

/// A single rate three colour marker (RFC 2697).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SingleRateMarker {
    /// The buckets C and E as one: what comes in while neither is full goes to one of them.
    both: BucketTerms,
    committed_full: u64,
    excess_full: u64,
}

impl SingleRateMarker {
    /// Its buckets for devices, of which the first is both, and where C and E are full.
    pub(super) fn buckets(&self) -> ([BucketTerms; 2], Levels) {
        ([self.both, BucketTerms::zeroed()], self.full_at(0))
    }

    /// The levels where the first packet comes at `now`: full.
    pub fn full_at(&self, now: u64) -> Levels {
        Levels { committed: self.committed_full, outer: self.excess_full, time: now }
    }

    /// Lets in what comes until `now`: into C, and what finds no room there into E.
    #[inline]
    pub fn refill(&self, levels: &mut Levels, now: u64) {
        let income = self.both.income(advance(&mut levels.time, now));
        let (committed, rest) = pour(levels.committed, self.committed_full, income);
        levels.committed = committed;
        (levels.outer, _) = pour(levels.outer, self.excess_full, rest);
    }

    /// Marks a packet of so many bytes that comes at `now` with a colour; colour-blind: [`Colour::Green`].
    #[inline]
    pub fn mark(&self, levels: &mut Levels, now: u64, bytes: u64, before: Colour) -> Colour {
        self.refill(levels, now);
        if before == Colour::Green && withdraw(&mut levels.committed, bytes) {
            Colour::Green
        } else if before != Colour::Red && withdraw(&mut levels.outer, bytes) {
            Colour::Yellow
        } else {
            Colour::Red
        }
    }
}

/// A two rate three colour marker as it is configured (RFC 2698, section 2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TwoRate {
    /// Committed information rate, in bytes per second, from 1 to [`MAX_RATE`].
    pub cir: u64,
    /// Committed burst size, in bytes, from 1 to [`MAX_BURST`].
    pub cbs: u64,
    /// Peak information rate, in bytes per second, from the committed one to [`MAX_RATE`].
    pub pir: u64,
    /// Peak burst size, in bytes, from 1 to [`MAX_BURST`].
    pub pbs: u64,
}

impl TwoRate {
    /// What marks packets.
    ///
    /// # Errors
    ///
    /// Rates or sizes beyond their limits, or a peak rate below the committed one.
    pub fn marker(self) -> Result<TwoRateMarker, Error> {
        let bucket = |names: [&str; 2], rate, burst| {
            let rate = within(names[0], rate, MAX_RATE)?;
            let burst = within(names[1], burst, MAX_BURST)?;
            Bucket { rate, burst }.parameters()
        };
        let committed = bucket(["CIR", "CBS"], self.cir, self.cbs)?;
        let peak = bucket(["PIR", "PBS"], self.pir, self.pbs)?;
        if self.pir < self.cir {
            return Err(Error::Invalid(format!("PIR {}; expected the CIR, {}, or more", self.pir, self.cir)));
        }
        Ok(TwoRateMarker { committed, peak })
    }
}

/// A two rate three colour marker (RFC 2698).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TwoRateMarker {
    committed: BucketTerms,
    peak: BucketTerms,
}

impl TwoRateMarker {
    /// Its buckets for devices, and where they are full.
    pub(super) fn buckets(&self) -> ([BucketTerms; 2], Levels) {
        ([self.committed, self.peak], self.full_at(0))
    }

    /// The levels where the first packet comes at `now`: full.
    pub fn full_at(&self, now: u64) -> Levels {
        Levels {
            committed: self.committed.full_at(now).level,
            outer: self.peak.full_at(now).level,
            time: now,
        }
    }

    /// Lets in what comes until `now`.
    #[inline]
    pub fn refill(&self, levels: &mut Levels, now: u64) {
        let elapsed = advance(&mut levels.time, now);
        levels.committed = self.committed.after(levels.committed, elapsed);
        levels.outer = self.peak.after(levels.outer, elapsed);
    }

    /// Marks a packet of so many bytes that comes at `now` with a colour; colour-blind: [`Colour::Green`].
    #[inline]
    pub fn mark(&self, levels: &mut Levels, now: u64, bytes: u64, before: Colour) -> Colour {
        self.refill(levels, now);
        if before == Colour::Red || !withdraw(&mut levels.outer, bytes) {
            Colour::Red
        } else if before == Colour::Yellow || !withdraw(&mut levels.committed, bytes) {
            Colour::Yellow
        } else {
            Colour::Green
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::Colour::{Green, Red, Yellow};
    use super::*;

    const SECOND: u64 = 1_000_000_000;
    const MILLISECOND: u64 = 1_000_000;

    fn single(cir: u64, cbs: u64, ebs: u64) -> SingleRateMarker {
        SingleRate { cir, cbs, ebs }.marker().expect("a marker within its limits")
    }

    fn two(cir: u64, cbs: u64, pir: u64, pbs: u64) -> TwoRateMarker {
        TwoRate { cir, cbs, pir, pbs }.marker().expect("a marker within its limits")
    }

    /// What both markers can do.
    trait Marker {
        fn full(&self, now: u64) -> Levels;
        fn step(&self, levels: &mut Levels, now: u64, bytes: u64, before: Colour) -> Colour;
    }

    impl Marker for SingleRateMarker {
        fn full(&self, now: u64) -> Levels {
            self.full_at(now)
        }

        fn step(&self, levels: &mut Levels, now: u64, bytes: u64, before: Colour) -> Colour {
            self.mark(levels, now, bytes, before)
        }
    }

    impl Marker for TwoRateMarker {
        fn full(&self, now: u64) -> Levels {
            self.full_at(now)
        }

        fn step(&self, levels: &mut Levels, now: u64, bytes: u64, before: Colour) -> Colour {
            self.mark(levels, now, bytes, before)
        }
    }

    /// Packets as milliseconds since the first, bytes and colour before; then the colour and the tokens of
    /// both buckets that are expected after.
    type Steps<'a> = &'a [(u64, u64, Colour, Colour, (u64, u64))];

    fn check(marker: &dyn Marker, steps: Steps<'_>) {
        let start = 5 * SECOND;
        let mut levels = marker.full(start);
        for (number, &(milliseconds, bytes, before, colour, tokens)) in steps.iter().enumerate() {
            let found = marker.step(&mut levels, start + milliseconds * MILLISECOND, bytes, before);
            let left = (levels.committed / PARTS, levels.outer / PARTS);
            assert_eq!((found, left), (colour, tokens), "packet {number}");
        }
    }

    #[test]
    fn a_single_rate_by_hand() {
        // 1 byte each millisecond; C 1000 bytes, E 500.
        check(
            &single(1_000, 1_000, 500),
            &[
                (0, 600, Green, Green, (400, 500)),
                // 400 - 600 < 0 and 500 - 600 < 0: red, nothing is taken.
                (0, 600, Green, Red, (400, 500)),
                // 400 - 500 < 0, but 500 - 500 >= 0.
                (0, 500, Green, Yellow, (400, 0)),
                (0, 400, Green, Green, (0, 0)),
                (0, 1, Green, Red, (0, 0)),
                (0, 0, Green, Green, (0, 0)),
                // 100 ms bring 100 bytes into C.
                (100, 40, Green, Green, (60, 0)),
                // 1200 ms bring 1200 bytes: 940 fill C, 260 go to E.
                (1_300, 0, Green, Green, (1_000, 260)),
                // Into C nothing goes any more: 100 to E.
                (1_400, 1_001, Green, Red, (1_000, 360)),
                // The next 140 fill E, the others are lost.
                (9_000, 1_000, Green, Green, (0, 500)),
            ],
        );
    }

    #[test]
    fn a_single_rate_that_is_aware_of_colours_by_hand() {
        check(
            &single(1_000, 1_000, 500),
            &[
                // A yellow packet takes from E though C has enough; a red one takes nothing.
                (0, 300, Yellow, Yellow, (1_000, 200)),
                (0, 300, Yellow, Red, (1_000, 200)),
                (0, 1, Red, Red, (1_000, 200)),
                (0, 0, Red, Red, (1_000, 200)),
                // A green one takes from C, and from E where C has not enough.
                (0, 900, Green, Green, (100, 200)),
                (0, 200, Green, Yellow, (100, 0)),
                // 50 ms: 50 bytes into C, which is not full; E gets none.
                (50, 1, Yellow, Red, (150, 0)),
            ],
        );
    }

    #[test]
    fn a_single_rate_may_have_one_bucket() {
        check(
            &single(1_000, 0, 500),
            &[
                (0, 500, Green, Yellow, (0, 0)),
                (0, 1, Green, Red, (0, 0)),
                (7, 7, Green, Yellow, (0, 0)),
                (8, 0, Green, Green, (0, 1)),
            ],
        );
        check(
            &single(1_000, 500, 0),
            &[
                (0, 501, Green, Red, (500, 0)),
                (0, 1, Yellow, Red, (500, 0)),
                (0, 500, Green, Green, (0, 0)),
                (2_000, 501, Green, Red, (500, 0)),
            ],
        );
    }

    #[test]
    fn a_single_rate_spills_within_a_token() {
        // A third of a byte each nanosecond, less a third of a part. C 2 bytes, E 1.
        let marker = single(333_333_333, 2, 1);
        let mut levels = Levels { committed: 2 * PARTS - 100, outer: 7, time: 0 };
        marker.refill(&mut levels, 1);
        assert_eq!(levels, Levels { committed: 2 * PARTS, outer: 7 + 333_333_233, time: 1 });
        marker.refill(&mut levels, 3);
        assert_eq!(levels, Levels { committed: 2 * PARTS, outer: 7 + 333_333_233 + 666_666_666, time: 3 });
        marker.refill(&mut levels, 4);
        assert_eq!(levels, Levels { committed: 2 * PARTS, outer: PARTS, time: 4 });
    }

    #[test]
    fn two_rates_by_hand() {
        // C 500 bytes, 1 each millisecond; P 1000 bytes, 2 each millisecond.
        check(
            &two(1_000, 500, 2_000, 1_000),
            &[
                (0, 500, Green, Green, (0, 500)),
                // 500 - 300 >= 0, but 0 - 300 < 0.
                (0, 300, Green, Yellow, (0, 200)),
                // 200 - 201 < 0: P is asked first.
                (0, 201, Green, Red, (0, 200)),
                (0, 200, Green, Yellow, (0, 0)),
                // 100 ms: 100 into C, 200 into P.
                (100, 100, Green, Green, (0, 100)),
                (100, 100, Green, Yellow, (0, 0)),
                // 900 ms: 900 and 1800, of which 500 and 1000 find room.
                (1_000, 600, Green, Yellow, (500, 400)),
                (1_000, 401, Green, Red, (500, 400)),
                (1_000, 400, Green, Green, (100, 0)),
                // Red, though C has enough.
                (1_000, 1, Green, Red, (100, 0)),
                (1_000, 0, Green, Green, (100, 0)),
            ],
        );
    }

    #[test]
    fn two_rates_that_are_aware_of_colours_by_hand() {
        check(
            &two(1_000, 500, 2_000, 1_000),
            &[
                // A yellow packet takes from P alone; a red one nothing.
                (0, 400, Yellow, Yellow, (500, 600)),
                (0, 100, Red, Red, (500, 600)),
                (0, 0, Red, Red, (500, 600)),
                (0, 601, Yellow, Red, (500, 600)),
                (0, 500, Green, Green, (0, 100)),
                (0, 100, Green, Yellow, (0, 0)),
            ],
        );
    }

    #[test]
    fn time_that_goes_back_counts_as_none() {
        for marker in [&single(1_000, 10, 10) as &dyn Marker, &two(1_000, 10, 1_000, 20)] {
            let mut levels = marker.full(SECOND);
            for colour in [Green, Yellow, Red] {
                assert_eq!(marker.step(&mut levels, SECOND, 10, Green), colour);
            }
            let empty = levels;
            assert_eq!(marker.step(&mut levels, SECOND / 2, 1, Green), Red);
            assert_eq!(marker.step(&mut levels, SECOND, 1, Green), Red);
            assert_eq!(levels, empty);
            assert_eq!(marker.step(&mut levels, SECOND + MILLISECOND, 1, Green), Green);
        }
    }

    #[test]
    fn extremes_do_not_overflow() {
        let half = MAX_BURST / 2;
        for cir in [1, MAX_RATE] {
            let marker = single(cir, half, half);
            let mut levels = Levels { committed: 0, outer: 0, time: 0 };
            marker.refill(&mut levels, u64::MAX);
            assert_eq!(levels, marker.full_at(u64::MAX));
            assert_eq!(marker.mark(&mut levels, u64::MAX, u64::MAX, Green), Red);
            for colour in [Green, Yellow, Red] {
                assert_eq!(marker.mark(&mut levels, u64::MAX, half, Green), colour);
            }
        }
        let marker = two(1, MAX_BURST, MAX_RATE, MAX_BURST);
        let mut levels = Levels { committed: 0, outer: 0, time: 0 };
        // 18e18 parts into P at 1e12 a nanosecond; as many nanoseconds bring one part each into C.
        marker.refill(&mut levels, 18_000_000);
        assert_eq!((levels.committed, levels.outer), (18_000_000, MAX_BURST * PARTS));
        marker.refill(&mut levels, u64::MAX);
        assert_eq!(levels, marker.full_at(u64::MAX));
    }

    #[test]
    fn limits_have_clear_errors() {
        let single = |cir, cbs, ebs| SingleRate { cir, cbs, ebs }.marker().map(drop);
        let two = |cir, cbs, pir, pbs| TwoRate { cir, cbs, pir, pbs }.marker().map(drop);
        for (found, text) in [
            (single(0, 1, 1), "CIR 0; expected a number from 1 to 1000000000000"),
            (single(1, 0, 0), "CBS + EBS 0; expected a number from 1 to 18000000000"),
            (single(1, MAX_BURST, 1), "CBS + EBS 18000000001; expected a number from 1 to 18000000000"),
            (
                single(1, u64::MAX, 2),
                "CBS + EBS 18446744073709551615; expected a number from 1 to 18000000000",
            ),
            (two(0, 1, 1, 1), "CIR 0; expected a number from 1 to 1000000000000"),
            (two(1, 0, 1, 1), "CBS 0; expected a number from 1 to 18000000000"),
            (two(1, 1, MAX_RATE + 1, 1), "PIR 1000000000001; expected a number from 1 to 1000000000000"),
            (two(1, 1, 1, MAX_BURST + 1), "PBS 18000000001; expected a number from 1 to 18000000000"),
            (two(2, 1, 1, 1), "PIR 1; expected the CIR, 2, or more"),
        ] {
            assert_eq!(found.expect_err(text).to_string(), text);
        }
        assert!(single(1, MAX_BURST, 0).is_ok() && two(1, 1, 1, 1).is_ok());
    }

    /// The rules of the RFCs, sections 3, as they are written; counts may be of tokens or of parts.
    #[derive(Clone, Copy, Debug)]
    enum Mode {
        ColourBlind,
        ColourAware,
    }

    fn rules_of_rfc2697(mode: Mode, before: Colour, b: i128, tc: &mut i128, te: &mut i128) -> Colour {
        match mode {
            Mode::ColourBlind => {
                if *tc - b >= 0 {
                    *tc -= b;
                    Green
                } else if *te - b >= 0 {
                    *te -= b;
                    Yellow
                } else {
                    Red
                }
            }
            Mode::ColourAware => {
                if before == Green && *tc - b >= 0 {
                    *tc -= b;
                    Green
                } else if (before == Green || before == Yellow) && *te - b >= 0 {
                    *te -= b;
                    Yellow
                } else {
                    Red
                }
            }
        }
    }

    fn rules_of_rfc2698(mode: Mode, before: Colour, b: i128, tc: &mut i128, tp: &mut i128) -> Colour {
        match mode {
            Mode::ColourBlind => {
                if *tp - b < 0 {
                    Red
                } else if *tc - b < 0 {
                    *tp -= b;
                    Yellow
                } else {
                    *tp -= b;
                    *tc -= b;
                    Green
                }
            }
            Mode::ColourAware => {
                if before == Red || *tp - b < 0 {
                    Red
                } else if before == Yellow || *tc - b < 0 {
                    *tp -= b;
                    Yellow
                } else {
                    *tp -= b;
                    *tc -= b;
                    Green
                }
            }
        }
    }

    type Rules = fn(Mode, Colour, i128, &mut i128, &mut i128) -> Colour;

    /// A marker as an RFC describes it. Counts are of `one` a token, so that whole tokens (1) and parts (10⁹)
    /// can be asked for; `income` changes both counts by what comes in so many nanoseconds.
    struct Slow<'a> {
        rules: Rules,
        income: &'a dyn Fn(u64, &mut i128, &mut i128),
        one: i128,
        counts: (i128, i128),
        time: u64,
    }

    impl Slow<'_> {
        fn step(&mut self, mode: Mode, now: u64, bytes: u64, before: Colour) -> Colour {
            let (c, outer) = &mut self.counts;
            if now > self.time {
                (self.income)(now - self.time, c, outer);
                self.time = now;
            }
            (self.rules)(mode, before, i128::from(bytes) * self.one, c, outer)
        }
    }

    /// A packet: nanoseconds since the one before, bytes, and its colour.
    type Packet = (i64, u64, Colour);

    fn packets(
        step: impl Strategy<Value = i64>,
        bytes: impl Strategy<Value = u64>,
    ) -> impl Strategy<Value = Vec<Packet>> {
        let colour = prop_oneof![3 => Just(Green), 1 => Just(Yellow), 1 => Just(Red)];
        prop::collection::vec((step, bytes, colour), 1..60)
    }

    fn mode() -> impl Strategy<Value = Mode> {
        prop_oneof![Just(Mode::ColourBlind), Just(Mode::ColourAware)]
    }

    /// Takes packets through both, from full buckets.
    fn compare(
        marker: &dyn Marker,
        mode: Mode,
        rules: Rules,
        one: i128,
        income: &dyn Fn(u64, &mut i128, &mut i128),
        packets: &[Packet],
    ) -> Result<(), TestCaseError> {
        let mut now = 1 << 40;
        let mut levels = marker.full(now);
        let counts = |levels: &Levels| {
            let count = |level: u64| i128::from(level) * one / 1_000_000_000;
            (count(levels.committed), count(levels.outer))
        };
        let mut slow = Slow { rules, income, one, counts: counts(&levels), time: now };
        for &(step, bytes, before) in packets {
            now = now.saturating_add_signed(step);
            let seen = match mode {
                Mode::ColourBlind => Green,
                Mode::ColourAware => before,
            };
            let found = marker.step(&mut levels, now, bytes, seen);
            prop_assert_eq!(found, slow.step(mode, now, bytes, before));
            prop_assert_eq!(counts(&levels), slow.counts);
            prop_assert_eq!(levels.time, slow.time);
        }
        Ok(())
    }

    /// Bytes and sizes that are small, or large.
    fn size(most: u64) -> impl Strategy<Value = u64> {
        prop_oneof![1..=3_000u64, 1..=most, Just(most)]
    }

    /// Rates that are small, or large.
    fn rate() -> impl Strategy<Value = u64> {
        prop_oneof![1..=2_000u64, 1..=MAX_RATE, Just(MAX_RATE)]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_048))]

        /// One token at a time, `k` times each nanosecond: RFC 2697 to the letter.
        #[test]
        fn a_single_rate_is_that_of_the_rfc(
            k in 1..4u64, cbs in 0..40u64, ebs in 0..40u64, mode in mode(),
            packets in packets(-9..30i64, 0..30u64),
        ) {
            prop_assume!(cbs + ebs > 0);
            let income = |nanos: u64, tc: &mut i128, te: &mut i128| {
                for _ in 0..nanos * k {
                    if *tc < cbs.into() {
                        *tc += 1;
                    } else if *te < ebs.into() {
                        *te += 1;
                    }
                }
            };
            compare(&single(k * 1_000_000_000, cbs, ebs), mode, rules_of_rfc2697, 1, &income, &packets)?;
        }

        /// One token at a time, some each nanosecond: RFC 2698 to the letter.
        #[test]
        fn two_rates_are_those_of_the_rfc(
            k in 1..4u64, more in 0..4u64, cbs in 1..40u64, pbs in 1..40u64, mode in mode(),
            packets in packets(-9..30i64, 0..30u64),
        ) {
            let income = |nanos: u64, tc: &mut i128, tp: &mut i128| {
                for _ in 0..nanos * (k + more) {
                    *tp += i128::from(*tp < pbs.into());
                }
                for _ in 0..nanos * k {
                    *tc += i128::from(*tc < cbs.into());
                }
            };
            let marker = two(k * 1_000_000_000, cbs, (k + more) * 1_000_000_000, pbs);
            compare(&marker, mode, rules_of_rfc2698, 1, &income, &packets)?;
        }

        /// One nanosecond at a time, with fractions of tokens.
        #[test]
        fn a_single_rate_fills_as_nanosecond_by_nanosecond(
            cir in 1..5_000_000_000u64, cbs in 0..9u64, ebs in 0..9u64, mode in mode(),
            packets in packets(-9..30i64, 0..9u64),
        ) {
            prop_assume!(cbs + ebs > 0);
            let full = [cbs, ebs].map(|tokens| i128::from(tokens) * 1_000_000_000);
            let income = |nanos: u64, c: &mut i128, e: &mut i128| {
                for _ in 0..nanos {
                    *c += i128::from(cir);
                    if *c > full[0] {
                        *e = full[1].min(*e + *c - full[0]);
                        *c = full[0];
                    }
                }
            };
            compare(&single(cir, cbs, ebs), mode, rules_of_rfc2697, 1_000_000_000, &income, &packets)?;
        }

        /// All rates, sizes and times, in numbers wide enough for any product.
        #[test]
        fn a_single_rate_is_as_in_wide_arithmetic(
            cir in rate(), cbs in size(MAX_BURST / 2), ebs in size(MAX_BURST / 2), mode in mode(),
            packets in packets(prop_oneof![0..2_000_000_000i64, any::<i64>()], size(MAX_BURST)),
        ) {
            let full = [cbs, ebs].map(|tokens| i128::from(tokens) * 1_000_000_000);
            let income = |nanos: u64, c: &mut i128, e: &mut i128| {
                let parts = i128::from(nanos) * i128::from(cir);
                let spilt = (*c + parts - full[0]).max(0);
                *c = full[0].min(*c + parts);
                *e = full[1].min(*e + spilt);
            };
            compare(&single(cir, cbs, ebs), mode, rules_of_rfc2697, 1_000_000_000, &income, &packets)?;
        }

        #[test]
        fn two_rates_are_as_in_wide_arithmetic(
            rates in (rate(), rate()), cbs in size(MAX_BURST), pbs in size(MAX_BURST), mode in mode(),
            packets in packets(prop_oneof![0..2_000_000_000i64, any::<i64>()], size(MAX_BURST)),
        ) {
            let (cir, pir) = (rates.0.min(rates.1), rates.0.max(rates.1));
            let full = [cbs, pbs].map(|tokens| i128::from(tokens) * 1_000_000_000);
            let income = |nanos: u64, c: &mut i128, p: &mut i128| {
                *c = full[0].min(*c + i128::from(nanos) * i128::from(cir));
                *p = full[1].min(*p + i128::from(nanos) * i128::from(pir));
            };
            compare(&two(cir, cbs, pir, pbs), mode, rules_of_rfc2698, 1_000_000_000, &income, &packets)?;
        }
    }
}
