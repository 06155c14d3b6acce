//! Packet time.

use bytemuck::{Pod, Zeroable};

/// Nanoseconds since the Unix epoch, as stamped by the capture or the interface.
///
/// State advances by these stamps alone, so that a replay gives the same results on any device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Pod, Zeroable)]
#[repr(transparent)]
pub struct Timestamp(u64);

impl Timestamp {
    /// From nanoseconds since the epoch.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the epoch.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Whole milliseconds since the epoch, rounded down.
    pub const fn as_millis(self) -> u64 {
        self.0 / 1_000_000
    }

    /// Whole microseconds since the epoch, rounded down.
    pub const fn as_micros(self) -> u64 {
        self.0 / 1_000
    }

    /// The time so many nanoseconds later, or earlier.
    #[must_use]
    pub const fn shifted(self, nanos: i64) -> Self {
        Self(self.0.saturating_add_signed(nanos))
    }

    /// Nanoseconds from `earlier` to `self`; time that runs backwards counts as 0.
    pub const fn nanos_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// Year, month and day of a day since 1970-01-01, by the Gregorian calendar.
pub const fn date(day: u64) -> (u64, u64, u64) {
    // Eras of 400 years begin in March, so that leap days are at the ends of years.
    let day = day + 719_468;
    let (era, of_era) = (day / 146_097, day % 146_097);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    (400 * era + year + next, month, day)
}

#[cfg(test)]
mod tests {
    use super::date;

    #[test]
    fn each_day_follows_on_the_one_before_it() {
        let mut last = date(0);
        assert_eq!(last, (1970, 1, 1));
        for day in 1..200_000 {
            let next = date(day);
            let is_next = (next.0, next.1, next.2) == (last.0, last.1, last.2 + 1);
            let is_first = next.2 == 1 && last.2 >= 28 && next.0 * 12 + next.1 == last.0 * 12 + last.1 + 1;
            assert!(is_next || is_first, "{last:?} {next:?}");
            last = next;
        }
        assert_eq!(date(199_999), (2517, 7, 31));
    }
}
