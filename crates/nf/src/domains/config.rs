//! The keys of `domains` in a chain file.

use std::path::PathBuf;
use std::sync::Arc;

use packetloom_domains::Builder;
use packetloom_domains::formats::{Format, ReadOptions};
use schemars::JsonSchema;
use serde::Deserialize;

use super::{Domains, ListFile, Names, STEP, Settings};
use crate::alerts::{self, Action};
use crate::flows::Remembered;
use crate::log_rate::{self, LogBurst, LogSettings};
use crate::units::{ByName, MaxFlows, Named, Rate, Span};
use crate::{Context, Error, FunctionSpec};

/// Packets with a name that a list blocks.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "domains")]
pub struct Config {
    /// The file with the names, or several: lists, hosts files, rules of AdBlock, response policy zones.
    pub lists: Lists,
    /// Their format: plain, hosts, adblock or rpz; each as its lines look like unless given.
    pub format: Option<ByName<Format>>,
    /// What becomes of packets with a name that is blocked.
    #[serde(default)]
    pub action: Action,
    /// A mark that they get.
    pub mark: Option<u32>,
    /// Follow names over the segments and datagrams of a flow, and drop the rest of a flow with a packet of it. Otherwise each packet is looked at
    /// by itself.
    #[serde(default = "Config::default_streams")]
    pub streams: bool,
    /// How long a flow is remembered that is silent: 5 minutes unless given; "0" is for ever. Not with streams = false.
    pub timeout: Option<Span>,
    /// Flows of each IP version that are remembered at a time, over all workers; when there are more, one that was not used for long is
    /// forgotten. 1048576 unless given. Not with streams = false.
    pub max_flows: Option<MaxFlows>,
    /// The file for alerts, as JSON lines in the form of Suricata's EVE; "-" is standard output. Without it none is logged.
    pub log: Option<PathBuf>,
    /// Lines of the log in a time, as "100/s", by the packets' time; "unlimited" is no limit.
    #[serde(default = "alerts::default_rate")]
    pub log_rate: Rate,
    /// Lines of the log that may come at once before the rate holds.
    #[serde(default = "log_rate::default_burst")]
    pub log_burst: LogBurst,
}

impl Config {
    const fn default_streams() -> bool {
        true
    }
}

/// One list, or several.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(untagged, expecting = "expected a file in quotes, or several in brackets")]
pub enum Lists {
    /// One.
    One(PathBuf),
    /// Several.
    Several(Vec<PathBuf>),
}

impl Lists {
    fn paths(&self) -> &[PathBuf] {
        match self {
            Self::One(path) => std::slice::from_ref(path),
            Self::Several(paths) => paths,
        }
    }
}

impl Named for Format {
    const KIND: &'static str = "domains-format";

    fn names() -> Vec<&'static str> {
        Self::ALL.map(Self::name).to_vec()
    }
}

/// Where every [`STEP`]th line of a text begins, and how many lines there are.
fn lines_of(text: &[u8]) -> (Vec<u32>, u32) {
    let (mut begins, mut lines) = (vec![0], 1u32);
    for at in memchr::memchr_iter(b'\n', text).filter(|at| at + 1 < text.len()) {
        if (lines as usize).is_multiple_of(STEP) {
            begins.push(at as u32 + 1);
        }
        lines += 1;
    }
    (begins, lines)
}

/// Takes a list whose first line has this number among those of all.
fn take(
    (path, text): (PathBuf, Vec<u8>),
    first: u32,
    options: &ReadOptions,
    builder: &mut Builder,
) -> Result<ListFile, Error> {
    let name = path.display().to_string();
    let (begins, lines) = lines_of(&text);
    let report = builder.read(&text[..], options, |line| first + line - 1);
    let report = report.map_err(|e| Error::Invalid(format!("{name}: {e}")))?;
    if report.entries == 0 {
        let why = report.refused.first().map_or(String::new(), |refused| format!("; {refused}"));
        let format = report.format;
        return Err(Error::Invalid(format!(
            "{name}: no name in {} lines; expected a list of format {format}{why}",
            report.lines
        )));
    }
    Ok(ListFile { path, name, text, begins, lines, first, report })
}

impl crate::Config for Config {
    const NAME: &'static str = "domains";

    fn prepare(self, context: &Context<'_>) -> Result<Box<dyn FunctionSpec>, Error> {
        let paths = self.lists.paths();
        if paths.is_empty() {
            return Err(Error::Invalid("lists = []; expected a file, or several".into()));
        }
        let remembered = Remembered { timeout: self.timeout, max_flows: self.max_flows };
        let flows = remembered.flows(self.streams, "streams = true")?;
        let options = ReadOptions { format: self.format.map(|format| format.0), ..ReadOptions::default() };
        let mut builder = Builder::new();
        let (mut files, mut first) = (Vec::new(), 0u32);
        for path in paths {
            let read = context.read("lists", path, "a list of names")?;
            let file = take(read, first, &options, &mut builder)?;
            let next = first.checked_add(file.lines);
            first =
                next.ok_or_else(|| Error::Invalid("more than 4,294,967,295 lines in all lists".into()))?;
            files.push(file);
        }
        let log = self.log.map(|log| LogSettings {
            path: context.resolve(&log),
            rate: self.log_rate,
            burst: self.log_burst,
        });
        let settings = Settings { action: self.action, mark: self.mark, log, watch: None, flows };
        let names = Names { set: Arc::new(builder.build()), files: Arc::new(files), settings };
        Ok(Box::new(Domains { names: Arc::new(names) }))
    }
}
