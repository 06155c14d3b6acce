//! Flow records as lines of text.

use std::fmt::{self, Write};
use std::str::FromStr;

use packetloom_packet::FlowRecord;

use crate::fields::{Column, Fields, SAMPLING_INTERVAL};
use crate::messages::Sampling;
use crate::{csv, flowtest, json};

/// What lines look like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LineFormat {
    /// An object each: [`crate::json`].
    #[default]
    Json,
    /// Behind a line of names: [`crate::csv`].
    Csv,
    /// A network profile of FlowTest: [`crate::flowtest`]. Its columns are fixed: neither fields nor sampling change them.
    FlowTest,
}

impl LineFormat {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Json, Self::Csv, Self::FlowTest];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Json => "json",
            Self::Csv => "csv",
            Self::FlowTest => "flowtest",
        }
    }
}

impl fmt::Display for LineFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for LineFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|format| format.name() == text)
            .ok_or_else(|| format!("\"{text}\" is no format of lines; expected json, csv or flowtest"))
    }
}

/// Writes records with some fields in some format.
#[derive(Clone, Debug)]
pub struct Lines {
    format: LineFormat,
    fields: Fields,
    columns: Vec<Column>,
    sampling: Option<Sampling>,
}

impl Lines {
    /// Lines of this format, with these fields.
    pub fn new(format: LineFormat, fields: Fields) -> Self {
        Self { format, fields, columns: fields.columns().collect(), sampling: None }
    }

    /// The same for packets that were sampled: each record says in `samplingInterval` of how many packets one was taken.
    #[must_use]
    pub fn sampled(self, sampling: Option<Sampling>) -> Self {
        Self { sampling, ..self }
    }

    /// What stands at the beginning of each file.
    pub fn header(&self) -> Option<String> {
        let header = match self.format {
            LineFormat::Json => return None,
            LineFormat::Csv => csv::header(&self.columns),
            LineFormat::FlowTest => return Some(flowtest::HEADER.to_owned()),
        };
        Some(match self.sampling {
            Some(_) => format!("{},{SAMPLING_INTERVAL}\r\n", header.trim_end()),
            None => header,
        })
    }

    /// Appends a record and the end of its line.
    pub fn write(&self, lines: &mut String, record: &FlowRecord) {
        match self.format {
            LineFormat::Json if self.fields == Fields::BASIC => json::write_record(lines, record),
            LineFormat::Json => json::write_columns(lines, record, &self.columns),
            LineFormat::Csv => csv::write_record(lines, record, &self.columns),
            LineFormat::FlowTest => return flowtest::write_record(lines, record),
        }
        if let Some(Sampling { interval, .. }) = self.sampling {
            let (end, name) = match self.format {
                LineFormat::Json => ("}\n", format!("\"{SAMPLING_INTERVAL}\":")),
                LineFormat::Csv | LineFormat::FlowTest => ("\r\n", String::new()),
            };
            lines.truncate(lines.len() - end.len());
            let comma = if lines.ends_with('{') { "" } else { "," };
            // Writing to a String cannot fail.
            let _ = write!(lines, "{comma}{name}{interval}{end}");
        }
    }
}
