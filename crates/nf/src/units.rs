//! Values with units, as chain files and the command line write them.

use std::fmt;
use std::marker::PhantomData;
use std::ops::RangeInclusive;
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

/// A number with up to nine digits after a point, as its whole part and its billionths, and the unit behind
/// it.
fn decimal(text: &str) -> Option<(u64, u64, &str)> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    if fraction.is_empty() || fraction.len() > 9 {
        return None;
    }
    let scale = 10u64.pow(9 - fraction.len() as u32);
    Some((whole.parse().ok()?, fraction.parse::<u64>().ok()? * scale, unit))
}

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || format!("{text:?}; expected a time such as \"30s\", \"200ms\", \"5m\" or \"0\"");
        let (whole, billionths, unit) = decimal(text).ok_or_else(expected)?;
        let nanos_per_unit = match unit {
            "" => 1_000_000_000,
            unit => UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(expected)?.1,
        };
        let nanos = u128::from(whole) * u128::from(nanos_per_unit)
            + u128::from(billionths) * u128::from(nanos_per_unit) / 1_000_000_000;
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

/// Formats of files that have names.
pub trait Named: FromStr<Err: fmt::Display> {
    /// What schemas call the kind of format.
    const KIND: &'static str;

    /// The names of all.
    fn names() -> Vec<&'static str>;
}

/// A format of files, by its name in a chain file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ByName<F>(pub F);

impl<'de, F: Named> Deserialize<'de> for ByName<F> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map(Self).map_err(de::Error::custom)
    }
}

impl<F: Named> JsonSchema for ByName<F> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        F::KIND.into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "enum": F::names() })
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

    /// No limit.
    pub const UNLIMITED: Self = Self { count: 1, nanos: 0 };

    /// How many, and in how many nanoseconds: 0 where there is no limit.
    pub const fn parts(self) -> (u32, u64) {
        (self.count, self.nanos)
    }
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "unlimited" {
            return Ok(Self::UNLIMITED);
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

/// What a throughput or a size counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unit {
    /// Bytes, which may be written as bits.
    Bytes,
    /// Packets.
    Packets,
}

impl Unit {
    /// As texts have it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bytes => "bytes",
            Self::Packets => "packets",
        }
    }
}

/// Names and what they are in bits: decimal prefixes, and the binary ones of IEC 80000-13.
type Scales = [(&'static str, u64)];

const BITS: &Scales =
    &[("bit", 1), ("kbit", 1_000), ("Mbit", 1_000_000), ("Gbit", 1_000_000_000), ("Tbit", 1_000_000_000_000)];

const BYTES: &Scales =
    &[("B", 8), ("kB", 8_000), ("MB", 8_000_000), ("GB", 8_000_000_000), ("TB", 8_000_000_000_000)];

const BINARY_BYTES: &Scales = &[("KiB", 8 << 10), ("MiB", 8 << 20), ("GiB", 8 << 30), ("TiB", 8 << 40)];

/// Reads a number with one of the units, or of packets, and a suffix: a whole number of bytes or packets.
///
/// # Errors
/// What is wrong with the text.
fn count(text: &str, scales: &[&Scales], suffix: &str, expected: &str) -> Result<(u64, Unit), String> {
    let expected = || format!("{text:?}; expected {expected}");
    let (whole, billionths, name) = text.strip_suffix(suffix).and_then(decimal).ok_or_else(expected)?;
    let (unit, scale, divisor) = match name {
        "packets" => (Unit::Packets, 1, 1),
        name => {
            let found = scales.iter().copied().flatten().find(|(other, _)| *other == name);
            (Unit::Bytes, found.ok_or_else(expected)?.1, 8)
        }
    };
    let fraction = u128::from(billionths) * u128::from(scale);
    let count = u128::from(whole) * u128::from(scale) + fraction / 1_000_000_000;
    if !fraction.is_multiple_of(1_000_000_000) || !count.is_multiple_of(divisor) {
        return Err(format!("{text:?} is not a whole number of {}{suffix}", unit.name()));
    }
    u64::try_from(count / divisor)
        .map(|count| (count, unit))
        .map_err(|_| format!("{text:?} is more than {} {}{suffix}", u64::MAX, unit.name()))
}

/// Writes a count in the unit that needs no fraction and gives the smallest number.
fn show(f: &mut fmt::Formatter<'_>, count: u64, unit: Unit, scales: &[&Scales], suffix: &str) -> fmt::Result {
    let bits = u128::from(count) * 8;
    let whole = |(_, scale): &&(&str, u64)| bits.is_multiple_of(u128::from(*scale));
    match scales.iter().copied().flatten().filter(whole).min_by_key(|(_, scale)| bits / u128::from(*scale)) {
        Some((name, scale)) if unit == Unit::Bytes => {
            write!(f, "{}{name}{suffix}", bits / u128::from(*scale))
        }
        _ => write!(f, "{count}{}{suffix}", unit.name()),
    }
}

/// Bytes or packets per second: `"10Mbit/s"`, `"1.5Gbit/s"`, `"100kB/s"`, `"1000packets/s"`; 1 or more, and a
/// whole number of them, so that nothing is rounded: `"8bit/s"` is the least in bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Throughput {
    per_second: u64,
    unit: Unit,
}

impl Throughput {
    /// How many per second, and of what.
    pub const fn parts(self) -> (u64, Unit) {
        (self.per_second, self.unit)
    }
}

impl FromStr for Throughput {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = "a rate above 0 such as \"10Mbit/s\", \"100kB/s\" or \"1000packets/s\"";
        let (per_second, unit) = count(text, &[BITS, BYTES], "/s", expected)?;
        if per_second == 0 {
            return Err(format!("{text:?}; expected {expected}"));
        }
        Ok(Self { per_second, unit })
    }
}

/// Bytes as bits, in the largest unit that needs no fraction.
impl fmt::Display for Throughput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        show(f, self.per_second, self.unit, &[BITS], "/s")
    }
}

impl<'de> Deserialize<'de> for Throughput {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        quoted(deserializer, "a rate in quotes, such as \"10Mbit/s\"")
    }
}

impl JsonSchema for Throughput {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Throughput".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "description": "So much per second, such as \"10Mbit/s\", \"100kB/s\", \"1000packets/s\".",
            "pattern": r"^[0-9]+(\.[0-9]{1,9})?([kMGT]?(bit|B)|packets)/s$"
        })
    }
}

/// So many bytes of a file: `"1G"` and `"1GB"` (10^9 bytes), `"64MiB"`, `"1000000"`; 1 or more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileSize(u64);

/// Units without their letter for bytes, as `-C` of tcpdump and others take them.
const SHORT_BYTES: &Scales =
    &[("", 8), ("k", 8_000), ("M", 8_000_000), ("G", 8_000_000_000), ("T", 8_000_000_000_000)];

impl FileSize {
    /// In bytes.
    pub const fn bytes(self) -> u64 {
        self.0
    }
}

impl FromStr for FileSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = "a size such as \"1G\", \"500MB\" or \"64MiB\"";
        match count(text, &[SHORT_BYTES, BYTES, BINARY_BYTES], "", expected)? {
            (bytes, Unit::Bytes) if bytes > 0 => Ok(Self(bytes)),
            _ => Err(format!("{text:?}; expected {expected}")),
        }
    }
}

/// In the unit that needs no fraction and gives the smallest number.
impl fmt::Display for FileSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        show(f, self.0, Unit::Bytes, &[BYTES, BINARY_BYTES], "")
    }
}

impl<'de> Deserialize<'de> for FileSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        quoted(deserializer, "a size in quotes, such as \"1G\"")
    }
}

impl JsonSchema for FileSize {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "FileSize".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "description": "Bytes, such as \"1G\", \"500MB\", \"64MiB\".",
            "pattern": r"^[0-9]+(\.[0-9]{1,9})?([kMGT]?B?|[KMGT]iB)$"
        })
    }
}

/// So many bytes or packets: `"1500B"`, `"64kB"` (64,000 bytes), `"64KiB"` (65,536 bytes), `"100packets"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Size {
    count: u64,
    unit: Unit,
}

impl Size {
    /// How many, and of what.
    pub const fn parts(self) -> (u64, Unit) {
        (self.count, self.unit)
    }
}

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = "a size such as \"1500B\", \"64kB\", \"64KiB\" or \"100packets\"";
        let (count, unit) = count(text, &[BYTES, BINARY_BYTES], "", expected)?;
        Ok(Self { count, unit })
    }
}

/// In the unit that needs no fraction and gives the smallest number.
impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        show(f, self.count, self.unit, &[BYTES, BINARY_BYTES], "")
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        quoted(deserializer, "a size in quotes, such as \"64kB\"")
    }
}

impl JsonSchema for Size {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Size".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "description": "Bytes or packets, such as \"1500B\", \"64kB\", \"64KiB\", \"100packets\".",
            "pattern": r"^[0-9]+(\.[0-9]{1,9})?(([kMGT]|[KMGT]i)?B|packets)$"
        })
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

/// A point in time: by RFC 3339, or in seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant {
    nanos: u64,
}

impl Instant {
    /// So many nanoseconds since 1970.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self { nanos }
    }

    /// Nanoseconds since 1970.
    pub const fn as_nanos(self) -> u64 {
        self.nanos
    }
}

impl FromStr for Instant {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let beyond = || format!("{text:?}; expected a time from 1970 to 2554");
        if let Some((whole, billionths, "")) = decimal(text) {
            let nanos = whole.checked_mul(1_000_000_000).and_then(|nanos| nanos.checked_add(billionths));
            return nanos.map(Self::from_nanos).ok_or_else(beyond);
        }
        let time = chrono::DateTime::parse_from_rfc3339(text).map_err(|_| {
            format!(
                "{text:?}; expected a time such as 2026-11-27T15:00:00Z, 2026-11-27T16:00:00.5+01:00 or 1795791600.5, seconds since 1970"
            )
        })?;
        let seconds = u64::try_from(time.timestamp()).map_err(|_| beyond())?;
        // More than a second within a leap second.
        let nanos = seconds.checked_mul(1_000_000_000);
        let nanos = nanos.and_then(|nanos| nanos.checked_add(time.timestamp_subsec_nanos().into()));
        nanos.map(Self::from_nanos).ok_or_else(beyond)
    }
}

impl fmt::Display for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, nanos) = (self.nanos / 1_000_000_000, self.nanos % 1_000_000_000);
        // They are within the range of dates.
        match chrono::DateTime::from_timestamp(seconds as i64, nanos as u32) {
            Some(time) => f.write_str(&time.to_rfc3339_opts(chrono::SecondsFormat::AutoSi, true)),
            None => write!(f, "{seconds}.{nanos:09}"),
        }
    }
}

impl<'de> Deserialize<'de> for Instant {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        quoted(deserializer, "a time in quotes, such as \"2026-11-27T15:00:00Z\"")
    }
}

impl JsonSchema for Instant {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Instant".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "description": "A time by RFC 3339, such as \"2026-11-27T15:00:00Z\", or in seconds since 1970, such as \"1795791600.5\".",
            "pattern": r"^([0-9]+(\.[0-9]{1,9})?|[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?([Zz]|[+-][0-9]{2}:[0-9]{2}))$"
        })
    }
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

/// What a number may have behind it.
const SUFFIXES: [(&str, u64); 4] = [("", 1), ("k", 1_000), ("M", 1_000_000), ("G", 1_000_000_000)];

/// A whole number of a range, perhaps with a suffix: `64`, `10k`, `1.5M`.
///
/// # Errors
///
/// What is wrong with the text, and what was expected.
pub fn number(text: &str, range: RangeInclusive<u64>) -> Result<u64, String> {
    let none = || format!("{text:?} is not a number; expected digits with an optional suffix k, M or G");
    let (whole, billionths, suffix) = decimal(text).ok_or_else(none)?;
    let (_, scale) = SUFFIXES.iter().find(|(name, _)| *name == suffix).ok_or_else(none)?;
    let fraction = billionths * scale;
    if !fraction.is_multiple_of(1_000_000_000) {
        return Err(format!("{text:?} is not a whole number"));
    }
    let value = u128::from(whole) * u128::from(*scale) + u128::from(fraction / 1_000_000_000);
    let value = u64::try_from(value).ok().filter(|value| range.contains(value));
    value.ok_or_else(|| format!("{text:?}; expected a number from {} to {}", range.start(), range.end()))
}

/// A number with a point perhaps, and perhaps with a suffix: `0.5`, `10k`.
///
/// # Errors
///
/// What is wrong with the text, and what was expected.
pub fn fraction(text: &str) -> Result<f64, String> {
    let none = || {
        format!(
            "{text:?} is not a number; expected digits, a point if need be, and an optional suffix k, M or G"
        )
    };
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (digits, suffix) = text.split_at(end);
    let (_, scale) = SUFFIXES.iter().find(|(name, _)| *name == suffix).ok_or_else(none)?;
    let value: f64 = digits.parse().map_err(|_| none())?;
    Ok(value * *scale as f64)
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
        number(text, MIN..=MAX).map(Self)
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

/// A probability above 0 and below 1, of whole millionths: `0.8`, `0.000001`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Probability(u32);

const MILLION: u32 = 1_000_000;

impl Probability {
    /// So many millionths; the nearest number from 1 to 999,999.
    pub const fn from_millionths(millionths: u32) -> Self {
        Self(if millionths == 0 {
            1
        } else if millionths >= MILLION {
            MILLION - 1
        } else {
            millionths
        })
    }

    /// Millionths, from 1 to 999,999.
    pub const fn millionths(self) -> u32 {
        self.0
    }

    /// That of the opposite.
    pub const fn complement(self) -> Self {
        Self(MILLION - self.0)
    }
}

impl FromStr for Probability {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let millionths = match decimal(text) {
            Some((0, billionths, "")) if billionths.is_multiple_of(1_000) => billionths / 1_000,
            _ => 0,
        };
        let is_some = (1..u64::from(MILLION)).contains(&millionths);
        is_some.then_some(Self(millionths as u32)).ok_or_else(|| {
            format!("{text}; expected a number above 0 and below 1, of six digits at most, such as 0.8")
        })
    }
}

impl fmt::Display for Probability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = format!("{:06}", self.0);
        write!(f, "0.{}", digits.trim_end_matches('0'))
    }
}

impl<'de> Deserialize<'de> for Probability {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // The shortest text that is read as the same number is what stands in the file.
        f64::deserialize(deserializer)?.to_string().parse().map_err(de::Error::custom)
    }
}

impl JsonSchema for Probability {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Probability".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "number",
            "description": "A probability, of six digits at most.",
            "exclusiveMinimum": 0,
            "exclusiveMaximum": 1
        })
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
    fn throughputs_are_read_and_shown() {
        use Unit::{Bytes, Packets};
        for (text, parts, shown) in [
            ("10Mbit/s", (1_250_000, Bytes), "10Mbit/s"),
            ("1.5Gbit/s", (187_500_000, Bytes), "1500Mbit/s"),
            ("800kbit/s", (100_000, Bytes), "800kbit/s"),
            ("100kB/s", (100_000, Bytes), "800kbit/s"),
            ("1B/s", (1, Bytes), "8bit/s"),
            ("8bit/s", (1, Bytes), "8bit/s"),
            ("0.008kbit/s", (1, Bytes), "8bit/s"),
            ("0.000000001GB/s", (1, Bytes), "8bit/s"),
            ("1Tbit/s", (125_000_000_000, Bytes), "1Tbit/s"),
            ("2TB/s", (2_000_000_000_000, Bytes), "16Tbit/s"),
            ("1000packets/s", (1_000, Packets), "1000packets/s"),
            ("1.000packets/s", (1, Packets), "1packets/s"),
            ("18446744073709551615B/s", (u64::MAX, Bytes), "147573952589676412920bit/s"),
            ("18446744073709551615packets/s", (u64::MAX, Packets), "18446744073709551615packets/s"),
        ] {
            let throughput: Throughput = text.parse().unwrap();
            assert_eq!((throughput.parts(), throughput.to_string().as_str()), (parts, shown), "{text}");
        }
    }

    #[test]
    fn sizes_of_files_are_read_and_shown() {
        for (text, bytes, shown) in [
            ("1", 1, "1B"),
            ("1500", 1_500, "1500B"),
            ("64k", 64_000, "64kB"),
            ("1G", 1_000_000_000, "1GB"),
            ("1.5GB", 1_500_000_000, "1500MB"),
            ("64MiB", 64 << 20, "64MiB"),
            ("2T", 2_000_000_000_000, "2TB"),
        ] {
            let size: FileSize = text.parse().expect(text);
            assert_eq!((size.bytes(), &*size.to_string()), (bytes, shown), "{text}");
        }
        for text in
            ["", "0", "0G", "G", "1g", "-1", "1 G", "1.5", "100packets", "1Gbit", "1e9", "99999999999T"]
        {
            let error = text.parse::<FileSize>().expect_err(text);
            assert!(error.contains(&format!("{text:?}")), "{error}");
        }
    }

    #[test]
    fn sizes_are_read_and_shown() {
        use Unit::{Bytes, Packets};
        for (text, parts, shown) in [
            ("64kB", (64_000, Bytes), "64kB"),
            ("64KiB", (65_536, Bytes), "64KiB"),
            ("1500B", (1_500, Bytes), "1500B"),
            ("1.5kB", (1_500, Bytes), "1500B"),
            ("0.5KiB", (512, Bytes), "512B"),
            ("1000KiB", (1_024_000, Bytes), "1000KiB"),
            ("2TiB", (2 << 40, Bytes), "2TiB"),
            ("3MB", (3_000_000, Bytes), "3MB"),
            ("0B", (0, Bytes), "0B"),
            ("0packets", (0, Packets), "0packets"),
            ("100packets", (100, Packets), "100packets"),
            ("18446744073709551615B", (u64::MAX, Bytes), "18446744073709551615B"),
        ] {
            let size: Size = text.parse().unwrap();
            assert_eq!((size.parts(), size.to_string().as_str()), (parts, shown), "{text}");
        }
    }

    #[test]
    fn what_is_no_throughput_and_no_size_is_refused() {
        let rate = "expected a rate above 0 such as \"10Mbit/s\", \"100kB/s\" or \"1000packets/s\"";
        for text in [
            "",
            "/s",
            "10/s",
            "Mbit/s",
            "10Mbit",
            "10Mbps",
            "10Mb/s",
            "10mbit/s",
            "10 Mbit/s",
            "10Mbit/sec",
            "-1B/s",
            "+1B/s",
            "1.B/s",
            ".5kB/s",
            "1.2.3kB/s",
            "1e3B/s",
            "1KB/s",
            "1KiB/s",
            "1Kibit/s",
            "0B/s",
            "0.0Mbit/s",
            "0packets/s",
            "1kpackets/s",
            "1packet/s",
            "1.0000000001MB/s",
            "99999999999999999999B/s",
            "1B/s/s",
        ] {
            assert_eq!(text.parse::<Throughput>(), Err(format!("{text:?}; {rate}")));
        }
        let size = "expected a size such as \"1500B\", \"64kB\", \"64KiB\" or \"100packets\"";
        for text in [
            "",
            "0",
            "64",
            "kB",
            "64KB",
            "64kiB",
            "64k",
            "64kbit",
            "64 kB",
            "-1B",
            "+1B",
            "1.B",
            ".5kB",
            "1packet",
            "1B/s",
            "1kpackets",
        ] {
            assert_eq!(text.parse::<Size>(), Err(format!("{text:?}; {size}")));
        }
        for (text, message) in [
            ("1bit/s", "\"1bit/s\" is not a whole number of bytes/s"),
            ("0.5bit/s", "\"0.5bit/s\" is not a whole number of bytes/s"),
            ("0.001kbit/s", "\"0.001kbit/s\" is not a whole number of bytes/s"),
            ("1.0005kB/s", "\"1.0005kB/s\" is not a whole number of bytes/s"),
            ("1.5packets/s", "\"1.5packets/s\" is not a whole number of packets/s"),
            ("18446744073709552kB/s", "\"18446744073709552kB/s\" is more than 18446744073709551615 bytes/s"),
        ] {
            assert_eq!(text.parse::<Throughput>(), Err(message.to_owned()));
        }
        for (text, message) in [
            ("0.5B", "\"0.5B\" is not a whole number of bytes"),
            ("0.1KiB", "\"0.1KiB\" is not a whole number of bytes"),
            ("0.1packets", "\"0.1packets\" is not a whole number of packets"),
            ("16777216TiB", "\"16777216TiB\" is more than 18446744073709551615 bytes"),
        ] {
            assert_eq!(text.parse::<Size>(), Err(message.to_owned()));
        }
    }

    #[test]
    fn what_is_shown_is_read_as_the_same() {
        for count in
            (0..64).flat_map(|n| [1 << n, (1 << n) + 1, 5 << n, 1_000 << n]).filter(|&count| count > 0)
        {
            for unit in [Unit::Bytes, Unit::Packets] {
                let throughput = Throughput { per_second: count, unit };
                // Above, the number of bits needs more than 64 bits.
                if count < 1 << 61 || unit == Unit::Packets {
                    assert_eq!(throughput.to_string().parse(), Ok(throughput));
                }
                let size = Size { count, unit };
                assert_eq!(size.to_string().parse(), Ok(size));
            }
        }
    }

    #[test]
    fn probabilities_are_read_and_shown() {
        for (text, millionths, shown) in [
            ("0.8", 800_000, "0.8"),
            ("0.000001", 1, "0.000001"),
            ("0.999999", 999_999, "0.999999"),
            ("0.10", 100_000, "0.1"),
        ] {
            let probability: Probability = text.parse().unwrap();
            assert_eq!((probability.millionths(), probability.to_string().as_str()), (millionths, shown));
            assert_eq!(probability.complement().millionths(), 1_000_000 - millionths);
            assert_eq!(Probability::from_millionths(millionths), probability);
            let value = toml::de::ValueDeserializer::parse(text).unwrap();
            assert_eq!(Probability::deserialize(value), Ok(probability), "{text}");
        }
        for text in ["", "0", "0.0", "1", "1.0", "0.0000001", "0.1234567", "-0.5", "1.5", "0.5x", ".5", "0."]
        {
            assert!(text.parse::<Probability>().is_err(), "{text}");
        }
        for value in
            ["0.0", "1.0", "1", "-0.5", "nan", "inf", "-inf", "1e-7", "1e300", "0.1234567", "\"0.5\""]
        {
            let parsed = toml::de::ValueDeserializer::parse(value).unwrap();
            assert!(Probability::deserialize(parsed).is_err(), "{value}");
        }
        assert_eq!(Probability::from_millionths(0).millionths(), 1);
        assert_eq!(Probability::from_millionths(u32::MAX).millionths(), 999_999);
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
