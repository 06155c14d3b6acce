//! The keys of `acl` in a chain file.

use std::path::PathBuf;
use std::sync::Arc;

use packetloom_classify::formats::{self, Options};
use packetloom_classify::{Action, Kind, RuleSet};
use packetloom_io::input;
use schemars::JsonSchema;
use serde::Deserialize;

use super::{Acl, List};
use crate::{Context, Error, Prepared};

/// Ordered rules, the first that matches decides.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "acl")]
pub struct Config {
    /// The rule file: Packetloom's own format or ClassBench's, recognised by content; may be in gzip or xz.
    pub rules: PathBuf,
    /// What happens to packets that no rule matches.
    #[serde(default)]
    pub default: DefaultAction,
    /// What happens to packets that match a rule without an action: ClassBench's have none.
    pub rule_action: Option<DefaultAction>,
    /// The classifier: linear or tuple-merge.
    #[serde(default)]
    pub classifier: Classifier,
    /// Leave ClassBench's flags column out.
    #[serde(default)]
    pub ignore_flags: bool,
}

/// An action in a chain file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum DefaultAction {
    /// Goes on.
    Permit,
    /// Is dropped.
    #[default]
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
    /// Every rule in turn.
    Linear,
    /// Hash tables of rules with similar masks.
    #[default]
    TupleMerge,
}

impl From<Classifier> for Kind {
    fn from(classifier: Classifier) -> Self {
        match classifier {
            Classifier::Linear => Self::Linear,
            Classifier::TupleMerge => Self::TupleMerge,
        }
    }
}

impl crate::Config for Config {
    const NAME: &'static str = "acl";

    fn prepare(self, context: &Context<'_>) -> Result<Box<dyn Prepared>, Error> {
        let path = context.resolve(&self.rules);
        if input::is_standard(&path) {
            return Err(Error::Invalid(
                "rules = \"-\"; expected a file: standard input is for packets".into(),
            ));
        }
        let name = path.display().to_string();
        let options = Options { ignore_flags: self.ignore_flags || context.ignore_flags };
        let rules = formats::read_rules(&name, &mut *input::open_text(&path)?, options)?;
        Ok(Box::new(self.with_rules(rules, name)?))
    }
}

impl Config {
    /// Takes rules that were read already; `name` is their file's name in messages.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] where a rule has no action and `rule_action` is not given.
    pub fn with_rules(self, rules: RuleSet, name: String) -> Result<Acl, Error> {
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
        let classifier = Kind::from(self.classifier).build(&rules);
        let list = Arc::new(List { rules, unstated, default: self.default.into() });
        Ok(Acl { list, classifier, name, changes: None })
    }
}
