//! The keys of `strings` in a chain file.

use std::path::PathBuf;
use std::sync::Arc;

use packetloom_pattern::Bounds;
use packetloom_pattern::files::{self, Format, Options, Places};
use schemars::JsonSchema;
use serde::Deserialize;

use super::store::Store;
use super::{FlowAction, FlowSettings, LookIn, Named, Settings, Strings, Within};
use crate::alerts::{self, Action};
use crate::flows::Remembered;
use crate::log_rate::{self, LogBurst, LogSettings};
use crate::units::{ByName, MaxFlows, Named as ByNames, Rate, Span};
use crate::{Context, Error, FunctionSpec};

/// Packets in whose payload strings of a list lie.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
#[schemars(rename = "strings")]
pub struct Config {
    /// The file with the patterns: a list, or rules of Suricata or Snort.
    pub patterns: PathBuf,
    /// Its format: auto, lines, hex or rules.
    #[serde(default)]
    pub format: ByName<Format>,
    /// Take from each rule its fast pattern alone: what matches is what the rule may match, and more.
    #[serde(default)]
    pub by_fast_pattern: bool,
    /// Find letters in both cases, in patterns of lists.
    #[serde(default)]
    pub ignore_case: bool,
    /// A file for the compiled set, which is read where it is that of the patterns, and else written: large sets are ready sooner then.
    pub compiled: Option<PathBuf>,
    /// Which signatures are counted and logged of a packet that has several: all, the first of the file, or none by name.
    #[serde(default, rename = "match")]
    pub named: Named,
    /// Where patterns are looked for: "payload", or a header field, by the name that Suricata has for it: "http.uri", "http.host", "dns.query",
    /// "tls.sni" and others; or several of them. Of rules those are taken whose contents are there. "auto" looks for contents of rules where each
    /// says, and for lists in the payload.
    #[serde(default)]
    pub look_in: LookIn,
    /// What is searched of a packet. Of header fields "stream" follows the first message of each direction of a flow over segments.
    #[serde(default)]
    pub within: Within,
    /// What becomes of packets that match.
    #[serde(default)]
    pub action: Action,
    /// A mark that packets get that match.
    pub mark: Option<u32>,
    /// What becomes of the rest of a flow once a packet of it is dropped: "drop", as always within = "stream". Unless it is given later packets
    /// are judged by themselves.
    pub flow: Option<FlowAction>,
    /// How long a flow is remembered that is silent: 5 minutes unless given; "0" is for ever. For flow = "drop" and within = "stream".
    pub timeout: Option<Span>,
    /// Flows of each IP version that are remembered at a time, over all workers; when there are more, one that was not used for long is
    /// forgotten. 1048576 unless given. For flow = "drop" and within = "stream".
    pub max_flows: Option<MaxFlows>,
    /// The file for alerts, as JSON lines in the form of Suricata's EVE; "-" is standard output. Without it none is logged.
    pub log: Option<PathBuf>,
    /// Lines of the log in a time, as "100/s", by the packets' time; "unlimited" is no limit.
    #[serde(default = "alerts::default_rate")]
    pub log_rate: Rate,
    /// Lines of the log that may come at once before the rate holds.
    #[serde(default = "log_rate::default_burst")]
    pub log_burst: LogBurst,
    /// Log lines for people in place of EVE's.
    #[serde(skip)]
    pub plain: bool,
    /// Say in lines of the log where strings lie.
    #[serde(skip)]
    pub offsets: bool,
}

impl ByNames for Format {
    const KIND: &'static str = "pattern-format";

    fn names() -> Vec<&'static str> {
        Self::ALL.map(Self::name).to_vec()
    }
}

impl crate::Config for Config {
    const NAME: &'static str = "strings";

    fn prepare(self, context: &Context<'_>) -> Result<Box<dyn FunctionSpec>, Error> {
        Ok(Box::new(self.load(context)?))
    }
}

impl Config {
    /// Reads the patterns.
    ///
    /// # Errors
    ///
    /// As [`Config::with_patterns`], and a file that cannot be read.
    pub fn load(mut self, context: &Context<'_>) -> Result<Strings, Error> {
        let (path, text) = context.read("patterns", &self.patterns, "a pattern file")?;
        let name = path.display().to_string();
        self.log = self.log.map(|log| context.resolve(&log));
        self.compiled = self.compiled.map(|compiled| context.resolve(&compiled));
        self.with_patterns(&name, &text, Some(path))
    }

    /// Takes patterns that were read already, from a file of this path if from one; `name` is what messages call it.
    ///
    /// # Errors
    ///
    /// Text without one pattern, or keys that contradict each other.
    pub fn with_patterns(self, name: &str, text: &[u8], path: Option<PathBuf>) -> Result<Strings, Error> {
        if self.log.is_some() && self.named == Named::Any {
            let what =
                "log with match = \"any\"; expected match = \"all\" or \"first\": an alert names a signature";
            return Err(Error::Invalid(what.into()));
        }
        let options = Options {
            format: self.format.0,
            by_fast_pattern: self.by_fast_pattern,
            ignore_case: self.ignore_case,
            // A packet as a whole has no fields.
            places: self.look_in.places().or((self.within == Within::Packet).then_some(Places::PAYLOAD)),
        };
        if self.within == Within::Packet && options.places != Some(Places::PAYLOAD) {
            return Err(Error::Invalid(format!(
                "within = \"packet\" with look_in = \"{}\"; expected within = \"payload\" or \"stream\"",
                self.look_in
            )));
        }
        let signatures = files::read(text, &options);
        let signatures = signatures.map_err(|e| Error::Invalid(format!("{name}: {e}")))?;
        if let Some((path, why)) = self.compiled.as_ref().and_then(|path| Some((path, Store::check(path)?))) {
            return Err(Error::Invalid(format!(
                "compiled: {}: {why}; expected a file that packetloom wrote for a compiled set, or none",
                path.display()
            )));
        }
        let has_bounds = signatures.patterns.iter().any(|pattern| pattern.bounds != Bounds::ANYWHERE);
        if self.within == Within::Packet && has_bounds {
            return Err(Error::Invalid(format!(
                "{name}: offset and depth of rules count from the beginning of the payload; expected within = \"payload\""
            )));
        }
        let drops = self.action == Action::Drop;
        if self.flow.is_some() && !drops {
            let what = "flow = \"drop\" with action = \"pass\"; expected action = \"drop\"";
            return Err(Error::Invalid(what.into()));
        }
        // What was dropped is sent again, and would be let through then: those bytes of the stream were searched.
        let drops = drops && (self.flow.is_some() || self.within == Within::Stream);
        let remembered = Remembered { timeout: self.timeout, max_flows: self.max_flows };
        let flows = remembered
            .flows(drops || self.within == Within::Stream, "within = \"stream\" or flow = \"drop\"")?
            .map(|(timeout, max_flows)| FlowSettings { timeout, max_flows, drops });
        let log = self.log.map(|path| LogSettings { path, rate: self.log_rate, burst: self.log_burst });
        let settings = Settings {
            named: self.named,
            within: self.within,
            action: self.action,
            mark: self.mark,
            flows,
            log,
            plain: self.plain,
            offsets: self.offsets,
            watch: None,
            compiled: self.compiled,
        };
        Ok(Strings::new(name.into(), path, Arc::new(signatures), settings))
    }
}
