//! Intervals and times as text.

use crate::Error;

const MILLI: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MILLI;
pub(crate) const DAY: u64 = 86_400 * SECOND;

/// Units of intervals, and their nanoseconds.
const UNITS: [(&str, u64); 5] =
    [("d", DAY), ("h", 3_600 * SECOND), ("m", 60 * SECOND), ("s", SECOND), ("ms", MILLI)];

/// The longest interval.
const LONGEST: u64 = 366 * DAY;

/// Nanoseconds of an interval such as `10s`.
pub(crate) fn parse(text: &str) -> Result<u64, Error> {
    let wrong = || Error::Interval(text.into());
    let end = text.find(|letter: char| !letter.is_ascii_digit()).ok_or_else(wrong)?;
    let (number, unit) = text.split_at(end);
    let number: u64 = number.parse().map_err(|_| wrong())?;
    let (_, nanos) = UNITS.into_iter().find(|(name, _)| *name == unit).ok_or_else(wrong)?;
    let nanos = number.checked_mul(nanos).ok_or_else(wrong)?;
    if (1..=LONGEST).contains(&nanos) { Ok(nanos) } else { Err(wrong()) }
}

/// An interval of whole milliseconds in the greatest unit that has it in whole numbers.
pub(crate) fn interval(nanos: u64) -> String {
    let unit = UNITS.into_iter().find(|(_, unit)| nanos.is_multiple_of(*unit));
    let (name, unit) = unit.unwrap_or(("ms", MILLI));
    format!("{}{name}", nanos / unit)
}

/// The date of a time in nanoseconds since 1970: `2026-09-21`.
pub(crate) fn day(nanos: u64) -> String {
    let (year, month, day) = packetloom_packet::date(nanos / DAY);
    format!("{year:04}-{month:02}-{day:02}")
}

/// The time of its day: `14:13:20`, with milliseconds where `is_fine`.
pub(crate) fn clock(nanos: u64, is_fine: bool) -> String {
    let seconds = nanos % DAY / SECOND;
    let millis = if is_fine { format!(".{:03}", nanos % SECOND / MILLI) } else { String::new() };
    format!("{:02}:{:02}:{:02}{millis}", seconds / 3_600, seconds / 60 % 60, seconds % 60)
}

/// A time by RFC 3339, with milliseconds where the interval is not of whole seconds.
pub(crate) fn instant(nanos: u64, interval: u64) -> String {
    format!("{}T{}Z", day(nanos), clock(nanos, is_fine(interval)))
}

/// Whether starts of such intervals are not all at whole seconds.
pub(crate) const fn is_fine(interval: u64) -> bool {
    !interval.is_multiple_of(SECOND)
}

/// The shortest round step of which no more than `most` fit into a span.
pub(crate) fn step(span: u64, most: u64) -> u64 {
    const STEPS: [(u64, u64); 25] = [
        (1, MILLI),
        (2, MILLI),
        (5, MILLI),
        (10, MILLI),
        (20, MILLI),
        (50, MILLI),
        (100, MILLI),
        (200, MILLI),
        (500, MILLI),
        (1, SECOND),
        (2, SECOND),
        (5, SECOND),
        (10, SECOND),
        (15, SECOND),
        (30, SECOND),
        (60, SECOND),
        (120, SECOND),
        (300, SECOND),
        (600, SECOND),
        (1_800, SECOND),
        (3_600, SECOND),
        (7_200, SECOND),
        (21_600, SECOND),
        (43_200, SECOND),
        (86_400, SECOND),
    ];
    let fits = |step: &u64| span / step <= most;
    let steps = STEPS.into_iter().map(|(times, unit)| times * unit);
    steps.into_iter().find(fits).unwrap_or_else(|| (span / most / DAY + 1) * DAY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_read_and_written() {
        for text in ["1ms", "500ms", "10s", "1m", "90m", "1h", "1d", "366d"] {
            assert_eq!(interval(parse(text).unwrap()), text);
        }
        assert_eq!(interval(parse("120s").unwrap()), "2m");
        for text in [
            "",
            "1",
            "s",
            "0s",
            "367d",
            "1.5s",
            "-1s",
            "1 s",
            "1w",
            "99999999999999999999s",
            "9999999999999d",
        ] {
            assert_eq!(parse(text), Err(Error::Interval(text.into())));
        }
    }

    #[test]
    fn times_are_those_of_the_calendar() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (1_790_000_000, "2026-09-21T14:13:20Z"),
            (4_102_444_799, "2099-12-31T23:59:59Z"),
            (u64::MAX / SECOND, "2554-07-21T23:34:33Z"),
        ] {
            assert_eq!(instant(seconds * SECOND, SECOND), text);
        }
        assert_eq!(instant(1_500 * MILLI, 100 * MILLI), "1970-01-01T00:00:01.500Z");
    }

    #[test]
    fn steps_are_round() {
        assert_eq!(step(60 * SECOND, 6), 10 * SECOND);
        assert_eq!(step(3 * MILLI, 6), MILLI);
        assert_eq!(step(70 * DAY, 7), 11 * DAY);
    }
}
