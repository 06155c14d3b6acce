//! Values with units, as chain files and the command line write them.

use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, Deserialize, Deserializer};

/// A span of time: `"30s"`, `"1.5s"`, `"200ms"`, `"5m"`, `"2h"`; `"0"` is none. A number without a unit is seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span {
    nanos: u64,
}

const UNITS: [(&str, u64); 6] = [
    ("ns", 1),
    ("us", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

impl Span {
    /// A span of whole seconds.
    pub const fn from_secs(seconds: u64) -> Self {
        Self { nanos: seconds.saturating_mul(1_000_000_000) }
    }

    /// Its length in nanoseconds.
    pub const fn as_nanos(self) -> u64 {
        self.nanos
    }

    /// Its length in nanoseconds; `None` where it is 0, which means "no limit".
    pub const fn limit(self) -> Option<u64> {
        if self.nanos == 0 { None } else { Some(self.nanos) }
    }
}

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || format!("{text:?}; expected a time such as \"30s\", \"200ms\", \"5m\" or \"0\"");
        let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let nanos_per_unit = match unit {
            "" => 1_000_000_000,
            unit => UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(expected)?.1,
        };
        let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
        if fraction.is_empty() || fraction.len() > 9 {
            return Err(expected());
        }
        let whole: u64 = whole.parse().map_err(|_| expected())?;
        let scale = 10u128.pow(fraction.len() as u32);
        let fraction: u64 = fraction.parse().map_err(|_| expected())?;
        let nanos = u128::from(whole) * u128::from(nanos_per_unit)
            + u128::from(fraction) * u128::from(nanos_per_unit) / scale;
        let nanos = u64::try_from(nanos).map_err(|_| format!("{text:?} is longer than 584 years"))?;
        Ok(Self { nanos })
    }
}

/// In the largest unit that needs no fraction.
impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.nanos == 0 {
            return f.write_str("0");
        }
        match UNITS.iter().rev().find(|(_, nanos)| self.nanos.is_multiple_of(*nanos)) {
            Some((unit, nanos)) => write!(f, "{}{unit}", self.nanos / nanos),
            None => write!(f, "{}ns", self.nanos),
        }
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        quoted(deserializer, "a time in quotes, such as \"30s\"")
    }
}

impl JsonSchema for Span {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Span".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "description": "A span of time, such as \"30s\", \"200ms\", \"5m\"; \"0\" is none.",
            "pattern": r"^[0-9]+(\.[0-9]{1,9})?(ns|us|ms|s|m|h)?$"
        })
    }
}

/// So many in a time: `"100/s"`, `"10/minute"`; `"unlimited"` is no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rate {
    count: u32,
    /// 0 where there is no limit.
    nanos: u64,
}

/// What a rate is per, by all its names; the first is the one that is shown.
const PERIODS: [(&[&str], u64); 4] = [
    (&["s", "sec", "second"], 1_000_000_000),
    (&["m", "min", "minute"], 60_000_000_000),
    (&["h", "hour"], 3_600_000_000_000),
    (&["d", "day"], 86_400_000_000_000),
];

impl Rate {
    /// So many a second.
    pub const fn per_second(count: u32) -> Self {
        Self { count, nanos: 1_000_000_000 }
    }

    /// How many, and in how many nanoseconds: 0 where there is no limit.
    pub const fn parts(self) -> (u32, u64) {
        (self.count, self.nanos)
    }
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "unlimited" {
            return Ok(Self { count: 1, nanos: 0 });
        }
        let rate = text.split_once('/').and_then(|(count, period)| {
            let (_, nanos) = PERIODS.iter().find(|(names, _)| names.contains(&period))?;
            let is_number = count.bytes().all(|byte| byte.is_ascii_digit());
            let count = count.parse().ok().filter(|&count| is_number && count > 0)?;
            Some(Self { count, nanos: *nanos })
        });
        rate.ok_or_else(|| {
            format!(
                "{text:?}; expected a rate of 1 or more such as \"100/s\" or \"10/minute\", or \"unlimited\""
            )
        })
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match PERIODS.iter().find(|(_, nanos)| *nanos == self.nanos) {
            Some((names, _)) => write!(f, "{}/{}", self.count, names[0]),
            None => f.write_str("unlimited"),
        }
    }
}

/// Reads a value that stands in quotes.
///
/// # Errors
/// What its text says is wrong; `expected` where it does not stand in quotes.
pub fn quoted<'de, D, T>(deserializer: D, expected: &'static str) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err = String>,
{
    struct Visitor<T>(&'static str, PhantomData<T>);
    impl<T: FromStr<Err = String>> de::Visitor<'_> for Visitor<T> {
        type Value = T;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }

        fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
            text.parse().map_err(E::custom)
        }
    }
    deserializer.deserialize_str(Visitor(expected, PhantomData))
}

impl<'de> Deserialize<'de> for Rate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        quoted(deserializer, "a rate in quotes, such as \"100/s\"")
    }
}

impl JsonSchema for Rate {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Rate".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "description": "So many in a time, such as \"100/s\", \"10/minute\"; \"unlimited\" is no limit.",
            "pattern": r"^(unlimited|[0-9]+/(s|sec|second|m|min|minute|h|hour|d|day))$"
        })
    }
}

/// A number of flows.
pub type MaxFlows = Bounded<1, { 1 << 31 }>;

/// A whole number from `MIN` to `MAX`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bounded<const MIN: u64, const MAX: u64>(u64);

impl<const MIN: u64, const MAX: u64> Bounded<MIN, MAX> {
    /// The number nearest to `value` that is allowed.
    pub const fn clamped(value: u64) -> Self {
        Self(if value < MIN {
            MIN
        } else if value > MAX {
            MAX
        } else {
            value
        })
    }

    /// The number.
    pub const fn get(self) -> usize {
        self.0 as usize
    }

    fn expected() -> String {
        format!("expected a number from {MIN} to {MAX}")
    }
}

impl<const MIN: u64, const MAX: u64> FromStr for Bounded<MIN, MAX> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let value = text.parse().ok().filter(|value| (MIN..=MAX).contains(value));
        value.map(Self).ok_or_else(|| format!("{text:?}; {}", Self::expected()))
    }
}

impl<const MIN: u64, const MAX: u64> fmt::Display for Bounded<MIN, MAX> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<'de, const MIN: u64, const MAX: u64> Deserialize<'de> for Bounded<MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = i64::deserialize(deserializer)?;
        let number = u64::try_from(value).ok().filter(|value| (MIN..=MAX).contains(value));
        number.map(Self).ok_or_else(|| de::Error::custom(format!("{value}; {}", Self::expected())))
    }
}

impl<const MIN: u64, const MAX: u64> JsonSchema for Bounded<MIN, MAX> {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        format!("Bounded_{MIN}_{MAX}").into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "integer", "minimum": MIN, "maximum": MAX })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_read_and_shown() {
        for (text, nanos, shown) in [
            ("0", 0, "0"),
            ("30s", 30_000_000_000, "30s"),
            ("30", 30_000_000_000, "30s"),
            ("1.5s", 1_500_000_000, "1500ms"),
            ("300s", 300_000_000_000, "5m"),
            ("2h", 7_200_000_000_000, "2h"),
            ("7ns", 7, "7ns"),
            ("0.000000001s", 1, "1ns"),
        ] {
            let span: Span = text.parse().unwrap();
            assert_eq!((span.as_nanos(), span.to_string().as_str()), (nanos, shown), "{text}");
        }
    }

    #[test]
    fn rates_are_read_and_shown() {
        for (text, parts, shown) in [
            ("100/s", (100, 1_000_000_000), "100/s"),
            ("1/sec", (1, 1_000_000_000), "1/s"),
            ("3/hour", (3, 3_600_000_000_000), "3/h"),
            ("10/minute", (10, 60_000_000_000), "10/m"),
            ("4294967295/day", (u32::MAX, 86_400_000_000_000), "4294967295/d"),
            ("unlimited", (1, 0), "unlimited"),
        ] {
            let rate: Rate = text.parse().unwrap();
            assert_eq!((rate.parts(), rate.to_string().as_str()), (parts, shown), "{text}");
        }
        for text in
            ["", "5", "/s", "0/s", "+5/s", "-5/s", "1.5/s", "5/", "5/ms", "5/S", "5 /s", "4294967296/s"]
        {
            assert!(text.parse::<Rate>().is_err(), "{text}");
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for text in [
            "",
            "s",
            "-1s",
            "1.s",
            ".5s",
            "1.2.3s",
            "1 s",
            "30 seconds",
            "1e3s",
            "99999999999h",
            "1.0000000001s",
        ] {
            assert!(text.parse::<Span>().is_err(), "{text}");
        }
    }
}
