//! The sequential hypothesis test of Jung, Paxson, Berger, Balakrishnan, "Fast portscan detection using sequential hypothesis testing"
//! (IEEE S&P 2004): threshold random walk.
//!
//! A source's first contact of a destination fails or succeeds; an honest one's succeed with probability `theta0`, a scanner's with
//! `theta1`. The walk is the logarithm of the likelihood ratio: a failure adds `log (1 - theta1) / (1 - theta0)`, a success `log theta1 /
//! theta0`, which is below 0. At `log beta / alpha` the source is a scanner: honest ones get there with probability `alpha` at most,
//! about, and scanners with `beta` or more. At `log (1 - beta) / (1 - alpha)` it is as honest as the test can tell; the walk goes no
//! further down, so that a past without faults does not hide a scan for long.
//!
//! As in Weaver, Staniford, Paxson, "Very fast containment of scanning worms" (USENIX Security 2004), a contact counts as a failure when
//! its SYN comes and is credited when the answer, SYN and ACK, does: no attempt has to be waited for, and one that is refused (RST)
//! is one that is not answered.
//!
//! Destinations are bits of 64, by a hash, so some first contacts are taken for repeated ones, and some answers for those of others. Half
//! of the bits at most are in use: then those of destinations that answered are forgotten, and all where that is not enough.
//!
//! Logarithms are to base 2, in units of 2^-20. Steps are rounded away from 0 and the threshold down, so that a walk which
//! reaches it exactly has reached it.

use std::mem::offset_of;

use bytemuck::{Pod, Zeroable};

use super::fan_out::Window;
use super::{Contact, Judged, ones};
use crate::units::Probability;

/// Fractional bits of logarithms.
const FRACTION: u32 = 20;

/// Bits that are in use at most.
pub(super) const IN_USE: u32 = 32;

/// What is tested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hypotheses {
    /// Probability that an honest source's first contact succeeds.
    pub theta0: Probability,
    /// Probability that a scanner's does; below the other one.
    pub theta1: Probability,
    /// Probability that an honest source is taken for a scanner.
    pub alpha: Probability,
    /// Probability that a scanner is found; above the other one.
    pub beta: Probability,
}

packetloom_memory::layout! {
    /// How far a walk goes at each step, and to where: for devices too.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
    pub struct Test {
        /// Nanoseconds for which a source is a scanner.
        block_for: u64,
        /// What a failure adds.
        failure: i32,
        /// What a success adds after it was counted as a failure; below 0.
        credit: i32,
        /// Where a source is a scanner.
        scanner: i32,
        /// Where it is honest; below 0.
        honest: i32,
    }
}

/// What is kept for a source: five words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Walk {
    /// When the source became a scanner, in nanoseconds.
    since: u64,
    /// Destinations that were contacted.
    contacted: u64,
    /// Those of them that answered.
    answered: u64,
    /// The logarithm of the likelihood ratio.
    ratio: i32,
    is_scanner: u32,
    /// First contacts.
    attempts: u32,
    /// Keeps the size explicit.
    reserved: u32,
}

// Kernels have the ratio and what stands behind it in a word.
packetloom_memory::layout!(impl Walk {
    since: u64,
    contacted: u64,
    answered: u64,
    ratio: u64,
    attempts: u64,
});
const _: () = assert!(8 * (offset_of!(Walk, is_scanner) - offset_of!(Walk, ratio)) == Window::SCANNER_BIT);

impl Walk {
    /// Further than any walk goes, and so near that no step overflows.
    const FURTHEST: i32 = 1 << (FRACTION + 6);

    /// Makes a walk of whatever words: brings the ratio to where one can be.
    pub(super) fn bound(&mut self) {
        self.is_scanner = self.is_scanner().into();
        self.ratio = self.ratio.clamp(-Self::FURTHEST, Self::FURTHEST);
    }

    pub(super) fn is_scanner(&self) -> bool {
        self.is_scanner != 0
    }
}

impl Hypotheses {
    /// What is calculated with; a source is a scanner for `block_for` nanoseconds.
    pub fn test(&self, block_for: u64) -> Test {
        let Self { theta0, theta1, alpha, beta } = *self;
        let failure = log2_up(theta1.complement(), theta0.complement());
        let success = -log2_up(theta0, theta1);
        Test {
            block_for,
            failure,
            credit: success - failure,
            scanner: log2(beta, alpha),
            honest: -log2(alpha.complement(), beta.complement()),
        }
    }
}

impl Test {
    /// First contacts without an answer that make a scanner of a source which is seen for the first time.
    pub fn failures(&self) -> u32 {
        self.scanner.unsigned_abs().div_ceil(self.failure.unsigned_abs())
    }

    /// Judges a packet of a source, or an answer to it, that came at `now`, in nanoseconds.
    #[inline]
    pub fn step(&self, walk: &mut Walk, now: u64, contact: Contact) -> Judged {
        if walk.is_scanner != 0 {
            if now.saturating_sub(walk.since) < self.block_for {
                return Judged::Scanner;
            }
            *walk = Walk::default();
        }
        match contact {
            Contact::None => Judged::Nothing,
            Contact::Opens(hash) => {
                let bit = 1 << (hash >> 58);
                if walk.contacted & bit != 0 {
                    return Judged::Nothing;
                }
                if ones(walk.contacted) >= IN_USE {
                    walk.contacted &= !walk.answered;
                    walk.answered = 0;
                    if ones(walk.contacted) >= IN_USE {
                        walk.contacted = 0;
                    }
                }
                walk.contacted |= bit;
                walk.attempts = walk.attempts.saturating_add(1);
                walk.ratio += self.failure;
                if walk.ratio < self.scanner {
                    return Judged::Attempt;
                }
                walk.is_scanner = 1;
                walk.since = now;
                Judged::Detected { attempts: walk.attempts }
            }
            Contact::Answers(hash) => {
                let bit = 1 << (hash >> 58);
                if walk.contacted & !walk.answered & bit == 0 {
                    return Judged::Nothing;
                }
                walk.answered |= bit;
                walk.ratio = (walk.ratio + self.credit).max(self.honest);
                Judged::Answer
            }
        }
    }
}

/// The logarithm of a ratio of 1 or more, rounded down.
fn log2(numerator: Probability, denominator: Probability) -> i32 {
    let (numerator, mut denominator) =
        (u64::from(numerator.millionths()), u64::from(denominator.millionths()));
    let mut log = 0;
    while numerator >= 2 * denominator {
        denominator *= 2;
        log += 1;
    }
    // From 1 up to 2, in parts of 2^-62; each square gives another bit.
    let mut ratio = (u128::from(numerator) << 62) / u128::from(denominator);
    for _ in 0..FRACTION {
        ratio = (ratio * ratio) >> 62;
        log = 2 * log + (ratio >> 63) as i32;
        ratio = if ratio >> 63 == 0 { ratio } else { ratio / 2 };
    }
    log
}

/// As [`log2`], rounded up.
fn log2_up(numerator: Probability, denominator: Probability) -> i32 {
    let log = log2(numerator, denominator);
    // Of a ratio of whole numbers only powers of two have a logarithm without an endless fraction.
    let power = log >> FRACTION;
    let is_power = u64::from(numerator.millionths()) == u64::from(denominator.millionths()) << power;
    if is_power { log } else { log + 1 }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn probability(text: &str) -> Probability {
        text.parse().expect("a probability")
    }

    fn hypotheses(theta0: &str, theta1: &str, alpha: &str, beta: &str) -> Hypotheses {
        let [theta0, theta1, alpha, beta] = [theta0, theta1, alpha, beta].map(probability);
        Hypotheses { theta0, theta1, alpha, beta }
    }

    /// With the parameters of the paper's section 4: each failure multiplies the ratio by (1 - 0.2) / (1 - 0.8) = 4, each success by
    /// 0.2 / 0.8 = 1/4, and the thresholds are 0.99 / 0.01 = 99 and 1/99. 4^3 = 64, 4^4 = 256: four failures.
    #[test]
    fn the_papers_parameters_by_hand() {
        let test = hypotheses("0.8", "0.2", "0.01", "0.99").test(u64::MAX);
        let unit = 1 << FRACTION;
        assert_eq!((test.failure, test.credit), (2 * unit, -4 * unit));
        // log2 99 = 6.629356620…
        let threshold = 6_951_384;
        assert_eq!(f64::from(threshold), (99f64.log2() * f64::from(unit)).floor());
        assert_eq!((test.scanner, test.honest), (threshold, -threshold));
        assert_eq!(test.failures(), 4);
    }

    /// Walks by hand with these parameters, in failures (2), and successes (2, then -4).
    #[test]
    fn walks_by_hand() {
        let test = hypotheses("0.8", "0.2", "0.01", "0.99").test(1_000);
        let bit = |n: u64| n << 58;
        let opens = |n| Contact::Opens(bit(n));
        let answers = |n| Contact::Answers(bit(n));
        let detected = |attempts| Judged::Detected { attempts };
        // Four failures; then 1,000 ns as a scanner, and all is forgotten.
        let mut walk = Walk::default();
        for (now, contact, judged) in [
            (0, opens(0), Judged::Attempt),
            (1, opens(1), Judged::Attempt),
            // Contacts that are not the first ones.
            (2, opens(1), Judged::Nothing),
            (3, opens(0), Judged::Nothing),
            (4, opens(2), Judged::Attempt),
            (5, Contact::None, Judged::Nothing),
            (6, opens(3), detected(4)),
            (7, opens(4), Judged::Scanner),
            (8, answers(3), Judged::Scanner),
            (1_005, Contact::None, Judged::Scanner),
            (1_006, answers(3), Judged::Nothing),
            (1_006, opens(3), Judged::Attempt),
        ] {
            assert_eq!(test.step(&mut walk, now, contact), judged, "{now}");
        }
        // A success takes back two failures: 2, 4, 0, 2, 4, 6, and 8 is above 6.63.
        let mut walk = Walk::default();
        for (contact, judged) in [
            (opens(0), Judged::Attempt),
            (opens(1), Judged::Attempt),
            (answers(0), Judged::Answer),
            // Answers that nobody waits for.
            (answers(0), Judged::Nothing),
            (answers(9), Judged::Nothing),
            (opens(2), Judged::Attempt),
            (opens(3), Judged::Attempt),
            (opens(4), Judged::Attempt),
            (opens(5), detected(6)),
        ] {
            assert_eq!(test.step(&mut walk, 0, contact), judged);
        }
        // Ten successes: the walk stays at -6.63, and seven failures in a row are needed: 7.37.
        let mut walk = Walk::default();
        for n in 0..10 {
            assert_eq!(test.step(&mut walk, 0, opens(n)), Judged::Attempt);
            assert_eq!(test.step(&mut walk, 0, answers(n)), Judged::Answer);
        }
        assert_eq!(walk.ratio, test.honest);
        for n in 10..16 {
            assert_eq!(test.step(&mut walk, 0, opens(n)), Judged::Attempt);
        }
        assert_eq!(test.step(&mut walk, 0, opens(16)), detected(17));
    }

    /// A ratio that a walk reaches exactly: 0.96 / 0.015 = 64 = 4^3, and 0.75 / 0.25 = 3 at each step with 27 = 0.81 / 0.03.
    #[test]
    fn thresholds_that_are_reached_exactly_are_reached() {
        assert_eq!(hypotheses("0.8", "0.2", "0.015", "0.96").test(0).failures(), 3);
        assert_eq!(hypotheses("0.75", "0.25", "0.03", "0.81").test(0).failures(), 3);
        // A little more, and it takes one more.
        assert_eq!(hypotheses("0.75", "0.25", "0.03", "0.8101").test(0).failures(), 4);
    }

    /// With 32 bits in use, those of destinations that answered are forgotten, and all where none did.
    #[test]
    fn destinations_are_forgotten() {
        // So many failures make no scanner.
        let test = hypotheses("0.5", "0.499", "0.01", "0.99").test(0);
        assert!(test.failures() > 1_000);
        let bit = |n: u64| n << 58;
        let mut walk = Walk::default();
        for n in 0..32 {
            assert_eq!(test.step(&mut walk, 0, Contact::Opens(bit(n))), Judged::Attempt);
            if n % 2 == 0 {
                assert_eq!(test.step(&mut walk, 0, Contact::Answers(bit(n))), Judged::Answer);
            }
        }
        assert_eq!(walk.contacted, 0xffff_ffff);
        assert_eq!(test.step(&mut walk, 0, Contact::Opens(bit(40))), Judged::Attempt);
        assert_eq!((walk.contacted, walk.answered), (0xaaaa_aaaa | 1 << 40, 0));
        // A late answer still counts.
        assert_eq!(test.step(&mut walk, 0, Contact::Answers(bit(31))), Judged::Answer);
        for n in 41..=55 {
            assert_eq!(test.step(&mut walk, 0, Contact::Opens(bit(n))), Judged::Attempt);
        }
        assert_eq!((ones(walk.contacted), walk.answered), (32, 1 << 31));
        walk.answered = 0;
        assert_eq!(test.step(&mut walk, 0, Contact::Opens(bit(63))), Judged::Attempt);
        assert_eq!((walk.contacted, walk.answered), (1 << 63, 0));
    }

    proptest! {
        #[test]
        fn logarithms_are_those_of_floating_point(a in 1u32..1_000_000, b in 1u32..1_000_000) {
            let (a, b) = (a.max(b), a.min(b));
            let of = |millionths: u32| probability(&format!("0.{millionths:06}"));
            let exact = (f64::from(a) / f64::from(b)).log2() * f64::from(1 << FRACTION);
            prop_assert_eq!(f64::from(log2(of(a), of(b))), exact.floor());
            prop_assert_eq!(f64::from(log2_up(of(a), of(b))), exact.ceil());
        }
    }
}
