//! Flow records as Parquet files (Apache Parquet format 2), for DuckDB, Spark, pandas and others of their kind.
//!
//! A row is a [`FlowRecord`](packetloom_packet::FlowRecord), both directions in one. Its columns are those of [`csv`](crate::csv) under the
//! same names, null where JSON has no such key; addresses also stand there as 16 bytes, IPv4 ones mapped into IPv6 (RFC 4291 section
//! 2.5.5.2). Types are those that all readers have alike:
//!
//! | what | physical type | logical type |
//! | --- | --- | --- |
//! | times | INT64 | TIMESTAMP, UTC, in the unit that their names end in |
//! | counters, lengths | INT64 | none: what is above 2⁶³ − 1 is written as that |
//! | other numbers | INT32 | none |
//! | addresses, the first name of each kind | BYTE_ARRAY | STRING |
//! | all names of a kind | a list of them | LIST |
//! | addresses as bytes | FIXED_LEN_BYTE_ARRAY (16) | none |
//!
//! Unsigned types are left out on purpose: Spark makes decimals of them, some readers negative numbers.
//!
//! A file has row groups of 131,072 rows at most, compressed with zstd, with the least and greatest value of each column. Its metadata have
//! the keys `packetloom.schema` ([`SCHEMA`]) and `packetloom.version`.
//!
//! - `columns`: what columns there are, and their values until a row group is written.
//! - `file`: one file.
//! - `files`: the files of a folder, by time and size.

#[cfg(feature = "parquet")]
mod columns;
#[cfg(feature = "parquet")]
mod file;
#[cfg(feature = "parquet")]
pub(crate) mod files;

use std::fmt;
use std::num::NonZeroU64;
use std::str::FromStr;
use std::time::Duration;

use crate::Error;
use crate::fields::Fields;
use crate::messages::Sampling;

#[cfg(feature = "parquet")]
pub use self::file::FileWriter;

/// The version of names, types and meanings of columns, in the metadata of files.
pub const SCHEMA: &str = "2";

/// What files of a folder have in them, and when the next one begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Which fields records have.
    pub fields: Fields,
    /// How packets were sampled, if they were: each row says of how many one was taken.
    pub sampling: Option<Sampling>,
    /// Rows of a file at most.
    pub rows: NonZeroU64,
    /// Bytes of a file, about: it ends behind the row group that comes to as many.
    pub bytes: u64,
    /// Files end at multiples of this since 1970, by the time of a record's last packet, and where no run waits also by the clock.
    pub every: Option<Duration>,
    /// Which folders they are in.
    pub partition: Partition,
}

/// Bytes of a file at least.
const LEAST_BYTES: u64 = 1 << 16;

impl Options {
    /// 4,194,304 rows or 256 MiB a file, in one folder.
    pub const fn new(fields: Fields) -> Self {
        Self {
            fields,
            sampling: None,
            rows: NonZeroU64::new(1 << 22).unwrap(),
            bytes: 256 << 20,
            every: None,
            partition: Partition::None,
        }
    }

    /// # Errors
    ///
    /// [`Error::Settings`] for what cannot be.
    pub fn check(&self) -> Result<(), Error> {
        let wrong = |why: &str| Err(Error::Settings(why.into()));
        if self.bytes < LEAST_BYTES {
            return wrong(&format!("files of {} bytes; expected at least {LEAST_BYTES}", self.bytes));
        }
        if self.every.is_some_and(|every| every.as_millis() == 0) {
            return wrong("a file more often than every millisecond; expected a longer interval");
        }
        if self.fields.iter().next().is_none() {
            return wrong("no fields; expected at least one");
        }
        Ok(())
    }
}

/// The folders that files are in, named as Hive does, by the time of a record's first packet in UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Partition {
    /// The one that is given.
    #[default]
    None,
    /// In it one for each day: `date=2026-11-27`.
    Day,
    /// In these one for each hour: `date=2026-11-27/hour=13`.
    Hour,
}

impl Partition {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Day => "day",
            Self::Hour => "hour",
        }
    }
}

impl fmt::Display for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Partition {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        [Self::None, Self::Day, Self::Hour]
            .into_iter()
            .find(|partition| partition.name() == text)
            .ok_or_else(|| format!("\"{text}\" is no partition; expected none, day or hour"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_checked() {
        let options = Options::new(Fields::BASIC);
        assert!(options.check().is_ok());
        for (options, expected) in [
            (Options { bytes: 65_535, ..options.clone() }, "files of 65535 bytes; expected at least 65536"),
            (Options { every: Some(Duration::from_micros(999)), ..options.clone() }, "every millisecond"),
            (Options { fields: Fields::of(&[]), ..options.clone() }, "no fields"),
        ] {
            assert!(options.check().unwrap_err().to_string().contains(expected), "{options:?}");
        }
        for partition in [Partition::None, Partition::Day, Partition::Hour] {
            assert_eq!(partition.name().parse(), Ok(partition));
        }
        assert!("hourly".parse::<Partition>().unwrap_err().contains("expected none, day or hour"));
    }
}
