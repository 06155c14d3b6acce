//! Several reports of the same records, and their output.

use std::path::Path;

use packetloom_export::Fields;
use packetloom_packet::FlowRecord;
use serde_json::Value;

use crate::series::{Series, SeriesSpec};
use crate::top::{Top, TopSpec};
use crate::{Error, json, svg, table};

/// How reports are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Aligned tables.
    Text,
    /// One object, as [`schema`](crate::schema) says.
    Json,
    /// One picture with all of them, one below the other.
    Svg,
}

impl Format {
    /// By the ending of a file's name.
    ///
    /// # Errors
    ///
    /// Another ending than `.txt`, `.json` and `.svg`.
    pub fn of(path: &Path) -> Result<Self, Error> {
        let ending = path.extension().map(|ending| ending.to_string_lossy().to_ascii_lowercase());
        match ending.as_deref() {
            Some("txt") => Ok(Self::Text),
            Some("json") => Ok(Self::Json),
            Some("svg") => Ok(Self::Svg),
            _ => Err(Error::Format(path.display().to_string())),
        }
    }
}

/// Reports of the same records.
#[derive(Clone, Debug, Default)]
pub struct Reports {
    tops: Vec<Top>,
    series: Vec<Series>,
}

impl Reports {
    /// Reports with nothing counted yet.
    pub fn new(
        tops: impl IntoIterator<Item = TopSpec>,
        series: impl IntoIterator<Item = SeriesSpec>,
    ) -> Self {
        Self {
            tops: tops.into_iter().map(Top::new).collect(),
            series: series.into_iter().map(Series::new).collect(),
        }
    }

    /// These, which may have bounds of their own.
    pub fn from_parts(tops: Vec<Top>, series: Vec<Series>) -> Self {
        Self { tops, series }
    }

    /// The fields that records have to have: a meter keeps some of them only where it is asked to.
    pub fn fields(&self) -> Fields {
        let tops = self.tops.iter().map(|top| top.spec().fields());
        let series = self.series.iter().map(|series| series.spec().fields());
        tops.chain(series).fold(Fields::of(&[]), Fields::and)
    }

    /// Counts the flows of a record.
    pub fn add(&mut self, record: &FlowRecord) {
        self.tops.iter_mut().for_each(|top| top.add(record));
        self.series.iter_mut().for_each(|series| series.add(record));
    }

    /// Adds what others have counted, of other records.
    ///
    /// # Panics
    ///
    /// They are not the same reports.
    pub fn merge(&mut self, others: &Self) {
        let is_same = self.tops.len() == others.tops.len() && self.series.len() == others.series.len();
        assert!(is_same, "both have to be the same reports");
        self.tops.iter_mut().zip(&others.tops).for_each(|(top, other)| top.merge(other));
        self.series.iter_mut().zip(&others.series).for_each(|(series, other)| series.merge(other));
    }

    /// The rows of keys.
    pub fn tops(&self) -> &[Top] {
        &self.tops
    }

    /// What there was by time.
    pub fn series(&self) -> &[Series] {
        &self.series
    }

    /// All of them as tables, with an empty line between two.
    pub fn text(&self) -> String {
        let tops = self.tops.iter().map(table::top);
        let tables: Vec<_> = tops.chain(self.series.iter().map(table::series)).collect();
        tables.join("\n")
    }

    /// All of them as one object, as [`schema`](crate::schema) says.
    pub fn json(&self) -> Value {
        let tops = self.tops.iter().map(json::top);
        let reports: Vec<_> = tops.chain(self.series.iter().map(json::series)).collect();
        serde_json::json!({ "reports": reports })
    }

    /// All of them as one picture.
    pub fn svg(&self) -> String {
        svg::picture(&self.tops, &self.series)
    }

    /// What a file of a format has in it, with a line break at its end.
    pub fn write(&self, format: Format) -> String {
        match format {
            Format::Text => self.text(),
            Format::Json => format!("{:#}\n", self.json()),
            Format::Svg => self.svg(),
        }
    }
}
