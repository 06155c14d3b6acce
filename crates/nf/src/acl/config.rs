//! The keys of `acl` in a chain file.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use packetloom_classify::formats::{self, Format, Options, Reading};
use packetloom_classify::{Action, Kind};
use packetloom_io::input;
use schemars::JsonSchema;
use serde::Deserialize;

use super::{Acl, Admits, List, Settings};
use crate::connections::TimeoutsConfig;
use crate::log_rate::{self, LogBurst, LogSettings};
use crate::units::{ByName, Named, Rate};
use crate::{Context, Error, FunctionSpec};

/// Ordered rules, the first that matches decides.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "acl")]
pub struct Config {
    /// The rule file, in any format there is; may be in gzip, xz or zstd.
    pub rules: PathBuf,
    /// The rule file's format; recognised by content unless given.
    pub format: Option<ByName<Format>>,
    /// The list to take from a rule file that holds several.
    pub list: Option<String>,
    /// Leave out what the rule file says and no rule here can, with a warning each.
    #[serde(default)]
    pub skip_unsupported: bool,
    /// What happens to packets that no rule matches; unless given, what the rule file says, and deny where it says nothing.
    pub default: Option<DefaultAction>,
    /// What happens to packets that match a rule without an action: ClassBench's have none.
    pub rule_action: Option<DefaultAction>,
    /// The classifier: linear, tuple-space, tuple-merge or hybrid.
    #[serde(default)]
    pub classifier: Classifier,
    /// Leave ClassBench's flags column out.
    #[serde(default)]
    pub ignore_flags: bool,
    /// Count the packets and IP bytes of each rule.
    #[serde(default = "Config::default_counters")]
    pub counters: bool,
    /// The file for the packets that rules with log decide, as JSON lines; "-" is standard output. Without it none is logged.
    pub log: Option<PathBuf>,
    /// Lines of the log in a time, as "100/s", by the packets' time; "unlimited" is no limit.
    #[serde(default = "Config::default_log_rate")]
    pub log_rate: Rate,
    /// Lines of the log that may come at once before the rate holds.
    #[serde(default = "log_rate::default_burst")]
    pub log_burst: LogBurst,
    /// The flow definition of the connections that rules with reflect admit or rules with state ask for, by connection; "connection" unless given.
    pub flows: Option<String>,
    /// Have TCP connections begin whose handshake was not seen, where rules have reflect or state.
    #[serde(default)]
    pub loose: bool,
    /// How long connections are remembered that rules with reflect admit or rules with state ask for.
    #[serde(default)]
    pub timeouts: TimeoutsConfig,
}

impl Named for Format {
    const KIND: &'static str = "format";

    fn names() -> Vec<&'static str> {
        Self::all().map(Self::name).collect()
    }
}

/// An action in a chain file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum DefaultAction {
    /// Goes on.
    Permit,
    /// Is dropped.
    Deny,
}

impl From<DefaultAction> for Action {
    fn from(action: DefaultAction) -> Self {
        match action {
            DefaultAction::Permit => Self::Permit,
            DefaultAction::Deny => Self::Deny,
        }
    }
}

/// A classifier in a chain file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Classifier {
    /// Every rule, a vector of them at a time.
    Linear,
    /// A hash table for each combination of prefix lengths, ports and protocol.
    TupleSpace,
    /// Hash tables of rules with similar masks.
    TupleMerge,
    /// Class tables and hash tables, as the rules want it.
    #[default]
    Hybrid,
}

impl From<Classifier> for Kind {
    fn from(classifier: Classifier) -> Self {
        match classifier {
            Classifier::Linear => Self::Linear,
            Classifier::TupleSpace => Self::TupleSpace,
            Classifier::TupleMerge => Self::TupleMerge,
            Classifier::Hybrid => Self::Hybrid,
        }
    }
}

impl crate::Config for Config {
    const NAME: &'static str = "acl";

    fn prepare(mut self, context: &Context<'_>) -> Result<Box<dyn FunctionSpec>, Error> {
        let path = context.resolve(&self.rules);
        if input::is_standard(&path) {
            return Err(Error::Invalid(
                "rules = \"-\"; expected a file: standard input is for packets".into(),
            ));
        }
        let name = path.display().to_string();
        let options = Options {
            ignore_flags: self.ignore_flags || context.ignore_flags,
            format: self.format.map(|format| format.0),
            skip_unsupported: self.skip_unsupported,
            list: self.list.clone(),
        };
        let reading = formats::read_rules(
            &name,
            &mut *input::open_text(&path).map_err(|error| error.expecting("a rule file"))?,
            &options,
        )?;
        self.log = self.log.map(|path| context.resolve(&path));
        Ok(Box::new(Acl { path: Some(path), ..self.with_rules(reading, name)? }))
    }
}

impl Config {
    /// On.
    pub fn default_counters() -> bool {
        true
    }

    /// 100 a second.
    pub fn default_log_rate() -> Rate {
        Rate::per_second(100)
    }

    /// Takes rules that were read already; `name` is their file's name in messages.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] where a rule has no action and `rule_action` is not given, or some rules have `reflect` and others `state`.
    pub fn with_rules(self, reading: Reading, name: String) -> Result<Acl, Error> {
        let Reading { rules, default, skipped, format, elsewhere, .. } = reading;
        let unstated = match (self.rule_action, rules.rules.iter().find(|rule| rule.action.is_none())) {
            (Some(action), _) => action.into(),
            (None, None) => Action::Deny,
            (None, Some(rule)) => {
                return Err(Error::Invalid(format!(
                    "{name}:{}: the rule has no action; expected rule_action = \"permit\" or \"deny\" in the chain file",
                    rule.line
                )));
            }
        };
        let reflects = rules.rules.iter().find(|rule| rule.action == Some(Action::Reflect));
        let asks = rules.rules.iter().find(|rule| !rule.states.is_all());
        if let (Some(reflects), Some(asks)) = (reflects, asks) {
            return Err(Error::Invalid(format!(
                "{name}:{}: \"reflect\", and \"state\" in line {}; expected one of both in a list: with states, permit begins connections",
                reflects.line, asks.line
            )));
        }
        let default = self.default.map(Action::from).or(default).unwrap_or(Action::Deny);
        let log = self.log.map(|path| LogSettings { path, rate: self.log_rate, burst: self.log_burst });
        let admits = Admits { flows: self.flows, loose: self.loose, timeouts: self.timeouts };
        let settings = Settings { unstated, default, counters: self.counters, log, watch: None, admits };
        let list = Arc::new(List::new(rules, settings));
        Ok(Acl {
            path: None,
            list,
            kind: self.classifier.into(),
            classifier: OnceLock::new(),
            classes: OnceLock::new(),
            name,
            format,
            skipped,
            elsewhere,
            changes: None,
            edited: None,
        })
    }
}
