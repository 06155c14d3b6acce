//! `acl`: ordered rules, the first that matches decides.
//!
//! A packet that no rule matches gets the default action. Frames without a match key (not IP, or malformed) are not judged
//! here: the chain's policy did that. A non-first fragment has neither ports nor flags, so a rule that asks for them does
//! not match it. Source of the semantics: those of router access lists, as in RFC 8519.
//!
//! - Shape: stateless. Keys in, verdicts out; one hit counter a rule and worker (8 bytes).
//! - Drop reasons: `acl_rule`, `acl_default`.

mod config;
mod cpu;
mod live;
mod oracle;
#[cfg(test)]
mod tests;

use std::any::Any;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use packetloom_classify::formats::Skipped;
use packetloom_classify::{Action, Classifier, Kind, Rule, RuleSet};
use packetloom_packet::{DropReason, Verdict};
use serde_json::json;

pub use config::{Config, DefaultAction, FormatName};

use crate::{Error, Function, Oracle, Prepared, Report};

/// Rules that were read and indexed.
#[derive(Debug)]
pub struct Acl {
    list: Arc<List>,
    kind: Kind,
    /// Built when it is first needed: neither the oracle nor rules that change need it.
    classifier: OnceLock<Arc<dyn Classifier>>,
    /// The rule file's name.
    name: String,
    /// What of it was left out.
    skipped: Vec<Skipped>,
    /// Where rules change, the list as it was loaded and what becomes of it; `list` has all rules that ever are in it.
    changes: Option<Arc<live::Changes>>,
}

/// A rule list whose every rule has an action.
#[derive(Debug)]
struct List {
    rules: RuleSet,
    /// The action for rules whose format gives none.
    unstated: Action,
    default: Action,
}

impl List {
    /// The verdict of the rule at `position`, or of the default.
    fn verdict(&self, position: Option<usize>) -> Verdict {
        let (action, reason) = match position {
            Some(position) => {
                (self.rules.rules[position].action.unwrap_or(self.unstated), DropReason::AclRule)
            }
            None => (self.default, DropReason::AclDefault),
        };
        match action {
            Action::Permit => Verdict::Pass,
            Action::Deny => Verdict::Drop(reason),
        }
    }
}

impl Prepared for Acl {
    fn name(&self) -> &'static str {
        "acl"
    }

    fn describe(&self) -> Vec<String> {
        let default = self.list.default.name();
        match &self.changes {
            None => vec![
                format!("{} rules of {}, first match wins", self.list.rules.rules.len(), self.name),
                format!("default {default}, classifier {}", self.kind),
            ],
            Some(changes) => vec![
                format!("{} rules of {}, first match wins", changes.loaded.rules.len(), self.name),
                format!("{} transactions of {}", changes.transactions.len(), changes.name),
                format!("default {default}, classifier for rules that change"),
            ],
        }
    }

    fn warnings(&self) -> Vec<String> {
        let skipped = self.skipped.iter();
        skipped.map(|skipped| format!("{}:{}: {}", self.name, skipped.line, skipped.message)).collect()
    }

    fn is_per_flow(&self) -> bool {
        false
    }

    fn has_rules(&self) -> bool {
        true
    }

    fn change_rules(&mut self, path: &Path) -> Result<(), Error> {
        let loaded = match &self.changes {
            None => self.list.rules.clone(),
            Some(changes) => changes.loaded.clone(),
        };
        let (changes, rules) = live::Changes::read(path, loaded)?;
        self.list = Arc::new(List { rules, unstated: self.list.unstated, default: self.list.default });
        self.changes = Some(Arc::new(changes));
        Ok(())
    }

    fn function(&self, _workers: usize) -> Box<dyn Function> {
        if let Some(changes) = &self.changes {
            return Box::new(live::AclLive::new(self.list.clone(), changes.clone()));
        }
        let classifier = self.classifier.get_or_init(|| self.kind.build(&self.list.rules));
        Box::new(cpu::AclCpu::new(self.list.clone(), classifier.clone()))
    }

    fn oracle(&self) -> Box<dyn Oracle> {
        Box::new(oracle::AclOracle::new(self.list.clone(), self.changes.clone()))
    }
}

/// Packets by the rule that decided.
#[derive(Clone, Debug)]
pub struct AclReport {
    list: Arc<List>,
    /// Packets for each rule.
    hits: Vec<u64>,
    /// Packets that no rule matched.
    default_hits: u64,
}

impl AclReport {
    fn new(list: Arc<List>) -> Self {
        let hits = vec![0; list.rules.rules.len()];
        Self { list, hits, default_hits: 0 }
    }

    fn count(&mut self, position: Option<usize>) {
        match position {
            Some(position) => self.hits[position] += 1,
            None => self.default_hits += 1,
        }
    }

    /// Rules that decided a packet: position, rule, packets.
    fn hit_rules(&self) -> impl Iterator<Item = (usize, &Rule, u64)> {
        let rules = self.list.rules.rules.iter().zip(&self.hits).enumerate();
        rules.filter(|(_, (_, hits))| **hits > 0).map(|(position, (rule, &hits))| (position, rule, hits))
    }
}

/// Rules shown at the end of a run.
const SHOWN_RULES: usize = 10;

impl Report for AclReport {
    fn merge(&mut self, other: &dyn Report) {
        let Some(other) = (other as &dyn Any).downcast_ref::<Self>() else { return };
        for (mine, theirs) in self.hits.iter_mut().zip(&other.hits) {
            *mine += theirs;
        }
        self.default_hits += other.default_hits;
    }

    fn json(&self) -> serde_json::Value {
        let rules: Vec<_> = self
            .hit_rules()
            .map(|(position, rule, packets)| {
                json!({ "rule": position, "line": rule.line, "id": rule.id, "text": rule.to_string(), "packets": packets })
            })
            .collect();
        json!({
            "rules": self.hits.len(),
            "rules_hit": rules.len(),
            "default_packets": self.default_hits,
            "hits": rules,
        })
    }

    fn rows(&self) -> Vec<(String, String)> {
        let mut hits: Vec<_> = self.hit_rules().collect();
        let mut rows = vec![
            ("rules hit".into(), format!("{} of {}", hits.len(), self.hits.len())),
            (format!("default ({})", self.list.default.name()), self.default_hits.to_string()),
        ];
        hits.sort_by_key(|&(position, _, packets)| (std::cmp::Reverse(packets), position));
        for (_, rule, packets) in hits.iter().take(SHOWN_RULES) {
            rows.push((format!("line {}: {rule}", rule.line), packets.to_string()));
        }
        if hits.len() > SHOWN_RULES {
            let rest: u64 = hits[SHOWN_RULES..].iter().map(|&(_, _, packets)| packets).sum();
            rows.push((format!("{} more rules", hits.len() - SHOWN_RULES), rest.to_string()));
        }
        rows
    }
}
