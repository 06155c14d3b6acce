//! Transactions of rules, as others ask for them: an acl gets other rules between two packets.

use std::sync::Arc;

use packetloom_classify::formats::changes::read_transaction;
use packetloom_classify::live::Change;
use packetloom_nf::{RefusedChange, summary};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use super::FunctionName;
use crate::state::places_of_state;
use crate::{Chain, Plan};

/// What is to become of the rules of an acl.
#[derive(Clone, Debug)]
pub struct RuleChange {
    /// The function; it may be left out where only one has rules.
    function: Option<FunctionName>,
    /// What was read.
    statements: String,
    /// The line of each change, and the changes.
    lines: Vec<u32>,
    changes: Vec<Change>,
}

/// What became of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(title = "How rules were changed")]
pub struct RulesChanged {
    /// The function's place in the chain, from 0.
    pub function: usize,
    /// Its name.
    pub nf: &'static str,
    /// Rules that were added.
    pub added: usize,
    /// Rules that were deleted.
    pub deleted: usize,
    /// Rules that were replaced by others.
    pub replaced: usize,
    /// Rules of the list then.
    pub rules: usize,
}

impl RulesChanged {
    /// For machines: [`crate::schema::rules_changed`] is its schema.
    pub fn json(&self) -> Value {
        summary::value(self)
    }
}

impl RuleChange {
    /// Reads the statements, as [`read_transaction`] does.
    ///
    /// # Errors
    ///
    /// The first line that is no change, what is wrong with it, and what was expected.
    pub fn parse(function: Option<FunctionName>, statements: &str) -> Result<Self, String> {
        let read = read_transaction(statements).map_err(|(line, why)| at(statements, line, &why))?;
        if read.is_empty() {
            return Err("no changes; expected lines with add, delete or replace".into());
        }
        let (lines, changes) = read.into_iter().unzip();
        Ok(Self { function, statements: statements.into(), lines, changes })
    }

    /// Makes the plan with the rules as they are then.
    pub(super) fn make(&self, plan: &Plan) -> Result<(Plan, RulesChanged), String> {
        let chain = plan.chain();
        let function = self.find(chain)?;
        let spec =
            chain.functions[function].change(&self.changes).map_err(|refused| self.refused(refused))?;
        let rules = spec.rules().unwrap_or_default();
        let changed = chain.with_function(function, Arc::from(spec))?;
        // It may be the first that has rules with state.
        let moves = |other: usize| places_of_state(chain, other) != places_of_state(&changed, other);
        if let Some(other) = (0..chain.functions.len()).find(|&other| other != function && moves(other)) {
            let name = chain.functions[other].name();
            return Err(format!(
                "the acl would keep connections from now on, and state of function {other} ({name}) would be elsewhere then; expected such rules in its file, and a reload"
            ));
        }
        let count = |is_it: fn(&Change) -> bool| self.changes.iter().filter(|change| is_it(change)).count();
        let changed_rules = RulesChanged {
            function,
            nf: chain.functions[function].name(),
            added: count(|change| matches!(change, Change::Add(..))),
            deleted: count(|change| matches!(change, Change::Delete(_))),
            replaced: count(|change| matches!(change, Change::Replace(..))),
            rules,
        };
        Ok((Plan::new(changed), changed_rules))
    }

    /// The function that is meant.
    fn find(&self, chain: &Chain) -> Result<usize, String> {
        let functions = chain.functions.iter().enumerate();
        let all: Vec<_> = functions.filter(|(_, function)| function.rules().is_some()).collect();
        let asked = self.function.as_ref();
        let those = all
            .iter()
            .filter(|(number, function)| asked.is_none_or(|asked| asked.is(*number, function.name())));
        let those: Vec<_> = those.map(|&(number, _)| number).collect();
        let list = |of: &[usize]| of.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
        let numbers: Vec<_> = all.iter().map(|&(number, _)| number).collect();
        match (&those[..], asked) {
            ([one], _) => Ok(*one),
            (_, _) if all.is_empty() => Err("the chain has no acl, whose rules would change".into()),
            ([], Some(asked)) => {
                Err(format!("function {asked} is no acl of the chain; expected one of: {}", list(&numbers)))
            }
            (several, _) => {
                Err(format!("the chain has several acls; expected a function, one of: {}", list(several)))
            }
        }
    }

    /// What is said of a change that is not made.
    fn refused(&self, RefusedChange { change, why }: RefusedChange) -> String {
        match change.and_then(|change| self.lines.get(change)) {
            Some(&line) => at(&self.statements, line, &why),
            None => why,
        }
    }
}

/// What is wrong with the statement in a line.
fn at(statements: &str, line: u32, why: &str) -> String {
    /// Characters of it that are shown.
    const SHOWN: usize = 80;
    let statement = statements.lines().nth(line as usize - 1).unwrap_or_default().trim();
    let mut shown: String = statement.chars().take(SHOWN).collect();
    if shown.len() < statement.len() {
        shown.push('…');
    }
    format!("line {line}, {shown:?}: {why}")
}
