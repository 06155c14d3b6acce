//! Distinct contacts of a source within a window, counted in a bitmap.
//!
//! Linear counting (Whang, Vander-Zanden, Taylor, "A linear-time probabilistic counting algorithm for database applications", ACM
//! TODS 1990): each contact sets the bit that its hash says, and how many bits are set says how many contacts were distinct. After `n`
//! of them, `b (1 - (1 - 1/b)^n)` of `b` bits are set on average. More contacts than a bitmap tells apart are counted by a part of them,
//! by their hash (the virtual bitmap of Estan, Varghese, Fisk, "Bitmap algorithms for counting active flows on high speed links",
//! IMC 2003).
//!
//! So the threshold is a number of bits, found once, and a step is a comparison of integers. The number of distinct contacts at which
//! it is reached is off by about 6 % (standard deviation) at 25 contacts, 8 % at 192, and 11 % above.
//!
//! Windows tumble: one begins with the first contact after the one before is over. A scan that is spread over two of them may stay
//! below the threshold in both.

use std::mem::offset_of;

use bytemuck::{Pod, Zeroable};

use super::{Judged, ones};

/// Bits of a bitmap.
const BITS: u32 = 128;

/// Distinct contacts that a bitmap is to tell apart: 1.5 for each bit.
const MOST: u32 = 3 * BITS / 2;

packetloom_memory::layout! {
    /// How contacts are counted, and what becomes of a source with too many: for devices too.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Pod, Zeroable)]
    pub struct FanOut {
        /// Nanoseconds of a window.
        window: u64,
        /// Nanoseconds for which a source is a scanner.
        block_for: u64,
        /// The lower half of the hash of a contact that counts is below this.
        part: u64,
        /// Bits that are set when the threshold is reached.
        limit: u64,
    }
}

/// What is kept for a source: four words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub struct Window {
    /// When the window began, or when the source became a scanner, in nanoseconds.
    since: u64,
    bits: [u64; 2],
    /// Contacts in the window, distinct or not.
    attempts: u32,
    is_scanner: u32,
}

// Kernels have the last two numbers in a word.
packetloom_memory::layout!(impl Window { since: u64, bits: [u64; 2], attempts: u64 });

impl Window {
    /// The bit of a word of state that says that its source is a scanner.
    pub(super) const SCANNER_BIT: usize = 8 * (offset_of!(Self, is_scanner) - offset_of!(Self, attempts));
}

/// The contacts that count towards a threshold: those the lower half of whose hash is below this.
pub(super) fn part(threshold: u32) -> u64 {
    let threshold = threshold.max(1);
    (u64::from(threshold.min(MOST)) << 32) / u64::from(threshold)
}

impl Window {
    /// Makes a window of whatever words.
    pub(super) fn bound(&mut self) {
        self.is_scanner = self.is_scanner().into();
    }

    pub(super) fn is_scanner(&self) -> bool {
        self.is_scanner != 0
    }
}

impl FanOut {
    /// Those that reach so many distinct contacts, 1 or more, within `window` nanoseconds are scanners for `block_for` nanoseconds.
    pub fn new(threshold: u32, window: u64, block_for: u64) -> Self {
        Self {
            window,
            block_for,
            part: part(threshold),
            limit: expected_bits(threshold.clamp(1, MOST)).into(),
        }
    }

    /// Judges a packet of a source that came at `now`, in nanoseconds, and that is a contact with this hash or none.
    #[inline]
    pub fn step(&self, window: &mut Window, now: u64, contact: Option<u64>) -> Judged {
        let elapsed = now.saturating_sub(window.since);
        if window.is_scanner != 0 {
            if elapsed < self.block_for {
                return Judged::Scanner;
            }
            *window = Window::default();
        }
        let Some(hash) = contact else { return Judged::Nothing };
        if window.attempts == 0 || elapsed >= self.window {
            *window = Window { since: now, ..Window::default() };
        }
        window.attempts = window.attempts.saturating_add(1);
        if hash & u64::from(u32::MAX) < self.part {
            let bit = hash >> 57;
            window.bits[(bit >> 6) as usize] |= 1 << (bit & 63);
        }
        if u64::from(ones(window.bits[0]) + ones(window.bits[1])) < self.limit {
            return Judged::Attempt;
        }
        window.is_scanner = 1;
        window.since = now;
        Judged::Detected { attempts: window.attempts }
    }
}

/// Bits that are set on average after so many distinct contacts, [`MOST`] at most, to the nearest number.
fn expected_bits(contacts: u32) -> u32 {
    // Bits that are not set, in parts of 2^-40.
    let all = u64::from(BITS) << 40;
    let zeros = (0..contacts).fold(all, |zeros, _| zeros - zeros / u64::from(BITS));
    ((all - zeros + (1 << 39)) >> 40) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thresholds_are_numbers_of_bits() {
        for contacts in 1..=MOST {
            let bits = f64::from(BITS);
            let expected = bits * (1.0 - (1.0 - 1.0 / bits).powi(contacts as i32));
            assert_eq!(expected_bits(contacts), expected.round() as u32, "{contacts}");
            let fan_out = FanOut::new(contacts, 1, 1);
            assert_eq!((fan_out.limit, fan_out.part), (expected_bits(contacts).into(), 1 << 32));
        }
        // By hand: 128 (1 - (127/128)^25) = 22.8; 128 (1 - (127/128)^192) = 99.6.
        assert_eq!((expected_bits(1), expected_bits(25), expected_bits(MOST)), (1, 23, 100));
        // One of four counts.
        let fan_out = FanOut::new(4 * MOST, 1, 1);
        assert_eq!((fan_out.limit, fan_out.part), (100, 1 << 30));
    }

    /// Mean and standard deviation of the distinct contacts at which a threshold is reached, by all ways to hash them.
    #[test]
    fn the_error_is_what_is_said() {
        for (threshold, deviation) in [(25, 0.064), (100, 0.073), (192, 0.083), (1_000, 0.11)] {
            let fan_out = FanOut::new(threshold, u64::MAX, u64::MAX);
            let rounds = 2_000;
            let reached = (0..rounds).map(|seed| {
                let mut window = Window::default();
                let contacts = (0..).map(|port: u16| super::super::contact::hash([0, 9], 4, (6, port), seed));
                let before =
                    contacts.take_while(|&hash| fan_out.step(&mut window, 0, Some(hash)) == Judged::Attempt);
                (before.count() + 1) as f64 / f64::from(threshold)
            });
            let reached: Vec<_> = reached.collect();
            let mean = reached.iter().sum::<f64>() / rounds as f64;
            let squares = reached.iter().map(|n| (n - mean) * (n - mean)).sum::<f64>() / rounds as f64;
            assert!((mean - 1.0).abs() < 0.02, "{threshold}: {mean}");
            assert!((squares.sqrt() / deviation - 1.0).abs() < 0.15, "{threshold}: {}", squares.sqrt());
        }
    }
}
